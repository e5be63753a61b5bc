"""Cuts of inputs, against mixed-integer programs, points and the independent checker."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch

import frown
import frown_check
import zoo
from frown.bounds.cases import replay_tree
from frown.bounds.method import Ends, Update
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.tree import INPUT, LEAF, Branched, Literals, Multipliers, Tree
from frown.bounds.work import Work
from frown.graph.graph import Graph
from frown.methods import Branch, Crown, Exact
from frown.methods.branch import method
from frown.methods.branch.inputs import MOST, InputSearch, fits
from frown.methods.exact.distance import exact
from frown.problem.property import LinearProperty
from frown.problem.region import Region
from frown.relax import Sigmoid
from frown.relax.piecewise import Relu
from frown.relax.relaxation import LeastArea
from onnx_models import model, node, saved, weights


def cube(graph: Graph, radius: float, seed: int = 0) -> Region:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, *graph.input_shape, generator=generator, dtype=graph.dtype)
    return Region(centre, torch.full((1,), radius, dtype=graph.dtype), inf)


def first_output_above(level: float, graph: Graph) -> LinearProperty:
    coef = torch.zeros(1, 1, graph.output_size, dtype=graph.dtype)
    coef[0, 0, 0] = 1.0
    const = torch.full((1, 1), -level, dtype=graph.dtype)
    return LinearProperty(coef, const, torch.tensor([0]))


def sampled(graph: Graph, region: Region, count: int = 40_000) -> torch.Tensor:
    noise = torch.rand(count, *graph.input_shape, dtype=graph.dtype)
    points = region.centre + region.radius * (2 * noise - 1)
    return graph.apply(points).flatten(1)


def searched(
    graph: Graph, region: Region, wanted: LinearProperty, seconds: float = 5.0
) -> tuple[InputSearch, list[Update]]:
    one = torch.ones_like(region.radius)
    ends = Ends(0 * one, region.radius, inf * one, region.centre, True)
    search = InputSearch(Plan(graph), region, wanted, ends, Crown(), Work())
    with torch.inference_mode():
        return search, list(search.run(seconds))


@pytest.mark.parametrize("op", [Relu(), Sigmoid()], ids=["relu", "sigmoid"])
def test_leaves_prove_what_the_root_does_not(op: Relu | Sigmoid) -> None:
    """A limit just below the least value that points show: no method proves more than is true."""
    graph = zoo.mlp(op, (3, 10, 10, 2), 1)
    region = cube(graph, 0.5)
    seen = sampled(graph, region)[:, 0]
    root = float(Crown().bound(Plan(graph), region, first_output_above(0.0, graph)).literals[0, 0])
    least = float(seen.min())
    level = least - 0.1 * (least - root)
    wanted = first_output_above(level, graph)
    assert not bool(wanted.holds(Crown().bound(Plan(graph), region, wanted).literals).any())
    search, updates = searched(graph, region, wanted)
    assert search.finished and not len(search.left) and search.inputs[0].share == 1
    (update,) = updates
    assert isinstance(update.proof, Branched) and update.proved == float(region.radius)
    (tree,) = update.proof.trees[0]
    assert set(tree.site.tolist()) == {INPUT, LEAF}
    # What is not true is not proved, however long it is cut: a point shows it.
    beyond = first_output_above(least + 0.01 * (least - root), graph)
    search, updates = searched(graph, region, beyond)
    assert all(update.proof is None for update in updates) and updates[-1].point is not None
    value = graph.apply(updates[-1].point[None]).flatten(1)
    assert float(beyond.margins(beyond.literals(value))) <= 0


def test_a_tree_that_is_cut_keeps_its_order() -> None:
    none = torch.zeros(0, dtype=torch.long)
    rows = Literals(none, none, torch.zeros(0, 4), Multipliers.none())
    site = torch.tensor([INPUT, LEAF, INPUT, LEAF, LEAF])
    tree = Tree(
        site, torch.tensor([0, 0, 1, 0, 0]), torch.tensor([0.5, 0, 0.25, 0, 0]).double(), rows
    )
    features, points = torch.tensor([2, 3]), torch.tensor([7.0, 8.0]).double()
    grown, place = tree.cut(torch.tensor([1, 4]), INPUT, features, points)
    assert place.tolist() == [0, 1, 4, 5, 6]
    assert grown.site.tolist() == [INPUT, INPUT, LEAF, LEAF, INPUT, LEAF, INPUT, LEAF, LEAF]
    assert grown.parent.tolist() == [-1, 0, 1, 1, 0, 4, 4, 6, 6]
    assert grown.point.tolist() == [0.5, 7.0, 0, 0, 0.25, 0, 8.0, 0, 0]


def test_the_proof_cuts_on_where_a_leaf_fails() -> None:
    """A tree of the root alone, whose rows prove nothing: its halves and quarters do."""
    graph = zoo.mlp(Relu(), (2, 8, 8, 2), 3).to(torch.float64)
    region = cube(graph, 1.0)
    plan, least = Plan(graph), float(sampled(graph, region)[:, 0].min())
    root = float(Crown().bound(plan, region, first_output_above(0.0, graph)).literals[0, 0])
    assert root < least
    wanted = first_output_above(least - 0.8 * (least - root), graph)
    replay = Replay(plan, region, ByRule(LeastArea()), Work())
    none = torch.zeros(0, dtype=torch.long)
    with torch.inference_mode():
        replay.layers()
        assert not bool((replay.literals(wanted) > 0).any())
        slots = plan.slots(graph.output)[1]
        rows = Literals(none, none, torch.zeros(0, slots), Multipliers.none())
        point = torch.zeros(1, dtype=torch.float64)
        leaf = torch.tensor([LEAF])
        alone = Tree(leaf, torch.zeros_like(leaf), point, rows, anew=ByRule(LeastArea()))
        found = replay_tree(replay, 0, alone, wanted, torch.tensor([True]))
        assert float(found.margins) > 0 and not len(found.failing) and len(found.tree.leaves) > 1
        # Never more than is true.
        never = first_output_above(least + 1e-3, graph)
        found = replay_tree(replay, 0, alone, never, torch.tensor([True]))
        assert float(found.margins) <= 0 and len(found.failing)


@pytest.mark.parametrize("seed", range(3))
def test_one_radius_is_decided_as_programs_do(seed: int) -> None:
    pytest.importorskip("highspy")
    graph = zoo.mlp(Relu(), (3, 8, 8, 3), seed)
    region = cube(graph, 0.0, seed)
    value = graph.apply(region.centre).flatten(1)
    wanted = first_output_above(float(value[0, 0]) - 0.5, graph)
    truth = exact(Plan(graph), region, wanted, Exact(), 3.0, 0.0, Work().clock, broken=False)
    one = torch.ones_like(region.radius)
    for part, holds in ((0.99, True), (1.01, False)):
        radius = part * (truth.proved if holds else truth.broken) * one
        ends = Ends(0 * one, radius, inf * one, region.centre, True)
        with torch.inference_mode():
            updates = list(Branch().close(Plan(graph), region, wanted, ends, Work()))
        assert any(u.proof is not None for u in updates) == holds
        assert any(u.point is not None for u in updates) == (not holds)


@pytest.mark.parametrize("large", [False, True])
def test_the_root_is_bounded_once_for_both_kinds_of_cuts(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method, "LARGE", 1 if large else 10**6)
    graph = zoo.mlp(Relu(), (4, 30, 30, 1))
    region = cube(graph, 0.5)
    wanted = first_output_above(float(sampled(graph, region)[:, 0].min()) - 1e-4, graph)
    bound, roots = Crown.bound, []

    def counted(self: Crown, *given: object, **named: object) -> object:
        roots.append(self)
        return bound(self, *given, **named)

    neurons = []
    monkeypatch.setattr(Crown, "bound", counted)
    monkeypatch.setattr(InputSearch, "run", lambda self, seconds: iter(self._begin() or ()))
    for kind in (method.ApartSearch, method.ReluSearch):
        run = kind.run

        def seen(self: object, points: object, run: object = run) -> object:
            neurons.append(type(self))
            return run(self, points)

        monkeypatch.setattr(kind, "run", seen)
    zero, beyond = torch.zeros_like(region.radius), torch.full_like(region.radius, inf)
    ends = Ends(zero, region.radius, beyond, region.centre, True)
    branch = Branch(inner=Crown(), seconds=1.0)
    list(branch.close(Plan(graph), region, wanted, ends, Work()))
    assert neurons and neurons[0] is (method.ApartSearch if large else method.ReluSearch)
    assert len(roots) == 1


def test_only_boxes_in_few_features_are_cut() -> None:
    flat = Region(torch.zeros(1, MOST + 1), torch.ones(1), inf)
    assert not fits(flat) and not fits(Region(torch.zeros(1, 3), torch.ones(1), 2))
    scale = torch.ones(1, MOST + 1)
    scale[0, 0] = 0.0
    assert fits(Region(torch.zeros(1, MOST + 1), torch.ones(1), inf, scale))


def test_certificates_of_cut_inputs_are_accepted(tmp_path: Path) -> None:
    """Certified at a radius that lines alone do not prove, and checked by the other program."""
    proto = model(
        [
            node("Gemm", "x w0 b0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1 b1", "g", transB=1),
            node("Relu", "g", "c"),
            node("Gemm", "c w2", "y", transB=1),
        ],
        ["N", 2],
        {
            "w0": weights(12, 2, seed=1),
            "b0": weights(12, seed=2),
            "w1": weights(12, 12, seed=3),
            "b1": weights(12, seed=4),
            "w2": weights(2, 12, seed=5),
        },
    )
    path = saved(proto, tmp_path)
    x = np.array([[0.4, -0.3]], np.float32)
    largest = frown.certify(path, frown.Ball(x), method="branch")
    lines = frown.certify(path, frown.Ball(x), method="crown")
    eps = 0.98 * float(largest.radius[0])
    assert eps > 1.02 * float(lines.radius[0])
    proof = frown.Rigorous(certificates=tmp_path / "proofs")
    method = Branch(inner=Crown())
    found = frown.certify(path, frown.Ball(x), method=method, search=frown.At(eps), proof=proof)
    (row,) = found.rows
    assert row.status == "certified" and row.leaves > 1
    assert row.certificate is not None
    assert frown_check.check(tmp_path / "proofs" / row.certificate, path).accepted
