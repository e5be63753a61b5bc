"""What the command line shows of frames that move alone: a column per frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from statistics import mean

from rich.table import Table
from rich.text import Text

from frown.certification.results import Row, digits
from frown.certification.statement import Statement
from frown.jobs.table import all_wrong, duration, ended_early, inputs, levels, remarks

ACROSS = 7  # frames side by side; more go into further tables
UNLIMITED = ("misclassified", "robust", "mismatch")  # rows with no radius to average

_CHECKED = {"certified": "proved", "falsified": "broken", "unknown": "?"}  # at one radius


def frames_tables(rows: Sequence[Row], checked: bool, most: int | None) -> Iterator[Table]:
    """One line per input, the first `most` of them, and the means below; a column per frame.

    `checked`: at one radius, where none was searched for.
    """
    frames, by_input = _frames(rows), _by_input(rows)
    for start in range(0, len(frames), ACROSS):
        yield _table(by_input, frames[start : start + ACROSS], checked, most)


def _table(
    by_input: dict[int, dict[int, Row]], frames: Sequence[int], checked: bool, most: int | None
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("index", "label", f"frame {frames[0]}", *map(str, frames[1:])):
        table.add_column(name, justify="right", no_wrap=True)
    for index, held in list(by_input.items())[:most]:
        worst = lowest(held, lambda row: row.radius) if not checked else None
        cells = [
            Text(_cell(held[f], checked) if f in held else "", "bold red" if f == worst else "")
            for f in frames
        ]
        table.add_row(str(index), str(next(iter(held.values())).label), *cells)
    if not checked:
        limited = [
            {f: r for f, r in held.items() if r.status not in UNLIMITED}
            for held in by_input.values()
        ]
        columns = [[held[f] for held in limited if f in held] for f in frames]
        mean_of = "mean " if len(by_input) > 1 else ""
        if mean_of:
            table.add_row("mean proved", "", *(_mean(r.radius for r in c) for c in columns))
        if any(r.broken is not None for c in columns for r in c):
            table.add_row(f"{mean_of}broken", "", *(_mean(r.broken for r in c) for c in columns))
    return table


def frames_summary(rows: Sequence[Row], seconds: float, said: Statement) -> list[str]:
    """Lines to print below the tables; `said` is what the rows say."""
    eps = None if said.eps is None else float(said.eps)
    held = _by_input(rows)
    what = "proved radii" if eps is None else f"checked at {said.eps}"
    lines = [
        f"{inputs(len(held))}, {len(_frames(rows))} frames each on its own, "
        f"in {duration(seconds)}: {what}"
    ]
    if eps is None:
        ends: dict[str, Callable[[Row], float | None]] = {
            "least radius proved": lambda row: row.radius,
            "nearest counterexample": lambda row: row.broken,
        }
        for what, end in ends.items():
            found = Counter(f for one in held.values() if (f := lowest(one, end)) is not None)
            for frame, times in found.most_common(1):
                lines.append(f"{what}: in frame {frame}, for {times} of {inputs(len(held))}")
    lines += said.lines() + levels(rows)
    wrong = sum(next(iter(one.values())).status == "misclassified" for one in held.values())
    if wrong:
        lines.append(f"{inputs(wrong)} misclassified (wrong)")
    if any(row.status == "robust" for row in rows):
        lines.append("any: proved for the whole valid range of that frame")
    if any(map(ended_early, rows)):
        lines.append("* ended early: the radius is proved, a larger one may be provable")
    return lines + all_wrong(rows) + remarks(rows)


def lowest(rows: dict[int, Row], end: Callable[[Row], float | None]) -> int | None:
    """The frame where this end of the bracket is least; None where no frame has one."""
    open_ = {f: end(r) for f, r in rows.items() if r.status not in UNLIMITED}
    values = {f: value for f, value in open_.items() if value is not None}
    return min(values, key=lambda f: values[f]) if values else None


def _cell(row: Row, checked: bool) -> str:
    if row.status == "misclassified":
        return "wrong"
    if checked:
        return _CHECKED.get(row.status, row.status)
    if row.status == "robust":
        return "any"
    return f"{digits(row.radius, 4, -1):.4g}" + ("*" if ended_early(row) else "")


def _mean(radii: Iterable[float | None]) -> str:
    finite = [r for r in radii if r is not None and isfinite(r)]
    return f"{digits(mean(finite), 4, -1):.4g}" if finite else ""


def _by_input(rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    held: dict[int, dict[int, Row]] = {}
    for row in rows:
        held.setdefault(row.index, {})[int(row.frames)] = row
    return held


def _frames(rows: Sequence[Row]) -> list[int]:
    return sorted({int(row.frames) for row in rows})
