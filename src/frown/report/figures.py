"""Figures for papers and notebooks, by matplotlib: fonts embedded, sizes in inches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from math import inf, isfinite
from pathlib import Path
from typing import Any

from frown.certification.folder import reported, write_whole
from frown.certification.results import Certification
from frown.certification.statement import norm_name, proved_word
from frown.errors import InvalidInput
from frown.methods import TITLES
from frown.report.comparison import Comparison, estimates
from frown.report.read import by_method, read_notices, read_results

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise InvalidInput("figures need matplotlib: pip install matplotlib") from None

KINDS = ("accuracy", "brackets", "radii")
FORMATS = ("pdf", "svg", "png")
_LABELS = 1.8  # of the axis of radii, for each inch of a panel: more would touch
STYLE: Any = {
    "pdf.fonttype": 42,  # TrueType, embedded: journals refuse type 3
    "svg.fonttype": "path",
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 300,
}


class Picture(Figure):
    """A figure that keeps its style when it is saved, and shows itself in notebooks."""

    def savefig(self, fname: Any, **options: Any) -> None:
        with rc_context(STYLE):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=150)
        return file.getvalue()


def figure(
    results: Mapping[str, Certification], kind: str, width: float, height: float | None = None
) -> Picture:
    """A figure of results by name; those that cannot be compared get panels of their own.

    Raises InvalidInput for an unknown kind, a size that is none, and empty results.
    """
    if kind not in KINDS:
        raise InvalidInput(f"unknown kind {kind!r}; choose from {', '.join(KINDS)}")
    panels = _panels(results)
    high = height if height is not None else 0.62 * width / len(panels) + 0.35
    for name, inches in (("width", width), ("height", high)):
        if not 0.5 <= inches <= 100:
            raise InvalidInput(f"{name} of {inches:g} inches: give 0.5 to 100")
    with rc_context(STYLE):
        drawn = Picture(figsize=(width, high), layout="constrained")
        places = drawn.subplots(1, len(panels), squeeze=False, sharey=kind == "accuracy")[0]
        for place, comparison, title in zip(places, panels, _titles(panels), strict=True):
            _DRAW[kind](place, comparison)
            if len(panels) > 1:
                place.set_title(title, fontsize=8)
    return drawn


def figure_from_files(
    directories: Sequence[Path],
    kind: str,
    format: str | None,
    out: Path | None,
    width: float,
    height: float | None,
    tell: Callable[[str], None] = lambda notice: None,
) -> Path:
    """Draw the results of earlier runs into a file and return it.

    What a reader of the figure should know, such as that a run was interrupted, goes to `tell`.

    Raises InvalidInput for folders without results, OutputError where nothing can be written.
    """
    ending = format or (out.suffix.lstrip(".").lower() if out is not None else "") or "pdf"
    if ending not in FORMATS:
        raise InvalidInput(f"unknown format {ending!r}; choose from {', '.join(FORMATS)}")
    read = [(directory, read_results(directory)) for directory in directories]
    results = by_method(read)
    for directory, found in read:
        for notice in read_notices(directory, found):
            tell(f"{directory}: {notice}")
    for panel in _panels(results):
        if left_out := panel.left_out():
            tell(left_out)
    drawn = figure(results, kind, width, height)
    target = out or Path(f"{kind}.{ending}")
    content = BytesIO()
    drawn.savefig(content, format=ending)
    with reported("write", target, "choose another --out"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content.getvalue())
    return target


def _panels(results: Mapping[str, Certification]) -> list[Comparison]:
    """Results in groups whose radii can be compared."""
    groups: list[dict[str, Certification]] = []
    for name, found in results.items():
        for group in groups:
            try:
                Comparison.of({**group, name: found})
            except InvalidInput:
                continue
            group[name] = found
            break
        else:
            groups.append({name: found})
    return [Comparison.of(group) for group in groups]


def _titles(panels: Sequence[Comparison]) -> list[str]:
    """The norm, the model or, where these are the same, the runs' names: whatever tells panels
    from one another."""
    titles = [_title(panel, panels) for panel in panels]
    runs = [", ".join(map(panel.called, panel.methods)) for panel in panels]
    return titles if len(set(titles)) == len(titles) else runs


def _title(comparison: Comparison, panels: Sequence[Comparison]) -> str:
    norms = {panel.norm for panel in panels}
    models = {panel.results[panel.main].model for panel in panels}
    parts = [Path(comparison.results[comparison.main].model).name] if len(models) > 1 else []
    parts += [f"{norm_name(comparison.norm)} norm"] if len(norms) > 1 else []
    return ", ".join(parts)


def _colour(comparison: Comparison, method: str) -> str:
    base = method.partition(" (")[0]
    same = [m for m in comparison.methods if m.partition(" (")[0] == base]
    palette = _palette()
    if len(same) == 1 and base in TITLES:
        return palette[base]
    places = [palette[name] for name in TITLES]
    return places[(comparison.methods.index(method) + 3) % len(places)]


@cache
def _palette() -> dict[str, str]:
    """The colours of the page's style sheet by name, those for light paper."""
    style = files("frown.report").joinpath("page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#\w{6})", style.partition("@media")[0]))


def _accuracy(place: Axes, comparison: Comparison) -> None:
    """Shares of the inputs as steps: exact at every radius, nothing interpolated."""
    right = 1.04 * comparison.span
    count = len(comparison.entries)
    if comparison.attacked:
        limits = [e.limit for e in comparison.entries if e.correct]
        _steps(place, limits, count, right, "not broken", color="black", ls="--", lw=0.8)
    for method in comparison.methods:
        colour, radii = _colour(comparison, method), comparison.reaches(method)
        _steps(place, radii, count, right, comparison.called(method), color=colour, lw=1.3)
    place.set(xlim=(0, right), ylim=(0, 1.0), xlabel=comparison.statement.radius_title())
    said = comparison.statement
    marked = {", estimated" for m in comparison.methods if estimates(comparison.results[m].rows)}
    some = "" if len(comparison.methods) == 1 or not marked else " in part"
    place.set_ylabel(f"{said.share_title().lower()}{said.against()}{''.join(marked)}{some}")
    place.legend(fontsize=7)
    place.xaxis.set_major_locator(MaxNLocator(max(2, int(_LABELS * _inches(place)))))


def _inches(place: Axes) -> float:
    """The width of a panel."""
    drawn = place.get_figure()
    assert drawn is not None
    panels = len(drawn.axes)
    return float(drawn.get_figure(root=True).get_figwidth()) / max(1, panels)


def _steps(
    place: Axes, radii: Sequence[float], count: int, right: float, label: str, **style: Any
) -> None:
    values = sorted(min(r, 2 * right) for r in radii)
    x, y = [0.0], [len(values) / count]
    for i, value in enumerate(values):
        x += [value, value]
        y += [y[-1], (len(values) - i - 1) / count]
    place.plot([*x, max(right, x[-1])], [*y, y[-1]], label=label, **style)


def _brackets(place: Axes, comparison: Comparison) -> None:
    """Draw a line from proved to broken for every input, sorted by the radius proved.

    Those before branching stand beside them."""
    entries = [e for e in comparison.entries if e.correct]
    entries.sort(key=lambda e: (e.proved, e.limit))
    top = 1.06 * comparison.span
    branched = any(e.main.radius_before is not None for e in entries)
    colour = _colour(comparison, comparison.main)
    held = proved_word(comparison.results[comparison.main].rows)
    called = comparison.called(comparison.main)
    told: set[str] = set()  # in the legend already
    width = min(2.5, max(0.6, 60 / max(len(entries), 1)))

    def once(label: str) -> str | None:
        first = label not in told
        told.add(label)
        return label if first else None

    for i, entry in enumerate(entries):
        row = entry.main
        if branched and row.radius_before is not None:
            upper = inf if row.broken_before is None else row.broken_before
            place.plot(
                [i - 0.2] * 2,
                [row.radius_before, min(upper, top)],
                color="#c9c4b8",
                lw=width,
                solid_capstyle="butt",
                ls="-" if isfinite(upper) else ":",
                label=once("before branching"),
            )
        known = isfinite(entry.limit)
        what = f"{held} to broken" if known else f"{held}, no counterexample found"
        place.plot(
            [i + 0.2 * branched] * 2,
            [min(entry.proved, top), min(entry.limit, top)],
            color=colour,
            lw=width,
            solid_capstyle="butt",
            marker="o",  # a bracket that is closed is a dot
            ms=width,
            mew=0,
            markevery=[0],
            ls="-" if known else ":",
            label=once(f"{called}: {what}"),
        )
    for method in comparison.methods[:-1]:
        radii = [e.radius(method) for e in entries]
        place.plot(
            range(len(entries)),
            [min(r or 0.0, top) for r in radii],
            ".",
            ms=2.5,
            color=_colour(comparison, method),
            label=f"{comparison.called(method)}: {proved_word(comparison.results[method].rows)}",
        )
    place.set(ylim=(0, top), xlabel=f"inputs, sorted by what is {held}", xticks=[])
    place.set_ylabel(comparison.statement.radius_title())
    if entries:
        place.legend(fontsize=7)


def _radii(place: Axes, comparison: Comparison) -> None:
    """Every method's proved radii, each in its own order."""
    for method in comparison.methods:
        radii = [e.radius(method) for e in comparison.entries if e.correct]
        finite = sorted(r for r in radii if r is not None and isfinite(r))
        place.plot(
            range(len(finite)),
            finite,
            drawstyle="steps-mid",
            lw=1.2,
            color=_colour(comparison, method),
            label=comparison.called(method),
        )
    place.set(xlabel=f"inputs {comparison.statement.held()}, by growing radius")
    rows = [row for entry in comparison.entries for row in entry.rows.values()]
    place.set_ylabel(f"{proved_word(rows)} {comparison.statement.radius_title()}")
    place.set_ylim(bottom=0)
    place.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    place.legend(fontsize=7)


_DRAW = {"accuracy": _accuracy, "brackets": _brackets, "radii": _radii}
