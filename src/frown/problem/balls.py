"""l_p balls along the last axis of a tensor: norms, linear forms over capped balls, projections."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor


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
