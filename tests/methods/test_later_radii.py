"""From the second radius on FROWN asks CROWN's lines only about neurons without slopes."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds.plan import Plan
from frown.bounds.rows import unstable
from frown.methods import Crown, Frown
from frown.methods.frown import network as engine
from frown.methods.frown.ascent import Ascent
from frown.problem.property import conjunction
from frown.relax import Relu, Sigmoid

GRAPHS = {
    "relu": zoo.mlp(Relu(), (4, 16, 16, 12, 3)),
    "sigmoid": zoo.mlp(Sigmoid()),
    "residual": zoo.residual(Relu()),
    "pooled": zoo.conv_max(),
    "lstm": zoo.lstm(),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("p", [inf, 2.0])
@pytest.mark.parametrize("group", [1, 3])
def test_bounds_of_later_radii_hold_and_are_as_tight(name: str, p: float, group: int) -> None:
    graph = GRAPHS[name]
    plan, ball = Plan(graph), zoo.region(graph, p, 0.1)
    every = torch.arange(len(ball.radius))
    spec = conjunction(torch.eye(graph.output_size, dtype=graph.dtype).expand(len(every), -1, -1))
    method = Frown(group=group, ascent=Ascent(4, 4))
    state = method.start(len(every))
    method.bound(plan, ball.with_radius(1.3 * ball.radius), spec, state)
    # A sample that was decided is missing.
    kept = every[1:]
    small, spec = ball.rows(kept), spec.rows(kept)
    found = method.bound(plan, small, spec, state.at(kept))
    plain = Crown().bound(plan, small, spec).literals
    slack = 1e-3 * (1 + plain.abs())
    assert (found.literals >= plain - slack).all() and (found.literals > plain).any()
    for x in zoo.samples(small, 50):
        values = graph.values(x)
        assert (values[-1].flatten(1) >= found.literals - 1e-9).all()
        for i, box in found.layers.values.items():
            assert (values[i] >= box.lower - 1e-9).all() and (values[i] <= box.upper + 1e-9).all()


@pytest.mark.parametrize(
    ("name", "group"), [("relu", 1), ("sigmoid", 1), ("relu", 3), ("sigmoid", 3), ("pooled", 1)]
)
def test_crown_is_asked_about_neurons_without_slopes_alone(
    name: str, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at all where rows begin with its very lines: each on its own, without planes."""
    graph = GRAPHS[name]
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.1)
    every = torch.arange(len(ball.radius))
    spec = conjunction(torch.eye(graph.output_size, dtype=graph.dtype).expand(len(every), -1, -1))
    method = Frown(group=group, ascent=Ascent(3, 3))
    state = method.start(len(every))
    optimised: dict[int, set[tuple[int, int]]] = {}
    asked: dict[int, Tensor] = {}
    real, fixed = engine._Engine.neurons, engine.crown_box

    def neurons(self, source, box, relaxed):
        sample, neuron = unstable(plan, source, box)
        optimised[source] = set(zip(self.sample[sample].tolist(), neuron.tolist(), strict=True))
        return real(self, source, box, relaxed)

    def noted(plan, region, source, box, relaxed, work, wanted):
        asked[source] = wanted
        return fixed(plan, region, source, box, relaxed, work, wanted)

    monkeypatch.setattr(engine._Engine, "neurons", neurons)
    monkeypatch.setattr(engine, "crown_box", noted)
    method.bound(plan, ball, spec, state)
    assert not asked and any(optimised.values())
    before = dict(optimised)
    kept = every[1:]
    method.bound(plan, ball.rows(kept), spec.rows(kept), state.at(kept))
    own_lines = {i for i in before if group == 1 and plan.elementwise(i)}
    assert bool(own_lines) == (group == 1 and name != "pooled")
    assert asked.keys() == before.keys() - own_lines
    if name != "pooled" and group == 1:
        assert not asked
        return
    spared = 0
    for source, wanted in asked.items():
        for row, sample in enumerate(kept.tolist()):
            has = {n // group for k, n in before[source] if k == sample}
            own = {n // group for n in torch.nonzero(~wanted[row]).flatten().tolist()}
            assert own <= has  # rows that CROWN bounds better have lost their slopes
            spared += len(own)
    blocks = [{(k, n // group) for k, n in pairs if k != 0} for pairs in before.values()]
    assert spared > 0.5 * sum(map(len, blocks))


def test_what_crown_decides_in_a_wide_layer_takes_no_ascent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a later and larger radius, neurons that had been stable have no slopes to start from."""
    graph = GRAPHS["relu"]
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.05)
    spec = conjunction(
        torch.eye(graph.output_size, dtype=graph.dtype).expand(len(ball.radius), -1, -1)
    )
    real, counts = engine._Engine.neurons, {}

    def neurons(self, source, box, relaxed):
        counts[source] = len(unstable(plan, source, box)[0])
        return real(self, source, box, relaxed)

    monkeypatch.setattr(engine._Engine, "neurons", neurons)
    taken, found = [], []
    for wide in (1, 1 << 40):
        monkeypatch.setattr(engine, "WIDE", wide)
        method = Frown(steps=3)
        state = method.start(len(ball.radius))
        method.bound(plan, ball, spec, state)
        counts.clear()
        later = ball.with_radius(1.5 * ball.radius)
        found.append(method.bound(plan, later, spec, state).literals)
        taken.append(dict(counts))
    first, other = taken
    assert all(first[source] <= other[source] for source in other)
    assert sum(first.values()) < sum(other.values())
    # Where more is known beforehand, lines are others, and bounds hardly differ.
    assert torch.allclose(*found, rtol=1e-2, atol=1e-2)
    plain = Crown().bound(plan, later, spec).literals
    assert (found[0] >= plain - 1e-9).all()
