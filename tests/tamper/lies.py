"""Changes of what a certificate states that make it false, each with a point that proves so.

A lie changes a draft in place, or returns another model's bytes as well; None where it does not
apply. Whether the result is false is not taken from here: `Base.refuted` decides, by running the
file at the statement's centre and at the witnesses inside its region.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import onnx

from check.writer import Draft
from tamper.bases import Base
from tamper.statement import array

Rng = np.random.Generator


@dataclass(frozen=True)
class Told:
    """The certificate's draft and the model's file to check it with."""

    draft: Draft
    model: bytes


Lie = Callable[[Base, Draft, Rng], Told | None]


def _put(base: Base, draft: Draft, **changes: Any) -> Told:
    draft.header["region"].update(changes)
    return Told(draft, base.model_bytes)


def _witness(base: Base, rng: Rng, others: tuple[int, ...] | None = None) -> np.ndarray | None:
    """One of the nearer witnesses against a class of the claim."""
    classes = [o for o in others or base.statement.others if o in base.witnesses]
    if not classes:
        return None
    points = base.witnesses[int(rng.choice(classes))]
    return points[min(int(rng.exponential(4)), len(points) - 1)]


def _length(base: Base, x: np.ndarray, p: float) -> float:
    """How large a radius holds x, from above; inf where none does."""
    s = base.statement
    moved = x != s.centre
    if (moved & (s.scale == 0)).any() or ((x < s.lower) | (x > s.upper)).any():
        return inf
    steps = np.where(moved, np.abs(x - s.centre) / np.where(s.scale > 0, s.scale, 1.0), 0.0)
    largest = 0.0
    for b in np.unique(s.ball):
        part = steps[s.ball == b]
        norm = part.max() if p == inf else float((part**p).sum()) ** (1 / p)
        largest = max(largest, float(norm))
    return largest * (1 + 1e-8)


def radius_up(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """To just beyond a witness, or farther."""
    x = _witness(base, rng)
    if x is None or (r := _length(base, x, base.statement.p)) == inf:
        return None
    grown = r * (1 + float(rng.choice([0.0, 1e-6, 0.1, 1.0, 100.0])))
    return _put(base, draft, radius=grown.hex())


def label(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """Another label, over the one that wins at the centre."""
    s = base.statement
    new = int(rng.choice([k for k in range(3) if k != s.label]))
    rest = [k for k in range(3) if k not in (s.label, new) and rng.integers(2)]
    others = [s.label, *rest]
    rng.shuffle(others)
    draft.header["claim"] = {"label": new, "others": others}
    if len(others) != len(s.others):
        _resize(draft, len(others))
    return Told(draft, base.model_bytes)


def target(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """A class that comes nearer than the one asked about."""
    s = base.statement
    if len(s.others) > 1:
        return None
    draft.header["claim"]["others"] = [k for k in range(3) if k not in (s.label, *s.others)]
    return Told(draft, base.model_bytes)


def more_targets(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """All classes where one was asked about."""
    s = base.statement
    if len(s.others) > 1:
        return None
    draft.header["claim"]["others"] = [k for k in range(3) if k != s.label]
    _resize(draft, 2)
    return Told(draft, base.model_bytes)


def norm(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """A norm with a larger ball; where need be, a larger radius that would not do in the old."""
    p = base.statement.p
    if p == inf:
        return None
    new = str(rng.choice(["inf", *(["2"] if p < 2 else []), "0x1.9000000000000p+6"]))
    q = {"inf": inf, "2": 2.0}.get(new, 100.0)
    x = _witness(base, rng)
    if x is None or (r := _length(base, x, q)) == inf:
        return None
    return _put(base, draft, norm=new, radius=max(r, base.statement.radius).hex())


def centre(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """Onto or towards a witness."""
    x = _witness(base, rng)
    if x is None:
        return None
    s = base.statement
    share = float(rng.choice([1.0, 0.99, 0.9]))
    moved = np.clip(x * share + s.centre * (1 - share), s.lower, s.upper)
    return _put(base, draft, centre=draft.payload.put(moved))


def centre_in_place(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """The same, over the old bytes of the payload."""
    x = _witness(base, rng)
    if x is None:
        return None
    at = draft.header["region"]["centre"]["at"]
    draft.payload.data[at : at + x.size * 8] = np.ascontiguousarray(x, "<f8").tobytes()
    return Told(draft, base.model_bytes)


def scale(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """Features that move as far as a witness needs."""
    x = _witness(base, rng)
    if x is None:
        return None
    s = base.statement
    room = np.abs(x - s.centre) * s.centre.size / s.radius * 1.000001
    return _put(base, draft, scale=draft.payload.put(np.maximum(s.scale, room)))


def balls(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """A ball for every feature, or fixed ones set free."""
    s = base.statement
    if s.p == inf:
        return None
    x = _witness(base, rng)
    if x is None or (r := _length(base, x, inf)) == inf:
        return None
    each = np.arange(s.centre.size).reshape(s.centre.shape)
    return _put(base, draft, ball=draft.payload.put(each, "i4"), radius=max(r, s.radius).hex())


def valid_range(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """Gone, or wider, with a radius that only the range made true."""
    s = base.statement
    if not np.isfinite(s.lower).all():
        return None
    x = _witness(base, rng)
    if x is None:
        return None
    steps = np.abs(x - s.centre).ravel()
    r = float(steps.max() if s.p == inf else (steps**s.p).sum() ** (1 / s.p)) * (1 + 1e-8)
    if rng.integers(2):
        ends = {"lower": None, "upper": None}
    else:
        ends = {
            "lower": draft.payload.put(np.minimum(s.lower, x)),
            "upper": draft.payload.put(np.maximum(s.upper, x)),
        }
    return _put(base, draft, radius=max(r, s.radius).hex(), **ends)


def normalisation(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """A mean that carries the centre to a witness, dropped, or invented."""
    x = _witness(base, rng)
    if x is None:
        return None
    s = base.statement
    std = s.std * float(rng.choice([1.0, 0.5, 1e-3]))
    mean = s.centre - std * ((x - s.mean) / s.std)
    draft.header["normalisation"] = {
        "mean": draft.payload.put(mean),
        "std": draft.payload.put(std),
    }
    return Told(draft, base.model_bytes)


def edited_model(base: Base, draft: Draft, rng: Rng) -> Told | None:
    """Other weights in the last matrix, and their digest in the certificate."""
    content = edited(base, rng)
    draft.header["model"]["sha256"] = hashlib.sha256(content).hexdigest()
    return Told(draft, content)


def edited(base: Base, rng: Rng) -> bytes:
    """The model with its last layer's classes exchanged, or of the other sign."""
    proto = onnx.ModelProto()
    proto.ParseFromString(base.model_bytes)
    reads = {i for n in proto.graph.node[-3:] for i in n.input}
    last = [t for t in proto.graph.initializer if t.name in reads]
    turn = int(rng.integers(0, 3))
    for tensor in last:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype.kind == "f" and values.shape[-1:] == (3,):
            changed = np.roll(values, turn, -1) if turn else -values
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed.copy(), tensor.name))
    return proto.SerializeToString()


def _resize(draft: Draft, count: int) -> None:
    """As many final rows as there are classes, by repeating or dropping."""
    final = draft.header["final"]
    table = array(draft, final["table"])
    final["table"] = draft.payload.put(np.resize(table, count), "u4")


LIES: dict[str, Lie] = {
    "radius": radius_up,
    "label": label,
    "target": target,
    "more targets": more_targets,
    "norm": norm,
    "centre": centre,
    "centre in place": centre_in_place,
    "scale": scale,
    "balls": balls,
    "valid range": valid_range,
    "normalisation": normalisation,
    "edited model": edited_model,
}
