"""The nonlinear functions, cut into pieces on which each is convex, concave or straight.

Proved by calculus, piece by piece (the tests check the signs of f'' with Arb as well):

- sigmoid, tanh, arctan: convex up to 0, concave from 0 on; softplus and exp: convex; log: concave.
- x (1 + erf(b x)) / 2: f'' is a positive multiple of 1 - b^2 x^2, so f is convex just between
  -1/b and 1/b.
- x (1 + tanh y) / 2, y = b x + c x^3, b > 0, c >= 0 (SiLU is b = 1/2, c = 0): f is x / 2 plus an
  even function. For x > 0, f'' has the sign of (1 + 2 w) / (1 + w)^2 - b x tanh y,
  w = 3 c x^2 / b. The first term does not grow and the second grows without bound, so there is
  one inflection m > 0; f is convex just between -m and m.
- floor, ceil, round, sign: constant between jumps; of two pieces one may lack the jump's place.
- sin is concave on [2 k pi, (2 k + 1) pi] and convex on the pieces between; cos likewise.

An inflection that is no float is enclosed by two floats, between which nothing is assumed but
a bound of |f'| (a *gap*).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

import numpy as np
from flint import arb, arb_series, fmpq

from frown_check.balls import Array, precise
from frown_check.curves import (
    EXPRESSIONS,
    Curve,
    Expression,
    Pointwise,
    Power,
    Straight,
    tabulated,
)
from frown_check.errors import Refused, refuse_if

CONVEX, STRAIGHT, CONCAVE = 1, 0, -1
STEPS = 256  # jumps on either side of 0 that functions of steps are followed
WAVES = 64  # half periods on either side of 0 that sine and cosine are followed


@dataclass(frozen=True, slots=True)
class Piece:
    """f on [low, high]; bend None marks a gap: |f(z) - curve(x)| <= steep (high - low) there for
    any two places z, x in it."""

    low: float | Array
    high: float | Array
    bend: int | None
    curve: Curve
    steep: float = 0.0
    after: float = nan  # an interval that ends here has no point of the piece,
    before: float = nan  # nor one that starts here


@dataclass(frozen=True, slots=True)
class Function:
    """A function of one variable: pieces that cover its domain, one joined to the next."""

    kind: str
    pieces: tuple[Piece, ...]

    def holes(self, low: Array, high: Array) -> Array:
        """The intervals that the pieces do not cover, where the function is not defined."""
        covered = np.zeros(np.shape(low), dtype=bool)
        start, end = -inf, -inf
        for piece in self.pieces:
            first, last = float(np.min(piece.low)), float(np.max(piece.high))
            start = start if first <= end else first
            end = last
            covered |= (low >= start) & (high <= end)
        return ~covered


def straight(kind: str, *pieces: tuple[Any, ...]) -> Function:
    """A piecewise linear function: (low, high, slope, offset), and after and before."""
    every = (Piece(a, b, STRAIGHT, Straight(s, t), 0.0, *e) for a, b, s, t, *e in pieces)
    return Function(kind, (*every,))


def leaky(kind: str, slope: float | Array) -> Function:
    """z from 0 on, slope z below: of slope 0 ReLU, of slope -1 |z|."""
    return straight(kind, (-inf, 0.0, slope, 0.0), (0.0, inf, 1.0, 0.0))


def clip(kind: str, low: float, high: float, most: float = inf) -> Function:
    """Infinite limits are none: there, nothing is said of what is larger than `most`."""
    first, last = (end if isfinite(end) else way * most for end, way in ((low, -1), (high, 1)))
    pieces = [(first, last, 1.0, 0.0)]
    if isfinite(low):
        pieces.insert(0, (-inf, low, 0.0, low))
    if isfinite(high):
        pieces.append((high, inf, 0.0, high))
    return straight(kind, *pieces)


def s_shaped(kind: str, name: str) -> Function:
    curve = tabulated(name)
    return Function(kind, (Piece(-inf, 0.0, CONVEX, curve), Piece(0.0, inf, CONCAVE, curve)))


def convex(kind: str, name: str) -> Function:
    return Function(kind, (Piece(-inf, inf, CONVEX, tabulated(name)),))


def elu(alpha: float, gamma: float) -> Function:
    bend = int(np.sign(alpha) * np.sign(gamma))
    left = tabulated("elu", alpha, gamma) if bend else Straight(0.0)
    right = Piece(0.0, inf, STRAIGHT, Straight(gamma))
    return Function("Elu", (Piece(-inf, 0.0, bend, left), right))


def hard_swish() -> Function:
    middle = Piece(-3.0, 3.0, CONVEX, tabulated("hard swish"))
    left = Piece(-inf, -3.0, STRAIGHT, Straight(0.0))
    return Function("HardSwish", (left, middle, Piece(3.0, inf, STRAIGHT, Straight(1.0))))


def logarithm() -> Function:
    tiny = float(np.nextafter(0.0, 1.0))
    curve = Pointwise(lambda x: x.log(), lambda s: np.where(s > 0, 1 / s, np.inf))
    return Function("Log", (Piece(tiny, inf, CONCAVE, curve),))


def power(exponent: float) -> Function:
    if exponent == int(exponent):
        n = int(exponent)
        refuse_if(abs(n) > 64, f"a power of {n} is not supported by the checker")
        curve: Curve = Power(n)
        odd = CONCAVE if n % 2 else CONVEX
        edge = 0.0 if n > 0 else float(np.nextafter(0.0, 1.0))
        sides = (Piece(-inf, -edge, odd, curve), Piece(edge, inf, CONVEX, curve))
        return Function("Power", sides)
    precise()
    p = arb(exponent)
    bend = CONVEX if exponent > 1 or exponent < 0 else CONCAVE
    edge = float(np.nextafter(0.0, 1.0))
    nowhere = 0.0 if exponent > 1 else inf
    curve = Pointwise(
        lambda x: (x.log() * p).exp(),
        lambda s: np.where(s / exponent > 0, (s / exponent) ** (1 / (exponent - 1)), nowhere),
    )
    pieces: tuple[Piece, ...] = (Piece(edge, inf, bend, curve),)
    if exponent > 0:
        # Between 0 and the smallest float, 0 is wrong by f(edge) at the most.
        rise = float(((arb(edge).log() * p).exp() / arb(edge)).upper()) * 1.5
        pieces = (Piece(0.0, edge, None, Straight(0.0), rise), *pieces)
    return Function("Power", pieces)


def steps(kind: str, place: float, left: float) -> Function:
    """Steps of height 1 at whole distances from `place`, `left` before it."""
    after, before = (place if kind == name else nan for name in ("Ceil", "Floor"))
    ends = ((place + k, place + k + 1, after + k, before + k + 1) for k in range(-STEPS, STEPS))
    return straight(kind, *((p, q, 0.0, left + q - place, a, b) for p, q, a, b in ends))


def wave(kind: str, name: str, shift: int) -> Function:
    """sin (shift 0) or cos (shift 1): inflections at (k + shift / 2) pi."""
    precise()
    curve = tabulated(name)
    pieces: list[Piece] = []
    start = -inf
    for k in range(-WAVES, WAVES + 1):
        low, high = _floats((arb(k) + arb(shift) / 2) * arb.pi())
        if pieces or start > -inf:
            falling = (k - 1) % 2 == 0 if shift == 0 else k % 2 == 0
            pieces.append(Piece(start, low, CONCAVE if falling else CONVEX, curve))
        pieces.append(Piece(low, high, None, curve, 1.0))
        start = high
    return Function(kind, tuple(pieces))


def hump(kind: str, name: str, *parameters: arb) -> Function:
    """Concave, convex between -m and m, concave; m is found by bisection on f''."""
    precise()
    expression = EXPRESSIONS[name](*parameters)
    inner, outer = 0.0, 64.0
    if not (_second(expression, inner) > 0 and _second(expression, outer) < 0):
        raise Refused(f"{kind} with unusual constants is not supported by the checker")
    while (middle := inner + (outer - inner) / 2) not in (inner, outer):
        second = _second(expression, middle)
        if second > 0:
            inner = middle
        elif second < 0:
            outer = middle
        else:
            break
    curve = tabulated(name, *parameters)
    steep = 2.0  # |f'| < 2 near the inflections; checked:
    for sign in (1, -1):
        gap = arb(sign * inner).union(arb(sign * outer))
        if not abs(expression(arb_series([gap, 1], 2))[1]) < steep:
            raise Refused(f"{kind} with unusual constants is not supported by the checker")
    return Function(
        kind,
        (
            Piece(-inf, -outer, CONCAVE, curve),
            Piece(-outer, -inner, None, curve, steep),
            Piece(-inner, inner, CONVEX, curve),
            Piece(inner, outer, None, curve, steep),
            Piece(outer, inf, CONCAVE, curve),
        ),
    )


def silu() -> Function:
    return hump("Silu", "gated", arb(1) / 2, arb(0))


def gelu(steepness: fmpq | None = None) -> Function:
    """x (1 + erf(b x)) / 2; b = 1 / sqrt(2) unless a file writes out a number of its own."""
    precise()
    return hump("Gelu", "gelu", 1 / arb(2).sqrt() if steepness is None else arb(steepness))


def gelu_tanh(linear: fmpq | None = None, cubic: fmpq | None = None) -> Function:
    precise()
    if linear is not None and cubic is not None:
        return hump("GeluTanh", "gated", arb(linear), arb(cubic))
    root = (2 / arb.pi()).sqrt()
    return hump("GeluTanh", "gated", root, root * arb(fmpq(44715, 1000000)))


def _second(expression: Expression, x: float) -> arb:
    second: arb = expression(arb_series([arb(x), 1], 3))[2]
    return second


def _floats(x: arb) -> tuple[float, float]:
    """Floats below and above x."""
    low, high = float(x.lower()), float(x.upper())
    return float(np.nextafter(low, -inf)), float(np.nextafter(high, inf))


SIMPLE: dict[str, Callable[[], Function]] = {
    "Abs": lambda: leaky("Abs", -1.0),
    "Atan": lambda: s_shaped("Arctan", "atan"),
    "Ceil": lambda: steps("Ceil", 0.0, 0.0),
    "Cos": lambda: wave("Cos", "cos", 1),
    "Exp": lambda: convex("Exp", "exp"),
    "Floor": lambda: steps("Floor", 0.0, -1.0),
    "HardSwish": hard_swish,
    "Log": logarithm,
    "Reciprocal": lambda: power(-1.0),
    "Relu": lambda: leaky("Relu", 0.0),
    "Round": lambda: steps("Round", 0.5, 0.0),
    "Sigmoid": lambda: s_shaped("Sigmoid", "sigmoid"),
    "Sign": lambda: straight("Sign", (-inf, 0, 0, -1, nan, 0), (0, 0, 0, 0), (0, inf, 0, 1, 0)),
    "Sin": lambda: wave("Sin", "sin", 0),
    "Softplus": lambda: convex("Softplus", "softplus"),
    "Sqrt": lambda: power(0.5),
    "Tanh": lambda: s_shaped("Tanh", "tanh"),
}
