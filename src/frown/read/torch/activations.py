"""Activations and maxima of ATen, one handler per operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from frown.graph import Builder, Op, Operand, Unsupported, Value
from frown.read import arithmetic
from frown.read.ending import applied
from frown.read.torch.ops import computed, constant, handles, neg, operand
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
    selu,
)

for _name, _op in {
    "relu": Relu(),
    "relu6": Clip(0.0, 6.0),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "atan": Arctan(),
    "selu": selu(),
    "silu": Silu(),
    "abs": Abs(),
    "hardswish": HardSwish(),
    "erf": Erf(),
    "exp": Exp(),
    "log": Log(),
    "sqrt": Power(0.5),
    "rsqrt": Power(-0.5),
    "reciprocal": Power(-1.0),
    "square": Power(2.0),
    "sin": Sin(),
    "cos": Cos(),
}.items():

    @handles(_name)
    def _activation(b: Builder, x: Value, _op: Op = _op) -> Value:
        return applied(b, _op, x)


@handles("exp2")
def exp2(b: Builder, x: Value) -> Value:
    return b.add(Exp(), b.scale(x, math.log(2)))


@handles("expm1")
def expm1(b: Builder, x: Value) -> Value:
    return b.scale(b.add(Exp(), x), 1.0, -1.0)


@handles("log1p")
def log1p(b: Builder, x: Value) -> Value:
    return b.add(Log(), b.scale(x, 1.0, 1.0))


for _name, _base in {"log2": 2, "log10": 10}.items():

    @handles(_name)
    def _logarithm(b: Builder, x: Value, _base: int = _base) -> Value:
        return b.scale(b.add(Log(), x), 1 / math.log(_base))


@handles("leaky_relu")
def leaky_relu(b: Builder, x: Value, negative_slope: float = 0.01) -> Value:
    return b.add(LeakyRelu(float(negative_slope)), x)


@handles("rrelu")
def rrelu(
    b: Builder,
    x: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Value:
    if training:
        raise Unsupported("random slopes; set training to False")
    return b.add(LeakyRelu((lower + upper) / 2), x)


@handles("prelu")
def prelu(b: Builder, x: Value, weight: Operand) -> Value:
    slope = constant(weight, "slope").double()
    channels = (-1, *([1] * (x.rank - 2))) if x.rank > 1 else (-1,)
    return b.add(PRelu(slope.reshape(channels)), x)


@handles("softplus")
def softplus(b: Builder, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    # torch continues with the identity where beta x > threshold; the gap is at most
    # log(1 + e^-threshold) / beta, 2.1e-9 for the defaults. Before it is divided by beta it is to
    # be small beside the rounding of a threshold in single precision, too.
    gap = math.log1p(math.exp(-threshold))
    if not beta > 0 or gap / beta > 2.1e-9 or gap > 1e-6:
        raise Unsupported(f"beta {beta} with threshold {threshold}; raise the threshold")
    if beta == 1:
        return applied(b, Softplus(), x)
    return b.scale(b.add(Softplus(), b.scale(x, float(beta))), 1.0 / beta)


@handles("log_sigmoid")
def log_sigmoid(b: Builder, x: Value) -> Value:
    return neg(b, b.add(Softplus(), neg(b, x)))


@handles("elu")
def elu(b: Builder, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if not (alpha > 0 and input_scale > 0):
        raise Unsupported(f"alpha {alpha} and input scale {input_scale}; both must be positive")
    inner = x if input_scale == 1 else b.scale(x, float(input_scale))
    steep = float(alpha * input_scale)
    if Fraction(alpha) * Fraction(input_scale) != Fraction(steep):
        raise Unsupported(f"alpha {alpha} times input scale {input_scale}, which is no float")
    y = b.add(Elu(steep), inner)
    return y if scale == input_scale else b.scale(y, scale / input_scale)


@handles("celu")
def celu(b: Builder, x: Value, alpha: float = 1.0) -> Value:
    if not alpha > 0:
        raise Unsupported(f"alpha {alpha}; it must be positive")
    inner = x if alpha == 1 else b.scale(x, 1.0 / alpha)
    y = b.add(Elu(1.0), inner)
    return y if alpha == 1 else b.scale(y, float(alpha))


@handles("gelu")
def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    return b.add(GeluTanh() if approximate == "tanh" else Gelu(), x)


@handles("hardsigmoid")
def hardsigmoid(b: Builder, x: Value) -> Value:
    return b.add(Clip(0.0, 1.0), b.scale(x, 1 / 6, 0.5))


@handles("threshold")
def threshold(b: Builder, x: Value, bound: float, value: float) -> Value:
    if bound != value:
        raise Unsupported(f"a jump at {bound}")
    return clamp(b, x, bound)


@handles("hardtanh")
def hardtanh(b: Builder, x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    return clamp(b, x, min_val, max_val)


# -- maxima ---------------------------------------------------------------------


@handles("clamp", "clamp_min")
def clamp(
    b: Builder, x: Operand, min: Operand | float | None = None, max: Operand | float | None = None
) -> Value:
    value = computed(x, "input")
    low = constant(operand(-math.inf if min is None else min), "limit")
    high = constant(operand(math.inf if max is None else max), "limit")
    if bool((low > high).any()):
        raise Unsupported("a lower limit above the upper limit")
    if low.dim() == high.dim() == 0:
        at_zero = float(low) == 0 and float(high) == math.inf
        return b.add(Relu() if at_zero else Clip(float(low), float(high)), value)
    if min is not None:
        value = arithmetic.at_least(b, value, low)
    return value if max is None else neg(b, arithmetic.at_least(b, neg(b, value), -high))


@handles("clamp_max")
def clamp_max(b: Builder, x: Operand, max: Operand | float) -> Value:
    return clamp(b, x, None, max)


@handles("maximum")
def maximum(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic.largest(b, (x, y))


@handles("minimum")
def minimum(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic.smallest(b, (x, y))


@handles("amax")
def amax(b: Builder, x: Value, axes: Sequence[int] = (), keepdim: bool = False) -> Value:
    gone = sorted(a % x.rank for a in axes) if axes else list(range(x.rank))
    left = [a for a in range(x.rank) if a not in gone]
    rest = tuple(x.shape[a] for a in left)
    count = math.prod(x.shape[a] for a in gone)
    windows = b.reshape(b.permute(x, (*left, *gone)), (*rest, count))
    y = b.add(Max(), windows) if count > 1 else b.reshape(windows, rest)
    kept = tuple(1 if a in gone else n for a, n in enumerate(x.shape))
    return b.reshape(y, kept) if keepdim else y


@handles("amin")
def amin(b: Builder, x: Value, axes: Sequence[int] = (), keepdim: bool = False) -> Value:
    return neg(b, amax(b, neg(b, x), axes, keepdim))


@handles("max.default")
def max_all(b: Builder, x: Value) -> Value:
    return amax(b, x)


@handles("min.default")
def min_all(b: Builder, x: Value) -> Value:
    return amin(b, x)


@handles("max.dim")
def max_along(b: Builder, x: Value, axis: int, keepdim: bool = False) -> tuple[Value, None]:
    return amax(b, x, (axis,), keepdim), None


@handles("min.dim")
def min_along(b: Builder, x: Value, axis: int, keepdim: bool = False) -> tuple[Value, None]:
    return amin(b, x, (axis,), keepdim), None
