"""The claims of rows in words: the region in which inputs move, and the property that holds there.

Pages, cards, charts, comparisons and the terminal's summary take their sentences from here, so that
all of them speak of the same thing. Options of `frown certify` that change what is said are listed
below; a test lists all others, so that none is forgotten.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frown.certification.results import LEVELS, Certification, Row, Sensitivity, fields_of, plain
from frown.problem.problem import Moving, Regions
from frown.problem.property import GIVEN, Condition
from frown.read.model import Model

# Options that change the region, the property, their units, or how they are proved.
SAID = {
    "region": ("norm", "frames", "frame_axis", "sensitivity", "scale", "fix", "bounds", "eps"),
    "property": ("output", "target", "threshold", "within", "multilabel", "top", "property"),
    "units": ("divide", "mean", "std"),
    "proof": ("level", "deployed"),
}
KEY = "statement"  # where a result's settings hold it
MOST_NAMES = 12  # features that are named in a sentence
EACH, BOX = "one per input", "the whole box"  # of `Statement.eps`

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers by feature: the least, the largest, and SHA-256 of all as little-endian doubles."""

    least: float
    largest: float
    sha256: str

    @classmethod
    def of(cls, values: NDArray[np.float64], shape: tuple[int, ...]) -> Spread:
        every = np.broadcast_to(values, shape).astype("<f8")
        digest = hashlib.sha256(np.ascontiguousarray(every).tobytes()).hexdigest()
        return cls(float(every.min()), float(every.max()), digest)

    @classmethod
    def read(cls, held: Mapping[str, Any]) -> Spread:
        """Numbers from plain values, as settings hold them."""
        return cls(float(held["least"]), float(held["largest"]), str(held["sha256"]))

    def __str__(self) -> str:
        return (
            shortest(self.least)
            if self.single
            else f"{shortest(self.least)} to {shortest(self.largest)}"
        )

    def about(self) -> str:
        """Both ends, to four digits where they have more."""
        if self.single:
            return str(self)
        ends = (self.least, self.largest)
        return " to ".join(min(shortest(n), f"{n:.4g}", key=len) for n in ends)

    @property
    def single(self) -> bool:
        return self.least == self.largest


@dataclass(frozen=True, slots=True)
class Statement:
    """output[label] > output[o], for the classes o that `target` says, at every x around x0 that
    `norm`, `frames`, `scale` and the valid range allow at a row's radius."""

    norm: float
    frames: str = "all"
    frame_axis: int = 0
    sensitivity: bool = False  # every frame alone
    scale: Spread | None = None  # of the features that may move
    fixed: int = 0  # features of the frames that move whose scale is 0
    features: int = 0  # of the frames that move
    still: str = ""  # the names of those that are fixed, where they have some
    part: str = "frame"  # what moves alone, with `sensitivity`: a frame, or a feature
    parts: tuple[str, ...] = ()  # the names of all of those, where they have some
    lower: Spread | None = None  # the valid range
    upper: Spread | None = None
    divide: float | None = None  # of the numbers in the data file
    mean: Spread | None = None  # the model is given (x - mean) / std
    std: Spread | None = None
    target: str = "all"  # every other class; a class; +K; `GIVEN`
    eps: str | None = None  # the radius asked about, `EACH` or `BOX`; None: searched for
    deployed: str = ""
    condition: str = ""  # in words, where it is not that labels win
    output: str = ""  # the one that it is about, of a model with several
    precision: str = ""  # narrower than float32, in which the file computes

    # -- to and from settings ----------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON, without those that are not set; infinity is a word."""

        def value(held: Any) -> Any:
            if isinstance(held, dict):
                return {k: value(v) for k, v in held.items()}
            return str(held) if isinstance(held, float) and isinf(held) else held

        said = {k: value(v) for k, v in asdict(self).items()}
        return {k: v for k, v in said.items() if v not in (None, "", False, (), "frame")} | {
            "norm": norm_text(self.norm)
        }

    @classmethod
    def of(cls, result: Certification | Sensitivity) -> Statement:
        """The statement of a result, as its settings hold it; without one, as rows tell it."""
        held = result.settings.get(KEY)
        if isinstance(held, Mapping):
            return cls.read(held)
        return cls._guess(result.rows, isinstance(result, Sensitivity))

    @classmethod
    def read(cls, held: Mapping[str, Any]) -> Statement:
        """The statement that plain values hold, as `facts` gives them."""
        others = {"Spread": Spread.read, "tuple[str, ...]": lambda v: tuple(map(str, v))}
        return cls(**fields_of(cls, held, others))

    @classmethod
    def _guess(cls, rows: Iterable[Row], sensitivity: bool) -> Statement:
        """The statement of rows made by hand, as far as they tell it themselves."""
        first, targets = next(iter(rows), None), {row.target for row in rows}
        single = len(targets) == 1 and targets != {None}
        return cls(
            norm=inf if first is None else first.norm,
            frames="all" if first is None or sensitivity else first.frames,
            sensitivity=sensitivity,
            target=str(targets.pop()) if single else "all" if targets <= {None} else GIVEN,
        )

    # -- the region --------------------------------------------------------------------

    @property
    def scaled(self) -> bool:
        return self.scale is not None and (not self.scale.single or self.scale.least != 1)

    @property
    def box(self) -> bool:
        """True if regions are boxes of given ends, which have no radius."""
        return self.eps == BOX

    def allowed(self, radius: str = "the radius") -> str:
        """A clause on which changes are within a radius."""
        if self.box:
            within = f"no number of the input leaves its box{self.range_text()}"
            return f"{within}, made narrower about its middle by the factor {radius}"
        clause = self._moving() + self._size(radius)
        if self.fixed and self.still:
            clause += f"; {self.still} may not change at all"
        elif self.fixed:
            clause += f"; {self.fixed:,} of {self.features:,} numbers may not change at all"
        if self.lower is not None and self.upper is not None:
            clause += f"; every number stays in its valid range{self.range_text()}"
        return clause

    def range_text(self) -> str:
        """` [0, 1]`, with what differs from feature to feature."""
        if self.lower is None or self.upper is None:
            return ""
        if self.lower.single and self.upper.single:
            return f" [{self.lower}, {self.upper}]"
        return f" (from {self.lower}, up to {self.upper})"

    def _size(self, radius: str) -> str:
        far, each = radius, ""
        if self.scaled and self.scale is not None:
            if self.scale.single:
                far, each = f"{self.scale} times {radius}", f", each divided by {self.scale},"
            else:
                extent = f" ({self.scale.about()})"
                far = f"{radius} times its own scale{extent}"
                each = f", each divided by the scale of its number{extent},"
        if isinf(self.norm):
            return f"no single number of the input changes by more than {far}"
        if self.norm == 1:
            return f"all changes together{each or ','} added up, are no larger than {radius}"
        if self.norm == 2:
            end = f"as a vector, a Euclidean length of at most {radius}"
            return f"the changes{each} have, {end}"
        return f"the changes{each} have an {norm_name(self.norm)} norm of at most {radius}"

    def _moving(self) -> str:
        along = f" (along axis {self.frame_axis})" if self.frame_axis else ""
        if self.sensitivity:
            if self.part == "feature":
                return "only one feature changes: "
            return f"only one frame{along} changes, and in it "
        return moving(self.frames, along)

    def part_name(self, place: int) -> str:
        """The name of a frame or feature that moves alone, or its number."""
        return self.parts[place] if place < len(self.parts) else str(place)

    # -- the property ------------------------------------------------------------------

    @property
    def targeted(self) -> bool:
        return self.target != "all"

    def rival(self) -> str:
        """The class that must not overtake the label."""
        if self.target.startswith("+"):
            return f"the class label {self.target.replace('+', '+ ')}"
        return "its target class" if self.target == GIVEN else f"class {self.target}"

    def altering(self) -> str:
        """The event that no change within the radius brings about."""
        if self.condition:
            return f"undoes this: {self.condition}"
        return (
            f"lets {self.rival()} overtake the label"
            if self.targeted
            else ("alters the answer of the network")
        )

    def against(self) -> str:
        """The property as words to stand behind a heading."""
        return f", against {self.rival()} alone" if self.targeted else ""

    def caveat(self) -> str:
        """A warning for readers of targeted radii; empty for others."""
        if not self.targeted:
            return ""
        return (
            "All other classes are left aside: within the radius the answer may become one of them."
        )

    # -- units, search, precision ------------------------------------------------------

    def units(self) -> str:
        """The units of radii."""
        text = "the data's own units"
        if self.divide is not None:
            text = f"the data's units divided by {shortest(self.divide)}"
        if self.box:
            text = f"boxes: 1 is all of one, whose ends are in {text}"
        elif self.scaled:
            text = f"multiples of each number's scale, which is in {text}"
        if self.mean is not None or self.std is not None:
            mean = "mean" if self.mean is None or not self.mean.single else str(self.mean)
            std = "std" if self.std is None or not self.std.single else str(self.std)
            text += f"; the model is given (x - {mean}) / {std}"
            spread = [
                f"{name} {values}"
                for name, values in (("mean", self.mean), ("std", self.std))
                if values is not None and not values.single
            ]
            text += f" with {', '.join(spread)}" if spread else ""
        return text

    def asked(self) -> str:
        """A note that one radius was asked about; empty where it was searched for."""
        if self.eps is None:
            return ""
        if self.box:
            return "Only boxes as a whole were asked about: the radius 1 is all of one."
        which = f"the radius {self.eps}" if _is_number(self.eps) else "one radius per input"
        return f"Only {which} was asked about: nothing is said of larger ones."

    def at(self) -> str:
        """The radius asked about, to stand behind "at"."""
        return "the radius of each input" if self.eps == EACH else self.eps or "any radius"

    def held(self) -> str:
        """The words for inputs at which the property holds before any change."""
        return "with the property" if self.condition else "classified correctly"

    def being(self, one: bool = False) -> str:
        """The predicate of inputs, or of one, at which the property holds before any change."""
        if self.condition:
            return "has the property" if one else "have the property"
        return "is classified correctly" if one else "are classified correctly"

    def share_title(self) -> str:
        """The title of a share of inputs by radius, without the target (`against`)."""
        return "Inputs proved" if self.condition else "Certified accuracy"

    def radius_title(self) -> str:
        """The title of an axis of radii."""
        times = ", times the scale of each number" if self.scaled else ""
        return f"radius ({norm_name(self.norm)} norm{times})"

    def lines(self) -> list[str]:
        """Lines for a terminal that explain the radii r of a table."""
        lines = [f"radius r: {self.allowed('r')}"]
        if self.output:
            lines.append(f"output: {self.output}")
        if self.precision:
            lines.append(f"arithmetic: {self.widened()}")
        if self.condition:
            lines.append(f"property: {self.condition}")
        if self.targeted:
            rival = self.rival()
            lines.append(
                f"property: {rival} does not overtake the label; all others are left aside"
            )
        if self.divide is not None or self.mean is not None or self.std is not None:
            lines.append(f"units: {self.units()}")
        return lines

    def widened(self) -> str:
        """Words on half precision that was taken as single precision, if any."""
        if not self.precision:
            return ""
        return (
            f"the file computes in {self.precision}; its weights, as they are, were taken into a "
            "network that computes in float32, and results are about that"
        )

    def facts_shown(self) -> list[tuple[str, str]]:
        """Name and text, for a list of how results were made."""
        return [
            ("within the radius", self.allowed()),
            ("property", f"no such change {self.altering()}"),
            ("radii in", self.units()),
            ("radius asked about", self.eps or ""),
            ("execution covered", self.deployed),
            ("output of the model", self.output),
            ("arithmetic", self.widened()),
        ]

    @property
    def typed(self) -> bool:
        """True if `options` say all of it: not conditions, boxes and radii of each input."""
        return not self.condition and (self.eps is None or _is_number(self.eps))

    def options(self) -> list[str]:
        """The options of `frown certify`, with FILE for numbers that differ from feature to
        feature."""

        def one(values: Spread | None) -> str:
            known = values is not None and values.single
            return str(values) if known else "FILE"

        found = ["--norm", norm_text(self.norm)]
        found += ["--output", self.output] if self.output else []
        found += ["--frames", self.frames] if self.frames != "all" else []
        found += ["--frame-axis", str(self.frame_axis)] if self.frame_axis else []
        found += ["--sensitivity"] if self.sensitivity else []
        found += ["--scale", "FILE.npy"] if self.scaled or self.fixed else []
        found += ["--bounds", one(self.lower), one(self.upper)] if self.lower is not None else []
        found += ["--divide", shortest(self.divide)] if self.divide is not None else []
        found += ["--mean", one(self.mean)] if self.mean is not None else []
        found += ["--std", one(self.std)] if self.std is not None else []
        found += ["--target", "FILE" if self.target == GIVEN else self.target] * self.targeted
        found += ["--eps", self.eps] if self.eps is not None else []
        found += ["--deployed", self.deployed] if self.deployed else []
        return found

    def aspects(self) -> dict[str, str]:
        """Texts that must agree between results whose radii are compared, one for each aspect."""

        def full(*spreads: Spread | None) -> str:
            held = [f"{s} (sha256 {s.sha256[:12]})" for s in spreads if s is not None]
            return " and ".join(held) or "none"

        plainly = self.scale is None or (not self.scaled and not self.fixed)
        return {
            "norms": norm_text(self.norm),
            "frames that move": self.frames
            + (f", axis {self.frame_axis}" * (self.frames != "all")),
            "scales": "none" if plainly else full(self.scale),
            "valid ranges": full(self.lower, self.upper),
            "units": f"divided by {shortest(self.divide or 1.0)}, mean {full(self.mean)}, "
            f"std {full(self.std)}",
            "radii asked about": self.eps or "none",
            "kinds of execution": self.deployed or "real numbers",
            "properties": self.condition or "labels win",
            "outputs": self.output or "the only one",
        }


def statement_of(
    model: Model,
    regions: Regions,
    condition: Condition,
    execution: str | None = None,
    alone: Moving | None = None,
) -> Statement:
    """The statement of rows about these regions; `alone` are frames that move one at a time in
    them."""
    shape = model.input_shape
    frames = alone or regions.frames
    mask = None if frames is None else frames.mask(shape)
    moves = np.ones(shape, bool) if mask is None else mask[0] > 0
    scale, fixed, still = None, 0, ""
    if regions.scale is not None:
        factors = regions.scale
        free = factors[:, moves][factors[:, moves] > 0]
        least, largest = (float(free.min()), float(free.max())) if free.size else (0.0, 0.0)
        scale = replace(_spread(factors, shape), least=least, largest=largest)
        fast = moves & (factors == 0).all(0)
        fixed = int(fast.sum())
        if regions.features and fixed <= MOST_NAMES:
            still = _joined([plain(regions.features[k]) for k in np.flatnonzero(fast)])
    valid = regions.range
    # Several normalisations are one: (x - mean) / std of the whole.
    mean, std = np.zeros(shape), np.ones(shape)
    for inner_mean, inner_std in model.normalisation:
        mean, std = mean + std * inner_mean, std * inner_std
    eps = None
    if regions.radius is not None:
        same = (regions.radius == regions.radius[0]).all()
        eps = BOX if regions.box else repr(float(regions.radius[0])) if same else EACH
    return Statement(
        norm=regions.p,
        frames="all" if frames is None else frames.name,
        frame_axis=0 if frames is None else frames.axis,
        sensitivity=alone is not None,
        scale=scale,
        fixed=fixed,
        features=int(moves.sum()),
        still=still,
        part="feature" if alone is not None and len(shape) == 1 else "frame",
        parts=tuple(map(plain, regions.features)) if alone is not None and len(shape) == 1 else (),
        lower=None if valid is None else _spread(valid.lower, shape),
        upper=None if valid is None else _spread(valid.upper, shape),
        mean=Spread.of(mean, shape) if model.normalisation else None,
        std=Spread.of(std, shape) if model.normalisation else None,
        target=condition.target,
        eps=eps,
        deployed=execution or "",
        condition=condition.words,
        output=plain(model.taken.output),
        precision=model.taken.precision,
    )


def _joined(names: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _spread(values: NDArray[np.float64], shape: tuple[int, ...]) -> Spread:
    """Numbers by feature, the same for all inputs or not."""
    return Spread.of(values, values.shape) if len(values) > 1 else Spread.of(values[0], shape)


def moving(frames: str, along: str = "") -> str:
    """The part of the input that a row's `frames` allow to change, to begin a clause on how far."""
    if frames == "all":
        return ""
    which = frames.removeprefix("each of ") if frames != "each" else ""
    only = f"only frame{'' if which.isdigit() else 's'} {which}{along} may change, and "
    own = "in each of them by itself " if which else f"in every frame{along} by itself "
    return (only if which else "") + (own if frames.startswith("each") else "")


def levels_text(rows: Iterable[Row], more: str = "") -> str:
    """The level of radii with its meaning and `more` or, of several levels, how many radii have
    each."""
    counts = Counter(row.level for row in rows if row.proved)
    if len(counts) == 1:
        (level,) = counts
        return f"{level} ({LEVELS.get(level, level)}{more})"
    return ", ".join(f"{n:,} {level}" for level, n in sorted(counts.items()))


def uncertified(rows: Iterable[Row]) -> str:
    """Words to follow a statement on execution, where a reader could take it for certified."""
    certified = any(row.certificate or row.level == "checked" for row in rows)
    return ", which certificates are not about" if certified else ""


def proved_word(rows: Iterable[Row]) -> str:
    """The word for the radii of rows: proved, or estimated where rounding is not accounted for."""
    levels = {row.level == "estimate" for row in rows if row.proved}
    return (
        {True: "estimated", False: "proved"}[levels.pop()]
        if len(levels) == 1
        else ("proved or estimated" if levels else "proved")
    )


def norm_text(norm: float) -> str:
    """p with all its digits: 2, 1.9999996, inf."""
    return shortest(norm)


def norm_name(norm: float) -> str:
    """l∞, l₂, l1.9999996."""
    if isinf(norm):
        return "l∞"
    text = norm_text(norm)
    return f"l{text.translate(_SUBSCRIPTS)}" if text.isdigit() else f"l{text}"


def shortest(number: float) -> str:
    """The shortest decimal that is this very double; 2 and not 2.0."""
    if isfinite(number) and number == int(number) and abs(number) < 1e16:
        return str(int(number))
    return repr(float(number))


def input_digest(x: NDArray[np.float64]) -> str:
    """SHA-256 of an input as little-endian doubles: what `frown check` calls x0."""
    return hashlib.sha256(np.ascontiguousarray(x, dtype="<f8").tobytes()).hexdigest()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
