"""ONNX operators that become nonlinear sites, one or none for each node.

Which site a node becomes, and of what, is part of the certificate's format (docs/certificate.md),
since slopes belong to the entries that a site reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from math import inf

import numpy as np
from flint import arb, fmpq

import frown_check.functions as functions
from frown_check.balls import enclosed, precise
from frown_check.graph import View
from frown_check.model.affine import whole
from frown_check.model.calls import Call, Value, broadcast, operator, quotient, together
from frown_check.model.windows import largest


@operator(*functions.SIMPLE)
def simple(call: Call) -> Value:
    if call.node.last:  # see `ending`
        return call.view()
    return call.apply(call.view(), functions.SIMPLE[call.node.op]())


@operator("LeakyRelu", attributes="alpha")
def leaky_relu(call: Call) -> Value:
    return call.apply(call.view(), functions.leaky("LeakyRelu", call.number("alpha", 0.01)))


@operator("PRelu")
def prelu(call: Call) -> Value:
    x = call.view()
    slopes = np.broadcast_to(call.floats(1), x.shape).ravel()
    return call.apply(x, functions.leaky("PRelu", slopes))


@operator("Elu", attributes="alpha")
def elu(call: Call) -> Value:
    return call.apply(call.view(), functions.elu(call.number("alpha", 1.0), 1.0))


@operator("Selu", attributes="alpha gamma")
def selu(call: Call) -> Value:
    alpha = call.number("alpha", 1.6732631921768188)
    gamma = call.number("gamma", 1.0507010221481323)
    standard = np.array([1.6732632423543772, 1.0507009873554805], np.float32)
    if (np.array([alpha, gamma]) == standard).all():
        return call.apply(call.view(), functions.elu(alpha, gamma))
    return call.scale(call.apply(call.view(), functions.elu(alpha, 1.0)), gamma)


@operator("Celu", attributes="alpha")
def celu(call: Call) -> Value:
    """alpha elu(x / alpha)."""
    alpha = call.number("alpha", 1.0)
    call.refuse_if(alpha <= 0, f"attribute alpha={alpha}")
    inner = call.scale(call.view(), quotient(1.0, alpha))
    return call.scale(call.apply(inner, functions.elu(1.0, 1.0)), alpha)


@operator("HardSigmoid", attributes="alpha beta")
def hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    inner = call.scale(call.view(), alpha, np.array(beta))
    return call.apply(inner, functions.clip("Clip", 0.0, 1.0))


@operator("Gelu", attributes="approximate")
def gelu(call: Call) -> Value:
    form = call.attribute("approximate", "none")
    call.refuse_if(form not in ("none", "tanh"), f"attribute approximate={form}")
    return call.apply(call.view(), functions.gelu() if form == "none" else functions.gelu_tanh())


@operator("Swish", attributes="alpha")
def swish(call: Call) -> Value:
    """x sigmoid(a x) = silu(a x) / a."""
    alpha = call.number("alpha", 1.0)
    x = _with_axes(call)
    if alpha == 1:
        return call.apply(x, functions.silu())
    inner = call.apply(call.scale(x, alpha), functions.silu())
    return call.scale(inner, quotient(1.0, alpha))


@operator("frown_check::Written", attributes="kind slopes factor")
def written_out(call: Call) -> Value:
    """A product that `fuse` has recognised: factor times an activation, in the file's numbers."""
    kind, slopes, factor = (call.node.attributes[n] for n in ("kind", "slopes", "factor"))
    x = _with_axes(call)
    if kind == "Silu":  # x sigmoid(b x) = silu(b x) / b
        factor = factor / slopes[0]
        y = call.apply(_times(call, x, slopes[0]), functions.silu())
    elif kind == "Gelu":
        y = call.apply(x, functions.gelu(_rational(slopes[0])))
    else:
        y = call.apply(x, functions.gelu_tanh(*map(_rational, slopes)))
    return _times(call, y, factor)


def _times(call: Call, x: View, factor: Fraction) -> View:
    precise()
    return x if factor == 1 else call.scale(x, enclosed([arb(_rational(factor))], ()))


def _rational(number: Fraction) -> fmpq:
    return fmpq(number.numerator, number.denominator)


def _with_axes(call: Call) -> View:
    """Constants of one axis, as a file may write an activation with, give axes to a lone number:
    the result would have another shape."""
    x = call.view()
    call.refuse_if(not x.shape, "a tensor without axes")
    return x


# -- limits ---------------------------------------------------------------------------------------


MOST = float(np.finfo(np.float32).max)


@operator("Clip", attributes="min max")
def clip(call: Call) -> Value:
    """A limit that is left out is the last number of the tensor's type, float32 or a wider one: no
    further is the site followed."""
    low, high = _limit(call, 1, "min", -inf), _limit(call, 2, "max", inf)
    return clipped(call, call.view(), low, high, MOST)


def _limit(call: Call, i: int, name: str, absent: float) -> float:
    found = float(call.constant(i)) if call.has(i) else float(call.attribute(name, absent))
    call.refuse_if(np.isnan(found), f"{name}={found}")
    return found


def clipped(call: Call, x: View, low: float, high: float, most: float = inf) -> View:
    """Limits as large as float32 has numbers mean none to exporters: the site is then called
    what it is without them, but they are kept."""
    if not (low < min(high, most) and -most < high) or (low <= -MOST and high >= MOST):
        raise call.refuse(f"clipping to [{low}, {high}]")
    kind = "Relu" if low == 0 and high >= MOST else "Clip"
    return call.apply(x, functions.clip(kind, low, high, most))


@operator("Max")
def maximum(call: Call) -> Value:
    return _largest(call, call.values())


@operator("Min")
def minimum(call: Call) -> Value:
    """-max(-x, ...)."""
    turned = [
        call.scale(x, -1.0) if isinstance(x, View) else -call.finite(x) for x in call.values()
    ]
    return call.scale(_largest(call, turned), -1.0)


def _largest(call: Call, values: Sequence[Value]) -> View:
    views = [x for x in values if isinstance(x, View)]
    distinct = [v for i, v in enumerate(views) if not any(_same(v, w) for w in views[:i])]
    shape = together(*(x.shape for x in values))
    call.refuse_if(not distinct, "a maximum of constants")
    y = largest(call, call.stack([broadcast(v, shape) for v in distinct]))
    constants = [call.finite(x) for x in values if not isinstance(x, View)]
    if not constants:
        return y
    floor = reduce(np.maximum, constants)
    first = float(floor.ravel()[0])
    if (floor == first).all():
        return clipped(call, y, first, inf)
    # max(x, c) = relu(x - c) + c
    above = call.apply(call.scale(y, 1.0, -floor), functions.SIMPLE["Relu"]())
    return call.scale(above, 1.0, floor)


def _same(x: View, y: View) -> bool:
    return x.node == y.node and x.shape == y.shape and bool((x.index == y.index).all())


# -- products and powers ---------------------------------------------------------------------------


@operator("Mul")
def product(call: Call) -> Value:
    return times(call, call.value(0), call.value(1))


def times(call: Call, x: Value, y: Value) -> Value:
    """x y: a site where both are computed."""
    if isinstance(x, View):
        if not isinstance(y, View):
            return call.scale(x, y)
        if _same(x, y):
            return call.apply(x, functions.power(2.0))
        return call.apply_last(call.stack([x, y]), "Product")
    if isinstance(y, View):
        return call.scale(y, x)
    return whole(call, x, y, lambda a, b: a * b)


@operator("Div")
def division(call: Call) -> Value:
    x, y = call.value(0), call.value(1)
    if isinstance(y, View):
        if isinstance(x, View):
            raise call.refuse("a quotient of two computed tensors")
        return call.scale(call.apply(y, functions.power(-1.0)), x)
    call.refuse_if((y == 0).any(), "division by 0")
    if isinstance(x, View):
        return call.scale(x, quotient(1.0, call.finite(y)))
    return whole(call, x, y, lambda a, b: np.sign(a) * np.sign(b) * (abs(a) // abs(b)))


@operator("Pow")
def power(call: Call) -> Value:
    x, exponent = call.value(0), call.value(1)
    if isinstance(exponent, View):
        base = call.floats(0)
        call.refuse_if(not (base > 0).all(), "a power of a base that is not positive")
        precise()
        logs = enclosed([arb(b).log() for b in base.ravel().tolist()], base.shape)
        return call.apply(call.scale(exponent, logs), functions.SIMPLE["Exp"]())
    if not isinstance(x, View):
        raise call.refuse("a power of constants")
    powers = call.finite(exponent)
    p = float(powers.ravel()[0])
    call.refuse_if(not (powers == p).all() or p == 0, "such an exponent")
    wide = broadcast(x, together(x.shape, powers.shape))
    return wide if p == 1 else call.apply(wide, functions.power(p))
