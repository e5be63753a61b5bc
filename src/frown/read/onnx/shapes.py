"""ONNX operators that move, repeat, drop or pad entries."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod

import torch
from torch import Tensor

from frown.graph import Operand, Shape, Unsupported, Value, broadcast
from frown.read import arithmetic
from frown.read.onnx.call import Call, axes_once, axis_of, handles, without


@handles("Identity")
def identity(call: Call) -> Value:
    return call.value()


@handles("Dropout", attributes="ratio seed")
def dropout(call: Call) -> Value:
    if call.has(2) and bool(call.constant(2, "training_mode").any()):
        raise Unsupported("dropout in training mode")
    return call.value()


@handles("Cast", attributes="to saturate round_mode")
def cast(call: Call) -> Value:
    # FLOAT and DOUBLE keep a computed value; everything else rounds it.
    if call.integer("to", 0) not in (1, 11):
        raise call.refuse_attribute("to")
    return call.value()


@handles("CastLike", attributes="saturate round_mode")
def cast_like(call: Call) -> Value:
    like = call.operand(1)
    if isinstance(like, Tensor) and like.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"cast of a computed tensor to {like.dtype}")
    return call.value()


@handles("Shape", attributes="start end")
def shape(call: Call) -> Tensor:
    sizes = call.value().shape
    end = call.attributes.get("end")
    return torch.tensor(sizes[slice(call.integer("start", 0), end)], dtype=torch.int64)


@handles("Size")
def size(call: Call) -> Tensor:
    return torch.tensor(prod(call.value().shape), dtype=torch.int64)


@handles("Flatten", attributes="axis")
def flatten(call: Call) -> Value:
    x = call.value()
    axis = call.integer("axis", 1)
    split = axis if axis == x.rank else axis_of(axis, x.rank)
    return call.build.reshape(x, (prod(x.shape[:split]), prod(x.shape[split:])))


@handles("Reshape", attributes="allowzero")
def reshape(call: Call) -> Value:
    x = call.value()
    wanted = list(call.integers(1, "a shape"))
    if not call.flag("allowzero"):
        if any(n == 0 and i >= x.rank for i, n in enumerate(wanted)):
            raise Unsupported(f"a reshape of {x.shape} to {tuple(wanted)}")
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    target = _fill(wanted, prod(x.shape))
    if target is None:
        raise Unsupported(f"a reshape of {x.shape} to {tuple(wanted)}")
    return call.build.reshape(x, target)


def _fill(wanted: Sequence[int], entries: int) -> Shape | None:
    """`wanted` with its -1 resolved, or None where the entries do not fit."""
    known = prod(n for n in wanted if n != -1)
    holes = wanted.count(-1)
    if holes > 1 or (holes == 1 and (known <= 0 or entries % known)):
        return None
    target = tuple(entries // known if n == -1 else n for n in wanted)
    return target if prod(target) == entries and min(target, default=1) > 0 else None


@handles("Transpose", attributes="perm")
def transpose(call: Call) -> Value:
    x = call.value()
    order = call.list("perm")
    order = tuple(reversed(range(x.rank))) if order is None else order
    if sorted(order) != list(range(x.rank)):
        raise call.refuse_attribute("perm")
    return call.build.permute(x, order)


@handles("Squeeze", attributes="axes")
def squeeze(call: Call) -> Value:
    x = call.value()
    axes = call.list_or_input("axes", 1)
    if axes is None:
        axes = tuple(i for i, n in enumerate(x.shape) if n == 1)
    elif not axes:
        # By the standard's words no axis is dropped, by onnxruntime every one of size 1.
        raise Unsupported("an empty list of axes; leave it out to drop every axis of size 1")
    dropped = set(axes_once(axes, x.rank))
    if any(x.shape[a] != 1 for a in dropped):
        raise Unsupported(f"squeezing axes {sorted(dropped)} of shape {x.shape}")
    return call.build.reshape(x, without(x.shape, tuple(dropped)))


@handles("Unsqueeze", attributes="axes")
def unsqueeze(call: Call) -> Value:
    x = call.value()
    axes = call.list_or_input("axes", 1) or ()
    rank = x.rank + len(axes)
    added = set(axes_once(axes, rank))
    sizes = iter(x.shape)
    return call.build.reshape(x, tuple(1 if i in added else next(sizes) for i in range(rank)))


@handles("Concat", attributes="axis")
def concat(call: Call) -> Operand:
    parts = [call.operand(i) for i in range(len(call.inputs))]
    rank = next(p.rank for p in parts if isinstance(p, Value))
    axis = axis_of(call.integer("axis", 1), rank)
    sides = {without(tuple(p.shape), (axis,)) for p in parts}
    if len(sides) != 1 or any(len(p.shape) != rank for p in parts):
        raise Unsupported(f"branches of shapes {', '.join(str(tuple(p.shape)) for p in parts)}")
    # An empty constant adds nothing; exporters leave them behind.
    filled = [p for p in parts if isinstance(p, Value) or p.numel()]
    return call.build.concat(filled, axis)


@handles("Split", attributes="axis split num_outputs")
def split(call: Call) -> list[Value]:
    x = call.value()
    axis = axis_of(call.integer("axis", 0), x.rank)
    sizes = call.list_or_input("split", 1)
    if sizes is None:
        parts = call.outputs
        if call.integer("num_outputs", parts) != parts:
            raise call.refuse_attribute("num_outputs")
        if call.opset < 18 and x.shape[axis] % parts:
            raise Unsupported(f"an axis of {x.shape[axis]} in {parts} equal parts")
        each = -(-x.shape[axis] // parts)
        sizes = (each,) * (parts - 1) + (x.shape[axis] - each * (parts - 1),)
    if sum(sizes) != x.shape[axis] or min(sizes) <= 0:
        raise Unsupported(f"a split of an axis of {x.shape[axis]} into {sizes}")
    return arithmetic.split(call.build, x, axis, sizes)


_TO_THE_END = (2**31 - 1, 2**63 - 1)


@handles("Slice", attributes="starts ends axes")
def slices(call: Call) -> Value:
    x = call.value()
    starts = call.list_or_input("starts", 1) or ()
    ends = call.list_or_input("ends", 2) or ()
    axes = call.list_or_input("axes", 3)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = call.integers(4, "steps") if call.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Unsupported(f"starts {starts}, ends {ends}, axes {axes} and steps {steps}")
    places = axes_once(axes, x.rank)
    for start, end, place, step in zip(starts, ends, places, steps, strict=True):
        if step < 0 and end in _TO_THE_END:
            # Nothing by the standard, all entries down to the first for onnxruntime.
            raise Unsupported(f"a slice that ends at {end} with the step {step}")
        # ONNX moves a start before the first entry onto it, Python past it if step < 0.
        x = call.build.slice(x, place, max(start, -x.shape[place]), end, step)
    return x


@handles("Gather", attributes="axis")
def gather(call: Call) -> Value:
    index = call.constant(1, "indices")
    x = call.value()
    return call.build.gather(x, axis_of(call.integer("axis", 0), x.rank), index)


@handles("Pad", attributes="mode pads value")
def pad(call: Call) -> Value:
    x = call.value()
    pads = call.list_or_input("pads", 1) or ()
    fill = call.number("value", 0.0)
    if call.has(2):
        fill = float(call.constant(2, "the padding's value"))
    if not isfinite(fill):
        raise Unsupported(f"padding with {fill}")
    axes = call.integers(3, "axes") if call.has(3) else tuple(range(x.rank))
    if len(pads) != 2 * len(axes):
        raise Unsupported(f"{len(pads)} padding widths for {len(axes)} axes")
    widths = [(0, 0)] * x.rank
    for i, axis in enumerate(axes_once(axes, x.rank)):
        widths[axis] = (pads[i], pads[i + len(axes)])
    mode = call.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise call.refuse_attribute("mode")
    if mode != "constant" and any(a < 0 or b < 0 for a, b in widths):
        raise Unsupported(f"negative padding widths in mode {mode}")
    if mode == "reflect" and any(max(w) >= n for n, w in zip(x.shape, widths, strict=True)):
        raise Unsupported(f"padding widths {widths}, more than there is to reflect")
    return call.build.pad(x, widths, mode, fill)


@handles("Expand")
def expand(call: Call) -> Value:
    x = call.value()
    target = broadcast(x.shape, call.integers(1, "a shape"))
    return call.build.expand(x, tuple(target))
