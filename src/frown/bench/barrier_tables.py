"""Tables of the convex relaxation barrier benchmark, for the terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from rich.console import Group
from rich.padding import Padding
from rich.table import Table

from frown.bench.barrier import BARRIER, ERRORS, BarrierRow, ErrorRow
from frown.bench.tables import Grid, GridRow, markdown
from frown.errors import OutputError
from frown.folder import write_whole

Cells = list[list[str]]  # the heads, then the lines
_GAP = 2  # between columns


def barrier_table(rows: Sequence[BarrierRow], width: int | None = None) -> Group:
    """Mean radii x 1000, ours beside the published ones, in so many columns of a terminal."""
    return _table(_barrier_cells(rows), width)


def barrier_markdown(rows: Sequence[BarrierRow]) -> str:
    """The table under a heading, and below it the command and what one must know."""
    methods = list(dict.fromkeys(m for row in rows for m in row.proved))
    images = sorted({len(row.broken) for row in rows})
    return _markdown(
        f"Convex relaxation barrier, table 2: mean l_inf radii x 1000 of {images[-1]} MNIST images",
        _barrier_cells(rows),
        _command(methods, [row.network.name for row in rows], [n.name for n in BARRIER]),
        [
            f"samples per cell: {_many(images)} images, labels the network's own answers, "
            "untargeted, no valid range",
            "LP-GREEDY, LP-LAST, LP-ALL and PGD: as Salman et al. published them; "
            "PGD and our attack are upper bounds",
            "above 1 beside LP-ALL: its published radius is not its largest, for no method here "
            "can prove more",
            "CPU s: CPU seconds per image, one thread, the attack's apart",
        ],
    )


def barrier_csv(rows: Sequence[BarrierRow]) -> str:
    """A line per image and method."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["network", "image", "method", "radius", "broken", "seconds"])
    for row in rows:
        for method, proved in row.proved.items():
            for n, radius in enumerate(proved.radii):
                writer.writerow(
                    [row.network.name, n, method, radius, row.broken[n], proved.seconds[n]]
                )
    return stream.getvalue()


def error_table(rows: Sequence[ErrorRow], width: int | None = None) -> Group:
    """Errors in per cent, ours with their standard error beside the published ones."""
    return _table(_error_cells(rows), width)


def error_markdown(rows: Sequence[ErrorRow]) -> str:
    """The table under a heading, and below it the command and what one must know."""
    counts = sorted({row.count for row in rows})
    methods = list(dict.fromkeys(row.method for row in rows))
    return _markdown(
        "Convex relaxation barrier, table 1: errors on MNIST in per cent",
        _error_cells(rows),
        _command(methods, [row.problem.name for row in rows], [p.name for p in ERRORS], counts[-1]),
        [
            f"samples per cell: {_many(counts)} images, evenly spread over the test set; "
            "± is the standard error of what that says of all of it",
            "wrong: misclassified as they are; attack: a lower bound of the adversarial error; "
            "not proved: an upper bound",
            "test, PGD, MILP, LP-ALL and LP-GREEDY: as Salman et al. published them, "
            "over all test images",
            "CPU s: CPU seconds per image, one thread, the attack's included",
        ],
    )


def _command(
    methods: Sequence[str], names: Sequence[str], known: Sequence[str], errors: int | None = None
) -> str:
    """What makes the table again, without folders."""
    words = ["frown", "bench", "barrier", "--methods", ",".join(methods)]
    if set(names) != set(known):
        words += ["--networks", ",".join(dict.fromkeys(names))]
    return shlex.join(words + ([] if errors is None else ["--errors", str(errors)]))


def _many(counts: Sequence[int]) -> str:
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def write_barrier(rows: Sequence[BarrierRow], folder: Path) -> list[Path]:
    """barrier.md, the table, and barrier.csv, every image."""
    texts = {"barrier.md": barrier_markdown(rows), "barrier.csv": barrier_csv(rows)}
    return _written(texts, folder)


def write_error(rows: Sequence[ErrorRow], folder: Path) -> list[Path]:
    """barrier-error.md, the table."""
    return _written({"barrier-error.md": error_markdown(rows)}, folder)


def _barrier_cells(rows: Sequence[BarrierRow]) -> Cells:
    methods = list(dict.fromkeys(m for row in rows for m in row.proved))
    heads = ["network", *(m.upper() for m in methods)]
    heads += ["LP-GREEDY", "LP-LAST", "LP-ALL", *(f"{m.upper()} / LP-ALL" for m in methods)]
    heads += ["attack", "PGD", *(f"CPU s {m.upper()}" for m in methods)]
    lines = [heads]
    for row in rows:
        published = row.network
        lines.append(
            [
                published.name,
                *(f"{1000 * row.proved[m].radius:.2f}" for m in methods),
                *(f"{v:.2f}" for v in (published.lp_greedy, published.lp_last, published.lp_all)),
                *(f"{row.ratio(m):.3f}" for m in methods),
                f"{1000 * mean(row.broken):.2f}",
                f"{published.pgd:.2f}",
                *(f"{row.proved[m].seconds_each:.2g}" for m in methods),
            ]
        )
    return lines


def _error_cells(rows: Sequence[ErrorRow]) -> Cells:
    heads = ["network", "eps", "images", "method", "wrong", "attack", "not proved", "CPU s"]
    lines = [[*heads, "test", "PGD", "MILP", "LP-ALL", "LP-GREEDY"]]
    for row in rows:
        p = row.problem
        ours = (row.test, row.lower, row.upper)
        lines.append(
            [p.name, f"{p.eps:g}", str(row.count), row.method.upper()]
            + [f"{100 * v:.2f} ± {100 * row.deviation(v):.2f}" for v in ours]
            + [f"{row.seconds:.2g}", f"{p.test:.2f}", f"{p.pgd:.2f}"]
            + [f"{p.milp[0]:.2f} to {p.milp[1]:.2f}", f"{p.lp_all:.2f}", f"{p.lp_greedy:.2f}"]
        )
    return lines


def _table(cells: Cells, width: int | None) -> Group:
    """As it is, or where there is no room for that a column per line, as many as fit."""
    if width is None or _width(cells) <= width:
        return Group(_columns(cells))
    parts, lines = [], cells[1:]
    while lines:
        count = len(lines)
        while count > 1 and _width(_transposed([cells[0], *lines[:count]])) > width:
            count -= 1
        parts.append(_columns(_transposed([cells[0], *lines[:count]])))
        lines = lines[count:]
    return Group(*(Padding(part, (0, 0, part is not parts[-1], 0)) for part in parts))


def _transposed(cells: Cells) -> Cells:
    return [list(column) for column in zip(*cells, strict=True)]


def _width(cells: Cells) -> int:
    return sum(max(map(len, column)) + _GAP for column in zip(*cells, strict=True)) - _GAP


def _columns(cells: Cells) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for n, head in enumerate(cells[0]):
        table.add_column(head, justify="right" if n else "left", no_wrap=True)
    for line in cells[1:]:
        table.add_row(*line)
    return table


def _markdown(title: str, cells: Cells, command: str, notes: Sequence[str]) -> str:
    grid = Grid(
        tuple(cells[0]),
        (False, *[True] * (len(cells[0]) - 1)),
        tuple(GridRow(tuple(line)) for line in cells[1:]),
    )
    return markdown(title, grid, notes, command)


def _written(texts: Mapping[str, str], folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text.encode("utf-8"))
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}") from None
    return [folder / name for name in texts]
