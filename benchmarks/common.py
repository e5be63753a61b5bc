"""What the benchmarks share: the development networks, plain modules, clocks and tables."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

T = TypeVar("T")

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Relu": nn.ReLU,
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
}


@dataclass(frozen=True, slots=True)
class Network:
    """A development network and the inputs it is measured on."""

    file: str  # inside the shared folder
    data: str  # "mnist" or "drive"
    samples: tuple[int, ...]

    def read(self, shared: Path) -> Problem:
        reader = {"mnist": _mnist, "drive": _drive}[self.data]
        x, y, classes = reader(shared / "data" / f"{self.data}.npz", list(self.samples))
        return Problem(shared / "models" / self.file, x, y, (y + 2) % classes)


@dataclass(frozen=True, slots=True)
class Problem:
    """A network with inputs, labels and target classes."""

    path: Path
    x: NDArray[np.float64]  # (N, features)
    y: NDArray[np.int64]
    target: NDArray[np.int64]

    def first(self, count: int | None) -> Problem:
        """The first `count` inputs; None: all."""
        return Problem(self.path, self.x[:count], self.y[:count], self.target[:count])

    def __len__(self) -> int:
        return len(self.y)


NETWORKS = {
    "drive-relu": Network("frown_drive_8x20_relu.onnx", "drive", tuple(range(0, 2200, 100))),
    "drive-sigmoid": Network(
        "frown_drive_8x20_sigmoid.onnx",
        "drive",
        tuple(i for i in range(0, 2200, 100) if i != 100),
    ),
    "mnist-relu": Network("frown_mnist_10x20_relu.onnx", "mnist", tuple(range(20))),
    "mnist-sigmoid": Network("frown_mnist_10x20_sigmoid.onnx", "mnist", (*range(18), 19, 20)),
}


def shared_folder(given: str | None) -> Path:
    """The folder with `models/` and `data/`; ends the program when there is none."""
    name = given or os.environ.get("FROWN_SHARED")
    if not name:
        raise SystemExit(
            "the development networks are not part of this repository: say where they are "
            "with --shared DIR or FROWN_SHARED (a folder with models/ and data/)"
        )
    folder = Path(name)
    missing = [str(folder / part) for part in ("models", "data") if not (folder / part).is_dir()]
    if missing:
        raise SystemExit(f"not a folder of networks and data: {', '.join(missing)} not found")
    return folder


def sequential(path: Path) -> nn.Sequential:
    """The chain of Gemm and activation nodes in an ONNX file as a torch module."""
    model = onnx.load(path)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    layers: list[nn.Module] = []
    for node in model.graph.node:
        if node.op_type in ACTIVATIONS:
            layers.append(ACTIVATIONS[node.op_type]())
            continue
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type != "Gemm" or settings != {"transB": 1}:
            raise SystemExit(f"{path.name}: {node.op_type} {node.name} is not a plain layer")
        weight, bias = (weights[name] for name in node.input[1:])
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight.copy()))
            layer.bias.copy_(torch.from_numpy(bias.copy()))
        layers.append(layer)
    return nn.Sequential(*layers).eval().requires_grad_(False)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this process, and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def alternating(work: dict[str, Callable[[], T]], repeat: int) -> dict[str, tuple[float, T]]:
    """Median CPU seconds and last result of each, run in turn, every other round backwards.

    Taking turns spreads whatever else the machine does over all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    results: dict[str, T] = {}
    for turn in range(repeat):
        for name in list(work)[:: 1 if turn % 2 == 0 else -1]:
            spent, results[name] = timed(work[name])
            seconds[name].append(spent)
    return {name: (median(seconds[name]), results[name]) for name in work}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    lines.insert(1, ["-" * w for w in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def circumstances() -> str:
    """What a figure depends on, in one line."""
    return (
        f"{time.strftime('%Y-%m-%d')}, python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread, {platform.machine()}"
    )


def short(value: float) -> str:
    """Four significant digits for radii, two for anything below a hundredth."""
    return f"{value:.4g}" if value >= 0.01 else f"{value:.2g}"


def _mnist(path: Path, samples: list[int]) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    with np.load(path) as data:
        images, labels = data["x_test"][samples], data["y_test"][samples]
    return images.reshape(len(samples), -1) / 255.0 * 2 - 1, labels.astype(np.int64), 10


def _drive(path: Path, samples: list[int]) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    with np.load(path) as data:
        x, labels = data["x"], data["y"]
    x = (x - x.mean(0)) / x.std(0, ddof=1)
    return x[samples], labels[samples].astype(np.int64), 11
