"""Verdicts as text and JSON: the claim in full, and nothing in it that a terminal would obey."""

from __future__ import annotations

import json
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import isfinite
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np

from frown_check.balls import Array, above
from frown_check.checker import Claim, Verdict
from frown_check.data import Data

MOST_ROWS = 10  # of the data, named
NAMED = re.compile(r"input-(\d+)(?:-frame-\d+)?\.frown")


def plain(text: object) -> str:
    """One line; what moves a cursor, ends a line, hides or turns text round is written out."""
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return "".join(
        c.encode("unicode_escape", "surrogatepass").decode() if category(c) in unseen else c
        for c in str(text)
    )


def name_of(path: Path) -> str:
    """A path to begin a line with; in quotes where it reads like more than a name."""
    shown = plain(path)
    return f"'{shown}'" if ": " in shown else shown


def exact(number: float) -> str:
    """The shortest decimal that is this very double; 2 and not 2.0."""
    number = float(number)
    if isfinite(number) and number == int(number) and abs(number) < 1e16:
        return str(int(number))
    return repr(number)


def mismatch(path: Path, claim: Claim, data: Data) -> str:
    """Why the certificate is about no row of the data, or about another than its name says;
    empty where all is well."""
    rows = data.rows(claim.centre)
    if not rows:
        return f"its input x0 is no row of {data.name}"
    named = NAMED.fullmatch(path.name)
    if named is not None and int(named[1]) not in rows:
        return f"its name says input {int(named[1])}, its x0 is row {_some(rows)} of {data.name}"
    return ""


def text(path: Path, verdict: Verdict, seconds: float, data: Data | None, other: str) -> str:
    """The verdict in a line and, if accepted, the claim below it; `other` is a `mismatch`."""
    claim = verdict.claim
    if not verdict.accepted or claim is None:
        return f"{name_of(path)}: REFUSED: {plain(verdict.reason)}"
    found = _numbers(claim)
    others = ", ".join(map(str, claim.others))
    # Never "accepted" where the certificate is not about what was asked.
    word = f"ANOTHER INPUT: {plain(other)}; it proves" if other else "accepted"
    lines = [
        f"{name_of(path)}: {word}: class {claim.label} beats {others} for all x of the region; "
        f"margins > {_below(verdict.margin)}; {seconds:.2f} s"
    ]
    scale = found["scale"]
    step = "x - x0" if scale["least"] == scale["largest"] == 1 else "(x - x0) / scale"
    balls = f" in each of {found['balls']} balls" if found["balls"] > 1 else ""
    told = {"region": f"||{step}||_{exact(claim.norm)} <= {exact(claim.radius)}{balls}"}
    if step != "x - x0":
        told["scale"] = _ends(scale)
    told["moves"] = f"{found['moving']} of {claim.centre.size} features, each by at most "
    told["moves"] += f"{_above(found['reach']['least'])} to {_above(found['reach']['largest'])}"
    if found["reach"]["least"] == found["reach"]["largest"]:
        told["moves"] = told["moves"].rpartition(" to ")[0]
    told["moves"] += " in the units of x0"
    told["range"] = "not limited"
    if claim.clipped:
        told["range"] = f"x from {_ends(found['lower'])}, up to {_ends(found['upper'])}"
    if claim.normalised:
        told["network"] = "is given (x - mean) / std, "
        told["network"] += f"mean {_ends(found['mean'])}, std {_ends(found['std'])}"
    told["x0"] = f"from {_ends(found['centre'])}, sha256 {claim.input[:12]}"
    told["statement"] = claim.statement[:12]
    told["model"] = plain(claim.digest)
    if data is not None:
        told["data"] = plain(_row_text(claim, data))
    return "\n".join([*lines, *(f"  {name:9} {line}" for name, line in told.items())])


def as_json(path: Path, verdict: Verdict, seconds: float, data: Data | None, other: str) -> str:
    claim = verdict.claim
    about: dict[str, Any] | None = None
    if claim is not None:
        norm = "inf" if claim.norm == float("inf") else claim.norm
        about = {"model": claim.digest, "norm": norm, "others": list(claim.others)}
        for name in ["label", "radius", "input", "statement", "clipped", "scaled", "normalised"]:
            about[name] = getattr(claim, name)
        about |= _numbers(claim)
    found = {
        "certificate": str(path),
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "claim": about,
        "margin": verdict.margin if isfinite(verdict.margin or 0.0) else None,
        "seconds": round(seconds, 3),
    }
    if data is not None and claim is not None:
        rows = data.rows(claim.centre)
        labels = None if data.y is None else [float(data.y[i]) for i in rows]
        found["data"] = {"file": data.name, "rows": rows, "labels": labels, "mismatch": other}
    return json.dumps(found, allow_nan=False)


def _numbers(claim: Claim) -> dict[str, Any]:
    """Magnitudes of a claim, least and largest over the features; of scale and reach, over those
    that may move. Reach is rounded up: no feature moves further."""
    free = claim.scale > 0
    scale = claim.scale[free] if free.any() else np.zeros(1)
    with np.errstate(over="ignore"):
        reach = np.where(scale == 1, claim.radius, above(claim.radius * scale))
    arrays = {"centre": claim.centre, "lower": claim.lower, "upper": claim.upper}
    arrays |= {"mean": claim.mean, "std": claim.std}
    return {
        "features": claim.centre.size,
        "moving": int(free.sum()),
        "balls": len(np.unique(claim.ball[free])),
        "scale": _extent(scale),
        "reach": _extent(reach),
        **{name: None if values is None else _extent(values) for name, values in arrays.items()},
    }


def _extent(values: Array) -> dict[str, float | None]:
    ends = float(values.min()), float(values.max())
    least, largest = (end if isfinite(end) else None for end in ends)
    return {"least": least, "largest": largest}


def _ends(extent: dict[str, Any]) -> str:
    least, largest = (exact(extent[end]) for end in ("least", "largest"))
    return least if least == largest else f"{least} to {largest}"


def _above(number: float | None) -> str:
    """Six digits, none below the number."""
    return "any amount" if number is None else _cut(number, 6, ROUND_CEILING)


def _below(number: float | None) -> str:
    """Four digits, none above the number: all margins exceed it."""
    return "0" if number is None else _cut(number, 4, ROUND_FLOOR)


def _cut(number: float, digits: int, how: str) -> str:
    value = Decimal(repr(number))
    shown = value.quantize(Decimal(1).scaleb(value.adjusted() + 1 - digits), how)
    return f"{float(shown):.{digits}g}" if number else "0"


def _row_text(claim: Claim, data: Data) -> str:
    rows = data.rows(claim.centre)
    if not rows:
        return f"x0 is no row of {data.name}"
    labels = {float(data.y[i]) for i in rows} if data.y is not None else {float(claim.label)}
    said = "" if labels == {float(claim.label)} else f"; labelled {_some(sorted(labels))} there"
    return f"x0 is row {_some(rows)} of {data.name}, from 0{said}"


def _some(numbers: list[Any]) -> str:
    shown = ", ".join(exact(n) for n in numbers[:MOST_ROWS])
    return shown + (f" and {len(numbers) - MOST_ROWS} more" if len(numbers) > MOST_ROWS else "")
