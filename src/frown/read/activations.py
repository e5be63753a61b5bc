"""Activations that both front ends read."""

from __future__ import annotations

from torch import Tensor

from frown.graph import Builder, Op, Unsupported, Value, broadcast
from frown.relax import (
    Abs,
    Arctan,
    Ceil,
    Clip,
    Cos,
    Elu,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSwish,
    Log,
    Power,
    PRelu,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Sin,
    Softplus,
    Tanh,
)

# By ONNX's names, which are ATen's in small letters.
PLAIN: dict[str, Op] = {
    "Abs": Abs(),
    "Atan": Arctan(),
    "Ceil": Ceil(),
    "Cos": Cos(),
    "Erf": Erf(),
    "Exp": Exp(),
    "Floor": Floor(),
    "HardSwish": HardSwish(),
    "Log": Log(),
    "Reciprocal": Power(-1.0),
    "Relu": Relu(),
    "Round": Round(),
    "Sigmoid": Sigmoid(),
    "Sign": Sign(),
    "Sin": Sin(),
    "Softplus": Softplus(),
    "Sqrt": Power(0.5),
    "Tanh": Tanh(),
}


def scaled(
    b: Builder,
    op: Op | None,
    x: Value,
    outer: float = 1.0,
    inner: float = 1.0,
    after: float = 0.0,
    before: float = 0.0,
) -> Value:
    """outer op(inner x + before) + after."""
    if (inner, before) != (1.0, 0.0):
        x = b.scale(x, inner, before)
    y = x if op is None else b.add(op, x)
    return y if (outer, after) == (1.0, 0.0) else b.scale(y, outer, after)


def celu(b: Builder, x: Value, alpha: float = 1.0) -> Value:
    """alpha elu(x / alpha)."""
    if not alpha > 0:
        raise Unsupported(f"alpha={alpha}; it must be positive")
    return scaled(b, Elu(1.0), x, outer=float(alpha), inner=1 / alpha)


def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    forms = {"none": Gelu(), "tanh": GeluTanh()}
    if approximate not in forms:
        raise Unsupported(f"approximate={approximate!r}")
    return b.add(forms[approximate], x)


def hard_sigmoid(b: Builder, x: Value, slope: float, offset: float) -> Value:
    """min(max(slope x + offset, 0), 1)."""
    return scaled(b, Clip(0.0, 1.0), x, inner=slope, before=offset)


def prelu(b: Builder, x: Value, slope: Tensor) -> Value:
    """x above 0, slope x below; slopes broadcast to x's shape."""
    if broadcast(x.shape, tuple(slope.shape)) != x.shape:
        raise Unsupported(f"slopes of shape {tuple(slope.shape)} for an input of {x.shape}")
    return b.add(PRelu(slope.double()), x)
