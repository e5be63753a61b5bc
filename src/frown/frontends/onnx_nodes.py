"""The nodes of an ONNX file as plain values, and the evaluation of constant ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from frown.graph.op import Unsupported

Constant = NDArray[Any]
Constants = dict[str, Constant]

_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node; the operator of a domain other than ONNX's own is `domain::name`."""

    op: str
    name: str
    inputs: tuple[str, ...]  # "" where an optional one is left out
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: onnx.NodeProto

    @staticmethod
    def read(proto: onnx.NodeProto) -> OnnxNode:
        domain = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}::"
        attributes = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in proto.attribute}
        outputs = tuple(proto.output)
        name = proto.name or next((o for o in outputs if o), proto.op_type)
        return OnnxNode(
            domain + proto.op_type, name, tuple(proto.input), outputs, attributes, proto
        )

    def replaced(
        self,
        op: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> OnnxNode:
        """Another operator in this node's place, under its name."""
        proto = onnx.helper.make_node(op, inputs, outputs, self.name, **attributes)
        return OnnxNode(op, self.name, inputs, outputs, attributes, proto)

    @property
    def has_body(self) -> bool:
        """Whether it runs graphs of its own, as If, Loop and Scan do."""
        return any(a.HasField("g") or a.graphs for a in self.proto.attribute)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def needed(nodes: Sequence[OnnxNode], output: str) -> list[OnnxNode]:
    """The nodes that `output` depends on, in their order."""
    wanted = {output}
    kept: list[OnnxNode] = []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(i for i in node.inputs if i)
            if node.has_body:
                wanted.update(_captured(node.proto))
    return kept[::-1]


def _captured(proto: onnx.NodeProto) -> set[str]:
    """Every name that the bodies of a control-flow node mention."""
    names: set[str] = set()
    for attribute in proto.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                names.update(inner.input)
                names.update(_captured(inner))
    return names


def widened(array: Constant) -> Constant:
    """float16 and bfloat16 as float32, which holds them exactly."""
    return array.astype(np.float32) if array.dtype in _NARROW else array


def evaluated(node: OnnxNode, opset: int, constants: Mapping[str, Constant]) -> list[Constant]:
    """The outputs of a node all of whose inputs are constants.

    Floating-point results are rounded as the file's own type rounds them.
    """
    if node.has_body or "::" in node.op or node.op in _RANDOM:
        raise Unsupported("")
    present = list(dict.fromkeys(i for i in node.inputs if i))
    untyped = onnx.helper.make_empty_tensor_value_info
    graph = onnx.helper.make_graph(
        [node.proto],
        "fold",
        [untyped(i) for i in present],
        [untyped(o) for o in node.outputs if o],
    )
    from onnx.reference import ReferenceEvaluator  # large, and few files need it

    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    try:
        answers = ReferenceEvaluator(model).run(None, {i: constants[i] for i in present})
    except Exception as error:  # the evaluator raises whatever numpy does
        raise Unsupported(f"a constant that cannot be evaluated: {error}") from error
    named = iter(answers)
    return [widened(np.asarray(next(named))) if o else np.zeros(0) for o in node.outputs]


def fold(
    nodes: Sequence[OnnxNode], opset: int, constants: Constants
) -> tuple[list[OnnxNode], Constants]:
    """Evaluate what depends on constants alone; the rest stays, in order."""
    known = dict(constants)
    rest = []
    for node in nodes:
        if all(i in known for i in node.inputs if i):
            try:
                known.update(zip(node.outputs, evaluated(node, opset, known), strict=True))
                continue
            except Unsupported:
                pass  # the import meets it again and reports it with all others
        rest.append(node)
    return rest, known
