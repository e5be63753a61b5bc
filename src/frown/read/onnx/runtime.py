"""onnxruntime, the original of an ONNX model, on one thread: whole models, and constants, which are
what nodes compute from weights and shapes alone.

Constants are computed node by node and without optimisations. Another evaluator may read the
standard otherwise (Softmax before opset 13, windows of a pooling, norms): its numbers would be
another network's, and the comparison on random inputs does not reach every number of a network.

Random operators have no constant, so they are refused. Sizes are inferred before anything is
computed: a file of a few hundred bytes can ask for any number of entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
from numpy.typing import NDArray

from frown.errors import InvalidModel
from frown.graph import MOST_ENTRIES, MOST_IN_ALL, Shape, Unsupported
from frown.read.model import Array, normal_draws, same
from frown.read.onnx.call import OnnxNode

_ROWS = 256  # at once where the batch is free
_LARGE = 2**21  # numbers of a tensor of one input; with more, inputs gain nothing by company
_NUMBERS = 2**27  # of one tensor for all of them; bounds the memory of a large network


@dataclass(frozen=True, slots=True)
class Port:
    """The model's input: its shape with a batch of 1, and the batch the file declares."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    batch: int | None  # None where the file leaves it open
    whole: bool = False  # the first axis is no batch, but the input's own

    @property
    def is_batched(self) -> bool:
        """True if the first axis is the batch; an input of one axis is one input."""
        return len(self.shape) > 1 and not self.whole

    @property
    def input_shape(self) -> Shape:
        return self.shape[1:] if self.is_batched else self.shape

    @property
    def is_redeclared(self) -> bool:
        """True if the file fixes a batch other than the 1 that is bounded."""
        return self.is_batched and self.batch not in (None, 1)


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """Answers (N, outputs) in float64 for inputs (N, *input_shape).

    Sessions cannot be pickled: what it was opened from is, and opened again.
    """

    session: onnxruntime.InferenceSession
    port: Port
    model: str
    step: int  # rows of one call
    source: bytes | str  # the file's content, or its path

    @staticmethod
    def open(source: bytes | str, port: Port, model: str, largest: int = 1) -> OnnxRuntime:
        """Start onnxruntime on a file's content, or on its path if its weights lie beside it.

        `largest` is the size of the network's largest tensor, for one input.
        """
        try:
            session = _session(source)
        except Exception as error:  # its exceptions share no base class
            reason = _sentence(error)
            remedy = ""
            if "layout == 1" in reason:
                remedy = " What helps: put a Transpose around the operator, and use layout 0"
            raise InvalidModel(f"{model}: onnxruntime refuses it: {reason}{remedy}") from error
        if port.is_batched and port.batch is not None:
            return OnnxRuntime(session, port, model, port.batch, source)
        alone = OnnxRuntime(session, port, model, 1, source)
        rows = max(1, min(_ROWS, _NUMBERS // largest))
        together = OnnxRuntime(session, port, model, rows, source)
        if not port.is_batched or largest > _LARGE:
            return alone
        return together if _agree(alone, together) else alone

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.source, self.port, self.model, self.step)

    def __call__(self, x: Array) -> NDArray[np.float64]:
        rows = np.asarray(x, dtype=self.port.dtype).reshape(-1, *self.port.input_shape)
        starts = range(0, max(1, len(rows)), self.step)
        answers = [self._answer(rows[i : i + self.step]) for i in starts]
        return np.concatenate(answers).astype(np.float64)

    def _answer(self, rows: NDArray[Any]) -> NDArray[Any]:
        # A fixed batch is filled up with zeros, whose answers are dropped.
        size = self.step if self.port.is_batched and self.port.batch is not None else len(rows)
        fed = np.zeros((max(1, size), *self.port.input_shape), self.port.dtype)
        fed[: len(rows)] = rows
        shape = fed.shape if self.port.is_batched else self.port.shape
        try:
            answer = self.session.run(None, {self.port.name: fed.reshape(shape)})[0]
        except Exception as error:
            raise InvalidModel(f"{self.model}: onnxruntime fails: {_sentence(error)}") from error
        answer = np.asarray(answer)
        if answer.size % len(fed):
            raise InvalidModel(
                f"{self.model}: {len(fed)} inputs give an output of shape {answer.shape}"
            )
        return answer.reshape(len(fed), -1)[: len(rows)]


def _agree(alone: OnnxRuntime, together: OnnxRuntime) -> bool:
    """True if a batch gives what its rows give one by one.

    A file can declare a symbolic batch and still reshape to a batch of 1 inside.
    """
    x = normal_draws(0)((3, *alone.port.input_shape))
    expected = alone(x)
    try:
        found = together(x)
    except InvalidModel:
        return False
    return same(found, expected)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def _session(source: bytes | str, plainly: bool = False) -> onnxruntime.InferenceSession:
    """A session on one thread; `plainly` without optimisations."""
    options = onnxruntime.SessionOptions()
    if plainly:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.use_deterministic_compute = True
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # which would keep what one call needed
    options.log_severity_level = 4  # what goes wrong is raised
    return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"])


def _reopened(source: bytes | str, port: Port, model: str, step: int) -> OnnxRuntime:
    """The runtime that was pickled, in another process say."""
    return OnnxRuntime(_session(source), port, model, step, source)


Constant = NDArray[Any]
Constants = dict[str, Constant]

_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
MOST_PRODUCTS = 2**33  # that one constant is a sum of

RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
RANDOM |= {"RandomUniformLike"}

# How many entries they have depends on the numbers that they read, but is not above theirs.
_FEWER = {"Compress", "NonZero", "Unique"}

# Operators that copy entries, and whose results in float16 or bfloat16 are therefore no matter of
# rounding. Of a chain of others runtimes round some results and keep others in float32.
_COPYING = {"Concat", "Constant", "ConstantOfShape", "Dropout", "Expand", "Flatten", "Gather"}
_COPYING |= {"Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose"}
_COPYING |= {"Unsqueeze", "Where"}

# Integers that these read are sizes; beyond this one sums and products of sizes overflow.
_SIZED = {"AffineGrid", "CenterCropPad", "Col2Im", "ConstantOfShape", "DFT", "Expand"}
_SIZED |= {"MaxUnpool", "OneHot", "Pad", "Resize", "STFT", "Tile", "TopK", "Upsample"}
_LARGEST_SIZE = 2**31


def stored(tensor: onnx.TensorProto) -> Constant:
    """The numbers of a file's tensor. In a tensor of booleans every byte but 0 becomes 1, since
    onnxruntime would compute with the byte itself.

    Raises errors of protobuf, numpy and onnx where it is damaged.
    """
    found = np.asarray(onnx.numpy_helper.to_array(tensor))
    return np.asarray(found.view(np.uint8) != 0) if found.dtype == np.bool_ else found


def widened(array: Constant) -> Constant:
    """float16 and bfloat16 as float32, which holds them exactly."""
    return array.astype(np.float32) if array.dtype in _NARROW else array


@dataclass
class Evaluator:
    """Evaluates nodes all of whose inputs are constants, and counts what it has computed.

    `opset` is the file's, `allowance` how many numbers all constants together may have.
    """

    opset: int
    allowance: int
    spent: int = 0

    @staticmethod
    def of(opset: int, weights: Mapping[str, Constant]) -> Evaluator:
        """The evaluator for a file with these weights. Each may pass some nodes (a cast, a
        transposition, a reshape), so several times their number is allowed."""
        return Evaluator(opset, MOST_IN_ALL + 8 * sum(w.size for w in weights.values()))

    def outputs(self, node: OnnxNode, constants: Mapping[str, Constant]) -> list[Constant]:
        """The outputs of a node, in the file's own types and rounded as these are.

        Raises Unsupported where there are none: random numbers, control flow, operators of other
        domains, results beyond MOST_ENTRIES that are not a weight's size, and whatever
        onnxruntime refuses.
        """
        given = {i: constants[i] for i in node.inputs if i}
        if node.has_body or "::" in node.op:
            raise Unsupported("")
        _require_certain(node, constants)
        if node.op == "Constant":
            return [_stored(node)]
        self._require_room(node, given)
        found = _computed(node, self.opset, given)
        if node.op not in _COPYING and any(f.dtype in _NARROW for f in found):
            raise Unsupported("a constant computed in float16 or bfloat16; store it in float32")
        return found

    def _require_room(self, node: OnnxNode, given: Mapping[str, Constant]) -> None:
        entries = _entries(node, self.opset, given)
        most = max(MOST_ENTRIES, *(x.size for x in given.values()), 0)
        if max(entries) > most:
            raise Unsupported(f"a constant of {max(entries):,} numbers; at most {MOST_ENTRIES:,}")
        work = _products(node, max(entries), given)
        if work > MOST_PRODUCTS:
            raise Unsupported(f"a constant of {work:,} products; at most {MOST_PRODUCTS:,}")
        if self.spent + sum(entries) > self.allowance:
            raise Unsupported(f"constants of more than {self.allowance:,} numbers in all")
        self.spent += sum(entries)


def fold(
    nodes: Sequence[OnnxNode], weights: Constants, evaluator: Evaluator
) -> tuple[list[OnnxNode], Constants]:
    """Evaluate what depends on constants alone; the rest stays, in order."""
    known = dict(weights)
    rest = []
    for node in nodes:
        if all(i in known for i in node.inputs if i):
            try:
                known.update(zip(node.outputs, evaluator.outputs(node, known), strict=True))
                continue
            except Unsupported:
                pass  # the import meets it again and reports it with all others
        rest.append(node)
    return rest, known


# -- one node -----------------------------------------------------------------------


def _require_certain(node: OnnxNode, constants: Mapping[str, Constant]) -> None:
    """Raise Unsupported for random numbers."""
    if node.op in RANDOM:
        raise Unsupported("random numbers")
    training = node.inputs[2] if node.op == "Dropout" and len(node.inputs) > 2 else ""
    if training and constants[training].any():
        raise Unsupported("dropout in training mode")


def _stored(node: OnnxNode) -> Constant:
    if len(node.attributes) != 1:
        raise Unsupported(f"a constant with {len(node.attributes)} values")
    ((name, value),) = node.attributes.items()
    if name == "value":
        try:
            return stored(value)
        except Exception as error:  # of protobuf, numpy and onnx, and all mean the same
            raise Unsupported(f"a constant that is damaged: {error}") from error
    kinds = {"value_float": np.float32, "value_int": np.int64}
    kind = kinds.get(name.removesuffix("s"))
    if kind is None:
        raise Unsupported(f"attribute {name}")
    return np.array(value, dtype=kind)


def _computed(node: OnnxNode, opset: int, given: Mapping[str, Constant]) -> list[Constant]:
    """The outputs of a node as onnxruntime computes them."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.domain = ""
    inputs, stored = [], []
    for name, x in given.items():
        if x.dtype.kind == "V":  # numpy's arrays of such types cannot be passed
            stored.append(onnx.numpy_helper.from_array(x, name))
        else:
            kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
            inputs.append(onnx.helper.make_tensor_value_info(name, kind, x.shape))
    wanted = [o for o in node.outputs if o]
    results = [onnx.helper.make_empty_tensor_value_info(o) for o in wanted]
    graph = onnx.helper.make_graph([proto], "constant", inputs, results, stored)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8
    )
    try:
        session = _session(model.SerializeToString(), plainly=True)
        answers = session.run(wanted, {i.name: given[i.name] for i in inputs})
    except Exception as error:  # its exceptions share no base class
        reason = _sentence(error)
        raise Unsupported(f"a constant that onnxruntime cannot compute: {reason}") from error
    named = iter(answers)
    return [np.asarray(next(named)) if o else np.zeros(0) for o in node.outputs]


# -- sizes --------------------------------------------------------------------------


def _entries(node: OnnxNode, opset: int, given: Mapping[str, Constant]) -> list[int]:
    """The number of entries of each output, from the standard's inference of shapes."""
    helper = onnx.helper
    try:
        schema = onnx.defs.get_schema(node.op, opset, "")
    except onnx.defs.SchemaError as error:
        raise Unsupported(f"an operator that opset {opset} does not have") from error
    _require_inputs(node, schema)
    _require_sizes(node, given)
    try:
        kinds = {
            name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in given.items()
        }
        # Shapes, repeats, limits and the like: no inference reads more numbers than these.
        small = {n: onnx.numpy_helper.from_array(x, n) for n, x in given.items() if x.size <= 4096}
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            node.proto,
            kinds,
            small,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=8,
        )
    except Exception as error:  # of onnx's own library, without a base class
        reason = " ".join(str(error).split())
        raise Unsupported(f"a constant of unknown size: {reason}") from error
    counts = []
    for output in node.outputs:
        shape = _known(found[output]) if output in found else None
        if shape is None and node.op in _FEWER:
            rank = max(1, *(x.ndim for x in given.values()))
            shape = (rank, *(max(given.values(), key=lambda x: x.size).shape))
        if shape is None and output:
            raise Unsupported("a constant of unknown size")
        counts.append(prod(shape or ()))
    return counts or [0]


def _known(kind: onnx.TypeProto) -> Shape | None:
    """A shape that is known in full."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    sizes = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dims)
    return sizes if min(sizes, default=0) >= 0 else None


def _require_inputs(node: OnnxNode, schema: onnx.defs.OpSchema) -> None:
    """Raise Unsupported where a node lacks an input, or has one too many."""
    count = len(node.inputs)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    missing = [p.name for p, i in zip(schema.inputs, node.inputs) if p.option == single and not i]
    if missing or not schema.min_input <= count <= schema.max_input:
        without = f", without {', '.join(missing)}" if missing else ""
        raise Unsupported(f"a node of {count} inputs{without}")


def _require_sizes(node: OnnxNode, given: Mapping[str, Constant]) -> None:
    """Raise Unsupported for numbers so large that the inference of sizes would overflow."""
    if node.op == "Range":
        ends = [given[i].reshape(-1).astype(np.float64) for i in node.inputs]
        if any(x.size != 1 for x in ends):
            raise Unsupported("a range whose ends are not single numbers")
        start, limit, step = (float(x[0]) for x in ends)
        count = abs(limit - start) / abs(step) if step else 0.0
        if not count <= MOST_ENTRIES:
            raise Unsupported(f"a constant of {count:,.0f} numbers; at most {MOST_ENTRIES:,}")
    sizes: list[Any] = []
    if node.op in _SIZED:
        read = node.inputs if node.op == "ConstantOfShape" else node.inputs[1:]
        for x in (given[i] for i in read if i):
            sizes += x.ravel().tolist() if x.dtype.kind in "fiu" and x.size <= 4096 else []
    if node.op != "Slice":  # where the largest integer means the end
        for value in node.attributes.values():
            sizes += value if isinstance(value, list) else [value]
    if any(isinstance(n, int | float) and not abs(n) <= _LARGEST_SIZE for n in sizes):
        raise Unsupported(f"sizes beyond {_LARGEST_SIZE:,}")


def _products(node: OnnxNode, entries: int, given: Mapping[str, Constant]) -> int:
    """The number of products that one output sums up, times its number of entries."""
    kernel = node.attributes.get("kernel_shape")
    if node.op in ("Conv", "ConvTranspose", "DeformConv", "ConvInteger", "QLinearConv"):
        weight = given[node.inputs[3 if node.op == "QLinearConv" else 1]]
        return entries * weight.size // max(1, len(weight))
    if kernel is not None:
        return entries * prod(int(k) for k in kernel)
    if node.op in ("MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul"):
        # (n k) (k m) (n m) is the square of n k m
        left, right = (given[node.inputs[i]].size for i in (0, -1 if len(node.inputs) < 2 else 1))
        return isqrt(entries * left * right)
    return entries
