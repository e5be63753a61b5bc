"""The convex relaxation barrier, broken: both ends of adversarial errors over the MNIST test set.

    make barrier SHARED=DIR
    python -m benchmarks.barrier --shared DIR --images 300
    python -m benchmarks.barrier --shared DIR --only nor_mlp_b@0.03 --seconds 20
    python -m benchmarks.barrier --shared DIR --table

Networks and radii of table 1 of Salman et al. (2019), l_inf balls within [0, 1], every image of the
test set, one thread. Images that are misclassified or have a counterexample, replayed in
onnxruntime, count at the lower end; the upper end has all that are not proved, at level rigorous.
What is decided early leaves its time to the other images of its batch, so that 0.7 s for each are
two CPU hours at most. Images are taken in a random order that is always the same: the first of them
tell what to expect of all. Rows are kept in --out as they are finished, and a run that was cut
short goes on.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frown
from benchmarks.common import circumstances, shared_folder, table
from benchmarks.paper.barrier import ERRORS, ErrorProblem
from frown import Ball, Branch, Machine
from frown.jobs.store import Store, read

TOGETHER = 64  # images of a batch: their leaves are bounded together


def name_of(problem: ErrorProblem) -> str:
    return f"{problem.name}@{problem.eps:g}"


def certify(
    problem: ErrorProblem, shared: Path, folder: Path, count: int, seconds: float
) -> list[Mapping[str, Any]]:
    """The rows of the first `count` images, those that are missing done and kept."""
    with np.load(shared / "data" / "mnist.npz") as data:
        images, labels = data["x_test"], data["y_test"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))[:count]
    model = frown.load(shared / "models" / problem.file)
    settings = {"network": problem.name, "eps": problem.eps, "seconds": seconds}
    with Store(folder / name_of(problem), settings) as store:
        missing = [int(n) for n in order if str(n) not in store]
        for part in (missing[k : k + TOGETHER] for k in range(0, len(missing), TOGETHER)):
            x = (images[part] / 255.0).astype(np.float32).reshape(-1, *model.graph.input_shape)
            began = time.process_time()
            where = Ball(x, within=(0, 1))
            found = frown.certify(
                model,
                where,
                labels[part],
                method=Branch(seconds=seconds),
                search=problem.eps,
                machine=Machine(workers=1),
            )
            spent = (time.process_time() - began) / len(part)
            store.append({str(n): _kept(row, spent) for n, row in zip(part, found.rows)})
            print(f"{name_of(problem)}: {sum(str(n) in store for n in order)} of {count} images")
        return [store[str(n)] for n in order]


def _kept(row: frown.Row, spent: float) -> dict[str, Any]:
    status = row.status
    if status in ("certified", "robust") and row.level != "rigorous":
        status = "unknown"
    return {"status": status, "leaves": row.leaves, "cpu": spent}


def known(problem: ErrorProblem, folder: Path) -> list[Mapping[str, Any]]:
    """The rows that are there."""
    stored = read(folder / name_of(problem))
    return [] if stored is None else list(stored.rows.values())


def line(problem: ErrorProblem, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row of the table, in per cent."""
    counts, total = Counter(row["status"] for row in rows), len(rows)
    wrong = counts["misclassified"]
    low = wrong + counts["falsified"]
    high = total - counts["certified"] - counts["robust"]
    cpu = sum(row["cpu"] for row in rows)
    figures = [100 * n / total for n in (wrong, low, high, high - low)]
    least, most = problem.milp
    return [
        *(problem.name, f"{problem.eps:g}", str(total)),
        *(f"{v:.2f}" for v in (*figures, least, most, most - least)),
        *(str(max(row["leaves"] for row in rows)), f"{cpu:.0f}"),
    ]


HEAD = ["network", "eps", "images", "test error", "at least", "at most", "apart"]
HEAD += ["MILP at least", "at most", "apart", "most leaves", "CPU s"]


def main() -> None:
    """Certify what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name_of(problem) for problem in ERRORS]
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--out", type=Path, default=Path("barrier-rows"), help="kept rows")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--images", type=int, default=10_000, help="the first so many, at random")
    parser.add_argument("--seconds", type=float, default=0.7, help="of branching, for each image")
    parser.add_argument("--table", action="store_true", help="no more than the rows that are there")
    options = parser.parse_args()
    if not 1 <= options.images <= 10_000:
        parser.error("--images must be between 1 and 10000")
    torch.set_num_threads(1)
    lines = []
    for problem in ERRORS:
        if name_of(problem) not in options.only:
            continue
        if options.table:
            rows = known(problem, options.out)
        else:
            shared = shared_folder(options.shared)
            rows = certify(problem, shared, options.out, options.images, options.seconds)
        if rows:
            lines.append(line(problem, rows))
    print(table(HEAD, lines))
    print(circumstances())


if __name__ == "__main__":
    main()
