"""Parts: neurons that are bounded in one graph.

Either all of a node's neurons in the whole graph, or those that read patches of one form in a crop
of it. A neuron of a convolution reads a patch of every earlier layer. Its row lives in the network
cropped to that patch, with all that is known of samples cropped alike; a crop at another place is
like another sample. Where patches save too little, the node stays whole.

Most neurons of a ReLU network are inactive over a small region: 0 wherever it is. A row passes
such a neuron with slope 0, and its value never arrives anywhere. So dense layers of a whole graph
lose its row and its column, and bounds stay the same to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

import torch
from torch import Tensor

from frown.bounds.first_layer import AtInput, Start, first_layer, is_narrowed
from frown.bounds.halfspace import Halfspace
from frown.bounds.plan import Plan, per_plan, stacked
from frown.bounds.work import NO_LIMIT, Clock
from frown.graph.affine import Conv, Flat, Linear
from frown.graph.crop import Cropper, Needs, entries, whole
from frown.graph.graph import Graph, Node
from frown.graph.intervals import rows_of
from frown.graph.op import Window
from frown.problem.region import Region
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Lines, Relaxed


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

    def passage(
        self, region: Region, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Start, dict[int, Lines]]:
        """Every row's start and lines."""
        return self.start(region, sample, place), self.lines(relaxed, sample, place)

    def halved(
        self, region: Region, half: Halfspace, sample: Tensor, place: Tensor
    ) -> tuple[Start, Halfspace] | None:
        """Every row's start, and the halfspace of its d that holds what is left of the region;
        None: rows here know nothing of it."""
        return None

    @abstractmethod
    def spread(self, alpha: Tensor, place: Tensor, slots: int) -> Tensor:
        """Slopes (rows, lanes, slots here) over the slots of the whole graph; NaN elsewhere."""

    @abstractmethod
    def slots_of(self, table: Tensor, sample: Tensor, place: Tensor) -> Tensor:
        """(rows, slots here) of a table (N, slots of the whole graph)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plan.graph.nodes[self.target].shape

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
        return self._lines(relaxed, shared(sample))

    def _lines(self, relaxed: dict[int, Relaxed], index: Tensor | slice) -> dict[int, Lines]:
        return {i: relaxed[i].lines.rows(index) for i in self.plan.below(self.target)}

    def relaxed(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Relaxed, ...]:
        index = shared(sample)
        return tuple(f.rows(index) for f in stacked(self.plan, self.target, relaxed, len(sample)))

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
        return self._start(region, shared(sample))

    def _start(self, region: Region, index: Tensor | slice) -> Start:
        found = first_layer(self.plan, self.target, region, index)
        return AtInput(region.rows(index)) if found is None else found

    def passage(
        self, region: Region, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Start, dict[int, Lines]]:
        index = shared(sample)
        return self._start(region, index), self._lines(relaxed, index)

    def halved(
        self, region: Region, half: Halfspace, sample: Tensor, place: Tensor
    ) -> tuple[Start, Halfspace] | None:
        index, own = shared(sample), half.rows(sample)
        found = first_layer(self.plan, self.target, region, index, narrow=False)
        if found is None:
            return AtInput(region.rows(index)), own
        return found, Halfspace(own.coef.flatten(1), own.at(rows_of(region.centre, index)))

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
        return {i: self._lines(i, relaxed, sample, place).rows(index) for i in self.views}

    def relaxed(
        self, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> tuple[Relaxed, ...]:
        rows = len(sample)
        sample, place, index = self.distinct(sample, place)
        own = {i: self._relaxed(i, relaxed, sample, place) for i in self.views}
        return tuple(f.rows(index) for f in stacked(self.plan, self.target, own, rows))

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
        return relaxed[self.views[i].origin].lines.moved(*self.moves(i, sample, place))

    def _relaxed(
        self, i: int, relaxed: dict[int, Relaxed], sample: Tensor, place: Tensor
    ) -> Relaxed:
        whole = relaxed[self.views[i].origin]
        return whole.moved(self.plan.relaxation(i), *self.moves(i, sample, place))


def cropped(
    t: Tensor, entries: Tensor, sample: Tensor, place: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """t[sample[r], entries[place[r]]] for every row r, in `shape`; entries are (places, size)."""
    flat, picked = t.flatten(1), entries[place]
    kept = flat[0][picked] if len(flat) == 1 else flat[sample[:, None], picked]
    return kept.view(-1, *shape)


def shared(sample: Tensor) -> Tensor | slice:
    """A slice instead of an index where all rows are of one sample, so that it broadcasts."""
    if not len(sample):
        return sample
    first = int(sample[0])
    if first != int(sample[-1]) or not bool((sample == first).all()):
        return sample
    return slice(first, first + 1)


CALL = 20_000  # numbers passed in the time that one operator of another shape takes up
GAIN = 0.75  # patches must spare a quarter of the work
FLAT = 1 << 18  # entries of a matrix that may stand for a convolution of a patch
ZEROS = 16  # entries of it per weight that the convolution applies, at most


@dataclass(frozen=True)
class Parts:
    """All parts of a node, and where each of its neurons is."""

    parts: tuple[Part, ...]
    number: Tensor  # (size,) the part of every neuron
    place: Tensor  # (size,) its place there
    entry: Tensor  # (size,) its entry of the part's target
    block: Tensor  # (size,) the block of its part with which it shares slopes
    blocks: tuple[int, ...]  # how many each part has
    each: float  # numbers that a row passes, in the mean
    calls: int  # of operators, all parts taken together

    @classmethod
    def of(cls, parts: tuple[Part, ...], size: int, group: int) -> Parts:
        work = calls = 0
        for part in parts:
            way = part.plan.ancestors(part.target)
            work += part.neurons.numel() * sum(part.plan.graph.nodes[i].size for i in way)
            calls += len(way)
        device = parts[0].neurons.device
        number, place, entry, block = (
            torch.zeros(size, dtype=torch.int64, device=device) for _ in range(4)
        )
        blocks = []
        for k, part in enumerate(parts):
            places, each = part.neurons.shape
            where = torch.arange(places, device=device)[:, None].expand(-1, each)
            which = torch.arange(each, device=device).expand(places, -1)
            number[part.neurons] = k
            place[part.neurons] = where
            entry[part.neurons] = which
            block[part.neurons], count = part.blocks(where, which, group)
            blocks.append(count)
        return cls(parts, number, place, entry, block, tuple(blocks), work / size, calls)

    @property
    def patched(self) -> bool:
        return isinstance(self.parts[0], Patch)  # then all are

    def where(self, neuron: Tensor) -> tuple[Tensor, Tensor]:
        """Place and entry of each of these neurons."""
        if self.patched:
            return self.place[neuron], self.entry[neuron]
        return torch.zeros_like(neuron), neuron

    def work(self, rows: int) -> float:
        """The cost of this many rows, in numbers passed."""
        return rows * self.each + CALL * self.calls

    def split(self, neuron: Tensor) -> Iterator[tuple[int, Part, Tensor | slice]]:
        """Number and part, with the indices of its rows."""
        if len(self.parts) == 1:
            if len(neuron):
                yield 0, self.parts[0], slice(0, len(neuron))
            return
        number = self.number[neuron]
        for k, part in enumerate(self.parts):
            rows = (number == k).nonzero().flatten()
            if len(rows):
                yield k, part, rows


def parts(plan: Plan, target: int, group: int = 1, clock: Clock = NO_LIMIT) -> Parts:
    """The parts of a node in which `group` neurons share slopes (0: all of them).

    Neurons of a group share a part and a place: with patches these are the channels at one
    position, and where a group holds more, the positions of a tile.
    """
    return _parts(plan, target, group, clock=clock)


def parts_of(plan: Plan, target: int, rows: int, clock: Clock = NO_LIMIT) -> Parts:
    """The parts in which this many rows, with lines of their own or fixed ones, cost least.

    Patches are chosen for all neurons of a node. Where few are left, most of the cost is calls.
    """
    choice = parts(plan, target, 1, clock), parts(plan, target, 0)
    return min(choice, key=lambda p: p.work(rows))


@per_plan
def of_convolution(plan: Plan, target: int) -> bool:
    """True if a node has positions, so that its neurons may read patches."""
    return _spatial(plan, target) > 0


@per_plan
def _parts(plan: Plan, target: int, group: int, *, clock: Clock) -> Parts:
    node, device = plan.graph.nodes[target], plan.graph.device
    found = None if group == 0 else _patches(plan, target, group, clock)
    if found is None:
        dims = _spatial(plan, target)
        positions = prod(node.shape[-dims:]) if dims else 1
        found = (Whole(plan, target, torch.arange(node.size, device=device)[None], positions),)
    return Parts.of(found, node.size, group)


def _patches(plan: Plan, target: int, group: int, clock: Clock) -> tuple[Part, ...] | None:
    """The patches of a node's positions; None where the whole graph serves as well.

    Larger tiles read more than each of their neurons needs, but their crops differ less.
    """
    dims = _spatial(plan, target)
    if not dims:
        return None
    cropper = Cropper.of(plan.graph)
    node = plan.graph.nodes[target]
    best, least = (
        None,
        GAIN * node.size * sum(plan.graph.nodes[i].size for i in plan.ancestors(target)),
    )
    side = _side(node.shape, dims, group)
    while side != node.shape[-dims:]:
        classes = _classes(cropper, target, list(_tiles(node.shape, side)), clock)
        if classes is None:
            return None
        work = _work(cropper, target, classes)
        if work < least:
            best, least = classes, work
        side = tuple(min(2 * a, n) for a, n in zip(side, node.shape[-dims:], strict=True))
    return None if best is None else tuple(_patch(plan, target, cropper, c, clock) for c in best)


def _spatial(plan: Plan, target: int) -> int:
    """The number of trailing axes of a node that are positions of a convolution; 0: none."""
    rank = len(plan.graph.nodes[target].shape)
    for step in plan.route(target):
        if isinstance(step.affine, Conv):
            dims = len(step.affine.source)
            return dims if len(plan.graph.nodes[step.node].shape) == rank else 0
    return 0


def _side(shape: tuple[int, ...], dims: int, group: int) -> tuple[int, ...]:
    """The number of positions, along each axis, that a group of neurons needs."""
    most = shape[-dims:]
    side, wanted = [1] * dims, -(-group // prod(shape[:-dims]))
    while prod(side) < wanted and side != list(most):
        room = [k for k in range(dims) if side[k] < most[k]]
        side[min(room, key=side.__getitem__)] += 1
    return tuple(side)


def _tiles(shape: tuple[int, ...], side: tuple[int, ...]) -> Iterator[Window]:
    dims = len(side)
    axes = [
        [(a, min(a + s, n)) for a in range(0, n, s)]
        for n, s in zip(shape[-dims:], side, strict=True)
    ]
    return ((*whole(shape[:-dims]), *position) for position in product(*axes))


def _classes(
    cropper: Cropper, target: int, tiles: list[Window], clock: Clock
) -> list[list[Needs]] | None:
    """The windows that the tiles read, those of one form together."""
    classes: dict[object, list[Needs]] = {}
    for window in tiles:
        clock.check()
        needs = cropper.needs(target, window)
        if needs is None or 0 not in needs.windows:
            return None
        classes.setdefault(needs.key, []).append(needs)
    return list(classes.values())


def _work(cropper: Cropper, target: int, classes: list[list[Needs]]) -> int:
    """Numbers passed by a row per neuron, calls included."""
    work = 0
    for each in classes:
        needs = each[0]
        inside = sum(_size(w) for w in needs.windows.values())
        # What is cut to size or padded on the way is copied once more.
        fits = [
            w
            for i, ws in needs.wants.items()
            for j, w in zip(cropper.inputs(i), ws, strict=True)
            if w != needs.windows[j]
        ]
        calls = len(needs.windows) + len(fits)
        work += len(each) * _size(needs.windows[target]) * (inside + sum(map(_size, fits)))
        work += CALL * calls
    return work


def _size(window: Window) -> int:
    return prod(b - a for a, b in window)


def _patch(plan: Plan, target: int, cropper: Cropper, each: list[Needs], clock: Clock) -> Patch:
    clock.check()
    graph, where = cropper.crop(each[0])
    local = Plan(_flattened(graph))
    device = plan.graph.device

    def stacked(i: int, windows: Iterable[Window]) -> Tensor:
        shape = plan.graph.nodes[i].shape
        return torch.stack([entries(w, shape) for w in windows]).to(device)

    views = {}
    for i in plan.below(target):
        if i in where:
            (source,) = cropper.inputs(i)
            views[where[i]] = View(
                i,
                stacked(source, (n.wants[i][0] for n in each)),
                stacked(i, (n.windows[i] for n in each)),
            )
    starts, _ = plan.slots(target)
    here, count = local.slots(where[target])
    slots = torch.zeros(len(each), count, dtype=torch.int64, device=device)
    for i, view in views.items():
        slots[:, here[i]] = view.reads + starts[view.origin].start
    inputs = stacked(0, (n.windows[0] for n in each))
    neurons = stacked(target, (n.windows[target] for n in each))
    positions = prod(local.graph.nodes[where[target]].shape[-_spatial(plan, target) :])

    @cache
    def origins() -> dict[int, tuple[int, Tensor]]:
        found: dict[int, tuple[int, Tensor]] = {}
        for i, here in sorted(where.items()):
            if here not in found:  # what only moves entries may be no node of its own
                found[here] = i, stacked(i, (n.windows[i] for n in each))
        return found

    return Patch(local, where[target], neurons, positions, views, inputs, slots, origins)


def _flattened(graph: Graph) -> Graph:
    """Small convolutions as matrices: nothing is prepared anew for every number of rows."""

    def flat(node: Node) -> Node:
        if not isinstance(node.op, Conv):
            return node
        source = graph.nodes[node.inputs[0]].shape
        size = node.size * prod(source)
        taps = node.size * node.op.weight[0].numel()
        if size > min(FLAT, ZEROS * taps):
            return node
        return replace(node, op=Flat.of(node.op, source))

    return replace(graph, nodes=tuple(map(flat, graph.nodes)))


# -- without inactive neurons --------------------------------------------------

WORTH = 1 << 23  # products that rows would take at dense layers; for fewer no other graph is made
SHARE = 0.9  # of a row's products that may be left where it is made


@dataclass(frozen=True)
class ActivePart:
    """A part in which inactive neurons are left out, its relaxed nodes, and the places of its
    slopes among those of the whole (None: nothing is left out)."""

    whole: Part
    part: Part
    relaxed: dict[int, Relaxed]
    slots: Tensor | None = None

    def picked(self, alpha: Tensor) -> Tensor:
        """(rows, lanes, slots here) of (rows, lanes, slots of the whole)."""
        return alpha if self.slots is None else alpha.index_select(2, self.slots)

    def spread(self, alpha: Tensor, onto: Tensor) -> Tensor:
        """`picked` undone: elsewhere stays what was there; if nothing was, 0, CROWN's choice."""
        if self.slots is None:
            return alpha
        return onto.nan_to_num(nan=0.0).index_copy_(2, self.slots, alpha)


def active_part(part: Part, relaxed: dict[int, Relaxed], region: Region, rows: int) -> ActivePart:
    """A part without the neurons that are inactive for all samples, where that saves enough work
    for this number of rows."""
    whole = ActivePart(part, part, relaxed)
    nodes = _prunable(part.plan, part.target) if isinstance(part, Whole) else ()
    if nodes and is_narrowed(part.plan, part.target, region):
        nodes = nodes[1:]
    graph = part.plan.graph
    work = _all_products(part.plan, part.target) if nodes else 0
    if rows * work < WORTH:
        return whole
    kept = {i: (~relaxed[i].inactive.flatten()).nonzero().flatten() for i in nodes}
    kept = {i: own for i, own in kept.items() if len(own)}
    left = {i: len(own) for i, own in kept.items()}
    if _products(graph, part.target, left) > SHARE * work:
        return whole
    plan = Plan(_without(graph, part.target, kept))
    own = {i: relaxed[i] for i in part.plan.below(part.target)}
    own |= {i: _of(relaxed[i], which) for i, which in kept.items()}
    places, count = part.plan.slots(part.target)
    every = torch.arange(count, device=plan.graph.device)
    slots = [every[at][kept[i]] if i in kept else every[at] for i, at in places.items()]
    active = Whole(plan, part.target, part.neurons, part.positions)
    return ActivePart(part, active, own, torch.cat(slots))


@per_plan
def _prunable(plan: Plan, target: int) -> tuple[int, ...]:
    """The nonlinear nodes between two dense layers, of a target whose nodes are a chain."""
    if not plan.chain(target):
        return ()
    nodes, found = plan.graph.nodes, []
    among = plan.ancestors(target)
    for before, i, after in zip(among, among[1:], among[2:], strict=False):
        op = nodes[i].op
        dense = isinstance(nodes[before].op, Linear) and isinstance(nodes[after].op, Linear)
        flat = nodes[i].size == nodes[i].shape[-1]
        if dense and flat and isinstance(op, Elementwise) and not op.tensors():
            found.append(i)
    return tuple(found)


@per_plan
def _all_products(plan: Plan, target: int) -> int:
    """Multiplications of a row at the dense layers before a target."""
    return _products(plan.graph, target, {})


def _products(graph: Graph, target: int, left: dict[int, int]) -> int:
    """Multiplications of a row at the dense layers before a target, where so many entries of
    nodes are left."""
    total = 0
    for i, node in enumerate(graph.nodes[:target]):
        if isinstance(node.op, Linear):
            out, (source,) = graph.consumers[i], node.inputs
            size = left.get(out[0], node.size) if out else node.size
            total += size * left.get(source, graph.nodes[source].size)
    return total


def _without(graph: Graph, target: int, kept: dict[int, Tensor]) -> Graph:
    """The graph up to a target, with these entries of nodes alone."""
    nodes = list(graph.nodes[: target + 1])
    readers = {nodes[i].inputs[0]: which for i, which in kept.items()}  # dense layers
    for i, which in kept.items():
        nodes[i] = replace(nodes[i], shape=(*nodes[i].shape[:-1], len(which)))
    for i, node in enumerate(nodes):
        if not isinstance(node.op, Linear):
            continue
        weight, bias, (source,) = node.op.weight, node.op.bias, node.inputs
        if source in kept:
            weight = weight.index_select(1, kept[source])
        if i in readers:
            weight, bias = weight.index_select(0, readers[i]), bias.index_select(0, readers[i])
        if weight is not node.op.weight:
            shape = (*node.shape[:-1], len(bias))
            nodes[i] = replace(node, op=Linear(weight, bias), shape=shape)
    return Graph(tuple(nodes), graph.dtype, graph.device)


def _of(relaxed: Relaxed, which: Tensor) -> Relaxed:
    """Some neurons of a relaxed node."""

    def some(t: Tensor) -> Tensor:
        return t.index_select(-1, which)

    return relaxed.moved(relaxed.op, some, some)
