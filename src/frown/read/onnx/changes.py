"""Changes to a file's content before anything reads it: frown and onnxruntime see the same network.

A batch of 0 is declared open. Of several outputs one is left, open axes of the input get the sizes
that a user names, and arithmetic in half precision becomes single precision. The last three are
choices, so `Taken` says which were made, and what is proved is about the network that they leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import ml_dtypes
import numpy as np
import onnx

from frown.errors import InvalidInput, InvalidModel, UnsupportedModel
from frown.read.model import Taken
from frown.read.onnx.call import bodies

NARROW: dict[int, str] = {
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
_TYPES = ("to", "dtype", "output_datatype")  # attributes that name a type
_LABELS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.STRING)
_LEARN = "ai.onnx.ml"

Sizes = Mapping[str, Sequence[int]] | Sequence[int]


def take(
    proto: onnx.ModelProto, model: str, output: str | None, sizes: Sizes | None
) -> tuple[Taken, bool]:
    """Change a model in place; what was chosen, and whether anything changed.

    Raises InvalidInput for sizes that do not fit, InvalidModel for an output that is not there.
    """
    opened = _open_batch(proto)
    given = () if sizes is None else _sized(proto, model, sizes)
    classes = _class_names(proto)
    chosen = _one_output(proto, model, output)
    precision = _widen(proto)
    taken = Taken(chosen, given, precision, classes)
    return taken, opened or taken != Taken()


def _open_batch(proto: onnx.ModelProto) -> bool:
    """Declare a batch of 0 or -1 symbolic, which onnxruntime would take literally.

    Returns whether there was one.
    """
    changed = False
    for tensor in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        dims = tensor.type.tensor_type.shape.dim
        if dims and dims[0].HasField("dim_value") and dims[0].dim_value <= 0:
            dims[0].dim_param = "batch"
            changed = True
    return changed


# -- outputs ------------------------------------------------------------------------------


def _one_output(proto: onnx.ModelProto, model: str, wanted: str | None) -> str:
    """Leave one output: the one that is wanted, or the only one that is not a label beside it.

    Probabilities by class names (a ZipMap) become the tensor that they are made of. Returns the
    name of the output that was chosen, empty where the file has no other.
    """
    outputs = {str(o.name): o for o in proto.graph.output}
    if len(outputs) < len(proto.graph.output):
        raise InvalidModel(f"{model}: it has two outputs of one name")
    scores = [n for n, o in outputs.items() if o.type.tensor_type.elem_type not in _LABELS]
    if wanted is not None and wanted not in outputs:
        names = ", ".join(outputs) or "none"
        raise InvalidModel(f"{model}: it has no output {wanted}; its outputs are {names}")
    chosen = wanted or (scores[0] if len(scores) == 1 else "")
    if not chosen:
        return ""
    maps = {
        str(node.output[0]): str(node.input[0])
        for node in proto.graph.node
        if node.domain == _LEARN and node.op_type == "ZipMap" and node.input and node.output
    }
    if len(proto.graph.output) == 1 and chosen not in maps:
        return wanted or ""
    kept = onnx.ValueInfoProto()
    kept.CopyFrom(outputs[chosen])
    if chosen in maps:
        kept = onnx.helper.make_tensor_value_info(maps[chosen], onnx.TensorProto.FLOAT, None)
    del proto.graph.output[:]
    proto.graph.output.append(kept)
    return chosen


def _class_names(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The names that labels or probabilities give the outputs, in their order: words, or numbers
    other than 0, 1, 2, ...; empty where the file says nothing, or different things."""
    arrays = {t.name: t for t in proto.graph.initializer}
    largest = {o for node in proto.graph.node if node.op_type == "ArgMax" for o in node.output}
    said = set[tuple[str, ...]]()
    for node in proto.graph.node:
        names: list[object] = []
        if node.domain == _LEARN and node.op_type in ("ZipMap", "LinearClassifier"):
            for a in node.attribute:
                if a.name.startswith("classlabels_"):
                    names += [*a.ints, *a.strings]
        elif node.op_type == "ArrayFeatureExtractor" and largest & set(node.input):
            names = _entries(arrays.get(node.input[0]))
        if names:
            said.add(
                tuple(str(n, "utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names)
            )
    called = said.pop() if len(said) == 1 else ()
    return () if called == tuple(map(str, range(len(called)))) else called


def _entries(tensor: onnx.TensorProto | None) -> list[object]:
    if tensor is None:
        return []
    try:
        found: list[object] = onnx.numpy_helper.to_array(tensor).ravel().tolist()
    except Exception as error:  # of several libraries, and all mean the same
        raise InvalidModel(f"weight {tensor.name} is damaged: {error!r}") from error
    return found


# -- axes ---------------------------------------------------------------------------------


def _sized(proto: onnx.ModelProto, model: str, sizes: Sizes) -> tuple[int, ...]:
    """Give the input's axes these sizes, by its name or to the only input. The batch, the first
    axis, stays as it is: 1 stands for it."""
    weights = {t.name for t in proto.graph.initializer}
    inputs = {str(i.name): i for i in proto.graph.input if i.name not in weights}
    named = sizes if isinstance(sizes, Mapping) else dict.fromkeys(list(inputs)[:1], sizes)
    unknown = [name for name in named if name not in inputs]
    if unknown or len(named) != 1:
        raise InvalidInput(
            f"shape (--shape) is of {', '.join(map(str, named)) or 'nothing'}; {model} has the "
            f"input {', '.join(inputs) or 'none'}"
        )
    ((name, wanted),) = named.items()
    found = tuple(int(n) for n in wanted)
    kind = inputs[name].type.tensor_type
    dims = kind.shape.dim
    if not found or min(found) < 1 or prod(found) > 2**40:
        raise InvalidInput(f"shape (--shape) {found}: sizes are whole numbers from 1 on")
    if kind.HasField("shape") and dims:
        declared = [d.dim_value if d.dim_value > 0 else None for d in dims]
        fits = len(declared) == len(found)
        fits = fits and all(d in (None, n) for d, n in zip(declared[1:], found[1:], strict=True))
        if not fits or found[0] not in (1, declared[0]):
            shown = ", ".join("?" if d is None else str(d) for d in declared)
            raise InvalidInput(
                f"shape (--shape) {found} does not fit: {model} declares {name} as ({shown})"
            )
        for dim, size in zip(dims[1:], found[1:], strict=True):
            dim.dim_value = size
    else:
        for place, size in enumerate(found):
            added = kind.shape.dim.add()
            if place or len(found) == 1:
                added.dim_value = size
            else:
                added.dim_param = "batch"
    return found


# -- half precision -------------------------------------------------------------------------


def _widen(proto: onnx.ModelProto) -> str:
    """Make single precision of half precision; the type that the network computes in, empty where
    it computes in another. Weights that are stored in half precision and cast before they are used
    stay as they are."""
    found = _computed(proto)
    if not found:
        return ""
    graphs = [proto.graph, *_inner(proto.graph.node)]
    for function in proto.functions:
        graphs += _inner(function.node)
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in proto.functions for node in function.node]
    for graph in graphs:
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in NARROW:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.name in _TYPES and attribute.i in NARROW:
                attribute.i = onnx.TensorProto.FLOAT
    return NARROW[found]


def _computed(proto: onnx.ModelProto) -> int:
    """The narrow type of the input, or of what is cast to one and not a constant; else 0."""
    stored = {t.name for t in proto.graph.initializer}
    for given in proto.graph.input:
        if given.name not in stored and given.type.tensor_type.elem_type in NARROW:
            return int(given.type.tensor_type.elem_type)
    known = set(stored)
    for node in proto.graph.node:
        if all(name in known for name in node.input if name):
            known.update(node.output)
        elif node.op_type == "Cast":
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i in NARROW:
                    return int(attribute.i)
    return 0


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type not in NARROW or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    try:
        held = np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception as error:  # of several libraries, and all mean the same
        raise InvalidModel(f"weight {tensor.name} is damaged: {error!r}") from error
    if held.dtype not in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        raise UnsupportedModel(f"weight {tensor.name} is in half precision, but not readable")
    tensor.CopyFrom(onnx.numpy_helper.from_array(held.astype(np.float32), tensor.name))


def _inner(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The graphs inside of nodes, and inside of those."""
    for body in (body for node in nodes for body in bodies(node)):
        if body.node:
            yield body
            yield from _inner(body.node)
