"""Counterexamples: projected gradient descent with restarts, for the least distance.

Each restart walks along the decision boundary: its ball shrinks while the point is
adversarial and grows while it is not. The nearest adversarial point seen is then pulled
towards the centre by bisection, and replayed in the original model: only a point of the region on
which that violates the property (`Problem.violated`) counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, pi
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.work import NO_LIMIT, Clock, OutOfTime
from frown.certification.findings import Begun, Broken
from frown.graph.graph import Graph
from frown.graph.intervals import unsqueezed
from frown.problem.options import Option, check_options
from frown.problem.problem import Problem
from frown.problem.property import Property, violated
from frown.problem.region import Region
from frown.read.model import Model

BRIEF = 1 << 22  # numbers of all nodes that are computed between two looks at a clock
WALK = 0.8  # of the time is for the walk, the rest for pulling points in


@dataclass(frozen=True, slots=True)
class PGD:
    """Projected gradient descent, the attack that looks for counterexamples.

    Args:
        steps: steps of every restart.
        restarts: points to start from, drawn at random.
        seed: of the random starts.
    """

    steps: Annotated[int, Option("steps of every restart", least=1)] = 100
    restarts: Annotated[int, Option("points to start from", least=1)] = 8
    seed: Annotated[int, Option("of random starts", least=0)] = 0

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class NearestPoints:
    """The nearest adversarial point of each sample; distance inf where there is none."""

    point: Tensor  # (N, *shape)
    distance: Tensor  # (N,)


def nearest(
    graph: Graph,
    region: Region,  # its radius: no counterexample beyond it is wanted
    property: Property,
    guess: Tensor,  # (N,) the radius to start with
    attack: PGD,
    clock: Clock = NO_LIMIT,
    memory: int | None = None,  # bytes for what is computed at once
    apart: bool = False,  # every restart goes for a clause of its own, those nearest at the centre
) -> NearestPoints:
    """Points inside the region where the property is violated: some margin is <= 0.

    When the clock runs out, the nearest points seen until then.
    """
    count = len(region.radius)
    generator = torch.Generator(device="cpu").manual_seed(attack.seed)
    every = torch.arange(count).repeat(attack.restarts).to(region.centre.device)
    ball, wanted = region.rows(every), property.rows(every)
    aims = _aims(graph, region, property, attack.restarts) if apart else None
    work = _Work(graph, wanted, _at_once(graph, clock, memory), aims)
    walking = clock.part(WALK)
    lane = torch.arange(len(every), device=every.device) // count  # which restart
    radius = torch.minimum(guess[every] * 2.0 ** (lane - 1), ball.radius)
    if apart:
        radius = ball.radius.clone()
    x = _scatter(ball.with_radius(radius), count, generator)
    spread = 0.3 * 0.2 ** (lane % 4).to(x)
    best = torch.full_like(radius, inf)
    where = ball.centre.clone()
    for step in range(attack.steps):
        try:
            worst, slope = work.worst(x, walking)
        except OutOfTime:
            break
        distance = ball.distance(x)
        hit = violated(worst[:, None]) & (distance <= ball.radius)
        closer = hit & (distance < best)
        best = torch.where(closer, distance, best)
        where = torch.where(unsqueezed(closer, x), x, where)
        # The pace falls along a cosine, as the walk settles on the boundary.
        pace = 0.5 * (1 + torch.cos(torch.tensor(pi * step / attack.steps)).item())
        ratio = 1 + 0.25 * pace + 0.01
        radius = torch.where(hit, torch.minimum(distance, radius) / ratio, radius * ratio)
        radius = radius.minimum(best / 1.005).minimum(ball.radius)
        move = ball.with_radius(radius * (0.5 * pace + 0.02)).descent(slope, spread)
        x = ball.with_radius(radius).project(x + move)
    where, best = _pull_in(work, ball, clock, where, best)
    best, where = (
        best.view(attack.restarts, count),
        where.view(attack.restarts, count, *x.shape[1:]),
    )
    which = best.argmin(0)
    column = torch.arange(count, device=which.device)
    return NearestPoints(where[which, column], best[which, column])


@dataclass(frozen=True, slots=True)
class _Work:
    """Points evaluated some rows at a time."""

    graph: Graph
    property: Property
    most: int  # rows at once
    aims: Tensor | None  # the clause that each row descends on; None: that of its least margin

    def worst(self, x: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """The least margin of every row, and the gradient of the one that it descends on."""
        found = []
        for rows in self._rows(x, clock):
            with torch.enable_grad():
                point = x[rows].detach().requires_grad_()
                margins = self._margins(rows, point)
                worst = margins.amin(1)
                aimed = worst
                if self.aims is not None:
                    aimed = margins.gather(1, self.aims[rows, None])
                (slope,) = torch.autograd.grad(aimed.sum(), point)
            found.append((worst.detach(), slope))
        worst, slope = (torch.cat(t) for t in zip(*found, strict=True))
        return worst, slope

    def bad(self, x: Tensor, clock: Clock) -> Tensor:
        """(rows,) mask of the counterexamples."""
        found = [violated(self._margins(rows, x[rows])) for rows in self._rows(x, clock)]
        return torch.cat(found)

    def _margins(self, rows: slice, x: Tensor) -> Tensor:
        own = self.property.rows(rows)
        return own.margins(own.literals(self.graph.apply(x).flatten(1)))

    def _rows(self, x: Tensor, clock: Clock) -> Iterator[slice]:
        for a in range(0, len(x), self.most):
            clock.check()
            yield slice(a, a + self.most)


def _aims(graph: Graph, region: Region, property: Property, restarts: int) -> Tensor:
    """(restarts * N,) the clauses that restarts descend on: the nearest at the centre first."""
    margins = property.margins(property.literals(graph.apply(region.centre).flatten(1)))
    lane = torch.arange(restarts, device=margins.device) % margins.shape[1]
    return margins.argsort(1)[:, lane].T.flatten()


def _at_once(graph: Graph, clock: Clock, memory: int | None) -> int:
    """The number of rows at once: they fit the memory and, if time is limited, are quickly done."""
    numbers = sum(node.size for node in graph.nodes)
    most = 1 << 40 if memory is None else memory // (4 * numbers * graph.dtype.itemsize)
    return max(1, most if clock == NO_LIMIT else min(most, BRIEF // numbers))


def _scatter(ball: Region, count: int, generator: torch.Generator) -> Tensor:
    """First points: the centre for the first restart, random ones for the others."""
    noise = torch.rand(ball.centre.shape, generator=generator).to(ball.centre) * 2 - 1
    noise[:count] = 0
    reach = ball.box()
    return ball.project(ball.centre + noise * (reach.upper - reach.lower) / 2)


def _pull_in(
    work: _Work, ball: Region, clock: Clock, where: Tensor, best: Tensor
) -> tuple[Tensor, Tensor]:
    """Bisection on the segment from the centre to the point, which stays adversarial."""
    low, high = torch.zeros_like(best), torch.ones_like(best)
    step = where - ball.centre
    for _ in range(12):
        middle = (low + high) / 2
        x = ball.centre + unsqueezed(middle, step) * step
        try:
            bad = work.bad(x, clock)
        except OutOfTime:
            break
        high, low = torch.where(bad, middle, high), torch.where(bad, low, middle)
    x = ball.centre + unsqueezed(high, step) * step
    found = torch.isfinite(best)
    return torch.where(unsqueezed(found, x), x, where), torch.where(found, ball.distance(x), best)


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
    """Replay a point of the k-th right answer, and points a little beyond it, in the original
    model. The first that violates the property and is nearer than the known counterexample replaces
    it; if `single`, only within the limit."""
    n = int(begun.right[k])
    centre, asked = begun.problem.regions.x[n], begun.problem.regions.radius
    # As it was asked for: `limit` may be a little above, in the precision of the search.
    most = float(begun.limit[k]) if asked is None else min(float(begun.limit[k]), float(asked[n]))
    step = point.double().cpu().numpy().reshape(centre.shape) - centre
    told = replace(broken, tried={**broken.tried, n: centre + step})
    for by in stretch:
        found = _erring(model, begun, n, centre + by * step)
        if found is None or (single and found[0] > most):
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


def attack(
    model: Model,
    begun: Begun,
    how: PGD,
    single: bool,
    clock: Clock,
    memory: int,
    thorough: bool = False,
) -> Broken:
    """Look for counterexamples of a batch. Points that the clock leaves no time to replay do not
    count; if `single`, only those within the limits do.

    If `thorough`, inputs without a counterexample are attacked once more, clause by clause.
    """
    broken = Broken.of(begun)
    if not len(begun.right) or clock.expired():
        return broken
    guess = begun.limit if single else begun.guess
    cast = begun.cast.at(begun.limit)
    own = clock.part(0.9)
    found = nearest(begun.graph, cast.region, cast.property, guess, how, own, memory)
    missed = (~torch.isfinite(found.distance)).nonzero().flatten()
    if thorough and cast.property.clauses > 1 and len(missed):
        rest = cast.rows(missed)
        again = nearest(
            begun.graph, rest.region, rest.property, guess[missed], how, own, memory, apart=True
        )
        found.point[missed], found.distance[missed] = again.point, again.distance
    for k in torch.isfinite(found.distance).nonzero().flatten().tolist():
        if clock.expired():
            break
        broken = confirmed(model, begun, broken, k, found.point[k], single)
    return broken


def _erring(
    model: Model, begun: Begun, n: int, point: Array
) -> tuple[float, Array, int | None] | None:
    """The distance of a point, drawn into the region, on which the original model errs; the point;
    and the clause that it violates most, None in a tie which argmax decides for the label."""
    regions = begun.problem.regions
    point = np.where(regions.still(n), regions.x[n], regions.clip(n, point))
    outputs = model.run(point[None])
    if not begun.problem.violated(outputs, n)[0]:
        return None
    return regions.distance(n, point), point, overtaken(begun.problem, n, outputs)


def overtaken(problem: Problem, n: int, outputs: NDArray[np.floating]) -> int | None:
    """The clause that outputs (1, classes) violate most; None in a tie which argmax decides for
    the label of input n."""
    margins, labels = problem.margins(outputs, n)[0], problem.property.labels()
    worst = int(np.nanargmin(margins))
    still = labels is not None and int(problem.property.predicted(outputs)[0]) == int(labels[n])
    return None if margins[worst] == 0 and still else worst
