"""Rows on disk by key: kept as soon as they are known, gone on with after any end.

A store is a folder with

    manifest.json   the format, the job's settings, and what else is worth knowing of it
    rows.jsonl      one row per line, the object's first member its key
    lock            who is writing

**Keys** are digests of all that a row depends on (`key_of`): the model, the input, the question,
the settings. A row is looked up by its key, so a job that was interrupted asks for its keys again
and does what is missing. A later row of a key replaces an earlier one; the file keeps both.

**Ends.** When `append` returns, the system has the rows: an interrupt or a kill loses none. The
disk is told to write them at most every `sync` seconds, and by `flush` and `close`: a power failure
loses the rows since, which are then done again. A line that was cut short (by a kill in the
middle of a write) is dropped when the store is opened next.

**Settings** that every row shares stand in the manifest, and a store is refused, naming what
differs, to a job with other ones. They need not repeat what the keys hold.

**One writer**: a second process is refused by naming the first. Readers (`read`) need no lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from frown.errors import InvalidInput, OutputError
from frown.jobs.folder import Folder, Lock

FORMAT = 1
MANIFEST, ROWS = "manifest.json", "rows.jsonl"
KEY = "key"

Row = Mapping[str, Any]  # values that JSON has; numbers are finite


def key_of(parts: Mapping[str, Any]) -> str:
    """A digest of parts by name: text, whole numbers, finite numbers, lists and mappings of them.

    The order of names does not matter. Raises TypeError or ValueError for anything else, NaN and
    infinity among it: two jobs must not agree because something was written as text.
    """
    return hashlib.sha256(_json(parts, sort=True)).hexdigest()


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a store, at the moment it was read."""

    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    rows: Mapping[str, Row]  # by key, without it


def read(folder: Path) -> Stored | None:
    """The rows of a store, perhaps while another process adds to it; None if there is none.

    Raises InvalidInput where the folder holds something else.
    """
    if not folder.is_dir():
        return None
    inside = Folder(folder)
    manifest = _manifest(inside)
    if manifest is None:
        return None
    rows, _ = _rows(inside)
    return Stored(manifest["settings"], manifest["about"], rows)


class Store(Mapping[str, Row]):
    """The rows of a job, by key; a mapping that grows by `append` alone.

    Use it as a context manager, so that the disk has everything at the end and the folder is free
    again. It keeps all rows in memory: for some millions of rows it is the wrong thing.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, sync: float = 1.0) -> None:
        """Open the store in a folder, or begin one.

        Args:
            folder: made if it is not there.
            settings: what all rows share, JSON values by name.
            sync: seconds between commands that the disk write what it was given.

        Raises:
            InUse: another process has the folder; the message names it.
            InvalidInput: the folder holds a job with other settings, which are named, or a file
                that no store has written.
            OutputError: the folder cannot be written.
        """
        self.folder, self.path = folder, folder / ROWS
        self._sync, self._synced = sync, time.monotonic()
        self._fd = -1
        self._inside = Folder(folder, create=True)
        self._lock = Lock(self._inside)
        try:
            # Through JSON and back, so that a tuple is the list that it was stored as.
            self._settings: Mapping[str, Any] = json.loads(_json(settings))
            self._about: Mapping[str, Any] = {}
            manifest = _manifest(self._inside)
            if manifest is None:
                self.describe({})
            else:
                _same(folder, manifest["settings"], self._settings)
                self._about = manifest["about"]
            self._rows, self._size = _rows(self._inside)
            self._fd = self._inside.open(ROWS, os.O_RDWR | os.O_CREAT)
            self._inside.sync()
            self._cut()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, key: str) -> Row:
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def about(self) -> Mapping[str, Any]:
        """Words of the manifest about the job, beside its settings."""
        return self._about

    def describe(self, about: Mapping[str, Any]) -> None:
        """Replace what the manifest says beside the settings (versions, commands, a state)."""
        manifest = {"format": FORMAT, "settings": self._settings, "about": about}
        self._inside.replace(MANIFEST, _json(manifest, indent=2) + b"\n")
        self._about = about

    def append(self, rows: Mapping[str, Row]) -> None:
        """Keep rows by key. All of them or none, unless the process is killed meanwhile.

        Raises OutputError where they cannot be written (a full disk), ValueError or TypeError for
        what JSON cannot hold, and for a row that names a member `key` itself.
        """
        lines = b"".join(_line(key, row) for key, row in rows.items())
        try:
            self._write(lines)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None
        self._rows |= dict(map(_row, lines.splitlines()))
        if time.monotonic() - self._synced >= self._sync:
            self.flush()

    def flush(self) -> None:
        """Everything is on the disk when this returns."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None
        self._synced = time.monotonic()

    def close(self) -> None:
        """Flush, and let others write; nothing happens the second time."""
        try:
            if self._fd >= 0:
                self.flush()
        finally:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def _write(self, lines: bytes) -> None:
        if self._fd < 0:
            raise ValueError(f"the store in {self.folder} is closed")
        try:
            done = 0
            while done < len(lines):
                done += os.pwrite(self._fd, lines[done:], self._size + done)
        except BaseException:  # an interrupt, too, may come between two writes
            with suppress(OSError):  # then the next to open the store cuts
                self._cut()
            raise
        self._size += len(lines)

    def _cut(self) -> None:
        """Drop what stands after the last whole line."""
        os.ftruncate(self._fd, self._size)


# -- the files ---------------------------------------------------------------------------


def _json(value: object, *, sort: bool = False, indent: int | None = None) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=sort, indent=indent).encode()


def _line(key: str, row: Row) -> bytes:
    if KEY in row:
        raise ValueError(f"a row must not name a member {KEY!r}, which is the store's")
    return _json({KEY: key, **row}) + b"\n"


def _manifest(folder: Folder) -> dict[str, Any] | None:
    """The manifest, or None in a folder without a store."""
    path = folder.path / MANIFEST
    if not folder.exists(MANIFEST):
        if folder.exists(ROWS):
            raise InvalidInput(
                f"{folder.path} holds {ROWS} but no {MANIFEST}: not a store of frown; "
                "choose another folder"
            )
        return None
    try:
        manifest = _parsed(folder.read(MANIFEST))
    except ValueError:
        manifest = None
    match manifest:
        case {"format": int(found)} if found != FORMAT:
            raise InvalidInput(
                f"{path} has format {found}, this version of frown reads {FORMAT}; "
                "choose another folder"
            )
        case {"format": int(), "settings": dict(), "about": dict()}:
            return dict(manifest)
    raise InvalidInput(f"{path} is no manifest of a store; choose another folder")


def _rows(folder: Folder) -> tuple[dict[str, Row], int]:
    """The rows, and where the last whole line ends."""
    if not folder.exists(ROWS):
        return {}, 0
    content = folder.read(ROWS)
    rows: dict[str, Row] = {}
    # A power failure may leave a file longer than what reached it: zeros.
    end = content.rfind(b"\n", 0, len(content.rstrip(b"\0"))) + 1
    for number, line in enumerate(content[:end].split(b"\n")[:-1], 1):
        try:
            key, row = _row(line)
        except ValueError:
            raise InvalidInput(
                f"{folder.path / ROWS}, line {number}: not a row; delete the line to have it done "
                "again, or choose another folder"
            ) from None
        rows[key] = row
    return rows, end


def _row(line: bytes) -> tuple[str, Row]:
    """Key and row of a line; ValueError where it is none."""
    row = _parsed(line)
    if not isinstance(row, dict) or not isinstance(key := row.pop(KEY, None), str):
        raise ValueError("not a row")
    return key, row


def _parsed(content: bytes) -> Any:
    """Strict JSON; ValueError for anything else."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(content, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _same(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise InvalidInput, naming every setting that differs, unless both are the same."""
    before, now = dict(_flat(there)), dict(_flat(here))
    names = [name for name in before | now if before.get(name, ...) != now.get(name, ...)]
    if names:
        lines = [f"  {n}: {_shown(before, n)} there, {_shown(now, n)} here" for n in sorted(names)]
        raise InvalidInput(
            f"{folder} holds a job with other settings:\n"
            + "\n".join(lines)
            + "\ngo on with the same settings, or choose another folder"
        )


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings inside settings by dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "not given"
