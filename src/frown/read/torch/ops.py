"""Arithmetic and weights of ATen, one handler per operator, and their registry.

A handler gets the builder and the operator's arguments as the exported graph has
them: a `Value` where something is computed from the input, a tensor where it is
constant. At least one argument is computed; constants fold before they come here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor

from frown.graph import Builder, Operand, Unsupported, Value
from frown.read import arithmetic, attention, matrices
from frown.read.arithmetic import Reduction
from frown.relax import Abs, Sigmoid, Silu

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)

# By ATen name, with an overload ("max.dim") where the overloads mean different things.
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[H], H]:
    """Registers a handler for ATen operators, whose arguments are converted as its parameters are
    annotated."""

    def register(handler: H) -> H:
        hints, known = get_type_hints(handler), signature(handler)

        @wraps(handler)
        def typed(*args: Any, **kwargs: Any) -> Any:
            given = known.bind(*args, **kwargs)
            for name, value in given.arguments.items():
                given.arguments[name] = _typed(value, hints.get(name), name)
            return handler(*given.args, **given.kwargs)

        for name in names:
            HANDLERS[name] = typed
        return handler

    return register


def _typed(x: Any, hint: Any, name: str) -> Any:
    """An argument; Unsupported where a `Value` is wanted and it is constant, or a tensor and it is
    computed. A number for either is a tensor."""
    kinds = {hint, *get_args(hint)}
    if {Value, Tensor} <= kinds:
        return torch.tensor(x, dtype=torch.float64) if isinstance(x, int | float) else x
    if Value in kinds and isinstance(x, Tensor):
        raise Unsupported(f"a constant {name}")
    if Tensor in kinds and isinstance(x, Value):
        raise Unsupported(f"a {name} computed from the input")
    return x


def each(values: int | Sequence[int], dims: int) -> list[int]:
    """One number per axis where torch lets one stand for all."""
    given = [values] if isinstance(values, int) else list(values)
    return given * dims if len(given) == 1 else given


# -- arithmetic -----------------------------------------------------------------


@handles("add")
def add(b: Builder, x: Operand, y: Operand, alpha: float = 1) -> Operand:
    return b.combine(x, y, float(alpha))


@handles("sub")
def sub(b: Builder, x: Operand, y: Operand, alpha: float = 1) -> Operand:
    return b.combine(x, y, -float(alpha))


@handles("rsub")
def rsub(b: Builder, x: Operand, y: Operand, alpha: float = 1) -> Operand:
    return b.combine(y, x, -float(alpha))


@handles("mul")
def mul(b: Builder, x: Operand, y: Operand) -> Operand:
    if isinstance(x, Value) and isinstance(y, Value):
        for gate, value in ((x, y), (y, x)):
            node = b.nodes[gate.index]
            if isinstance(node.op, Sigmoid) and node.inputs == (value.index,):
                return b.add(Silu(), value)
    return arithmetic.multiply(b, x, y)


@handles("div")
def div(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Operand:
    if rounding_mode is not None:
        raise Unsupported(f"division rounded by {rounding_mode}")
    return arithmetic.divide(b, x, y)


handles("pow")(arithmetic.power)
handles("where.self")(arithmetic.where)


@handles("neg")
def neg(b: Builder, x: Value) -> Value:
    return b.scale(x, -1.0)


for _name, _reduction in {
    "sum.dim_IntList": Builder.sum,
    "sum.default": Builder.sum,
    "mean.dim": Builder.mean,
    "mean.default": Builder.mean,
    "amax": arithmetic.largest_over,
    "amin": arithmetic.smallest_over,
    "max.default": arithmetic.largest_over,
    "min.default": arithmetic.smallest_over,
    "logsumexp": arithmetic.log_sum_exp,
}.items():

    @handles(_name)
    def _reduced(
        b: Builder,
        x: Value,
        axes: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
        *,
        _reduction: Reduction = _reduction,
    ) -> Value:
        return _reduction(b, x, axes or range(x.rank), keepdim)


for _name, _extreme in {
    "max.dim": arithmetic.largest_over,
    "min.dim": arithmetic.smallest_over,
}.items():

    @handles(_name)
    def _extreme_along(
        b: Builder, x: Value, axis: int, keepdim: bool = False, *, _extreme: Reduction = _extreme
    ) -> tuple[Value, None]:
        return _extreme(b, x, (axis,), keepdim), None


@handles("linalg_vector_norm")
def vector_norm(
    b: Builder,
    x: Value,
    ord: float = 2,
    axes: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: object = None,
) -> Value:
    over = axes or range(x.rank)
    if ord == 1:
        return arithmetic.absolute_sum(b, x, over, keepdim)
    if ord == 2:
        return arithmetic.euclidean_norm(b, x, over, keepdim)
    if ord == math.inf:
        return arithmetic.largest_over(b, b.add(Abs(), x), over, keepdim)
    raise Unsupported(f"the norm of order {ord}")


@handles("cumsum")
def cumsum(b: Builder, x: Value, axis: int, dtype: torch.dtype | None = None) -> Value:
    return arithmetic.running_sum(b, x, axis)


# -- weights --------------------------------------------------------------------


@handles("linear")
def linear(b: Builder, x: Value, weight: Tensor, bias: Operand | None = None) -> Operand:
    if weight.dim() == 1:
        y = matrices.matmul(b, x, weight)
        return y if bias is None else b.combine(y, bias, 1.0)
    if isinstance(bias, Value):
        return b.combine(b.linear(x, weight), bias, 1.0)
    return b.linear(x, weight, bias)


handles("matmul", "mm", "bmm", "mv", "dot")(matrices.matmul)


@handles("addmm")
def addmm(
    b: Builder, bias: Operand, x: Operand, y: Operand, beta: float = 1, alpha: float = 1
) -> Operand:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        x = b.constant(x.double())  # whose product with the other is charged as any
    product = matrices.matmul(b, x, y)
    if alpha != 1:
        product = arithmetic.multiply(b, product, torch.tensor(alpha, dtype=torch.float64))
    return b.combine(product, bias, float(beta))


@handles("convolution")
def convolution(
    b: Builder,
    x: Value,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    dims = weight.dim() - 2
    pads = [(p, p) for p in each(padding, dims)]
    steps, gaps = each(stride, dims), each(dilation, dims)
    if transposed:
        extra = each(output_padding, dims)
        return b.conv_transpose(x, weight, bias, steps, pads, extra, gaps, groups)
    return b.conv(x, weight, bias, steps, pads, gaps, groups)


@handles("_native_batch_norm_legit_no_training")
def batch_norm(
    b: Builder,
    x: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    return attention.batch_norm(b, x, weight, bias, mean, variance, eps), None, None
