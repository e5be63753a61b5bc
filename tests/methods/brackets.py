"""Brackets of branch and bound on small random ReLU networks, against MILP and exact rationals.

A radius is false if some point within it violates the property. Candidates are the nearest
counterexamples of mixed-integer programs (p = 1, inf), and the ends of descents (all p); their
distances and margins are then computed with exact rational numbers, so that no tolerance excuses
anything.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import inf
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import frown
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.methods import Branch, Exact
from frown.methods.branch import relu
from frown.methods.exact.distance import exact
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region

Point = list[Fraction]
FURTHER = (1.0, 1 + 1e-7, 1 + 1e-5, 1.001)


@dataclass
class Brackets:
    """Counts of what was tried, and every false radius in words."""

    networks: int = 0
    closed: int = 0  # to 1 %
    leaves: int = 0
    judged: int = 0  # points within a radius
    false: list[str] = field(default_factory=list)


def fractions(values: np.ndarray) -> Point:
    return [Fraction(float(v)) for v in values.ravel()]


def margin(net: nn.Sequential, x: Point, label: int) -> Fraction:
    """The exact lead of the label over the best other class."""
    for layer in net:
        if isinstance(layer, nn.Linear):
            rows = [fractions(row) for row in layer.weight.detach().numpy()]
            bias = fractions(layer.bias.detach().numpy())
            x = [
                sum((w * v for w, v in zip(row, x, strict=True)), b)
                for row, b in zip(rows, bias, strict=True)
            ]
        else:
            x = [max(v, Fraction(0)) for v in x]
    return x[label] - max(v for k, v in enumerate(x) if k != label)


def within(x: Point, centre: Point, p: float, radius: float) -> bool:
    """Whether a point lies within a radius, exactly."""
    step, most = [abs(a - b) for a, b in zip(x, centre, strict=True)], Fraction(radius)
    if p == inf:
        return max(step) <= most
    if p == 1:
        return sum(step) <= most
    return sum(s * s for s in step) <= most * most


def descended(
    net: nn.Sequential, x: torch.Tensor, label: int, p: float, radius: float, rng: torch.Generator
) -> list[np.ndarray]:
    """Points within a radius at which the label's lead is small."""
    start = torch.randn(32, len(x), generator=rng, dtype=torch.float64)
    double = deepcopy(net).double()
    region = Region(x[None], torch.tensor([radius]).double(), p)
    rows = torch.zeros(32, dtype=torch.long)
    here = region.rows(rows).project(x + radius * start)
    for k in range(40):
        here = here.detach().requires_grad_(True)
        y = double(here)
        others = y.clone()
        others[:, label] = -inf
        (y[:, label] - others.amax(1)).sum().backward()
        slope = here.grad
        assert slope is not None
        size = slope.norm(dim=1, keepdim=True).clamp(min=1e-30)
        here = region.rows(rows).project(here.detach() - radius * 0.5 * 0.9**k * slope / size)
    return list(here.detach().numpy())


def run(seed: int, count: int, stretch: float = 1.0) -> Brackets:
    """Judge the brackets of so many networks; radii `stretch` times as large as those found."""
    found = Brackets()
    for k in range(count):
        rng = np.random.default_rng([seed, k])
        torch.manual_seed(int(rng.integers(1 << 31)))
        widths = [int(rng.integers(2, 5)), *rng.integers(3, 9, rng.integers(1, 4)), 3]
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(int(a), int(b)), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
        with torch.no_grad():
            for weight in net.parameters():
                weight.mul_(float(rng.choice([1.0, 2.0, 3.0])))
        p = float(rng.choice([inf, 1.0, 2.0]))
        x = rng.normal(size=widths[0]).astype(np.float32)
        (label,) = net(torch.from_numpy(x)[None]).argmax(1).tolist()
        model = frown.load(net, torch.zeros(1, widths[0]))
        method = Branch(seconds=0.5, gap=0.002)
        # Ends of inner boxes have trees from the start in every other network.
        with patch.object(relu, "SOON", 0.0 if k % 2 else relu.SOON):
            ball = frown.Ball(x[None], norm=p)
            result = frown.certify(model, ball, np.array([label]), method=method)
        (row,), start = result.rows, torch.from_numpy(x).double()
        found.networks += 1
        found.leaves += row.leaves or 0
        found.closed += row.broken is not None and row.radius * 1.01 >= row.broken
        name = f"network {k} of seed {seed}, p = {p:g}, radius {row.radius!r}"
        if row.level != "rigorous" or not row.radius:
            continue
        generator, radius = torch.Generator().manual_seed(k), row.radius * stretch
        points = descended(net, start, label, p, radius, generator)
        nearest = [np.asarray(point) for point in result.counterexamples.values()]
        if p != 2:
            labels = torch.tensor([label])
            wins = LabelWins(labels, other_classes(labels, 3), 3, torch.float64)
            graph = model.graph.to(torch.float64)
            at = Region(start.view(1, *graph.input_shape), torch.zeros(1).double(), p)
            plan = Plan(graph)
            truth = exact(plan, at, wins, Exact(), 10.0, 0.0, Work().clock, broken=False)
            nearest += [] if truth.point is None else [truth.point.numpy()]
        # Solvers leave points short of a tie by their tolerances.
        points += [x + t * (point.ravel() - x) for point in nearest for t in FURTHER]
        centre = fractions(x)
        for point in points:
            own = fractions(point)
            if within(own, centre, p, radius):
                found.judged += 1
                if margin(net, own, label) <= 0:
                    found.false.append(f"{name}: violated at {point.ravel().tolist()}")
                    break
    return found
