"""Counterexamples: projected gradient descent with restarts, for the least distance.

Each restart walks along the decision boundary: its ball shrinks while the point is
adversarial and grows while it is not. The nearest adversarial point seen is then pulled
towards the centre by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi

import torch
from torch import Tensor

from frown.engines.clock import NO_LIMIT, Clock
from frown.graph.graph import Graph
from frown.query.region import Region
from frown.query.spec import Spec, violated


@dataclass(frozen=True, slots=True)
class Attack:
    """How hard to look."""

    steps: int = 100
    restarts: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The nearest adversarial point of each sample; distance inf where there is none."""

    point: Tensor  # (N, *shape)
    distance: Tensor  # (N,)


def nearest(
    graph: Graph,
    region: Region,  # its radius: no counterexample beyond it is wanted
    spec: Spec,
    guess: Tensor,  # (N,) the radius to start with
    attack: Attack,
    clock: Clock = NO_LIMIT,
) -> Found:
    """Points inside the region where the spec is violated: some condition is <= 0."""
    count = len(region.radius)
    generator = torch.Generator(device="cpu").manual_seed(attack.seed)
    every = torch.arange(count).repeat(attack.restarts).to(region.centre.device)
    ball, coef = region.rows(every), spec.coef[every]
    lane = torch.arange(len(every), device=every.device) // count  # which restart
    radius = torch.minimum(guess[every] * 2.0 ** (lane - 1), ball.radius)
    x = _scatter(ball.with_radius(radius), count, generator)
    spread = 0.3 * 0.2 ** (lane % 4).to(x)
    best = torch.full_like(radius, inf)
    where = ball.centre.clone()
    for step in range(attack.steps):
        if clock.expired():
            break
        worst, slope = _worst(graph, x, coef)
        distance = ball.distance(x)
        hit = violated(worst[:, None]) & (distance <= ball.radius)
        closer = hit & (distance < best)
        best = torch.where(closer, distance, best)
        where = torch.where(_like(closer, x), x, where)
        # The pace falls along a cosine, as the walk settles on the boundary.
        pace = 0.5 * (1 + torch.cos(torch.tensor(pi * step / attack.steps)).item())
        ratio = 1 + 0.25 * pace + 0.01
        radius = torch.where(hit, torch.minimum(distance, radius) / ratio, radius * ratio)
        radius = radius.minimum(best / 1.005).minimum(ball.radius)
        move = ball.with_radius(radius * (0.5 * pace + 0.02)).descent(slope, spread)
        x = ball.with_radius(radius).project(x + move)
    where, best = _pull_in(graph, ball, coef, where, best)
    best, where = (
        best.view(attack.restarts, count),
        where.view(attack.restarts, count, *x.shape[1:]),
    )
    which = best.argmin(0)
    column = torch.arange(count, device=which.device)
    return Found(where[which, column], best[which, column])


def _worst(graph: Graph, x: Tensor, coef: Tensor) -> tuple[Tensor, Tensor]:
    """The least condition of every row, and its gradient."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        conditions = (coef @ graph.apply(x).flatten(1)[:, :, None]).squeeze(-1)
        worst = conditions.amin(1)
        (slope,) = torch.autograd.grad(worst.sum(), x)
    return worst.detach(), slope


def _scatter(ball: Region, count: int, generator: torch.Generator) -> Tensor:
    """First points: the centre for the first restart, random ones for the others."""
    noise = torch.rand(ball.centre.shape, generator=generator).to(ball.centre) * 2 - 1
    noise[:count] = 0
    reach = ball.box()
    return ball.project(ball.centre + noise * (reach.upper - reach.lower) / 2)


def _pull_in(
    graph: Graph, ball: Region, coef: Tensor, where: Tensor, best: Tensor
) -> tuple[Tensor, Tensor]:
    """Bisection on the segment from the centre to the point, which stays adversarial."""
    low, high = torch.zeros_like(best), torch.ones_like(best)
    step = where - ball.centre
    for _ in range(12):
        middle = (low + high) / 2
        x = ball.centre + _like(middle, step) * step
        bad = violated((coef @ graph.apply(x).flatten(1)[:, :, None]).squeeze(-1))
        high, low = torch.where(bad, middle, high), torch.where(bad, low, middle)
    x = ball.centre + _like(high, step) * step
    found = torch.isfinite(best)
    return torch.where(_like(found, x), x, where), torch.where(found, ball.distance(x), best)


def _like(t: Tensor, x: Tensor) -> Tensor:
    return t.view(-1, *([1] * (x.dim() - 1)))
