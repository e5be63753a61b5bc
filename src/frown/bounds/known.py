"""Boxes found at a larger radius, which hold at every smaller one.

The region of a radius contains those of all smaller ones, and so do the bounds of its inner layers.
A ReLU that could not change sign where a search failed needs no row further in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frown.bounds.plan import Plan
from frown.bounds.walk import Boxes, Given, Layers
from frown.graph.box import Box


@dataclass
class KnownBoxes:
    """Per sample the least radius that failed, and the boxes there of what nonlinearities read."""

    radius: Tensor  # (samples,) inf where none has failed
    boxes: Boxes = field(default_factory=dict)

    @classmethod
    def of(cls, like: Tensor) -> KnownBoxes:
        """An empty record for these samples."""
        return cls(torch.full_like(like, torch.inf))

    def at(self, sample: Tensor, radius: Tensor) -> Given | None:
        """Boxes that hold for these samples at these radii; infinite where none is known."""
        holds = radius <= self.radius[sample]
        holds &= torch.isfinite(self.radius[sample])
        if not bool(holds.any()):
            return None
        found: Boxes = {}
        for source, box in self.boxes.items():
            own = box.rows(sample)
            mask = holds.view(-1, *([1] * (own.lower.dim() - 1)))
            found[source] = Box(own.lower.where(mask, -torch.inf), own.upper.where(mask, torch.inf))
        return Given(found)

    def lower(
        self, plan: Plan, sample: Tensor, radius: Tensor, proved: Tensor, layers: Layers
    ) -> None:
        """Take in what a radius gave where it failed: a search goes on below it."""
        failed = ~proved & (radius < self.radius[sample])
        if not bool(failed.any()):
            return
        index = sample[failed]
        self.radius = self.radius.index_put((index,), radius[failed])
        for source in set(plan.sources.values()):
            new = layers.values[source].rows(failed)
            old = self.boxes.get(source)
            if old is None:
                shape = (len(self.radius), *new.lower.shape[1:])
                old = Box(new.lower.new_zeros(shape), new.upper.new_zeros(shape))
            self.boxes[source] = Box(
                old.lower.index_put((index,), new.lower), old.upper.index_put((index,), new.upper)
            )
