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
from frown.engines.forms import LinearForm, begin, finish, push_forward
from frown.engines.plan import Plan
from frown.engines.settings import Ascent
from frown.query.region import Region
from frown.relax.relaxation import Frame, Relaxation, Within

_NOISE = 1e-2  # of a row's largest derivative


@dataclass(frozen=True, slots=True)
class Optimised:
    """The bounds of rows, and where they were found."""

    bound: Tensor  # (rows,)
    theta: Tensor  # (groups, lanes, slots) the best iterate


@dataclass(frozen=True, slots=True)
class Rows:
    """Quantities to bound below: coef . target over each row's region.

    `group` says which theta a row uses. None: each row its own, and then one number per
    neuron is enough, because a row needs one side of it only. The rows of a group may need
    different sides, so a group has two lanes of theta: for lines below and above. A wide
    search doubles the lanes: how far each slope leaves the tightest range, in [-1, 1].
    Frames and region are per row, or shared by all.
    """

    target: int
    coef: Tensor  # (rows, *target shape)
    region: Region
    frames: dict[int, Frame]
    group: Tensor | None  # (rows,)
    wide: bool = False

    @property
    def sides(self) -> int:
        return 1 if self.group is None else 2

    @property
    def lanes(self) -> int:
        return self.sides * (2 if self.wide else 1)


def optimise(
    plan: Plan, rows: Rows, theta: Tensor, ascent: Ascent, steps: int, clock: Clock = NO_LIMIT
) -> Optimised:
    """Maximise every row's bound; with groups, the mean bound of each group.

    Starts at theta (groups, lanes, slots), where NaN means CROWN's slope, and takes a fixed
    number of steps, so results do not depend on which rows share a batch. Keeps the best
    theta of each group and its rows' bounds there: theta proves them all.
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
        mean = bound if rows.group is None else _group_mean(bound, rows.group, len(theta))
        better = mean > best_mean
        best = torch.where(better if rows.group is None else better[rows.group], bound, best)
        best_theta = torch.where(better[:, None, None], search.theta, best_theta)
        best_mean = torch.maximum(mean, best_mean)
        if gradient is None or not gradient.numel():
            break
        if step == 0:
            first, second = gradient, gradient.square()
        else:
            first.lerp_(gradient, 1 - ascent.momentum)
            second.mul_(ascent.memory).addcmul_(gradient, gradient, value=1 - ascent.memory)
        size = second.sqrt()
        # Slopes that hardly matter to a row stay: their derivatives may be mere rounding,
        # and following its sign would make results depend on the order of sums.
        size += _NOISE * size.amax((1, 2), keepdim=True) + torch.finfo(best.dtype).tiny
        pace = first / size
        search.move(rate * pace)
        rate *= ascent.decay
    return Optimised(best, best_theta)


def replay(plan: Plan, rows: Rows, theta: Tensor) -> tuple[LinearForm, dict[int, Within]]:
    """The forms and lines of rows at given slopes."""
    search = _Search(plan, rows, theta.clone())
    form = search.form()
    return form, search.chosen


class _Search:
    """Rows and the slopes they are at."""

    def __init__(self, plan: Plan, rows: Rows, theta: Tensor) -> None:
        self.plan, self.rows, self.theta = plan, rows, theta
        self.places, _ = plan.slots(rows.target)
        self.fresh = bool(torch.isnan(theta).any())
        self.head = begin(plan, rows.target, rows.coef)
        # What a pass did at every node: the coefficients A, laid over its input; its lines; a
        # wide search's places outside the range.
        self.coefs: dict[int, Tensor] = {}
        self.chosen: dict[int, Within] = {}
        self.beyond: dict[int, Tensor] = {}
        own = (i for i, f in rows.frames.items() if type(f.op).project is not Relaxation.project)
        self.confined = set(own)
        self.shapes = [(i, self._shape(i)) for i in self.places]
        self.sizes = [place.stop - place.start for place in self.places.values()]
        self.views = self._views()

    def move(self, step: Tensor) -> None:
        sides = self.rows.sides
        self.theta = self.theta + step
        if self.rows.wide:
            self.theta[:, :sides].clamp_(0, 1)
            self.theta[:, sides:].clamp_(-1, 1)
        else:
            self.theta.clamp_(0, 1)
        self.views = self._views()

    def evaluate(self, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Every row's bound at its slopes, and the groups' ascent direction.

        What the relaxed network gives at x* is the form's value there, the bound: on the way
        to a direction no constants are needed.
        """
        form = self.form(constants=not gradient)
        if not gradient:
            return self.rows.region.minimise(form.coef).value + form.const, None
        uphill: list[dict[int, Tensor]] = [{} for _ in range(self.rows.lanes)]

        def see(i: int, z: Tensor) -> None:
            frame, coef, lines = self.rows.frames[i], self.coefs[i], self.chosen[i]
            self._add(uphill, 0, i, frame.op.uphill(coef, lines, z))
            if frame.excess is not None:
                # At the range's end a line touches f all over the box: only a z* that
                # has left the box gains from a slope beyond.
                resting = z - frame.box.clip(z)
                away = torch.where(self.beyond[i] == 0, resting, z - lines.touch)
                self._add(uphill, self.rows.sides, i, coef * away * frame.excess)

        point = self.rows.region.lowest(form.coef)
        values = push_forward(self.plan, self.rows.target, point, self.chosen, see)
        bound = self.head.at(values)
        direction = self._joined(uphill, bound)
        if self.rows.group is not None:
            direction = torch.zeros_like(self.theta).index_add_(0, self.rows.group, direction)
        return bound, direction

    def form(self, constants: bool = True) -> LinearForm:
        """The rows' forms at the input, by the lines that are then `chosen`."""

        def choose(i: int, here: Tensor) -> Within:
            frame, below = self.rows.frames[i], here >= 0
            laid = frame.op.expand(below)
            if self.fresh:
                self._begin(i, laid, frame)
            if i in self.confined and (self.fresh or frame.excess is None):
                self._project(i, below, frame)
            place = self._pick(0, i, laid)
            if frame.excess is None:
                lines = frame.op.within(place, below, frame)
            else:
                beyond = self.beyond[i] = self._pick(self.rows.sides, i, laid)
                lines = _beyond(frame, frame.excess, place, beyond, below)
            self.coefs[i], self.chosen[i] = frame.op.expand(here), lines
            return lines

        form = finish(self.plan, self.rows.target, self.head, choose, constants)
        self.fresh = False
        return form

    def _shape(self, i: int) -> tuple[int, ...]:
        (source,) = self.plan.graph.nodes[i].inputs
        return self.plan.graph.nodes[source].shape

    def _views(self) -> list[dict[int, Tensor]]:
        """Per lane, every node's places in the shape of its input."""
        return [
            {
                i: own if len(shape) == 1 else own.view(-1, *shape)
                for (i, shape), own in zip(
                    self.shapes, flat.split_with_sizes(self.sizes, 1), strict=True
                )
            }
            for flat in self.theta.unbind(1)
        ]

    def _pick(self, lane: int, i: int, below: Tensor) -> Tensor:
        """A node's numbers per row, from the lane (of a group: the two lanes) given."""
        own, group = self.views[lane][i], self.rows.group
        if group is None:
            return own
        return torch.where(below, own[group], self.views[lane + 1][i][group])

    def _project(self, i: int, below: Tensor, frame: Frame) -> None:
        """Bring a node's places into its search space; a wide search may leave it later."""
        for lane in range(self.rows.sides):
            own = self.views[lane][i]
            mask = below if self.rows.group is None else torch.full_like(below[:1], lane == 0)
            inside = frame.op.project(own, mask)
            if inside is not None and not torch.equal(inside, own):
                own.copy_(inside)

    def _add(self, uphill: list[dict[int, Tensor]], lane: int, i: int, slope: Tensor) -> None:
        """Note a node's derivatives in the lanes that its rows read."""
        if self.rows.group is None:
            uphill[lane][i] = slope.flatten(1)
        else:
            below = self.coefs[i] >= 0
            uphill[lane][i] = (slope * below).flatten(1)
            uphill[lane + 1][i] = (slope * ~below).flatten(1)

    def _joined(self, uphill: list[dict[int, Tensor]], like: Tensor) -> Tensor:
        """(rows, lanes, slots) of the lanes' derivatives; 0 where a node has none."""

        def own(lane: dict[int, Tensor], i: int, place: slice) -> Tensor:
            missing = i not in lane
            return like.new_zeros(len(like), place.stop - place.start) if missing else lane[i]

        lanes = [
            torch.cat([own(lane, i, place) for i, place in self.places.items()], 1)
            if self.places
            else like.new_zeros(len(like), 0)
            for lane in uphill
        ]
        return lanes[0][:, None] if len(lanes) == 1 else torch.stack(lanes, 1)

    def _begin(self, i: int, below: Tensor, frame: Frame) -> None:
        """Places never visited start at CROWN's slope, inside the range."""
        place, rule, group = self.places[i], frame.lines.slopes, self.rows.group
        if group is None:
            low, width = frame.range.at(below)
            crown = torch.where(below, rule.lower, rule.upper)
            starts = [_place(crown, low, width).flatten(1)]
        else:
            starts = []
            for slope, box in ((rule.lower, frame.range.lower), (rule.upper, frame.range.upper)):
                start = _place(slope, box.lower, box.upper - box.lower).flatten(1)
                # The rows of a group share a sample, hence its boxes: any row's will do.
                blank = torch.zeros_like(self.theta[:, 0, place])
                starts.append(blank.index_copy_(0, group, start.expand(len(group), -1)))
        starts += [torch.zeros_like(self.theta[:, 0, place])] * (self.rows.lanes - len(starts))
        for lane, start in enumerate(starts):
            part = self.theta[:, lane, place]
            self.theta[:, lane, place] = torch.where(torch.isnan(part), start, part)


def _place(slope: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Where a slope lies in its range. One without width leaves no choice, but a larger box may,
    and most slopes run from 0 to 1: then the slope itself is the place."""
    return torch.where(width > 0, (slope - low) / width, slope).nan_to_num(nan=0.0).clamp(0, 1)


def _beyond(frame: Frame, excess: Tensor, place: Tensor, beyond: Tensor, below: Tensor) -> Within:
    """Lines of slopes that may leave the tightest range."""
    inner = frame.op.within(place, below, frame)
    slope = torch.addcmul(inner.slope, beyond, excess)
    line = frame.op.line(slope, below, frame.anchors)
    touch = torch.where(beyond == 0, inner.touch, line.touch)
    return Within(slope, line.intercept, touch, inner.width)


def _group_mean(values: Tensor, group: Tensor, count: int) -> Tensor:
    total = values.new_zeros(count).index_add_(0, group, values)
    return total / torch.bincount(group, minlength=count).clamp(min=1).to(values.dtype)
