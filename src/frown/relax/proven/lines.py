"""Intercepts and images with proof: the extremes of f(z) - s z over a box, bounded from outside.

Piecewise linear functions, those of steps, maxima and products have theirs at corners, so
`Relaxation.line` leaves only rounding to cover. For smooth functions, piece by piece: where f bends
up, f(z) - s z lies above its tangent at any point; where it bends down, it is least at an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

import torch
from torch import Tensor

from frown.graph import Intervals, rows_of
from frown.relax import (
    Anchors,
    Clip,
    Elementwise,
    LogSumExp,
    Max,
    PiecewiseLinear,
    Product,
    Relaxation,
    Relu,
    Steps,
    Wave,
)
from frown.relax.proven.curves import curve_of
from frown.relax.proven.log_sum_exp import ProvenLogSumExp
from frown.relax.proven.rounding import TINY, UNIT, below
from frown.relax.proven.taylor import Curve, Enclosure, Stretch, signed_gap
from frown.relax.proven.waves import ProvenWave


class Proven(Protocol):
    """A nonlinear node over a box, per sample or per row."""

    def intercept(self, slope: Tensor, below: Tensor) -> Tensor:
        """Valid intercepts of lines of these slopes, on the sides that the mask wants."""

    def image(self) -> Intervals:
        """A box around all values."""

    def rows(self, index: Tensor | slice) -> Proven:
        """The proven lines of these samples."""


def prove(op: Relaxation, box: Intervals) -> Proven | None:
    """The proven form of an operator over a box, or None where there is none."""
    if isinstance(op, Relu | Clip) and _beyond(op, box):
        return None
    if isinstance(op, PiecewiseLinear | Steps | Max | Product):
        return _Cornered(op, op.anchors(box))
    if isinstance(op, LogSumExp):
        return ProvenLogSumExp(op, box)
    if isinstance(op, Wave):
        return ProvenWave.over(op, box)
    if not isinstance(op, Elementwise):
        return None
    curve = curve_of(op)
    return None if curve is None else _Smooth.over(op, curve, box)


def _beyond(op: Relu | Clip, box: Intervals) -> bool:
    """True if a side without a limit may be exceeded further than anything is known of it."""
    low, high = (0.0, inf) if isinstance(op, Relu) else (op.lo, op.hi)
    above = high == inf and bool((box.upper > op.most).any())
    return above or (low == -inf and bool((box.lower < -op.most).any()))


@dataclass(frozen=True, slots=True)
class _Cornered:
    """The relaxation's own lines, moved outwards once more.

    Its extremes are at corners, so the errors are those of a handful of operations per variable.
    """

    op: Relaxation
    anchors: Anchors

    def intercept(self, slope: Tensor, below: Tensor) -> Tensor:
        line = self.op.line(slope, below, self.anchors).intercept
        slack = self._size(slope) * (64 * UNIT) + TINY
        return torch.where(below, line - slack, line + slack)

    def image(self) -> Intervals:
        box = self.op.image(self.anchors.box)
        slack = self._size(torch.zeros_like(self.anchors.reach)) * (64 * UNIT) + TINY
        return Intervals(box.lower - slack, box.upper + slack)

    def rows(self, index: Tensor | slice) -> _Cornered:
        return _Cornered(self.op, self.anchors.rows(index))

    def _size(self, slope: Tensor) -> Tensor:
        """The size of the terms of f(z) - s . z."""
        reach = self.anchors.reach
        if isinstance(self.op, Product):
            return reach.prod(-1) + (slope.abs() * reach).sum(-1)
        if isinstance(self.op, Max):
            return (reach.amax(-1) + (slope.abs() * reach).sum(-1)) * reach.shape[-1]
        assert isinstance(self.op, PiecewiseLinear | Steps)
        value = self.op.apply(self.anchors.box.lower).abs()
        return value.maximum(self.op.apply(self.anchors.box.upper).abs()) + slope.abs() * reach


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of the curve inside the box: its ends there and the values at them."""

    piece: Stretch
    first: Tensor
    last: Tensor
    empty: Tensor
    at_first: Enclosure
    at_last: Enclosure

    def rows(self, index: Tensor | slice) -> _Part:
        return _Part(
            self.piece,
            rows_of(self.first, index),
            rows_of(self.last, index),
            rows_of(self.empty, index),
            self.at_first.rows(index),
            self.at_last.rows(index),
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """Slopes of lines, those of +-f, and where lines are to lie below f."""

    slope: Tensor
    signed: Tensor
    under: Tensor


@dataclass(frozen=True, slots=True)
class _Span:
    """Two parts of a curve: one for lines below f, the other for lines above it."""

    lower: _Part
    upper: _Part
    first: Tensor
    last: Tensor
    empty: Tensor

    @classmethod
    def of(cls, under: Tensor, lower: _Part, upper: _Part) -> _Span:
        first = torch.where(under, lower.first, upper.first)
        last = torch.where(under, lower.last, upper.last)
        return cls(lower, upper, first, last, torch.where(under, lower.empty, upper.empty))

    def least_end(self, line: _Line) -> Tensor:
        """The lesser of +-(f(z) - s z) at the two ends, bounded below."""
        lower, upper = self.lower, self.upper
        at_first = torch.where(line.under, lower.at_first.lower, -upper.at_first.upper)
        at_last = torch.where(line.under, lower.at_last.lower, -upper.at_last.upper)
        return torch.minimum(
            signed_gap(at_first, line.signed, self.first),
            signed_gap(at_last, line.signed, self.last),
        )

    def kept(self, bound: Tensor) -> Tensor:
        """A bound over it; infinite where it is empty."""
        return torch.where(self.empty, torch.inf, bound)


@dataclass(frozen=True, slots=True)
class _Smooth:
    op: Elementwise
    curve: Curve
    box: Intervals
    parts: tuple[_Part, ...]
    defined: Tensor | None  # where f is continuous on the box; elsewhere nothing is known

    @classmethod
    def over(cls, op: Elementwise, curve: Curve, box: Intervals) -> _Smooth:
        parts = []
        for piece in curve.pieces:
            first = box.lower.clamp(min=piece.start)
            last = box.upper.clamp(max=piece.end)
            empty = first > last
            if bool(empty.all()):
                continue
            last = last.maximum(first)
            parts.append(_Part(piece, first, last, empty, curve.value(first), curve.value(last)))
        return cls(op, curve, box, tuple(parts), op.defined(box))

    def rows(self, index: Tensor | slice) -> _Smooth:
        parts = tuple(part.rows(index) for part in self.parts)
        defined = None if self.defined is None else rows_of(self.defined, index)
        return _Smooth(self.op, self.curve, self.box.rows(index), parts, defined)

    def image(self) -> Intervals:
        zero = torch.zeros_like(self.box.lower)
        under = torch.ones_like(zero, dtype=torch.bool)
        return Intervals(self.intercept(zero, under), self.intercept(zero, ~under))

    def intercept(self, slope: Tensor, below: Tensor) -> Tensor:
        """Valid intercepts; lines above f are found as those below -f, with slopes -s."""
        guesses = self.op.critical(slope, below, self.box)
        guesses = tuple(z.nan_to_num(nan=0.0).clamp(min=self.curve.start) for z in guesses)
        line = _Line(slope, torch.where(below, slope, -slope), below)
        best = torch.full_like(slope, torch.inf)
        pairs, others = self._pairs()
        for up, down in pairs:
            # One of the two bends up, as +-f, where the other bends down.
            rising, falling = _Span.of(below, up, down), _Span.of(below, down, up)
            best = torch.minimum(best, rising.kept(self._tangent(rising, line, guesses)))
            best = torch.minimum(best, falling.kept(falling.least_end(line)))
        for part in others:
            best = torch.minimum(best, self._least(part, line, guesses))
        known = torch.isfinite(slope)
        best = torch.where(known if self.defined is None else known & self.defined, best, torch.nan)
        return torch.where(below, best, -best)

    def _pairs(self) -> tuple[list[tuple[_Part, _Part]], list[_Part]]:
        """Parts that bend up, each with one that bends down; and all others."""
        up, down = ([p for p in self.parts if p.piece.bend == way] for way in ("up", "down"))
        pairs = list(zip(up, down, strict=False))
        paired = {id(part) for pair in pairs for part in pair}
        return pairs, [part for part in self.parts if id(part) not in paired]

    def _least(self, part: _Part, line: _Line, guesses: tuple[Tensor, ...]) -> Tensor:
        """A lower bound of +-(f(z) - s z) over a part; infinite where it is empty."""
        span, bend = _Span(part, part, part.first, part.last, part.empty), part.piece.bend
        best = span.least_end(line)
        if bend == "gap":
            best = self._short(part, line, best)
        elif bend != "straight":
            rises = line.under if bend == "up" else ~line.under
            if bool(rises.any()):
                best = torch.where(rises, self._tangent(span, line, guesses), best)
        return span.kept(best)

    def _tangent(self, part: _Span, line: _Line, guesses: tuple[Tensor, ...]) -> Tensor:
        """A lower bound over a part where +-f bends up: its best tangent's at the two ends."""
        best = torch.full_like(line.slope, -torch.inf)
        for guess in guesses:
            z = guess.maximum(part.first).minimum(part.last)
            value, rate = self.curve.both(z)
            f = torch.where(line.under, value.lower, -value.upper)
            steep = torch.where(line.under, rate.lower, -rate.upper) - line.signed
            other = torch.where(line.under, rate.upper, -rate.lower) - line.signed
            size = rate.lower.abs().maximum(rate.upper.abs())
            slack = (size + line.slope.abs()) * (4 * UNIT)
            # The derivative of +-(f - s z) lies in [steep - slack, other + slack].
            right = _fall((slack - steep).clamp(min=0), part.last - z)
            left = _fall((other + slack).clamp(min=0), z - part.first)
            fall = torch.maximum(left, right) * (1 + 8 * UNIT)
            best = torch.maximum(best, below(signed_gap(f, line.signed, z), fall))
        return best

    def _short(self, part: _Part, line: _Line, ends: Tensor) -> Tensor:
        """A bound over a gap, a stretch so short that f' hardly changes.

        Twice its size at one end, and 1, cover it, as |f''| does not exceed 1.
        """
        rate = self.curve.slope(part.first)
        steep = rate.lower.abs().maximum(rate.upper.abs()) + 1 + line.slope.abs()
        return below(ends, steep * (part.last - part.first))


def _fall(rate: Tensor, run: Tensor) -> Tensor:
    """rate run; an infinite rate, too, costs nothing at the point itself."""
    return torch.where(run == 0, 0.0, rate * run)
