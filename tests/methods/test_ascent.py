"""FROWN's ascent: its direction is the gradient, its result the best iterate."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds.first_layer import AtInput
from frown.bounds.forms import form_along
from frown.bounds.plan import Plan, stacked
from frown.bounds.work import Work
from frown.graph.graph import Graph
from frown.methods.crown import crown_layers
from frown.methods.frown.ascent import (
    Ascent,
    Moments,
    RowBatch,
    _better_rows,
    _Search,
    optimise,
    replay,
)
from frown.problem.region import Region
from frown.relax import Max
from frown.relax.relaxation import LeastArea

every_network = pytest.mark.parametrize("name", zoo.NETWORKS)


def problem(graph: Graph, ball: Region, group: Tensor | None = None) -> tuple[Plan, RowBatch]:
    """Two rows per ball on the output, with CROWN's lines."""
    plan = Plan(graph)
    layers = crown_layers(plan, ball, LeastArea(), Work())
    index = torch.arange(len(ball.radius)).repeat_interleave(2)
    generator = torch.Generator().manual_seed(1)
    shape = graph.nodes[-1].shape
    coef = torch.randn(len(index), *shape, generator=generator, dtype=graph.dtype)
    relaxed = stacked(plan, graph.output, layers.relaxed, len(coef))
    own = tuple(relaxed.rows(index) for relaxed in relaxed)
    return plan, RowBatch(graph.output, coef, AtInput(ball.rows(index)), own, group)


def unvisited(plan: Plan, rows: RowBatch, groups: int) -> Tensor:
    slots = plan.slots(rows.target)[1]
    return torch.full((groups, rows.lanes, slots), torch.nan, dtype=rows.coef.dtype)


def bound(plan: Plan, rows: RowBatch, alpha: Tensor) -> Tensor:
    form, _ = replay(plan, rows, alpha)
    return rows.start.least(form.coef) + form.const


def autograd(plan: Plan, rows: RowBatch, alpha: Tensor) -> Tensor:
    """The bounds' gradient by autograd, through everything but the touching points."""
    alpha = alpha.clone().requires_grad_()
    form = _Search(plan, rows, alpha).form()
    value = rows.start.least(form.coef) + form.const
    (gradient,) = torch.autograd.grad(value.sum(), alpha)
    return gradient


def level(plan: Plan, alpha: Tensor) -> Tensor:
    """The places of a maximum's window made equal, as above they are in a search."""
    alpha = alpha.clone()
    for i, place in plan.slots(plan.graph.output)[0].items():
        if isinstance(plan.relaxation(i), Max):
            shape = plan.graph.nodes[plan.graph.nodes[i].inputs[0]].shape
            window = alpha[:, :, place].unflatten(2, shape)
            alpha[:, :, place] = window.mean(-1, keepdim=True).expand_as(window).flatten(2)
    return alpha


@every_network
@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("clipped", [False, True])
def test_what_arrives_forwards_is_the_bound(name: str, p: float, clipped: bool) -> None:
    """The relaxed network at x* has the form's value there, the constants included."""
    graph = zoo.NETWORKS[name]
    ball = zoo.region(graph, p, 0.3)
    if clipped:
        ball = replace(ball, lower=ball.centre - 0.1, upper=ball.centre + 0.2)
    plan, rows = problem(graph, ball)
    start = unvisited(plan, rows, len(rows.coef))
    alpha = torch.rand(start.shape, generator=torch.Generator().manual_seed(3), dtype=start.dtype)
    arrived, _ = _Search(plan, rows, alpha.clone()).evaluate(gradient=True)
    expected, none = _Search(plan, rows, alpha.clone()).evaluate(gradient=False)
    assert none is None and torch.isfinite(expected).all()
    assert torch.allclose(arrived, expected, rtol=1e-9, atol=1e-9)


@every_network
@pytest.mark.parametrize("p", [2.0, inf])
def test_the_ascent_direction_is_the_gradient(name: str, p: float) -> None:
    graph = zoo.NETWORKS[name]
    plan, rows = problem(graph, zoo.region(graph, p))
    generator = torch.Generator().manual_seed(2)
    slots = plan.slots(graph.output)[1]
    alpha = torch.rand(len(rows.coef), 1, slots, generator=generator, dtype=torch.float64)
    alpha = level(plan, 0.02 + 0.08 * alpha)  # where no projection acts
    _, uphill = _Search(plan, rows, alpha.clone()).evaluate(gradient=True)
    assert uphill is not None
    truth = autograd(plan, rows, alpha)
    size = 1 + truth.abs().amax()
    assert torch.allclose(uphill, truth, atol=2e-6 * float(size))
    # And autograd agrees with plain differences, so neither is blind to a dependence.
    direction = level(plan, torch.randn(alpha.shape, generator=generator, dtype=torch.float64))
    h = 1e-6
    rise = (bound(plan, rows, alpha + h * direction) - bound(plan, rows, alpha - h * direction)) / (
        2 * h
    )
    expected = (uphill * direction).sum((1, 2))
    close = (rise - expected).abs() <= 1e-4 * (1 + expected.abs())
    assert close.to(torch.float64).mean() >= 0.75  # a row may stand at a kink


def test_rows_of_a_group_add_up() -> None:
    graph = zoo.NETWORKS["mlp relu"]
    ball = zoo.region(graph, inf)
    plan, rows = problem(graph, ball)
    slots = plan.slots(graph.output)[1]
    alpha = torch.full((2, 2, slots), 0.3, dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    shared = RowBatch(rows.target, rows.coef, rows.start, rows.relaxed, group)
    each = _Search(plan, rows, alpha[group][:, :1].clone()).evaluate(gradient=True)
    both = _Search(plan, shared, alpha.clone()).evaluate(gradient=True)
    assert torch.allclose(each[0], both[0])
    assert each[1] is not None and both[1] is not None
    assert torch.allclose(each[1].view(2, 2, slots).sum(1), both[1].sum(1))


@pytest.mark.parametrize("name", ["mlp relu", "mlp sigmoid", "mlp gelu", "conv_max", "branches"])
@pytest.mark.parametrize("rate", [0.25, 5.0], ids=["usual", "far too fast"])
def test_the_best_iterate_is_kept(name: str, rate: float) -> None:
    """Never below the start, never below a shorter run, and replay gives the same bound."""
    graph = zoo.NETWORKS[name]
    plan, rows = problem(graph, zoo.region(graph, inf))
    fresh = unvisited(plan, rows, len(rows.coef))
    last = None
    for steps in range(0, 13, 3):
        found = optimise(plan, rows, fresh, Ascent(rate=rate), steps)
        assert ((found.alpha >= 0) & (found.alpha <= 1)).all()
        assert torch.allclose(bound(plan, rows, found.alpha), found.bound, atol=1e-10)
        if last is not None:
            assert (found.bound >= last - 1e-12).all()
        last = found.bound


@pytest.mark.parametrize("name", ["mlp relu", "mlp tanh", "mlp leaky_relu_falling", "mlp abs"])
def test_a_fresh_start_is_crowns_bound(name: str) -> None:
    graph = zoo.NETWORKS[name]
    ball = zoo.region(graph, inf)
    plan, rows = problem(graph, ball)
    fresh = unvisited(plan, rows, len(rows.coef))
    found = optimise(plan, rows, fresh, Ascent(), 0)
    index = torch.arange(len(ball.radius)).repeat_interleave(2)
    layers = crown_layers(plan, ball, LeastArea(), Work())
    lines = {i: layers.relaxed[i].lines.rows(index) for i in plan.below(graph.output)}
    form = form_along(plan, graph.output, rows.coef, lines)
    crown = rows.start.least(form.coef) + form.const
    assert torch.allclose(found.bound, crown, atol=1e-9)


def test_with_groups_the_mean_of_each_group_rises() -> None:
    graph = zoo.NETWORKS["mlp relu"]
    group = torch.tensor([0, 0, 1, 1])
    plan, rows = problem(graph, zoo.region(graph, inf), group)
    fresh = unvisited(plan, rows, 2)
    start, end = (optimise(plan, rows, fresh, Ascent(), n) for n in (0, 30))
    for found in (start, end):  # alpha proves every row's bound
        assert torch.allclose(bound(plan, rows, found.alpha), found.bound, atol=1e-10)
    rise = (end.bound - start.bound).view(2, 2).mean(1)
    assert (rise >= -1e-12).all()
    assert (end.bound > start.bound + 1e-6).any()


@pytest.mark.parametrize("count", range(6))
def test_the_better_rows_are_kept(count: int) -> None:
    old, new = torch.zeros(5, 2, 3), torch.ones(5, 2, 3)
    better = torch.arange(5) < count
    kept, room = _better_rows(better, new, old)
    assert kept[:, 0, 0].tolist() == better.float().tolist()
    assert room is (old if kept is new else new)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.85, 1.0])
def test_moments_are_means_of_gradients_and_of_their_squares(memory: float) -> None:
    ascent, generator = Ascent(memory=memory, momentum=0.3), torch.Generator().manual_seed(2)
    moments = Moments(ascent)
    first = second = torch.zeros(())
    for step in range(60):
        gradient = torch.randn(3, 1, 7, generator=generator, dtype=torch.float64)
        gradient[:, :, 0] = 0
        moments.add(gradient.clone())
        first = gradient if step == 0 else ascent.momentum * first + 0.7 * gradient
        square = gradient**2
        second = square if step == 0 else memory * second + (1 - memory) * square
        size = second.sqrt()
        size = size + ascent.noise * size.amax((1, 2), keepdim=True)
        assert torch.allclose(moments.first, first)
        assert torch.allclose(moments.size() * moments.unit, size)
        # Roots of numbers below the normal ones take thirty times as long.
        assert (moments.second >= torch.finfo(torch.float64).tiny).all()
