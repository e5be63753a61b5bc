"""Results of a certification, one row per input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a row's status can be, and what it means.
STATUSES = {
    "certified": "proved at the radius shown; with --eps: proved at that radius",
    "robust": "proved for the whole valid range: no radius can change the answer",
    "misclassified": "the label does not win at the input itself (a tie is no win); radius 0",
    "falsified": "only with --eps: a counterexample within that radius was found",
    "unknown": "nothing could be proved (or, with --eps, neither proved nor broken)",
    "mismatch": "the imported graph and the original model disagree: nothing is proved, see remark",
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


@dataclass(frozen=True, slots=True)
class Row:
    """The answer for one input.

    `radius` is proved. `failed` is the least radius at which the method gave up, and `broken` the
    radius of the nearest counterexample found (None: none): a point on which the original model
    violates the property, output[label] - output[other] <= 0 for another class (or the target). A
    tie is one, whichever class argmax names. The truth lies in [radius, broken]. `prediction` is
    the first class with the largest output at the input.
    """

    index: int
    label: int
    prediction: int
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
    complete: bool = True  # False: the time limit or an interrupt ended the search early
    certificate: str = ""  # its file's name, where one was written
    remark: str = ""  # what else a reader must know, as of a solver that gave up
    deployed: str = ""  # a precision: it is proved for the network as executed in that, too
    frames: str = "all"  # what moved: one ball over all, "each" in its own, chosen ones ("0:3")
    input: str = ""  # SHA-256 of the input as little-endian doubles

    def proves(self, radius: float) -> bool:
        """True if the property is proved within `radius`.

        At 0, too, that takes a proof: a row of which nothing was proved has the radius 0, and so
        has one with `eps` 0 that was.
        """
        proved = self.radius > 0 or self.status in ("certified", "robust")
        return proved and self.radius >= radius


@dataclass(frozen=True)
class Certification:
    """All rows of one call, with what is needed to repeat it."""

    rows: tuple[Row, ...]
    counterexamples: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by row index
    model: str = ""
    digest: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    version: str = ""

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

    def certified_accuracy(self, radius: float) -> float:
        """Share of the inputs proved to be classified right within `radius`."""
        good = [r.proves(radius) for r in self.rows]
        return float(np.mean(good)) if good else 0.0

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        mean = float(np.mean(self.radius)) if self.rows else float("nan")
        return f"<Certification of {len(self.rows)} inputs, mean radius {mean:.4g}>"


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
        mean = np.nanmean(self.radius, axis=0) if self.rows else np.full(len(self.frames), np.nan)
        shown = ", ".join(f"{r:.3g}" for r in mean)
        return f"<Sensitivity of {len(self)} inputs, mean radius by frame {shown}>"
