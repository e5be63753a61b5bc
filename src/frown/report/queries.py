"""The page of a folder of queries: verdicts by family, times as a cactus plot, witnesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from statistics import median

from frown.certification.results import markup
from frown.certification.witness import ANSWERS
from frown.report.charts import NARROW, WIDE, Plane, drawing
from frown.report.parts import document, duration, table, tile

ERROR = "error"
LINES = {"unsat": "m-crown", "sat": "m-frown"}  # the colours of verdicts
SHOWN = 24  # lines of a witness
LEAST = 0.01  # seconds: what is shorter is drawn so


@dataclass(frozen=True, slots=True)
class Answered:
    """An instance and its answer."""

    family: str
    network: str
    query: str
    verdict: str
    seconds: float  # on the clock, from start to end of its process
    timeout: float
    witness: str = ""  # its lines, of `sat`
    remark: str = ""  # of an error, what it is

    @property
    def solved(self) -> bool:
        """True if it is decided."""
        return self.verdict in LINES


def queries_page(answers: Sequence[Answered], name: str, version: str) -> str:
    """One page about all answers of a run; `name` is the run's."""
    sections = [_opening(answers, name), _tiles(answers), _times(answers), _families(answers)]
    sections += [_witnesses(answers), _table(answers)]
    foot = f'<p class="note">frown {markup(version)}</p>'
    return document([*sections, foot], f"Queries of {name}")


def _opening(answers: Sequence[Answered], name: str) -> str:
    seen = {one.verdict for one in answers}
    told = {**ANSWERS, ERROR: "the query or the network is not read, or they do not fit"}
    meanings = "; ".join(f"<em>{w}</em>: {markup(t)}" for w, t in told.items() if w in seen)
    return (
        f'<p class="eyebrow">frown verify</p><h1>Queries of {markup(name)}</h1>'
        f'<p class="lead">Is there an input that satisfies a query? {meanings}.</p>'
        '<p class="note">A proof of <em>unsat</em> is about the network over the real numbers.</p>'
    )


def _tiles(answers: Sequence[Answered]) -> str:
    solved = [one for one in answers if one.solved]
    count = Counter(one.verdict for one in answers)
    times, families = [one.seconds for one in solved], len(_order(answers))
    within = "in 1 family" if families == 1 else f"in {families} families"
    tiles = [
        tile("Queries", f"{len(answers):,}", within),
        tile(
            "Decided",
            f"{len(solved):,}",
            f"{count['unsat']:,} unsat, {count['sat']:,} sat",
            accent=True,
        ),
        tile("Median time", duration(median(times)) if times else "–", "of those decided"),
        tile("Time", duration(sum(one.seconds for one in answers)), "of all, one after the other"),
    ]
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _order(answers: Sequence[Answered]) -> list[str]:
    return list(dict.fromkeys(one.family for one in answers))


def _times(answers: Sequence[Answered]) -> str:
    if not any(one.solved for one in answers):
        return ""
    keys = "".join(
        f'<li><span class="key {kind}"></span>{word}</li>'
        for word, kind in (("all decided", "attack"), *LINES.items())
    )
    charts = "".join(cactus(answers, size) for size in (WIDE, NARROW))
    return (
        "<section><h2>Time to decide</h2><p>How many queries are decided within a time, each for "
        "itself: the further right a line ends the more, the lower it stays the faster. Times are "
        "on the clock, start of the process included.</p>"
        f'<div class="panel"><ul class="legend">{keys}</ul>{charts}</div></section>'
    )


def cactus(answers: Sequence[Answered], size: tuple[int, int]) -> str:
    """Seconds of decided queries in rising order, on a scale of powers of ten."""
    solved = [one for one in answers if one.solved]
    seconds = [max(LEAST, one.seconds) for one in solved]
    first = int(log10(min(seconds) / LEAST))
    low = LEAST * 10.0**first
    last = next(k for k in range(1, 12) if low * 10.0**k >= max(seconds))
    plane = Plane(*size, right=float(len(solved)), top=float(last))
    up = [float(k) for k in range(last + 1)]
    step = max(1, -(-len(solved) // 8))
    along = [float(k) for k in range(0, len(solved) + 1, step)]
    parts = [
        plane.horizontal(up, [f"{low * 10.0**k:g} s" for k in range(last + 1)], "seconds"),
        plane.vertical(along, [f"{k:.0f}" for k in along], "queries decided"),
    ]
    for words, kind in (((*LINES,), "attack"), *(((w,), k) for w, k in LINES.items())):
        own = sorted((one for one in solved if one.verdict in words), key=lambda one: one.seconds)
        if not own:
            continue
        at = [log10(max(LEAST, one.seconds) / low) for one in own]
        path = [f"M{plane.x(0):.1f} {plane.y(at[0]):.1f}"]
        path += [f"V{plane.y(y):.1f}H{plane.x(k):.1f}" for k, y in enumerate(at, 1)]
        title = f"{' and '.join(words)}: {len(own)} decided"
        parts.append(f'<path class="line {kind}" d="{"".join(path)}"><title>{title}</title></path>')
    for k, one in enumerate(sorted(solved, key=lambda one: one.seconds)):
        text = f"{one.verdict} in {one.seconds:.2f} s\n{one.network}\n{one.query}"
        parts.append(plane.hover(plane.x(k), plane.x(k + 1), text))
    return drawing(size, "seconds of decided queries, in rising order", parts)


def _families(answers: Sequence[Answered]) -> str:
    words = [w for w in (*ANSWERS, ERROR) if any(one.verdict == w for one in answers)]
    rows = []
    for family in _order(answers):
        own = [one for one in answers if one.family == family]
        times = [one.seconds for one in own if one.solved]
        count = Counter(one.verdict for one in own)
        cells = [f'<td class="text">{markup(family or "–")}</td>', f"<td>{len(own)}</td>"]
        cells += [f"<td>{count[w] or '–'}</td>" for w in words]
        rows.append([*cells, f"<td>{f'{median(times):.2f}' if times else '–'}</td>"])
    heads = ["queries", *words, "median seconds, decided"]
    every = [("family", "text"), *((head, "") for head in heads)]
    return f"<section><h2>By family</h2>{table(every, rows)}</section>"


def _witnesses(answers: Sequence[Answered]) -> str:
    found = []
    for one in answers:
        if one.verdict == "sat" and one.witness:
            lines = one.witness.splitlines()
            more, shown = len(lines) - SHOWN, "\n".join(map(markup, lines[:SHOWN]))
            left = f"\n… and {more:,} lines more" if more > 0 else ""
            found.append(
                f"<details><summary>{markup(one.network)}, {markup(one.query)}</summary>"
                f"<pre>{shown}{left}</pre></details>"
            )
    if not found:
        return ""
    return (
        "<section><h2>Witnesses</h2><p>Inputs that satisfy their queries, with the outputs of the "
        f"original model there, every number with all its digits.</p>{''.join(found)}</section>"
    )


def _table(answers: Sequence[Answered]) -> str:
    words = ["family", "network", "query", "verdict", *["remark"] * any(a.remark for a in answers)]
    heads = [*((word, "text") for word in words), ("seconds", ""), ("limit", "")]
    rows = (
        [
            *(f'<td class="text">{markup(getattr(one, word))}</td>' for word in words),
            f"<td>{one.seconds:.2f}</td><td>{one.timeout:g}</td>",
        ]
        for one in answers
    )
    told = "<p>Click a column to sort by it.</p>"
    return f"<section><h2>All queries</h2>{told}{table(heads, rows)}</section>"
