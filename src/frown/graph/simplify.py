"""Rewrite a graph as an equal one with fewer nodes: unread ones dropped, neighbours merged, slices
taken where their entries come from.

Meant for graphs in float64: products of weights are rounded once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from frown.graph.affine import (
    Combine,
    Concat,
    Conv,
    ConvTranspose,
    Linear,
    Permute,
    Reshape,
    Scale,
    Slice,
)
from frown.graph.graph import Graph, Input, Node
from frown.graph.op import Nonlinear, Op, Shape, SharedTensors


def simplify(graph: Graph) -> Graph:
    """An equal graph, to rounding, with fewer nodes; a merged node keeps the outer one's name.

    Two nodes merge only where nothing else reads the inner one, and two matrices only where their
    product holds no more numbers than both. Equal tensors are stored once. The output stays last.
    """
    nodes = hoist(graph.nodes)
    pool = SharedTensors()
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


def _merge(nodes: tuple[Node, ...], pool: SharedTensors) -> tuple[Node, ...]:
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


def _scale_weights(outer: Scale, inner: Linear | Conv | ConvTranspose, between: Shape) -> Op | None:
    dims = inner.weight.dim() - 2
    line = _along(outer, between, len(between) - dims - 1)
    if line is None:
        return None
    factor, offset = line
    if isinstance(inner, ConvTranspose):
        # weight is (in, out / groups, *kernel); a group's inputs reach only its own outputs.
        grouped = inner.weight.reshape(inner.groups, -1, *inner.weight.shape[1:])
        scaled = grouped * factor.reshape(inner.groups, 1, -1, *([1] * dims))
        weight = scaled.reshape(inner.weight.shape)
    else:
        weight = inner.weight * factor.reshape(-1, 1, *([1] * dims))
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
    (Reshape, Reshape): lambda outer, inner, _: Reshape(inner.source, outer.target),
    (Permute, Permute): lambda outer, inner, _: Permute(tuple(inner.axes[a] for a in outer.axes)),
    (Scale, Scale): lambda a, b, _: Scale(a.factor * b.factor, a.factor * b.offset + a.offset),
    (Scale, Linear): _scale_weights,
    (Scale, Conv): _scale_weights,
    (Scale, ConvTranspose): _scale_weights,
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


def hoist(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Move every slice as near to the input as it can go, past what only moves or joins entries.

    A recurrent layer joins the outputs of all its frames, and most readers want the last one.
    Behind a slice that looks through the joint, what nobody reads is no longer computed.
    The last node is the output's; nodes that nothing reads any longer are kept.
    """
    work = _Hoist()
    place: list[int] = []
    for node in nodes:
        moved = replace(node, inputs=tuple(place[j] for j in node.inputs))
        if isinstance(node.op, Slice):
            place.append(work.cut(node.op, moved.inputs[0], node.name))
        else:
            place.append(work.keep(moved))
    if place[-1] != len(work.nodes) - 1:  # the output itself was such a slice
        shape = work.nodes[place[-1]].shape
        work.nodes.append(Node(nodes[-1].name, Reshape(shape, shape), (place[-1],), shape))
    return tuple(work.nodes)


@dataclass
class _Hoist:
    nodes: list[Node] = field(default_factory=list)
    made: dict[tuple[Op, tuple[int, ...]], int] = field(default_factory=dict)

    def keep(self, node: Node) -> int:
        """A node as it is, or the one that already moves the same entries alike."""
        moves = isinstance(node.op, Slice | Permute | Reshape | Concat)
        key = (node.op, node.inputs)
        if moves and key in self.made:
            return self.made[key]
        self.nodes.append(node)
        if moves:
            self.made[key] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def cut(self, window: Slice, source: int, name: str) -> int:
        """The node that holds a window of a node's value."""
        kept = range(window.start, window.stop, window.step)
        if len(kept) == window.source[window.axis]:
            return source
        inner = self.nodes[source]
        match inner.op:
            case Slice(shape, axis, start, stop, step) if axis == window.axis:
                whole = range(start, stop, step)[window.start : window.stop : window.step]
                return self.cut(_slice(shape, axis, whole), inner.inputs[0], name)
            case Permute(axes):
                before = self.nodes[inner.inputs[0]].shape
                cut = self.cut(_slice(before, axes[window.axis], kept), inner.inputs[0], name)
                return self.add(name, inner.op, cut)
            case Reshape(shape, target):
                place = _same_axis(shape, target, window.axis)
                if place is not None:
                    cut = self.cut(_slice(shape, place, kept), inner.inputs[0], name)
                    after = window.shape(target)
                    return self.add(name, Reshape(self.nodes[cut].shape, after), cut)
            case Concat(axis, sizes) if axis != window.axis:
                parts = [
                    self.cut(_slice(self.nodes[j].shape, window.axis, kept), j, name)
                    for j in inner.inputs
                ]
                return self.add(name, Concat(axis, sizes), *parts)
            case Concat(axis, sizes):
                start = 0
                for j, size in zip(inner.inputs, sizes, strict=True):
                    if start <= kept[0] and kept[-1] < start + size:
                        inside = range(kept[0] - start, kept[-1] - start + 1, kept.step)
                        return self.cut(_slice(self.nodes[j].shape, axis, inside), j, name)
                    start += size
        return self.add(name, window, source)

    def add(self, name: str, op: Op, *inputs: int) -> int:
        shape = op.shape(*(self.nodes[j].shape for j in inputs))
        return self.keep(Node(name, op, inputs, shape))


def _slice(source: Shape, axis: int, kept: range) -> Slice:
    return Slice(source, axis, kept[0], kept[-1] + 1, kept.step)


def _same_axis(source: Shape, target: Shape, axis: int) -> int | None:
    """The axis of `source` whose entries `axis` of `target` counts, if there is one.

    It is the same where a reshape leaves all that stands before and behind it together.
    """
    wanted = prod(target[:axis]), target[axis], prod(target[axis + 1 :])
    for place, size in enumerate(source):
        if (prod(source[:place]), size, prod(source[place + 1 :])) == wanted:
            return place
    return None
