"""Functions of one variable, applied entry by entry."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from typing import Self

import torch
from torch import Tensor

from frown.graph import Intervals, Shape, Window
from frown.relax.relaxation import (
    Anchors,
    Family,
    Line,
    LinesWithin,
    Relaxation,
    Relaxed,
    SlopeRange,
    Slopes,
)


class Elementwise(Relaxation):
    """A function f of one variable, applied entry by entry.

    A new activation gives its value, derivative, kinks and critical points, and where it is defined
    if that is not everywhere. Intercepts, the tightest slopes, CROWN's rule and images follow.
    Families need even less: see `PiecewiseLinear`, `SShaped` and `Hump`. Not for functions of
    several entries: those are `Joint`.
    """

    __slots__ = ()

    @abstractmethod
    def apply(self, *xs: Tensor) -> Tensor:
        """f(z)."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """f'(z); at a kink either one-sided value."""

    def defined(self, box: Intervals) -> Tensor | None:
        """Mask of the boxes on all of which f is continuous; None if f is everywhere.

        Elsewhere every intercept is NaN, which spreads to all that depends on f.
        """
        return None

    def kinks(self) -> tuple[float | Tensor, ...]:
        """Points at which f' jumps."""
        return ()

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """Points in the box where f' = slope.

        Validity rests on this: it must contain every point inside the box, kinks apart, where f(z)
        - slope z can be least (below) or greatest (not below). Further points do no harm.
        """
        return ()

    def floor(self, dtype: torch.dtype) -> float:
        """The size of the smallest error that f's values may have, where f itself is tiny."""
        return 0.0

    def end_slopes(self, box: Intervals) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """f' at the lower end seen from its right, at the upper end seen from its left."""
        return (self.derivative(box.lower),), (self.derivative(box.upper),)

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """Points of the box whose tangent passes through (end, f(end))."""
        return ()

    def supports(self, box: Intervals) -> tuple[Tensor, ...]:
        """Candidate slopes of the envelopes at the middle of the box.

        They need to include that slope only where it is not one of a tangent through an end.
        """
        return (self.derivative(box.middle),)

    # -- what follows -------------------------------------------------------------

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def crop(self, window: Window, source: Shape) -> tuple[Window, Self] | None:
        return None if self.tensors() else (window, self)

    def anchors(self, box: Intervals) -> Anchors:
        points = [box.lower, box.upper, *self._kinks_within(box)]
        anchors = Anchors.of(box, tuple((z, self.apply(z)) for z in points))
        defined = self.defined(box)
        if defined is None:
            return anchors
        # The reach is in every intercept, through the room left for rounding.
        return replace(anchors, reach=torch.where(defined, anchors.reach, torch.nan))

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        (touch, value), *others = anchors.points
        intercept = torch.addcmul(value, slope, touch, value=-1)
        for z, f in others:
            gap = torch.addcmul(f, slope, z, value=-1)
            better = (gap < intercept) == below
            intercept = torch.where(better, gap, intercept)
            touch = torch.where(better, z, touch)
        for z in self.critical(slope, below, anchors.box):
            gap = torch.addcmul(self.apply(z), slope, z, value=-1)
            intercept = torch.where((gap < intercept) == below, gap, intercept)
            # A line at the end of the tightest range touches at an end and inside: it is the
            # inner point that tells how the intercept moves when the slope does.
            size = torch.addcmul(gap.abs(), slope.abs(), anchors.reach)
            tie = size * (32 * torch.finfo(slope.dtype).eps)
            touch = torch.where((gap - intercept).abs() <= tie, z, touch)
        floor = self.floor(slope.dtype)
        return Line(outwards(intercept, slope, below, anchors, floor), touch)

    def tightest(self, box: Intervals) -> SlopeRange:
        """Slopes of the convex and concave envelopes of f at the two ends.

        Below: from inf (f(p) - f(l)) / (p - l) to sup (f(u) - f(p)) / (u - p) over p in
        the box; above: the other extremes. They are reached at ends, kinks or tangents.
        """
        chord = self.chord(box)
        inner = tuple(self._kinks_within(box))
        first = self._chords(box.lower, (*inner, *self.tangents(box.lower, box)), chord)
        last = self._chords(box.upper, (*inner, *self.tangents(box.upper, box)), chord)
        at_l, at_u = self.end_slopes(box)
        from_l = torch.stack([chord, *at_l, *first])
        to_u = torch.stack([chord, *at_u, *last])
        return SlopeRange(
            Intervals(from_l.amin(0), to_u.amax(0)), Intervals(to_u.amin(0), from_l.amax(0))
        )

    def crown(self, box: Intervals) -> Slopes:
        return self.least_area(box, self.tightest(box))

    def least_area(self, box: Intervals, spread: SlopeRange) -> Slopes:
        """The envelopes' supporting lines at the middle: the least area on each side."""
        anchors = self.anchors(box)
        middle = box.middle
        supports = self.supports(box)
        chosen = []
        for side, below in ((spread.lower, True), (spread.upper, False)):
            mask = torch.full_like(middle, below, dtype=torch.bool)
            best, height = side.upper, None
            for slope in (side.upper, side.lower, *supports):
                slope = side.clip(slope)
                line = self.line(slope, mask, anchors)
                value = torch.addcmul(line.intercept, slope, middle)
                if height is None:
                    height, best = value, slope
                    continue
                better = value > height if below else value < height
                best = torch.where(better, slope, best)
                height = torch.where(better, value, height)
            chosen.append(best)
        return Slopes(*chosen)

    def parallel(self, box: Intervals) -> Slopes:
        chord = self.chord(box)
        return Slopes(chord, chord)

    def several(self, relaxed: Relaxed, count: int) -> Family:
        """The ends of the tightest range and, between their points of tangency, tangents at
        equal distances."""
        sides = []
        for side, below in ((relaxed.range.lower, True), (relaxed.range.upper, False)):
            mask = torch.full_like(side.lower, below, dtype=torch.bool)
            first = self.line(side.lower, mask, relaxed.anchors).touch
            last = self.line(side.upper, mask, relaxed.anchors).touch
            between = (torch.lerp(first, last, k / (count - 1)) for k in range(1, count - 1))
            tangents = (side.clip(self.derivative(z)) for z in between)
            sides.append((side.lower, side.upper, *tangents))
        return Family(*sides)

    def uphill(
        self, coef: Tensor, lines: LinesWithin, z: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """The derivative of a bound by the alpha of `within`, written to `out` if there is one."""
        return torch.mul(coef, lines.width, out=out).mul_(z - lines.touch)

    def stable(self, box: Intervals) -> Tensor:
        return box.lower == box.upper

    def chord(self, box: Intervals) -> Tensor:
        """(f(u) - f(l)) / (u - l), or f' where the box is too thin to divide."""
        width = box.upper - box.lower
        scale = box.lower.abs().maximum(box.upper.abs())
        thin = width <= 64 * torch.finfo(width.dtype).eps * scale
        rise = self.apply(box.upper) - self.apply(box.lower)
        flat = self.derivative(box.middle)
        return torch.where(thin | (width == 0), flat, rise / width)

    def _chords(self, end: Tensor, points: Iterable[Tensor], chord: Tensor) -> list[Tensor]:
        """Slopes from (end, f(end)) to each point; the chord's where they coincide."""
        return slopes_from(end, self.apply(end), [(p, self.apply(p)) for p in points], chord)

    def _kinks_within(self, box: Intervals) -> Iterable[Tensor]:
        for kink in self.kinks():
            if isinstance(kink, Tensor) or isfinite(kink):
                yield box.clip(on_device(kink, box.lower).expand_as(box.lower))


def slopes_from(
    end: Tensor, value: Tensor, points: Iterable[tuple[Tensor, Tensor]], chord: Tensor
) -> list[Tensor]:
    """Slopes from (end, value) to each point; the chord's where they coincide."""
    slopes = []
    for p, f in points:
        run = p - end
        apart = run.abs() > 64 * torch.finfo(run.dtype).eps * p.abs().maximum(end.abs())
        slopes.append(torch.where(apart, (f - value) / run, chord))
    return slopes


def on_device(number: float | Tensor, like: Tensor) -> Tensor:
    """A constant beside a tensor: made where that is, since copies from the host take time."""
    return number.to(like) if isinstance(number, Tensor) else like.new_full((), number)


def outwards(
    intercept: Tensor, slope: Tensor, below: Tensor, anchors: Anchors, floor: float = 0.0
) -> Tensor:
    """The intercept moved away from f by more than the rounding in f(z) - s z."""
    slack = rounding(intercept, slope, anchors.reach, floor)
    return torch.where(below, intercept - slack, intercept + slack)


def rounding(intercept: Tensor, slope: Tensor, reach: Tensor, floor: float = 0.0) -> Tensor:
    """More than the error of f(z) - s z where |z| <= reach.

    Each term is at most |t| + |s| max|z|, and a handful of ulps covers their errors.
    """
    slack = torch.addcmul(intercept.abs() + floor, slope.abs(), reach)
    return slack.mul_(6 * torch.finfo(slope.dtype).eps)
