"""A halfspace that holds what is left of a region.

A proof by contradiction looks at points alone where the property fails: a literal is at most some
level there, and so is any form c . x + d below it. For such points every row may add this form with
any *factor* f >= 0, for it is at most 0:

    row(x) >= row(x) + f (c . x + d)    where c . x + d <= 0.

So the least value of a row over region and halfspace together is found by one number per row, over
the region alone. Any factor is valid; the best is where the minimiser comes to lie on the plane.

A form that is at most 0 passes the network layer by layer, and what it is at a layer says more than
what is left of it at the input: added to a row that bounds a neuron of that layer, coefficients of
both join before lines are chosen for them. These are the layer's `Planes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST, MOST = 1e-3, 1e2  # factors, in units of a row's size in that of the plane
HALVINGS = 8


@dataclass(frozen=True, slots=True)
class Halfspace:
    """coef . x + const <= 0, for every sample or row."""

    coef: Tensor  # (N, *input shape)
    const: Tensor  # (N,)

    def rows(self, index: Tensor | slice) -> Halfspace:
        """The halfspaces of these samples."""
        return Halfspace(self.coef[index], self.const[index])

    def at(self, x: Tensor) -> Tensor:
        """(N,) coef . x + const."""
        return (self.coef * x).flatten(1).sum(1) + self.const


@dataclass(frozen=True, slots=True)
class Planes:
    """Some halfspaces of a node's values, for every sample: coef . z + const <= 0 of each."""

    coef: Tensor  # (N, planes, entries); 0 where there is none, and const too
    const: Tensor  # (N, planes)

    def rows(self, index: Tensor | slice) -> Planes:
        """The planes of these samples."""
        return Planes(self.coef[index], self.const[index])

    def at(self, z: Tensor) -> Tensor:
        """(N, planes) coef . z + const, for values (N, entries)."""
        return torch.baddbmm(self.const[..., None], self.coef, z[..., None]).squeeze(2)

    def added(self, factors: Tensor) -> Tensor:
        """(N, entries) the sum of coefficients times factors (N, planes)."""
        return torch.bmm(factors[:, None], self.coef).squeeze(1)


def best_factor(
    coef: Tensor, half: Halfspace, minimiser: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """(rows,) factors near the best for rows coef . x, and (rows, ...) coefficients with them.

    `minimiser` gives where a form is least over the region. What a factor gains is concave in it,
    and its derivative is the plane's value at the minimiser: so factors are found by halving.
    """
    shape = (-1, *([1] * (coef.dim() - 1)))
    size, own = (t.abs().flatten(1).sum(1) for t in (coef, half.coef))
    unit = size / own.clamp(min=torch.finfo(coef.dtype).tiny)
    low, high = LEAST * unit, MOST * unit
    active = half.at(minimiser(coef)) > 0
    for _ in range(HALVINGS):
        middle = (low * high).sqrt()
        more = half.at(minimiser(torch.addcmul(coef, middle.view(shape), half.coef))) > 0
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    factor = torch.where(active & low.isfinite(), low, 0.0)
    return factor, torch.addcmul(coef, factor.view(shape), half.coef)
