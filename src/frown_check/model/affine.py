"""ONNX operators that compute sums: arithmetic with constants, matrix products, running
sums, batch normalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

import numpy as np
from flint import arb

from frown_check.balls import Ball, enclosed, multiply, precise
from frown_check.graph import View
from frown_check.model.calls import Call, Constant, Value, indexed, moved, operator, together

MOST_NUMBERS = 2**16  # that are added or multiplied one by one: shapes and places

# -- arithmetic ---------------------------------------------------------------------------


@operator("Add", "Sub")
def addition(call: Call) -> Value:
    return combine(call, call.value(0), call.value(1), 1.0 if call.node.op == "Add" else -1.0)


@operator("Sum")
def sum_all(call: Call) -> Value:
    return reduce(lambda x, y: combine(call, x, y, 1.0), call.values())


@operator("Neg")
def negation(call: Call) -> Value:
    x = call.value(0)
    if isinstance(x, View):
        return call.scale(x, -1.0)
    return -x if x.dtype.kind == "f" else whole(call, x, x, lambda a, _: -a)


def combine(call: Call, x: Value, y: Value, sign: float) -> Value:
    """x + sign y."""
    if isinstance(x, View):
        if isinstance(y, View):
            return call.sum(call.stack([x, y]), (1.0, sign))
        return call.scale(x, 1.0, sign * call.finite(y))
    if isinstance(y, View):
        return call.scale(y, sign, x)
    return whole(call, x, y, lambda a, b: a + int(sign) * b)


def whole(
    call: Call, x: Constant, y: Constant, compute: Callable[[Constant, Constant], Constant]
) -> Constant:
    """Arithmetic on constants: of integers of one type alone, and where none leaves its range."""
    if x.dtype.kind not in "iu" or x.dtype != y.dtype:
        raise call.refuse("arithmetic on constants that are not integers")
    size = prod(np.broadcast_shapes(x.shape, y.shape))
    call.refuse_if(size > MOST_NUMBERS, f"arithmetic on {size} constants")
    exact = np.asarray(compute(x.astype(object), y.astype(object)), dtype=object)
    limits = np.iinfo(x.dtype)
    if any(not limits.min <= int(n) <= limits.max for n in exact.ravel()):
        raise call.refuse("arithmetic on integers that overflows")
    return exact.astype(x.dtype)


@operator("Where")
def where(call: Call) -> Value:
    mask = call.constant(0).astype(bool)
    x, y = call.value(1), call.value(2)
    shape = together(mask.shape, x.shape, y.shape)
    if not isinstance(x, View) and not isinstance(y, View):
        return np.where(mask, x, y)
    kept: list[Value] = []
    for side, branch in ((mask, x), (~mask, y)):
        if isinstance(branch, View):
            wide = np.broadcast_to(branch.index, shape)
            kept.append(View(branch.node, np.where(side, wide, -1)))
        else:
            kept.append(np.where(side, call.finite(branch), 0.0))
    return combine(call, kept[0], kept[1], 1.0)


@operator("CumSum", attributes="exclusive reverse")
def running_sum(call: Call) -> Value:
    x = call.view()
    (axis,) = call.integers(1)
    n = x.shape[call.axis(axis, len(x.shape))]
    matrix = np.tril(np.ones(together((n, 1), (1, n))), -1 if call.attribute("exclusive", 0) else 0)
    matrix = matrix if call.attribute("reverse", 0) else matrix.T  # y = x matrix
    last = np.moveaxis(x.index, axis, -1)
    y = call.linear(View(x.node, last.reshape(1, -1, n)), Ball(matrix[None]))
    return View(y.node, np.moveaxis(y.index.reshape(last.shape), -1, axis))


# -- matrix products -------------------------------------------------------------------------


@operator("MatMul")
def matrix_product(call: Call) -> Value:
    x, y = call.value(0), call.value(1)
    if isinstance(x, View):
        return _times(call, x, call.floats(1))
    if len(x.shape) == 1 or len(y.shape) == 1 or not isinstance(y, View):
        raise call.refuse("such a product")
    flipped = View(y.node, np.swapaxes(y.index, -1, -2))
    z = _times(call, flipped, np.swapaxes(call.floats(0), -1, -2))
    return View(z.node, np.swapaxes(z.index, -1, -2))


def _times(call: Call, x: View, y: Constant) -> View:
    """x @ y, the constant y a matrix (axes of 1 before it) or a vector."""
    if any(n != 1 for n in y.shape[:-2]):
        raise call.refuse(f"a product with a constant of shape {y.shape}")
    matrix = y.reshape(y.shape[-2:]) if y.ndim > 1 else y[:, None]
    z = call.linear(moved(x, (1, -1, x.shape[-1])), Ball(matrix[None]))
    added = max(0, y.ndim - max(2, len(x.shape)))
    shape = ((1,) * added + x.shape[:-1]) + (matrix.shape[1:] if y.ndim > 1 else ())
    return moved(z, shape)


@operator("Gemm", attributes="alpha beta transA transB")
def gemm(call: Call) -> Value:
    x = indexed(call.view(0), lambda a: a.T if call.attribute("transA", 0) else a)
    weight = call.floats(1)
    weight = weight.T if call.attribute("transB", 0) else weight
    if not isinstance(x, View) or len(x.shape) != 2 or weight.ndim != 2:
        raise call.refuse("such a product")
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    scaled = Ball(weight) if alpha == 1 else multiply(Ball(weight), Ball(np.array(alpha)))
    y = moved(call.linear(moved(x, (1, *x.shape)), scaled.map(lambda w: w[None])), (x.shape[0], -1))
    if not call.has(2) or beta == 0:
        return y
    bias = call.value(2)
    if together(y.shape, bias.shape) != y.shape:
        raise call.refuse(f"a bias of shape {bias.shape} for a product of {y.shape}")
    if isinstance(bias, View):
        added = bias if beta == 1 else call.scale(bias, beta)
        return combine(call, y, added, 1.0)
    offset = Ball(call.floats(2))
    return call.scale(y, 1.0, offset if beta == 1 else multiply(offset, Ball(np.array(beta))))


# -- normalisation ---------------------------------------------------------------------------


@operator("BatchNormalization", attributes="epsilon momentum spatial training_mode")
def batch_normalization(call: Call) -> Value:
    if call.attribute("training_mode", 0) or not call.attribute("spatial", 1):
        raise call.refuse("such a mode")
    # Before opset 14, statistics among the outputs mean training.
    call.refuse_if(len(call.node.outputs) > 1, "more than one output")
    x = call.view()
    parts = [call.floats(i) for i in range(1, 5)]
    if any(a.shape != x.shape[1:2] or not a.shape for a in parts):
        raise call.refuse("parameters that do not fit the channels")
    precise()
    epsilon, factors, offsets = arb(call.number("epsilon", 1e-5)), [], []
    for s, b, m, v in zip(*(a.tolist() for a in parts)):
        factors.append(factor := arb(s) / (arb(v) + epsilon).sqrt())
        offsets.append(arb(b) - arb(m) * factor)
    shape = (x.shape[1], *([1] * (len(x.shape) - 2)))
    return call.scale(x, enclosed(factors, shape), enclosed(offsets, shape))
