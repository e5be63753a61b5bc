"""Answers of onnxruntime, in single precision, lie within what is proved of execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import asking
import frown
from frown.bounds.arithmetic.executed import Execution
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.errors import InvalidModel
from frown.problem.property import LabelWins
from frown.problem.region import Region
from frown.read.model import Model
from frown.relax.relaxation import LeastArea
from onnx_models import model, node, number, saved

WIDTH = 8


def proved(loaded: Model, centre: np.ndarray, radius: float) -> tuple[float, float]:
    """What bounds y_0 - y_1 as executed over a box, from below and above."""
    graph = loaded.graph
    x = torch.from_numpy(centre).reshape(1, *graph.input_shape)
    region = Region(x, torch.tensor([radius], dtype=torch.float64), torch.inf)
    plan = Plan(graph)
    execution = Execution(plan, region, Work())
    walk = Replay(plan, region, ByRule(LeastArea()), Work(), execution=execution)
    walk.layers()
    one, other = torch.zeros(1).long(), torch.ones(1, 1).long()
    least = walk.literals(LabelWins(one, other, 2, torch.float64))
    most = -walk.literals(LabelWins(other[0], one[None], 2, torch.float64))
    return float(least), float(most)


def between(op: str | list[onnx.NodeProto], shift: float, **attributes: object) -> onnx.ModelProto:
    """Two matrices with a function of about `shift` between them."""
    rng = np.random.default_rng(len(str(op)))
    known = {
        "w": rng.normal(size=(3, WIDTH)).astype(np.float32),
        "b": np.full(WIDTH, shift, np.float32),
        "v": rng.normal(size=(WIDTH, 2)).astype(np.float32),
        "root": number(np.sqrt(0.5)),
        "one": number(1.0),
        "half": number(0.5),
        "mean": np.full(WIDTH, 1e3 + shift, np.float32),
        "unit": np.ones(WIDTH, np.float32),
    }
    inner = [node(op, "z", "a", **attributes)] if isinstance(op, str) else op
    nodes = [node("Gemm", "x w b", "z"), *inner, node("Gemm", "a v", "y")]
    used = {i for n in nodes for i in n.input}
    return model(nodes, ("N", 3), {k: v for k, v in known.items() if k in used}, opset=20)


WRITTEN = [
    node("Mul", "z root", "p"),
    node("Erf", "p", "q"),
    node("Add", "q one", "r"),
    node("Mul", "z r", "s"),
    node("Mul", "s half", "a"),
]
CENTRED = [
    node("BatchNormalization", "z unit mean mean unit", "n"),
    node("Relu", "n", "a"),
]
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "relu": lambda: between("Relu", 0.0),
    "sigmoid": lambda: between("Sigmoid", 0.0),
    "sigmoid far below 0": lambda: between("Sigmoid", -17.0),
    "tanh": lambda: between("Tanh", 7.0),
    "elu near 0": lambda: between("Elu", 0.0),
    "steep elu near 0": lambda: between("Elu", 0.0, alpha=50.0),
    "softplus": lambda: between("Softplus", -9.0),
    "gelu far below 0": lambda: between("Gelu", -6.0),
    "gelu by tanh": lambda: between("Gelu", -4.0, approximate="tanh"),
    "gelu written out": lambda: between(WRITTEN, -5.0),
    "statistics that cancel": lambda: between(CENTRED, 0.0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_of_onnxruntime_lie_within_what_is_proved(name: str, tmp_path: Path) -> None:
    loaded = frown.load(saved(NETWORKS[name](), tmp_path))
    rng = np.random.default_rng(0)
    for radius in (1e-7, 1e-3, 0.3):
        centre = rng.normal(size=3).astype(np.float32) * (1e-7 if radius == 1e-7 else 0.3)
        x = centre + rng.uniform(-radius, radius, (300, 3)).astype(np.float32) * np.float32(0.99)
        y = loaded.run(x.astype(np.float64)).astype(np.float64)
        gap = y[:, 0] - y[:, 1]
        least, most = proved(loaded, centre.astype(np.float64), radius)
        assert least <= gap.min() and gap.max() <= most, radius
        assert most - least < 0.2 + 2000 * radius


def factors(first: float, second: float, last: float, folder: Path) -> Path:
    """x times three matrices of one number each, the last beside a constant -1."""
    known = {
        "w": np.full((1, 1), first, np.float32),
        "v": np.full((1, 1), second, np.float32),
        "u": np.array([[last, 0.0]], np.float32),
        "b": np.array([0.0, -1.0], np.float32),
    }
    nodes = [node("MatMul", "x w", "p"), node("MatMul", "p v", "q"), node("Gemm", "q u b", "y")]
    return saved(model(nodes, ("N", 1), known), folder)


def test_numbers_too_large_for_single_precision_prove_nothing(tmp_path: Path) -> None:
    """1e30 1e7 x is infinite where it is executed, and its products with 0 are no numbers."""
    with pytest.raises(InvalidModel, match="NaN or infinity"):
        frown.load(factors(1e30, 1e10, 1e-38, tmp_path))
    loaded = frown.load(factors(1e30, 1e7, 1e-37, tmp_path))
    small, large = np.array([1e-3]), np.array([1e3])
    assert np.isfinite(proved(loaded, small, 1e-4)).all()
    assert not np.isfinite(proved(loaded, large, 0.1)).any()


def test_a_product_that_overflows_before_alpha_proves_nothing(tmp_path: Path) -> None:
    """alpha (x 1e30) with alpha = 1e-30: onnxruntime answers infinity at x = 1e10."""
    known = {"w": np.array([[0, 1e30]], np.float32), "b": np.array([2e10, 0], np.float32)}
    proto = model([node("Gemm", "x w b", alpha=1e-30)], ("N", 1), known)
    loaded = frown.load(saved(proto, tmp_path))
    assert loaded.run(np.array([[1e10]]))[0, 1] == np.inf
    assert proved(loaded, np.array([1.0]), 1e3)[0] > 0
    assert not np.isfinite(proved(loaded, np.array([1.0]), 1e10)).any()


def test_merged_weights_that_overflow_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x 1e-30 is small, but a runtime may multiply 1e30 1e30 first."""
    monkeypatch.setattr(Model, "check", lambda _: None)
    x = np.array([1.0])
    for matrices in ((1e-30, 1e30, 1e30), (1e30, 1e30, 1e-38)):
        loaded = frown.load(factors(*matrices, tmp_path))
        assert not np.isfinite(proved(loaded, x * 1e-28, 1e-30)).any()
    assert np.isfinite(proved(frown.load(factors(1e-30, 1e30, 1.0, tmp_path)), x, 1e-3)).all()


def test_merged_weights_that_are_flushed_are_charged(tmp_path: Path) -> None:
    """2^-70 2^-70 is 0 if weights below 2^-126 are, however large what it multiplies is."""
    loaded = frown.load(factors(2.0**-70, 2.0**-70, 2.0**100, tmp_path))
    least, most = proved(loaded, np.array([2.0**40]), 1.0)
    assert least <= 1 and most >= 2  # as it is flushed, and as it is not


def test_a_margin_within_what_execution_may_stray_is_not_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1e8 sigmoid(-17) - 4 is 0.14 over the real numbers; some runtimes answer -4."""
    known = {
        "v": np.array([[1e8, 0.0]], np.float32),
        "c": np.array([0.0, 4.0], np.float32),
    }
    nodes = [node("Sigmoid", "x", "a"), node("Gemm", "a v c", "y")]
    monkeypatch.setattr(Model, "check", lambda _: None)  # which would notice
    loaded = frown.load(saved(model(nodes, ("N", 1), known), tmp_path))
    real = replace(loaded, run=lambda x: loaded.graph.apply(torch.from_numpy(x).double()).numpy())
    x = np.array([[-17.0]])
    for deployed, radius in ((None, 1e-6), ("float32", 0.0)):
        found = asking.certify(real, x, [0], eps=1e-6, deployed=deployed, attack=False)
        assert found.radius[0] == radius
