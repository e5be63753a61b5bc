"""Descents beside the cutting of leaves: slopes are derivatives, points lie in the ball and break
the row."""

from __future__ import annotations

import time
from math import inf

import pytest
import torch

import zoo
from frown.bounds.plan import Plan
from frown.methods.branch.descent import Descents
from frown.methods.branch.passes import General
from frown.problem.region import Region
from frown.relax import Relu

GRAPHS = {"mlp": zoo.mlp(Relu()), "residual": zoo.residual(Relu()), "branches": zoo.branches()}


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_slopes_are_derivatives(name: str) -> None:
    graph = GRAPHS[name]
    passes = General(Plan(graph))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(9, *graph.input_shape, generator=generator).to(graph.dtype) * 4 - 2
    coef = torch.rand(9, graph.output_size, generator=generator).to(graph.dtype) - 0.5
    head, const = passes.head(coef)
    value, slope = passes.slope(x, head)
    point = x.clone().requires_grad_()
    row = (graph.apply(point).flatten(1) * coef).sum(1)
    (wanted,) = torch.autograd.grad(row.sum(), point)
    torch.testing.assert_close(value + const, row.detach())
    torch.testing.assert_close(slope, wanted)


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
def test_points_lie_in_the_ball_and_break_the_row(p: float) -> None:
    """A row is lowered below its value at the centre by as much as a thousand points of the ball
    show at least; what it can nowhere reach is not found."""
    graph = GRAPHS["mlp"]
    passes, zero = General(Plan(graph)), torch.zeros(1, *graph.input_shape, dtype=graph.dtype)
    ball = Region(zero, torch.ones(1, dtype=graph.dtype), p)
    coef = torch.tensor([[1.0, -1.0, 0.5]], dtype=graph.dtype)
    head, const = passes.head(coef)
    many = zoo.samples(ball, 1000).view(-1, *graph.input_shape)
    values = (graph.apply(many).flatten(1) * coef).sum(1)
    level = values.min() + 0.02 * (values.max() - values.min())
    late = time.process_time() + 60
    point = Descents().round(passes, 0, ball, head[:, 0], const[0] - level, zero, late)
    assert point is not None
    assert float(ball.distance(point[None])) <= 1 + 1e-9
    assert float(graph.apply(point[None]).flatten() @ coef[0]) <= float(level)
    low = float(values.min()) - 10 * float(values.max() - values.min())
    assert Descents().round(passes, 0, ball, head[:, 0], const[0] - low, zero, late) is None


def test_rounds_take_turns_and_a_part_of_the_time() -> None:
    graph = GRAPHS["mlp"]
    passes, zero = General(Plan(graph)), torch.zeros(1, *graph.input_shape, dtype=graph.dtype)
    ball = Region(zero, torch.ones(1, dtype=graph.dtype), inf)
    head, const = passes.head(torch.tensor([[1.0, -1.0, 0.5]], dtype=graph.dtype))
    own = Descents()
    assert not own.due(0.0) and own.due(1e3)
    for clause in (4, 2, 4):
        assert own.next((4, 2)) == clause
        own.round(passes, clause, ball, head[:, 0], const[0] + 100, zero, inf)
    assert own.tried == {4: 2, 2: 1}
    assert not own.due(own.spent) and own.due(30 * own.spent)
