"""Slopes of rows at the nonlinear nodes of a stack: backwards by slopes, forwards by lines.

An `Alpha` holds what one pass did at its nodes: the coefficients A, the lines, and what arrived
there on the way forward, which together give the ascent direction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from frown.bounds.forms import Chosen
from frown.bounds.stacks import Stack
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Relaxation, Relaxed, Sides, Slopes, Within, above_of


class Alpha(ABC):
    """Rows at the nodes of one stack. `alpha` (groups, lanes, slots) says where in its range each
    slope lies.

    Without groups a row has one alpha per neuron, which serves the side it needs; the rows of a
    group have two lanes, for lines below and above. A wide search doubles them.
    """

    def __init__(self, stack: Stack, relaxed: Relaxed, group: Tensor | None, rows: int) -> None:
        self.stack, self.relaxed, self.group, self.rows = stack, relaxed, group, rows
        self.lanes = 1 if group is None else 2

    @abstractmethod
    def prepare(self, alpha: Tensor, fresh: bool) -> None:
        """Begin a pass at these alpha; if `fresh`, NaN among them stands for CROWN's slope, and is
        replaced in `alpha` when the pass is complete."""

    @abstractmethod
    def slope(self, i: int, here: Tensor) -> Tensor:
        """The slopes that rows with these coefficients of a node's output take there."""

    @abstractmethod
    def back(self, i: int, here: Tensor) -> Tensor:
        """Turn coefficients of a node's output into those of its input."""

    @abstractmethod
    def complete(self) -> None:
        """All nodes have been passed: find the lines."""

    @abstractmethod
    def lines(self) -> dict[int, Chosen]:
        """The lines of each node passed."""

    @abstractmethod
    def gain(self) -> Tensor:
        """(rows,) what the intercepts add to the forms."""

    @abstractmethod
    def uphill(self, arrived: dict[int, Tensor]) -> list[Tensor]:
        """Per lane (rows, neurons): how bounds grow with alpha, given what arrives at the
        nodes."""

    def _picked(self, alpha: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """The alpha of a lane per row, for lines below and above, from the lane `first`."""
        own = alpha[:, :, self.stack.slots]
        if self.group is None:
            one = self.stack.laid(own[:, first])
            return one, one
        low, high = own[self.group, first], own[self.group, first + 1]
        return self.stack.laid(low), self.stack.laid(high)

    def _starts(self, slopes: Slopes) -> tuple[Tensor, Tensor]:
        """CROWN's alpha below and above."""
        low, high = self.relaxed.range.lower, self.relaxed.range.upper
        under, over = self.relaxed.range.widths
        return _alpha(slopes.lower, low.lower, under), _alpha(slopes.upper, high.lower, over)

    def _begin_groups(self, alpha: Tensor) -> None:
        """Start the alpha of groups; rows of one share a sample's boxes, so any row's do."""
        assert self.group is not None
        for lane, start in enumerate(self._starts(self.relaxed.lines.slopes)):
            blank = torch.zeros_like(alpha[:, 0, self.stack.slots])
            rows = start.flatten(1).expand(len(self.group), -1)
            _fill(alpha, lane, self.stack.slots, blank.index_copy_(0, self.group, rows))

    def _begin_beyond(self, alpha: Tensor) -> None:
        for lane in range(self.lanes, alpha.shape[1]):
            _fill(alpha, lane, self.stack.slots, torch.zeros_like(alpha[:, 0, self.stack.slots]))

    def _by_lanes(self, slopes: list[Tensor], sides: Sides) -> list[Tensor]:
        """Derivatives in the lanes that rows read."""
        if self.group is None:
            return [s if s.dim() == 2 else s.flatten(1) for s in slopes]
        masks = (sides.below, ~sides.below)
        return [(s * mask).flatten(1) for s in slopes for mask in masks]


class ElementwiseAlpha(Alpha):
    """Slopes of an elementwise function's nodes, computed for all of them at once.

    All slopes are found before a pass, all intercepts and touching points after it.
    """

    above: Tensor | None = None

    def prepare(self, alpha: Tensor, fresh: bool) -> None:
        relaxed = self.relaxed
        self.coefs: dict[int, Tensor] = {}
        self.slopes: dict[int, Tensor] = {}
        if fresh:
            self._begin_beyond(alpha)
            if self.group is not None:
                self._begin_groups(alpha)
        chosen = self._picked(alpha, 0)
        self.begun: tuple[Tensor, Tensor, Tensor] | None = None
        if fresh and self.group is None:
            below, above = self._starts(relaxed.lines.slopes)
            lost = torch.isnan(chosen[0])
            chosen = torch.where(lost, below, chosen[0]), torch.where(lost, above, chosen[1])
            self.begun = alpha, *chosen
        self.inner = self.both = self.stack.op.slopes_at(*chosen, relaxed)
        if relaxed.excess is not None:
            self.beyond = self._picked(alpha, self.lanes)
            self.both = Slopes(
                torch.addcmul(self.inner.lower, self.beyond[0], relaxed.excess),
                torch.addcmul(self.inner.upper, self.beyond[1], relaxed.excess),
            )
        self.under = self.stack.split(self.both.lower)
        if self.both.upper is not self.above:  # often the same from pass to pass
            self.above, self.over = self.both.upper, self.stack.split(self.both.upper)

    def slope(self, i: int, here: Tensor) -> Tensor:
        return torch.lerp(self.under[i], self.over[i], above_of(here))

    def back(self, i: int, here: Tensor) -> Tensor:
        slope = self.slope(i, here)
        self.coefs[i], self.slopes[i] = here, slope
        return here * slope

    def complete(self) -> None:
        for i, shape in zip(self.stack.nodes, self.stack.shapes, strict=True):
            if i not in self.coefs:  # no row reads it: any line will do
                self.coefs[i] = self.under[i].new_zeros(self.rows, *shape)
                self.slopes[i] = self.under[i].expand(self.rows, *shape)
        op, relaxed = self.stack.op, self.relaxed
        self.coef = self.stack.join(self.coefs)
        self.sides = sides = Sides(self.coef)
        tight = op.tight_lines(sides.of(self.inner.lower, self.inner.upper), sides, relaxed)
        if relaxed.excess is None:
            self.within = tight
        else:
            slope = sides.of(self.both.lower, self.both.upper)
            line = op.line(slope, sides.below, relaxed.anchors)
            self.still = still = sides.of(*self.beyond) == 0
            touch = torch.where(still, tight.touch, line.touch)
            self.within = Within(slope, line.intercept, touch, tight.width)
        if self.begun is not None:
            alpha, low, high = self.begun
            alpha[:, 0, self.stack.slots] = sides.of(low, high).flatten(1)

    def lines(self) -> dict[int, Chosen]:
        intercepts = self.stack.split(self.within.intercept)
        return {i: Chosen(self.slopes[i], intercepts[i]) for i in self.stack.nodes}

    def gain(self) -> Tensor:
        return (self.coef * self.within.intercept).flatten(1).sum(1)

    def uphill(self, arrived: dict[int, Tensor]) -> list[Tensor]:
        z = self.stack.join(arrived)
        slopes = [self.stack.op.uphill(self.coef, self.within, z)]
        if self.relaxed.excess is not None:
            slopes.append(_outside(self.coef, self.within, self.relaxed, self.still, z))
        return self._by_lanes(slopes, self.sides)


class GeneralAlpha(Alpha):
    """Slopes of any other node by itself; lines are found as it is passed."""

    def prepare(self, alpha: Tensor, fresh: bool) -> None:
        self.alpha, self.fresh, self.passed = alpha, fresh, False
        if fresh:
            self._begin_beyond(alpha)
            if self.group is not None:
                self._begin_groups(alpha)
        own = type(self.stack.op).project is not Relaxation.project
        self.confined = own and (fresh or self.relaxed.excess is None)

    def slope(self, i: int, here: Tensor) -> Tensor:
        op, relaxed, below = self.stack.op, self.relaxed, here >= 0
        laid = op.expand(below)
        if self.fresh and self.group is None:
            start = torch.where(laid, *self._starts(relaxed.lines.slopes))
            _fill(self.alpha, 0, self.stack.slots, start.flatten(1))
        if self.confined:
            self._project(below)
        self.within = op.within(torch.where(laid, *self._picked(self.alpha, 0)), below, relaxed)
        if relaxed.excess is not None:
            beyond = torch.where(laid, *self._picked(self.alpha, self.lanes))
            slope = torch.addcmul(self.within.slope, beyond, relaxed.excess)
            line = op.line(slope, below, relaxed.anchors)
            self.still = beyond == 0
            touch = torch.where(self.still, self.within.touch, line.touch)
            self.within = Within(slope, line.intercept, touch, self.within.width)
        return self.within.slope

    def back(self, i: int, here: Tensor) -> Tensor:
        slope = self.slope(i, here)
        self.passed, self.here, self.coef = True, here, self.stack.op.expand(here)
        return self.coef * slope

    def complete(self) -> None:
        """Do nothing: every node was completed as it was passed."""

    def lines(self) -> dict[int, Chosen]:
        chosen = Chosen(self.within.slope, self.within.intercept) if self.passed else None
        return {} if chosen is None else {self.stack.nodes[0]: chosen}

    def gain(self) -> Tensor:
        return (self.here * self.within.intercept).flatten(1).sum(1) if self.passed else _NONE

    def uphill(self, arrived: dict[int, Tensor]) -> list[Tensor]:
        z = arrived[self.stack.nodes[0]]
        if not self.passed:
            lanes = self.alpha.shape[1]
            return [torch.zeros_like(z).flatten(1)] * lanes
        slopes = [self.stack.op.uphill(self.coef, self.within, z)]
        if self.relaxed.excess is not None:
            slopes.append(_outside(self.coef, self.within, self.relaxed, self.still, z))
        return self._by_lanes(slopes, Sides(self.coef))

    def _project(self, below: Tensor) -> None:
        """Bring alpha into the search space; a wide search may leave it later."""
        for lane in range(self.lanes):
            own = self.stack.laid(self.alpha[:, lane, self.stack.slots])
            mask = below if self.group is None else torch.full_like(below[:1], lane == 0)
            inside = self.stack.op.project(own, mask)
            if inside is not None and not torch.equal(inside, own):
                self.alpha[:, lane, self.stack.slots] = inside.flatten(1)


_NONE = torch.zeros(())


def alpha_of(stack: Stack, relaxed: Relaxed, group: Tensor | None, rows: int) -> Alpha:
    """The slope parametrisation of a stack of layers, for this many rows."""
    return (ElementwiseAlpha if isinstance(stack.op, Elementwise) else GeneralAlpha)(
        stack, relaxed, group, rows
    )


def _outside(coef: Tensor, lines: Within, relaxed: Relaxed, still: Tensor, z: Tensor) -> Tensor:
    """The derivative of bounds by slopes beyond the range.

    At the range's end a line touches f all over the box: only a z that has left the box gains from
    a slope beyond.
    """
    assert relaxed.excess is not None
    away = torch.where(still, z - relaxed.box.clip(z), z - lines.touch)
    return coef * away * relaxed.excess


def _alpha(slope: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """The place of a slope in its range, as alpha.

    A range without width leaves no choice, but that of a larger box may, and most slopes run from 0
    to 1: then alpha is the slope itself.
    """
    return torch.where(width > 0, (slope - low) / width, slope).nan_to_num(nan=0.0).clamp(0, 1)


def _fill(alpha: Tensor, lane: int, slots: slice, start: Tensor) -> None:
    part = alpha[:, lane, slots]
    alpha[:, lane, slots] = torch.where(torch.isnan(part), start, part)
