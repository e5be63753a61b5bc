"""Final rows of many leaves of ReLU networks, each with its slopes and multipliers.

A neuron is free or cut at its kink. A free one has a slope in [0, 1] for its line below, where its
box leaves a choice; on a side of a cut the function is a line, and the cut itself enters rows
with a multiplier b >= 0: -b z on the side z >= 0, +b z on the other. Both are the one number
`theta` of a leaf at that neuron. The ascent direction has a closed form, as in FROWN: with z what
arrives along the lines and a the coefficient of the output, max(a, 0) z for a slope and -z or +z
for a multiplier. Torch compares and selects far more slowly than it multiplies, hence masks of 0
and 1.

Slopes are places of a grid and multipliers short numbers, as a proof stores them: what is bounded
here is what is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.methods.branch.passes import LeafLines, Passes, Where

SCORES = ("intercept", "learnt", "babsr", "kfsb")
CANDIDATES = 3  # of each of two scores, whose children kfsb bounds
PRIOR = 4.0  # cuts that every neuron is supposed to have had, with the gain of all
BETTER = 0.2  # of the better child counts, beside the rest of the worse one
CLEAR, MOST = 1e-9, 10.0  # intercepts of which gains are learnt, and the largest ratio
HUGE = 1e30
GRID = 1.5 * 2.0**16  # added and taken away again, it leaves a multiple of 2^-7
SPLIT = 2.0**13 + 1  # likewise eleven binary digits of a number, as half precision has
SLACK = 1e-5  # of a row's terms: what rounding may take from its bound, and more


@dataclass(frozen=True, slots=True)
class LeafAscent:
    """Settings of the ascents on slopes and multipliers of leaves."""

    steps: int = 8
    rate: float = 0.15
    decay: float = 0.9  # of the rate, per step
    lift: float = 6.0  # times as large as those of slopes are steps of multipliers, in their units
    floor: float = 1e-6  # of the largest squared derivative of a leaf
    momentum: float = 0.5
    memory: float = 0.85
    hope: float = 3.0  # times its last gain is what a leaf may still gain with every step
    score: str = "learnt"  # by which neurons are chosen that are cut


@dataclass
class Bases:
    """Boxes (slots, bases) that subtrees share, and the lines of free neurons over them."""

    lower: Tensor
    upper: Tensor
    open: Tensor  # 1 where the line below has a choice
    still: Tensor  # the slope below where it has none
    high: Tensor
    rise: Tensor

    @classmethod
    def of(cls, lower: Tensor, upper: Tensor) -> Bases:
        crossing = (lower < 0) & (upper > 0)
        still = (lower >= 0).to(lower)
        width = torch.where(crossing, upper - lower, 1.0)
        high = torch.where(crossing, upper / width, still)
        rise = torch.where(crossing, -lower * high, 0.0)
        return cls(lower, upper, crossing.to(lower), still, high, rise)

    def put(self, where: Tensor, other: Bases) -> None:
        """Replace some of the bases."""
        for name in ("lower", "upper", "open", "still", "high", "rise"):
            getattr(self, name).index_copy_(1, where, getattr(other, name))

    def grown(self, count: int) -> Bases:
        """A copy with room for this many more."""

        def more(t: Tensor) -> Tensor:
            return torch.cat([t, t.new_zeros(len(t), count)], 1)

        return Bases(
            *(
                more(t)
                for t in (self.lower, self.upper, self.open, self.still, self.high, self.rise)
            )
        )


class Leaves:
    """Leaves on their way through an ascent: one column each."""

    _COLUMNS = (
        "cut",
        "open",
        "still",
        "high",
        "rise",
        "most",
        "grid",
        "theta",
        "coef",
        "arrived",
        "head",
    )

    def __init__(
        self,
        passes: Passes,
        bases: Bases,
        base: Tensor,  # (B,)
        cut: Tensor,  # (B, slots) -1, 0, 1: the side of a cut, 0: free
        theta: Tensor,  # (B, slots)
        head: Tensor,  # (heads, B)
        const: Tensor,  # (B,)
        where: Where,
        weight: Tensor | None = None,  # (slots, inputs) of intercepts, where it is learnt ...
        sample: Tensor | None = None,  # ... and (B,) which input a leaf is of; None: there is one
    ) -> None:
        self.passes, self.const, self.where, self.head = passes, const, where, head
        self.weight, self.sample = weight, sample
        self.cut = cut.T.to(theta.dtype, memory_format=torch.contiguous_format).contiguous()
        free = torch.addcmul(torch.ones((), dtype=theta.dtype), self.cut, self.cut, value=-1)
        on = self.cut.relu()
        self.open = bases.open.index_select(1, base).mul_(free)
        self.still = torch.addcmul(on, bases.still.index_select(1, base), free)
        self.high = torch.addcmul(on, bases.high.index_select(1, base), free)
        self.rise = bases.rise.index_select(1, base).mul_(free)
        self.most = self.cut.square().mul_(HUGE).add_(1)
        self.grid = free.mul_(GRID)
        self.theta = self._rounded(theta.T.contiguous())
        self.coef = torch.empty_like(self.theta)
        self.arrived = torch.empty_like(self.theta)
        self.end: Tensor | None = None

    def __len__(self) -> int:
        return self.theta.shape[1]

    def take(self, keep: Tensor) -> None:
        """Go on with some of the leaves alone."""
        for name in self._COLUMNS:
            setattr(self, name, getattr(self, name).index_select(1, keep))
        self.const, self.where = self.const[keep], self.where.take(keep)
        if self.sample is not None:
            self.sample = self.sample[keep]
        self.end = None

    def move(self, step: Tensor, rate: float) -> None:
        """Change slopes and multipliers, within their limits."""
        moved = self.theta.add(step, alpha=rate).clamp_(min=0)
        self.theta = self._rounded(torch.minimum(moved, self.most, out=moved))

    def _rounded(self, theta: Tensor) -> Tensor:
        """Round slopes to the grid, and multipliers to what half precision has of digits."""
        long = theta * SPLIT
        short = long - (long - theta)
        return short.add_(self.grid).sub_(self.grid)

    def bound(self) -> Tensor:
        """(B,) the bounds at the present slopes and multipliers, less some slack for rounding."""
        low = torch.addcmul(self.still, self.open, self.theta)
        tilt = torch.mul(self.cut, self.theta).neg_()
        self.end = self.passes.back(
            self.head, LeafLines(low, self.high, self.rise, tilt), self.coef
        )
        self.first = self.where.lowest(self.end)
        above = (self.coef * -HUGE).clamp_(0, 1)
        slope = torch.addcmul(low, above, self.high - low)
        value = self.passes.forth(self.first, slope, self.rise * above, self.arrived)
        terms = self.head * value
        found = terms.sum(0) + self.const + (tilt * self.arrived).sum(0)
        return found - (terms.abs_().sum(0) + self.const.abs()) * SLACK

    def uphill(self) -> Tensor:
        """(slots, B) how bounds grow with theta."""
        return self.coef.relu().mul_(self.open).sub_(self.cut).mul_(self.arrived)

    def units(self, lift: float) -> Tensor:
        """(slots, B) the size of a step: 1 for slopes, for multipliers `lift` times the mean
        coefficient of their layer's neurons."""
        units = self.cut.square()
        for part in self.passes.parts:
            units[part].mul_(self.coef[part].abs().mean(0, keepdim=True).mul_(lift).sub_(1))
        return units.add_(1)

    def truth(self, which: Tensor) -> Tensor:
        """(n,) what the network itself gives where the bounds of some leaves are attained."""
        value = self.passes.exact(self.where.pick(self.first, which))
        return (self.head.index_select(1, which) * value).sum(0) + self.const[which]


@dataclass(slots=True)
class Risen:
    """The ends of the ascents of leaves."""

    bound: Tensor  # (B,) the best bound of each leaf
    theta: Tensor  # (B, slots) with which it is proved, or to go on from
    slot: Tensor  # (B,) where to cut a leaf that is not proved
    worth: Tensor  # (B,) the score of that cut; 0: nothing is left to cut
    broken: list[tuple[int, Tensor]]  # leaves with inputs (*shape) that violate the property
    rows: int  # bounds computed, over all leaves and steps
    candidates: Tensor | None = None  # (B, candidates) slots to choose among by their children


Score = Callable[[Leaves], Tensor]


def intercepts(leaves: Leaves) -> Tensor:
    """(slots, B) what the intercepts of lines above take from the bounds."""
    return leaves.coef.clamp(max=0).neg_().mul_(leaves.rise)


def gaps(leaves: Leaves) -> Tensor:
    """(slots, B) how far the lines of free neurons are from the function where bounds are
    attained, times coefficients: for leaves in which no line above has an intercept."""
    z, coef = leaves.arrived, leaves.coef
    below = z.relu() - torch.addcmul(leaves.still, leaves.open, leaves.theta) * z
    return coef.relu().mul_(below.abs()).mul_(leaves.open).add_(leaves.open, alpha=1e-12)


def learnt(leaves: Leaves) -> Tensor:
    """(slots, B) intercepts, times what cuts of a neuron have gained of them so far."""
    found, weight = intercepts(leaves), leaves.weight
    if weight is None:
        return found
    if leaves.sample is not None and weight.shape[1] > 1:
        weight = weight.index_select(1, leaves.sample)
    return found.mul_(weight)


def babsr(leaves: Leaves) -> Tensor:
    """(slots, B) the score of Bunel et al. (2020): by how much bounds should change if a neuron
    were stable, of its layer's bias and of the intercept of its line above."""
    high, bias = leaves.high, leaves.passes.bias * leaves.coef
    least = torch.maximum(bias * (high - 1), bias * high)
    return leaves.coef.clamp(max=0).mul_(leaves.rise).add_(least).abs_().mul_(leaves.open)


def best_of_both(leaves: Leaves) -> Tensor:
    """(candidates, B) the best slots by BaBSR's score and by intercepts; where a score is 0, the
    first of them."""
    found = []
    for score in (babsr, intercepts):
        value, slot = score(leaves).topk(min(CANDIDATES, leaves.theta.shape[0]), 0)
        found.append(torch.where(value > 0, slot, slot[:1]))
    return torch.cat(found)


NAMED: dict[str, Score] = {
    "learnt": learnt,
    "intercept": intercepts,
    "babsr": babsr,
    "kfsb": intercepts,
}


class PseudoCosts:
    """The gains of cuts so far: what a child's bound rises, as a part of the intercept that its
    parent had at the neuron."""

    def __init__(self, slots: int, inputs: int) -> None:
        self.gain = torch.zeros(2, slots, inputs)
        self.count = torch.zeros(2, slots, inputs)

    def tell(self, sample: Tensor, cut: Tensor, gain: Tensor, unit: Tensor) -> None:
        """Learn from children whose last `cut` is (B,) slot + 1, negative on the side z <= 0."""
        good = (cut != 0) & (unit > CLEAR) & gain.isfinite()
        sample, cut, gain, unit = (t[good] for t in (sample, cut, gain, unit))
        at = ((cut > 0).long(), cut.abs() - 1, sample)
        ratio = (gain / unit).clamp(0, MOST).to(self.gain)
        self.gain.index_put_(at, ratio, accumulate=True)
        self.count.index_put_(at, torch.ones_like(ratio), accumulate=True)

    def weight(self) -> Tensor:
        """(slots, inputs) for intercepts: what both children should gain."""
        count = self.count.sum(1, keepdim=True)
        usual = torch.where(count > 0, self.gain.sum(1, keepdim=True) / count.clamp(min=1), 1.0)
        below, above = (self.gain + PRIOR * usual) / (self.count + PRIOR)
        worse, better = torch.minimum(below, above), torch.maximum(below, above)
        return (1 - BETTER) * worse + BETTER * better


def ascend(leaves: Leaves, ascent: LeafAscent) -> Risen:
    """Raise the bounds of leaves until they are positive, or hopeless, or steps are used up.

    A leaf that does not get near 0 is to be cut further: more steps for it would be lost.
    """
    count = len(leaves)
    theta = torch.empty_like(leaves.theta)
    best = torch.full_like(leaves.const, -torch.inf)
    left, slot = torch.arange(count), torch.zeros(count, dtype=torch.long)
    found = Risen(best, theta, slot, torch.zeros_like(best), [], 0)
    if ascent.score == "kfsb":
        many = 2 * min(CANDIDATES, leaves.theta.shape[0])
        found.candidates = torch.zeros(count, many, dtype=torch.long)
    before = best
    first = second = units = torch.zeros(())
    tiny = 16 * torch.finfo(best.dtype).tiny

    def finish(own: Tensor, unproved: Tensor) -> None:
        """Columns that leave, and which of them are not proved."""
        theta.index_copy_(1, left[own], leaves.theta.index_select(1, own))
        if not len(unproved):
            return
        value, where = NAMED[ascent.score](leaves).max(0)
        value, where = value[unproved], where[unproved]
        if found.candidates is not None:
            found.candidates[left[unproved]] = best_of_both(leaves)[:, unproved].T
        if bool((value <= 0).any()):
            other, place = gaps(leaves)[:, unproved].max(0)
            last = value <= 0
            value, where = torch.where(last, other, value), torch.where(last, place, where)
            if found.candidates is not None:
                found.candidates[left[unproved[last]]] = where[last][:, None]
        found.slot[left[unproved]], found.worth[left[unproved]] = where, value
        wrong = unproved[leaves.truth(unproved) <= 0]
        if len(wrong):
            assert leaves.end is not None
            points = leaves.where.point(leaves.end, wrong)
            found.broken += zip(left[wrong].tolist(), points, strict=True)

    for step in range(ascent.steps + 1):
        bound = leaves.bound()
        found.rows += len(left)
        best.index_copy_(0, left, best.index_select(0, left).fmax(bound))
        proved = bound > 0
        gone = proved
        if step >= 2:
            more = (bound - before).clamp(min=0) * (ascent.hope * (ascent.steps - step))
            gone = proved | (bound + more < 0)
        leaving = int(gone.sum())
        if step == ascent.steps or leaving == len(left):
            finish(torch.arange(len(left)), (~proved).nonzero().flatten())
            break
        before = bound
        if leaving * 4 > len(left):
            finish(gone.nonzero().flatten(), (gone & ~proved).nonzero().flatten())
            keep = (~gone).nonzero().flatten()
            leaves.take(keep)
            left, before, proved = left[keep], bound[keep], proved[keep]
            if step:
                first, second, units = (t.index_select(1, keep) for t in (first, second, units))
        gradient = leaves.uphill()
        if step == 0:
            units = leaves.units(ascent.lift)
        gradient.mul_(units)
        if step == 0:
            first, second = gradient, gradient.square().add_(tiny)
        else:
            first.lerp_(gradient, 1 - ascent.momentum)
            second.mul_(ascent.memory).addcmul_(gradient, gradient, value=1 - ascent.memory)
        # Directions in which hardly anything is to be gained may be mere rounding.
        floor = second.amax(0, keepdim=True).mul_(ascent.floor)
        move = (second + floor).rsqrt_().mul_(first).mul_(units)
        if bool(proved.any()):
            move.mul_((~proved).to(move))
        rate = ascent.rate * ascent.decay**step
        leaves.move(move, rate)
    found.theta = theta.T.contiguous()
    return found
