"""The files of a run: rows as JSON Lines and CSV, counterexamples, and how it was made."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from frown.certification.folder import (
    RESULTS_LOCK,
    Lock,
    new_text_file,
    require_writable,
    write_whole,
)
from frown.certification.plain import cell
from frown.certification.results import Row
from frown.errors import OutputError

ROWS_JSON = "results.jsonl"
ROWS_CSV = "results.csv"
COUNTEREXAMPLES = "counterexamples.npz"
RUN = "run.json"
Key = (
    int | tuple[int, int]
)  # of a counterexample: the row's index, and the frame of a row of its own
FILES = (ROWS_JSON, ROWS_CSV, COUNTEREXAMPLES, RUN)

# Counterexamples are one array and rewritten whole, so not after every batch.
_REWRITE_SECONDS = 10.0


@dataclass(frozen=True)
class Origin:
    """The facts that every row repeats so that it can stand alone."""

    settings: dict[str, Any]
    version: str
    digest: str  # SHA-256 of the model


def record(row: Row, origin: Origin) -> dict[str, Any]:
    """A row as strict JSON: NaN and infinity are null, but the norm infinity is "inf"."""
    return {
        "index": row.index,
        "label": row.label,
        "prediction": row.prediction,
        "target": row.target,
        "norm": norm_name(row.norm),
        "method": row.method,
        "status": row.status,
        "radius": _finite(row.radius),
        "failed": _finite(row.failed),
        "broken": _finite(row.broken),
        "margins": {str(k): _finite(v) for k, v in row.margins.items()},
        "seconds": round(row.seconds, 6),
        "level": row.level,
        "certificate": row.certificate,
        "complete": row.complete,
        "remark": row.remark,
        "deployed": row.deployed,
        "frames": row.frames,
        "input": row.input,
        "settings": strict(origin.settings),
        "version": origin.version,
        "model": origin.digest,
    }


def norm_name(norm: float) -> str | float:
    """2 and not 2.0; "inf", which JSON has no number for."""
    if math.isinf(norm):
        return "inf"
    return int(norm) if norm == int(norm) else norm


def dumps(value: Any, indent: int | None = None) -> str:
    """Strict JSON of a value whose numbers are finite or became null by `strict`."""
    return json.dumps(strict(value), allow_nan=False, indent=indent)


def strict(value: Any) -> Any:
    """The value with arrays as lists, paths as text, and NaN and infinity as None."""
    match value:
        case Mapping():
            return {str(k): strict(v) for k, v in value.items()}
        case np.ndarray() | np.generic():
            return strict(value.tolist())
        case list() | tuple():
            return [strict(v) for v in value]
        case bool() | int() | str() | None:
            return value
        case float():
            return _finite(value)
        case _:
            return str(value)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


COLUMNS = tuple(
    record(
        Row(0, 0, 0, None, 2.0, "", "", 0.0, None, None, {}, 0.0),
        Origin({}, "", ""),
    )
)


@dataclass
class ResultFiles:
    """Writes a run's files; every finished batch is on disk when `append` returns.

    Nothing is opened, and nothing from before overwritten, until the first row or
    `close`, so a run refused for bad input leaves earlier results alone.
    """

    directory: Path
    about: dict[str, Any]  # for run.json
    origin: Origin
    lock: Lock
    rows: int = 0
    _streams: list[IO[str]] = field(default_factory=list)
    _labels: dict[int, int] = field(default_factory=dict)
    _examples: dict[Key, NDArray[np.floating]] = field(default_factory=dict)
    _written: float = field(default_factory=time.monotonic)

    @classmethod
    def prepare(
        cls, directory: Path, about: dict[str, Any], origin: Origin, *, force: bool = False
    ) -> ResultFiles:
        """Make sure that results can be written, or raise OutputError.

        `force` allows overwriting the results of an earlier run. The folder is taken: another
        run is refused until `release`.
        """
        with writing(directory):
            require_writable(directory)
            lock = Lock.take(directory, RESULTS_LOCK, "results")
        held = [name for name in FILES if os.path.lexists(directory / name)]
        folders = [name for name in held if (directory / name).is_dir()]
        if held and (folders or not force):
            lock.release()
            if folders:
                raise OutputError(
                    f"cannot write results to {directory}: {', '.join(folders)} in it is a folder; "
                    "choose another --out"
                )
            raise OutputError(
                f"{directory} already holds results ({', '.join(held)}); "
                "choose another --out, or overwrite them with --force"
            )
        return cls(directory, about, origin, lock)

    def append(
        self, rows: Sequence[Row], counterexamples: Mapping[Any, NDArray[np.floating]]
    ) -> None:
        """Add finished rows and their counterexamples (by `Key`), and flush."""
        with writing(self.directory):
            lines, table = self._open()
            writer = csv.writer(table, lineterminator="\n")
            for row in rows:
                entry = record(row, self.origin)
                lines.write(dumps(entry) + "\n")
                writer.writerow([_cell(entry[c]) for c in COLUMNS])
                self._labels[row.index] = row.label
            for stream in (lines, table):
                stream.flush()
            self.rows += len(rows)
            self._examples.update(counterexamples)
            if counterexamples and time.monotonic() - self._written > _REWRITE_SECONDS:
                self._write_examples()

    def close(self, outcome: Mapping[str, Any]) -> None:
        """Finish the files; `outcome` goes into run.json beside the settings."""
        with writing(self.directory):
            for stream in self._open():
                stream.close()
            self._write_examples()
            self._write_run({"rows": self.rows, **outcome})

    def release(self) -> None:
        """Let other runs write to the folder."""
        self.lock.release()

    def _open(self) -> tuple[IO[str], IO[str]]:
        if not self._streams:
            for name in FILES:
                (self.directory / name).unlink(missing_ok=True)
            for name in (ROWS_JSON, ROWS_CSV):
                self._streams.append(new_text_file(self.directory / name))
            csv.writer(self._streams[1], lineterminator="\n").writerow(COLUMNS)
            # No number of rows: it would be wrong as soon as there is one more.
            self._write_run({"state": "running"})
        return self._streams[0], self._streams[1]

    def _write_run(self, outcome: Mapping[str, Any]) -> None:
        content = {**self.about, **outcome}
        write_whole(self.directory / RUN, (dumps(content, indent=2) + "\n").encode())

    def _write_examples(self) -> None:
        """x, y and index: the file can be given to `frown certify` as data. And frame, where
        frames moved alone."""
        order = sorted(
            (key if isinstance(key, tuple) else (key, -1), key) for key in self._examples
        )
        examples = [np.asarray(self._examples[key]) for _, key in order]
        index, frame = np.array([place for place, _ in order], dtype=np.int64).reshape(-1, 2).T
        apart: dict[str, Any] = {"frame": frame} if (frame >= 0).any() else {}
        file = BytesIO()
        np.savez(
            file,
            x=np.stack(examples) if examples else np.empty((0, 0)),
            y=np.array([self._labels[int(i)] for i in index], dtype=np.int64),
            index=index,
            **apart,
        )
        write_whole(self.directory / COUNTEREXAMPLES, file.getbuffer())
        self._written = time.monotonic()


def _cell(value: Any) -> Any:
    return dumps(value) if isinstance(value, dict) else cell(value)


@contextmanager
def writing(directory: Path, what: str = "results", option: str = "--out") -> Iterator[None]:
    """Turn the system's errors into one that names the directory."""
    try:
        yield
    except OSError as error:
        which = f" ({error.filename})" if error.filename else ""
        raise OutputError(
            f"cannot write {what} to {directory}: {error.strerror or error}{which}; "
            f"choose another {option}"
        ) from error
