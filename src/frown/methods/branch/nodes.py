"""Nodes of growing trees, of all problems of a run together.

A leaf has a row of slopes and multipliers, and of the sides of its cuts; an inner node has none:
its first child takes it over. So memory grows with leaves alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Nodes:
    """Numbers of nodes, in order of birth; those of one problem are a tree."""

    def __init__(self, slots: int, like: Tensor) -> None:
        self.slots, self.count, self.rows = slots, 0, 0
        self.parent = torch.zeros(0, dtype=torch.long)
        self.slot = torch.zeros(0, dtype=torch.long)  # where a node is cut; -1: a leaf
        self.below = torch.zeros(0, dtype=torch.long)  # its child where z <= point
        self.above = torch.zeros(0, dtype=torch.long)
        self.problem = torch.zeros(0, dtype=torch.long)
        self.literal = torch.zeros(0, dtype=torch.long)  # whose row proves a leaf
        self.row = torch.zeros(0, dtype=torch.long)
        self.depth = torch.zeros(0, dtype=torch.long)  # cuts on the way to a node
        self.bound = like.new_zeros(0)  # the last bound of a leaf
        self.theta = like.new_zeros(0, slots)
        self.cut = torch.zeros(0, slots, dtype=torch.int8)

    @property
    def bytes(self) -> int:
        """The memory that all of it takes."""
        return (
            self.theta.numel() * self.theta.element_size() + self.cut.numel() + 64 * len(self.row)
        )

    def _room(self, nodes: int, rows: int) -> None:
        if self.count + nodes > len(self.parent):
            more = max(nodes, len(self.parent), 1024)
            for name in ("parent", "slot", "below", "above", "problem", "literal", "row", "depth"):
                old = getattr(self, name)
                setattr(self, name, torch.cat([old, old.new_full((more,), -1)]))
            self.bound = torch.cat([self.bound, self.bound.new_full((more,), -1)])
        if self.rows + rows > len(self.theta):
            more = max(rows, len(self.theta) // 2, 1024)
            self.theta = torch.cat([self.theta, self.theta.new_zeros(more, self.slots)])
            self.cut = torch.cat([self.cut, self.cut.new_zeros(more, self.slots)])

    def plant(self, problem: Tensor, theta: Tensor) -> Tensor:
        """Roots of trees of these problems, with these slopes; returns their numbers."""
        count = len(problem)
        self._room(count, count)
        numbers = torch.arange(self.count, self.count + count)
        self.problem[numbers], self.depth[numbers] = problem, 0
        self.row[numbers] = torch.arange(self.rows, self.rows + count)
        self.theta[self.rows : self.rows + count] = theta
        self.cut[self.rows : self.rows + count] = 0
        self.count += count
        self.rows += count
        return numbers

    def split(self, nodes: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Cut leaves at slots; returns the numbers of the children below and above."""
        count = len(nodes)
        self._room(2 * count, count)
        low = torch.arange(self.count, self.count + count)
        high = low + count
        self.count += 2 * count
        row = self.row[nodes]
        more = torch.arange(self.rows, self.rows + count)
        self.rows += count
        self.theta[row, slot] = 0
        self.theta[more] = self.theta[row]
        self.cut[more] = self.cut[row]
        self.cut[row, slot], self.cut[more, slot] = -1, 1
        self.slot[nodes], self.below[nodes], self.above[nodes] = slot, low, high
        for child, own in ((low, row), (high, more)):
            self.parent[child], self.row[child] = nodes, own
            self.problem[child], self.depth[child] = self.problem[nodes], self.depth[nodes] + 1
        return low, high
