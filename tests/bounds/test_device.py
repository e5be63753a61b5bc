"""On a device that is not the CPU all tensors are made there, nothing is copied in passing, and
bounds are those of the CPU."""

from __future__ import annotations

from math import inf

import pytest
import torch

import zoo
from frown.bounds.method import Bounds, Method
from frown.bounds.plan import Plan
from frown.graph.graph import Graph
from frown.methods import Crown, CrownIbp, FastLin, Frown, Interval
from frown.methods.frown.curved import Curved
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax.relaxation import LeastArea
from other_device import DEVICE, MixedDevices, Moves, numbers, other_device

METHODS: dict[str, Method] = {
    "interval": Interval(),
    "fastlin": FastLin(),
    "crown-ibp": CrownIbp(),
    "crown": Crown(),
    "paper": Crown(rule="paper"),
    "frown": Frown(steps=2),
    "groups": Frown(group=2, steps=2),
    "wide": Frown(wide=True, steps=2),
}
LIKELY = ("mlp relu", "conv_max", "lstm")


def problem(graph: Graph, p: float, **more: bool) -> tuple[Region, LinearProperty]:
    ball = zoo.region(graph, p, 0.1, **more)
    spec = torch.eye(graph.output_size, dtype=graph.dtype).expand(len(ball.radius), -1, -1)
    return ball, conjunction(spec)


def elsewhere(
    method: Method, graph: Graph, ball: Region, spec: LinearProperty
) -> tuple[Bounds, Moves]:
    """Bounds on the other device, and what was moved after the problem was there."""
    with other_device() as moves:
        plan, far = Plan(graph.to(graph.dtype, DEVICE)), spec.to(graph.dtype, DEVICE)
        region = ball.on(DEVICE)
        method.bound(plan, region, far)  # whatever a plan finds out once
        there, back = moves.there, moves.back
        moves.waits.clear()
        found = method.bound(plan, region, far)
        moves.there, moves.back = moves.there - there, moves.back - back
    return found, moves


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LIKELY)
def test_bounds_on_another_device_are_those_of_the_cpu(name: str, method: str) -> None:
    graph = zoo.NETWORKS[name]
    ball, spec = problem(graph, inf)
    near = METHODS[method].bound(Plan(graph), ball, spec)
    far, moves = elsewhere(METHODS[method], graph, ball, spec)
    assert far.literals.device == DEVICE
    assert torch.allclose(numbers(far.literals), near.literals, rtol=1e-9, atol=1e-12)
    assert moves.there == moves.back == 0


@pytest.mark.parametrize("name", sorted(set(zoo.NETWORKS) - set(LIKELY)))
def test_every_operator_works_on_another_device(name: str) -> None:
    graph = zoo.NETWORKS[name]
    ball, spec = problem(graph, inf)
    near = Crown().bound(Plan(graph), ball, spec).literals
    far, moves = elsewhere(Crown(), graph, ball, spec)
    assert torch.allclose(numbers(far.literals), near, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert moves.there == moves.back == 0


@pytest.mark.parametrize("p", zoo.NORMS)
@pytest.mark.parametrize(("clipped", "scaled"), [(False, False), (True, True)])
def test_every_region_works_on_another_device(p: float, clipped: bool, scaled: bool) -> None:
    graph = zoo.mlp(zoo.Relu(), (12, 5, 6, 3))
    ball, spec = problem(graph, p, clipped=clipped, scaled=scaled)
    near = Frown(steps=2).bound(Plan(graph), ball, spec).literals
    far, moves = elsewhere(Frown(steps=2), graph, ball, spec)
    assert torch.allclose(numbers(far.literals), near, rtol=1e-9, atol=1e-12)
    assert moves.there == moves.back == 0


@pytest.mark.parametrize("name", ["mlp relu", "residual relu"])
def test_rows_bend_on_another_device(name: str) -> None:
    graph = zoo.NETWORKS[name]
    ball, spec = problem(graph, 2.0)
    near = Curved(LeastArea()).bound(Plan(graph), ball, spec).literals
    far, _ = elsewhere(Curved(LeastArea()), graph, ball, spec)
    assert torch.allclose(numbers(far.literals), near, rtol=1e-6, atol=1e-9)


def test_waiting_for_numbers_does_not_grow_with_steps() -> None:
    """An ascent tells the device what to do; it does not look at results on the way but to keep the
    best."""
    graph = zoo.mlp(zoo.Relu(), (12, 5, 6, 3))
    ball, spec = problem(graph, inf)
    waits = {}
    for steps in (2, 12):
        _, moves = elsewhere(Frown(steps=steps), graph, ball, spec)
        waits[steps] = sum(moves.waits.values())
    per_step = (waits[12] - waits[2]) / 10
    assert (
        per_step <= 2 * 3
    )  # one look at each of the two hidden layers and the outputs, and a copy


def test_the_device_refuses_tensors_of_the_cpu() -> None:
    with other_device() as moves:
        here, there = torch.ones(3), torch.ones(3, device=DEVICE)
        with pytest.raises(MixedDevices):
            here + there
        with pytest.raises(MixedDevices):
            there[torch.tensor([0])]
        assert torch.equal((there + 1).cpu(), 2 * here) and moves.back == 1
