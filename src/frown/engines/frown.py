"""FROWN over a whole network: every neuron of every layer, each side, its own lines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frown.engines.backward import (
    Layers,
    at_once,
    fixed_layers,
    fixed_margins,
    pieces,
    shared,
    unsettled,
    walk,
)
from frown.engines.clock import NO_LIMIT, Clock
from frown.engines.forms import one_hot
from frown.engines.optimise import Rows, optimise
from frown.engines.plan import Plan
from frown.engines.settings import Settings
from frown.graph.box import Box
from frown.query.region import Region
from frown.query.spec import Spec
from frown.relax.relaxation import Frame


@dataclass
class Warm:
    """Where ascents ended, for the next radius to start from.

    Per bounded node a table (samples * groups, lanes, slots) of theta, NaN where nothing
    has been tried; of the last node, the output, one group per condition.
    """

    samples: int
    rounds: int = 0  # radii tried so far
    theta: dict[int, Tensor] = field(default_factory=dict)
    tight: Warm | None = None  # of the narrow search that a wide one builds on

    def table(self, target: int, groups: int, lanes: int, slots: int, like: Tensor) -> Tensor:
        if target not in self.theta:
            shape = (self.samples * groups, lanes, slots)
            self.theta[target] = like.new_full(shape, torch.nan)
        return self.theta[target]


@dataclass(frozen=True)
class Frowned:
    """FROWN's layers and margins; both at least as tight as CROWN's."""

    layers: Layers
    margins: Tensor  # (N, T)


def frown(
    plan: Plan,
    region: Region,
    spec: Spec,
    settings: Settings,
    warm: Warm,
    sample: Tensor,  # (N,) which samples of `warm` these are
    clock: Clock = NO_LIMIT,
) -> Frowned:
    """Bounds of every layer and of the spec with optimised lines.

    Never looser than what they start from: CROWN's bounds or, for the wider search space,
    those of the narrow one.
    """
    if settings.wide:
        warm.tight = warm.tight or Warm(warm.samples)
        narrow = replace(settings, wide=False)
        base = frown(plan, region, spec, narrow, warm.tight, sample, clock)
    else:
        crown = fixed_layers(plan, region, settings, clock)
        base = Frowned(crown, fixed_margins(plan, region, spec, crown, settings))
    engine = _Engine(plan, region, settings, warm, sample, clock)

    def tighten(source: int, box: Box, frames: dict[int, Frame]) -> Box:
        box = box.meet(base.layers.values[source])
        if not plan.below(source):
            return box
        return box.meet(engine.neurons(source, box, frames))

    layers = walk(plan, region, tighten, settings)
    margins = engine.margins(spec, layers.frames, base.margins)
    warm.rounds += 1
    return Frowned(layers, margins)


def gather_rows(
    plan: Plan,
    region: Region,
    target: int,
    coef: Tensor,
    sample: Tensor,
    key: Tensor,
    frames: dict[int, Frame],
    grouped: bool,
    wide: bool,
) -> tuple[Rows, Tensor]:
    """Rows of these samples with what they need, and their keys in order.

    If `grouped`, rows of one key, which stand together, share their slopes.
    """
    index = shared(sample)
    keys, group = torch.unique_consecutive(key, return_inverse=True)
    rows = Rows(
        target,
        coef,
        region.rows(index),
        {i: frames[i].rows(index) for i in plan.below(target)},
        group if grouped else None,
        wide,
    )
    return rows, keys


def _continue(theta: Tensor, tight: Warm, target: int, keys: Tensor) -> Tensor:
    """A wide search starts where the narrow one ended, with nothing beyond the range."""
    narrow = tight.theta[target][keys]
    start = torch.cat([narrow, torch.zeros_like(narrow)], 1)
    return torch.where(torch.isnan(theta), start, theta)


@dataclass(frozen=True)
class _Engine:
    plan: Plan
    region: Region
    settings: Settings
    warm: Warm
    sample: Tensor
    clock: Clock

    def neurons(self, source: int, box: Box, frames: dict[int, Frame]) -> Box:
        """The box of a node, its unsettled entries bounded by optimised rows."""
        node = self.plan.graph.nodes[source]
        sample, neuron = unsettled(self.plan, source, box)
        if not len(sample):
            return box
        per = self.settings.group or node.size
        blocks = -(-node.size // per)
        # Rows in order of sample, side and block, so that a group stands together.
        sample, neuron = sample.repeat(2), neuron.repeat(2)
        side = torch.arange(2, device=neuron.device).repeat_interleave(len(neuron) // 2)
        slot = side * blocks + neuron // per
        order = torch.argsort(sample * (2 * blocks) + slot, stable=True)
        sample, neuron, side, slot = (t[order] for t in (sample, neuron, side, slot))
        sign = 1.0 - 2.0 * side.to(box.lower.dtype)
        bound = torch.empty_like(sign)
        for piece in self._whole_groups(source, sample, slot):
            coef = one_hot(neuron[piece], sign[piece], node.size, node.shape)
            bound[piece] = self._rows(
                source,
                coef,
                sample[piece],
                slot[piece],
                2 * blocks,
                frames,
                grouped=self.settings.group != 1,
            )
        low, high = box.lower.flatten(1).clone(), box.upper.flatten(1).clone()
        below = side == 0
        low[sample[below], neuron[below]] = bound[below]
        high[sample[~below], neuron[~below]] = -bound[~below]
        return Box(low.view_as(box.lower), high.view_as(box.upper))

    def margins(self, spec: Spec, frames: dict[int, Frame], floor: Tensor) -> Tensor:
        """(N, T) lower bounds of the conditions, never below `floor`."""
        count, conditions, _ = spec.coef.shape
        target = self.plan.graph.output
        coef = spec.coef.reshape(count * conditions, *self.plan.graph.nodes[target].shape)
        every = torch.arange(count * conditions, device=coef.device)
        sample, slot = every // conditions, every % conditions
        best = floor.flatten().clone()
        for piece in pieces(self.plan, target, len(every), self.settings):
            found = self._rows(
                target,
                coef[piece],
                sample[piece],
                slot[piece],
                conditions,
                frames,
                grouped=False,
            )
            best[piece] = torch.maximum(best[piece], found)
        return best.view(count, conditions)

    def _rows(
        self,
        target: int,
        coef: Tensor,
        sample: Tensor,
        slot: Tensor,
        slots: int,
        frames: dict[int, Frame],
        grouped: bool,
    ) -> Tensor:
        """Optimise rows, starting from and saving to the warm table."""
        key = self.sample[sample] * slots + slot
        rows, keys = gather_rows(
            self.plan, self.region, target, coef, sample, key, frames, grouped, self.settings.wide
        )
        flat = self.warm.table(target, slots, rows.lanes, self.plan.slots(target)[1], coef)
        theta = flat[keys]
        if self.warm.tight is not None:
            theta = _continue(theta, self.warm.tight, target, keys)
        ascent = self.settings.ascent
        steps = ascent.more if self.warm.rounds else ascent.steps
        found = optimise(self.plan, rows, theta, ascent, steps, self.clock)
        flat[keys] = found.theta
        return found.bound

    def _whole_groups(self, source: int, sample: Tensor, slot: Tensor) -> list[slice]:
        """Chunks under the memory budget that end where a group ends."""
        starts = torch.ones_like(sample, dtype=torch.bool)
        starts[1:] = (sample[1:] != sample[:-1]) | (slot[1:] != slot[:-1])
        edges = [*starts.nonzero().flatten().tolist(), len(sample)]
        most = at_once(self.plan, source, self.settings)
        chunks, first = [], 0
        for edge, after in zip(edges[1:], [*edges[2:], None], strict=True):
            if after is None or after - first > most:
                chunks.append(slice(first, edge))
                first = edge
        return chunks
