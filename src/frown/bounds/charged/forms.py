"""Linear forms pulled back with every rounding error charged.

A form's coefficients are rounded wherever it passes an operator. Whatever was rounded away is
itself a linear form r . z on the values z at hand, and these lie in known boxes:
|r . z| <= |r| . m with m = max |z|. For an affine operator y = J x + b, |r| <= gamma |J|^T |a|
makes that gamma |a| . (|J| m + |b|): one inner product per operator with numbers that all rows
of a sample share. So coefficients stay plain numbers, taken as exact, and each row carries what
it has been charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.bounds.charged.gather import Blocks, SampleIndex, dot, inner, spread
from frown.bounds.plan import Plan
from frown.graph.affine import Combine
from frown.graph.box import rows_of
from frown.graph.op import Affine
from frown.graph.selection import Concat, Permute, Reshape, Slice
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, gamma
from frown.relax.relaxation import Lines, Relaxation

_EXACT = frozenset({Reshape, Permute, Slice, Concat})  # they move entries and compute nothing


@dataclass(frozen=True, slots=True)
class Weights:
    """What rounding is charged with, per node: sizes of its values and of the terms they sum."""

    value: dict[int, Tensor]  # m: (N, *shape) at least |z|
    terms: dict[int, Tensor]  # |J| m + |b| of affine nodes
    total: dict[int, Tensor]  # (N,) the sum of m

    def largest(self) -> Weights:
        """What is enough for every sample."""
        return Weights(
            *(
                {i: t.amax(0, keepdim=True) for i, t in kind.items()}
                for kind in (self.value, self.terms, self.total)
            )
        )


@dataclass(frozen=True, slots=True)
class Charged:
    """coef . x + const - charge at the network's input bounds a quantity below."""

    coef: Tensor  # (rows, *input shape)
    const: Tensor  # (rows,)
    charge: Tensor  # (rows,) >= 0


@dataclass(frozen=True, slots=True)
class Passed:
    """A form on a nonlinear node's output, replaced by one on its input."""

    coef: Tensor  # (rows, *input shape of the node)
    const: Tensor | None  # (rows,) what intercepts add; None: that comes at the end
    charge: Tensor | None  # (rows,) what rounding may take; None where the other is


Through = Callable[[int, Tensor], Passed]


def by_lines(
    op: Relaxation, here: Tensor, slope: Tensor, intercept: Tensor, size: Tensor, which: SampleIndex
) -> Passed:
    """Along exact slopes with proven intercepts, of the sides that the coefficients want; `size`
    (N, ...) is at least |z| at the node's input."""
    gains, coef = here * intercept, op.expand(here) * slope
    charge = gains.abs().flatten(1).sum(1) * gamma(gains[0].numel())
    return Passed(coef, gains.flatten(1).sum(1), charge + inner(coef, size, which) * (4 * UNIT))


@dataclass(frozen=True, slots=True)
class FixedLines:
    """The fixed rule's lines at a node, and what a unit of coefficient is charged along either."""

    lines: Lines  # exact slopes, proven intercepts
    size: Tensor  # (N, *input shape) at least |z|
    charge: Tensor | None  # (N, *output shape); None: a line of some neuron is not finite

    @classmethod
    def of(cls, op: Relaxation, lines: Lines, size: Tensor) -> FixedLines:
        slopes = lines.slopes
        steep = slopes.lower.abs().maximum(slopes.upper.abs())
        level = lines.lower.abs().maximum(lines.upper.abs())
        reach = steep * size if op.expand(level) is level else (steep * size).sum(-1)
        charge = (level * gamma(level[0].numel()) + reach * (4 * UNIT)) * LOOSE
        charge = charge + TINY  # what underflow took here, before coefficients multiply it
        whole = all(bool(t.isfinite().all()) for t in (steep, level, charge))
        return cls(lines, size, charge if whole else None)

    def through(self, op: Relaxation, here: Tensor, which: SampleIndex) -> Passed:
        """A form of every row through the lines of its sample."""
        slopes, lines = self.lines.slopes, self.lines
        if self.charge is None:
            under = here >= 0
            low, high = (spread(t, which) for t in (slopes.lower, slopes.upper))
            slope = torch.where(op.expand(under), low, high)
            low, high = (spread(t, which) for t in (lines.lower, lines.upper))
            return by_lines(op, here, slope, torch.where(under, low, high), self.size, which)
        return Passed(self.back(op, here, which), *self.gain(here, which))

    def back(self, op: Relaxation, here: Tensor, which: SampleIndex) -> Tensor:
        """From coefficients of a node's output to those of its input."""
        # One of two halves is 0, so their sum is exact, and faster than a selection.
        slopes = self.lines.slopes
        halves = op.expand(here.clamp(min=0)), op.expand(here.clamp(max=0))
        if isinstance(which, Blocks):
            halves = which.blocks(halves[0]), which.blocks(halves[1])
            low, high = which.table(slopes.lower), which.table(slopes.upper)
        else:
            low, high = rows_of(slopes.lower, which), rows_of(slopes.upper, which)
        coef = (halves[0] * low).addcmul_(halves[1], high)
        return coef.reshape(len(here), *low.shape[-slopes.lower.dim() + 1 :])

    def gain(self, here: Tensor, which: SampleIndex) -> tuple[Tensor, Tensor]:
        """What intercepts add to forms with these coefficients, and what rounding may take."""
        assert self.charge is not None
        low = dot(here.clamp(min=0), self.lines.lower, which)
        high = dot(here.clamp(max=0), self.lines.upper, which)
        return low + high, inner(here, self.charge, which)


def terms_of(op: Affine, sizes: list[Tensor]) -> Tensor:
    """|J| m + |b|, rounded up."""
    zero = [torch.zeros_like(m) for m in sizes]
    return (op.spread(*sizes) + op.apply(*zero).abs()) * LOOSE + TINY


def pull_back(
    plan: Plan,
    target: int,
    coef: Tensor,
    which: SampleIndex,
    weights: Weights,
    through: Through,
    error: Mapping[int, Tensor] | None = None,
    rest: Callable[[], Sequence[Passed]] = tuple,
) -> Charged:
    """Bound coef . target below by a form at the input.

    `which` is each row's sample; `through(node, coefficients)` passes a nonlinear node, along
    lines below f where a coefficient is >= 0, else above. `error`: by how much nodes as executed
    may be off; that of an affine node is for all of its run of affine operators. `rest`: what
    passages have left to the end, constants and charges.
    """
    graph = plan.graph
    const = coef.new_zeros(len(coef))
    charge = coef.new_zeros(len(coef))
    running = coef.new_zeros(len(coef))  # sizes of the running sum
    lost = torch.zeros_like(weights.total[0])  # (N,) how often underflow may take TINY
    pending = {target: coef}
    own: set[int] = set()  # nodes whose coefficients were made here, and nothing else holds

    def off(node: int, here: Tensor) -> Tensor | float:
        return inner(here, error[node], which) if error is not None else 0.0

    def added(both: Tensor, node: int) -> Tensor:
        """What the sum of two forms at a node may be off."""
        return inner(both, weights.value[node], which) * (2 * UNIT)

    if isinstance(graph.nodes[target].op, Affine):
        charge = charge + off(target, coef)
    for step in plan.route(target):
        if step.node not in pending:
            continue
        here = pending.pop(step.node)
        if step.affine is not None:
            first = step.inputs[0]
            if type(step.affine) is Slice:
                if first in own:
                    step.affine.add_back(here, pending[first])
                    both = step.affine.apply(pending[first])
                    charge = charge + added(both, step.node)
                    continue
                if first not in pending:
                    own.add(first)
            if type(step.affine) not in _EXACT and not _signs(step.affine):
                size = graph.nodes[step.node].size
                charge = charge + inner(here, weights.terms[step.node], which) * gamma(size + 8)
                sums = [weights.total[j] for j in graph.nodes[step.node].inputs]
                lost = lost + size * (1 + sum(sums[1:], sums[0]))
            shift = step.affine.shift(here)
            if shift is not None:
                const = const + shift
                running = running + const.abs()
            back = step.affine.pull_back(here)
        else:
            passed = through(step.node, here)
            (source,) = graph.nodes[step.node].inputs
            if passed.const is not None and passed.charge is not None:
                const = const + passed.const
                running = running + const.abs()
                charge = charge + passed.charge
            lost = lost + (graph.nodes[step.node].size + weights.total[source])
            if error is not None:
                charge = charge + off(step.node, here)
                if isinstance(graph.nodes[source].op, Affine):
                    charge = charge + off(source, passed.coef)
            back = (passed.coef,)
        for j, part in zip(step.inputs, back, strict=True):
            if j in pending:
                pending[j] = pending[j] + part
                own.add(j)
                charge = charge + added(pending[j], j)
            else:
                pending[j] = part
    for late in rest():
        assert late.const is not None and late.charge is not None
        const = const + late.const
        running = running + const.abs()
        charge = charge + late.charge
    last = pending[0] if 0 in pending else const.new_zeros(len(coef), *graph.input_shape)
    charge = charge + running * (4 * UNIT) + TINY * spread(lost, which)
    return Charged(last, const, (charge + off(0, last)) * LOOSE)


def _signs(op: Affine) -> bool:
    """Whether an operator only adds and subtracts: to pull it back rounds nothing."""
    return isinstance(op, Combine) and all(abs(w) == 1 for w in op.weights)
