"""Small ONNX files for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from frown.errors import InvalidModel, UnsupportedModel
from frown.read.onnx.load import load_onnx

FLOAT = TensorProto.FLOAT


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node from space-separated names; "-" is an input left out."""
    names = ["" if i == "-" else i for i in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str | None],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 13,
    outputs: Sequence[str] = ("y",),
    dtype: int = FLOAT,
) -> onnx.ModelProto:
    """A model that maps "x" to "y"."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info(o, dtype, None) for o in outputs],
        [onnx.numpy_helper.from_array(v, k) for k, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def small() -> onnx.ModelProto:
    """Four inputs, six ReLUs, three classes: for tests of what is around a network."""
    nodes = [node("Gemm", "x w0", "h", transB=1), node("Relu", "h", "a"), node("Gemm", "a w1", "y")]
    return model(nodes, ["N", 4], {"w0": weights(6, 4, seed=1), "w1": weights(6, 3, seed=3)})


def saved(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def refused(
    proto: onnx.ModelProto, folder: Path, kind: type[InvalidModel] = UnsupportedModel
) -> str:
    """What the error of exactly this kind says when the model is loaded."""
    with pytest.raises(kind) as caught:
        load_onnx(saved(proto, folder))
    assert type(caught.value) is kind
    return str(caught.value)
