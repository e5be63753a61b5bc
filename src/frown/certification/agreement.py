"""The imported graph beside the original model: on the inputs, and on points of proved regions.

A mistake of a reader may show only far from where a model was compared when it was loaded: a wrong
threshold T of relu(x - T) does not show below T. So before a row is called proved, graph and
original answer points of the very region that was proved. Where they differ by more than single
precision explains, nothing is said of that input but what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.certification.findings import Begun, Findings, joined
from frown.certification.results import digits
from frown.graph.graph import Graph
from frown.graph.intervals import unsqueezed
from frown.problem.problem import Cast, Problem
from frown.problem.property import LabelWins
from frown.problem.region import Region
from frown.read.model import ROUNDINGS, UNIT, Array, Model


def begin(model: Model, graph: Graph, problem: Problem) -> Begun:
    """Run original and graph on the inputs; nothing is proved of those on which they differ."""
    regions = problem.regions
    outputs = model.run(regions.x)
    prediction = problem.property.predicted(outputs)
    cast = problem.on(graph)
    wanted = cast.property
    ours = graph.apply(cast.region.centre).flatten(1)
    answers = ours
    if model.scores is not None:  # the graph that is bounded ends before the model does
        answers = model.graph.apply(torch.from_numpy(regions.x).double()).flatten(1)
    mismatch = compare_inputs(model, regions.x, outputs, answers.double().cpu().numpy())
    clean = wanted.margins(wanted.literals(ours))
    wrong = problem.violated(outputs)
    admitted = problem.property.admits(torch.from_numpy(prediction)).numpy()
    holds = (clean > 0).all(1).cpu().numpy() & admitted & ~wrong
    holds[list(mismatch)] = False
    right = np.flatnonzero(holds)
    keep = torch.from_numpy(right).to(graph.device)
    limit, whole = cast.limits()[keep], cast.region.limit()[keep]
    if regions.radius is not None:
        # In double precision: a narrow range has lost its width where the search rounds its ends.
        exact = regions.on(replace(graph, dtype=torch.float64, device=torch.device("cpu"))).limit()
        # A range without width is a point, which every radius reaches.
        far = _rounded_up(np.where(exact > 0, exact, regions.radius)[right], limit)
        limit = torch.minimum(_rounded_up(regions.radius[right], limit), whole.maximum(far))
    return Begun(
        problem,
        graph,
        prediction,
        wrong,
        mismatch,
        right,
        cast.rows(keep),
        clean[keep],
        limit,
        whole,
    )


def _rounded_up(radius: NDArray[np.float64], like: Tensor) -> Tensor:
    """Radii in the precision of the search, rounded up."""
    exact = torch.from_numpy(radius)
    cast = exact.to(like.dtype)
    above = torch.nextafter(cast, torch.full_like(cast, torch.inf))
    return torch.where(cast.double() < exact, above, cast).to(like.device)


RIVALS = 9  # margins whose gradients point to corners: half the least ones, half at random
HIDDEN = 2  # random sums of hidden neurons do too: what is inactive moves no output
AXES = 2  # single features, for norms in which these go farthest alone
CORNERS = 4  # random ones
INSIDE = 3  # random points between the input and the region's surface
DRAWS = 16  # of rounding, at a point of its own
ROWS, NUMBERS = 4096, 1 << 22  # points of one call, and the numbers they consist of
NEAR = 1 << 17  # numbers that stay near the processor

Outputs = NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """The comparison of a batch's inputs, by place: of those in `mismatch` nothing is proved."""

    mismatch: Mapping[int, str]
    remarks: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim about some inputs, before it is made: their places, regions and gradients."""

    right: list[int]  # places among the right answers
    places: list[int]  # the same among all inputs
    problem: Problem  # of these inputs
    cast: Cast  # the same in the search's numbers
    radius: Tensor  # (n,) proved, in double precision
    rivals: Tensor  # (n, rivals) clauses whose gradients are taken

    def part(self, which: slice) -> _Claim:
        index = np.arange(len(self.right))[which]
        if len(index) == len(self.right):
            return self
        return _Claim(
            self.right[which],
            self.places[which],
            self.problem.take(index),
            self.cast.rows(which),
            self.radius[which],
            self.rivals[which],
        )


def compare_inputs(model: Model, x: Array, theirs: Array, ours: Outputs) -> dict[int, str]:
    """Differences, by place, between the answers of graph and original to the inputs themselves."""
    if model.alone is not None:  # inputs that agree with themselves excuse no difference
        model = model.alone
        theirs, ours = theirs[:, : model.classes], ours[:, : model.classes]
    given = x.reshape(-1, *model.input_shape)
    gap, vary = np.abs(theirs - ours).max(1), np.ptp(theirs, axis=1)[:, None]
    if (gap <= model.rounding_at_least(theirs, vary)).all():
        return {}
    allowed = model.rounding(given, theirs, vary)
    return {
        int(n): _seen("at the input itself", given[n], ours[n], theirs[n])
        for n in np.flatnonzero(~(gap <= allowed))
    }


def compare_regions(model: Model, graph: Graph, findings: Findings) -> Compared:
    """Have graph and original answer points of every proved region of a batch, and hold proofs
    against counterexamples.

    `graph` is the network as the search has it, for gradients; the model's own is compared.
    """
    claim = _claims(findings)
    mismatch, remarks = dict(findings.begun.mismatch), dict[int, str]()
    if not claim.right:
        return Compared(mismatch, remarks)
    features = int(np.prod(model.input_shape))
    conditions = claim.rivals.shape[1] + HIDDEN
    points = 2 * (conditions + AXES) + CORNERS + INSIDE + 2
    step = max(1, min(ROWS // points, NUMBERS // (points * features)))
    for first in range(0, len(claim.right), step):
        part = claim.part(slice(first, first + step))
        found, said = _compare_points(
            model.alone or model, part, _points(model, graph, findings, part)
        )
        mismatch |= found
        remarks |= said
    for n, radius in zip(claim.places, claim.radius.tolist(), strict=True):
        if n not in mismatch:
            found, said = _hold_against_counterexample(model, findings, n, radius)
            mismatch |= found
            remarks = joined(remarks, said)
    return Compared(mismatch, remarks)


def _claims(findings: Findings) -> _Claim:
    begun = findings.begun
    radius, margins = findings.radius.double().cpu(), findings.margins.double().cpu()
    asked = begun.problem.regions.radius
    if asked is not None:
        radius = radius.minimum(torch.from_numpy(asked[begun.right]))
    which = [
        k
        for k in range(len(begun.right))
        if float(radius[k]) > 0 and int(begun.right[k]) not in begun.mismatch
    ]
    count = min(RIVALS, margins.shape[1])
    least = margins[which].argsort(1)
    # Beyond those that come nearest, any: the same places of the order for every input.
    shuffled = torch.randperm(max(0, margins.shape[1] - count), generator=_dice()) + count
    near = count if margins.shape[1] == count else (count + 1) // 2
    rivals = torch.cat([least[:, :near], least[:, shuffled[: count - near]]], 1)
    places, index = begun.right[which], torch.tensor(which, dtype=torch.long)
    problem, cast = begun.problem.take(places), begun.cast.rows(index.to(begun.limit.device))
    return _Claim(which, places.tolist(), problem, cast, radius[which], rivals)


# -- points ---------------------------------------------------------------------------


def _points(model: Model, graph: Graph, findings: Findings, claim: _Claim) -> Tensor:
    """(n, points, *shape of the graph's input), all of the regions but for the rounding of the
    engines' precision."""
    same = replace(model.graph, dtype=graph.dtype)
    region = claim.problem.regions.on(same).with_radius(claim.radius.to(graph.dtype))
    centre, dice = region.centre, _dice()
    slopes = _gradients(graph, claim).reshape(len(centre), -1, *centre.shape[1:])
    if region.p != inf:
        slopes = torch.cat(
            [slopes, _axes(region, dice).expand(len(centre), -1, *centre.shape[1:])], 1
        )
    # Where nothing pulls a feature, it goes either way: no feature of a corner stays behind.
    size = slopes.abs().flatten(2).amax(2)
    idle = torch.where(size > 0, 1e-9 * size, 1.0).reshape(*size.shape, *[1] * (centre.dim() - 1))
    ways = torch.where(slopes == 0, idle * _noise(centre, slopes.shape[1], dice), slopes)
    random = _noise(centre, CORNERS, dice).expand(len(centre), -1, *centre.shape[1:])
    both = [ways, random, -ways] if region.clipped else [ways, random]
    corners = _each(region, torch.cat(both, 1), Region.lowest)
    if not region.clipped:  # the opposite corner is the mirror image
        corners = torch.cat([corners, 2 * centre[:, None] - corners[:, : ways.shape[1]]], 1)
    half = ((region.box().upper - region.box().lower) / 2)[:, None]
    near = centre[:, None] + _noise(centre, INSIDE, dice) * half
    part = torch.arange(1, INSIDE + 1, dtype=centre.dtype) / INSIDE
    part = part.reshape(1, -1, *[1] * (centre.dim() - 1))
    inside = centre[:, None] + part * (_each(region, near, Region.project) - centre[:, None])
    attacked = _attacked(region, findings, claim)
    return torch.cat([centre[:, None], attacked[:, None], corners, inside], 1)


def _each(region: Region, given: Tensor, call: Callable[[Region, Tensor], Tensor]) -> Tensor:
    """(n, lanes, *shape) a method of the region called for every lane, many of them in one call."""
    count, lanes, found = *given.shape[:2], torch.empty_like(given)
    step = max(1, NEAR // max(1, given[:, :1].numel()))
    for first in range(0, lanes, step):
        some = given[:, first : first + step]
        rows = region.rows(torch.arange(count).repeat_interleave(some.shape[1]))
        found[:, first : first + step] = call(rows, some.flatten(0, 1)).view_as(some)
    return found


def _noise(like: Tensor, lanes: int, dice: torch.Generator) -> Tensor:
    """(1, lanes, *shape) numbers in [-1, 1] that do not depend on which inputs share a batch."""
    return torch.rand(1, lanes, *like.shape[1:], generator=dice, dtype=like.dtype) * 2 - 1


def _gradients(graph: Graph, claim: _Claim) -> Tensor:
    """(n, margins and hidden sums, features) their gradients at the inputs, in one pass."""
    region, wanted = claim.cast.region, claim.cast.property
    count, rivals = claim.rivals.shape
    lanes = rivals + HIDDEN
    first = torch.arange(count)[:, None] * wanted.shape[1]
    # Of a clause of several literals its first will do: any direction is worth a point.
    literal = _firsts(wanted.clause.cpu())[claim.rivals]
    coef = wanted.pick((first + literal).flatten().to(graph.device)).view(count, rivals, -1)
    dice = _dice()
    with torch.inference_mode(False), torch.enable_grad():
        x = region.centre.clone().repeat_interleave(lanes, 0).requires_grad_()
        values = graph.values(x)
        outputs = values[-1].reshape(count, lanes, -1)
        total = (outputs[:, :rivals] * coef).sum()
        read = [values[graph.nodes[i].inputs[0]] for i in graph.nonlinear]
        if read:
            z = torch.cat([one.reshape(count, lanes, -1)[:, rivals:] for one in read], 2)
            signs = torch.randint(0, 2, z.shape[1:], generator=dice).to(z) * 2 - 1
            total = total + (z * signs).sum()
        (slope,) = torch.autograd.grad(total, x)
    return slope.nan_to_num(0.0, 0.0, 0.0).cpu().reshape(count, lanes, -1)


def _firsts(clause: Tensor) -> Tensor:
    """(clauses,) the first literal of each."""
    starts = torch.ones_like(clause, dtype=torch.bool)
    starts[1:] = clause[1:] != clause[:-1]
    return starts.nonzero().flatten()


def _axes(region: Region, dice: torch.Generator) -> Tensor:
    """(1, axes, *shape) single features that may move, chosen at random."""
    shape = region.centre.shape[1:]
    free = torch.ones(shape) if region.scale is None else (region.scale > 0).any(0)
    moving = free.flatten().nonzero().flatten()
    chosen = moving[torch.randperm(len(moving), generator=dice)[:AXES]]
    axes = torch.zeros(len(chosen), int(np.prod(shape)), dtype=region.centre.dtype)
    axes[torch.arange(len(chosen)), chosen] = 1.0
    return axes.reshape(1, len(chosen), *shape)


def _attacked(region: Region, findings: Findings, claim: _Claim) -> Tensor:
    """(n, *shape) the attack's points, drawn into the regions; the centre where it has none."""
    centre = region.centre
    broken = findings.broken
    known = [broken.point.get(n, broken.tried.get(n)) for n in claim.places]
    rows = [row for row, point in enumerate(known) if point is not None]
    if not rows:
        return centre
    points = centre.clone()
    found = np.stack([point for point in known if point is not None])
    step = torch.from_numpy(found).reshape(-1, *centre.shape[1:]).to(centre) - centre[rows]
    far = region.rows(torch.tensor(rows)).distance(centre[rows] + step)
    part = (region.radius[rows] / far.clamp(min=1e-30)).clamp(max=1.0)
    points[rows] += step * unsqueezed(part, centre)
    return region.project(points)


def _dice() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# -- comparison -----------------------------------------------------------------------


def _compare_points(
    model: Model, claim: _Claim, points: Tensor
) -> tuple[dict[int, str], dict[int, str]]:
    """Compare the two on points of the regions, all of them in one call of each: mismatches and
    remarks by place."""
    mismatch, remarks = dict[int, str](), dict[int, str]()
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
        n = claim.places[row]
        inputs = given.reshape(count, lanes, *model.input_shape)[row]
        ours = model.answer(inputs)
        for lane in _differing(model, inputs, theirs[row], ours):
            far = claim.problem.regions.distance(int(row), inputs[lane])
            where = f"at the distance {far:.6g} (radius {float(claim.radius[row]):.6g})"
            mismatch[n] = _seen(where, inputs[lane], ours[lane], theirs[row, lane])
            break
        else:
            if not np.isfinite(theirs[row]).all():
                remarks[n] = (
                    "the original model answers NaN or infinity at points of the region, as single "
                    "precision does there"
                )
    return mismatch, remarks


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


def _hold_against_counterexample(
    model: Model, findings: Findings, n: int, radius: float
) -> tuple[dict[int, str], dict[int, str]]:
    """Explain a counterexample within a proved radius; docs/soundness.md lists the cases."""
    point = findings.broken.point.get(n)
    distance = float(findings.broken.radius[n])
    if point is None or distance > radius:
        return {}, {}
    x = np.repeat(point[None], DRAWS, 0)
    theirs, ours = (np.asarray(a, np.float64) for a in (model.run(x), model.answer(x)))
    where = f"at a counterexample at the distance {distance:.6g}, within the radius {radius:.6g}"
    if any(True for _ in _differing(model, x, theirs, ours)):
        return {n: _seen(where, point, ours[0], theirs[0])}, {}
    margin = float(findings.begun.problem.margins(ours[:1], n).min())
    # What double precision may be off by: single precision's noise is 2^29 times as large.
    noise = np.abs(model.in_single_precision(x) - ours).max() + UNIT * np.abs(ours).max()
    inside = distance <= radius * (1 - 1e-12)
    if not findings.rigorous:
        return {}, {n: f"a counterexample lies within the radius {radius:.6g} that was estimated"}
    if inside and margin < -(2.0**-20) * noise:
        contradiction = (
            f"a proof and a counterexample contradict each other, {where[3:]}: a bug in frown; "
            "please report it with the model and this input"
        )
        return {n: contradiction}, {}
    if findings.execution:
        otherwise = (
            f"the original model errs {where}, although {findings.execution} execution was proved: "
            "its arithmetic is not what docs/soundness.md assumes"
        )
        return {n: otherwise}, {}
    wins = isinstance(findings.begun.problem.property, LabelWins)
    errs = "does not let the label win" if wins else "violates the property"
    executed = (
        f"proved up to {digits(radius, 6, -1):.6g} over the real numbers; as executed the "
        f"model {errs} {where[3:]}, by rounding in single precision"
    )
    return {}, {n: executed}


def _seen(where: str, point: Array, ours: Array, theirs: Array) -> str:
    what = "disagree" if np.isfinite(ours).all() else "have no answers that could be compared"
    return (
        f"the imported graph and the original model {what} {where}: at {_numbers(point)} the "
        f"graph answers {_numbers(ours)}, the original {_numbers(theirs)}"
    )


def _numbers(values: Array, most: int = 8) -> str:
    flat = values.ravel().tolist()
    shown = ", ".join(f"{v:.7g}" for v in flat[:most])
    return f"[{shown}, ... {len(flat)} numbers]" if len(flat) > most else f"[{shown}]"
