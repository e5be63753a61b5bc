"""Branch and bound, against sampling and mixed-integer programs."""

from __future__ import annotations

import time
from itertools import pairwise
from math import inf

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asking
import frown
import functions
import zoo
from frown.api import plan_for
from frown.bounds.halfspace import Planes
from frown.bounds.method import Ends, Update
from frown.bounds.plan import Plan
from frown.bounds.tree import Branched, Tree
from frown.bounds.walk import Given
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.graph.affine import Reshape
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.methods import Branch, Crown, Exact, Frown
from frown.methods.branch import relu
from frown.methods.branch.ascent import (
    PRIOR,
    SCORES,
    Bases,
    LeafAscent,
    Leaves,
    PseudoCosts,
    ascend,
    babsr,
)
from frown.methods.branch.nodes import Nodes
from frown.methods.branch.passes import Dense, General, Passes, passes
from frown.methods.branch.pieces import Piece, PieceBall, Pieces, decide, empty, nearest
from frown.methods.branch.radii import Limits, Stage
from frown.methods.branch.relu import ReluSearch
from frown.methods.branch.samples import PLANES, SampleSearch, TreeNode
from frown.methods.exact.distance import exact
from frown.problem.property import LabelWins, LinearProperty, Property, other_classes
from frown.problem.region import Region
from frown.relax import Tanh
from frown.relax.piecewise import LeakyRelu, Relu

pytest.importorskip("highspy")


def residual(seed: int) -> Graph:
    """A network with a way around a layer."""
    w = zoo.Weights.seeded(seed)
    b = Builder()
    x = b.input("x", (3,))
    h = b.add(Relu(), b.linear(x, w(5, 3), w(5)))
    g = b.add(Relu(), b.linear(h, w(5, 5), w(5)))
    return b.graph(b.linear(b.combine(h, g, 1.0), w(3, 5), w(3)))


def question(graph: Graph, seed: int, p: float, radius: float = 0.0) -> tuple[Region, LabelWins]:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, *graph.input_shape, generator=generator, dtype=graph.dtype)
    label = graph.apply(centre).argmax(1)
    wins = LabelWins(label, other_classes(label, graph.output_size), graph.output_size, graph.dtype)
    return Region(centre, torch.full((1,), radius, dtype=graph.dtype), p), wins


def closed(
    graph: Graph, region: Region, wanted: Property, limit: float = 3.0, **options: object
) -> tuple[float, float, Update | None]:
    """Both ends, and the last update that moved the lower one."""
    method = Branch(**options)  # type: ignore[arg-type]
    one = torch.ones_like(region.radius)
    ends = Ends(0 * one, limit * one, inf * one.double(), region.centre, False)
    low, high, last = 0.0, inf, None
    with torch.inference_mode():
        for update in method.close(Plan(graph), region, wanted, ends, Work()):
            if update.proved > low:
                low, last = update.proved, update
            if update.point is not None:
                assert bool(
                    (wanted.margins(wanted.literals(graph.apply(update.point[None]))) <= 1e-6).any()
                )
                high = min(high, float(region.distance(update.point[None])))
    return low, high, last


def boxes(plan: Plan, region: Region, wanted: Property) -> tuple[Tensor, Tensor]:
    found = Frown().bound(plan, region, wanted)
    every = [found.layers.values[plan.sources[i]] for i in plan.nonlinear]
    lower = torch.cat([b.lower.flatten(1) for b in every], 1).T
    return lower, torch.cat([b.upper.flatten(1) for b in every], 1).T


def arriving(plan: Plan, x: Tensor) -> Tensor:
    """(points, slots) what arrives at all nonlinear nodes."""
    values = {0: x}
    for step in reversed(plan.route(plan.graph.output)):
        op = step.affine if step.affine is not None else step.relaxation
        assert op is not None
        values[step.node] = op.apply(*[values[j] for j in step.inputs])
    return torch.cat([values[plan.graph.nodes[i].inputs[0]].flatten(1) for i in plan.nonlinear], 1)


@pytest.mark.parametrize("p", [1, 2, 3, inf])
@pytest.mark.parametrize("kind", ["dense", "general", "residual"])
@pytest.mark.parametrize("form", ["plain", "clipped", "scaled"])
def test_true_points_on_random_paths_violate_no_bound(kind: str, p: float, form: str) -> None:
    for seed in range(4):
        graph = residual(seed) if kind == "residual" else zoo.mlp(Relu(), (4, 6, 6, 3), seed)
        plan = Plan(graph)
        own: Passes | None = General(plan) if kind == "general" else passes(plan)
        assert own is not None
        region, wanted = question(graph, seed, p, 0.7)
        if form == "clipped":
            region = Region(
                region.centre, region.radius, p, None, region.centre - 0.3, region.centre + 0.5
            )
        elif form == "scaled":
            scale = torch.linspace(0.2, 1.5, region.centre.numel(), dtype=graph.dtype)
            region = Region(region.centre, region.radius, p, scale.view_as(region.centre))
        generator = torch.Generator().manual_seed(seed)
        shape = (400, *graph.input_shape)
        noise = torch.randn(shape, generator=generator, dtype=graph.dtype)
        x = region.rows(torch.zeros(400, dtype=torch.long)).project(region.centre + noise)
        side = torch.where(arriving(plan, x) > 0, 1, -1)
        values = wanted.rows(torch.zeros(400, dtype=torch.long)).literals(graph.apply(x).flatten(1))
        bases = Bases.of(*boxes(plan, region, wanted))
        # Each leaf is a random part of the cuts that some point satisfies.
        chance = torch.rand(50, own.slots, generator=generator)
        cut = torch.where(chance < 0.4, side[:50], 0).to(torch.int8)
        theta = torch.rand(50, own.slots, generator=generator, dtype=graph.dtype)
        head, const = own.head(wanted.pick(slice(None)))
        zero = torch.zeros(50, dtype=torch.long)
        for t in range(wanted.shape[1]):
            where = own.places(region).of(zero, region.radius.expand(50))
            heads, consts = head[:, t : t + 1].expand(-1, 50).contiguous(), const[t].expand(50)
            leaves = Leaves(own, bases, zero, cut, theta, heads, consts.clone(), where)
            first = leaves.bound()
            found = ascend(leaves, Branch().ascent)
            assert bool((found.bound >= first - 1e-9).all())
            for k in range(50):
                inside = ((cut[k] == 0) | (cut[k] == side)).all(1)
                assert inside[k]
                true = values[inside, t].amin()
                assert found.bound[k] <= true + 1e-9


@pytest.mark.parametrize("p", [1, inf])
@pytest.mark.parametrize("seed", range(12))
def test_brackets_close_on_the_exact_distance(seed: int, p: float) -> None:
    graph = zoo.mlp(Relu(), (3, 8, 8, 3), seed)
    region, wanted = question(graph, seed, p)
    low, high, _ = closed(graph, region, wanted, gap=0.002, seconds=20)
    truth = exact(Plan(graph), region, wanted, Exact(), 3.0, 0.0, Work().clock, broken=False)
    assert low <= truth.broken * (1 + 1e-6)
    assert high >= truth.proved * (1 - 1e-6)
    assert high <= low * 1.0021 or low >= 3.0


@pytest.mark.parametrize("seed", range(6))
def test_graphs_with_ways_around_are_branched_on(seed: int) -> None:
    graph = residual(seed)
    region, wanted = question(graph, seed, inf)
    low, high, _ = closed(graph, region, wanted, seconds=20)
    truth = exact(Plan(graph), region, wanted, Exact(), 3.0, 0.0, Work().clock, broken=False)
    assert low <= truth.broken * (1 + 1e-6)
    frown_alone = Frown().bound(Plan(graph), region.with_radius(region.radius + low), wanted)
    assert low >= 0.97 * truth.proved or bool((frown_alone.literals > 0).all())
    assert high >= truth.proved * (1 - 1e-6)


def replayed(plan: Plan, region: Region, wanted: Property, tree: Tree) -> Tensor:
    """The least bound that each row of a tree gives, by arithmetic of its own: (rows,)."""
    lower, upper = boxes(plan, region, wanted)
    layers = [plan.graph.nodes[i].op for i in plan.ancestors(plan.graph.output)]
    linear = [op for op in layers if hasattr(op, "weight")]
    sizes = [len(op.weight) for op in linear[:-1]]
    found = []
    rows, dense = (
        tree.literals,
        tree.literals.multipliers.dense(len(tree.literals.node), tree.literals.slopes.shape[1]),
    )
    for r, node in enumerate(rows.node.tolist()):
        low, high = lower[:, 0].clone(), upper[:, 0].clone()
        here = node
        while tree.parent[here] >= 0:
            up, side = int(tree.parent[here]), int(tree.side[here])
            slot = sum(sizes[: int(tree.site[up])]) + int(tree.neuron[up])
            if side == 0:
                high[slot] = high[slot].clamp(max=tree.point[up])
            else:
                low[slot] = low[slot].clamp(min=tree.point[up])
            here = up
        if bool((low > high).any()):
            found.append(torch.tensor(inf))
            continue
        coef = wanted.pick(slice(None))[rows.literal[r]].double()
        total = wanted.const[0, rows.literal[r]].double()
        end = sum(sizes)
        for k in range(len(linear) - 1, -1, -1):
            total = total + coef @ linear[k].bias
            coef = coef @ linear[k].weight
            if k == 0:
                break
            part = slice(end - sizes[k - 1], end)
            end -= sizes[k - 1]
            lo, hi = low[part], high[part]
            code = rows.slopes[r, part].double()
            s = torch.where(code > 0, (code - 1) / (rows.levels - 1), torch.nan)
            s = torch.where(torch.isnan(s), (lo >= 0).double(), s)
            chord = torch.where((lo < 0) & (hi > 0), hi / (hi - lo), s)
            slope = torch.where(coef >= 0, s, chord)
            rise = torch.where((coef < 0) & (lo < 0) & (hi > 0), -lo * chord, torch.zeros_like(lo))
            m = dense[r, part]
            total = total + (coef * rise).sum() - torch.maximum(m * lo, m * hi).sum()
            coef = coef * slope + m
        found.append(total + region.least(coef[None])[0])
    return torch.stack(found)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("seed", range(3))
def test_scores_choose_and_prove_nothing(seed: int, score: str) -> None:
    """Whatever is cut, brackets hold the exact distance, and close on it; at one radius, too."""
    graph = residual(seed)
    region, wanted = question(graph, seed, inf)
    low, high, _ = closed(graph, region, wanted, gap=0.005, seconds=20, score=score)
    truth = exact(Plan(graph), region, wanted, Exact(), 3.0, 0.0, Work().clock, broken=False)
    assert low <= truth.broken * (1 + 1e-6) and high >= truth.proved * (1 - 1e-6)
    assert high <= low * 1.0051 or low >= 3.0
    below = region.with_radius(torch.full_like(region.radius, 0.97 * min(low, 3.0)))
    with torch.inference_mode():
        assert bool(wanted.holds(Branch(score=score).bound(Plan(graph), below, wanted).literals))


def test_scores_have_names() -> None:
    with pytest.raises(InvalidInput, match="score"):
        Branch(score="area")


def test_babsr_is_what_is_published() -> None:
    """Bunel et al. (2020), equation by equation, with the bias of each neuron's own layer."""
    graph = zoo.mlp(Relu(), (3, 6, 6, 3), 4)
    plan = Plan(graph)
    region, wanted = question(graph, 4, inf, 1.5)
    own = passes(plan)
    assert isinstance(own, Dense)
    bias = torch.cat([layer[:, 0] for layer in own.biases[:-1]])
    assert torch.equal(own.bias[:, 0], bias)
    assert torch.allclose(General(plan).bias[:, 0], bias)
    lower, upper = boxes(plan, region, wanted)
    zero = torch.zeros(1, dtype=torch.long)
    head, const = own.head(wanted.pick(slice(None)))
    theta = torch.full((1, own.slots), 0.5, dtype=graph.dtype)
    cut = torch.zeros(1, own.slots, dtype=torch.int8)
    cut[0, 1] = 1
    where = own.places(region).of(zero, region.radius)
    leaves = Leaves(
        own, Bases.of(lower, upper), zero, cut, theta, head[:, :1], const[:1].clone(), where
    )
    leaves.bound()
    found, some = babsr(leaves)[:, 0].tolist(), 0
    for k in range(own.slots):
        low, high, a = float(lower[k]), float(upper[k]), float(leaves.coef[k])
        if not low < 0 < high or k == 1:
            assert found[k] == 0
            continue
        ratio = high / (high - low)
        gain = max(a * float(bias[k]) * (ratio - 1), a * float(bias[k]) * ratio)
        assert found[k] == pytest.approx(abs(gain - ratio * low * min(a, 0)))
        some += 1
    assert some > 2


def test_gains_of_cuts_are_learnt_by_neuron_side_and_input() -> None:
    costs = PseudoCosts(3, 2)
    assert torch.equal(costs.weight(), torch.ones(3, 2))
    sample, cut = torch.tensor([0, 0, 0, 1]), torch.tensor([-2, 2, 0, -1])
    gain, unit = torch.tensor([1.0, 3.0, 9.0, 0.5]), torch.tensor([2.0, 2.0, 1.0, 1.0])
    costs.tell(sample, cut, gain, unit)
    costs.tell(sample[:1], cut[:1], torch.tensor([torch.nan]), unit[:1])
    assert costs.count.sum() == 3, "what comes from no cut, or is no number, tells nothing"
    below, above = (PRIOR * 0.5 + 0.5) / (PRIOR + 1), (PRIOR * 1.5 + 1.5) / (PRIOR + 1)
    assert costs.weight()[1, 0] == pytest.approx(0.8 * below + 0.2 * above)
    assert costs.weight()[0, 1] == pytest.approx(0.8 * 0.5 + 0.2 * 1.0)


@pytest.mark.parametrize("seed", range(6))
def test_trees_prove_what_was_found(seed: int) -> None:
    graph = zoo.mlp(Relu(), (3, 8, 8, 3), seed)
    plan = Plan(graph)
    region, wanted = question(graph, seed, inf)
    low, _, last = closed(graph, region, wanted, seconds=20, gap=0.01)
    assert isinstance(last, Update) and isinstance(last.proof, Branched)
    (trees,) = last.proof.trees
    ball = region.with_radius(torch.full_like(region.radius, low * 0.999))
    proved = set((Frown().bound(plan, ball, wanted).literals[0] > 0).nonzero().flatten().tolist())
    for tree in trees:
        tree.check(plan)
        bounds = replayed(plan, ball, wanted, tree).tolist()
        own = zip(tree.literals.node.tolist(), tree.literals.literal.tolist(), bounds, strict=True)
        good = {(node, literal) for node, literal, bound in own if bound > 0}
        for t in set(tree.literals.literal.tolist()):
            if all((leaf, t) in good for leaf in tree.leaves.tolist()):
                proved.add(t)
    assert len(proved) == wanted.shape[1]


def test_clauses_need_one_literal_on_each_leaf() -> None:
    """max of two outputs above a third: neither literal holds everywhere."""
    graph = zoo.mlp(Relu(), (2, 8, 3), 3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *graph.input_shape, generator=generator, dtype=graph.dtype)
    shift = graph.apply(x).flatten()
    coef = torch.tensor([[[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]], dtype=graph.dtype)
    const = (0.3 - (shift[:2] - shift[2]))[None]
    wanted = LinearProperty(coef, const, torch.tensor([0, 0]))
    region = Region(x, torch.zeros(1, dtype=graph.dtype), inf)
    low, _, _ = closed(graph, region, wanted, seconds=10)
    crown = Crown().bound(Plan(graph), region.with_radius(region.radius + low), wanted)
    noise = torch.rand(20_000, *graph.input_shape, generator=generator, dtype=graph.dtype)
    points = x + low * (2 * noise - 1)
    many = wanted.rows(torch.zeros(len(points), dtype=torch.long))
    assert bool((many.margins(many.literals(graph.apply(points).flatten(1))) > 0).all())
    assert low > 0 and crown.literals.shape == (1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_one_radius_is_decided(seed: int) -> None:
    graph = zoo.mlp(Relu(), (3, 8, 8, 3), seed)
    region, wanted = question(graph, seed, inf)
    truth = exact(Plan(graph), region, wanted, Exact(), 3.0, 0.0, Work().clock, broken=False)
    below = region.with_radius(torch.full_like(region.radius, 0.99 * truth.proved))
    above = region.with_radius(torch.full_like(region.radius, min(1.01 * truth.broken, 3.0)))
    with torch.inference_mode():
        assert bool(wanted.holds(Branch().bound(Plan(graph), below, wanted).literals).all())
        if truth.broken < 3:
            assert not bool(wanted.holds(Branch().bound(Plan(graph), above, wanted).literals).any())


NETWORKS = {
    **{name: lambda op=op: zoo.mlp(op, (3, 4, 4, 3)) for name, op in functions.ELEMENTWISE.items()},
    "product": zoo.product,
    "quotient": zoo.quotient,
    "lstm": zoo.lstm,
    "max": zoo.conv_max,
    "softmax": zoo.softmax,
    "residual": lambda: zoo.residual(Tanh()),
}


def search_of(graph: Graph, region: Region, wanted: Property, radius: float) -> SampleSearch:
    one = torch.ones_like(region.radius)
    ends = Ends(0 * one, radius * one, inf * one.double(), region.centre, True)
    limits = Limits(5.0, 0.01, True)
    search = SampleSearch(Plan(graph), region, wanted, ends, Frown(), limits, Work())
    for own in search.inputs:
        own.radius = radius
    return search


@pytest.mark.parametrize("assume", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_true_points_on_random_paths_of_any_network_violate_nothing(
    name: str, assume: bool
) -> None:
    """Pick the points at which a literal is at most the level assumed."""
    graph = NETWORKS[name]()
    plan = Plan(graph)
    radius = 0.3 if name in functions.ELEMENTWISE else 0.05
    region, wanted = question(graph, 0, inf, radius)
    with torch.inference_mode():
        search = search_of(graph, region, wanted, radius)
        search.assume = assume
        points = zoo.samples(region, 300)[:, 0]
        values = {0: points}
        for step in reversed(plan.route(graph.output)):
            op = step.affine if step.affine is not None else step.relaxation
            assert op is not None
            values[step.node] = op.apply(*[values[j] for j in step.inputs])
        every = torch.cat([values[i].flatten(1) for i in search.sources], 1)
        many = wanted.rows(torch.zeros(len(points), dtype=torch.long))
        literals = many.literals(values[graph.output].flatten(1))
        kept = torch.ones(len(points), dtype=torch.bool)
        if assume:
            search.slack = literals[:, 0].quantile(0.3)[None]
            kept = literals[:, 0] <= search.slack
        free = search.free
        root = TreeNode(0, int(wanted.clause[0]), -free, free, -free, free)
        found = search._bound([root], Frown())
        assert found.half is None and bool(found.margins.isfinite().all())
        search._take(root, found, 0)
        root.before, root.literal = root.slopes, 0
        generator = torch.Generator().manual_seed(1)
        followed = kept.nonzero().flatten()[:6].tolist()
        for follow in followed:
            here, inside = root, kept
            for _ in range(4):
                slot = int(torch.randint(len(search.entry), (1,), generator=generator))
                point = search._point(slot, here)
                if point is None:
                    continue
                entry = int(search.entry[slot])
                side = bool(every[follow, entry] >= point)
                here = search._children(here, slot, point)[side]
                here.literal = 0
                inside = inside & ((every[:, entry] >= point) == side)
                found = search._bound([here], search.fine)
                assert (found.half is not None) == assume
                if assume:
                    hold(search, here, {i: values[i][inside] for i in search.sources})
                slack = 1e-9 * (1 + every.abs())
                low, high = found.lower[0], found.upper[0]
                assert bool((every[inside] >= low - slack[inside]).all())
                assert bool((every[inside] <= high + slack[inside]).all())
                assert bool((literals[inside] >= found.literals[0] - 1e-9).all())
                search._take(here, found, 0)
            assert inside[follow]


def planes_of(search: SampleSearch, node: TreeNode) -> dict[int, Planes]:
    """The planes of layers that a node is bounded with."""
    ball = search.region.with_radius(search._radii(torch.tensor([0])))
    lower, upper = node.lower[None], node.upper[None]
    shapes = {i: (1, *search.plan.graph.nodes[i].shape) for i in search.sources}
    boxes = {
        i: Intervals(lower[:, p].view(shapes[i]), upper[:, p].view(shapes[i]))
        for i, p in search.parts.items()
    }
    return search._planes([node], ball, Given(boxes, cuts=True))[1]


def hold(search: SampleSearch, node: TreeNode, values: dict[int, Tensor]) -> None:
    """Planes of layers, as the search has them, have all points that count on the right side."""
    for i, own in planes_of(search, node).items():
        z = values[i].flatten(1)
        above = own.rows(torch.zeros(len(z), dtype=torch.long)).at(z)
        size = 1 + own.coef.abs().sum((0, 2)) * z.abs().amax() if len(z) else 1.0
        assert bool((above <= 1e-9 * size).all())


def test_planes_follow_from_cuts_of_later_layers() -> None:
    """Every layer but the first has a plane of the literal, and one of each cut beyond it."""
    graph = zoo.mlp(Tanh(), (4, 6, 6, 6, 3), 1)
    region, wanted = question(graph, 1, inf, 0.2)
    with torch.inference_mode():
        search = search_of(graph, region, wanted, 0.2)
        free = search.free
        root = TreeNode(0, int(wanted.clause[0]), -free, free, -free, free)
        search._take(root, search._bound([root], Frown()), 0)
        slot = len(search.entry) - 1
        point = search._point(slot, root)
        assert point is not None
        child = search._children(root, slot, point)[1]
        assert child.heads == ((slot, 1),) and child.fresh == 1
        found = search._bound([child], search.fine)
        planes = planes_of(search, child)
        assert found.tables is not None
        first, middle, last = search.sources
        assert set(found.tables.factors) == {(middle, 0), (last, 0)} and first not in planes
        assert bool((found.tables.factors[middle, 0] > 0).any())
        used = {i: (own.coef != 0).any(2)[0].tolist() for i, own in planes.items()}
        assert used[middle][:2] == [True, True] and not any(used[middle][2:])
        assert used[last][0] and not any(used[last][1:])
        # A cut that comes anew takes the place of the oldest.
        for k in range(12):
            child = search._children(child, k, float(child.lower[k]))[0]
        assert len(child.heads) == PLANES - 1 and (slot, 1) not in child.heads
        assert child.heads[child.last - 1] == (11, 0)


def test_searches_of_any_network_leave_time_for_the_replay() -> None:
    """Nothing more is begun where the replay of what is proved takes all the time left."""
    graph = zoo.mlp(Tanh(), (3, 4, 4, 3), 0)
    region, wanted = question(graph, 0, inf, 0.3)
    for replayed in (True, False):
        search = search_of(graph, region, wanted, 0.3)
        search.replayed = replayed
        search.inputs[0].proved, search.total, search.spent = 100, 1, 1.0
        with torch.inference_mode():
            news = next(search.run(region.centre))
        assert (news.remark == "branching ran out of time") == replayed


@pytest.mark.parametrize("p", [1, 2, 3, inf])
@pytest.mark.parametrize("form", ["plain", "clipped", "scaled"])
def test_what_is_assumed_tightens_boxes_of_all_layers(p: float, form: str) -> None:
    """Over every kind of region, and never past a point at which the literal is as assumed."""
    graph = zoo.mlp(Tanh(), (4, 6, 6, 3), 1)
    region, wanted = question(graph, 1, p, 0.2)
    if form == "clipped":
        region = Region(
            region.centre, region.radius, p, None, region.centre - 0.1, region.centre + 0.15
        )
    elif form == "scaled":
        scale = torch.linspace(0.2, 1.5, region.centre.numel(), dtype=graph.dtype)
        region = Region(region.centre, region.radius, p, scale.view_as(region.centre))
    with torch.inference_mode():
        search = search_of(graph, region, wanted, 0.2)
        points = zoo.samples(region, 2000)[:, 0]
        many = wanted.rows(torch.zeros(len(points), dtype=torch.long))
        literal = many.literals(graph.apply(points).flatten(1))[:, 0]
        search.slack = literal.quantile(0.05)[None]
        free = search.free
        root = TreeNode(0, int(wanted.clause[0]), -free, free, -free, free)
        whole = search._bound([root], Frown())
        search._take(root, whole, 0)
        root.before, root.literal = root.slopes, 0
        part = search._bound([root], search.fine)
    width, before = (b.upper - b.lower for b in (part, whole))
    for i in search.sources:
        own = search.parts[i]
        assert bool((width[0, own] <= before[0, own] + 1e-9).all())
    assert float(width.sum()) < 0.97 * float(before.sum())
    assert float(part.literals[0, 0]) > float(whole.literals[0, 0])
    assert float(part.literals[0, 0]) <= float(literal.min()) + 1e-9


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "leaky_relu", "silu", "abs", "product"])
def test_any_network_gains_by_branching(name: str) -> None:
    graph = NETWORKS[name]()
    region, wanted = question(graph, 0, inf)
    root = Frown().bound(Plan(graph), region.with_radius(region.radius + 1e-4), wanted)
    assert bool(wanted.holds(root.literals).all())
    low, high, _ = closed(graph, region, wanted, limit=1.0, seconds=6 if name == "product" else 2)
    assert 0 < low <= min(high, 1.0)
    ball = region.with_radius(torch.full_like(region.radius, low))
    points = zoo.samples(ball, 2000)[:, 0]
    many = wanted.rows(torch.zeros(len(points), dtype=torch.long))
    assert bool((many.margins(many.literals(graph.apply(points).flatten(1))) > 0).all())
    frown_alone = wanted.holds(Frown().bound(Plan(graph), ball, wanted).literals)
    assert not bool(frown_alone.all()) or high <= low * 1.02 or low == 1.0


@pytest.mark.parametrize("p", [2, inf])
def test_images_are_flattened_before_curved_layers(p: float) -> None:
    """Rows end at the first dense layer there, and planes are about later ones."""
    w, b = zoo.Weights.seeded(5), Builder()
    x = b.add(Reshape((1, 4, 4), (16,)), b.input("x", (1, 4, 4)))
    h = b.add(Tanh(), b.linear(x, w(10, 16), w(10)))
    g = b.add(Tanh(), b.linear(h, w(10, 10), w(10)))
    graph = b.graph(b.linear(g, w(3, 10), w(3)))
    region, wanted = question(graph, 5, p)
    low = closed(graph, region, wanted, seconds=2, limit=1.0)[0]
    assert low > 0
    points = zoo.samples(region.with_radius(region.radius + low), 500)[:, 0]
    many = wanted.rows(torch.zeros(len(points), dtype=torch.long))
    assert bool((many.literals(graph.apply(points).flatten(1)) > 0).all())


def test_rows_of_smooth_networks_are_rigorous_and_not_below_frown() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(3, 4)
    y = module(x).argmax(1)
    model = frown.load(module, x[:1])
    alone = asking.certify(model, x, y, method="frown", attack=False).rows
    rows = asking.certify(model, x, y, method=Branch(seconds=0.3), attack=False).rows
    for row, base in zip(rows, alone, strict=True):
        assert row.level == "rigorous" and row.status == "certified"
        assert row.radius >= base.radius * (1 - 1e-6) > 0


@pytest.mark.parametrize("seed", range(3))
def test_kinks_of_other_functions_close_brackets_too(seed: int) -> None:
    graph = zoo.mlp(LeakyRelu(0.1), (2, 5, 3), seed)
    region, wanted = question(graph, seed, inf)
    low, _, _ = closed(graph, region, wanted, seconds=10, limit=3.0)
    truth = exact(Plan(graph), region, wanted, Exact(), 3.0, 0.0, Work().clock, broken=False)
    assert low <= truth.broken * (1 + 1e-6)
    assert low >= 0.9 * truth.proved


def test_boxes_that_are_given_are_refused() -> None:
    graph = zoo.mlp(Relu(), (2, 4, 2), 0)
    region, wanted = question(graph, 0, inf, 0.1)
    with pytest.raises(InvalidInput, match="given"):
        Branch().bound(Plan(graph), region, wanted, None, Given({}))
    assert isinstance(passes(Plan(graph)), Dense)


def test_execution_in_single_precision_is_refused_for_trees() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    model = frown.load(module, torch.zeros(1, 2))
    with pytest.raises(InvalidInput, match="take the method frown"):
        asking.certify(model, torch.zeros(1, 2), method=Branch(), deployed="float32")


def test_prices_of_an_empty_piece_outweigh_the_row() -> None:
    """Two sides that exclude each other by a hair, and a row far below 0."""
    rng = np.random.default_rng(0)
    slope = rng.normal(size=(3, 4))
    slope[1] = -slope[0]
    shift = np.array([-1e-4, -1e-4, 0.3])  # z0 >= 0 and z1 = -z0 - 2e-4 >= 0
    side, held = np.ones(3), np.array([True, True, False])
    for p in (1.0, 2.0, inf):
        ball = PieceBall.of(Region(torch.zeros(1, 4), torch.ones(1), p))
        piece = Piece(slope, shift, rng.normal(size=4), -50.0, side, held)
        price = empty(piece, ball, 0.5, 5.0)
        assert price is not None and (price >= 0).all() and price[2] == 0
        # The least of row - price . side z over the ball.
        coef = piece.row - (price * side) @ slope
        size = np.linalg.norm(coef, {1.0: inf, 2.0: 2, inf: 1}[p])
        assert piece.const - float((price * side) @ shift) - 0.5 * size > 0


@pytest.mark.parametrize("p", [1.0, inf])
def test_the_nearest_point_of_a_piece_is_that_of_the_whole_program(p: float) -> None:
    """Sides join the program when they are violated; all of them hold in the end."""
    linprog = pytest.importorskip("scipy.optimize").linprog
    found = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n, sides = 5, 30
        slope, inside = rng.normal(size=(sides, n)), rng.normal(size=n)
        shift = -slope @ inside * (1 - rng.random(sides) * 0.3)
        side = np.where(slope @ inside + shift > 0, 1.0, -1.0)
        row = rng.normal(size=n)
        piece = Piece(slope, shift, row, float(-row @ inside) - 0.1, side, np.ones(sides, bool))
        clipped = seed % 2 == 1
        limits = (torch.full((1, n), -2.0), torch.full((1, n), 1.5)) if clipped else (None, None)
        region = Region(torch.zeros(1, n), torch.ones(1), p, None, *limits)
        x = nearest(piece, PieceBall.of(region), 20.0, 1.0, 5.0)
        # min t with the sides, the row at most 0, and |x|_p <= t.
        above = np.hstack([-side[:, None] * slope, np.zeros((sides, n + 1))])
        last = np.append(row, np.zeros(n + 1))[None]
        size = np.hstack([np.eye(n), -np.eye(n), np.zeros((n, 1))])
        other = np.hstack([-np.eye(n), -np.eye(n), np.zeros((n, 1))])
        total = np.hstack([np.zeros((n, n)), np.eye(n), -np.ones((n, 1))])
        if p == 1:
            total = np.concatenate([np.zeros(n), np.ones(n), [-1.0]])[None]
        matrix = np.vstack([above, last, size, other, total])
        high = np.concatenate([side * shift, [-piece.const], np.zeros(2 * n + len(total))])
        ends = [(-2.0, 1.5) if clipped else (None, None)] * n + [(0, None)] * (n + 1)
        whole = linprog(np.append(np.zeros(2 * n), 1.0), matrix, high, bounds=ends)
        if whole.status != 0 or whole.fun > 20:
            assert x is None
            continue
        assert x is not None
        found += 1
        length = np.abs(x).max() if p == inf else np.abs(x).sum()
        assert abs(length - whole.fun) <= 1e-4 * (1 + whole.fun)
        assert (side * (slope @ x + shift) >= -1e-6).all() and row @ x + piece.const <= 1e-9
    assert found > 4


def test_time_for_the_replay_is_kept_back() -> None:
    """A search whose proofs are replayed ends earlier than its limit says."""
    graph = zoo.mlp(Relu(), (3, 8, 8, 3), 1)
    region, wanted = question(graph, 1, inf)
    one = torch.ones_like(region.radius)
    own = passes(Plan(graph))
    assert own is not None
    kept = []
    for replayed_ in (False, True):
        ends = Ends(0 * one, 3 * one, inf * one.double(), region.centre, False, replayed_)
        limits = Limits(20, 0.01, False)
        search = ReluSearch(
            Plan(graph), own, region, wanted, ends, Frown(), limits, Work(), LeafAscent()
        )
        with torch.inference_mode():
            for _ in search.run(region.centre):
                pass
        kept.append(search.replay_seconds())
    assert kept[0] == 0 < kept[1] < 5


def test_programs_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counterexamples are drawn nearer by linear programs, for as long as time is left."""
    given: list[float] = []

    def slow(piece: object, ball: object, most: float, unit: float, seconds: float) -> None:
        given.append(seconds)
        time.sleep(min(seconds, 0.4))

    monkeypatch.setattr(relu, "nearest", slow)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 3))
    model, x = frown.load(layers, torch.zeros(1, 4)), torch.randn(8, 4).numpy()
    frown.certify(model, x, machine=frown.Machine(seconds=0.5), method=Branch())
    assert given and max(given) <= 0.5 and sum(min(s, 0.4) for s in given) < 1.0


def test_programs_that_take_too_much_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a program was made")

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(60, 3000), nn.ReLU(), nn.Linear(3000, 3))
    model, x = frown.load(layers, torch.zeros(1, 60)), torch.randn(1, 60).numpy()
    assert Pieces(plan_for(model, frown.Machine(), model.graph)).fit(20_000_000)
    monkeypatch.setattr(relu, "nearest", never)
    monkeypatch.setattr(relu, "decide", never)
    machine = frown.Machine(memory=4_000_000, seconds=2)
    frown.certify(model, x, machine=machine, method=Branch(seconds=0.5))


def test_a_radius_that_would_take_too_long_is_given_up_for_a_nearer_one() -> None:
    stage = Stage(0, 1.0, 3.0, inf)
    stage.advance(Limits(10, 0.01, False))
    first = stage.radius
    stage.waiting, stage.bounded, stage.begun = False, 5000, 100
    stage.rest = 0.4
    assert not stage.retreat(4000)  # the other 40 % will be done in time
    stage.rest = 0.9
    assert stage.retreat(4000) and stage.waiting and stage.bounded == 0
    assert 1.0 < stage.radius < first and not stage.rests
    stage.bounded = 10
    assert not stage.retreat(1000.0)  # too early to tell
    tried = stage.radius
    stage.bounded, stage.begun, stage.rest = 3000, 1, 1.0
    assert stage.retreat(4000) and 1.0 < stage.radius < 1 + 0.5 * (tried - 1)  # nothing was proved
    stage.bounded, stage.begun = 50_000, 100_000
    stage.seen.append((1.0, 100_000))
    assert stage.retreat(1000) and stage.rests  # no radius that is larger is near enough


@pytest.mark.parametrize("rate", [4.0, 40.0, 80.0])
def test_a_first_radius_tells_how_far_the_next_may_go(rate: float) -> None:
    """Trees of exp(rate * distance) leaves: no radius after the first needs a hundred times as many
    leaves as the one before, and cheap ones go far."""
    stage, limits, taken = Stage(0, 1.0, 3.0, inf), Limits(10, 0.01, False), [1.0]
    for _ in range(3):
        stage.advance(limits)
        taken.append(float(np.exp(min(rate * (stage.radius - 1), 200))))
        stage.low = stage.radius
        stage.seen.append((stage.radius, int(taken[-1])))
    assert all(after < 100 * before for before, after in pairwise(taken[1:]) if before > 80)
    assert stage.seen[1][0] < 1.2  # the first is near
    assert rate > 4 or stage.low > 2


@pytest.mark.parametrize("failed", [False, True])
def test_a_radius_after_one_that_failed_begins_with_new_trees(failed: bool) -> None:
    """Leaves of a radius that was too large are many more than a smaller one needs."""
    graph = zoo.mlp(Relu(), (6, 24, 24, 24, 3), 3)
    plan, (region, wanted) = Plan(graph), question(graph, 3, inf)
    one, own_passes = torch.ones_like(region.radius), passes(plan)
    assert own_passes is not None
    ends = Ends(0.01 * one, 3 * one, inf * one.double(), region.centre, False)
    limits = Limits(10.0, 0.001, False)
    with torch.inference_mode():
        search = ReluSearch(
            plan, own_passes, region, wanted, ends, Frown(), limits, Work(), LeafAscent()
        )
        (own,) = search.inputs
        own.radius = 0.6
        list(search._roots([own]))
        assert own.begun == len(own.problems) > 0
        list(search._step(search._choose([own])))
        many = own.leaves()
        assert many > own.begun
        own.radius, own.waiting, own.fresh = 0.59, True, failed
        list(search._roots([own]))
    assert own.begun == (len(own.problems) if failed else many) and not own.fresh


def test_radii_never_creep_towards_one_that_took_too_long() -> None:
    stage, limits = Stage(0, 1.0, 3.0, inf), Limits(10, 0.01, False)
    stage.advance(limits)
    stage.bounded, stage.begun, stage.rest = 5000, 100, 0.9
    assert stage.retreat(4000)
    steps = 0
    while not stage.done:
        assert steps < 60
        stage.low = stage.radius
        stage.seen.append((stage.radius, 4000 + 10 * steps))
        stage.advance(limits)
        steps += 1
    assert stage.low * 1.01 >= stage.high


@pytest.mark.parametrize("form", ["plain", "clipped", "scaled"])
def test_pieces_of_euclidean_balls_are_decided(form: str) -> None:
    """The least value is below that of all points of the piece, and its prices prove it: the
    dual's value, which any prices bound, is the same."""
    decided = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        slope, inside = rng.normal(size=(12, 4)), rng.normal(size=4) * 0.3
        shift = rng.normal(size=12)
        side = np.where(slope @ inside + shift > 0, 1.0, -1.0)
        piece = Piece(slope, shift, rng.normal(size=4), 0.1, side, rng.random(12) < 0.8)
        limits = (torch.full((1, 4), -0.4), torch.full((1, 4), 0.6))
        region = Region(torch.zeros(1, 4), torch.ones(1), 2.0)
        if form == "clipped":
            region = Region(torch.zeros(1, 4), torch.ones(1), 2.0, None, *limits)
        elif form == "scaled":
            scale = torch.tensor([[0.5, 2.0, 0.0, 1.0]])
            region = Region(torch.zeros(1, 4), torch.ones(1), 2.0, scale)
        ball = PieceBall.of(region)
        found = decide(piece, ball, 0.9, 5.0)
        every = torch.zeros(4000, dtype=torch.long)
        noise = torch.from_numpy(rng.normal(size=(4000, 4))).float()
        radius = torch.full((4000,), 0.9)
        x = region.rows(every).with_radius(radius).project(noise).double().numpy()
        good = ((side * (x @ slope.T + shift) >= 0) | ~piece.held).all(1)
        if found is None:
            assert not good.any() and empty(piece, ball, 0.9, 5.0) is not None
            continue
        decided += 1
        values = x[good] @ piece.row + piece.const
        assert not len(values) or values.min() >= found.value - 1e-5
        assert ((side * (slope @ found.point + shift) >= -1e-6) | ~piece.held).all()
        assert abs(piece.row @ found.point + piece.const - found.value) < 1e-6
        coef = torch.from_numpy(piece.row - (found.price * side) @ slope).float()[None]
        at = region.with_radius(torch.tensor([0.9]))
        least = float(at.minimise(coef).value) + piece.const - float((found.price * side) @ shift)
        assert abs(least - found.value) < 1e-3
    assert decided >= 2


def test_leaves_of_euclidean_balls_are_decided_by_programs() -> None:
    """Every piece of a tiny network is asked about: with steps alone, brackets stay open."""
    for seed in range(3):
        graph = zoo.mlp(Relu(), (2, 5, 3), seed)
        region, wanted = question(graph, seed, 2)
        low, high, _ = closed(graph, region, wanted, limit=50.0, seconds=10)
        assert high < inf and low >= high / 1.0011


def searched(memory: int, radii: tuple[float, ...]) -> tuple[ReluSearch, list[Update]]:
    """A search at one radius of an input, or at one for each of several copies of it."""
    graph = zoo.mlp(Relu(), (20, 40, 40, 3), 1).to(torch.float32)
    region, wanted = question(graph, 4, inf)
    copies, radius = torch.zeros(len(radii), dtype=torch.long), torch.tensor(radii)
    region, every, plan = region.rows(copies), wanted.rows(copies), Plan(graph)
    ends = Ends(0 * radius, radius, inf * radius.double(), region.centre, True)
    own = passes(plan)
    assert own is not None
    limits, work = Limits(60, 0.01, True), Work(memory=memory)
    search = ReluSearch(
        plan, own, region, every, ends, Frown(), limits, work, LeafAscent(), batch=16
    )
    with torch.inference_mode():
        return search, list(search.run(region.centre))


def test_leaves_in_files_prove_what_they_prove_in_memory() -> None:
    found = []
    for memory in (1 << 30, 1 << 15):
        search, updates = searched(memory, (0.307,))
        assert (search.nodes.memory == 0) == (memory == 1 << 15)
        (proof,) = (u.proof for u in updates if isinstance(u.proof, Branched))
        found.append(proof.trees[0])
    for a, b in zip(*found, strict=True):
        assert len(a) > 100
        for name in ("site", "neuron", "point"):
            assert bool((getattr(a, name) == getattr(b, name)).all())
        assert bool((a.literals.slopes == b.literals.slopes).all())
        assert bool((a.literals.multipliers.value == b.literals.multipliers.value).all())


def test_the_largest_tree_is_let_go_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 150
    whole, _ = searched(1 << 30, (0.307,))
    assert whole.inputs[0].low == pytest.approx(0.307) and whole.nodes.rows > most + 100
    monkeypatch.setattr(ReluSearch, "most_leaves", most)
    search, updates = searched(1 << 30, (0.25, 0.307, 0.26))
    assert search.nodes.rows <= most + 16
    last = {u.sample: u for u in updates}
    assert last[1].remark == "branching ran out of memory" and not last[1].complete
    assert last[1].proved == 0 and search.inputs[1].problems == {}
    for n, radius in ((0, 0.25), (2, 0.26)):
        proof = last[n].proof
        assert last[n].complete and last[n].proved == pytest.approx(radius)
        assert isinstance(proof, Branched) and len(proof.trees[0][0].leaves) > 10
        # Their leaves were numbered anew on the way, and are theirs still.
        alone, others = searched(1 << 30, (radius,))
        (same,) = (u.proof for u in others if isinstance(u.proof, Branched))
        leaves = sum(len(tree.leaves) for tree in proof.trees[0])
        assert leaves == sum(len(tree.leaves) for tree in same.trees[0])
        assert alone.inputs[0].low == last[n].proved


def test_multipliers_too_large_for_half_precision_stay_as_they_are() -> None:
    nodes = Nodes(3, torch.zeros(1), most=0)
    root = nodes.plant(0, torch.tensor([0.5, 0.25, 1.0]))
    low, high = nodes.split(torch.tensor([root]), torch.tensor([1]), torch.ones(1))
    large = torch.tensor([[0.5, 3.0e6, 0.125]])
    nodes.set_theta(low, large)
    assert bool((nodes.theta(low) == large).all())
    assert nodes.theta(high).tolist() == [[0.5, 0.0, 1.0]]
    assert nodes.cut(low).tolist() == [[0, -1, 0]] and nodes.cut(high).tolist() == [[0, 1, 0]]
    assert nodes.preorder(root).tolist() == [root, int(low), int(high)]


def test_no_input_takes_all_that_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relu, "SHARE", 1e-4)  # of a minute
    search, updates = searched(1 << 30, (0.307, 0.2))
    last = {u.sample: u for u in updates}
    assert last[0].remark == "branching ran out of time" and not last[0].complete
    assert search.seconds(search.inputs[0]) < 0.5 < search.limits.seconds
