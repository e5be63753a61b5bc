"""The linear program is a relaxation: what the network really does is feasible in it."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

import zoo
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.methods.crown import crown_layers
from frown.methods.lp.program import Program, wiring
from frown.methods.lp.solvers import Basis, Constraints, minimise, narrowed
from theorem_tools import CROWN, NORMS, chain, program_of, unit_ball

every_network = pytest.mark.parametrize("name", zoo.NETWORKS)


def columns_at(program: Program, x: Tensor, values: list[Tensor]) -> np.ndarray:
    """The program's columns at a point of the region, from the network's own values."""
    region, v = program.region, np.full(program.columns, np.nan)
    step = (x - region.centre).numpy().reshape(-1)
    if region.p != inf and region.scale is not None:
        scale = region.scale.numpy().reshape(-1)
        step = np.where(scale > 0, step / np.where(scale > 0, scale, 1), 0)
    first = np.concatenate([step.clip(min=0), (-step).clip(min=0)]) if region.p == 1 else step
    v[: len(first)] = first
    graph = program.plan.graph
    for i, layer in program.layers.items():
        (source,) = graph.nodes[i].inputs
        v[layer.z_columns] = values[source].numpy().reshape(-1)[layer.z]
        v[layer.a_columns] = values[i].numpy().reshape(-1)[layer.a]
    assert not np.isnan(v).any()
    return v


def assert_feasible(problem: Constraints, v: np.ndarray) -> None:
    value = problem.matrix @ v
    slack = 1e-9 * (1 + np.abs(value))
    assert (value >= problem.low - slack).all()
    assert (value <= problem.high + slack).all()
    assert (v >= problem.least - 1e-9 * (1 + np.abs(v))).all()
    assert (v <= problem.most + 1e-9 * (1 + np.abs(v))).all()
    for cone in problem.cones:
        assert np.linalg.norm(v[cone]) <= problem.radius * (1 + 1e-9)


@every_network
def test_the_networks_values_are_feasible(name: str) -> None:
    """All operators, norms, scale and valid range; residual connections, convolutions, max
    pooling. And the objective is the output."""
    graph = zoo.NETWORKS[name]
    plan = Plan(graph)
    number = list(zoo.NETWORKS).index(name)
    generator = torch.Generator().manual_seed(number)
    coef = torch.randn(3, graph.output_size, generator=generator, dtype=torch.float64).numpy()
    region = zoo.region(
        graph,
        NORMS[number % 3],
        count=1,
        clipped=number % 2 == 0,
        scaled=number % 5 < 3,
        seed=number,
    )
    relaxed = crown_layers(plan, region, CROWN, Work()).relaxed
    for tangents in (1, 3, 9):
        program = program_of(plan, region, graph.output, relaxed, tangents)
        problem = program.constraints()
        costs, const = program.objective(graph.output, coef)
        for x in zoo.samples(region, 12, seed=tangents):
            values = graph.values(x)
            v = columns_at(program, x, values)
            assert_feasible(problem, v)
            output = values[graph.output].numpy().reshape(-1)
            assert costs @ v + const == pytest.approx(coef @ output, abs=1e-9)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("clipped", [False, True], ids=["whole", "clipped"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_the_input_is_the_region_and_no_more(p: float, clipped: bool, scaled: bool) -> None:
    """The optimum of a linear function is the region's own."""
    graph = chain(([[1.0, 2.0, -3.0, 0.5], [0.0, -1.0, 1.0, 4.0]], [0.5, -2.0]))
    region = zoo.region(graph, p, 0.7, 1, clipped=clipped, scaled=scaled, seed=3)
    program = program_of(Plan(graph), region, graph.output, {}, 1)
    rows = torch.tensor([[1.0, 0.0], [0.0, -1.0], [1.0, -2.0]], dtype=torch.float64)
    costs, const = program.objective(graph.output, rows.numpy())
    found, _ = minimise(program.constraints(), costs, [Basis()] * 3)
    assert found.solved.all()
    weight, bias = graph.nodes[1].op.weight, graph.nodes[1].op.bias
    least = region.minimise((rows @ weight).view(3, 1, 4)).value + rows @ bias
    assert found.optimum + const == pytest.approx(least.numpy(), abs=1e-6)


def test_points_outside_are_not_feasible() -> None:
    """A value of f that is wrong breaks a line, a wrong z its tie, a far x the ball."""
    graph = chain(([[1.0], [-1.0]], [0.0, 0.25]), ([[1.0, 1.0]], [0.0]))
    plan, region = Plan(graph), unit_ball(graph)
    relaxed = crown_layers(plan, region, CROWN, Work()).relaxed
    program = program_of(plan, region, graph.output, relaxed, 3)
    problem = program.constraints()
    x = torch.full((1, 1, 1), 0.5, dtype=torch.float64)
    v = columns_at(program, x.view(1, 1), graph.values(x.view(1, 1)))
    assert_feasible(problem, v)
    (layer,) = program.layers.values()
    for place, change in (
        (layer.a_columns[0], 0.6),
        (layer.a_columns[0], -0.6),
        (layer.z_columns[1], 0.1),
        (0, 0.7),
    ):
        wrong = v.copy()
        wrong[place] += change
        with pytest.raises(AssertionError):
            assert_feasible(problem, wrong)


def test_only_what_bends_has_a_column() -> None:
    """Stable neurons are one line of z, dead ones need no z."""
    graph = chain(
        ([[1.0], [1.0], [1.0]], [0.0, 2.0, -2.0]),  # across 0, above, below
        ([[1.0, 1.0, 1.0]], [0.0]),
    )
    plan, region = Plan(graph), unit_ball(graph)
    relaxed = crown_layers(plan, region, CROWN, Work()).relaxed
    program = program_of(plan, region, graph.output, relaxed, 3)
    (layer,) = program.layers.values()
    assert layer.z.tolist() == [0, 1]
    assert layer.a.tolist() == [0]
    assert program.height == 2 + 3  # two ties; 0, z and the chord
    assert program.columns == 1 + 2 + 1


@every_network
def test_wiring_is_the_affine_part_of_the_graph(name: str) -> None:
    """value = const + sum_j matrix[j] node_j, at the output and before every nonlinearity."""
    graph = zoo.NETWORKS[name]
    plan = Plan(graph)
    x = zoo.region(graph, inf, count=1, seed=9).centre
    values = [v.numpy().reshape(-1) for v in graph.values(x)]
    for target in (graph.output, *(graph.nodes[i].inputs[0] for i in plan.nonlinear)):
        wires = wiring(plan, target)
        assert all(j == 0 or j in plan.below(graph.output) for j in wires.matrix)
        found = wires.const + sum(m @ values[j] for j, m in wires.matrix.items())
        assert found == pytest.approx(values[target], abs=1e-12)


def test_more_tangents_add_rows_and_take_none_away() -> None:
    """Tangents at equal distances: those of 3 are among those of 9."""
    graph = zoo.NETWORKS["mlp tanh"]
    plan, region = Plan(graph), zoo.region(graph, inf, count=1)
    relaxed = crown_layers(plan, region, CROWN, Work()).relaxed
    few, many = (
        {
            tuple(row)
            for row in program_of(plan, region, graph.output, relaxed, k).matrix().toarray()
        }
        for k in (3, 9)
    )
    assert few < many


@pytest.mark.parametrize(
    ("balls", "clipped", "narrow"),
    [(1, False, True), (2, False, True), (1, True, False), (5, False, False)],
)
def test_a_ball_that_few_rows_read_has_few_columns(balls: int, clipped: bool, narrow: bool) -> None:
    """Two neurons look at ten features: the optimum is the wide program's, its duals alike."""
    rng = np.random.default_rng(balls)
    ties = np.hstack([rng.normal(size=(2, 10)), -np.eye(2)])
    reach = np.full(12, inf)
    if clipped:
        reach[3] = 0.1
    cones = tuple(np.arange(10).reshape(balls, -1))
    problem = Constraints(csr_array(ties), np.zeros(2), np.zeros(2), -reach, reach, cones, 0.5)
    costs = np.hstack([np.zeros((3, 10)), rng.normal(size=(3, 2))])
    costs[0, 4] = 1.0  # a cost on the input itself is one more row that reads it
    fewer, prices = narrowed(problem, costs)
    assert (len(fewer.least) < len(problem.least)) is narrow
    wide = [len(c) for c in cones]
    assert [len(c) for c in fewer.cones] == ([3, 2][:balls] if narrow else wide)
    found, _ = minimise(problem, costs, [Basis()] * 3)
    assert found.solved.all()
    read = costs[:, :10] + costs[:, 10:] @ ties[:, :10]
    if not clipped:
        exact = -0.5 * sum(np.linalg.norm(read[:, c], axis=1) for c in cones)
        assert found.optimum == pytest.approx(exact, abs=1e-6)
    assert found.rows == pytest.approx(-costs[:, 10:], abs=1e-6)
    assert prices.shape == (3, len(fewer.least))
