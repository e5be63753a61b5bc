"""Points that an attack found, replayed in the original model before they count.

A counterexample is a point of the region on which the original model violates the property
(`frown.problem.property.violated`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.clock import Clock
from frown.certification.attack import Found
from frown.certification.batch import Batch
from frown.problem.property import violated
from frown.read.model import Model

# Rounding may undo a point on the boundary: also try a little beyond it.
STRETCH = (1.0, 1.001, 1.01, 1.05)


def confirm(model: Model, batch: Batch, found: Found, fixed: bool, clock: Clock) -> None:
    """Record the nearest points on which the model errs; if `fixed`, within the limits only. Points
    that the clock leaves no time for do not count."""
    for k in torch.isfinite(found.distance).nonzero().flatten().tolist():
        if clock.expired():
            return
        confirm_one(model, batch, k, found.point[k], fixed, STRETCH)


def confirm_one(
    model: Model, batch: Batch, k: int, point: Tensor, fixed: bool, stretch: Sequence[float]
) -> None:
    """Record a point of the k-th right answer, or the first beyond it on which the model errs."""
    centre = batch.query.x[batch.right[k]].astype(np.float64)
    step = point.double().cpu().numpy().reshape(centre.shape) - centre
    batch.tried[int(batch.right[k])] = centre + step
    any(_errs(model, batch, k, centre + by * step, fixed) for by in stretch)


def _errs(model: Model, batch: Batch, k: int, point: NDArray[np.float64], fixed: bool) -> bool:
    """Whether the original model errs on a point, which is recorded then."""
    query, n = batch.query, int(batch.right[k])
    if query.range is not None:
        # The range as given: casting it may have moved its ends.
        point = np.clip(point, query.range.lower[0], query.range.upper[0])
    point = np.where(query.still(n), query.x[n], point)
    if not violated(query.margins(model.run(point[None]), n))[0]:
        return False
    distance = query.distance(n, point)
    if fixed and distance > float(batch.limit[k]):
        return False
    if distance < batch.broken[n]:
        batch.broken[n] = distance
        batch.counterexample[n] = point
    return True
