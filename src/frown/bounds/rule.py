"""Fixed rules for slopes: Fast-Lin's and CROWN's, and a nonlinear node's lines by them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph.box import Box
from frown.relax.relaxation import Relaxation, Relaxed, SlopeRange, Slopes


class Rule(ABC):
    """A choice of slopes that needs nothing but the box of a neuron's input."""

    @abstractmethod
    def slopes(self, op: Relaxation, box: Box, spread: SlopeRange) -> Slopes:
        """The slopes below and above of a nonlinearity whose tightest ones are `spread`."""


@dataclass(frozen=True, slots=True)
class Parallel(Rule):
    """Fast-Lin: one slope for both sides."""

    def slopes(self, op: Relaxation, box: Box, spread: SlopeRange) -> Slopes:
        return op.parallel(box)


@dataclass(frozen=True, slots=True)
class Paper(Rule):
    """CROWN as the paper has it (appendix A.4)."""

    def slopes(self, op: Relaxation, box: Box, spread: SlopeRange) -> Slopes:
        return op.paper(box)


@dataclass(frozen=True, slots=True)
class LeastArea(Rule):
    """CROWN with the lines that enclose the least area."""

    def slopes(self, op: Relaxation, box: Box, spread: SlopeRange) -> Slopes:
        return op.least_area(box, spread)


def relax(op: Relaxation, box: Box, rule: Rule, wide: bool = False) -> Relaxed:
    """A node's lines by the rule, and the space in which slopes are searched."""
    spread = op.tightest(box)
    slopes = rule.slopes(op, box, spread)
    excess = widest(spread) if wide else None
    return Relaxed(op, box, op.lines(slopes, box), spread, excess)


def widest(spread: SlopeRange) -> Tensor:
    """Appendix A.8: how far slopes may leave the tightest range, the width of all of it."""
    least = torch.minimum(spread.lower.lower, spread.upper.lower)
    return torch.maximum(spread.lower.upper, spread.upper.upper) - least
