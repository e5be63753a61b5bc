"""Matrix products that both front ends read: with constants, stacks of them, or computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from frown.graph import (
    Builder,
    Operand,
    Unsupported,
    Value,
    broadcast,
    output_size,
    require_entries,
)
from frown.relax import Product

LIMIT = 1 << 20  # products of two computed numbers in one matrix product


def matmul(b: Builder, x: Operand, y: Operand) -> Operand:
    """numpy's x @ y."""
    if isinstance(x, Value):
        return _computed(b, x, y) if isinstance(y, Value) else _by_constant(b, x, y)
    if isinstance(y, Tensor):
        raise Unsupported("a matrix product of constants alone")
    # (C y)^T = y^T C^T
    turned = x if x.dim() == 1 else x.mT
    if y.rank == 1:
        return _by_constant(b, y, turned)
    z = _by_constant(b, swapped(b, y), turned)
    return z if x.dim() == 1 else swapped(b, z)


def _by_constant(b: Builder, x: Value, matrix: Tensor) -> Value:
    """x @ matrix, which may be a vector, or a stack of matrices."""
    if matrix.dim() == 1:
        z = b.linear(x, matrix[None, :])
        return b.reshape(z, z.shape[:-1])
    if any(n != 1 for n in matrix.shape[:-2]):
        return _stacked(b, x, matrix)
    z = b.linear(x, matrix.reshape(matrix.shape[-2:]).T)
    added = max(0, matrix.dim() - max(2, x.rank))  # axes of 1 that only the constant has
    return b.reshape(z, (1,) * added + z.shape)


def swapped(b: Builder, x: Value) -> Value:
    """x with its last two axes swapped."""
    return b.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _stacked(b: Builder, x: Value, matrices: Tensor) -> Value:
    """x @ matrices with a matrix of its own for each stack entry: a grouped convolution."""
    row = x.rank == 1
    x = b.reshape(x, (1, *x.shape)) if row else x
    lead = broadcast(x.shape[:-2], matrices.shape[:-2])
    (n, k), m, count = x.shape[-2:], matrices.shape[-1], math.prod(lead)
    require_entries((count, k, m), "a stack of matrices")
    flat = b.reshape(b.expand(x, (*lead, n, k)), (count, n, k))
    columns = b.reshape(b.permute(flat, (0, 2, 1)), (1, count * k, n))
    weight = matrices.expand(*lead, k, m).reshape(count, k, m).mT.reshape(count * m, k, 1)
    y = b.conv(columns, weight, None, (1,), ((0, 0),), (1,), count)
    y = b.permute(b.reshape(y, (count, m, n)), (0, 2, 1))
    return b.reshape(y, (*lead, m) if row else (*lead, n, m))


def _computed(b: Builder, x: Value, y: Value) -> Value:
    """The sum over k of x_ik y_kj, product by product."""
    left = x.shape if x.rank > 1 else (1, *x.shape)
    right = y.shape if y.rank > 1 else (*y.shape, 1)
    if left[-1] != right[-2]:
        raise Unsupported(f"a matrix product of shapes {x.shape} and {y.shape}")
    lead = broadcast(left[:-2], right[:-2])
    n, k, m = left[-2], left[-1], right[-1]
    count = math.prod(lead) * n * k * m
    if count > LIMIT:
        raise Unsupported(
            f"a matrix product of two computed tensors with {count:,} products; at most {LIMIT:,}"
        )
    rows = torch.arange(output_size(x)).reshape(left).expand(*lead, n, k)
    columns = torch.arange(output_size(y)).reshape(right).expand(*lead, k, m).mT
    pairs = b.pair_at(x, y, rows.unsqueeze(-2), columns.unsqueeze(-3))
    total = b.sum(b.add(Product(), pairs), (-1,), keepdim=False)
    shape = (*lead, *(() if x.rank == 1 else (n,)), *(() if y.rank == 1 else (m,)))
    return b.reshape(total, shape)


def einsum(b: Builder, equation: str, operands: tuple[Operand, ...]) -> Operand:
    """Einstein's sum of one or two tensors, each letter at most once in each."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    if not arrow:
        letters = "".join(names)
        output = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    plain = all(t.isalpha() and len(set(t)) == len(t) for t in (*names, output or "a"))
    if not plain or len(names) != len(operands) or len(names) > 2:
        raise Unsupported(f"the sum {equation}")
    if len(names) == 1:
        (x,) = operands
        left, have = _without(b, x, names[0], output)
        return _ordered(b, left, have, output)
    x, y = operands
    for own, other, factor in ((names[0], names[1], x), (names[1], names[0], y)):
        alone = "".join(c for c in own if c not in output + other)
        if alone and isinstance(factor, Tensor):
            # A sum of constants would be rounded unseen: it is left to the network's own sums.
            longer = einsum(b, f"{inputs}->{output}{alone}", operands)
            assert isinstance(longer, Value)
            return b.sum(longer, range(len(output), longer.rank), keepdim=False)
    left, first = _without(b, x, names[0], output + names[1])
    right, second = _without(b, y, names[1], output + names[0])
    both = [c for c in first if c in second]
    stack = "".join(c for c in both if c in output)
    summed = "".join(c for c in both if c not in output)
    rows = "".join(c for c in first if c not in second)
    columns = "".join(c for c in second if c not in first)
    size = dict(zip(first, left.shape, strict=True))
    for letter, n in zip(second, right.shape, strict=True):
        if size.setdefault(letter, n) != n:
            raise Unsupported(
                f"the sum {equation}, in which {letter} is an axis of {size[letter]} and of {n}"
            )

    def sizes(letters: str) -> tuple[int, ...]:
        return tuple(int(size[c]) for c in letters)

    n, k, m = (math.prod(sizes(c)) for c in (rows, summed, columns))
    left = _reshaped(b, _ordered(b, left, first, stack + rows + summed), (*sizes(stack), n, k))
    right = _reshaped(
        b, _ordered(b, right, second, stack + summed + columns), (*sizes(stack), k, m)
    )
    product = _reshaped(b, matmul(b, left, right), sizes(stack + rows + columns))
    return _ordered(b, product, stack + rows + columns, output)


def _without(b: Builder, x: Operand, letters: str, wanted: str) -> tuple[Operand, str]:
    """x summed over the axes that nothing else mentions."""
    if len(letters) != len(x.shape):
        raise Unsupported(f"{letters} for a tensor of shape {tuple(x.shape)}")
    gone = [i for i, c in enumerate(letters) if c not in wanted]
    if gone:
        assert isinstance(x, Value)
        x = b.sum(x, gone, keepdim=False)
    return x, "".join(c for c in letters if c in wanted)


def _ordered(b: Builder, x: Operand, have: str, wanted: str) -> Operand:
    axes = [have.index(c) for c in wanted]
    return b.permute(x, axes) if isinstance(x, Value) else x.permute(axes)


def _reshaped(b: Builder, x: Operand, shape: tuple[int, ...]) -> Operand:
    return b.reshape(x, shape) if isinstance(x, Value) else x.reshape(shape)
