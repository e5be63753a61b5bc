"""FROWN over l_2 balls: rows bend, since no layer's inputs fill their boxes.

A row passes a layer along slopes and with curvatures, c f(z) >= g z + h - lambda/2 (z - z^)^2, and
what all neurons of a layer deviate together is bounded by an ellipsoid: its constant is the sum
of h less half of the greatest sum of lambda (z - z^)^2 (docs/mathematics.md). With lambda = 0 it is
FROWN's own line. Neurons inside have one curvature per layer, literals one per neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from frown.bounds.arithmetic.float import Float, without_rows
from frown.bounds.ellipsoid import Ellipsoid, Ellipsoids
from frown.bounds.first_layer import Start
from frown.bounds.forms import Chosen, begin, descend, form_of, push_forward
from frown.bounds.method import Bounds, Method, every
from frown.bounds.patches import Part, parts, shared
from frown.bounds.plan import Plan
from frown.bounds.proof import Choice, Request, State
from frown.bounds.rows import Rows, one_hot, unstable
from frown.bounds.rows import pieces as pieces_of
from frown.bounds.walk import Boxes, Given, Layers, walk
from frown.bounds.work import Clock, Work
from frown.graph.affine import Conv
from frown.graph.intervals import Intervals
from frown.methods.crown import crown_box, crown_literals
from frown.methods.frown.network import Frown, FrownProof, FrownState, Key, Tables, joined
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.curvature import Least, LinedPart, least, pieces
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import LeastArea, Relaxed, Rule

GRID = 5  # powers of two around the likely curvature that are tried first
TIGHT = 0.5  # of what a literal has at the centre is little
CERTAIN = 1.004  # times an estimate of an eigenvalue is taken for it
VECTORS, SHARP = 4, 30.0  # of the largest eigenvalues, and how far their mean is from the largest
COLD, WARM, DEPTH = 10, 1, 12  # products with a matrix that improve them
MOST = 8192  # neurons of convolutional networks in which rows bend unasked
DENSE = 2048  # and of others, where every neuron of a layer reads all of the layer before
MANY = 24  # unstable neurons of one layer: with fewer, rows gain a few hundredths by bending
_NOISE = 1e-2


@dataclass
class Bent:
    """Rows at one nonlinear node: what is fixed, and what one pass did."""

    relaxed: Relaxed
    centre: Tensor  # (rows or 1, *shape)
    ellipsoid: Ellipsoid
    each: bool = False  # whether every neuron has a curvature of its own
    top: Tensor | None = None  # (rows, U, vectors) of the largest eigenvalues

    def __post_init__(self) -> None:
        op, spread = self.relaxed.op, self.relaxed.range
        assert isinstance(op, Elementwise)
        self.pieces: tuple[LinedPart, ...] = pieces(op, self.relaxed.box)
        self.low = spread.lower.lower.minimum(spread.upper.lower)
        self.width = spread.lower.upper.maximum(spread.upper.upper) - self.low

    def begin(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        """CROWN's slopes, as alpha, and the best of a few curvatures, as logarithms."""
        rule = self.relaxed.lines.slopes
        slope = torch.where(coef >= 0, rule.lower, rule.upper)
        alpha = torch.where(self.width > 0, (slope - self.low) / self.width, slope)
        alpha = alpha.nan_to_num(nan=0.0).clamp(0, 1)
        back = coef * (self.low + alpha * self.width)
        loose = coef * (self.width > 0)
        tiny = torch.finfo(coef.dtype).tiny
        size = max(self.ellipsoid.size, 1e-30)
        unit = 0.5 * loose.flatten(1).norm(dim=1) / size**0.5
        unit = unit.clamp(min=tiny * 1e6)
        best, log = torch.full_like(unit, -torch.inf), unit.log()
        for k in range(-GRID, GRID + 1):
            own = unit * 2.0**k
            found = least(self.pieces, coef, back, _over(own, coef), self.centre)
            value = found.value.flatten(1).sum(1) - 0.5 * own * size
            log = torch.where(value > best, own.log(), log)
            best = torch.fmax(best, value)
        return alpha, _over(log, coef).expand_as(coef)

    def back(self, coef: Tensor, alpha: Tensor, log: Tensor) -> Tensor:
        """Turn coefficients of the node's output into those of its input."""
        self.coef, self.slope = coef, torch.addcmul(self.low, alpha, self.width)
        self.curvature = log.exp()
        return coef * self.slope

    def complete(self) -> None:
        back = self.coef * self.slope
        self.least: Least = least(self.pieces, self.coef, back, self.curvature, self.centre)
        away = self.least.touch - self.centre
        self.bend = 0.5 * self.curvature * away.square()
        self.most, self.growth = self._most()

    def line(self) -> Chosen:
        """The line that touches where the bent bound does."""
        touch, height = self.least.touch, self.least.height
        return Chosen(self.slope, torch.addcmul(height, self.slope, touch, value=-1))

    @property
    def gain(self) -> Tensor:
        """(rows,) what curvatures add to the value of lines."""
        return self.bend.flatten(1).sum(1) - 0.5 * self.most

    def uphill(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of bounds by alpha, and by the logarithms of curvatures."""
        slope = (self.coef * self.width * (z - self.least.touch)).flatten(1)
        bend = self.bend.flatten(1)
        if not self.each:
            return slope, (bend.sum(1, keepdim=True) - 0.5 * self.growth).expand_as(slope)
        growth = torch.zeros_like(slope)
        growth[:, self.ellipsoid.index] = 0.5 * self.growth
        return slope, bend - growth

    def _most(self) -> tuple[Tensor, Tensor]:
        """(rows,) the greatest sum of curvatures times deviations squared, and how it grows."""
        flat, own = self.curvature.flatten(1), self.ellipsoid
        if not self.each:
            most = flat[:, 0] * own.size
            return most, most[:, None]
        if not len(own.index):
            return flat.new_zeros(len(flat)), flat.new_zeros(len(flat), 0)
        value, top = _top(own, flat[:, own.index].sqrt(), self.top, WARM)
        self.top = top
        weight = torch.softmax(SHARP * value / value[:, -1:], 1) * value
        return value[:, -1], (top.square() * weight[:, None]).sum(2)

    def settled(self) -> Tensor:
        """(rows,) what curvatures add, with eigenvalues as exact as they are going to be."""
        own = self.ellipsoid
        if not self.each or not len(own.index):
            return self.gain
        root = self.curvature.flatten(1)[:, own.index].sqrt()
        return self.bend.flatten(1).sum(1) - 0.5 * CERTAIN * _largest(own, root, self.top)


def _largest(own: Ellipsoid, root: Tensor, start: Tensor | None) -> Tensor:
    """(rows,) the largest eigenvalues of root F F^T root, in the space of a few products."""
    basis = []
    for _ in range(DEPTH):
        _, start = _top(own, root, start, 1)
        basis.append(start)
    space = torch.linalg.qr(torch.cat(basis, 2))[0]
    scale = root[..., None]
    image = scale * own.spread(scale * space)
    value: Tensor = torch.linalg.eigvalsh((space.transpose(1, 2) @ image).double())
    return value[:, -1].to(root)


def _top(own: Ellipsoid, root: Tensor, start: Tensor | None, times: int) -> tuple[Tensor, Tensor]:
    """(rows, vectors) the largest eigenvalues of root F F^T root, in order, and their vectors.

    The singular values of A Y, with Y orthonormal, are at most those of A, and at least those of
    Y^T A Y: one product for each time, and none for the values.
    """
    if start is None:
        generator = torch.Generator().manual_seed(1)
        shape = (*root.shape, min(VECTORS, root.shape[1]))
        start = torch.randn(shape, generator=generator, dtype=torch.float64).to(root)
        start = start / root.shape[1] ** 0.5
        times += COLD
    scale, y = root[..., None], start
    for _ in range(times):
        y = scale * own.spread(scale * y)
        square, turn = torch.linalg.eigh(y.transpose(1, 2) @ y)
        least = square[:, -1:] * 1e-6 + torch.finfo(square.dtype).tiny
        value = square.maximum(least).sqrt()
        y = (y @ turn) / value[:, None]
    return value, y


def _over(t: Tensor, like: Tensor) -> Tensor:
    return t.view(-1, *([1] * (like.dim() - 1)))


@dataclass(frozen=True, slots=True)
class Ended:
    """The bounds of rows, and where they were found: alpha, and logarithms of curvatures."""

    bound: Tensor  # (rows,)
    alpha: Tensor  # (rows, 2, slots)


@dataclass
class BentAscent:
    """Settings of the ascents of rows that bend."""

    rate: float = 0.25  # first step of slopes, in units of their range
    pace: float = 0.5  # and of logarithms of curvatures
    decay: float = 0.92
    momentum: float = 0.5
    memory: float = 0.85


@dataclass
class BentRows:
    """Rows of a target, and the slopes and curvatures that they are at."""

    plan: Plan
    target: int
    coef: Tensor
    start: Start
    nodes: Mapping[int, Bent]
    alpha: Tensor  # (rows, 2, slots)
    clock: Clock
    fresh: bool = field(init=False)

    def __post_init__(self) -> None:
        self.head = begin(self.plan, self.target, self.coef)
        self.places, _ = self.plan.slots(self.target)
        self.fresh = bool(self.alpha.isnan().any())

    def ascend(self, ascent: BentAscent, steps: int) -> Ended:
        """Maximise every row's bound by a fixed number of steps; the best of each row is kept."""
        best = self.coef.new_full((len(self.coef),), -torch.inf)
        kept = self.alpha
        rate, pace = ascent.rate, ascent.pace
        first = second = torch.zeros(())
        tiny = 16 * torch.finfo(best.dtype).tiny
        for step in range(steps + 1):
            self.clock.check()
            bound, gradient = self._evaluate(step < steps)
            better = bound > best
            if step == 0:
                kept = self.alpha.clone()
            else:
                which = better.nonzero().flatten()
                kept.index_copy_(0, which, self.alpha.index_select(0, which))
            best = torch.fmax(best, bound)
            if gradient is None or not gradient.numel():
                break
            if step == 0:
                first, second = gradient, gradient.square().add_(tiny)
            else:
                first.lerp_(gradient, 1 - ascent.momentum)
                second.mul_(ascent.memory).addcmul_(gradient, gradient, value=1 - ascent.memory)
            size = second.sqrt()
            size.add_(size.amax(2, keepdim=True), alpha=_NOISE)
            move = first / size
            self.alpha = torch.stack(
                [
                    (self.alpha[:, 0] + rate * move[:, 0]).clamp_(0, 1),
                    self.alpha[:, 1] + pace * move[:, 1],
                ],
                1,
            )
            rate, pace = rate * ascent.decay, pace * ascent.decay
        if any(node.each for node in self.nodes.values()):
            self.alpha = kept
            best, _ = self._evaluate(False, settle=True)
        return Ended(best, kept)

    def _evaluate(self, gradient: bool, settle: bool = False) -> tuple[Tensor, Tensor | None]:
        fresh, alpha = self.fresh, self.alpha

        def through(i: int, here: Tensor) -> tuple[None, Tensor]:
            node, place = self.nodes[i], self.places[i]
            own, log = (alpha[:, k, place].view_as(here) for k in (0, 1))
            if fresh:
                first, bend = node.begin(here)
                lost = own.isnan()
                own, log = torch.where(lost, first, own), torch.where(lost, bend, log)
                alpha[:, 0, place], alpha[:, 1, place] = own.flatten(1), log.flatten(1)
            return None, node.back(here, own, log)

        start = self.start
        end = descend(self.plan, self.target, self.head, through, False, start.node)
        form = start.moved(form_of(self.plan, end, start.node), False)
        self.fresh = False
        for node in self.nodes.values():
            node.complete()
        lines = {i: node.line() for i, node in self.nodes.items()}
        arrived: dict[int, Tensor] = {}
        point = start.lowest(form.coef)
        values = push_forward(self.plan, self.target, point, lines, arrived.__setitem__, start.node)
        bound = self.head.at(values) + 0 * form.coef.flatten(1).sum(1)
        bound = bound + sum(node.settled() if settle else node.gain for node in self.nodes.values())
        if not gradient:
            return bound, None
        pairs = [self.nodes[i].uphill(arrived[i]) for i in self.places]
        both = [torch.cat(side, 1) for side in zip(*pairs, strict=True)]
        return bound, torch.stack(both, 1)


@dataclass(frozen=True)
class Curved(Method):
    """FROWN whose rows bend over l_2 balls; what straight rows prove is kept."""

    name: ClassVar[str] = "frown"
    singly: ClassVar[bool] = True
    lines: Rule
    inside: int = 8  # steps of neurons' ascents
    again: int = 4  # and from the second radius on
    even: int = 10  # of literals' with one curvature per layer
    margins: int = 30  # and of those with one per neuron
    ascent: BentAscent = field(default_factory=BentAscent)

    def start(self, samples: int) -> FrownState:
        return FrownState(Tables(samples))

    def bound(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        state: State | None = None,
        given: Given | None = None,
        work: Work = Work(),  # noqa: B008
    ) -> Bounds:
        own = state if isinstance(state, FrownState) else self.start(len(region.radius))
        numbers = every(region) if own.sample is None else own.sample
        values: dict[int, list[Intervals]] = {}
        literals = []
        for n in range(len(region.radius)):
            here = slice(n, n + 1)
            engine = _Curved(self, plan, region.rows(here), own.tables, numbers[here], work)
            layers, found = engine.run(property.rows(here))
            literals.append(found)
            for i, box in layers.values.items():
                values.setdefault(i, []).append(box)
        own.tables.rounds += 1
        joined = {
            i: Intervals(*(torch.cat([getattr(b, e) for b in boxes]) for e in ("lower", "upper")))
            for i, boxes in values.items()
        }
        empty = torch.zeros_like(region.radius, dtype=torch.bool)
        proof = CurvedProof(plan, Frown(), own.tables, own.sample, self.lines)
        return Bounds(Layers(joined, {}, empty), torch.cat(literals), proof, {})


def further(method: Method, plan: Plan) -> Curved | None:
    """The method that goes on from FROWN's radii, where rows may bend; None: it was not asked for,
    or does not pay."""
    if not isinstance(method, Frown) or method.curved == "never":
        return None
    if method.curved == "auto" and not pays(method, plan):
        return None
    return Curved(method.lines)


def pays(method: Frown, plan: Plan) -> bool:
    """True if rows may gain by bending in seconds rather than minutes, unless neurons share slopes
    to save time."""
    read = sum(
        plan.graph.nodes[source].size for source in {plan.sources[i] for i in plan.nonlinear}
    )
    return read <= (MOST if _convolved(plan) else DENSE) and method.group == 1


def gains(plan: Plan, boxes: Boxes, samples: int) -> Tensor:
    """(samples,) mask of the samples whose rows are likely to gain much by bending, given boxes at
    a radius.

    Those of convolutional networks are: layers deviate from the centre in far more directions than
    one ball can reach. So do other layers in which many neurons are unstable.
    """
    most = torch.zeros(samples, dtype=torch.long)
    for source, box in boxes.items():
        if plan.graph.nodes[source].size < MANY:
            continue
        sample, _ = unstable(plan, source, box)
        most = most.maximum(torch.bincount(sample.cpu(), minlength=samples))
    return (most >= MANY) | _convolved(plan)


def _convolved(plan: Plan) -> bool:
    return any(isinstance(node.op, Conv) for node in plan.graph.nodes)


@dataclass(frozen=True)
class _Curved:
    """The bounds of one sample."""

    method: Curved
    plan: Plan
    region: Region
    tables: Tables
    sample: Tensor  # (1,) its number in the tables
    work: Work

    def run(self, property: Property) -> tuple[Layers, Tensor]:
        plan, region, work = self.plan, self.region, self.work
        lines = Float(plan, region, self.method.lines)
        ellipsoids = Ellipsoids(plan, region, work)

        def tighten(source: int, box: Intervals) -> Intervals:
            work.clock.check()
            found = without_rows(plan, region, source, box, work)
            if found is not None:
                return found
            box = box.meet(crown_box(plan, region, source, box, lines.relaxed, work))
            self._know(ellipsoids, source, lines.relaxed)
            return self._neurons(source, box, lines.relaxed, ellipsoids)

        layers = walk(lines, tighten)
        self._know(ellipsoids, plan.graph.output, lines.relaxed)
        found = self._literals(property, lines.relaxed, ellipsoids)
        return layers, torch.fmax(found, crown_literals(plan, region, property, layers, work))

    def _literals(
        self, property: Property, relaxed: dict[int, Relaxed], ellipsoids: Ellipsoids
    ) -> Tensor:
        """(1, literals) bounds of a property. All bend by one curvature per layer; those that this
        leaves little of, by one per neuron."""
        plan, method, (count, literals) = self.plan, self.method, property.shape
        target = plan.graph.output
        shape = plan.graph.nodes[target].shape
        rows = Rows.literals(count, literals, self.sample.device)
        (part,) = parts(plan, target, 0).parts
        coef = property.pick(slice(0, len(rows))).view(-1, *shape)
        const = property.const.expand(count, literals).flatten()
        clean = (coef * ellipsoids.centre[target]).flatten(1).sum(1) + const

        def bounds(which: Tensor, each: bool, steps: int) -> Tensor:
            none = torch.zeros_like(which)
            known = const.new_full((len(which),), -torch.inf)
            bent = partial(Bent, each=each)
            own = coef[which], none, which, literals
            found = self._rows(part, (target, 0), *own, relaxed, ellipsoids, known, bent, steps)
            return found + const[which]

        table = self.tables.table((target, 0), literals, 2, plan.slots(target)[1], coef)
        at = table.at(self.sample * literals + rows.neuron)
        apart = self._apart(table.rows[at])
        found = torch.full_like(const, -torch.inf)
        even = (~apart).nonzero().flatten()
        if len(even):
            found[even] = bounds(even, False, method.even)
        few = (apart | ~(found > TIGHT * clean)).nonzero().flatten()
        if len(few):
            before = table.rows[at[few]]
            bound = bounds(few, True, method.margins)
            less = (bound < found[few]).nonzero().flatten()
            table.rows.index_copy_(0, at[few[less]], before[less])
            found[few] = torch.fmax(found[few], bound)
        return found.view(count, literals)

    def _apart(self, alpha: Tensor) -> Tensor:
        """(rows,) whether neurons of a layer have curvatures of their own."""
        found = torch.zeros(len(alpha), dtype=torch.bool, device=alpha.device)
        for place in self.plan.slots(self.plan.graph.output)[0].values():
            log = alpha[:, 1, place]
            found |= (log != log[:, :1]).any(1) & log.isfinite().all(1)
        return found

    def _know(self, ellipsoids: Ellipsoids, target: int, relaxed: dict[int, Relaxed]) -> None:
        for i in self.plan.below(target):
            if i not in ellipsoids.nodes:
                ellipsoids.add(i, relaxed[i])

    def _neurons(
        self, source: int, box: Intervals, relaxed: dict[int, Relaxed], ellipsoids: Ellipsoids
    ) -> Intervals:
        sample, neuron = unstable(self.plan, source, box)
        split = parts(self.plan, source, 1, self.work.clock)
        steps = self.method.inside if self.tables.rounds == 0 else self.method.again
        found = box
        for k, part, index in split.split(neuron):
            rows, blocks = Rows.both(sample[index], neuron[index]), split.blocks[k]
            slot = rows.side * blocks + split.block[rows.neuron]
            (place, entry), known = split.where(rows.neuron), rows.of(box)
            sign, least = rows.sign(known.dtype), []
            for piece in pieces_of(part.plan, part.target, len(rows), self.work):
                coef = one_hot(entry[piece], sign[piece], part.neurons.shape[1], part.shape)
                bound = self._rows(
                    part,
                    (source, k),
                    coef,
                    place[piece],
                    slot[piece],
                    2 * blocks,
                    relaxed,
                    ellipsoids,
                    known[piece],
                    Bent,
                    steps,
                )
                least.append(bound)
            found = rows.tighten(found, torch.cat(least))
        return found

    def _rows(
        self,
        part: Part,
        table: Key,
        coef: Tensor,
        place: Tensor,
        slot: Tensor,
        slots: int,
        relaxed: dict[int, Relaxed],
        ellipsoids: Ellipsoids,
        known: Tensor,
        bent: Callable[[Relaxed, Tensor, Ellipsoid], Bent],
        steps: int,
    ) -> Tensor:
        """Optimise rows, starting from and saving to the tables."""
        count = len(coef)
        none = torch.zeros_like(place)
        nodes = {}
        for i, (origin, own) in part.nodes(relaxed, none, place).items():
            centre = part.entries(ellipsoids.at(origin), i, place)
            nodes[i] = bent(own, centre, ellipsoids.nodes[origin])
        key = self.sample * slots + slot
        slopes = self.tables.table(table, slots, 2, part.plan.slots(part.target)[1], coef)
        at = slopes.at(key)
        start = part.start(self.region, none, place)
        rows = BentRows(
            part.plan, part.target, coef, start, nodes, slopes.rows[at], self.work.clock
        )
        ascent = self.method.ascent
        if self.tables.rounds > 0:
            ascent = replace(ascent, rate=ascent.rate / 2, pace=ascent.pace / 2)
        found = rows.ascend(ascent, steps)
        at, bound = at[:count], found.bound[:count]
        slopes.rows.index_copy_(0, at, found.alpha[:count])
        slopes.rows.index_fill_(0, at[~(bound >= known)], torch.nan)
        return bound


@dataclass(frozen=True)
class CurvedProof(FrownProof):
    """Slopes and curvatures, rounded to single precision."""

    lines: Rule = field(default_factory=LeastArea)

    @property
    def rule(self) -> Rule:
        return self.lines

    @property
    def bends(self) -> bool:
        return True

    def take(self, index: Tensor) -> CurvedProof:
        return CurvedProof(
            self.plan, self.method, self.tables.take(self._own(index)), None, self.lines
        )

    @classmethod
    def cat(cls, proofs: Sequence[FrownProof]) -> CurvedProof:
        first = proofs[0]
        assert isinstance(first, CurvedProof)
        tables = joined([proof.tables for proof in proofs])
        return CurvedProof(first.plan, first.method, tables, None, first.lines)

    def blank(self, samples: int) -> CurvedProof:
        return CurvedProof(self.plan, self.method, Tables(samples), None, self.lines)

    def state(self) -> State | None:  # type: ignore[override]
        """Nothing: where rounding breaks a proof, a smaller radius is tried."""
        return None

    def ready(self, plan: Plan, source: int) -> Tensor | None:
        return None

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        target = self._origin(plan)[request.target]
        slots = plan.slots(request.target)[1]
        if not slots or slots != self.plan.slots(target)[1]:
            return None
        if request.target == plan.graph.output:
            table = self.tables.alpha.get((target, 0))
            if table is None:
                return None
            literals = len(table) // self.tables.samples
            alpha = table[self._own(request.rows.sample) * literals + request.rows.neuron]
        else:
            found = self._table(target, request)
            if found is None:
                return None
            alpha = found
        alpha, (places, _) = alpha.to(request.coef), plan.slots(request.target)
        index = shared(request.rows.sample)

        def slope(i: int, here: Tensor) -> Tensor:
            spread = request.relaxed[i].range.rows(index)
            low = spread.lower.lower.minimum(spread.upper.lower)
            high = spread.lower.upper.maximum(spread.upper.upper)
            own = alpha[:, 0, places[i]].view(-1, *low.shape[1:])
            return torch.addcmul(low, own, high - low).float().double()

        def curvature(i: int) -> Tensor:
            return alpha[:, 1, places[i]].exp().float().double().nan_to_num(nan=0.0, posinf=0.0)

        return Choice(slope, False, None, curvature)
