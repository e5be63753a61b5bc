"""The nodes of an ONNX file as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx


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
        """True if it runs graphs of its own, as If, Loop and Scan do."""
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
                wanted.update(captured(node.proto))
    return kept[::-1]


def captured(proto: onnx.NodeProto) -> set[str]:
    """Every name that the bodies of a control-flow node mention."""
    names: set[str] = set()
    for attribute in proto.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                names.update(inner.input)
                names.update(captured(inner))
    return names
