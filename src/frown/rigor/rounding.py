"""What IEEE double precision promises, and how errors add up.

Trusted: +, -, *, / and sqrt round to nearest, and sums (matrix products included) add their terms
in some order. Then a sum of n products is off by at most gamma(n) times the sum of their sizes,
plus what underflow loses.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**-53  # half the distance from 1 to the next number
TINY = 2.0**-1022  # more than an operation can lose by underflow
LOOSE = 1 + 1e-9  # covers the rounding of sums of so many terms >= 0:
LONGEST = 4_000_000


def gamma(terms: int) -> float:
    """Relative error of a sum of so many products, each and every addition rounded."""
    return 1.001 * (terms + 2) * UNIT


def keeps_small_numbers() -> bool:
    """Whether numbers below 2^-1022 are kept as the standard has it, and not flushed to 0."""
    small = torch.full((64,), 2.0**-1060, dtype=torch.float64)
    kept = (small * 0.5 == 2.0**-1061).all() and (small * 2.0**1000 == 2.0**-60).all()
    return bool(kept)


def below(x: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A number that is at most x - slack."""
    return step(x, -1, slack)


def above(x: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A number that is at least x + slack."""
    return step(x, 1, slack)


def step(x: Tensor, way: int, slack: Tensor | float = 0.0) -> Tensor:
    moved = x + way * slack
    return moved + way * (4 * UNIT * (x.abs() + slack) + TINY)
