"""The files of a run: rows as JSON Lines and CSV, counterexamples, and how it was made."""

from __future__ import annotations

import csv
import json
import math
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO, StringIO
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from frown.certification.folder import (
    RESULTS_LOCK,
    Lock,
    open_regular,
    read_regular,
    reported,
    require_writable,
    whole,
    write_whole,
)
from frown.certification.results import Certification, Row, cell
from frown.certification.statement import input_digest
from frown.errors import InvalidInput, OutputError
from frown.jobs.store import Names, Store, key_of

ROWS_JSON = "results.jsonl"
ROWS_CSV = "results.csv"
COUNTEREXAMPLES = "counterexamples.npz"
RUN = "run.json"
Key = (
    int | tuple[int, int]
)  # of a counterexample: the row's index, and the frame of a row of its own
NAMES = Names(manifest=RUN, rows=ROWS_JSON)
JOURNAL = ".frown-counterexamples"  # while a run lasts: all of them, as they come
FILES = (ROWS_JSON, ROWS_CSV, COUNTEREXAMPLES, RUN)

# Counterexamples are one array and rewritten whole, so not after every batch: after so many
# seconds, and so many times as long as it took.
_REWRITE_SECONDS, _REWRITE_SHARE = 10.0, 50.0


@dataclass(frozen=True)
class Origin:
    """The facts that every row repeats so that it can stand alone."""

    settings: dict[str, Any]
    version: str
    digest: str  # SHA-256 of the model


def record(row: Row, origin: Origin) -> dict[str, Any]:
    """A row as strict JSON: NaN and infinity are null, but the norm infinity is "inf"."""
    own = {name: getattr(row, name) for name in ("index", "id", *Row.__dataclass_fields__)}
    own |= {"norm": json_norm(row.norm), "seconds": round(row.seconds, 6)}
    own |= {"settings": origin.settings, "version": origin.version, "model": origin.digest}
    return {name: strict(value) for name, value in own.items()}


def json_norm(norm: float) -> str | float:
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


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a counterexample's numbers in the journal."""

    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return 8 * math.prod(self.shape)


@dataclass
class ResultFiles:
    """Writes a run's files; every finished batch is on disk when `append` returns.

    Nothing is opened, and nothing from before overwritten, until the first row or
    `close`, so a run refused for bad input leaves earlier results alone. Rows are a `Store`, in any
    order while the run lasts and in the order of `keys` when it ends; counterexamples are in a
    journal until then.
    """

    directory: Path
    about: dict[str, Any]  # for run.json
    origin: Origin
    lock: Lock
    keys: Mapping[Key, str] = field(default_factory=dict)  # of the rows, in order
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that a resumed run shares
    _store: Store | None = None
    _table: IO[str] | None = None
    _journal: IO[bytes] | None = None
    _labels: dict[int, int | None] = field(default_factory=dict)
    _found: dict[Key, NDArray[np.floating]] = field(default_factory=dict)  # by an earlier run
    _examples: dict[Key, _Place] = field(default_factory=dict)  # in the journal
    _end: int = 0  # of the journal
    _rewrite: float = field(default_factory=lambda: time.monotonic() + _REWRITE_SECONDS)

    @classmethod
    def prepare(
        cls,
        directory: Path,
        about: dict[str, Any],
        origin: Origin,
        *,
        force: bool = False,
        resume: bool = False,
        keys: Mapping[Any, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> ResultFiles:
        """Make sure that results can be written, or raise OutputError.

        `force` allows overwriting the results of an earlier run, `resume` goes on with them: the
        rows are in `done`. Raises InvalidInput, with what differs, where they were made with other
        settings. The folder is taken: another run is refused until `release`.
        """
        with writing(directory):
            require_writable(directory)
            lock = Lock.take(directory, RESULTS_LOCK, "results")
        shared = about.get("settings", {}) if settings is None else settings
        files = cls(directory, about, origin, lock, dict(keys or {}), strict(shared))
        try:
            held = [name for name in FILES if os.path.lexists(directory / name)]
            folders = [name for name in held if (directory / name).is_dir()]
            if folders:
                raise OutputError(
                    f"cannot write results to {directory}: {', '.join(folders)} in it is a folder; "
                    "choose another --out"
                )
            if held and resume:
                files._go_on()
            elif held and not force:
                raise OutputError(
                    f"{directory} already holds results ({', '.join(held)}); choose another --out, "
                    "go on with --resume, or overwrite them with --force"
                )
        except BaseException:
            files.release()
            raise
        return files

    @property
    def done(self) -> dict[Key, dict[str, Any]]:
        """The rows that are there from an earlier run, by `Key`."""
        store = self._store
        if store is None:
            return {}
        return {key: dict(store[own]) for key, own in self.keys.items() if own in store}

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop rows of an earlier run that are to be done again."""
        dropped = {self.keys[key] for key in keys}
        if self._store is not None and dropped:
            with writing(self.directory):
                self._store.arrange([own for own in self._store if own not in dropped])

    def append(
        self,
        rows: Sequence[Row],
        counterexamples: Mapping[Any, NDArray[np.floating]],
        *,
        provisional: bool = False,
    ) -> None:
        """Add finished rows and their counterexamples (by `Key`), and flush.

        Provisional ones are there until somebody resumes the run, and are done again then. Rows
        that are there already are left as they are.
        """
        with writing(self.directory):
            store, table, journal = self._open()
            new: dict[str, dict[str, Any]] = {}
            for row in rows:
                other = f"row {len(store) + len(new)}"  # of rows that nobody will go on with
                key = self.keys.get(key_of_row(row, self.keys), other)
                if key not in store:
                    new[key] = record(row, self.origin)
                    self._labels[row.index] = row.label
            # A row that is there has its counterexample, whatever ends the run in between.
            for at, point in counterexamples.items():
                entry = _entry(at, point)
                journal.write(entry)
                self._note(at, point, len(entry))
            journal.flush()
            store.append(
                {key: json.loads(dumps(e)) for key, e in new.items()}, provisional=provisional
            )
            writer = csv.writer(table, lineterminator="\n")
            writer.writerows([_cell(entry[c]) for c in COLUMNS] for entry in new.values())
            table.flush()
            if counterexamples and time.monotonic() > self._rewrite:
                self._write_examples(journal)

    def close(self, outcome: Mapping[str, Any]) -> None:
        """Finish the files; `outcome` goes into run.json beside the settings."""
        with writing(self.directory):
            store, table, journal = self._open()
            table.close()
            if self.keys:
                store.arrange(list(self.keys.values()))
            self._rewrite_table(_lines_of(store.path))
            self._write_examples(journal)
            journal.close()
            (self.directory / JOURNAL).unlink(missing_ok=True)
            count = sum(1 for _ in _lines_of(store.path))
            store.describe(strict({**self.about, "rows": count, **outcome}))

    def release(self) -> None:
        """Let other runs write to the folder."""
        if self._store is not None:
            self._store.close()
        for stream in (self._table, self._journal):
            if stream is not None:
                stream.close()
        self.lock.release()

    def _open(self) -> tuple[Store, IO[str], IO[bytes]]:
        if self._store is None:
            for name in (*FILES, JOURNAL):
                (self.directory / name).unlink(missing_ok=True)
            self._store = Store(self.directory, self.settings, names=NAMES, lock=self.lock)
        if self._table is None or self._journal is None:
            # No number of rows: it would be wrong as soon as there is one more.
            self._store.describe(strict({**self.about, "state": "running"}))
            self._rewrite_table(_lines_of(self._store.path))
            self._begin_journal()
            self._table = (self.directory / ROWS_CSV).open("a", encoding="utf-8", newline="")
            self._journal = open(  # noqa: SIM115  (closed by `close` and `release`)
                open_regular(self.directory / JOURNAL, os.O_RDWR | os.O_APPEND), "ab+"
            )
        return self._store, self._table, self._journal

    def _begin_journal(self) -> None:
        """Write the counterexamples of an earlier run, whose own last entry may have been cut
        short."""
        with whole(self.directory / JOURNAL) as file:
            for key, point in self._found.items():
                entry = _entry(key, point)
                file.write(entry)
                self._note(key, point, len(entry))
        self._found.clear()

    def _note(self, key: Key, point: NDArray[np.floating], size: int) -> None:
        """Remember where a counterexample stands at the end of the journal."""
        self._end += size
        self._examples[key] = _Place(self._end - 8 * point.size, point.shape)

    def _go_on(self) -> None:
        """Open the files of an earlier run."""
        self._store = Store(self.directory, self.settings, names=NAMES, lock=self.lock)
        known = {(k if isinstance(k, tuple) else (k, -1)): k for k in self.keys}
        there = read_examples(self.directory / COUNTEREXAMPLES)
        there.update(_read_journal(self.directory / JOURNAL))
        for place, point in there.items():
            if place in known and self.keys[known[place]] in self._store:
                self._found[known[place]] = point
        self._labels = {int(row["index"]): row["label"] for row in self.done.values()}

    def _rewrite_table(self, records: Iterable[Mapping[str, Any]]) -> None:
        text = StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_cell(entry.get(c)) for c in COLUMNS] for entry in records)
        write_whole(self.directory / ROWS_CSV, text.getvalue().encode())

    def _write_examples(self, journal: IO[bytes]) -> None:
        """x, y and index: the file can be given to `frown certify` as data. And frame, where
        frames moved alone. Read from the journal one by one: all of them may be large."""
        began = time.monotonic()
        journal.flush()
        order = sorted(
            (key if isinstance(key, tuple) else (key, -1), key) for key in self._examples
        )
        index, frame = np.array([place for place, _ in order], dtype=np.int64).reshape(-1, 2).T
        labels = [self._labels[int(i)] for i in index]
        arrays = {"index": index}
        if None not in labels:  # else the question is about no labels
            arrays["y"] = np.array(labels, np.int64)
        if (frame >= 0).any():
            arrays["frame"] = frame
        places = [self._examples[key] for _, key in order]
        shape = places[0].shape if places else (0,)
        if any(place.shape != shape for place in places):
            raise ValueError("counterexamples of several shapes")
        with (
            whole(self.directory / COUNTEREXAMPLES) as file,
            ZipFile(file, "w") as archive,
        ):
            with archive.open("x.npy", "w", force_zip64=True) as stream:
                about = {"descr": "<f8", "fortran_order": False, "shape": (len(places), *shape)}
                np.lib.format.write_array_header_1_0(stream, about)
                for place in places:
                    stream.write(os.pread(journal.fileno(), place.size, place.start))
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as stream:
                    np.lib.format.write_array(stream, array, allow_pickle=False)
        now = time.monotonic()
        self._rewrite = now + max(_REWRITE_SECONDS, _REWRITE_SHARE * (now - began))


def save_results(result: Certification, folder: Path, *, force: bool = False) -> Path:
    """Write a result of Python as `frown certify --out` would; OutputError as there."""
    about = {
        "version": result.version,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {"file": result.model, "sha256": result.digest},
        "method": result.rows[0].method if result.rows else "",
        "settings": result.settings,
        "asked": len(result.rows),
    }
    origin = Origin(result.settings, result.version, result.digest)
    files = ResultFiles.prepare(folder, about, origin, force=force)
    try:
        files.append(result.rows, result.counterexamples)
        files.close({"state": "finished"})
    finally:
        files.release()
    return folder


def row_key(
    x: NDArray[np.float64], place: tuple[int, int], literals: Sequence[NDArray[Any]]
) -> str:
    """The key of a row in its store: its input, the input's index and the frame that moves alone
    (or -1), and coefficients, constants and clauses of what must hold."""
    numbers = np.concatenate([np.asarray(part, np.float64).ravel() for part in literals])
    index, frame = place
    return key_of(
        {
            "input": input_digest(x),
            "index": index,
            "frame": frame,
            "property": input_digest(numbers),
        }
    )


def key_of_row(row: Row, known: Mapping[Key, str]) -> Key:
    """The key of a row: its index or, of a frame that moved alone, a pair."""
    if row.index in known or not row.frames.isdigit():
        return row.index
    return row.index, int(row.frames)


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


_ENTRY = "<qqq"  # index, frame, and how many doubles follow


def _entry(key: Key, point: NDArray[np.floating]) -> bytes:
    """A counterexample in the journal."""
    index, frame = key if isinstance(key, tuple) else (key, -1)
    shape = np.array(point.shape, "<i8")
    values = np.ascontiguousarray(point, "<f8")
    head = struct.pack(_ENTRY, index, frame, len(shape))
    return head + shape.tobytes() + values.tobytes()


def read_examples(path: Path) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Counterexamples by index and frame (-1: none) of an array's file; none where there is no
    file, InvalidInput where it is damaged."""
    if not os.path.lexists(path):
        return {}
    try:
        with np.load(BytesIO(read_regular(path)), allow_pickle=False) as held:
            index = held["index"].tolist()
            frame = held["frame"].tolist() if "frame" in held else [-1] * len(index)
            return dict(zip(zip(index, frame, strict=True), held["x"], strict=True))
    except (ValueError, KeyError, BadZipFile):
        raise InvalidInput(
            f"{path} is damaged: delete it to have the rows without counterexamples, or write both "
            "again with frown certify --force"
        ) from None


def _read_journal(path: Path) -> Iterator[tuple[tuple[int, int], NDArray[np.float64]]]:
    """The entries of a journal, the last of which may have been cut short."""
    if not os.path.lexists(path):
        return
    content, at, head = read_regular(path), 0, struct.calcsize(_ENTRY)
    while at + head <= len(content):
        index, frame, axes = struct.unpack_from(_ENTRY, content, at)
        if not 0 <= axes <= 64 or at + head + 8 * axes > len(content):
            break
        shape = np.frombuffer(content, "<i8", axes, at + head)
        start, size = at + head + 8 * axes, int(np.prod(shape))
        if size < 0 or start + 8 * size > len(content):
            break
        yield (index, frame), np.frombuffer(content, "<f8", size, start).reshape(shape).copy()
        at = start + 8 * size


def _cell(value: Any) -> Any:
    return dumps(value) if isinstance(value, dict) else cell(value)


def writing(
    directory: Path, what: str = "results", option: str = "--out"
) -> AbstractContextManager[None]:
    """Turn the system's errors into one that names the directory."""
    return reported(f"write {what} to", directory, f"choose another {option}")
