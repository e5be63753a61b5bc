"""FROWN's radii: never below CROWN's, and nothing where numbers overflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.certification import search
from test_api import network


@pytest.mark.parametrize("norm", [1, 2, "inf"])
@pytest.mark.parametrize("level", ["estimate", "rigorous"])
def test_frown_is_never_below_crown(norm: object, level: str) -> None:
    """Even where optimised lines gain nothing, as in networks with one layer of few neurons."""
    for seed in range(12):
        torch.manual_seed(seed)
        width = 2 + seed % 3
        net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3)).eval()
        model = frown.load(net, torch.zeros(1, 4))
        x = np.random.default_rng(seed).uniform(-1, 1, (8, 4))
        y = model.run(x).argmax(1)
        crown, optimised = (
            asking.certify(model, x, y, norm=norm, method=m, attack=False, level=level).radius
            for m in ("crown", "frown")
        )
        assert (optimised >= crown * (1 - 1e-6)).all(), (seed, optimised / crown)


@pytest.mark.parametrize("norm", [1, 2, "inf"])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("method", ["crown", "frown"])
def test_coefficients_that_overflow_prove_nothing(
    norm: object, bounds: tuple[float, float] | None, method: str
) -> None:
    """The same classifier with its layers rescaled until products leave single precision: what
    breaks the one breaks the other."""
    sound, huge = network(2), network(2)
    total = 1.0
    with torch.no_grad():
        for layer, factor in zip((0, 2, 4), (1e-30, 1e25, 1e28), strict=True):
            total *= factor
            huge[layer].weight.mul_(factor)
            huge[layer].bias.mul_(total)
    x = np.random.default_rng(2).random((6, 4)).astype(np.float32)
    options = {"norm": norm, "bounds": bounds, "level": "estimate", "method": method}
    usual, scaled = (
        asking.certify(frown.load(net, torch.zeros(1, 4)), x, **options) for net in (sound, huge)
    )
    assert np.isfinite(usual.broken).any()
    assert (scaled.radius <= usual.broken * (1 + 1e-5)).all()


@pytest.mark.parametrize("method", ["frown", "lp"])
def test_what_holds_everywhere_is_proved_as_far_as_searches_go(method: str) -> None:
    """Without a valid range, and the row says that more may hold; with one, all of it."""
    torch.manual_seed(0)
    sizes = [(5, 8, nn.ReLU()), (8, 8, nn.Sigmoid()), (8, 8, nn.ReLU())]
    layers = [m for a, b, act in sizes for m in (nn.Linear(a, b), act)]
    net = nn.Sequential(*layers, nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.6)
    model, x = frown.load(net, torch.zeros(1, 5)), np.random.default_rng(1).uniform(-1, 1, (2, 5))
    free = asking.certify(model, x, method=method, norm=2, attack=False)
    assert (free.radius > 1000).all()
    assert all("more may hold" in row.remark for row in free.rows)
    inside = asking.certify(model, x, method=method, norm=2, attack=False, bounds=(-9, 9))
    assert all(row.remark == "" for row in inside.rows)
    assert (inside.radius < 100).all()


def test_where_lines_lose_nothing_frown_looks_where_crown_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neurons far from their kinks leave an affine network, whose margins fall as the radius grows.
    Others lose to lines, and optimised ones are looked for further out."""
    monkeypatch.setattr(search, "MANY", 16)  # neurons, for the test to be quick
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    x = np.random.default_rng(1).uniform(-1, 1, (1, 4))
    real, seen = frown.Frown.bound, []

    def bound(self, plan, region, *rest):
        seen.append(float(region.radius[0]))
        return real(self, plan, region, *rest)

    monkeypatch.setattr(frown.Frown, "bound", bound)
    further = []
    for far in (False, True):
        with torch.no_grad():
            if far:  # what the second layer reads is positive, and so are its weights
                net[0].bias.add_(10)
                net[2].weight.abs_()
            net[4].bias.sub_(net(torch.tensor(x, dtype=torch.float32))[0] - torch.eye(3)[0])
        model = frown.load(net.eval(), torch.zeros(1, 4))
        seen.clear()
        asked = {"attack": False, "level": "estimate"}
        crown = asking.certify(model, x, method="crown", **asked).radius[0]
        asking.certify(model, x, method="frown", **asked)
        further.append(seen[0] / crown)
    assert further[1] < 1.01 < further[0]
