"""FROWN over a whole network: every neuron of every layer, each side, its own lines."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.engines.backward import (
    Layers,
    fixed_layers,
    fixed_margins,
    pieces,
    shared,
    unsettled,
    walk,
    with_entries,
)
from frown.engines.forms import one_hot
from frown.engines.frame import Frame
from frown.engines.optimise import optimise
from frown.engines.plan import Plan
from frown.engines.settings import Ascent, Settings
from frown.graph.box import Box
from frown.query.region import Region
from frown.query.spec import Spec


@dataclass
class Warm:
    """Where ascents ended, for the next radius to start from.

    Per bounded node a table (samples, groups, slots) of theta, NaN where nothing has
    been tried; of the last node, the output, one group per condition.
    """

    samples: int
    theta: dict[int, Tensor] = field(default_factory=dict)

    def table(self, target: int, groups: int, slots: int, like: Tensor) -> Tensor:
        known = self.theta.get(target)
        if known is None or known.shape != (self.samples, groups, slots):
            known = like.new_full((self.samples, groups, slots), torch.nan)
            self.theta[target] = known
        return known


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
    ascent: Ascent,
    warm: Warm,
    sample: Tensor,  # (N,) which samples of `warm` these are
    until_positive: bool = False,
) -> Frowned:
    """Bounds of every layer and of the spec with optimised lines.

    `until_positive` ends the last ascent once every condition is proved.
    """
    crown = fixed_layers(plan, region, settings)
    engine = _Engine(plan, region, settings, ascent, warm, sample)

    def tighten(source: int, box: Box, frames: dict[int, Frame]) -> Box:
        box = box.meet(crown.values[source])
        if not plan.below(source):
            return box
        return engine.neurons(source, box, frames)

    layers = walk(plan, region, tighten, settings)
    floor = fixed_margins(plan, region, spec, crown, settings)
    return Frowned(layers, engine.margins(spec, layers.frames, floor, until_positive))


@dataclass(frozen=True)
class _Engine:
    plan: Plan
    region: Region
    settings: Settings
    ascent: Ascent
    warm: Warm
    sample: Tensor

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
                source, coef, sample[piece], slot[piece], 2 * blocks, frames, None
            )
        low, high = side == 0, side == 1
        tight = with_entries(box, sample[low], neuron[low], bound[low], box.upper.flatten(1)[sample[low], neuron[low]])
        return with_entries(tight, sample[high], neuron[high], tight.lower.flatten(1)[sample[high], neuron[high]], -bound[high])

    def margins(
        self, spec: Spec, frames: dict[int, Frame], floor: Tensor, until_positive: bool
    ) -> Tensor:
        """(N, T) lower bounds of the conditions, never below `floor`."""
        count, conditions, _ = spec.coef.shape
        target = self.plan.graph.output
        coef = spec.coef.reshape(count * conditions, *self.plan.graph.nodes[target].shape)
        every = torch.arange(count * conditions, device=coef.device)
        sample, slot = every // conditions, every % conditions
        best = floor.flatten().clone()
        for piece in pieces(self.plan, target, len(every), self.settings):
            enough = best[piece] if until_positive else None
            found = self._rows(
                target, coef[piece], sample[piece], slot[piece], conditions, frames, enough
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
        floor: Tensor | None,
    ) -> Tensor:
        """Optimise rows, starting from and saving to the warm table."""
        index = shared(sample)
        gathered = {i: frames[i].rows(index) for i in self.plan.below(target)}
        table = self.warm.table(target, slots, self.plan.slots(target)[1], coef)
        key = self.sample[sample] * slots + slot
        keys, group = torch.unique_consecutive(key, return_inverse=True)
        flat = table.view(-1, table.shape[-1])
        own = len(keys) == len(key)

        def done(best: Tensor) -> bool:
            return floor is not None and bool((torch.maximum(best, floor) > 0).all())

        found = optimise(
            self.plan,
            target,
            coef,
            self.region.rows(index),
            gathered,
            flat[keys],
            None if own else group,
            self.ascent,
            done,
        )
        flat[keys] = found.theta
        return found.bound

    def _whole_groups(self, source: int, sample: Tensor, slot: Tensor) -> list[slice]:
        """Chunks under the memory budget that end where a group ends."""
        starts = torch.ones_like(sample, dtype=torch.bool)
        starts[1:] = (sample[1:] != sample[:-1]) | (slot[1:] != slot[:-1])
        edges = [*starts.nonzero().flatten().tolist(), len(sample)]
        most = max(1, self.settings.memory // self.plan.row_bytes(source))
        chunks, first = [], 0
        for edge, after in zip(edges[1:], [*edges[2:], None], strict=True):
            if after is None or after - first > most:
                chunks.append(slice(first, edge))
                first = edge
        return chunks
