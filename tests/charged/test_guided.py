"""Rows along slopes of their own, in the replay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import zoo
from charged.cases import Chosen
from frown.bounds.arithmetic.charged import Charges
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request
from frown.bounds.replay import Guided, Replay, ReplayedRows
from frown.bounds.work import Work
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.problem.property import conjunction
from frown.relax import Relu, Sigmoid, Tanh
from frown.relax.proven.lines import prove
from frown.relax.relaxation import LeastArea

RULE = ByRule(LeastArea())
NETWORKS = {
    "relu": lambda: zoo.mlp(Relu(), (4, 7, 6, 5, 6, 3)),
    "sigmoid": lambda: zoo.mlp(Sigmoid(), (4, 6, 6, 5, 3)),
    "residual": lambda: zoo.residual(Tanh()),
    "branches": zoo.branches,
    "sliced": zoo.sliced,
    "lstm": zoo.lstm,
}


def drawn(plan: Plan, whole: bool, holes: float = 0.0) -> Chosen:
    """The same slopes whenever a target's rows are asked for, by the side they need."""

    def choose(request: Request) -> Choice:
        generator = torch.Generator().manual_seed(request.target)
        both: dict[int, tuple[Tensor, Tensor]] = {}
        for i in plan.below(request.target):
            slopes = request.relaxed[i].lines.slopes
            low, high = (t[request.rows.sample] for t in (slopes.lower, slopes.upper))
            noise = torch.rand(2, *low.shape, generator=generator, dtype=low.dtype)
            gone = torch.rand(low.shape, generator=generator) < holes
            low = (low + 0.2 * noise[0]).masked_fill(gone, torch.nan)
            both[i] = low, (high - 0.1 * noise[1]).masked_fill(gone, torch.nan)

        def slope(i: int, here: Tensor) -> Tensor:
            return torch.where(plan.relaxation(i).expand(here) >= 0, *both[i])

        return Choice(slope, whole)

    return Chosen(LeastArea(), choose)


def replayed(
    graph: Graph, proof: Proof, steps: list[ReplayedRows] | None = None
) -> tuple[Replay, Tensor]:
    region = zoo.region(graph, 2.0, 0.2, 3)
    record = None if steps is None else steps.append
    walk = Replay(Plan(graph), region, proof, Work(), record=record)
    walk.layers()
    outputs = graph.nodes[graph.output].size
    spec = conjunction(torch.eye(outputs, dtype=torch.float64).expand(3, -1, -1))
    return walk, walk.literals(spec)


@pytest.mark.parametrize("name", NETWORKS)
def test_slopes_that_leave_nothing_to_the_rule_give_valid_bounds(name: str) -> None:
    graph = NETWORKS[name]()
    plan, steps = Plan(graph), []
    one, alone = replayed(graph, drawn(plan, whole=False))
    many, together = replayed(graph, drawn(plan, whole=True), steps)
    assert torch.allclose(alone, together, rtol=1e-11, atol=1e-11)
    for i, box in one.values.items():
        other = many.values[i]
        assert torch.allclose(box.lower, other.lower, rtol=1e-11, atol=1e-11)
        assert torch.allclose(box.upper, other.upper, rtol=1e-11, atol=1e-11)
    # Every row has told its slopes, at all nodes before its target.
    asked = [step for step in steps if step.slopes is not None]
    assert asked and all(set(s.slopes) == set(plan.below(s.target)) for s in asked)
    for x in zoo.samples(many.region, 100):
        values = graph.values(x)
        assert (values[graph.output].flatten(1) >= together).all()
        for i, box in many.values.items():
            assert (values[i] >= box.lower).all() and (values[i] <= box.upper).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_where_no_slope_is_given_the_rule_stands_in(name: str) -> None:
    graph = NETWORKS[name]()
    plan, steps = Plan(graph), []
    walk, found = replayed(graph, drawn(plan, whole=False, holes=0.5), steps)
    assert torch.isfinite(found).all()
    asked = [step for step in steps if step.slopes is not None]
    assert any(bool(t.isnan().any()) for step in asked for t in step.slopes.values())
    for x in zoo.samples(walk.region, 100):
        assert (graph.values(x)[graph.output].flatten(1) >= found).all()


@pytest.mark.parametrize("name", ["relu", "sigmoid"])
def test_rows_that_are_ready_spare_those_of_the_rule(name: str) -> None:
    """Bounds hold either way; entries that are not ready have rows of the rule, others do not."""
    graph = NETWORKS[name]()
    plan = Plan(graph)

    def ready(source: int) -> Tensor:
        return (torch.arange(graph.nodes[source].size) % 2 == 0).expand(3, -1)

    sources = {plan.sources[i] for i in plan.nonlinear if plan.below(plan.sources[i])}
    for spare in (False, True):
        steps: list[ReplayedRows] = []
        region = zoo.region(graph, 2.0, 0.2, 3)
        proof = replace(drawn(plan, whole=True), entries=ready)
        walk = Replay(plan, region, proof, Work(), record=steps.append, spare=spare)
        walk.layers()
        for source in sources:
            fixed = [s for s in steps if s.target == source and s.slopes is None]
            entries = torch.cat([s.rows.neuron for s in fixed]) % 2
            assert bool((entries == 1).any())
            assert bool((entries == 0).any()) is not spare
        for x in zoo.samples(region, 100):
            values = graph.values(x)
            for i, box in walk.values.items():
                assert (values[i] >= box.lower).all() and (values[i] <= box.upper).all()


def test_an_undefined_line_that_is_read_proves_nothing() -> None:
    """Be its coefficient 0; one that no row reads does no harm."""
    graph = NETWORKS["relu"]()
    walk, _ = replayed(graph, drawn(Plan(graph), whole=True))
    plan = walk.plan
    first, second, *_ = plan.below(graph.output)
    nodes = replace(walk.arithmetic, proven=dict(walk.arithmetic.proven))
    low = torch.full_like(walk.relaxed[first].box.lower, torch.nan)
    nodes.proven[first] = prove(plan.relaxation(first), Intervals(low, low))
    sample = torch.zeros(2, dtype=torch.long)
    choice = Choice(lambda i, here: torch.zeros_like(here), whole=True)
    for read in (False, True):
        charges = Charges(plan, nodes.weights, sample)
        charges.begin(graph.output, torch.zeros(2, *graph.nodes[graph.output].shape).double())
        rows = Guided(nodes, choice, sample, charges)
        const, _ = rows.through(second, torch.ones(2, *graph.nodes[second].shape).double())
        if read:
            none = torch.zeros(2, *graph.nodes[first].shape).double()
            const = const + rows.through(first, none)[0]
        assert bool(const.isfinite().all()) is not read
