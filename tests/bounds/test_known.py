"""What held at a larger radius holds at a smaller one, and spares rows there."""

from __future__ import annotations

from math import inf

import pytest
import torch
from frown.bounds.backward import fixed_layers, fixed_margins
from frown.bounds.settings import Ascent, Settings
from frown.problem.spec import Spec
from torch import Tensor

import zoo
from frown.bounds import backward
from frown.bounds.known import Ceiling
from frown.bounds.plan import Plan
from frown.methods.frown.network import Warm, frown
from frown.problem.region import Region
from frown.relax.table import Relu, Sigmoid

GRAPHS = {
    "relu": zoo.mlp(Relu(), (4, 16, 16, 12, 3)),
    "sigmoid": zoo.mlp(Sigmoid()),
    "residual": zoo.residual(Relu()),
    "pooled": zoo.conv_max(),
    "lstm": zoo.lstm(),
}
CROWN = Settings("crown")


def known_at(plan: Plan, ball: Region, radius: float | Tensor) -> Ceiling:
    """Nothing is proved at this radius, as far as the ceiling hears."""
    outer = ball.with_radius(torch.zeros_like(ball.radius) + radius)
    ceiling = Ceiling.of(ball.radius)
    every = torch.arange(len(ball.radius))
    failed = -torch.ones(len(every), 1)
    ceiling.lower(plan, every, outer.radius, failed, fixed_layers(plan, outer, CROWN))
    return ceiling


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("p", [inf, 2.0])
@pytest.mark.parametrize("method", ["crown", "frown"])
def test_bounds_below_a_ceiling_hold(name: str, p: float, method: str) -> None:
    graph = GRAPHS[name]
    plan, ball = Plan(graph), zoo.region(graph, p, 0.1)
    every = torch.arange(len(ball.radius))
    known = known_at(plan, ball, 1.5 * ball.radius).at(every, ball.radius)
    assert all(torch.isfinite(box.lower).all() for box in known.values()) and known
    spec = Spec(torch.eye(graph.output_size, dtype=graph.dtype).expand(len(every), -1, -1))
    if method == "frown":
        settings = Settings("frown", ascent=Ascent(2, 2))
        found = frown(plan, ball, spec, settings, Warm(len(every)), every, known=known)
        layers, margins = found.layers, found.margins
    else:
        layers = fixed_layers(plan, ball, CROWN, known=known)
        margins = fixed_margins(plan, ball, spec, layers, CROWN)
    for x in zoo.samples(ball, 50):
        values = graph.values(x)
        assert (values[-1].flatten(1) >= margins - 1e-9).all()
        for i, box in layers.values.items():
            assert (values[i] >= box.lower - 1e-9).all() and (values[i] <= box.upper + 1e-9).all()


def test_what_a_ceiling_settles_gets_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GRAPHS["relu"]
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.1)
    rows: list[int] = []
    bound = backward.fixed_rows

    def counted(part, region, coef, *rest):  # type: ignore[no-untyped-def]
        rows.append(len(coef))
        return bound(part, region, coef, *rest)

    ceiling = known_at(plan, ball, 0.11)
    monkeypatch.setattr(backward, "fixed_rows", counted)
    plain = fixed_layers(plan, ball, CROWN)
    without = sum(rows)
    rows.clear()
    known = ceiling.at(torch.arange(len(ball.radius)), ball.radius)
    spared = fixed_layers(plan, ball, CROWN, known=known)
    assert sum(rows) < without
    for i in plan.relaxed:
        # The lines that count are the same: those of neurons that may change sign.
        mine, theirs = spared.frames[i], plain.frames[i]
        open_ = ~plan.relaxation(i).settled(mine.box) & ~plan.relaxation(i).settled(theirs.box)
        for a, b in ((mine.box.lower, theirs.box.lower), (mine.box.upper, theirs.box.upper)):
            assert torch.allclose(a[open_], b[open_], rtol=0.05)


def test_a_ceiling_tells_nothing_above_itself() -> None:
    graph = GRAPHS["relu"]
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.1)
    every = torch.arange(len(ball.radius))
    ceiling = known_at(plan, ball, 0.15)
    assert ceiling.at(every, torch.full_like(ball.radius, 0.16)) == {}
    mixed = torch.full_like(ball.radius, 0.16)
    mixed[0] = 0.15
    for box in ceiling.at(every, mixed).values():
        assert torch.isfinite(box.lower[0]).all() and torch.isfinite(box.upper[0]).all()
        assert (box.lower[1:] == -inf).all() and (box.upper[1:] == inf).all()


def test_a_ceiling_comes_down_where_radii_fail_and_nowhere_else() -> None:
    graph = GRAPHS["relu"]
    plan, count = Plan(graph), 4
    ball = zoo.region(graph, inf, 0.1, count)
    every = torch.arange(count)
    ceiling = known_at(plan, ball, 0.15)
    before = {i: box.lower.clone() for i, box in ceiling.boxes.items()}
    radius = torch.full_like(ball.radius, 0.1)
    radius[1] = 0.2  # failed, but higher
    margins = torch.ones(count, 2)
    margins[:2, 0] = -1
    margins[2] = torch.nan  # proves nothing
    layers = fixed_layers(plan, ball.with_radius(radius), CROWN)
    ceiling.lower(plan, every, radius, margins, layers)
    expected = [0.1, 0.15, 0.1, *[0.15] * (count - 3)]
    assert torch.allclose(ceiling.radius, torch.tensor(expected, dtype=ceiling.radius.dtype))
    for i, box in ceiling.boxes.items():
        for n in range(count):
            source = layers.values[i].lower[n] if n in (0, 2) else before[i][n]
            assert torch.equal(box.lower[n], source)
