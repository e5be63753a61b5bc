"""Branch and bound for ReLU networks: leaves of all inputs in one batch, over shared boxes.

Every input has a radius that is being tried. Its boxes there, from the inner method, serve all of
its leaves; each leaf has its own final row. When all leaves of an input are proved, its radius is,
and a larger one is tried from the same leaves; a counterexample takes the radius below itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, prod

import numpy as np
import torch
from torch import Tensor

from frown.bounds.method import Bounds, Ends, Method, Update
from frown.bounds.plan import Plan
from frown.bounds.proof import Proof
from frown.bounds.spill import NoRoom, room
from frown.bounds.tree import CODES, LEAF, NONE, Branched, Lemma, Literals, Multipliers, Tree
from frown.bounds.work import OutOfTime, Work
from frown.methods.branch.ascent import Bases, LeafAscent, Leaves, PseudoCosts, Risen, ascend
from frown.methods.branch.descent import Descents
from frown.methods.branch.ends import EndTrees
from frown.methods.branch.nodes import MOVED, Nodes, NodeStack, Numbers
from frown.methods.branch.passes import Dense, General, Passes
from frown.methods.branch.pieces import PieceBall, Pieces, decide, empty, nearest, tensor
from frown.methods.branch.radii import Limits, Stage
from frown.methods.branch.shared import Asked, Context, SharedAscent
from frown.methods.frown.network import FrownState
from frown.problem.property import Property
from frown.problem.region import Region

WIDE = 4096  # features beyond which programs in the input take too long
ON_SURFACE = 1e-5  # of a radius: how far beyond it rounding may move a point
MANY = 8 << 20  # numbers of a linear piece beyond which they do, too
# Bytes of a leaf that its tree holds and the replay of that, whatever is in files, and those for
# each clause.
LEAF_BYTES, CLAUSE_BYTES = 1000, 50
SPILL = 16  # the part of the memory, 1 / this, beyond which a table is in a file
SHARE = 10  # times its own seconds are the most that an input takes of what others leave
SEEDS = 12  # open leaves whose minimisers a descent starts from
ROOTS = 0.1  # of the time of bounding leaves is what boxes at new radii may take
SOON = 0.02  # of an input's seconds have gone to leaves when ends of its boxes get trees
SMALLEST = 7  # nodes of such a tree at first
# Times the seconds that they last took, and that leaves had had, are for leaves before they grow.
DEARER, LATER = 2.0, 3.0


@dataclass
class TreeProblem:
    """A clause of one input: it holds where one of its literals is proved."""

    sample: int
    literals: list[int]
    root: int  # node
    open: NodeStack = field(default_factory=NodeStack)  # leaves yet to be bounded at this radius
    closed: NodeStack = field(default_factory=NodeStack)  # leaves that are proved

    def reopen(self) -> None:
        """Leave all leaves to another radius; those that are open now come first there."""
        last = self.open.take()
        self.open.push(self.closed.take())
        self.open.push(last)

    def close(self) -> None:
        """Count all leaves as proved."""
        self.closed.push(self.open.take())


@dataclass
class ReluInput(Stage):
    """An input with its trees."""

    problems: dict[int, TreeProblem] = field(default_factory=dict)  # by clause
    root: Proof | None = None  # of the boxes at this radius
    at_root: Tensor | None = None  # (clauses,) which the root's own rows prove
    descents: Descents = field(default_factory=Descents)
    ends: EndTrees | None = None  # of inner boxes
    most: int = 0  # nodes of each of these trees
    raising: float = 0.0  # CPU seconds that they last took
    before: float = 0.0  # and those of leaves until then

    def grow(self, memory: int) -> bool:
        """Let the trees of ends become larger where they take no more than this memory; returns
        whether."""
        most = 2 * self.most + 1 if self.most else SMALLEST
        if self.ends is None or not self.ends.fit(most, memory):
            return False
        self.most = most
        return True

    def leaves(self) -> int:
        """The number of leaves of all trees."""
        return sum(len(p.closed) + len(p.open) for p in self.problems.values())


class ReluSearch:
    """The search over all inputs of a batch."""

    def __init__(
        self,
        plan: Plan,
        passes: Passes,
        region: Region,
        property: Property,
        ends: Ends,
        inner: Method,
        limits: Limits,
        work: Work,
        ascent: LeafAscent,
        batch: int = 512,
    ) -> None:
        self.plan, self.passes, self.region, self.property = plan, passes, region, property
        self.inner, self.limits, self.work, self.ascent = inner, limits, work, ascent
        self.count, self.literals = property.shape
        self.places = passes.places(region)
        self.state = inner.start(self.count) if ends.known is None else ends.known.state
        coef = property.pick(slice(None))
        self.head, const = passes.head(coef)
        self.const = const + property.const.flatten()
        self.nodes = Nodes(passes.slots, region.centre, work.memory // SPILL)
        zeros = region.centre.new_zeros(passes.slots, self.count)
        self.bases = Bases.of(zeros, zeros.clone())
        self.problems: list[TreeProblem] = []
        self.clause = property.clause.tolist()
        self.inputs = [
            ReluInput(n, float(ends.proved[n]), float(ends.broken[n]), float(ends.limit[n]))
            for n in range(self.count)
        ]
        self.ascents = SharedAscent(Context(passes, self.places, ascent), work.pool)
        self.learnt = PseudoCosts(passes.slots, self.count) if ascent.score == "learnt" else None
        self.batch = batch * work.pool.count
        self.total, self.spent = 0, 0.0  # leaves bounded, and seconds that took
        self.idle, self.pause = 0.0, 0.0  # seconds since boxes were last made, and to wait for next
        self.replayed = ends.replayed
        self.turn = 0
        self.pieces = None
        size = plan.graph.nodes[0].size * plan.slots(plan.graph.output)[1]
        if region.p in (1, 2, inf) and region.split is None and size <= MANY:
            self.pieces = Pieces(plan)
        self.known = ends.known
        self.deadline = inf  # of all work and its replay, in seconds of CPU time of this process
        if limits.single:
            for own in self.inputs:
                own.done = own.high <= own.limit

    # -- the loop -----------------------------------------------------------------

    def run(self, points: Tensor) -> Iterator[Update]:
        """Close brackets until time is up, from counterexamples `points` (N, *shape)."""
        self.deadline = time.process_time() + self.limits.seconds * self.count
        yield from self.begin(points)
        yield from self.advance()
        yield from self.unfinished()

    def begin(self, points: Tensor) -> Iterator[Update]:
        """Set the first radii."""
        if self.pieces is not None and not self.limits.single:
            for own in self.inputs:
                if isfinite(own.high) and self._left(inf) > 0:
                    yield from self._polished(own, points[own.number])
        for own in self.inputs:
            self._next(own)

    def advance(self, until: float = inf) -> Iterator[Update]:
        """Bound and cut leaves until then, in seconds of CPU time of this process."""
        try:
            while time.process_time() + self.replay_seconds() + self._ahead() < self.deadline:
                if time.process_time() > until or self.work.clock.expired():
                    break
                active = self._active()
                if not active:
                    break
                waiting = [own for own in active if own.waiting]
                if len(waiting) == len(active) or (waiting and self.idle >= self.pause):
                    before = time.process_time()
                    yield from self._roots(waiting[:64])
                    took = time.process_time() - before - self.raised_in
                    self.pause = took / ROOTS
                    self.idle = 0.0
                    continue
                chosen = self._choose([own for own in active if not own.waiting])
                before = time.process_time()
                yield from self._step(chosen)
                took = time.process_time() - before
                self.spent, self.idle = self.spent + took, self.idle + took
                if self.nodes.rows > self.most_leaves:
                    yield from self._make_room()
        except OutOfTime:
            pass
        except NoRoom as full:
            yield from self._stop(f"branching ended early: {full}")

    def _ahead(self) -> float:
        """The seconds that bounding the next leaves should take."""
        waiting = sum(len(p.open) for own in self.inputs for p in own.problems.values())
        return min(self.batch, waiting) * self.spent / max(1, self.total)

    def _active(self) -> list[ReluInput]:
        """The inputs that leaves are bounded for. Where all others are done, one that rests may
        take their time."""
        for own in self.inputs:
            if self.seconds(own) > SHARE * self.limits.seconds:
                own.rests, own.spent = True, True
        active = [own for own in self.inputs if not own.done and not own.rests]
        resting = [own for own in self.inputs if not own.done and own.rests and not own.spent]
        if not active and resting:
            least = min(resting, key=ReluInput.leaves)
            least.rests = False
            least.advance(self.limits, self._leaves_left(1))
            if not least.rests and least.done:
                return self._active()
            active = [] if least.rests else [least]
        return active

    def seconds(self, own: ReluInput) -> float:
        """The seconds that bounding an input's leaves has taken."""
        return own.visits * self.spent / max(1, self.total)

    def _leaves_left(self, inputs: int) -> float:
        """The number of leaves that there is time for, if so many inputs share it."""
        if not self.total:
            return inf
        seconds = min(self.deadline - time.process_time(), self.work.clock.left())
        seconds = min(seconds - self.replay_seconds(), SHARE * self.limits.seconds * inputs)
        return max(0.0, seconds) * self.total / max(self.spent, 1e-9) / max(1, inputs)

    @property
    def most_leaves(self) -> int:
        """The number of leaves for which there is memory, replay of the trees included."""
        each = LEAF_BYTES + CLAUSE_BYTES * self.property.clauses
        proved = sum(own.seen[-1][1] for own in self.inputs if own.seen)
        return max(1024, self.work.memory // each - proved // 2)

    def _make_room(self) -> Iterator[Update]:
        """Let go of the leaves of inputs that are done, and then of the largest trees, whose inputs
        keep what is proved."""
        ours = [own for own in self.inputs if own.problems]
        kept = [own for own in ours if not own.done]
        while kept and sum(own.leaves() for own in kept) > self.most_leaves * 3 // 4:
            own = max(kept, key=lambda own: own.leaves())
            kept.remove(own)
            own.done = True
            yield Update(own.number, own.low, complete=False, remark="branching ran out of memory")
        for own in ours:
            if own not in kept:
                own.problems = {}
        roots = [problem.root for own in kept for problem in own.problems.values()]
        new = self.nodes.keep(roots)
        for own in kept:
            for problem in own.problems.values():
                problem.root = int(new[problem.root])
                problem.open.renumber(new)
                problem.closed.renumber(new)

    def _stop(self, why: str) -> Iterator[Update]:
        """End the search of all inputs, which keep what is proved."""
        for own in self.inputs:
            if not own.done:
                # Leaves that were being cut are in no list of their problem.
                own.done, own.problems = True, {}
                yield Update(own.number, own.low, complete=False, remark=why)

    def unfinished(self) -> Iterator[Update]:
        """Say of which inputs more might be found."""
        for own in self.inputs:
            if not own.done:
                yield Update(
                    own.number, own.low, complete=False, remark="branching ran out of time"
                )

    def replay_seconds(self) -> float:
        """The seconds that replaying the trees of what is proved should take; where one radius is
        asked about, the trees as they are."""
        if not self.replayed or not self.total:
            return 0.0
        leaves = sum(own.seen[-1][1] for own in self.inputs if own.seen)
        if self.limits.single:
            leaves = sum(own.leaves() for own in self.inputs)
        return leaves * self.passes.replay * self.spent / self.total

    def _left(self, most: float) -> float:
        """The seconds that a linear program may take: `most`, or what is left of the time."""
        return min(most, self.work.clock.left(), self.deadline - time.process_time())

    def _choose(self, active: list[ReluInput]) -> Tensor:
        """Leaves of all inputs, an equal number of each as far as they go; deepest first."""
        chosen: list[Numbers] = []
        left, self.turn = self.batch, self.turn + 1
        order = active[self.turn % len(active) :] + active[: self.turn % len(active)]
        order.sort(key=lambda own: sum(len(p.open) for p in own.problems.values()))
        for k, own in enumerate(order):
            share = max(1, left // (len(order) - k))
            for problem in own.problems.values():
                taken = problem.open.pop(share)
                if len(taken):
                    chosen.append(taken)
                    share -= len(taken)
                    left -= len(taken)
            if left <= 0:
                break
        return torch.from_numpy(np.concatenate(chosen).astype(np.int64))

    def _roots(self, waiting: list[ReluInput]) -> Iterator[Update]:
        """Boxes at the radii of these inputs, and leaves to bound there."""
        waiting = self._in_time(waiting)
        if not waiting:
            return
        index = torch.tensor([own.number for own in waiting])
        radius = torch.tensor([own.radius for own in waiting], dtype=self.region.radius.dtype)
        ball, wanted = self.region.rows(index).with_radius(radius), self.property.rows(index)
        if self.known is None:
            found = self.inner.bound(self.plan, ball, wanted, self.state.at(index), None, self.work)
        else:
            found, self.known = self.known.bounds, None
        lower, upper = flat(self.plan, found)
        self.raised_in = 0.0
        for k, own in enumerate(waiting):
            if own.ends is not None and own.most:
                before = time.process_time()
                ends = own.ends.raised(lower[:, k], upper[:, k], own.radius, own.most)
                lower[:, k], upper[:, k] = ends
                own.raising = time.process_time() - before
                self.raised_in += own.raising
        kept = self.passes.kept
        if kept is not None:
            self.active = lower >= 0
            lower, upper = lower[kept], upper[kept]
        self.bases.put(index, Bases.of(lower, upper))
        start = self._start(found, index)
        margins = wanted.margins(found.literals)
        for k, own in enumerate(waiting):
            own.waiting = False
            own.root = found.proof.take(torch.tensor([k]))
            holds = (margins[k] > 0).tolist()
            if own.fresh:  # leaves of a radius that failed are too many for a smaller one
                own.problems, own.fresh = {}, False
            for c, good in enumerate(holds):
                problem = own.problems.get(c)
                if problem is None:
                    if good:
                        continue
                    mine = [t for t, other in enumerate(self.clause) if other == c]
                    best = max(mine, key=lambda t: float(found.literals[k, t]))
                    problem = TreeProblem(own.number, mine, -1)
                    self.problems.append(problem)
                    theta = start[k * self.literals + best]
                    problem.root = self.nodes.plant(len(self.problems) - 1, theta)
                    own.problems[c] = problem
                    problem.open.push(np.array([problem.root], np.int32))
                elif good:
                    # The root's own row proves all of it here: its leaves stay as they are.
                    problem.close()
                else:
                    problem.reopen()
            own.at_root = margins[k] > 0
            own.begun, own.rest = sum(len(p.open) for p in own.problems.values()), 1.0
            for problem in own.problems.values():
                self.nodes.set_depth(problem.open.numbers, 0)
                self.nodes.forget(problem.open.numbers)
            yield from self._settle(own)

    def _in_time(self, waiting: list[ReluInput]) -> list[ReluInput]:
        """Those of some inputs for whose trees of ends there is time left; the others rest."""
        left, found = self.deadline - time.process_time() - self.replay_seconds(), []
        for own in waiting:
            left -= own.raising
            if own.raising and left < 0:
                own.rests, own.spent = True, True
            else:
                found.append(own)
        return found

    def _start(self, found: Bounds, index: Tensor) -> Tensor:
        """(N * literals, slots) slopes below from which leaves start."""
        slopes = [
            found.layers.relaxed[i].lines.slopes.lower.flatten(1) for i in self.plan.nonlinear
        ]
        rule = torch.cat(slopes, 1).repeat_interleave(self.literals, 0)
        state = self.state
        if isinstance(state, FrownState):
            table = state.tables.alpha.get((self.plan.graph.output, 0))
            if table is not None:
                rows = index[:, None] * self.literals + torch.arange(self.literals)
                own = table[rows.flatten()][:, 0]
                rule = torch.where(torch.isnan(own), rule, own)
        kept = self.passes.kept
        return (rule if kept is None else rule[:, kept]).clamp(0, 1)

    def _step(self, ids: Tensor) -> Iterator[Update]:
        """Bound leaves; those that are not proved are cut."""
        self.total += len(ids)
        nodes = self.nodes
        problem = nodes.problem(ids).numpy()
        which = problem.tolist()
        sample = torch.tensor([self.problems[p].sample for p in which])
        many = [self.problems[p].literals for p in which]
        column = torch.arange(len(ids))
        if all(len(m) == 1 for m in many):
            literal = torch.tensor([m[0] for m in many])
        else:
            column = column.repeat_interleave(torch.tensor([len(m) for m in many]))
            literal = torch.tensor([t for m in many for t in m])
            sample = sample[column]
        own_leaf = ids[column]
        radii = torch.tensor([own.radius for own in self.inputs], dtype=self.region.radius.dtype)
        radius = radii[sample]
        key = sample * self.literals + literal
        weight = None if self.learnt is None else self.learnt.weight()
        found = self.ascents.risen(
            Asked(
                self.bases,
                sample,
                sample,
                radius,
                nodes.cut(own_leaf),
                nodes.theta(own_leaf),
                self.head.index_select(1, key),
                self.const[key],
                weight,
            )
        )
        broken = self._nearest(found, sample)
        best = torch.arange(len(ids))
        if len(column) > len(ids):
            best = _best(found.bound, column, len(ids))
        worth = found.worth[best]
        if self.learnt is not None:
            cut, unit = nodes.last(ids)
            self.learnt.tell(sample[best], cut, found.bound[best] - nodes.bound(ids), unit)
        nodes.tell(ids, found.theta[best], found.bound[best], literal[best])
        proved = found.bound[best] > 0
        cuts = (~proved & (worth > 0)).nonzero().flatten()
        stuck = (~proved & ~(worth > 0)).nonzero().flatten()
        part = torch.pow(0.5, nodes.depth(ids).double()).numpy()
        good, numbers = proved.numpy(), ids.numpy().astype(np.int32)
        children = np.empty((0, 2), np.int32)
        if len(cuts):
            slot, unit = found.slot[best][cuts], worth[cuts]
            if weight is not None:
                unit = unit / weight[slot, sample[best][cuts]]
            pair = nodes.split(ids[cuts], slot, unit)
            children = torch.stack(pair, 1).numpy().astype(np.int32)
        parents = problem[cuts.numpy()]
        touched = set()
        for p in np.unique(problem).tolist():
            mine, own = problem == p, self.inputs[self.problems[p].sample]
            touched.add(own.number)
            leaves_here = int(mine.sum())
            own.bounded, own.visits = own.bounded + leaves_here, own.visits + leaves_here
            own.rest -= float(part[mine & good].sum()) / max(1, own.begun)
            self.problems[p].closed.push(numbers[mine & good])
            self.problems[p].open.push(children[parents == p].flatten())
        for k in stuck.tolist():
            yield from self._program(int(ids[k]), which[k], int(literal[best][k]))
        for n, point in broken.items():
            yield from self._polished(self.inputs[n], point)
        for n in touched:
            yield from self._settle(self.inputs[n])
            self._reconsider(self.inputs[n])
            if self.limits.single and not self.inputs[n].done:
                yield from self._descend(self.inputs[n])

    def _nearest(self, found: Risen, sample: Tensor) -> dict[int, Tensor]:
        """The nearest of the counterexamples that leaves have met, for each input."""
        nearest_: dict[int, tuple[float, Tensor]] = {}
        for k, point in found.broken:
            n = int(sample[k])
            far = self._distance(n, point)
            closest = min(self.inputs[n].high, nearest_[n][0] if n in nearest_ else inf)
            if far < closest and self._violates(n, point):
                nearest_[n] = far, point
        return {n: point for n, (_, point) in nearest_.items()}

    @cached_property
    def network(self) -> General:
        """The network as points pass it."""
        return General(self.plan)

    def _descend(self, own: ReluInput) -> Iterator[Update]:
        """Look for a counterexample of an input whose leaves have taken some time."""
        clauses = [c for c, p in own.problems.items() if len(p.open) and len(p.literals) == 1]
        if not clauses or not own.descents.due(self.seconds(own)):
            return
        clause, n = own.descents.next(clauses), own.number
        problem = own.problems[clause]
        ids = problem.open.numbers[-SEEDS:]
        sample = torch.full((len(ids),), n)
        key = sample * self.literals + problem.literals[0]
        leaves = self._leaves(own, ids, key)
        leaves.bound()
        assert leaves.end is not None
        starts = leaves.where.point(leaves.end, torch.arange(len(ids)))
        ball = self.region.rows(sample[:1])
        ball = ball.with_radius(torch.full_like(ball.radius, own.radius))
        head, const = self.network.head(self.property.pick(key[:1]))
        const = const[0] + self.property.const.flatten()[key[0]]
        until = self.deadline - self.replay_seconds()
        point = own.descents.round(self.network, clause, ball, head[:, 0], const, starts, until)
        if point is not None and self._violates(n, point):
            yield from self._polished(own, point)
            yield from self._settle(own)

    def _leaves(self, own: ReluInput, ids: Tensor, key: Tensor) -> Leaves:
        """Leaves of one input at its radius, with rows `key` of all inputs' literals."""
        sample = torch.full((len(ids),), own.number)
        radius = torch.full((len(ids),), own.radius, dtype=self.region.radius.dtype)
        return Leaves(
            self.passes,
            self.bases,
            sample,
            self.nodes.cut(ids),
            self.nodes.theta(ids),
            self.head[:, key],
            self.const[key],
            self.places.of(sample, radius),
        )

    def _violates(self, n: int, point: Tensor) -> bool:
        """True if a point at which some literal fails violates the property: all literals of one
        clause must fail."""
        if len(self.clause) == self.property.clauses:
            return True
        wanted = self.property.rows(slice(n, n + 1))
        values = self.plan.graph.apply(point[None]).flatten(1)
        return bool((wanted.margins(wanted.literals(values)) <= 0).any())

    def _settle(self, own: ReluInput) -> Iterator[Update]:
        """Conclude what an input's leaves amount to by now."""
        if own.done or own.waiting:
            return
        if own.high <= own.radius:
            if self.limits.single:
                own.done = True
            else:
                yield from self._go_on(own)
            return
        if own.undecided == own.radius:
            if self.limits.single:
                own.done = True
                yield Update(own.number, own.low, remark="rounding leaves a piece undecided")
            elif own.step_over(self.limits.gap):
                self._keep_leaves(own)
            else:
                yield from self._go_on(own)
            return
        if any(len(p.open) for p in own.problems.values()):
            return
        own.low = max(own.low, own.radius)
        own.stepped = 0
        if own.low >= own.failed:
            own.failed = inf
        own.seen.append((own.radius, max(1, own.leaves())))
        yield Update(own.number, own.radius, self._proof(own))
        if self.limits.single:
            own.done = True
        else:
            yield from self._go_on(own)

    # -- radii --------------------------------------------------------------------

    def _reconsider(self, own: ReluInput) -> None:
        """Give a radius up that will not be proved in this input's share of the time.

        The leaves with which a radius began are supposed to be equal parts of the work, and so are
        the two sides of a cut.
        """
        if own.waiting or own.done or self.limits.single or not self.total:
            return
        if own.retreat(self._leaves_left(self._sharing())):
            self._keep_leaves(own)
            self._grow(own)

    def _sharing(self) -> int:
        """The number of inputs that share the time."""
        return sum(not own.done and not own.rests for own in self.inputs)

    def _keep_leaves(self, own: ReluInput) -> None:
        """Leave all leaves of an input to the next radius."""
        for problem in own.problems.values():
            problem.close()

    def _next(self, own: ReluInput) -> None:
        """Set the radius to try next, if there is one; all leaves are then to be bounded there."""
        self._keep_leaves(own)
        self._grow(own)
        own.advance(self.limits, self._leaves_left(self._sharing()))

    def _grow(self, own: ReluInput) -> None:
        """Give the ends of an input's inner boxes trees, or larger ones, where leaves take long;
        its next radius begins with new trees over them."""
        seconds = self.seconds(own)
        if not isinstance(self.passes, Dense) or self.passes.depth < 2 or self.limits.single:
            return
        if own.ends is None:
            if seconds < SOON * self.limits.seconds:
                return
            one = self.region.rows(slice(own.number, own.number + 1))
            own.ends = EndTrees(self.passes, one)
        elif seconds < own.before + max(DEARER * own.raising, LATER * own.before):
            return
        if not own.grow(self.work.memory // (SPILL * self.count)):
            return
        own.before = seconds
        own.tightened(self.passes.depth - 1)

    def _go_on(self, own: ReluInput) -> Iterator[Update]:
        """Set the radius to try next; say so where a piece that no program could decide ends it."""
        self._next(own)
        if own.done and own.failed < min(own.high, own.limit):
            why = f"rounding leaves a piece undecided at radius {own.failed:.6g}"
            yield Update(own.number, own.low, complete=False, remark=why)

    # -- both ends ----------------------------------------------------------------

    def _distance(self, n: int, point: Tensor) -> float:
        """The distance of a point of an input's region from its centre."""
        one, own = self.region.rows(slice(n, n + 1)), self.inputs[n]
        far = float(one.distance(point[None]))
        # Corners of the ball that is asked about lie on its surface, whatever rounding makes of it.
        return own.radius if own.radius < far <= own.radius * (1 + ON_SURFACE) else far

    def _polished(self, own: ReluInput, point: Tensor) -> Iterator[Update]:
        """A counterexample drawn nearer: along its linear piece, again and again."""
        n = own.number
        far = self._distance(n, point)
        if far < own.high:
            own.high = far
            yield Update(n, own.low, point=point)
        if self.pieces is None or self.limits.single:
            return
        ball = PieceBall.of(self.region.rows(slice(n, n + 1)))
        x = point.double().flatten().numpy()
        moved = False
        coef = self.property.rows(slice(n, n + 1)).pick(slice(None)).double().numpy()
        const = self.property.const[n].double().numpy()
        centre = coef @ self.pieces.outputs(ball.centre) + const
        if prod(ball.centre.shape) > WIDE or not self.pieces.fit(self.work.memory):
            return
        every = np.ones(self.pieces.slots, bool)
        for _ in range(12):
            if (seconds := self._left(2.0)) <= 0:
                break
            values = coef @ self.pieces.outputs(x) + const
            t = int(np.argmin(values / np.maximum(np.abs(centre), 1e-9)))
            if len(self.clause) != self.property.clauses:
                return  # a clause of several literals: no single row says what violates it
            piece = self.pieces.at(self.pieces.sides(x), every, coef[t], float(const[t]))
            found = nearest(piece, ball, own.high, float(abs(centre[t])), seconds)
            if found is None:
                break
            y = tensor(found, point)
            if (coef[t] @ self.pieces.outputs(found) + const[t]) > 0:
                break
            closer = self._distance(n, y)
            if closer >= own.high * (1 - 1e-5):
                break
            own.high, x, point, moved = closer, found, y, True
        if moved:
            yield Update(n, own.low, point=point)

    def _program(self, node: int, number: int, literal: int) -> Iterator[Update]:
        """Decide a leaf with nothing left to cut."""
        problem = self.problems[number]
        own = self.inputs[problem.sample]
        n, one = own.number, torch.tensor([node])
        if (
            self.pieces is None
            or len(problem.literals) > 1
            or not self.pieces.fit(self.work.memory)
        ):
            yield from self._insist(node, number, literal)
            return
        cut = self.nodes.cut(one)[0].double().numpy()
        still = self.bases.still[:, n].double().numpy()
        side = np.where(cut != 0, cut, np.where(still > 0, 1.0, -1.0))
        held, kept = cut != 0, self.passes.kept
        if kept is not None:
            others = np.where(self.active[:, n].numpy(), 1.0, -1.0)
            none = np.zeros(len(others), bool)
            others[kept.numpy()], none[kept.numpy()] = side, held
            side, held = others, none
        key = n * self.literals + literal
        coef = self.property.pick(torch.tensor([key]))[0].double().numpy()
        const = float(self.property.const[n, literal])
        piece = self.pieces.at(side, held, coef, const)
        ball = PieceBall.of(self.region.rows(slice(n, n + 1)))
        found = decide(piece, ball, own.radius, self._left(5.0))
        price = None
        if found is None:
            price = empty(piece, ball, own.radius, self._left(5.0))
        elif found.value > 0:
            price = found.price
        if price is not None:
            price = price if kept is None else price[kept.numpy()]
            self.nodes.set_theta(one, torch.from_numpy(price)[None].to(self.nodes.dtype))
        elif found is not None:
            value = coef @ self.pieces.outputs(found.point) + const
            if value <= 0:
                point = tensor(found.point, self.region.centre[n])
                yield from self._polished(own, point)
                if own.high <= own.radius:
                    problem.open.push(np.array([node], np.int32))
                    return
        # The solver's word is no proof: the row must hold along the prices that it gave.
        yield from self._insist(node, number, literal)

    def _insist(self, node: int, number: int, literal: int) -> Iterator[Update]:
        """Bound a leaf with nothing left to cut, with many more steps where that is not enough."""
        problem = self.problems[number]
        own = self.inputs[problem.sample]
        one = torch.tensor([node])
        sample = torch.tensor([own.number])
        key = sample * self.literals + literal
        found = ascend(self._leaves(own, one, key), LeafAscent(steps=150, decay=0.98, hope=inf))
        self.nodes.tell(one, found.theta, found.bound, torch.tensor([literal]))
        if bool(found.bound[0] > 0):
            own.rest -= 0.5 ** int(self.nodes.depth(one)) / max(1, own.begun)
            problem.closed.push(np.array([node], np.int32))
            return
        for n, point in self._nearest(found, sample).items():
            yield from self._polished(self.inputs[n], point)
        if own.high > own.radius:
            own.failed, own.undecided = min(own.failed, own.radius), own.radius
        problem.open.push(np.array([node], np.int32))

    def margins(self, sample: int) -> dict[int, float]:
        """Lower bounds at the present radius of the literals that alone prove all leaves of a
        clause."""
        found = {}
        for problem in self.inputs[sample].problems.values():
            if not len(problem.open) and len(problem.closed):
                index = problem.closed.numbers
                literal = self.nodes.literal(index)
                if bool((literal == literal[0]).all()):
                    found[int(literal[0])] = float(self.nodes.bound(index).amin())
        return found

    # -- proofs -------------------------------------------------------------------

    def _proof(self, own: ReluInput) -> Proof:
        """The trees of an input whose leaves are all proved, one for each clause."""
        assert own.root is not None and own.at_root is not None
        used = [p for c, p in own.problems.items() if not bool(own.at_root[c])]
        lemmas = own.ends.lemmas() if own.ends is not None and own.most and used else ()
        return Branched(own.root, (tuple(self._tree(problem, lemmas) for problem in used),))

    def _tree(self, problem: TreeProblem, lemmas: tuple[Lemma, ...]) -> Tree:
        """The tree below a problem's root."""
        nodes, kept = self.nodes, self.passes.kept
        index = nodes.preorder(problem.root)
        slot = nodes.slot(index)
        inner = slot >= 0
        places, _ = self.plan.slots(self.plan.graph.output)
        if kept is not None:
            slot = torch.where(inner, kept[slot], slot)
        starts = torch.tensor([part.start for part in places.values()])
        site = torch.where(
            inner, torch.searchsorted(starts, slot.clamp(min=0), right=True) - 1, LEAF
        )
        neuron = torch.where(inner, slot - starts[site.clamp(min=0)], 0)
        ends = (~inner).nonzero().flatten()
        free = self.bases.open[:, problem.sample].bool()[None]
        codes = room((len(ends), nodes.slots), torch.uint8, self.work.memory // SPILL)
        lifts = []
        for k in range(0, len(ends), MOVED):
            leaves = index[ends[k : k + MOVED]]
            cut, theta = nodes.cut(leaves), nodes.theta(leaves)
            # Places of the grid, which are exact.
            code = (theta.clamp(0, 1) * (CODES - 1)).round() + 1
            codes[k : k + len(leaves)] = torch.where(free & (cut == 0), code, NONE)
            own = Multipliers.of(-cut.to(theta) * theta)
            lifts.append(replace(own, row=own.row + k))
        every = Multipliers.cat(lifts)
        if kept is not None:
            every = replace(every, slot=kept[every.slot])
        literal = nodes.literal(index[ends])
        rows = Literals(ends, literal, codes, every, CODES, slots=kept)
        point = torch.zeros(len(index), dtype=torch.float64)
        return Tree(site, neuron, point, rows, lemmas=lemmas)


def flat(plan: Plan, found: Bounds) -> tuple[Tensor, Tensor]:
    """(slots, N) the ends of all neurons' boxes."""
    boxes = [plan.carry(i, found.layers.values[plan.sources[i]]) for i in plan.nonlinear]
    lower = torch.cat([box.lower.flatten(1) for box in boxes], 1).T
    return lower, torch.cat([box.upper.flatten(1) for box in boxes], 1).T


def _best(bound: Tensor, column: Tensor, count: int) -> Tensor:
    """(count,) the column with the greatest bound of each leaf."""
    order = torch.argsort(bound, stable=True)
    found = torch.zeros(count, dtype=torch.long)
    found[column[order]] = order  # the last one written is the greatest
    return found
