"""Results on disk: one line of JSON per sample and method, appended as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.paper.cells import Cell, Option, Samples
from frown.errors import InvalidInput, OutputError
from frown.run.files import dumps, norm_name

FILE = "results.jsonl"


@dataclass(frozen=True, slots=True)
class Key:
    """All that a result depends on."""

    digest: str  # SHA-256 of the network's file
    norm: float
    options: tuple[tuple[str, Option], ...]  # of the method, sorted
    mark: str  # SHA-256 of the input
    label: int
    target: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a method proved of one sample, and how long it took."""

    key: Key
    network: str
    column: str  # crown, area, frown or lp
    sample: int  # index in the test set
    radius: float
    status: str
    complete: bool  # False: given up after `limit` seconds
    seconds: float  # of the whole batch, divided by its samples
    cpu: float | None  # the same of this process's CPU time; None: other processes helped
    limit: float | None
    batch: int
    threads: int
    workers: int
    version: str

    def settles(self, limit: float | None) -> bool:
        """Whether a run with this time limit need not try again."""
        if self.complete:
            return True
        return limit is not None and self.limit is not None and self.limit >= limit


def key_of(digest: str, cell: Cell, samples: Samples, n: int) -> Key:
    """Of the n-th of the samples."""
    return Key(
        digest,
        cell.norm,
        tuple(sorted(cell.method.options)),
        samples.marks[n],
        int(samples.label[n]),
        int(samples.target[n]),
    )


class Store:
    """The results in a folder; a later one of the same key replaces an earlier one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._results: dict[Key, Result] = {}
        if self.path.exists():
            self._results = {r.key: r for r in _read(self.path)}

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def get(self, key: Key) -> Result | None:
        return self._results.get(key)

    def append(self, results: Iterable[Result]) -> None:
        """Keep these; they are on disk when this returns."""
        new = list(results)
        lines = "".join(dumps(_record(r)) + "\n" for r in new)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as stream:
                # A line that an interrupt cut short must not swallow the next one.
                if stream.tell() and not _ends_line(stream):
                    lines = "\n" + lines
                stream.write(lines.encode())
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None
        self._results |= {r.key: r for r in new}


def _ends_line(stream: Any) -> bool:
    stream.seek(-1, 2)
    return bool(stream.read(1) == b"\n")


def _record(result: Result) -> dict[str, Any]:
    values = asdict(result)
    key: dict[str, Any] = values.pop("key")
    key["norm"] = norm_name(result.key.norm)
    key["options"] = dict(result.key.options)
    return key | values


def _read(path: Path) -> Iterator[Result]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _result(json.loads(line))
        except json.JSONDecodeError:
            # Cut short by an interrupt: such a line starts a record and does not end it.
            if not line.endswith("}"):
                continue
            raise _unreadable(path, number) from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _unreadable(path, number) from None


def _unreadable(path: Path, number: int) -> InvalidInput:
    return InvalidInput(
        f"{path}, line {number}: not a result of `make paper`; "
        "delete the line, or choose another --out"
    )


def _result(record: dict[str, Any]) -> Result:
    key = Key(
        record.pop("digest"),
        float(record.pop("norm")),
        tuple(sorted(record.pop("options").items())),
        record.pop("mark"),
        record.pop("label"),
        record.pop("target"),
    )
    radius = record.pop("radius")
    return Result(key=key, radius=inf if radius is None else float(radius), **record)
