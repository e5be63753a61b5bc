"""Curves: functions of one variable as a proof needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from torch import Tensor

from frown.relax.proven.taylor import Enclosure


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch on which f bends one way: up (convex), down (concave), or is straight.

    A gap is a short stretch around an inflection point, where it may do anything.
    """

    start: float
    end: float
    bend: str  # "up", "down", "straight" or "gap"


@dataclass(frozen=True, slots=True)
class Curve:
    """A function with proven values.

    Where a kink is the end of a piece that bends, the slope there is that piece's own.
    """

    value: Callable[[Tensor], Enclosure]
    slope: Callable[[Tensor], Enclosure]
    pieces: tuple[Stretch, ...]
    start: float = -inf  # left of it tangents are too steep to be of use
    tangent: Callable[[Tensor], tuple[Enclosure, Enclosure]] | None = None  # both at less cost

    def both(self, z: Tensor) -> tuple[Enclosure, Enclosure]:
        """Values and slopes."""
        return self.tangent(z) if self.tangent is not None else (self.value(z), self.slope(z))
