"""Rows on disk by key: kept as soon as they are known, gone on with after any end.

A store is a folder with (under these names, or those that `Names` gives)

    manifest.json   the format, the job's settings, and what else is worth knowing of it
    rows.jsonl      one row per line, the object's first member its key

and, while somebody writes, a lock that names them.

**Keys** are digests of all that a row depends on (`key_of`): the model, the input, the question,
the settings. A row is looked up by its key, so a job that was interrupted asks for its keys again
and does what is missing. A later row of a key replaces an earlier one; the file keeps both until
it is arranged.

**Provisional** rows are answers that a run gave early: an interrupt ended them, or a worker died of
them. Readers find them; the next one to open the store drops them, so that they are done again.

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
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from frown.certification.folder import (
    RESULTS_LOCK,
    Lock,
    open_regular,
    read_regular,
    reported,
    sync_names,
    write_whole,
)
from frown.errors import InvalidInput

FORMAT = 1
MANIFEST, ROWS = "manifest.json", "rows.jsonl"
KEY, PROVISIONAL = "key", "provisional"
_OWN = ("format", "settings")  # of a manifest

Row = Mapping[str, Any]  # values that JSON has; numbers are finite


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a store's files."""

    manifest: str = MANIFEST
    rows: str = ROWS


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


def read(folder: Path, names: Names = Names()) -> Stored | None:  # noqa: B008  (a frozen value)
    """The rows of a store, perhaps while another process adds to it; None if there is none.

    Raises InvalidInput where the folder holds something else.
    """
    if not folder.is_dir():
        return None
    manifest = _manifest(folder, names)
    if manifest is None:
        return None
    content, found = _lines(folder, names)
    rows = {line.key: line.row(content) for line in found if not line.provisional}
    return Stored(manifest["settings"], _about(manifest), rows)


class Store(Mapping[str, Row]):
    """The rows of a job, by key; a mapping that grows by `append` alone.

    Use it as a context manager, so that the disk has everything at the end and the folder is free
    again. It keeps keys and places in memory, and reads rows from the file.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        names: Names = Names(),  # noqa: B008  (a frozen value)
        sync: float = 1.0,
        lock: Lock | None = None,
    ) -> None:
        """Open the store in a folder, or begin one.

        Args:
            folder: made if it is not there.
            settings: what all rows share, JSON values by name.
            names: of its two files.
            sync: seconds between commands that the disk write what it was given.
            lock: of the folder, where the caller has it; `close` releases it.

        Raises:
            InUse: another process has the folder; the message names it.
            InvalidInput: the folder holds a job with other settings, which are named, or a file
                that no store has written.
            OutputError: the folder cannot be written.
        """
        self.folder, self.names, self.path = folder, names, folder / names.rows
        self._sync, self._synced = sync, time.monotonic()
        self._fd = -1
        with reported("write", folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock or Lock.take(folder, RESULTS_LOCK, "results")
        try:
            # Through JSON and back, so that a tuple is the list that it was stored as.
            self._settings: Mapping[str, Any] = json.loads(_json(settings))
            self._about: Mapping[str, Any] = {}
            manifest = _manifest(folder, names)
            if manifest is None:
                self.describe({})
            else:
                _same(folder, manifest["settings"], self._settings)
                self._about = _about(manifest)
            _, found = _lines(folder, names)
            self._size = found[-1].end if found else 0
            self._places = {line.key: line for line in found if not line.provisional}
            self._early: dict[str, _Line] = {}
            self._fd = open_regular(self.path, os.O_RDWR | os.O_CREAT)
            sync_names(folder)
            self._cut()
            if any(line.provisional for line in found):
                self.arrange(list(self._places))
        except BaseException:
            self.close()
            raise

    def __getitem__(self, key: str) -> Row:
        return self._read(self._places[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    @property
    def about(self) -> Mapping[str, Any]:
        """Words of the manifest about the job, beside its settings."""
        return self._about

    def describe(self, about: Mapping[str, Any]) -> None:
        """Replace all of the manifest but the settings (versions, commands, a state)."""
        manifest = {"format": FORMAT, **about, "settings": self._settings}
        path = self.folder / self.names.manifest
        require_free(path)
        with reported("write", path):
            write_whole(path, _json(manifest, indent=2) + b"\n")
        sync_names(self.folder)
        self._about = about

    def append(self, rows: Mapping[str, Row], *, provisional: bool = False) -> None:
        """Keep rows by key. All of them or none, unless the process is killed meanwhile.

        Provisional ones are to be done again: they are in the file, and not in the mapping.

        Raises OutputError where they cannot be written (a full disk), ValueError or TypeError for
        what JSON cannot hold, and for a row that names a member `key` itself.
        """
        lines = [(key, _line(key, row, provisional)) for key, row in rows.items()]
        places, end = {}, self._size
        for key, line in lines:
            places[key] = _Line(key, end, end + len(line), provisional)
            end += len(line)
        with reported("write", self.path):
            self._write(b"".join(line for _, line in lines))
        if provisional:
            self._early |= places
        else:
            self._places |= places
        if time.monotonic() - self._synced >= self._sync:
            self.flush()

    def arrange(self, keys: Sequence[str]) -> None:
        """Write the file anew: the last row of each of these keys, in this order, and no other.

        All or nothing, also if the power fails.
        """
        content = read_regular(self.path)
        places, early = dict[str, _Line](), dict[str, _Line]()
        parts, end = list[bytes](), 0
        for key in keys:
            old = self._places.get(key) or self._early.get(key)
            if old is not None:
                parts.append(content[old.start : old.end])
                moved = _Line(key, end, end + old.end - old.start, old.provisional)
                (early if old.provisional else places)[key] = moved
                end = moved.end
        with reported("write", self.path):
            write_whole(self.path, b"".join(parts))
        fresh = open_regular(self.path, os.O_RDWR)
        os.close(self._fd)
        self._fd, self._size, self._places, self._early = fresh, end, places, early
        sync_names(self.folder)

    def flush(self) -> None:
        """Everything is on the disk when this returns."""
        with reported("write", self.path):
            os.fsync(self._fd)
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
        if (lock := getattr(self, "_lock", None)) is not None:
            lock.release()

    def _read(self, line: _Line) -> Row:
        if self._fd < 0:  # closed: the file is still there
            return line.row(read_regular(self.path))
        content = os.pread(self._fd, line.end - line.start, line.start)
        return _row(content.removesuffix(b"\n"))[1]

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


@dataclass(frozen=True, slots=True)
class _Line:
    """A row's place in the file."""

    key: str
    start: int
    end: int
    provisional: bool

    def row(self, content: bytes) -> Row:
        """The row in the content of the file."""
        return _row(content[self.start : self.end].removesuffix(b"\n"))[1]


# -- the files ---------------------------------------------------------------------------


def _json(value: object, *, sort: bool = False, indent: int | None = None) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=sort, indent=indent).encode()


def _line(key: str, row: Row, provisional: bool) -> bytes:
    for own in (KEY, PROVISIONAL):
        if own in row:
            raise ValueError(f"a row must not name a member {own!r}, which is the store's")
    return _json({KEY: key, **({PROVISIONAL: True} if provisional else {}), **row}) + b"\n"


def _about(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name not in _OWN}


def require_free(path: Path) -> None:
    """Raise OutputError where a link or anything but a regular file is in a file's place."""
    if os.path.lexists(path):
        os.close(open_regular(path, os.O_RDONLY))


def _manifest(folder: Path, names: Names) -> dict[str, Any] | None:
    """The manifest, or None in a folder without a store."""
    path = folder / names.manifest
    if not os.path.lexists(path):
        if os.path.lexists(folder / names.rows):
            raise InvalidInput(
                f"{folder} holds {names.rows} but no {names.manifest}: not a store of frown; "
                "choose another folder"
            )
        return None
    try:
        manifest = _parsed(read_regular(path))
    except ValueError:
        manifest = None
    match manifest:
        case {"format": int(found)} if found != FORMAT:
            raise InvalidInput(
                f"{path} has format {found}, this version of frown reads {FORMAT}; "
                "choose another folder"
            )
        case {"format": int(), "settings": dict()}:
            return dict(manifest)
    raise InvalidInput(f"{path} is no manifest of a store; choose another folder")


def _lines(folder: Path, names: Names) -> tuple[bytes, list[_Line]]:
    """The content of the rows' file, and its whole lines."""
    path = folder / names.rows
    if not os.path.lexists(path):
        return b"", []
    content = read_regular(path)
    lines: list[_Line] = []
    # A power failure may leave a file longer than what reached it: zeros.
    end, start = content.rfind(b"\n", 0, len(content.rstrip(b"\0"))) + 1, 0
    while start < end:
        stop = content.index(b"\n", start)
        try:
            key, _, provisional = _row(content[start:stop])
        except ValueError:
            raise InvalidInput(
                f"{path}, line {len(lines) + 1}: not a row; delete the line to have it done "
                "again, or choose another folder"
            ) from None
        lines.append(_Line(key, start, stop + 1, provisional))
        start = stop + 1
    return content, lines


def _row(line: bytes) -> tuple[str, Row, bool]:
    """Key and row of a line, and whether it is provisional; ValueError where it is none."""
    row = _parsed(line)
    if not isinstance(row, dict) or not isinstance(key := row.pop(KEY, None), str):
        raise ValueError("not a row")
    return key, row, bool(row.pop(PROVISIONAL, False))


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
    # The region in full follows from the others, unless a file that they name has changed.
    names = [name for name in names if not name.startswith("statement.")] or names
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
    """A setting as a message has it: of digests the beginning."""
    value = settings.get(name)
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        value = f"{value[:12]}..."
    return json.dumps(value) if name in settings else "not given"
