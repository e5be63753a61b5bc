"""The largest radius that an engine proves, for many samples at once.

Every sample has its own bracket [proved, failed]. What is lost of its margins on the way
out, D(r) = margin(0) - margin(r), grows nearly like a power of r: log r is a smooth function
of log D. The last radii tried tell where it reaches log margin(0), and a search takes a
handful of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from frown.problem.property import positive

Evaluate = Callable[[Tensor, Tensor], Tensor]  # (samples (n,), radii (n,)) -> margins (n, T)

SEEN = 3  # radii that an estimate rests on
BEND = 0.25  # of the secant's step: how far a third radius may move the estimate
POWERS = (0.7, 8.0)  # what growth of D is believed
STEP = 3.0  # times as far as what is proved, with nothing failed yet, the next radius may be; and
SHORT = 0.5  # of where margins should vanish is the most, should it be farther than that
LASTS = 4  # radii in a row that were proved, and none failed: the limit itself is tried
FAR = 0.05  # how much further the next one is to be, for margins that seem to last
BEYOND = 0.6  # of `near`: how far beyond the estimate a first failure is looked for
SLOWER = 0.9  # of a method's growth is a better one's (medians on a dozen networks: .65 to .96)


@dataclass(frozen=True, slots=True)
class Goal:
    """The condition on which a bracket is decided.

    failed <= proved (1 + within), and margins are not expected to last to proved (1 + near), so
    that the proved end itself comes close.
    """

    within: float
    near: float
    leap: float = STEP  # how many times as far as what is proved a search may go at once

    @classmethod
    def fixed(cls, tol: float) -> Goal:
        """The goal for margins by fixed lines."""
        return cls(tol, 0.6 * tol)

    @classmethod
    def optimised(cls, tol: float) -> Goal:
        """The goal for margins by optimised lines."""
        return cls(tol, 0.4 * tol)


@dataclass(frozen=True)
class Bracket:
    """Per sample: `proved` holds with margins `at_proved`, `failed` was not proved."""

    clean: Tensor  # (N, T) margins at radius 0, all positive
    proved: Tensor  # (N,)
    at_proved: Tensor  # (N, T)
    failed: Tensor  # (N,) inf while nothing has failed
    at_failed: Tensor  # (N, T)
    limit: Tensor  # (N,) no larger radius is worth a try
    power: Tensor  # (N,) the growth of D, where less than two radii tell it
    streak: Tensor  # (N,) how often the same end has moved in a row: + proved, - failed
    tries: Tensor  # (N,) radii recorded
    widest: Tensor  # (N,) the largest of them
    seen: Tensor  # (N, SEEN) the last with finite margins: the latest, then the other end's,
    at_seen: Tensor  # (N, SEEN, T) margins there                         NaN where none
    doubted: Tensor  # (N,) the radius that a glance did not prove; inf where there is none

    @classmethod
    def start(cls, clean: Tensor, limit: Tensor, power: float | Tensor = 1.5) -> Bracket:
        count = clean.shape[0]
        zero = clean.new_zeros(count)
        return cls(
            clean,
            zero,
            clean,
            zero + torch.inf,
            clean,
            limit,
            power if isinstance(power, Tensor) else zero + power,
            zero,
            zero,
            zero,
            clean.new_full((count, SEEN), torch.nan),
            clean[:, None].expand(-1, SEEN, -1),
            zero + torch.inf,
        )

    def onwards(self) -> Bracket:
        """A bracket for a tighter method.

        It keeps `proved`, forgets `failed` and the margins seen, and keeps the exponent with which
        margins fall, made smaller: tighter margins fall more slowly.
        """
        return replace(
            self,
            failed=torch.full_like(self.failed, torch.inf),
            power=(SLOWER * self.growth()).clamp(*POWERS),
            streak=torch.zeros_like(self.streak),
            tries=torch.zeros_like(self.tries),
            seen=torch.full_like(self.seen, torch.nan),
        )

    def rows(self, index: Tensor) -> Bracket:
        """The brackets of these samples."""
        return Bracket(*(getattr(self, f.name)[index] for f in fields(self)))

    def take_over(self, index: Tensor, other: Bracket) -> Bracket:
        """Keep the larger proved radii of `other`, which are brackets of these samples."""
        better = (other.proved > self.proved[index]).nonzero().flatten()
        place = (index[better],)
        proved, failed = other.proved[better], self.failed[place]
        kept = failed > proved
        failed = torch.where(kept, failed, other.failed[better])
        lost = torch.where(kept[:, None], self.at_failed[place], other.at_failed[better])
        return replace(
            self,
            proved=self.proved.index_put(place, proved),
            at_proved=self.at_proved.index_put(place, other.at_proved[better]),
            failed=self.failed.index_put(place, failed),
            at_failed=self.at_failed.index_put(place, lost),
        )

    def open(self, goal: Goal, root: Tensor | None = None) -> Tensor:
        """Indices of the samples not yet decided, where `root` is known or not.

        One that fails at next to nothing, compared with the limit (without one: with the
        largest radius tried), is decided: it is 0.
        """
        top = torch.minimum(self.failed, self.limit)
        far = torch.where(torch.isfinite(self.limit), self.limit, self.widest)
        wide = top > self.proved * (1 + goal.within)
        loose = wide | (self.likely(root).fmin(top) > self.proved * (1 + goal.near))
        return (loose & (self.failed > 1e-16 * far)).nonzero().flatten()

    def likely(self, root: Tensor | None = None) -> Tensor:
        """(N,) where margins should reach 0, inside the bracket; inf unless something failed."""
        inside = (self.root() if root is None else root).fmin(self.failed).maximum(self.proved)
        return torch.where(torch.isfinite(self.failed), inside, torch.inf)

    def growth(self) -> Tensor:
        """(N,) the exponent of D from the last radius tried to the nearest one beside it, where
        two have been tried."""
        y = torch.log(self.seen)
        near = (y[:, 1:] - y[:, :1]).abs().nan_to_num(nan=torch.inf).argmin(1) + 1
        every = torch.arange(len(y), device=y.device)
        lost = torch.log(_positive(self.clean[:, None] - self.at_seen))
        rise, run = lost[every, near] - lost[:, 0], y[every, near] - y[:, 0]
        slope = (rise / run[:, None]).amin(1)
        return torch.where(torch.isfinite(slope), slope.clamp(*POWERS), self.power)

    def record(self, index: Tensor, radius: Tensor, margins: Tensor) -> Bracket:
        """Take in the margins found at these radii; NaN and infinity prove nothing."""
        finite = torch.isfinite(margins)
        whole = finite.all(1)
        if bool(whole.all()):
            known = self.suppose(index, radius, margins)
        else:
            known = self.suppose(index[whole], radius[whole], margins[whole])
            margins = margins.where(finite, -torch.inf)
        good = positive(margins)
        streak = self.streak[index]
        streak = torch.where(good, streak.clamp(min=0) + 1, streak.clamp(max=0) - 1)
        above = (good & (radius > self.proved[index])).nonzero().flatten()
        below = (~good & (radius < self.failed[index])).nonzero().flatten()
        up, down = index[above], index[below]
        return replace(
            known,
            tries=self.tries.index_add(0, index, torch.ones_like(radius)),
            widest=self.widest.index_copy(0, index, radius.maximum(self.widest[index])),
            streak=self.streak.index_copy(0, index, streak),
            proved=self.proved.index_copy(0, up, radius[above]),
            at_proved=self.at_proved.index_copy(0, up, margins[above]),
            failed=self.failed.index_copy(0, down, radius[below]),
            at_failed=self.at_failed.index_copy(0, down, margins[below]),
        )

    def suppose(self, index: Tensor, radius: Tensor, margins: Tensor) -> Bracket:
        """Let estimates rest on these margins too; nothing is decided by it."""
        seen, at_seen = self.seen[index], self.at_seen[index]
        # Between the two ends margins are known best: the other end stands second.
        other = (margins > 0).all(1)[:, None] != (at_seen > 0).all(2)
        other &= ~torch.isnan(seen)
        swap = (~other[:, 0] & other[:, 1])[:, None]
        before = torch.where(swap, seen[:, :2].flip(1), seen[:, :2])
        seen = torch.cat([radius[:, None], before], 1)
        at_before = torch.where(swap[..., None], at_seen[:, :2].flip(1), at_seen[:, :2])
        at_seen = torch.cat([margins[:, None], at_before], 1)
        return replace(
            self,
            seen=self.seen.index_copy(0, index, seen),
            at_seen=self.at_seen.index_copy(0, index, at_seen),
        )

    def propose(self, index: Tensor, goal: Goal, root: Tensor | None = None) -> Tensor:
        """The next radius of each sample, near where margins should reach 0: just beyond, until
        something close has failed, then just below."""
        near = goal.near
        low, high = self.proved[index], self.failed[index]
        steps, moved, tries = self.streak[index].abs(), self.streak[index] > 0, self.tries[index]
        both = (low > 0) & torch.isfinite(high)
        middle = torch.sqrt(low * high)
        root = (self.root() if root is None else root)[index]
        root = torch.where(torch.isnan(root), torch.where(both, middle, 0.1 * high), root)
        beyond = high > root * (1 + goal.within)
        aim = root * torch.where(beyond, 1 + BEYOND * near, 1 - 0.3 * near)
        # Never waste an evaluation on a radius that would not change the answer.
        aim = aim.maximum(low * (1 + 0.9 * near)).minimum(high * (1 - 0.5 * near))
        # One end moving again and again means that the law does not fit: halve instead.
        closing = torch.where(moved, root < low * (1 + near), root > high * (1 - 4 * near))
        stuck = (steps >= torch.where(closing, 5, 3)) | ((tries > 8) & (tries % 2 == 0) & ~closing)
        aim = torch.where(both & stuck, middle, aim)
        # Without a proved end, go down fast; without a failed one, up by a step, or by a leap that
        # should be short of the end, and not at once beyond what a glance has seen.
        most = torch.where(steps >= 4, 0.1, torch.where(steps >= 2, 0.7, 1 - 0.5 * near))
        down = aim.minimum(most * high)
        least = torch.where(steps >= 3, 0.001, torch.where(steps >= 2, 0.02, 0.25))
        down = down.maximum(least * high)
        doubted = self.doubted[index]
        short = min(STEP, goal.leap) * low
        step = (SHORT * root).minimum(goal.leap * low).maximum(short)
        most = torch.where(low < doubted, doubted, step).minimum(step)
        aim = torch.where(low > 0, aim.maximum(low).minimum(torch.where(both, high, most)), down)
        # What is proved again and again may hold up to the limit, where that is not far, or
        # everywhere.
        top = self.limit[index]
        lasts = moved & (steps >= LASTS) & torch.isinf(high)
        aim = torch.where(lasts & (aim > (1 + FAR) * low), short, aim)
        ever = lasts & (top <= 2 * low)
        return torch.where((aim * (1 + near) >= top) | ever, top, aim)

    def root(self) -> Tensor:
        """(N,) where the first margin should reach 0; NaN where nothing has been seen.

        log r as a polynomial of log D through the last radii: of degree 0 (with the power
        known before), 1 or 2.
        """
        clean, radius = self.clean, self.seen
        lost = torch.log(_positive(clean[:, None] - self.at_seen))  # (n, SEEN, T)
        y, to = torch.log(radius)[:, :, None], torch.log(_positive(clean))
        flat, steep = 1 / POWERS[1], 1 / POWERS[0]
        known = (1 / self.power)[:, None].expand_as(to)

        def slope(a: int, b: int, otherwise: Tensor) -> Tensor:
            found = ((y[:, b] - y[:, a]) / (lost[:, b] - lost[:, a])).clamp(flat, steep)
            return torch.where(torch.isfinite(found), found, otherwise)

        # Far beyond the root margins saturate: two that failed tell less than the power.
        held = (self.proved > 0)[:, None]
        first = torch.where(held, slope(0, 1, known), known)
        second = torch.where(held, slope(1, 2, first), known)
        step = first * (to - lost[:, 0])
        bend = (second - first) / (lost[:, 2] - lost[:, 0]) * (to - lost[:, 0]) * (to - lost[:, 1])
        bend = torch.where(torch.isfinite(bend), bend, 0.0)
        most = BEND * step.abs()
        root = torch.exp(y[:, 0] + step + bend.maximum(-most).minimum(most))
        return torch.where(torch.isnan(radius[:, 0]), torch.nan, root.amin(1))


def search(
    bracket: Bracket,
    evaluate: Evaluate,
    first: Tensor,
    goal: Goal,
    rounds: int = 40,
    glance: bool = False,
    enough: Goal | None = None,
) -> Iterator[Bracket]:
    """Shrink every bracket until the `goal` is reached, by at most `rounds` evaluations.

    Yields the brackets before every evaluation, where a caller may stop, and at the end. With
    `enough` the way to the goal is left as soon as that is reached. Starts at the radii `first`; if
    the first evaluation is a mere `glance`, what it does not prove has not failed yet.
    """
    radius, enough = torch.minimum(first, bracket.limit), enough or goal
    index = bracket.open(enough)
    supposed, root = index[:0], None
    for turn in range(rounds):
        if not len(index):
            break
        yield bracket
        here = radius[index] if turn == 0 else bracket.propose(index, goal, root)
        margins = evaluate(index, here)
        if turn == 1:  # better is known now
            bracket = replace(bracket, seen=bracket.seen.index_fill(0, supposed, torch.nan))
        if glance and turn == 0:
            # Where nothing is proved yet, or nothing seen, there is no other radius to go on from.
            weak = torch.isfinite(margins).all(1) & ~positive(margins) & (bracket.proved[index] > 0)
            supposed = index[weak]
            bracket = bracket.suppose(supposed, here[weak], margins[weak])
            doubted = bracket.doubted.index_put((supposed,), here[weak])
            bracket = replace(bracket, doubted=doubted)
            index, here, margins = index[~weak], here[~weak], margins[~weak]
        bracket = bracket.record(index, here, margins)
        root = bracket.root()
        index = bracket.open(enough, root)
    yield bracket


def _positive(t: Tensor) -> Tensor:
    return t.clamp(min=torch.finfo(t.dtype).tiny)
