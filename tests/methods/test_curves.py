"""Chains of s-shaped layers: nodes bounded together, beside the method's own bounds."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch

import zoo
from frown.bounds.cases import replay_tree
from frown.bounds.method import Ends
from frown.bounds.plan import Plan
from frown.bounds.replay import Replay
from frown.bounds.tree import LEAF
from frown.bounds.work import Work
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.methods import Frown
from frown.methods.branch import samples
from frown.methods.branch.curves import _Layer, curve_of_chain, short
from frown.methods.branch.radii import Limits
from frown.methods.branch.samples import (
    NodeSlopes,
    SampleSearch,
    SampleTrees,
    TreeNode,
    _weighed,
)
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region
from frown.relax import Sigmoid, Tanh
from frown.relax.piecewise import Relu
from frown.relax.relaxation import LeastArea, relax
from frown.relax.s_shaped import Arctan

CURVES = {"sigmoid": Sigmoid(), "tanh": Tanh(), "arctan": Arctan()}
SIZES = (4, 6, 6, 6, 3)


def question(graph: Graph, p: float, radius: float) -> tuple[Region, LabelWins]:
    generator = torch.Generator().manual_seed(1)
    centre = torch.randn(1, *graph.input_shape, generator=generator, dtype=graph.dtype)
    label = graph.apply(centre).argmax(1)
    wins = LabelWins(label, other_classes(label, graph.output_size), graph.output_size, graph.dtype)
    return Region(centre, torch.full((1,), radius, dtype=graph.dtype), p), wins


def search_of(graph: Graph, p: float, radius: float) -> tuple[SampleSearch, TreeNode]:
    """A search with a root that is bounded, and takes up the contradiction."""
    region, wanted = question(graph, p, radius)
    one = torch.ones_like(region.radius)
    ends = Ends(0 * one, radius * one, inf * one.double(), region.centre, True)
    search = SampleSearch(
        Plan(graph), region, wanted, ends, Frown(), Limits(5.0, 0.01, True), Work()
    )
    search.inputs[0].radius = radius
    # The centre counts among the points at which the literal is as assumed: nodes are not empty.
    search.slack = wanted.literals(graph.apply(region.centre).flatten(1))[:, 0]
    free = search.free
    root = TreeNode(0, int(wanted.clause[0]), -free, free, -free, free)
    search._take(root, search._bound([root], Frown()), 0)
    root.before, root.literal = root.slopes, 0
    return search, root


@pytest.mark.parametrize("p", [1, 2, inf])
@pytest.mark.parametrize("name", CURVES)
def test_bounds_of_nodes_are_the_methods_own(name: str, p: float) -> None:
    """Down a path of cuts, from the same slopes: but for what slopes lose in half precision."""
    graph = zoo.mlp(CURVES[name], SIZES, 1)
    with torch.inference_mode():
        search, here = search_of(graph, p, 0.2)
        chain, plan = search.chain, search.plan
        assert chain is not None
        value = search.region.centre
        values = {0: value}
        for step in reversed(plan.route(graph.output)):
            op = step.affine if step.affine is not None else step.relaxation
            assert op is not None
            values[step.node] = value = op.apply(value)
        centre = torch.cat([values[i].flatten() for i in search.sources])
        for slot in (14, 3, 8, 14):
            for method in (search.quick, search.fine):
                search.chain = None
                there = search._bound([replace(here), replace(here)], method)
                search.chain = chain
                found = search._bound([replace(here), replace(here)], method)
                width = (there.upper - there.lower).amax(1, keepdim=True)
                assert bool(((found.lower - there.lower).abs() <= 5e-3 * width).all())
                assert bool(((found.upper - there.upper).abs() <= 5e-3 * width).all())
                size = 5e-3 * (1 + there.literals.abs())
                assert bool(((found.literals - there.literals).abs() <= size).all())
                assert bool(found.literals.isfinite().all())
            assert torch.equal(found.lower[0], found.lower[1])
            search._take(here, found, 0)
            point = search._point(slot, here)
            assert point is not None
            side = bool(centre[int(search.entry[slot])] >= point)
            here = search._children(here, slot, point)[side]


def test_slopes_of_nodes_stand_together_however_they_were_found() -> None:
    graph = zoo.mlp(Tanh(), SIZES, 2)
    with torch.inference_mode():
        search, root = search_of(graph, inf, 0.2)
        first = search._bound([replace(root), replace(root)], search.fine)
        second = search._bound([replace(root)], search.fine)
        assert first.tables is not None and second.tables is not None
        wanted = [(first.tables, 1), (second.tables, 0), (first.tables, 0), (first.tables, 1)]
        slopes = [NodeSlopes(tables, place) for tables, place in wanted]
        together = samples._stacked(slopes)
        assert together is not None and together.samples == 4
        for table in (first.tables, second.tables):
            table.whole = False
        assert samples._stacked(slopes) is None
        apart = samples._tables(slopes)
    assert set(apart.alpha) == set(together.alpha) and set(apart.factors) == set(together.factors)
    for key, table in apart.alpha.items():
        every = torch.arange(len(table))
        assert torch.equal(table[every].nan_to_num(), together.alpha[key][every].nan_to_num())
    for key, factors in apart.factors.items():
        assert torch.equal(factors, together.factors[key])


def test_slopes_are_as_a_proof_has_them() -> None:
    """In half precision: else boxes of the replay drift apart from those of the search."""
    box = Intervals(torch.full((2, 5), -1.3), torch.linspace(0.1, 2.0, 5).expand(2, 5).clone())
    layer = _Layer.of(relax(Tanh(), box, LeastArea()))
    above = torch.tensor([[0.0], [1.0]]).expand(2, 5)
    alpha = torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    slope, width = layer.slopes(above, alpha)
    assert torch.equal(slope, slope.half().float()) and bool((width > 0).any())
    assert bool((slope - (layer.base + above * layer.rise + alpha * width)).abs().max() < 1e-3)
    intercept, _ = layer.intercepts(Tanh(), above, slope)
    for k in range(101):
        z = torch.lerp(box.lower, box.upper, k / 100)
        gap = torch.tanh(z) - (slope * z + intercept)
        assert bool((gap[0] > -1e-6).all()) and bool((gap[1] < 1e-6).all())
    large = torch.tensor([1.0, 1e6])
    assert torch.equal(short(large), large)


def test_other_networks_are_bounded_by_the_method_itself() -> None:
    def curve(graph: Graph, method: Frown | None = None) -> bool:
        return curve_of_chain(Plan(graph), method or Frown()) is not None

    chain = zoo.mlp(Tanh(), SIZES)
    assert curve(chain)
    assert not curve(chain, Frown(group=2)) and not curve(chain, Frown(wide=True))
    assert not curve(zoo.mlp(Relu(), SIZES)) and not curve(zoo.residual(Tanh()))
    assert not curve(zoo.lstm()) and not curve(zoo.conv_max())


def test_what_bounds_a_node_once_more_is_told_as_a_cut_beyond_a_box() -> None:
    """The other side of such a cut is empty, in the replay too: it proves what the node does."""
    graph = zoo.mlp(Tanh(), SIZES, 1).to(torch.float64)
    search, root = search_of(graph, inf, 0.25)
    found = search._bound([root], search.fine)
    search._take(root, found, 0)
    again = replace(root, before=root.slopes)
    root.children = (again,)
    search._take(again, search._bound([again], search.fine), 0)
    assert bool((again.lower >= root.lower).all() & (again.upper <= root.upper).all())
    own = search.inputs[0]
    own.trees[0], own.whole = root, found.bounds.proof.take(torch.tensor([0]))
    tree = search._tree(own, 0)
    tree.check(search.plan)
    assert tree.site.tolist() == [0, LEAF, LEAF] and float(tree.point[0]) > float(root.upper[0])
    region, wanted = question(graph, inf, 0.25)
    replay = Replay(search.plan, region, own.whole, Work())
    replay.layers()
    done = replay_tree(replay, 0, tree, wanted, torch.tensor([True, False]))
    assert again.literals is not None
    expected = again.literals[wanted.clause == 0].max()
    assert float(done.margins[0]) == pytest.approx(float(expected), rel=1e-3)


def stage(nodes: int, left: float) -> SampleTrees:
    """An input whose last radii took a few nodes and `nodes`, with so many that there is time for,
    at its next radius."""
    own = SampleTrees(0, 1.2, inf, inf, seen=[(1.0, 10), (1.1, 20), (1.2, nodes)])
    own.raised(Limits(10.0, 0.01, False), left)
    return own


def test_a_radius_is_raised_to_what_there_is_time_for() -> None:
    """Nodes grow with the radius as they did; where next to nothing is to be gained, an input
    rests."""
    much, little, none = (stage(40, left) for left in (1e6, 60.0, 40.0))
    assert not much.rests and not little.rests and none.rests
    assert much.radius == pytest.approx(1.3)  # twice the nodes, as with every tenth before
    assert 1.2 < little.radius < much.radius


def test_a_radius_that_is_not_done_in_time_is_given_up() -> None:
    """As much of the work as the open nodes weigh is left; the next radius is smaller."""
    blank = torch.zeros(0)
    for weight, left, smaller in ((0.1, 100.0, False), (0.9, 100.0, True), (0.9, 1e4, False)):
        own = stage(40, left)
        own.needed, before = [0], own.radius
        own.open = [TreeNode(0, 0, blank, blank, blank, blank, weight=weight)]
        own.visited = 10
        assert not own.given_up(left)  # too early to tell
        own.visited = 150
        assert own.given_up(left) == smaller
        assert own.radius == before if not smaller else 1.2 < own.radius < before
    own = stage(40, 1e6)
    own.open, own.visited = [TreeNode(0, 0, blank, blank, blank, blank)], 10_000
    assert own.given_up(1e6)  # however much time there is: far more than nodes before


def test_nodes_weigh_what_is_below_them() -> None:
    """The two sides of the root by how many nodes they have; all leaves together as the root."""
    blank = torch.zeros(0)

    def node(*children: TreeNode) -> TreeNode:
        return TreeNode(0, 0, blank, blank, blank, blank, children=children or None)

    left, right = node(node(), node()), node()
    root = node(left, right)
    assert _weighed(root) == 5
    assert (left.weight, right.weight) == (0.75, 0.25)
    assert [child.weight for child in left.children or ()] == [0.375, 0.375]
