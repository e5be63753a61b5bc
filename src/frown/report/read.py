"""A run's files back into results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from frown.certification.folder import RESULTS_LOCK, holder
from frown.certification.results import Certification, Row, Sensitivity, fields_of
from frown.certification.statement import Statement, levels_text
from frown.errors import InvalidInput
from frown.jobs.files import COUNTEREXAMPLES, ROWS_JSON, RUN, read_examples
from frown.problem.data import Columns, digest, read_data
from frown.problem.options import options_of

Result = TypeVar("Result", Certification, Sensitivity)

# Flat inputs that are images everywhere they are met: digits, MNIST and CIFAR.
FLAT = {(64,): (8, 8), (784,): (28, 28), (3072,): (3, 32, 32)}
_LEAST_SIDE = 4


def open(folder: str | Path) -> Certification | Sensitivity:
    """The results in a folder that `frown certify --out` or `Certification.save` wrote.

    Raises InvalidInput where the rows are missing or damaged.
    """
    return read_any(Path(folder))


def read_results(directory: Path) -> Certification:
    """The results that `frown certify --out directory` left there, of whole inputs."""
    found = read_any(directory)
    if isinstance(found, Sensitivity):
        raise InvalidInput(f"{directory} holds radii of frames alone, not of inputs")
    return found


def read_any(directory: Path) -> Certification | Sensitivity:
    """The results that `frown certify --out directory` left there.

    With --sensitivity they are those of frames alone. Raises InvalidInput where the rows are
    missing or damaged. A run that was interrupted has all its finished rows; its other files may be
    missing.
    """
    records, _ = _records(directory / ROWS_JSON)
    about = _about(directory / RUN)
    first = records[0] if records else {}
    try:
        rows = tuple(row_of(record) for record in records)
        result = _result(directory, about, first, rows)
        Statement.of(result)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(
            f"{directory / ROWS_JSON} is not a result file of frown ({error!r}); "
            "write it again with frown certify"
        ) from error
    return result


def _result(
    directory: Path, about: dict[str, Any], first: dict[str, Any], rows: tuple[Row, ...]
) -> Certification | Sensitivity:
    model = about.get("model", "")
    origin: dict[str, Any] = {
        "model": str(model.get("file", "")) if isinstance(model, dict) else str(model),
        "digest": str(first.get("model", "")),
        "settings": dict(first.get("settings") or about.get("settings") or {}),
        "version": str(first.get("version", "")),
        "class_names": tuple(map(str, _data(about).get("classes") or ())),
    }
    found = read_examples(directory / COUNTEREXAMPLES)
    if origin["settings"].get("sensitivity"):
        frames = sorted({int(row.frames) for row in rows})
        return Sensitivity(rows, tuple(frames), found, **origin)
    return Certification(rows, {i: x for (i, _), x in found.items()}, **origin)


def by_method(read: Sequence[tuple[Path, Result]]) -> dict[str, Result]:
    """The results of folders by method, and by the folder's name where several hold one method;
    InvalidInput where a folder is named twice."""
    places = [directory.resolve() for directory, _ in read]
    methods = [result.rows[0].method if result.rows else "" for _, result in read]
    names = [place.name for place in places]
    named: dict[str, Result] = {}
    for method, place, (directory, result) in zip(methods, places, read, strict=True):
        if places.count(place) > 1:
            raise InvalidInput(f"{directory} is named twice; name every folder of results once")
        apart = place.name if names.count(place.name) == 1 else str(directory)
        named[method if methods.count(method) == 1 else f"{method} ({apart})"] = result
    return named


def read_notices(directory: Path, found: Certification | Sensitivity) -> list[str]:
    """Notices for a reader of the results in `directory`: that they are incomplete, and why."""
    _, cut_off = _records(directory / ROWS_JSON)
    about = _about(directory / RUN)
    notices = []
    rows, asked, state = found.rows, about.get("asked"), about.get("state")
    whole = not isinstance(asked, int) or len(rows) == asked
    if not about:
        notices.append(f"{RUN} is missing: nobody knows how many inputs the run was about")
    elif state != "finished" or not whole:
        word = "interrupted" if state == "running" else str(state)
        if state == "running" and (who := holder(directory, RESULTS_LOCK)) is not None:
            word = f"still running ({who})"
        word = "incomplete" if state == "finished" else word
        what = "pairs of input and frame" if isinstance(found, Sensitivity) else "inputs"
        of = f" of {asked:,}" if isinstance(asked, int) else ""
        early = sum(row.early for row in rows)
        ended = f"; {early:,} of them ended early" if early else ""
        levels = levels_text(rows)
        level = f"; level: {levels}" if levels else ""
        notices.append(f"{word}: {len(rows):,}{of} {what}{ended}{level}")
    if cut_off:
        notices.append(f"the last line of {ROWS_JSON} is cut off, as by a full disk: left out")
    return notices


def _records(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a file, and whether its last line was cut off and is not among them."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise InvalidInput(
            f"{path.parent} holds no {path.name}; give a directory written by frown certify --out"
        ) from None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError):
            raise InvalidInput(
                f"{path}, line {number}: not a row; delete the line, or write the results again "
                "with frown certify --resume"
            ) from None
    if not last.strip():
        return records, False
    try:
        return [*records, json.loads(last)], False
    except (ValueError, RecursionError):
        return records, True


def row_of(record: Mapping[str, Any]) -> Row:
    """A row from its record in a file."""
    # JSON has no infinity: a robust input's radius is written as null.
    endless = inf if record["status"] == "robust" else nan
    known = {k: nan if v is None else float(v) for k, v in record["margins"].items()}
    own = {
        **record,
        "radius": endless if record["radius"] is None else record["radius"],
        "margins": {int(k): v for k, v in known.items()},
        "level": record["level"],  # which has a default, and must be there
        "complete": record["complete"],
    }
    return Row(**fields_of(Row, own, {"dict[int, float]": dict}))


def _about(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    return about if isinstance(about, dict) else {}


def read_command(directory: Path) -> str | None:
    """The command line that made the results, if they say."""
    return _about(directory / RUN).get("command") or None


def read_facts(directory: Path) -> list[tuple[str, str]]:
    """Name and text of what run.json tells of the run: its data, their SHA-256, and its date."""
    about = _about(directory / RUN)
    data = _data(about)
    found = {"data": data.get("file"), "SHA-256 of the data": data.get("sha256")}
    return [(k, str(v)) for k, v in {**found, "date": about.get("date")}.items() if v]


def _data(about: Mapping[str, Any]) -> dict[str, Any]:
    """The part of run.json about the data; empty where it is not there."""
    data = about.get("data")
    return data if isinstance(data, dict) else {}


def read_images(directory: Path, indices: Sequence[int]) -> NDArray[np.floating] | None:
    """The inputs at `indices` of the run's data file as (N, H, W) or (N, H, W, 3).

    None where they are no images, or where the file is gone or not the one certified.
    """
    x = _inputs(directory, indices)
    return None if x is None else as_images(x)


def read_sequences(directory: Path, indices: Sequence[int]) -> NDArray[np.floating] | None:
    """The inputs at `indices` in the shape that the model takes; None as for `read_images`."""
    x = _inputs(directory, indices)
    shape = (_about(directory / RUN).get("model") or {}).get("input_shape")
    if x is None or shape is None or x[0].size != np.prod(shape):
        return None
    return x.reshape(len(x), *shape)


def _inputs(directory: Path, indices: Sequence[int]) -> NDArray[np.floating] | None:
    about = _about(directory / RUN)
    data = _data(about)
    path = Path(data.get("file", ""))
    if not path.is_file() or digest(path) != data.get("sha256"):
        return None
    settings = about.get("settings") or {}
    named = {f.name: settings[f.name] for f in options_of(Columns) if f.name in settings}
    x = read_data(path, Columns(**named), labels=False).x
    if not indices or max(indices) >= len(x):
        return None
    # Counterexamples are in units after --divide, and share the images' grey scale.
    divide = settings.get("divide") or 1.0
    return np.asarray(x[list(indices)] / divide)


def as_images(x: NDArray[np.floating]) -> NDArray[np.floating] | None:
    """Inputs (N, ...) laid out as pictures, None if their shape is not one of a picture."""
    shape = x.shape[1:]
    if shape in FLAT:
        return as_images(x.reshape(-1, *FLAT[shape]))
    match shape:
        case (int(h), int(w)) if min(h, w) >= _LEAST_SIDE:
            return x
        case (1, int(h), int(w)) if min(h, w) >= _LEAST_SIDE:
            return x[:, 0]
        case (3, int(h), int(w)) if min(h, w) >= _LEAST_SIDE:
            return np.moveaxis(x, 1, -1)
        case (int(h), int(w), 1 | 3) if min(h, w) >= _LEAST_SIDE:
            return x
    return None
