"""Models whose claims are false, by numbers that overflow or operators that are easily misread:
no certificate of them is accepted. Where onnxruntime runs one, it says that the claim is false."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import frown_check
from check.writer import draft
from frown_check.model.calls import OnnxNode
from frown_check.model.fuse import fused
from onnx_models import integers, model, node, saved

DOUBLE = onnx.TensorProto.DOUBLE
Known = dict[str, np.ndarray]


def claimed(path: Path, centre: object, radius: float = 0.0) -> frown_check.Verdict:
    """That class 0 beats class 1, of a network without sites."""
    return frown_check.check(draft(path, [], np.asarray(centre), radius, 0, [1]).file(), path)


def answered(path: Path, x: object) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.asarray(x, np.float32)[None]})
    return y.ravel()


@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_sum_that_overflows_on_its_way_proves_nothing(count: int, tmp_path: Path) -> None:
    """1e308 (count - 0.4 (3 count + 1)) < 0, though sums from the left are infinite."""
    signs = np.concatenate([np.ones(count), np.full(3 * count + 1, -0.4)])
    known = {
        "w": np.zeros((1, len(signs))),
        "b": np.full(len(signs), 1e308),
        "v": np.stack([signs, 0 * signs], 1),
    }
    nodes = [node("Gemm", "x w b", "z"), node("MatMul", "z v", "y")]
    path = saved(model(nodes, ["N", 1], known, dtype=DOUBLE), tmp_path)
    assert not claimed(path, np.zeros(1), 0.1).accepted


@pytest.mark.parametrize("before", ["Pad", "Concat", "Where"])
def test_zeros_that_a_file_pads_with_count_in_an_average(before: str, tmp_path: Path) -> None:
    """The first window holds a written 0 and a 1: its mean is 1/2, not 1."""
    known: Known = {
        "p": integers(0, 0, 1, 0, 0, 1),
        "none": np.zeros((1, 1, 1), np.float32),
        "mask": np.array([[[False, True, True, False]]]),
        "edge": integers(0, 0, 1, 0, 0, 1),
        "w": np.array([[1.0, 0.0], [0.0, 0.0]], np.float32),
        "b": np.array([0.0, 0.75], np.float32),
    }
    padded = {
        "Pad": [node("Pad", "x p", "q")],
        "Concat": [node("Concat", "none x none", "q", axis=2)],
        "Where": [node("Pad", "x edge", "e", mode="edge"), node("Where", "mask e none", "q")],
    }[before]
    nodes = [
        *padded,
        node("AveragePool", "q", "a", kernel_shape=[2], strides=[2]),
        node("Flatten", "a", "f"),
        node("Gemm", "f w b", "y"),
    ]
    path = saved(model(nodes, ["N", 1, 2], known), tmp_path)
    assert answered(path, np.ones((1, 2))).tolist() == [0.5, 0.75]
    assert not claimed(path, np.ones((1, 2))).accepted


@pytest.mark.parametrize("shape", [(1,), (3, 1)])
def test_a_bias_unlike_its_convolution_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Where there is one place it could be added to all channels: no other program does."""
    known: Known = {
        "w": np.zeros((3, 1, 2), np.float32),
        "b": np.full(shape, 5, np.float32),
        "v": np.array([[1.0, 0.0]] * 3, np.float32),
    }
    nodes = [node("Conv", "x w b", "c"), node("Flatten", "c", "f"), node("MatMul", "f v", "y")]
    path = saved(model(nodes, ["N", 1, 2], known), tmp_path)
    with pytest.raises(Exception, match="bias must be a 1D tensor of size output_channels"):
        answered(path, np.zeros((1, 2)))
    assert "a bias of another shape" in claimed(path, np.zeros((1, 2))).reason


ONES = np.ones(2, np.float32)
CONTRADICTED = {
    "ConvTranspose": (node("ConvTranspose", "x w", kernel_shape=[1]), {"w": np.ones((2, 1, 2))}),
    "BatchNormalization": (node("BatchNormalization", "x a a a b"), {"a": ONES, "b": ONES[None]}),
    "RNN": (
        node("RNN", "x w r", "y", hidden_size=3),
        {"w": np.ones((1, 2, 2)), "r": np.ones((1, 2, 2))},
    ),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_operators_that_contradict_their_weights_are_refused(name: str, tmp_path: Path) -> None:
    """Nobody runs such a file, so nothing can be proved of what it computes."""
    one, given = CONTRADICTED[name]
    known = {k: v.astype(np.float32) for k, v in given.items()}
    shape = (1, 2) if name == "RNN" else (2, 2)
    path = saved(model([one], ["N", *shape], known, opset=14), tmp_path)
    with pytest.raises(Exception, match=r"kernel_shape|rank 1|must have shape"):
        answered(path, np.zeros(shape))
    assert " at y: " in claimed(path, np.zeros(shape)).reason


WRAPPED: dict[str, tuple[list[onnx.NodeProto], Known]] = {
    "int32": (
        [node("Mul", "i j", "k")],
        {"i": np.array([2**30, 0], np.int32), "j": np.array([4, 1], np.int32)},
    ),
    "int64": (
        [node("Sub", "i j", "k")],
        {"i": np.array([2**63 - 1, 0]), "j": np.array([-1, 1])},
    ),
    "int8": ([node("Neg", "i", "k")], {"i": np.array([-128, 0], np.int8)}),
    "cast": ([node("Cast", "i", "k", to=6)], {"i": np.array([2**33, 0])}),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_integers_that_wrap_around_are_refused(name: str, tmp_path: Path) -> None:
    """What would be large is 0 or negative in the file's own type."""
    nodes, known = WRAPPED[name]
    nodes = [*nodes, node("Cast", "k", "c", to=1), node("Add", "x c", "y")]
    path = saved(model(nodes, ["N", 2], known), tmp_path)
    centre = np.array([0.0, 20.0])
    first, second = answered(path, centre)
    assert first < second
    verdict = claimed(path, centre)
    assert not verdict.accepted and "not supported" in verdict.reason


CLIPS: dict[str, tuple[int, str, dict[str, float], Known]] = {
    "attributes": (8, "b", {"min": 0.0}, {}),
    "the largest": (8, "b", {"min": 0.0, "max": float(np.finfo(np.float32).max)}, {}),
    "inputs": (13, "b low", {}, {"low": np.array(0, np.float32)}),
    "from above": (13, "n - high", {}, {"high": np.array(0, np.float32)}),
}


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize(("scale", "accepted"), [(1e19, True), (1e20, False)])
def test_a_limit_left_out_is_the_largest_number(
    name: str, scale: float, accepted: bool, tmp_path: Path
) -> None:
    """A float32 of 1e40 x is 3.4e38 at the most: the first class has 34, not 1000."""
    opset, inputs, limits, known = CLIPS[name]
    back = 1e-37 if inputs[0] == "b" else -1e-37
    known = {
        **known,
        "s": np.array(scale, np.float32),
        "back": np.array(back * (1e20 / scale) ** 2, np.float32),
        "w": np.array([[1.0, 0.0]], np.float32),
        "v": np.array([0.0, 500.0], np.float32),
    }
    nodes = [
        node("Mul", "x s", "a"),
        node("Mul", "a s", "b"),
        node("Neg", "b", "n"),
        node("Clip", inputs, "c", **limits),
        node("Mul", "c back", "m"),
        node("Gemm", "m w v", "y"),
    ]
    path = saved(model(nodes, ["N", 1], known, opset=opset), tmp_path)
    first, second = answered(path, [1.0])
    assert (first > second) == accepted
    kind = "Relu" if inputs[0] == "b" else "Clip"
    verdict = frown_check.check(draft(path, [("c", kind, 1)], [1.0], 0.1, 0, [1]).file(), path)
    assert verdict.accepted == accepted, verdict.reason


def test_integer_arithmetic_is_that_of_the_standard(tmp_path: Path) -> None:
    """A quotient is cut off towards 0."""
    known = {"i": np.array([-7, 7, -9], np.int32), "j": np.array([2, -2, 3], np.int32)}
    nodes = [node("Div", "i j", "k"), node("Cast", "k", "c", to=1), node("Add", "x c", "y")]
    path = saved(model(nodes, ["N", 3], known), tmp_path)
    assert answered(path, np.zeros(3)).tolist() == [-3, -3, -3]
    for centre, accepted in (([0.5, 0.0, 0.0], True), ([-0.5, 0.0, 0.0], False)):
        assert claimed(path, centre).accepted == accepted


@pytest.mark.parametrize("op", ["Sigmoid", "Erf", "Tanh"])
@pytest.mark.parametrize("factor", [0.0, 1e308, np.inf, np.nan])
@pytest.mark.parametrize("steep", [0.0, 1e308, 1e-200, np.inf])
def test_absurd_constants_beside_gates_prove_nothing(
    op: str, factor: float, steep: float, tmp_path: Path
) -> None:
    known = {"c": np.array(factor), "d": np.array(steep)}
    nodes = [
        node("Mul", "x d", "p"),
        node("Mul", "p d", "q"),
        node(op, "q", "t"),
        node("Mul", "t c", "u"),
        node("Mul", "x u", "y"),
    ]
    path = saved(model(nodes, ["N", 2], known, dtype=DOUBLE), tmp_path)
    assert not claimed(path, [-1.0, 1.0], 0.1).accepted


@pytest.mark.parametrize("shift", [0.0, 1e-200])
def test_a_shift_too_small_for_floats_is_seen(shift: float) -> None:
    """x sigmoid(x + d d) is SiLU for d = 0, and not for d = 1e-200."""
    nodes = [
        OnnxNode("Add", "s", ("x", "d"), ("s",), {}),
        OnnxNode("Sub", "z", ("s", "x"), ("z",), {}),
        OnnxNode("Mul", "p", ("z", "d"), ("p",), {}),
        OnnxNode("Add", "q", ("x", "p"), ("q",), {}),
        OnnxNode("Sigmoid", "g", ("q",), ("g",), {}),
        OnnxNode("Mul", "y", ("x", "g"), ("y",), {}),
    ]
    last = fused(nodes, {"d": np.array(shift)}, "y")[-1]
    assert (last.op == "frown_check::Written") == (shift == 0)


def test_models_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    """An attribute given twice, one of no type, and an input larger than any memory."""
    known = {"w": np.eye(2, dtype=np.float32)}
    twice = node("Gemm", "x w", "y", transB=0)
    twice.attribute.append(onnx.helper.make_attribute("transB", 1))
    typeless = node("Gemm", "x w", "y", transB=0)
    typeless.attribute[0].type = onnx.AttributeProto.UNDEFINED
    plain = node("Gemm", "x w", "y")
    good = saved(model([plain], ["N", 2], known), tmp_path)
    assert claimed(good, [1.0, 0.0]).accepted
    for bad, shape in ((twice, ["N", 2]), (typeless, ["N", 2]), (plain, ["N", 2**40, 2**40])):
        path = saved(model([bad], shape, known), tmp_path)
        assert not claimed(path, [1.0, 0.0]).accepted
