"""The LP-based method (appendix A.3): bounds by linear programs, proved without trusting them.

A solver's answer is taken as a suggestion. Its duals of the rows z = J v + b are numbers y, and
for any y whatever, with A the coefficient that reaches a neuron's output,

    A f(z) >= y z + min over [l, u] of (A f - y z),

so pulling y back to the input gives a bound that holds. At the true duals it is at least
the program's optimum. (For A != 0 this is a line of slope y / A.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.backward import Layers, fixed_layers, fixed_margins, pieces, unsettled, walk
from frown.bounds.clock import NO_LIMIT, Clock
from frown.bounds.forms import begin, descend, form_of, one_hot
from frown.bounds.plan import Plan
from frown.bounds.settings import Settings
from frown.errors import InvalidInput
from frown.graph.box import Box
from frown.methods.frown.network import Warm, frown
from frown.methods.lp.program import Program
from frown.methods.lp.solvers import Basis, Duals, minimise, needed
from frown.problem.region import Region
from frown.problem.spec import Conditions
from frown.relax.relaxation import Frame, Slopes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Tally:
    """How many programs were solved, and how many of them not to optimality."""

    programs: int = 0
    unsolved: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.programs + other.programs, self.unsolved + other.unsolved)

    def remark(self) -> str:
        return (
            f"{self.unsolved} of {self.programs} programs were not solved to optimality; "
            "bounds hold but may be looser"
        )


@dataclass(frozen=True)
class Workers:
    """Processes over which the programs of a layer are spread."""

    count: int = 1
    pool: Executor | None = None


@contextmanager
def crew_of(settings: Settings) -> Iterator[Workers]:
    """The processes that the settings ask for; none where no program is to be solved."""
    count = settings.workers
    if settings.method != "lp" or count == 1:
        yield Workers()
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield Workers(count, pool)


@dataclass
class Vertices:
    """Where the programs of one sample ended, for the next radius to start from.

    By the program's pattern and what was bounded: a vertex makes sense for a like program.
    """

    ends: dict[tuple[bytes, int, int], Basis] = field(default_factory=dict)


@dataclass(frozen=True)
class Leanings:
    """Slopes that the duals of a target's rows amount to, by the rows' numbers."""

    number: Tensor  # (R,) ascending: 2 neuron + side (1: above); at the output the condition
    slope: dict[int, Tensor]  # node -> (R, size of its input); NaN: they say nothing

    def only(self, kept: Tensor) -> Leanings:
        """These rows (R,) alone."""
        return Leanings(self.number[kept], {i: s[kept] for i, s in self.slope.items()})


@dataclass(frozen=True)
class Slants:
    """What a proof by programs needs to be made again: lines, by target."""

    leanings: dict[int, Leanings]
    rule: dict[int, Slopes]  # node -> the fixed rule's where programs began: of all other rows
    warm: Warm | None = None  # of boxes that are FROWN's


@dataclass(frozen=True)
class Solved:
    """The LP's layers and margins; both at least as tight as what it started from."""

    layers: Layers
    margins: Tensor  # (1, T)
    tally: Tally
    slants: Slants


def lp(
    plan: Plan,
    region: Region,  # of one sample
    spec: Conditions,
    settings: Settings,
    crew: Workers,
    clock: Clock = NO_LIMIT,
    vertices: Vertices | None = None,  # of this sample, from other radii
) -> Solved:
    """Bounds of every layer (boxes = "lp"), or of the last one alone, by linear programs."""
    warm = None
    if settings.boxes == "frown":
        first = torch.zeros(1, dtype=torch.long, device=plan.graph.device)
        warm = Warm(1)
        base = frown(plan, region, spec, settings, warm, first, clock)
        layers, floor = base.layers, base.margins
    else:
        layers = fixed_layers(plan, region, settings, clock)
        floor = fixed_margins(plan, region, spec, layers, settings, clock)
    rule = {i: own.lines.slopes for i, own in layers.frames.items()}
    engine = _Engine(plan, region, settings, crew, clock, vertices or Vertices())
    if settings.boxes == "lp":
        start = layers

        def tighten(source: int, box: Box, frames: dict[int, Frame]) -> Box:
            box = box.meet(start.values[source])
            return engine.neurons(source, box, frames) if plan.below(source) else box

        layers = walk(plan, region, tighten, settings)
    coef = spec.coef[0].reshape(-1, *plan.graph.nodes[-1].shape)
    found = engine.rows(plan.graph.output, coef, layers.frames, range(len(coef)))
    margins = torch.fmax(floor, found[None])
    last = plan.graph.output
    if last in engine.leanings:  # what was there before may be better
        engine.leanings[last] = engine.leanings[last].only(found >= floor[0])
    return Solved(layers, margins, engine.tally, Slants(engine.leanings, rule, warm))


def check_program(plan: Plan, settings: Settings, p: float) -> None:
    """Refuse what the method cannot do, before any work."""
    if settings.method == "lp":
        if p not in (1, 2, inf):
            raise InvalidInput(
                f"method lp takes the norms 1, 2 and inf, not {p:g}: others are no linear or "
                "second-order cone program (crown and frown take any p >= 1)"
            )
        for name in ("scipy", "clarabel" if p == 2 else "highspy"):
            needed(name)
    elif settings.method == "milp":
        from frown.methods.exact.distance import refuse_others

        refuse_others(plan, p)
        for name in ("scipy", "highspy"):
            needed(name)


def dual_rows(
    plan: Plan,
    region: Region,
    target: int,
    coef: Tensor,
    frames: dict[int, Frame],
    dual: dict[int, Tensor],
) -> Tensor:
    """Lower bounds (R,) of coef . target for any numbers `dual` (R, *input shape of the node)."""
    return dual_lines(plan, region, target, coef, frames, dual)[0]


def dual_lines(
    plan: Plan,
    region: Region,
    target: int,
    coef: Tensor,
    frames: dict[int, Frame],
    dual: dict[int, Tensor],
) -> tuple[Tensor, dict[int, Tensor]]:
    """The same, and the slopes (R, size of the node's input) that the numbers amount to; NaN where
    the node's output has no weight, or too little."""
    slopes: dict[int, Tensor] = {}

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        y, frame, op = dual[i], frames[i], frames[i].op
        laid = op.expand(here)
        slope = y / torch.where(laid == 0, 1.0, laid)
        sound = torch.isfinite(slope) & (laid != 0)
        slopes[i] = torch.where(sound, slope, torch.nan).flatten(1)
        line = op.line(torch.where(sound, slope, 0.0), here >= 0, frame.anchors)
        # Where the quotient is no number, f and y z are bounded apart.
        apart = torch.where(sound, 0.0, torch.maximum(y * frame.box.lower, y * frame.box.upper))
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
    settings: Settings
    crew: Workers
    clock: Clock
    vertices: Vertices
    tally: Tally = field(default_factory=Tally)
    program: Program | None = None
    last: Basis = field(default_factory=Basis)  # of the layer before
    leanings: dict[int, Leanings] = field(default_factory=dict)

    def neurons(self, source: int, box: Box, frames: dict[int, Frame]) -> Box:
        """The box of a node, its unsettled entries bounded by programs."""
        _, neuron = unsettled(self.plan, source, box)
        if not len(neuron):
            return box
        node = self.plan.graph.nodes[source]
        both = neuron.repeat_interleave(2)  # the two sides of a neuron one after the other
        sign = torch.tensor([1.0, -1.0], dtype=box.lower.dtype, device=neuron.device)
        sign = sign.repeat(len(neuron))
        coef = one_hot(both, sign, node.size, node.shape)
        numbers = [2 * n + side for n in neuron.tolist() for side in (0, 1)]
        bound = self.rows(source, coef, frames, numbers)
        low, high = box.lower.flatten(1).clone(), box.upper.flatten(1).clone()
        before = torch.stack([low[0, neuron], -high[0, neuron]], 1).flatten()
        self.leanings[source] = self.leanings[source].only(bound >= before)
        low[0, neuron], high[0, neuron] = bound[0::2], -bound[1::2]
        return box.meet(Box(low.view_as(box.lower), high.view_as(box.upper)))

    def rows(
        self, target: int, coef: Tensor, frames: dict[int, Frame], numbers: Sequence[int]
    ) -> Tensor:
        """Lower bounds of coef . target, one program each; `numbers` tell the rows of a target
        apart from radius to radius."""
        program = self._program(target, frames)
        flat = coef.flatten(1).double().cpu().numpy()
        costs, _ = program.objective(target, flat)
        problem, kept = program.constraints(), self.vertices
        pattern = sha256(problem.matrix.indptr.tobytes() + problem.matrix.indices.tobytes())
        keys = [(pattern.digest(), target, number) for number in numbers]
        starts = [Basis()] * len(keys)
        if self.settings.hot:
            starts = [kept.ends.get(key, Basis()) for key in keys]
            starts[0] = starts[0] if starts[0].columns else self.last
        crew = self.crew
        hot = self.settings.hot
        found, ends = minimise(problem, costs, starts, self.clock, crew.pool, crew.count, hot)
        kept.ends.update(zip(keys, ends, strict=True))
        self.last = ends[-1]
        self.tally += Tally(len(costs), int((~found.solved).sum()))
        dual = self._dual(target, program, found, coef)
        parts, slopes = [coef.new_zeros(0)], []
        for piece in pieces(self.plan, target, len(coef), self.settings):
            here = {i: y[piece] for i, y in dual.items()}
            bound, slope = dual_lines(self.plan, self.region, target, coef[piece], frames, here)
            parts.append(bound)
            slopes.append(slope)
        if slopes:
            own = {i: torch.cat([s[i] for s in slopes]).float() for i in slopes[0]}
            self.leanings[target] = Leanings(torch.tensor(numbers), own)
        return torch.cat(parts)

    def _program(self, target: int, frames: dict[int, Frame]) -> Program:
        """The program with all nonlinear nodes before the target that have lines by now.

        Nodes that the target does not depend on change nothing, so programs only grow.
        """
        if self.program is None:
            self.program = Program(self.plan, self.region)
            self.program.add_input()
        for i in self.plan.below(target):
            if i not in self.program.layers:
                self.program.add(i, frames[i], self.settings.tangents)
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
