"""Proven values of smooth functions: Taylor polynomials whose coefficients and remainders Arb
encloses, evaluated in double precision with their rounding bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from frown.graph import rows_of
from frown.relax.proven.rounding import TINY, UNIT, above, below, gamma

if TYPE_CHECKING:
    Series = Any  # flint.arb_series, which has no types
    Ball = Any

HUGE = 1e308  # less than any value that overflows
REACH = 40.0  # tables cover [-REACH, REACH]
_CELL = 2.0**-5
_DEGREE = 7


@dataclass(frozen=True, slots=True)
class Enclosure:
    """lower <= value <= upper, entry by entry."""

    lower: Tensor
    upper: Tensor

    def rows(self, index: Tensor | slice) -> Enclosure:
        return Enclosure(rows_of(self.lower, index), rows_of(self.upper, index))

    def where(self, mask: Tensor, other: Enclosure) -> Enclosure:
        """This one where the mask says so, else the other."""
        return Enclosure(
            torch.where(mask, self.lower, other.lower), torch.where(mask, self.upper, other.upper)
        )


def gap(value: Enclosure, slope: Tensor, z: Tensor, under: Tensor) -> Tensor:
    """A lower bound of +-(f(z) - s z)."""
    f = torch.where(under, value.lower, -value.upper)
    return signed_gap(f, torch.where(under, slope, -slope), z)


def signed_gap(f: Tensor, slope: Tensor, z: Tensor) -> Tensor:
    """A lower bound of f - s z, s z being computed."""
    tilt = slope * z
    y = f - tilt
    return y - (4 * UNIT * (y.abs() + tilt.abs()) + TINY)


def around(y: Tensor, ulps: int = 8) -> Enclosure:
    """Around what was computed as y with fewer than ulps - 2 roundings of half a last place."""
    slack = y.abs() * (ulps * UNIT) + 64 * TINY
    return Enclosure(
        torch.where(y == torch.inf, HUGE, y - slack), torch.where(y == -torch.inf, -HUGE, y + slack)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """f and f' on [-REACH, REACH], cell by cell."""

    coefficients: Tensor  # (degree + 1, cells)
    error: Tensor  # (cells,) of the polynomial as evaluated
    slope_error: Tensor  # (cells,) of its derivative as evaluated

    def value(self, z: Tensor) -> Enclosure:
        cell, d = self._cell(z)
        y = self._coefficient(-1, cell)
        for k in range(len(self.coefficients) - 2, -1, -1):
            y = torch.addcmul(self._coefficient(k, cell), y, d)
        return _within(y, self.error, cell, z)

    def both(self, z: Tensor) -> tuple[Enclosure, Enclosure]:
        """Value and slope: the sums of Horner's scheme are the derivative's coefficients."""
        cell, d = self._cell(z)
        last = len(self.coefficients) - 1
        slope = self._coefficient(last, cell)
        y = torch.addcmul(self._coefficient(last - 1, cell), slope, d)
        for k in range(last - 2, -1, -1):
            slope = torch.addcmul(y, slope, d)
            y = torch.addcmul(self._coefficient(k, cell), y, d)
        return _within(y, self.error, cell, z), _within(slope, self.slope_error, cell, z)

    def _coefficient(self, k: int, cell: Tensor) -> Tensor:
        return self.coefficients[k].index_select(0, cell)

    def _cell(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The cell's number, and the distance from its centre: an exact difference, as centres are
        multiples of the cell. Both flat."""
        inside = z.flatten().clamp(-REACH, REACH).nan_to_num(nan=0.0)
        place = (inside / _CELL).round()
        return (place + REACH / _CELL).long(), inside - place * _CELL


def _within(y: Tensor, errors: Tensor, cell: Tensor, like: Tensor) -> Enclosure:
    error = errors.index_select(0, cell)
    return Enclosure((y - error).view_as(like), (y + error).view_as(like))


def tabulate(f: Callable[[Series], Series]) -> Table:
    """The table of a function given as one of Arb's power series."""
    import flint

    ctx = flint.ctx
    precision, cap = ctx.prec, ctx.cap
    half = _CELL / 2
    rows, errors, slope_errors = [], [], []
    try:
        ctx.prec, ctx.cap = 128, _DEGREE + 2
        for k in range(round(-REACH / _CELL), round(REACH / _CELL) + 1):
            centre = flint.arb(k) * _CELL
            series = f(flint.arb_series([centre, 1]))
            around = f(flint.arb_series([flint.arb(k * _CELL, half), 1]))
            exact = [series[i] for i in range(_DEGREE + 1)]
            last = _size(around[_DEGREE + 1])  # |f^(n)| / n! anywhere in the cell
            row = [float(c.mid()) for c in exact]
            sizes = [abs(c) * half**i for i, c in enumerate(row)]
            off = [_size(c - r) * half**i for i, (c, r) in enumerate(zip(exact, row, strict=True))]
            remainder = last * half ** (_DEGREE + 1)
            rounding = gamma(2 * _DEGREE + 2) * sum(sizes)
            errors.append(_up(remainder + sum(off) + rounding))
            steep = (_DEGREE + 1) / half  # a derivative of degree i gains a factor i / half
            # A term of degree i comes about in i ways, of fewer than 2 n + 2 roundings each.
            rounding = gamma(3 * _DEGREE + 2) * sum(i * s / half for i, s in enumerate(sizes))
            slope_errors.append(_up((remainder + sum(off)) * steep + rounding))
            rows.append(row)
    finally:
        ctx.prec, ctx.cap = precision, cap
    columns = [list(column) for column in zip(*rows, strict=True)]
    as_tensor = [torch.tensor(t, dtype=torch.float64) for t in (columns, errors, slope_errors)]
    return Table(*as_tensor)


def one_by_one(f: Callable[[Ball], Ball], z: Tensor) -> Enclosure:
    """Values from Arb, one call each: for functions that are rare."""
    import flint

    ctx, precision = flint.ctx, flint.ctx.prec
    low, high = [], []
    try:
        ctx.prec = 80
        for number in z.flatten().tolist():
            y = f(flint.arb(number)) if number == number else flint.arb.nan()
            low.append(float(y.lower()) if y.is_finite() else -torch.inf)
            high.append(float(y.upper()) if y.is_finite() else torch.inf)
    finally:
        ctx.prec = precision
    lower, upper = (torch.tensor(t, dtype=torch.float64).view_as(z) for t in (low, high))
    # float() rounds to nearest, and to infinity what is too large.
    return Enclosure(below(lower.clamp(max=HUGE)), above(upper.clamp(min=-HUGE)))


def _size(ball: Ball) -> float:
    """An upper bound of |ball|."""
    return _up(float(ball.abs_upper()))


def _up(x: float) -> float:
    return x * (1 + 16 * UNIT) + 2.0**-1000


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch on which f bends one way: up (convex), down (concave), or is straight.

    A gap is a short stretch around an inflection point, where it may do anything.
    """

    start: float
    end: float
    bend: str  # "up", "down", "straight" or "gap"


@dataclass(frozen=True, slots=True)
class Curve:
    """A function with proven values.

    Where a kink is the end of a piece that bends, the slope there is that piece's own.
    """

    value: Callable[[Tensor], Enclosure]
    slope: Callable[[Tensor], Enclosure]
    pieces: tuple[Stretch, ...]
    start: float = -inf  # left of it tangents are too steep to be of use
    tangent: Callable[[Tensor], tuple[Enclosure, Enclosure]] | None = None  # both at less cost

    def both(self, z: Tensor) -> tuple[Enclosure, Enclosure]:
        """Values and slopes."""
        return self.tangent(z) if self.tangent is not None else (self.value(z), self.slope(z))
