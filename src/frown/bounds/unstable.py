"""A ReLU network over one sample's boxes, written with some of its neurons alone; and final rows of
many cases, bounded by these matrices with every rounding error charged.

Over fixed boxes, a neuron whose box has no 0 inside is 0 or a linear function. So what arrives at
an unstable neuron is an affine function of the input and of the unstable neurons before it:

    z_k = W_k0 x + sum over j < k of W_kj relu(z_j) + b_k

whatever operators lie in between. What convolutions connect is local: neurons stand in the order of
their places in the image, and matrices are stored as blocks along their bands.

Here rows of cases take the part of `dense.DenseRows` for every other graph. Matrices are pulled
back once, in charged arithmetic: what was rounded away of a row is a bound on how far z_k is off,
and a case's row is charged with it, times its coefficient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import Charges, charged_form, enclosing, least
from frown.bounds.dense import DenseRows, Held, RowAccount
from frown.bounds.plan import Plan
from frown.bounds.replay import Replay
from frown.bounds.rows import Blocks
from frown.relax.proven.rounding import LOOSE, TINY, above, gamma

BANDS = (1, 2, 4, 8, 16, 32)  # into which the rows of a matrix may be divided
CALL = 2_500  # multiplications of one row that take as long as its part of a call
ROWS = 256  # rows that are pulled back at once


@dataclass(frozen=True)
class Block:
    """A dense part of a matrix from values (the input, then kept neurons) to what arrives."""

    rows: slice
    columns: slice
    weight: Tensor  # (rows, columns)


@dataclass(frozen=True)
class Arriving:
    """The affine functions that arrive at the kept neurons of a nonlinearity, or at the outputs."""

    rows: slice  # slots of kept neurons; outputs come after them
    bias: Tensor  # (rows, 1)
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class PulledBack:
    """Rows (n, ...) of affine functions: of the input, of the outputs of kept neurons, a bias, and
    how far they may be off."""

    input: Tensor  # (n, features)
    kept: Tensor  # (n, kept neurons)
    bias: Tensor  # (n,)
    off: Tensor  # (n,)


@dataclass(frozen=True)
class KeptNeurons:
    """The neurons of a network that matrices are about, in the order of their places."""

    plan: Plan
    slots: Tensor  # (kept,) their places among the plan's slots of the output
    parts: tuple[slice, ...]  # of the kept neurons, by nonlinear node
    pixels: Tensor  # (features,) the input's entries in the order of the matrices

    @classmethod
    def of(cls, plan: Plan, keep: Tensor) -> KeptNeurons:
        """`keep` (slots,) says which neurons."""
        graph, order, parts, start = plan.graph, [], [], 0
        for i, part in plan.slots(graph.output)[0].items():
            (source,) = graph.nodes[i].inputs
            place = in_image_order(graph.nodes[source].shape)
            mine = part.start + place[keep[part][place]]
            order.append(mine)
            parts.append(slice(start, start + len(mine)))
            start += len(mine)
        return cls(plan, torch.cat(order), tuple(parts), in_image_order(graph.input_shape))

    @property
    def values(self) -> int:
        """The number of features and kept neurons."""
        return len(self.pixels) + len(self.slots)

    def size(self) -> int:
        """The numbers of all matrices, zeros included."""
        seen, total = len(self.pixels), 0
        for part in self.parts:
            total += (part.stop - part.start) * seen
            seen += part.stop - part.start
        return total + self.plan.graph.output_size * seen

    def layers(self, pull: Callable[[int, Tensor], PulledBack]) -> tuple[list[Arriving], Tensor]:
        """The functions that arrive at nonlinearities and outputs, and how far rows may be off;
        `pull(node, entries)` pulls entries of a node back."""
        graph, found, off = self.plan.graph, [], []
        where = self.plan.slots(graph.output)[0]
        targets = []
        for i, part in zip(where, self.parts, strict=True):
            (source,) = graph.nodes[i].inputs
            targets.append((source, self.slots[part] - where[i].start, part))
        count = len(self.slots)
        last = slice(count, count + graph.output_size)
        targets.append((graph.output, torch.arange(graph.output_size), last))
        features = len(self.pixels)
        for node, entries, rows in targets:
            pieces = [entries[k : k + ROWS] for k in range(0, len(entries), ROWS)]
            pulled = [pull(node, piece) for piece in pieces]
            if not pulled:
                found.append(Arriving(rows, torch.zeros(0, 1, dtype=graph.dtype), ()))
                continue
            blocks = bands(torch.cat([p.input[:, self.pixels] for p in pulled]), rows.start, 0)
            kept = torch.cat([p.kept for p in pulled])
            for part in self.parts:
                if part.stop <= rows.start:
                    blocks += bands(kept[:, part], rows.start, features + part.start)
            bias = torch.cat([p.bias for p in pulled])[:, None].contiguous()
            found.append(Arriving(rows, bias, tuple(blocks)))
            off.append(torch.cat([p.off for p in pulled]))
        return found, torch.cat(off)


def in_image_order(shape: tuple[int, ...]) -> Tensor:
    """The entries of a node, channels of a pixel together, pixels row by row."""
    every = torch.arange(prod(shape)).view(shape)
    return every.movedim(-3, -1).flatten() if len(shape) > 2 else every.flatten()


def bands(matrix: Tensor, row: int, column: int) -> list[Block]:
    """A matrix as dense blocks: consecutive rows, each from its first to its last column that is
    not 0 in all of them. Numbers of blocks are tried; `row` and `column` are where it begins."""
    if not matrix.numel():
        return []
    found = matrix != 0
    some = found.any(1)
    width = matrix.shape[1]
    first = torch.where(some, found.to(torch.uint8).argmax(1), width)
    last = torch.where(some, width - found.flip(1).to(torch.uint8).argmax(1), 0)
    best, lowest = [slice(0, len(matrix))], inf
    for count in BANDS:
        size = -(-len(matrix) // count)
        slices = [slice(a, min(a + size, len(matrix))) for a in range(0, len(matrix), size)]
        cost = sum(
            (s.stop - s.start) * max(0, int(last[s].max() - first[s].min())) + CALL for s in slices
        )
        if cost < lowest:
            best, lowest = slices, cost
    blocks = []
    for s in best:
        a, b = int(first[s].min()), int(last[s].max())
        if a < b:
            rows, columns = slice(row + s.start, row + s.stop), slice(column + a, column + b)
            blocks.append(Block(rows, columns, matrix[s, a:b].contiguous()))
    return blocks


class UnstableRows(DenseRows):
    """One sample's boxes, from which rows of its cases are bounded; slots are kept neurons'."""

    def __init__(self, root: Replay, sample: int, cut: Tensor) -> None:
        """`cut` (slots of the plan,) says which neurons are cut somewhere: these are kept, too."""
        super().__init__(root, sample, [])
        unknown = self.still[:, 0].isnan()  # kept, and nothing comes of their rows
        self.kept = KeptNeurons.of(root.plan, (self.open[:, 0] > 0) | cut | unknown)
        self.passing = (self.still[:, 0] > 0).double().index_fill(0, self.kept.slots, 0.0)
        self.slots = slots = self.kept.slots
        for name in ("lower", "upper", "open", "still", "high", "rise", "away", "size"):
            setattr(self, name, getattr(self, name)[slots])
        self.parts = list(self.kept.parts)

    @cached_property
    def layers(self) -> tuple[list[Arriving], Tensor]:
        """The matrices, and (kept + outputs,) how far what arrives is off."""
        return self.kept.layers(self._pull)

    def _pull(self, node: int, entries: Tensor) -> PulledBack:
        """Entries of a node, as functions of the input and of kept neurons."""
        self.root.work.clock.check()
        plan, count = self.root.plan, len(entries)
        shape, size = plan.graph.nodes[node].shape, plan.graph.nodes[node].size
        where, total = plan.slots(plan.graph.output)
        coef = self.passing.new_zeros(count, size)
        coef[torch.arange(count), entries] = 1
        seen = coef.new_zeros(count, total)

        def through(i: int, here: Tensor) -> tuple[None, Tensor]:
            # A stable neuron is 0 or what it reads, so nothing is rounded.
            seen[:, where[i]] = here.flatten(1)
            below = here.flatten(1) * self.passing[where[i]]
            return None, below.view(count, *plan.graph.nodes[i].shape)

        sample = Blocks(slice(self.sample, self.sample + 1), count)
        charges = Charges(plan, self.root.arithmetic.weights, sample)
        form = charged_form(charges, node, coef.view(-1, *shape), through)
        kept = seen[:, self.kept.slots]
        return PulledBack(form.coef.flatten(1), kept, form.const, form.charge)

    @cached_property
    def _input(self) -> tuple[Tensor, Tensor]:
        """The middle and the reach of the box around the region, in the order of the matrices."""
        own = self.root.region.rows(slice(self.sample, self.sample + 1))
        box = enclosing(own)
        low, high = (t.flatten()[self.kept.pixels] for t in (box.lower, box.upper))
        middle = (low + high) / 2
        return middle, above(torch.maximum(high - middle, middle - low))

    @cached_property
    def _sizes(self) -> tuple[Tensor, float]:
        """(kept + outputs,) at least the sums of |W| times the sizes of values; and how often
        underflow may take TINY from a row."""
        middle, reach = self._input
        values = torch.cat([middle.abs() + reach, self.upper.clamp(min=0)]) * LOOSE + TINY
        arriving, _ = self.layers
        rows = len(self.kept.slots) + self.root.plan.graph.output_size
        found = values.new_zeros(rows)
        for layer in arriving:
            for block in layer.blocks:
                found[block.rows] += block.weight.abs() @ values[block.columns]
        lost = 4.0 * rows * (float(values.sum()) + float(self.size.sum()) + len(values) + 8)
        return found * LOOSE + TINY, lost * LOOSE

    def _bound(self, coef: Tensor, const: Tensor, held: Held) -> tuple[Tensor, Tensor]:
        lines, features = self._lines(held), len(self.kept.pixels)
        every = coef.new_zeros(self.kept.values, len(coef))
        account = RowAccount(const)
        (arriving, off), (sizes, lost) = self.layers, self._sizes
        # A coefficient is a sum of at most so many products, in whatever order.
        share = gamma(len(sizes) + 8)
        for layer, part in zip(reversed(arriving), [None, *reversed(self.parts)], strict=True):
            if part is None:
                below_ = coef.T.contiguous()
            else:
                here = every[features + part.start : features + part.stop]
                below_ = self._through(here, part, lines, account)
            size = below_.abs()
            rows = layer.rows
            # What the matrices are off, what their products round, and the sum of biases.
            own = off[rows] + sizes[rows] * share
            charge = own @ size + (layer.bias[:, 0].abs() @ size) * gamma(len(size) + 8)
            account.add(layer.bias[:, 0] @ below_, charge * LOOSE)
            for block in layer.blocks:
                mine = below_[block.rows.start - rows.start : block.rows.stop - rows.start]
                every[block.columns].addmm_(block.weight.T, mine)
        account.charge += TINY * lost * (1 + coef.abs().sum(1))
        return account.settle(self._over_input(every[:features], account)), lines.used

    def _over_input(self, coef: Tensor, account: RowAccount) -> Tensor:
        """The least values of forms (features, rows) over the region."""
        region = self.root.region
        if region.p == inf and region.split is None:
            (middle, reach), size = self._input, coef.abs()
            share = gamma(len(coef) + 8)
            move = reach @ size
            account.add(middle @ coef, ((middle.abs() + reach) @ size) * (share * LOOSE))
            return -move
        own = region.rows(torch.full((coef.shape[1],), self.sample))
        plain = torch.empty_like(coef)
        plain[self.kept.pixels] = coef
        return least(own, plain.T.reshape(-1, *region.centre.shape[1:]).contiguous())
