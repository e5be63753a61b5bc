"""Stacks: like layers side by side, so that entrywise work is done for all of them at once.

Networks of small layers cost calls of operators more than arithmetic. Neighbouring nodes of one
elementwise function are a stack, and are relaxed as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.bounds.plan import Plan, per_plan
from frown.graph.box import Box
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Lines, Relaxation, Relaxed, SlopeRange, Slopes

MOST = 1024  # neurons of a stack; of more, time goes into moving memory


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


def stacked(plan: Plan, target: int, relaxed: Mapping[int, Relaxed]) -> tuple[Relaxed, ...]:
    """Every stack relaxed over the boxes of its nodes."""
    return tuple(_joined([relaxed[i] for i in stack.nodes]) for stack in stacks(plan, target))


def line_rows(
    plan: Plan, target: int, lines: Mapping[int, Lines], index: Tensor | slice
) -> dict[int, Lines]:
    """Every row's lines at the nodes below a target, of a stack's nodes gathered together."""
    found: dict[int, Lines] = {}
    for stack in stacks(plan, target):
        if len(stack.nodes) == 1 or isinstance(index, slice):
            found |= {i: lines[i].rows(index) for i in stack.nodes}
            continue
        own = [lines[i] for i in stack.nodes]
        whole = stacked_lines(own, max(o.lower.shape[0] for o in own)).rows(index)
        under, over = stack.split(whole.slopes.lower), stack.split(whole.slopes.upper)
        low, high = stack.split(whole.lower), stack.split(whole.upper)
        found |= {i: Lines(Slopes(under[i], over[i]), low[i], high[i]) for i in stack.nodes}
    return found


@per_plan
def stacks(plan: Plan, target: int) -> tuple[Stack, ...]:
    """The nonlinear nodes below a target, in the order of its slots."""
    found: list[list[int]] = []
    places, _ = plan.slots(target)
    for i, place in places.items():
        op = plan.relaxation(i)
        if found and isinstance(op, Elementwise) and not op.tensors():
            first = found[-1][0]
            if plan.relaxation(first) == op and place.stop - places[first].start <= MOST:
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

    def box(boxes: list[Box]) -> Box:
        return Box(_cat([b.lower for b in boxes], count), _cat([b.upper for b in boxes], count))

    ranges = [f.range for f in relaxed]
    excess = [f.excess for f in relaxed if f.excess is not None]
    return Relaxed(
        first.op,
        box([f.box for f in relaxed]),
        stacked_lines([f.lines for f in relaxed], count),
        SlopeRange(box([r.lower for r in ranges]), box([r.upper for r in ranges])),
        _cat(excess, count) if excess else None,
    )


def stacked_lines(lines: Sequence[Lines], count: int) -> Lines:
    """The lines of nodes side by side, (count, neurons)."""
    slopes = [own.slopes for own in lines]
    return Lines(
        Slopes(_cat([s.lower for s in slopes], count), _cat([s.upper for s in slopes], count)),
        _cat([own.lower for own in lines], count),
        _cat([own.upper for own in lines], count),
    )


def _cat(parts: list[Tensor], count: int) -> Tensor:
    """Tensors side by side; those that all rows share are repeated `count` times."""
    flat = [t if t.dim() == 2 else t.flatten(1) for t in parts]
    if any(t.shape[0] != count for t in flat):
        flat = [t.expand(count, -1) for t in flat]
    return torch.cat(flat, 1)
