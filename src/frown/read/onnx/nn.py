"""ONNX convolution, pooling, normalisation and resizing."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

import torch

from frown.graph import Builder, Unsupported, Value, Windows, require_entries
from frown.read import attention
from frown.read.arithmetic import largest_over
from frown.read.onnx.call import Call, axis_of, handles
from frown.relax import Max

Pads = list[tuple[int, int]]


def _windows(call: Call, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Windows:
    """Windows of a Conv or pooling node over an input of this spatial shape."""
    dims, stride, dilation = _steps(call, spatial, kernel)
    declared = call.list("kernel_shape")
    if declared is not None and declared != kernel:
        raise call.refuse_attribute("kernel_shape")
    pads, mode = _explicit_pads(call, dims), _auto_pad(call)
    windows = Windows(spatial, kernel, stride, pads, dilation, call.flag("ceil_mode"))
    if mode == "NOTSET":
        return windows
    if mode == "VALID":
        windows = replace(windows, pads=[(0, 0)] * dims)
        if windows.reach() != replace(windows, ceil=False).reach():
            # By the standard no window reaches out of a valid one, in onnxruntime the last one.
            raise Unsupported("ceil_mode with auto_pad=VALID")
        return windows
    # SAME: ceil(n / stride) windows.
    spans = zip(spatial, stride, windows.span(), strict=True)
    totals = [(-(-n // s) - 1) * s + r - n for n, s, r in spans]
    if call.op != "Conv" and (max(dilation) > 1 or min(totals) < 0):
        # Runtimes differ here, so neither reading can be called the model's.
        raise Unsupported(f"auto_pad={mode} with strides={stride} and dilations={dilation}")
    pads = _shared_out([max(0, t) for t in totals], mode == "SAME_UPPER")
    return replace(windows, pads=pads)


def _steps(
    call: Call, spatial: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The number of axes of windows, their strides and dilations."""
    dims = len(spatial)
    if len(kernel) != dims:
        raise Unsupported(f"a window over {len(kernel)} axes for an input with {dims}")
    ones = (1,) * dims
    return dims, call.list("strides") or ones, call.list("dilations") or ones


def _auto_pad(call: Call) -> str:
    mode = call.text("auto_pad", "NOTSET") or "NOTSET"
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise call.refuse_attribute("auto_pad")
    return mode


def _explicit_pads(call: Call, dims: int) -> Pads:
    pads = call.list("pads") or (0,) * 2 * dims
    if len(pads) != 2 * dims or min(pads) < 0:
        raise call.refuse_attribute("pads")
    return list(zip(pads[:dims], pads[dims:], strict=True))


def _shared_out(totals: list[int], more_after: bool) -> Pads:
    """Halve each total; an odd one has its extra entry after or before."""
    halves = [(t // 2, t - t // 2) for t in totals]
    return halves if more_after else [(b, a) for a, b in halves]


@handles("Conv", attributes="auto_pad dilations group kernel_shape pads strides")
def conv(call: Call) -> Value:
    x, weight = call.value(), call.constant(1, "weights")
    bias = call.constant(2, "a bias") if call.has(2) else None
    windows = _windows(call, x.shape[2:], tuple(weight.shape[2:]))
    return call.build.conv(
        x, weight, bias, windows.stride, windows.pads, windows.dilation, call.integer("group", 1)
    )


@handles(
    "ConvTranspose",
    attributes="auto_pad dilations group kernel_shape output_padding output_shape pads strides",
)
def conv_transpose(call: Call) -> Value:
    x, weight = call.value(), call.constant(1, "weights")
    bias = call.constant(2, "a bias") if call.has(2) else None
    spatial, kernel = x.shape[2:], tuple(weight.shape[2:])
    dims, stride, dilation = _steps(call, spatial, kernel)
    extra = call.list("output_padding") or (0,) * dims
    mode = _auto_pad(call)
    wanted = call.list("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(spatial, stride, strict=True))
    pads = [(0, 0)] * dims if mode == "VALID" else _explicit_pads(call, dims)
    if wanted is not None:
        full = Windows(spatial, kernel, stride, pads, dilation).span()
        totals = [
            (n - 1) * s + e + r - m
            for n, s, e, r, m in zip(spatial, stride, extra, full, wanted[-dims:], strict=True)
        ]
        if min(totals) < 0:
            raise Unsupported(f"an output of {wanted[-dims:]}, larger than the windows reach")
        pads = _shared_out(totals, mode == "SAME_UPPER")
    return call.build.conv_transpose(
        x, weight, bias, stride, pads, extra, dilation, call.integer("group", 1)
    )


@handles(
    "AveragePool",
    attributes="auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides",
)
def average_pool(call: Call) -> Value:
    x = call.value()
    windows = _windows(call, x.shape[2:], call.list("kernel_shape") or ())
    return call.build.average_pool(x, windows, call.flag("count_include_pad"))


@handles(
    "MaxPool", attributes="auto_pad ceil_mode dilations kernel_shape pads storage_order strides"
)
def max_pool(call: Call) -> Value:
    x = call.value()
    windows = _windows(call, x.shape[2:], call.list("kernel_shape") or ())
    entries = call.build.windows(x, windows)
    if prod(windows.kernel) == 1:
        return call.build.reshape(entries, entries.shape[:-1])
    return call.build.add(Max(), entries)


@handles("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Value:
    x, pool = call.value(), Builder.mean if call.op == "GlobalAveragePool" else largest_over
    return pool(call.build, x, tuple(range(2, x.rank)), True)


@handles("BatchNormalization", attributes="epsilon momentum spatial training_mode")
def batch_normalization(call: Call) -> Value:
    if call.flag("training_mode"):
        raise call.refuse_attribute("training_mode")
    if not call.flag("spatial", True):
        raise call.refuse_attribute("spatial")
    if call.outputs > 1:
        raise Unsupported("more than one output, which before opset 14 means training")
    x = call.value()
    names = ("scale", "a bias", "means", "variances")
    weight, bias, mean, variance = (call.constant(i + 1, name) for i, name in enumerate(names))
    eps = call.number("epsilon", 1e-5)
    return attention.batch_norm(call.build, x, weight, bias, mean, variance, eps)


@handles("Upsample", attributes="mode scales")
def upsample(call: Call) -> Value:
    if call.text("mode", "nearest") != "nearest":
        raise call.refuse_attribute("mode")
    given = call.attributes.get("scales")
    scales = call.constant(1, "scales").tolist() if given is None else given
    return _repeated(call, tuple(range(call.value().rank)), scales)


# An integer factor s takes output i from input i // s under each of these.
_SAME_ENTRIES = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}


@handles(
    "Resize",
    attributes="antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside "
    "extrapolation_value keep_aspect_ratio_policy mode nearest_mode",
)
def resize(call: Call) -> Value:
    if call.text("mode", "nearest") != "nearest":
        raise call.refuse_attribute("mode")
    x = call.value()
    axes = call.list("axes") or tuple(range(x.rank))
    if call.opset < 11:
        return _repeated(call, axes, call.constant(1, "scales").tolist())
    rule = (
        call.text("coordinate_transformation_mode", "half_pixel"),
        call.text("nearest_mode", "round_prefer_floor"),
    )
    if rule not in _SAME_ENTRIES:
        raise Unsupported(f"coordinate_transformation_mode={rule[0]} with nearest_mode={rule[1]}")
    if call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise call.refuse_attribute("keep_aspect_ratio_policy")
    if call.has(2) and call.constant(2, "scales").numel():
        return _repeated(call, axes, call.constant(2, "scales").tolist())
    sizes = call.integers(3, "sizes")
    places = [x.shape[axis_of(a, x.rank)] for a in axes]
    return _repeated(call, axes, [m / n for m, n in zip(sizes, places, strict=True)])


def _repeated(call: Call, axes: tuple[int, ...], scales: list[float]) -> Value:
    """Each entry `scale` times in a row along each axis."""
    x = call.value()
    if any(not 1 <= s < inf or s != int(s) for s in scales):
        raise Unsupported(f"scales {scales}, which are not all integers of at least 1")
    require_entries((*x.shape, *(int(s) for s in scales)))
    for axis, scale in zip(axes, scales, strict=True):
        if scale != 1:
            place = axis_of(axis, x.rank)
            index = torch.arange(x.shape[place]).repeat_interleave(int(scale))
            x = call.build.gather(x, place, index)
    return x
