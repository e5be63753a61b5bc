"""FROWN: every row optimises its own lines by projected ascent on their slopes.

A row's bound is a function of one number alpha in [0, 1] per earlier neuron, the place of its slope
in the range of the tightest slopes of the side the row needs there. The ascent
direction has a closed form (envelope theorem): with x* the minimiser of the row's form,
z* what arrives at a neuron when x* goes through the relaxed network, A the coefficient of
the neuron's output and z0 the point where its line touches f,

    d bound / d slope = A (z* - z0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from frown.bounds.first_layer import Start
from frown.bounds.forms import (
    Chosen,
    LinearForm,
    Through,
    begin,
    descend,
    form_of,
    push_forward,
)
from frown.bounds.halfspace import Halfspace, Planes, best_factor
from frown.bounds.plan import Plan, Stack, crowd, stacks
from frown.bounds.work import NO_LIMIT, Clock
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import LinesWithin, Relaxation, Relaxed, RowSides, Slopes, above_of


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
    def uphill(self, arrived: dict[int, Tensor], found: Tensor) -> None:
        """Write how bounds grow with alpha, given what arrives at the nodes, to `found` (rows,
        lanes, neurons)."""

    def _picked(self, alpha: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """The alpha of a lane per row, for lines below and above, from the lane `first`."""
        place = self.stack.slots
        own = alpha.narrow(2, place.start, place.stop - place.start)
        if self.group is None:
            one = self.stack.laid(own.select(1, first))
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

    def _by_lanes(self, slopes: list[Tensor], sides: RowSides, found: Tensor) -> None:
        """Write derivatives to the lanes that rows read."""
        masks = [None] if self.group is None else [sides.below, ~sides.below]
        every = ((s, mask) for s in slopes for mask in masks)
        for lane, (s, mask) in enumerate(every):
            found[:, lane] = (s if mask is None else s * mask).flatten(1)


class ElementwiseAlpha(Alpha):
    """Slopes of an elementwise function's nodes, computed for all of them at once.

    All slopes are found before a pass, all intercepts and touching points after it.
    """

    above: Tensor | None = None

    def prepare(self, alpha: Tensor, fresh: bool) -> None:
        relaxed = self.relaxed
        self.coefs: dict[int, Tensor] = {}
        self.slopes: dict[int, Tensor] = {}
        self.aboves: dict[int, Tensor] = {}
        if fresh:
            self._begin_beyond(alpha)
            if self.group is not None:
                self._begin_groups(alpha)
        chosen = self._picked(alpha, 0)
        self.begun: tuple[Tensor, Tensor, Tensor] | None = None
        if fresh and self.group is None:
            below, above = self._starts(relaxed.lines.slopes)
            lost = torch.isnan(chosen[0])
            if bool(lost.all()):
                chosen = below.expand_as(lost), above.expand_as(lost)
            else:
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
        self.aboves[i] = above_of(here)
        return torch.lerp(self.under[i], self.over[i], self.aboves[i])

    def back(self, i: int, here: Tensor) -> Tensor:
        slope = self.slope(i, here)
        self.coefs[i], self.slopes[i] = here, slope
        return here * slope

    def complete(self) -> None:
        for i, shape in zip(self.stack.nodes, self.stack.shapes, strict=True):
            if i not in self.coefs:  # no row reads it: any line will do
                self.coefs[i] = self.aboves[i] = self.under[i].new_zeros(self.rows, *shape)
                self.slopes[i] = self.under[i].expand(self.rows, *shape)
        op, relaxed = self.stack.op, self.relaxed
        self.coef = self.stack.join(self.coefs)
        self.sides = sides = RowSides(self.coef, self.stack.join(self.aboves))
        alone = len(self.stack.nodes) == 1 and relaxed.excess is None
        known = self.slopes[self.stack.nodes[0]] if alone else None
        inner = sides.of(self.inner.lower, self.inner.upper) if known is None else known
        tight = op.tight_lines(inner, sides, relaxed)
        if relaxed.excess is None:
            self.within = tight
        else:
            slope = sides.of(self.both.lower, self.both.upper)
            line = op.line(slope, sides.below, relaxed.anchors)
            self.still = still = sides.of(*self.beyond) == 0
            touch = torch.where(still, tight.touch, line.touch)
            self.within = LinesWithin(slope, line.intercept, touch, tight.width)
        if self.begun is not None:
            alpha, low, high = self.begun
            alpha[:, 0, self.stack.slots] = sides.of(low, high).flatten(1)

    def lines(self) -> dict[int, Chosen]:
        intercepts = self.stack.split(self.within.intercept)
        return {i: Chosen(self.slopes[i], intercepts[i]) for i in self.stack.nodes}

    def gain(self) -> Tensor:
        return (self.coef * self.within.intercept).flatten(1).sum(1)

    def uphill(self, arrived: dict[int, Tensor], found: Tensor) -> None:
        z, op = self.stack.join(arrived), self.stack.op
        if found.shape[1] == 1 and isinstance(op, Elementwise):
            op.uphill(self.coef, self.within, z, self.stack.laid(found.select(1, 0)))
            return
        slopes = [op.uphill(self.coef, self.within, z)]
        if self.relaxed.excess is not None:
            slopes.append(_outside(self.coef, self.within, self.relaxed, self.still, z))
        self._by_lanes(slopes, self.sides, found)


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
            self.within = LinesWithin(slope, line.intercept, touch, self.within.width)
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

    def uphill(self, arrived: dict[int, Tensor], found: Tensor) -> None:
        z = arrived[self.stack.nodes[0]]
        if not self.passed:
            found.zero_()
            return
        slopes = [self.stack.op.uphill(self.coef, self.within, z)]
        if self.relaxed.excess is not None:
            slopes.append(_outside(self.coef, self.within, self.relaxed, self.still, z))
        self._by_lanes(slopes, RowSides(self.coef), found)

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


def _outside(
    coef: Tensor, lines: LinesWithin, relaxed: Relaxed, still: Tensor, z: Tensor
) -> Tensor:
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


MANY = 256  # slopes of a row, most of which hardly matter
AGAIN = 3  # steps, after which a halfspace's factors are found anew


@dataclass(frozen=True, slots=True)
class Ascent:
    """Settings of the ascents on slopes; the defaults suit every network tried.

    `steps` are taken at one radius alone, from CROWN's lines; where there are few layers of slopes,
    as many as layers and `shallow` more. Each radius of a search starts where the last one ended,
    and radii get closer: there are fewer and smaller steps, but at least `more`. Margins, which
    decide, get all of them. The neurons of wide layers, where all the time would go, get `few`
    steps, larger ones: most of what can be gained comes with these. A search's first radius is a
    guess, and gets no more than a `glance`.
    """

    steps: int = 10
    more: int = 2
    shallow: int = 4
    few: int = 4  # of neurons of wide layers; no fewer than `steps`: as many as all others
    rate: float = 0.25  # first step, in units of the slope range
    decay: float = 0.92  # of the rate, per step
    fade: float = 0.65  # of steps and rate, per radius
    least: float = 0.25  # of the rate, after however many radii: long searches go on moving
    momentum: float = 0.5
    memory: float = 0.85  # of the squared gradient
    noise: float = 1e-2  # of a row's largest derivative: those below hardly move

    @property
    def glance(self) -> Ascent:
        """A variant with fewer, larger steps: enough to see where the next radius should be.

        Where every radius is to get as many (`more`), all of them.
        """
        if self.more >= self.steps:
            return self
        few = max(1, self.few - 1)
        return replace(self, steps=ceil(0.6 * self.steps), few=few, rate=1.2 * self.rate)

    def of_neurons(self, radii: int, layers: int | None = None) -> tuple[int, Ascent]:
        """The number of steps for neurons of inner layers, and their settings.

        It depends on the radii so far and on the layers of slopes (None: slopes that groups share,
        which are harder to find).
        """
        faded = self.fade**radii
        steps = min(self.steps, max(self.more, ceil(self.steps * faded)))
        if layers is not None and self.more < self.steps:
            steps = min(steps, layers + self.shallow)
        return steps, replace(self, rate=self.rate * max(self.least, faded))

    def of_wide_layer(self, radii: int, layers: int) -> tuple[int, Ascent]:
        """The number of steps for neurons of a layer that has many, and their settings.

        The first steps are large, and sizes fall soon, as fits an ascent that ends early; along
        many layers of slopes there are a few steps more. At one radius alone steps are larger
        still; the radii of a search start near their goal.
        """
        if self.few >= self.steps:
            return self.of_neurons(radii, layers)
        rate = self.rate * max(self.least, self.fade**radii)
        if self.more >= self.steps:
            alone = replace(self, rate=2.8 * rate, momentum=0.2, memory=0.5, noise=1e-3)
            steps = self.few + min(4, (layers + 1) // 3)
            return min(self.steps, steps), replace(alone, decay=0.75)
        first = min(self.steps, self.few + min(3, layers // 3))
        steps = max(1, ceil(first * 0.5**radii))
        return steps, replace(self, rate=2 * rate, decay=0.75, momentum=0.3)

    def of_broad_layer(self, radii: int, layers: int) -> tuple[int, Ascent]:
        """The number of steps for neurons of a layer behind a large matrix, none of which is ever
        stable, and their settings.

        A step takes three times as long as CROWN's lines. Small steps find most at once, and what
        was found serves at radii near by.
        """
        if self.more >= self.steps:  # one radius alone, or all steps for every neuron
            return self.of_wide_layer(radii, layers)
        steps = min(self.steps, (self.few, 1, 0)[min(radii, 2)])
        rate = (0.8 if radii == 0 else 0.4) * self.rate
        return steps, replace(self, rate=rate, decay=0.75, momentum=0.3)

    def of_margins(self, radii: int, slopes: int) -> tuple[int, Ascent]:
        """The number of steps for margins with this many slopes, and their settings."""
        rate = self.rate * max(self.least, self.fade ** (radii / 2))
        if slopes < MANY or self.few >= self.steps:
            return self.steps, replace(self, rate=rate)
        ascent = replace(self, rate=rate, noise=1e-3)  # many small derivatives count together
        if self.more >= self.steps:
            ascent = replace(ascent, rate=4 * rate, decay=0.85, momentum=0.3)
        return self.steps, ascent


@dataclass(frozen=True, slots=True)
class Optimised:
    """The bounds of rows, and where they were found."""

    bound: Tensor  # (rows,)
    alpha: Tensor  # (groups, lanes, slots) the best iterate
    factors: Tensor | None = None  # (rows, planes) of the planes there


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Quantities to bound below: coef . target over each row's region.

    `group` says which alpha a row uses. None: each row its own, and then one number per
    neuron is enough, because a row needs one side of it only. The rows of a group may need
    different sides, so a group has two lanes of alpha: for lines below and above. A wide
    search doubles the lanes: how far each slope leaves the tightest range, in [-1, 1].
    Relaxed nodes and region are per row, or shared by all.
    """

    target: int
    coef: Tensor  # (rows, *target shape)
    start: Start  # of every row
    relaxed: tuple[Relaxed, ...]  # of every stack of nodes below the target
    group: Tensor | None  # (rows,)
    wide: bool = False
    marked: Tensor | None = None  # (rows, slots) neurons with a multiplier, in a last lane
    half: Halfspace | None = None  # of the start's d: what is left of every row's region
    planes: Planes | None = None  # of the target's values, for every row

    @property
    def sides(self) -> int:
        return 1 if self.group is None else 2

    @property
    def lanes(self) -> int:
        return self.sides * (2 if self.wide else 1) + (self.marked is not None)


def optimise(
    plan: Plan,
    rows: RowBatch,
    alpha: Tensor,
    ascent: Ascent,
    steps: int,
    clock: Clock = NO_LIMIT,
    factors: Tensor | None = None,
) -> Optimised:
    """Maximise every row's bound; with groups, the mean bound of each group.

    Starts at alpha (groups, lanes, slots), where NaN means CROWN's slope, and takes a fixed
    number of steps, so results do not depend on which rows share a batch. Keeps the best
    alpha of each group and its rows' bounds there: alpha proves them all. Where rows have planes,
    factors (rows, planes) of these go along.
    """
    search = _Search(plan, rows, alpha.clone())
    weighed = None
    if rows.planes is not None:
        weighed = search.weighed = WeighedPlanes(rows.planes, factors)
    best = rows.coef.new_full((len(rows.coef),), -torch.inf)
    best_mean = rows.coef.new_full((len(alpha),), -torch.inf)
    best_alpha, moments, rate = search.alpha, Moments(ascent), ascent.rate
    for step in range(steps + 1):
        clock.check()
        if step % AGAIN == 0 or step == steps:
            search.factor = None
        bound, gradient = search.evaluate(gradient=step < steps)
        mean = bound if rows.group is None else _group_mean(bound, rows.group, len(alpha))
        better = mean > best_mean
        if weighed is not None:
            weighed.keep(better)
        best_mean = torch.fmax(best_mean, mean)  # not NaN
        best = best_mean if rows.group is None else best.where(~better[rows.group], bound)
        here = search.alpha
        last = gradient is None or not gradient.numel()
        if gradient is not None and not last:
            search.spare = moments.add(gradient)
            size = moments.size()
            if weighed is not None:
                least = size.flatten(1).amin(1) * moments.unit
                weighed.move(least, rate, ascent)
            search.move(moments.first, size, rate / moments.unit)
            rate *= ascent.decay
        if step > 0:
            best_alpha, search.room = _better_rows(better, here, best_alpha)
        if last:
            break
    return Optimised(best, best_alpha, None if weighed is None else weighed.best)


def _better_rows(better: Tensor, new: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of `new` where these are better, else those of `old`; in the place of one of them,
    and the other one, whose numbers are of no use any more."""
    rest = better.logical_not().nonzero().flatten()
    if not len(rest):
        return new, old
    if 2 * len(rest) <= len(better):
        return new.index_copy_(0, rest, old.index_select(0, rest)), old
    which = better.nonzero().flatten()
    return old.index_copy_(0, which, new.index_select(0, which)), new


class Moments:
    """Means of the gradients of an ascent and of their squares, recent ones weighing most."""

    def __init__(self, ascent: Ascent) -> None:
        self.ascent = ascent
        self.first = self.second = self.root = _NONE  # `second` in units of `unit` squared
        self.unit = 1.0

    def add(self, gradient: Tensor) -> Tensor | None:
        """Take in a gradient. Returns it if it is of no use any more."""
        if self.first is _NONE:
            # Not quite 0 anywhere: roots of 0, and of numbers near it, are slow.
            self.first = gradient
            self.second = gradient.square().add_(self._tiny)
            self.root = torch.empty_like(gradient)
            return None
        ascent = self.ascent
        self.first.lerp_(gradient, 1 - ascent.momentum)
        # Where the unit falls in place of the numbers there is a pass less.
        self.unit *= ascent.memory**0.5
        if self.unit < 1e-3:
            self.second.mul_(self.unit**2).add_(self._tiny)
            self.unit = 1.0
        share = (1 - ascent.memory) / self.unit**2
        self.second.addcmul_(gradient, gradient, value=share)
        return gradient

    def size(self) -> Tensor:
        """(groups, lanes, slots) what to divide by, in units of `unit`.

        Slopes that hardly matter to a row stay: their derivatives may be mere rounding, and
        following its sign would make results depend on the order of sums.
        """
        size = torch.sqrt(self.second, out=self.root)
        return size.add_(size.amax((1, 2), keepdim=True), alpha=self.ascent.noise)

    @property
    def _tiny(self) -> float:
        return 16 * torch.finfo(self.first.dtype).tiny


def replay(plan: Plan, rows: RowBatch, alpha: Tensor) -> tuple[LinearForm, dict[int, Chosen]]:
    """The forms and lines of rows at given slopes."""
    search = _Search(plan, rows, alpha.clone())
    return search.form(), search.lines()


def has_nan(alpha: Tensor) -> bool:
    """True if there is NaN among finite numbers; sums are ten times as fast as masks."""
    return bool(torch.isnan(alpha.sum()))


def slopes_of(
    plan: Plan,
    target: int,
    relaxed: Sequence[Relaxed],
    group: Tensor | None,
    alpha: Tensor,
    count: int,
) -> Callable[[int, Tensor], Tensor]:
    """The slopes that `count` rows, grouped as in `RowBatch`, take at a node, whatever their
    coefficients are when they pass it."""
    alpha, fresh = alpha.clone(), has_nan(alpha)
    every = zip(stacks(plan, target, crowd(plan, target, count)), relaxed, strict=True)
    alphas = [alpha_of(stack, node, group, count) for stack, node in every]
    for own in alphas:
        own.prepare(alpha, fresh)
    at = {i: own for own in alphas for i in own.stack.nodes}
    return lambda i, here: at[i].slope(i, here)


class _Search:
    """Rows and the slopes they are at."""

    def __init__(self, plan: Plan, rows: RowBatch, alpha: Tensor) -> None:
        self.plan, self.rows, self.alpha = plan, rows, alpha
        self.fresh = has_nan(alpha)
        self.head = begin(plan, rows.target, rows.coef)
        count = rows.coef.shape[0]
        own = stacks(plan, rows.target, crowd(plan, rows.target, count))
        every = zip(own, rows.relaxed, strict=True)
        self.alphas = [alpha_of(stack, node, rows.group, count) for stack, node in every]
        self.at = {i: own for own in self.alphas for i in own.stack.nodes}
        self.multipliers = (
            None if rows.marked is None else MarkedMultipliers(plan, rows, rows.marked)
        )
        self.factor: Tensor | None = None  # (rows,) of the halfspace; None: to be found
        self.weighed: WeighedPlanes | None = None
        self.room: Tensor | None = None  # a tensor like alpha that may be overwritten
        self.spare: Tensor | None = None  # and one for derivatives

    def move(self, step: Tensor, size: Tensor, rate: float) -> None:
        """Move alpha by rate step / size, inside the search space."""
        sides = self.rows.sides
        if self.multipliers is not None:
            # In units of their own, and free of any bound.
            step = step.clone()
            step[:, -1] *= self.multipliers.unit
            moved = torch.addcdiv(self.alpha, step, size, value=rate)
            self.alpha, moved = moved, moved[:, -1].clone()
        else:
            room = torch.empty_like(self.alpha) if self.room is None else self.room
            self.alpha = torch.addcdiv(self.alpha, step, size, value=rate, out=room)
        self.room = None
        if self.rows.wide:
            self.alpha[:, :sides].clamp_(0, 1)
            self.alpha[:, sides:].clamp_(-1, 1)
        else:
            self.alpha.clamp_(0, 1)
        if self.multipliers is not None:
            self.alpha[:, -1] = moved

    def evaluate(self, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Every row's bound at its slopes, and the groups' ascent direction.

        What the relaxed network gives at x* is the form's value there, the bound: on the way
        to a direction no constants are needed.
        """
        if self.weighed is not None:
            coef = self.rows.coef + self.weighed.coef.view(self.rows.coef.shape)
            self.head = begin(self.plan, self.rows.target, coef)
        form, start = self.form(constants=not gradient), self.rows.start
        coef, half = form.coef, self.rows.half
        if half is not None:
            coef = self._tilted(coef, half)
        if not gradient:
            bound = start.least(coef) + form.const
            if self.weighed is not None:
                bound = bound + self.weighed.const
            return bound if half is None else bound + self._factors * half.const, None
        arrived: dict[int, Tensor] = {}
        point = start.lowest(coef)
        values = push_forward(
            self.plan, self.rows.target, point, self.lines(), arrived.__setitem__, start.node
        )
        # A coefficient without a number has no minimiser, and what a point gives there no meaning.
        bound = self.head.at(values) + 0 * form.coef.flatten(1).sum(1)
        if half is not None:
            bound = bound + self._factors * half.at(start.minimiser(coef))
        if self.weighed is not None:
            bound = bound + self.weighed.const
            self.weighed.see(_arrived(self.plan, self.rows.target, values).flatten(1))
        direction = self._uphill(arrived, bound)
        if self.multipliers is not None:
            gain, uphill = self.multipliers.uphill(arrived)
            bound, direction = bound + gain, torch.cat([direction, uphill[:, None]], 1)
        if self.rows.group is not None:
            direction = torch.zeros_like(self.alpha).index_add_(0, self.rows.group, direction)
        return bound, direction

    @property
    def _factors(self) -> Tensor:
        assert self.factor is not None
        return self.factor

    def _tilted(self, coef: Tensor, half: Halfspace) -> Tensor:
        """Coefficients with the halfspace's, times factors that are found where there are none."""
        if self.factor is None:
            self.factor, tilted = best_factor(coef, half, self.rows.start.minimiser)
            return tilted
        return torch.addcmul(coef, self.factor.view(-1, *([1] * (coef.dim() - 1))), half.coef)

    def form(self, constants: bool = True) -> LinearForm:
        """The rows' forms at the input; their lines are known then."""
        for own in self.alphas:
            own.prepare(self.alpha, self.fresh)

        def plain(i: int, here: Tensor) -> tuple[Tensor | None, Tensor]:
            return None, self.at[i].back(i, here)

        through: Through = plain
        if self.multipliers is not None:
            self.multipliers.prepare(self.alpha)
            through = self.multipliers.added(plain)

        start = self.rows.start
        end = descend(self.plan, self.rows.target, self.head, through, constants, start.node)
        form = start.moved(form_of(self.plan, end, start.node), constants)
        for own in self.alphas:
            own.complete()
        self.fresh = False
        if not constants:
            return form
        const = sum((own.gain() for own in self.alphas), form.const)
        if self.multipliers is not None:
            const = const - self.multipliers.cost.sum(1)
        return LinearForm(form.coef, const)

    def lines(self) -> dict[int, Chosen]:
        """The lines of every node that was passed."""
        return {i: line for own in self.alphas for i, line in own.lines().items()}

    def _uphill(self, arrived: dict[int, Tensor], like: Tensor) -> Tensor:
        """(rows, lanes, slots) the derivatives of all stacks."""
        lanes = self.rows.lanes - (self.rows.marked is not None)
        shape = (like.shape[0], lanes, self.alpha.shape[2])
        spare, self.spare = self.spare, None
        found = like.new_empty(shape) if spare is None or spare.shape != shape else spare
        for alpha in self.alphas:
            own = alpha.stack.slots
            alpha.uphill(arrived, found.narrow(2, own.start, own.stop - own.start))
        return found


class WeighedPlanes:
    """Factors of the planes of rows' targets, at least 0, on their way up. A bound grows with a
    factor as what the plane gives where the row is least."""

    def __init__(self, planes: Planes, factors: Tensor | None) -> None:
        self.planes = planes
        self.best = torch.zeros_like(planes.const) if factors is None else factors
        self.factors = self.best
        size = planes.coef.abs().amax(2)
        self.unit = torch.where(size > 0, 1 / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
        self.first = self.second = self.uphill = torch.zeros(())
        self.steps = 0

    @property
    def coef(self) -> Tensor:
        """(rows, entries) to add to rows."""
        return self.planes.added(self.factors)

    @property
    def const(self) -> Tensor:
        """(rows,) to add to bounds."""
        return (self.factors * self.planes.const).sum(1)

    def see(self, z: Tensor) -> None:
        """Take in what the target is where rows are least."""
        self.uphill = self.planes.at(z) * self.unit

    def keep(self, better: Tensor) -> None:
        """Keep the factors of these rows."""
        self.best = torch.where(better[:, None], self.factors, self.best)

    def move(self, least: Tensor, rate: float, ascent: Ascent) -> None:
        """Move factors uphill; a row's derivatives below `least` (rows,) hardly matter."""
        if not self.steps:
            self.first, self.second = self.uphill, self.uphill.square()
        else:
            self.first = torch.lerp(self.uphill, self.first, ascent.momentum)
            self.second = torch.lerp(self.uphill.square(), self.second, ascent.memory)
        self.steps += 1
        size = self.second.sqrt() + least[:, None]
        size = size.clamp(min=torch.finfo(size.dtype).tiny)
        self.factors = (self.factors + rate * self.unit * self.first / size).clamp(min=0)


def _arrived(plan: Plan, target: int, values: dict[int, Tensor]) -> Tensor:
    """The value of a target where the nodes before it have these values; nodes may be without one
    before those where rows end."""
    for step in reversed(plan.route(target)):
        known = all(j in values for j in step.inputs)
        if step.node not in values and step.affine is not None and known:
            values[step.node] = step.affine.apply(*[values[j] for j in step.inputs])
    return values[target]


class MarkedMultipliers:
    """Multipliers m of rows at marked neurons: m z - max(m l, m u), which is never above 0 for z in
    [l, u], is added to a row, for any m.

    The derivative of a bound by m is z* - u where m > 0, z* - l where m < 0; at m = 0 only a z*
    that has left [l, u] has one.
    """

    def __init__(self, plan: Plan, rows: RowBatch, marked: Tensor) -> None:
        self.plan, self.rows, self.marked = plan, rows, marked
        self.places, _ = plan.slots(rows.target)
        count = len(rows.coef)
        boxes = [node.box for node in rows.relaxed]
        self.low, self.high = (
            torch.cat([t.flatten(1).expand(count, -1) for t in side], 1)
            for side in ([b.lower for b in boxes], [b.upper for b in boxes])
        )
        self.size: dict[int, Tensor] | None = {}  # the mean coefficient of rows at nodes
        self.unit = rows.coef.new_ones(())  # (groups, slots) of steps

    def prepare(self, alpha: Tensor) -> None:
        """Begin a pass at the multipliers of the last lane."""
        own = alpha[:, -1] if self.rows.group is None else alpha[self.rows.group, -1]
        self.m = torch.where(self.marked, own.nan_to_num(nan=0.0), 0.0)
        self.cost = torch.maximum(self.m * self.low, self.m * self.high)

    def added(self, through: Through) -> Through:
        """A way through nodes that adds the multipliers."""

        def more(i: int, here: Tensor) -> tuple[Tensor | None, Tensor]:
            gain, below = through(i, here)
            if self.size is not None:
                self.size[i] = below.abs().flatten(1).mean(1)
            return gain, below + self.m[:, self.places[i]].view(below.shape)

        return more

    def uphill(self, arrived: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """(rows,) what multipliers add where z arrives, and (rows, slots) how bounds grow with
        them, in units of their steps."""
        if self.size is not None:
            self._measure(self.size)
            self.size = None
        z = torch.zeros_like(self.m)
        for i, here in arrived.items():
            z[:, self.places[i]] = here.flatten(1)
        nearest = z.maximum(self.low).minimum(self.high)
        end = torch.where(self.m > 0, self.high, torch.where(self.m < 0, self.low, nearest))
        unit = self.unit if self.rows.group is None else self.unit[self.rows.group]
        growth = torch.where(self.marked, (z - end) * unit, 0.0)
        return (self.m * z - self.cost).sum(1), growth

    def _measure(self, size: dict[int, Tensor]) -> None:
        """Steps are as large as coefficients at the node are, in the mean."""
        unit = torch.ones_like(self.m)
        for i, mean in size.items():
            unit[:, self.places[i]] = mean[:, None]
        group = self.rows.group
        if group is not None:
            total = unit.new_zeros(int(group.max()) + 1, unit.shape[1]).index_add_(0, group, unit)
            unit = total / torch.bincount(group)[:, None]
        self.unit = unit


def _group_mean(values: Tensor, group: Tensor, count: int) -> Tensor:
    total = values.new_zeros(count).index_add_(0, group, values)
    return total / torch.bincount(group, minlength=count).clamp(min=1).to(values.dtype)
