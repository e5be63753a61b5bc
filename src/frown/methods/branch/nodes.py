"""Nodes of growing trees, of all problems of a run together.

A leaf has a row of slopes and multipliers, and of the sides of its cuts; an inner node has none:
its first child takes it over. So what is stored grows with leaves alone. What does not fit into
memory is in files.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.spill import SpillingTable

Numbers = NDArray[np.int32]
COLUMNS = ("slot", "below", "above", "problem", "literal", "row", "depth", "last")
MOVED = 1 << 14  # rows that are moved at once


class NodeStack:
    """Numbers of nodes, of which the last ones are taken first."""

    def __init__(self) -> None:
        self._data, self._size = np.empty(0, np.int32), 0

    def __len__(self) -> int:
        return self._size

    def push(self, numbers: Numbers) -> None:
        size = self._size + len(numbers)
        if size > len(self._data):
            grown = np.empty(max(size, 3 * len(self._data) // 2), np.int32)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : size] = numbers
        self._size = size

    def pop(self, count: int) -> Numbers:
        """Take so many numbers away, or all there are."""
        start = max(0, self._size - count)
        found = self._data[start : self._size].copy()
        self._size = start
        return found

    def take(self) -> Numbers:
        """Take all numbers away."""
        return self.pop(self._size)

    @property
    def numbers(self) -> Tensor:
        """A copy of all numbers."""
        return torch.from_numpy(self._data[: self._size].astype(np.int64))

    def renumber(self, new: Tensor) -> None:
        """Replace every number n by new[n]."""
        self._data = new[self.numbers].numpy().astype(np.int32)


class Nodes:
    """Numbers of nodes, in order of birth; those of one problem are a tree.

    `slot` is where a node is cut, -1 for a leaf; `below` its child where z <= point, `above` the
    other; `literal` whose row proves a leaf; `depth` its cuts since a stage began; `last` the cut
    that a leaf comes from, 0 once it has been bounded: slot + 1, negative on the side below. Until
    then its bound is its parent's.
    """

    def __init__(self, slots: int, like: Tensor, most: int = 1 << 30) -> None:
        """`most` are the bytes of a table from which it is in a file."""
        self.slots, self.count, self.rows, self.dtype = slots, 0, 0, like.dtype
        self._numbers = SpillingTable((len(COLUMNS),), torch.int32, most)
        self._bound = SpillingTable((), like.dtype, most)  # the last bound of a leaf
        self._worth = SpillingTable((), like.dtype, most)  # of the cut that it comes from
        # Slopes and multipliers are short, as proofs have them; some multipliers may be too large.
        short = torch.float16 if like.dtype == torch.float32 else like.dtype
        self._theta, self._cut = (
            SpillingTable((slots,), short, most),
            SpillingTable((slots,), torch.int8, most),
        )

    @property
    def _tables(self) -> tuple[SpillingTable, ...]:
        return self._numbers, self._bound, self._worth, self._theta, self._cut

    @property
    def memory(self) -> int:
        """The bytes that are not in files."""
        return sum(t.memory for t in self._tables)

    def _of(self, name: str, nodes: Tensor) -> Tensor:
        return self._numbers.data[nodes, COLUMNS.index(name)].long()

    def slot(self, nodes: Tensor) -> Tensor:
        return self._of("slot", nodes)

    def problem(self, nodes: Tensor) -> Tensor:
        return self._of("problem", nodes)

    def literal(self, nodes: Tensor) -> Tensor:
        return self._of("literal", nodes)

    def depth(self, nodes: Tensor) -> Tensor:
        return self._of("depth", nodes)

    def bound(self, nodes: Tensor) -> Tensor:
        return self._bound.data[nodes]

    def last(self, leaves: Tensor) -> tuple[Tensor, Tensor]:
        """The cuts that leaves come from, and what these were worth."""
        return self._of("last", leaves), self._worth.data[leaves]

    def forget(self, leaves: Tensor) -> None:
        """Learn nothing from the next bounds of leaves, which are about another radius."""
        self._numbers.data[leaves, COLUMNS.index("last")] = 0

    def theta(self, leaves: Tensor) -> Tensor:
        """(n, slots) slopes and multipliers of leaves."""
        return self._theta.data[self._of("row", leaves)].to(self.dtype)

    def cut(self, leaves: Tensor) -> Tensor:
        """(n, slots) the sides of leaves' cuts: -1, 1, or 0 where there is none."""
        return self._cut.data[self._of("row", leaves)]

    def tell(self, leaves: Tensor, theta: Tensor, bound: Tensor, literal: Tensor) -> None:
        """Keep what was found of leaves."""
        self.set_theta(leaves, theta)
        self._bound.data[leaves] = bound
        self._numbers.data[leaves, COLUMNS.index("literal")] = literal.int()
        self.forget(leaves)

    def set_theta(self, leaves: Tensor, theta: Tensor) -> None:
        own = self._theta
        if own.dtype == torch.float16 and bool((theta > torch.finfo(torch.float16).max).any()):
            own.retype(self.dtype)
        own.data[self._of("row", leaves)] = theta.to(own.dtype)

    def set_depth(self, nodes: Tensor, depth: int) -> None:
        self._numbers.data[nodes, COLUMNS.index("depth")] = depth

    def plant(self, problem: int, theta: Tensor) -> int:
        """The root of a tree of a problem, with these slopes (slots,); returns its number."""
        number, row = self.count, self.rows
        self._grow(1, 1)
        values = {"slot": -1, "below": -1, "above": -1, "problem": problem, "row": row}
        own = [values.get(name, 0) for name in COLUMNS]
        self._numbers.data[number] = torch.tensor(own, dtype=torch.int32)
        self._cut.data[row] = 0
        self.count, self.rows = self.count + 1, self.rows + 1
        self.set_theta(torch.tensor([number]), theta[None])
        return number

    def split(self, nodes: Tensor, slot: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
        """Cut leaves at slots, which is worth so much; returns the numbers of the children below
        and above."""
        count = len(nodes)
        self._grow(2 * count, count)
        low = torch.arange(self.count, self.count + count)
        high = low + count
        self.count += 2 * count
        numbers, theta, cut = self._numbers.data, self._theta.data, self._cut.data
        own = numbers[nodes]
        row = own[:, COLUMNS.index("row")].long()
        more = torch.arange(self.rows, self.rows + count)
        self.rows += count
        theta[row, slot] = 0
        theta[more], cut[more] = theta[row], cut[row]
        cut[row, slot], cut[more, slot] = -1, 1
        own[:, COLUMNS.index("depth")] += 1
        numbers[low] = own
        own[:, COLUMNS.index("row")] = more.int()
        numbers[high] = own
        for child, side in ((low, -1), (high, 1)):
            numbers[child, COLUMNS.index("last")] = (side * (slot + 1)).int()
            self._bound.data[child] = self._bound.data[nodes]
            self._worth.data[child] = worth
        for name, value in (("slot", slot), ("below", low), ("above", high)):
            numbers[nodes, COLUMNS.index(name)] = value.int()
        return low, high

    def preorder(self, root: int | Tensor) -> Tensor:
        """The nodes of a tree: each, then the subtree below its point, then the one above; of the
        trees with these roots, one after the other."""
        level = torch.as_tensor(root).reshape(-1)
        levels, inner = [level], []
        while True:
            cut = self.slot(level) >= 0
            inner.append(cut)
            if not bool(cut.any()):
                break
            level = torch.cat([self._of("below", level[cut]), self._of("above", level[cut])])
            levels.append(level)
        sizes = [torch.ones(len(levels[-1]), dtype=torch.long)]
        for cut in reversed(inner[:-1]):
            below, above = sizes[-1].chunk(2)
            size = torch.ones(len(cut), dtype=torch.long)
            size[cut] += below + above
            sizes.append(size)
        sizes.reverse()
        order = torch.empty(int(sizes[0].sum()), dtype=torch.long)
        place = sizes[0].cumsum(0) - sizes[0]
        for k, level in enumerate(levels):
            order[place] = level
            if k + 1 < len(levels):
                first = place[inner[k]] + 1
                place = torch.cat([first, first + sizes[k + 1].chunk(2)[0]])
        return order

    def keep(self, roots: list[int]) -> Tensor:
        """Let go of all trees but those with these roots; returns the new number of every node,
        -1 where it is gone."""
        kept = torch.zeros(self.count, dtype=torch.bool)
        for root in roots:
            kept[self.preorder(root)] = True
        nodes = kept.nonzero().flatten()
        new = torch.full((self.count,), -1, dtype=torch.long)
        new[nodes] = torch.arange(len(nodes))
        numbers = self._numbers.data
        leaf = numbers[nodes, COLUMNS.index("slot")] < 0
        rows = numbers[nodes[leaf], COLUMNS.index("row")].long()
        rows, order = rows.sort()
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        numbers[nodes[leaf], COLUMNS.index("row")] = place.int()
        for name in ("below", "above"):
            own = numbers[nodes[~leaf], COLUMNS.index(name)].long()
            numbers[nodes[~leaf], COLUMNS.index(name)] = new[own].int()
        # Every row moves down, so that none is overwritten before it has moved.
        for table, old in (
            (numbers, nodes),
            (self._bound.data, nodes),
            (self._worth.data, nodes),
            (self._theta.data, rows),
            (self._cut.data, rows),
        ):
            for k in range(0, len(old), MOVED):
                part = old[k : k + MOVED]
                table[k : k + len(part)] = table[part]
        self.count, self.rows = len(nodes), len(rows)
        return new

    def _grow(self, nodes: int, rows: int) -> None:
        for table in (self._numbers, self._bound, self._worth):
            table.grow(self.count + nodes)
        for table in (self._theta, self._cut):
            table.grow(self.rows + rows)
