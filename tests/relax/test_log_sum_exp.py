"""The logarithm of a sum of exponentials: planes below and above, with entries left out."""

from __future__ import annotations

from itertools import product
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from frown.graph.intervals import Intervals
from frown.relax import LogSumExp
from frown.relax.relaxation import LeastArea, relax

seeds = st.integers(0, 2**32)
WIDTH = 4
MASKS = {"all": None, "some": torch.tensor([True, False, True, True]), "one": torch.arange(4) == 2}


def drawn(seed: int, dtype: torch.dtype, count: int = 24) -> Intervals:
    """Points, narrow and wide boxes, far from 0 and near it, entries that differ by thousands."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(count, WIDTH)) * rng.choice([1e-3, 1, 10, 1e3, 1e6], (count, 1))
    middle += rng.choice([0, -2e3, 1e3], (count, 1))
    radius = rng.choice([0, 1e-7, 1e-2, 0.5, 3, 50, 1e3], (count, WIDTH))
    ends = (torch.from_numpy(v).to(dtype) for v in (middle - radius, middle + radius))
    return Intervals(*ends)


def points(box: Intervals, seed: int, inside: int = 60) -> np.ndarray:
    """(boxes, points, entries) in double precision: all corners, edges and points between."""
    rng = np.random.default_rng(seed)
    low, high = (t.double().numpy()[:, None] for t in (box.lower, box.upper))
    share = np.concatenate(
        [np.array(list(product([0, 1], repeat=WIDTH)))[None].repeat(len(low), 0)]
        + [rng.choice([0, 0.5, 1], (len(low), inside, WIDTH))]
        + [rng.uniform(0, 1, (len(low), inside, WIDTH)) ** k for k in (1, 3)],
        1,
    )
    return np.clip(low + share * (high - low), low, high)


def truth(z: np.ndarray, mask: torch.Tensor | None) -> np.ndarray:
    return special.logsumexp(z if mask is None else z[..., mask.numpy()], -1)


def assert_encloses(
    box: Intervals, slope: torch.Tensor, t: torch.Tensor, below: bool, mask: torch.Tensor | None
) -> None:
    z = points(box, 0)
    terms = z * slope.double().numpy()[:, None]
    gap = truth(z, mask) - terms.sum(-1) - t.double().numpy()[:, None]
    rounding = 1e-14 * (1 + np.abs(z).max(-1) + np.abs(terms).sum(-1))  # of this very sum
    assert ((gap if below else -gap) >= -rounding).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=seeds)
def test_planes_enclose_the_function_for_any_slopes(
    mask: str, dtype: torch.dtype, seed: int
) -> None:
    op, box = LogSumExp(MASKS[mask]), drawn(seed, dtype)
    rng = np.random.default_rng(seed)
    shape = tuple(box.lower.shape)
    kinds = [
        rng.normal(size=shape),
        rng.dirichlet(np.ones(WIDTH), shape[0]),
        rng.dirichlet(np.full(WIDTH, 0.1), shape[0]) * rng.choice([1e-38, 1e-3, 1, 1e3], shape),
        np.zeros(shape),
        rng.choice([0.0, 1.0, -1.0, 1e-30, 1e30], shape),
    ]
    for kind in kinds:
        slope = torch.from_numpy(kind).to(dtype)
        for below in (True, False):
            side = torch.full(shape[:1], below)
            line = op.line(slope, side, op.anchors(box))
            assert bool(line.intercept.isfinite().all())
            assert_encloses(box, slope, line.intercept, below, MASKS[mask])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=seeds)
def test_the_search_and_the_rules_stay_valid(mask: str, dtype: torch.dtype, seed: int) -> None:
    op, box = LogSumExp(MASKS[mask]), drawn(seed, dtype)
    rng = np.random.default_rng(seed)
    here = relax(op, box, LeastArea())
    for below in (True, False):
        side = torch.full((len(box.lower),), below)
        lines = here.lines
        slope, t = (lines.slopes.lower, lines.lower) if below else (lines.slopes.upper, lines.upper)
        assert_encloses(box, slope, t, below, MASKS[mask])
        for place in (np.zeros, np.ones, lambda shape: rng.uniform(0, 1, shape).round(1)):
            at = torch.from_numpy(np.asarray(place(tuple(box.lower.shape)))).to(dtype)
            found = op.within(at, side, here)
            assert bool(found.slope.isfinite().all() and found.width.isfinite().all())
            assert_encloses(box, found.slope, found.intercept, below, MASKS[mask])
    image = op.image(box)
    value = truth(points(box, seed), MASKS[mask])
    assert (image.lower.double().numpy()[:, None] <= value).all()
    assert (value <= image.upper.double().numpy()[:, None]).all()


def ordinary(seed: int, count: int = 12) -> Intervals:
    rng = np.random.default_rng(seed)
    middle, radius = rng.normal(size=(count, WIDTH)), rng.uniform(0.05, 1.5, (count, WIDTH))
    return Intervals(torch.from_numpy(middle - radius), torch.from_numpy(middle + radius))


@given(seed=seeds)
def test_tangents_are_exact(seed: int) -> None:
    """With shares as slopes the plane below touches; the rule's planes do, at the middle and at
    the level of the chords' sum there."""
    op, box = LogSumExp(), ordinary(seed)
    here = relax(op, box, LeastArea())
    lines = here.lines
    middle = box.middle
    under = op.along(lines.slopes.lower, middle, lines.lower)
    torch.testing.assert_close(under, op.apply(middle), rtol=0, atol=1e-12)
    over = op.along(lines.slopes.upper, middle, lines.upper)
    chords = (box.lower.exp() + box.upper.exp()).sum(-1) / 2
    torch.testing.assert_close(over, chords.log(), rtol=0, atol=1e-11)


@given(seed=seeds)
def test_a_single_entry_is_a_line(seed: int) -> None:
    """Programs take a neuron none of whose entries needs rows for its line above."""
    op, box = LogSumExp(MASKS["one"]), ordinary(seed)
    here = relax(op, box, LeastArea())
    for slope, t in (
        (here.lines.slopes.lower, here.lines.lower),
        (here.lines.slopes.upper, here.lines.upper),
    ):
        assert (slope == torch.tensor([0.0, 0.0, 1.0, 0.0])).all()
        assert float(t.abs().max()) <= 1e-12


@given(seed=seeds)
def test_planes_below_are_as_high_as_convexity_allows(seed: int) -> None:
    """Any slopes, against a solver: min over the box of log sum e^x - s . x."""
    op, box = LogSumExp(), ordinary(seed, 3)
    slope = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(WIDTH), 3))
    side = torch.ones(3, dtype=torch.bool)
    t = op.line(slope, side, op.anchors(box)).intercept.numpy()
    for i, s in enumerate(slope.numpy()):
        ends = list(zip(box.lower[i].tolist(), box.upper[i].tolist(), strict=True))
        best = optimize.minimize(
            lambda x, s=s: special.logsumexp(x) - s @ x,
            box.middle[i].numpy(),
            jac=lambda x, s=s: special.softmax(x) - s,
            bounds=ends,
            method="L-BFGS-B",
        )
        spread = float((box.upper[i] - box.lower[i]).max())
        assert best.fun - t[i] <= 0.25 * spread**2 / 2 + 1e-9
        if all(a + 1e-9 < x < b - 1e-9 for (a, b), x in zip(ends, best.x, strict=True)):
            assert best.fun - t[i] <= 1e-5


@given(seed=seeds)
def test_the_directions_of_the_search_are_derivatives(seed: int) -> None:
    op, box = LogSumExp(), ordinary(seed, 6)
    here = relax(op, box, LeastArea())
    rng = np.random.default_rng(seed)
    place = torch.from_numpy(rng.uniform(0.2, 0.8, (6, WIDTH)))
    z = torch.from_numpy(rng.normal(size=(6, WIDTH)))
    for below in (True, False):
        side = torch.full((6,), below)
        coef = torch.full((6, 1), 1.0 if below else -1.0, dtype=torch.float64)

        def value(at: torch.Tensor, side=side, coef=coef) -> torch.Tensor:
            found = op.within(at, side, here)
            return coef[:, 0] * op.along(found.slope, z, found.intercept)

        found = op.uphill(coef, op.within(place, side, here), z)
        step = 1e-6
        for j in range(WIDTH):
            move = torch.zeros(WIDTH, dtype=torch.float64)
            move[j] = step
            slope = (value(place + move) - value(place - move)) / (2 * step)
            torch.testing.assert_close(found[:, j], slope, rtol=1e-4, atol=1e-7)


def test_what_needs_no_rows() -> None:
    low = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    box = Intervals(low, low + torch.tensor([[0.0, 1.0, 0.0, 2.0]]))
    assert LogSumExp().stable(box).tolist() == [[True, False, True, False]]
    assert LogSumExp(MASKS["some"]).stable(box).tolist() == [[True, True, True, False]]
    assert bool(LogSumExp(MASKS["one"]).stable(box).all())


def test_values_far_apart_and_left_out() -> None:
    x = torch.tensor([[1e6, 0.0, 1e6, -1e6]], dtype=torch.float64)
    assert float(LogSumExp().apply(x)) == pytest.approx(1e6 + log(2))
    assert float(LogSumExp(MASKS["one"]).apply(x)) == 1e6
