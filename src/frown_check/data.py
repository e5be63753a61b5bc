"""Find the row of a data file that a certificate is about; nothing is unpickled or executed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from frown_check.balls import Array
from frown_check.errors import Refused
from frown_check.files import content

MOST_DATA = 2**33
APART = ("y", "label", "target")  # columns and arrays that are no features


@dataclass(frozen=True)
class Data:
    """The inputs of a file as doubles, flat, after division; and the labels beside them."""

    name: str
    x: Array  # (N, numbers of one line)
    y: Array | None  # (N,)

    def rows(self, centre: Array) -> list[int]:
        """The rows that are this very input, number by number."""
        flat, width = centre.ravel(), self.x.shape[1]
        if width == flat.size:
            parts = [self.x]
        elif width == flat.size + 1:  # a label before or behind the features, without a name
            parts = [self.x[:, 1:], self.x[:, :-1]]
        else:
            return []
        return np.flatnonzero(np.any([(part == flat).all(1) for part in parts], 0)).tolist()

    def beside(self, centre: Array, row: int) -> float | None:
        """The number before or behind the input in one of its rows; None: there is none."""
        line, flat = self.x[row], centre.ravel()
        if len(line) == flat.size:
            return None
        return float(line[0] if (line[1:] == flat).all() else line[-1])


def read_data(path: Path, divide: float = 1.0) -> Data:
    """Inputs of an .npz (array x), .npy or .csv file, divided; Refused where that is none."""
    if not (np.isfinite(divide) and divide > 0):
        raise Refused(f"the inputs cannot be divided by {divide}")
    held, kind = content(path, MOST_DATA), path.suffix.lower()
    try:
        if kind == ".csv":
            x, y = _table(held.decode("utf-8-sig"))
        else:
            found = np.load(BytesIO(held), allow_pickle=False)
            x, y = (found, None) if isinstance(found, np.ndarray) else _arrays(found)
        if x.dtype.kind not in "fiub" or x.ndim < 2 or not len(x):
            raise ValueError(f"inputs of type {x.dtype} and shape {x.shape}")
    except Exception as error:  # of numpy, zipfile, zlib, tokenize: no list of them is complete
        raise Refused(f"{path} holds no inputs: {type(error).__name__}: {error}") from None
    labels = None
    if y is not None and y.size and y.shape[:1] == x.shape[:1]:
        labels = y.reshape(len(x), -1)[:, 0]
    return Data(str(path), x.reshape(len(x), -1).astype(np.float64) / divide, labels)


def _arrays(found: Mapping[str, Any]) -> tuple[Any, Any]:
    y = found["y"] if "y" in found else None  # noqa: SIM401 (a file has no get)
    return found["x"], y if y is not None and y.dtype.kind in "fiub" else None


def _table(text: str) -> tuple[Array, Array | None]:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("the file is empty")
    mark = next((m for m in ";\t" if len({line.count(m) for line in lines} | {0}) == 2), ",")
    top = [cell.strip() for cell in next(csv.reader(lines[:1], delimiter=mark))]
    if mark != ",":  # commas stand for points where they part no cells
        lines = [line.replace(",", ".") for line in lines]
    first, below = _columns(lines[:1], mark), _columns(lines[1:] or lines, mark)
    if len(first) != len(below):
        raise ValueError("lines have more and fewer columns")
    numbers = [i for i, column in enumerate(below) if column is not None or len(lines) == 1]
    headed = any(first[i] is None for i in numbers)
    if len(lines) == headed or not numbers:
        raise ValueError("there is no line of numbers")
    # Columns of words, such as the names of inputs, are no features.
    names = [top[i].lower() if headed else "" for i in numbers]
    parts = (below,) if headed or len(lines) == 1 else (first, below)
    table = np.concatenate([[part[i] for i in numbers] for part in parts], 1).T
    features = [i for i, name in enumerate(names) if name not in APART]
    label = [i for i, name in enumerate(names) if name in APART[:2]]
    return table[:, features], table[:, label[0]] if label else None


def _columns(lines: list[str], mark: str) -> list[Array | None]:
    """Columns of cells as numbers; None where a cell is none."""
    try:  # numbers alone, as of images: quick
        return list(np.loadtxt(lines, delimiter=mark, comments=None, quotechar='"', ndmin=2).T)
    except ValueError:
        rows = list(csv.reader(lines, delimiter=mark))
    if len({len(row) for row in rows}) > 1:
        raise ValueError("lines have more and fewer columns")
    return [_numbers(column) for column in zip(*rows, strict=True)]


def _numbers(cells: tuple[str, ...]) -> Array | None:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None
