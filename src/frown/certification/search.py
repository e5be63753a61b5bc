"""Search: from a batch of inputs to proved radii; bracket cheaply, then tighten.

An attack gives the broken end of each bracket, the fixed lines of CROWN a proved end at little
cost, and the method moves the proved end up from there. A method that closes brackets starts from
where the one before it ended, and may lower the broken end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Annotated

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from frown.bounds.method import Closing, Ends, Known, Method
from frown.bounds.plan import Plan, per_plan
from frown.bounds.proof import Proofs
from frown.bounds.rows import broad
from frown.bounds.walk import Boxes, Given, Layers
from frown.bounds.work import NO_LIMIT, Clock, OutOfTime, Work, now, stepwise
from frown.certification.attack import confirmed
from frown.certification.findings import Begun, Broken, Searched, Unbranched
from frown.certification.radius import Bracket, Evaluate, Goal, search
from frown.graph.affine import Conv
from frown.graph.intervals import Intervals, unsqueezed
from frown.methods.crown import Crown, CrownIbp, Fixed
from frown.methods.frown.curved import further, gains
from frown.methods.frown.network import Frown, never_stable
from frown.problem.options import Option, check_options
from frown.problem.property import positive
from frown.read.model import Model
from frown.relax.piecewise import PiecewiseLinear

HOST = torch.device("cpu")


@dataclass
class KnownBoxes:
    """The least radius of every sample that failed, and the pre-activation boxes there.

    The region of a radius contains those of all smaller ones, and so do the bounds of its inner
    layers. A ReLU that could not change sign where a search failed needs no row further in.
    """

    radius: Tensor  # (samples,) inf where none has failed
    boxes: Boxes = field(default_factory=dict)

    @classmethod
    def of(cls, like: Tensor) -> KnownBoxes:
        """An empty record for these samples."""
        return cls(torch.full_like(like, torch.inf))

    def at(self, sample: Tensor, radius: Tensor) -> Given | None:
        """Boxes that hold for these samples at these radii; infinite where none is known."""
        holds = radius <= self.radius[sample]
        holds &= torch.isfinite(self.radius[sample])
        if not bool(holds.any()):
            return None
        found: Boxes = {}
        for source, box in self.boxes.items():
            own = box.rows(sample)
            mask = unsqueezed(holds, own.lower)
            found[source] = Intervals(
                own.lower.where(mask, -torch.inf), own.upper.where(mask, torch.inf)
            )
        return Given(found)

    def lower(
        self, plan: Plan, sample: Tensor, radius: Tensor, proved: Tensor, layers: Layers
    ) -> None:
        """Keep the boxes of radii that failed: the search goes on below them."""
        failed = (~proved & (radius < self.radius[sample])).nonzero().flatten()
        if not len(failed):
            return
        index = sample[failed]
        self.radius = self.radius.index_copy(0, index, radius[failed])
        for source in set(plan.sources.values()):
            new = layers.values[source].rows(failed)
            old = self.boxes.get(source)
            if old is None:
                shape = (len(self.radius), *new.lower.shape[1:])
                old = Intervals(new.lower.new_zeros(shape), new.upper.new_zeros(shape))
            self.boxes[source] = Intervals(
                old.lower.index_copy(0, index, new.lower), old.upper.index_copy(0, index, new.upper)
            )


ROUGHLY = 4  # radii are enough for a bracket as rough as this:
NEAR = Goal(0.5, 0.15)
# Optimised lines gain the more, the deeper a network is (as the paper found): a first guess.
GAIN, GAIN_PER_LAYER = 0.2, 0.03
BROAD_GAIN = 0.008  # per layer, where a radius too far takes long (.004 to .01 on 4x to 8x[2048])
# Lines at kinks give back about this part of what CROWN's lose (.05 to .4 on ten networks).
BACK = 0.25
MANY = 1000  # neurons of a network in which a radius that is too large costs much
INSIST = 4  # times that ascents go on where there is one radius
CHEAP = Goal(0.1, 0.05)  # of radii by plain intervals, which only have to be there
# Rigorous proofs take time as well, which searches leave. By fixed lines they took 1.3 to 5 times
# as long as a radius that was tried without the boxes of a larger one, and up to 2 times where
# there are no convolutions, which are slow in double precision; by optimised lines 1.2 to 2.4 times
# as long as by fixed ones (MNIST and CIFAR networks).
REPLAY, CONVOLVED, AGAIN, FARTHER = 2.5, 4.5, 2.0, 1.5
SMALLER = 2  # times that a search begins anew, should no radius be done in time
FIRST = 0.5  # of the time left is the most that the first radius may take
HASTE = 0.6  # of what a proof should take is too little time to begin with it
CAREFUL = 0.05  # of where a linear network's margins vanish: the first radius where time is limited
LEAP = 10.0  # times as far as what is proved is the most that the next radius may then be
FURTHER = 1.5  # times a radius is where a costlier method looks first
HOPE = 0.2  # of what they gained at first is the most they are believed to gain then


@dataclass(frozen=True)
class Largest:
    """The question how large the radius may be.

    Args:
        tol: the search ends when a radius 1 + tol times larger than the proved one failed.

    Raises InvalidInput unless 0 < tol < 1.
    """

    tol: Annotated[
        float, Option("how exact the search is, relative", above=0, below=1, panel="Search")
    ] = 0.01

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, eq=False)
class At:
    """The question whether the property holds at one radius.

    Args:
        eps: the radius, a number or one for each input.

    Not to find out how far it holds: that is `Largest`.
    """

    eps: Annotated[
        ArrayLike, Option("check this radius, do not search", metavar="RADIUS", panel="Search")
    ]


def search_of(search: object) -> Largest | At:
    """A question as users give it; a number, or one for each input, is a radius to check."""
    if search is None:
        return Largest()
    return search if isinstance(search, Largest | At) else At(search)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Searcher:
    """A network with everything fixed but the inputs."""

    model: Model
    plan: Plan
    method: Method
    tol: float
    single: bool  # whether one radius is asked about
    work: Work
    proofs: float = 0.0  # what follows a search: 0 nothing, 1 a proof, more with its check
    straight: bool = False  # whether proofs must do without curvatures, as those of execution

    @property
    def base(self) -> Fixed:
        """The fixed lines from which a search starts; the method itself where it has no others."""
        method = self.method
        while method.before is not None:
            method = method.before
        return method if isinstance(method, Fixed) else Crown()

    @property
    def optimised(self) -> bool:
        """True if the method goes on from brackets by fixed lines, be they rough."""
        return not isinstance(self.method, Fixed)

    @property
    def replay(self) -> float:
        """The time of a proof, as a multiple of that of trying a radius."""
        return CONVOLVED if _convolved(self.plan) else REPLAY


@per_plan
def _convolved(plan: Plan) -> bool:
    return any(isinstance(node.op, Conv) for node in plan.graph.nodes)


class RadiusSearch:
    """The search for the radii of one batch.

    Its stages are iterators: each yields what is found so far before every radius that it tries,
    so that a caller may show it, and keep it should an interrupt come. `found` is the latest.
    """

    def __init__(self, searcher: Searcher, begun: Begun) -> None:
        self._of, self._begun = searcher, begun
        self._clock = self._soft = NO_LIMIT
        self._bracket = Bracket.start(begun.clean, begun.limit)
        self._cheap: Bracket | None = None
        self._base: Tensor | None = None
        self._proofs: Proofs | None = None
        self._inner: Proofs | None = None
        self._broken: Broken | None = None
        self._unbranched: Unbranched | None = None
        self._early: set[int] = set()
        self._fixed: Evaluate | None = None  # margins by fixed lines, as asked for `_base`
        self._known = KnownBoxes.of(begun.limit)  # of the method that was asked last
        self._last: tuple[Method, Known] | None = None  # of the only sample, at the one radius
        self._complete = True
        self._remarks: dict[int, str] = {}
        self._took: list[float] = []  # seconds that radii took to try
        self._pace = 0.0  # seconds that a proof by fixed lines takes, for each input

    @property
    def found(self) -> Searched:
        """The findings so far."""
        return Searched(
            self._bracket,
            self._cheap,
            None if self._base is None else self._base.clone(),
            self._proofs,
            self._inner,
            self._broken,
            self._complete,
            dict(self._remarks),
            self._unbranched,
            frozenset(self._early),
        )

    # -- stages ----------------------------------------------------------------------------

    def glance(self, clock: Clock) -> Iterator[Searched]:
        """Radii by the fixed lines over plain intervals: something to go back to when time is
        short."""
        if not len(self._begun.right):
            return
        self._clock, own = clock, self._bracket
        base, single = self._of.base, self._of.single
        rule = base.rule if isinstance(base, Crown) else "area"
        rough = base if base.lines is None else CrownIbp(rule)
        evaluate = self._evaluate(rough, limited=False)
        first = self._begun.limit if single else self._begun.guess * 0.1
        self._cheap = own
        for found in self._run(evaluate, first, CHEAP, 1 if single else 30):
            self._cheap = self._bracket
            yield found
        self._cheap, self._bracket = self._bracket, own
        self._complete, self._took = True, []

    def bracket(self, clock: Clock, soft: Clock = NO_LIMIT) -> Iterator[Searched]:
        """Radii by the fixed rule of the method; for FROWN and programs, CROWN's. A search that
        has proved something ends when the `soft` limit has passed."""
        if not len(self._begun.right):
            return
        self._clock, self._soft, single = clock, soft, self._of.single
        first = self._begun.limit if single else self._first()
        fixed, rounds = self._evaluate(self._of.base), 1 if single else 60
        every = torch.arange(len(self._begun.right), device=first.device)
        if self._of.optimised and not single and clock == NO_LIMIT:
            # Another search goes on from here, whatever time it takes: be it rough.
            self._fixed, enough = fixed, Goal(10 * self._of.tol, 2 * self._of.tol)
            yield from self._run(fixed, first, self._fine, ROUGHLY, enough=enough)
            # However many more it takes, something not too far off must be known to go on from.
            first = self._bracket.propose(every, self._fine)
            yield from self._run(fixed, first, self._fine, rounds, enough=NEAR)
        else:
            yield from self._run(fixed, first, self._fine, rounds)
            for _ in range(0 if single else SMALLER):
                if self._took or clock.expired():
                    break
                # The first radius took too long: more neurons are stable at a smaller one.
                least = first if self._cheap is None else self._cheap.proved
                first = (0.1 * first).maximum(least.minimum(first))
                yield from self._run(fixed, first, self._fine, rounds)
            if not self._of.optimised and not single:
                self._say_what_is_open(self._fine)
        if self._cheap is not None:
            self._bracket = self._bracket.take_over(every, self._cheap)

    def go_on(self, clock: Clock, pace: float) -> Iterator[Searched]:
        """Take up a search by fixed lines again, in time that its proof did not take."""
        self._clock, self._soft, self._pace, self._complete = clock, NO_LIMIT, pace, True
        every = torch.arange(len(self._begun.right), device=self._begun.clean.device)
        first = self._bracket.propose(every, self._fine)
        yield from self._run(self._evaluate(self._of.base), first, self._fine, 60)

    def haste(self, clock: Clock, pace: float) -> float:
        """The part of the radii whose proof comes first, where that of all of them is likely to be
        cut short: at a smaller one more neurons are stable."""
        self._pace = pace
        wanted, left = self._reserve(), clock.left()
        return 1.0 if wanted * HASTE <= left else (left / wanted) ** 3

    def tighten(self, clock: Clock, pace: float = 0.0) -> Iterator[Searched]:
        """Radii by optimised lines or programs, from the brackets that CROWN left; what a closing
        method is to go on from. `pace` is what a proof of CROWN's took for each input, where that
        is known."""
        if not self._of.optimised or not len(self._begun.right):
            return
        if clock != NO_LIMIT and not self._took:
            return  # not even CROWN's lines were done in time
        self._clock, self._soft, self._pace = clock, NO_LIMIT, pace
        closing, method, single = self._of.method, self._of.method, self._of.single
        if isinstance(closing, Closing):
            assert closing.before is not None
            method = closing.before
        bracket, limit = self._bracket, self._begun.limit
        self._base = bracket.proved.clone()
        # What CROWN failed to prove others may prove: forget it, keep what CROWN proved.
        self._bracket = bracket.onwards()
        likely = bracket.likely()
        gain = self._hoped(bracket)
        first = limit if single else gain * likely.where(likely.isfinite(), bracket.proved)
        if method.foresight is not None and not single:
            first = self._foreseen(method.foresight, first)
        if method.singly:
            self._at_least(bracket)  # it may take long, and be interrupted
        glance = not single and method.glance is not None
        self._proofs = Proofs(torch.zeros_like(bracket.proved))
        evaluate = self._evaluate(method, self._proofs, glance=glance)
        goal = Goal.optimised(self._of.tol)
        yield from self._run(evaluate, first, goal, 1 if single else 20, glance)
        if single and not method.singly:
            yield from self._insist(evaluate, bracket, goal)
        self._at_least(bracket)
        self._fixed = None
        yield from self._further(method, goal)
        closes = isinstance(closing, Closing)
        if not closes and not single:
            self._say_what_is_open(goal)

    def close(self, broken: Broken, clock: Clock) -> Iterator[Searched]:
        """Radii by a closing method, if it is one, from what `tighten` left; `broken` is the other
        end. Time for the proof is left of a limit."""
        if not isinstance(self._of.method, Closing) or not len(self._begun.right):
            return
        if clock != NO_LIMIT:
            if not self._took:
                return
            clock = clock.sooner(self._reserve())
        self._clock = clock
        if not clock.expired():
            yield from self._close(self._of.method, broken)
        else:
            self._complete = False
            yield self.found

    def _further(self, method: Method, goal: Goal) -> Iterator[Searched]:
        """Radii by a costlier method, from those that another has left; its proofs are kept."""
        plan, region = self._of.plan, self._begun.cast.region
        costlier = further(method, plan) if region.euclidean and plan.bends else None
        if costlier is None or self._proofs is None or self._clock.expired():
            return
        unasked = isinstance(method, Frown) and method.curved == "auto"
        if unasked and (self._of.straight or self._clock != NO_LIMIT):
            return  # what follows may take longer than there is time
        if self._of.straight:
            for n in self._begun.right.tolist():
                self._remarks[n] = "rows were not bent: proofs of execution know none"
            return
        go = torch.ones_like(self._bracket.proved, dtype=torch.bool)
        if unasked:
            go = gains(plan, self._known.boxes, len(go)).to(go.device)
            if not bool(go.any()):
                return
        self._pace, self._took = 0.0, []  # proofs take longer as well
        self._inner = Proofs(self._proofs.radius.clone(), dict(self._proofs.kept))
        before, limit, single = self._bracket, self._begun.limit, self._of.single
        # What does not go on is decided: its limit is what is proved.
        self._bracket = replace(
            before.onwards(),
            failed=torch.where(go, torch.inf, before.failed),
            limit=torch.where(go, before.limit, before.proved),
        )
        first = limit if single else (FURTHER * before.proved).minimum(limit)
        evaluate = self._evaluate(costlier, self._proofs)
        goal = replace(goal, near=goal.within, leap=FURTHER)
        yield from self._run(evaluate, first, goal, 1 if single else 12)
        every = torch.arange(len(before.proved), device=first.device)
        self._bracket = replace(self._bracket.take_over(every, before), limit=before.limit)

    # -- steps -----------------------------------------------------------------------------

    @property
    def _fine(self) -> Goal:
        """The goal of searches with fixed lines."""
        goal = Goal.fixed(self._of.tol)
        return goal if self._clock == NO_LIMIT else replace(goal, leap=LEAP)

    def _run(
        self,
        evaluate: Evaluate,
        first: Tensor,
        goal: Goal,
        rounds: int,
        glance: bool = False,
        enough: Goal | None = None,
    ) -> Iterator[Searched]:
        """Search from the brackets at hand, until time is up."""

        def timed(sample: Tensor, radius: Tensor) -> Tensor:
            began = now()
            margins = evaluate(sample, radius)
            # What failed takes longer than what is going to be proved.
            if bool(positive(margins).any()) or not self._took:
                self._took.append(now() - began)
            return margins

        steps = search(self._bracket, timed, first, goal, rounds, glance, enough)
        try:
            for self._bracket in stepwise(steps, torch.inference_mode):
                yield self.found
                if self._late():
                    break
        except OutOfTime:
            self._complete = False
        if self._late() and len(self._bracket.open(enough or goal)):
            self._complete = False

    def _late(self) -> bool:
        if self._soft.expired() and bool((self._bracket.proved > 0).all()):
            return True
        return self._clock.expired() or self._clock.left() < self._reserve()

    def _reserve(self) -> float:
        """The seconds that the proof of the radii found should take."""
        again = AGAIN if self._of.optimised else FARTHER
        known, took = again * self._pace * len(self._begun.right), self._took
        if known > 0 or not took:
            return self._of.proofs * known
        if self._cheap is not None and bool(
            (self._bracket.proved <= self._cheap.proved).double().mean() > 0.5
        ):
            return 0.0  # there is hardly anything to prove
        return self._of.proofs * self._of.replay * max(took)

    def _search_clock(self) -> Clock:
        """The deadline of a search, early enough to leave time for the proof of its radii."""
        if self._of.proofs and not self._took:
            return self._clock.part(FIRST)
        own = self._clock.sooner(self._reserve())
        started = bool((self._bracket.proved > 0).all())
        return min(own, self._soft, key=lambda c: c.deadline) if started else own

    def _insist(self, evaluate: Evaluate, fixed: Bracket, goal: Goal) -> Iterator[Searched]:
        """Go on with the ascents where margins at the one radius came near 0.

        They start where they ended, as in a search; `fixed` has what CROWN's lines gave there.
        """
        for _ in range(INSIST):
            now = self._bracket
            gained = now.at_failed - fixed.at_failed
            near = (now.at_failed + HOPE * gained >= 0).all(1)
            again = near & (now.failed <= now.limit) & (now.proved < now.limit)
            if not (self._complete and bool(again.any())):
                return
            before = now.failed
            self._bracket = replace(now, failed=torch.where(again, torch.inf, before))
            yield from self._run(evaluate, now.limit, goal, 1)
            now = self._bracket
            unproved = again & (now.proved < now.limit)
            self._bracket = replace(now, failed=torch.where(unproved, before, now.failed))

    def _at_least(self, rough: Bracket) -> None:
        """Finish CROWN's search, left at `rough` brackets, where next to nothing was gained.

        So no radius is below CROWN's own.
        """
        if self._fixed is None:
            return
        most = rough.failed.minimum(rough.likely() * (1 + 0.5 * self._of.tol))
        few = (self._bracket.proved < most).nonzero().flatten()
        fine, fixed = rough.rows(few), self._fixed
        if not len(fine.open(self._fine)):
            return

        def evaluate(sample: Tensor, radius: Tensor) -> Tensor:
            return fixed(few[sample], radius)

        first = fine.propose(torch.arange(len(few), device=few.device), self._fine)
        with torch.inference_mode():
            *_, fine = search(fine, evaluate, first, self._fine)
        self._bracket = self._bracket.take_over(few, fine)
        assert self._base is not None
        self._base = self._base.index_put((few,), fine.proved)

    def _evaluate(
        self,
        method: Method,
        proofs: Proofs | None = None,
        glance: bool = False,
        limited: bool = True,
    ) -> Evaluate:
        """Margins at radii that a search proposes, by a method that keeps its state; `proofs` take
        those of the largest radii. With `glance` the first radius of all gets no more than that.
        Unless `limited`, a radius need not leave time for its proof."""
        cast, plan = self._begun.cast, self._of.plan
        state, known = method.start(len(self._begun.right)), KnownBoxes.of(cast.region.radius)
        self._known = known
        first = method.glance if glance and method.glance is not None else method
        asked = 0

        def evaluate(sample: Tensor, radius: Tensor) -> Tensor:
            nonlocal asked
            own = cast.rows(sample).at(radius)
            given = None if method.singly else known.at(sample, radius)
            clock = self._search_clock() if limited else self._clock
            work = replace(self._of.work, clock=clock)
            using = first if asked == 0 else method
            asked += 1
            found = using.bound(plan, own.region, own.property, state.at(sample), given, work)
            margins = own.property.margins(found.literals)
            good = positive(margins)
            known.lower(plan, sample, radius, good, found.layers)
            if self._of.single and len(self._begun.right) == 1:
                # A replay has no boxes of earlier radii: what rests on them starts no tree.
                self._last = (using, Known(found, state)) if given is None else None
            if proofs is not None:
                place = good.nonzero().flatten()
                proofs.keep(sample[place], radius[place], found.proof, place)
            for n, text in found.remarks.items():
                self._remarks[int(self._begun.right[int(sample[n])])] = text
            return margins

        return evaluate

    def _foreseen(self, method: Method, first: Tensor) -> Tensor:
        """A bracket around a cheaper method's radius, where a costly one should look first.

        The margins of both are supposed to fall equally fast.
        """
        own = trial = self._bracket
        evaluate = self._evaluate(method, glance=method.glance is not None)
        goal = Goal.optimised(self._of.tol)
        try:
            with torch.inference_mode():
                for found in search(own, evaluate, first, goal, 20, method.glance is not None):
                    trial = found
                    if self._clock.expired():
                        break
        except OutOfTime:
            self._complete = False
        further = trial.proved > own.proved
        power = trial.growth()
        part = torch.where(further, own.proved / trial.proved, 1.0) ** power
        likely = trial.clean - (trial.clean - trial.at_proved) * part[:, None]
        every = further.nonzero().flatten()
        own = replace(own, power=power)
        self._bracket = own.suppose(every, own.proved[every], likely[every])
        return torch.where(further, trial.proved, first)

    def _close(self, method: Closing, broken: Broken) -> Iterator[Searched]:
        """Both ends of brackets moved towards each other, by a method that does so. One radius is
        left alone where it is proved."""
        begun, of = self._begun, self._of
        which = torch.arange(len(begun.right), device=begun.limit.device)
        if of.single:
            which = (self._bracket.proved < begun.limit).nonzero().flatten()
            if not len(which):
                return
        radius, points = broken.ends(begun)
        proved, replayed = self._bracket.proved.clone(), of.proofs > 0
        far = (proved[which], begun.limit[which], radius[which], points[which])
        held, limits, broke, near = (t.to(HOST) for t in far)
        last, known = self._last, None
        if last is not None and last[0] is method.before and begun.limit.device == HOST:
            known = last[1]
        ends = Ends(held, limits, broke, near, of.single, replayed, known)
        if not method.estimates:  # estimates are not compared with what was proved before
            self._unbranched = Unbranched(proved, broken.radius.copy())
        if self._proofs is not None:
            self._inner = Proofs(self._proofs.radius.clone(), dict(self._proofs.kept))
        yield self.found
        # Trees and programs are of many small numbers: they are on the CPU, whatever the device.
        cast, plan = begun.cast.rows(which), of.plan.on(HOST)
        region, property = cast.region.on(HOST), cast.property.to(plan.graph.dtype, HOST)
        updates = method.close(plan, region, property, ends, replace(of.work, clock=self._clock))
        for update in stepwise(updates, torch.inference_mode):
            k = int(which[update.sample])
            n = int(begun.right[k])
            if update.point is not None:
                # Solvers leave a point short of a tie by their tolerance; and where one radius is
                # asked about, rounding may have put it beyond that.
                back = (1 - 1e-7, 1 - 1e-5) if of.single else ()
                stretch = (1.0, *back, 1.0001, 1.001)
                broken = confirmed(of.model, begun, broken, k, update.point, of.single, stretch)
                self._broken = broken
            limit, own = float(begun.limit[k]), self._bracket
            gain = min(update.proved, limit, float(broken.radius[n]) * (1 - 1e-6))
            if gain > float(own.proved[k]):
                proved, at_proved, failed = (
                    t.clone() for t in (own.proved, own.at_proved, own.failed)
                )
                proved[k], at_proved[k] = gain, 0.0
                if float(failed[k]) <= gain:
                    failed[k] = torch.inf
                self._bracket = replace(own, proved=proved, at_proved=at_proved, failed=failed)
                if self._proofs is not None and update.proof is not None:
                    first = torch.zeros(1, dtype=torch.long, device=points.device)
                    proof = update.proof.to(points.device)
                    self._proofs.keep(first + k, proved[k : k + 1], proof, first)
            if update.remark:
                self._remarks[n] = update.remark
            (self._early.discard if update.complete else self._early.add)(k)
            yield self.found

    def _hoped(self, fixed: Bracket) -> Tensor:
        """(N,) how many times as far as CROWN's lines optimised ones should come.

        What an affine network loses grows like the radius itself. Where the loss grows like a
        higher power of it, lines lose the other part, and steep margins gain little radius.
        In small networks a radius too many costs less than a first one that is too small.
        """
        plan, power = self._of.plan, fixed.growth().clamp(min=1.0)
        deep = 1 + min(GAIN, GAIN_PER_LAYER * len(plan.nonlinear))
        if broad(plan, plan.graph.output) and never_stable(plan):
            return torch.full_like(power, 1 + BROAD_GAIN * len(plan.nonlinear))
        kinks = all(isinstance(plan.relaxation(i), PiecewiseLinear) for i in plan.nonlinear)
        if not kinks or sum(plan.graph.nodes[i].size for i in plan.nonlinear) < MANY:
            return torch.full_like(power, deep)
        return (1 - BACK * (1 - 1 / power)).pow(-1 / power).clamp(max=deep)

    def _first(self) -> Tensor:
        """A first radius for fixed lines; where time is limited one that is likely to hold, since
        there may be time for one alone."""
        guess = self._begun.guess
        if self._cheap is None:
            return 0.3 * guess
        return self._cheap.proved.maximum(CAREFUL * guess)

    def _say_what_is_open(self, goal: Goal) -> None:
        """Remark on every input whose search ended without a failed radius close by; who had too
        little time says so elsewhere."""
        for k, text in still_open(self._bracket, goal, self._begun.whole) if self._complete else ():
            n = int(self._begun.right[k])
            self._remarks[n] = "; ".join(part for part in (self._remarks.get(n, ""), text) if part)


def still_open(bracket: Bracket, goal: Goal, whole: Tensor) -> Iterator[tuple[int, str]]:
    """Samples for which larger radii may hold, each with a remark; `whole` (N,) is where the valid
    range ends."""
    for k in bracket.open(goal).tolist():
        failed = float(bracket.failed[k])
        if failed <= float(bracket.proved[k]) * (1 + goal.within):
            continue  # near enough, as another method's search has it
        most = f"up to {failed:.4g}" if isfinite(failed) else "how much, no radius told"
        yield k, f"the search ended early; more may hold, {most}"
    last = (bracket.proved >= bracket.limit) & (bracket.limit < whole)
    for k in last.nonzero().flatten().tolist():
        yield k, "the search ends at this radius; more may hold"
