"""Reading inputs, labels and targets from .npz, .npy and .csv files."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frown.errors import InvalidInput

Integers = NDArray[np.int64]

LABEL_NAMES = ("y", "label")
TARGET_NAME = "target"


@dataclass(frozen=True)
class Dataset:
    """Inputs with what the file says about them; `indices` are positions in the file."""

    x: NDArray[np.float64]  # (N, ...)
    y: Integers | None  # (N,) labels; None: the file has none
    target: Integers | None  # (N,) classes to be kept away from; None: the file has none
    indices: Integers  # (N,)

    def __len__(self) -> int:
        return len(self.x)

    def select(self, indices: Integers) -> Dataset:
        """The inputs at these positions, in this order."""
        return Dataset(
            self.x[indices],
            None if self.y is None else self.y[indices],
            None if self.target is None else self.target[indices],
            self.indices[indices],
        )

    def divided(self, by: float) -> Dataset:
        """A copy with every number of the inputs divided by `by`."""
        if not (np.isfinite(by) and by > 0):
            raise InvalidInput(f"--divide {by}: give a positive number, 255 for bytes to [0, 1]")
        return replace(self, x=self.x / by)

    def labelled(self, y: Integers) -> Dataset:
        return replace(self, y=_matching(y, len(self), "labels"))

    def targeted(self, target: Integers) -> Dataset:
        return replace(self, target=_matching(target, len(self), "targets"))


def read_data(path: Path, label_column: str | None = None, labels: bool = True) -> Dataset:
    """The inputs of a file, cast to float64 and not rescaled.

    .npz: arrays `x` and, optionally, `y` and `target`. .npy: the inputs alone. .csv: one
    input per line; columns named y or label (labels) and target are told apart by the
    header, or the labels by `label_column`: `first`, `last` or a column's name. Without `labels`
    these columns and arrays, which may then hold any values, are left aside.
    """
    if label_column is not None and path.suffix.lower() != ".csv":
        raise InvalidInput(f"--label-column is for .csv files, and {path} is none")
    match path.suffix.lower():
        case ".npz":
            arrays = _read_npz(path)
            if "x" not in arrays:
                held = ", ".join(arrays) or "nothing"
                raise InvalidInput(f"{path}: there is no array named x; the file holds {held}")
            x, y, target = arrays["x"], arrays.get("y"), arrays.get(TARGET_NAME)
        case ".npy":
            x, y, target = _read_npy(path), None, None
        case ".csv":
            x, y, target = _split(path, *_read_csv(path), label_column)
        case other:
            raise InvalidInput(f"{path}: data comes as .npz, .npy or .csv, not {other or 'this'}")
    if x.ndim < 2:
        raise InvalidInput(
            f"{path}: x has shape {x.shape}; its first axis must count the inputs: "
            "one input of n features has shape (1, n)"
        )
    if not len(x):
        raise InvalidInput(f"{path}: there is no input in it (x has shape {x.shape})")
    data = Dataset(_floats(x, path), None, None, np.arange(len(x)))
    if not labels:
        return data
    if y is not None:
        data = data.labelled(_classes(y, f"{path}: y"))
    if target is not None:
        data = data.targeted(_classes(target, f"{path}: target"))
    return data


def read_classes(path: Path, name: str) -> Integers:
    """One class per input from a file: .npz (array `name`), .npy, or text, one per line.

    `name` is y or target. A text file may start with a header and may have several
    columns if one of them bears that name.
    """
    match path.suffix.lower():
        case ".npz":
            arrays = _read_npz(path)
            if name not in arrays:
                held = ", ".join(arrays) or "nothing"
                raise InvalidInput(f"{path}: there is no array named {name}; it holds {held}")
            values = arrays[name]
        case ".npy":
            values = _read_npy(path)
        case _:
            table, header = _read_csv(path)
            names = LABEL_NAMES if name == "y" else (TARGET_NAME,)
            column = _column(path, header, names) if table.shape[1] > 1 else 0
            if column is None:
                raise InvalidInput(
                    f"{path}: {table.shape[1]} columns, none named {' or '.join(names)}; "
                    "give one class per line"
                )
            values = table[:, column]
    return _classes(values, str(path))


def read_array(path: Path) -> NDArray[np.float64]:
    """The numbers of an .npy file."""
    return _floats(_read_npy(path), path)


def digest(path: Path) -> str:
    """SHA-256 of a file, so that a result names the data it is about."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- files -----------------------------------------------------------------------------


def _bytes(path: Path) -> BytesIO:
    try:
        return BytesIO(path.read_bytes())
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a directory; give a file") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def _load(path: Path) -> Any:
    content = _bytes(path)
    try:
        return np.load(content, allow_pickle=False)
    except Exception as error:  # of numpy, zipfile, zlib, tokenize: no list of them is complete
        raise InvalidInput(_damaged(path, error)) from None


def _damaged(path: Path, error: Exception) -> str:
    if "allow_pickle" in str(error) and "Object arrays" in str(error):
        return f"{path} holds Python objects; save plain arrays of numbers"
    return f"{path} is not a numpy {path.suffix} file, or it is cut off or damaged"


def _read_npy(path: Path) -> NDArray[Any]:
    loaded = _load(path)
    if not isinstance(loaded, np.ndarray):
        raise InvalidInput(f"{path} is an .npz file by its content; rename it to .npz")
    return loaded


def _read_npz(path: Path) -> Mapping[str, NDArray[Any]]:
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        raise InvalidInput(f"{path} is an .npy file by its content; rename it to .npy")
    arrays = {}
    for name in loaded.files:
        if name not in ("x", "y", TARGET_NAME):
            arrays[name] = np.empty(0)  # named in messages, never used
            continue
        try:
            arrays[name] = loaded[name]
        except Exception as error:  # as above
            raise InvalidInput(_damaged(path, error)) from None
        if not isinstance(arrays[name], np.ndarray):  # the bytes of what is no .npy file
            raise InvalidInput(f"{path}: {name} in it is not an array")
    return arrays


def _read_csv(path: Path) -> tuple[NDArray[np.float64], list[str]]:
    """(lines, columns) numbers, and the header's names (empty: no header)."""
    try:
        text = _bytes(path).getvalue().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a text file in UTF-8") from None
    numbered = [(n, t) for n, t in enumerate(text.splitlines(), 1) if t.strip()]
    lines = [line for _, line in numbered]
    if not lines:
        raise InvalidInput(f"{path} is empty")
    mark = _delimiter(lines)
    first = [cell.strip() for cell in next(csv.reader(lines[:1], delimiter=mark))]
    header = first if any(map(_is_name, first)) else []
    body = lines[1:] if header else lines
    if not body:
        raise InvalidInput(f"{path} has a header and no line below it")
    _require_filled(path, numbered[1:] if header else numbered, mark, header)
    if mark != "," and any("," in line for line in body):
        if any("." in line for line in body):
            raise InvalidInput(
                f"{path}: numbers have both . and , in them; write one of them, for decimals alone"
            )
        body = [line.replace(",", ".") for line in body]
    try:
        table = np.loadtxt(body, delimiter=mark, ndmin=2, comments=None, quotechar='"')
    except ValueError as error:
        reason = str(error).split(";")[0].rstrip(".")
        row = re.search(r" at row (\d+)", reason)
        if row is not None:  # numpy counts from 0, below the header, without empty lines
            line = numbered[min(int(row[1]) + bool(header), len(numbered) - 1)][0]
            reason = reason.replace(row[0], f" in line {line}")
        raise InvalidInput(f"{path}: {reason}") from None
    if header and len(header) != table.shape[1]:
        raise InvalidInput(
            f"{path}: the header names {len(header)} columns, the lines have {table.shape[1]}"
        )
    return table, header


def _delimiter(lines: list[str]) -> str:
    """The mark between cells: a semicolon or a tab where every line has as many, else a comma."""
    for mark in (";", "\t"):
        counts = {line.count(mark) for line in lines}
        if len(counts) == 1 and counts != {0}:
            return mark
    return ","


def _require_filled(
    path: Path, numbered: list[tuple[int, str]], mark: str, header: list[str]
) -> None:
    """Raise InvalidInput where a cell is empty, with its line and column."""
    for line, text in numbered:
        if text.strip()[-1] != mark and mark * 2 not in text.replace(" ", "") and text[0] != mark:
            continue
        for place, cell in enumerate(next(csv.reader([text], delimiter=mark))):
            if not cell.strip():
                name = header[place] if place < len(header) else str(place + 1)
                raise InvalidInput(f"{path}: line {line}, column {name} is empty")


# -- columns ---------------------------------------------------------------------------


def _split(
    path: Path, table: NDArray[np.float64], header: list[str], label_column: str | None
) -> tuple[NDArray[np.float64], NDArray[Any] | None, NDArray[Any] | None]:
    label: int | None
    match label_column:
        case None:
            label = _column(path, header, LABEL_NAMES)
        case "first":
            label = 0
        case "last":
            label = table.shape[1] - 1
        case name:
            label = _column(path, header, (name,))
            if label is None:
                held = ", ".join(header) or "none: it has no header"
                raise InvalidInput(
                    f"--label-column {name}: give first, last or a column's name; "
                    f"{path} names {held}"
                )
    target = _column(path, header, (TARGET_NAME,))
    if target == label:
        target = None
    features = [i for i in range(table.shape[1]) if i not in (label, target)]
    return (
        table[:, features],
        None if label is None else table[:, label],
        None if target is None else table[:, target],
    )


def _column(path: Path, header: list[str], names: tuple[str, ...]) -> int | None:
    wanted = [n.lower() for n in names]
    found = [i for i, name in enumerate(header) if name.lower() in wanted]
    if len(found) > 1:
        raise InvalidInput(
            f"{path}: columns {' and '.join(header[i] for i in found)} both look like "
            f"{names[0]}; rename one"
        )
    return found[0] if found else None


def _is_name(cell: str) -> bool:
    """True if a cell makes its line a header: a word, neither a number nor a mistyped one."""
    try:
        float(cell)
    except ValueError:
        return cell[:1].isalpha() or cell[:1] == "_"
    return False


# -- values ----------------------------------------------------------------------------


def _floats(x: NDArray[Any], path: Path) -> NDArray[np.float64]:
    if x.dtype.kind not in "fiub":
        raise InvalidInput(f"{path}: x has type {x.dtype}; only real numbers can be certified")
    return x.astype(np.float64)


def _classes(values: NDArray[Any], where: str) -> Integers:
    """Whole numbers of shape (N,); floats that are whole are accepted."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InvalidInput(f"{where} has shape {values.shape}; give one class number per input")
    if values.dtype.kind not in "fiub":
        raise InvalidInput(f"{where} has type {values.dtype}; give class numbers")
    if values.dtype.kind == "f":
        bad = np.flatnonzero(~(np.isfinite(values) & (values == np.round(values))))
        if len(bad):
            raise InvalidInput(
                f"{where}: {values[bad[0]]:g} at index {bad[0]} is no class; "
                "classes are whole numbers from 0"
            )
    return values.astype(np.int64)


def _matching(values: Integers, count: int, what: str) -> Integers:
    if len(values) != count:
        raise InvalidInput(f"there are {len(values)} {what} for {count} inputs")
    return values
