"""Arithmetic that both front ends read: quotients, powers, maxima, masks, sums and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from math import inf, isfinite, isnan, prod

import torch
from torch import Tensor

from frown.graph import (
    Builder,
    Operand,
    Unsupported,
    Value,
    broadcast,
    lossless,
    require_entries,
)
from frown.relax import Abs, Clip, Exp, Joint, LogSumExp, Max, Moderate, Power, Product, Relu

OfTwo = Callable[[Builder, Operand, Operand], Operand]
Reduction = Callable[[Builder, Value, Sequence[int], bool], Value]


def add(b: Builder, x: Operand, y: Operand) -> Value:
    return b.combine(x, y, 1.0)


def subtract(b: Builder, x: Operand, y: Operand) -> Value:
    return b.combine(x, y, -1.0)


def multiply(b: Builder, x: Operand, y: Operand) -> Value:
    """x y; the square of one tensor as such."""
    if isinstance(x, Tensor):
        x, y = y, x
    if isinstance(x, Tensor):
        raise Unsupported("a product of constants alone")
    if isinstance(y, Tensor):
        return b.scale(x, y)
    return b.add(Power(2.0), x) if x == y else b.add(Product(), b.pair(x, y))


def divide(b: Builder, x: Operand, y: Operand) -> Value:
    """x / y; for a computed y, x times its reciprocal."""
    if isinstance(y, Value):
        return multiply(b, x, b.add(Power(-1.0), y))
    if bool((y == 0).any()):
        raise Unsupported("division by a constant 0")
    return multiply(b, x, lossless(1.0 / y.double()))


def power(b: Builder, x: Operand, exponent: Operand) -> Operand:
    """x^p for one number p, or c^y for numbers c > 0."""
    if isinstance(exponent, Tensor):
        assert isinstance(x, Value)
        p = _number(exponent, "an exponent")
        y = b.expand(x, broadcast(x.shape, tuple(exponent.shape)))
        if p == 0:
            return torch.ones(y.shape, dtype=torch.float64)
        return y if p == 1 else b.add(Power(p), y)
    if isinstance(x, Value):
        raise Unsupported("a power of one computed tensor by another")
    if not bool((x > 0).all()):
        raise Unsupported("computed powers of a constant that is not positive")
    return b.add(Exp(), b.scale(exponent, x.double().log()))


def largest(b: Builder, operands: Sequence[Operand]) -> Value:
    """The maximum of several tensors, entry by entry."""
    values = [x for x in operands if isinstance(x, Value)]
    shape = broadcast(*(tuple(x.shape) for x in operands))
    constants = [x.double() for x in operands if isinstance(x, Tensor)]
    floor = reduce(torch.maximum, constants) if constants else None
    sides = [b.expand(v, shape) for v in dict.fromkeys(values)]
    if len(sides) == 1:
        y = sides[0]
    else:
        entries = b.concat([b.reshape(v, (*shape, 1)) for v in sides], len(shape))
        assert isinstance(entries, Value)
        y = b.add(Max(), entries)
    return y if floor is None else at_least(b, y, floor)


def smallest(b: Builder, operands: Sequence[Operand]) -> Value:
    """The minimum of several tensors, entry by entry."""
    opposite = [-x if isinstance(x, Tensor) else b.scale(x, -1.0) for x in operands]
    return multiply(b, largest(b, opposite), torch.tensor(-1.0, dtype=torch.float64))


def at_least(b: Builder, x: Value, floor: Tensor) -> Value:
    """max(x, floor)."""
    if bool(floor.isnan().any()):
        raise Unsupported("a limit that is not a number")
    first = float(floor.flatten()[0])
    if bool((floor == first).all()):
        return clipped(b, x, first, inf)
    # max(x, c) = relu(x - c) + c
    return b.scale(b.add(Relu(), b.scale(x, 1.0, -floor)), 1.0, floor)


def clipped(b: Builder, x: Value, low: float, high: float, most: float = inf) -> Value:
    """min(max(x, low), high), where nothing is known of what exceeds `most` without a limit."""
    if isnan(low) or isnan(high) or low >= min(high, most) or high <= -most:
        raise Unsupported(f"clipping to [{low}, {high}]")
    if (low, high) == (-inf, inf):
        return x if most == inf else b.add(Moderate(most), x)
    return b.add(Relu(most) if (low, high) == (0.0, inf) else Clip(low, high, most), x)


def where(b: Builder, mask: Tensor, x: Operand, y: Operand) -> Value:
    """x where the mask says so, else y."""
    broadcast(tuple(mask.shape), tuple(x.shape), tuple(y.shape))  # or it is refused for its size
    zero = torch.zeros((), dtype=torch.float64)
    kept: list[Operand] = []
    for side, branch in ((mask, x), (~mask, y)):
        if isinstance(branch, Value):
            kept.append(b.scale(branch, side.double()))
        else:
            kept.append(torch.where(side, branch.double(), zero))
    return b.combine(kept[0], kept[1], 1.0)


# -- reductions: the axes become 1, or disappear without `keepdim` -----------------------


def over(b: Builder, x: Value, axes: Sequence[int], keepdim: bool, function: Joint) -> Value:
    """A function of all entries of some axes together."""
    gone = sorted({a % x.rank for a in axes})
    left = [a for a in range(x.rank) if a not in gone]
    shape, count = tuple(x.shape[a] for a in left), prod(x.shape[a] for a in gone)
    entries = b.reshape(b.permute(x, (*left, *gone)), (*shape, count))
    y = b.add(function, entries) if count > 1 else entries
    kept = tuple(1 if a in gone else n for a, n in enumerate(x.shape))
    return b.reshape(y, kept if keepdim else shape)


def largest_over(b: Builder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    """The maximum over axes."""
    return over(b, x, axes, keepdim, Max())


def smallest_over(b: Builder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    """The minimum over axes."""
    return b.scale(largest_over(b, b.scale(x, -1.0), axes, keepdim), -1.0)


def log_sum_exp(b: Builder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    """log sum e^x over axes."""
    return over(b, x, axes, keepdim, LogSumExp())


def sum_of_squares(b: Builder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    return b.sum(b.add(Power(2.0), x), axes, keepdim)


def euclidean_norm(b: Builder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    return b.add(Power(0.5), sum_of_squares(b, x, axes, keepdim))


def absolute_sum(b: Builder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    return b.sum(b.add(Abs(), x), axes, keepdim)


# -- along one axis ----------------------------------------------------------------------


def split(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Parts of these sizes, one after the other."""
    ends = list(accumulate(sizes))
    return [b.slice(x, axis, end - n, end) for n, end in zip(sizes, ends, strict=True)]


def running_sum(
    b: Builder, x: Value, axis: int, exclusive: bool = False, backwards: bool = False
) -> Value:
    """y_i = x_0 + ... + x_i along an axis; without x_i if `exclusive`."""
    count = x.shape[axis]
    require_entries((count, count), "the matrix of a running sum")
    matrix = torch.ones(count, count).tril(-1 if exclusive else 0)
    return along(b, x, axis, matrix.T if backwards else matrix)


def along(b: Builder, x: Value, axis: int, matrix: Tensor) -> Value:
    """y = M x along one axis."""
    order = list(range(x.rank))
    order[axis], order[-1] = order[-1], order[axis]
    return b.permute(b.linear(b.permute(x, order), matrix), order)


def _number(constant: Tensor, what: str) -> float:
    """The number that all entries of a constant are equal to."""
    flat = constant.double().flatten()
    if not len(flat) or not bool((flat == flat[0]).all()) or not isfinite(float(flat[0])):
        raise Unsupported(f"{what} that is not one finite number")
    return float(flat[0])
