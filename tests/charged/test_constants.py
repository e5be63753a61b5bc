"""Rigorous bounds are about the network that a file holds: its constants, not their ideals."""

from __future__ import annotations

from fractions import Fraction
from math import pi, sqrt
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from flint import arb, ctx, fmpq
from torch import nn

import asking
import frown
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.graph.affine import Scale
from frown.graph.intervals import Intervals
from frown.problem.region import Region
from frown.read.model import Model
from frown.relax.hump import GeluTanh
from frown.relax.relaxation import LeastArea
from onnx_models import integers, model, node, number, saved


def proven(loaded: Model, x: list[float], radius: float = 2.0**-60) -> Intervals:
    """Bounds of the outputs of a network as its file has it."""
    graph = loaded.graph
    centre = torch.tensor(x, dtype=torch.float64).reshape(1, *graph.input_shape)
    region = Region(centre, torch.tensor([radius], dtype=torch.float64), torch.inf)
    walk = Replay(Plan(graph), region, ByRule(LeastArea()), Work())
    walk.layers()
    return walk.values[graph.output]


def rational(x: float) -> fmpq:
    return fmpq(*float(x).as_integer_ratio())


def assert_tight(box: Intervals, k: int, truth: arb, width: float) -> None:
    low, high = (arb(rational(float(end.flatten()[k]))) for end in (box.lower, box.upper))
    assert not truth < low and not truth > high, (low, truth, high)
    assert high - low < width


@pytest.fixture(autouse=True)
def _precise():
    before, ctx.prec = ctx.prec, 300
    yield
    ctx.prec = before


WEIGHT, MEAN, VARIANCE, EPSILON = 1.7, 2.1, 3e-7, 1e-5
BIAS = WEIGHT * MEAN / sqrt(VARIANCE + EPSILON)


@pytest.mark.parametrize("front", ["onnx", "torch"])
@pytest.mark.parametrize(("bias", "x"), [(BIAS, 1e-9), (0.2, MEAN + 0.3)])
def test_normalisation_whose_constants_cancel_is_enclosed(
    bias: float, x: float, front: str, tmp_path: Path
) -> None:
    """bias - mean * factor in one number would be off by more than its own last places."""
    stored = [np.float32(v) for v in (WEIGHT, bias, MEAN, VARIANCE)]
    if front == "onnx":
        names = dict(zip("wbmv", ([v, v] for v in stored), strict=True))
        constants = {k: np.array(v, np.float32) for k, v in names.items()}
        proto = model(
            [node("BatchNormalization", "x w b m v", epsilon=EPSILON)], ["N", 2], constants
        )
        loaded, epsilon = frown.load(saved(proto, tmp_path)), float(np.float32(EPSILON))
    else:
        layer = nn.BatchNorm1d(2, eps=EPSILON).eval()
        fields = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
        for field, value in zip(fields, stored, strict=True):
            field.data.fill_(float(value))
        loaded, epsilon = frown.load(layer, torch.zeros(1, 2)), EPSILON
    box = proven(loaded, [x, x])
    weight, offset, mean, variance = (arb(rational(float(v))) for v in stored)
    width = (variance + arb(rational(epsilon))).sqrt()
    truth = weight * (arb(rational(x)) - mean) / width + offset
    assert_tight(box, 0, truth, 1e-9)
    scales = [n.op for n in loaded.graph.nodes if isinstance(n.op, Scale)]
    assert len(scales) == 2


def test_default_attributes_are_single_precision_as_in_the_standard(tmp_path: Path) -> None:
    proto = model([node("LeakyRelu", "x")], ["N", 2])
    box = proven(frown.load(saved(proto, tmp_path)), [-1.0, 1.0])
    assert_tight(box, 0, -arb(rational(float(np.float32(0.01)))), 1e-14)


def test_selu_has_the_constants_of_the_file(tmp_path: Path) -> None:
    box = proven(frown.load(saved(model([node("Selu", "x")], ["N", 2]), tmp_path)), [-1.0, 1.0])
    alpha, gamma = (
        arb(rational(float(np.float32(c)))) for c in (1.6732632423543772, 1.0507009873554805)
    )
    assert_tight(box, 0, gamma * alpha * (arb(-1).exp() - 1), 1e-13)
    assert_tight(box, 1, gamma, 1e-13)


def test_written_out_gelu_has_the_constants_of_the_file(tmp_path: Path) -> None:
    """sqrt(2) in single precision moves GELU by 10^-8, which is far beyond rounding."""
    known = {"root": number(sqrt(2)), "one": number(1.0), "half": number(0.5)}
    nodes = [
        node("Div", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "f"),
        node("Mul", "x f", "g"),
        node("Mul", "g half"),
    ]
    loaded = frown.load(saved(model(nodes, ["N", 2], known), tmp_path))
    box = proven(loaded, [1.0, -0.5])
    for k, x in enumerate((arb(1), arb(-0.5))):
        truth = x * (1 + (x / arb(rational(float(known["root"])))).erf()) / 2
        assert_tight(box, k, truth, 1e-13)
        assert abs(truth - x * (1 + (x / arb(2).sqrt()).erf()) / 2) > 1e-10


def test_written_out_tanh_form_has_the_constants_of_the_file(tmp_path: Path) -> None:
    known = {
        "one": number(1.0),
        "half": number(0.5),
        "small": number(0.044715),
        "three": number(3.0),
        "t": number(sqrt(2 / pi)),
    }
    nodes = [
        node("Pow", "x three", "p"),
        node("Mul", "p small", "q"),
        node("Add", "x q", "s"),
        node("Mul", "s t", "u"),
        node("Tanh", "u", "e"),
        node("Add", "one e", "f"),
        node("Mul", "half x", "h"),
        node("Mul", "h f"),
    ]
    loaded = frown.load(saved(model(nodes, ["N", 2], known), tmp_path))
    found = [n.op for n in loaded.graph.nodes if isinstance(n.op, GeluTanh)]
    assert len(found) == 1 and not found[0].standard
    linear, small = (arb(rational(float(known[k]))) for k in ("t", "small"))
    box = proven(loaded, [1.0, -0.5])
    for k, x in enumerate((arb(1), arb(-0.5))):
        truth = x * (1 + (linear * (x + small * x**3)).tanh()) / 2
        assert_tight(box, k, truth, 1e-12)


def test_robust_means_all_of_the_range(tmp_path: Path) -> None:
    """The rigorous radius itself must reach the farthest corner."""
    weight, bias = ([[1.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    known = {"w": np.array(weight, np.float32), "b": np.array(bias, np.float32)}
    path = saved(model([node("Gemm", "x w b", transB=1)], ["N", 2], known), tmp_path)
    lower, upper = [1000.0, 7.0], [1001.0, 9.0]
    for norm in ("1", "2", "inf"):
        found = asking.certify(
            frown.load(path), [[1000.1, 7.3]], [0], norm=norm, bounds=(lower, upper), method="crown"
        )
        (row,) = found.rows
        far = [Fraction(1001) - Fraction(1000.1), Fraction(9) - Fraction(7.3)]
        radius = Fraction(row.radius)
        reached = {"1": radius >= sum(far), "inf": radius >= max(far)}.get(
            norm, radius**2 >= sum(v * v for v in far)
        )
        assert row.level == "rigorous"
        assert (row.status == "robust") == reached
        assert row.status in ("robust", "certified") and row.radius > 0.9


@pytest.mark.parametrize("front", ["onnx", "torch"])
def test_layer_normalisation_divides_by_its_count_in_full(front: str, tmp_path: Path) -> None:
    """1/3 in single precision would be wrong by 1e-8, and the bounds by as much."""
    x = [0.5, -1.25, 2.0]
    if front == "onnx":
        known = {"w": np.ones(3, np.float32)}
        path = saved(model([node("LayerNormalization", "x w")], (1, 3), known, 17), tmp_path)
        loaded = frown.load(path)
    else:
        loaded = frown.load(nn.LayerNorm(3), torch.zeros(1, 3))
    values = [arb(rational(v)) for v in x]
    mean = sum(values) / 3
    epsilon = rational(np.float32(1e-5)) if front == "onnx" else rational(1e-5)
    spread = (sum((v - mean) ** 2 for v in values) / 3 + arb(epsilon)).sqrt()
    box = proven(loaded, x)
    for k, v in enumerate(values):
        assert_tight(box, k, (v - mean) / spread, 1e-12)


BIG = 2.0**60
CANCEL = [BIG, 1.0, -BIG]  # of which floats keep 0 in some order, and 1 is left


def cancelling(op: str, order: list[int]) -> onnx.ModelProto:
    """The rest of constants inside of one operator, 1, decides the first output."""
    numbers = np.array(CANCEL, np.float32)[order]
    half = np.array([[0.0, 0.5]], np.float32)
    if op == "Einsum":
        nodes = [node("Einsum", "x w", equation="bi,ij->bi")]  # x times sums of constants
        return model(nodes, ["batch", 2], {"w": np.stack([numbers, numbers])})
    if op == "Sum":
        terms = {f"c{i}": np.array([[n, 0.0]], np.float32) for i, n in enumerate(numbers)}
        return model([node("Sum", "c0 c1 c2 half x")], ["batch", 2], {**terms, "half": half})
    if op == "Gemm":
        known = {"a": np.ones((1, 3), np.float32), "b": np.stack([numbers, 0 * numbers], 1)}
        nodes = [node("Gemm", "a b x", "g"), node("Add", "g half", "y")]
        return model(nodes, [1, 2], {**known, "half": half})
    rows = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    state = np.zeros((1, 3 * rows, 3), np.float32)
    state[0, -3] = numbers  # of the last gate: the plain one, or the candidate
    known = {
        "w": np.zeros((1, 3 * rows, 2), np.float32),
        "r": state,
        "h": np.ones((1, 1, 3), np.float32),
        "c": np.ones((1, 1, 3), np.float32),
        "s": integers(1, 1, 2),
        "t": integers(1, 3),
    }
    kinds = {
        "RNN": {"activations": ["Relu"]},
        "GRU": {"activations": ["Sigmoid", "Relu"], "linear_before_reset": 1},
        "LSTM": {"activations": ["Sigmoid", "Relu", "Relu"]},
    }
    first = "xs w r - - h" + (" c" if op == "LSTM" else "")
    nodes = [
        node("Reshape", "x s", "xs"),
        node(op, first, "all last", hidden_size=3, **kinds[op]),
        node("Reshape", "last t", "y"),
    ]
    return model(nodes, ["batch", 2], known)


TRUTHS = {
    # At x = (0.25, 0): the sum of CANCEL is 1 in each.
    "Einsum": 0.25,
    "Sum": 1.25,
    "Gemm": 1.25,
    "RNN": 1.0,  # relu(1)
    "GRU": 0.75,  # z = r = 1/2, n = relu(1/2), and n + z (1 - n)
    "LSTM": 0.5,  # sigmoid(0) relu(sigmoid(0) relu(1) + sigmoid(0))
}


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]])
@pytest.mark.parametrize("op", TRUTHS)
def test_constants_inside_of_one_operator_are_not_rounded_unseen(
    op: str, order: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runtimes lose what is left where they cancel, in one order or the other: the file's
    real-valued network has it."""
    monkeypatch.setattr(Model, "check", lambda self: None)
    box = proven(frown.load(saved(cancelling(op, order), tmp_path)), [0.25, 0.0])
    low, high = (float(end.flatten()[0]) for end in (box.lower, box.upper))
    assert low <= TRUTHS[op] <= high


class Addmm(nn.Module):
    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.a = nn.Buffer(torch.ones(1, 3))
        self.b = nn.Buffer(torch.tensor(CANCEL)[order].reshape(3, 1).repeat(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, self.a, self.b)


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]])
def test_constants_inside_of_a_module_s_operator_are_not_rounded_unseen(
    order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "check", lambda self: None)
    box = proven(frown.load(Addmm(order), torch.zeros(1, 2)), [0.25, 0.0])
    assert float(box.lower.flatten()[0]) <= 1.25 <= float(box.upper.flatten()[0])
