"""What is assumed of single precision holds for the runtimes at hand; the rest is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import asking
import frown
from charged.kernels import Kernel, floats, kernels, measured
from frown.bounds.arithmetic.float32 import LIBRARY, UNIT32
from frown.errors import InvalidInput, UnsupportedModel
from frown.relax import Tanh
from onnx_models import model, node, saved


def arguments() -> Iterator[np.ndarray]:
    """A thin grid over all numbers, and dense ones where functions bend."""
    yield from floats(every=2**16 + 1, start=0x00000001)
    for first, last in ((0.01, 0.02), (0.3, 1.0), (2.0, 20.0), (79.0, 105.0)):
        ends = (int(np.float32(v).view(np.uint32)) for v in (first, last))
        positive = np.arange(*ends, 1021, dtype=np.uint32).view(np.float32)
        yield np.concatenate([positive, -positive])


@pytest.mark.parametrize("kernel", kernels(), ids=str)
def test_kernels_keep_what_is_assumed(kernel: Kernel) -> None:
    found = measured(kernel, arguments())
    assert found.beyond == 0, found


def test_kernels_come_near_what_is_assumed() -> None:
    """The assumption is about twice what the worst kernel needs: not so loose as to hide one."""
    gru = next(k for k in kernels() if k.name == "onnxruntime GRU n Tanh")
    assert 8 < measured(gru, arguments()).units < LIBRARY


def test_a_kernel_beyond_what_is_assumed_is_noticed() -> None:
    def crude(z: np.ndarray) -> np.ndarray:
        return np.tanh(z) + np.float32(LIBRARY * UNIT32 * 1.25) * (np.abs(z) > 1)

    def undefined(z: np.ndarray) -> np.ndarray:
        return np.where(np.abs(z) > 30, np.float32(np.nan), np.tanh(z))

    for run in (crude, undefined):
        assert measured(Kernel("", Tanh(), lambda run=run: run), arguments()).beyond > 0


def test_onnxruntimes_sigmoid_is_off_by_far_more_than_its_own_last_place(tmp_path: Path) -> None:
    """Why s-shaped functions are trusted with an absolute error only."""
    path = saved(model([node("Sigmoid", "x")], ["N"]), tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (value,) = session.run(None, {"x": np.float32([-25])})
    real = float(torch.sigmoid(torch.tensor(-25.0).double()))
    assert abs(float(value[0]) - real) > 1e4 * UNIT32 * real


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "what"), [(nn.Softmax(-1), "LogSumExp"), (nn.LayerNorm(4), "Power")]
)
def test_operators_of_unknown_execution_are_refused(layer: nn.Module, what: str) -> None:
    torch.manual_seed(0)
    network = frown.load(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3)), torch.zeros(1, 4))
    with pytest.raises(UnsupportedModel, match=f"{what} +at .*\\n.*leave out deployed"):
        asking.certify(network, np.zeros((1, 4)), deployed="float32")


def test_resampling_is_refused() -> None:
    module = nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten(), nn.Linear(64, 3)
    )
    network = frown.load(module, torch.zeros(1, 1, 4, 4))
    with pytest.raises(UnsupportedModel, match="resampling"):
        asking.certify(network, np.zeros((1, 1, 4, 4)), deployed="float32")


def test_estimates_say_nothing_of_execution() -> None:
    network = frown.load(nn.Sequential(nn.Linear(4, 3)), torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match="milp are estimates"):
        asking.certify(network, np.zeros((1, 4)), method="milp", deployed="float32")
