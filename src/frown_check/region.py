"""Where the input may move, and the least value of linear forms there.

region = { x : lower <= x <= upper, and for every ball b: ||((x - centre) / scale)_b||_p <= radius }

Proved: `minimum(w)` is not above the least value of w . x over the region. Any split w = a + b
proves

    w . x  >=  a . centre - radius sum_balls ||a scale||_q  +  sum_i min(b_i l_i, b_i u_i)

with 1/p + 1/q = 1 (Hölder) and the box [l, u] around the region. Without a valid range a = w is
exact; for p = inf, b = w is. With one, floats guess the a at which nothing is lost (`guesses`).
The same holds of any part of the region and a box around that part, be the centre in it or not:
that is how cases of a tree are bounded. A region may be a box alone, of any ends (`exact`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from flint import arb

import frown_check.guesses as guesses
from frown_check.balls import (
    Array,
    Ball,
    Index,
    above,
    add,
    down,
    enclosed,
    multiply,
    precise,
    total,
    up,
)

MOST_FEATURES = 2**24
CELLS = 4096  # of a table of powers


@dataclass(frozen=True)
class Region:
    """All arrays flat (n,); features of scale 0 or ball -1 are fixed. p is inf or >= 1."""

    p: float
    radius: float
    centre: Array
    scale: Array
    ball: Index
    lower: Array | None
    upper: Array | None
    exact: bool = False  # it is the box from lower to upper; the other fields are not used

    @cached_property
    def box(self) -> tuple[Array, Array]:
        """The smallest box around the region, rounded outwards."""
        if self.exact and self.lower is not None and self.upper is not None:
            return self.lower, self.upper
        reach = np.where(self.scale > 0, above(self.radius * self.scale), 0.0)
        low = np.where(reach > 0, down(self.centre - reach), self.centre)
        high = np.where(reach > 0, above(self.centre + reach), self.centre)
        if self.lower is not None and self.upper is not None:
            low, high = np.maximum(low, self.lower), np.minimum(high, self.upper)
        return low, high

    @property
    def balls(self) -> list[Index]:
        """The features of each ball, fixed ones left out."""
        moving = (self.ball >= 0) & (self.scale > 0)
        order = np.argsort(self.ball, kind="stable")
        order = order[moving[order]]
        cuts = np.flatnonzero(np.diff(self.ball[order])) + 1
        return [part for part in np.split(order, cuts) if len(part)]

    def minimum(self, w: Array, box: tuple[Array, Array] | None = None) -> Ball:
        """Rows w (R, n) to balls whose lower ends bound w . x below over the part of the region
        that lies in a box (n,), or (R, n) for rows with boxes of their own; None: all of it."""
        n = w.shape[1]
        low, high = self.box if box is None else box
        if self.p == np.inf or self.radius == 0:
            return total(least_products(Ball(w), low, high), n)
        held = w.copy()
        if self.lower is not None or box is not None:
            for ball in self.balls:
                part, centre = w[:, ball], self.centre[ball]
                towards = np.where(part > 0, centre - low[..., ball], high[..., ball] - centre)
                held[:, ball] = guesses.held(part, self.scale[ball], towards, self.radius, self.p)
        rest = add(Ball(w), Ball(-held))  # exactly 0 where held is w
        rest = Ball(rest.mid, np.where(held == w, 0.0, rest.radius))
        least = total(least_products(rest, low, high), n)
        least = add(least, total(multiply(Ball(held), Ball(self.centre)), n))
        for ball in self.balls:
            gains = multiply(Ball(held[:, ball]), Ball(self.scale[ball]))
            norm = self._dual_norm(above(gains.reach))
            reach = up(norm * self.radius, 1)
            least = add(least, Ball(-reach))
        return least

    def _dual_norm(self, gains: Array) -> Array:
        """Upper bounds of the rows' q-norms."""
        n = gains.shape[1]
        if self.p == 1:
            largest: Array = gains.max(1)
            return largest
        if self.p == 2:
            largest = np.maximum(gains.max(1), 2.0**-400)
            share = gains / largest[:, None]
            root = up(np.sqrt(up((share * share).sum(1), n + 4)), 2)
            return up(root * largest, 1)
        precise()
        largest = np.maximum(gains.max(1), 2.0**-400)
        share = above(gains / largest[:, None])
        sums = up(_powers(share, self.p).sum(1), n + 2)
        roots = [(arb(s).log() / _dual(self.p)).exp() if s > 0 else arb(0) for s in sums.tolist()]
        return up(enclosed(roots, sums.shape).ends()[1] * largest, 2)


def least_products(w: Ball, low: Array, high: Array) -> Ball:
    """min(w x) over [low, high], entry by entry."""
    at_low, at_high = multiply(w, Ball(low)), multiply(w, Ball(high))
    first = at_low.mid <= at_high.mid
    # The smaller midpoint with the larger radius: not above either.
    rad = np.maximum(at_low.radius, at_high.radius)
    return Ball(np.where(first, at_low.mid, at_high.mid), rad)


@lru_cache(maxsize=8)
def _tops(p: float) -> tuple[Array, Array]:
    """Places in [1/2, 1] and upper bounds of their q-th powers."""
    precise()
    places = 0.5 + np.arange(CELLS + 1) / (2 * CELLS)
    tops = [(arb(a).log() * _dual(p)).exp() for a in places.tolist()]
    return places, enclosed(tops, places.shape).ends()[1]


def _dual(p: float) -> arb:
    return arb(p) / (arb(p) - 1)


def _powers(x: Array, p: float) -> Array:
    """Upper bounds of x^q, x >= 0, 1 < q: x = m 2^e, and m^q by chords of a convex function."""
    m, e = np.frexp(x)  # exact, 1/2 <= m < 1, or x = 0
    places, tops = _tops(p)
    cell = np.clip(((m - 0.5) * (2 * CELLS)).astype(np.int64), 0, CELLS - 1)
    along = np.maximum(m - places[cell], 0.0) * (2 * CELLS)  # exact
    chord = above(tops[cell] * above(1 - along)) + above(tops[cell + 1] * along)
    exponents, which = np.unique(e, return_inverse=True)
    scales = [(arb(int(k)) * arb(2).log() * _dual(p)).exp() for k in exponents.tolist()]
    factor = enclosed(scales, exponents.shape).ends()[1][which.reshape(e.shape)]
    return np.where(x > 0, up(chord * factor, 3), 0.0)
