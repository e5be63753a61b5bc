"""One run at a time in a folder, whole files, no links followed; runs that ended are readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import asking
import frown
from frown import api
from frown.certification.folder import (
    CERTIFICATES_LOCK,
    RESULTS_LOCK,
    InUse,
    Lock,
    holder,
    write_whole,
)
from frown.certification.results import Certification, Row
from frown.errors import InvalidInput, OutputError
from frown.jobs import files as result_files
from frown.jobs.files import FILES, Origin, ResultFiles
from frown.report.page import report_from_files, write_report
from frown.report.read import read_any, read_notices, read_results
from onnx_models import saved, small
from report.test_report import parse

ROW = Row(0, 1, 1, None, 2.0, "crown", "certified", 0.5, None, None, {}, 0.1, level="rigorous")
linux = pytest.mark.skipif(sys.platform == "win32", reason="signals and links")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(small(), tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "x.npy"
    np.save(path, np.random.default_rng(5).uniform(0.1, 0.9, (3000, 4)))
    return path


def start(*args: object) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(api.__file__).parents[1])}
    command = [sys.executable, "-m", "frown", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes)


def wait_for_rows(running: subprocess.Popen[str], out: Path, count: int = 1) -> None:
    deadline, lines = time.monotonic() + 120, out / "results.jsonl"
    while time.monotonic() < deadline:
        if lines.exists() and lines.read_bytes().count(b"\n") >= count:
            return
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.02)
    pytest.fail("no rows")


# -- two runs ------------------------------------------------------------------------------


@linux
def test_a_killed_run_says_so_and_its_folder_can_be_taken_again(
    net: Path, data: Path, tmp_path: Path
) -> None:
    out, proofs = tmp_path / "out", tmp_path / "proofs"
    given = ("certify", net, data, "--out", out, "--certificates", proofs, "--batch", 1, "-q")
    first = start(*given)
    try:
        wait_for_rows(first, out, 3)
        for second in (
            start(*given, "--force"),
            start("certify", net, data, "--certificates", proofs, "--force", "-q"),
        ):
            _, message = second.communicate(timeout=60)
            assert second.returncode == 6, message
            assert f"process {first.pid} on " in message and "is in use" in message
        assert first.poll() is None
        assert f"process {first.pid}" in (holder(out, RESULTS_LOCK) or "")
        (notice,) = read_notices(out, read_any(out))
        assert notice.startswith(f"still running (process {first.pid} on ")
    finally:
        first.kill()
        first.communicate(timeout=60)
    # kill -9 leaves a lock's file, and rows; nobody holds it, and nothing looks complete.
    assert (out / RESULTS_LOCK).exists() and (proofs / CERTIFICATES_LOCK).exists()
    about = json.loads((out / "run.json").read_text())
    assert about["state"] == "running" and "rows" not in about
    stored = len(read_results(out))
    assert stored >= 3
    wanted = f"interrupted: {stored:,} of 3,000 inputs; level: rigorous ("
    page = tmp_path / "page.html"
    report = start("report", out, "--out", page)
    _, message = report.communicate(timeout=60)
    assert report.returncode == 0 and wanted in message, message
    text = page.read_text(encoding="utf-8")
    assert wanted in text and text.index('class="banner"') < text.index("<h1>")
    parse(page)
    again = start(*given[:-1], "--force", "--samples", "0:2")
    _, message = again.communicate(timeout=60)
    assert again.returncode == 0, message
    assert len(read_results(out)) == 2
    assert not (out / RESULTS_LOCK).exists() and not (proofs / CERTIFICATES_LOCK).exists()
    assert read_notices(out, read_any(out)) == []
    assert 'class="banner"' not in report_from_files([out], page).read_text(encoding="utf-8")


@linux
def test_a_run_ended_by_ctrl_c_says_so_on_its_page(net: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = start("certify", net, data, "--out", out, "--batch", 1, "-q")
    wait_for_rows(running, out, 2)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    rows = read_results(out).rows
    told: list[str] = []
    text = report_from_files([out], tmp_path / "p.html", told.append).read_text(encoding="utf-8")
    (notice,) = told
    assert f"interrupted: {len(rows):,} of 3,000 inputs" in notice
    assert f"interrupted: {len(rows):,} of 3,000 inputs" in text


@linux
def test_two_runs_started_together_lose_no_rows(net: Path, data: Path, tmp_path: Path) -> None:
    given = ("certify", net, data, "--out", tmp_path / "out", "--samples", "0:40", "--json")
    both = [start(*given, "--force"), start(*given, "--force")]
    ended = [run.communicate(timeout=120) for run in both]
    codes = [run.returncode for run in both]
    # One after the other if they do not overlap; else one is refused. Never a mixture.
    assert sorted(codes) in ([0, 0], [0, 6])
    last = [out for (out, _), code in zip(ended, codes, strict=True) if code == 0]
    stored = [json.loads(line)["index"] for line in (tmp_path / "out/results.jsonl").open()]
    assert stored == list(range(40))
    assert all(len(out.splitlines()) == 40 for out in last)


def test_a_lock_is_one_runs_and_gone_when_released(tmp_path: Path) -> None:
    refused: list[str] = []

    def other() -> None:
        try:
            Lock.take(tmp_path, RESULTS_LOCK, "results").release()
        except OutputError as error:
            refused.append(str(error))

    def elsewhere() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    lock = Lock.take(tmp_path, RESULTS_LOCK, "results")
    with pytest.raises(InUse, match="this process itself"):
        Lock.take(tmp_path, RESULTS_LOCK, "results")
    inner = Lock.join(tmp_path, RESULTS_LOCK, "results")
    elsewhere()
    assert len(refused) == 1 and "in use by this process itself" in refused[0]
    inner.release()
    elsewhere()
    assert len(refused) == 2
    lock.release()
    assert list(tmp_path.iterdir()) == []
    elsewhere()
    assert len(refused) == 2


@linux
def test_a_link_at_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RESULTS_LOCK).symlink_to(victim)
    with pytest.raises(OutputError, match="symbolic link"):
        ResultFiles.prepare(tmp_path / "out", {}, Origin({}, "1", "ab"))
    (tmp_path / "out" / RESULTS_LOCK).unlink()
    os.link(victim, tmp_path / "out" / RESULTS_LOCK)
    with pytest.raises(OutputError, match="no file of frown"):
        ResultFiles.prepare(tmp_path / "out", {}, Origin({}, "1", "ab"))
    assert victim.read_text() == "precious"


# -- whole files, no links -----------------------------------------------------------------


@linux
def test_links_at_names_that_frown_writes_are_not_followed(
    net: Path, data: Path, tmp_path: Path
) -> None:
    victim, out, proofs = tmp_path / "victim", tmp_path / "out", tmp_path / "proofs"
    victim.write_text("precious")
    for folder in (out, proofs):
        folder.mkdir()
    final = [out / name for name in FILES] + [proofs / "input-000000.frown", tmp_path / "p.html"]
    guessed = [out / "run.new", out / "counterexamples.npz.new", proofs / "input-000000.new"]
    guessed += [folder / f".frown-{os.getpid()}" for folder in (out, proofs)]
    guessed += [Path(f"{path}.new") for path in final]
    for path in {*final, *guessed}:
        path.symlink_to(victim)
    given = ("--out", out, "--certificates", proofs, "--samples", "0:1", "--batch", 1, "-q")
    run = start("certify", net, data, *given, "--force")
    _, message = run.communicate(timeout=60)
    assert run.returncode == 0, message
    report_from_files([out], tmp_path / "p.html")
    assert victim.read_text() == "precious"
    assert not any(path.is_symlink() for path in final)
    assert len(read_results(out)) == 1


def test_a_file_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    write_whole(path, b"old")
    monkeypatch.setattr(os, "fdopen", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@linux
def test_a_pipe_or_a_device_is_written_to(tmp_path: Path) -> None:
    made = {"crown": Certification((ROW,), digest="ab")}
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_report(made, None, tmp_path / "pipe", "t")
    reader.join(timeout=20)
    assert got and got[0].startswith(b"<!doctype html>")
    with pytest.raises(OutputError, match="cannot write"):
        write_report(made, None, Path("/dev/full"), "t")
    assert not Path("/dev/full").is_file()


# -- rows that are not whole ---------------------------------------------------------------


def stored(folder: Path, count: int, asked: int, state: str = "finished") -> Path:
    origin = Origin({}, "1", "ab")
    files = ResultFiles.prepare(folder, {"asked": asked}, origin)
    files.append([Row(i, *[getattr(ROW, f) for f in ROW.__slots__[1:]]) for i in range(count)], {})
    files.close({"state": state})
    files.release()
    return folder


@pytest.mark.parametrize("cut", [1, 5, 300])
def test_a_half_written_last_line_is_left_out_and_told(tmp_path: Path, cut: int) -> None:
    lines = stored(tmp_path, 4, 4) / "results.jsonl"
    lines.write_bytes(lines.read_bytes()[:-cut])
    found = read_results(tmp_path)
    whole = cut == 1  # only the newline is missing: nothing is lost
    assert [row.index for row in found.rows] == [0, 1, 2, 3][: 4 if whole else 3]
    notices = read_notices(tmp_path, found)
    assert any("cut off" in notice for notice in notices) != whole
    assert any("incomplete: 3 of 4 inputs" in notice for notice in notices) != whole
    report_from_files([tmp_path], tmp_path / "p.html")


def test_a_damaged_line_before_the_last_is_an_error(tmp_path: Path) -> None:
    lines = stored(tmp_path, 3, 3) / "results.jsonl"
    first, rest = lines.read_bytes().split(b"\n", 1)
    lines.write_bytes(first[:-9] + b"\n" + rest)
    with pytest.raises(InvalidInput, match="line 1: not a row"):
        read_results(tmp_path)


def test_a_disk_that_fills_up_leaves_a_readable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ResultFiles.prepare(tmp_path, {"asked": 9}, Origin({}, "1", "ab"))
    files.append([ROW], {})
    dumps = result_files.dumps
    half = dumps(result_files.record(ROW, files.origin))[:100]
    with (tmp_path / "results.jsonl").open("a") as stream:
        stream.write(half)  # what a full disk leaves of a line
    files.release()
    found = read_results(tmp_path)
    assert len(found) == 1
    told = " ".join(read_notices(tmp_path, found))
    assert "interrupted: 1 of 9 inputs" in told and "cut off" in told


@pytest.mark.parametrize(
    ("state", "count", "word"),
    [
        ("interrupted", 2, "interrupted: 2 of 5 inputs"),
        ("failed", 2, "failed: 2 of 5 inputs"),
        ("finished", 2, "incomplete: 2 of 5 inputs"),
        ("interrupted", 5, "interrupted: 5 of 5 inputs"),
        ("finished", 5, ""),
    ],
)
def test_every_state_but_a_whole_run_is_told(
    tmp_path: Path, state: str, count: int, word: str
) -> None:
    folder = stored(tmp_path / "out", count, 5, state)
    notices = read_notices(folder, read_any(folder))
    assert [n.split(";")[0] for n in notices] == ([word] if word else [])
    page = report_from_files([folder], tmp_path / "p.html").read_text(encoding="utf-8")
    assert (word in page) if word else ('class="banner"' not in page)


def test_a_missing_run_file_is_told(tmp_path: Path) -> None:
    (stored(tmp_path, 2, 2) / "run.json").unlink()
    assert "run.json is missing" in read_notices(tmp_path, read_any(tmp_path))[0]


def test_certificates_of_python_take_their_folder(net: Path, data: Path, tmp_path: Path) -> None:
    x = np.load(data)[:2]
    network = frown.load(net)
    seen: list[bool] = []
    asking.certify(
        network,
        x,
        method="crown",
        certificates=tmp_path,
        on_rows=lambda rows, found: seen.append((tmp_path / CERTIFICATES_LOCK).exists()),
    )
    assert seen == [True] and not (tmp_path / CERTIFICATES_LOCK).exists()
