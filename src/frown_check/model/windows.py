"""ONNX operators over windows and axes: convolutions, pooling, sums, means and maxima.

A window is index arithmetic, after which a convolution is a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from frown_check.balls import Ball, Index
from frown_check.graph import MOST_ENTRIES, View
from frown_check.model.calls import Call, Constant, Value, moved, operator, quotient

# -- over the last axis ---------------------------------------------------------------------------


def mean(call: Call, x: View, counts: Constant | None = None) -> View:
    """The mean over the last axis, or the sum over counts (..)."""
    count = float(x.shape[-1]) if counts is None else counts
    return call.scale(call.sum(x), quotient(1.0, count))


def largest(call: Call, x: View) -> View:
    """The maximum over the last axis: a site, unless it is of one entry."""
    return moved(x, x.shape[:-1]) if x.shape[-1] == 1 else call.apply_last(x, "Max")


def smallest(call: Call, x: View) -> View:
    """-max(-x, ...)."""
    return call.scale(largest(call, call.scale(x, -1.0)), -1.0)


OVER_LAST: dict[str, Callable[[Call, View], View]] = {
    "ReduceSum": Call.sum,
    "ReduceMean": mean,
    "ReduceMax": largest,
    "ReduceMin": smallest,
    "GlobalAveragePool": mean,
    "GlobalMaxPool": largest,
}


@operator(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    attributes="axes keepdims noop_with_empty_axes",
)
def reduction(call: Call) -> Value:
    x = call.view()
    rank = len(x.shape)
    given = call.list("axes", 1)
    if not given:
        given = [] if call.attribute("noop_with_empty_axes", 0) else list(range(rank))
    axes = sorted(call.axis(a, rank) for a in given)
    call.refuse_if(len(set(axes)) != len(axes), f"axes={given}, one of them twice,")
    rest = [i for i in range(rank) if i not in axes]
    last = x.index.transpose(*rest, *axes).reshape(*(x.shape[i] for i in rest), -1)
    keep = call.attribute("keepdims", 1)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    return moved(OVER_LAST[call.node.op](call, View(x.node, last)), shape)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Value:
    x = call.view()
    y = OVER_LAST[call.node.op](call, moved(x, (*x.shape[:2], -1)))
    return moved(y, (*x.shape[:2], *([1] * (len(x.shape) - 2))))


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
        call.refuse_if(room < 0, "windows larger than their input")
        if call.attribute("ceil_mode", 0) and room % s and count * s < n + before:
            # By the standard no window reaches out of a valid one, in onnxruntime the last one.
            call.refuse_if(mode == "VALID", "ceil_mode with auto_pad=VALID")
            count += 1
        place = (np.arange(count) * s - before)[:, None] + np.arange(k) * d
        inside = (place >= 0) & (place < n)
        if repeat and not inside.any(1).all():
            raise call.refuse("a window that lies wholly in the padding")
        first = np.take_along_axis(place, inside.argmax(1)[:, None], 1)
        places.append(np.where(inside, place, first if repeat else -1))
    counts = [len(p) for p in places]
    call.refuse_if(prod(lead) * prod(counts) * prod(kernel) > MOST_ENTRIES, "so many windows")
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


@operator("MaxPool", attributes=WINDOWS + " ceil_mode storage_order")
def max_pool(call: Call) -> Value:
    picked = windows(call, call.view(), call.list("kernel_shape") or [], repeat=True)
    return largest(call, picked)


@operator("AveragePool", attributes=WINDOWS + " ceil_mode count_include_pad")
def average_pool(call: Call) -> Value:
    x, kernel = call.view(), call.list("kernel_shape") or []
    picked = windows(call, x, kernel)
    # The entries of x may be zeros of an earlier padding, which count as others do.
    entries = View(x.node, np.zeros(x.shape, dtype=np.int64))
    counts = (windows(call, entries, kernel).index >= 0).sum(-1)
    if call.attribute("count_include_pad", 0):
        call.refuse_if(call.attribute("ceil_mode", 0), "count_include_pad with ceil_mode")
        counts = np.full_like(counts, picked.shape[-1])
    call.refuse_if((counts == 0).any(), "a window that lies wholly in the padding")
    return mean(call, picked, counts.astype(np.float64))


# -- convolutions -------------------------------------------------------------------------------


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
    if call.has(2):
        call.refuse_if(call.floats(2).shape != (outputs,), "a bias of another shape")
    bias = Ball(call.floats(2).reshape(groups, -1)) if call.has(2) else None
    y = call.linear(View(x.node, index), Ball(np.ascontiguousarray(matrix)), bias)
    return moved(View(y.node, y.index.transpose(0, 2, 1)), (1, outputs, *counts))


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
    call.refuse_if(min(*pads, *extra, 0) < 0 or min(*strides, *dilations, 1) < 1, "such windows")
    if x.shape[0] != 1 or weight.shape[0] != x.shape[1] or len(kernel) != dims:
        raise call.refuse(f"weights of shape {weight.shape} for an input of {x.shape}")
    spread, cut = [], []
    for axis, (n, k, s, d) in enumerate(zip(x.shape[2:], kernel, strides, dilations)):
        rim = d * (k - 1)
        spread.append((n - 1) * s + 1 + 2 * rim + extra[axis])
        cut.append(slice(rim, rim + (n - 1) * s + 1, s))
    call.refuse_if(prod(spread) * x.shape[1] > MOST_ENTRIES, "so large an output")
    index = np.full((*x.shape[:2], *spread), -1)
    index[(slice(None), slice(None), *cut)] = x.index
    ends = [(pads[i], n - pads[i + dims]) for i, n in enumerate(spread)]
    call.refuse_if(any(a > b for a, b in ends), f"pads={pads}")
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    reversed_kernel = np.flip(weight, tuple(range(2, 2 + dims)))
    turned = reversed_kernel.reshape(groups, inputs, outputs, *kernel).swapaxes(1, 2)
    turned = turned.reshape(groups * outputs, inputs, *kernel)
    index = index[(slice(None), slice(None), *(slice(a, b) for a, b in ends))]
    kept = {"dilations": dilations, "kernel_shape": call.attribute("kernel_shape", None)}
    plain = replace(call.node, op="Conv", attributes=kept)
    inner = Call(call.graph, plain, call.opset, call.inputs)
    return _convolve(inner, View(x.node, index), turned, groups)
