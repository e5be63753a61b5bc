"""From an ONNX file to a graph, node by node.

The network is the real-valued function that the file defines: weights are taken as the exact
numbers that they are, and no operation rounds. The first axis of the input is the batch, which is
fixed to 1; an input of one axis is taken whole. What is not understood is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

import frown_check.model.activations  # which registers handlers, as do the next four
import frown_check.model.affine
import frown_check.model.movers
import frown_check.model.recurrent
import frown_check.model.windows  # noqa: F401
from frown_check.errors import Refused, refuse_if
from frown_check.files import content
from frown_check.graph import MOST_ENTRIES, Graph, Network, Scale, View
from frown_check.model.calls import HANDLERS, Call, Constant, OnnxNode, Value, quotient
from frown_check.model.ending import ending
from frown_check.model.fuse import fused
from frown_check.region import MOST_FEATURES

OPSETS = range(8, 25)
MOST_BYTES = 2**31
PLACE = ("offset", "length")  # of a tensor in another file


def load(
    path: Path,
    digest: str,
    external: Mapping[str, str],
    normalisation: tuple[Any, Any] | None,
    ordered: bool = True,
) -> Network:
    """The network in a file of this digest, behind (x - mean) / std; if nothing matters but the
    order of its outputs, without last operators that keep it."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(_certified(path, digest))
    except DecodeError:
        raise Refused(f"{path.name} is not an ONNX file") from None
    refuse_if(not _legible(proto), f"{path.name} has names that are not text in UTF-8")
    if proto.functions or proto.graph.sparse_initializer:
        raise Refused("local functions and sparse weights are not supported by the checker")
    domains = ["" if o.domain == "ai.onnx" else o.domain for o in proto.opset_import]
    refuse_if(len(set(domains)) != len(domains), "the model imports the opset of a domain twice")
    opsets = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if len(opsets) != 1 or opsets[0] not in OPSETS:
        raise Refused(f"opset {opsets} is not supported by the checker")
    _bring_in(proto, path.parent, external)
    constants = {t.name: _array(t) for t in proto.graph.initializer}
    refuse_if(len(constants) != len(proto.graph.initializer), "the model has a constant twice")
    name, shape = _input(proto, set(constants))
    refuse_if(len(proto.graph.output) != 1, "the model must have one output")
    output = str(proto.graph.output[0].name)
    named = [name, *constants, *(o for n in proto.graph.node for o in n.output if o)]
    refuse_if(len(set(named)) != len(named), "the model computes a tensor twice")
    try:
        nodes = needed([_node(n, int(opsets[0])) for n in proto.graph.node], output)
    except ValueError as error:
        raise Refused(f"an attribute cannot be read: {error}") from None
    _in_order(nodes, {name, *constants})
    about = name, shape, normalisation, int(opsets[0])
    return _import(nodes, constants, output, *about, ordered)


# -- the file ---------------------------------------------------------------------------------


def _certified(path: Path, digest: str) -> bytes:
    found = content(path, MOST_BYTES)
    if hashlib.sha256(found).hexdigest() != digest:
        raise Refused(f"{path.name} is another model than the one that was certified")
    return found


def _legible(message: Any) -> bool:
    """True if every string of a message, and of those in it, was UTF-8 and so became a str."""
    for field, found in message.ListFields():
        many = not isinstance(found, str | bytes) and not hasattr(found, "ListFields")
        parts = found if many else [found]
        if field.type == field.TYPE_MESSAGE:
            if not all(map(_legible, parts)):
                return False
        elif field.type == field.TYPE_STRING and not all(isinstance(p, str) for p in parts):
            return False
    return True


def _bring_in(proto: onnx.ModelProto, folder: Path, external: Mapping[str, str]) -> None:
    """Weights from files beside the model: just those that the certificate names, unchanged. A
    place in one is told by digits, each entry once, so that no two readers differ on it."""
    files: dict[str, bytes] = {}
    taken = 0
    tensors = list(proto.graph.initializer)
    tensors += [a.t for n in proto.graph.node for a in n.attribute if a.HasField("t")]
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        about = {entry.key: entry.value for entry in tensor.external_data}
        name = about.pop("location", "")
        if name not in external or Path(name).name != name or name in ("", ".", ".."):
            raise Refused(f"the certificate does not cover the weights in {name!r}")
        if name not in files:
            files[name] = _certified(folder / name, external[name])
        odd = len(about) + 1 != len(tensor.external_data) or about.keys() - {*PLACE, "checksum"}
        given = [about[key] for key in PLACE if key in about]
        if odd or not all(n.isascii() and n.isdigit() and len(n) < 20 for n in given):
            raise Refused(f"the place of {tensor.name} in {name!r} is not understood")
        start = int(about.get("offset", "0"))
        end = start + int(about["length"]) if "length" in about else len(files[name])
        refuse_if(not start <= end <= len(files[name]), f"the weights in {name!r} are cut off")
        taken += end - start
        refuse_if(taken > MOST_BYTES, f"the weights have over {MOST_BYTES} bytes")
        tensor.raw_data = files[name][start:end]
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    unread = sorted(external.keys() - files.keys())
    refuse_if(unread, f"the certificate names weights that the model does not read: {unread}")


def _array(tensor: onnx.TensorProto) -> Constant:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise Refused(f"the weights of {tensor.name} are in another file")
    refuse_if(any(size < 0 for size in tensor.dims), f"constant {tensor.name} has sizes below 0")
    try:
        found = np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception as error:  # of several libraries, and all mean the same
        raise Refused(f"constant {tensor.name} is damaged: {error}") from None
    if found.dtype.kind in "iub":
        return found
    narrow = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    if found.dtype in (np.float32, np.float64) or tensor.data_type in narrow:
        return found.astype(np.float64)
    raise Refused(f"constant {tensor.name} has an unknown type")


def _input(proto: onnx.ModelProto, weights: set[str]) -> tuple[str, tuple[int, ...]]:
    """The input's name, and its shape with a batch of 1."""
    inputs = [i for i in proto.graph.input if i.name not in weights]
    refuse_if(len(inputs) != 1, "the model must have one input")
    kind = inputs[0].type.tensor_type
    sizes = [int(d.dim_value) for d in kind.shape.dim]
    if kind.elem_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE) or not sizes:
        raise Refused("the model's input must be of floats, and have axes")
    if len(sizes) > 1 or sizes[0] <= 0:
        sizes[0] = 1
    refuse_if(min(sizes) <= 0, "the model's input has axes of unknown size")
    if prod(sizes) > MOST_FEATURES:
        raise Refused(f"the model's input has {prod(sizes)} features, more than {MOST_FEATURES}")
    return str(inputs[0].name), tuple(sizes)


def _node(proto: onnx.NodeProto, opset: int) -> OnnxNode:
    domain = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}::"
    attributes: dict[str, Any] = {}
    untyped = any(a.type == onnx.AttributeProto.UNDEFINED for a in proto.attribute)
    if untyped or len({a.name for a in proto.attribute}) != len(proto.attribute):
        raise Refused(f"{proto.op_type} has an attribute twice, or one without a type")
    for a in proto.attribute:
        if a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            domain = "control flow::"
        elif a.type == onnx.AttributeProto.TENSOR:
            attributes[a.name] = _array(a.t)
        else:
            found = onnx.helper.get_attribute_value(a)
            attributes[a.name] = (
                found.decode("utf-8", "replace") if isinstance(found, bytes) else found
            )
    name = proto.name or next((o for o in proto.output if o), proto.op_type)
    op = domain + proto.op_type
    if op.startswith("frown_check::"):
        raise Refused(f"{proto.op_type} at {name} is not supported by the checker")
    if op in HANDLERS:
        wrong = _unlike(proto, opset)
        refuse_if(
            wrong, f"{proto.op_type} at {name} has {wrong}, which opset {opset} does not know"
        )
    return OnnxNode(op, name, tuple(proto.input), tuple(proto.output), attributes)


def _unlike(proto: onnx.NodeProto, opset: int) -> str:
    """In what a node is unlike its operator in this opset; empty: in nothing. What a handler
    would overlook or read as another opset has it is refused here."""
    try:
        known = onnx.defs.get_schema(proto.op_type, opset, "")
    except onnx.defs.SchemaError:
        return "an operator"
    if known.deprecated:
        return "an operator"
    if not known.min_input <= len(proto.input) <= known.max_input:
        return f"{len(proto.input)} inputs"
    if not known.min_output <= len(proto.output) <= known.max_output:
        return f"{len(proto.output)} outputs"
    for a in proto.attribute:
        wanted = known.attributes.get(a.name)
        kind = onnx.AttributeProto.AttributeType.Name(a.type)
        if wanted is None or wanted.type != getattr(onnx.defs.OpSchema.AttrType, kind):
            return f"an attribute {a.name} of its type"
    given = {a.name for a in proto.attribute}
    missing = [a.name for a in known.attributes.values() if a.required and a.name not in given]
    return f"no attribute {missing[0]}" if missing else ""


def needed(nodes: list[OnnxNode], output: str) -> list[OnnxNode]:
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(i for i in node.inputs if i)
    return kept[::-1]


def _in_order(nodes: list[OnnxNode], known: set[str]) -> None:
    """Every tensor is computed before it is read, so there are no circles."""
    for node in nodes:
        missing = [i for i in node.inputs if i and i not in known]
        if missing:
            raise Refused(f"{node.op} at {node.name} reads {missing[0]}, which is not computed yet")
        known.update(node.outputs)


# -- the graph ----------------------------------------------------------------------------------


def _import(
    nodes: list[OnnxNode],
    constants: dict[str, Constant],
    output: str,
    name: str,
    shape: tuple[int, ...],
    normalisation: tuple[Any, Any] | None,
    opset: int,
    ordered: bool,
) -> Network:
    graph = Graph(prod(shape))
    first = View(0, np.arange(prod(shape)).reshape(shape))
    if normalisation is not None:
        mean, std = normalisation
        op = Scale(quotient(1.0, std), quotient(-mean, std))
        first = graph.add(op, [first], shape)
    known: dict[str, Value] = {**constants, name: first}
    rest = []
    for node in nodes:  # constants first: they decide what is fused
        if any(i and isinstance(known.get(i), View | None) for i in node.inputs):
            rest.append(node)
            continue
        _run(node, graph, opset, known)
    plain = {k: v for k, v in known.items() if not isinstance(v, View)}
    rest = needed(fused(rest, plain, output), output)
    for node in ending(rest, output) if ordered else rest:
        _run(node, graph, opset, known)
    result = known.get(output)
    if not isinstance(result, View):
        raise Refused("the output does not depend on the input")
    whole = shape if len(shape) == 1 else shape[1:]
    return Network(graph, graph.edge(result), whole)


def _run(node: OnnxNode, graph: Graph, opset: int, known: dict[str, Value]) -> None:
    place = f"{node.op} at {node.name}"
    handler, attributes = HANDLERS.get(node.op, (None, frozenset()))
    if handler is None:
        raise Refused(f"{place} is not supported by the checker")
    foreign = sorted(node.attributes.keys() - attributes)
    if foreign:
        raise Refused(f"{place}: attribute {foreign[0]} is not supported by the checker")
    try:
        inputs = [known[i] if i else None for i in node.inputs]
        found = handler(Call(graph, node, opset, inputs))
    except (ArithmeticError, LookupError, TypeError, ValueError, MemoryError) as error:
        raise Refused(f"{place} is malformed: {error}") from None
    outputs = [found] if isinstance(found, View | np.ndarray | np.generic) else found
    for output, value in zip(node.outputs, outputs):
        if isinstance(value, View) and value.index.size == 0:
            raise Refused(f"{place} has an empty result")
        kept = value.index if isinstance(value, View) else np.asarray(value)
        refuse_if(kept.size > MOST_ENTRIES, f"{place} has {kept.size} entries, too many")
        graph.spend(kept.size if kept.base is None else 0)
        known[output] = value if isinstance(value, View) else np.asarray(value)
