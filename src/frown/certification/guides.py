"""From where engines ended to slopes for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.bounds.charged.guided import Choice, Guide, Request
from frown.bounds.patches import shared
from frown.bounds.plan import Plan
from frown.bounds.settings import Settings
from frown.bounds.stacks import bank
from frown.bounds.tiling import parts
from frown.methods.frown.ascent import slopes_of
from frown.methods.frown.network import Warm, tried
from frown.methods.lp.bounds import Leanings, Slants
from frown.relax.relaxation import Frame


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

    def choose(request: Request) -> Choice | None:
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
        index, frames = shared(request.sample), bank(plan, request.target, request.frames)
        whole = all(map(_finite, frames))
        frames = tuple(f.rows(index) for f in frames)
        group = torch.arange(len(request.coef)) if grouped else None
        theta, count = theta.to(request.coef), len(request.coef)
        slopes = slopes_of(plan, request.target, frames, group, theta, count)

        def slope(i: int, here: Tensor) -> Tensor:
            own = slopes(i, here).float().double()
            return own if len(own) == count else own.expand(count, *own.shape[1:])

        return Choice(slope, whole)

    def ready(source: int) -> Tensor | None:
        found = origin[source]
        if settings.group != 1 or not plan.elementwise(source):
            return None
        if plan.slots(source)[1] != engine.slots(found)[1]:
            return None
        return tried(engine, found, warm, settings, sample)

    return Guide(choose, ready)


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

    def choose(request: Request) -> Choice | None:
        target, last = origin[request.target], request.target == plan.graph.output
        size = plan.graph.nodes[request.target].size
        if not last and engine.graph.nodes[target].size != size:
            return None
        number = request.neuron if last else 2 * request.neuron + request.side
        shares = []
        for k in sorted(set(request.sample.tolist())):
            rows, one = (request.sample == k).nonzero().flatten(), slants[k]
            if one is not None:
                before = None
                if one.warm is not None:
                    first = torch.zeros(1, dtype=torch.long, device=rows.device)
                    ours = optimised(plan, engine, one.warm, settings, first)
                    before = ours.choose(_sub_request(request, rows, k))
                shares.append(_Share(rows, number[rows], one, one.leanings.get(target), before))

        def slope(i: int, here: Tensor) -> Tensor:
            (source,) = plan.graph.nodes[i].inputs
            shape, laid = plan.graph.nodes[source].shape, plan.relaxation(i).expand(here)
            found = here.new_full((len(here), *shape), torch.nan)
            for share in shares:
                rows = share.rows
                found[rows] = share.slope(i, nodes[i], here[rows], laid[rows], found[rows])
            return found

        return Choice(slope)

    return Guide(choose)


@dataclass(frozen=True, slots=True)
class _Share:
    """Rows of one sample, and what its programs left of theirs."""

    rows: Tensor  # (R,) which of a request
    number: Tensor  # (R,)
    slants: Slants
    leanings: Leanings | None
    before: Choice | None  # FROWN's, where boxes are

    def slope(self, i: int, origin: int, here: Tensor, laid: Tensor, blank: Tensor) -> Tensor:
        """(R, *shape) at node i, in the engine's plan `origin`, for coefficients of its output
        that are laid over its input; `blank` where nothing is known."""
        if self.before is not None:
            found = self.before.slope(i, here).view_as(blank).clone()
        elif self.slants.warm is None:
            rule = self.slants.rule[origin]
            below = (laid >= 0).expand_as(blank)
            # Rounded to single precision, like all others.
            low, high = (t.float().to(blank) for t in (rule.lower, rule.upper))
            found = torch.where(below, low, high)
        else:
            found = blank
        slope = None if self.leanings is None else self.leanings.slope.get(origin)
        if self.leanings is None or slope is None or slope.shape[1] != blank[0].numel():
            return found
        own = torch.isin(self.number, self.leanings.number)
        place = torch.searchsorted(self.leanings.number, self.number[own])
        found[own] = slope[place].to(found).view_as(found[own])
        return found


def _finite(frame: Frame) -> bool:
    low, high = frame.range.lower, frame.range.upper
    total = low.lower.abs() + low.upper.abs() + high.lower.abs() + high.upper.abs()
    total = total if frame.excess is None else total + frame.excess
    return bool(total.isfinite().all())


def _sub_request(request: Request, rows: Tensor, sample: int) -> Request:
    """Rows of one sample, as a question of its own."""
    one = slice(sample, sample + 1)
    return Request(
        request.target,
        request.coef[rows],
        torch.zeros_like(rows),
        request.neuron[rows],
        request.side[rows],
        request.region.rows(one),
        {i: f.rows(one) for i, f in request.frames.items()},
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
