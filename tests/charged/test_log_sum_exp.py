"""Proven planes of log-sum-exp against Arb."""

from __future__ import annotations

from math import isfinite

import pytest
import torch
from flint import arb
from torch import Tensor

from charged.test_curves_more import bits
from frown.graph.intervals import Intervals
from frown.relax import LogSumExp
from frown.relax.proven.lines import prove

KEPT = {
    "all": None,
    "some": torch.tensor([True, False, True, True]),
    "one": torch.tensor([False, False, True, False]),
}


def boxes(seed: int) -> Intervals:
    """Widths from points to hundreds, sizes from the least number to millions."""
    rng = torch.Generator().manual_seed(seed)
    shape = (160, 4)

    def normal() -> Tensor:
        return torch.randn(shape, generator=rng).double()

    size = 10.0 ** torch.randint(-3, 4, (160, 1), generator=rng).double()
    low = normal() * size
    width = normal().abs() * 10.0 ** torch.randint(-18, 3, shape, generator=rng).double()
    low[:20], width[:10] = low[:20] * 1e3, 0.0
    low[20:24], width[20:24] = 0.0, torch.tensor([0.0, 5e-324, 1e-310, 1.0]).double()
    width[24:30] = 0.0
    high = low + width
    high[30:40] = torch.nextafter(low[30:40], torch.full_like(low[30:40], torch.inf))
    return Intervals(low, high)


def slopes_of(op: LogSumExp, box: Intervals, seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    rule, flat = op.crown(box), torch.zeros_like(box.lower)
    noise = torch.randn(box.lower.shape, generator=rng).double()
    single = [s.float().double() for s in (rule.lower, rule.upper)]
    return [rule.lower, rule.upper, *single, flat, flat + 0.25, noise, rule.upper + 1e-9 * noise]


def points_of(op: LogSumExp, slope: Tensor, box: Intervals) -> Tensor:
    """(points, boxes, 4) corners, the middle, and where planes touch."""
    low, high = box.lower, box.upper
    ones = [torch.where(torch.arange(4) == j, high, low) for j in range(4)]
    zeros = [torch.where(torch.arange(4) == j, low, high) for j in range(4)]
    lean = [torch.where(slope > 0, high, low), torch.where(slope > 0, low, high)]
    under = torch.ones_like(low[:, 0], dtype=torch.bool)
    touch = [op.line(slope, side, op.anchors(box)).touch for side in (under, ~under)]
    inner = [torch.lerp(low, high, k) for k in (0.3, 0.5)]
    return torch.stack([box.clip(z) for z in (low, high, *ones, *zeros, *lean, *touch, *inner)])


def value(x: list[float], kept: list[bool]) -> arb:
    left = [v for v, k in zip(x, kept, strict=True) if k]
    top = arb(max(left))
    return top + sum(((arb(v) - top).exp() for v in left), arb(0)).log()


@pytest.mark.parametrize("name", KEPT)
def test_planes_are_valid_and_tight(name: str) -> None:
    op = LogSumExp(KEPT[name])
    kept = [True] * 4 if op.kept is None else op.kept.tolist()
    box = boxes(len(name))
    proven = prove(op, box)
    assert proven is not None
    under = torch.ones_like(box.lower[:, 0], dtype=torch.bool)
    reach = box.lower.abs().maximum(box.upper.abs())
    for slope in slopes_of(op, box, 5):
        points = points_of(op, slope, box)
        lines = proven.intercept(slope, under), proven.intercept(slope, ~under)
        plain = [op.line(slope, side, op.anchors(box)).intercept for side in (under, ~under)]
        size = reach.amax(-1) + (slope.abs() * reach).sum(-1) + 1
        assert ((plain[0] - lines[0]) / size).max() < 1e-9
        assert ((lines[1] - plain[1]) / size).max() < 1e-9
        with bits(300):
            for n, (low, high) in enumerate(zip(*(t.tolist() for t in lines), strict=True)):
                assert isfinite(low) and isfinite(high)
                tilt = [arb(s) for s in slope[n].tolist()]
                for x in points[:, n].tolist():
                    flat = value(x, kept) - sum(
                        (s * arb(v) for s, v in zip(tilt, x, strict=True)), arb(0)
                    )
                    assert not flat < arb(low) and not flat > arb(high)


def test_sides_may_be_mixed_and_rows_picked() -> None:
    op, box = LogSumExp(), boxes(1)
    proven = prove(op, box)
    assert proven is not None
    slope = op.crown(box).lower
    under = torch.arange(len(slope)) % 2 == 0
    every = torch.ones_like(under)
    mixed = proven.intercept(slope, under)
    low, high = proven.intercept(slope, every), proven.intercept(slope, ~every)
    assert mixed.equal(torch.where(under, low, high))
    some = torch.tensor([5, 50, 7])
    assert proven.rows(some).intercept(slope[some], every[some]).equal(low[some])


@pytest.mark.parametrize("name", KEPT)
def test_the_image_holds_the_values_at_the_corners(name: str) -> None:
    op, box = LogSumExp(KEPT[name]), boxes(2)
    kept = [True] * 4 if op.kept is None else op.kept.tolist()
    proven = prove(op, box)
    assert proven is not None
    image = proven.image()
    with bits(300):
        for x, bound in zip(box.lower.tolist(), image.lower.tolist(), strict=True):
            assert not value(x, kept) < arb(bound)
        for x, bound in zip(box.upper.tolist(), image.upper.tolist(), strict=True):
            assert not value(x, kept) > arb(bound)
    plain = op.image(box)
    size = plain.lower.abs().maximum(plain.upper.abs()) + 1
    assert ((plain.lower - image.lower) / size).max() < 1e-9
    assert ((image.upper - plain.upper) / size).max() < 1e-9


def test_no_number_proves_nothing() -> None:
    box = Intervals(
        torch.tensor([[0.0, torch.nan]]).double(), torch.tensor([[1.0, torch.nan]]).double()
    )
    proven = prove(LogSumExp(), box)
    assert proven is not None
    image = proven.image()
    assert not torch.isfinite(image.lower).any() and not torch.isfinite(image.upper).any()
