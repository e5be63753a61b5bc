"""The convex relaxation barrier, broken: both ends of adversarial errors over the MNIST test set.

    make barrier SHARED=DIR
    python -m benchmarks.barrier --shared DIR --images 300
    python -m benchmarks.barrier --shared DIR --only nor_mlp_b@0.03 --seconds 20
    python -m benchmarks.barrier --shared DIR --table

Networks and radii of table 1 of Salman et al. (2019), every image of the test set. Images that are
misclassified or have a counterexample, replayed in onnxruntime, count at the lower end; the upper
end has all that are not proved, at level rigorous. 0.7 s for each are two CPU hours at most. Images
are taken in a random order that is always the same: the first of them tell what to expect of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decided import BROKEN, VERIFIED, Decided, Images, counted, run
from benchmarks.paper.barrier import ERRORS, ErrorProblem

HEAD = ["network", "eps", "images", "test error", "at least", "at most", "apart"]
HEAD += ["MILP at least", "at most", "apart", "most leaves", "CPU s"]


class AdversarialError(Decided):
    """The error that an adversary can cause over the test set."""

    together = 64

    def __init__(self, problem: ErrorProblem) -> None:
        self.problem, self.file, self.eps = problem, problem.file, problem.eps
        self.name = f"{problem.name}@{problem.eps:g}"

    def images(self, data: Path, count: int) -> Images:
        with np.load(data / "mnist.npz") as held:
            images, labels = held["x_test"], held["y_test"].astype(np.int64)
        order = np.random.default_rng(0).permutation(len(images))[:count]
        return order, (images[order] / 255.0).astype(np.float32), labels[order]

    def line(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """A row of the table, in per cent."""
        total, wrong = len(rows), counted(rows, ["misclassified"])
        low, high = counted(rows, BROKEN), total - counted(rows, VERIFIED)
        figures = [100 * n / total for n in (wrong, low, high, high - low)]
        least, most = self.problem.milp
        return [
            *(self.problem.name, f"{self.eps:g}", str(total)),
            *(f"{v:.2f}" for v in (*figures, least, most, most - least)),
            str(max(row["leaves"] for row in rows)),
            f"{sum(row['cpu'] for row in rows):.0f}",
        ]


def main() -> None:
    """Certify what is missing, and print the table."""
    problems = [AdversarialError(problem) for problem in ERRORS]
    run(__doc__, problems, HEAD, "barrier-rows", 0.7, 10_000)


if __name__ == "__main__":
    main()
