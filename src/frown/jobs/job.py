"""Certify files: from files and options to files and rows, as `frown certify` does."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import torch

from frown import __version__, api
from frown.bounds.work import fitting_threads, now, reuse_memory
from frown.certification.certificates import SUFFIX, sha256_of
from frown.certification.folder import CERTIFICATES_LOCK, Lock
from frown.certification.prove import Rigorous
from frown.certification.results import LEVELS, Row, percent, plain
from frown.certification.run import Outcome, each
from frown.certification.search import At
from frown.certification.statement import KEY, Statement
from frown.errors import (
    AccuracyTooLow,
    InvalidInput,
    LevelNotReached,
    ModelMismatch,
    OutputError,
    WorkersLost,
)
from frown.jobs.files import ROWS_JSON, Origin, ResultFiles, row_key, writing
from frown.jobs.options import (
    CertifyRequest,
    QuestionOptions,
    parse_numbers,
    parse_samples,
    parse_shape,
    parse_target,
    per_feature,
)
from frown.jobs.screen import Screen
from frown.jobs.table import doubtful
from frown.problem.data import Columns, Dataset, digest, placed, read_classes, read_data
from frown.problem.options import options_of
from frown.problem.problem import Ball, Problem
from frown.problem.property import Condition, Labels
from frown.read.model import Model
from frown.report.read import row_of

# Settings that a resumed run need not share: they change no radius beyond rounding.
FREE = ("workers", "cluster", "threads", "memory", "batch")


def certify_files(request: CertifyRequest, screen: Screen) -> bool:
    """Certify the inputs of a request; True when done, False when interrupted.

    Rows reach the files and the screen as each batch is finished. An interrupt keeps
    them. Raises FrownError before any work where the request makes no sense, or where another
    run is writing to its folders, and in the end ModelMismatch where rows were withdrawn because
    graph and model disagree, and LevelNotReached where proofs fall short of the level.
    """
    reuse_memory()
    with ExitStack() as taken:
        return _certify(request, screen, taken)


def _certify(request: CertifyRequest, screen: Screen, taken: ExitStack) -> bool:
    """Certify, with the folders that are `taken` until it ends."""
    _refuse_contradictions(request)
    model = _model(request)
    data, target = _data(request, model)
    alone = request.machine.workers is not None  # workers have one thread, be there one or many
    threads = request.threads or (1 if alone else None)
    taken.enter_context(fitting_threads(model.graph.parameters(), threads))
    proof, began = request.proof, now()
    folder = proof.certificates if isinstance(proof, Rigorous) else None
    question = _question(request, model, data, target)
    for note in _notes(request, question, data):
        screen.note(note)
    execution = proof.execution if isinstance(proof, Rigorous) else None
    said = replace(question.statement(execution), divide=request.divide)
    origin = Origin(_settings(request, question, said), __version__, model.digest)
    regions = question.problem.regions
    total = len(regions)
    files = None
    if request.out is not None:
        about = _about(request, model, data, origin) | {"asked": total}
        digests = _digests(question.problem)
        files = ResultFiles.prepare(
            request.out,
            about,
            origin,
            force=request.force,
            resume=request.resume,
            keys={regions.key(n): digests[n] for n in range(total)},
            settings=_shared(about, digests),
        )
        taken.callback(files.release)
    names = [f"{regions.name(n)}{SUFFIX}" for n in range(total)]
    held = _held(names, folder, request.force or request.resume, taken)
    keys = {regions.key(n): name for n, name in enumerate(names)}
    rows, lost = list[Row](), list[Row]()
    if files is not None and request.resume:
        rows = _rows_there(files, folder)
        if rows:
            screen.note(f"{len(rows)} of {total} rows are in {request.out} already")
    earlier = len(rows)
    there = {_key(row, request) for row in rows}
    missing = np.array([regions.key(n) not in there for n in range(total)])

    def finished(outcome: Outcome) -> None:
        with interrupt.waiting():
            take(outcome)
        if not outcome.provisional:  # else it was raised already
            interrupt.check()

    def take(outcome: Outcome) -> None:
        # A batch that was half there is done again as a whole; what was there stays.
        new = [row for row in outcome.rows if _key(row, request) not in there]
        for row in new if held else ():
            key = _key(row, request)
            if keys[key] in held and not row.certificate:
                held[keys[key]].unlink(missing_ok=True)  # of an earlier run; this one has none
        if files is not None:
            found = {k: x for k, x in outcome.counterexamples.items() if k not in there}
            files.append(new, found, provisional=outcome.provisional)
        before = bool(doubtful(rows, said))
        rows.extend(new)
        if len(rows) < total and not before and not outcome.provisional:
            for doubt in doubtful(rows, said):  # hours before the last row is there
                screen.note(f"{len(rows)} of {total} done, {doubt}")
        lost.extend(new if outcome.provisional else ())
        screen.rows(new, origin)

    started = time.monotonic()
    state, interrupt = "failed", Interrupt()
    with interrupt:
        try:
            clock, left = request.machine.clock(began), int(missing.sum())
            each_at_most = min(request.machine.each or inf, getattr(request.method, "seconds", inf))
            longest = min(clock.left(), each_at_most * left) if left else inf
            with screen.working(left, longest) as watch:
                run = question.outcomes(
                    request.method, proof, request.attack, request.machine, watch, clock, missing
                )
                each(run, finished)
            state = "finished"
        except KeyboardInterrupt:
            state = "interrupted"
        finally:
            seconds = time.monotonic() - started
            if files is not None and (rows or state != "failed"):
                mismatches = sum(row.status == "mismatch" for row in rows)
                outcome = {"state": state, "seconds": round(seconds, 3), "mismatches": mismatches}
                if lost and state == "finished":
                    outcome["lost"] = len(lost)
                with interrupt.waiting():  # another Ctrl-C is too late
                    files.close(outcome)
    order = {index: place for place, index in enumerate(data.indices.tolist())}
    rows.sort(key=lambda row: order[row.index])
    screen.results(rows, seconds, said, request.out, earlier)
    if folder is not None:
        screen.certificates(sum(bool(r.certificate) for r in rows), Path(folder), request.model)
    if state == "interrupted":
        what = "pairs of input and frame" if request.sensitivity else "inputs"
        _tell_interrupted(rows, total, what, request.out, screen)
    _refuse_mismatches(request.model, rows)
    if state == "finished":
        _refuse_lost(lost, len(rows), request)
        _require_level(rows, request)
        _require_accuracy(rows, request, said)
    return state == "finished"


def _question(request: CertifyRequest, model: Model, data: Dataset, target: Any) -> api.Question:
    """The question that files and options ask of a model."""
    ball = Ball(
        data.x,
        norm=request.norm,
        within=_bounds(request, model),
        scale=_scale(request, model, data),
        fix=request.fix,
        frames=request.frames,
        names=data.indices,
        features=data.features or None,
        ids=data.ids or None,
    )
    condition = _condition(request, data, target)
    return api.Question.of(model, ball, condition, request.search, alone=request.sensitivity)


def _notes(request: CertifyRequest, question: api.Question, data: Dataset) -> Iterator[str]:
    """Notes on the reading of the data; InvalidInput for other classes than the model's."""
    name, model = request.data.name, question.model
    if data.y is None and request.question.about_labels():
        yield f"{name} has no labels: the model's own predictions stand in"
    if data.unused:
        yield (
            f"{name}: the answers given there (y) are left aside: this question is about those "
            "of the model"
        )
    if data.classes and request.question.about_labels():
        if len(data.classes) != max(2, model.classes):
            raise InvalidInput(
                f"{name} names {len(data.classes)} classes, and the model has "
                f"{max(2, model.classes)}: say what outputs stand for, all of them and in their "
                "order, with --class-names NAME,NAME,..."
            )
        called = ", ".join(f"{k} = {plain(one)}" for k, one in enumerate(data.classes[:12]))
        yield f"classes: {called}{', ...' if len(data.classes) > 12 else ''}"
    if isinstance(question.condition, Labels) and api.ends_in_sigmoid(model):
        yield (
            "every output is a sigmoid of its own, as of labels beside one another; proved is that "
            "the label's is the largest: for all labels add --multilabel"
        )
    if request.divide is None and request.mean is None and _looks_like_bytes(data):
        yield (
            f"{name} holds whole numbers up to {data.x.max():g}, taken as they are; "
            "for a model of inputs in [0, 1] add --divide 255"
        )


def _rows_there(files: ResultFiles, folder: Path | str | None) -> list[Row]:
    """The rows of an earlier run; those whose certificate is gone are dropped, to be done again."""
    done = files.done
    kept = {key: record for key, record in done.items() if _has_certificate(record, folder)}
    files.forget(done.keys() - kept.keys())
    return [_read(record, files) for record in kept.values()]


def _refuse_contradictions(request: CertifyRequest) -> None:
    """Raise InvalidInput for options that do not go together."""
    if request.resume and request.out is None:
        raise InvalidInput("--resume goes on with the results in a folder: give --out")
    if request.resume and request.force:
        raise InvalidInput("--resume keeps what is there, --force overwrites it: give one of them")
    if request.fail_under is not None:
        if not isinstance(request.search, At) or request.sensitivity:
            raise InvalidInput("--fail-under is about the accuracy at one radius: give --eps")
        if not 0 <= request.fail_under <= 1:
            raise InvalidInput(f"--fail-under {request.fail_under:g}: give a share, 0 to 1")
        if request.method.estimates or not isinstance(request.proof, Rigorous):
            raise InvalidInput(
                "--fail-under counts what is proved, and here all radii would be estimates: "
                "leave it out, or take the level rigorous and a method other than milp"
            )


def _key(row: Row, request: CertifyRequest) -> int | tuple[int, int]:
    return (row.index, int(row.frames)) if request.sensitivity else row.index


def _digests(problem: Problem) -> list[str]:
    """The key of every row, from its input, its region and its property."""
    regions, wanted, digests = problem.regions, problem.property, list[str]()
    for n in range(len(problem)):
        held = wanted.rows(torch.tensor([n]))
        literals = (held.pick(slice(None)), held.const, held.clause)
        place = int(regions.index[n]), int(regions.frame[n])
        digests.append(row_key(regions.x[n], place, [part.numpy() for part in literals]))
    return digests


def _shared(about: dict[str, Any], digests: list[str]) -> dict[str, Any]:
    """The settings that a resumed run must share: all that may change a row."""
    own = {k: v for k, v in about["settings"].items() if k not in FREE}
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()
    files = {name: about[name]["sha256"] for name in ("model", "data")}
    named = {name: about[name] for name in ("version", "norm", "method", "asked")}
    return {**own, **named, **files, "inputs and labels": whole}


def _read(record: dict[str, Any], files: ResultFiles) -> Row:
    """A row that an earlier run left; InvalidInput where it is damaged."""
    try:
        return row_of(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise InvalidInput(
            f"{files.directory / ROWS_JSON}: the row of input {record.get('index')} is damaged; "
            "delete its line to have it done again, or choose another folder"
        ) from None


def _has_certificate(record: dict[str, Any], folder: Path | str | None) -> bool:
    """False if a row names a certificate that is gone, or that another run has written since."""
    name = record.get("certificate")
    if not name or folder is None:
        return True
    file = Path(folder) / name
    return file.is_file() and sha256_of(file.read_bytes()) == record.get("certificate_sha256")


def _require_accuracy(rows: list[Row], request: CertifyRequest, said: Statement) -> None:
    """Raise AccuracyTooLow where the share of inputs proved at --eps is below --fail-under."""
    if request.fail_under is None or not isinstance(request.search, At):
        return
    good = sum(row.status in ("certified", "robust") for row in rows)
    share = good / len(rows) if rows else 0.0
    if share < request.fail_under:
        raise AccuracyTooLow(
            f"{said.share_title().lower()}{said.against()} {percent(share, 1)}% at --eps "
            f"{request.given.get('eps')}, "
            f"{good} of {len(rows)} inputs, is below --fail-under {request.fail_under!r}"
        )


def _require_level(rows: list[Row], request: CertifyRequest) -> None:
    """Raise LevelNotReached where a radius is proved at a lower level than asked for. Methods
    without rigorous bounds are asked for none."""
    if request.method.estimates:
        return
    order = list(LEVELS)
    short = [
        row
        for row in rows
        if row.proved and order.index(row.level) < order.index(request.proof.level)
    ]
    if short:
        first = short[0]
        why = f": {first.remark}" if first.remark else ""
        raise LevelNotReached(
            f"{len(short)} of {len(rows)} inputs have a radius that is not proved at the "
            f"level {request.proof.level}; input {first.index} is {first.level}{why}"
        )


def _refuse_mismatches(model: Path, rows: list[Row]) -> None:
    """Raise ModelMismatch where rows say that graph and model disagree."""
    where = list(dict.fromkeys(row.index for row in rows if row.status == "mismatch"))
    if where:
        first = next(row.remark for row in rows if row.status == "mismatch")
        others = f" and {len(where) - 5} more" if len(where) > 5 else ""
        raise ModelMismatch(
            f"{model.name}: nothing is proved of {len(where)} of {len({r.index for r in rows})} "
            f"inputs ({', '.join(map(str, where[:5]))}{others}): {first}\neither "
            "numbers overflow, or the model is read otherwise than its runtime runs it: trust no "
            "other row before that is understood, and report it with the model"
        )


def _refuse_lost(lost: list[Row], count: int, request: CertifyRequest) -> None:
    """Raise WorkersLost where inputs have no answer because their workers were lost."""
    if lost:
        again = "; --resume tries them again" if request.out is not None else ""
        raise WorkersLost(
            f"{len(lost)} of {count} inputs have no answer, the others do{again}; "
            f"input {lost[0].index}: {lost[0].remark}"
        )


def _held(
    names: Sequence[str], folder: Path | str | None, force: bool, taken: ExitStack
) -> dict[str, Path]:
    """Certificates of an earlier run that this one would write again; OutputError without force."""
    if folder is None:
        return {}
    folder = Path(folder)
    if folder.is_dir():  # else nobody writes there yet
        with writing(folder, "certificates", "--certificates"):
            taken.enter_context(Lock.join(folder, CERTIFICATES_LOCK, "certificates"))
    held = {name: folder / name for name in names if os.path.lexists(folder / name)}
    if held and not force:
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise OutputError(
            f"{folder} already holds certificates of these inputs ({next(iter(held))}{more}); "
            "choose another --certificates, or overwrite them with --force"
        )
    return held


def _tell_interrupted(
    rows: list[Row], total: int, what: str, out: Path | None, screen: Screen
) -> None:
    whole = sum(row.complete for row in rows)
    kept = f"; what was finished is in {out}" if out is not None and rows else ""
    partial = f", {len(rows) - whole} ended early" if whole < len(rows) else ""
    screen.warn(f"interrupted: {whole} of {total} {what} finished{partial}{kept}")


# -- options -> values -----------------------------------------------------------------


def _settings(request: CertifyRequest, question: api.Question, said: Statement) -> dict[str, Any]:
    """The settings with which the rows were made, for those who want to repeat it."""
    own = question.settings(request.method, request.proof, request.attack, request.machine)
    names = ["samples", "output", "shape", "divide", "mean", "std", "bounds", "scale", "fix"]
    names += ["target", "threads", "eps", "frames", "frame_axis"]
    names += [known.name for kind in (Columns, QuestionOptions) for known in options_of(kind)]
    typed = {name: request.given.get(name) for name in names}
    others = {k: v for k, v in own.items() if k not in ("norm", "method")}
    return others | {k: v for k, v in typed.items() if v is not None} | {KEY: said.facts()}


def _data(request: CertifyRequest, model: Model) -> tuple[Dataset, Any]:
    """The chosen inputs, and the target as `api.certify` takes it."""
    own = model.taken.classes if len(model.taken.classes) == model.classes else ()
    data = read_data(request.data, request.columns, request.question.about_labels(), own)
    if request.labels is not None:
        y = read_classes(request.labels, "y")
        data = data.labelled(placed(y, data.classes, own, str(request.labels)))
    wanted = None if request.target is None else parse_target(request.target)
    if isinstance(wanted, Path):
        target = read_classes(wanted, "target")
        data = data.targeted(placed(target, data.classes, own, str(wanted)))
    elif isinstance(wanted, int):
        wanted = int(placed(np.array([wanted]), data.classes, own, "--target")[0])
    if request.divide is not None:
        data = data.divided(request.divide)
    if request.scale == "std":
        data = replace(data, deviation=data.x.std(0))  # of all inputs of the file
    if request.samples is not None:
        data = data.select(parse_samples(request.samples, len(data)))
    from_file = request.target is None or isinstance(wanted, Path)
    return data, data.target if from_file else wanted


def _condition(request: CertifyRequest, data: Dataset, target: Any) -> Condition:
    """The condition that options ask for; InvalidInput where they ask for two at once."""
    question, option = request.question, request.question.option()
    if option and (request.target is not None or target is not None):
        raise InvalidInput(f"--target is about labels that win, --{option} is another question")
    if not question.about_labels() and request.labels is not None:
        raise InvalidInput(f"--{option} is not about labels: leave out --labels")
    return question.condition(data.y, target)


def _model(request: CertifyRequest) -> Model:
    model = api.load(request.model, output=request.output, shape=parse_shape(request.shape))
    if request.mean is None and request.std is None:
        return model
    mean = parse_numbers(request.mean or "0", "--mean")
    std = parse_numbers(request.std or "1", "--std")
    return model.normalised(mean, std)


def _bounds(request: CertifyRequest, model: Model) -> Any:
    if request.bounds is None:
        return None
    low, high = (parse_numbers(text, "--bounds") for text in request.bounds)
    return per_feature(low, model.input_shape), per_feature(high, model.input_shape)


def _scale(request: CertifyRequest, model: Model, data: Dataset) -> Any:
    if request.scale is None:
        return None
    if request.scale == "std":
        return data.deviation
    return per_feature(parse_numbers(request.scale, "--scale"), model.input_shape)


def _looks_like_bytes(data: Dataset) -> bool:
    return bool(50 < data.x.max() <= 255 and data.x.min() >= 0 and (data.x % 1 == 0).all())


def _about(request: CertifyRequest, model: Model, data: Dataset, origin: Origin) -> dict[str, Any]:
    return {
        "version": origin.version,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(request.command),
        "model": {
            "file": str(request.model),
            "sha256": model.digest,
            "classes": model.classes,
            "input_shape": list(model.input_shape),
        },
        "data": {
            "file": str(request.data),
            "sha256": digest(request.data),
            "inputs": len(data),
            "shape": list(data.x.shape[1:]),
            **({"features": list(data.features)} if data.features else {}),
            **({"classes": list(data.classes)} if data.classes else {}),
        },
        "norm": request.norm,
        "method": request.method.name,
        "certificates": str(getattr(request.proof, "certificates", None) or ""),
        "settings": origin.settings,
        "software": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy", "onnxruntime")},
        },
    }


class Interrupt:
    """While it is entered, SIGINT raises KeyboardInterrupt as usual, and is remembered.

    So Ctrl-C cannot be lost: Python forgets an interrupt that reaches it inside a finaliser. Nor
    can what it must not cut in two: while `waiting` it is remembered alone, for `check`.
    """

    def __init__(self) -> None:
        self.asked = self._waits = False
        self._before: Any = None

    def __enter__(self) -> Self:
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if default and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self._waits:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which nothing is raised."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def check(self) -> None:
        """Raise it again if it was lost on its way."""
        if self.asked and not isinstance(sys.exception(), KeyboardInterrupt):
            raise KeyboardInterrupt
