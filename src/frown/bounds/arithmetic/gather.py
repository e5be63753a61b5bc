"""Numbers of samples against rows: which sample each row has, and sums along rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from frown.bounds.plan import Plan
from frown.bounds.rows import CALL, PASS, at_once
from frown.bounds.work import Work
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
    """Compress a sample index (rows,): `Blocks` where every sample has the same number of
    consecutive rows, else the index as it is."""
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


def charged_pieces(
    plan: Plan, target: int, sample: Tensor, work: Work, searched: bool
) -> Iterator[slice]:
    """Chunks of rows near the processor: numbers are twice as long as in a search, and rows keep
    nothing of the nodes they pass, unless slopes of their own (`searched`). Chunks hold whole
    samples if all have equally many rows, and one sample if it has many: such rows share what they
    read."""
    rows, most = len(sample), work.memory // plan.row_bytes(target)
    if searched:
        most = at_once(plan, target, work)
    size = plan.node_size(target)
    step = max(1, min(most, 2 * PASS // size))
    ends = [rows]
    if isinstance(even := sample_index(sample), Blocks):
        width = max(even.each, step - step % even.each)
        ends = [*range(width, rows, width), rows]
    elif rows:
        counts = torch.bincount(sample - sample[0])
        if rows * size > len(counts) * CALL:
            ends = counts.cumsum(0).tolist()
    for a, end in pairwise([0, *ends]):
        yield from (slice(b, min(b + step, end)) for b in range(a, end, step))
