"""Files that are easily read as another function: what onnxruntime answers is what they mean, and
what it refuses means nothing. Readers that would take them for something else refuse them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import asking
import frown
import frown_check
from check.test_hostile_models import answered, claimed
from check.writer import draft
from frown.errors import FrownError, UnsupportedModel
from frown.read.onnx.call import OnnxNode as FrownNode
from frown.read.onnx.fuse import _Reader
from frown.read.onnx.load import load_onnx
from frown_check import curves, functions, graph
from frown_check.model import calls, file, movers
from frown_check.model.calls import OnnxNode
from frown_check.model.fuse import DEEP, Paths, Term
from onnx_models import integers, model, node, number, saved


def test_statistics_among_the_outputs_mean_training(tmp_path: Path) -> None:
    """Before opset 14 a batch normalisation with five outputs takes the statistics of its input,
    1 and -1 here, not those of the file, which would make 0 of both."""
    known = {
        "one": np.ones(1, np.float32),
        "none": np.zeros(1, np.float32),
        "wide": np.full(1, 1e20, np.float32),
        "w": np.array([[0, 10], [0, 0]], np.float32),
        "b": np.array([5, 0], np.float32),
    }
    for outputs, wrong in (("n", False), ("n m v k l", True)):
        nodes = [
            node("BatchNormalization", "x one none none wide", outputs),
            node("Flatten", "n", "f"),
            node("Gemm", "f w b", "y"),
        ]
        path = saved(model(nodes, [1, 1, 2], known, opset=9), tmp_path)
        first, second = answered(path, [[1, -1]])
        assert (first < second) == wrong
        verdict = claimed(path, [[1, -1]])
        assert verdict.accepted != wrong
        if wrong:
            assert "more than one output is not supported" in verdict.reason
            with pytest.raises(FrownError, match="more than one output"):
                frown.load(path)


def test_training_that_random_inputs_do_not_show_is_refused(tmp_path: Path) -> None:
    """relu(x - 100) is 0 wherever frown compares its graph with onnxruntime."""
    known = {
        "far": number(100),
        "w": np.array([[1, 0]], np.float32),
        "s": integers(1, 1, 2),
        "one": np.ones(1, np.float32),
        "none": np.zeros(1, np.float32),
        "wide": np.full(1, 1e20, np.float32),
        "v": np.array([[0, 10], [0, 0]], np.float32),
        "b": np.array([5, 0], np.float32),
    }
    nodes = [
        node("Sub", "x far", "a"),
        node("Relu", "a", "u"),
        node("MatMul", "u w", "p"),
        node("Reshape", "p s", "r"),
        node("BatchNormalization", "r one none none wide", "n m e k l"),
        node("Flatten", "n", "f"),
        node("Gemm", "f v b", "y"),
    ]
    path = saved(model(nodes, [1, 1], known, opset=9), tmp_path)
    assert np.argmax(answered(path, [99])) == 0 and np.argmax(answered(path, [140])) == 1
    with pytest.raises(FrownError, match="more than one output"):
        frown.load(path)


def test_a_split_has_as_many_parts_as_outputs(tmp_path: Path) -> None:
    """onnxruntime cuts 7 entries into 4 and 3, whatever num_outputs says."""
    known = {"a": integers(1), "c": np.full((1, 1), 3.5, np.float32)}
    for count in (2, 3):
        nodes = [
            node("Split", "x", "p q", axis=1, num_outputs=count),
            node("ReduceSum", "p a", "s"),
            node("Concat", "c s", "y", axis=1),
        ]
        path = saved(model(nodes, [1, 7], known, opset=18), tmp_path)
        assert answered(path, np.ones(7)).tolist() == [3.5, 4]
        assert not claimed(path, np.ones(7)).accepted
        if count == 3:
            assert "num_outputs=3" in claimed(path, np.ones(7)).reason
            with pytest.raises(FrownError, match="num_outputs"):
                frown.load(path)


@pytest.mark.parametrize("axes", [0, 1])
def test_a_written_out_activation_keeps_its_axes(axes: int, tmp_path: Path) -> None:
    """A lone number times a constant of one axis has one axis, and what follows another shape."""
    known = {
        "half": np.full((1,) * axes, 0.5, np.float32),
        "first": integers(0),
        "row": np.array([1, 2, 3], np.float32),
        "column": np.array([[2], [0], [0]], np.float32),
    }
    nodes = [
        node("ReduceSum", "x", "t", keepdims=0),
        node("Sigmoid", "t", "e"),
        node("Mul", "t e", "q"),
        node("Mul", "q half", "g"),
        node("Unsqueeze", "g first", "u"),
        node("Add", "u row", "r"),
        node("Flatten", "r", "f", axis=1),
        node("Add", "f column", "y"),
    ]
    path = saved(model(nodes, [1, 3], known), tmp_path)
    first, second = answered(path, np.ones(3))[:2]
    assert (first < second) == (axes == 1)
    for sites in ([("g", "Silu", 1)], [("e", "Sigmoid", 1), ("q", "Product", 2)]):
        file = draft(path, sites, np.ones(3), 0.0, 0, [1]).file()
        assert not frown_check.check(file, path).accepted
    with pytest.raises(FrownError):
        frown.load(path)


# -- nodes that are unlike their operator in the file's opset ------------------------------------

UNLIKE: dict[str, tuple[int, str, onnx.NodeProto]] = {
    "an input more": (13, "2 inputs", node("Relu", "x c")),
    "limits as inputs too soon": (10, "3 inputs", node("Clip", "x a b")),
    "limits as attributes too late": (11, "attribute max", node("Clip", "x", max=1.0)),
    "axes as an input too soon": (13, "2 inputs", node("ReduceMean", "x i")),
    "axes as an attribute too late": (18, "attribute axes", node("ReduceMean", "x", axes=[1])),
    "starts as inputs too soon": (9, "3 inputs", node("Slice", "x i i", starts=[0], ends=[2])),
    "parts as an attribute too late": (13, "attribute split", node("Split", "x", split=[2])),
    "an attribute of another type": (13, "attribute alpha", node("Elu", "x", alpha=2)),
    "an attribute left out": (13, "no attribute axis", node("Concat", "x x")),
    "an operator too soon": (13, "an operator", node("HardSwish", "x")),
    "an operator too late": (10, "an operator", node("Upsample", "x s")),
    "an output more": (13, "2 outputs", node("Relu", "x", "y z")),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_nodes_are_as_their_opset_has_them(name: str, tmp_path: Path) -> None:
    opset, reason, odd = UNLIKE[name]
    known = {"c": number(1), "a": number(0), "b": number(1), "i": integers(1)}
    known["s"] = np.array([1, 2], np.float32)
    path = saved(model([odd], [1, 2], known, opset), tmp_path)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    verdict = claimed(path, [2.0, 1.0])
    assert not verdict.accepted
    assert f"{odd.op_type} at" in verdict.reason
    assert reason in verdict.reason and f"opset {opset} does not know" in verdict.reason


def test_what_the_standard_leaves_open_is_refused(tmp_path: Path) -> None:
    known = {"i": integers(1, 0), "j": integers(2, 2), "axes": integers(1, -1)}
    known |= {"p": integers(0, 2, 0, 0), "w": np.eye(2, dtype=np.float32)}
    cases = [
        (node("Slice", "x i j axes"), "axes=[1, -1]"),
        (node("Pad", "x p - axes"), "axes=[1, -1]"),
        (node("Pad", "x p", mode="reflect"), "more than there is to reflect"),
    ]
    window = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1, "auto_pad": "VALID"}
    for op in ("MaxPool", "AveragePool"):
        pool = [node("Unsqueeze", "x first", "u"), node(op, "u", "p", **window)]
        for width, accepted in ((4, True), (5, False)):
            nodes = [*pool, node("Flatten", "p", "y")]
            path = saved(model(nodes, [1, width], {"first": integers(1)}), tmp_path)
            sites = [("p", "Max", 4)] if op == "MaxPool" else []
            centre = np.arange(width, 0.0, -1)
            verdict = frown_check.check(draft(path, sites, centre, 0.0, 0, [1]).file(), path)
            assert verdict.accepted == accepted, verdict.reason
            if accepted:
                load_onnx(path)
                continue
            assert "ceil_mode with auto_pad=VALID" in verdict.reason
            with pytest.raises(UnsupportedModel, match="ceil_mode with auto_pad=VALID"):
                load_onnx(path)
    for odd, reason in cases:
        path = saved(model([odd], [1, 2], known, opset=18), tmp_path)
        verdict = claimed(path, [2.0, 1.0])
        assert not verdict.accepted and reason in verdict.reason
    twice = model([node("Gemm", "x w")], [1, 2], known)
    assert claimed(saved(twice, tmp_path), [2.0, 1.0]).accepted
    twice.graph.initializer.append(onnx.numpy_helper.from_array(-np.eye(2, dtype=np.float32), "w"))
    verdict = claimed(saved(twice, tmp_path), [2.0, 1.0])
    assert verdict.reason == "the model has a constant twice"


# -- activations that files write out -------------------------------------------------------------


def test_constants_that_vanish_in_floats_are_seen(tmp_path: Path) -> None:
    """t (sigmoid(t) + 5), t = -relu(x - 100), with the 5 between +1e20 and -1e20: floats lose
    it. The real-valued network answers 400 at x = 180, onnxruntime 0, like t sigmoid(t)."""
    known = {
        "far": number(100),
        "big": number(1e20),
        "five": number(5),
        "w": np.array([[0, -1]], np.float32),
        "b": np.array([5, 0], np.float32),
    }
    nodes = [
        node("Sub", "x far", "a"),
        node("Relu", "a", "z"),
        node("Neg", "z", "t"),
        node("Sigmoid", "t", "s"),
        node("Add", "s big", "p"),
        node("Add", "p five", "q"),
        node("Sub", "q big", "r"),
        node("Mul", "t r", "g"),
        node("Gemm", "g w b", "y"),
    ]
    path = saved(model(nodes, ["N", 1], known), tmp_path)
    found = frown.load(path)
    assert "Silu" not in found.graph.summary()
    (row,) = asking.certify(found, [[180.0]], eps=1.0, attack=False).rows
    assert (row.status, row.radius) == ("unknown", 0.0)


@pytest.mark.parametrize("double", [False, True])
def test_rounded_constants_of_a_gate_are_another_function(double: bool, tmp_path: Path) -> None:
    """0.044715 sqrt(2 / pi) is a float64 number if its factors are float32 ones, else not."""
    root, small = np.sqrt(2 / np.pi), 0.044715
    kind = np.float64 if double else np.float32
    constants = {"k": root, "c": small, "three": 3.0, "one": 1.0, "half": 0.5}
    known = {name: np.array(value, kind) for name, value in constants.items()}
    nodes = [
        node("Pow", "x three", "p"),
        node("Mul", "p c", "q"),
        node("Add", "x q", "r"),
        node("Mul", "r k", "s"),
        node("Tanh", "s", "t"),
        node("Add", "t one", "u"),
        node("Mul", "x u", "v"),
        node("Mul", "v half", "y"),
    ]
    dtype = onnx.TensorProto.DOUBLE if double else onnx.TensorProto.FLOAT
    path = saved(model(nodes, ["N", 3], known, dtype=dtype), tmp_path)
    assert ("GeluTanh" in frown.load(path).graph.summary()) != double


def test_long_expressions_are_read_no_deeper_than_they_can_be_used() -> None:
    """Else reading a file would take the square of its length."""
    ours = [OnnxNode("Mul", f"{k}", (f"{k}", "c"), (f"{k + 1}",), {}) for k in range(1000)]
    constants = {"c": np.array(1.0)}
    computed: dict[str, Term] = {"0": (Fraction(1), 1, 0)}
    makers = {node.outputs[0]: node for node in ours}
    assert Paths(makers, constants)._value(f"{DEEP + 1}", dict(computed)) == (1, 1, 0)
    assert Paths(makers, constants)._value("1000", computed) is None
    assert len(Paths(makers, constants)._around("1000")) < 30
    theirs = [FrownNode.read(node("Mul", f"{k} c", f"{k + 1}")) for k in range(1000)]
    reader = _Reader({name: n for n in theirs for name in n.outputs}, constants)
    assert len(list(reader.chain("1000"))) < 20


# -- more than fits into memory -------------------------------------------------------------------

CHAIN = [node("Neg", f"t{k}", f"t{k + 1}") for k in range(8)]
DOUBLED = [node("Concat", f"t{k} t{k}", f"t{k + 1}", axis=1) for k in range(12)]
BOTH = [node("Expand", "x tall", "t"), node("Expand", "x long", "l")]
LARGE: dict[str, tuple[str, list[onnx.NodeProto]]] = {
    "constants": (
        "a network of over",
        [node("ConstantOfShape", "long", f"c{k}") for k in range(8)]
        + [node("Sum", " ".join(f"c{k}" for k in range(8)) + " x")],
    ),
    "tensors": ("a network of over", [node("Expand", "x long", "t0"), *CHAIN, node("Relu", "t8")]),
    "picked": (
        "600000 entries",
        [
            node("ConstantOfShape", "places", "p", value=onnx.numpy_helper.from_array(integers(0))),
            node("Expand", "x long", "t"),
            node("Gather", "t p"),
        ],
    ),
    "doubled": (
        "4096 entries",
        [node("Concat", "x x", "t0", axis=1), *DOUBLED, node("Relu", "t12")],
    ),
    "crossed": ("too large", [*BOTH, node("Add", "t l")]),
    "scaled": ("too large", [*BOTH, node("Mul", "t large")]),
    "compared": ("too large", [*BOTH, node("Max", "t l")]),
    "masked": ("too large", [*BOTH, node("Where", "true t l")]),
    "multiplied": ("arithmetic on 100000 constants", [node("Mul", "many many", "m")]),
    "spread": ("arithmetic on 1000000 constants", [node("Mul", "rows columns", "m")]),
    "running": ("too large", [node("Expand", "x long", "t"), node("CumSum", "t last")]),
}
"""Reasons, and models whose tensors of a thousand entries stand for larger ones."""


def test_few_tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is of half a megabyte, and a file may have any number of activations."""
    monkeypatch.setattr(curves, "TABLES", {})
    monkeypatch.setattr(curves, "MOST_TABLES", 2)
    for alpha in (1.0, 2.0, 3.0, 3.0):
        functions.elu(alpha, 1.0)
    assert len(curves.TABLES) == 1


@pytest.mark.parametrize("name", LARGE)
def test_memory_is_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graph, calls, file, movers):
        monkeypatch.setattr(module, "MOST_ENTRIES", 3000)
    monkeypatch.setattr(graph, "MOST_IN_ALL", 7000)
    reason, nodes = LARGE[name]
    known = {"tall": integers(1000, 1), "long": integers(1, 1000), "places": integers(600)}
    known |= {"true": np.array(True), "many": np.ones(100000, np.int64), "w": number(1)}
    known["large"] = np.ones((1, 1000), np.float32)
    known |= {"rows": np.ones((1000, 1), np.int64), "columns": np.ones((1, 1000), np.int64)}
    known["last"] = integers(1)[0]
    if name in ("multiplied", "spread"):
        nodes = [*nodes, node("Cast", "m", "f", to=1), node("Add", "x f")]
    path = saved(model(nodes, [1, 1], known), tmp_path)
    verdict = claimed(path, [1.0])
    assert not verdict.accepted and reason in verdict.reason
