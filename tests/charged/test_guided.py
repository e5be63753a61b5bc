"""Rows along slopes of their own: what is found for many nodes at once is what each node gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import zoo
from charged.cases import Chosen
from frown.bounds import replay as passing
from frown.bounds.arithmetic import charged
from frown.bounds.arithmetic.charged import Charges, charged_form
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request
from frown.bounds.replay import Guided, Replay, ReplayedRows
from frown.bounds.work import Work
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.problem.property import conjunction
from frown.relax import Relu, Sigmoid, Tanh
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
def test_all_nodes_at_the_end_give_what_each_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = NETWORKS[name]()
    late: list[Tensor] = []
    real = Guided.rest

    def rest(self: Guided) -> list[Tensor]:
        late.extend(found := real(self))
        return found

    monkeypatch.setattr(Guided, "rest", rest)
    plan, steps = Plan(graph), []
    one, alone = replayed(graph, drawn(plan, whole=False))
    assert not late
    many, together = replayed(graph, drawn(plan, whole=True), steps)
    assert bool(late) == (name not in ("branches", "lstm"))  # without two like nodes in a row
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


@pytest.mark.parametrize("name", NETWORKS)
def test_the_rule_at_all_nodes_gives_what_it_gives_at_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = NETWORKS[name]()
    many, together = replayed(graph, RULE)
    assert bool(many.arithmetic._fixed_stacks) == (name not in ("branches", "lstm"))
    monkeypatch.setattr(passing, "stacks", lambda plan, target: ())
    one, alone = replayed(graph, RULE)
    assert not one.arithmetic._fixed_stacks
    assert torch.allclose(alone, together, rtol=1e-11, atol=1e-11)
    for i, box in one.values.items():
        assert torch.allclose(box.lower, many.values[i].lower, rtol=1e-11, atol=1e-11)
        assert torch.allclose(box.upper, many.values[i].upper, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["relu", "sigmoid", "residual", "sliced"])
def test_rounding_at_the_end_is_charged_as_it_is_at_each_node(
    name: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least as much, as sums are longer, and not many times more."""
    graph = NETWORKS[name]()
    taken: list[Tensor] = []
    begin, take, settle = Charges.begin, Charges.take, Charges.settle

    def begun(self, target, coef):
        taken.append(coef.new_zeros(len(coef)))
        return begin(self, target, coef)

    def noted(self, charge):
        taken[-1] = taken[-1] + charge
        take(self, charge)

    def settled(self, coef, const):
        form = settle(self, coef, const)
        assert (form.charge >= taken[-1]).all()  # nothing of it is forgotten
        return form

    for name_, function in (("begin", begun), ("take", noted), ("settle", settled)):
        monkeypatch.setattr(charged.Charges, name_, function)
    replayed(graph, drawn(Plan(graph), whole=True) if own else RULE)
    together = taken.copy()
    taken.clear()
    monkeypatch.setattr(passing, "stacks", lambda plan, target: ())
    replayed(graph, drawn(Plan(graph), whole=True) if own else RULE)
    assert len(together) == len(taken) > 1
    for many, one in zip(together, taken, strict=True):
        assert (many >= one * (1 - 1e-9)).all() and (many <= 10 * one).all()
    assert any(bool((many > 1.001 * one).any()) for many, one in zip(together, taken, strict=True))


def test_forms_take_in_all_that_is_left_to_the_end() -> None:
    graph = NETWORKS["relu"]()
    walk, _ = replayed(graph, RULE)
    coef = torch.eye(3, dtype=torch.float64)[:, None]
    sample = torch.zeros(3, dtype=torch.long)

    def form(more: bool) -> charged.ChargedForm:
        charges = Charges(walk.plan, walk.arithmetic.weights, sample)

        def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
            passed = walk.fixed[i].through(walk.plan.relaxation(i), here, sample)
            charges.take(passed.charge)
            return passed.const, passed.coef

        def late() -> list[Tensor]:
            charges.take(torch.full((3,), 35.0).double())
            return [torch.full((3,), c).double() for c in (2, 3)]

        return charged_form(charges, graph.output, coef, through, late if more else tuple)

    plain, more = form(False), form(True)
    assert torch.equal(plain.coef, more.coef)
    assert torch.allclose(more.const, plain.const + 5, rtol=1e-12)
    assert (more.charge >= plain.charge + 35).all() and (more.charge <= plain.charge + 35.1).all()


def test_an_undefined_line_that_is_read_proves_nothing() -> None:
    """Be its coefficient 0; one that no row reads does no harm."""
    graph = NETWORKS["relu"]()
    walk, _ = replayed(graph, drawn(Plan(graph), whole=True))
    first, second, *_ = walk.plan.below(graph.output)
    relaxed = walk.relaxed[first]
    lost = Intervals(torch.full_like(relaxed.box.lower, torch.nan), relaxed.box.upper)
    nodes = replace(walk.arithmetic, relaxed={**walk.relaxed, first: replace(relaxed, box=lost)})
    nodes._proven_stacks.clear()
    sample = torch.zeros(2, dtype=torch.long)
    choice = Choice(lambda i, here: torch.zeros_like(here), whole=True)
    for read, proves in ((False, True), (True, False)):
        charges = Charges(walk.plan, nodes.weights, sample)
        charges.begin(graph.output, torch.zeros(2, *graph.nodes[graph.output].shape).double())
        rows = Guided(nodes, graph.output, choice, sample, charges)
        rows.through(second, torch.ones(2, *graph.nodes[second].shape).double())
        if read:
            rows.through(first, torch.zeros(2, *graph.nodes[first].shape).double())
        (late,) = rows.rest()
        assert bool(late.isfinite().all()) is proves
