"""Results of a certification, one row per input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from html import escape
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, overload
from unicodedata import category

import numpy as np
from numpy.typing import ArrayLike, NDArray

from frown.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a row's status can be, and what it means.
STATUSES = {
    "certified": "proved at the radius shown",
    "robust": "proved for the whole valid range, at any radius",
    "misclassified": "wrong before any change",
    "falsified": "a counterexample lies within the radius asked about",
    "unknown": "nothing was proved",
    "mismatch": "the imported graph and the original model disagree, so nothing is proved",
}


# How a radius was proved, and what that means.
LEVELS = {
    "estimate": "bounds in plain floating point, whose rounding errors are not accounted for",
    "rigorous": "proved for the real-valued network, all rounding errors accounted for",
    "checked": "rigorous, and the independent checker has accepted the certificate",
}


def cut(value: float, places: int, way: int = 0) -> float:
    """A number with this many decimals: the nearest (way 0), one below (-1) or above (1)."""
    if not isfinite(value):
        return value
    how = {-1: ROUND_FLOOR, 0: ROUND_HALF_EVEN, 1: ROUND_CEILING}[way]
    return float(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-places), how))


def digits(value: float, count: int, way: int = 0) -> float:
    """A number as text with this many significant digits.

    Proved radii are rounded down, and the radius of a counterexample up, so that both hold at the
    number shown.
    """
    places = count - 1 - Decimal(repr(float(value))).adjusted()
    return cut(value, places, way) if value else value


def percent(share: float, places: int = 0) -> str:
    """A share in per cent, rounded down: 100 where nothing is left out, and not before. 0 and
    100 have no decimals."""
    # A quotient of whole numbers is off by far less than any two of them differ.
    held = cut(100 * share + 1e-9 * (share < 1), places, -1)
    return f"{held:.0f}" if share in (0, 1) else f"{held:.{places}f}"


def class_text(number: int | None, names: Sequence[str] = ()) -> str:
    """A class by its name or, where it has none, by its number; a dash where a question is about
    none."""
    if number is None:
        return "–"
    return names[number] if number < len(names) else str(number)


@dataclass(frozen=True, slots=True)
class Row:
    """The answer for one input.

    `radius` is proved. `failed` is the least radius at which the method gave up, and `broken` the
    radius of the nearest counterexample found (None: none): a point on which the original model
    violates the property, output[label] - output[other] <= 0 for another class (or the target). A
    tie is one, whichever class argmax names. The truth lies in [radius, broken]. `prediction` is
    the first class with the largest output at the input. Questions that are about no
    class (`within`, `multilabel`, a file's property) have neither label nor prediction.
    """

    index: int
    label: int | None  # None: the question is about no class
    prediction: int | None  # likewise
    target: int | None  # None: every other class
    norm: float
    method: str
    status: str
    radius: float
    failed: float | None
    broken: float | None
    margins: dict[int, float]  # proved lower bound of output[label] - output[class] at `radius`
    seconds: float
    level: str = "estimate"  # how it was proved: a key of LEVELS
    certificate: str = ""  # its file's name, where one was written
    certificate_sha256: str = ""  # of that file as it was written
    complete: bool = True  # False: the time limit or an interrupt ended the search early
    remark: str = ""  # what else a reader must know, as of a solver that gave up
    deployed: str = ""  # a precision: it is proved for the network as executed in that, too
    frames: str = "all"  # what moved: one ball over all, "each" in its own, chosen ones ("0:3")
    input: str = ""  # SHA-256 of the input as little-endian doubles
    broken_as: int | None = None  # the class that overtakes the label at that counterexample
    leaves: int = 0  # cases that the proof distinguishes; 0: it is not one by cases
    # Where branching went on: both ends of the bracket before, no further apart than they were.
    radius_before: float | None = None
    broken_before: float | None = None
    id: str = ""  # the user's own name of the input, where there is one
    holds: str = ""  # a digest of what must hold, where label and target do not say it

    @property
    def proved(self) -> bool:
        """True if something is proved, or estimated: `level` says which. A row of which nothing is
        has the radius 0, and so has one with `eps` 0 of which all is."""
        return self.radius > 0 or self.status in ("certified", "robust")

    @property
    def reach(self) -> float:
        """The radius up to which the property is proved: infinite where the whole valid range is,
        for no larger radius adds a point to it."""
        return inf if self.status == "robust" else self.radius

    def proves(self, radius: float) -> bool:
        """True if the property is proved within `radius`. At 0, too, that takes a proof."""
        return self.proved and self.reach >= radius

    @property
    def limited(self) -> bool:
        """True if the radius is a number that can be averaged beside those of other frames."""
        return self.status not in ("misclassified", "robust", "mismatch") and isfinite(self.radius)

    @property
    def early(self) -> bool:
        """True if the search ended before its time where more might have come of it."""
        return not self.complete and self.status in ("certified", "unknown")


_KINDS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}


def fields_of(
    kind: Any, record: Mapping[str, Any], others: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Any]:
    """The fields of a dataclass in a record of plain values, each as its type says; `others` make
    values of further types. Raises KeyError for one that is missing and has no default."""
    found, kinds = dict[str, Any](), {**_KINDS, **others}
    for own in fields(kind):
        if own.name in record or own.default is MISSING:
            value, (name, _, maybe) = record[own.name], str(own.type).partition(" | ")
            found[own.name] = None if value is None and maybe else kinds[name](value)
    return found


# Columns of a table that is too wide to be shown whole: pandas prints its ends.
_FIRST = ("index", "id", "status", "radius", "broken", "label", "prediction")
_LAST = ("norm", "method", "level")


@dataclass(frozen=True)
class Certification:
    """All rows of one call, with what is needed to repeat it."""

    rows: tuple[Row, ...]
    counterexamples: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by row index
    model: str = ""
    digest: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    class_names: tuple[str, ...] = ()  # of the model's outputs, where data name them

    @property
    def radius(self) -> NDArray[np.float64]:
        """(N,) proved lower bounds of the distance to the nearest wrong answer."""
        return np.array([row.radius for row in self.rows])

    @property
    def broken(self) -> NDArray[np.float64]:
        """(N,) distance of the nearest counterexample found, inf where there is none."""
        return np.array([np.inf if r.broken is None else r.broken for r in self.rows])

    @property
    def status(self) -> list[str]:
        return [row.status for row in self.rows]

    @overload
    def certified_accuracy(self, radius: float) -> float: ...

    @overload
    def certified_accuracy(self, radius: ArrayLike) -> float | NDArray[np.float64]: ...

    def certified_accuracy(self, radius: ArrayLike) -> float | NDArray[np.float64]:
        """Share of the inputs proved to be classified right within `radius`; for an array of radii
        one share each. Radii of the level `estimate` count as well, and are no proofs: see
        `Row.level`."""
        asked = np.asarray(radius, dtype=np.float64)
        shares = [
            float(np.mean([r.proves(float(one)) for r in self.rows])) if self.rows else 0.0
            for one in asked.ravel()
        ]
        return shares[0] if asked.ndim == 0 else np.array(shares).reshape(asked.shape)

    # -- where people work -------------------------------------------------------------

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one line per input, its number as the index.

        Raises InvalidInput where pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InvalidInput("to_pandas needs pandas: pip install pandas") from None
        ends = (*_FIRST, *_LAST, "margins")
        between = (name for name in Row.__dataclass_fields__ if name not in ends)
        columns = [*_FIRST, *between, *_LAST]
        held = [{name: getattr(row, name) for name in columns} for row in self.rows]
        frame = pandas.DataFrame(held, columns=columns)
        for name in ("label", "prediction", "target", "broken_as"):  # whole numbers, or none
            frame[name] = frame[name].astype("Int64")
        for name in ("failed", "broken", "radius_before", "broken_before"):
            frame[name] = frame[name].astype("float64")
        return frame.set_index("index")

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the files that `frown certify --out` writes, which `frown.open` and
        `frown report` read; with `force` over those of an earlier run.

        Raises OutputError where they cannot be written.
        """
        return Path(_above("jobs.files").save_results(self, Path(folder), force=force))

    def plot(
        self,
        kind: str = "accuracy",
        *others: Certification,
        width: float = 5.0,
        height: float | None = None,
    ) -> Figure:
        """A matplotlib figure, `width` inches wide, of this result and `others` beside it.

        Args:
            kind: "accuracy" (certified accuracy against radius), "brackets" (proved to broken, for
                every input) or "radii" (proved radii, sorted).

        Raises InvalidInput for another kind, and where matplotlib is not installed.
        """
        results: dict[str, Certification] = {}
        for one in (self, *others):
            name = one.rows[0].method if one.rows else "none"
            numbered = (f"{name} ({k})" for k in range(2, len(results) + 3))
            free = name if name not in results else next(n for n in numbered if n not in results)
            results[free] = one
        figure: Figure = _above("report.figures").figure(results, kind, width, height)
        return figure

    def report(self, out: str | Path = "report.html", images: ArrayLike | None = None) -> Path:
        """Write one self-contained page; `images` (N, H, W) or (N, H, W, 3), where inputs are some.

        Raises OutputError where the file cannot be written.
        """
        title = f"How robust is {Path(self.model).name or 'a network'}?"
        method = self.rows[0].method if self.rows else "frown"
        shown = None if images is None else np.asarray(images)
        page = _above("report.page").write_report({method: self}, shown, Path(out), title)
        return Path(page)

    def _repr_html_(self) -> str:
        """The first rows as a table, for notebooks."""
        most = 10
        cells = "".join(
            f"<tr><td>{row.index}</td><td>{markup(class_text(row.label, self.class_names))}</td>"
            f"<td>{markup(class_text(row.prediction, self.class_names))}</td>"
            f"<td>{markup(row.status)}</td><td>{_shown(row.radius, -1)}</td>"
            f"<td>{_shown(row.broken, 1)}</td><td>{row.level if row.proved else ''}</td></tr>"
            for row in self.rows[:most]
        )
        more = f"<p>… and {len(self) - most} more</p>" if len(self) > most else ""
        names = ("index", "label", "prediction", "status", "radius", "broken", "level")
        head = "".join(f"<th>{name}</th>" for name in names)
        said = _above("certification.statement").Statement.of(self).lines()
        told = "".join(f"<p>{markup(line)}</p>" for line in (repr(self)[1:-1], *said))
        return f"{told}<table><tr>{head}</tr>{cells}</table>{more}"

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Certification: ...

    def __getitem__(self, place: int | slice) -> Row | Certification:
        """The row at a place, or the rows of a slice as a result of their own."""
        if isinstance(place, slice):
            rows = self.rows[place]
            kept = {row.index for row in rows}
            found = {i: x for i, x in self.counterexamples.items() if i in kept}
            return replace(self, rows=rows, counterexamples=found)
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        radii, left_out = averaged(self.rows)
        searched = (self.settings.get("statement") or {}).get("eps") is None  # else they were given
        proved = sum(row.status in ("certified", "robust") for row in self.rows)
        mean, left_out = (f", {proved} of them certified", "") if not searched else ("", left_out)
        if searched and radii:
            mean = f", mean radius {digits(sum(radii) / len(radii), 4, -1):.4g}"
        levels = sorted({row.level for row in self.rows if row.proved})
        told = f", {' and '.join(levels) or 'nothing proved'}"
        return f"<Certification of {len(self.rows)} inputs{mean}{left_out}{told}>"


def averaged(rows: Sequence[Row]) -> tuple[list[float], str]:
    """The radii that a mean is of, and words on what it leaves out: inputs that violate the
    property themselves, and radii without an end."""
    held = [row.radius for row in rows]
    right = [row.radius for row in rows if row.status != "misclassified"]
    finite = [radius for radius in right if isfinite(radius)]
    others = {"misclassified": len(held) - len(right), "unlimited": len(right) - len(finite)}
    named = _and({what: n for what, n in others.items() if n})
    return finite, f" (without {named})" if named else ""


def _and(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{n} {what}" for what, n in counts.items())


def mean_ends(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """Means of both ends of a frame's brackets, over rows whose radius has an end. There is none of
    counterexamples where a row has none: it would be about other inputs than the first."""
    held = [row for row in rows if row.limited]
    ends = [row.broken for row in held if row.broken is not None]
    proved = mean(row.radius for row in held) if held else None
    return proved, mean(ends) if held and len(ends) == len(held) else None


def _above(module: str) -> Any:
    """A module of a layer above: files and pages know results, which know only their names."""
    return import_module(f"frown.{module}")


def _shown(value: float | None, way: int) -> str:
    """A radius with four digits, rounded to the side on which it holds."""
    if value is None:
        return "–"
    return f"{digits(value, 4, way):.4g}" if isfinite(value) else "any"


@dataclass(frozen=True)
class Sensitivity:
    """The radius of every frame on its own.

    There is one row per input and frame, whose `frames` names the one that moves.
    """

    rows: tuple[Row, ...]
    frames: tuple[int, ...]
    # By row index and frame.
    counterexamples: dict[tuple[int, int], NDArray[np.float64]] = field(default_factory=dict)
    model: str = ""
    digest: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    class_names: tuple[str, ...] = ()  # of the model's outputs, where data name them

    @property
    def index(self) -> list[int]:
        """The inputs' numbers, in the order of the tables' rows."""
        return list(dict.fromkeys(row.index for row in self.rows))

    @property
    def radius(self) -> NDArray[np.float64]:
        """(N, frames) proved; NaN where a run ended before its row."""
        return self._table(lambda row: row.radius)

    @property
    def broken(self) -> NDArray[np.float64]:
        """(N, frames) distance of the nearest counterexample found, inf where there is none."""
        return self._table(lambda row: np.inf if row.broken is None else row.broken)

    def row(self, index: int, frame: int) -> Row | None:
        """The answer for one frame of an input."""
        found = (r for r in self.rows if r.index == index and r.frames == str(frame))
        return next(found, None)

    def _table(self, value: Callable[[Row], float]) -> NDArray[np.float64]:
        held = {(row.index, row.frames): value(row) for row in self.rows}
        return np.array(
            [[held.get((i, str(f)), np.nan) for f in self.frames] for i in self.index]
        ).reshape(-1, len(self.frames))

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        means = [mean_ends([r for r in self.rows if r.frames == str(f)])[0] for f in self.frames]
        shown = ", ".join("–" if r is None else f"{digits(r, 3, -1):.3g}" for r in means)
        left_out = Counter(row.status for row in self.rows if not row.limited)
        shown += f" (without {_and(left_out)} of {len(self.rows)} rows)" if left_out else ""
        levels = sorted({row.level for row in self.rows if row.proved})
        told = f", {' and '.join(levels) or 'nothing proved'}"
        return f"<Sensitivity of {len(self)} inputs, mean radius by frame {shown}{told}>"


# Controls, formats (bidi marks, zero-width), lone surrogates, private use, unassigned; line and
# paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(text: object) -> str:
    """One line in which every character is seen; those that are not are written as \\x1b."""
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    told = (c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in shown)
    return "".join(t if category(c) in _UNSEEN else c for c, t in zip(shown, told, strict=True))


def plain_lines(text: object) -> str:
    """Several lines, those after the first indented, so that no name can begin a line of ours."""
    first, *rest = str(text).split("\n")
    return "\n".join([plain(first), *(f"  {plain(line).lstrip()}" for line in rest)])


def markup(text: object) -> str:
    """The text of an HTML page, between tags or inside quotes."""
    return escape(plain(text))


def cell(value: object) -> object:
    """A value of a CSV file; text that a spreadsheet would take for a formula gets a quote."""
    if isinstance(value, str):
        shown = plain(value)
        return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
    return value
