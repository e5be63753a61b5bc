"""One run of `frown bench`: measure what is missing, then tables, files and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from frown.bench.cells import network_file
from frown.bench.experiments import Experiment
from frown.bench.experiments import experiments as all_tables
from frown.bench.pace import known_seconds
from frown.bench.plots import (
    gain_picture,
    group_picture,
    require_matplotlib,
    seconds_picture,
    write_picture,
)
from frown.bench.progress import teller
from frown.bench.runner import Failure, Problems, Setup, measure, tasks_for
from frown.bench.store import Store
from frown.bench.summary import Summary, notes, summaries
from frown.bench.tables import WIDE, csv_text, grid, markdown, rich_table
from frown.errors import OutputError
from frown.folder import write_whole
from frown.plain import plain


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go, and in which form."""

    folder: Path
    picture: str | None = "png"  # None: no pictures
    show: bool = False  # measure nothing
    command: tuple[str, ...] = ()  # as typed, to go on after an interrupt
    options: tuple[str, ...] = ()  # those of it that change figures, for below the tables
    lp_options: tuple[str, ...] = ()  # and change LP's only


Table = tuple[Experiment, tuple[Summary, ...]]


def run(
    experiments: Sequence[Experiment], setup: Setup, output: Output, out: Console, err: Console
) -> list[Failure]:
    """Measure the cells of all tables, each once, and show and write the tables.

    Returns the cells that could not be measured. What was measured is on disk also when
    an interrupt ends the run; the same command goes on from there.
    """
    if output.picture is not None:
        require_matplotlib()
    problems, store = Problems(setup), Store(output.folder)
    if output.show:
        experiments = _present(experiments, setup, err)
    problems.require(dict.fromkeys(line.network for e in experiments for line in e.lines))
    failures: list[Failure] = []
    if not output.show:
        failures = _measure(experiments, problems, store, output, err)
    tables = [(e, summaries(e, problems, store)) for e in experiments]
    for experiment, lines in tables:
        show(experiment, lines, out)
    written = write(tables, output)
    out.print(plain(f"wrote {', '.join(str(p) for p in written)}"), markup=False, soft_wrap=True)
    return failures


def _present(experiments: Sequence[Experiment], setup: Setup, err: Console) -> list[Experiment]:
    """The lines whose networks are there: others have no results; all lines if none is there."""
    networks = dict.fromkeys(line.network for e in experiments for line in e.lines)
    missing = [n for n in networks if network_file(setup.nets, n) is None]
    if not missing or len(missing) == len(networks):
        return list(experiments)
    names = ", ".join(n.name for n in missing)
    err.print(plain(f"left out: {setup.nets} does not hold {names}"), markup=False, soft_wrap=True)
    kept = [
        replace(e, lines=tuple(line for line in e.lines if line.network not in missing))
        for e in experiments
    ]
    return [e for e in kept if e.lines]


def _measure(
    experiments: Sequence[Experiment],
    problems: Problems,
    store: Store,
    output: Output,
    err: Console,
) -> list[Failure]:
    cells = dict.fromkeys(cell for e in experiments for cell in e.cells())
    before = len(store)
    with teller(err, problems.setup.time_limit, known_seconds(store)) as watch:
        try:
            tasks = tasks_for(cells, problems, store)
            failures = measure(tasks, problems, store, watch)
        except KeyboardInterrupt:
            again = shlex.join(a for a in output.command if a != "--force")
            hint = f"; to go on: {again}" if again else ""
            err.print(
                plain(f"{len(store) - before} new results are in {store.path}{hint}"),
                markup=False,
                soft_wrap=True,
            )
            raise
    for failure in failures:
        text = plain(f"not measured: {failure.cell}: {failure.error}")
        err.print(text, markup=False, soft_wrap=True)
    return failures


def show(experiment: Experiment, lines: Sequence[Summary], out: Console) -> None:
    """The table, as wide as the terminal allows, and its notes."""
    content = grid(experiment, lines, wide=out.width >= WIDE)
    out.print(experiment.title, style="bold", markup=False)
    out.print(rich_table(content))
    for note in notes(lines):
        out.print(plain(note), style="dim", markup=False)
    out.print()


def write(tables: Sequence[Table], output: Output) -> list[Path]:
    """CSV and Markdown of every table, and the pictures they give."""
    written = []
    for experiment, lines in tables:
        text = markdown(
            experiment.title,
            grid(experiment, lines),
            notes(lines),
            command(experiment, lines, output),
        )
        for path, content in (
            (output.folder / f"{experiment.file}.csv", csv_text(lines)),
            (output.folder / f"{experiment.file}.md", text),
        ):
            written.append(write_text(path, content))
    if output.picture is None:
        return written
    plain = [t for t in tables if not t[0].by_group]
    every = list({s.line: s for _, lines in plain for s in lines}.values())
    pictures = {"gain": gain_picture(every), "seconds": seconds_picture(every)}
    for experiment, lines in tables:
        if experiment.by_group:
            pictures["groups"] = group_picture(lines)
    # Pictures of one table must not replace those of another.
    cold = "cold-" if tables[0][0].cold else ""
    prefix = f"{tables[0][0].file}-" if len(tables) == 1 else cold
    for name, picture in pictures.items():
        if picture is not None:
            path = output.folder / f"{prefix}{name}.{output.picture}"
            write_picture(picture, path)
            written.append(path)
    return written


def command(experiment: Experiment, lines: Sequence[Summary], output: Output) -> str:
    """What makes the table again, without folders; the time limit is that of its results."""
    words = ["frown", "bench", experiment.name, *output.options]
    if experiment.methods != all_tables()[experiment.name].methods:
        words += ["--methods", ",".join(experiment.methods)]
    if "lp" in experiment.methods:
        words += output.lp_options
        limits = [r.limit for s in lines for r in s["lp"].results if r.limit is not None]
        if limits:
            words += ["--time-limit", f"{max(limits):g}"]
    return shlex.join(words)


def write_text(path: Path, text: str) -> Path:
    """Returns the path; raises OutputError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    return path
