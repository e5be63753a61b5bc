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
PATIENCE, MANY = 6.0, 2000  # leaves, times those before or in number, that a radius takes at least
RETREAT = 0.4  # of the way from what is proved: where to go when a radius takes too long
LEAST = 0.002  # of a radius: a step that is not worth a retreat


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
    bounded: int = 0  # leaves, at this radius
    far: float = inf  # a radius that took too long
    waiting: bool = True  # for its boxes
    done: bool = False

    def top(self, gap: float) -> float:
        """The largest radius worth trying."""
        return min(self.limit, self.high / (1 + 0.5 * gap), self.failed * (1 - 1e-3))

    def retreat(self, done: float, left: float) -> bool:
        """Give a radius up for a smaller one, where it would take too long; returns whether.

        `done` is the part of it that is proved, `left` the number of leaves that there is time for.
        """
        before = self.seen[-1][1] if self.seen else 0
        if self.low <= 0 or self.bounded < max(PATIENCE * before, MANY):
            return False
        if self.bounded * (1 - done) <= done * left:
            return False
        nearer = self.low + RETREAT * (self.radius - self.low)
        if nearer <= self.low * (1 + LEAST):
            return False
        self.far, self.radius = self.radius, nearer
        self.waiting, self.bounded = True, 0
        return True

    def advance(self, limits: Limits, few: int = FEW, first: float = FIRST) -> None:
        """Set the radius to try next; `done` where there is none."""
        self.waiting, self.bounded, gap = True, 0, limits.gap
        if limits.single:
            self.radius = self.limit
            return
        top, low = self.top(gap), self.low
        if self.far <= low:
            self.far = inf
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
        # What took too long is not tried again before something in between has been proved.
        self.radius = min(radius, 0.5 * (low + self.far)) if isfinite(self.far) else radius
