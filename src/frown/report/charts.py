"""The report's two charts as inline SVG.

Colours and fonts come from the page's style sheet by class, so that one drawing serves light
and dark; each chart is drawn at two sizes, so that text stays readable on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite, log10

from frown.certification.results import cut, digits, markup, percent
from frown.certification.statement import proved_word
from frown.methods import TITLES
from frown.report.comparison import Comparison, Entry

WIDE, NARROW = (960, 400), (380, 330)
MOST_HOVERED = 400  # columns that tell their numbers to the pointer
MOST_DRAWN = 1200  # columns of a chart
_SLICES = 60  # places along an axis where the pointer gets numbers


def number(value: float | None, way: int = 0) -> str:
    """Three significant digits, without an exponent where that is shorter.

    The nearest ones, or those below (way -1) or above (way 1).
    """
    if value is None:
        return "–"
    if not isfinite(value):
        return "any radius" if value > 0 else "–"
    if value == 0:
        return "0"
    value = digits(value, 3, way) if way else value
    if not 1e-4 <= abs(value) < 1e5:
        return f"{value:.2e}"
    places = max(0, 2 - floor(log10(abs(value))))
    return f"{value:.{places}f}"


def aligned(value: float | None, span: float, way: int = 0) -> str:
    """`value` with as many decimals as tell numbers up to `span` apart, for a column."""
    if value is None or not isfinite(value) or not 1e-4 <= span < 1e5:
        return number(value, way)
    places = max(0, 3 - floor(log10(span) + 1e-9))
    return f"{cut(value, places, way) if way else value:.{places}f}" if value else "0"


def ticks(top: float, about: int) -> list[float]:
    """Round numbers 0, s, 2s, ... up to `top`, about `about` of them."""
    rough = top / about
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """The ticks with just the decimals that tell them apart."""
    if len(values) < 2:
        return [number(v) for v in values]
    step = values[1] - values[0]
    if not 1e-5 <= step < 1e5:
        return [f"{v:.1e}" if v else "0" for v in values]
    places = next(d for d in range(8) if abs(round(step, d) - step) < 1e-6 * step)
    return [f"{v:.{places}f}" if v else "0" for v in values]


@dataclass(frozen=True)
class Plane:
    """The drawing's coordinates of data with x in [0, right] and y in [0, top]."""

    width: int
    height: int
    right: float
    top: float
    margin_left: int = 66
    margin_right: int = 14
    margin_top: int = 14
    margin_bottom: int = 48

    def x(self, value: float) -> float:
        inside = self.width - self.margin_left - self.margin_right
        return self.margin_left + inside * min(max(value / self.right, 0.0), 1.0)

    def y(self, value: float) -> float:
        inside = self.height - self.margin_top - self.margin_bottom
        return self.height - self.margin_bottom - inside * min(max(value / self.top, 0.0), 1.0)

    def horizontal(self, values: Sequence[float], labels: Sequence[str], title: str) -> str:
        """Grid lines and labels of the y axis."""
        left, right = self.margin_left, self.width - self.margin_right
        parts = [
            f'<line class="grid" x1="{left}" x2="{right}" y1="{self.y(v):.1f}" '
            f'y2="{self.y(v):.1f}"/><text x="{left - 8}" y="{self.y(v) + 4:.1f}" '
            f'text-anchor="end">{markup(label)}</text>'
            for v, label in zip(values, labels, strict=True)
        ]
        middle = (self.y(0) + self.y(self.top)) / 2
        parts.append(
            f'<text class="axis" text-anchor="middle" '
            f'transform="translate(13 {middle:.1f}) rotate(-90)">{markup(title)}</text>'
        )
        return "".join(parts)

    def vertical(self, values: Sequence[float], labels: Sequence[str], title: str) -> str:
        """Ticks and labels of the x axis."""
        base = self.y(0)
        parts = [
            f'<line class="base" x1="{self.margin_left}" x2="{self.width - self.margin_right}" '
            f'y1="{base:.1f}" y2="{base:.1f}"/>'
        ]
        parts += [
            f'<line class="base" x1="{self.x(v):.1f}" x2="{self.x(v):.1f}" y1="{base:.1f}" '
            f'y2="{base + 5:.1f}"/><text x="{self.x(v):.1f}" y="{base + 19:.1f}" '
            f'text-anchor="middle">{markup(label)}</text>'
            for v, label in zip(values, labels, strict=True)
        ]
        middle = (self.x(0) + self.x(self.right)) / 2
        parts.append(
            f'<text class="axis" text-anchor="middle" x="{middle:.1f}"'
            f' y="{self.height - 8}">{markup(title)}</text>'
        )
        return "".join(parts)

    def hover(self, left: float, right: float, text: str) -> str:
        """An invisible strip of the drawing that shows `text` under the pointer."""
        top, base = self.margin_top, self.y(0)
        tip = "\n".join(map(markup, text.split("\n")))
        return (
            f'<g class="hover"><rect x="{left:.1f}" y="{top}" width="{max(right - left, 1):.1f}" '
            f'height="{base - top:.1f}"/><title>{tip}</title></g>'
        )


def method_class(comparison: Comparison, method: str) -> str:
    """The style-sheet class that gives `method` its colour on all of the page."""
    if method in TITLES:
        return f"m-{method}"
    others = [m for m in comparison.methods if m not in TITLES]
    return f"m-other{others.index(method) % 3}"


def accuracy_chart(comparison: Comparison, size: tuple[int, int]) -> str:
    """Certified accuracy against radius: a falling step curve per method, the attack above."""
    width, height = size
    plane = Plane(width, height, right=1.04 * comparison.span, top=1.0)
    along = ticks(plane.right, 8 if width > 600 else 4)
    up = [0, 0.25, 0.5, 0.75, 1.0]
    main = comparison.main
    main_steps = _steps(comparison.reaches(main), len(comparison.entries), plane)
    parts = [
        f'<path class="area {method_class(comparison, main)}" '
        f'd="{main_steps} V{plane.y(0):.1f} H{plane.x(0):.1f} Z"/>',
        plane.horizontal(up, [f"{100 * v:.0f} %" for v in up], "share of the inputs"),
        plane.vertical(along, tick_labels(along), comparison.statement.radius_title()),
    ]
    if comparison.attacked:
        limits = [e.limit for e in comparison.entries if e.correct]
        parts.append(
            f'<path class="line attack" d="{_steps(limits, len(comparison.entries), plane)}">'
            "<title>Attack: share of the inputs not broken</title></path>"
        )
    for method in comparison.methods:
        path = _steps(comparison.reaches(method), len(comparison.entries), plane)
        parts.append(
            f'<path class="line {method_class(comparison, method)}" d="{path}">'
            f"<title>{markup(comparison.called(method))}: share of the inputs "
            f"{proved_word(comparison.results[method].rows)}</title></path>"
        )
    for i in range(_SLICES):
        shown = number(plane.right * (i + 0.5) / _SLICES)
        here, lines = float(shown), [f"radius {shown}"]  # shares are those at it
        if comparison.attacked:
            lines.append(f"not broken: {percent(comparison.unbroken(here), 1)} %")
        lines += [
            f"{comparison.called(m)}: {percent(comparison.certified(m, here), 1)} % "
            + proved_word(comparison.results[m].rows)
            for m in reversed(comparison.methods)
        ]
        edges = (plane.right * i / _SLICES, plane.right * (i + 1) / _SLICES)
        parts.append(plane.hover(plane.x(edges[0]), plane.x(edges[1]), "\n".join(lines)))
    return drawing(size, f"{comparison.statement.share_title()} against radius", parts)


def radius_chart(comparison: Comparison, size: tuple[int, int]) -> str:
    """The radius of every input by every method, inputs sorted by the main method's radius."""
    width, height = size
    entries = sorted(comparison.entries, key=lambda e: (e.proved, e.limit))
    every, shown = len(entries), ""
    if every > MOST_DRAWN:  # evenly from the least robust to the most
        entries = [entries[k * (every - 1) // (MOST_DRAWN - 1)] for k in range(MOST_DRAWN)]
        shown = f"{MOST_DRAWN:,} of {every:,} "
    count = len(entries)
    plane = Plane(width, height, right=float(count), top=1.06 * comparison.span)
    up = ticks(plane.top, 6 if height > 350 else 5)
    slot = plane.x(1) - plane.x(0)
    parts = [
        plane.horizontal(up, tick_labels(up), comparison.statement.radius_title()),
        plane.vertical(
            [0.5, count - 0.5] if count > 1 else [0.5],
            ["smallest radius", "largest radius"] if count > 1 else [f"input {entries[0].index}"],
            f"{shown}inputs, sorted by {comparison.called(comparison.main)}’s radius",
        )
        .replace('text-anchor="middle">smallest', 'text-anchor="start">smallest')
        .replace('text-anchor="middle">largest', 'text-anchor="end">largest'),
    ]

    def points(values: Iterable[float | None], shift: float, mark: str) -> str:
        places = ((plane.x(i + 0.5) + shift, v) for i, v in enumerate(values))
        return "".join(f"M{x:.1f} {plane.y(v):.1f}{mark}" for x, v in places if v is not None)

    stems = "".join(
        f"M{plane.x(i + 0.5):.1f} {plane.y(e.proved):.1f}V{plane.y(e.limit):.1f}"
        for i, e in enumerate(entries)
        if e.correct and e.broken is not None
    )
    parts.append(f'<path class="stem" d="{stems}" stroke-width="{min(slot * 0.5, 3):.2f}"/>')
    if comparison.attacked:
        half = min(max(slot * 0.32, 1.0), 7.0)
        limits = (e.broken if e.correct else None for e in entries)
        ends = points(limits, -half, f"h{2 * half:.1f}")
        parts.append(f'<path class="broken" d="{ends}"/>')
    size_of_dot = min(max(slot * 0.42, 2.4), 7.0)
    for method in comparison.methods:
        grown = size_of_dot * (1.2 if method == comparison.main else 0.9)
        marks = points((e.radius(method) for e in entries), 0, "h0")
        parts.append(
            f'<path class="dot {method_class(comparison, method)}" d="{marks}" '
            f'stroke-width="{grown:.2f}"/>'
        )
    for i, entry in enumerate(entries if count <= MOST_HOVERED else ()):
        text = "\n".join(_entry_lines(comparison, entry))
        parts.append(plane.hover(plane.x(i), plane.x(i + 1), text))
    return drawing(size, "Radius of every input", parts)


def bracket_chart(comparison: Comparison, size: tuple[int, int]) -> str:
    """Two strokes per input: its bracket before branching, and the one that branching left."""
    width, height = size
    entries = sorted(branched(comparison), key=lambda e: (e.proved, e.limit))
    count = len(entries)
    plane = Plane(width, height, right=float(count), top=1.06 * comparison.span)
    up = ticks(plane.top, 6 if height > 350 else 5)
    slot = plane.x(1) - plane.x(0)
    stroke = min(max(slot * 0.28, 1.0), 7.0)
    colour = f"dot {method_class(comparison, comparison.main)}"
    parts = [
        plane.horizontal(up, tick_labels(up), comparison.statement.radius_title()),
        plane.vertical([], [], "inputs, sorted by what is proved"),
    ]
    for kind, shift in (("stem", -0.18), (colour, 0.18)):
        closed, open_ = list[str](), list[str]()
        for i, entry in enumerate(entries):
            low, top = entry.proved, entry.limit
            if kind == "stem":
                before = entry.main.broken_before
                low, top = entry.main.radius_before or 0.0, inf if before is None else before
            x = plane.x(i + 0.5) + shift * slot
            # A closed bracket is a dot: a stroke of no length has round ends.
            drawn = f"M{x:.1f} {plane.y(low):.1f}V{plane.y(top):.1f}"
            (closed if isfinite(top) else open_).append(drawn)
        for strokes, dashes in ((closed, ""), (open_, ' stroke-dasharray="2 8"')):
            parts.append(
                f'<path class="{kind}" d="{"".join(strokes)}" stroke-width="{stroke:.2f}"{dashes}/>'
            )
    for i, entry in enumerate(entries[:MOST_HOVERED]):
        row = entry.main
        text = (
            f"input {entry.index}: {row.leaves:,} leaves\nbefore branching: "
            f"{number(row.radius_before, -1)} to {_end(row.broken_before)}\n"
            f"after: {number(entry.proved, -1)} to {_end(entry.limit)}"
        )
        parts.append(plane.hover(plane.x(i), plane.x(i + 1), text))
    return drawing(size, "Brackets before and after branching", parts)


def _end(broken: float | None) -> str:
    """The upper end of a bracket."""
    known = broken is not None and isfinite(broken)
    return number(broken, 1) if known else "no counterexample found"


def branched(comparison: Comparison) -> list[Entry]:
    """The inputs whose brackets branching went on from."""
    return [e for e in comparison.entries if e.correct and e.main.radius_before is not None]


def legend(comparison: Comparison, attack: str) -> str:
    """Names and colours; `attack` explains the attack's mark in this chart."""
    items = [
        f'<li><i class="key {method_class(comparison, m)}"></i>{markup(comparison.called(m))}</li>'
        for m in comparison.methods
    ]
    if comparison.attacked:
        items.append(f'<li><i class="key attack"></i>{markup(attack)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _entry_lines(comparison: Comparison, entry: Entry) -> list[str]:
    label = "" if entry.main.label is None else f", label {comparison.named(entry.main.label)}"
    lines = [f"input {entry.index}{label}: {entry.main.status}"]
    if entry.correct and entry.broken is not None:
        lines.append(f"broken at {number(entry.broken, 1)}")
    lines += [
        f"{comparison.called(m)}: {number(entry.radius(m), -1)}"
        for m in reversed(comparison.methods)
    ]
    return lines


def _steps(radii: Iterable[float], count: int, plane: Plane) -> str:
    """Path of the share of `count` inputs whose radius is at least x, as x grows from 0."""
    values = sorted(radii)
    path = [f"M{plane.x(0):.1f} {plane.y(len(values) / count):.1f}"]
    for i, value in enumerate(values):
        if value > plane.right:
            break
        here = f"H{plane.x(value):.1f}"
        if path[-1].startswith(f"{here}V"):
            path.pop()  # one column of pixels: its last step is what is seen
        path.append(f"{here}V{plane.y((len(values) - i - 1) / count):.1f}")
    if not values or values[-1] > plane.right:
        path.append(f"H{plane.x(plane.right):.1f}")
    return "".join(path)


def drawing(size: tuple[int, int], title: str, parts: Iterable[str]) -> str:
    """A chart of these parts, shown on screens that its size is for."""
    width, height = size
    kind = "wide" if size == WIDE else "narrow"
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{markup(title)}">{"".join(parts)}</svg>'
    )
