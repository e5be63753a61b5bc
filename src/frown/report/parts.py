"""What every page is made of: the document around it, tiles, and how to repeat the run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from frown.report.charts import norm_name
from frown.report.comparison import display_name
from frown.results import Certification, Sensitivity


def document(sections: Sequence[str], title: str) -> str:
    here = files("frown.report")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(s for s in sections if s)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def tile(name: str, value: str, below: str, *, accent: bool = False) -> str:
    kind = "tile accent" if accent else "tile"
    return (
        f'<div class="{kind}"><h3>{escape(name)}</h3><strong>{escape(value)}</strong>'
        f"<small>{below}</small></div>"
    )


def reproduce(
    main: Certification | Sensitivity, methods: Sequence[str], levels: Sequence[str], command: str
) -> str:
    facts = [
        ("model", main.model),
        ("SHA-256", main.digest),
        ("frown", main.version),
        ("methods", ", ".join(display_name(m) for m in methods)),
        ("norm", norm_name(main.rows[0].norm)),
        *(
            (key, _plain(value))
            for key, value in main.settings.items()
            if key not in ("method", "norm") and value is not None
        ),
        ("checked", _levels(levels)),
    ]
    rows = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(text)}</dd>"
        for name, text in facts
        if text
    )
    pre = f"<pre>{escape(command)}</pre>" if command else ""
    return (
        "<section><h2>How to reproduce this</h2>"
        f'<dl class="facts">{rows}</dl>{pre}</section>'
        "<footer>Written by frown. This page holds all its data and loads nothing.</footer>"
    )


def _levels(levels: Sequence[str]) -> str:
    plain = "estimate: bounds in plain floating point, whose rounding errors are not accounted for"
    return "; ".join(plain if level == "estimate" else level for level in levels)


def _plain(value: Any) -> str:
    """A setting as text, long arrays by their shape."""
    if isinstance(value, np.ndarray | list | tuple) and np.size(value) > 8:
        return f"array of shape {'×'.join(map(str, np.shape(value)))}"
    if isinstance(value, np.ndarray | list | tuple):
        return ", ".join(str(v) for v in np.ravel(np.asarray(value, dtype=object)))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2f}\N{NO-BREAK SPACE}s"
    if seconds < 100:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
