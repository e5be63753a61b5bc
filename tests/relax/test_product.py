"""Products of two computed tensors: planes in two variables."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import asking
import frown
from frown.bounds.plan import Plan
from frown.graph.builder import Builder
from frown.graph.intervals import Intervals
from frown.relax import Product, Sigmoid, Tanh
from frown.relax.relaxation import LeastArea, relax

seeds = st.integers(0, 2**32)
OP = Product()


def factor_boxes(seed: int, count: int = 40, dtype: torch.dtype = torch.float64) -> Intervals:
    """Boxes of two factors: points, thin, across 0, tiny, huge."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(count, 2)) * rng.choice([1e-20, 1e-3, 1, 1e4], (count, 2))
    radius = rng.choice([0.0, 1e-7, 0.3, 2.0], (count, 2)) * np.abs(middle)
    low, high = (torch.from_numpy(v).to(dtype) for v in (middle - radius, middle + radius))
    return Intervals(low, high)


def corners(box: Intervals) -> np.ndarray:
    """(entries, 4, 2) in float64."""
    low, high = box.lower.double().numpy(), box.upper.double().numpy()
    picks = np.array(list(product([0, 1], repeat=2)))[None]
    return np.where(picks == 1, high[:, None, :], low[:, None, :])


def masks(box: Intervals) -> list[tuple[bool, torch.Tensor]]:
    return [(below, torch.full((len(box.lower),), below)) for below in (True, False)]


@given(seed=seeds)
def test_planes_enclose_the_product_for_any_slopes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for dtype in (torch.float32, torch.float64):
        box = factor_boxes(seed, dtype=dtype)
        scale = rng.choice([0.0, 1e-3, 1.0, 1e5], (len(box.lower), 2))
        slope = torch.from_numpy(rng.normal(size=scale.shape) * scale).to(dtype)
        ends = corners(box)
        share = rng.uniform(0, 1, (len(ends), 200, 2))
        points = np.concatenate([ends, ends[:, :1] + share * (ends[:, 3:] - ends[:, :1])], 1)
        for below, mask in masks(box):
            t = OP.line(slope, mask, OP.anchors(box)).intercept.double().numpy()
            lean = points * slope.double().numpy()[:, None, :]
            value = points.prod(2)
            gap = (value - lean.sum(2) - t[:, None]) * (1 if below else -1)
            size = np.abs(value).max(1) + np.abs(lean).sum(2).max(1)
            assert (gap >= -1e-15 * size[:, None]).all()


@given(seed=seeds)
def test_planes_of_the_search_space_are_mccormicks(seed: int) -> None:
    """Each touches f at two opposite corners and lies w_x w_y / 4 from it in the middle."""
    box = factor_boxes(seed)
    rng = np.random.default_rng(seed)
    here = relax(OP, box, LeastArea())
    place = torch.from_numpy(rng.uniform(0, 1, (len(box.lower), 2)))
    ends = corners(box)
    width = (box.upper - box.lower).numpy()
    for below, mask in masks(box):
        lines = OP.within(place, mask, here)
        plane = (ends * lines.slope.numpy()[:, None]).sum(2) + lines.intercept.numpy()[:, None]
        gap = (ends.prod(2) - plane) * (1 if below else -1)
        size = 1e-12 * (1e-300 + np.abs(ends).max(1).prod(1))
        opposite = gap[:, [1, 2]] if below else gap[:, [0, 3]]
        assert (np.abs(opposite) <= size[:, None]).all()
        middle = box.middle.numpy()
        level = (middle * lines.slope.numpy()).sum(1) + lines.intercept.numpy()
        away = (middle.prod(1) - level) * (1 if below else -1)
        assert (np.abs(away - width.prod(1) / 4) <= 4 * size).all()


@given(seed=seeds)
def test_planes_of_the_search_space_enclose_the_product(seed: int) -> None:
    """Also of places outside [0, 1], and where a slope's error is a subnormal number."""
    rng = np.random.default_rng(seed)
    for dtype, least in ((torch.float32, 1e-44), (torch.float64, 1e-322)):
        middle = rng.normal(size=(60, 2)) * rng.choice([least, 1e-20, 1, 1e6, 1e18], (60, 2))
        radius = rng.choice([1e-7, 0.3, 2.0], (60, 2)) * np.abs(middle)
        low, high = (torch.from_numpy(v).to(dtype) for v in (middle - radius, middle + radius))
        box = Intervals(low, high)
        here = relax(OP, box, LeastArea())
        place = torch.from_numpy(rng.uniform(-0.2, 1.2, (60, 2))).to(dtype)
        ends = corners(box).astype(np.longdouble)
        for below, mask in masks(box):
            lines = OP.within(place, mask, here)
            slope = lines.slope.double().numpy().astype(np.longdouble)[:, None]
            intercept = lines.intercept.double().numpy().astype(np.longdouble)
            gap = ends.prod(2) - (ends * slope).sum(2) - intercept[:, None]
            assert (gap * (1 if below else -1) >= 0).all()


@given(seed=seeds)
def test_uphill_is_the_derivative_along_the_segment(seed: int) -> None:
    """Against a finite difference of A (slope . z + intercept) at a fixed z."""
    rng = np.random.default_rng(seed)
    low = torch.from_numpy(rng.normal(size=(30, 2)))
    box = Intervals(low, low + torch.from_numpy(rng.uniform(0.1, 2, (30, 2))))
    here = relax(OP, box, LeastArea())
    place = torch.from_numpy(rng.uniform(0.2, 0.8, (30, 2)))
    z = torch.from_numpy(rng.normal(size=(30, 2)))
    for sign, (_, mask) in zip((1.0, -1.0), masks(box)):
        coef = torch.full((30,), sign, dtype=torch.float64)

        def bound(at: torch.Tensor) -> torch.Tensor:
            lines = OP.within(at, mask, here)  # noqa: B023
            return coef * OP.along(lines.slope, z, lines.intercept)  # noqa: B023

        found = OP.uphill(OP.expand(coef), OP.within(place, mask, here), z)
        for k in range(2):
            step = torch.zeros_like(place)
            step[:, k] = 1e-6
            slope = (bound(place + step) - bound(place - step)) / 2e-6
            assert torch.allclose(found[:, k], slope, atol=1e-6)


@given(seed=seeds)
def test_images_and_settled_products(seed: int) -> None:
    box = factor_boxes(seed)
    values = corners(box).prod(2)
    image = OP.image(box)
    size = 1e-14 * np.abs(corners(box)).max(1).prod(1)
    assert (np.abs(image.lower.numpy() - values.min(1)) <= size).all()
    assert (image.lower.numpy() <= values.min(1)).all()
    assert (image.upper.numpy() >= values.max(1)).all()
    stable = OP.stable(box)
    rule, anchors = OP.crown(box), OP.anchors(box)
    for (_, mask), slope in zip(masks(box), (rule.lower, rule.upper)):
        plane = (corners(box) * slope.numpy()[:, None]).sum(2)
        gap = np.abs(
            corners(box).prod(2) - plane - OP.line(slope, mask, anchors).intercept.numpy()[:, None]
        )
        exact = (gap <= 1e-12 * np.abs(corners(box)).max(1).prod(1)[:, None]).all(1)
        assert exact[stable[:, 0].numpy()].all()


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, size: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(size, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.layer(x)[0][:, -1])
        return scores


LAYERS = {
    "rnn tanh": lambda: nn.RNN(3, 4, batch_first=True),
    "rnn relu": lambda: nn.RNN(3, 4, batch_first=True, nonlinearity="relu"),
    "lstm": lambda: nn.LSTM(3, 4, batch_first=True),
    "lstm of two layers": lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True),
    "lstm both ways": lambda: nn.LSTM(3, 2, bidirectional=True, batch_first=True),
    "lstm without bias": lambda: nn.LSTM(3, 4, bias=False, batch_first=True),
    "gru": lambda: nn.GRU(3, 4, batch_first=True),
}


@pytest.mark.parametrize("norm", [2, "inf"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_recurrent_networks_are_bounded(name: str, norm: str | int) -> None:
    """Bounds hold on sampled sequences, and FROWN's are not looser than CROWN's."""
    torch.manual_seed(len(name))
    module = Recurrent(LAYERS[name](), 4).eval()
    x = torch.randn(2, 3, 3)
    model = frown.load(module, x)
    crown = asking.bound(model, x, 0.1, norm=norm, method="crown")
    best = asking.bound(model, x, 0.1, norm=norm, method="frown", steps=3)
    assert (best.lower >= crown.lower).all() and (best.upper <= crown.upper).all()
    assert (best.upper - best.lower < crown.upper - crown.lower).any()
    step = torch.randn(2000, 1, 3, 3)
    size = step.flatten(1).abs().amax(1) if norm == "inf" else step.flatten(1).norm(dim=1)
    near = x + 0.1 * step / size[:, None, None, None]
    outputs = module(near.flatten(0, 1)).view(2000, 2, 3).detach().numpy()
    assert (outputs >= best.lower - 1e-5).all()
    assert (outputs <= best.upper + 1e-5).all()


def test_a_recurrent_network_is_certified() -> None:
    torch.manual_seed(0)
    module = Recurrent(nn.LSTM(3, 4, batch_first=True), 4).eval()
    x = torch.randn(1, 3, 3)
    model = frown.load(module, x)
    crown = asking.certify(model, x, method="crown", attack=False)
    best = asking.certify(model, x, method="frown", steps=3)
    assert 0 < crown.radius[0] <= best.radius[0] * 1.005
    assert best.radius[0] < best.broken[0] < np.inf


def test_rows_are_spent_on_what_they_can_tighten() -> None:
    """Beside a gate, whose image is exact, stands a state, which is not."""
    build = Builder()
    h = build.linear(build.input("x", (1, 2)), torch.eye(2, dtype=torch.float64))
    gate = build.add(Sigmoid(), h)
    state = build.add(Product(), build.pair(gate, build.add(Tanh(), h)))
    pair = build.pair(gate, state)
    plan = Plan(build.graph(build.add(Product(), pair)))
    assert plan.loose(pair.index).tolist() == [[[[False, True], [False, True]]]]
    assert plan.needs_rows(pair.index) and not plan.needs_rows(gate.index)
