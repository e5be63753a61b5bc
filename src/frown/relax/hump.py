"""SiLU and GELU: z times a sigmoid. Concave, then convex around 0, then concave.

f'(-z) = 1 - f'(z), so one inflection point m and the inverses of f' on [0, m] and
[m, inf) give everything. They have no closed form: a table finds the cell, Newton's
method the point.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import torch
from torch import Tensor

from frown.graph.box import Box
from frown.relax.elementwise import Elementwise

_FAR, _CELLS = 40.0, 16384  # beyond _FAR, f' is 0 or 1 to double precision


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    inflection: float
    rising: tuple[Tensor, Tensor]  # z on [-m, m], f'(z) increasing
    falling: tuple[Tensor, Tensor]  # -z on [m, far] so that f' increases
    ends: Tensor  # grid of end points
    tangents: Tensor  # (3, grid): where the tangent from each end touches each piece


class Hump(Elementwise):
    """Lines below touch in the convex middle, lines above in one of the outer pieces."""

    __slots__ = ()

    @abstractmethod
    def second(self, z: Tensor) -> Tensor:
        """f''(z)."""

    def critical(self, slope: Tensor, below: Tensor, box: Box) -> tuple[Tensor, ...]:
        # In double precision: f' is so flat in the tails that single precision cannot
        # tell the points there apart.
        tables, dtype, slope = _tables(self), slope.dtype, slope.double()
        middle = self._solve(slope, tables.rising)
        right = -self._solve(slope, tables.falling, mirrored=True)
        left = self._solve(1 - slope, tables.falling, mirrored=True)
        first = torch.where(below, middle, left).to(dtype)
        second = torch.where(below, middle, right).to(dtype)
        return (box.clip(first), box.clip(second))

    def tangents(self, end: Tensor, box: Box) -> tuple[Tensor, ...]:
        tables = _tables(self)
        grid = tables.ends.to(end)
        step = float(tables.ends[1] - tables.ends[0])
        reach = ((end - grid[0]) / step).clamp(0, len(grid) - 1)
        place = reach.floor().clamp(max=len(grid) - 2)
        index = place.long()
        points = tables.tangents.to(end)
        return tuple(
            box.clip(torch.lerp(piece[index], piece[index + 1], reach - place)) for piece in points
        )

    def _solve(self, slope: Tensor, table: tuple[Tensor, Tensor], mirrored: bool = False) -> Tensor:
        """z with f'(z) = slope on one monotone piece; the piece's end for other slopes.

        `mirrored` pieces are stored by -z.
        """
        points, slopes = (t.to(slope.device) for t in table)
        index = torch.searchsorted(slopes, slope.contiguous()).clamp(1, len(slopes) - 1)
        low, high = points[index - 1], points[index]
        below, above = slopes[index - 1], slopes[index]
        share = (slope - below) / (above - below).clamp(min=torch.finfo(slope.dtype).tiny)
        z = torch.lerp(low, high, share.clamp(0, 1))
        sign = -1.0 if mirrored else 1.0
        for _ in range(3):
            miss = self.derivative(sign * z) - slope
            rate = sign * self.second(sign * z)
            newton = z - miss / torch.where(rate.abs() > 1e-12, rate, torch.ones_like(rate))
            z = newton.maximum(low).minimum(high)
        return z


@lru_cache(maxsize=8)
def _tables(f: Hump) -> _Tables:
    low, high = torch.tensor(1.0).double(), torch.tensor(4.0).double()
    for _ in range(80):  # f'' > 0 inside (-m, m)
        middle = (low + high) / 2
        low, high = (middle, high) if f.second(middle) > 0 else (low, middle)
    m = float(low)
    inner = torch.linspace(-m, m, _CELLS, dtype=torch.float64)
    # Cells grow towards the tail, where f' is nearly flat.
    outer = m + (_FAR - m) * torch.linspace(0, 1, _CELLS, dtype=torch.float64) ** 2
    outer = outer.flip(0)
    falling = torch.cummax(f.derivative(outer), 0).values
    ends = torch.linspace(-_FAR, _FAR, 4 * _CELLS, dtype=torch.float64)
    pieces = ((-_FAR, -m), (-m, m), (m, _FAR))
    touching = torch.stack([_touch(f, ends, *piece) for piece in pieces])
    rising = torch.cummax(f.derivative(inner), 0).values
    return _Tables(m, (inner, rising), (-outer, falling), ends, touching)


def _touch(f: Hump, ends: Tensor, first: float, last: float) -> Tensor:
    """Bisection for f'(p)(p - c) = f(p) - f(c) on a piece; an end of it where there is none."""
    left, right = torch.full_like(ends, first), torch.full_like(ends, last)
    start = f.apply(ends)

    def gap(p: Tensor) -> Tensor:
        return f.derivative(p) * (p - ends) - (f.apply(p) - start)

    rising = gap(right) > gap(left)
    for _ in range(60):
        middle = (left + right) / 2
        beyond = (gap(middle) > 0) == rising
        left = torch.where(beyond, left, middle)
        right = torch.where(beyond, middle, right)
    return right


@dataclass(frozen=True, slots=True)
class Silu(Hump):
    """z sigmoid(z)."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0] * torch.sigmoid(xs[0])

    def derivative(self, z: Tensor) -> Tensor:
        y = torch.sigmoid(z)
        return y * (1 + z * torch.sigmoid(-z))

    def second(self, z: Tensor) -> Tensor:
        y, w = torch.sigmoid(z), torch.sigmoid(-z)
        return y * w * (2 + z * (w - y))


@dataclass(frozen=True, slots=True)
class Gelu(Hump):
    """z Phi(z) with the normal distribution function Phi."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0] * _normal(xs[0])

    def derivative(self, z: Tensor) -> Tensor:
        return _normal(z) + z * _density(z)

    def second(self, z: Tensor) -> Tensor:
        return (2 - z * z) * _density(z)


@dataclass(frozen=True, slots=True)
class GeluTanh(Hump):
    """The tanh form of GELU: z / 2 (1 + tanh(c (z + 0.044715 z^3))), c = sqrt(2 / pi)."""

    def apply(self, *xs: Tensor) -> Tensor:
        # (1 + tanh y) / 2 = sigmoid(2 y), which keeps small values on the left.
        return xs[0] * torch.sigmoid(2 * _cubic(xs[0]))

    def derivative(self, z: Tensor) -> Tensor:
        y = torch.sigmoid(2 * _cubic(z))
        return y + z * y * torch.sigmoid(-2 * _cubic(z)) * 2 * _cubic_slope(z)

    def second(self, z: Tensor) -> Tensor:
        y, w = torch.sigmoid(2 * _cubic(z)), torch.sigmoid(-2 * _cubic(z))
        rate = 2 * _cubic_slope(z)
        curve = 2 * sqrt(2 / pi) * 6 * 0.044715 * z
        first = y * w * rate
        return 2 * first + z * (first * (w - y) * rate + y * w * curve)


def _normal(z: Tensor) -> Tensor:
    return torch.erfc(z * (-1 / sqrt(2))) / 2


def _density(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) * (1 / sqrt(2 * pi))


def _cubic(z: Tensor) -> Tensor:
    return (z + 0.044715 * z * z * z) * sqrt(2 / pi)


def _cubic_slope(z: Tensor) -> Tensor:
    return (1 + 3 * 0.044715 * z * z) * sqrt(2 / pi)
