"""Parts: neurons that are bounded in one graph.

Either all of a node's neurons in the whole graph, or those that read patches of one form in a crop
of it. A neuron of a convolution reads a patch of every earlier layer. Its row lives in the network
cropped to that patch, with all that is known of samples cropped alike; a crop at another place is
like another sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.bounds.first_layer import AtInput, Start, first_layer
from frown.bounds.plan import Plan, per_plan
from frown.bounds.stacks import line_rows, stacked
from frown.graph.affine import Conv, ConvTranspose
from frown.graph.box import Box
from frown.problem.region import Region
from frown.relax.relaxation import Lines, Relaxed, SlopeRange, Slopes


class Part(ABC):
    """Neurons of a node that are bounded in one graph.

    `neurons` (places, entries): for every place of the graph, the neuron of the node that
    each entry of `target` is.
    """

    plan: Plan
    target: int
    neurons: Tensor
    positions: int  # of a convolution, along the last of the target's entries; 1: none

    @abstractmethod
    def lines(self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor) -> dict[int, Lines]:
        """The lines of every row, at the nodes of this part's graph."""

    @abstractmethod
    def relaxed(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Relaxed, ...]:
        """Every row's relaxed nodes, one for each stack."""

    @abstractmethod
    def nodes(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> dict[int, tuple[int, Relaxed]]:
        """Every row's relaxed nodes, each with the node of the whole graph that it is."""

    @abstractmethod
    def entries(self, table: Tensor, node: int, place: Tensor) -> Tensor:
        """The part of a table (1, *shape) of a node's input that rows at these places see."""

    @abstractmethod
    def region(self, region: Region, sample: Tensor, place: Tensor) -> Region:
        """The region of every row."""

    def start(self, region: Region, sample: Tensor, place: Tensor) -> Start:
        """The node at which every row's form ends, and its values."""
        return AtInput(self.region(region, sample, place))

    @abstractmethod
    def spread(self, alpha: Tensor, place: Tensor, slots: int) -> Tensor:
        """Slopes (rows, lanes, slots here) over the slots of the whole graph; NaN elsewhere."""

    @abstractmethod
    def slots_of(self, table: Tensor, sample: Tensor, place: Tensor) -> Tensor:
        """(rows, slots here) of a table (N, slots of the whole graph)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plan.graph.nodes[self.target].shape

    @property
    def convolved(self) -> bool:
        """True if rows pass convolutions, which are prepared anew for every number of rows."""
        return _convolved(self.plan, self.target)

    def blocks(self, place: Tensor, entry: Tensor, group: int) -> tuple[Tensor, int]:
        """The block of each row that shares slopes (0: all entries), and how many there are.

        Blocks are cut from the entries position by position, all channels of each: these
        read the same patches, and want much the same slopes.
        """
        places, size = self.neurons.shape
        per = group or size
        channels = size // self.positions
        rank = entry % self.positions * channels + entry // self.positions
        each = -(-size // per)
        return place * each + rank // per, places * each


@dataclass(frozen=True)
class Whole(Part):
    """All neurons of a node, in the graph as it is."""

    plan: Plan
    target: int
    neurons: Tensor
    positions: int

    def lines(self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor) -> dict[int, Lines]:
        own = {i: relaxed[i].lines for i in self.plan.below(self.target)}
        return line_rows(self.plan, self.target, own, shared(sample))

    def relaxed(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Relaxed, ...]:
        index = shared(sample)
        return tuple(f.rows(index) for f in stacked(self.plan, self.target, relaxed))

    def nodes(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> dict[int, tuple[int, Relaxed]]:
        index = shared(sample)
        return {i: (i, relaxed[i].rows(index)) for i in self.plan.below(self.target)}

    def entries(self, table: Tensor, node: int, place: Tensor) -> Tensor:
        return table

    def region(self, region: Region, sample: Tensor, place: Tensor) -> Region:
        return region.rows(shared(sample))

    def start(self, region: Region, sample: Tensor, place: Tensor) -> Start:
        index = shared(sample)
        found = first_layer(self.plan, self.target, region, index)
        return AtInput(region.rows(index)) if found is None else found

    def spread(self, alpha: Tensor, place: Tensor, slots: int) -> Tensor:
        return alpha

    def slots_of(self, table: Tensor, sample: Tensor, place: Tensor) -> Tensor:
        return table[sample]


@dataclass(frozen=True, slots=True)
class View:
    """The view of a node of a cropped graph on the node it comes from, at every place."""

    origin: int
    reads: Tensor  # (places, size of its input here) flat indices
    gives: Tensor  # (places, its size here)


@dataclass(frozen=True)
class Patch(Part):
    """Neurons that read patches of one form."""

    plan: Plan
    target: int
    neurons: Tensor
    positions: int
    views: dict[int, View]  # of the nonlinear nodes
    inputs: Tensor  # (places, input size here)
    slots: Tensor  # (places, slots here) in the slots of the whole graph
    origins: Callable[[], dict[int, tuple[int, Tensor]]]  # node -> origin, (places, size) entries

    def lines(self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor) -> dict[int, Lines]:
        sample, place, index = self.distinct(sample, place)
        own = {i: self._lines(i, relaxed, sample, place) for i in self.views}
        return line_rows(self.plan, self.target, own, index)

    def relaxed(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Relaxed, ...]:
        sample, place, index = self.distinct(sample, place)
        own = {i: self._relaxed(i, relaxed, sample, place) for i in self.views}
        return tuple(f.rows(index) for f in stacked(self.plan, self.target, own))

    def nodes(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> dict[int, tuple[int, Relaxed]]:
        sample, place, index = self.distinct(sample, place)
        found = {i: self._relaxed(i, relaxed, sample, place).rows(index) for i in self.views}
        return {i: (self.views[i].origin, own) for i, own in found.items()}

    def entries(self, table: Tensor, node: int, place: Tensor) -> Tensor:
        return self.moves(node, torch.zeros_like(place), place)[0](table)

    def region(self, region: Region, sample: Tensor, place: Tensor) -> Region:
        sample, place, index = self.distinct(sample, place)
        shape = self.plan.graph.input_shape
        return region.patch(sample, self.inputs[place], shape).rows(index)

    def spread(self, alpha: Tensor, place: Tensor, slots: int) -> Tensor:
        wide = alpha.new_full((*alpha.shape[:2], slots), torch.nan)
        return wide.scatter_(2, self.slots[place][:, None].expand_as(alpha), alpha)

    def slots_of(self, table: Tensor, sample: Tensor, place: Tensor) -> Tensor:
        return table[sample[:, None], self.slots[place]]

    def distinct(self, sample: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor | slice]:
        """Samples and places that differ, and which of them each row has."""
        places = len(self.neurons)
        each, index = torch.unique(sample * places + place, return_inverse=True)
        return each // places, each % places, slice(0, 1) if len(each) == 1 else index

    def moves(
        self, i: int, sample: Tensor, place: Tensor
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """Functions that crop tensors of the origin's input and output shape."""
        node = self.plan.graph.nodes[i]
        (source,) = node.inputs
        view = self.views[i]

        def mover(index: Tensor, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
            return lambda t: cropped(t, index, sample, place, shape)

        return (
            mover(view.reads, self.plan.graph.nodes[source].shape),
            mover(view.gives, node.shape),
        )

    def _lines(self, i: int, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor) -> Lines:
        reads, gives = self.moves(i, sample, place)
        return moved_lines(relaxed[self.views[i].origin].lines, reads, gives)

    def _relaxed(
        self, i: int, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> Relaxed:
        reads, gives = self.moves(i, sample, place)
        whole = relaxed[self.views[i].origin]

        def box(b: Box) -> Box:
            return Box(reads(b.lower), reads(b.upper))

        return Relaxed(
            self.plan.relaxation(i),
            box(whole.box),
            moved_lines(whole.lines, reads, gives),
            SlopeRange(box(whole.range.lower), box(whole.range.upper)),
            None if whole.excess is None else reads(whole.excess),
        )


@per_plan
def _convolved(plan: Plan, target: int) -> bool:
    kinds = (Conv, ConvTranspose)
    return any(isinstance(step.affine, kinds) for step in plan.route(target))


def cropped(
    t: Tensor, entries: Tensor, sample: Tensor, place: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """t[sample[r], entries[place[r]]] for every row r, in `shape`; entries are (places, size)."""
    flat, picked = t.flatten(1), entries[place]
    kept = flat[0][picked] if len(flat) == 1 else flat[sample[:, None], picked]
    return kept.view(-1, *shape)


def moved_lines(
    lines: Lines, reads: Callable[[Tensor], Tensor], gives: Callable[[Tensor], Tensor]
) -> Lines:
    slopes = Slopes(reads(lines.slopes.lower), reads(lines.slopes.upper))
    return Lines(slopes, gives(lines.lower), gives(lines.upper))


def shared(sample: Tensor) -> Tensor | slice:
    """A slice instead of an index where all rows are of one sample, so that it broadcasts."""
    if not len(sample):
        return sample
    first = int(sample[0])
    if first != int(sample[-1]) or not bool((sample == first).all()):
        return sample
    return slice(first, first + 1)
