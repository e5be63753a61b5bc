"""Rewrite a graph as an equal one with fewer nodes: unread ones dropped, neighbours merged.

Meant for graphs in float64: products of weights are rounded once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from frown.graph.affine import Combine, Conv, ConvTranspose, Linear, Scale
from frown.graph.graph import Graph, Input, Node
from frown.graph.hoist import hoist
from frown.graph.op import Nonlinear, Op, Shape
from frown.graph.selection import Permute, Reshape
from frown.graph.sharing import Pool


def simplify(graph: Graph) -> Graph:
    """An equal graph, to rounding, with fewer nodes; a merged node keeps the outer one's name.

    Two nodes merge only where nothing else reads the inner one, and two matrices only where their
    product holds no more numbers than both. Equal tensors are stored once. The output stays last.
    """
    nodes = hoist(graph.nodes)
    pool = Pool()
    while True:
        fewer = _merge(_without_identities(nodes), pool)
        if len(fewer) == len(nodes):
            return Graph(nodes, graph.dtype, graph.device)
        nodes = fewer


def tidy(graph: Graph) -> Graph:
    """An equal graph, exactly: slices are taken early, and nodes without effect dropped."""
    return Graph(_without_identities(hoist(graph.nodes)), graph.dtype, graph.device)


def without_batch_axis(graph: Graph) -> Graph:
    """An equal graph without the leading axis of 1 that all nodes carry along.

    The graph itself where an operator might depend on that axis.
    """
    nodes = []
    for i, node in enumerate(graph.nodes):
        inner = _inner(node, [graph.nodes[j].shape for j in node.inputs], i == graph.output)
        if inner is None:
            return graph
        nodes.append(inner)
    return Graph(_without_identities(tuple(nodes)), graph.dtype, graph.device)


def _inner(node: Node, sources: list[Shape], last: bool) -> Node | None:
    """A node behind the first axis; None: the axis is another, or matters to the operator."""
    if last and isinstance(node.op, Reshape):  # to the output's shape, whatever that is
        return replace(node, op=Reshape(node.op.source[1:], node.op.target))
    if len(node.shape) < 2 or node.shape[0] != 1:
        return None
    op, shape = node.op, node.shape[1:]
    match op:
        case Input():
            return replace(node, op=Input(shape), shape=shape)
        case Linear() | Combine():
            return replace(node, shape=shape)
        case Reshape(source, target):
            return replace(node, op=Reshape(source[1:], target[1:]), shape=shape)
        case Nonlinear() if not op.tensors() and op.shape(*(s[1:] for s in sources)) == shape:
            return replace(node, shape=shape)
    return None


def _without_identities(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    stands_for: list[int] = []
    for i, node in enumerate(nodes):
        is_same = _is_identity(node, nodes[node.inputs[0]].shape) if node.inputs else False
        stands_for.append(stands_for[node.inputs[0]] if is_same else i)
    rewired = [replace(n, inputs=tuple(stands_for[j] for j in n.inputs)) for n in nodes]
    return _reachable(rewired, stands_for[-1])


def _is_identity(node: Node, source: Shape) -> bool:
    match node.op:
        case Reshape():
            return node.shape == source
        case Permute(axes):
            return axes == tuple(range(len(axes)))
        case Scale(factor, offset):
            return bool((factor == 1).all() and (offset == 0).all())
    return False


def _merge(nodes: tuple[Node, ...], pool: Pool) -> tuple[Node, ...]:
    """Each node with the one it reads, where a rule allows and nothing else reads that."""
    readers = [0] * len(nodes)
    for node in nodes:
        for j in node.inputs:
            readers[j] += 1
    merged: list[Node] = []
    for node in nodes:
        while len(node.inputs) == 1 and readers[node.inputs[0]] == 1:
            inner = merged[node.inputs[0]]
            rule = _RULES.get((type(node.op), type(inner.op)))
            op = rule(node.op, inner.op, inner.shape) if rule else None
            if op is None:
                break
            node = replace(node, op=op, inputs=inner.inputs)
        merged.append(replace(node, op=pool.shared(node.op)))
    return _reachable(merged, len(merged) - 1)


def _reachable(nodes: list[Node], output: int) -> tuple[Node, ...]:
    """The input and what `output` is computed from, in order, renumbered."""
    needed = {0, output}
    for i in range(output, 0, -1):
        if i in needed:
            needed.update(nodes[i].inputs)
    place = {old: new for new, old in enumerate(sorted(needed))}
    return tuple(
        replace(nodes[old], inputs=tuple(place[j] for j in nodes[old].inputs)) for old in place
    )


# -- rules: (outer, inner, the shape between them) -> both in one, or None --------------


def _reshape_reshape(outer: Reshape, inner: Reshape, between: Shape) -> Op | None:
    return Reshape(inner.source, outer.target)


def _permute_permute(outer: Permute, inner: Permute, between: Shape) -> Op | None:
    return Permute(tuple(inner.axes[a] for a in outer.axes))


def _scale_scale(outer: Scale, inner: Scale, between: Shape) -> Op | None:
    # a2 (a1 x + b1) + b2
    return Scale(outer.factor * inner.factor, outer.factor * inner.offset + outer.offset)


def _scale_linear(outer: Scale, inner: Linear, between: Shape) -> Op | None:
    line = _along(outer, between, len(between) - 1)
    if line is None:
        return None
    factor, offset = line
    return Linear(inner.weight * factor[:, None], inner.bias * factor + offset)


def _scale_conv(outer: Scale, inner: Conv, between: Shape) -> Op | None:
    dims = len(inner.source)
    line = _along(outer, between, len(between) - dims - 1)
    if line is None:
        return None
    factor, offset = line
    weight = inner.weight * factor.reshape(-1, 1, *([1] * dims))
    return replace(inner, weight=weight, bias=inner.bias * factor + offset)


def _scale_conv_transpose(outer: Scale, inner: ConvTranspose, between: Shape) -> Op | None:
    dims = len(inner.stride)
    line = _along(outer, between, len(between) - dims - 1)
    if line is None:
        return None
    factor, offset = line
    # weight is (in, out / groups, *kernel); a group's inputs reach only its own outputs.
    grouped = inner.weight.reshape(inner.groups, -1, *inner.weight.shape[1:])
    scaled = grouped * factor.reshape(inner.groups, 1, -1, *([1] * dims))
    weight = scaled.reshape(inner.weight.shape)
    return replace(inner, weight=weight, bias=inner.bias * factor + offset)


def _linear_scale(outer: Linear, inner: Scale, between: Shape) -> Op | None:
    line = _along(inner, between, len(between) - 1)
    if line is None:
        return None
    factor, offset = line
    return Linear(outer.weight * factor, outer.bias + outer.weight @ offset)


def _conv_scale(outer: Conv, inner: Scale, between: Shape) -> Op | None:
    dims = len(outer.source)
    line = _along(inner, between, len(between) - dims - 1)
    if line is None:
        return None
    factor, offset = line
    # Padding adds zeros behind the offset, so an offset cannot move past it.
    if any(outer.padding) and bool((offset != 0).any()):
        return None
    # weight is (out, in / groups, *kernel); a group's outputs read only its own inputs.
    grouped = outer.weight.reshape(outer.groups, -1, *outer.weight.shape[1:])
    per_input = (outer.groups, 1, -1, *([1] * dims))
    weight = (grouped * factor.reshape(per_input)).reshape(outer.weight.shape)
    added = (grouped * offset.reshape(per_input)).flatten(2).sum(2).reshape(-1)
    return replace(outer, weight=weight, bias=outer.bias + added)


def _linear_linear(outer: Linear, inner: Linear, between: Shape) -> Op | None:
    rows, columns = outer.weight.shape[0], inner.weight.shape[1]
    if rows * columns > outer.weight.numel() + inner.weight.numel():
        return None
    return Linear(outer.weight @ inner.weight, outer.weight @ inner.bias + outer.bias)


_RULES: dict[tuple[type[Op], type[Op]], Callable[..., Op | None]] = {
    (Reshape, Reshape): _reshape_reshape,
    (Permute, Permute): _permute_permute,
    (Scale, Scale): _scale_scale,
    (Scale, Linear): _scale_linear,
    (Scale, Conv): _scale_conv,
    (Scale, ConvTranspose): _scale_conv_transpose,
    (Linear, Scale): _linear_scale,
    (Conv, Scale): _conv_scale,
    (Linear, Linear): _linear_linear,
}


def _along(op: Scale, shape: Shape, axis: int) -> tuple[Tensor, Tensor] | None:
    """Factor and offset as vectors along `axis`, or None where they vary along another."""
    factor, offset = (_vector(t, shape, axis) for t in (op.factor, op.offset))
    return None if factor is None or offset is None else (factor, offset)


def _vector(values: Tensor, shape: Shape, axis: int) -> Tensor | None:
    everywhere = values.expand(shape)
    first = everywhere.movedim(axis, 0).reshape(shape[axis], -1)[:, 0]
    like = [1] * len(shape)
    like[axis] = -1
    return first if torch.equal(everywhere, first.reshape(like).expand(shape)) else None
