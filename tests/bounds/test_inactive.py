"""Neurons that are 0 all over a region are left out of rows: bounds and proofs stay the same."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import frown
import zoo
from frown.bounds import patches
from frown.bounds.method import Bounds, Method
from frown.bounds.patches import active_part, parts
from frown.bounds.plan import Plan
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import Crown, Frown
from frown.methods.crown import crown_layers
from frown.problem.property import conjunction
from frown.problem.region import Region
from frown.relax import Relu, Tanh
from frown.relax.relaxation import LeastArea

METHODS = (Crown(), Frown(), Frown(steps=3), Frown(group=4), Frown(wide=True, steps=2))


def sparse(*widths: int, tanh: bool = False, seed: int = 3) -> Graph:
    """A network of ReLUs (one layer of Tanh among them) of which most never act."""
    weights, b = zoo.Weights.seeded(seed), Builder()
    x = b.input("x", (1, widths[0]))
    for k, (n, m) in enumerate(itertools.pairwise(widths)):
        last = k == len(widths) - 2
        bias = weights(m) - (0 if last else 0.3)
        x = b.linear(x, weights(m, n), bias)
        if not last:
            x = b.add(Tanh() if tanh and k == 1 else Relu(), x)
    return b.graph(x)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "WORTH", 0)


def bounds(method: Method, graph: Graph, ball: Region) -> Bounds:
    count = len(ball.radius)
    size = graph.output_size
    spec = conjunction(torch.eye(size, dtype=graph.dtype).expand(count, -1, -1))
    return method.bound(Plan(graph), ball, spec)


def kept(graph: Graph, ball: Region) -> Tensor | None:
    """The slopes that are left of the outputs' rows."""
    plan = Plan(graph)
    layers = crown_layers(plan, ball, LeastArea(), frown.bounds.work.Work(), None)
    (part,) = parts(plan, graph.output, 0).parts
    return active_part(part, layers.relaxed, ball, 1).slots


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_bounds_are_those_of_all_neurons(
    method: Method, p: float, tanh: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = sparse(6, 14, 12, 13, 4, tanh=tanh)
    ball = zoo.region(graph, p, 0.15, count=count)
    left = kept(graph, ball)
    assert left is not None and len(left) < 39
    few = bounds(method, graph, ball)
    monkeypatch.setattr(patches, "WORTH", 1 << 60)
    every = bounds(method, graph, ball)
    assert torch.allclose(few.literals, every.literals, rtol=1e-9, atol=1e-9)
    for i, box in every.layers.values.items():
        assert torch.allclose(few.layers.values[i].lower, box.lower, rtol=1e-9, atol=1e-9)
    for n in range(count):
        points = zoo.samples(ball.rows(slice(n, n + 1)))
        assert (graph.apply(points).amin(0) >= few.literals[n] - 1e-9).all()


def test_a_neuron_that_acts_for_one_sample_stays() -> None:
    """Its slopes are kept for all samples of a batch."""
    graph = sparse(6, 14, 12, 13, 4)
    both = zoo.region(graph, inf, 0.15, count=3)
    each = [kept(graph, both.rows(slice(n, n + 1))) for n in range(3)]
    all_of_them = kept(graph, both)
    assert all_of_them is not None
    for own in each:
        assert own is not None and set(own.tolist()) <= set(all_of_them.tolist())
    assert len(all_of_them) > min(len(own) for own in each if own is not None)


def test_proofs_without_inactive_neurons_are_proofs() -> None:
    """Radii are proved with rounding charged, and as large as with all neurons."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)
    ).eval()
    with torch.no_grad():
        module[0].bias -= 0.6
        module[2].bias -= 0.2
    x = np.random.default_rng(1).uniform(-0.5, 0.5, (4, 5))
    model = frown.load(module, torch.zeros(1, 5))
    found = frown.certify(model, frown.Ball(x), method="frown", attack=None)
    estimate = frown.certify(model, frown.Ball(x), method="frown", attack=None, proof="estimate")
    assert (found.radius > 0.98 * estimate.radius).all() and (found.radius > 0).all()
