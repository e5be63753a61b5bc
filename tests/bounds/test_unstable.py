"""Rows of ReLU graphs by the matrices of unstable neurons: against sampling, and the walk of all
other networks."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch

import zoo
from certification.trees import case_rows, kink_tree
from frown.bounds import cases
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.tree import Tree
from frown.bounds.unstable import UnstableRows, bands
from frown.bounds.work import Work
from frown.graph.affine import Conv, Reshape
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region
from frown.relax.piecewise import Relu
from frown.relax.relaxation import LeastArea


def images(seed: int, around: bool) -> Graph:
    """Two convolutions, one with a way around it if asked for, and a dense layer."""
    w, b = zoo.Weights.seeded(seed), Builder()
    x = b.input("x", (2, 6, 6))
    first = Conv(w(3, 2, 3, 3), w(3), (6, 6), (2, 2), (1, 1), (1, 1), 1)
    h = b.add(Relu(), b.add(first, b.scale(x, np.full((2, 6, 6), 1.3), np.full((2, 6, 6), 0.1))))
    second = Conv(w(3, 3, 3, 3), w(3), (3, 3), (1, 1), (1, 1), (1, 1), 1)
    g = b.add(second, h)
    g = b.add(Relu(), b.combine(h, g, 1.0) if around else g)
    last = b.linear(b.add(Reshape((3, 3, 3), (27,)), g), w(3, 27), w(3))
    return b.graph(last).to(torch.float64, "cpu")


def asked(graph: Graph, seed: int, p: float, form: str) -> tuple[Replay, LabelWins, Tree]:
    rng = np.random.default_rng(seed)
    centre = torch.from_numpy(rng.normal(size=(1, *graph.input_shape)))
    radius = torch.tensor([0.25 if p == inf else 0.8], dtype=torch.float64)
    region = Region(centre, radius, p)
    if form == "clipped":
        region = Region(centre, radius, p, None, centre - 0.1, centre + 0.2)
    elif form == "scaled":
        scale = torch.linspace(0.2, 1.5, centre.numel()).double().view_as(centre)
        region = Region(centre, radius, p, scale)
    label = graph.apply(centre).flatten(1).argmax(1)
    wins = LabelWins(label, other_classes(label, 3), 3, torch.float64)
    replay = Replay(Plan(graph), region, ByRule(LeastArea()), Work())
    replay.layers()
    return replay, wins, kink_tree(replay.plan, 2, rng, 7)


def matrices(
    root: Replay, tree: Tree, wanted: LabelWins, monkeypatch: pytest.MonkeyPatch
) -> UnstableRows:
    monkeypatch.setattr(cases, "FEW", 0)
    found = case_rows(root, tree, wanted).dense()
    assert isinstance(found, UnstableRows)
    return found


@pytest.mark.parametrize("p", [1, 2, 3, inf])
@pytest.mark.parametrize("form", ["plain", "clipped", "scaled"])
@pytest.mark.parametrize("around", [False, True])
def test_rows_are_those_of_the_walk_and_no_true_point_is_below(
    around: bool, p: float, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = 0
    with torch.inference_mode():
        for seed in range(2):
            graph = images(seed, around)
            root, wanted, tree = asked(graph, seed, p, form)
            rows, every = tree.literals, torch.arange(len(tree.literals.node))
            dense = matrices(root, tree, wanted, monkeypatch)
            assert 0 < len(dense.kept.slots) < rows.slopes.shape[1], "some neurons are left out"
            (mine,) = case_rows(root, tree, wanted).bounded(every, dense)
            (walked,) = case_rows(root, tree, wanted).bounded(every, None)
            assert mine.along is not None and walked.along is not None
            assert torch.equal(mine.crossed, walked.crossed)
            good = ~mine.crossed
            assert bool(good.any())
            size = 1e-9 * (1 + walked.bound.abs())
            assert bool(((mine.bound - walked.bound).abs() <= size)[good].all())
            assert torch.equal(mine.along.slopes[good], walked.along.slopes[good])
            generator = torch.Generator().manual_seed(seed)
            shape = (400, *graph.input_shape)
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            many = torch.zeros(400, dtype=torch.long)
            x = root.region.rows(many).project(root.region.centre + noise)
            values = graph.values(x)
            z = torch.cat(
                [values[graph.nodes[i].inputs[0]].flatten(1) for i in root.plan.nonlinear], 1
            )
            value = wanted.rows(many).literals(graph.apply(x).flatten(1))
            place, node, side = tree.cuts(rows.node)
            places = root.plan.slots(graph.output)[0]
            starts = torch.tensor([part.start for part in places.values()])
            slot = starts[tree.site[node]] + tree.neuron[node]
            inside = torch.ones(len(rows.node), 400, dtype=torch.bool)
            for k, s, up in zip(place.tolist(), slot.tolist(), side.tolist(), strict=True):
                inside[k] &= (z[:, s] >= 0) if up else (z[:, s] <= 0)
            lowest = torch.where(inside, value.T[rows.literal], inf).amin(1)
            reached += int(inside.any(1).sum())
            assert bool((mine.bound <= lowest).all())
            assert not bool(inside[mine.crossed].any())
    assert reached >= 2


def test_what_arrives_is_within_what_it_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices with errors of 1e-3 that are said to be off by as much bound no true point wrongly,
    and rows are charged with it."""
    with torch.inference_mode():
        root, wanted, tree = asked(images(0, True), 0, inf, "plain")
        every = torch.arange(len(tree.literals.node))
        dense = matrices(root, tree, wanted, monkeypatch)
        (fine,) = case_rows(root, tree, wanted).bounded(every, dense)
        layers, off = dense.layers
        assert bool((off > 0).all()) and bool((off < 1e-10).all())
        dense.__dict__["layers"] = (layers, off + 1e-3)
        (coarse,) = case_rows(root, tree, wanted).bounded(every, dense)
        assert bool((coarse.bound < fine.bound)[~fine.crossed].all())


def test_boxes_that_are_not_numbers_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in range(0, 27, 5):
        root, wanted, tree = asked(images(0, False), 0, inf, "plain")
        source = root.plan.sources[root.plan.nonlinear[1]]
        root.values[source].lower.flatten()[entry] = torch.nan
        every = torch.arange(len(tree.literals.node))
        dense = matrices(root, tree, wanted, monkeypatch)
        (found,) = case_rows(root, tree, wanted).bounded(every, dense)
        assert bool((found.bound == -inf).all())


def test_multipliers_without_a_cut_take_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    root, wanted, tree = asked(images(0, True), 1, inf, "plain")
    rows = tree.literals
    wrong = replace(rows.multipliers, value=-rows.multipliers.value)
    spoilt = replace(tree, literals=replace(rows, multipliers=wrong))
    every = torch.arange(len(rows.node))
    dense = matrices(root, spoilt, wanted, monkeypatch)
    (found,) = case_rows(root, spoilt, wanted).bounded(every, dense)
    (walked,) = case_rows(root, spoilt, wanted).bounded(every, None)
    assert torch.equal(found.bound, walked.bound)


def test_slopes_of_some_slots_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    root, wanted, tree = asked(images(0, True), 1, inf, "plain")
    rows = tree.literals
    some = torch.randperm(rows.slopes.shape[1], generator=torch.Generator().manual_seed(0))[:30]
    blank = torch.full_like(rows.slopes, torch.nan)
    blank[:, some] = rows.slopes[:, some]
    whole = replace(tree, literals=replace(rows, slopes=blank))
    part = replace(tree, literals=replace(rows, slopes=rows.slopes[:, some], slots=some))
    every = torch.arange(len(rows.node))
    dense = matrices(root, tree, wanted, monkeypatch)
    for way in (dense, None):
        (first,) = case_rows(root, whole, wanted).bounded(every, way)
        (second,) = case_rows(root, part, wanted).bounded(every, way)
        assert torch.equal(first.bound, second.bound)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_bands_are_the_matrix(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    matrix = torch.randn(rows, 200, generator=generator)
    place = torch.arange(200)[None] - 5 * torch.arange(rows)[:, None]
    matrix = matrix * ((place >= 0) & (place < 12))
    found = torch.zeros(3 + rows, 4 + 200)
    for block in bands(matrix, 3, 4):
        found[block.rows, block.columns] += block.weight
    assert torch.equal(found[3:, 4:], matrix)
    assert not bool(found[:3].any()) and not bool(found[:, :4].any())
