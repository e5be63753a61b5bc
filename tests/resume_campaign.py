"""Kill a run with kill -9 at random moments, go on each time, and compare it with one that was not.

    python tests/resume_campaign.py --kills 20 --inputs 200 --workers 2

Every row must be there once, equal to that of a run that nothing interrupted, and so must be every
counterexample and certificate. Ends with 1, and says what differs, if anything does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import frown
from onnx_models import model, node, saved, weights

FEATURES, HIDDEN, CLASSES = 30, 60, 5


def started(args: list[object]) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(frown.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "frown", "certify", *map(str, args), "-q"]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def stored(out: Path) -> list[dict[str, Any]]:
    lines = (out / "results.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def keys(out: Path) -> list[str]:
    """The keys of whole lines, while a run may be writing."""
    path = out / "results.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["key"] for line in lines]


def differences(here: Path, there: Path, count: int) -> list[str]:
    """The ways in which two finished runs differ; certificates lie in c."""
    found = []
    mine, other = stored(here), stored(there)
    if len(mine) != count or len({row["key"] for row in mine}) != count:
        found.append(f"{len(mine)} rows of {len({row['key'] for row in mine})} keys, not {count}")
    wrong = [a["index"] for a, b in zip(mine, other) if a != b]
    if wrong:
        found.append(f"rows differ: {wrong}")
    with np.load(here / "counterexamples.npz") as a, np.load(there / "counterexamples.npz") as b:
        if any(not np.array_equal(a[name], b[name]) for name in ("x", "y", "index")):
            found.append("counterexamples differ")
    names = [sorted(p.name for p in (out / "c").glob("*.frown")) for out in (here, there)]
    if names[0] != names[1]:
        found.append("other certificates")
    elif any((here / "c" / n).read_bytes() != (there / "c" / n).read_bytes() for n in names[0]):
        found.append("certificates differ")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        proto = model(
            [
                *(node("Gemm", "x w0", "h", transB=1), node("Relu", "h", "a")),
                *(node("Gemm", "a w1", "g", transB=1), node("Relu", "g", "b")),
                node("Gemm", "b w2", "y", transB=1),
            ],
            ["N", FEATURES],
            {
                "w0": weights(HIDDEN, FEATURES, seed=1),
                "w1": weights(HIDDEN, HIDDEN, seed=2),
                "w2": weights(CLASSES, HIDDEN, seed=3),
            },
        )
        net, data = saved(proto, folder), folder / "x.npz"
        np.savez(data, x=np.random.default_rng(5).uniform(0.1, 0.9, (asked.inputs, FEATURES)))

        def run(out: Path) -> subprocess.Popen[str]:
            kept = ["--out", out, "--certificates", out / "c", "--resume"]
            return started([net, data, *kept, "--batch", 5, "--workers", asked.workers])

        began = time.monotonic()
        whole = run(folder / "whole")
        assert whole.wait() == 0, whole.communicate()[1]
        took = time.monotonic() - began
        out, before, killed, runs = folder / "out-0", list[str](), 0, 0
        while True:
            running, began = run(out), time.monotonic()
            # Some at any moment, in loading, too; most soon after a new row.
            near = dice.random() < 0.7
            end = began + (4 * took if near else dice.uniform(0, took / 2))
            while running.poll() is None and killed < asked.kills and time.monotonic() < end:
                if near and len(keys(out)) > len(before):
                    time.sleep(dice.uniform(0, 0.3))
                    break
                time.sleep(0.005)
            if killed < asked.kills:
                running.send_signal(signal.SIGKILL)
            errors = running.communicate()[1]
            if running.returncode == 0:
                found = differences(out, folder / "whole", asked.inputs)
                print("\n".join(found) or f"a run ended as one without kills, {killed} in all")
                if found or killed >= asked.kills:
                    return bool(found)
                runs += 1
                out, before = folder / f"out-{runs}", []
                continue
            assert running.returncode == -signal.SIGKILL, errors
            killed += 1
            now = keys(out)
            if now[: len(before)] != before or len(set(now)) != len(now):
                print(f"kill {killed}: rows were lost, or are there twice")
                return 1
            print(f"kill {killed}: {len(now)} of {asked.inputs} rows", flush=True)
            before = now


if __name__ == "__main__":
    sys.exit(main())
