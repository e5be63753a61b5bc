"""Cuts of a branch: true points followed down random cuts never leave a bound, in any arithmetic;
multipliers tighten rows, and are replayed with proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request
from frown.bounds.replay import Replay
from frown.bounds.walk import Given
from frown.bounds.work import Work
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.methods import Crown, Frown
from frown.methods.crown import crown_layers
from frown.methods.frown.ascent import Ascent, _Search
from frown.methods.frown.network import gather_rows
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax import Relu, Sigmoid
from frown.relax.relaxation import LeastArea
from functions import ELEMENTWISE

SHORT = Ascent(3, 3)
NETWORKS: dict[str, Graph] = {
    **{f"mlp {name}": zoo.mlp(op, (3, 5, 4, 3)) for name, op in ELEMENTWISE.items()},
    **{
        name: zoo.NETWORKS[name]
        for name in zoo.NETWORKS
        if name in ("conv_max", "residual", "branches", "sliced", "product", "lstm", "softmax")
    },
}
METHODS = {
    "crown": Crown(),
    "frown": Frown(ascent=SHORT),
    "frown in groups": Frown(group=3, ascent=SHORT),
    "frown wide": Frown(wide=True, ascent=SHORT),
}
COUNT = 4


def outputs(graph: Graph, count: int) -> LinearProperty:
    """Both sides of every output."""
    eye = torch.eye(graph.output_size, dtype=graph.dtype)
    return conjunction(torch.cat([eye, -eye]).expand(count, -1, -1))


def cut_along(
    plan: Plan, values: list[Tensor], generator: torch.Generator, depth: int = 4
) -> Given:
    """Random cuts near a point's values, each on the point's side."""
    boxes: dict[int, Intervals] = {}
    marked: dict[int, Tensor] = {}
    sources = sorted(set(plan.sources.values()) - {0})
    for source in sources:
        z = values[source]
        low, high = (z + a for a in (torch.full_like(z, -torch.inf), torch.full_like(z, torch.inf)))
        mask = torch.zeros_like(z, dtype=torch.bool)
        for n in range(len(z)):
            for _ in range(depth):
                k = int(torch.randint(z[n].numel(), (1,), generator=generator))
                own = z[n].flatten()[k]
                near = 0.2 * torch.randn((), generator=generator, dtype=z.dtype)
                if bool(torch.rand((), generator=generator) < 0.3):
                    near = torch.full_like(near, 1e-9)  # hardly more than the value
                if bool(torch.rand((), generator=generator) < 0.5):
                    low[n].flatten()[k] = max(low[n].flatten()[k], own - near.abs())
                else:
                    high[n].flatten()[k] = min(high[n].flatten()[k], own + near.abs())
                mask[n].flatten()[k] = True
        boxes[source], marked[source] = Intervals(low, high), mask
    return Given(boxes, cuts=True, marked=marked)


def case(name: str, seed: int) -> tuple[Plan, Region, LinearProperty, list[Tensor], Given]:
    """Regions, and a true point of each, at every node, with cuts around it."""
    graph = NETWORKS[name]
    region = zoo.region(graph, [1.0, 2.0, torch.inf][seed % 3], 0.3, COUNT, seed=seed)
    point = zoo.samples(region, 1, seed=seed)[0]
    values = graph.values(point)
    plan = Plan(graph)
    given = cut_along(plan, values, torch.Generator().manual_seed(seed))
    return plan, region, outputs(graph, COUNT), values, given


@pytest.mark.parametrize("name", NETWORKS)
def test_a_true_point_never_leaves_what_is_bounded_on_its_side_of_cuts(name: str) -> None:
    """In plain floats, and replayed with rounding charged, multipliers included."""
    for seed in range(3):
        plan, region, wanted, values, given = case(name, seed)
        truth = wanted.literals(values[plan.graph.output].flatten(1))
        for method in (Crown(), list(METHODS.values())[1 + seed % 3]):
            found = method.bound(plan, region, wanted, given=given)
            assert not found.empty.any()
            assert (truth >= found.literals - 1e-8 * (1 + truth.abs())).all()
            for i, box in found.layers.values.items():
                slack = 1e-8 * (1 + values[i].abs())
                assert (values[i] >= box.lower - slack).all()
                assert (values[i] <= box.upper + slack).all()
            replay = Replay(plan, region, found.proof, Work(), given=given)
            assert not replay.layers().empty.any()
            proved = replay.literals(wanted)
            assert (truth >= proved - 1e-12 * (1 + truth.abs())).all()  # truth is rounded, too
            for i, box in replay.values.items():
                slack = 1e-12 * (1 + values[i].abs())
                assert (values[i] >= box.lower - slack).all()
                assert (values[i] <= box.upper + slack).all()


@pytest.mark.parametrize("method", ["frown", "frown in groups", "frown wide"])
@pytest.mark.parametrize("name", ["mlp relu", "mlp sigmoid"])
def test_multipliers_tighten_rows_and_are_replayed(name: str, method: str) -> None:
    graph = zoo.mlp(Relu() if name.endswith("relu") else Sigmoid(), (4, 8, 8, 3))
    plan, wanted = Plan(graph), outputs(graph, COUNT)
    own = replace(METHODS[method], ascent=Ascent(20, 20))
    gained = 0.0
    for seed in range(3):
        region = zoo.region(graph, torch.inf, 0.4, COUNT, seed=seed)
        values = graph.values(zoo.samples(region, 1, seed=seed)[0])
        given = cut_along(plan, values, torch.Generator().manual_seed(seed))
        plain = own.bound(plan, region, wanted, given=replace(given, marked=None))
        found = own.bound(plan, region, wanted, given=given)
        assert (found.literals >= plain.literals - 1e-2 * plain.literals.abs()).all()
        gained += float((found.literals - plain.literals).sum())
        replay = Replay(plan, region, found.proof, Work(), given=given)
        replay.layers()
        proved = replay.literals(wanted)
        slack = 2e-2 if own.wide else 1e-5  # a wide search keeps the better of two proofs
        assert (proved >= found.literals - slack).all()
        without = Replay(plan, region, Without(found.proof), Work(), given=given)
        without.layers()
        assert (proved > without.literals(wanted) + 1e-6).any()
    assert gained > 0


class Without(Proof):
    """A proof's slopes without its multipliers."""

    def __init__(self, own: Proof) -> None:
        self.own = own

    rule = property(lambda self: self.own.rule)  # type: ignore[assignment]
    wide = property(lambda self: self.own.wide)  # type: ignore[assignment]

    def take(self, index: Tensor) -> Without:
        return Without(self.own.take(index))

    @classmethod
    def cat(cls, proofs):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def blank(self, samples: int) -> Without:
        return Without(self.own.blank(samples))

    def to(self, device: torch.device) -> Without:
        return Without(self.own.to(device))

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        choice = self.own.choose(plan, request)
        return None if choice is None else replace(choice, multiplier=None)


def test_the_derivative_by_a_multiplier_is_what_arrives_less_the_end_that_binds() -> None:
    """Against differences of bounds, where all multipliers are away from 0."""
    graph = zoo.mlp(Sigmoid(), (4, 6, 5, 3))
    plan, region = Plan(graph), zoo.region(graph, 2.0, 0.3, 2)
    layers = crown_layers(plan, region, LeastArea(), Work())
    (part,) = parts(plan, graph.output, 0).parts
    sample = torch.tensor([0, 0, 1, 1])
    coef = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slots = plan.slots(graph.output)[1]
    marked = torch.ones(4, slots, dtype=torch.bool)
    marked[:, ::3] = False
    rows, _ = gather_rows(
        part, region, coef, sample, 0 * sample, sample, layers.relaxed, False, False, marked
    )
    generator = torch.Generator().manual_seed(1)
    alpha = torch.rand(4, rows.lanes, slots, generator=generator, dtype=torch.float64)
    alpha[:, -1] = 0.1 * torch.randn(4, slots, generator=generator, dtype=torch.float64)

    def bound(alpha: Tensor) -> Tensor:
        return _Search(plan, rows, alpha.clone()).evaluate(gradient=False)[0]

    search = _Search(plan, rows, alpha.clone())
    value, direction = search.evaluate(gradient=True)
    assert direction is not None and search.multipliers is not None
    assert torch.allclose(value, bound(alpha), rtol=1e-10)
    step = 1e-6
    for k in range(slots):
        up, down = alpha.clone(), alpha.clone()
        up[:, -1, k] += step
        down[:, -1, k] -= step
        slope = (bound(up) - bound(down)) / (2 * step)
        own = direction[:, -1, k] / search.multipliers.unit[:, k]
        assert torch.allclose(own, slope, rtol=1e-4, atol=1e-6)
        assert k % 3 or not own.any()


def test_empty_is_told_by_crossing_alone() -> None:
    """With rounding accounted for; a box without numbers tells nothing."""
    graph = zoo.mlp(Relu(), (3, 5, 4, 3))
    plan, region = Plan(graph), zoo.region(graph, torch.inf, 0.2, 3)
    plain = Replay(plan, region, ByRule(LeastArea()), Work())
    plain.layers()
    source = max(set(plan.sources.values()))
    shape = plain.values[source].lower.shape
    box = Intervals(
        *(t.flatten(1) for t in (plain.values[source].lower, plain.values[source].upper))
    )
    for proof in (ByRule(LeastArea()), ByRule(LeastArea(), rows_inside=False)):
        low, high = torch.full_like(box.lower, -torch.inf), torch.full_like(box.upper, torch.inf)
        low[0, 1] = box.upper[0, 1] + 10.0  # nothing is left
        low[1, 2], high[1, 2] = torch.nan, torch.nan
        at = graph.values(region.centre)[source].flatten(1)[2]
        low[2], high[2] = at - 1e-9, at + 1e-9  # the centre is
        given = Given({source: Intervals(low.view(shape), high.view(shape))}, cuts=True)
        replay = Replay(plan, region, proof, Work(), given=given)
        assert replay.layers().empty.tolist() == [True, False, False]
        at_centre = graph.apply(region.centre).flatten(1)
        wanted = outputs(graph, 3)
        assert (wanted.literals(at_centre) >= replay.literals(wanted))[1:].all()
