"""How rows pass the nonlinear nodes of a run: backwards by slopes, forwards by lines.

A passage holds what one pass did at its nodes: the coefficients A, the lines, and what
arrived there on the way forward, which together give the ascent direction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from frown.bounds.forms import Chosen
from frown.bounds.stacks import Run
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Frame, Relaxation, Sides, Slopes, Within, above_of


class Passage(ABC):
    """Rows at the nodes of one run. `theta` (groups, lanes, slots) has the rows' places.

    Without groups a row has one place per neuron, which serves the side it needs; the rows of a
    group have two lanes, for lines below and above. A wide search doubles them.
    """

    def __init__(self, run: Run, frame: Frame, group: Tensor | None, rows: int) -> None:
        self.run, self.frame, self.group, self.rows = run, frame, group, rows
        self.lanes = 1 if group is None else 2

    @abstractmethod
    def prepare(self, theta: Tensor, fresh: bool) -> None:
        """Begin a pass at these places; if `fresh`, NaN among them stands for CROWN's slope, and is
        replaced in `theta` when the pass is complete."""

    @abstractmethod
    def slope(self, i: int, here: Tensor) -> Tensor:
        """The slopes that rows with these coefficients of a node's output take there."""

    @abstractmethod
    def back(self, i: int, here: Tensor) -> Tensor:
        """From coefficients of a node's output to those of its input."""

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
        """Per lane (rows, neurons): how bounds grow with the places, given what arrives at the
        nodes."""

    def _picked(self, theta: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Places of a lane per row, for lines below and above, from the lane `first`."""
        own = theta[:, :, self.run.place]
        if self.group is None:
            place = self.run.laid(own[:, first])
            return place, place
        low, high = own[self.group, first], own[self.group, first + 1]
        return self.run.laid(low), self.run.laid(high)

    def _starts(self, slopes: Slopes) -> tuple[Tensor, Tensor]:
        """CROWN's places below and above."""
        low, high = self.frame.range.lower, self.frame.range.upper
        under, over = self.frame.range.widths
        return _place(slopes.lower, low.lower, under), _place(slopes.upper, high.lower, over)

    def _begin_groups(self, theta: Tensor) -> None:
        """The rows of a group share a sample, hence its boxes: any row's will do."""
        assert self.group is not None
        for lane, start in enumerate(self._starts(self.frame.lines.slopes)):
            blank = torch.zeros_like(theta[:, 0, self.run.place])
            rows = start.flatten(1).expand(len(self.group), -1)
            _fill(theta, lane, self.run.place, blank.index_copy_(0, self.group, rows))

    def _begin_beyond(self, theta: Tensor) -> None:
        for lane in range(self.lanes, theta.shape[1]):
            _fill(theta, lane, self.run.place, torch.zeros_like(theta[:, 0, self.run.place]))

    def _by_lanes(self, slopes: list[Tensor], sides: Sides) -> list[Tensor]:
        """Derivatives in the lanes that rows read."""
        if self.group is None:
            return [s if s.dim() == 2 else s.flatten(1) for s in slopes]
        masks = (sides.below, ~sides.below)
        return [(s * mask).flatten(1) for s in slopes for mask in masks]


class Even(Passage):
    """An elementwise function: all slopes before a pass, all intercepts and touching points after
    it, for all nodes at once."""

    above: Tensor | None = None

    def prepare(self, theta: Tensor, fresh: bool) -> None:
        frame = self.frame
        self.coefs: dict[int, Tensor] = {}
        self.slopes: dict[int, Tensor] = {}
        if fresh:
            self._begin_beyond(theta)
            if self.group is not None:
                self._begin_groups(theta)
        places = self._picked(theta, 0)
        self.begun: tuple[Tensor, Tensor, Tensor] | None = None
        if fresh and self.group is None:
            below, above = self._starts(frame.lines.slopes)
            lost = torch.isnan(places[0])
            places = torch.where(lost, below, places[0]), torch.where(lost, above, places[1])
            self.begun = theta, *places
        self.inner = self.both = self.run.op.slopes_at(*places, frame)
        if frame.excess is not None:
            self.beyond = self._picked(theta, self.lanes)
            self.both = Slopes(
                torch.addcmul(self.inner.lower, self.beyond[0], frame.excess),
                torch.addcmul(self.inner.upper, self.beyond[1], frame.excess),
            )
        self.under = self.run.split(self.both.lower)
        if self.both.upper is not self.above:  # often the same from pass to pass
            self.above, self.over = self.both.upper, self.run.split(self.both.upper)

    def slope(self, i: int, here: Tensor) -> Tensor:
        return torch.lerp(self.under[i], self.over[i], above_of(here))

    def back(self, i: int, here: Tensor) -> Tensor:
        slope = self.slope(i, here)
        self.coefs[i], self.slopes[i] = here, slope
        return here * slope

    def complete(self) -> None:
        for i, shape in zip(self.run.nodes, self.run.shapes, strict=True):
            if i not in self.coefs:  # no row reads it: any line will do
                self.coefs[i] = self.under[i].new_zeros(self.rows, *shape)
                self.slopes[i] = self.under[i].expand(self.rows, *shape)
        op, frame = self.run.op, self.frame
        self.coef = self.run.join(self.coefs)
        self.sides = sides = Sides(self.coef)
        tight = op.tight_lines(sides.of(self.inner.lower, self.inner.upper), sides, frame)
        if frame.excess is None:
            self.within = tight
        else:
            slope = sides.of(self.both.lower, self.both.upper)
            line = op.line(slope, sides.below, frame.anchors)
            self.still = still = sides.of(*self.beyond) == 0
            touch = torch.where(still, tight.touch, line.touch)
            self.within = Within(slope, line.intercept, touch, tight.width)
        if self.begun is not None:
            theta, low, high = self.begun
            theta[:, 0, self.run.place] = sides.of(low, high).flatten(1)

    def lines(self) -> dict[int, Chosen]:
        intercepts = self.run.split(self.within.intercept)
        return {i: Chosen(self.slopes[i], intercepts[i]) for i in self.run.nodes}

    def gain(self) -> Tensor:
        return (self.coef * self.within.intercept).flatten(1).sum(1)

    def uphill(self, arrived: dict[int, Tensor]) -> list[Tensor]:
        z = self.run.join(arrived)
        slopes = [self.run.op.uphill(self.coef, self.within, z)]
        if self.frame.excess is not None:
            slopes.append(_outside(self.coef, self.within, self.frame, self.still, z))
        return self._by_lanes(slopes, self.sides)


class Lone(Passage):
    """Any node by itself; lines are found as it is passed."""

    def prepare(self, theta: Tensor, fresh: bool) -> None:
        self.theta, self.fresh, self.passed = theta, fresh, False
        if fresh:
            self._begin_beyond(theta)
            if self.group is not None:
                self._begin_groups(theta)
        own = type(self.run.op).project is not Relaxation.project
        self.confined = own and (fresh or self.frame.excess is None)

    def slope(self, i: int, here: Tensor) -> Tensor:
        op, frame, below = self.run.op, self.frame, here >= 0
        laid = op.expand(below)
        if self.fresh and self.group is None:
            start = torch.where(laid, *self._starts(frame.lines.slopes))
            _fill(self.theta, 0, self.run.place, start.flatten(1))
        if self.confined:
            self._project(below)
        self.within = op.within(torch.where(laid, *self._picked(self.theta, 0)), below, frame)
        if frame.excess is not None:
            beyond = torch.where(laid, *self._picked(self.theta, self.lanes))
            slope = torch.addcmul(self.within.slope, beyond, frame.excess)
            line = op.line(slope, below, frame.anchors)
            self.still = beyond == 0
            touch = torch.where(self.still, self.within.touch, line.touch)
            self.within = Within(slope, line.intercept, touch, self.within.width)
        return self.within.slope

    def back(self, i: int, here: Tensor) -> Tensor:
        slope = self.slope(i, here)
        self.passed, self.here, self.coef = True, here, self.run.op.expand(here)
        return self.coef * slope

    def complete(self) -> None:
        """Nothing is left to do."""

    def lines(self) -> dict[int, Chosen]:
        chosen = Chosen(self.within.slope, self.within.intercept) if self.passed else None
        return {} if chosen is None else {self.run.nodes[0]: chosen}

    def gain(self) -> Tensor:
        return (self.here * self.within.intercept).flatten(1).sum(1) if self.passed else _NONE

    def uphill(self, arrived: dict[int, Tensor]) -> list[Tensor]:
        z = arrived[self.run.nodes[0]]
        if not self.passed:
            lanes = self.theta.shape[1]
            return [torch.zeros_like(z).flatten(1)] * lanes
        slopes = [self.run.op.uphill(self.coef, self.within, z)]
        if self.frame.excess is not None:
            slopes.append(_outside(self.coef, self.within, self.frame, self.still, z))
        return self._by_lanes(slopes, Sides(self.coef))

    def _project(self, below: Tensor) -> None:
        """Bring places into the search space; a wide search may leave it later."""
        for lane in range(self.lanes):
            own = self.run.laid(self.theta[:, lane, self.run.place])
            mask = below if self.group is None else torch.full_like(below[:1], lane == 0)
            inside = self.run.op.project(own, mask)
            if inside is not None and not torch.equal(inside, own):
                self.theta[:, lane, self.run.place] = inside.flatten(1)


_NONE = torch.zeros(())


def passage(run: Run, frame: Frame, group: Tensor | None, rows: int) -> Passage:
    """Of so many rows."""
    return (Even if isinstance(run.op, Elementwise) else Lone)(run, frame, group, rows)


def _outside(coef: Tensor, lines: Within, frame: Frame, still: Tensor, z: Tensor) -> Tensor:
    """How bounds grow with slopes beyond the range. At the range's end a line touches f all over
    the box: only a z that has left the box gains from a slope beyond."""
    assert frame.excess is not None
    away = torch.where(still, z - frame.box.clip(z), z - lines.touch)
    return coef * away * frame.excess


def _place(slope: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Where a slope lies in its range. One without width leaves no choice, but a larger box may,
    and most slopes run from 0 to 1: then the slope itself is the place."""
    return torch.where(width > 0, (slope - low) / width, slope).nan_to_num(nan=0.0).clamp(0, 1)


def _fill(theta: Tensor, lane: int, place: slice, start: Tensor) -> None:
    part = theta[:, lane, place]
    theta[:, lane, place] = torch.where(torch.isnan(part), start, part)
