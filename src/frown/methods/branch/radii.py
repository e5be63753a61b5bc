"""Radii of inputs, raised in stages.

What a radius takes grows about exponentially with it. So the next one is where leaves should be
some times as many as now: what was done before is then a small part of all, and what is proved
when time runs out is not far below what could have been.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite, log

GROWTH = 3.0  # times as many leaves as before are what the next radius is to take
START = 0.02  # of a bracket: how far the first radius goes, which tells how leaves grow
FIRST = 0.35  # ... and the next, where it took few leaves
FEW, SOON = 80, 1000  # leaves are nothing: radii go further, to where so many are expected
GAIN = 4  # times fewer leaves are expected for every layer whose boxes have become tighter
LEAST, MOST = 0.004, 0.5  # of a bracket: how far a radius goes
PART, MANY = 0.1, 2000  # of the leaves it begins with, or in number: what a radius is judged by
NOTHING = 2.0**-30  # of a radius's work is done where no leaf is proved
LATE = (
    2.0  # times the leaves that there is time for are to be left for a retreat: estimates are rough
)
NEARER = 0.3  # of the way from what is proved is the least that a retreat leaves
FIT = 0.8  # of the leaves that there is time for is what a radius is to take
BEYOND, STEPS = 1e-3, 4  # how far beyond a radius that no program decides, and how often
WORTH = 1.03  # times as many leaves as before are the least that a larger radius is worth


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
    undecided: float = -1.0  # the last such radius
    stepped: int = 0  # times that a radius beyond one was tried
    seen: list[tuple[float, int]] = field(default_factory=list)  # radii proved, leaves they took
    bounded: int = 0  # leaves, at this radius
    visits: int = 0  # leaves, at all radii
    begun: int = 0  # leaves with which this radius began
    rest: float = 1.0  # the part of the work at this radius that is left
    fresh: bool = False  # the next radius begins with new trees
    pace: float = 0.0  # the rate at which leaves grew over boxes that were looser; 0: unknown
    rests: bool = False  # for lack of time, which others may leave
    spent: bool = False  # has taken all that an input may
    waiting: bool = True  # for its boxes
    done: bool = False

    def step_over(self, gap: float) -> bool:
        """Try a little beyond a radius at which a piece, all but empty, is decided by no program;
        returns whether. There, it has points or is none of those that matter."""
        beyond = self.radius * (1 + BEYOND * 2**self.stepped)
        if self.stepped >= STEPS or beyond > min(self.limit, self.high / (1 + 0.5 * gap)):
            return False
        self.stepped += 1
        self.radius, self.waiting, self.bounded = beyond, True, 0
        return True

    def top(self, gap: float) -> float:
        """The largest radius worth trying."""
        return min(self.limit, self.high / (1 + 0.5 * gap), self.failed * (1 - 1e-3))

    @property
    def _rate(self) -> float:
        """The growth of the logarithm of the number of leaves with the radius, of late."""
        (r0, n0), (r1, n1) = self.seen[-3:][0], self.seen[-1]
        if self.pace and (r1 == r0 or n0 < FEW):  # too few leaves tell nothing of it
            return self.pace
        return max(log(n1 / n0), 0.05) / max(r1 - r0, 1e-12)

    def tightened(self, layers: int) -> None:
        """Begin anew, over boxes that are tighter in so many layers, from what is proved."""
        if len(self.seen) > 1:
            self.pace = self._rate
        elif self.radius > self.low:
            self.pace = log(max(2, self.bounded)) / (self.radius - self.low)
        leaves = self.seen[-1][1] if self.seen else 1
        self.seen, self.fresh = [(self.low, max(1, leaves // GAIN ** min(layers, 5)))], True

    def retreat(self, left: float) -> bool:
        """Give a radius up for a smaller one, where it would take too long; returns whether.

        `left` is the number of leaves that there is time for. Every cut has two more of them
        bounded. Where hardly any radius is near enough, the input `rests`.
        """
        done, begun = max(1 - self.rest, NOTHING), self.begun
        enough = max(PART * begun, min(MANY, 0.25 * (left + self.bounded)))
        if self.low <= 0 or self.bounded < enough:
            return False
        if self.bounded * self.rest <= LATE * done * left:
            return False
        before = self.seen[-1][1] if self.seen else 1
        leaves = max(0.5 * (self.bounded / done + begun), before + 1)
        fit = 0.5 * FIT * left
        if fit <= WORTH * before:
            self.rests = True
        else:
            part = log(fit / before) / log(leaves / before)
            self.radius = self.low + min(max(part, NEARER), 0.8) * (self.radius - self.low)
        self.waiting, self.bounded, self.fresh = True, 0, True
        return True

    def advance(self, limits: Limits, left: float = inf) -> None:
        """Set the radius to try next; `done` where there is none. `left` is the number of leaves
        that there is time for."""
        self.waiting, self.bounded, gap = True, 0, limits.gap
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
        if not self.seen:
            self.seen.append((low, 1))
            self.radius = low + START * (top - low)
            return
        leaves = self.seen[-1][1]
        growth = min(GROWTH, 0.5 * (FIT * left / leaves + 1))
        if leaves >= MANY and growth < WORTH:
            self.rests = True
        if leaves < FEW:
            part = FIRST if leaves >= FEW / 8 else 0.6
            radius = low + part * (top - low)
            if self.pace or len(self.seen) > 1:
                radius = min(radius, low + log(SOON / leaves) / self._rate)
        else:
            radius = low + log(max(growth, WORTH)) / self._rate
            radius = min(max(radius, low + LEAST * (top - low)), low + MOST * (top - low))
        if radius > top - 0.12 * (top - low) or top <= low * (1 + 2 * gap):
            radius = top
        self.radius = radius
