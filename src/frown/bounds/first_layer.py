"""The first layer, seen from the centres of balls.

With x = centre + d a first layer W x + b is W d + (W centre + b): balls lie about the origin,
and all that a row needs of its sample is a radius and a bias. For p = 2 the layer W = R^T Q^T,
Q with orthonormal columns, sees no more of d than Q^T d, and that fills the ball of as many
dimensions as the layer has neurons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor

from frown.bounds.forms import LinearForm
from frown.bounds.plan import Plan, per_plan
from frown.graph.affine import Linear, Reshape, product
from frown.graph.intervals import rows_of
from frown.problem.region import Region


class Start(ABC):
    """A node where forms end and points begin; its values are a function of some d in a ball."""

    node: int

    @abstractmethod
    def moved(self, form: LinearForm, constants: bool = True) -> LinearForm:
        """A form at the node as one of d; without `constants` these are left out."""

    @abstractmethod
    def least(self, coef: Tensor) -> Tensor:
        """(rows,) the least value of coef . d."""

    @abstractmethod
    def lowest(self, coef: Tensor) -> Tensor:
        """The node's values where coef . d is least."""

    @abstractmethod
    def minimiser(self, coef: Tensor) -> Tensor:
        """(rows, ...) the d where coef . d is least."""


@dataclass(frozen=True, slots=True)
class AtInput(Start):
    """The input itself, in its region."""

    region: Region
    node: int = 0

    def moved(self, form: LinearForm, constants: bool = True) -> LinearForm:
        return form

    def least(self, coef: Tensor) -> Tensor:
        return self.region.least(coef)

    def lowest(self, coef: Tensor) -> Tensor:
        return self.region.lowest(coef)

    def minimiser(self, coef: Tensor) -> Tensor:
        return self.region.lowest(coef)


@dataclass(frozen=True, slots=True)
class AtFirstLayer(Start):
    """{ weight d + bias : d in ball }: a dense first layer, seen from the ball's centre."""

    node: int
    layer: Linear  # its weight (neurons, dimensions of d)
    bias: Tensor  # (rows, *shape of the node); (1, ...) where all rows share one
    ball: Region  # of d, about the origin

    def moved(self, form: LinearForm, constants: bool = True) -> LinearForm:
        const = form.const
        if constants:
            const = const + (form.coef * self.bias).flatten(1).sum(1)
        return LinearForm(self.layer.product(form.coef.flatten(1)), const)

    def least(self, coef: Tensor) -> Tensor:
        if self.ball.p == inf:
            return -self.ball.radius * coef.abs().sum(1)
        return -self.ball.radius * self.ball.gain(coef)

    def lowest(self, coef: Tensor) -> Tensor:
        # W d^T is faster than d W^T where neurons are few.
        if self.ball.p == inf:
            step = product(self.layer.weight, coef.sign().T).T
            if self.bias.dim() == 2:
                return torch.addcmul(self.bias, step, self.ball.radius[:, None], value=-1)
            step = step * -self.ball.radius[:, None]
        else:
            step = product(self.layer.weight, self.ball.lowest(coef).T).T
        return self.bias + step.reshape(-1, *self.bias.shape[1:])

    def minimiser(self, coef: Tensor) -> Tensor:
        if self.ball.p == inf:
            return coef.sign() * -self.ball.radius[:, None]
        return self.ball.lowest(coef)


def first_layer(
    plan: Plan, target: int, region: Region, index: Tensor | slice, narrow: bool = True
) -> AtFirstLayer | None:
    """The start for rows of these samples. Unless `narrow`, d has the input's own coordinates.

    None where the input is not read by one dense layer alone, or where the balls are cut or
    stretched, unless to one box for all rows.
    """
    node = _entrance(plan, target)
    if node is None:
        return None
    if region.clipped or region.scale is not None or region.split is not None:
        if region.p == inf and narrow and isinstance(index, slice):
            return _of_box(plan, node, region, index)
        return None
    op = _layer(plan, node)
    source = plan.graph.nodes[plan.graph.nodes[node].inputs[0]].shape
    centre, layer = region.centre, op
    bias = plan.latest(("bias", node), (centre,), lambda: op.apply(centre.reshape(-1, *source)))
    if narrow and region.p == 2 and op.weight.shape[0] < op.weight.shape[1]:
        layer = op.narrow
    size = layer.weight.shape[1]
    ball = Region(layer.weight.new_zeros(1, size), rows_of(region.radius, index), region.p)
    return AtFirstLayer(node, layer, rows_of(bias, index), ball)


def _of_box(plan: Plan, node: int, region: Region, index: slice) -> AtFirstLayer | None:
    """The start for rows that share a box, d being in units of its half-widths."""
    if len(rows_of(region.radius, index)) > 1:
        return None

    def layer() -> Linear:
        box, op = region.rows(index).box(), _layer(plan, node)
        source = plan.graph.nodes[plan.graph.nodes[node].inputs[0]].shape
        bias = op.apply(box.middle.reshape(-1, *source))
        return Linear(op.weight * box.radius.flatten(), bias)

    # Rows come in many chunks, and a wide layer is larger than a chunk.
    own = plan.latest(("box", node), (region, index.start), layer)
    ball = Region(own.weight.new_zeros(1, own.weight.shape[1]), own.weight.new_ones(1), inf)
    return AtFirstLayer(node, own, own.bias, ball)


def is_narrowed(plan: Plan, target: int, region: Region) -> bool:
    """True if rows see fewer dimensions of the balls than the input has, for p = 2."""
    whole = region.clipped or region.scale is not None or region.split is not None
    return region.p == 2 and not whole and _entrance(plan, target) is not None


@per_plan
def _entrance(plan: Plan, target: int) -> int | None:
    """The dense layer that alone reads the input, flattened or not."""
    if not plan.below(target):
        return None
    among, node = set(plan.ancestors(target)), 0
    while True:
        readers = [i for i in plan.graph.consumers[node] if i in among]
        if len(readers) != 1:
            return None
        (node,) = readers
        if not isinstance(plan.graph.nodes[node].op, Reshape):
            break
    read = plan.graph.nodes[plan.graph.nodes[node].inputs[0]].shape
    whole = isinstance(plan.graph.nodes[node].op, Linear) and prod(read) == read[-1]
    return node if whole else None


def _layer(plan: Plan, node: int) -> Linear:
    op = plan.graph.nodes[node].op
    assert isinstance(op, Linear)
    return op
