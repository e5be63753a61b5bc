"""Gates, sigmoid(x) tanh(y) and sigmoid(x) y: planes in two variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import frown
from frown.bounds.rule import LeastArea, frame
from frown.errors import InvalidInput
from frown.graph.box import Box
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.graph.simplify import simplify
from frown.relax.fuse import fuse
from frown.relax.gate import Gate, GatedState, GatedTanh
from frown.relax.table import Product, Sigmoid, Tanh

Wide = NDArray[np.longdouble]
seeds = st.integers(0, 2**32)
GATES: list[Gate] = [GatedTanh(), GatedState()]
gates = pytest.mark.parametrize("op", GATES, ids=lambda op: type(op).__name__)
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def gate_boxes(seed: int, dtype: torch.dtype, count: int = 60) -> Box:
    """Boxes of (x, y): points, one ulp wide, thin, across 0, saturated, tiny, huge."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.0, 1e-42, 1e-20, 1e-3, 1, 1, 1, 5, 30, 200], (count, 2))
    middle = rng.normal(size=(count, 2)) * scale
    radius = rng.choice([0.0, 1e-7, 0.3, 2.0], (count, 2)) * np.abs(middle)
    radius += rng.choice([0.0, 0.0, 0.5, 3.0], (count, 2))
    low, high = (torch.from_numpy(v).to(dtype) for v in (middle - radius, middle + radius))
    ulp = torch.from_numpy(rng.integers(0, 8, (count, 2)) == 0)
    return Box(low, torch.where(ulp, torch.nextafter(low, low + 1), high))


def value(op: Gate, x: Wide, y: Wide) -> Wide:
    """f with more digits than float64 has."""
    g = np.tanh(y) if isinstance(op, GatedTanh) else y
    return np.asarray(g / (1 + np.exp(-x)), np.longdouble)


def wide(t: Tensor) -> Wide:
    return t.double().numpy().astype(np.longdouble)


def extreme(op: Gate, box: Box, slope: Tensor, below: bool) -> tuple[Wide, Wide]:
    """The least (greatest) f - p x - q y found on ever finer grids, and the size of its terms."""
    (x_low, y_low), (x_high, y_high) = wide(box.lower).T, wide(box.upper).T
    first, last = np.stack([x_low, y_low], -1), np.stack([x_high, y_high], -1)
    p, q = wide(slope).T
    sign = 1 if below else -1
    ticks = np.linspace(0, 1, 33, dtype=np.longdouble)
    best = np.full(len(p), np.inf, np.longdouble)
    low, high = first, last
    for _ in range(7):
        x = low[:, :1] + ticks * (high - low)[:, :1]
        y = low[:, 1:] + ticks * (high - low)[:, 1:]
        x, y = x.clip(first[:, :1], last[:, :1]), y.clip(first[:, 1:], last[:, 1:])
        x, y = x[:, :, None] + 0 * y[:, None, :], y[:, None, :] + 0 * x[:, :, None]
        gap = sign * (value(op, x, y) - p[:, None, None] * x - q[:, None, None] * y)
        flat = gap.reshape(len(p), -1)
        at = flat.argmin(1)
        best = np.minimum(best, flat.min(1))
        here = np.stack([t.reshape(len(p), -1)[np.arange(len(p)), at] for t in (x, y)], -1)
        reach = (high - low) / 16
        low, high = np.maximum(here - reach, first), np.minimum(here + reach, last)
    ends = np.maximum(np.abs(first), np.abs(last))
    top = np.tanh(ends[:, 1]) if isinstance(op, GatedTanh) else ends[:, 1]
    return sign * best, top + np.abs(p) * ends[:, 0] + np.abs(q) * ends[:, 1]


def some_slopes(op: Gate, box: Box, rng: np.random.Generator) -> Tensor:
    """Gradients of f at points of the box, some of them moved, some anything."""
    share = torch.from_numpy(rng.uniform(0, 1, box.lower.shape))
    z = box.lower.double() + share * (box.upper.double() - box.lower.double())
    z = z.requires_grad_()
    (slope,) = torch.autograd.grad(op.apply(z).sum(), z)
    slope = slope * torch.from_numpy(rng.choice([0.0, 0.5, 1.0, 1.0, 1.0, 1.5], (len(z), 2)))
    other = torch.from_numpy(rng.normal(size=(len(z), 2)) * rng.choice([1e-3, 0.3, 1e4]))
    return torch.where(torch.from_numpy(rng.integers(0, 6, (len(z), 1)) == 0), other, slope)


def masks(count: int) -> list[tuple[bool, Tensor]]:
    return [(below, torch.full((count,), below)) for below in (True, False)]


@gates
@precisions
@settings(max_examples=15)
@given(seed=seeds)
def test_planes_of_any_slopes_are_valid_and_tight(op: Gate, dtype: torch.dtype, seed: int) -> None:
    box = gate_boxes(seed, dtype)
    slope = some_slopes(op, box, np.random.default_rng(seed)).to(dtype)
    for below, mask in masks(len(slope)):
        found = wide(op.line(slope, mask, op.anchors(box)).intercept)
        best, size = extreme(op, box, slope, below)
        apart = (best - found) * (1 if below else -1)
        assert (apart >= 0).all(), "f beyond the plane"
        # Grids may settle for the second best place; `touch` is checked to the last digits below.
        near = (box.upper - box.lower < 8).all(1).numpy()
        assert (apart <= 2e-4 * size + 1e-30)[near].all(), "a tighter plane of these slopes exists"


def test_a_minimum_inside_the_box_is_found() -> None:
    """Without the root of the concave equation these planes would cut f."""
    rng = np.random.default_rng(0)
    low = torch.from_numpy(rng.uniform([0.5, -3], [1.5, -1.5], (400, 2)))
    box = Box(low, low + torch.from_numpy(rng.uniform(0.5, 3, (400, 2))))
    op, middle = GatedTanh(), box.middle.requires_grad_()
    (slope,) = torch.autograd.grad(op.apply(middle).sum(), middle)
    mask = torch.ones(400, dtype=torch.bool)
    line = op.line(slope, mask, op.anchors(box))
    within = ((line.touch > box.lower) & (line.touch < box.upper)).all(1)
    assert within.sum() > 20
    best, _ = extreme(op, box, slope, True)
    assert (best - wide(line.intercept) >= 0).all()


@gates
@given(seed=seeds)
def test_planes_touch_where_they_say(op: Gate, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = torch.from_numpy(rng.normal(size=(40, 2)) * 2)
    box = Box(low, low + torch.from_numpy(rng.uniform(0, 3, (40, 2))))
    slope = some_slopes(op, box, rng)
    for _, mask in masks(40):
        line = op.line(slope, mask, op.anchors(box))
        assert ((line.touch >= box.lower) & (line.touch <= box.upper)).all()
        gap = op.apply(line.touch) - op.along(slope, line.touch, line.intercept)
        assert (gap.abs() <= 1e-9 * (1 + slope.abs().sum(1))).all()


@gates
@given(seed=seeds)
def test_fixed_rules_choose_slopes_of_the_search_space(op: Gate, seed: int) -> None:
    """CROWN's planes start the search, and no plane is looser than composing lines."""
    rng = np.random.default_rng(seed)
    low = torch.from_numpy(rng.normal(size=(40, 2)) * 2)
    box = Box(low, low + torch.from_numpy(rng.uniform(0.01, 3, (40, 2))))
    here = frame(op, box, LeastArea())
    for rule, side in (
        (here.lines.slopes.lower, here.range.lower),
        (here.lines.slopes.upper, here.range.upper),
    ):
        assert (rule >= side.lower - 1e-12).all() and (rule <= side.upper + 1e-12).all()
    family = op.family(here, 3)
    for planes, below in ((family.lower, True), (family.upper, False)):
        for m, slope in zip((0, 1), planes):
            plane = op.line(slope, torch.full((40,), below), here.anchors).intercept
            apart = (plane - _composed(op, box, m, below)) * (1 if below else -1)
            assert (apart >= -1e-12).all()


def _composed(op: Gate, box: Box, m: int, below: bool) -> Tensor:
    """The intercept of lines of the factors put into McCormick's plane m."""
    rule = LeastArea()
    x, y = (Box(box.lower[:, k], box.upper[:, k]) for k in (0, 1))
    gate = frame(Sigmoid(), x, rule)
    a, b = Sigmoid().image(x), y
    zero = torch.zeros_like(y.lower)
    below_y, above_y = zero, zero
    if isinstance(op, GatedTanh):
        state = frame(Tanh(), y, rule)
        b, below_y, above_y = Tanh().image(y), state.lines.lower, state.lines.upper
    start, end = (b.lower, b.upper) if below else (b.upper, b.lower)
    alpha, beta = (start, a.lower) if m == 0 else (end, a.upper)
    low = (alpha >= 0) == below
    intercept = alpha * torch.where(low, gate.lines.lower, gate.lines.upper)
    return intercept + beta * (below_y if below else above_y) - alpha * beta


def test_a_gates_image_is_exact() -> None:
    rng = np.random.default_rng(1)
    low = torch.from_numpy(rng.normal(size=(200, 2)) * 3)
    box = Box(low, low + torch.from_numpy(rng.uniform(0, 3, (200, 2))))
    for op in GATES:
        image = op.image(box)
        for bound, below in ((image.lower, True), (image.upper, False)):
            best, _ = extreme(op, box, torch.zeros(200, 2), below)
            assert (np.abs(wide(bound) - best) <= 1e-13).all()


def _graph(build: Builder, out: Any) -> Graph:
    graph = build.graph(out)
    fused = simplify(fuse(graph))
    x = torch.randn(50, 1, 8, dtype=torch.float64)
    assert torch.allclose(graph.apply(x), fused.apply(x), atol=1e-13)
    return fused


def test_gates_are_found_in_graphs() -> None:
    """Also behind slices, in either order, and as 1 - sigmoid; other products stay."""
    torch.manual_seed(0)
    build = Builder()
    x = build.input("x", (1, 8))
    h = build.linear(x, torch.randn(8, 8, dtype=torch.float64))
    gate = build.add(Sigmoid(), h)
    state = build.add(Tanh(), h)
    rest = build.scale(gate, -1.0, torch.ones(8, dtype=torch.float64))
    half = build.scale(gate, 0.5)
    graph = _graph(build, build.add(Product(), build.pair(state, gate)))
    assert graph.summary()["GatedTanh"] == 1
    assert not {"Sigmoid", "Tanh", "Product"} & graph.summary().keys()
    graph = _graph(build, build.add(Product(), build.pair(rest, h)))
    assert graph.summary()["GatedState"] == 1 and "Sigmoid" not in graph.summary()
    graph = _graph(build, build.add(Product(), build.pair(half, h)))
    assert graph.summary()["Product"] == 1
    graph = _graph(build, build.add(Product(), build.pair(gate, gate)))
    assert graph.summary() == {
        "Concat": 1,
        "GatedState": 1,
        "Linear": 1,
        "Reshape": 3,
        "Sigmoid": 1,
    }


class _Last(nn.Module):
    """Scores from the last frame of an LSTM or GRU."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.out = cell(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.rnn(x)[0][:, -1])
        return scores


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_gates_are_joint_where_asked_for(cell: type[nn.RNNBase]) -> None:
    torch.manual_seed(3)
    net = _Last(cell).double().eval().requires_grad_(False)
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    model = frown.load(net, x)
    kinds = simplify(fuse(model.graph)).summary()
    assert "Product" not in kinds and kinds["GatedState"] == (1 if cell is nn.LSTM else 3)
    default, composed, joint = (
        frown.certify(model, x, method="crown", dtype="float64", eps=0.1, attack=False, **gates)
        for gates in ({}, {"gates": "composed"}, {"gates": "joint"})
    )
    assert [r.settings["gates"] for r in (default, composed, joint)] == ["composed"] * 2 + ["joint"]
    assert default.rows[0].margins == composed.rows[0].margins != joint.rows[0].margins
    moved = x + torch.empty(500, 2, 3, dtype=torch.float64).uniform_(-0.3, 0.3)
    y = net(moved).numpy()
    for method in ("crown", "frown"):
        box = frown.bound(model, x, 0.3, method=method, gates="joint", dtype="float64", steps=2)
        assert (y >= np.asarray(box.lower)).all() and (y <= np.asarray(box.upper)).all()


def test_unknown_gates_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    model = frown.load(net, torch.zeros(1, 2))
    with pytest.raises(InvalidInput, match="unknown gates 'both'; choose from composed, joint"):
        frown.certify(model, torch.zeros(1, 2), gates="both")
