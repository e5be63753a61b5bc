"""Points that an attack found, replayed in the original model before they count.

A counterexample is a point of the region on which the original model violates the property
(`frown.problem.property.violated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.clock import Clock
from frown.certification.attack import PGD, nearest
from frown.certification.findings import Begun, Broken
from frown.problem.property import violated
from frown.read.model import Model

# Rounding may undo a point on the boundary: also try a little beyond it.
STRETCH = (1.0, 1.001, 1.01, 1.05)

Array = NDArray[np.float64]


def confirmed(
    model: Model,
    begun: Begun,
    broken: Broken,
    k: int,
    point: Tensor,
    single: bool,
    stretch: Sequence[float] = STRETCH,
) -> Broken:
    """Take in a point of the k-th right answer, or the first beyond it, on which the model errs and
    that is nearer than what was known; if `single`, within the limit only."""
    n = int(begun.right[k])
    centre = begun.problem.regions.x[n]
    step = point.double().cpu().numpy().reshape(centre.shape) - centre
    told = replace(broken, tried={**broken.tried, n: centre + step})
    for by in stretch:
        found = _erring(model, begun, n, centre + by * step)
        if found is None or (single and found[0] > float(begun.limit[k])):
            continue
        if found[0] < broken.radius[n]:
            radius = broken.radius.copy()
            radius[n] = found[0]
            told = replace(
                told,
                radius=radius,
                point={**broken.point, n: found[1]},
                clause={**broken.clause, n: found[2]},
            )
        break
    return told


def attack(model: Model, begun: Begun, how: PGD, single: bool, clock: Clock, memory: int) -> Broken:
    """Look for counterexamples of a batch. Points that the clock leaves no time to replay do not
    count; if `single`, only those within the limits do."""
    broken = Broken.of(begun)
    if not len(begun.right) or clock.expired():
        return broken
    guess = begun.limit if single else begun.guess
    cast = begun.cast.at(begun.limit)
    found = nearest(begun.graph, cast.region, cast.property, guess, how, clock.part(0.9), memory)
    for k in torch.isfinite(found.distance).nonzero().flatten().tolist():
        if clock.expired():
            break
        broken = confirmed(model, begun, broken, k, found.point[k], single)
    return broken


def _erring(model: Model, begun: Begun, n: int, point: Array) -> tuple[float, Array, int] | None:
    """The distance of a point, drawn into the region, on which the original model errs; the point;
    and the clause that it violates most."""
    regions = begun.problem.regions
    point = np.where(regions.still(n), regions.x[n], regions.clip(n, point))
    margins = begun.problem.margins(model.run(point[None]), n)
    if not violated(margins)[0]:
        return None
    return regions.distance(n, point), point, int(np.argmin(margins[0]))
