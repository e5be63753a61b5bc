"""Every ONNX operator, attribute and opset form agrees with onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frown.graph.graph import Graph
from frown.graph.op import Affine, Nonlinear
from frown.read.model import Model
from frown.read.onnx.load import load_onnx
from onnx_models import integers, model, node, number, saved, weights


@dataclass(frozen=True)
class Case:
    """One node y = op(x, *constants); a constant None is left out, "x" is x again."""

    op: str
    shape: tuple[int, ...]
    constants: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 13
    reversed: bool = False  # the constant comes first
    outputs: str = "y"
    first: bool = True  # x comes before the constants; if not, only where they say

    def __str__(self) -> str:
        shown = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        sizes = [list(np.shape(c)) for c in self.constants if c is not None]
        return f"{self.op}{self.opset}-{list(self.shape)}-{sizes}-{shown}".replace(" ", "")

    def load(self, folder: Path) -> Model:
        names = ["x"] if self.first else []
        known = {}
        for i, constant in enumerate(self.constants):
            if isinstance(constant, str):
                names.append(constant)
            elif constant is None:
                names.append("-")
            else:
                names.append(f"c{i}")
                known[f"c{i}"] = np.asarray(constant)
        if self.reversed:
            names.reverse()
        # Joining the outputs shows each of them.
        parts = self.outputs.split()
        nodes = [node(self.op, " ".join(names), self.outputs, **self.attributes)]
        if len(parts) > 1:
            nodes.append(node("Concat", self.outputs, "joined", axis=self.attributes["axis"]))
        end = "joined" if len(parts) > 1 else "y"
        return load_onnx(saved(model(nodes, self.shape, known, self.opset, [end]), folder))


def case(op: str, shape: tuple[int, ...], *constants: Any, opset: int = 13, **more: Any) -> Case:
    return Case(op, shape, constants, more, opset)


def turned(op: str, shape: tuple[int, ...], *constants: Any, **more: Any) -> Case:
    return Case(op, shape, constants, more, reversed=True)


def mask(op: str, shape: tuple[int, ...], *inputs: Any) -> Case:
    """Constants and "x" in this order, x not first."""
    return Case(op, shape, inputs, first=False)


def split(
    shape: tuple[int, ...], parts: int, *constants: Any, opset: int = 13, **more: Any
) -> Case:
    names = " ".join(f"y{i}" for i in range(parts))
    return Case("Split", shape, constants, more, opset, outputs=names)


W, N = weights, integers
SCALAR = np.float32(1.5)
ROW, IMAGE, TALL = (1, 6), (1, 4, 7, 6), (1, 2, 9, 8)

AFFINE = [
    case("Gemm", ROW, W(6, 4)),
    case("Gemm", ROW, W(6, 4), W(4)),
    case("Gemm", ROW, W(4, 6), W(1, 4), transB=1, alpha=0.5, beta=2.0),
    case("Gemm", (1, 6), W(1, 5), W(6, 5), transA=1, alpha=-1.5),
    case("Gemm", (1, 6), W(1, 5), W(6, 1), transA=1),
    case("Gemm", ROW, W(6, 4), W(), opset=11),
    case("Gemm", ROW, W(6, 4), W(4), beta=0.0, opset=9),
    turned("Gemm", (1, 6), W(3, 1), alpha=2.0),
    case("MatMul", ROW, W(6, 3)),
    case("MatMul", (1, 5, 6), W(6, 3)),
    case("MatMul", ROW, W(6)),
    case("MatMul", ROW, W(1, 6, 3)),
    case("MatMul", (6,), W(6, 3)),
    case("MatMul", (6,), W(1, 6, 3)),
    turned("MatMul", (1, 6, 3), W(4, 6)),
    turned("MatMul", (1, 6, 3), W(6)),
    turned("MatMul", (6,), W(4, 6)),
    turned("MatMul", (6,), W(1, 4, 6)),
    case("MatMul", (1, 2, 3, 6), W(2, 6, 4)),
    case("Einsum", (1, 3, 4), W(5, 4), equation="bij,kj->bki"),
    turned("Einsum", (1, 3, 4), W(3, 2), equation="ik,bij->bjk"),
    case("Einsum", (1, 3, 4), equation="bij->jb"),
    case("Conv", (1, 3, 9), W(5, 3, 4), W(5), strides=[2], pads=[3, 1]),
    case("Conv", (1, 4, 9), W(6, 2, 3), group=2, strides=[2], auto_pad="SAME_UPPER"),
    case("Conv", IMAGE, W(3, 4, 3, 2), W(3)),
    case("Conv", IMAGE, W(8, 1, 3, 3), W(8), group=4, strides=[3, 2], pads=[1, 0, 2, 3]),
    case("Conv", IMAGE, W(3, 4, 2, 3), dilations=[3, 2], pads=[2, 2, 2, 2], strides=[2, 3]),
    case("Conv", IMAGE, W(3, 4, 4, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("Conv", IMAGE, W(3, 4, 4, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, W(3, 4, 4, 3), strides=[3, 2], auto_pad="VALID", kernel_shape=[4, 3]),
    case("Conv", (1, 2, 5, 4, 6), W(3, 2, 2, 3, 2), W(3), strides=[2, 1, 2], pads=[1, 1, 0] * 2),
    case("ConvTranspose", (1, 3, 5), W(3, 2, 4), W(2), strides=[3], output_padding=[2]),
    case("ConvTranspose", TALL, W(2, 3, 3, 4), W(3), strides=[2, 3], pads=[1, 0, 2, 1]),
    case("ConvTranspose", TALL, W(2, 3, 3, 3), dilations=[2, 1], pads=[2, 1, 2, 1]),
    case("ConvTranspose", (1, 4, 3, 5), W(4, 2, 3, 3), group=2, strides=[2, 2]),
    case("ConvTranspose", TALL, W(2, 1, 3, 3), strides=[2, 2], output_shape=[18, 16]),
    case("ConvTranspose", TALL, W(2, 1, 4, 4), strides=[3, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", TALL, W(2, 1, 4, 5), strides=[3, 2], auto_pad="SAME_LOWER"),
    case("ConvTranspose", TALL, W(2, 1, 3, 4), strides=[3, 2], auto_pad="VALID"),
    case(
        "ConvTranspose",
        TALL,
        W(2, 1, 4, 3),
        strides=[2, 2],
        output_shape=[19, 16],
        auto_pad="SAME_UPPER",
        output_padding=[1, 0],
    ),
    case("ConvTranspose", (1, 2, 3, 2, 3), W(2, 2, 2, 2, 3), strides=[2, 1, 1]),
    case("AveragePool", (1, 2, 9), kernel_shape=[3], strides=[2], pads=[1, 0]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 2, 1]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1, opset=10),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("AveragePool", IMAGE, kernel_shape=[3, 4], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("AveragePool", IMAGE, kernel_shape=[3, 4], strides=[2, 2], auto_pad="VALID"),
    case("AveragePool", IMAGE, kernel_shape=[2, 3], dilations=[3, 2], pads=[1, 1, 1, 1], opset=19),
    case("AveragePool", (1, 2, 5, 4, 6), kernel_shape=[2, 3, 2], strides=[1, 2, 2]),
    case(
        "AveragePool",
        IMAGE,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
        opset=19,
    ),
    case("GlobalAveragePool", IMAGE),
    case("BatchNormalization", IMAGE, W(4), W(4, seed=1), W(4, seed=2), W(4) ** 2, epsilon=1e-3),
    case("BatchNormalization", ROW, W(6), W(6, seed=1), W(6, seed=2), W(6) ** 2, opset=8),
    case("BatchNormalization", ROW, W(6), W(6, seed=1), W(6, seed=2), W(6) ** 2, opset=15),
    case("Add", IMAGE, W(4, 1, 1)),
    case("Add", ROW, W(3, 6)),
    case("Add", ROW, "x"),
    turned("Sub", ROW, W(6)),
    case("Sub", ROW, SCALAR, opset=8),
    case("Mul", IMAGE, W(1, 4, 1, 6)),
    case("Mul", (1, 4, 1), W(2, 1, 1, 5)),
    case("Div", ROW, W(6)),
    case("Sum", ROW, W(6), "x", W(1)),
    case("Neg", ROW),
    case("Pow", ROW, np.float32(1)),
    case("CumSum", IMAGE, np.int64(2), opset=14),
    case("CumSum", IMAGE, N(-1), exclusive=1),
    case("CumSum", IMAGE, np.int32(1), exclusive=1, reverse=1),
    mask("Where", ROW, W(6) > 0, "x", W(6)),
    mask("Where", ROW, W(3, 1) > 0, W(3, 6), "x"),
    mask("Where", (1, 6, 1), W(6, 4) > 0, "x", SCALAR),
    mask("Where", ROW, W(6) > 0, "x", "x"),
    case("Flatten", IMAGE),
    case("Flatten", IMAGE, axis=3),
    case("Flatten", IMAGE, axis=0),
    case("Flatten", IMAGE, axis=4),
    case("Flatten", IMAGE, axis=-1),
    case("Reshape", IMAGE, N(0, -1, 14)),
    case("Reshape", IMAGE, N(1, 4, 42), opset=14, allowzero=1),
    case("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    case("Transpose", IMAGE),
    case("Squeeze", (1, 1, 5, 1), N(1, -1)),
    case("Squeeze", (1, 1, 5, 1), opset=11, axes=[3]),
    case("Squeeze", (1, 1, 5, 1)),
    case("Unsqueeze", ROW, N(1, -1)),
    case("Unsqueeze", ROW, axes=[2, 0], opset=11),
    case("Concat", IMAGE, "x", axis=2),
    case("Concat", (1, 4, 5), W(1, 2, 5), "x", axis=-2),
    split((1, 7), 2, N(3, 4), axis=1),
    split((1, 7), 2, axis=-1, split=[2, 5], opset=11),
    split((1, 6), 3, axis=1, opset=11),
    split((1, 7), 3, axis=1, num_outputs=3, opset=18),
    case("Slice", IMAGE, starts=[1, -5], ends=[3, 2**31 - 1], axes=[1, 2], opset=9),
    case("Slice", IMAGE, starts=[0, 1], ends=[1, 3], opset=9),
    case("Slice", IMAGE, N(5, 1), N(-(2**63), 6), N(2, -1), N(-2, 3)),
    case("Slice", IMAGE, N(-1), N(0), N(2), N(-1), opset=10),
    case("Slice", IMAGE, N(0, 1), N(1, 100)),
    case("Gather", IMAGE, np.int64(2), axis=1),
    case("Gather", IMAGE, np.array([[0, -1], [3, 3]]), axis=2),
    case("Gather", IMAGE, np.array([5, 0], dtype=np.int32), axis=-1),
    case("Pad", IMAGE, pads=[0, 1, 0, 2, 0, 0, 3, 0], value=1.5, opset=8),
    case("Pad", IMAGE, pads=[0, 0, 1, 2, 0, 0, 3, 0], mode="reflect", opset=10),
    case("Pad", IMAGE, N(0, 0, 1, 2, 0, 0, 3, 0), mode="edge", opset=11),
    case("Pad", IMAGE, N(0, -1, 1, 2, 0, 0, -3, 0), np.float32(-2)),
    case("Pad", IMAGE, N(2, 1, 0, 3), None, N(3, -2), opset=18),
    case("Pad", IMAGE, N(2, 1, 0, 3), None, N(3, -2), opset=19, mode="wrap"),
    case("ReduceSum", IMAGE, N(2, -1), keepdims=0),
    case("ReduceSum", IMAGE),
    case("ReduceSum", IMAGE, noop_with_empty_axes=1),
    case("ReduceSum", IMAGE, axes=[1], opset=11),
    case("ReduceMean", IMAGE, axes=[-1, 1], opset=13),
    case("ReduceMean", IMAGE, N(2, 3), keepdims=0, opset=18),
    case("ReduceMean", IMAGE, keepdims=0, opset=8),
    case("Identity", ROW),
    case("Dropout", ROW, ratio=0.5, opset=8),
    case("Dropout", ROW, np.float32(0.5), np.array(False)),
    case("Cast", ROW, to=1),
    case("Expand", (1, 4, 1), N(2, 1, 1, 3)),
    case("Upsample", IMAGE, scales=[1.0, 1.0, 2.0, 3.0], opset=8),
    case("Upsample", IMAGE, np.array([1, 1, 3, 2], np.float32), mode="nearest", opset=9),
    case("Resize", IMAGE, np.array([1, 1, 3, 2], np.float32), opset=10),
    case("Resize", IMAGE, None, np.array([1, 1, 3, 2], np.float32)),
    case("Resize", IMAGE, None, None, N(1, 4, 14, 18)),
    case(
        "Resize",
        IMAGE,
        None,
        np.array([1, 1, 4, 5], np.float32),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    case(
        "Resize",
        IMAGE,
        None,
        np.array([2, 3], np.float32),
        axes=[2, 3],
        opset=18,
        coordinate_transformation_mode="pytorch_half_pixel",
        nearest_mode="round_prefer_ceil",
    ),
]

NONLINEAR = [
    case("MaxPool", (1, 2, 9), kernel_shape=[3], strides=[2], pads=[1, 0]),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[3, 1], pads=[1, 0, 2, 1], opset=8),
    case("MaxPool", IMAGE, kernel_shape=[2, 3], dilations=[3, 2], pads=[0, 1, 0, 1]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 4], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 1, 1, 1]),
    case("MaxPool", IMAGE, kernel_shape=[3, 4], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", IMAGE, kernel_shape=[3, 4], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", IMAGE, kernel_shape=[3, 4], strides=[2, 2], auto_pad="VALID"),
    case("MaxPool", IMAGE, kernel_shape=[1, 1], strides=[2, 2]),
    case("MaxPool", (1, 2, 5, 4, 6), kernel_shape=[2, 3, 2], strides=[1, 2, 2]),
    case("GlobalMaxPool", IMAGE),
    case("ReduceMax", IMAGE, axes=[1, -1]),
    case("ReduceMax", IMAGE, axes=[2], keepdims=0, opset=11),
    case("ReduceMax", IMAGE, N(0, 3), keepdims=0, opset=18),
    case("ReduceMax", IMAGE, keepdims=0),
    case("ReduceMin", IMAGE, axes=[2]),
    case("Relu", ROW),
    case("LeakyRelu", ROW),
    case("LeakyRelu", ROW, alpha=0.3),
    case("PRelu", IMAGE, W(4, 1, 1)),
    case("PRelu", ROW, W(1)),
    case("Sigmoid", ROW),
    case("Tanh", ROW),
    case("Atan", ROW),
    case("Softplus", ROW),
    case("Elu", ROW),
    case("Elu", ROW, alpha=0.7),
    case("Celu", ROW, alpha=0.7),
    case("Selu", ROW),
    case("Selu", ROW, alpha=1.2, gamma=0.5),
    case("HardSigmoid", ROW),
    case("HardSigmoid", ROW, alpha=1 / 6, beta=0.4),
    case("Clip", ROW, min=-0.5, max=0.25, opset=8),
    case("Clip", ROW, max=0.25, opset=6 + 4),
    case("Clip", ROW, np.float32(-0.5), np.float32(0.5)),
    case("Clip", ROW, None, np.float32(0.5)),
    case("Clip", ROW, np.float32(0)),
    case("Abs", ROW),
    case("Gelu", ROW, opset=20),
    case("Gelu", ROW, approximate="tanh", opset=20),
    case("Max", ROW, SCALAR),
    turned("Max", ROW, np.zeros((3, 6), np.float32)),
    case("Min", ROW, SCALAR / 2),
    case("Max", ROW, W(6)),
    case("Max", ROW, "x", W(3, 1), SCALAR),
    case("HardSwish", ROW, opset=14),
    case("Exp", ROW),
    case("Sin", ROW),
    case("Cos", ROW),
    case("Floor", ROW),
    case("Ceil", ROW),
    case("Round", ROW),
    case("Sign", ROW),
    case("Mul", ROW, "x"),
    case("Pow", ROW, np.float32(2)),
    case("Pow", ROW, np.float32(3)),
    case("Pow", ROW, np.full((1, 1, 6), 4, np.float32)),
    case("Pow", ROW, np.int64(2), opset=12),
    case("Pow", ROW, np.float32(-1)),
    case("Pow", ROW, np.float32(-2)),
    turned("Pow", ROW, np.array([0.5, 1, 2, 1.5, 3, 0.1], np.float32)),
    case("Reciprocal", ROW),
    case("Erf", ROW),
    case("Softmax", ROW),
    case("Softmax", IMAGE, axis=2),
    case("Softmax", IMAGE, axis=2, opset=11),
    case("Softmax", (1, 3, 4), opset=8),
    case("Softmax", (1, 3, 2)),
    case("LogSoftmax", ROW, axis=1),
    case("LogSoftmax", IMAGE, axis=-3),
    case("LogSoftmax", (1, 3, 4), opset=11),
    case("LayerNormalization", (1, 3, 6), W(6), W(6, seed=1), opset=17),
    case("LayerNormalization", (1, 3, 6), W(3, 6), opset=17, axis=1, epsilon=0.1),
    case("InstanceNormalization", IMAGE, W(4), W(4, seed=1)),
    case("GroupNormalization", IMAGE, W(2), W(2, seed=1), num_groups=2, opset=18),
    case("GroupNormalization", IMAGE, W(4), W(4, seed=1), num_groups=2, opset=21),
    case("ReduceLogSumExp", IMAGE, axes=[1, -1]),
    case("ReduceLogSumExp", IMAGE, N(2), keepdims=0, opset=18),
    case("ReduceLogSumExp", IMAGE),
    case("ReduceSumSquare", IMAGE, axes=[1]),
    case("ReduceL1", IMAGE, axes=[1], keepdims=0),
    case("ReduceL2", IMAGE, axes=[2, 3]),
    case("MatMul", (1, 3, 3), "x"),
    case("MatMul", (1, 2, 3, 3), "x"),
    case("MatMul", (6,), "x"),
    case("Einsum", (1, 3, 4), "x", equation="bij,bkj->bik"),
    case("Einsum", (1, 3, 4), "x", equation="bij, bkj -> kib"),
    case("Einsum", (1, 3, 3), "x", equation="bij,bjk"),
    case("Einsum", (1, 3, 4), "x", equation="bij,bkl->bjk"),
    case("Div", (1, 6), "x"),
    turned("Div", ROW, W(6)),
    turned("Div", ROW, W(3, 1)),
]

# Of inputs that are all positive.
POSITIVE = [
    case("Log", ROW),
    case("Sqrt", ROW),
    case("Pow", ROW, np.float32(0.5)),
    case("Pow", ROW, np.float32(1.5)),
    case("Pow", ROW, np.float32(-0.5)),
]


def assert_same(loaded: Model, rows: int = 3, positive: bool = False) -> None:
    x = 2 * np.random.default_rng(1).standard_normal((rows, *loaded.input_shape))
    x = np.abs(x) + 0.01 if positive else x
    theirs = loaded.run(x)
    ours = loaded.graph.apply(torch.from_numpy(x).float().double()).reshape(rows, -1).numpy()
    assert theirs.shape == ours.shape == (rows, loaded.classes)
    assert np.abs(theirs - ours).max() <= 1e-5 * (1 + np.abs(theirs).max())


def pulled_back(graph: Graph, coef: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The linear form `coef` of the output as a form of the input, with its constant."""
    forms = {graph.output: coef}
    const = torch.zeros(len(coef), dtype=coef.dtype)
    for i in range(graph.output, 0, -1):
        if i not in forms:
            continue
        op, form = graph.nodes[i].op, forms.pop(i)
        assert isinstance(op, Affine)
        shift = op.shift(form)
        const = const if shift is None else const + shift
        for j, part in zip(graph.nodes[i].inputs, op.pull_back(form), strict=True):
            assert part.shape[1:] == graph.nodes[j].shape
            forms[j] = forms[j] + part if j in forms else part
    return forms[0], const


@pytest.mark.parametrize("row", AFFINE, ids=str)
def test_an_affine_operator_is_onnxruntimes_and_its_adjoint_is_exact(row, tmp_path):
    loaded = row.load(tmp_path)
    assert not loaded.graph.nonlinear
    assert_same(loaded)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, *loaded.input_shape, generator=generator, dtype=torch.float64)
    coef = torch.randn(4, loaded.classes, generator=generator, dtype=torch.float64)
    form, const = pulled_back(loaded.graph, coef)
    left = (coef * loaded.graph.apply(x).reshape(4, -1)).sum(1)
    right = (form.reshape(4, -1) * x.reshape(4, -1)).sum(1) + const
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", NONLINEAR, ids=str)
def test_a_nonlinear_operator_is_onnxruntimes(row, tmp_path):
    loaded = row.load(tmp_path)
    assert any(isinstance(n.op, Nonlinear) for n in loaded.graph.nodes) or "1,1" in str(row)
    for recorded in loaded.graph.nodes[1:]:
        inputs = (loaded.graph.nodes[i].shape for i in recorded.inputs)
        assert recorded.op.shape(*inputs) == recorded.shape
    assert_same(loaded)


@pytest.mark.parametrize("row", POSITIVE, ids=str)
def test_a_function_of_positive_numbers_is_onnxruntimes(row, tmp_path):
    loaded = row.load(tmp_path)
    assert any(isinstance(n.op, Nonlinear) for n in loaded.graph.nodes)
    assert_same(loaded, positive=True)


def test_maxima_and_minima_of_several_tensors(tmp_path):
    """Three computed tensors that are broadcast, one of them twice, and two constants."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Reshape", "x tall", "t"),
        node("Max", "x h t c h one", "a"),
        node("Min", "h c x t", "b"),
        node("Min", "x h", "d"),
        node("Max", "x x", "e"),
        node("Sum", "a b d e", "y"),
    ]
    known = {"w": weights(6, 6), "tall": integers(6, 1), "c": weights(6), "one": number(0.5)}
    assert_same(load_onnx(saved(model(nodes, ROW, known), tmp_path)), rows=20)


@pytest.mark.parametrize("how", ["where", "add", "lowest"])
def test_masked_scores_count_for_nothing(how, tmp_path):
    """Attention that looks back only: -inf by Where or Add, or the lowest number there is."""
    lowest = -np.inf if how != "lowest" else np.finfo(np.float32).min
    back = np.tril(np.ones((4, 4), bool))
    nodes = [
        node("MatMul", "x w", "k"),
        node("Transpose", "k", "t", perm=[0, 2, 1]),
        node("MatMul", "x t", "s"),
        node("Where", "back s low", "m") if how == "where" else node("Add", "s mask", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p x", "y"),
    ]
    known = {"w": weights(3, 3), "back": back, "low": number(lowest)}
    known["mask"] = np.where(back, 0, lowest).astype(np.float32)
    assert_same(load_onnx(saved(model(nodes, (1, 4, 3), known), tmp_path)), rows=20)


@pytest.mark.parametrize("opset", [*range(8, 21), 21])
def test_every_opset_loads(opset, tmp_path):
    nodes = [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    known = {"w": weights(6, 5), "b": weights(5), "v": weights(5, 3)}
    assert_same(load_onnx(saved(model(nodes, ["N", 6], known, opset), tmp_path)))
