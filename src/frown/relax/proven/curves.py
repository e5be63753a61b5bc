"""Smooth functions as proofs need them: enclosed values and slopes, and where they bend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from frown.relax import (
    Arctan,
    Elementwise,
    Elu,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    HardSwish,
    Log,
    Power,
    Sigmoid,
    Silu,
    Softplus,
    Tanh,
)
from frown.relax.proven.powers import log_curve, power_curve
from frown.relax.proven.rounding import UNIT, above, below
from frown.relax.proven.taylor import REACH, Curve, Enclosure, Stretch, Table, around, tabulate

Series = Any  # flint.arb_series, which has no types


class NoProof(Exception):
    """An operator has no proven lines; the message names it."""


def curve_of(op: Elementwise) -> Curve | None:
    """The proven form of an activation, or None where there is none."""
    maker = _MAKERS.get(type(op))
    return maker(op) if maker else None


# -- from tables: inside Arb's polynomials, beyond them simple limits -------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Tabulated:
    """Values and slopes inside the table, and their known limits left and right of it.

    Beyond the table nothing is known of values, and of slopes their limits.
    """

    table: Table
    left: Callable[[Tensor], Enclosure]
    right: Callable[[Tensor], Enclosure]
    steep_left: tuple[float, float]
    steep_right: tuple[float, float]

    def value(self, z: Tensor) -> Enclosure:
        return _beyond(z, self.table.value(z), self.left, self.right)

    def slope(self, z: Tensor) -> Enclosure:
        return self.both(z)[1]

    def both(self, z: Tensor) -> tuple[Enclosure, Enclosure]:
        value, slope = self.table.both(z)
        limits = _constant(*self.steep_left), _constant(*self.steep_right)
        return _beyond(z, value, self.left, self.right), _beyond(z, slope, *limits)

    def curve(self, pieces: tuple[Stretch, ...]) -> Curve:
        return Curve(self.value, self.slope, pieces, tangent=self.both)


def _beyond(
    z: Tensor,
    found: Enclosure,
    left: Callable[[Tensor], Enclosure],
    right: Callable[[Tensor], Enclosure],
) -> Enclosure:
    """The table's enclosure inside it, and the given ones left and right of it."""
    if not bool((z.abs() > REACH).any()):
        return found
    found = left(z).where(z < -REACH, found)
    return right(z).where(z > REACH, found)


def _constant(low: float, high: float) -> Callable[[Tensor], Enclosure]:
    def tail(z: Tensor) -> Enclosure:
        return Enclosure(torch.full_like(z, low), torch.full_like(z, high))

    return tail


_FAINT = 5e-18  # more than e^-REACH
_S_SHAPED = (Stretch(-inf, 0.0, "up"), Stretch(0.0, inf, "down"))
_CONVEX = (Stretch(-inf, inf, "up"),)


@lru_cache(maxsize=16)
def _table(name: str) -> Table:
    return tabulate(_SERIES[name])


def _gelu(s: Series) -> Series:
    import flint

    return s * (1 + (s / flint.arb(2).sqrt()).erf()) / 2


def _gelu_tanh(s: Series) -> Series:
    import flint

    # Not sharper than doubles are: a file may hold these constants rounded to double precision.
    root = (flint.arb(2) / flint.arb.pi()).sqrt() * flint.arb(1, 4 * UNIT)
    return _gated(s, root, root * flint.arb("0.044715"))


def _gated(s: Series, linear: Any, cubic: Any) -> Series:
    """z sigmoid(2 y), by the exponential that stays small: wide balls of large ones reach 0."""
    twice = 2 * (linear * s + cubic * s * s * s)
    if s[0].mid() > 0:
        return s / (1 + (-twice).exp())
    small = twice.exp()
    return s * small / (1 + small)


_SERIES: dict[str, Callable[[Series], Series]] = {
    "sigmoid": lambda s: 1 / (1 + (-s).exp()),
    "tanh": lambda s: 2 / (1 + (-2 * s).exp()) - 1,
    "arctan": lambda s: s.atan(),
    "softplus": lambda s: (1 + s.exp()).log(),
    "exp": lambda s: s.exp(),
    "silu": lambda s: s / (1 + (-s).exp()),
    "erf": lambda s: s.erf(),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


_BELOW_1 = 1 - 2 * UNIT


def _levelled(name: str, left: tuple[float, float]) -> Callable[[Elementwise], Curve]:
    """Sigmoid, tanh and erf: beyond the table nearly level, next to 1 on the right."""

    def make(op: Elementwise) -> Curve:
        tails = _constant(*left), _constant(_BELOW_1, 1.0)
        return _Tabulated(_table(name), *tails, (0.0, _FAINT), (0.0, _FAINT)).curve(_S_SHAPED)

    return make


def _arctan(op: Elementwise) -> Curve:
    """The slope is 1 / (1 + z^2). Beyond the table, for z > 0, arctan z = pi/2 - arctan(1/z)."""
    table = _table("arctan")
    half_pi = 1.5707963267948966  # below pi/2, by less than its last place

    def right(z: Tensor) -> Enclosure:
        rest = table.value(1 / z)
        slack = 8 * UNIT
        return Enclosure(below(half_pi - rest.upper, slack), above(half_pi - rest.lower, slack))

    def left(z: Tensor) -> Enclosure:
        mirror = right(-z)
        return Enclosure(-mirror.upper, -mirror.lower)

    def slope(z: Tensor) -> Enclosure:
        y = 1 / (1 + z * z)
        return Enclosure(below(y), above(y))

    def value(z: Tensor) -> Enclosure:
        return _beyond(z, table.value(z), left, right)

    return Curve(value, slope, _S_SHAPED)


def _softplus(op: Elementwise) -> Curve:
    def right(z: Tensor) -> Enclosure:
        return Enclosure(z, above(z, _FAINT))

    steep = (0.0, _FAINT), (_BELOW_1, 1.0)
    return _Tabulated(_table("softplus"), _constant(0.0, _FAINT), right, *steep).curve(_CONVEX)


def exp_value(z: Tensor) -> Enclosure:
    """Beyond the table e^z = (e^(z/16))^16; where even that is too far, unknown."""
    table = _table("exp")
    found = table.value(z)
    if not bool((z.abs() > REACH).any()):
        return found
    found = _constant(0.0, _FAINT)(z).where(z < -REACH, found)
    root = table.value(z / 16)  # z / 16 is exact
    low, high = root.lower, root.upper
    for _ in range(4):
        low, high = below(low * low), above(high * high)
    far = Enclosure(low, torch.where(z <= 16 * REACH, high, inf))
    far = Enclosure(torch.where(z <= 16 * REACH, far.lower, 0.0), far.upper)
    return far.where(z > REACH, found)


def _exp(op: Elementwise) -> Curve:
    def both(z: Tensor) -> tuple[Enclosure, Enclosure]:
        value = exp_value(z)
        return value, value

    return Curve(exp_value, exp_value, _CONVEX, tangent=both)


def _elu(op: Elementwise) -> Curve:
    """scale z above 0, scale alpha (e^z - 1) below, both with rounded constants."""
    assert isinstance(op, Elu)
    scale, bend = op.scale, op.scale * op.alpha

    def value(z: Tensor) -> Enclosure:
        e = exp_value(z.clamp(max=0))
        low, high = below((e.lower - 1) * bend), above((e.upper - 1) * bend)
        if bend < 0:
            low, high = below((e.upper - 1) * bend), above((e.lower - 1) * bend)
        slack = 4 * UNIT * abs(bend)
        line = z * scale
        left = Enclosure(below(low, slack), above(high, slack))
        return Enclosure(below(line), above(line)).where(z >= 0, left)

    def slope(z: Tensor) -> Enclosure:
        e = exp_value(z.clamp(max=0))
        ends = (e.lower * bend, e.upper * bend)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        left = Enclosure(below(low), above(high))
        right = torch.full_like(z, scale)
        return Enclosure(below(right), above(right)).where(z > 0, left)

    way = "up" if bend >= 0 else "down"
    return Curve(value, slope, (Stretch(-inf, 0.0, way), Stretch(0.0, inf, "straight")))


def _hump(name: str, inflection: tuple[float, float]) -> Callable[[Elementwise], Curve]:
    return lambda op: _humped(_table(name), inflection)


def _gelu_tanh_curve(op: Elementwise) -> Curve:
    assert isinstance(op, GeluTanh)
    if op.standard:
        return _hump("gelu_tanh", _INFLECTION)(op)
    return _written_out(op.linear, op.cubic)


_INFLECTION = (1.4185040087, 1.4185040088)  # of the tanh form, with its own constants
_NEAR = 2.0**-19  # how far those of a file may be from them, relatively


@lru_cache(maxsize=16)
def _written_out(linear: float, cubic: float) -> Curve:
    """The tanh form with a file's constants, which are known to a few ulps.

    For all constants so near to the standard ones f'' changes its sign but once on z > 0, and falls
    on the way (tests prove it with Arb), so signs at two points place the inflection point.
    """
    import flint

    precision = flint.ctx.prec
    try:
        flint.ctx.prec = 128
        root = (flint.arb(2) / flint.arb.pi()).sqrt()
        standard = (root, root * flint.arb("0.044715"))
        near = flint.arb(1, _NEAR)
        balls = [flint.arb(c) * flint.arb(1, 64 * UNIT) for c in (linear, cubic)]
        if not all((s * near).contains(b) for s, b in zip(standard, balls, strict=True)):
            raise NoProof(f"a GELU with the constants {linear} and {cubic}")

        def f(s: Series) -> Series:
            return _gated(s, *balls)

        def second(z: float) -> Any:
            return f(flint.arb_series([flint.arb(z), 1], 3))[2]

        low, high = SIGN_CHANGE
        for _ in range(40):
            middle = (low + high) / 2
            sign = second(middle)
            if sign > 0:
                low = middle
            elif sign < 0:
                high = middle
            else:
                break
        assert second(low) > 0 and second(high) < 0
        return _humped(tabulate(f), (low, high))
    finally:
        flint.ctx.prec = precision


SIGN_CHANGE = (1.4184, 1.4186)  # here f'' falls through 0, for all constants near the usual ones


def _humped(table: Table, inflection: tuple[float, float]) -> Curve:
    """z times a sigmoid: concave, convex around 0, concave."""
    low, high = inflection
    pieces = (
        Stretch(-inf, -high, "down"),
        Stretch(-high, -low, "gap"),
        Stretch(-low, low, "up"),
        Stretch(low, high, "gap"),
        Stretch(high, inf, "down"),
    )

    def left(z: Tensor) -> Enclosure:
        # |z| e^-|z| decreases beyond 1.
        return Enclosure(torch.full_like(z, -41 * _FAINT), torch.zeros_like(z))

    def right(z: Tensor) -> Enclosure:
        return Enclosure(below(z, 41 * _FAINT), z)

    faint = 64 * _FAINT
    steep = (-faint, faint), (1 - 4 * UNIT, 1 + 4 * UNIT)
    return _Tabulated(table, left, right, *steep).curve(pieces)


def _hard_swish(op: Elementwise) -> Curve:
    """z (z + 3) / 6 on [-3, 3], 0 and z beside it."""

    def value(z: Tensor) -> Enclosure:
        inner = z.clamp(-3, 3)
        parabola = around(inner * (inner + 3) / 6)  # at -3 exactly 0
        return Enclosure(z, z).where(z >= 3, parabola)

    def slope(z: Tensor) -> Enclosure:
        # 2 z is exact, and 2 z + 3 may cancel.
        return around((2 * z.clamp(-3, 3) + 3) / 6)

    pieces = (
        Stretch(-inf, -3.0, "straight"),
        Stretch(-3.0, 3.0, "up"),
        Stretch(3.0, inf, "straight"),
    )
    return Curve(value, slope, pieces)


_MAKERS: dict[type[Elementwise], Callable[[Elementwise], Curve]] = {
    Sigmoid: _levelled("sigmoid", (0.0, _FAINT)),
    Tanh: _levelled("tanh", (-1.0, -_BELOW_1)),
    Erf: _levelled("erf", (-1.0, -_BELOW_1)),
    Arctan: _arctan,
    Softplus: _softplus,
    Exp: _exp,
    Elu: _elu,
    HardSwish: _hard_swish,
    Log: log_curve,
    Power: power_curve,
    # Inflection points: f''(z) = 0 between the two numbers, which tests prove with Arb.
    Silu: _hump("silu", (2.39935728051, 2.39935728052)),
    Gelu: _hump("gelu", (1.414213562373, 1.414213562374)),
    GeluTanh: _gelu_tanh_curve,
}
