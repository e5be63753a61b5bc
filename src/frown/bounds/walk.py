"""The walk through a network: nonlinearities in order, the input of each bounded first.

The interval of a nonlinearity's input is intersected with what rows tell of it; the result decides
its lines (appendix A.2). What intervals and lines are computed with is the arithmetic: plain
floats, floats with every rounding error charged, or these as a network is executed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.bounds.halfspace import Halfspace, Planes
from frown.bounds.plan import Plan
from frown.graph.graph import Input
from frown.graph.intervals import Intervals, rows_of
from frown.graph.op import Affine
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed

Boxes = dict[int, Intervals]  # by node


@dataclass(frozen=True)
class Layers:
    """Bounds of a network's inside over a region, for every sample."""

    values: Boxes  # every node's interval, (N, *shape)
    relaxed: dict[int, Relaxed]  # every nonlinear node's lines; empty for plain intervals
    empty: Tensor  # (N,) whether the cuts that were given leave nothing of the region


@dataclass(frozen=True, slots=True)
class Given:
    """Boxes of nodes that nonlinearities read, which hold already.

    With `cuts` they narrow the region itself, as the sides of a branch do: where they contradict
    what follows from it, nothing of it is left. Without, a contradiction is rounding alone.
    `marked` entries, as a rule those that were cut, are worth a multiplier: rows may then use
    l <= z <= u itself, besides the lines over [l, u]. What is left of the region lies in `half`,
    and what a source gives there in its `planes`. Boxes of sources up to `settled` stay.
    """

    boxes: Boxes
    cuts: bool = False
    marked: dict[int, Tensor] | None = None  # (N, *shape) masks, by source
    half: Halfspace | None = None
    planes: dict[int, Planes] = field(default_factory=dict)  # by source; else `half` serves
    settled: int = -1

    @property
    def told(self) -> bool:
        """True if rows may use more than the lines over boxes."""
        return bool(self.marked) or bool(self.planes) or self.half is not None

    def rows(self, index: Tensor | slice) -> Given:
        """The boxes of these samples."""
        boxes = {i: box.rows(index) for i, box in self.boxes.items()}
        marked = self.marked and {i: rows_of(mask, index) for i, mask in self.marked.items()}
        half = None if self.half is None else self.half.rows(index)
        planes = {i: own.rows(index) for i, own in self.planes.items()}
        return Given(boxes, self.cuts, marked, half, planes, self.settled)

    def marks(self, plan: Plan, target: int) -> Tensor | None:
        """(N, slots) masks of the neurons below a target that are marked; None: there are none."""
        if not self.marked or not any(plan.sources[i] in self.marked for i in plan.below(target)):
            return None
        places, count = plan.slots(target)
        samples = len(next(iter(self.marked.values())))
        found = torch.zeros(samples, count, dtype=torch.bool, device=plan.graph.device)
        for i, place in places.items():
            mask = self.marked.get(plan.sources[i])
            if mask is not None:
                flow = mask.to(plan.graph.dtype)
                found[:, place] = plan.carry(i, Intervals(flow, flow)).lower.flatten(1) > 0
        return found


class Arithmetic(ABC):
    """Boxes of a network's nodes, as they are found in order, and what they are computed with."""

    plan: Plan
    region: Region
    values: Boxes
    relaxed: dict[int, Relaxed]

    @abstractmethod
    def input(self, node: int) -> None:
        """Enclose the region."""

    @abstractmethod
    def affine(self, node: int) -> None:
        """Enclose an affine operator's values over the boxes of what it reads."""

    @abstractmethod
    def nonlinear(self, node: int, box: Intervals) -> None:
        """Relax a nonlinearity over a box, and enclose its values there."""

    def crossed(self, box: Intervals, other: Intervals) -> Tensor:
        """(N,) whether no value lies in both boxes, for some entry."""
        return box.misses(other)

    def narrow(self, source: int, box: Intervals, reader: int) -> None:
        """Take in a tighter box of a source, of which `reader` is the first to need it."""
        self.values[source] = box


Tighten = Callable[[int, Intervals], Intervals]


def walk(arithmetic: Arithmetic, tighten: Tighten, given: Given | None = None) -> Layers:
    """Bound every node in order.

    `tighten(source, interval)` may improve the interval of a node that a nonlinearity reads; the
    result is intersected with the interval.
    """
    plan, values = arithmetic.plan, arithmetic.values
    done: set[int] = set()
    empty = torch.zeros_like(arithmetic.region.radius, dtype=torch.bool)

    def met(box: Intervals, other: Intervals) -> Intervals:
        nonlocal empty
        if given is not None and given.cuts:
            empty = empty | arithmetic.crossed(box, other)
        return box.meet(other)

    def bounded(source: int) -> Intervals:
        box = values[source]
        if given is not None and source in given.boxes:
            box = met(box, given.boxes[source])
            if source <= given.settled:
                return box
        return met(box, tighten(source, box)) if plan.needs_rows(source) else box

    for i in plan.ancestors(plan.graph.output):
        op = plan.graph.nodes[i].op
        if isinstance(op, Input):
            arithmetic.input(i)
        elif isinstance(op, Affine):
            arithmetic.affine(i)
        else:
            source = plan.sources[i]
            if source not in done:
                done.add(source)
                box = bounded(source)
                if box is not values[source]:
                    arithmetic.narrow(source, box, i)
            arithmetic.nonlinear(i, plan.carry(i, values[source]))
    return Layers(values, arithmetic.relaxed, empty)
