"""A method's choice of lines replayed with proof: boxes of every layer, bounds of the property.

The walk is that of a search, on the graph as the model file has it (nothing merged), in float64 and
with every rounding error charged. What a method found enters as slopes and multipliers; any of
these is valid, so a poor choice makes a bound loose and never wrong.

A row asks the proof for slopes node by node, since these depend on the signs of its coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import (
    Charged,
    ChargedForm,
    Charges,
    FixedLines,
    Passed,
    bounded,
    by_lines,
    charged_form,
)
from frown.bounds.arithmetic.curved import Deviations, bent_below
from frown.bounds.arithmetic.executed import Executed, Execution
from frown.bounds.arithmetic.patches import patched_rows
from frown.bounds.forms import Partial, descend, form_of
from frown.bounds.halfspace import Halfspace, Planes, best_factor
from frown.bounds.patches import Parts, Patch, of_convolution, parts_of, shared
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Request, RowChoices
from frown.bounds.rows import Rows, charged_pieces, inner, one_hot, sample_index, tightened
from frown.bounds.walk import Boxes, Given, Layers, walk
from frown.bounds.work import Work
from frown.graph.intervals import Intervals, unsqueezed
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.curvature import bends
from frown.relax.elementwise import Elementwise
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, below, gamma
from frown.relax.relaxation import LeastArea, Relaxed


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """Rows that were bounded, with the slopes they used (None, or NaN: the fixed rule's)."""

    target: int
    rows: Rows
    slopes: dict[int, Tensor] | None
    multipliers: dict[int, Tensor] = field(default_factory=dict)  # of nodes that have some
    factors: Tensor | None = None  # (rows,) of a halfspace that holds what is left of the region,
    # or (rows, planes) of the target's planes
    curvatures: dict[int, Tensor] = field(default_factory=dict)  # (rows, entries), likewise


@dataclass(frozen=True)
class Replay:
    """Proven bounds of some samples' regions along a proof."""

    plan: Plan
    region: Region
    proof: RowChoices  # of the region's samples
    work: Work
    record: Callable[[ReplayedRows], None] | None = None
    thrift: float = 0.0  # slopes that gain less than this share of a neuron's width are left out
    spare: bool = False  # the fixed rule's rows where the proof's are ready
    execution: Execution | None = None  # where bounds are to cover execution, too
    given: Given | None = None  # boxes that hold already, as of a branch
    narrowed: dict[tuple[int, int], Any] = field(default_factory=dict)  # boxes with lemmas' ends

    @cached_property
    def arithmetic(self) -> Charged:
        """Boxes and lines of the nodes so far, with proof."""
        rule = self.proof.rule or LeastArea()
        own = (self.plan, self.region, rule, not self._ruled, self.proof.wide)
        if self.execution is None:
            return Charged(*own)
        return Executed(*own, execution=self.execution)

    @cached_property
    def deviations(self) -> Deviations | None:
        """Deviations of layers from what the centres give; None: rows may not bend."""
        if self.execution is not None or self.given is not None:
            return None
        bent = self.region.euclidean and self.plan.bends
        return Deviations(self.arithmetic, self.work) if bent else None

    @property
    def values(self) -> Boxes:
        return self.arithmetic.values

    @property
    def relaxed(self) -> dict[int, Relaxed]:
        return self.arithmetic.relaxed

    @property
    def fixed(self) -> dict[int, FixedLines]:
        """The fixed rule's lines."""
        return self.arithmetic.fixed

    @property
    def _ruled(self) -> bool:
        """True if all rows go along the fixed rule's lines."""
        return isinstance(self.proof, ByRule)

    def layers(self) -> Layers:
        """Bound every node on the way to the output."""
        return walk(self.arithmetic, self._tighten, self.given)

    def literals(self, property: Property) -> Tensor:
        """(N, T) proven lower bounds of the property's literals."""
        count, conditions = property.shape
        device = self.values[self.plan.graph.output].lower.device
        found = self._outputs(property.pick, Rows.literals(count, conditions, device))
        least = torch.fmax(found.view(count, conditions), self._plain(property))
        return _plus(least, property.const)

    def outputs(self, coef: Tensor, rows: Rows, const: Tensor) -> Tensor:
        """(rows,) proven lower bounds of coef (rows, outputs) . outputs + const (rows,)."""
        return _plus(self._outputs(coef.__getitem__, rows), const)

    def _outputs(self, coef: Callable[[slice], Tensor], rows: Rows) -> Tensor:
        """(rows,) proven lower bounds of coef (rows, outputs) . outputs, some rows at a time."""
        target = self.plan.graph.output
        shape = self.plan.graph.nodes[target].shape
        found = self.values[target].lower.new_empty(len(rows))
        for piece in charged_pieces(self.plan, target, rows.sample, self.work, not self._ruled):
            own = coef(piece).view(-1, *shape)
            found[piece] = self._rows(target, own, rows.take(piece), self.proof)
        return found

    def halfspaces(
        self, target: int, coef: Tensor, rows: Rows, const: Tensor, most: Tensor
    ) -> dict[int, Halfspace]:
        """Halfspaces (rows,) that hold all points of each row's region at which
        coef (rows, *shape) . target + const (rows,) is at most `most` (rows,): of the input, node
        0, and of the sources before the target that all of a row passes."""
        found = {}
        for node, form in self._forms(target, coef, rows).items():
            size = form.const.abs() + const.abs() + most.abs()
            charge = form.charge * (1 + 4 * UNIT) + size * (8 * UNIT)
            found[node] = Halfspace(form.coef, below(form.const + const - most, charge))
        return found

    def _forms(self, target: int, coef: Tensor, rows: Rows) -> dict[int, ChargedForm]:
        """Forms at the input, and at the sources that all of a row passes, below coef . target."""
        nodes, sample = self.arithmetic, sample_index(rows.sample)
        charges = Charges(self.plan, nodes.weights, sample, nodes.errors)
        request = Request(target, coef, rows, self.region, nodes.relaxed)
        choice = None if self._ruled else self.proof.choose(self.plan, request)
        if choice is None:
            return {0: self._form(target, coef, rows, self.proof)}
        straight, index = replace(choice, curvature=None), shared(rows.sample)
        guided = Guided(nodes, straight, index, charges)
        found, here = {}, charges.begin(target, coef)
        sources = {self.plan.sources[i] for i in self.plan.below(target)}
        for source in sorted(sources | {0}, reverse=True):
            end = descend(self.plan, target, here, guided.through, first=source, account=charges)
            here = Partial(end.pending, end.const, source)
            if source == 0 or set(end.pending) == {source}:
                form = form_of(self.plan, end, source)
                found[source] = charges.settle(form.coef, form.const)
        if self.record is not None:
            self._fill(target, coef, guided.slopes)
            self.record(ReplayedRows(target, rows, guided.slopes, guided.multipliers))
        return found

    def _fill(self, target: int, coef: Tensor, slopes: dict[int, Tensor]) -> None:
        """No slopes where rows read nothing."""
        for i in set(self.plan.below(target)) - set(slopes):
            shape = self.fixed[i].lines.slopes.lower.shape
            slopes[i] = coef.new_full((len(coef), *shape[1:]), torch.nan)

    def _plain(self, property: Property) -> Tensor:
        """(N, T) the literals' bounds by intervals alone."""
        box = self.values[self.plan.graph.output]
        least, size = property.least(box.lower.flatten(1), box.upper.flatten(1))
        return below(least, size * gamma(self.plan.graph.output_size))

    # -- rows ---------------------------------------------------------------------

    def _tighten(self, source: int, box: Intervals) -> Intervals:
        """A node's box, made tighter by rows."""
        if not self.proof.inside:
            return box
        if self.given is not None and self.given.half is not None:
            if of_convolution(self.plan, source) and not self.plan.below(source):
                return box
            proof = self.proof
            return tightened(self.plan, source, box, lambda rows: self._sides(source, rows, proof))
        if self.region.p == torch.inf and self.plan.interval_exact(source):
            return box
        if self.proof.alone:
            if not self.plan.below(source):
                return box  # as at the root: a cut of it is in the box already
            own = self.proof
            return tightened(self.plan, source, box, lambda rows: self._sides(source, rows, own))
        if not self.plan.below(source):
            if self.record is not None:
                samples, size = len(box.lower), self.plan.graph.nodes[source].size
                every = Rows.literals(samples, size, box.lower.device)
                self.record(ReplayedRows(source, Rows.both(every.sample, every.neuron), None))
            # Who replays a certificate finds such a box by rows.
            return self.arithmetic.affine_box(source, self.work, self.record is not None)
        # Most neurons are stable by the fixed rule, as they were in the search; the others get the
        # slopes that the method found for them, some of them at once.
        ready = self.proof.ready(self.plan, source) if self.spare else None
        wanted = None if ready is None else ~ready
        box = tightened(self.plan, source, box, lambda rows: self._sides(source, rows), wanted)
        if self._ruled:
            return box
        return tightened(self.plan, source, box, lambda rows: self._sides(source, rows, self.proof))

    def _sides(self, source: int, rows: Rows, proof: RowChoices | None = None) -> Tensor:
        """(rows,) proven lower bounds of neurons, along the proof's slopes or the fixed rule's."""
        node = self.plan.graph.nodes[source]
        if proof is None and self.execution is None and of_convolution(self.plan, source):
            split = parts_of(self.plan, source, len(rows), self.work.clock)
            if split.patched:
                return self._patched(source, split, rows)
        order = rows.sample.argsort(stable=True)  # rows of a sample share what they read
        ordered, searched = rows.take(order), proof is not None and not self._ruled
        bound = self.region.centre.new_empty(len(rows))
        for piece in charged_pieces(self.plan, source, ordered.sample, self.work, searched):
            own = ordered.take(piece)
            coef = own.coef(node.size, node.shape, bound.dtype)
            bound[order[piece]] = self._rows(source, coef, own, proof)
        return bound

    def _patched(self, source: int, split: Parts, rows: Rows) -> Tensor:
        """Proven lower bounds of neurons that read patches, along the fixed rule's lines."""
        sign = rows.sign(self.region.centre.dtype)
        bound = torch.empty_like(sign)
        for _, part, index in split.split(rows.neuron):
            assert isinstance(part, Patch)
            mine = rows.take(index)
            own = mine.sample * len(part.neurons) + split.place[mine.neuron]
            order = own.argsort(stable=True)  # what a crop knows is looked up once
            index = order if isinstance(index, slice) else index[order]
            sample = rows.sample[index]
            for piece in charged_pieces(part.plan, part.target, sample, self.work, False):
                self.work.clock.check()
                here = index[piece]
                place, entry = split.where(rows.neuron[here])
                coef = one_hot(entry, sign[here], part.neurons.shape[1], part.shape)
                bound[here] = patched_rows(part, self.arithmetic, coef, sample[piece], place)
        if self.record is not None:
            self.record(ReplayedRows(source, rows, None))
        return bound

    def _rows(self, target: int, coef: Tensor, rows: Rows, proof: RowChoices | None) -> Tensor:
        """(rows,) proven lower bounds of coef . target."""
        self.work.clock.check()
        if not len(coef):
            return coef.new_zeros(0)
        form = self._form(target, coef, rows, proof)
        return bounded(self.region, form, sample_index(rows.sample))

    def _form(self, target: int, coef: Tensor, rows: Rows, proof: RowChoices | None) -> ChargedForm:
        """Forms at the input that bound coef . target below, over what a halfspace leaves of the
        region where one is given."""
        nodes, sample = self.arithmetic, sample_index(rows.sample)
        charges = Charges(self.plan, nodes.weights, sample, nodes.errors)
        choice = None
        if proof is not None and not self._ruled:
            choice = proof.choose(
                self.plan, Request(target, coef, rows, self.region, nodes.relaxed)
            )
        slopes, multipliers, curvatures = None, dict[int, Tensor](), dict[int, Tensor]()
        planes = None if self.given is None else self.given.planes.get(target)
        factors, more = None, None
        if planes is not None and choice is not None and choice.factors is not None:
            factors = choice.factors[:, : planes.const.shape[1]]
            factors = torch.where(factors.isfinite(), factors, 0.0).clamp(min=0).float().double()
            coef, more = self._joined(target, coef, rows.sample, planes.rows(rows.sample), factors)
        if choice is None:

            def ruled(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
                passed = nodes.fixed[i].through(self.plan.relaxation(i), here, sample)
                return _paid(charges, passed)

            form = charged_form(charges, target, coef, ruled)
        else:
            least = None
            if self.thrift > 0 and target != self.plan.graph.output:
                box = self.values[target]
                width = (box.upper - box.lower).flatten(1)
                least = self.thrift * width[rows.sample, rows.neuron]
            bent = self.deviations if choice.curvature is not None else None
            index = shared(rows.sample)
            guided = Guided(nodes, choice, index, charges, least, bent)
            form = charged_form(charges, target, coef, guided.through)
            slopes, multipliers = guided.slopes, guided.multipliers
            curvatures = guided.curvatures
        if more is not None:
            gain, lost = more
            lost = lost + (form.const.abs() + gain.abs()) * (4 * UNIT) + TINY
            form = ChargedForm(form.coef, form.const + gain, (form.charge + lost) * LOOSE)
        elif self.given is not None and self.given.half is not None:
            form, factors = self._tilted(form, rows.sample, self.given.half.rows(rows.sample))
        if self.record is not None:
            if slopes is not None:
                self._fill(target, coef, slopes)
            self.record(ReplayedRows(target, rows, slopes, multipliers, factors, curvatures))
        return form

    def _joined(
        self, target: int, coef: Tensor, sample: Tensor, planes: Planes, factors: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Coefficients (rows, *shape) of a target plus those of planes times factors (rows,
        planes); the constants that this adds, and the rounding errors."""
        index, reach = sample_index(sample), self.arithmetic.weights.value[target]
        count = planes.const.shape[1]
        joined = coef + planes.added(factors).view(coef.shape)
        sizes = Planes(planes.coef.abs(), planes.const.abs())
        size = coef.abs() + sizes.added(factors).view(coef.shape)
        lost = inner(size, reach, index) * gamma(count + 4)
        lost = lost + inner(torch.ones_like(size), reach, index) * (2 * count * TINY)
        gain = (factors * planes.const).sum(1)
        total = (factors * sizes.const).sum(1)
        return joined, (gain, lost + total * gamma(count + 4) + 2 * count * TINY)

    def _tilted(
        self, form: ChargedForm, sample: Tensor, half: Halfspace
    ) -> tuple[ChargedForm, Tensor]:
        """Forms with those of halfspaces added, and with which factors (rows,): any that are not
        negative are valid."""
        region = self.region.rows(sample)
        factor = best_factor(form.coef, half, region.lowest)[0]
        factor = torch.where(factor.isfinite(), factor, 0.0).clamp(min=0).float().double()
        wide = unsqueezed(factor, form.coef)
        added = wide * half.coef
        # The product rounds, then the sum; each by half a unit in its last place, or it underflows.
        size = form.coef.abs() + added.abs()
        index, reach = sample_index(sample), self.arithmetic.weights.value[0]
        lost = inner(size, reach, index) * (4 * UNIT) + inner(
            torch.ones_like(size), reach, index
        ) * (2 * TINY)
        gain = factor * half.const
        const = form.const + gain
        lost = lost + (form.const.abs() + gain.abs()) * (4 * UNIT) + TINY
        return ChargedForm(form.coef + added, const, (form.charge + lost) * LOOSE), factor


@dataclass
class Guided:
    """One backward pass of rows along the slopes that a method chose, multipliers included.

    Slopes that improve a row's bound by less than `least_gain` (rows,) fall back to the rule's,
    which keeps certificates small.
    """

    nodes: Charged
    choice: Choice
    index: Tensor | slice  # a row's sample
    charges: Charges
    least_gain: Tensor | None = None
    deviations: Deviations | None = None  # where rows may bend
    slopes: dict[int, Tensor] = field(default_factory=dict)  # that were used; NaN: the rule's
    multipliers: dict[int, Tensor] = field(default_factory=dict)  # likewise, where there are any
    curvatures: dict[int, Tensor] = field(default_factory=dict)  # (rows, entries) that gained

    def through(self, i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        """Turn a form on a node's output into one on its input."""
        slope = self.choice.slope(i, here)
        op, under = self.nodes.plan.relaxation(i), here >= 0
        if self.least_gain is not None or not self.choice.whole:
            slope = self._partly(i, here, slope)
        else:
            self.slopes[i] = slope
        (source,) = self.nodes.plan.graph.nodes[i].inputs
        intercept = self.nodes.proven[i].rows(self.index).intercept(slope, under)
        size = self.nodes.weights.value[source]
        passed = by_lines(op, here, slope, intercept, size, self.charges.sample)
        bent = self._bent(i, here, passed.coef, here * intercept)
        if bent is not None:
            passed = Passed(passed.coef, passed.const + bent[0], passed.charge + bent[1])
        return self._multiplied(i, *_paid(self.charges, passed))

    def _bent(
        self, i: int, here: Tensor, back: Tensor, straight: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """(rows,) the gain of curvatures in a row's constant, 0 where there is none, and the
        rounding errors; `straight` are the constants of straight lines."""
        if self.deviations is None or self.choice.curvature is None:
            return None
        bend = self.choice.curvature(i)
        op = self.nodes.plan.relaxation(i)
        if bend is None or not bends(op):
            return None
        assert isinstance(op, Elementwise)
        gain, charge = (here.new_zeros(len(here)) for _ in range(2))
        which = torch.arange(len(here)) if isinstance(self.index, Tensor) else None
        numbers = (
            torch.full((len(here),), self.index.start)
            if isinstance(self.index, slice)
            else self.index
        )
        for n in torch.unique(numbers).tolist():
            own = (numbers == n).nonzero().flatten() if which is not None else slice(None)
            known = self.deviations.at(i, n)
            at = known.index
            weight = bend[own][:, at].clamp(min=0)
            box = self.nodes.relaxed[i].box.rows(slice(n, n + 1))
            parts = Intervals(box.lower.flatten(1)[:, at], box.upper.flatten(1)[:, at])
            coef, below = here[own].flatten(1)[:, at], back[own].flatten(1)[:, at]
            plain = straight[own].flatten(1)[:, at]
            positive = weight > 0
            found = bent_below(
                op, parts, coef, below, weight.where(positive, 1.0), known.centre[at]
            )
            found = found.where(positive, plain)
            most = known.most(weight)
            more = found.sum(1) - plain.sum(1) - 0.5 * most
            size = found.abs().sum(1) + plain.abs().sum(1) + most
            cost = size * (gamma(len(at) + 8) * LOOSE) + TINY
            good = more > cost
            gain[own] = torch.where(good, more, 0.0)
            charge[own] = torch.where(good, cost, 0.0)
        if bool((gain > 0).any()):
            self.curvatures[i] = bend * (gain > 0)[:, None]
        return gain, charge

    def _multiplied(self, i: int, gain: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        """Add m z - max(m l, m u), which is <= 0, for the multipliers m of a node's input z in
        [l, u]."""
        m = None if self.choice.multiplier is None else self.choice.multiplier(i)
        if m is None:
            return gain, below
        self.multipliers[i] = m
        box = self.nodes.relaxed[i].box.rows(self.index)
        cost = torch.maximum(m * box.lower, m * box.upper).flatten(1)
        count = cost.shape[1]
        both = below + m
        (source,) = self.nodes.plan.graph.nodes[i].inputs
        size = self.nodes.weights.value[source]
        # Products may underflow, of which sums know nothing.
        charge = cost.abs().sum(1) * gamma(count + 1) + 2 * count * TINY
        self.charges.take(charge + inner(both, size, self.charges.sample) * (2 * UNIT))
        return gain - cost.sum(1), both

    def _partly(self, i: int, here: Tensor, given: Tensor) -> Tensor:
        """The given slopes where there are any, and where they matter; elsewhere the rule's."""
        op, rule = self.nodes.plan.relaxation(i), self.nodes.fixed[i].lines.slopes.rows(self.index)
        usual = torch.where(op.expand(here >= 0), rule.lower, rule.upper)
        matters = ~given.isnan()
        if self.least_gain is not None:
            box = self.nodes.relaxed[i].box.rows(self.index)
            gain = op.expand(here).abs() * (given - usual).abs() * (box.upper - box.lower)
            matters = gain > unsqueezed(self.least_gain, gain)
            given = halved(given)
        taken = torch.where(matters, given, usual)
        self.slopes[i] = taken.where(matters, torch.nan)
        return taken


def _plus(least: Tensor, const: Tensor) -> Tensor:
    """Lower bounds with constants added."""
    if not bool(const.any()):
        return least
    return below(least + const, (least.abs() + const.abs()) * (4 * UNIT))


def _paid(charges: Charges, passed: Passed) -> tuple[Tensor, Tensor]:
    charges.take(passed.charge)
    return passed.const, passed.coef


def halved(numbers: Tensor) -> Tensor:
    """Numbers rounded to half precision, where that holds them."""
    half = numbers.half().to(numbers.dtype)
    return torch.where(half.isfinite(), half, numbers)
