"""Pictures of the tables: gain against depth, seconds of FROWN and LP, groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import atan, ceil, degrees, floor, isfinite, isinf, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.paper.figures import FIGURES, GROUP_FIGURES, GROUP_NETWORK
from benchmarks.paper.networks import DATA
from benchmarks.paper.summary import Summary, gain
from frown.errors import InvalidInput, OutputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Picture

FORMATS = ("png", "svg")

# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOUR = {"relu": "#0072b2", "sigmoid": "#d55e00", "tanh": "#009e73"}
_MARKER = {"relu": "o", "sigmoid": "s", "tanh": "^"}
_NAME = {"relu": "ReLU", "sigmoid": "sigmoid", "tanh": "tanh"}


def require_matplotlib() -> None:
    """Raise InvalidInput, with the remedy, where pictures cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "pictures need matplotlib, which is not installed: pip install 'frown[plots]', "
            "or leave them out with --no-plots"
        ) from None


def _picture(width: float, height: float) -> Picture:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _plain(axes: Axes) -> None:
    """A light grid, no frame on the right and above."""
    axes.grid(True, color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


# -- gain against depth ------------------------------------------------------------------

Family = tuple[str, int]  # data set, width


def gain_picture(lines: Iterable[Summary]) -> Picture | None:
    """FROWN's gain over CROWN by depth, a panel per data set, width and norm.

    Filled and solid: ours. Hollow and dashed: the paper's. None if nothing was measured.
    """
    measured = [s for s in lines if s.gain("frown") is not None]
    if not measured:
        return None
    families = sorted(
        {(s.line.network.data, s.line.network.width) for s in measured},
        key=lambda family: (list(DATA).index(family[0]), family[1]),
    )
    norms = sorted({s.line.norm for s in measured})
    picture = _picture(max(4.4, 2.9 * len(families)), 1.1 + 2.2 * len(norms))
    panels = picture.subplots(len(norms), len(families), squeeze=False)
    drawn = [
        [_gain_panel(axes, measured, family, norm) for family, axes in zip(families, row)]
        for norm, row in zip(norms, panels)
    ]
    for n, row in enumerate(panels):
        for k, axes in enumerate(row):
            above = any(drawn[i][k] for i in range(n))
            below = any(drawn[i][k] for i in range(n + 1, len(norms)))
            if not drawn[n][k]:
                axes.set_visible(False)
                continue
            if not above:
                data, width = families[k]
                axes.set_title(f"{DATA[data]}, {width} neurons per layer", fontsize=9)
            if not below:
                axes.set_xlabel("layers", fontsize=9)
            if not any(drawn[n][:k]):
                axes.set_ylabel("p = ∞" if isinf(norms[n]) else f"p = {norms[n]:g}", fontsize=10)
    picture.suptitle("Gain of FROWN’s mean radius over CROWN’s", fontsize=11)
    used = [a for a in _COLOUR if any(s.line.network.activation == a for s in measured)]
    kinds: list[tuple[str, Mapping[str, Any]]] = [
        (f"{_NAME[a]}, ours", {"color": _COLOUR[a], "marker": _MARKER[a], "markersize": 5})
        for a in used
    ]
    if any(line.get_linestyle() == "--" for axes in picture.axes for line in axes.get_lines()):
        kinds.append(("the paper’s", {"color": "#555555", "ls": "--", "marker": "o", **_HOLLOW}))
    _figure_legend(picture, kinds)
    return picture


_HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markersize": 5}


def _figure_legend(
    picture: Picture, kinds: Sequence[tuple[str, Mapping[str, Any]]], ncols: int = 4
) -> None:
    """Explain colours and lines below all panels; as many side by side as the width takes."""
    from matplotlib.lines import Line2D

    ncols = min(ncols, max(1, int(picture.get_figwidth() / 2)))
    handles = [Line2D([], [], label=label, **style) for label, style in kinds]
    picture.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(ncols, len(handles)),
        frameon=False,
        fontsize=9,
    )


def _gain_panel(axes: Axes, lines: Sequence[Summary], family: Family, norm: float) -> bool:
    """Whether there was something to draw."""
    from matplotlib.ticker import MaxNLocator

    here = [
        s
        for s in lines
        if (s.line.network.data, s.line.network.width) == family and s.line.norm == norm
    ]
    if not here:
        return False
    _plain(axes)
    depths = sorted({s.line.network.layers for s in here})
    axes.set_xticks(depths)
    axes.margins(x=0.12, y=0.12)
    lowest = 0.0
    for activation in dict.fromkeys(s.line.network.activation for s in here):
        style: dict[str, Any] = {"color": _COLOUR[activation], "marker": _MARKER[activation]}
        mine = sorted(
            (s.line.network.layers, 100 * found.value)
            for s in here
            if s.line.network.activation == activation and (found := s.gain("frown")) is not None
        )
        names = {m: f"{family[0]}_{m}x{family[1]}_{activation}" for m in depths}
        theirs = [
            (m, 100 * figure.frown_gain)
            for m, name in names.items()
            if (figure := FIGURES.get((name, norm))) is not None
        ]
        lowest = min([lowest, *(y for _, y in mine + theirs)])
        if theirs:
            axes.plot(*_unzip(theirs), linestyle="--", linewidth=1, **style, **_HOLLOW)
        axes.plot(*_unzip(mine), linewidth=1.6, markersize=5, **style)
    if lowest >= 0:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:+g}%" if value else "0")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.tick_params(labelsize=8)
    return True


def _unzip(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


# -- seconds -----------------------------------------------------------------------------


def seconds_picture(lines: Iterable[Summary]) -> Picture | None:
    """Seconds per image, LP against FROWN, both on logarithmic axes. None without LP."""
    ours: list[tuple[str, float, float, bool]] = []
    theirs: list[tuple[str, float, float, bool]] = []
    for s in lines:
        frown, lp = s["frown"], s["lp"]
        seconds = lp.time if lp.limit is None else lp.limit
        if not frown.time or not seconds:
            continue
        activation = s.line.network.activation
        ours.append((activation, frown.time, seconds, lp.limit is not None))
        f = s.figure
        if f is not None and f.frown_seconds and f.lp_seconds:
            theirs.append((activation, f.frown_seconds, f.lp_seconds, f.lp_unfinished))
    if not ours:
        return None
    picture = _picture(6.4, 5.8)
    axes = picture.subplots()
    _plain(axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for points, filled in ((theirs, False), (ours, True)):
        for kind, x, y, unfinished in points:
            colour = _COLOUR[kind]
            face = colour if filled else "white"
            marker = _MARKER[kind]
            axes.plot(x, y, marker, color=colour, markerfacecolor=face, markersize=6)
            if unfinished:
                axes.annotate(
                    "",
                    (x, 1.7 * y),
                    (x, 1.08 * y),
                    arrowprops={"arrowstyle": "->", "color": colour},
                )
    _ratios(axes, [p[1:3] for p in ours + theirs])
    axes.set_xlabel("FROWN, seconds per image")
    axes.set_ylabel("LP, seconds per image")
    _numbers(axes.xaxis, axes.yaxis)
    axes.set_title("Seconds of the LP-based method against FROWN’s", fontsize=11)
    none = {"linestyle": "none", "markersize": 6}
    used = [a for a in _COLOUR if any(p[0] == a for p in ours + theirs)]
    kinds: list[tuple[str, Mapping[str, Any]]] = [
        (f"{_NAME[a]}, ours", {"color": _COLOUR[a], "marker": _MARKER[a], **none}) for a in used
    ]
    if theirs:
        hollow = {"color": "#555555", "markerfacecolor": "white", "marker": "o", **none}
        kinds.append(("the paper’s, its machine", hollow))
    if any(p[3] for p in ours + theirs):
        kinds.append(("given up there", {"color": "#555555", "marker": r"$\uparrow$", **none}))
    _figure_legend(picture, kinds, ncols=3)
    return picture


def _numbers(*axes: Axis) -> None:
    """Powers of ten in full: 0.1, 1, 1,000."""
    for axis in axes:
        axis.set_major_formatter(lambda value, place: f"{value:,g}")
        axis.set_minor_formatter("")


def _ratios(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Diagonals at which LP takes 1, 10, 100, ... times as long."""
    x0, x1 = min(x for x, _ in points) / 2, max(x for x, _ in points) * 2
    y0, y1 = min(y for _, y in points) / 2, max(y for _, y in points) * 2.5
    axes.set_xlim(x0, x1)
    axes.set_ylim(y0, y1)
    lowest, highest = min(y / x for x, y in points), max(y / x for x, y in points)
    powers = {0, 1, 2, *range(floor(log10(lowest)), ceil(log10(highest)) + 1)}
    for factor in (10.0**power for power in sorted(powers)):
        left, right = max(x0, y0 / factor), min(x1, y1 / factor)
        if left * 1.5 >= right:
            continue
        axes.plot([left, right], [factor * left, factor * right], color="#bbbbbb", lw=0.8, zorder=0)
        # Along the line and above it, a little before its upper end.
        x = left * (right / left) ** 0.95
        axes.text(
            x, factor * x, f"{factor:,g}×", rotation=degrees(atan(factor)),
            rotation_mode="anchor", transform_rotates_text=True, clip_on=True,
            ha="right", va="bottom", fontsize=8, color="#777777",
        )  # fmt: skip


# -- groups ------------------------------------------------------------------------------


def group_picture(lines: Sequence[Summary]) -> Picture | None:
    """Mean radius, beside the smallest group's, and seconds by the size of groups (Table 8).

    None if nothing was measured.
    """
    done = sorted(
        (s for s in lines if s["frown"].radius and s.line.group > 0), key=lambda s: s.line.group
    )
    if not done:
        return None
    picture = _picture(8.4, 3.6)
    tight, time = picture.subplots(1, 2)
    groups = [s.line.group for s in done]
    first = done[0]["frown"]
    colour = _COLOUR["relu"]
    shares = [(s.line.group, 100 + 100 * g.value) for s in done if (g := gain(s["frown"], first))]
    tight.plot(*_unzip(shares), "o-", color=colour, label="FROWN, ours")
    crown = gain(done[0]["crown"], first)
    if crown is not None and isfinite(crown.value):
        tight.axhline(100 + 100 * crown.value, color=colour, lw=1, ls=":", label="CROWN, ours")
    time.plot(groups, [s["frown"].time or 0.0 for s in done], "o-", color=colour, label="ours")
    if all(s.line.network.name == GROUP_NETWORK for s in done):
        _paper_groups(tight, time)
    for axes, text in (
        (tight, f"mean radius, of that in groups of {groups[0]}"),
        (time, "seconds per image"),
    ):
        _plain(axes)
        axes.set_xscale("log", base=2)
        axes.set_xticks(groups, [str(g) for g in groups])
        axes.minorticks_off()
        axes.set_xlabel("neurons that share lines")
        axes.set_ylabel(text)
        axes.legend(framealpha=0.85, edgecolor="none", fontsize=8)
    tight.yaxis.set_major_formatter(lambda value, place: f"{value:g}%")
    time.set_yscale("log")
    _numbers(time.yaxis)
    picture.suptitle("Groups of neurons: tightness and time, MNIST 4x[1024] ReLU", fontsize=11)
    return picture


def _paper_groups(tight: Axes, time: Axes) -> None:
    gpu = [f for f in GROUP_FIGURES if f.device == "gpu"]
    cpu = [f for f in GROUP_FIGURES if f.device == "cpu"]
    style: dict[str, Any] = {"color": _COLOUR["sigmoid"], **_HOLLOW}
    shares = [(f.group, 100 * f.radius / gpu[0].radius) for f in gpu]
    tight.plot(*_unzip(shares), "s--", label="FROWN, paper", **style)
    time.plot([f.group for f in gpu], [f.seconds for f in gpu], "s--", label="paper, GPU", **style)
    time.plot([f.group for f in cpu], [f.seconds for f in cpu], "D", label="paper, CPU", **style)


def write_picture(picture: Picture, path: Path) -> None:
    """As the path's ending says."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(picture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(path, dpi=160)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
