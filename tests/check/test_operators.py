"""Every ONNX operator means the same to the checker as to frown and to onnxruntime, and gives
the same sites: the certificate's slopes would land elsewhere otherwise."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from check.networks import NETWORKS
from check.writer import draft
from frown.bounds.plan import Plan
from frown.graph.simplify import simplify
from frown.read.model import Model
from frown.read.onnx.load import load_onnx
from frown_check.container import read
from frown_check.errors import Refused
from frown_check.model import load
from frown_check.model.calls import HANDLERS
from frown_check.replay import Replay
from onnx_models import model, node, number, saved, weights
from read.test_onnx import AFFINE, NONLINEAR, POSITIVE, Case
from read.test_onnx_fuse import FUSED, KNOWN

CASES = [*AFFINE, *NONLINEAR, *POSITIVE]

# Operators that the checker does not know, and forms of others: what is not here, it reads.
UNKNOWN = {
    "Einsum",
    "Erf",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceSumSquare",
}
SHARES = ("Softmax", "LogSoftmax")  # read at the end, over all outputs
FORMS = {
    "Softmax13-[1,4,7,6]-[]-axis=2": "shares of 7 outputs among 168",
    "Softmax11-[1,4,7,6]-[]-axis=2": "shares of 42 outputs among 168",
    "Softmax13-[1,3,2]-[]-": "shares of 2 outputs among 6",
    "LogSoftmax13-[1,4,7,6]-[]-axis=-3": "shares of 4 outputs among 168",
    "Gemm13-[1,6]-[[3,1]]-alpha=2.0": "a constant input 0",
    "MatMul13-[1,6,3]-[[6]]-": "such a product",
    "MatMul13-[6]-[[4,6]]-": "such a product",
    "MatMul13-[6]-[[1,4,6]]-": "such a product",
    "MatMul13-[1,2,3,6]-[[2,6,4]]-": "a product with a constant of shape (2, 6, 4)",
    "MatMul13-[1,3,3]-[[]]-": "a computed input 1",
    "MatMul13-[1,2,3,3]-[[]]-": "a computed input 1",
    "MatMul13-[6]-[[]]-": "a computed input 1",
    "Div13-[1,6]-[[]]-": "a quotient of two computed tensors",
    "ConvTranspose13-[1,2,9,8]-[[2,1,3,3]]-strides=[2,2],output_shape=[18,16]": (
        "attribute output_shape"
    ),
    "ConvTranspose13-[1,2,9,8]-[[2,1,4,4]]-strides=[3,2],auto_pad=SAME_UPPER": "attribute auto_pad",
    "ConvTranspose13-[1,2,9,8]-[[2,1,4,5]]-strides=[3,2],auto_pad=SAME_LOWER": "attribute auto_pad",
    "ConvTranspose13-[1,2,9,8]-[[2,1,3,4]]-strides=[3,2],auto_pad=VALID": "attribute auto_pad",
    "ConvTranspose13-[1,2,9,8]-[[2,1,4,3]]-strides=[2,2],output_shape=[19,16],"
    "auto_pad=SAME_UPPER,output_padding=[1,0]": "attribute auto_pad",
    "AveragePool19-[1,4,7,6]-[]-kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1],"
    "ceil_mode=1,count_include_pad=1": "count_include_pad with ceil_mode",
    "Pad13-[1,4,7,6]-[[8],[]]-": "pads=[0, -1, 1, 2, 0, 0, -3, 0]",
    "Resize18-[1,4,7,6]-[[2]]-axes=[2,3],coordinate_transformation_mode=pytorch_half_pixel,"
    "nearest_mode=round_prefer_ceil": "attribute axes",
}


def engine_sites(found: Model) -> list[tuple[str, str, int]]:
    plan = Plan(simplify(found.ranking))
    nodes = plan.graph.nodes
    return [
        (nodes[i].name, type(nodes[i].op).__name__, nodes[nodes[i].inputs[0]].size)
        for i in plan.nonlinear
    ]


def replayed(path: Path, sites: list[tuple[str, str, int]], x: np.ndarray) -> Replay:
    """A certificate of radius 0 around x, replayed; its sites must be these."""
    file = draft(path, sites, x, 0.0, 0, [1], rows=False).file()
    certificate = read(file)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with np.errstate(all="ignore"):
        replay = Replay(load(path, digest, {}, None), certificate, lambda done: None)
        replay.margins()
    return replay


def assert_same(found: Model, path: Path) -> None:
    sites = engine_sites(found)
    x = np.abs(np.random.default_rng(0).normal(size=found.input_shape)).astype(np.float32) + 0.1
    replay = replayed(path, sites, x)
    index = replay.output.index
    low, high = (np.append(end, 0.0)[index] for end in replay.root.boxes[replay.output.node])
    wanted = found.ranking.apply(torch.tensor(x.astype(np.float64))[None]).numpy().ravel()
    assert low.shape == wanted.shape
    slack = 1e-6 * (1 + np.abs(wanted))  # constants that frown takes for the usual ones
    assert (low - slack <= wanted).all() and (wanted <= high + slack).all()
    assert (high - low <= 1e-9 * (1 + np.abs(wanted))).all()


def doubled(path: Path) -> Model:
    """The network in a file, with its one output twice: a claim is about two classes."""
    proto = onnx.load(path)
    (output,) = proto.graph.output
    proto.graph.node.append(node("Flatten", output.name, "flat", axis=0))
    proto.graph.node.append(node("Concat", "flat flat", "twice", axis=1))
    output.name = "twice"
    output.type.tensor_type.ClearField("shape")
    return load_onnx(saved(proto, path.parent))


def followed(path: Path) -> Model:
    """The network in a file, with its output turned round: no function is the last one then."""
    proto = onnx.load(path)
    (output,) = proto.graph.output
    proto.graph.node.append(node("Neg", output.name, "turned"))
    output.name = "turned"
    return load_onnx(saved(proto, path.parent))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operator_is_read_as_frown_reads_it(case: Case, tmp_path: Path) -> None:
    found = case.load(tmp_path)
    if found.graph.output_size < 2:
        found = doubled(tmp_path / "model.onnx")
    if case.op not in UNKNOWN and str(case) not in FORMS:
        assert_same(found, tmp_path / "model.onnx")
        if found.scores is None:
            return
        assert case.op in SHARES or not engine_sites(found)
        found = followed(tmp_path / "model.onnx")
        assert found.scores is None
        if case.op not in SHARES:
            assert_same(found, tmp_path / "model.onnx")
            return
        with pytest.raises(
            Refused,
            match=f"{case.op} at y: a place where more than the order",
        ):
            assert_same(found, tmp_path / "model.onnx")
        return
    with pytest.raises(Refused) as reason:
        assert_same(found, tmp_path / "model.onnx")
    why = f": {FORMS[str(case)]}" if str(case) in FORMS else ""
    assert str(reason.value) == f"{case.op} at y{why} is not supported by the checker"


def test_what_is_refused_is_among_the_cases() -> None:
    assert FORMS.keys() <= {str(case) for case in CASES}
    assert {case.op for case in CASES} - HANDLERS.keys() >= UNKNOWN


# Of the others onnxruntime has no double precision, and frown asks onnxruntime.
COMPARED = [name for name in NETWORKS if name not in ("atan", "hard swish", "convolutional")]


@pytest.mark.parametrize("name", COMPARED)
def test_networks_have_the_sites_that_frown_bounds(name: str, tmp_path: Path) -> None:
    net = NETWORKS[name](tmp_path, np.random.default_rng(0))
    assert engine_sites(load_onnx(net.path)) == net.sites


@pytest.mark.parametrize("name", FUSED)
def test_activations_that_files_write_out_are_one_site(name: str, tmp_path: Path) -> None:
    path = saved(model(FUSED[name][1], (1, 6), KNOWN), tmp_path)
    assert_same(load_onnx(path), path)


@pytest.mark.parametrize("op", ["Hardmax", "LSTM", "Erf", "MatMul"])
def test_what_is_not_supported_is_refused_by_name(op: str, tmp_path: Path) -> None:
    inputs = {"MatMul": "x x", "LSTM": "x x x"}.get(op, "x")
    path = saved(model([node(op, inputs)], (1, 6)), tmp_path)
    with pytest.raises(Refused, match=rf"{op} at y.*not supported by the checker"):
        replayed(path, [], np.zeros(6))


def test_written_out_constants_are_the_files_own(tmp_path: Path) -> None:
    """x (1 + erf(0.7071064 x)) / 2 is recognised, but it is not GELU: the last digits show."""
    known = {**KNOWN, "near": number(0.7071064)}
    nodes = [
        node("Mul", "x near", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "f"),
        node("Mul", "x f", "g"),
        node("Mul", "g half"),
    ]
    path = saved(model(nodes, (1, 2), known), tmp_path)
    replay = replayed(path, [("y", "Gelu", 2)], np.array([1.0, -0.5]))
    from flint import arb, ctx

    ctx.prec = 100
    for entry, x in enumerate((1.0, -0.5)):
        exact = arb(x) * (1 + (arb(float(np.float32(0.7071064))) * x).erf()) / 2
        low, high = (end[0, entry] for end in replay.root.boxes[replay.output.node])
        assert arb(low) < exact < arb(high)
        assert high - low < 1e-14


def test_batch_norm_is_the_exact_real_function(tmp_path: Path) -> None:
    from fractions import Fraction

    known = {"s": weights(3), "b": weights(3, seed=1), "m": weights(3, seed=2)}
    known["v"] = np.abs(weights(3, seed=3))
    path = saved(model([node("BatchNormalization", "x s b m v")], (1, 3, 2), known), tmp_path)
    x = np.array([[0.25, -1.5]] * 3)
    replay = replayed(path, [], x)
    low, high = (end[0] for end in replay.root.boxes[replay.output.node])
    for i in range(6):
        s, b, m, v = (Fraction(float(known[k][i // 2])) for k in "sbmv")
        scaled = Fraction(float(x[i // 2, i % 2])) - m  # y = b + s scaled / sqrt(v + e)
        square = (scaled * s) ** 2 / (v + Fraction(float(np.float32(1e-5))))
        for end, sign in ((low[i], -1), (high[i], 1)):
            rest = Fraction(float(end)) - b
            # end beyond the value, compared by squares
            value = square if scaled * s > 0 else -square
            assert sign * (rest * abs(rest) - value) >= 0
