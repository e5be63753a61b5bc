"""Screens: the output of a run while it works and when it ends.

Results go to stdout, everything else to stderr, so that output can be piped.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from frown.certification.results import Row, digits, plain
from frown.certification.run import Progress, Watch
from frown.certification.statement import Statement
from frown.jobs.files import Origin, dumps, record
from frown.jobs.table import (
    MOST_ROWS,
    duration,
    frames_summary,
    frames_tables,
    results_table,
    summary,
)

LINES = 60.0  # seconds between two lines where there is no terminal


class Screen:
    """The channel on which a run talks to the user; this one shows warnings and errors only."""

    def __init__(self) -> None:
        self.out = Console(highlight=False, emoji=False)
        self.err = Console(stderr=True, highlight=False, emoji=False)

    def warn(self, text: str) -> None:
        """Something that must be known."""
        self.err.print(plain(text), markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def working(self, total: int) -> AbstractContextManager[Watch]:
        """A context with someone to be told of progress."""
        return nullcontext(Watch())

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        """Rows just finished."""

    def results(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """All rows, at the end; they are in `out` too unless it is None."""

    def certificates(self, count: int, folder: Path, model: Path) -> None:
        """Tell how many certificates there are, where, and what to do with them."""


class Pace:
    """The speed of a run since it began, in words."""

    def __init__(self) -> None:
        self._began = monotonic()

    def told(self, progress: Progress) -> str:
        """Means of both ends of the brackets, throughput, and the time left.

        It does not say proved: of inputs under way nothing is, yet.
        """
        proved, broken = progress.proved_mean, progress.broken_mean
        parts = []
        if proved == proved and progress.done + progress.underway:
            parts.append(f"mean radius {digits(proved, 4, -1):.4g}")
        if broken == broken:
            parts.append(f"broken {digits(broken, 4, 1):.4g}")
        took = monotonic() - self._began
        if progress.done and took > 0:
            parts.append(_rate(progress.done / took))
            left = (progress.total - progress.done) * took / progress.done
            parts.append(f"{duration(round(left))} left")
        return ", ".join(parts)


def _rate(speed: float) -> str:
    """A throughput in the largest unit that needs no more than four digits."""
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if speed * seconds >= 1:
            return f"{speed * seconds:.3g} per {unit}"
    return f"{speed * 86400:.3g} per day"


class LineWatch(Watch):
    """A line now and then, by a thread of its own, so that a long step is no silence."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._pace = console, Pace()
        self._last = Progress(0, total, 0.0, "starting")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> LineWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def progress(self, progress: Progress) -> None:
        self._last = progress

    def _print(self) -> None:
        while not self._end.wait(LINES):
            last = self._last
            told = f"{last.done} of {last.total} done, {self._pace.told(last)}".rstrip(", ")
            self._console.print(told, markup=False, soft_wrap=True)


class Telling(Screen):
    """A screen that shows notes and progress on stderr: a bar, or lines without a terminal."""

    def note(self, text: str) -> None:
        self.warn(text)

    def working(self, total: int) -> AbstractContextManager[Watch]:
        return self._bar(total) if self.err.is_terminal else LineWatch(self.err, total)

    @contextmanager
    def _bar(self, total: int) -> Iterator[Watch]:
        with bars(self.err) as bar:
            bar.add_task("starting", total=total, radius="")
            yield BarWatch(bar, 0, stages=True)


class JsonScreen(Telling):
    """Rows as JSON Lines on stdout, as they are finished."""

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        for row in rows:
            self.out.file.write(dumps(record(row, origin)) + "\n")
        self.out.file.flush()


class BarWatch(Watch):
    """A line of a progress bar."""

    def __init__(self, bar: Bar, task: int, stages: bool) -> None:
        self._bar, self._task, self._stages = bar, bar.task_ids[task], stages
        self._pace = Pace()

    def progress(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.done, radius=self._pace.told(progress))
        if self._stages:
            self._bar.update(self._task, description=progress.stage)


class TableScreen(Telling):
    """Progress while it works, then a table and a summary."""

    def say(self, text: str) -> None:
        """A line of the results, whatever names it holds."""
        self.out.print(plain(text), markup=False, soft_wrap=True)

    def results(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        if not rows:
            return
        most = None if out is None else MOST_ROWS  # rows that no file keeps are all shown
        if said.sensitivity:
            for table in frames_tables(rows, said, most):
                self.out.print(table)
                self.out.print()
        else:
            self.out.print(results_table(rows, most, said))
        count, what = len(rows), "more"
        if said.sensitivity:
            count, what = len({row.index for row in rows}), "more inputs"
        if most is not None and count > most:
            self.say(f"... and {count - most} {what} in {out}")
        if not said.sensitivity:
            self.out.print()
        told = frames_summary if said.sensitivity else summary
        for line in told(rows, seconds, said):
            self.say(line)
        if out is not None:
            self.say(f"results in {out}")

    def certificates(self, count: int, folder: Path, model: Path) -> None:
        text = "no certificates: no radius has a rigorous proof"
        if count:
            command = shlex.join(["frown", "check", str(folder), "--model", str(model)])
            text = f"{count} certificate{'s' * (count > 1)} in {folder} ({command})"
        self.say(text)


def bars(console: Console) -> Bar:
    """Progress bars, one per task, with the mean radius."""
    return Bar(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[radius]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
