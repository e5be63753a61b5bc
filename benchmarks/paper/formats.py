"""Readers of the files in which the paper's data sets are distributed."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import tarfile
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frown.certification.results import plain
from frown.errors import InvalidInput

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]

IDX_IMAGES, IDX_LABELS = 0x00000803, 0x00000801  # unsigned bytes of rank 3, of rank 1
CIFAR_ROW = 1 + 3072  # the label, then the red, green and blue planes, row by row
CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_TEST = "test_batch.bin"
DRIVE_COLUMNS = 48 + 1  # features, then the class, counted from 1

MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
}
"""Checksums of the archives as their authors published them."""


class DataWarning(UserWarning):
    """A file can be read, but is not the one that was published."""


@dataclass(frozen=True)
class Parts:
    """A data set as stored: raw features, one row per sample, in the file's order."""

    x: NDArray[Any]  # (N, features)
    y: Labels  # (N,) from 0


def read_idx(images: Path, labels: Path) -> Parts:
    """MNIST's format, plain or gzipped: 28 x 28 bytes and a label each."""
    x = _idx(images, IDX_IMAGES)
    y = _idx(labels, IDX_LABELS)
    if x.shape[1:] != (28, 28):
        raise InvalidInput(f"{images}: images are {x.shape[1]} x {x.shape[2]}, expected 28 x 28")
    return _parts(x, y, f"{images} and {labels.name}")


def read_cifar_folder(folder: Path, names: Sequence[str]) -> Parts:
    """These .bin files of CIFAR-10's binary version, one after another."""
    return _cifar((_bytes(folder / name), folder / name) for name in names)


def read_cifar_archive(archive: Path) -> tuple[Parts, Parts]:
    """Training and test samples of cifar-10-binary.tar.gz."""
    check_md5(archive)
    wanted = {*CIFAR_TRAIN, CIFAR_TEST}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                stream = tar.extractfile(member) if name in wanted else None
                if stream is not None:
                    found[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InvalidInput(f"{archive} cannot be read ({error}): fetch it again") from error
    missing = sorted(wanted - found.keys())
    if missing:
        raise InvalidInput(
            f"{archive} holds no {', '.join(missing)}: it should be CIFAR-10's binary version"
        )
    train = _cifar((found[name], archive / name) for name in CIFAR_TRAIN)
    return train, _cifar([(found[CIFAR_TEST], archive / CIFAR_TEST)])


def read_drive_text(path: Path) -> tuple[Parts]:
    """Sensorless_drive_diagnosis.txt of UCI: 48 numbers and a class from 1 to 11 per line."""
    try:
        table = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read as a table of numbers: {error}") from error
    if table.shape[1:] != (DRIVE_COLUMNS,) or len(table) == 0:
        raise InvalidInput(
            f"{path}: {table.shape[0]} lines of {table.shape[1]} numbers, expected lines of "
            f"{DRIVE_COLUMNS}: 48 features and the class"
        )
    return (_parts(table[:, :-1], table[:, -1] - 1, str(path)),)


def read_npz(path: Path, *pairs: tuple[str, str]) -> tuple[Parts, ...]:
    """The named arrays (inputs, labels) of an .npz file."""
    names = [name for pair in pairs for name in pair]
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if missing:
                raise InvalidInput(
                    f"{path} holds {', '.join(file) or 'nothing'}, but no {', '.join(missing)}"
                )
            arrays = {name: np.asarray(file[name]) for name in names}
    except InvalidInput:
        raise
    except Exception as error:  # of numpy, zipfile, zlib, tokenize: no list of them is complete
        raise InvalidInput(f"{path} cannot be read as .npz: {error}") from error
    return tuple(_parts(arrays[x], arrays[y], f"{path}: {x} and {y}") for x, y in pairs)


def check_md5(path: Path) -> None:
    """Warn if a published archive's checksum is another one; other files pass."""
    published = MD5.get(path.name)
    if published is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != published:
        warnings.warn(
            f"{plain(path)} has MD5 {found}, the published file {published}: it may hold other "
            "data",
            DataWarning,
            stacklevel=2,
        )


def _bytes(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        check_md5(path)
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): fetch it again") from error


def _idx(path: Path, magic: int) -> Bytes:
    content = _bytes(path)
    rank = magic & 0xFF
    head = 4 * (1 + rank)
    numbers = struct.unpack(f">{1 + rank}I", content[:head].ljust(head, b"\0"))
    if len(content) < head or numbers[0] != magic:
        raise InvalidInput(f"{path} is no IDX file of bytes with {rank} axes (magic {magic:#010x})")
    shape = numbers[1:]
    expected = head + math.prod(shape)
    if len(content) != expected:
        raise InvalidInput(
            f"{path}: {len(content)} bytes, but its header says {shape}, which takes {expected}: "
            "fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def _cifar(files: Iterable[tuple[bytes, Path]]) -> Parts:
    rows = []
    for content, path in files:
        if not content or len(content) % CIFAR_ROW:
            raise InvalidInput(
                f"{path}: {len(content)} bytes are no whole number of samples of {CIFAR_ROW}; "
                "expected CIFAR-10's binary version"
            )
        rows.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_ROW))
    table = np.concatenate(rows)
    return _parts(table[:, 1:], table[:, 0], "CIFAR-10's binary files")


def _parts(x: NDArray[Any], y: NDArray[Any], where: str) -> Parts:
    """One row per sample and whole labels, or what is wrong with them."""
    if x.ndim < 2 or y.shape != x.shape[:1] or not len(x):
        raise InvalidInput(f"{where}: inputs {x.shape} and labels {y.shape} do not match")
    if x.dtype.kind not in "uif" or y.dtype.kind not in "uif":
        raise InvalidInput(f"{where}: inputs and labels must be numbers, not {x.dtype}, {y.dtype}")
    if not np.isfinite(x).all():
        raise InvalidInput(f"{where}: some inputs are not finite")
    if not (np.isfinite(y).all() and (y == np.round(y)).all()):
        raise InvalidInput(f"{where}: labels must be whole numbers")
    return Parts(x.reshape(len(x), -1), y.astype(np.int64))
