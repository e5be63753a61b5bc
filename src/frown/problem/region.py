"""Regions, in which the input may move: l_p balls, possibly cut by a valid range.

    region = { x : ||(x - centre) / scale||_p <= radius, lower <= x <= upper },

or, where frames have balls of their own, the same with the norm of every frame by itself: a product
of balls, over which a linear form is least where each of its parts is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Self

import torch
from torch import Tensor

from frown.graph.intervals import Intervals, rows_of, unsqueezed

HAIR = 4e-9  # more than a proof adds to a norm of four million numbers for its rounding


def norms(rows: Tensor, p: float) -> Tensor:
    """||row||_p; each row is scaled first, or its powers might leave the range of floats."""
    if p in (1, inf):
        return rows.abs().sum(-1) if p == 1 else rows.abs().amax(-1)
    largest = rows.abs().amax(-1)
    norm: Tensor = torch.linalg.vector_norm(rows / safe(largest)[..., None], ord=p, dim=-1)
    return torch.where((largest > 0) & (largest < inf), norm * largest, largest)


def safe(t: Tensor) -> Tensor:
    """A divisor: t, or 1 where t is 0."""
    return torch.where(t > 0, t, torch.ones_like(t))


def fill_linear(gain: Tensor, cap: Tensor) -> tuple[Tensor, Tensor]:
    """max g . d, 0 <= d <= k, sum d <= 1: the fractional knapsack.

    The value is the dual's, nu + sum k relu(g - nu), valid for any nu >= 0.
    """
    order = gain.argsort(-1, descending=True)
    sorted_cap = cap.gather(-1, order)
    before = sorted_cap.cumsum(-1) - sorted_cap
    amount = (1 - before).clamp(min=0).minimum(sorted_cap)
    full = before + sorted_cap <= 1
    # nu: the gain of the first feature that does not fit whole, 0 if all fit.
    first = full.sum(-1, keepdim=True)
    padded = torch.cat([gain.gather(-1, order), torch.zeros_like(gain[..., :1])], -1)
    nu = padded.gather(-1, first)
    best = nu.squeeze(-1) + (cap * (gain - nu).clamp(min=0)).sum(-1)
    return torch.zeros_like(gain).scatter(-1, order, amount), best


def fill_power(gain: Tensor, cap: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """max g . d, 0 <= d <= k <= 1, ||d||_p <= 1 for 1 < p < inf.

    Uncapped features share d_i = c g_i^(1/(p-1)); sorted by k_i / g_i^(1/(p-1)) the
    capped ones come first, and prefix sums give the c of every split. Powers are taken as
    logarithms, in double precision, or they would leave the range of floats.

    The value never depends on c being right. With nu = c^(1-p) it is the Lagrangian

        sum g d + nu (1 - sum d^p) / p,  d_i = min(k_i, (g_i / nu)^(1/(p-1))),

    which is at least the maximum for every nu >= 0; so are g . k and the dual norm of g.
    """
    g, k = gain.double(), cap.double()
    useful = (g > 0) & (k > 0)
    largest = torch.where(useful, g, 0.0).amax(-1, keepdim=True)
    g = torch.where(useful, g / safe(largest), 0.0)
    shape = torch.where(useful, g.log(), -inf) / (p - 1)
    ratio = torch.where(useful, k.log() - shape, inf)
    order = ratio.argsort(-1)
    k_log, h_log, r = (t.gather(-1, order) for t in (k.log(), shape, ratio))
    powers = torch.where(r < inf, (p * k_log).exp(), 0.0)
    left = 1 - (powers.cumsum(-1) - powers)  # what the features before this one leave
    free = torch.logcumsumexp((p * h_log).flip(-1), -1).flip(-1)  # this one and those after
    c_log = (left.clamp(min=0).log() - free) / p
    fits = (left > 0) & (c_log <= r) & torch.isfinite(c_log)  # the next is not capped
    found = fits.any(-1, keepdim=True)
    first = fits.to(torch.int64).argmax(-1, keepdim=True)
    c_log = torch.where(found, c_log.gather(-1, first), inf)
    amount = torch.where(useful, (c_log + shape).exp().minimum(k), 0.0)
    rounding = 16 * g.shape[-1] * torch.finfo(g.dtype).eps
    spare = (1 - (amount**p).sum(-1) + rounding).clamp(min=0)
    nu = torch.where(found, ((1 - p) * c_log).exp(), 0.0).squeeze(-1)
    lagrangian = (g * amount).sum(-1) + nu * spare / p
    whole, dual = (g * k).sum(-1), norms(g, p / (p - 1))
    best = lagrangian.fmin(whole).minimum(dual) * largest.squeeze(-1)
    outwards = 1 + 4 * torch.finfo(gain.dtype).eps
    inside = amount / norms(amount, p).clamp(min=1)[..., None]
    return inside.to(gain.dtype), (best * outwards).to(gain.dtype)


def project(step: Tensor, radius: Tensor, p: float) -> Tensor:
    """Onto the l_p ball: exact for p = 1, 2, inf, along the ray for other p."""
    r = radius[..., None]
    if p == inf:
        return step.maximum(-r).minimum(r)
    norm = norms(step, p)[..., None]
    inside = norm <= r
    if p == 1:
        ordered = step.abs().sort(-1, descending=True).values
        count = torch.arange(1, step.shape[-1] + 1, device=step.device, dtype=step.dtype)
        excess = (ordered.cumsum(-1) - r) / count
        last = ((ordered > excess).sum(-1, keepdim=True) - 1).clamp(min=0)
        shrunk = step.sign() * (step.abs() - excess.gather(-1, last)).clamp(min=0)
        return torch.where(inside, step, shrunk)
    return torch.where(inside, step, step * (r / safe(norm)))


@dataclass(frozen=True, slots=True)
class Minimum:
    """Least value of a linear form over the region, and a point that attains it."""

    value: Tensor  # (rows,)
    point: Tensor  # (rows, *shape)


@dataclass(frozen=True, slots=True)
class Region:
    """One l_p ball per sample, or one for every frame of every sample.

    `scale` gives features their own radius (0: the feature may not move). `lower` and `upper` are
    the valid range, which must contain the centre. Slices along `split`, an axis of the centre, are
    frames with a ball each. Not for boxes whose bounds must be exact: centre plus and minus radius
    is rounded.
    """

    centre: Tensor  # (N, *shape)
    radius: Tensor  # (N,)
    p: float
    scale: Tensor | None = None  # (N, *shape) or (1, *shape)
    lower: Tensor | None = None  # (N or 1, *shape)
    upper: Tensor | None = None
    split: int | None = None

    @property
    def dual(self) -> float:
        """q with 1/p + 1/q = 1."""
        if self.p == 1:
            return inf
        return 1.0 if self.p == inf else self.p / (self.p - 1)

    @property
    def euclidean(self) -> bool:
        """True for one l_2 ball per sample, over which rows may bend."""
        return self.p == 2 and self.split is None

    @property
    def clipped(self) -> bool:
        return self.lower is not None

    def with_radius(self, radius: Tensor) -> Self:
        return replace(self, radius=radius)

    def rows(self, index: Tensor | slice) -> Self:
        """The balls of these samples, one per row (an index may repeat)."""

        def pick(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.shape[0] == 1 else rows_of(t, index)

        return replace(
            self,
            centre=rows_of(self.centre, index),
            radius=rows_of(self.radius, index),
            scale=pick(self.scale),
            lower=pick(self.lower),
            upper=pick(self.upper),
        )

    def on(self, device: torch.device) -> Self:
        """The balls on another device."""

        def moved(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device)

        return replace(
            self,
            centre=self.centre.to(device),
            radius=self.radius.to(device),
            scale=moved(self.scale),
            lower=moved(self.lower),
            upper=moved(self.upper),
        )

    def balls(self, t: Tensor) -> Tensor:
        """(rows, *shape) as (rows, balls, features of a ball)."""
        if self.split is None:
            return t.flatten(1)[:, None]
        moved = t.movedim(self.split, 1)
        return moved.reshape(*moved.shape[:2], -1)

    def patch(self, sample: Tensor, entries: Tensor, shape: tuple[int, ...]) -> Region:
        """The balls of these samples (rows,) in some of the features alone.

        `entries` (rows, n) are flat indices of features, laid out in `shape`. For forms of
        these features the minimum is the same as over the whole ball.
        """

        def pick(t: Tensor) -> Tensor:
            flat = t.flatten(1)
            kept = flat[0][entries] if len(flat) == 1 else flat[sample[:, None], entries]
            return kept.view(-1, *shape)

        return self.mapped(pick, self.radius[sample])

    def mapped(self, change: Callable[[Tensor], Tensor], radius: Tensor) -> Region:
        """A copy with these radii, and with whatever has a number for each feature changed."""
        others = (self.scale, self.lower, self.upper)
        scale, lower, upper = (None if t is None else change(t) for t in others)
        centre = change(self.centre)
        return Region(centre, radius, self.p, scale, lower, upper, self.split)

    def box(self) -> Intervals:
        """The smallest box around the region: |x_i - c_i| <= radius scale_i for every p."""
        reach = unsqueezed(self.radius, self.centre)
        if self.scale is not None:
            reach = reach * self.scale
        low, high = self.centre - reach, self.centre + reach
        if self.lower is not None and self.upper is not None:
            low, high = low.maximum(self.lower), high.minimum(self.upper)
        return Intervals(low, high)

    def minimise(self, coef: Tensor) -> Minimum:
        """min coef . x over the region, row by row; coef is (rows, *shape).

        Exact for every p without a valid range, and with one. The value is that of the
        dual problem, so it bounds the minimum from below even where rounding moves the
        multiplier.
        """
        if self.p == inf:
            point = self._corner(coef)
            return Minimum(_dot(coef, point), point)
        if self.clipped:
            return self._minimise_clipped(coef)
        norm, step = self._step(coef)
        return Minimum(_dot(coef, self.centre) - self.radius * norm, self.centre - step)

    def lowest(self, coef: Tensor) -> Tensor:
        """(rows, *shape) the point of `minimise` alone."""
        if self.p == inf:
            return self._corner(coef)
        if self.clipped:
            return self._minimise_clipped(coef).point
        return self.centre - self._step(coef)[1]

    def least(self, coef: Tensor) -> Tensor:
        """(rows,) the value of `minimise` alone, which for plain boxes is cheaper."""
        if self.p != inf or self.clipped:
            return self.minimise(coef).value
        if len(self.centre) == 1:
            middle = coef.flatten(1) @ self.centre.flatten()
        else:
            middle = _dot(coef, self.centre)
        reach = coef if self.scale is None else coef * self.scale
        return middle - self.radius * reach.abs().flatten(1).sum(1)

    def gain(self, coef: Tensor) -> Tensor:
        """(rows,) how far coef . x can fall per unit of radius, the range left aside."""
        scaled = coef if self.scale is None else coef * self.scale
        return norms(self.balls(scaled), self.dual).sum(1)

    def descent(self, slope: Tensor, spread: Tensor) -> Tensor:
        """The steepest step of this radius against a gradient, the valid range ignored.

        For p = 1 a fraction `spread` (rows,) of all features, the steepest ones, share the step:
        moving one feature at a time would make an attack slow.
        """
        flat = self.balls(slope if self.scale is None else slope * self.scale)
        if self.p == inf:
            step = flat.sign()
        elif self.p == 1:
            size = flat.shape[-1]
            rank = (spread * size).long().clamp(1, size) - 1
            rank = rank[:, None, None].expand(*flat.shape[:2], 1)
            bar = flat.abs().sort(-1, descending=True).values.gather(-1, rank)
            step = flat.sign() * (flat.abs() >= bar) * (flat != 0)
            step = step / step.abs().sum(-1, keepdim=True).clamp(min=1)
        else:
            norm = norms(flat, self.dual)[..., None]
            share = flat.abs() / safe(norm)
            step = share ** (self.dual - 1) * flat.sign()
        step = -self._whole(step) * unsqueezed(self.radius, self.centre)
        return step if self.scale is None else step * self.scale

    def extremes(self, coef: Tensor) -> Intervals:
        """Least and greatest value of every form (K, *shape) for every sample: (N, K)."""
        if self.p != inf and not self.clipped and (self.scale is None or len(self.scale) == 1):
            middle = self.centre.flatten(1) @ coef.flatten(1).T
            reach = self.radius[:, None] * self.gain(coef)
            return Intervals(middle - reach, middle + reach)
        least, most = [], []
        for n in range(len(self.radius)):
            one = self.rows(slice(n, n + 1))
            least.append(one.minimise(coef).value)
            most.append(-one.minimise(-coef).value)
        return Intervals(torch.stack(least), torch.stack(most))

    def project(self, x: Tensor) -> Tensor:
        """A point of the region near x, projected to the balls and then to the range.

        The second step stays inside the balls because the range contains the centre.
        """
        step = x - self.centre
        if self.scale is not None:
            step = torch.where(self.scale > 0, step / self.scale, torch.zeros_like(step))
        step = self._whole(project(self.balls(step), self.radius[:, None], self.p))
        if self.scale is not None:
            step = step * self.scale
        x = self.centre + step
        if self.lower is not None and self.upper is not None:
            x = x.maximum(self.lower).minimum(self.upper)
        return x

    def distance(self, x: Tensor) -> Tensor:
        """||(x - centre) / scale||_p, the largest over the frames where each has a ball.

        Infinite where a fixed feature has moved.
        """
        step = x - self.centre
        if self.scale is not None:
            moved = torch.where(step == 0, torch.zeros_like(step), torch.full_like(step, inf))
            step = torch.where(self.scale > 0, step / self.scale, moved)
        return norms(self.balls(step), self.p).amax(1)

    def limit(self) -> Tensor:
        """(N,) the radius at which the ball covers the valid range; infinite without a range."""
        if self.lower is None or self.upper is None:
            return torch.full_like(self.radius, inf)
        far = (self.centre - self.lower).maximum(self.upper - self.centre)
        if self.scale is not None:
            far = torch.where(self.scale > 0, far / self.scale, torch.zeros_like(far))
        size = norms(self.balls(far.expand_as(self.centre)), self.p).amax(1)
        # A hair more, so that rounding leaves no corner of the range out, that of a proof included.
        return size * (1 + HAIR + 16 * torch.finfo(size.dtype).eps)

    # -- one case each ------------------------------------------------------------

    def _corner(self, coef: Tensor) -> Tensor:
        if self.scale is None and not self.clipped:
            reach = unsqueezed(self.radius, self.centre)
            return torch.addcmul(self.centre, coef.sign(), reach, value=-1)
        box = self.box()
        # Exact for weights 0 and 1; torch compares and selects far more slowly.
        return torch.lerp(box.upper, box.lower, coef.sign().relu_())

    def _step(self, coef: Tensor) -> tuple[Tensor, Tensor]:
        """(rows,) how far coef . x can fall per unit of radius, and minus the step there."""
        flat = self.balls(coef if self.scale is None else coef * self.scale)
        norm = norms(flat, self.dual)
        if self.p == 1:
            step = torch.zeros_like(flat)
            where = flat.abs().argmax(-1, keepdim=True)
            step.scatter_(-1, where, flat.gather(-1, where).sign())
        elif self.p == 2:
            step = flat / safe(norm)[..., None]
        else:
            share = flat.abs() / safe(norm)[..., None]
            step = share ** (self.dual - 1) * flat.sign()
        step = self._whole(step) * unsqueezed(self.radius, self.centre)
        return norm.sum(1), step if self.scale is None else step * self.scale

    def _minimise_clipped(self, coef: Tensor) -> Minimum:
        """Balls cut by the range. With g = |coef| scale and caps k_i, maximise g . d
        over 0 <= d <= k, ||d||_p <= radius: fill the features in the order in which
        they reach their caps."""
        assert self.lower is not None and self.upper is not None
        room = torch.where(coef > 0, self.centre - self.lower, self.upper - self.centre)
        scale = torch.ones_like(coef) if self.scale is None else self.scale.expand_as(coef)
        cap = self.balls(torch.where(scale > 0, room / scale, torch.zeros_like(room)))
        gain = self.balls(coef.abs() * scale)
        # In units of the radius: no cap above 1 matters, and powers stay in range.
        radius = self.radius[:, None, None]
        cap = torch.where(cap < radius, cap / radius, torch.ones_like(cap))
        moving = self._moving()
        if moving is None:
            amount, best = self._fill(gain, cap)
        else:
            where = moving.expand(len(coef), -1, -1)
            few, best = self._fill(gain.gather(-1, where), cap.gather(-1, where))
            amount = torch.zeros_like(gain).scatter(-1, where, few)
        step = self._whole(amount * radius) * scale * coef.sign()
        value = _dot(coef, self.centre) - best.sum(1) * self.radius
        return Minimum(value, self.centre - step)

    def _fill(self, gain: Tensor, cap: Tensor) -> tuple[Tensor, Tensor]:
        return fill_linear(gain, cap) if self.p == 1 else fill_power(gain, cap, self.p)

    def _moving(self) -> Tensor | None:
        """(rows or 1, balls, k) which features of a ball may move, where most of them may not;
        a ball with fewer than k has fixed ones among them."""
        if self.scale is None:
            return None
        free = self.balls(self.scale) > 0
        most = int(free.sum(-1).amax())
        if 2 * most > free.shape[-1]:
            return None
        return free.byte().argsort(dim=-1, descending=True, stable=True)[..., : max(1, most)]

    def _whole(self, balls: Tensor) -> Tensor:
        """(rows, balls, features of a ball) as (rows, *shape): `balls` undone."""
        shape = list(self.centre.shape[1:])
        if self.split is None:
            return balls.reshape(-1, *shape)
        frames = shape.pop(self.split - 1)
        return balls.reshape(-1, frames, *shape).movedim(1, self.split)


def _dot(coef: Tensor, point: Tensor) -> Tensor:
    return (coef * point).flatten(1).sum(1)
