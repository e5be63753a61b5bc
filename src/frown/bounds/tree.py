"""Trees: a property proved case by case.

An inner node cuts the region in two: where some number z of the network, an entry of what a
nonlinearity reads or a feature of the input, is at most a point c, and where it is at least c.
Both together are all of it, so the leaves of a tree cover the region whatever its cuts are.

Boxes of a tree node are those of its parent, cut. Rows that hang at a node are bounded over them
and hold in all of its subtree. Passing a nonlinearity f with coefficient a of f(z), a row goes
along a slope s and may take a multiplier m besides:

    a f(z) >= a (s z + t(s)) + m z - max(m l, m u)    for every s and m, z in [l, u].

On the side z >= c a multiplier m <= 0 costs no more than m c, on z <= c one m >= 0: that is how a
cut enters rows. Any s and m are valid, so the numbers here are choices, like the slopes of other
proofs: bad ones prove less and nothing wrong. Where boxes cross, no point of the region is left,
and everything holds.

Nonlinearities are counted as in `Plan.relaxed`, from 0, and are called sites; entries of what a
site reads are flat. So a tree found on a simplified graph serves the original one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request
from frown.errors import InvalidInput
from frown.graph.intervals import Intervals
from frown.relax.relaxation import Rule

INPUT = -1  # the site of a cut through a feature of the input
LEAF = -2
NONE = 0  # the code of a slope that is left to the rule
LEVELS = 15  # codes of slopes by default: with NONE they fit four bits
CODES = 129  # places of a ReLU's slope between 0 and 1, which are exact numbers


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of some rows, those that are not 0."""

    row: Tensor  # (M,) of the rows they belong to
    slot: Tensor  # (M,) as in Plan.slots of what the rows bound
    value: Tensor  # (M,) finite

    @classmethod
    def none(cls) -> Multipliers:
        nothing = torch.zeros(0, dtype=torch.long)
        return cls(nothing, nothing, torch.zeros(0))

    @classmethod
    def of(cls, dense: Tensor) -> Multipliers:
        """The entries of (rows, slots) that are not 0."""
        row, slot = dense.nonzero(as_tuple=True)
        return cls(row, slot, dense[row, slot])

    @classmethod
    def cat(cls, parts: Sequence[Multipliers]) -> Multipliers:
        """All of some, whose rows are counted together."""
        return cls(
            torch.cat([m.row for m in parts]),
            torch.cat([m.slot for m in parts]),
            torch.cat([m.value for m in parts]),
        )

    def dense(self, rows: int, slots: int) -> Tensor:
        """(rows, slots) in double precision."""
        found = torch.zeros(rows, slots, dtype=torch.float64)
        found[self.row, self.slot] = self.value.double()
        return found

    @cached_property
    def _in_order(self) -> bool:
        return bool((self.row[1:] >= self.row[:-1]).all())

    def take(self, index: Tensor, rows: int) -> Multipliers:
        """The multipliers of some of the rows (an index may not repeat), which are counted anew;
        quickly where they are in the order of their rows, as `of` gives them."""
        if self._in_order:
            first = torch.searchsorted(self.row, index)
            count = torch.searchsorted(self.row, index, right=True) - first
            row = torch.arange(len(index)).repeat_interleave(count)
            keep = torch.arange(len(row)) + (first - count.cumsum(0) + count)[row]
            return Multipliers(row, self.slot[keep], self.value[keep])
        place = torch.full((rows,), -1, dtype=torch.long)
        place[index] = torch.arange(len(index))
        keep = place[self.row] >= 0
        return Multipliers(place[self.row[keep]], self.slot[keep], self.value[keep])


@dataclass(frozen=True, slots=True)
class Literals:
    """Rows that bound literals of the property at tree nodes.

    Slopes are numbers, NaN: the rule's; or codes (uint8), of which 1 to `levels` are even places
    from the least to the greatest derivative over the tree node's box, and NONE is the rule's.
    With `slots`, columns of slopes are those of these slots alone; everywhere else is the rule's.
    """

    node: Tensor  # (R,) of the tree
    literal: Tensor  # (R,) of the property
    slopes: Tensor  # (R, slots) as in Plan.slots of the output
    multipliers: Multipliers
    levels: int = LEVELS
    slots: Tensor | None = None  # (columns,) slots of the columns; None: all, in order

    @property
    def coded(self) -> bool:
        return self.slopes.dtype == torch.uint8

    def take(self, index: Tensor) -> Literals:
        """Some of the rows."""
        own = self.multipliers.take(index, len(self.node))
        return replace(
            self,
            node=self.node[index],
            literal=self.literal[index],
            slopes=self.slopes[index],
            multipliers=own,
        )

    def dense(self, slots: int) -> Tensor:
        """(R, slots) the slopes at all slots."""
        if self.slots is None:
            return self.slopes
        blank = NONE if self.coded else torch.nan
        found = self.slopes.new_full((len(self.slopes), slots), blank)
        found[:, self.slots] = self.slopes
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Rows that bound entries of what a site reads, at tree nodes that have this step."""

    site: int
    neuron: Tensor  # (R,) entries of what the site reads
    side: Tensor  # (R,) 0: a bound below, 1: above
    slopes: (
        Tensor | None
    )  # (R, slots) as in Plan.slots of the site's source, NaN: the rule's; None: all the rule's
    multipliers: Multipliers


Head = tuple[int, int, int]  # a site, an entry of what it reads, 0: its upper end, 1: its lower one


@dataclass(frozen=True, eq=False)
class Assumed:
    """A contradiction that every node of a tree looks for: points where a literal exceeds the
    level need no proof, so at the others it is at most the level, and so is a row below it.

    What leaves prove is then that each literal of the clause they are about, or another, exceeds
    the lesser of its bound and the level.
    """

    level: float  # > 0
    literal: Tensor  # (nodes,) all of the tree's clause
    row: Proof  # of all nodes: slopes of a literal's row over boxes of the parent, cut
    heads: tuple[tuple[Head, ...], ...] = ()  # of all nodes: ends of boxes that rows go below, too


@dataclass(frozen=True, eq=False)
class Lemma:
    """Ends of boxes of what one site reads, each proved by a tree of cuts of earlier sites at
    kinks: the nodes of all trees, each in preorder, one tree after the other."""

    site: int
    neuron: Tensor  # (R,) entries of what the site reads
    side: Tensor  # (R,) 0: a bound below, 1: above
    cut_site: Tensor  # (nodes,) LEAF or an earlier site
    cut_neuron: Tensor  # (nodes,)
    slopes: Tensor  # (leaves, slots before the site) uint8, codes
    multipliers: Multipliers  # of leaves

    def __post_init__(self) -> None:
        open_ = torch.where(self.cut_site != LEAF, 1, -1).cumsum(0)
        trees = len(self.neuron)
        ends = int((open_ == -trees).sum()) == 1 and int(open_.min()) == int(open_[-1]) == -trees
        if not trees or self.side.shape != self.neuron.shape or not ends:
            raise InvalidInput("not a lemma: its nodes are no trees in preorder, one for each end")
        if fault := _amiss(self.multipliers, len(self.leaves), self.slopes.shape[1]):
            raise InvalidInput(f"not a lemma: {fault}")

    @cached_property
    def leaves(self) -> Tensor:
        """The numbers of the leaves."""
        return (self.cut_site == LEAF).nonzero().flatten()

    @cached_property
    def tree(self) -> Tensor:
        """(nodes,) which tree a node is of."""
        open_ = torch.where(self.cut_site != LEAF, 1, -1).cumsum(0)
        done = torch.cat([open_.new_zeros(1), -open_[:-1]])  # below 0 inside of a first tree
        return done.clamp(min=0).cummax(0).values

    @cached_property
    def cuts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The cuts on the ways to the leaves: the place of the leaf in `leaves`, the node that is
        cut, and the side taken there."""
        parent, side = _parents(self.cut_site != LEAF, self.tree)
        return _ways(parent, side, self.leaves)


@dataclass(frozen=True, eq=False)
class Tree:
    """The proof of one input's property by cases, nodes in preorder: a node, the subtree where
    z <= point, the subtree where z >= point.

    `passes` are lists of steps in the order of their sites; a node with one bounds the network anew
    over its boxes, its parent's cut, and the result holds in all of its subtree. Steps that
    many nodes share are told once. Without any, boxes are cut and that is all.
    """

    site: Tensor  # (nodes,) LEAF, INPUT or the number of a nonlinearity
    neuron: Tensor  # (nodes,) entry of what it reads, or feature of the input
    point: Tensor  # (nodes,) float64
    literals: Literals
    passes: tuple[tuple[Step, ...], ...] = ()
    passed: Tensor | None = None  # (nodes,) which of `passes` a node has, -1: none
    anew: Proof | None = None  # of all nodes: each bounds the network anew, leaves literals too
    assumed: Assumed | None = None  # with `anew` and a clause
    clause: int | None = None  # that it is about alone; None: whatever its rows prove
    lemmas: tuple[Lemma, ...] = ()  # in the order of their sites; over the root's boxes

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise InvalidInput(f"not a tree: {fault}")

    def __len__(self) -> int:
        return len(self.site)

    @property
    def inner(self) -> Tensor:
        """(nodes,) whether a node is cut."""
        return self.site != LEAF

    @property
    def by_nodes(self) -> bool:
        """True if every node bounds the network anew, over the boxes that its parent found."""
        return self.anew is not None and not isinstance(self.anew, ByRule)

    @property
    def leaves(self) -> Tensor:
        """The numbers of the leaves."""
        return (~self.inner).nonzero().flatten()

    @property
    def cases(self) -> int:
        """The number of leaves, those of lemmas counted."""
        return len(self.leaves) + sum(len(lemma.leaves) for lemma in self.lemmas)

    @cached_property
    def _parents(self) -> tuple[Tensor, Tensor]:
        """(nodes,) parent of each node, -1 for the root; its side: 0 z <= point, 1 z >= point."""
        return _parents(self.inner, torch.zeros_like(self.site))

    @property
    def parent(self) -> Tensor:
        return self._parents[0]

    @property
    def side(self) -> Tensor:
        return self._parents[1]

    @cached_property
    def children(self) -> Tensor:
        """(nodes, 2) the children of each node, below and above its point; -1: it is a leaf."""
        found = torch.full((len(self), 2), -1)
        found[self.parent[1:], self.side[1:]] = torch.arange(1, len(self))
        return found

    @cached_property
    def depth(self) -> Tensor:
        """(nodes,) how many cuts lead to a node."""
        parent = self.parent
        depth, above = (parent >= 0).long(), parent.clamp(min=0)
        while bool(above.any()):  # twice as far with every turn; the root is its own parent here
            depth = depth + depth[above]
            above = above[above]
        return depth

    def cuts(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cuts on the ways from the root to some nodes: the place of such a node in `nodes`,
        the node that is cut, and the side taken there."""
        return _ways(self.parent, self.side, nodes)

    def cut(self, leaves: Tensor, site: int, neuron: Tensor, point: Tensor) -> tuple[Tree, Tensor]:
        """This tree with some leaves cut in two, and (nodes,) where its nodes are in that one; the
        two new leaves come after the node that they are cut from. Not for trees with rows, or with
        leaves that differ in how they are bounded."""
        if len(self.literals.node) or self.passes:
            raise InvalidInput("a tree with rows of its own cannot be cut further")
        grown = torch.zeros(len(self), dtype=torch.long)
        grown[leaves] = 2
        place = torch.arange(len(self)) + grown.cumsum(0) - grown
        count = len(self) + 2 * len(leaves)
        fields = (
            (self.site, torch.full((count,), LEAF), torch.full_like(neuron, site)),
            (self.neuron, torch.zeros(count, dtype=torch.long), neuron),
            (self.point, torch.zeros(count, dtype=torch.float64), point),
        )
        for own, whole, fresh in fields:
            whole[place] = own
            whole[place[leaves]] = fresh
        sites, neurons, points = (whole for _, whole, _ in fields)
        return replace(self, site=sites, neuron=neurons, point=points), place

    def check(self, plan: Plan) -> None:
        """Raise InvalidInput where cuts or rows are not about this network."""
        graph, relaxed = plan.graph, plan.nonlinear
        reads = [graph.nodes[i].inputs[0] for i in relaxed]
        sizes = torch.tensor([graph.nodes[j].size for j in (*reads, 0)])
        inner = self.inner
        site = self.site[inner]
        if len(site) and int(site.max()) >= len(relaxed):
            raise InvalidInput("a tree cuts a nonlinearity that the network does not have")
        wrong = (self.neuron[inner] < 0) | (self.neuron[inner] >= sizes[site])
        if bool(wrong.any()):
            raise InvalidInput("a tree cuts an entry that its nonlinearity does not read")
        rows, slots = self.literals, plan.slots(graph.output)[1]
        if rows.slots is None:
            fits = rows.slopes.shape[1] == slots
        else:
            fits = (
                not len(rows.slots) or 0 <= int(rows.slots.min()) <= int(rows.slots.max()) < slots
            )
        if not fits:
            raise InvalidInput("rows of a tree have slopes for another network")
        if len(rows.multipliers.slot) and int(rows.multipliers.slot.max()) >= slots:
            raise InvalidInput("rows of a tree have multipliers where there is no slot")
        if any(not 0 <= lemma.site < len(relaxed) for lemma in self.lemmas):
            raise InvalidInput("a lemma is about a nonlinearity that the network does not have")
        for step in (step for steps in self.passes for step in steps):
            if not 0 <= step.site < len(relaxed):
                raise InvalidInput("a step bounds a nonlinearity that the network does not have")
            slots = plan.slots(plan.sources[relaxed[step.site]])[1]
            if step.slopes is not None and step.slopes.shape[1] != slots:
                raise InvalidInput("a step has slopes for another network")
            if bool((step.neuron >= sizes[step.site]).any()):
                raise InvalidInput("a step bounds an entry that its nonlinearity does not read")
            if len(step.multipliers.slot) and int(step.multipliers.slot.max()) >= slots:
                raise InvalidInput("a step has multipliers where there is no slot")

    def _fault(self) -> str:
        """The fault of the numbers themselves; empty if there is none."""
        count = len(self.site)
        if not count or any(t.shape != (count,) for t in (self.site, self.neuron, self.point)):
            return "site, neuron and point have other lengths"
        if int(self.site.min()) < LEAF:
            return "a site is below -2"
        open_ = 1 + torch.where(self.inner, 1, -1).cumsum(0)
        if bool((open_[:-1] < 1).any()) or int(open_[-1]) != 0:
            return "its nodes are no tree in preorder"
        if not bool(self.point[self.inner].isfinite().all()):
            return "a point is not finite"
        if self.assumed is not None and (self.anew is None or self.clause is None):
            return "a clause is assumed to fail, and nothing follows from it"
        if self.assumed is not None and not 0 < self.assumed.level < torch.inf:
            return "the level of an assumption is not positive"
        rows = self.literals
        if rows.literal.shape != rows.node.shape or len(rows.slopes) != len(rows.node):
            return "rows differ in number"
        if len(rows.node) and not 0 <= int(rows.node.min()) <= int(rows.node.max()) < count:
            return "a row hangs at no node"
        if rows.slots is not None and rows.slots.shape != rows.slopes.shape[1:]:
            return "columns of slopes differ in number from their slots"
        every = rows.slopes.shape[1] if rows.slots is None else None
        if fault := _amiss(rows.multipliers, len(rows.node), every):
            return fault
        passed = self.passed
        if passed is not None and (len(passed) != count or int(passed.max()) >= len(self.passes)):
            return "a node has steps that are not there"
        for steps in self.passes:
            if [s.site for s in steps] != sorted(s.site for s in steps):
                return "steps are not in the order of their sites"
            for s in steps:
                if s.side.shape != s.neuron.shape:
                    return "rows of a step differ in number"
                if s.slopes is not None and len(s.slopes) != len(s.neuron):
                    return "rows of a step differ in number"
                if fault := _amiss(s.multipliers, len(s.neuron), None):
                    return fault
        return ""


def _parents(inner: Tensor, tree: Tensor) -> tuple[Tensor, Tensor]:
    """(nodes,) parent of each node of some trees in preorder, -1 for roots; its side: 0
    z <= point, 1 z >= point."""
    parent = torch.arange(-1, len(inner) - 1)  # after an inner node comes its first child
    side = torch.zeros_like(parent)
    first = tree[1:] != tree[:-1]  # after the last leaf of a tree comes the next one's root
    parent[1:][first] = -1
    # After a leaf comes the second child of the last inner node that has none yet: brackets
    # that match are neighbours among those of their level.
    at = (~first).nonzero().flatten()
    before = inner[at]
    waiting = torch.where(before, 1, -1).cumsum(0)
    level = torch.where(before, waiting, waiting + 1)
    order = at[level.argsort(stable=True)]
    opens, closes = order[0::2], order[1::2]
    parent[closes + 1], side[closes + 1] = opens, 1
    return parent, side


def _ways(parent: Tensor, side: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cuts on the ways from roots to some nodes: the place of such a node in `nodes`, the node
    that is cut, and the side taken there."""
    place, here = torch.arange(len(nodes)), nodes
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    while len(here):
        below = parent[here] >= 0
        place, here = place[below], here[below]
        found.append((place, parent[here], side[here]))
        here = parent[here]
    a, b, c = zip(*found, strict=True) if found else ([here], [here], [here])
    return torch.cat(list(a)), torch.cat(list(b)), torch.cat(list(c))


def _amiss(m: Multipliers, rows: int, slots: int | None) -> str:
    if not (m.row.shape == m.slot.shape == m.value.shape):
        return "multipliers differ in number"
    if not len(m.row):
        return ""
    if not 0 <= int(m.row.min()) <= int(m.row.max()) < rows or int(m.slot.min()) < 0:
        return "a multiplier belongs to no row"
    if slots is not None and int(m.slot.max()) >= slots:
        return "a multiplier is at no slot"
    return "" if bool(m.value.isfinite().all()) else "a multiplier is not finite"


def source_entry(plan: Plan, site: int, neuron: Tensor | slice) -> tuple[int, Tensor]:
    """The graph's node and its entries that are cut where entries of what a site reads are."""
    if site == INPUT and isinstance(neuron, Tensor):
        return 0, neuron
    node = plan.nonlinear[site]
    source = plan.sources[node]
    shape = plan.graph.nodes[source].shape
    entries = torch.arange(plan.graph.nodes[source].size, dtype=torch.float64).view(1, *shape)
    moved = plan.carry(node, Intervals(entries, entries)).lower.flatten().long()
    return source, moved[neuron]


@dataclass(frozen=True)
class Branched(Proof):
    """Trees of some samples, over boxes that another proof finds at their roots. What its own rows
    prove there needs none."""

    includes: ClassVar[bool] = True
    root: Proof  # of the same samples
    trees: tuple[tuple[Tree, ...], ...]  # of each sample; of different clauses, as a rule

    @property
    def rule(self) -> Rule | None:
        return self.root.rule

    @property
    def inside(self) -> bool:
        return self.root.inside

    @property
    def wide(self) -> bool:
        return self.root.wide

    @property
    def bends(self) -> bool:
        return self.root.bends

    def take(self, index: Tensor) -> Branched:
        return Branched(self.root.take(index), tuple(self.trees[n] for n in index.tolist()))

    @classmethod
    def cat(cls, proofs: Sequence[Branched]) -> Branched:
        roots = [proof.root for proof in proofs]
        trees = tuple(own for proof in proofs for own in proof.trees)
        return Branched(type(roots[0]).cat(roots), trees)

    def include(self, other: Proof, samples: int) -> Branched:
        return Branched(other, ((),) * samples)

    def blank(self, samples: int) -> Branched:
        return Branched(self.root.blank(samples), ((),) * samples)

    def to(self, device: torch.device) -> Branched:
        """The proof at the roots, moved; trees are on the CPU."""
        return Branched(self.root.to(device), self.trees)

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        return self.root.choose(plan, request)

    def ready(self, plan: Plan, source: int) -> Tensor | None:
        return self.root.ready(plan, source)
