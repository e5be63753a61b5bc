"""Loading ONNX files: read, folded, then node by node into a graph by the handlers, or a report of
all nodes that have none."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.inliner
import onnx.shape_inference
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from torch import Tensor

import frown.read.onnx.attention
import frown.read.onnx.nn
import frown.read.onnx.ops
import frown.read.onnx.recurrent
import frown.read.onnx.shapes  # noqa: F401  (its handlers register)
from frown.errors import InvalidModel, Refusal, UnsupportedModel, listing
from frown.graph import MOST_ENTRIES, Builder, Graph, Nonlinear, Operand, Shape, Unsupported, Value
from frown.read.model import Model, Taken, finished, require_finite
from frown.read.onnx.call import HANDLERS, Call, OnnxNode, bodies, captured, needed
from frown.read.onnx.changes import Sizes, take
from frown.read.onnx.fuse import fuse_activations
from frown.read.onnx.learn import require_network
from frown.read.onnx.runtime import (
    Constant,
    Constants,
    Evaluator,
    OnnxRuntime,
    Port,
    fold,
    stored,
    widened,
)

OLDEST_OPSET = 8
CONTENT = "model.onnx"  # what a model without a file is called
MOST_NUMBERS = 2**26  # in one tensor with the batch that a file fixes
MOST_NODES = 2**16  # that local functions may come to, each call written out
_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms", "org.pytorch")  # of runtimes' own operators

_DTYPES: dict[int, np.dtype[Any]] = {
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.DOUBLE: np.dtype(np.float64),
}


def load_onnx(
    path: str | Path | bytes,
    output: str | None = None,
    shape: Sizes | None = None,
    inputs: int | None = None,
) -> Model:
    """The network in an ONNX file, or in its content, checked against onnxruntime on random inputs.

    Opsets from 8 on. Operators are read as opsets up to 20 define them; a newer file
    may load too, for unknown operators and attributes are refused and the check
    against onnxruntime catches one whose meaning changed.

    The file has one input; of several outputs `output` names the one that is meant, which need not
    be said where all others are labels. The leading axis of the input is the batch and set to 1, be
    it symbolic, unknown or fixed; an input of one axis is taken whole. `shape` gives other symbolic
    axes their sizes. Where a fixed leading axis is needed to make up a number of `inputs`, it is no
    batch: the input is taken whole. Half precision is taken as single precision (`Model.taken`).

    Raises InvalidModel where the file is missing or damaged or has weights that are
    not finite, UnsupportedModel with every operator that has no bounds, ModelMismatch
    where the imported graph disagrees with onnxruntime.
    """
    file = Path(CONTENT) if isinstance(path, bytes) else Path(path)
    content = path if isinstance(path, bytes) else None
    proto, source, files, taken = _read(file, content, output, shape)
    port = _input(proto, file.name)
    if port.is_redeclared and inputs == prod(port.shape) * (port.batch or 1):
        port = replace(port, shape=(port.batch or 1, *port.shape[1:]), whole=True)
    try:
        graph, scores = import_graph(_task(proto, file.name, port))
        require_finite(graph, file.name)
        largest = max(node.size for node in graph.nodes)
        if port.is_redeclared and largest * (port.batch or 1) > MOST_NUMBERS:
            raise UnsupportedModel(
                f"{file.name}: with its batch of {port.batch} a tensor has more than "
                f"{MOST_NUMBERS:,} numbers"
            )
        runtime = OnnxRuntime.open(source, port, file.name, largest)
        model = Model(
            graph,
            port.input_shape,
            runtime,
            file.name,
            _digest(files),
            "onnx",
            None if isinstance(path, bytes) else file,
            files,
            scores=scores,
            taken=taken,
        )
        model.check()
    except InvalidModel as error:
        if not port.is_redeclared:
            raise
        raise type(error)(
            f"{file.name}: input {port.name} fixes a batch of {port.batch}, and with a batch "
            "of 1 it does not load; export it with batch 1 or a symbolic one (and the batch, not "
            f"frames, as the first axis)\n{error}"
        ) from error
    return model


# -- the file -----------------------------------------------------------------------


Files = tuple[tuple[str, str], ...]  # names and SHA-256, the model's own first


def _read(
    file: Path, content: bytes | None, output: str | None, shape: Sizes | None
) -> tuple[onnx.ModelProto, bytes | str, Files, Taken]:
    """The model with all its weights, the source for onnxruntime, the model's files, and the
    choices that were made."""
    try:
        content = file.read_bytes() if content is None else content
    except FileNotFoundError:
        raise InvalidModel(f"{file}: there is no such file") from None
    except IsADirectoryError:
        raise InvalidModel(f"{file} is a directory; give the ONNX file itself") from None
    except OSError as error:
        raise InvalidModel(f"{file} cannot be read: {error.strerror}") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        proto.Clear()
    if not (proto.ir_version and proto.HasField("graph") and proto.opset_import):
        hint = ""
        if content[:2] == b"PK" and b".npy" in content[:512]:
            hint = "; it looks like numpy arrays: the model comes first, then the data"
        elif content[:2] == b"PK" or content[:1] == b"\x80":
            hint = (
                "; it looks like a PyTorch file: export it with torch.onnx.export, or pass the "
                "module itself to frown.load in Python"
            )
        raise InvalidModel(f"{file} is not an ONNX file, or it is cut off or damaged{hint}")
    if not proto.graph.node:
        raise InvalidModel(f"{file}: its graph is empty")
    if not _legible(proto):
        raise InvalidModel(f"{file} is damaged: it has names that are not text in UTF-8")
    odd = [t.name for t in _tensors(proto.graph) if any(size < 0 for size in t.dims)]
    if odd:  # numpy would work out a size of -1, and onnx's shape inference ends the process
        raise InvalidModel(f"{file} is damaged: sizes below 0 in {', '.join(odd)}")
    files = [(file.name, hashlib.sha256(content).hexdigest())]
    beside = sorted(_external(proto))
    if beside:
        try:
            onnx.external_data_helper.load_external_data_for_model(proto, str(file.parent))
            for location in beside:
                found = (file.parent / location).read_bytes()
                files.append((location, hashlib.sha256(found).hexdigest()))
        except Exception as error:  # the loader raises errors of several libraries
            raise InvalidModel(
                f"{file}: its external data ({', '.join(beside)}) cannot be read: {error}"
            ) from error
    source: bytes | str = str(file) if beside else content
    _require_one_maker(proto, file)
    # The original is the file itself, less what nothing reads: its functions are the runtime's to
    # write out, or a mistake in doing so would be in both.
    taken, changed = take(proto, file.name, output, shape)
    if _drop_unread(proto) or changed:
        try:
            source = proto.SerializeToString()
        except ValueError:
            raise UnsupportedModel(
                f"{file}: it has nodes that nothing reads, and is too large to be written without "
                "them; remove them"
            ) from None
    read = _inlined(proto, file)
    _drop_unread(read)
    return read, source, tuple(files), taken


def files_digest(path: Path) -> str:
    """The digest of a model's file and of those beside it that hold its weights, read or not; empty
    where one is missing, or it is no model."""
    try:
        content = path.read_bytes()
        proto = onnx.ModelProto.FromString(content)
        beside = [(path.parent / name).read_bytes() for name in sorted(_external(proto))]
    except (OSError, DecodeError):
        return ""
    return _digest([("", hashlib.sha256(part).hexdigest()) for part in (content, *beside)])


def _digest(files: Sequence[tuple[str, str]]) -> str:
    """The digest of a model's one file, or one of all its files' digests.

    Another weight in any of the files makes another model.
    """
    if len(files) == 1:
        return files[0][1]
    return hashlib.sha256("\n".join(digest for _, digest in files).encode()).hexdigest()


def _legible(message: Any) -> bool:
    """True if all strings of a message are text; the parser makes bytes of others."""
    for kind, value in message.ListFields():
        values = (
            [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        )
        if kind.type == kind.TYPE_STRING and any(isinstance(v, bytes) for v in values):
            return False
        if kind.type == kind.TYPE_MESSAGE and not all(_legible(v) for v in values):
            return False
    return True


def _external(proto: onnx.ModelProto) -> set[str]:
    """The files, relative to the model's, that hold its weights."""
    return {
        next((e.value for e in reversed(t.external_data) if e.key == "location"), "")
        for t in _tensors(proto.graph)
        if onnx.external_data_helper.uses_external_data(t)
    }


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in bodies(node):
            yield from _tensors(body)


def _inlined(proto: onnx.ModelProto, file: Path) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    _require_own_functions(proto, file)
    _require_few_calls(proto, file)
    _write_defaults(proto, file)
    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:  # of onnx's own library, without a base class
        reason = " ".join(str(error).split())
        raise InvalidModel(f"{file}: its functions cannot be written out: {reason}") from error


def _require_one_maker(proto: onnx.ModelProto, file: Path) -> None:
    """Raise where a tensor is computed twice, or computed and stored."""
    made = [o for node in proto.graph.node for o in node.output if o]
    stored = {t.name for t in proto.graph.initializer}
    twice = stored.intersection(made) | {name for name, n in Counter(made).items() if n > 1}
    if twice:
        raise InvalidModel(f"{file}: it has several tensors {', '.join(sorted(twice))}")


def _require_own_functions(proto: onnx.ModelProto, file: Path) -> None:
    """Raise where a function has the name of another, or may have that of an operator of the
    runtime's, which then runs its own."""
    seen = set()
    for function in proto.functions:
        known = [d for d in _DOMAINS if f"{function.domain}.".startswith(f"{d}.")]
        if known or not function.domain:
            raise UnsupportedModel(
                f"{file}: its function {function.name} is in the domain {function.domain!r}, which "
                "is a runtime's own; give it another"
            )
        key = (function.domain, function.name, function.overload)
        if key in seen:
            raise InvalidModel(f"{file}: it has two functions {function.domain}::{function.name}")
        seen.add(key)


def _write_defaults(proto: onnx.ModelProto, file: Path) -> None:
    """Give calls of functions the attributes that they leave out and the function has a default
    for: onnx's inliner forgets these."""
    defaults = {
        (f.domain, f.name, f.overload): {a.name: a for a in f.attribute_proto}
        for f in proto.functions
    }
    none: set[str] = set()
    places = [(proto.graph.node, none)]
    places += [(f.node, {a.name for a in f.attribute_proto}) for f in proto.functions]
    for nodes, present in places:
        for node in _all_nodes(nodes):
            absent = dict(defaults.get((node.domain, node.op_type, node.overload), {}))
            for given in node.attribute:
                found = absent.pop(given.name, None)
                if found is not None and given.ref_attr_name and given.ref_attr_name not in present:
                    raise UnsupportedModel(
                        f"{file}: {node.op_type} is passed on an attribute {given.ref_attr_name} "
                        f"that a call may leave out, for {given.name}, which has a default"
                    )
            node.attribute.extend(absent.values())


def _require_few_calls(proto: onnx.ModelProto, file: Path) -> None:
    """Raise where functions that call functions come to more nodes than can be read."""
    bodies = {(f.domain, f.name): f.node for f in proto.functions}
    counts: dict[tuple[str, str], int] = {}
    for _ in range(len(bodies) + 1):  # each pass settles those whose callees are settled
        for key, body in bodies.items():
            calls = [(n.domain, n.op_type) for n in _all_nodes(body)]
            if all(c in counts or c not in bodies for c in calls):
                counts[key] = sum(counts.get(c, 1) for c in calls)
        if len(counts) == len(bodies):
            break
    else:
        raise InvalidModel(f"{file}: it has a function that calls itself")
    calls = [(n.domain, n.op_type) for n in _all_nodes(proto.graph.node)]
    total = sum(counts.get(c, 1) for c in calls)
    if total > MOST_NODES:
        raise UnsupportedModel(
            f"{file}: its functions, written out, have {total:,} nodes; at most {MOST_NODES:,}"
        )


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs in them."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from _all_nodes(body.node)


def _drop_unread(proto: onnx.ModelProto) -> bool:
    """Remove the nodes that no output of the graph, or of their function, depends on; returns
    True if there were any.

    onnxruntime would compute them all the same, and nothing checks their sizes.
    """
    bodies = [(proto.graph.node, {o.name for o in proto.graph.output})]
    bodies += [(function.node, set(function.output)) for function in proto.functions]
    dropped = False
    for nodes, wanted in bodies:
        kept = []
        for node in reversed(nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input, captured(node))
        if len(kept) < len(nodes):
            copies = onnx.GraphProto(node=reversed(kept)).node
            del nodes[:]
            nodes.extend(copies)
            dropped = True
    return dropped


# -- what goes in and out -------------------------------------------------------------


def _input(proto: onnx.ModelProto, model: str) -> Port:
    weights = {t.name for t in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(i.name for i in inputs) or "none"
        raise UnsupportedModel(f"{model}: it must have exactly one input, but has {names}")
    given = inputs[0]
    kind = given.type.tensor_type
    dtype = _DTYPES.get(kind.elem_type)
    if dtype is None:
        types = {number: name for name, number in onnx.TensorProto.DataType.items()}
        found = types.get(kind.elem_type, f"number {kind.elem_type}")
        raise UnsupportedModel(
            f"{model}: input {given.name} has type {found}; only FLOAT and DOUBLE are bounded"
        )
    if not kind.HasField("shape") or not kind.shape.dim:
        raise UnsupportedModel(
            f"{model}: input {given.name} has no axes or no declared shape; give one: "
            f"--shape {given.name}=1,SIZE,..., frown.load(path, shape=(1, SIZE, ...))"
        )
    dims = kind.shape.dim
    open_axes = [
        f"{d.dim_param or 'unnamed'} (axis {i})"
        for i, d in enumerate(dims)
        if i > 0 and d.dim_value <= 0
    ]
    if open_axes:
        raise UnsupportedModel(
            f"{model}: input {given.name} has axes of unknown size: {', '.join(open_axes)}; "
            f"give them: --shape {given.name}=1,SIZE,..., frown.load(path, shape=(1, SIZE, ...))"
        )
    first = dims[0].dim_value if dims[0].dim_value > 0 else None
    lead = first if len(dims) == 1 and first is not None else 1
    declared = (first or 1, *(d.dim_value for d in dims[1:]))
    if prod(declared[1:]) > MOST_ENTRIES or prod(declared) > MOST_NUMBERS:
        limit = MOST_ENTRIES if prod(declared[1:]) > MOST_ENTRIES else MOST_NUMBERS
        raise UnsupportedModel(
            f"{model}: input {given.name} has shape {declared}, more than "
            f"{limit:,} numbers; export it with batch 1 or a symbolic one"
        )
    return Port(given.name, dtype, (lead, *(d.dim_value for d in dims[1:])), first)


def _output(proto: onnx.ModelProto, model: str) -> str:
    names = [o.name for o in proto.graph.output]
    if len(names) != 1:
        raise UnsupportedModel(
            f"{model}: it must have exactly one output, but has {', '.join(names) or 'none'}; "
            "choose one: --output NAME, frown.load(path, output=NAME)"
        )
    return str(names[0])


# -- what is imported -------------------------------------------------------------------


def _task(proto: onnx.ModelProto, model: str, port: Port) -> Task:
    opset = _opset(proto, model)
    output = _output(proto, model)
    _require_values(proto, model)
    nodes = needed([OnnxNode.read(n) for n in proto.graph.node], output)
    weights = _initializers(proto, model)
    _require_order(nodes, {port.name, *weights}, model)
    evaluator = Evaluator.of(opset, weights)
    nodes, constants = fold(nodes, weights, evaluator)
    nodes, constants = fuse_activations(nodes, constants, output)
    return Task(
        model,
        opset,
        evaluator,
        needed(nodes, output),
        constants,
        port.name,
        port.shape,
        output,
        lambda: _inferred(proto, port),
    )


def _require_values(proto: onnx.ModelProto, model: str) -> None:
    """Raise InvalidModel for attributes that stand for those of a function, outside of any."""
    for node in _all_nodes(proto.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise InvalidModel(
                    f"{model}: attribute {attribute.name} of {node.op_type} stands for one of a "
                    f"function, {attribute.ref_attr_name}, but is in none"
                )


def _require_order(nodes: Sequence[OnnxNode], known: set[str], model: str) -> None:
    """Raise InvalidModel where a node reads what is computed after it, or never."""
    for node in nodes:
        missing = [i for i in node.inputs if i and i not in known]
        if missing:
            raise InvalidModel(
                f"{model}: {node.op} at {node.name} reads {', '.join(missing)}, "
                "which nothing before it computes"
            )
        known.update(node.outputs)


def _opset(proto: onnx.ModelProto, model: str) -> int:
    # One version given twice is one: exporters write that. Of two, each runtime takes its own.
    imports = {(o.domain or "ai.onnx", o.version) for o in proto.opset_import}
    domains = [domain for domain, _ in imports]
    twice = sorted({d for d in domains if domains.count(d) > 1})
    if twice:
        raise InvalidModel(
            f"{model}: it imports two versions of the operators of {', '.join(twice)}; keep one "
            '("" and "ai.onnx" are one domain)'
        )
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise InvalidModel(f"{model}: it declares no opset of the standard operators")
    if max(versions) < OLDEST_OPSET:
        raise UnsupportedModel(
            f"{model}: opset {max(versions)} is older than {OLDEST_OPSET}; convert it with "
            "onnx.version_converter.convert_version"
        )
    return int(max(versions))


def _initializers(proto: onnx.ModelProto, model: str) -> Constants:
    if proto.graph.sparse_initializer:
        names = ", ".join(t.values.name for t in proto.graph.sparse_initializer)
        raise UnsupportedModel(f"{model}: sparse weights {names}; store them dense")
    constants: Constants = {}
    for tensor in proto.graph.initializer:
        try:
            constants[tensor.name] = stored(tensor)
        except Exception as error:  # of protobuf, numpy and onnx, and all mean the same
            raise InvalidModel(f"{model}: weight {tensor.name} is damaged: {error!r}") from error
    return constants


def _inferred(proto: onnx.ModelProto, port: Port) -> Mapping[str, Shape]:
    """Every tensor's shape that onnx infers from the input's, for error messages."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    for given in copy.graph.input:
        if given.name == port.name:
            for dim, size in zip(given.type.tensor_type.shape.dim, port.shape, strict=True):
                dim.dim_value = size
    for result in copy.graph.output:
        result.type.tensor_type.ClearField("shape")
    try:
        # Not with data_prop, which keeps numbers: concatenations of themselves double them.
        graph = onnx.shape_inference.infer_shapes(copy).graph
    except Exception:  # a shape in a message is not worth a second error
        return {}
    shapes = {}
    for tensor in (*graph.value_info, *graph.output):
        kind = tensor.type.tensor_type
        sizes = tuple(d.dim_value for d in kind.shape.dim)
        if kind.HasField("shape") and all(n > 0 for n in sizes):
            shapes[tensor.name] = sizes
    return shapes


@dataclass(frozen=True, slots=True)
class _Hole(Nonlinear):
    """A node without bounds, kept so that the rest is examined too."""

    size: Shape

    def shape(self, *inputs: Shape) -> Shape:
        return self.size

    def apply(self, *xs: Tensor) -> Tensor:
        raise AssertionError("a graph with holes is never finished")


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A tensor whose shape is not known either."""


@dataclass(frozen=True, slots=True)
class Task:
    """The nodes to be imported; `inferred` has tensors' shapes where ONNX can infer them."""

    model: str
    opset: int
    evaluator: Evaluator
    nodes: Sequence[OnnxNode]
    constants: Mapping[str, Constant]
    input: str
    shape: Shape
    output: str
    inferred: Callable[[], Mapping[str, Shape]]


def import_graph(task: Task) -> tuple[Graph, Graph | None]:
    """The graph of a task, and of its scores where a last function keeps their order.

    Raises UnsupportedModel with every node that has no bounds, InvalidModel where a
    node contradicts itself.
    """
    return _Importer(task).graphs()


@dataclass
class _Importer:
    task: Task
    build: Builder = field(default_factory=Builder)
    known: dict[str, Value | Constant | _Unknown] = field(default_factory=dict)
    problems: list[Refusal] = field(default_factory=list)
    shapes: Mapping[str, Shape] | None = None  # inferred at the first problem

    def graphs(self) -> tuple[Graph, Graph | None]:
        task = self.task
        self.known.update(task.constants)
        self.known[task.input] = self.build.input(task.input, task.shape)
        read = {task.output, *(i for node in task.nodes for i in node.inputs)}
        for node in task.nodes:
            self._node(node, read)
        if self.problems:
            raise UnsupportedModel(listing(task.model, self.problems))
        output = self.known.get(task.output)
        if not isinstance(output, Value):
            raise InvalidModel(
                f"{task.model}: its output {task.output} does not depend on its input"
            )
        return finished(self.build, output)

    def _node(self, node: OnnxNode, read: set[str]) -> None:
        inputs = [self.known[i] for i in node.inputs if i]
        constant = all(isinstance(x, np.ndarray) for x in inputs)
        try:
            answers = self._answers(node, constant)
            found = dict(zip(node.outputs, answers, strict=False))
            lost = [o for o in node.outputs if found.get(o) is None and o in read]
            if lost:
                raise Unsupported(f"output {', '.join(lost)} is used")
            self.known.update((o, x) for o, x in found.items() if x is not None)
        except Unsupported as reason:
            self._report(node, str(reason), constant)
        except (
            ArithmeticError,
            AssertionError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            first = str(error).split("\n")[0] or "it reads other tensors than it may"
            raise InvalidModel(
                f"{self.task.model}: {node.op} at {node.name} is malformed: {first}"
            ) from error

    def _answers(
        self, node: OnnxNode, constant: bool
    ) -> Sequence[Value | Constant | _Unknown | None]:
        if constant:
            given = {i: self.known[i] for i in node.inputs if i}
            constants = {i: x for i, x in given.items() if isinstance(x, np.ndarray)}
            return self.task.evaluator.outputs(node, constants)
        handler = HANDLERS.get(node.op)
        if node.op.startswith("ai.onnx.ml::"):
            require_network(node.op)
        if handler is None or node.has_body:
            raise Unsupported("")
        foreign = sorted(node.attributes.keys() - handler.attributes)
        if foreign:
            raise Unsupported(", ".join(f"attribute {a}={node.attributes[a]!r}" for a in foreign))
        operands = [self.known[i] if i else None for i in node.inputs]
        if any(isinstance(x, _Unknown) for x in operands):
            return [self._placeholder(o) for o in node.outputs]
        self.build.scope = node.name
        outputs = handler.convert(
            Call(
                self.build,
                node.op,
                self.task.opset,
                node.attributes,
                tuple(_operand(x) for x in operands),
                len(node.outputs),
            )
        )
        found = [outputs] if isinstance(outputs, Value | Tensor) else outputs
        return [x.numpy() if isinstance(x, Tensor) else x for x in found]

    def _report(self, node: OnnxNode, reason: str, constant: bool) -> None:
        shape = self._inferred().get(node.outputs[0]) if node.outputs else None
        self.problems.append(Refusal(node.op, node.name, shape, reason))
        for name in node.outputs:
            # A constant's readers would be told off for reading something computed.
            self.known[name] = _Unknown() if constant else self._placeholder(name)

    def _placeholder(self, name: str) -> Value | _Unknown:
        shape = self._inferred().get(name)
        if shape is None:
            return _Unknown()
        try:
            return self.build.reshape(self.build.add(_Hole(shape or (1,))), shape)
        except Unsupported:  # too large: a second report would repeat the first
            return _Unknown()

    def _inferred(self) -> Mapping[str, Shape]:
        if self.shapes is None:
            self.shapes = self.task.inferred()
        return self.shapes


def _operand(x: Value | Constant | _Unknown | None) -> Operand | None:
    if isinstance(x, np.ndarray):
        try:
            return torch.from_numpy(np.array(widened(x)))
        except TypeError:
            raise Unsupported(f"a constant of type {x.dtype}") from None
    return x if isinstance(x, Value) else None
