"""Numbers of samples against rows: which sample each row has, and sums along rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph.box import rows_of


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of consecutive samples, equally many of each: a sample's numbers are read by its rows
    where they are, not copied for every row."""

    samples: slice
    each: int

    def blocks(self, rows: Tensor) -> Tensor:
        """(samples, each, ...) of (rows, ...)."""
        return rows.reshape(-1, self.each, *rows.shape[1:])

    def table(self, numbers: Tensor) -> Tensor:
        """(samples, 1, ...) of (N, ...)."""
        return numbers[self.samples].unsqueeze(1)


SampleIndex = Tensor | Blocks  # a row's sample

LONG = 1 << 8  # numbers of a row that are not worth a copy
WIDE = 1 << 14  # numbers of a sample's rows; a product of so many costs more than it computes


def sample_index(sample: Tensor) -> SampleIndex:
    """(rows,) samples in the shortest way to say it."""
    if not len(sample):
        return sample
    first, last = int(sample[0]), int(sample[-1])
    count = last - first + 1
    each = len(sample) // max(count, 1)
    if count < 1 or each * count != len(sample):
        return sample
    even = torch.arange(first, last + 1, device=sample.device).repeat_interleave(each)
    return Blocks(slice(first, last + 1), each) if torch.equal(even, sample) else sample


def places(which: SampleIndex) -> Tensor | slice:
    """An index that reads a sample's numbers for each of its rows; one sample's are broadcast."""
    if not isinstance(which, Blocks):
        return which
    first, end = which.samples.start, which.samples.stop
    if end - first == 1:
        return which.samples
    return torch.arange(first, end).repeat_interleave(which.each)


def spread(numbers: Tensor, which: SampleIndex) -> Tensor:
    """(rows, ...) of (N, ...)."""
    if isinstance(which, Blocks):
        return numbers[which.samples].repeat_interleave(which.each, 0)
    return rows_of(numbers, which)


def dot(coef: Tensor, numbers: Tensor, which: SampleIndex) -> Tensor:
    """(rows,) coef (rows, ...) . numbers (N, ...)."""
    flat = coef[..., None].flatten(1)  # a lone number has no axis
    if isinstance(which, Blocks):
        own = numbers[which.samples]
        if len(own) == 1:
            return flat @ own.flatten()
        if which.each * flat.shape[1] >= WIDE:
            blocks = zip(which.blocks(flat), own.reshape(len(own), -1), strict=True)
            return torch.cat([rows @ numbers for rows, numbers in blocks])
        return (which.blocks(flat) * own.reshape(len(own), 1, -1)).sum(2).flatten()
    if flat.shape[1] >= LONG:
        own, counts = torch.unique_consecutive(which, return_counts=True)
        if 0 < 4 * len(own) <= len(which):
            blocks = zip(flat.split_with_sizes(counts.tolist()), own.tolist(), strict=True)
            return torch.cat([rows @ numbers[n].flatten() for rows, n in blocks])
    return (flat * rows_of(numbers, which).reshape(flat.shape)).sum(1)


def inner(coef: Tensor, size: Tensor, which: SampleIndex) -> Tensor:
    """(rows,) |coef| . size."""
    return dot(coef.abs(), size, which)
