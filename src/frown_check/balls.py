"""Rigorous arithmetic on arrays: a float64 midpoint and a float64 radius per number.

Proved: every function returns balls that contain the exact real result for all real numbers
in the balls it is given, if none of the floats returned is infinite or NaN. (If one is, nothing
is claimed, and the replay refuses it.)

Trusted: IEEE 754 double precision, rounding to nearest, with subnormal numbers (tested by
`require_ieee`), and that numpy's sums and matrix products add up all the products, in any order,
with or without fused multiply-add. Then a sum of n products is wrong by at most
g_n sum |x_i y_i| + n 2^-1074 with g_n = n u / (1 - n u), u = 2^-53 (Higham 2002, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from frown_check.errors import Refused

Array = NDArray[np.float64]
Index = NDArray[np.int64]

U = 2.0**-53
# More than any underflow loses, yet so large that its products with weights are no subnormals,
# which would be slow.
ETA = 2.0**-960
LONGEST_SUM = 2**24
PRECISION = 160  # bits of Arb's numbers
TERMS = 10  # of Arb's series


def rounding(n: int) -> float:
    """More than g_n, for n <= 2^24: the relative error of a result after n roundings."""
    if n > LONGEST_SUM:
        raise Refused(f"a sum of {n} terms is longer than the checker's error bound allows")
    return (n + 4) * 2 * U


def up(x: Array, n: int) -> Array:
    """An upper bound of a sum of nonnegative terms that was computed as x, with no more than n
    roundings on the way of any term into it.

    exact <= (x + n 2^-1074) / (1 - g_n) <= x (1 + 2 n u) + 2 n 2^-1074 for n <= 2^24.
    """
    result: Array = x * (1.0 + 2 * rounding(n)) + (n + 4) * ETA
    return result


def down(x: Array) -> Array:
    """A number below what x was before its last operation was rounded; NaN where x overflowed,
    since a sum that passed infinity on its way says nothing."""
    lower: Array = np.where(x == np.inf, np.nan, np.nextafter(x, -np.inf))
    return lower


def above(x: Array) -> Array:
    """A number above what x was before its last operation was rounded; NaN where x overflowed."""
    return -down(-x)


@dataclass(frozen=True, slots=True)
class Ball:
    """Numbers within `rad` of `mid`; rad None: exactly mid."""

    mid: Array
    rad: Array | None = None

    @property
    def radius(self) -> Array:
        return np.zeros_like(self.mid) if self.rad is None else self.rad

    @property
    def reach(self) -> Array:
        """Not below the absolute value of any number in the ball, but for one rounding."""
        size = np.abs(self.mid)
        return size if self.rad is None else size + self.rad

    def map(self, move: Any) -> Ball:
        """A ball of rearranged entries: `move` only selects, repeats or reshapes."""
        return Ball(move(self.mid), None if self.rad is None else move(self.rad))

    def ends(self) -> tuple[Array, Array]:
        if self.rad is None:
            return self.mid, self.mid
        return down(self.mid - self.rad), above(self.mid + self.rad)


def between(low: Array, high: Array) -> Ball:
    """The ball around [low, high]."""
    mid = low / 2 + high / 2
    return Ball(mid, up(np.maximum(high - mid, mid - low), 2))


def add(x: Ball, y: Ball) -> Ball:
    mid = x.mid + y.mid
    return Ball(mid, up(x.radius + y.radius + 2 * U * np.abs(mid), 4))


def multiply(x: Ball, y: Ball) -> Ball:
    mid = x.mid * y.mid
    rad = 2 * U * np.abs(mid)
    if x.rad is not None:
        rad = rad + x.rad * y.reach
    if y.rad is not None:
        rad = rad + np.abs(x.mid) * y.rad
    return Ball(mid, up(rad, 6))


def matmul(x: Ball, w: Ball) -> Ball:
    """x @ w. The term ETA stands in for what the small products rounding * |x| lose."""
    n = w.mid.shape[-2]
    mid = x.mid @ w.mid
    spread = rounding(n) * np.abs(x.mid) + ETA
    if x.rad is not None:
        spread += x.rad
    rad = spread @ np.abs(w.mid)
    if w.rad is not None:
        rad += x.reach @ w.rad
    return Ball(mid, up(rad, n + 6))


def horner(coef: Array, t: Array) -> Array:
    """sum_i coef_i t^i in plain floats: whoever calls it accounts for two roundings per term."""
    value: Array = coef[-1]
    for c in coef[-2::-1]:
        value = value * t + c
    return value


def total(x: Ball, n: int) -> Ball:
    """Sums over all axes but the first, of n terms each."""
    axes = tuple(range(1, x.mid.ndim))
    rad = rounding(n) * np.abs(x.mid)
    if x.rad is not None:
        rad += x.rad
    return Ball(x.mid.sum(axes), up(rad.sum(axes), n + 4))


def precise() -> None:
    """Set Arb's working precision, and how many terms of a series it keeps."""
    ctx.prec, ctx.cap = PRECISION, TERMS


def enclosed(values: list[arb], shape: tuple[int, ...]) -> Ball:
    """Arb's enclosures as balls."""
    mids = [float(v.mid()) for v in values]
    rads = [float((v - m).abs_upper()) for v, m in zip(values, mids)]
    mid, rad = np.array(mids, dtype=np.float64), np.array(rads, dtype=np.float64)
    return Ball(mid.reshape(shape), up(rad, 1).reshape(shape))


def require_ieee() -> None:
    """Refuse to work where subnormal numbers are flushed to zero, or floats are not rounded to
    nearest, in this thread or in those of numpy's matrix products."""
    small = np.full((2, 2), 2**44, dtype=np.int64).view(np.float64)  # 2^(44 - 1074)
    half = np.full((2, 2), 0.5)
    # Compared as bits: a processor that takes subnormal numbers for 0 finds all of them equal.
    results = (small * half, (small @ half) * half, (small + small) * 0.25, small - small * half)
    kept = all((r.view(np.int64) == 2**43).all() for r in results)
    # U is half a step beyond 1 and 1 + 2 U, whose even neighbours are 1 and 1 + 4 U.
    nearest = True
    for start, end in ((1.0, 1.0), (1.0 + 2 * U, 1.0 + 4 * U)):
        terms = np.zeros((128, 128))  # large enough for several threads
        terms[:, 0], terms[:, 1] = start, U
        sums = terms.sum(1), terms @ np.ones((128, 128)), -(-terms[:, 0] - U)
        nearest = nearest and start + U == end and all((s == end).all() for s in sums)
    if not (kept and nearest):
        raise Refused("this process does not compute with IEEE 754 double precision")
