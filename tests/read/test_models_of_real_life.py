"""Models with several outputs, as bytes, and as scikit-learn's pipelines export them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import frown
from frown.certification.statement import Statement
from frown.errors import InvalidInput, InvalidModel, UnsupportedModel
from methods.programs.tools import command
from onnx_models import model, node, saved, weights


def pipeline() -> onnx.ModelProto:
    """A scaler, a layer, a softmax, and the label beside the probabilities."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node(
            "Scaler",
            ["x"],
            ["s"],
            domain="ai.onnx.ml",
            offset=rng.uniform(1, 3, 4).tolist(),
            scale=rng.uniform(0.3, 3, 4).tolist(),
        ),
        node("Gemm", "s a b", "h"),
        node("Relu", "h", "r"),
        node("MatMul", "r c", "l"),
        node("Softmax", "l", "probabilities"),
        node("ArgMax", "probabilities", "label", axis=1, keepdims=0),
    ]
    constants = {"a": weights(4, 8), "b": weights(8, seed=1), "c": weights(8, 3, seed=2)}
    made = model(nodes, ("N", 4), constants, outputs=("label", "probabilities"))
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return made


def test_one_output_is_chosen_by_name(tmp_path: Path) -> None:
    path = saved(pipeline(), tmp_path)
    with pytest.raises(UnsupportedModel, match="label, probabilities; choose one: --output"):
        frown.load(path)
    with pytest.raises(InvalidModel, match="no output scores; its outputs are label, prob"):
        frown.load(path, output="scores")
    chosen = frown.load(path, output="probabilities")
    x = np.random.default_rng(1).normal(2, 1, (5, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert np.allclose(chosen.run(x), session.run(["probabilities"], {"x": x})[0], atol=1e-6)
    found = frown.certify(chosen, x, method="crown")
    assert (found.radius > 0).all() and (found.radius <= found.broken).all()
    assert Statement.of(found).aspects()["outputs"] == "probabilities"
    assert np.array_equal(pickle.loads(pickle.dumps(chosen)).run(x), chosen.run(x))
    with pytest.raises(InvalidInput, match="models of one output"):
        frown.certify(chosen, x, proof=frown.Rigorous(certificates=tmp_path / "proofs"))


def test_the_command_line_takes_an_output(tmp_path: Path) -> None:
    path = saved(pipeline(), tmp_path)
    np.savez(tmp_path / "d.npz", x=np.full((2, 4), 2.0))
    given = ("certify", path, tmp_path / "d.npz", "--method", "crown")
    assert "--output NAME" in command(*given, code=4).output
    assert "output: probabilities" in command(*given, "--output", "probabilities").output


def test_content_is_a_model(tmp_path: Path) -> None:
    made = pipeline()
    x = np.full((1, 4), 2.0)
    path = saved(made, tmp_path)
    for source in (made, made.SerializeToString()):
        loaded = frown.load(source, output="probabilities")
        assert loaded.digest == frown.load(path, output="probabilities").digest
        assert frown.certify(loaded, x, method="crown").radius[0] > 0
    with pytest.raises(InvalidModel, match="not an ONNX file"):
        frown.load(b"nothing")
    with pytest.raises(InvalidInput, match="cannot load a dict"):
        frown.load({})


@pytest.mark.parametrize("count", [1, 4])
def test_a_scaler_is_what_onnxruntime_computes(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(count)
    fields = {name: rng.normal(0, 2, count).tolist() for name in ("offset", "scale")}
    scaler = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", **fields)
    made = model([scaler], ("N", 4))
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    loaded = frown.load(saved(made, tmp_path))
    x = rng.normal(0, 100, (6, 4))
    offset, scale = (np.float32(fields[name]).astype(float) for name in ("offset", "scale"))
    bounds = frown.bound(loaded, frown.Ball(x).at(0.0), np.eye(4), method="crown")
    assert np.allclose(bounds.lower, (x - offset) * scale, rtol=1e-4, atol=1e-3)


def test_trees_are_no_networks(tmp_path: Path) -> None:
    tree = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    made = model([tree], ("N", 4))
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    with pytest.raises(UnsupportedModel, match="no neural network"):
        frown.load(saved(made, tmp_path))
