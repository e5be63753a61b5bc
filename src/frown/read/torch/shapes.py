"""Shapes, pooling and resampling of ATen, one handler per operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from frown.graph import Builder, Operand, Unsupported, Value, Windows
from frown.read import arithmetic
from frown.read.torch.ops import H, Handler, each, handles
from frown.relax import Max

# Handlers that learn what the operator does by running it on a probe. They get the
# builder, the operator as a function of its first argument, the value in its place
# and the precision the module runs it in.
PROBED: dict[str, Handler] = {}

Run = Callable[[Tensor], Tensor]


def probes(*names: str) -> Callable[[H], H]:
    """Registers a handler that runs the operator."""

    def register(handler: H) -> H:
        for name in names:
            PROBED[name] = handler
        return handler

    return register


# -- shapes ---------------------------------------------------------------------


@handles("view", "_unsafe_view")
def view(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    if not isinstance(shape, Sequence):
        raise Unsupported("a view as another type")
    known = math.prod(n for n in shape if n != -1)
    return b.reshape(x, [math.prod(x.shape) // known if n == -1 else n for n in shape])


handles("permute")(Builder.permute)
handles("select")(Builder.select)


@handles("unsqueeze")
def unsqueeze(b: Builder, x: Value, axis: int) -> Value:
    axis %= x.rank + 1
    return b.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@handles("squeeze")
def squeeze(b: Builder, x: Value, axes: int | Sequence[int] | None = None) -> Value:
    named = range(x.rank) if axes is None else [axes] if isinstance(axes, int) else axes
    gone = {a % x.rank for a in named if x.shape[a] == 1}
    return b.reshape(x, [n for a, n in enumerate(x.shape) if a not in gone])


@handles("expand")
def expand(b: Builder, x: Value, shape: Sequence[int], implicit: bool = False) -> Value:
    source = (1,) * (len(shape) - x.rank) + x.shape
    return b.expand(x, [m if n == -1 else n for n, m in zip(shape, source, strict=True)])


@handles("cat")
def cat(b: Builder, xs: Sequence[Operand], axis: int = 0) -> Operand:
    return b.concat(xs, axis)


@handles("stack")
def stack(b: Builder, xs: Sequence[Operand], axis: int = 0) -> Operand:
    parts = [x.unsqueeze(axis) if isinstance(x, Tensor) else unsqueeze(b, x, axis) for x in xs]
    return b.concat(parts, axis)


@handles("split", "split_with_sizes")
def split(b: Builder, x: Value, sizes: int | Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    total = x.shape[axis]
    steps = (
        [min(sizes, total - start) for start in range(0, total, sizes)]
        if isinstance(sizes, int)
        else list(sizes)
    )
    return tuple(arithmetic.split(b, x, axis, steps))


@handles("unbind")
def unbind(b: Builder, x: Value, axis: int = 0) -> tuple[Value, ...]:
    return tuple(b.select(x, axis, i) for i in range(x.shape[axis]))


@handles("slice")
def slice_(
    b: Builder,
    x: Value,
    axis: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Value:
    last = x.shape[axis] if stop is None else stop
    return b.slice(x, axis, 0 if start is None else start, last, step)


@handles("alias", "clone", "detach")
def same(b: Builder, x: Value, memory_format: object = None) -> Value:
    return x


@handles("_to_copy")
def to_copy(b: Builder, x: Value, dtype: torch.dtype | None = None, **placement: Any) -> Value:
    if dtype not in (None, torch.float32, torch.float64):
        raise Unsupported(f"a cast to {dtype}")
    return x


@handles("copy")
def copy(b: Builder, x: Operand, source: Operand, non_blocking: bool = False) -> Operand:
    if isinstance(source, Value):
        return b.expand(source, x.shape)
    return source.expand(x.shape)


@handles("full_like", "fill")
def full_like(b: Builder, x: Operand, value: Tensor | float, **kind: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).expand(x.shape)


@handles("pad")
def pad(
    b: Builder, x: Value, widths: Sequence[int], mode: str = "constant", value: float | None = None
) -> Value:
    if not widths:
        return x
    # torch lists the last axis first.
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)][::-1]
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    lead = [(0, 0)] * (x.rank - len(pairs))
    return b.pad(x, [*lead, *pairs], names[mode], 0.0 if value is None else value)


@handles("constant_pad_nd")
def constant_pad_nd(b: Builder, x: Value, widths: Sequence[int], value: float = 0) -> Value:
    return pad(b, x, widths, "constant", value)


# -- pooling --------------------------------------------------------------------


@handles("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Value:
    windows = _windows(x, kernel, stride, padding, dilation, ceil_mode)
    return b.add(Max(), b.windows(x, windows))


def _windows(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil: bool,
) -> Windows:
    """Pooling windows from torch's arguments, of which one number may stand for all axes."""
    dims = len(kernel)
    steps, pads = each(stride or kernel, dims), [(p, p) for p in each(padding, dims)]
    return Windows(x.shape[-dims:], kernel, steps, pads, each(dilation, dims), ceil)


@handles("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(b: Builder, x: Value, *window: Any) -> tuple[Value, None]:
    return max_pool(b, x, *window), None


@handles("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, x: Value, size: int | Sequence[int]) -> tuple[Value, None]:
    targets = [size] if isinstance(size, int) else list(size)
    dims = len(targets)
    # From the last axis on, so that the axes still to come keep their places.
    for axis, target in reversed(list(enumerate(targets, x.rank - dims))):
        x = b.gather(x, axis, _adaptive_windows(x.shape[axis], target))
    first = x.rank - 2 * dims
    order = [*range(first), *range(first, x.rank, 2), *range(first + 1, x.rank, 2)]
    x = b.permute(x, order)
    x = b.reshape(x, (*x.shape[:-dims], math.prod(x.shape[-dims:])))
    return b.add(Max(), x), None


def _adaptive_windows(size: int, target: int) -> Tensor:
    """Entries of each window (target, widest window); shorter windows repeat their last."""
    starts = [i * size // target for i in range(target)]
    stops = [-(-(i + 1) * size // target) for i in range(target)]
    width = max(b - a for a, b in zip(starts, stops, strict=True))
    place = torch.tensor(starts)[:, None] + torch.arange(width)
    return place.minimum(torch.tensor(stops)[:, None] - 1)


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    dims = len(kernel)
    windows = _windows(x, kernel, stride, padding, 1, ceil_mode)
    y = b.average_pool(x, windows, count_include_pad)
    if divisor_override is None:
        return y
    # Both means of an input of ones have the same sum, so their ratio is count / divisor.
    ones = torch.ones(1, 1, *x.shape[-dims:], dtype=torch.float64)
    if dims == 2:
        pool = torch.nn.functional.avg_pool2d
    else:
        pool = torch.nn.functional.avg_pool3d
    means = [
        pool(
            ones,
            list(kernel),
            list(windows.stride),
            each(padding, dims),
            ceil_mode,
            count_include_pad,
            divisor,
        )
        for divisor in (divisor_override, None)
    ]
    return b.scale(y, (means[0] / means[1])[0, 0])


@probes("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(
    b: Builder, run: Run, x: Value, dtype: torch.dtype, size: int | Sequence[int]
) -> Value:
    targets = [size] if isinstance(size, int) else list(size)
    dims = len(targets)
    spatial = x.shape[-dims:]
    targets = [n if t is None else t for n, t in zip(spatial, targets, strict=True)]
    if all(t == 1 for t in targets):
        return b.mean(x, range(x.rank - dims, x.rank), True)
    if any(n % t for n, t in zip(spatial, targets, strict=True)):
        return separable(b, run, x, dtype, dims)
    kernel = [n // t for n, t in zip(spatial, targets, strict=True)]
    return avg_pool(b, x, kernel)


# -- operators known by running them ----------------------------------------------


@probes("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
def resample(b: Builder, run: Run, x: Value, dtype: torch.dtype, *how: Any) -> Value:
    return separable(b, run, x, dtype, x.rank - 2)


def separable(b: Builder, run: Run, x: Value, dtype: torch.dtype, dims: int) -> Value:
    """A product of one matrix per trailing axis, each of which keeps constants constant.

    An input that varies along one axis alone then shows that axis's matrix.
    """
    spatial = x.shape[-dims:]
    matrices = []
    for axis, size in enumerate(spatial):
        line = [1] * dims
        line[axis] = size
        unit = torch.eye(size, dtype=torch.float64).reshape(size, 1, *line)
        answer = run(unit.expand(size, 1, *spatial).contiguous())
        across: list[int | slice] = [slice(None), 0, *([0] * dims)]
        across[2 + axis] = slice(None)
        matrices.append(answer[tuple(across)].T)
    for axis, matrix in enumerate(matrices, x.rank - dims):
        x = arithmetic.along(b, x, axis, matrix)
    return x


_MOVERS = {"channel_shuffle", "diagonal", "flip", "gather", "im2col", "index", "index_select"}
_MOVERS |= {"pixel_shuffle", "pixel_unshuffle", "repeat", "roll", "rot90", "take", "tile"}
_MOVERS |= {"tril", "triu", "unfold", "upsample_nearest1d", "upsample_nearest2d"}
_MOVERS |= {"upsample_nearest3d"}


@probes(*_MOVERS)
def move(b: Builder, run: Run, x: Value, dtype: torch.dtype, *how: Any) -> Value:
    """Each entry of the result is an entry of x or 0: numbered entries show which."""
    count = math.prod(x.shape)
    # In the module's own precision where that can count so far: resampling rounds its
    # places in it.
    exact = dtype if count < 2 / torch.finfo(dtype).eps else torch.float64
    places = run(torch.arange(1, count + 1, dtype=exact).reshape(x.shape)).to(torch.int64)
    flat = b.reshape(x, (count,))
    y = b.gather(flat, 0, places.clamp(min=1) - 1)
    return y if bool((places > 0).all()) else b.scale(y, (places > 0).double())
