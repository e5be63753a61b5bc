"""Batches over workers: the same rows in any case, and what becomes of those that workers lose."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frown
from check.writer import draft
from frown import Ball, Machine
from frown.certification.run import Outcome, Progress, Row, Watch, parts_of
from frown.certification.spread import driver
from frown.certification.spread.messages import (
    Handed,
    Lost,
    Message,
    Order,
    Ready,
    Told,
    Workers,
)
from frown.errors import InvalidInput, WorkersLost
from onnx_models import model, node, saved, small

COUNT = 10


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> frown.Model:
    return frown.load(saved(small(), tmp_path_factory.mktemp("net")))


X = np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, 4))


class InProcess(Workers):
    """Workers that are none: orders are carried out when messages are asked for."""

    trusted = True

    def __init__(self, sent: bytes, count: int, change: Callable[..., Any]) -> None:
        self.procedure, self.change, self.started = pickle.loads(sent), change, count
        self.inbox: deque[tuple[int, Message]] = deque((k, Ready()) for k in range(count))
        self.ended, self.interrupted = list[int](), False

    def send(self, worker: int, order: Order) -> None:
        messages: list[Message] = []

        class Listening(Watch):
            def progress(self, progress: Progress) -> None:
                messages.append(Told(order.number, progress))

        for message in order.answers(self.procedure, Listening()):
            messages.append(message)
        self.inbox.extend((worker, m) for m in self.change(order, messages))

    def receive(self, seconds: float) -> Sequence[tuple[int, Message]]:
        return [self.inbox.popleft()] if self.inbox else []

    def renew(self) -> None:
        self.inbox.append((self.started, Ready()))
        self.started += 1

    def end(self, worker: int) -> None:
        self.ended.append(worker)

    def interrupt(self) -> None:
        self.interrupted = True

    def close(self) -> None:
        pass


Messages = list[Message]


@pytest.fixture
def spread(net: frown.Model, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Certify by two workers that are changed, and return rows with what became of the workers."""

    def run(change: Callable[[Order, Messages], Messages], **given: Any) -> Any:
        made = list[InProcess]()

        def start(sent: bytes, count: int) -> InProcess:
            made.append(InProcess(sent, count, change))
            return made[-1]

        monkeypatch.setattr(driver, "Processes", start)
        machine = Machine(workers=2, batch=given.pop("batch", 3))
        where = given.pop("where", None) or Ball(X, ids=given.pop("ids", None))
        asked = given.pop("net", net)
        result = frown.certify(asked, where, method="crown", machine=machine, **given)
        return result, made[0]

    return run


@pytest.fixture(scope="module")
def alone(net: frown.Model) -> list[Row]:
    return rows(frown.certify(net, Ball(X), method="crown", machine=Machine(workers=1, batch=3)))


def rows(result: frown.Certification) -> list[Row]:
    return [replace(row, seconds=0.0) for row in result.rows]


def as_it_is(order: Order, messages: Messages) -> Messages:
    return messages


def test_rows_are_those_of_one_process_in_order(
    spread: Callable[..., Any], alone: list[Row]
) -> None:
    told = list[Progress]()

    class Listening(Watch):
        def progress(self, progress: Progress) -> None:
            told.append(progress)

    result, workers = spread(as_it_is, watch=Listening())
    assert rows(result) == alone
    assert told[0].stage == "starting" and told[-1].done == told[-1].total == COUNT
    assert told[-1].proved_mean == pytest.approx(result.radius.mean())
    assert told[-1].broken_mean == pytest.approx(result.broken[np.isfinite(result.broken)].mean())
    assert workers.started == 2


def test_a_batch_whose_worker_is_lost_is_done_again(
    spread: Callable[..., Any], alone: list[Row]
) -> None:
    lost = list[int]()

    def losing(order: Order, messages: Messages) -> Messages:
        if not lost:
            lost.append(order.number)
            return [Lost("gone")]
        return messages

    result, workers = spread(losing)
    assert rows(result) == alone and workers.started == 3


def test_only_the_guilty_input_has_no_answer(spread: Callable[..., Any], alone: list[Row]) -> None:
    def losing(order: Order, messages: Messages) -> Messages:
        return [Lost("killed")] if 4 in order.problem.regions.index else messages

    found = list[Outcome]()

    class Keeping(Watch):
        def finished(self, outcome: Outcome) -> None:
            found.append(outcome)

    result, workers = spread(losing, watch=Keeping())
    for n, row in enumerate(rows(result)):
        if n == 4:
            assert (row.status, row.radius, row.complete) == ("unknown", 0.0, False)
            assert row.remark == "nothing is proved: killed, as another one before"
            assert (row.label, row.prediction, row.input) == (
                alone[n].label,
                alone[n].prediction,
                alone[n].input,
            )
        else:
            # Those of its batch were done one by one, which may round otherwise.
            assert row.radius == pytest.approx(alone[n].radius, rel=1e-4)
    assert [o.places for o in found if o.provisional] == [(4,)]
    assert workers.started == 2 + 3  # the batch twice, the input once


def test_a_machine_that_is_lost_is_no_input_s_fault(
    spread: Callable[..., Any], alone: list[Row]
) -> None:
    lost = list[int]()

    def losing(order: Order, messages: Messages) -> Messages:
        if len(lost) < 5:
            lost.append(order.number)
            return [Lost("node gone", blameless=True)]
        return messages

    result, _ = spread(losing, batch=COUNT - 1)
    assert all(row.complete for row in result.rows) and len(lost) == 5


def test_workers_that_cannot_begin_end_the_run(spread: Callable[..., Any]) -> None:
    def start(self: InProcess, sent: bytes, count: int, change: Any) -> None:
        self.started, self.inbox = 0, deque()
        for _ in range(count):
            self.renew()

    def stillborn(self: InProcess) -> None:
        self.inbox.append((self.started, Lost("its worker ended with code 1")))
        self.started += 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InProcess, "__init__", start)
        patched.setattr(InProcess, "renew", stillborn)
        with pytest.raises(WorkersLost, match=r"before they have begun.*code 1"):
            spread(as_it_is)


def test_a_batch_that_a_worker_leaves_out_is_asked_for_again(
    spread: Callable[..., Any], alone: list[Row]
) -> None:
    def forgetful(order: Order, messages: Messages) -> Messages:
        return messages[-1:] if order.number == 1 else messages

    result, _ = spread(forgetful)
    assert rows(result) == alone


def changed(messages: Messages, change: Callable[[Outcome], Outcome]) -> Messages:
    return [replace(m, outcome=change(m.outcome)) if isinstance(m, Handed) else m for m in messages]


@pytest.mark.parametrize("provisional", [False, True])
def test_an_answer_about_another_input_is_found_out(
    spread: Callable[..., Any], alone: list[Row], provisional: bool
) -> None:
    def swapping(order: Order, messages: Messages) -> Messages:
        def swap(o: Outcome) -> Outcome:
            return replace(o, rows=o.rows[::-1], provisional=provisional)

        return changed(messages, swap)

    result, _ = spread(swapping)
    for n, row in enumerate(result.rows):
        assert row.index == n
        if n in (1, 4, 7, 9):  # the middle of a batch, and the last alone
            assert row.radius == alone[n].radius
        else:
            assert row.radius == 0 and "another question" in row.remark


@pytest.mark.parametrize("lie", ["radius", "certificate", "network", "none"])
@pytest.mark.parametrize("trusted", [True, False])
def test_what_no_certificate_proves_is_withdrawn(
    spread: Callable[..., Any],
    net: frown.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    trusted: bool,
) -> None:
    monkeypatch.setattr(InProcess, "trusted", trusted)

    def lying(order: Order, messages: Messages) -> Messages:
        def change(outcome: Outcome) -> Outcome:
            first, *rest = outcome.rows
            held = dict(outcome.certificates)
            if lie == "radius":
                return replace(outcome, rows=(replace(first, radius=2 * first.radius), *rest))
            if lie == "network":  # at this input the same, and changing ten times as slowly
                x, y = X[first.index : first.index + 1], [first.label]
                slow = net.normalised(-9 * x[0], 10.0)
                proof = frown.Rigorous(certificates=tmp_path)
                found = frown.certify(slow, x, y, method="crown", proof=proof, attack=None).rows[0]
                held[0] = (tmp_path / found.certificate).read_bytes()
                outcome = replace(outcome, rows=(replace(first, radius=found.radius), *rest))
            elif lie == "certificate":
                held[0] = held[max(held)]  # another input's
            else:
                del held[0]
            return replace(outcome, certificates=held)

        return changed(messages, change) if order.number == 1 else messages

    result, _ = spread(lying, proof="checked", attack=None)
    first, *others = result.rows
    assert all(row.level == "checked" and row.radius > 0 for row in others)
    if lie == "none" and trusted:
        assert (first.level, first.remark) == ("rigorous", "") and first.radius > 0
        return
    assert (first.status, first.radius, first.level) == ("unknown", 0.0, "estimate")
    said = "no certificate" if lie == "none" else "another statement"
    assert first.remark.startswith("nothing is proved: ") and said in first.remark


@pytest.mark.parametrize("asked", [None, 0.5])
@pytest.mark.parametrize("provisional", [False, True])
def test_no_row_says_more_than_its_certificate(
    spread: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    alone: list[Row],
    asked: float | None,
    provisional: bool,
) -> None:
    """Not by its status, and not where a worker says that it was cut short."""
    monkeypatch.setattr(InProcess, "trusted", False)

    def lying(order: Order, messages: Messages) -> Messages:
        def change(outcome: Outcome) -> Outcome:
            said = "robust" if asked is None else "certified"
            rows = tuple(replace(row, status=said, level="checked") for row in outcome.rows)
            if provisional:
                rows = tuple(replace(row, radius=9.0) for row in rows)
            return replace(outcome, rows=rows, provisional=provisional)

        return changed(messages, change)

    search = None if asked is None else frown.At(asked)
    result, _ = spread(lying, proof="checked", search=search)
    assert max(row.radius for row in alone) < 0.5
    for row in result.rows:
        if provisional or asked is not None:
            assert row.radius == 0 and row.status in ("unknown", "falsified")
        else:
            assert (row.status, row.level) == ("certified", "checked") and row.radius > 0


def test_a_box_has_no_larger_radius_than_its_own(
    spread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcess, "trusted", False)
    box = frown.Box(X - 1e-3, X + 1e-3)
    honest = spread(as_it_is, where=box, proof="checked")[0].rows
    assert {row.level for row in honest} == {"checked"} and all(row.proved for row in honest)

    def lying(order: Order, messages: Messages) -> Messages:
        def change(outcome: Outcome) -> Outcome:
            return replace(outcome, rows=tuple(replace(r, radius=5.0) for r in outcome.rows))

        return changed(messages, change)

    for row in spread(lying, where=box, proof="checked")[0].rows:
        assert (row.status, row.radius, row.level) == ("unknown", 0.0, "estimate")


@pytest.mark.parametrize("said", ["falsified", "robust ", "unknown"])
def test_a_row_without_a_proof_says_nothing_that_would_be_one(
    spread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """No counterexample lies within the radius that is asked about."""
    monkeypatch.setattr(InProcess, "trusted", False)

    def lying(order: Order, messages: Messages) -> Messages:
        def change(outcome: Outcome) -> Outcome:
            told = {"status": said, "level": "checked ", "margins": {0: 9.0}, "leaves": 7}
            rows = tuple(replace(row, radius=0.0, **told) for row in outcome.rows)
            return replace(outcome, rows=rows, certificates={})

        return changed(messages, change)

    result, _ = spread(lying, proof="checked", search=frown.At(1e-3), attack=None)
    for row in result.rows:
        assert (row.status, row.level, row.margins, row.leaves) == ("unknown", "estimate", {}, 0)


@pytest.mark.parametrize("trusted", [True, False])
def test_what_a_row_says_beside_its_radius_is_the_driver_s_own(
    spread: Callable[..., Any],
    net: frown.Model,
    monkeypatch: pytest.MonkeyPatch,
    alone: list[Row],
    trusted: bool,
) -> None:
    """Margins, leaves, execution, the class of a counterexample, brackets before branching, remarks
    and names: workers that are not trusted may say anything."""
    monkeypatch.setattr(InProcess, "trusted", trusted)
    lies = {
        "margins": {0: 1e6, 1: 1e6, 2: 1e6},
        "leaves": 10**9,
        "deployed": "float32",
        "radius_before": 1e6,
        "broken_before": 1e-9,
        "broken_as": 99,
        "remark": "the checker has accepted any radius",
    }

    def lying(order: Order, messages: Messages) -> Messages:
        def change(outcome: Outcome) -> Outcome:
            rows = tuple(replace(row, id="another", **lies) for row in outcome.rows)
            return replace(outcome, rows=rows)

        return changed(messages, change)

    ids = [f"patient {k}" for k in range(COUNT)]
    result, _ = spread(lying, proof="checked", ids=ids)
    assert [row.id for row in result.rows] == ids
    outputs = net.run(X)
    for row, known in zip(result.rows, alone, strict=True):
        if trusted:
            assert row.remark == lies["remark"]
            continue
        assert row.level == "checked" and row.radius > 0
        assert row.margins.keys() == known.margins.keys()
        clean = outputs[row.index][row.label] - outputs[row.index]
        assert all(0 < margin <= clean[c] for c, margin in row.margins.items())
        assert (row.leaves, row.deployed) == (0, "")
        assert (row.radius_before, row.broken_before) == (None, None)
        assert row.broken_as == known.broken_as
        assert row.remark == f"its worker says: {lies['remark']}"


@pytest.mark.parametrize("centre", [1.0, 0.5])
def test_nothing_is_certified_that_the_model_answers_wrong(
    spread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, centre: float
) -> None:
    """Over the real numbers the label wins everywhere, by 2^-24, and as executed there is a tie
    from 1 on."""
    known = {"w": np.ones((1, 2), np.float32), "b": np.array([2.0**-24, 0], np.float32)}
    path = saved(model([node("Gemm", "x w b")], ["N", 1], known), tmp_path)
    content = draft(path, [], [centre], 1.0, 0, [1]).file()
    monkeypatch.setattr(InProcess, "trusted", False)

    def lying(order: Order, messages: Messages) -> Messages:
        broken = None if centre == 1 else 0.75
        said = {"status": "certified", "radius": 1.0, "level": "checked", "broken": broken}

        def change(outcome: Outcome) -> Outcome:
            rows = tuple(replace(row, **said) for row in outcome.rows)
            points = {} if broken is None else {row.index: np.array([1.25]) for row in rows}
            held = dict.fromkeys(outcome.places, content)
            return replace(outcome, rows=rows, certificates=held, counterexamples=points)

        return changed(messages, change)

    asked = {"net": frown.load(path), "where": Ball([[centre]] * 2), "holds": [0, 0], "batch": 1}
    for row in spread(lying, proof="checked", **asked)[0].rows:
        if centre == 1:
            assert (row.status, row.level, row.radius) == ("misclassified", "estimate", 0)
            assert row.broken == 0 and "called a wrong answer right" in row.remark
        else:
            assert (row.status, row.level, row.broken) == ("certified", "checked", 0.75)
            assert row.radius == np.nextafter(0.75, 0)  # as a run without workers has it


@pytest.mark.parametrize("provisional", [False, True])
def test_nothing_is_checked_that_was_not_asked_for(
    spread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, provisional: bool
) -> None:
    """Nor where a worker says that it was cut short."""
    monkeypatch.setattr(InProcess, "trusted", False)

    def lying(order: Order, messages: Messages) -> Messages:
        return changed(
            messages,
            lambda o: replace(
                o,
                rows=tuple(replace(r, level="checked") for r in o.rows),
                provisional=provisional,
            ),
        )

    result, _ = spread(lying)
    assert {row.level for row in result.rows} == {"rigorous"}


def test_a_counterexample_that_is_none_is_dropped(
    spread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, alone: list[Row]
) -> None:
    monkeypatch.setattr(InProcess, "trusted", False)

    def lying(order: Order, messages: Messages) -> Messages:
        def change(outcome: Outcome) -> Outcome:
            points = dict.fromkeys(outcome.counterexamples, X[0])
            return replace(outcome, counterexamples=points)

        return changed(messages, change)

    result, _ = spread(lying, proof="checked")
    assert all(row.broken is None for row in result.rows) and not result.counterexamples
    assert all("is none" in row.remark for row in result.rows if alone[row.index].broken)
    assert all(row.level == "checked" for row in result.rows)


def test_certificates_are_written_once_by_the_driver(
    spread: Callable[..., Any], net: frown.Model, tmp_path: Path
) -> None:
    proof = frown.Rigorous(certificates=tmp_path / "here")
    result, _ = spread(as_it_is, proof=proof)
    other = frown.Rigorous(certificates=tmp_path / "there")
    machine = Machine(workers=1, batch=3)
    single = frown.certify(net, Ball(X), method="crown", machine=machine, proof=other)
    assert rows(result) == rows(single)
    names = sorted(p.name for p in (tmp_path / "there").glob("*.frown"))
    assert sorted(p.name for p in (tmp_path / "here").glob("*.frown")) == names and names
    for name in names:
        content = (tmp_path / "here" / name).read_bytes()
        assert content == (tmp_path / "there" / name).read_bytes()


def test_batches_are_small_where_inputs_take_long() -> None:
    assert [len(p) for p in parts_of(60, 64, 0.01)] == [60]
    assert [len(p) for p in parts_of(200, 64, 0.1)][:3] == [32, 32, 32]
    slow = [len(p) for p in parts_of(10, 64, 10.0)]
    assert max(slow) == 3 and slow[-1] == 1 and sum(slow) == 10
    assert [len(p) for p in parts_of(3, 64, 60.0)] == [1, 1, 1]


def test_methods_of_a_script_are_refused_where_workers_are_asked_for(net: frown.Model) -> None:
    from frown.methods.crown import Crown

    method = Crown()
    object.__setattr__(method, "hook", lambda: None)  # which cannot be pickled
    with pytest.raises(InvalidInput, match="cannot be given the model or the method"):
        frown.certify(net, Ball(X), method=method, machine=Machine(workers=2, batch=3))
    few = frown.certify(net, Ball(X), method=method, machine=Machine(batch=3))
    assert len(few.rows) == COUNT


def test_only_the_command_line_takes_all_cores_unasked(
    net: frown.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from frown.certification.procedure import Procedure
    from frown.cli import app

    made = list[int]()

    def start(sent: bytes, count: int) -> InProcess:
        made.append(count)
        return InProcess(sent, count, as_it_is)

    monkeypatch.setattr(driver, "Processes", start)
    monkeypatch.setattr(driver, "cores", lambda: 3)
    monkeypatch.setattr(Procedure, "seconds", lambda self: 5.0)
    frown.certify(net, Ball(X), method="crown")
    assert not made
    np.save(tmp_path / "x.npy", X)
    given = ["certify", str(net.path), str(tmp_path / "x.npy"), "--method", "crown", "-q"]
    for more, count in ((), 3), (("--threads", "2"), None), (("--workers", "2"), 2):
        made.clear()
        shown = CliRunner().invoke(app, [*given, *more])
        assert shown.exit_code == 0, shown.output
        assert made == ([] if count is None else [count])


def test_small_networks_take_little_time_by_any_method(net: frown.Model) -> None:
    from frown.certification.attack import PGD
    from frown.certification.procedure import Procedure
    from frown.certification.prove import Rigorous

    for method in (frown.Crown(), frown.LP(), frown.Branch(seconds=0.01)):
        own = Procedure(net, method, Rigorous(), PGD(), Machine(), 0.01, False, True)
        assert 0 < own.seconds() <= (0.01 if isinstance(method, frown.Branch) else 0.1)
