"""Softmax, normalisation and attention of ATen, one handler per operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from frown.graph import Builder, Operand, Unsupported, Value
from frown.read import attention
from frown.read.torch.ops import handles


@handles("softmax", "_softmax")
def softmax(b: Builder, x: Value, axis: int, dtype: object = None) -> Operand:
    return attention.softmax(b, x, axis)


@handles("log_softmax", "_log_softmax")
def log_softmax(b: Builder, x: Value, axis: int, dtype: object = None) -> Operand:
    return attention.log_softmax(b, x, axis)


@handles("var.correction")
def variance(
    b: Builder,
    x: Value,
    axes: Sequence[int] | None = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    gone = sorted(a % x.rank for a in axes or range(x.rank))
    y = attention.variance(b, x, gone, 1.0 if correction is None else float(correction))
    return y if keepdim else b.reshape(y, [n for a, n in enumerate(x.shape) if a not in gone])


@handles("layer_norm")
def layer_norm(
    b: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
    cudnn: bool = False,
) -> Operand:
    return attention.layer_norm(b, x, x.rank - len(shape), weight, bias, eps)


@handles("group_norm")
def group_norm(
    b: Builder,
    x: Value,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = False,
) -> Value:
    return attention.group_norm(b, x, groups, weight, bias, eps)


@handles("instance_norm")
def instance_norm(
    b: Builder,
    x: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    own: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Value:
    if own:
        return attention.group_norm(b, x, x.shape[1], weight, bias, eps)
    if mean is None or var is None:
        raise Unsupported("no statistics")
    inverse = 1 / (var.double() + eps).sqrt()
    plain = attention.per_channel(b, x, inverse, -mean.double() * inverse)
    return attention.per_channel(b, plain, weight, bias)


@handles("scaled_dot_product_attention")
def scaled_dot_product_attention(
    b: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Operand:
    if dropout:
        raise Unsupported("random dropout; set dropout_p to 0 in evaluation mode")
    if enable_gqa:
        key, value = (_repeated(b, x, query.shape[-3] // x.shape[-3]) for x in (key, value))
    return attention.attention(b, query, key, value, mask, causal, scale)


def _repeated(b: Builder, x: Operand, times: int) -> Operand:
    """Every head of keys or values for several heads of queries."""
    if isinstance(x, Tensor):
        return x.repeat_interleave(times, -3)
    return b.gather(x, x.rank - 3, torch.arange(x.shape[-3]).repeat_interleave(times))
