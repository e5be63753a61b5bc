"""Loading ONNX files: batches, folding, and everything that is refused."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from frown.errors import InvalidModel, ModelMismatch, UnsupportedModel
from frown.read.onnx.load import load_onnx
from onnx_models import integers, model, node, number, refused, saved, weights
from read.test_onnx import assert_same

DENSE = {"w": weights(6, 4), "b": weights(4)}


# -- batches and inputs ---------------------------------------------------------------


@pytest.mark.parametrize("batch", ["N", None, 0, 1, 4])
def test_the_batch_is_set_to_one_whatever_the_file_says(batch, tmp_path):
    proto = model([node("Gemm", "x w b", "h"), node("Relu", "h")], [batch, 6], DENSE)
    loaded = load_onnx(saved(proto, tmp_path))
    assert loaded.input_shape == (6,)
    assert loaded.graph.input_shape == (1, 6)
    assert loaded.classes == 4
    assert_same(loaded, rows=7)
    assert loaded.run(np.zeros((0, 6))).shape == (0, 4)


def test_an_input_of_one_axis_is_taken_whole(tmp_path):
    loaded = load_onnx(saved(model([node("MatMul", "x w")], [6], DENSE), tmp_path))
    assert loaded.input_shape == loaded.graph.input_shape == (6,)
    assert_same(loaded)


def test_a_symbolic_batch_that_is_one_inside_is_run_row_by_row(tmp_path):
    nodes = [node("Reshape", "x s", "h"), node("Gemm", "h w b")]
    proto = model(nodes, ["N", 2, 3], {**DENSE, "s": integers(1, 6)})
    assert_same(load_onnx(saved(proto, tmp_path)))


def test_a_fixed_batch_that_the_graph_relies_on_is_refused(tmp_path):
    advice = "fixes a batch of 4.*export it with batch 1 or a symbolic one"
    proto = model([node("Reshape", "x s")], [4, 6], {"s": integers(4, 6)})
    with pytest.raises(UnsupportedModel, match=advice):
        load_onnx(saved(proto, tmp_path))
    # This one imports, but its answers depend on the other samples.
    nodes = [node("ReduceMean", "x", "m", axes=[0]), node("Sub", "x m")]
    with pytest.raises(ModelMismatch, match=advice):
        load_onnx(saved(model(nodes, [4, 8]), tmp_path))


def test_other_symbolic_axes_are_named(tmp_path):
    text = refused(model([node("Relu", "x")], ["N", 3, "height", None]), tmp_path)
    assert "height (axis 2)" in text and "unnamed (axis 3)" in text


def test_several_inputs_or_outputs_are_listed(tmp_path):
    proto = model([node("Relu", "x", "y"), node("Abs", "x", "z")], [1, 3], outputs=["y", "z"])
    assert "but has y, z" in refused(proto, tmp_path)
    proto = model([node("Add", "x u")], [1, 3])
    proto.graph.input.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [1, 3]))
    assert "but has x, u" in refused(proto, tmp_path)


def test_weights_listed_as_inputs_do_not_count(tmp_path):
    proto = model([node("MatMul", "x w")], ["N", 6], DENSE)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 4]))
    assert_same(load_onnx(saved(proto, tmp_path)))


@pytest.mark.parametrize("dtype", ["INT64", "BOOL", "UINT8"])
def test_inputs_of_other_types_are_refused(dtype, tmp_path):
    proto = model([node("Identity", "x")], [1, 3], dtype=getattr(TensorProto, dtype))
    assert dtype in refused(proto, tmp_path)


def test_a_model_in_double_is_run_in_double(tmp_path):
    known = {"w": weights(6, 4).astype(np.float64)}
    proto = model([node("MatMul", "x w")], ["N", 6], known, dtype=TensorProto.DOUBLE)
    loaded = load_onnx(saved(proto, tmp_path))
    x = np.random.default_rng(0).standard_normal((5, 6))
    np.testing.assert_allclose(loaded.run(x), loaded.graph.apply(torch.tensor(x)), rtol=1e-13)


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
def test_narrow_weights_are_widened(kind, tmp_path):
    narrow = helper.make_tensor("n", getattr(TensorProto, kind), [6], [0.1 * i for i in range(6)])
    proto = model([node("Cast", "n", "c", to=1), node("Add", "x c")], ["N", 6])
    proto.graph.initializer.append(narrow)
    assert_same(load_onnx(saved(proto, tmp_path)))


# -- folding ----------------------------------------------------------------------------


def test_shape_arithmetic_folds(tmp_path):
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 minus", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("Size", "x", "size"),
        node("Range", "zero size two", "even"),
        node("Gather", "flat even", "half", axis=1),
        node("ConstantOfShape", "n1", "ones", value=helper.make_tensor("v", 1, [1], [1.0])),
        node("Add", "half ones"),
    ]
    known = {"zero": np.int64(0), "two": np.int64(2), "axes": integers(0), "minus": integers(-1)}
    proto = model(nodes, [1, 3, 4], {k: np.asarray(v) for k, v in known.items()})
    loaded = load_onnx(saved(proto, tmp_path))
    assert loaded.classes == 6
    assert_same(loaded)


@pytest.mark.parametrize(
    "attributes",
    [
        {"value": onnx.numpy_helper.from_array(weights(6))},
        {"value_float": 1.5},
        {"value_floats": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
    ],
    ids=lambda a: next(iter(a)),
)
def test_constants_of_every_kind(attributes, tmp_path):
    nodes = [node("Constant", "", "c", **attributes), node("Mul", "x c")]
    assert_same(load_onnx(saved(model(nodes, ["N", 6]), tmp_path)))


@pytest.mark.parametrize(
    "attributes", [{"value_int": 3}, {"value_ints": [3, 2]}], ids=lambda a: next(iter(a))
)
def test_integer_constants(attributes, tmp_path):
    nodes = [node("Constant", "", "c", **attributes), node("Gather", "x c", axis=1)]
    assert_same(load_onnx(saved(model(nodes, ["N", 6]), tmp_path)))


def test_unused_nodes_do_not_matter(tmp_path):
    nodes = [node("Relu", "x"), node("TopK", "x k", "values places")]
    assert_same(load_onnx(saved(model(nodes, ["N", 6], {"k": integers(2)}), tmp_path)))


def test_local_functions_are_inlined(tmp_path):
    body = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Neg", ["r"], ["b"])]
    opsets = [helper.make_opsetid("", 13)]
    proto = model([helper.make_node("F", ["x"], ["y"], domain="mine")], ["N", 6])
    proto.functions.append(helper.make_function("mine", "F", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    loaded = load_onnx(saved(proto, tmp_path))
    assert loaded.graph.summary()["Relu"] == 1


OPSETS = [helper.make_opsetid("", 13), helper.make_opsetid("mine", 1)]


def leaky(name: str, call: onnx.NodeProto | None = None, **default: float) -> onnx.FunctionProto:
    """A leaky ReLU, or a call of one, whose slope is the function's attribute k."""
    inner = node("LeakyRelu", "a", "b") if call is None else call
    passed = inner.attribute.add()
    passed.name, passed.type = "alpha" if call is None else "k", onnx.AttributeProto.FLOAT
    passed.ref_attr_name = "k"
    defaults = [helper.make_attribute(k, v) for k, v in default.items()]
    return helper.make_function(
        "mine",
        name,
        ["a"],
        ["b"],
        [inner],
        OPSETS,
        attributes=[] if default else ["k"],
        attribute_protos=defaults,
    )


def calling(*functions: onnx.FunctionProto, unread: bool, **given: float) -> onnx.ModelProto:
    """A model that calls the last of some functions and, if `unread`, has a node for nothing."""
    call = node("Exp", "x", "nothing") if unread else None
    name = functions[-1].name
    nodes = [n for n in (call, node(name, "x", domain="mine", **given)) if n is not None]
    proto = model(nodes, ["N", 6])
    proto.functions.extend(functions)
    proto.opset_import.append(OPSETS[1])
    proto.ir_version = 9
    return proto


def inner_call(**given: float) -> onnx.NodeProto:
    return node("F", "a", "b", domain="mine", **given)


def of_domain(domain: str, op: str) -> onnx.ModelProto:
    """A model whose function has an operator's name, and does something else."""
    proto = model([node(op, "x", domain=domain)], ["N", 6])
    body = [node("Neg", "a", "b")]
    proto.functions.append(helper.make_function(domain, op, ["a"], ["b"], body, OPSETS[:1]))
    if domain not in ("", "ai.onnx"):
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize(
    ("functions", "given"),
    [
        ([leaky("F", k=-4.0)], {}),
        ([leaky("F", k=-4.0)], {"k": 0.5}),
        ([leaky("F")], {"k": 0.5}),
        ([leaky("F")], {}),
        ([leaky("F", k=-4.0), leaky("G", inner_call(), k=-3.0)], {}),
        ([leaky("F", k=-4.0), leaky("G", inner_call(), k=-3.0)], {"k": 2.0}),
    ],
)
def test_functions_are_called_with_the_defaults_of_their_attributes(
    functions, given, unread, tmp_path
):
    """Also where a node is left out that nothing reads: the original is the file as it is."""
    proto = calling(*functions, unread=unread, **given)
    path = saved(proto, tmp_path)
    loaded = load_onnx(path)
    assert_same(loaded)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.linspace(-3, 3, 6, dtype=np.float32)[None]
    assert np.array_equal(loaded.run(x), session.run(None, {"x": x})[0])


def test_an_attribute_that_may_be_missing_is_not_passed_on(tmp_path):
    proto = calling(leaky("F", k=-4.0), leaky("G", inner_call()), unread=False)
    assert "may leave out" in refused(proto, tmp_path)


@pytest.mark.parametrize(
    ("domain", "op"), [("", "Relu"), ("ai.onnx", "Relu"), ("com.microsoft", "Gelu")]
)
def test_functions_that_a_runtime_would_not_call_are_refused(domain, op, tmp_path):
    """onnxruntime runs its own operator, whatever the function of that name does."""
    assert "a runtime's own" in refused(of_domain(domain, op), tmp_path)


def test_a_call_with_more_inputs_than_the_function_takes_is_refused(tmp_path):
    proto = calling(leaky("F", k=-4.0), unread=False)
    proto.graph.node[0].input.append("x")
    with pytest.raises(InvalidModel, match="cannot be written out"):
        load_onnx(saved(proto, tmp_path))


def test_an_attribute_of_a_function_outside_of_any_is_refused(tmp_path):
    proto = model([node("LeakyRelu", "x", alpha=0.3)], ["N", 6])
    proto.graph.node[0].attribute[0].ref_attr_name = "k"
    with pytest.raises(InvalidModel, match="is in none"):
        load_onnx(saved(proto, tmp_path))


@pytest.mark.parametrize("unread", ["w", "y"])
def test_a_tensor_that_is_made_twice_is_refused_even_if_nothing_reads_one(unread, tmp_path):
    """onnxruntime refuses such files, but not without the node that nothing reads."""
    nodes = [node("Add", "x w", "y"), node("Neg", "x", unread)]
    with pytest.raises(InvalidModel, match=f"several tensors {unread}"):
        load_onnx(saved(model(nodes, ["N", 6], {"w": weights(6)}), tmp_path))


# -- refusals -------------------------------------------------------------------------------


def test_all_operators_without_bounds_are_listed_at_once(tmp_path):
    nodes = [
        node("Gemm", "x w b", "h", name="/first/Gemm"),
        node("Sinh", "h", "e", name="/act/Sinh"),
        node("Relu", "e", "r", name="/act/Relu"),
        node("Pow", "r e", "m", name="/up/Pow"),
        node("Odd", "m", "o", name="/odd", domain="custom"),
        node("Neg", "o", "n", name="/neg"),
        node("Cast", "e", "c", name="/cast", to=TensorProto.INT64),
        node("Concat", "n c", "j", name="/join", axis=1),
        node("Softsign", "j", "y", name="/last/Softsign"),
    ]
    proto = model(nodes, ["N", 6], DENSE)
    proto.opset_import.append(helper.make_opsetid("custom", 1))
    assert refused(proto, tmp_path).splitlines() == [
        "cannot certify model.onnx: 5 operators have no bounds yet",
        "  Sinh         at /act/Sinh       (1, 4)",
        "  Pow          at /up/Pow         (1, 4)         "
        "a power of one computed tensor by another",
        "  custom::Odd  at /odd            unknown shape",
        "  Cast         at /cast           (1, 4)         attribute to=7",
        "  Softsign     at /last/Softsign  unknown shape",
        "which have: frown supports --onnx-operators; to add one, see docs/extending.md",
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([node("Einsum", "h h", equation="...i,...i->...")], "the sum ...i,...i->..."),
        ([node("Einsum", "h h", equation="bi,bii->b")], "the sum bi,bii->b"),
        ([node("Add", "h infinite", "m"), node("Softmax", "m")], "all of whose scores are masked"),
        ([node("Add", "h infinite", "m"), node("LogSoftmax", "m")], "masked"),
        ([node("Pow", "x h")], "a power of one computed tensor by another"),
        ([node("Pow", "x six")], "an exponent that is not one finite number"),
        ([node("Pow", "minus x")], "a constant that is not positive"),
        ([node("Cast", "h", "m", to=TensorProto.BOOL), node("Where", "m h one")], "a condition"),
        ([node("Gather", "w i", axis=0)], "Gather"),
        ([node("Softsign", "h")], "Softsign"),
        ([node("MaxPool", "u", "p i", kernel_shape=[2]), node("Cast", "i", to=1)], "output i"),
        ([node("Clip", "h one minus")], "clipping to [1.0, -1.0]"),
        ([node("Pad", "h pads infinite")], "padding with -inf"),
        ([node("Relu", "h", odd=1)], "attribute odd=1"),
        ([node("RandomNormal", "", "r", shape=[1, 6]), node("Add", "h r")], "RandomNormal"),
        ([node("Dropout", "h half yes")], "training mode"),
        ([node("Resize", "u - scales", mode="linear")], "attribute mode='linear'"),
        ([node("Reshape", "h i")], "a shape computed from the network's input"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_has_no_bounds_is_named(bad, reason, tmp_path):
    known = {
        "w": weights(1, 6),
        "one": number(1.0),
        "six": weights(6),
        "minus": number(-1.0),
        "half": number(0.5),
        "yes": np.array(True),
        "pads": integers(0, 1, 0, 1),
        "infinite": number(-np.inf),
        "axes": integers(1),
        "scales": np.array([1, 1, 2], np.float32),
    }
    before = [
        node("Relu", "x", "h"),
        node("Unsqueeze", "x axes", "u"),
        node("ArgMax", "x", "i", axis=1),
    ]
    if any(n.op_type == "MaxPool" for n in bad):
        before.pop()
    assert reason in refused(model([*before, *bad], ["N", 6], known, opset=14), tmp_path)


def test_control_flow_is_refused(tmp_path):
    out = [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
    body = helper.make_graph([node("Relu", "x", "b")], "body", [], out)
    branch = node("If", "yes", then_branch=body, else_branch=body)
    assert "If" in refused(model([branch], ["N", 3], {"yes": np.array(True)}), tmp_path)


def test_old_opsets_are_refused(tmp_path):
    assert "opset 7 is older than 8" in refused(
        model([node("Relu", "x")], [1, 3], opset=7), tmp_path
    )


def test_an_output_that_ignores_the_input_is_refused(tmp_path):
    proto = model([node("Relu", "w")], [1, 6], DENSE)
    assert "does not depend on its input" in refused(proto, tmp_path, InvalidModel)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value, tmp_path):
    known = {"w": weights(6, 4), "b": np.array([0, value, 0, 0], np.float32)}
    text = refused(model([node("Gemm", "x w b")], ["N", 6], known), tmp_path, InvalidModel)
    assert "Linear.bias" in text


# -- files ------------------------------------------------------------------------------------


def test_files_that_are_no_models_are_refused(tmp_path):
    whole = saved(model([node("Gemm", "x w b")], ["N", 6], DENSE), tmp_path).read_bytes()
    damaged = {
        "empty": b"",
        "text": b"this is not a model\n" * 20,
        "zeros": bytes(1000),
        "noise": np.random.default_rng(0).bytes(5000),
        "half": whole[: len(whole) // 2],
        "headless": whole[10:],
    }
    for name, content in damaged.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(InvalidModel, match="not an ONNX file, or it is cut off or damaged"):
            load_onnx(path)
    with pytest.raises(InvalidModel, match="is a directory"):
        load_onnx(tmp_path)
    with pytest.raises(InvalidModel, match="there is no such file"):
        load_onnx(str(tmp_path / "none.onnx"))


def test_every_cut_of_a_file_is_an_invalid_model(tmp_path):
    whole = saved(model([node("Gemm", "x w b")], ["N", 6], DENSE), tmp_path).read_bytes()
    for length in range(0, len(whole), 7):
        path = tmp_path / "cut.onnx"
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidModel):
            load_onnx(path)


def test_graphs_that_make_no_sense_are_refused(tmp_path):
    assert "its graph is empty" in refused(model([], [1, 3]), tmp_path, InvalidModel)
    text = refused(model([node("Relu", "nothing")], [1, 3]), tmp_path, InvalidModel)
    assert "reads nothing, which nothing before it computes" in text
    proto = model([node("Add", "x w")], [1, 3], {"w": weights(1, 5)})
    assert "Add at y is malformed" in refused(proto, tmp_path, InvalidModel)
    proto = model([node("Gemm", "x w")], [1, 3], {"w": weights(5, 2)})
    assert "onnxruntime" in refused(proto, tmp_path, InvalidModel)


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["", "0x10", "16.0", "1e1", "-16", "sixteen", "9" * 5000])
def test_places_of_external_data_that_are_no_numbers_are_refused(key, value, tmp_path):
    np.arange(64, dtype=np.float32).tofile(tmp_path / "w.bin")
    stored = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[6])
    stored.data_location = TensorProto.EXTERNAL
    for name, text in (("location", "w.bin"), (key, value)):
        entry = stored.external_data.add()
        entry.key, entry.value = name, text
    proto = model([node("Add", "x w")], ["N", 6])
    proto.graph.initializer.append(stored)
    with pytest.raises(InvalidModel, match=r"external data \(w\.bin\)"):
        load_onnx(saved(proto, tmp_path))


def test_the_digest_covers_external_data(tmp_path):
    proto = model([node("Gemm", "x w b")], ["N", 6], DENSE)
    plain = load_onnx(saved(proto, tmp_path, "plain.onnx"))
    content = (tmp_path / "plain.onnx").read_bytes()
    assert plain.digest == hashlib.sha256(content).hexdigest()
    path = tmp_path / "outside.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    outside = load_onnx(path)
    assert_same(outside)
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:-4] + np.float32(7).tobytes())
    assert load_onnx(path).digest != outside.digest
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InvalidModel, match=r"external data \(w\.bin\)"):
        load_onnx(path)
