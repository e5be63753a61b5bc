"""Certificates from the outside: where they go, what is said of them, and how they are checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import asking
import frown
import frown_check
from frown.certification import folder as folder_module
from frown.certification import run as batches
from frown.cli import app
from frown_check import __main__ as checking
from onnx_models import model, node, saved, weights

FRAMES, FEATURES = 3, 2


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences (3, 2) -> 5 relu -> 3."""
    proto = model(
        [
            node("Flatten", "x", "flat"),
            node("Gemm", "flat w0 b0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1 b1", "y", transB=1),
        ],
        ["N", FRAMES, FEATURES],
        {
            "w0": weights(5, FRAMES * FEATURES, seed=1),
            "b0": weights(5, seed=2),
            "w1": weights(3, 5, seed=3),
            "b1": weights(3, seed=4),
        },
    )
    return saved(proto, tmp_path_factory.mktemp("net"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(5).uniform(0.1, 0.9, (4, FRAMES, FEATURES)))
    return path


def call(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- writing -----------------------------------------------------------------------------


def test_a_run_says_where_its_certificates_are_and_how_to_check_them(
    net: Path, data: Path, tmp_path: Path
) -> None:
    proofs = tmp_path / "my proofs"
    shown = call("certify", net, data, "--certificates", proofs, "--samples", "0:2").stdout
    assert f"2 certificates in {proofs} (frown check '{proofs}' --model {net})" in shown
    assert names(proofs) == ["input-000000.frown", "input-000001.frown"]


def test_certificates_of_an_earlier_run_are_kept(net: Path, data: Path, tmp_path: Path) -> None:
    given, proofs = ("certify", net, data, "--certificates", tmp_path / "p"), tmp_path / "p"
    call(*given, "--samples", "0:3")
    before = (proofs / "input-000001.frown").read_bytes()
    refused = call(*given, "--samples", "1:4", "--norm", "2", code=6).stderr
    assert "input-000001.frown and 1 more" in refused
    assert "--force" in refused
    assert (proofs / "input-000001.frown").read_bytes() == before
    call(*given, "--samples", "3")  # another input's
    assert len(names(proofs)) == 4
    # With --force, an input that has no proof now has no certificate from before either.
    shown = call(*given, "--samples", "0:2", "--eps", "1000", "--force").stdout
    assert "no certificates" in shown
    assert names(proofs) == ["input-000002.frown", "input-000003.frown"]


def test_folders_that_cannot_be_written_are_found_before_the_work(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches._Run, "all", lambda *a, **k: pytest.fail("the work began"))
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        message = call("certify", net, data, "--certificates", folder, code=6).stderr
        assert f"error: cannot write certificates to {folder}: " in message

    def denied(path: Path) -> tuple[int, Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder_module, "_fresh", denied)
    message = call("certify", net, data, "--certificates", tmp_path / "p", code=6).stderr
    assert "Permission denied; choose another folder" in message


def test_refusals_say_what_to_do(net: Path, data: Path, tmp_path: Path) -> None:
    given = ("--certificates", tmp_path / "p", "--level", "estimate")
    assert "leave out level estimate" in call("certify", net, data, *given, code=2).stderr
    given = ("--certificates", tmp_path / "p", "--method", "milp")
    assert "take frown, crown or lp" in call("certify", net, data, *given, code=2).stderr


@pytest.mark.parametrize("method", ["crown", "frown", "lp", "branch"])
def test_networks_without_activations_have_certificates(method: str, tmp_path: Path) -> None:
    constants = {"w": weights(4, 3), "b": weights(3, seed=9)}
    net = saved(model([node("Gemm", "x w b", "y")], ["N", 4], constants), tmp_path)
    rows = frown.certify(net, weights(8, 4), method=method, proof="checked").rows
    assert {(row.status, row.level) for row in rows} == {("certified", "checked")}


def test_certificates_may_be_checked_without_a_folder_to_keep_them(net: Path, data: Path) -> None:
    rows = frown.certify(frown.load(net), np.load(data)[:2], method="crown", proof="checked").rows
    assert [(row.level, row.certificate) for row in rows] == [("checked", "")] * 2


@pytest.mark.parametrize("norm", [1, 2, 3, "inf"])
@pytest.mark.parametrize("low", [0.0, -np.inf])
def test_ranges_without_an_end_are_checked(net: Path, data: Path, norm: object, low: float) -> None:
    """Every number of a ball is below the largest double, so that is as good an end as none."""
    ball = frown.Ball(np.load(data), norm=norm, within=(low, np.inf))
    rows = frown.certify(net, ball, method="crown", proof="checked", attack=None).rows
    assert all(row.level == "checked" and row.radius > 0 for row in rows)
    plain = frown.certify(net, ball, method="crown", attack=None).rows
    assert [row.radius for row in rows] == [row.radius for row in plain]


def test_certificates_of_frames_have_names_of_their_own(
    net: Path, data: Path, tmp_path: Path
) -> None:
    given = ("--sensitivity", "--frames", "1:", "--samples", "2,3", "--level", "checked")
    shown = call("certify", net, data, "--certificates", tmp_path / "p", *given).stdout
    assert "level: checked" in shown
    assert "4 certificates in" in shown
    expected = [f"input-{i:06d}-frame-{f:03d}.frown" for i in (2, 3) for f in (1, 2)]
    assert names(tmp_path / "p") == expected
    refused = call("certify", net, data, "--certificates", tmp_path / "p", *given, code=6).stderr
    assert "frame-001.frown and 3 more" in refused
    # From Python, with the folder as text.
    found = asking.sensitivity(
        frown.load(net), np.load(data)[:1], frames=[0, 2], certificates=str(tmp_path / "q")
    )
    for row in found.rows:
        assert row.certificate == f"input-000000-frame-00{row.frames}.frown"
        claim = frown_check.check(tmp_path / "q" / row.certificate, net).claim
        assert claim is not None
        moved = np.zeros((FRAMES, FEATURES))
        moved[int(row.frames)] = 1
        assert (claim.scale == moved).all()


@pytest.mark.parametrize(
    ("stage", "remark"),
    [
        ("rigorous", "interrupted before rounding errors were accounted for"),
        ("certificates", "interrupted before its certificate was written"),
    ],
)
def test_rows_cut_short_say_which_step_is_missing(
    net: Path, data: Path, tmp_path: Path, stage: str, remark: str
) -> None:
    rows: list[Any] = []

    def stop(progress: batches.Progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asking.certify(
            frown.load(net),
            np.load(data),
            certificates=tmp_path / "p",
            progress=stop,
            on_rows=lambda fresh, found: rows.extend(fresh),
        )
    assert [row.remark for row in rows] == [remark] * 4
    assert {row.level for row in rows} == {"estimate" if stage == "rigorous" else "rigorous"}
    assert names(tmp_path / "p") == []


def test_an_interrupt_between_writing_and_checking(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = []
    check, calls = frown_check.check, []

    def once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return check(*args)

    monkeypatch.setattr(frown_check, "check", once)
    with pytest.raises(KeyboardInterrupt):
        asking.certify(
            frown.load(net),
            np.load(data)[:3],
            level="checked",
            certificates=tmp_path / "p",
            on_rows=lambda fresh, found: rows.extend(fresh),
        )
    assert [row.level for row in rows] == ["checked", "rigorous", "rigorous"]
    ends = ["", "checked", "written"]
    for row, end in zip(rows, ends, strict=True):
        assert row.remark == (f"interrupted before its certificate was {end}" if end else "")
        assert bool(row.certificate) == (end != "written")


def test_a_radius_of_zero_is_proved_like_others(net: Path, data: Path, tmp_path: Path) -> None:
    found = asking.certify(
        frown.load(net),
        np.load(data)[:2],
        eps=[0.0, 1e-3],
        level="checked",
        certificates=tmp_path / "p",
    )
    assert found.status == ["certified", "certified"]
    assert [row.level for row in found.rows] == ["checked", "checked"]
    assert names(tmp_path / "p") == ["input-000000.frown", "input-000001.frown"]


# -- checking ----------------------------------------------------------------------------


@pytest.fixture
def proofs(net: Path, data: Path, tmp_path: Path) -> Path:
    call("certify", net, data, "--certificates", tmp_path / "proofs", "--samples", "0:2")
    return tmp_path / "proofs"


def test_folders_are_checked_file_by_file(net: Path, proofs: Path, tmp_path: Path) -> None:
    (proofs / "notes.txt").write_text("no certificate")
    lines = call("check", proofs, "--model", net).stdout.splitlines()
    said = [line.split(": ")[1] for line in lines[:-1] if not line.startswith("  ")]
    assert said == ["accepted", "accepted"]
    assert lines[-1] == "2 certificates: 2 accepted, 0 refused"
    (tmp_path / "none").mkdir()
    shown = call("check", proofs, tmp_path / "none", "--model", net, code=1).stdout
    assert "none is a folder" in shown
    assert "3 certificates: 2 accepted, 1 refused" in shown
    shown = call("check", tmp_path / "none", "--model", net, "--json", code=1).stdout
    assert json.loads(shown)["accepted"] is False


def test_what_is_wrong_with_a_file_is_said(net: Path, proofs: Path, tmp_path: Path) -> None:
    whole = (proofs / "input-000000.frown").read_bytes()
    for content, reason in (
        (b"", "the file is empty"),
        (b"hello, this is a text", "not a certificate"),
        (b"FROWNC07" + whole[8:], "not a certificate of version 1, 2 or 3, which are read here"),
    ):
        (tmp_path / "c.frown").write_bytes(content)
        shown = call("check", tmp_path / "c.frown", "--model", net, code=1).stdout
        assert f"REFUSED: {reason}" in shown
    shown = call("check", tmp_path / "gone.frown", "--model", net, code=1).stdout
    assert "gone.frown is not there" in shown
    shown = call("check", proofs / "input-000000.frown", "--model", proofs, code=1).stdout
    assert f"{proofs} is a folder" in shown


def checker(*args: object, **options: Any) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(frown_check.__file__).parents[1])}
    command = [sys.executable, "-m", "frown_check", *map(str, args)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, **options)


def test_a_reader_that_leaves_and_an_interrupt_give_no_traceback(net: Path, proofs: Path) -> None:
    many = [proofs] * 2000
    gone = checker(*many, "--model", net, stdout=subprocess.PIPE)
    assert gone.stdout is not None
    assert "accepted" in gone.stdout.readline()
    gone.stdout.close()
    assert gone.stderr is not None
    assert gone.stderr.read() == ""
    assert gone.wait(60) == 1
    stopped = checker(*many, "--model", net, stdout=subprocess.PIPE)
    assert stopped.stdout is not None
    stopped.stdout.readline()  # verdicts come as they are found, through a pipe as well
    time.sleep(0.1)
    stopped.send_signal(signal.SIGINT)
    _, errors = stopped.communicate(timeout=60)
    assert (stopped.returncode, errors) == (130, "interrupted\n")


def test_progress_leaves_the_line_to_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checking, "PATIENCE", -1.0)
    progress = checking._Progress("a")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress(0.5)
    progress(0.9)  # too soon after the last
    progress.clear()
    assert capsys.readouterr().err == "\ra:  50%\r       \r"


def test_inputs_of_one_number_would_overwrite_each_others_certificates(
    net: Path, data: Path, tmp_path: Path
) -> None:
    found, x, proofs = frown.load(net), np.load(data), tmp_path / "proofs"
    with pytest.raises(frown.FrownError, match="several inputs have 7"):
        asking.certify(found, x, indices=[7, 3, 7, 5], certificates=proofs)
    assert not proofs.exists()
    rows = asking.certify(found, x, indices=[7, 3, 7, 5]).rows  # without files, why not
    assert [row.index for row in rows] == [7, 3, 7, 5]
