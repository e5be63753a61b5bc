"""Rows without inactive neurons: those that are 0 wherever the region is.

Most neurons of a ReLU network are inactive over a small region. A row passes such a neuron with
slope 0, and its value never arrives anywhere: dense layers lose its row and its column, and bounds
stay the same to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frown.bounds.first_layer import is_narrowed
from frown.bounds.patches import Part, Whole, moved_lines
from frown.bounds.plan import Plan, per_plan
from frown.graph.affine import Linear
from frown.graph.box import Box
from frown.graph.graph import Graph
from frown.problem.region import Region
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Relaxed, SlopeRange

WORTH = 1 << 21  # products that rows would take at dense layers; for fewer no other graph is made
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
    """A part without the neurons that are inactive for all samples, where so many rows of it gain
    by that."""
    whole = ActivePart(part, part, relaxed)
    nodes = _prunable(part.plan, part.target) if isinstance(part, Whole) else ()
    if nodes and is_narrowed(part.plan, part.target, region):
        nodes = nodes[1:]
    graph = part.plan.graph
    work = _products(graph, part.target, {}) if nodes else 0
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

    def reads(t: Tensor) -> Tensor:
        return t.index_select(-1, which)

    def box(b: Box) -> Box:
        return Box(reads(b.lower), reads(b.upper))

    return Relaxed(
        relaxed.op,
        box(relaxed.box),
        moved_lines(relaxed.lines, reads, reads),
        SlopeRange(box(relaxed.range.lower), box(relaxed.range.upper)),
        None if relaxed.excess is None else reads(relaxed.excess),
    )
