"""A node's neurons taken apart: those that read patches of equal form go together.

A neuron of a convolution reads a patch of every earlier layer. Its row lives in the network
cropped to that patch, with all that is known of samples cropped alike; a crop at another
place is like another sample. Where patches save too little, the node stays whole.
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

from frown.engines.banks import bank, line_rows
from frown.engines.entry import Entry, entry
from frown.engines.plan import Plan
from frown.graph.affine import Conv, ConvTranspose, Flat
from frown.graph.box import Box
from frown.graph.crop import Cropper, Needs, entries, whole
from frown.graph.graph import Graph, Node
from frown.graph.op import Window
from frown.query.region import Region
from frown.relax.relaxation import Frame, Lines, SlopeRange, Slopes

CALL = 20_000  # numbers passed in the time that one operator of another shape takes up
GAIN = 0.75  # patches must spare a quarter of the work
FLAT = 1 << 18  # entries of a matrix that may stand for a convolution of a patch
ZEROS = 16  # entries of it per weight that the convolution applies, at most


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
    def lines(self, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> dict[int, Lines]:
        """The lines of every row, at the nodes of this part's graph."""

    @abstractmethod
    def frames(self, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> tuple[Frame, ...]:
        """The frames of every row, one for each run of nodes."""

    @abstractmethod
    def region(self, region: Region, sample: Tensor, place: Tensor) -> Region:
        """The region of every row."""

    def entry(self, region: Region, sample: Tensor, place: Tensor) -> Entry | None:
        """How every row enters the network, where that is simpler than by its region."""
        return None

    @abstractmethod
    def spread(self, theta: Tensor, place: Tensor, slots: int) -> Tensor:
        """Slopes (rows, lanes, slots here) over the slots of the whole graph; NaN elsewhere."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plan.graph.nodes[self.target].shape

    @property
    def convolved(self) -> bool:
        """Whether rows pass convolutions, which are prepared anew for every number of rows."""
        kinds = (Conv, ConvTranspose)
        return self.plan.fact(
            ("convolved", self.target),
            lambda: any(isinstance(s.affine, kinds) for s in self.plan.route(self.target)),
        )

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

    def lines(self, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> dict[int, Lines]:
        own = {i: frames[i].lines for i in self.plan.below(self.target)}
        return line_rows(self.plan, self.target, own, shared(sample))

    def frames(self, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> tuple[Frame, ...]:
        index = shared(sample)
        return tuple(f.rows(index) for f in bank(self.plan, self.target, frames))

    def region(self, region: Region, sample: Tensor, place: Tensor) -> Region:
        return region.rows(shared(sample))

    def entry(self, region: Region, sample: Tensor, place: Tensor) -> Entry | None:
        return entry(self.plan, self.target, region, shared(sample))

    def spread(self, theta: Tensor, place: Tensor, slots: int) -> Tensor:
        return theta


@dataclass(frozen=True, slots=True)
class _View:
    """What a node of a cropped graph sees of the node it comes from, at every place."""

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
    views: dict[int, _View]  # of the nonlinear nodes
    inputs: Tensor  # (places, input size here)
    slots: Tensor  # (places, slots here) in the slots of the whole graph
    origins: Callable[[], dict[int, tuple[int, Tensor]]]  # node -> origin, (places, size) entries

    def lines(self, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> dict[int, Lines]:
        sample, place, index = self.distinct(sample, place)
        own = {i: self._lines(i, frames, sample, place) for i in self.views}
        return line_rows(self.plan, self.target, own, index)

    def frames(self, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> tuple[Frame, ...]:
        sample, place, index = self.distinct(sample, place)
        own = {i: self._frame(i, frames, sample, place) for i in self.views}
        return tuple(f.rows(index) for f in bank(self.plan, self.target, own))

    def region(self, region: Region, sample: Tensor, place: Tensor) -> Region:
        sample, place, index = self.distinct(sample, place)
        shape = self.plan.graph.input_shape
        return region.patch(sample, self.inputs[place], shape).rows(index)

    def spread(self, theta: Tensor, place: Tensor, slots: int) -> Tensor:
        wide = theta.new_full((*theta.shape[:2], slots), torch.nan)
        return wide.scatter_(2, self.slots[place][:, None].expand_as(theta), theta)

    def distinct(self, sample: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor | slice]:
        """Samples and places that differ, and which of them each row has."""
        places = len(self.neurons)
        each, index = torch.unique(sample * places + place, return_inverse=True)
        return each // places, each % places, slice(0, 1) if len(each) == 1 else index

    def moves(
        self, i: int, sample: Tensor, place: Tensor
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """How tensors of the origin's input and output shape are cropped."""
        node = self.plan.graph.nodes[i]
        (source,) = node.inputs
        view = self.views[i]

        def mover(index: Tensor, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
            return lambda t: cropped(t, index, sample, place, shape)

        return (
            mover(view.reads, self.plan.graph.nodes[source].shape),
            mover(view.gives, node.shape),
        )

    def _lines(self, i: int, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> Lines:
        reads, gives = self.moves(i, sample, place)
        return moved_lines(frames[self.views[i].origin].lines, reads, gives)

    def _frame(self, i: int, frames: dict[int, Frame], sample: Tensor, place: Tensor) -> Frame:
        reads, gives = self.moves(i, sample, place)
        frame = frames[self.views[i].origin]

        def box(b: Box) -> Box:
            return Box(reads(b.lower), reads(b.upper))

        return Frame(
            self.plan.relaxation(i),
            box(frame.box),
            moved_lines(frame.lines, reads, gives),
            SlopeRange(box(frame.range.lower), box(frame.range.upper)),
            None if frame.excess is None else reads(frame.excess),
        )


def cropped(
    t: Tensor, entries: Tensor, sample: Tensor, place: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """(rows, *shape): of each row's sample of t the entries (places, size) that its place has."""
    flat, picked = t.flatten(1), entries[place]
    kept = flat[0][picked] if len(flat) == 1 else flat[sample[:, None], picked]
    return kept.view(-1, *shape)


def moved_lines(
    lines: Lines, reads: Callable[[Tensor], Tensor], gives: Callable[[Tensor], Tensor]
) -> Lines:
    slopes = Slopes(reads(lines.slopes.lower), reads(lines.slopes.upper))
    return Lines(slopes, gives(lines.lower), gives(lines.upper))


@dataclass(frozen=True)
class Parts:
    """All parts of a node, and where each of its neurons is."""

    parts: tuple[Part, ...]
    number: Tensor  # (size,) the part of every neuron
    place: Tensor  # (size,) its place there
    entry: Tensor  # (size,) its entry of the part's target
    each: float  # numbers that a row passes, in the mean
    calls: int  # of operators, all parts taken together

    @classmethod
    def of(cls, parts: tuple[Part, ...], size: int) -> Parts:
        work = calls = 0
        for part in parts:
            way = part.plan.ancestors(part.target)
            work += part.neurons.numel() * sum(part.plan.graph.nodes[i].size for i in way)
            calls += len(way)
        device = parts[0].neurons.device
        number, place, entry = (torch.zeros(size, dtype=torch.int64, device=device) for _ in "123")
        for k, part in enumerate(parts):
            places, each = part.neurons.shape
            where = torch.arange(places, device=device)[:, None].expand(-1, each)
            which = torch.arange(each, device=device).expand(places, -1)
            number[part.neurons] = k
            place[part.neurons] = where
            entry[part.neurons] = which
        return cls(parts, number, place, entry, work / size, calls)

    @property
    def patched(self) -> bool:
        return isinstance(self.parts[0], Patch)  # then all are

    def work(self, rows: int) -> float:
        """What so many rows cost, in numbers passed."""
        return rows * self.each + CALL * self.calls

    def split(self, neuron: Tensor) -> Iterator[tuple[int, Part, Tensor]]:
        """Number and part, with the indices of its rows."""
        if len(self.parts) == 1 and len(neuron):
            yield 0, self.parts[0], torch.arange(len(neuron), device=neuron.device)
            return
        number = self.number[neuron]
        for k, part in enumerate(self.parts):
            rows = (number == k).nonzero().flatten()
            if len(rows):
                yield k, part, rows


def parts(plan: Plan, target: int, group: int = 1) -> Parts:
    """The parts of a node in which `group` neurons share slopes (0: all of them).

    Neurons of a group share a part and a place: with patches these are the channels at one
    position, and where a group holds more, the positions of a tile.
    """
    return plan.fact((f"parts of {group}", target), lambda: _parts(plan, target, group))


def parts_of(plan: Plan, target: int, rows: int) -> Parts:
    """The parts in which so many rows, each with lines of its own or fixed ones, cost least.

    Patches are chosen for all neurons of a node. Where few are left, they are calls more than
    anything else.
    """
    return min(parts(plan, target), parts(plan, target, 0), key=lambda p: p.work(rows))


def of_convolution(plan: Plan, target: int) -> bool:
    """Whether a node has positions, so that its neurons may read patches."""
    return plan.fact(("positions", target), lambda: _spatial(plan, target) > 0)


def _parts(plan: Plan, target: int, group: int) -> Parts:
    node, device = plan.graph.nodes[target], plan.graph.device
    found = None if group == 0 else _patches(plan, target, group)
    if found is None:
        dims = _spatial(plan, target)
        positions = prod(node.shape[-dims:]) if dims else 1
        found = (Whole(plan, target, torch.arange(node.size, device=device)[None], positions),)
    return Parts.of(found, node.size)


def _patches(plan: Plan, target: int, group: int) -> tuple[Part, ...] | None:
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
        classes = _classes(cropper, target, list(_tiles(node.shape, side)))
        if classes is None:
            return None
        work = _work(cropper, target, classes)
        if work < least:
            best, least = classes, work
        side = tuple(min(2 * a, n) for a, n in zip(side, node.shape[-dims:], strict=True))
    return None if best is None else tuple(_patch(plan, target, cropper, c) for c in best)


def _spatial(plan: Plan, target: int) -> int:
    """How many trailing axes of a node are positions of a convolution; 0: none."""
    rank = len(plan.graph.nodes[target].shape)
    for step in plan.route(target):
        if isinstance(step.affine, Conv):
            dims = len(step.affine.source)
            return dims if len(plan.graph.nodes[step.node].shape) == rank else 0
    return 0


def _side(shape: tuple[int, ...], dims: int, group: int) -> tuple[int, ...]:
    """How many positions, along each axis, a group of neurons needs."""
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


def _classes(cropper: Cropper, target: int, tiles: list[Window]) -> list[list[Needs]] | None:
    """What the tiles read, those of one form together."""
    classes: dict[object, list[Needs]] = {}
    for window in tiles:
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


def _patch(plan: Plan, target: int, cropper: Cropper, each: list[Needs]) -> Patch:
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
            views[where[i]] = _View(
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


def shared(sample: Tensor) -> Tensor | slice:
    """Rows of one sample alone broadcast instead of being gathered."""
    if len(sample) and bool((sample == sample[0]).all()):
        return slice(int(sample[0]), int(sample[0]) + 1)
    return sample
