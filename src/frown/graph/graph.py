"""A network: operators in topological order, immutable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Self

import torch
from torch import Tensor

from frown.graph.op import Nonlinear, Op, Shape, cast


@dataclass(frozen=True, slots=True)
class Input(Op):
    """The network's input; node 0 of every graph."""

    source: Shape

    def shape(self, *inputs: Shape) -> Shape:
        return self.source

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator and the earlier nodes it reads. Shapes leave out the rows axis."""

    name: str
    op: Op
    inputs: tuple[int, ...]
    shape: Shape

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order: node 0 is the input, the last one the output."""

    nodes: tuple[Node, ...]
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def input_shape(self) -> Shape:
        return self.nodes[0].shape

    @property
    def output_size(self) -> int:
        return self.nodes[-1].size

    @property
    def output(self) -> int:
        return len(self.nodes) - 1

    def apply(
        self, x: Tensor, compute: Callable[[Node, Sequence[Tensor]], Tensor] | None = None
    ) -> Tensor:
        """Outputs (rows, *output shape) for inputs (rows, *input shape).

        `compute` gives a node's value from those it reads; by default it is the operator's own.
        A value is let go after its last reader.
        """
        kept: dict[int, Tensor] = {}
        for i, node in enumerate(self.nodes):
            if isinstance(node.op, Input):
                kept[i] = x.reshape(-1, *node.shape)
            else:
                given = [kept[j] for j in node.inputs]
                kept[i] = compute(node, given) if compute else node.op.apply(*given)
                del given
                for j in self._done_after[i]:
                    del kept[j]
        return kept[len(self.nodes) - 1]

    @cached_property
    def _done_after(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each node is the last to read."""
        last: dict[int, int] = {}
        for i, node in enumerate(self.nodes):
            last.update(dict.fromkeys(node.inputs, i))
        done: list[list[int]] = [[] for _ in self.nodes]
        for j, i in last.items():
            done[i].append(j)
        return tuple(map(tuple, done))

    def values(self, x: Tensor) -> list[Tensor]:
        """The value of every node, in order."""
        values: list[Tensor] = []
        for node in self.nodes:
            if isinstance(node.op, Input):
                values.append(x.reshape(-1, *node.shape))
            else:
                values.append(node.op.apply(*(values[i] for i in node.inputs)))
        return values

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        """A copy of the network in another precision or on another device."""
        device = torch.device(device)
        if dtype == self.dtype and device == self.device:
            return self
        done: dict[int, Tensor] = {}  # by identity: what operators share stays shared

        def moved(tensor: Tensor) -> Tensor:
            if id(tensor) not in done:
                done[id(tensor)] = cast(tensor, dtype, device)
            return done[id(tensor)]

        nodes = tuple(replace(n, op=n.op.mapped(moved)) for n in self.nodes)
        return type(self)(nodes, dtype, device)

    @cached_property
    def nonlinear(self) -> tuple[int, ...]:
        """Indices of the nodes that need a relaxation, in order."""
        return tuple(i for i, n in enumerate(self.nodes) if isinstance(n.op, Nonlinear))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        readers: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for j in node.inputs:
                readers[j].append(i)
        return tuple(tuple(r) for r in readers)

    def ancestors(self, target: int) -> tuple[int, ...]:
        """The nodes that `target` depends on, itself included, in order."""
        needed = {target}
        for i in range(target, 0, -1):
            if i in needed:
                needed.update(self.nodes[i].inputs)
        return tuple(sorted(needed))

    def summary(self) -> dict[str, int]:
        """The number of times that each operator occurs."""
        names = (type(n.op).__name__ for n in self.nodes[1:])
        return dict(sorted(Counter(names).items()))

    def parameters(self) -> int:
        """The number of constants of all operators; a tensor that several share counts once."""
        held = {id(t): t for n in self.nodes for t in n.op.tensors().values()}
        return sum(t.numel() for t in held.values())
