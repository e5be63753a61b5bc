"""Operators without bounds, all of a model's in one message."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frown.graph import Shape


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operator that has no bounds, and why not."""

    op: str
    place: str
    shape: Shape | None  # of its output, if known
    reason: str


def listing(model: str, refusals: Sequence[Refusal], supported: Iterable[str]) -> str:
    """The message of UnsupportedModel: every refusal in a line, and what would work."""
    count = len(refusals)
    are = "1 operator has" if count == 1 else f"{count} operators have"
    cells = [
        (r.op, f"at {r.place}", "unknown shape" if r.shape is None else str(r.shape), r.reason)
        for r in refusals
    ]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ("  ".join(map(str.ljust, row, wide)).rstrip() for row in cells)
    known = f"supported: {', '.join(sorted(supported))}; to add one, see docs/extending.md"
    lines = [f"cannot certify {model}: {are} no bounds yet", *(f"  {row}" for row in rows)]
    return "\n".join([*lines, *textwrap.wrap(known, 100)])
