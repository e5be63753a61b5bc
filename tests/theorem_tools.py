"""What the tests of the theorems build on: self-consistent lines, and the program as it is.

Nothing here uses interval arithmetic, so l <= z <= u follows from the lines alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from hypothesis import assume, currently_in_test_context
from numpy.typing import NDArray
from torch import Tensor

import zoo
from frown.bounds.forms import LinearForm, Sided, begin, descend, form_of
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.rows import one_hot
from frown.bounds.work import Work
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.methods.crown import crown_rows
from frown.methods.lp.bounds import dual_lines
from frown.methods.lp.program import Program
from frown.methods.lp.solvers import Basis, Constraints, minimise
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax import Relu
from frown.relax.relaxation import LeastArea, Lines, Relaxation, Relaxed, Slopes, relax
from functions import ELEMENTWISE

Array = NDArray[np.float64]
RelaxedNodes = dict[int, Relaxed]
CROWN = LeastArea()
NORMS = (1.0, 2.0, inf)  # those that linear and cone programs take
TOLERANCE = {1.0: 1e-7, 2.0: 1e-5, inf: 1e-7}  # of the solvers, per unit
FEASIBLE = 1e-7  # HiGHS's tolerances of feasibility, primal and dual


# -- networks ---------------------------------------------------------------------------


def small(name: str, seed: int) -> Graph:
    """A random network of this activation, or with max pooling."""
    if name == "max":
        return (zoo.conv_max, zoo.max_first, zoo.max_on_input)[seed % 3](seed)
    widths = ((3, 4, 4, 2), (3, 5, 3, 4, 2), (2, 6, 2), (4, 3, 3, 3, 3, 2))[seed % 4]
    return zoo.mlp(ELEMENTWISE[name], widths, seed)


def chain(*layers: tuple[list[list[float]], list[float]], op: Relaxation | None = None) -> Graph:
    """A perceptron with the weights and biases written out."""
    b = Builder()
    x = b.input("x", (1, len(layers[0][0][0])))
    for i, (weight, bias) in enumerate(layers):
        if i:
            x = b.add(op or Relu(), x)
        w, c = (torch.tensor(t, dtype=torch.float64) for t in (weight, bias))
        x = b.linear(x, w, c)
    return b.graph(x)


def unit_ball(graph: Graph, p: float = inf) -> Region:
    """||x||_p <= 1."""
    one = torch.ones(1, dtype=torch.float64)
    return Region(torch.zeros(1, *graph.input_shape, dtype=torch.float64), one, p)


def ball(graph: Graph, p: float, seed: int) -> Region:
    """One region; its size, valid range and scale change with the seed."""
    radius = (0.1, 0.3, 0.8)[seed % 3]
    return zoo.region(graph, p, radius, 1, clipped=seed % 4 == 1, scaled=seed % 5 < 2, seed=seed)


def conditions(graph: Graph) -> LinearProperty:
    """Both sides of every output, differences to the first, and a skew combination."""
    k = graph.output_size
    eye = torch.eye(k, dtype=torch.float64)
    skew = torch.linspace(-1, 2, k, dtype=torch.float64)[None]
    return conjunction(torch.cat([eye, -eye, eye[:1] - eye[1:], skew])[None])


def rows_of(graph: Graph) -> Tensor:
    """The conditions as rows on the output."""
    return conditions(graph).coef[0].view(-1, *graph.nodes[graph.output].shape)


# -- CROWN with any lines ---------------------------------------------------------------


def pull_back(
    plan: Plan, target: int, coef: Tensor, choose: Callable[[int, Tensor], Sided]
) -> LinearForm:
    """Bound coef . target below by a form at the input.

    `choose(node, coefficients of its output)` gives the lines there; coefficients >= 0
    take a line below, others one above.
    """

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        lines = choose(i, here)
        gain = (here * lines.intercept).flatten(1).sum(1)
        return gain, plan.relaxation(i).expand(here) * lines.slope

    return form_of(plan, descend(plan, target, begin(plan, target, coef), through))


def closed_form(
    plan: Plan, region: Region, target: int, coef: Tensor, relaxed: RelaxedNodes
) -> Tensor:
    """CROWN's bounds of coef . target with these lines, one sample."""
    sample = torch.zeros(len(coef), dtype=torch.long)
    (part,) = parts(plan, target, 0).parts
    return crown_rows(part, region, coef.__getitem__, sample, sample, relaxed, Work())


def closed_box(plan: Plan, region: Region, target: int, relaxed: RelaxedNodes) -> Intervals:
    """CROWN's bounds of every entry of a node."""
    node = plan.graph.nodes[target]
    ones = torch.ones(node.size, dtype=torch.float64)
    coef = one_hot(torch.arange(node.size), ones, node.size, node.shape)
    low = closed_form(plan, region, target, coef, relaxed)
    high = -closed_form(plan, region, target, -coef, relaxed)
    return Intervals(low.view(1, *node.shape), high.maximum(low).view(1, *node.shape))


Rule = Callable[[int, Relaxation, Intervals], Relaxed]  # (node, its operator, the box of its input)


def crowns_rule(node: int, op: Relaxation, box: Intervals) -> Relaxed:
    return relax(op, box, CROWN)


def self_consistent(plan: Plan, region: Region, rule: Rule = crowns_rule) -> RelaxedNodes:
    """One set of lines for all neurons; every box is CROWN's own with these lines."""
    relaxed: RelaxedNodes = {}
    for i in plan.nonlinear:
        box = plan.carry(i, closed_box(plan, region, plan.sources[i], relaxed))
        relaxed[i] = rule(i, plan.relaxation(i), box)
    return relaxed


def with_lines(old: Relaxed, slopes: Slopes, lower: Tensor, upper: Tensor) -> Relaxed:
    return replace(old, lines=Lines(slopes, lower, upper))


def of_slopes(old: Relaxed, slopes: Slopes) -> Relaxed:
    """The node with the tightest lines of these slopes."""
    below = torch.ones_like(old.lines.lower, dtype=torch.bool)
    lower = old.op.line(slopes.lower, below, old.anchors).intercept
    upper = old.op.line(slopes.upper, ~below, old.anchors).intercept
    return with_lines(old, slopes, lower, upper)


def random_slopes(old: Relaxed, generator: torch.Generator, beyond: float = 0.0) -> Slopes:
    """Places in the ranges of the tightest lines, or up to `beyond` widths outside."""

    def place(side: Intervals, below: bool) -> Tensor:
        at = torch.rand(side.lower.shape, generator=generator, dtype=torch.float64)
        at = at * (1 + 2 * beyond) - beyond
        slope = torch.lerp(side.lower, side.upper, at)
        mask = torch.full_like(old.lines.lower, below, dtype=torch.bool)
        inside = None if beyond else old.op.project(slope, mask)
        return slope if inside is None else inside

    return Slopes(place(old.range.lower, True), place(old.range.upper, False))


# -- the program ------------------------------------------------------------------------


def program_of(
    plan: Plan, region: Region, target: int, relaxed: RelaxedNodes, tangents: int
) -> Program:
    program = Program(plan, region)
    program.add_input()
    for i in plan.below(target):
        program.add(i, relaxed[i], tangents)
    return program


@dataclass(frozen=True)
class Optimum:
    """What the solver itself says, and the proof made of its duals."""

    value: Tensor  # (R,)
    proved: Tensor  # (R,)
    dual: dict[int, Tensor]
    off: Tensor  # (R,) how far the value may be from the optimum, by the solver's tolerances


def solve(
    plan: Plan,
    region: Region,
    target: int,
    coef: Tensor,
    relaxed: RelaxedNodes,
    tangents: int,
    boxes: bool = True,
) -> Optimum:
    """The program's optimum for every row; without `boxes`, l <= z <= u is left out."""
    program = program_of(plan, region, target, relaxed, tangents)
    problem = program.constraints()
    if not boxes:
        problem = without_boxes(problem, program)
    costs, const = program.objective(target, coef.flatten(1).numpy())
    found, _ = minimise(problem, costs, [Basis()] * len(costs))
    if currently_in_test_context():  # of drawn networks, those that the solver does not give up on
        assume(bool(found.solved.all()))
    assert found.solved.all()
    dual = {}
    for i in plan.below(target):
        layer = program.layers[i]
        node = plan.graph.nodes[plan.graph.nodes[i].inputs[0]]
        y = np.zeros((len(coef), node.size))
        y[:, layer.z] = found.rows[:, layer.z_rows]
        dual[i] = torch.from_numpy(y).view(-1, *node.shape)
    proved = dual_lines(plan, region, target, coef, relaxed, dual)[0]
    value = torch.from_numpy(found.optimum + const)
    off = TOLERANCE[2.0] * size_of(value)
    if not problem.cones:
        off = torch.from_numpy(promised(problem, costs, found.rows)) + 1e-10 * size_of(value)
    return Optimum(value, proved, dual, off)


def promised(problem: Constraints, costs: Array, duals: Array) -> Array:
    """(R,) how far an optimum of HiGHS may be from the true one.

    It lets rows and bounds of columns be violated by FEASIBLE, which moves the optimum by that
    times their duals, and reduced costs have the wrong sign by as much, which moves it by that
    times how far columns can go.
    """
    reduced, width = costs - duals @ problem.matrix.toarray(), _widths(problem)
    prices = np.abs(duals).sum(1) + np.abs(reduced[:, np.isfinite(problem.most)]).sum(1)
    found: Array = FEASIBLE * (prices + width.sum())
    return found


def _widths(problem: Constraints) -> Array:
    """How far columns can go: between their bounds or, where they have none, between the lines
    that hold them to the columns before."""
    least, most = problem.least.copy(), problem.most.copy()
    for row, low, high in zip(problem.matrix.toarray(), problem.low, problem.high, strict=True):
        *before, last = np.flatnonzero(row)
        if np.isinf(problem.most[last]):
            ends = np.sort(row[before] * np.stack([least[before], most[before]]), 0).sum(1)
            least[last] = max(least[last], low - ends[1])
            most[last] = min(most[last], high - ends[0])
    width: Array = most - least
    return width


def without_boxes(problem: Constraints, program: Program) -> Constraints:
    least, most = problem.least.copy(), problem.most.copy()
    for layer in program.layers.values():
        least[layer.z_columns], most[layer.z_columns] = -inf, inf
    return replace(problem, least=least, most=most)


# -- the truth --------------------------------------------------------------------------


def reached(graph: Graph, region: Region, coef: Tensor, count: int = 300) -> Tensor:
    """(R,) the least values of coef . output on points of the region."""
    points = zoo.samples(region, count)[:, 0]
    return (graph.apply(points).flatten(1) @ coef.flatten(1).T).amin(0)


def size_of(*bounds: Tensor) -> Tensor:
    """What a tolerance is relative to."""
    return 1 + torch.stack([b.abs() for b in bounds]).amax(0)
