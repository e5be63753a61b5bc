"""ONNX arithmetic, matrix products, reductions and activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf, sqrt

import torch
from torch import Tensor

from frown.graph import Builder, Op, Operand, Unsupported, Value, broadcast, lossless
from frown.read import activations, arithmetic, matrices
from frown.read.activations import scaled
from frown.read.arithmetic import OfTwo, Reduction
from frown.read.model import applied
from frown.read.onnx.call import Call, axes_once, axis_of, handles
from frown.read.onnx.fuse import WRITTEN_GELU
from frown.relax import Elu, Gelu, GeluTanh, LeakyRelu, Silu

WithAlpha = Callable[[Builder, Value, float], Value]

# -- arithmetic -----------------------------------------------------------------


for _name, _of_two in {
    "Add": arithmetic.add,
    "Div": arithmetic.divide,
    "MatMul": matrices.matmul,
    "Mul": arithmetic.multiply,
    "Pow": arithmetic.power,
    "Sub": arithmetic.subtract,
}.items():

    @handles(_name)
    def _arithmetic(call: Call, _of_two: OfTwo = _of_two) -> Operand:
        return _of_two(call.build, call.operand(0), call.operand(1))


@handles("Sum")
def add_all(call: Call) -> Operand:
    terms = [call.operand(i) for i in range(len(call.inputs))]
    # Computed ones first: constants are added to them one by one, and never to each other.
    terms.sort(key=lambda x: isinstance(x, Tensor))
    return reduce(lambda x, y: call.build.combine(x, y, 1.0), terms)


@handles("Neg")
def negate(call: Call) -> Value:
    return call.build.scale(call.value(), -1.0)


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
    if alpha == 1 and isinstance(left, Value) and isinstance(right, Tensor):
        if bias is None:
            return build.linear(left, right.T)
        if isinstance(bias, Tensor) and bias.numel() in (1, bias.shape[-1] if bias.dim() else 1):
            bias = bias.double().flatten()
            return build.linear(left, right.T, lossless(beta * bias, bias))
    # alpha apart: executed, a product may overflow before alpha makes it small.
    product = matrices.matmul(build, left, right)
    product = arithmetic.multiply(build, product, torch.tensor(alpha)) if alpha != 1 else product
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
    """The axes that a reduction goes over."""
    axes = call.list_or_input("axes", 1)
    if not axes:
        return () if call.flag("noop_with_empty_axes") else tuple(range(x.rank))
    return tuple(sorted(axes_once(axes, x.rank)))


for _name, _reduction in {
    "ReduceL1": arithmetic.absolute_sum,
    "ReduceL2": arithmetic.euclidean_norm,
    "ReduceLogSumExp": arithmetic.log_sum_exp,
    "ReduceMax": arithmetic.largest_over,
    "ReduceMean": Builder.mean,
    "ReduceMin": arithmetic.smallest_over,
    "ReduceSum": Builder.sum,
    "ReduceSumSquare": arithmetic.sum_of_squares,
}.items():

    @handles(_name, attributes="axes keepdims noop_with_empty_axes")
    def _reduce(call: Call, _reduction: Reduction = _reduction) -> Value:
        x = call.value()
        return _reduction(call.build, x, _axes(call, x), call.flag("keepdims", True))


# -- activations --------------------------------------------------------------------


for _name, _function in activations.PLAIN.items():

    @handles(_name)
    def _activation(call: Call, _function: Op = _function) -> Value:
        return applied(call.build, _function, call.value())


for _name, _usual, _with in (
    ("Celu", 1.0, activations.celu),
    ("Elu", 1.0, lambda b, x, alpha: b.add(Elu(alpha), x)),
    ("LeakyRelu", 0.01, lambda b, x, alpha: b.add(LeakyRelu(alpha), x)),
):

    @handles(_name, attributes="alpha")
    def _with_alpha(call: Call, _usual: float = _usual, _with: WithAlpha = _with) -> Value:
        return _with(call.build, call.value(), call.number("alpha", _usual))


@handles("PRelu")
def prelu(call: Call) -> Value:
    return activations.prelu(call.build, call.value(), call.constant(1, "slopes"))


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
    return activations.gelu(call.build, call.value(), call.text("approximate", "none"))


@handles(WRITTEN_GELU, attributes="linear cubic")
def written_gelu(call: Call) -> Value:
    """A GELU that a file writes out and `fuse` has recognised, with the file's own constants."""
    _require_axes(call)
    linear, cubic = float(call.attributes["linear"]), float(call.attributes["cubic"])
    if cubic != 0:
        return call.build.add(GeluTanh(linear, cubic), call.value())
    # t (1 + erf(c t)) / 2 = gelu(a t) / a with a = sqrt(2) c
    steepness = linear * sqrt(2)
    return scaled(call.build, Gelu(), call.value(), 1 / steepness, steepness)


def _require_axes(call: Call) -> None:
    """Refuse a number without axes: constants of one axis, with which an activation may be
    written out, would give it theirs."""
    if not call.value().rank:
        raise Unsupported("an activation of a tensor without axes, which may be written out")


@handles("Swish", attributes="alpha")
def swish(call: Call) -> Value:
    _require_axes(call)
    alpha = call.number("alpha", 1.0)
    if alpha == 0:
        raise call.refuse_attribute("alpha")
    # z sigmoid(a z) = silu(a z) / a
    return scaled(call.build, Silu(), call.value(), 1 / alpha, alpha)


@handles("HardSigmoid", attributes="alpha beta")
def hard_sigmoid(call: Call) -> Value:
    slope, offset = call.number("alpha", 0.2), call.number("beta", 0.5)
    return activations.hard_sigmoid(call.build, call.value(), slope, offset)


@handles("Clip", attributes="min max")
def clip(call: Call) -> Value:
    (low, below), (high, above) = _limit(call, 1, "min", -inf), _limit(call, 2, "max", inf)
    return arithmetic.clipped(call.build, call.value(), low, high, min(below, above))


def _limit(call: Call, index: int, name: str, absent: float) -> tuple[float, float]:
    """A limit, and what it is known up to."""
    if call.has(index):
        given = call.constant(index, name)
        bound = float(given)
        largest_number = float(torch.finfo(given.dtype).max)
    else:
        bound = float(call.attributes.get(name, absent))
        # One that is left out is the largest number of the tensor's type, this or a wider one.
        largest_number = float(torch.finfo(torch.float32).max)
    # Exporters write "no bound" as the largest number of the type.
    if abs(bound) >= largest_number and (bound > 0) == (absent > 0):
        return absent, largest_number
    return bound, inf


@handles("Max", "Min")
def extreme(call: Call) -> Value:
    of = arithmetic.largest if call.op == "Max" else arithmetic.smallest
    return of(call.build, [call.operand(i) for i in range(len(call.inputs))])
