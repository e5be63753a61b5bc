"""A nonlinearity with a curvature: what is left of c f(z) - g z + lambda/2 (z - z^)^2 over a box.

For any slope g and any curvature lambda >= 0 its least value h gives the bent bound
c f(z) >= g z + h - lambda/2 (z - z^)^2. The box is cut into pieces on which f is straight;
over each the least value is that of a parabola.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from frown.graph.intervals import Intervals, rows_of
from frown.relax.elementwise import Elementwise, on_device
from frown.relax.piecewise import Abs, Clip, LeakyRelu, Relu
from frown.relax.relaxation import Lines, Relaxation, Slopes


@dataclass(frozen=True, slots=True)
class LinedPart:
    """A part of a box, and lines below and above f over it."""

    first: Tensor
    last: Tensor
    lines: Lines

    def rows(self, index: Tensor | slice) -> LinedPart:
        return LinedPart(
            rows_of(self.first, index), rows_of(self.last, index), self.lines.rows(index)
        )


@dataclass(frozen=True, slots=True)
class Least:
    """The least value, a point where it is attained, and the height of f's line there."""

    value: Tensor
    touch: Tensor
    height: Tensor


def bends(op: Relaxation) -> bool:
    """True if rows may bend at it: a function of straight pieces."""
    return isinstance(op, Relu | LeakyRelu | Clip | Abs)


def boxes_of(op: Elementwise, box: Intervals) -> list[Intervals]:
    """The pieces of a box between kinks; those that it does not reach are points. An open end of a
    `Clip` is no kink."""
    found, low = [], box.lower
    for kink in (k for k in op.kinks() if isinstance(k, Tensor) or abs(k) < inf):
        point = on_device(kink, low)
        first = low.minimum(point)
        found.append(Intervals(first, box.upper.minimum(point).maximum(first)))
        low = low.maximum(point)
    return [*found, Intervals(low, box.upper.maximum(low))]


def steps_of(op: Elementwise) -> tuple[float, ...]:
    """The slope of every piece, exactly."""
    if isinstance(op, LeakyRelu):
        return (op.slope, 1.0)
    if isinstance(op, Clip):
        return *(0.0,) * (op.lo > -inf), 1.0, *(0.0,) * (op.hi < inf)
    return (-1.0, 1.0) if isinstance(op, Abs) else (0.0, 1.0)


def steepness(op: Elementwise, box: Intervals) -> Intervals:
    """The least and the greatest slope of the pieces that a box reaches."""
    low, high = (torch.full_like(box.lower, e) for e in (torch.inf, -torch.inf))
    alone = op.derivative(box.middle)
    for part, slope in zip(boxes_of(op, box), steps_of(op), strict=True):
        inside = (part.lower < part.upper) | ((part.lower == box.lower) & (box.upper == box.lower))
        low = torch.where(inside, low.clamp(max=slope), low)
        high = torch.where(inside, high.clamp(min=slope), high)
    return Intervals(torch.where(low > high, alone, low), torch.where(low > high, alone, high))


def pieces(op: Elementwise, box: Intervals) -> tuple[LinedPart, ...]:
    """The pieces of a box with their lines, as floats have them."""
    if isinstance(op, Relu):
        zero = box.lower.new_zeros([1] * box.lower.dim())
        flat, steep = Slopes(zero, zero), Slopes(zero + 1, zero + 1)
        return (
            LinedPart(box.lower.clamp(max=0), box.upper.clamp(max=0), Lines(flat, zero, zero)),
            LinedPart(box.lower.clamp(min=0), box.upper.clamp(min=0), Lines(steep, zero, zero)),
        )
    return tuple(
        LinedPart(b.lower, b.upper, op.lines(op.parallel(b), b)) for b in boxes_of(op, box)
    )


def least(
    parts: tuple[LinedPart, ...], coef: Tensor, back: Tensor, curvature: Tensor, centre: Tensor
) -> Least:
    """The least value of c f(z) - g z + lambda/2 (z - z^)^2, with `back` the g; lambda > 0."""
    best: Least | None = None
    for part in parts:
        slopes, lines = part.lines.slopes, part.lines
        if slopes.lower is slopes.upper:
            slope, level = slopes.lower, lines.lower
        else:
            under = coef >= 0
            slope = torch.where(under, slopes.lower, slopes.upper)
            level = torch.where(under, lines.lower, lines.upper)
        tilt = torch.addcmul(-back, coef, slope)
        z = torch.addcdiv(centre, tilt, curvature, value=-1)
        z = z.maximum(part.first).minimum(part.last)
        away = z - centre
        value = torch.addcmul(coef * level, tilt, z)
        value = torch.addcmul(value, curvature * away, away, value=0.5)
        height = torch.addcmul(level, slope, z)
        if best is None:
            best = Least(value, z, height)
            continue
        less = value < best.value
        best = Least(
            value.minimum(best.value),
            torch.where(less, z, best.touch),
            torch.where(less, height, best.height),
        )
    assert best is not None
    return best


def secants(op: Elementwise, box: Intervals, centre: Tensor) -> Intervals:
    """The least and the greatest slope of lines from (z^, f(z^)) to points over a box around z^."""
    if isinstance(op, Relu):
        left, right = centre - box.lower, box.upper - centre
        unstable, up = (box.lower < 0) & (box.upper > 0), (centre > 0).to(centre)
        low = torch.where(unstable, up * centre.clamp(min=0) / left, (box.lower >= 0).to(centre))
        high = torch.where(unstable, up + (1 - up) * box.upper / right, low)
        return Intervals(low.nan_to_num(nan=0.0).clamp(0, 1), high.nan_to_num(nan=1.0).clamp(0, 1))
    return steepness(op, box)
