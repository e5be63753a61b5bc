"""Relaxations: what every nonlinearity says about itself so that it can be bounded.

A bounding line is its slope: for f on [l, u] and any slope s, the tightest valid intercepts are the
extremes of f(z) - s z over [l, u] (Theorem 3 of the paper), so every slope gives a valid line and
methods only choose slopes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from frown.graph import Intervals, Nonlinear, Shape, rows_of

Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Slopes:
    """One slope for the line below and one for the line above, per neuron."""

    lower: Tensor
    upper: Tensor

    def rows(self, index: Tensor | slice) -> Slopes:
        return Slopes(rows_of(self.lower, index), rows_of(self.upper, index))


@dataclass(frozen=True)
class SlopeRange:
    """Slopes of the tightest lines (Table 2): [low, high] below and above."""

    lower: Intervals
    upper: Intervals

    @cached_property
    def widths(self) -> tuple[Tensor, Tensor]:
        """high - low, below and above."""
        return self.lower.upper - self.lower.lower, self.upper.upper - self.upper.lower

    def rows(self, index: Tensor | slice) -> SlopeRange:
        return SlopeRange(self.lower.rows(index), self.upper.rows(index))


@dataclass(frozen=True, slots=True)
class Line:
    """Intercept of the line of a given slope, and the point where it touches f.

    The intercept's derivative by the slope is minus the touching point (envelope
    theorem), so no solver is needed to optimise slopes.
    """

    intercept: Tensor
    touch: Tensor


@dataclass(frozen=True, slots=True)
class Anchors:
    """Points of the box that can be extremes of f(z) - s z whatever s is, with f there."""

    box: Intervals
    points: tuple[tuple[Tensor, Tensor], ...]
    reach: Tensor  # max(|l|, |u|)

    @classmethod
    def of(cls, box: Intervals, points: tuple[tuple[Tensor, Tensor], ...] = ()) -> Self:
        return cls(box, points, box.lower.abs().maximum(box.upper.abs()))

    def rows(self, index: Tensor | slice) -> Anchors:
        points = tuple((rows_of(z, index), rows_of(f, index)) for z, f in self.points)
        return Anchors(self.box.rows(index), points, rows_of(self.reach, index))


@dataclass(frozen=True, slots=True)
class Lines:
    """One line per side for every neuron of a node, per sample."""

    slopes: Slopes
    lower: Tensor  # intercepts, of the node's output shape
    upper: Tensor

    def rows(self, index: Tensor | slice) -> Lines:
        return Lines(
            self.slopes.rows(index), rows_of(self.lower, index), rows_of(self.upper, index)
        )

    def moved(self, reads: Move, gives: Move) -> Lines:
        """A copy whose tensors of the input's and of the output's shape are laid out anew."""
        slopes = Slopes(reads(self.slopes.lower), reads(self.slopes.upper))
        return Lines(slopes, gives(self.lower), gives(self.upper))


@dataclass(frozen=True, slots=True)
class Family:
    """Slopes of several lines per side, each of the shape of the operator's input."""

    lower: tuple[Tensor, ...]
    upper: tuple[Tensor, ...]


@dataclass(frozen=True)
class Relaxed:
    """A nonlinear node over a box: the rule's lines, and the slopes a search may choose.

    Tensors are per sample, or per row after `rows`; (1, ...) where all rows share one.
    """

    op: Relaxation
    box: Intervals
    lines: Lines
    range: SlopeRange
    excess: Tensor | None = None  # how far beyond the range a wide search may go
    origin: tuple[Relaxed, Tensor | slice] | None = None  # of rows: whose, and which

    @cached_property
    def anchors(self) -> Anchors:
        """Anchors of the box, computed when first needed; many lines need none."""
        if self.origin is None:
            return self.op.anchors(self.box)
        relaxed, index = self.origin
        return relaxed.anchors.rows(index)

    @cached_property
    def unit(self) -> bool:
        """True if slopes below run from 0 to 1 at every entry, the same for all rows."""
        low, high = self.range.lower.lower, self.range.lower.upper
        return len(low) == 1 and bool((low == 0).all() & (high == 1).all())

    @cached_property
    def inactive(self) -> Tensor:
        """Mask of the entries that are 0, whatever slopes are chosen, for all samples."""
        low, high = self.range.lower, self.range.upper
        every = (low.lower, low.upper, high.lower, high.upper, self.lines.lower, self.lines.upper)
        slopes = (self.lines.slopes.lower, self.lines.slopes.upper)
        total = torch.stack([t.abs() for t in (*every, *slopes)]).sum(0)
        return total.amax(0) == 0

    def moved(self, op: Relaxation, reads: Move, gives: Move) -> Relaxed:
        """The node as another operator has it, whose input and output are laid out so."""

        def box(b: Intervals) -> Intervals:
            return Intervals(reads(b.lower), reads(b.upper))

        return Relaxed(
            op,
            box(self.box),
            self.lines.moved(reads, gives),
            SlopeRange(box(self.range.lower), box(self.range.upper)),
            None if self.excess is None else reads(self.excess),
        )

    def rows(self, index: Tensor | slice) -> Relaxed:
        return Relaxed(
            self.op,
            self.box.rows(index),
            self.lines.rows(index),
            self.range.rows(index),
            None if self.excess is None else rows_of(self.excess, index),
            (self, index),
        )


@dataclass(frozen=True)
class RowSides:
    """The side that each entry of rows needs: lines below where its coefficient is >= 0.

    Selects by arithmetic, which torch does several times faster than by masks; exact, but
    where the line that is not needed has no number, the other has none either.
    """

    coef: Tensor
    known: Tensor | None = None  # `above`, where it has been computed

    @cached_property
    def below(self) -> Tensor:
        """A mask: True where the line below is needed."""
        return self.coef >= 0

    @cached_property
    def above(self) -> Tensor:
        """0 below, 1 above."""
        return above_of(self.coef) if self.known is None else self.known

    @cached_property
    def sign(self) -> Tensor:
        """-1 below, 1 above: outwards."""
        return 2 * self.above - 1

    def of(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The entries of `lower` or `upper`, whichever side is needed."""
        return torch.lerp(lower, upper, self.above)


def above_of(coef: Tensor) -> Tensor:
    """1 where coefficients are < 0, else 0; as numbers, since masks are far slower."""
    return torch.lt(coef, 0, out=torch.empty_like(coef))


@dataclass(frozen=True, slots=True)
class LinesWithin:
    """Lines at given alpha of the tightest range, and how wide it is there."""

    slope: Tensor
    intercept: Tensor
    touch: Tensor | float
    width: Tensor | float


class Relaxation(Nonlinear):
    """A nonlinear operator with valid lines for every slope.

    Slopes have the shape of the operator's input. `below` masks (of the output's shape) say which
    side is wanted: True the line below f, False the one above. Only `line` and `image` decide
    whether bounds are valid; all other methods guide the choice of slopes. For a function of one
    variable derive from `Elementwise`, which needs far less; for one of all entries of an axis from
    `Joint`.
    """

    __slots__ = ()

    @abstractmethod
    def anchors(self, box: Intervals) -> Anchors:
        """Points of the box that `line` needs, computed once for many slopes."""

    @abstractmethod
    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        """The tightest valid line of a slope on each entry's side.

        Args:
            slope: (rows, *input shape), any numbers.
            below: (rows, *output shape), True for the line below f.
            anchors: of the box over which the line must hold.

        Intercepts are NaN where f is not defined on all of the box.
        """

    @abstractmethod
    def tightest(self, box: Intervals) -> SlopeRange:
        """The range of slopes of the tightest lines; it guides a search, validity needs none."""

    @abstractmethod
    def crown(self, box: Intervals) -> Slopes:
        """CROWN's rule: slopes of the lines that are tightest at the middle of the box."""

    def least_area(self, box: Intervals, spread: SlopeRange) -> Slopes:
        """CROWN's rule for callers who have the range of the tightest slopes, `spread`."""
        return self.crown(box)

    @abstractmethod
    def parallel(self, box: Intervals) -> Slopes:
        """Fast-Lin's rule: the chord's slope on both sides."""

    def family(self, relaxed: Relaxed, count: int) -> Family:
        """Slopes of up to `count` tightest lines per side for a linear program (appendix A.4).

        With `count` 1 they are CROWN's own.
        """
        rule = relaxed.lines.slopes
        return Family((rule.lower,), (rule.upper,)) if count == 1 else self.several(relaxed, count)

    @abstractmethod
    def several(self, relaxed: Relaxed, count: int) -> Family:
        """The slopes of `family` for a `count` of 2 or more."""

    def image(self, box: Intervals) -> Intervals:
        """A box around all values of f over the box: lines of slope 0 touch its extremes."""
        zero = torch.zeros_like(box.lower)
        return Intervals(*self._intercepts(Slopes(zero, zero), box))

    @abstractmethod
    def stable(self, box: Intervals) -> Tensor:
        """Mask of inputs for which tighter bounds could not tighten any line."""

    def lines(self, slopes: Slopes, box: Intervals) -> Lines:
        """The tightest lines of these slopes, one per side."""
        return Lines(slopes, *self._intercepts(slopes, box))

    def _intercepts(self, slopes: Slopes, box: Intervals) -> tuple[Tensor, Tensor]:
        """The intercepts of the lines of these slopes below and above."""
        anchors = self.anchors(box)
        output = (box.lower.shape[0], *self.shape(tuple(box.lower.shape[1:])))
        below = torch.ones(output, dtype=torch.bool, device=box.lower.device)
        sides = self.line(slopes.lower, below, anchors), self.line(slopes.upper, ~below, anchors)
        return sides[0].intercept, sides[1].intercept

    def within(self, alpha: Tensor, below: Tensor, relaxed: Relaxed) -> LinesWithin:
        """Lines inside the tightest range, on the side that `below` wants.

        `alpha` in [0, 1] is the place in that range, per entry of the input.
        """
        slopes = self.slopes_at(alpha, alpha, relaxed)
        slope = torch.where(self.expand(below), slopes.lower, slopes.upper)
        return self.tight_lines(slope, RowSides(below.to(slope) - 0.5), relaxed)

    def slopes_at(self, lower: Tensor, upper: Tensor, relaxed: Relaxed) -> Slopes:
        """The slopes at these alpha of the tightest ranges below and above."""
        under, over = relaxed.range.widths
        return Slopes(
            torch.addcmul(relaxed.range.lower.lower, lower, under),
            torch.addcmul(relaxed.range.upper.lower, upper, over),
        )

    def tight_lines(self, slope: Tensor, sides: RowSides, relaxed: Relaxed) -> LinesWithin:
        """The lines of slopes that lie in the tightest range."""
        below = sides.below
        line = self.line(slope, below, relaxed.anchors)
        under, over = relaxed.range.widths
        return LinesWithin(slope, line.intercept, line.touch, under.where(self.expand(below), over))

    def uphill(self, coef: Tensor, lines: LinesWithin, z: Tensor) -> Tensor:
        """The derivative of a bound by the alpha of `within`.

        `coef` is laid over the input, and z is the value that arrives there.
        """
        return coef * lines.width * (z - lines.touch)

    def paper(self, box: Intervals) -> Slopes:
        """CROWN's rule as the paper states it (appendix A.4)."""
        return self.crown(box)

    def project(self, alpha: Tensor, below: Tensor) -> Tensor | None:
        """The nearest alpha inside the search space; None: all of [0, 1] is inside."""
        return None

    def expand(self, coef: Tensor) -> Tensor:
        """Output coefficients laid over the input's entries."""
        return coef

    def along(self, slope: Tensor, z: Tensor, intercept: Tensor) -> Tensor:
        """The line's value at z."""
        return torch.addcmul(intercept, slope, z)


class Joint(Relaxation):
    """A function of all entries of the last axis together, which disappears; lines are planes."""

    __slots__ = ()

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0][:-1]

    def anchors(self, box: Intervals) -> Anchors:
        """The box itself: planes need no points computed before."""
        return Anchors.of(box)

    def expand(self, coef: Tensor) -> Tensor:
        return coef.unsqueeze(-1)

    def along(self, slope: Tensor, z: Tensor, intercept: Tensor) -> Tensor:
        return (slope * z).sum(-1) + intercept


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


class Rule(ABC):
    """A choice of slopes that needs nothing but the box of a neuron's input."""

    @abstractmethod
    def slopes(self, op: Relaxation, box: Intervals, spread: SlopeRange) -> Slopes:
        """The slopes below and above of a nonlinearity whose tightest ones are `spread`."""


@dataclass(frozen=True, slots=True)
class Parallel(Rule):
    """Fast-Lin: one slope for both sides."""

    def slopes(self, op: Relaxation, box: Intervals, spread: SlopeRange) -> Slopes:
        return op.parallel(box)


@dataclass(frozen=True, slots=True)
class Paper(Rule):
    """CROWN as the paper has it (appendix A.4)."""

    def slopes(self, op: Relaxation, box: Intervals, spread: SlopeRange) -> Slopes:
        return op.paper(box)


@dataclass(frozen=True, slots=True)
class LeastArea(Rule):
    """CROWN with the lines that enclose the least area."""

    def slopes(self, op: Relaxation, box: Intervals, spread: SlopeRange) -> Slopes:
        return op.least_area(box, spread)


def relax(op: Relaxation, box: Intervals, rule: Rule, wide: bool = False) -> Relaxed:
    """A node's lines by the rule, and the space in which slopes are searched."""
    spread = op.tightest(box)
    slopes = rule.slopes(op, box, spread)
    excess = widest(spread) if wide else None
    return Relaxed(op, box, op.lines(slopes, box), spread, excess)


def widest(spread: SlopeRange) -> Tensor:
    """Appendix A.8: how far slopes may leave the tightest range, the width of all of it."""
    least = torch.minimum(spread.lower.lower, spread.upper.lower)
    return torch.maximum(spread.lower.upper, spread.upper.upper) - least
