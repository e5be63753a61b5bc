"""Measures cells: whatever is not on disk yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper import flat
from benchmarks.paper.cells import Cell, Method, Samples, choose, network_file
from benchmarks.paper.data import Dataset, load_data
from benchmarks.paper.invocation import invocation
from benchmarks.paper.networks import Network
from benchmarks.paper.results import Key, Result, Results, sample_key
from benchmarks.paper.tasks import Failure, JobWatch, run
from frown import __version__, api
from frown.certification.results import Row
from frown.errors import InvalidInput, ModelMismatch
from frown.read.model import Model


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of the measuring, and the folders that it needs."""

    nets: Path
    data: Path
    samples: int = 20
    lp_samples: int = 5  # the first of the samples
    time_limit: float | None = None  # seconds per sample, for LP
    workers: int = 1  # for LP
    threads: int = 1
    batch: int | None = None  # samples at a time, None: as memory allows
    seed: int = 0
    force: bool = False

    def count(self, method: Method) -> int:
        """The number of samples that a method is measured on."""
        return self.samples if method.batched else min(self.samples, self.lp_samples)


class Problems:
    """The networks with their samples, each read when first asked for."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._data: dict[str, Dataset] = {}
        self._samples: dict[Network, tuple[str, Samples]] = {}
        self._model: tuple[Network, Model] | None = None  # the last one only: some are large

    def require(self, networks: Iterable[Network]) -> None:
        """Raise InvalidInput, with the remedy, unless all of them have a file."""
        nets = self.setup.nets
        missing = [n.name for n in networks if network_file(nets, n) is None]
        if missing:
            where = ("--nets", str(nets), "--data", str(self.setup.data))
            again = invocation("train", *where, "--networks", ",".join(missing))
            raise InvalidInput(f"{nets} does not hold {', '.join(missing)}; to train: {again}")

    def model(self, network: Network) -> Model:
        if self._model is None or self._model[0] != network:
            self.require([network])
            path = network_file(self.setup.nets, network)
            assert path is not None
            self._model = (network, api.load(path))
        return self._model[1]

    def samples(self, network: Network) -> Samples:
        return self._problem(network)[1]

    def key(self, cell: Cell, n: int) -> Key:
        """The key of the n-th sample."""
        digest, samples = self._problem(cell.network)
        return sample_key(digest, cell, samples, n)

    def _problem(self, network: Network) -> tuple[str, Samples]:
        if network not in self._samples:
            if network.data not in self._data:
                self._data[network.data] = load_data(self.setup.data, network.data)
            model = self.model(network)
            chosen = choose(model, self._data[network.data], self.setup.samples, self.setup.seed)
            self._samples[network] = (model.digest, chosen)
        return self._samples[network]


@dataclass(frozen=True, slots=True)
class Task:
    """A cell and those of its samples that are still to be measured."""

    cell: Cell
    todo: tuple[int, ...]


def tasks_for(cells: Iterable[Cell], problems: Problems, results: Results) -> list[Task]:
    """Tasks that are left: networks in the order given, linear programs last."""
    tasks = [Task(cell, _todo(cell, problems, results)) for cell in cells]
    return sorted((t for t in tasks if t.todo), key=lambda t: not t.cell.method.batched)


def _todo(cell: Cell, problems: Problems, results: Results) -> tuple[int, ...]:
    setup = problems.setup
    every = range(setup.count(cell.method))
    if setup.force:
        return tuple(every)
    todo: list[int] = []
    for n in every:
        result = results.get(problems.key(cell, n))
        if result is None or not result.settles(setup.time_limit):
            todo.append(n)
        elif not result.complete:
            break  # this one was beyond the limit: so the cell is given up
    return tuple(todo)


Keep = Callable[[Sequence[Result]], None]


def measure(
    tasks: Sequence[Task], problems: Problems, results: Results, watch: JobWatch[Task, Result]
) -> list[Failure[Task]]:
    """Measure all tasks; every result is on disk as soon as it is known.

    A cell that cannot be measured is left out and returned, and the others go on.
    """

    def work(task: Task, keep: Keep) -> None:
        if task.cell.method.batched:
            _together(task, problems, keep)
        else:
            _one_by_one(task, problems, keep)

    return run(tasks, work, results.append, watch)


def _together(task: Task, problems: Problems, keep: Keep) -> None:
    samples, todo = problems.samples(task.cell.network), np.array(task.todo)
    at = {int(samples.index[n]): n for n in task.todo}
    began = process_time()

    def on_rows(rows: list[Row]) -> None:
        nonlocal began
        # An interrupt hands over rows that it left unfinished.
        done = [row for row in rows if row.complete]
        cpu = (process_time() - began) / len(rows)
        if done:
            keep([_result(task.cell, problems, at[r.index], r, cpu, len(rows)) for r in done])
        began = process_time()

    _certify(task.cell, problems, todo, batch=problems.setup.batch, on_rows=on_rows)


def _one_by_one(task: Task, problems: Problems, keep: Keep) -> None:
    setup = problems.setup
    for n in task.todo:
        began = process_time()
        (row,) = _certify(
            task.cell,
            problems,
            np.array([n]),
            time_limit=setup.time_limit,
            workers=setup.workers,
        ).rows
        cpu = process_time() - began if setup.workers == 1 else None
        keep([_result(task.cell, problems, n, row, cpu, 1)])
        if not row.complete:
            break  # the others would take as long


def _certify(cell: Cell, problems: Problems, chosen: NDArray[np.int64], **more: Any) -> Any:
    samples = problems.samples(cell.network)
    options: dict[str, Any] = dict(cell.method.options)
    return flat.certify(
        problems.model(cell.network),
        samples.x[chosen],
        samples.label[chosen],
        target=samples.target[chosen],
        indices=samples.index[chosen],
        norm=cell.norm,
        attack=False,
        level="estimate",  # as the published figures are
        **options,
        **more,
    )


def _result(
    cell: Cell, problems: Problems, n: int, row: Row, cpu: float | None, batch: int
) -> Result:
    setup = problems.setup
    if row.status == "mismatch":
        raise ModelMismatch(f"{cell.network.name}, input {row.index}: {row.remark}")
    return Result(
        key=problems.key(cell, n),
        network=cell.network.name,
        column=cell.method.name,
        sample=row.index,
        radius=row.radius,
        status=row.status,
        complete=row.complete,
        seconds=row.seconds,
        cpu=cpu,
        limit=None if cell.method.batched else setup.time_limit,
        batch=batch,
        threads=setup.threads,
        workers=1 if cell.method.batched else setup.workers,
        version=__version__,
    )
