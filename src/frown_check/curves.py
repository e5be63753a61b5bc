"""Smooth functions with proved values: f and f' at floats, enclosed.

Proved: `enclose(z)` returns balls that contain f(z) and f'(z). The values come from Arb, which
encloses every function it evaluates, in one of two ways: point by point, or from a table of
Taylor polynomials. A table has nodes c = k / 64. With a_i = f^(i)(c) / i! and a number r that
|f^(8)| / 8! does not exceed on |z - c| <= h = 1/128, Taylor's theorem says for t = z - c

    |f(z) - sum_{i<8} a_i t^i| <= r h^8,      |f'(z) - sum_{0<i<8} i a_i t^(i-1)| <= 8 r h^7.

`touch` guesses where f' equals a slope. Nothing depends on the guess but how tight a line is
(`guesses`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from flint import arb, arb_series

import frown_check.guesses as guesses
from frown_check.balls import ETA, Array, Ball, enclosed, horner, precise, rounding, up
from frown_check.errors import Refused

Expression = Callable[[Any], Any]  # of an arb or an arb_series

DEGREE = 7
NODES = 64 * 32  # on either side of 0
STEP = 1.0 / 64


class Curve(Protocol):
    """A function that is convex or concave on the pieces where it is used."""

    def enclose(self, z: Array) -> tuple[Ball, Ball]:
        """f(z) and f'(z)."""

    def touch(self, slope: Array, low: Array, high: Array, bend: int) -> Array:
        """Roughly where f' = slope in [low, high], on which f is convex (bend 1) or concave."""


class Straight:
    """a z + b, with a number a or one for each entry of z."""

    def __init__(self, slope: float | Array, offset: float = 0.0) -> None:
        self.slope, self.offset = slope, offset

    def enclose(self, z: Array) -> tuple[Ball, Ball]:
        mid = self.slope * z + self.offset
        size = np.abs(self.slope) * np.abs(z) + abs(self.offset)
        return Ball(mid, up(rounding(2) * size, 6)), Ball(np.zeros_like(z) + self.slope)

    def touch(self, slope: Array, low: Array, high: Array, bend: int) -> Array:
        return low


class Pointwise:
    """Any expression, one Arb evaluation per point."""

    def __init__(self, expression: Expression, touch: Callable[[Array], Array]) -> None:
        self.expression, self.guess = expression, touch

    def enclose(self, z: Array) -> tuple[Ball, Ball]:
        precise()
        values, slopes = [], []
        for x in z.ravel().tolist():
            try:
                series = self.expression(arb_series([arb(x), 1], 2))
            except (ValueError, ZeroDivisionError):  # as of e^x beyond what Arb can hold
                raise Refused(f"a function has no enclosure at {x:.6g}") from None
            values.append(series[0])
            slopes.append(series[1])
        return enclosed(values, z.shape), enclosed(slopes, z.shape)

    def touch(self, slope: Array, low: Array, high: Array, bend: int) -> Array:
        with np.errstate(all="ignore"):
            return self.guess(slope)


class Tabulated:
    """An expression with a table on [-32, 32]; point by point beyond. Where it goes on bending
    there, `steep` is about its derivative, for guesses."""

    def __init__(
        self, expression: Expression, steep: Callable[[Array], Array] | None = None
    ) -> None:
        self.beyond, self.steep = Pointwise(expression, np.zeros_like), steep
        precise()
        rows, rests = [], []
        for k in range(-NODES, NODES + 1):
            centre = arb(k) / 64
            series = expression(arb_series([centre, 1], DEGREE + 1))
            cell = expression(arb_series([centre + arb(0, STEP / 2), 1], DEGREE + 2))
            rows.append([series[i] for i in range(DEGREE + 1)])
            if cell.prec < DEGREE + 2:
                raise Refused("Arb does not keep as many terms of a series as are needed")
            rests.append(cell[DEGREE + 1].abs_upper())
        shape = (2 * NODES + 1, DEGREE + 1)
        table = enclosed([a for row in rows for a in row], shape)
        rest = enclosed(rests, shape[:1]).ends()[1]
        counts = np.arange(1, DEGREE + 1)[:, None]
        self.coef = np.ascontiguousarray(table.mid.T)  # (degree + 1, nodes)
        self.slope_coef = counts * self.coef[1:]
        # Horner's scheme: no more than 2 * 8 roundings of any term, all bounded by |a_i| h^i.
        half = STEP / 2
        size = rounding(2 * DEGREE + 2) * np.abs(self.coef) + table.radius.T
        powers = half ** np.arange(DEGREE + 1)[:, None]
        self.error = up((size * powers).sum(0) + rest * half ** (DEGREE + 1), 2 * DEGREE + 8)
        slopes = (size[1:] * counts * powers[:-1]).sum(0) + (DEGREE + 1) * rest * half**DEGREE
        self.slope_error = up(slopes, 2 * DEGREE + 8)

    def enclose(self, z: Array) -> tuple[Ball, Ball]:
        node = np.rint(z / STEP)
        inside = np.abs(node) <= NODES
        place = np.where(inside, node, 0.0).astype(np.int64) + NODES
        t = np.where(inside, z - node * STEP, 0.0)  # exact: z is near the node, or the node is 0
        f = Ball(horner(self.coef[:, place], t), self.error[place])
        d = Ball(horner(self.slope_coef[:, place], t), self.slope_error[place])
        if not inside.all():
            outside = ~inside
            for known, exact in zip((f, d), self.beyond.enclose(z[outside])):
                known.mid[outside], known.radius[outside] = exact.mid, exact.radius
        return f, d

    def touch(self, slope: Array, low: Array, high: Array, bend: int) -> Array:
        found = guesses.touch_table(self.slope_coef, STEP, slope, low, high, bend)
        far = np.maximum(np.abs(low), np.abs(high)) > NODES * STEP
        if self.steep is None or not far.any():
            return found
        return np.where(far, guesses.touch_halving(self.steep, slope, low, high, bend), found)


class Power:
    """z^n for an integer n other than 0, with n - 1 or n roundings."""

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent

    def enclose(self, z: Array) -> tuple[Ball, Ball]:
        n = self.exponent
        slope = self._raise(z, n - 1)
        # The radius of `_raise` has room for the rounding of this product.
        return self._raise(z, n), Ball(n * slope.mid, up(abs(n) * slope.radius, 2))

    @staticmethod
    def _raise(z: Array, n: int) -> Ball:
        value = np.ones_like(z)
        with np.errstate(all="ignore"):
            for _ in range(abs(n)):
                value = value * z
            if n < 0:
                # A power so small that it may have lost digits has no reciprocal here.
                value = np.where(np.abs(value) > ETA, 1.0 / value, np.nan)
            return Ball(value, up(rounding(abs(n) + 2) * np.abs(value), abs(n) + 4))

    def touch(self, slope: Array, low: Array, high: Array, bend: int) -> Array:
        return guesses.touch_power(self.exponent, slope, low, high, bend)


TABLES: dict[tuple[object, ...], Tabulated] = {}
MOST_TABLES = 256  # that are kept, of half a megabyte each


def tabulated(name: str, *parameters: arb | float) -> Tabulated:
    """The table of a named expression, made once unless there are many."""
    exact = [part.man_exp() for p in parameters for part in (arb(p).mid(), arb(p).rad())]
    key = (name, *(int(n) for pair in exact for n in pair))
    if key not in TABLES:
        if len(TABLES) >= MOST_TABLES:
            TABLES.clear()
        TABLES[key] = Tabulated(EXPRESSIONS[name](*parameters), STEEP.get(name))
    return TABLES[key]


STEEP: dict[str, Callable[[Array], Array]] = {"sin": np.cos, "cos": lambda z: -np.sin(z)}
EXPRESSIONS: dict[str, Callable[..., Expression]] = {
    "sigmoid": lambda: lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda: lambda x: 1 - 2 / (1 + (2 * x).exp()),
    "atan": lambda: lambda x: x.atan(),
    "softplus": lambda: lambda x: (1 + x.exp()).log(),
    "exp": lambda: lambda x: x.exp(),
    "sin": lambda: lambda x: x.sin(),
    "cos": lambda: lambda x: x.cos(),
    # c (e^x - 1)
    "elu": lambda a, b: lambda x: (x.exp() - 1) * (arb(a) * arb(b)),
    "hard swish": lambda: lambda x: x * (x + 3) / 6,
    # x (1 + erf(b x)) / 2
    "gelu": lambda b: lambda x: x * (x * (-b)).erfc() / 2,
    # x (1 + tanh(b x + c x^3)) / 2
    "gated": lambda b, c: lambda x: x / (1 + (x * (-2) * (b + c * x * x)).exp()),
}
