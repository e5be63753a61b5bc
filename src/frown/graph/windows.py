"""The geometry of padding and pooling windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from frown.graph.op import Unsupported


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a convolution or pooling over the trailing axes of a tensor.

    `pads` are (before, after) for each axis; `ceil` allows a last window that reaches
    beyond the padding, if it starts inside the input or the padding before it.
    """

    spatial: Sequence[int]
    kernel: Sequence[int]
    stride: Sequence[int]
    pads: Sequence[tuple[int, int]]
    dilation: Sequence[int]
    ceil: bool = False

    def span(self) -> list[int]:
        """The number of entries that one window extends over along each axis."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def reach(self) -> list[int]:
        """The number of windows along each axis."""
        counts = []
        for n, k, s, (a, b), d in self._axes():
            room = n + a + b - d * (k - 1) - 1
            if room < 0:
                raise Unsupported(f"a window of {k} does not fit an axis of {n}")
            count = room // s + 1
            if self.ceil and room % s and count * s < n + a:
                count += 1
            counts.append(count)
        return counts

    def padding(self) -> list[tuple[int, int]]:
        """The padding with which exactly these windows fit."""
        return [
            (a, max(b, (m - 1) * s + d * (k - 1) + 1 - n - a))
            for m, (n, k, s, (a, b), d) in zip(self.reach(), self._axes(), strict=True)
        ]

    def counts(self, include_pad: bool) -> Tensor:
        """The number of entries that each window averages.

        With `include_pad` the padding counts, but never what `ceil` adds beyond it.
        """
        dims = len(self.kernel)
        ones = torch.ones(1, 1, *self.kernel, dtype=torch.float64)
        entries = torch.ones(1, 1, *self.spatial, dtype=torch.float64)
        entries = _pad(entries, self.pads, 1.0 if include_pad else 0.0)
        beyond = [(0, e - b) for (_, e), (_, b) in zip(self.padding(), self.pads, strict=True)]
        entries = _pad(entries, beyond, 0.0)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        counts = convolve(entries, ones, None, tuple(self.stride), 0, tuple(self.dilation))
        if not bool((counts > 0).all()):
            raise Unsupported("a pooling window that lies wholly in the padding")
        return counts.reshape(counts.shape[2:])

    def entries(self) -> Tensor:
        """Flat indices of every window's entries, window by window.

        A place that falls on padding repeats an entry of its window.
        """
        dims = len(self.kernel)
        index = torch.zeros((), dtype=torch.int64)
        for m, (n, k, s, (a, _), d) in zip(self.reach(), self._axes(), strict=True):
            place = (torch.arange(m) * s - a)[:, None] + torch.arange(k) * d
            inside = (place >= 0) & (place < n)
            if not bool(inside.any(1).all()):
                raise Unsupported("a pooling window that lies wholly in the padding")
            valid = place.gather(1, inside.to(torch.int64).argmax(1, keepdim=True))
            index = index[..., None, None] * n + torch.where(inside, place, valid)
        # (reach_1, kernel_1, reach_2, kernel_2, ...) -> windows first
        index = index.permute(*range(0, 2 * dims, 2), *range(1, 2 * dims, 2))
        return index.reshape(-1)

    def _axes(self) -> list[tuple[int, int, int, tuple[int, int], int]]:
        return list(
            zip(self.spatial, self.kernel, self.stride, self.pads, self.dilation, strict=True)
        )


def rim(size: int, before: int, after: int, mode: str) -> Tensor:
    """Indices of an axis of `size`, padded by repeating its own entries."""
    place = torch.arange(-before, size + after)
    if mode == "edge":
        return place.clamp(0, size - 1)
    if mode == "wrap":
        return place % size
    if mode == "reflect":
        if size == 1:
            return torch.zeros_like(place)
        period = 2 * (size - 1)
        place = place % period
        return torch.where(place < size, place, period - place)
    raise Unsupported(f"padding mode {mode}")


def _pad(x: Tensor, pads: Sequence[tuple[int, int]], value: float) -> Tensor:
    flat = [width for pair in reversed(list(pads)) for width in pair]
    return F.pad(x, flat, value=value)
