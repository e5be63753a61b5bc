"""Branch and bound: where no lines suffice, neurons' intervals are cut in two.

On the side of a cut lines are tighter, and the cut itself enters rows with a multiplier. What is
proved of all leaves of a tree of cuts is proved of the region. Where few features of the input vary
and one radius is asked about, features are cut as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from frown.bounds.method import Bounds, Closing, Ends, Known, Method, Update
from frown.bounds.plan import Plan
from frown.bounds.proof import State
from frown.bounds.walk import Given
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.methods.branch.apart import ApartSearch
from frown.methods.branch.ascent import SCORES, LeafAscent
from frown.methods.branch.inputs import InputSearch, fits
from frown.methods.branch.passes import passes
from frown.methods.branch.radii import Limits
from frown.methods.branch.relu import ReluSearch
from frown.methods.branch.samples import SampleSearch
from frown.methods.frown.network import Frown
from frown.methods.lp.solvers import require
from frown.problem.options import Option, check_options
from frown.problem.property import Property
from frown.problem.region import Region

TURN = 0.5  # CPU seconds: the first turn of either kind of cuts
REPLAY = 2.0  # times as long as cutting inputs is what the proof of their leaves takes
HOPELESS = 10.0  # times as long as there is time
LARGE = 300  # neurons of a network from which every input has matrices of its own


@dataclass(frozen=True)
class Branch(Closing):
    """Branch and bound over another method's boxes; brackets close, given time.

    Not for a first look: `inner` alone costs a fraction, and tells what there is to gain. Radii are
    raised in stages, and counterexamples met on the way lower the other end.
    """

    name: ClassVar[str] = "branch"
    inner: Annotated[
        Method, Option("what bounds the network before it is cut", ("crown", "frown"))
    ] = field(default_factory=Frown)
    seconds: Annotated[
        float, Option("CPU seconds of branching and of its replay, for each input", above=0)
    ] = 10.0
    gap: Annotated[float, Option("broken / proved - 1 that is enough", above=0, below=1)] = 0.001
    score: Annotated[
        str, Option("how neurons of ReLU networks are chosen that are cut", SCORES)
    ] = "learnt"
    ascent: LeafAscent = field(default_factory=LeafAscent)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def before(self) -> Method:
        return self.inner

    def refuse(self, plan: Plan, p: float) -> None:
        self.inner.refuse(plan, p)
        if p in (1, 2, inf) and passes(plan) is not None:
            # For pieces with nothing left to cut.
            for name in ("scipy", "clarabel" if p == 2 else "highspy"):
                require(name)

    def close(
        self, plan: Plan, region: Region, property: Property, ends: Ends, work: Work
    ) -> Iterator[Update]:
        if ends.single and plan.nonlinear and fits(region.with_radius(ends.limit)):
            yield from self._turns(plan, region, property, ends, work)
            return
        search = self._search(plan, region, property, ends, work)
        if search is not None:
            yield from search.run(ends.point)

    def _turns(
        self, plan: Plan, region: Region, property: Property, ends: Ends, work: Work
    ) -> Iterator[Update]:
        """Cut inputs and neurons in turn, until it shows which of them comes to an end."""
        inputs = InputSearch(plan, region, property, ends, self.inner, work)
        rest = self.seconds * len(region.radius)
        turn, most = min(TURN, rest / 8), rest / (1 + REPLAY)
        while True:
            before = inputs.seconds
            yield from inputs.run(min(turn, most - before))
            if inputs.forecast - inputs.seconds < turn:  # it may as well go on to its end
                yield from inputs.run(min(turn, most - inputs.seconds))
            rest -= inputs.seconds - before
            left = inputs.left
            if not len(left) or rest <= 0 or work.clock.expired():
                break
            hopeless = inputs.forecast > HOPELESS * most or inputs.stuck or inputs.seconds >= most
            began = time.process_time()
            seconds = rest if hopeless else min(rest, turn)
            neurons = self._neurons(plan, region, property, ends, work, left, seconds, inputs.known)
            for update in neurons:
                n = update.sample
                if update.proof is not None or inputs.broken(n, update.point):
                    inputs.decided(n)
                if update.complete:
                    yield update
            rest -= time.process_time() - began
            left = inputs.left
            if not len(left) or rest <= 0 or work.clock.expired():
                break
            turn *= 3
        for n in left.tolist():
            yield Update(n, 0.0, complete=False, remark="branching ran out of time")

    def _neurons(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        ends: Ends,
        work: Work,
        which: Tensor,
        seconds: float,
        known: Known | None,
    ) -> Iterator[Update]:
        """Cut neurons for some of the samples, for so many CPU seconds; what is `known` of all of
        them serves a single one."""
        part = Ends(
            ends.proved[which],
            ends.limit[which],
            ends.broken[which],
            ends.point[which],
            True,
            known=known if len(region.radius) == 1 else None,
        )
        own = replace(self, seconds=seconds / len(which))
        search = own._search(plan, region.rows(which), property.rows(which), part, work)
        assert search is not None
        for update in search.run(part.point):
            yield replace(update, sample=int(which[update.sample]))

    def bound(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        state: State | None = None,
        given: Given | None = None,
        work: Work = Work(),  # noqa: B008
    ) -> Bounds:
        """Bound literals at the region's own radii: by the inner method, and by branching where
        that proves too little. A clause that different literals prove on different leaves is not
        seen in the result, which has a bound for each literal."""
        if given is not None:
            raise InvalidInput("the method branch takes no boxes that are given")
        base = self.inner.bound(plan, region, property, state, None, work)
        left = (~property.holds(base.literals)).nonzero().flatten()
        if not len(left):
            return base
        part = region.rows(left)
        infinite = torch.full_like(part.radius, inf)
        zero = torch.zeros_like(part.radius)
        ends = Ends(zero, part.radius, infinite, part.centre, True)
        search = self._search(plan, part, property.rows(left), ends, work, property.single)
        if search is None:
            return base
        for _ in search.run(part.centre):
            work.clock.check()
        literals = base.literals.clone()
        for k, n in enumerate(left.tolist()):
            own = search.inputs[k]
            if own.done and own.low >= float(part.radius[k]):
                for t, value in search.margins(k).items():
                    literals[n, t] = max(float(literals[n, t]), value)
        return replace(base, literals=literals)

    def _search(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        ends: Ends,
        work: Work,
        assume: bool = True,
    ) -> ReluSearch | ApartSearch | SampleSearch | None:
        """A search over all samples; None where there is nothing to cut. Literals of their own are
        bounded by contradiction only if they may `assume` that theirs is the one that fails."""
        if not plan.nonlinear:
            return None
        limits = Limits(self.seconds, self.gap, ends.single)
        own = passes(plan)
        if own is None:
            return SampleSearch(
                plan, region, property, ends, self.inner, limits, work, assume=assume
            )
        kind = ApartSearch if ends.single and own.slots >= LARGE else ReluSearch
        ascent = replace(self.ascent, score=self.score)
        return kind(plan, own, region, property, ends, self.inner, limits, work, ascent)
