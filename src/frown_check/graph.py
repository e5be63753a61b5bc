"""The network as the checker sees it: flat vectors, computed from earlier ones.

A tensor of the model is a `View`: an array of places in one node's vector, -1 standing for the
number 0. Whatever only moves, repeats or drops entries (reshaping, slicing, padding, the windows
of a convolution, ...) is plain indexing of that array, and no operator of its own. Four are left:

    Input   the network's input                  Join    several views one after the other
    Linear  y = x W + b in every group           Scale   y = a x + b, entry by entry
    Apply   a nonlinear site

Proved: for balls x, `forward` returns balls that contain the operator's values. For rows of
coefficients c of y, `backward` returns coefficients of what the operator reads, and constants,
such that c . y = sum_i c_i . x_i + constant for coefficients and constants in the balls returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frown_check.balls import Array, Ball, Index, add, matmul, multiply, rounding, total, up
from frown_check.errors import Refused
from frown_check.functions import Function
from frown_check.lines import Elementwise, Frame, Maximum, Product

MOST_ENTRIES = 2**26  # of one tensor
MOST_IN_ALL = 2**28  # of all tensors, and of what operators read


@dataclass(frozen=True, eq=False)
class View:
    """Entries of a node's vector, in the shape of `index`: how the reader refers to tensors."""

    node: int
    index: Index

    @property
    def shape(self) -> tuple[int, ...]:
        return self.index.shape


@dataclass(frozen=True, eq=False)
class Edge:
    """An operator's reading of a node: entries of its vector, 0 where the index is -1."""

    node: int
    index: Index  # flat
    width: int  # of the node's vector

    def read(self, x: Array) -> Array:
        """(rows, width) -> (rows, len(index))."""
        taken = x[:, np.maximum(self.index, 0)]
        return taken if self._whole else np.where(self.index < 0, 0.0, taken)

    def send_back(self, coef: Ball) -> Ball:
        """The adjoint of `read`: coefficients of one entry add up."""
        if self._whole and self.width == len(self.index) and self._ordered:
            return coef
        order, starts, places, most = self._plan
        if most == 1:
            return coef.map(lambda c: self._spread(c[:, order], places))
        rad = rounding(most) * np.abs(coef.mid) + coef.radius
        mid = np.add.reduceat(coef.mid[:, order], starts, axis=1)
        sums = up(np.add.reduceat(rad[:, order], starts, axis=1), most + 4)
        return Ball(self._spread(mid, places), self._spread(sums, places))

    def _spread(self, values: Array, places: Index) -> Array:
        full = np.zeros((len(values), self.width))
        full[:, places] = values
        return full

    @cached_property
    def _whole(self) -> bool:
        return bool((self.index >= 0).all())

    @cached_property
    def _ordered(self) -> bool:
        return bool((self.index == np.arange(len(self.index))).all())

    @cached_property
    def _plan(self) -> tuple[Index, Index, Index, int]:
        """Entries sorted by place: where each place's run starts, and the longest run."""
        order = np.argsort(self.index, kind="stable")
        order = order[self.index[order] >= 0]
        places, starts, counts = np.unique(self.index[order], return_index=True, return_counts=True)
        return order, starts.astype(np.int64), places, int(counts.max(initial=1))


class Operator:
    """The work of a node: the input, a site, or affine."""


class Input(Operator):
    """The network's input."""


class Affine(Operator, ABC):
    """y = J x + b; vectors and coefficients are (rows, size)."""

    offset: Ball | None = None  # b, (size,); None: 0

    @abstractmethod
    def image(self, xs: Sequence[Ball]) -> Ball:
        """J x, x what the edges read."""

    @abstractmethod
    def adjoint(self, coef: Ball) -> list[Ball]:
        """c J, one part for each edge."""

    def forward(self, xs: Sequence[Ball]) -> Ball:
        """Balls around the values."""
        y = self.image(xs)
        return y if self.offset is None else add(y, self.offset)

    def backward(self, coef: Ball) -> tuple[list[Ball], Ball | None]:
        """Coefficients of what each edge reads, and constants (None: 0)."""
        constant = None
        if self.offset is not None:
            constant = total(multiply(coef, self.offset), coef.mid.shape[1])
        return self.adjoint(coef), constant


class Join(Affine):
    def __init__(self, sizes: Sequence[int]) -> None:
        self.cuts = np.cumsum(sizes)[:-1]

    def image(self, xs: Sequence[Ball]) -> Ball:
        mids = np.concatenate([x.mid for x in xs], 1)
        return Ball(mids, np.concatenate([x.radius for x in xs], 1))

    def adjoint(self, coef: Ball) -> list[Ball]:
        mids, rads = (np.split(c, self.cuts, 1) for c in (coef.mid, coef.radius))
        return [Ball(m, r) for m, r in zip(mids, rads)]


class Linear(Affine):
    """(groups, places, inputs) to (groups, places, outputs), by weights (G, I, O), bias (G, O)."""

    def __init__(self, weight: Ball, bias: Ball | None, places: int) -> None:
        self.weight, self.places = weight, places
        if bias is not None:
            self.offset = bias.map(lambda b: np.repeat(b, places, 0).reshape(-1))

    def image(self, xs: Sequence[Ball]) -> Ball:
        return self._multiply(xs[0], self.weight)

    def adjoint(self, coef: Ball) -> list[Ball]:
        return [self._multiply(coef, self.weight.map(lambda w: w.transpose(0, 2, 1)))]

    def _multiply(self, x: Ball, w: Ball) -> Ball:
        """Row by row and group by group, as one product of matrices per group."""
        groups, inner, outer = w.mid.shape
        rows = len(x.mid)

        def gather(a: Array) -> Array:
            shaped = a.reshape(rows, groups, self.places, inner).transpose(1, 0, 2, 3)
            return shaped.reshape(groups, rows * self.places, inner)

        def scatter(a: Array) -> Array:
            shaped = a.reshape(groups, rows, self.places, outer).transpose(1, 0, 2, 3)
            return shaped.reshape(rows, groups * self.places * outer)

        return matmul(x.map(gather), w).map(scatter)


class Scale(Affine):
    def __init__(self, factor: Ball, offset: Ball | None) -> None:
        self.factor, self.offset = factor, offset

    def image(self, xs: Sequence[Ball]) -> Ball:
        return multiply(xs[0], self.factor)

    def adjoint(self, coef: Ball) -> list[Ball]:
        return [multiply(coef, self.factor)]


class Apply(Operator):
    """A nonlinear site: `Max` or `Product` over `count` entries, or a function of one."""

    def __init__(self, name: str, function: Function | str, count: int = 1) -> None:
        self.name, self.function, self.count = name, function, count

    @property
    def kind(self) -> str:
        return self.function if isinstance(self.function, str) else self.function.kind

    def frame(self, low: Array, high: Array) -> Frame:
        """The site over boxes (outputs, count)."""
        if isinstance(self.function, str):
            return {"Max": Maximum, "Product": Product}[self.function](low, high)
        holes = self.function.holes(low, high)
        if holes.any():
            place = int(holes.argmax())
            raise Refused(
                f"{self.kind} at {self.name} is not defined, or not followed by the checker, on"
                f" all of [{low.flat[place]:.6g}, {high.flat[place]:.6g}] (entry {place})"
            )
        return Elementwise(self.function, low, high)


@dataclass(frozen=True, eq=False)
class Node:
    op: Operator
    edges: tuple[Edge, ...]
    size: int


class Graph:
    """Nodes in topological order; grows while a model is read."""

    def __init__(self, size: int) -> None:
        self.nodes = [Node(Input(), (), size)]
        self.entries = size

    def spend(self, count: int) -> None:
        """Count this many entries more against the memory that is allowed."""
        self.entries += count
        if self.entries > MOST_IN_ALL:
            raise Refused(f"a network of over {MOST_IN_ALL} entries is too large for the checker")

    def add(self, op: Operator, views: Sequence[View], shape: Sequence[int]) -> View:
        size = int(np.prod(shape, dtype=np.float64))
        if max(size, *(v.index.size for v in views)) > MOST_ENTRIES:
            raise Refused(f"a tensor of shape {tuple(shape)} is too large for the checker")
        self.spend(size + sum(v.index.size for v in views))
        self.nodes.append(Node(op, tuple(map(self.edge, views)), size))
        return View(len(self.nodes) - 1, np.arange(size).reshape(shape))

    def edge(self, view: View) -> Edge:
        return Edge(view.node, view.index.ravel(), self.nodes[view.node].size)

    def needed(self, output: int) -> set[int]:
        """The nodes that `output` depends on."""
        wanted = {output}
        for i in range(output, -1, -1):
            if i in wanted:
                wanted.update(e.node for e in self.nodes[i].edges)
        return wanted


@dataclass(frozen=True, eq=False)
class Network:
    graph: Graph
    output: Edge
    shape: tuple[int, ...]  # of the input, without the batch
