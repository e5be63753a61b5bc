"""An engine's choice of lines replayed with proof: boxes of every layer, bounds of the property.

The walk is that of `bounds.walk`, on the graph as the model file has it (nothing merged) in
float64. What engines found enters as slopes; any slope is valid, so a poor choice makes a bound
loose and never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from frown.bounds.charged.execution import Execution
from frown.bounds.charged.forms import FixedLines, Passed, Weights, pull_back, terms_of
from frown.bounds.charged.gather import Blocks, sample_index
from frown.bounds.charged.guided import Guided, Nodes, Ruled
from frown.bounds.charged.patches import Known, bounded, patched_rows
from frown.bounds.charged.region import enclosing, extremes
from frown.bounds.forms import one_hot
from frown.bounds.patches import Patch, shared
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Proof, Request
from frown.bounds.rule import LeastArea, relax
from frown.bounds.tiling import Parts, of_convolution, parts_of
from frown.bounds.walk import CALL, PASS, at_once, few, unstable
from frown.bounds.work import Work
from frown.graph.box import Box
from frown.graph.graph import Input
from frown.graph.op import Affine, Selection
from frown.graph.selection import Concat
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.proven.curves import NoProof
from frown.relax.proven.lines import Proven, prove
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, above, below, gamma
from frown.relax.relaxation import Lines, Relaxed


@dataclass(frozen=True, slots=True)
class Step:
    """Rows that were bounded, with the slopes they used (None, or NaN: the fixed rule's)."""

    target: int
    sample: Tensor  # (rows,)
    neuron: Tensor  # (rows,)
    side: Tensor  # (rows,)
    slopes: dict[int, Tensor] | None


@dataclass
class Walk:
    """Proven bounds as they grow, node by node."""

    plan: Plan
    region: Region
    proof: Proof  # of the region's samples
    work: Work
    record: Callable[[Step], None] | None = None
    thrift: float = 0.0  # slopes that gain less than this share of a neuron's width are left out
    spare: bool = False  # the fixed rule's rows where the proof's are ready
    execution: Execution | None = None  # where bounds are to cover execution, too
    values: dict[int, Box] = field(default_factory=dict)
    relaxed: dict[int, Relaxed] = field(default_factory=dict)
    proven: dict[int, Proven] = field(default_factory=dict)
    fixed: dict[int, FixedLines] = field(
        default_factory=dict
    )  # the rule's slopes, proven intercepts
    weights: Weights = field(default_factory=lambda: Weights({}, {}, {}))
    together: dict[tuple[int, ...], tuple[Proven, Tensor]] = field(default_factory=dict)
    ruled: dict[tuple[int, ...], FixedLines] = field(default_factory=dict)

    @property
    def _ruled(self) -> bool:
        """Whether all rows go along the fixed rule's lines."""
        return isinstance(self.proof, ByRule)

    def layers(self) -> None:
        """Bound every node on the way to the output."""
        done: set[int] = set()
        graph = self.plan.graph
        for i in self.plan.ancestors(graph.output):
            node = graph.nodes[i]
            if isinstance(node.op, Input):
                self._set(i, enclosing(self.region))
                if self.execution is not None:
                    self._widen(i, self.execution.input(i, self.weights.value[i]))
            elif isinstance(node.op, Affine):
                self._affine(i)
            else:
                source = self.plan.sources[i]
                if source not in done and self.plan.needs_rows(source):
                    self._set(source, self._tightened(source))
                    self._carry_on(source, i)
                done.add(source)
                self._nonlinear(i, self.plan.carry(i, self.values[source]))

    def literals(self, property: Property) -> Tensor:
        """(N, T) proven lower bounds of the property's literals."""
        count, conditions = property.shape
        target = self.plan.graph.output
        shape, like = self.plan.graph.nodes[target].shape, self.values[target].lower
        every = torch.arange(count * conditions, device=like.device)
        sample, condition, side = every // conditions, every % conditions, torch.zeros_like(every)
        found = like.new_empty(len(every))
        for piece in _pieces(self.plan, target, sample, self.work, self.proof):
            where = (sample[piece], condition[piece], side[piece])
            coef = property.pick(piece).view(-1, *shape)
            found[piece] = self._rows(target, coef, *where, self.proof)
        least = torch.fmax(found.view(count, conditions), self._plain(property))
        if not bool(property.const.any()):
            return least
        return below(least + property.const, (least.abs() + property.const.abs()) * (4 * UNIT))

    def _plain(self, property: Property) -> Tensor:
        """(N, T) the literals' bounds by intervals alone."""
        box = self.values[self.plan.graph.output]
        least, size = property.least(box.lower.flatten(1), box.upper.flatten(1))
        return below(least, size * gamma(self.plan.graph.output_size))

    # -- one node -----------------------------------------------------------------

    def _set(self, node: int, box: Box) -> None:
        self.values[node] = box
        size = box.lower.abs().maximum(box.upper.abs())
        self.weights.value[node] = size
        self.weights.total[node] = size.reshape(len(size), -1).sum(1) * LOOSE

    def _widen(self, node: int, error: Tensor) -> None:
        box = self.values[node]
        self._set(node, Box(below(box.lower, error), above(box.upper, error)))

    def _affine(self, i: int) -> None:
        node = self.plan.graph.nodes[i]
        op, boxes = node.op, [self.values[j] for j in node.inputs]
        assert isinstance(op, Affine)
        self.weights.terms[i] = terms_of(op, [self.weights.value[j] for j in node.inputs])
        off = None
        if self.execution is not None:
            off = self.execution.affine(i, op, node.inputs, boxes)
        if isinstance(op, Selection | Concat):
            low, high = (op.apply(*side) for side in zip(*((b.lower, b.upper) for b in boxes)))
            self._set(i, Box(low, high))
            return
        fan = sum(self.plan.graph.nodes[j].size for j in node.inputs)
        error = self.weights.terms[i] * (4 * gamma(fan + 8)) + 4 * fan * TINY
        error = error if off is None else error + off
        middle = op.apply(*(b.middle for b in boxes))
        # TINY before the weights: halving the smallest numbers rounds, and weights may be huge.
        radius = op.spread(*(b.radius + TINY for b in boxes)) * LOOSE
        self._set(i, Box(below(middle - radius, error), above(middle + radius, error)))

    def _nonlinear(self, i: int, box: Box) -> None:
        op = self.plan.relaxation(i)
        proven = prove(op, box)
        if proven is None:
            raise NoProof(f"{type(op).__name__} at {self.plan.graph.nodes[i].name}")
        rule = self.proof.rule or LeastArea()
        if self._ruled:
            slopes = rule.slopes(op, box, op.tightest(box))
        else:
            self.relaxed[i] = relax(op, box, rule, self.proof.wide)
            slopes = self.relaxed[i].lines.slopes
        self.proven[i] = proven
        shape = (len(box.lower), *self.plan.graph.nodes[i].shape)
        under = torch.ones(shape, dtype=torch.bool, device=box.lower.device)
        lines = Lines(
            slopes,
            proven.intercept(slopes.lower, under),
            proven.intercept(slopes.upper, ~under),
        )
        (source,) = self.plan.graph.nodes[i].inputs
        self.fixed[i] = FixedLines.of(op, lines, self.weights.value[source])
        self._set(i, proven.image())
        if self.execution is not None:
            self._widen(i, self.execution.nonlinear(i, op, box, self.weights.value[i]))

    def _carry_on(self, source: int, reader: int) -> None:
        """The nodes between a tightened source and its reader only move entries."""
        chain = []
        (j,) = self.plan.graph.nodes[reader].inputs
        while j != source:
            chain.append(j)
            (j,) = self.plan.graph.nodes[j].inputs
        for j in reversed(chain):
            self._affine(j)

    # -- rows ---------------------------------------------------------------------

    def _tightened(self, source: int) -> Box:
        """A node's box, made tighter by rows."""
        box = self.values[source]
        if not self.proof.inside:
            return box
        if self.region.p == torch.inf and self.plan.interval_exact(source):
            return box
        if not self.plan.below(source):
            return self._affine_box(source)
        # Most neurons are stable by the fixed rule, as it did for the engine; the others get the
        # slopes that the engine found for them, some of them at once.
        ready = self.proof.ready(self.plan, source) if self.spare else None
        box = self._neurons(source, box, None, None if ready is None else ~ready)
        return box if self._ruled else self._neurons(source, box, self.proof)

    def _neurons(
        self, source: int, box: Box, proof: Proof | None, wanted: Tensor | None = None
    ) -> Box:
        """A node's box, its unstable entries (of those in the mask, (N, size)) bounded by rows."""

        def left(box: Box) -> tuple[Tensor, Tensor]:
            sample, neuron = unstable(self.plan, source, box)
            if wanted is None:
                return sample, neuron
            keep = wanted[sample, neuron]
            return sample[keep], neuron[keep]

        sample, neuron = left(box)
        if not len(sample):
            return box
        if few(self.plan, source, len(sample)):
            side = torch.arange(2 * len(sample), device=neuron.device) % 2
            every = (sample.repeat_interleave(2), neuron.repeat_interleave(2), side)
            return self._sides(source, box, *every, proof)
        # The side nearer to 0 first: a neuron that is stable then needs no row for the other.
        near = (box.middle.flatten(1) <= 0).long()
        for sides in (near, 1 - near):
            sample, neuron = left(box)
            box = self._sides(source, box, sample, neuron, sides[sample, neuron], proof)
        return box

    def _sides(
        self,
        source: int,
        box: Box,
        sample: Tensor,
        neuron: Tensor,
        side: Tensor,
        proof: Proof | None,
    ) -> Box:
        """The box with these sides (0 below, 1 above) of these entries bounded by rows."""
        node = self.plan.graph.nodes[source]
        sign = 1.0 - 2.0 * side.to(box.lower.dtype)
        split = None
        if proof is None and self.execution is None and of_convolution(self.plan, source):
            split = parts_of(self.plan, source, len(sample), self.work.clock)
        if split is not None and split.patched:
            bound = self._patched(source, split, sample, neuron, side, sign)
        else:
            bound = torch.empty_like(sign)
            for piece in _pieces(self.plan, source, sample, self.work, proof):
                coef = one_hot(neuron[piece], sign[piece], node.size, node.shape)
                where = (sample[piece], neuron[piece], side[piece])
                bound[piece] = self._rows(source, coef, *where, proof)
        low, high = box.lower.flatten(1).clone(), box.upper.flatten(1).clone()
        under, over = ((sample[side == k], neuron[side == k]) for k in (0, 1))
        # fmax, fmin: NaN proves nothing, and the interval stays.
        low[under] = torch.fmax(low[under], bound[side == 0])
        high[over] = torch.fmin(high[over], -bound[side == 1])
        return Box(low.view_as(box.lower), high.view_as(box.upper))

    def _patched(
        self,
        source: int,
        split: Parts,
        sample: Tensor,
        neuron: Tensor,
        side: Tensor,
        sign: Tensor,
    ) -> Tensor:
        """Proven lower bounds of neurons that read patches, along the fixed rule's lines."""
        known = Known(self.region, self.weights, self.fixed)
        bound = torch.empty_like(sign)
        for _, part, rows in split.split(neuron):
            assert isinstance(part, Patch)
            own = sample[rows] * len(part.neurons) + split.place[neuron[rows]]
            order = own.argsort(stable=True)  # what a crop knows is looked up once
            rows = order if isinstance(rows, slice) else rows[order]
            for piece in _pieces(part.plan, part.target, sample[rows], self.work, None):
                self.work.clock.check()
                here = rows[piece]
                place, entry = split.where(neuron[here])
                coef = one_hot(entry, sign[here], part.neurons.shape[1], part.shape)
                bound[here] = patched_rows(part, known, coef, sample[here], place)
        if self.record is not None:
            self.record(Step(source, sample, neuron, side, None))
        return bound

    def _affine_box(self, source: int) -> Box:
        """Bounds of an affine function of the input; its rows serve all samples."""
        node, box = self.plan.graph.nodes[source], self.values[source]
        neuron = torch.arange(node.size, device=box.lower.device)
        most = self.weights.largest()
        if self.execution is not None:
            self.execution.narrow(source)
        lower, upper = [], []
        one = torch.zeros_like(neuron)
        for piece in _pieces(self.plan, source, one, self.work, None):
            self.work.clock.check()
            sign = torch.ones(len(neuron[piece]), dtype=box.lower.dtype, device=neuron.device)
            coef = one_hot(neuron[piece], sign, node.size, node.shape)
            every = Blocks(slice(0, 1), len(coef))
            form = pull_back(self.plan, source, coef, every, most, _no_lines)
            found = extremes(self.region, form.coef)
            error = form.charge + form.const.abs() * (4 * UNIT)
            if self.execution is not None:
                error = error + self._executed(source, form.coef, neuron[piece])
            lower.append(below(found.lower + form.const, error))
            upper.append(above(found.upper + form.const, error))
        if self.record is not None:
            both = torch.cartesian_prod(
                torch.arange(len(box.lower)), torch.arange(node.size), torch.arange(2)
            )
            self.record(Step(source, both[:, 0], both[:, 1], both[:, 2], None))
        low, high = (torch.cat(side, 1).view(-1, *node.shape) for side in (lower, upper))
        return Box(torch.fmax(box.lower, low), torch.fmin(box.upper, high))

    def _executed(self, source: int, coef: Tensor, neuron: Tensor) -> Tensor:
        """(N, rows) by how much neurons that are affine in the input, as coef says, are off."""
        assert self.execution is not None
        error = self.execution.error
        at_input = error[0].flatten(1) @ coef.abs().flatten(1).T
        return (error[source].flatten(1)[:, neuron] + at_input) * LOOSE

    def _rows(
        self,
        target: int,
        coef: Tensor,
        sample: Tensor,
        neuron: Tensor,
        side: Tensor,
        proof: Proof | None,
    ) -> Tensor:
        """Proven lower bounds of coef . target."""
        self.work.clock.check()
        if not len(coef):
            return coef.new_zeros(0)
        index, own = shared(sample), sample_index(sample)
        choice = None
        if proof is not None and not self._ruled:
            choice = proof.choose(
                self.plan, Request(target, coef, sample, neuron, side, self.region, self.relaxed)
            )
        error = None if self.execution is None else self.execution.error
        if choice is None:
            along = Ruled(self._nodes(), target, own)
            way = along.through, error, along.rest
            form = pull_back(self.plan, target, coef, own, self.weights, *way)
            slopes = None
        else:
            least = None
            if self.thrift > 0 and target != self.plan.graph.output:
                box = self.values[target]
                least = self.thrift * (box.upper - box.lower).flatten(1)[sample, neuron]
            passing = Guided(self._nodes(), target, choice, index, own, least)
            way = passing.through, error, passing.rest
            form = pull_back(self.plan, target, coef, own, self.weights, *way)
            slopes = passing.slopes
        if self.record is not None:
            if slopes is not None:
                for i in set(self.plan.below(target)) - set(slopes):  # no row reads it
                    shape = self.fixed[i].lines.slopes.lower.shape
                    slopes[i] = coef.new_full((len(coef), *shape[1:]), torch.nan)
            self.record(Step(target, sample, neuron, side, slopes))
        return bounded(self.region, form, own)

    def _nodes(self) -> Nodes:
        rules, sizes = self.fixed, self.weights.value
        return Nodes(self.plan, self.relaxed, self.proven, rules, sizes, self.together, self.ruled)


def _pieces(
    plan: Plan, target: int, sample: Tensor, work: Work, proof: Proof | None
) -> Iterator[slice]:
    """Chunks of rows near the processor: numbers are twice as long as in the engines, and rows
    keep nothing of the nodes they pass, unless slopes of their own. Chunks hold whole samples if
    all have equally many rows, and one sample if it has many: such rows share what they read."""
    rows, most = len(sample), work.memory // plan.row_bytes(target)
    if proof is not None and not isinstance(proof, ByRule):
        most = at_once(plan, target, work)
    size = plan.node_size(target)
    step = max(1, min(most, 2 * PASS // size))
    ends = [rows]
    if isinstance(even := sample_index(sample), Blocks):
        width = max(even.each, step - step % even.each)
        ends = [*range(width, rows, width), rows]
    elif rows:
        counts = torch.bincount(sample - sample[0])
        if rows * size > len(counts) * CALL:
            ends = counts.cumsum(0).tolist()
    for a, end in pairwise([0, *ends]):
        yield from (slice(b, min(b + step, end)) for b in range(a, end, step))


def _no_lines(node: int, coef: Tensor) -> Passed:
    raise AssertionError("an affine function of the input passes no nonlinearity")
