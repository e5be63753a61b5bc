"""Results of one sample by one method: what they depend on, and how they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf, isinf
from pathlib import Path
from typing import Any

from benchmarks.paper.cells import Cell, Option, Samples
from frown.errors import InvalidInput
from frown.jobs.files import json_norm
from frown.jobs.store import ROWS, Row, Store, key_of, read

# A result's key holds all that it depends on, so one store takes those of all tables.
SETTINGS = {"job": "the paper's experiments"}


@dataclass(frozen=True, slots=True)
class Key:
    """Everything that a result depends on."""

    digest: str  # SHA-256 of the network's file
    norm: float
    options: tuple[tuple[str, Option], ...]  # of the method, sorted
    mark: str  # SHA-256 of the input
    label: int
    target: int

    @property
    def record(self) -> dict[str, Any]:
        """The parts by name, as JSON has them."""
        return asdict(self) | {"norm": json_norm(self.norm), "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Result:
    """The radius that a method proved for one sample, and the time it took."""

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


def sample_key(digest: str, cell: Cell, samples: Samples, n: int) -> Key:
    """The key of the n-th of the samples."""
    return Key(
        digest,
        cell.norm,
        tuple(sorted(cell.method.options)),
        samples.marks[n],
        int(samples.label[n]),
        int(samples.target[n]),
    )


class Results:
    """The results in a folder; a later one of the same key replaces an earlier one."""

    def __init__(self, path: Path, rows: Mapping[str, Row], store: Store | None = None) -> None:
        self.path = path
        self._results = {key: _result(path, key, row) for key, row in rows.items()}
        self._store = store

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: Key) -> Result | None:
        return self._results.get(key_of(key.record))

    def append(self, results: Sequence[Result]) -> None:
        """Keep these; they are on disk when this returns. Only while the store is open."""
        assert self._store is not None
        new = {key_of(r.key.record): r for r in results}
        self._store.append({key: _row(r) for key, r in new.items()})
        self._results |= new


def stored_results(folder: Path) -> Results:
    """The results that a folder holds, to be looked at."""
    found = read(folder)
    return Results(folder / ROWS, {} if found is None else found.rows)


@contextmanager
def open_results(folder: Path) -> Iterator[Results]:
    """The results that a folder holds, to be added to; nobody else may meanwhile."""
    with Store(folder, SETTINGS) as store:
        yield Results(store.path, store, store)


def _row(result: Result) -> Row:
    values = asdict(result) | {"radius": None if isinf(result.radius) else result.radius}
    del values["key"]
    return result.key.record | values


def _result(path: Path, key: str, row: Row) -> Result:
    values = dict(row)
    try:
        found = Key(
            values.pop("digest"),
            float(values.pop("norm")),
            tuple(sorted(values.pop("options").items())),
            values.pop("mark"),
            values.pop("label"),
            values.pop("target"),
        )
        radius = values.pop("radius")
        return Result(key=found, radius=inf if radius is None else float(radius), **values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInput(
            f"{path}: row {key} is no result of the paper's experiments; choose another --out"
        ) from None
