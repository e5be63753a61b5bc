"""Affine operators, y = J x + b with J never built: those that carry weights, then those that only
move, repeat, drop or pad entries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from frown.graph.op import Affine, Selection, Shape, inner

ONEDNN: Any = torch.backends.mkldnn
LARGE = 1 << 25  # multiplications; with fewer, preparing a new shape costs more than is gained
SLIGHT = 5 << 19  # multiplications; with fewer, nothing is gained however often a shape comes
SURELY = 0.7  # of what repetition should save is counted on
WIDE = 1 << 20  # weights of a layer that is worth a second copy of them, the other way round
FEW = 8  # channels; transposed convolutions to so few are slow with a stride

Axes = Iterable[tuple[int, int, int, int]]

# By the number of spatial axes.
_CONVOLUTION: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@dataclass(frozen=True, eq=False)
class Linear(Affine):
    """y = x W^T + b along the last axis."""

    weight: Tensor  # (out, in)
    bias: Tensor  # (out,)

    @cached_property
    def sizes(self) -> Tensor:
        """|W|."""
        return self.weight.abs()

    @cached_property
    def turned(self) -> Tensor:
        """W^T, row by row."""
        return self.weight.T.contiguous()

    @cached_property
    def narrow(self) -> Linear:
        """R^T of W^T = Q R: (out, out), whose rows have the lengths and angles of W's."""
        _, upper = torch.linalg.qr(self.weight.double().T)
        return Linear(upper.T.contiguous().to(self.weight), self.bias)

    def shape(self, *inputs: Shape) -> Shape:
        return (*inputs[0][:-1], self.weight.shape[0])

    def apply(self, *xs: Tensor) -> Tensor:
        return affine(xs[0], self.weight, self.bias)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (self.product(coef),)

    def product(self, coef: Tensor) -> Tensor:
        """coef @ W."""
        size = coef.numel() * self.weight.shape[1]
        if self.weight.numel() >= WIDE and _large(coef, self.weight, size):
            return affine(coef, self.turned)  # which oneDNN reads faster
        return product(coef, self.weight)

    def shift(self, coef: Tensor) -> Tensor | None:
        if coef.dim() == 2:
            return coef @ self.bias
        terms = (coef @ self.bias).flatten(1)
        return terms[:, 0] if terms.shape[1] == 1 else terms.sum(1)

    def spread(self, *radii: Tensor) -> Tensor:
        return F.linear(radii[0], self.sizes)


class Convolution(Affine):
    """A convolution or a transposed one, over the last 1, 2 or 3 axes."""

    __slots__ = ()
    weight: Tensor
    bias: Tensor  # (out,)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def apply(self, *xs: Tensor) -> Tensor:
        return self._convolve(xs[0], self.weight, self.bias)

    def shift(self, coef: Tensor) -> Tensor | None:
        totals = coef.flatten(-len(self.stride)).sum(-1)  # of every channel
        return (totals @ self.bias)[..., None].flatten(1).sum(1)

    def spread(self, *radii: Tensor) -> Tensor:
        return self._convolve(radii[0], self.weight.abs(), None)

    @abstractmethod
    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operator with another weight and bias."""

    def _axes(self) -> Axes:
        """Stride, padding, dilation and kernel size along each axis."""
        return zip(self.stride, self.padding, self.dilation, self.weight.shape[2:], strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class Conv(Convolution):
    """Convolution over the last 1, 2 or 3 axes, zero padding alike on both ends.

    Uneven padding is a `Pad` before it. `source` is the input's spatial shape,
    which a stride makes ambiguous from the output's.
    """

    weight: Tensor  # (out, in / groups, *kernel)
    bias: Tensor  # (out,)
    source: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def shape(self, *inputs: Shape) -> Shape:
        return (*inputs[0][: -len(self.source) - 1], self.weight.shape[0], *self._reach())

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        dims = len(self.source)
        if max(self.stride) > 1 and max(self.dilation) == 1:
            single = max(self.weight.shape[2:]) == 1 and not any(self.padding)
            if single or self.weight.shape[1] <= FEW:
                return (_on_images(self._singles if single else self._phases, coef, dims),)
        lost = tuple(
            n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, m, (s, p, d, k) in zip(
                self.source, coef.shape[-dims:], self._axes(), strict=True
            )
        )

        def back(flat: Tensor) -> Tensor:
            return _TRANSPOSED[dims](
                flat, self.weight, None, self.stride, self.padding, lost, self.groups, self.dilation
            )

        return (_on_images(back, coef, dims),)

    def _singles(self, coef: Tensor) -> Tensor:
        """Adjoint of a convolution with a kernel of one entry: it reads every stride-th entry."""
        taken = _TRANSPOSED[len(self.source)](coef, self.weight, None, groups=self.groups)
        back = taken.new_zeros(*taken.shape[:2], *self.source)
        steps = tuple(slice(None, None, s) for s in self.stride)
        back[(slice(None), slice(None), *steps)] = taken
        return back

    def _phases(self, coef: Tensor) -> Tensor:
        """Adjoint of a strided convolution, as convolutions of stride 1.

        There is one for each remainder of a position modulo the stride; all are computed at once
        and interleaved. Kernel entry k = j s + r sends output o to entry (o + j) s + r of the
        padded input.
        """
        dims, size, stride = len(self.source), self.weight.shape[2:], self.stride
        taps = [-(-k // s) for k, s in zip(size, stride, strict=True)]
        # Zero taps in front that line the padding up with the stride, where they are free.
        front = [
            -p % s if -(-(k + -p % s) // s) == t else 0
            for p, s, k, t in zip(self.padding, stride, size, taps, strict=True)
        ]
        room = [(f, t * s - k - f) for f, t, s, k in zip(front, taps, stride, size, strict=True)]
        weight = F.pad(self.weight, [w for pair in reversed(room) for w in pair])
        fold = [n for t, s in zip(taps, stride, strict=True) for n in (t, s)]
        outer, inner_axes = range(2, 2 + 2 * dims, 2), range(3, 3 + 2 * dims, 2)
        weight = weight.reshape(*weight.shape[:2], *fold).permute(0, 1, *inner_axes, *outer)
        weight = weight.reshape(len(weight), -1, *taps)
        coarse = _TRANSPOSED[dims](coef, weight, None, 1, 0, 0, self.groups)
        widths = []
        for axis, (p, f, s, n) in enumerate(
            zip(self.padding, front, stride, self.source, strict=True)
        ):
            first = (p + f) // s
            last = min(-(-(p + f + n) // s), coarse.shape[2 + axis])
            coarse = coarse.narrow(2 + axis, first, last - first)
            widths.append((first * s - p - f, p + f + n - last * s))
        phases = coarse.reshape(len(coef), -1, *stride, *coarse.shape[2:])
        order = [a for d in range(dims) for a in (2 + dims + d, 2 + d)]
        reach = [m * s for m, s in zip(coarse.shape[2:], stride, strict=True)]
        fine = phases.permute(0, 1, *order).reshape(*phases.shape[:2], *reach)
        if any(a or b for a, b in widths):
            fine = F.pad(fine, [w for pair in reversed(widths) for w in pair])
        return fine

    def _reach(self) -> tuple[int, ...]:
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, (s, p, d, k) in zip(self.source, self._axes(), strict=True)
        )

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dims = len(self.source)
        rest = (self.stride, self.padding, self.dilation, self.groups)
        return _on_images(lambda flat: _CONVOLUTION[dims](flat, weight, bias, *rest), x, dims)


@dataclass(frozen=True, slots=True, eq=False)
class Flat(Affine):
    """y = J x + b between tensors of any shape, J as a matrix of their flat entries."""

    weight: Tensor  # (entries of y, entries of x)
    bias: Tensor  # (entries of y,)
    source: Shape
    target: Shape

    @classmethod
    def of(cls, op: Affine, source: Shape) -> Flat:
        """The matrix of an operator that reads a tensor of this shape."""
        target = op.shape(source)
        like = next(iter(op.tensors().values()))
        unit = torch.eye(prod(target), dtype=like.dtype, device=like.device)
        (rows,) = op.pull_back(unit.view(-1, *target))
        offset = op.apply(torch.zeros(1, *source, dtype=like.dtype, device=like.device))
        return cls(rows.reshape(len(unit), -1), offset.flatten(), source, target)

    def shape(self, *inputs: Shape) -> Shape:
        return self.target

    def apply(self, *xs: Tensor) -> Tensor:
        return affine(xs[0].flatten(1), self.weight, self.bias).view(-1, *self.target)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (product(coef.flatten(1), self.weight).view(-1, *self.source),)

    def shift(self, coef: Tensor) -> Tensor | None:
        return coef.flatten(1) @ self.bias

    def spread(self, *radii: Tensor) -> Tensor:
        return F.linear(radii[0].flatten(1), self.weight.abs()).view(-1, *self.target)


@dataclass(frozen=True, slots=True, eq=False)
class ConvTranspose(Convolution):
    """Transposed convolution over the last 1, 2 or 3 axes."""

    weight: Tensor  # (in, out / groups, *kernel)
    bias: Tensor  # (out,)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def shape(self, *inputs: Shape) -> Shape:
        dims = len(self.stride)
        axes = zip(inputs[0][-dims:], self._axes(), self.output_padding, strict=True)
        reach = ((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, (s, p, d, k), o in axes)
        return (*inputs[0][: -dims - 1], self.weight.shape[1] * self.groups, *reach)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        dims = len(self.stride)
        rest = (self.stride, self.padding, self.dilation, self.groups)
        back = _on_images(lambda c: _CONVOLUTION[dims](c, self.weight, None, *rest), coef, dims)
        # A stride can leave room for one entry too many at the far end.
        axes = zip(coef.shape[-dims:], self._axes(), self.output_padding, strict=True)
        for axis, (m, (s, p, d, k), o) in enumerate(axes, -dims):
            back = back.narrow(axis, 0, (m + 2 * p - d * (k - 1) - 1 - o) // s + 1)
        return (back,)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dims = len(self.stride)
        rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return _on_images(lambda flat: _TRANSPOSED[dims](flat, weight, bias, *rest), x, dims)


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Affine):
    """y = a x + b, entry by entry; a and b broadcast to x's shape, never beyond it."""

    factor: Tensor
    offset: Tensor

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0] * self.factor + self.offset

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (coef * self.factor,)

    def shift(self, coef: Tensor) -> Tensor | None:
        return inner(coef, self.offset)

    def spread(self, *radii: Tensor) -> Tensor:
        return radii[0] * self.factor.abs()


@dataclass(frozen=True, slots=True)
class Combine(Affine):
    """y = sum_i w_i x_i for branches of one shape: Add is (1, 1), Sub is (1, -1)."""

    weights: tuple[float, ...]

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def apply(self, *xs: Tensor) -> Tensor:
        return self._sum(self.weights, xs)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return tuple(coef if w == 1 else coef * w for w in self.weights)

    def spread(self, *radii: Tensor) -> Tensor:
        return self._sum(tuple(abs(w) for w in self.weights), radii)

    @staticmethod
    def _sum(weights: tuple[float, ...], xs: tuple[Tensor, ...]) -> Tensor:
        terms = [x if w == 1 else x * w for w, x in zip(weights, xs, strict=True)]
        return torch.stack(terms).sum(0) if len(terms) > 2 else sum(terms[1:], terms[0])


@dataclass(frozen=True, slots=True)
class Sum(Affine):
    """y = the sum of x over some axes (counted without the rows axis), which become 1."""

    source: Shape
    axes: tuple[int, ...]

    def shape(self, *inputs: Shape) -> Shape:
        return tuple(1 if i in self.axes else n for i, n in enumerate(self.source))

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].sum([a + 1 for a in self.axes], keepdim=True)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (coef.expand(-1, *self.source),)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.apply(*radii)


def _on_images(function: Callable[[Tensor], Tensor], x: Tensor, dims: int) -> Tensor:
    """A function of (images, channels, *spatial axes), whatever axes x has before those."""
    y = function(x.reshape(-1, *x.shape[-dims - 1 :]))
    return y.reshape(*x.shape[: -dims - 1], *y.shape[1:])


@dataclass(frozen=True, slots=True)
class Reshape(Selection):
    source: Shape
    target: Shape

    def shape(self, *inputs: Shape) -> Shape:
        return self.target

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].reshape(-1, *self.target)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (coef.reshape(-1, *self.source),)


@dataclass(frozen=True, slots=True)
class Permute(Selection):
    axes: tuple[int, ...]  # output axis i is input axis axes[i]

    def shape(self, *inputs: Shape) -> Shape:
        return tuple(inputs[0][a] for a in self.axes)

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].permute(0, *(a + 1 for a in self.axes))

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        inverse = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return (coef.permute(0, *(a + 1 for a in inverse)),)


@dataclass(frozen=True, slots=True)
class Expand(Selection):
    """Broadcast to a larger shape of the same rank: axes of 1 repeat."""

    source: Shape
    target: Shape

    def shape(self, *inputs: Shape) -> Shape:
        return self.target

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].expand(-1, *self.target)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        grown = [i + 1 for i, (a, b) in enumerate(zip(self.source, self.target)) if a != b]
        return (coef.sum(grown, keepdim=True) if grown else coef,)


@dataclass(frozen=True, slots=True)
class Slice(Selection):
    """x[start:stop:step] along one axis, step > 0, bounds already resolved."""

    source: Shape
    axis: int
    start: int
    stop: int
    step: int = 1

    def shape(self, *inputs: Shape) -> Shape:
        kept = len(range(self.start, self.stop, self.step))
        return (*self.source[: self.axis], kept, *self.source[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0][self._window()]

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        back = coef.new_zeros(coef.shape[0], *self.source)
        back[self._window()] = coef
        return (back,)

    def add_back(self, coef: Tensor, onto: Tensor) -> bool:
        onto[self._window()] += coef
        return True

    def _window(self) -> tuple[slice, ...]:
        return (slice(None),) * (self.axis + 1) + (slice(self.start, self.stop, self.step),)


@dataclass(frozen=True, slots=True, eq=False)
class Gather(Selection):
    """Entries of one axis by index; an index may repeat (nearest upsampling, windows)."""

    source: Shape
    axis: int
    index: Tensor  # (n,) int64, within range

    def shape(self, *inputs: Shape) -> Shape:
        return (*self.source[: self.axis], len(self.index), *self.source[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].index_select(self.axis + 1, self.index)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        back = coef.new_zeros(coef.shape[0], *self.source)
        return (back.index_add_(self.axis + 1, self.index, coef),)

    def add_back(self, coef: Tensor, onto: Tensor) -> bool:
        onto.index_add_(self.axis + 1, self.index, coef)
        return True


@dataclass(frozen=True, slots=True)
class Concat(Affine):
    """Branches side by side along one axis."""

    axis: int
    sizes: tuple[int, ...]

    def shape(self, *inputs: Shape) -> Shape:
        first = inputs[0]
        return (*first[: self.axis], sum(self.sizes), *first[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.cat(xs, self.axis + 1)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return torch.split(coef, list(self.sizes), self.axis + 1)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.apply(*radii)


@dataclass(frozen=True, slots=True)
class Pad(Affine):
    """A constant around the entries; (before, after) for every axis, negative ones cut off."""

    source: Shape
    widths: tuple[tuple[int, int], ...]
    value: float = 0.0

    def shape(self, *inputs: Shape) -> Shape:
        return tuple(n + a + b for n, (a, b) in zip(self.source, self.widths, strict=True))

    def apply(self, *xs: Tensor) -> Tensor:
        return F.pad(xs[0], self._flat(), value=self.value)

    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        return (F.pad(coef, [-width for width in self._flat()]),)

    def shift(self, coef: Tensor) -> Tensor | None:
        if self.value == 0:
            return None
        # The rim alone: a difference of sums would carry the rounding of entries inside it.
        rim = coef.clone()
        rim[self._window()] = 0
        return rim.flatten(1).sum(1) * self.value

    def spread(self, *radii: Tensor) -> Tensor:
        return F.pad(radii[0], self._flat())

    def _window(self) -> tuple[slice, ...]:
        inside = (
            slice(max(0, a), n + a + min(0, b))
            for n, (a, b) in zip(self.source, self.widths, strict=True)
        )
        return (slice(None), *inside)

    def _flat(self) -> list[int]:
        return [width for pair in reversed(self.widths) for width in pair]


# Products of large matrices in single precision, on the CPU. torch has two libraries for them. The
# default one may be MKL, which leaves half of some processors' width unused. oneDNN does not. torch
# asks oneDNN where short numbers would do; on processors without units for matrices of short
# numbers it computes in float32 all the same. Whether it does here is tried once.


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, with b a matrix."""
    if not _large(a, b, a.numel() * b.shape[1]):
        return a @ b
    with _by_onednn():
        return a @ b


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias."""
    if not _large(x, weight, x.numel() * weight.shape[0]):
        return F.linear(x, weight, bias)
    with _by_onednn():
        return F.linear(x, weight, bias)


def _large(a: Tensor, b: Tensor, size: int) -> bool:
    """True if oneDNN is to compute a product of so many multiplications."""
    if size < SLIGHT or size * _TIMES.get() < LARGE:
        return False
    if a.dtype != torch.float32 or a.device.type != "cpu":
        return False
    return not (a.requires_grad or b.requires_grad) and _is_precise()


_TIMES: ContextVar[float] = ContextVar("_TIMES", default=1.0)


@contextmanager
def repeated(times: int) -> Iterator[None]:
    """Inside, products of every shape are asked for so often: smaller ones are worth preparing."""
    token = _TIMES.set(max(1.0, SURELY * times))
    try:
        yield
    finally:
        _TIMES.reset(token)


@contextmanager
def _by_onednn() -> Iterator[None]:
    setting = ONEDNN.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@cache
def _is_precise() -> bool:
    """True if oneDNN is there, and its products are as precise as float32 is."""
    if not (ONEDNN.is_available() and hasattr(ONEDNN, "matmul")):
        return False
    numbers = torch.Generator().manual_seed(0)
    for rows, size, columns in ((64, 1024, 64), (256, 192, 192), (512, 512, 512)):
        a = torch.rand(rows, size, generator=numbers)
        b = torch.rand(size, columns, generator=numbers)
        exact = a.double() @ b.double()
        with _by_onednn():
            found = a @ b, F.linear(a, b.T.contiguous())
        if not all(bool(((own - exact).abs() <= 1e-5 * exact).all()) for own in found):
            return False
    return True
