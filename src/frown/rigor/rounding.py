"""What IEEE double precision promises, and how errors add up.

Trusted: +, -, *, / and sqrt round to nearest, and sums (matrix products included) add their terms
in some order. Then a sum of n products is off by at most gamma(n) times the sum of their sizes,
plus what underflow loses.
"""

from __future__ import annotations

from torch import Tensor

UNIT = 2.0**-53  # half the distance from 1 to the next number
TINY = 2.0**-1022  # more than an operation can lose by underflow, flushed to 0 or not
LOOSE = 1 + 1e-9  # covers the rounding of sums of up to 4 million terms >= 0


def gamma(terms: int) -> float:
    """Relative error of a sum of so many products, each and every addition rounded."""
    return 1.001 * (terms + 2) * UNIT


def below(x: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A number that is at most x - slack."""
    return step(x, -1, slack)


def above(x: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A number that is at least x + slack."""
    return step(x, 1, slack)


def step(x: Tensor, way: int, slack: Tensor | float = 0.0) -> Tensor:
    moved = x + way * slack
    return moved + way * (4 * UNIT * (x.abs() + slack) + TINY)
