"""Images that are verified, broken or open at one radius, kept as they are decided.

`benchmarks.barrier` and `benchmarks.tables` say which networks, images and radii. Both use l_inf
balls within [0, 1], one thread, and `branch` with so many CPU seconds for each image; what is
decided early leaves its time to the other images of its batch. Rows are kept in --out as they are
finished, and a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import frown
from benchmarks.common import circumstances, shared_folder, table
from frown import Ball, Branch, Machine
from frown.jobs.store import Store, read

VERIFIED, BROKEN = ("certified", "robust"), ("falsified", "misclassified")
Images = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


class Decided(ABC):
    """A network, images and a radius: a line of a table."""

    together = 1  # images of a batch: their leaves are bounded together
    name: str  # of its rows
    file: str  # of the network
    eps: float

    @abstractmethod
    def images(self, data: Path, count: int) -> Images:
        """Numbers, pixels and labels of `count` images."""

    @abstractmethod
    def line(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Figures about rows."""

    def known(self, folder: Path) -> list[Mapping[str, Any]]:
        """The rows that are there."""
        stored = read(folder / self.name)
        return [] if stored is None else list(stored.rows.values())

    def decide(
        self, shared: Path, folder: Path, count: int, seconds: float
    ) -> list[Mapping[str, Any]]:
        """The rows of `count` images, those that are missing done and kept."""
        numbers, x, y = self.images(shared / "data", count)
        model = frown.load(shared / "models" / self.file)
        x = x.reshape(-1, *model.graph.input_shape)
        settings = {"network": self.name, "eps": self.eps, "seconds": seconds}
        with Store(folder / self.name, settings) as store:
            missing = [k for k, n in enumerate(numbers) if str(n) not in store]
            for begin in range(0, len(missing), self.together):
                part, began = missing[begin : begin + self.together], time.process_time()
                found = frown.certify(
                    model,
                    Ball(x[part], within=(0, 1)),
                    y[part],
                    method=Branch(seconds=seconds),
                    search=self.eps,
                    machine=Machine(workers=1),
                )
                spent = (time.process_time() - began) / len(part)
                rows = zip(part, found.rows, strict=True)
                store.append({str(numbers[k]): kept(row, spent) for k, row in rows})
                done = len(numbers) - len(missing) + begin + len(part)
                print(f"{self.name}: {done} of {len(numbers)}, {spent:.1f} s each", flush=True)
            return [store[str(n)] for n in numbers]


def kept(row: frown.Row, spent: float) -> dict[str, Any]:
    """The facts of a row that tables count; what is not proved at level rigorous is unknown."""
    proved = row.status in VERIFIED
    status = "unknown" if proved and row.level != "rigorous" else row.status
    return {"status": status, "leaves": row.leaves, "cpu": spent}


def counted(rows: Sequence[Mapping[str, Any]], statuses: Sequence[str]) -> int:
    """The number of rows with one of these statuses."""
    return sum(row["status"] in statuses for row in rows)


def run(
    about: str,
    problems: Sequence[Decided],
    head: Sequence[str],
    out: str,
    seconds: float,
    most: int,
) -> None:
    """Certify what is missing of `most` images or as many as are asked for, and print the table."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    names = [problem.name for problem in problems]
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--out", type=Path, default=Path(out), help="kept rows")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--images", type=int, default=most, help="so many")
    parser.add_argument("--seconds", type=float, default=seconds, help="for each image")
    parser.add_argument("--table", action="store_true", help="no more than the rows that are there")
    options = parser.parse_args()
    if not 1 <= options.images <= most:
        parser.error(f"--images must be between 1 and {most}")
    torch.set_num_threads(1)
    lines = []
    for problem in problems:
        if problem.name not in options.only:
            continue
        if options.table:
            rows = problem.known(options.out)
        else:
            shared = shared_folder(options.shared)
            rows = problem.decide(shared, options.out, options.images, options.seconds)
        if rows:
            lines.append(problem.line(rows))
    print(table(head, lines))
    print(circumstances())
