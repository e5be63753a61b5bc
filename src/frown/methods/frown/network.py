"""FROWN over a whole network: every bound of every neuron has its own lines.

`Frown` is the method. Its state holds the alpha where ascents ended, by row, and so does its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

import torch
from torch import Tensor

from frown.bounds.arithmetic.float import Float, halved_box, without_rows
from frown.bounds.halfspace import Halfspace, Planes
from frown.bounds.method import Bounds, Bytes, Method, every
from frown.bounds.patches import ActivePart, Part, active_part, of_convolution, parts, shared
from frown.bounds.plan import Plan, per_plan, stacked
from frown.bounds.proof import Choice, Proof, Request, State
from frown.bounds.rows import Rows, at_once, broad, one_hot, pieces, unstable
from frown.bounds.walk import Given, Layers, walk
from frown.bounds.work import Work
from frown.graph.affine import repeated
from frown.graph.intervals import Intervals
from frown.methods.crown import RULES, Crown, crown_box, crown_layers, crown_literals
from frown.methods.frown.ascent import Ascent, RowBatch, optimise, slopes_of
from frown.problem.options import Option, check_options
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed, Rule
from frown.relax.s_shaped import SShaped

Key = tuple[int, int]  # a node, the number of its part


@dataclass
class SlopeTable:
    """Alpha by key (samples * groups), stored for keys that rows have been asked for: in wide
    layers most neurons are stable, and have none."""

    place: Tensor  # (keys,) where in `rows` a key's numbers are; -1: nowhere
    rows: Tensor  # (stored, lanes, slots) NaN where nothing better than CROWN's lines is known

    @classmethod
    def blank(cls, keys: int, lanes: int, slots: int, like: Tensor) -> SlopeTable:
        """A table without any row."""
        place = torch.full((keys,), -1, device=like.device)
        return cls(place, like.new_empty(0, lanes, slots))

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, keys: Tensor) -> Tensor:
        """(len(keys), lanes, slots) alpha of these keys; NaN where there is none."""
        at = self.place[keys]
        if not len(self.rows):
            return self.rows.new_full((len(at), *self.rows.shape[1:]), torch.nan)
        missing = (at < 0).view(-1, 1, 1)
        return self.rows[at.clamp(min=0)].masked_fill_(missing, torch.nan)

    @property
    def lanes(self) -> int:
        return self.rows.shape[1]

    @property
    def known(self) -> Tensor:
        """(keys,) whether alpha of a key is known."""
        own = self.rows.new_zeros(len(self.rows) + 1, dtype=torch.bool)  # the last: of no row
        own[:-1] = ~torch.isnan(self.rows[:, 0, -1])  # the last node is in all rows
        return own[self.place]

    def at(self, keys: Tensor) -> Tensor:
        """(len(keys),) where in `rows` the numbers of keys are, with room made for new ones."""
        at = self.place[keys]
        if bool((at < 0).any()):
            new, stored = torch.unique(keys[at < 0]), len(self.rows)
            self.place[new] = torch.arange(stored, stored + len(new), device=new.device)
            more = self.rows.new_full((len(new), *self.rows.shape[1:]), torch.nan)
            self.rows = torch.cat([self.rows, more]) if stored else more
            at = self.place[keys]
        return at

    def padded(self, lanes: int) -> SlopeTable:
        """A table with a lane of multipliers 0 where there was none."""
        return SlopeTable(self.place, _padded(self.rows, lanes))

    def take(self, keys: Tensor) -> SlopeTable:
        """A copy of the tables of these keys."""
        place = self.place[keys]
        kept = (place >= 0).nonzero().flatten()
        own = torch.full_like(place, -1)
        own[kept] = torch.arange(len(kept), device=kept.device)
        return SlopeTable(own, self.rows[place[kept]])

    def to(self, device: torch.device) -> SlopeTable:
        """The table on another device."""
        return SlopeTable(self.place.to(device), self.rows.to(device))

    def numel(self) -> int:
        return self.rows.numel()


@dataclass
class Tables:
    """Alpha where ascents ended, for the next radius to start from.

    Per bounded node and part of it a table (samples * groups, lanes, slots) of alpha, NaN where
    nothing has been tried, or nothing was better than CROWN's lines; of the last node, the output,
    one group per literal.
    """

    samples: int
    rounds: int = 0  # radii tried so far
    alpha: dict[Key, SlopeTable] = field(default_factory=dict)
    factors: dict[Key, Tensor] = field(default_factory=dict)  # (samples * groups, planes)
    tight: Tables | None = None  # of the narrow search that a wide one builds on
    whole: bool = False  # every table has all of its rows, in order

    def table(self, key: Key, groups: int, lanes: int, slots: int, like: Tensor) -> SlopeTable:
        """The table of a key, which may be new."""
        if key not in self.alpha:
            self.alpha[key] = SlopeTable.blank(self.samples * groups, lanes, slots, like)
        elif self.alpha[key].lanes < lanes:  # multipliers have come in
            self.alpha[key] = self.alpha[key].padded(lanes)
        return self.alpha[key]

    def filled(self, alpha: Tensor, key: Key, rows: Tensor) -> Tensor:
        """Some rows of a table; a wide search starts where the narrow one ended.

        It has nothing beyond the range then.
        """
        if self.tight is None or key not in self.tight.alpha:
            return alpha
        narrow = self.tight.alpha[key][rows]
        sides = alpha.shape[1] // 2  # a lane of multipliers is one more
        start = torch.cat([narrow[:, :sides], torch.zeros_like(narrow[:, :sides])], 1)
        if alpha.shape[1] > 2 * sides:
            more = narrow.shape[1] > sides
            last = narrow[:, -1:] if more else torch.zeros_like(narrow[:, :1])
            start = torch.cat([start, last], 1)
        return torch.where(torch.isnan(alpha), start, alpha)

    def to(self, device: torch.device) -> Tables:
        """The tables on another device."""
        alpha = {key: table.to(device) for key, table in self.alpha.items()}
        factors = {key: one.to(device) for key, one in self.factors.items()}
        tight = None if self.tight is None else self.tight.to(device)
        return replace(self, alpha=alpha, factors=factors, tight=tight)

    def take(self, index: Tensor, rounds: int = 0) -> Tables:
        """A copy of these samples' tables, as after so many radii."""
        alpha = {}
        for key, table in self.alpha.items():
            groups = len(table) // self.samples
            every = torch.arange(groups, device=index.device)
            alpha[key] = table.take((index[:, None] * groups + every).flatten())
        factors = {}
        for key, one in self.factors.items():
            shape = (self.samples, len(one) // self.samples, one.shape[1])
            factors[key] = one.view(shape).index_select(0, index).flatten(0, 1)
        tight = None if self.tight is None else self.tight.take(index, rounds)
        return Tables(len(index), rounds, alpha, factors, tight)


def joined(tables: Sequence[Tables]) -> Tables:
    """The tables of all samples of several, in order."""
    if len(tables) == 1:
        return tables[0]
    alpha = {}
    for key in {key: None for one in tables for key in one.alpha}:
        known = next(one for one in tables if key in one.alpha)
        like = known.alpha[key].rows
        groups = len(known.alpha[key]) // known.samples
        lanes = max(one.alpha[key].lanes for one in tables if key in one.alpha)
        places, rows, stored = [], [], 0
        for one in tables:
            blank = SlopeTable.blank(one.samples * groups, lanes, like.shape[2], like)
            own = one.alpha.get(key, blank).padded(lanes)
            places.append(torch.where(own.place < 0, -1, own.place + stored))
            rows.append(own.rows)
            stored += len(own.rows)
        alpha[key] = SlopeTable(torch.cat(places), torch.cat(rows))
    factors = {}
    for key in {key: None for one in tables for key in one.factors}:
        known = next(one for one in tables if key in one.factors)
        groups, planes = len(known.factors[key]) // known.samples, known.factors[key].shape[1]
        none = [known.factors[key].new_zeros(one.samples * groups, planes) for one in tables]
        factors[key] = torch.cat(
            [one.factors.get(key, blank) for one, blank in zip(tables, none, strict=True)]
        )
    narrow = [one.tight for one in tables if one.tight is not None]
    tight = joined(narrow) if len(narrow) == len(tables) else None
    return Tables(sum(one.samples for one in tables), tables[0].rounds, alpha, factors, tight)


@dataclass
class FrownState(State):
    """The ends of the ascents of some samples; `sample` (N,) are their numbers in the tables."""

    tables: Tables
    sample: Tensor | None = None  # None: all of them

    def at(self, sample: Tensor) -> FrownState:
        return FrownState(self.tables, sample if self.sample is None else self.sample[sample])


ONCE = 20  # steps of every ascent, but those of wide layers, where there is one region only
FEW_ONCE = 7  # and at least so many there
WIDE = 1 << 13  # slopes of a layer's neurons; of fewer, ascents cost calls more than arithmetic


@dataclass(frozen=True)
class Frown(Method):
    """FROWN: every bound of every neuron has slopes of its own in all earlier layers.

    Args:
        group: neurons that share their slopes (0: a whole layer): cheaper on wide layers, looser.
        wide: search slopes beyond those of the tightest lines: slower, rarely tighter.
        rule: CROWN's lines, where ascents start: "area" or "paper".
        steps: ascent steps of every row at every radius, as in the paper (30 are plenty); None:
            the default schedule, with few for the neurons of wide layers.
        curved: go on with rows that bend, over l_2 balls and for piecewise linear activations:
            radii of convolutional networks are two to three times as large, and take seconds each.
            "auto": where that pays, which is in convolutional networks of up to 8192 neurons, and
            in others of up to 2048 for inputs with 24 unstable neurons in one layer, unless neurons
            share slopes, time is limited or execution is covered; "always", "never".
        ascent: all settings of the ascents.

    Raises InvalidInput for values that make no sense. Not for a quick look at a large network:
    `Crown` costs a fraction.
    """

    name: ClassVar[str] = "frown"
    group: Annotated[
        int,
        Option(
            "neurons that share slopes (0: a whole layer)",
            least=0,
            metavar="K|layer",
            words=(("layer", 0),),
        ),
    ] = 1
    wide: Annotated[bool, Option("search all slopes, not only the tightest lines'")] = False
    rule: Annotated[str, Option("CROWN's lines: least area, or the paper's", tuple(RULES))] = "area"
    steps: Annotated[
        int | None, Option("steps of every ascent (default: as many as usually pay)", least=1)
    ] = None
    curved: Annotated[
        str,
        Option(
            "rows that bend over l_2 balls: larger radii, slower (auto: where it pays)",
            ("auto", "always", "never"),
        ),
    ] = "auto"
    ascent: Ascent = field(default_factory=Ascent)

    def __post_init__(self) -> None:
        check_options(self)
        if self.steps is not None:
            count = self.steps
            ascent = replace(self.ascent, steps=count, more=count, few=count)
            object.__setattr__(self, "ascent", ascent)

    @property
    def lines(self) -> Rule:
        """CROWN's rule, where ascents start."""
        return RULES[self.rule]

    @property
    def before(self) -> Method:
        return Crown(self.rule)

    @property
    def glance(self) -> Frown | None:
        """A variant with fewer, larger steps; groups get all, their slopes are harder to find."""
        if self.group != 1:
            return None
        return replace(self, steps=None, ascent=self.ascent.glance)

    @property
    def once(self) -> Frown:
        if self.steps is not None:
            return self
        few = max(FEW_ONCE, self.ascent.few)
        return replace(self, ascent=replace(self.ascent, steps=ONCE, more=ONCE, few=few))

    def start(self, samples: int) -> FrownState:
        return FrownState(Tables(samples))

    def kept_bytes(self, plan: Plan) -> Bytes:
        likely = certain = 0
        for source in {plan.sources[i] for i in plan.nonlinear} | {plan.graph.output}:
            groups = -(-2 * plan.graph.nodes[source].size // (self.group or 1 << 40)) + 2
            table = groups * plan.slots(source)[1] * plan.graph.dtype.itemsize
            likely += table
            certain += 0 if of_convolution(plan, source) else table  # patches read far less
        return Bytes(likely, certain)

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
        sample = every(region) if own.sample is None else own.sample
        found = frown(plan, region, property, self, own.tables, sample, work, given)
        proof = FrownProof(plan, self, own.tables, own.sample)
        return Bounds(found.layers, found.literals, proof, {})


@dataclass(frozen=True)
class FrownProof(Proof):
    """FROWN's slopes, from where its ascents ended.

    They are rounded to single precision, which is how certificates keep them.
    """

    plan: Plan  # that was bounded
    method: Frown
    tables: Tables
    sample: Tensor | None = None  # which of the tables; None: all of them

    @property
    def rule(self) -> Rule:
        return self.method.lines

    @property
    def wide(self) -> bool:
        return self.method.wide

    def take(self, index: Tensor) -> FrownProof:
        return FrownProof(self.plan, self.method, self.tables.take(self._own(index)))

    @classmethod
    def cat(cls, proofs: Sequence[FrownProof]) -> FrownProof:
        first = proofs[0]
        assert all(proof.sample is None for proof in proofs)
        return cls(first.plan, first.method, joined([proof.tables for proof in proofs]))

    def blank(self, samples: int) -> FrownProof:
        return FrownProof(self.plan, self.method, Tables(samples))

    def to(self, device: torch.device) -> Self:
        if device == self.plan.graph.device:
            return self
        sample = None if self.sample is None else self.sample.to(device)
        plan, tables = self.plan.on(device), self.tables.to(device)
        return replace(self, plan=plan, tables=tables, sample=sample)

    def state(self) -> FrownState:
        """A start for further ascents at the same radii, as after one of them."""
        numbers = torch.arange(self.tables.samples, device=self.plan.graph.device)
        own = numbers if self.sample is None else self.sample
        return FrownState(self.tables.take(own, rounds=1))

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        bounded, tables = self.plan, self.tables
        target = self._origin(plan)[request.target]
        slots = plan.slots(request.target)[1]
        if not slots or slots != bounded.slots(target)[1]:
            return None
        last = request.target == plan.graph.output
        grouped = self.method.group != 1 and not last
        if last:
            table = tables.alpha.get((target, 0))
            if table is None:
                return None
            literals = len(table) // tables.samples
            key = self._own(request.rows.sample) * literals + request.rows.neuron
            alpha = tables.filled(table[key], (target, 0), key)
        else:
            if bounded.graph.nodes[target].size != plan.graph.nodes[request.target].size:
                return None
            found = self._table(target, request)
            if found is None:
                return None
            alpha = found
        index = shared(request.rows.sample)
        relaxed = stacked(plan, request.target, request.relaxed, len(request.coef))
        whole = all(map(_finite, relaxed))
        relaxed = tuple(f.rows(index) for f in relaxed)
        group = torch.arange(len(request.coef)) if grouped else None
        alpha, count = alpha.to(request.coef), len(request.coef)
        slopes = slopes_of(plan, request.target, relaxed, group, alpha, count)

        def slope(i: int, here: Tensor) -> Tensor:
            own = slopes(i, here).float().double()
            return own if len(own) == count else own.expand(count, *own.shape[1:])

        factors = None
        if not last and (target, 0) in tables.factors:
            factors = tables.factors[target, 0][self.key(target, request.rows)].double()
        multiplier = self._multiplier(plan, request.target, alpha, grouped)
        return Choice(slope, whole, multiplier, factors=factors)

    def key(self, target: int, rows: Rows) -> Tensor:
        """The places of neurons' rows in the tables of a node that is one part."""
        split = parts(self.plan, target, self.method.group)
        slot = rows.side * split.blocks[0] + split.block[rows.neuron]
        return self._own(rows.sample) * (2 * split.blocks[0]) + slot

    def _multiplier(
        self, plan: Plan, target: int, alpha: Tensor, grouped: bool
    ) -> Callable[[int], Tensor | None] | None:
        """The multipliers in the last of these lanes (rows, lanes, slots), where there are any."""
        if alpha.shape[1] == (2 if grouped else 1) * (2 if self.wide else 1):
            return None
        m, (places, _) = alpha[:, -1].nan_to_num(nan=0.0).float().double(), plan.slots(target)

        def multiplier(i: int) -> Tensor | None:
            (source,) = plan.graph.nodes[i].inputs
            own = m[:, places[i]]
            return own.view(-1, *plan.graph.nodes[source].shape) if bool(own.any()) else None

        return multiplier

    def ready(self, plan: Plan, source: int) -> Tensor | None:
        found = self._origin(plan)[source]
        if self.method.group != 1 or not plan.elementwise(source):
            return None
        if plan.slots(source)[1] != self.plan.slots(found)[1]:
            return None
        numbers = torch.arange(self.tables.samples, device=self.plan.graph.device)
        own = numbers if self.sample is None else self.sample
        return tried(self.plan, found, self.tables, self.method, own)

    def _own(self, sample: Tensor) -> Tensor:
        """The samples' numbers in the tables."""
        return sample if self.sample is None else self.sample[sample]

    def _origin(self, plan: Plan) -> dict[int, int]:
        """The node of the bounded network for every nonlinear node of the replayed one."""
        origin = {plan.graph.output: self.plan.graph.output}
        for i, j in zip(plan.nonlinear, self.plan.nonlinear, strict=True):
            origin[plan.sources[i]] = self.plan.sources[j]
        return origin

    def _table(self, target: int, request: Request) -> Tensor | None:
        """(rows, lanes, slots) where the ascents of these neurons' groups ended."""
        split = parts(self.plan, target, self.method.group)
        slots, found = self.plan.slots(target)[1], None
        tables = (self.tables.alpha.get((target, k)) for k in range(len(split.parts)))
        lanes = max((table.lanes for table in tables if table is not None), default=0)
        for k, part, index in split.split(request.rows.neuron):
            table = self.tables.alpha.get((target, k))
            if table is None:
                continue
            rows, blocks = request.rows.take(index), split.blocks[k]
            slot = rows.side * blocks + split.block[rows.neuron]
            place, key = split.place[rows.neuron], self._own(rows.sample) * (2 * blocks) + slot
            alpha = part.spread(self.tables.filled(table[key], (target, k), key), place, slots)
            if found is None:
                found = alpha.new_full((len(request.rows), lanes, slots), torch.nan)
            found[index] = _padded(alpha, lanes)
        return found


def _padded(alpha: Tensor, lanes: int) -> Tensor:
    """(rows, lanes, slots) with a lane of multipliers 0 where there was none."""
    if alpha.shape[1] == lanes:
        return alpha
    return torch.cat([alpha, torch.zeros_like(alpha[:, :1])], 1)


def _finite(relaxed: Relaxed) -> bool:
    low, high = relaxed.range.lower, relaxed.range.upper
    total = low.lower.abs() + low.upper.abs() + high.lower.abs() + high.upper.abs()
    total = total if relaxed.excess is None else total + relaxed.excess
    return bool(total.isfinite().all())


@dataclass(frozen=True)
class Frowned:
    """FROWN's layers and literals."""

    layers: Layers
    literals: Tensor  # (N, T)


def frown(
    plan: Plan,
    region: Region,
    property: Property,
    method: Frown,
    tables: Tables,
    sample: Tensor,  # (N,) which samples of the tables these are
    work: Work,
    given: Given | None = None,
) -> Frowned:
    """Bounds of every layer and of the property with optimised lines.

    Never looser than what they start from: CROWN's bounds or, for the wider search space,
    those of the narrow one. From the second radius on rows start from slopes that were better
    than CROWN's at the first; only where there are none, CROWN's lines come first.
    """
    base = None
    if method.wide:
        tables.tight = tables.tight or Tables(tables.samples)
        narrow = replace(method, wide=False)
        base = frown(plan, region, property, narrow, tables.tight, sample, work, given)
    elif tables.rounds == 0:
        crown = crown_layers(plan, region, method.lines, work, given)
        base = Frowned(crown, crown_literals(plan, region, property, crown, work))
    engine = _Engine(plan, region, method, tables, sample, work, given)

    lines = Float(plan, region, method.lines, method.wide)

    def tighten(source: int, box: Intervals) -> Intervals:
        """May be crossed where rows contradict the box."""
        if base is not None:
            box = box.meet(base.layers.values[source])
            return engine.neurons(source, box, lines.relaxed) if plan.below(source) else box
        found = without_rows(plan, region, source, box, work)
        if found is not None:
            half = None if given is None else given.half
            return found if half is None else halved_box(plan, region, half, source, found, work)
        if not engine.begins_at_crown(source) or engine.wide_layer(source):
            new = ~tried(plan, source, tables, method, sample)
            found = crown_box(plan, region, source, box, lines.relaxed, work, new)
            box = box.meet(found)
        own = engine.neurons(source, box, lines.relaxed)
        if found is None:
            return own
        return Intervals(own.lower.fmax(found.lower), own.upper.fmin(found.upper))

    layers = walk(lines, tighten, given)
    if base is not None:
        layers = replace(layers, empty=layers.empty | base.layers.empty)
    literals = engine.literals(property, layers.relaxed, None if base is None else base.literals)
    tables.rounds += 1
    return Frowned(layers, literals)


@per_plan
def never_stable(plan: Plan) -> bool:
    """True if every neuron wants rows, whatever its bounds."""
    return bool(plan.nonlinear) and all(
        isinstance(plan.relaxation(i), SShaped) for i in plan.nonlinear
    )


def gather_rows(
    part: Part,
    region: Region,
    coef: Tensor,
    sample: Tensor,
    place: Tensor,
    key: Tensor,
    relaxed: dict[int, Relaxed],
    grouped: bool,
    wide: bool,
    marked: Tensor | None = None,
    half: Halfspace | None = None,
    planes: Planes | None = None,
) -> tuple[RowBatch, Tensor]:
    """Rows of these samples and places with what they need, and their keys in order.

    If `grouped`, rows of one key, which stand together, share their slopes.
    """
    keys, group = torch.unique_consecutive(key, return_inverse=True) if grouped else (key, None)
    own = part.relaxed(relaxed, sample, place)
    if planes is not None:
        start, plane = part.start(region, sample, place), planes.rows(sample)
        return RowBatch(part.target, coef, start, own, group, wide, marked, None, plane), keys
    halved = None if half is None else part.halved(region, half, sample, place)
    if halved is not None:
        return RowBatch(part.target, coef, halved[0], own, group, wide, marked, halved[1]), keys
    start = part.start(region, sample, place)
    return RowBatch(part.target, coef, start, own, group, wide, marked), keys


def tried(plan: Plan, source: int, tables: Tables, method: Frown, sample: Tensor) -> Tensor:
    """(N, size) mask of the entries of a node of which both sides have slopes to start from."""
    split = parts(plan, source, method.group)
    size = plan.graph.nodes[source].size
    mask = torch.zeros(len(sample), size, dtype=torch.bool, device=sample.device)
    for k, part in enumerate(split.parts):
        if (source, k) in tables.alpha:
            known = tables.alpha[source, k].known
            both = known.view(tables.samples, 2, split.blocks[k])[sample].all(1)
            own = part.neurons.flatten()
            mask[:, own] = both[:, split.block[own]]
    return mask


@dataclass(frozen=True)
class _Engine:
    plan: Plan
    region: Region
    method: Frown
    tables: Tables
    sample: Tensor
    work: Work
    given: Given | None = None

    def begins_at_crown(self, source: int) -> bool:
        """True if rows without slopes to start from begin with CROWN's very lines.

        Their bounds are then no looser. The rows of a group, or planes, begin near them.
        """
        return self.method.group == 1 and self.plan.elementwise(source)

    def neurons(self, source: int, box: Intervals, relaxed: dict[int, Relaxed]) -> Intervals:
        """The box of a node, its unstable entries bounded by optimised rows."""
        sample, neuron = unstable(self.plan, source, box)
        grouped = self.method.group != 1
        split = parts(self.plan, source, self.method.group, self.work.clock)
        found = box
        for k, whole, index in split.split(neuron):
            rows, blocks = Rows.both(sample[index], neuron[index]), split.blocks[k]
            slot = rows.side * blocks + split.block[rows.neuron]
            own = self._active((source, k), whole, relaxed, len(rows))
            part = own.part
            if grouped:
                # In order of sample, side and block, so that a group stands together.
                order = torch.argsort(rows.sample * (2 * blocks) + slot, stable=True)
                rows, slot = rows.take(order), slot[order]
                chunks = self._whole_groups(part, rows.sample, slot)
            else:
                chunks = list(pieces(part.plan, part.target, len(rows), self.work))
            (place, entry), known = split.where(rows.neuron), rows.of(box)
            sign, least = rows.sign(known.dtype), []
            lanes, width = self._lanes(source), whole.plan.slots(whole.target)[1]
            table = self.tables.table((source, k), 2 * blocks, lanes, width, known)
            table.at(self.sample[rows.sample] * (2 * blocks) + slot)  # room for all at once
            for piece in chunks:
                coef = one_hot(entry[piece], sign[piece], part.neurons.shape[1], part.shape)
                bound = self._rows(
                    own,
                    (source, k),
                    coef,
                    rows.sample[piece],
                    place[piece],
                    slot[piece],
                    2 * blocks,
                    known[piece],
                    grouped,
                )
                least.append(bound)
            found = rows.tighten(found, least[0] if len(least) == 1 else torch.cat(least))
        return found

    def literals(
        self, property: Property, relaxed: dict[int, Relaxed], floor: Tensor | None
    ) -> Tensor:
        """(N, T) lower bounds of the literals, never below `floor`."""
        count, conditions = property.shape
        target = self.plan.graph.output
        shape = self.plan.graph.nodes[target].shape
        rows = Rows.literals(count, conditions, self.sample.device)
        const = property.const.flatten()
        best = self.region.radius.new_full((len(rows),), -torch.inf)
        if floor is not None:
            best = floor.flatten() - const
        (part,) = parts(self.plan, target, 0).parts
        own = self._active((target, 0), part, relaxed, len(rows))
        for piece in pieces(own.part.plan, target, len(rows), self.work):
            found = self._rows(
                own,
                (target, 0),
                property.pick(piece).view(-1, *shape),
                rows.sample[piece],
                rows.side[piece],
                rows.neuron[piece],
                conditions,
                best[piece],
                grouped=False,
            )
            best[piece] = torch.maximum(best[piece], found)
        found = (best + const).view(count, conditions)
        return found if floor is None else torch.fmax(found, floor)

    def _active(self, table: Key, part: Part, relaxed: dict[int, Relaxed], rows: int) -> ActivePart:
        """A part without inactive neurons, unless cuts or multipliers may make use of these."""
        if self._multiplied(table) or (self.given is not None and self.given.told):
            return ActivePart(part, part, relaxed)
        return active_part(part, relaxed, self.region, rows)

    def _rows(
        self,
        own: ActivePart,
        table: Key,
        coef: Tensor,
        sample: Tensor,
        place: Tensor,
        slot: Tensor,
        slots: int,
        known: Tensor,
        grouped: bool,
    ) -> Tensor:
        """Optimise rows, starting from and saving to the tables.

        Slopes that end below what is `known` are no proof of it, nor a good start: they are
        forgotten, and CROWN's take their place.
        """
        count, part, whole = len(sample), own.part, own.whole
        key = self.sample[sample] * slots + slot
        wide = self.method.wide
        marked = self._marked(part, table, sample, place)
        half = None if self.given is None else self.given.half
        planes = None if self.given is None or grouped else self.given.planes.get(table[0])
        given = (part, self.region, coef, sample, place, key, own.relaxed, grouped, wide)
        rows, keys = gather_rows(*given, marked, half, planes)
        width = whole.plan.slots(whole.target)[1]
        slopes = self.tables.table(table, slots, rows.lanes, width, coef)
        at = slopes.at(keys)
        alpha = self.tables.filled(slopes.rows.index_select(0, at), table, keys)
        steps, ascent = self._schedule(whole, table[0], grouped)
        factors = None
        if planes is not None:
            if table not in self.tables.factors:
                self.tables.factors[table] = coef.new_zeros(len(slopes), planes.const.shape[1])
            factors = self.tables.factors[table].index_select(0, keys)
        first = own.picked(alpha)
        with repeated(steps + 1):
            found = optimise(part.plan, rows, first, ascent, steps, self.work.clock, factors)
        if found.factors is not None:
            self.tables.factors[table].index_copy_(0, keys, found.factors)
        kept = len(keys) if grouped else count
        at, bound = at[:kept], found.bound[:count]
        slopes.rows.index_copy_(0, at, own.spread(found.alpha[:kept], alpha[:kept]))
        if not grouped and half is None:
            slopes.rows.index_fill_(0, at[bound < known], torch.nan)
        return bound

    def _schedule(self, part: Part, node: int, grouped: bool) -> tuple[int, Ascent]:
        """The number of steps for rows of a node, and their settings."""
        ascent, radii = self.method.ascent, self.tables.rounds
        if node == self.plan.graph.output:
            return ascent.of_margins(radii, self.plan.slots(node)[1])
        if grouped:
            return ascent.of_neurons(radii)
        layers, (_, slopes) = len(part.plan.below(part.target)), part.plan.slots(part.target)
        if self.plan.graph.nodes[node].size * slopes < WIDE:
            return ascent.of_neurons(radii, layers)
        costly = broad(part.plan, part.target) and never_stable(self.plan)
        return (ascent.of_broad_layer if costly else ascent.of_wide_layer)(radii, layers)

    def wide_layer(self, node: int) -> bool:
        """True if rows of a node cost arithmetic more than calls."""
        split = parts(self.plan, node, self.method.group, self.work.clock)
        slopes = max(part.plan.slots(part.target)[1] for part in split.parts)
        return self.plan.graph.nodes[node].size * slopes >= WIDE

    def _marked(self, part: Part, table: Key, sample: Tensor, place: Tensor) -> Tensor | None:
        """(rows, slots) the neurons at which rows have multipliers; None: nowhere."""
        before = self._multiplied(table)
        if self.given is None and not before:
            return None
        marks = None if self.given is None else self.given.marks(self.plan, table[0])
        if marks is not None:
            return part.slots_of(marks, sample, place)
        slots = part.plan.slots(part.target)[1]
        return torch.zeros(len(sample), slots, dtype=torch.bool) if before else None

    def _multiplied(self, table: Key) -> bool:
        """True if rows of a table have had multipliers."""
        known = self.tables.alpha.get(table)
        return known is not None and known.lanes > self._lanes(table[0])

    def _lanes(self, node: int) -> int:
        """The lanes of a node's slopes, without multipliers."""
        sides = 1 if self.method.group == 1 or node == self.plan.graph.output else 2
        return sides * (2 if self.method.wide else 1)

    def _whole_groups(self, part: Part, sample: Tensor, slot: Tensor) -> list[slice]:
        """Chunks under the memory budget that end where a group ends."""
        starts = torch.ones_like(sample, dtype=torch.bool)
        starts[1:] = (sample[1:] != sample[:-1]) | (slot[1:] != slot[:-1])
        edges = [*starts.nonzero().flatten().tolist(), len(sample)]
        most = at_once(part.plan, part.target, self.work)
        chunks, first = [], 0
        for edge, after in zip(edges[1:], [*edges[2:], None], strict=True):
            if after is None or after - first > most:
                chunks.append(slice(first, edge))
                first = edge
        return chunks
