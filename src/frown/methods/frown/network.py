"""FROWN over a whole network: every neuron of every layer, each side, its own lines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frown.bounds.backward import (
    Boxes,
    Layers,
    at_once,
    fixed_box,
    fixed_layers,
    fixed_margins,
    pieces,
    rounded,
    unsettled,
    walk,
    without_rows,
)
from frown.bounds.clock import NO_LIMIT, Clock
from frown.bounds.first_layer import Entry
from frown.bounds.forms import one_hot
from frown.bounds.patches import Part
from frown.bounds.plan import Plan
from frown.bounds.settings import Settings
from frown.bounds.tiling import parts
from frown.graph.box import Box
from frown.methods.frown.ascent import Rows, optimise
from frown.problem.region import Region
from frown.problem.spec import Conditions
from frown.relax.relaxation import Frame

Key = tuple[int, int]  # a node, the number of its part


@dataclass
class Warm:
    """Where ascents ended, for the next radius to start from.

    Per bounded node and part of it a table (samples * groups, lanes, slots) of theta, NaN
    where nothing has been tried, or nothing was better than CROWN's lines; of the last node,
    the output, one group per condition. A search goes on to radii that fail: `proof` has each
    sample's theta as it was at the largest radius proved.
    """

    samples: int
    rounds: int = 0  # radii tried so far
    theta: dict[Key, Tensor] = field(default_factory=dict)
    proof: dict[Key, Tensor] = field(default_factory=dict)
    tight: Warm | None = None  # of the narrow search that a wide one builds on

    def table(self, key: Key, groups: int, lanes: int, slots: int, like: Tensor) -> Tensor:
        if key not in self.theta:
            shape = (self.samples * groups, lanes, slots)
            self.theta[key] = like.new_full(shape, torch.nan)
        return self.theta[key]

    def filled(self, theta: Tensor, key: Key, rows: Tensor) -> Tensor:
        """These rows of a table; a wide search starts where the narrow one ended, with
        nothing beyond the range."""
        if self.tight is None or key not in self.tight.theta:
            return theta
        narrow = self.tight.theta[key][rows]
        start = torch.cat([narrow, torch.zeros_like(narrow)], 1)
        return torch.where(torch.isnan(theta), start, theta)

    def keep(self, proved: Tensor) -> None:
        """What theta is now has proved the radii of these samples."""
        for key, table in self.theta.items():
            kept = self.proof.setdefault(key, torch.full_like(table, torch.nan))
            shape = (self.samples, len(table) // self.samples, *table.shape[1:])
            kept.view(shape).index_copy_(0, proved, table.view(shape).index_select(0, proved))
        if self.tight is not None:
            self.tight.keep(proved)

    def proofs(self, rounds: int = 0) -> Warm:
        """The tables of the largest radii proved, in place of the last ones tried; ascents go on
        there as after so many radii."""
        tight = None if self.tight is None else self.tight.proofs(rounds)
        return Warm(self.samples, rounds, self.proof, tight=tight)


@dataclass(frozen=True)
class Frowned:
    """FROWN's layers and margins."""

    layers: Layers
    margins: Tensor  # (N, T)


def frown(
    plan: Plan,
    region: Region,
    spec: Conditions,
    settings: Settings,
    warm: Warm,
    sample: Tensor,  # (N,) which samples of `warm` these are
    clock: Clock = NO_LIMIT,
    known: Boxes | None = None,  # that hold already
) -> Frowned:
    """Bounds of every layer and of the spec with optimised lines.

    Never looser than what they start from: CROWN's bounds or, for the wider search space,
    those of the narrow one. From the second radius on rows start from slopes that were better
    than CROWN's at the first; only where there are none, CROWN's lines come first.
    """
    base = None
    if settings.wide:
        warm.tight = warm.tight or Warm(warm.samples)
        narrow = replace(settings, wide=False)
        base = frown(plan, region, spec, narrow, warm.tight, sample, clock, known)
    elif warm.rounds == 0:
        crown = fixed_layers(plan, region, settings, clock, known)
        base = Frowned(crown, fixed_margins(plan, region, spec, crown, settings, clock))
    engine = _Engine(plan, region, settings, warm, sample, clock)

    def tighten(source: int, box: Box, frames: dict[int, Frame]) -> Box:
        if base is not None:
            box, rows = box.meet(base.layers.values[source]), bool(plan.below(source))
        else:
            box, rows = without_rows(plan, region, source, box, settings, known, clock)
            if rows and not engine.begins_at_crown(source):
                new = ~tried(plan, source, warm, settings, sample)
                box = fixed_box(plan, region, source, box, frames, settings, clock, new)
        return box.meet(engine.neurons(source, box, frames)) if rows else box

    layers = walk(plan, region, tighten, settings)
    margins = engine.margins(spec, layers.frames, None if base is None else base.margins)
    warm.rounds += 1
    return Frowned(layers, margins)


def gather_rows(
    part: Part,
    region: Region,
    coef: Tensor,
    sample: Tensor,
    place: Tensor,
    key: Tensor,
    frames: dict[int, Frame],
    grouped: bool,
    wide: bool,
    entry: Entry | None = None,
) -> tuple[Rows, Tensor]:
    """Rows of these samples and places with what they need, and their keys in order.

    If `grouped`, rows of one key, which stand together, share their slopes. Forms of rows with
    an `entry` end where that starts, others at the input.
    """
    keys, group = torch.unique_consecutive(key, return_inverse=True) if grouped else (key, None)
    own = part.frames(frames, sample, place)
    ball = region if entry is not None else part.region(region, sample, place)
    return Rows(part.target, coef, ball, own, group, wide, entry), keys


def tried(plan: Plan, source: int, warm: Warm, settings: Settings, sample: Tensor) -> Tensor:
    """(N, size) mask of the entries of a node of which both sides have slopes to start from."""
    split = parts(plan, source, settings.group)
    size = plan.graph.nodes[source].size
    mask = torch.zeros(len(sample), size, dtype=torch.bool, device=sample.device)
    for k, part in enumerate(split.parts):
        if (source, k) in warm.theta:
            # The last node is in all rows.
            known = ~torch.isnan(warm.theta[source, k][:, 0, -1])
            both = known.view(warm.samples, 2, split.blocks[k])[sample].all(1)
            own = part.neurons.flatten()
            mask[:, own] = both[:, split.block[own]]
    return mask


@dataclass(frozen=True)
class _Engine:
    plan: Plan
    region: Region
    settings: Settings
    warm: Warm
    sample: Tensor
    clock: Clock

    def begins_at_crown(self, source: int) -> bool:
        """Whether rows without slopes to start from begin with CROWN's very lines, so that their
        bounds are no looser; the rows of a group, or planes, begin near them."""
        return self.settings.group == 1 and self.plan.elementwise(source)

    def neurons(self, source: int, box: Box, frames: dict[int, Frame]) -> Box:
        """The box of a node, its unsettled entries bounded by optimised rows."""
        sample, neuron = unsettled(self.plan, source, box)
        low, high = box.lower.flatten().clone(), box.upper.flatten().clone()
        size = self.plan.graph.nodes[source].size
        group, grouped = self.settings.group, self.settings.group != 1
        split = parts(self.plan, source, group, self.clock)
        for k, part, rows in split.split(neuron):
            here, own = sample[rows], neuron[rows]
            (place, entry), blocks = split.where(own), split.blocks[k]
            block, flat = split.block[own], here * size + own
            count = len(own)
            # First all sides below, then all above.
            slot = torch.cat([block, block + blocks])
            known = torch.cat([low.index_select(0, flat), -high.index_select(0, flat)])
            here, place, entry = (torch.cat([t, t]) for t in (here, place, entry))
            sign = known.new_ones(2 * count)
            sign[count:] = -1
            order = None
            if grouped:
                # In order of sample, side and block, so that a group stands together.
                order = torch.argsort(here * (2 * blocks) + slot, stable=True)
                here, place, entry, slot, known, sign = (
                    t[order] for t in (here, place, entry, slot, known, sign)
                )
                chunks = self._whole_groups(part, here, slot)
            else:
                chunks = list(pieces(part.plan, part.target, len(here), self.settings))
            found = []
            for piece in chunks:
                coef = one_hot(entry[piece], sign[piece], part.neurons.shape[1], part.shape)
                bound = self._rows(
                    part,
                    (source, k),
                    coef,
                    here[piece],
                    place[piece],
                    slot[piece],
                    2 * blocks,
                    frames,
                    known[piece],
                    grouped,
                )
                found.append(bound)
            least = found[0] if len(found) == 1 else torch.cat(found)
            if order is not None:
                least = torch.empty_like(least).index_copy_(0, order, least)
            low.index_copy_(0, flat, least[:count])
            high.index_copy_(0, flat, -least[count:])
        return Box(low.view_as(box.lower), high.view_as(box.upper))

    def margins(self, spec: Conditions, frames: dict[int, Frame], floor: Tensor | None) -> Tensor:
        """(N, T) lower bounds of the conditions, never below `floor`."""
        count, conditions = spec.shape
        target = self.plan.graph.output
        shape = self.plan.graph.nodes[target].shape
        every = torch.arange(count * conditions, device=self.sample.device)
        sample, slot = every // conditions, every % conditions
        best = self.region.radius.new_full((len(every),), -torch.inf)
        if floor is not None:
            best = floor.flatten().clone()
        (part,) = parts(self.plan, target, 0).parts
        for piece in pieces(self.plan, target, len(every), self.settings):
            found = self._rows(
                part,
                (target, 0),
                spec.pick(piece).view(-1, *shape),
                sample[piece],
                torch.zeros_like(sample[piece]),
                slot[piece],
                conditions,
                frames,
                best[piece],
                grouped=False,
            )
            best[piece] = torch.maximum(best[piece], found)
        return best.view(count, conditions)

    def _rows(
        self,
        part: Part,
        table: Key,
        coef: Tensor,
        sample: Tensor,
        place: Tensor,
        slot: Tensor,
        slots: int,
        frames: dict[int, Frame],
        known: Tensor,
        grouped: bool,
    ) -> Tensor:
        """Optimise rows, starting from and saving to the warm table.

        Slopes that end below what is `known` are no proof of it, nor a good start: they are
        forgotten, and CROWN's take their place.
        """
        count = len(sample)
        if not grouped and part.convolved:
            index = rounded(slice(0, count), coef.device)
            coef, sample, place, slot = (t[index] for t in (coef, sample, place, slot))
        key = self.sample[sample] * slots + slot
        entry, wide = part.entry(self.region, sample, place), self.settings.wide
        rows, keys = gather_rows(
            part, self.region, coef, sample, place, key, frames, grouped, wide, entry
        )
        width = part.plan.slots(part.target)[1]
        flat = self.warm.table(table, slots, rows.lanes, width, coef)
        theta = self.warm.filled(flat.index_select(0, keys), table, keys)
        ascent = self.settings.ascent
        last = table[0] == self.plan.graph.output
        radii, layers = self.warm.rounds, None if grouped else len(part.plan.below(part.target))
        steps, rate = ascent.of_margins(radii) if last else ascent.of_neurons(radii, layers)
        ascent = replace(ascent, rate=rate)
        found = optimise(part.plan, rows, theta, ascent, steps, self.clock)
        kept = len(keys) if grouped else count
        keys, bound = keys[:kept], found.bound[:count]
        flat.index_copy_(0, keys, found.theta[:kept])
        if not grouped:
            flat.index_fill_(0, keys[bound < known], torch.nan)
        return bound

    def _whole_groups(self, part: Part, sample: Tensor, slot: Tensor) -> list[slice]:
        """Chunks under the memory budget that end where a group ends."""
        starts = torch.ones_like(sample, dtype=torch.bool)
        starts[1:] = (sample[1:] != sample[:-1]) | (slot[1:] != slot[:-1])
        edges = [*starts.nonzero().flatten().tolist(), len(sample)]
        most = at_once(part.plan, part.target, self.settings)
        chunks, first = [], 0
        for edge, after in zip(edges[1:], [*edges[2:], None], strict=True):
            if after is None or after - first > most:
                chunks.append(slice(first, edge))
                first = edge
        return chunks
