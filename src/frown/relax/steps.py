"""Functions of steps: constant between jumps.

Over a box that a jump lies in, a line must keep the values on both of its sides: the limits are
among the places where f(z) - s z can be extreme, and between two jumps it is a straight line. All
jumps of one function are alike, at equal distances along a straight line, so that of many the
first and the last are enough.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax.elementwise import Elementwise, slopes_from
from frown.relax.relaxation import Anchors, SlopeRange, Slopes

STEEP = 2.0**40  # the largest slope that is looked at: boxes may be as narrow as floats go


class Steps(Elementwise):
    """A function that is constant between jumps."""

    __slots__ = ()

    @abstractmethod
    def jumps(self, box: Intervals) -> tuple[Tensor, ...]:
        """The first and the last place inside a box at which f jumps, and ends at which it does;
        where there are none, places beyond it."""

    @abstractmethod
    def beside(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """The values to the left and to the right of a jump."""

    def derivative(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def anchors(self, box: Intervals) -> Anchors:
        points = [(z, self.apply(z)) for z in (box.lower, box.upper)]
        for place in self.jumps(box):
            inside = (place >= box.lower) & (place <= box.upper)
            z = torch.where(inside, place, box.lower)
            here, (left, right) = self.apply(z), self.beside(z)
            points += [
                (z, here),
                (z, torch.where(inside & (z > box.lower), left, here)),
                (z, torch.where(inside & (z < box.upper), right, here)),
            ]
        return Anchors.of(box, tuple(points))

    def tightest(self, box: Intervals) -> SlopeRange:
        """Slopes from the ends to the jumps."""
        (low, at_low), (high, at_high), *others = self.anchors(box).points
        chord = self.chord(box).clamp(-STEEP, STEEP)
        first = torch.stack([chord, *slopes_from(low, at_low, others, chord)]).clamp(-STEEP, STEEP)
        last = torch.stack([chord, *slopes_from(high, at_high, others, chord)]).clamp(-STEEP, STEEP)
        return SlopeRange(
            Intervals(first.amin(0), last.amax(0)), Intervals(last.amin(0), first.amax(0))
        )

    def parallel(self, box: Intervals) -> Slopes:
        chord = self.chord(box).clamp(-STEEP, STEEP)
        return Slopes(chord, chord)

    def stable(self, box: Intervals) -> Tensor:
        return self.apply(box.lower) == self.apply(box.upper)


class WholeSteps(Steps):
    """Steps of height 1 at distances of 1.

    Places and values are exact as far as the precision has halves. Beyond, they are wrong by no
    more than a step, which is less than what intercepts are moved outwards for rounding.
    """

    __slots__ = ()
    start: ClassVar[tuple[float, float, float]]  # a jump, and the values to its left and right

    def jumps(self, box: Intervals) -> tuple[Tensor, ...]:
        start = self.start[0]
        low, high = box.lower - start, box.upper - start
        places = (low.ceil(), low.floor() + 1, high.ceil() - 1, high.floor())
        return tuple(place + start for place in places)

    def beside(self, place: Tensor) -> tuple[Tensor, Tensor]:
        at, left, right = self.start
        return place + (left - at), place + (right - at)


@dataclass(frozen=True, slots=True)
class Floor(WholeSteps):
    """The largest whole number that is not above z."""

    start: ClassVar[tuple[float, float, float]] = 0.0, -1.0, 0.0

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].floor()


@dataclass(frozen=True, slots=True)
class Ceil(WholeSteps):
    """The least whole number that is not below z."""

    start: ClassVar[tuple[float, float, float]] = 0.0, 0.0, 1.0

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].ceil()


@dataclass(frozen=True, slots=True)
class Round(WholeSteps):
    """The nearest whole number, the even one of two."""

    start: ClassVar[tuple[float, float, float]] = 0.5, 0.0, 1.0

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].round()


class _Signs(torch.autograd.Function):
    """Signs whose gradient is that of z / (1 + |z|), which tells descents where to go."""

    @staticmethod
    def forward(context: Any, z: Tensor) -> Tensor:
        context.save_for_backward(z)
        return z.sign()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (z,) = context.saved_tensors
        slope: Tensor = 1 / (1 + z.abs()).square()
        return gradients[0] * slope


@dataclass(frozen=True, slots=True)
class Sign(Steps):
    """-1 below 0, 1 above, and 0 at 0."""

    def apply(self, *xs: Tensor) -> Tensor:
        if not xs[0].requires_grad:
            return xs[0].sign()
        signs: Tensor = _Signs.apply(xs[0])  # type: ignore[no-untyped-call]
        return signs

    def jumps(self, box: Intervals) -> tuple[Tensor, ...]:
        return (torch.zeros_like(box.lower),)

    def beside(self, place: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(place, -1.0), torch.ones_like(place)
