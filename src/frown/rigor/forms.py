"""Linear forms pulled back with every rounding error charged.

A form's coefficients are rounded wherever it passes an operator. Whatever was rounded away is
itself a linear form r . z on the values z at hand, and these lie in known boxes:
|r . z| <= |r| . m with m = max |z|. For an affine operator y = J x + b, |r| <= gamma |J|^T |a|
makes that gamma |a| . (|J| m + |b|): one inner product per operator with numbers that all rows
of a sample share. So coefficients stay plain numbers, taken as exact, and each row carries what
it has been charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.engines.plan import Plan
from frown.graph.affine import Combine
from frown.graph.op import Affine
from frown.graph.selection import Concat, Permute, Reshape, Slice
from frown.rigor.rounding import LOOSE, TINY, UNIT, gamma

_EXACT = (Reshape, Permute, Slice, Concat)  # they move entries and compute nothing


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
class Chosen:
    """The lines of one pass at a node: exact slopes, proven intercepts."""

    slope: Tensor  # (rows, *input shape of the node)
    intercept: Tensor  # (rows, *output shape of the node)


Choose = Callable[[int, Tensor], Chosen]


def terms_of(op: Affine, sizes: list[Tensor]) -> Tensor:
    """|J| m + |b|, rounded up."""
    zero = [torch.zeros_like(m) for m in sizes]
    return (op.spread(*sizes) + op.apply(*zero).abs()) * LOOSE + TINY


def pull_back(
    plan: Plan,
    target: int,
    coef: Tensor,
    index: Tensor | slice,
    weights: Weights,
    choose: Choose,
    error: Mapping[int, Tensor] | None = None,
) -> Charged:
    """Bound coef . target below by a form at the input.

    `index` is each row's sample; `choose(node, coefficients)` gives lines, below f where a
    coefficient is >= 0, else above. `error`: by how much nodes as executed may be off; that of an
    affine node is for all of its run of affine operators.
    """
    graph = plan.graph
    const = coef.new_zeros(len(coef))
    charge = coef.new_zeros(len(coef))
    pending = {target: coef}

    def off(node: int, here: Tensor) -> Tensor | float:
        return _inner(here, error[node][index]) if error is not None else 0.0

    if isinstance(graph.nodes[target].op, Affine):
        charge = charge + off(target, coef)
    for step in plan.route(target):
        if step.node not in pending:
            continue
        here = pending.pop(step.node)
        if step.affine is not None:
            if not isinstance(step.affine, _EXACT):
                charge = charge + _affine_charge(plan, step.node, step.affine, here, index, weights)
            shift = step.affine.shift(here)
            if shift is not None:
                const = const + shift
            back = step.affine.pull_back(here)
        else:
            lines, op = choose(step.node, here), plan.relaxation(step.node)
            gains = here * lines.intercept
            const = const + gains.flatten(1).sum(1)
            below = op.expand(here) * lines.slope
            (source,) = graph.nodes[step.node].inputs
            sizes = gains.abs().flatten(1).sum(1) * gamma(gains[0].numel())
            sizes = sizes + _inner(below, weights.value[source][index]) * (4 * UNIT)
            lost = TINY * (gains[0].numel() + weights.total[source][index])
            charge = charge + sizes + lost + off(step.node, here)
            if isinstance(graph.nodes[source].op, Affine):
                charge = charge + off(source, below)
            back = (below,)
        charge = charge + const.abs() * (4 * UNIT)  # the running sum
        for j, part in zip(step.inputs, back, strict=True):
            if j in pending:
                both = pending[j] + part
                charge = charge + _inner(both, weights.value[j][index]) * (2 * UNIT)
                pending[j] = both
            else:
                pending[j] = part
    last = pending.get(0, const.new_zeros(len(coef), *graph.input_shape))
    return Charged(last, const, (charge + off(0, last)) * LOOSE)


def _affine_charge(
    plan: Plan, node: int, op: Affine, here: Tensor, index: Tensor | slice, weights: Weights
) -> Tensor:
    """What pulling back through an affine operator may round away, the operator's own constants
    (to a few units in the last place) included."""
    if isinstance(op, Combine) and all(abs(w) == 1 for w in op.weights):
        return here.new_zeros(len(here))
    size = plan.graph.nodes[node].size
    sums = [weights.total[j][index] for j in plan.graph.nodes[node].inputs]
    lost = TINY * size * (1 + sum(sums[1:], sums[0]))
    return _inner(here, weights.terms[node][index]) * gamma(size + 8) + lost


def _inner(coef: Tensor, size: Tensor) -> Tensor:
    """|coef| . size for every row."""
    return (coef.abs() * size)[..., None].flatten(1).sum(1)  # a lone number has no axis
