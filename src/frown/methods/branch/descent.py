"""Counterexamples at one radius, looked for beside the cutting of leaves.

Where leaves have been cut for some time, a literal that still is not proved may well fail. From
the points where open leaves' bounds are attained, and from random ones, its value is lowered by
steps of a descent with momentum, each shorter than the one before. Rounds become longer as
branching goes on, so that they take a small part of its time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.methods.branch.passes import General
from frown.problem.region import Region

PART = 0.1  # of the time that leaves take is what descents may take
SOON = 0.4  # CPU seconds of leaves after which the first begins
STARTS = 24  # points at once
STEPS, MOST = 40, 640  # of a clause's first round, twice as many in the next one; the most
STRIDE, LAST = 0.4, 0.01  # of the radius: the first step and the last one
MOMENTUM = 0.75
SPREAD = 0.1  # of all features share a step, for p = 1


@dataclass
class Descents:
    """The rounds of one input: each lowers the row of one clause."""

    spent: float = 0.0  # CPU seconds
    tried: dict[int, int] = field(default_factory=dict)  # by clause: rounds
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def due(self, seconds: float) -> bool:
        """True if leaves have taken so long that another round is a small part of it."""
        if not self.tried:
            return seconds >= SOON
        return PART * seconds >= self.spent + 2 * self.spent / sum(self.tried.values())

    def next(self, clauses: Iterable[int]) -> int:
        """The clause that has been tried least often."""
        return min(clauses, key=lambda clause: self.tried.get(clause, 0))

    def round(
        self,
        passes: General,
        clause: int,
        ball: Region,
        head: Tensor,
        const: Tensor,
        starts: Tensor,
        until: float,
    ) -> Tensor | None:
        """The point with the least value of a row that is at most 0, if there is one.

        Args:
            passes: of the network.
            clause: that the row is about.
            ball: of one input, at the radius that is asked about.
            head: (heads,) the row, as `General.head` gives it.
            const: () what is added to it.
            starts: (n, *input shape) some points to start from.
            until: when to end at the latest, in seconds of CPU time of this process.
        """
        steps = min(MOST, STEPS << self.tried.get(clause, 0))
        self.tried[clause] = self.tried.get(clause, 0) + 1
        began = time.process_time()
        box = ball.box()
        random = max(1, STARTS - len(starts))
        shape = (random, *ball.centre.shape[1:])
        share = torch.rand(shape, generator=self.generator).to(ball.centre)
        x = torch.cat([starts[:STARTS], box.lower + share * (box.upper - box.lower)])
        every = torch.zeros(len(x), dtype=torch.long)
        balls = ball.rows(every)
        x, column = balls.project(x), head[:, None].expand(-1, len(x)).contiguous()
        best, where = torch.full((), torch.inf), x[0]
        mean = torch.zeros_like(x)
        spread = torch.full_like(balls.radius, SPREAD)
        decay = (LAST / STRIDE) ** (1 / steps)
        for step in range(steps + 1):
            value, slope = passes.slope(x, column)
            value = value + const
            least = int(value.argmin())
            if bool(value[least] < best):
                best, where = value[least], x[least]
            if step == steps or time.process_time() > until:
                break
            size = slope.abs().flatten(1).sum(1).clamp(min=torch.finfo(x.dtype).tiny)
            mean = MOMENTUM * mean + slope / size.view(-1, *[1] * (x.dim() - 1))
            stride = balls.with_radius(balls.radius * (STRIDE * decay**step))
            x = balls.project(x + stride.descent(mean, spread))
        self.spent += time.process_time() - began
        return where if bool(best <= 0) else None
