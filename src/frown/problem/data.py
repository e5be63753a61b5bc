"""Reading inputs, labels and targets from .npz, .npy and .csv files."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from frown.errors import InvalidInput
from frown.problem.options import Option

Integers = NDArray[np.int64]

LABEL_NAMES = ("y", "label")
TARGET_NAME = "target"
SEEN = 200  # lines that tell whether labels are words


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of what a data file holds: columns of a .csv, arrays of an .npz."""

    label_column: Annotated[
        str | None, Option("the labels in a .csv: first, last or a column's name", panel="Data")
    ] = None
    id_column: Annotated[
        str | None,
        Option("what a .csv calls the inputs: first, last or a column's name", panel="Data"),
    ] = None
    drop: Annotated[
        str | None, Option("columns of a .csv to leave out", metavar="NAME,NAME", panel="Data")
    ] = None
    class_names: Annotated[
        str | None,
        Option(
            "what outputs stand for, for labels that are words (default: in the alphabet's order)",
            metavar="NAME,NAME",
            panel="Data",
        ),
    ] = None
    x_name: Annotated[str, Option("the array of inputs in an .npz", panel="Data")] = "x"
    y_name: Annotated[str, Option("the array of labels in an .npz", panel="Data")] = "y"


@dataclass(frozen=True)
class Dataset:
    """Inputs with what the file says about them; `indices` are positions in the file."""

    x: NDArray[np.float64]  # (N, ...)
    y: Integers | None  # (N,) labels; None: the file has none
    target: Integers | None  # (N,) classes to be kept away from; None: the file has none
    indices: Integers  # (N,)
    features: tuple[str, ...] = ()  # the names of the columns; empty: they have none
    classes: tuple[str, ...] = ()  # the names of labels, which are places in it
    ids: tuple[str, ...] = ()  # the file's own names of the inputs
    deviation: NDArray[np.float64] | None = None  # (...) of each feature, where it is asked for
    unused: bool = False  # the file has labels, and the question is about none

    def __len__(self) -> int:
        return len(self.x)

    def select(self, indices: Integers) -> Dataset:
        """The inputs at these positions, in this order."""
        return replace(
            self,
            x=self.x[indices],
            y=None if self.y is None else self.y[indices],
            target=None if self.target is None else self.target[indices],
            indices=self.indices[indices],
            ids=tuple(self.ids[i] for i in indices.tolist()) if self.ids else (),
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


def read_data(
    path: Path,
    columns: Columns = Columns(),  # noqa: B008
    labels: bool = True,
    own: tuple[str, ...] = (),
) -> Dataset:
    """The inputs of a file, cast to float64 and not rescaled; `own` are the model's names of its
    outputs.

    .npz: arrays `x` and, optionally, `y` and `target`. .npy: the inputs alone. .csv: one
    input per line; columns named y or label (labels) and target are told apart by the
    header, and others by `columns`. Without `labels` these columns and arrays, which may then hold
    any values, are left aside. Raises InvalidInput for what cannot be read, with the place.
    """
    _require_columns(path, columns)
    features: tuple[str, ...] = ()
    classes, ids = names_of(columns.class_names) or own, tuple[str, ...]()
    if own and classes != own:
        raise InvalidInput(
            f"--class-names {columns.class_names}: the model calls its outputs {','.join(own)}; "
            "leave the option out"
        )
    match path.suffix.lower():
        case ".npz":
            arrays = _read_npz(path, columns)
            if columns.x_name not in arrays:
                held = ", ".join(arrays) or "nothing"
                raise InvalidInput(
                    f"{path}: there is no array named {columns.x_name}; the file holds {held}; "
                    "--x-name and --y-name say what they are called"
                )
            x, y = arrays[columns.x_name], arrays.get(columns.y_name)
            target = arrays.get(TARGET_NAME)
            if columns.y_name != "y" and y is None:
                raise InvalidInput(f"{path}: there is no array named {columns.y_name} (--y-name)")
        case ".npy":
            x, y, target = _read_npy(path), None, None
        case ".csv":
            x, y, target, features, ids = _read_table(path, columns, labels)
        case other:
            raise InvalidInput(f"{path}: data comes as .npz, .npy or .csv, not {other or 'this'}")
    if x.ndim < 2:
        raise InvalidInput(
            f"{path}: x has shape {x.shape}; its first axis must count the inputs: "
            "one input of n features has shape (1, n)"
        )
    if not len(x):
        raise InvalidInput(f"{path}: there is no input in it (x has shape {x.shape})")
    every = np.arange(len(x))
    data = Dataset(_floats(x, path), None, None, every, features, classes, ids)
    if not labels:
        return replace(data, unused=y is not None)
    if y is not None and y.dtype.kind in "UO" and path.suffix.lower() != ".npy":
        y, classes = _numbered(y, classes, path)
        data = replace(data, classes=classes).labelled(y)
    elif y is not None:
        data = data.labelled(placed(_classes(y, f"{path}: y"), classes, own, f"{path}: y"))
    if target is not None:
        found = _classes(target, f"{path}: target")
        data = data.targeted(placed(found, classes, own, f"{path}: target"))
    return data


def placed(
    numbers: Integers, classes: tuple[str, ...], own: tuple[str, ...], where: str
) -> Integers:
    """Classes that are numbers as numbers of outputs.

    They are that already, unless the model calls its outputs by other numbers (`own`). Raises
    InvalidInput for one that it does not know, and where `--class-names` alone has other numbers.
    """
    try:
        place = {int(name): k for k, name in enumerate(classes)}
    except ValueError:
        return numbers
    if all(number == k for number, k in place.items()):
        return numbers
    called = ",".join(classes)
    if not own:
        raise InvalidInput(
            f"{where}: classes that are numbers are numbers of outputs, from 0, and not "
            f"--class-names {called}: number them so, and leave the option out"
        )
    strange = [n for n in numbers.tolist() if n not in place]
    if strange:
        raise InvalidInput(
            f"{where}: there is no class {strange[0]}: the model's are called {called}"
        )
    return np.array([place[n] for n in numbers.tolist()], dtype=np.int64)


def names_of(text: str | None) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _require_columns(path: Path, columns: Columns) -> None:
    """Raise InvalidInput for names that this kind of file does not have."""
    kind = path.suffix.lower()
    for name in ("label_column", "id_column", "drop"):
        if getattr(columns, name) is not None and kind != ".csv":
            raise InvalidInput(f"--{name.replace('_', '-')} is for .csv files, and {path} is none")
    for name, usual in (("x_name", "x"), ("y_name", "y")):
        if getattr(columns, name) != usual and kind != ".npz":
            raise InvalidInput(f"--{name.replace('_', '-')} is for .npz files, and {path} is none")


def _numbered(
    words: NDArray[Any], classes: tuple[str, ...], path: Path
) -> tuple[Integers, tuple[str, ...]]:
    """Labels that are words as places in `classes`, or in the alphabet's order of those there."""
    held = [str(word).strip() for word in words.ravel().tolist()]
    known = classes or tuple(sorted(set(held)))
    place = {name: k for k, name in enumerate(known)}
    strange = next((n for n, name in enumerate(held) if name not in place), None)
    if strange is not None:
        raise InvalidInput(
            f"{path}: the label {held[strange]!r} of input {strange} is not among the classes "
            f"{','.join(known)} (of the model, or of --class-names)"
        )
    return np.array([place[name] for name in held], dtype=np.int64), known


def read_classes(path: Path, name: str) -> Integers:
    """One class per input from a file: .npz (array `name`), .npy, or text, one per line.

    `name` is y or target. A text file may start with a header and may have several
    columns if one of them bears that name.
    """
    match path.suffix.lower():
        case ".npz":
            arrays = _read_npz(path, Columns())
            if name not in arrays:
                held = ", ".join(arrays) or "nothing"
                raise InvalidInput(f"{path}: there is no array named {name}; it holds {held}")
            values = arrays[name]
        case ".npy":
            values = _read_npy(path)
        case _:
            table, header = _numbers(path, _read_csv(path))
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
    """The numbers of an .npy file, or of a .csv or .txt file in reading order."""
    if path.suffix.lower() == ".npy":
        return _floats(_read_npy(path), path)
    return _numbers(path, _read_csv(path))[0].ravel()


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


def _read_npz(path: Path, columns: Columns) -> Mapping[str, NDArray[Any]]:
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        raise InvalidInput(f"{path} is an .npy file by its content; rename it to .npy")
    arrays = {}
    for name in loaded.files:
        if name not in (columns.x_name, columns.y_name, TARGET_NAME):
            arrays[name] = np.empty(0)  # named in messages, never used
            continue
        try:
            arrays[name] = loaded[name]
        except Exception as error:  # as above
            raise InvalidInput(_damaged(path, error)) from None
        if not isinstance(arrays[name], np.ndarray):  # the bytes of what is no .npy file
            raise InvalidInput(f"{path}: {name} in it is not an array")
    return arrays


@dataclass(frozen=True)
class _Lines:
    """A table as text: its lines that are not empty, below a header if there is one."""

    numbered: list[tuple[int, str]]  # by number of line in the file
    header: list[str]  # empty: there is none
    mark: str  # between cells
    width: int  # cells of the first line

    def cells(self, place: int, most: int | None = None) -> list[str]:
        """A column as text, of the first `most` lines or of all."""
        read = csv.reader((line for _, line in self.numbered[:most]), delimiter=self.mark)
        return [cells[place].strip() if place < len(cells) else "" for cells in read]

    def name(self, place: int) -> str:
        """A column's name, or its number from 1."""
        return self.header[place] if self.header else str(place + 1)


def _read_csv(path: Path) -> _Lines:
    """The lines of a table; InvalidInput where there are none."""
    try:
        text = _bytes(path).getvalue().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a text file in UTF-8") from None
    numbered = [(n, t) for n, t in enumerate(text.splitlines(), 1) if t.strip()]
    if not numbered:
        raise InvalidInput(f"{path} is empty")
    mark = _delimiter([line for _, line in numbered])
    first = [cell.strip() for cell in next(csv.reader([numbered[0][1]], delimiter=mark))]
    second = next(csv.reader([numbered[1][1]], delimiter=mark)) if len(numbered) > 1 else []
    header = first if _is_header(first, second) else []
    if header and len(numbered) == 1:
        raise InvalidInput(f"{path} has a header and no line below it")
    return _Lines(numbered[1:] if header else numbered, header, mark, len(first))


def _is_header(first: list[str], second: list[str]) -> bool:
    """True if a first line names columns: there is no number in it, or a name above one. A word
    above words, with numbers beside it, is a label or an input's name."""
    if not any(map(_is_name, first)):
        return False
    above = any(_is_name(a) and _is_number(b) for a, b in zip(first, second, strict=False))
    return above or not second or not any(map(_is_number, first))


def _numbers(
    path: Path, lines: _Lines, places: list[int] | None = None
) -> tuple[NDArray[np.float64], list[str]]:
    """(lines, columns) numbers, of all columns or of some, and the header's names."""
    _require_filled(path, lines)
    body, mark, whole = [line for _, line in lines.numbered], lines.mark, places is None
    if mark != "," and any("," in line for line in body):
        if places is not None:
            body = [mark.join(row) for row in zip(*map(lines.cells, places), strict=True)]
            places = None
        if any("." in line for line in body):
            raise InvalidInput(
                f"{path}: numbers have both . and , in them; write one of them, for decimals alone"
            )
        body = [line.replace(",", ".") for line in body]
    try:
        table = np.loadtxt(
            body, delimiter=mark, ndmin=2, comments=None, quotechar='"', usecols=places
        )
    except ValueError as error:
        raise InvalidInput(f"{path}: {_reason(error, lines)}") from None
    if whole and lines.header and table.shape[1] != len(lines.header) == lines.width:
        raise InvalidInput(
            f"{path}: the header names {len(lines.header)} columns, the lines have {table.shape[1]}"
        )
    return table, lines.header


def _reason(error: ValueError, lines: _Lines) -> str:
    """numpy's message, with the line of the file and the remedy for a column of words."""
    reason = str(error).split("; use")[0].rstrip(".")
    # numpy counts from 0, below the header, without empty lines.
    row, column = (re.search(rf" {word} (\d+)", reason) for word in ("row", "column"))
    if row is None:
        return reason
    at = min(int(row[1]), len(lines.numbered) - 1)
    if "number of columns changed" in reason:
        at = min(at, len(lines.numbered) - 1)
    where = f"line {lines.numbered[at][0]}"
    word = re.search(r"could not convert string ('.*') to", reason, re.DOTALL)
    if word is None or column is None:
        return reason.replace(f" at row {row[1]}", f" in {where}")
    name = lines.name(min(int(column[1]) - 1, lines.width - 1))
    if _is_number(word[1].strip("'").replace(",", ".", 1)):
        return (
            f"{where}, column {name}: {word[1]} is no number; decimal commas are read where "
            "semicolons or tabs part the cells"
        )
    return (
        f"{where}, column {name}: {word[1]} is no number; for a column of names give --id-column, "
        "--label-column or --drop"
    )


def _delimiter(lines: list[str]) -> str:
    """The mark between cells: a semicolon or a tab where every line has as many, else a comma."""
    for mark in (";", "\t"):
        counts = {line.count(mark) for line in lines}
        if len(counts) == 1 and counts != {0}:
            return mark
    return ","


def _require_filled(path: Path, lines: _Lines) -> None:
    """Raise InvalidInput where a cell is empty, with its line and column."""
    mark = lines.mark
    for line, text in lines.numbered:
        if text.strip()[-1] != mark and mark * 2 not in text.replace(" ", "") and text[0] != mark:
            continue
        for place, cell in enumerate(next(csv.reader([text], delimiter=mark))):
            if not cell.strip():
                name = lines.header[place] if place < len(lines.header) else str(place + 1)
                raise InvalidInput(f"{path}: line {line}, column {name} is empty")


# -- columns ---------------------------------------------------------------------------


def _read_table(
    path: Path, columns: Columns, labels: bool
) -> tuple[
    NDArray[np.float64], NDArray[Any] | None, NDArray[Any] | None, tuple[str, ...], tuple[str, ...]
]:
    """Inputs, labels, targets, names of features and of inputs, of a .csv file."""
    lines = _read_csv(path)
    label = _place(path, lines, columns.label_column, "--label-column")
    if columns.label_column is None:
        label = _column(path, lines.header, LABEL_NAMES)
    own = _place(path, lines, columns.id_column, "--id-column")
    dropped = [_place(path, lines, name, "--drop") for name in names_of(columns.drop)]
    target = _column(path, lines.header, (TARGET_NAME,))
    if target in (label, own, *dropped):
        target = None
    if label is not None and label in (own, *dropped):
        raise InvalidInput(f"{path}: column {lines.name(label)} cannot be two things at once")
    features = [i for i in range(lines.width) if i not in {label, target, own, *dropped}]
    if not features:
        raise InvalidInput(f"{path}: no column is left for the inputs")
    words = label is not None and not all(map(_is_number, lines.cells(label, SEEN)))
    if not labels or words:
        held, label_words = {target}, label if labels else None
    else:
        held, label_words = {label, target}, None
    places = features + sorted(i for i in held if i is not None)
    if len(places) < lines.width:
        _require_even(path, lines)
    table, _ = _numbers(path, lines, places if len(places) < lines.width else None)
    order = places if len(places) < lines.width else list(range(lines.width))

    def column(place: int | None) -> NDArray[Any] | None:
        return table[:, order.index(place)] if place in order else None

    x = table[:, [order.index(i) for i in features]]
    y = column(label) if label_words is None else np.array(lines.cells(label_words))
    names = tuple(lines.header[i] for i in features) if lines.header else ()
    return x, y, column(target), names, () if own is None else tuple(lines.cells(own))


def _require_even(path: Path, lines: _Lines) -> None:
    """Raise InvalidInput where lines have more or fewer cells than the first."""
    read = csv.reader((line for _, line in lines.numbered), delimiter=lines.mark)
    for (number, _), cells in zip(lines.numbered, read, strict=False):
        if len(cells) != lines.width:
            raise InvalidInput(
                f"{path}: line {number} has {len(cells)} columns, the first line {lines.width}"
            )


def _place(path: Path, lines: _Lines, name: str | None, option: str) -> int | None:
    """The column that an option names: first, last, or by the header."""
    match name:
        case None:
            return None
        case "first":
            return 0
        case "last":
            return lines.width - 1
    found = _column(path, lines.header, (name,))
    if found is None:
        held = ", ".join(lines.header) or "none: it has no header"
        raise InvalidInput(
            f"{option} {name}: give first, last or a column's name; {path} names {held}"
        )
    return found


def _column(path: Path, header: list[str], names: tuple[str, ...]) -> int | None:
    wanted = [n.lower() for n in names]
    found = [i for i, name in enumerate(header) if name.lower() in wanted]
    if len(found) > 1:
        raise InvalidInput(
            f"{path}: columns {' and '.join(header[i] for i in found)} both look like "
            f"{names[0]}; rename one"
        )
    return found[0] if found else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return bool(re.fullmatch(r"[+-]?\d+,\d+([eE][+-]?\d+)?", cell.strip()))
    return True


def _is_name(cell: str) -> bool:
    """True if a cell makes its line a header: a word, neither a number nor a mistyped one."""
    return not _is_number(cell) and (cell[:1].isalpha() or cell[:1] == "_")


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
