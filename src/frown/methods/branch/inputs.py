"""Branch and bound over the input: boxes are cut in two, and CROWN bounds each of them anew.

Where few features vary, a cut through one of them narrows every layer at once. Boxes are samples: a
thousand of them are bounded together, whatever network it is. The feature to cut is the one
along which the rows of what is still open fall most. Cut points are shared by both sides, so that
the leaves of a tree of cuts cover the region. The search is in fast floats; the proof bounds all
leaves again, and cuts on where one of them fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from frown.bounds.forms import form_along
from frown.bounds.method import Ends, Known, Method, Update
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Proof
from frown.bounds.rows import fixed_pieces
from frown.bounds.tree import INPUT, LEAF, Branched, Literals, Multipliers, Tree
from frown.bounds.walk import Layers
from frown.bounds.work import OutOfTime, Work
from frown.methods.crown import crown_layers
from frown.problem.property import LinearProperty, Property
from frown.problem.region import Region
from frown.relax.relaxation import LeastArea

MOST = 64  # features that vary; of more, halving one changes next to nothing
BATCH = 1024  # boxes that are bounded together, at the most
NUMBERS = 1 << 22  # of all layers of a batch
SLACK = 1e-5  # of a clause's margins at points: what is below 0 by less may be rounding
UNEVEN = 2.0**-8  # of the widest feature's width, both as shares of the region's, before it waits
RULE = LeastArea()
TRIAL = 0.3  # CPU seconds in which sums of literals are tried
SIGHTED = 64  # boxes at once, meanwhile
SUMS = 2  # of a clause, at the most


def fits(region: Region) -> bool:
    """True if regions are boxes in which few features vary."""
    if region.p != inf or region.split is not None:
        return False
    box = region.box()
    return int((box.upper > box.lower).flatten(1).sum(1).amax()) <= MOST


@dataclass(eq=False)
class FeatureCuts:
    """The tree of one input: cuts, by node."""

    feature: list[int] = field(default_factory=lambda: [-1])
    point: list[float] = field(default_factory=lambda: [0.0])
    below: list[int] = field(default_factory=lambda: [-1])  # the child where x <= point
    above: list[int] = field(default_factory=lambda: [-1])

    def cut(self, node: int, feature: int, point: float) -> tuple[int, int]:
        """Cut a leaf in two; returns the numbers of both sides."""
        first = len(self.feature)
        self.feature[node], self.point[node] = feature, point
        self.below[node], self.above[node] = first, first + 1
        self.feature += [-1, -1]
        self.point += [0.0, 0.0]
        self.below += [-1, -1]
        self.above += [-1, -1]
        return first, first + 1

    def preorder(self) -> Tensor:
        """(nodes,) all nodes: each before its lower side, and that before the upper one."""
        order, waiting = [], [0]
        while waiting:
            here = waiting.pop()
            order.append(here)
            if self.below[here] >= 0:
                waiting += [self.above[here], self.below[here]]
        return torch.tensor(order)


@dataclass(eq=False)
class CutInput:
    """An input with its tree."""

    number: int
    limit: float
    nodes: FeatureCuts = field(default_factory=FeatureCuts)
    open: int = 1  # leaves that are not proved
    share: float = 0.0  # of the region that is proved, as cuts halve it
    root: Proof | None = None
    done: bool = False  # decided, or beyond this search
    decided: bool = False  # proved or broken


@dataclass(frozen=True)
class CutBoxes:
    """Leaves, in double precision."""

    sample: Tensor  # (B,)
    node: Tensor  # (B,)
    depth: Tensor  # (B,)
    lower: Tensor  # (B, features)
    upper: Tensor

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, index: Tensor | slice) -> CutBoxes:
        """Some of them."""
        return CutBoxes(
            self.sample[index],
            self.node[index],
            self.depth[index],
            self.lower[index],
            self.upper[index],
        )

    @classmethod
    def cat(cls, many: list[CutBoxes]) -> CutBoxes:
        """All of several."""
        names = ("sample", "node", "depth", "lower", "upper")
        return cls(*(torch.cat([getattr(one, name) for one in many]) for name in names))


def with_helpful_sums(
    plan: Plan, region: Region, property: LinearProperty, inner: Method, work: Work
) -> LinearProperty:
    """A property with sums of literals that prove boxes which no literal proves alone.

    A short search of its own tells which; where it meets none, the property is as it was.
    """
    if not plan.nonlinear or not fits(region):
        return property
    wide, new = property.with_sums()
    if not new.any():
        return property
    wanted = wide.to(plan.graph.dtype, plan.graph.device)
    trial = _Trial(plan, region, wanted, new, inner, work)
    for _ in trial.run(TRIAL):
        pass
    return wide.only(~new | trial.helpful())


class InputSearch:
    """The search over all inputs of a batch, at the one radius that is asked about.

    Not for networks whose inputs vary in many features (`fits`).
    """

    def __init__(
        self, plan: Plan, region: Region, property: Property, ends: Ends, inner: Method, work: Work
    ) -> None:
        self.plan, self.property, self.inner, self.work = plan, property, inner, work
        self.region = region.with_radius(ends.limit)
        self.shape = plan.graph.input_shape
        self.inputs = [CutInput(n, float(ends.limit[n])) for n in range(len(region.radius))]
        for own in self.inputs:
            own.done = own.decided = float(ends.broken[own.number]) <= own.limit
        box = self.region.box()
        every = torch.arange(len(self.inputs))
        zero = torch.zeros_like(every)
        low, high = (t.flatten(1).double().cpu() for t in (box.lower, box.upper))
        self.open = CutBoxes(every, zero, zero, low, high)
        self.width = (high - low).clamp(min=1e-300)
        self.proved = torch.zeros(len(self.inputs), property.clauses, dtype=torch.bool)
        self.slack: float | None = None
        self.known = ends.known  # what the inner method found at the roots
        self.total = 0  # boxes bounded
        self.seconds = 0.0  # of CPU
        entries = sum(plan.graph.nodes[i].size for i in plan.ancestors(plan.graph.output))
        self.size = max(1, min(BATCH, NUMBERS // entries, work.memory // (800 * entries)))

    @property
    def finished(self) -> bool:
        """True if nothing is left to do."""
        return all(own.done for own in self.inputs)

    @property
    def forecast(self) -> float:
        """CPU seconds that all of it is going to take, as far as it went evenly; inf: nobody
        knows."""
        least = min((own.share for own in self.inputs if not own.done), default=1.0)
        return self.seconds / least if least > 0 else inf

    @property
    def left(self) -> Tensor:
        """The inputs that are neither proved nor broken."""
        return torch.tensor([own.number for own in self.inputs if not own.decided])

    @property
    def stuck(self) -> bool:
        """True if there is no box left that could be cut."""
        return self.finished and bool(len(self.left))

    def decided(self, number: int) -> None:
        """Be told that an input needs no more."""
        own = self.inputs[number]
        own.done = own.decided = True

    def broken(self, number: int, point: Tensor | None) -> bool:
        """True if a point violates an input's property by more than rounding."""
        if point is None or self.slack is None:
            return False
        own = self.property.rows(slice(number, number + 1))
        outputs = self.plan.graph.apply(point[None]).flatten(1)
        return bool((own.margins(own.literals(outputs)) < -self.slack).any())

    def run(self, seconds: float) -> Iterator[Update]:
        """Go on for so many CPU seconds, or until all is decided."""
        began = time.process_time()
        before = self.seconds
        try:
            while not self.finished and not self.work.clock.expired():
                self.seconds = before + time.process_time() - began
                if self.seconds - before > seconds or self._bytes() > self.work.memory // 2:
                    break
                if self.slack is None:
                    self._begin()
                yield from self._step()
        except OutOfTime:
            pass
        self.seconds = before + time.process_time() - began

    def _bytes(self) -> int:
        nodes = sum(len(own.nodes.feature) for own in self.inputs)
        return 16 * len(self.open) * self.open.lower.shape[1] + 200 * nodes

    def _begin(self) -> None:
        """Bound the roots by the inner method, whose proof the trees hang at."""
        if self.known is None:
            state = self.inner.start(len(self.inputs))
            found = self.inner.bound(self.plan, self.region, self.property, state, None, self.work)
            self.known = Known(found, state)
        found = self.known.bounds
        self.proved = self.property.margins(found.literals) > 0
        for own in self.inputs:
            own.root = found.proof.take(torch.tensor([own.number]))
        outputs = self.plan.graph.apply(self.region.centre).flatten(1)
        self.slack = SLACK * float(self.property.literals(outputs).abs().amax())

    def _step(self) -> Iterator[Update]:
        """Bound some boxes; what is not proved is cut."""
        alive = torch.tensor([not own.done for own in self.inputs])
        self.open = self.open.take(alive[self.open.sample])
        batch = self.open.take(slice(max(0, len(self.open) - self.size), None))
        self.open = self.open.take(slice(0, len(self.open) - len(batch)))
        self.total += len(batch)
        literals, coef = self._bound(batch)
        good = self._margins(batch, literals) > 0
        for k in good.nonzero().flatten().tolist():
            own = self.inputs[int(batch.sample[k])]
            own.open -= 1
            own.share += 2.0 ** -float(batch.depth[k])
        rest = (~good).nonzero().flatten()
        if len(rest):
            left, literals, coef = batch.take(rest), literals[rest], coef[rest]
            yield from self._attack(left, literals, coef)
            self._cut(left, literals, coef)
        for own in self.inputs:
            if not own.done and own.open == 0:
                self.decided(own.number)
                yield self._news(own)

    def _margins(self, boxes: CutBoxes, literals: Tensor) -> Tensor:
        """(B,) the least margin of clauses that the roots leave open; NaN proves nothing."""
        margins = self.property.rows(boxes.sample).margins(literals.nan_to_num(nan=-inf))
        margins = torch.where(self.proved[boxes.sample], inf, margins)
        return margins.amin(1)

    def _bound(self, boxes: CutBoxes) -> tuple[Tensor, Tensor]:
        """(B, T) lower bounds of literals over boxes, and (B, T, features) the coefficients of the
        forms that give them."""
        plan, shape, like = self.plan, (-1, *self.shape), self.region.centre
        centre = ((boxes.lower + boxes.upper) / 2).to(like).view(shape)
        scale = ((boxes.upper - boxes.lower) / 2).to(like).view(shape)
        ball = Region(centre, like.new_ones(len(boxes)), inf, scale)
        wanted = self.property.rows(boxes.sample)
        layers = crown_layers(plan, ball, RULE, self.work)
        bound, coef = self._forms(ball, wanted, layers)
        return bound + wanted.const, coef

    def _forms(self, ball: Region, wanted: Property, layers: Layers) -> tuple[Tensor, Tensor]:
        plan = self.plan
        output = plan.graph.output
        (count, each), outputs = wanted.shape, plan.graph.nodes[output].shape
        (part,) = parts(plan, output, 0).parts
        sample = torch.arange(count).repeat_interleave(each)
        bounds, coefs = [], []
        for piece in fixed_pieces(part, len(sample), self.work):
            self.work.clock.check()
            own = sample[piece]
            lines = part.lines(layers.relaxed, own, torch.zeros_like(own))
            form = form_along(plan, output, wanted.pick(piece).view(-1, *outputs), lines)
            bounds.append(ball.rows(own).least(form.coef) + form.const)
            coefs.append(form.coef.flatten(1))
        return torch.cat(bounds).view(count, each), torch.cat(coefs).view(count, each, -1)

    def _attack(self, boxes: CutBoxes, literals: Tensor, coef: Tensor) -> Iterator[Update]:
        """Try where the forms of the worst clause are least together, and the middles."""
        wanted = self.property.rows(boxes.sample)
        margins = torch.where(
            self.proved[boxes.sample], inf, wanted.margins(literals.nan_to_num(nan=-inf))
        )
        own = wanted.clause == margins.argmin(1)[:, None]
        slope = torch.where(own[:, :, None], coef.nan_to_num(), 0.0).sum(1)
        shape = (-1, *self.shape)
        corner = torch.where(slope > 0, boxes.lower, boxes.upper)
        middle = (boxes.lower + boxes.upper) / 2
        points = torch.cat([corner, middle]).to(self.region.centre).view(shape)
        both = wanted.rows(torch.arange(len(boxes)).repeat(2))
        found = both.margins(both.literals(self.plan.graph.apply(points).flatten(1))).amin(1)
        for k in (found <= 0).nonzero().flatten().tolist():
            mine = self.inputs[int(boxes.sample[k % len(boxes)])]
            if not mine.done:
                # What is violated by more than rounding ends the search.
                assert self.slack is not None
                if bool(found[k] < -self.slack):
                    self.decided(mine.number)
                yield Update(mine.number, 0.0, point=points[k])

    def _cut(self, boxes: CutBoxes, literals: Tensor, coef: Tensor) -> None:
        """Cut boxes in the middle of a feature each."""
        wanted = self.property.rows(boxes.sample)
        margins = wanted.margins(literals.nan_to_num(nan=-inf))
        open_ = ~(margins > 0) & ~self.proved[boxes.sample]
        open_ = torch.where(open_.any(1, keepdim=True), open_, True)
        # A literal counts the more the nearer it is to being proved.
        weight = 1 / literals.nan_to_num(nan=-inf).neg().clamp(min=1e-12)
        weight = torch.where(open_[:, wanted.clause], weight, 0.0)  # (B, T)
        fall = (coef.abs().nan_to_num(posinf=0.0) * weight[:, :, None]).sum(1).double()
        width = boxes.upper - boxes.lower
        middle = boxes.lower + width / 2
        free = (middle > boxes.lower) & (middle < boxes.upper)
        # A share of the width alone, for boxes whose forms say nothing. Features that were cut much
        # more often than another wait for it: around points where a literal is 0, forms call for
        # the same cuts for ever.
        worth = width / self.width[boxes.sample]
        worth = worth / worth.amax(1, keepdim=True).clamp(min=1e-300)
        score = fall * width
        score = score / score.amax(1, keepdim=True).clamp(min=1e-300) + 1e-3 * worth
        score = torch.where(worth >= UNEVEN, score, 0.0)
        best = torch.where(free, score, -1.0).max(1)
        feature = best.indices
        every = torch.arange(len(boxes))
        point = middle[every, feature]
        low, high = boxes.upper.clone(), boxes.lower.clone()
        low[every, feature] = point  # the lower side ends at the cut,
        high[every, feature] = point  # the upper one starts there
        first, second = boxes.node.clone(), boxes.node.clone()
        stuck = (best.values < 0).tolist()
        numbers = zip(
            boxes.sample.tolist(),
            boxes.node.tolist(),
            feature.tolist(),
            point.tolist(),
            strict=True,
        )
        for k, (n, node, i, c) in enumerate(numbers):
            own = self.inputs[n]
            if stuck[k]:
                own.done = True  # a point, as far as floats can tell, that is not proved
                continue
            first[k], second[k] = own.nodes.cut(node, i, c)
            own.open += 1
        keep = ~best.indices.new_tensor(stuck, dtype=torch.bool)
        depth = boxes.depth + 1
        sides = [
            CutBoxes(boxes.sample, first, depth, boxes.lower, low).take(keep),
            CutBoxes(boxes.sample, second, depth, high, boxes.upper).take(keep),
        ]
        self.open = CutBoxes.cat([self.open, *sides])

    def _news(self, own: CutInput) -> Update:
        """Tell that an input is proved."""
        return Update(own.number, own.limit, self._proof(own))

    def _proof(self, own: CutInput) -> Proof:
        """The tree of an input whose leaves are all proved."""
        assert own.root is not None
        nodes = own.nodes
        order = nodes.preorder()
        feature = torch.tensor(nodes.feature)[order]
        point = torch.tensor(nodes.point, dtype=torch.float64)[order]
        inner = feature >= 0
        none = torch.zeros(0, dtype=torch.long)
        slots = self.plan.slots(self.plan.graph.output)[1]
        rows = Literals(none, none, torch.zeros(0, slots), Multipliers.none())
        tree = Tree(
            torch.where(inner, INPUT, LEAF), feature.clamp(min=0), point, rows, anew=ByRule(RULE)
        )
        return Branched(own.root, ((tree,),))


class _Trial(InputSearch):
    """A search that counts which literals prove boxes that the others do not."""

    def __init__(
        self,
        plan: Plan,
        region: Region,
        property: LinearProperty,
        new: Tensor,
        inner: Method,
        work: Work,
    ) -> None:
        zero, beyond = torch.zeros_like(region.radius), torch.full_like(region.radius, inf)
        ends = Ends(zero, region.radius, beyond, region.centre, True)
        super().__init__(plan, region, property, ends, inner, work)
        self.slack = 0.0  # no root is bounded by another method
        self.new = new
        self.size = min(self.size, SIGHTED)
        self.wins = torch.zeros(len(new), 0, dtype=torch.bool)  # by box and clause

    def _margins(self, boxes: CutBoxes, literals: Tensor) -> Tensor:
        """Margins as ever; what the new literals prove alone is noted."""
        clause = self.property.clause
        proved = literals.nan_to_num(nan=-inf) > 0
        old = torch.zeros(len(boxes), self.property.clauses, dtype=torch.bool)
        for t in (~self.new).nonzero().flatten().tolist():
            old[:, clause[t]] |= proved[:, t]
        mine = proved & ~old[:, clause] & self.new
        self.wins = torch.cat([self.wins, mine.T], 1)
        return super()._margins(boxes, literals)

    def _news(self, own: CutInput) -> Update:
        """Tell it without a proof."""
        return Update(own.number, own.limit)

    def helpful(self) -> Tensor:
        """(T,) the new literals that cover most of what they prove together, a few of a clause."""
        chosen = torch.zeros(len(self.new), dtype=torch.bool)
        for c in range(self.property.clauses):
            own = (self.property.clause == c) & self.new
            open_ = self.wins.clone()
            for _ in range(SUMS):
                count = torch.where(own, open_.sum(1), 0)
                best = int(count.argmax())
                if not int(count[best]):
                    break
                chosen[best] = True
                open_ &= ~open_[best]
        return chosen
