"""How far the measuring has come, and how long it may still take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from statistics import mean
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from frown.bench.cells import Cell
from frown.bench.networks import FEATURES
from frown.bench.runner import Task
from frown.bench.store import Result

# Seconds per unit of `cost` before anything is known of a method.
_FIRST_GUESS = {"crown": 4e-9, "area": 4e-9, "frown": 3e-8, "lp": 1.5e-5}


def cost(cell: Cell) -> float:
    """How the work for one sample grows with the network, in arbitrary units.

    Layer k of m has n neurons; a row goes back through k layers of n² weights each and
    the first layer of n times the inputs: m² n³ / 2 + m n² d. Small networks cost as much
    as ones of some 50 neurons. A linear program is solved for each of m n neurons, and
    grows with all neurons before it.
    """
    m, n, d = cell.network.layers, cell.network.width, FEATURES[cell.network.data]
    if cell.method.name == "lp":
        return m * n * (m * n) * sqrt(m * n + d)
    wide = n + 50
    return m * m * wide**3 / 2 + m * wide * wide * d


class Pace:
    """Seconds left, from the seconds that each method took so far."""

    def __init__(self, tasks: Sequence[Task], limit: float | None = None) -> None:
        self._left = {task.cell: len(task.todo) for task in tasks}
        self._limit = limit
        self._spent: dict[str, tuple[float, float]] = {}  # seconds, cost

    def measured(self, cell: Cell, count: int, seconds: float) -> None:
        """`count` samples of a cell took `seconds` in all."""
        spent, done = self._spent.get(cell.method.name, (0.0, 0.0))
        self._spent[cell.method.name] = (spent + seconds, done + count * cost(cell))
        self._left[cell] = max(0, self._left.get(cell, 0) - count)

    def finish(self, cell: Cell) -> None:
        """Nothing more of this cell."""
        self._left[cell] = 0

    def seconds_left(self) -> float:
        return sum(self._seconds(cell, count) for cell, count in self._left.items())

    def _seconds(self, cell: Cell, count: int) -> float:
        name = cell.method.name
        spent, done = self._spent.get(name, (_FIRST_GUESS[name], 1.0))
        each = spent / done * cost(cell)
        if name == "lp" and self._limit is not None and each > self._limit:
            return self._limit  # the cell is given up after its first sample
        return count * each


def duration(seconds: float) -> str:
    """Roughly: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"


class _Teller:
    """Counts, and what both ways of telling share."""

    def __init__(self, err: Console, limit: float | None) -> None:
        self.err, self.limit = err, limit
        self.pace = Pace((), limit)
        self.total = self.done = 0
        self.results: list[Result] = []  # of the cell under way

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to undo."""

    def begin(self, tasks: Sequence[Task]) -> None:
        self.pace = Pace(tasks, self.limit)
        self.total = sum(len(task.todo) for task in tasks)

    def start(self, task: Task) -> None:
        self.results = []

    def measured(self, task: Task, results: Sequence[Result]) -> None:
        self.results += results
        self.done += len(results)
        self.pace.measured(task.cell, len(results), sum(r.seconds for r in results))

    def finish(self, task: Task) -> None:
        self.done += len(task.todo) - len(self.results)  # a cell given up counts as done
        self.pace.finish(task.cell)

    def left(self) -> str:
        return f"about {duration(self.pace.seconds_left())} left"


class Lines(_Teller):
    """A line per cell, for files and pipes."""

    def finish(self, task: Task) -> None:
        super().finish(task)
        complete = [r for r in self.results if r.complete]
        if complete:
            counted = "1 sample" if len(complete) == 1 else f"{len(complete)} samples"
            radius, each = mean(r.radius for r in complete), mean(r.seconds for r in complete)
            what = f"{counted}, mean radius {radius:.4g}, {each:.3g} s each"
        else:
            what = "not measured"
        if any(not r.complete for r in self.results):
            what += ", given up at the time limit"
        left = f"; {self.left()}" if self.done < self.total else ""
        self.err.print(
            f"[{self.done}/{self.total}] {task.cell}: {what}{left}", markup=False, soft_wrap=True
        )


class Bar(_Teller):
    """A bar on a terminal."""

    def __init__(self, err: Console, limit: float | None) -> None:
        super().__init__(err, limit)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=err,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("reading networks", total=None, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, tasks: Sequence[Task]) -> None:
        super().begin(tasks)
        self._bar.update(self._task, total=self.total)

    def start(self, task: Task) -> None:
        super().start(task)
        self._show(task)

    def measured(self, task: Task, results: Sequence[Result]) -> None:
        super().measured(task, results)
        self._show(task)

    def finish(self, task: Task) -> None:
        super().finish(task)
        self._show(task)

    def _show(self, task: Task) -> None:
        self._bar.update(
            self._task, completed=self.done, description=str(task.cell), left=self.left()
        )


def teller(err: Console, limit: float | None) -> Lines | Bar:
    """A bar on a terminal, lines elsewhere."""
    return Bar(err, limit) if err.is_terminal else Lines(err, limit)


# -- training and the barrier's images --------------------------------------------------


@contextmanager
def counting(err: Console) -> Iterator[Callable[[Any], None]]:
    """Tells how many images are through: a changing line on a terminal, else a line at the end."""
    if not err.is_terminal:

        def line(event: Any) -> None:
            if event.done == event.total:
                err.print(
                    f"{event.network}, {event.method}: {event.total} images",
                    markup=False,
                    soft_wrap=True,
                )

        yield line
        return
    with err.status("reading networks") as status:
        yield lambda e: status.update(f"{e.network}, {e.method}: {e.done} of {e.total} images")


@contextmanager
def training(err: Console, count: int) -> Iterator[Callable[[Any], None]]:
    """Tells of every epoch: a bar on a terminal, elsewhere a line per network."""
    if not err.is_terminal:

        def line(event: Any) -> None:
            if event.epoch == event.epochs:
                err.print(
                    f"{event.network.name}: {event.epochs} epochs in {event.seconds:.0f} s, "
                    f"{100 * event.accuracy:.2f}% of the test samples right",
                    markup=False,
                    soft_wrap=True,
                )

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs {task.fields[right]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(f"{count} networks", total=None, right="")

        def show(event: Any) -> None:
            bar.update(
                task,
                description=event.network.name,
                total=event.epochs,
                completed=event.epoch,
                right=f"{100 * event.accuracy:.1f}% right",
            )

        yield show
