"""Nodes of one function side by side give what each gives alone."""

from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import zoo
from frown.bounds import plan as banks
from frown.bounds.plan import Plan, stacks
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import Frown
from frown.methods.frown.ascent import Ascent
from frown.problem.property import conjunction
from frown.relax import PRelu, Relu, Sigmoid, Tanh
from frown.relax.relaxation import RowSides


def mixed(seed: int = 30) -> Graph:
    """Two relus, a tanh, a relu; parametric relus with slopes of their own."""
    weights, b = zoo.Weights.seeded(seed), Builder()
    x = b.input("x", (1, 4))
    slopes = (torch.full((1, 5), 0.1), torch.full((1, 5), 0.3))
    ops = (Relu(), Relu(), Tanh(), Relu(), *(PRelu(s.double()) for s in slopes))
    for op in ops:
        x = b.add(op, b.linear(x, weights(5, x.shape[-1]), weights(5)))
    return b.graph(b.linear(x, weights(3, 5), weights(3)))


GRAPHS = {
    "relu": zoo.mlp(Relu(), (4, 6, 6, 5, 3)),
    "sigmoid": zoo.mlp(Sigmoid(), (4, 6, 6, 5, 3)),
    "residual": zoo.residual(Relu()),
    "mixed": mixed(),
    "branches": zoo.branches(),
    "pooled": zoo.conv_max(),
    "lstm": zoo.lstm(),
}


def test_neighbours_of_one_function_are_a_run() -> None:
    plan = Plan(GRAPHS["mixed"])
    found = [len(stack.nodes) for stack in stacks(plan, plan.graph.output)]
    assert found == [2, 1, 1, 1, 1]  # operators with constants stay apart


@pytest.mark.parametrize("name", GRAPHS)
def test_runs_are_the_slots_in_order(name: str) -> None:
    plan = Plan(GRAPHS[name])
    places, count = plan.slots(plan.graph.output)
    found = stacks(plan, plan.graph.output)
    assert [i for stack in found for i in stack.nodes] == list(places)
    assert [stack.slots.start for stack in found] == [0, *(stack.slots.stop for stack in found)][
        :-1
    ]
    assert sum(sum(stack.sizes) for stack in found) == count


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_runs_give_what_their_nodes_give_alone(
    name: str, group: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bounds() -> tuple[Tensor, ...]:
        plan, ball = Plan(GRAPHS[name]), zoo.region(GRAPHS[name], inf, 0.1)
        spec = conjunction(torch.eye(3, dtype=torch.float64).expand(2, -1, -1))
        method = Frown(group=group, wide=wide, ascent=Ascent(3, 3))
        found = method.bound(plan, ball, spec)
        return found.literals, *(box.upper for box in found.layers.values.values())

    together = bounds()
    monkeypatch.setattr(banks, "STACKED", 0)
    for a, b in zip(together, bounds(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)
    monkeypatch.undo()
    monkeypatch.setattr(banks, "CROWD", 0)  # so are those that many rows pass
    for a, b in zip(together, bounds(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=40))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sides_chosen_by_arithmetic_are_exact(
    dtype: torch.dtype, drawn: list[tuple[float, float, float]]
) -> None:
    coef, lower, upper = torch.tensor(drawn, dtype=dtype).T
    sides = RowSides(coef)
    assert torch.equal(sides.of(lower, upper), torch.where(coef >= 0, lower, upper))
    assert torch.equal(sides.sign, torch.where(coef >= 0, -1.0, 1.0).to(dtype))
    assert torch.equal(sides.above == 0, sides.below)


def test_a_side_without_a_number_gives_none() -> None:
    """Nothing is proved where a line is missing, be it the one that is not needed."""
    coef = torch.tensor([1.0, -1.0, torch.nan])
    for bad in (torch.nan, torch.inf, -torch.inf):
        none = torch.full((3,), bad)
        assert not torch.isfinite(RowSides(coef).of(none, torch.zeros(3))).any()
        assert not torch.isfinite(RowSides(coef).of(torch.zeros(3), none)).any()
