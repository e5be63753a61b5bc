"""Interval, Fast-Lin and CROWN: bounds of every layer with fixed lines (appendix A.2).

Nonlinearities are taken in order. The input of each is bounded by intervals, then by
backward rows, and the two are intersected; the result decides its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from frown.bounds.clock import NO_LIMIT, Clock
from frown.bounds.first_layer import Entry
from frown.bounds.forms import LinearForm, Partial, descend, form_of, one_hot
from frown.bounds.patches import Part
from frown.bounds.plan import Plan, spread_box
from frown.bounds.rule import frame
from frown.bounds.settings import Settings
from frown.bounds.tiling import parts, parts_of
from frown.graph.box import Box
from frown.graph.graph import Input
from frown.graph.op import Affine
from frown.problem.region import Region
from frown.problem.spec import Conditions
from frown.relax.relaxation import Frame, Lines

Boxes = dict[int, Box]  # by node
CHUNK = 64 << 20  # bytes of rows in flight; with more, time goes into moving memory
CALL = 1 << 13  # numbers that an operator should get at once; with fewer, time goes into calls
PASS = 3 << 15  # numbers that rows with fixed lines, of which little is kept, have at a node
SMALL = 64  # rows that are not worth a call of their own


@dataclass(frozen=True)
class Layers:
    """Bounds of a network's inside over a region, for every sample."""

    values: dict[int, Box]  # every node's interval, (N, *shape)
    frames: dict[int, Frame]  # every nonlinear node's lines; empty for plain intervals


def walk(
    plan: Plan,
    region: Region,
    tighten: Callable[[int, Box, dict[int, Frame]], Box],
    settings: Settings,
) -> Layers:
    """Bound every node in order.

    `tighten(source, interval, frames so far)` may improve the interval of a node that a
    nonlinearity reads; the result is intersected with the interval.
    """
    values: dict[int, Box] = {}
    frames: dict[int, Frame] = {}
    done: set[int] = set()
    for i in plan.ancestors(plan.graph.output):
        node = plan.graph.nodes[i]
        if isinstance(node.op, Input):
            values[i] = region.box()
        elif isinstance(node.op, Affine):
            values[i] = spread_box(node.op, *(values[j] for j in node.inputs))
        else:
            op, source = plan.relaxation(i), plan.sources[i]
            if source not in done and plan.needs_rows(source):
                values[source] = values[source].meet(tighten(source, values[source], frames))
            done.add(source)
            box = plan.carry(i, values[source])
            if settings.method != "interval":
                frames[i] = frame(op, box, settings)
            values[i] = op.image(box)
    return Layers(values, frames)


def fixed_layers(
    plan: Plan,
    region: Region,
    settings: Settings,
    clock: Clock = NO_LIMIT,
    known: Boxes | None = None,
    inside: bool = True,
) -> Layers:
    """All layers by the settings' fixed rule; `known` boxes of some of them hold already. Unless
    `inside`, lines are those of plain intervals, which cost next to nothing."""
    if settings.method == "interval" or not inside:
        return walk(plan, region, lambda source, box, frames: box, settings)

    def tighten(source: int, box: Box, frames: dict[int, Frame]) -> Box:
        clock.check()
        box, rows = without_rows(plan, region, source, box, settings, known, clock)
        return fixed_box(plan, region, source, box, frames, settings, clock) if rows else box

    return walk(plan, region, tighten, settings)


def without_rows(
    plan: Plan,
    region: Region,
    source: int,
    box: Box,
    settings: Settings,
    known: Boxes | None,
    clock: Clock = NO_LIMIT,
) -> tuple[Box, bool]:
    """What is known of a source before any row, and whether rows can tell more."""
    if region.p == torch.inf and plan.interval_exact(source):
        return box, False
    if not plan.below(source):
        return affine_box(plan, region, source, settings, clock), False
    return box.meet(known[source]) if known and source in known else box, True


def fixed_box(
    plan: Plan,
    region: Region,
    source: int,
    box: Box,
    frames: dict[int, Frame],
    settings: Settings,
    clock: Clock = NO_LIMIT,
    wanted: Tensor | None = None,
) -> Box:
    """A source's box, its unsettled entries (of those in the mask, (N, size)) bounded by rows
    with fixed lines."""

    def left(box: Box) -> tuple[Tensor, Tensor]:
        sample, neuron = unsettled(plan, source, box)
        if wanted is None:
            return sample, neuron
        keep = wanted[sample, neuron]
        return sample[keep], neuron[keep]

    def bounded(sample: Tensor, neuron: Tensor, signs: Tensor) -> Tensor:
        return _neuron_bounds(plan, region, source, sample, neuron, signs, frames, settings, clock)

    sample, neuron = left(box)
    count = len(sample)
    if count and few(plan, source, count):
        # Both sides in one pass: with few rows, passes cost more than rows.
        signs = box.lower.new_ones(2 * count)
        signs[count:] = -1
        bound = bounded(torch.cat([sample, sample]), torch.cat([neuron, neuron]), signs)
        at = sample * box.lower[0].numel() + neuron
        low, high = box.lower.flatten(), box.upper.flatten()
        low = low.index_copy(0, at, bound[:count])
        high = high.index_copy(0, at, -bound[count:])
        return box.meet(Box(low.view_as(box.lower), high.view_as(box.upper)))
    # The side nearer to 0 first: what it settles needs no row for the other.
    near = torch.where(box.middle.flatten(1) > 0, 1.0, -1.0).to(box.lower)
    for sign in (near, -near):
        if count:
            signs = sign[sample, neuron]
            bound = bounded(sample, neuron, signs)
            box = box.meet(with_entries(box, sample, neuron, signs, bound))
            sample, neuron = left(box)
            count = len(sample)
    return box


def fixed_margins(
    plan: Plan,
    region: Region,
    spec: Conditions,
    layers: Layers,
    settings: Settings,
    clock: Clock = NO_LIMIT,
) -> Tensor:
    """(N, T) lower bounds of the spec's conditions with the layers' lines, or by plain
    intervals where those are tighter."""
    count, conditions = spec.shape
    shape = plan.graph.nodes[-1].shape
    box = layers.values[plan.graph.output]
    plain = spec.at(box.middle.flatten(1)) - spec.spread(box.radius.flatten(1))
    if settings.method == "interval":
        return plain

    def coef(index: Tensor | slice) -> Tensor:
        return spec.pick(index).view(-1, *shape)

    sample = torch.arange(count, device=plain.device).repeat_interleave(conditions)
    (part,) = parts(plan, plan.graph.output, 0).parts
    place = torch.zeros_like(sample)
    bounds = fixed_rows(part, region, coef, sample, place, layers.frames, settings, clock)
    return torch.fmax(bounds.view(count, conditions), plain)


def fixed_rows(
    part: Part,
    region: Region,
    coef: Callable[[Tensor | slice], Tensor],  # of some of the rows
    sample: Tensor,
    place: Tensor,
    frames: dict[int, Frame],
    settings: Settings,
    clock: Clock = NO_LIMIT,
) -> Tensor:
    """Lower bounds of coef . target, one per row, in chunks that fit the memory budget."""
    bounds = [region.radius.new_zeros(0)]
    for piece in fixed_pieces(part, len(sample), settings):
        clock.check()
        index = rounded(piece, sample.device) if part.convolved else piece
        here = sample[index], place[index]
        entry, lines = part.entry(region, *here), part.lines(frames, *here)
        form = fixed_form(part.plan, part.target, coef(index), lines, entry)
        if entry is None:
            least = part.region(region, *here).least(form.coef) + form.const
        else:
            least = entry.least(form.coef) + form.const
        bounds.append(least[: piece.stop - piece.start])
    return torch.cat(bounds)


def fixed_form(
    plan: Plan, target: int, coef: Tensor, lines: dict[int, Lines], entry: Entry | None = None
) -> LinearForm:
    """The form at the input, or at the entry's start, that bounds coef . target below with these
    lines, of every row."""

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        own, op = lines[i], plan.relaxation(i)
        slopes = own.slopes
        if own.lower.shape[0] == 1 < here.shape[0]:
            # c line = c upper + max(c, 0) (lower - upper), in fewer passes for shared lines
            positive = here.clamp(min=0)
            gain = here.flatten(1) @ own.upper.flatten()
            gain += positive.flatten(1) @ (own.lower - own.upper).flatten()
            back = op.expand(here) * slopes.upper
            return gain, back.addcmul_(op.expand(positive), slopes.lower - slopes.upper)
        # Halves of a form in place of masks: torch selects far more slowly than it multiplies.
        positive = here.relu()
        negative = here - positive
        gain = torch.addcmul(positive * own.lower, negative, own.upper)
        gain = (gain if gain.dim() == 2 else gain.flatten(1)).sum(1)
        back = op.expand(positive) * slopes.lower
        return gain, back.addcmul_(op.expand(negative), slopes.upper)

    start = Partial({target: coef}, coef.new_zeros(len(coef)), target)
    return form_of(plan, descend(plan, target, start, through, entry=entry), entry)


def affine_box(
    plan: Plan, region: Region, source: int, settings: Settings, clock: Clock = NO_LIMIT
) -> Box:
    """Exact bounds of an affine function of the input; its rows serve all samples."""
    node, device = plan.graph.nodes[source], plan.graph.device
    samples = len(region.radius)
    lower = torch.empty(samples, node.size, dtype=plan.graph.dtype, device=device)
    upper = torch.empty_like(lower)
    for part in parts(plan, source, 1, clock).parts:
        places, size = part.neurons.shape
        every = torch.arange(samples * places, device=device)
        balls = part.region(region, every // places, every % places)
        sign = torch.ones(size, dtype=plan.graph.dtype, device=device)
        entry = torch.arange(size, device=device)
        for piece in pieces(part.plan, part.target, size, settings):
            clock.check()
            coef = one_hot(entry[piece], sign[piece], size, part.shape)
            form = fixed_form(part.plan, part.target, coef, {})
            box = balls.extremes(form.coef)
            at = part.neurons[:, piece].flatten()
            lower[:, at] = (box.lower + form.const).view(samples, -1)
            upper[:, at] = (box.upper + form.const).view(samples, -1)
    return Box(lower.view(-1, *node.shape), upper.view(-1, *node.shape))


def unsettled(plan: Plan, source: int, box: Box) -> tuple[Tensor, Tensor]:
    """(sample, neuron) of the entries of a source whose bounds are worth a row."""
    masks = [
        plan.carry_back(i, ~plan.relaxation(i).settled(plan.carry(i, box)))
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


def at_once(plan: Plan, target: int, settings: Settings) -> int:
    """How many rows of a target go together: within the budget, and near the processor.

    A row through many small nodes (frames of a sequence) is long, but each of them wants its
    share of numbers: else rows get fewer with every frame, and passes more.
    """
    row = plan.row_bytes(target)
    return max(1, min(settings.memory // row, max(CHUNK // row, CALL // plan.node_size(target))))


def pieces(plan: Plan, target: int, rows: int, settings: Settings) -> Iterator[slice]:
    """Chunks of rows that fit the memory budget."""
    step = at_once(plan, target, settings)
    return (slice(a, min(a + step, rows)) for a in range(0, rows, step))


def fixed_pieces(part: Part, rows: int, settings: Settings) -> Iterator[slice]:
    """The same for fixed lines; before convolutions of round sizes, as far as that goes."""
    most = settings.memory // part.plan.row_bytes(part.target)
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


def _neuron_bounds(
    plan: Plan,
    region: Region,
    source: int,
    sample: Tensor,
    neuron: Tensor,
    sign: Tensor,
    frames: dict[int, Frame],
    settings: Settings,
    clock: Clock,
) -> Tensor:
    """(rows,) lower bounds of sign * neuron."""
    split = parts_of(plan, source, len(sample), clock)
    bounds = torch.empty_like(sign)
    for _, part, rows in split.split(neuron):
        for piece in fixed_pieces(part, len(neuron[rows]), settings):
            here = piece if isinstance(rows, slice) else rows[piece]
            place, entry = split.where(neuron[here])
            signs, size, shape = sign[here], part.neurons.shape[1], part.shape
            coef = one_hot(entry, signs, size, shape)
            own = sample[here]
            bounds[here] = fixed_rows(
                part, region, coef.__getitem__, own, place, frames, settings, clock
            )
    return bounds
