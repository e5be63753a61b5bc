"""The logarithm and powers with proof.

A logarithm is that of the mantissa, from a table, and a multiple of log 2. Powers with whole or
half exponents take products, roots and quotients, which IEEE arithmetic rounds correctly; Arb has
the others.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf

import torch
from torch import Tensor

from frown.relax import Elementwise, Power
from frown.relax.proven.rounding import TINY, UNIT, above, below
from frown.relax.proven.taylor import (
    HUGE,
    Curve,
    Enclosure,
    Stretch,
    Table,
    around,
    one_by_one,
    tabulate,
)

_LOG_2 = 0.6931471805599453  # to half its last place
_ROOT_HALF = 0.70703125  # the mantissas' range is [this, twice this)
_SCALE = 64.0  # the table's argument is that many times the mantissa less 1
_LARGEST = 256  # exponents up to this take products


# -- the logarithm ----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _mantissas() -> Table:
    return tabulate(lambda s: (1 + s / _SCALE).log())


def log_value(z: Tensor) -> Enclosure:
    """log z for z > 0; anything elsewhere."""
    mantissa, exponent = torch.frexp(z)
    low = mantissa < _ROOT_HALF
    mantissa = torch.where(low, 2 * mantissa, mantissa)
    whole = exponent.to(z.dtype) - low.to(z.dtype)
    # mantissa - 1 is exact: mantissas are between 1/2 and 2.
    fraction = _mantissas().value((mantissa - 1) * _SCALE)
    multiple = whole * _LOG_2
    slack = multiple.abs() * (4 * UNIT)
    return Enclosure(
        below(multiple + fraction.lower, slack), above(multiple + fraction.upper, slack)
    )


def log_curve(op: Elementwise) -> Curve:
    return Curve(log_value, lambda z: around(1 / z), (Stretch(0.0, inf, "down"),), start=1e-307)


# -- powers -----------------------------------------------------------------------------------


def power_curve(op: Elementwise) -> Curve:
    assert isinstance(op, Power)
    p = op.exponent
    products = 2 * p == int(2 * p) and abs(p) <= _LARGEST
    falling = p < 0

    def value(z: Tensor) -> Enclosure:
        found = _size(z.abs(), p) if products else _arb(z.abs(), p)
        return _mirrored(found, z < 0) if op.odd else found

    def slope(z: Tensor) -> Enclosure:
        if products:
            found = _product(_constant(z, abs(p)), _size(z.abs(), p - 1))
        else:
            found = _rate(z.abs(), p)
        down = torch.full_like(z, falling, dtype=torch.bool)
        return _mirrored(found, down ^ (z < 0) if op.whole and not op.odd else down)

    return Curve(value, slope, _pieces(op), start=1e-307 if 0 < p < 1 else -inf)


def _pieces(op: Power) -> tuple[Stretch, ...]:
    """z^p for z > 0 is concave for p between 0 and 1, else convex; below 0 mirrored by parity."""
    right = Stretch(0.0, inf, "down" if 0 < op.exponent < 1 else "up")
    if not op.whole:
        return (right,)
    if op.exponent > 0 and not op.odd:
        return (Stretch(-inf, inf, "up"),)
    return (Stretch(-inf, 0.0, "down" if op.odd else "up"), right)


def _size(z: Tensor, p: float) -> Enclosure:
    """z^p for z >= 0 and whole 2 p."""
    if p < 0:
        return _inverse(_size(z, -p))
    found = _whole(z, int(p))
    return found if p == int(p) else _product(_root(z), found)


def _whole(z: Tensor, n: int) -> Enclosure:
    """z^n by squarings. Roundings add up to those of n - 1 products; what underflow loses is not
    made larger, since then all factors are below 1."""
    power, square, left = torch.ones_like(z), z, n
    while left:
        if left % 2:
            power = power * square
        left //= 2
        if left:
            square = square * square
    found = around(power, 2 * n + 8)
    return Enclosure(found.lower.clamp(min=0), found.upper)


def _root(z: Tensor) -> Enclosure:
    """sqrt z; whoever takes subnormal numbers for 0 is off by no more than 2^-511."""
    found = around(z.sqrt())
    small = z < TINY
    return Enclosure(
        torch.where(small, 0.0, found.lower), torch.where(small, 2.0**-510, found.upper)
    )


def _product(x: Enclosure, y: Enclosure) -> Enclosure:
    """x y, both >= 0 and above 0 at the upper end."""
    low = below((x.lower * y.lower).clamp(max=HUGE)).clamp(min=0)
    return Enclosure(low, above(x.upper * y.upper))


def _inverse(x: Enclosure) -> Enclosure:
    """1 / x for x >= 0."""
    high = torch.where(x.lower > 0, above(1 / x.lower), inf)
    return Enclosure(below((1 / x.upper).clamp(max=HUGE)).clamp(min=0), high)


def _arb(z: Tensor, p: float) -> Enclosure:
    """z^p for z >= 0 from Arb."""
    import flint

    exponent = flint.arb(p)
    found = one_by_one(lambda c: c**exponent if c > 0 or p < 0 else flint.arb(0), z)
    return Enclosure(found.lower.clamp(min=0), found.upper)


def _rate(z: Tensor, p: float) -> Enclosure:
    """|p| z^(p - 1) = |p| z^p / z, as p - 1 may be no number of this precision."""
    found = _product(_constant(z, abs(p)), _product(_arb(z, p), _inverse(around(z))))
    if p > 1:
        return Enclosure(found.lower, torch.where(z == 0, 0.0, found.upper))
    return found


def _constant(z: Tensor, number: float) -> Enclosure:
    return Enclosure(torch.full_like(z, number), torch.full_like(z, number))


def _mirrored(x: Enclosure, mask: Tensor) -> Enclosure:
    """-x where the mask says so."""
    return Enclosure(-x.upper, -x.lower).where(mask, x)
