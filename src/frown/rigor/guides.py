"""From where engines ended to slopes for a replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from frown.engines.banks import bank
from frown.engines.forms import begin, descend
from frown.engines.frown import Warm
from frown.engines.lp import Slants
from frown.engines.optimise import Rows, replay
from frown.engines.parts import parts
from frown.engines.plan import Plan
from frown.engines.settings import Settings
from frown.relax.relaxation import Slopes
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
            bank(plan, request.target, request.frames),
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


def programmed(
    plan: Plan, engine: Plan, slants: Sequence[Slants | None], settings: Settings
) -> Guide:
    """What the duals of linear programs amount to, one program's for each sample of the replay.

    What they did not tighten was known before: by FROWN, or by the fixed rule's slopes as they
    were then. On the tighter boxes the rule may choose others, and bounds may be looser.
    """
    nodes = dict(zip(plan.relaxed, engine.relaxed, strict=True))
    origin = {plan.graph.output: engine.graph.output}
    for i, j in nodes.items():
        origin[plan.sources[i]] = engine.sources[j]

    def guide(request: Request) -> dict[int, Tensor] | None:
        target, last = origin[request.target], request.target == plan.graph.output
        size = plan.graph.nodes[request.target].size
        if not last and engine.graph.nodes[target].size != size:
            return None
        number = request.neuron if last else 2 * request.neuron + request.side
        found: dict[int, Tensor] = {}
        for i in plan.below(request.target):
            (source,) = plan.graph.nodes[i].inputs
            shape = (len(number), *plan.graph.nodes[source].shape)
            found[i] = request.coef.new_full(shape, torch.nan)
        for k in sorted(set(request.sample.tolist())):
            rows = (request.sample == k).nonzero().flatten()
            one = slants[k]
            if one is None:
                continue
            if one.warm is not None:
                first = torch.zeros(1, dtype=torch.long, device=rows.device)
                ours = optimised(plan, engine, one.warm, settings, first)
                for i, slope in (ours(_sub_request(request, rows)) or {}).items():
                    found[i][rows] = slope.view_as(found[i][rows])
            else:
                rule = {i: one.rule[j] for i, j in nodes.items()}
                for i, slope in _by_rule(plan, request.target, request.coef[rows], rule).items():
                    found[i][rows] = slope.reshape(found[i][rows].shape)
            if target in one.leanings:
                table = one.leanings[target]
                own = rows[torch.isin(number[rows], table.number)]
                place = torch.searchsorted(table.number, number[own])
                for i, into in found.items():
                    slope = table.slope.get(nodes[i])
                    if slope is not None and slope.shape[1] == into[0].numel():
                        into[own] = slope[place].to(into).view_as(into[own])
        return found

    return guide


def _by_rule(plan: Plan, target: int, coef: Tensor, rule: dict[int, Slopes]) -> dict[int, Tensor]:
    """The slopes that rows of one sample take of two, one per side, at every node they pass."""
    taken: dict[int, Tensor] = {}

    def through(i: int, here: Tensor) -> tuple[None, Tensor]:
        laid = plan.relaxation(i).expand(here)
        taken[i] = torch.where(laid >= 0, rule[i].lower.to(laid), rule[i].upper.to(laid))
        return None, laid * taken[i]

    descend(plan, target, begin(plan, target, coef), through, constants=False)
    return taken


def _sub_request(request: Request, rows: Tensor) -> Request:
    """Rows of one sample, as a question of its own."""
    shared = len(request.region.radius) == 1
    return Request(
        request.target,
        request.coef[rows],
        torch.zeros_like(rows),
        request.neuron[rows],
        request.side[rows],
        request.region if shared else request.region.rows(rows),
        request.frames if shared else {i: f.rows(rows) for i, f in request.frames.items()},
    )


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
        place, blocks = split.place[neuron], split.blocks[k]
        slot = request.side[rows] * blocks + split.block[neuron]
        key = sample[request.sample[rows]] * (2 * blocks) + slot
        theta = part.spread(warm.filled(table[key], (target, k), key), place, slots)
        if found is None:
            found = theta.new_full((len(request.neuron), *theta.shape[1:]), torch.nan)
        found[rows] = theta
    return found
