"""Branch and bound at one radius on larger ReLU networks: every input has a search of its own.

Over one input's boxes the network is rewritten with its unstable neurons alone, which no other
input shares. Inputs take turns that become longer and longer, so that those which are closed
cheaply are closed first, and the time that they leave goes to the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from frown.bounds.method import Ends, Known, Method, Update
from frown.bounds.plan import Plan
from frown.bounds.work import OutOfTime, Work
from frown.methods.branch.ascent import LeafAscent
from frown.methods.branch.ends import EndTrees
from frown.methods.branch.passes import Dense, Passes
from frown.methods.branch.radii import Limits
from frown.methods.branch.relu import LEAF_BYTES, SMALLEST, SPILL, ReluInput, ReluSearch, flat
from frown.methods.branch.unstable import unstable
from frown.problem.property import Property
from frown.problem.region import Region

TURN = 0.5  # CPU seconds of the first turn; each is twice as long as the one before
BATCH = 256  # leaves at once
NEARLY = 0.5  # of the work is left at the most where an input's leaves go on over the same boxes
MATRICES = 8  # the part of the memory, 1 / this, that an input's matrices may take


@dataclass
class ApartSearch:
    """The searches of all inputs of a batch, one radius each."""

    plan: Plan
    passes: Passes  # where an input's own are not cheaper
    region: Region
    property: Property
    ends: Ends
    inner: Method
    limits: Limits
    work: Work
    ascent: LeafAscent

    def __post_init__(self) -> None:
        count = self.property.shape[0]
        self.inputs = [
            ReluInput(n, float(self.ends.proved[n]), float(self.ends.broken[n]), float(limit))
            for n, limit in enumerate(self.ends.limit)
        ]
        self.bounds: list[dict[int, float]] = [{} for _ in range(count)]
        self.total, self.kept = 0, 0  # leaves bounded, and those of proofs
        self.over: dict[int, Known] = {}  # what the inner method found of inputs
        for own in self.inputs:
            own.done = own.high <= own.limit

    def run(self, points: Tensor) -> Iterator[Update]:
        """Decide inputs until time is up."""
        deadline = time.process_time() + self.limits.seconds * len(self.inputs)
        searches: dict[int, ReluSearch] = {}
        turn, left = TURN, [own.number for own in self.inputs if not own.done]
        try:
            while left and time.process_time() < deadline and not self.work.clock.expired():
                for n in left:
                    if n not in searches:
                        searches[n] = self._search(n)
                        yield from self._news(n, searches[n].begin(points[n : n + 1]))
                    own, before = searches[n], searches[n].total
                    boxed = not own.inputs[0].waiting
                    others = self.kept + sum(s.nodes.rows for k, s in searches.items() if k != n)
                    memory = max(0, self.work.memory - others * LEAF_BYTES)
                    own.work = replace(self.work, memory=memory)
                    own.deadline = deadline
                    yield from self._news(n, own.advance(time.process_time() + turn))
                    self.total += own.total - before
                    if boxed and own.total == before:  # no time for more, its replay counted
                        own.inputs[0].spent = True
                    if self._tighter(n, own):
                        searches[n] = self._search(n, own.inputs[0])
                        yield from self._news(n, searches[n].begin(points[n : n + 1]))
                    if own.inputs[0].done:
                        if own.inputs[0].low >= own.inputs[0].limit:
                            deadline -= own.replay_seconds()
                        self._finish(n, searches.pop(n))
                turn *= 2
                left = [n for n in left if n in searches and not searches[n].inputs[0].spent]
        except OutOfTime:
            pass
        for mine in self.inputs:
            if not mine.done:
                yield Update(
                    mine.number, mine.low, complete=False, remark="branching ran out of time"
                )

    def _tighter(self, n: int, search: ReluSearch) -> bool:
        """Give the ends of an input's inner boxes trees, or larger ones, where its leaves are far
        from done; returns whether."""
        own = search.inputs[0]
        if own.done or own.spent or own.rest < NEARLY:
            return False
        if not isinstance(self.passes, Dense) or self.passes.depth < 2:
            return False
        if own.ends is None:
            own.ends = EndTrees(self.passes, self.region.rows(slice(n, n + 1)))
        return own.grow(self.work.memory // (SPILL * len(self.inputs)))

    def _search(self, n: int, earlier: ReluInput | None = None) -> ReluSearch:
        """The search of one input, over the inner method's boxes; their ends raised by the trees
        that it had `earlier`."""
        one = slice(n, n + 1)
        region, wanted = self.region.rows(one), self.property.rows(one)
        region = region.with_radius(self.ends.limit[one].to(region.radius))
        known = self.over.get(n, self.ends.known if len(self.inputs) == 1 else None)
        if known is None:
            state = self.inner.start(1)
            found = self.inner.bound(self.plan, region, wanted, state, None, self.work)
            known = Known(found, state)
        elif earlier is not None and earlier.most == SMALLEST:
            # FROWN's first bounds may rest on CROWN's boxes, which a replay does not have.
            again = self.inner.bound(self.plan, region, wanted, known.state, None, self.work)
            known = Known(again, known.state)
        self.over[n] = known
        lower, upper = (end[:, 0] for end in flat(self.plan, known.bounds))
        if earlier is not None and earlier.ends is not None and earlier.most:
            lower, upper = earlier.ends.raised(lower, upper, earlier.radius, earlier.most)
        room = self.work.memory // MATRICES
        own = unstable(self.plan, lower, upper, room) or self.passes
        every = self.ends
        ends = replace(
            every,
            proved=every.proved[one],
            limit=every.limit[one],
            broken=every.broken[one],
            point=every.point[one],
            known=known,
        )
        search = ReluSearch(
            self.plan,
            own,
            region,
            wanted,
            ends,
            self.inner,
            self.limits,
            replace(self.work, memory=self.work.memory // len(self.inputs)),  # of its tables
            self.ascent,
            BATCH,
        )
        if earlier is not None:
            mine = search.inputs[0]
            mine.ends, mine.most, mine.descents = earlier.ends, earlier.most, earlier.descents
        return search

    def _news(self, n: int, updates: Iterator[Update]) -> Iterator[Update]:
        for update in updates:
            yield replace(update, sample=n)

    def _finish(self, n: int, search: ReluSearch) -> None:
        """Keep what is known of an input, and let go of its leaves."""
        mine, found = self.inputs[n], search.inputs[0]
        mine.low, mine.high, mine.done = found.low, found.high, True
        self.over.pop(n, None)
        self.bounds[n] = search.margins(0)
        self.kept += found.seen[-1][1] // 2 if found.seen else 0

    def margins(self, sample: int) -> dict[int, float]:
        """Lower bounds of the literals that alone prove all leaves of a clause."""
        return self.bounds[sample]
