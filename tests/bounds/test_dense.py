"""Rows of dense ReLU networks by matrices: against exact minima, sampling, and the walk of all
other networks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from certification.trees import case_rows, kink_tree, line_case, replayed
from frown.bounds.dense import DenseRows, Held, dense_runs
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.tree import Tree
from frown.bounds.work import Work
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region
from frown.relax import Tanh
from frown.relax.piecewise import Relu
from frown.relax.relaxation import LeastArea


@pytest.mark.parametrize("seed", range(60))
def test_exact_minima_of_networks_with_one_input_are_not_exceeded(
    seed: int, tmp_path: Path
) -> None:
    """Also with huge and tiny weights, and sums that cancel to nothing."""
    case, truth = line_case(seed, tmp_path)
    rng = np.random.default_rng([seed, 9])
    case = replace(case, tree=kink_tree(case.plan, 1, rng, 5))
    assert dense_runs(case.plan) is not None
    margin = float(replayed(case).margins.min())
    assert not np.isfinite(margin) or Fraction(margin) <= truth


def scaled(seed: int) -> Graph:
    """A network that normalises its input, and has a factor between two matrices."""
    w, b = zoo.Weights.seeded(seed), Builder()
    x = b.scale(b.input("x", (1, 4)), np.array([2.0, 1.0, 0.5, 1.0]), np.full(4, 0.1))
    x = b.add(Relu(), b.linear(x, w(5, 4), w(5)))
    x = b.add(Relu(), b.scale(b.linear(x, w(6, 5), w(6)), np.full(6, 1.5), np.full(6, -0.2)))
    return b.graph(b.linear(x, w(3, 6), w(3)))


def asked(graph: Graph, seed: int, p: float, form: str) -> tuple[Replay, LabelWins, Tree]:
    rng = np.random.default_rng(seed)
    centre = torch.from_numpy(rng.normal(size=(1, *graph.input_shape)))
    radius = torch.tensor([1.2], dtype=torch.float64)
    region = Region(centre, radius, p)
    if form == "clipped":
        region = Region(centre, radius, p, None, centre - 0.5, centre + 0.9)
    elif form == "scaled":
        scale = torch.linspace(0.2, 1.5, centre.numel()).double().view_as(centre)
        region = Region(centre, radius, p, scale)
    label = graph.apply(centre).flatten(1).argmax(1)
    wins = LabelWins(label, other_classes(label, 3), 3, torch.float64)
    plan = Plan(graph)
    replay = Replay(plan, region, ByRule(LeastArea()), Work())
    replay.layers()
    return replay, wins, kink_tree(plan, 2, rng, 5)


def arriving(plan: Plan, x: Tensor) -> Tensor:
    values = plan.graph.values(x)
    return torch.cat([values[plan.graph.nodes[i].inputs[0]].flatten(1) for i in plan.nonlinear], 1)


@pytest.mark.parametrize("p", [1, 2, 3, inf])
@pytest.mark.parametrize("form", ["plain", "clipped", "scaled"])
@pytest.mark.parametrize("kind", ["plain", "factors"])
def test_rows_are_those_of_the_walk_and_no_true_point_is_below(
    kind: str, p: float, form: str
) -> None:
    reached = 0
    with torch.inference_mode():
        for seed in range(3):
            graph = scaled(seed) if kind == "factors" else zoo.mlp(Relu(), (4, 6, 6, 5, 3), seed)
            graph = graph.to(torch.float64, "cpu")
            root, wanted, tree = asked(graph, seed, p, form)
            runs = dense_runs(root.plan)
            assert runs is not None
            rows, every = tree.literals, torch.arange(len(tree.literals.node))
            dense = DenseRows(root, 0, runs)
            (mine,) = case_rows(root, tree, wanted).bounded(every, dense)
            (walked,) = case_rows(root, tree, wanted).bounded(every, None)
            assert torch.equal(mine.crossed, walked.crossed)
            good = ~mine.crossed
            assert bool(good.any())
            size = 1e-9 * (1 + walked.bound.abs())
            assert bool(((mine.bound - walked.bound).abs() <= size)[good].all())
            assert torch.equal(mine.along.slopes[good], walked.along.slopes[good])
            # Points that satisfy the cuts on the way to a leaf.
            generator = torch.Generator().manual_seed(seed)
            shape = (600, *graph.input_shape)
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            x = root.region.rows(torch.zeros(600, dtype=torch.long)).project(
                root.region.centre + noise
            )
            z = arriving(root.plan, x)
            value = wanted.rows(torch.zeros(600, dtype=torch.long)).literals(
                graph.apply(x).flatten(1)
            )
            place, node, side = tree.cuts(rows.node)
            starts = torch.tensor([part.start for part in dense.parts])
            slot = starts[tree.site[node]] + tree.neuron[node]
            inside = torch.ones(len(rows.node), 600, dtype=torch.bool)
            for k, s, up in zip(place.tolist(), slot.tolist(), side.tolist(), strict=True):
                inside[k] &= (z[:, s] >= 0) if up else (z[:, s] <= 0)
            least = torch.where(inside, value.T[rows.literal], inf).amin(1)
            reached += int(inside.any(1).sum())
            assert bool((mine.bound <= least).all())
            assert not bool(inside[mine.crossed].any())
    assert reached >= 6


def test_boxes_that_are_not_numbers_prove_nothing() -> None:
    root, wanted, tree = asked(zoo.mlp(Relu(), (4, 6, 3)).to(torch.float64, "cpu"), 0, inf, "plain")
    source = root.plan.sources[root.plan.nonlinear[0]]
    root.values[source].lower[0, 0, 2] = torch.nan
    runs = dense_runs(root.plan)
    assert runs is not None
    every = torch.arange(len(tree.literals.node))
    dense = DenseRows(root, 0, runs)
    (found,) = case_rows(root, tree, wanted).bounded(every, dense)
    assert bool((found.bound == -inf).all())


def test_multipliers_without_a_cut_take_the_other_way() -> None:
    """They cost something, which rows by matrices know nothing of."""
    root, wanted, tree = asked(zoo.mlp(Relu(), (4, 6, 3)).to(torch.float64, "cpu"), 1, inf, "plain")
    rows = tree.literals
    wrong = replace(rows.multipliers, value=-rows.multipliers.value)
    spoilt = replace(tree, literals=replace(rows, multipliers=wrong))
    every = torch.arange(len(rows.node))
    dense = case_rows(root, spoilt, wanted).dense()
    assert dense is not None and bool(wrong.value.any())
    (found,) = case_rows(root, spoilt, wanted).bounded(every, dense)
    (walked,) = case_rows(root, spoilt, wanted).bounded(every, None)
    assert torch.equal(found.bound, walked.bound)


def test_other_networks_have_no_such_rows() -> None:
    assert dense_runs(Plan(zoo.mlp(Tanh(), (2, 3, 2)))) is None
    b = Builder()
    x = b.input("x", (2, 3))  # a matrix along the last axis, for two positions
    w = zoo.Weights.seeded(0)
    y = b.linear(b.add(Relu(), b.linear(x, w(4, 3), w(4))), w(2, 4), w(2))
    assert dense_runs(Plan(b.graph(y))) is None


def test_slopes_count_where_a_line_below_has_a_choice() -> None:
    root, wanted, tree = asked(
        zoo.mlp(Relu(), (4, 6, 6, 3)).to(torch.float64, "cpu"), 2, 2, "plain"
    )
    runs = dense_runs(root.plan)
    assert runs is not None
    dense, slots = DenseRows(root, 0, runs), tree.literals.slopes.shape[1]
    none = torch.zeros(slots, 1, dtype=torch.float64)
    low, used = dense.bound(wanted.pick(slice(0, 1)), none[0], Held(none, none, none))
    high, _ = dense.bound(wanted.pick(slice(0, 1)), none[0], Held(none, none + 1, none))
    assert bool(used.any()) and not torch.equal(low, high)
    assert not bool(used[(dense.lower >= 0) | (dense.upper <= 0)].any())
