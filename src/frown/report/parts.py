"""Parts that every page has: the document around it, tiles, tables, and how to repeat the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from frown.certification.results import LEVELS, Certification, Sensitivity, markup
from frown.certification.statement import KEY, SAID, Statement, levels_text, uncertified
from frown.jobs.table import duration as told
from frown.report.comparison import display_name

# Settings that the statement tells in words, or that stand elsewhere.
_TOLD = {"method", "norm", "level", KEY, *(name for names in SAID.values() for name in names)}


def document(sections: Sequence[str], title: str) -> str:
    here = files("frown.report")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{markup(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(s for s in sections if s)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def tile(name: str, value: str, below: str, *, accent: bool = False) -> str:
    kind = "tile accent" if accent else "tile"
    return (
        f'<div class="{kind}"><h3>{markup(name)}</h3><strong>{markup(value)}</strong>'
        f"<small>{below}</small></div>"
    )


def table(heads: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """A table that a click on a column's head sorts by it.

    Heads are texts with style-sheet classes, rows are of cells in HTML (<td>...</td>).
    """
    head = "".join(
        f'<th class="{kind}" scope="col"><button type="button">{markup(name)}</button></th>'
        for name, kind in heads
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


OURS = "Written by frown."  # in the footer of every page


def reproduce(
    main: Certification | Sensitivity,
    results: Mapping[str, Certification | Sensitivity],
    command: str,
    more: Sequence[tuple[str, str]] = (),
) -> str:
    """The settings that all results share, main's own, and how each method's radii were proved."""
    everything = [row for found in results.values() for row in found.rows]
    certified = sum(bool(row.certificate) for row in everything)
    facts = [
        ("model", main.model),
        ("SHA-256", main.digest),
        *more,
        ("frown", main.version),
        ("methods", ", ".join(display_name(m) for m in results)),
        *Statement.of(main).facts_shown(),
        *(
            (key, _plain(value))
            for key, value in main.settings.items()
            if key not in _TOLD and value is not None
        ),
        ("level", _levels(results)),
        ("certificates", f"of {certified} of {len(everything)} rows" if certified else ""),
    ]
    rows = "".join(
        f"<dt>{markup(name.replace('_', ' '))}</dt><dd>{markup(text)}</dd>"
        for name, text in facts
        if text
    )
    lines = "\n".join(map(markup, command.split("\n")))
    pre = f"<pre>{lines}</pre>" if command else ""
    return (
        "<section><h2>How to reproduce this</h2>"
        f'<dl class="facts">{rows}</dl>{pre}</section>'
        f"<footer>{OURS} This page holds all its data and loads nothing.</footer>"
    )


def banner(notices: Sequence[str]) -> str:
    """A notice that must be read before anything else on the page."""
    lines = "".join(f"<p>{markup(notice)}</p>" for notice in notices)
    return f'<div class="banner" role="alert">{lines}</div>' if notices else ""


def opening(
    title: str,
    lead: str,
    said: Statement,
    results: Mapping[str, Certification | Sensitivity],
) -> str:
    """The page's title, what it is about (`lead`, in HTML), and what the radii of all its runs
    mean."""
    more = " ".join(text for text in (said.caveat(), said.asked(), _proved_how(results)) if text)
    return (
        f'<p class="eyebrow">frown robustness report</p>\n<h1>{markup(title)}</h1>\n'
        f'<p class="lead">{lead}</p>'
        f'<p class="note">{markup(more)} Radii are in {markup(said.units())}.</p>'
    )


def _proved_how(results: Mapping[str, Certification | Sensitivity]) -> str:
    """A sentence on the levels of the radii, by run where they differ, and one on execution where
    it is covered."""
    runs = {name: [row for row in found.rows if row.proved] for name, found in results.items()}
    levels = {name: levels_text(rows) for name, rows in runs.items() if rows}
    proved = [row for rows in runs.values() for row in rows]
    if not proved:
        return ""
    if len(set(levels.values())) == 1:
        text = f"Level of the proofs: {levels_text(proved)}."
    else:
        each = "; ".join(f"{display_name(name)}: {told}" for name, told in levels.items())
        text = f"Levels of the proofs: {each}."
    if any(row.level == "estimate" for row in proved):
        text += " An estimate is no proof: rounding may have gone the wrong way."
    covered = sum(bool(row.deployed) for row in proved)
    if covered:
        which = sorted({row.deployed for row in proved if row.deployed})[0]
        of = "" if covered == len(proved) else f" for {covered:,} of {len(proved):,} radii"
        text += f" Execution in {which} is covered{of}{uncertified(proved)}."
    return text


def _levels(results: Mapping[str, Certification | Sensitivity]) -> str:
    """The level of each method's radii, and what levels mean."""
    counts = {m: Counter(row.level for row in r.rows if row.proved) for m, r in results.items()}
    named = {
        method: ", ".join(f"{n} {level}" if len(held) > 1 else level for level, n in held.items())
        for method, held in counts.items()
        if held
    }
    apart = [f"{display_name(method)}: {text}" for method, text in named.items()]
    levels = sorted({level for held in counts.values() for level in held})
    meaning = [f"{level}: {LEVELS[level]}" if level in LEVELS else level for level in levels]
    return "; ".join([*(apart if len(levels) > 1 else []), *meaning])


def _plain(value: Any) -> str:
    """A setting as text, long arrays by their shape."""
    if isinstance(value, np.ndarray | list | tuple) and np.size(value) > 8:
        return f"array of shape {'×'.join(map(str, np.shape(value)))}"
    if isinstance(value, np.ndarray | list | tuple):
        return ", ".join(str(v) for v in np.ravel(np.asarray(value, dtype=object)))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.{1 if seconds >= 1 else 2}f}\N{NO-BREAK SPACE}s"
    return told(seconds)
