"""One HTML page that shows and explains a certification, and needs nothing but itself."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frown.certification.folder import reported, write_whole
from frown.certification.results import (
    STATUSES,
    Certification,
    Sensitivity,
    cut,
    markup,
    percent,
    plain,
)
from frown.certification.statement import Statement, proved_word
from frown.errors import OutputError
from frown.jobs.table import doubtful
from frown.report.charts import (
    NARROW,
    WIDE,
    accuracy_chart,
    aligned,
    bracket_chart,
    branched,
    legend,
    method_class,
    number,
    radius_chart,
)
from frown.report.comparison import Comparison, Entry, caution
from frown.report.frames import frames_page, frames_sections
from frown.report.gallery import MOST, Pictures, broken_as, gallery
from frown.report.parts import OURS, banner, document, duration, opening, reproduce, table, tile
from frown.report.read import (
    by_method,
    read_any,
    read_command,
    read_facts,
    read_images,
    read_notices,
    read_sequences,
)


def write_report(
    results: Mapping[str, Certification],
    images: NDArray[Any] | None,
    out: Path,
    title: str,
    *,
    answers: Mapping[int, int] | None = None,
    command: str | None = None,
    frames: Mapping[str, Sensitivity] | None = None,
    sequences: NDArray[Any] | None = None,
    notices: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write the page on `results` (by method) to `out` and return `out`.

    `images` (N, H, W) or (N, H, W, 3) belong to the inputs in the order of their index; None: the
    inputs are no images. `answers` holds the model's class of each counterexample by input index.
    `command` is the one that repeats the run. `frames` (by method) are the radii of frames alone,
    of the same model, and `sequences` (N, *input shape) the inputs of the first of them in the
    order of its rows; with them `results` may be empty. `notices` stand on top, such as that a run
    was interrupted. `facts` (name and text) join the list of how to repeat the run.

    Raises InvalidInput where the results cannot stand on one page, OutputError where the file
    cannot be written.
    """
    strips = [] if not frames else frames_sections(frames, results, sequences)
    if strips and frames and not results:
        page = frames_page(frames, strips, title, command, notices, facts)
    else:
        comparison = Comparison.of(results)
        pictures = None
        if images is not None:
            pictures = Pictures.of(np.asarray(images), tuple(e.index for e in comparison.entries))
        command = command or _command(comparison)
        told = [*notices, *caution({**(frames or {}), **comparison.results})]
        page = _page(comparison, pictures, answers or {}, strips, title, command, told, facts)
    with reported("write", out, "choose another file"):
        out.parent.mkdir(parents=True, exist_ok=True)
        kept = out.is_file() and not out.is_symlink()
        if kept and OURS not in out.read_text("utf-8", "replace"):
            raise OutputError(
                f"{plain(out)} is there already and no page of frown's; remove it, or choose "
                "another file"
            )
        write_whole(out, page.encode("utf-8"))
    return out


def report_from_files(
    directories: Sequence[Path], out: Path, tell: Callable[[str], None] = lambda notice: None
) -> Path:
    """Write the page on the result directories of earlier runs, one method each, to `out`.

    The notices on top of the page (runs that were interrupted, inputs left out) go to `tell` as
    well. Where two directories hold the same method, both appear under their directories' names.
    Inputs that are images are shown if their data file is still there and unchanged.
    """
    read = [(directory, read_any(directory)) for directory in directories]
    whole = [(d, r) for d, r in read if isinstance(r, Certification)]
    alone = [(d, r) for d, r in read if isinstance(r, Sensitivity)]
    names = sorted({result.model for _, result in read if result.model})
    about = " and ".join(Path(name).name for name in names) or "a network"
    results = by_method(whole)
    notices = [f"{d}: {notice}" for d, result in read for notice in read_notices(d, result)]
    indices = [e.index for e in Comparison.of(results).entries] if whole else []
    for notice in notices:
        tell(notice)
    if results and (left_out := Comparison.of(results).left_out()):
        tell(left_out)
    commands = [command for directory in directories if (command := read_command(directory))]
    part = "frame" if whole else Statement.of(alone[0][1]).part
    title = f"How robust is {about}?" if whole else f"Which {part}s does {about} depend on?"
    return write_report(
        results,
        read_images(whole[0][0], indices) if whole else None,
        out,
        title,
        command="\n".join(commands) or None,
        frames=by_method(alone),
        sequences=read_sequences(alone[0][0], alone[0][1].index) if alone else None,
        notices=notices,
        facts=read_facts(directories[0]),
    )


def _page(
    comparison: Comparison,
    pictures: Pictures | None,
    answers: Mapping[int, int],
    strips: Sequence[str],
    title: str,
    command: str,
    notices: Sequence[str],
    facts: Sequence[tuple[str, str]],
) -> str:
    left_out = comparison.left_out()
    doubts = doubtful(comparison.results[comparison.main].rows, comparison.statement)
    sections = [
        banner([*notices, *([left_out[0].upper() + left_out[1:]] if left_out else []), *doubts]),
        _opening(comparison, title),
        _mismatches(comparison),
        _tiles(comparison),
        _accuracy(comparison),
        _radii(comparison),
        _brackets(comparison),
        _by_class(comparison),
        *strips,
        "" if pictures is None else _gallery(comparison, pictures, answers),
        _table(comparison),
        reproduce(comparison.results[comparison.main], comparison.results, command, facts),
    ]
    return document(sections, title)


def _opening(comparison: Comparison, title: str) -> str:
    said = comparison.statement
    attack = (
        " From the other side, an attack searches for the smallest such change that does. The true"
        " distance lies between the two: at least the radius <em>proved</em>, at"
        " most the radius <em>broken</em>."
        if comparison.attacked
        else ""
    )
    lead = (
        "A classifier can be right about an input and yet change its mind when the input is altered"
        " by an amount nobody would notice. For every input below, frown computed a"
        f" <em>radius</em> and proved that no change within it {markup(said.altering())}: not just"
        " the changes somebody tried, but all of them, as long as"
        f" {markup(said.allowed())}.{attack}"
    )
    return opening(title, lead, said, comparison.results)


def _mismatches(comparison: Comparison) -> str:
    """A warning before all numbers where rows were withdrawn."""
    rows = [r for e in comparison.entries for r in e.rows.values() if r.status == "mismatch"]
    if not rows:
        return ""
    where = ", ".join(str(i) for i in sorted({r.index for r in rows})[:20])
    return (
        '<section class="mismatch"><h2>The model was not read as it runs</h2><p>Nothing is'
        f" proved of inputs {where}{', ...' if len({r.index for r in rows}) > 20 else ''}, and the"
        " other radii deserve no trust before this is understood:"
        f" {markup(rows[0].remark)}.</p></section>"
    )


def _tiles(comparison: Comparison) -> str:
    count = len(comparison.entries)
    right = sum(e.correct for e in comparison.entries)
    total = sum(comparison.seconds(m) for m in comparison.methods)
    each = ", ".join(
        f"{comparison.called(m)} {duration(comparison.seconds(m))}" for m in comparison.methods
    )
    main = comparison.called(comparison.main)
    model = Path(comparison.results[comparison.main].model).name
    tiles = [
        tile("Inputs", f"{count:,}", markup(model)),
        tile(
            comparison.statement.held().capitalize(),
            f"{percent(comparison.accuracy, 1)} %",
            f"{right:,} of {count:,}",
        ),
    ]
    looser = comparison.called(comparison.looser) if comparison.looser else ""
    gain = comparison.gain()
    if comparison.statement.eps is not None:
        # Radii are the one asked about or 0, so that their means say nothing.
        proved = sum(e.main.status in ("certified", "robust") for e in comparison.entries)
        name = f"Proved by {main} at {comparison.statement.at()}"
        share = f"{percent(proved / count, 1)} %"
        tiles.append(tile(name, share, f"{proved:,} of {count:,}", accent=True))
    elif gain is not None:
        larger = sum(
            e.proved > (e.radius(comparison.looser or "") or 0) for e in comparison.entries
        )
        tiles.append(
            tile(
                f"{main}’s radius against {looser}’s",
                f"{cut(100 * gain, 1, -1):+.1f} %",
                f"on average; larger for {larger:,} of {count:,} inputs",
                accent=True,
            )
        )
    else:
        mean = comparison.mean(comparison.main)
        tiles.append(tile(f"Mean radius proved by {main}", number(mean, -1), "", accent=True))
    tiles.append(tile("Time, all inputs", duration(total), markup(each)))
    means = "" if comparison.statement.eps is not None else _means(comparison)
    return f'<section class="tiles">{"".join(tiles)}{means}</section>'


def _means(comparison: Comparison) -> str:
    """Mean radius per method as bars, the attack's mean below for scale."""
    bars = [
        (comparison.called(m), method_class(comparison, m), comparison.mean(m), -1)
        for m in comparison.methods
    ]
    mean, found, every = comparison.mean_broken()
    if comparison.attacked:
        named = "Attack" if found == every else f"Attack ({found:,} of {every:,} broken)"
        bars.append((named, "attack", mean, 1))
    top = max((v for _, _, v, _ in bars if v is not None), default=0.0) or 1.0
    rows = "".join(
        f'<dt class="{kind} text">{markup(name)}</dt><dd class="track {kind}">'
        f'<i style="width:{100 * (value or 0) / top:.1f}%"></i></dd>'
        f'<dd class="{kind} text">{number(value, way)}</dd>'
        for name, kind, value, way in bars
    )
    endless = sum(not isfinite(e.proved) for e in comparison.entries)
    note = f"<small>without {endless:,} inputs proved at any radius</small>" if endless else ""
    attack = ", and broken by the attack" if comparison.attacked else ""
    return (
        f'<div class="tile means"><h3>Mean radius proved by each method{attack} (inputs'
        f" {comparison.statement.held()})</h3><dl>{rows}</dl>{note}</div>"
    )


def _accuracy(comparison: Comparison) -> str:
    between = (
        " Between a method’s curve and the attack’s lies what is not known: neither proved nor"
        " broken."
        if comparison.attacked
        else ""
    )
    said = comparison.statement
    stay = f"proved not to be overtaken by {said.rival()}" if said.targeted else "proved to stay so"
    first = said.share_title()
    stay = "proved to keep it" if said.condition else stay
    return (
        f"<section><h2>{first}{markup(said.against())}</h2><p>How many of the inputs"
        f" {said.being()} <em>and</em> are {markup(stay)}, as the radius grows; within a radius"
        f" r, {markup(said.allowed('r'))}. {markup(said.asked())}{between}</p>"
        f'<div class="panel">{legend(comparison, "not broken by the attack")}'
        f"{accuracy_chart(comparison, WIDE)}{accuracy_chart(comparison, NARROW)}</div></section>"
    )


def _radii(comparison: Comparison) -> str:
    bar = (
        " A grey stem leads from the radius proved to the nearest counterexample found."
        if comparison.attacked
        else ""
    )
    said = comparison.statement
    return (
        f"<section><h2>Radius of every input{markup(said.against())}</h2><p>One column per input,"
        " one dot per method; the higher the dot, the larger the change that is ruled out."
        f" {markup(said.asked())}{bar}</p>"
        f'<div class="panel dots">{legend(comparison, "nearest counterexample")}'
        f"{radius_chart(comparison, WIDE)}{radius_chart(comparison, NARROW)}</div></section>"
    )


def _brackets(comparison: Comparison) -> str:
    """Brackets before and after branching, where there was some."""
    entries = branched(comparison)
    if not entries or comparison.statement.eps is not None:
        return ""
    leaves = sum(e.main.leaves for e in entries)
    closed = sum(e.limit <= 1.011 * e.proved for e in entries)
    kind = method_class(comparison, comparison.main)
    rows = comparison.results[comparison.main].rows
    trees = "Their proofs distinguish" if proved_word(rows) == "proved" else "Their trees have"
    return (
        "<section><h2>Brackets before and after branching</h2><p>For every input, on the left the"
        " bracket from which branching went on, from proved to broken, and on the right the one"
        f" that it left: {closed:,} of {len(entries):,} are closed to 1.1 per cent. A dashed stroke"
        " has no upper end, since no counterexample is known."
        f" {trees} {leaves:,} cases, called leaves.</p>"
        '<div class="panel dots"><ul class="legend"><li><i class="key stem"></i>before branching'
        f'</li><li><i class="key {kind}"></i>after</li></ul>'
        f"{bracket_chart(comparison, WIDE)}{bracket_chart(comparison, NARROW)}</div></section>"
    )


def _by_class(comparison: Comparison) -> str:
    """Mean radius proved and accuracy, class by class; empty where there are too many or one."""
    held: dict[int, list[Entry]] = {}
    for entry in comparison.entries:
        if entry.main.label is not None:
            held.setdefault(entry.main.label, []).append(entry)
    if not 2 <= len(held) <= 40 or comparison.statement.eps is not None:
        return ""
    lines = []
    for label, entries in sorted(held.items()):
        radii = [e.proved for e in entries if e.correct and isfinite(e.proved)]
        mean = sum(radii) / len(radii) if radii else None
        right = sum(e.correct for e in entries)
        worst = min((e for e in entries if e.correct), key=lambda e: e.proved, default=None)
        least = "–" if worst is None else f"{number(worst.proved, -1)} (#{worst.index})"
        lines.append(
            f'<tr><td class="name">{markup(comparison.named(label))}</td>'
            f"<td>{len(entries):,}</td><td>{right:,}</td>"
            f"<td>{number(mean, -1)}</td><td>{least}</td></tr>"
        )
    held_so = comparison.statement.held()
    heads = ("class", "inputs", held_so, "mean radius proved", "least (input)")
    head = "".join(f'<th scope="col" class="plain">{name}</th>' for name in heads)
    return (
        f"<section><h2>Radii by class{markup(comparison.statement.against())}</h2>"
        f"<p>By {markup(comparison.called(comparison.main))}; means are over inputs"
        f" that {comparison.statement.being()}.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _filter(comparison: Comparison) -> str:
    """Fields that hide the rows of the table that are not looked for."""

    def choice(name: str, values: Sequence[object]) -> str:
        options = "".join(f"<option>{markup(str(v))}</option>" for v in values)
        return (
            f'<label>{name} <select name="{name}"><option value="">all</option>{options}'
            "</select></label>"
        )

    rows = [e.main for e in comparison.entries]
    labels = sorted({row.label for row in rows if row.label is not None})
    answers = sorted({row.prediction for row in rows if row.prediction is not None})
    classes = ""
    if labels:
        classes = choice("label", [comparison.named(k) for k in labels])
        classes += choice("answer", [comparison.named(k) for k in answers])
    return (
        '<div class="filter"><label>input <input type="search" name="input" inputmode="numeric"'
        f' size="7"></label>{classes}'
        f"{choice('status', sorted({row.status for row in rows}))}"
        f"<output>{len(rows):,} of {len(rows):,}</output></div>"
    )


def _gallery(comparison: Comparison, pictures: Pictures, answers: Mapping[int, int]) -> str:
    right = sum(e.correct for e in comparison.entries)
    count = len(comparison.entries)
    count = right if count > MOST and right else count
    shown = (
        f"The {MOST // 2} least and the {MOST // 2} most robust of {count:,} inputs"
        f"{f' that {comparison.statement.being()}' * (count < len(comparison.entries))}"
        if count > MOST
        else "All inputs, the least robust first"
    )
    beside = (
        ": on the left the input, on the right the nearest counterexample found"
        if comparison.attacked
        else ""
    )
    said = comparison.statement
    keys = (
        '<p class="note keys"><span><i class="key bar k-proved"></i>proved: no change within this'
        f' radius {markup(said.altering())}</span><span><i class="key bar k-open"></i>not known'
        '</span><span><i class="key bar"></i>broken</span></p>'
    )
    return (
        f"<section><h2>The images</h2><p>{shown}{beside}. Within a radius r,"
        f" {markup(said.allowed('r'))}. {markup(said.caveat())}</p>{keys}"
        f"{gallery(comparison, pictures, answers)}</section>"
    )


def _table(comparison: Comparison) -> str:
    targeted = any(e.main.target is not None for e in comparison.entries)
    span = comparison.span
    classed = any(e.main.label is not None for e in comparison.entries)
    own = "name" if comparison.results[comparison.main].class_names else ""
    heads = [("input", ""), *([("label", own), ("answer", own)] if classed else [])]
    heads += [("target", own)] if targeted else []
    heads += [("status", "text"), *((comparison.called(m), "") for m in comparison.methods)]
    taken = any(broken_as(e) is not None for e in comparison.entries)
    heads += [("broken", ""), *([("rival there", own)] if taken else [])]
    heads += [("leaves", "")] if branched(comparison) else []
    heads += [("seconds", "")]
    named = f' class="{own}"' if own else ""
    shown = _Shown(classed, targeted, taken, bool(branched(comparison)), named)
    rows = (_cells(comparison, e, shown, span) for e in comparison.entries)
    early = any(e.main.early for e in comparison.entries)
    seen = {e.main.status for e in comparison.entries}
    meanings = "; ".join(f"<em>{s}</em>: {text}" for s, text in STATUSES.items() if s in seen)
    said = comparison.statement
    star = "; <em>*</em>: ended early, more may be provable" if early else ""
    return (
        f"<section><h2>All results{markup(said.against())}</h2><p>The radius proved by each method,"
        f" the radius broken, and {markup(comparison.called(comparison.main))}’s time. Within a"
        f" radius r, {markup(said.allowed('r'))}. Click a column to sort by it.</p>"
        f'{_filter(comparison)}{table(heads, rows)}<p class="note">{meanings}{star}.</p></section>'
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """The columns that a table has besides those of every table."""

    classes: bool  # labels and answers
    target: bool
    taken: bool  # the classes that overtake the label at counterexamples
    leaves: bool
    named: str  # an attribute of cells that hold names of classes


def _cells(comparison: Comparison, entry: Entry, shown: _Shown, span: float) -> list[str]:
    row = entry.main
    star = "*" if row.early else ""
    cells = [f"<td>{entry.index}</td>"]
    if row.id:
        cells = [f'<td data-value="{entry.index}">{entry.index} {markup(row.id)}</td>']
    if shown.classes:
        both = (row.label, row.prediction)
        cells += [f"<td{shown.named}>{markup(comparison.named(k))}</td>" for k in both]
    if shown.target:
        target = "" if row.target is None else markup(comparison.named(row.target))
        cells.append(f"<td{shown.named}>{target}</td>")
    cells.append(f'<td class="text {markup(row.status)}">{markup(row.status)}{star}</td>')
    cells += [
        f'<td class="{method_class(comparison, m)}"{_sort_value(entry.radius(m))}>'
        f"{aligned(entry.radius(m), span, -1)}</td>"
        for m in comparison.methods
    ]
    broken = entry.limit if isfinite(entry.limit) else None
    cells.append(f"<td{_sort_value(broken)}>{aligned(broken, span, 1)}</td>")
    if shown.taken:
        answer = broken_as(entry)
        rival = "" if answer is None else markup(comparison.named(answer))
        cells.append(f"<td{shown.named}>{rival}</td>")
    if shown.leaves:
        cells.append(f"<td>{row.leaves or ''}</td>")
    return [*cells, f"<td>{row.seconds:.3f}</td>"]


def _sort_value(value: float | None) -> str:
    if value is None:
        return ' data-value=""'
    return f' data-value="{value:.9g}"' if isfinite(value) else ' data-value="Infinity"'


def _command(comparison: Comparison) -> str:
    """The command line that certifies with the main method again."""
    main = comparison.results[comparison.main]
    model = main.model if main.model.endswith(".onnx") else "MODEL.onnx"
    if not comparison.statement.typed:
        return ""
    method = comparison.entries[0].main.method
    options = [*comparison.statement.options(), "--method", method, "--out", "DIR"]
    return shlex.join(["frown", "certify", model, "DATA.npz", *options])
