"""Rows that bend, with every rounding error charged: proven ellipsoids and proven constants.

All of `bounds/ellipsoid.py` again, in double precision: the deviations of a layer's inputs from
what the centre gives are d = F v + r with ||v|| <= 1 and |r| <= slack, whatever was rounded. That
sum w d^2 <= s needs no eigenvalue to be trusted: t I - B = L L^T + R, with L whatever a library
says, bounds the eigenvalues of B by t plus the norm of R.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import Charged, Charges, charged_form
from frown.bounds.ellipsoid import joined, leading
from frown.bounds.rows import charged_pieces, inner, one_hot
from frown.bounds.walk import walk
from frown.bounds.work import Work
from frown.graph.intervals import Intervals
from frown.relax.curvature import boxes_of, steepness, steps_of
from frown.relax.elementwise import Elementwise
from frown.relax.piecewise import Relu
from frown.relax.proven.lines import prove
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, above, below, gamma

UP = 1 + 64 * UNIT
# Of an eigenvalue as it is estimated, and larger and larger.
GUESSES = (1.001, *(1.004 * 1.01**k for k in range(40)))
BLOCKS = 6  # of rows, each of which needs the columns up to its own


@dataclass(frozen=True)
class Deviation:
    """The deviations of some inputs of a node: F v + r with ||v|| <= 1 and |r| <= slack."""

    index: Tensor  # (U,) where secant slopes differ
    factor: Tensor  # (U, n)
    slack: Tensor  # (U,)
    centre: Tensor  # (size,) from which deviations are
    middle: Tensor  # (1, *shape)
    half: Tensor  # (size,)
    known: dict[str, float] = field(default_factory=dict)

    def most(self, weight: Tensor) -> Tensor:
        """(rows,) at least the sum of weight d^2, for weights (rows, U) >= 0."""
        found = weight.new_empty(len(weight))
        for k, own in enumerate(weight):
            top = float(own.amax()) if len(own) else 0.0
            if top == 0:
                found[k] = 0.0
            elif bool(((own == top) | (own == 0)).all()):
                if "even" not in self.known:
                    self.known["even"] = self._most(torch.ones_like(own))
                found[k] = self.known["even"] * top * UP
            else:
                found[k] = self._most(own)
        return found

    def _most(self, weight: Tensor) -> float:
        norms = self._norms
        rows, columns = self.factor.shape
        # Products of small numbers underflow before weights multiply them, however large.
        lost = (float(weight.sum()) * LOOSE + 1) * (rows * columns + 8) * TINY
        trace = float((weight * norms).sum()) * LOOSE + lost
        if rows <= columns:
            root = weight.sqrt()
            matrix = (self._gram * root) * root[:, None]
        else:
            matrix = (self.factor.T * weight) @ self.factor
        spread = float((weight * self.slack.square()).sum()) * LOOSE + lost
        size = greatest(matrix, trace, gamma(max(rows, columns) + 64) * trace + lost)
        length: float = sqrt(size * UP) * UP + sqrt(spread * UP) * UP
        return length * length * UP

    @cached_property
    def _gram(self) -> Tensor:
        return self.factor @ self.factor.T

    @cached_property
    def _norms(self) -> Tensor:
        """(U,) the squared norms of the factor's rows."""
        return self.factor.square().sum(1)


def greatest(matrix: Tensor, trace: float, error: float) -> float:
    """An upper bound of the eigenvalues of all symmetric matrices that differ from this one by at
    most `error`, in their norm, and of no larger diagonal sum than `trace`."""
    n = len(matrix)
    if not trace < torch.inf:
        return torch.inf
    guess = leading(matrix) + error + TINY
    for factor in GUESSES:
        bound = guess * factor
        rest = -matrix
        rest.diagonal().add_(bound)
        lower, failed = torch.linalg.cholesky_ex(rest)
        if int(failed) != 0 or not bool(lower.isfinite().all()):
            continue
        # In the norm of sums of squares: what the factor leaves, what its product rounds, and the
        # difference itself.
        off = _remainder(rest, lower.tril_())
        size = float(lower.square().sum()) * LOOSE
        off += gamma(n + 64) * (size + bound * n + trace)
        return (bound + off + error) * UP
    return torch.inf


def _remainder(matrix: Tensor, lower: Tensor) -> float:
    """The norm of matrix - L L^T, by the sum of squares, for L with zeros above the diagonal."""
    n, total = len(matrix), 0.0
    step = max(64, -(-n // BLOCKS))
    for first in range(0, n, step):
        last = min(first + step, n)
        rows = lower[first:last, :last]
        left = matrix[first:last, :last] - rows @ lower[:last, :last].T
        # Everything left of the diagonal blocks stands for what is above them, too.
        total += 2 * float(left[:, :first].square().sum())
        total += float(left[:, first:].square().sum())
    return sqrt(total * LOOSE + n * n * TINY) * LOOSE  # squares underflow


@dataclass
class Deviations:
    """The deviations of all samples' layers, computed where rows bend."""

    nodes: Charged
    work: Work
    found: dict[tuple[int, int], Deviation] = field(default_factory=dict)
    _centre: Charged | None = None

    def at(self, node: int, sample: int) -> Deviation:
        key = node, sample
        if key not in self.found:
            for i in (*self.nodes.plan.below(node)[:-1], node):
                if (i, sample) not in self.found:
                    self.found[i, sample] = self._deviation(i, sample)
        return self.found[key]

    @property
    def centre(self) -> Charged:
        """Boxes of all values at the centres."""
        if self._centre is None:
            nodes = self.nodes
            point = nodes.region.with_radius(torch.zeros_like(nodes.region.radius))
            self._centre = Charged(nodes.plan, point, nodes.rule, False)
            walk(self._centre, lambda source, box: box)
        return self._centre

    def _deviation(self, node: int, sample: int) -> Deviation:
        nodes, plan, own = self.nodes, self.nodes.plan, slice(sample, sample + 1)
        op = plan.relaxation(node)
        assert isinstance(op, Elementwise)
        (source,) = plan.graph.nodes[node].inputs
        point = self.centre.values[source].rows(own)
        middle = point.middle
        off = (above(point.upper - middle).maximum(above(middle - point.lower))).flatten()
        slopes = proven_secants(op, nodes.relaxed[node].box.rows(own), point)
        half = slopes.radius * UP
        half = torch.where(slopes.lower == slopes.upper, 0.0, half + 4 * UNIT).flatten()
        index = (half > 0).nonzero().flatten()
        terms, charge = self._terms(source, index, sample)
        factor = joined(terms)
        slack = (2 * charge + off[index]) * LOOSE + TINY
        return Deviation(index, factor, slack, middle.flatten(), slopes.middle, half)

    def _terms(self, source: int, index: Tensor, sample: int) -> tuple[list[Tensor], Tensor]:
        """Factors of the deviations of entries of a node, and what rounding may add to each."""
        nodes, plan = self.nodes, self.nodes.plan
        shape, size = plan.graph.nodes[source].shape, plan.graph.nodes[source].size
        inside = plan.below(source)
        found, charges_of = [], []
        which = torch.full_like(index, sample)
        for piece in charged_pieces(plan, source, which, self.work, True):
            self.work.clock.check()
            coef = one_hot(
                index[piece], nodes.region.centre.new_ones(len(index[piece])), size, shape
            )
            charges = Charges(plan, nodes.weights, which[piece])
            parts: dict[int, Tensor] = {}

            def through(
                i: int, here: Tensor, charges: Charges = charges, parts: dict[int, Tensor] = parts
            ) -> tuple[None, Tensor]:
                known = self.found[i, sample]
                flat = here.flatten(1)[:, known.index]
                if "rest" not in known.known:
                    known.known["rest"] = float(known.most(known.half[None, known.index])[0])
                weight = (known.half[known.index] * known.known["rest"] + TINY).sqrt() * UP
                parts[i] = flat * weight
                below = here * known.middle
                (read,) = plan.graph.nodes[i].inputs
                charges.take(inner(below, nodes.weights.value[read], charges.sample) * (4 * UNIT))
                return None, below

            form = charged_form(charges, source, coef, through)
            scale, reach = nodes.region.scale, nodes.region.radius[sample]
            if scale is not None:
                reach = reach * scale[sample if len(scale) > 1 else 0]
            input = (form.coef * (reach * UP + TINY)).flatten(1)
            zero = [coef.new_zeros(len(coef), len(self.found[i, sample].index)) for i in inside]
            found.append([input, *(parts.get(i, z) for i, z in zip(inside, zero, strict=True))])
            charges_of.append(form.charge)
        if not found:
            like = nodes.region.centre
            return [like.new_zeros(0, 1)], like.new_zeros(0)
        return [torch.cat(same) for same in zip(*found, strict=True)], torch.cat(charges_of)


def proven_secants(op: Elementwise, box: Intervals, point: Intervals) -> Intervals:
    """Slopes of all lines from (z^, f(z^)), z^ in `point`, to points over the box, enclosed."""
    low, high = box.lower.minimum(point.lower), box.upper.maximum(point.upper)
    if isinstance(op, Relu):
        flat, steep = torch.zeros_like(low), torch.ones_like(low)
        least = torch.where(point.lower > 0, point.lower / (point.lower - low) - 8 * UNIT, flat)
        most = torch.where(point.upper < 0, high / (high - point.upper) + 8 * UNIT, steep)
        on, off = low >= 0, high <= 0
        least = torch.where(on, steep, torch.where(off, flat, least.nan_to_num(nan=0.0)))
        most = torch.where(off, flat, torch.where(on, steep, most.nan_to_num(nan=1.0)))
        return Intervals(least.clamp(0, 1), most.clamp(0, 1))
    return steepness(op, Intervals(low, high))


def bent_below(
    op: Elementwise, box: Intervals, coef: Tensor, back: Tensor, curvature: Tensor, centre: Tensor
) -> Tensor:
    """A lower bound of c f(z) - g z + lambda/2 (z - z^)^2 over the box, `back` the g; lambda > 0.

    On each piece f is bounded by a line, and the parabola that this leaves by its tangent at a
    point near its vertex, whose slope there is known up to rounding.
    """
    best = torch.full_like(coef, torch.inf)
    under = coef >= 0
    for part, steep_at in zip(boxes_of(op, box), steps_of(op), strict=True):
        proven = prove(op, part)
        assert proven is not None
        slope = torch.full_like(coef, steep_at)
        level = proven.intercept(slope, under)
        tilt = coef * slope - back
        z = (centre - tilt / curvature).nan_to_num(nan=0.0)
        z = z.maximum(part.lower).minimum(part.upper)
        away = z - centre
        # Halved at the end: half of the smallest curvatures is no double.
        value = coef * level + tilt * z + curvature * away * away * 0.5
        steep = (coef * slope).abs() + back.abs()
        reach = z.abs() + centre.abs()
        size = (coef * level).abs() + steep * z.abs() + curvature * reach * reach
        rate = tilt + curvature * away
        off = (steep + curvature * reach) * (8 * UNIT) + TINY
        left = (rate + off).clamp(min=0) * (z - part.lower)
        right = (off - rate).clamp(min=0) * (part.upper - z)
        fall = torch.maximum(left, right) * UP
        found = below(value, size * (32 * UNIT) + fall + 8 * TINY)
        beyond = (part.lower > box.upper) | (part.upper < box.lower)  # a point that is not in it
        best = torch.minimum(best, torch.where(beyond, torch.inf, found))
    return best
