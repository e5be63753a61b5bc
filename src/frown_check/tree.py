"""Cases: how a certificate's tree parts the region, and what follows if every leaf is proved.

Proved: every point of the region lies in some leaf. By induction from the root, to which all of
them belong: a point of an inner node has a number z at the entry that is cut, so z <= point or
z >= point, and it lies in one of the two children. So a clause holds on the region if it holds at
every leaf of one tree; and what holds at a node holds at all nodes below it. The reader has built
trees from preorders (`container`), so every inner node has its two children, and there is no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from frown_check.balls import Array, Index
from frown_check.container import LEAF, Tree
from frown_check.errors import refuse_if
from frown_check.lines import Mask

MOST_DEPTH = 2**12


@dataclass(frozen=True, slots=True)
class Cuts:
    """z <= point (side 0) or z >= point (side 1) of some nodes: one line for each cut."""

    place: Index  # which of the nodes
    node: Index  # the node of the tree that is cut
    side: Index


class Shape:
    """A tree with its nodes' parents. A node's *base* is the nearest node from it upwards that
    has a pass of steps, or the root: boxes are those of the base, cut."""

    def __init__(self, tree: Tree) -> None:
        inner = (tree.site != LEAF).tolist()
        parent, side, depth, waiting = [-1], [0], [0], []
        for k in range(1, len(inner)):
            if inner[k - 1]:
                waiting.append(k - 1)
            up, right = (k - 1, 0) if inner[k - 1] else (waiting.pop(), 1)
            parent.append(up)
            side.append(right)
            depth.append(depth[up] + 1)
        refuse_if(max(depth) > MOST_DEPTH, f"the tree is deeper than {MOST_DEPTH} cuts")
        self.parent, self.side, self.depth = map(np.array, (parent, side, depth))
        self.leaves = np.flatnonzero(tree.site == LEAF)
        self.own = tree.own
        base = [0]
        for k, (up, own) in enumerate(zip(parent[1:], tree.own.tolist()[1:]), 1):
            base.append(k if own >= 0 else base[up])
        self.base = np.array(base)

    @property
    def bases(self) -> Index:
        """The nodes with passes, the root left out."""
        return np.flatnonzero(self.own[1:] >= 0) + 1

    def above(self, base: Index) -> Index:
        """The bases that boxes of these bases come from."""
        found: Index = self.base[self.parent[base]]
        return found

    def cuts(self, nodes: Index, ends: Index) -> Cuts:
        """The cuts on the ways up from some nodes to their `ends`."""
        place, here = np.arange(len(nodes)), nodes
        found = []
        while True:
            on = here != ends[place]
            place, here = place[on], here[on]
            if not len(here):
                break
            found.append((place, self.parent[here], self.side[here]))
            here = self.parent[here]
        if not found:
            return Cuts(*(np.zeros(0, dtype=np.int64),) * 3)
        return Cuts(*(np.concatenate(part) for part in zip(*found)))

    def least(self, margins: Array, empty: Mask) -> Array:
        """(clauses,) lower bounds over all leaves, of margins (nodes, clauses) that were proved at
        nodes, -inf where none was; `empty` nodes have no points."""
        known = np.where(empty[:, None], np.inf, margins)
        order = np.argsort(self.depth, kind="stable")
        for here in np.split(order, np.cumsum(np.bincount(self.depth))[:-1])[1:]:
            known[here] = np.maximum(known[here], known[self.parent[here]])
        least: Array = known[self.leaves].min(0)
        return least


class Grouped:
    """Items by the base that they hang at."""

    def __init__(self, item: Index, base: Index) -> None:
        order = np.argsort(base, kind="stable")
        self.item, self.base = item[order], base[order]

    def below(self, bases: Index, alive: Index, size: int) -> Iterator[tuple[Index, Index]]:
        """The items of those of some bases that are alive, with the place of each one's base,
        not more than `size` at once."""
        first = np.searchsorted(self.base, bases[alive])
        counts = np.searchsorted(self.base, bases[alive], side="right") - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        items = self.item[np.repeat(first, counts) + within]
        yield from zip(split(items, size), split(np.repeat(alive, counts), size), strict=True)


def split(items: Index, size: int) -> list[Index]:
    """The items in order, not more than `size` at once."""
    return [items[i : i + size] for i in range(0, len(items), size)]
