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

from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor

from frown.bounds.forms import Partial, descend, form_of
from frown.bounds.plan import Plan
from frown.graph.affine import Conv, ConvTranspose, Linear
from frown.methods.branch.passes import Lines, Passes, Places, Where
from frown.problem.region import Region

BANDS = (1, 2, 4, 8, 16, 32)  # into which the rows of a matrix may be divided
CALL = 20_000  # multiplications that take as long as calling a product for one leaf
SLOWER = 4  # times a convolution's multiplications are slower than those of a product of matrices
ROWS = 256  # rows that are extracted at once


@dataclass(frozen=True)
class Block:
    """A dense part of a matrix from values (the input, then kept neurons) to what arrives."""

    rows: slice
    columns: slice
    weight: Tensor  # (rows, columns)


@dataclass(frozen=True)
class Arriving:
    """The affine functions that arrive at the kept neurons of a nonlinearity, or at the outputs."""

    rows: slice
    bias: Tensor  # (rows, 1)
    blocks: tuple[Block, ...]


class Unstable(Passes):
    """A network over the boxes of one region; slots are those of the kept neurons."""

    replay = 0.3

    def __init__(self, plan: Plan, lower: Tensor, upper: Tensor, folded: bool) -> None:
        """Boxes are (slots of the plan,): of all neurons that the output depends on."""
        self.plan, graph, output = plan, plan.graph, plan.graph.output
        where, _ = plan.slots(output)
        active, open_ = lower >= 0, (lower < 0) & (upper > 0)
        keep = open_ if folded else open_ | active
        order, parts, start = [], [], 0
        for i, part in where.items():
            (source,) = graph.nodes[i].inputs
            kept = keep[part]
            place = in_image_order(graph.nodes[source].shape)
            mine = part.start + place[kept[place]]
            order.append(mine)
            parts.append(slice(start, start + len(mine)))
            start += len(mine)
        self.kept = torch.cat(order)
        self.slots, self.heads, self.parts = start, graph.output_size, parts
        self.pixels = in_image_order(graph.input_shape)
        self.features = len(self.pixels)
        passing = (active & ~keep).to(lower)
        self.layers = []
        for i, part in zip(where, parts, strict=True):
            (source,) = graph.nodes[i].inputs
            entries = self.kept[part] - where[i].start
            self.layers.append(self._layer(source, entries, part, where, passing))
        last = slice(start, start + graph.output_size)
        every = torch.arange(graph.output_size)
        self.layers.append(self._layer(output, every, last, where, passing))

    def _layer(
        self, node: int, entries: Tensor, rows: slice, where: dict[int, slice], passing: Tensor
    ) -> Arriving:
        """Pull the entries of a node back to kept neurons and to the input."""
        plan, shape = self.plan, self.plan.graph.nodes[node].shape
        size = self.plan.graph.nodes[node].size
        matrices, biases = [], []
        for begin in range(0, len(entries), ROWS):
            some = entries[begin : begin + ROWS]
            coef = passing.new_zeros(len(some), size)
            coef[torch.arange(len(some)), some] = 1
            row = passing.new_zeros(len(some), self.features + self.slots)
            spread = passing.new_zeros(len(some), len(passing))

            def through(i: int, here: Tensor, spread: Tensor = spread) -> tuple[None, Tensor]:
                part = where[i]
                spread[:, part] = here.flatten(1)
                below = here.flatten(1) * passing[part]
                return None, below.view(len(here), *plan.graph.nodes[i].shape)

            start = Partial({node: coef.view(-1, *shape)}, coef.new_zeros(len(some)), node)
            end = form_of(plan, descend(plan, node, start, through))
            row[:, : self.features] = end.coef.flatten(1)[:, self.pixels]
            row[:, self.features :] = spread[:, self.kept]
            matrices.append(row)
            biases.append(end.const)
        if not matrices:
            return Arriving(rows, passing.new_zeros(0, 1), ())
        matrix, bias = torch.cat(matrices), torch.cat(biases)
        sources = [slice(0, self.features)]
        sources += [slice(self.features + p.start, self.features + p.stop) for p in self.parts]
        blocks = [b for s in sources for b in bands(matrix[:, s], rows.start, s.start)]
        return Arriving(rows, bias[:, None].contiguous(), tuple(blocks))

    @property
    def work(self) -> int:
        """Multiplications of one leaf's row on its way back."""
        return sum(b.weight.numel() + CALL // 8 for layer in self.layers for b in layer.blocks)

    @property
    def bytes(self) -> int:
        """The memory of all matrices."""
        return sum(4 * b.weight.numel() for layer in self.layers for b in layer.blocks)

    def head(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        return coef.T.contiguous(), coef.new_zeros(len(coef))

    def places(self, region: Region) -> Places:
        return UnstablePlaces(self, region)

    def back(self, head: Tensor, lines: Lines, coef: Tensor) -> Tensor:
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


def in_image_order(shape: tuple[int, ...]) -> Tensor:
    """The entries of a node, channels of a pixel together, pixels row by row."""
    every = torch.arange(prod(shape)).view(shape)
    return every.movedim(-3, -1).flatten() if len(shape) > 2 else every.flatten()


def bands(matrix: Tensor, row: int, column: int) -> list[Block]:
    """A matrix as dense blocks: consecutive rows, each from its first to its last column that is
    not 0 in all of them. Numbers of blocks are tried; `row` and `column` are where it begins."""
    if not matrix.numel():
        return []
    found = matrix != 0
    some = found.any(1)
    width = matrix.shape[1]
    first = torch.where(some, found.to(torch.uint8).argmax(1), width)
    last = torch.where(some, width - found.flip(1).to(torch.uint8).argmax(1), 0)
    best, least = [slice(0, len(matrix))], inf
    for count in BANDS:
        size = -(-len(matrix) // count)
        slices = [slice(a, min(a + size, len(matrix))) for a in range(0, len(matrix), size)]
        cost = sum(
            (s.stop - s.start) * max(0, int(last[s].max() - first[s].min())) + CALL // 8
            for s in slices
        )
        if cost < least:
            best, least = slices, cost
    blocks = []
    for s in best:
        a, b = int(first[s].min()), int(last[s].max())
        if a < b:
            rows, columns = slice(row + s.start, row + s.stop), slice(column + a, column + b)
            blocks.append(Block(rows, columns, matrix[s, a:b].contiguous()))
    return blocks


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
    seen = plan.graph.nodes[0].size
    total = 0
    for part in plan.slots(plan.graph.output)[0].values():
        count = int(keep[part].sum())
        total += count * seen
        seen += count
    return 4 * total


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
