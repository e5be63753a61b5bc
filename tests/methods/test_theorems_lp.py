"""Optimised lines and linear programs: what is convex, and what converges to what."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import zoo
from examples import examples
from frown.bounds.forms import Chosen
from frown.bounds.method import Bounds
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.methods import LP, Crown, Frown
from frown.methods.crown import crown_layers
from frown.methods.frown.ascent import Ascent, optimise
from frown.methods.frown.network import gather_rows
from frown.problem.property import LinearProperty
from frown.problem.region import Region
from frown.relax import Relu
from functions import ELEMENTWISE
from theorem_tools import (
    CROWN,
    NORMS,
    TOLERANCE,
    RelaxedNodes,
    ball,
    chain,
    conditions,
    pull_back,
    reached,
    rows_of,
    self_consistent,
    size_of,
    small,
    solve,
    unit_ball,
)

SEEDS = st.integers(0, 2**20)
one = examples(1)
few = examples(2)
LONG = Ascent(steps=200, more=200, decay=0.98)
LONGER = Ascent(steps=3200, more=3200, decay=0.9975)  # steps add up to 8 times as much


def frowned(
    plan: Plan, region: Region, spec: LinearProperty, ascent: Ascent = LONG, wide: bool = False
) -> Bounds:
    return Frown(wide=wide, ascent=ascent).bound(plan, region, spec)


# -- Optimising lines -------------------------------------------------------------------


def at_slopes(
    plan: Plan, region: Region, relaxed: RelaxedNodes, coef: Tensor, slopes: dict[int, Tensor]
) -> Tensor:
    """The bound as a function of every row's slopes (rows, *input shape of the node)."""

    def choose(i: int, here: Tensor) -> Chosen:
        below = here >= 0
        return Chosen(slopes[i], relaxed[i].op.line(slopes[i], below, relaxed[i].anchors).intercept)

    form = pull_back(plan, plan.graph.output, coef, choose)
    return region.minimise(form.coef).value + form.const


@pytest.mark.parametrize("name", ELEMENTWISE)
@few
@given(seed=SEEDS)
def test_two_layers_are_concave_in_the_slopes(name: str, seed: int) -> None:
    """A lower bound's value between two choices of slopes is at least the mean of theirs, for
    tightest lines and for all others."""
    graph = zoo.mlp(ELEMENTWISE[name], (3, 6, 2), seed)
    plan, region = Plan(graph), ball(graph, (1.0, 2.0, 3.0, inf)[seed % 4], seed)
    relaxed, (node,) = self_consistent(plan, region), plan.nonlinear
    coef = rows_of(graph).repeat(40, 1)
    generator = torch.Generator().manual_seed(seed)
    shape = (2, len(coef), 1, 6)
    for reach in (1.0, 5.0):
        a, b = torch.randn(shape, generator=generator, dtype=torch.float64) * reach
        share = torch.rand(len(coef), generator=generator, dtype=torch.float64)
        middle = torch.lerp(a, b, share[:, None, None])
        ends = [at_slopes(plan, region, relaxed, coef, {node: s}) for s in (a, b)]
        found = at_slopes(plan, region, relaxed, coef, {node: middle})
        mean = torch.lerp(*ends, share)
        assert (found >= mean - 1e-9 * size_of(*ends)).all()


def test_three_layers_are_not() -> None:
    """F(x) = relu(relu(x) - 1/2), |x| <= 1, lines s1 x and s2 z: the bound is -s1 s2 - s2 / 2. At
    (0, 1) and (1, 0) it is -1/2 and 0, half way between -1/2, less than the mean."""
    graph = chain(([[1.0]], [0.0]), ([[1.0]], [-0.5]), ([[1.0]], [0.0]))
    plan, region = Plan(graph), unit_ball(graph)
    relaxed = self_consistent(plan, region)
    first, second = plan.nonlinear
    s1, s2 = torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 0.5]], dtype=torch.float64)
    coef = torch.ones(3, 1, dtype=torch.float64)
    slopes = {first: s1.view(3, 1, 1), second: s2.view(3, 1, 1)}
    found = at_slopes(plan, region, relaxed, coef, slopes).tolist()
    assert found == pytest.approx([-0.5, 0, -0.5], abs=1e-9)
    assert found[2] < (found[0] + found[1]) / 2 - 0.2


# -- The wider search space -------------------------------------------------------------


@pytest.mark.parametrize("name", [*ELEMENTWISE, "max"])
@one
@given(seed=SEEDS)
def test_the_wide_search_is_at_least_as_tight(name: str, seed: int) -> None:
    graph = small(name, seed)
    plan, region, spec = Plan(graph), ball(graph, NORMS[seed % 3], seed), conditions(graph)
    narrow, wide = (frowned(plan, region, spec, Ascent(3, 3), w) for w in (False, True))
    assert (wide.literals >= narrow.literals - 1e-10 * size_of(narrow.literals)).all()
    truth = reached(graph, region, rows_of(graph))
    assert (wide.literals <= truth + 1e-9 * size_of(truth)).all()
    for source in plan.sources.values():
        a, b = wide.layers.values[source], narrow.layers.values[source]
        assert (a.lower >= b.lower - 1e-10 * size_of(b.lower)).all()
        assert (a.upper <= b.upper + 1e-10 * size_of(b.upper)).all()


# -- FROWN and the linear programs ------------------------------------------------------


def beside_programs(
    sizes: tuple[int, ...], p: float, seed: int, ascent: Ascent = LONG
) -> tuple[Tensor, Tensor]:
    """By row, what FROWN misses of LP-ALL beyond what solvers may be off, and 0.5 % of the distance
    from CROWN to the truth, or what is seen of it. FROWN never passes LP-ALL."""
    graph = zoo.mlp(Relu(), sizes, seed)
    plan, region, spec = Plan(graph), zoo.region(graph, p, 0.4, 1, seed=seed), conditions(graph)
    crown = Crown().bound(plan, region, spec).literals
    best = frowned(plan, region, spec, ascent).literals
    programs = LP().bound(plan, region, spec).literals
    slack = TOLERANCE[p] * size_of(programs)
    assert (best <= programs + slack).all()
    gap = (reached(graph, region, rows_of(graph))[None] - crown).clamp(min=0)
    return programs - slack - best, 0.005 * gap


@pytest.mark.parametrize("p", NORMS)
@few
@given(seed=SEEDS)
@example(seed=1047238)
def test_on_relu_frown_never_passes_the_linear_programs(p: float, seed: int) -> None:
    """The best lines of every row are the programs' duals, and the boxes of LP-ALL follow from
    its lines."""
    beside_programs((4, 6, 5, 4, 3), p, seed)


@pytest.mark.parametrize("p", NORMS)
@few
@given(seed=SEEDS)
def test_with_one_hidden_layer_frown_converges_to_the_linear_programs(p: float, seed: int) -> None:
    """Bounds are concave in the slopes: as a rule 200 steps suffice; more come nearer."""
    short, near = beside_programs((4, 6, 3), p, seed)
    far = short > near
    if bool(far.any()):
        left, _ = beside_programs((4, 6, 3), p, seed, LONGER)
        assert (left <= near.maximum(2 / 3 * short))[far].all()


def test_deeper_networks_come_near_the_linear_programs() -> None:
    """Not all rows: bounds are not concave in the slopes, and some ascents end, or all but end,
    before. Of four layers, 200 steps come near in 95 % of rows."""
    found = [beside_programs((4, 6, 5, 4, 3), p, seed) for p in NORMS for seed in range(6)]
    near = torch.cat([(short <= near).flatten() for short, near in found])
    assert near.double().mean() >= 0.95


def best_lines(plan: Plan, region: Region, coef: Tensor, relaxed: RelaxedNodes) -> Tensor:
    """FROWN's bound of every row over given boxes, long optimised."""
    rows = torch.arange(len(coef))
    (part,) = parts(plan, plan.graph.output, 0).parts
    chosen, _ = gather_rows(
        part, region, coef, 0 * rows, 0 * rows, rows, relaxed, grouped=False, wide=False
    )
    slots = plan.slots(plan.graph.output)[1]
    start = coef.new_full((len(coef), chosen.lanes, slots), torch.nan)
    return optimise(plan, chosen, start, LONG, LONG.steps).bound


@pytest.mark.parametrize(
    ("name", "p"), [("sigmoid", 1.0), ("tanh", 2.0), ("sigmoid", inf), ("softplus", inf)]
)
def test_on_curves_both_converge_to_the_convex_hull(name: str, p: float) -> None:
    """Over the same boxes, with tangents at 3, 9, 33, 65 points: the programs' optima rise, and
    what is proved with their duals lies between them and their limit, the hull's optimum.

    FROWN chooses among all tangents, but does not know l <= z <= u: it converges to the hull's
    optimum without boxes, hence is not below a program with any number of tangents and no boxes.
    """
    graph = zoo.mlp(ELEMENTWISE[name], (3, 5, 4, 2), seed=len(name))
    plan, coef = Plan(graph), rows_of(graph)
    region = zoo.region(graph, p, 0.8, 1, seed=1)
    relaxed = crown_layers(plan, region, CROWN, Work()).relaxed
    found = [solve(plan, region, graph.output, coef, relaxed, k) for k in (3, 9, 33, 65)]
    hull = found[-1].value  # but for an error of the square of the tangents' distance
    slack = TOLERANCE[p] * size_of(hull)
    near = slack + 1e-4 * size_of(hull)
    for fewer, more in pairwise(found):
        assert (more.value >= fewer.value - slack).all()
    for one in found:
        assert (one.proved >= one.value - slack).all()
        assert (one.proved <= hull + near).all()
    misses = [float((hull - one.value).sum()) for one in found]
    assert misses[0] > 1e-3
    assert misses[1] < misses[0] / 4 and misses[2] < misses[1] / 4 + 1e-6

    first, *bare = (
        solve(plan, region, graph.output, coef, relaxed, k, boxes=False).value for k in (1, 3, 65)
    )
    frown = best_lines(plan, region, coef, relaxed)
    gap = bare[-1] - first
    assert float(gap.sum()) > 1e-3
    assert (frown <= bare[-1] + near).all()
    for value in bare:
        assert (frown >= value - 0.01 * gap - slack).all()
