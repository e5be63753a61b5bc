"""From where engines ended to slopes for a replay."""

from __future__ import annotations

import torch
from torch import Tensor

from frown.engines.frown import Warm
from frown.engines.optimise import Rows, replay
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
    place = {plan.graph.output: engine.graph.output}
    for i, j in zip(plan.relaxed, engine.relaxed, strict=True):
        place[plan.sources[i]] = engine.sources[j]

    def guide(request: Request) -> dict[int, Tensor] | None:
        target, node = place[request.target], plan.graph.nodes[request.target]
        table = warm.theta.get(target)
        slots = plan.slots(request.target)[1]
        if table is None or not slots or table.shape[-1] != slots:
            return None
        if request.target == plan.graph.output:
            slot, count, grouped = request.neuron, len(table) // warm.samples, False
        else:
            if engine.graph.nodes[target].size != node.size:
                return None
            per = settings.group or node.size
            blocks = -(-node.size // per)
            slot, count = request.side * blocks + request.neuron // per, 2 * blocks
            grouped = settings.group != 1
        key = sample[request.sample] * count + slot
        keys, group = torch.unique(key, return_inverse=True)
        theta = table[keys].to(request.coef.dtype)
        rows = Rows(
            request.target,
            request.coef,
            request.region,
            request.frames,
            group if grouped else None,
            settings.wide,
        )
        theta = theta if grouped else theta[group]
        _, lines = replay(plan, rows, theta)
        chosen = {i: line.slope.float().double() for i, line in lines.items()}
        for i in plan.below(request.target):
            if i not in chosen:  # no row reads it
                rule = request.frames[i].lines.slopes.lower
                chosen[i] = rule.expand(len(request.coef), *rule.shape[1:])
        return chosen

    return guide
