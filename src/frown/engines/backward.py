"""Interval, Fast-Lin and CROWN: bounds of every layer with fixed lines (appendix A.2).

Nonlinearities are taken in order. The input of each is bounded by intervals, then by
backward rows, and the two are intersected; the result decides its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.engines.clock import NO_LIMIT, Clock
from frown.engines.forms import Chosen, LinearForm, one_hot, pull_back
from frown.engines.frame import frame
from frown.engines.plan import Plan, spread_box
from frown.engines.settings import Settings
from frown.graph.box import Box
from frown.graph.graph import Input
from frown.graph.op import Affine
from frown.query.region import Region
from frown.query.spec import Spec
from frown.relax.relaxation import Frame

CHUNK = 256 << 20  # bytes of rows in flight; with more, time goes into moving memory


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
            for origin in plan.origins(source):
                if origin not in done and plan.needs_rows(origin):
                    values[origin] = values[origin].meet(tighten(origin, values[origin], frames))
                done.add(origin)
            if source not in done:  # it stands beside others there
                values[source] = plan.moved(source, {j: values[j] for j in plan.origins(source)})
            box = plan.carry(i, values[source])
            if settings.method != "interval":
                frames[i] = frame(op, box, settings)
            values[i] = op.image(box)
    return Layers(values, frames)


def fixed_layers(plan: Plan, region: Region, settings: Settings, clock: Clock = NO_LIMIT) -> Layers:
    """All layers by the settings' fixed rule."""
    if settings.method == "interval":
        return walk(plan, region, lambda source, box, frames: box, settings)

    def tighten(source: int, box: Box, frames: dict[int, Frame]) -> Box:
        clock.check()
        if region.p == torch.inf and plan.interval_exact(source):
            return box
        if not plan.below(source):
            return affine_box(plan, region, source, settings)
        sample, neuron = unsettled(plan, source, box)
        sign = torch.ones(len(sample), dtype=plan.graph.dtype, device=plan.graph.device)
        both = _neuron_bounds(
            plan,
            region,
            source,
            sample.repeat(2),
            neuron.repeat(2),
            torch.cat([sign, -sign]),
            frames,
            settings,
        )
        lower, upper = both[: len(sample)], -both[len(sample) :]
        return with_entries(box, sample, neuron, lower, upper)

    return walk(plan, region, tighten, settings)


def fixed_margins(
    plan: Plan, region: Region, spec: Spec, layers: Layers, settings: Settings
) -> Tensor:
    """(N, T) lower bounds of the spec's conditions with the layers' lines, or by plain
    intervals where those are tighter."""
    count, conditions, outputs = spec.coef.shape
    shape = plan.graph.nodes[-1].shape
    box = layers.values[plan.graph.output]
    middle = box.middle.reshape(count, outputs, 1)
    radius = box.radius.reshape(count, outputs, 1)
    plain = (spec.coef @ middle - spec.coef.abs() @ radius).squeeze(-1)
    if settings.method == "interval":
        return plain
    coef = spec.coef.reshape(count * conditions, *shape)
    sample = torch.arange(count, device=coef.device).repeat_interleave(conditions)
    target = plan.graph.output
    bounds = fixed_rows(plan, region, target, coef, sample, layers.frames, settings)
    return torch.fmax(bounds.view(count, conditions), plain)


def fixed_rows(
    plan: Plan,
    region: Region,
    target: int,
    coef: Tensor,
    sample: Tensor,
    frames: dict[int, Frame],
    settings: Settings,
) -> Tensor:
    """Lower bounds of coef . target, one per row, in chunks that fit the memory budget."""
    parts = [coef.new_zeros(0)]
    for piece in pieces(plan, target, len(sample), settings):
        index = shared(sample[piece])
        form = fixed_form(plan, target, coef[piece], index, frames)
        parts.append(region.rows(index).minimise(form.coef).value + form.const)
    return torch.cat(parts)


def fixed_form(
    plan: Plan, target: int, coef: Tensor, index: Tensor | slice, frames: dict[int, Frame]
) -> LinearForm:
    """The form at the input that bounds coef . target below; `index` is each row's sample."""
    gathered = {i: frames[i].lines.rows(index) for i in plan.below(target)}

    def choose(i: int, here: Tensor) -> Chosen:
        here_lines, below = gathered[i], here >= 0
        slopes, laid = here_lines.slopes, plan.relaxation(i).expand(below)
        return Chosen(
            torch.where(laid, slopes.lower, slopes.upper),
            torch.where(below, here_lines.lower, here_lines.upper),
        )

    return pull_back(plan, target, coef, choose)


def affine_box(plan: Plan, region: Region, source: int, settings: Settings) -> Box:
    """Exact bounds of an affine function of the input; its rows serve all samples."""
    node = plan.graph.nodes[source]
    neuron = torch.arange(node.size, device=plan.graph.device)
    sign = torch.ones(node.size, dtype=plan.graph.dtype, device=plan.graph.device)
    lower, upper = [], []
    for piece in pieces(plan, source, node.size, settings):
        coef = one_hot(neuron[piece], sign[piece], node.size, node.shape)
        form = fixed_form(plan, source, coef, slice(0, 0), {})
        box = region.extremes(form.coef)
        lower.append(box.lower + form.const)
        upper.append(box.upper + form.const)
    return Box(
        torch.cat(lower, 1).view(-1, *node.shape),
        torch.cat(upper, 1).view(-1, *node.shape),
    )


def unsettled(plan: Plan, source: int, box: Box) -> tuple[Tensor, Tensor]:
    """(sample, neuron) of the entries of a source whose bounds are worth a row."""
    wanted = torch.zeros_like(box.lower, dtype=torch.bool)
    for i in plan.relaxed:
        if plan.sources[i] == source:
            loose = ~plan.relaxation(i).settled(plan.carry(i, box))
            wanted |= plan.carry_back(i, loose)
        elif source in plan.origins(plan.sources[i]):
            (j,) = plan.graph.nodes[i].inputs
            read = torch.ones(1, *plan.graph.nodes[j].shape, dtype=torch.bool, device=wanted.device)
            wanted |= plan.carry_back(i, read, source)
    wanted &= plan.loose(source)
    pairs = wanted.flatten(1).nonzero()
    return pairs[:, 0], pairs[:, 1]


def with_entries(box: Box, sample: Tensor, neuron: Tensor, lower: Tensor, upper: Tensor) -> Box:
    """The box with some entries replaced."""
    low, high = box.lower.flatten(1).clone(), box.upper.flatten(1).clone()
    low[sample, neuron] = lower
    high[sample, neuron] = upper
    return Box(low.view_as(box.lower), high.view_as(box.upper))


def at_once(plan: Plan, target: int, settings: Settings) -> int:
    """How many rows of a target go together: within the budget, and near the processor."""
    return max(1, min(settings.memory, CHUNK) // plan.row_bytes(target))


def pieces(plan: Plan, target: int, rows: int, settings: Settings) -> Iterator[slice]:
    """Chunks of rows that fit the memory budget."""
    step = at_once(plan, target, settings)
    return (slice(a, min(a + step, rows)) for a in range(0, rows, step))


def shared(sample: Tensor) -> Tensor | slice:
    """Rows of one sample alone broadcast instead of being gathered."""
    if len(sample) and bool((sample == sample[0]).all()):
        return slice(int(sample[0]), int(sample[0]) + 1)
    return sample


def _neuron_bounds(
    plan: Plan,
    region: Region,
    source: int,
    sample: Tensor,
    neuron: Tensor,
    sign: Tensor,
    frames: dict[int, Frame],
    settings: Settings,
) -> Tensor:
    """Lower bounds of sign * neuron."""
    node = plan.graph.nodes[source]
    parts = [sign.new_zeros(0)]
    for piece in pieces(plan, source, len(sample), settings):
        coef = one_hot(neuron[piece], sign[piece], node.size, node.shape)
        parts.append(fixed_rows(plan, region, source, coef, sample[piece], frames, settings))
    return torch.cat(parts)
