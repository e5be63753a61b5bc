"""Interval bound propagation, Fast-Lin and CROWN: every layer along fixed lines (appendix A.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from frown.bounds.arithmetic.float import Float, without_rows
from frown.bounds.forms import Partial, form_along, of_entries
from frown.bounds.method import Bounds, Method
from frown.bounds.patches import Part, active_part, parts, parts_of
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, State
from frown.bounds.rows import Rows, fixed_pieces, tightened
from frown.bounds.walk import Given, Layers, walk
from frown.bounds.work import Work
from frown.graph.intervals import Intervals
from frown.problem.options import Option, check_options
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.relaxation import LeastArea, Paper, Parallel, Relaxed, Rule


@dataclass(frozen=True)
class Fixed(Method):
    """A method whose slopes follow from boxes by a rule."""

    inside: ClassVar[bool] = True  # rows tighten the inner layers, too

    @property
    def lines(self) -> Rule | None:
        """The rule; None: intervals alone."""
        return None

    def bound(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        state: State | None = None,
        given: Given | None = None,
        work: Work = Work(),  # noqa: B008
    ) -> Bounds:
        work.clock.check()
        if self.lines is None:
            layers = interval_layers(plan, region, None, given)
            return Bounds(layers, interval_literals(plan, property, layers), ByRule(None), {})
        if self.inside:
            layers = crown_layers(plan, region, self.lines, work, given)
        else:
            layers = interval_layers(plan, region, self.lines, given)
        literals = crown_literals(plan, region, property, layers, work)
        return Bounds(layers, literals, ByRule(self.lines, self.inside), {})


@dataclass(frozen=True)
class Interval(Fixed):
    """Interval bound propagation: fastest and loosest.

    Not for networks of more than two or three layers: bounds widen with every layer.
    """

    name: ClassVar[str] = "interval"


@dataclass(frozen=True)
class FastLin(Fixed):
    """Fast-Lin: two parallel lines around each activation.

    For comparison with the paper; `Crown` costs the same and is tighter.
    """

    name: ClassVar[str] = "fastlin"

    @property
    def lines(self) -> Rule:
        return Parallel()


RULES: dict[str, Rule] = {"area": LeastArea(), "paper": Paper()}


@dataclass(frozen=True)
class Crown(Fixed):
    """CROWN: a line of its own for each side of an activation, chosen by a rule.

    Args:
        rule: "area", lines that enclose the least area, or "paper", lines as published.

    Not where radii matter more than time: `Frown` starts from these lines and improves them.
    """

    name: ClassVar[str] = "crown"
    rule: Annotated[str, Option("CROWN's lines: least area, or the paper's", tuple(RULES))] = "area"

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def lines(self) -> Rule:
        return RULES[self.rule]


@dataclass(frozen=True)
class CrownIbp(Crown):
    """CROWN-IBP: intervals inside, CROWN's rows for the property alone; cheap and rough."""

    name: ClassVar[str] = "crown-ibp"
    inside: ClassVar[bool] = False


def interval_layers(
    plan: Plan, region: Region, rule: Rule | None, given: Given | None = None
) -> Layers:
    """All layers by intervals; the rule's lines, if any, are those of the intervals."""
    return walk(Float(plan, region, rule), lambda source, box: box, given)


def crown_layers(
    plan: Plan, region: Region, rule: Rule, work: Work, given: Given | None = None
) -> Layers:
    """All layers by rows along the rule's lines."""

    lines = Float(plan, region, rule)

    def tighten(source: int, box: Intervals) -> Intervals:
        work.clock.check()
        found = without_rows(plan, region, source, box, work)
        return crown_box(plan, region, source, box, lines.relaxed, work) if found is None else found

    return walk(lines, tighten, given)


def crown_box(
    plan: Plan,
    region: Region,
    source: int,
    box: Intervals,
    relaxed: dict[int, Relaxed],
    work: Work,
    wanted: Tensor | None = None,
) -> Intervals:
    """The box of a source, its unstable entries bounded by rows along fixed lines.

    `wanted` (N, size), if any, masks which of them; elsewhere the box is as it was. May be crossed
    where rows contradict the box.
    """

    def bounds(rows: Rows) -> Tensor:
        return _neuron_bounds(plan, region, source, rows, relaxed, work)

    return tightened(plan, source, box, bounds, wanted)


def crown_literals(
    plan: Plan, region: Region, property: Property, layers: Layers, work: Work
) -> Tensor:
    """(N, T) lower bounds of the property's literals along the layers' lines.

    Plain intervals take their place where they are tighter.
    """
    (count, literals), shape = property.shape, plan.graph.nodes[-1].shape

    def coef(index: Tensor | slice) -> Tensor:
        return property.pick(index).view(-1, *shape)

    sample = torch.arange(count, device=region.radius.device).repeat_interleave(literals)
    (part,) = parts(plan, plan.graph.output, 0).parts
    place = torch.zeros_like(sample)
    own = active_part(part, layers.relaxed, region, len(sample))
    bounds = crown_rows(own.part, region, coef, sample, place, own.relaxed, work)
    bounds = bounds.view(count, literals) + property.const
    return torch.fmax(bounds, interval_literals(plan, property, layers))


def interval_literals(plan: Plan, property: Property, layers: Layers) -> Tensor:
    """(N, T) lower bounds of the property's literals by the outputs' intervals."""
    box = layers.values[plan.graph.output]
    return property.literals(box.middle.flatten(1)) - property.spread(box.radius.flatten(1))


def crown_rows(
    part: Part,
    region: Region,
    coef: Callable[[Tensor | slice], Tensor | Partial],  # of some of the rows
    sample: Tensor,
    place: Tensor,
    relaxed: dict[int, Relaxed],
    work: Work,
) -> Tensor:
    """Lower bounds of coef . target, one per row, in chunks that fit the memory budget."""

    def least(index: Tensor | slice, sample: Tensor, place: Tensor) -> Tensor:
        work.clock.check()
        start, lines = part.passage(region, relaxed, sample, place)
        form = start.moved(form_along(part.plan, part.target, coef(index), lines, start.node))
        return start.least(form.coef) + form.const

    bounds = [region.radius.new_zeros(0)]
    for piece in fixed_pieces(part, len(sample), work):
        if piece == slice(0, len(sample)):
            return least(slice(None), sample, place)
        bounds.append(least(piece, sample[piece], place[piece]))
    return torch.cat(bounds)


def _neuron_bounds(
    plan: Plan,
    region: Region,
    source: int,
    rows: Rows,
    relaxed: dict[int, Relaxed],
    work: Work,
) -> Tensor:
    """(rows,) lower bounds of neurons."""
    split = parts_of(plan, source, len(rows), work.clock)
    dtype = plan.graph.dtype

    def least(whole: Part, rows: Rows) -> Tensor:
        place, entry = split.where(rows.neuron)
        own = active_part(whole, relaxed, region, len(rows))
        sign = rows.sign(dtype)

        def coef(index: Tensor | slice) -> Partial:
            return of_entries(own.part.plan, own.part.target, entry[index], sign[index])

        return crown_rows(own.part, region, coef, rows.sample, place, own.relaxed, work)

    if len(split.parts) == 1:
        return least(split.parts[0], rows)
    bounds = torch.empty(len(rows), dtype=dtype, device=rows.sample.device)
    for _, part, here in split.split(rows.neuron):
        bounds[here] = least(part, rows.take(here))
    return bounds
