"""A writer of certificates for the tests, which knows nothing of frown or of the checker.

It turns choices (which rows, which slopes) into a file; any choices make a valid certificate,
though perhaps one that proves too little.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NO_TABLE = 0xFFFFFFFF


@dataclass
class Payload:
    data: bytearray = field(default_factory=bytearray)

    def put(self, array: Any, dtype: str = "f8") -> dict[str, Any]:
        kind = "|u1" if dtype == "u1" else "<" + dtype
        values = np.ascontiguousarray(array, dtype=kind)
        at = len(self.data)
        self.data += values.tobytes()
        self.data += b"\0" * (-len(self.data) % 8)
        return {"dtype": dtype, "shape": list(values.shape), "at": at}


@dataclass
class Draft:
    """A certificate under construction: `header` may be changed before `file` is made."""

    header: dict[str, Any]
    payload: Payload

    def file(self) -> bytes:
        version = {2: 2, 3: 3}.get(self.header.get("format"), 1)
        return seal(json.dumps(self.header).encode(), bytes(self.payload.data), version)


def seal(header: bytes, payload: bytes, version: int = 1) -> bytes:
    packed = struct.pack("<I", len(header)) + header + struct.pack("<Q", len(payload))
    return b"FROWNC0%d" % version + packed + zlib.compress(payload)


def draft(
    model: Path,
    sites: list[tuple[str, str, int]],
    centre: Any,
    radius: float,
    label: int,
    others: list[int],
    norm: str = "inf",
    *,
    scale: Any = None,
    ball: Any = None,
    bounds: tuple[Any, Any] | None = None,
    normalisation: tuple[Any, Any] | None = None,
    rows: bool = True,
    rng: np.random.Generator | None = None,
    spread: float = 1.0,
    lanes: int = 1,
    dtype: str = "f8",
    skip: tuple[int, ...] = (),
) -> Draft:
    """Rows for both sides of every entry of every site (but those in `skip`); with `rng` each
    brings random slopes at all earlier sites, otherwise none, so that the fixed rule holds."""
    centre = np.asarray(centre, dtype=np.float64)
    pay = Payload()
    pay.put(np.zeros(1))

    def maybe(value: Any, kind: str = "f8") -> Any:
        return None if value is None else pay.put(np.broadcast_to(value, centre.shape), kind)

    def tables(count: int, over: list[int]) -> tuple[Any, Any]:
        if rng is None or not over:
            return pay.put(np.full(count, NO_TABLE), "u4"), None
        slots = sum(sites[k][2] for k in over)
        slopes = rng.uniform(0, spread, (count, lanes, slots))
        slopes[rng.random(slopes.shape) < 0.2] = np.nan
        return pay.put(np.arange(count), "u4"), pay.put(slopes, dtype)

    steps = []
    for k, (_, _, size) in enumerate(sites):
        if not rows or k in skip:
            continue
        over = list(range(k))
        table, slopes = tables(2 * size, over)
        neuron = pay.put(np.repeat(np.arange(size), 2), "u4")
        side = pay.put(np.tile([0, 1], size), "u1")
        step = {"site": k, "over": over, "neuron": neuron, "side": side}
        steps.append({**step, "table": table, "slopes": slopes})
    over = list(range(len(sites)))
    table, slopes = tables(len(others), over)
    return Draft(
        {
            "format": 1,
            "producer": "test",
            "model": {"sha256": hashlib.sha256(model.read_bytes()).hexdigest(), "external": {}},
            "normalisation": None
            if normalisation is None
            else {k: pay.put(v) for k, v in zip(("mean", "std"), normalisation)},
            "input": list(centre.shape),
            "region": {
                "norm": norm,
                "radius": float(radius).hex(),
                "centre": pay.put(centre),
                "scale": maybe(scale),
                "ball": maybe(ball, "i4"),
                "lower": None if bounds is None else maybe(bounds[0]),
                "upper": None if bounds is None else maybe(bounds[1]),
            },
            "claim": {"label": label, "others": others},
            "sites": [{"name": n, "kind": k, "size": s} for n, k, s in sites],
            "shared": [None] * len(sites),
            "steps": steps,
            "final": {"over": over, "table": table, "slopes": slopes},
        },
        pay,
    )
