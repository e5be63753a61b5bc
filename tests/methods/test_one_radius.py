"""FROWN's schedule over radii, and what it does where one radius is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.bounds import rows as rows_module
from frown.bounds.work import OutOfTime
from frown.certification import search as certifier
from frown.methods.frown import network
from frown.methods.frown.ascent import Ascent
from frown.read.model import Model


@pytest.fixture(scope="module")
def deep() -> tuple[Model, np.ndarray, np.ndarray]:
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(10, 10), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(10, 3)).double().eval()
    for p in net.parameters():
        p.data *= 2
    x = np.random.default_rng(0).normal(size=(12, 10))
    model = frown.load(net, torch.from_numpy(x[:1]))
    return model, x, model.run(x).argmax(1)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each evaluation of FROWN has."""
    calls: list[int] = []
    real = network.frown

    def call(plan, ball, *rest, **more):
        calls.append(len(ball.radius))
        return real(plan, ball, *rest, **more)

    monkeypatch.setattr(network, "frown", call)
    return calls


def test_steps_and_rates_fade_with_radii() -> None:
    ascent = Ascent()
    steps, own = zip(*(ascent.of_neurons(k, 20) for k in range(8)), strict=True)
    rates = [settings.rate for settings in own]
    assert steps[0] == ascent.steps and steps[-1] == ascent.more
    assert list(steps) == sorted(steps, reverse=True) and len(set(steps)) > 3
    assert list(rates) == sorted(rates, reverse=True) and rates[0] == ascent.rate
    assert rates[3] > rates[-1] == ascent.least * ascent.rate
    for slopes in (10, 10_000):
        assert ascent.of_margins(40, slopes)[1].rate == ascent.least * ascent.rate
        assert {ascent.of_margins(k, slopes)[0] for k in range(8)} == {ascent.steps}
    assert [Ascent(7, 7).of_neurons(k, 1)[0] for k in range(4)] == [7] * 4
    assert Ascent(1, 5).of_neurons(3, 9)[0] == 1  # never more than at the first radius
    # Along few layers there is little to find.
    assert [ascent.of_neurons(0, k)[0] for k in (1, 3, 9)] == [5, 7, 10]
    assert ascent.of_neurons(7, 1)[0] == ascent.more


def test_neurons_of_wide_layers_get_few_large_steps() -> None:
    ascent = Ascent()
    steps, own = zip(*(ascent.of_wide_layer(k, 3) for k in range(6)), strict=True)
    assert steps == (5, 3, 2, 1, 1, 1)
    assert own[0].rate > ascent.rate and own[0].decay < ascent.decay
    assert [settings.rate for settings in own] == sorted((s.rate for s in own), reverse=True)
    assert [ascent.of_wide_layer(0, k)[0] for k in (1, 3, 6, 9, 60)] == [4, 5, 6, 7, 7]
    assert ascent.glance.of_wide_layer(0, 3)[0] == 4
    # Where every radius gets as many steps, so do wide layers; none where there are none.
    alone = Ascent(9, 9)
    assert [alone.of_wide_layer(k, 3)[0] for k in range(3)] == [5] * 3
    assert [alone.of_wide_layer(0, k)[0] for k in (1, 2, 5, 8, 60)] == [4, 5, 6, 7, 8]
    assert alone.of_wide_layer(0, 3)[1].rate > own[0].rate
    assert alone.of_margins(0, 10_000)[1].rate > alone.of_margins(0, 10)[1].rate == alone.rate
    assert Ascent(0, 0).of_wide_layer(0, 3)[0] == 0
    # Whoever says how many gets that many everywhere.
    full = frown.Frown(steps=30).ascent
    assert full.of_wide_layer(2, 3) == full.of_neurons(2, 3) and full.of_neurons(2, 3)[0] == 30


def test_neurons_behind_large_matrices_get_their_steps_at_the_first_radii() -> None:
    ascent = Ascent()
    steps, own = zip(*(ascent.of_broad_layer(k, 3) for k in range(4)), strict=True)
    assert steps == (4, 1, 0, 0) and ascent.glance.of_broad_layer(0, 3)[0] == 3
    assert ascent.rate > own[0].rate > own[1].rate
    for other in (Ascent(9, 9), frown.Frown(steps=30).ascent, Ascent(0, 0)):
        assert other.of_broad_layer(1, 3) == other.of_wide_layer(1, 3)


def test_radii_behind_large_matrices_keep_what_is_gained(monkeypatch) -> None:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for n in (30, 120, 120):
        layers += [nn.Linear(n, 120), nn.Sigmoid()]
    net = nn.Sequential(*layers, nn.Linear(120, 3)).eval()
    for p in net.parameters():
        p.data *= 4
    x = np.random.default_rng(0).normal(size=(3, 30))

    def radii(method: str) -> np.ndarray:
        model = frown.load(net, torch.from_numpy(x[:1]).float())
        found = frown.certify(model, x, method=method, attack=None, proof="estimate")
        return found.radius

    crown, many = radii("crown"), radii("frown")
    steps: list[int] = []
    real = network.optimise

    def seen(plan, rows, alpha, ascent, count, *rest):
        steps.append(count)
        return real(plan, rows, alpha, ascent, count, *rest)

    monkeypatch.setattr(rows_module, "BROAD", 1000)
    monkeypatch.setattr(network, "optimise", seen)
    few = radii("frown")
    assert 0 in steps and (many > 1.01 * crown).all()
    assert (few >= crown).all() and (few - crown >= 0.7 * (many - crown)).all()


@pytest.fixture(scope="module")
def broad() -> tuple[Model, np.ndarray]:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for n in (30, 120, 120):
        layers += [nn.Linear(n, 120), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(120, 3)).eval()
    for p in net.parameters():
        p.data *= 1.6
    x = np.random.default_rng(0).normal(size=(2, 30))
    return frown.load(net, torch.from_numpy(x[:1]).float()), x


def test_few_steps_in_wide_layers_keep_nearly_all_that_many_gain(broad, monkeypatch) -> None:
    model, x = broad
    taken: list[int] = []
    real = network.optimise

    def optimise(plan, rows, alpha, ascent, steps, clock, *more):
        taken.append(steps * len(rows.coef))
        return real(plan, rows, alpha, ascent, steps, clock, *more)

    monkeypatch.setattr(network, "optimise", optimise)
    found, cost = {}, {}
    ball, margins = frown.Ball(x).at(0.06), [[1.0, -1, 0], [1, 0, -1], [0, 1, -1]]
    for name, method in {
        "crown": frown.Crown(),
        "few": frown.Frown(),
        "full": frown.Frown(steps=20),
    }.items():
        taken.clear()
        found[name] = frown.bound(model, ball, margins, method=method).lower
        cost[name] = sum(taken)
    gain, whole = found["few"] - found["crown"], found["full"] - found["crown"]
    assert (gain > 0).all() and gain.sum() > 0.95 * whole.sum() > 0
    assert 2 * cost["few"] < cost["full"]


@pytest.mark.parametrize("level", ["estimate", "rigorous"])
def test_one_radius_is_proved_nearly_as_far_as_a_search_proves(
    deep, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = deep
    options = {"method": "frown", "attack": False, "level": level, "dtype": "float64"}
    radius = asking.certify(model, x, y, **options).radius

    def proved(share: float, insist: int) -> int:
        monkeypatch.setattr(certifier, "INSIST", insist)
        result = asking.certify(model, x, y, eps=share * radius, **options)
        for row, r in zip(result.rows, radius, strict=True):
            if row.status == "certified":
                assert row.radius == share * r
            else:  # what failed is said, however often it was tried
                assert row.failed is not None and row.failed >= share * r
        return result.status.count("certified")

    assert proved(0.99, 0) < proved(0.99, 2) <= proved(0.99, 4)
    assert proved(0.97, 4) == len(x)


def test_radii_without_hope_are_tried_once(deep, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = deep
    radius = asking.certify(model, x, y, method="frown", attack=False, level="estimate").radius
    calls = counted(monkeypatch)
    asking.certify(model, x, y, eps=2 * radius, method="frown", attack=False, level="estimate")
    assert calls == [len(x)]
    calls.clear()
    asking.certify(model, x, y, eps=1.005 * radius, method="frown", attack=False, level="estimate")
    assert len(calls) == 1 + certifier.INSIST


def test_a_clock_that_stops_the_second_try_leaves_the_first_ones_answer(
    deep, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = deep
    radius = asking.certify(model, x, y, method="frown", attack=False, level="estimate").radius
    real, calls = network.frown, []

    def stopped(*args, **more):
        calls.append(1)
        if len(calls) > 1:
            raise OutOfTime
        return real(*args, **more)

    monkeypatch.setattr(network, "frown", stopped)
    result = asking.certify(
        model, x, y, eps=1.01 * radius, method="frown", attack=False, level="estimate"
    )
    assert len(calls) == 2
    for row in result.rows:
        assert row.status == "unknown" and not row.complete
        assert row.failed is not None


def test_only_a_searchs_first_radius_gets_a_glance(deep, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = deep
    real, steps = network.frown, []

    def noted(plan, ball, spec, method, *rest):
        steps.append(method.ascent.steps)
        return real(plan, ball, spec, method, *rest)

    monkeypatch.setattr(network, "frown", noted)
    options = {"method": "frown", "attack": False, "level": "estimate"}
    full = Ascent()
    asking.certify(model, x, y, **options)
    assert steps[0] == full.glance.steps < full.steps and full.glance.rate > full.rate
    assert len(steps) > 2 and set(steps[1:]) == {full.steps}
    for more in ({"eps": 1.0}, {"group": 4}, {"steps": 6}):  # where all steps are due
        steps.clear()
        asking.certify(model, x, y, **options, **more)
        assert set(steps) == {more.get("steps", full.steps)}
