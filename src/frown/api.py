"""The Python interface: load, certify, sensitivity, verify, bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from frown import __version__
from frown.bounds.method import Method
from frown.bounds.work import (
    Clock,
    Machine,
    OutOfTime,
    fitting_threads,
    in_plain_surroundings,
    now,
    pool_of,
)
from frown.certification.attack import PGD
from frown.certification.certificate import check_certifiable, query_proof
from frown.certification.falsify import Falsifier
from frown.certification.folder import reported as written_as
from frown.certification.folder import require_writable, write_whole
from frown.certification.inspect import Bounded, bounded
from frown.certification.procedure import Procedure, plan_for
from frown.certification.prove import Estimate, Rigorous, proof_of
from frown.certification.results import Certification, Row, Sensitivity
from frown.certification.run import LITTLE, Outcome, Progress, Watch, each
from frown.certification.search import At, Largest, search_of
from frown.certification.spread.driver import shared
from frown.certification.spread.messages import out_of_memory
from frown.certification.statement import KEY, Statement, statement_of
from frown.certification.witness import Group, PosedQuery, Unsatisfied, Verdict, Witness
from frown.errors import InvalidInput, UnsupportedModel
from frown.graph.affine import Reshape
from frown.graph.graph import Graph, Node
from frown.methods import described, method_of
from frown.methods.branch.inputs import with_helpful_sums
from frown.methods.branch.method import Branch
from frown.methods.frown.network import Frown
from frown.problem.inputs import numbers_of, radii_of
from frown.problem.problem import Box, Moving, Problem, Regions, Where, frames_of, where_of
from frown.problem.property import (
    Answers,
    Condition,
    Labels,
    LabelWins,
    LinearProperty,
    condition_of,
)
from frown.problem.questions import threshold
from frown.problem.vnnlib import VnnLib, read_vnnlib
from frown.read.model import Model
from frown.relax import Sigmoid

if TYPE_CHECKING:
    import onnx
    from torch import nn

__all__ = ["Progress", "Question", "bound", "certify", "load", "plan_for", "sensitivity", "verify"]

BRIEFLY = 1.0  # seconds that the attack on a query takes before any bound, or a tenth of its time
FIRST_ROUNDS = 3  # of that attack, at the most
LAST_ROUNDS = 12  # at the most, of attacks after bounds have proved what they can
ATTACKS = 0.2  # of a proof's time is for attacks beside it
WHOLE = 1 - 1e-6  # of boxes: what is proved of them where rounding is all that is missing
TRIED = 0.1  # of it, at the most, to see whether sums of literals help


@in_plain_surroundings
def load(
    source: str | Path | bytes | nn.Module | onnx.ModelProto,
    example: Any = None,
    *,
    output: str | None = None,
    shape: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
) -> Model:
    """Load a model from an ONNX file, or from a torch module and an example input.

    Args:
        source: the path of an ONNX file, its content as bytes or as an `onnx.ModelProto`, or a
            `torch.nn.Module`.
        example: for a module, a batch of inputs (its first axis counts them) to trace it with.
        output: of an ONNX model with several outputs, the one that is meant; where all others are
            labels, it need not be said.
        shape: of an ONNX model's input whose axes have no sizes, with a batch of 1, or
            `{name: shape}`.

    Half precision (float16, bfloat16) is taken as float32, and `model.taken` says so. The imported
    graph is compared with the original runtime on random inputs.

    Raises InvalidInput where the arguments do not fit, InvalidModel where the file is missing or
    damaged or has weights that are not finite, UnsupportedModel with every operator that has no
    bounds, ModelMismatch where graph and runtime disagree.
    """
    if isinstance(source, str | Path):
        if "\0" in str(source):
            raise InvalidInput("the path of a model holds a null character")
        from frown.read.onnx.load import load_onnx

        return load_onnx(source, output, shape)
    content: Any = source
    if not isinstance(source, bytes | torch.nn.Module) and hasattr(source, "SerializeToString"):
        content = source.SerializeToString()  # of a ModelProto
    if isinstance(content, bytes):
        from frown.read.onnx.load import load_onnx

        return load_onnx(content, output, shape)
    if isinstance(source, torch.nn.Module):
        if output is not None or shape is not None:
            raise InvalidInput(
                "output and shape are of ONNX models: a module's example has its shape"
            )
        from frown.read.torch.load import load_torch

        if example is None:
            raise InvalidInput(
                "a torch module needs an example input to be traced: "
                "frown.load(module, torch.zeros(1, ...))"
            )
        return load_torch(source, example)
    raise InvalidInput(
        f"cannot load a {type(source).__name__}; give a path, a ModelProto or a torch module"
    )


@in_plain_surroundings
def certify(
    model: Model | str | Path,
    where: Where | ArrayLike,
    holds: Condition | ArrayLike | None = None,
    *,
    method: str | Method = "frown",
    search: Largest | At | ArrayLike | None = None,
    proof: Rigorous | Estimate | str = "rigorous",
    attack: PGD | None = PGD(),  # noqa: B008  (a frozen value)
    machine: Machine = Machine(),  # noqa: B008
    watch: Watch | None = None,
) -> Certification:
    """Prove, for every input, the largest radius at which the property holds around it.

    Args:
        model: as `load` gives it, or the path of an ONNX file.
        where: a `Ball(x, norm=2, within=(0, 1))` or a `Box(lower, upper)`; inputs alone
            (N, *model.input_shape) are the centres of balls in the norm infinity.
        holds: `label_wins(y, target)` or another condition; labels alone mean that they win, and
            without any the model's own answers stand in.
        method: `Frown(group=8)`, `Crown()`, ..., or a name. `LP` and `Exact` need `frown[lp]`.
        search: `Largest(tol=0.01)`, or `At(eps)` to check one radius; a number is `At` it.
        proof: `Rigorous(certificates=, check=, execution=)` or `Estimate()`; or the name of a
            level: "rigorous", "estimate", "checked".
        attack: where counterexamples, the other end of brackets, come from; None: no attack.
        machine: device, precision, memory, a time limit (`seconds`, from the call on: each input
            keeps the best radius proved by then), inputs at a time, processes.
        watch: told of progress and of rows as they are finished.

    Raises InvalidInput for what makes no sense or does not fit the model, OutputError where
    certificates cannot be written.
    """
    began = now()
    question = Question.of(_model(model), where, holds, search)
    return question.certified(method_of(method), proof_of(proof), attack, machine, watch, began)


@in_plain_surroundings
def sensitivity(
    model: Model | str | Path,
    where: Where | ArrayLike,
    holds: Condition | ArrayLike | None = None,
    *,
    method: str | Method = "frown",
    search: Largest | At | ArrayLike | None = None,
    proof: Rigorous | Estimate | str = "rigorous",
    attack: PGD | None = PGD(),  # noqa: B008  (a frozen value)
    machine: Machine = Machine(),  # noqa: B008
    watch: Watch | None = None,
) -> Sensitivity:
    """Prove, for every input, the largest radius at which each frame alone may move.

    All other frames stay as they are. A large radius proves that the answer does not depend much on
    a frame; a small one may also be a loose proof.

    Args:
        where: a `Ball(x, frames=Frames("0:3", axis=0))`, whose frames are those to ask about; all
            by default. Not a `Box`.

    Everything else is as for `certify`, and so are the errors. All pairs of input and frame share
    batches: progress counts pairs, and counterexamples go by input and frame.
    """
    began = now()
    question = Question.of(_model(model), where, holds, search, alone=True)
    found = question.certified(method_of(method), proof_of(proof), attack, machine, watch, began)
    assert question.alone is not None
    return Sensitivity(
        found.rows,
        question.alone.chosen,
        found.counterexamples,  # type: ignore[arg-type]
        found.model,
        found.digest,
        found.settings,
        found.version,
    )


@in_plain_surroundings
def verify(
    model: Model | str | Path,
    query: VnnLib | str | Path,
    *,
    real: bool = False,
    certificate: str | Path | None = None,
    level: str = "rigorous",
    method: str | Method | None = None,
    machine: Machine = Machine(),  # noqa: B008  (a frozen value)
    watch: Watch | None = None,
) -> Verdict:
    """Answer a query: is there an input of these boxes whose outputs satisfy these constraints?

    Args:
        model: as `load` gives it, or the path of an ONNX file.
        query: as `frown.problem.vnnlib` reads it, or the path of a VNN-LIB file.
        real: read floating point types that a query of VNN-LIB 2 declares as real numbers.
        certificate: a file for the proof of `unsat`, which `frown check --query` verifies.
        level: "rigorous", or "checked": the independent checker must accept the proof, too.
        method: what refutes it; None: the strongest whose proofs can be replayed, by cases where
            the network allows it.
        machine: device, precision, memory and a time limit (`seconds`).
        watch: told of progress.

    A short attack comes first, then bounds from cheap to costly, and longer attacks beside them.
    `unsat` is always rigorous; a witness is inside the box exactly, and the original model's.

    Raises InvalidInput for a query that is none, does not fit the model or is beyond the theory of
    boxes and linear constraints, OutputError where the certificate cannot be written.
    """
    if level not in ("rigorous", "checked"):
        raise InvalidInput(f"level must be rigorous or checked, not {level!r}")
    clock = machine.clock(now())
    asked = query if isinstance(query, VnnLib) else read_vnnlib(query)
    model = _as_it_is(model if isinstance(model, Model) else load_for(model, asked), model)
    with fitting_threads(model.graph.parameters()):
        posed = PosedQuery.of(model, asked, real)
        check = level == "checked"
        if certificate is not None or check:
            check_certifiable(model)
        if certificate is not None:
            with written_as("write", Path(certificate)):
                require_writable(Path(certificate).absolute().parent)
        told = watch or Watch()
        kept = dict[int, bytes]() if certificate is not None or check else None
        verdict = _Verification(posed, method, machine, told, clock, kept, check).verdict()
        if certificate is not None and verdict.answer == "unsat":
            with written_as("write", Path(certificate)):
                write_whole(Path(certificate), verdict.certificate)
        return verdict


@dataclass(frozen=True)
class Question:
    """A model, and a problem that fits it."""

    model: Model
    problem: Problem
    tol: float
    asked: Regions  # as they were given
    condition: Condition
    alone: Moving | None  # frames that move one at a time in them

    @classmethod
    def of(
        cls, model: Model, where: object, holds: object, search: object, alone: bool = False
    ) -> Question:
        """Check what a user asks; with `alone`, about every frame by itself."""
        region, how, frames = where_of(where), search_of(search), None
        if alone:
            if isinstance(region, Box):
                raise InvalidInput("a box has no frames that move alone; give a Ball")
            frames = frames_of(region.frames).alone(model.input_shape)
            region = replace(region, frames="all")
        regions = region.regions(model.input_shape)
        if isinstance(how, At):
            if regions.radius is not None:
                raise InvalidInput("the region has a radius already: leave out search")
            regions = replace(regions, radius=radii_of(how.eps, len(regions)))
        condition = _fitting(condition_of(holds), model)
        answers = Answers(len(regions), model.classes, lambda: model.run(regions.x))
        problem = Problem(regions, condition.on(answers, regions.index))
        if frames is not None:
            pairs = np.repeat(np.arange(len(regions)), len(frames.chosen))
            problem = replace(problem.take(pairs), regions=regions.apart(frames))
        tol = how.tol if isinstance(how, Largest) else Largest().tol
        return cls(model, problem, tol, regions, condition, frames)

    def statement(self, execution: str | None = None) -> Statement:
        """The statement that the rows are going to make."""
        return statement_of(self.model, self.asked, self.condition, execution, self.alone)

    def outcomes(
        self,
        method: Method,
        proof: Rigorous | Estimate,
        attack: PGD | None,
        machine: Machine,
        watch: Watch,
        clock: Clock,
        wanted: NDArray[np.bool_] | None = None,
    ) -> Iterator[Outcome]:
        """The rows, batch by batch; of batches without a `wanted` input (N,) none. Raises
        InvalidInput for what does not go together."""
        model, problem = self.model, self.problem
        if not isinstance(machine, Machine):
            raise InvalidInput(f"machine must be a Machine, not {machine!r}")
        if attack is not None and not isinstance(attack, PGD):
            raise InvalidInput(f"attack must be a PGD or None, not {attack!r}")
        execution = _execution(method, proof)
        # Labels are compared in what comes before a last function that keeps the order over the
        # reals. Executed, it may round two outputs to one; other properties are about values.
        ordered = execution is None and isinstance(problem.property, LabelWins)
        single = problem.regions.radius is not None
        procedure = Procedure(model, method, proof, attack, machine, self.tol, single, ordered)
        method.refuse(procedure.plan, problem.regions.p)
        assert procedure.exact is not None or isinstance(proof, Estimate)
        return shared(procedure, problem, watch, clock, wanted)

    def certified(
        self,
        method: Method,
        proof: Rigorous | Estimate,
        attack: PGD | None,
        machine: Machine,
        watch: Watch | None,
        began: float,
    ) -> Certification:
        """All rows."""
        if not isinstance(watch, Watch | None):
            raise InvalidInput(f"watch must be a frown.Watch, not {watch!r}")
        told = watch or Watch()
        clock = machine.clock(began) if isinstance(machine, Machine) else Clock()
        if isinstance(machine, Machine) and machine.cluster is None:
            machine = replace(machine, workers=machine.workers or 1)  # none unless asked for
        rows, found = dict[int, Row](), dict[Any, NDArray[np.float64]]()

        def take(outcome: Outcome) -> None:
            rows.update(zip(outcome.places, outcome.rows, strict=True))
            found.update(outcome.counterexamples)
            told.finished(outcome)

        with fitting_threads(self.model.graph.parameters()):
            each(self.outcomes(method, proof, attack, machine, told, clock), take)
        settings = self.settings(method, proof, attack, machine)
        return Certification(
            tuple(rows[n] for n in sorted(rows)),
            found,
            self.model.name,
            self.model.digest,
            settings,
            __version__,
        )

    def settings(
        self, method: Method, proof: Rigorous | Estimate, attack: PGD | None, machine: Machine
    ) -> dict[str, Any]:
        """The settings that repeat a run, as plain values."""
        regions = self.problem.regions
        moving = self.alone or regions.frames
        execution = proof.execution if isinstance(proof, Rigorous) else None
        frames = {} if moving is None else {"frames": moving.name, "frame_axis": moving.axis}
        return {
            **({"sensitivity": True} if self.alone is not None else {}),
            **frames,
            "norm": regions.p,
            "tol": self.tol,
            "level": proof.level,
            "deployed": execution,
            "attack": None if attack is None else asdict(attack),
            "dtype": machine.dtype,
            "device": machine.device,
            "time_limit": machine.seconds,
            "memory": machine.memory,
            "time_each": machine.each,
            "batch": machine.batch,
            "workers": machine.workers,
            "cluster": machine.cluster,
            **described(method),
            KEY: self.statement(execution).facts(),
        }


# An input of a query is the middle of a box: what would be a tie there is no wrong answer.
_BORDER = (
    "the middle of a box satisfies the constraints but for those that are strict, or for rounding: "
    "no proof excludes it, and it is no witness"
)


class _Witnessed(Exception):
    """Ends a proof whose query turned out to be satisfied."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.witness = witness


class _Verification:
    """The work on one query."""

    def __init__(
        self,
        posed: PosedQuery,
        method: str | Method | None,
        machine: Machine,
        watch: Watch,
        clock: Clock,
        kept: dict[int, bytes] | None = None,
        check: bool = False,
    ) -> None:
        self.kept = kept  # certificates by disjunct
        self.check = check  # whether they are checked
        # Attacks go on beside proofs, in this process.
        machine = replace(machine, workers=machine.workers or 1, cluster=None)
        self.machine, self.watch, self.clock = machine, watch, clock
        self.posed, self.model = posed, posed.bounded
        self.plan = plan_for(self.model, machine, self.model.graph)
        self.method = self._strongest() if method is None else method_of(method)
        self.remarks: list[str] = []
        self.refuted: set[int] = set()  # disjuncts
        self.began = now()

    def verdict(self) -> Verdict:
        """Attack for a while, then prove group by group."""
        groups = list(self.posed.groups())
        attacks = [Falsifier(self.posed, group, self.plan.graph) for group in groups]
        try:
            for attack, k in zip(attacks, range(len(attacks), 0, -1), strict=True):
                self._attack(attack.rounds(self._brief().share(k)))
            for k, (group, attack) in enumerate(zip(groups, attacks, strict=True)):
                self._prove_if_memory_holds(group, attack, self.clock.share(len(groups) - k))
            if len(self.refuted) < len(self.posed.query.disjuncts):
                # Bounds have said all they can: what time is left goes to attacks.
                for attack, k in zip(attacks, range(len(attacks), 0, -1), strict=True):
                    self._attack(replace(attack, seed=2).rounds(self.clock.share(k)), LAST_ROUNDS)
        except _Witnessed as found:
            return self._sat(found.witness)
        except OutOfTime:
            pass
        if len(self.refuted) == len(self.posed.query.disjuncts):
            return self._refuted()
        return self._said("timed-out" if self.clock.expired() else "unknown")

    def _sat(self, witness: Witness) -> Verdict:
        if witness.instead:
            self.remarks.append(
                f"{witness.instead} inputs have no number of type {witness.x.dtype} between their "
                "bounds; the network was given the nearest ones"
            )
        return self._said("sat", witness)

    def _said(self, answer: str, witness: Witness | None = None) -> Verdict:
        count, took = len(self.posed.query.disjuncts), now() - self.began
        return Verdict(
            answer, witness, count, len(self.refuted), remarks=tuple(self.remarks), seconds=took
        )

    def _refuted(self) -> Verdict:
        """`unsat`, with its proof where one is asked for; not where the checker refuses it."""
        if self.kept is None:
            return self._said("unsat")
        proof = query_proof([part for _, part in sorted(self.kept.items())])
        if not self.check:
            return replace(self._said("unsat"), certificate=proof)
        import frown_check

        assert self.model.path is not None
        text, tick = self.posed.query.text.encode(), lambda _: self.clock.check()
        try:
            found = frown_check.check_query(proof, self.model.path, text, tick)
        except OutOfTime:
            self.remarks.append("the time limit came before the proof of unsat was checked")
            return self._said("timed-out")
        if not found.accepted:
            self.remarks.append(f"the checker refused the proof of unsat: {found.reason}")
            return self._said("unknown")
        return replace(self._said("unsat"), certificate=proof, level="checked")

    def _strongest(self) -> Method:
        branch = Branch(seconds=max(1e-3, min(1e9, self.clock.left())))
        return branch if branch.replayable(self.plan) else Frown()

    def _brief(self) -> Clock:
        """The deadline of the attack that comes before any bound."""
        return min(Clock.lasting(BRIEFLY), self.clock.part(0.1), key=lambda c: c.deadline)

    def _attack(self, rounds: Iterator[Witness | None], most: int = FIRST_ROUNDS) -> None:
        for found in islice(rounds, most):
            if found is not None:
                raise _Witnessed(found)

    def _prove_if_memory_holds(self, group: Group, attack: Falsifier, clock: Clock) -> None:
        try:
            self._prove(group, attack, clock)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self.remarks.append(f"memory ran out while {self.method.name} bounded the network")

    def _prove(self, group: Group, attack: Falsifier, clock: Clock) -> None:
        """Refute the disjuncts of a group."""
        box = Box(group.lower, group.upper)
        condition = Unsatisfied(self._refuting(group, clock))
        question = Question.of(self.model, box, condition, None)
        with TemporaryDirectory() if self.kept is not None else nullcontext() as folder:
            rounds = replace(attack, seed=1).rounds(clock)
            beside = _Beside(self, group, rounds, None if folder is None else Path(folder))
            proof = Rigorous(certificates=folder)
            run = question.outcomes(self.method, proof, None, self.machine, beside, clock)
            each(run, beside.take)

    def _refuting(self, group: Group, clock: Clock) -> LinearProperty:
        """The property that refutes a group, with sums of literals where they help branching."""
        asked, method = group.refuting, self.method
        # A certificate's literals are those of the query.
        if self.kept is not None or asked.single or not isinstance(method, Branch):
            return asked
        graph = self.plan.graph
        regions = Box(group.lower, group.upper).regions(self.model.input_shape)
        radius = torch.from_numpy(regions.radius).to(graph.dtype).to(graph.device)
        work = replace(self.machine.work(), clock=clock.part(TRIED))
        with torch.inference_mode():
            ball = regions.on(graph).with_radius(radius)
            return with_helpful_sums(self.plan, ball, asked, method.inner, work)


class _Beside(Watch):
    """Attacks between the steps of a proof, in a part of its time."""

    def __init__(
        self,
        of: _Verification,
        group: Group,
        rounds: Iterator[Witness | None],
        folder: Path | None,  # of certificates
    ) -> None:
        self.of, self.group, self.rounds, self.folder = of, group, rounds, folder
        self.began, self.spent = now(), 0.0

    def progress(self, progress: Progress) -> None:
        self.of.watch.progress(progress)
        if not progress.underway or progress.proved_mean >= WHOLE:
            return  # a stage begins, or nothing is left but a replay
        began = now()
        if self.spent < ATTACKS * (began - self.began):
            self.of._attack(self.rounds, 1)
            self.spent += now() - began

    def take(self, outcome: Outcome) -> None:
        """Count what is proved; replay what the proof met on its way."""
        self.of.watch.finished(outcome)
        low, high = self.group.inner
        for row in outcome.rows:
            point = outcome.counterexamples.get(row.index)
            if point is not None:
                drawn = np.clip(point.astype(low.dtype), low[row.index], high[row.index])
                found = self.of.posed.replayed([drawn])
                if found is not None:
                    raise _Witnessed(found)
            if row.status in ("certified", "robust") and row.level == "rigorous":
                disjunct = int(self.group.index[row.index])
                if self._kept(row, disjunct):
                    self.of.refuted.add(disjunct)
                continue
            remark = _BORDER if row.status == "misclassified" else row.remark
            if remark and remark not in self.of.remarks:
                self.of.remarks.append(remark)

    def _kept(self, row: Row, disjunct: int) -> bool:
        """Keep a row's certificate, if any is to be kept; False: it has none."""
        if self.folder is None or self.of.kept is None:
            return True
        if not row.certificate:
            return False
        file = self.folder / row.certificate
        self.of.kept[disjunct] = file.read_bytes()
        return True


def _execution(method: Method, proof: Rigorous | Estimate) -> str | None:
    """The precision of execution to cover; InvalidInput where the method has no proofs for it."""
    if isinstance(proof, Estimate):
        return None
    if method.estimates and (proof.check or proof.certificates is not None):
        raise InvalidInput(
            f"bounds of the method {method.name} have no certificates: take frown, crown or lp"
        )
    if method.estimates and proof.execution is not None:
        raise InvalidInput(
            f"deployed needs rigorous bounds, and those of the method {method.name} are "
            "estimates: take frown, crown or lp"
        )
    if isinstance(method, Branch) and proof.execution is not None:
        raise InvalidInput(
            "deployed does not cover proofs by cases: take the method frown, crown or lp with "
            "deployed, or the method branch without it"
        )
    return proof.execution


@in_plain_surroundings
def bound(
    model: Model | str | Path,
    where: Where,
    coef: ArrayLike | None = None,
    *,
    method: str | Method = "crown",
    machine: Machine = Machine(),  # noqa: B008  (a frozen value)
) -> Bounded:
    """Bound the outputs, or linear functions of them, over regions at one radius.

    Args:
        model: as `load` gives it, or the path of an ONNX file.
        where: a `Ball(x, ...).at(eps)` or a `Box`.
        coef: (K, outputs), one function per row; None: the outputs themselves.
        method: an object or a name; not `Exact`, which finds distances only.
        machine: device, precision and memory.

    The result has `lower` and `upper` (N, K), the intermediate bounds and lines by layer, and the
    linear forms at the input. Bounds are computed in plain floating point, like radii of the level
    "estimate": right up to rounding. Not where a proof is needed: `certify` has rigorous ones.

    Raises InvalidInput as `certify` does.
    """
    model, chosen = _model(model), method_of(method).once
    regions = where_of(where).regions(model.input_shape)
    if regions.radius is None:
        raise InvalidInput("the region has no radius: give frown.Ball(x, ...).at(eps)")
    plan, work = plan_for(model, machine, model.graph), machine.work()
    graph = plan.graph
    if coef is None:
        functions = 2 * len(regions) * model.classes
        least = functions * plan.row_bytes(graph.output)  # all forms are part of the answer
        if least > max(work.memory, LITTLE):
            raise InvalidInput(
                f"bounds of {model.classes} outputs, with their forms, of {len(regions)} inputs "
                f"take {least >> 20:,} MiB, memory (--memory) is {work.memory >> 20:,}: give "
                "fewer inputs, functions (coef) or more memory"
            )
    rows = np.eye(model.classes) if coef is None else np.atleast_2d(numbers_of(coef, "coef"))
    if rows.ndim != 2 or rows.shape[1] != model.classes or not np.isfinite(rows).all():
        raise InvalidInput(f"coef must be finite and (K, {model.classes}), not {rows.shape}")
    chosen.refuse(plan, regions.p)
    radius = torch.from_numpy(regions.radius).to(graph.dtype).to(graph.device)
    with torch.inference_mode(), fitting_threads(model.graph.parameters()):
        wanted = torch.from_numpy(rows).to(graph.dtype).to(graph.device)
        ball = regions.on(graph).with_radius(radius)
        with pool_of((machine.workers or 1) if chosen.singly else 1) as pool:
            own = replace(work, pool=pool)
            return bounded(plan, ball, wanted, chosen, model.input_shape, own)


def _fitting(condition: Condition, model: Model) -> Condition:
    """Labels of a model with one sigmoid are sides of 0.5; other conditions are as they are."""
    if not isinstance(condition, Labels) or model.classes != 1 or not ends_in_sigmoid(model):
        return condition
    if condition.against is not None:
        raise InvalidInput("the model has one output: there is no target class")
    return threshold("0.5", condition.y)


def fitting_question(model: Model) -> str:
    """The options of `frown certify` that ask what fits a model, as far as its end tells."""
    sigmoid = ends_in_sigmoid(model)
    if model.classes == 1:
        return "--threshold 0.5 (the default)" if sigmoid else "--within D, or --threshold T"
    if sigmoid:
        return "--multilabel if labels apply beside one another; else that the label wins"
    return "that the label wins, or --top K; of a regression --within D"


def ends_in_sigmoid(model: Model) -> bool:
    """True if every output is a sigmoid of its own."""
    last = _unshaped(model.graph, model.graph.nodes[-1])
    if model.scores is None or not isinstance(last.op, Sigmoid):
        return False
    # A softmax of two classes is a sigmoid, too, but of a difference and not of a score.
    read = _unshaped(model.graph, model.graph.nodes[last.inputs[0]])
    return read.op is _unshaped(model.scores, model.scores.nodes[-1]).op


def _unshaped(graph: Graph, node: Node) -> Node:
    """The node that computes what another only reshapes."""
    while isinstance(node.op, Reshape):
        node = graph.nodes[node.inputs[0]]
    return node


def load_for(path: str | Path, query: VnnLib) -> Model:
    """Load the network of a query, whose inputs tell whether a leading axis is a batch."""
    from frown.read.onnx.load import load_onnx

    return load_onnx(path, inputs=query.inputs)


def _as_it_is(found: Model, model: Model | str | Path) -> Model:
    """A model as a query speaks of it: in its own precision, and with the only output it has."""
    taken = found.taken
    if taken.precision:
        raise UnsupportedModel(
            f"{found.name} computes in {taken.precision}, and a query is about the file as it is"
        )
    if taken.output and not isinstance(model, Model):
        raise UnsupportedModel(
            f"{found.name} has several outputs: frown.load(path, output=NAME) chooses one"
        )
    return found


def _model(model: object) -> Model:
    """A model as `load` gives it; a path is loaded."""
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load(model)
    kind = "torch module" if isinstance(model, torch.nn.Module) else type(model).__name__
    raise InvalidInput(
        f"{kind}: no model to bound; give frown.load(path) or, of a torch module, "
        "frown.load(module, torch.zeros(1, ...)) with an example of its inputs"
    )
