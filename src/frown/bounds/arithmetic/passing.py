"""Rows that pass nonlinear nodes: along slopes of their own, or along the fixed rule's lines.

The slopes they want are asked for node by node, since these depend on the signs of coefficients.
What intercepts add and rounding takes is found when rows have come all the way down: for all
neighbouring nodes of one elementwise function at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import Charged, Charges, Passed, by_lines
from frown.bounds.arithmetic.curved import Deviations, bent_below
from frown.bounds.proof import Choice
from frown.bounds.rows import inner
from frown.bounds.stacks import Stack, stacks
from frown.graph.box import Box
from frown.relax.curvature import bends
from frown.relax.elementwise import Elementwise
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, gamma


@dataclass
class Ruled:
    """One backward pass of rows along CROWN's (or Fast-Lin's) lines."""

    nodes: Charged
    target: int
    charges: Charges
    coefs: dict[int, Tensor] = field(default_factory=dict)  # of nodes that are left to the end

    def __post_init__(self) -> None:
        every = stacks(self.nodes.plan, self.target)
        fixed = self.nodes.fixed_stack
        self.stacks = [s for s in every if len(s.nodes) > 1 and fixed(s).charge is not None]
        self.late = {i for stack in self.stacks for i in stack.nodes}

    def through(self, i: int, here: Tensor) -> tuple[Tensor | None, Tensor]:
        """Turn a form on a node's output into one on its input."""
        rule, op = self.nodes.fixed[i], self.nodes.plan.relaxation(i)
        if i not in self.late:
            return _paid(self.charges, rule.through(op, here, self.charges.sample))
        self.coefs[i] = here
        return None, rule.back(op, here, self.charges.sample)

    def rest(self) -> list[Tensor]:
        """The constants of the nodes that were left to the end."""
        found = []
        for stack in self.stacks:
            if _complete(stack, self.coefs) is None:
                continue
            coef = stack.join(self.coefs)
            gain, charge = self.nodes.fixed_stack(stack).gain(coef, self.charges.sample)
            self.charges.take(charge)
            found.append(gain)
        return found


@dataclass
class Guided:
    """One backward pass of rows along the slopes that a method chose, multipliers included.

    Slopes that improve a row's bound by less than `least_gain` (rows,) fall back to the rule's,
    which keeps certificates small.
    """

    nodes: Charged
    target: int
    choice: Choice
    index: Tensor | slice  # a row's sample
    charges: Charges
    least_gain: Tensor | None = None
    deviations: Deviations | None = None  # where rows may bend
    slopes: dict[int, Tensor] = field(default_factory=dict)  # that were used; NaN: the rule's
    multipliers: dict[int, Tensor] = field(default_factory=dict)  # likewise, where there are any
    curvatures: dict[int, Tensor] = field(default_factory=dict)  # (rows, entries) that gained
    coefs: dict[int, Tensor] = field(default_factory=dict)  # of nodes that are left to the end

    def __post_init__(self) -> None:
        joint = self.choice.whole and self.least_gain is None
        every = stacks(self.nodes.plan, self.target) if joint else ()
        self.stacks = [stack for stack in every if len(stack.nodes) > 1]
        self.late = {i for stack in self.stacks for i in stack.nodes}

    def through(self, i: int, here: Tensor) -> tuple[Tensor | None, Tensor]:
        """Turn a form on a node's output into one on its input."""
        slope = self.choice.slope(i, here)
        if i in self.late:
            self.slopes[i], self.coefs[i] = slope, here
            return self._multiplied(i, None, here * slope)
        op, under = self.nodes.plan.relaxation(i), here >= 0
        if self.least_gain is not None or not self.choice.whole:
            slope = self._partly(i, here, slope)
        else:
            self.slopes[i] = slope
        (source,) = self.nodes.plan.graph.nodes[i].inputs
        intercept = self.nodes.proven[i].rows(self.index).intercept(slope, under)
        size = self.nodes.weights.value[source]
        passed = by_lines(op, here, slope, intercept, size, self.charges.sample)
        bent = self._bent(i, here, passed.coef, here * intercept)
        if bent is not None:
            passed = Passed(passed.coef, passed.const + bent[0], passed.charge + bent[1])
        return self._multiplied(i, *_paid(self.charges, passed))

    def _bent(
        self, i: int, here: Tensor, back: Tensor, straight: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """(rows,) what curvatures add to a row's constant, 0 where they gain nothing, and what
        rounding may take; `straight` is what the lines of each neuron give."""
        if self.deviations is None or self.choice.curvature is None:
            return None
        bend = self.choice.curvature(i)
        op = self.nodes.plan.relaxation(i)
        if bend is None or not bends(op):
            return None
        assert isinstance(op, Elementwise)
        gain, charge = (here.new_zeros(len(here)) for _ in range(2))
        which = torch.arange(len(here)) if isinstance(self.index, Tensor) else None
        numbers = (
            torch.full((len(here),), self.index.start)
            if isinstance(self.index, slice)
            else self.index
        )
        for n in torch.unique(numbers).tolist():
            own = (numbers == n).nonzero().flatten() if which is not None else slice(None)
            known = self.deviations.at(i, n)
            at = known.index
            weight = bend[own][:, at]
            box = self.nodes.relaxed[i].box.rows(slice(n, n + 1))
            parts = Box(box.lower.flatten(1)[:, at], box.upper.flatten(1)[:, at])
            coef, below = here[own].flatten(1)[:, at], back[own].flatten(1)[:, at]
            plain = straight[own].flatten(1)[:, at]
            positive = weight > 0
            found = bent_below(
                op, parts, coef, below, weight.where(positive, 1.0), known.centre[at]
            )
            found = found.where(positive, plain)
            most = known.most(weight)
            more = found.sum(1) - plain.sum(1) - 0.5 * most
            size = found.abs().sum(1) + plain.abs().sum(1) + most
            cost = size * (gamma(len(at) + 8) * LOOSE) + TINY
            good = more > cost
            gain[own] = torch.where(good, more, 0.0)
            charge[own] = torch.where(good, cost, 0.0)
        if bool((gain > 0).any()):
            self.curvatures[i] = bend * (gain > 0)[:, None]
        return gain, charge

    def rest(self) -> list[Tensor]:
        """The constants of the nodes that were left to the end."""
        found = []
        for stack in self.stacks:
            unread = _complete(stack, self.coefs, self.slopes)
            if unread is None:
                continue
            proven, size = self.nodes.proven_stack(stack)
            coef, slope = stack.join(self.coefs), stack.join(self.slopes)
            intercept = proven.rows(self.index).intercept(slope, coef >= 0)
            if unread:  # be their lines what they may; what is read and has none proves nothing
                gone = torch.tensor([i in unread for i in stack.nodes], device=coef.device)
                gone = gone.repeat_interleave(torch.tensor(stack.sizes, device=coef.device))
                intercept = torch.where(gone, 0.0, intercept)
            passed = by_lines(stack.op, coef, slope, intercept, size, self.charges.sample)
            found.append(_paid(self.charges, passed)[0])
        return found

    def _multiplied(
        self, i: int, gain: Tensor | None, below: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Add m z - max(m l, m u), which is <= 0, for the multipliers m of a node's input z in
        [l, u]."""
        m = None if self.choice.multiplier is None else self.choice.multiplier(i)
        if m is None:
            return gain, below
        self.multipliers[i] = m
        box = self.nodes.relaxed[i].box.rows(self.index)
        cost = torch.maximum(m * box.lower, m * box.upper).flatten(1)
        count = cost.shape[1]
        both = below + m
        (source,) = self.nodes.plan.graph.nodes[i].inputs
        size = self.nodes.weights.value[source]
        # Products may underflow, of which sums know nothing.
        charge = cost.abs().sum(1) * gamma(count + 1) + 2 * count * TINY
        self.charges.take(charge + inner(both, size, self.charges.sample) * (2 * UNIT))
        total = -cost.sum(1)
        return total if gain is None else gain + total, both

    def _partly(self, i: int, here: Tensor, given: Tensor) -> Tensor:
        """The given slopes where there are any, and where they matter; elsewhere the rule's."""
        op, rule = self.nodes.plan.relaxation(i), self.nodes.fixed[i].lines.slopes.rows(self.index)
        usual = torch.where(op.expand(here >= 0), rule.lower, rule.upper)
        matters = ~given.isnan()
        if self.least_gain is not None:
            box = self.nodes.relaxed[i].box.rows(self.index)
            gain = op.expand(here).abs() * (given - usual).abs() * (box.upper - box.lower)
            matters = gain > self.least_gain.view(-1, *[1] * (gain.dim() - 1))
            given = _short(given)
        taken = torch.where(matters, given, usual)
        self.slopes[i] = taken.where(matters, torch.nan)
        return taken


def _paid(charges: Charges, passed: Passed) -> tuple[Tensor, Tensor]:
    charges.take(passed.charge)
    return passed.const, passed.coef


def _complete(stack: Stack, *tables: dict[int, Tensor]) -> list[int] | None:
    """Zeros in tables of a stack's nodes where no row has read a node; these nodes, or None where
    that is all of them."""
    unread = [i for i in stack.nodes if i not in tables[0]]
    if len(unread) == len(stack.nodes):
        return None
    if unread:
        like = next(tables[0][i] for i in stack.nodes if i in tables[0])
        shapes: Mapping[int, tuple[int, ...]] = dict(zip(stack.nodes, stack.shapes, strict=True))
        for i in unread:
            for table in tables:
                table[i] = like.new_zeros(len(like), *shapes[i])
    return unread


def _short(slope: Tensor) -> Tensor:
    """Rounded to half precision, where that holds it."""
    half = slope.half().to(slope.dtype)
    return torch.where(half.isfinite(), half, slope)
