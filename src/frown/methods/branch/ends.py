"""Ends of boxes of inner neurons, raised by trees of their own.

What the relaxation loses of a neuron's row is lost again in every later layer, so in deep networks
boxes decide more than cuts below the property do. Layer by layer, an end of every unstable neuron
gets a small tree of cuts of earlier neurons; later layers are bounded over what it proves. Trees
stay for the next radius, at which their leaves are bounded once more, and may grow there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frown.bounds.lemmas import SPARE
from frown.bounds.tree import CODES, LEAF, NONE, Lemma, Multipliers
from frown.methods.branch.ascent import Bases, LeafAscent, Leaves, gaps, intercepts
from frown.methods.branch.nodes import Nodes
from frown.methods.branch.passes import Dense, DensePlaces
from frown.problem.region import Region

FIRST = LeafAscent(steps=4, rate=0.3, decay=0.8)  # of roots
NEXT = LeafAscent(steps=2, rate=0.3)  # of children
AGAIN = LeafAscent(steps=1)  # of leaves at another radius
LEAF_BYTES = 4  # and more, of a leaf for each neuron before


@dataclass
class EndLayer:
    """The trees of ends of what one site reads."""

    site: int
    passes: Dense  # of the layers before
    places: DensePlaces
    nodes: Nodes
    root: Tensor  # (2 * neurons,) of lower ends, then of upper ones; -1 where there is none
    leaves: list[Tensor] = field(default_factory=list)  # numbers of all leaves
    open: Tensor | None = None  # (slots before,) free neurons of the boxes that leaves had last
    told: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


class EndTrees:
    """The trees of one input."""

    def __init__(self, passes: Dense, region: Region) -> None:
        """`region` is of the one input."""
        self.layers: list[EndLayer] = []
        for k in range(1, passes.depth):
            own = _before(passes, k)
            part = passes.parts[k]
            places = DensePlaces(own, region)
            nodes = Nodes(own.slots, region.centre)
            root = torch.full((2 * (part.stop - part.start),), -1)
            self.layers.append(EndLayer(k, own, places, nodes, root))
        self.parts = passes.parts
        self._last: tuple[tuple[float, int], tuple[Tensor, Tensor]] | None = None

    def fit(self, most: int, memory: int) -> bool:
        """True if trees of so many nodes take no more than this memory."""
        leaves = (most + 1) // 2
        rows = ((len(own.told) or len(own.root)) * own.passes.slots for own in self.layers)
        return LEAF_BYTES * leaves * sum(rows) <= memory

    def raised(
        self, lower: Tensor, upper: Tensor, radius: float, most: int
    ) -> tuple[Tensor, Tensor]:
        """The boxes (slots,) at a radius with their ends raised by trees of at most so many
        nodes."""
        if self._last is not None and self._last[0] == (radius, most):
            return self._last[1]
        lower, upper = lower.clone(), upper.clone()
        for layer in self.layers:
            part, slots = self.parts[layer.site], layer.passes.slots
            low, high = lower[part], upper[part]
            base = Bases.of(lower[:slots, None], upper[:slots, None])
            ends = self._ends(layer, base, low, high, radius, most)
            count, spare = len(low), SPARE * (high - low)
            lower[part] = low.maximum((ends[:count] - spare).minimum(high))
            upper[part] = high.minimum(spare - ends[count:]).maximum(lower[part])
        self._last = (radius, most), (lower, upper)
        return lower, upper

    def _ends(
        self, layer: EndLayer, base: Bases, low: Tensor, high: Tensor, radius: float, most: int
    ) -> Tensor:
        """(2 * neurons,) what trees prove of neurons and of their negatives; -inf: nothing."""
        nodes, count = layer.nodes, len(low)
        wanted = ((low < 0) & (high > 0)).repeat(2)
        start = torch.cat([low, -high])
        usual = base.high[:, 0].round()
        fresh = (wanted & (layer.root < 0)).nonzero().flatten()
        for k in fresh.tolist():
            layer.root[k] = nodes.plant(k, usual)
        ends = torch.full((2 * count,), -torch.inf, dtype=low.dtype)
        rows = wanted.nonzero().flatten()
        layer.open, layer.told = base.open[:, 0] > 0, rows
        if not len(rows):
            return ends
        every = nodes.preorder(layer.root[rows])
        slot = nodes.slot(every)
        leaf = every[slot < 0]
        row = nodes.problem(leaf)
        size = torch.zeros(2 * count, dtype=torch.long).index_add_(
            0, nodes.problem(every), torch.ones_like(every)
        )
        new = size[row] == 1
        # Roots that are new, and leaves that have been bounded at another radius.
        order = torch.cat([new.nonzero().flatten(), (~new).nonzero().flatten()])
        leaf, row, fresh_ones = leaf[order], row[order], int(new.sum())
        climbed = Climbed.cat(
            [
                self._climb(layer, base, radius, leaf[:fresh_ones], FIRST),
                self._climb(layer, base, radius, leaf[fresh_ones:], AGAIN),
            ]
        )
        while True:
            worst = ends.new_full((2 * count,), torch.inf)
            worst.scatter_reduce_(0, row, climbed.bound, "amin")
            split = (climbed.bound <= worst[row]) & (climbed.worth > 0)
            split &= (worst[row] < 0) & (size[row] + 2 <= most)
            own = split.nonzero().flatten()
            if not len(own):
                break
            below, above = nodes.split(leaf[own], climbed.slot[own], climbed.worth[own])
            size[row[own]] += 2
            children = torch.cat([below, above])
            more = self._climb(layer, base, radius, children, NEXT)
            keep = torch.ones(len(leaf), dtype=torch.bool)
            keep[own] = False
            leaf, row = (
                torch.cat([leaf[keep], children]),
                torch.cat([row[keep], row[own].repeat(2)]),
            )
            climbed = Climbed.cat([climbed.take(keep), more])
        ends.scatter_reduce_(0, row, climbed.bound, "amin", include_self=False)
        return torch.where(ends > start, ends, -torch.inf)

    def _climb(
        self, layer: EndLayer, base: Bases, radius: float, ids: Tensor, ascent: LeafAscent
    ) -> Climbed:
        """Raise the bounds of leaves, which keep what gave the best ones."""
        own, nodes = layer.passes, layer.nodes
        row = nodes.problem(ids)
        count = own.weight[-1].shape[0]
        sign = torch.where(row < count, 1.0, -1.0).to(base.lower)
        zero = torch.zeros(len(ids), dtype=torch.long)
        leaves = Leaves(
            own,
            base,
            zero,
            nodes.cut(ids),
            nodes.theta(ids),
            (own.weight[-1][row % count] * sign[:, None]).T.contiguous(),
            own.biases[-1][row % count, 0] * sign,
            layer.places.of(zero, torch.full((len(ids),), radius, dtype=base.lower.dtype)),
        )
        found, theta = _climb(leaves, ascent)
        crossed = ((leaves.cut > 0) & (base.upper < 0) | (leaves.cut < 0) & (base.lower > 0)).any(0)
        nodes.set_theta(ids, theta)
        return replace(found, bound=torch.where(crossed, torch.inf, found.bound))

    def lemmas(self) -> tuple[Lemma, ...]:
        """Lemmas that prove the boxes of the last radius."""
        return tuple(self._lemma(layer) for layer in self.layers if len(layer.told))

    def _lemma(self, layer: EndLayer) -> Lemma:
        nodes, rows, own = layer.nodes, layer.told, layer.passes
        count = own.weight[-1].shape[0]
        every = nodes.preorder(layer.root[rows])
        slot = nodes.slot(every)
        inner = slot >= 0
        starts = torch.tensor([part.start for part in own.parts])
        site = torch.searchsorted(starts, slot.clamp(min=0), right=True) - 1
        leaves = every[~inner]
        cut, theta = nodes.cut(leaves), nodes.theta(leaves)
        code = (theta.clamp(0, 1) * (CODES - 1)).round() + 1
        assert layer.open is not None
        free = layer.open[None] & (cut == 0)
        return Lemma(
            layer.site,
            rows % count,
            (rows >= count).long(),
            torch.where(inner, site, LEAF),
            torch.where(inner, slot - starts[site], 0),
            torch.where(free, code, float(NONE)).to(torch.uint8),
            Multipliers.of(-cut.to(theta) * theta),
        )


@dataclass(frozen=True)
class Climbed:
    """Leaves after their ascents."""

    bound: Tensor
    slot: Tensor  # where to cut them
    worth: Tensor

    def take(self, keep: Tensor) -> Climbed:
        return Climbed(self.bound[keep], self.slot[keep], self.worth[keep])

    @classmethod
    def cat(cls, parts: Sequence[Climbed]) -> Climbed:
        """The leaves of all parts, in order."""
        return cls(
            torch.cat([part.bound for part in parts]),
            torch.cat([part.slot for part in parts]),
            torch.cat([part.worth for part in parts]),
        )


def _climb(leaves: Leaves, ascent: LeafAscent) -> tuple[Climbed, Tensor]:
    """Raise the bounds of leaves; returns (leaves, slots) what gave the best ones, too."""
    best, theta = torch.full_like(leaves.const, -torch.inf), leaves.theta
    first = second = units = torch.zeros(())
    for step in range(ascent.steps + 1):
        bound = leaves.bound()
        better = bound > best
        best, theta = torch.where(better, bound, best), torch.where(better, leaves.theta, theta)
        if step == ascent.steps:
            break
        gradient = leaves.uphill()
        if step == 0:
            units = leaves.units(ascent.lift)
            first = gradient.mul_(units)
            second = first.square().add_(16 * torch.finfo(best.dtype).tiny)
        else:
            gradient.mul_(units)
            first = first.lerp(gradient, 1 - ascent.momentum)
            second.mul_(ascent.memory).addcmul_(gradient, gradient, value=1 - ascent.memory)
        floor = second.amax(0, keepdim=True).mul_(ascent.floor)
        move = (second + floor).rsqrt_().mul_(first).mul_(units)
        leaves.move(move, ascent.rate * ascent.decay**step)
    worth, slot = intercepts(leaves).max(0)
    if bool((worth <= 0).any()):
        other, place = gaps(leaves).max(0)
        slot, worth = torch.where(worth > 0, slot, place), torch.where(worth > 0, worth, other)
    return Climbed(best, slot, worth), theta.T


def _before(passes: Dense, site: int) -> Dense:
    """The layers up to what a site reads."""
    own = copy.copy(passes)
    own.weight, own.turned = passes.weight[: site + 1], passes.turned[: site + 1]
    own.biases, own.parts = passes.biases[: site + 1], passes.parts[:site]
    own.depth, own.slots = site, passes.parts[site].start
    own.heads = len(own.weight[-2])
    own.__dict__.pop("bias", None)
    return own
