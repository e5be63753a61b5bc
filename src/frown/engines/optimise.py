"""FROWN: every row optimises its own lines by projected ascent on their slopes.

A row's bound is a function of one number theta in [0, 1] per earlier neuron, its place
in the range of the tightest slopes of the side the row needs there. The ascent
direction has a closed form (envelope theorem): with x* the minimiser of the row's form,
z* what arrives at a neuron when x* goes through the relaxed network, A the coefficient of
the neuron's output and z0 the point where its line touches f,

    d bound / d slope = A (z* - z0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.engines.forms import Chosen, LinearForm, pull_back, push_forward
from frown.engines.frame import Frame
from frown.engines.plan import Plan
from frown.engines.settings import Ascent
from frown.query.region import Region


@dataclass(frozen=True, slots=True)
class Optimised:
    """The best bound of every row and where it was found."""

    bound: Tensor  # (rows,)
    theta: Tensor  # (groups, slots) the best iterate


def optimise(
    plan: Plan,
    target: int,
    coef: Tensor,  # (rows, *target shape)
    region: Region,  # one per row
    frames: dict[int, Frame],
    theta: Tensor,  # (groups, slots); NaN = start from CROWN's slope
    group: Tensor | None,  # (rows,) which theta a row uses; None: each its own
    ascent: Ascent,
    done: Callable[[Tensor], bool] = lambda bound: False,
) -> Optimised:
    """Maximise every row's bound; with groups, the mean bound of each group.

    Keeps the best iterate of each row (value) and group (theta). `done` may end the
    ascent early, given the best bounds so far.
    """
    places, length = plan.slots(target)
    search = _Search(plan, target, coef, region, frames, places, theta.clone(), group)
    rows = coef.shape[0]
    best = coef.new_full((rows,), -torch.inf)
    best_theta, best_mean = search.theta, coef.new_full((theta.shape[0],), -torch.inf)
    first = second = None
    rate = ascent.rate
    for step in range(ascent.steps + 1):
        bound, gradient = search.evaluate(gradient=step < ascent.steps)
        bound = torch.nan_to_num(bound, nan=-torch.inf)
        best = torch.maximum(best, bound)
        mean = bound if group is None else _group_mean(bound, group, theta.shape[0])
        better = mean > best_mean
        best_theta = torch.where(better[:, None], search.theta, best_theta)
        best_mean = torch.maximum(best_mean, mean)
        if gradient is None or length == 0 or done(best):
            break
        if first is None or second is None:
            first, second = gradient, gradient.square()
        else:
            first.lerp_(gradient, 1 - ascent.momentum)
            second.lerp_(gradient.square(), 1 - ascent.memory)
        pace = first / second.sqrt().add_(torch.finfo(coef.dtype).tiny)
        search.theta = (search.theta + rate * pace).clamp_(0, 1)
        rate *= ascent.decay
    return Optimised(best, best_theta)


class _Search:
    """One set of rows and the slopes they are at."""

    def __init__(
        self,
        plan: Plan,
        target: int,
        coef: Tensor,
        region: Region,
        frames: dict[int, Frame],
        places: dict[int, slice],
        theta: Tensor,
        group: Tensor | None,
    ) -> None:
        self.plan, self.target, self.coef, self.region = plan, target, coef, region
        self.frames, self.places, self.group = frames, places, group
        self.theta = theta
        self.fresh = bool(torch.isnan(theta).any())

    def evaluate(self, gradient: bool) -> tuple[Tensor, Tensor | None]:
        lines: dict[int, Chosen] = {}
        rates: dict[int, tuple[Tensor, Tensor]] = {}  # A * width, touch

        def choose(i: int, here: Tensor) -> Chosen:
            frame = self.frames[i]
            below = here >= 0
            laid = frame.op.expand(below)
            low, width = frame.range.at(laid)
            place = self._theta(i, low, width, laid, frame)
            slope = frame.op.project(torch.addcmul(low, place, width), below)
            line = frame.op.line(slope, below, frame.anchors)
            lines[i] = Chosen(slope, line.intercept)
            if gradient:
                rates[i] = (frame.op.expand(here) * width, line.touch)
            return lines[i]

        form = pull_back(self.plan, self.target, self.coef, choose)
        self.fresh = False
        least = self.region.minimise(form.coef)
        bound = least.value + form.const
        if not gradient:
            return bound, None
        slope_of = self.coef.new_zeros(self.coef.shape[0], self.theta.shape[1])

        def see(i: int, z: Tensor) -> None:
            gain, touch = rates[i]
            out = slope_of[:, self.places[i]]
            torch.mul(gain.flatten(1), (z - touch).flatten(1), out=out)

        push_forward(self.plan, self.target, least.point, lines, see)
        if self.group is not None:
            pooled = torch.zeros_like(self.theta)
            slope_of = pooled.index_add_(0, self.group, slope_of)
        return bound, slope_of

    def form(self) -> tuple[LinearForm, dict[int, Chosen]]:
        """The form at the present slopes, with the lines it used."""
        lines: dict[int, Chosen] = {}

        def choose(i: int, here: Tensor) -> Chosen:
            frame = self.frames[i]
            below = here >= 0
            laid = frame.op.expand(below)
            low, width = frame.range.at(laid)
            place = self._theta(i, low, width, laid, frame)
            slope = frame.op.project(torch.addcmul(low, place, width), below)
            line = frame.op.line(slope, below, frame.anchors)
            lines[i] = Chosen(slope, line.intercept)
            return lines[i]

        return pull_back(self.plan, self.target, self.coef, choose), lines

    def _theta(self, i: int, low: Tensor, width: Tensor, below: Tensor, frame: Frame) -> Tensor:
        """This node's theta per row; places never visited start at CROWN's slope."""
        part = self.theta[:, self.places[i]]
        if self.fresh:
            rule = frame.lines.slopes
            crown = torch.where(below, rule.lower, rule.upper)
            start = (crown - low) / torch.where(width > 0, width, torch.ones_like(width))
            start = start.clamp(0, 1).flatten(1)
            if start.shape[0] == 1:
                start = start.expand(self.coef.shape[0], -1)
            if self.group is not None:
                start = _group_mean(start, self.group, part.shape[0])
            part = torch.where(torch.isnan(part), start, part)
            self.theta[:, self.places[i]] = part
        if self.group is not None:
            part = part[self.group]
        (source,) = self.plan.graph.nodes[i].inputs
        return part.view(-1, *self.plan.graph.nodes[source].shape)


def _group_mean(values: Tensor, group: Tensor, count: int) -> Tensor:
    total = values.new_zeros(count, *values.shape[1:]).index_add_(0, group, values)
    members = torch.bincount(group, minlength=count).clamp(min=1).to(values.dtype)
    return total / members.view(-1, *([1] * (values.dim() - 1)))
