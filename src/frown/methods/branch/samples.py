"""Branch and bound for any network: each node of a tree is a sample of its own, with its own boxes.

Where functions are curved, a cut pays by what it does to the boxes of later layers. So a node is
bounded throughout by the inner method, over its parent's boxes, cut, from its parent's slopes and
multipliers. Which neuron to cut is found by trying: a few candidates, both sides of each bounded
along the parent's slopes, the best of them taken.

Points that matter are those alone where the property fails. There the literal that is to be proved
is at most 0, and with it the form below it that the parent's slopes give: a halfspace of the input,
which every row of the node may use. The nearer a node is to being proved, the less it leaves.
A tree is about one clause, for the same reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, log
from typing import Any

import torch
from torch import Tensor

from frown.bounds.arithmetic.float import Float
from frown.bounds.first_layer import AtInput
from frown.bounds.forms import (
    Chosen,
    LinearForm,
    Partial,
    begin,
    descend,
    form_of,
    push_forward,
)
from frown.bounds.halfspace import Halfspace, Planes, best_factor
from frown.bounds.method import Bounds, Ends, Method, Update
from frown.bounds.patches import of_convolution, parts
from frown.bounds.plan import Plan
from frown.bounds.proof import Choice, Proof, Request
from frown.bounds.rows import Rows
from frown.bounds.tree import LEAF, Assumed, Branched, Literals, Multipliers, Tree
from frown.bounds.walk import Given, Layers, walk
from frown.bounds.work import OutOfTime, Work
from frown.graph.intervals import Intervals
from frown.methods.branch.curves import CurveChain, curve_of_chain
from frown.methods.branch.radii import NEARER, NOTHING, Limits, Stage
from frown.methods.frown.ascent import Ascent, RowBatch, replay
from frown.methods.frown.network import (
    Frown,
    FrownProof,
    FrownState,
    SlopeTable,
    Tables,
    joined,
)
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Relaxed, Rule

BATCH = 48  # nodes that are bounded together
STEPS, CANDIDATES = 8, 10  # steps of every ascent in a node, and cuts tried by each score ...
SHORT, FEWER = 4.0, (5, 4)  # ... but these where an input has less than so many seconds
FIRST = 0.02  # of a radius: the first step beyond what is proved
FEW, GROWTH = 4, 2.0  # nodes that are next to nothing; times as many should be next
FIT = 1.0  # times the nodes that there is time for are what a radius is to take ...
WORTH = 1.2  # ... and times as many as before are the least that a larger radius is worth
ENOUGH = 0.6  # of these nodes, and of the tree it began with, and a radius is judged
LATE = 1.3  # times the nodes that there is time for are to be left for a smaller radius ...
HOPELESS = 8  # ... or so many times those of the radius before to be bounded
SLACK = 1e-3  # of the margin at the input: what leaves keep for the rounding of stored slopes
ROUND = 0.05  # of what a node lacks is to be gained along its own slopes, and it is bounded again
SIDES = 0.5  # of the better child counts, beside all of the worse one
PLANES = 8  # of a layer: one of a literal, the others of the last cuts
BATCH_COST = 5.0  # nodes take as long as all that is around those bounded together
REPLAY, LEVEL = 0.7, 9.0  # and so do the replay of a node, and all around one level of all trees


@dataclass(frozen=True, slots=True)
class NodeSlopes:
    """The slopes of one node: a place in the tables of all that were bounded together."""

    tables: Tables
    place: int


Heads = tuple[tuple[int, int], ...]  # slots of the output's rows, and sides: 0 the upper end


@dataclass(eq=False, slots=True)
class TreeNode:
    """A part of an input's region, in the tree of one clause: boxes of what nonlinearities read,
    one after the other."""

    sample: int
    clause: int
    least: Tensor  # (entries,) its cuts, which hold at every radius
    most: Tensor
    lower: Tensor  # (entries,) of its boxes at the present radius
    upper: Tensor
    slopes: NodeSlopes | None = None  # to start from, then those that it was bounded along
    before: NodeSlopes | None = None  # of the row below a literal that is assumed to fail ...
    literal: int = -1  # ... which that is
    heads: Heads = ()  # ends of boxes, by cuts, below which rows are planes of earlier layers
    last: int = 0  # the number of the plane of the last cut ...
    fresh: int = -1  # ... if it is new
    literals: Tensor | None = None  # (T,) their bounds
    weight: float = 1.0  # the part of its tree that it is supposed to be
    cut: tuple[int, float] | None = None  # a slot of the output's rows, and a point
    children: tuple[TreeNode, ...] | None = None  # two, or itself once more


@dataclass
class SampleTrees(Stage):
    """An input with its trees."""

    root: NodeSlopes | None = None  # of the whole region, without a tree
    whole: Proof | None = None  # the same as a proof
    literals: Tensor | None = None  # (T,) their bounds there
    trees: dict[int, TreeNode] = field(default_factory=dict)  # by clause
    needed: list[int] = field(default_factory=list)  # clauses that the root leaves open
    open: list[TreeNode] = field(default_factory=list)
    closed: int = 0  # leaves
    visited: int = 0  # nodes, at the present radius
    proved: int = 0  # nodes of the last proof, and levels of its trees
    levels: int = 0

    def raised(self, limits: Limits, left: float) -> None:
        """Set the radius to try next; `done` where there is none. What a radius takes depends on
        the network, so steps are small at first, and grow while nodes stay few. `left` is the
        number of nodes that there is time for."""
        self.waiting, self.visited = True, 0
        if limits.single:
            self.radius = self.limit
            return
        top, low = self.top(limits.gap), self.low
        if low * (1 + limits.gap) >= min(self.high, self.failed, self.limit) or top <= low:
            self.done = True
            return
        before = self.seen[-2][0] if len(self.seen) > 1 else low / (1 + FIRST)
        step = max(low - before, low * FIRST / 2) if self.seen else FIRST * low
        nodes = self.seen[-1][1] if self.seen else 1
        growth = min(GROWTH, FIT * left / nodes)
        self.rests = nodes > FEW and growth < WORTH
        if self.seen and nodes <= FEW:
            step *= 2
        elif len(self.seen) > 1:
            step = min(max(log(max(growth, WORTH)) / self._rate, step / 4), 2 * step)
        self.radius = low + step if low > 0 else 0.01 * min(top, 1.0)
        if isfinite(self.high):
            self.radius = min(self.radius, low + 0.5 * (top - low))
        if self.radius > top or top <= low * (1 + 2 * limits.gap):
            self.radius = top

    def given_up(self, left: float) -> bool:
        """Give a radius up for a smaller one that there is time for; returns whether. The work is
        supposed to grow evenly in the tree that was proved, and the two sides of a new cut to be
        equal parts of it. Where hardly any radius is near enough, the input `rests`."""
        before = self.seen[-1][1] if self.seen else 1
        enough = max(ENOUGH * min(left, HOPELESS * before), ENOUGH * self.proved, FEW * FEW)
        if self.visited < enough:
            return False
        rest = min(sum(node.weight for node in self.open) / max(1, len(self.needed)), 1.0)
        done = max(1 - rest, NOTHING)
        hopeless = self.visited > HOPELESS * max(before, FEW * FEW / 2)
        if not hopeless and self.visited * rest <= LATE * done * left:
            return False
        nodes, fit = max(self.visited / done, before + 1), FIT * left
        self.rests = fit <= WORTH * before
        part = log(max(fit / before, WORTH)) / log(nodes / before)
        part = min(max(part, NEARER), 0.5 if hopeless else 0.8)
        self.radius = self.low + part * (self.radius - self.low)
        self.waiting, self.visited, self.open = True, 0, []
        return True


@dataclass(frozen=True)
class NodeBounds:
    """The bounds of a batch of nodes."""

    sample: Tensor  # (B,)
    bounds: Bounds
    tables: Tables | None
    half: Halfspace | None
    lower: Tensor  # (B, entries) boxes
    upper: Tensor
    literals: Tensor  # (B, T); inf where nothing is left of the region
    margins: Tensor  # (B, clauses) beyond what is kept for rounding


class SampleSearch:
    """The search over all inputs of a batch.

    Unless it may `assume` that a property fails, bounds of literals hold everywhere.
    """

    def __init__(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        ends: Ends,
        inner: Method,
        limits: Limits,
        work: Work,
        candidates: int | None = None,
        assume: bool = True,
    ) -> None:
        self.plan, self.region, self.property = plan, region, property
        self.inner, self.limits, self.work = inner, limits, work
        steps, most = FEWER if limits.seconds < SHORT else (STEPS, CANDIDATES)
        self.candidates = most if candidates is None else candidates
        self.sources = sorted(set(plan.sources.values()))
        sizes = [plan.graph.nodes[i].size for i in self.sources]
        self.count = sum(sizes)
        self.parts: dict[int, slice] = {}
        start = 0
        for i, size in zip(self.sources, sizes, strict=True):
            self.parts[i] = slice(start, start + size)
            start += size
        self.entry = self._entries()
        where = [(i, k) for i, size in zip(self.sources, sizes, strict=True) for k in range(size)]
        # The node, and its entry, that each slot of the output's rows reads.
        self.places = [where[e] for e in self.entry.tolist()]
        self.fine, self.quick = inner, inner
        self.assume = assume and isinstance(inner, Frown) and not inner.wide
        self.chain: CurveChain | None = None
        if isinstance(inner, Frown):
            op = curve_of_chain(plan, inner)
            self.chain = None if op is None else CurveChain(plan, inner, op)
        if isinstance(inner, Frown):
            short = replace(inner.ascent, steps=steps, more=steps)
            self.fine = replace(inner, steps=None, ascent=short)
            self.quick = replace(inner, steps=None, ascent=Ascent(steps=0, more=0))
        self.inputs = [
            SampleTrees(n, float(ends.proved[n]), float(ends.broken[n]), float(ends.limit[n]))
            for n in range(len(region.radius))
        ]
        self.replayed = ends.replayed
        # Nodes, in how many batches, and seconds in which they were bounded.
        self.total, self.batches, self.spent = 0, 0, 0.0
        clean = property.margins(property.literals(plan.graph.apply(region.centre).flatten(1)))
        tiny = torch.finfo(clean.dtype).tiny
        self.slack = (SLACK * clean.amin(1)).clamp(min=tiny)  # (N,)
        self.free = region.centre.new_full((self.count,), inf)
        for own in self.inputs:
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
            found.append(self.plan.carry(i, Intervals(numbers, numbers)).lower.flatten().long())
        return torch.cat(found)

    # -- the loop -----------------------------------------------------------------

    def run(self, points: Tensor) -> Iterator[Update]:
        """Close brackets until time is up."""
        self.began = time.process_time()
        self.deadline = self.began + self.limits.seconds * len(self.inputs)
        for own in self.inputs:
            self._next(own)
        try:
            while not self.work.clock.expired():
                if self._left <= 0:
                    break
                active = self._active()
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

    @property
    def _left(self) -> float:
        """The seconds that are left."""
        return min(self.deadline - time.process_time(), self.work.clock.left()) - self._replay()

    def _nodes_left(self) -> float:
        """The number of nodes that there is time for, in an input's share of it; their replay is
        a part of it."""
        if not self.total:
            return inf
        sharing = sum(not own.done and not own.rests for own in self.inputs)
        pace = (time.process_time() - self.began) / self.total
        if self.replayed:
            pace += REPLAY * self._pace
        return max(0.0, self._left) / pace / max(1, sharing)

    def _active(self) -> list[SampleTrees]:
        """The inputs whose nodes are bounded. Where all others are done, those that rest may take
        their time, one after the other."""
        active = [own for own in self.inputs if not own.done and not own.rests]
        resting = [own for own in self.inputs if not own.done and own.rests]
        if active or not resting:
            return active
        least = min(resting, key=lambda own: own.seen[-1][1] if own.seen else 1)
        least.rests = False
        self._next(least)
        return [] if least.rests else self._active()

    def _replay(self) -> float:
        """Seconds that the replay of what is proved so far should take."""
        if not self.replayed:
            return 0.0
        nodes = sum(own.proved for own in self.inputs)
        levels = max(own.levels for own in self.inputs)
        return (REPLAY * nodes + LEVEL * levels) * self._pace

    @property
    def _pace(self) -> float:
        """The seconds that bounding one more node takes."""
        return self.spent / max(1.0, self.total + BATCH_COST * self.batches)

    def _bytes(self) -> int:
        """Roughly what nodes and their slopes take in memory."""
        nodes = [node for own in self.inputs for node in self._nodes(own)]
        known = {id(s.tables): s.tables for n in nodes for s in (n.slopes, n.before) if s}
        slopes = sum(t.numel() for own in known.values() for t in own.alpha.values())
        return (slopes + 4 * self.count * len(nodes)) * self.region.radius.element_size()

    def _nodes(self, own: SampleTrees) -> list[TreeNode]:
        """All nodes of an input's trees."""
        return [node for root in own.trees.values() for node in _preorder(root)]

    def _next(self, own: SampleTrees) -> None:
        """Set the radius to try next; the whole region is to be bounded there first."""
        own.raised(self.limits, self._nodes_left())
        own.open = []

    def _step(self, active: list[SampleTrees]) -> Iterator[Update]:
        """Bound a batch of nodes of all inputs, and cut what is not proved."""
        fresh = [own for own in active if own.waiting]
        for method in (self.inner, self.fine):
            these = [own for own in fresh if (own.root is None) == (method is self.inner)]
            for a in range(0, len(these), BATCH):
                self._begin(these[a : a + BATCH], method)
        batch: list[TreeNode] = []
        order = sorted(active, key=lambda own: len(own.open))
        for k, own in enumerate(order):
            share = max(1, (BATCH - len(batch)) // (len(order) - k))
            batch += own.open[-share:]
            del own.open[-share:]
            if len(batch) >= BATCH:
                break
        if batch:
            began = time.process_time()
            found = self._bound(batch, self.fine)
            self.spent += time.process_time() - began
            self.total += len(batch)
            self.batches += 1
            open_ = []
            for k, node in enumerate(batch):
                own = self.inputs[node.sample]
                own.visited += 1
                self._take(node, found, k)
                if bool(found.margins[k, node.clause] > 0):
                    node.cut = node.children = None
                    own.closed += 1
                elif own.high <= own.radius:
                    own.open.append(node)
                elif node.children is not None:
                    own.open += self._inherited(node, node.children)
                else:
                    open_.append((k, node))
            if open_:
                open_ = self._again(found, open_)
            if open_:
                yield from self._cut(found, open_)
        for own in active:
            yield from self._settle(own)

    def _begin(self, inputs: list[SampleTrees], method: Method) -> None:
        """Bound whole regions, and plant or take up the trees of clauses that stay open."""
        roots = [
            TreeNode(own.number, -1, -self.free, self.free, -self.free, self.free, own.root)
            for own in inputs
        ]
        found = self._bound(roots, method)
        clause = self.property.clause
        for k, (own, root) in enumerate(zip(inputs, roots, strict=True)):
            self._take(root, found, k)
            own.waiting, own.root, own.literals = False, root.slopes, root.literals
            own.whole = found.bounds.proof.take(torch.tensor([k]))
            own.closed = 0
            own.needed = (~(found.margins[k] > 0)).nonzero().flatten().tolist()
            for c in own.needed:
                literals = torch.where(clause == c, found.literals[k], -inf)
                tree = own.trees.get(c)
                if tree is None:
                    tree = own.trees[c] = replace(root, clause=c)
                tree.lower, tree.upper = root.lower, root.upper
                tree.before, tree.literal = root.slopes, int(literals.argmax())
                own.open.append(tree)

    def _take(self, node: TreeNode, found: NodeBounds, k: int) -> None:
        """Take in what was found of a node."""
        node.lower, node.upper = found.lower[k], found.upper[k]
        node.literals = found.literals[k]
        if found.tables is not None:
            node.slopes, node.fresh = NodeSlopes(found.tables, k), -1

    def _again(
        self, found: NodeBounds, open_: list[tuple[int, TreeNode]]
    ) -> list[tuple[int, TreeNode]]:
        """Bound nodes once more where that promises much; returns those where it does not."""
        if not self.assume:
            return open_
        trial = [
            replace(node, before=node.slopes, literal=self._likely(node), children=None)
            for _, node in open_
        ]
        tried = self._bound(trial, self.quick)
        left = []
        for j, (k, node) in enumerate(open_):
            own, again = self.inputs[node.sample], trial[j]
            lacks, still = (
                float(found.margins[k, node.clause]),
                float(tried.margins[j, node.clause]),
            )
            if not still > (1 - ROUND) * lacks:
                left.append((k, node))
                continue
            node.children, again.literals = (again,), tried.literals[j]
            if still > 0:
                own.closed += 1
            else:
                own.open.append(again)
        return left

    def _inherited(self, node: TreeNode, children: tuple[TreeNode, ...]) -> list[TreeNode]:
        """The children of a node over its boxes."""
        for child in children:
            child.lower, child.upper = (
                node.lower.maximum(child.least),
                node.upper.minimum(child.most),
            )
            child.before, child.literal = node.slopes, self._likely(node)
        return list(children)

    def _likely(self, node: TreeNode) -> int:
        """The literal of a node's clause that is nearest to being proved."""
        assert node.literals is not None
        return int(torch.where(self.property.clause == node.clause, node.literals, -inf).argmax())

    def _settle(self, own: SampleTrees) -> Iterator[Update]:
        if own.done or own.waiting:
            return
        if own.high <= own.radius or own.failed <= own.radius:
            own.done = self.limits.single
            if not own.done:
                self._next(own)
            return
        if own.open:
            if not self.limits.single:
                own.given_up(self._nodes_left())
            return
        own.low = max(own.low, own.radius)
        own.seen.append((own.radius, max(1, own.visited)))
        trees = [own.trees[c] for c in own.needed]
        own.proved = sum(_weighed(tree) for tree in trees)
        own.levels = sum(_levels(tree) for tree in trees)
        yield Update(own.number, own.radius, self._proof(own))
        own.done = self.limits.single
        if not own.done:
            self._next(own)

    def margins(self, sample: int) -> dict[int, float]:
        """Lower bounds at the present radius of the literals that hold on all leaves."""
        own = self.inputs[sample]
        if own.open or own.waiting or own.literals is None:
            return {}
        least = own.literals.clone()
        for c in own.needed:
            leaves = [n.literals for n in _preorder(own.trees[c]) if n.children is None]
            every = torch.stack([found for found in leaves if found is not None])
            mine = self.property.clause == c
            level = inf if not self.assume else float(self.slack[sample])
            least[mine] = every.amin(0)[mine].clamp(max=level)
        return {t: float(least[t]) for t in (least > 0).nonzero().flatten().tolist()}

    # -- proofs -------------------------------------------------------------------

    def _proof(self, own: SampleTrees) -> Proof | None:
        """The trees of an input whose leaves are all proved, each node bounded along its slopes."""
        if own.whole is None:
            return None
        return Branched(own.whole, (tuple(self._tree(own, c) for c in own.needed),))

    def _tree(self, own: SampleTrees, clause: int) -> Tree:
        nodes, empty = _whole(own.trees[clause])
        starts, slots = self.plan.slots(self.plan.graph.output)
        numbers = {i: k for k, i in enumerate(self.plan.nonlinear)}
        site, neuron, point = [], [], []

        def named(slot: int) -> tuple[int, int]:
            cut = next(i for i, part in starts.items() if part.start <= slot < part.stop)
            return numbers[cut], slot - starts[cut].start

        first = int(self.entry[0])
        for k, node in enumerate(nodes):
            place, where = (LEAF, 0), 0.0
            if k in empty or node.children is None:
                pass
            elif node.cut is not None:
                place, where = named(node.cut[0]), node.cut[1]
            else:  # beyond the end of a box, so that one side is empty, and the other is all of it
                low, high = float(node.lower[first]), float(node.upper[first])
                place, where = named(0), high + (high - low) + 1.0
            site.append(place[0])
            neuron.append(place[1])
            point.append(where)
        assert own.whole is not None
        anew: Proof = own.whole.blank(len(nodes))
        if isinstance(self.fine, Frown):
            anew = NodeProof(self.plan, self.fine, tuple(n.slopes for n in nodes if n.slopes))
        none = torch.zeros(0, dtype=torch.long)
        rows = Literals(none, none, torch.zeros(0, slots), Multipliers.none())
        assumed = None
        if self.assume and isinstance(self.fine, Frown):
            before = NodeProof(self.plan, self.fine, tuple(n.before for n in nodes if n.before))
            literal = torch.tensor([node.literal for node in nodes])
            heads = tuple(tuple((*named(slot), side) for slot, side in n.heads) for n in nodes)
            assumed = Assumed(float(self.slack[own.number]), literal, before, heads)
        points = torch.tensor(point, dtype=torch.float64)
        return Tree(
            torch.tensor(site),
            torch.tensor(neuron),
            points,
            rows,
            anew=anew,
            assumed=assumed,
            clause=clause,
        )

    # -- bounds -------------------------------------------------------------------

    def _bound(self, nodes: Sequence[TreeNode], method: Method, settled: int = -1) -> NodeBounds:
        """The inner method over the boxes of nodes; those up to a `settled` source stay."""
        sample = torch.tensor([node.sample for node in nodes])
        ball = self.region.rows(sample).with_radius(self._radii(sample))
        wanted = self.property.rows(sample)
        lower, upper = (torch.stack([getattr(f, n) for f in nodes]) for n in ("lower", "upper"))
        least, most = (torch.stack([getattr(f, n) for f in nodes]) for n in ("least", "most"))
        marked = (least > -inf) | (most < inf)
        boxes, marks = {}, {}
        for i, part in self.parts.items():
            shape = (-1, *self.plan.graph.nodes[i].shape)
            boxes[i] = Intervals(lower[:, part].view(shape), upper[:, part].view(shape))
            marks[i] = marked[:, part].view(shape)
        state = None
        if isinstance(method, Frown):
            state = FrownState(_tables([node.slopes for node in nodes]))
            for table in state.tables.factors.values():
                for k, node in enumerate(nodes):
                    if node.fresh >= 0:
                        table.view(len(nodes), -1, table.shape[1])[k, :, node.fresh] = 0.0
        given = Given(boxes, cuts=True, marked=marks, settled=settled)
        half = None
        if self.assume and all(node.before is not None for node in nodes):
            same = state is not None and all(node.before is node.slopes for node in nodes)
            half, planes = self._planes(
                nodes, ball, given, state.tables if same and state else None
            )
            given = replace(given, half=half, planes=planes)
        if (
            half is not None
            and self.chain is not None
            and isinstance(method, Frown)
            and state is not None
        ):
            chain = replace(self.chain, method=method)
            found = chain.bound(ball, wanted, state.tables, given, half, self.work)
        else:
            found = method.bound(self.plan, ball, wanted, state, given, self.work)
        values = [found.layers.values[i] for i in self.sources]
        low = torch.cat([box.lower.flatten(1) for box in values], 1)
        high = torch.cat([box.upper.flatten(1) for box in values], 1)
        literals = found.literals.nan_to_num(nan=-inf, posinf=-inf)
        literals = torch.where(found.empty[:, None], inf, literals)
        margins = wanted.margins(literals) - self.slack[sample, None]
        tables = None if state is None else state.tables
        return NodeBounds(sample, found, tables, half, low, high, literals, margins)

    def _planes(
        self,
        nodes: Sequence[TreeNode],
        ball: Region,
        given: Given,
        tables: Tables | None = None,
    ) -> tuple[Halfspace, dict[int, Planes]]:
        """The halfspaces in which the literals of nodes fail, by their parents' slopes; and planes
        of layers, which follow from that and from cuts of later layers."""
        tables = _tables([node.before for node in nodes]) if tables is None else tables
        rule = self.inner.lines if isinstance(self.inner, Frown) else None
        layers = walk(Float(self.plan, ball, rule), lambda _, box: box, given)
        sample = torch.tensor([node.sample for node in nodes])
        literal = torch.tensor([node.literal for node in nodes])
        every, plan = torch.arange(len(nodes)), self.plan
        const = self.property.const[sample, literal] - self.slack[sample]
        coef, output = self._literal(sample, literal), plan.graph.output
        table = tables.alpha.get((output, 0))
        if self.chain is not None and table is not None:
            alpha = table[every * self.property.shape[1] + literal]
            found = self.chain.forms(output, coef, alpha, every, layers.relaxed)
            known = {i: LinearForm(own.coef, own.const + const) for i, own in found.items()}
            half = Halfspace(known[0].coef, known[0].const)
        else:
            form, lines, tilt = self._row(layers.relaxed, every, sample, literal, tables, ball)
            half = Halfspace(form.coef, form.const + const)
            known = forms_at(plan, output, coef, const, lines, tilt, layers.relaxed)
        planes = {}
        for i, own in known.items():
            if i > self.sources[0] and not of_convolution(plan, i):
                blank = own.coef.new_zeros(len(nodes), PLANES, plan.graph.nodes[i].size)
                planes[i] = Planes(blank, blank.new_zeros(len(nodes), PLANES))
                planes[i].coef[:, 0], planes[i].const[:, 0] = own.coef.flatten(1), own.const
        if planes:
            self._lower_planes(nodes, ball, tables, layers, planes)
        return half, planes

    def _lower_planes(
        self,
        nodes: Sequence[TreeNode],
        ball: Region,
        tables: Tables,
        layers: Layers,
        planes: dict[int, Planes],
    ) -> None:
        """Add the planes that follow from cuts: a row below what was cut is at most the cut."""
        plan = self.plan
        heads: dict[int, list[tuple[int, int, int, int]]] = {}
        for k, node in enumerate(nodes):
            for g, (slot, side) in enumerate(node.heads, 1):
                source, entry = self.places[slot]
                if (source, 0) in tables.alpha:
                    heads.setdefault(source, []).append((k, g, entry, side))
        for source, which in heads.items():
            row, plane, neuron, side = torch.tensor(which).T
            rows = Rows(row, neuron, side)
            here = plan.graph.nodes[source]
            coef = rows.coef(here.size, here.shape, ball.centre.dtype)
            assert isinstance(self.fine, Frown)
            alpha = tables.alpha[source, 0][FrownProof(plan, self.fine, tables).key(source, rows)]
            box = layers.values[source]
            low, high = (t.flatten(1)[row, neuron] for t in (box.lower, box.upper))
            end = torch.where(side == 0, high, -low)
            if self.chain is not None:
                found = self.chain.forms(source, coef, alpha, row, layers.relaxed)
                known = {i: LinearForm(own.coef, own.const - end) for i, own in found.items()}
            else:
                ball_of = ball.rows(row)
                lines, tilt = self._along(layers.relaxed, row, source, coef, alpha, ball_of)[1:]
                relaxed = {i: own.rows(row) for i, own in layers.relaxed.items()}
                known = forms_at(plan, source, coef, -end, lines, tilt, relaxed)
            for i, own in known.items():
                if i in planes:
                    planes[i].coef[row, plane] = own.coef.flatten(1)
                    planes[i].const[row, plane] = own.const

    def _literal(self, sample: Tensor, literal: Tensor) -> Tensor:
        """Coefficients of literals of some samples."""
        shape = self.plan.graph.nodes[self.plan.graph.output].shape
        return self.property.pick(sample * self.property.shape[1] + literal).view(-1, *shape)

    def _row(
        self,
        relaxed: dict[int, Relaxed],
        index: Tensor,
        sample: Tensor,
        literal: Tensor,
        tables: Tables | None,
        ball: Region,
    ) -> tuple[LinearForm, dict[int, Chosen], Tensor]:
        """The forms of literals at the input along the slopes of tables, of the samples that
        `index` picks there; their lines, and their multipliers (rows, slots)."""
        output, count = self.plan.graph.output, self.property.shape[1]
        coef = self._literal(sample, literal)
        table = None if tables is None else tables.alpha.get((output, 0))
        alpha = coef.new_full((len(index), 1, self.plan.slots(output)[1]), torch.nan)
        if table is not None:
            alpha = table[index * count + literal]
        every = torch.arange(len(index))
        return self._along(relaxed, every, output, coef, alpha, ball)

    def _along(
        self,
        relaxed: dict[int, Relaxed],
        sample: Tensor,
        target: int,
        coef: Tensor,
        alpha: Tensor,
        ball: Region,
    ) -> tuple[LinearForm, dict[int, Chosen], Tensor]:
        """The forms at the input of rows with these alpha (rows, lanes, slots), their lines, and
        their multipliers (rows, slots); `sample` says where a row's nodes are among the relaxed."""
        plan, (count, lanes, slots) = self.plan, alpha.shape
        (part,) = parts(plan, target, 0).parts
        marked = torch.ones(count, slots, dtype=torch.bool) if lanes > 1 else None
        lines = part.relaxed(relaxed, sample, sample * 0)
        rows = RowBatch(target, coef, AtInput(ball), lines, None, False, marked)
        form, chosen = replay(plan, rows, alpha)
        tilt = alpha[:, -1].nan_to_num(nan=0.0) if lanes > 1 else torch.zeros_like(alpha[:, 0])
        return form, chosen, tilt

    # -- cuts ---------------------------------------------------------------------

    def _cut(self, found: NodeBounds, open_: list[tuple[int, TreeNode]]) -> Iterator[Update]:
        """Cut nodes in two, each at the best of some candidates."""
        index = torch.tensor([k for k, _ in open_])
        gap, middle, points = self._scores(found, index, open_)
        for k, where in points:
            n = open_[k][1].sample
            yield from self._broken(self.inputs[n], where)
        chosen = gap.topk(min(self.candidates, gap.shape[1]), 1)
        rest = middle.scatter(1, chosen.indices, -1.0)
        others = rest.topk(min(self.candidates, gap.shape[1]), 1)
        slots = torch.cat([chosen.indices, others.indices], 1)
        worth = torch.cat([chosen.values, others.values], 1)
        trial: list[TreeNode] = []
        pairs: list[tuple[int, int, tuple[int, float]]] = []
        for k, (_, node) in enumerate(open_):
            for slot, value in zip(slots[k].tolist(), worth[k].tolist(), strict=True):
                point = self._point(slot, node) if value > 0 else None
                if point is not None:
                    point = float(node.lower.new_tensor(point))  # as boxes have it
                    pairs.append((k, len(trial), (slot, point)))
                    trial += self._children(node, slot, point)
        best: dict[int, tuple[float, int, tuple[int, float], list[float]]] = {}
        values = self._tried(trial)
        for k, first, cut in pairs:
            low, high = values[first], values[first + 1]
            score = min(low, high) + SIDES * min(max(low, high), 0.0)
            if k not in best or score > best[k][0]:
                best[k] = score, first, cut, [low, high]
        for k, (_, node) in enumerate(open_):
            own = self.inputs[node.sample]
            if k not in best:
                own.failed = min(own.failed, own.radius)
                own.open.append(node)
                continue
            _, first, node.cut, margins = best[k]
            node.children = trial[first], trial[first + 1]
            for child, margin in zip(node.children, margins, strict=True):
                if margin > 0:
                    own.closed += 1
                else:
                    own.open.append(child)

    def _tried(self, trial: list[TreeNode]) -> list[float]:
        """The margins of children along their parents' slopes, beyond the layer that was cut."""
        found = [0.0] * len(trial)
        cut = [self.places[node.heads[node.last - 1][0]][0] for node in trial]
        # Those of a layer together, or a few of neighbouring layers.
        order = sorted(range(len(trial)), key=lambda j: -cut[j])
        while order:
            many = sum(cut[j] == cut[order[0]] for j in order)
            part = order[: min(max(many, BATCH), 8 * BATCH)]
            del order[: len(part)]
            least = min(cut[j] for j in part)
            tried = self._bound([trial[j] for j in part], self.quick, least)
            margins = tried.margins.tolist()
            for k, j in enumerate(part):
                trial[j].literals = tried.literals[k]
                found[j] = margins[k][trial[j].clause]
        return found

    def _children(self, node: TreeNode, slot: int, point: float) -> list[TreeNode]:
        entry = int(self.entry[slot])
        low, high = (
            replace(
                node,
                cut=None,
                children=None,
                before=node.slopes,
                literal=self._likely(node),
                weight=node.weight / 2,
                **_headed(node, slot, side),
            )
            for side in range(2)
        )
        low.upper, low.most = node.upper.clone(), node.most.clone()
        low.upper[entry] = low.most[entry] = point
        high.lower, high.least = node.lower.clone(), node.least.clone()
        high.lower[entry] = high.least[entry] = point
        return [low, high]

    def _point(self, slot: int, node: TreeNode) -> float | None:
        """The point to cut at: a kink inside the box, else the middle; None: nowhere."""
        entry = int(self.entry[slot])
        low, high = float(node.lower[entry]), float(node.upper[entry])
        middle = (low + high) / 2
        if not isfinite(middle) or not low < middle < high:
            return None
        places, _ = self.plan.slots(self.plan.graph.output)
        reader = next(i for i, place in places.items() if place.start <= slot < place.stop)
        op = self.plan.relaxation(reader)
        if isinstance(op, Elementwise):
            inside = [
                float(k) for k in op.kinks() if not isinstance(k, Tensor) and low < float(k) < high
            ]
            if inside:
                return min(inside, key=lambda k: abs(k - middle))
        return middle

    def _scores(
        self, found: NodeBounds, index: Tensor, open_: list[tuple[int, TreeNode]]
    ) -> tuple[Tensor, Tensor, list[tuple[int, Tensor]]]:
        """(n, slots) how far lines are from functions, times coefficients of the worst literal's
        row, where its bound is attained and in the middle of boxes; and counterexamples."""
        plan, output = self.plan, self.plan.graph.output
        wanted = self.property
        samples = found.sample[index]
        literal = torch.tensor([self._likely(node) for _, node in open_])
        count = wanted.shape[1]
        coef = wanted.pick(samples * count + literal).view(-1, *plan.graph.nodes[output].shape)
        relaxed = {i: own.rows(index) for i, own in found.bounds.layers.relaxed.items()}
        ball = self.region.rows(samples).with_radius(self._radii(samples))
        form, lines, tilt = self._row(relaxed, index, samples, literal, found.tables, ball)
        coefs = self._coefficients(coef, lines, tilt)
        final = form.coef
        if found.half is not None:
            final = best_factor(final, found.half.rows(index), ball.lowest)[1]
        point = ball.lowest(final)
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
        self, coef: Tensor, lines: dict[int, Chosen], tilt: Tensor
    ) -> dict[int, Tensor]:
        """The coefficients of nonlinear nodes' outputs in rows along these lines."""
        plan, output = self.plan, self.plan.graph.output
        found: dict[int, Tensor] = {}
        places, _ = plan.slots(output)

        def through(i: int, here: Tensor) -> tuple[None, Tensor]:
            found[i] = here
            below = plan.relaxation(i).expand(here) * lines[i].slope
            return None, below + tilt[:, places[i]].view(below.shape)

        form_of(plan, descend(plan, output, begin(plan, output, coef), through))
        return found

    def _broken(self, own: SampleTrees, point: Tensor) -> Iterator[Update]:
        far = float(self.region.rows(slice(own.number, own.number + 1)).distance(point[None]))
        if far < own.high:
            own.high = far
            yield Update(own.number, own.low, point=point)


def _headed(node: TreeNode, slot: int, side: int) -> dict[str, Any]:
    """The heads of a child, with its own cut among them; the oldest is left out where they are too
    many."""
    heads, own = list(node.heads), (slot, side)
    if own in heads:
        return {"last": heads.index(own) + 1, "fresh": -1}
    place = len(heads) if len(heads) < PLANES - 1 else node.last % (PLANES - 1)
    heads[place : place + 1] = [own]
    return {"heads": tuple(heads), "last": place + 1, "fresh": place + 1}


def forms_at(
    plan: Plan,
    target: int,
    coef: Tensor,
    const: Tensor,
    lines: dict[int, Chosen],
    tilt: Tensor,
    relaxed: dict[int, Relaxed],
) -> dict[int, LinearForm]:
    """Forms below coef . target + const along these lines and multipliers (rows, slots), at every
    source on the way down that all of a row passes."""
    places, _ = plan.slots(target)

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        op, box = plan.relaxation(i), relaxed[i].box
        m = tilt[:, places[i]].view(-1, *box.lower.shape[1:])
        cost = torch.maximum(m * box.lower, m * box.upper)
        gain = (here * lines[i].intercept).flatten(1).sum(1) - cost.flatten(1).sum(1)
        return gain, op.expand(here) * lines[i].slope + m

    found, here = {}, Partial({target: coef}, const, target)
    for source in sorted({plan.sources[i] for i in plan.below(target)}, reverse=True):
        end = descend(plan, target, here, through, first=source)
        here = Partial(end.pending, end.const, source)
        if set(end.pending) == {source}:
            found[source] = LinearForm(end.pending[source], end.const)
    return found


def _tables(slopes: Sequence[NodeSlopes | None]) -> Tables:
    """The slopes of some nodes in order, as one sample each; those of a batch stand together."""
    whole = _stacked(slopes)
    if whole is not None:
        return whole
    runs: list[tuple[Tables | None, list[int]]] = []
    for own in slopes:
        tables, place = (None, 0) if own is None else (own.tables, own.place)
        if runs and runs[-1][0] is tables:
            runs[-1][1].append(place)
        else:
            runs.append((tables, [place]))
    return joined(
        [Tables(len(k)) if t is None else t.take(torch.tensor(k), rounds=1) for t, k in runs]
    )


def _stacked(slopes: Sequence[NodeSlopes | None]) -> Tables | None:
    """Tables of nodes side by side where all of them have all rows; else None."""
    known = {id(own.tables): own.tables for own in slopes if own is not None}
    every = list(known.values())
    if not every or not all(own is not None for own in slopes):
        return None
    if not all(t.whole and t.tight is None for t in every):
        return None
    if len({(frozenset(t.alpha), frozenset(t.factors)) for t in every}) > 1:
        return None
    places = [(own.tables, own.place) for own in slopes if own is not None]
    alpha, count = {}, len(places)
    for key, like in every[0].alpha.items():
        lanes = max(t.alpha[key].lanes for t in every)
        rows = {
            name: t.alpha[key].padded(lanes).rows.view(t.samples, -1, lanes, like.rows.shape[2])
            for name, t in known.items()
        }
        own = torch.stack([rows[id(t)][place] for t, place in places]).flatten(0, 1)
        alpha[key] = SlopeTable(torch.arange(len(own)), own)
    factors = {}
    for key, one in every[0].factors.items():
        parts = {
            name: t.factors[key].view(t.samples, -1, one.shape[1]) for name, t in known.items()
        }
        factors[key] = torch.cat([parts[id(t)][place] for t, place in places])
    return Tables(count, 1, alpha, factors, whole=True)


@dataclass(frozen=True)
class NodeProof(Proof):
    """FROWN's slopes at nodes of a tree, each a sample, gathered when they are asked for."""

    plan: Plan
    method: Frown
    slopes: tuple[NodeSlopes, ...]

    @property
    def rule(self) -> Rule:
        return self.method.lines

    @property
    def wide(self) -> bool:
        return self.method.wide

    def take(self, index: Tensor) -> NodeProof:
        return replace(self, slopes=tuple(self.slopes[k] for k in index.tolist()))

    @classmethod
    def cat(cls, proofs: Sequence[NodeProof]) -> NodeProof:
        return replace(proofs[0], slopes=tuple(s for proof in proofs for s in proof.slopes))

    def blank(self, samples: int) -> NodeProof:
        return replace(self, slopes=(NodeSlopes(Tables(1), 0),) * samples)

    def to(self, device: torch.device) -> NodeProof:
        """Itself: nodes of trees are on the CPU."""
        return self

    @cached_property
    def gathered(self) -> FrownProof:
        """The slopes side by side."""
        return FrownProof(self.plan, self.method, _tables(self.slopes))

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        return self.gathered.choose(plan, request)


def _preorder(root: TreeNode) -> list[TreeNode]:
    """A node and all below it: the side z <= point of each first."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if node.children is not None:
            waiting += reversed(node.children)
    return found


def _weighed(root: TreeNode) -> int:
    """Count the nodes of a tree, whose weights become in proportion to those below."""
    nodes = _preorder(root)
    sizes = {id(node): 1 for node in nodes}
    for node in reversed(nodes):
        sizes[id(node)] += sum(sizes[id(child)] for child in node.children or ())
    root.weight = 1.0
    for node in nodes:
        for child in node.children or ():
            child.weight = node.weight * sizes[id(child)] / (sizes[id(node)] - 1)
    return len(nodes)


def _whole(root: TreeNode) -> tuple[list[TreeNode], set[int]]:
    """The nodes of a tree in preorder, where those that are bounded once more are followed by what
    is told as an empty side; the places of these."""
    found: list[TreeNode] = []
    empty: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, nothing = waiting.pop()
        if nothing:
            empty.add(len(found))
        found.append(node)
        if node.children is not None and not nothing:
            if len(node.children) == 1:
                waiting.append((node.children[0], True))
            waiting += [(child, False) for child in reversed(node.children)]
    return found, empty


def _levels(root: TreeNode) -> int:
    """Count the levels of a tree."""
    found, level = 0, [root]
    while level:
        found += 1
        level = [child for node in level for child in node.children or ()]
    return found


def _gap(relaxed: Relaxed, line: Chosen, coef: Tensor, z: Tensor) -> Tensor:
    """(n, entries of the input) |coef| times the distance of a line from its function at z."""
    op, box = relaxed.op, relaxed.box
    away = coef.abs() * (op.apply(z) - op.along(line.slope, z, line.intercept)).abs()
    laid = op.expand(away).expand_as(box.lower)
    if not isinstance(op, Elementwise):
        laid = laid * box.radius / box.radius.sum(-1, keepdim=True).clamp(min=1e-30)
    open_ = ~op.stable(box) & (box.upper > box.lower)
    return torch.where(open_.expand_as(laid), laid, torch.zeros_like(laid)).flatten(1)
