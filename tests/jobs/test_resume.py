"""Runs that were ended in any way go on: every row once, as without an end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from frown import api
from frown.cli import app
from frown.jobs.files import ResultFiles
from frown_check import check
from onnx_models import saved, small

COUNT = 60
OPTIONS = ("--batch", 2, "--method", "crown", "-q")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(small(), tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, net: Path) -> Path:
    path = tmp_path_factory.mktemp("data") / "x.npz"
    x = np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, 4))
    np.savez(path, x=x, y=np.asarray(api.load(net).run(x)).argmax(1))
    return path


@pytest.fixture(scope="module")
def whole(net: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    frown("certify", net, data, "--out", out, *OPTIONS)
    return out


def frown(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stderr


def start(*args: object) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(api.__file__).parents[1])}
    command = [sys.executable, "-m", "frown", *map(str, args)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def stored(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def same(out: Path, whole: Path) -> None:
    assert stored(out) == stored(whole)
    table, wanted = (
        [line.split(",")[:11] for line in (folder / "results.csv").read_text().splitlines()]
        for folder in (out, whole)
    )
    assert table == wanted
    with (
        np.load(out / "counterexamples.npz") as here,
        np.load(whole / "counterexamples.npz") as there,
    ):
        assert all(np.array_equal(here[name], there[name]) for name in ("x", "y", "index"))
    about = json.loads((out / "run.json").read_text())
    assert (about["state"], about["rows"]) == ("finished", COUNT)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.iterdir())


def test_an_interrupt_between_the_file_and_the_table_loses_no_row(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary of a run tells what its files hold, wherever Ctrl-C strikes."""
    append = ResultFiles.append

    def struck(files: ResultFiles, *given: Any, **how: Any) -> None:
        append(files, *given, **how)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ResultFiles, "append", struck)
    said = frown("certify", net, data, "--out", tmp_path / "out", *OPTIONS, code=130)
    rows = stored(tmp_path / "out")
    whole = sum(row["complete"] for row in rows)
    assert rows and f"interrupted: {whole} of {COUNT} inputs finished" in said


def test_a_run_killed_again_and_again_is_as_one_that_was_not(
    net: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    out, dice, before, kills = tmp_path / "out", random.Random(0), list[dict[str, Any]](), 0
    for _ in range(4):
        running = start("certify", net, data, "--out", out, "--resume", *OPTIONS)
        lines, deadline = out / "results.jsonl", time.monotonic() + 60
        count = 0
        while time.monotonic() < deadline and running.poll() is None and count <= len(before):
            count = lines.read_bytes().count(b"\n") if lines.exists() else 0
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.1))
        running.send_signal(signal.SIGKILL)
        _, errors = running.communicate(timeout=60)
        assert running.returncode in (0, -signal.SIGKILL), errors
        kills += running.returncode != 0
        kept = stored(out)[: len(lines.read_bytes().split(b"\n")) - 1]
        assert kept[: len(before)] == before  # nothing that was finished is lost or done again
        before = kept
    assert kills
    frown("certify", net, data, "--out", out, "--resume", *OPTIONS)
    same(out, whole)


def test_rows_that_an_interrupt_cut_short_are_done_again(
    net: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.certification.run import _Run

    out, search, calls = tmp_path / "out", _Run._search, [0]

    def interrupted(self: Any, *args: Any) -> None:
        calls[0] += 1
        if calls[0] == 10:
            raise KeyboardInterrupt
        search(self, *args)

    monkeypatch.setattr(_Run, "_search", interrupted)
    frown("certify", net, data, "--out", out, *OPTIONS, code=130)
    monkeypatch.undo()
    early = [row for row in stored(out) if row.get("provisional")]
    assert early and len(stored(out)) > len(early)
    frown("certify", net, data, "--out", out, "--resume", *OPTIONS)
    same(out, whole)


def test_another_interrupt_while_files_are_closed_is_too_late(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.certification.run import _Run

    out, compare, close = tmp_path / "out", _Run._compare, ResultFiles.close

    def interrupted(self: Any, batch: Any) -> None:
        compare(self, batch)
        if self.done.count:
            os.kill(os.getpid(), signal.SIGINT)

    def again(self: Any, outcome: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        close(self, outcome)

    monkeypatch.setattr(_Run, "_compare", interrupted)
    monkeypatch.setattr(ResultFiles, "close", again)
    frown("certify", net, data, "--out", out, *OPTIONS, code=130)
    assert json.loads((out / "run.json").read_text())["state"] == "interrupted"


def test_nothing_is_left_to_do_of_a_run_that_ended(
    net: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.certification import run

    monkeypatch.setattr(run, "begin", lambda *a: pytest.fail("a batch began"))
    before = (whole / "results.jsonl").read_bytes()
    asked = ("certify", net, data, "--out", whole, "--resume", *OPTIONS[:-1])
    shown = CliRunner().invoke(app, list(map(str, asked))).stdout
    assert (whole / "results.jsonl").read_bytes() == before
    count = len(before.splitlines())
    assert f"({count} of {count} rows were there already, nothing was left to do)" in shown


def test_a_row_that_is_none_is_named(net: Path, data: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    path = tmp_path / "out" / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[3])
    record["radius"] = "abc"
    path.write_text("".join([*lines[:3], json.dumps(record) + "\n", *lines[4:]]))
    told = frown("certify", net, data, "--out", tmp_path / "out", "--resume", *OPTIONS, code=2)
    assert f"{path}: the row of input {record['index']} is damaged" in told
    path.write_text("".join([*lines[:3], "XX" + lines[3], *lines[4:]]))
    for command in ("report", "plot"):
        assert f"{path}, line 4: not a row" in frown(command, tmp_path / "out", code=2)


def test_other_settings_are_refused_by_name(
    net: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    before = (whole / "results.jsonl").read_bytes()
    said = frown(
        *("certify", net, data, "--out", whole, "--resume", *OPTIONS, "--norm", 2, "--tol", 0.1),
        code=2,
    )
    assert "tol: 0.01 there, 0.1 here" in said and 'norm: "inf" there, "2" here' in said
    assert "statement." not in said  # the norm once more
    with np.load(data) as held:
        np.savez(tmp_path / "other.npz", x=held["x"], y=(held["y"] + 1) % 3)
    said = frown(
        "certify", net, tmp_path / "other.npz", "--out", whole, "--resume", *OPTIONS, code=2
    )
    assert "inputs and labels: " in said and 'data: "' in said and '..." there' in said
    assert "--resume" in frown("certify", net, data, "--out", whole, *OPTIONS, code=6)
    assert (whole / "results.jsonl").read_bytes() == before


def test_a_certificate_that_is_gone_is_made_again(net: Path, data: Path, tmp_path: Path) -> None:
    given = ("--out", tmp_path / "out", "--certificates", tmp_path / "c", "--samples", "0:6")
    frown("certify", net, data, *given, *OPTIONS)
    before = stored(tmp_path / "out")
    (tmp_path / "c" / "input-000003.frown").unlink()
    frown("certify", net, data, *given, *OPTIONS, "--resume")
    assert (tmp_path / "c" / "input-000003.frown").is_file()
    assert stored(tmp_path / "out") == before


def test_a_certificate_of_another_run_is_not_taken_for_a_row_s_own(
    net: Path, data: Path, tmp_path: Path
) -> None:
    """A later run with another property has written certificates of the same names."""
    given = ("--certificates", tmp_path / "c", "--samples", "0:3", "--level", "checked")
    first, later = ("--out", tmp_path / "out"), ("--out", tmp_path / "later", "--force")
    frown("certify", net, data, *first, *given, *OPTIONS)
    frown("certify", net, data, *later, *given, *OPTIONS, "--target", "+1")
    frown("certify", net, data, *first, *given, *OPTIONS, "--resume")
    for row in stored(tmp_path / "out"):
        verdict = check(tmp_path / "c" / row["certificate"], net)
        assert verdict.accepted and verdict.claim is not None
        assert len(verdict.claim.others) > 1 and verdict.claim.radius >= row["radius"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume",), "give --out"),
        (("--resume", "--out", "o", "--force"), "one of them"),
        (("--fail-under", 0.5), "give --eps"),
        (("--fail-under", 1.5, "--eps", 0.01), "0 to 1"),
        (("--fail-under", 0.5, "--eps", 0.01, "--level", "estimate"), "counts what is proved"),
        (("--fail-under", 0.5, "--eps", 0.01, "--method", "milp"), "counts what is proved"),
    ],
)
def test_options_that_contradict_each_other(
    net: Path, data: Path, options: tuple[object, ...], said: str
) -> None:
    assert said in frown("certify", net, data, *options, code=2)


def test_too_low_an_accuracy_ends_with_its_own_code(net: Path, data: Path) -> None:
    given = ("certify", net, data, *OPTIONS)
    frown(*given, "--eps", 1e-6, "--fail-under", 0.9)
    said = frown(*given, "--eps", 5, "--fail-under", 0.01, code=8)
    assert "certified accuracy 0% at --eps 5" in said and f"0 of {COUNT} inputs" in said
    said = frown(*given, "--eps", 5, "--fail-under", 0.0000012345678, code=8)
    assert "is below --fail-under 1.2345678e-06" in said  # as it was given, and not rounded


def test_inputs_whose_workers_died_are_tried_again(
    net: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.certification.run import _Run

    out, made = tmp_path / "out", _Run._outcome

    def lost(self: Any, batch: Any) -> Any:
        outcome = made(self, batch)
        return replace(outcome, provisional=7 in [row.index for row in outcome.rows])

    monkeypatch.setattr(_Run, "_outcome", lost)
    said = frown("certify", net, data, "--out", out, *OPTIONS, code=9)
    assert f"2 of {COUNT} inputs have no answer" in said and "--resume tries them again" in said
    assert json.loads((out / "run.json").read_text())["lost"] == 2
    monkeypatch.undo()
    frown("certify", net, data, "--out", out, "--resume", *OPTIONS)
    same(out, whole)
