"""The nodes of an ONNX file, the calls that handlers of operators get, and their one registry.

A handler is a function from a `Call` to the node's outputs. It sees computed inputs as `Value`s of
the graph under construction and constant inputs as tensors, and raises `Unsupported` where the node
asks for something that has no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import onnx
from torch import Tensor

from frown.graph import Builder, Operand, Shape, Unsupported, Value


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
        self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: dict[str, Any]
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


def bodies(proto: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs of a control-flow node."""
    for attribute in proto.attribute:
        yield from (attribute.g, *attribute.graphs)


def captured(proto: onnx.NodeProto) -> set[str]:
    """Every name that the bodies of a control-flow node mention."""
    names: set[str] = set()
    for inner in (node for body in bodies(proto) for node in body.node):
        names.update(inner.input, captured(inner))
    return names


@dataclass(frozen=True, slots=True)
class Call:
    """One ONNX node whose inputs are known; an input left out is None."""

    build: Builder
    op: str
    opset: int
    attributes: dict[str, Any]
    inputs: tuple[Operand | None, ...]
    outputs: int

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def operand(self, index: int) -> Operand:
        """An input that may be computed or constant."""
        found = self.inputs[index] if self.has(index) else None
        if found is None:
            raise Unsupported(f"input {index} is missing")
        return found

    def value(self, index: int = 0) -> Value:
        """An input that is computed from the network's input."""
        found = self.operand(index)
        if isinstance(found, Tensor):
            raise Unsupported(f"input {index} is constant while another is computed")
        return found

    def constant(self, index: int, what: str) -> Tensor:
        """An input that must not depend on the network's input."""
        found = self.operand(index)
        if isinstance(found, Value):
            raise Unsupported(f"{what} computed from the network's input")
        return found

    def integers(self, index: int, what: str) -> tuple[int, ...]:
        return tuple(int(n) for n in self.constant(index, what).flatten().tolist())

    def number(self, name: str, default: float) -> float:
        """A float attribute, which must be finite. Files hold float32 numbers, and so are
        their defaults."""
        found = float(self.attributes.get(name, np.float32(default)))
        if not isfinite(found):
            raise Unsupported(f"attribute {name}={found}")
        return found

    def integer(self, name: str, default: int) -> int:
        return int(self.attributes.get(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attributes.get(name, default))

    def text(self, name: str, default: str) -> str:
        return str(self.attributes.get(name, default))

    def list(self, name: str) -> tuple[int, ...] | None:
        """A list-of-integers attribute, None where the node leaves it out."""
        found = self.attributes.get(name)
        return None if found is None else tuple(int(n) for n in found)

    def list_or_input(self, name: str, index: int) -> tuple[int, ...] | None:
        """A list that newer opsets moved from attribute `name` to input `index`."""
        return self.integers(index, name) if self.has(index) else self.list(name)

    def refuse_attribute(self, name: str) -> Unsupported:
        """The error that this attribute's value has no bounds."""
        return Unsupported(f"attribute {name}={self.attributes.get(name)!r}")


Outputs = Operand | Sequence[Operand | None]  # None: an output that has no bounds


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler and the attributes it honours; a node with any other is refused."""

    convert: Callable[[Call], Outputs]
    attributes: frozenset[str]


HANDLERS: dict[str, Handler] = {}


def handles(
    *operators: str, attributes: str = ""
) -> Callable[[Callable[[Call], Outputs]], Callable[[Call], Outputs]]:
    """Register a handler for operators of the standard domain.

    `attributes` names, separated by spaces, all that the handler honours.
    """

    def register(convert: Callable[[Call], Outputs]) -> Callable[[Call], Outputs]:
        for operator in operators:
            HANDLERS[operator] = Handler(convert, frozenset(attributes.split()))
        return convert

    return register


def axes_once(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """`axes` counted from the front; Unsupported where one is given twice, of which the standard
    says nothing."""
    places = tuple(axis_of(a, rank) for a in axes)
    if len(set(places)) != len(places):
        raise Unsupported(f"axes {tuple(axes)}, one of them twice")
    return places


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front; Unsupported where there is none such."""
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for i, n in enumerate(shape) if i not in axes)
