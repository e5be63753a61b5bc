"""One run: measure what is missing, then tables, files and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks.paper.cells import network_file
from benchmarks.paper.experiments import Experiment
from benchmarks.paper.experiments import experiments as all_tables
from benchmarks.paper.invocation import invocation
from benchmarks.paper.plots import (
    gain_picture,
    group_picture,
    require_matplotlib,
    seconds_picture,
    write_picture,
)
from benchmarks.paper.progress import Bar, CellWatch
from benchmarks.paper.results import Results, open_results, stored_results
from benchmarks.paper.runner import Problems, Setup, Task, measure, tasks_for
from benchmarks.paper.summary import Summary, notes, summaries
from benchmarks.paper.tables import WIDE, csv_text, grid, markdown, rich_table, write_texts
from benchmarks.paper.tasks import Failure


@dataclass(frozen=True, slots=True)
class Output:
    """The folder that results go to, and their form."""

    folder: Path
    picture: str | None = "png"  # None: no pictures
    show: bool = False  # measure nothing
    command: tuple[str, ...] = ()  # as typed, to go on after an interrupt
    options: tuple[str, ...] = ()  # those of it that change figures, for below the tables
    lp_options: tuple[str, ...] = ()  # and change LP's only


Table = tuple[Experiment, tuple[Summary, ...]]


def run(
    experiments: Sequence[Experiment], setup: Setup, output: Output, out: Console, err: Console
) -> list[Failure[Task]]:
    """Measure the cells of all tables, each once, and show and write the tables.

    Returns the cells that could not be measured. What was measured is on disk also when
    an interrupt ends the run; the same command goes on from there.
    """
    if output.picture is not None:
        require_matplotlib()
    problems = Problems(setup)
    if output.show:
        experiments = _present(experiments, setup, err)
    problems.require(dict.fromkeys(line.network for e in experiments for line in e.lines))
    failures: list[Failure[Task]] = []
    if output.show:
        results = stored_results(output.folder)
    else:
        with open_results(output.folder) as results:
            failures = _measure(experiments, problems, results, output, err)
    tables = [(e, summaries(e, problems, results)) for e in experiments]
    for experiment, lines in tables:
        show(experiment, lines, out)
    written = write(tables, output)
    out.print(f"wrote {', '.join(str(p) for p in written)}", markup=False, soft_wrap=True)
    return failures


def _present(experiments: Sequence[Experiment], setup: Setup, err: Console) -> list[Experiment]:
    """The lines whose networks are there: others have no results; all lines if none is there."""
    networks = dict.fromkeys(line.network for e in experiments for line in e.lines)
    missing = [n for n in networks if network_file(setup.nets, n) is None]
    if not missing or len(missing) == len(networks):
        return list(experiments)
    names = ", ".join(n.name for n in missing)
    err.print(f"left out: {setup.nets} does not hold {names}", markup=False, soft_wrap=True)
    kept = [
        replace(e, lines=tuple(line for line in e.lines if line.network not in missing))
        for e in experiments
    ]
    return [e for e in kept if e.lines]


def _measure(
    experiments: Sequence[Experiment],
    problems: Problems,
    results: Results,
    output: Output,
    err: Console,
) -> list[Failure[Task]]:
    cells = dict.fromkeys(cell for e in experiments for cell in e.cells())
    before = len(results)
    with Bar(err) as bar:
        try:
            tasks = tasks_for(cells, problems, results)
            failures = measure(tasks, problems, results, CellWatch(bar))
        except KeyboardInterrupt:
            again = [word for word in output.command if word != "--force"]
            hint = f"; to go on: {invocation(*again)}" if again else ""
            err.print(
                f"{len(results) - before} new results are in {results.path}{hint}",
                markup=False,
                soft_wrap=True,
            )
            raise
    for failure in failures:
        err.print(
            f"not measured: {failure.task.cell}: {failure.error}", markup=False, soft_wrap=True
        )
    return failures


def show(experiment: Experiment, lines: Sequence[Summary], out: Console) -> None:
    """The table, as wide as the terminal allows, and its notes."""
    content = grid(experiment, lines, wide=out.width >= WIDE)
    out.print(experiment.title, style="bold", markup=False)
    out.print(rich_table(content))
    for note in notes(lines):
        out.print(note, style="dim", markup=False)
    out.print()


def write(tables: Sequence[Table], output: Output) -> list[Path]:
    """CSV and Markdown of every table, and the pictures they give."""
    written: list[Path] = []
    for experiment, lines in tables:
        text = markdown(
            experiment.title,
            grid(experiment, lines),
            notes(lines),
            command(experiment, lines, output),
        )
        texts = {f"{experiment.file}.csv": csv_text(lines), f"{experiment.file}.md": text}
        written += write_texts(texts, output.folder)
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
    """The command that makes the table again, without folders, with its results' time limit."""
    words = [experiment.name, *output.options]
    if experiment.methods != all_tables()[experiment.name].methods:
        words += ["--methods", ",".join(experiment.methods)]
    if "lp" in experiment.methods:
        words += output.lp_options
        limits = [r.limit for s in lines for r in s["lp"].results if r.limit is not None]
        if limits:
            words += ["--time-limit", f"{max(limits):g}"]
    return invocation(*words)
