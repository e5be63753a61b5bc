"""How far the measuring has come, on a terminal or in lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import mean
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from frown.bench.cells import Cell
from frown.bench.pace import Pace, duration
from frown.bench.runner import Task
from frown.bench.store import Result
from frown.plain import plain


class _Teller:
    """Counts, and what both ways of telling share."""

    def __init__(
        self, err: Console, limit: float | None, known: Mapping[Cell, float] | None = None
    ) -> None:
        self.err, self.limit, self.known = err, limit, known
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
        self.pace = Pace(tasks, self.limit, self.known)
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
            plain(f"[{self.done}/{self.total}] {task.cell}: {what}{left}"),
            markup=False,
            soft_wrap=True,
        )


class Bar(_Teller):
    """A bar on a terminal."""

    def __init__(
        self, err: Console, limit: float | None, known: Mapping[Cell, float] | None = None
    ) -> None:
        super().__init__(err, limit, known)
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


def teller(
    err: Console, limit: float | None, known: Mapping[Cell, float] | None = None
) -> Lines | Bar:
    """A bar on a terminal, lines elsewhere; `known` are seconds per sample of other cells."""
    return Bar(err, limit, known) if err.is_terminal else Lines(err, limit, known)


# -- training and the barrier's images --------------------------------------------------


@contextmanager
def counting(err: Console) -> Iterator[Callable[[Any], None]]:
    """Tells how many images are through: a changing line on a terminal, else a line at the end."""
    if not err.is_terminal:

        def line(event: Any) -> None:
            if event.done == event.total:
                err.print(
                    plain(f"{event.network}, {event.method}: {event.total} images"),
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
