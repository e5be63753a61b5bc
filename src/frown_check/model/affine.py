"""ONNX operators that compute sums: arithmetic with constants, matrix products, convolutions,
means, normalisation. Windows are index arithmetic, after which a convolution is a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np
from flint import arb

from frown_check.balls import Ball, Index, enclosed, multiply, precise
from frown_check.graph import MOST_ENTRIES, View
from frown_check.model.calls import Call, Constant, Value, indexed, moved, operator, quotient

# -- arithmetic ---------------------------------------------------------------------------


@operator("Add")
def addition(call: Call) -> Value:
    return combine(call, call.value(0), call.value(1), 1.0)


@operator("Sub")
def subtraction(call: Call) -> Value:
    return combine(call, call.value(0), call.value(1), -1.0)


@operator("Sum")
def sum_all(call: Call) -> Value:
    values = [call.value(i) for i in range(len(call.inputs))]
    return reduce(lambda x, y: combine(call, x, y, 1.0), values)


@operator("Neg")
def negation(call: Call) -> Value:
    x = call.value(0)
    if isinstance(x, View):
        return call.scale(x, Ball(np.array(-1.0)))
    return -x if x.dtype.kind == "f" else whole(call, x, x, lambda a, _: -a)


def combine(call: Call, x: Value, y: Value, sign: float) -> Value:
    """x + sign y."""
    if not isinstance(x, View) and not isinstance(y, View):
        return whole(call, x, y, lambda a, b: a + int(sign) * b)
    if isinstance(x, View) and isinstance(y, View):
        shape = np.broadcast_shapes(x.shape, y.shape)
        wide = [View(v.node, np.broadcast_to(v.index, shape)) for v in (x, y)]
        return call.sum(call.graph.stack(wide), (1.0, sign))
    if isinstance(x, View):
        return call.scale(x, None, Ball(sign * finite(call, y)))
    assert isinstance(y, View)
    return call.scale(y, Ball(np.array(sign)), Ball(finite(call, x)))


def finite(call: Call, x: Value) -> Constant:
    assert not isinstance(x, View)
    found = x.astype(np.float64)
    if not np.isfinite(found).all():
        raise call.refuse("a constant that is infinite or NaN")
    return found


def whole(
    call: Call, x: Constant, y: Constant, compute: Callable[[Constant, Constant], Constant]
) -> Constant:
    """Arithmetic on constants: of integers of one type alone, and where none leaves its range."""
    if x.dtype.kind not in "iu" or x.dtype != y.dtype:
        raise call.refuse("arithmetic on constants that are not integers")
    exact = np.asarray(compute(x.astype(object), y.astype(object)), dtype=object)
    limits = np.iinfo(x.dtype)
    if any(not limits.min <= int(n) <= limits.max for n in exact.ravel()):
        raise call.refuse("arithmetic on integers that overflows")
    return exact.astype(x.dtype)


@operator("Where")
def where(call: Call) -> Value:
    mask = call.constant(0).astype(bool)
    x, y = call.value(1), call.value(2)
    if not isinstance(x, View) and not isinstance(y, View):
        return np.where(mask, x, y)
    shape = np.broadcast_shapes(mask.shape, x.shape, y.shape)
    kept: list[Value] = []
    for side, branch in ((mask, x), (~mask, y)):
        if isinstance(branch, View):
            wide = np.broadcast_to(branch.index, shape)
            kept.append(View(branch.node, np.where(side, wide, -1)))
        else:
            kept.append(np.where(side, finite(call, branch), 0.0))
    return combine(call, kept[0], kept[1], 1.0)


@operator("CumSum", attributes="exclusive reverse")
def running_sum(call: Call) -> Value:
    x = call.view()
    (axis,) = call.integers(1)
    n = x.shape[call.axis(axis, len(x.shape))]
    matrix = np.tril(np.ones((n, n)), -1 if call.attribute("exclusive", 0) else 0)
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
    if isinstance(bias, View):
        added = bias if beta == 1 else call.scale(bias, Ball(np.array(beta)))
        return combine(call, y, added, 1.0)
    offset = Ball(call.floats(2))
    return call.scale(y, None, offset if beta == 1 else multiply(offset, Ball(np.array(beta))))


# -- sums ---------------------------------------------------------------------------------------


def reduced(call: Call, x: View) -> tuple[View, tuple[int, ...]]:
    """What a Reduce operator runs over, moved to a last axis, and the shape it leaves."""
    rank = len(x.shape)
    given = call.list("axes", 1)
    if not given:
        given = [] if call.attribute("noop_with_empty_axes", 0) else list(range(rank))
    axes = sorted({call.axis(a, rank) for a in given})
    rest = [i for i in range(rank) if i not in axes]
    last = x.index.transpose(*rest, *axes).reshape(*(x.shape[i] for i in rest), -1)
    keep = call.attribute("keepdims", 1)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    return View(x.node, last), tuple(shape)


REDUCE = "axes keepdims noop_with_empty_axes"


@operator("ReduceSum", attributes=REDUCE)
def reduce_sum(call: Call) -> Value:
    entries, shape = reduced(call, call.view())
    return moved(call.sum(entries), shape)


@operator("ReduceMean", attributes=REDUCE)
def reduce_mean(call: Call) -> Value:
    entries, shape = reduced(call, call.view())
    return moved(mean(call, entries), shape)


@operator("GlobalAveragePool")
def global_average_pool(call: Call) -> Value:
    x = call.view()
    flat = moved(x, (*x.shape[:2], -1))
    return moved(mean(call, flat), (*x.shape[:2], *([1] * (len(x.shape) - 2))))


def mean(call: Call, x: View, counts: Constant | None = None) -> View:
    """The mean over the last axis, or the sum over counts (..)."""
    count = np.array(float(x.shape[-1])) if counts is None else counts
    return call.scale(call.sum(x), quotient(np.ones(()), count))


@operator("BatchNormalization", attributes="epsilon momentum spatial training_mode")
def batch_normalization(call: Call) -> Value:
    if call.attribute("training_mode", 0) or not call.attribute("spatial", 1):
        raise call.refuse("such a mode")
    x = call.view()
    scale, bias, means, variances = (call.floats(i).ravel() for i in range(1, 5))
    if len(x.shape) < 2 or any(len(a) != x.shape[1] for a in (scale, bias, means, variances)):
        raise call.refuse("parameters that do not fit the channels")
    precise()
    epsilon = arb(call.number("epsilon", 1e-5))
    factors, offsets = [], []
    for s, b, m, v in zip(*(a.tolist() for a in (scale, bias, means, variances))):
        factor = arb(s) / (arb(v) + epsilon).sqrt()
        factors.append(factor)
        offsets.append(arb(b) - arb(m) * factor)
    shape = (-1, *([1] * (len(x.shape) - 2)))
    channels = (x.shape[1],)
    return call.scale(
        x,
        enclosed(factors, channels).map(lambda a: a.reshape(shape)),
        enclosed(offsets, channels).map(lambda a: a.reshape(shape)),
    )


# -- windows ------------------------------------------------------------------------------------

WINDOWS = "auto_pad dilations kernel_shape pads strides"


def windows(call: Call, x: View, kernel: Sequence[int], repeat: bool = False) -> View:
    """(..., *windows, entries): the entries of every window over the axes from 2 on, in the
    kernel's order; -1 on padding, or with `repeat` the window's first entry along that axis."""
    spatial, lead = x.shape[2:], x.shape[:2]
    dims = len(spatial)
    strides = call.list("strides") or [1] * dims
    dilations = call.list("dilations") or [1] * dims
    pads = call.list("pads") or [0] * 2 * dims
    mode = call.attribute("auto_pad", "NOTSET") or "NOTSET"
    fits = len(kernel) == len(strides) == len(dilations) == dims and len(pads) == 2 * dims
    if not fits or min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise call.refuse("such windows")
    places: list[Index] = []
    for axis, (n, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations)):
        span = d * (k - 1) + 1
        before, after = pads[axis], pads[axis + dims]
        if mode == "VALID":
            before = after = 0
        elif mode in ("SAME_UPPER", "SAME_LOWER"):
            extra = (-(-n // s) - 1) * s + span - n
            if call.node.op != "Conv" and (d > 1 or extra < 0):
                raise call.refuse(f"auto_pad={mode} with these strides and dilations")
            extra = max(0, extra)
            before = extra // 2 if mode == "SAME_UPPER" else extra - extra // 2
            after = extra - before
        elif mode != "NOTSET":
            raise call.refuse(f"auto_pad={mode}")
        room = n + before + after - span
        count = room // s + 1
        if room < 0:
            raise call.refuse("windows larger than their input")
        if call.attribute("ceil_mode", 0) and room % s and count * s < n + before:
            count += 1
        place = (np.arange(count) * s - before)[:, None] + np.arange(k) * d
        inside = (place >= 0) & (place < n)
        if repeat and not inside.any(1).all():
            raise call.refuse("a window that lies wholly in the padding")
        first = np.take_along_axis(place, inside.argmax(1)[:, None], 1)
        places.append(np.where(inside, place, first if repeat else -1))
    counts = [len(p) for p in places]
    if prod(lead) * prod(counts) * prod(kernel) > MOST_ENTRIES:
        raise call.refuse("so many windows")
    flat = np.zeros((1,) * (2 * dims), dtype=np.int64)
    outside = np.zeros((1,) * (2 * dims), dtype=bool)
    for axis, (n, place) in enumerate(zip(spatial, places)):
        shape = [1] * (2 * dims)
        shape[axis], shape[dims + axis] = place.shape
        flat = flat * n + place.reshape(shape)
        outside = outside | (place < 0).reshape(shape)
    entries = x.index.reshape(*lead, -1)[..., np.maximum(flat, 0)]
    index = np.where(outside, -1, entries)
    return View(x.node, index.reshape(*lead, *counts, prod(kernel)))


@operator("Conv", attributes=WINDOWS + " group")
def convolution(call: Call) -> Value:
    x, weight = call.view(), call.floats(1)
    return _convolve(call, x, weight, call.attribute("group", 1))


def _convolve(call: Call, x: View, weight: Constant, groups: int) -> View:
    """Weights (outputs, inputs / groups, *kernel)."""
    outputs, inputs, *kernel = weight.shape
    declared = call.list("kernel_shape")
    fits = x.shape[0] == 1 and x.shape[1] == inputs * groups and outputs % groups == 0
    if not fits or declared not in (None, kernel):
        raise call.refuse(f"weights of shape {weight.shape} for an input of {x.shape}")
    picked = windows(call, x, kernel)
    counts = picked.shape[2:-1]
    by_group = picked.index.reshape(groups, inputs, -1, prod(kernel)).transpose(0, 2, 1, 3)
    index = by_group.reshape(groups, prod(counts), inputs * prod(kernel))
    matrix = weight.reshape(groups, outputs // groups, -1).transpose(0, 2, 1)
    bias = Ball(call.floats(2).reshape(groups, -1)) if call.has(2) else None
    y = call.linear(View(x.node, index), Ball(np.ascontiguousarray(matrix)), bias)
    return moved(View(y.node, y.index.transpose(0, 2, 1)), (1, outputs, *counts))


@operator("AveragePool", attributes=WINDOWS + " ceil_mode count_include_pad")
def average_pool(call: Call) -> Value:
    x, kernel = call.view(), call.list("kernel_shape") or []
    picked = windows(call, x, kernel)
    # The entries of x may be zeros of an earlier padding, which count as others do.
    entries = View(x.node, np.zeros(x.shape, dtype=np.int64))
    counts = (windows(call, entries, kernel).index >= 0).sum(-1)
    if call.attribute("count_include_pad", 0):
        if call.attribute("ceil_mode", 0):
            raise call.refuse("count_include_pad with ceil_mode")
        counts = np.full_like(counts, picked.shape[-1])
    if (counts == 0).any():
        raise call.refuse("a window that lies wholly in the padding")
    return mean(call, picked, counts.astype(np.float64))


@operator("ConvTranspose", attributes="dilations group kernel_shape output_padding pads strides")
def transposed_convolution(call: Call) -> Value:
    """A convolution with the kernel reversed, of the input spread out by the strides."""
    x, weight = call.view(), call.floats(1)
    groups, dims = call.attribute("group", 1), len(x.shape) - 2
    strides = call.list("strides") or [1] * dims
    dilations = call.list("dilations") or [1] * dims
    pads = call.list("pads") or [0] * 2 * dims
    extra = call.list("output_padding") or [0] * dims
    kernel = weight.shape[2:]
    if min(*pads, *extra, 0) < 0 or min(*strides, *dilations, 1) < 1:
        raise call.refuse("such windows")
    if x.shape[0] != 1 or weight.shape[0] != x.shape[1] or len(kernel) != dims:
        raise call.refuse(f"weights of shape {weight.shape} for an input of {x.shape}")
    spread, cut = [], []
    for axis, (n, k, s, d) in enumerate(zip(x.shape[2:], kernel, strides, dilations)):
        rim = d * (k - 1)
        spread.append((n - 1) * s + 1 + 2 * rim + extra[axis])
        cut.append(slice(rim, rim + (n - 1) * s + 1, s))
    if prod(spread) * x.shape[1] > MOST_ENTRIES:
        raise call.refuse("so large an output")
    index = np.full((*x.shape[:2], *spread), -1)
    index[(slice(None), slice(None), *cut)] = x.index
    ends = [(pads[i], n - pads[i + dims]) for i, n in enumerate(spread)]
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    reversed_kernel = np.flip(weight, tuple(range(2, 2 + dims)))
    turned = reversed_kernel.reshape(groups, inputs, outputs, *kernel).swapaxes(1, 2)
    turned = turned.reshape(groups * outputs, inputs, *kernel)
    index = index[(slice(None), slice(None), *(slice(a, b) for a, b in ends))]
    plain = replace(call.node, op="Conv", attributes={"dilations": dilations})
    inner = Call(call.graph, plain, call.opset, call.inputs)
    return _convolve(inner, View(x.node, index), turned, groups)
