"""PyTorch modules: exported to ATen operators, then read operator by operator."""

from __future__ import annotations

import hashlib
import io
import logging
import operator
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import Node, map_arg
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.utils.rnn import PackedSequence

from frown.errors import InvalidInput, Refusal, UnsupportedModel, listing
from frown.graph import Builder, Graph, Unsupported, Value
from frown.read.model import Array, Model, finished, require_finite
from frown.read.torch import activations, attention  # noqa: F401  (fill HANDLERS)
from frown.read.torch.ops import HANDLERS
from frown.read.torch.runtime import Runtime, first_line
from frown.read.torch.shapes import PROBED

# Kept whole although torch could take them apart: the pieces would hide the cause.
HINTS = {
    "_native_batch_norm_legit": "uses the batch's own statistics; keep running ones",
    "native_dropout": "is random; use nn.Dropout, which evaluation turns off",
}


def load_torch(module: nn.Module, example: Tensor | Array, name: str | None = None) -> Model:
    """Reads a module, in evaluation mode and batches of one, into a graph.

    The first axis of `example` is the batch; the others are the model's input
    shape. The module itself is left as it is: a deep copy is read and run, in the
    module's own precision and on its own device.

    Raises InvalidInput where the module does not accept the example, UnsupportedModel
    where it cannot be traced or holds operators without bounds (all of them are
    listed), InvalidModel for weights that are not finite, and ModelMismatch where
    graph and module disagree on random inputs.
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"expected a torch.nn.Module, got {type(module).__name__}")
    label = name or type(module).__name__
    runtime = Runtime.of(module, example, label)
    program, core = _export(runtime, label)
    graph, scores = _Importer(label).read(core)
    if taken := runtime.taken():
        raise UnsupportedModel(
            f"cannot certify {label}: forward takes numbers out of what it computes, by which it "
            f"may decide what to answer: {taken}\n{_ADVICE}"
        )
    model = Model(
        graph=graph,
        input_shape=runtime.shape,
        run=runtime,
        name=label,
        digest=_digest(program, runtime),
        source="torch",
        scores=scores,
    )
    require_finite(graph, label)
    model.check()
    return model


_ADVICE = (
    "replace branches, loops and indices that depend on the input's values by tensor "
    "operations such as torch.clamp or torch.maximum, or export the part that has none"
)
# Operators whose result is memory as it is found.
_UNFILLED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
_UNFILLED |= {"new_empty_strided"}


# -- export -----------------------------------------------------------------------


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's own warnings and traces; what matters becomes an error of ours."""
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        muted = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(muted), redirect_stderr(muted):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silenced)


@cache
def _decompositions() -> Any:
    """Torch's table to core ATen, without what has a handler or a better message."""
    table: Any = torch.export.default_decompositions()
    keep = {*HANDLERS, *PROBED, *HINTS}
    for overload in list(table.keys()):
        name = _operator(overload)
        if keep & {name, f"{name}.{overload._overloadname}"}:
            table.pop(overload)
    return table


def _export(runtime: Runtime, label: str) -> tuple[ExportedProgram, ExportedProgram]:
    """The module's graph as torch writes it down, and in the operators read here."""
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(runtime.module, (runtime.example(),))
            return program, program.run_decompositions(_decompositions())
    except Exception as error:
        raise UnsupportedModel(
            f"cannot certify {label}: torch.export cannot trace it: {_cause(error)}\n{_ADVICE}"
        ) from error


def _cause(error: Exception) -> str:
    if _packs(error):
        return "it packs sequences, whose lengths are data; give the layer a plain tensor instead"
    if not isinstance(error, GuardOnDataDependentSymNode):
        return first_line(error)
    _, _, call = str(error).partition("The following call raised this error:")
    code = call.strip().split("\n\n")[0].splitlines()[-1:]
    at = f", at `{code[0].strip()}`" if code else ""
    return f"what it computes depends on the input's values{at}"


def _packs(error: Exception) -> bool:
    """True if an error arose where a packed sequence was in use."""
    return any(
        isinstance(value, PackedSequence)
        for frame, _ in traceback.walk_tb(error.__traceback__)
        for value in frame.f_locals.values()
    )


def _digest(program: ExportedProgram, runtime: Runtime) -> str:
    digest = hashlib.sha256(f"{runtime.shape} {program.graph}".encode())
    tensors = {**program.state_dict, **program.constants}
    for key in sorted(tensors):
        value = tensors[key]
        if isinstance(value, Tensor):
            array = value.detach().cpu().contiguous().numpy()
            digest.update(f"{key} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


# -- import -----------------------------------------------------------------------


@dataclass
class _Importer:
    """Reads an exported graph node by node, and keeps all that has no bounds."""

    label: str
    builder: Builder = field(default_factory=Builder)
    values: dict[Node, Any] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)

    def read(self, program: ExportedProgram) -> tuple[Graph, Graph | None]:
        output = self._output(program)
        self._bind_inputs(program)
        live = _live(output)
        for node in program.graph.nodes:
            if node.op == "call_function" and node in live:
                self.builder.scope = _name(node)
                self.values[node] = self._value(node)
        if self.refused:
            raise UnsupportedModel(listing(self.label, self.refused))
        result = self.values[output]
        if isinstance(result, Tensor):
            self.builder.scope = "output"
            result = self.builder.constant(result)
        return finished(self.builder, result)

    def _output(self, program: ExportedProgram) -> Node:
        specs = program.graph_signature.output_specs
        changed = [str(s.target) for s in specs if s.kind != OutputKind.USER_OUTPUT]
        if changed:
            raise UnsupportedModel(
                f"cannot certify {self.label}: forward changes {', '.join(changed)}, so its "
                "answers depend on earlier ones\nleave buffers as they are in evaluation mode"
            )
        (spec,) = specs
        assert isinstance(spec.arg, TensorArgument)
        output: Node
        (output,) = program.graph.output_node().all_input_nodes
        return output

    def _bind_inputs(self, program: ExportedProgram) -> None:
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind == InputKind.USER_INPUT:
                self.values[node] = self.builder.input(node.name, tuple(node.meta["val"].shape))
            else:
                stored = program.state_dict.get(spec.target, program.constants.get(spec.target))
                self.values[node] = stored.detach().cpu() if isinstance(stored, Tensor) else stored

    def _value(self, node: Node) -> Any:
        try:
            return self._as_declared(node, self._call(node))
        except Unsupported as reason:
            shape = _shapes(node.meta.get("val"))
            first = shape[0] if isinstance(shape, list) else shape
            self.refused.append(Refusal(_title(node), _name(node), first, str(reason)))
            # What follows is read as if this had worked, so that all faults show at once.
            return pytree.tree_map(
                lambda s: Value(0, s), shape, is_leaf=lambda s: isinstance(s, tuple)
            )

    def _call(self, node: Node) -> Any:
        target: Any = node.target
        single = target is operator.getitem or isinstance(target, torch._ops.OpOverload)
        if not single:  # its arguments are graphs, which have no values
            raise Unsupported("a higher-order operator")
        args: Any = map_arg(node.args, self.values.__getitem__)
        kwargs: Any = map_arg(node.kwargs, self.values.__getitem__)
        if target is operator.getitem:
            item = args[0][args[1]]
            if item is None:
                raise Unsupported("a second result, such as the places of a maximum")
            return item
        if not _computed((args, kwargs)):
            return self._fold(target, args, kwargs)
        name = _operator(target)
        handler = HANDLERS.get(f"{name}.{target._overloadname}") or HANDLERS.get(name)
        if handler is not None:
            try:
                signature(handler).bind(self.builder, *args, **kwargs)
            except TypeError as error:
                raise Unsupported(f"arguments: {error}") from error
            return handler(self.builder, *args, **kwargs)
        if name in PROBED:
            x, *rest = args
            if not isinstance(x, Value) or _computed((rest, kwargs)):
                raise Unsupported("places computed from the input")

            def run(x: Tensor) -> Tensor:
                result: Tensor = target(x, *rest, **kwargs)
                return result

            dtype = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
            return PROBED[name](self.builder, run, x, dtype, *rest)
        raise Unsupported(HINTS.get(name, ""))

    def _fold(self, target: Any, args: Any, kwargs: Any) -> Any:
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise Unsupported("random numbers")
        with torch.no_grad():
            result = target(*args, **kwargs)
        if _operator(target) in _UNFILLED:
            # Whatever stood in memory: numbers that nothing overwrites are not the module's.
            if not result.is_floating_point():
                raise Unsupported("memory that is not filled")
            result.fill_(torch.nan)
        return pytree.tree_map_only(Tensor, lambda t: t.cpu(), result)

    def _as_declared(self, node: Node, result: Any) -> Any:
        """Check a handler's result against the exported graph's shape and type.

        A handler that gets a shape wrong must not pass for one that works, nor a type that rounds
        for one that does not.
        """
        if not isinstance(result, Value | Tensor):
            return result
        declared = node.meta["val"]
        if any(isinstance(size, torch.SymInt) for size in declared.shape):
            raise Unsupported("a shape that torch leaves open")
        if tuple(result.shape) != tuple(declared.shape):
            raise Unsupported(f"read as {tuple(result.shape)}, not {tuple(declared.shape)}")
        if isinstance(result, Value) and declared.dtype not in (torch.float32, torch.float64):
            raise Unsupported(f"a computed tensor of type {declared.dtype}")
        return result if isinstance(result, Value) else result.to(declared.dtype)


def _computed(tree: Any) -> bool:
    return any(isinstance(leaf, Value) for leaf in pytree.tree_leaves(tree))


def _live(output: Node) -> set[Node]:
    """The nodes the output is computed from; assertions and the like are not among them."""
    live, todo = {output}, [output]
    while todo:
        new = [n for n in todo.pop().all_input_nodes if n not in live]
        live.update(new)
        todo.extend(new)
    return live


def _operator(overload: Any) -> str:
    """The name by which operators are read: torch's own without `aten::`, others in full, which
    may be called like one of torch's."""
    return str(overload._schema.name).removeprefix("aten::")


def _title(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).replace("::", ".")
    return getattr(target, "__name__", str(target))


def _name(node: Node) -> str:
    """The module's path and the node's own name, as in `features.0.conv2d`."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return f"{path}.{node.name}" if path else node.name


def _shapes(value: Any) -> Any:
    """The shape of a node's result, or the list of them."""
    if isinstance(value, list | tuple):
        return [_shapes(v) for v in value]
    return tuple(value.shape) if isinstance(value, Tensor) else ()
