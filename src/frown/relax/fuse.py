"""Gates found in a graph: products of a sigmoid become one function of two variables."""

from __future__ import annotations

from dataclasses import replace

import torch

from frown.graph.affine import Scale
from frown.graph.graph import Graph, Node
from frown.graph.op import Op, Selection
from frown.graph.selection import Concat
from frown.relax.gate import Gate, GatedState, GatedTanh
from frown.relax.product import Product
from frown.relax.s_shaped import Sigmoid, Tanh


def fuse(graph: Graph) -> Graph:
    """The same function with gates in place of products of gates."""
    nodes: list[Node] = []
    place: list[int] = []  # where each old node stands now

    def add(name: str, op: Op, *inputs: int) -> int:
        shape = op.shape(*(nodes[j].shape for j in inputs))
        nodes.append(Node(name, op, inputs, shape))
        return len(nodes) - 1

    def behind(factor: int) -> tuple[Op, int, list[Op]]:
        """The operator that computes a factor, and the selections after it."""
        moves: list[Op] = []
        while isinstance(nodes[factor].op, Selection):
            moves.append(nodes[factor].op)
            (factor,) = nodes[factor].inputs
        return nodes[factor].op, factor, moves[::-1]

    for node in graph.nodes:
        inputs = tuple(place[j] for j in node.inputs)
        pair = nodes[inputs[0]] if isinstance(node.op, Product) else None
        if pair is not None and isinstance(pair.op, Concat) and pair.op.sizes == (1, 1):
            found = [behind(j) for j in pair.inputs]
            if not isinstance(found[0][0], Sigmoid):
                found.reverse()
                sides = pair.inputs[::-1]
            else:
                sides = pair.inputs
            (op, gate, moves), (other, state, others) = found
            if isinstance(op, Sigmoid) and not isinstance(other, Sigmoid):
                (x,) = nodes[gate].inputs
                for move in moves:
                    x = add(node.name, move, x)
                y = sides[1]
                if isinstance(other, Tanh):
                    (y,) = nodes[state].inputs
                    for move in others:
                        y = add(node.name, move, y)
                both = add(node.name, pair.op, x, y)
                place.append(add(node.name, GatedTanh() if isinstance(other, Tanh) else GatedState(), both))
                continue
        nodes.append(replace(node, inputs=inputs))
        place.append(len(nodes) - 1)
    from frown.graph.simplify import _reachable
    return Graph(_reachable(nodes, place[-1]), graph.dtype, graph.device)
