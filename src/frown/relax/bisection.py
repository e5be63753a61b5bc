"""The places where monotone conditions turn, entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bisect(
    low: Tensor, high: Tensor, beyond: Callable[[Tensor], Tensor], steps: int
) -> tuple[Tensor, Tensor]:
    """Ends that enclose the place behind which `beyond` holds, halved `steps` times.

    Args:
        low, high: where to look; where `beyond` never (always) turns, they end up at high (low).
        beyond: a mask, for points, of those that lie behind the place.
        steps: how often the interval is halved.
    """
    for _ in range(steps):
        middle = (low + high) / 2
        behind = beyond(middle)
        low, high = torch.where(behind, low, middle), torch.where(behind, middle, high)
    return low, high
