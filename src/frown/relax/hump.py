"""SiLU and GELU: z times a sigmoid. Concave, then convex around 0, then concave.

f' is monotone on each of the three pieces, which end at the inflection points -m and m. Its
inverses have no closed form: a table finds the cell, Newton's method the point.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import bisect

_NEAR, _FAR, _CELLS = 40.0, 800.0, 16384  # beyond _FAR, f' is 0 or 1 in double precision


_ROOT_HALF = -0.7071067811865476
_ROOT_HALF_REST = 4.833646656726457e-17  # -1 / sqrt(2) - _ROOT_HALF


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    left: tuple[Tensor, Tensor]  # points of (-far, -m), in the order in which f' increases
    middle: tuple[Tensor, Tensor]
    right: tuple[Tensor, Tensor]
    ends: Tensor  # grid of end points
    tangents: Tensor  # (3, grid): where the tangent from each end touches each piece


class Hump(Elementwise):
    """Lines below touch in the convex middle, lines above in one of the outer pieces."""

    __slots__ = ()

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """f(z), z in double precision."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """f'(z), z in double precision."""

    @abstractmethod
    def second(self, z: Tensor) -> Tensor:
        """f''(z), z in double precision."""

    def apply(self, *xs: Tensor) -> Tensor:
        """f(z), computed in double precision.

        On the left, where f is tiny, the error of its factors grows with z^2.
        """
        return self.value(xs[0].double()).to(xs[0].dtype)

    def derivative(self, z: Tensor) -> Tensor:
        return self.slope(z.double()).to(z.dtype)

    def floor(self, dtype: torch.dtype) -> float:
        return 1.0 if dtype == torch.float64 else 0.0  # with no precision to spare

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        # In double precision: f' is so flat in the tails that single precision cannot
        # tell the points there apart.
        tables, dtype, slope = _tables_on(self, slope.device), slope.dtype, slope.double()
        middle = self._solve(slope, tables.middle)
        left, right = self._solve(slope, tables.left), self._solve(slope, tables.right)
        first = torch.where(below, middle, left).to(dtype)
        second = torch.where(below, middle, right).to(dtype)
        return (box.clip(first), box.clip(second))

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        tables = _tables_on(self, end.device)
        grid = tables.ends.to(end.dtype)
        step = 2 * _NEAR / (len(grid) - 1)
        reach = ((end - grid[0]) / step).clamp(0, len(grid) - 1)
        place = reach.floor().clamp(max=len(grid) - 2)
        index = place.nan_to_num(nan=0.0).long()  # an end without a number has no tangent
        points = tables.tangents.to(end.dtype)
        return tuple(
            box.clip(torch.lerp(piece[index], piece[index + 1], reach - place)) for piece in points
        )

    def _solve(self, slope: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """z with f'(z) = slope on one piece; the piece's end for other slopes."""
        points, slopes = table
        index = torch.searchsorted(slopes, slope.contiguous()).clamp(1, len(slopes) - 1)
        one, other = points[index - 1], points[index]
        below, above = slopes[index - 1], slopes[index]
        share = (slope - below) / torch.where(above > below, above - below, 1.0)
        z = torch.lerp(one, other, share.clamp(0, 1))
        low, high = torch.minimum(one, other), torch.maximum(one, other)
        for _ in range(4):
            rate = self.second(z)
            step = (self.slope(z) - slope) / torch.where(rate != 0, rate, 1.0)
            z = (z - step).maximum(low).minimum(high)
        return z


@lru_cache(maxsize=8)
def _tables(f: Hump) -> _Tables:
    low, high = torch.tensor(1.0).double(), torch.tensor(4.0).double()
    for _ in range(80):  # f'' > 0 inside (-m, m)
        middle = (low + high) / 2
        low, high = (middle, high) if f.second(middle) > 0 else (low, middle)
    m = float(low)
    inner = torch.linspace(-m, m, _CELLS, dtype=torch.float64)
    # Cells grow towards the tails, where f' is nearly flat.
    outer = m + (_FAR - m) * torch.linspace(0, 1, _CELLS, dtype=torch.float64) ** 2
    ends = torch.linspace(-_NEAR, _NEAR, 4 * _CELLS, dtype=torch.float64)
    pieces = ((-_NEAR, -m), (-m, m), (m, _NEAR))
    touching = torch.stack([_touch(f, ends, *piece) for piece in pieces])

    def table(z: Tensor) -> tuple[Tensor, Tensor]:
        return z, torch.cummax(f.slope(z), 0).values

    return _Tables(table(-outer), table(inner), table(outer.flip(0)), ends, touching)


@lru_cache(maxsize=16)
def _tables_on(f: Hump, device: torch.device) -> _Tables:
    """The tables where they are read: moved there once."""
    own = _tables(f)

    def moved(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pair[0].to(device), pair[1].to(device)

    left, middle, right = (moved(pair) for pair in (own.left, own.middle, own.right))
    return _Tables(left, middle, right, own.ends.to(device), own.tangents.to(device))


def _touch(f: Hump, ends: Tensor, first: float, last: float) -> Tensor:
    """Bisection for f'(p)(p - c) = f(p) - f(c) on a piece; an end of it where there is none."""
    left, right = torch.full_like(ends, first), torch.full_like(ends, last)
    start = f.apply(ends)

    def gap(p: Tensor) -> Tensor:
        return f.derivative(p) * (p - ends) - (f.apply(p) - start)

    rising = gap(right) > gap(left)
    return bisect(left, right, lambda p: (gap(p) > 0) == rising, 60)[1]


@dataclass(frozen=True, slots=True)
class Silu(Hump):
    """z sigmoid(z)."""

    def value(self, z: Tensor) -> Tensor:
        return z * torch.sigmoid(z)

    def slope(self, z: Tensor) -> Tensor:
        y = torch.sigmoid(z)
        return y * (1 + z * torch.sigmoid(-z))

    def second(self, z: Tensor) -> Tensor:
        y, w = torch.sigmoid(z), torch.sigmoid(-z)
        return y * w * (2 + z * (w - y))


@dataclass(frozen=True, slots=True)
class Gelu(Hump):
    """z Phi(z) with the normal distribution function Phi."""

    def value(self, z: Tensor) -> Tensor:
        return z * _normal(z)

    def slope(self, z: Tensor) -> Tensor:
        return _normal(z) + z * _density(z)

    def second(self, z: Tensor) -> Tensor:
        return (2 - z * z) * _density(z)


@dataclass(frozen=True, slots=True)
class GeluTanh(Hump):
    """The tanh form of GELU: z / 2 (1 + tanh(a z + b z^3)) with a = sqrt(2 / pi) and
    b = 0.044715 a, or with numbers near them that a file has instead."""

    linear: float = sqrt(2 / pi)
    cubic: float = 0.044715 * sqrt(2 / pi)

    @property
    def standard(self) -> bool:
        """True if the constants stand for the two of the definition."""
        return self == GeluTanh()

    def value(self, z: Tensor) -> Tensor:
        # (1 + tanh y) / 2 = sigmoid(2 y), which keeps small values on the left.
        return z * torch.sigmoid(2 * self._inner(z))

    def slope(self, z: Tensor) -> Tensor:
        y = torch.sigmoid(2 * self._inner(z))
        return y + z * y * torch.sigmoid(-2 * self._inner(z)) * 2 * self._rate(z)

    def second(self, z: Tensor) -> Tensor:
        y, w = torch.sigmoid(2 * self._inner(z)), torch.sigmoid(-2 * self._inner(z))
        rate = 2 * self._rate(z)
        curve = 2 * 6 * self.cubic * z
        first = y * w * rate
        return 2 * first + z * (first * (w - y) * rate + y * w * curve)

    def _inner(self, z: Tensor) -> Tensor:
        return (self.linear + self.cubic * z * z) * z

    def _rate(self, z: Tensor) -> Tensor:
        return self.linear + 3 * self.cubic * z * z


def _normal(z: Tensor) -> Tensor:
    """erfc(x) / 2 at x = -z / sqrt(2), to a few ulps of the value.

    erfc multiplies the relative error of x by 2 x^2, so what rounding x has lost is put
    back to first order: erfc' = -2 / sqrt(pi) e^(-x^2).
    """
    x = z * _ROOT_HALF
    lost = _rounding(z, _ROOT_HALF, x) + z * _ROOT_HALF_REST
    return (torch.erfc(x) - torch.exp(-x * x) * lost * (2 / sqrt(pi))) / 2


def _rounding(a: Tensor, b: float, product: Tensor) -> Tensor:
    """a b - fl(a b), exactly (Dekker), in double precision."""
    split = 134217729.0
    a_high = a * split - (a * split - a)
    b_high = b * split - (b * split - b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _density(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) * (1 / sqrt(2 * pi))
