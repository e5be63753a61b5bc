"""Proven lines of powers, waves, erf, hard swish and log-sum-exp, against Arb at 300 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite, isnan, nextafter

import pytest
import torch
from flint import arb, ctx
from torch import Tensor

from frown.graph.intervals import Intervals
from frown.relax import Power
from frown.relax.elementwise import Elementwise
from frown.relax.proven.lines import prove
from functions import ELEMENTWISE

Function = Callable[[arb], arb]


@contextmanager
def bits(count: int) -> Iterator[None]:
    before = ctx.prec
    ctx.prec = count
    try:
        yield
    finally:
        ctx.prec = before


def power(p: float) -> Function:
    if p == int(p) and abs(p) < 1000:
        return lambda z: z ** int(p)
    return lambda z: arb(0) if z == 0 and p > 0 else z ** arb(p)


def hard_swish(z: arb) -> arb:
    return arb(0) if z <= -3 else z if z >= 3 else z * (z + 3) / 6


EXPONENTS = (2, 3, 4, 7, -1, -2, -3, 0.5, 1.5, 2.5, -0.5, -1.5, 0.3, 1.7, 0.9999, -0.1, 300, -257)
CASES: dict[str, tuple[Elementwise, Function]] = {
    "erf": (ELEMENTWISE["erf"], lambda z: z.erf()),
    "hard_swish": (ELEMENTWISE["hard_swish"], hard_swish),
    "log": (ELEMENTWISE["log"], lambda z: z.log()),
    "sin": (ELEMENTWISE["sin"], lambda z: z.sin()),
    "cos": (ELEMENTWISE["cos"], lambda z: z.cos()),
    **{f"power {p}": (Power(float(p)), power(float(p))) for p in EXPONENTS},
}
LEAST, TINY, MOST = 5e-324, 2.0**-1022, 1.7976931348623157e308
HALF_PI = 1.5707963267948966
PLACES = (
    *(0.0, LEAST, TINY, 3e-308, 1e-160, 1e-20, 1e-3, 0.3, 1.0, HALF_PI, 2.0, 3.0, 2 * HALF_PI),
    *(6.0, 4 * HALF_PI, 26.0, 39.97, 40.0, 41.0, 700.0, 1e5, 2.0**45, 1e20, 1e155, 1e300, MOST),
)


def hostile(seed: int) -> Intervals:
    """Points, pairs of neighbours, and all sorts of ends on either side of 0."""
    pairs = []
    for z in (*PLACES, *(-z for z in PLACES)):
        pairs += [
            (z, z),
            (z, nextafter(z, inf)),
            (z, z + abs(z) * 1e-9),
            (z, z + 0.1),
            (z, z + 9.0),
        ]
    rng = torch.Generator().manual_seed(seed)
    signed = torch.tensor([*PLACES, *(-z for z in PLACES)], dtype=torch.float64)
    ends = signed[torch.randint(len(signed), (150, 2), generator=rng)]
    mild = torch.randn(100, 2, generator=rng, dtype=torch.float64) * 4
    pairs += [*ends.tolist(), *mild.tolist()]
    pairs = [(min(p), max(p)) for p in pairs if all(map(isfinite, p))]
    low, high = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return Intervals(low, high)


def slopes_of(op: Elementwise, box: Intervals, rng: torch.Generator) -> Tensor:
    """(slopes, boxes) the relaxation's own, and others."""
    range_ = op.tightest(box)
    ends = (range_.lower.lower, range_.lower.upper, range_.upper.lower, range_.upper.upper)
    inside = torch.lerp(ends[0], ends[1], torch.rand(ends[0].shape, generator=rng).double())
    place = torch.lerp(box.lower, box.upper, torch.rand(ends[0].shape, generator=rng).double())
    number = torch.randn(ends[0].shape, generator=rng).double()
    size = 10.0 ** torch.randint(-300, 300, ends[0].shape, generator=rng).double()
    flat = torch.zeros_like(number)
    near = op.derivative(place)
    every = [*ends, inside, near, near * (1 + 1e-12), flat, number, number * size, flat + 1]
    return torch.stack([s.nan_to_num(nan=0.5, posinf=2.0, neginf=-2.0) for s in every])


def points_of(op: Elementwise, slope: Tensor, under: Tensor, box: Intervals) -> Tensor:
    """(points, ...) where a line may be wrong: ends, kinks, critical points and neighbours."""
    shares = [torch.lerp(box.lower, box.upper, k).expand_as(slope) for k in (0.1, 0.5, 0.77)]
    low, high = box.lower.expand_as(slope), box.upper.expand_as(slope)
    zero, one = torch.zeros_like(slope), torch.ones_like(slope)
    critical = op.critical(slope, under, Intervals(low, high))
    beside = [z + k * 1e-9 * z for z in critical for k in (-1, 1)]
    kinks = [zero, 3 * one, -3 * one]
    points = torch.stack([low, high, *shares, *critical, *beside, *kinks])
    return torch.where(points.isnan(), low, points).maximum(low).minimum(high)


def violations(f: Function, slope: Tensor, line: Tensor, under: Tensor, points: Tensor) -> list:
    """Where Arb is sure that a line crosses f."""
    wrong = []
    shape = points.shape
    values: dict[float, arb] = {}
    flat = (t.expand(shape).flatten().tolist() for t in (slope, line, under, points))
    with bits(2400):  # sums of numbers of all sizes are exact
        for s, b, lower, z in zip(*flat, strict=True):
            if isnan(b) or abs(b) == inf:
                assert not (lower and b == inf) and not (not lower and b == -inf)
                continue
            if z not in values:
                with bits(300):
                    values[z] = f(arb(z))
            gap = values[z] - (arb(s) * arb(z) + arb(b))
            if (gap < 0) if lower else (gap > 0):
                wrong.append((s, b, lower, z, float(gap)))
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_no_line_crosses_its_function_anywhere(name: str) -> None:
    op, f = CASES[name]
    box = hostile(len(name))
    slope = slopes_of(op, box, torch.Generator().manual_seed(7))
    defined = op.defined(box)
    known = torch.ones_like(box.lower, dtype=torch.bool) if defined is None else defined
    box, slope = Intervals(box.lower[known], box.upper[known]), slope[:, known]
    proven = prove(op, box)
    assert proven is not None
    for below in (True, False):
        under = torch.full_like(slope, below, dtype=torch.bool)
        wide = prove(op, Intervals(box.lower.expand_as(slope), box.upper.expand_as(slope)))
        assert wide is not None
        line = wide.intercept(slope, under)
        points = points_of(op, slope, under, box)
        assert violations(f, slope, line, under, points) == []
    image = proven.image()
    flat = torch.zeros_like(box.lower)
    for line, below in ((image.lower, True), (image.upper, False)):
        under = torch.full_like(flat, below, dtype=torch.bool)
        assert violations(f, flat, line, under, points_of(op, flat, under, box)) == []


def ordinary(op: Elementwise, seed: int) -> Intervals:
    """Boxes of everyday sizes, inside the domain."""
    rng = torch.Generator().manual_seed(seed)
    low = torch.randn(400, generator=rng).double() * 3
    high = low + torch.rand(400, generator=rng).double() * 4 + 0.01
    if op.defined(Intervals(low, high)) is not None:
        low, high = low.abs() + 0.02, low.abs() + 0.02 + high - low
    return Intervals(low, high)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("power 300", "power -257")])
def test_lines_are_as_tight_as_the_relaxation_s(name: str) -> None:
    op, _ = CASES[name]
    box = ordinary(op, len(name))
    rng = torch.Generator().manual_seed(3)
    range_ = op.tightest(box)
    for below, side in ((True, range_.lower), (False, range_.upper)):
        proven = prove(op, box)
        assert proven is not None
        for slope in (
            side.lower,
            side.upper,
            side.middle,
            torch.randn(400, generator=rng).double(),
        ):
            under = torch.full_like(slope, below, dtype=torch.bool)
            line = proven.intercept(slope, under)
            plain = op.line(slope, under, op.anchors(box)).intercept
            size = plain.abs() + slope.abs() * box.lower.abs().maximum(box.upper.abs())
            loss = plain - line if below else line - plain
            assert (loss / (size + 1e-3)).max() < 1e-9
    image, plain_image = proven.image(), op.image(box)
    size = plain_image.lower.abs().maximum(plain_image.upper.abs()) + 1e-3
    assert ((plain_image.lower - image.lower) / size).max() < 1e-9
    assert ((image.upper - plain_image.upper) / size).max() < 1e-9
