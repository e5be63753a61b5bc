"""Import ONNX nodes into a graph: run each node's handler, or report all that have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import frown.read.onnx.attention
import frown.read.onnx.nn
import frown.read.onnx.ops
import frown.read.onnx.recurrent
import frown.read.onnx.shapes  # noqa: F401  (its handlers register)
from frown.errors import InvalidModel, UnsupportedModel
from frown.graph import Builder, Graph, Nonlinear, Operand, Shape, Unsupported, Value
from frown.read.ending import finished
from frown.read.onnx.call import HANDLERS, Call
from frown.read.onnx.constants import Constant, Evaluator, widened
from frown.read.onnx.nodes import OnnxNode
from frown.read.refusals import Refusal, listing


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
            raise UnsupportedModel(listing(task.model, self.problems, HANDLERS))
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
            lost = [o for o in node.outputs[len(answers) :] if o in read]
            if lost:
                raise Unsupported(f"output {', '.join(lost)} is used")
            self.known.update(zip(node.outputs, answers, strict=False))
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

    def _answers(self, node: OnnxNode, constant: bool) -> Sequence[Value | Constant | _Unknown]:
        if constant:
            given = {i: self.known[i] for i in node.inputs if i}
            constants = {i: x for i, x in given.items() if isinstance(x, np.ndarray)}
            return self.task.evaluator.outputs(node, constants)
        handler = HANDLERS.get(node.op)
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
