"""ONNX's RNN, LSTM and GRU against onnxruntime, in every variant that is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import asking
from frown.errors import InvalidModel
from frown.graph.graph import Graph
from frown.read.model import Model
from frown.read.onnx.call import OnnxNode
from frown.read.onnx.load import Task, import_graph, load_onnx
from frown.read.onnx.runtime import Evaluator
from onnx_models import integers, model, node, refused, saved, weights
from sequences import reached

FRAMES, FEATURES, SIZE = 4, 3, 2
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
SLOTS = ("x", "W", "R", "B", "lengths", "h0", "c0", "P")


def recurrent(
    op: str,
    *,
    with_: str = "B",
    direction: str = "forward",
    layout: int = 0,
    length: int | None = None,
    read: str = "Y",
    batch: int | str = "N",
    drop: Sequence[str] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """x (batch, frames, features) through one operator; `with_` names its optional inputs."""
    given = {"x", "W", "R", *with_.split()} | ({"lengths"} if length is not None else set())
    ways, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    count = batch if isinstance(batch, int) else 1
    state = (count, ways, SIZE) if layout else (ways, count, SIZE)
    first = np.zeros(state, np.float32) + weights(1, 1, SIZE, seed=4)
    constants = {
        "W": weights(ways, gates * SIZE, FEATURES, seed=1),
        "R": weights(ways, gates * SIZE, SIZE, seed=2),
        "B": weights(ways, 2 * gates * SIZE, seed=3),
        "h0": first if isinstance(batch, int) else weights(*state, seed=4),
        "c0": first + 1 if isinstance(batch, int) else weights(*state, seed=5),
        "P": weights(ways, 3 * SIZE, seed=6),
        "lengths": np.full(count, length if length is not None else 0, np.int32),
    }
    names = [s if s in given else "-" for s in SLOTS[: 8 if op == "LSTM" else 6]]
    while names[-1] == "-":
        names.pop()
    if layout:
        attributes["layout"] = layout
    turned = "x" if layout else "turned"
    kept = {"hidden_size": SIZE, "direction": direction, **attributes}
    nodes = [
        node(
            op,
            " ".join([turned, *names[1:]]),
            "Y Y_h Y_c" if op == "LSTM" else "Y Y_h",
            **{k: v for k, v in kept.items() if k not in drop},
        ),
        node("Flatten", "out", "y", axis=1),
    ]
    if not layout:
        nodes.insert(0, node("Transpose", "x", "turned", perm=[1, 0, 2]))
    # The batch to the front: Y is (frames, directions, batch, size).
    order = {"Y": [2, 0, 1, 3], "Y_h": [1, 0, 2], "Y_c": [1, 0, 2]}[read]
    if layout:
        order = sorted(order)
    nodes.insert(-1, node("Transpose", read, "out", perm=order))
    used = {k: v for k, v in constants.items() if k in given}
    return model(nodes, [batch, FRAMES, FEATURES], used, opset=14)


def assert_agrees(proto: onnx.ModelProto, folder: Path) -> Model:
    """Our graph gives what onnxruntime gives, far more closely than loading asks."""
    loaded = load_onnx(saved(proto, folder))
    x = 2 * np.random.default_rng(7).standard_normal((6, FRAMES, FEATURES)).astype(np.float32)
    ours = loaded.graph.apply(torch.from_numpy(x).double()).reshape(6, -1).numpy()
    theirs = loaded.run(x)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
    assert np.ptp(theirs, axis=0).max() > 0.01  # the comparison sees the input
    return loaded


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", list(GATES))
class TestEveryOperator:
    def test_outputs(self, op: str, direction: str, tmp_path: Path) -> None:
        for read in ["Y", "Y_h", "Y_c"] if op == "LSTM" else ["Y", "Y_h"]:
            assert_agrees(recurrent(op, direction=direction, read=read), tmp_path)

    def test_optional_inputs(self, op: str, direction: str, tmp_path: Path) -> None:
        of_cells = ["B h0 c0", "B P", "P c0"] if op == "LSTM" else []
        for with_ in ["", "h0", *of_cells]:
            assert_agrees(recurrent(op, with_=with_, direction=direction, batch=1), tmp_path)

    @pytest.mark.parametrize("read", ["Y", "Y_h"])
    @pytest.mark.parametrize("length", [1, 3, FRAMES])
    def test_lengths(self, op: str, direction: str, length: int, read: str, tmp_path: Path) -> None:
        proto = recurrent(op, direction=direction, length=length, read=read, batch=1)
        assert_agrees(proto, tmp_path)

    def test_cell_clipping(self, op: str, direction: str, tmp_path: Path) -> None:
        assert_agrees(recurrent(op, direction=direction, clip=0.4), tmp_path)
        if op == "LSTM":
            proto = recurrent(op, with_="B P c0", direction=direction, batch=1, clip=0.4)
            assert_agrees(proto, tmp_path)

    def test_a_batch_that_the_file_fixes(self, op: str, direction: str, tmp_path: Path) -> None:
        assert_agrees(recurrent(op, with_="B h0", direction=direction, batch=3), tmp_path)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_that_resets_after_its_linear_map(direction: str, tmp_path: Path) -> None:
    for with_ in ("", "B h0"):
        proto = recurrent(
            "GRU", with_=with_, direction=direction, linear_before_reset=1, batch=1, read="Y"
        )
        assert_agrees(proto, tmp_path)


@pytest.mark.parametrize("with_", ["", "B h0 c0", "B P c0"])
def test_lstm_with_coupled_gates(with_: str, tmp_path: Path) -> None:
    for read in ("Y", "Y_c"):
        proto = recurrent("LSTM", with_=with_, input_forget=1, batch=1, read=read)
        assert_agrees(proto, tmp_path)


ACTIVATIONS: dict[str, tuple[str, list[float], list[float]]] = {
    "relu": ("Relu", [], []),
    "sigmoid": ("Sigmoid", [], []),
    "softplus": ("Softplus", [], []),
    "elu": ("Elu", [0.7], []),
    "elu by default": ("Elu", [], []),
    "leaky relu": ("LeakyRelu", [0.2], []),
    "leaky relu by default": ("LeakyRelu", [], []),
    "affine": ("Affine", [0.3], [0.1]),
    "scaled tanh": ("ScaledTanh", [1.2], [0.6]),
    "hard sigmoid": ("HardSigmoid", [0.3], [0.4]),
    "hard sigmoid by default": ("HardSigmoid", [], []),
}


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations(name: str, tmp_path: Path) -> None:
    function, alpha, beta = ACTIVATIONS[name]
    parameters = {"activation_alpha": alpha, "activation_beta": beta}
    given = {k: v for k, v in parameters.items() if v}
    assert_agrees(recurrent("RNN", activations=[function], **given), tmp_path)
    assert_agrees(recurrent("GRU", activations=["Sigmoid", function], **given), tmp_path)
    for place in range(3):
        chosen = ["Sigmoid", "Tanh", "Tanh"]
        chosen[place] = function
        assert_agrees(recurrent("LSTM", activations=chosen, **given), tmp_path)


def test_parameters_go_to_the_activations_that_take_them(tmp_path: Path) -> None:
    proto = recurrent(
        "LSTM",
        direction="bidirectional",
        activations=["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"],
        activation_alpha=[0.3, 0.15, 0.6],
        activation_beta=[0.45],
    )
    assert_agrees(proto, tmp_path)


def imported(proto: onnx.ModelProto) -> Graph:
    """The graph alone: onnxruntime has no batch-first layout, and wants a hidden size."""
    nodes = [OnnxNode.read(n) for n in proto.graph.node]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    shape = (1, FRAMES, FEATURES)
    evaluator = Evaluator.of(14, constants)
    task = Task("model", 14, evaluator, nodes, constants, "x", shape, "y", dict)
    graph, _ = import_graph(task)
    return graph


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("op", list(GATES))
def test_batch_first_layout_and_inferred_size(op: str, direction: str) -> None:
    """Neither changes a function that the tests above compare with onnxruntime."""
    x = torch.from_numpy(weights(5, FRAMES, FEATURES, seed=8)).double()
    cells = ["Y_c"] if op == "LSTM" else []
    with_ = "B h0 c0" if op == "LSTM" else "B h0"
    for read in ["Y", "Y_h", *cells]:
        given: dict[str, Any] = {"with_": with_, "direction": direction, "read": read, "batch": 1}
        plain = recurrent(op, **given)
        turned = recurrent(op, layout=1, drop=["hidden_size"], **given)
        torch.testing.assert_close(imported(turned).apply(x), imported(plain).apply(x))


def test_a_layout_that_onnxruntime_lacks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    onnx.save(recurrent("LSTM", layout=1), tmp_path / "model.onnx")
    with pytest.raises(InvalidModel, match=r"layout == 1.*put a Transpose"):
        load_onnx(tmp_path / "model.onnx")


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "softsign": (recurrent("RNN", activations=["Softsign"]), "activation Softsign"),
    "a jump": (
        recurrent("GRU", activations=["ThresholdedRelu", "Tanh"], activation_alpha=[1.0]),
        "activation ThresholdedRelu",
    ),
    "affine without numbers": (
        recurrent("RNN", activations=["Affine"]),
        "activation Affine without its activation_alpha",
    ),
    "too few activations": (
        recurrent("LSTM", activations=["Sigmoid", "Tanh"]),
        "2 activations for 1 direction(s) of 3",
    ),
    "another hidden size": (
        recurrent("GRU", hidden_size=SIZE + 1),
        "weights of shape (1, 6, 3), not (1, 9, 3)",
    ),
    "no frames": (recurrent("RNN", length=0, batch=1), "a sequence length of 0"),
    "too many frames": (recurrent("RNN", length=9, batch=1), "a sequence length of 9"),
    "sideways": (recurrent("RNN", direction="sideways"), "attribute direction='sideways'"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    proto, reason = REFUSED[name]
    assert reason in refused(proto, tmp_path)


def test_sequences_of_different_lengths_are_refused(tmp_path: Path) -> None:
    proto = recurrent("RNN", length=2, batch=2)
    for tensor in proto.graph.initializer:
        if tensor.name == "lengths":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([2, 3], np.int32), "lengths"))
    assert "sequences of different lengths [2, 3]" in refused(proto, tmp_path)


def test_a_state_computed_from_the_input(tmp_path: Path) -> None:
    """An encoder and a decoder: the second operator starts where the first one ended."""
    given = {
        name + str(k): weights(*shape, seed=k)
        for k in (0, 1)
        for name, shape in {"W": (1, 8, 3), "R": (1, 8, 2), "B": (1, 16)}.items()
    }
    nodes = [
        node("Transpose", "x", "turned", perm=[1, 0, 2]),
        node("LSTM", "turned W0 R0 B0", "Y0 h0 c0", hidden_size=2),
        node("LSTM", "turned W1 R1 B1 - h0 c0", "Y1 h1 c1", hidden_size=2),
        node("Transpose", "Y1", "out", perm=[2, 0, 1, 3]),
        node("Flatten", "out", "y", axis=1),
    ]
    assert_agrees(model(nodes, ["N", FRAMES, FEATURES], given), tmp_path)


def test_a_state_of_zeros_that_the_file_makes_from_the_batch(tmp_path: Path) -> None:
    """What torch's exporter writes around a layer when the batch is left open."""
    given = {
        "W": weights(1, 4, 3),
        "R": weights(1, 4, 4),
        "B": weights(1, 8),
        "first": np.array(0),
        "front": integers(0),
        "one": integers(1),
        "four": integers(4),
        "last": np.array(-1),
    }
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape first", "batch", axis=0),
        node("Unsqueeze", "batch front", "long"),
        node("Concat", "one long four", "sizes", axis=0),
        node("ConstantOfShape", "sizes", "zeros"),
        node("Transpose", "x", "turned", perm=[1, 0, 2]),
        node("RNN", "turned W R B - zeros", "Y Y_h", hidden_size=4),
        node("Squeeze", "Y one", "flat"),
        node("Transpose", "flat", "back", perm=[1, 0, 2]),
        node("Gather", "back last", "y", axis=1),
    ]
    assert_agrees(model(nodes, ["N", FRAMES, FEATURES], given), tmp_path)


BOUNDED: dict[str, onnx.ModelProto] = {
    "rnn both ways": recurrent("RNN", direction="bidirectional"),
    "rnn of hard sigmoids": recurrent("RNN", activations=["HardSigmoid"]),
    "lstm": recurrent("LSTM"),
    "lstm with peepholes, clipped": recurrent("LSTM", with_="B P", clip=0.7, read="Y_c"),
    "lstm with coupled gates": recurrent("LSTM", input_forget=1),
    "gru": recurrent("GRU"),
    "gru backwards, reset after its linear map": recurrent(
        "GRU", direction="reverse", linear_before_reset=1
    ),
}
REGIONS = {"l_1": (1, 0.5, "all"), "l_2": (2, 0.3, "all"), "l_inf": (np.inf, 0.15, "all")}
REGIONS["l_2, each frame"] = (2, 0.2, "each")


@pytest.mark.parametrize("name", list(BOUNDED))
def test_bounds_hold_on_sampled_and_attacked_sequences(name: str, tmp_path: Path) -> None:
    """What onnxruntime gives within the region stays between the bounds of either engine."""
    loaded = load_onnx(saved(BOUNDED[name], tmp_path))
    x = np.random.default_rng(2).standard_normal((2, FRAMES, FEATURES))
    middle = loaded.run(x)
    for p, eps, frames in REGIONS.values():
        low, high = reached(loaded.run, x, eps, p, frames == "each")
        for method in ("crown", "frown"):
            out = asking.bound(loaded, x, eps, norm=p, method=method, steps=2, frames=frames)
            assert (high <= out.upper + 1e-5).all() and (low >= out.lower - 1e-5).all()
            room = out.upper - middle
            at_stake = room > 0.01  # not saturated
            assert ((high - middle)[at_stake] / room[at_stake]).max() > 0.5
