"""Models with several outputs, as bytes, and as scikit-learn's pipelines export them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
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
    several = pipeline()
    several.graph.output.append(helper.make_tensor_value_info("l", onnx.TensorProto.FLOAT, None))
    with pytest.raises(UnsupportedModel, match="label, probabilities, l; choose one: --output"):
        frown.load(several)
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
    for chosen in ((), ("--output", "probabilities")):
        assert "output: probabilities" in command(*given, *chosen).output
    assert "has no output p;" in command(*given, "--output", "p", code=3).output


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


def learnt(nodes: list[onnx.NodeProto], features: int, outputs: tuple[str, ...]) -> onnx.ModelProto:
    """A model with operators of scikit-learn's; the first of several outputs is an integer."""
    made = model(nodes, ("N", features), outputs=outputs)
    if len(outputs) > 1:
        made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return made


def classifier(last: str, norm: str = "", count: int = 3, seed: int = 0) -> onnx.ModelProto:
    """A linear classifier of four features, behind a Normalizer if one is named."""
    rng = np.random.default_rng(seed)
    nodes = []
    if norm:
        nodes.append(helper.make_node("Normalizer", ["x"], ["n"], domain="ai.onnx.ml", norm=norm))
    fields = {
        "classlabels_ints": list(range(count)),
        "coefficients": rng.normal(0, 1, 4 * count).astype(np.float32).tolist(),
        "intercepts": rng.normal(0, 0.3, count).astype(np.float32).tolist(),
        "post_transform": last,
    }
    given, wanted = ["n" if norm else "x"], ["label", "scores"]
    nodes.append(helper.make_node("LinearClassifier", given, wanted, domain="ai.onnx.ml", **fields))
    outputs = ("label", "scores")
    if last != "NONE":
        nodes.append(
            helper.make_node("Normalizer", ["scores"], ["shares"], domain="ai.onnx.ml", norm="L1")
        )
        outputs = ("label", "shares")
    return learnt(nodes, 4, outputs)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("norm", ["", "L1", "L2"])
@pytest.mark.parametrize("last", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_a_pipeline_keeps_its_label_within_the_radius(last: str, norm: str, count: int) -> None:
    made = classifier(last, norm, count, seed=count)
    loaded = frown.load(made)
    assert loaded.taken.output == made.graph.output[1].name
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    def labels(x: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(["label"], {"x": x.astype(np.float32)})[0])

    rng = np.random.default_rng(7)
    x = rng.uniform(0.5, 3, (8, 4)).astype(np.float32).astype(float)
    y = labels(x)
    found = frown.certify(loaded, x, y, method="crown")
    assert (found.radius > 1e-3).all()
    for n in range(len(x)):
        r = found.radius[n]
        inside = np.concatenate(
            [
                x[n] + rng.uniform(-r, r, (2000, 4)),
                x[n] + r * (1 - 1e-6) * rng.choice([-1, 1], (200, 4)),
            ]
        )
        assert (labels(inside) == y[n]).all()
        if found.rows[n].broken is not None:  # and no radius is far too small
            scores = loaded.run(found.counterexamples[n][None])[0]
            assert scores[y[n]] <= np.delete(scores, y[n]).max()
            if not norm:
                assert r > 0.98 * found.broken[n]


def test_probabilities_by_name_are_a_tensor(tmp_path: Path) -> None:
    made = classifier("SOFTMAX")
    made.graph.node.append(
        helper.make_node(
            "ZipMap", ["shares"], ["named"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
        )
    )
    kind = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())
    )
    del made.graph.output[1]
    made.graph.output.append(helper.make_value_info("named", helper.make_sequence_type_proto(kind)))
    x = np.random.default_rng(1).uniform(0.5, 3, (5, 4))
    loaded = frown.load(saved(made, tmp_path))
    assert loaded.taken.output == "named"
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    maps = session.run(["named"], {"x": x.astype(np.float32)})[0]
    assert np.allclose(loaded.run(x), [[m[k] for k in range(3)] for m in maps], atol=1e-6)
    found = frown.certify(loaded, x, method="crown")
    assert np.array_equal(found.radius, frown.certify(classifier_model(), x, method="crown").radius)


def classifier_model() -> frown.Model:
    return frown.load(classifier("SOFTMAX"))


def test_linear_regression_is_exact() -> None:
    fields = {"coefficients": [1.0, -2.0, 0.5, 0.0], "intercepts": [3.0]}
    made = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", **fields)
    found = frown.certify(frown.load(learnt([made], 4, ("y",))), np.ones((1, 4)), frown.within("7"))
    assert found.radius[0] == pytest.approx(2.0, rel=0.02)  # 7 / (1 + 2 + 0.5)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"post_transform": "PROBIT"}, "post_transform"),
        ({"intercepts": [0.5]}, "1 intercepts"),
        ({"coefficients": [1.0, 2.0, 3.0]}, "3 coefficients"),
    ],
)
def test_other_classifiers_are_refused(fields: dict[str, object], why: str) -> None:
    made = classifier("NONE")
    (last,) = made.graph.node
    kept = [a for a in last.attribute if a.name not in fields]
    del last.attribute[:]
    last.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in fields.items())])
    with pytest.raises(UnsupportedModel, match=why):
        frown.load(made)


def test_a_label_that_is_computed_with_is_refused() -> None:
    made = classifier("NONE")
    made.graph.node.append(node("Cast", "label", "y", to=onnx.TensorProto.FLOAT))
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    with pytest.raises(UnsupportedModel, match="output label is used"):
        frown.load(made)


@pytest.mark.parametrize(
    "kind", ["TreeEnsembleClassifier", "TreeEnsembleRegressor", "SVMRegressor"]
)
def test_other_models_are_no_networks(kind: str) -> None:
    made = helper.make_node(kind, ["x"], ["y"], domain="ai.onnx.ml")
    with pytest.raises(UnsupportedModel, match="not a neural network") as caught:
        frown.load(learnt([made], 4, ("y",)))
    assert "supported" not in str(caught.value)


# -- axes without sizes, half precision -----------------------------------------------------


def convolution(*shape: int | str | None) -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "c"),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f m", "y"),
    ]
    return model(nodes, shape, {"w": weights(3, 1, 3, 3), "m": weights(3, 2, seed=1)})


def test_open_axes_get_the_sizes_that_are_given(tmp_path: Path) -> None:
    path = saved(convolution("n", 1, "h", "w"), tmp_path)
    with pytest.raises(UnsupportedModel, match="--shape x=1"):
        frown.load(path)
    x = np.random.default_rng(0).normal(0, 1, (3, 1, 5, 6))
    fixed = frown.certify(frown.load(convolution("n", 1, 5, 6)), x, method="crown")
    for shape in ((1, 1, 5, 6), {"x": [1, 1, 5, 6]}):
        loaded = frown.load(path, shape=shape)
        assert loaded.input_shape == (1, 5, 6)
        assert np.array_equal(frown.certify(loaded, x, method="crown").radius, fixed.radius)
    assert frown.load(path, shape=(1, 1, 9, 9)).input_shape == (1, 9, 9)
    np.savez(tmp_path / "d.npz", x=x)
    given = ("certify", path, tmp_path / "d.npz", "--method", "crown", "--shape")
    assert "3 certified" in command(*given, "x=1,1,5,6").output
    assert "write 1,1,28,28" in command(*given, "x=1,one", code=2).output
    assert (
        "shape (--shape)"
        in command(*given, "1,1,5,6", "--certificates", tmp_path / "c", code=2).output
    )
    for wrong, why in (
        ((1, 2, 5, 6), "declares x as"),
        ((1, 1, 5), "declares x as"),
        ((2, 1, 5, 6), "declares x as"),
        ((1, 1, 0, 6), "whole numbers"),
        ({"z": (1, 1, 5, 6)}, "has the input x"),
    ):
        with pytest.raises(InvalidInput, match=why):
            frown.load(path, shape=wrong)


def narrow(proto: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """A copy of the model in half precision throughout."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = kind
    for tensor in proto.graph.initializer:
        held = onnx.numpy_helper.to_array(tensor)
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        tensor.CopyFrom(onnx.numpy_helper.from_array(held.astype(dtype), tensor.name))
    return proto


def inside(proto: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """A model that casts its input to half precision, and its outputs back."""
    proto = narrow(proto, kind)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    proto.graph.node[0].input[0], proto.graph.node[-1].output[0] = "x16", "y16"
    proto.graph.node.insert(0, node("Cast", "x", "x16", to=kind))
    proto.graph.node.append(node("Cast", "y16", "y", to=onnx.TensorProto.FLOAT))
    return proto


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("made", [narrow, inside])
def test_half_precision_is_taken_as_single_precision(
    made: Callable[[onnx.ModelProto, int], onnx.ModelProto], kind: str, tmp_path: Path
) -> None:
    number = getattr(onnx.TensorProto, kind)
    rounded = convolution("n", 1, 5, 6)
    for tensor in rounded.graph.initializer:  # in float32, the numbers that the other one has
        held = onnx.numpy_helper.to_array(tensor)
        again = held.astype(helper.tensor_dtype_to_np_dtype(number)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(again, tensor.name))
    x = np.random.default_rng(0).normal(0, 1, (3, 1, 5, 6))
    expected = frown.certify(frown.load(rounded), x, method="crown")
    path = saved(made(convolution("n", 1, 5, 6), number), tmp_path)
    loaded = frown.load(path)
    found = frown.certify(loaded, x, method="crown")
    assert loaded.taken.precision == kind.lower()
    assert np.allclose(found.radius, expected.radius, rtol=1e-6)
    assert any(f"computes in {kind.lower()}" in line for line in Statement.of(found).lines())
    with pytest.raises(InvalidInput, match="save it in float32"):
        frown.certify(loaded, x, proof=frown.Rigorous(certificates=tmp_path / "proofs"))
    query = tmp_path / "q.vnnlib"
    query.write_text(
        "".join(
            f"(declare-const X_{i} Real)(assert (and (<= 0 X_{i}) (<= X_{i} 1)))" for i in range(30)
        )
        + "".join(f"(declare-const Y_{i} Real)" for i in range(loaded.classes))
        + "(assert (<= Y_0 0))"
    )
    with pytest.raises(UnsupportedModel, match="as it is"):
        frown.verify(path, query)


def test_weights_that_are_only_stored_in_half_precision_change_nothing(tmp_path: Path) -> None:
    made = convolution("n", 1, 5, 6)
    narrow(made, onnx.TensorProto.FLOAT16)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for one, name in ((made.graph.node[0], "w"), (made.graph.node[4], "m")):
        one.input[1] = f"{name}32"
    for name in ("w", "m"):
        made.graph.node.insert(0, node("Cast", name, f"{name}32", to=onnx.TensorProto.FLOAT))
    loaded = frown.load(saved(made, tmp_path))
    assert loaded.taken.precision == ""
    x = np.random.default_rng(0).normal(0, 1, (1, 1, 5, 6))
    kept = frown.Rigorous(certificates=tmp_path / "proofs", check=True)
    assert frown.certify(loaded, x, method="crown", proof=kept).rows[0].level == "checked"


def test_rounding_of_large_answers_is_no_disagreement() -> None:
    """A regression that ends in an exponential has answers of all sizes."""
    made = model(
        [node("Gemm", "x w b", "h"), node("Exp", "h")],
        ("N", 4),
        {"w": weights(4, 2), "b": weights(2, seed=1)},
    )
    x = np.random.default_rng(0).uniform(-0.1, 0.1, (2, 4))
    assert (frown.certify(frown.load(made), x, frown.within("5%")).radius > 0).all()
