"""Max over a window: planes below and above, in K variables."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from frown.graph.intervals import Intervals
from frown.relax import Max
from frown.relax.relaxation import LeastArea, relax

seeds = st.integers(0, 2**32)


def window_boxes(
    seed: int, count: int = 24, width: int = 3, dtype: torch.dtype = torch.float64
) -> Intervals:
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(count, width)) * rng.choice([1e-3, 1, 1e4], (count, 1))
    radius = rng.choice([0.0, 1e-9, 0.3, 2.0], (count, width)) * np.abs(middle)
    low, high = (torch.from_numpy(v).to(dtype) for v in (middle - radius, middle + radius))
    return Intervals(low, high)


def corners(box: Intervals) -> np.ndarray:
    """(entries, 2^K, K) in float64."""
    low, high = box.lower.double().numpy(), box.upper.double().numpy()
    picks = np.array(list(product([0, 1], repeat=low.shape[1])))[None]
    return np.where(picks == 1, high[:, None, :], low[:, None, :])


def least_gap(low: np.ndarray, high: np.ndarray, slope: np.ndarray) -> float:
    """min over the box of max_j x_j - s . x: an LP in (x, t) with t >= x_j."""
    k = len(low)
    cost = np.concatenate([-slope, [1.0]])
    rows = np.concatenate([np.eye(k), -np.ones((k, 1))], 1)
    ends = [*zip(low, high), (None, None)]
    return float(linprog(cost, A_ub=rows, b_ub=np.zeros(k), bounds=ends).fun)


@given(seed=seeds)
def test_planes_enclose_the_maximum_for_any_slopes(seed: int) -> None:
    op = Max()
    rng = np.random.default_rng(seed)
    for dtype in (torch.float32, torch.float64):
        box = window_boxes(seed, dtype=dtype)
        slope = torch.from_numpy(rng.normal(size=tuple(box.lower.shape)) * 1.5).to(dtype)
        inner = corners(box)
        share = rng.uniform(0, 1, (len(inner), 200, inner.shape[2]))
        points = np.concatenate([inner, inner[:, :1] + share * (inner[:, -1:] - inner[:, :1])], 1)
        for below in (True, False):
            mask = torch.full((len(inner),), below)
            t = op.line(slope, mask, op.anchors(box)).intercept.double().numpy()
            plane = (points * slope.double().numpy()[:, None, :]).sum(2) + t[:, None]
            gap = (points.max(2) - plane) * (1 if below else -1)
            assert (gap >= -1e-15 * (1 + np.abs(points).max())).all()


@given(seed=seeds)
def test_planes_of_the_search_space_are_tight(seed: int) -> None:
    """Below against an LP, above against all corners; the touching point attains both."""
    op = Max()
    rng = np.random.default_rng(seed)
    box = window_boxes(seed, count=8)
    slope = torch.from_numpy(rng.uniform(0, 1, tuple(box.lower.shape)))
    inner = corners(box)
    for below in (True, False):
        mask = torch.full((len(inner),), below)
        weights = op.project(slope, mask)
        if below:
            assert (weights >= 0).all()
            assert (weights.sum(-1) <= 1 + 1e-12).all()
        line = op.line(weights, mask, op.anchors(box))
        low, high, s = (t.numpy() for t in (box.lower, box.upper, weights))
        if below:
            truth = np.array([least_gap(*v) for v in zip(low, high, s)])
        else:
            truth = (inner.max(2) - (inner * s[:, None, :]).sum(2)).max(1)
        size = 1e-9 * (1 + np.abs(inner).max((1, 2)))
        assert (np.abs(line.intercept.numpy() - truth) <= size).all()
        touch = line.touch.numpy()
        assert ((touch >= low) & (touch <= high)).all()
        there = touch.max(1) - (touch * s).sum(1)
        assert (np.abs(there - truth) <= size).all()


@given(seed=seeds)
def test_the_touching_point_is_minus_the_intercepts_gradient(seed: int) -> None:
    op = Max()
    rng = np.random.default_rng(seed)
    box = window_boxes(seed)
    shape = tuple(box.lower.shape)
    here, there = (torch.from_numpy(rng.dirichlet(np.ones(shape[1]), shape[0]) * 0.9) for _ in "ab")
    for below, sign in ((True, 1), (False, -1)):
        mask, anchors = torch.full((shape[0],), below), op.anchors(box)
        line, other = op.line(here, mask, anchors), op.line(there, mask, anchors)
        tangent = line.intercept - (line.touch * (there - here)).sum(-1)
        size = 1e-12 * (1 + box.lower.abs().amax() + box.upper.abs().amax())
        assert (sign * (tangent - other.intercept) >= -size).all()


@given(seed=seeds)
def test_rules_are_in_the_search_space_and_images_exact(seed: int) -> None:
    op = Max()
    box = window_boxes(seed)
    inner = corners(box).max(2)
    image = op.image(box)
    assert np.array_equal(image.lower.numpy(), inner.min(1))
    assert np.array_equal(image.upper.numpy(), inner.max(1))
    below = torch.ones(len(box.lower), dtype=torch.bool)
    rule = op.crown(box)
    assert torch.allclose(op.project(rule.lower, below), rule.lower)
    level = (box.upper - rule.upper * (box.upper - box.lower)).amax(-1)
    low, second = box.lower.amax(-1), box.upper.sort(-1).values[:, -2]
    size = 1e-8 * (1 + box.upper.abs().amax(-1) + box.lower.abs().amax(-1))
    assert (level >= low - size).all()
    assert (level <= second.maximum(low) + size).all()


@given(seed=seeds)
def test_no_plane_above_beats_a_level_all_over_the_box(seed: int) -> None:
    """Any slopes in [0, 1] have a level, whose own plane is nowhere higher."""
    op = Max()
    rng = np.random.default_rng(seed)
    box = window_boxes(seed)
    slope = torch.from_numpy(rng.uniform(0, 1, tuple(box.lower.shape)))
    above = torch.zeros(len(slope), dtype=torch.bool)
    planes = []
    found = relax(op, box, LeastArea())
    span = found.range.upper
    for s in (slope, span.lower, span.upper):
        t = op.line(s, above, found.anchors).intercept
        planes.append((torch.from_numpy(corners(box)) * s[:, None]).sum(-1) + t[:, None])
    width, bottom = box.upper - box.lower, box.lower.amax(-1)
    top = box.upper.sort(-1).values[:, -2].maximum(bottom)
    level = (box.upper - slope * width).amax(-1).minimum(top)
    place = ((top - level) / (top - bottom)).nan_to_num(nan=0.0).clamp(0, 1)
    best = op.within(place[:, None].expand_as(slope), above, found)
    plane = (torch.from_numpy(corners(box)) * best.slope[:, None]).sum(-1)
    plane = plane + best.intercept[:, None]
    size = 1e-9 * (1 + box.upper.abs().amax(-1) + box.lower.abs().amax(-1))
    assert (plane <= planes[0] + size[:, None]).all()
    ends = (0.0, planes[1]), (1.0, planes[2])
    for at, truth in ends:
        line = op.within(torch.full_like(slope, at), above, found)
        plane = (torch.from_numpy(corners(box)) * line.slope[:, None]).sum(-1)
        assert ((plane + line.intercept[:, None] - truth).abs() <= size[:, None]).all()


def test_uphill_is_how_planes_above_rise_with_their_level() -> None:
    op = Max()
    box = Intervals(torch.tensor([[0.0, -1.0, -2.0, 0.2]]), torch.tensor([[2.0, 1.5, 0.1, 0.9]]))
    box = Intervals(box.lower.double(), box.upper.double())
    found, above = relax(op, box, LeastArea()), torch.zeros(1, dtype=torch.bool)
    z, coef = torch.tensor([[0.3, 2.0, -1.0, 0.4]]).double(), torch.tensor([[-1.5]]).double()

    def value(m: float) -> Tensor:
        line = op.within(torch.full_like(z, m), above, found)
        return coef[:, 0] * op.along(line.slope, z, line.intercept)

    for m in (0.1, 0.5, 0.95):
        truth = (value(m + 1e-6) - value(m - 1e-6)) / 2e-6
        lines = op.within(torch.full_like(z, m), above, found)
        uphill = op.uphill(coef, lines, z)
        assert torch.allclose(uphill, truth[:, None].expand_as(z) / 4, rtol=1e-6)


@given(seed=seeds)
def test_a_settled_window_is_its_largest_entry(seed: int) -> None:
    op = Max()
    box = window_boxes(seed)
    stable = op.stable(box)
    assert (stable == stable[:, :1]).all()
    winner = box.lower.argmax(-1, keepdim=True)
    others = torch.where(torch.arange(3)[None] == winner, -torch.inf, box.upper).amax(-1)
    assert torch.equal(stable[:, 0], box.lower.amax(-1) >= others)
    rule, anchors = op.crown(box), op.anchors(box)
    for below, slope in ((True, rule.lower), (False, rule.upper)):
        line = op.line(slope, torch.full((len(box.lower),), below), anchors)
        x = box.upper
        gap = (x.amax(-1) - (slope * x).sum(-1) - line.intercept).abs()
        assert (gap[stable[:, 0]] <= 1e-10 * (1 + x.abs().amax())).all()
