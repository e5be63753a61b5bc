"""What is measured: a network, a norm and a method, on samples that all methods share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.data import Dataset
from benchmarks.paper.networks import Network
from frown.errors import InvalidInput
from frown.read.model import Model

COLD = {"hot": False}  # for experiments only: what makes the LP-based method start from nothing
TOL = 0.01  # of the search for a radius, relative, as in the paper
_CHUNK = 256  # test samples answered at a time

Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Method:
    """A column of the tables: its name, and what `frown.certify` is told."""

    name: str
    options: tuple[tuple[str, Option], ...]  # sorted

    @property
    def cold(self) -> bool:
        """Whether linear programs start from nothing."""
        return COLD.items() <= dict(self.options).items()

    @property
    def batched(self) -> bool:
        """Whether samples go through together; linear programs are solved one by one."""
        return self.name != "lp"


def _method(name: str, **options: Option) -> Method:
    return Method(name, tuple(sorted((options | {"tol": TOL}).items())))


CROWN = _method("crown", method="crown", rule="paper")
AREA = _method("area", method="crown", rule="area")
LP = _method("lp", method="lp", boxes="lp", tangents=3)
COLD_LP = _method("lp", method="lp", boxes="lp", tangents=3, **COLD)


def frown_method(group: int = 1) -> Method:
    """FROWN from the lines of least area, `group` neurons sharing theirs (0: a layer)."""
    return _method("frown", method="frown", rule="area", group=group, curved="never")


@dataclass(frozen=True, slots=True)
class Cell:
    """One mean of the tables."""

    network: Network
    norm: float
    method: Method

    def __str__(self) -> str:
        group = dict(self.method.options).get("group", 1)
        grouped = "" if group == 1 else " by layer" if group == 0 else f" by {group}"
        cold = " cold" if self.method.cold else ""
        return f"{self.network.name} p={norm_text(self.norm)} {self.method.name}{grouped}{cold}"


def norm_text(norm: float) -> str:
    """inf, 1, 2, 1.5."""
    return "inf" if np.isinf(norm) else f"{norm:g}"


@dataclass(frozen=True)
class Samples:
    """Test samples that a network answers right, each with a class to be kept away from."""

    index: NDArray[np.int64]  # (N,) in the test set
    x: NDArray[np.float32]  # (N, *input)
    label: NDArray[np.int64]  # (N,)
    target: NDArray[np.int64]  # (N,)
    marks: tuple[str, ...]  # SHA-256 of each input, cut to 16 digits

    def __len__(self) -> int:
        return len(self.index)


def choose(model: Model, data: Dataset, count: int, seed: int) -> Samples:
    """The first `count` that are answered right, in a random order of the test set.

    Order and targets depend on the seed and the test set only, so that more samples
    include fewer, and networks of one data set share most of theirs.
    """
    x = np.asarray(data.test_x, np.float32).reshape(-1, *model.input_shape)
    y = np.asarray(data.test_y, np.int64)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    target = (y + rng.integers(1, model.classes, len(y))) % model.classes
    chosen: list[int] = []
    for start in range(0, len(order), _CHUNK):
        part = order[start : start + _CHUNK]
        chosen += part[np.asarray(model.run(x[part])).argmax(1) == y[part]].tolist()
        if len(chosen) >= count:
            break
    if len(chosen) < count:
        raise InvalidInput(
            f"--samples {count}: {model.name} answers only {len(chosen)} of the {len(y)} test "
            f"samples right; give at most {len(chosen)}"
        )
    index = np.array(chosen[:count], np.int64)
    marks = tuple(hashlib.sha256(x[i].tobytes()).hexdigest()[:16] for i in index)
    return Samples(index, x[index], y[index], target[index], marks)


def network_file(nets: Path, network: Network) -> Path | None:
    """The file of a network: under its own name, or as the authors' release (`frown_...`)."""
    for name in (network.file, f"frown_{network.file}"):
        if (nets / name).is_file():
            return nets / name
    return None
