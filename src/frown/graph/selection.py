"""Operators that only move, repeat, drop or pad entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from frown.graph.op import Affine, Selection, Shape


@dataclass(frozen=True, slots=True)
class Reshape(Selection):
    source: Shape
    target: Shape

    def shape(self, *inputs: Shape) -> Shape:
        return self.target

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].reshape(-1, *self.target)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (coef.reshape(-1, *self.source),)


@dataclass(frozen=True, slots=True)
class Permute(Selection):
    axes: tuple[int, ...]  # output axis i is input axis axes[i]

    def shape(self, *inputs: Shape) -> Shape:
        return tuple(inputs[0][a] for a in self.axes)

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].permute(0, *(a + 1 for a in self.axes))

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        inverse = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return (coef.permute(0, *(a + 1 for a in inverse)),)


@dataclass(frozen=True, slots=True)
class Expand(Selection):
    """Broadcast to a larger shape of the same rank: axes of 1 repeat."""

    source: Shape
    target: Shape

    def shape(self, *inputs: Shape) -> Shape:
        return self.target

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].expand(-1, *self.target)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        grown = [i + 1 for i, (a, b) in enumerate(zip(self.source, self.target)) if a != b]
        return (coef.sum(grown, keepdim=True) if grown else coef,)


@dataclass(frozen=True, slots=True)
class Slice(Selection):
    """x[start:stop:step] along one axis, step > 0, bounds already resolved."""

    source: Shape
    axis: int
    start: int
    stop: int
    step: int = 1

    def shape(self, *inputs: Shape) -> Shape:
        kept = len(range(self.start, self.stop, self.step))
        return (*self.source[: self.axis], kept, *self.source[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0][self._window()]

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        back = coef.new_zeros(coef.shape[0], *self.source)
        back[self._window()] = coef
        return (back,)

    def add_back(self, coef: Tensor, onto: Tensor) -> bool:
        onto[self._window()] += coef
        return True

    def _window(self) -> tuple[slice, ...]:
        return (slice(None),) * (self.axis + 1) + (slice(self.start, self.stop, self.step),)


@dataclass(frozen=True, slots=True, eq=False)
class Gather(Selection):
    """Entries of one axis by index; an index may repeat (nearest upsampling, windows)."""

    source: Shape
    axis: int
    index: Tensor  # (n,) int64, within range

    def shape(self, *inputs: Shape) -> Shape:
        return (*self.source[: self.axis], len(self.index), *self.source[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].index_select(self.axis + 1, self.index)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        back = coef.new_zeros(coef.shape[0], *self.source)
        return (back.index_add_(self.axis + 1, self.index, coef),)

    def add_back(self, coef: Tensor, onto: Tensor) -> bool:
        onto.index_add_(self.axis + 1, self.index, coef)
        return True


@dataclass(frozen=True, slots=True)
class Concat(Affine):
    """Branches side by side along one axis."""

    axis: int
    sizes: tuple[int, ...]

    def shape(self, *inputs: Shape) -> Shape:
        first = inputs[0]
        return (*first[: self.axis], sum(self.sizes), *first[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.cat(xs, self.axis + 1)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return torch.split(coef, list(self.sizes), self.axis + 1)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.apply(*radii)


@dataclass(frozen=True, slots=True)
class Pad(Affine):
    """A constant around the entries; (before, after) for every axis, negative ones cut off."""

    source: Shape
    widths: tuple[tuple[int, int], ...]
    value: float = 0.0

    def shape(self, *inputs: Shape) -> Shape:
        return tuple(n + a + b for n, (a, b) in zip(self.source, self.widths, strict=True))

    def apply(self, *xs: Tensor) -> Tensor:
        return F.pad(xs[0], self._flat(), value=self.value)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (F.pad(coef, [-width for width in self._flat()]),)

    def shift(self, coef: Tensor) -> Tensor | None:
        if self.value == 0:
            return None
        # The rim alone: a difference of sums would carry the rounding of entries inside it.
        rim = coef.clone()
        rim[self._window()] = 0
        return rim.flatten(1).sum(1) * self.value

    def spread(self, *radii: Tensor) -> Tensor:
        return F.pad(radii[0], self._flat())

    def _window(self) -> tuple[slice, ...]:
        inside = (
            slice(max(0, a), n + a + min(0, b))
            for n, (a, b) in zip(self.source, self.widths, strict=True)
        )
        return (slice(None), *inside)

    def _flat(self) -> list[int]:
        return [width for pair in reversed(self.widths) for width in pair]
