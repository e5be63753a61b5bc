"""Slices taken where their entries come from, past what only moves or joins entries.

A recurrent layer joins the outputs of all its frames, and most readers want the last one.
Behind a slice that looks through the joint, what nobody reads is no longer computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from frown.graph.graph import Node
from frown.graph.op import Op, Shape
from frown.graph.selection import Concat, Permute, Reshape, Slice


def hoist(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Move every slice as near to the input as it can go.

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
