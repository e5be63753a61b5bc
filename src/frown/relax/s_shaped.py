"""Sigmoid, tanh, arctan and erf: convex below 0, concave above, odd about (0, f(0))."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import log, pi, sqrt

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax.elementwise import Elementwise, rounding
from frown.relax.relaxation import LinesWithin, Relaxed, RowSides, SlopeRange, Slopes, bisect

_FIRST, _LAST, _ENTRIES = 1e-4, 1e4, 4096  # |end| covered by the table of tangents


class SShaped(Elementwise):
    """Lines below touch left of 0, lines above right of it, or at an end."""

    __slots__ = ()

    @abstractmethod
    def touching(self, slope: Tensor) -> Tensor:
        """The z >= 0 with f'(z) = slope, for 0 < slope <= f'(0); clamps other slopes."""

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        z = self.touching(slope)
        return (box.clip(torch.where(below, -z, z)),)

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """l_d and u_d of Table 2, from a table: a chord's slope is stationary there,
        so the slope's error is the square of the point's."""
        table = _tangent_table_on(self, end.dtype, end.device)
        reach = (end.abs().clamp(_FIRST, _LAST) / _FIRST).log() * (
            (_ENTRIES - 1) / log(_LAST / _FIRST)
        )
        place = reach.floor().clamp(max=_ENTRIES - 2)
        index = place.nan_to_num(nan=0.0).long()  # an end without a number has no tangent
        ratio = torch.lerp(table[index], table[index + 1], reach - place)
        return (box.clip(-end * ratio),)

    def least_area(self, box: Intervals, spread: SlopeRange) -> Slopes:
        """Below, f itself is the envelope up to where the tangent through the upper end
        touches, left of 0; there f' has grown to that tangent's slope. Above, mirrored."""
        middle, low, high = box.middle, spread.lower, spread.upper
        slope = self.derivative(middle)
        lower = torch.where(middle < 0, slope.minimum(low.upper), low.upper)
        upper = torch.where(middle > 0, slope.minimum(high.upper), high.upper)
        return Slopes(low.clip(lower), high.clip(upper))

    def tight_lines(self, slope: Tensor, sides: RowSides, relaxed: Relaxed) -> LinesWithin:
        """Inside the tightest range a line touches where f' is its slope, or there as well
        as at an end."""
        touch = relaxed.box.clip(sides.sign * self.touching(slope))
        least = most = torch.addcmul(self.apply(touch), slope, touch, value=-1)
        for z, f in relaxed.anchors.points:
            gap = torch.addcmul(f, slope, z, value=-1)
            least, most = least.minimum(gap), most.maximum(gap)
        best = sides.of(least, most)
        slack = rounding(best, slope, relaxed.anchors.reach, self.floor(slope.dtype))
        width = sides.of(*relaxed.range.widths)
        return LinesWithin(slope, torch.addcmul(best, sides.sign, slack), touch, width)

    def image(self, box: Intervals) -> Intervals:
        """f rises: its values at the ends, moved outwards like any line."""
        low, high = self.apply(box.lower), self.apply(box.upper)
        ulps = 6 * torch.finfo(low.dtype).eps
        floor = self.floor(low.dtype)
        return Intervals(low - ulps * (low.abs() + floor), high + ulps * (high.abs() + floor))

    def paper(self, box: Intervals) -> Slopes:
        """Appendix A.4: on boxes across 0 the tangent through the far end, else the
        tangent at the middle."""
        spread, middle = self.tightest(box), self.derivative(box.middle)
        lower = torch.where(box.upper <= 0, middle, spread.lower.upper)
        upper = torch.where(box.lower >= 0, middle, spread.upper.upper)
        return Slopes(lower, upper)


@lru_cache(maxsize=8)
def _tangent_table(f: SShaped) -> Tensor:
    """d / a on a logarithmic grid of a: the tangent at d > 0 passes through (-a, f(-a))."""
    a = torch.logspace(
        log(_FIRST), log(_LAST), _ENTRIES, base=2.718281828459045, dtype=torch.float64
    )
    start = f.apply(-a)

    def beyond(p: Tensor) -> Tensor:
        return f.derivative(p) * (p + a) - (f.apply(p) - start) <= 0

    return bisect(torch.zeros_like(a), a, beyond, 80)[1] / a


@lru_cache(maxsize=16)
def _tangent_table_on(f: SShaped, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The table where it is read: moved there once."""
    return _tangent_table(f).to(dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Sigmoid(SShaped):
    """1 / (1 + e^-z)."""

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.sigmoid(xs[0])

    def derivative(self, z: Tensor) -> Tensor:
        y = torch.sigmoid(z.abs().neg())
        return y * (1 - y)

    def touching(self, slope: Tensor) -> Tensor:
        # f(1 - f) = s gives f = (1 + q) / 2 with q = sqrt(1 - 4 s), and z = log f / (1 - f).
        s = slope.clamp(torch.finfo(slope.dtype).tiny, 0.25)
        return 2 * torch.log((1 + torch.sqrt(1 - 4 * s)) / (2 * torch.sqrt(s)))


@dataclass(frozen=True, slots=True)
class Tanh(SShaped):
    """tanh z."""

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.tanh(xs[0])

    def derivative(self, z: Tensor) -> Tensor:
        # 1 - tanh^2 without cancellation for large |z|.
        y = torch.sigmoid(-2 * z.abs())
        return 4 * y * (1 - y)

    def touching(self, slope: Tensor) -> Tensor:
        s = slope.clamp(torch.finfo(slope.dtype).tiny, 1)
        return torch.log((1 + torch.sqrt(1 - s)) / torch.sqrt(s))


@dataclass(frozen=True, slots=True)
class Arctan(SShaped):
    """arctan z."""

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.atan(xs[0])

    def derivative(self, z: Tensor) -> Tensor:
        return 1 / (1 + z * z)

    def touching(self, slope: Tensor) -> Tensor:
        s = slope.clamp(torch.finfo(slope.dtype).tiny, 1)
        return torch.sqrt((1 - s) / s)


@dataclass(frozen=True, slots=True)
class Erf(SShaped):
    """erf z = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to z."""

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.erf(xs[0])

    def derivative(self, z: Tensor) -> Tensor:
        return (2 / sqrt(pi)) * torch.exp(-z * z)

    def touching(self, slope: Tensor) -> Tensor:
        s = slope.clamp(torch.finfo(slope.dtype).tiny, 2 / sqrt(pi))
        return (-torch.log(s * (sqrt(pi) / 2))).clamp(min=0).sqrt()
