"""log sum_j e^(x_j) over the last axis: what softmax and log-softmax are made of.

Convex, so below it lie its tangent planes: for weights p >= 0 of sum 1,

    log sum e^x >= p . x + H(p),    H(p) = -sum p log p.

Above, e^x is below its chord c_j(x_j) on each interval, and the logarithm below its tangents:

    log sum e^x <= log sum c_j(x_j) <= zeta - 1 + e^-zeta sum c_j(x_j)   for every zeta.

Both hold for any p and zeta, so rounding in finding good ones cannot make a plane wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from frown.graph import Intervals
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

_DEPTH = 8.0  # how far below its greatest value the level zeta is looked for
_SMALL = 1e-30
_HALVINGS = 40  # of a level's interval


@dataclass(frozen=True, slots=True, eq=False)
class LogSumExp(Joint):
    """y = log sum_j e^(x_j) over the last axis, which disappears; over `kept` entries alone
    where a mask (of the input's shape, or one that broadcasts to it) is given."""

    kept: Tensor | None = None

    def apply(self, *xs: Tensor) -> Tensor:
        return self._present(xs[0]).logsumexp(-1)

    # -- planes -------------------------------------------------------------------------

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        box = anchors.box
        under, over = self._below(slope, box), self._above(slope, box)
        slack = self._slack(slope, anchors, over.lifted)
        intercept = torch.where(below, under.intercept - slack, over.intercept + slack)
        return Line(intercept, torch.where(below[..., None], under.touch, over.touch))

    def weights(self, slope: Tensor, box: Intervals) -> tuple[Tensor, Tensor]:
        """Weights near the greatest H(p) + min (p - s) . x over the box: the slopes' own, and
        those with p_j = s_j, or e^(l_j - zeta) or e^(u_j - zeta) where s_j is beyond, at the
        level of sum 1."""
        ends = [self._present(x) for x in (box.lower, box.upper)]

        def shares(zeta: Tensor) -> Tensor:
            low, high = ((x - zeta[..., None]).exp() for x in ends)
            return self.weigh(slope.maximum(low).minimum(high))

        ends_of_sum = self.apply(box.lower), self.apply(box.upper)
        _, high = bisect(*ends_of_sum, lambda zeta: ~(shares(zeta).sum(-1) > 1), _HALVINGS)
        inside, _ = _normalised(shares(high), self._shares(box.middle))
        near, _ = _normalised(self.weigh(slope.clamp(min=0)), inside)
        return near, inside

    def _below(self, slope: Tensor, box: Intervals) -> Line:
        near, inside = self.weights(slope, box)
        first, second = (self._tangent(p, slope, box) for p in (near, inside))
        better = second > first
        p = torch.where(better[..., None], inside, near)
        free = box.clip(_log(p) + self.apply(box.middle)[..., None])
        touch = torch.where(p > slope, box.lower, torch.where(p < slope, box.upper, free))
        return Line(torch.where(better, second, first), touch)

    def _tangent(self, p: Tensor, slope: Tensor, box: Intervals) -> Tensor:
        least = torch.minimum((p - slope) * box.lower, (p - slope) * box.upper)
        return entropy(p) + least.sum(-1)

    def level(self, slope: Tensor, box: Intervals) -> Tensor:
        """zeta near the least zeta - 1 + sum_j max(e^(x_j - zeta) - s_j x_j) over both ends of
        each interval, which is convex in zeta."""
        levels = _Levels.of(self, box)
        ends = [(self._present(x), slope * x) for x in (box.lower, box.upper)]

        def rising(zeta: Tensor) -> Tensor:
            bottom, top = ((x - zeta[..., None]).exp() for x, _ in ends)
            upper = top - ends[1][1] > bottom - ends[0][1]
            return ~(torch.where(upper, top, bottom).sum(-1) > 1)

        return bisect(levels.low, levels.high, rising, _HALVINGS)[1]

    def _above(self, slope: Tensor, box: Intervals) -> _Over:
        return self._lifted(slope, self.level(slope, box), _Levels.of(self, box), box)

    def _lifted(self, slope: Tensor, zeta: Tensor, levels: _Levels, box: Intervals) -> _Over:
        low, high = (self._present(x - zeta[..., None]).exp() for x in (box.lower, box.upper))
        ends = torch.maximum(low - slope * box.lower, high - slope * box.upper)
        intercept = zeta - 1 + ends.sum(-1)
        single = self.single()
        if single is not None:
            rest = single.to(slope) - slope  # f is the one entry left
            exact = torch.maximum(rest * box.lower, rest * box.upper).sum(-1)
            intercept = torch.where(single.any(-1), exact, intercept)
        return _Over(
            intercept, torch.lerp(box.lower, box.upper, levels.share(zeta)[..., None]), high.sum(-1)
        )

    def _slack(self, slope: Tensor, anchors: Anchors, lifted: Tensor) -> Tensor:
        """More than the rounding of either side: of sums of n terms, and of e^(u - zeta),
        whose exponent is rounded too."""
        count, eps = slope.shape[-1], torch.finfo(slope.dtype).eps
        reach = self.weigh(anchors.reach)
        most = reach.amax(-1)
        terms = (slope.abs() * anchors.reach).sum(-1)
        return 8 * count * eps * (terms + (1 + most) * (2 + lifted) + log(count))

    # -- the search -----------------------------------------------------------------------

    def tightest(self, box: Intervals) -> SlopeRange:
        """Below: what each entry's share of the sum can be. Above: the chords' slopes between
        the least and the greatest level."""
        levels = _Levels.of(self, box)
        low, high = self._present(box.lower), self._present(box.upper)
        bottom, top = levels.bottom[..., None], levels.high[..., None]
        # e^l_j / (e^l_j + sum of e^u_k over the others), and the other way round.
        own = (low - top).exp()
        least = own / (own + (1 - (high - top).exp()).clamp(min=0)).clamp(min=_SMALL)
        most = 1 / (1 + (1 - (low - bottom).exp()).clamp(min=0) * (bottom - high).exp())
        flat, steep = (self._slopes_at(levels, z) for z in (levels.high, levels.low))
        return SlopeRange(Intervals(least, most.maximum(least)), Intervals(flat, steep))

    def within(self, alpha: Tensor, below: Tensor, relaxed: Relaxed) -> LinesWithin:
        """Below, shares scaled to sum 1; above, all alpha stand for one level."""
        box, range_ = relaxed.box, relaxed.range
        raw = self.weigh(torch.addcmul(range_.lower.lower, alpha, _width(range_.lower)))
        p, total = _normalised(raw, self._shares(box.middle))
        levels = _Levels.of(self, box)
        m = self.weigh(alpha).sum(-1, keepdim=True) / self._count(alpha)
        slope = torch.addcmul(range_.upper.lower, m, _width(range_.upper))
        depth = (levels.low - levels.high).exp()
        zeta = levels.clip(levels.low - _log(torch.lerp(depth, torch.ones_like(depth), m[..., 0])))
        over = self._lifted(slope, zeta, levels, box)
        laid = below[..., None]
        chosen = torch.where(laid, p, slope)
        slack = self._slack(chosen, relaxed.anchors, over.lifted)
        return LinesWithin(
            chosen,
            torch.where(below, entropy(p) - slack, over.intercept + slack),
            torch.where(laid, _log(p), over.touch),
            torch.where(laid, _width(range_.lower) / total, _width(range_.upper)),
        )

    def uphill(self, coef: Tensor, lines: LinesWithin, z: Tensor) -> Tensor:
        """Below, what a share gains is lost by the others; above, every alpha moves all."""
        gap = self.weigh(z - lines.touch)
        centred = gap - (lines.slope * gap).sum(-1, keepdim=True)
        along = (lines.width * gap).sum(-1, keepdim=True) / self._count(gap)
        return self.weigh(coef * torch.where(coef >= 0, lines.width * centred, along))

    # -- rules ------------------------------------------------------------------------------

    def crown(self, box: Intervals) -> Slopes:
        """The planes that are tightest at the middle of the box: the tangent there, and the
        chords at the level of their sum there."""
        levels = _Levels.of(self, box)
        depth = (levels.bottom - levels.high).exp()
        zeta = levels.clip(levels.high + ((1 + depth) / 2).log())
        return Slopes(self._shares(box.middle), self._slopes_at(levels, zeta))

    def _slopes_at(self, levels: _Levels, zeta: Tensor) -> Tensor:
        """The slopes above at a level."""
        slope = levels.chords * (levels.high - zeta).exp()[..., None]
        single = self.single()
        if single is None:
            return slope
        return torch.where(single.any(-1, keepdim=True), single.to(slope), slope)

    def parallel(self, box: Intervals) -> Slopes:
        middle = self._shares(box.middle)
        return Slopes(middle, middle)

    def several(self, relaxed: Relaxed, count: int) -> Family:
        """Tangents along the box's diagonal; chords at levels between the least and greatest."""
        rule = relaxed.lines.slopes
        box, above = relaxed.box, relaxed.range.upper
        places = [k / (count - 1) for k in range(count)]
        return Family(
            (rule.lower, *(self._shares(torch.lerp(box.lower, box.upper, k)) for k in places)),
            (rule.upper, *(torch.lerp(above.lower, above.upper, k) for k in places)),
        )

    def image(self, box: Intervals) -> Intervals:
        low, high = self.apply(box.lower), self.apply(box.upper)
        ulps = 8 * box.lower.shape[-1] * torch.finfo(low.dtype).eps
        reach = low.abs().maximum(high.abs()) + 1
        return Intervals(low - ulps * reach, high + ulps * reach)

    def stable(self, box: Intervals) -> Tensor:
        """Fixed entries, entries that are not there, and a single one, which is the sum."""
        still = box.lower == box.upper
        alone = self._count(box.lower) == 1
        if self.kept is not None:
            still = still | ~self.kept
        return (still | alone).expand_as(box.lower)

    # -- entries that are not there -----------------------------------------------------------

    def _present(self, x: Tensor) -> Tensor:
        """x, with -inf where an entry is left out."""
        return x if self.kept is None else torch.where(self.kept, x, -torch.inf)

    def weigh(self, x: Tensor) -> Tensor:
        """Weights, with 0 where an entry is left out."""
        return x if self.kept is None else torch.where(self.kept, x, 0.0)

    def _count(self, x: Tensor) -> Tensor | float:
        """The number of entries that are present."""
        return x.shape[-1] if self.kept is None else self.kept.sum(-1, keepdim=True).to(x.dtype)

    def single(self) -> Tensor | None:
        """The entry that is the only one of its sum, if any is."""
        if self.kept is None or not bool((self.kept.sum(-1) == 1).any()):
            return None
        return self.kept & (self.kept.sum(-1, keepdim=True) == 1)

    def _shares(self, x: Tensor) -> Tensor:
        return self._present(x).softmax(-1)


@dataclass(frozen=True, slots=True)
class _Over:
    """A plane above: intercept, where it touches, and sum e^(u - zeta)."""

    intercept: Tensor
    touch: Tensor
    lifted: Tensor


@dataclass(frozen=True, slots=True)
class _Levels:
    """Levels zeta from `low` to `high`; the sum's own range is [bottom, high]."""

    bottom: Tensor
    low: Tensor
    high: Tensor
    chords: Tensor  # slopes of the chords of e^(x - high)

    @classmethod
    def of(cls, op: LogSumExp, box: Intervals) -> _Levels:
        bottom, high = op.apply(box.lower), op.apply(box.upper)
        width = box.upper - box.lower
        mean = torch.where(width > 0, -torch.expm1(-width) / width, 1.0)  # of e^-t on [0, width]
        top = op._present(box.upper - high[..., None]).exp()
        return cls(bottom, bottom.maximum(high - _DEPTH), high, top * mean)

    def clip(self, zeta: Tensor) -> Tensor:
        return zeta.nan_to_num(nan=torch.inf).maximum(self.low).minimum(self.high)

    def share(self, zeta: Tensor) -> Tensor:
        """The place on the box's diagonal where the chords' sum is e^zeta."""
        depth = (self.bottom - self.high).exp()
        place = ((zeta - self.high).exp() - depth) / (1 - depth)
        return place.nan_to_num(nan=0.5).clamp(0, 1)


def entropy(p: Tensor) -> Tensor:
    """-sum p log p."""
    return -(p * _log(p)).sum(-1)


def _normalised(weights: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """Weights scaled to sum 1, and the divisor.

    Other weights where the sum is too small or too large to divide by.
    """
    total = weights.sum(-1, keepdim=True)
    ordinary = (total >= _SMALL) & (total <= 1 / _SMALL)
    total = torch.where(ordinary, total, 1.0)
    return torch.where(ordinary, weights / total, otherwise), total


def _width(box: Intervals) -> Tensor:
    return box.upper - box.lower


def _log(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny).log()
