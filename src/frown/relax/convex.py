"""Softplus, the exponential units and hard swish: a convex piece beside straight ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import bisect


@dataclass(frozen=True, slots=True)
class Softplus(Elementwise):
    """log(1 + e^z). Convex, f' is the sigmoid."""

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.logaddexp(xs[0], torch.zeros_like(xs[0]))

    def derivative(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        tiny = torch.finfo(slope.dtype).tiny
        inside = torch.log(slope.clamp(min=tiny)) - torch.log((1 - slope).clamp(min=tiny))
        return (box.clip(inside),)


@dataclass(frozen=True, slots=True)
class Elu(Elementwise):
    """scale * z above 0, scale * alpha * (e^z - 1) below. The kink is concave for alpha > 1."""

    alpha: float = 1.0
    scale: float = 1.0

    def apply(self, *xs: Tensor) -> Tensor:
        z = xs[0]
        bend = torch.expm1(z.clamp(max=0)) * (self.scale * self.alpha)
        return torch.where(z > 0, z * self.scale, bend)

    def derivative(self, z: Tensor) -> Tensor:
        bend = torch.exp(z.clamp(max=0)) * (self.scale * self.alpha)
        return torch.where(z > 0, torch.full_like(z, self.scale), bend)

    def kinks(self) -> tuple[float | Tensor, ...]:
        return (0.0,)

    def end_slopes(self, box: Intervals) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        straight = torch.full_like(box.lower, self.scale)
        right = torch.where(box.lower >= 0, straight, self.derivative(box.lower))
        return (right,), (self.derivative(box.upper),)

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        if self.alpha == 0:
            return ()  # a ReLU: the kink says it all
        tiny = torch.finfo(slope.dtype).tiny
        inside = torch.log((slope / (self.scale * self.alpha)).clamp(min=tiny)).clamp(max=0)
        return (box.clip(inside),)

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """Bisection on the exponential piece; away from 0 only a concave kink needs it."""
        if self.alpha <= 1:
            return ()
        left, right = box.lower.clamp(max=0), box.upper.clamp(max=0)
        start, steep = self.apply(end), self.scale * self.alpha

        def beyond(p: Tensor) -> Tensor:
            # f'(p)(p - c) - (f(p) - f(c)) falls with p for p < c on a convex piece.
            return torch.exp(p) * steep * (p - end) - (self.apply(p) - start) <= 0

        return (box.clip(bisect(left, right, beyond, 40)[1]),)


@dataclass(frozen=True, slots=True)
class HardSwish(Elementwise):
    """z min(max(z + 3, 0), 6) / 6: z (z + 3) / 6 on [-3, 3], with concave kinks at its ends."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0] * ((xs[0] + 3).clamp(0, 6) / 6)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.where(z.abs() < 3, (2 * z + 3) / 6, (z > 0).to(z))

    def kinks(self) -> tuple[float | Tensor, ...]:
        return (-3.0, 3.0)

    def end_slopes(self, box: Intervals) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        right = torch.where(box.lower == -3, -0.5, self.derivative(box.lower))
        left = torch.where(box.upper == 3, 1.5, self.derivative(box.upper))
        return (right,), (left,)

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        return (box.clip((3 * slope - 1.5).clamp(-3, 3)),)

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """The parabola's tangent at p meets (c, f(c)) if (p - c)^2 = c (c + 3) - 6 f(c)."""
        rest = torch.where(end > 0, end - 3, end + 3)  # c (c + 3) - 6 f(c) = c rest off (-3, 3)
        run = (end * rest).clamp(min=0).sqrt()
        return (box.clip((end - end.sign() * run).clamp(-3, 3)),)


def selu() -> Elu:
    """The self-normalising unit with its two constants."""
    return Elu(1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
