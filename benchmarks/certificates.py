"""Certificates of the development networks: accepted or not, their size, the checker's time.

    python benchmarks/certificates.py --shared DIR
    python benchmarks/certificates.py --shared DIR --networks lstm --methods crown --samples 3

Radii to 1 % at level rigorous, one thread, without a valid range; every certificate is then
replayed by the independent checker. Feed-forward and recurrent networks are asked about class
label + 2, the convolutional one about all other classes. Inputs are those of the other
benchmarks; the convolutional and the recurrent networks get the first test images that they
read right. The exit code is 1 if a certificate is refused, missing, or beyond the limits.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

import frown
import frown_check
from common import NETWORKS, circumstances, shared_folder, short, table, timed

MOST_BYTES, MOST_SECONDS = 1_000_000, 5.0  # of one certificate
HEAD = (
    "network",
    "p",
    "method",
    "accepted",
    "largest, kB",
    "slowest check, s",
    "mean check, s",
    "engine, s per input",
    "mean radius",
)


@dataclass(frozen=True, slots=True)
class Images:
    """A network that reads MNIST's pixels as they are, in [0, 1]."""

    file: str
    samples: int
    ahead: int | None  # the target is label + ahead; None: every other class


IMAGES = {
    "cnn-small-nor": Images("salman_mnist_cnn_small_nor.onnx", 20, None),
    "rnn": Images("rnn_tanh_7_64.onnx", 20, 2),
    "lstm": Images("lstm_7_32.onnx", 20, 2),
    "gru": Images("gru_7_32.onnx", 20, 2),
}
NAMES = (*NETWORKS, *IMAGES)


@dataclass(frozen=True, slots=True)
class Task:
    """A network with inputs, labels and targets."""

    path: Path
    model: frown.Model
    x: NDArray[np.float64]
    y: NDArray[np.int64]
    target: NDArray[np.int64] | None

    @staticmethod
    def read(name: str, shared: Path, samples: int | None) -> Task:
        if name in NETWORKS:
            problem = NETWORKS[name].read(shared).first(samples)
            model = frown.load(problem.path)
            return Task(problem.path, model, problem.x, problem.y, problem.target)
        network = IMAGES[name]
        path = shared / "models" / network.file
        model = frown.load(path)
        with np.load(shared / "data" / "mnist.npz") as data:
            x, y = data["x_test"][:200] / 255.0, data["y_test"][:200].astype(np.int64)
        x = x.reshape(len(x), *model.input_shape)
        right = np.flatnonzero(model.run(x).argmax(1) == y)[: samples or network.samples]
        x, y = x[right], y[right]
        return Task(path, model, x, y, None if network.ahead is None else (y + network.ahead) % 10)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checker said of one certificate."""

    accepted: bool
    reason: str
    size: int  # bytes
    seconds: float

    @property
    def within(self) -> bool:
        return self.accepted and self.size < MOST_BYTES and self.seconds < MOST_SECONDS


def measure(task: Task, p: float, method: str) -> tuple[list[Checked], float, float]:
    """Verdicts, the engine's CPU seconds per input, and the mean radius."""
    with TemporaryDirectory() as folder:
        engine, found = timed(
            lambda: frown.certify(
                task.model,
                frown.Ball(task.x, norm=p),
                frown.label_wins(task.y, task.target),
                method=method,
                proof=frown.Rigorous(certificates=folder),
                attack=None,
            )
        )
        verdicts = [checked(row, Path(folder), task) for row in found.rows]
    return verdicts, engine / len(task.y), float(found.radius.mean())


def checked(row: frown.Row, folder: Path, task: Task) -> Checked:
    """One certificate, which must also be about the row's own input, classes and radius."""
    if not row.certificate:
        return Checked(False, f"no certificate: {row.status}; {row.remark}", 0, 0.0)
    content = (folder / row.certificate).read_bytes()
    seconds, verdict = timed(lambda: frown_check.check(content, task.path))
    claim, n = verdict.claim, row.index
    about = claim is not None and (
        (claim.label, claim.radius, claim.norm) == (row.label, row.radius, row.norm)
        and set(claim.others) == set(row.margins)
        and (claim.centre == task.x[n]).all()
    )
    reason = verdict.reason or ("" if about else "it claims something else than the row")
    return Checked(verdict.accepted and about, reason, len(content), seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--methods", nargs="+", default=["crown", "frown"])
    parser.add_argument("--norms", nargs="+", type=float, default=[1.0, 2.0, inf])
    parser.add_argument("--samples", type=int, help="of every network (default: 20 to 22)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shared = shared_folder(given.shared)
    lines, failed = [], False
    for name in given.networks:
        task = Task.read(name, shared, given.samples)
        for method in given.methods:
            for p in given.norms:
                verdicts, engine, radius = measure(task, p, method)
                for n, verdict in enumerate(verdicts):
                    if not verdict.within:
                        failed = True
                        print(f"{name} p = {p:g} {method}, input {n}: {verdict}", flush=True)
                seconds = [v.seconds for v in verdicts]
                line = (
                    name,
                    f"{p:g}",
                    method,
                    f"{sum(v.accepted for v in verdicts)} of {len(verdicts)}",
                    f"{max(v.size for v in verdicts) / 1000:.0f}",
                    f"{max(seconds):.2f}",
                    f"{sum(seconds) / len(seconds):.2f}",
                    f"{engine:.2f}",
                    short(radius),
                )
                print("  ".join(line), file=sys.stderr, flush=True)
                lines.append(line)
    print(circumstances())
    print(table(HEAD, lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
