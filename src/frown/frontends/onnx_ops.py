"""ONNX arithmetic, matrix products, reductions and activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from math import inf, isnan, prod

import torch
from torch import Tensor

from frown.frontends.onnx_call import Call, axis_of, handles, without
from frown.graph.builder import Operand, Value
from frown.graph.op import Unsupported, broadcast
from frown.relax.table import (
    Abs,
    Arctan,
    Clip,
    Elu,
    Gelu,
    GeluTanh,
    LeakyRelu,
    Max,
    PRelu,
    Product,
    Relu,
    Selu,
    Sigmoid,
    Silu,
    Softplus,
    Tanh,
)

# -- arithmetic -----------------------------------------------------------------


@handles("Add")
def add(call: Call) -> Operand:
    return call.build.combine(call.operand(0), call.operand(1), 1.0)


@handles("Sub")
def subtract(call: Call) -> Operand:
    return call.build.combine(call.operand(0), call.operand(1), -1.0)


@handles("Sum")
def add_all(call: Call) -> Operand:
    terms = [call.operand(i) for i in range(len(call.inputs))]
    return reduce(lambda x, y: call.build.combine(x, y, 1.0), terms)


@handles("Neg")
def negate(call: Call) -> Value:
    return call.build.scale(call.value(), -1.0)


@handles("Mul")
def multiply(call: Call) -> Operand:
    x, y = call.operand(0), call.operand(1)
    if isinstance(x, Value) and isinstance(y, Value):
        return call.build.add(Product(), call.build.pair(x, y))
    return call.build.multiply(x, y)


@handles("Div")
def divide(call: Call) -> Operand:
    return call.build.divide(call.operand(0), call.operand(1))


# -- matrix products --------------------------------------------------------------


@handles("MatMul")
def matmul(call: Call) -> Operand:
    return call.build.matmul(call.operand(0), call.operand(1))


@handles("Gemm", attributes="alpha beta transA transB")
def gemm(call: Call) -> Operand:
    build = call.build
    left = _turned(call, 0, call.flag("transA"))
    right = _turned(call, 1, call.flag("transB"))
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    bias = call.operand(2) if call.has(2) and beta != 0 else None
    if isinstance(left, Value) and isinstance(right, Tensor):
        weight = alpha * right.double().T
        if bias is None:
            return build.linear(left, weight)
        if isinstance(bias, Tensor) and bias.numel() in (1, bias.shape[-1] if bias.dim() else 1):
            return build.linear(left, weight, beta * bias.double().flatten())
        product: Operand = build.linear(left, weight)
    else:
        product = build.matmul(left, right)
        product = build.multiply(product, torch.tensor(alpha)) if alpha != 1 else product
    return product if bias is None else build.combine(product, bias, beta)


def _turned(call: Call, index: int, transposed: bool) -> Operand:
    x = call.operand(index)
    if len(x.shape) != 2:
        raise Unsupported(f"input {index} has shape {tuple(x.shape)}, not a matrix's")
    if not transposed:
        return x
    return call.build.permute(x, (1, 0)) if isinstance(x, Value) else x.T


# -- reductions -------------------------------------------------------------------


def _axes(call: Call, x: Value) -> tuple[int, ...]:
    axes = call.list_or_input("axes", 1)
    if not axes:
        return () if call.flag("noop_with_empty_axes") else tuple(range(x.rank))
    return tuple(sorted({axis_of(a, x.rank) for a in axes}))


@handles("ReduceSum", attributes="axes keepdims noop_with_empty_axes")
def reduce_sum(call: Call) -> Value:
    x = call.value()
    return call.build.sum(x, _axes(call, x), call.flag("keepdims", True))


@handles("ReduceMean", attributes="axes keepdims noop_with_empty_axes")
def reduce_mean(call: Call) -> Value:
    x = call.value()
    return call.build.mean(x, _axes(call, x), call.flag("keepdims", True))


@handles("ReduceMax", attributes="axes keepdims noop_with_empty_axes")
def reduce_max(call: Call) -> Value:
    x = call.value()
    return largest(call, x, _axes(call, x), call.flag("keepdims", True))


@handles("ReduceMin", attributes="axes keepdims noop_with_empty_axes")
def reduce_min(call: Call) -> Value:
    x = call.value()
    opposite = call.build.scale(x, -1.0)
    most = largest(call, opposite, _axes(call, x), call.flag("keepdims", True))
    return call.build.scale(most, -1.0)


def largest(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The maximum over some axes, which become 1 or disappear."""
    build = call.build
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    target = kept if keep else without(x.shape, axes)
    rest = [i for i in range(x.rank) if i not in axes]
    count = prod(x.shape[a] for a in axes)
    if count == 1:
        return build.reshape(x, target)
    gathered = build.permute(x, (*rest, *axes))
    entries = build.reshape(gathered, (*(x.shape[i] for i in rest), count))
    return build.reshape(build.add(Max(), entries), target)


# -- activations --------------------------------------------------------------------


@handles("Relu")
def relu(call: Call) -> Value:
    return call.build.add(Relu(), call.value())


@handles("LeakyRelu", attributes="alpha")
def leaky_relu(call: Call) -> Value:
    return call.build.add(LeakyRelu(call.number("alpha", 0.01)), call.value())


@handles("PRelu")
def prelu(call: Call) -> Value:
    x, slope = call.value(), call.constant(1, "slopes")
    if broadcast(x.shape, slope.shape) != x.shape:
        raise Unsupported(f"slopes of shape {tuple(slope.shape)} for an input of {x.shape}")
    return call.build.add(PRelu(slope.double()), x)


@handles("Sigmoid")
def sigmoid(call: Call) -> Value:
    return call.build.add(Sigmoid(), call.value())


@handles("Tanh")
def tanh(call: Call) -> Value:
    return call.build.add(Tanh(), call.value())


@handles("Atan")
def arctan(call: Call) -> Value:
    return call.build.add(Arctan(), call.value())


@handles("Softplus")
def softplus(call: Call) -> Value:
    return call.build.add(Softplus(), call.value())


@handles("Abs")
def absolute(call: Call) -> Value:
    return call.build.add(Abs(), call.value())


@handles("Elu", attributes="alpha")
def elu(call: Call) -> Value:
    return call.build.add(Elu(call.number("alpha", 1.0)), call.value())


@handles("Celu", attributes="alpha")
def celu(call: Call) -> Value:
    alpha = call.number("alpha", 1.0)
    if alpha <= 0:
        raise call.refuse_attribute("alpha")
    # celu(z) = alpha elu(z / alpha)
    inner = call.build.scale(call.value(), 1 / alpha)
    return call.build.scale(call.build.add(Elu(1.0), inner), alpha)


@handles("Selu", attributes="alpha gamma")
def selu(call: Call) -> Value:
    alpha, gamma = call.number("alpha", 1.6732632), call.number("gamma", 1.0507010)
    standard = torch.tensor([1.6732632423543772, 1.0507009873554805])
    if torch.equal(torch.tensor([alpha, gamma]), standard):  # in float32, as files store them
        return call.build.add(Selu(), call.value())
    return call.build.scale(call.build.add(Elu(alpha), call.value()), gamma)


@handles("Gelu", attributes="approximate")
def gelu(call: Call) -> Value:
    forms = {"none": Gelu(), "tanh": GeluTanh()}
    form = forms.get(call.text("approximate", "none"))
    if form is None:
        raise call.refuse_attribute("approximate")
    return call.build.add(form, call.value())


@handles("Swish", attributes="alpha")
def swish(call: Call) -> Value:
    alpha = call.number("alpha", 1.0)
    if alpha == 0:
        raise call.refuse_attribute("alpha")
    if alpha == 1:
        return call.build.add(Silu(), call.value())
    # z sigmoid(a z) = silu(a z) / a
    return call.build.scale(
        call.build.add(Silu(), call.build.scale(call.value(), alpha)), 1 / alpha
    )


@handles("HardSigmoid", attributes="alpha beta")
def hard_sigmoid(call: Call) -> Value:
    inner = call.build.scale(call.value(), call.number("alpha", 0.2), call.number("beta", 0.5))
    return call.build.add(Clip(0.0, 1.0), inner)


@handles("Clip", attributes="min max")
def clip(call: Call) -> Value:
    low = _limit(call, 1, "min", -inf)
    high = _limit(call, 2, "max", inf)
    return clipped(call, call.value(), low, high)


def _limit(call: Call, index: int, name: str, absent: float) -> float:
    if call.has(index):
        given = call.constant(index, name)
        bound = float(given)
        largest_number = torch.finfo(given.dtype).max
    else:
        bound = float(call.attributes.get(name, absent))
        largest_number = torch.finfo(torch.float32).max
    # Exporters write "no bound" as the largest number of the type.
    return absent if abs(bound) >= largest_number and (bound > 0) == (absent > 0) else bound


def clipped(call: Call, x: Value, low: float, high: float) -> Value:
    """min(max(x, low), high)."""
    if isnan(low) or isnan(high) or low >= high:
        raise Unsupported(f"clipping to [{low}, {high}]")
    if (low, high) == (-inf, inf):
        return x
    return call.build.add(Relu() if (low, high) == (0.0, inf) else Clip(low, high), x)


@handles("Max")
def maximum(call: Call) -> Value:
    x, bound = _value_and_bound(call, max)
    return clipped(call, x, bound, inf)


@handles("Min")
def minimum(call: Call) -> Value:
    x, bound = _value_and_bound(call, min)
    return clipped(call, x, -inf, bound)


def _value_and_bound(
    call: Call, strictest: Callable[[Iterable[float]], float]
) -> tuple[Value, float]:
    operands = [call.operand(i) for i in range(len(call.inputs))]
    values = [x for x in operands if isinstance(x, Value)]
    constants = [x for x in operands if isinstance(x, Tensor)]
    if len(values) > 1:
        raise Unsupported("of two computed tensors")
    if any(not bool((c == c.flatten()[0]).all()) for c in constants):
        raise Unsupported("with a constant that is not one number")
    shape = broadcast(*(x.shape for x in operands))
    x = call.build.expand(values[0], tuple(shape))
    if not constants:
        return x, -inf if strictest is max else inf
    return x, strictest(float(c.flatten()[0]) for c in constants)
