"""Bounding lines and planes: for a slope, the intercept.

Proved: for every z in the box, and whatever the slopes s are,

    intercept <= f(z) - s . z  where `below`,      intercept >= f(z) - s . z  elsewhere.

Functions of one variable, piece by piece: g = f - s z (or its negative, for a line above) is
convex, concave or straight on each piece. Where it is concave or straight, its least value is at
an end. Where it is convex, g(z) >= g(x) + g'(x) (z - x) for any place x of the piece, which is
least at one of its ends. In a gap g moves by no more than (steep + |s|) times its length.

A maximum over a window: max_j x_j - s . x = max_j (x_j - s . x) is greatest at a corner for each j.
For its least value let t = max_j x_j >= max_j l_j: entries of slope <= 0 are low, the others
min(u_j, t), and t - sum_j max(s_j, 0) min(u_j, t)
is convex in t with kinks at the u_j.

A product: x y - p x - q y is linear in either variable, so its extremes are at corners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

import frown_check.guesses as guesses
from frown_check.balls import Array, Ball, Index, U, above, down, up
from frown_check.errors import refuse_if
from frown_check.functions import Function, Piece

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Frame(ABC):
    """A site with n outputs, each of K entries, over its boxes (cases, n, K), or (n, K); slopes
    are (rows, n, K), with a case for each row or one for all."""

    def __init__(self, low: Array, high: Array) -> None:
        self.low, self.high = low, high

    @abstractmethod
    def intercepts(self, slope: Array, below: Mask) -> Array:
        """See above; `below` is (..., n), and so is what is returned."""

    @abstractmethod
    def rule(self) -> list[Array]:
        """Slopes below and above where a certificate brings none: any are valid."""

    @abstractmethod
    def ends(self) -> list[Array]:
        """Slopes between which codes are places: any are valid."""

    def take(self, case: Index) -> Frame:
        """The frames of these cases, one for each row."""
        return type(self)(self.low[case], self.high[case])

    def image(self) -> tuple[Array, Array]:
        """Bounds of the site's outputs: its lines of slope 0."""
        flat = np.zeros_like(self.low)
        every = np.ones(self.low.shape[:-1], dtype=bool)
        return self.intercepts(flat, every), self.intercepts(flat, ~every)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A piece cut to the boxes: [p, q] where `active`, f at both ends, and its slopes there."""

    piece: Piece
    p: Array
    q: Array
    active: Mask
    at_p: Ball
    at_q: Ball
    slopes: tuple[Array, Array]

    def take(self, case: Index) -> _Cut:
        def pick(x: Array) -> Array:
            return x[case]

        ends = (self.at_p.map(pick), self.at_q.map(pick))
        slopes = (pick(self.slopes[0]), pick(self.slopes[1]))
        return _Cut(self.piece, pick(self.p), pick(self.q), self.active[case], *ends, slopes)


class Elementwise(Frame):
    """f of one variable (K = 1)."""

    def __init__(self, function: Function, low: Array, high: Array) -> None:
        super().__init__(low, high)
        self.function = function
        self.cuts: list[_Cut] = []
        met = np.zeros(low.shape[:-1], dtype=bool)
        for piece in function.pieces:
            p, q = np.maximum(low[..., 0], piece.low), np.minimum(high[..., 0], piece.high)
            active = (p <= q) & ~(high[..., 0] <= piece.after) & ~(low[..., 0] >= piece.before)
            met |= active
            if active.any():
                inner = float(np.max(piece.low)) if np.isfinite(piece.low).all() else 0.0
                p, q = np.where(active, p, inner), np.where(active, q, inner)
                at_p, at_q = (piece.curve.enclose(z) for z in (p, q))
                slopes = (at_p[1].mid, at_q[1].mid)
                self.cuts.append(_Cut(piece, p, q, active, at_p[0], at_q[0], slopes))
        # Without a piece there is no value, and every line would do.
        refuse_if(not met.all(), f"{function.kind} has no piece at the bounds of some entry")

    def take(self, case: Index) -> Elementwise:
        found = Elementwise.__new__(Elementwise)
        Frame.__init__(found, self.low[case], self.high[case])
        found.function, found.cuts = self.function, [cut.take(case) for cut in self.cuts]
        return found

    def intercepts(self, slope: Array, below: Mask) -> Array:
        slope, sign = slope[..., 0], np.where(below, 1.0, -1.0)
        best: Array = np.full(slope.shape, np.inf)
        for cut in self.cuts:
            found = self._least(cut, slope, sign)
            # A minimum with NaN is NaN: nothing is lost silently.
            best = np.where(cut.active, np.minimum(best, found), best)
        result: Array = sign * best
        return result

    def _least(self, cut: _Cut, slope: Array, sign: Array) -> Array:
        """A lower bound of sign (f(z) - slope z) over [p, q]."""
        piece = cut.piece
        left = _value(cut.at_p, slope, cut.p, sign)
        if piece.bend is None:
            width = above(np.asarray(piece.high - piece.low))
            return down(left - up((piece.steep + np.abs(slope)) * width, 4))
        least = np.minimum(left, _value(cut.at_q, slope, cut.q, sign))
        if piece.bend == 0:
            return least
        curved = cut.active & (cut.p < cut.q) & (sign == piece.bend)
        if curved.any():
            p, q, s, turn = (
                np.broadcast_to(x, curved.shape)[curved] for x in (cut.p, cut.q, slope, sign)
            )
            least[curved] = _tangent(piece, p, q, s, turn)
        return least

    def rule(self) -> list[Array]:
        at_low, at_high = np.zeros_like(self.low), np.zeros_like(self.high)
        for cut in self.cuts:
            first = cut.active & (cut.p == self.low[..., 0])
            last = cut.active & (cut.q == self.high[..., 0])
            at_low[first, 0], at_high[last, 0] = cut.at_p.mid[first], cut.at_q.mid[last]
        return guesses.chords(self.function.kind, self.low, self.high, at_low, at_high)

    def ends(self) -> list[Array]:
        least: Array = np.full(self.low.shape[:-1], np.inf)
        most = -least
        for cut in self.cuts:
            for slope in cut.slopes if cut.piece.bend is not None else ():
                here = cut.active & np.isfinite(slope)
                least = np.where(here, np.minimum(least, slope), least)
                most = np.where(here, np.maximum(most, slope), most)
        return [least[..., None], most[..., None]]


def _value(f: Ball, slope: Array, z: Array, sign: Array) -> Array:
    """A lower bound of sign (f - slope z)."""
    move = slope * z
    error = up(f.radius + 4 * U * (np.abs(f.mid) + np.abs(move)), 4)
    return down(sign * (f.mid - move) - error)


def _tangent(piece: Piece, p: Array, q: Array, slope: Array, sign: Array) -> Array:
    """A lower bound of the convex g = sign (f - slope z) on [p, q], by a tangent."""
    assert piece.bend is not None
    z = np.clip(piece.curve.touch(slope, p, q, piece.bend), p, q)
    value, derivative = piece.curve.enclose(z)
    tilt = sign * (derivative.mid - slope)
    error = up(derivative.radius + 2 * U * np.abs(tilt), 2)
    down_left = up(np.maximum(tilt + error, 0.0), 2) * above(z - p)
    down_right = up(np.maximum(error - tilt, 0.0), 2) * above(q - z)
    return down(_value(value, slope, z, sign) - up(np.maximum(down_left, down_right), 2))


class Maximum(Frame):
    """max_j x_j over the last axis."""

    def intercepts(self, slope: Array, below: Mask) -> Array:
        count = slope.shape[-1]
        # 4 roundings of a product and a sum, then those of count terms.
        size = np.maximum(np.abs(self.low), np.abs(self.high))
        scale = size.max(-1) + ((1 + np.abs(slope)) * size).sum(-1)
        error = up(2 * (count + 8) * 2 * U * scale, count + 8)
        least = down(self._least(slope) - error)
        most = above(self._most(slope) + error)
        return np.where(below, least, most)

    def _least(self, slope: Array) -> Array:
        level = self.low.max(-1, keepdims=True)
        gain, drop = np.maximum(slope, 0.0), np.minimum(slope, 0.0)
        fixed = (drop * self.low).sum(-1)

        def at(t: Array) -> Array:
            value: Array = t[..., 0] - (gain * np.minimum(self.high, t)).sum(-1)
            return value

        best: Array = at(level)
        if (gain.sum(-1) > 1 - 2 * slope.shape[-1] * U).any():
            for j in range(slope.shape[-1]):
                best = np.minimum(best, at(np.maximum(self.high[..., j : j + 1], level)))
        least: Array = best - fixed
        return least

    def _most(self, slope: Array) -> Array:
        low, high = self.low, self.high
        others = np.maximum(-slope * low, -slope * high)
        own = np.maximum((1 - slope) * low, (1 - slope) * high)
        most: Array = others.sum(-1) + (own - others).max(-1)
        return most

    def image(self) -> tuple[Array, Array]:
        return self.low.max(-1), self.high.max(-1)

    def rule(self) -> list[Array]:
        return guesses.maximum_slopes(self.low, self.high)

    def ends(self) -> list[Array]:
        return [np.zeros_like(self.low), np.ones_like(self.low)]


class Product(Frame):
    """x y over a last axis of two."""

    def intercepts(self, slope: Array, below: Mask) -> Array:
        p, q = slope[..., 0], slope[..., 1]
        least, most = [], []
        for x in (self.low[..., 0], self.high[..., 0]):
            for y in (self.low[..., 1], self.high[..., 1]):
                value = x * y - p * x - q * y
                size = np.abs(x * y) + np.abs(p * x) + np.abs(q * y)
                error = up(8 * U * size, 6)
                least.append(down(value - error))
                most.append(above(value + error))
        # A minimum or maximum with NaN is NaN.
        intercepts: Array = np.where(below, np.min(least, 0), np.max(most, 0))
        return intercepts

    def rule(self) -> list[Array]:
        return guesses.product_slopes(self.low, self.high)

    def ends(self) -> list[Array]:
        return [self.low[..., ::-1], self.high[..., ::-1]]
