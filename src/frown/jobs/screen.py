"""What a run shows while it works and when it ends.

Results go to stdout, everything else to stderr, so that output can be piped.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from frown.certification.plain import plain
from frown.certification.results import Row
from frown.certification.statement import Statement
from frown.jobs.files import Origin, dumps, record
from frown.jobs.table import MOST_ROWS, results_table, summary
from frown.jobs.table_frames import frames_summary, frames_tables

Report = Callable[[Any], None]  # takes a frown.api.Progress


class Screen(ABC):
    """Where a run talks to the user."""

    def __init__(self) -> None:
        self.out = Console(highlight=False, emoji=False)
        self.err = Console(stderr=True, highlight=False, emoji=False)

    @abstractmethod
    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something that must be known."""
        self.err.print(plain(text), markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A line of the results, whatever names it holds."""
        self.out.print(plain(text), markup=False, soft_wrap=True)

    def working(self, total: int) -> AbstractContextManager[Report | None]:
        """A context in which progress is shown by calling what it gives."""
        return nullcontext()

    @abstractmethod
    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        """Rows just finished."""

    @abstractmethod
    def results(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """All rows, at the end; they are in `out` too unless it is None."""

    @abstractmethod
    def sensitivity(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """All rows, one per input and frame, at the end."""

    @abstractmethod
    def certificates(self, count: int, folder: Path, model: Path) -> None:
        """How many certificates there are, where, and what to do with them."""


class QuietScreen(Screen):
    """Warnings and errors only."""

    def note(self, text: str) -> None:
        """Left out."""

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        """Left out."""

    def results(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """Nothing: the files have it all."""

    def sensitivity(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """Nothing: the files have it all."""

    def certificates(self, count: int, folder: Path, model: Path) -> None:
        """Left out."""


class JsonScreen(Screen):
    """Rows as JSON Lines on stdout, as they are finished."""

    def note(self, text: str) -> None:
        self.warn(text)

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        for row in rows:
            self.out.file.write(dumps(record(row, origin)) + "\n")
        self.out.file.flush()

    def results(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """Nothing more: the rows are out already."""

    def sensitivity(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        """Nothing more: the rows are out already."""

    def certificates(self, count: int, folder: Path, model: Path) -> None:
        """Nothing more: rows name their certificates."""


class TableScreen(Screen):
    """A progress bar while it works, then a table and a summary."""

    def note(self, text: str) -> None:
        self.warn(text)

    def rows(self, rows: Sequence[Row], origin: Origin) -> None:
        """Nothing yet: the table comes at the end."""

    def working(self, total: int) -> AbstractContextManager[Report | None]:
        return self._bar(total) if self.err.is_terminal else nullcontext()

    @contextmanager
    def _bar(self, total: int) -> Iterator[Report]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[radius]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.err, transient=True) as bar:
            task = bar.add_task("starting", total=total, radius="")

            def show(progress: Any) -> None:
                mean = progress.proved_mean
                radius = f"mean radius {mean:.4g}" if mean == mean else ""
                bar.update(task, completed=progress.done, description=progress.stage, radius=radius)

            yield show

    def results(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        # Rows that no file keeps are all shown.
        most = None if out is None else MOST_ROWS
        if rows:
            self.out.print(results_table(rows, most))
            if most is not None and len(rows) > most:
                self.say(f"... and {len(rows) - most} more in {out}")
            self.out.print()
            for line in summary(rows, seconds, said):
                self.say(line)
        if out is not None and rows:
            self.say(f"results in {out}")

    def sensitivity(
        self, rows: Sequence[Row], seconds: float, said: Statement, out: Path | None
    ) -> None:
        most = None if out is None else MOST_ROWS
        if rows:
            for table in frames_tables(rows, said.eps is not None, most):
                self.out.print(table)
                self.out.print()
            inputs = len({row.index for row in rows})
            if most is not None and inputs > most:
                self.say(f"... and {inputs - most} more inputs in {out}")
            for line in frames_summary(rows, seconds, said):
                self.say(line)
        if out is not None and rows:
            self.say(f"results in {out}")

    def certificates(self, count: int, folder: Path, model: Path) -> None:
        text = "no certificates: no radius has a rigorous proof"
        if count:
            command = shlex.join(["frown", "check", str(folder), "--model", str(model)])
            text = f"{count} certificate{'s' * (count > 1)} in {folder} ({command})"
        self.say(text)
