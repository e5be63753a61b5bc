"""Balls moved to the origin: forms, points and bounds are those of the input itself."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds import patches as part
from frown.bounds.first_layer import AtFirstLayer, first_layer
from frown.bounds.forms import LinearForm, form_along, of_entries
from frown.bounds.method import Method
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import Crown, Frown
from frown.methods.frown.ascent import Ascent
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax import Relu, Tanh

NORMS = (1.0, 2.0, 3.0, inf)


def image(seed: int = 20) -> Graph:
    """An image that is flattened first; fewer neurons than pixels."""
    weights, b = zoo.Weights.seeded(seed), Builder()
    x = b.reshape(b.input("x", (1, 1, 4, 4)), (1, 16))
    x = b.add(Relu(), b.linear(x, weights(6, 16), weights(6)))
    return b.graph(b.linear(b.add(Tanh(), b.linear(x, weights(5, 6), weights(5))), weights(3, 5)))


GRAPHS = {
    "narrow": zoo.mlp(Relu(), (12, 5, 6, 3)),
    "wide": zoo.mlp(Tanh(), (4, 9, 6, 3)),
    "image": image(),
    "residual": zoo.residual(Relu()),
}


def problem(name: str, p: float) -> tuple[Plan, Region, LinearProperty]:
    graph = GRAPHS[name]
    ball = zoo.region(graph, p, 0.2, count=3)
    return Plan(graph), ball, conjunction(torch.eye(3, dtype=graph.dtype).expand(3, -1, -1))


def at_input(plan: Plan, target: int, region: Region, index: Tensor | slice) -> AtFirstLayer | None:
    return None


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("method", [Crown(), Frown(ascent=Ascent(3, 3))], ids=lambda m: m.name)
def test_bounds_are_those_of_the_input(
    name: str, p: float, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, ball, spec = problem(name, p)
    every = torch.arange(3)

    def bounds() -> tuple[Tensor, ...]:
        found = method.bound(plan, ball, spec)
        return found.literals, *(box.lower for box in found.layers.values.values())

    assert first_layer(plan, plan.graph.output, ball, every) is not None
    moved = bounds()
    monkeypatch.setattr(part, "first_layer", at_input)
    for a, b in zip(moved, bounds(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("p", NORMS)
def test_the_lowest_point_attains_the_least_value(name: str, p: float) -> None:
    plan, ball, _ = problem(name, p)
    index = torch.tensor([0, 2, 2, 1, 0])
    found = first_layer(plan, plan.graph.output, ball, index)
    assert found is not None
    node = plan.graph.nodes[found.node]
    generator = torch.Generator().manual_seed(3)
    here = torch.randn(5, *node.shape, generator=generator, dtype=torch.float64)
    moved = found.moved(LinearForm(here, torch.zeros(5, dtype=torch.float64)))
    least = found.least(moved.coef) + moved.const
    assert torch.allclose((here * found.lowest(moved.coef)).flatten(1).sum(1), least)
    form = form_along(plan, found.node, here, {})
    assert torch.allclose(ball.rows(index).minimise(form.coef).value + form.const, least)


def test_for_p_2_a_layer_of_few_neurons_sees_a_ball_of_few_dimensions() -> None:
    for p, dimensions in ((2.0, 5), (inf, 12), (1.0, 12)):
        plan, ball, _ = problem("narrow", p)
        found = first_layer(plan, plan.graph.output, ball, slice(None))
        assert found is not None and found.layer.weight.shape == (5, dimensions)


def test_balls_that_are_cut_or_stretched_stay_where_they_are() -> None:
    plan, ball, _ = problem("narrow", inf)
    graph, every = plan.graph, torch.arange(3)
    for other in (
        zoo.region(graph, inf, clipped=True),
        zoo.region(graph, 2.0, scaled=True),
        replace(ball, split=1),
    ):
        assert first_layer(plan, graph.output, other, every) is None


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("method", [Crown(), Frown(ascent=Ascent(3, 3))], ids=lambda m: m.name)
@pytest.mark.parametrize("scaled", [False, True])
def test_one_box_for_all_rows_is_seen_from_its_middle(
    name: str, method: Method, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _, spec = problem(name, inf)
    box = zoo.region(plan.graph, inf, 0.2, count=1, clipped=not scaled, scaled=scaled)
    found = first_layer(plan, plan.graph.output, box, slice(0, 1))
    assert found is not None
    one = spec.rows(torch.tensor([0]))
    moved = method.bound(plan, box, one)
    monkeypatch.setattr(part, "first_layer", at_input)
    plain = method.bound(plan, box, one)
    assert torch.allclose(moved.literals, plain.literals, rtol=1e-9, atol=1e-9)
    outputs = plan.graph.apply(zoo.samples(box)).flatten(1)
    assert (outputs.amin(0) >= moved.literals[0] - 1e-9).all()


@pytest.mark.parametrize("method", [Crown(), Frown(ascent=Ascent(3, 3))], ids=lambda m: m.name)
def test_boxes_that_take_turns_keep_to_themselves(method: Method) -> None:
    plan, _, spec = problem("narrow", inf)
    wide = zoo.region(plan.graph, inf, 0.4, count=3, clipped=True)
    row = max(plan.row_bytes(i) for i in range(plan.graph.output + 1))
    for region in (wide, wide.with_radius(wide.radius / 4), wide):
        together = method.bound(plan, region, spec, work=Work(2 * row)).literals
        for n in range(3):
            own = region.rows(slice(n, n + 1)), spec.rows(torch.tensor([n]))
            fresh = method.bound(Plan(plan.graph), *own).literals
            assert torch.allclose(together[n : n + 1], fresh, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["branches", "product", "conv_max", "lstm", "layer_norm"])
def test_other_first_layers_are_no_start(name: str) -> None:
    """Read by several nodes, by a convolution, frame by frame, or along one of many axes."""
    graph = zoo.NETWORKS[name]
    ball = zoo.region(graph, inf)
    assert first_layer(Plan(graph), graph.output, ball, torch.arange(2)) is None


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_forms_of_single_entries_have_their_values(name: str) -> None:
    graph = zoo.NETWORKS[name]
    plan, count = Plan(graph), 5
    shape = (count, *graph.input_shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=graph.dtype)
    values = graph.values(x)
    sign = torch.tensor([1.0, -1, 1, -1, -1], dtype=graph.dtype)
    for i, node in enumerate(graph.nodes):
        entry = torch.arange(count) * 3 % node.size
        if not torch.isfinite(values[i]).all():  # where attention masks
            continue
        form = of_entries(plan, i, entry, sign)
        here = form.at(dict(enumerate(values)))
        there = sign * values[i].flatten(1)[torch.arange(count), entry]
        assert torch.allclose(here, there, rtol=1e-9, atol=1e-9)


def test_an_entry_of_a_dense_layer_is_a_row_of_its_matrix() -> None:
    plan = Plan(zoo.mlp(Relu(), (4, 6, 3)))
    graph = plan.graph
    (dense,) = graph.nodes[graph.output].inputs  # a reshape is last
    form = of_entries(plan, dense, torch.tensor([1]), torch.ones(1).to(graph.dtype))
    assert list(form.pending) == list(graph.nodes[dense].inputs)
