"""Sine and cosine with proof.

Over a box, +-f(z) - t z is least at an end or at a trough of it, of which there are some for
|t| <= 1 only: one in every period, at the place b + arcsin t + 2 pi k and of the value
-sqrt(1 - t^2) - t z. So the last trough matters for t >= 0 and the first one for t < 0. Where a
trough is known to a few roundings, the least value is too; one that is only possibly inside the
box is taken as if it were.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import pi

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax import Arctan, Cos, Wave
from frown.relax.proven.curves import curve_of
from frown.relax.proven.rounding import UNIT, above, below
from frown.relax.proven.taylor import REACH, Enclosure, Table, gap, one_by_one, tabulate

_FAR = 2.0**40  # beyond, periods are not counted


@lru_cache(maxsize=2)
def _table(cosine: bool) -> Table:
    return tabulate(lambda s: s.cos() if cosine else s.sin())


def wave_value(op: Wave, z: Tensor) -> Enclosure:
    """f(z): from a table, and far from 0 from Arb."""
    cosine = isinstance(op, Cos)
    found = _table(cosine).value(z)
    low, high = found.lower, found.upper
    far = z.abs() > REACH
    if bool(far.any()):
        distant = one_by_one(lambda c: c.cos() if cosine else c.sin(), z[far])
        low, high = low.clone(), high.clone()
        low[far], high[far] = distant.lower, distant.upper
    return Enclosure(low.clamp(min=-1), high.clamp(max=1))


@dataclass(frozen=True, slots=True)
class ProvenWave:
    """sin or cos over a box."""

    op: Wave
    box: Intervals
    at_lower: Enclosure
    at_upper: Enclosure

    @classmethod
    def over(cls, op: Wave, box: Intervals) -> ProvenWave:
        return cls(op, box, wave_value(op, box.lower), wave_value(op, box.upper))

    def rows(self, index: Tensor | slice) -> ProvenWave:
        return ProvenWave(
            self.op, self.box.rows(index), self.at_lower.rows(index), self.at_upper.rows(index)
        )

    def image(self) -> Intervals:
        zero = torch.zeros_like(self.box.lower)
        under = torch.ones_like(zero, dtype=torch.bool)
        low, high = self.intercept(zero, under), self.intercept(zero, ~under)
        return Intervals(low.clamp(min=-1), high.clamp(max=1))

    def intercept(self, slope: Tensor, below: Tensor) -> Tensor:
        ends = torch.minimum(
            gap(self.at_lower, slope, self.box.lower, below),
            gap(self.at_upper, slope, self.box.upper, below),
        )
        best = torch.minimum(ends, self._trough(slope, below))
        best = torch.where(torch.isfinite(slope), best, torch.nan)
        return torch.where(below, best, -best)

    def _trough(self, slope: Tensor, under: Tensor) -> Tensor:
        """A lower bound of the values at troughs inside the box; infinite where there is none."""
        t = torch.where(under, slope, -slope)
        inner = t.clamp(-1, 1)
        root = ((1 - inner) * (1 + inner)).sqrt()
        depth = above(root)
        lean = _arctan(inner / root)  # of relative error 4 UNIT, which arctan halves
        middle = (lean.lower + lean.upper) / 2
        doubt = (lean.upper - lean.lower) + 8 * UNIT
        start = middle + self.op.crest + pi * under.to(middle)
        rising = t >= 0
        end = torch.where(rising, self.box.upper, self.box.lower)
        periods = (end - start) / (2 * pi)
        periods = torch.where(rising, periods.floor(), periods.ceil())
        best = torch.full_like(slope, torch.inf)
        for k in (-1, 0, 1):  # the count may be off by one
            turns = (periods + k) * (2 * pi)
            place = start + turns
            error = doubt + 8 * UNIT * (turns.abs() + 8)
            first, last = below(place, error), above(place, error)
            possible = (first <= self.box.upper) & (last >= self.box.lower)
            least = torch.where(rising, last.minimum(self.box.upper), first.maximum(self.box.lower))
            best = torch.minimum(best, torch.where(possible, _level(depth, t, least), torch.inf))
        best = torch.where(end.abs() <= _FAR, best, _level(depth, t, end))
        return torch.where(t.abs() <= 1, best, torch.inf)


def _level(depth: Tensor, t: Tensor, z: Tensor) -> Tensor:
    """A lower bound of -depth - t z."""
    tilt = t * z
    return below(-depth - tilt, tilt.abs() * (4 * UNIT))


def _arctan(q: Tensor) -> Enclosure:
    curve = curve_of(Arctan())
    assert curve is not None
    return curve.value(q)
