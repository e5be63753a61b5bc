"""Promises of IEEE double precision, and how errors add up.

Trusted: +, -, *, / and sqrt round to nearest (`arithmetic_fault` tests that), and sums (matrix
products included) add their terms in some order. Then a sum of n products is off by at most
gamma(n) times the sum of their sizes, plus what underflow loses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNIT = 2.0**-53  # half the distance from 1 to the next number
TINY = 2.0**-1022  # more than an operation can lose by underflow
LOOSE = 1 + 1e-9  # covers the rounding of sums of so many terms >= 0:
LONGEST = 4_000_000
_GRAIN = 2**15  # entries for one of torch's threads
_BLOCK = 128  # rows and columns of matrices that libraries multiply in several threads


def gamma(terms: int) -> float:
    """Relative error of a sum of this many products, each and every addition rounded."""
    return 1.001 * (terms + 2) * UNIT


def arithmetic_fault() -> str | None:
    """The reason why floats prove nothing here; None if they are as trusted above.

    A processor rounds and flushes as the thread at hand has set it to, and libraries compute in
    threads of their own: arrays are long enough to wake them.
    """
    if not _keeps_small_numbers():
        return "denormal numbers are flushed to 0 here (torch.set_flush_denormal)"
    if not _rounds_to_nearest():
        return "floats are not rounded to nearest here (fesetround)"
    return None


def _keeps_small_numbers() -> bool:
    """True if numbers below 2^-1022 are kept as the standard has it, and not flushed to 0."""
    (long, short), few = _filled(0.0), slice(None, None, 512)  # small numbers are slow
    long[few], short[few] = 2.0**-1060, 2.0**-1060
    return all(
        bool(((x * 0.5)[few] == 2.0**-1061).all() and ((x * 2.0**1000)[few] == 2.0**-60).all())
        for x in (long, short)
    )


def _rounds_to_nearest() -> bool:
    """True if sums and matrix products round to nearest.

    UNIT is half a step from 1 and from 1 + 2 UNIT, and the even neighbour is below the one and
    above the other.
    """
    start, end = (1.0, 1.0 + 2 * UNIT), (1.0, 1.0 + 4 * UNIT)
    first, last = ((*ends, *(-x for x in ends)) for ends in (start, end))
    steps = (UNIT, UNIT, -UNIT, -UNIT)
    filled: list[Any] = [_filled(*numbers) for numbers in (first, steps, last)]
    for x, step, y in zip(*filled, strict=True):
        if not bool((x + step == y).all()):
            return False
    size = 2 if torch.get_num_threads() == 1 else _BLOCK
    terms = torch.zeros(size, size, dtype=torch.float64)
    terms[0::2, 0], terms[1::2, 0], terms[:, 1] = *start, UNIT
    sums = terms @ torch.ones_like(terms)
    return bool((sums[0::2] == end[0]).all() and (sums[1::2] == end[1]).all())


def _filled(*values: float) -> tuple[Tensor, NDArray[np.float64]]:
    """Numbers again and again: in torch, so that all of its threads take part, and in numpy."""
    threads, once = torch.get_num_threads(), torch.tensor(values, dtype=torch.float64)
    count = 1024 if threads == 1 else min(_GRAIN * threads, 2**20)
    return once.repeat(count // len(values)), once.repeat(1024 // len(values)).numpy()


def below(x: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A number that is at most x - slack."""
    return step(x, -1, slack)


def above(x: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A number that is at least x + slack."""
    return step(x, 1, slack)


def step(x: Tensor, way: int, slack: Tensor | float = 0.0) -> Tensor:
    moved = x + way * slack
    return moved + way * (4 * UNIT * (x.abs() + slack) + TINY)
