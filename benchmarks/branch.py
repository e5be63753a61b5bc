"""Brackets closed by branch and bound: proved / broken at level rigorous, and CPU seconds.

    python benchmarks/branch.py --shared DIR --networks drive-relu mnist-relu --seconds 1 10
    python benchmarks/branch.py --shared DIR --networks drive-sigmoid --norm 2 --samples 4
    python benchmarks/branch.py --shared DIR --networks drive-relu mnist-relu --peer
    python benchmarks/branch.py --model NET.onnx --data IMAGES.npz --samples 10 --seconds 1 10

One thread. Radii of the inputs of the other benchmarks, class label + 2, no valid range, or of the
first inputs of a file of your own (`x` as the network takes it, `y`). Every time limit is a run of
its own. The table has FROWN's mean of proved / broken and branching's, CPU seconds per input of all
that branching took (its replay and FROWN's part included, the attack not), and of the replay. With
--peer inputs are run one by one, beside what alpha-beta-CROWN reached on them.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from math import inf
from pathlib import Path

import numpy as np
import torch

import frown
from common import NETWORKS, Problem, circumstances, shared_folder, table
from frown import PGD, Ball, Branch, Machine, label_wins
from frown.certification.results import Row
from frown.certification.run import Progress, Watch

STRONG = PGD(steps=200, restarts=16)
# alpha-beta-CROWN's release of December 2025, on one core of a machine of this kind, l_inf: place
# among the inputs -> the radius that its complete verifier proves (bisection to 1 %), CPU seconds.
PEER = {
    "drive-relu": {
        0: (0.1858, 28.0),
        1: (0.1163, 8.0),
        2: (0.1930, 20.0),
        3: (0.2205, 4.0),
        4: (0.0683, 5.0),
    },
    "mnist-relu": {
        18: (0.01212, 6.0),
        11: (0.02780, 11.0),
        6: (0.01784, 25.0),
        3: (0.03427, 119.0),
        0: (0.03537, 211.0),
    },
}


class Stopwatch(Watch):
    """CPU seconds of every stage of a run."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.stage, self.since = "begin", time.process_time()

    def progress(self, progress: Progress) -> None:
        now = time.process_time()
        self.spent[self.stage] += now - self.since
        self.stage, self.since = progress.stage, now


def measured(
    problem: Problem, norm: float, seconds: float
) -> tuple[tuple[Row, ...], dict[str, float]]:
    """Rows of a run, and CPU seconds of its stages."""
    model, watch = frown.load(problem.path), Stopwatch()
    x = problem.x.reshape(-1, *model.graph.input_shape).astype(np.float32)
    asked = label_wins(problem.y, problem.target)
    method = Branch(seconds=seconds)
    found = frown.certify(
        model,
        Ball(x, norm=norm),
        asked,
        method=method,
        attack=STRONG,
        machine=Machine(workers=1),
        watch=watch,
    )
    return found.rows, watch.spent


def ratio(proved: float | None, broken: float | None) -> float:
    """Proved / broken; NaN where one of them is not known."""
    return proved / broken if proved is not None and broken else np.nan


def radii(name: str, problem: Problem, norm: float, marks: list[float]) -> list[str]:
    """A row of the table of radii."""
    shown: list[str] = []
    for seconds in sorted(marks):
        rows, spent = measured(problem, norm, seconds)
        if not shown:
            before = [ratio(row.radius_before, row.broken_before) for row in rows]
            shown = [name, f"{norm:g}", str(len(rows)), f"{np.nanmean(before):.3f}"]
        after = [ratio(row.radius, row.broken) for row in rows if row.level == "rigorous"]
        whole, replay = (sum(spent.get(s, 0.0) for s in own) for own in (STAGES, REPLAY))
        shown += [f"{np.mean(after):.4f}" if len(after) == len(rows) else "not rigorous"]
        shown += [f"{np.min(after):.3f}"]
        shown += [f"{whole / len(rows):.2f}", f"{replay / len(rows):.2f}"]
    return shown


REPLAY = ("rigorous",)
STAGES = ("crown", "branch", "search", *REPLAY)


def beside(name: str, problem: Problem, seconds: float) -> list[list[str]]:
    """Rows of the table of single inputs."""
    shown = []
    for k, (radius, took) in PEER[name].items():
        one = Problem(problem.path, *(t[k : k + 1] for t in (problem.x, problem.y, problem.target)))
        (row,), spent = measured(one, inf, seconds)
        own = sum(spent.get(stage, 0.0) for stage in STAGES)
        ends = [f"{v:.5f}" for v in (row.radius, row.broken or inf, row.radius / radius)]
        cost = [f"{own:.2f}", f"{own + spent['begin']:.2f}", f"{took:g}", f"1/{took / own:.0f}"]
        shown.append([name, str(k), *ends, row.level, *cost])
    return shown


def own_problem(model: str, data: str, classes: int, count: int | None) -> Problem:
    """The inputs of a file that a network answers rightly."""
    with np.load(data) as file:
        x, y = file["x"].astype(np.float64), file["y"].astype(np.int64)
    graph = frown.load(model).graph
    shaped = torch.from_numpy(x).to(graph.dtype).view(-1, *graph.input_shape)
    right = (graph.apply(shaped).flatten(1).argmax(1).numpy() == y).nonzero()[0][:count]
    return Problem(Path(model), x[right], y[right], (y[right] + 2) % classes)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=["drive-relu"])
    parser.add_argument("--norm", type=float, default=inf)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0])
    parser.add_argument("--samples", type=int, help="the first so many inputs")
    parser.add_argument("--peer", action="store_true", help="one by one, beside alpha-beta-CROWN")
    parser.add_argument("--model", help="a network of your own, with --data")
    parser.add_argument("--data", help="its inputs, .npz with x and y")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if (options.model is None) != (options.data is None):
        parser.error("--model and --data go together")
    marks, count = sorted(options.seconds), options.samples
    if options.model is not None:
        problem = own_problem(options.model, options.data, 10, count)
        problems = {Path(options.model).stem: problem}
    else:
        folder = shared_folder(options.shared)
        problems = {name: NETWORKS[name].read(folder).first(count) for name in options.networks}
    if options.peer:
        head = ["network", "input", "proved", "broken", "of the peer's", "level"]
        head += ["CPU s", "with start and attack", "the peer's", "part"]
        rows = [row for n, own in problems.items() for row in beside(n, own, max(marks))]
    else:
        head = ["network", "p", "inputs", "FROWN"]
        for s in marks:
            head += [f"{s:g} s", "least", "CPU s", "replay"]
        rows = [radii(name, own, options.norm, marks) for name, own in problems.items()]
    print(table(head, rows))
    print(circumstances())


if __name__ == "__main__":
    main()
