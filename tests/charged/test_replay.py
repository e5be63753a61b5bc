"""No rigorous bound is false, on networks that plain floating point is wrong about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import fmpq

from charged.cases import Tally, run
from charged.exact import exact, rational
from frown.bounds import rows
from frown.bounds.arithmetic import charged
from frown.bounds.arithmetic.charged import enclosing, extremes, farthest, least
from frown.bounds.plan import Plan, spread_box
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.rows import Rows
from frown.bounds.work import Work
from frown.graph.affine import Pad
from frown.graph.builder import Builder
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax import Relu
from frown.relax.proven.rounding import arithmetic_fault
from frown.relax.relaxation import LeastArea, Lines, Slopes


def assert_true(tally: Tally) -> None:
    assert not tally.false, "\n".join([tally.line(), *tally.false[:5]])
    assert tally.silent < tally.statements / 100  # bounds that say something
    assert tally.tight > tally.cases / 4  # and are not just wide


@pytest.mark.parametrize("seed", range(2))
def test_every_bound_of_piecewise_linear_networks_holds(seed: int) -> None:
    assert_true(run(seed, 30, samples=4))


def test_every_bound_of_smooth_networks_holds() -> None:
    assert_true(run(0, 8, samples=3, smooth=True))


def test_bounds_hold_where_one_side_goes_before_the_other(monkeypatch) -> None:
    """With many rows, what the side nearer to 0 makes stable gets no row for the other."""
    layer = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    b = Builder()
    x = b.linear(b.input("x", (2,)), layer.double(), torch.tensor([3.0, 0.1]).double())
    x = b.linear(b.add(Relu(), x), layer.double(), torch.tensor([-2.5, 0.2]).double())
    graph = b.graph(b.linear(b.add(Relu(), x), layer.double()))
    found = []
    for together in (True, False):
        monkeypatch.setattr(rows, "few", lambda *_, together=together: together)
        walk = Replay(Plan(graph), ball(torch.zeros(2), 0.5), ByRule(LeastArea()), Work())
        walk.layers()
        found.append(walk.values[3])
    wide = spread_box(graph.nodes[3].op, walk.values[2])
    for box in found:  # the first neuron crosses 0, so that both of its sides count
        assert box.lower[0, 0] > wide.lower[0, 0] + 0.05
        assert box.upper[0, 0] < wide.upper[0, 0] - 0.05
    assert torch.equal(found[0].lower[:, 0], found[1].lower[:, 0])
    assert torch.equal(found[0].upper[:, 0], found[1].upper[:, 0])
    assert_true(run(2, 20, samples=4))


def test_without_charges_for_rounding_there_are_false_bounds(monkeypatch) -> None:
    """The networks are hostile enough to tell."""
    monkeypatch.setattr(charged, "gamma", lambda terms: 0.0)
    assert run(5, 20, samples=4).false


@pytest.mark.parametrize("power", [-1073, -1050, -1000, 0])
def test_a_rules_charge_covers_its_rounding_however_small_lines_are(power: int) -> None:
    """Coefficients may be as large as lines are small: the charge must not underflow before."""
    level = torch.full((1, 3), 2.0**power, dtype=torch.float64)
    slopes = Slopes(level, level)
    rule = charged.FixedLines.of(Relu(), Lines(slopes, level, level), torch.ones_like(level))
    assert rule.charge is not None
    for charge in rule.charge.flatten().tolist():
        assert rational(charge) >= rational(2.0**power) * (3 * rational(2.0**-53))


def test_padding_charges_nothing_that_its_sum_could_lose(monkeypatch) -> None:
    """The rim's part of a form must not be a difference of sums over all entries."""

    def difference(self: Pad, coef: torch.Tensor) -> torch.Tensor | None:
        rim = coef.flatten(1).sum(1) - self.pull_back(coef)[0].flatten(1).sum(1)
        return rim * self.value

    huge = 2.0**80
    b = Builder()
    x = b.pad(b.input("x", (2,)), [(0, 1)], value=1.0)
    graph = b.graph(b.linear(x, torch.tensor([[huge, huge, 3.0], [0.0, 0.0, 0.0]]).double()))
    region = ball(torch.zeros(2), 2.0**-100)
    spec = conjunction(torch.tensor([[[1.0, -1.0]]]).double())

    def margin() -> float:
        walk = Replay(Plan(graph), region, ByRule(LeastArea()), Work())
        walk.layers()
        return float(walk._rows(*row_of(walk, spec)))

    assert 2.9 < margin() <= 3.0
    monkeypatch.setattr(Pad, "shift", difference)
    assert margin() < 2.9  # the rim's 3 was absorbed


def row_of(walk: Replay, spec: LinearProperty) -> tuple:
    zero = torch.zeros(1, dtype=torch.long)
    return walk.plan.graph.output, spec.coef[0], Rows(zero, zero, zero), walk.proof


def ball(centre: torch.Tensor, radius: float, p: float = torch.inf, **more) -> Region:
    return Region(centre.double()[None], torch.tensor([radius], dtype=torch.float64), p, **more)


@pytest.mark.parametrize("scale", [2.0**-560, 1.0, 2.0**500])
@pytest.mark.parametrize("radius", [2.0**-560, 2.0**-1050, 1e-3, 2.0**400])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_minima_over_cut_balls_hold_for_tiny_and_huge_numbers(
    p: float, radius: float, scale: float
) -> None:
    """Squares of such numbers under- or overflow."""
    coef = scale * torch.tensor([[3.0, -4.0]]).double()
    far = torch.full((1, 2), 8 * radius, dtype=torch.float64)
    region = ball(torch.zeros(2), radius, p, lower=-far, upper=far)
    step = [fmpq(-3, 5), fmpq(4, 5)] if p == 2 else [fmpq(0), fmpq(1)]
    truth = sum(c * d for c, d in zip(exact(coef[0]), step, strict=True)) * rational(radius)
    found = float(least(region, coef))
    box = extremes(region, coef)
    for bound in (found, float(box.lower), -float(box.upper)):
        assert rational(bound) <= truth
        near = float(truth.p) / float(truth.q) if radius * scale > 2.0**-1000 else 0.0
        assert bound >= 1.001 * near - 1e-300  # and close


def test_boxes_hold_for_the_smallest_numbers() -> None:
    """The middle of [0, 2^-1074] is no number, and weights make its error large."""
    b = Builder()
    graph = b.graph(b.linear(b.input("x", (1,)), torch.tensor([[2.0**80]]).double()))
    lower = torch.zeros(1, 1, dtype=torch.float64)
    upper = torch.full((1, 1), 2.0**-1074, dtype=torch.float64)
    region = ball(torch.zeros(1), 1.0, lower=lower, upper=upper)
    walk = Replay(Plan(graph), region, ByRule(None), Work())
    walk.layers()
    assert float(enclosing(region).upper) == 2.0**-1074
    assert float(walk.values[1].upper) >= 2.0**-994


def test_overflow_proves_nothing() -> None:
    b = Builder()
    x = b.linear(b.input("x", (1,)), torch.tensor([[1e200]]).double())
    x = b.add(Relu(), b.linear(x, torch.tensor([[1e200], [-1e200]]).double()))
    graph = b.graph(b.linear(x, torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()))
    walk = Replay(Plan(graph), ball(torch.ones(1), 0.5), ByRule(LeastArea()), Work())
    walk.layers()
    assert not bool((walk.literals(conjunction(torch.tensor([[[1.0, -1.0]]]).double())) > 0).any())


def test_a_radius_that_covers_the_range_holds_all_of_it() -> None:
    """Exactly, where float32 would round the centre away."""
    centre = torch.tensor([1000.1, 7.3])
    lower, upper = torch.tensor([[1000.0, 7.0]]).double(), torch.tensor([[1001.0, 9.0]]).double()
    for p in (1.0, 2.0, 3.0, torch.inf):
        region = ball(centre, 1.0, p, lower=lower, upper=upper)
        ends = map(exact, (centre.double(), lower[0], upper[0]))
        far = [max(u - c, c - low) for c, low, u in zip(*ends, strict=True)]
        reach = rational(float(farthest(region)))
        length = max(far) if p == torch.inf else sum(v ** int(p) for v in far)
        assert (reach if p == torch.inf else reach ** int(p)) >= length
        assert float(farthest(region)) <= float(region.limit()) <= 1.001 * float(farthest(region))
    assert torch.isinf(farthest(ball(centre, 1.0))).all()


def test_flushed_denormals_are_noticed() -> None:
    assert arithmetic_fault() is None
    if not torch.set_flush_denormal(True):  # nor can anything else on this processor
        assert arithmetic_fault() is None
        return
    try:
        assert "set_flush_denormal" in str(arithmetic_fault())
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, torch.inf])
@pytest.mark.parametrize("clipped", [False, True])
def test_forms_that_cancel_at_the_centre_are_bounded(p: float, clipped: bool) -> None:
    """Their sum in floats is 0 or 2^54, whatever the small terms are; the centre is in the ball."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        small = rng.uniform(-3, 3, 4)
        terms = rng.permutation([2.0**54, -(2.0**54), *small])
        centre = torch.from_numpy(terms)
        ends = {"lower": centre[None] - 1, "upper": centre[None] + 1} if clipped else {}
        region = ball(centre, 2.0**-60, p, **ends)
        truth = sum(map(rational, terms.tolist()))
        for sign in (1.0, -1.0):
            found = least(region, torch.full((1, 6), sign, dtype=torch.float64))
            assert rational(float(found)) <= int(sign) * truth


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, torch.inf])
def test_ranges_without_an_end_prove_what_far_ends_do(p: float) -> None:
    """0 times infinity is no number, and proves nothing."""
    centre = torch.tensor([[0.0, 0.5, 1.0, 0.25]]).double()
    coef = torch.tensor([[1.0, -2.0, 0.0, 0.5], [0.0, 1.0, 0.0, 0.0]]).double()
    found = []
    for end in (torch.inf, 1e6):
        lower, upper = torch.zeros_like(centre), torch.full_like(centre, end)
        region = Region(centre, torch.tensor([0.3]).double(), p, None, lower, upper)
        found.append(least(region, coef))
    assert torch.isfinite(found[0]).all()
    assert torch.allclose(found[0], found[1], atol=1e-12)
    assert found[0][1] <= 0.5 - 0.3  # the second feature has all the room it needs


def test_balls_of_radius_0_in_a_range_are_points() -> None:
    centre = torch.tensor([[0.0, 0.5]]).double()
    coef = torch.tensor([[1.0, -2.0], [-1.0, 1.0]]).double()
    for p in (1.0, 1.5, 2.0, 3.0, torch.inf):
        ends = (torch.zeros_like(centre), torch.ones_like(centre))
        region = Region(centre, torch.zeros(1).double(), p, None, *ends)
        found = least(region, coef)
        assert torch.allclose(found, torch.tensor([-1.0, 0.5]).double(), atol=1e-12)
        assert (found <= torch.tensor([-1.0, 0.5]).double()).all()
