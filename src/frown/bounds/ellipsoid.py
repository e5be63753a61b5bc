"""Ellipsoids around what a ball's centre gives: how far all neurons of a layer deviate together.

Write d = z - z^ for the deviation of a layer's inputs from those at the centre. Every nonlinearity
has secant slopes in [m - h, m + h], so f(z) - f(z^) = m d + e with |e| <= h |d|. Pulled back along
the slopes m, d = J_0 (x - x^) + sum_j J_j e_j, and each of these terms fills an ellipsoid. The sum
lies in that of the matrix sum_t F_t F_t^T / theta_t, for any shares theta_t > 0 of sum 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from frown.bounds.forms import Partial, descend, form_of
from frown.bounds.plan import Plan
from frown.bounds.rows import pieces
from frown.bounds.work import Work
from frown.graph.intervals import Intervals
from frown.problem.region import Region
from frown.relax.curvature import secants
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Relaxed

BLOCK, DEPTH = 4, 14  # of the Krylov spaces in which norms are estimated
SURE = 1.003  # times an estimate is taken for the norm


@dataclass(frozen=True)
class Ellipsoid:
    """The deviations d of some inputs of a node: d = factor v with ||v|| <= 1."""

    index: Tensor  # (U,) flat entries of the node's input, where f is not straight
    factor: Tensor  # (U, n)
    middle: Tensor  # (*shape) of secant slopes
    half: Tensor  # (size,) half of their range

    @cached_property
    def size(self) -> float:
        """The greatest sum of d^2."""
        return SURE * leading(self._short(None))

    @cached_property
    def rest(self) -> float:
        """The greatest sum of d^2 times half the range."""
        return SURE * leading(self._short(self.half[self.index]))

    def _short(self, weight: Tensor | None) -> Tensor:
        """A matrix whose largest eigenvalue is the greatest sum of weight d^2."""
        if self._square:
            root = None if weight is None else weight.sqrt()
            return self._gram if root is None else (self._gram * root) * root[:, None]
        left = self.factor.T if weight is None else self.factor.T * weight
        return left @ self.factor

    def spread(self, y: Tensor) -> Tensor:
        """(rows, U, k) factor factor^T y, in whichever order is cheaper."""
        rows, entries, k = y.shape
        flat = y.transpose(0, 1).reshape(entries, rows * k)
        found = self._gram @ flat if self._square else self.factor @ (self.factor.T @ flat)
        return found.view(entries, rows, k).transpose(0, 1)

    @property
    def _square(self) -> bool:
        return len(self.factor) <= 2 * self.factor.shape[1]

    @cached_property
    def _gram(self) -> Tensor:
        return self.factor @ self.factor.T


def joined(terms: Sequence[Tensor]) -> Tensor:
    """A factor F of all sums of terms F_t v_t, ||v_t|| <= 1: they are F v with ||v|| <= 1.

    Terms share the ball in proportion to their norms, roughly known; any shares of sum 1 will do.
    """
    if len(terms) == 1:
        return terms[0]
    sizes = [roughly(t) for t in terms]
    least = 1e-9 * sum(sizes) + torch.finfo(terms[0].dtype).tiny
    # Rounded, their sum is less than 1 still.
    total = sum(max(s, least) for s in sizes) * (1 + 1e-9)
    pairs = zip(terms, sizes, strict=True)
    return torch.cat([t * (total / max(s, least)) ** 0.5 for t, s in pairs], 1)


def roughly(factor: Tensor) -> float:
    """The norm of a matrix, give or take some percent."""
    if not min(factor.shape):
        return 0.0
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(factor), 4, generator=generator, dtype=torch.float64).to(factor)
    for _ in range(2):
        x = factor @ (factor.T @ (x / x.norm().clamp(min=torch.finfo(x.dtype).tiny)))
    return float(torch.linalg.matrix_norm((factor.T @ torch.linalg.qr(x)[0]), 2))


def leading(matrix: Tensor) -> float:
    """The largest eigenvalue of a symmetric matrix without negative ones, nearly."""
    n = len(matrix)
    if n <= BLOCK * DEPTH:
        return float(torch.linalg.eigvalsh(matrix)[-1].clamp(min=0)) if n else 0.0
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, BLOCK, generator=generator, dtype=torch.float64).to(matrix)
    basis = []
    for _ in range(DEPTH):
        x = torch.linalg.qr(matrix @ x)[0]
        basis.append(x)
    space = torch.linalg.qr(torch.cat(basis, 1))[0]
    return float(torch.linalg.eigvalsh(space.T @ (matrix @ space))[-1].clamp(min=0))


class Ellipsoids:
    """The ellipsoids of one sample's layers, as they become known."""

    def __init__(self, plan: Plan, region: Region, work: Work) -> None:
        assert len(region.radius) == 1
        self.plan, self.region, self.work = plan, region, work
        self.centre = plan.graph.values(region.centre)
        self.nodes: dict[int, Ellipsoid] = {}

    def at(self, node: int) -> Tensor:
        """(1, *shape) what a nonlinear node reads at the centre."""
        (source,) = self.plan.graph.nodes[node].inputs
        return self.centre[source]

    def add(self, node: int, relaxed: Relaxed) -> None:
        """Take in a nonlinear node, all nodes before it being known."""
        op, box, plan = relaxed.op, relaxed.box, self.plan
        assert isinstance(op, Elementwise)
        slopes = secants(op, _around(box, self.at(node)), self.at(node))
        half = slopes.radius.flatten()
        index = ((half > 0) | ~op.stable(box).flatten()).nonzero().flatten()
        (source,) = plan.graph.nodes[node].inputs
        terms = self._terms(source, index)
        self.nodes[node] = Ellipsoid(index, joined(terms), slopes.middle, half)

    def _terms(self, source: int, index: Tensor) -> list[Tensor]:
        """The factors of the deviations of some entries of a node, term by term."""
        graph = self.plan.graph
        size, shape = graph.nodes[source].size, graph.nodes[source].shape
        below = self.plan.below(source)
        found: list[list[Tensor]] = []
        for piece in pieces(self.plan, source, len(index), self.work):
            self.work.clock.check()
            own = index[piece]
            coef = torch.zeros(len(own), size, dtype=graph.dtype, device=graph.device)
            coef.scatter_(1, own[:, None], 1.0)
            parts: dict[int, Tensor] = {}

            def through(
                i: int, here: Tensor, parts: dict[int, Tensor] = parts
            ) -> tuple[None, Tensor]:
                node = self.nodes[i]
                weight = (node.half[node.index] * node.rest).sqrt()
                parts[i] = here.flatten(1)[:, node.index] * weight
                return None, here * node.middle

            start = Partial({source: coef.view(-1, *shape)}, coef.new_zeros(len(own)), source)
            form = form_of(self.plan, descend(self.plan, source, start, through))
            scale, radius = self.region.scale, self.region.radius
            input = (form.coef if scale is None else form.coef * scale).flatten(1) * radius
            found.append([input, *(parts[i] for i in below if i in parts)])
        if not found:
            return [torch.zeros(0, 1, dtype=graph.dtype, device=graph.device)]
        return [torch.cat(same) for same in zip(*found, strict=True)]


def _around(box: Intervals, centre: Tensor) -> Intervals:
    """The box, made to contain the centre where rounding left it out."""
    return Intervals(box.lower.minimum(centre), box.upper.maximum(centre))
