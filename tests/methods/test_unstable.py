"""Networks written with their unstable neurons alone, against the networks themselves."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds.cases import replay_tree
from frown.bounds.method import Ends
from frown.bounds.plan import Plan
from frown.bounds.replay import Replay
from frown.bounds.tree import Branched
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.graph.affine import Conv, Reshape
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import Branch, Crown, Frown
from frown.methods.branch import ascent
from frown.methods.branch.apart import ApartSearch
from frown.methods.branch.ascent import Bases, Leaves, intercepts
from frown.methods.branch.passes import General, Passes, passes
from frown.methods.branch.radii import Limits
from frown.methods.branch.relu import flat
from frown.methods.branch.unstable import Unstable, unstable
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region
from frown.relax.piecewise import Relu


def images(seed: int, around: bool = False) -> Graph:
    """Two convolutions, one with a way around it if asked for, and a dense layer."""
    w = zoo.Weights.seeded(seed)
    b = Builder()
    x = b.input("x", (2, 8, 8))
    ones = ((1, 1), (1, 1))
    first = Conv(w(4, 2, 3, 3), w(4), (8, 8), (2, 2), (1, 1), (1, 1), 1)
    h = b.add(Relu(), b.add(first, x))
    second = Conv(w(4, 4, 3, 3), w(4), (4, 4), *ones, (1, 1), 1)
    g = b.add(second, h)
    g = b.add(Relu(), b.combine(h, g, 1.0) if around else g)
    return b.graph(b.linear(b.add(Reshape((4, 4, 4), (64,)), g), w(3, 64), w(3)))


def asked(graph: Graph, seed: int, p: float, radius: float) -> tuple[Region, LabelWins]:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, *graph.input_shape, generator=generator, dtype=graph.dtype)
    label = graph.apply(centre).argmax(1)
    wins = LabelWins(label, other_classes(label, graph.output_size), graph.output_size, graph.dtype)
    return Region(centre, torch.full((1,), radius, dtype=graph.dtype), p), wins


def leaves_of(own: Passes, plan: Plan, region: Region, wanted: LabelWins, cut: Tensor) -> Leaves:
    """Leaves with these cuts (leaves, slots of the plan), slopes and multipliers by a rule."""
    lower, upper = flat(plan, Crown().bound(plan, region, wanted))
    kept = torch.arange(len(lower)) if own.kept is None else own.kept
    count = len(cut)
    theta = torch.linspace(0.1, 0.9, count * len(lower), dtype=lower.dtype).view(count, -1)
    head, const = own.head(wanted.pick(slice(None))[:1])
    zero = torch.zeros(count, dtype=torch.long)
    return Leaves(
        own,
        Bases.of(lower[kept], upper[kept]),
        zero,
        cut[:, kept],
        theta[:, kept],
        head.expand(-1, count).contiguous(),
        const.expand(count).clone(),
        own.places(region).of(zero, region.radius.expand(count)),
    )


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("p", [1, 2, inf])
@pytest.mark.parametrize("kind", ["chain", "around", "dense"])
def test_leaves_have_the_bounds_of_the_whole_network(
    kind: str, p: float, folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ascent, "SLACK", 0.0)  # of terms, which differ
    graph = zoo.mlp(Relu(), (4, 9, 9, 3), 5) if kind == "dense" else images(3, kind == "around")
    plan = Plan(graph)
    region, wanted = asked(graph, 1, p, 0.05 if p == inf else 0.3)
    lower, upper = flat(plan, Crown().bound(plan, region, wanted))
    own = Unstable(plan, lower[:, 0], upper[:, 0], folded)
    open_ = ((lower < 0) & (upper > 0))[:, 0]
    assert 0 < int(open_.sum()) < len(open_), "the case must have stable neurons, and others"
    assert own.slots == int((open_ if folded else upper[:, 0] > 0).sum())
    generator = torch.Generator().manual_seed(0)
    sides = torch.randint(-1, 2, (20, len(lower)), generator=generator)
    cut = torch.where(open_, sides, 0).to(torch.int8)
    mine = leaves_of(own, plan, region, wanted, cut)
    whole = leaves_of(General(plan), plan, region, wanted, cut)
    assert torch.allclose(mine.bound(), whole.bound(), atol=1e-9)
    assert torch.allclose(mine.uphill(), whole.uphill()[own.kept], atol=1e-9)
    assert torch.allclose(intercepts(mine), intercepts(whole)[own.kept], atol=1e-9)
    some = torch.arange(0, 20, 3)
    assert torch.allclose(mine.truth(some), whole.truth(some), atol=1e-9)
    assert mine.end is not None and whole.end is not None
    whole.bound()
    mine.bound()
    first, second = mine.where.point(mine.end, some), whole.where.point(whole.end, some)
    assert torch.allclose(graph.apply(first), graph.apply(second), atol=1e-6)


def test_matrices_beyond_the_memory_are_not_made() -> None:
    graph = images(3)
    plan = Plan(graph)
    region, wanted = asked(graph, 1, inf, 0.05)
    lower, upper = flat(plan, Crown().bound(plan, region, wanted))
    assert unstable(plan, lower[:, 0], upper[:, 0], 1 << 30) is not None
    assert unstable(plan, lower[:, 0], upper[:, 0], 1 << 10) is None


def test_inputs_in_turns_are_decided_as_together() -> None:
    graph = images(4)
    plan, wide = Plan(graph), 0.11
    generator = torch.Generator().manual_seed(2)
    centre = torch.randn(6, *graph.input_shape, generator=generator, dtype=graph.dtype)
    label = graph.apply(centre).argmax(1)
    wanted = LabelWins(label, other_classes(label, 3), 3, graph.dtype)
    region = Region(centre, torch.full((6,), wide, dtype=graph.dtype), inf)
    zero, never = torch.zeros(6), torch.full((6,), inf).double()
    ends = Ends(zero, region.radius, never, centre, True)
    own = passes(plan)
    assert own is not None
    limits = Limits(20.0, 0.01, True)
    search = ApartSearch(plan, own, region, wanted, ends, Frown(), limits, Work(), Branch().ascent)
    found = dict[int, str]()
    with torch.inference_mode():
        proved_by_frown = wanted.holds(Frown().bound(plan, region, wanted).literals)
        for update in search.run(centre):
            if update.point is not None:
                one = wanted.rows(slice(update.sample, update.sample + 1))
                assert bool((one.literals(graph.apply(update.point[None])) <= 1e-9).any())
                assert found.get(update.sample) != "proved"
                found[update.sample] = "broken"
            elif update.proved > 0:
                assert found.get(update.sample) is None
                found[update.sample] = "proved"
    assert len(found) == 6, "every input is decided"
    newly = [n for n, what in found.items() if what == "proved" and not proved_by_frown[n]]
    assert newly and "broken" in found.values()
    noise = torch.rand(500, *graph.input_shape, generator=generator, dtype=graph.dtype)
    for n in (n for n, what in found.items() if what == "proved"):
        near = centre[n] + wide * (2 * noise - 1).sign()
        assert bool((graph.apply(near).argmax(1) == label[n]).all())


def test_trees_of_convolutional_networks_are_replayed_with_rounding_charged() -> None:
    graph = images(4)
    plan = Plan(graph)
    region, wanted = asked(graph, 0, inf, 0.13)
    one = torch.ones_like(region.radius)
    ends = Ends(0 * one, region.radius, inf * one.double(), region.centre, True)
    own = passes(plan)
    assert own is not None
    limits, how = Limits(20.0, 0.01, True), Branch().ascent
    search = ApartSearch(plan, own, region, wanted, ends, Frown(), limits, Work(), how)
    with torch.inference_mode():
        proofs = [u.proof for u in search.run(region.centre) if u.proof is not None]
    (proof,) = proofs
    assert isinstance(proof, Branched)
    root = Replay(plan, region, proof.root, Work())
    root.layers()
    margins = wanted.margins(root.literals(wanted))[0]
    assert not bool((margins > 0).all()), "the case must need a tree"
    for tree in proof.trees[0]:
        assert tree.literals.slots is not None and len(tree.leaves) > 1
        done = replay_tree(root, 0, tree, wanted, ~(margins > 0))
        margins = margins.maximum(done.margins)
    assert bool((margins > 0).all())
    wrong = replace(tree.literals, slots=tree.literals.slots + 1000)
    with pytest.raises(InvalidInput, match="another network"):
        replay_tree(root, 0, replace(tree, literals=wrong), wanted, margins > 0)
