"""Tables for the terminal, Markdown and CSV: our line, and the paper's below it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from benchmarks.paper.cells import norm_text
from benchmarks.paper.experiments import Experiment, Line
from benchmarks.paper.figures import GROUP_FIGURES, GROUP_NETWORK, Figure, GroupFigure
from benchmarks.paper.networks import DATA, Network
from benchmarks.paper.summary import Gain, Summary, gain
from frown.errors import OutputError

WIDE = 110  # columns of a terminal from which on everything is shown
NONE = "-"


def number(value: float | None, digits: int) -> str:
    """Significant digits, trailing zeros kept, without an exponent for large numbers."""
    if value is None:
        return NONE
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".removesuffix(".")


def percent(value: float | None) -> str:
    """With a sign; a decimal where there is room for it."""
    if value is None:
        return NONE
    return f"{100 * value:+.0f}%" if abs(value) >= 1 else f"{100 * value:+.1f}%"


def network_text(network: Network) -> str:
    """As the paper writes it: 10x[20] relu."""
    return f"{network.size} {network.activation}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: what it shows of our line and of the paper's."""

    head: str
    ours: Callable[[Summary, int], str]
    paper: Callable[[Figure, int], str] = lambda figure, digits: ""
    numeric: bool = True
    extra: bool = False  # left out where there is little room


@dataclass(frozen=True, slots=True)
class GridRow:
    cells: tuple[str, ...]
    kind: str = "ours"  # or "paper", or "heading" above the lines of one data set


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text."""

    heads: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[GridRow, ...]


def _value(found: Gain | None) -> float | None:
    return None if found is None else found.value


def _lp_seconds(s: Summary, digits: int) -> str:
    lp = s["lp"]
    return number(lp.time, digits - 1) if lp.limit is None else f">{lp.limit:g}"


def _paper_lp_seconds(f: Figure, digits: int) -> str:
    return (">" if f.lp_unfinished else "") + number(f.lp_seconds, digits - 1)


def _speed_up(s: Summary, digits: int) -> str:
    found = s.speed_up
    if found is None:
        return NONE
    return f"{'>' if found.at_least else ''}{number(found.value, digits - 1)}x"


def _paper_speed_up(f: Figure, digits: int) -> str:
    if f.speed_up is None:
        return NONE
    return f"{'>' if f.lp_unfinished else ''}{number(f.speed_up, digits - 1)}x"


def _samples(s: Summary, digits: int) -> str:
    counts = [len(s[name].radii) for name in ("frown", "lp") if name in s.columns]
    return ", ".join(map(str, counts)) or str(len(s["crown"].radii))


def _columns(methods: Sequence[str]) -> list[Column]:
    """The paper's columns, for the methods asked for."""
    first = [
        Column(
            "network",
            lambda s, d: network_text(s.line.network),
            lambda f, d: "  paper",
            numeric=False,
        ),
        Column("p", lambda s, d: norm_text(s.line.norm)),
    ]
    both = "n" if "lp" not in methods else "n\nFR, LP"
    radii = [
        Column(both, _samples, extra=True),
        Column("CROWN", lambda s, d: number(s["crown"].radius, d), lambda f, d: number(f.crown, d)),
        Column("CROWN\narea", lambda s, d: number(s["area"].radius, d), extra=True),
        Column("FROWN", lambda s, d: number(s["frown"].radius, d), lambda f, d: number(f.frown, d)),
        Column("LP", lambda s, d: number(s["lp"].radius, d), lambda f, d: number(f.lp, d)),
    ]
    gains = [
        Column(
            "gain\nFROWN",
            lambda s, d: percent(_value(s.gain("frown"))),
            lambda f, d: percent(f.frown_gain),
        ),
        Column(
            "gain FR\non LP's",
            lambda s, d: percent(_value(s.frown_gain_beside_lp)),
            extra=True,
        ),
        Column(
            "gain\nLP", lambda s, d: percent(_value(s.gain("lp"))), lambda f, d: percent(f.lp_gain)
        ),
        Column(
            "s\nFROWN",
            lambda s, d: number(s["frown"].time, d - 1),
            lambda f, d: number(f.frown_seconds, d - 1),
        ),
        Column("s\nLP", _lp_seconds, _paper_lp_seconds),
        Column("LP /\nFROWN", _speed_up, _paper_speed_up),
    ]
    chosen = [*first, *radii, *gains]
    wanted = {"crown": "CROWN", "frown": "FROWN", "lp": "LP"}
    absent = [text for name, text in wanted.items() if name not in methods]
    gone = {*absent, *(["on"] if {"FROWN", "LP"} & set(absent) else [])}
    return [c for c in chosen if gone.isdisjoint(c.head.split())]


def grid(experiment: Experiment, lines: Sequence[Summary], wide: bool = True) -> Grid:
    """A table of the paper; the narrow one has fewer digits and columns."""
    if experiment.by_group:
        return _group_grid(lines, wide)
    digits = 4 if wide else 3
    columns = [c for c in _columns(experiment.methods) if wide or not c.extra]
    mixed = len({s.line.network.data for s in lines}) > 1
    rows: list[GridRow] = []
    for n, s in enumerate(lines):
        data = s.line.network.data
        if mixed and (n == 0 or lines[n - 1].line.network.data != data):
            rows.append(GridRow((DATA[data], *[""] * (len(columns) - 1)), "heading"))
        rows.append(GridRow(tuple(c.ours(s, digits) for c in columns)))
        if s.figure is not None:
            rows.append(GridRow(tuple(c.paper(s.figure, digits) for c in columns), "paper"))
    return Grid(tuple(c.head for c in columns), tuple(c.numeric for c in columns), tuple(rows))


# -- groups: Table 8 ---------------------------------------------------------------------


def _group_grid(lines: Sequence[Summary], wide: bool) -> Grid:
    """Radius and seconds by the size of groups, beside the smallest group's."""
    heads = ("group", "n", "radius", "of group 1's", "gain on CROWN", "s", "times as fast")
    digits = 4 if wide else 3
    rows = []
    for s in lines:
        own, first = s["frown"], lines[0]["frown"]
        loss = gain(own, first) if lines[0].line.group == 1 else None
        fast = own.time and first.time and first.time / own.time
        texts = (
            group_text(s.line),
            str(len(own.radii)),
            number(own.radius, digits),
            NONE if loss is None else f"{100 * (1 + loss.value):.1f}%",
            percent(_value(s.gain("frown"))),
            number(own.time, 3),
            NONE if fast is None or loss is None else f"{number(fast, 3)}x",
        )
        rows.append(GridRow(texts))
        rows += [GridRow(_paper_group(f, digits), "paper") for f in _paper_groups(s.line)]
    return Grid(heads, (False, *[True] * (len(heads) - 1)), tuple(rows))


def group_text(line: Line) -> str:
    return "layer" if line.group == 0 else str(line.group)


def _paper_groups(line: Line) -> list[GroupFigure]:
    if line.network.name != GROUP_NETWORK:
        return []
    return [f for f in GROUP_FIGURES if f.group == line.group]


def _paper_group(f: GroupFigure, digits: int) -> tuple[str, ...]:
    base = next(g for g in GROUP_FIGURES if g.group == 1 and g.device == f.device)
    return (
        f"  paper, {f.device.upper()}",
        "",
        number(f.radius, digits),
        f"{100 * f.radius / base.radius:.1f}%",
        "",
        number(f.seconds, 3),
        f"{number(base.seconds / f.seconds, 3)}x",
    )


# -- forms -------------------------------------------------------------------------------


def rich_table(content: Grid, gap: int = 1) -> Table:
    """For the terminal, columns so far apart; the paper's lines are dim."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for head, numeric in zip(content.heads, content.numeric):
        table.add_column(head, justify="right" if numeric else "left", no_wrap=True)
    for row in content.rows:
        style = {"paper": "dim", "heading": "bold"}.get(row.kind, "")
        table.add_row(*(Text(cell, style=style) for cell in row.cells))
    return table


def markdown(title: str, content: Grid, notes: Sequence[str], command: str = "") -> str:
    """A heading, a table, the command that makes it, and what one must know to read it."""
    heads = [head.replace("\n", " ") for head in content.heads]
    rules = ["---:" if numeric else "---" for numeric in content.numeric]
    lines = [f"## {title}", "", _bar(heads), _bar(rules)]
    for row in content.rows:
        mark = "**" if row.kind == "heading" else ""
        lines.append(_bar([f"{mark}{row.cells[0].strip()}{mark}", *row.cells[1:]]))
    if command:
        lines += ["", f"Made by `{command}`."]
    lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines).rstrip() + "\n"


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_texts(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write texts by file name, and return their paths; OutputError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from None
    return [folder / name for name in texts]


def csv_text(lines: Sequence[Summary]) -> str:
    """All figures in full, ours and the paper's; empty: not there."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(_record(lines[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(s) for s in lines)
    return stream.getvalue()


def _record(s: Summary) -> dict[str, object]:
    record: dict[str, object] = {
        "network": s.line.network.name,
        "norm": norm_text(s.line.norm),
        "group": group_text(s.line),
    }
    for name in ("crown", "area", "frown", "lp"):
        record |= {
            f"{name}_samples": len(s[name].radii),
            f"{name}_radius": s[name].radius,
            f"{name}_seconds": s[name].seconds,
            f"{name}_cpu_seconds": s[name].cpu,
        }
    for name in ("area", "frown", "lp"):
        found = s.gain(name)
        record |= {f"{name}_gain": _value(found), f"{name}_gain_samples": found and found.count}
    record["frown_gain_on_lp_samples"] = _value(s.frown_gain_beside_lp)
    record["lp_given_up_after"] = s["lp"].limit
    record["speed_up"] = s.speed_up and s.speed_up.value
    record["speed_up_is_a_lower_bound"] = s.speed_up and s.speed_up.at_least
    record["lp_start"] = "cold" if s.cold else "hot"
    record["lp_cold_over_hot"] = s.cold_over_hot and s.cold_over_hot.value
    paper = s.figure
    return record | {
        "paper_crown_radius": paper and paper.crown,
        "paper_frown_radius": paper and paper.frown,
        "paper_lp_radius": paper and paper.lp,
        "paper_frown_gain": paper and paper.frown_gain,
        "paper_lp_gain": paper and paper.lp_gain,
        "paper_frown_seconds": paper and paper.frown_seconds,
        "paper_lp_seconds": paper and paper.lp_seconds,
        "paper_lp_given_up": paper and paper.lp_unfinished,
        "paper_speed_up": paper and paper.speed_up,
    }
