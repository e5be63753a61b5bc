"""Counterexamples lie in the region, are wrong, and are about as near as they can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import ClassVar

import numpy as np
import pytest
import torch

import frown
import zoo
from frown import Ball, Crown
from frown.bounds.method import Closing, Ends, Method, Update
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.certification.attack import PGD, nearest
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.problem.property import LabelWins, Property, other_classes
from frown.problem.region import Region
from frown.relax import Relu

NORMS = (1.0, 2.0, 3.0, inf)


def linear(weight: list[float], bias: float) -> Graph:
    """Two outputs whose difference is w . x + b."""
    b = Builder()
    x = b.input("x", (1, len(weight)))
    rows = torch.tensor([weight, [0.0] * len(weight)], dtype=torch.float64)
    return b.graph(b.linear(x, rows, torch.tensor([bias, 0.0])))


@cache
def divided() -> Graph:
    """The first random network that knows two classes or more in the box of the tests."""
    x = torch.rand(200, 1, 4, generator=torch.Generator().manual_seed(0)).double() * 1.7 - 0.9
    for seed in range(100):
        graph = zoo.mlp(Relu(), seed=seed)
        if graph.apply(x).argmax(1).bincount().amax() < 120:
            return graph
    raise AssertionError("every network is constant")


@pytest.mark.parametrize("p", NORMS)
def test_the_distance_to_a_plane(p: float) -> None:
    """|w . x + b| / ||w||_q: the attack finds it to a few percent and never beats it."""
    weight = [1.0, -2.0, 0.5, 0.1]
    graph = linear(weight, 1.0)
    q = {1.0: inf, 2.0: 2.0, 3.0: 1.5, inf: 1.0}[p]
    truth = 1.0 / float(torch.tensor(weight).norm(q))
    ball = Region(torch.zeros(1, 1, 4).double(), torch.tensor([5.0]).double(), p)
    spec = LabelWins(torch.tensor([0]), torch.tensor([[1]]), 2, torch.float64)
    found = nearest(graph, ball, spec, torch.tensor([0.1]).double(), PGD())
    distance = float(found.distance[0])
    assert truth * (1 - 1e-9) <= distance <= truth * 1.05
    assert float(ball.distance(found.point)[0]) == pytest.approx(distance)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("clipped", [False, True], ids=["whole", "clipped"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", ["divided", "conv_max"])
def test_points_are_inside_and_adversarial(
    name: str, p: float, clipped: bool, scaled: bool
) -> None:
    graph = divided() if name == "divided" else zoo.NETWORKS[name]
    ball = zoo.region(graph, p, radius=3.0, count=4, clipped=clipped, scaled=scaled)
    label = graph.apply(ball.centre).argmax(1)
    spec = LabelWins(label, other_classes(label, 3), 3, torch.float64)
    found = nearest(graph, ball, spec, ball.radius / 10, PGD(steps=25, restarts=2))
    hit = torch.isfinite(found.distance)
    assert hit.any()
    worst = (spec.coef @ graph.apply(found.point)[:, :, None]).squeeze(-1).amin(1)
    assert (worst[hit] <= 0).all()
    assert (found.distance <= ball.radius * (1 + 1e-9))[hit].all()
    assert torch.allclose(ball.distance(found.point)[hit], found.distance[hit])
    if clipped:
        assert ((found.point >= ball.lower) & (found.point <= ball.upper)).all()
    if scaled:
        assert torch.equal(found.point.flatten(1)[:, 0], ball.centre.flatten(1)[:, 0])


def test_nothing_is_found_where_nothing_is() -> None:
    graph = linear([1.0, 1.0], 1.0)
    ball = Region(torch.zeros(1, 1, 2).double(), torch.tensor([0.4]).double(), inf)
    spec = LabelWins(torch.tensor([0]), torch.tensor([[1]]), 2, torch.float64)
    found = nearest(graph, ball, spec, torch.tensor([0.4]).double(), PGD())
    assert torch.isinf(found.distance).all()


def test_restarts_that_go_for_clauses_of_their_own_find_what_the_least_margin_hides() -> None:
    """Margins .1 + .01 m and 1 - m, m the mean of 40 inputs: down the first, m falls."""
    b = Builder()
    x = b.input("x", (1, 40))
    mean = torch.full((40,), 1 / 40, dtype=torch.float64)
    rows = torch.stack([0 * mean, -0.01 * mean, mean])
    graph = b.graph(b.linear(x, rows, torch.tensor([0.0, -0.1, -1.0])))
    ball = Region(torch.zeros(1, 1, 40).double(), torch.tensor([1.2]).double(), inf)
    spec = LabelWins(torch.tensor([0]), None, 3, torch.float64)
    guess = torch.tensor([1.2]).double()
    assert nearest(graph, ball, spec, guess, PGD()).distance[0] == inf
    found = nearest(graph, ball, spec, guess, PGD(), apart=True)
    assert 1 <= float(found.distance[0]) <= 1.05
    assert float(graph.apply(found.point)[0, 2]) >= 0


@dataclass(frozen=True)
class Corner(Closing):
    """The upper corner of the ball that is asked about, in the precision of the search."""

    name: ClassVar[str] = "corner"

    @property
    def before(self) -> Method:
        return Crown()

    def close(
        self, plan: Plan, region: Region, property: Property, ends: Ends, work: Work
    ) -> Iterator[Update]:
        yield Update(0, 0.0, point=region.with_radius(ends.limit).box().upper[0])


def test_a_point_on_the_surface_is_within_the_radius_that_was_asked_for() -> None:
    """In single precision .3 is a little more than .3, and so is the distance of a corner."""
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU())
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[-1.0], [1.0]]))
        net[0].bias.copy_(torch.tensor([0.5, 0.0]))
    model = frown.load(net.eval(), torch.zeros(1, 1))
    found = frown.certify(
        model, Ball(np.zeros((1, 1))), [0], method=Corner(), search=0.3, attack=None
    )
    assert found.rows[0].status == "falsified"
    assert found.rows[0].broken is not None and found.rows[0].broken <= 0.3
