"""Arithmetic that both front ends read: quotients, powers, maxima, masks and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import inf, isfinite, isnan

import torch
from torch import Tensor

from frown.graph import Builder, Operand, Unsupported, Value, broadcast, require_entries
from frown.relax import Clip, Exp, Max, Power, Product, Relu


def multiply(b: Builder, x: Operand, y: Operand) -> Operand:
    """x y; the square of one tensor as such."""
    if isinstance(x, Value) and isinstance(y, Value):
        return b.add(Power(2.0), x) if x == y else b.add(Product(), b.pair(x, y))
    return b.multiply(x, y)


def divide(b: Builder, x: Operand, y: Operand) -> Operand:
    """x / y; for a computed y, x times its reciprocal."""
    if not isinstance(y, Value):
        return b.divide(x, y)
    return multiply(b, x, b.add(Power(-1.0), y))


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


def largest(b: Builder, operands: Sequence[Operand]) -> Operand:
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


def smallest(b: Builder, operands: Sequence[Operand]) -> Operand:
    """The minimum of several tensors, entry by entry."""
    opposite = [-x if isinstance(x, Tensor) else b.scale(x, -1.0) for x in operands]
    return b.multiply(largest(b, opposite), torch.tensor(-1.0, dtype=torch.float64))


def at_least(b: Builder, x: Value, floor: Tensor) -> Value:
    """max(x, floor)."""
    if bool(floor.isnan().any()):
        raise Unsupported("a limit that is not a number")
    first = float(floor.flatten()[0])
    if bool((floor == first).all()):
        return clipped(b, x, first, inf)
    # max(x, c) = relu(x - c) + c
    return b.scale(b.add(Relu(), b.scale(x, 1.0, -floor)), 1.0, floor)


def clipped(b: Builder, x: Value, low: float, high: float) -> Value:
    """min(max(x, low), high)."""
    if isnan(low) or isnan(high) or low >= high:
        raise Unsupported(f"clipping to [{low}, {high}]")
    if (low, high) == (-inf, inf):
        return x
    return b.add(Relu() if (low, high) == (0.0, inf) else Clip(low, high), x)


def where(b: Builder, mask: Tensor, x: Operand, y: Operand) -> Operand:
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
