"""The imported graph is compared with the original whatever the size of its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asking
import frown
from frown.errors import ModelMismatch
from frown.read.torch.load import load_torch
from onnx_models import model, node, number, saved, weights


class Remembers(nn.Module):
    """What it answers depends on how often it was asked, outside of torch's sight."""

    asked: ClassVar[list[int]] = [0]  # of the class: a module's own attributes are watched

    def __init__(self, size: float) -> None:
        super().__init__()
        self.layer, self.size = nn.Linear(3, 3), size

    def forward(self, x: Tensor) -> Tensor:
        Remembers.asked[0] += 1
        return self.size * self.layer(x) / Remembers.asked[0]


class Mixes(nn.Module):
    """Inputs of a batch are compared with one another."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.layer, self.size = nn.Linear(3, 3), size

    def forward(self, x: Tensor) -> Tensor:
        return self.size * (self.layer(x) - 0.5 * x.mean(0))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_graph_that_answers_otherwise_is_refused(size: float) -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelMismatch, match="disagree"):
        load_torch(Remembers(size), torch.zeros(1, 3))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_inputs_that_a_batch_would_mix_are_run_one_by_one(size: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(5, 3))
    known = {"w": weights(3, 3), "s": number(size)}
    nodes = [
        node("ReduceMean", "x", "m", axes=[0]),
        node("Sub", "x m", "d"),
        node("Add", "x d", "e"),
        node("Gemm", "e w", "z"),
        node("Mul", "z s", "y"),
    ]
    path = saved(model(nodes, ("N", 3), known), tmp_path)
    for loaded in (load_torch(Mixes(size), torch.zeros(2, 3)), frown.load(path)):
        apart = np.concatenate([loaded.run(x[k : k + 1]) for k in range(len(x))])
        np.testing.assert_allclose(loaded.run(x), apart, rtol=1e-5, atol=1e-6 * size)


def test_inputs_themselves_are_compared_too() -> None:
    """Far out, where no random input fell, the original answers otherwise."""
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = 1e-6 * torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    loaded = load_torch(layer, torch.zeros(1, 2))
    run = loaded.run
    far = replace(loaded, run=lambda x: np.where(x[:, :1] > 50, run(x)[:, ::-1] * 2, run(x)))
    far.check()
    row = asking.certify(far, np.array([[100.0, 0.0]]), level="estimate").rows[0]
    assert (row.status, row.radius) == ("mismatch", 0.0)
