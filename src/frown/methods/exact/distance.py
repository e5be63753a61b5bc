"""The exact minimal distortion of piecewise linear networks by mixed-integer programs.

At a radius r, every open neuron gets a binary per kink inside its box, and HiGHS minimises a
condition over the ball. Beyond a small positive level everywhere: no counterexample within r.
Otherwise the point found is moved as near as its linear piece allows and becomes the new
upper end; boxes are made afresh at the next radius, a hair below it.

Unlike every other method here, the proof rests on HiGHS's branch and bound in floating point.
Its tolerances are set to 1e-9, columns and rows are scaled to unit size, the level is 1e-6
of the condition at the centre, and the radius reported is lowered by a further 1e-6 of itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.method import Closing, Ends, Method, Update
from frown.bounds.plan import Plan
from frown.bounds.work import Clock, OutOfTime, Work
from frown.errors import InvalidInput
from frown.methods.crown import RULES, Crown
from frown.methods.exact.program import Mixed, minimise_mixed, nearest_on_piece
from frown.methods.frown.network import Frown
from frown.methods.lp.solvers import needed
from frown.problem.options import Option, check_options
from frown.problem.property import LinearProperty, Property, conjunction, violated
from frown.problem.region import Region
from frown.relax.maximum import Max
from frown.relax.piecewise import PiecewiseLinear

Array = NDArray[np.float64]
LEVEL = 1e-6  # what a condition must exceed, in units of its value at the centre
SAFETY = 1e-6  # by which a proved radius is lowered, relative
NUDGE = 1e-7  # how far below 0 a counterexample is sought, in the same units
GAP = 0.004  # how far below a counterexample the proof is tried


@dataclass(frozen=True)
class Exact(Closing):
    """The exact distance of piecewise linear networks, by mixed-integer programs.

    For small networks and p = 1 or inf: time can grow exponentially with the number of unstable
    neurons. An estimate: nothing of it is proved with rounding accounted for. Needs the extra
    `frown[lp]`; raises InvalidInput without it, and for networks with curved functions.
    """

    name: ClassVar[str] = "milp"
    singly: ClassVar[bool] = True
    estimates: ClassVar[bool] = True
    rule: Annotated[str, Option("CROWN's lines: least area, or the paper's", tuple(RULES))] = "area"

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def before(self) -> Method:
        return Frown(rule=self.rule)

    def refuse(self, plan: Plan, p: float) -> None:
        refuse_others(plan, p)
        for name in ("scipy", "highspy"):
            needed(name)

    def close(
        self, plan: Plan, region: Region, property: Property, ends: Ends, work: Work
    ) -> Iterator[Update]:
        """One sample after the other, each in its share of the time."""
        count = len(region.radius)
        for k in range(count):
            broken, limit = float(ends.broken[k]), float(ends.limit[k])
            hit, one, clock = broken <= limit, slice(k, k + 1), work.clock.share(count - k)
            found = exact(
                plan,
                region.rows(one),
                property.rows(one),
                self,
                broken if hit else limit * (1 + 3e-6),
                float(ends.proved[k]),
                clock,
                broken=hit,
            )
            yield Update(
                k,
                found.proved,
                point=found.point,
                complete=found.optimal or not clock.expired(),
                remark="" if found.optimal else found.message,
            )


@dataclass(frozen=True)
class Distance:
    """Both ends of the minimal distortion of one sample."""

    proved: float  # no counterexample up to here
    point: Tensor | None  # (*input shape) the nearest counterexample found by the solver
    broken: float  # its distance; inf without one
    optimal: bool  # whether the two ends meet, within half a per cent
    targets: tuple[float, ...]  # the radius proved for each literal
    message: str


def exact(
    plan: Plan,
    region: Region,  # of one sample
    property: Property,
    method: Exact,
    upper: float,
    lower: float,
    clock: Clock,
    *,
    broken: bool = True,
) -> Distance:
    """The minimal distortion between `lower`, a radius already proved, and `upper`, one that
    is `broken` by a known counterexample or else the limit up to which to search.

    When the clock runs out, what was proved before stands.
    """
    refuse_others(plan, region.p)
    if not property.single:
        raise InvalidInput("the method milp takes properties without or; use frown or lp")
    double = plan.double()
    ball = region.mapped(lambda t: t.double().cpu(), region.radius.double().cpu())
    count, literals = property.shape
    coef = property.pick(slice(None)).double().cpu().view(count, literals, -1)
    rows = conjunction(coef, property.const.double().cpu())
    hunt = _Hunt(double, ball, rows, method, clock, upper, lower, broken)
    with torch.inference_mode():
        return hunt.run()


def refuse_others(plan: Plan, p: float) -> None:
    """Raise InvalidInput for curved functions and for norms other than 1 and inf."""
    if p not in (1, inf):
        raise InvalidInput(
            f"the method milp needs the norm 1 or inf, not {p:g}; for this norm use frown or lp"
        )
    ops = (plan.graph.nodes[i].op for i in plan.nonlinear)
    names = sorted({type(op).__name__ for op in ops if not isinstance(op, PiecewiseLinear | Max)})
    if names:
        raise InvalidInput(
            f"the method milp is exact for piecewise linear networks (ReLU, LeakyReLU, PReLU, "
            f"Clip, Abs, max pooling) and this one has {', '.join(names)}; use frown or lp"
        )


@dataclass
class _Hunt:
    """The two ends of one sample, moved towards each other."""

    plan: Plan
    region: Region
    property: LinearProperty
    method: Exact
    clock: Clock
    upper: float
    lower: float
    broken: bool
    point: Tensor | None = None
    found: float = inf
    targets: Array = field(default_factory=lambda: np.zeros(0))  # proved, per condition
    unit: Array = field(default_factory=lambda: np.zeros(0))  # conditions at the centre

    def run(self) -> Distance:
        clean = self._conditions(self.region.centre)
        self.targets = np.full(len(clean), self.lower)
        if not (clean > 0).all():
            nothing = (0.0,) * len(clean)
            return Distance(0.0, self.region.centre[0], 0.0, True, nothing, "the centre")
        self.unit = clean
        timely, hard = True, inf
        try:
            self._foothold()
            while True:
                low = float(self.targets.min())
                top = self.upper * (1 - GAP) if self.broken else self.upper
                if low >= top or low <= 0 or hard <= low * 1.002:
                    break
                # Boxes far beyond what is proved are loose: at most twice as far at a time.
                radius = min(top if hard >= top else sqrt(low * hard), 2 * low)
                if not self._attempt(radius):
                    hard = radius
        except OutOfTime:
            timely = False
        return self._result(timely)

    def _result(self, timely: bool) -> Distance:
        end = self.upper
        proved = np.where(
            self.targets > self.lower,
            np.maximum(self.targets * (1 - SAFETY), self.lower),
            self.lower,
        )
        least = min(float(proved.min()), end)
        optimal = least >= end * (1 - GAP - 2 * SAFETY)
        if optimal:
            message = "solved"
        elif timely:
            message = "the solver came to no answer nearer to the upper end"
        else:
            message = "the time limit came before the ends met"
        return Distance(least, self.point, self.found, optimal, tuple(proved.tolist()), message)

    def _foothold(self) -> None:
        """A first proved radius where none is known: CROWN's, found by halving."""
        radius = self.upper
        while float(self.targets.min()) <= 0 and radius > self.upper * 2.0**-60:
            self.clock.check()
            ball = self._ball(radius)
            work = Work(clock=self.clock)
            crown = Crown(self.method.rule).bound(self.plan, ball, self.property, work=work)
            margins = crown.literals[0].numpy()
            self.targets[margins > 0] = np.maximum(self.targets[margins > 0], radius)
            radius /= 2

    def _attempt(self, radius: float) -> bool:
        """Try to prove all conditions at a radius; True if either end has moved."""
        ball = self._ball(radius)
        frown, work = Frown(rule=self.method.rule, steps=30), Work(clock=self.clock)
        base = frown.bound(self.plan, ball, self.property, work=work)
        margins = base.literals[0].numpy()
        self.targets[margins > 0] = np.maximum(self.targets[margins > 0], radius)
        waiting = [t for t in np.argsort(margins / self.unit) if self.targets[t] < radius]
        if not waiting:
            return True
        mixed = Mixed.build(self.plan, ball, base.layers.relaxed)
        coef = self.property.coef[0].numpy()
        costs, consts = mixed.program.objective(self.plan.graph.output, coef)
        consts = consts + self.property.const[0].numpy()
        problem = mixed.constraints()
        # Half of the time left is for this radius, in equal shares.
        spare = self.clock.left() / 2
        for place, t in enumerate(waiting):
            self.clock.check()
            share = inf
            if spare < inf:
                share = max(0.0, self.clock.left() - spare) / (len(waiting) - place)
            cost, const = costs[t] / self.unit[t], float(consts[t] / self.unit[t])
            answer = minimise_mixed(problem, mixed.binaries, cost, const, LEVEL, share)
            if not answer.proved:
                return answer.columns is not None and self._take(mixed, answer.columns, cost, const)
            self.targets[t] = max(self.targets[t], radius)
        return True

    def _take(self, mixed: Mixed, columns: Array, cost: Array, const: float) -> bool:
        """A counterexample as near as the linear piece of this point allows, if it is one."""
        value = mixed.program.values[0]
        candidates = [columns]
        nearer = nearest_on_piece(mixed, columns, cost, const + NUDGE)
        if nearer is not None:
            candidates.append(nearer)
        moved = False
        for v in candidates:
            x = torch.from_numpy(value.matrix @ v[: value.matrix.shape[1]] + value.shift)
            x = self._ball(self.upper).box().clip(x.view_as(self.region.centre))
            distance = float(self.region.distance(x))
            if distance < self.upper and bool(violated(self._conditions(x))):
                self.upper, self.broken, moved = distance, True, True
                self.point, self.found = x[0], distance
        return moved

    def _ball(self, radius: float) -> Region:
        return self.region.with_radius(torch.tensor([radius], dtype=torch.float64))

    def _conditions(self, x: Tensor) -> Array:
        return self.property.literals(self.plan.graph.apply(x).flatten(1))[0].numpy()
