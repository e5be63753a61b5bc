"""Rows that bend over an l_2 ball: how far all that a site reads deviates from the centre at once.

Let z^ be what a site reads at the ball's centre x^, and d = z - z^. Proved, site after site: for
every x of the region, at the entries `index`,

    z - centre = F v + r   with ||v|| <= 1 and |r| <= slack,   and so does d.

All secants of f from (z^, f(z^)) over the box have slopes in [m - h, m + h], so f(z) - f(z^) =
m d + e with |e| <= h |d|, and m = f', e = 0 at entries where f is straight. If sum h d^2 <= t, then
e = (t h)^(1/2) v_j with ||v_j|| <= 1; and x - x^ = radius scale v_0. A coefficient of z is pulled
back exactly, through sites along m: d = sum_j F_j v_j, up to what rounding does, which r takes. For
any numbers g_j with sum_j g_j^-2 <= 1 that is F v with F = [g_0 F_0, g_1 F_1, ...] and ||v|| <= 1.

Hence sum w d^2 <= (L^(1/2) + (sum w slack^2)^(1/2))^2 for every L that no eigenvalue of
S = F^T diag(w) F (those of diag(w)^(1/2) F F^T diag(w)^(1/2)) exceeds. With any number t and any
matrix C, S = t I - C C^T - R has none above t + ||R||: what Cholesky's factor is need not be true.

A row that passes a site with coefficients a of f(z), g of z and curvatures w >= 0 then has

    a f(z) >= g z + b - w/2 (z - centre)^2,
    b = min over the box of a f(z) - g z + w/2 (z - centre)^2,

and all entries together lose no more than half of sum w (z - centre)^2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np

import frown_check.guesses as guesses
from frown_check.balls import Array, Ball, Index, U, above, add, down, rounding, up
from frown_check.curves import Straight
from frown_check.errors import Refused, refuse_if
from frown_check.functions import STRAIGHT, Function
from frown_check.graph import Affine, Apply, Edge, Graph
from frown_check.region import Region

Box = tuple[Array, Array]  # (1, width)


@dataclass(frozen=True)
class Deviation:
    """One site's, over the entries `index` (U,) where f is not straight; see above."""

    index: Index
    factor: Array  # (U, n)
    slack: Array  # (U,)
    centre: Array  # (size,)
    middle: Array  # (size,) m
    half: Array  # (size,) h

    def most(self, weight: Array) -> Array:
        """(rows,) at least sum w (z - centre)^2 over the region, for weights (rows, U) >= 0."""
        found = np.zeros(len(weight))
        for k, own in enumerate(weight):
            top = own.max(initial=0.0)
            if top > 0:
                alike = bool(((own == top) | (own == 0)).all())
                found[k] = up(self._even * top, 1) if alike else self._most(own)
        return found

    @cached_property
    def _even(self) -> Array:
        return self._most(np.ones(len(self.index)))

    def _most(self, w: Array) -> Array:
        rows, columns = self.factor.shape
        # Entry by entry, S is wrong by no more than this times a matrix without negative
        # eigenvalues, none of which is above the sum of its diagonal.
        share = rounding(max(rows, columns) + 16)
        trace = up((w * self._norms).sum(), rows + 4)
        if rows <= columns:
            root = np.sqrt(w)
            matrix = self._gram * root * root[:, None]
        else:
            matrix = (self.factor.T * w) @ self.factor
        largest = largest_eigenvalue(matrix) + up(share * trace, 2)
        spread = up((w * self.slack * self.slack).sum(), rows + 4)
        length = up(np.sqrt(up(largest, 2)), 2) + up(np.sqrt(spread), 2)
        return up(length * length, 4)

    @cached_property
    def _gram(self) -> Array:
        found: Array = self.factor @ self.factor.T
        return found

    @cached_property
    def _norms(self) -> Array:
        return up((self.factor * self.factor).sum(1), self.factor.shape[1] + 4)


def largest_eigenvalue(matrix: Array) -> Array:
    """A number that x^T matrix x does not exceed, for ||x|| = 1; infinity where none is found."""
    n = len(matrix)
    for t in guesses.eigenvalues(matrix):
        rest = -matrix
        rest[np.diag_indices(n)] += t
        root = guesses.root(rest)
        if root is None:
            continue
        left = rest - root @ root.T
        # The norm of the sum of squares, of what is left and of all that was rounded: the
        # product's sums, the differences, and t on the diagonal.
        size = up((root * root).sum(1).sum(), 2 * n + 4)
        wrong = rounding(n + 8) * (
            size + _norm(rest) + up(np.abs(rest.diagonal()).sum() + n * t, n)
        )
        found: Array = up(t + _norm(left) + wrong, 8)
        return found
    return np.asarray(np.inf)


def _norm(matrix: Array) -> Array:
    n = len(matrix)
    return up(np.sqrt(up((matrix * matrix).sum(1).sum(), 2 * n + 4)), 2)


@dataclass
class Deviations:
    """Those of all sites, found where they are asked for.

    `boxes` are those of the nodes' vectors, `centre` enclose them at the ball's centre.
    """

    graph: Graph
    order: list[int]
    region: Region
    boxes: dict[int, Box]
    centre: dict[int, Box]
    chunk: int  # entries of one array of coefficients
    found: dict[int, Deviation] = field(default_factory=dict)
    sums: dict[int, Array] = field(default_factory=dict)  # at least sum h d^2

    def __post_init__(self) -> None:
        one = not self.region.exact and len(self.region.balls) <= 1
        refuse_if(self.region.p != 2 or not one, "rows bend over one l_2 ball only")

    def at(self, i: int) -> Deviation:
        """The deviation of what site i reads; boxes of all nodes up to it are known."""
        if i not in self.found:
            self.found[i] = self._deviation(i)
        return self.found[i]

    def _rest(self, i: int) -> Array:
        if i not in self.sums:
            known = self.at(i)
            self.sums[i] = known.most(known.half[None, known.index])[0]
        return self.sums[i]

    def _deviation(self, i: int) -> Deviation:
        function, edge = _function(self.graph, i), self.graph.nodes[i].edges[0]
        low, high = (edge.read(end)[0] for end in self.boxes[edge.node])
        first, last = (edge.read(end)[0] for end in self.centre[edge.node])
        least, most = secants(function, low, high, first, last)
        middle = least / 2 + most / 2
        half = np.where(least == most, 0.0, above(np.maximum(most - middle, middle - least)))
        middle = np.where(least == most, least, middle)
        centre = first / 2 + last / 2
        off = above(np.maximum(last - centre, centre - first))
        index = np.flatnonzero((half > 0) & (edge.index >= 0))
        factor, slack = self._factor(edge, index)
        return Deviation(index, factor, up(slack + off[index], 2), centre, middle, half)

    def _factor(self, edge: Edge, index: Index) -> tuple[Array, Array]:
        """F and what rounding may add, for entries `index` of an edge."""
        size = max(1, self.chunk // max(n.size for n in self.graph.nodes))
        pieces = [
            self._terms(edge, index[k : k + size]) for k in range(0, max(1, len(index)), size)
        ]
        names = sorted({j for terms, _ in pieces for j in terms})
        terms = [
            np.concatenate([t[j] if j in t else self._nothing(j, len(s)) for t, s in pieces])
            for j in names
        ]
        gains = guesses.gains(terms)
        if sum(Fraction(g) ** -2 for g in gains) > 1:
            raise Refused("shares of an ellipsoid do not add up")
        factor = np.concatenate([t * g for t, g in zip(terms, gains, strict=True)], 1)
        slack = np.concatenate([s for _, s in pieces])
        # Entries of the factor are products of three numbers, and those of v at most 1.
        wrong = up(rounding(4) * np.abs(factor).sum(1), factor.shape[1] + 4)
        return factor, up(slack + wrong, 2)

    def _nothing(self, j: int, rows: int) -> Array:
        return np.zeros((rows, len(self.at(j).index) if j else self.graph.nodes[0].size))

    def _terms(self, edge: Edge, index: Index) -> tuple[dict[int, Array], Array]:
        """Some rows of the F_j, by site (0: the input), and of the slack."""
        coef = np.zeros((len(index), edge.width))
        coef[np.arange(len(index)), edge.index[index]] = 1.0
        pending, slack = {edge.node: Ball(coef)}, np.zeros(len(index))
        terms: dict[int, Array] = {}
        for j in reversed(self.order):
            form = pending.pop(j, None)
            if form is None:
                continue
            node = self.graph.nodes[j]
            if isinstance(node.op, Apply):
                known, rest = self.at(j), self._rest(j)
                a, (low, high) = form.mid, self.boxes[j]
                reads = [node.edges[0].read(end) for end in self.boxes[node.edges[0].node]]
                back = a * known.middle
                # What `back` loses by underflow counts as often as z moves far.
                lost = 2 * U * np.abs(back) + 2.0**-1000
                loss = form.radius * above(high - low) + lost * above(reads[1] - reads[0])
                slack = up(slack + up(loss.sum(1), a.shape[1] + 4), 2)
                reach = up(np.sqrt(up(rest * known.half[known.index], 1)), 2)
                terms[j] = a[:, known.index] * reach
                parts = [Ball(back)]
            else:
                assert isinstance(node.op, Affine)
                parts = node.op.adjoint(form)
            for e, part in zip(node.edges, parts, strict=True):
                sent, earlier = e.send_back(part), pending.get(e.node)
                pending[e.node] = sent if earlier is None else add(earlier, sent)
        scale = self.region.scale
        reach = np.where(scale > 0, above(self.region.radius * scale), 0.0)
        if 0 in pending:
            form = pending[0]
            terms[0] = form.mid * reach
            slack = up(slack + up((form.radius * reach).sum(1), len(reach) + 4), 2)
        return terms, slack


def _function(graph: Graph, i: int) -> Function:
    """The function of a site, if rows may bend there."""
    op = graph.nodes[i].op
    assert isinstance(op, Apply)
    if isinstance(op.function, str) or not _continuous(op.function):
        raise Refused(f"rows do not bend at {op.name} ({op.kind}), nor at sites beyond it")
    return op.function


def _continuous(function: Function) -> bool:
    """True for straight pieces, each from where the last one ends and with its value there: across
    a jump, secants have any slope."""
    if any(p.bend != STRAIGHT or np.ndim(_straight(p.curve).slope) > 0 for p in function.pieces):
        return False
    for one, other in pairwise(function.pieces):
        place, curves = float(one.high), (_straight(one.curve), _straight(other.curve))
        values = {Fraction(float(c.slope)) * Fraction(place) + Fraction(c.offset) for c in curves}
        if place != float(other.low) or len(values) > 1:
            return False
    return True


def _straight(curve: object) -> Straight:
    if not isinstance(curve, Straight):
        raise Refused("rows bend at functions of straight pieces only")
    return curve


def secants(function: Function, low: Array, high: Array, first: Array, last: Array) -> Box:
    """The least and the greatest slope of lines from (z^, f(z^)), z^ in [first, last], to points
    over [low, high].

    Each is a mean of slopes of the pieces on its way. Of a ReLU with z^ > 0 > l the least is
    z^ / (z^ - l), which grows with z^; with z^ < 0 < u the greatest is u / (u - z^), likewise.
    """
    low, high = np.minimum(low, first), np.maximum(high, last)
    least, most = np.full(low.shape, np.inf), np.full(low.shape, -np.inf)
    for piece in function.pieces:
        slope = float(np.asarray(_straight(piece.curve).slope))
        here = (np.maximum(low, piece.low) < np.minimum(high, piece.high)) | (
            (low == high) & (low >= piece.low) & (high <= piece.high)
        )
        least = np.where(here, np.minimum(least, slope), least)
        most = np.where(here, np.maximum(most, slope), most)
    slopes = [float(np.asarray(_straight(p.curve).slope)) for p in function.pieces]
    if slopes == [0.0, 1.0] and np.all(function.pieces[0].high == 0.0):
        flatter = down(down(first / above(first - low)))
        steeper = above(above(high / down(high - last)))
        least = np.where((first > 0) & (low < 0), np.maximum(flatter, 0.0), least)
        most = np.where((last < 0) & (high > 0), np.minimum(steeper, 1.0), most)
    return least, most


def bent_below(function: Function, box: Box, a: Array, g: Array, w: Array, centre: Array) -> Array:
    """A lower bound of a f(z) - g z + w/2 (z - centre)^2 over the box, for w > 0.

    On a straight piece it is a parabola, above its tangent at any place.
    """
    low, high = box
    best: Array = np.full(a.shape, np.inf)
    for piece in function.pieces:
        curve = _straight(piece.curve)
        slope, offset = float(np.asarray(curve.slope)), curve.offset
        p, q = np.maximum(low, piece.low), np.minimum(high, piece.high)
        active = p <= q
        tilt = a * slope - g
        z = np.clip(centre - tilt / w, p, np.maximum(p, q))
        away, reach = z - centre, np.abs(z) + np.abs(centre)
        # Halved at the end: half of the smallest w is no float.
        value = a * (slope * z + offset) - g * z + w * away * away * 0.5
        steep = np.abs(a) * abs(slope) + np.abs(g)
        size = np.abs(a) * abs(offset) + steep * np.abs(z) + w * reach * reach
        rate = tilt + w * away
        wrong = up(rounding(8) * (steep + w * reach), 8)
        left = np.maximum(rate + wrong, 0.0) * above(z - p)
        right = np.maximum(wrong - rate, 0.0) * above(q - z)
        fall = up(np.maximum(left, right) + rounding(16) * size, 24)
        found = down(value - fall)
        best = np.where(active, np.minimum(best, found), best)
    return best
