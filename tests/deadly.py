"""Methods on which processes die and workers that lie, for tests of what becomes of their rows.

Workers import them by name.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from frown.bounds.method import Bounds, Method
from frown.certification.results import Row
from frown.certification.spread.cluster import Actor
from frown.certification.spread.messages import Handed
from frown.methods.crown import Crown

POISON = 0.123  # the first feature of inputs on which it dies


@dataclass(frozen=True)
class Deadly(Method):
    """CROWN, but the process is killed over some inputs; with `once`, while that file is there."""

    name: ClassVar[str] = "crown"
    once: Path | None = None

    def bound(self, plan: Any, region: Any, *args: Any, **more: Any) -> Bounds:
        poisoned = bool(((region.centre.flatten(1)[:, 0] - POISON).abs() < 1e-6).any())
        if poisoned and (self.once is None or self.once.exists()):
            if self.once is not None:
                self.once.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return Crown().bound(plan, region, *args, **more)


def altered(messages: Any, change: Callable[[Row], Row]) -> Any:
    """Messages of a worker with other rows."""
    return [
        replace(m, outcome=replace(m.outcome, rows=tuple(map(change, m.outcome.rows))))
        if isinstance(m, Handed)
        else m
        for m in messages
    ]


class Liar(Actor):
    """A worker that doubles every radius."""

    def answer(self, order: Any) -> Any:
        return altered(super().answer(order), lambda row: replace(row, radius=2 * row.radius))


class Sharer(Actor):
    """A worker on a cluster that says how many parts of its tree others have bounded."""

    def answer(self, order: Any) -> Any:
        from frown.methods.branch import shared

        shared.LEAST = 2
        heard, before = list[object](), shared._tensors

        def tensors(kind: Any, held: Any) -> Any:
            if kind is shared.Risen:
                heard.append(held)
            return before(kind, held)

        shared._tensors = tensors
        found = super().answer(order)
        said = "parts from elsewhere: " + "1" * min(9, len(heard))
        return altered(found, lambda row: replace(row, remark=said))
