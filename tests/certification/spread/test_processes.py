"""Workers that are processes: they die alone, and end with their driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frown
from deadly import POISON, Deadly
from frown import Ball, Machine
from frown.bounds import work
from frown.bounds.work import NO_LIMIT, Clock
from frown.certification.attack import PGD
from frown.certification.procedure import Procedure
from frown.certification.prove import Rigorous
from frown.certification.spread import forks
from frown.certification.spread.driver import _paying
from frown.certification.spread.forks import FORKS
from onnx_models import saved, small

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(small(), tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def net(path: Path) -> frown.Model:
    return frown.load(path)


X = np.random.default_rng(5).uniform(0.2, 0.9, (6, 4))


def rows(result: frown.Certification) -> list[Any]:
    return [replace(row, seconds=0.0) for row in result.rows]


def script(text: str, path: Path, *args: object) -> subprocess.Popen[str]:
    """A process of Python that runs a script of its own, with no guard around its main part."""
    path.write_text(text)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, str(path), *map(str, args)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SCRIPT = """
import sys, numpy as np, torch, frown
torch.set_num_threads(1)
data = np.load(sys.argv[2])
machine = frown.Machine(workers=2, batch=2)
found = frown.certify(sys.argv[1], frown.Ball(data), method="frown", machine=machine)
print([row.radius for row in found.rows], [row.broken for row in found.rows])
"""


def test_a_script_without_a_guard_gets_the_radii_of_one_process(
    net: frown.Model, path: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", X)
    running = script(SCRIPT, tmp_path / "script.py", path, tmp_path / "x.npy")
    said, errors = running.communicate(timeout=100)
    assert running.returncode == 0, errors
    alone = frown.certify(net, Ball(X), method="frown", machine=Machine(workers=1, batch=2))
    assert said.strip() == str([[r.radius for r in alone.rows], [r.broken for r in alone.rows]])[
        1:-1
    ].replace("], [", "] [")


def test_a_worker_that_is_killed_once_costs_nothing_but_time(
    net: frown.Model, tmp_path: Path
) -> None:
    x = X.copy()
    x[3, 0] = POISON
    flag = tmp_path / "once"
    flag.touch()
    machine = Machine(workers=2, batch=2)
    result = frown.certify(net, Ball(x), method=Deadly(flag), machine=machine)
    alone = frown.certify(net, Ball(x), method=Deadly(flag), machine=replace(machine, workers=1))
    assert not flag.exists() and rows(result) == rows(alone)


def test_an_input_on_which_workers_die_says_so(net: frown.Model) -> None:
    x = X[:2].copy()
    x[1, 0] = POISON
    machine = Machine(workers=2, batch=1)
    result = frown.certify(net, Ball(x), method=Deadly(), machine=machine)
    good, bad = result.rows
    assert good.radius > 0 and not good.remark
    assert bad.radius == 0 and bad.status == "unknown"
    assert "ended by SIGKILL, perhaps for want of memory, as another one before" in bad.remark


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def gone(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() and _alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def begun(running: subprocess.Popen[str], out: Path) -> list[int]:
    """The workers of a run, once there are rows."""
    deadline, lines = time.monotonic() + 60, out / "results.jsonl"
    while time.monotonic() < deadline and running.poll() is None:
        if lines.exists() and lines.read_bytes().count(b"\n"):
            below = children(running.pid)  # on Linux one that splits off workers
            return below + [pid for child in below for pid in children(child)]
        time.sleep(0.02)
    raise AssertionError("no rows")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_workers_end_with_their_driver(path: Path, tmp_path: Path, number: int) -> None:
    x = np.random.default_rng(5).uniform(0.1, 0.9, (4000, 4))
    np.savez(tmp_path / "x.npz", x=x)
    out = tmp_path / "out"
    args = [path, tmp_path / "x.npz", "--out", out, "--workers", 2, "--batch", 20, "-q"]
    running = subprocess.Popen(
        [sys.executable, "-m", "frown", "certify", *map(str, args)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    workers = begun(running, out)
    assert len(workers) == (3 if FORKS else 2)
    running.send_signal(number)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == (130 if number == signal.SIGINT else -number), errors
    assert gone(workers, 5.0)
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()[:-1]]
    assert lines and len({line["key"] for line in lines}) == len(lines) < len(x)
    if number == signal.SIGINT:
        assert "interrupted" in errors
        assert json.loads((out / "run.json").read_text())["state"] == "interrupted"


@pytest.mark.skipif(not FORKS, reason="every worker is a fresh process")
def test_what_splits_off_workers_may_be_lost(net: frown.Model) -> None:
    expected = frown.certify(net, Ball(X), method="crown", machine=Machine(workers=1, batch=2))
    served = []

    class Killer(frown.Watch):
        def progress(self, progress: frown.Progress) -> None:
            if progress.done == 2:
                served.append(forks._running[-1].process)
                served[-1].kill()

    for _ in range(2):
        found = frown.certify(
            net, Ball(X), method="crown", machine=Machine(workers=2, batch=2), watch=Killer()
        )
        assert rows(found) == rows(expected)
    assert len({process.pid for process in served}) == 2  # the second run had one of its own


@pytest.mark.skipif(not FORKS, reason="every worker is a fresh process")
def test_workers_start_where_the_driver_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks.prepare()  # before
    monkeypatch.chdir(tmp_path)
    worker = forks.started()
    (server,) = forks._running
    deadline, places = time.monotonic() + 30, list[Path]()
    while tmp_path.resolve() not in places and time.monotonic() < deadline:
        places = [Path(f"/proc/{pid}/cwd").resolve() for pid in children(server.process.pid)]
        time.sleep(0.02)
    assert tmp_path.resolve() in places
    worker.kill()
    assert worker.wait(5.0) == -signal.SIGKILL


def test_a_time_limit_holds(net: frown.Model) -> None:
    x = np.random.default_rng(5).uniform(0.1, 0.9, (3000, 4))
    machine = Machine(workers=2, batch=100, seconds=3.0)
    began = time.monotonic()
    result = frown.certify(net, Ball(x), method="frown", machine=machine)
    assert time.monotonic() - began < 9.0
    assert len(result.rows) == len(x) and [row.index for row in result.rows] == list(range(len(x)))


def test_a_limit_for_every_input_ends_a_search(net: frown.Model) -> None:
    result = frown.certify(net, Ball(X), machine=Machine(workers=1, batch=2, each=1e-6))
    assert len(result.rows) == len(X) and not any(row.complete for row in result.rows)


def test_cores_are_used_where_that_pays(net: frown.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from frown.certification.spread import driver

    monkeypatch.setattr(driver, "cores", lambda: 7)
    method = frown.Frown()
    procedure = Procedure(net, method, Rigorous(), PGD(), Machine(), 0.01, False, True)
    assert 0 < procedure.seconds() < 1
    assert _paying(procedure, 3600.0, NO_LIMIT) == 7
    assert _paying(procedure, 1.0, NO_LIMIT) == 1
    assert _paying(procedure, 3600.0, Clock.lasting(1.0)) == 1
    assert 1 <= work.cores() <= (os.cpu_count() or 1)
