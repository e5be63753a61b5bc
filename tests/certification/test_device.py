"""Whole runs on a device that is not the CPU give the radii of the CPU, proofs included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf

import numpy as np
import pytest
import torch
from torch import nn

import frown
from frown.errors import InvalidInput
from frown.read.model import Model
from other_device import DEVICE, other_device

HOST, FAR = frown.Machine(), frown.Machine(device=DEVICE.type)
Make = Callable[[], tuple[nn.Module, torch.Tensor]]


def dense() -> tuple[nn.Module, torch.Tensor]:
    middle = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Sigmoid()]
    return nn.Sequential(*middle, nn.Linear(16, 3)), torch.zeros(1, 8)


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(*layers), torch.zeros(1, 1, 6, 6)


def piecewise() -> tuple[nn.Module, torch.Tensor]:
    middle = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*middle, nn.Linear(8, 3)), torch.zeros(1, 4)


def prepared(make: Make) -> tuple[Model, np.ndarray, np.ndarray]:
    torch.manual_seed(0)
    module, example = make()
    model = frown.load(module, example)
    x = np.random.default_rng(0).random((3, *example.shape[1:]))
    return model, x, model.run(x).argmax(1)


@pytest.fixture(autouse=True)
def _plain_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the other device are torch's, wrapped: they cannot be made in inference mode."""

    def mode(on: bool = True) -> AbstractContextManager[object]:
        return torch.no_grad() if on else nullcontext()

    monkeypatch.setattr(torch, "inference_mode", mode)


@pytest.mark.parametrize(
    ("method", "norm", "proof"),
    [
        (frown.Interval(), 1, "rigorous"),
        (frown.Crown(), inf, "rigorous"),
        (frown.Frown(), inf, "estimate"),
        (frown.Frown(group=2), 1, "rigorous"),
        (frown.Frown(curved="always"), 2, "rigorous"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [dense, convolutional])
def test_radii_on_another_device_are_those_of_the_cpu(
    make: Make, method: frown.Method, norm: float, proof: str
) -> None:
    model, x, y = prepared(make)
    where = frown.Ball(x, norm=norm, within=(0, 1))
    near = frown.certify(model, where, y, method=method, proof=proof, machine=HOST)
    assert (near.radius > 0).all()
    with other_device() as moves:
        far = frown.certify(model, where, y, method=method, proof=proof, machine=FAR)
    assert moves.there > 0 and moves.back > 0
    assert np.allclose(far.radius, near.radius, rtol=1e-5)
    assert np.allclose(far.broken, near.broken, rtol=1e-5)


def test_trees_grow_from_bounds_of_another_device() -> None:
    model, x, y = prepared(piecewise)
    method = frown.Branch(frown.Crown(), gap=0.01, seconds=20)
    lines = frown.certify(model, frown.Ball(x), y, method="crown").radius
    with other_device():
        found = frown.certify(model, frown.Ball(x), y, method=method, machine=FAR)
    assert (found.radius > 1.01 * lines).any()
    assert (found.broken < 1.02 * found.radius).all()


def test_exact_distances_start_from_bounds_of_another_device() -> None:
    model, x, y = prepared(piecewise)
    method, proof = frown.Exact(), frown.Estimate()
    near = frown.certify(model, frown.Ball(x), y, method=method, proof=proof)
    with other_device():
        far = frown.certify(model, frown.Ball(x), y, method=method, proof=proof, machine=FAR)
    assert np.allclose(far.radius, near.radius, rtol=0.01)


def test_linear_programs_refuse_another_device() -> None:
    model, x, y = prepared(piecewise)
    with other_device(), pytest.raises(InvalidInput, match="on the CPU, not on meta"):
        frown.certify(model, frown.Ball(x), y, method="lp", machine=FAR)


def test_a_device_without_numbers_is_refused() -> None:
    model, x, y = prepared(piecewise)
    with pytest.raises(InvalidInput, match="device 'meta' is not available"):
        frown.certify(model, frown.Ball(x), y, machine=FAR)
