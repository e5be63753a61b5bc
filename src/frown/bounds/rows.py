"""Rows: the quantities that are bounded below, how many of them go together, and numbers of samples
against rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from frown.bounds.patches import Part
from frown.bounds.plan import Plan, per_plan
from frown.bounds.work import Work
from frown.graph.affine import Linear
from frown.graph.intervals import Intervals, rows_of

CHUNK = 64 << 20  # bytes of rows in flight; with more, time goes into moving memory
CALL = 1 << 13  # numbers that an operator should get at once; with fewer, time goes into calls
PASS = 3 << 15  # numbers that rows with fixed lines, of which little is kept, have at a node
BROAD = 1 << 20  # weights of a matrix whose reading takes the time of a product of few rows
SHARING = 256  # rows that had better pass such a matrix together


@dataclass(frozen=True, slots=True)
class Rows:
    """Neurons of samples, each on one side: side 0 bounds the neuron below, side 1 its negative,
    that is the neuron above. At the output a neuron is a literal of the property, on side 0."""

    sample: Tensor  # (rows,)
    neuron: Tensor  # (rows,)
    side: Tensor  # (rows,)

    @classmethod
    def both(cls, sample: Tensor, neuron: Tensor) -> Rows:
        """Both sides of every neuron: first all below, then all above."""
        side = torch.zeros(2, len(neuron), dtype=neuron.dtype, device=neuron.device)
        side[1] = 1
        return cls(torch.cat([sample, sample]), torch.cat([neuron, neuron]), side.view(-1))

    @classmethod
    def literals(cls, samples: int, literals: int, device: torch.device) -> Rows:
        """All literals of every sample."""
        every = torch.arange(samples * literals, device=device)
        return cls(every // literals, every % literals, torch.zeros_like(every))

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, index: Tensor | slice) -> Rows:
        if isinstance(index, slice) and index == slice(None):
            return self
        return Rows(self.sample[index], self.neuron[index], self.side[index])

    def sign(self, dtype: torch.dtype) -> Tensor:
        """(rows,) 1 below, -1 above."""
        return (1 - 2 * self.side).to(dtype)

    def coef(self, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """(rows, *shape) the coefficients of these neurons of a node."""
        return one_hot(self.neuron, self.sign(dtype), size, shape)

    def of(self, box: Intervals) -> Tensor:
        """(rows,) a node's bounds as bounds below of these rows."""
        return _sides(box).index_select(0, self._places(box))

    def tighten(self, box: Intervals, least: Tensor) -> Intervals:
        """A node's box with these bounds of rows; NaN proves nothing, and the box stays. May be
        crossed where the bounds contradict it."""
        sides, at = _sides(box), self._places(box)
        sides.index_copy_(0, at, torch.fmax(sides.index_select(0, at), least))
        low, high = sides.chunk(2)
        return Intervals(low.view_as(box.lower), high.neg().view_as(box.upper))

    def _places(self, box: Intervals) -> Tensor:
        """(rows,) indices of the rows' bounds among the sides of a box."""
        size = box.lower[0].numel()
        return (self.side * len(box.lower) + self.sample) * size + self.neuron


def _sides(box: Intervals) -> Tensor:
    """All bounds below, then all above as bounds below of negatives."""
    return torch.cat([box.lower.flatten(), -box.upper.flatten()])


def one_hot(index: Tensor, sign: Tensor, size: int, shape: tuple[int, ...]) -> Tensor:
    """Rows that pick single entries of a node: sign at index, 0 elsewhere."""
    coef = torch.zeros(len(index), size, dtype=sign.dtype, device=sign.device)
    coef.scatter_(1, index[:, None], sign[:, None])
    return coef.view(-1, *shape)


def unstable(
    plan: Plan, source: int, box: Intervals, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(sample, neuron) of the entries of a source whose bounds backward rows may improve; only
    those in the mask `wanted` (N, size), if given."""
    masks = [
        plan.carry_back(i, ~plan.relaxation(i).stable(plan.carry(i, box)))
        for i in plan.readers(source)
    ]
    mask = (reduce(torch.logical_or, masks) & plan.loose(source)).flatten(1)
    sample, neuron = (mask if wanted is None else mask & wanted).nonzero(as_tuple=True)
    return sample, neuron


def tightened(
    plan: Plan,
    source: int,
    box: Intervals,
    bounds: Callable[[Rows], Tensor],
    wanted: Tensor | None = None,
) -> Intervals:
    """A node's box, its unstable entries (of those in the mask, (N, size)) bounded by rows, of
    which `bounds` gives lower bounds. May be crossed where these contradict the box."""
    sample, neuron = unstable(plan, source, box, wanted)
    if not len(sample):
        return box
    if few(plan, source, len(sample)):
        # Both sides in one pass: with few rows, passes cost more than rows.
        rows = Rows.both(sample, neuron)
        return rows.tighten(box, bounds(rows))
    # The side nearer to 0 first: a neuron that is stable then needs no row for the other.
    near = (box.middle.flatten(1) <= 0).long()
    found = box
    for sides in (near, 1 - near):
        sample, neuron = unstable(plan, source, box.meet(found), wanted)
        if len(sample):
            rows = Rows(sample, neuron, sides[sample, neuron])
            found = rows.tighten(found, bounds(rows))
    return found


# -- how many go together ------------------------------------------------------------


def few(plan: Plan, target: int, neurons: int) -> bool:
    """True if lower and upper rows of so many neurons fit into one pass. Must not depend on free
    memory: it decides which bounds are computed."""
    rows = max(CHUNK // plan.row_bytes(target), CALL // plan.node_size(target))
    return 2 * neurons <= rows


def at_once(plan: Plan, target: int, work: Work) -> int:
    """The number of rows of a target that go together: within the budget, and near the processor.

    A row through many small nodes (frames of a sequence) is long, but each of them wants its
    share of numbers: else rows get fewer with every frame, and passes more.
    """
    row = plan.row_bytes(target)
    rows = max(CHUNK // row, CALL // plan.node_size(target), _worth_reading(plan, target))
    return max(1, min(work.memory // row, rows))


def _worth_reading(plan: Plan, target: int) -> int:
    """Rows that pass large matrices one after another, so that reading these is shared."""
    return SHARING if broad(plan, target) else 1


@per_plan
def broad(plan: Plan, target: int) -> bool:
    """True if the rows of a target pass dense layers alone, and a large one among them."""
    weighed = [op for i in plan.ancestors(target) if (op := plan.graph.nodes[i].op).tensors()]
    dense = all(isinstance(op, Linear) for op in weighed)
    return dense and any(isinstance(op, Linear) and op.weight.numel() >= BROAD for op in weighed)


def pieces(plan: Plan, target: int, rows: int, work: Work) -> Iterator[slice]:
    """Chunks of rows that fit the memory budget."""
    step = at_once(plan, target, work)
    return (slice(a, min(a + step, rows)) for a in range(0, rows, step))


def fixed_pieces(part: Part, rows: int, work: Work) -> Iterator[slice]:
    """Chunks of rows along fixed lines."""
    most = work.memory // part.plan.row_bytes(part.target)
    wanted = PASS // part.plan.node_size(part.target), _worth_reading(part.plan, part.target)
    step = max(1, min(most, max(wanted)))
    return (slice(a, min(a + step, rows)) for a in range(0, rows, step))


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
