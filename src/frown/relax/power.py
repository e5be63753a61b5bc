"""Exponential, logarithm and powers: convex or concave on each side of 0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from frown.graph import Intervals
from frown.relax.elementwise import Elementwise


@dataclass(frozen=True, slots=True)
class Exp(Elementwise):
    """e^z. Convex."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].exp()

    def derivative(self, z: Tensor) -> Tensor:
        return z.exp()

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        return (box.clip(slope.clamp(min=0).log()),)


@dataclass(frozen=True, slots=True)
class Log(Elementwise):
    """log z for z > 0. Concave."""

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].log()

    def derivative(self, z: Tensor) -> Tensor:
        return 1 / z

    def defined(self, box: Intervals) -> Tensor | None:
        return box.lower > 0

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        return (box.clip(1 / slope.clamp(min=0)),)


@dataclass(frozen=True, slots=True)
class Power(Elementwise):
    """z^p for a number p other than 0 and 1.

    Everywhere for p = 2, 3, ..., off 0 for p = -1, -2, ..., and else for z >= 0 (p > 0) or
    z > 0 (p < 0). For odd p > 0 concave below 0 and convex above.
    """

    exponent: float

    @property
    def whole(self) -> bool:
        return self.exponent == int(self.exponent)

    @property
    def odd(self) -> bool:
        return self.exponent % 2 == 1

    def apply(self, *xs: Tensor) -> Tensor:
        return xs[0].pow(self.exponent)

    def derivative(self, z: Tensor) -> Tensor:
        """A root is vertical at 0: there the slope just beside it."""
        if 0 < self.exponent < 1:
            z = torch.where(z == 0, torch.finfo(z.dtype).tiny, z)
        return self.exponent * z.pow(self.exponent - 1)

    def defined(self, box: Intervals) -> Tensor | None:
        if self.whole:
            return None if self.exponent > 0 else (box.lower > 0) | (box.upper < 0)
        return box.lower >= 0 if self.exponent > 0 else box.lower > 0

    def floor(self, dtype: torch.dtype) -> float:
        """Near 0 a root is so steep that subnormal numbers are too coarse for its points."""
        if not 0 < self.exponent < 1:
            return 0.0
        numbers = torch.finfo(dtype)
        return float(numbers.tiny**self.exponent / numbers.eps)

    def end_slopes(self, box: Intervals) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        first = box.lower
        if 0 < self.exponent < 1:  # steeper lines help little, and a search would be lost there
            first = torch.where(first == 0, 1e-6 * box.upper, first)
        return (self.derivative(first),), (self.derivative(box.upper),)

    def critical(self, slope: Tensor, below: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        """p z^(p-1) = s: one point on each side of 0 at the most, mirrored by parity."""
        rising = slope if self.exponent > 0 else -slope  # of the sign of z^(p-1)
        if self.whole and not self.odd:
            if self.exponent < 0:  # rising left of 0, falling right of it
                left = box.upper < 0
                size = self._solve(torch.where(left, slope, -slope))
                return (box.clip(torch.where(left, -size, size)),)
            size = self._solve(slope.abs())
            return (box.clip(torch.where(slope < 0, -size, size)),)
        size = self._solve(rising)
        if not self.whole:
            return (box.clip(size),)
        left = ~below if self.exponent > 0 else box.upper < 0
        return (box.clip(torch.where(left, -size, size)),)

    def _solve(self, slope: Tensor) -> Tensor:
        """The z >= 0 with |p| z^(p-1) = slope; an end of that range for slopes below 0.

        In double precision and without the quotient slope / p: subnormal numbers are coarse.
        """
        degree = 1 / (self.exponent - 1)
        factor = float(abs(self.exponent) ** -degree)
        steep = slope.double().clamp(min=0).abs()  # (-0)^(-1/2) would be -inf
        return (steep.pow(degree) * factor).to(slope.dtype)

    def tangents(self, end: Tensor, box: Intervals) -> tuple[Tensor, ...]:
        if self.odd and self.exponent > 0:
            return (box.clip(-end * _tangent_ratio(self.exponent)),)
        return ()


@lru_cache(maxsize=64)
def _tangent_ratio(p: float) -> float:
    """d / a where the tangent of z^p, p odd, at d > 0 passes through (-a, -a^p).

    p d^(p-1) (d + a) = d^p + a^p, so r = d / a solves (p - 1) r^p + p r^(p-1) = 1.
    """
    low, high = 0.0, 1.0
    for _ in range(80):
        r = (low + high) / 2
        low, high = (low, r) if (p - 1) * r**p + p * r ** (p - 1) > 1 else (r, high)
    return high
