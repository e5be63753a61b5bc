"""Trees replayed with proof: a property bounded case by case, with every rounding error charged.

The boxes of a case are those of the root's replay, cut. Lines, intercepts and charges are made anew
over them, for many cases at once. A case whose boxes cross has no points: everything holds there.

Slopes and multipliers are rounded to what a certificate stores of them before they are used, so
that what is proved here is what the certificate proves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frown.bounds.dense import DenseRows, Held, dense_runs
from frown.bounds.halfspace import Planes
from frown.bounds.lemmas import ProvedLemma, prove, written_out
from frown.bounds.patches import of_convolution
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request, RowChoices
from frown.bounds.replay import Replay, ReplayedRows, halved
from frown.bounds.rows import Rows
from frown.bounds.spill import SpillingTable
from frown.bounds.tree import (
    CODES,
    INPUT,
    NONE,
    Assumed,
    Literals,
    Multipliers,
    Tree,
    source_entry,
)
from frown.bounds.unstable import UnstableRows
from frown.bounds.walk import Given, walk
from frown.errors import InvalidInput
from frown.graph.graph import Input
from frown.graph.intervals import Intervals, rows_of
from frown.graph.op import Affine
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.piecewise import Relu
from frown.relax.relaxation import LeastArea, Rule

ENTRIES = 1 << 21  # numbers of the widest node's boxes in all cases of a batch
FURTHER = 8  # times that leaves are cut on ...
FEW, FAILED = 32, 0.1  # ... if so many, or such a part of all, failed at the most
SMALL = 32  # leaves of a tree for which matrices are not worth while
SPILL = 8  # the part of the memory, 1 / this, that recorded slopes may take
TOGETHER = 1 << 10  # cases that pass matrices at once
WAITING = 16  # batches of nodes that wait before the last of them go first


@dataclass(frozen=True, eq=False)
class Pass:
    """The rows along which a node was bounded anew."""

    assumed: tuple[ReplayedRows, ...]  # of a literal that is at most the tree's level, and others
    steps: tuple[ReplayedRows, ...]


@dataclass(frozen=True, eq=False)
class Replayed:
    """A tree as it was replayed: what it proves, and along which numbers."""

    tree: Tree
    margins: Tensor  # (clauses,) proven lower bounds over all leaves; -inf where there is none
    failing: Tensor  # the leaves at which some clause that was asked for is not proved
    rows: Tensor  # which of the tree's rows were bounded, in the order of their nodes
    levels: int  # of codes; 0: slopes are numbers
    slopes: Tensor  # (rows, slots) uint8 codes, or float32 with NaN for the rule's; if recorded
    multipliers: Multipliers  # of these rows; if recorded
    passes: dict[int, Pass] = field(default_factory=dict)  # by node, of those bounded anew
    factors: Tensor | None = None  # (rows,) of what is assumed
    cases: int = 0  # leaves, where those of lemmas are counted, too

    @property
    def leaves(self) -> int:
        """The number of leaves, those of lemmas counted."""
        return self.cases or len(self.tree.leaves)


def replay_tree(
    root: Replay,
    sample: int,
    tree: Tree,
    property: Property,
    wanted: Tensor,
    doubts: Tensor | None = None,
    record: bool = False,
) -> Replayed:
    """Bound those clauses of one sample's property that are `wanted` (clauses,) at every leaf.

    `root` is the replay of all samples, their layers bounded; `property` that of all of them.
    Leaves in `doubts`, as those that failed at a larger radius, are bounded first: where one of
    them still fails, the others are left alone, and nothing is proved. Raises InvalidInput where
    the tree is about another network, or has steps of its own. With `record`, the rows of leaves
    that bound the network anew are kept for a certificate.
    """
    if tree.by_nodes:
        return replay_together(root, [(sample, tree, wanted, doubts)], property, record)[0]
    tree.check(root.plan)
    given = root, sample, tree, property, _about(tree, wanted)
    if tree.anew is not None:
        return _ByLeaves(*given).run(record)
    if tree.passed is not None and bool((tree.passed >= 0).any()):
        raise InvalidInput("trees whose subtrees have steps of their own are not replayed")
    return ByRows(*given).run(doubts, record)


def replay_together(
    root: Replay,
    jobs: Sequence[tuple[int, Tree, Tensor, Tensor | None]],
    property: Property,
    record: bool = False,
) -> list[Replayed]:
    """Replay trees whose nodes bound the network anew, nodes of all of them together: of each, its
    sample, itself, the clauses that are wanted and the doubts, as in `replay_tree`."""
    found: dict[int, Replayed] = {}
    alike: dict[tuple[object, ...], list[int]] = {}
    for k, (_, tree, _, _) in enumerate(jobs):
        tree.check(root.plan)
        assumed = None if tree.assumed is None else type(tree.assumed.row)
        kind = type(tree.anew), assumed, bool((tree.site == INPUT).any())
        alike.setdefault(kind, []).append(k)
    for which in alike.values():
        mine = [jobs[k] for k in which]
        trees = [_TreeReplay(root, n, tree, property, _about(tree, w)) for n, tree, w, _ in mine]
        done = _ByNodes(trees).run([doubts for *_, doubts in mine], record)
        found.update(zip(which, done, strict=True))
    return [found[k] for k in range(len(jobs))]


def _about(tree: Tree, wanted: Tensor) -> Tensor:
    """(clauses,) those wanted that a tree is about."""
    return wanted if tree.clause is None else wanted & (torch.arange(len(wanted)) == tree.clause)


@dataclass(frozen=True, eq=False)
class _Level:
    """Tree nodes that are bounded together, and what they begin with."""

    nodes: Tensor
    sample: Tensor  # (nodes,) of the root's replay
    boxes: dict[int, Intervals]  # of what nonlinearities read, and of the input where it is cut
    crossed: Tensor  # (nodes,) whether a cut has left nothing

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def given(self) -> Given:
        """The boxes of what nonlinearities read, as cuts."""
        return Given({i: box for i, box in self.boxes.items() if i > 0}, cuts=True)

    def region(self, root: Replay) -> Region:
        """The part of its sample's region that cuts of the input leave, for every node."""
        whole = root.region.rows(self.sample)
        if 0 not in self.boxes:
            return whole
        return replace(whole, lower=self.boxes[0].lower, upper=self.boxes[0].upper)

    def rows(self, index: Tensor) -> _Level:
        boxes = {i: box.rows(index) for i, box in self.boxes.items()}
        return _Level(self.nodes[index], self.sample[index], boxes, self.crossed[index])

    @classmethod
    def cat(cls, parts: Sequence[_Level]) -> _Level:
        """The nodes of several, which have boxes of the same."""
        if len(parts) == 1:
            return parts[0]
        boxes = {
            i: Intervals(
                torch.cat([part.boxes[i].lower for part in parts]),
                torch.cat([part.boxes[i].upper for part in parts]),
            )
            for i in parts[0].boxes
        }
        nodes, sample, crossed = (
            torch.cat(own) for own in zip(*((p.nodes, p.sample, p.crossed) for p in parts))
        )
        return cls(nodes, sample, boxes, crossed)


@dataclass(frozen=True, eq=False)
class _Bounded:
    """Tree nodes after their passes."""

    nodes: Tensor
    boxes: dict[int, Intervals]
    margins: Tensor  # (nodes, clauses) inf where nothing is left
    passes: dict[int, Pass]
    rows: list[tuple[Tensor, ...]]  # node, literal, slopes, multipliers, factors


def bounded_anew(
    root: Replay,
    property: Property,
    wanted: Tensor,
    level: _Level,
    proof: RowChoices,
    record: bool,
    given: Given | None = None,
) -> _Bounded:
    """Bound the literals of those clauses that are wanted (nodes, clauses) over these nodes' boxes,
    the network anew."""
    plan, nodes, steps = root.plan, level.nodes, list[ReplayedRows]()
    replay = Replay(
        plan, level.region(root), proof, root.work, steps.append, given=given or level.given
    )
    layers = replay.layers()
    empty = level.crossed | layers.empty
    place, literal = wanted[:, property.clause].nonzero(as_tuple=True)
    sample = level.sample[place]
    rows = Rows(place, literal, torch.zeros_like(literal))
    coef = property.pick(sample * property.shape[1] + literal)
    inner = len(steps)
    bound = replay.outputs(coef, rows, property.const[sample, literal])
    bound = torch.where(torch.isfinite(bound), bound, -torch.inf)
    least = torch.full((len(nodes) * property.clauses,), -torch.inf, dtype=torch.float64)
    least.scatter_reduce_(0, place * property.clauses + property.clause[literal], bound, "amax")
    least = torch.where(empty[:, None], torch.inf, least.view(len(nodes), -1))
    boxes = {i: layers.values[i] if i > 0 else box for i, box in level.boxes.items()}
    passes, kept = dict[int, Pass](), list[tuple[Tensor, ...]]()
    if not record:
        return _Bounded(nodes, boxes, least, passes, kept)
    for k in (~level.crossed).nonzero().flatten().tolist():
        mine = (of_sample(step, k) for step in steps[:inner])
        passes[int(nodes[k])] = Pass((), tuple(step for step in mine if step is not None))
    for step in steps[inner:]:
        good = (~empty[step.rows.sample]).nonzero().flatten()
        slopes, lifts = tables(plan, step)
        factors = torch.zeros(len(good)) if step.factors is None else step.factors[good]
        own = step.rows.take(good)
        kept.append((nodes[own.sample], own.neuron, slopes[good], lifts[good], factors))
    return _Bounded(nodes, boxes, least, passes, kept)


class _TreeReplay:
    """One sample's tree, over the boxes of the replay of its root."""

    def __init__(
        self, root: Replay, sample: int, tree: Tree, property: Property, wanted: Tensor
    ) -> None:
        """`wanted` (clauses,) says which clauses are to be proved."""
        self.root, self.sample, self.tree, self.property = root, sample, tree, property
        self.wanted = wanted
        self.plan = root.plan
        self.slots = root.plan.slots(root.plan.graph.output)[1]

    def over_leaves(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """(clauses,) what holds at all leaves, of bounds (nodes, clauses) that hold in all of a
        node's subtree; and the leaves at which some clause that is wanted is not proved."""
        tree, wanted = self.tree, self.wanted
        by_depth = tree.depth.argsort(stable=True)
        for here in by_depth.split_with_sizes(torch.bincount(tree.depth).tolist())[1:]:
            found[here] = found[here].maximum(found[tree.parent[here]])
        leaves = found[tree.leaves]
        least = leaves.amin(0)
        if tree.assumed is not None:
            least = least.clamp(max=tree.assumed.level)
        # Cases that are all empty contradict each other, for every region has a point; or what is
        # assumed, which says nothing of other clauses.
        least = torch.where(torch.isfinite(least) & wanted, least, -torch.inf)
        return least, tree.leaves[(~(leaves > 0) & wanted).any(1)]

    def replayed(
        self, found: Tensor, kept: Sequence[tuple[Tensor, ...]], passes: dict[int, Pass]
    ) -> Replayed:
        """The tree, whose nodes bounded the network anew: `found` (nodes, clauses) along the rows
        that were `kept`."""
        least, failing = self.over_leaves(found)
        none = (torch.zeros(0, dtype=torch.long),) * 2 + (torch.zeros(0, self.slots),) * 2
        every = zip((*none, torch.zeros(0)), *kept, strict=True)
        node, literal, slopes, lifts, factors = (torch.cat(part) for part in every)
        order = node.argsort(stable=True)
        rows = Literals(node[order], literal[order], slopes[order], Multipliers.none())
        return Replayed(
            replace(self.tree, literals=rows),
            least,
            failing,
            torch.arange(len(node)),
            0,
            slopes[order],
            Multipliers.of(lifts[order]),
            passes,
            factors[order],
        )

    def cut(self, nodes: Tensor) -> tuple[dict[int, Intervals], Tensor]:
        """The boxes of these tree nodes where they are cut, by node of the graph, and (nodes,)
        whether one has crossed: it stays as it was."""
        plan, tree, boxes = self.plan, self.tree, dict[int, Intervals]()
        crossed = torch.zeros(len(nodes), dtype=torch.bool)
        place, cut, side = tree.cuts(nodes)
        site = tree.site[cut]
        for k in sorted(set(site.tolist())):
            here = site == k
            row, node, upper = place[here], cut[here], side[here] == 1
            source, entry = source_entry(plan, k, tree.neuron[node])
            known = boxes.get(source)
            if known is None:
                whole = self.root.values[source].rows(slice(self.sample, self.sample + 1))
                known = Intervals(
                    *(end.flatten(1).repeat(len(nodes), 1) for end in (whole.lower, whole.upper))
                )
            size = known.lower.shape[1]
            low, high, key = (
                known.lower.flatten().clone(),
                known.upper.flatten().clone(),
                row * size + entry,
            )
            point = tree.point[node]
            low.scatter_reduce_(0, key[upper], point[upper], "amax")
            high.scatter_reduce_(0, key[~upper], point[~upper], "amin")
            low, high = low.view(-1, size), high.view(-1, size)
            wrong = low > high
            crossed |= wrong.any(1)
            low, high = torch.where(wrong, known.lower, low), torch.where(wrong, known.upper, high)
            boxes[source] = Intervals(low, high)
        shapes = {i: plan.graph.nodes[i].shape for i in boxes}
        return {
            i: Intervals(box.lower.view(-1, *shapes[i]), box.upper.view(-1, *shapes[i]))
            for i, box in boxes.items()
        }, crossed


def together(root: Replay, ruled: bool) -> int:
    """The number of nodes whose boxes and lines go together; more where a rule gives slopes, and
    none are kept."""
    plan = root.plan
    entries = sum(plan.graph.nodes[i].size for i in plan.ancestors(plan.graph.output))
    return int(max(1, min(512 if ruled else 64, root.work.memory // (800 * entries))))


@dataclass(frozen=True, slots=True)
class BoundedRows:
    """Some rows of a tree, bounded."""

    at: Tensor  # (rows,) their tree nodes
    literal: Tensor
    bound: Tensor  # -inf where nothing is proved
    crossed: Tensor  # whether boxes cross: nothing is left of a node's region
    along: AlongTree | None  # None: it was not to be recorded


class ByRows(_TreeReplay):
    """A tree whose nodes do no more than cut boxes, over which its rows are bounded. Lemmas are
    left out where the network is no chain of dense layers."""

    proved: list[ProvedLemma] | None = None

    def run(self, doubts: Tensor | None, record: bool) -> Replayed:
        """Bound all rows of the clauses that are wanted."""
        root, tree, wanted = self.root, self.tree, self.wanted
        rows, clause, count = tree.literals, self.property.clause, self.property.clauses
        order = rows.node.argsort(stable=True)
        useful = order[wanted[clause[rows.literal[order]]]]
        found = torch.full((len(tree) * count,), -torch.inf, dtype=torch.float64)
        empty = torch.zeros(len(tree), dtype=torch.bool)
        kind = torch.uint8 if _coded(root.plan) else torch.float32
        slopes = SpillingTable((self.slots,), kind, root.work.memory // SPILL)
        lifts, used = list[Multipliers](), 0
        dense = self.dense()

        def bound(which: Tensor, record: bool) -> None:
            nonlocal used
            for own in self.bounded(which, dense, record):
                empty[own.at] |= own.crossed
                found.scatter_reduce_(0, own.at * count + clause[own.literal], own.bound, "amax")
                if record and own.along is not None:
                    end = used + len(own.along.slopes)
                    slopes.grow(end)
                    slopes.data[used:end] = own.along.slopes
                    here = Multipliers.of(own.along.lifts)
                    lifts.append(replace(here, row=here.row + used))
                    used = end

        if doubts is not None and len(doubts):
            doubtful = torch.isin(rows.node[useful], doubts)
            bound(useful[doubtful], False)
            known = found.view(-1, count)[doubts]
            still = doubts[~empty[doubts] & (~(known > 0) & wanted).any(1)]
            if len(still):
                least = torch.full((count,), -torch.inf, dtype=torch.float64)
                return Replayed(tree, least, still, useful[:0], 0, slopes.data, Multipliers.none())
        bound(useful, record)
        bare = tree.leaves[~torch.isin(tree.leaves, rows.node[useful])]
        for index in self._batches(bare):
            empty[index] = self.cut(index)[1]
        known = torch.where(empty[:, None], torch.inf, found.view(-1, count))
        least, failing = self.over_leaves(known)
        cases = len(tree.leaves) + sum(len(own.leaves) for own in self.proved or ())
        done = Replayed(
            tree,
            least,
            failing,
            useful,
            CODES if _coded(root.plan) else 0,
            slopes.data[:used],
            Multipliers.cat([Multipliers.none(), *lifts]),
            cases=cases,
        )
        if record and self.proved and len(useful):
            return self._without_lemmas(done, dense, self.proved)
        return done

    def _without_lemmas(
        self, done: Replayed, dense: DenseRows | None, proved: list[ProvedLemma]
    ) -> Replayed:
        """The result with its lemmas written out as cuts."""
        assert dense is not None
        rows = done.tree.literals.take(done.rows)
        rows = replace(rows, slopes=done.slopes, multipliers=done.multipliers, slots=None)
        literal = rows.literal[:1]
        coef = self.property.pick(self.sample * self.property.shape[1] + literal)
        const = self.property.const[self.sample, literal]
        tree = written_out(dense, proved, replace(done.tree, literals=rows), coef, const)
        own, every = tree.literals, torch.arange(len(tree.literals.node))
        return replace(done, tree=tree, rows=every, slopes=own.slopes, multipliers=own.multipliers)

    def bounded(
        self, which: Tensor, dense: DenseRows | None, record: bool = True
    ) -> Iterator[BoundedRows]:
        """Bound some of the tree's rows, batch by batch."""
        if dense is not None:
            yield from self._by_matrices(which, dense, record)
            return
        tree, property, sample = self.tree, self.property, self.sample
        for index in self._batches(which):
            at, literal = tree.literals.node[index], tree.literals.literal[index]
            along = AlongTree.of(self.root, tree, index)
            coef = property.pick(sample * property.shape[1] + literal)
            const = property.const[sample, literal].expand(len(index))
            cases, crossed = self._cases(at, along)
            every = torch.arange(len(index))
            bound = cases.outputs(coef, Rows(every, literal, torch.zeros_like(every)), const)
            bound = torch.where(torch.isfinite(bound), bound, -torch.inf)
            yield BoundedRows(at, literal, bound, crossed, along)

    def _by_matrices(self, which: Tensor, dense: DenseRows, record: bool) -> Iterator[BoundedRows]:
        """Bound some of the tree's rows by matrices; those with a multiplier that is not one of a
        cut go the way of all others."""
        root, sample, tree, property = self.root, self.sample, self.tree, self.property
        kept, slots = dense.slots, self.slots
        place_of = torch.full((slots,), -1, dtype=torch.long)
        place_of[kept] = torch.arange(len(kept))
        column = torch.arange(slots)
        if tree.literals.slots is not None:
            column = torch.full((slots,), -1, dtype=torch.long)
            column[tree.literals.slots] = torch.arange(len(tree.literals.slots))
        column = column[kept]
        usual = (dense.upper > -dense.lower).double()
        for k in range(0, len(which), TOGETHER):
            index = which[k : k + TOGETHER]
            rows = tree.literals.take(index)
            place, node, side = tree.cuts(rows.node)
            cut = torch.zeros(len(kept), len(index), dtype=torch.float64)
            cut[place_of[self._slot_of(node)], place] = side.double() * 2 - 1
            lift, own = torch.zeros_like(cut), rows.multipliers
            at = place_of[own.slot]
            lift[at, own.row] = halved(own.value.float()).double()
            if bool((at < 0).any() | (lift * cut > 0).any() | (lift.bool() & (cut == 0)).any()):
                yield from self.bounded(index, None)
                continue
            given = _numbers(rows.slopes[:, column.clamp(min=0)], rows)
            given = torch.where(column >= 0, given, torch.nan)
            code = _code(given, usual)
            slope = ((code - 1) / (CODES - 1)).T.contiguous()
            coef = property.pick(sample * property.shape[1] + rows.literal)
            const = property.const[sample, rows.literal].expand(len(index))
            bound, used = dense.bound(coef, const, Held(cut, slope, lift))
            bound = torch.where(torch.isfinite(bound), bound, -torch.inf)
            along = None
            if record:
                along = AlongTree.of(root, tree, index)
                along.slopes[:, kept] = code.to(torch.uint8).mul_(used.T)
            yield BoundedRows(rows.node, rows.literal, bound, dense.crossed(cut), along)

    def dense(self) -> DenseRows | None:
        """The sample's boxes as rows of dense ReLU networks need them; None where the network is
        another, or the tree has cuts elsewhere than at kinks."""
        root, sample, tree = self.root, self.sample, self.tree
        inner = tree.inner
        others = (tree.site[inner] < 0).any() | tree.point[inner].any()
        if root.execution is not None or bool(others):
            return None
        runs = dense_runs(self.plan)
        if runs is not None:
            key = sample, id(tree.lemmas)
            if key not in root.narrowed:
                own = DenseRows(root, sample, runs)
                root.narrowed[key] = own, prove(own, tree.lemmas), tree.lemmas
            known: DenseRows = root.narrowed[key][0]
            self.proved = root.narrowed[key][1]
            return known
        if not _coded(self.plan) or len(tree.leaves) < SMALL:
            return None
        cut = torch.zeros(self.slots, dtype=torch.bool)
        cut[self._slot_of(inner.nonzero().flatten())] = True
        found = UnstableRows(root, sample, cut)
        return found if 32 * found.kept.size() <= root.work.memory else None

    def _slot_of(self, nodes: Tensor) -> Tensor:
        """The slots of the neurons that these nodes cut, at kinks."""
        places = self.plan.slots(self.plan.graph.output)[0].values()
        starts = torch.tensor([part.start for part in places])
        return starts[self.tree.site[nodes]] + self.tree.neuron[nodes]

    def _cases(self, nodes: Tensor, along: AlongTree) -> tuple[Replay, Tensor]:
        """The network over the boxes of these tree nodes, each a sample, and (nodes,) whether a box
        has crossed."""
        plan, root, (boxes, crossed) = self.plan, self.root, self.cut(nodes)
        index = torch.full((len(nodes),), self.sample)
        region = _Level(nodes, index, boxes, crossed).region(root)
        found = Replay(plan, region, along, root.work)
        own, known = found.arithmetic, root.arithmetic
        for i in plan.ancestors(plan.graph.output):
            if isinstance(plan.graph.nodes[i].op, Input | Affine):
                own.values[i] = known.values[i].rows(index)
                for kind in ("value", "terms", "total"):
                    sizes = getattr(known.weights, kind)
                    if i in sizes:
                        getattr(own.weights, kind)[i] = rows_of(sizes[i], index)
            else:
                own.nonlinear(i, plan.carry(i, own.values[plan.sources[i]]))
            if i in boxes:
                own.values[i] = boxes[i]  # sizes that rounding is charged with may stay larger
        return found, crossed

    def _batches(self, items: Tensor) -> Iterator[Tensor]:
        """Some of the cases at once, within the budget."""
        plan = self.plan
        widest = max(plan.graph.nodes[i].size for i in plan.ancestors(plan.graph.output))
        most = self.root.work.memory // (4 * plan.row_bytes(plan.graph.output))
        size = max(1, min(most, ENTRIES // widest))
        yield from (items[k : k + size] for k in range(0, len(items), size))


class _ByNodes:
    """Trees of one kind whose nodes bound the network anew, each over its parent's boxes, cut.

    Nodes of all trees are counted in one row, tree after tree, and those of a level are bounded
    together. Where a node proves the clauses, those below it are left alone; where a leaf does not,
    the rest of its tree is.
    """

    def __init__(self, trees: Sequence[_TreeReplay]) -> None:
        first = trees[0]
        self.trees, self.root, self.plan, self.property = (
            trees,
            first.root,
            first.plan,
            first.property,
        )
        own = [each.tree for each in trees]
        for tree in own:
            if tree.assumed is not None:
                about = self.property.clause[tree.assumed.literal]
                if set(about.tolist()) != {tree.clause}:
                    raise InvalidInput("a tree assumes that another clause fails than it is about")
        sizes = torch.tensor([len(tree) for tree in own])
        self.first = sizes.cumsum(0) - sizes
        self.of = torch.arange(len(own)).repeat_interleave(sizes)  # (nodes,) its tree
        self.site, self.neuron, self.point, self.inner = (
            torch.cat([getattr(tree, name) for tree in own])
            for name in ("site", "neuron", "point", "inner")
        )
        below = zip(own, self.first, strict=True)
        self.children = torch.cat([tree.children + start for tree, start in below])
        self.sample = torch.tensor([each.sample for each in trees])[self.of]
        self.wanted = torch.stack([each.wanted for each in trees])[self.of]
        proofs = [tree.anew for tree in own if tree.anew is not None]
        self.anew = type(proofs[0]).cat(proofs)
        self.assumed: Assumed | None = None
        self.level = torch.zeros(len(own), dtype=torch.float64)
        every = [tree.assumed for tree in own if tree.assumed is not None]
        if every:
            self.level = torch.tensor([one.level for one in every], dtype=torch.float64)
            self.assumed = Assumed(
                float(self.level.max()),
                torch.cat([one.literal for one in every]),
                type(every[0].row).cat([one.row for one in every]),
                tuple(heads for one in every for heads in one.heads),
            )

    def run(self, doubts: Sequence[Tensor | None], record: bool) -> list[Replayed]:
        """Bound the network anew in every node, until a leaf of its tree fails."""
        every = torch.ones(len(self.trees), dtype=torch.bool)
        failed = self._doubted(doubts)
        for t in failed:
            every[t] = False
        found = torch.full((len(self.of), self.property.clauses), -torch.inf, dtype=torch.float64)
        passes: dict[int, Pass] = {}
        kept: list[tuple[Tensor, ...]] = []
        for done in self._nodes(every, None, record):
            found[done.nodes] = done.margins
            passes |= done.passes
            kept += done.rows
            unproved = self._unproved(done) & ~self.inner[done.nodes]
            every[self.of[done.nodes[unproved]]] = (
                False  # nothing is proved there, whatever others give
            )
        return [
            self._result(t, found, passes, kept) if t not in failed else self._nothing(t, failed[t])
            for t in range(len(self.trees))
        ]

    def _result(
        self, t: int, found: Tensor, passes: dict[int, Pass], kept: list[tuple[Tensor, ...]]
    ) -> Replayed:
        """Return what a tree proves."""
        own, start = self.trees[t], int(self.first[t])
        end = start + len(own.tree)
        rows = []
        for node, *others in kept:
            mine = self.of[node] == t
            rows.append((node[mine] - start, *(part[mine] for part in others)))
        steps = {node - start: each for node, each in passes.items() if start <= node < end}
        return own.replayed(found[start:end], rows, steps)

    def _nothing(self, t: int, failing: Tensor) -> Replayed:
        """Return a tree as it proves nothing, for these leaves fail."""
        own = self.trees[t]
        nothing = torch.zeros(0, own.slots)
        least = torch.full((self.property.clauses,), -torch.inf, dtype=torch.float64)
        none = Multipliers.none()
        return Replayed(own.tree, least, failing, torch.zeros(0).long(), 0, nothing, none)

    def _unproved(self, done: _Bounded) -> Tensor:
        return (~(done.margins > 0) & self.wanted[done.nodes]).any(1)

    def _doubted(self, doubts: Sequence[Tensor | None]) -> dict[int, Tensor]:
        """Find, by tree, leaves among the doubts that fail still, as soon as one does."""
        only = torch.zeros(len(self.of), dtype=torch.bool)
        leaf = torch.zeros_like(only)
        for each, start, own in zip(self.trees, self.first, doubts, strict=True):
            if own is not None and len(own):
                only[start + own] = only[start + each.tree.cuts(own)[1]] = True
                leaf[start + own] = True
        every = only[self.first]
        failed: dict[int, Tensor] = {}
        if not bool(every.any()):
            return failed
        for done in self._nodes(every, only, record=False):
            bad = done.nodes[self._unproved(done) & leaf[done.nodes]]
            for t in set(self.of[bad].tolist()):
                failed[t] = bad[self.of[bad] == t] - self.first[t]
                every[t] = False
        return failed

    def _nodes(self, trees: Tensor, only: Tensor | None, record: bool) -> Iterator[_Bounded]:
        """Bound all nodes (of the mask `only`, (nodes,)) of these `trees` (a mask that may change
        on the way), parents first."""
        size, waiting = together(self.root, False), self._start(trees)
        while len(waiting):
            # As many as go together: the last of them where very many wait, to be rid of them.
            late = len(waiting) > WAITING * size
            which = torch.arange(len(waiting))
            head = slice(-size, None) if late else slice(size)
            rest = slice(-size) if late else slice(size, None)
            level, waiting = waiting.rows(which[head]), waiting.rows(which[rest])
            gone = level.crossed
            if bool(gone.any()):  # nothing is left to bound
                count = int(gone.sum()), self.property.clauses
                nothing = torch.full(count, torch.inf, dtype=torch.float64)
                yield _Bounded(level.nodes[gone], {}, nothing, {}, [])
                level = level.rows((~gone).nonzero().flatten())
                if not len(level):
                    continue
            done = self._bound(level, record)
            yield done
            open_ = self._unproved(done) & self.inner[done.nodes]
            below = self._children(done, open_.nonzero().flatten(), only)
            waiting = _Level.cat([waiting, below])
            waiting = waiting.rows(trees[self.of[waiting.nodes]].nonzero().flatten())

    def _start(self, trees: Tensor) -> _Level:
        which = trees.nonzero().flatten()
        nodes = self.first[which]
        sources = set(self.plan.sources.values())
        if bool((self.site == INPUT).any()):
            sources.add(0)
        boxes = {i: self.root.values[i].rows(self.sample[nodes]) for i in sources}
        crossed = torch.zeros(len(nodes), dtype=torch.bool)
        return _Level(nodes, self.sample[nodes], boxes, crossed)

    def _children(self, done: _Bounded, places: Tensor, only: Tensor | None) -> _Level:
        """Both children of the nodes at these places, over their boxes, cut."""
        nodes = self.children[done.nodes[places]].flatten()
        place, side = places.repeat_interleave(2), torch.arange(len(nodes)) % 2
        if only is not None:
            place, side, nodes = (t[only[nodes]] for t in (place, side, nodes))
        boxes = {i: box.rows(place) for i, box in done.boxes.items()}
        crossed = torch.zeros(len(nodes), dtype=torch.bool)
        parent = done.nodes[place]
        for k in set(self.site[parent].tolist()):
            row = (self.site[parent] == k).nonzero().flatten()
            source, entry = source_entry(self.plan, k, self.neuron[parent[row]])
            box, point = boxes[source], self.point[parent[row]]
            low, high = box.lower.flatten(1).clone(), box.upper.flatten(1).clone()
            upper = side[row] == 1
            at = row[upper], entry[upper]
            low[at] = low[at].maximum(point[upper])
            at = row[~upper], entry[~upper]
            high[at] = high[at].minimum(point[~upper])
            wrong = low > high
            crossed |= wrong.any(1)
            low = torch.where(wrong, box.lower.flatten(1), low)
            high = torch.where(wrong, box.upper.flatten(1), high)
            boxes[source] = Intervals(low.view_as(box.lower), high.view_as(box.upper))
        return _Level(nodes, self.sample[nodes], boxes, crossed)

    def _bound(self, level: _Level, record: bool) -> _Bounded:
        """Bound the network over the boxes of these nodes."""
        given, planes, told = None, list[Tensor](), list[ReplayedRows]()
        if self.assumed is not None:
            given, planes = self._assuming(self.assumed, level, told.append)
        own, wanted = Explicit(self.anew.take(level.nodes), self.plan), self.wanted[level.nodes]
        done = bounded_anew(self.root, self.property, wanted, level, own, record, given)
        for k, node in enumerate(level.nodes.tolist()):
            if node in done.passes:
                assumed = _assumptions(told, planes, k)
                steps = (_within(step, len(assumed)) for step in done.passes[node].steps)
                done.passes[node] = Pass(assumed, tuple(steps))
        return done

    def _assuming(
        self, assumed: Assumed, level: _Level, record: Callable[[ReplayedRows], None]
    ) -> tuple[Given, list[Tensor]]:
        """Restrict regions to where literals are at most the level; and tell of every group of rows
        that say so, which of the planes they are."""
        plan, count, given = self.plan, len(level), level.given
        own = Explicit(assumed.row.take(level.nodes), plan)
        replay = Replay(plan, level.region(self.root), own, self.root.work, record, given=given)
        walk(replay.arithmetic, lambda _, box: box, given)
        literal, every = assumed.literal[level.nodes], torch.arange(count)
        coef = self.property.pick(level.sample * self.property.shape[1] + literal)
        rows = Rows(every, literal, torch.zeros_like(every))
        const = self.property.const[level.sample, literal]
        most = self.level[self.of[level.nodes]]
        output = plan.graph.output
        coef = coef.view(-1, *plan.graph.nodes[output].shape)
        found = replay.halfspaces(output, coef, rows, const, most)
        half, numbers = found.pop(0), [torch.zeros(count, dtype=torch.long)]
        heads = [assumed.heads[n] for n in level.nodes.tolist()]
        many = 1 + max(map(len, heads))
        planes = dict[int, Planes]()
        for source, plane in found.items():
            if not of_convolution(plan, source):
                blank = plane.coef.new_zeros(count, many, plan.graph.nodes[source].size)
                planes[source] = Planes(blank, blank.new_zeros(count, many))
                planes[source].coef[:, 0] = plane.coef.flatten(1)
                planes[source].const[:, 0] = plane.const
        for site in sorted({site for own_heads in heads for site, _, _ in own_heads}):
            which = [
                (k, g, neuron, side)
                for k, own_heads in enumerate(heads)
                for g, (at, neuron, side) in enumerate(own_heads, 1)
                if at == site
            ]
            row, number, neuron, side = torch.tensor(which).T
            target, entry = source_entry(plan, site, neuron)
            rows, node = Rows(row, entry, side), plan.graph.nodes[target]
            coef = rows.coef(node.size, node.shape, half.coef.dtype)
            box = replay.values[target]
            low, high = (end.flatten(1)[row, entry] for end in (box.lower, box.upper))
            most = torch.where(side == 0, high, -low)
            lower = replay.halfspaces(target, coef, rows, torch.zeros_like(most), most)
            numbers.append(number)
            for source, plane in lower.items():
                if source in planes:
                    planes[source].coef[row, number] = plane.coef.flatten(1)
                    planes[source].const[row, number] = plane.const
        return replace(given, half=half, planes=planes), numbers


def _assumptions(
    steps: list[ReplayedRows], planes: list[Tensor], sample: int
) -> tuple[ReplayedRows, ...]:
    """One sample's rows of what is assumed, one by one in the order of their planes."""
    found: dict[int, ReplayedRows] = {}
    for step, plane in zip(steps, planes, strict=True):
        for r in (step.rows.sample == sample).nonzero().flatten():
            found[int(plane[r])] = picked(step, r[None])
    return tuple(found[g] for g in sorted(found))


def _within(step: ReplayedRows, planes: int) -> ReplayedRows:
    """Rows without the factors of planes that their own sample does not have."""
    if step.factors is None or step.factors.dim() == 1:
        return step
    return replace(step, factors=step.factors[:, :planes])


class _ByLeaves(_TreeReplay):
    """A tree whose leaves bound the network anew by a rule, over the root's boxes, cut."""

    def run(self, record: bool) -> Replayed:
        """Bound the network in every leaf. A few that fail are cut on, in the middle of the feature
        that the cuts have left widest: the tree that is returned is the one that was replayed."""
        tree, property, wanted, anew = self.tree, self.property, self.wanted, self.tree.anew
        assert isinstance(anew, ByRule)
        whole = self.root.values[0].rows(slice(self.sample, self.sample + 1))
        reach = (whole.upper - whole.lower).flatten()
        least = torch.full((len(tree), property.clauses), -torch.inf, dtype=torch.float64)
        passes: dict[int, Pass] = {}
        kept: list[tuple[Tensor, ...]] = []  # as `_Bounded` has rows
        own = Explicit(anew, self.plan, halves=False) if record else anew
        size, todo = together(self.root, True), tree.leaves
        for left in range(FURTHER, -1, -1):
            for nodes in torch.split(todo, size):
                level = _Level(nodes, torch.full_like(nodes, self.sample), *self.cut(nodes))
                every = wanted.expand(len(nodes), -1)
                done = bounded_anew(self.root, property, every, level, own, record)
                least[nodes] = done.margins
                passes |= done.passes
                kept += done.rows
            failing = todo[(~(least[todo] > 0) & wanted).any(1)]
            few = len(failing) <= max(FEW, FAILED * len(tree.leaves))
            if not len(failing) or not few or not left:
                break
            box = self.cut(failing)[0].get(0, whole.rows(torch.zeros_like(failing)))
            low, high = box.lower.flatten(1), box.upper.flatten(1)
            share = torch.where(reach > 0, (high - low) / torch.where(reach > 0, reach, 1.0), 0.0)
            feature = share.argmax(1)
            every = torch.arange(len(failing))
            middle = (low + (high - low) / 2)[every, feature]
            tree, place = tree.cut(failing, INPUT, feature, middle)
            self.tree = tree
            # What was found of leaves that are none any more is not told.
            gone = set(failing.tolist())
            passes = {int(place[n]): own for n, own in passes.items() if n not in gone}
            stays = [~torch.isin(rows[0], failing) for rows in kept]
            kept = [
                (place[node[good]], *(part[good] for part in others))
                for (node, *others), good in zip(kept, stays, strict=True)
            ]
            moved = torch.full((len(tree), property.clauses), -torch.inf, dtype=torch.float64)
            moved[place] = least
            least, head = moved, place[failing]
            todo = torch.stack([head + 1, head + 2], 1).flatten()
        return self.replayed(least, kept, passes)


def tables(plan: Plan, step: ReplayedRows) -> tuple[Tensor, Tensor]:
    """(rows, slots) slopes and multipliers of a step with slopes, in single precision."""
    assert step.slopes is not None
    places, count = plan.slots(step.target)
    slopes = torch.cat([step.slopes[i].flatten(1) for i in plan.below(step.target)], 1).float()
    lifts = torch.zeros(len(step.rows), count)
    for i, m in step.multipliers.items():
        lifts[:, places[i]] = m.flatten(1).float()
    return slopes, lifts


def of_sample(step: ReplayedRows, n: int) -> ReplayedRows | None:
    """The rows of one sample; None: there are none."""
    mine = (step.rows.sample == n).nonzero().flatten()
    return picked(step, mine) if len(mine) else None


def picked(step: ReplayedRows, mine: Tensor) -> ReplayedRows:
    """Some of the rows."""
    slopes = None
    if step.slopes is not None:
        slopes = {i: (t[mine] if len(t) > 1 else t).float() for i, t in step.slopes.items()}
    lifts = {i: t[mine].float() for i, t in step.multipliers.items()}
    factors = None if step.factors is None else step.factors[mine]
    bends = {i: t[mine] for i, t in step.curvatures.items() if bool(t[mine].any())}
    return ReplayedRows(step.target, step.rows.take(mine), slopes, lifts, factors, bends)


@dataclass(frozen=True, eq=False)
class Explicit(RowChoices):
    """Every slope and multiplier of a proof, said explicitly and rounded as certificates store it:
    to single precision or, with `halves`, to half precision where that holds the number."""

    inner: Proof
    plan: Plan
    halves: bool = True

    @property
    def rule(self) -> Rule:
        return self.inner.rule or LeastArea()

    @property
    def alone(self) -> bool:
        return True

    @property
    def wide(self) -> bool:
        return self.inner.wide

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        if not plan.below(request.target):
            return None
        chosen = self.inner.choose(plan, request)
        row = request.rows.sample
        lifts = None if chosen is None else chosen.multiplier

        def slope(i: int, here: Tensor) -> Tensor:
            lines, op = request.relaxed[i].lines.slopes, plan.relaxation(i)
            low, high = (end.double()[row] for end in (lines.lower, lines.upper))
            own = torch.where(op.expand(here >= 0), low, high)
            if chosen is not None:
                given = chosen.slope(i, here).double()
                own = torch.where(given.isnan(), own, given)
            return self._stored(own)

        def multiplier(i: int) -> Tensor | None:
            own = None if lifts is None else lifts(i)
            return None if own is None else self._stored(own)

        whole, factors = (False, None) if chosen is None else (chosen.whole, chosen.factors)
        return Choice(slope, whole, multiplier, factors=factors)

    def _stored(self, numbers: Tensor) -> Tensor:
        """Numbers in double precision, rounded as they are stored."""
        return _stored(numbers) if self.halves else numbers.float().double()


def _numbers(slopes: Tensor, rows: Literals) -> Tensor:
    """Slopes of some rows in double precision, NaN: the rule's."""
    given = slopes.double()
    if not rows.coded:
        return given
    return torch.where(given > 0, (given - 1) / max(1, rows.levels - 1), torch.nan)


def _stored(numbers: Tensor) -> Tensor:
    """Numbers in double precision, rounded to half precision or, where that is none, to single."""
    short = numbers.half().double()
    return torch.where(short.isfinite() | numbers.isnan(), short, numbers.float().double())


def _coded(plan: Plan) -> bool:
    return all(isinstance(plan.relaxation(i), Relu) for i in plan.nonlinear)


@dataclass(frozen=True, eq=False)
class AlongTree(RowChoices):
    """The slopes and multipliers of a tree's rows, each row a sample; `slopes` are those used."""

    lines: Rule
    plan: Plan
    given: Tensor  # (rows, slots) float64, NaN: the rule's
    lifts: Tensor  # (rows, slots) float32
    coded: bool
    slopes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        kind = torch.uint8 if self.coded else torch.float32
        blank = torch.full(self.given.shape, NONE if self.coded else torch.nan, dtype=kind)
        object.__setattr__(self, "slopes", blank)

    @classmethod
    def of(cls, root: Replay, tree: Tree, index: Tensor) -> AlongTree:
        rows, plan = tree.literals.take(index), root.plan
        slots = plan.slots(plan.graph.output)[1]
        if rows.coded and not _coded(plan):
            raise InvalidInput("codes of slopes are read for ReLU alone")
        given = _numbers(rows.dense(slots), rows)
        lifts = halved(rows.multipliers.dense(len(index), slots).float())
        return cls(root.proof.rule or LeastArea(), plan, given, lifts, _coded(plan))

    @property
    def rule(self) -> Rule:
        return self.lines

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        places, _ = plan.slots(request.target)
        row = request.rows.sample

        def slope(i: int, here: Tensor) -> Tensor:
            part = places[i]
            own = self.given[row, part]
            box = request.relaxed[i].box
            shape = (len(row), *box.lower.shape[1:])
            if not self.coded:
                lines, op = request.relaxed[i].lines.slopes, plan.relaxation(i)
                low, high = (end.double()[row] for end in (lines.lower, lines.upper))
                usual = torch.where(op.expand(here >= 0), low, high).flatten(1)
                own = torch.where(own.isnan(), usual, own)
                own = _stored(own)
                self.slopes[row, part] = own.float()
                return own.view(shape)
            low, high = (end.flatten(1)[row] for end in (box.lower, box.upper))
            # Above, nothing beats the chord; a stable neuron has its one line.
            free = (here.flatten(1) >= 0) & (low < 0) & (high > 0)
            code = _code(own, (high > -low).double())
            self.slopes[row, part] = torch.where(free, code, float(NONE)).to(torch.uint8)
            return torch.where(free, (code - 1) / (CODES - 1), torch.nan).view(shape)

        def multiplier(i: int) -> Tensor | None:
            own = self.lifts[row, places[i]]
            if not bool(own.any()):
                return None
            return own.double().view(len(row), *request.relaxed[i].box.lower.shape[1:])

        return Choice(slope, False, multiplier)


def _code(slope: Tensor, usual: Tensor) -> Tensor:
    """The nearest place of ReLU's slopes, from 1 to CODES; `usual` in place of NaN."""
    slope = torch.where(slope.isnan(), usual, slope)
    return 1 + (slope.clamp(0, 1) * (CODES - 1)).round()
