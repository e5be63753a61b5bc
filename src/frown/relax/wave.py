"""Sine and cosine.

f' = s has one solution in every half of a period, at p - arcsin s (a greatest value of
f(z) - s z) and p + pi + arcsin s (a least one) from a crest p. From one period to the next
f(z) - s z changes by -2 pi s, so its extremes over a box lie in the box's first or last period.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import ClassVar

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Anchors, Line, bisect


class Wave(Elementwise):
    """cos(z - crest)."""

    __slots__ = ()
    crest: ClassVar[float]  # a place where f is 1

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        # In double precision, that places are as good as the box's own rounding.
        lean = slope.double().clamp(-1, 1).arcsin()
        first = self.crest + torch.where(below, pi + lean, -lean)
        low, high = box.lower.double(), box.upper.double()
        left = first + 2 * pi * ((low - first) / (2 * pi)).ceil()
        right = first + 2 * pi * ((high - first) / (2 * pi)).floor()
        return (box.clip(left.to(slope.dtype)), box.clip(right.to(slope.dtype)))

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        """A critical point missed by d costs d^2 / 2 at the most, and never more than 2, since
        |f''| <= 1 and |f| <= 1; far from 0 even the nearest number misses it. An end of the box
        never misses it by more than half of the box."""
        line = super().line(slope, below, anchors)
        miss = 2 * torch.finfo(slope.dtype).eps * (anchors.reach + 2 * pi)
        width = anchors.box.upper - anchors.box.lower
        slack = miss.minimum(width).square().clamp(max=2)
        return Line(line.intercept + torch.where(below, -slack, slack), line.touch)

    def image(self, box: Intervals) -> Intervals:
        found = super().image(box)
        return Intervals(found.lower.clamp(min=-1), found.upper.clamp(max=1))

    def supports(self, box: Intervals) -> tuple[Tensor, ...]:
        """Between two troughs (crests) the envelope is level."""
        return (self.derivative(box.middle), torch.zeros_like(box.lower))

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """The steepest chords from an end lead to points less than a period away. f bends one
        way between two zeros, and touches a line through the end once at the most there."""
        way = torch.where(end == box.lower, 1.0, -1.0).to(end)
        # Quarter periods after a crest, counted along the way: zeros are at odd ones.
        phase = (way * (end - self.crest) * (2 / pi)) % 4
        start = (phase - 1).div(2).ceil() * 2 + 1 - phase
        return tuple(
            box.clip(self._touch(end, end + way * (pi / 2) * (start + k), way * pi)) for k in (0, 2)
        )

    def _touch(self, end: Tensor, first: Tensor, run: Tensor) -> Tensor:
        """Bisection for f'(p)(p - end) = f(p) - f(end) between first and first + run; its left
        side less its right is monotone there, as f'' (p - end) has one sign."""
        value = self.apply(end)

        def gap(p: Tensor) -> Tensor:
            return self.derivative(p) * (p - end) - (self.apply(p) - value)

        rising = gap(first + run) > gap(first)
        return bisect(first, first + run, lambda p: (gap(p) > 0) == rising, 40)[1]


@dataclass(frozen=True, slots=True)
class Cos(Wave):
    """cos z."""

    crest: ClassVar[float] = 0.0

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].cos()

    def derivative(self, z: Tensor) -> Tensor:
        return -z.sin()


@dataclass(frozen=True, slots=True)
class Sin(Wave):
    """sin z."""

    crest: ClassVar[float] = pi / 2

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].sin()

    def derivative(self, z: Tensor) -> Tensor:
        return z.cos()
