"""Floating point with every rounding error charged: boxes and forms that hold for real numbers.

A form's coefficients are rounded wherever it passes an operator. Whatever was rounded away is
itself a linear form r . z on the values z at hand, and these lie in known boxes:
|r . z| <= |r| . m with m = max |z|. For an affine operator y = J x + b, |r| <= gamma |J|^T |a|
makes that gamma |a| . (|J| m + |b|): one inner product per operator with numbers that all rows
of a sample share. So coefficients stay plain numbers, taken as exact, and each row carries what
it has been charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from frown.bounds.forms import Partial, Through, descend, form_of
from frown.bounds.plan import Plan, RouteNode
from frown.bounds.rows import (
    Blocks,
    SampleIndex,
    charged_pieces,
    dot,
    inner,
    one_hot,
    places,
    spread,
)
from frown.bounds.walk import Arithmetic, Boxes
from frown.bounds.work import Work
from frown.graph.affine import Combine, Concat, Permute, Reshape, Slice
from frown.graph.intervals import Intervals, rows_of, unsqueezed
from frown.graph.op import Affine, Selection
from frown.problem.region import Region
from frown.relax.proven.curves import NoProof
from frown.relax.proven.lines import Proven, prove
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, above, below, gamma
from frown.relax.proven.taylor import Enclosure, one_by_one
from frown.relax.relaxation import Lines, Relaxation, Relaxed, Rule, relax

FEW = 16  # a node has as many times as many entries as features vary where points tell its box
POINT = 512  # bytes that an entry takes at each of these points
_EXACT = frozenset({Reshape, Permute, Slice, Concat})  # they move entries and compute nothing


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of every node's values, and of the terms they sum: what rounding is charged with."""

    value: dict[int, Tensor]  # m: (N, *shape) at least |z|
    terms: dict[int, Tensor]  # |J| m + |b| of affine nodes
    total: dict[int, Tensor]  # (N,) the sum of m

    def largest(self) -> Weights:
        """Weights that are enough for every sample."""
        return Weights(
            *(
                {i: t.amax(0, keepdim=True) for i, t in kind.items()}
                for kind in (self.value, self.terms, self.total)
            )
        )


@dataclass(frozen=True, slots=True)
class ChargedForm:
    """coef . x + const - charge at the network's input bounds a quantity below."""

    coef: Tensor  # (rows, *input shape)
    const: Tensor  # (rows,)
    charge: Tensor  # (rows,) >= 0


class Charges:
    """The account of some rows on their way down: what rounding, and errors of execution, may
    take from each. `errors` says by how much nodes as executed may be off."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        sample: SampleIndex,  # a row's, in the weights
        errors: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.plan, self.weights, self.sample, self.errors = plan, weights, sample, errors
        self.lost = torch.zeros_like(weights.total[0])  # (N,) how often underflow may take TINY

    def begin(self, target: int, coef: Tensor) -> Partial:
        """Rows at a target, with nothing charged yet."""
        zero = coef.new_zeros(len(coef))
        self.charge = zero
        self.running = zero  # sizes of the running sum
        if self.errors is not None and isinstance(self.plan.graph.nodes[target].op, Affine):
            self._executed(target, coef)
        return Partial({target: coef}, zero, target)

    def take(self, charge: Tensor) -> None:
        """Add a charge that the caller has computed."""
        self.charge = self.charge + charge

    def affine(self, step: RouteNode, here: Tensor) -> None:
        op = step.affine
        if type(op) in _EXACT or (type(op) is Combine and all(abs(w) == 1 for w in op.weights)):
            return  # to pull it back rounds nothing
        size = self.plan.graph.nodes[step.node].size
        terms = inner(here, self.weights.terms[step.node], self.sample)
        self.charge = self.charge + terms * gamma(size + 8)
        sums = [self.weights.total[j] for j in step.inputs]
        self.lost = self.lost + size * (1 + sum(sums[1:], sums[0]))

    def nonlinear(self, step: RouteNode, here: Tensor, below: Tensor) -> None:
        (source,) = step.inputs
        self.lost = self.lost + (self.plan.graph.nodes[step.node].size + self.weights.total[source])
        if self.errors is None:
            return
        # The error of an affine node is for all of its run of affine operators.
        self._executed(step.node, here)
        if isinstance(self.plan.graph.nodes[source].op, Affine):
            self._executed(source, below)

    def added(self, node: int, both: Tensor) -> None:
        self.charge = self.charge + inner(both, self.weights.value[node], self.sample) * (2 * UNIT)

    def constant(self, const: Tensor) -> None:
        self.running = self.running + const.abs()

    def settle(self, coef: Tensor, const: Tensor) -> ChargedForm:
        """The form at the input, with all that it is charged."""
        self._executed(0, coef)
        charge = self.charge + self.running * (4 * UNIT) + TINY * spread(self.lost, self.sample)
        return ChargedForm(coef, const, charge * LOOSE)

    def _executed(self, node: int, here: Tensor) -> None:
        if self.errors is not None:
            self.charge = self.charge + inner(here, self.errors[node], self.sample)


def charged_form(charges: Charges, target: int, coef: Tensor, through: Through) -> ChargedForm:
    """Bound coef . target below by a form at the input.

    `through` passes nonlinear nodes, along lines below f where a coefficient is >= 0, else above,
    and charges what that costs.
    """
    end = descend(charges.plan, target, charges.begin(target, coef), through, account=charges)
    return charges.settle(form_of(charges.plan, end).coef, end.const)


def bounded(region: Region, form: ChargedForm, sample: SampleIndex | None = None) -> Tensor:
    """(rows,) at most what each form and its charge leave over its region."""
    value = least(region, form.coef, sample) + form.const
    return below(value, form.charge + form.const.abs() * (4 * UNIT))


# -- lines ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passed:
    """A form on a nonlinear node's output, replaced by one on its input."""

    coef: Tensor  # (rows, *input shape of the node)
    const: Tensor  # (rows,) what intercepts add
    charge: Tensor  # (rows,) what rounding may take


def by_lines(
    op: Relaxation,
    here: Tensor,
    slope: Tensor,
    intercept: Tensor,
    size: Tensor,
    sample: SampleIndex,
) -> Passed:
    """Pass forms along exact slopes with proven intercepts, each of its coefficient's side; `size`
    (N, ...) is at least |z| at the node's input."""
    gains, coef = here * intercept, op.expand(here) * slope
    charge = gains.abs().flatten(1).sum(1) * gamma(gains[0].numel())
    return Passed(coef, gains.flatten(1).sum(1), charge + inner(coef, size, sample) * (4 * UNIT))


@dataclass(frozen=True, slots=True)
class FixedLines:
    """The fixed rule's lines at a node, and what a unit of coefficient is charged along either."""

    lines: Lines  # exact slopes, proven intercepts
    size: Tensor  # (N, *input shape) at least |z|
    charge: Tensor | None  # (N, *output shape); None: a line of some neuron is not finite

    @classmethod
    def of(cls, op: Relaxation, lines: Lines, size: Tensor) -> FixedLines:
        slopes = lines.slopes
        steep = slopes.lower.abs().maximum(slopes.upper.abs())
        level = lines.lower.abs().maximum(lines.upper.abs())
        reach = steep * size if op.expand(level) is level else (steep * size).sum(-1)
        charge = (level * gamma(level[0].numel()) + reach * (4 * UNIT)) * LOOSE
        charge = charge + TINY  # what underflow took here, before coefficients multiply it
        whole = all(bool(t.isfinite().all()) for t in (steep, level, charge))
        return cls(lines, size, charge if whole else None)

    def through(self, op: Relaxation, here: Tensor, sample: SampleIndex) -> Passed:
        """A form of every row through the lines of its sample."""
        slopes, lines = self.lines.slopes, self.lines
        if self.charge is None:
            under = here >= 0
            low, high = (spread(t, sample) for t in (slopes.lower, slopes.upper))
            slope = torch.where(op.expand(under), low, high)
            low, high = (spread(t, sample) for t in (lines.lower, lines.upper))
            return by_lines(op, here, slope, torch.where(under, low, high), self.size, sample)
        # One of two halves is 0, so their sum is exact, and faster than a selection.
        positive, negative = here.clamp(min=0), here.clamp(max=0)
        const = dot(positive, lines.lower, sample) + dot(negative, lines.upper, sample)
        halves = op.expand(positive), op.expand(negative)
        if isinstance(sample, Blocks):
            halves = sample.blocks(halves[0]), sample.blocks(halves[1])
            low, high = sample.table(slopes.lower), sample.table(slopes.upper)
        else:
            low, high = rows_of(slopes.lower, sample), rows_of(slopes.upper, sample)
        coef = (halves[0] * low).addcmul_(halves[1], high)
        coef = coef.reshape(len(here), *low.shape[-slopes.lower.dim() + 1 :])
        return Passed(coef, const, inner(here, self.charge, sample))


# -- boxes ---------------------------------------------------------------------------


def terms_of(op: Affine, sizes: list[Tensor]) -> Tensor:
    """|J| m + |b|, rounded up."""
    zero = [torch.zeros_like(m) for m in sizes]
    return (op.spread(*sizes) + op.apply(*zero).abs()) * LOOSE + TINY


@dataclass
class Charged(Arithmetic):
    """Boxes and lines that hold over the real numbers, node by node."""

    plan: Plan
    region: Region
    rule: Rule  # whose slopes rows without their own take
    searched: bool  # whether rows have slopes of their own, in the range of the tightest
    wide: bool = False  # or beyond it
    values: Boxes = field(default_factory=dict)
    relaxed: dict[int, Relaxed] = field(default_factory=dict)  # where slopes are searched
    proven: dict[int, Proven] = field(default_factory=dict)
    fixed: dict[int, FixedLines] = field(default_factory=dict)  # along the rule's slopes
    weights: Weights = field(default_factory=lambda: Weights({}, {}, {}))

    @property
    def errors(self) -> Mapping[int, Tensor] | None:
        """Bounds on how far nodes as executed are off; None: execution is not covered."""
        return None

    def input(self, node: int) -> None:
        self._set(node, enclosing(self.region))

    def affine(self, node: int) -> None:
        here = self.plan.graph.nodes[node]
        op, boxes = here.op, [self.values[j] for j in here.inputs]
        assert isinstance(op, Affine)
        self.weights.terms[node] = terms_of(op, [self.weights.value[j] for j in here.inputs])
        off = self.affine_error(node, op, boxes)
        if isinstance(op, Selection | Concat):
            low, high = (op.apply(*side) for side in zip(*((b.lower, b.upper) for b in boxes)))
            self._set(node, Intervals(low, high))
            return
        fan = sum(self.plan.graph.nodes[j].size for j in here.inputs)
        error = self.weights.terms[node] * (4 * gamma(fan + 8)) + 4 * fan * TINY
        error = error if off is None else error + off
        middle = op.apply(*(b.middle for b in boxes))
        # TINY before the weights: halving the smallest numbers rounds, and weights may be huge.
        radius = op.spread(*(b.radius + TINY for b in boxes)) * LOOSE
        self._set(node, Intervals(below(middle - radius, error), above(middle + radius, error)))

    def nonlinear(self, node: int, box: Intervals) -> None:
        op = self.plan.relaxation(node)
        proven = prove(op, box)
        if proven is None:
            raise NoProof(f"{type(op).__name__} at {self.plan.graph.nodes[node].name}")
        if self.searched:
            self.relaxed[node] = relax(op, box, self.rule, self.wide)
            slopes = self.relaxed[node].lines.slopes
        else:
            slopes = self.rule.slopes(op, box, op.tightest(box))
        self.proven[node] = proven
        shape = (len(box.lower), *self.plan.graph.nodes[node].shape)
        under = torch.ones(shape, dtype=torch.bool, device=box.lower.device)
        lines = Lines(
            slopes, proven.intercept(slopes.lower, under), proven.intercept(slopes.upper, ~under)
        )
        (source,) = self.plan.graph.nodes[node].inputs
        self.fixed[node] = FixedLines.of(op, lines, self.weights.value[source])
        self._set(node, proven.image())

    def narrow(self, source: int, box: Intervals, reader: int) -> None:
        self._set(source, box)
        # The nodes between a source and its reader only move entries.
        chain = []
        (j,) = self.plan.graph.nodes[reader].inputs
        while j != source:
            chain.append(j)
            (j,) = self.plan.graph.nodes[j].inputs
        for j in reversed(chain):
            self.affine(j)

    def affine_box(self, source: int, work: Work, by_rows: bool = False) -> Intervals:
        """A node that is affine in the input: by its values at a few points where few inputs vary,
        else, or if it is to be `by_rows`, by its rows, which serve all samples."""
        found = None if by_rows else self._box_by_points(source, work)
        if found is not None:
            return self.values[source].meet(found)
        node, box = self.plan.graph.nodes[source], self.values[source]
        neuron = torch.arange(node.size, device=box.lower.device)
        one, most = torch.ones_like(box.lower[0]).flatten(), self.weights.largest()
        sides = []
        for piece in charged_pieces(self.plan, source, torch.zeros_like(neuron), work, False):
            work.clock.check()
            coef = one_hot(neuron[piece], one[piece], node.size, node.shape)
            charges = Charges(self.plan, most, Blocks(slice(0, 1), len(coef)))
            form = charged_form(charges, source, coef, no_lines)
            found = extremes(self.region, form.coef)
            error = form.charge + form.const.abs() * (4 * UNIT)
            off = self.affine_row_error(source, form.coef, neuron[piece])
            error = error if off is None else error + off
            low, high = found.lower + form.const, found.upper + form.const
            sides.append((below(low, error), above(high, error)))
        low, high = (torch.cat(side, 1).view(-1, *node.shape) for side in zip(*sides, strict=True))
        return Intervals(torch.fmax(box.lower, low), torch.fmin(box.upper, high))

    def _box_by_points(self, source: int, work: Work) -> Intervals | None:
        """The box of a node T that is affine in the input, over boxes of it in which few features
        vary; None for other nodes and regions.

        T(x) - T(c) is the sum of (x_j - c_j) (T(p + s_j e_j) - T(p)) / s_j, for any p and any steps
        s_j other than 0. All values of T are enclosed, so no row is pulled back.
        """
        if self.region.p != inf or self.errors is not None:
            return None
        node, box = self.plan.graph.nodes[source], self.values[0]
        low, high = box.lower.flatten(1), box.upper.flatten(1)
        varies = (high > low).any(0).nonzero().flatten()
        count = len(varies)
        entries = sum(self.plan.graph.nodes[i].size for i in self.plan.ancestors(source))
        much = POINT * entries * (1 + count + len(low)) > work.memory
        if much or FEW * (count + 1) > node.size:
            return None
        work.clock.check()
        middle = box.middle.flatten(1).clamp(low, high)
        reach = above((high - middle).maximum(middle - low))[:, varies]  # (N, features)
        at = middle[:1]
        moved = at.repeat(count, 1)
        every = torch.arange(count, device=at.device)
        moved[every, varies] = at[0, varies] + 2 * reach.amax(0)
        step = below(moved[every, varies] - at[0, varies])
        values = self._values(torch.cat([at, moved, middle]).view(-1, *box.lower.shape[1:]), source)
        lower, upper = values.lower.flatten(1), values.upper.flatten(1)
        rise = above((upper[1 : count + 1] - lower[:1]).maximum(upper[:1] - lower[1 : count + 1]))
        gain = above(rise / step[:, None])  # (features, size) at least |T's slopes|
        spread = (reach @ gain) * LOOSE + (count + 1) * TINY
        found = Intervals(
            below(lower[count + 1 :] - spread).view(-1, *node.shape),
            above(upper[count + 1 :] + spread).view(-1, *node.shape),
        )
        whole = bool((step > 0).all()) and bool((found.lower <= found.upper).all())
        return found if whole and bool(found.upper.isfinite().all()) else None

    def _values(self, points: Tensor, target: int) -> Intervals:
        """Enclosures of the values that a node, which is affine in the input, has at points."""
        region = Region(points, points.new_zeros(len(points)), inf)
        own = Charged(self.plan, region, self.rule, False)
        for i in self.plan.ancestors(target):
            if isinstance(self.plan.graph.nodes[i].op, Affine):
                own.affine(i)
            else:
                own._set(i, Intervals(points, points))
        return own.values[target]

    def affine_error(self, node: int, op: Affine, boxes: list[Intervals]) -> Tensor | None:
        """(N, *shape) by how much an affine operator as executed may be off."""
        return None

    def affine_row_error(self, node: int, coef: Tensor, neuron: Tensor) -> Tensor | None:
        """(N, rows) by how much neurons that are affine in the input, as coef says, may be off."""
        return None

    def _set(self, node: int, box: Intervals) -> None:
        self.values[node] = box
        size = box.lower.abs().maximum(box.upper.abs())
        self.weights.value[node] = size
        self.weights.total[node] = size.reshape(len(size), -1).sum(1) * LOOSE


def no_lines(node: int, coef: Tensor) -> tuple[None, Tensor]:
    """Refuse to pass a nonlinear node, as of rows that are affine in the input."""
    raise AssertionError("an affine function of the input passes no nonlinearity")


# -- minima over regions ----------------------------------------------------------------

SMALL = 2.0**-400  # squares of numbers between it and its inverse stay far within range


def enclosing(region: Region) -> Intervals:
    """A box around the region."""
    reach = unsqueezed(region.radius, region.centre)
    if region.scale is not None:
        reach = reach * region.scale
    slack = 4 * UNIT * reach
    low, high = below(region.centre - reach, slack), above(region.centre + reach, slack)
    if region.scale is not None:
        fixed = (region.scale == 0).expand_as(low)
        low, high = torch.where(fixed, region.centre, low), torch.where(fixed, region.centre, high)
    if region.lower is not None and region.upper is not None:
        low, high = low.maximum(region.lower), high.minimum(region.upper)
    return Intervals(low, high)


def least(region: Region, coef: Tensor, which: SampleIndex | None = None) -> Tensor:
    """(rows,) at most coef . x for every x of the row's region: `which` says which that is, None
    that every row has its own, or all have one.

    The centre's part is a sum; what moving gains is at most the value of the dual problem at any
    multiplier, so multipliers are guessed in floats.
    """
    if which is not None and (region.clipped or region.scale is not None):
        region, which = region.rows(places(which)), None
    if region.p == inf and region.clipped:
        box = enclosing(region)
        return _dot_below(coef, torch.where(coef > 0, box.lower, box.upper))
    if which is not None:
        return _least_of_samples(region, coef, which)
    start = _dot_below(coef, region.centre)
    gain = _gain(region, coef)
    best = above(ball_gain(gain, region.p) * region.radius[:, None])
    if region.clipped:
        best = torch.minimum(best, _cut_gain(region, coef, gain))
    total = best.sum(1)
    return below(start - total, total * gamma(best.shape[1]))


def _least_of_samples(region: Region, coef: Tensor, which: SampleIndex) -> Tensor:
    """`least` for plain balls, whose centres are read where they are."""
    size, centre = coef.abs(), region.centre
    count = centre[0].numel()
    error = dot(size, centre.abs(), which) * (gamma(count) * LOOSE) + count * TINY
    start = below(dot(coef, centre, which), error)
    gain = ball_gain(region.balls(size), region.p)
    total = above(gain * spread(region.radius, which)[:, None])
    return below(start - total.sum(1), total.sum(1) * gamma(total.shape[1]))


def _gain(region: Region, coef: Tensor) -> Tensor:
    """(rows, balls, features) at least how fast a form changes with each feature."""
    if region.scale is None:
        return region.balls(coef.abs())
    return above(region.balls((coef * region.scale).abs()))


def extremes(region: Region, coef: Tensor) -> Intervals:
    """(N, K) around all values of each form (K, *shape) over each sample's region."""
    one_scale = region.scale is None or len(region.scale) == 1
    if region.p == inf or region.clipped or not one_scale:
        least_most = []
        for n in range(len(region.radius)):
            ball = region.rows(slice(n, n + 1))
            least_most.append((least(ball, coef), -least(ball, -coef)))
        return Intervals(*(torch.stack(side) for side in zip(*least_most, strict=True)))
    gain = _gain(region, coef)
    size = gain.shape[1]
    reach = above(ball_gain(gain, region.p).sum(1) * (1 + gamma(size)))
    reach = above(region.radius[:, None] * reach)
    flat, centre = coef.flatten(1), region.centre.flatten(1)
    middle = centre @ flat.T
    width = flat.shape[1]
    error = centre.abs() @ flat.abs().T * (gamma(width) * LOOSE) + width * TINY
    error = error + 4 * UNIT * reach
    return Intervals(below(middle - reach, error), above(middle + reach, error))


def farthest(region: Region) -> Tensor:
    """(N,) a radius at which every ball holds all of the valid range; infinite without one."""
    if region.lower is None or region.upper is None:
        return torch.full_like(region.radius, inf)
    far = (region.centre - region.lower).maximum(region.upper - region.centre)
    if region.scale is not None:
        moving = region.scale > 0
        far = torch.where(moving, far / torch.where(moving, region.scale, 1.0), 0.0)
    # The norm of p is dual to that of q, and the larger the less p is.
    q = region.dual if region.p in (1, 2, inf) else region.dual * (1 + 8 * UNIT)
    return ball_gain(above(region.balls(far)), q).amax(1)


def _dot_below(coef: Tensor, point: Tensor) -> Tensor:
    terms = (coef * point).flatten(1)
    value, count = terms.sum(1), terms.shape[1]
    error = terms.abs_().sum(1) * (gamma(count) * LOOSE)
    return below(value, error + count * TINY)


def ball_gain(gain: Tensor, p: float) -> Tensor:
    """(rows, balls) at least the norm dual to p of each ball's gain."""
    if p == 1:
        return gain.amax(-1)
    if p == inf:
        return gain.sum(-1) * (1 + gamma(gain.shape[-1]) + 4 * UNIT)
    largest = gain.amax(-1, keepdim=True)
    if p == 2 and bool(((largest > SMALL) & (largest < 1 / SMALL)).all()):
        # What underflow takes of squares is nothing against that of the largest.
        size = gain.shape[-1]
        return gain.square().sum(-1).sqrt() * (1 + gamma(size) + 16 * UNIT)
    share = gain / torch.where(largest > 0, largest, 1.0)  # squares stay in range
    if p == 2:
        norm = share.square().sum(-1).sqrt()
    else:
        total = _power(share, lambda a: a / (a - 1), p).upper.sum(-1) * LOOSE
        norm = _power(total, lambda a: (a - 1) / a, p).upper
    size = share.shape[-1]
    return norm * largest.squeeze(-1) * (1 + gamma(size) + 16 * UNIT) + size * TINY


def _cut_gain(region: Region, coef: Tensor, gain: Tensor) -> Tensor:
    """(rows, balls) at least max g . d over 0 <= d <= k, ||d||_p <= radius."""
    assert region.lower is not None and region.upper is not None
    room = torch.where(coef > 0, region.centre - region.lower, region.upper - region.centre)
    if region.scale is not None:
        positive = torch.where(region.scale > 0, region.scale, 1.0)
        room = torch.where(region.scale > 0, room / positive, 0.0)
    radius = region.radius[:, None, None]
    # No feature moves by more than the radius, however far its range goes.
    cap = region.balls(above(room).clamp(min=0)).minimum(above(radius))
    whole = gain * cap
    best = whole.sum(-1) * LOOSE + TINY
    if region.p == 1:
        # nu r + sum k relu(g - nu), for any nu >= 0
        order = gain.argsort(-1, descending=True)
        filled = cap.gather(-1, order).cumsum(-1)
        place = (filled <= radius).sum(-1, keepdim=True).clamp(max=gain.shape[-1] - 1)
        nu = gain.gather(-1, order).gather(-1, place)
        terms = cap * above(gain - nu).clamp(min=0)
        dual = nu.squeeze(-1) * radius.squeeze(-1) + terms.sum(-1)
        return torch.minimum(best, dual * LOOSE + TINY)
    if region.p == 2:
        # sum max (g d - nu d^2 / 2) + nu r^2 / 2, for any nu > 0
        nu = _multiplier(gain, cap, radius)
        # No squares of small numbers, which would underflow.
        free = gain * (gain / (2 * nu))
        full = gain * cap - (nu * cap) * cap / 2
        terms = torch.where(gain >= nu * cap, full, free)
        size = (whole + free) * (32 * UNIT)  # of what a term may lose, its choice included
        reach = radius.squeeze(-1)
        dual = (terms + size).sum(-1) + (nu.squeeze(-1) * reach) * reach / 2
        slack = (terms.abs() + size).sum(-1) * gamma(gain.shape[-1]) + TINY
        dual = above(dual, slack * LOOSE)
        return torch.where(torch.isfinite(dual), torch.minimum(best, dual), best)
    return torch.minimum(best, _power_gain(gain, cap, radius, region.p))


def _power_gain(gain: Tensor, cap: Tensor, radius: Tensor, p: float) -> Tensor:
    """sum max h(d) + nu r^p / p, h(d) = g d - nu d^p / p, for any nu > 0, in units of the radius.

    h is concave: over all d it is at most g^q / (q nu^(q-1)), and up to k at most what its tangent
    at k says. Powers come from Arb.
    """
    cap = torch.where(radius > 0, cap / radius * (1 + 4 * UNIT), 1.0).clamp(max=1.0)
    largest = gain.amax(-1, keepdim=True)
    share = torch.where(largest > 0, gain / torch.where(largest > 0, largest, 1.0), 0.0)
    share = share * (1 + 4 * UNIT)
    nu = _multiplier(share, cap, torch.ones_like(radius), p)
    # q = p / (p - 1), so 1 / q = (p - 1) / p and 1 - q = -1 / (p - 1)
    powers = (
        _power(share, lambda a: a / (a - 1), p).upper * _power(nu, lambda a: 1 / (1 - a), p).upper
    )
    free = powers * ((p - 1) / p) * (1 + 32 * UNIT)
    level, slope = _power(cap, lambda a: a, p), _power(cap, lambda a: a - 1, p)
    at_cap = share * cap - nu * level.lower / p + 16 * UNIT * (share * cap + nu)
    fall = (nu * slope.upper * (1 + 8 * UNIT) - share).clamp(min=0) * cap
    terms = torch.fmin(free, at_cap + fall + 16 * UNIT * (fall + nu)).clamp(min=0)
    dual = (terms.sum(-1) + (nu / p).squeeze(-1)) * LOOSE
    return dual * largest.squeeze(-1) * radius.squeeze(-1) * LOOSE + TINY


def _power(x: Tensor, exponent: Callable[[Any], Any], p: float) -> Enclosure:
    """x to a power made of p, which Arb computes, for x >= 0; 0 stays 0."""
    import flint

    number = exponent(flint.arb(p))
    return one_by_one(lambda c: c**number if c > 0 else flint.arb(0), x)


def _multiplier(gain: Tensor, cap: Tensor, radius: Tensor, p: float = 2.0) -> Tensor:
    """nu > 0 with ||min(k, (g / nu)^(1/(p-1)))||_p near the radius, by bisection."""
    high = gain.square().sum(-1, keepdim=True).sqrt() / radius.clamp(min=TINY)
    high = high.clamp(min=TINY) * 2.0**20
    low = high * 2.0**-90
    for _ in range(70):
        nu = (low * high).sqrt()
        step = cap.minimum((gain / nu) ** (1 / (p - 1)))
        far = (step**p).sum(-1, keepdim=True) > radius**p
        low, high = torch.where(far, nu, low), torch.where(far, high, nu)
    return high
