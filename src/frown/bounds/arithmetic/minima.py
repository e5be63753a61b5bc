"""The least value of a linear form over a region, bounded below with proof."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from frown.bounds.rows import SampleIndex, dot, places, spread
from frown.graph.box import Box
from frown.problem.region import Region
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, above, below, gamma
from frown.relax.proven.taylor import Enclosure, one_by_one

SMALL = 2.0**-400  # squares of numbers between it and its inverse stay far within range


def enclosing(region: Region) -> Box:
    """A box around the region."""
    reach = _over(region.radius, region.centre)
    if region.scale is not None:
        reach = reach * region.scale
    slack = 4 * UNIT * reach
    low, high = below(region.centre - reach, slack), above(region.centre + reach, slack)
    if region.scale is not None:
        fixed = (region.scale == 0).expand_as(low)
        low, high = torch.where(fixed, region.centre, low), torch.where(fixed, region.centre, high)
    if region.lower is not None and region.upper is not None:
        low, high = low.maximum(region.lower), high.minimum(region.upper)
    return Box(low, high)


def least(region: Region, coef: Tensor, which: SampleIndex | None = None) -> Tensor:
    """(rows,) at most coef . x for every x of the row's region: `which` says which that is, None
    that every row has its own, or all have one.

    The centre's part is a sum; what moving gains is at most the value of the dual problem at any
    multiplier, so multipliers are guessed in floats.
    """
    if which is not None and (region.clipped or region.scale is not None):
        region, which = region.rows(places(which)), None
    if region.p == inf and region.clipped:
        box = enclosing(region)
        return _dot_below(coef, torch.where(coef > 0, box.lower, box.upper))
    if which is not None:
        return _least_of_samples(region, coef, which)
    start = _dot_below(coef, region.centre)
    gain = _gain(region, coef)
    best = above(ball_gain(gain, region.p) * region.radius[:, None])
    if region.clipped:
        best = torch.minimum(best, _cut_gain(region, coef, gain))
    total = best.sum(1)
    return below(start - total, total * gamma(best.shape[1]))


def _least_of_samples(region: Region, coef: Tensor, which: SampleIndex) -> Tensor:
    """`least` for plain balls, whose centres are read where they are."""
    size, centre = coef.abs(), region.centre
    count = centre[0].numel()
    error = dot(size, centre.abs(), which) * (gamma(count) * LOOSE) + count * TINY
    start = below(dot(coef, centre, which), error)
    gain = ball_gain(region.balls(size), region.p)
    total = above(gain * spread(region.radius, which)[:, None])
    return below(start - total.sum(1), total.sum(1) * gamma(total.shape[1]))


def _gain(region: Region, coef: Tensor) -> Tensor:
    """(rows, balls, features) at least how fast a form changes with each feature."""
    if region.scale is None:
        return region.balls(coef.abs())
    return above(region.balls((coef * region.scale).abs()))


def extremes(region: Region, coef: Tensor) -> Box:
    """(N, K) around all values of each form (K, *shape) over each sample's region."""
    one_scale = region.scale is None or len(region.scale) == 1
    if region.p == inf or region.clipped or not one_scale:
        least_most = []
        for n in range(len(region.radius)):
            ball = region.rows(slice(n, n + 1))
            least_most.append((least(ball, coef), -least(ball, -coef)))
        return Box(*(torch.stack(side) for side in zip(*least_most, strict=True)))
    gain = _gain(region, coef)
    size = gain.shape[1]
    reach = above(ball_gain(gain, region.p).sum(1) * (1 + gamma(size)))
    reach = above(region.radius[:, None] * reach)
    flat, centre = coef.flatten(1), region.centre.flatten(1)
    middle = centre @ flat.T
    width = flat.shape[1]
    error = centre.abs() @ flat.abs().T * (gamma(width) * LOOSE) + width * TINY
    error = error + 4 * UNIT * reach
    return Box(below(middle - reach, error), above(middle + reach, error))


def farthest(region: Region) -> Tensor:
    """(N,) a radius at which every ball holds all of the valid range; infinite without one."""
    if region.lower is None or region.upper is None:
        return torch.full_like(region.radius, inf)
    far = (region.centre - region.lower).maximum(region.upper - region.centre)
    if region.scale is not None:
        moving = region.scale > 0
        far = torch.where(moving, far / torch.where(moving, region.scale, 1.0), 0.0)
    # The norm of p is dual to that of q, and the larger the less p is.
    q = region.dual if region.p in (1, 2, inf) else region.dual * (1 + 8 * UNIT)
    return ball_gain(above(region.balls(far)), q).amax(1)


def _dot_below(coef: Tensor, point: Tensor) -> Tensor:
    terms = (coef * point).flatten(1)
    value, count = terms.sum(1), terms.shape[1]
    error = terms.abs_().sum(1) * (gamma(count) * LOOSE)
    return below(value, error + count * TINY)


def ball_gain(gain: Tensor, p: float) -> Tensor:
    """(rows, balls) at least the norm dual to p of each ball's gain."""
    if p == 1:
        return gain.amax(-1)
    if p == inf:
        return gain.sum(-1) * (1 + gamma(gain.shape[-1]) + 4 * UNIT)
    largest = gain.amax(-1, keepdim=True)
    if p == 2 and bool(((largest > SMALL) & (largest < 1 / SMALL)).all()):
        # What underflow takes of squares is nothing against that of the largest.
        size = gain.shape[-1]
        return gain.square().sum(-1).sqrt() * (1 + gamma(size) + 16 * UNIT)
    share = gain / torch.where(largest > 0, largest, 1.0)  # squares stay in range
    if p == 2:
        norm = share.square().sum(-1).sqrt()
    else:
        total = _power(share, lambda a: a / (a - 1), p).upper.sum(-1) * LOOSE
        norm = _power(total, lambda a: (a - 1) / a, p).upper
    size = share.shape[-1]
    return norm * largest.squeeze(-1) * (1 + gamma(size) + 16 * UNIT) + size * TINY


def _cut_gain(region: Region, coef: Tensor, gain: Tensor) -> Tensor:
    """(rows, balls) at least max g . d over 0 <= d <= k, ||d||_p <= radius."""
    assert region.lower is not None and region.upper is not None
    room = torch.where(coef > 0, region.centre - region.lower, region.upper - region.centre)
    if region.scale is not None:
        positive = torch.where(region.scale > 0, region.scale, 1.0)
        room = torch.where(region.scale > 0, room / positive, 0.0)
    radius = region.radius[:, None, None]
    # No feature moves by more than the radius, however far its range goes.
    cap = region.balls(above(room).clamp(min=0)).minimum(above(radius))
    whole = gain * cap
    best = whole.sum(-1) * LOOSE + TINY
    if region.p == 1:
        # nu r + sum k relu(g - nu), for any nu >= 0
        order = gain.argsort(-1, descending=True)
        filled = cap.gather(-1, order).cumsum(-1)
        place = (filled <= radius).sum(-1, keepdim=True).clamp(max=gain.shape[-1] - 1)
        nu = gain.gather(-1, order).gather(-1, place)
        terms = cap * above(gain - nu).clamp(min=0)
        dual = nu.squeeze(-1) * radius.squeeze(-1) + terms.sum(-1)
        return torch.minimum(best, dual * LOOSE + TINY)
    if region.p == 2:
        # sum max (g d - nu d^2 / 2) + nu r^2 / 2, for any nu > 0
        nu = _multiplier(gain, cap, radius)
        # No squares of small numbers, which would underflow.
        free = gain * (gain / (2 * nu))
        full = gain * cap - (nu * cap) * cap / 2
        terms = torch.where(gain >= nu * cap, full, free)
        size = (whole + free) * (32 * UNIT)  # of what a term may lose, its choice included
        reach = radius.squeeze(-1)
        dual = (terms + size).sum(-1) + (nu.squeeze(-1) * reach) * reach / 2
        slack = (terms.abs() + size).sum(-1) * gamma(gain.shape[-1]) + TINY
        dual = above(dual, slack * LOOSE)
        return torch.where(torch.isfinite(dual), torch.minimum(best, dual), best)
    return torch.minimum(best, _power_gain(gain, cap, radius, region.p))


def _power_gain(gain: Tensor, cap: Tensor, radius: Tensor, p: float) -> Tensor:
    """sum max h(d) + nu r^p / p, h(d) = g d - nu d^p / p, for any nu > 0, in units of the radius.

    h is concave: over all d it is at most g^q / (q nu^(q-1)), and up to k at most what its tangent
    at k says. Powers come from Arb.
    """
    cap = torch.where(radius > 0, cap / radius * (1 + 4 * UNIT), 1.0).clamp(max=1.0)
    largest = gain.amax(-1, keepdim=True)
    share = torch.where(largest > 0, gain / torch.where(largest > 0, largest, 1.0), 0.0)
    share = share * (1 + 4 * UNIT)
    nu = _multiplier(share, cap, torch.ones_like(radius), p)
    # q = p / (p - 1), so 1 / q = (p - 1) / p and 1 - q = -1 / (p - 1)
    powers = (
        _power(share, lambda a: a / (a - 1), p).upper * _power(nu, lambda a: 1 / (1 - a), p).upper
    )
    free = powers * ((p - 1) / p) * (1 + 32 * UNIT)
    level, slope = _power(cap, lambda a: a, p), _power(cap, lambda a: a - 1, p)
    at_cap = share * cap - nu * level.lower / p + 16 * UNIT * (share * cap + nu)
    fall = (nu * slope.upper * (1 + 8 * UNIT) - share).clamp(min=0) * cap
    terms = torch.fmin(free, at_cap + fall + 16 * UNIT * (fall + nu)).clamp(min=0)
    dual = (terms.sum(-1) + (nu / p).squeeze(-1)) * LOOSE
    return dual * largest.squeeze(-1) * radius.squeeze(-1) * LOOSE + TINY


def _power(x: Tensor, exponent: Callable[[Any], Any], p: float) -> Enclosure:
    """x to a power made of p, which Arb computes, for x >= 0; 0 stays 0."""
    import flint

    number = exponent(flint.arb(p))
    return one_by_one(lambda c: c**number if c > 0 else flint.arb(0), x)


def _multiplier(gain: Tensor, cap: Tensor, radius: Tensor, p: float = 2.0) -> Tensor:
    """nu > 0 with ||min(k, (g / nu)^(1/(p-1)))||_p near the radius, by bisection."""
    high = gain.square().sum(-1, keepdim=True).sqrt() / radius.clamp(min=TINY)
    high = high.clamp(min=TINY) * 2.0**20
    low = high * 2.0**-90
    for _ in range(70):
        nu = (low * high).sqrt()
        step = cap.minimum((gain / nu) ** (1 / (p - 1)))
        far = (step**p).sum(-1, keepdim=True) > radius**p
        low, high = torch.where(far, nu, low), torch.where(far, high, nu)
    return high


def _over(radius: Tensor, like: Tensor) -> Tensor:
    return radius.view(-1, *([1] * (like.dim() - 1)))
