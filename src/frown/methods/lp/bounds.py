"""The LP-based method (appendix A.3): bounds by linear programs, proved without trusting them.

A solver's answer is taken as a suggestion. Its duals of the rows z = J v + b are numbers y, and
for any y whatever, with A the coefficient that reaches a neuron's output,

    A f(z) >= y z + min over [l, u] of (A f - y z),

so pulling y back to the input gives a bound that holds. At the true duals it is at least
the program's optimum. (For A != 0 this is a line of slope y / A.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.arithmetic.float import Float
from frown.bounds.forms import begin, descend, form_of
from frown.bounds.method import Bounds, Method
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request, State
from frown.bounds.rows import Rows, pieces, unstable
from frown.bounds.walk import Given, Layers, walk
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.graph.intervals import Intervals
from frown.methods.crown import RULES, Crown
from frown.methods.frown.network import Frown
from frown.methods.lp.program import Program
from frown.methods.lp.solvers import Basis, Duals, minimise, needed
from frown.problem.options import Option, check_options
from frown.problem.property import Property
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed, Rule, Slopes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Count:
    """The number of programs that were solved, and of those not solved to optimality."""

    programs: int = 0
    unsolved: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.programs + other.programs, self.unsolved + other.unsolved)

    def remark(self) -> str:
        return (
            f"{self.unsolved} of {self.programs} programs were not solved to optimality; "
            "bounds hold but may be looser"
        )


@dataclass
class SimplexBases:
    """The simplex bases of one sample's programs, for the next radius to start from.

    They are kept by the program's pattern and what was bounded: a basis makes sense for a like
    program.
    """

    ends: dict[tuple[bytes, int, int], Basis] = field(default_factory=dict)


@dataclass(frozen=True)
class DualSlopes:
    """Slopes that the duals of a target's rows amount to, by the rows' numbers."""

    number: Tensor  # (R,) ascending: 2 neuron + side (1: above); at the output the literal
    slope: dict[int, Tensor]  # node -> (R, size of its input); NaN: they say nothing

    def only(self, kept: Tensor) -> DualSlopes:
        """The slopes of these rows (R,) alone."""
        return DualSlopes(self.number[kept], {i: s[kept] for i, s in self.slope.items()})


@dataclass
class LpState(State):
    """The bases of every sample's programs, and how many programs there were."""

    bases: list[SimplexBases]
    count: list[Count]
    sample: list[int]

    def at(self, sample: Tensor) -> LpState:
        return LpState(self.bases, self.count, [self.sample[k] for k in sample.tolist()])


@dataclass(frozen=True)
class LP(Method):
    """Linear programs over several lines per activation; bounds proved from their duals.

    To see how much better lines could be; hundreds of times as slow as FROWN. `inner` bounds the
    inner layers: None, programs throughout (LP-ALL); a method, programs for the last layer alone
    (LP-LAST). A search starts at FROWN's radii, and every program where a like one ended.
    """

    name: ClassVar[str] = "lp"
    singly: ClassVar[bool] = True
    hot: ClassVar[bool] = True  # False, in a subclass: programs start from nothing, to measure that
    tangents: Annotated[int, Option("lines per curved side", least=1)] = 3
    inner: Annotated[
        Method | None,
        Option(
            "what bounds inner layers (default: programs)",
            ("crown", "frown"),
            flag="boxes",
            metavar="lp|crown|frown",
        ),
    ] = None
    rule: Annotated[str, Option("CROWN's lines: least area, or the paper's", tuple(RULES))] = "area"

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def before(self) -> Method:
        return Crown(self.rule)

    @property
    def foresight(self) -> Method | None:
        return Frown()

    def refuse(self, plan: Plan, p: float) -> None:
        if plan.graph.device.type != "cpu":
            raise InvalidInput(
                f"method lp solves its programs on the CPU, not on {plan.graph.device}: leave out "
                "the device, or choose crown, frown or branch"
            )
        if p not in (1, 2, inf):
            raise InvalidInput(
                f"method lp takes the norms 1, 2 and inf, not {p:g}: others are no linear or "
                "second-order cone program (crown and frown take any p >= 1)"
            )
        for name in ("scipy", "clarabel" if p == 2 else "highspy"):
            needed(name)

    def start(self, samples: int) -> LpState:
        return LpState(
            [SimplexBases() for _ in range(samples)],
            [Count() for _ in range(samples)],
            list(range(samples)),
        )

    def bound(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        state: State | None = None,
        given: Given | None = None,
        work: Work = Work(),  # noqa: B008
    ) -> Bounds:
        own = state if isinstance(state, LpState) else self.start(len(region.radius))
        found, remarks = [], {}
        for n, k in enumerate(own.sample):
            one, bases = slice(n, n + 1), own.bases[k]
            part = None if given is None else given.rows(one)
            solved = lp(plan, region.rows(one), property.rows(one), self, bases, part, work)
            found.append(solved)
            own.count[k] += solved.count
            if own.count[k].unsolved:
                remarks[n] = own.count[k].remark()
        proof = LpProof(plan, self.rule, [one.proof for one in found])
        literals = torch.cat([one.literals for one in found])
        return Bounds(_stacked(plan, region, found, self, given), literals, proof, remarks)


def _stacked(
    plan: Plan, region: Region, found: Sequence[Solved], method: LP, given: Given | None
) -> Layers:
    """The layers of all samples together."""
    if len(found) == 1:
        return found[0].layers

    def together(source: int, box: Intervals) -> Intervals:
        boxes = [one.layers.values[source] for one in found]
        return Intervals(torch.cat([b.lower for b in boxes]), torch.cat([b.upper for b in boxes]))

    layers = walk(Float(plan, region, RULES[method.rule]), together, given)
    return replace(layers, empty=torch.cat([one.layers.empty for one in found]))


@dataclass(frozen=True)
class OneProof:
    """One sample's proof by programs: slopes by target."""

    slopes: dict[int, DualSlopes]
    rule: dict[int, Slopes]  # node -> the fixed rule's where programs began: of all other rows
    inner: Proof  # of what programs did not tighten


@dataclass(frozen=True)
class LpProof(Proof):
    """The proofs of linear programs, from their duals, one for each sample.

    What they did not tighten was known before: by FROWN, or by the rule's slopes as they were then.
    On the tighter boxes the rule may choose others, and bounds may be looser.
    """

    plan: Plan  # that was bounded
    lines: str
    samples: list[OneProof | None]  # None: the rule's

    @property
    def rule(self) -> Rule:
        return RULES[self.lines]

    def take(self, index: Tensor) -> LpProof:
        return LpProof(self.plan, self.lines, [self.samples[k] for k in index.tolist()])

    @classmethod
    def cat(cls, proofs: Sequence[LpProof]) -> LpProof:
        every = [one for proof in proofs for one in proof.samples]
        return cls(proofs[0].plan, proofs[0].lines, every)

    def blank(self, samples: int) -> LpProof:
        return LpProof(self.plan, self.lines, [None] * samples)

    def to(self, device: torch.device) -> LpProof:
        """Itself: programs are on the CPU."""
        return self

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        nodes = dict(zip(plan.nonlinear, self.plan.nonlinear, strict=True))
        origin = {plan.graph.output: self.plan.graph.output}
        for i, j in nodes.items():
            origin[plan.sources[i]] = self.plan.sources[j]
        target, last = origin[request.target], request.target == plan.graph.output
        size = plan.graph.nodes[request.target].size
        if not last and self.plan.graph.nodes[target].size != size:
            return None
        rows = request.rows
        number = rows.neuron if last else 2 * rows.neuron + rows.side
        shares = []
        for k in sorted(set(rows.sample.tolist())):
            index, one = (rows.sample == k).nonzero().flatten(), self.samples[k]
            if one is None:
                continue
            before = None
            if not isinstance(one.inner, ByRule):
                before = one.inner.choose(plan, _sub_request(request, index, k))
            shares.append(_Share(index, number[index], one, one.slopes.get(target), before))

        def slope(i: int, here: Tensor) -> Tensor:
            (source,) = plan.graph.nodes[i].inputs
            shape, laid = plan.graph.nodes[source].shape, plan.relaxation(i).expand(here)
            found = here.new_full((len(here), *shape), torch.nan)
            for share in shares:
                at = share.rows
                found[at] = share.slope(i, nodes[i], here[at], laid[at], found[at])
            return found

        return Choice(slope)


@dataclass(frozen=True, slots=True)
class _Share:
    """Rows of one sample, with the slopes that its programs found."""

    rows: Tensor  # (R,) which of a request
    number: Tensor  # (R,)
    proof: OneProof
    slopes: DualSlopes | None
    before: Choice | None  # the inner method's own

    def slope(self, i: int, origin: int, here: Tensor, laid: Tensor, blank: Tensor) -> Tensor:
        """(R, *shape) at node i, in the bounded network `origin`, for coefficients of its output
        that are laid over its input; `blank` where nothing is known."""
        if self.before is not None:
            found = self.before.slope(i, here).view_as(blank).clone()
        elif isinstance(self.proof.inner, ByRule):
            rule = self.proof.rule[origin]
            below = (laid >= 0).expand_as(blank)
            # Rounded to single precision, like all others.
            low, high = (t.float().to(blank) for t in (rule.lower, rule.upper))
            found = torch.where(below, low, high)
        else:
            found = blank
        slope = None if self.slopes is None else self.slopes.slope.get(origin)
        if self.slopes is None or slope is None or slope.shape[1] != blank[0].numel():
            return found
        own = torch.isin(self.number, self.slopes.number)
        place = torch.searchsorted(self.slopes.number, self.number[own])
        found[own] = slope[place].to(found).view_as(found[own])
        return found


def _sub_request(request: Request, rows: Tensor, sample: int) -> Request:
    """Rows of one sample, as a question of its own."""
    one = slice(sample, sample + 1)
    return Request(
        request.target,
        request.coef[rows],
        replace(request.rows.take(rows), sample=torch.zeros_like(rows)),
        request.region.rows(one),
        {i: f.rows(one) for i, f in request.relaxed.items()},
    )


@dataclass(frozen=True)
class Solved:
    """The programs' layers and literals; both at least as tight as what they started from."""

    layers: Layers
    literals: Tensor  # (1, T)
    count: Count
    proof: OneProof


def lp(
    plan: Plan,
    region: Region,  # of one sample
    property: Property,
    method: LP,
    bases: SimplexBases,  # of this sample, from other radii
    given: Given | None,
    work: Work,
) -> Solved:
    """Bounds of every layer, or of the last one alone, by linear programs."""
    base = (method.inner or Crown(method.rule)).bound(plan, region, property, None, given, work)
    layers, floor = base.layers, base.literals
    rule = {i: own.lines.slopes for i, own in layers.relaxed.items()}
    engine = _Engine(plan, region, method, work, bases)
    if method.inner is None:
        start, lines = layers, Float(plan, region, RULES[method.rule])

        def tighten(source: int, box: Intervals) -> Intervals:
            box = box.meet(start.values[source])
            return engine.neurons(source, box, lines.relaxed) if plan.below(source) else box

        layers = walk(lines, tighten, given)
        layers = replace(layers, empty=layers.empty | start.empty)
    coef = property.pick(slice(None)).view(-1, *plan.graph.nodes[-1].shape)
    found = engine.rows(plan.graph.output, coef, layers.relaxed, range(len(coef)))
    found = found + property.const[0]
    last = plan.graph.output
    if last in engine.slopes:  # what was there before may be better
        engine.slopes[last] = engine.slopes[last].only(found >= floor[0])
    proof = OneProof(engine.slopes, rule, base.proof)
    return Solved(layers, torch.fmax(floor, found[None]), engine.count, proof)


def dual_lines(
    plan: Plan,
    region: Region,
    target: int,
    coef: Tensor,
    relaxed: dict[int, Relaxed],
    dual: dict[int, Tensor],
) -> tuple[Tensor, dict[int, Tensor]]:
    """Lower bounds (R,) of coef . target, valid for any numbers `dual`, and their slopes.

    `dual` is (R, *input shape of the node). The slopes (R, size of the node's input) are NaN where
    the node's output has no weight, or too little.
    """
    slopes: dict[int, Tensor] = {}

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        y, own, op = dual[i], relaxed[i], relaxed[i].op
        laid = op.expand(here)
        slope = y / torch.where(laid == 0, 1.0, laid)
        sound = torch.isfinite(slope) & (laid != 0)
        slopes[i] = torch.where(sound, slope, torch.nan).flatten(1)
        line = op.line(torch.where(sound, slope, 0.0), here >= 0, own.anchors)
        # Where the quotient is no number, f and y z are bounded apart.
        apart = torch.where(sound, 0.0, torch.maximum(y * own.box.lower, y * own.box.upper))
        gain = (here * line.intercept).flatten(1).sum(1) - apart.flatten(1).sum(1)
        return gain, y

    form = form_of(plan, descend(plan, target, begin(plan, target, coef), through))
    bound = region.minimise(form.coef).value + form.const
    return torch.where(torch.isfinite(bound), bound, -torch.inf), slopes  # overflow proves nothing


@dataclass
class _Engine:
    """One sample's programs, each starting where the last one ended."""

    plan: Plan
    region: Region
    method: LP
    work: Work
    bases: SimplexBases
    count: Count = field(default_factory=Count)
    program: Program | None = None
    last: Basis = field(default_factory=Basis)  # of the layer before
    slopes: dict[int, DualSlopes] = field(default_factory=dict)

    def neurons(self, source: int, box: Intervals, relaxed: dict[int, Relaxed]) -> Intervals:
        """The box of a node, its unstable entries bounded by programs."""
        sample, neuron = unstable(self.plan, source, box)
        if not len(neuron):
            return box
        node = self.plan.graph.nodes[source]
        rows = Rows.both(sample, neuron)
        rows = rows.take((2 * rows.neuron + rows.side).argsort())
        coef = rows.coef(node.size, node.shape, box.lower.dtype)
        numbers = (2 * rows.neuron + rows.side).tolist()
        bound = self.rows(source, coef, relaxed, numbers)
        self.slopes[source] = self.slopes[source].only(bound >= rows.of(box))
        return rows.tighten(box, bound)

    def rows(
        self, target: int, coef: Tensor, relaxed: dict[int, Relaxed], numbers: Sequence[int]
    ) -> Tensor:
        """Lower bounds of coef . target, one program each; `numbers` tell the rows of a target
        apart from radius to radius."""
        program = self._program(target, relaxed)
        flat = coef.flatten(1).double().cpu().numpy()
        costs, _ = program.objective(target, flat)
        problem, kept = program.constraints(), self.bases
        pattern = sha256(problem.matrix.indptr.tobytes() + problem.matrix.indices.tobytes())
        keys = [(pattern.digest(), target, number) for number in numbers]
        starts = [Basis()] * len(keys)
        if self.method.hot:
            starts = [kept.ends.get(key, Basis()) for key in keys]
            starts[0] = starts[0] if starts[0].columns else self.last
        clock, pool = self.work.clock, self.work.pool
        found, ends = minimise(
            problem, costs, starts, clock, pool.executor, pool.count, self.method.hot
        )
        kept.ends.update(zip(keys, ends, strict=True))
        self.last = ends[-1]
        self.count += Count(len(costs), int((~found.solved).sum()))
        dual = self._dual(target, program, found, coef)
        parts, slopes = [coef.new_zeros(0)], []
        for piece in pieces(self.plan, target, len(coef), self.work):
            here = {i: y[piece] for i, y in dual.items()}
            bound, slope = dual_lines(self.plan, self.region, target, coef[piece], relaxed, here)
            parts.append(bound)
            slopes.append(slope)
        if slopes:
            own = {i: torch.cat([s[i] for s in slopes]).float() for i in slopes[0]}
            self.slopes[target] = DualSlopes(torch.tensor(numbers), own)
        return torch.cat(parts)

    def _program(self, target: int, relaxed: dict[int, Relaxed]) -> Program:
        """The program with all nonlinear nodes before the target that have lines by now.

        Nodes that the target does not depend on change nothing, so programs only grow.
        """
        if self.program is None:
            self.program = Program(self.plan, self.region)
            self.program.add_input()
        for i in self.plan.below(target):
            if i not in self.program.layers:
                self.program.add(i, relaxed[i], self.method.tangents)
        return self.program

    def _dual(self, target: int, program: Program, found: Duals, coef: Tensor) -> dict[int, Tensor]:
        """The duals of the rows that tie z down, at the places of z."""
        dual = {}
        for i in self.plan.below(target):
            layer = program.layers[i]
            (source,) = self.plan.graph.nodes[i].inputs
            node = self.plan.graph.nodes[source]
            y = np.zeros((len(coef), node.size))
            y[:, layer.z] = found.rows[:, layer.z_rows]
            dual[i] = torch.from_numpy(y).to(coef).view(-1, *node.shape)
        return dual
