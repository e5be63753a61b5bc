"""Strips of radii, one for every input, that show which frames of a sequence may be sensitive.

A strip is a table whose cells are coloured, with the frame's own content above each number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, log

import numpy as np
from numpy.typing import NDArray

from frown.certification.results import (
    STATUSES,
    Certification,
    Row,
    Sensitivity,
    class_text,
    markup,
    mean_ends,
    percent,
)
from frown.certification.statement import Statement
from frown.errors import InvalidInput
from frown.jobs.table import lowest
from frown.report.charts import number
from frown.report.comparison import caution, display_name, require_comparable
from frown.report.parts import banner, document, duration, opening, reproduce, tile
from frown.report.png import data_uri
from frown.report.read import FLAT

MOST = 60  # inputs
_TALL = 64  # pixels of the highest bar
_DEEPEST = 78  # per cent of the accent colour, so that ink on it stays readable

# Of a cell without a radius by its status: what it shows, its class, and what that means.
_WORDS = {
    "robust": ("any", "any", "proved for every valid value of it"),
    "misclassified": ("wrong", "wrong", "misclassified before any change"),
    "mismatch": ("mismatch", "wrong", STATUSES["mismatch"]),
}


@dataclass(frozen=True)
class Shades:
    """Colours of radii: the smaller the radius the deeper, evenly in its logarithm."""

    least: float
    most: float

    @classmethod
    def of(cls, found: Sensitivity) -> Shades:
        radii = [r.radius for r in found.rows if r.radius > 0 and r.limited]
        return cls(min(radii, default=1.0), max(radii, default=1.0))

    def depth(self, radius: float) -> float:
        """Per cent of the accent colour."""
        if radius <= self.least:
            return float(_DEEPEST)
        return _DEEPEST * log(self.most / radius) / log(self.most / self.least)


def frames_sections(
    frames: Mapping[str, Sensitivity],
    results: Mapping[str, Certification],
    sequences: NDArray[np.floating] | None,
) -> list[str]:
    """One section per method.

    Raises InvalidInput where models, data, units, regions or properties differ, those of
    `results` included, or where there are no rows.
    """
    if not all(found.rows for found in frames.values()):
        raise InvalidInput("no rows to report: the results of frames are empty")
    require_comparable(frames)
    alone = {f"{m}, {Statement.of(one).part}s alone": one for m, one in frames.items()}
    require_comparable({**results, **alone}, frames=False)
    first = next(iter(frames.values())).index
    return [
        frames_section(method, found, sequences if found.index == first else None)
        for method, found in frames.items()
    ]


def frames_section(method: str, found: Sensitivity, sequences: NDArray[np.floating] | None) -> str:
    """The strips of one method; `sequences` (N, *input shape) are the inputs in their order."""
    shades, index = Shades.of(found), found.index
    shown = index[:MOST]
    said = Statement.of(found)
    pictures = None
    if sequences is not None and said.part == "frame":
        pictures = _pictures(sequences, int(found.settings.get("frame_axis") or 0))
    held = {(row.index, int(row.frames)): row for row in found.rows}
    lines = []
    for place, i in enumerate(shown):
        content = None if pictures is None else pictures[place]
        lines.append(_line(found, i, held, shades, content))
    over = means(found)
    ghosts = ", grey where each of them has a counterexample" if any(b for _, b in over) else ""
    bars = (
        f"The bars are means over the inputs {said.held()} whose radius has an end{ghosts}."
        if over
        else ""
    )
    kept = f" The first {MOST} of {len(index)} inputs." if len(index) > MOST else ""
    above = " Above each number stands what the frame holds." if pictures is not None else ""
    attack = (
        " Below it stands the distance of the nearest counterexample that the attack found by"
        f" changing that {said.part}."
        if np.isfinite(found.broken).any()
        else ""
    )
    return (
        f"<section><h2>{said.part.capitalize()}s, one at a time, by {markup(display_name(method))}"
        f"{markup(said.against())}</h2><p>Only one"
        f" {said.part} may change, all others stay as they are. Each number is the"
        f" {markup(said.radius_title())} that {markup(display_name(method))} proved for that"
        f" {said.part}"
        f" alone: no change within it {markup(said.altering())}. Within a radius r,"
        f" {markup(said.allowed('r'))}. {markup(said.caveat())} {markup(said.asked())} The smaller"
        f" a radius is, the deeper its colour.{attack} A small radius"
        f" may only mean that no better proof was found.{above}{kept}</p>"
        f'<p class="note shades">radius proved<span>{number(shades.least, -1)}</span><i></i>'
        f"<span>{number(shades.most, -1)}</span></p>"
        '<div class="scroll" tabindex="0"><table class="strips">'
        f"<thead>{_heads(found)}{_profile(found)}</thead><tbody>{''.join(lines)}</tbody>"
        "</table></div>"
        f'<p class="note">{bars}{_meanings(found)}</p></section>'
    )


def frames_page(
    frames: Mapping[str, Sensitivity],
    strips: Sequence[str],
    title: str,
    command: str | None,
    notices: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """A page on frames alone; `facts` (name and text) join the list of how to repeat the run."""
    method, main = list(frames.items())[-1]
    seconds = sum(row.seconds for found in frames.values() for row in found.rows)
    tiles = [tile(name, value, below) for name, value, below in _tiles(method, main)]
    tiles.append(tile("Time, all inputs", duration(seconds), ""))
    sections = [
        banner([*notices, *caution(frames)]),
        _opening(title, main, frames),
        f'<section class="tiles">{"".join(tiles)}</section>',
        *strips,
        reproduce(main, frames, command or "", facts),
    ]
    return document(sections, title)


def _opening(title: str, found: Sensitivity, frames: Mapping[str, Sensitivity]) -> str:
    said = Statement.of(found)
    lead = (
        f"For every {said.part} of every input below, frown computed a"
        f" <em>radius</em> and proved that no change of this {said.part} within it, while all"
        f" others stay as they are, {markup(said.altering())}, as long as {markup(said.allowed())}."
        f" {said.part.capitalize()}s with a small radius may be those that the answer depends on;"
        " a large radius rules out all changes of that size."
    )
    return opening(title, lead, said, frames)


def _tiles(method: str, found: Sensitivity) -> list[tuple[str, str, str]]:
    """Name, value and what stands below it."""
    right = {row.index for row in found.rows if row.status != "misclassified"}
    count, said = len(found), Statement.of(found)
    least: Counter[int] = Counter()
    of = 0
    for i in right if said.eps is None else ():  # else all radii are the one asked about, or 0
        radii = {int(r.frames): r for r in found.rows if r.index == i and r.limited}
        lowest_of = lowest(radii, lambda row: row.radius)
        least.update([] if lowest_of is None else [lowest_of])
        of += bool(radii)
    tiles = [
        ("Inputs", f"{count:,}", f"{len(found.frames):,} {said.part}s each"),
        (
            said.held().capitalize(),
            f"{percent(len(right) / count, 1)} %",
            f"{len(right):,} of {count:,}",
        ),
    ]
    if least:
        frame, times = least.most_common(1)[0]
        below = f"by {display_name(method)}, for {times:,} of {of:,} inputs"
        tiles.append(("Least radius proved", f"{said.part} {said.part_name(frame)}", below))
    return tiles


def means(found: Sensitivity) -> list[tuple[float | None, float | None]]:
    """`mean_ends` of every frame; none where all radii are the one asked about, or 0."""
    if Statement.of(found).eps is not None:
        return []
    return [mean_ends([r for r in found.rows if r.frames == str(f)]) for f in found.frames]


def _line(
    found: Sensitivity,
    index: int,
    held: dict[tuple[int, int], Row],
    shades: Shades,
    content: list[str] | None,
) -> str:
    cells, whole = [], Statement.of(found)
    first = next(held[index, f] for f in found.frames if (index, f) in held)
    for frame in found.frames:
        row = held.get((index, frame))
        image = f'<img src="{content[frame]}" alt="frame {frame}">' if content else ""
        if row is None:
            cells.append(f'<td class="none">{image}<span>–</span></td>')
            continue
        said, kind = _said(row)
        depth = shades.depth(row.radius) if kind == "" else 0.0
        tip = markup(f"input {index}, {whole.part} {whole.part_name(frame)}: {_told(row)}")
        cells.append(
            f'<td{kind} style="--d:{depth:.0f}%" title="{tip}">{image}<span>{said}</span>'
            f"{_broken(row)}</td>"
        )
    label, read = (class_text(k, found.class_names) for k in (first.label, first.prediction))
    about = "" if first.label is None else f"label {markup(label)}"
    if first.status == "misclassified" and about:
        about += f", read as {markup(read)}"
    called = f" {first.id}" if first.id else ""
    head = f'<th scope="row"><b>#{index}{markup(called)}</b><small>{about}</small></th>'
    return f"<tr>{head}{''.join(cells)}</tr>"


def _said(row: Row) -> tuple[str, str]:
    """The text of a cell, and its class where it shows no radius."""
    if row.status in _WORDS:
        text, kind, _ = _WORDS[row.status]
        return text, f' class="{kind}"'
    if isnan(row.radius):
        return "–", ' class="none"'
    return number(row.radius, -1) + ("*" if row.early else ""), ""


def _broken(row: Row) -> str:
    return (
        "" if row.broken is None or not row.limited else f"<small>{number(row.broken, 1)}</small>"
    )


def _told(row: Row) -> str:
    if row.status in _WORDS:
        return row.remark if row.status == "mismatch" else _WORDS[row.status][2]
    broken = (
        "no counterexample found" if row.broken is None else f"broken at {number(row.broken, 1)}"
    )
    return f"proved {number(row.radius, -1)}, {broken}"


def _heads(found: Sensitivity) -> str:
    said = Statement.of(found)
    heads = "".join(f'<th scope="col">{markup(said.part_name(f))}</th>' for f in found.frames)
    return f'<tr><th class="corner">{said.part}</th>{heads}</tr>'


def _profile(found: Sensitivity) -> str:
    """Mean radius of every frame as a bar, before that of the counterexamples."""
    over = means(found)
    if not over:
        return ""
    top = max((v for ends in over for v in ends if v is not None), default=0.0) or 1.0
    bars = "".join(
        f'<td><div><i class="ghost" style="height:{_TALL * (b or 0) / top:.1f}px"></i>'
        f'<i style="height:{_TALL * (p or 0) / top:.1f}px"></i></div><span>{number(p, -1)}</span>'
        f"{'' if b is None else f'<small>{number(b, 1)}</small>'}</td>"
        for p, b in over
    )
    return f'<tr class="profile"><th scope="row">mean</th>{bars}</tr>'


def _meanings(found: Sensitivity) -> str:
    seen = {row.status for row in found.rows}
    words = [(text, meaning) for status, (text, _, meaning) in _WORDS.items() if status in seen]
    if any(row.early for row in found.rows):
        words.append(("*", "ended early, more may be provable"))
    return "".join(f" <em>{text}</em>: {meaning}." for text, meaning in words)


def _pictures(sequences: NDArray[np.floating], axis: int) -> list[list[str]]:
    """Every frame of every sequence as a picture, on one grey scale."""
    finite = sequences[np.isfinite(sequences)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, max(high, low + 1e-12))
    grey = np.nan_to_num(255 * (sequences - low) / (high - low)).clip(0, 255).astype(np.uint8)
    return [
        [data_uri(_laid_out(frame, x)) for frame in np.moveaxis(x, axis, 0)] for x in grey[:MOST]
    ]


def _laid_out(frame: NDArray[np.uint8], whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A frame as a picture: as it lies if it has two axes, as a band of rows where the whole is
    a well-known flat image, else its features from top to bottom."""
    flat = np.squeeze(frame)
    if flat.ndim == 2:
        return flat
    image = FLAT.get((whole.size,), ())
    if len(image) == 2 and whole.ndim == 2 and frame.size % image[1] == 0:
        return frame.reshape(-1, image[1])
    return frame.reshape(-1, 1)
