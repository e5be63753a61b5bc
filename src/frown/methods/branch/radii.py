"""Radii of inputs, raised in stages.

What a radius takes grows about exponentially with it. So the next one is where leaves should be
some times as many as now: what was done before is then a small part of all, and what is proved
when time runs out is not far below what could have been.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite, log

GROWTH = 3.0  # times as many leaves as before are what the next radius is to take
FIRST = 0.35  # of a bracket: how far the first radius goes
FEW = 300  # leaves are nothing: radii go further


@dataclass(frozen=True)
class Limits:
    """The conditions on which a search stops."""

    seconds: float  # of CPU, for each input
    gap: float
    single: bool  # one radius alone


@dataclass
class Stage:
    """One input's bracket, and the radius that is being tried."""

    number: int
    low: float
    high: float  # of a counterexample; inf
    limit: float
    radius: float = 0.0  # being tried
    failed: float = inf  # the least radius that no program could decide
    seen: list[tuple[float, int]] = field(default_factory=list)  # radii proved, leaves they took
    waiting: bool = True  # for its boxes
    done: bool = False

    def top(self, gap: float) -> float:
        """The largest radius worth trying."""
        return min(self.limit, self.high / (1 + 0.5 * gap), self.failed * (1 - 1e-3))

    def advance(self, limits: Limits, few: int = FEW, first: float = FIRST) -> None:
        """Set the radius to try next; `done` where there is none."""
        self.waiting, gap = True, limits.gap
        if limits.single:
            self.radius = self.limit
            return
        top, low = self.top(gap), self.low
        if low * (1 + gap) >= min(self.high, self.failed, self.limit) or top <= low:
            self.done = True
            return
        if not isfinite(top) or top > 4 * low > 0:
            self.radius = 1.3 * low if low > 0 else 0.01 * top
            return
        leaves = self.seen[-1][1] if self.seen else 1
        if len(self.seen) < 2 or leaves < few:
            part = first if leaves < few else 0.6 * first
            if leaves < few / 8 and self.seen:
                part = 0.6
            radius = low + part * (top - low)
        else:
            (r0, n0), (r1, n1) = self.seen[-2:]
            rate = max(log(n1 / n0), 0.05) / max(r1 - r0, 1e-12)
            radius = low + log(GROWTH) / rate
            radius = min(max(radius, low + 0.04 * (top - low)), low + 0.5 * (top - low))
        if radius > top - 0.12 * (top - low) or top <= low * (1 + 2 * gap):
            radius = top
        self.radius = radius
