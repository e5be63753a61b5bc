"""The network as executed in single precision, a little off at every operator.

Let z' be executed values. An affine operator gives z' = J z'_in + b + e, an activation
z' = f(z'_in) + e, where |e| is bounded by the sizes of the numbers involved. So execution is one
point of a larger region, in which errors move next to the input, and whatever bounds forms over
a region bounds them over this one: a form a . z' pulled back through an operator is charged
|a| . max |e|, and boxes around z' carry max |e| as well. All e = 0 is the real network, which the
same walk therefore covers.

Neighbouring affine operators may be merged by a runtime, so each run of them is charged as one
sum, where a nonlinearity or the output reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import Charged, extremes, terms_of
from frown.bounds.arithmetic.float32 import (
    LARGE32,
    TINY32,
    UNIT32,
    factors,
    fan,
    gamma32,
    mixes,
    own_error,
    sizes,
)
from frown.bounds.plan import Plan
from frown.bounds.rows import one_hot, pieces
from frown.bounds.work import Work
from frown.graph.affine import Concat
from frown.graph.intervals import Intervals, unsqueezed
from frown.graph.op import Affine, Selection
from frown.problem.region import Region
from frown.relax.product import Product
from frown.relax.proven.rounding import LOOSE, TINY, above, below
from frown.relax.relaxation import Relaxation


@dataclass(frozen=True, slots=True)
class _Chain:
    """A run of affine operators up to a node, as one sum: all terms, flattened.

    Some of its terms add up to at most (width + tilt) / 2 and to at least (tilt - width) / 2.
    """

    terms: Tensor  # the sum of their sizes
    width: Tensor  # of those that may be > 0 and those that may be < 0
    tilt: Tensor
    error: Tensor  # in units of UNIT32, to first order
    lost: Tensor  # what may be flushed to 0
    gain: Tensor  # (1, ...) at least the sum of |weights|, however many operators are merged
    most: Tensor  # (N,) the largest of what was read so far
    paths: int  # of what was read so far, into one entry
    rounded: int  # how often a term has been rounded
    mixed: bool  # whether entries have been added up already

    @classmethod
    def begin(cls, box: Intervals) -> _Chain:
        size = box.lower.abs().maximum(box.upper.abs())
        up, down = box.upper.clamp(min=0), (-box.lower).clamp(min=0)
        zero = torch.zeros_like(size)
        most = _largest(size)
        one = torch.ones_like(size[:1])
        return cls(size, (up + down) * LOOSE, up - down, zero, zero, one, most, 1, 0, False)

    @property
    def reach(self) -> Tensor:
        """(N,) the largest of all numbers up to here."""
        return self.most.maximum(_largest(self.terms))

    @property
    def bound(self) -> Tensor:
        """A bound on |value as executed - value|."""
        second = self.rounded * UNIT32 * gamma32(self.rounded)
        found = (self.error * UNIT32 + self.terms * second + 2 * self.lost) * LOOSE
        return _finite(self.terms, found)


@dataclass
class Execution:
    """Errors of nodes as they grow, over the regions of a walk; all tensors are (N, *shape)."""

    plan: Plan
    region: Region
    work: Work
    # At least |e|: of a nonlinear node its own, of an affine node that of its run.
    error: dict[int, Tensor] = field(default_factory=dict)
    _runs: dict[int, _Chain] = field(default_factory=dict)
    _centres: dict[int, _Chain] = field(default_factory=dict)  # of the balls, affine nodes alone

    def input(self, node: int, size: Tensor) -> Tensor:
        """The input of this size at the most, rounded to single precision."""
        self.error[node] = error = _finite(size, (size * UNIT32 + TINY32) * LOOSE)
        centre = self.region.centre
        self._centres[node] = _Chain.begin(Intervals(below(centre, error), above(centre, error)))
        return error

    def nonlinear(self, node: int, op: Relaxation, argument: Intervals, value: Tensor) -> Tensor:
        """A nonlinear operator with its argument in a box and a value of this size."""
        error = own_error(op, argument, value)
        size = argument.lower.abs().maximum(argument.upper.abs())
        read = size if size.dim() == value.dim() else size.amax(-1)
        if isinstance(op, Product):
            error = error + self._regrouped(node, value)
        self.error[node] = _finite(read + value, error * LOOSE)
        return self.error[node]

    def _regrouped(self, node: int, value: Tensor) -> Tensor:
        """The loss of a product where a runtime multiplies the terms of its factors instead
        ((1 - z) n + z h for n + z (h - n)), or moves their weights behind it: products of what
        the factors are made of must not overflow, and may be flushed to 0."""
        (source,) = self.plan.graph.nodes[node].inputs
        run = self._runs.get(source)
        if run is None:
            return torch.zeros_like(value)
        most = run.reach**2
        gain = run.gain.amax().clamp(min=1) ** 2
        lost = _finite(most * gain, torch.full_like(most, 8 * TINY32) * gain)
        return torch.zeros_like(value) + unsqueezed(lost, value)

    def affine(
        self, node: int, op: Affine, inputs: Sequence[int], boxes: list[Intervals]
    ) -> Tensor:
        """An affine operator that reads values in these boxes."""
        run = _after(
            op, [self._runs.get(j) or _Chain.begin(b) for j, b in zip(inputs, boxes, strict=True)]
        )
        self._runs[node], self.error[node] = run, run.bound
        if all(j in self._centres for j in inputs):
            self._centres[node] = _after(op, [self._centres[j] for j in inputs])
        return run.bound

    def narrow(self, node: int) -> None:
        """A run that starts at the input, from the ball's centre instead of from a box: terms
        change by no more than |J| |x - centre|, which the norm bounds."""
        run, centre = self._runs[node], self._centres[node]
        reach = self._reach(node).view_as(run.terms)
        self._runs[node] = run = replace(
            run,
            terms=run.terms.fmin((centre.terms + reach) * LOOSE),
            error=run.error.fmin((centre.error + reach * run.rounded) * LOOSE),
        )
        self.error[node] = run.bound

    def _reach(self, node: int) -> Tensor:
        """(N, entries) at least |J| |x - centre|, |J| the product of the run's own."""
        zero = torch.zeros_like(self.region.centre)
        ball = replace(self.region, centre=zero, lower=None, upper=None)
        shape, size = self.plan.graph.nodes[node].shape, self.plan.graph.nodes[node].size
        every, found = torch.arange(size), []
        for piece in pieces(self.plan, node, size, self.work):
            one = torch.ones(len(every[piece]), dtype=zero.dtype)
            coef = self._sizes(node, one_hot(every[piece], one, size, shape))
            found.append(extremes(ball, coef).upper)
        return torch.cat(found, 1)

    def _sizes(self, node: int, coef: Tensor) -> Tensor:
        """Rows >= 0 at a node that is affine in the input, pulled back through |J|."""
        pending = {node: coef}
        for step in self.plan.route(node):
            here = pending.pop(step.node, None)
            if here is None:
                continue
            assert step.affine is not None
            slack = self.plan.graph.nodes[step.node].size * TINY
            for j, part in zip(step.inputs, sizes(step.affine).pull_back(here), strict=True):
                pending[j] = (pending.get(j, 0.0) + part + slack) * LOOSE
        return pending[0]


@dataclass(kw_only=True)
class Executed(Charged):
    """The arithmetic that covers execution as well: boxes carry its errors, and so do rows."""

    execution: Execution

    @property
    def errors(self) -> Mapping[int, Tensor]:
        return self.execution.error

    def input(self, node: int) -> None:
        super().input(node)
        self._widen(node, self.execution.input(node, self.weights.value[node]))

    def nonlinear(self, node: int, box: Intervals) -> None:
        super().nonlinear(node, box)
        op, value = self.plan.relaxation(node), self.weights.value[node]
        self._widen(node, self.execution.nonlinear(node, op, box, value))

    def affine_box(self, source: int, work: Work, by_rows: bool = False) -> Intervals:
        self.execution.narrow(source)
        return super().affine_box(source, work, by_rows)

    def affine_error(self, node: int, op: Affine, boxes: list[Intervals]) -> Tensor:
        return self.execution.affine(node, op, self.plan.graph.nodes[node].inputs, boxes)

    def affine_row_error(self, node: int, coef: Tensor, neuron: Tensor) -> Tensor:
        at_input = self.errors[0].flatten(1) @ coef.abs().flatten(1).T
        return (self.errors[node].flatten(1)[:, neuron] + at_input) * LOOSE

    def _widen(self, node: int, error: Tensor) -> None:
        box = self.values[node]
        self._set(node, Intervals(below(box.lower, error), above(box.upper, error)))


def _after(op: Affine, runs: list[_Chain]) -> _Chain:
    """Runs that end in one operator.

    An addition is off by UNIT32 of its result, which is a sum of some of the terms; products,
    weights and factors by so much of a term. Where two operators that mix entries are merged, so
    are the additions behind each weight. Runs that join may be added up in one. Merged weights
    that overflow are infinite, whatever they multiply, and those below TINY32 may be 0.
    """
    gain = op.spread(*(run.gain.clamp(min=1) for run in runs)) * LOOSE
    terms = terms_of(op, [run.terms for run in runs])
    terms = _finite(terms.maximum(gain), terms)
    width = terms_of(op, [run.width for run in runs])
    tilt = op.apply(*(run.tilt for run in runs))
    rounded, mixed = sum(run.rounded for run in runs), any(run.mixed for run in runs)
    error = op.spread(*(run.error for run in runs))
    lost = op.spread(*(run.lost for run in runs))
    most = torch.stack([run.reach for run in runs]).amax(0)
    paths = max(1, fan(op)) * max(run.paths for run in runs)
    if not isinstance(op, Selection | Concat):
        # The slack is more than double precision makes of the tilt.
        largest = ((width + tilt.abs()) / 2 + width * 1e-6).minimum(terms)
        partial = terms if mixed and mixes(op) else largest
        error = error.maximum(partial * rounded) + partial * fan(op) + terms * factors(op)
        rounded += fan(op) + factors(op)
        # What it reads may be flushed to 0, and its weights, products, sums and bias.
        lost = op.spread(*(run.lost + TINY32 for run in runs))
        flushed = (2.0 * paths + 2) * TINY32 * (1 + most)
        lost = lost + unsqueezed(flushed, lost)
        mixed = mixed or mixes(op)
    sums = terms, width, tilt, error * LOOSE, lost * LOOSE
    return _Chain(*sums, gain, most, paths, rounded, mixed)


def _largest(size: Tensor) -> Tensor:
    return size.reshape(len(size), -1).amax(1)


def _finite(size: Tensor, error: Tensor) -> Tensor:
    """Numbers that are too large overflow, and nothing is known of what follows."""
    return torch.where(size < LARGE32, error, torch.inf)
