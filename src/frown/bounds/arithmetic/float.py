"""Plain floating point: rounding in between is not accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.bounds.forms import form_along
from frown.bounds.halfspace import Halfspace, best_factor
from frown.bounds.patches import of_convolution, parts
from frown.bounds.plan import Plan, spread_box
from frown.bounds.rows import one_hot, pieces
from frown.bounds.walk import Arithmetic, Boxes
from frown.bounds.work import Work
from frown.graph.intervals import Intervals
from frown.graph.op import Affine
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed, Rule, relax

ROUNDING = 64  # units in the last place by which boxes of one value may miss each other


@dataclass
class Float(Arithmetic):
    """Boxes and lines in the precision of the network. Without a rule there are no lines."""

    plan: Plan
    region: Region
    rule: Rule | None
    wide: bool = False
    values: Boxes = field(default_factory=dict)
    relaxed: dict[int, Relaxed] = field(default_factory=dict)

    def input(self, node: int) -> None:
        self.values[node] = self.region.box()

    def affine(self, node: int) -> None:
        here = self.plan.graph.nodes[node]
        assert isinstance(here.op, Affine)
        self.values[node] = spread_box(here.op, *(self.values[j] for j in here.inputs))

    def nonlinear(self, node: int, box: Intervals) -> None:
        op = self.plan.relaxation(node)
        if self.rule is not None:
            self.relaxed[node] = relax(op, box, self.rule, self.wide)
        self.values[node] = op.image(box)

    def crossed(self, box: Intervals, other: Intervals) -> Tensor:
        """Tell boxes apart only where rounding is not a likely reason."""
        eps = ROUNDING * torch.finfo(box.lower.dtype).eps
        low, high = box.lower.maximum(other.lower), box.upper.minimum(other.upper)
        return (low - high > eps * (low.abs() + high.abs())).flatten(1).any(1)


def without_rows(
    plan: Plan, region: Region, source: int, box: Intervals, work: Work
) -> Intervals | None:
    """A source's box where rows could not tighten it; None elsewhere."""
    if region.p == torch.inf and plan.interval_exact(source):
        return box
    return None if plan.below(source) else affine_box(plan, region, source, work)


def halved_box(
    plan: Plan, region: Region, half: Halfspace, source: int, box: Intervals, work: Work
) -> Intervals:
    """The box of an affine function of the input over what a halfspace leaves of the region; the
    one that is known where its rows are many. May be crossed: nothing is left then."""
    if of_convolution(plan, source):
        return box
    node, size = plan.graph.nodes[source], plan.graph.nodes[source].size
    sign = torch.ones(size, dtype=plan.graph.dtype, device=plan.graph.device)
    form = form_along(plan, source, one_hot(torch.arange(size), sign, size, node.shape), {})
    every = torch.arange(len(region.radius)).repeat_interleave(size)
    low, high = (torch.empty(len(every), dtype=sign.dtype) for _ in range(2))
    for piece in pieces(plan, source, len(every), work):
        work.clock.check()
        sample, neuron = every[piece], torch.arange(len(every))[piece] % size
        own, plane = region.rows(sample), half.rows(sample)
        for sides, end in ((1, low), (-1, high)):
            factor, coef = best_factor(sides * form.coef[neuron], plane, own.lowest)
            end[piece] = sides * (own.least(coef) + factor * plane.const) + form.const[neuron]
    shape = (-1, *node.shape)
    return Intervals(low.view(shape), high.view(shape))


def affine_box(plan: Plan, region: Region, source: int, work: Work) -> Intervals:
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
    return Intervals(lower.view(-1, *node.shape), upper.view(-1, *node.shape))
