"""log sum_j e^(x_j) with proof: the planes of `relax.log_sum_exp`, every term of theirs enclosed.

Below, weights p >= 0 that sum to P, about 1, stand for q = p / P, which sum to 1 exactly:

    log sum e^x - s . x >= H(q) + (q - s) . x >= H(q) + (p - s) . x - |1 - 1/P| p . |x|,
    H(q) = log P - (sum p log p) / P.

Above, for every zeta, as e^x is convex,

    log sum e^x - s . x <= zeta - 1 + sum_j max (e^(x_j - zeta) - s_j x_j) over both ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax import LogSumExp
from frown.relax.proven.curves import exp_value
from frown.relax.proven.powers import log_value
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, above, below, gamma


@dataclass(frozen=True, slots=True)
class ProvenLogSumExp:
    """The operator over a box."""

    op: LogSumExp
    box: Intervals

    def rows(self, index: Tensor | slice) -> ProvenLogSumExp:
        return ProvenLogSumExp(self.op, self.box.rows(index))

    def image(self) -> Intervals:
        zero = torch.zeros_like(self.box.lower)
        return Intervals(self._under(zero), self._over(zero))

    def intercept(self, slope: Tensor, below: Tensor) -> Tensor:
        if bool(below.all()):
            return self._under(slope)
        if not bool(below.any()):
            return self._over(slope)
        return torch.where(below, self._under(slope), self._over(slope))

    def _under(self, slope: Tensor) -> Tensor:
        near, inside = self.op.weights(slope, self.box)
        return torch.fmax(self._tangent(near, slope), self._tangent(inside, slope))

    def _tangent(self, p: Tensor, slope: Tensor) -> Tensor:
        count = p.shape[-1]
        p = self.op.weigh(p.clamp(min=0))
        total = p.sum(-1)
        light, heavy = below(total, total * gamma(count)), above(total, total * gamma(count))
        terms = -p * torch.where(p > 0, log_value(p).upper, 0.0)
        spread = terms.abs().sum(-1) * (gamma(count) * LOOSE) + count * TINY
        mixed = below(terms.sum(-1), spread)  # at most -sum p log p
        entropy = below(mixed / torch.where(mixed > 0, heavy, light) + log_value(light).lower)
        entropy = below(entropy, (mixed.abs() / light) * (8 * UNIT))
        rest = p - slope
        low, high = rest * self.box.lower, rest * self.box.upper
        tilt = torch.minimum(low, high)
        size = torch.maximum(low.abs(), high.abs()).sum(-1)
        reach = self.box.lower.abs().maximum(self.box.upper.abs())
        off = above((heavy - 1).abs().maximum((1 - light).abs())) / light
        error = size * (gamma(count) + 8 * UNIT) + off * (p * reach).sum(-1) + 2 * count * TINY
        bound = below(entropy + tilt.sum(-1), (error + entropy.abs() * (4 * UNIT)) * LOOSE)
        ordinary = (light > 0.5) & (heavy < 2) & torch.isfinite(slope).all(-1)
        return torch.where(ordinary, bound, torch.nan)

    def _over(self, slope: Tensor) -> Tensor:
        count = slope.shape[-1]
        zeta = self.op.level(slope, self.box)
        best, size = None, torch.zeros_like(slope)
        for x in (self.box.lower, self.box.upper):
            lifted = self.op.weigh(exp_value(above(x - zeta[..., None])).upper)
            tilt = slope * x
            gain = lifted - tilt
            size = size.maximum(lifted.abs() + tilt.abs())
            best = gain if best is None else torch.maximum(best, gain)
        assert best is not None
        error = size.sum(-1) * (gamma(count) + 8 * UNIT) + zeta.abs() * (8 * UNIT)
        error = (error + 8 * UNIT) * LOOSE + 2 * count * TINY
        bound = above(zeta - 1 + best.sum(-1), error)
        single = self.op.single()
        if single is not None:
            bound = torch.where(single.any(-1), torch.minimum(bound, self._alone(slope)), bound)
        return torch.where(torch.isfinite(slope).all(-1), bound, torch.nan)

    def _alone(self, slope: Tensor) -> Tensor:
        """Above where one entry is all there is: the sum is that entry."""
        single = self.op.single()
        assert single is not None
        rest = single.to(slope) - slope
        low, high = rest * self.box.lower, rest * self.box.upper
        size = torch.maximum(low.abs(), high.abs()).sum(-1)
        count = slope.shape[-1]
        error = size * ((gamma(count) + 8 * UNIT) * LOOSE) + 2 * count * TINY
        return above(torch.maximum(low, high).sum(-1), error)
