"""Constants of ONNX files: computed by onnxruntime or refused, and never larger than memory.

Each hostile file hides its constants in relu(x - FAR - T), which is 0 wherever a graph is compared
with onnxruntime when it is loaded. So a constant that another evaluator would compute otherwise
shows only far out, and there the tests look.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import asking
import frown
from check.test_hostile_models import claimed
from frown.errors import FrownError, InvalidModel, UnsupportedModel
from frown.read.onnx.call import OnnxNode
from frown.read.onnx.load import MOST_NODES, load_onnx
from frown.read.onnx.runtime import RANDOM, Evaluator, fold
from onnx_models import integers, model, node, number, saved, weights
from read.test_onnx import assert_same

FAR = 40.0
ONE = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])


def hidden(
    nodes: Sequence[onnx.NodeProto], known: dict[str, np.ndarray], opset: int
) -> onnx.ModelProto:
    """y = relu(x - FAR - T) for every entry of T, the constant "t"."""
    after = [
        node("Reshape", "t row", "flat"),
        node("Sub", "x far", "near"),
        node("Sub", "near flat", "above"),
        node("Relu", "above", "y"),
    ]
    known = {**known, "row": integers(1, -1), "far": number(FAR)}
    return model([*nodes, *after], [1, 1], known, opset)


def answers(path: Path, x: float) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.full((1, 1), x, np.float32)})[0].ravel()


CUBE = weights(2, 3, 4)
IMAGE = weights(1, 2, 5, 5)
CASES = {
    **{
        f"{op}-{opset}-axis{axis}": ([node(op, "c", "t", axis=axis)], {"c": CUBE}, opset)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opset in (8, 11, 12, 13)
        for axis in (0, 1, 2)
    },
    **{
        f"{op}-{opset}": ([node(op, "c", "t")], {"c": CUBE}, opset)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opset in (9, 12, 13)
    },
    **{
        f"LpNormalization-p{p}-axis{axis}": (
            [node("LpNormalization", "c", "t", p=p, axis=axis)],
            {"c": CUBE},
            13,
        )
        for p in (1, 2)
        for axis in (0, 1, -1)
    },
    **{
        f"LRN-size{size}": ([node("LRN", "c", "t", size=size, bias=2.0)], {"c": IMAGE}, 13)
        for size in (1, 2, 3, 4)
    },
    **{
        f"Slice{start},{end},{step}": (
            [node("Slice", "c s e a p", "t")],
            {
                "c": np.arange(6, dtype=np.float32),
                "s": integers(start),
                "e": integers(end),
                "a": integers(0),
                "p": integers(step),
            },
            13,
        )
        for start, end, step in ((-9, -20, -1), (-7, -8, -2), (9, -9, -1), (-20, 9, 2), (3, -9, -2))
    },
    **{
        f"{op}-{' '.join(map(str, options.values()))}": (
            [node(op, "c", "t", kernel_shape=[2, 2], **options)],
            {"c": IMAGE},
            13,
        )
        for op in ("MaxPool", "AveragePool")
        for options in (
            {"pads": [0, 0, 1, 1]},
            {"pads": [0, 0, 1, 1], "strides": [2, 2]},
            {"ceil_mode": 1, "strides": [2, 2]},
            {"ceil_mode": 1, "strides": [3, 3], "pads": [1, 1, 0, 0]},
            {"auto_pad": "SAME_LOWER"},
            {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
            {"auto_pad": "SAME_UPPER", "strides": [3, 3]},
        )
    },
    **{
        f"Resize-{mode}-{rule}-{factor}": (
            [node("Resize", "c - f", "t", mode=mode, coordinate_transformation_mode=rule)],
            {"c": IMAGE, "f": np.array([1, 1, factor, factor], np.float32)},
            13,
        )
        for mode in ("nearest", "linear", "cubic")
        for rule in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        for factor in (0.7, 1.6, 2.0)
    },
    **{
        f"{op}-{opset}": ([node(op, "c", "t", **options)], {"c": 5 * CUBE}, opset)
        for op, options, opset in (
            ("MeanVarianceNormalization", {"axes": [0, 2]}, 13),
            ("Selu", {}, 13),
            ("HardSigmoid", {}, 13),
            ("Celu", {"alpha": 0.5}, 13),
            ("Round", {}, 13),
            ("Softsign", {}, 13),
            ("ThresholdedRelu", {}, 13),
            ("Shrink", {"bias": 0.5}, 13),
            ("Gelu", {"approximate": "tanh"}, 20),
            ("ReduceLogSumExp", {"axes": [1]}, 13),
        )
    },
    "Mod": ([node("Mod", "c d", "t", fmod=1)], {"c": 5 * CUBE, "d": np.full(1, -1.5, "f")}, 13),
    "TopK": ([node("TopK", "c k", "t -", largest=0)], {"c": CUBE, "k": integers(2)}, 13),
    "CumSum": ([node("CumSum", "c a", "t", reverse=1)], {"c": CUBE, "a": integers(1)}, 14),
    "Dropout in inference": (
        [node("Dropout", "c r off", "t")],
        {"c": CUBE, "r": number(0.5), "off": np.array(False)},
        13,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hidden_constant_is_onnxruntimes(case: str, tmp_path: Path) -> None:
    nodes, known, opset = CASES[case]
    path = saved(hidden(nodes, known, opset), tmp_path)
    try:
        expected = [answers(path, x) for x in (FAR, FAR + 1, FAR + 30)]
    except Exception:  # onnxruntime's exceptions share no base class
        with pytest.raises(FrownError):
            frown.load(path)
        return
    if case.startswith("MeanVariance"):
        with pytest.raises(UnsupportedModel, match="unknown size"):
            load_onnx(path)
        return
    loaded = load_onnx(path)
    for x, wanted in zip((FAR, FAR + 1, FAR + 30), expected, strict=True):
        found = loaded.graph.apply(torch.full((1, 1), x, dtype=torch.float64)).numpy().ravel()
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_a_threshold_far_out_is_not_proved_away(tmp_path: Path) -> None:
    """Softmax before opset 13 over two axes of a cube: each entry is about 1/12, over one axis it
    would be 1/4 or 1. The answer changes where the lowest threshold does."""
    nodes = [
        node("Softmax", "c", "s", axis=1),
        node("ReduceMax", "s", "top", keepdims=0),
        node("Mul", "top hundred", "t"),
        node("Sub", "x t", "above"),
        node("Relu", "above", "r"),
        node("Gemm", "r w b", "y"),
    ]
    known = {
        "c": np.zeros((1, 3, 4), np.float32),
        "hundred": number(100),
        "w": np.array([[-10.0, 0.0]], np.float32),
        "b": np.array([1.0, 0.0], np.float32),
    }
    path = saved(model(nodes, [1, 1], known, opset=11), tmp_path)
    flip = next(x for x in np.linspace(0, 40, 4001) if np.argmin(answers(path, x)) == 0)
    assert 8 < flip < 9  # 100 / 12 + 0.1, not 100 / 4
    result = asking.certify(load_onnx(path), [[0.0]], [0], attack=False)
    assert 0.9 * flip < result.rows[0].radius < flip


@pytest.mark.parametrize("op", sorted(RANDOM))
def test_random_constants_are_refused(op: str, tmp_path: Path) -> None:
    like = op in ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")
    options = {} if like else {"shape": [1, 3]}
    nodes = [node(op, "c" if like else "", "r", **options), node("Cast", "r", "t", to=1)]
    known = {"c": np.full((1, 3), 0.5, np.float32)}
    with pytest.raises(UnsupportedModel, match="random numbers"):
        load_onnx(saved(hidden(nodes, known, 15), tmp_path))


def test_every_random_operator_of_the_standard_is_known() -> None:
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    kinds = getattr(onnx.defs.OpSchema, "NodeDeterminism", None)
    if kinds is None:
        pytest.skip("this version of onnx does not say which operators are random")
    named = {s.name for s in schemas if s.node_determinism == kinds.NonDeterministic}
    bodies = {"AffineGrid", "If", "Loop", "Scan", "SequenceMap"}  # as random as what is in them
    assert named - bodies - {"Dropout"} == RANDOM


@pytest.mark.parametrize("where", ["constant", "computed"])
def test_dropout_in_training_is_refused(where: str, tmp_path: Path) -> None:
    known = {"c": weights(1, 3), "r": number(0.5), "on": np.array(True)}
    if where == "constant":
        proto = hidden([node("Dropout", "c r on", "t")], known, 13)
    else:
        proto = model([node("Dropout", "x r on")], [1, 3], known)
    path = saved(proto, tmp_path)
    with pytest.raises(UnsupportedModel, match="training mode"):
        load_onnx(path)


def test_memory_that_a_module_does_not_fill_is_no_constant() -> None:
    class Unfilled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x - FAR - torch.empty(2))

    class Filled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - torch.empty(2).fill_(3.0)

    with pytest.raises(InvalidModel, match="NaN or infinite"):
        frown.load(Unfilled(), torch.zeros(1, 2))
    assert frown.load(Filled(), torch.zeros(1, 2)).classes == 2


def test_constants_in_half_precision_are_copied_or_refused(tmp_path: Path) -> None:
    """How often a chain of them is rounded is each runtime's own affair."""
    known = {"h": weights(1, 6).astype(np.float16), "p": integers(1, 6)}
    copied = [node("Reshape", "h p", "r"), node("Cast", "r", "c", to=1), node("Add", "x c")]
    assert_same(load_onnx(saved(model(copied, ["N", 6], known), tmp_path)))
    computed = [node("Mul", "h h", "r"), node("Cast", "r", "c", to=1), node("Add", "x c")]
    with pytest.raises(UnsupportedModel, match="float16"):
        load_onnx(saved(model(computed, ["N", 6], known), tmp_path))


def test_constants_that_exporters_write_fold(tmp_path: Path) -> None:
    """Shapes taken apart and put together again, masks, places, casts."""
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s i0 i1 i0", "batch"),
        node("Slice", "s i1 i3 i0", "rest"),
        node("ReduceProd", "rest", "many", keepdims=1),
        node("Concat", "batch many", "flat", axis=0),
        node("Reshape", "x flat", "row"),
        node("Constant", "", "zero", value_int=0),
        node("Constant", "", "one", value_int=1),
        node("Squeeze", "many i0", "n"),
        node("Range", "zero n one", "places"),
        node("Less", "places half", "early"),
        node("Cast", "early", "weight", to=TensorProto.FLOAT),
        node("Where", "early scale plain", "factor"),
        node("Mul", "row weight", "masked"),
        node("Mul", "masked factor", "scaled"),
        node("ConstantOfShape", "flat", "ones", value=ONE),
        node("Add", "scaled ones", "y"),
    ]
    known = {
        **{f"i{k}": integers(k) for k in (0, 1, 3)},
        "half": np.array(6, np.int64),
        "scale": number(2.5),
        "plain": number(1.0),
    }
    loaded = load_onnx(saved(model(nodes, ["N", 3, 4], known), tmp_path))
    assert loaded.classes == 12
    assert_same(loaded)


# -- what the standard leaves open -------------------------------------------------------------


OPEN = {
    "no axes to squeeze": ([node("Squeeze", "x e")], [1, 1, 3], 13, "empty list of axes"),
    "an axis squeezed twice": ([node("Squeeze", "x twice")], [1, 1, 3], 13, "axes"),
    "an axis reduced twice": ([node("ReduceSum", "x twice")], [1, 1, 3], 13, "axes"),
    "an axis cut twice": ([node("Slice", "x twice i2 twice")], [1, 1, 3], 13, "axes"),
    "an axis padded twice": ([node("Pad", "x four - twice")], [1, 1, 3], 18, "axes"),
    "a cut backwards to the end": ([node("Slice", "x i1 far a2 back")], [1, 1, 3], 13, "ends at"),
    "no axes to cut": ([node("Slice", "x i0 i1 e")], [1, 1, 3], 13, "Slice"),
    "a permutation from behind": ([node("Transpose", "x", perm=[0, -1, 1])], [1, 2, 3], 13, "perm"),
    "unequal parts": ([node("Split", "x", "y z", axis=2)], [1, 1, 3], 13, "parts"),
}
SETTINGS = {
    "e": np.zeros(0, np.int64),
    "twice": integers(1, -2),
    "i0": integers(0),
    "i1": integers(1),
    "i2": integers(1, 1),
    "four": integers(1, 1, 1, 1),
    "a2": integers(2),
    "far": integers(2**31 - 1),
    "back": integers(-1),
}


@pytest.mark.parametrize("case", OPEN)
def test_what_the_standard_leaves_open_is_refused_by_both_readers(
    case: str, tmp_path: Path
) -> None:
    nodes, shape, opset, reason = OPEN[case]
    path = saved(model(nodes, shape, SETTINGS, opset), tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        load_onnx(path)
    verdict = claimed(path, np.zeros(shape[1:]).tolist())
    assert not verdict.accepted
    assert "not supported by the checker" in verdict.reason or "malformed" in verdict.reason


def test_a_squeeze_without_axes_drops_all_of_size_one(tmp_path: Path) -> None:
    nodes = [node("Squeeze", "x", "s"), node("Mul", "s w")]
    assert_same(load_onnx(saved(model(nodes, [1, 1, 3], {"w": weights(2, 3)}), tmp_path)))


@pytest.mark.parametrize(
    "more",
    [[("ai.onnx", 12)], [("", 12)], [("ai.onnx", 14)], [("mine", 1), ("mine", 2)]],
    ids=str,
)
def test_a_domain_is_imported_in_one_version(more: list[tuple[str, int]], tmp_path: Path) -> None:
    proto = model([node("Softmax", "x", axis=1)], [1, 2, 3])
    proto.opset_import.extend(helper.make_opsetid(*each) for each in more)
    path = saved(proto, tmp_path)
    with pytest.raises(InvalidModel, match="two versions"):
        load_onnx(path)
    verdict = claimed(path, np.zeros((2, 3)).tolist())
    assert not verdict.accepted and "opset" in verdict.reason


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_one_version_given_twice_is_one(domain: str, tmp_path: Path) -> None:
    """Files of the VNN-COMP have that. The checker, which need not read every file, refuses it."""
    proto = model([node("Relu", "x")], [1, 3])
    proto.opset_import.append(helper.make_opsetid(domain, 13))
    path = saved(proto, tmp_path)
    assert_same(load_onnx(path))
    assert "opset" in claimed(path, np.zeros(3).tolist()).reason


def test_ai_onnx_is_the_standard_domain(tmp_path: Path) -> None:
    proto = model([node("Relu", "x")], [1, 3])
    proto.opset_import[0].domain = "ai.onnx"
    proto.graph.node[0].domain = "ai.onnx"
    assert_same(load_onnx(saved(proto, tmp_path)))


def test_a_function_of_another_opset_is_not_read_as_the_models(tmp_path: Path) -> None:
    """Softmax of opset 12 in a model of opset 13: one reading would make another function of it."""
    body = [helper.make_node("Softmax", ["a"], ["b"], axis=1)]
    proto = model([helper.make_node("F", ["x"], ["y"], domain="mine")], [1, 2, 3])
    opsets = [helper.make_opsetid("", 12)]
    proto.functions.append(helper.make_function("mine", "F", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    path = saved(proto, tmp_path)
    x = weights(1, 2, 3)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        wanted = session.run(None, {"x": x})[0].ravel()
        found = load_onnx(path).graph.apply(torch.from_numpy(x).double()).numpy().ravel()
    except (FrownError, onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        return  # refused
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_letter_of_two_sizes_is_refused_by_name(tmp_path: Path) -> None:
    for equation, shape in (("ab,bc->ac", (3, 2)), ("ab,ab->ab", (1, 2)), ("ab,bc->ac", (1, 2))):
        nodes = [node("Einsum", "x w", equation=equation)]
        path = saved(model(nodes, [1, 4], {"w": weights(*shape)}), tmp_path)
        with pytest.raises(UnsupportedModel, match="b is an axis of 4 and of"):
            load_onnx(path)


# -- sizes ---------------------------------------------------------------------------------------


def constant(first: onnx.NodeProto) -> list[onnx.NodeProto]:
    """y = x + the sum of the constant "b"."""
    total = node("ReduceSum", "b", "t", keepdims=0)
    return [first, total, node("Add", "x t")]


def summed(*first: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [*first, node("ReduceSum", "b", "y")]


def chain(op: str, count: int, **options: object) -> list[onnx.NodeProto]:
    """b0, then an operator that reads it twice, and so on."""
    return [node(op, f"b{i} b{i}", f"b{i + 1}", **options) for i in range(count)]


HUGE = {
    "Expand, computed": (summed(node("Expand", "x big", "b")), [1, 2]),
    "Expand": (constant(node("Expand", "one big", "b")), [1, 2]),
    "ConstantOfShape": (constant(node("ConstantOfShape", "big", "b", value=ONE)), [1, 2]),
    "Tile": (constant(node("Tile", "pair far", "b")), [1, 2]),
    "Tile that overflows": (constant(node("Tile", "pair beyond", "b")), [1, 2]),
    "Range": (constant(node("Range", "zero billion one", "b")), [1, 2]),
    "Range without end": (constant(node("Range", "zero inf one", "b")), [1, 2]),
    "Range of tiny steps": (constant(node("Range", "zero one tiny", "b")), [1, 2]),
    "OneHot": (constant(node("OneHot", "big far pair", "b")), [1, 2]),
    "Pad": (constant(node("Pad", "pair pads", "b")), [1, 2]),
    "Pad, computed": (summed(node("Pad", "x rims", "b")), [1, 2]),
    "Pad with edges, computed": (summed(node("Pad", "x rims", "b", mode="edge")), [1, 2]),
    "Resize": (constant(node("Resize", "image - scales", "b", mode="linear")), [1, 2]),
    "Resize, computed": (summed(node("Resize", "x - scales", "b")), [1, 1, 2, 2]),
    "Resize to sizes, computed": (summed(node("Resize", "x - - sizes", "b")), [1, 1, 2, 2]),
    "a chain of Concat": (
        [
            node("Identity", "pair", "b0"),
            *chain("Concat", 40, axis=0),
            *constant(node("Identity", "b40", "b")),
        ],
        [1, 2],
    ),
    "a chain of Concat, computed": (
        summed(
            node("Identity", "x", "b0"),
            *chain("Concat", 40, axis=1),
            node("Identity", "b40", "b"),
        ),
        [1, 2],
    ),
    "many of the largest, computed": (
        summed(
            node("Expand", "x row", "b0"),
            *chain("Add", 40),
            node("Identity", "b40", "b"),
        ),
        [1, 1],
    ),
    "an outer sum": (summed(node("Transpose", "x", "c"), node("Add", "x c", "b")), [1, 2**15]),
    "an outer product": (summed(node("Transpose", "x", "c"), node("Mul", "x c", "b")), [1, 2**15]),
    "Conv": (summed(node("Conv", "x dot", "b", pads=[2**15] * 4)), [1, 1, 2, 2]),
    "Conv that overflows": (summed(node("Conv", "x dot", "b", pads=[2**62] * 4)), [1, 1, 2, 2]),
    "Conv, constant": (constant(node("Conv", "image dot", "b", pads=[2**15] * 4)), [1, 2]),
    "ConvTranspose": (
        summed(node("ConvTranspose", "x dot", "b", strides=[2**15] * 2)),
        [1, 1, 2, 2],
    ),
    "MaxPool": (
        summed(node("MaxPool", "x", "b", kernel_shape=[2**14, 1], pads=[2**13, 0, 2**13, 0])),
        [1, 1, 2**14, 1],
    ),
    "CumSum": (summed(node("CumSum", "x first", "b")), [1, 2**15]),
    "products of constants": (
        [node("ConstantOfShape", "square", "q"), *constant(node("MatMul", "q q", "b"))],
        [1, 2],
    ),
    "products of weights": (
        summed(node("ConstantOfShape", "window", "q"), node("Conv", "x q", "b")),
        [1, 1, 4000, 4000],
    ),
    "the input": (summed(node("Relu", "x", "b")), [1, 2**25]),
    "the batch": (summed(node("Relu", "x", "b")), [2**26, 2]),
}
NUMBERS = {
    "big": integers(2**28, 2),
    "far": integers(2**28),
    "beyond": integers(2**62),
    "row": integers(1, 2**24),
    "first": np.array(1, np.int64),
    "one": number(1),
    "zero": number(0),
    "billion": number(1e9),
    "inf": number(np.inf),
    "tiny": number(1e-30),
    "pair": weights(2),
    "pads": integers(0, 2**29),
    "rims": integers(0, 0, 0, 2**29),
    "image": weights(1, 1, 2, 2),
    "scales": np.array([1, 1, 2**14, 2**14], np.float32),
    "sizes": integers(1, 1, 2**40, 2**20),
    "dot": weights(1, 1, 1, 1),
    "square": integers(4096, 4096),
    "window": integers(1, 1, 2000, 2000),
}


def huge(case: str, folder: Path) -> Path:
    nodes, shape = HUGE[case]
    read = {i for n in nodes for i in n.input}
    known = {name: value for name, value in NUMBERS.items() if name in read}
    path = saved(model(nodes, shape, known, opset=13), folder)
    assert path.stat().st_size < 3000
    return path


@pytest.mark.parametrize("case", HUGE)
def test_a_small_file_cannot_ask_for_more_than_memory_holds(case: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"at most|more than|beyond"):
        load_onnx(huge(case, tmp_path))


MEASURED = """
import resource, sys
import frown
from frown.errors import FrownError
from frown.read.onnx.load import load_onnx
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
load_onnx(sys.argv[1])
before = peak()
for path in sys.argv[2:]:
    try: load_onnx(path)
    except FrownError: pass
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux reports it")
def test_what_is_refused_for_its_size_is_not_made_first(tmp_path: Path) -> None:
    paths = [saved(model([node("Relu", "x")], [1, 2]), tmp_path, "plain.onnx")]
    for i, case in enumerate(HUGE):
        if case != "a chain of Concat":  # which is made up to the limit
            paths.append(huge(case, tmp_path).rename(tmp_path / f"{i}.onnx"))
    command = [sys.executable, "-c", MEASURED, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300  # MB; one of these tensors alone would be above 1,000


@pytest.mark.parametrize("where", ["constant", "computed"])
def test_nodes_that_nothing_reads_are_not_computed(where: str, tmp_path: Path) -> None:
    """onnxruntime computes them: this one would take 2 GB."""
    source = "x" if where == "computed" else "one"
    nodes = [node("Expand", f"{source} big", "unread"), node("Relu", "x")]
    known = {"big": NUMBERS["big"], "one": NUMBERS["one"]}
    loaded = load_onnx(saved(model(nodes, [1, 2], known), tmp_path))
    assert_same(loaded)
    opened = {n.name for n in loaded.run.session.get_inputs()}  # type: ignore[attr-defined]
    assert opened == {"x"}


def test_functions_that_call_functions_are_counted_before_they_are_written_out(
    tmp_path: Path,
) -> None:
    proto = model([helper.make_node("F30", ["x"], ["y"], domain="mine")], [1, 2])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("mine", 1)]
    for i in range(31):
        op, domain = (f"F{i - 1}", "mine") if i else ("Relu", "")
        body = [
            helper.make_node(op, ["a"], ["m"], domain=domain),
            helper.make_node(op, ["m"], ["b"], domain=domain),
        ]
        proto.functions.append(helper.make_function("mine", f"F{i}", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(UnsupportedModel, match=f"at most {MOST_NODES:,}"):
        load_onnx(saved(proto, tmp_path))
    proto.functions[0].node[0].op_type = "F30"
    proto.functions[0].node[0].domain = "mine"
    with pytest.raises(InvalidModel, match="calls itself"):
        load_onnx(saved(proto, tmp_path))


def test_weights_beyond_the_limit_of_computed_tensors_may_be_copied() -> None:
    """A transposed weight has as many numbers as the file holds, so it asks for nothing more."""
    wide = {"w": np.zeros((2**13, 2**12), np.float32)}  # 2^25
    given = OnnxNode.read(node("Transpose", "w", "t"))
    _, known = fold([given], wide, Evaluator.of(13, wide))
    assert known["t"].shape == (2**12, 2**13)
    twice = OnnxNode.read(node("Concat", "w w", "t", axis=0))
    rest, _ = fold([twice], wide, Evaluator.of(13, wide))
    assert rest == [twice]


def test_the_checker_computes_no_constants_in_floating_point(tmp_path: Path) -> None:
    """It moves the file's numbers and counts with integers; whatever rounds is refused."""
    known = {"c": weights(1, 3), "d": weights(1, 3)}
    for op, inputs in (("Softmax", "c"), ("Mul", "c d"), ("Add", "c d"), ("Relu", "c")):
        path = saved(model([node(op, inputs, "t"), node("Add", "x t")], [1, 3], known), tmp_path)
        verdict = claimed(path, [0.0, 0.0, 0.0])
        assert not verdict.accepted and "not supported by the checker" in verdict.reason


@pytest.mark.parametrize("how", ["raw_data", "int32_data"])
@pytest.mark.parametrize("place", ["initializer", "node"])
def test_any_byte_but_0_is_true(how: str, place: str, tmp_path: Path) -> None:
    """As onnxruntime reads files; handed a 2 for true, it would compute with 2."""
    held = onnx.TensorProto(name="b", data_type=TensorProto.BOOL, dims=[3])
    if how == "raw_data":
        held.raw_data = bytes([2, 0, 255])
    else:
        held.int32_data.extend([2, 0, 255])
    nodes = [
        node("Not", "b", "n"),
        node("Cast", "b", "f", to=TensorProto.FLOAT),
        node("Cast", "n", "g", to=TensorProto.FLOAT),
        node("Mul", "x f", "p"),
        node("Add", "p g", "y"),
    ]
    if place == "node":
        nodes.insert(0, helper.make_node("Constant", [], ["b"], value=held))
    proto = model(nodes, ["N", 3])
    if place == "initializer":
        proto.graph.initializer.append(held)
    loaded = load_onnx(saved(proto, tmp_path))
    assert loaded.answer(np.array([[5.0, 6.0, 7.0]])).tolist() == [[5.0, 1.0, 7.0]]
    assert_same(loaded)
