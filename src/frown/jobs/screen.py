"""Screens: the output of a run while it works and when it ends.

Results go to stdout, everything else to stderr, so that output can be piped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from frown.certification.plain import plain
from frown.certification.results import Row, digits
from frown.certification.run import Progress, Watch
from frown.certification.statement import Statement
from frown.jobs.files import Origin, dumps, record
from frown.jobs.table import MOST_ROWS, frames_summary, frames_tables, results_table, summary


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


class JsonScreen(Screen):
    """Rows as JSON Lines on stdout, as they are finished."""

    def note(self, text: str) -> None:
        self.warn(text)

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        for row in rows:
            self.out.file.write(dumps(record(row, origin)) + "\n")
        self.out.file.flush()


class BarWatch(Watch):
    """A line of a progress bar."""

    def __init__(self, bar: Bar, task: int, stages: bool) -> None:
        self._bar, self._task, self._stages = bar, bar.task_ids[task], stages

    def progress(self, progress: Progress) -> None:
        mean = progress.proved_mean
        radius = f"mean radius {digits(mean, 4, -1):.4g}" if mean == mean else ""
        self._bar.update(self._task, completed=progress.done, radius=radius)
        if self._stages:
            self._bar.update(self._task, description=progress.stage)


class TableScreen(Screen):
    """A progress bar while it works, then a table and a summary."""

    def note(self, text: str) -> None:
        self.warn(text)

    def say(self, text: str) -> None:
        """A line of the results, whatever names it holds."""
        self.out.print(plain(text), markup=False, soft_wrap=True)

    def working(self, total: int) -> AbstractContextManager[Watch]:
        return self._bar(total) if self.err.is_terminal else nullcontext(Watch())

    @contextmanager
    def _bar(self, total: int) -> Iterator[Watch]:
        with bars(self.err) as bar:
            bar.add_task("starting", total=total, radius="")
            yield BarWatch(bar, 0, stages=True)

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
            self.out.print(results_table(rows, most))
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
