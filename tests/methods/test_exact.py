"""The exact method, against truth by dense sampling in two dimensions."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asking
import frown
import zoo
from frown.bounds.plan import Plan
from frown.bounds.work import NO_LIMIT, Clock
from frown.errors import InvalidInput
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import Crown, Exact, Frown
from frown.methods.exact.distance import Distance, exact
from frown.problem.property import LabelWins, LinearProperty, conjunction, other_classes
from frown.problem.region import Region
from frown.relax import Max, Tanh
from frown.relax.piecewise import Abs, Clip, LeakyRelu, PRelu, Relu
from frown.relax.relaxation import Relaxation

pytest.importorskip("highspy")

OPS: dict[str, Relaxation] = {
    "relu": Relu(),
    "leaky": LeakyRelu(0.1),
    "leaky falling": LeakyRelu(-0.3),
    "prelu": PRelu(torch.tensor([0.25, 0.5, -0.2, 1.5, 0.0, 2.0])),
    "clip": Clip(-0.4, 0.5),
    "abs": Abs(),
}


def network(op: Relaxation, seed: int, features: int = 2) -> Graph:
    return zoo.mlp(op, (features, 6, 6, 3), seed)


def max_network(seed: int) -> Graph:
    weights = zoo.Weights.seeded(seed)
    b = Builder()
    x = b.input("x", (2,))
    h = b.add(Max(), b.reshape(b.linear(x, weights(9, 2), weights(9)), (3, 3)))
    h = b.add(Max(), b.reshape(b.linear(h, weights(6, 3), weights(6)), (3, 2)))
    return b.graph(b.linear(h, weights(3, 3), weights(3)))


def problem(graph: Graph, seed: int, p: float) -> tuple[Region, LabelWins]:
    """A point and all conditions that hold there."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, *graph.input_shape, generator=generator, dtype=graph.dtype)
    label = graph.apply(centre).argmax(1)
    spec = LabelWins(label, other_classes(label, graph.output_size), graph.output_size, graph.dtype)
    return Region(centre, torch.zeros(1, dtype=graph.dtype), p), spec


def worst(graph: Graph, spec: LabelWins | LinearProperty, x: Tensor) -> Tensor:
    return (graph.apply(x) @ spec.coef[0].T).amin(1)


def truth(graph: Graph, region: Region, spec: LabelWins | LinearProperty, reach: float) -> float:
    """The distance of the nearest counterexample up to `reach`, by grids ever finer around
    the best points of the one before; inf if there is none. Two features move."""
    scale = torch.ones_like(region.centre) if region.scale is None else region.scale
    moving = scale.flatten().nonzero().flatten()
    assert len(moving) == 2
    spots, width, best = torch.zeros(1, 2, dtype=torch.float64), reach, inf
    for count in (401, 41, 41, 41):
        side = torch.linspace(-width, width, count, dtype=torch.float64)
        grid = torch.cartesian_prod(side, side)
        steps = (spots[:, None] + grid[None]).reshape(-1, 2)
        x = region.centre.flatten().repeat(len(steps), 1)
        x[:, moving] += steps * scale.flatten()[moving]
        x = x.view(-1, *graph.input_shape)
        inside = torch.linalg.vector_norm(steps, ord=region.p, dim=1)
        valid = inside <= reach
        if region.lower is not None and region.upper is not None:
            valid &= ((x >= region.lower) & (x <= region.upper)).flatten(1).all(1)
        hit = valid & (worst(graph, spec, x) <= 0)
        if not hit.any():
            return best
        distance = torch.where(hit, inside, inf)
        best = min(best, float(distance.min()))
        spots = steps[distance.argsort()[:20]]
        width = 2 * width / (count - 1)
    return best


def solve(
    graph: Graph,
    region: Region,
    spec: LabelWins | LinearProperty,
    upper: float,
    clock: Clock = NO_LIMIT,
) -> Distance:
    """From nothing known: no attack, no radius proved."""
    return exact(Plan(graph), region, spec, Exact(), upper, 0.0, clock, broken=False)


def check(
    graph: Graph, region: Region, spec: LabelWins | LinearProperty, reach: float = 3.0
) -> Distance:
    found, real = solve(graph, region, spec, reach), truth(graph, region, spec, reach)
    assert found.optimal, found.message
    if real == inf:
        assert found.proved == pytest.approx(reach, rel=2e-6)
        assert found.point is None
        return found
    assert 0.99 * real <= found.proved <= real
    assert found.point is not None
    assert found.proved <= found.broken <= 1.005 * real
    assert worst(graph, spec, found.point[None]) <= 0
    assert min(found.targets) == found.proved
    return found


@pytest.mark.parametrize("p", [1.0, inf])
@pytest.mark.parametrize("name", OPS)
def test_the_radius_is_exact(name: str, p: float) -> None:
    for seed in range(2 if name == "relu" else 1):
        graph = network(OPS[name], seed)
        check(graph, *problem(graph, seed, p))


@pytest.mark.parametrize("p", [1.0, inf])
def test_the_radius_is_exact_with_maxima(p: float) -> None:
    for seed in range(2):
        graph = max_network(seed)
        check(graph, *problem(graph, seed, p))


@pytest.mark.parametrize("p", [1.0, inf])
def test_features_have_their_scale_and_a_frozen_one_stays(p: float) -> None:
    graph = network(Relu(), 8, features=3)
    region, spec = problem(graph, 8, p)
    region = replace(region, scale=torch.tensor([[[0.5, 0.0, 2.0]]], dtype=graph.dtype))
    found = check(graph, region, spec)
    assert found.point is not None
    assert found.point[0, 1] == region.centre[0, 0, 1]


@pytest.mark.parametrize("p", [1.0, inf])
def test_the_valid_range_is_kept(p: float) -> None:
    free = cut = 0.0
    for seed in range(3):
        graph = network(Relu(), seed)
        region, spec = problem(graph, seed, p)
        free += solve(graph, region, spec, 3.0).proved
        low, high = region.centre - 0.3, region.centre + 2.0
        cut += check(graph, replace(region, lower=low, upper=high), spec).proved
    assert cut > 1.05 * free  # the range does change the answer


def test_a_single_condition_breaks_no_sooner() -> None:
    graph = network(Relu(), 5)
    region, spec = problem(graph, 5, inf)
    together = solve(graph, region, spec, 3.0)
    alone = [check(graph, region, conjunction(spec.coef[:, t : t + 1])).proved for t in range(2)]
    assert min(alone) == pytest.approx(together.proved, rel=0.005)


def test_every_certified_radius_lies_below() -> None:
    graph = zoo.mlp(Relu(), (6, 8, 8, 4), 7)
    region, spec = problem(graph, 7, inf)
    plan = Plan(graph)
    found = solve(graph, region, spec, 3.0)
    assert found.optimal
    ball = region.with_radius(torch.tensor([found.broken], dtype=graph.dtype))
    for method in (Crown(), Frown()):
        assert method.bound(plan, ball, spec).literals.min() <= 0
    # And no sampled point within the proved radius breaks anything.
    rng = np.random.default_rng(0)
    steps = rng.uniform(-1, 1, (100_000, 1, 6)) * found.proved
    corner = np.sign(steps[:50_000]) * found.proved
    x = region.centre + torch.from_numpy(np.concatenate([steps, corner]))
    assert worst(graph, spec, x).min() > 0


def test_a_known_bracket_gives_the_same_answer() -> None:
    graph = network(Relu(), 1)
    region, spec = problem(graph, 1, inf)
    free = solve(graph, region, spec, 3.0)
    upper, lower = free.broken * 1.03, free.proved * 0.6
    known = exact(Plan(graph), region, spec, Exact(), upper, lower, NO_LIMIT)
    assert known.optimal
    assert known.proved == pytest.approx(free.proved, rel=0.005)
    shut = exact(Plan(graph), region, spec, Exact(), free.broken, lower, NO_LIMIT)
    assert shut.optimal
    assert shut.proved <= free.broken


@pytest.mark.parametrize("seconds", [1e-9, 0.3])
def test_out_of_time_what_was_proved_stands(seconds: float) -> None:
    graph = zoo.mlp(Relu(), (10, 40, 40, 40, 3), 2)
    region, spec = problem(graph, 2, inf)
    plan, lower = Plan(graph), 1e-3
    upper = 3.0
    found = exact(plan, region, spec, Exact(), upper, lower, Clock.lasting(seconds))
    assert lower <= found.proved <= found.broken
    assert not found.optimal
    assert "time limit" in found.message
    rng = np.random.default_rng(0)
    corner = np.sign(rng.uniform(-1, 1, (20_000, 1, 10))) * found.proved
    assert worst(graph, spec, region.centre + torch.from_numpy(corner)).min() > 0


def test_single_precision_and_tiny_radii() -> None:
    graph = network(Relu(), 0)
    region, spec = problem(graph, 0, inf)
    wide = solve(graph, region, spec, 3.0)
    thin = replace(region, scale=torch.full_like(region.centre, 1e6))
    narrow = solve(graph, thin, spec, 3e-6)
    assert narrow.proved == pytest.approx(wide.proved * 1e-6, rel=0.005)
    plan = Plan(graph.to(torch.float32))
    single = Region(region.centre.float(), region.radius.float(), inf)
    found = exact(plan, single, conjunction(spec.coef.float()), Exact(), 3.0, 0.0, NO_LIMIT)
    assert found.proved == pytest.approx(wide.proved, rel=0.005)


def test_what_it_cannot_do_it_says() -> None:
    graph = network(Tanh(), 0)
    region, spec = problem(graph, 0, inf)
    with pytest.raises(InvalidInput, match=r"Tanh.*use frown or lp"):
        solve(graph, region, spec, 1.0)
    graph = network(Relu(), 0)
    region, spec = problem(graph, 0, 2.0)
    with pytest.raises(InvalidInput, match=r"norm 1 or inf, not 2.*frown or lp"):
        solve(graph, region, spec, 1.0)


def from_origin(graph: Graph, reach: float) -> Distance:
    """Of class 0 at the origin, no counterexample known."""
    spec = LabelWins(torch.tensor([0]), torch.tensor([[1]]), 2, graph.dtype)
    zero = torch.zeros(1, dtype=graph.dtype)
    region = Region(zero.new_zeros(1, *graph.input_shape), zero, inf)
    return exact(Plan(graph), region, spec, Exact(), reach, 0.0, NO_LIMIT, broken=False)


def test_a_network_without_open_neurons_is_solved_as_what_it_is() -> None:
    """With nothing to branch on there is no bound from branching to read."""
    build = Builder()
    x = build.input("x", (2,))
    # Both neurons are active all over the ball, so the margin is 0.5 - x_0.
    weight = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    h = build.add(Relu(), build.linear(x, weight, torch.tensor([100.0, 50.0]).double()))
    last = torch.tensor([[-1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    graph = build.graph(build.linear(h, last, torch.tensor([100.5, 0.0]).double()))
    found = from_origin(graph, 10.0)
    assert 0.49 <= found.proved <= 0.5
    assert found.point is not None and found.broken == pytest.approx(0.5, rel=5e-3)


@pytest.mark.parametrize("large", [1e6, 1e9, 1e12])
def test_coefficients_too_small_for_the_solver_prove_nothing(large: float) -> None:
    """relu(K x + y) - relu(K x) is y where K x > 0, however large K is."""
    build = Builder()
    x = build.input("x", (2,))
    weight = torch.tensor([[large, 1.0], [large, 0.0]], dtype=torch.float64)
    h = build.add(Relu(), build.linear(x, weight))
    last = torch.tensor([[-1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    graph = build.graph(build.linear(h, last, torch.tensor([0.5, 0.0]).double()))
    found = from_origin(graph, 5.0)
    assert found.proved <= 0.5


@pytest.mark.parametrize("eps", [None, 2.0, 1e-3])
def test_its_counterexamples_are_replayed_in_the_model(eps: float | None) -> None:
    """Without an attack, what the program found is all there is."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    x = np.random.default_rng(0).normal(size=(4, 2))
    model = frown.load(net, torch.from_numpy(x[:1]).float())
    y = model.run(x).argmax(1)
    result = asking.certify(model, x, y, method="milp", attack=False, eps=eps, bounds=(-2, 2))
    points = result.counterexamples
    near = 0
    for row in result.rows:
        if eps == 1e-3:
            assert row.status == "certified" and row.broken is None
            continue
        assert row.broken is not None and row.radius < row.broken
        point = points[row.index]
        answer = model.run(point[None])[0]
        assert answer[row.label] <= np.delete(answer, row.label).max()  # a tie is an error
        assert np.abs(point).max() <= 2
        assert float(np.abs(point - x[row.index]).max()) == pytest.approx(row.broken)
        near += row.radius > 0.99 * row.broken
    assert eps is not None or near == len(x)
