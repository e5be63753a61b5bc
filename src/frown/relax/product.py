"""The product of two tensors: x y over the last axis, on which both stand.

The same conjugate idea in two variables: x y - p x - q y has its extremes over a box at
corners, so for every pair of slopes the best of four corners is the tightest intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from frown.graph import Intervals, Shape, Window
from frown.relax.relaxation import (
    Anchors,
    Family,
    Joint,
    Line,
    LinesWithin,
    Relaxed,
    SlopeRange,
    Slopes,
)


@dataclass(frozen=True, slots=True)
class Product(Joint):
    """x_0 x_1 over the last axis, which has two entries and disappears.

    The tightest planes (McCormick's) form one segment per side, with a place m in [0, 1]:
    slopes (y_l + m w_y, x_l + m w_x) below and (y_u - m w_y, x_l + m w_x) above. All of them
    have the same distance from f in the middle of the box.
    """

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0][..., 0] * xs[0][..., 1]

    def crop(self, window: Window, source: Shape) -> tuple[Window, Self] | None:
        return (*window, (0, source[-1])), self

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        x_low, y_low = anchors.box.lower.unbind(-1)
        x_high, y_high = anchors.box.upper.unbind(-1)
        p, q = slope.unbind(-1)
        best = x0 = y0 = None
        for x in (x_low, x_high):
            for y in (y_low, y_high):
                value = torch.addcmul(x * y - p * x, q, y, value=-1)
                if best is None or x0 is None or y0 is None:
                    best, x0, y0 = value, x, y
                    continue
                better = (value < best) == below
                best = torch.where(better, value, best)
                x0, y0 = torch.where(better, x, x0), torch.where(better, y, y0)
        assert best is not None and x0 is not None and y0 is not None
        reach_x, reach_y = anchors.reach.unbind(-1)
        size = reach_x * reach_y + p.abs() * reach_x + q.abs() * reach_y
        info = torch.finfo(slope.dtype)
        slack = 8 * info.eps * size + info.tiny  # tiny: products may underflow
        return Line(torch.where(below, best - slack, best + slack), torch.stack([x0, y0], -1))

    def tightest(self, box: Intervals) -> SlopeRange:
        """Each factor's slope lies in the other one's interval."""
        other = Intervals(box.lower.flip(-1), box.upper.flip(-1))
        return SlopeRange(other, other)

    def within(self, alpha: Tensor, below: Tensor, relaxed: Relaxed) -> LinesWithin:
        """The two alpha of a product stand for one, m: slopes on McCormick's segment.

        All planes of a segment go through the same two corners, (x_l, y_u) and (x_u, y_l)
        below, (x_l, y_l) and (x_u, y_u) above: no search for the intercept.
        """
        first, second = alpha.unbind(-1)
        m = ((torch.where(below, first, 1 - first) + second) / 2).clamp(0, 1)
        tied = torch.stack([torch.where(below, m, 1 - m), m], -1)
        box, other = relaxed.box, relaxed.range.lower
        width = other.upper - other.lower
        slope = torch.addcmul(other.lower, tied, width)
        x, y = box.lower.unbind(-1)
        y_high = box.upper[..., 1]
        touch = torch.where(self.expand(below), torch.stack([x, y_high], -1), box.lower)
        # A slope's error, at most 3 eps of the other factor's reach, lifts the corners beside
        # by as much times the width of its own; the intercept adds 8 eps of its three terms.
        info = torch.finfo(slope.dtype)
        reach_x, reach_y = (relaxed.anchors.reach + info.tiny).unbind(-1)
        slack = 32 * info.eps * reach_x * reach_y + info.tiny
        value = torch.where(below, x * y_high - slack, x * y + slack)
        return LinesWithin(slope, value - (slope * touch).sum(-1), touch, width)

    def uphill(self, coef: Tensor, lines: LinesWithin, z: Tensor) -> Tensor:
        """Both alpha move the segment's one, each by half."""
        along = lines.width * (z - lines.touch)
        half, size = coef / 2, coef.abs() / 2  # above (coef < 0) the first alpha runs back
        x, y = along[..., :1], along[..., 1:]
        return torch.cat([half * x + size * y, size * x + half * y], -1)

    def crown(self, box: Intervals) -> Slopes:
        """The start of each segment. All have the same volume, but where factors are gates
        (positive, as in recurrent networks) this end leans on the bound that matters."""
        low, high = box.lower.flip(-1), box.upper.flip(-1)
        first = (torch.arange(2, device=low.device) == 0).expand_as(low)
        return Slopes(low, torch.where(first, high, low))

    def parallel(self, box: Intervals) -> Slopes:
        """The middle of both segments is one slope."""
        middle = box.middle.flip(-1)
        return Slopes(middle, middle)

    def several(self, relaxed: Relaxed, count: int) -> Family:
        """The ends of the two segments: McCormick's four planes."""
        low, high = relaxed.range.lower.lower, relaxed.range.lower.upper
        first = (torch.arange(2, device=low.device) == 0).expand_as(low)
        falling = (torch.where(first, high, low), torch.where(first, low, high))
        return Family((low, high), falling)

    def stable(self, box: Intervals) -> Tensor:
        """Mask of products with one factor fixed, which are lines of the other."""
        fixed = (box.lower == box.upper).any(-1, keepdim=True)
        return fixed.expand_as(box.lower)
