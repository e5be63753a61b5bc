"""What a certificate states, read by a parser of its own, and when one statement implies another.

output[label] > output[o] for every o in `others` and every x with lower <= x <= upper and,
for every ball b, ||((x - centre) / scale)_b||_p <= radius; features of ball -1 or scale 0 stay.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np

from check.writer import Draft, Payload
from frown_check import Claim

FIELDS = ("centre", "scale", "ball", "lower", "upper", "mean", "std")


@dataclass(frozen=True, eq=False)
class Statement:
    digest: str
    label: int
    others: tuple[int, ...]
    p: float
    radius: float
    centre: np.ndarray  # all arrays in the input's shape
    scale: np.ndarray  # 0 where the feature is fixed
    ball: np.ndarray
    lower: np.ndarray  # -inf without a range
    upper: np.ndarray
    mean: np.ndarray  # 0 and 1 without a normalisation
    std: np.ndarray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statement):
            return NotImplemented
        return (self.digest, self.label, self.others, self.p, self.radius) == (
            other.digest,
            other.label,
            other.others,
            other.p,
            other.radius,
        ) and all(_same(getattr(self, f), getattr(other, f)) for f in FIELDS)

    def implied_by(self, other: Statement) -> bool:
        """Whether this follows from the other at once: the same network, label and centre, fewer
        rivals, and a region inside of the other's, its norm's ball being no larger."""
        return (
            self.digest == other.digest
            and all(_same(getattr(self, f), getattr(other, f)) for f in ("centre", "mean", "std"))
            and self.label == other.label
            and set(self.others) <= set(other.others)
            and self.radius <= other.radius
            and self.p <= other.p  # ||v||_p falls with p
            and bool((self.scale <= other.scale).all())
            and bool((self.lower >= other.lower).all() and (self.upper <= other.upper).all())
            and (other.p == inf or _same_balls(self, other))
        )

    def contains(self, x: np.ndarray) -> bool:
        """Whether x lies in the region, in rational arithmetic where p is 1, 2 or inf; else by
        floats with room to spare."""
        if not ((self.lower <= x) & (x <= self.upper)).all():
            return False
        moved = x != self.centre
        if (moved & (self.scale == 0)).any():
            return False
        for b in np.unique(self.ball[moved]):
            here = moved & (self.ball == b)
            steps = [
                abs(Fraction(a) - Fraction(c)) / Fraction(s)
                for a, c, s in zip(x[here].tolist(), self.centre[here].tolist(), self.scale[here])
            ]
            if not _within(steps, self.p, self.radius):
                return False
        return True


def _within(steps: list[Fraction], p: float, radius: float) -> bool:
    limit = Fraction(radius)
    if p == inf:
        return max(steps) <= limit
    if p in (1, 2):
        return sum((s ** int(p) for s in steps), Fraction(0)) <= limit ** int(p)
    largest = max(steps)
    if largest == 0:
        return True
    norm = float(largest) * sum(float(s / largest) ** p for s in steps) ** (1 / p)
    return norm * (1 + 1e-9) <= radius


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _same_balls(one: Statement, two: Statement) -> bool:
    """Whether the features that move in `one` are in the same company in both."""
    moving = one.scale > 0
    pairs = set(zip(one.ball[moving].tolist(), two.ball[moving].tolist()))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def opened(content: bytes) -> Draft:
    """A certificate's header and payload, to be changed; ValueError if a name is there twice."""
    (length,) = struct.unpack_from("<I", content, 8)
    header = json.loads(content[12 : 12 + length], object_pairs_hook=_once)
    return Draft(header, Payload(bytearray(zlib.decompress(content[20 + length :]))))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError(f"a name twice in {names}")
    return dict(pairs)


def array(found: Draft, ref: dict[str, Any]) -> np.ndarray:
    """A copy of an array of the payload."""
    kind = "|u1" if ref["dtype"] == "u1" else "<" + ref["dtype"]
    count = int(np.prod(ref["shape"], dtype=int))
    return np.frombuffer(bytes(found.payload.data), kind, count, ref["at"]).reshape(ref["shape"])


def stated(content: bytes) -> Statement:
    """The statement in a file's bytes."""
    found = opened(content)
    header, region = found.header, found.header["region"]
    shape = tuple(header["input"])

    def read(ref: dict[str, Any] | None, default: float) -> np.ndarray:
        return np.full(shape, default) if ref is None else array(found, ref).reshape(shape)

    def spread(name: str, default: float) -> np.ndarray:
        norm = header["normalisation"]
        return np.broadcast_to(default if norm is None else array(found, norm[name]), shape)

    ball = read(region["ball"], 0)
    norm = region["norm"]
    return Statement(
        header["model"]["sha256"],
        header["claim"]["label"],
        tuple(header["claim"]["others"]),
        float(norm) if norm.isdigit() or norm == "inf" else float.fromhex(norm),
        float.fromhex(region["radius"]),
        read(region["centre"], np.nan),
        np.where(ball < 0, 0.0, read(region["scale"], 1.0)),
        ball,
        read(region["lower"], -inf),
        read(region["upper"], inf),
        spread("mean", 0.0),
        spread("std", 1.0),
    )


def claimed(claim: Claim) -> Statement:
    """The statement that the checker says it has accepted."""
    shape = claim.centre.shape

    def whole(given: np.ndarray | None, default: float) -> np.ndarray:
        return np.full(shape, default) if given is None else given

    return Statement(
        claim.digest,
        claim.label,
        claim.others,
        claim.norm,
        claim.radius,
        claim.centre,
        claim.scale,
        claim.ball,
        whole(claim.lower, -inf),
        whole(claim.upper, inf),
        whole(claim.mean, 0.0),
        whole(claim.std, 1.0),
    )
