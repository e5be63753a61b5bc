"""Gates found in a graph: the product of a sigmoid and what it lets through."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frown.graph.affine import Scale
from frown.graph.graph import Graph, Node
from frown.graph.op import Op, Selection
from frown.graph.selection import Concat
from frown.relax.gate import Gate, GatedState, GatedTanh
from frown.relax.product import Product
from frown.relax.s_shaped import Sigmoid, Tanh

GATES = ("composed", "joint")


def fuse(graph: Graph) -> Graph:
    """The same function, with sigmoid(x) tanh(y), sigmoid(x) y and (1 - sigmoid(x)) y as one
    operator each. Operators that only move entries may stand in between. Nodes that nothing
    reads any more stay, for `simplify` to drop."""
    work = _Rewriting([], [])
    for node in graph.nodes:
        inputs = tuple(work.place[j] for j in node.inputs)
        found = work.gate(node, inputs[0]) if isinstance(node.op, Product) else None
        if found is None:
            work.nodes.append(replace(node, inputs=inputs))
            found = len(work.nodes) - 1
        work.place.append(found)
    return Graph(tuple(work.nodes), graph.dtype, graph.device)


@dataclass(frozen=True)
class _Rewriting:
    """The new nodes so far, and where each old one stands among them."""

    nodes: list[Node]
    place: list[int]

    def gate(self, node: Node, pair: int) -> int | None:
        """The product of a pair as a gate, if it is one."""
        both = self.nodes[pair]
        if not (isinstance(both.op, Concat) and both.op.sizes == (1, 1)):
            return None
        for first, second in (both.inputs, both.inputs[::-1]):
            x = self.behind(first, Sigmoid)
            if x is None:
                continue
            y = self.behind(second, Tanh)
            op: Gate = GatedState() if y is None else GatedTanh()
            stacked = self.add(node.name, both.op, x, second if y is None else y)
            return self.add(node.name, op, stacked)
        return None

    def behind(self, factor: int, activation: type[Op]) -> int | None:
        """What the activation that computes a factor reads, its entries moved likewise."""
        node = self.nodes[factor]
        if isinstance(node.op, activation):
            return node.inputs[0]
        op: Op | None = node.op if isinstance(node.op, Selection) else None
        if activation is Sigmoid and isinstance(node.op, Scale) and _is(node.op, -1.0, 1.0):
            # 1 - sigmoid(x) = sigmoid(-x)
            op = Scale(node.op.factor, torch.zeros_like(node.op.offset))
        if op is None:
            return None
        inner = self.behind(node.inputs[0], activation)
        return None if inner is None else self.add(node.name, op, inner)

    def add(self, name: str, op: Op, *inputs: int) -> int:
        shape = op.shape(*(self.nodes[j].shape for j in inputs))
        self.nodes.append(Node(name, op, inputs, shape))
        return len(self.nodes) - 1


def _is(op: Scale, factor: float, offset: float) -> bool:
    def all_are(values: Tensor, number: float) -> bool:
        return bool((values == number).all())

    return all_are(op.factor, factor) and all_are(op.offset, offset)
