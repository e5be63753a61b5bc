"""The maximum over the last axis: max pooling after `Builder.windows`.

The same conjugate idea in K variables: for slopes s the tightest intercepts are the
extremes of max_j x_j - s . x over the box.
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
    bisect,
)


@dataclass(frozen=True, slots=True)
class Max(Joint):
    """y = max_j x_j over the last axis, which disappears."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].amax(-1)

    def crop(self, window: Window, source: Shape) -> tuple[Window, Self] | None:
        return (*window, (0, source[-1])), self

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        under = self._below(slope, anchors.box)
        over = self._above(slope, anchors.box)
        eps = 8 * slope.shape[-1] * torch.finfo(slope.dtype).eps
        size = anchors.reach
        slack = (size.amax(-1) + (slope.abs() * size).sum(-1)) * eps
        intercept = torch.where(below, under.intercept - slack, over.intercept + slack)
        touch = torch.where(below[..., None], under.touch, over.touch)
        return Line(intercept, touch)

    def _below(self, slope: Tensor, box: Intervals) -> Line:
        """Entries of slope <= 0 are low at the minimum; the others are min(u_j, t) for some
        level t, and what is left, piecewise linear in t, is least at L = max l or at a u_j."""
        level = box.lower.amax(-1, keepdim=True)
        gain, drop = slope.clamp(min=0), slope.clamp(max=0)
        # For weights of sum <= 1, all that a search uses, the level L is the best; the slack
        # of `line` covers their rounding.
        best, t = level - (gain * box.upper.minimum(level)).sum(-1, keepdim=True), level
        rounding = 4 * slope.shape[-1] * torch.finfo(slope.dtype).eps
        heavy = gain.sum(-1, keepdim=True) > 1 + rounding
        if bool(heavy.any()):
            for top in box.upper.maximum(level).unbind(-1):
                here = top[..., None]
                value = here - (gain * box.upper.minimum(here)).sum(-1, keepdim=True)
                better = heavy & (value < best)
                t = torch.where(better, here, t)
                best = torch.where(better, value, best)
        touch = torch.where(slope < 0, box.lower, box.upper.minimum(t))
        return Line(best.squeeze(-1) - (drop * box.lower).sum(-1), touch)

    def _above(self, slope: Tensor, box: Intervals) -> Line:
        """The maximum is at a corner: one entry j is the largest, with gain (1 - s_j) x_j,
        every other contributes -s_k x_k."""
        others_high = slope < 0
        others = torch.where(others_high, box.upper, box.lower)
        own_high = slope <= 1
        own = torch.where(own_high, box.upper, box.lower)
        gain = (1 - slope) * own + slope * others
        best = gain.amax(-1, keepdim=True)
        intercept = best.squeeze(-1) - (slope * others).sum(-1)
        # CROWN's plane touches at many corners at once; their mean does not depend on rounding.
        tie = 64 * torch.finfo(slope.dtype).eps * (best.abs() + gain.abs().amax(-1, keepdim=True))
        winner = (gain >= best - tie).to(slope)
        winner = winner / winner.sum(-1, keepdim=True)
        return Line(intercept, torch.lerp(others, own, winner))

    # -- the search ---------------------------------------------------------------

    def tightest(self, box: Intervals) -> SlopeRange:
        """Below: weights in [0, 1], whose sum is at most 1 in a search. Above: the
        planes that no other one beats all over the box are those of a level g,

            g + sum_j s_j (x_j - l_j),   s_j = (u_j - g) / (u_j - l_j) in [0, 1],

        from g the second highest u down to g = L = max l."""
        zero, one = torch.zeros_like(box.lower), torch.ones_like(box.lower)
        bottom = box.lower.amax(-1, keepdim=True)
        flat, steep = _slopes_at(_second(box.upper).maximum(bottom), box), _slopes_at(bottom, box)
        return SlopeRange(Intervals(zero, one), Intervals(flat, steep))

    def within(self, alpha: Tensor, below: Tensor, relaxed: Relaxed) -> LinesWithin:
        """Below, alpha are weights; above, all alpha of a window stand for its level."""
        box, flat = relaxed.box, relaxed.range.upper.lower
        width = box.upper - box.lower
        bottom = box.lower.amax(-1, keepdim=True)
        top = torch.addcmul(box.upper, flat, width, value=-1).amax(-1, keepdim=True)
        drop = top - bottom
        over = _slopes_at(torch.addcmul(top, alpha.mean(-1, keepdim=True), drop, value=-1), box)
        laid = below[..., None]
        slope = torch.where(laid, alpha, over)
        line = self.line(slope, below, relaxed.anchors)
        # How slopes move with the level, and the mean of the corners that hold it.
        moving = ((over > 0) & (over < 1)).to(over)
        share = moving / moving.sum(-1, keepdim=True).clamp(min=1)
        rate = moving * (drop / _positive(width))
        touch = torch.where(laid, line.touch, torch.lerp(box.lower, box.upper, share))
        return LinesWithin(slope, line.intercept, touch, torch.where(laid, 1.0, rate))

    def uphill(self, coef: Tensor, lines: LinesWithin, z: Tensor) -> Tensor:
        """Below, each weight by itself; above, every alpha moves the level by its share."""
        along = lines.width * (z - lines.touch)
        return coef * torch.where(coef >= 0, along, along.mean(-1, keepdim=True))

    def project(self, alpha: Tensor, below: Tensor) -> Tensor:
        """Below, the nearest weights of sum <= 1; above, one level per window, its largest alpha.

        Of the rule's slopes above the two steepest tell the level, since others may be 0.
        """
        return torch.where(below[..., None], _weights(alpha), alpha.amax(-1, keepdim=True))

    # -- rules ----------------------------------------------------------------------

    def crown(self, box: Intervals) -> Slopes:
        """Below: the entry with the highest middle. Above: the level at which slopes sum
        to 1; its plane goes through the corners where single entries are high."""
        lower = _one_hot(box.middle)
        low, high = box.lower.amax(-1, keepdim=True), box.upper.amax(-1, keepdim=True)
        _, high = bisect(low, high, lambda g: ~(_slopes_at(g, box).sum(-1, keepdim=True) > 1), 30)
        winner = _one_hot(box.lower)
        return Slopes(lower, torch.where(self.stable(box), winner, _slopes_at(high, box)))

    def parallel(self, box: Intervals) -> Slopes:
        """One plane's slopes on both sides, as Fast-Lin's parallel lines."""
        upper = self.crown(box).upper
        return Slopes(upper, upper)

    def several(self, relaxed: Relaxed, count: int) -> Family:
        """Below: every entry. Above: the fixed rule's plane."""
        rule = relaxed.lines.slopes
        entries = torch.eye(rule.lower.shape[-1], dtype=rule.lower.dtype, device=rule.lower.device)
        return Family(tuple(e.expand_as(rule.lower) for e in entries), (rule.upper,))

    def image(self, box: Intervals) -> Intervals:
        return Intervals(box.lower.amax(-1), box.upper.amax(-1))

    def stable(self, box: Intervals) -> Tensor:
        """Mask of windows in which one entry is the largest wherever the input moves."""
        winner = _one_hot(box.lower) > 0
        rival = torch.where(winner, -torch.inf, box.upper).amax(-1, keepdim=True)
        return (box.lower.amax(-1, keepdim=True) >= rival).expand_as(box.lower)


def _one_hot(score: Tensor) -> Tensor:
    return torch.zeros_like(score).scatter(-1, score.argmax(-1, keepdim=True), 1.0)


def _second(score: Tensor) -> Tensor:
    """The second highest entry; of a single one, that."""
    return score.topk(min(2, score.shape[-1]), -1).values[..., -1:]


def _slopes_at(level: Tensor, box: Intervals) -> Tensor:
    """The slopes above at a level >= max l."""
    return ((box.upper - level) / _positive(box.upper - box.lower)).clamp(0, 1)


def _positive(width: Tensor) -> Tensor:
    return width.clamp(min=torch.finfo(width.dtype).tiny)


def _weights(slope: Tensor) -> Tensor:
    """The nearest w with w >= 0 and sum w <= 1."""
    positive = slope.clamp(min=0)
    heavy = positive.sum(-1, keepdim=True) > 1
    if not bool(heavy.any()):
        return positive
    # Projection on the simplex: subtract the threshold that makes the rest sum to 1.
    ordered = slope.sort(-1, descending=True).values
    count = torch.arange(1, slope.shape[-1] + 1, device=slope.device, dtype=slope.dtype)
    excess = (ordered.cumsum(-1) - 1) / count
    last = (ordered > excess).sum(-1, keepdim=True) - 1
    simplex = (slope - excess.gather(-1, last.clamp(min=0))).clamp(min=0)
    return torch.where(heavy, simplex, positive)
