"""ONNX operators that only move entries, and the integer arithmetic on shapes.

A view's index and a constant are both arrays, so each is one indexing expression of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from frown_check.graph import MOST_ENTRIES, View
from frown_check.model.calls import Call, Value, indexed, operator

FLOATS = (1, 11)  # TensorProto.FLOAT, DOUBLE
INTEGERS = {6: np.int32, 7: np.int64}  # TensorProto.INT32, INT64


@operator("Identity")
def identity(call: Call) -> Value:
    return call.value(0)


@operator("Dropout", attributes="ratio seed")
def dropout(call: Call) -> Value:
    call.refuse_if(call.has(2) and call.constant(2).any(), "training mode")
    return call.value(0)


@operator("Cast", attributes="to saturate round_mode")
def cast(call: Call) -> Value:
    x, to = call.value(0), call.attribute("to", 0)
    if isinstance(x, View):
        call.refuse_if(to not in FLOATS, f"attribute to={to} on a computed tensor")
        return x
    if to in INTEGERS or to in FLOATS:
        y = x.astype(INTEGERS.get(to, np.float32 if to == 1 else np.float64))
        if (y == x).all():  # else the cast would round, or leave the range
            return y if to in INTEGERS else y.astype(np.float64)
    raise call.refuse(f"attribute to={to} on such a constant")


@operator("Constant", attributes="value value_float value_floats value_int value_ints")
def constant(call: Call) -> Value:
    (name,) = call.node.attributes
    found = call.node.attributes[name]
    if name == "value":
        return np.asarray(found)
    return np.array(found, dtype=np.int64 if "int" in name else np.float64)


@operator("ConstantOfShape", attributes="value")
def constant_of_shape(call: Call) -> Value:
    sizes = call.integers(0)
    fill = np.asarray(call.attribute("value", np.zeros(1))).reshape(())
    call.refuse_if(min(sizes, default=0) < 0 or prod(sizes) > MOST_ENTRIES, f"shape {sizes}")
    return np.full(sizes, fill)


@operator("Shape", attributes="start end")
def shape(call: Call) -> Value:
    sizes = call.value(0).shape
    return np.array(sizes[slice(call.attribute("start", 0), call.attribute("end", None))], np.int64)


@operator("Size")
def size(call: Call) -> Value:
    return np.array(prod(call.value(0).shape), np.int64)


@operator("Flatten", attributes="axis")
def flatten(call: Call) -> Value:
    x, axis = call.value(0), call.attribute("axis", 1)
    rank = len(x.shape)
    split = axis if axis == rank else call.axis(axis, rank)
    return indexed(x, lambda a: a.reshape(prod(x.shape[:split]), prod(x.shape[split:])))


@operator("Reshape", attributes="allowzero")
def reshape(call: Call) -> Value:
    x, wanted = call.value(0), call.integers(1)
    if call.attribute("allowzero", 0):
        call.refuse_if(0 in wanted, "an empty tensor")
    else:
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    call.refuse_if(min(wanted, default=1) < -1 or wanted.count(-1) > 1, f"shape {wanted}")
    return indexed(x, lambda a: a.reshape(wanted))


@operator("Transpose", attributes="perm")
def transpose(call: Call) -> Value:
    x, order = call.value(0), call.list("perm")
    rank = len(x.shape)
    if order is not None and sorted(order) != list(range(rank)):
        raise call.refuse(f"perm={order} of a tensor of rank {rank}")
    return indexed(x, lambda a: a.transpose(order))


@operator("Squeeze", attributes="axes")
def squeeze(call: Call) -> Value:
    x, axes = call.value(0), call.list("axes", 1)
    rank = len(x.shape)
    if axes is None:
        return indexed(x, lambda a: a.squeeze())
    # The standard drops the axes listed, here none; onnxruntime all of size 1.
    call.refuse_if(not axes, "an empty list of axes")
    _each_once(call, axes, rank)
    return indexed(x, lambda a: a.squeeze(tuple(call.axis(a, rank) for a in axes)))


@operator("Unsqueeze", attributes="axes")
def unsqueeze(call: Call) -> Value:
    axes = tuple(call.list("axes", 1) or ())
    return indexed(call.value(0), lambda a: np.expand_dims(a, axes))


@operator("Concat", attributes="axis")
def concat(call: Call) -> Value:
    parts = call.values()
    axis = call.axis(call.attribute("axis", 0), len(parts[0].shape))
    views = [p for p in parts if isinstance(p, View)]
    if not views:
        return np.concatenate([np.asarray(p) for p in parts if not isinstance(p, View)], axis)
    same = call.join(views)
    rest = iter(same)
    places, offsets = [], []
    for i, part in enumerate(parts):
        computed = isinstance(part, View)
        places.append(next(rest).index if computed else np.full(part.shape, -1))
        offsets.append(np.zeros(part.shape) if computed else call.floats(i))
    joined = View(same[0].node, np.concatenate(places, axis))
    offset = np.concatenate(offsets, axis)
    return call.scale(joined, 1.0, offset) if offset.any() else joined


@operator("Split", attributes="axis split num_outputs")
def split(call: Call) -> Sequence[Value]:
    x = call.value(0)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    sizes = call.list("split", 1)
    if sizes is None:
        count = len(call.node.outputs)
        given = call.attribute("num_outputs", count)
        call.refuse_if(given != count, f"attribute num_outputs={given} for {count} outputs")
        call.refuse_if(call.opset < 18 and x.shape[axis] % count, "parts of unequal size")
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    call.refuse_if(sum(sizes) != x.shape[axis] or min(sizes) <= 0, f"sizes {sizes}")
    cuts = np.cumsum([0, *sizes]).tolist()
    lead = (slice(None),) * axis
    return [_part(x, (*lead, slice(i, j))) for i, j in pairwise(cuts)]


def _each_once(call: Call, axes: Sequence[int], rank: int) -> None:
    """The standard does not say what an axis means that is given twice."""
    call.refuse_if(len({call.axis(a, rank) for a in axes}) != len(axes), f"axes={list(axes)}")


def _part(x: Value, places: tuple[slice, ...]) -> Value:
    return indexed(x, lambda a: a[places])


_ENDLESS = (2**31 - 1, 2**63 - 1)  # ends of a slice that stand for "as far as it goes"


@operator("Slice", attributes="starts ends axes")
def slices(call: Call) -> Value:
    x = call.value(0)
    starts, ends = call.list("starts", 1) or [], call.list("ends", 2) or []
    axes = call.list("axes", 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = call.integers(4) if call.has(4) else [1] * len(starts)
    places: list[slice] = [slice(None)] * len(x.shape)
    _each_once(call, axes, len(x.shape))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = call.axis(axis, len(x.shape))
        # Backwards to the largest integer is nowhere by the standard, the start for onnxruntime.
        call.refuse_if(step < 0 and end in _ENDLESS, f"ends={ends} with steps={steps}")
        # ONNX moves a start before the first entry onto it; Python, for step < 0, past it.
        places[at] = slice(max(start, -x.shape[at]), end, step)
    return _part(x, tuple(places))


@operator("Gather", attributes="axis")
def gather(call: Call) -> Value:
    x = call.value(0)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    size = prod(x.shape) // x.shape[axis] * call.constant(1).size
    call.refuse_if(size > MOST_ENTRIES, f"{size} entries")
    places = np.array(call.integers(1), np.int64).reshape(call.constant(1).shape)
    return indexed(x, lambda a: np.take(a, places, axis))


@operator("Expand")
def expand(call: Call) -> Value:
    x = call.value(0)
    target = np.broadcast_shapes(x.shape, tuple(call.integers(1)))
    call.refuse_if(prod(target) > MOST_ENTRIES, f"shape {target}")
    return indexed(x, lambda a: np.broadcast_to(a, target))


@operator("Pad", attributes="mode pads value")
def pad(call: Call) -> Value:
    x = call.view()
    rank = len(x.shape)
    pads = call.list("pads", 1) or []
    fill = float(call.floats(2)) if call.has(2) else call.number("value", 0.0)
    axes = call.integers(3) if call.has(3) else list(range(rank))
    call.refuse_if(len(pads) != 2 * len(axes) or min(pads, default=0) < 0, f"pads={pads}")
    _each_once(call, axes, rank)
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[call.axis(axis, rank)] = (pads[i], pads[i + len(axes)])
    if prod(n + a + b for n, (a, b) in zip(x.shape, widths)) > MOST_ENTRIES:
        raise call.refuse(f"pads={pads}")
    mode = call.attribute("mode", "constant")
    if mode == "reflect" and any(max(w) >= n for n, w in zip(x.shape, widths)):
        raise call.refuse(f"pads={pads}, more than there is to reflect,")
    if mode in ("edge", "reflect", "wrap"):
        return View(x.node, np.pad(x.index, widths, mode))
    call.refuse_if(mode != "constant", f"mode={mode}")
    y = View(x.node, np.pad(x.index, widths, constant_values=-2))
    rim = y.index == -2
    y = View(x.node, np.where(rim, -1, y.index))
    return y if fill == 0 else call.scale(y, 1.0, np.where(rim, fill, 0.0))


@operator(
    "Upsample", "Resize", attributes="mode scales coordinate_transformation_mode nearest_mode"
)
def resize(call: Call) -> Value:
    """Each entry a whole number of times, where all rules of rounding agree on it."""
    x = call.view()
    rule = [call.attribute(n, "") for n in ("coordinate_transformation_mode", "nearest_mode")]
    known = rule == ["asymmetric", "floor"] or (
        rule[0] in ("", "half_pixel", "pytorch_half_pixel")
        and rule[1] in ("", "round_prefer_floor", "round_prefer_ceil")
    )
    call.refuse_if(call.attribute("mode", "nearest") != "nearest" or not known, "such a resizing")
    last = 2 if call.node.op == "Resize" and call.opset >= 11 else 1
    scales: Any = call.attribute("scales", None)
    if scales is None and call.has(last) and call.constant(last).size:
        scales = call.floats(last).ravel().tolist()
    if scales is None:
        scales = [m / n for m, n in zip(call.integers(3), x.shape, strict=True)]
    if len(scales) != len(x.shape) or any(s < 1 or s != int(s) for s in scales):
        raise call.refuse(f"scales {scales}")
    index = x.index
    if prod(index.shape) * prod(int(s) for s in scales) > MOST_ENTRIES:
        raise call.refuse(f"scales {scales}")
    for axis, times in enumerate(scales):
        index = np.repeat(index, int(times), axis)
    return View(x.node, index)
