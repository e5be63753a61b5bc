"""A network executed in single precision, as hostile as the standard allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from frown.graph.affine import Combine, Concat, Linear, Pad, Scale
from frown.graph.graph import Graph, Input
from frown.graph.op import Affine, Selection

WAYS = ("sequential", "fused", "tree", "double")
TINY = np.float32(2.0**-126)


@dataclass
class Runtime:
    """Sums in a random order and a random way, flushing small numbers to 0 or not."""

    graph: Graph
    rng: np.random.Generator
    flush: bool = False
    values: dict[int, np.ndarray] = field(default_factory=dict)  # executed, float32
    # What a nonlinearity, or a run of affine operators, should give for what it was given.
    ideal: dict[int, Tensor] = field(default_factory=dict)

    def run(self, x: Tensor) -> np.ndarray:
        """(N, *shape) in double precision."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for i, node in enumerate(self.graph.nodes):
                if isinstance(node.op, Input):
                    self.ideal[i] = x
                    value = x.numpy().astype(np.float32)
                elif isinstance(node.op, Affine):
                    self.ideal[i] = node.op.apply(*(self._start(j) for j in node.inputs))
                    value = self._affine(node.op, [self.values[j] for j in node.inputs])
                else:
                    read = [torch.from_numpy(self.values[j]) for j in node.inputs]
                    self.ideal[i] = node.op.apply(*(r.double() for r in read))
                    value = node.op.to(torch.float32).apply(*read).numpy()
                assert value.dtype == np.float32
                self.values[i] = self._flushed(value)
        return self.values[len(self.graph.nodes) - 1]

    def _start(self, i: int) -> Tensor:
        """What a run of affine operators reads: executed values, or what goes on within it."""
        if isinstance(self.graph.nodes[i].op, Affine):
            return self.ideal[i]
        return torch.from_numpy(self.values[i]).double()

    def _flushed(self, value: np.ndarray) -> np.ndarray:
        return np.where(np.abs(value) < TINY, np.float32(0), value) if self.flush else value

    def _affine(self, op: Affine, xs: list[np.ndarray]) -> np.ndarray:
        if isinstance(op, Selection | Concat | Pad):
            return op.to(torch.float32).apply(*(torch.from_numpy(x) for x in xs)).numpy()
        if isinstance(op, Combine):
            terms = [x * np.float32(w) for x, w in zip(xs, op.weights, strict=True)]
            return np.asarray(sum(terms[1:], terms[0]), np.float32)
        (x,) = xs
        if isinstance(op, Scale):
            factor, offset = op.factor.float().numpy(), op.offset.float().numpy()
            return self._flushed(self._flushed(x * factor) + offset)
        if isinstance(op, Linear) and x.ndim == 2:
            return self.dense(x, op.weight, op.bias)
        target = op.shape(x.shape[1:])
        (weight,) = op.pull_back(torch.eye(prod(target)).double().view(-1, *target))
        bias = op.apply(torch.zeros(1, *x.shape[1:]).double()).flatten()
        y = self.dense(x.reshape(len(x), -1), weight.reshape(len(weight), -1), bias)
        return y.reshape(-1, *target)

    def dense(self, x: np.ndarray, weight: Tensor, bias: Tensor) -> np.ndarray:
        """W x + b, its terms added up in some way."""
        w, b = self._flushed(weight.float().numpy()), self._flushed(bias.float().numpy())
        way = str(self.rng.choice(WAYS))
        if way == "double":
            return self._flushed((x.astype(float) @ w.T.astype(float) + b).astype(np.float32))
        order = self.rng.permutation(w.shape[1])
        if way == "fused":
            total = np.broadcast_to(b, (len(x), len(w)))
            for k in order:
                product = x[:, k, None].astype(float) * w[None, :, k].astype(float)
                total = self._flushed((total.astype(float) + product).astype(np.float32))
            return total
        terms = [self._flushed(x[:, k, None] * w[None, :, k]) for k in order]
        terms.insert(int(self.rng.integers(len(terms) + 1)), np.broadcast_to(b, terms[0].shape))
        while len(terms) > 1:
            if way == "tree":
                pairs = [self._flushed(a + c) for a, c in zip(terms[::2], terms[1::2])]
                terms = pairs + ([terms[-1]] if len(terms) % 2 else [])
            else:
                terms = [self._flushed(terms[0] + terms[1]), *terms[2:]]
        return terms[0]
