"""The LP-based method proves its bounds itself: a solver that lies, fails or stops costs
tightness and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from bounds.test_bounds import Truth, assert_tighter
from frown.bounds.plan import Plan
from frown.bounds.walk import Layers
from frown.bounds.work import Clock, OutOfTime, Work, pool_of
from frown.graph.graph import Graph
from frown.methods import LP, Crown, Frown, Interval
from frown.methods.crown import crown_layers
from frown.methods.lp import bounds as engine
from frown.methods.lp import solvers
from frown.methods.lp.bounds import SimplexBases, Solved, dual_lines, lp
from frown.methods.lp.solvers import Basis, Duals, minimise
from frown.problem.property import LinearProperty
from frown.problem.region import Region
from frown.relax import Relu
from theorem_tools import (
    CROWN,
    NORMS,
    TOLERANCE,
    chain,
    conditions,
    program_of,
    rows_of,
    size_of,
    unit_ball,
)

PROGRAMS = LP()
NO_LIMITS = Work()
FIELDS = ("rows", "optimum", "solved")  # of duals
every_network = pytest.mark.parametrize("name", zoo.NETWORKS)
every_norm = pytest.mark.parametrize("p", NORMS)


def programmed(
    plan: Plan,
    region: Region,
    spec: LinearProperty,
    method: LP = PROGRAMS,
    bases: SimplexBases | None = None,
    work: Work = NO_LIMITS,
) -> Solved:
    """The programs of one sample, from nothing unless vertices are there."""
    return lp(plan, region, spec, method, SimplexBases() if bases is None else bases, None, work)


@dataclass(frozen=True)
class Case:
    """A network, one region, what is true there and what CROWN proves."""

    graph: Graph
    plan: Plan
    region: Region
    spec: LinearProperty
    truth: Truth
    crown: Layers
    margins: Tensor

    def solve(self, method: LP = PROGRAMS) -> Solved:
        """The LP's bounds: valid on samples and minimisers, at every node and condition, and
        never below CROWN."""
        found = programmed(self.plan, self.region, self.spec, method)
        assert torch.isfinite(found.literals).all()
        mine, message = (found.layers, found.literals), "the LP is below CROWN"
        assert_tighter(self.plan, self.crown, self.margins, *mine, message)
        self.truth.check(*mine)
        return found


@cache
def case(name: str, p: float) -> Case:
    """Scale and valid range differ from case to case."""
    graph, number = zoo.NETWORKS[name], list(zoo.NETWORKS).index(name) + NORMS.index(p)
    region = zoo.region(
        graph, p, count=1, clipped=number % 2 == 0, scaled=number % 5 < 3, seed=number
    )
    plan, spec = Plan(graph), conditions(graph)
    crown = Crown().bound(plan, region, spec)
    truth = Truth(graph, region, spec)
    return Case(graph, plan, region, spec, truth, crown.layers, crown.literals)


def nowhere(costs: np.ndarray) -> list[Basis]:
    """No vertex to start from."""
    return [Basis()] * len(costs)


def any_case(name: str) -> Case:
    return case(name, NORMS[list(zoo.NETWORKS).index(name) % 3])


# -- the proof --------------------------------------------------------------------------

MAGNITUDES = (0.0, 5e-324, 1e-300, 1e-20, 1e-3, 1.0, 1e3, 1e10, 1e30, 1e150, 1e300, 1.7e308)


def any_numbers(rows: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers of every magnitude (rows each), of all of them at once, and no numbers."""
    count = len(MAGNITUDES)
    draw = torch.randn((count + 2, rows, *shape), generator=generator, dtype=torch.float64)
    pick = torch.randint(count + 3, draw.shape, generator=generator)
    pick[:count] = torch.arange(count).view(-1, *[1] * (draw.dim() - 1))
    pick[count] = pick[count].clamp(max=count - 3)
    sizes = torch.tensor([*MAGNITUDES, inf, -inf, nan], dtype=torch.float64)
    return (draw.clamp(-1, 1) * sizes[pick]).flatten(0, 1)


@every_network
def test_any_numbers_prove_a_bound(name: str) -> None:
    """NaN is no bound; every other number is one."""
    one = any_case(name)
    graph, plan, truth = one.graph, one.plan, one.truth.conditions[0]
    generator = torch.Generator().manual_seed(len(name))
    dual = {}
    for i in plan.below(graph.output):
        (source,) = graph.nodes[i].inputs
        dual[i] = any_numbers(len(truth), graph.nodes[source].shape, generator)
    coef = rows_of(graph).repeat(len(MAGNITUDES) + 2, 1)
    bound, _ = dual_lines(plan, one.region, graph.output, coef, one.crown.relaxed, dual)
    bound = bound.view(-1, len(truth))
    assert not (bound > truth + 1e-9 * size_of(truth)).any()
    assert torch.isfinite(bound[: MAGNITUDES.index(1e150)]).all()


def test_numbers_that_overflow_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three intercepts whose sum is beyond the largest number, while the form is still finite."""
    graph = chain((torch.eye(3).tolist(), [0.5] * 3), ([[1.0] * 3], [0.0]))
    plan, spec = Plan(graph), conditions(graph)
    half, radius = torch.full((1, 1, 3), 0.5, dtype=torch.float64), torch.full((1,), 0.1)
    region = Region(half, radius.double(), inf)

    def lies(problem: Any, costs: np.ndarray, *rest: Any) -> tuple[Duals, list[Basis]]:
        rows = np.full((len(costs), len(problem.low)), -8e307)
        return Duals(rows, costs.sum(1), np.ones(len(costs), bool)), nowhere(costs)

    monkeypatch.setattr(engine, "minimise", lies)
    found = programmed(plan, region, spec).literals[0]
    truth = Truth(graph, region, spec).conditions[0]
    assert (found <= truth + 1e-9).all()


def test_the_numbers_zero_bound_every_layer_apart() -> None:
    """y = 0 at the last nonlinearity: its output's interval, and nothing from further below."""
    graph = chain(([[1.0], [-1.0]], [0.0, 0.5]), ([[2.0, -3.0]], [0.25]))
    plan, region = Plan(graph), unit_ball(graph)
    relaxed = crown_layers(plan, region, CROWN, Work()).relaxed
    (node,) = plan.nonlinear
    nothing = {node: torch.zeros(1, 1, 2, dtype=torch.float64)}
    one = torch.ones(1, 1, dtype=torch.float64)
    bound, _ = dual_lines(plan, region, graph.output, one, relaxed, nothing)
    assert bound.item() == pytest.approx(0.25 - 3 * 1.5)


# -- a solver that cannot be trusted ----------------------------------------------------

Liar = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
LIARS: dict[str, Liar] = {
    "zero": lambda rng, shape: np.zeros(shape),
    "random": lambda rng, shape: rng.normal(size=shape),
    "large": lambda rng, shape: 1e12 * rng.normal(size=shape),
    "huge": lambda rng, shape: 1e300 * rng.normal(size=shape),
    "overflowing": lambda rng, shape: 1.7e308 * rng.uniform(-1, 1, size=shape),
    "nan": lambda rng, shape: np.full(shape, nan),
    "inf": lambda rng, shape: np.where(rng.random(shape) < 0.5, inf, -inf),
    "a mixture": lambda rng, shape: rng.choice([0, 1, -1, nan, inf, 1e30, -1e-300], shape),
}


@pytest.mark.parametrize("liar", LIARS)
@pytest.mark.parametrize("name", ["mlp sigmoid", "conv_max", "branches"])
def test_a_lying_solver_proves_nothing_false(
    name: str, liar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lies(problem: Any, costs: np.ndarray, *rest: Any) -> tuple[Duals, list[Basis]]:
        rng = np.random.default_rng(len(costs))
        rows = LIARS[liar](rng, (len(costs), len(problem.low)))
        claims = np.full(len(costs), 1e9)
        return Duals(rows, claims, np.zeros(len(costs), bool)), nowhere(costs)

    monkeypatch.setattr(engine, "minimise", lies)
    found = case(name, NORMS[len(liar) % 3]).solve()
    assert found.count.programs == found.count.unsolved > 0


@every_norm
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_solver_that_stops_early_is_counted(
    p: float, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The solvers themselves, with next to no iterations."""
    whole_highs, whole_module = solvers.quiet_highs, solvers.needed

    def short_highs() -> Any:
        model = whole_highs()
        model.setOptionValue("simplex_iteration_limit", limit)
        return model

    class Short:
        """Clarabel with a limit."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(whole_module("clarabel"), attribute)

        def DefaultSettings(self) -> Any:  # noqa: N802
            settings = whole_module("clarabel").DefaultSettings()
            settings.max_iter = max(limit, 1)
            return settings

    monkeypatch.setattr(solvers, "quiet_highs", short_highs)
    monkeypatch.setattr(
        solvers, "needed", lambda name: Short() if name == "clarabel" else whole_module(name)
    )
    found = case("mlp tanh", p).solve()
    assert 0 < found.count.unsolved <= found.count.programs


def test_no_answer_at_all_leaves_crown(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(problem: Any, costs: np.ndarray, *rest: Any) -> tuple[Duals, list[Basis]]:
        return Duals.blank(len(costs), len(problem.low)), nowhere(costs)

    monkeypatch.setattr(engine, "minimise", silent)
    for method in (LP(), LP(inner=Crown()), LP(inner=Frown())):
        found = case("mlp relu", inf).solve(method)
        assert found.count.unsolved == found.count.programs


def test_a_deadline_stops_the_programs() -> None:
    one = case("mlp relu", inf)
    with pytest.raises(OutOfTime):
        programmed(one.plan, one.region, one.spec, work=Work(clock=Clock(-inf)))


# -- order ------------------------------------------------------------------------------


@every_network
def test_every_bound_holds_and_none_is_below_crown(name: str) -> None:
    """interval <= crown <= LP-LAST <= truth and crown <= LP-ALL <= truth on every graph."""
    one = any_case(name)
    interval = Interval().bound(one.plan, one.region, one.spec).literals
    for method in (LP(), LP(inner=Crown())):
        found = one.solve(method)
        assert (found.literals >= interval - 1e-10 * size_of(interval)).all()
        assert found.count.programs >= found.literals.numel()
        assert found.count.unsolved <= 0.1 * found.count.programs


@every_norm
def test_on_relu_more_programs_are_tighter(p: float) -> None:
    """CROWN <= LP-LAST over CROWN's boxes, FROWN <= LP-LAST over FROWN's <= LP-ALL: with the
    triangle of relu smaller boxes make a smaller feasible set."""
    gained = 0.0
    for seed in range(3):
        graph = zoo.mlp(Relu(), (4, 6, 5, 4, 3), seed)
        plan, region, spec = Plan(graph), zoo.region(graph, p, 0.4, 1, seed=seed), conditions(graph)
        by_crown, by_frown, whole = (
            programmed(plan, region, spec, LP(inner=inner)).literals
            for inner in (Crown(), Frown(), None)
        )
        slack = TOLERANCE[p] * size_of(whole)
        assert (by_crown <= whole + slack).all()
        assert (by_frown <= whole + slack).all()
        gained += float((whole - by_crown).sum())
    assert gained > 0


# -- how programs are solved changes nothing --------------------------------------------


@every_norm
@pytest.mark.parametrize("name", ["mlp relu", "mlp sigmoid", "conv_max"])
def test_hot_starts_do_not_change_the_optimum(name: str, p: float) -> None:
    """Objectives one after the other from where the last one ended, in either order, from the
    basis of a smaller program, and each from nothing."""
    one = case(name, p)
    graph, plan, region, relaxed = one.graph, one.plan, one.region, one.crown.relaxed
    source = plan.graph.nodes[plan.nonlinear[-1]].inputs[0]
    size = plan.graph.nodes[source].size
    small = program_of(plan, region, source, relaxed, 3)
    some = small.objective(source, np.eye(size)[: min(size, 6)])[0]
    _, ends = minimise(small.constraints(), some, nowhere(some))
    program = program_of(plan, region, graph.output, relaxed, 3)
    problem = program.constraints()
    costs, _ = program.objective(graph.output, one.spec.coef[0].numpy())
    none = nowhere(costs)
    fresh = np.array([minimise(problem, c[None], none[:1])[0].optimum[0] for c in costs])
    chained, own = minimise(problem, costs, none)
    turned = minimise(problem, costs[::-1], none)[0].optimum[::-1]
    grown = minimise(problem, costs, [ends[-1], *none[1:]])[0].optimum
    again = minimise(problem, costs, own)[0].optimum
    for other in (chained.optimum, turned, grown, again):
        assert other == pytest.approx(fresh, abs=TOLERANCE[p], rel=TOLERANCE[p])


def test_a_hot_engine_and_a_cold_one_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    one = case("residual relu", inf)
    hot = one.solve()

    def cold(
        problem: Any, costs: np.ndarray, starts: list[Basis], *rest: Any
    ) -> tuple[Duals, list[Basis]]:
        parts = [minimise(problem, cost[None], [Basis()], *rest)[0] for cost in costs]
        joined = (np.concatenate([getattr(d, f) for d in parts]) for f in FIELDS)
        return Duals(*joined), nowhere(costs)

    monkeypatch.setattr(engine, "minimise", cold)
    again = one.solve()
    assert torch.allclose(hot.literals, again.literals, atol=1e-8)
    assert again.count == hot.count


@pytest.mark.parametrize("p", [1.0, inf])
def test_vertices_of_another_radius_change_nothing(p: float) -> None:
    graph = zoo.mlp(Relu(), (4, 6, 5, 4, 3), 1)
    plan, region, spec = Plan(graph), zoo.region(graph, p, 0.4, 1, seed=1), conditions(graph)
    kept = SimplexBases()
    for factor in (1.0, 0.8, 0.81, 1.2):
        ball = region.with_radius(region.radius * factor)
        cold = programmed(plan, ball, spec)
        hot = programmed(plan, ball, spec, bases=kept)
        assert torch.allclose(hot.literals, cold.literals, atol=1e-8)
    assert kept.ends


def test_workers_share_the_programs_and_change_nothing() -> None:
    graph = zoo.mlp(Relu(), (4, 8, 8, 3), seed=4)
    plan, region, spec = Plan(graph), zoo.region(graph, inf, 0.5, 1, seed=4), conditions(graph)
    alone = programmed(plan, region, spec)
    with pool_of(2) as pool:
        assert pool.executor is not None
        both = programmed(plan, region, spec, work=Work(pool=pool))
    assert torch.allclose(alone.literals, both.literals, atol=1e-8)
    for i, box in alone.layers.values.items():
        assert torch.allclose(box.lower, both.layers.values[i].lower, atol=1e-8)
        assert torch.allclose(box.upper, both.layers.values[i].upper, atol=1e-8)
    assert both.count == alone.count
