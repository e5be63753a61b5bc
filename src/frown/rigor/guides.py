"""From where engines ended to slopes for a replay."""

from __future__ import annotations

import torch
from torch import Tensor

from frown.engines.frown import Warm
from frown.engines.optimise import Rows, replay
from frown.engines.parts import parts
from frown.engines.plan import Plan
from frown.engines.settings import Settings
from frown.rigor.replay import Guide, Request


def optimised(plan: Plan, engine: Plan, warm: Warm, settings: Settings, sample: Tensor) -> Guide:
    """FROWN's slopes, from where its ascents ended; rounded to single precision, which is how
    certificates keep them.

    `plan` is that of the replay, `engine` that of the search: the same nonlinearities in the same
    order. `sample` says which of `warm` each sample is. A node whose rows do not match takes the
    fixed rule's lines.
    """
    origin = {plan.graph.output: engine.graph.output}
    for i, j in zip(plan.relaxed, engine.relaxed, strict=True):
        origin[plan.sources[i]] = engine.sources[j]

    def guide(request: Request) -> dict[int, Tensor] | None:
        target = origin[request.target]
        slots = plan.slots(request.target)[1]
        if not slots or slots != engine.slots(target)[1]:
            return None
        grouped = settings.group != 1 and request.target != plan.graph.output
        if request.target == plan.graph.output:
            table = warm.theta.get((target, 0))
            if table is None:
                return None
            count = len(table) // warm.samples
            key = sample[request.sample] * count + request.neuron
            theta = warm.filled(table[key], (target, 0), key)
        else:
            if engine.graph.nodes[target].size != plan.graph.nodes[request.target].size:
                return None
            found = _table(engine, target, warm, settings, sample, request)
            if found is None:
                return None
            theta = found
        rows = Rows(
            request.target,
            request.coef,
            request.region,
            request.frames,
            torch.arange(len(request.coef)) if grouped else None,
            settings.wide,
        )
        _, lines = replay(plan, rows, theta.to(request.coef))
        chosen = {i: line.slope.float().double() for i, line in lines.items()}
        for i in plan.below(request.target):
            if i not in chosen:  # no row reads it
                rule = request.frames[i].lines.slopes.lower
                chosen[i] = rule.expand(len(request.coef), *rule.shape[1:])
        return chosen

    return guide


def _table(
    engine: Plan, target: int, warm: Warm, settings: Settings, sample: Tensor, request: Request
) -> Tensor | None:
    """(rows, lanes, slots) where the ascents of these neurons' groups ended."""
    split = parts(engine, target, settings.group)
    slots, found = engine.slots(target)[1], None
    for k, part, rows in split.split(request.neuron):
        table = warm.theta.get((target, k))
        if table is None:
            continue
        neuron = request.neuron[rows]
        place, entry = split.place[neuron], split.entry[neuron]
        block, blocks = part.blocks(place, entry, settings.group)
        slot = request.side[rows] * blocks + block
        key = sample[request.sample[rows]] * (2 * blocks) + slot
        theta = part.spread(warm.filled(table[key], (target, k), key), place, slots)
        if found is None:
            found = theta.new_full((len(request.neuron), *theta.shape[1:]), torch.nan)
        found[rows] = theta
    return found
