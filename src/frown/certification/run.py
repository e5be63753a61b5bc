"""Many inputs, batch by batch: what is known of each is handed over as it is finished."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from frown.bounds.arithmetic.float32 import PRECISIONS, check_execution
from frown.bounds.clock import NO_LIMIT, Clock, OutOfTime
from frown.bounds.memory import half_of_free
from frown.bounds.method import Method
from frown.bounds.plan import Plan
from frown.bounds.work import Pool, Work, pool_of
from frown.certification.agreement import compare_regions
from frown.certification.answers import answers
from frown.certification.attack import Attack
from frown.certification.batch import Batch
from frown.certification.certificate import check_certifiable
from frown.certification.folder import CERTIFICATES_LOCK, Lock, require_writable, write_whole
from frown.certification.prove import LEVELS, Prover
from frown.certification.results import Row
from frown.certification.search import CHECK, Certifier
from frown.certification.statement import input_digest
from frown.errors import InvalidInput, OutputError
from frown.graph.graph import Graph
from frown.graph.simplify import tidy
from frown.methods import described, kind_of, method_of
from frown.methods.crown import RULES
from frown.methods.frown.network import Frown
from frown.problem.inputs import real_number, whole_number
from frown.problem.query import Query
from frown.read.model import Model

if TYPE_CHECKING:
    from frown_check.checker import Claim


ATTACK = 0.15  # of the time, where it is limited, is for the attack
LITTLE = 16 << 20  # bytes: what takes less is not refused, however small the budget
BOXES = ("lp", "crown", "frown")
STARTS = ("frown", "crown")
_CONDITION = 32  # numbers that a search keeps of each margin of an input
CROWN = 0.4  # of what is left then, for radii by fixed lines before optimised ones, or until
# something is proved


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long call has come."""

    done: int
    total: int
    proved_mean: float  # of the inputs done
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How `certify` and `sensitivity` look for radii: their options of the same names."""

    method: str | Method = "frown"  # by its name and the options below, or as it is
    tol: float = 0.01
    group: int = 1
    wide: bool = False
    rule: str = "area"
    steps: int | None = None
    tangents: int = 3
    boxes: str = "lp"
    workers: int = 1
    hot: bool = True
    start: str = "frown"
    dtype: str = "float32"
    device: str = "cpu"
    memory: int | None = None
    time_limit: float | None = None
    attack: bool | Attack = True
    batch: int | None = None
    level: str = "rigorous"
    certificates: Path | None = None
    deployed: str | None = None

    def __post_init__(self) -> None:
        if not 0 < real_number(self.tol, "tol") < 1:
            raise InvalidInput(f"tol must lie between 0 and 1, not {self.tol}")
        if self.time_limit is not None and not real_number(self.time_limit, "time_limit") > 0:
            raise InvalidInput(f"time_limit (--time-limit) must be positive, not {self.time_limit}")
        if not isinstance(self.attack, bool | Attack | None):
            raise InvalidInput(f"attack must be True, False or an Attack, not {self.attack!r}")
        if self.batch is not None:
            whole_number(self.batch, "batch")
        if self.kind.estimates and (self.level == "checked" or self.certificates is not None):
            raise InvalidInput(
                f"bounds of the method {self.kind.name} have no certificates: "
                "take frown, crown or lp"
            )
        if self.level == "checked" and self.certificates is None:
            raise InvalidInput(
                "the level checked needs a folder for certificates (--certificates DIR)"
            )
        if self.deployed is not None:
            if self.deployed not in PRECISIONS:
                raise InvalidInput(f"deployed must be float32, not {self.deployed!r}")
            if self.level == "estimate":
                raise InvalidInput("deployed needs rigorous bounds: leave out level=estimate")
            if self.kind.estimates:
                raise InvalidInput(
                    f"deployed needs rigorous bounds, and those of the method {self.kind.name} are "
                    "estimates: take frown, crown or lp"
                )
        if self.level not in LEVELS:
            raise InvalidInput(f"unknown level {self.level!r}; choose from {', '.join(LEVELS)}")

    def proved(self, model: Model) -> Graph:
        """The graph in which classes are compared. Executed, a last function that keeps the order
        over the real numbers may round two outputs to one, so `deployed` has all of it."""
        return model.ranking if self.deployed is None else model.graph

    def clock(self, began: float) -> Clock:
        """The deadline of a call that began then."""
        return NO_LIMIT if self.time_limit is None else Clock(began + self.time_limit)

    def _bytes(self) -> int:
        if self.memory is None:
            return half_of_free(self.device)
        return whole_number(self.memory, "memory (--memory)")

    def chosen(self) -> Method:
        """The method with those of the options that it has; all of them must make sense."""
        if isinstance(self.method, Method):
            return self.method
        for name, choices in (("rule", tuple(RULES)), ("boxes", BOXES), ("start", STARTS)):
            if getattr(self, name) not in choices:
                raise InvalidInput(
                    f"unknown {name} {getattr(self, name)!r}; choose from {', '.join(choices)}"
                )
        whole_number(self.workers, "workers")
        own = {
            "group": whole_number(self.group, "group", least=0),
            "wide": self.wide,
            "rule": self.rule,
            "steps": None if self.steps is None else whole_number(self.steps, "steps"),
            "tangents": whole_number(self.tangents, "tangents"),
            "inner": None if self.boxes == "lp" else self.boxes,
            "start_at": Frown() if self.start == "frown" else None,
            "hot": self.hot,
        }
        kind = kind_of(self.method)
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        return method_of(self.method, **{k: v for k, v in own.items() if k in known})

    @property
    def kind(self) -> type[Method]:
        """The method's class."""
        return type(self.method) if isinstance(self.method, Method) else kind_of(self.method)

    def told(self, method: Method) -> dict[str, Any]:
        """The method's options as users give them, for the record."""
        if isinstance(self.method, Method):
            return described(method)
        ascent = method.ascent if isinstance(method, Frown) else Frown(steps=self.steps).ascent
        names = ("group", "wide", "rule", "tangents", "boxes", "workers", "hot", "start")
        own = {name: getattr(self, name) for name in names}
        return {"method": self.method, **own, "ascent": asdict(ascent)}

    def work(self, clock: Clock, pool: Pool) -> Work:
        """What the computation may use."""
        return Work(self._bytes(), clock, pool)


def certificate_name(index: int, frame: int | None = None) -> str:
    """The file of an input's certificate, or of that of one of its frames alone."""
    alone = "" if frame is None else f"-frame-{frame:03d}"
    return f"input-{index:06d}{alone}.frown"


@dataclass(frozen=True, slots=True)
class Question:
    """Inputs with what is asked of them."""

    query: Query
    radii: NDArray[np.float64] | None  # to check instead of searching
    numbers: NDArray[np.int64]  # what the user calls the inputs
    certificate: Callable[[int], str] = certificate_name  # a number's certificate


def answered(
    model: Model,
    plan: Plan,
    question: Question,
    search: Search,
    clock: Clock,
    progress: Callable[[Progress], None] | None,
    on_rows: Callable[[list[Row], dict[int, NDArray[np.float64]]], None] | None,
) -> tuple[Batches, dict[str, Any]]:
    """All batches, worked through, and how."""
    query, radii = question.query, question.radii
    for name, call in (("progress", progress), ("on_rows", on_rows)):
        if call is not None and not callable(call):
            raise InvalidInput(f"{name} must be a function, not {call!r}")
    method = search.chosen()
    attack = Attack() if search.attack is True else search.attack or None
    method.refuse(plan, query.p)
    size = search.batch or batch_size(plan, method, search.work(clock, Pool()), len(query))
    shelf = Shelf.open(model, search, question)
    taken = nullcontext() if shelf is None else shelf.lock
    with taken, torch.no_grad(), pool_of(search.workers if method.singly else 1) as pool:
        work = search.work(clock, pool)
        after = 0.0 if search.level == "estimate" else 1 + CHECK * (search.level == "checked")
        certifier = Certifier(model, plan, method, search.tol, attack, work, proofs=after)
        prover = None
        if search.level != "estimate":
            exact = Plan(tidy(search.proved(model)))
            if search.deployed is not None:
                check_execution(exact.graph)
            prover = Prover(certifier, exact, shelf is not None, search.deployed or "", work)
        run = Batches(
            certifier, prover, shelf, query, radii, question.numbers, size, progress, on_rows
        )
        run.all()
    frames = {}
    if query.frames is not None:
        frames = {"frames": query.frames.name, "frame_axis": query.frames.axis}
    return run, {
        "norm": query.p,
        "target": "all" if query.target is None else "given",
        "bounds": None if query.range is None else "given",
        "eps": None if radii is None else "given",
        **frames,
        "tol": search.tol,
        "dtype": search.dtype,
        "device": search.device,
        "level": search.level,
        "deployed": search.deployed,
        "time_limit": search.time_limit,
        "attack": None if attack is None else asdict(attack),
        "memory": work.memory,
        **search.told(method),
    }


@dataclass(frozen=True)
class Shelf:
    """Where certificates go."""

    model: Model
    folder: Path
    check: bool
    name: Callable[[int], str]
    lock: Lock

    @classmethod
    def open(cls, model: Model, search: Search, question: Question) -> Shelf | None:
        """Make sure that certificates can be written, before any work, and by no other run."""
        if search.certificates is None:
            return None
        if search.level == "estimate":
            raise InvalidInput("certificates need rigorous bounds: use level rigorous or checked")
        check_certifiable(model)
        if search.proved(model) is not model.ranking:
            raise InvalidInput(
                f"{model.name} ends in a function that keeps the order of the outputs: deployed "
                "counts its rounding, certificates leave it out; ask for one of the two"
            )
        numbers, times = np.unique(question.numbers, return_counts=True)
        if len(numbers) < len(question.numbers):
            twice = numbers[times.argmax()]
            raise InvalidInput(f"certificates are named by indices: several inputs have {twice}")
        try:
            require_writable(search.certificates)
            lock = Lock.take(search.certificates, CERTIFICATES_LOCK, "certificates")
        except OSError as error:
            raise OutputError(
                f"cannot write certificates to {search.certificates}: {error.strerror}; choose "
                "another folder (--certificates)"
            ) from None
        return cls(
            model, search.certificates, search.level == "checked", question.certificate, lock
        )

    def keep(self, batch: Batch, clock: Clock) -> None:
        """Write the batch's certificates and, if asked to, have each checked while time is left."""
        for n in batch.mismatch:  # one of an earlier run says what no longer holds
            (self.folder / self.name(int(batch.index[n]))).unlink(missing_ok=True)
        for n, content in list(batch.certificate.items()):
            file = self.folder / self.name(int(batch.index[n]))
            try:
                write_whole(file, content)
            except OSError as error:
                raise OutputError(f"{file} cannot be written: {error.strerror}") from None
            batch.certificate_file[n] = file.name
            if self.check:
                import frown_check

                assert self.model.path is not None
                try:
                    clock.check()
                    verdict = frown_check.check(file, self.model.path, lambda _: clock.check())
                except OutOfTime:
                    batch.say(n, "the time limit came before its certificate was checked")
                    continue
                if not verdict.accepted:
                    self._discard(batch, n, f"the checker refused: {verdict.reason}")
                elif verdict.claim is not None and self._meant(verdict.claim, batch, n):
                    batch.checked.add(n)
                else:
                    self._discard(batch, n, "the checker accepted another statement")

    def _discard(self, batch: Batch, n: int, reason: str) -> None:
        """Leave no file in the folder that was checked and is not what its row says."""
        (self.folder / batch.certificate_file.pop(n)).unlink(missing_ok=True)
        del batch.certificate[n]
        batch.say(n, reason)

    def _meant(self, claim: Claim, batch: Batch, n: int) -> bool:
        """Whether a claim is what the row of input n is going to say."""
        query, place = batch.query, batch.right.tolist().index(n)
        others = query.targets(self.model.graph.output_size)[n].tolist()

        def same(claimed: NDArray[np.float64] | None, own: NDArray[np.float64] | None) -> bool:
            if claimed is None or own is None:
                return claimed is own
            own = own[n if len(own) > 1 else 0]
            return np.array_equal(
                claimed, np.broadcast_to(own, query.x.shape[1:]).reshape(claimed.shape)
            )

        lower, upper = (query.range.lower, query.range.upper) if query.range else (None, None)
        scale = np.ones((1, 1)) if query.scale is None else query.scale
        return (
            same(claim.scale, scale)
            and same(claim.lower, lower)
            and same(claim.upper, upper)
            and np.array_equal(claim.ball.ravel(), query.balls().ravel())
            and claim.radius >= batch.proof(place, others)[0]
            and (claim.norm, claim.label) == (query.p, int(query.label[n]))
            and sorted(claim.others) == sorted(others)
            and np.array_equal(claim.centre.ravel(), query.x[n].ravel())
        )


def batch_size(plan: Plan, method: Method, work: Work, count: int) -> int:
    """As many inputs at once as memory for their slopes allows, 64 at most."""
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


class Batches:
    """Batches in order; rows are handed over as they are finished."""

    def __init__(
        self,
        certifier: Certifier,
        prover: Prover | None,
        shelf: Shelf | None,
        query: Query,
        eps: NDArray[np.float64] | None,
        numbers: NDArray[np.int64],
        size: int,
        progress: Callable[[Progress], None] | None,
        on_rows: Callable[[list[Row], dict[int, NDArray[np.float64]]], None] | None,
    ) -> None:
        self.certifier, self.query, self.eps, self.numbers = certifier, query, eps, numbers
        self.prover, self.shelf = prover, shelf
        self.size, self.progress, self.on_rows = size, progress, on_rows
        self.rows: list[Row] = []
        self.stage = certifier.method.name
        self.counterexamples: dict[int, NDArray[np.float64]] = {}
        self.parts = [np.arange(a, min(a + size, len(query))) for a in range(0, len(query), size)]

    def all(self) -> None:
        """Where time is limited, every input gets its cheap radius before any is optimised.

        An interrupt hands over what the batches under way have proved.
        """
        limited = self.certifier.clock != NO_LIMIT
        waiting: list[tuple[NDArray[np.int64], Batch]] = []
        try:
            if limited:
                self._prepare(waiting)
            for k, part in enumerate(self.parts):
                certifier = self.certifier
                if limited:
                    certifier = self._within(certifier.clock.share(len(self.parts) - k))
                else:
                    batch = self._begin(part)
                    certifier.strike(batch, self.eps is not None)
                    waiting.append((part, batch))
                batch = waiting[0][1]
                if not (limited and self._in_two):
                    self._tell("crown" if self._in_two else "search")
                    certifier.bracket(batch, self.eps is not None, self._pulse)
                self._tell(certifier.method.name)
                certifier.tighten(batch, self.eps is not None, self._pulse)
                # A proof that takes longer than it should leaves something to those behind it.
                clock = certifier.clock
                if limited:
                    clock = self.certifier.clock.share((len(self.parts) - k + 1) // 2)
                self._prove_in_time(part, batch, self._within(clock))
                while limited and self.eps is None and certifier.go_on(batch, self._pulse):
                    self._prove(part, batch, clock)
                self._compare(part, batch)
                self._keep(batch, clock)
                self._hand_over(*waiting.pop(0))
        except KeyboardInterrupt:
            for part, batch in waiting:
                batch.complete = False
                self._cut_short(batch)
                self._compare(part, batch)
                self._hand_over(part, batch)
            raise

    @property
    def _in_two(self) -> bool:
        """Whether a search with fixed lines comes before another."""
        return self.certifier.optimised

    def _within(self, clock: Clock) -> Certifier:
        return self.certifier.within(clock)

    def _prepare(self, waiting: list[tuple[NDArray[np.int64], Batch]]) -> None:
        """What is cheap, for all inputs: radii by plain intervals, the attack within its part of
        the time and, where another method goes on, CROWN's radii within theirs; all proved."""
        clock, fixed, count = self.certifier.clock, self.eps is not None, len(self.parts)
        for part in self.parts:
            batch = self._begin(part)
            self._tell("interval")
            self.certifier.glance(batch, fixed, self._pulse)
            self._prove(part, batch, clock, inside=False)
            waiting.append((part, batch))
        attack = clock.part(ATTACK)
        for k, (_, batch) in enumerate(waiting):
            self._tell("attack")
            self._within(attack.share(count - k)).strike(batch, fixed)
        first = clock.part(CROWN)
        for k, (part, batch) in enumerate(waiting if self._in_two else []):
            self._tell("crown")
            own, soft = clock.share(count - k), first.share(count - k)
            certifier = self.certifier.within(own, soft)
            certifier.bracket(batch, fixed, self._pulse)
            self._prove_in_time(part, batch, certifier)

    def _begin(self, part: NDArray[np.int64]) -> Batch:
        """One more batch."""
        return self.certifier.start(self.query.take(part), self.numbers[part], self._eps(part))

    def _prove(
        self,
        part: NDArray[np.int64],
        batch: Batch,
        clock: Clock,
        share: float = 1.0,
        inside: bool = True,
    ) -> None:
        """What the search found, or a share of its radii, with all rounding accounted for."""
        if self.prover is not None:
            self._tell("rigorous")
            began = monotonic()
            work = replace(self.prover.work, clock=clock)
            prover = replace(self.prover, work=work, inside=inside, share=share)
            prover.prove(batch, self._eps(part))
            batch.seconds += monotonic() - began

    def _prove_in_time(self, part: NDArray[np.int64], batch: Batch, certifier: Certifier) -> None:
        """The same; smaller radii first, should there be too little time for a whole proof."""
        haste = certifier.in_haste(batch)
        if haste < 1 and self.eps is None:
            self._prove(part, batch, certifier.clock, haste)
        self._prove(part, batch, certifier.clock)

    def _keep(self, batch: Batch, clock: Clock) -> None:
        """The batch's certificates."""
        if self.shelf is not None:
            self._tell("certificates")
            began = monotonic()
            self.shelf.keep(batch, clock)
            batch.seconds += monotonic() - began

    def _compare(self, part: NDArray[np.int64], batch: Batch) -> None:
        """Ask the original about the regions that are about to be called proved."""
        if not batch.compared:
            began = monotonic()
            model, graph = self.certifier.model, self.certifier.plan.graph
            compare_regions(model, graph, batch, self._eps(part))
            batch.compared = True
            batch.seconds += monotonic() - began

    def _cut_short(self, batch: Batch) -> None:
        """Which of the steps that were asked for an interrupt has left out."""
        wanted = batch.certificate if self.shelf is not None and self.shelf.check else {}
        unchecked = wanted.keys() - batch.checked
        for n in batch.right.tolist() if self.prover is not None else []:
            if batch.rigorous is None:
                batch.say(n, "interrupted before rounding errors were accounted for")
            elif n in batch.certificate and n not in batch.certificate_file:
                batch.say(n, "interrupted before its certificate was written")
            elif n in unchecked and n not in batch.remark:
                batch.say(n, "interrupted before its certificate was checked")

    def _pulse(self, batch: Batch) -> None:
        """A sign of life after every radius: the mean proved so far, this batch included."""
        if self.progress is not None:
            proved = [r.radius for r in self.rows] + batch.bracket.proved.tolist()
            mean = sum(proved) / max(1, len(proved))
            self.progress(Progress(len(self.rows), len(self.query), mean, self.stage))

    def _hand_over(self, part: NDArray[np.int64], batch: Batch) -> None:
        method, outputs = self.certifier.method.name, self.certifier.plan.graph.output_size
        rows = [
            replace(row, input=input_digest(x))
            for row, x in zip(
                answers(batch, method, outputs, self._eps(part)), batch.query.x, strict=True
            )
        ]
        found = {int(batch.index[n]): point for n, point in batch.counterexample.items()}
        self.rows += rows
        self.counterexamples |= found
        if self.on_rows is not None:
            self.on_rows(rows, found)
        self._tell("done")

    def _eps(self, part: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return None if self.eps is None else self.eps[part]

    def _tell(self, stage: str) -> None:
        self.stage = stage
        if self.progress is not None:
            mean = float(np.mean([r.radius for r in self.rows])) if self.rows else 0.0
            self.progress(Progress(len(self.rows), len(self.query), mean, stage))
