"""Random trees over networks of every kind, replayed as the prover does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import frown
from charged.exact import Network, balls, exact
from check.networks import NETWORKS, built
from check.test_claims import exact_minimum, sampled
from frown.bounds.cases import ByRows, Replayed, replay_tree
from frown.bounds.method import Ends
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Proof
from frown.bounds.replay import Replay
from frown.bounds.tree import INPUT, LEAF, Branched, Literals, Multipliers, Tree
from frown.bounds.work import Work
from frown.certification.certificate import Recorder
from frown.graph.simplify import tidy
from frown.methods.branch.radii import Limits
from frown.methods.branch.samples import SampleSearch
from frown.problem.problem import Problem, Regions
from frown.problem.property import LabelWins, LinearProperty, Property, other_classes
from frown.problem.region import Region
from frown.relax.relaxation import LeastArea
from onnx_models import node


@dataclass(frozen=True)
class Case:
    """A network, an input and a tree."""

    path: Path
    model: frown.Model
    plan: Plan
    x: np.ndarray
    label: int
    radius: float
    p: float
    tree: Tree
    more: tuple[Tree, ...] = ()  # of other clauses
    root: Proof | None = None  # None: CROWN's lines


@dataclass(frozen=True)
class Found:
    case: Case
    problem: Problem
    replay: Replay
    recorder: Recorder
    margins: Tensor  # (clauses,) by the root or, where that proves nothing, by the tree
    tree: Replayed
    more: tuple[Replayed, ...]

    @property
    def leaves(self) -> int:
        return sum(len(done.tree.leaves) for done in (self.tree, *self.more))

    def file(self) -> bytes:
        about = (self.case.model, self.problem, self.replay, 0, self.case.radius)
        return self.recorder.file(*about, [self.tree, *self.more])


def random_tree(
    plan: Plan, literals: int, rng: np.random.Generator, depth: int, x: np.ndarray, width: float
) -> Tree:
    """Cuts anywhere, at points near the input's own values; rows at leaves, and at some others."""
    values = plan.graph.values(torch.from_numpy(x)[None].to(plan.graph.dtype))
    reads = [values[plan.graph.nodes[i].inputs[0]].flatten().numpy() for i in plan.nonlinear]
    slots = plan.slots(plan.graph.output)[1]
    site, neuron, point, at = [], [], [], []

    def grow(left: int) -> None:
        here = len(site)
        cut = left > 0 and rng.random() > 0.15
        k = int(rng.integers(-1, len(reads))) if cut else LEAF
        around = x.ravel() if k == INPUT else reads[k] if k >= 0 else np.zeros(1)
        j = int(rng.integers(len(around)))
        site.append(k)
        neuron.append(j)
        middle = around[j] if np.isfinite(around[j]) else 0.0
        point.append(float(middle + rng.normal() * width * rng.choice([0.1, 1.0])))
        if not cut or rng.random() < 0.2:
            at.extend([here] * literals)
        if cut:
            grow(left - 1)
            grow(left - 1)

    grow(depth)
    count = len(at)
    slopes = torch.from_numpy(rng.uniform(0, 1, (count, slots)))
    slopes[torch.from_numpy(rng.random((count, slots)) < 0.3)] = torch.nan
    m = torch.from_numpy(rng.normal(size=(count, slots)) * width)
    m[torch.from_numpy(rng.random((count, slots)) < 0.9)] = 0.0
    literal = torch.arange(count) % literals
    rows = Literals(torch.tensor(at), literal, slopes, Multipliers.of(m))
    return Tree(
        torch.tensor(site), torch.tensor(neuron), torch.tensor(point, dtype=torch.float64), rows
    )


def case_rows(root: Replay, tree: Tree, wanted: Property) -> ByRows:
    """The rows of the first sample's tree, about all clauses."""
    return ByRows(root, 0, tree, wanted, torch.ones(wanted.clauses, dtype=torch.bool))


def kink_tree(plan: Plan, literals: int, rng: np.random.Generator, depth: int) -> Tree:
    """Cuts of a ReLU network at kinks alone, no neuron twice on a way, with multipliers of the
    right sign there and nowhere else: as branching grows them."""
    places, slots = plan.slots(plan.graph.output)
    starts = [places[i].start for i in plan.nonlinear]
    sizes = [places[i].stop - places[i].start for i in plan.nonlinear]
    site, neuron, at, lifts = [], [], [], []

    def grow(left: int, sides: dict[int, int]) -> None:
        k = int(rng.integers(len(sizes)))
        j = int(rng.integers(sizes[k]))
        cut = left > 0 and rng.random() > 0.15 and starts[k] + j not in sides
        if not cut:
            own = np.zeros(slots)
            for slot, side in sides.items():
                own[slot] = -side * rng.choice([0.0, 1e-3, 1.0, 1e3]) * rng.random()
            at.extend([len(site)] * literals)
            lifts.extend([own] * literals)
        site.append(k if cut else LEAF)
        neuron.append(j if cut else 0)
        for side in (-1, 1) if cut else ():
            grow(left - 1, {**sides, starts[k] + j: side})

    grow(depth, {})
    count = len(at)
    slopes = torch.from_numpy(rng.uniform(0, 1, (count, slots)))
    slopes[torch.from_numpy(rng.random((count, slots)) < 0.3)] = torch.nan
    m = Multipliers.of(torch.from_numpy(np.array(lifts)))
    rows = Literals(torch.tensor(at), torch.arange(count) % literals, slopes, m)
    point = torch.zeros(len(site), dtype=torch.float64)
    return Tree(torch.tensor(site), torch.tensor(neuron), point, rows)


def _case(
    path: Path,
    x: np.ndarray,
    label: int | None,
    radius: float,
    p: float,
    rng: np.random.Generator,
    depth: int,
) -> Case:
    model = frown.load(path)
    plan = Plan(tidy(model.ranking))
    if label is None:
        label = int(model.ranking.apply(torch.from_numpy(x)[None]).argmax())
    tree = random_tree(plan, model.classes - 1, rng, depth, x, radius)
    return Case(path, model, plan, x, label, radius, p, tree)


def drawn_case(name: str, seed: int, folder: Path, radius: float | None = None) -> Case:
    rng = np.random.default_rng([seed, 7])
    folder.mkdir(parents=True, exist_ok=True)
    net = NETWORKS[name](folder, rng)
    x = rng.normal(size=net.shape) * 0.5
    size = float(rng.choice([1e-6, 0.01, 0.1, 0.5])) if radius is None else radius
    return _case(net.path, x, None, size, float(rng.choice([inf, 2.0, 1.0])), rng, 4)


def line_case(seed: int, folder: Path) -> tuple[Case, Fraction]:
    """A ReLU network with one input, and its exact least margin; weights are hostile."""
    rng = np.random.default_rng([seed, 8])
    sizes = [1, *rng.integers(1, 4, 2), 2]
    layers, nodes, sites, known = [], [], [], {}
    last = "x"
    for k, (n, m) in enumerate(pairwise(sizes)):
        w = rng.normal(size=(n, m)) * rng.choice([1.0, 1.0, 1e-8, 1e12, 1e-160], (n, m))
        if n > 1:
            w[1] = -w[0] * (1 + rng.choice([0.0, 2**-52, 1e-9]))
        b = rng.normal(size=m) * rng.choice([0.0, 1.0, 1e-12, 1e30])
        layers.append((w, b))
        known[f"w{k}"], known[f"b{k}"] = w, b
        out = "y" if k == 2 else f"z{k}"
        nodes.append(node("Gemm", f"{last} w{k} b{k}", out))
        if k < 2:
            nodes.append(node("Relu", out, f"a{k}"))
            sites.append((f"a{k}", "Relu", int(m)))
            last = f"a{k}"
    net = built(folder, nodes, (1,), known, sites)
    x, radius = rng.normal(size=1), float(rng.choice([1e-12, 1e-3, 1.0]))
    label = int(rng.integers(2))
    low, high = (Fraction(float(x[0])) + s * Fraction(radius) for s in (-1, 1))
    truth = exact_minimum(layers, low, high, label)
    return _case(net.path, x, label, radius, inf, rng, 5), truth


def grown_case(name: str, seed: int, folder: Path) -> Case | None:
    """A network with trees that branching has grown, whose nodes bound the network anew; None
    where nothing was proved beyond FROWN's own radius."""
    case = drawn_case(name, seed, folder, radius=0.0)
    region, wanted = _asked(case)[1:]
    ends = torch.zeros(1, dtype=torch.float64)
    most = torch.full_like(ends, inf)
    inner = frown.Frown(steps=3)
    with torch.inference_mode():
        for low in 2.0 ** -torch.arange(12.0):  # where FROWN proves something, to begin with
            ball = region.with_radius(low.expand(1).double())
            if bool(wanted.holds(inner.bound(case.plan, ball, wanted).literals).all()):
                ends = ball.radius
                break
        else:
            return None
        search = SampleSearch(
            case.plan,
            region,
            wanted,
            Ends(ends, 8 * ends, most, region.centre, False),
            inner,
            Limits(0.5, 0.01, False),
            Work(),
        )
        found = [update for update in search.run(region.centre) if update.proof is not None]
    proofs = [(u.proved, u.proof) for u in found if isinstance(u.proof, Branched)]
    grown = [own for own in proofs if own[1].trees[0]]
    if not grown:
        return None
    # The latest that is cut somewhere, if there is one: to assume may suffice.
    radius, proof = max(grown, key=lambda own: any(len(tree) > 1 for tree in own[1].trees[0]))
    first, *more = proof.trees[0]
    own = replace(case, radius=radius * (1 - 1e-4), tree=first, more=tuple(more))
    return replace(own, root=proof.root)


def _asked(case: Case) -> tuple[Problem, Region, Property]:
    label, graph = torch.tensor([case.label]), case.plan.graph
    none = np.zeros(1, np.int64)
    regions = Regions(case.x[None], case.p, None, None, None, none, none - 1)
    classes = case.model.classes
    wins = LabelWins(label, other_classes(label, classes), classes, torch.float64)
    problem = Problem(regions, wins)
    own = problem.on(graph).at(torch.tensor([case.radius], dtype=torch.float64))
    return problem, own.region, own.property


def replayed(case: Case, doubts: Tensor | None = None) -> Found:
    """The root by its own lines or CROWN's, then trees for what that leaves open."""
    problem, region, wanted = _asked(case)
    recorder = Recorder(case.plan)
    with torch.inference_mode():
        root = case.root or ByRule(LeastArea())
        replay = Replay(case.plan, region, root, Work(), record=recorder)
        replay.layers()
        margins = wanted.margins(replay.literals(wanted))[0]
        left = ~(margins > 0)
        trees = [
            replay_tree(replay, 0, tree, wanted, left, doubts, record=True)
            for tree in (case.tree, *case.more)
        ]
        for done in trees:
            margins = torch.where(left, margins.maximum(done.margins), margins)
    return Found(case, problem, replay, recorder, margins, trees[0], tuple(trees[1:]))


def beside_false_clauses(case: Case) -> list[tuple[int, list[float]]]:
    """The clause of every tree that is about one, and the margins that it gives of all clauses
    where the others are false at every point."""
    _, region, wanted = _asked(case)
    found = []
    for tree in (case.tree, *case.more):
        if tree.clause is None:
            continue
        const = wanted.const.new_full(wanted.shape, -1e6)
        const[:, wanted.clause == tree.clause] = 0.0
        coef = wanted.pick(slice(None)).view(*wanted.shape, -1)
        false = LinearProperty(coef, const, wanted.clause)
        with torch.inference_mode():
            replay = Replay(case.plan, region, case.root or ByRule(LeastArea()), Work())
            replay.layers()
            every = torch.ones(wanted.clauses, dtype=torch.bool)
            done = replay_tree(replay, 0, tree, false, every)
        found.append((tree.clause, done.margins.tolist()))
    return found


def at_points(case: Case, count: int) -> list[float]:
    """By clause, not less than the least margin at some points of the ball: in exact arithmetic,
    or a hair above double precision where there is none for the network's operators."""
    rng = np.random.default_rng(1)
    points = sampled(case.x, case.radius, case.p, rng)
    others = [k for k in range(case.model.classes) if k != case.label]
    network = Network(case.plan.graph)
    least = np.full(len(others), inf)
    try:
        for x in [case.x, *points[rng.permutation(200)[:count]]]:
            y = network.values(balls(exact(x)))[case.plan.graph.output].ravel()
            own = [float((y[case.label] - y[k]).upper()) for k in others]
            least = np.minimum(least, own)
    except (AssertionError, ValueError):
        y = case.plan.graph.apply(torch.from_numpy(points)).flatten(1).numpy()
        least = (y[:, [case.label]] - y[:, others]).min(0) + 1e-9
    return least.tolist()
