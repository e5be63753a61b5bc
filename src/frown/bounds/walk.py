"""The walk through a network: nonlinearities in order, the input of each bounded first.

The interval of a nonlinearity's input is intersected with what a method's rows tell of it; the
result decides its lines (appendix A.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from frown.bounds.forms import form_along, one_hot
from frown.bounds.patches import Part
from frown.bounds.plan import Plan, spread_box
from frown.bounds.rule import Rule, relax
from frown.bounds.tiling import parts
from frown.bounds.work import Work
from frown.graph.box import Box
from frown.graph.graph import Input
from frown.graph.op import Affine
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed

Boxes = dict[int, Box]  # by node
CHUNK = 64 << 20  # bytes of rows in flight; with more, time goes into moving memory
CALL = 1 << 13  # numbers that an operator should get at once; with fewer, time goes into calls
PASS = 3 << 15  # numbers that rows with fixed lines, of which little is kept, have at a node
SMALL = 64  # rows that are not worth a call of their own


@dataclass(frozen=True)
class Layers:
    """Bounds of a network's inside over a region, for every sample."""

    values: dict[int, Box]  # every node's interval, (N, *shape)
    relaxed: dict[int, Relaxed]  # every nonlinear node's lines; empty for plain intervals
    empty: Tensor  # (N,) whether the cuts that were given leave nothing of the region


@dataclass(frozen=True, slots=True)
class Given:
    """Boxes of nodes that nonlinearities read, which hold already.

    With `cuts` they narrow the region itself, as the sides of a branch do: where they contradict
    what follows from it, nothing of it is left. Without, a contradiction is rounding alone.
    """

    boxes: Boxes
    cuts: bool = False

    def rows(self, index: Tensor | slice) -> Given:
        """What is given of these samples."""
        return Given({i: box.rows(index) for i, box in self.boxes.items()}, self.cuts)


Tighten = Callable[[int, Box, dict[int, Relaxed]], Box]


def walk(
    plan: Plan,
    region: Region,
    tighten: Tighten,
    rule: Rule | None,
    wide: bool = False,
    given: Given | None = None,
) -> Layers:
    """Bound every node in order.

    `tighten(source, interval, relaxed so far)` may improve the interval of a node that a
    nonlinearity reads; the result is intersected with the interval. Without a rule there are no
    lines.
    """
    values: Boxes = {}
    relaxed: dict[int, Relaxed] = {}
    done: set[int] = set()
    empty = torch.zeros_like(region.radius, dtype=torch.bool)

    def met(box: Box, other: Box) -> Box:
        nonlocal empty
        if given is not None and given.cuts:
            empty = empty | box.misses(other)
        return box.meet(other)

    for i in plan.ancestors(plan.graph.output):
        node = plan.graph.nodes[i]
        if isinstance(node.op, Input):
            values[i] = region.box()
        elif isinstance(node.op, Affine):
            values[i] = spread_box(node.op, *(values[j] for j in node.inputs))
        else:
            op, source = plan.relaxation(i), plan.sources[i]
            if source not in done:
                box = values[source]
                if given is not None and source in given.boxes:
                    box = met(box, given.boxes[source])
                if plan.needs_rows(source):
                    box = met(box, tighten(source, box, relaxed))
                values[source] = box
            done.add(source)
            box = plan.carry(i, values[source])
            if rule is not None:
                relaxed[i] = relax(op, box, rule, wide)
            values[i] = op.image(box)
    return Layers(values, relaxed, empty)


def without_rows(plan: Plan, region: Region, source: int, box: Box, work: Work) -> Box | None:
    """A source's box where no row can tell more of it; None elsewhere."""
    if region.p == torch.inf and plan.interval_exact(source):
        return box
    return None if plan.below(source) else affine_box(plan, region, source, work)


def affine_box(plan: Plan, region: Region, source: int, work: Work) -> Box:
    """Exact bounds of an affine function of the input; its rows serve all samples."""
    node, device = plan.graph.nodes[source], plan.graph.device
    samples = len(region.radius)
    lower = torch.empty(samples, node.size, dtype=plan.graph.dtype, device=device)
    upper = torch.empty_like(lower)
    for part in parts(plan, source, 1, work.clock).parts:
        places, size = part.neurons.shape
        every = torch.arange(samples * places, device=device)
        balls = part.region(region, every // places, every % places)
        sign = torch.ones(size, dtype=plan.graph.dtype, device=device)
        entry = torch.arange(size, device=device)
        for piece in pieces(part.plan, part.target, size, work):
            work.clock.check()
            coef = one_hot(entry[piece], sign[piece], size, part.shape)
            form = form_along(part.plan, part.target, coef, {})
            box = balls.extremes(form.coef)
            at = part.neurons[:, piece].flatten()
            lower[:, at] = (box.lower + form.const).view(samples, -1)
            upper[:, at] = (box.upper + form.const).view(samples, -1)
    return Box(lower.view(-1, *node.shape), upper.view(-1, *node.shape))


def unstable(plan: Plan, source: int, box: Box) -> tuple[Tensor, Tensor]:
    """(sample, neuron) of the entries of a source whose bounds are worth a row."""
    masks = [
        plan.carry_back(i, ~plan.relaxation(i).stable(plan.carry(i, box)))
        for i in plan.readers(source)
    ]
    wanted = reduce(torch.logical_or, masks) & plan.loose(source)
    pairs = wanted.flatten(1).nonzero()
    return pairs[:, 0], pairs[:, 1]


def with_entries(box: Box, sample: Tensor, neuron: Tensor, sign: Tensor, least: Tensor) -> Box:
    """The box with one side of some entries replaced: sign * entry >= least."""
    low, high = box.lower.flatten(1).clone(), box.upper.flatten(1).clone()
    below = sign > 0
    low[sample[below], neuron[below]] = least[below]
    high[sample[~below], neuron[~below]] = -least[~below]
    return Box(low.view_as(box.lower), high.view_as(box.upper))


def few(plan: Plan, target: int, neurons: int) -> bool:
    """Whether both sides of so many neurons are worth one pass; whatever memory there is, since
    bounds depend on it."""
    rows = max(CHUNK // plan.row_bytes(target), CALL // plan.node_size(target))
    return 2 * neurons <= rows


def at_once(plan: Plan, target: int, work: Work) -> int:
    """How many rows of a target go together: within the budget, and near the processor.

    A row through many small nodes (frames of a sequence) is long, but each of them wants its
    share of numbers: else rows get fewer with every frame, and passes more.
    """
    row = plan.row_bytes(target)
    return max(1, min(work.memory // row, max(CHUNK // row, CALL // plan.node_size(target))))


def pieces(plan: Plan, target: int, rows: int, work: Work) -> Iterator[slice]:
    """Chunks of rows that fit the memory budget."""
    step = at_once(plan, target, work)
    return (slice(a, min(a + step, rows)) for a in range(0, rows, step))


def fixed_pieces(part: Part, rows: int, work: Work) -> Iterator[slice]:
    """The same for fixed lines; before convolutions of round sizes, as far as that goes."""
    most = work.memory // part.plan.row_bytes(part.target)
    step = max(1, min(most, PASS // part.plan.node_size(part.target)))
    if not part.convolved:
        yield from (slice(a, min(a + step, rows)) for a in range(0, rows, step))
        return
    first = 0
    while first < rows:
        left = min(rows - first, step)
        size = round_size(left)
        if size > step or (left > SMALL and size > left + left // 8):
            size = round_size(left, above=False)
        yield slice(first, min(first + size, rows))
        first += size


def round_size(rows: int, above: bool = True) -> int:
    """The nearest of 1, 2, 3, 4, 6, 8, 12, ... at or above, or at or below."""
    power = 1 << (rows.bit_length() - 1)
    sizes = (power, power + power // 2, 2 * power)
    return min(s for s in sizes if s >= rows) if above else max(s for s in sizes if s <= rows)


def rounded(piece: slice, device: torch.device) -> Tensor:
    """Indices of a chunk whose last row is repeated until their number is round.

    Convolutions are prepared for every new shape, which costs more than some rows too many.
    """
    index = torch.arange(
        piece.start, piece.start + round_size(piece.stop - piece.start), device=device
    )
    return index.clamp(max=piece.stop - 1)
