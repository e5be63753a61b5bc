"""How far the work has come: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.paper.tasks import JobWatch

if TYPE_CHECKING:
    from benchmarks.paper.barrier import BarrierEvent
    from benchmarks.paper.results import Result
    from benchmarks.paper.runner import Task
    from benchmarks.paper.train import TrainEvent

_MEMORY = 3600.0  # seconds of work that the time left is estimated from


class Bar(Progress):
    """A bar with the time left on a terminal; elsewhere lines, for files and pipes."""

    def __init__(self, err: Console) -> None:
        self._err = err
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            expand=True,
            speed_estimate_period=_MEMORY,
            disable=not err.is_terminal,
        )
        self._task = self.add_task("reading networks", total=None)
        self._done = 0

    def show(self, text: str, done: int, total: int) -> None:
        """Move the bar, which begins anew where `done` does."""
        if done < self._done:
            self.reset(self._task)
        self._done = done
        self.update(self._task, description=text, completed=done, total=total)

    def line(self, text: str) -> None:
        """Print a line where there is no bar."""
        if not self._err.is_terminal:
            self._err.print(text, markup=False, soft_wrap=True)

    def image(self, event: BarrierEvent) -> None:
        """Tell of an image that is through."""
        text = f"{event.network}, {event.method}"
        self.show(text, event.done, event.total)
        if event.done == event.total:
            self.line(f"{text}: {event.total} images")

    def epoch(self, event: TrainEvent) -> None:
        """Tell of an epoch of training."""
        right = 100 * event.accuracy
        self.show(f"{event.network.name}, {right:.1f}% right", event.epoch, event.epochs)
        if event.epoch == event.epochs:
            self.line(
                f"{event.network.name}: {event.epochs} epochs in {event.seconds:.0f} s, "
                f"{right:.2f}% of the test samples right"
            )


class CellWatch(JobWatch["Task", "Result"]):
    """Tells a bar of cells: every sample moves it, every cell is a line."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._began = bar, 0.0
        self._total = self._done = 0
        self._results: list[Result] = []  # of the cell under way

    def begin(self, tasks: Sequence[Task]) -> None:
        self._total = sum(len(task.todo) for task in tasks)
        self._began = time.monotonic()

    def start(self, task: Task) -> None:
        self._results = []
        self._bar.show(str(task.cell), self._done, self._total)

    def kept(self, task: Task, rows: Sequence[Result]) -> None:
        self._results += rows
        self._done += len(rows)
        self._bar.show(str(task.cell), self._done, self._total)

    def finish(self, task: Task) -> None:
        self._done += len(task.todo) - len(self._results)  # a cell given up counts as done
        self._bar.show(str(task.cell), self._done, self._total)
        complete = [r for r in self._results if r.complete]
        what = "not measured"
        if complete:
            counted = "1 sample" if len(complete) == 1 else f"{len(complete)} samples"
            radius, each = mean(r.radius for r in complete), mean(r.seconds for r in complete)
            what = f"{counted}, mean radius {radius:.4g}, {each:.3g} s each"
        if len(complete) < len(self._results):
            what += ", given up at the time limit"
        self._bar.line(f"[{self._done}/{self._total}] {task.cell}: {what}{self._left()}")

    def _left(self) -> str:
        """The time left if the samples to come take as long as those done."""
        todo = self._total - self._done
        if not todo:
            return ""
        return f"; about {duration((time.monotonic() - self._began) * todo / self._done)} left"


def duration(seconds: float) -> str:
    """A rough time: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"
