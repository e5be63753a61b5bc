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

from frown.bounds.charged.forms import FixedLines, Passed, by_lines
from frown.bounds.charged.gather import SampleIndex
from frown.bounds.plan import Plan
from frown.bounds.proof import Choice
from frown.bounds.stacks import Stack, stacked_lines, stacks
from frown.graph.box import Box
from frown.relax.proven.lines import Proven, prove
from frown.relax.relaxation import Relaxed


@dataclass(frozen=True, slots=True)
class Nodes:
    """What is proven of the nodes before a target, per sample."""

    plan: Plan
    relaxed: Mapping[int, Relaxed]
    proven: Mapping[int, Proven]
    rules: Mapping[int, FixedLines]
    sizes: Mapping[int, Tensor]  # at least |z|
    together: dict[tuple[int, ...], tuple[Proven, Tensor]]  # of runs of nodes, found as needed
    ruled: dict[tuple[int, ...], FixedLines]  # the same for the fixed rule

    def rule(self, stack: Stack) -> FixedLines:
        """Of all nodes of a stack side by side."""
        if stack.nodes not in self.ruled:
            rules = [self.rules[i] for i in stack.nodes]
            lines = stacked_lines([rule.lines for rule in rules], len(rules[0].size))
            size = torch.cat([rule.size.flatten(1) for rule in rules], 1)
            self.ruled[stack.nodes] = FixedLines.of(stack.op, lines, size)
        return self.ruled[stack.nodes]

    def stack(self, stack: Stack) -> tuple[Proven, Tensor]:
        """Of all nodes of a stack side by side, and the sizes of what they read."""
        if stack.nodes not in self.together:
            boxes = [self.relaxed[i].box for i in stack.nodes]
            low = torch.cat([box.lower.flatten(1) for box in boxes], 1)
            high = torch.cat([box.upper.flatten(1) for box in boxes], 1)
            proven = prove(stack.op, Box(low, high))
            assert proven is not None  # each node has its own
            reads = (self.plan.graph.nodes[i].inputs[0] for i in stack.nodes)
            size = torch.cat([self.sizes[j].flatten(1) for j in reads], 1)
            self.together[stack.nodes] = proven, size
        return self.together[stack.nodes]


@dataclass
class Ruled:
    """Rows on their way along the fixed rule's lines."""

    nodes: Nodes
    target: int
    which: SampleIndex  # a row's sample
    coefs: dict[int, Tensor] = field(default_factory=dict)  # of nodes that are left to the end

    def __post_init__(self) -> None:
        every = stacks(self.nodes.plan, self.target)
        self.stacks = [
            r for r in every if len(r.nodes) > 1 and self.nodes.rule(r).charge is not None
        ]
        self.late = {i for stack in self.stacks for i in stack.nodes}

    def through(self, i: int, here: Tensor) -> Passed:
        """A form on a node's output becomes one on its input."""
        rule, op = self.nodes.rules[i], self.nodes.plan.relaxation(i)
        if i not in self.late:
            return rule.through(op, here, self.which)
        self.coefs[i] = here
        return Passed(rule.back(op, here, self.which), None, None)

    def rest(self) -> list[Passed]:
        """What the nodes that were left to the end add and take."""
        found = []
        for stack in self.stacks:
            read = [self.coefs[i] for i in stack.nodes if i in self.coefs]
            if read:
                for i, shape in zip(stack.nodes, stack.shapes, strict=True):
                    if i not in self.coefs:
                        self.coefs[i] = read[0].new_zeros(len(read[0]), *shape)
                coef = stack.join(self.coefs)
                found.append(Passed(coef, *self.nodes.rule(stack).gain(coef, self.which)))
        return found


@dataclass
class Guided:
    """Rows on their way. `least_gain` (rows,): slopes that gain less than this are left out."""

    nodes: Nodes
    target: int
    choice: Choice
    index: Tensor | slice  # a row's sample
    which: SampleIndex  # the same
    least_gain: Tensor | None = None
    slopes: dict[int, Tensor] = field(default_factory=dict)  # that were used; NaN: the rule's
    coefs: dict[int, Tensor] = field(default_factory=dict)  # of nodes that are left to the end

    def __post_init__(self) -> None:
        joint = self.choice.whole and self.least_gain is None
        every = stacks(self.nodes.plan, self.target) if joint else ()
        self.stacks = [stack for stack in every if len(stack.nodes) > 1]
        self.late = {i for stack in self.stacks for i in stack.nodes}

    def through(self, i: int, here: Tensor) -> Passed:
        """A form on a node's output becomes one on its input."""
        slope = self.choice.slope(i, here)
        if i in self.late:
            self.slopes[i], self.coefs[i] = slope, here
            return Passed(here * slope, None, None)
        op, under = self.nodes.plan.relaxation(i), here >= 0
        if self.least_gain is not None or not self.choice.whole:
            slope = self._partly(i, here, slope)
        else:
            self.slopes[i] = slope
        (source,) = self.nodes.plan.graph.nodes[i].inputs
        intercept = self.nodes.proven[i].rows(self.index).intercept(slope, under)
        return by_lines(op, here, slope, intercept, self.nodes.sizes[source], self.which)

    def rest(self) -> list[Passed]:
        """What the nodes that were left to the end add and take."""
        found = []
        for stack in self.stacks:
            if not any(i in self.coefs for i in stack.nodes):
                continue
            like = next(self.coefs[i] for i in stack.nodes if i in self.coefs)
            unread = [i for i in stack.nodes if i not in self.coefs]
            for i, shape in zip(stack.nodes, stack.shapes, strict=True):
                if i in unread:
                    self.coefs[i] = self.slopes[i] = like.new_zeros(len(like), *shape)
            proven, size = self.nodes.stack(stack)
            coef, slope = stack.join(self.coefs), stack.join(self.slopes)
            intercept = proven.rows(self.index).intercept(slope, coef >= 0)
            if unread:  # be their lines what they may; what is read and has none proves nothing
                gone = torch.tensor([i in unread for i in stack.nodes], device=coef.device)
                gone = gone.repeat_interleave(torch.tensor(stack.sizes, device=coef.device))
                intercept = torch.where(gone, 0.0, intercept)
            found.append(by_lines(stack.op, coef, slope, intercept, size, self.which))
        return found

    def _partly(self, i: int, here: Tensor, given: Tensor) -> Tensor:
        """The given slopes where there are any, and where they matter; elsewhere the rule's."""
        op, rule = self.nodes.plan.relaxation(i), self.nodes.rules[i].lines.slopes.rows(self.index)
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


def _short(slope: Tensor) -> Tensor:
    """Rounded to half precision, where that holds it."""
    half = slope.half().to(slope.dtype)
    return torch.where(half.isfinite(), half, slope)
