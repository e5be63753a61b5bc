"""What the command line shows of frames that move alone: a column per frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import mean

from rich.table import Table
from rich.text import Text

from frown.results import Row
from frown.run.table import duration, ended_early, inputs, remarks

ACROSS = 8  # frames side by side; more go into further tables

_CHECKED = {"certified": "proved", "falsified": "broken", "unknown": "?"}  # at one radius


def frames_tables(rows: Sequence[Row], eps: float | None, most: int | None) -> Iterator[Table]:
    """One line per input, the first `most` of them, and the means below; a column per frame."""
    frames, by_input = _frames(rows), _by_input(rows)
    for start in range(0, len(frames), ACROSS):
        yield _table(by_input, frames[start : start + ACROSS], eps, most)


def _table(
    by_input: dict[int, dict[int, Row]], frames: Sequence[int], eps: float | None, most: int | None
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("index", "label", f"frame {frames[0]}", *map(str, frames[1:])):
        table.add_column(name, justify="right", no_wrap=True)
    for index, held in list(by_input.items())[:most]:
        worst = most_sensitive(held) if eps is None else None
        cells = [
            Text(_cell(held[f], eps) if f in held else "", "bold red" if f == worst else "")
            for f in frames
        ]
        table.add_row(str(index), str(next(iter(held.values())).label), *cells)
    if len(by_input) > 1 and eps is None:
        columns = [[h[f] for h in by_input.values() if f in h] for f in frames]
        table.add_row("mean", "", *(_mean(column) for column in columns))
    return table


def frames_summary(rows: Sequence[Row], seconds: float, eps: float | None = None) -> list[str]:
    """Lines to print below the tables."""
    held = _by_input(rows)
    what = "proved radii" if eps is None else f"checked at {eps:g}"
    lines = [
        f"{inputs(len(held))}, {len(_frames(rows))} frames each on its own, "
        f"in {duration(seconds)}: {what}"
    ]
    found = Counter(f for one in held.values() if (f := most_sensitive(one)) is not None)
    if found and eps is None:
        frame, times = found.most_common(1)[0]
        lines.append(f"most sensitive: frame {frame}, of {times} of {inputs(len(held))}")
    wrong = sum(next(iter(one.values())).status == "misclassified" for one in held.values())
    if wrong:
        lines.append(f"{inputs(wrong)} misclassified (wrong)")
    if any(row.status == "robust" for row in rows):
        lines.append("any: proved for the whole valid range of that frame")
    if any(map(ended_early, rows)):
        lines.append("* ended early: the radius is proved, a larger one may be provable")
    return lines + remarks(rows)


def most_sensitive(rows: dict[int, Row]) -> int | None:
    """The frame with the least radius; None where the input is wrong or no frame tells."""
    open_ = {f: r.radius for f, r in rows.items() if r.status not in ("misclassified", "robust")}
    return min(open_, key=lambda f: open_[f]) if open_ else None


def _cell(row: Row, eps: float | None) -> str:
    if row.status == "misclassified":
        return "wrong"
    if eps is not None:
        return _CHECKED[row.status]
    if row.status == "robust":
        return "any"
    return f"{row.radius:.4g}" + ("*" if ended_early(row) else "")


def _mean(rows: Sequence[Row]) -> str:
    """Over the inputs classified right whose radius is limited."""
    radii = [r.radius for r in rows if r.status not in ("misclassified", "robust")]
    finite = [r for r in radii if isfinite(r)]
    return f"{mean(finite):.4g}" if finite else ""


def _by_input(rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    held: dict[int, dict[int, Row]] = {}
    for row in rows:
        held.setdefault(row.index, {})[int(row.frames)] = row
    return held


def _frames(rows: Sequence[Row]) -> list[int]:
    return sorted({int(row.frames) for row in rows})
