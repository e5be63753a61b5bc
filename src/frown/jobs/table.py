"""Tables of the command line: results with a summary, and a model's graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frown.certification.results import (
    Row,
    averaged,
    class_text,
    digits,
    mean_ends,
    percent,
    plain,
)
from frown.certification.statement import Statement, levels_text, proved_word, uncertified

MOST_ROWS = 40
# Columns that a narrow terminal does without, in this order; the summary or files have them.
SPARED = ("target", "seconds", "before branching", "leaves", "prediction")
ENDLESS = 10_000  # columns of what is no terminal
_MANY = 10  # inputs, of which a share right or wrong tells something
EARLY = "* ended early: more may be provable"

_STYLES = {
    "certified": "green",
    "robust": "bold green",
    "misclassified": "yellow",
    "falsified": "red",
    "unknown": "magenta",
    "mismatch": "bold white on red",
}


def results_table(
    rows: Sequence[Row], most: int | None = MOST_ROWS, said: Statement | None = None
) -> Table:
    """One line per input, the first `most` of them (None: all); `said` is what the rows say."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    called = any(row.id for row in rows)
    classes = any(row.label is not None for row in rows)  # else the question is about none
    own = ["id"] if called else []
    named = ["label", "prediction", *([] if said is not None and said.condition else ["target"])]
    named = named if classes else []
    for name in ("index", *own, *named):
        table.add_column(name, justify="right")
    branched = any(row.radius_before is not None for row in rows)
    table.add_column("status")
    if branched:
        table.add_column("before branching")
    table.add_column(Text(f"[{proved_word(rows)}, broken]"))
    mixed = len({row.level for row in rows if row.proved}) > 1
    if mixed:
        table.add_column("level")
    if branched:
        table.add_column("leaves", justify="right")
    table.add_column("seconds", justify="right")
    for row in rows[:most]:
        early = "*" if row.early else ""
        table.add_row(
            str(row.index),
            *([Text(plain(row.id))] if called else []),
            *_classes(row)[: len(named)],
            Text(plain(row.status) + early, style=_STYLES.get(row.status, "")),
            *([Text(bracket_before(row))] if branched else []),
            Text(bracket(row)),
            *([row.level if row.proved else ""] if mixed else []),
            *([f"{row.leaves:,}" if row.leaves else ""] if branched else []),
            f"{row.seconds:.3g}",
        )
    return table


def narrowed(table: Table, console: Console) -> list[str]:
    """Take columns out of a table of results until a terminal has room for it, those that say least
    first; returns their names."""
    gone: list[str] = []
    for name in SPARED:
        if table.__rich_measure__(console, console.options.update(width=ENDLESS)).maximum <= (
            console.width
        ):
            break
        for column in list(table.columns):
            if str(column.header) == name:
                table.columns.remove(column)
                gone.append(name)
        for place, column in enumerate(table.columns):
            column._index = place  # by which rich tells the first and the last
    return gone


def _classes(row: Row) -> tuple[str, str, str]:
    """Label, prediction and target."""
    target = "all" if row.target is None else str(row.target)
    return class_text(row.label), class_text(row.prediction), target


def bracket(row: Row) -> str:
    """[proved, broken]: the distance to the nearest wrong answer lies in it."""
    top = "?" if row.broken is None else f"{digits(row.broken, 4, 1):.4g}"
    if row.broken is None and row.status == "robust":
        top = "none"
    return f"[{digits(row.radius, 4, -1):.4g}, {top}]"


def bracket_before(row: Row) -> str:
    """The bracket from which branching went on; empty where there was none."""
    if row.radius_before is None:
        return ""
    top = "?" if row.broken_before is None else f"{digits(row.broken_before, 4, 1):.4g}"
    return f"[{digits(row.radius_before, 4, -1):.4g}, {top}]"


def branching(rows: Sequence[Row]) -> list[str]:
    """A line on how much branching narrowed the brackets."""
    known = [
        (row.radius_before, row.broken_before, row)
        for row in rows
        if row.radius_before is not None and row.broken_before is not None
    ]
    wide = [top - low for low, top, _ in known]
    left = [max(0.0, row.broken - row.radius) for _, _, row in known if row.broken is not None]
    if not known or not mean(wide) or not all(map(math.isfinite, wide + left)):
        return []
    leaves = sum(row.leaves for row in rows)
    what = "proofs" if proved_word(rows) == "proved" else "trees"
    return [
        f"branching: {what} of {leaves:,} leaves, "
        f"{percent(max(0.0, 1 - sum(left) / sum(wide)))}% of the brackets' widths closed"
    ]


def summary(rows: Sequence[Row], seconds: float, said: Statement, earlier: int = 0) -> list[str]:
    """Lines to print below the table; `said` is what the rows say, and `earlier` of them are not
    from the run that took `seconds`."""
    eps = said.eps
    counts = Counter(row.status for row in rows)
    order = [*_STYLES, *(status for status in counts if status not in _STYLES)]
    parts = ", ".join(f"{counts[s]} {s}" for s in order if counts[s])
    lines = [f"{inputs(len(rows))}{elapsed(seconds, earlier, len(rows))}: {parts}"]
    finite, left_out = averaged(rows)
    if eps is None and finite:
        lines.append(
            f"{proved_word(rows)} radius: mean {digits(mean(finite), 4, -1):.4g}, "
            f"median {digits(median(finite), 4, -1):.4g}{left_out}"
        )
    lines += branching(rows) + said.lines() + levels(rows)
    if eps is not None:
        # The status decides: the radius may be eps rounded to another precision.
        shares = {said.at(): counts["certified"] + counts["robust"]}
    else:
        radii = round_radii(max(finite, default=0.0))
        shares = {f"{r:g}": sum(row.proves(r) for row in rows) for r in radii}
    if rows and shares:
        text = ", ".join(f"{percent(n / len(rows))}% at {r}" for r, n in shares.items())
        what = proved_word(rows) if said.condition else f"certified accuracy{said.against()}"
        if not said.condition and proved_word(rows) != "proved":
            what += f" ({proved_word(rows)})"
        lines.append(f"{what}: {text}")
    if any(row.early for row in rows):
        lines.append(EARLY)
    return lines + all_wrong(rows, said) + remarks(rows)


def all_wrong(rows: Sequence[Row], said: Statement) -> list[str]:
    """A warning where no answer is right: the inputs are more likely at fault than the model."""
    if not rows or any(row.status != "misclassified" for row in rows):
        return doubtful(rows, said)
    return [
        f"no input {said.being(one=True)}: if the model is better than that, it may want other "
        "units (--divide, --mean, --std), or its classes are numbered differently from the "
        "labels (where these are words: --class-names)"
    ]


def doubtful(rows: Sequence[Row], said: Statement) -> list[str]:
    """A warning where less than half of many answers are right."""
    right = sum(row.status != "misclassified" for row in rows)
    if len(rows) < _MANY or 2 * right >= len(rows):
        return []
    part = percent(right / len(rows))
    share = f"{part}% of the inputs {said.being()}" if said.condition else f"accuracy {part}%"
    return [
        f"{share}: if the model is better than that, it may want "
        "other units (--divide, --mean, --std) or other labels"
    ]


def levels(rows: Sequence[Row]) -> list[str]:
    """A line on the levels of the radii."""
    covered, executed = {row.deployed for row in rows if row.proved}, ""
    if len(covered) == 1 and covered != {""}:
        executed = f"; {covered.pop()} execution covered{uncertified(rows)}"
    told = levels_text(rows, executed)
    return [f"level: {told}"] if told else []


def remarks(rows: Sequence[Row]) -> list[str]:
    """The rows' remarks, each with the inputs it concerns."""
    said: dict[str, dict[int, None]] = {}
    for row in rows:
        if row.remark:
            said.setdefault(row.remark, {})[row.index] = None
    return [f"{_numbers(list(where))}: {remark}" for remark, where in said.items()]


def _numbers(where: Sequence[int], most: int = 5) -> str:
    """`input 3`, `inputs 3, 5, 8`, with an end where there are many."""
    listed = ", ".join(map(str, where[:most])) + (", ..." if len(where) > most else "")
    return f"input {listed}" if len(where) == 1 else f"inputs {listed}"


def round_radii(largest: float, count: int = 4) -> list[float]:
    """Up to `count` + 1 round, evenly spaced radii below `largest`."""
    if not (largest > 0 and math.isfinite(largest)):
        return []
    rough = largest / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = max(f * unit for f in (1, 2, 2.5, 5) if f * unit <= rough * (1 + 1e-9))
    steps = min(int(largest / step + 1e-9), 2 * count)
    every = -(-steps // (count + 1))
    return [float(f"{i * step:.6g}") for i in range(every, steps + 1, every)]


def inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count} inputs"


def elapsed(seconds: float, earlier: int, count: int) -> str:
    """The time of the rows that an earlier run had not left, to stand behind their number."""
    if not earlier:
        return f" in {duration(seconds)}"
    rest = f"the others in {duration(seconds)}" if earlier < count else "nothing was left to do"
    return f" ({earlier:,} of {count:,} rows were there already, {rest})"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


# -- frames that move alone: a column each ---------------------------------------------

ACROSS, LETTERS = 7, 64  # frames side by side, and letters of their names; more go into others

_CHECKED = {"falsified": "broken", "unknown": "?"}  # at one radius


def frames_tables(rows: Sequence[Row], said: Statement, most: int | None) -> Iterator[Table]:
    """One line per input, the first `most` of them, and the means below; a column for each frame
    or feature. `said` is what the rows say."""
    frames, by_input = _frames(rows), _by_input(rows)
    while frames:
        # Names are not cut off: features whose names begin alike could not be told apart.
        ends = accumulate(2 + max(7, len(said.part_name(f))) for f in frames[:ACROSS])
        count = max(1, sum(end <= LETTERS for end in ends))
        yield _table(by_input, frames[:count], said, most)
        frames = frames[count:]


def _table(
    by_input: dict[int, dict[int, Row]], frames: Sequence[int], said: Statement, most: int | None
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    names, checked = [said.part_name(f) for f in frames], said.eps is not None
    if not said.parts:
        names[0] = f"{said.part} {names[0]}"
    for name in ("index", "label", *names):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for index, held in list(by_input.items())[:most]:
        worst = lowest(held, lambda row: row.radius) if not checked else None
        cells = [
            Text(_cell(held[f], checked) if f in held else "", "bold red" if f == worst else "")
            for f in frames
        ]
        table.add_row(str(index), class_text(next(iter(held.values())).label), *cells)
    if not checked:
        columns = [[held[f] for held in by_input.values() if f in held] for f in frames]
        word = proved_word(row for one in by_input.values() for row in one.values())
        ends = [mean_ends(column) for column in columns]
        mean_of = "mean " if len(by_input) > 1 else ""
        if mean_of:
            table.add_row(
                f"mean {word}", "", *("" if p is None else _digits(p, -1) for p, _ in ends)
            )
        if any(r.broken is not None and r.limited for c in columns for r in c):
            tops = ("" if p is None else "?" if b is None else _digits(b, 1) for p, b in ends)
            table.add_row(f"{mean_of}broken", "", *tops)
    return table


def frames_summary(
    rows: Sequence[Row], seconds: float, said: Statement, earlier: int = 0
) -> list[str]:
    """Lines to print below the tables, as `summary`."""
    eps = said.eps
    held = _by_input(rows)
    what = f"{proved_word(rows)} radii" if eps is None else f"checked at {said.at()}"
    lines = [
        f"{inputs(len(held))}, {len(_frames(rows))} {said.part}s each on its own"
        f"{elapsed(seconds, earlier, len(rows))}: {what}"
    ]
    if eps is None:
        ends: dict[str, Callable[[Row], float | None]] = {
            f"least radius {proved_word(rows)}": lambda row: row.radius,
            "nearest counterexample": lambda row: row.broken,
        }
        open_ = sum(any(r.limited for r in one.values()) for one in held.values())
        for what, end in ends.items():
            least = Counter(f for one in held.values() if (f := lowest(one, end)) is not None)
            for frame, times in least.most_common(1):
                name = f"{said.part} {said.part_name(frame)}"
                lines.append(f"{what}: in {name}, for {times} of {inputs(open_)}")
    lines += said.lines() + levels(rows)
    if eps is None and len(held) > 1:
        lines += _partial(rows)
    wrong = sum(next(iter(one.values())).status == "misclassified" for one in held.values())
    if wrong:
        lines.append(f"{inputs(wrong)} misclassified (wrong)")
    everywhere = [row for row in rows if row.status == "robust"]
    if everywhere:
        word = "any" if eps is None else "robust"
        lines.append(
            f"{word}: {proved_word(everywhere)} for the whole valid range of that {said.part}"
            + (", and in no mean" if eps is None and len(held) > 1 else "")
        )
    if any(row.early for row in rows):
        lines.append(EARLY)
    return lines + all_wrong(rows, said) + remarks(rows)


def _partial(rows: Sequence[Row]) -> list[str]:
    """A line that says why means of counterexamples are missing."""
    held = [row for row in rows if row.limited]
    found = sum(row.broken is not None for row in held)
    if found in (0, len(held)):
        return []
    return ["mean broken: ? where an input of the mean above it has no counterexample"]


def lowest(rows: dict[int, Row], end: Callable[[Row], float | None]) -> int | None:
    """The frame where this end of the bracket is least; None where no frame has one, or several."""
    open_ = {f: end(r) for f, r in rows.items() if r.limited}
    values = {f: value for f, value in open_.items() if value is not None}
    least = [f for f, value in values.items() if value == min(values.values())]
    return least[0] if len(least) == 1 else None


def _cell(row: Row, checked: bool) -> str:
    if row.status == "misclassified":
        return "wrong"
    if checked and row.status == "certified":
        return proved_word([row])
    if checked:
        return _CHECKED.get(row.status, row.status)
    if row.status == "robust":
        return "any"
    return _digits(row.radius, -1) + ("*" if row.early else "")


def _digits(radius: float, way: int) -> str:
    """A radius with four digits, rounded down (way -1) or up (1)."""
    return f"{digits(radius, 4, way):.4g}"


def _by_input(rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    held: dict[int, dict[int, Row]] = {}
    for row in rows:
        held.setdefault(row.index, {})[int(row.frames)] = row
    return held


def _frames(rows: Sequence[Row]) -> list[int]:
    return sorted({int(row.frames) for row in rows})


# -- models ----------------------------------------------------------------------------


def describe(model: Any) -> dict[str, Any]:
    """A `frown.read.model.Model` as plain values: its sizes and its nodes."""
    from frown.api import fitting_question
    from frown.graph.graph import Input
    from frown.graph.op import Nonlinear
    from frown.relax.elementwise import Elementwise

    nodes = []
    for index, node in enumerate(model.graph.nodes):
        if isinstance(node.op, Input):
            treatment = "input"
        elif isinstance(node.op, Nonlinear):
            # A relaxation's module names its family: piecewise, convex, s_shaped, ...
            family = type(node.op).__module__.rsplit(".", 1)[-1].replace("_", "-")
            lines = "lines" if isinstance(node.op, Elementwise) else "planes"
            treatment = f"bounded: {family} {lines}"
        else:
            treatment = "affine: exact"
        nodes.append(
            {
                "node": index,
                "name": node.name,
                "operator": type(node.op).__name__,
                "inputs": list(node.inputs),
                "shape": list(node.shape),
                "parameters": sum(t.numel() for t in node.op.tensors().values()),
                "treatment": treatment,
            }
        )
    bounded = [model.graph.nodes[i] for i in model.graph.nonlinear]
    return {
        "model": model.name,
        "source": model.source,
        "digest": model.digest,
        "input_shape": list(model.input_shape),
        "classes": model.classes,
        "parameters": model.graph.parameters(),
        "neurons": sum(node.size for node in bounded),
        "nonlinear": len(bounded),
        "question": fitting_question(model),
        "output": model.taken.output,
        "precision": model.taken.precision,
        "nodes": nodes,
    }


_LONG = 24  # letters of a node's name


def info_table(about: dict[str, Any]) -> Table:
    """The nodes of `describe`, one per line; of long names the end."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", justify="right")
    table.add_column("name", overflow="fold", min_width=12)
    table.add_column("operator", no_wrap=True, min_width=8)
    table.add_column("reads", justify="right")
    table.add_column("shape")
    table.add_column("parameters", justify="right", no_wrap=True, min_width=10)
    table.add_column("bounds", no_wrap=True)
    for node in about["nodes"]:
        table.add_row(
            str(node["node"]),
            Text(name if len(name := plain(node["name"])) <= _LONG else "…" + name[1 - _LONG :]),
            Text(plain(node["operator"])),
            ",".join(map(str, node["inputs"])),
            _shape(node["shape"]),
            f"{node['parameters']:,}" if node["parameters"] else "",
            Text(
                node["treatment"].rpartition(": ")[2],
                style="cyan" if "bounded" in node["treatment"] else "",
            ),
        )
    return table


def info_summary(about: dict[str, Any]) -> list[str]:
    taken = [f"output: {plain(about['output'])}"] if about["output"] else []
    if about["precision"]:
        taken.append(f"it computes in {about['precision']}, and is bounded as if in float32")
    return [
        f"{plain(about['model'])}: input {_shape(about['input_shape'])}, "
        f"{about['classes']} output{'s' * (about['classes'] != 1)}, "
        f"{about['parameters']:,} parameters, "
        f"{about['neurons']:,} neurons in {about['nonlinear']} nonlinear layers",
        f"sha256 {about['digest']}",
        *taken,
        "every operator can be bounded",
        f"to ask: {about['question']}",
    ]


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))
