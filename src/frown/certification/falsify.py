"""The attack on queries: descent inside boxes towards outputs that satisfy a case.

A case is satisfied where all of its literals are at most 0, so that descent lowers the greatest
literal of a case; which case, and how its literals are weighed, differs from one lane to the next.
Boxes are measured in their own widths: sides may have none, and lie anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.work import NO_LIMIT, Clock, OutOfTime
from frown.certification.witness import Group, PosedQuery, Witness
from frown.graph.graph import Graph
from frown.problem.property import LinearProperty

NUMBERS = 1 << 24  # of all nodes and lanes of one step
LANES = 4096  # at the most
STEPS, MOST_STEPS = 12, 200  # of the first round, and of any
RESTARTS, MOST_RESTARTS = 4, 64
STRIDE, LAST = 0.5, 2e-3  # of a box's width: the first step, and what the last ones tend to
REPLAYS = 3  # points of one step that the original is asked about
NEARER = 0.9  # times as far below 0 as the last point that the original did not confirm


@dataclass(frozen=True, eq=False)
class Falsifier:
    """Rounds of descent, each with more lanes and steps than the one before."""

    posed: PosedQuery
    group: Group
    graph: Graph  # the network in the numbers of the search
    seed: int = 0

    def rounds(self, clock: Clock = NO_LIMIT) -> Iterator[Witness | None]:
        """Go on until a witness is found, which is yielded last; None after every round without
        one. Ends when the clock has run out."""
        low, high = (torch.from_numpy(t) for t in self.group.inner)
        inside = (low <= high).flatten(1).all(1).nonzero().flatten()
        if not len(inside):
            return
        low, high = (t.flatten(1)[inside].to(self.graph.dtype) for t in (low, high))
        wanted = self.group.refuting.rows(inside).to(self.graph.dtype, self.graph.device)
        dice = torch.Generator().manual_seed(self.seed)
        size = sum(node.size for node in self.graph.nodes)
        most = max(1, min(LANES, NUMBERS // size))
        number = start = 0
        while True:
            steps = min(MOST_STEPS, STEPS << number)
            restarts = min(MOST_RESTARTS, RESTARTS << number)
            at_once = max(1, min(len(inside), most // min(restarts, most)))
            for first in range(0, len(inside), at_once):
                place = torch.arange(first, min(first + at_once, len(inside)))
                lanes = place.repeat(min(restarts, most))
                one = _Round(self, wanted.rows(lanes), low[lanes], high[lanes], dice, start)
                try:
                    found = one.run(steps, len(place), inside[lanes], clock)
                except OutOfTime:
                    return
                yield found
                if found is not None:
                    return
            number, start = number + 1, start + restarts


@dataclass(frozen=True, eq=False)
class _Round:
    """One round's lanes."""

    of: Falsifier
    wanted: LinearProperty  # of every lane
    low: Tensor  # (lanes, inputs)
    high: Tensor
    dice: torch.Generator
    start: int  # lanes of a box in the rounds before

    def run(self, steps: int, boxes: int, disjunct: Tensor, clock: Clock) -> Witness | None:
        """Descend. `disjunct` (lanes,) are places in the group."""
        count = len(self.low)
        lane = torch.arange(count) // boxes + self.start
        width = self.high - self.low
        u = self._starts(lane)
        clause = self._clauses(lane)
        speed, refuted = torch.zeros_like(u), 0.0
        signs = (lane % 3 != 2)[:, None]
        for step in range(steps + 1):
            clock.check()
            x = (self.low + u * width).clamp(self.low, self.high)
            margin, slope = self._descent(x, clause, lane)
            reached = (margin <= 0).nonzero().flatten()
            if len(reached):
                order = reached[margin[reached].argsort()][:REPLAYS]
                if refuted == 0 or float(margin[order[0]]) < refuted / NEARER:
                    found = self.of.posed.replayed(self._points(x, order, disjunct))
                    if found is not None:
                        return found
                    refuted = float(margin[order[0]])
            if step == steps:
                break
            slope = slope * width
            largest = slope.abs().amax(1, keepdim=True).clamp(min=1e-30)
            speed = 0.6 * speed + slope / largest
            size = speed.abs().amax(1, keepdim=True).clamp(min=1e-30)
            move = torch.where(signs, speed.sign(), speed / size)
            u = (u - (STRIDE * (1 - step / steps) ** 2 + LAST) * move).clamp(0, 1)
        return None

    def _starts(self, lane: Tensor) -> Tensor:
        """Points of the unit cube: the middle, corners, and any."""
        u = torch.rand(self.low.shape, generator=self.dice, dtype=self.low.dtype)
        u = torch.where((lane % 4 == 3)[:, None], u.round(), u)
        return torch.where((lane == 0)[:, None], 0.5, u)

    def _clauses(self, lane: Tensor) -> Tensor:
        """The case that a lane descends into; -1: whichever is nearest."""
        clauses = self.wanted.clauses
        turn = torch.where(lane % 2 == 0, -1, (lane // 2) % clauses)
        return torch.where(lane < 2, -1, turn)

    def _descent(self, x: Tensor, clause: Tensor, lane: Tensor) -> tuple[Tensor, Tensor]:
        """(lanes,) the least margin, and (lanes, inputs) the gradient of what is lowered."""
        wanted, graph = self.wanted, self.of.graph
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            outputs = graph.apply(point.view(-1, *graph.input_shape)).flatten(1)
            literals = wanted.literals(outputs)
            margins = wanted.margins(literals)
            worst = margins.amin(1)
            nearest = margins.argmin(1)
            chosen = torch.where(clause < 0, nearest, clause)
            goal = margins.gather(1, chosen[:, None])[:, 0]
            if not wanted.single:
                # All literals of the case that are not yet satisfied, instead of the greatest.
                own = wanted.clause == chosen[:, None]
                together = torch.where(own, literals.clamp(min=0), 0.0).sum(1)
                use = (lane % 4 >= 2) & (together > 0)
                goal = torch.where(use, together, goal)
            (slope,) = torch.autograd.grad(goal.sum(), point)
        return worst.detach(), torch.nan_to_num(slope)

    def _points(self, x: Tensor, order: Tensor, disjunct: Tensor) -> Iterator[NDArray[np.floating]]:
        """Points in the element type, drawn into their boxes as they were asked."""
        low, high = self.of.group.inner
        for k in order.tolist():
            place = int(disjunct[k])
            point = x[k].numpy().reshape(low.shape[1:]).astype(low.dtype)
            yield np.clip(point, low[place], high[place])
