"""Activations and maxima of ATen, one handler per operator."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from frown.graph import Builder, Op, Operand, Unsupported, Value
from frown.read import activations, arithmetic
from frown.read.activations import PLAIN, scaled
from frown.read.model import applied
from frown.read.torch.ops import handles, neg
from frown.relax import Clip, Elu, Exp, LeakyRelu, Log, Power, Relu, Silu, Softplus, selu

_PLAIN: dict[str, Op] = {name.lower(): op for name, op in PLAIN.items() if name != "Softplus"}
_PLAIN |= {"relu6": Clip(0.0, 6.0), "selu": selu(), "silu": Silu()}
_PLAIN |= {"rsqrt": Power(-0.5), "square": Power(2.0)}

for _name, _op in _PLAIN.items():

    @handles(_name)
    def _activation(b: Builder, x: Value, *, _op: Op = _op) -> Value:
        return applied(b, _op, x)


# outer op(inner x + before) + after, the numbers in the order of `scaled`.
_SCALED: dict[str, tuple[Op, tuple[float, ...]]] = {
    "exp2": (Exp(), (1.0, math.log(2))),
    "expm1": (Exp(), (1.0, 1.0, -1.0)),
    "log10": (Log(), (1 / math.log(10),)),
    "log1p": (Log(), (1.0, 1.0, 0.0, 1.0)),
    "log2": (Log(), (1 / math.log(2),)),
    "log_sigmoid": (Softplus(), (-1.0, -1.0)),
}
for _name, (_op, _scale) in _SCALED.items():

    @handles(_name)
    def _scaled_activation(
        b: Builder, x: Value, *, _op: Op = _op, _scale: tuple[float, ...] = _scale
    ) -> Value:
        return scaled(b, _op, x, *_scale)


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
def prelu(b: Builder, x: Value, slope: Tensor) -> Value:
    channels = (-1, *([1] * (x.rank - 2))) if x.rank > 1 else (-1,)
    return activations.prelu(b, x, slope.reshape(channels))


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
    return scaled(b, Softplus(), x, 1.0 / beta, float(beta))


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


handles("celu")(activations.celu)
handles("gelu")(activations.gelu)


@handles("hardsigmoid")
def hardsigmoid(b: Builder, x: Value) -> Value:
    return activations.hard_sigmoid(b, x, 1 / 6, 0.5)


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
    b: Builder, x: Value, min: Tensor | float | None = None, max: Tensor | float | None = None
) -> Value:
    low = torch.as_tensor(-math.inf if min is None else min, dtype=torch.float64)
    high = torch.as_tensor(math.inf if max is None else max, dtype=torch.float64)
    if bool((low > high).any()):
        raise Unsupported("a lower limit above the upper limit")
    if low.dim() == high.dim() == 0:
        at_zero = float(low) == 0 and float(high) == math.inf
        return b.add(Relu() if at_zero else Clip(float(low), float(high)), x)
    if min is not None:
        x = arithmetic.at_least(b, x, low)
    return x if max is None else neg(b, arithmetic.at_least(b, neg(b, x), -high))


@handles("clamp_max")
def clamp_max(b: Builder, x: Value, max: Tensor | float) -> Value:
    return clamp(b, x, None, max)


@handles("maximum")
def maximum(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic.largest(b, (x, y))


@handles("minimum")
def minimum(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic.smallest(b, (x, y))
