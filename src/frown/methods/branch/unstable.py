"""A ReLU network over one region, written with its unstable neurons alone.

Over fixed boxes, a neuron whose box has no 0 inside is 0 or a linear function. So what arrives at
an unstable neuron is an affine function of the input and of the unstable neurons before it:

    z_k = W_k0 x + sum over j < k of W_kj relu(z_j) + b_k

and these matrices say all there is to say about the network on the region, whatever its operators.
A leaf's row then passes some hundreds of neurons in place of thousands. Where stable neurons
connect few others, as in dense layers, active ones may stay (`folded` False): a matrix from every
layer to every later one would be larger than those of the layers themselves.

What convolutions connect is local. Neurons stand in the order of their places in the image, and
matrices are stored as blocks along their bands.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from frown.bounds.forms import Partial, descend, form_of
from frown.bounds.plan import Plan
from frown.bounds.unstable import CALL, Arriving, KeptNeurons, PulledBack
from frown.graph.affine import Conv, ConvTranspose, Linear
from frown.methods.branch.passes import LeafLines, Passes, Places, Where
from frown.problem.region import Region

SLOWER = 4  # times a convolution's multiplications are slower than those of a product of matrices


class Unstable(Passes):
    """A network over the boxes of one region; slots are those of the kept neurons."""

    replay = 0.3

    def __init__(self, plan: Plan, lower: Tensor, upper: Tensor, folded: bool) -> None:
        """Boxes are (slots of the plan,): of all neurons that the output depends on."""
        self.plan = plan
        active, open_ = lower >= 0, (lower < 0) & (upper > 0)
        keep = open_ if folded else open_ | active
        self.neurons = KeptNeurons.of(plan, keep)
        self.kept, self.pixels = self.neurons.slots, self.neurons.pixels
        self.slots, self.features = len(self.kept), len(self.pixels)
        self.heads, self.parts = plan.graph.output_size, list(self.neurons.parts)
        self.passing = (active & ~keep).to(lower)
        self.layers, _ = self.neurons.layers(self._pull)

    def _pull(self, node: int, entries: Tensor) -> PulledBack:
        """Entries of a node, as functions of the input and of kept neurons."""
        plan, count = self.plan, len(entries)
        shape, size = plan.graph.nodes[node].shape, plan.graph.nodes[node].size
        where, total = plan.slots(plan.graph.output)
        coef = self.passing.new_zeros(count, size)
        coef[torch.arange(count), entries] = 1
        seen = coef.new_zeros(count, total)

        def through(i: int, here: Tensor) -> tuple[None, Tensor]:
            seen[:, where[i]] = here.flatten(1)
            below = here.flatten(1) * self.passing[where[i]]
            return None, below.view(count, *plan.graph.nodes[i].shape)

        start = Partial({node: coef.view(-1, *shape)}, coef.new_zeros(count), node)
        end = form_of(plan, descend(plan, node, start, through))
        exact = torch.zeros_like(end.const)
        return PulledBack(end.coef.flatten(1), seen[:, self.kept], end.const, exact)

    @property
    def work(self) -> int:
        """Multiplications of one leaf's row on its way back."""
        return sum(b.weight.numel() + CALL for layer in self.layers for b in layer.blocks)

    def head(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        return coef.T.contiguous(), coef.new_zeros(len(coef))

    def places(self, region: Region) -> Places:
        return UnstablePlaces(self, region)

    def back(self, head: Tensor, lines: LeafLines, coef: Tensor) -> Tensor:
        lean = lines.low - lines.high
        every = head.new_zeros(self.features + self.slots, head.shape[1])
        below = head
        for layer in reversed(self.layers):
            part = layer.rows
            if part.start < self.slots:
                own = every[self.features + part.start : self.features + part.stop]
                below = torch.addcmul(lines.tilt[part], lines.high[part], own)
                below.addcmul_(own.relu(), lean[part])
            for block in layer.blocks:
                rows = below[block.rows.start - part.start : block.rows.stop - part.start]
                every[block.columns].addmm_(block.weight.T, rows)
        coef.copy_(every[self.features :])
        return every[: self.features]

    def forth(self, first: Tensor, slope: Tensor, rise: Tensor, arrived: Tensor) -> Tensor:
        value = first.new_empty(self.features + self.slots, first.shape[1])
        value[: self.features] = first
        for layer in self.layers[:-1]:
            part = layer.rows
            z = self._arrive(layer, value, arrived[part])
            torch.addcmul(rise[part], slope[part], z, out=value[self.features :][part])
        last = self.layers[-1]
        return self._arrive(last, value, first.new_empty(self.heads, first.shape[1]))

    def origin(self) -> Tensor:
        return self.passing.new_zeros(self.features, 1)

    def exact(self, first: Tensor) -> Tensor:
        value = first.new_empty(self.features + self.slots, first.shape[1])
        value[: self.features] = first
        for layer in self.layers[:-1]:
            z = value[self.features :][layer.rows]
            # On the region, neurons that were kept though active never arrive below 0.
            self._arrive(layer, value, z).clamp_(min=0)
        last = self.layers[-1]
        return self._arrive(last, value, first.new_empty(self.heads, first.shape[1]))

    def _arrive(self, layer: Arriving, value: Tensor, z: Tensor) -> Tensor:
        z.copy_(layer.bias.expand_as(z))
        for block in layer.blocks:
            rows = z[block.rows.start - layer.rows.start : block.rows.stop - layer.rows.start]
            rows.addmm_(block.weight, value[block.columns])
        return z


def plain_work(plan: Plan) -> int:
    """Multiplications of one row on its way back through the network as it is."""
    nodes, total = plan.graph.nodes, 0
    for step in plan.route(plan.graph.output):
        op, size = step.affine, nodes[step.node].size
        if isinstance(op, Linear):
            total += size * op.weight.shape[1]
        elif isinstance(op, Conv):
            total += size * op.weight[0].numel()
        elif isinstance(op, ConvTranspose):
            total += nodes[step.inputs[0]].size * op.weight[0].numel()
        else:
            total += size
    return total


def unstable(plan: Plan, lower: Tensor, upper: Tensor, memory: int) -> Unstable | None:
    """The network over these boxes (slots,) by its unstable neurons; None where its own operators
    are cheaper, or the matrices take more than this memory."""
    best: Unstable | None = None
    least = SLOWER * plain_work(plan)
    for folded in (False, True) if all_dense(plan) else (True, False):
        if rough_bytes(plan, lower, upper, folded) <= memory:
            own = Unstable(plan, lower, upper, folded)
            if own.work < least:
                best, least = own, own.work
            if best is not None and best.work < plain_work(plan):
                break
    return best


def all_dense(plan: Plan) -> bool:
    """True if no weights are shared by several entries."""
    ops = (step.affine for step in plan.route(plan.graph.output))
    return not any(isinstance(op, Conv | ConvTranspose) for op in ops)


def rough_bytes(plan: Plan, lower: Tensor, upper: Tensor, folded: bool) -> int:
    """The memory of the matrices before zeros are left out."""
    open_ = (lower < 0) & (upper > 0)
    keep = open_ if folded else open_ | (lower >= 0)
    return KeptNeurons.of(plan, keep).size() * lower.element_size()


class UnstablePlaces(Places):
    """The one region, its pixels in the order of the matrices."""

    def __init__(self, own: Unstable, region: Region) -> None:
        self.own, self.region = own, region

    def of(self, sample: Tensor, radius: Tensor) -> Where:
        return UnstableWhere(self, sample, radius)


class UnstableWhere(Where):
    """Leaves of one input, all at one radius."""

    def __init__(self, places: UnstablePlaces, sample: Tensor, radius: Tensor) -> None:
        self.places, self.sample, self.radius = places, sample, radius
        self.box: tuple[Tensor, Tensor] | None = None
        region = places.region
        if region.p == inf and region.split is None:
            box = region.with_radius(radius[:1]).box()
            order = places.own.pixels
            self.box = (
                box.middle.flatten()[order, None].contiguous(),
                -box.radius.flatten()[order, None].contiguous(),
            )

    def lowest(self, coef: Tensor) -> Tensor:
        if self.box is None:
            return self._points(coef).flatten(1).T[self.places.own.pixels]
        middle, reach = self.box
        return torch.addcmul(middle, coef.sign_(), reach)

    def point(self, coef: Tensor, leaves: Tensor) -> Tensor:
        return self.take(leaves)._points(coef.index_select(1, leaves))

    def pick(self, first: Tensor, leaves: Tensor) -> Tensor:
        return first.index_select(1, leaves)

    def take(self, leaves: Tensor) -> UnstableWhere:
        own = object.__new__(UnstableWhere)
        own.places, own.box = self.places, self.box
        own.sample, own.radius = self.sample[leaves], self.radius[leaves]
        return own

    def _points(self, coef: Tensor) -> Tensor:
        region = self.places.region
        plain = torch.empty_like(coef)
        plain[self.places.own.pixels] = coef
        shaped = plain.T.reshape(-1, *region.centre.shape[1:])
        return region.rows(self.sample).with_radius(self.radius).lowest(shaped)
