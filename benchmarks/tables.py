"""Images verified, broken and open at one radius, of networks that others have published.

    python -m benchmarks.tables --shared DIR --images 50
    python -m benchmarks.tables --shared DIR --only sdp_cifar_cnn_a_adv eran_mnist_conv_small
    python -m benchmarks.tables --table

The SDP-FO and ERAN networks at their radii, l_inf balls within [0, 1], the first images of their
files, one thread, `branch` with so many CPU seconds for each image. Verified: proved at level
rigorous. Broken: misclassified, or with a counterexample that was replayed in onnxruntime. Rows are
kept in --out as they are finished, and a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frown
from benchmarks.common import circumstances, shared_folder, table
from frown import Ball, Branch
from frown.jobs.store import Store, read


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A network, the file of its images, and the radius."""

    name: str
    data: str
    eps: float


TABLES = (
    PublishedTable("sdp_mnist_cnn_a_adv", "sdp_mnist", 0.3),
    PublishedTable("sdp_cifar_cnn_a_adv", "sdp_cifar", 2 / 255),
    PublishedTable("eran_mnist_6_100", "eran_mnist", 0.026),
    PublishedTable("eran_mnist_9_100", "eran_mnist", 0.026),
    PublishedTable("eran_mnist_6_200", "eran_mnist", 0.015),
    PublishedTable("eran_mnist_9_200", "eran_mnist", 0.015),
    PublishedTable("eran_mnist_conv_small", "eran_mnist", 0.12),
)
HEAD = ["network", "eps", "images", "verified", "broken", "open", "most leaves", "CPU s per image"]


def certify(
    wanted: PublishedTable, shared: Path, folder: Path, count: int, seconds: float
) -> list[Mapping[str, Any]]:
    """The rows of the first `count` images, those that are missing done and kept."""
    with np.load(shared / "data" / f"{wanted.data}.npz") as data:
        images, labels = data["x"][:count], data["y"][:count]
    model = frown.load(shared / "models" / f"{wanted.name}.onnx")
    settings = {"network": wanted.name, "eps": wanted.eps, "seconds": seconds}
    with Store(folder / wanted.name, settings) as store:
        for n in (n for n in range(len(images)) if str(n) not in store):
            began = time.process_time()
            where, method = Ball(images[n : n + 1], within=(0, 1)), Branch(seconds=seconds)
            found = frown.certify(model, where, labels[n : n + 1], method=method, search=wanted.eps)
            (row,), spent = found.rows, time.process_time() - began
            store.append({str(n): kept(row, spent)})
            print(
                f"{wanted.name} {n}: {row.status}, {row.leaves} leaves, {spent:.1f} s", flush=True
            )
        return [store[str(n)] for n in range(len(images))]


def kept(row: frown.Row, spent: float) -> dict[str, Any]:
    """The facts of a row that the table counts."""
    status = "open"
    if row.status in ("certified", "robust") and row.level == "rigorous":
        status = "verified"
    elif row.status in ("misclassified", "falsified"):
        status = "broken"
    return {"status": status, "leaves": row.leaves, "cpu": spent}


def line(wanted: PublishedTable, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row of the table."""
    counts = Counter(row["status"] for row in rows)
    cpu = sum(row["cpu"] for row in rows) / len(rows)
    figures = [len(rows), *(counts[k] for k in ("verified", "broken", "open"))]
    most = max(row["leaves"] for row in rows)
    return [wanted.name, f"{wanted.eps:.4g}", *map(str, figures), str(most), f"{cpu:.1f}"]


def main() -> None:
    """Certify what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [wanted.name for wanted in TABLES]
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--out", type=Path, default=Path("table-rows"), help="kept rows")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--images", type=int, default=200, help="the first so many")
    parser.add_argument("--seconds", type=float, default=55.0, help="of branching, for each image")
    parser.add_argument("--table", action="store_true", help="no more than the rows that are there")
    options = parser.parse_args()
    if options.images < 1:
        parser.error("--images must be at least 1")
    torch.set_num_threads(1)
    lines = []
    for wanted in TABLES:
        if wanted.name not in options.only:
            continue
        if options.table:
            stored = read(options.out / wanted.name)
            rows = [] if stored is None else list(stored.rows.values())
        else:
            shared = shared_folder(options.shared)
            rows = certify(wanted, shared, options.out, options.images, options.seconds)
        if rows:
            lines.append(line(wanted, rows))
    print(table(HEAD, lines))
    print(circumstances())


if __name__ == "__main__":
    main()
