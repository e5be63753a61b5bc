"""Lemmas: ends of inner boxes that trees of their own prove, and certificates that have them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import frown
import onnx_models
import zoo
from frown.bounds import cases, lemmas
from frown.bounds.cases import Replayed, replay_tree
from frown.bounds.dense import DenseRows, dense_runs
from frown.bounds.lemmas import prove
from frown.bounds.method import Ends
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.tree import LEAF, Lemma, Literals, Multipliers, Tree
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.methods import Branch, Frown
from frown.methods.branch import apart, relu
from frown.methods.branch.ends import EndTrees
from frown.methods.branch.passes import Dense, passes
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region
from frown.relax.piecewise import Relu
from frown.relax.relaxation import LeastArea
from onnx_models import node, saved

SIZES = (4, 8, 8, 8, 3)


def raised(seed: int, p: float, radius: float = 1.2) -> tuple[Plan, Region, tuple[Lemma, ...]]:
    """A network, a region, and the lemmas of its boxes' ends."""
    plan = Plan(zoo.mlp(Relu(), SIZES, seed))
    torch.manual_seed(seed)
    kind = plan.graph.dtype
    region = Region(torch.randn(1, 1, SIZES[0], dtype=kind), torch.tensor([radius], dtype=kind), p)
    own = passes(plan)
    assert isinstance(own, Dense)
    trees = EndTrees(own, region)
    found = Frown().bound(
        plan,
        region,
        LabelWins(torch.tensor([0]), other_classes(torch.tensor([0]), 3), 3, torch.float64),
    )
    lower, upper = (end[:, 0] for end in relu.flat(plan, found))
    low, high = trees.raised(lower, upper, radius, 15)
    assert bool((low >= lower).all() & (high <= upper).all())
    assert bool((low > lower + 1e-3).any()) and bool((high < upper - 1e-3).any())
    return plan, region, trees.lemmas()


def rows(plan: Plan, region: Region) -> DenseRows:
    """The region's boxes along the rule, with proof."""
    replay = Replay(plan, region, ByRule(LeastArea()), Work())
    replay.layers()
    runs = dense_runs(plan)
    assert runs is not None
    return DenseRows(replay, 0, runs)


def inside(region: Region, count: int) -> Tensor:
    """Points of the region."""
    every = torch.zeros(count, dtype=torch.long)
    balls = region.rows(every)
    far = 2 * float(region.radius) * torch.randn(count, *region.centre.shape[1:]).double()
    return balls.project(region.centre + far)


def arriving(plan: Plan, x: Tensor) -> Tensor:
    """(points, slots) what arrives at all neurons."""
    linear = [plan.graph.nodes[i].op for i in plan.ancestors(plan.graph.output)]
    found = []
    for op in [op for op in linear if hasattr(op, "weight")][:-1]:
        z = x @ op.weight.double().T + op.bias.double()
        found.append(z)
        x = z.relu()
    return torch.cat(found, 1)


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("seed", range(3))
def test_no_point_passes_an_end_that_lemmas_prove(seed: int, p: float, spoilt: bool) -> None:
    plan, region, lemmas = raised(seed, p)
    if spoilt:  # choices of any kind prove less, and nothing wrong
        rng = torch.Generator().manual_seed(seed)
        changed = []
        for own in lemmas:
            codes = torch.randint(0, 130, own.slopes.shape, generator=rng).to(torch.uint8)
            value = torch.randn(own.multipliers.value.shape, generator=rng) * 3
            lifts = replace(own.multipliers, value=value)
            changed.append(replace(own, slopes=codes, multipliers=lifts))
        lemmas = tuple(changed)
    dense = rows(plan, region)
    before = dense.lower, dense.upper
    prove(dense, lemmas)
    if not spoilt:
        assert bool((dense.lower > before[0]).any()) and bool((dense.upper < before[1]).any())
    z = arriving(plan, inside(region, 4000).flatten(1))
    assert bool((z >= dense.lower).all()) and bool((z <= dense.upper).all())


@pytest.mark.parametrize("seed", range(3))
def test_slopes_that_lie_below_no_neuron_prove_nothing(seed: int) -> None:
    plan, region, lemmas = raised(seed, inf)
    dense = rows(plan, region)
    prove(dense, [replace(own, slopes=torch.full_like(own.slopes, 255)) for own in lemmas])
    z = arriving(plan, inside(region, 4000).flatten(1))
    assert bool((z >= dense.lower).all()) and bool((z <= dense.upper).all())


def test_multipliers_that_nothing_prices_are_left_out() -> None:
    """On z >= 0, m > 0 would lift a row by the least that z is, which nothing takes off again."""
    plan, region, _ = raised(0, inf)
    region = region.with_radius(region.radius / 10)
    dense = rows(plan, region)
    neuron = (dense.lower[:8] > 0).nonzero()[0]
    every, three = torch.arange(8), torch.tensor([0, LEAF, LEAF])
    lift = Multipliers(2 * every + 1, neuron.expand(8), torch.full((8,), 1e3))
    codes = torch.zeros(16, 8, dtype=torch.uint8)
    prove(dense, [Lemma(1, every, 0 * every, three.repeat(8), neuron.expand(24), codes, lift)])
    z = arriving(plan, inside(region, 4000).flatten(1))
    assert bool((z >= dense.lower).all())


def test_ends_that_are_not_known_prove_nothing() -> None:
    plan, region, _ = raised(0, inf)
    dense = rows(plan, region)
    nan, every = torch.tensor(torch.nan).double(), torch.arange(4)
    dense.lower[every[:2]], dense.upper[every[2:]] = nan, nan
    known = dense.lower[2:4].clone(), dense.upper[:2].clone()
    dense.narrow(every, torch.tensor([0, 0, 1, 1]), nan.expand(4))
    assert bool(dense.lower[:2].isnan().all() and dense.upper[2:4].isnan().all())
    assert torch.equal(dense.lower[2:4], known[0]) and torch.equal(dense.upper[:2], known[1])


def test_forests_have_the_ways_of_their_trees() -> None:
    # Trees of 3, 1 and 2 leaves: (0 (1 . .) .), ., (2 . .)
    site = torch.tensor([0, 0, LEAF, LEAF, LEAF, LEAF, 0, LEAF, LEAF])
    neuron = torch.tensor([0, 1, 0, 0, 0, 0, 2, 0, 0])
    codes = torch.zeros(6, 8, dtype=torch.uint8)
    three = torch.arange(3)
    own = Lemma(1, three, three * 0, site, neuron, codes, Multipliers.none())
    assert own.tree.tolist() == [0, 0, 0, 0, 0, 1, 2, 2, 2]
    assert own.leaves.tolist() == [2, 3, 4, 5, 7, 8]
    ways = sorted(zip(*(t.tolist() for t in own.cuts), strict=True))
    expected = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 1), (4, 6, 0), (5, 6, 1)]
    assert ways == expected


@pytest.mark.parametrize("nodes", [[0, LEAF], [LEAF, LEAF, LEAF], [0, LEAF, LEAF, LEAF, LEAF]])
def test_what_is_no_forest_is_refused(nodes: list[int]) -> None:
    site = torch.tensor(nodes)
    codes = torch.zeros(int((site == LEAF).sum()), 8, dtype=torch.uint8)
    two = torch.arange(2)
    with pytest.raises(InvalidInput, match="no trees in preorder"):
        Lemma(1, two, two * 0, site, site * 0, codes, Multipliers.none())


def test_lemmas_about_later_neurons_are_refused() -> None:
    plan, region, lemmas = raised(0, inf)
    dense = rows(plan, region)
    last = lemmas[-1]
    inner = last.cut_site != LEAF
    later = replace(last, cut_site=torch.where(inner, last.site, LEAF))
    with pytest.raises(InvalidInput, match="not before it"):
        prove(dense, [later])
    with pytest.raises(InvalidInput, match="does not read"):
        prove(dense, [replace(last, neuron=last.neuron + 8)])


def replayed(replay: Replay, lemmas: tuple[Lemma, ...], sample: int = 0) -> Replayed:
    """A tree of one leaf over the ends that lemmas prove, as a certificate is to have it."""
    blank = torch.zeros(1, dtype=torch.long)
    literals = Literals(blank, blank, torch.zeros(1, 24, dtype=torch.uint8), Multipliers.none())
    tree = Tree(blank + LEAF, blank, blank.double(), literals, lemmas=lemmas)
    label = torch.zeros(len(replay.region.radius), dtype=torch.long)
    wanted = LabelWins(label, other_classes(label, 3), 3, torch.float64)
    return replay_tree(replay, sample, tree, wanted, torch.ones(2, dtype=torch.bool), record=True)


def test_multipliers_beyond_single_precision_are_its_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, region, own = raised(0, inf)
    monkeypatch.setattr(lemmas, "ABOVE", 1e300)  # as where boxes are as narrow
    value = replayed(rows(plan, region).root, own).tree.literals.multipliers.value
    assert float(value.abs().max()) == torch.finfo(torch.float32).max


def test_samples_that_share_lemmas_have_boxes_of_their_own() -> None:
    plan, region, lemmas = raised(0, inf)
    both = region.rows(torch.zeros(2, dtype=torch.long))
    both = both.with_radius(torch.tensor([0.3, 1.2], dtype=region.radius.dtype))
    together = rows(plan, both).root
    for k in range(2):
        alone = rows(plan, both.rows(torch.tensor([k]))).root
        expected = replayed(alone, lemmas).margins
        found = replayed(together, lemmas, k).margins
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_trees_of_other_networks_are_refused() -> None:
    plan, region, lemmas = raised(0, inf)
    far = tuple(replace(own, site=own.site + 5) for own in lemmas)
    with pytest.raises(InvalidInput, match="does not have"):
        replayed(rows(plan, region).root, far)


def test_lemmas_that_prove_nothing_are_left_out_of_certificates() -> None:
    plan, region, lemmas = raised(0, inf)
    one, none = torch.zeros(1, dtype=torch.long), torch.zeros(1, 8, dtype=torch.uint8)
    idle = Lemma(1, one, one, one + LEAF, one, none, Multipliers.none())
    replay = rows(plan, region).root
    assert len(replayed(replay, (idle,)).tree) == 1
    assert len(replayed(replay, (idle, *lemmas)).tree) == len(replayed(replay, lemmas).tree) > 1


@pytest.mark.parametrize("p", [1, 2, inf])
@pytest.mark.parametrize("seed", range(3))
def test_the_checker_accepts_trees_with_lemmas(
    seed: int, p: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(relu, "SOON", 0.0)
    written = []

    def counted(*given: object) -> Tree:
        written.append(found := write(*given))  # type: ignore[arg-type]
        return found

    write = cases.written_out
    monkeypatch.setattr(cases, "written_out", counted)
    rng = np.random.default_rng(seed)
    widths = (4, 12, 12, 12, 3)
    layers = list(enumerate(pairwise(widths)))
    values = {f"w{k}": 1.5 * rng.normal(size=(b, a)) / a**0.5 for k, (a, b) in layers}
    values |= {f"b{k}": 0.3 * rng.normal(size=b) for k, (_, b) in layers}
    nodes = []
    for k, _ in layers:
        read = f"r{k - 1}" if k else "x"
        nodes.append(node("Gemm", f"{read} w{k} b{k}", f"z{k}" if k < 3 else "y", transB=1))
        nodes += [node("Relu", f"z{k}", f"r{k}")] if k < 3 else []
    constants = {k: v.astype(np.float32) for k, v in values.items()}
    proto = onnx_models.model(nodes, ["N", 4], constants)
    model = frown.load(saved(proto, tmp_path))
    x = rng.normal(size=(2, 4)).astype(np.float32)
    y = model.graph.apply(torch.from_numpy(x).double()).argmax(1).numpy()
    method = Branch(seconds=1.0, gap=0.01)
    result = frown.certify(model, frown.Ball(x, norm=p), y, method=method, proof="checked")
    assert all(row.level == "checked" and row.leaves for row in result.rows)
    assert any(bool(tree.point.any()) for tree in written)  # cuts that stand for lemmas


def test_trees_with_lemmas_stand_on_second_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """FROWN's first bounds may rest on CROWN's boxes, which a replay does not find again."""
    plan = Plan(zoo.mlp(Relu(), (40, 90, 90, 90, 90, 3), 0))
    torch.manual_seed(0)
    kind = plan.graph.dtype
    region = Region(torch.randn(1, 40, dtype=kind), torch.tensor([0.12], dtype=kind), inf)
    label = plan.graph.apply(region.centre).flatten(1).argmax(1)
    wanted = LabelWins(label, other_classes(label, 3), 3, kind)
    rounds, starts = [], []

    def bound(self: Frown, *given: object) -> object:
        found = real(self, *given)  # type: ignore[arg-type]
        rounds.append(found.proof.tables.rounds)
        return found

    def begun(self: EndTrees, lower: Tensor, *given: object) -> object:
        starts.append(len(rounds))
        return raise_ends(self, lower, *given)  # type: ignore[arg-type]

    real, raise_ends = Frown.bound, EndTrees.raised
    monkeypatch.setattr(Frown, "bound", bound)
    monkeypatch.setattr(EndTrees, "raised", begun)
    monkeypatch.setattr(apart, "TURN", 0.02)
    monkeypatch.setattr(apart, "BATCH", 1)
    monkeypatch.setattr(apart, "NEARLY", 0.0)
    ends = Ends(
        torch.zeros(1), region.radius, torch.tensor([inf]), region.centre.clone(), single=True
    )
    list(Branch(seconds=2).close(plan, region, wanted, ends, Work()))
    assert rounds == [1, 2]
    assert starts and min(starts) == 2
