"""Networks evaluated without any rounding: rational numbers, or Arb's balls where functions are
transcendental. Written from the operators' definitions, with none of their code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import ceil, floor, isinf
from typing import Any

import numpy as np
from flint import arb, fmpq
from torch import Tensor

from frown.graph import affine
from frown.graph.graph import Graph, Input
from frown.relax import convex, hump, maximum, piecewise, power, s_shaped, steps
from frown.relax import product as products

Exact = np.ndarray[Any, np.dtype[Any]]  # of fmpq or arb
Constant = Callable[[Tensor], Exact]


def rational(x: float) -> fmpq:
    return fmpq(*float(x).as_integer_ratio())


def exact(t: Tensor | np.ndarray | float) -> Exact:
    """The numbers of an array of floats, as they are."""
    values = np.asarray(t, dtype=np.float64)
    return np.array([rational(v) for v in values.ravel()], dtype=object).reshape(values.shape)


@dataclass
class Network:
    """A graph with its constants as exact numbers, converted once."""

    graph: Graph
    known: dict[int, Exact] = field(default_factory=dict)  # by the tensor's identity

    def constant(self, t: Tensor) -> Exact:
        if id(t) not in self.known:
            self.known[id(t)] = exact(t)
        return self.known[id(t)]

    def values(self, x: Exact) -> list[Exact]:
        """Every node's value at one input. The input's kind (fmpq or arb) is the result's."""
        found: list[Exact] = []
        for node in self.graph.nodes:
            inputs = [found[j] for j in node.inputs]
            y = x if isinstance(node.op, Input) else _value(node.op, inputs, self.constant)
            found.append(np.asarray(y, dtype=object).reshape(node.shape))
        return found


def balls(x: Exact) -> Exact:
    return np.array([arb(v) for v in x.ravel()], dtype=object).reshape(x.shape)


def _value(op: Any, xs: list[Exact], constant: Constant) -> Exact:
    x = xs[0]
    match op:
        case affine.Linear():
            return x @ constant(op.weight).T + constant(op.bias)
        case affine.Scale():
            return x * constant(op.factor) + constant(op.offset)
        case affine.Combine():
            return sum(rational(w) * v for w, v in zip(op.weights, xs, strict=True))
        case affine.Sum():
            return x.sum(axis=op.axes, keepdims=True)
        case affine.Conv():
            return _convolution(op, x, constant)
        case affine.Reshape():
            return x.reshape(op.target)
        case affine.Permute():
            return x.transpose(op.axes)
        case affine.Expand():
            return np.broadcast_to(x, op.target)
        case affine.Slice():
            window = [slice(None)] * x.ndim
            window[op.axis] = slice(op.start, op.stop, op.step)
            return x[tuple(window)]
        case affine.Gather():
            return np.take(x, op.index.numpy(), axis=op.axis)
        case affine.Concat():
            return np.concatenate(xs, axis=op.axis)
        case affine.Pad():
            kind = type(x.flat[0])
            return np.pad(x, op.widths, constant_values=kind(rational(op.value)))
        case products.Product():
            return x[..., 0] * x[..., 1]
        case maximum.Max():
            return x.max(axis=-1)
        case piecewise.PRelu():
            slopes = np.broadcast_to(constant(op.slope), x.shape)
            flat = [z if z > 0 else a * z for z, a in zip(x.ravel(), slopes.ravel(), strict=True)]
            return np.array(flat, dtype=object).reshape(x.shape)
    return np.array([function(op, z) for z in x.ravel()], dtype=object).reshape(x.shape)


def _convolution(op: affine.Conv, x: Exact, constant: Constant) -> Exact:
    """One axis of places; x is (1, channels, length)."""
    weight, bias = constant(op.weight), constant(op.bias)
    (stride,), (pad,), (dilation,) = op.stride, op.padding, op.dilation
    zero = 0 * x.flat[0]
    wide = np.pad(x[0], ((0, 0), (pad, pad)), constant_values=zero)
    outputs, inputs, taps = weight.shape
    count = (wide.shape[1] - dilation * (taps - 1) - 1) // stride + 1
    y = np.empty((1, outputs, count), dtype=object)
    per = outputs // op.groups
    for o, place in product(range(outputs), range(count)):
        first = (o // per) * inputs
        y[0, o, place] = bias[o] + sum(
            weight[o, i, k] * wide[first + i, place * stride + k * dilation]
            for i, k in product(range(inputs), range(taps))
        )
    return y


def function(op: Any, z: Any) -> Any:
    """f(z): exact for rational z where f is piecewise linear, a ball otherwise."""
    kind = type(z)
    match op:
        case piecewise.Relu():
            return z if z > 0 else 0 * z
        case piecewise.LeakyRelu():
            return z if z > 0 else rational(op.slope) * z
        case piecewise.Moderate():
            return z
        case piecewise.Abs():
            return abs(z)
        case piecewise.Clip():
            low = z if isinf(op.lo) else max(z, kind(rational(op.lo)))
            return low if isinf(op.hi) else min(low, kind(rational(op.hi)))
        case steps.Floor() | steps.Ceil() | steps.Round() | steps.Sign():
            at = z.fmpq() if isinstance(z, arb) else z
            place = Fraction(int(at.p), int(at.q))
            known = {steps.Floor: floor, steps.Ceil: ceil, steps.Round: round}
            whole = known[type(op)](place) if type(op) in known else (place > 0) - (place < 0)
            return kind(whole)
        case s_shaped.Sigmoid():
            return 1 / (1 + (-z).exp())
        case s_shaped.Tanh():
            return z.tanh()
        case s_shaped.Arctan():
            return z.atan()
        case convex.Softplus():
            return z.exp().log1p() if z < 0 else z + (-z).exp().log1p()
        case power.Exp():
            return z.exp()
        case convex.Elu():
            scale, alpha = arb(rational(op.scale)), arb(rational(op.alpha))
            return scale * z if z > 0 else scale * alpha * z.expm1()
        case hump.Silu():
            return z / (1 + (-z).exp())
        case hump.Gelu():
            return z * (-z / arb(2).sqrt()).erfc() / 2
        case hump.GeluTanh():
            if op.standard:
                linear = (arb(2) / arb.pi()).sqrt()
                cubic = linear * arb(fmpq(44715, 1000000))
            else:
                linear, cubic = arb(rational(op.linear)), arb(rational(op.cubic))
            return z / (1 + (-2 * (linear + cubic * z * z) * z).exp())
    raise AssertionError(f"{type(op).__name__} has no exact form here: add one")
