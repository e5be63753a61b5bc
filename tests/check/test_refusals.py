"""Refusals of the proof and of the reader, one by one, and shapes that files compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import frown_check
from check.writer import draft
from frown_check.balls import LONGEST_SUM, rounding
from frown_check.errors import Refused
from onnx_models import integers, model, node, number, saved, weights

Known = dict[str, np.ndarray]
Sites = list[tuple[str, str, int]]
INFINITE = np.array([np.inf, 1.0, 1.0, 1.0], np.float32)


def reason(path: Path, sites: Sites, centre: Any, radius: float = 0.1, rows: bool = True) -> str:
    claim = draft(path, sites, centre, radius, 0, [1], rows=rows)
    verdict = frown_check.check(claim.file(), path)
    assert not verdict.accepted
    return verdict.reason


# -- the proof ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "kind", "radius", "said"),
    [
        ("Log", "Log", 2.0, "Log at y is not defined"),
        ("Reciprocal", "Power", 2.0, "Power at y is not defined"),
        ("Sin", "Sin", 1e4, "Sin at y is not defined, or not followed"),
        ("Relu", "Relu", 1e308, "the bounds of site y (Relu) are not finite"),
    ],
)
def test_boxes_beyond_a_domain(
    op: str, kind: str, radius: float, said: str, tmp_path: Path
) -> None:
    nodes = [node("Mul", "x c", "z"), node(op, "z")]
    path = saved(model(nodes, (1, 2), {"c": number(4.0)}), tmp_path)
    assert said in reason(path, [("y", kind, 2)], np.ones(2), radius)


@pytest.mark.parametrize(("op", "place"), [("Ceil", -256.0), ("Floor", 256.0)])
def test_a_box_without_values_is_no_case_without_points(
    op: str, place: float, tmp_path: Path
) -> None:
    """The first and the last jump that is followed: its value belongs to no piece. A tree that
    assumes something must not take that for a contradiction."""
    nodes = [node(op, "x", "s"), node("Mul", "s c")]
    path = saved(model(nodes, (1, 2), {"c": np.array([1.0, 0.0], np.float32)}), tmp_path)
    lesser = int(place > 0)
    claim = draft(path, [("s", op, 2)], [place, 0.5], 0.25, lesser, [1 - lesser], scale=[0.0, 1.0])
    put, none = claim.payload.put, {"slopes": None, "multipliers": None}
    for step in claim.header["steps"]:
        step["multipliers"] = None
    assumed = {"literal": 0, "over": [], "table": put([0xFFFFFFFF], "u4"), **none}
    tree = {
        "site": put([0], "u2"),
        "neuron": put([], "u2"),
        "point": put([]),
        "passes": [[assumed]],
        "pass": put([0], "u4"),
        "rows": put([0], "u2"),
        "literal": put([], "u2"),
        "over": [],
        "levels": 0,
        "slopes": put(np.zeros((0, 0))),
        "multipliers": None,
        "level": (1.0).hex(),
        "factors": put([]),
    }
    claim.header |= {"format": 2, "trees": [tree]}
    verdict = frown_check.check(claim.file(), path)
    assert not verdict.accepted and f"{op} has no piece" in verdict.reason


def test_rows_of_padding(tmp_path: Path) -> None:
    nodes = [node("Pad", "x p", "z"), node("Relu", "z")]
    path = saved(model(nodes, (1, 2), {"p": integers(0, 1, 0, 0)}), tmp_path)
    assert "padding of site y" in reason(path, [("y", "Relu", 3)], np.ones(2))


def test_more_terms_than_the_error_bound_holds_for() -> None:
    assert rounding(LONGEST_SUM) > LONGEST_SUM * 2.0**-53
    with pytest.raises(Refused, match="longer than"):
        rounding(LONGEST_SUM + 1)


@pytest.mark.parametrize("least", [0.0, -0.0, -1.0, np.nan, np.inf, -np.inf])
def test_only_finite_margins_above_0_are_accepted(
    least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(model([node("Mul", "x c")], (1, 2), {"c": weights(2)}), tmp_path)
    monkeypatch.setattr("frown_check.replay.Replay.margins", lambda self: np.array([least]))
    assert "margin over class 1 is not proved" in reason(path, [], np.ones(2))


def test_a_fault_of_the_checkers_own_is_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(model([node("Mul", "x c")], (1, 2), {"c": weights(2)}), tmp_path)
    for error in (IndexError("9"), MemoryError(), ZeroDivisionError()):

        def broken(self: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr("frown_check.replay.Replay.margins", broken)
        said = reason(path, [], np.ones(2))
        assert ("memory" if isinstance(error, MemoryError) else type(error).__name__) in said


# -- the reader -----------------------------------------------------------------------------------

# (nodes, constants, what is said); the input is (1, 1, 2, 2) where a window slides, else (1, 4).
FORMS: dict[str, tuple[list[onnx.NodeProto], Known, str]] = {
    "infinite weight": ([node("Mul", "x c")], {"c": INFINITE}, "infinite or NaN"),
    "infinite bias": ([node("Add", "x c")], {"c": INFINITE}, "infinite or NaN"),
    "infinite floor": ([node("Max", "x c")], {"c": INFINITE}, "infinite or NaN"),
    "division by 0": ([node("Div", "x c")], {"c": np.zeros(4, np.float32)}, "division by 0"),
    "large integer": ([node("Pow", "x c")], {"c": integers(2**53 + 1)}, "integer of 2^53 or more"),
    "exponents": ([node("Pow", "x c")], {"c": weights(4)}, "such an exponent"),
    "exponent 0": ([node("Pow", "x c")], {"c": number(0.0)}, "such an exponent"),
    "high power": ([node("Pow", "x c")], {"c": number(65.0)}, "a power of 65"),
    "base below 0": ([node("Pow", "c x")], {"c": number(-1.0)}, "not positive"),
    "no limits": ([node("Clip", "x a b")], {"a": number(1), "b": number(0)}, "clipping to [1.0"),
    "limit NaN": ([node("Clip", "x a")], {"a": number(np.nan)}, "min=nan"),
    "celu": ([node("Celu", "x", alpha=-1.0)], {}, "alpha=-1"),
    "gelu": ([node("Gelu", "x", approximate="x")], {}, "approximate=x"),
    "alpha": ([node("LeakyRelu", "x", alpha=float("inf"))], {}, "attribute alpha=inf"),
    "attribute": ([node("Relu", "x", beta=1)], {}, "attribute beta"),
    "axis": ([node("Concat", "x x", axis=2)], {}, "axis 2 of a tensor of rank 2"),
    "training": ([node("Dropout", "x r t")], {"r": number(0.5), "t": np.array(True)}, "training"),
    "cast": ([node("Cast", "x", to=onnx.TensorProto.INT64)], {}, "attribute to=7 on a computed"),
    "shape": ([node("Reshape", "x s")], {"s": integers(-1, -1)}, "shape [-1, -1]"),
    "float shape": ([node("Reshape", "x s")], {"s": weights(2)}, "not of integers"),
    "expand": ([node("Expand", "x s")], {"s": integers(2**20, 2**20, 4)}, "shape (1048576"),
    "split": ([node("Split", "x s", "y z", axis=1)], {"s": integers(1, 2)}, "sizes [1, 2]"),
    "pads": ([node("Pad", "x p")], {"p": integers(0, -1, 0, 0)}, "pads=[0, -1"),
    "resize": ([node("Resize", "x - s")], {"s": np.array([1, 1.5], np.float32)}, "scales [1.0, 1"),
    "empty": ([node("Slice", "x a b")], {"a": integers(0, 9), "b": integers(1, 9)}, "empty result"),
    "constants": ([node("Add", "c c", "d"), node("Add", "x d")], {"c": weights(4)}, "not integers"),
    "control": ([node("Loop", "x")], {}, "Loop at y is not supported"),
    "own operator": ([node("Times", "x", domain="frown_check", factor=2.0)], {}, "not supported"),
}
WINDOWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "large": ("MaxPool", {"kernel_shape": [3, 3]}, "windows larger than their input"),
    "axes": ("MaxPool", {"kernel_shape": [2]}, "such windows"),
    "mode": ("MaxPool", {"kernel_shape": [1, 1], "auto_pad": "SAME"}, "auto_pad=SAME"),
    "padding": ("MaxPool", {"kernel_shape": [1, 1], "pads": [1, 1, 1, 1]}, "wholly in the padding"),
    "average": (
        "AveragePool",
        {"kernel_shape": [1, 1], "pads": [1, 1, 1, 1]},
        "wholly in the padding",
    ),
    "transposed": ("ConvTranspose", {"pads": [0, 0, 4, 0]}, "pads=[0, 0, 4, 0]"),
    "strides": ("ConvTranspose", {"strides": [0, 1]}, "such windows"),
    "kernel": ("Conv", {"kernel_shape": [3, 3]}, "weights of shape"),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_operators_that_are_refused(name: str, tmp_path: Path) -> None:
    nodes, known, said = FORMS[name]
    path = saved(model(nodes, (1, 4), known, opset=20 if name == "gelu" else 13), tmp_path)
    assert said in reason(path, [], np.ones(4))


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_are_refused(name: str, tmp_path: Path) -> None:
    op, attributes, said = WINDOWS[name]
    known = {"w": weights(1, 1, 1, 1)} if "Conv" in op else {}
    one = node(op, "x w" if known else "x", **attributes)
    path = saved(model([one], (1, 1, 2, 2), known), tmp_path)
    assert said in reason(path, [], np.ones((1, 2, 2)))


def test_files_that_are_no_model(tmp_path: Path) -> None:
    good = model([node("Mul", "x c")], (1, 2), {"c": weights(2)})
    changes: dict[str, Any] = {
        "one output": lambda m: m.graph.output.append(m.graph.output[0]),
        "one input": lambda m: m.graph.input.append(onnx.helper.make_tensor_value_info("z", 1, [])),
        "opset [99]": lambda m: setattr(m.opset_import[0], "version", 99),
        "computes a tensor twice": lambda m: m.graph.node.append(node("Neg", "x")),
        "must be of floats": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7),
        "axes of unknown size": lambda m: setattr(
            m.graph.input[0].type.tensor_type.shape.dim[1], "dim_param", "n"
        ),
        "local functions": lambda m: m.functions.add(),
        "does not depend on the input": lambda m: setattr(m.graph.output[0], "name", "c"),
    }
    for said, change in changes.items():
        proto = onnx.ModelProto()
        proto.CopyFrom(good)
        change(proto)
        assert said in reason(saved(proto, tmp_path), [], np.ones(2))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff" * 40)
    assert "not an ONNX file" in reason(path, [], np.ones(2))


# -- shapes that files compute --------------------------------------------------------------------

COMPUTED: dict[str, tuple[list[onnx.NodeProto], Known]] = {
    "shape, gather, concat": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axis", "m"),
            node("Concat", "m rest", "t", axis=0),
            node("Reshape", "x t", "z"),
            node("MatMul", "z w", "u"),
            node("Flatten", "u"),
        ],
        {"zero": np.array(0), "axis": integers(0), "rest": integers(2, -1), "w": weights(3, 2)},
    ),
    "constants": (
        [
            node("Constant", "", "two", value_int=2),
            node("Constant", "", "k", value_floats=[1.5, -2.0, 0.5, 4.0, 1.0, 3.0]),
            node("Constant", "", "s", value=onnx.numpy_helper.from_array(integers(1, 6))),
            node("ConstantOfShape", "s", "f", value=onnx.numpy_helper.from_array(weights(1))),
            node("Mul", "x k", "z"),
            node("Size", "x", "six"),
            node("Div", "six two", "three"),
            node("Cast", "three", "real", to=onnx.TensorProto.FLOAT),
            node("Mul", "z real", "u"),
            node("Add", "u f"),
        ],
        {},
    ),
    "chosen constants": (
        [node("Where", "mask a b", "c"), node("Add", "x c")],
        {"mask": np.arange(6) % 2 == 0, "a": weights(6), "b": weights(6, seed=1)},
    ),
    "computed bias": (
        [node("Mul", "x k", "b"), node("Gemm", "x w b", beta=0.5)],
        {"k": weights(6), "w": weights(6, 6)},
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_shapes_that_files_compute_are_those_of_onnxruntime(name: str, tmp_path: Path) -> None:
    """At one point, of radius 0, the margin is the difference of onnxruntime's answers."""
    nodes, known = COMPUTED[name]
    path = saved(model(nodes, (1, 6), known), tmp_path)
    x = np.random.default_rng(0).normal(size=6).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x[None]})
    order = np.argsort(y.ravel())
    best, second = int(order[-1]), int(order[-2])
    found = draft(path, [], x.astype(np.float64), 0.0, best, [second])
    verdict = frown_check.check(found.file(), path)
    assert verdict.accepted, verdict.reason
    assert verdict.margin == pytest.approx(float(y.ravel()[best] - y.ravel()[second]), rel=1e-4)
    turned = draft(path, [], x.astype(np.float64), 0.0, second, [best])
    assert re.search("not proved", frown_check.check(turned.file(), path).reason)
