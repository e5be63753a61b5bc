"""Networks whose execution overflows, or differs, although the real-valued network is robust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asking
import frown
from frown.bounds.arithmetic.float32 import factors
from frown.errors import UnsupportedModel
from frown.graph.affine import Scale
from frown.read.model import Model
from onnx_models import model, node, number, saved


def certified(loaded: Model, x: np.ndarray, eps: float, deployed: str | None) -> str:
    found = asking.certify(
        loaded, x, np.zeros(len(x), int), eps=eps, deployed=deployed, attack=False, method="crown"
    )
    return found.rows[0].status


# -- softplus ------------------------------------------------------------------------------


def recurrent(kind: str, folder: Path) -> Path:
    """A state softplus(x), beside a constant that it is above."""
    gates, place = {"RNN": (1, 0), "GRU": (3, 2), "LSTM": (4, 3)}[kind]
    weight = np.zeros((1, gates, 1), np.float32)
    weight[0, place] = 1
    bias = np.zeros((1, 2 * gates), np.float32)
    functions = {"RNN": ["Softplus"], "GRU": ["Relu", "Softplus"]}.get(kind)
    if kind == "LSTM":  # i = o = 1, c' = softplus(x)
        functions = ["Relu", "Softplus", "Relu"]
        bias[0, :2] = 1
    known = {"w": weight, "r": np.zeros((1, gates, 1), np.float32), "b": bias}
    known |= {"v": np.array([[1, 0]], np.float32), "c": np.array([0, -1], np.float32)}
    known["s"] = np.array([-1, 1], np.int64)
    known["t"] = np.array([1, -1, 1], np.int64)
    nodes = [
        node("Reshape", "x t", "q"),
        node(kind, "q w r b", "a h", hidden_size=1, activations=functions),
        node("Reshape", "h s", "z"),
        node("Gemm", "z v c", "y"),
    ]
    return saved(model(nodes, [1, 1], known), folder)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_softplus_within_recurrent_operators_overflows(kind: str, tmp_path: Path) -> None:
    path = recurrent(kind, tmp_path)
    call = frown.load(path)
    executed = call.run(np.array([[70.0], [92.0]]))
    assert np.isfinite(executed[0]).all() and not np.isfinite(executed[1]).all()
    x = np.array([[70.0]])
    assert (
        certified(call, x, 25.0, None) == "mismatch"
    )  # proved of the reals, withdrawn: infinity there
    assert certified(call, x, 25.0, "float32") == "unknown"
    assert certified(call, x, 5.0, "float32") == "certified"


class Positive(nn.Module):
    def __init__(self, beta: float = 1.0, threshold: float = 100.0) -> None:
        super().__init__()
        self.softplus = nn.Softplus(beta, threshold)
        self.out = nn.Linear(1, 2)
        nn.init.zeros_(self.out.weight)
        with torch.no_grad():
            self.out.weight[0], self.out.bias[:] = 1.0, torch.tensor([0.0, -1.0])

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.softplus(x))
        return answer


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_softplus_of_torch_overflows_below_a_large_threshold(beta: float) -> None:
    module = Positive(beta)
    loaded = frown.load(module, torch.zeros(1, 1))
    with torch.no_grad():
        assert not bool(torch.isfinite(module(torch.tensor([[92.0 / beta]]))).all())
    x = np.array([[70.0 / beta]])
    assert certified(loaded, x, 25.0 / beta, None) == "mismatch"
    assert certified(loaded, x, 25.0 / beta, "float32") == "unknown"
    assert certified(loaded, x, 5.0 / beta, "float32") == "certified"


def test_far_below_0_softplus_is_defined() -> None:
    loaded = frown.load(Positive(), torch.zeros(1, 1))
    assert certified(loaded, np.array([[-300.0]]), 200.0, "float32") == "certified"


def test_a_threshold_that_shows_is_refused() -> None:
    """1e5 steep, 2.1e-4 are left out at 8.5: not 2.1e-9 of what is scaled, but of its argument."""
    with pytest.raises(UnsupportedModel, match="raise the threshold"):
        frown.load(Positive(1e5, 8.5), torch.zeros(1, 1))
    frown.load(Positive(1e5, 20.0), torch.zeros(1, 1))


# -- functions that files write out ----------------------------------------------------------


def gated(before: list[str], known: dict[str, float], folder: Path) -> Path:
    """t sigmoid(s), s by operators that only rounding tells from t."""
    nodes, last = [], "x"
    for k, text in enumerate(before):
        op, constant = text.split()
        nodes.append(node(op, f"{last} {constant}", f"s{k}"))
        last = f"s{k}"
    nodes += [node("Sigmoid", last, "g"), node("Mul", "x g", "y")]
    return saved(model(nodes, ["N", 2], {k: number(v) for k, v in known.items()}), folder)


@pytest.mark.parametrize(
    ("before", "known"),
    [
        (["Add big", "Sub big"], {"big": 64.0}),
        (["Mul small", "Mul large", "Mul large"], {"small": 2.0**-130, "large": 2.0**65}),
        (["Mul large", "Mul small"], {"small": 2.0**-100, "large": 2.0**100}),
    ],
    ids=["shift", "denormal", "overflow"],
)
def test_written_out_functions_are_read_as_one_only_if_execution_agrees(
    before: list[str], known: dict[str, float], tmp_path: Path
) -> None:
    assert "Silu" not in frown.load(gated(before, known, tmp_path)).graph.summary()
    assert "Silu" in frown.load(gated([], {}, tmp_path)).graph.summary()
    assert "Silu" in frown.load(gated(["Mul two"], {"two": 2.0}, tmp_path)).graph.summary()


def test_long_chains_of_factors_are_rounded_one_by_one(tmp_path: Path) -> None:
    """A hundred factors behind a SiLU are a hundred roundings, not one."""
    nodes = [node("Sigmoid", "x", "g"), node("Mul", "x g", "p0")]
    nodes += [node("Mul" if k % 2 else "Div", f"p{k} three", f"p{k + 1}") for k in range(100)]
    nodes.append(node("Identity", "p100", "y"))
    loaded = frown.load(saved(model(nodes, ["N", 2], {"three": number(3)}), tmp_path))
    rounded = sum(factors(n.op) for n in loaded.graph.nodes if isinstance(n.op, Scale))
    assert rounded >= 100


# -- gates ------------------------------------------------------------------------------------


def test_gates_that_overflow_on_the_way_prove_nothing(tmp_path: Path) -> None:
    """n + z (h - n) is 2^124 where h = n; onnxruntime computes (1 - z) n + z h, inf - inf for
    z = 32 (x - 20) from x = 21 on."""
    weight, bias = np.zeros((1, 3, 1), np.float32), np.zeros((1, 6), np.float32)
    weight[0, 0], bias[0, 0], bias[0, 2] = 32, -640, 2.0**124
    known = {"w": weight, "r": np.zeros((1, 3, 1), np.float32), "b": bias}
    known |= {"h0": np.full((1, 1, 1), 2.0**124, np.float32), "s": np.array([-1, 1], np.int64)}
    known |= {"v": np.array([[1, 0]], np.float32), "c": np.array([0, -1], np.float32)}
    known["t"] = np.array([1, -1, 1], np.int64)
    nodes = [
        node("Reshape", "x t", "q"),
        node("GRU", "q w r b - h0", "a h", hidden_size=1, activations=["Relu", "Relu"]),
        node("Reshape", "h s", "z"),
        node("Gemm", "z v c", "y"),
    ]
    loaded = frown.load(saved(model(nodes, [1, 1], known), tmp_path))
    with np.errstate(all="ignore"):
        assert not np.isfinite(loaded.run(np.array([[22.0]]))).all()
    x = np.array([[18.0]])
    assert certified(loaded, x, 4.0, None) == "mismatch"
    assert certified(loaded, x, 4.0, "float32") == "unknown"
