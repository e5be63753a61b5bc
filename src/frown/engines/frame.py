"""What an engine knows about one nonlinear node once its input is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frown.engines.settings import Settings
from frown.graph.box import Box
from frown.relax.relaxation import Anchors, Relaxation, SlopeRange, Slopes


@dataclass(frozen=True, slots=True)
class Lines:
    """One line per side for every neuron of a node, per sample."""

    slopes: Slopes
    lower: Tensor  # intercepts, of the node's output shape
    upper: Tensor

    def rows(self, index: Tensor | slice) -> Lines:
        return Lines(self.slopes.rows(index), self.lower[index], self.upper[index])


@dataclass(frozen=True, slots=True)
class Frame:
    """A nonlinear node over a box: the fixed rule's lines, and what others need.

    Tensors are per sample, or per row after `rows`; (1, ...) where all rows share one.
    """

    op: Relaxation
    anchors: Anchors
    lines: Lines
    range: SlopeRange
    excess: Tensor | None = None  # how far beyond the range a wide search may go

    @property
    def box(self) -> Box:
        return self.anchors.box

    def rows(self, index: Tensor | slice) -> Frame:
        return Frame(
            self.op,
            self.anchors.rows(index),
            self.lines.rows(index),
            self.range.rows(index),
            None if self.excess is None else self.excess[index],
        )


def frame(op: Relaxation, box: Box, settings: Settings) -> Frame:
    """The node's lines by Fast-Lin's or CROWN's rule, and its search space."""
    if settings.method == "fastlin":
        slopes = op.parallel(box)
    elif settings.rule == "paper":
        slopes = op.paper(box)
    else:
        slopes = op.crown(box)
    anchors = op.anchors(box)
    output = (box.lower.shape[0], *op.shape(tuple(box.lower.shape[1:])))
    below = torch.ones(output, dtype=torch.bool, device=box.lower.device)
    lines = Lines(
        slopes,
        op.line(slopes.lower, below, anchors).intercept,
        op.line(slopes.upper, ~below, anchors).intercept,
    )
    spread = op.tightest(box)
    return Frame(op, anchors, lines, spread, widest(spread) if settings.wide else None)


def widest(spread: SlopeRange) -> Tensor:
    """Appendix A.8: how far slopes may leave the tightest range, the width of all of it."""
    least = torch.minimum(spread.lower.lower, spread.upper.lower)
    return torch.maximum(spread.lower.upper, spread.upper.upper) - least
