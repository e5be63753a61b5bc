"""Softmax, normalisation by computed statistics, and attention, as both front ends read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph import Builder, Operand, Scale, Unsupported, Value, lossless
from frown.read import arithmetic
from frown.read.matrices import matmul, swapped
from frown.relax import LogSumExp, Moderate, Power, Product, Sigmoid

MASKED = -1e30  # scores moved this far down count for nothing: exporters write -inf or -3.4e38
MODERATE = 1e29  # as long as no other number is as large


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores with the axis of the softmax last, and which of them a mask leaves in."""

    value: Value
    kept: Tensor | None
    back: tuple[int, ...]  # the order of axes that undoes it


def _scores(b: Builder, x: Value, axis: int) -> _Scores:
    order = list(range(x.rank))
    order[axis], order[-1] = order[-1], order[axis]
    value, kept = _unmasked(b, x)
    if kept is not None:
        kept = kept.permute(order)
        if not bool(kept.any(-1).all()):
            raise Unsupported("a softmax all of whose scores are masked")
    return _Scores(b.permute(value, order), kept, tuple(order))


def _unmasked(b: Builder, x: Value) -> tuple[Value, Tensor | None]:
    """Scores without the constant -inf that a mask adds, and which have none."""
    node = b.nodes[x.index]
    if not isinstance(node.op, Scale) or bool((node.op.offset > MASKED).all()):
        return x, None
    offset, factor = node.op.offset, node.op.factor
    kept = (offset > MASKED).expand(x.shape)
    zero = torch.zeros((), dtype=torch.float64)
    (source,) = node.inputs
    scores = Value(source, b.nodes[source].shape)
    if bool((offset.isfinite() & (offset <= MASKED)).any()):
        if bool(((offset > MASKED) & (offset < -MODERATE)).any()):
            raise Unsupported("a mask whose numbers are neither moderate nor next to -inf")
        scores = b.add(Moderate(MODERATE), b.scale(scores, factor))
        factor = torch.ones((), dtype=torch.float64)
    finite = Scale(torch.where(kept, factor, zero), torch.where(kept, offset, zero))
    return b.add(finite, scores), kept


def softmax(b: Builder, x: Value, axis: int = -1) -> Operand:
    """e^x_i / sum_j e^x_j = sigmoid(x_i - log sum_(j != i) e^x_j)."""
    scores = _scores(b, x, axis)
    value, kept = scores.value, scores.kept
    count = value.shape[-1]
    whole = kept is None and count == math.prod(x.shape)
    if count == 1:
        return torch.ones(x.shape, dtype=torch.float64)
    others = torch.tensor([[j for j in range(count) if j != i] for i in range(count)])
    rivals = b.gather(value, value.rank - 1, others)  # (..., count, count - 1)
    if count == 2:
        rest = b.reshape(rivals, value.shape)
    elif kept is None:
        rest = b.add(LogSumExp(), rivals)
    else:
        against = kept[..., others]
        # Where nothing is left to compare with, any answer will do: it is replaced below.
        against = against | ~against.any(-1, keepdim=True)
        rest = b.add(LogSumExp(against), rivals)
    margin = b.combine(value, rest, -1.0)
    y = b.add(Sigmoid(), margin)
    shares = b.permute(y if kept is None else _fixed(b, y, kept), scores.back)
    if whole:
        b.ordered[shares.index] = x
    return shares


def _fixed(b: Builder, y: Value, kept: Tensor) -> Value:
    """Shares that a mask decides: 0 where a score is left out, 1 where it is alone."""
    alone = kept & (kept.sum(-1, keepdim=True) == 1)
    return b.scale(y, (kept & ~alone).double(), alone.double())


def log_softmax(b: Builder, x: Value, axis: int = -1) -> Operand:
    """x_i - log sum_j e^x_j."""
    scores = _scores(b, x, axis)
    if scores.kept is not None:
        raise Unsupported("the logarithm of a softmax with masked scores")
    if scores.value.shape[-1] == 1:
        return torch.zeros(x.shape, dtype=torch.float64)
    total = b.add(LogSumExp(), scores.value)
    kept = b.reshape(total, (*total.shape, 1))
    shares = b.permute(b.combine(scores.value, kept, -1.0), scores.back)
    if scores.value.shape[-1] == math.prod(x.shape):
        b.ordered[shares.index] = x
    return shares


# -- normalisation --------------------------------------------------------------------


def variance(b: Builder, x: Value, axes: Sequence[int], correction: float = 0.0) -> Value:
    """The mean square distance from the mean over axes, which become 1."""
    count = math.prod(x.shape[a] for a in axes)
    if count <= correction:
        raise Unsupported(f"a variance of {count} entries with correction {correction:g}")
    squares = b.add(Power(2.0), centred(b, x, axes))
    return b.scale(b.sum(squares, axes, keepdim=True), 1 / (count - correction))


def centred(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """x less its mean over axes."""
    if len(axes) == 1:
        count = x.shape[axes[0]]
        matrix = torch.eye(count, dtype=torch.float64) - 1 / count
        return arithmetic.along(b, x, axes[0] % x.rank, matrix)
    return b.combine(x, b.mean(x, axes, True), -1.0)


def normalised(b: Builder, x: Value, axes: Sequence[int], eps: float) -> Value:
    """(x - mean) / sqrt(variance + eps) over axes."""
    gap = centred(b, x, axes)
    spread = b.mean(b.add(Power(2.0), gap), axes, True)
    inverse = b.add(Power(-0.5), b.scale(spread, 1.0, eps))
    return b.add(Product(), b.pair(gap, inverse))


def layer_norm(
    b: Builder, x: Value, first: int, weight: Operand | None, bias: Operand | None, eps: float
) -> Operand:
    """Layer normalisation over the axes from `first` on."""
    shape = x.shape
    flat = b.reshape(x, (*shape[:first], math.prod(shape[first:])))
    y: Operand = b.reshape(normalised(b, flat, (flat.rank - 1,), eps), shape)
    if weight is not None:
        y = arithmetic.multiply(b, y, weight)
    return y if bias is None else b.combine(y, bias, 1.0)


def group_norm(
    b: Builder, x: Value, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Value:
    """Normalisation of each group of channels (axis 1); weights are per channel."""
    flat = b.reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    y = b.reshape(normalised(b, flat, (2,), eps), x.shape)
    return per_channel(b, y, weight, bias)


def batch_norm(
    b: Builder,
    x: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Value:
    """weight (x - mean) / sqrt(variance + eps) + bias, one number of each per channel (axis 1)."""
    scale = torch.ones_like(mean) if weight is None else weight
    factor = lossless(scale.double() / (variance.double() + eps).sqrt(), scale)
    if x.rank < 2 or factor.numel() != x.shape[1]:
        raise Unsupported(f"{factor.numel()} channels for an input of shape {x.shape}")
    offset = torch.zeros_like(factor) if bias is None else bias.double()
    like = (-1, *([1] * (x.rank - 2)))
    # In two steps, as bias - mean * factor may cancel: so every constant is right to an ulp or two.
    centred = b.scale(x, 1.0, -mean.double().reshape(like))
    return b.scale(centred, factor.reshape(like), offset.reshape(like))


def per_channel(b: Builder, x: Value, weight: Tensor | None, bias: Tensor | None) -> Value:
    """weight x + bias, one number of each per channel (axis 1)."""
    like = (-1, *([1] * (x.rank - 2)))
    factor = 1.0 if weight is None else weight.double().reshape(like)
    offset = 0.0 if bias is None else bias.double().reshape(like)
    return x if weight is None and bias is None else b.scale(x, factor, offset)


# -- attention --------------------------------------------------------------------------


def attention(
    b: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Operand:
    """softmax(query key^T scale + mask) value over the last two axes."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    turned = key.mT if isinstance(key, Tensor) else swapped(b, key)
    scores = matmul(b, query, turned)
    if isinstance(scores, Tensor):
        raise Unsupported("attention whose scores are constant")
    offset = torch.zeros((), dtype=torch.float64)
    if mask is not None:
        blocked = torch.where(mask, 0.0, -math.inf) if mask.dtype == torch.bool else mask
        offset = offset + blocked.double()
    if causal:
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        offset = offset + torch.where(later, -math.inf, 0.0).double()
    weights = softmax(b, b.scale(scores, factor, offset))
    return matmul(b, weights, value)
