"""The call that a handler of an ONNX operator is given, and the registry of handlers.

A handler maps a `Call` to the node's outputs: views of the graph under construction, or constant
arrays. Constants are kept as they are in the file: floats widened to float64, which is exact, and
integers in their own type. A node is refused if it has no handler or an attribute that its handler
does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frown_check.balls import Ball, U, up
from frown_check.errors import Refused
from frown_check.functions import Function
from frown_check.graph import MOST_ENTRIES, Apply, Graph, Join, Linear, Scale, View

Constant = NDArray[Any]
Value = View | Constant


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node of the file; `name` is that of its first output where it has none."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    last: bool = False  # whether it, and all that follows, keeps the order of the outputs


@dataclass(frozen=True)
class Call:
    graph: Graph
    node: OnnxNode
    opset: int
    inputs: Sequence[Value | None]

    # -- what the node says ----------------------------------------------------------

    def refuse(self, why: str) -> Refused:
        return Refused(f"{self.node.op} at {self.node.name}: {why} is not supported by the checker")

    def refuse_if(self, wrong: object, why: str) -> None:
        if wrong:
            raise self.refuse(why)

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        found = self.inputs[i] if self.has(i) else None
        if found is None:
            raise self.refuse(f"without input {i} it")
        return found

    def view(self, i: int = 0) -> View:
        found = self.value(i)
        if not isinstance(found, View):
            raise self.refuse(f"a constant input {i}")
        return found

    def constant(self, i: int) -> Constant:
        found = self.value(i)
        if isinstance(found, View):
            raise self.refuse(f"a computed input {i}")
        return found

    def values(self) -> list[Value]:
        return [self.value(i) for i in range(len(self.inputs))]

    def floats(self, i: int) -> Constant:
        return self.finite(self.constant(i))

    def finite(self, x: Constant | float) -> Constant:
        """The numbers as float64, which has all integers below 2^53."""
        given = np.asarray(x)
        found = given.astype(np.float64)
        self.refuse_if(not np.isfinite(found).all(), "a constant that is infinite or NaN")
        if given.dtype.kind in "iu" and (np.abs(found) >= 2.0**53).any():
            raise self.refuse("a constant integer of 2^53 or more")
        return found

    def integers(self, i: int) -> list[int]:
        found = self.constant(i)
        self.refuse_if(found.dtype.kind not in "iu", f"an input {i} that is not of integers")
        return [int(n) for n in found.ravel()]

    def attribute(self, name: str, default: Any) -> Any:
        return self.node.attributes.get(name, default)

    def number(self, name: str, default: float) -> float:
        """A float attribute. They are float32 numbers, and so are their defaults."""
        found = float(np.float32(self.attribute(name, default)))
        self.refuse_if(not isfinite(found), f"attribute {name}={found}")
        return found

    def list(self, name: str, i: int | None = None) -> list[int] | None:
        """An attribute of integers, which newer opsets may have moved to input i."""
        if i is not None and self.has(i):
            return self.integers(i)
        found = self.attribute(name, None)
        return None if found is None else [int(n) for n in found]

    def axis(self, axis: int, rank: int) -> int:
        self.refuse_if(not -rank <= axis < rank, f"axis {axis} of a tensor of rank {rank}")
        return axis % rank

    # -- what it adds to the graph ------------------------------------------------------

    def scale(
        self, x: View, factor: Ball | Constant | float, offset: Ball | Constant | None = None
    ) -> View:
        """factor x + offset with numpy's broadcasting; numbers that are no balls are exact."""
        parts = [
            b if isinstance(b, Ball) else Ball(self.finite(b))
            for b in (factor, offset)
            if b is not None
        ]
        shape = together(x.shape, *(b.mid.shape for b in parts))
        wide = [b.map(lambda a: np.broadcast_to(a, shape).reshape(-1)) for b in parts]
        op = Scale(wide[0], wide[1] if len(wide) > 1 else None)
        return self.graph.add(op, [broadcast(x, shape)], shape)

    def linear(self, x: View, weight: Ball, bias: Ball | None = None) -> View:
        """x (groups, places, inputs) times weight (groups, inputs, outputs)."""
        groups, places, inner = x.shape
        if weight.mid.shape[:2] != (groups, inner):
            raise self.refuse(f"weights of shape {weight.mid.shape} for an input of {x.shape}")
        op = Linear(weight, bias, places)
        return self.graph.add(op, [x], (groups, places, weight.mid.shape[2]))

    def sum(self, x: View, signs: Sequence[float] | None = None) -> View:
        """The sum over the last axis, with signs."""
        count = x.shape[-1]
        weights = np.ones(count) if signs is None else np.array(signs, dtype=np.float64)
        flat = View(x.node, x.index.reshape(1, -1, count))
        return moved(self.linear(flat, Ball(weights.reshape(1, count, 1))), x.shape[:-1])

    def join(self, views: Sequence[View]) -> Sequence[View]:
        """Views with the same entries, all of one node."""
        if len({v.node for v in views}) == 1:
            return views
        sizes = [v.index.size for v in views]
        whole = self.graph.add(Join(sizes), views, (sum(sizes),))
        starts = np.cumsum([0, *sizes])
        return [
            View(whole.node, np.arange(a, b).reshape(v.shape))
            for a, b, v in zip(starts, starts[1:], views)
        ]

    def stack(self, views: Sequence[View], axis: int = -1) -> View:
        """Views, broadcast to one shape, side by side on a new axis."""
        shape = together(*(v.shape for v in views))
        same = self.join([broadcast(v, shape) for v in views])
        return View(same[0].node, np.stack([v.index for v in same], axis))

    def apply(self, x: View, function: Function) -> View:
        """A site of one variable."""
        return self.graph.add(Apply(self.node.name, function), [x], x.shape)

    def apply_last(self, x: View, kind: str) -> View:
        """A site of the variables on the last axis."""
        op = Apply(self.node.name, kind, x.shape[-1])
        return self.graph.add(op, [x], x.shape[:-1])


def moved(x: View, shape: Sequence[int]) -> View:
    return View(x.node, x.index.reshape(shape))


def together(*shapes: Sequence[int]) -> tuple[int, ...]:
    """numpy's broadcasting, of what fits into memory."""
    shape = np.broadcast_shapes(*map(tuple, shapes))
    if prod(shape) > MOST_ENTRIES:
        raise Refused(f"a tensor of shape {shape} is too large for the checker")
    return shape


def broadcast(x: View, shape: Sequence[int]) -> View:
    return View(x.node, np.broadcast_to(x.index, shape))


def quotient(x: Constant | float, y: Constant | float) -> Ball:
    """x / y, entry by entry, of finite floats."""
    with np.errstate(all="ignore"):
        mid = np.divide(x, y, dtype=np.float64)
    return Ball(mid, up(2 * U * np.abs(mid), 1))


Handler = Callable[[Call], Value | Sequence[Value]]
HANDLERS: dict[str, tuple[Handler, frozenset[str]]] = {}


def operator(*names: str, attributes: str = "") -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = (handler, frozenset(attributes.split()))
        return handler

    return register


def indexed(x: Value, move: Callable[[Any], Any]) -> Value:
    """Apply an operator that only moves entries to a constant, or to a view's index."""
    return View(x.node, move(x.index)) if isinstance(x, View) else move(x)
