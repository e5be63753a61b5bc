"""Building a graph node by node; what the front ends share.

A `Value` stands for a node's output; a constant is a plain tensor. Operators of
two tensors (add, multiply, ...) accept either and fold two constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from frown.graph.affine import (
    Combine,
    Concat,
    Conv,
    ConvTranspose,
    Expand,
    Gather,
    Linear,
    Pad,
    Permute,
    Reshape,
    Scale,
    Slice,
    Sum,
)
from frown.graph.graph import Graph, Input, Node
from frown.graph.op import (
    MOST_IN_ALL,
    MOST_PRODUCTS,
    Nonlinear,
    Op,
    Shape,
    SharedTensors,
    Unsupported,
    broadcast,
    lossless,
    require_entries,
)
from frown.graph.windows import Windows, rim


@dataclass(frozen=True, slots=True)
class Value:
    """The output of a node under construction."""

    index: int
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)


Operand = Value | Tensor

_VIEWS = (Expand, Permute, Reshape, Slice)


@dataclass
class Builder:
    """Collects nodes; `scope` names the next ones after the model's own node.

    Tensors beyond MOST_ENTRIES, and networks beyond MOST_IN_ALL or MOST_PRODUCTS, raise
    Unsupported before anything of their size is made.
    """

    scope: str = ""
    entries: int = 0  # of all tensors so far that are no views
    products: int = 0  # with the weights of matrices and convolutions
    nodes: list[Node] = field(default_factory=list)
    pool: SharedTensors = field(default_factory=SharedTensors)
    # By node: a value whose entries, in their places, are in the same order of size.
    ordered: dict[int, Value] = field(default_factory=dict)

    def input(self, name: str, shape: Shape) -> Value:
        require_entries(shape, "an input")
        self.nodes.append(Node(name, Input(shape), (), shape))
        return Value(0, shape)

    def add(self, op: Op, *inputs: Value) -> Value:
        shape = op.shape(*(v.shape for v in inputs))
        if isinstance(op, Nonlinear) and shape == ():
            # Neurons are numbered along a node's axes, so a lone one needs an axis.
            lone = self.add(op, *(self.reshape(v, (1, *v.shape)) for v in inputs))
            return self.reshape(lone, ())
        count = require_entries(shape)
        if not isinstance(op, _VIEWS):
            if self.entries + count > MOST_IN_ALL:
                raise Unsupported(f"a network of more than {MOST_IN_ALL:,} entries in all")
            self.entries += count
        if isinstance(op, Linear | Conv | ConvTranspose):
            read = op.weight.numel() // op.weight.shape[1 if isinstance(op, ConvTranspose) else 0]
            self.products += count * read
            if self.products > MOST_PRODUCTS:
                raise Unsupported(f"a network of more than {MOST_PRODUCTS:,} products")
        index = len(self.nodes)
        name = self.scope or f"{type(op).__name__.lower()}_{index}"
        self.nodes.append(Node(name, self.pool.shared(op), tuple(v.index for v in inputs), shape))
        return Value(index, shape)

    def graph(self, output: Value) -> Graph:
        """The finished graph; its output is flattened to one axis."""
        nodes = self.nodes[: output.index + 1]
        if output.rank != 1:
            self.scope = "output"
            self.nodes = nodes
            self.reshape(output, (output_size(output),))
            nodes = self.nodes
        return Graph(tuple(nodes))

    # -- shapes -----------------------------------------------------------------

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        target = tuple(shape)
        return x if target == x.shape else self.add(Reshape(x.shape, target), x)

    def permute(self, x: Value, axes: Sequence[int]) -> Value:
        order = tuple(a % x.rank for a in axes)
        return x if order == tuple(range(x.rank)) else self.add(Permute(order), x)

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Broadcast to `shape`, which may have more axes than x."""
        target = tuple(shape)
        source = (1,) * (len(target) - x.rank) + x.shape
        x = self.reshape(x, source)
        return x if source == target else self.add(Expand(source, target), x)

    def slice(self, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """Python's x[start:stop:step] along `axis`, negative numbers and steps included."""
        axis %= x.rank
        kept = range(*slice(start, stop, step).indices(x.shape[axis]))
        if not kept:
            raise Unsupported(f"slice {start}:{stop}:{step} of an axis of {x.shape[axis]} is empty")
        if step < 0:
            return self.gather(x, axis, torch.tensor(list(kept)))
        if len(kept) == x.shape[axis]:
            return x
        return self.add(Slice(x.shape, axis, kept.start, kept[-1] + 1, step), x)

    def select(self, x: Value, axis: int, index: int) -> Value:
        """x[index] along `axis`, which disappears."""
        axis %= x.rank
        index %= x.shape[axis]
        kept = self.slice(x, axis, index, index + 1)
        return self.reshape(kept, x.shape[:axis] + x.shape[axis + 1 :])

    def gather(self, x: Value, axis: int, index: Tensor) -> Value:
        """x[..., index, ...]: the axes of `index` replace `axis`."""
        axis %= x.rank
        size = x.shape[axis]
        index = index.to(torch.int64)
        if index.numel() == 0 or int(index.min()) < -size or int(index.max()) >= size:
            raise Unsupported(f"indices out of range for an axis of {size}")
        target = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        require_entries(target)
        places = index.flatten() % size
        if len(places) == 1:
            return self.reshape(self.select(x, axis, int(places)), target)
        return self.reshape(self.add(Gather(x.shape, axis, places), x), target)

    def concat(self, xs: Sequence[Operand], axis: int) -> Operand:
        if all(isinstance(x, Tensor) for x in xs):
            return torch.cat([x for x in xs if isinstance(x, Tensor)], axis)
        first = next(x for x in xs if isinstance(x, Value))
        values = [x if isinstance(x, Value) else self.constant(x) for x in xs]
        axis %= first.rank
        if len(values) == 1:
            return first
        return self.add(Concat(axis, tuple(v.shape[axis] for v in values)), *values)

    def pad(
        self,
        x: Value,
        widths: Sequence[tuple[int, int]],
        mode: str = "constant",
        value: float = 0.0,
    ) -> Value:
        """Pad, or crop where a width is negative; modes constant, reflect, edge, wrap."""
        for axis, (before, after) in enumerate(widths):
            if before < 0 or after < 0:
                x = self.slice(x, axis, max(0, -before), x.shape[axis] + min(0, after))
        widths = tuple((max(0, a), max(0, b)) for a, b in widths)
        if not any(a or b for a, b in widths):
            return x
        if mode == "constant":
            return self.add(Pad(x.shape, widths, float(value)), x)
        require_entries([a + n + b for n, (a, b) in zip(x.shape, widths, strict=True)])
        for axis, (before, after) in enumerate(widths):
            if before or after:
                x = self.gather(x, axis, rim(x.shape[axis], before, after, mode))
        return x

    def constant(self, value: Tensor) -> Value:
        """A constant as a node (it still depends on the input, with coefficient 0)."""
        first = Value(0, self.nodes[0].shape)
        one = self.slice(self.reshape(first, (output_size(first),)), 0, 0, 1)
        zero = self.add(Scale(value.new_zeros(1).double(), value.new_zeros(1).double()), one)
        spread = self.expand(self.reshape(zero, (1,) * value.dim()), tuple(value.shape))
        return self.scale(spread, 1.0, value)

    # -- arithmetic -------------------------------------------------------------

    def scale(self, x: Value, factor: Tensor | float, offset: Tensor | float = 0.0) -> Value:
        """factor * x + offset with numpy's broadcasting (x may grow)."""
        a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (factor, offset))
        x = self.expand(x, broadcast(x.shape, tuple(a.shape), tuple(b.shape)))
        return self.add(Scale(a, b), x)

    def combine(self, x: Operand, y: Operand, weight: float) -> Value:
        """x + weight * y, at least one of them computed."""
        if isinstance(y, Tensor):
            if isinstance(x, Tensor):
                # It would be rounded here, unseen by proofs, which take all constants as exact.
                raise Unsupported("a sum of constants alone")
            return self.scale(x, 1.0, lossless(weight * y.double(), y))
        if isinstance(x, Tensor):
            return self.scale(y, weight, x)
        shape = broadcast(x.shape, y.shape)
        return self.add(Combine((1.0, weight)), self.expand(x, shape), self.expand(y, shape))

    def pair(self, x: Value, y: Value) -> Value:
        """Two tensors, broadcast to one shape, side by side on a new last axis."""
        shape = broadcast(x.shape, y.shape)
        if x.shape == y.shape:
            both = (self.reshape(v, (*shape, 1)) for v in (x, y))
            return self.add(Concat(len(shape), (1, 1)), *both)
        places = (torch.arange(output_size(v)).reshape(v.shape).expand(shape) for v in (x, y))
        return self.pair_at(x, y, *places)

    def pair_at(self, x: Value, y: Value, rows: Tensor, columns: Tensor) -> Value:
        """Entries of two tensors, by their places in the flattened ones, side by side on a new
        last axis. Entries that repeat are bounded once."""
        flat = [self.reshape(v, (output_size(v),)) for v in (x, y)]
        shape = broadcast(tuple(rows.shape), tuple(columns.shape))
        require_entries((2, *shape))
        both = self.add(Concat(0, (output_size(x), output_size(y))), *flat)
        places = rows.expand(shape), (columns + output_size(x)).expand(shape)
        return self.gather(both, 0, torch.stack(places, -1))

    def sum(self, x: Value, axes: Sequence[int] | None, keepdim: bool) -> Value:
        """Sum over axes; None means all of them."""
        dims = tuple(range(x.rank)) if axes is None else tuple(sorted({a % x.rank for a in axes}))
        if not dims:
            return x
        y = self.add(Sum(x.shape, dims), x)
        kept = y.shape if keepdim else tuple(n for i, n in enumerate(x.shape) if i not in dims)
        return self.reshape(y, kept)

    def mean(self, x: Value, axes: Sequence[int] | None, keepdim: bool) -> Value:
        y = self.sum(x, axes, keepdim)
        return self.scale(y, output_size(y) / output_size(x)) if y is not x else x

    # -- weights ----------------------------------------------------------------

    def linear(self, x: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
        """x W^T + b along the last axis."""
        offset = torch.zeros(weight.shape[0]) if bias is None else bias.expand(weight.shape[0])
        return self.add(Linear(weight.double(), offset.double()), x)

    def conv(
        self,
        x: Value,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilation: Sequence[int],
        groups: int,
    ) -> Value:
        """Convolution over the trailing axes with (before, after) zero padding for each."""
        dims = weight.dim() - 2
        if dims not in (1, 2, 3) or x.rank < dims + 1:
            raise Unsupported(f"convolution over {dims} axes of a tensor of rank {x.rank}")
        if any(a != b for a, b in pads):
            x = self.pad(x, [(0, 0)] * (x.rank - dims) + [(a, b) for a, b in pads])
            pads = [(0, 0)] * dims
        offset = torch.zeros(weight.shape[0]) if bias is None else bias
        op = Conv(
            weight.double(),
            offset.double(),
            x.shape[-dims:],
            tuple(stride),
            tuple(a for a, _ in pads),
            tuple(dilation),
            groups,
        )
        return self.add(op, x)

    def conv_transpose(
        self,
        x: Value,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        pads: Sequence[tuple[int, int]],
        output_padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Value:
        """Transposed convolution; pads crop the result before and after on each axis."""
        dims = weight.dim() - 2
        if dims not in (1, 2, 3):
            raise Unsupported(f"transposed convolution over {dims} axes")
        offset = torch.zeros(weight.shape[1] * groups) if bias is None else bias
        even = [min(a, b) for a, b in pads]
        op = ConvTranspose(
            weight.double(),
            offset.double(),
            tuple(stride),
            tuple(even),
            tuple(output_padding),
            tuple(dilation),
            groups,
        )
        y = self.add(op, x)
        rest = [(e - a, e - b) for e, (a, b) in zip(even, pads, strict=True)]
        return self.pad(y, [(0, 0)] * (y.rank - dims) + rest)

    # -- windows ----------------------------------------------------------------

    def average_pool(self, x: Value, windows: Windows, include_pad: bool) -> Value:
        """Mean over windows of the trailing axes.

        With `include_pad` the padding counts as zeros, but what `ceil` adds beyond
        it never does; without, only true entries count.
        """
        kernel, padding = windows.kernel, windows.padding()
        lead = x.shape[: -len(kernel)]
        channels = lead[-1] if lead else 1
        require_entries([n + a + b for n, (a, b) in zip(windows.spatial, padding, strict=True)])
        require_entries((channels, *kernel), "a pooling window")
        y = self.conv(
            x if lead else self.reshape(x, (1, *x.shape)),
            torch.ones(channels, 1, *kernel, dtype=torch.float64),
            None,
            windows.stride,
            padding,
            windows.dilation,
            channels,
        )
        y = self.scale(y, 1.0 / windows.counts(include_pad))
        return self.reshape(y, (*lead, *y.shape[-len(kernel) :]))

    def windows(self, x: Value, windows: Windows) -> Value:
        """The entries of every pooling window on a new last axis.

        A place that falls on padding repeats an entry of its window, which leaves
        the window's maximum as it is.
        """
        lead, reach, kernel = x.shape[: -len(windows.kernel)], windows.reach(), windows.kernel
        require_entries((*lead, *reach, *kernel), "pooling windows")
        flat = self.reshape(x, (*lead, prod(windows.spatial)))
        picked = self.gather(flat, flat.rank - 1, windows.entries())
        return self.reshape(picked, (*lead, *reach, prod(kernel)))


def output_size(x: Value) -> int:
    return int(torch.Size(x.shape).numel())
