"""Passes of many leaves' final rows through a ReLU network: back to the input and forward again.

Tensors of leaves are feature-major, (neurons, leaves): a layer is a block of memory, matrices
multiply from the left, and torch adds over neurons as fast as it can. Neurons of all layers stand
in the order of `Plan.slots` of the output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import torch
from torch import Tensor

from frown.bounds.forms import Chosen, Partial, begin, descend, form_of, push_forward
from frown.bounds.plan import Plan
from frown.graph.affine import Linear, Reshape
from frown.problem.region import Region
from frown.relax.piecewise import Relu


@dataclass
class LeafLines:
    """The lines of leaves at all neurons, (slots, leaves) each.

    A neuron's output is bounded below by `low` z, above by `high` z + `rise`; `tilt` z is added to
    the row where it passes.
    """

    low: Tensor
    high: Tensor
    rise: Tensor
    tilt: Tensor


class Passes(ABC):
    """A ReLU network as leaves of some inputs pass it."""

    slots: int
    heads: int  # how many numbers a row starts from
    parts: list[slice]  # the slots of every nonlinear node
    replay: float = 1.0  # what a leaf's replay takes, as a part of what bounding it took
    kept: Tensor | None = None  # (slots,) their places among the plan's; None: all, in order

    @abstractmethod
    def head(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        """Rows coef (R, outputs) as (heads, R) coefficients where choices begin, and (R,)."""

    @abstractmethod
    def places(self, region: Region) -> Places:
        """The regions of all inputs as leaves need them."""

    @abstractmethod
    def back(self, head: Tensor, lines: LeafLines, coef: Tensor) -> Tensor:
        """Fill in the coefficients `coef` (slots, leaves) of all neurons' outputs; returns those
        of the input, as `Where.lowest` takes them."""

    @abstractmethod
    def forth(self, first: Tensor, slope: Tensor, rise: Tensor, arrived: Tensor) -> Tensor:
        """Fill in what arrives at all neurons (slots, leaves) along lines, from what `Where.lowest`
        gives; returns (heads, leaves) what rows start from."""

    @abstractmethod
    def origin(self) -> Tensor:
        """The result of `Where.lowest` where the input is 0, for one leaf."""

    @cached_property
    def bias(self) -> Tensor:
        """(slots, 1) what arrives at neurons where the input and all neurons before them are 0."""
        first = self.origin()
        zero = first.new_zeros(self.slots, 1)
        arrived = torch.empty_like(zero)
        self.forth(first, zero, zero, arrived)
        return arrived

    @abstractmethod
    def exact(self, first: Tensor) -> Tensor:
        """(heads, leaves) the values from which rows start, through the network itself."""


class Places(ABC):
    """The regions of all inputs."""

    @abstractmethod
    def of(self, sample: Tensor, radius: Tensor) -> Where:
        """The regions of leaves of these inputs, each at its radius."""


class Where(ABC):
    """The regions of leaves."""

    @abstractmethod
    def lowest(self, coef: Tensor) -> Tensor:
        """The first layer's values where forms of the input are least; may overwrite `coef`."""

    @abstractmethod
    def point(self, coef: Tensor, leaves: Tensor) -> Tensor:
        """(n, *input shape) the inputs of some leaves there."""

    @abstractmethod
    def pick(self, first: Tensor, leaves: Tensor) -> Tensor:
        """The results of `lowest` for some of the leaves."""

    @abstractmethod
    def take(self, leaves: Tensor) -> Where:
        """The regions of some of the leaves."""


def passes(plan: Plan) -> Passes | None:
    """The passes of a network whose nonlinearities are all ReLU; None for other networks."""
    if not all(isinstance(plan.relaxation(i), Relu) for i in plan.nonlinear) or not plan.nonlinear:
        return None
    layers = _dense(plan)
    return General(plan) if layers is None else Dense(plan, layers)


def _dense(plan: Plan) -> list[Linear] | None:
    """The layers of a chain of dense ones with ReLU in between."""
    layers: list[Linear] = []
    linear = False
    for step in reversed(plan.route(plan.graph.output)):
        if isinstance(step.affine, Reshape):
            continue
        shape = plan.graph.nodes[step.node].shape
        flat = prod(shape) == shape[-1]
        if isinstance(step.affine, Linear) and not linear and flat:
            layers.append(step.affine)
            linear = True
        elif step.relaxation is not None and linear:
            linear = False
        else:
            return None
    return layers if linear and len(layers) > 1 and plan.chain(plan.graph.output) else None


class Dense(Passes):
    """A chain of dense layers: nothing but products of small matrices."""

    replay = 0.4

    def __init__(self, plan: Plan, layers: list[Linear]) -> None:
        self.plan = plan
        self.weight = [layer.weight.contiguous() for layer in layers]
        self.turned = [w.T.contiguous() for w in self.weight]
        self.biases = [layer.bias[:, None].contiguous() for layer in layers]
        self.depth = len(layers) - 1
        self.parts = []
        start = 0
        for w in self.weight[:-1]:
            self.parts.append(slice(start, start + len(w)))
            start += len(w)
        self.slots, self.heads = start, len(self.weight[-2])

    def head(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        return (coef @ self.weight[-1]).T.contiguous(), coef @ self.biases[-1][:, 0]

    def places(self, region: Region) -> Places:
        return DensePlaces(self, region)

    def back(self, head: Tensor, lines: LeafLines, coef: Tensor) -> Tensor:
        lean = lines.low - lines.high
        here = head
        for k in range(self.depth - 1, -1, -1):
            part = self.parts[k]
            own = coef[part]
            if k == self.depth - 1:
                own.copy_(head)
            else:
                torch.mm(self.turned[k + 1], here, out=own)
            here = torch.addcmul(lines.tilt[part], lines.high[part], own)
            here.addcmul_(own.relu(), lean[part])
        return here

    def forth(self, first: Tensor, slope: Tensor, rise: Tensor, arrived: Tensor) -> Tensor:
        last = self.depth - 1
        arrived[self.parts[0]] = first
        for k, part in enumerate(self.parts):
            value = torch.addcmul(rise[part], slope[part], arrived[part])
            if k < last:
                torch.addmm(
                    self.biases[k + 1], self.weight[k + 1], value, out=arrived[self.parts[k + 1]]
                )
        return value

    def origin(self) -> Tensor:
        return self.biases[0]

    def exact(self, first: Tensor) -> Tensor:
        value = first.relu()
        for k in range(1, self.depth):
            value = torch.addmm(self.biases[k], self.weight[k], value).relu_()
        return value


class DensePlaces(Places):
    """Balls as a first dense layer sees them: from their centres."""

    def __init__(self, own: Dense, region: Region) -> None:
        self.own, self.region = own, region
        weight, box = own.weight[0], region.p == inf
        self.kind = "any"
        centre = region.centre.flatten(1)
        if region.split is None and region.p in (1, 2, inf) and not region.clipped:
            if region.scale is None:
                self.kind = "ball"
            elif box:
                self.kind = "box"
        elif region.split is None and box:
            self.kind = "box"
        self.weight, self.turned = weight, own.turned[0]
        self.basis: Tensor | None = None
        if self.kind == "ball" and region.p == 2 and weight.shape[0] < weight.shape[1]:
            # W = R^T Q^T sees no more of a ball than Q^T d, and that fills a ball.
            basis, upper = torch.linalg.qr(weight.double().T)
            self.basis = basis.to(weight)
            self.weight = upper.T.contiguous().to(weight)
            self.turned = self.weight.T.contiguous()
        self.middle = own.weight[0] @ centre.T + own.biases[0]  # (first layer, N)

    def of(self, sample: Tensor, radius: Tensor) -> Where:
        return DenseWhere(self, sample, radius)


class DenseWhere(Where):
    def __init__(self, places: DensePlaces, sample: Tensor, radius: Tensor) -> None:
        self.places, self.sample, self.radius = places, sample, radius
        self.middle = places.middle.index_select(1, sample)
        self.reach: Tensor | None = None
        if places.kind == "box":
            box = places.region.rows(sample).with_radius(radius).box()
            self.reach = box.radius.flatten(1).T.contiguous()
            shift = (box.middle - places.region.centre.index_select(0, sample)).flatten(1)
            self.middle = self.middle + places.weight @ shift.T

    def take(self, leaves: Tensor) -> DenseWhere:
        own = object.__new__(DenseWhere)
        own.places = self.places
        own.sample, own.radius = self.sample[leaves], self.radius[leaves]
        own.middle = self.middle.index_select(1, leaves)
        own.reach = None if self.reach is None else self.reach.index_select(1, leaves)
        return own

    def lowest(self, coef: Tensor) -> Tensor:
        places = self.places
        if places.kind == "any":
            return self._first(self._points(coef, slice(None)))
        if places.kind == "box":
            assert self.reach is not None
            step = torch.mm(places.turned, coef).sign_().mul_(self.reach)
            return self.middle - places.weight @ step
        far = torch.mm(places.turned, coef)
        p = places.region.p
        if p == inf:
            step = places.weight @ far.sign_()
        elif p == 2:
            step = places.weight @ (far / far.norm(dim=0).clamp(min=1e-30))
        else:
            where = far.abs().argmax(0)
            sign = far.gather(0, where[None]).sign()
            step = places.weight.index_select(1, where) * sign
        return torch.addcmul(self.middle, step, self.radius, value=-1)

    def pick(self, first: Tensor, leaves: Tensor) -> Tensor:
        return first.index_select(1, leaves)

    def point(self, coef: Tensor, leaves: Tensor) -> Tensor:
        return self.take(leaves)._points(coef.index_select(1, leaves), slice(None))

    def _points(self, coef: Tensor, which: slice) -> Tensor:
        region = self.places.region
        back = torch.mm(self.places.own.turned[0], coef).T.reshape(-1, *region.centre.shape[1:])
        return region.rows(self.sample).with_radius(self.radius).lowest(back)

    def _first(self, points: Tensor) -> Tensor:
        own = self.places.own
        return torch.addmm(own.biases[0], own.weight[0], points.flatten(1).T)


class General(Passes):
    """Any graph of affine operators and ReLU: rows go the way of all others, some transposing
    apart."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.output = plan, plan.graph.output
        self.where, self.slots = plan.slots(self.output)
        self.shapes = {i: plan.graph.nodes[plan.graph.nodes[i].inputs[0]].shape for i in self.where}
        probe = torch.zeros(1, plan.graph.output_size, dtype=plan.graph.dtype)
        start = begin(plan, self.output, probe.view(1, *plan.graph.nodes[self.output].shape))
        self.begun = list(start.pending)
        self.stop = start.stop
        self.sizes = [start.pending[i][0].numel() for i in self.begun]
        self.heads = sum(self.sizes)
        self.parts = list(self.where.values())

    def head(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.plan.graph.nodes[self.output].shape
        start = begin(self.plan, self.output, coef.view(-1, *shape))
        flat = torch.cat([start.pending[i].flatten(1) for i in self.begun], 1)
        return flat.T.contiguous(), start.const

    def places(self, region: Region) -> Places:
        return GeneralPlaces(self, region)

    def back(self, head: Tensor, lines: LeafLines, coef: Tensor) -> Tensor:
        rows = head.shape[1]
        pending = {}
        for i, own in zip(self.begun, head.split_with_sizes(self.sizes), strict=True):
            pending[i] = own.T.reshape(rows, *self.plan.graph.nodes[i].shape)
        lean = lines.low - lines.high
        coef.zero_()

        def through(i: int, here: Tensor) -> tuple[None, Tensor]:
            part = self.where[i]
            own = here.flatten(1).T
            coef[part] = own
            below = torch.addcmul(lines.tilt[part], lines.high[part], own)
            below.addcmul_(own.relu(), lean[part])
            return None, below.T.reshape(rows, *self.shapes[i])

        start = Partial(pending, head.new_zeros(rows), self.stop)
        end = descend(self.plan, self.output, start, through, constants=False)
        return form_of(self.plan, end).coef

    def forth(self, first: Tensor, slope: Tensor, rise: Tensor, arrived: Tensor) -> Tensor:
        rows = len(first)
        lines = {
            i: Chosen(
                slope[part].T.reshape(rows, *self.shapes[i]),
                rise[part].T.reshape(rows, *self.shapes[i]),
            )
            for i, part in self.where.items()
        }

        def see(i: int, z: Tensor) -> None:
            arrived[self.where[i]] = z.flatten(1).T

        values = push_forward(self.plan, self.output, first, lines, see)
        return self._heads(values)

    def origin(self) -> Tensor:
        graph = self.plan.graph
        return torch.zeros(1, *graph.input_shape, dtype=graph.dtype)

    def exact(self, first: Tensor) -> Tensor:
        return self._heads(self._through(first))

    def slope(self, x: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """(leaves,) rows `head` (heads, leaves) at points (leaves, *input shape), and their
        derivatives there."""
        values = self._through(x)
        side = head.new_empty(self.slots, len(x))
        for i, part in self.where.items():
            side[part] = (values[i] > 0).flatten(1).T.to(side)
        nothing = torch.zeros((), dtype=head.dtype).expand_as(side)
        lines = LeafLines(side, side, nothing, nothing)
        slope = self.back(head, lines, torch.empty_like(side))
        return (head * self._heads(values)).sum(0), slope

    def _through(self, first: Tensor) -> dict[int, Tensor]:
        """The values of nodes on the way to the output."""
        values = {0: first}
        for step in reversed(self.plan.route(self.output)):
            op = step.affine if step.affine is not None else step.relaxation
            assert op is not None
            values[step.node] = op.apply(*[values[j] for j in step.inputs])
        return values

    def _heads(self, values: dict[int, Tensor]) -> Tensor:
        return torch.cat([values[i].flatten(1) for i in self.begun], 1).T


class GeneralPlaces(Places):
    def __init__(self, own: General, region: Region) -> None:
        self.own, self.region = own, region

    def of(self, sample: Tensor, radius: Tensor) -> Where:
        return GeneralWhere(self.region.rows(sample).with_radius(radius))


class GeneralWhere(Where):
    def __init__(self, region: Region) -> None:
        self.region = region

    def lowest(self, coef: Tensor) -> Tensor:
        return self.region.lowest(coef)

    def pick(self, first: Tensor, leaves: Tensor) -> Tensor:
        return first.index_select(0, leaves)

    def point(self, coef: Tensor, leaves: Tensor) -> Tensor:
        return self.region.rows(leaves).lowest(coef.index_select(0, leaves))

    def take(self, leaves: Tensor) -> GeneralWhere:
        return GeneralWhere(self.region.rows(leaves))
