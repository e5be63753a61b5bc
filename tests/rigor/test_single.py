"""What is assumed of single precision holds for the runtimes at hand; the rest is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import frown
from frown.errors import InvalidInput, UnsupportedModel
from frown.relax.relaxation import Relaxation
from frown.relax.table import ELEMENTWISE
from frown.rigor.single import UNIT32, own_error
from onnx_models import model, node, saved

LIBRARY = {
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Erf": "erf",
    "Atan": "arctan",
    "Softplus": "softplus",
    "Elu": "elu",
    "Selu": "selu",
    "Gelu": "gelu",
    "HardSwish": "hard_swish",
}


def arguments() -> np.ndarray:
    rng = np.random.default_rng(0)
    tiny = 2.0 ** rng.uniform(-140, 10, 20_000) * rng.choice([-1, 1], 20_000)
    wide = (np.linspace(-20, 20, 100_001), np.linspace(-100, 100, 20_001), tiny)
    return np.concatenate(wide).astype(np.float32)


def allowed(op: Relaxation, z: np.ndarray) -> tuple[Tensor, Tensor]:
    """Values in double precision, and how far execution may be from them."""
    argument = torch.from_numpy(z).double()
    value = op.apply(argument)
    return value, own_error(op, argument.abs(), value.abs())


@pytest.mark.parametrize("name", [*LIBRARY.values(), "silu", "gelu_tanh", "leaky_relu"])
def test_torch_keeps_what_is_assumed(name: str) -> None:
    z, op = arguments(), ELEMENTWISE[name]
    value, error = allowed(op, z)
    executed = op.apply(torch.from_numpy(z)).double()
    assert ((executed - value).abs() <= error).all()


@pytest.mark.parametrize("name", [*LIBRARY, "Silu"])
def test_onnxruntime_keeps_what_is_assumed(name: str, tmp_path: Path) -> None:
    nodes = [node(name, "x")]
    if name == "Silu":
        nodes = [node("Sigmoid", "x", "s"), node("Mul", "x s")]
    path = saved(model(nodes, ["N"], opset=20), tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    z = arguments()
    value, error = allowed(ELEMENTWISE[LIBRARY.get(name, "silu")], z)
    executed = torch.from_numpy(session.run(None, {"x": z})[0]).double()
    assert ((executed - value).abs() <= error).all()


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
        frown.certify(network, np.zeros((1, 4)), deployed="float32")


def test_resampling_is_refused() -> None:
    module = nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten(), nn.Linear(64, 3)
    )
    network = frown.load(module, torch.zeros(1, 1, 4, 4))
    with pytest.raises(UnsupportedModel, match="resampling"):
        frown.certify(network, np.zeros((1, 1, 4, 4)), deployed="float32")


def test_estimates_say_nothing_of_execution() -> None:
    network = frown.load(nn.Sequential(nn.Linear(4, 3)), torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match="milp are estimates"):
        frown.certify(network, np.zeros((1, 4)), method="milp", deployed="float32")
