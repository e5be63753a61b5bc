"""FROWN: every row optimises its own lines by projected ascent on their slopes.

A row's bound is a function of one number theta in [0, 1] per earlier neuron, its place
in the range of the tightest slopes of the side the row needs there. The ascent
direction has a closed form (envelope theorem): with x* the minimiser of the row's form,
z* what arrives at a neuron when x* goes through the relaxed network, A the coefficient of
the neuron's output and z0 the point where its line touches f,

    d bound / d slope = A (z* - z0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frown.engines.clock import NO_LIMIT, Clock
from frown.engines.forms import Chosen, LinearForm, begin, finish, push_forward
from frown.engines.frame import Frame
from frown.engines.plan import Plan
from frown.engines.settings import Ascent
from frown.query.region import Region


@dataclass(frozen=True, slots=True)
class Optimised:
    """The best bound of every row and where it was found."""

    bound: Tensor  # (rows,)
    theta: Tensor  # (groups, slots) the best iterate


@dataclass(frozen=True, slots=True)
class Rows:
    """Quantities to bound below: coef . target over each row's region.

    `group` says which theta a row uses (None: each row its own). Frames and region are
    per row, or shared by all.
    """

    target: int
    coef: Tensor  # (rows, *target shape)
    region: Region
    frames: dict[int, Frame]
    group: Tensor | None


def optimise(
    plan: Plan, rows: Rows, theta: Tensor, ascent: Ascent, steps: int, clock: Clock = NO_LIMIT
) -> Optimised:
    """Maximise every row's bound; with groups, the mean bound of each group.

    Starts at theta (groups, slots), where NaN means CROWN's slope, and takes a fixed
    number of steps, so results do not depend on which rows share a batch. Keeps the best
    value of each row and the best theta of each group.
    """
    search = _Search(plan, rows, theta.clone())
    best = rows.coef.new_full((len(rows.coef),), -torch.inf)
    best_mean = rows.coef.new_full((len(theta),), -torch.inf)
    best_theta = search.theta
    first = second = torch.zeros(())
    rate = ascent.rate
    for step in range(steps + 1):
        clock.check()
        bound, gradient = search.evaluate(gradient=step < steps)
        bound = torch.nan_to_num(bound, nan=-torch.inf)
        best = torch.maximum(best, bound)
        mean = bound if rows.group is None else _group_mean(bound, rows.group, len(theta))
        better = mean > best_mean
        best_theta = torch.where(better[:, None], search.theta, best_theta)
        best_mean = torch.maximum(mean, best_mean)
        if gradient is None or not gradient.numel():
            break
        if step == 0:
            first, second = gradient, gradient.square()
        else:
            first.lerp_(gradient, 1 - ascent.momentum)
            second.lerp_(gradient.square(), 1 - ascent.memory)
        pace = first / second.sqrt().add_(torch.finfo(best.dtype).tiny)
        search.theta = (search.theta + rate * pace).clamp_(0, 1)
        rate *= ascent.decay
    return Optimised(best, best_theta)


def replay(plan: Plan, rows: Rows, theta: Tensor) -> tuple[LinearForm, dict[int, Chosen]]:
    """The forms and lines of rows at given slopes."""
    form, lines, _ = _Search(plan, rows, theta.clone()).form()
    return form, lines


class _Search:
    """Rows and the slopes they are at."""

    def __init__(self, plan: Plan, rows: Rows, theta: Tensor) -> None:
        self.plan, self.rows, self.theta = plan, rows, theta
        self.places, _ = plan.slots(rows.target)
        self.fresh = bool(torch.isnan(theta).any())
        self.head = begin(plan, rows.target, rows.coef)

    def evaluate(self, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Every row's bound at its slopes, and the groups' ascent direction."""
        form, lines, rates = self.form()
        least = self.rows.region.minimise(form.coef)
        bound = least.value + form.const
        if not gradient:
            return bound, None
        uphill = form.const.new_zeros(len(bound), self.theta.shape[1])

        def see(i: int, z: Tensor) -> None:
            gain, touch = rates[i]
            torch.mul(gain.flatten(1), (z - touch).flatten(1), out=uphill[:, self.places[i]])

        push_forward(self.plan, self.rows.target, least.point, lines, see)
        if self.rows.group is not None:
            uphill = torch.zeros_like(self.theta).index_add_(0, self.rows.group, uphill)
        return bound, uphill

    def form(self) -> tuple[LinearForm, dict[int, Chosen], dict[int, tuple[Tensor, Tensor]]]:
        """The rows' forms at the input, the lines used, and per node A times the width of
        the slope range, with the touching points."""
        rates: dict[int, tuple[Tensor, Tensor]] = {}
        lines: dict[int, Chosen] = {}

        def choose(i: int, here: Tensor) -> Chosen:
            frame, below = self.rows.frames[i], here >= 0
            laid = frame.op.expand(below)
            low, width = frame.range.at(laid)
            place = self._theta(i, low, width, laid, frame)
            slope = frame.op.project(torch.addcmul(low, place, width), below)
            line = frame.op.line(slope, below, frame.anchors)
            rates[i] = (frame.op.expand(here) * width, line.touch)
            lines[i] = Chosen(slope, line.intercept)
            return lines[i]

        form = finish(self.plan, self.rows.target, self.head, choose)
        self.fresh = False
        return form, lines, rates

    def _theta(self, i: int, low: Tensor, width: Tensor, below: Tensor, frame: Frame) -> Tensor:
        """This node's theta per row; places never visited start at CROWN's slope."""
        part, group = self.theta[:, self.places[i]], self.rows.group
        if self.fresh:
            rule = frame.lines.slopes
            crown = torch.where(below, rule.lower, rule.upper)
            start = (crown - low) / torch.where(width > 0, width, torch.ones_like(width))
            start = start.clamp(0, 1).flatten(1).expand(len(self.rows.coef), -1)
            if group is not None:
                start = _group_mean(start, group, len(part))
            part = torch.where(torch.isnan(part), start, part)
            self.theta[:, self.places[i]] = part
        if group is not None:
            part = part[group]
        (source,) = self.plan.graph.nodes[i].inputs
        return part.view(-1, *self.plan.graph.nodes[source].shape)


def _group_mean(values: Tensor, group: Tensor, count: int) -> Tensor:
    total = values.new_zeros(count, *values.shape[1:]).index_add_(0, group, values)
    members = torch.bincount(group, minlength=count).clamp(min=1).to(values.dtype)
    return total / members.view(-1, *([1] * (values.dim() - 1)))
