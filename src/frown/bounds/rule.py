"""A nonlinear node's lines once its input is bounded, by the method's rule."""

from __future__ import annotations

import torch
from torch import Tensor

from frown.bounds.settings import Settings
from frown.graph.box import Box
from frown.relax.relaxation import Frame, Relaxation, SlopeRange, Slopes


def frame(op: Relaxation, box: Box, settings: Settings) -> Frame:
    """The node's lines by Fast-Lin's or CROWN's rule, and its search space."""
    spread = op.tightest(box)
    slopes = rule_slopes(op, box, spread, settings)
    excess = widest(spread) if settings.wide else None
    return Frame(op, box, op.lines(slopes, box), spread, excess)


def rule_slopes(op: Relaxation, box: Box, spread: SlopeRange, settings: Settings) -> Slopes:
    """Of the method's lines, of which FROWN's start is CROWN's."""
    if settings.method == "fastlin":
        return op.parallel(box)
    return op.paper(box) if settings.rule == "paper" else op.least_area(box, spread)


def widest(spread: SlopeRange) -> Tensor:
    """Appendix A.8: how far slopes may leave the tightest range, the width of all of it."""
    least = torch.minimum(spread.lower.lower, spread.upper.lower)
    return torch.maximum(spread.lower.upper, spread.upper.upper) - least
