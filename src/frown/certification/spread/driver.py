"""Spread the batches of a run over workers.

Batches are the same whatever the number of workers, and each is answered by one of them as it
would be here, so radii are the same, bit by bit; only the order of rows differs. Where time is
limited, every worker has its share of the batches from the beginning, and all of the time.

A worker that is lost costs its batches another try, then a try input by input, so that an input
on which workers die is alone in having no answer.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from frown.bounds.method import Closing
from frown.bounds.work import NO_LIMIT, Clock, cores, now, pool_of
from frown.certification.certificates import Certificates
from frown.certification.procedure import Procedure
from frown.certification.prove import Rigorous
from frown.certification.run import (
    PART,
    PAYS,
    Outcome,
    Progress,
    Tally,
    Watch,
    batch_size,
    parts_of,
)
from frown.certification.spread.messages import (
    Done,
    Failed,
    Handed,
    Lost,
    Message,
    Order,
    Ready,
    Told,
    Workers,
)
from frown.certification.spread.processes import Processes
from frown.certification.spread.vetting import Vetting
from frown.errors import InvalidInput, WorkersLost
from frown.problem.problem import Problem

BEAT = 0.5  # seconds between two looks at the clock
GRACE, MORE = 10.0, 0.2  # beyond a time limit, in seconds and as a share, before a worker is ended
PARTING = 5.0  # seconds for workers to hand over what they have after an interrupt
MOVES = 10  # times that batches outlive the machine they are on
STILLBORN = 3  # workers in a row that end before they are ready

Places = NDArray[np.int64]


def shared(
    procedure: Procedure,
    problem: Problem,
    watch: Watch,
    clock: Clock,
    wanted: NDArray[np.bool_] | None,
) -> Iterator[Outcome]:
    """Answer all inputs, batch by batch, in this process or in several; batches without a `wanted`
    input (N,) are left out. An interrupt is raised after the rows that are proved have been
    yielded."""
    machine, method, seconds = procedure.machine, procedure.method, procedure.seconds()
    if machine.cluster is None:
        count = machine.workers or _paying(procedure, seconds * len(problem), clock)
    else:  # memory is of every worker
        count = cores() if machine.memory is None else 1
    # Where inputs are few, processes share one: its programs, or the leaves of its tree.
    shares = method.singly or isinstance(method, Closing)
    work = machine.work(clock)
    size = machine.batch
    if size is None:
        budget = replace(work, memory=work.memory // count)
        size = batch_size(procedure.plan, method, budget, len(problem))
    if clock == NO_LIMIT and machine.batch is None:
        parts = parts_of(len(problem), size, seconds)
        if isinstance(method, Closing):
            # Inputs of a batch share their seconds, so that hard ones gain from easy ones.
            each = min(size, PART, -(-len(problem) // count))
            parts = np.split(np.arange(len(problem)), range(each, len(problem), each))
    else:  # equal parts of the time
        parts = np.split(np.arange(len(problem)), range(size, len(problem), size))
    chosen = [p for p in parts if wanted is None or wanted[p].any()]

    def certificates(taken: ExitStack) -> Certificates | None:
        if not isinstance(procedure.proof, Rigorous) or not procedure.proof.certified:
            return None
        return Certificates.open(procedure.model, problem, procedure.proof, taken)

    if machine.cluster is not None:
        _refuse_unproved(procedure)
        sent = _travelling(procedure)
        batches = len(chosen) if shares else 0
        start = partial(_on_cluster, machine.cluster, sent, machine.workers, batches)
        return _by(start, procedure, problem, chosen, watch, clock, certificates)
    count = min(count, len(chosen))
    sent = (
        b""
        if count <= 1
        else _pickled(procedure, work.memory // count, machine.workers is not None)
    )
    if not sent:
        pool = pool_of(machine.workers or 1 if shares and len(chosen) == 1 else 1)
        return procedure.outcomes(problem, chosen, watch, work, certificates, pool)
    start = partial(_on_this_machine, sent, count, (machine.workers or 1) // count if shares else 1)
    return _by(start, procedure, problem, chosen, watch, clock, certificates)


def _refuse_unproved(procedure: Procedure) -> None:
    """Raise InvalidInput where the level `checked` would rest on the word of workers."""
    proof = procedure.proof
    if isinstance(proof, Rigorous) and proof.check and proof.execution is not None:
        raise InvalidInput(
            "deployed (--deployed) has no certificate, so that of a cluster's workers nobody could "
            "check it: take the level rigorous, or no cluster"
        )


def _on_this_machine(sent: bytes, count: int, spare: int) -> tuple[Workers, int]:
    workers = Processes(sent, count)
    workers.spare = max(1, spare)
    return workers, count


def _on_cluster(address: str, sent: bytes, most: int | None, batches: int) -> tuple[Workers, int]:
    from frown.certification.spread.cluster import Cluster

    cluster = Cluster(address, sent, most, batches)
    return cluster, cluster.count


def _by(
    start: Callable[[], tuple[Workers, int]],
    procedure: Procedure,
    problem: Problem,
    parts: Sequence[Places],
    watch: Watch,
    clock: Clock,
    certificates: Callable[[ExitStack], Certificates | None],
) -> Iterator[Outcome]:
    with ExitStack() as taken:
        kept = certificates(taken)
        workers, count = start()
        taken.callback(workers.close)
        vetting = Vetting(procedure, problem, kept, clock, workers.trusted)
        yield from SharedRun(vetting, parts, watch, workers, count).all()


def _paying(procedure: Procedure, seconds: float, clock: Clock) -> int:
    """The number of processes that share a run with profit, which takes one this long."""
    cpu = torch.device(procedure.machine.device).type == "cpu"
    return cores() if cpu and min(seconds, clock.left()) >= PAYS else 1


def _travelling(procedure: Procedure) -> bytes:
    """A procedure for other machines; InvalidInput where it reads files of this one."""
    run = procedure.model.run
    while hasattr(run, "run"):  # behind a normalisation
        run = run.run
    if isinstance(getattr(run, "source", None), str):
        raise InvalidInput(
            f"{procedure.model.name} has weights in other files, which a cluster does not have: "
            "save it as one file (onnx.save), or leave out cluster"
        )
    return _pickled(procedure, procedure.machine.memory, True)


def _pickled(procedure: Procedure, memory: int | str | None, asked: bool) -> bytes:
    """A procedure for workers; empty where it cannot be pickled and no workers were asked for.

    Raises InvalidInput where somebody did.
    """
    try:
        content = pickle.dumps(procedure.with_memory(memory))
        reason = "a class or function of it is defined in the script itself"
        if b"__main__" not in content:
            return content
    except Exception as error:  # whatever an object's own pickling raises
        reason = f"{type(error).__name__}: {error}"
    if not asked:
        return b""
    raise InvalidInput(
        f"workers (--workers) cannot be given the model or the method: {reason}; move it to a "
        "module that can be imported, or leave out workers"
    )


@dataclass(frozen=True)
class _Task:
    """Batches that one worker is to answer."""

    parts: tuple[Places, ...]
    tries: int = 0  # workers lost over it
    moves: int = 0  # machines lost over it


@dataclass
class _Assigned:
    """A task in the hands of a worker, which only the run changes."""

    number: int
    task: _Task
    due: float  # when the worker is ended by force
    left: dict[frozenset[int], Places]  # batches not yet handed over, by places in the order
    progress: Progress | None = None


class SharedRun:
    """A run that workers share."""

    def __init__(
        self,
        vetting: Vetting,
        parts: Sequence[Places],
        watch: Watch,
        workers: Workers,
        count: int,
    ) -> None:
        """Prepare a run.

        Args:
            vetting: what the driver makes of rows; has the problem and the deadline.
            parts: the batches.
            workers: started already.
            count: how many of them share the batches where time is limited.
        """
        self.vetting, self.watch, self.workers = vetting, watch, workers
        self.clock, self.problem = vetting.clock, vetting.problem
        self.each = vetting.procedure.machine.each
        self.total = sum(map(len, parts))
        groups = [(part,) for part in parts]
        if self.clock != NO_LIMIT:
            shares = (tuple(parts[k::count]) for k in range(count))
            self.waiting = deque(_Task(share) for share in shares if share)
        else:
            self.waiting = deque(map(_Task, groups))
        self.assigned: dict[int, _Assigned] = {}
        self.ready: set[int] = set()
        self.idle: deque[int] = deque()
        self.arrived: deque[Outcome] = deque()  # places are those of the problem
        self.done, self.stage = Tally(), "starting"
        self.orders = self.stillborn = 0
        self.parting = False

    def all(self) -> Iterator[Outcome]:
        """All outcomes, in the order in which workers have them. An interrupt yields what they
        have proved, and is raised then."""
        self._tell()
        try:
            yield from self._outcomes(inf)
        except KeyboardInterrupt:
            self.parting = True
            self.waiting.clear()
            self.workers.interrupt()
            yield from self._outcomes(now() + PARTING)
            raise

    def _outcomes(self, end: float) -> Iterator[Outcome]:
        while self.arrived or ((self.waiting or self.assigned) and now() < end):
            self._listen(0.0 if self.arrived else min(BEAT, max(0.0, end - now())))
            if self.arrived:
                outcome = self._vetted(self.arrived.popleft())
                rows = outcome.rows
                self.done = self.done.plus([r.radius for r in rows], [r.broken for r in rows])
                yield outcome
                self._tell()

    def _listen(self, seconds: float) -> None:
        """Give orders, hear what has come, and end workers that are far behind their time."""
        self._assign()
        for worker, message in self.workers.receive(seconds):
            self._take(worker, message)
        if self.waiting and self.clock.expired():
            for task in self.waiting:
                self._give_up(task.parts, "no worker had time for it")
            self.waiting.clear()
        for worker, held in self.assigned.items():
            if now() > held.due:
                held.due = inf
                self.workers.end(worker)
        self._assign()

    def _assign(self) -> None:
        while self.waiting and self.idle:
            worker, task = self.idle.popleft(), self.waiting.popleft()
            places = np.concatenate(task.parts)
            ends = np.cumsum([len(part) for part in task.parts])
            local = tuple(np.split(np.arange(len(places)), ends[:-1]))
            left = {
                frozenset(own.tolist()): part for own, part in zip(local, task.parts, strict=True)
            }
            limit = self.clock.left()
            longest = limit if self.each is None else min(limit, self.each * len(places))
            due = now() + longest + max(GRACE, MORE * longest)
            self.orders += 1
            self.assigned[worker] = _Assigned(self.orders, task, due, left)
            seconds = None if self.clock == NO_LIMIT else limit
            own = self.problem.take(places)
            order = Order(self.orders, own, local, seconds, self.workers.spare)
            self.workers.send(worker, order)

    def _take(self, worker: int, message: Message) -> None:
        held = self.assigned.get(worker)
        match message:
            case Ready():
                self.ready.add(worker)
                self.idle.append(worker)
                self.stillborn = 0
            case Told(number, progress) if held is not None and held.number == number:
                held.progress, self.stage = progress, progress.stage
                self._tell()
            case Handed(number, outcome) if held is not None and held.number == number:
                own = frozenset(outcome.places)
                part = held.left.get(own)
                if part is not None and len(outcome.rows) == len(outcome.places) == len(part):
                    del held.left[own]
                    held.progress = None
                    order = np.argsort(outcome.places)  # as the batch has its inputs
                    moved = {int(outcome.places[k]): int(n) for k, n in zip(order, part)}
                    self.arrived.append(_moved(outcome, moved))
            case Done(number) if held is not None and held.number == number:
                del self.assigned[worker]
                self.idle.append(worker)
                if held.left:
                    self._again(held, Lost("its worker left it out"))
            case Failed(error):
                raise error
            case Lost():
                self._lose(worker, message)
            case _:
                pass  # of an order that is no longer the worker's

    def _lose(self, worker: int, lost: Lost) -> None:
        held = self.assigned.pop(worker, None)
        if worker in self.idle:
            self.idle.remove(worker)
        if worker not in self.ready and not lost.blameless:
            self.stillborn += 1
        if self.stillborn >= STILLBORN:
            raise WorkersLost(f"workers end before they have begun: {lost.reason}")
        if held is not None:
            self._again(held, lost)
        if not self.parting and (self.waiting or self.assigned):
            self.workers.renew()

    def _again(self, held: _Assigned, lost: Lost) -> None:
        """Have batches done that a worker was lost over; an input on its own is given up."""
        left, task = tuple(held.left.values()), held.task
        if self.parting or not left:
            return
        if lost.blameless and task.moves < MOVES:
            self.waiting.appendleft(replace(task, parts=left, moves=task.moves + 1))
        elif self.clock.expired():
            self._give_up(left, f"{lost.reason}, when its time was over")
        elif task.tries == 0:
            self.waiting.appendleft(replace(task, parts=left, tries=1))
        elif sum(map(len, left)) > 1:
            alone = [part[k : k + 1] for part in left for k in range(len(part))]
            self.waiting.extendleft(_Task((one,), tries=2) for one in reversed(alone))
        else:
            self._give_up(left, f"{lost.reason}, as another one before")

    def _give_up(self, parts: Sequence[Places], why: str) -> None:
        places = tuple(np.concatenate(parts).tolist())
        rows = tuple(self.vetting.nothing(n, why) for n in places)
        self.arrived.append(Outcome(rows, {}, provisional=True, places=places))

    def _vetted(self, outcome: Outcome) -> Outcome:
        """An outcome as the driver keeps it; meanwhile workers get their orders."""
        regions, rows, points = self.problem.regions, [], dict(outcome.counterexamples)
        # Cut short, or the driver's own: there is no time for certificates that need not be.
        leave = outcome.provisional and not self.vetting.wary
        certificates = {} if leave else outcome.certificates
        for n, row in zip(outcome.places, outcome.rows, strict=True):
            key = regions.key(n)
            rows.append(self.vetting.row(n, row, certificates.get(n), points.get(key)))
            if rows[-1].broken is None:
                points.pop(key, None)
            self._listen(0.0)
        known = {regions.key(n) for n in outcome.places}
        found = {key: point for key, point in points.items() if key in known}
        return replace(outcome, rows=tuple(rows), counterexamples=found, certificates={})

    def _tell(self) -> None:
        """Progress: rows that are done, and what workers say of those under way."""
        means, underway = self.done, 0
        for held in self.assigned.values():
            if held.progress is not None and held.progress.underway:
                means = means.joined(held.progress)
                underway += held.progress.done + held.progress.underway
        told = means.progress(self.total, self.stage)
        self.watch.progress(replace(told, done=self.done.count, underway=underway))


def _moved(outcome: Outcome, moved: dict[int, int]) -> Outcome:
    """An outcome with the places of the whole problem."""
    return replace(
        outcome,
        places=tuple(moved[n] for n in outcome.places),
        certificates={moved[n]: c for n, c in outcome.certificates.items() if n in moved},
    )
