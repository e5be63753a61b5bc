"""Sums along rows do not depend on how rows say which sample they have."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest
import torch

import zoo
from charged.exact import Network, exact, rational
from frown.bounds import rows
from frown.bounds.arithmetic.charged import Charged, enclosing, least
from frown.bounds.plan import Plan
from frown.bounds.rows import Blocks, dot, inner, places, sample_index, spread
from frown.bounds.work import Work
from frown.graph.affine import Conv, Linear, Reshape
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.problem.region import Region
from frown.relax.relaxation import LeastArea


@pytest.mark.parametrize(
    ("sample", "even"),
    [
        ([0, 0, 1, 1, 2, 2], True),
        ([1, 1, 1], True),
        ([2, 3], True),
        ([0, 0, 1], False),
        ([0, 1, 0, 1], False),
        ([0, 0, 2, 2], False),
        ([1, 1, 0, 0], False),
        ([0, 0, 1, 2, 2, 2], False),
        ([0, 0, 0, 0, 0, 2, 2, 2], False),
        ([2, 2, 2, 2, 2, 0, 0, 0, 2, 2, 2, 2], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_rows_of_samples(
    sample: list[int], even: bool, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "WIDE", 1 if wide else 1 << 14)
    monkeypatch.setattr(rows, "LONG", 1 if wide else 1 << 14)
    torch.manual_seed(len(sample))
    index = torch.tensor(sample, dtype=torch.long)
    found = sample_index(index)
    assert isinstance(found, Blocks) is even
    numbers = torch.randn(4, 3, 2, dtype=torch.float64)
    coef = torch.randn(len(index), 3, 2, dtype=torch.float64)
    assert torch.equal(spread(numbers, found), numbers[index])
    read = numbers[places(found)]
    assert len(read) in (1, len(index)) and torch.equal(read.expand(coef.shape), numbers[index])
    assert torch.allclose(dot(coef, numbers, found), (coef * numbers[index]).sum((1, 2)))
    size = numbers.abs()
    assert torch.allclose(inner(coef, size, found), (coef.abs() * size[index]).sum((1, 2)))
    lone = torch.randn(len(index), dtype=torch.float64)
    assert torch.allclose(dot(lone, numbers[:, 0, 0], found), lone * numbers[index, 0, 0])


@pytest.mark.parametrize("sample", [[0, 0, 1, 1, 2, 2], [1, 1, 1], [0, 0, 2], [2, 0]])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, torch.inf])
@pytest.mark.parametrize("size", [1.0, 2.0**-560, 2.0**500])
@pytest.mark.parametrize("split", [None, 1])
def test_minima_over_the_balls_of_samples(
    sample: list[int], p: float, size: float, split: int | None
) -> None:
    """As over balls copied for every row, and never above a point of the ball."""
    torch.manual_seed(7)
    centre = torch.randn(3, 2, 4, dtype=torch.float64)
    radius = torch.tensor([0.5, 1e-3, 7.0], dtype=torch.float64)
    region = Region(centre, radius, p, split=split)
    index = torch.tensor(sample)
    coef = torch.randn(len(index), 2, 4, dtype=torch.float64) * size
    found = least(region, coef, sample_index(index))
    assert torch.allclose(found, least(region.rows(index), coef), rtol=1e-12, atol=0)
    assert torch.allclose(found, region.rows(index).minimise(coef).value, rtol=1e-9, atol=0)
    balls = 1 if split is None else 2
    for row, n in enumerate(sample):
        point, reach = exact(centre[n]), rational(float(radius[n]))
        for b in range(balls):  # along the steepest entry, within every norm's ball
            part = coef[row].reshape(balls, -1)[b]
            i = int(part.abs().argmax())
            step = -reach if part[i] > 0 else reach
            point.reshape(balls, -1)[b, i] += step
        value = (exact(coef[row]) * point).sum()
        assert rational(float(found[row])) <= value


@pytest.mark.parametrize("size", [1.0, 2.0**-399, 2.0**-401, 2.0**399, 2.0**401, 2.0**-540])
def test_lengths_are_rounded_up(size: float) -> None:
    """(3, 4) and (20, 21, ...) have whole lengths; smaller entries than squares can hold count."""
    small = 2.0**-500
    for entries, length in (([3.0, 4.0, small], 5), ([20.0, 21.0, 0.0], 29), ([0.0] * 3, 0)):
        coef = torch.tensor([entries, entries], dtype=torch.float64) * size
        zero = torch.zeros(1, 3, dtype=torch.float64)
        region = Region(zero, torch.ones(1, dtype=torch.float64), 2.0)
        found = least(region, coef, sample_index(torch.tensor([0, 0])))
        truth = rational(length) * rational(size)
        for bound in found.tolist():
            assert rational(bound) <= -truth
            assert bound >= -(length * size) * (1 + 1e-12) - 2.0**-1000


# -- layers that are affine in few inputs ------------------------------------------------


def few_inputs(size: float) -> Graph:
    """3 -> 2x8 -> 12x6, both affine."""
    weights, b = zoo.Weights.seeded(1), Builder()
    x = b.add(Linear(weights(16, 3) * size, weights(16) * size), b.input("x", (1, 3)))
    image = b.add(Reshape((1, 16), (1, 2, 8)), x)
    conv = Conv(weights(12, 2, 3), weights(12), (8,), (1,), (0,), (1,), 1)
    return b.graph(b.add(conv, image))


@pytest.mark.parametrize("size", [1.0, 1e9])
@pytest.mark.parametrize(("clipped", "scaled"), [(False, False), (True, False), (False, True)])
def test_points_tell_the_box_that_rows_tell(clipped: bool, scaled: bool, size: float) -> None:
    graph = few_inputs(size)
    region = zoo.region(graph, inf, 0.1, 3, clipped=clipped, scaled=scaled)
    plan, target = Plan(graph), graph.output
    found = {}
    for by_rows in (False, True):
        own = Charged(plan, region, LeastArea(), False)
        for i in plan.ancestors(target):
            own.affine(i) if i else own.input(i)
        assert (own._box_by_points(target, Work()) is not None) or by_rows
        found[by_rows] = own.affine_box(target, Work(), by_rows)
    near = {"rtol": 1e-9, "atol": 1e-9 * size}
    assert torch.allclose(found[False].lower, found[True].lower, **near)
    assert torch.allclose(found[False].upper, found[True].upper, **near)
    box, network = enclosing(region), Network(graph)
    for n in range(3):
        ends = torch.stack([box.lower[n, 0], box.upper[n, 0]])
        corners = [ends[list(ks), range(3)][None] for ks in product((0, 1), repeat=3)]
        values = [network.values(exact(x))[target].ravel() for x in corners]
        low, high = (
            side[n].flatten().tolist() for side in (found[False].lower, found[False].upper)
        )
        for k in range(72):
            assert rational(low[k]) <= min(v[k] for v in values)
            assert rational(high[k]) >= max(v[k] for v in values)


def test_points_tell_no_box_of_round_balls_many_inputs_or_little_memory() -> None:
    graph = few_inputs(1.0)
    region = zoo.region(graph, 2, 0.1, 3)
    own = Charged(Plan(graph), region, LeastArea(), False)
    for i in own.plan.ancestors(graph.output):
        own.affine(i) if i else own.input(i)
    assert own._box_by_points(graph.output, Work()) is None
    own.region = replace(region, p=inf)
    assert own._box_by_points(graph.output, Work()) is not None
    assert own._box_by_points(0, Work()) is None
    assert own._box_by_points(graph.output, Work(memory=1 << 10)) is None
