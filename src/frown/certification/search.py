"""From a batch of inputs to proved radii: attack, bracket cheaply, then tighten.

The attack gives the broken end of each bracket, the fixed lines of CROWN a proved end at
little cost, and the method moves the proved end up from there. A method that closes brackets
starts from where the one before it ended, and may lower the broken end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.clock import NO_LIMIT, Clock, OutOfTime, now
from frown.bounds.known import KnownBoxes
from frown.bounds.method import Closing, Ends, Method
from frown.bounds.plan import Plan
from frown.bounds.proof import Proofs
from frown.bounds.work import Work
from frown.certification.agreement import compare_inputs
from frown.certification.attack import Attack, nearest
from frown.certification.batch import Batch
from frown.certification.confirm import confirm, confirm_one
from frown.certification.radius import Bracket, Evaluate, Goal, search
from frown.graph.affine import Conv
from frown.methods.crown import Crown, CrownIbp, Fixed
from frown.problem.property import Property, positive, violated
from frown.problem.query import Query
from frown.problem.region import Region
from frown.read.model import Model

ROUGHLY = 4  # radii are enough for a bracket as rough as this:
NEAR = Goal(0.5, 0.15)
# Optimised lines gain the more, the deeper a network is (as the paper found): a first guess.
GAIN, GAIN_PER_LAYER = 0.2, 0.03
INSIST = 4  # times that ascents go on where there is one radius
CHEAP = Goal(0.1, 0.05)  # of radii by plain intervals, which only have to be there
# Rigorous proofs take time as well, which searches leave. By fixed lines they took 1.3 to 5 times
# as long as a radius that was tried without the boxes of a larger one, and up to 2 times where
# there are no convolutions, which are slow in double precision; by optimised lines 1.2 to 2.4 times
# as long as by fixed ones (MNIST and CIFAR networks). A check is taken to last some times as long.
REPLAY, CONVOLVED, AGAIN, FARTHER, CHECK = 2.5, 4.5, 2.0, 1.5, 4.0
SMALLER = 2  # times that a search begins anew, should no radius be done in time
FIRST = 0.5  # of the time left is the most that the first radius may take
HASTE = 0.6  # of what a proof should take is too little time to begin with it
CAREFUL = 0.05  # of where a linear network's margins vanish: the first radius where time is limited
LEAP = 10.0  # times as far as what is proved is the most that the next radius may then be
HOPE = 0.2  # of what they gained at first is the most they are believed to gain then


Pulse = Callable[[Batch], None]  # told of a batch after every radius tried


@dataclass(frozen=True)
class Certifier:
    """A network with everything fixed but the inputs."""

    model: Model
    plan: Plan
    method: Method
    tol: float
    attack: Attack | None
    work: Work
    soft: Clock = NO_LIMIT  # when a search that has proved something ends
    proofs: float = 0.0  # what follows a search: 0 nothing, 1 a proof, more with its check

    @property
    def clock(self) -> Clock:
        """When everything must have ended."""
        return self.work.clock

    @property
    def base(self) -> Fixed:
        """The fixed lines from which a search starts; the method itself where it has no others."""
        method = self.method
        while method.before is not None:
            method = method.before
        return method if isinstance(method, Fixed) else Crown()

    @property
    def optimised(self) -> bool:
        """Whether the method goes on from brackets by fixed lines, be they rough."""
        return not isinstance(self.method, Fixed)

    def within(self, clock: Clock, soft: Clock = NO_LIMIT) -> Certifier:
        """The same in less time."""
        return replace(self, work=replace(self.work, clock=clock), soft=soft)

    def start(
        self, query: Query, index: NDArray[np.int64], eps: NDArray[np.float64] | None
    ) -> Batch:
        """Predictions, and brackets with nothing proved yet."""
        began = monotonic()
        graph = self.plan.graph
        outputs = self.model.run(query.x)
        prediction = outputs.argmax(1)
        wanted, region = query.property(graph), query.region(graph)
        ours = graph.apply(region.centre).flatten(1)
        answers = self._answers(query, ours).double().cpu().numpy()
        mismatch = compare_inputs(self.model, query.x, outputs, answers)
        clean = wanted.margins(wanted.literals(ours))
        wrong = violated(query.margins(outputs))
        holds = (clean > 0).all(1).cpu().numpy() & (prediction == query.label) & ~wrong
        holds[list(mismatch)] = False
        right = np.flatnonzero(holds)
        keep = torch.from_numpy(right).to(graph.device)
        limit = query.limits(graph)[keep]
        if eps is not None:
            limit = torch.minimum(_rounded_up(eps[right], limit), region.limit()[keep])
        batch = Batch(
            query,
            index,
            prediction,
            right,
            Bracket.start(clean[keep], limit),
            limit,
            region.limit()[keep],
            np.full(len(query), np.inf),
            {},
            mismatch=mismatch,
        )
        batch.broken[wrong] = 0.0
        batch.seconds += monotonic() - began
        return batch

    def _answers(self, query: Query, ours: Tensor) -> Tensor:
        """The imported graph's outputs; `ours` are those of the graph that is bounded."""
        if self.model.scores is None:
            return ours
        return self.model.graph.apply(torch.from_numpy(query.x).double()).flatten(1)

    def strike(self, batch: Batch, fixed: bool) -> None:
        """The attack."""
        if self.attack is None or not len(batch.right) or self.clock.expired():
            return
        began = monotonic()
        (region, wanted), graph, limit = self._problem(batch), self.plan.graph, batch.limit
        guess = limit if fixed else self._guess(batch)
        problem = (graph, region.with_radius(limit), wanted, guess)
        found = nearest(*problem, self.attack, self.clock.part(0.9), self.work.memory)
        confirm(self.model, batch, found, fixed, self.clock)
        batch.seconds += monotonic() - began

    def glance(self, batch: Batch, eps: bool, pulse: Pulse) -> None:
        """Radii by the fixed lines over plain intervals: something to go back to when time is
        short."""
        if not len(batch.right):
            return
        began = monotonic()
        rough = self.base if self.base.lines is None else CrownIbp(_rule_of(self.base))
        evaluate = self._evaluate(batch, rough, limited=False)
        own, batch.cheap = batch.bracket, replace(batch.bracket)
        batch.bracket = batch.cheap
        first = batch.limit if eps else self._guess(batch) * 0.1
        self._search(batch, evaluate, first, CHEAP, 1 if eps else 30, pulse)
        batch.bracket, batch.complete, batch.evaluations = own, True, []
        batch.seconds += monotonic() - began

    def bracket(self, batch: Batch, eps: bool, pulse: Pulse) -> None:
        """Radii by the fixed rule of the method; for FROWN and programs, CROWN's."""
        if not len(batch.right):
            return
        began = monotonic()
        first = batch.limit if eps else self._first(batch)
        fixed, rounds = self._evaluate(batch, self.base), 1 if eps else 60
        if self._goes_on(eps):
            batch.fixed = fixed
            self._search(batch, fixed, first, self._fine, ROUGHLY, pulse, enough=self._rough)
            # However many more it takes, something not too far off must be known to go on from.
            every = torch.arange(len(batch.right), device=first.device)
            first = batch.bracket.propose(every, self._fine)
            self._search(batch, fixed, first, self._fine, rounds, pulse, enough=NEAR)
        else:
            self._search(batch, fixed, first, self._fine, rounds, pulse)
            for _ in range(0 if eps else SMALLER):
                if batch.evaluations or self.clock.expired():
                    break
                # The first radius took too long: more neurons are stable at a smaller one.
                least = first if batch.cheap is None else batch.cheap.proved
                first = (0.1 * first).maximum(least.minimum(first))
                self._search(batch, fixed, first, self._fine, rounds, pulse)
            if not self.optimised and not eps:
                batch.say_what_is_open(self._fine)
        if batch.cheap is not None:
            every = torch.arange(len(batch.right), device=first.device)
            batch.bracket.take_over(every, batch.cheap)
        batch.seconds += monotonic() - began

    def go_on(self, batch: Batch, pulse: Pulse) -> bool:
        """Take up a search by fixed lines that left time for its proof, in what that did not take.

        Whether larger radii came of it.
        """
        if self.optimised or batch.complete or batch.replay <= 0 or self.clock.expired():
            return False
        began, before, batch.complete = monotonic(), batch.bracket.proved, True
        every = torch.arange(len(batch.right), device=before.device)
        first = batch.bracket.propose(every, self._fine)
        self._search(batch, self._evaluate(batch, self.base), first, self._fine, 60, pulse)
        batch.seconds += monotonic() - began
        return bool((batch.bracket.proved > before).any())

    def tighten(self, batch: Batch, eps: bool, pulse: Pulse) -> None:
        """Radii by optimised lines or programs, from the brackets that CROWN left."""
        if not self.optimised or not len(batch.right):
            return
        if self.clock != NO_LIMIT and not batch.evaluations:
            return  # not even CROWN's lines were done in time
        began = monotonic()
        method = self.method
        if isinstance(method, Closing):
            assert method.before is not None
            method = method.before
        bracket = batch.bracket
        batch.base = bracket.proved.clone()
        # What CROWN failed to prove others may prove: forget it, keep what CROWN proved.
        batch.bracket = bracket.onwards()
        likely = bracket.likely()
        gain = 1 + min(GAIN, GAIN_PER_LAYER * len(self.plan.nonlinear))
        first = batch.limit if eps else gain * likely.where(likely.isfinite(), bracket.proved)
        if method.foresight is not None and not eps:
            first = self._foreseen(batch, method.foresight, first)
        if method.singly:
            self._at_least(batch, bracket)  # it may take long, and be interrupted
        glance = not eps and method.glance is not None
        batch.proofs = Proofs(torch.zeros_like(bracket.proved))
        evaluate = self._evaluate(batch, method, batch.proofs, glance=glance)
        goal = Goal.optimised(self.tol)
        self._search(batch, evaluate, first, goal, 1 if eps else 20, pulse, glance)
        if eps and not method.singly:
            self._insist(batch, evaluate, bracket, goal, pulse)
        self._at_least(batch, bracket)
        batch.fixed = None
        closes = isinstance(self.method, Closing)
        if not closes and not eps:
            batch.say_what_is_open(goal)
        if closes and not self.clock.expired():
            with torch.inference_mode():
                self._close(batch, eps, pulse)
        batch.seconds += monotonic() - began

    # -- stages -------------------------------------------------------------------

    @property
    def _fine(self) -> Goal:
        """Of searches with fixed lines."""
        goal = Goal.fixed(self.tol)
        return goal if self.clock == NO_LIMIT else replace(goal, leap=LEAP)

    @property
    def _rough(self) -> Goal:
        """Enough of them where another method goes on."""
        return Goal(10 * self.tol, 2 * self.tol)

    def _goes_on(self, eps: bool) -> bool:
        """Whether a search goes on from CROWN's, whatever time it takes."""
        return self.optimised and not eps and self.clock == NO_LIMIT

    def _search(
        self,
        batch: Batch,
        evaluate: Evaluate,
        first: Tensor,
        goal: Goal,
        rounds: int,
        pulse: Pulse,
        glance: bool = False,
        enough: Goal | None = None,
    ) -> None:
        def late() -> bool:
            if self.soft.expired() and bool((batch.bracket.proved > 0).all()):
                return True
            return self.clock.expired() or self.clock.left() < self._reserve(batch)

        def stop() -> bool:
            pulse(batch)
            return late()

        def timed(sample: Tensor, radius: Tensor) -> Tensor:
            began = now()
            margins = evaluate(sample, radius)
            # What failed takes longer than what is going to be proved.
            if bool(positive(margins).any()) or not batch.evaluations:
                batch.evaluations.append(now() - began)
            return margins

        try:
            with torch.inference_mode():
                search(batch.bracket, timed, first, goal, rounds, stop, glance, enough)
        except OutOfTime:
            batch.complete = False
        if late() and len(batch.bracket.open(enough or goal)):
            batch.complete = False

    def _reserve(self, batch: Batch) -> float:
        """Seconds that proving what a search has found should take."""
        again = AGAIN if self.optimised else FARTHER
        known, took = again * batch.replay * len(batch.right), batch.evaluations
        if known > 0 or not took:
            return self.proofs * known
        if batch.cheap is not None and bool(
            (batch.bracket.proved <= batch.cheap.proved).double().mean() > 0.5
        ):
            return 0.0  # there is hardly anything to prove
        return self.proofs * self._replay * max(took)

    @property
    def _replay(self) -> float:
        """How many times as long as trying a radius its proof takes."""
        convolved = any(isinstance(node.op, Conv) for node in self.plan.graph.nodes)
        return CONVOLVED if convolved else REPLAY

    def in_haste(self, batch: Batch) -> float:
        """The part of the radii whose proof comes first, where that of all of them is likely to be
        cut short: at a smaller one more neurons are stable."""
        wanted, left = self._reserve(batch), self.clock.left()
        return 1.0 if wanted * HASTE <= left else (left / wanted) ** 3

    def _search_clock(self, batch: Batch) -> Clock:
        """What a radius may take: it must leave the time for its proof."""
        if self.proofs and not batch.evaluations:
            return self.clock.part(FIRST)
        own = self.clock.sooner(self._reserve(batch))
        started = bool((batch.bracket.proved > 0).all())
        return min(own, self.soft, key=lambda c: c.deadline) if started else own

    def _insist(
        self, batch: Batch, evaluate: Evaluate, fixed: Bracket, goal: Goal, pulse: Pulse
    ) -> None:
        """Where margins at the one radius came near 0, ascents go on from where they ended, as
        they would in a search; `fixed` has what CROWN's lines gave there."""
        for _ in range(INSIST):
            now = batch.bracket
            gained = now.at_failed - fixed.at_failed
            near = (now.at_failed + HOPE * gained >= 0).all(1)
            again = near & (now.failed <= now.limit) & (now.proved < now.limit)
            if not (batch.complete and bool(again.any())):
                return
            before, now.failed = now.failed, torch.where(again, torch.inf, now.failed)
            self._search(batch, evaluate, now.limit, goal, 1, pulse)
            unproved = again & (now.proved < now.limit)
            now.failed = torch.where(unproved, before, now.failed)

    def _at_least(self, batch: Batch, rough: Bracket) -> None:
        """Where next to nothing was gained, CROWN's search, left at `rough` brackets, goes on, so
        that no radius is below CROWN's own."""
        if batch.fixed is None:
            return
        most = rough.failed.minimum(rough.likely() * (1 + 0.5 * self.tol))
        few = (batch.bracket.proved < most).nonzero().flatten()
        fine, fixed = rough.rows(few), batch.fixed
        if not len(fine.open(self._fine)):
            return

        def evaluate(sample: Tensor, radius: Tensor) -> Tensor:
            return fixed(few[sample], radius)

        first = fine.propose(torch.arange(len(few), device=few.device), self._fine)
        with torch.inference_mode():
            search(fine, evaluate, first, self._fine)
        batch.bracket.take_over(few, fine)
        assert batch.base is not None
        batch.base[few] = fine.proved

    def _problem(self, batch: Batch) -> tuple[Region, Property]:
        query = batch.query.take(batch.right)
        return query.region(self.plan.graph), query.property(self.plan.graph)

    def _evaluate(
        self,
        batch: Batch,
        method: Method,
        proofs: Proofs | None = None,
        glance: bool = False,
        limited: bool = True,
    ) -> Evaluate:
        """Margins at radii that a search proposes, by a method that keeps its state; `proofs` take
        those of the largest radii. With `glance` the first radius of all gets no more than that.
        Unless `limited`, a radius need not leave time for its proof."""
        region, wanted = self._problem(batch)
        state, ceiling = method.start(len(batch.right)), KnownBoxes.of(region.radius)
        first = method.glance if glance and method.glance is not None else method
        asked = 0

        def evaluate(sample: Tensor, radius: Tensor) -> Tensor:
            nonlocal asked
            ball, own = region.rows(sample).with_radius(radius), wanted.rows(sample)
            given = None if method.singly else ceiling.at(sample, radius)
            work = self.work
            if limited:
                work = replace(work, clock=self._search_clock(batch))
            using = first if asked == 0 else method
            asked += 1
            found = using.bound(self.plan, ball, own, state.at(sample), given, work)
            margins = own.margins(found.literals)
            good = positive(margins)
            ceiling.lower(self.plan, sample, radius, good, found.layers)
            if proofs is not None:
                place = good.nonzero().flatten()
                proofs.keep(sample[place], radius[place], found.proof, place)
            for n, text in found.remarks.items():
                batch.remark[int(batch.right[int(sample[n])])] = text
            return margins

        return evaluate

    def _foreseen(self, batch: Batch, method: Method, first: Tensor) -> Tensor:
        """Where a dear method should look first: a cheaper one's radius. How fast margins fall is
        supposed to be alike."""
        own = batch.bracket
        trial = replace(own)
        try:
            with torch.inference_mode():
                search(
                    trial,
                    self._evaluate(batch, method, glance=method.glance is not None),
                    first,
                    Goal.optimised(self.tol),
                    20,
                    self.clock.expired,
                    method.glance is not None,
                )
        except OutOfTime:
            batch.complete = False
        further = trial.proved > own.proved
        power = trial.growth()
        part = torch.where(further, own.proved / trial.proved, 1.0) ** power
        likely = trial.clean - (trial.clean - trial.at_proved) * part[:, None]
        own.power = power
        every = further.nonzero().flatten()
        own.suppose(every, own.proved[every], likely[every])
        return torch.where(further, trial.proved, first)

    def _close(self, batch: Batch, fixed: bool, pulse: Pulse) -> None:
        """Both ends of brackets moved towards each other, by a method that does so."""
        assert isinstance(self.method, Closing)
        region, wanted = self._problem(batch)
        bracket, point = batch.bracket, region.centre.clone()
        for k, n in enumerate(batch.right.tolist()):
            if n in batch.counterexample:
                found = torch.from_numpy(batch.counterexample[n])
                point[k] = found.reshape(point.shape[1:]).to(point)
        broken = torch.from_numpy(batch.broken[batch.right])
        ends = Ends(bracket.proved.clone(), batch.limit, broken, point, fixed)
        pulse(batch)
        for update in self.method.close(self.plan, region, wanted, ends, self.work):
            k, n = update.sample, int(batch.right[update.sample])
            if update.point is not None:
                stretch = (1.0, 1.0001, 1.001)
                confirm_one(self.model, batch, k, update.point, fixed, stretch)
            gain = min(update.proved, float(batch.limit[k]), float(batch.broken[n]) * (1 - 1e-6))
            if gain > float(bracket.proved[k]):
                bracket.proved[k], bracket.at_proved[k] = gain, 0.0
                if float(bracket.failed[k]) <= gain:
                    bracket.failed[k] = torch.inf
                if batch.proofs is not None and update.proof is not None:
                    first = torch.zeros(1, dtype=torch.long, device=point.device)
                    batch.proofs.keep(first + k, bracket.proved[k : k + 1], update.proof, first)
            if update.remark:
                batch.remark[n] = update.remark
            batch.complete &= update.complete
            pulse(batch)

    def _first(self, batch: Batch) -> Tensor:
        """A first radius for fixed lines; where time is limited one that is likely to hold, since
        there may be time for one alone."""
        guess = self._guess(batch)
        if batch.cheap is None:
            return 0.3 * guess
        return batch.cheap.proved.maximum(CAREFUL * guess)

    def _guess(self, batch: Batch) -> Tensor:
        """Where the margins would vanish if the network were linear at the input."""
        region, wanted = self._problem(batch)
        with torch.enable_grad():
            x = region.centre.detach().requires_grad_()
            values = wanted.literals(self.plan.graph.apply(x).flatten(1))
            worst = wanted.margins(values).amin(1)
            (slope,) = torch.autograd.grad(worst.sum(), x)
        gain = region.gain(slope)
        tiny = torch.finfo(gain.dtype).tiny
        return torch.minimum(worst.detach() / gain.clamp(min=tiny), batch.limit)


def _rule_of(method: Fixed) -> str:
    """The name of CROWN's rule; Fast-Lin has none, and starts with the usual one."""
    return method.rule if isinstance(method, Crown) else "area"


def _rounded_up(radius: NDArray[np.float64], like: Tensor) -> Tensor:
    """In the precision of the engines, and not a hair less than what was asked for."""
    exact = torch.from_numpy(radius)
    cast = exact.to(like.dtype)
    above = torch.nextafter(cast, torch.full_like(cast, torch.inf))
    return torch.where(cast.double() < exact, above, cast).to(like.device)
