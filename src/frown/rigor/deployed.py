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

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.graph.op import Affine
from frown.relax.relaxation import Relaxation
from frown.rigor.forms import terms_of
from frown.rigor.rounding import LOOSE
from frown.rigor.single import LARGE32, TINY32, UNIT32, fan, gamma32, own_error, roundings


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of affine operators up to a node."""

    terms: Tensor  # sizes of the terms of its sums
    lost: Tensor  # what may be flushed to 0
    rounded: int  # how often a term has been rounded


@dataclass
class Execution:
    """Errors of nodes as they grow, over the regions of a walk; all tensors are (N, *shape)."""

    # At least |e|: of a nonlinear node its own, of an affine node that of its run.
    error: dict[int, Tensor] = field(default_factory=dict)
    _runs: dict[int, _Run] = field(default_factory=dict)

    def input(self, node: int, size: Tensor) -> Tensor:
        """The input of this size at the most, rounded to single precision."""
        self.error[node] = _finite(size, (size * UNIT32 + TINY32) * LOOSE)
        return self.error[node]

    def affine(self, node: int, op: Affine, inputs: Sequence[int], sizes: list[Tensor]) -> Tensor:
        """An affine operator that reads values of these sizes."""
        runs = [self._runs.get(j) or _begin(m) for j, m in zip(inputs, sizes, strict=True)]
        terms = terms_of(op, [run.terms for run in runs])
        lost = op.spread(*(run.lost for run in runs))
        if roundings(op):
            # What it reads may be flushed to 0, and its weights, products, sums and bias.
            lost = op.spread(*(run.lost + TINY32 for run in runs))
            largest = torch.stack([run.terms.flatten(1).amax(1) for run in runs]).amax(0)
            flushed = (2 * fan(op) + 2) * TINY32 * (1 + largest)
            lost = lost + flushed.view(-1, *([1] * (lost.dim() - 1)))
        rounded = max(run.rounded for run in runs) + roundings(op)
        self._runs[node] = run = _Run(terms, lost * LOOSE, rounded)
        error = run.terms * gamma32(rounded) + 2 * run.lost
        self.error[node] = _finite(run.terms, error * LOOSE)
        return self.error[node]

    def nonlinear(self, node: int, op: Relaxation, argument: Tensor, value: Tensor) -> Tensor:
        """A nonlinear operator with an argument and a value of these sizes."""
        error = own_error(op, argument, value)
        self.error[node] = _finite(value + error, error * LOOSE)
        return self.error[node]


def _begin(size: Tensor) -> _Run:
    return _Run(size, torch.zeros_like(size), 0)


def _finite(size: Tensor, error: Tensor) -> Tensor:
    """Numbers that are too large overflow, and nothing is known of what follows."""
    return torch.where(size < LARGE32, error, torch.inf)
