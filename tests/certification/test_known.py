"""What held at a larger radius holds at a smaller one, and spares rows there."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds.method import Method
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.certification.search import KnownBoxes
from frown.methods import Crown, Frown, crown
from frown.methods.crown import crown_layers
from frown.methods.frown.ascent import Ascent
from frown.problem.property import conjunction, positive
from frown.problem.region import Region
from frown.relax import Relu, Sigmoid
from frown.relax.relaxation import LeastArea

GRAPHS = {
    "relu": zoo.mlp(Relu(), (4, 16, 16, 12, 3)),
    "sigmoid": zoo.mlp(Sigmoid()),
    "residual": zoo.residual(Relu()),
    "pooled": zoo.conv_max(),
    "lstm": zoo.lstm(),
}
CROWN = LeastArea()


def known_at(plan: Plan, ball: Region, radius: float | Tensor) -> KnownBoxes:
    """Nothing is proved at this radius, as far as the ceiling hears."""
    outer = ball.with_radius(torch.zeros_like(ball.radius) + radius)
    ceiling = KnownBoxes.of(ball.radius)
    every = torch.arange(len(ball.radius))
    proved = torch.zeros(len(every), dtype=torch.bool)
    ceiling.lower(plan, every, outer.radius, proved, crown_layers(plan, outer, CROWN, Work()))
    return ceiling


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("p", [inf, 2.0])
@pytest.mark.parametrize("method", [Crown(), Frown(ascent=Ascent(2, 2))], ids=lambda m: m.name)
def test_bounds_below_a_ceiling_hold(name: str, p: float, method: Method) -> None:
    graph = GRAPHS[name]
    plan, ball = Plan(graph), zoo.region(graph, p, 0.1)
    every = torch.arange(len(ball.radius))
    known = known_at(plan, ball, 1.5 * ball.radius).at(every, ball.radius)
    assert known is not None and known.boxes and not known.cuts
    assert all(torch.isfinite(box.lower).all() for box in known.boxes.values())
    spec = conjunction(torch.eye(graph.output_size, dtype=graph.dtype).expand(len(every), -1, -1))
    found = method.bound(plan, ball, spec, given=known)
    layers, margins = found.layers, found.literals
    for x in zoo.samples(ball, 50):
        values = graph.values(x)
        assert (values[-1].flatten(1) >= margins - 1e-9).all()
        for i, box in layers.values.items():
            assert (values[i] >= box.lower - 1e-9).all() and (values[i] <= box.upper + 1e-9).all()


def test_what_a_ceiling_settles_gets_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GRAPHS["relu"]
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.1)
    rows: list[int] = []
    bound = crown.crown_rows

    def counted(part, region, coef, sample, *rest):  # type: ignore[no-untyped-def]
        rows.append(len(sample))
        return bound(part, region, coef, sample, *rest)

    ceiling = known_at(plan, ball, 0.11)
    monkeypatch.setattr(crown, "crown_rows", counted)
    plain = crown_layers(plan, ball, CROWN, Work())
    without = sum(rows)
    rows.clear()
    known = ceiling.at(torch.arange(len(ball.radius)), ball.radius)
    spared = crown_layers(plan, ball, CROWN, Work(), known)
    assert sum(rows) < without
    for i in plan.nonlinear:
        # The lines that count are the same: those of neurons that may change sign.
        mine, theirs = spared.relaxed[i], plain.relaxed[i]
        open_ = ~plan.relaxation(i).stable(mine.box) & ~plan.relaxation(i).stable(theirs.box)
        for a, b in ((mine.box.lower, theirs.box.lower), (mine.box.upper, theirs.box.upper)):
            assert torch.allclose(a[open_], b[open_], rtol=0.05)


def test_a_ceiling_tells_nothing_above_itself() -> None:
    graph = GRAPHS["relu"]
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.1)
    every = torch.arange(len(ball.radius))
    ceiling = known_at(plan, ball, 0.15)
    assert ceiling.at(every, torch.full_like(ball.radius, 0.16)) is None
    mixed = torch.full_like(ball.radius, 0.16)
    mixed[0] = 0.15
    given = ceiling.at(every, mixed)
    assert given is not None and given.boxes
    for box in given.boxes.values():
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
    layers = crown_layers(plan, ball.with_radius(radius), CROWN, Work())
    ceiling.lower(plan, every, radius, positive(margins), layers)
    expected = [0.1, 0.15, 0.1, *[0.15] * (count - 3)]
    assert torch.allclose(ceiling.radius, torch.tensor(expected, dtype=ceiling.radius.dtype))
    for i, box in ceiling.boxes.items():
        for n in range(count):
            source = layers.values[i].lower[n] if n in (0, 2) else before[i][n]
            assert torch.equal(box.lower[n], source)
