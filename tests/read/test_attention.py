"""Attention classifiers from training to a radius, and scores of any size."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asking
import frown
import zoo
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.certification.inspect import bounded
from frown.errors import UnsupportedModel
from frown.graph.builder import Builder, Value
from frown.graph.graph import Graph
from frown.methods import method_of
from frown.problem.region import Region
from frown.read import attention

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import attention as example


@pytest.fixture(scope="module")
def trained() -> tuple[example.Classifier, np.ndarray, np.ndarray]:
    """The example's classifier after fewer steps, and an image that it gets right."""
    torch.manual_seed(0)
    x, y = example.digits()
    module = example.Classifier()
    example.train(module, x[60:], y[60:], epochs=20)
    with torch.no_grad():
        first = int((module(x[:60]).argmax(1) == y[:60]).nonzero()[0, 0])
    return module, x[first : first + 1].double().numpy(), y[first : first + 1].numpy()


def test_a_two_block_classifier_has_a_radius(trained) -> None:
    module, image, label = trained
    model = frown.load(module, torch.from_numpy(image).float())
    result = asking.certify(model, image, label, norm="inf", method="crown", bounds=(0, 1))
    assert result.radius[0] > 0.003
    assert result.radius[0] <= result.broken[0] < 0.3
    out = asking.bound(model, image, 0.01, norm="inf", method="crown", bounds=(0, 1))
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1, 0.3], (200, *image.shape[1:]))
    answers = model.run((image + 0.01 * signs).clip(0, 1))
    assert (answers >= out.lower - 1e-5).all() and (answers <= out.upper + 1e-5).all()
    assert (out.upper - out.lower).max() < 40


def large(size: float, causal: bool) -> Graph:
    """Attention with scores of the size given, then layer norm."""
    weights, b = zoo.Weights.seeded(3), Builder()
    x = b.input("x", (1, 3, 2))
    query, key, value = (b.linear(x, weights(2, 2), weights(2)) for _ in range(3))
    mixed = attention.attention(b, query, key, value, causal=causal, scale=size)
    assert isinstance(mixed, Value)
    y = attention.layer_norm(b, mixed, 2, None, None, 1e-5)
    assert isinstance(y, Value)
    return b.graph(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["interval", "fastlin", "crown", "frown"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_scores_of_any_size_give_no_false_bound(
    dtype: torch.dtype, method: str, size: float
) -> None:
    """A bound holds at every sampled point, or it is no number: NaN proves nothing."""
    wide = False
    quick = method == "frown"  # which is slow
    for causal in (True,) if quick else (False, True):
        graph = large(size, causal)
        plan = Plan(graph.to(dtype))
        centre = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(1, 1, 3, 2)
        for radius in (0.1,) if quick else (1e-4, 0.1, 3.0):
            ball = Region(centre.to(dtype), torch.tensor([radius], dtype=dtype), inf)
            eye = torch.eye(graph.output_size, dtype=dtype)
            found = bounded(plan, ball, eye, method_of(method), (3, 2), Work())
            exact = Region(centre, torch.tensor([radius], dtype=torch.float64), inf)
            y = torch.cat([graph.apply(x) for x in zoo.samples(exact, 60)]).numpy()
            # In single precision scores of 1e6 are rounded to a tenth: weights may be others.
            room = 1e-4 if dtype == torch.float64 or size < 1e3 else 0.1
            assert not (found.lower > y + room).any()
            assert not (found.upper < y - room).any()
            wide = wide or bool((found.upper - found.lower > 0.5).any())
    assert wide


def test_shares_stay_between_0_and_1() -> None:
    b = Builder()
    shares = attention.softmax(b, b.input("x", (1, 5)))
    assert isinstance(shares, Value)
    plan = Plan(b.graph(shares))
    centre = torch.tensor([[[900.0, -900, 0, 5, 5]]], dtype=torch.float64)
    ball = Region(centre, torch.tensor([2.0], dtype=torch.float64), inf)
    eye = torch.eye(5, dtype=torch.float64)
    for method in ("interval", "crown", "frown"):
        found = bounded(plan, ball, eye, method_of(method), (5,), Work())
        assert (found.lower >= -1e-9).all() and (found.upper <= 1 + 1e-9).all()
        assert found.lower[0, 0] > 1 - 1e-9 and found.upper[0, 1] < 1e-9


class Masked(nn.Module):
    """Scores of a size, of which a mask takes out the first."""

    def __init__(self, size: float, mask: float) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("mask", torch.tensor([mask, 0.0, -1.0]))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.cat([self.size * x[:, :1], 0 * x[:, 1:], 0 * x[:, 1:]], 1)
        return (scores + self.mask).softmax(1)


@pytest.mark.parametrize("mask", [-1e31, -3e38, -torch.inf])
def test_a_mask_takes_out_moderate_scores(mask: float) -> None:
    found = asking.certify(frown.load(Masked(1.0, mask), torch.zeros(1, 2)), [[5.0, 0.0]], [1])
    assert found.radius[0] > 1e3


def test_a_mask_takes_out_no_score_that_outgrows_it() -> None:
    """1e31 x - 2e32 is far below the others up to x = 20, and far above them beyond."""
    model = frown.load(Masked(1e31, -2e32), torch.zeros(1, 2))
    x = np.array([[5.0, 0.0]])
    assert model.run(x)[0].argmax() == 1 and model.run(np.array([[50.0, 0.0]]))[0].argmax() == 0
    for level in ("estimate", "rigorous"):
        found = asking.certify(model, x, [1], bounds=(-100, 100), attack=False, level=level)
        assert found.radius[0] <= 15


def test_masks_that_neither_keep_nor_take_out_are_refused() -> None:
    module = Masked(1.0, -1e31)
    module.mask[1] = -5e29
    with pytest.raises(UnsupportedModel, match="neither moderate nor next to -inf"):
        frown.load(module, torch.zeros(1, 2))
