"""Time limits: long computations ask now and then whether to go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf


class OutOfTime(Exception):
    """The time limit has passed; what was proved before stands."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline on the monotonic clock."""

    deadline: float = inf

    @classmethod
    def lasting(cls, seconds: float | None) -> Clock:
        return cls(inf if seconds is None else time.monotonic() + seconds)

    def expired(self) -> bool:
        return self.deadline != inf and time.monotonic() > self.deadline

    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def share(self, count: int) -> Clock:
        """The next of `count` equal parts of the time left."""
        return self if self.deadline == inf else Clock.lasting(self.left() / count)

    def check(self) -> None:
        if self.expired():
            raise OutOfTime


NO_LIMIT = Clock()
