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

    def patch(self, sample: Tensor, entries: Tensor, shape: tuple[int, ...]) -> Region:
        """The balls of these samples (rows,) in some of the features alone.

        `entries` (rows, n) are flat indices of features, laid out in `shape`. For forms of
        these features the minimum is the same as over the whole ball.
        """

        def pick(t: Tensor) -> Tensor:
            flat = t.flatten(1)
            kept = flat[0][entries] if len(flat) == 1 else flat[sample[:, None], entries]
            return kept.view(-1, *shape)

        return Region(
            pick(self.centre),
            self.radius[sample],
            self.p,
            None if self.scale is None else pick(self.scale),
            None if self.lower is None else pick(self.lower),
            None if self.upper is None else pick(self.upper),
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
            share = flat.abs() / _safe(norm)
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
        # A hair more, so that rounding leaves no corner of the range out.
        size = _norm(far.expand_as(self.centre).flatten(1), self.p)
        return size * (1 + 16 * torch.finfo(size.dtype).eps)

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
            step = flat / _safe(norm)[:, None]
        else:
            share = flat.abs() / _safe(norm)[:, None]
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
        # In units of the radius: no cap above 1 matters, and powers stay in range.
        radius = self.radius[:, None]
        cap = torch.where(cap < radius, cap / radius, torch.ones_like(cap))
        amount, best = _fill_linear(gain, cap) if self.p == 1 else _fill_power(gain, cap, self.p)
        step = (amount * radius).view_as(coef) * scale * coef.sign()
        return Minimum(_dot(coef, self.centre) - best * self.radius, self.centre - step)

    def _over(self, t: Tensor) -> Tensor:
        return t.view(-1, *([1] * (self.centre.dim() - 1)))


def _norm(rows: Tensor, p: float) -> Tensor:
    """||row||_p; each row is scaled first, or its powers might leave the range of floats."""
    if p in (1, inf):
        return rows.abs().sum(1) if p == 1 else rows.abs().amax(1)
    largest = rows.abs().amax(1)
    norm: Tensor = torch.linalg.vector_norm(rows / _safe(largest)[:, None], ord=p, dim=1)
    return torch.where((largest > 0) & (largest < inf), norm * largest, largest)


def _safe(t: Tensor) -> Tensor:
    """A divisor: t, or 1 where t is 0."""
    return torch.where(t > 0, t, torch.ones_like(t))


def _dot(coef: Tensor, point: Tensor) -> Tensor:
    return (coef * point).flatten(1).sum(1)


def _fill_linear(gain: Tensor, cap: Tensor) -> tuple[Tensor, Tensor]:
    """max g . d, 0 <= d <= k, sum d <= 1: the fractional knapsack.

    The value is the dual's, nu + sum k relu(g - nu), valid for any nu >= 0.
    """
    order = gain.argsort(1, descending=True)
    sorted_cap = cap.gather(1, order)
    before = sorted_cap.cumsum(1) - sorted_cap
    amount = (1 - before).clamp(min=0).minimum(sorted_cap)
    full = before + sorted_cap <= 1
    # nu: the gain of the first feature that does not fit whole, 0 if all fit.
    first = full.sum(1, keepdim=True)
    padded = torch.cat([gain.gather(1, order), torch.zeros_like(gain[:, :1])], 1)
    nu = padded.gather(1, first)
    best = nu.squeeze(1) + (cap * (gain - nu).clamp(min=0)).sum(1)
    return torch.zeros_like(gain).scatter(1, order, amount), best


def _fill_power(gain: Tensor, cap: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """max g . d, 0 <= d <= k <= 1, ||d||_p <= 1 for 1 < p < inf.

    Uncapped features share d_i = c g_i^(1/(p-1)); sorted by k_i / g_i^(1/(p-1)) the
    capped ones come first, and prefix sums give the c of every split. Powers are taken as
    logarithms, in double precision, or they would leave the range of floats.

    The value never hangs on c being right. With nu = c^(1-p) it is the Lagrangian

        sum g d + nu (1 - sum d^p) / p,  d_i = min(k_i, (g_i / nu)^(1/(p-1))),

    which is at least the maximum for every nu >= 0; so are g . k and the dual norm of g.
    """
    g, k = gain.double(), cap.double()
    useful = (g > 0) & (k > 0)
    largest = torch.where(useful, g, 0.0).amax(1, keepdim=True)
    g = torch.where(useful, g / _safe(largest), 0.0)
    shape = torch.where(useful, g.log(), -inf) / (p - 1)
    ratio = torch.where(useful, k.log() - shape, inf)
    order = ratio.argsort(1)
    k_log, h_log, r = (t.gather(1, order) for t in (k.log(), shape, ratio))
    powers = torch.where(r < inf, (p * k_log).exp(), 0.0)
    left = 1 - (powers.cumsum(1) - powers)  # what the features before this one leave
    free = torch.logcumsumexp((p * h_log).flip(1), 1).flip(1)  # this one and those after
    c_log = (left.clamp(min=0).log() - free) / p
    fits = (left > 0) & (c_log <= r) & torch.isfinite(c_log)  # the next is not capped
    found = fits.any(1, keepdim=True)
    first = fits.to(torch.int64).argmax(1, keepdim=True)
    c_log = torch.where(found, c_log.gather(1, first), inf)
    amount = torch.where(useful, (c_log + shape).exp().minimum(k), 0.0)
    rounding = 16 * g.shape[1] * torch.finfo(g.dtype).eps
    spare = (1 - (amount**p).sum(1) + rounding).clamp(min=0)
    nu = torch.where(found, ((1 - p) * c_log).exp(), 0.0).squeeze(1)
    lagrangian = (g * amount).sum(1) + nu * spare / p
    whole, dual = (g * k).sum(1), _norm(g, p / (p - 1))
    best = lagrangian.fmin(whole).minimum(dual) * largest.squeeze(1)
    outwards = 1 + 4 * torch.finfo(gain.dtype).eps
    inside = amount / _norm(amount, p).clamp(min=1)[:, None]
    return inside.to(gain.dtype), (best * outwards).to(gain.dtype)


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
    return torch.where(inside, step, step * (r / _safe(norm)))
