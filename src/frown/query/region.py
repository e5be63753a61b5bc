"""Where the input may move: an l_p ball, possibly cut by a valid range.

region = { x : ||(x - centre) / scale||_p <= radius, lower <= x <= upper }.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Self

import torch
from torch import Tensor

from frown.graph.box import Box


@dataclass(frozen=True, slots=True)
class Minimum:
    """Least value of a linear form over the region, and a point that attains it."""

    value: Tensor  # (rows,)
    point: Tensor  # (rows, *shape)


@dataclass(frozen=True, slots=True)
class Region:
    """One ball per sample.

    `scale` gives features their own radius (0: the feature may not move); `lower` and
    `upper` are the valid range, which must contain the centre.
    """

    centre: Tensor  # (N, *shape)
    radius: Tensor  # (N,)
    p: float
    scale: Tensor | None = None  # (N, *shape) or (1, *shape)
    lower: Tensor | None = None  # (N or 1, *shape)
    upper: Tensor | None = None

    @property
    def dual(self) -> float:
        """q with 1/p + 1/q = 1."""
        if self.p == 1:
            return inf
        return 1.0 if self.p == inf else self.p / (self.p - 1)

    @property
    def clipped(self) -> bool:
        return self.lower is not None

    def with_radius(self, radius: Tensor) -> Self:
        return replace(self, radius=radius)

    def rows(self, index: Tensor | slice) -> Region:
        """The balls of these samples, one per row (an index may repeat)."""

        def pick(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.shape[0] == 1 else t[index]

        return Region(
            self.centre[index],
            self.radius[index],
            self.p,
            pick(self.scale),
            pick(self.lower),
            pick(self.upper),
        )

    def box(self) -> Box:
        """The smallest box around the region: |x_i - c_i| <= radius scale_i for every p."""
        reach = self._over(self.radius)
        if self.scale is not None:
            reach = reach * self.scale
        low, high = self.centre - reach, self.centre + reach
        if self.lower is not None and self.upper is not None:
            low, high = low.maximum(self.lower), high.minimum(self.upper)
        return Box(low, high)

    def minimise(self, coef: Tensor) -> Minimum:
        """min coef . x over the region, row by row; coef is (rows, *shape).

        Exact for every p without a valid range, and with one. The value is that of the
        dual problem, so it bounds the minimum from below even where rounding moves the
        multiplier.
        """
        if self.p == inf:
            return self._minimise_box(coef)
        if self.clipped:
            return self._minimise_clipped(coef)
        return self._minimise_ball(coef)

    def descent(self, slope: Tensor, spread: Tensor) -> Tensor:
        """The steepest step of this radius against a gradient, the range left aside.

        For p = 1 the step is shared by the steepest features, a part `spread` (rows,) of
        all: along one at a time an attack would crawl.
        """
        flat = (slope if self.scale is None else slope * self.scale).flatten(1)
        if self.p == inf:
            step = flat.sign()
        elif self.p == 1:
            rank = (spread * flat.shape[1]).long().clamp(1, flat.shape[1]) - 1
            bar = flat.abs().sort(1, descending=True).values.gather(1, rank[:, None])
            step = flat.sign() * (flat.abs() >= bar) * (flat != 0)
            step = step / step.abs().sum(1, keepdim=True).clamp(min=1)
        else:
            norm = _norm(flat, self.dual)[:, None]
            share = flat.abs() / norm.clamp(min=torch.finfo(flat.dtype).tiny)
            step = share ** (self.dual - 1) * flat.sign()
        step = -step.view_as(slope) * self._over(self.radius)
        return step if self.scale is None else step * self.scale

    def extremes(self, coef: Tensor) -> Box:
        """Least and greatest value of every form (K, *shape) for every sample: (N, K)."""
        if self.p != inf and not self.clipped and (self.scale is None or len(self.scale) == 1):
            gain = coef if self.scale is None else coef * self.scale
            norm = _norm(gain.flatten(1), self.dual)
            middle = self.centre.flatten(1) @ coef.flatten(1).T
            reach = self.radius[:, None] * norm
            return Box(middle - reach, middle + reach)
        least, most = [], []
        for n in range(len(self.radius)):
            one = self.rows(slice(n, n + 1))
            least.append(one.minimise(coef).value)
            most.append(-one.minimise(-coef).value)
        return Box(torch.stack(least), torch.stack(most))

    def project(self, x: Tensor) -> Tensor:
        """A point of the region near x: the ball first, then the range, which keeps it
        inside the ball because the range contains the centre."""
        step = x - self.centre
        if self.scale is not None:
            step = torch.where(self.scale > 0, step / self.scale, torch.zeros_like(step))
        step = _project_ball(step.flatten(1), self.radius, self.p).view_as(step)
        if self.scale is not None:
            step = step * self.scale
        x = self.centre + step
        if self.lower is not None and self.upper is not None:
            x = x.maximum(self.lower).minimum(self.upper)
        return x

    def distance(self, x: Tensor) -> Tensor:
        """||(x - centre) / scale||_p, infinite where a fixed feature has moved."""
        step = x - self.centre
        if self.scale is not None:
            moved = torch.where(step == 0, torch.zeros_like(step), torch.full_like(step, inf))
            step = torch.where(self.scale > 0, step / self.scale, moved)
        return _norm(step.flatten(1), self.p)

    def limit(self) -> Tensor:
        """(N,) the radius beyond which the valid range leaves nothing to gain; inf without."""
        if self.lower is None or self.upper is None:
            return torch.full_like(self.radius, inf)
        far = (self.centre - self.lower).maximum(self.upper - self.centre)
        if self.scale is not None:
            far = torch.where(self.scale > 0, far / self.scale, torch.zeros_like(far))
        return _norm(far.expand_as(self.centre).flatten(1), self.p)

    # -- one case each ------------------------------------------------------------

    def _minimise_box(self, coef: Tensor) -> Minimum:
        if self.scale is None and not self.clipped:
            point = torch.addcmul(self.centre, coef.sign(), self._over(self.radius), value=-1)
        else:
            box = self.box()
            point = torch.where(coef > 0, box.lower, box.upper)
        return Minimum(_dot(coef, point), point)

    def _minimise_ball(self, coef: Tensor) -> Minimum:
        gain = coef if self.scale is None else coef * self.scale
        flat = gain.flatten(1)
        norm = _norm(flat, self.dual)
        value = _dot(coef, self.centre) - self.radius * norm
        if self.p == 1:
            step = torch.zeros_like(flat)
            where = flat.abs().argmax(1, keepdim=True)
            step.scatter_(1, where, flat.gather(1, where).sign())
        elif self.p == 2:
            step = flat / norm.clamp(min=torch.finfo(flat.dtype).tiny)[:, None]
        else:
            share = flat.abs() / norm.clamp(min=torch.finfo(flat.dtype).tiny)[:, None]
            step = share ** (self.dual - 1) * flat.sign()
        step = step.view_as(gain) * self._over(self.radius)
        if self.scale is not None:
            step = step * self.scale
        return Minimum(value, self.centre - step)

    def _minimise_clipped(self, coef: Tensor) -> Minimum:
        """The ball cut by the range. With g = |coef| scale and caps k_i, maximise g . d
        over 0 <= d <= k, ||d||_p <= radius: fill the features in the order in which
        they reach their caps."""
        assert self.lower is not None and self.upper is not None
        room = torch.where(coef > 0, self.centre - self.lower, self.upper - self.centre)
        scale = torch.ones_like(coef) if self.scale is None else self.scale.expand_as(coef)
        cap = torch.where(scale > 0, room / scale, torch.zeros_like(room)).flatten(1)
        gain = (coef.abs() * scale).flatten(1)
        knapsack = _fill_linear if self.p == 1 else _fill_power
        amount, best = knapsack(gain, cap, self.radius, self.p)
        step = amount.view_as(coef) * scale * coef.sign()
        return Minimum(_dot(coef, self.centre) - best, self.centre - step)

    def _over(self, t: Tensor) -> Tensor:
        return t.view(-1, *([1] * (self.centre.dim() - 1)))


def _norm(rows: Tensor, p: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, ord=p, dim=1)
    return norm


def _dot(coef: Tensor, point: Tensor) -> Tensor:
    return (coef * point).flatten(1).sum(1)


def _fill_linear(gain: Tensor, cap: Tensor, radius: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """max g . d, 0 <= d <= k, sum d <= radius: the fractional knapsack.

    The value is the dual's, nu radius + sum k relu(g - nu), valid for any nu >= 0.
    """
    order = gain.argsort(1, descending=True)
    sorted_cap = cap.gather(1, order)
    before = sorted_cap.cumsum(1) - sorted_cap
    amount = (radius[:, None] - before).clamp(min=0).minimum(sorted_cap)
    full = before + sorted_cap <= radius[:, None]
    # nu: the gain of the first feature that does not fit whole, 0 if all fit.
    first = full.sum(1, keepdim=True)
    padded = torch.cat([gain.gather(1, order), torch.zeros_like(gain[:, :1])], 1)
    nu = padded.gather(1, first)
    best = nu.squeeze(1) * radius + (cap * (gain - nu).clamp(min=0)).sum(1)
    return torch.zeros_like(gain).scatter(1, order, amount), best


def _fill_power(gain: Tensor, cap: Tensor, radius: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """max g . d, 0 <= d <= k, ||d||_p <= radius for 1 < p < inf.

    Uncapped features share d_i = c g_i^(1/(p-1)); sorted by k_i / g_i^(1/(p-1)) the
    capped ones come first, and prefix sums give the c of every split. The value is the
    Lagrangian's at c, hence never below the maximum.
    """
    tiny = torch.finfo(gain.dtype).tiny
    largest = gain.amax(1, keepdim=True).clamp(min=tiny)
    g = gain / largest  # keeps the powers in range
    shape = g.clamp(min=tiny) ** (1 / (p - 1))
    ratio = torch.where(g > 0, cap / shape.clamp(min=tiny), torch.full_like(g, inf))
    order = ratio.argsort(1)
    k, h, r = (t.gather(1, order) for t in (cap, torch.where(g > 0, shape, 0 * shape), ratio))
    kp = k**p
    capped = kp.cumsum(1) - kp  # of the features before this one
    free = (h**p).flip(1).cumsum(1).flip(1)  # of this one and those after
    left = (radius[:, None] ** p - capped).clamp(min=0)
    c = (left / free.clamp(min=tiny)) ** (1 / p)
    fits = (c < r) & (free > 0)  # at this split the next feature is not capped
    any_fits = fits.any(1, keepdim=True)
    first = fits.to(torch.int64).argmax(1, keepdim=True)
    c = torch.where(any_fits, c.gather(1, first), torch.full_like(c[:, :1], inf))
    amount = torch.where(g > 0, (c * shape).minimum(cap), torch.zeros_like(cap))
    # Lagrangian: sum g d - nu d^p / p + nu radius^p / p with nu = c^(1-p).
    nu = torch.where(any_fits, c ** (1 - p), torch.zeros_like(c))
    slack = radius[:, None] ** p - (amount**p).sum(1, keepdim=True)
    best = (g * amount).sum(1, keepdim=True) + nu * slack.clamp(min=0) / p
    return amount, (best * largest).squeeze(1)


def _project_ball(step: Tensor, radius: Tensor, p: float) -> Tensor:
    """Onto the l_p ball: exact for p = 1, 2, inf, along the ray for other p."""
    r = radius[:, None]
    if p == inf:
        return step.maximum(-r).minimum(r)
    norm = _norm(step, p)[:, None]
    inside = norm <= r
    if p == 1:
        ordered = step.abs().sort(1, descending=True).values
        count = torch.arange(1, step.shape[1] + 1, device=step.device, dtype=step.dtype)
        excess = (ordered.cumsum(1) - r) / count
        last = ((ordered > excess).sum(1, keepdim=True) - 1).clamp(min=0)
        shrunk = step.sign() * (step.abs() - excess.gather(1, last)).clamp(min=0)
        return torch.where(inside, step, shrunk)
    return torch.where(inside, step, step * (r / norm.clamp(min=torch.finfo(step.dtype).tiny)))
