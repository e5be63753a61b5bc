"""Plans: everything about a graph that methods need before they bound anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from frown.graph.affine import Concat, Scale
from frown.graph.graph import Graph, Input
from frown.graph.intervals import Intervals
from frown.graph.op import Affine, Nonlinear, Selection
from frown.relax.curvature import bends
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Lines, Relaxation, Relaxed, SlopeRange, Slopes
from frown.relax.s_shaped import SShaped

Given = ParamSpec("Given")
Fact = TypeVar("Fact")


def per_plan(
    compute: Callable[Concatenate[Plan, Given], Fact],
) -> Callable[Concatenate[Plan, Given], Fact]:
    """A function of a plan and of numbers that is computed once for each of them, and kept by the
    plan. Arguments given by name (a clock) do not count."""
    name = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def known(plan: Plan, /, *args: Given.args, **more: Given.kwargs) -> Fact:
        facts, key = plan._facts, (name, *args)
        if key not in facts:
            facts[key] = compute(plan, *args, **more)
        fact: Fact = facts[key]
        return fact

    return known


@dataclass(frozen=True, slots=True)
class RouteNode:
    """A node to pull a form back through: affine, or a relaxation."""

    node: int
    affine: Affine | None
    relaxation: Relaxation | None
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A graph and the order in which its nonlinearities are bounded."""

    graph: Graph

    @cached_property
    def nonlinear(self) -> tuple[int, ...]:
        """The nonlinear nodes on the way to the output, in order."""
        needed = set(self.graph.ancestors(self.graph.output))
        return tuple(i for i in self.graph.nonlinear if i in needed)

    @cached_property
    def bends(self) -> bool:
        """True if rows may bend at every nonlinear node: its secant slopes are known."""
        return bool(self.nonlinear) and all(bends(self.relaxation(i)) for i in self.nonlinear)

    @per_plan
    def on(self, device: torch.device) -> Plan:
        """The plan of the same network on another device."""
        if device == self.graph.device:
            return self
        return Plan(self.graph.to(self.graph.dtype, device))

    def relaxation(self, node: int) -> Relaxation:
        return self._relaxations[node]

    @cached_property
    def _relaxations(self) -> dict[int, Relaxation]:
        ops = ((i, node.op) for i, node in enumerate(self.graph.nodes))
        return {i: op for i, op in ops if isinstance(op, Relaxation)}

    @cached_property
    def sources(self) -> dict[int, int]:
        """The node whose bounds each nonlinear node needs.

        Operators that only move entries are looked through: bounds of what they read are theirs.
        """
        found = {}
        for i in self.nonlinear:
            (j,) = self.graph.nodes[i].inputs
            while isinstance(self.graph.nodes[j].op, Selection):
                (j,) = self.graph.nodes[j].inputs
            found[i] = j
        return found

    def carry(self, node: int, box: Intervals) -> Intervals:
        """Bounds of a nonlinear node's source, moved to the node's input."""
        steps = []
        (j,) = self.graph.nodes[node].inputs
        while j != self.sources[node]:
            steps.append(self.graph.nodes[j].op)
            (j,) = self.graph.nodes[j].inputs
        low, high = box.lower, box.upper
        for op in reversed(steps):
            low, high = op.apply(low), op.apply(high)
        return Intervals(low, high)

    def carry_back(self, node: int, mask: Tensor) -> Tensor:
        """A mask over a nonlinear node's input, moved back to its source."""
        (j,) = self.graph.nodes[node].inputs
        if j == self.sources[node]:
            return mask
        flow = mask.to(self.graph.dtype)
        while j != self.sources[node]:
            op = self.graph.nodes[j].op
            assert isinstance(op, Affine)
            (flow,) = op.pull_back(flow)
            (j,) = self.graph.nodes[j].inputs
        return flow > 0

    @per_plan
    def readers(self, source: int) -> tuple[int, ...]:
        """The nonlinear nodes that need the bounds of this source."""
        return tuple(i for i in self.nonlinear if self.sources[i] == source)

    @per_plan
    def needs_rows(self, source: int) -> bool:
        """True if backward rows can tighten any bound of this source."""
        return bool(self.loose(source).any())

    @per_plan
    def loose(self, source: int) -> Tensor:
        """Mask (1, *shape) of the entries of a node that backward rows can tighten.

        The image of an elementwise function over its input's bounds is already exact, and
        so are the bounds of the input itself; what had its rows earlier needs them no more.
        """
        node = self.graph.nodes[source]
        shape, device = (1, *node.shape), self.graph.device
        if isinstance(node.op, Elementwise | Input):
            return torch.zeros(shape, dtype=torch.bool, device=device)
        if isinstance(node.op, Selection | Concat):
            parts = [self.loose(j) & (not self._bounded_before(j, source)) for j in node.inputs]
            return node.op.apply(*(part.to(self.graph.dtype) for part in parts)) > 0
        return torch.ones(shape, dtype=torch.bool, device=device)

    def _bounded_before(self, node: int, reader: int) -> bool:
        """True if all entries of a node get rows before `reader` takes over its bounds.

        An s-shaped function wants rows for whatever is no point, so those of an LSTM's cell are
        there when the next frame multiplies it.
        """
        return any(
            i < reader and isinstance(self.graph.nodes[i].op, SShaped)
            for i in self.graph.consumers[node]
            if i in self.sources
        )

    @per_plan
    def ancestors(self, target: int) -> tuple[int, ...]:
        return self.graph.ancestors(target)

    @per_plan
    def route(self, target: int) -> tuple[RouteNode, ...]:
        """The nodes on the way from `target` back to the input, without the input."""
        steps = []
        for i in reversed(self.ancestors(target)):
            node = self.graph.nodes[i]
            if isinstance(node.op, Affine):
                steps.append(RouteNode(i, node.op, None, node.inputs))
            elif isinstance(node.op, Relaxation):
                steps.append(RouteNode(i, None, node.op, node.inputs))
        return tuple(steps)

    @per_plan
    def below(self, target: int) -> tuple[int, ...]:
        """The nonlinear nodes that `target` depends on."""
        return tuple(
            i for i in self.ancestors(target) if isinstance(self.graph.nodes[i].op, Nonlinear)
        )

    @per_plan
    def elementwise(self, target: int) -> bool:
        """True if all nonlinear nodes that `target` depends on work entry by entry."""
        return all(isinstance(self.relaxation(i), Elementwise) for i in self.below(target))

    @per_plan
    def chain(self, target: int) -> bool:
        """True if every node that `target` depends on is read by one other alone."""
        among = self.ancestors(target)
        reads = [len(self.graph.nodes[i].inputs) for i in among]
        return sorted(reads) == [0, *[1] * (len(among) - 1)] and all(
            a in self.graph.nodes[b].inputs for a, b in pairwise(among)
        )

    @per_plan
    def interval_exact(self, target: int) -> bool:
        """True if plain intervals are exact for a box: one mixing operator at the most."""
        mixing = 0
        for i in self.ancestors(target):
            op = self.graph.nodes[i].op
            if not isinstance(op, Affine | Input):
                return False
            if not isinstance(op, Input | Selection | Scale):
                mixing += 1
        return mixing <= 1

    @per_plan
    def slots(self, target: int) -> tuple[dict[int, slice], int]:
        """The place of each earlier nonlinearity's slopes in a flat vector, and its length."""
        places, start = {}, 0
        for i in self.below(target):
            (j,) = self.graph.nodes[i].inputs
            size = self.graph.nodes[j].size
            places[i] = slice(start, start + size)
            start += size
        return places, start

    @per_plan
    def row_bytes(self, target: int) -> int:
        """Roughly what one row of `target` keeps in memory while it is optimised."""
        item = self.graph.dtype.itemsize
        sizes = sum(self.graph.nodes[i].size for i in self.ancestors(target))
        return item * (4 * sizes + 24 * self.slots(target)[1])

    @per_plan
    def node_size(self, target: int) -> int:
        """The mean size of the nodes that a row of `target` passes, rounded up."""
        sizes = [self.graph.nodes[i].size for i in self.ancestors(target)]
        return -(-sum(sizes) // len(sizes))

    @per_plan
    def double(self) -> Plan:
        """A plan of the network in double precision, on the CPU."""
        return Plan(self.graph.to(torch.float64, "cpu"))

    @cached_property
    def _facts(self) -> dict[tuple[Any, ...], Any]:
        """The findings of `per_plan` functions."""
        return {}

    def latest(
        self, key: tuple[str, int], of: tuple[object, ...], compute: Callable[[], Fact]
    ) -> Fact:
        """A value computed from some objects, kept while calls in a row bring the same ones."""
        known: tuple[tuple[object, ...], Fact] | None = self._facts.get(key)
        if known is None or any(a is not b for a, b in zip(known[0], of, strict=True)):
            known = self._facts[key] = (of, compute())
        return known[1]


def spread_box(op: Affine, *boxes: Intervals) -> Intervals:
    """The image of boxes under an affine operator."""
    middle = op.apply(*(b.middle for b in boxes))
    radius = op.spread(*(b.radius for b in boxes))
    return Intervals(middle - radius, middle + radius)


# -- stacks: like layers side by side -----------------------------------------------------
#
# Networks of small layers cost calls of operators more than arithmetic. Neighbouring nodes of one
# elementwise function are a stack, and are relaxed as one.

STACKED = 1024  # neurons of a stack; of more, time goes into moving memory
CROWD = 1 << 14  # numbers of a node's rows from which on copies into a stack cost more than calls


@dataclass(frozen=True, slots=True)
class Stack:
    """Neighbouring nodes of one elementwise function, or any node alone.

    Tensors of several nodes together are (rows, neurons), of one of the node's own shape.
    """

    op: Relaxation
    nodes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]  # of their inputs
    sizes: tuple[int, ...]
    slots: slice  # of their slopes among the target's slots

    def split(self, whole: Tensor) -> dict[int, Tensor]:
        """Each node's share."""
        if len(self.nodes) == 1:
            return {self.nodes[0]: whole}
        shares = whole.split_with_sizes(self.sizes, 1)
        return {
            i: share if len(shape) == 1 else share.reshape(-1, *shape)
            for i, shape, share in zip(self.nodes, self.shapes, shares, strict=True)
        }

    def join(self, shares: Mapping[int, Tensor]) -> Tensor:
        if len(self.nodes) == 1:
            return shares[self.nodes[0]]
        every = (shares[i] for i in self.nodes)
        return torch.cat([t if t.dim() == 2 else t.flatten(1) for t in every], 1)

    def laid(self, flat: Tensor) -> Tensor:
        """A tensor (rows, neurons) in the shape of this stack's tensors."""
        return flat.view(-1, *self.shapes[0]) if len(self.nodes) == 1 else flat


def stacked(
    plan: Plan, target: int, relaxed: Mapping[int, Relaxed], rows: int
) -> tuple[Relaxed, ...]:
    """The stacks of a target, each relaxed over the boxes of its nodes; `rows` decides how many
    nodes a stack has."""
    every = stacks(plan, target, crowd(plan, target, rows))
    return tuple(_joined([relaxed[i] for i in stack.nodes]) for stack in every)


def crowd(plan: Plan, target: int, rows: int) -> bool:
    """True if this number of rows keeps every node busy by itself."""
    return rows * plan.slots(target)[1] >= CROWD * len(plan.below(target))


@per_plan
def stacks(plan: Plan, target: int, crowd: bool = False) -> tuple[Stack, ...]:
    """The nonlinear nodes below a target, in the order of its slots; for a crowd of rows every node
    alone."""
    found: list[list[int]] = []
    places, _ = plan.slots(target)
    for i, place in places.items():
        op = plan.relaxation(i)
        if found and not crowd and isinstance(op, Elementwise) and not op.tensors():
            first = found[-1][0]
            if plan.relaxation(first) == op and place.stop - places[first].start <= STACKED:
                found[-1].append(i)
                continue
        found.append([i])
    return tuple(
        Stack(
            plan.relaxation(nodes[0]),
            tuple(nodes),
            tuple(plan.graph.nodes[plan.graph.nodes[i].inputs[0]].shape for i in nodes),
            tuple(places[i].stop - places[i].start for i in nodes),
            slice(places[nodes[0]].start, places[nodes[-1]].stop),
        )
        for nodes in found
    )


def _joined(relaxed: Sequence[Relaxed]) -> Relaxed:
    first = relaxed[0]
    if len(relaxed) == 1:
        return first
    count = max(f.box.lower.shape[0] for f in relaxed)

    def box(boxes: list[Intervals]) -> Intervals:
        return Intervals(
            _cat([b.lower for b in boxes], count), _cat([b.upper for b in boxes], count)
        )

    lines, ranges = [f.lines for f in relaxed], [f.range for f in relaxed]
    excess = [f.excess for f in relaxed if f.excess is not None]
    return Relaxed(
        first.op,
        box([f.box for f in relaxed]),
        Lines(
            Slopes(
                _cat([own.slopes.lower for own in lines], count),
                _cat([own.slopes.upper for own in lines], count),
            ),
            _cat([own.lower for own in lines], count),
            _cat([own.upper for own in lines], count),
        ),
        SlopeRange(box([r.lower for r in ranges]), box([r.upper for r in ranges])),
        _cat(excess, count) if excess else None,
    )


def _cat(parts: list[Tensor], count: int) -> Tensor:
    """Tensors side by side; those that all rows share are repeated `count` times."""
    flat = [t if t.dim() == 2 else t.flatten(1) for t in parts]
    if any(t.shape[0] != count for t in flat):
        flat = [t.expand(count, -1) for t in flat]
    return torch.cat(flat, 1)
