"""The imported graph beside the original model: on the inputs, and on points of proved regions.

A mistake of a reader may show only far from where a model was compared when it was loaded: a wrong
threshold T of relu(x - T) does not show below T. So before a row is called proved, graph and
original answer points of the very region that was proved. Where they differ by more than single
precision explains, nothing is said of that input but what was seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.certification.batch import Batch
from frown.certification.results import digits
from frown.graph.graph import Graph
from frown.problem.query import Query
from frown.problem.region import Region
from frown.read.model import ROUNDINGS, UNIT, Array, Model

RIVALS = 9  # margins whose gradients point to corners: half the least ones, half at random
HIDDEN = 2  # random sums of hidden neurons do too: what is inactive moves no output
AXES = 2  # single features, for norms in which these go farthest alone
CORNERS = 4  # random ones
INSIDE = 3  # random points between the input and the region's surface
DRAWS = 16  # of rounding, at a point of its own
ROWS, NUMBERS = 4096, 1 << 22  # points of one call, and the numbers they consist of

Outputs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Claim:
    """What is about to be said of some inputs of a batch: their places, regions and gradients."""

    right: list[int]  # places among the inputs classified right
    query: Query  # of these inputs
    radius: Tensor  # (n,) proved, in double precision
    rivals: Tensor  # (n, rivals) conditions whose gradients are taken

    def part(self, which: slice) -> _Claim:
        index = np.arange(len(self.right))[which]
        return _Claim(
            self.right[which], self.query.take(index), self.radius[which], self.rivals[which]
        )


def compare_inputs(model: Model, x: Array, theirs: Array, ours: Outputs) -> dict[int, str]:
    """By place, what was seen where graph and original answer the inputs themselves otherwise."""
    given = x.reshape(-1, *model.input_shape)
    gap = np.abs(theirs - ours).max(1)
    allowed = model.rounding(given, theirs, np.ptp(theirs, axis=1)[:, None])
    return {
        int(n): _seen("at the input itself", given[n], ours[n], theirs[n])
        for n in np.flatnonzero(~(gap <= allowed))
    }


def compare_regions(
    model: Model, graph: Graph, batch: Batch, eps: NDArray[np.float64] | None
) -> None:
    """Have graph and original answer points of every proved region of a batch, and hold proofs
    against counterexamples. Rows to be withdrawn are in `batch.mismatch` afterwards.

    `graph` is the network as the engines have it, for gradients; the model's own is compared.
    """
    claim = _claims(batch, eps)
    if not claim.right:
        return
    features = int(np.prod(model.input_shape))
    conditions = claim.rivals.shape[1] + HIDDEN
    points = 2 * (conditions + AXES) + CORNERS + INSIDE + 2
    step = max(1, min(ROWS // points, NUMBERS // (points * features)))
    for first in range(0, len(claim.right), step):
        part = claim.part(slice(first, first + step))
        _compare_points(model, batch, part, _points(model, graph, batch, part))
    for k, radius in zip(claim.right, claim.radius.tolist(), strict=True):
        _hold_against_counterexample(model, batch, k, radius)
    for n in batch.mismatch:
        batch.certificate.pop(n, None)


def _claims(batch: Batch, eps: NDArray[np.float64] | None) -> _Claim:
    radius, margins = batch.rigorous or (batch.bracket.proved, batch.bracket.at_proved)
    radius, margins = radius.double().cpu(), margins.double().cpu()
    if eps is not None:
        radius = radius.minimum(torch.from_numpy(eps[batch.right]))
    which = [
        k
        for k in range(len(batch.right))
        if float(radius[k]) > 0 and int(batch.right[k]) not in batch.mismatch
    ]
    count = min(RIVALS, margins.shape[1])
    least = margins[which].argsort(1)
    # Beyond those that come nearest, any: the same places of the order for every input.
    shuffled = torch.randperm(max(0, margins.shape[1] - count), generator=_dice()) + count
    near = count if margins.shape[1] == count else (count + 1) // 2
    rivals = torch.cat([least[:, :near], least[:, shuffled[: count - near]]], 1)
    return _Claim(which, batch.query.take(batch.right[which]), radius[which], rivals)


# -- points ---------------------------------------------------------------------------


def _points(model: Model, graph: Graph, batch: Batch, claim: _Claim) -> Tensor:
    """(n, points, *shape of the graph's input) in double precision, all of the regions."""
    region = claim.query.region(model.graph).with_radius(claim.radius)
    centre, dice = region.centre, _dice()
    found = [centre, _attacked(region, batch, claim)]
    slopes = _gradients(graph, claim).reshape(len(centre), -1, *centre.shape[1:])
    ways = [*slopes.unbind(1), *(_axes(region, dice) if region.p != inf else ())]
    for way in ways:
        # Where nothing pulls a feature, it goes either way: no feature of a corner stays behind.
        size = way.abs().flatten(1).amax(1).reshape(-1, *[1] * (way.dim() - 1))
        idle = torch.where(size > 0, 1e-9 * size, 1.0) * _noise(centre, dice)
        coef = torch.where(way == 0, idle, way).expand_as(centre)
        low = region.lowest(coef)
        found += [low, region.lowest(-coef) if region.clipped else 2 * centre - low]
    found += [region.lowest(_noise(centre, dice).expand_as(centre)) for _ in range(CORNERS)]
    half = (region.box().upper - region.box().lower) / 2
    for k in range(INSIDE):
        inside = region.project(centre + _noise(centre, dice) * half)
        found.append(centre + (k + 1) / INSIDE * (inside - centre))
    return torch.stack(found, 1)


def _noise(like: Tensor, dice: torch.Generator) -> Tensor:
    """(1, *shape) numbers in [-1, 1] that do not depend on which inputs share a batch."""
    return torch.rand(1, *like.shape[1:], generator=dice, dtype=like.dtype) * 2 - 1


def _gradients(graph: Graph, claim: _Claim) -> Tensor:
    """(n, margins and hidden sums, features) their gradients at the inputs, in one pass."""
    region, wanted = claim.query.region(graph), claim.query.property(graph)
    count, rivals = claim.rivals.shape
    lanes = rivals + HIDDEN
    first = torch.arange(count)[:, None] * wanted.shape[1]
    coef = wanted.pick((first + claim.rivals).flatten().to(graph.device)).view(count, rivals, -1)
    dice = _dice()
    with torch.inference_mode(False), torch.enable_grad():
        x = region.centre.clone().repeat_interleave(lanes, 0).requires_grad_()
        values = graph.values(x)
        outputs = values[-1].reshape(count, lanes, -1)
        total = (outputs[:, :rivals] * coef).sum()
        for i in graph.nonlinear:
            z = values[graph.nodes[i].inputs[0]].reshape(count, lanes, -1)[:, rivals:]
            signs = torch.randint(0, 2, z.shape[1:], generator=dice).to(z) * 2 - 1
            total = total + (z * signs).sum()
        (slope,) = torch.autograd.grad(total, x)
    return slope.nan_to_num(0.0, 0.0, 0.0).double().cpu().reshape(count, lanes, -1)


def _axes(region: Region, dice: torch.Generator) -> Iterator[Tensor]:
    """Single features (1, *shape) that may move, chosen at random."""
    shape = region.centre.shape[1:]
    free = torch.ones(shape) if region.scale is None else (region.scale > 0).any(0)
    moving = free.flatten().nonzero().flatten()
    for feature in moving[torch.randperm(len(moving), generator=dice)[:AXES]].tolist():
        axis = torch.zeros(int(np.prod(shape)), dtype=region.centre.dtype)
        axis[feature] = 1.0
        yield axis.reshape(1, *shape)


def _attacked(region: Region, batch: Batch, claim: _Claim) -> Tensor:
    """(n, *shape) the attack's points, drawn into the regions; the centre where it has none."""
    points = region.centre.clone()
    for row, k in enumerate(claim.right):
        n = int(batch.right[k])
        found = batch.counterexample.get(n, batch.tried.get(n))
        if found is not None:
            step = torch.from_numpy(found).reshape(points.shape[1:]) - points[row]
            far = claim.query.distance(row, found)
            points[row] += step * min(1.0, float(claim.radius[row]) / max(far, 1e-300))
    return region.project(points)


def _dice() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# -- comparison -----------------------------------------------------------------------


def _compare_points(model: Model, batch: Batch, claim: _Claim, points: Tensor) -> None:
    """Compare the two on points of the regions, all of them in one call of each."""
    count, lanes = points.shape[:2]
    given = points.flatten(0, 1).numpy().reshape(-1, *model.input_shape)
    theirs = np.asarray(model.run(given), np.float64).reshape(count, lanes, -1)
    # Most differences are within a few roundings of the answers, as single precision shows at
    # once; what rounding inside of the network adds takes double precision to tell.
    quick = model.in_single_precision(given, slack=0.0).reshape(theirs.shape)
    with np.errstate(invalid="ignore"):
        gap, size = np.abs(theirs - quick).max(2), np.abs(theirs).max(2)
    least = ROUNDINGS * UNIT * size
    for row in np.flatnonzero(~((gap <= least) & np.isfinite(size)).all(1)):
        n = int(batch.right[claim.right[row]])
        inputs = given.reshape(count, lanes, *model.input_shape)[row]
        ours = model.answer(inputs)
        for lane in _differing(model, inputs, theirs[row], ours):
            far = claim.query.distance(int(row), inputs[lane])
            where = f"at the distance {far:.6g}, within the radius {float(claim.radius[row]):.6g}"
            batch.mismatch[n] = _seen(where, inputs[lane], ours[lane], theirs[row, lane])
            break
        else:
            if not np.isfinite(theirs[row]).all():
                batch.say(
                    n,
                    "the original model answers NaN or infinity at points of the region, as single "
                    "precision does there",
                )


def _differing(model: Model, x: Array, theirs: Outputs, ours: Outputs) -> Iterator[int]:
    """The points (of one input) on which single precision does not explain the difference, the
    largest first."""
    single = model.in_single_precision(x)
    whole = np.isfinite(single).all(axis=1) | np.isfinite(theirs).all(axis=1)
    overflow = ~np.atleast_1d(whole)
    with np.errstate(invalid="ignore"):
        noise = np.abs(single - ours).max(1)
        gap, size = np.abs(theirs - ours).max(1), np.abs(theirs).max(1)
    most = np.max(noise, initial=0.0, where=np.isfinite(noise))
    explained = np.asarray((gap <= ROUNDINGS * (most + UNIT * size)) & np.isfinite(gap) | overflow)
    order = np.argsort(-np.nan_to_num(gap, nan=np.inf), kind="stable")
    return (int(i) for i in order if not explained[i])


def _hold_against_counterexample(model: Model, batch: Batch, k: int, radius: float) -> None:
    """Tell what a counterexample within a proved radius means: docs/soundness.md has the cases."""
    n = int(batch.right[k])
    point = batch.counterexample.get(n)
    distance = float(batch.broken[n])
    if n in batch.mismatch or point is None or distance > radius:
        return
    x = np.repeat(point[None], DRAWS, 0)
    theirs, ours = (np.asarray(a, np.float64) for a in (model.run(x), model.answer(x)))
    where = f"at a counterexample at the distance {distance:.6g}, within the radius {radius:.6g}"
    if any(True for _ in _differing(model, x, theirs, ours)):
        batch.mismatch[n] = _seen(where, point, ours[0], theirs[0])
        return
    targets = batch.query.targets(model.classes)[n].numpy()
    label = int(batch.query.label[n])
    margin = float((ours[0, label] - ours[0, targets]).min())
    # What double precision may be off by: single precision's noise is 2^29 times as large.
    noise = np.abs(model.in_single_precision(x) - ours).max() + UNIT * np.abs(ours).max()
    inside = distance <= radius * (1 - 1e-12)
    if batch.level == "estimate":
        batch.say(n, f"a counterexample lies within the radius {radius:.6g} that was estimated")
    elif inside and margin < -(2.0**-20) * noise:
        batch.mismatch[n] = (
            f"a proof and a counterexample contradict each other, {where[3:]}: a bug in frown; "
            "please report it with the model and this input"
        )
    elif batch.deployed:
        batch.mismatch[n] = (
            f"the original model errs {where}, although {batch.deployed} execution was proved: "
            "its arithmetic is not what docs/soundness.md assumes"
        )
    else:
        batch.say(
            n,
            f"proved up to {digits(radius, 6, -1):.6g} over the real numbers; as executed the "
            f"model does not let the label win {where[3:]}, by rounding in single precision",
        )


def _seen(where: str, point: Array, ours: Array, theirs: Array) -> str:
    return (
        f"the imported graph and the original model disagree {where}: at {_numbers(point)} the "
        f"graph answers {_numbers(ours)}, the original {_numbers(theirs)}"
    )


def _numbers(values: Array, most: int = 8) -> str:
    flat = values.ravel().tolist()
    shown = ", ".join(f"{v:.7g}" for v in flat[:most])
    return f"[{shown}, ... {len(flat)} numbers]" if len(flat) > most else f"[{shown}]"
