"""Ellipsoids around what a ball's centre gives: how far all neurons of a layer deviate together.

Write d = z - z^ for the deviation of a layer's inputs from those at the centre. Every nonlinearity
has secant slopes in [m - h, m + h], so f(z) - f(z^) = m d + e with |e| <= h |d|. Pulled back along
the slopes m, d = J_0 (x - x^) + sum_j J_j e_j, and each of these terms fills an ellipsoid. The sum
lies in that of the matrix sum_t F_t F_t^T / theta_t, for any shares theta_t > 0 of sum 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from frown.bounds.forms import Partial, descend, form_of
from frown.bounds.plan import Plan
from frown.bounds.rows import pieces
from frown.bounds.work import Work
from frown.graph.box import Box
from frown.problem.region import Region
from frown.relax.curvature import bends, secants
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import Relaxed

BLOCK, DEPTH = 8, 5  # of the Krylov spaces in which norms are estimated
SURE = 1.002  # times an estimate is taken for the norm


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
        return largest(self.factor)

    @cached_property
    def rest(self) -> float:
        """The greatest sum of d^2 times half the range."""
        return largest(self.factor * self.half[self.index].sqrt()[:, None])

    @cached_property
    def gram(self) -> Tensor:
        """(U, U) factor factor^T."""
        return self.factor @ self.factor.T


def largest(factor: Tensor) -> float:
    """The largest eigenvalue of factor factor^T, nearly; rather more than less."""
    count = min(factor.shape)
    if count == 0:
        return 0.0
    if count <= BLOCK * DEPTH:
        gram = factor @ factor.T if len(factor) == count else factor.T @ factor
        return float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0)) * SURE
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(factor), BLOCK, generator=generator, dtype=torch.float64).to(factor)
    basis = []
    for _ in range(DEPTH):
        x = torch.linalg.qr(factor @ (factor.T @ x))[0]
        basis.append(x)
    space = factor.T @ torch.linalg.qr(torch.cat(basis, 1))[0]
    return float(torch.linalg.eigvalsh(space.T @ space)[-1].clamp(min=0)) * SURE


def may_bend(plan: Plan, region: Region) -> bool:
    """True if rows may bend: over one l_2 ball for each sample, through functions of one
    variable whose secant slopes are known."""
    if region.p != 2 or region.split is not None or not plan.nonlinear:
        return False
    return all(bends(plan.relaxation(i)) for i in plan.nonlinear)


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
        sizes = [largest(t) ** 0.5 for t in terms]
        total = sum(sizes)
        kept = [t * (total / s) ** 0.5 for t, s in zip(terms, sizes, strict=True) if s > 0]
        factor = torch.cat(kept, 1) if kept else terms[0]
        self.nodes[node] = Ellipsoid(index, factor, slopes.middle, half)

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


def _around(box: Box, centre: Tensor) -> Box:
    """The box, made to contain the centre where rounding left it out."""
    return Box(box.lower.minimum(centre), box.upper.maximum(centre))
