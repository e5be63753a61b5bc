"""The paper's three data sets, read from a folder and scaled as the paper does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper import formats
from benchmarks.paper.formats import Labels, Parts
from benchmarks.paper.networks import CLASSES, FEATURES, DataName
from frown.errors import InvalidInput

Floats = NDArray[np.float32]

DRIVE_TEXT = "Sensorless_drive_diagnosis.txt"
CIFAR_ARCHIVE, CIFAR_FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
NPZ = {"drive": "drive.npz", "mnist": "mnist.npz", "cifar": "cifar10.npz"}

HELD_OUT = 0.2  # of the drive samples of every class, which come without a test set
SPLIT_SEED = 2020


@dataclass(frozen=True)
class Dataset:
    """Samples in the units that the networks take, those for testing held out from training."""

    name: DataName
    source: Path  # the file, or the folder of files, that was read
    train_x: Floats  # (N, features)
    train_y: Labels  # (N,)
    test_x: Floats  # (M, features)
    test_y: Labels  # (M,)
    test_index: Labels  # (M,) positions in the file's order of test samples (drive: of all)
    bounds: tuple[float, float] | None  # the valid range of every feature, where there is one

    @property
    def fingerprint(self) -> str:
        """A digest of all samples: networks trained on other ones are other networks."""
        digest = hashlib.sha256()
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class _Format:
    """One way in which a data set may lie in a folder."""

    files: tuple[Path, ...]
    source: Path
    read: Callable[[], tuple[Parts, ...]]

    @property
    def there(self) -> bool:
        return all(path.is_file() for path in self.files)


def load_data(folder: Path, name: DataName) -> Dataset:
    """The data set of a folder or of its subfolder `data`; docs/data.md lists the files.

    The published files are taken before .npz files, which may hold a part of them. MNIST and
    CIFAR-10 are scaled to [-1, 1]. Drive is standardised by mean and deviation of all samples,
    as the paper does, and a fifth of every class is held out by a fixed seed. Raises
    InvalidInput where nothing is found, or something else than was expected.
    """
    if name not in FEATURES:
        raise InvalidInput(f"no data set {name!r}: there are {', '.join(FEATURES)}")
    found = next((f for f in _formats(Path(folder), name) if f.there), None)
    if found is None:
        raise InvalidInput(_missing(Path(folder), name))
    parts = found.read()
    for part in parts:
        _check(part, name, found.source)
    if name == "drive":
        return _drive(parts[0], found.source)
    train, test = parts
    return Dataset(
        name,
        found.source,
        _scaled(train.x, found.source),
        train.y,
        _scaled(test.x, found.source),
        test.y,
        np.arange(len(test.y)),
        (-1.0, 1.0),
    )


def split(y: Labels, held_out: float = HELD_OUT, seed: int = SPLIT_SEED) -> tuple[Labels, Labels]:
    """Positions to train on and to test on, with the same share of every class, both ascending."""
    rng = np.random.default_rng(seed)
    test = []
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        test.append(members[: round(held_out * len(members))])
    chosen = np.zeros(len(y), dtype=bool)
    chosen[np.concatenate(test)] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def standardised(x: NDArray[Any]) -> Floats:
    """Every feature with mean 0 and deviation 1 (N - 1 degrees of freedom)."""
    x = x.astype(np.float64)
    std = x.std(axis=0, ddof=1)
    constant = np.flatnonzero(~(std > 0))
    if len(constant):
        raise InvalidInput(f"features {constant.tolist()} are constant: they have no deviation")
    result: Floats = ((x - x.mean(axis=0)) / std).astype(np.float32)
    return result


def _scaled(x: NDArray[Any], source: Path) -> Floats:
    if x.dtype != np.uint8:
        raise InvalidInput(f"{source}: pixels must be bytes (uint8, 0 to 255), not {x.dtype}")
    scaled: Floats = x.astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
    return scaled


def _drive(parts: Parts, source: Path) -> Dataset:
    counts = np.bincount(parts.y, minlength=CLASSES["drive"])
    if counts.min() < 3:  # the least of which a fifth is a sample
        raise InvalidInput(f"{source}: samples per class {counts.tolist()}, at least 3 are needed")
    x = standardised(parts.x)
    train, test = split(parts.y)
    return Dataset(
        "drive", source, x[train], parts.y[train], x[test], parts.y[test], test, bounds=None
    )


def _check(part: Parts, name: DataName, source: Path) -> None:
    if part.x.shape[1] != FEATURES[name]:
        raise InvalidInput(
            f"{source}: {part.x.shape[1]} features per sample, {name} has {FEATURES[name]}"
        )
    low, high = int(part.y.min()), int(part.y.max())
    if low < 0 or high >= CLASSES[name]:
        raise InvalidInput(
            f"{source}: labels from {low} to {high}, {name} has classes 0 to {CLASSES[name] - 1}"
        )


def _formats(folder: Path, name: DataName) -> Iterator[_Format]:
    """All places where the data set may lie, the published files first."""
    bases = (folder, folder / "data")
    match name:
        case "drive":
            for path in (base / DRIVE_TEXT for base in bases):
                yield _Format((path,), path, partial(formats.read_drive_text, path))
        case "mnist":
            for base in (b / sub for b in bases for sub in ("", "mnist", "MNIST/raw")):
                for suffix in ("", ".gz"):
                    yield _mnist(base, suffix)
        case "cifar":
            for base in (b / sub for b in bases for sub in ("", CIFAR_FOLDER)):
                yield _cifar(base)
            for path in (base / CIFAR_ARCHIVE for base in bases):
                yield _Format((path,), path, partial(formats.read_cifar_archive, path))
    pairs = (("x", "y"),) if name == "drive" else (("x_train", "y_train"), ("x_test", "y_test"))
    for path in (base / NPZ[name] for base in bases):
        yield _Format((path,), path, partial(formats.read_npz, path, *pairs))


def _mnist(base: Path, suffix: str) -> _Format:
    train, train_y, test, test_y = (
        base / f"{part}-{kind}-ubyte{suffix}"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    )
    return _Format(
        (train, train_y, test, test_y),
        base,
        lambda: (formats.read_idx(train, train_y), formats.read_idx(test, test_y)),
    )


def _cifar(base: Path) -> _Format:
    names = (*formats.CIFAR_TRAIN, formats.CIFAR_TEST)
    return _Format(
        tuple(base / name for name in names),
        base,
        lambda: (
            formats.read_cifar_folder(base, formats.CIFAR_TRAIN),
            formats.read_cifar_folder(base, [formats.CIFAR_TEST]),
        ),
    )


def _missing(folder: Path, name: DataName) -> str:
    """Say what was looked for and where, and which files of a set are there without the others."""
    lines = [f"no {name} data in {folder}" + ("" if folder.is_dir() else ", which is no folder")]
    lines.append("looked for, there and in its subfolder data:")
    match name:
        case "drive":
            lines.append(f"  {DRIVE_TEXT}")
        case "mnist":
            lines.append("  train-images-idx3-ubyte, train-labels-idx1-ubyte,")
            lines.append("  t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, all plain or all .gz,")
            lines.append("  there or in mnist or MNIST/raw")
        case "cifar":
            lines.append("  data_batch_1.bin to data_batch_5.bin and test_batch.bin,")
            lines.append(f"  there or in {CIFAR_FOLDER}")
            lines.append(f"  {CIFAR_ARCHIVE}")
    lines.append(f"  {NPZ[name]}")
    for candidate in _formats(folder, name):
        absent = [path.name for path in candidate.files if not path.is_file()]
        if len(absent) < len(candidate.files):
            lines.append(f"in {candidate.source} there is no {', '.join(absent)}")
    lines.append("see docs/data.md for where to get them")
    return "\n".join(lines)
