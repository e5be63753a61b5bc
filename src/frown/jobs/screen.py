"""Screens: the output of a run while it works and when it ends.

Results go to stdout, everything else to stderr, so that output can be piped.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from frown.certification.results import Row, digits, plain
from frown.certification.run import Progress, Watch
from frown.certification.statement import Statement
from frown.jobs.files import Origin, dumps, record
from frown.jobs.table import (
    ENDLESS,
    MOST_ROWS,
    duration,
    frames_summary,
    frames_tables,
    narrowed,
    results_table,
    summary,
)

NARROW = 110  # columns of a terminal that has room for a bar
LINES = 60.0  # seconds between two lines where there is no terminal


class Screen:
    """The channel on which a run talks to the user; this one shows warnings and errors only."""

    def __init__(self) -> None:
        self.out = Console(highlight=False, emoji=False)
        if not self.out.is_terminal and "COLUMNS" not in os.environ:
            self.out.width = ENDLESS  # a file's lines are as long as they are
        self.err = Console(stderr=True, highlight=False, emoji=False)

    def warn(self, text: str) -> None:
        """Something that must be known."""
        self.err.print(plain(text), markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def working(self, total: int, longest: float = inf) -> AbstractContextManager[Watch]:
        """The context of a run, with a listener to its progress; `longest` as in `Pace`."""
        return nullcontext(Watch())

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        """Rows just finished."""

    def results(
        self,
        rows: Sequence[Row],
        seconds: float,
        said: Statement,
        out: Path | None,
        earlier: int = 0,
    ) -> None:
        """All rows, at the end, of which `earlier` were there before; they are in `out` too unless
        it is None."""

    def certificates(self, count: int, folder: Path, model: Path) -> None:
        """Show the number of certificates, their folder, and the command that checks them."""


class Pace:
    """The speed of a run since it began, in words."""

    def __init__(self, longest: float = inf) -> None:
        """Begin; `longest` are the seconds that it should not exceed, where that is known."""
        self._began, self._longest = monotonic(), longest

    def told(self, progress: Progress) -> str:
        """The time left, the throughput, and the means of both ends of the brackets.

        It does not say proved: of inputs under way nothing is, yet.
        """
        proved, broken = progress.proved_mean, progress.broken_mean
        parts, took = [], monotonic() - self._began
        if progress.done and took > 0:
            left = (progress.total - progress.done) * took / progress.done
            parts += [f"{duration(round(left))} left", _rate(progress.done / took)]
        elif progress.underway and took < self._longest < inf:  # only the limit is known
            parts.append(f"some {duration(round(self._longest - took))} left")
        if proved == proved and progress.done + progress.underway:
            parts.append(f"mean radius {digits(proved, 4, -1):.4g}")
        if broken == broken:
            parts.append(f"broken {digits(broken, 4, 1):.4g} (of {progress.found:,} found)")
        return ", ".join(parts)


def _rate(speed: float) -> str:
    """A throughput in the largest unit that needs no more than four digits."""
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if speed * seconds >= 1:
            return f"{speed * seconds:.3g} per {unit}"
    return f"{speed * 86400:.3g} per day"


class LineWatch(Watch):
    """Progress as a line per minute, printed by a thread, so that long steps are seen to go on."""

    def __init__(self, console: Console, total: int, longest: float = inf) -> None:
        self._console, self._pace = console, Pace(longest)
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
            stage = "" if last.stage == "done" else last.stage
            told = (f"{last.done} of {last.total} done", stage, self._pace.told(last))
            self._console.print(", ".join(filter(None, told)), markup=False, soft_wrap=True)


class VerboseScreen(Screen):
    """A screen that shows notes and progress on stderr: a bar, or lines without a terminal."""

    def note(self, text: str) -> None:
        self.warn(text)

    def working(self, total: int, longest: float = inf) -> AbstractContextManager[Watch]:
        if self.err.is_terminal:
            return self._bar(total, longest)
        return LineWatch(self.err, total, longest)

    @contextmanager
    def _bar(self, total: int, longest: float) -> Iterator[Watch]:
        with bars(self.err) as bar:
            bar.add_task("starting", total=total, radius="")
            yield BarWatch(bar, 0, stages=True, longest=longest)


class JsonScreen(VerboseScreen):
    """Rows as JSON Lines on stdout, as they are finished."""

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        for row in rows:
            self.out.file.write(dumps(record(row, origin)) + "\n")
        self.out.file.flush()


class BarWatch(Watch):
    """A line of a progress bar."""

    def __init__(self, bar: Bar, task: int, stages: bool, longest: float = inf) -> None:
        self._bar, self._task, self._stages = bar, bar.task_ids[task], stages
        self._pace = Pace(longest)

    def progress(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.done, radius=self._pace.told(progress))
        if self._stages:
            self._bar.update(self._task, description=progress.stage)


class TableScreen(VerboseScreen):
    """Progress while it works, then a table and a summary."""

    def say(self, text: str) -> None:
        """A line of the results, whatever names it holds."""
        self.out.print(plain(text), markup=False, soft_wrap=True)

    def results(
        self,
        rows: Sequence[Row],
        seconds: float,
        said: Statement,
        out: Path | None,
        earlier: int = 0,
    ) -> None:
        if not rows:
            return
        most = None if out is None else MOST_ROWS  # rows that no file keeps are all shown
        if said.sensitivity:
            for table in frames_tables(rows, said, most):
                self.out.print(table)
                self.out.print()
        else:
            table = results_table(rows, most, said)
            left_out = narrowed(table, self.out)
            self.out.print(table)
            if left_out:
                self.say(f"not shown for want of room: {', '.join(left_out)}")
        count, what = len(rows), "more"
        if said.sensitivity:
            count, what = len({row.index for row in rows}), "more inputs"
        if most is not None and count > most:
            self.say(f"... and {count - most} {what} in {out}")
        if not said.sensitivity:
            self.out.print()
        told = frames_summary if said.sensitivity else summary
        for line in told(rows, seconds, said, earlier):
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
    """Progress bars, one per task, with the mean radius; in a narrow terminal counts and words have
    the room."""

    def whole(width: int) -> Column:
        return Column(no_wrap=True, min_width=width)

    wide, name = console.width >= NARROW, TextColumn("{task.description:<8}", table_column=whole(8))
    size = 40 if console.width >= 1.4 * NARROW else 10
    bar = [BarColumn(bar_width=size, table_column=whole(size))] if wide else []
    elapsed = [TimeElapsedColumn(table_column=whole(7))] if wide else []
    words = TextColumn("{task.fields[radius]}", table_column=Column(no_wrap=True, ratio=1))
    counts = MofNCompleteColumn(table_column=whole(5))
    shown = (name, *bar, counts, *elapsed, words)
    return Bar(*shown, console=console, transient=True, expand=True)
