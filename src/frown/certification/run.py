"""Many inputs, batch by batch: an iterator of outcomes.

Every batch goes through the same stages: begin, attack, search, proofs, agreement, certificates,
rows. Where time is limited, every input gets its cheap radius before any is optimised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from inspect import GEN_CLOSED, getgeneratorstate
from math import inf, isfinite, isinf, nan
from time import monotonic
from traceback import clear_frames

import numpy as np
import torch
from numpy.typing import NDArray

from frown.bounds.method import Closing, Method
from frown.bounds.plan import Plan
from frown.bounds.work import NO_LIMIT, Clock, Work, plain_surroundings
from frown.certification.agreement import Compared, begin, compare_regions
from frown.certification.attack import PGD, attack
from frown.certification.certificates import Certificates, Kept, sha256_of
from frown.certification.findings import Begun, Broken, Findings, Proved, Searched, joined
from frown.certification.prove import Prover
from frown.certification.results import Row
from frown.certification.search import RadiusSearch, Searcher
from frown.certification.statement import input_digest
from frown.errors import InvalidInput
from frown.problem.problem import Problem
from frown.problem.property import LabelWins, Property

ATTACK = 0.15  # of the time, where it is limited, is for the attack
LITTLE = 16 << 20  # bytes: what takes less is not refused, however small the budget
_CONDITION = 32  # numbers that a search keeps of each margin of an input
PART, LEAST_PART, TAIL = 32, 8, 4  # inputs of a batch: most, least, and the share of what is left
PAYS = 10.0  # seconds of work that several processes share with profit: starting them takes two
SHORT, LONG = 0.8, 30.0  # seconds that batches should take, at the least and at the most
CROWN = 0.4  # of what is left then, for radii by fixed lines before optimised ones, or until
# something is proved

Key = int | tuple[int, int]  # an input's index; of a frame that moves alone, a pair


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a long call."""

    done: int
    total: int
    proved_mean: float  # of the inputs done and, in plain floating point, of those under way
    stage: str
    broken_mean: float = nan  # of those with a counterexample; NaN: there is none yet
    underway: int = 0
    found: int = 0  # counterexamples


@dataclass(frozen=True)
class Outcome:
    """The rows of a batch, with the counterexamples found."""

    rows: tuple[Row, ...]
    counterexamples: Mapping[Key, NDArray[np.float64]]
    provisional: bool = False  # an interrupt or a lost worker cut it short: worth doing again
    places: tuple[int, ...] = ()  # of the rows' inputs
    certificates: Mapping[int, bytes] = field(default_factory=dict)  # by place, if handed over


class Watch:
    """A listener to a long call; subclass it."""

    def progress(self, progress: Progress) -> None:
        """Be told that a radius was tried, or that another stage has begun."""

    def finished(self, outcome: Outcome) -> None:
        """Be told that these rows are final."""


@dataclass(frozen=True)
class Stages:
    """Everything that a run has fixed but the inputs."""

    searcher: Searcher
    attack: PGD | None
    prover: Prover | None  # None: estimates are enough
    certificates: Certificates | None
    parts: tuple[NDArray[np.int64], ...]  # the places of each batch's inputs
    hand_over: bool = False  # certificates go into the outcome: somebody else keeps them
    each: float | None = None  # seconds for each input

    @property
    def clock(self) -> Clock:
        """The deadline of the whole run."""
        return self.searcher.work.clock


def outcomes(
    stages: Callable[[ExitStack], Stages], problem: Problem, watch: Watch
) -> Iterator[Outcome]:
    """Work through all batches. `stages` makes them, and registers in the stack all that is
    released when the run ends.

    The caller's work between two of them is not in plain surroundings. An interrupt, be it passed
    in (`throw`) or struck inside, yields what the batches under way have proved, and is raised
    then.
    """
    run, interrupt = _opened(stages, problem, watch), None
    while True:
        outcome = None
        try:
            with _undisturbed():
                outcome = next(run) if interrupt is None else run.throw(interrupt)
            interrupt = None
        except StopIteration:
            return
        except KeyboardInterrupt as struck:
            if getgeneratorstate(run) == GEN_CLOSED:  # what was proved is handed over
                raise
            clear_frames(struck.__traceback__)  # a mode of torch that it cut short ends now
            interrupt = struck
        if outcome is not None:
            try:
                yield outcome
            except KeyboardInterrupt as passed:
                interrupt = passed


def each(run: Iterator[Outcome], take: Callable[[Outcome], None]) -> None:
    """Pass every outcome to `take`. An interrupt is raised after the outcomes of the batches under
    way, too, have been passed on."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            if interrupt is not None and isinstance(run, Generator):
                outcome = run.throw(interrupt)
                interrupt = None
            else:
                outcome = next(run)
        except StopIteration:
            return
        try:
            take(outcome)
        except KeyboardInterrupt as struck:
            interrupt = struck


@contextmanager
def _undisturbed() -> Iterator[None]:
    with plain_surroundings(), torch.no_grad():
        yield


def _opened(
    stages: Callable[[ExitStack], Stages], problem: Problem, watch: Watch
) -> Generator[Outcome, None, None]:
    with ExitStack() as taken:
        yield from _Run(stages(taken), problem, watch).all()


@dataclass
class _Underway:
    """A batch between two of its stages, which only the run changes."""

    places: NDArray[np.int64]
    begun: Begun
    search: RadiusSearch
    searched: Searched
    broken: Broken
    proved: Proved | None = None
    compared: Compared | None = None
    kept: Kept = field(default_factory=Kept)
    seconds: float = 0.0

    @property
    def findings(self) -> Findings:
        """The findings so far."""
        return Findings(self.begun, self.searched.broken or self.broken, self.searched, self.proved)

    @property
    def pace(self) -> float:
        """Seconds that a proof by fixed lines took, for each input; 0: not known."""
        return 0.0 if self.proved is None else self.proved.pace

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The time inside counts as this batch's."""
        began = monotonic()
        try:
            yield
        finally:
            self.seconds += monotonic() - began


class _Run:
    """Batches in order; rows are yielded as they are finished."""

    def __init__(self, stages: Stages, problem: Problem, watch: Watch) -> None:
        self.stages, self.problem, self.watch = stages, problem, watch
        self.stage = stages.searcher.method.name
        self.done = Tally()  # the rows yielded
        self.parts = stages.parts
        self.count = sum(map(len, self.parts))

    def all(self) -> Iterator[Outcome]:
        """Work through the batches; an interrupt yields what those under way have proved."""
        each, whole = self.stages.each, self.stages.clock
        if each is None:
            yield from self._together(self.parts, whole)
            return
        for part in self.parts:
            own = Clock.lasting(each * len(part))
            yield from self._together((part,), min(own, whole, key=lambda c: c.deadline))

    def _together(self, parts: Sequence[NDArray[np.int64]], whole: Clock) -> Iterator[Outcome]:
        """Work through batches that share the time until a deadline."""
        limited, searcher = whole != NO_LIMIT, self.stages.searcher
        waiting: list[_Underway] = []
        try:
            if limited:
                self._prepare(parts, whole, waiting)
            for k, part in enumerate(parts):
                clock = whole.share(len(parts) - k)
                if not limited:
                    fresh = self._begin(part)
                    self._attack(fresh, clock)
                    waiting.append(fresh)
                batch = waiting[0]
                if not (limited and searcher.optimised):
                    self._tell("crown" if searcher.optimised else "search")
                    self._search(batch, batch.search.bracket(clock))
                self._tell(searcher.method.name)
                self._search(batch, batch.search.tighten(clock, batch.pace))
                # A proof that takes longer than it should leaves something to those behind it.
                own = clock
                if limited:
                    clock = whole.share((len(parts) - k + 1) // 2)
                    if isinstance(searcher.method, Closing):  # what nothing takes away again
                        self._prove_in_time(batch, clock)
                        self._tell(searcher.method.name)
                self._search(batch, batch.search.close(batch.broken, own))
                self._prove_in_time(batch, clock)
                while limited and not searcher.single and self._go_on(batch, own):
                    self._prove(batch, clock)
                self._compare(batch)
                self._keep(batch, clock)
                outcome = self._outcome(batch)
                waiting.pop(0)
                yield outcome
                self._tell("done")
        except KeyboardInterrupt as struck:
            clear_frames(struck.__traceback__)  # a mode of torch whose end it cut short ends now
            for batch in waiting:
                batch.searched = replace(batch.searched, complete=False)
                self._cut_short(batch)
                self._compare(batch)
                yield replace(self._outcome(batch), provisional=True)
                self._tell("done")
            raise

    def _prepare(
        self, parts: Sequence[NDArray[np.int64]], clock: Clock, waiting: list[_Underway]
    ) -> None:
        """Compute and prove cheap radii of all inputs first.

        Radii by plain intervals, the attack within its part of the time and, where another method
        goes on, CROWN's radii within theirs.
        """
        count = len(parts)
        for part in parts:
            batch = self._begin(part)
            self._tell("interval")
            self._search(batch, batch.search.glance(clock))
            self._prove(batch, clock, inside=False)
            waiting.append(batch)
        attack = clock.part(ATTACK)
        for k, batch in enumerate(waiting):
            self._tell("attack")
            self._attack(batch, attack.share(count - k))
        first = clock.part(CROWN)
        for k, batch in enumerate(waiting if self.stages.searcher.optimised else []):
            self._tell("crown")
            own, soft = clock.share(count - k), first.share(count - k)
            self._search(batch, batch.search.bracket(own, soft))
            self._prove_in_time(batch, own)

    # -- stages ----------------------------------------------------------------------------

    def _begin(self, part: NDArray[np.int64]) -> _Underway:
        """One more batch."""
        began, searcher = monotonic(), self.stages.searcher
        begun = begin(searcher.model, searcher.plan.graph, self.problem.take(part))
        search = RadiusSearch(searcher, begun)
        batch = _Underway(part, begun, search, search.found, Broken.of(begun))
        batch.seconds = monotonic() - began
        return batch

    def _attack(self, batch: _Underway, clock: Clock) -> None:
        """The counterexamples that an attack finds."""
        how, searcher = self.stages.attack, self.stages.searcher
        if how is not None:
            with batch.timed():
                # Where leaves would be cut for long, a counterexample is worth a second look.
                thorough = searcher.single and isinstance(searcher.method, Closing)
                memory = searcher.work.memory
                batch.broken = attack(
                    searcher.model, batch.begun, how, searcher.single, clock, memory, thorough
                )

    def _search(self, batch: _Underway, steps: Iterator[Searched]) -> None:
        """A stage of the search: what it has found is kept after every radius."""
        with batch.timed():
            for batch.searched in steps:
                self.watch.progress(self._progress(batch))
            batch.searched = batch.search.found

    def _go_on(self, batch: _Underway, clock: Clock) -> bool:
        """Continue a search by fixed lines in the time that its proof has left.

        Whether larger radii came of it.
        """
        if self.stages.searcher.optimised or batch.findings.complete:
            return False
        if batch.pace <= 0 or clock.expired():
            return False
        before = batch.searched.bracket.proved
        self._search(batch, batch.search.go_on(clock, batch.pace))
        return bool((batch.searched.bracket.proved > before).any())

    def _prove_in_time(self, batch: _Underway, clock: Clock) -> None:
        """Prove the radii found; smaller ones first, where there may be too little time for a whole
        proof."""
        haste = batch.search.haste(clock, batch.pace)
        if haste < 1 and not self.stages.searcher.single:
            self._prove(batch, clock, haste)
        self._prove(batch, clock)

    def _prove(
        self, batch: _Underway, clock: Clock, share: float = 1.0, inside: bool = True
    ) -> None:
        """Prove what the search found, or a share of its radii, with all rounding accounted for."""
        if self.stages.prover is not None:
            self._tell("rigorous")
            with batch.timed():
                work = replace(self.stages.searcher.work, clock=clock)
                batch.proved = self.stages.prover.prove(
                    batch.begun, batch.searched, work, batch.proved, share, inside
                )

    def _compare(self, batch: _Underway) -> None:
        """Ask the original about the regions that are about to be called proved."""
        if batch.compared is None:
            searcher = self.stages.searcher
            with batch.timed():
                batch.compared = compare_regions(
                    searcher.model, searcher.plan.graph, batch.findings
                )

    def _keep(self, batch: _Underway, clock: Clock) -> None:
        """The batch's certificates."""
        if self.stages.certificates is not None and batch.compared is not None:
            self._tell("certificates")
            with batch.timed():
                steps = self.stages.certificates.keep(batch.findings, batch.compared, clock)
                for batch.kept in steps:
                    pass

    def _cut_short(self, batch: _Underway) -> None:
        """Say which of the steps that were asked for an interrupt has left out."""
        if self.stages.prover is None:
            return
        findings, kept, remarks = batch.findings, batch.kept, dict(batch.kept.remarks)
        check = self.stages.certificates is not None and self.stages.certificates.check
        for n in batch.begun.right.tolist():
            if not findings.rigorous:
                remarks[n] = "interrupted before rounding errors were accounted for"
            elif n in findings.certificates and n not in kept.files and n not in remarks:
                remarks[n] = "interrupted before its certificate was written"
            elif check and n in kept.files.keys() - kept.checked - remarks.keys():
                remarks[n] = "interrupted before its certificate was checked"
        batch.kept = replace(kept, remarks=remarks)

    def _outcome(self, batch: _Underway) -> Outcome:
        assert batch.compared is not None
        name, findings = self.stages.searcher.method.name, batch.findings
        rows = rows_of(findings, batch.compared, batch.kept, name, batch.seconds)
        regions = batch.begun.problem.regions
        found = {regions.key(n): point for n, point in findings.broken.point.items()}
        self.done = self.done.plus([r.radius for r in rows], [r.broken for r in rows])
        certificates = {}
        if self.stages.hand_over:
            kept = findings.certificates.items()
            places = batch.places.tolist()
            certificates = {places[n]: c for n, c in kept if n not in batch.compared.mismatch}
        where = tuple(batch.places.tolist())
        return Outcome(tuple(rows), found, places=where, certificates=certificates)

    def _tell(self, stage: str) -> None:
        self.stage = stage
        self.watch.progress(self.done.progress(self.count, stage))

    def _progress(self, batch: _Underway) -> Progress:
        """The progress while a batch is searched."""
        proved = batch.searched.bracket.proved.tolist()
        proved += [0.0] * (len(batch.places) - len(proved))
        both = self.done.plus(proved, batch.findings.broken.radius.tolist())
        told = both.progress(self.count, self.stage)
        return replace(told, done=self.done.count, underway=len(batch.places))


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over rows, for means."""

    count: int = 0
    proved: float = 0.0
    broken: float = 0.0
    found: int = 0  # counterexamples

    def plus(self, proved: Sequence[float], broken: Sequence[float | None]) -> Tally:
        """The sums with more rows."""
        ends = [end for end in broken if end is not None and isfinite(end)]
        return Tally(
            self.count + len(proved),
            self.proved + sum(radius for radius in proved if isfinite(radius)),
            self.broken + sum(ends),
            self.found + len(ends),
        )

    def joined(self, other: Progress) -> Tally:
        """The sums, with the means of another process's rows."""
        count, found = other.done + other.underway, other.found
        return Tally(
            self.count + count,
            self.proved + other.proved_mean * count,
            self.broken + (other.broken_mean * found if found else 0.0),
            self.found + found,
        )

    def progress(self, total: int, stage: str) -> Progress:
        """The sums as means."""
        broken = self.broken / self.found if self.found else nan
        mean = self.proved / max(1, self.count)
        return Progress(self.count, total, mean, stage, broken, found=self.found)


def parts_of(count: int, size: int, seconds: float = 0.0) -> list[NDArray[np.int64]]:
    """Places of `count` inputs in batches, smaller ones last.

    Args:
        size: as many as memory allows.
        seconds: an estimate of what one input takes.

    What takes little time is one batch. Else several workers may share them, and none should wait
    long for the others; but batches do not depend on how many there are.
    """
    if count <= size and count * seconds < PAYS:
        return [np.arange(count)]
    most = max(1, min(size, PART, int(LONG / seconds) if seconds else PART))
    least = max(1, min(LEAST_PART, int(SHORT / seconds) if seconds else LEAST_PART))
    parts, begin = [], 0
    while begin < count:
        taken = min(most, max(least, -(-(count - begin) // TAIL)))
        parts.append(np.arange(begin, min(begin + taken, count)))
        begin += taken
    return parts


def batch_size(plan: Plan, method: Method, work: Work, count: int) -> int:
    """The number of inputs at once that memory for their slopes allows, 64 at most."""
    if method.singly:
        return 1
    margins = _CONDITION * plan.graph.output_size * plan.graph.dtype.itemsize
    slopes = method.kept_bytes(plan)
    kept, certain = margins + slopes.likely, margins + slopes.certain
    # Each is there twice, as it is and as it was at the radius proved; rows want their part, too.
    least = 2 * certain + plan.row_bytes(plan.graph.output)
    if least > max(work.memory, LITTLE):
        raise InvalidInput(
            f"memory (--memory) of {_mib(work.memory)} is too little: one input's "
            f"{'slopes and ' if slopes.likely else ''}margins take {_mib(least)}; "
            "give as much, a target class, or with the method frown a larger group (--group), or "
            "take the method crown"
        )
    return int(max(1, min(64, count, work.memory // (4 * kept))))


def _mib(size: int) -> str:
    return f"{-(-size // (1 << 20)):,} MiB"


def rows_of(
    findings: Findings, compared: Compared, kept: Kept, method: str, seconds: float
) -> list[Row]:
    """A row for every input of a batch as it stands."""
    begun, broken, before = findings.begun, findings.broken, findings.searched.unbranched
    wanted, count = begun.problem.property, len(begun.problem)
    place = {int(n): k for k, n in enumerate(begun.right)}
    admitted = wanted.admits(torch.from_numpy(begun.prediction)).tolist()
    remarks = joined(findings.remarks, compared.remarks, kept.remarks)
    rows = []
    for n in range(count):
        prediction, end = int(begun.prediction[n]), float(broken.radius[n])
        row = unanswered(begun.problem, n, method, prediction)
        row = replace(
            row,
            seconds=seconds / max(1, count),
            complete=findings.complete and place.get(n) not in findings.searched.early,
            level="checked" if n in kept.checked else findings.level,
            remark=remarks.get(n, ""),
        )
        if not isinf(end):
            taken = broken_as(wanted, broken.clause, n, prediction)
            row = replace(row, broken=end, broken_as=taken)
        if n in kept.files:
            digest = sha256_of(findings.certificates.get(n))
            row = replace(row, certificate=kept.files[n], certificate_sha256=digest)
        if n in compared.mismatch:
            remark = compared.mismatch[n]
            row = replace(row, status="mismatch", level="estimate", remark=remark)
        elif n in place:
            row = _held(findings, row, n, place[n])
        elif not admitted[n]:
            row = replace(row, status="misclassified")
        elif end == 0:
            tie = "a tie: another class scores as high as the label"
            fails = "the property does not hold at the input itself"
            remark = tie if isinstance(wanted, LabelWins) else fails
            row = replace(row, status="misclassified", remark=remark)
        # What is left is too close to a tie for this precision: nothing is known of it.
        if before is not None:
            end = float(before.broken[n])
            # What lies within a proved radius is proved, whoever found it first.
            least = min(row.radius, float(before.proved[place[n]])) if n in place else None
            row = replace(row, radius_before=least, broken_before=None if isinf(end) else end)
        rows.append(row)
    return rows


def unanswered(problem: Problem, n: int, method: str, prediction: int) -> Row:
    """The row of input n before anything is known of it but the model's own answer."""
    regions, wanted = problem.regions, problem.property
    label, answer, target = classes_of(wanted, n, prediction)
    return Row(
        index=int(regions.index[n]),
        label=label,
        prediction=answer,
        target=target,
        norm=regions.p,
        method=method,
        status="unknown",
        radius=0.0,
        failed=None,
        broken=None,
        margins={},
        seconds=0.0,
        frames=regions.moving(n),
        input=input_digest(regions.x[n]),
        id=regions.ids[n] if regions.ids else "",
        holds=wanted.digest(n),
    )


def _held(findings: Findings, row: Row, n: int, k: int) -> Row:
    """The row of input n, the k-th at which the property holds, with what is proved."""
    problem, bracket = findings.begun.problem, findings.searched.bracket
    asked = None if problem.regions.radius is None else float(problem.regions.radius[n])
    end = inf if row.broken is None else row.broken
    radius, margins = float(findings.radius[k]), dict[int, float]()
    if radius > 0:
        names = rivals(problem.property, n)
        margins = dict(zip(names, findings.margins[k].tolist(), strict=True))
    if asked is not None:
        radius = min(radius, asked)
    whole = radius > 0 and findings.everywhere(k)
    held = asked != 0 or findings.held(k)  # asked about 0, the claim is about the input alone
    remark, failed = row.remark, float(bracket.failed[k])
    if (radius == 0 and float(bracket.proved[k]) > 0) or not held:
        remark = findings.nothing(n)
    if end <= radius and not findings.rigorous:
        # Rounding has fooled the estimate: nothing is left of it.
        radius, margins, whole, held = 0.0, {}, False, False
    elif end <= radius:
        # The proof is of the real-valued network, the counterexample of its execution. Any
        # smaller radius is proved as well, and below `end` nothing speaks against it.
        radius, whole = float(np.nextafter(end, 0.0)), False
        held = held and radius > 0
    status = status_of(radius, whole, held, end, asked)
    return replace(
        row,
        status=status,
        radius=radius,
        failed=None if isinf(failed) else failed,
        margins=margins,
        remark=remark,
        deployed=findings.execution if radius > 0 or status == "certified" else "",
        leaves=findings.leaves(k) if radius > 0 else 0,
    )


def classes_of(
    wanted: Property, n: int, prediction: int
) -> tuple[int | None, int | None, int | None]:
    """Label, prediction and target of input n; None where the property is about no class, or the
    label is to win over all others."""
    labels = wanted.labels()
    if labels is None:
        return None, None, None
    one = wanted.only if isinstance(wanted, LabelWins) else None
    return int(labels[n]), prediction, None if one is None else int(one[n, 0])


def broken_as(
    wanted: Property, clause: Mapping[int, int | None], n: int, prediction: int
) -> int | None:
    """The class that overtakes the label at a counterexample of input n: that of the clause which
    it violates most, by input, or at the input itself. None: it is a tie in which argmax names the
    label, or the property is not about labels."""
    if not isinstance(wanted, LabelWins):
        return None
    if n in clause:
        most = clause[n]
        return None if most is None else rivals(wanted, n)[most]
    if wanted.only is not None:  # the input itself, which only the target must not take
        return int(wanted.only[n, 0])
    return prediction if prediction != int(wanted.label[n]) else None


def rivals(wanted: Property, n: int) -> list[int]:
    """The names of input n's margins: other classes, or the clauses' numbers."""
    if isinstance(wanted, LabelWins):
        return [int(c) for c in wanted.targets[n].tolist()]
    return list(range(wanted.clauses))


def status_of(radius: float, whole: bool, held: bool, broken: float, eps: float | None) -> str:
    """The status of a row with a proved radius: `whole` if it is all of the valid range, `held`
    if the property is proved there, `eps` the one that was asked about."""
    if eps is not None:
        if held and radius >= eps:
            return "certified"
        if held and whole and radius > 0:
            return "robust"
        return "falsified" if broken <= eps else "unknown"
    if whole:
        return "robust"
    return "certified" if radius > 0 else "unknown"
