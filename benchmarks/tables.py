"""Images verified, broken and open at one radius, of networks that others have published.

    python -m benchmarks.tables --shared DIR --images 50
    python -m benchmarks.tables --shared DIR --only sdp_cifar_cnn_a_adv eran_mnist_conv_small
    python -m benchmarks.tables --table

The SDP-FO and ERAN networks at their radii, the first images of their files. Verified: proved at
level rigorous. Broken: misclassified, or with a counterexample that was replayed in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decided import BROKEN, VERIFIED, Decided, Images, counted, run

HEAD = ["network", "eps", "images", "verified", "broken", "open", "most leaves", "CPU s per image"]


class PublishedTable(Decided):
    """A network, the file of its images, and the radius."""

    def __init__(self, name: str, data: str, eps: float) -> None:
        self.name, self.file, self.data, self.eps = name, f"{name}.onnx", data, eps

    def images(self, data: Path, count: int) -> Images:
        with np.load(data / f"{self.data}.npz") as held:
            x, y = held["x"][:count], held["y"][:count]
        return np.arange(len(x)), x, y

    def line(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """A row of the table."""
        good, bad = counted(rows, VERIFIED), counted(rows, BROKEN)
        cpu = sum(row["cpu"] for row in rows) / len(rows)
        figures = [len(rows), good, bad, len(rows) - good - bad]
        most = max(row["leaves"] for row in rows)
        return [self.name, f"{self.eps:.4g}", *map(str, figures), str(most), f"{cpu:.1f}"]


TABLES = (
    PublishedTable("sdp_mnist_cnn_a_adv", "sdp_mnist", 0.3),
    PublishedTable("sdp_cifar_cnn_a_adv", "sdp_cifar", 2 / 255),
    PublishedTable("eran_mnist_6_100", "eran_mnist", 0.026),
    PublishedTable("eran_mnist_9_100", "eran_mnist", 0.026),
    PublishedTable("eran_mnist_6_200", "eran_mnist", 0.015),
    PublishedTable("eran_mnist_9_200", "eran_mnist", 0.015),
    PublishedTable("eran_mnist_conv_small", "eran_mnist", 0.12),
)


def main() -> None:
    """Certify what is missing, and print the table."""
    run(__doc__, TABLES, HEAD, "table-rows", 55.0, 200)


if __name__ == "__main__":
    main()
