"""ONNX arithmetic, matrix products, reductions and activations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import inf, prod, sqrt

import torch
from torch import Tensor

from frown.graph import Op, Operand, Unsupported, Value, broadcast, lossless
from frown.read import arithmetic, matrices
from frown.read.ending import applied
from frown.read.onnx.call import Call, axes_once, axis_of, handles, without
from frown.read.onnx.fuse import WRITTEN_GELU
from frown.relax import (
    Abs,
    Arctan,
    Clip,
    Cos,
    Elu,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    HardSwish,
    LeakyRelu,
    Log,
    Max,
    Power,
    PRelu,
    Relu,
    Sigmoid,
    Silu,
    Sin,
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
    # Computed ones first: constants are added to them one by one, and never to each other.
    terms.sort(key=lambda x: isinstance(x, Tensor))
    return reduce(lambda x, y: call.build.combine(x, y, 1.0), terms)


@handles("Neg")
def negate(call: Call) -> Value:
    return call.build.scale(call.value(), -1.0)


@handles("Mul")
def multiply(call: Call) -> Operand:
    return arithmetic.multiply(call.build, call.operand(0), call.operand(1))


@handles("Div")
def divide(call: Call) -> Operand:
    return arithmetic.divide(call.build, call.operand(0), call.operand(1))


@handles("Pow")
def power(call: Call) -> Operand:
    return arithmetic.power(call.build, call.operand(0), call.operand(1))


@handles("Where")
def where(call: Call) -> Operand:
    mask = call.constant(0, "a condition")
    return arithmetic.where(call.build, mask, call.operand(1), call.operand(2))


@handles("CumSum", attributes="exclusive reverse")
def running_sum(call: Call) -> Value:
    x = call.value()
    axes = call.integers(1, "an axis")
    if len(axes) != 1:
        raise Unsupported(f"axes {axes}")
    axis = axis_of(axes[0], x.rank)
    return arithmetic.running_sum(call.build, x, axis, call.flag("exclusive"), call.flag("reverse"))


# -- matrix products --------------------------------------------------------------


@handles("MatMul")
def matmul(call: Call) -> Operand:
    return matrices.matmul(call.build, call.operand(0), call.operand(1))


@handles("Gemm", attributes="alpha beta transA transB")
def gemm(call: Call) -> Operand:
    build = call.build
    left = _turned(call, 0, call.flag("transA"))
    right = _turned(call, 1, call.flag("transB"))
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    bias = call.operand(2) if call.has(2) and beta != 0 else None
    target = (left.shape[0], right.shape[1])
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        left = build.constant(left.double())  # whose product with the other is charged as any
    if bias is not None and broadcast(target, tuple(bias.shape)) != target:
        raise Unsupported(f"a bias of shape {tuple(bias.shape)} for a product of {target}")
    if isinstance(left, Value) and isinstance(right, Tensor):
        right = right.double().T
        weight = lossless(alpha * right, right, torch.tensor(alpha))
        if bias is None:
            return build.linear(left, weight)
        if isinstance(bias, Tensor) and bias.numel() in (1, bias.shape[-1] if bias.dim() else 1):
            bias = bias.double().flatten()
            return build.linear(left, weight, lossless(beta * bias, bias))
        product: Operand = build.linear(left, weight)
    else:
        product = matrices.matmul(build, left, right)
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


def axes_of(call: Call, x: Value) -> tuple[int, ...]:
    """The axes that a reduction goes over."""
    axes = call.list_or_input("axes", 1)
    if not axes:
        return () if call.flag("noop_with_empty_axes") else tuple(range(x.rank))
    return tuple(sorted(axes_once(axes, x.rank)))


@handles("ReduceSum", attributes="axes keepdims noop_with_empty_axes")
def reduce_sum(call: Call) -> Value:
    x = call.value()
    return call.build.sum(x, axes_of(call, x), call.flag("keepdims", True))


@handles("ReduceMean", attributes="axes keepdims noop_with_empty_axes")
def reduce_mean(call: Call) -> Value:
    x = call.value()
    return call.build.mean(x, axes_of(call, x), call.flag("keepdims", True))


@handles("ReduceMax", attributes="axes keepdims noop_with_empty_axes")
def reduce_max(call: Call) -> Value:
    x = call.value()
    return largest(call, x, axes_of(call, x), call.flag("keepdims", True))


@handles("ReduceMin", attributes="axes keepdims noop_with_empty_axes")
def reduce_min(call: Call) -> Value:
    x = call.value()
    opposite = call.build.scale(x, -1.0)
    most = largest(call, opposite, axes_of(call, x), call.flag("keepdims", True))
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


for _name, _function in {
    "Abs": Abs(),
    "Atan": Arctan(),
    "Cos": Cos(),
    "Erf": Erf(),
    "Exp": Exp(),
    "HardSwish": HardSwish(),
    "Log": Log(),
    "Reciprocal": Power(-1.0),
    "Relu": Relu(),
    "Sigmoid": Sigmoid(),
    "Sin": Sin(),
    "Softplus": Softplus(),
    "Sqrt": Power(0.5),
    "Tanh": Tanh(),
}.items():

    @handles(_name)
    def _activation(call: Call, _function: Op = _function) -> Value:
        return applied(call.build, _function, call.value())


@handles("LeakyRelu", attributes="alpha")
def leaky_relu(call: Call) -> Value:
    return call.build.add(LeakyRelu(call.number("alpha", 0.01)), call.value())


@handles("PRelu")
def prelu(call: Call) -> Value:
    x, slope = call.value(), call.constant(1, "slopes")
    if broadcast(x.shape, slope.shape) != x.shape:
        raise Unsupported(f"slopes of shape {tuple(slope.shape)} for an input of {x.shape}")
    return call.build.add(PRelu(slope.double()), x)


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
    alpha, gamma = (
        call.number("alpha", 1.6732631921768188),
        call.number("gamma", 1.0507010221481323),
    )
    standard = torch.tensor([1.6732632423543772, 1.0507009873554805])
    if torch.equal(torch.tensor([alpha, gamma]), standard):  # in float32, as files store them
        return call.build.add(Elu(alpha, gamma), call.value())
    return call.build.scale(call.build.add(Elu(alpha), call.value()), gamma)


@handles("Gelu", attributes="approximate")
def gelu(call: Call) -> Value:
    forms = {"none": Gelu(), "tanh": GeluTanh()}
    form = forms.get(call.text("approximate", "none"))
    if form is None:
        raise call.refuse_attribute("approximate")
    return call.build.add(form, call.value())


@handles(WRITTEN_GELU, attributes="linear cubic")
def written_gelu(call: Call) -> Value:
    """A GELU that a file writes out and `fuse` has recognised, with the file's own constants."""
    _with_axes(call)
    linear, cubic = float(call.attributes["linear"]), float(call.attributes["cubic"])
    if cubic != 0:
        return call.build.add(GeluTanh(linear, cubic), call.value())
    # t (1 + erf(c t)) / 2 = gelu(a t) / a with a = sqrt(2) c
    steepness = linear * sqrt(2)
    inner = call.build.add(Gelu(), call.build.scale(call.value(), steepness))
    return call.build.scale(inner, 1 / steepness)


def _with_axes(call: Call) -> None:
    """A number without axes, given those of the one-axis constants that an activation is written
    with."""
    if not call.value().rank:
        raise Unsupported("an activation of a tensor without axes, which may be written out")


@handles("Swish", attributes="alpha")
def swish(call: Call) -> Value:
    _with_axes(call)
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
    return arithmetic.clipped(call.build, call.value(), low, high)


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


@handles("Max")
def maximum(call: Call) -> Operand:
    return arithmetic.largest(call.build, [call.operand(i) for i in range(len(call.inputs))])


@handles("Min")
def minimum(call: Call) -> Operand:
    return arithmetic.smallest(call.build, [call.operand(i) for i in range(len(call.inputs))])
