"""The part of a graph that a window of one node reads.

In a convolutional network a neuron depends on a patch of every earlier layer. Going back
from the window, each operator says which window of its inputs it reads; windows of branches
that meet are joined. What lies in the padding is cut off, so the cropped graph computes the
very same numbers. Windows in the middle of an image differ by a shift alone: they share one
cropped graph, which `Needs.key` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from frown.graph.affine import Combine, Concat, Conv, Gather, Linear, Pad, Reshape, Scale, Sum
from frown.graph.graph import Graph, Input, Node
from frown.graph.op import Nonlinear, Op, Selection, Shape, Window, sliced

Key = tuple[object, ...]
_Add = Callable[..., int]  # (name, op, *inputs) -> the node added


@dataclass(frozen=True, slots=True)
class Needs:
    """The windows of earlier nodes that a window of a node reads.

    `windows` are those of every node on the way; `wants` are the windows that its operator asks of
    its inputs, which for convolutions reach into the padding.
    """

    windows: dict[int, Window]
    wants: dict[int, tuple[Window, ...]]
    key: Key  # equal where windows differ by a shift alone


@dataclass(frozen=True)
class Cropper:
    """Cuts windows out of one graph; finds once which operators only move entries."""

    graph: Graph
    moves: dict[int, tuple[int, Tensor]]  # node -> root, each entry's place in it

    @classmethod
    def of(cls, graph: Graph) -> Cropper:
        return cls(graph, {})

    def needs(self, target: int, window: Window) -> Needs | None:
        """The windows that a window of `target` reads; None where an operator cannot say."""
        pending, wants = {target: window}, {}
        windows: dict[int, Window] = {}
        for i in range(target, -1, -1):
            if i not in pending:
                continue
            asked = self._wants(i, pending[i])
            if asked is None or (i == target and asked[0] != window):
                return None
            windows[i], wants[i] = asked
            for j, want in zip(self.inputs(i), wants[i], strict=True):
                part = _clip(want, self.graph.nodes[j].shape)
                if part is None:
                    return None
                pending[j] = _join(pending[j], part) if j in pending else part
        key = tuple(self._key(i, windows, wants[i]) for i in sorted(windows))
        return Needs(windows, wants, key)

    def crop(self, needs: Needs) -> tuple[Graph, dict[int, int]]:
        """The cropped graph, and where each node stands in it."""
        nodes: list[Node] = []
        where: dict[int, int] = {}

        def add(name: str, op: Op, *inputs: int) -> int:
            shape = op.shape(*(nodes[j].shape for j in inputs))
            nodes.append(Node(name, op, inputs, shape))
            return len(nodes) - 1

        def fit(j: int, want: Window) -> tuple[int, tuple[tuple[int, int], ...]]:
            """Cut node j down to what is wanted; also how much is missing around it."""
            have = needs.windows[j]
            widths = [(h[0] - w[0], w[1] - h[1]) for h, w in zip(have, want, strict=True)]
            cut = tuple((min(a, 0), min(b, 0)) for a, b in widths)
            local = where[j]
            if any(a or b for a, b in cut):
                local = add("fit", Pad(nodes[local].shape, cut), local)
            return local, tuple((max(a, 0), max(b, 0)) for a, b in widths)

        for i in sorted(needs.windows):
            node, window = self.graph.nodes[i], needs.windows[i]
            if isinstance(node.op, Input):
                shape = tuple(b - a for a, b in window)
                nodes.append(Node(node.name, Input(shape), (), shape))
                where[i] = len(nodes) - 1
                continue
            ends = [fit(j, w) for j, w in zip(self.inputs(i), needs.wants[i], strict=True)]
            local = [end[0] for end in ends]
            if isinstance(node.op, Conv):
                where[i] = _convolve(node, local[0], ends[0][1], nodes, add)
            elif isinstance(node.op, Pad):
                op = Pad(nodes[local[0]].shape, ends[0][1], node.op.value)
                where[i] = add(node.name, op, local[0])
            elif isinstance(node.op, Selection):
                where[i] = self._move(i, window, needs.wants[i][0], local[0], nodes, add)
            else:
                where[i] = add(node.name, _local(node.op, window, nodes, local), *local)
        return Graph(tuple(nodes), self.graph.dtype, self.graph.device), where

    def inputs(self, i: int) -> tuple[int, ...]:
        """The nodes that node i reads, looking through operators that only move entries."""
        node = self.graph.nodes[i]
        return (self._moves(i)[0],) if isinstance(node.op, Selection) else node.inputs

    # -- one node -----------------------------------------------------------------

    def _wants(self, i: int, window: Window) -> tuple[Window, tuple[Window, ...]] | None:
        """The node's window, widened to what its operator can give, and what that reads."""
        node = self.graph.nodes[i]
        sources = [self.graph.nodes[j].shape for j in self.inputs(i)]
        match node.op:
            case Input():
                return window, ()
            case Conv() as op:
                dims = len(op.source)
                lead = window[: -dims - 1]
                taps = zip(
                    window[-dims:],
                    op.stride,
                    op.padding,
                    op.dilation,
                    op.weight.shape[2:],
                    strict=True,
                )
                reach = [
                    (a * s - p, (b - 1) * s - p + d * (k - 1) + 1) for (a, b), s, p, d, k in taps
                ]
                channels = (0, sources[0][-dims - 1])
                own = (*lead, (0, node.shape[-dims - 1]), *window[-dims:])
                return own, ((*lead, channels, *reach),)
            case Pad(_, widths):
                inner = [(a - w, b - w) for (a, b), (w, _) in zip(window, widths, strict=True)]
                return window, (tuple(inner),)
            case Selection():
                _, index = self._moves(i)
                return window, (_hull(sliced(index, window), sources[0]),)
            case Combine() | Scale():
                return window, tuple(window for _ in sources)
            case Concat(axis):
                own = (*window[:axis], (0, node.shape[axis]), *window[axis + 1 :])
                parts = [(*own[:axis], (0, s[axis]), *own[axis + 1 :]) for s in sources]
                return own, tuple(parts)
            case Sum(source, axes):
                return window, (
                    tuple((0, n) if k in axes else window[k] for k, n in enumerate(source)),
                )
            case Linear():
                own = (*window[:-1], (0, node.shape[-1]))
                return own, ((*window[:-1], (0, sources[0][-1])),)
            case Nonlinear() as op:
                found = op.crop(window, sources[0])
                if found is not None:
                    return window, (found[0],)
        return whole(node.shape), tuple(whole(s) for s in sources)

    def _moves(self, i: int) -> tuple[int, Tensor]:
        """The node behind a chain of operators that only move entries, and where each entry
        of node i stands in it."""
        if i not in self.moves:
            (j,) = self.graph.nodes[i].inputs
            if isinstance(self.graph.nodes[j].op, Selection):
                root, index = self._moves(j)
            else:
                source = self.graph.nodes[j].shape
                root, index = j, torch.arange(prod(source), device=self.graph.device).view(source)
            self.moves[i] = root, self.graph.nodes[i].op.apply(index[None])[0]
        return self.moves[i]

    def _move(
        self, i: int, window: Window, want: Window, source: int, nodes: list[Node], add: _Add
    ) -> int:
        """The entries of a window, picked from the window of the root that was wanted."""
        root, index = self._moves(i)
        shape, local = self.graph.nodes[root].shape, nodes[source].shape
        place = _relative(sliced(index, window), shape, want)
        name, target = self.graph.nodes[i].name, tuple(place.shape)
        flat, size = place.flatten(), prod(local)
        if len(flat) == size and bool((flat == torch.arange(size, device=flat.device)).all()):
            return source if target == local else add(name, Reshape(local, target), source)
        # Leading axes that stay as they are need not be picked one by one.
        lead = 1
        for a, b in zip(target, local, strict=False):
            deeper, block = lead * a, size // (lead * max(a, 1))
            if a != b or len(flat) % deeper:
                break
            rows = place.reshape(deeper, -1)
            offset = torch.arange(deeper, device=flat.device)[:, None] * block
            if not bool((rows - offset == rows[:1]).all()):
                break
            lead = deeper
        folded = add(name, Reshape(local, (lead, size // lead)), source)
        picked = add(name, Gather((lead, size // lead), 1, place.reshape(lead, -1)[0]), folded)
        return add(name, Reshape(nodes[picked].shape, target), picked)

    def _key(self, i: int, windows: dict[int, Window], wants: tuple[Window, ...]) -> Key:
        node, own = self.graph.nodes[i], windows[i]
        shape = tuple(b - a for a, b in own)
        ends = []
        for j, want in zip(self.inputs(i), wants, strict=True):
            have = windows[j]
            ends.append(tuple((w[0] - h[0], w[1] - h[0]) for h, w in zip(have, want, strict=True)))
        extra: list[bytes] = []
        if isinstance(node.op, Selection):
            root, index = self._moves(i)
            place = _relative(sliced(index, own), self.graph.nodes[root].shape, wants[0])
            extra.append(place.cpu().numpy().tobytes())
        elif isinstance(node.op, Scale | Nonlinear):
            for t in node.op.tensors().values():
                part = sliced(t, own)
                if part.shape != t.shape:
                    extra.append(part.contiguous().cpu().numpy().tobytes())
        return (i, shape, tuple(ends), tuple(extra))


def whole(shape: Shape) -> Window:
    return tuple((0, n) for n in shape)


def entries(window: Window, shape: Shape) -> Tensor:
    """Flat indices of a window's entries in a tensor of this shape."""
    index = torch.zeros((), dtype=torch.int64)
    for (a, b), n in zip(window, shape, strict=True):
        index = index[..., None] * n + torch.arange(a, b)
    return index.flatten()


def _convolve(
    node: Node, source: int, missing: tuple[tuple[int, int], ...], nodes: list[Node], add: _Add
) -> int:
    """The convolution, with as much padding as its window reaches into."""
    op = node.op
    assert isinstance(op, Conv)
    dims = len(op.source)
    around = missing[-dims:]
    if any(a != b for a, b in around):
        source = add("fit", Pad(nodes[source].shape, missing), source)
        around = ((0, 0),) * dims
    local = replace(op, source=nodes[source].shape[-dims:], padding=tuple(a for a, _ in around))
    return add(node.name, local, source)


def _local(op: Op, window: Window, nodes: list[Node], local: Sequence[int]) -> Op:
    """An operator over a window of its output."""
    shapes = [nodes[j].shape for j in local]
    match op:
        case Scale(factor, offset):
            return Scale(sliced(factor, window), sliced(offset, window))
        case Sum(_, axes):
            return Sum(shapes[0], axes)
        case Nonlinear():
            found = op.crop(window, shapes[0])
            return op if found is None else found[1]
    return op


def _hull(index: Tensor, shape: Shape) -> Window:
    """The smallest window that holds these entries."""
    window = []
    for n in reversed(shape):
        place = index % n
        index = index // n
        window.append((int(place.min()), int(place.max()) + 1))
    return tuple(reversed(window))


def _relative(index: Tensor, shape: Shape, window: Window) -> Tensor:
    """Flat indices of a tensor of this shape as flat indices of a window of it."""
    place, step = torch.zeros_like(index), 1
    for n, (a, b) in zip(reversed(shape), reversed(window), strict=True):
        place = place + (index % n - a) * step
        index, step = index // n, step * (b - a)
    return place


def _clip(window: Window, shape: Shape) -> Window | None:
    inside = tuple((max(a, 0), min(b, n)) for (a, b), n in zip(window, shape, strict=True))
    return inside if all(a < b for a, b in inside) else None


def _join(one: Window, other: Window) -> Window:
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
