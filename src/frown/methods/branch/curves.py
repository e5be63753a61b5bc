"""Nodes of trees over chains of s-shaped layers: what FROWN does of one, with far fewer passes over
memory.

In a chain every neuron of every layer has rows on both sides, each with one slope per neuron
below. So the rows of all nodes stand together, node by node, and nothing is looked up: layer after
layer goes down and up while its numbers are near the processor. Intercepts come from the point
where a line touches, and leave rounding to the replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from frown.bounds.arithmetic.float import Float, halved_box, without_rows
from frown.bounds.first_layer import Start
from frown.bounds.forms import LinearForm
from frown.bounds.halfspace import Halfspace, Planes, best_factor
from frown.bounds.method import Bounds
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.walk import Given, walk
from frown.bounds.work import Work
from frown.graph.affine import Linear, Reshape
from frown.graph.intervals import Intervals
from frown.methods.frown.ascent import AGAIN, Ascent
from frown.methods.frown.network import Frown, FrownProof, SlopeTable, Tables
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed, above_of
from frown.relax.s_shaped import SShaped


def curve_of_chain(plan: Plan, method: Frown) -> SShaped | None:
    """The one function of all layers, where they are dense and a chain; None elsewhere."""
    output = plan.graph.output
    ops = {plan.relaxation(i) for i in plan.nonlinear}
    (op,) = ops if len(ops) == 1 else (None,)
    if not isinstance(op, SShaped) or not plan.chain(output) or method.group != 1 or method.wide:
        return None
    steps = plan.route(output)
    dense = all(step.affine is None or isinstance(step.affine, Linear | Reshape) for step in steps)
    sources = [plan.sources[i] for i in plan.nonlinear]
    shapes = [plan.graph.nodes[i].shape for i in sources]
    flat = all(prod(shape) == shape[-1] for shape in shapes)
    return op if dense and flat and len(set(sources)) == len(sources) else None


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's boxes, and slopes over them: those below at alpha a are base + a width, those above
    `rise` and `more` more than these. Of every node, or of every row."""

    low: Tensor
    high: Tensor
    first: Tensor  # the function's values at both ends
    last: Tensor
    base: Tensor
    width: Tensor
    rise: Tensor
    more: Tensor

    @classmethod
    def of(cls, relaxed: Relaxed) -> _Layer:
        below, above = relaxed.range.lower, relaxed.range.upper
        under, over = relaxed.range.widths
        (low, first), (high, last) = relaxed.anchors.points
        own = (low, high, first, last, below.lower, under, above.lower - below.lower, over - under)
        return cls(*(t.flatten(1) for t in own))

    def rows(self, index: Tensor) -> _Layer:
        """Repeat what is known of nodes for rows, which are of these nodes."""
        own = (self.low, self.high, self.first, self.last)
        more = (self.base, self.width, self.rise, self.more)
        return _Layer(*(t.index_select(0, index) for t in (*own, *more)))

    def slopes(self, above: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes at these alpha, below or `above`, as a proof has them; and how they grow."""
        width = torch.addcmul(self.width, above, self.more)
        slope = torch.addcmul(self.base, above, self.rise).addcmul_(alpha, width)
        return short(slope), width

    def intercepts(self, op: SShaped, above: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Intercepts of lines, and where lines touch."""
        touch = op.touching(slope).mul_(above.mul(2).sub_(1))
        touch = touch.maximum(self.low).minimum(self.high)
        inside = torch.addcmul(op.apply(touch), slope, touch, value=-1)
        first = torch.addcmul(self.first, slope, self.low, value=-1)
        last = torch.addcmul(self.last, slope, self.high, value=-1)
        least = torch.minimum(first, last).minimum(inside)
        most = torch.maximum(first, last, out=first).maximum(inside)
        return torch.lerp(least, most, above), touch


def short(numbers: Tensor) -> Tensor:
    """Slopes and multipliers as a proof has them: in half precision, where that holds them."""
    found = numbers.half().to(numbers.dtype)
    return found if bool(found.isfinite().all()) else numbers


class _Lifts:
    """Multipliers of rows at the few neurons that were cut: m z - max(m l, m u) is added."""

    def __init__(self, slot: Tensor, held: Tensor, low: Tensor, high: Tensor, m: Tensor) -> None:
        """slot (R, K) where; held (R, K) 1 or, where there is none, 0; m (R, slots)."""
        self.slot, self.held, self.low, self.high, self.slots = slot, held, low, high, m.shape[1]
        self.m = self.best = short(m.gather(1, slot).nan_to_num_(nan=0.0).mul_(held))
        self.unit: Tensor | None = None  # (R, K) of steps: the mean coefficient of the layer
        self.first = self.second = self.uphill = self.m

    def laid(self, m: Tensor) -> Tensor:
        """(R, slots) multipliers at their slots."""
        return m.new_zeros(len(m), self.slots).scatter_add_(1, self.slot, m)

    def see(self, arrived: Tensor) -> Tensor:
        """(R,) what they add where these (R, slots) arrive; the way up is known then."""
        z, m = arrived.gather(1, self.slot), self.m
        above, below = m.sign().relu_(), m.sign().neg_().relu_()
        nearest = z.maximum(self.low).minimum(self.high)
        end = torch.addcmul(nearest, above, self.high - nearest)
        end.addcmul_(below, self.low - nearest)
        away = z - end
        if self.unit is not None:
            self.uphill = away * self.unit * self.held
        return (m * away).sum(1)


class _Weights:
    """Factors of the planes that all rows of a node share, on their way up."""

    def __init__(self, planes: Planes, factors: Tensor) -> None:
        """Planes of every node; factors (nodes, rows of each, planes)."""
        self.planes, self.factors, self.best = planes, factors, factors
        size = planes.coef.abs().amax(2)
        unit = torch.where(size > 0, 1 / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
        self.unit = unit[:, None]
        self.first = self.second = self.uphill = factors

    @property
    def coef(self) -> Tensor:
        """(R, entries) to add to rows."""
        return torch.bmm(self.factors, self.planes.coef).flatten(0, 1)

    @property
    def const(self) -> Tensor:
        """(R,) to add to bounds."""
        return torch.bmm(self.factors, self.planes.const[..., None]).flatten()

    def see(self, z: Tensor) -> None:
        """Take in what the target is where rows are least."""
        nodes, rows, _ = self.factors.shape
        turned = self.planes.coef.transpose(1, 2)
        at = torch.baddbmm(self.planes.const[:, None], z.view(nodes, rows, -1), turned)
        self.uphill = at.mul_(self.unit)

    def move(self, least: Tensor, rate: float, ascent: Ascent, fresh: bool) -> None:
        """Move factors uphill; a row's derivatives below `least` (R,) hardly matter."""
        if fresh:
            self.first, self.second = self.uphill, self.uphill.square()
        else:
            self.first = torch.lerp(self.uphill, self.first, ascent.momentum)
            self.second = torch.lerp(self.uphill.square(), self.second, ascent.memory)
        size = self.second.sqrt() + least.view(*self.factors.shape[:2], 1)
        size.clamp_(min=torch.finfo(size.dtype).tiny)
        self.factors = (self.first * self.unit).div_(size).mul_(rate).add_(self.factors).relu_()


class _Climb:
    """Rows at a target on their way up."""

    def __init__(
        self,
        chain: CurveChain,
        target: int,
        coef: Tensor,
        start: Start,
        layers: Sequence[_Layer],
        alpha: Tensor,
    ) -> None:
        self.op, self.plan, self.target, self.start = chain.op, chain.plan, target, start
        self.coef, self.layers = coef, layers
        self.parts = list(chain.plan.slots(target)[0].values())
        # What was never tried begins in the middle.
        self.alpha = [alpha[:, part].nan_to_num(nan=0.5) for part in self.parts]
        self.best = list(self.alpha)
        self.route = chain.route(target, start.node)
        self.lifts: _Lifts | None = None
        self.weights: _Weights | None = None
        self.half: Halfspace | None = None
        self.factor: Tensor | None = None  # of the halfspace; None: to be found

    def run(self, ascent: Ascent, steps: int, work: Work) -> Tensor:
        """(R,) the best bound of every row, found where `best` is; as in `optimise`."""
        most = self.coef.new_full((len(self.coef),), -torch.inf)
        rate, tiny = ascent.rate, 16 * torch.finfo(most.dtype).tiny
        first: list[Tensor] = []
        second: list[Tensor] = []
        for step in range(steps + 1):
            work.clock.check()
            if step % AGAIN == 0 or step == steps:
                self.factor = None
            bound, uphill = self._evaluate(step < steps)
            self._keep(bound > most, step)
            most = torch.fmax(most, bound)
            if step == steps:
                break
            if not step:
                first, second = uphill, [own.square().add_(tiny) for own in uphill]
            else:
                for one, two, own in zip(first, second, uphill, strict=True):
                    one.lerp_(own, 1 - ascent.momentum)
                    two.mul_(ascent.memory).addcmul_(own, own, value=1 - ascent.memory)
            self._move(first, second, rate, ascent, not step)
            rate *= ascent.decay
        return most

    def _keep(self, better: Tensor, step: int) -> None:
        """Keep where these rows are."""
        lifts, weights = self.lifts, self.weights
        which = better.nonzero().flatten()
        if not step or len(which) == len(better):
            self.best = list(self.alpha)
            if lifts is not None:
                lifts.best = lifts.m
            if weights is not None:
                weights.best = weights.factors
            return
        for best, own in zip(self.best, self.alpha, strict=True):
            best.index_copy_(0, which, own.index_select(0, which))
        if lifts is not None:
            lifts.best = torch.where(better[:, None], lifts.m, lifts.best)
        if weights is not None:
            mask = better.view(*weights.factors.shape[:2], 1)
            weights.best = torch.where(mask, weights.factors, weights.best)

    def _move(
        self, first: list[Tensor], second: list[Tensor], rate: float, ascent: Ascent, fresh: bool
    ) -> None:
        """Move slopes, multipliers and factors uphill."""
        lifts = self.lifts
        sizes = [own.sqrt() for own in second]
        largest = torch.stack([size.amax(1) for size in sizes]).amax(0)
        if lifts is not None:
            own = lifts.uphill
            if fresh:
                lifts.first, lifts.second = own, own.square()
            else:
                lifts.first = torch.lerp(own, lifts.first, ascent.momentum)
                lifts.second = torch.lerp(own.square(), lifts.second, ascent.memory)
            size = lifts.second.sqrt()
            largest = largest.maximum(size.amax(1))
        # Slopes that hardly matter to a row stay: their derivatives may be mere rounding.
        least = largest.mul_(ascent.noise).clamp_(min=torch.finfo(largest.dtype).tiny)
        if lifts is not None and lifts.unit is not None:
            step = (lifts.first * lifts.unit).div_(size.add_(least[:, None]))
            lifts.m = short(step.mul_(rate).add_(lifts.m))
        if self.weights is not None:
            self.weights.move(least, rate, ascent, fresh)
        self.alpha = [
            torch.addcdiv(alpha, one, size.add_(least[:, None]), value=rate).clamp_(0, 1)
            for alpha, one, size in zip(self.alpha, first, sizes, strict=True)
        ]

    def _evaluate(self, uphill: bool) -> tuple[Tensor, list[Tensor]]:
        """(R,) bounds, and how they grow with every layer's slopes."""
        coef = self.coef if self.weights is None else self.coef + self.weights.coef
        head = _passed(self.route[-1], LinearForm(coef, coef.new_zeros(len(coef))))
        here = head.coef
        lifts = self.lifts
        laid = None if lifts is None else lifts.laid(lifts.m)
        sizes: list[Tensor] = []
        passed = []
        for k in range(len(self.layers) - 1, -1, -1):
            own = self.layers[k]
            above = above_of(here)
            slope, width = own.slopes(above, self.alpha[k])
            passed.append((here, above, width, slope))
            here = here * slope
            if lifts is not None and laid is not None:
                if uphill and lifts.unit is None:
                    sizes.append(here.abs().mean(1, keepdim=True).expand_as(here))
                here += laid[:, self.parts[k]]
            for linear in reversed(self.route[k]):
                (here,) = linear.pull_back(here)
        if sizes and lifts is not None:
            lifts.unit = torch.cat(sizes[::-1], 1).gather(1, lifts.slot)
        here = here.view(-1, *self.plan.graph.nodes[self.start.node].shape)
        form = self.start.moved(LinearForm(here, head.const), constants=False)
        return self._forth(head, form.coef, passed[::-1], uphill)

    def _forth(
        self,
        head: LinearForm,
        coef: Tensor,
        passed: list[tuple[Tensor, Tensor, Tensor, Tensor]],
        uphill: bool,
    ) -> tuple[Tensor, list[Tensor]]:
        """Send the points where forms are least up along the lines: what they give is the bound."""
        bound, half = head.const, self.half
        if half is not None:
            if self.factor is None:
                self.factor, coef = best_factor(coef, half, self.start.minimiser)
            else:
                factor = self.factor.view(-1, *([1] * (coef.dim() - 1)))
                coef = torch.addcmul(coef, factor, half.coef)
            bound = bound + self.factor * half.at(self.start.minimiser(coef))
        value, found, arrived = self.start.lowest(coef).flatten(1), [], []
        for own, route, (here, above, width, slope) in zip(
            self.layers, self.route, passed, strict=False
        ):
            for linear in route:
                value = linear.apply(value)
            intercept, touch = own.intercepts(self.op, above, slope)
            if uphill:
                found.append(torch.sub(value, touch).mul_(width).mul_(here))
            if self.lifts is not None:
                arrived.append(value)
            value = intercept.addcmul_(slope, value)
        bound = bound + (head.coef * value).sum(1)
        if self.lifts is not None:
            bound = bound + self.lifts.see(torch.cat(arrived, 1))
        if self.weights is not None:
            bound = bound + self.weights.const
            if uphill:
                for linear in self.route[-1]:
                    value = linear.apply(value)
                self.weights.see(value)
        return bound, found


@dataclass(frozen=True)
class CurveChain:
    """A chain of dense layers with one s-shaped function in between, and the method whose rows
    are climbed."""

    plan: Plan
    method: Frown
    op: SShaped

    def bound(
        self,
        region: Region,
        property: Property,
        tables: Tables,
        given: Given,
        half: Halfspace,
        work: Work,
    ) -> Bounds:
        """Bound nodes, each a sample, as `method` does from these tables; where it takes no steps,
        tables stay."""
        plan = self.plan
        lines = Float(plan, region, self.method.lines)

        def tighten(source: int, box: Intervals) -> Intervals:
            found = without_rows(plan, region, source, box, work)
            if found is not None:
                return halved_box(plan, region, half, source, found, work)
            count, size = len(box.lower), plan.graph.nodes[source].size
            one = torch.eye(size, dtype=box.lower.dtype)
            coef = torch.cat([one, -one]).repeat(count, 1)
            bound = self._rows(source, coef, region, lines.relaxed, tables, given, half, work)
            low, high = (t.view_as(box.lower) for t in bound.view(count, 2, size).unbind(1))
            return Intervals(torch.fmax(box.lower, low), torch.fmin(box.upper, -high))

        found = walk(lines, tighten, given)
        count, conditions = property.shape
        output = plan.graph.output
        coef = property.pick(torch.arange(count * conditions))
        bound = self._rows(output, coef, region, lines.relaxed, tables, given, half, work)
        literals = bound.view(count, conditions) + property.const
        return Bounds(found, literals, FrownProof(plan, self.method, tables), {})

    def route(self, target: int, first: int) -> list[list[Linear]]:
        """The layers before each nonlinear node below a target, from the node `first` on, and
        those after the last; tensors are flat, so that nothing is to be laid out anew."""
        found: list[list[Linear]] = [[]]
        for step in reversed(self.plan.route(target)):
            if step.node <= first:
                continue
            if step.affine is None:
                found.append([])
            elif isinstance(step.affine, Linear):
                found[-1].append(step.affine)
        return found

    def forms(
        self, target: int, coef: Tensor, alpha: Tensor, node: Tensor, relaxed: dict[int, Relaxed]
    ) -> dict[int, LinearForm]:
        """Forms of rows coef . target of these nodes at the input, 0, and at all sources on the
        way, along alpha (rows, lanes, slots)."""
        plan = self.plan
        below, (places, _) = plan.below(target), plan.slots(target)
        route = self.route(target, 0)
        lifts = short(alpha[:, -1].nan_to_num(nan=0.0)) if alpha.shape[1] > 1 else None
        form = _passed(route[-1], LinearForm(coef.flatten(1), coef.new_zeros(len(coef))))
        found = dict[int, LinearForm]()
        for k in range(len(below) - 1, -1, -1):
            own, part = _Layer.of(relaxed[below[k]]).rows(node), places[below[k]]
            here, const = form.coef, form.const
            above = above_of(here)
            slope = own.slopes(above, alpha[:, 0, part].nan_to_num(nan=0.5))[0]
            const = const + (here * own.intercepts(self.op, above, slope)[0]).sum(1)
            here = here * slope
            if lifts is not None:
                m = lifts[:, part]
                here = here + m
                const = const - torch.maximum(m * own.low, m * own.high).sum(1)
            form = found[plan.sources[below[k]]] = LinearForm(here, const)
            form = _passed(route[k], form)
        found[0] = LinearForm(form.coef.view(-1, *plan.graph.input_shape), form.const)
        return found

    def _rows(
        self,
        target: int,
        coef: Tensor,
        region: Region,
        relaxed: dict[int, Relaxed],
        tables: Tables,
        given: Given,
        half: Halfspace,
        work: Work,
    ) -> Tensor:
        """(R,) bounds of rows at a target, equally many of every node; their slopes are kept."""
        plan, nodes = self.plan, tables.samples
        each = len(coef) // nodes
        node = torch.arange(nodes).repeat_interleave(each)
        every = torch.arange(len(coef))
        (part,) = parts(plan, target, 0 if target == plan.graph.output else 1).parts
        planes, own_half = given.planes.get(target), None
        halved = part.halved(region, half, node, node * 0) if planes is None else None
        start = part.start(region, node, node * 0)
        if halved is not None:
            start, own_half = halved
        tables.whole = tables.whole or bool(self.method.ascent.steps)
        own = [_Layer.of(relaxed[i]) for i in plan.below(target)]
        marks = given.marks(plan, target)
        slots = plan.slots(target)[1]
        table = tables.table((target, 0), each, 1 if marks is None else 2, slots, coef)
        whole = torch.equal(table.place, every)
        alpha = table.rows if whole else table[every]
        climb = _Climb(self, target, coef, start, [o.rows(node) for o in own], alpha[:, 0])
        climb.half = own_half
        if marks is not None and bool(marks.any()):
            climb.lifts = _lifts(marks, own, node, alpha[:, -1])
        if planes is not None:
            known = tables.factors.get((target, 0))
            if known is None:
                known = coef.new_zeros(len(coef), planes.const.shape[1])
            climb.weights = _Weights(planes, known.view(nodes, each, -1))
        ascent, last = self.method.ascent, target == plan.graph.output
        steps, ascent = (
            ascent.of_margins(tables.rounds, slots)
            if last
            else ascent.of_neurons(tables.rounds, len(own))
        )
        bound = climb.run(ascent, steps, work)
        if not steps:
            return bound
        lanes = [torch.cat(climb.best, 1)]
        if marks is not None:
            lifts = climb.lifts
            lanes.append(torch.zeros_like(lanes[0]) if lifts is None else lifts.laid(lifts.best))
        tables.alpha[target, 0] = SlopeTable(every, torch.stack(lanes, 1))
        if climb.weights is not None:
            tables.factors[target, 0] = climb.weights.best.flatten(0, 1)
        return bound


def _lifts(marks: Tensor, layers: Sequence[_Layer], node: Tensor, m: Tensor) -> _Lifts:
    """Multipliers where neurons are marked (nodes, slots), which few are."""
    most = int(marks.sum(1).max())
    held, slot = marks.to(m.dtype).topk(most, 1)
    ends = (
        torch.cat(side, 1).gather(1, slot)[node] for side in zip(*((o.low, o.high) for o in layers))
    )
    low, high = ends
    return _Lifts(slot[node], held[node], low, high, m)


def _passed(layers: Sequence[Linear], form: LinearForm) -> LinearForm:
    """A form pulled back through neighbouring layers."""
    coef, const = form.coef, form.const
    for linear in reversed(layers):
        shift = linear.shift(coef)
        const = const if shift is None else const + shift
        (coef,) = linear.pull_back(coef)
    return LinearForm(coef, const)
