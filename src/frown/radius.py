"""The largest radius that an engine proves, for many samples at once.

Every sample has its own bracket [proved, failed]. What is lost of its margins on the way
out, D(r) = margin(0) - margin(r), grows nearly like a power of r, so two radii predict
where a margin reaches 0, and a search takes a handful of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Evaluate = Callable[[Tensor, Tensor], Tensor]  # (samples (n,), radii (n,)) -> margins (n, T)


@dataclass
class Bracket:
    """Per sample: `proved` holds with margins `at_proved`, `failed` was not proved."""

    clean: Tensor  # (N, T) margins at radius 0, all positive
    proved: Tensor  # (N,)
    at_proved: Tensor  # (N, T)
    failed: Tensor  # (N,) inf while nothing has failed
    at_failed: Tensor  # (N, T)
    limit: Tensor  # (N,) no larger radius is worth a try
    power: Tensor  # (N,) last estimate of the growth of D
    streak: Tensor  # (N,) how often the same end has moved in a row: + proved, - failed

    @classmethod
    def start(cls, clean: Tensor, limit: Tensor, power: float | Tensor = 1.5) -> Bracket:
        count = clean.shape[0]
        zero = clean.new_zeros(count)
        growth = power if isinstance(power, Tensor) else zero + power
        return cls(clean, zero, clean, zero + torch.inf, clean, limit, growth, zero)

    def open(self, tol: float) -> Tensor:
        """Indices of the samples not yet decided to `tol`.

        One that fails at next to nothing, compared with the limit, is decided: it is 0.
        """
        top = torch.minimum(self.failed, self.limit)
        loose = (top > self.proved * (1 + tol)) & (self.failed > 1e-16 * self.limit)
        return loose.nonzero().flatten()

    def growth(self) -> Tensor:
        """(N,) the exponent of D between the two ends, where both are known."""
        both = (self.proved > 0) & torch.isfinite(self.failed)
        lost_low = _positive(self.clean - self.at_proved)
        lost_high = _positive(self.clean - self.at_failed)
        run = torch.log(self.failed / self.proved.clamp(min=1e-30))
        slope = ((torch.log(lost_high) - torch.log(lost_low)) / run[:, None]).amin(1)
        return torch.where(both, slope.clamp(0.7, 8), self.power)

    def record(self, index: Tensor, radius: Tensor, margins: Tensor) -> None:
        """Take in the margins found at these radii; NaN and infinity prove nothing."""
        margins = margins.where(torch.isfinite(margins), -torch.inf)
        holds = (margins > 0).all(1)
        streak = self.streak[index]
        streak = torch.where(holds, streak.clamp(min=0) + 1, streak.clamp(max=0) - 1)
        self.streak = self.streak.index_put((index,), streak)
        up, down = index[holds], index[~holds]
        better = radius[holds] > self.proved[up]
        self.proved = self.proved.index_put((up[better],), radius[holds][better])
        self.at_proved = self.at_proved.index_put((up[better],), margins[holds][better])
        lower = radius[~holds] < self.failed[down]
        self.failed = self.failed.index_put((down[lower],), radius[~holds][lower])
        self.at_failed = self.at_failed.index_put((down[lower],), margins[~holds][lower])

    def propose(self, index: Tensor, tol: float) -> Tensor:
        """The next radius of each sample: just below where the power law puts the root."""
        clean = self.clean[index]
        low, high = self.proved[index], self.failed[index]
        lost_low = _positive(clean - self.at_proved[index])
        lost_high = _positive(clean - self.at_failed[index])
        both = (low > 0) & torch.isfinite(high)
        run = torch.log(high / low.clamp(min=1e-30))[:, None]
        slope = (torch.log(lost_high) - torch.log(lost_low)) / run
        power = torch.where(both[:, None], slope, self.power[index][:, None]).clamp(0.7, 8)
        from_low = low[:, None] * (_positive(clean) / lost_low) ** (1 / power)
        from_high = high[:, None] * (_positive(clean) / lost_high) ** (1 / power)
        root = torch.where((low > 0)[:, None], from_low, from_high)
        root = torch.nan_to_num(root, nan=0.0).amin(1)
        aim = root * (1 - 0.3 * tol)
        # Never waste an evaluation on a radius that would not change the answer.
        aim = aim.maximum(low * (1 + 0.9 * tol)).minimum(high * (1 - 0.5 * tol))
        # One end moving again and again means that the law does not fit: halve instead.
        middle = torch.sqrt(low * high)
        steps = self.streak[index].abs()
        aim = torch.where(both & (steps >= 3), middle, aim)
        aim = torch.where(both & (steps == 2), torch.sqrt(aim * middle), aim)
        # Without a proved end, go down fast; without a failed one, up at most threefold.
        down = aim.minimum(0.7 * high).maximum(torch.where(steps >= 3, 0.001, 0.02) * high)
        aim = torch.where(low > 0, aim.maximum(low).minimum(torch.where(both, high, 3 * low)), down)
        top = self.limit[index]
        return torch.where(aim * (1 + tol) >= top, top, aim)


def search(
    bracket: Bracket,
    evaluate: Evaluate,
    first: Tensor,
    tol: float,
    rounds: int = 40,
    stop: Callable[[], bool] = lambda: False,
) -> Bracket:
    """Shrink every bracket to failed <= proved (1 + tol), at most `rounds` evaluations.

    Starts at the radii `first`. `stop` is asked before every evaluation; what was proved
    until then stands.
    """
    radius = torch.minimum(first, bracket.limit)
    index = bracket.open(tol)
    for turn in range(rounds):
        if not len(index) or stop():
            break
        here = radius[index] if turn == 0 else bracket.propose(index, tol)
        bracket.record(index, here, evaluate(index, here))
        index = bracket.open(tol)
    return bracket


def _positive(t: Tensor) -> Tensor:
    return t.clamp(min=torch.finfo(t.dtype).tiny)
