"""Branch and bound for any network: every leaf is a sample of its own, with its own boxes.

Where functions are curved, a cut pays by what it does to the boxes of later layers. So a leaf is
bounded throughout by the inner method, over boxes that are cut, from slopes and multipliers of
its parent. Which neuron to cut is found by trying: a few candidates, both sides of each bounded
along the parent's slopes, the best of them taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

import torch
from torch import Tensor

from frown.bounds.first_layer import AtInput
from frown.bounds.forms import Chosen, begin, descend, form_of, push_forward
from frown.bounds.method import Bounds, Ends, Method, Update
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.proof import Proof
from frown.bounds.tree import LEAF, Branched, Literals, Multipliers, Tree
from frown.bounds.walk import Given
from frown.bounds.work import OutOfTime, Work
from frown.graph.box import Box
from frown.methods.branch.radii import Limits, Stage
from frown.methods.frown.ascent import Ascent, RowBatch, replay
from frown.methods.frown.network import Frown, FrownProof, FrownState, Tables, joined
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Relaxed

BATCH = 48  # leaves that are bounded together
STEPS = 6  # of every ascent in a leaf
FEW, FIRST = 6, 0.06  # leaves that are next to nothing; how far the first radius goes
SLACK = 1e-3  # of the margin at the input: what leaves keep for the rounding of stored slopes
SIDES = 0.5  # of the better child counts, beside all of the worse one


@dataclass(eq=False, slots=True)
class Cut:
    """A node of a tree that is cut, at an entry that some nonlinearity reads."""

    slot: int  # of the output's rows
    point: float
    above: tuple[Cut, int] | None  # the cut that led here, and its side


@dataclass(slots=True)
class Leaf:
    """A part of an input's region: boxes of what nonlinearities read, one after the other."""

    sample: int
    lower: Tensor  # (entries,) of its boxes at the present radius
    upper: Tensor
    least: Tensor  # (entries,) its cuts, which hold at every radius
    most: Tensor
    tables: Tables | None  # with slopes to start from ...
    place: int = 0  # ... which of the samples there
    literals: Tensor | None = None  # (T,) their bounds
    above: tuple[Cut, int] | None = None  # the last cut that led here, and its side


@dataclass
class Input(Stage):
    """An input with its leaves."""

    open: list[Leaf] = field(default_factory=list)
    closed: list[Leaf] = field(default_factory=list)
    root: Proof | None = None  # of the whole region, by the inner method


@dataclass(frozen=True)
class Outcome:
    """The bounds of a batch of leaves."""

    sample: Tensor  # (B,)
    bounds: Bounds
    tables: Tables | None
    lower: Tensor  # (B, entries) boxes
    upper: Tensor
    literals: Tensor  # (B, T); inf where nothing is left of the region
    margin: Tensor  # (B,) the least margin, beyond what is kept for rounding


class SampleSearch:
    """The search over all inputs of a batch."""

    def __init__(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        ends: Ends,
        inner: Method,
        limits: Limits,
        work: Work,
        candidates: int = 3,
    ) -> None:
        self.plan, self.region, self.property = plan, region, property
        self.inner, self.limits, self.work, self.candidates = inner, limits, work, candidates
        self.sources = sorted(set(plan.sources.values()))
        sizes = [plan.graph.nodes[i].size for i in self.sources]
        self.count = sum(sizes)
        self.parts: dict[int, slice] = {}
        start = 0
        for i, size in zip(self.sources, sizes, strict=True):
            self.parts[i] = slice(start, start + size)
            start += size
        self.entry = self._entries()
        self.fine, self.quick = inner, inner
        if isinstance(inner, Frown):
            short = replace(inner.ascent, steps=STEPS, more=STEPS)
            self.fine = replace(inner, steps=None, ascent=short)
            self.quick = replace(inner, steps=None, ascent=Ascent(steps=0, more=0))
        self.inputs = [
            Input(n, float(ends.proved[n]), float(ends.broken[n]), float(ends.limit[n]))
            for n in range(len(region.radius))
        ]
        self.total = 0
        clean = property.margins(property.literals(plan.graph.apply(region.centre).flatten(1)))
        self.slack = SLACK * clean.amin(1).clamp(min=0)  # (N,)
        free = region.centre.new_full((self.count,), inf)
        for own in self.inputs:
            own.closed = [Leaf(own.number, -free, free, -free, free, None)]
            if limits.single:
                own.done = own.high <= own.limit

    def _entries(self) -> Tensor:
        """(slots,) the entry among all boxes that each slot of the output's rows reads."""
        found = []
        for i in self.plan.below(self.plan.graph.output):
            source = self.plan.sources[i]
            shape = self.plan.graph.nodes[source].shape
            part = self.parts[source]
            numbers = torch.arange(part.start, part.stop, dtype=torch.float64).view(1, *shape)
            found.append(self.plan.carry(i, Box(numbers, numbers)).lower.flatten().long())
        return torch.cat(found)

    # -- the loop -----------------------------------------------------------------

    def run(self, points: Tensor) -> Iterator[Update]:
        """Close brackets until time is up."""
        deadline = time.process_time() + self.limits.seconds * len(self.inputs)
        for own in self.inputs:
            self._next(own)
        try:
            while time.process_time() < deadline and not self.work.clock.expired():
                active = [own for own in self.inputs if not own.done]
                if not active:
                    break
                yield from self._step(active)
                if self._bytes() > self.work.memory // 2:
                    break
        except OutOfTime:
            pass
        for own in self.inputs:
            if not own.done:
                remark = "branching ran out of time"
                yield Update(own.number, own.low, complete=False, remark=remark)

    def _bytes(self) -> int:
        """Roughly what leaves and their slopes take in memory."""
        leaves = [leaf for own in self.inputs for leaf in own.open + own.closed]
        tables = {id(leaf.tables): leaf.tables for leaf in leaves if leaf.tables is not None}
        slopes = sum(t.numel() for own in tables.values() for t in own.alpha.values())
        return (slopes + 4 * self.count * len(leaves)) * self.region.radius.element_size()

    def _next(self, own: Input) -> None:
        """Set the radius to try next; all leaves are to be bounded there, by their cuts alone."""
        own.advance(self.limits, FEW, FIRST)
        own.waiting = False
        if own.done:
            return
        own.open = [replace(leaf, lower=leaf.least, upper=leaf.most) for leaf in own.closed] + [
            replace(leaf, lower=leaf.least, upper=leaf.most) for leaf in own.open
        ]
        own.closed = []

    def _step(self, active: list[Input]) -> Iterator[Update]:
        """Bound a batch of leaves of all inputs, and cut what is not proved."""
        batch: list[Leaf] = []
        order = sorted(active, key=lambda own: len(own.open))
        for k, own in enumerate(order):
            share = max(1, (BATCH - len(batch)) // (len(order) - k))
            batch += own.open[-share:]
            del own.open[-share:]
            if len(batch) >= BATCH:
                break
        fresh = [leaf for leaf in batch if leaf.tables is None]
        known = [leaf for leaf in batch if leaf.tables is not None]
        for leaves, method in ((fresh, self.inner), (known, self.fine)):
            if not leaves:
                continue
            found = self._bound(leaves, method)
            self.total += len(leaves)
            open_ = []
            for k, leaf in enumerate(leaves):
                own = self.inputs[leaf.sample]
                kept = replace(
                    leaf, lower=found.lower[k], upper=found.upper[k], tables=found.tables, place=k
                )
                kept.literals = found.literals[k]
                if leaf.above is None:
                    own.root = found.bounds.proof.take(torch.tensor([k]))
                if bool(found.margin[k] > 0):
                    own.closed.append(kept)
                elif own.high > own.radius:
                    open_.append((k, kept))
                else:
                    own.open.append(kept)
            if open_:
                yield from self._cut(found, open_)
        for own in active:
            yield from self._settle(own)

    def _settle(self, own: Input) -> Iterator[Update]:
        if own.done:
            return
        if own.high <= own.radius or own.failed <= own.radius:
            own.done = self.limits.single
            if not own.done:
                self._next(own)
            return
        if own.open:
            return
        own.low = max(own.low, own.radius)
        own.seen.append((own.radius, max(1, len(own.closed))))
        yield Update(own.number, own.radius, self._proof(own))
        own.done = self.limits.single
        if not own.done:
            self._next(own)

    def margins(self, sample: int) -> dict[int, float]:
        """Lower bounds at the present radius of the literals that hold on all leaves."""
        found: dict[int, float] = {}
        own = self.inputs[sample]
        if own.open or any(leaf.literals is None for leaf in own.closed):
            return found
        every = torch.stack([leaf.literals for leaf in own.closed if leaf.literals is not None])
        least = every.amin(0)
        return {t: float(least[t]) for t in (least > 0).nonzero().flatten().tolist()}

    # -- proofs -------------------------------------------------------------------

    def _proof(self, own: Input) -> Proof | None:
        """The tree of an input whose leaves are all proved, each bounded anew along its slopes."""
        if own.root is None or not own.closed:
            return None
        places = {leaf.above: k for k, leaf in enumerate(own.closed)}
        children: dict[tuple[Cut, int] | None, Cut] = {}
        for leaf in own.closed:
            above = leaf.above
            while above is not None and children.get(above[0].above) is not above[0]:
                children[above[0].above] = above[0]
                above = above[0].above
        site, neuron, point, order = [], [], [], []
        starts = self.plan.slots(self.plan.graph.output)[0]
        numbers = {i: k for k, i in enumerate(self.plan.nonlinear)}
        waiting: list[tuple[Cut, int] | None] = [None]
        while waiting:
            here = waiting.pop()
            cut = children.get(here)
            if cut is None:
                order.append(places[here])
                site.append(LEAF)
                neuron.append(0)
                point.append(0.0)
                continue
            node = next(i for i, part in starts.items() if part.start <= cut.slot < part.stop)
            site.append(numbers[node])
            neuron.append(cut.slot - starts[node].start)
            point.append(cut.point)
            waiting += [(cut, 1), (cut, 0)]
        leaves = [own.closed[k] for k in order]
        anew: Proof = own.root.blank(len(leaves))
        if isinstance(self.fine, Frown):
            anew = FrownProof(self.plan, self.fine, self._tables(leaves))
        slots = self.plan.slots(self.plan.graph.output)[1]
        none = torch.zeros(0, dtype=torch.long)
        rows = Literals(none, none, torch.zeros(0, slots), Multipliers.none())
        points = torch.tensor(point, dtype=torch.float64)
        tree = Tree(torch.tensor(site), torch.tensor(neuron), points, rows, anew=anew)
        return Branched(own.root, ((tree,),))

    # -- bounds -------------------------------------------------------------------

    def _bound(self, leaves: Sequence[Leaf], method: Method) -> Outcome:
        """The inner method over the boxes of leaves."""
        sample = torch.tensor([leaf.sample for leaf in leaves])
        radius = torch.tensor([self.inputs[leaf.sample].radius for leaf in leaves])
        ball = self.region.rows(sample).with_radius(radius.to(self.region.radius))
        wanted = self.property.rows(sample)
        lower, upper = (torch.stack([getattr(f, n) for f in leaves]) for n in ("lower", "upper"))
        least, most = (torch.stack([getattr(f, n) for f in leaves]) for n in ("least", "most"))
        marked = (least > -inf) | (most < inf)
        boxes, marks = {}, {}
        for i, part in self.parts.items():
            shape = (-1, *self.plan.graph.nodes[i].shape)
            boxes[i] = Box(lower[:, part].view(shape), upper[:, part].view(shape))
            marks[i] = marked[:, part].view(shape)
        state = None
        if isinstance(method, Frown):
            state = FrownState(self._tables(leaves))
        given = Given(boxes, cuts=True, marked=marks)
        found = method.bound(self.plan, ball, wanted, state, given, self.work)
        values = [found.layers.values[i] for i in self.sources]
        low = torch.cat([box.lower.flatten(1) for box in values], 1)
        high = torch.cat([box.upper.flatten(1) for box in values], 1)
        literals = found.literals.nan_to_num(nan=-inf, posinf=-inf)
        literals = torch.where(found.empty[:, None], inf, literals)
        margin = wanted.margins(literals).amin(1) - self.slack[sample]
        tables = None if state is None else state.tables
        return Outcome(sample, found, tables, low, high, literals, margin)

    def _tables(self, leaves: Sequence[Leaf]) -> Tables:
        """The slopes that leaves start from, in order; those of a batch stand together."""
        runs: list[tuple[Tables | None, list[int]]] = []
        for leaf in leaves:
            if runs and runs[-1][0] is leaf.tables:
                runs[-1][1].append(leaf.place)
            else:
                runs.append((leaf.tables, [leaf.place]))
        own = [Tables(len(k)) if t is None else t.take(torch.tensor(k), rounds=1) for t, k in runs]
        return joined(own)

    # -- cuts ---------------------------------------------------------------------

    def _cut(self, found: Outcome, open_: list[tuple[int, Leaf]]) -> Iterator[Update]:
        """Cut leaves in two, each at the best of some candidates."""
        index = torch.tensor([k for k, _ in open_])
        gap, middle, points = self._scores(found, index)
        for k, where in points:
            n = open_[k][1].sample
            yield from self._broken(self.inputs[n], where)
        chosen = gap.topk(min(self.candidates, gap.shape[1]), 1)
        rest = middle.scatter(1, chosen.indices, -1.0)
        others = rest.topk(min(self.candidates, gap.shape[1]), 1)
        slots = torch.cat([chosen.indices, others.indices], 1)
        worth = torch.cat([chosen.values, others.values], 1)
        trial: list[Leaf] = []
        pairs: list[tuple[int, int]] = []
        for k, (_, leaf) in enumerate(open_):
            for slot, value in zip(slots[k].tolist(), worth[k].tolist(), strict=True):
                point = self._point(slot, leaf) if value > 0 else None
                if point is not None:
                    pairs.append((k, len(trial)))
                    trial += self._children(leaf, slot, point)
        best: dict[int, tuple[float, list[Leaf], list[float]]] = {}
        for a in range(0, len(trial), 8 * BATCH):
            part = trial[a : a + 8 * BATCH]
            tried = self._bound(part, self.quick)
            for j, leaf in enumerate(part):
                leaf.lower, leaf.upper = tried.lower[j], tried.upper[j]
                leaf.literals = tried.literals[j]
                trial[a + j] = leaf
            margins = tried.margin.tolist()
            for k, first in pairs:
                if a <= first < a + len(part):
                    low, high = margins[first - a], margins[first - a + 1]
                    score = min(low, high) + SIDES * min(max(low, high), 0.0)
                    if k not in best or score > best[k][0]:
                        best[k] = score, trial[first : first + 2], [low, high]
        for k, (_, leaf) in enumerate(open_):
            own = self.inputs[leaf.sample]
            if k not in best:
                own.failed = min(own.failed, own.radius)
                own.open.append(leaf)
                continue
            _, children, margins = best[k]
            for child, margin in zip(children, margins, strict=True):
                (own.closed if margin > 0 else own.open).append(child)

    def _children(self, leaf: Leaf, slot: int, point: float) -> list[Leaf]:
        point = float(leaf.lower.new_tensor(point))  # as boxes have it
        entry, cut = int(self.entry[slot]), Cut(slot, point, leaf.above)
        low, high = replace(leaf, above=(cut, 0)), replace(leaf, above=(cut, 1))
        low.upper, low.most = leaf.upper.clone(), leaf.most.clone()
        low.upper[entry] = low.most[entry] = point
        high.lower, high.least = leaf.lower.clone(), leaf.least.clone()
        high.lower[entry] = high.least[entry] = point
        return [low, high]

    def _point(self, slot: int, leaf: Leaf) -> float | None:
        """The point to cut at: a kink inside the box, else the middle; None: nowhere."""
        entry = int(self.entry[slot])
        low, high = float(leaf.lower[entry]), float(leaf.upper[entry])
        middle = (low + high) / 2
        if not isfinite(middle) or not low < middle < high:
            return None
        places, _ = self.plan.slots(self.plan.graph.output)
        node = next(i for i, place in places.items() if place.start <= slot < place.stop)
        op = self.plan.relaxation(node)
        if isinstance(op, Elementwise):
            inside = [
                float(k) for k in op.kinks() if not isinstance(k, Tensor) and low < float(k) < high
            ]
            if inside:
                return min(inside, key=lambda k: abs(k - middle))
        return middle

    def _scores(
        self, found: Outcome, index: Tensor
    ) -> tuple[Tensor, Tensor, list[tuple[int, Tensor]]]:
        """(n, slots) how far lines are from functions, times coefficients of the worst literal's
        row, where its bound is attained and in the middle of boxes; and counterexamples."""
        plan, output = self.plan, self.plan.graph.output
        wanted = self.property
        samples = found.sample[index]
        literals = found.bounds.literals[index]
        margins = wanted.rows(samples).margins(literals)
        worst = torch.where(torch.isnan(margins), -inf, margins).argmin(1)
        mine = wanted.clause[None] == worst[:, None]
        literal = torch.where(mine, literals.nan_to_num(nan=-inf), -inf).argmax(1)
        table = None if found.tables is None else found.tables.alpha.get((output, 0))
        count = wanted.shape[1]
        coef = wanted.pick(samples * count + literal).view(-1, *plan.graph.nodes[output].shape)
        relaxed = {i: own.rows(index) for i, own in found.bounds.layers.relaxed.items()}
        (part,) = parts(plan, output, 0).parts
        ball = self.region.rows(samples).with_radius(self._radii(samples))
        every = torch.arange(len(index))
        slots = plan.slots(output)[1]
        lanes = 1 if table is None else table.shape[1]
        alpha = coef.new_full((len(index), lanes, slots), torch.nan)
        if table is not None:
            alpha = table[index * count + literal]
        marked = torch.ones(len(index), slots, dtype=torch.bool) if lanes > 1 else None
        own_lines = part.relaxed(relaxed, every, every * 0)
        rows = RowBatch(output, coef, AtInput(ball), own_lines, None, False, marked)
        form, lines = replay(plan, rows, alpha)
        tilt = alpha[:, -1].nan_to_num(nan=0.0) if lanes > 1 else None
        coefs = self._coefficients(coef, lines, tilt)
        point = ball.lowest(form.coef)
        arrived: dict[int, Tensor] = {}
        push_forward(plan, output, point, lines, arrived.__setitem__)
        gap, middle = [], []
        for i in plan.below(output):
            own = relaxed[i]
            if i not in lines or i not in coefs:
                blank = torch.zeros(len(index), own.box.lower[0].numel())
                gap.append(blank)
                middle.append(blank)
                continue
            gap.append(_gap(own, lines[i], coefs[i], own.box.clip(arrived[i])))
            middle.append(_gap(own, lines[i], coefs[i], own.box.middle))
        truth = plan.graph.apply(point).flatten(1)
        own_property = wanted.rows(samples)
        bad = (own_property.margins(own_property.literals(truth)) <= 0).any(1)
        points = [(int(k), point[k]) for k in bad.nonzero().flatten()]
        return torch.cat(gap, 1), torch.cat(middle, 1), points

    def _radii(self, samples: Tensor) -> Tensor:
        radii = torch.tensor([own.radius for own in self.inputs])
        return radii.to(self.region.radius)[samples]

    def _coefficients(
        self, coef: Tensor, lines: dict[int, Chosen], tilt: Tensor | None
    ) -> dict[int, Tensor]:
        """The coefficients of nonlinear nodes' outputs in rows along these lines."""
        plan, output = self.plan, self.plan.graph.output
        found: dict[int, Tensor] = {}
        places, _ = plan.slots(output)

        def through(i: int, here: Tensor) -> tuple[None, Tensor]:
            found[i] = here
            below = plan.relaxation(i).expand(here) * lines[i].slope
            if tilt is not None:
                below = below + tilt[:, places[i]].view(below.shape)
            return None, below

        form_of(plan, descend(plan, output, begin(plan, output, coef), through))
        return found

    def _broken(self, own: Input, point: Tensor) -> Iterator[Update]:
        far = float(self.region.rows(slice(own.number, own.number + 1)).distance(point[None]))
        if far < own.high:
            own.high = far
            yield Update(own.number, own.low, point=point)


def _gap(relaxed: Relaxed, line: Chosen, coef: Tensor, z: Tensor) -> Tensor:
    """(n, entries of the input) |coef| times the distance of a line from its function at z."""
    op, box = relaxed.op, relaxed.box
    away = coef.abs() * (op.apply(z) - op.along(line.slope, z, line.intercept)).abs()
    laid = op.expand(away).expand_as(box.lower)
    if not isinstance(op, Elementwise):
        laid = laid * box.radius / box.radius.sum(-1, keepdim=True).clamp(min=1e-30)
    open_ = ~op.stable(box) & (box.upper > box.lower)
    return torch.where(open_.expand_as(laid), laid, torch.zeros_like(laid)).flatten(1)
