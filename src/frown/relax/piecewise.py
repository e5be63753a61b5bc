"""Piecewise linear functions: extremes of f(z) - s z lie at ends and kinks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Self

import torch
from torch import Tensor

from frown.graph import Intervals, Shape, Window, sliced
from frown.relax.elementwise import Elementwise, outwards, rounding
from frown.relax.relaxation import (
    Anchors,
    Line,
    Lines,
    LinesWithin,
    Relaxed,
    RowSides,
    SlopeRange,
    Slopes,
)


class PiecewiseLinear(Elementwise):
    """A function of straight pieces: extremes of f(z) - s z lie at ends and kinks, one at 0 unless
    a function says otherwise.

    Bounds inside one piece are as good as any: such a neuron is stable.
    """

    __slots__ = ()

    def kinks(self) -> tuple[float | Tensor, ...]:
        return (0.0,)

    def end_slopes(self, box: Intervals) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """No slopes: chords to the kinks suffice, and need no care at a kink itself."""
        return (), ()

    def stable(self, box: Intervals) -> Tensor:
        calm = torch.ones_like(box.lower, dtype=torch.bool)
        for kink in self.kinks():
            calm &= (box.upper <= kink) | (box.lower >= kink)
        return calm


@dataclass(frozen=True, slots=True)
class Relu(PiecewiseLinear):
    """max(z, 0), about which nothing is proved where z may exceed `most`."""

    most: float = inf

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].clamp(min=0)

    def derivative(self, z: Tensor) -> Tensor:
        return (z > 0).to(z)

    def stable(self, box: Intervals) -> Tensor:
        return (box.upper <= 0) | (box.lower >= 0)

    def image(self, box: Intervals) -> Intervals:
        return Intervals(box.lower.clamp(min=0), box.upper.clamp(min=0))

    def tightest(self, box: Intervals) -> SlopeRange:
        """Below: [0, 1] across the kink, 0 or 1 beside it. Above: the chord."""
        first = (box.lower >= 0).to(box.lower)
        last = (box.upper > 0).to(box.lower).maximum(first)
        chord = self._upper(box, first)
        return SlopeRange(Intervals(first, last), Intervals(chord, chord))

    def least_area(self, box: Intervals, spread: SlopeRange) -> Slopes:
        """Below: z where it is nearer in the mean, u >= -l, else 0. Above: the chord."""
        nearer = box.upper.clamp(min=0) >= -box.lower.clamp(max=0)
        return Slopes(nearer.to(box.lower), spread.upper.upper)

    def lines(self, slopes: Slopes, box: Intervals) -> Lines:
        """Below through the origin, above through the ends."""
        under, slope = slopes.lower.clamp(0, 1), slopes.upper
        left = torch.addcmul(box.lower.clamp(min=0), slope, box.lower, value=-1)
        right = torch.addcmul(box.upper.clamp(min=0), slope, box.upper, value=-1)
        top, reach = left.maximum(right), box.lower.abs().maximum(box.upper.abs())
        above = top + rounding(top, slope, reach)
        # 0; without numbers where the box has none: what is undefined stays so.
        return Lines(Slopes(under, slope), 0 * reach, above)

    def slopes_at(self, lower: Tensor, upper: Tensor, relaxed: Relaxed) -> Slopes:
        """Slopes at these alpha; above there is no choice."""
        under = lower
        if not relaxed.unit:
            under = torch.addcmul(relaxed.range.lower.lower, lower, relaxed.range.widths[0])
        return Slopes(under, relaxed.lines.slopes.upper)

    def tight_lines(self, slope: Tensor, sides: RowSides, relaxed: Relaxed) -> LinesWithin:
        """Lines without any search, as this is the hottest loop of all.

        A line of slope in [0, 1] through the origin is below max(z, 0) everywhere, and the line
        above is CROWN's.
        """
        # The intercept below is 0.
        intercept = sides.above * relaxed.lines.upper
        width = 1.0 if relaxed.unit else relaxed.range.widths[0]
        return LinesWithin(slope, intercept, 0.0, width)

    def uphill(
        self, coef: Tensor, lines: LinesWithin, z: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Only a line below has a choice, and it touches at 0."""
        found = torch.clamp(coef, min=0, out=out)
        if isinstance(lines.width, Tensor):
            found.mul_(lines.width)
        return found.mul_(z)

    @staticmethod
    def _upper(box: Intervals, active: Tensor) -> Tensor:
        high, low = box.upper.clamp(min=0), box.lower.clamp(max=0)
        gap = high - low
        return torch.where(gap > 0, high / gap, active)

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        """The general search over anchors, unrolled."""
        (low, at_low), (high, at_high), (kink, at_kink) = anchors.points
        left = torch.addcmul(at_low, slope, low, value=-1)
        right = torch.addcmul(at_high, slope, high, value=-1)
        turn = torch.addcmul(at_kink, slope, kink, value=-1)
        ends = torch.where(below, torch.minimum(left, right), torch.maximum(left, right))
        at_turn = below & (turn <= ends)
        intercept = torch.where(at_turn, turn, ends)
        touch = torch.where(at_turn, kink, torch.where(ends == left, low, high))
        return Line(outwards(intercept, slope, below, anchors), touch)


@dataclass(frozen=True, slots=True)
class LeakyRelu(PiecewiseLinear):
    """z above 0, slope * z below; any finite slope."""

    slope: float

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.where(xs[0] > 0, xs[0], xs[0] * self.slope)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, 1.0, self.slope).to(z)


@dataclass(frozen=True, slots=True, eq=False)
class PRelu(PiecewiseLinear):
    """Leaky ReLU with a slope per channel or entry, broadcast to the node's shape."""

    slope: Tensor

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.where(xs[0] > 0, xs[0], xs[0] * self.slope.to(xs[0].dtype))

    def derivative(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, torch.ones_like(z), self.slope.to(z.dtype).expand_as(z))

    def crop(self, window: Window, source: Shape) -> tuple[Window, Self] | None:
        return window, replace(self, slope=sliced(self.slope, window))


@dataclass(frozen=True, slots=True)
class Clip(PiecewiseLinear):
    """min(max(z, lo), hi): hard tanh, ReLU6; an infinite end is open, and nothing is proved where z
    may exceed `most` in size on that side."""

    lo: float
    hi: float
    most: float = inf

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].clamp(self.lo, self.hi)

    def derivative(self, z: Tensor) -> Tensor:
        return ((z > self.lo) & (z < self.hi)).to(z)

    def kinks(self) -> tuple[float | Tensor, ...]:
        return (self.lo, self.hi)


@dataclass(frozen=True, slots=True)
class Abs(PiecewiseLinear):
    """|z|."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].abs()

    def derivative(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, 1.0, -1.0).to(z)


@dataclass(frozen=True, slots=True)
class Moderate(PiecewiseLinear):
    """z, about which nothing is proved where |z| may exceed a limit.

    Readers use it for assumptions about numbers that they cannot know.
    """

    limit: float

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].clone()

    def kinks(self) -> tuple[float | Tensor, ...]:
        return ()

    def derivative(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def defined(self, box: Intervals) -> Tensor | None:
        return (box.lower >= -self.limit) & (box.upper <= self.limit)
