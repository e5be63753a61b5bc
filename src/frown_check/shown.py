"""Verdicts as text and JSON: the claim in full, and nothing in it that a terminal would obey."""

from __future__ import annotations

import hashlib
import json
import re
from decimal import ROUND_FLOOR, Decimal
from math import isfinite
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np

from frown_check.balls import Array, above
from frown_check.checker import Claim, Verdict
from frown_check.cover import QueryVerdict
from frown_check.data import Data

MOST_ROWS = 10  # of the data, named
MOST_LITERALS = 12  # of a claim, written out
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
    """Why the certificate is about no row of the data, about another than its name says, or
    about another label than that row has; empty where all is well."""
    if claim.box:
        return "ANOTHER INPUT: it is about a box, not about an input"
    rows = data.rows(claim.centre)
    if not rows:
        return f"ANOTHER INPUT: its input x0 is no row of {data.name}"
    named = NAMED.fullmatch(path.name)
    if named is not None and int(named[1]) not in rows:
        where = f"its x0 is row {_some(rows)} of {data.name}"
        return f"ANOTHER INPUT: its name says input {int(named[1])}, {where}"
    rows = rows if named is None else [int(named[1])]
    labels = [] if data.y is None or claim.label is None else sorted({*data.y[rows].tolist()})
    if labels and claim.label not in labels:
        where = f"row {_some(rows)} of {data.name} is labelled {_some(labels)}"
        return f"ANOTHER LABEL: it is about class {claim.label}, and {where}"
    return ""


def text(path: Path, verdict: Verdict, seconds: float, data: Data | None, other: str) -> str:
    """The verdict in a line and, if accepted, the claim below it; `other` is a `mismatch`."""
    claim = verdict.claim
    if not verdict.accepted or claim is None:
        return f"{name_of(path)}: REFUSED: {plain(verdict.reason)}"
    found = _numbers(claim)
    others = ", ".join(map(str, claim.others))
    what = f"class {claim.label} beats {others}"
    if claim.coef is not None:
        what = f"{_counted(claim.clauses, 'clause')} of {_counted(len(claim.coef), 'literal')}"
        about = "outputs" if claim.inputs is None else "outputs and the input"
        what += f" about the {about} hold" + "s" * (claim.clauses == 1)
    leaves = "1 leaf" if verdict.leaves == 1 else f"{verdict.leaves} leaves"
    cases = f"{leaves}; " if verdict.leaves else ""
    # Never "accepted" where the certificate is not about what was asked.
    word = f"{plain(other)}; it proves" if other else "accepted"
    lines = [
        f"{name_of(path)}: {word}: {what} for all x of the region; "
        f"margins > {_below(verdict.margin)}; {cases}{seconds:.2f} s"
    ]
    told = _box_text(claim, found) if claim.box else _ball_text(claim, found)
    if claim.normalised:
        told["network"] = "is given (x - mean) / std, "
        told["network"] += f"mean {_ends(found['mean'])}, std {_ends(found['std'])}"
    if not claim.box:
        told["x0"] = f"from {_ends(found['centre'])}, sha256 {claim.input[:12]}"
    if claim.coef is not None:
        told["claim"] = _clauses(claim)
    told["statement"] = claim.statement[:12]
    told["model"] = plain(claim.digest)
    if data is not None and not claim.box:
        told["data"] = plain(_row_text(claim, data))
    return "\n".join([*lines, *(f"  {name:9} {line}" for name, line in told.items())])


def query_text(path: Path, query: Path, verdict: QueryVerdict, seconds: float) -> str:
    """The verdict on a query's proof in a line and, if accepted, what it is about below it."""
    if not verdict.accepted:
        return f"{name_of(path)}: REFUSED: {plain(verdict.reason)}"
    leaves = f", {_counted(verdict.leaves, 'leaf').replace('leafs', 'leaves')}"
    told = {
        "query": f"{plain(query)}, sha256 {verdict.query}",
        "cases": f"{verdict.cases}, all refuted by {_counted(verdict.parts, 'part')}"
        + (leaves if verdict.leaves else ""),
        "about": "the network over the real numbers",
    }
    if any(one not in ("real", "Real") for one in verdict.elements):
        declared = " and ".join(dict.fromkeys(verdict.elements))
        told["about"] += f"; the query declares {plain(declared)}, whose rounding is not covered"
    if verdict.parts:
        told["model"] = plain(verdict.model)
    margin = "" if verdict.margin is None else f"margins > {_below(verdict.margin)}; "
    first = f"{name_of(path)}: accepted: no input satisfies the query; {margin}{seconds:.2f} s"
    return "\n".join([first, *(f"  {name:9} {line}" for name, line in told.items())])


def query_json(path: Path, query: Path, verdict: QueryVerdict, seconds: float) -> str:
    """The verdict on a query's proof as an object."""
    found = {
        "certificate": str(path),
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "query": {"file": str(query), "sha256": verdict.query, "types": list(verdict.elements)},
        "model": verdict.model,
        "parts": verdict.parts,
        "cases": verdict.cases,
        "margin": verdict.margin,
        "leaves": verdict.leaves,
        "seconds": round(seconds, 3),
    }
    return json.dumps(found, allow_nan=False)


def _box_text(claim: Claim, found: dict[str, Any]) -> dict[str, str]:
    ends = f"x from {_ends(found['lower'])}, up to {_ends(found['upper'])}"
    moves = f"{found['moving']} of {claim.centre.size} features"
    return {"region": f"the box of {ends}", "moves": moves, "box": f"sha256 {_box(claim)[:12]}"}


def _ball_text(claim: Claim, found: dict[str, Any]) -> dict[str, str]:
    scale = found["scale"]
    step = "x - x0" if scale["least"] == scale["largest"] == 1 else "(x - x0) / scale"
    balls = f" in each of {found['balls']} balls" if found["balls"] > 1 else ""
    told = {"region": f"||{step}||_{exact(claim.norm)} <= {exact(claim.radius)}{balls}"}
    if step != "x - x0":
        told["scale"] = _ends(scale)
    ends = [_reach(claim.radius, scale[end]) for end in ("least", "largest")]
    reach = ends[0] if ends[0] == ends[1] else " to ".join(ends)
    told["moves"] = f"{found['moving']} of {claim.centre.size} features, each by up to {reach}"
    told["moves"] += " in the units of x0"
    told["range"] = "not limited"
    if claim.clipped:
        told["range"] = f"x from {_ends(found['lower'])}, up to {_ends(found['upper'])}"
    return told


def _box(claim: Claim) -> str:
    """SHA-256 of a box's lower and upper ends as little-endian doubles."""
    assert claim.lower is not None and claim.upper is not None
    ends = (end.astype("<f8").tobytes() for end in (claim.lower, claim.upper))
    return hashlib.sha256(b"".join(ends)).hexdigest()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _clauses(claim: Claim) -> str:
    """The claim about the outputs y (and the input x), written out where it is short."""
    assert claim.coef is not None and claim.const is not None and claim.clause is not None
    clauses: list[list[str]] = [[] for _ in range(claim.clauses)]
    if len(claim.coef) > MOST_LITERALS:
        return f"see --json; sha256 {_literals(claim)[:12]}"
    inputs = [None] * len(claim.coef) if claim.inputs is None else claim.inputs
    rows = zip(claim.coef, inputs, claim.const, claim.clause, strict=True)
    for coef, beside, const, clause in rows:
        terms = [f"{exact(c)} y[{k}]" for k, c in enumerate(coef) if c]
        if beside is not None:
            terms += [f"{exact(c)} x[{k}]" for k, c in enumerate(beside) if c]
        terms += [exact(const)] if const or not terms else []
        clauses[clause].append(" + ".join(terms) + " > 0")
    return "; ".join(" or ".join(literals) for literals in clauses)


def _literals(claim: Claim) -> str:
    """SHA-256 of coef, const, clause and, if given, inputs as little-endian doubles."""
    parts = [claim.coef, claim.const, claim.clause]
    parts += [] if claim.inputs is None else [claim.inputs]
    return hashlib.sha256(b"".join(np.asarray(p, "<f8").tobytes() for p in parts)).hexdigest()


def as_json(path: Path, verdict: Verdict, seconds: float, data: Data | None, other: str) -> str:
    claim = verdict.claim
    about: dict[str, Any] | None = None
    if claim is not None:
        norm = "inf" if claim.norm == float("inf") else claim.norm
        about = {"model": claim.digest, "norm": norm, "others": list(claim.others)}
        if claim.coef is not None and claim.const is not None and claim.clause is not None:
            literals = {"coef": claim.coef, "const": claim.const, "clause": claim.clause}
            if claim.inputs is not None:
                literals["inputs"] = claim.inputs
            about["literals"] = {name: values.tolist() for name, values in literals.items()}
        if claim.box:
            about["box"] = _box(claim)
        for name in ["label", "radius", "input", "statement", "clipped", "scaled", "normalised"]:
            about[name] = None if claim.box and name == "radius" else getattr(claim, name)
        about |= _numbers(claim)
    found = {
        "certificate": str(path),
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "claim": about,
        "margin": verdict.margin if isfinite(verdict.margin or 0.0) else None,
        "leaves": verdict.leaves,
        "seconds": round(seconds, 3),
    }
    if data is not None and claim is not None:
        rows = data.rows(claim.centre)
        labels = None
        if data.y is not None:
            labels = [y if isfinite(y) else None for y in map(float, data.y[rows])]
        found["data"] = {"file": data.name, "rows": rows, "labels": labels, "mismatch": other}
    return json.dumps(found, allow_nan=False)


def _numbers(claim: Claim) -> dict[str, Any]:
    """Magnitudes of a claim, least and largest over the features; of scale and reach, over those
    that may move. Reach is rounded up: no feature moves further."""
    free = claim.scale > 0
    scale = claim.scale[free] if free.any() else np.zeros(1)
    radius = claim.radius
    if claim.box and claim.lower is not None and claim.upper is not None:
        half = above(claim.upper - claim.lower)[free] / 2
        radius, scale = 1.0, half if len(half) else np.zeros(1)
    with np.errstate(over="ignore"):
        reach = np.where(scale == 1, radius, above(radius * scale))
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


def _reach(radius: float, scale: float | None) -> str:
    """Six digits of their product, none above it: nothing is proved of what moves further."""
    if scale is None or not isfinite(radius * scale):
        return "any amount"
    return _cut(radius if scale == 1 else float(np.nextafter(radius * scale, 0)), 6)


def _below(number: float | None) -> str:
    """Four digits, none above the number: all margins exceed it."""
    return "0" if number is None else _cut(number, 4)


def _cut(number: float, digits: int) -> str:
    value = Decimal(repr(number))
    shown = value.quantize(Decimal(1).scaleb(value.adjusted() + 1 - digits), ROUND_FLOOR)
    return f"{float(shown):.{digits}g}" if number else "0"


def _row_text(claim: Claim, data: Data) -> str:
    rows = data.rows(claim.centre)
    if not rows:
        return f"x0 is no row of {data.name}"
    told = f"x0 is row {_some(rows)} of {data.name}, from 0"
    beside = sorted({n for row in rows if (n := data.beside(claim.centre, row)) is not None})
    return told + f"; {_some(beside)} beside it is not compared" * bool(beside)


def _some(numbers: list[Any]) -> str:
    shown = ", ".join(exact(n) for n in numbers[:MOST_ROWS])
    return shown + (f" and {len(numbers) - MOST_ROWS} more" if len(numbers) > MOST_ROWS else "")
