"""What the fuzzer (tests/fuzz_campaign.py) found, each as a file of its own; and its seeds."""

from __future__ import annotations

import hashlib
import io
import random
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import frown
from benchmarks.paper import formats
from check.writer import draft
from frown.errors import InvalidInput, InvalidModel, UnsupportedModel
from frown.problem.data import read_data
from frown_check import check
from frown_check.checker import BROKEN
from frown_check.errors import Refused
from frown_check.model import load
from fuzz.targets import TARGETS, Target
from onnx_models import integers, model, node, number, saved, weights


def checked(path: Path) -> None:
    """The checker's reader."""
    load(path, hashlib.sha256(path.read_bytes()).hexdigest(), {}, None)


def gemm(shape: tuple[int | str, ...] = ("N", 3)) -> onnx.ModelProto:
    return model([node("Gemm", "x w", "y")], shape, {"w": weights(3, 2)})


# -- seeds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_good_files_and_their_mutants_end_in_documented_errors(name: str) -> None:
    target, rng = TARGETS[name], random.Random(0)
    seeds = target.seeds()
    good = sum(_ends_well(target, seed) for seed in seeds)
    assert good > 0.6 * len(seeds)  # the others show what is refused
    for seed in seeds:
        _ends_well(target, target.mutate(seed, rng, lambda part: part[: len(part) // 2] + b"\xff"))


def _ends_well(target: Target, content: bytes) -> bool:
    """Whether there is no error; one that is not documented fails the test."""
    try:
        target.run(content)
    except target.allowed:
        return False
    return True


# -- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["op_type", "name", "output", "input", "weight", "attribute"])
def test_names_that_are_no_text(field: str, tmp_path: Path) -> None:
    proto = gemm()
    mark = "zzzz"
    match field:
        case "op_type" | "name":
            setattr(proto.graph.node[0], field, mark)
        case "output":
            proto.graph.node[0].output[0] = mark
        case "input":
            proto.graph.node[0].input[0] = mark
        case "weight":
            proto.graph.initializer[0].name = mark
        case _:
            proto.graph.node[0].attribute.append(onnx.helper.make_attribute(mark, 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"zzzz", b"zz\xff\xfe"))
    with pytest.raises(InvalidModel, match="UTF-8"):
        frown.load(path)
    with pytest.raises(Refused, match="UTF-8"):
        checked(path)


@pytest.mark.parametrize("where", ["weight", "constant"])
def test_tensors_of_sizes_below_0(where: str, tmp_path: Path) -> None:
    """numpy takes -1 for a size to be worked out."""
    proto = gemm()
    tensor = proto.graph.initializer[0]
    tensor.dims[1] = -1
    if where == "constant":
        value = onnx.helper.make_attribute("value", tensor)
        del proto.graph.initializer[:]
        proto.graph.node.insert(0, node("Constant", "", "w"))
        proto.graph.node[0].attribute.append(value)
    path = saved(proto, tmp_path)
    with pytest.raises(InvalidModel, match="below 0"):
        frown.load(path)
    with pytest.raises(Refused, match="below 0"):
        checked(path)


def test_weights_of_a_type_without_a_name(tmp_path: Path) -> None:
    proto = gemm()
    proto.graph.initializer[0].data_type = 43
    path = saved(proto, tmp_path)
    with pytest.raises(InvalidModel, match="weight w is damaged"):
        frown.load(path)
    with pytest.raises(Refused, match="constant w"):
        checked(path)


def test_an_input_of_a_type_without_a_name(tmp_path: Path) -> None:
    proto = gemm()
    proto.graph.input[0].type.tensor_type.elem_type = 65
    with pytest.raises(UnsupportedModel, match="number 65"):
        frown.load(saved(proto, tmp_path))


def test_large_inputs_are_compared_one_at_a_time(tmp_path: Path) -> None:
    """A small file may have an input of millions of numbers."""
    count = 3_000_000
    path = saved(model([node("Relu", "x")], ("N", count), {}), tmp_path)
    tracemalloc.start()
    try:
        frown.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * 8 * count  # to compare three at once takes more than that


@pytest.mark.parametrize("shape", [(2**31, 3), ("N", 2**31), ("N", 2**20, 2**20)])
def test_inputs_too_large_for_any_memory(shape: tuple[int | str, ...], tmp_path: Path) -> None:
    path = saved(gemm(shape), tmp_path)
    with pytest.raises(UnsupportedModel, match="batch 1"):
        frown.load(path)
    if shape[0] == "N":  # the checker has a batch of 1, whatever the file says
        with pytest.raises(Refused, match="features"):
            checked(path)


def test_sequences_too_long_to_unroll(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("GRU", "t w r", "h", hidden_size=2),
        node("Reshape", "h shape", "y"),
    ]
    known = {"w": weights(1, 6, 3), "r": weights(1, 6, 2), "shape": integers(1, -1)}
    path = saved(model(nodes, ("N", 2**20, 3), known, opset=14), tmp_path)
    with pytest.raises(UnsupportedModel, match="1048576 frames"):
        frown.load(path)
    with pytest.raises(Refused, match="1048576 frames"):
        checked(path)


@pytest.mark.parametrize("shape", [(1, 1, 6, 3), (6, 3), (2, 6, 3), (1, 4, 3)])
def test_weights_of_a_recurrent_cell_with_other_axes(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensors = {"w": weights(*shape), "r": weights(1, 6, 2), "s": integers(-1, 4)}
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("GRU", "t w r", "h", hidden_size=2),
        node("Reshape", "h s", "y"),
    ]
    path = saved(model(nodes, ("N", 2, 3), tensors), tmp_path)
    with pytest.raises((InvalidModel, UnsupportedModel)):
        frown.load(path)
    with pytest.raises(Refused, match="such weights"):
        checked(path)


def test_an_activation_without_input_in_a_product(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "", "s"), node("Mul", "x s", "y")]
    path = saved(model(nodes, ("N", 3)), tmp_path)
    with pytest.raises(InvalidModel, match="Sigmoid"):
        frown.load(path)
    with pytest.raises(Refused, match="Sigmoid"):
        checked(path)


def test_an_unknown_operator_with_a_lone_number_as_result(tmp_path: Path) -> None:
    """Its place is held by a stand-in, which needs an axis."""
    nodes = [node("Det", "x", "n"), node("Squeeze", "n", "s"), node("Add", "x s", "y")]
    with pytest.raises(UnsupportedModel, match="Det"):
        frown.load(saved(model(nodes, (3, 3)), tmp_path))


@pytest.mark.parametrize("op", ["MatMul", "Pow"])
def test_an_operator_whose_third_tensor_alone_is_computed(op: str, tmp_path: Path) -> None:
    known = {"a": weights(2, 2), "b": weights(2, 2, seed=1)}
    path = saved(model([node(op, "a b x", "y")], ("N", 2), known), tmp_path)
    with pytest.raises(InvalidModel):
        frown.load(path)
    with pytest.raises(Refused):
        checked(path)


def test_circles(tmp_path: Path) -> None:
    """Nodes that read each other, in front of a product that may be an activation."""
    nodes = [
        node("Neg", "b", "a"),
        node("Neg", "a", "b"),
        node("Sigmoid", "b", "s"),
        node("Mul", "a s", "y"),
    ]
    path = saved(model(nodes, ("N", 3)), tmp_path)
    with pytest.raises(InvalidModel, match="nothing before it computes"):
        frown.load(path)
    with pytest.raises(Refused, match="not computed yet"):
        checked(path)


@pytest.mark.parametrize("factor", [np.inf, np.nan])
def test_factors_that_are_no_numbers_beside_an_activation(factor: float, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x c", "z"),
        node("Sigmoid", "z", "s"),
        node("Mul", "x s", "y"),
    ]
    path = saved(model(nodes, ("N", 3), {"c": number(factor)}), tmp_path)
    with pytest.raises(InvalidModel):
        frown.load(path)
    with pytest.raises(Refused):
        checked(path)


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Softplus", "Elu", "Exp"])
@pytest.mark.parametrize("centre", [1e300, -1e300, 1e18])
def test_inputs_at_which_arb_gives_up(op: str, centre: float, tmp_path: Path) -> None:
    """1 / (1 + e^1e300): a verdict, and a reason that says where."""
    # A product behind it: a last function that keeps the order is left out.
    nodes = [node(op, "x", "a"), node("Mul", "a c", "y")]
    path = saved(model(nodes, ("N", 2), {"c": number(0.5)}), tmp_path)
    x = np.array([centre, 0.0])
    verdict = check(draft(path, [("a", op, 2)], x, 0.1, 0, [1], rows=False).file(), path)
    assert not verdict.reason.startswith(BROKEN)
    assert (
        verdict.accepted
        or "enclosure" in verdict.reason
        or "finite" in verdict.reason
        or ("not proved" in verdict.reason)
    )


# -- data -------------------------------------------------------------------------------------


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header


HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }\n"
BAD = {
    "an open bracket": npy(b"{'descr': ('<f8', \n"),
    "no header": npy(b""),
    "a shape that no memory holds": npy(HEADER.replace(b"(1, 2)", b"(1, 2305843009213693951)")),
    "a type of objects": npy(HEADER.replace(b"<f8", b"|O8")),
    "no array at all": b"plain text",
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_arrays(name: str, tmp_path: Path) -> None:
    alone, packed = tmp_path / "a.npy", tmp_path / "a.npz"
    alone.write_bytes(BAD[name])
    packed.write_bytes(npz(x=BAD[name], y=BAD[name]))
    for read in (
        lambda: read_data(alone),
        lambda: read_data(packed),
        lambda: formats.read_npz(packed, ("x", "y")),
    ):
        with pytest.raises(InvalidInput):
            read()


def test_archives_of_a_version_to_come(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    content = bytearray(npz(x=npy(HEADER) + bytes(16)))
    place = content.index(b"PK\1\2")
    content[place + 6] = 130  # the version needed to extract
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidInput):
        read_data(path)


RANGES = {"nothing": "", "no start": "- c c", "one end": "c c", "no number": "c e c"}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_without_their_ends_are_refused(name: str, tmp_path: Path) -> None:
    nodes = [node("Range", RANGES[name], "r"), node("Add", "x r")]
    known = {"c": integers(1)[0], "e": integers()}
    path = saved(model(nodes, ("N", 1), known), tmp_path)
    with pytest.raises((UnsupportedModel, InvalidModel)):
        frown.load(path)


def test_of_a_last_sigmoid_the_fuzzer_judges_the_order_alone() -> None:
    """The checker proves what a last increasing function reads, whose margins are larger."""
    w = np.array([[3.0, -3.0], [2.0, 1.0]], np.float32)
    nodes = [node("MatMul", "x w", "z"), node("Sigmoid", "z")]
    TARGETS["checker-onnx"].run(model(nodes, ("N", 2), {"w": w}).SerializeToString())
    TARGETS["checker-onnx"].run(model(nodes, ("N", 2), {"w": 50 * w}).SerializeToString())
