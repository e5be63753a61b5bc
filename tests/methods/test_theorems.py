"""Theorems 1 to 3 of the paper on random networks; and small networks, worked out by hand, on
which they fail without their conditions (docs/theorems.md)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import zoo
from examples import examples
from frown.bounds.forms import Chosen, LinearForm
from frown.bounds.plan import Plan
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.methods import Frown
from frown.methods.frown.ascent import Ascent
from frown.methods.lp.bounds import dual_lines
from frown.problem.region import Region
from frown.relax.relaxation import Relaxation, Relaxed, Slopes
from functions import ELEMENTWISE
from theorem_tools import (
    NORMS,
    RelaxedNodes,
    Rule,
    ball,
    chain,
    closed_box,
    closed_form,
    conditions,
    crowns_rule,
    of_slopes,
    pull_back,
    random_slopes,
    reached,
    rows_of,
    self_consistent,
    size_of,
    small,
    solve,
    unit_ball,
    with_lines,
)

SEEDS = st.integers(0, 2**20)
every_function = pytest.mark.parametrize("name", [*ELEMENTWISE, "max"])
few = examples(2)
GRAPHS = [n for n in zoo.NETWORKS if not n.startswith("mlp")]
PAIR = ([[1.0], [1.0]], [0.0, 1.0])  # x -> (x, x + 1); on |x| <= 1 relu changes x alone


def crowns_numbers(plan: Plan, coef: Tensor, relaxed: RelaxedNodes) -> dict[int, Tensor]:
    """What reaches every nonlinearity's input in CROWN's recursion: A times the slope."""
    used = {}

    def choose(i: int, here: Tensor) -> Chosen:
        lines, below, op = relaxed[i].lines, here >= 0, relaxed[i].op
        slope = torch.where(op.expand(below), lines.slopes.lower, lines.slopes.upper)
        used[i] = op.expand(here) * slope
        return Chosen(slope, torch.where(below, lines.lower, lines.upper))

    pull_back(plan, plan.graph.output, coef, choose)
    return used


# -- Theorem 1 --------------------------------------------------------------------------


def assert_crown_is_the_optimum(graph: Graph, region: Region) -> None:
    plan, coef = Plan(graph), rows_of(graph)
    relaxed = self_consistent(plan, region)
    crown = closed_form(plan, region, graph.output, coef, relaxed)
    found = solve(plan, region, graph.output, coef, relaxed, tangents=1)
    slack = found.off
    assert ((found.value - crown).abs() <= slack).all()
    # The proof made of the solver's duals gives that much again. It may give more: a vertex
    # where a neuron stands at the end of its box has many duals, some of other slopes.
    truth = reached(graph, region, coef)
    assert (found.proved <= truth + 1e-9 * size_of(truth)).all()
    assert (found.proved >= crown - slack).all()
    # CROWN's own numbers are a dual solution, and their proof is CROWN's bound.
    numbers = crowns_numbers(plan, coef, relaxed)
    own, _ = dual_lines(plan, region, graph.output, coef, relaxed, numbers)
    assert ((own - crown).abs() <= 1e-10 * size_of(crown)).all()


def test_theorem_1_holds_as_far_as_solvers_promise() -> None:
    """A program whose optimum HiGHS misses by 1.1e-7, through reduced costs it takes for 0."""
    graph = small("inverse_square", 620135)
    assert_crown_is_the_optimum(graph, ball(graph, 1.0, 620135))


@every_function
@few
@given(seed=SEEDS)
def test_theorem_1_crown_is_the_programs_optimum(name: str, seed: int) -> None:
    """One line per side, the same lines for all, self-consistent boxes."""
    graph = small(name, seed)
    assert_crown_is_the_optimum(graph, ball(graph, NORMS[(seed + len(name)) % 3], seed))


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "max"])
@few
@given(seed=SEEDS)
def test_theorem_1_holds_for_every_norm(name: str, p: float, seed: int) -> None:
    graph = small(name, seed)
    assert_crown_is_the_optimum(graph, ball(graph, p, seed))


@pytest.mark.parametrize("name", GRAPHS)
def test_theorem_1_holds_on_every_graph(name: str) -> None:
    graph = zoo.NETWORKS[name]
    p = NORMS[GRAPHS.index(name) % 3]
    assert_crown_is_the_optimum(graph, ball(graph, p, GRAPHS.index(name)))


def lower_slope(s: float, node: int | None = None) -> Rule:
    """Relu's line below of slope s where it is free (at one node, or at all)."""

    def rule(i: int, op: Relaxation, box: Intervals) -> Relaxed:
        base = crowns_rule(i, op, box)
        if node not in (None, i):
            return base
        lower = torch.where(op.stable(box), base.lines.slopes.lower, s)
        return of_slopes(base, Slopes(lower, base.lines.slopes.upper))

    return rule


def test_theorem_1_fails_when_boxes_come_from_other_lines() -> None:
    """F(x) = relu(a) + relu(a - x), a = relu(x), |x| <= 1. Lines of slope 0 prove a >= 0, of
    slope 1 a - x >= 0: both neurons are stable. With the line a >= x for the output CROWN has
    2 x - x >= -1. The program with the same line knows the boxes and has 0, which is true."""
    graph = chain(PAIR, ([[1.0, 0.0], [1.0, -1.0]], [0.0, 1.0]), ([[1.0, 1.0]], [0.0]))
    plan, region, relaxed, coef = mixed_boxes(graph)
    crown = closed_form(plan, region, graph.output, coef, relaxed)
    program = solve(plan, region, graph.output, coef, relaxed, tangents=1)
    assert crown.item() == pytest.approx(-1, abs=1e-9)
    assert program.value.item() == pytest.approx(0, abs=1e-9)
    assert program.proved.item() == pytest.approx(0, abs=1e-9)
    # Without l <= z <= u, which is then no consequence of the lines, they agree again.
    bare = solve(plan, region, graph.output, coef, relaxed, tangents=1, boxes=False)
    assert bare.value.item() == pytest.approx(-1, abs=1e-9)


def mixed_boxes(graph: Graph) -> tuple[Plan, Region, RelaxedNodes, Tensor]:
    """Boxes of the second layer from slope 0 for its first neuron and 1 for its second;
    then slope 1."""
    plan, region = Plan(graph), unit_ball(graph)
    first, second = plan.nonlinear
    source = plan.sources[second]
    flat, steep = (
        closed_box(plan, region, source, self_consistent(plan, region, lower_slope(s)))
        for s in (0.0, 1.0)
    )
    low = torch.cat([flat.lower[..., :1], steep.lower[..., 1:]], -1)
    high = torch.cat([flat.upper[..., :1], steep.upper[..., 1:]], -1)
    relaxed = {first: self_consistent(plan, region, lower_slope(1.0))[first]}
    relaxed[second] = crowns_rule(second, plan.relaxation(second), Intervals(low, high))
    return plan, region, relaxed, torch.ones(1, 1, dtype=torch.float64)


def test_lines_of_ones_own_beat_every_common_choice() -> None:
    """F(x) = -relu(a) - relu(a - x), a = relu(x), |x| <= 1. Each of the two neurons with its own
    line proves F >= -1, which is true. With any one line a >= s x for both, CROWN and the
    program prove at most -4/3, at s = 1/2: -(1 + (1 - s) / (2 - s)) for s <= 1/2."""
    graph = chain(PAIR, ([[1.0, 0.0], [1.0, -1.0]], [0.0, 1.0]), ([[-1.0, -1.0]], [0.0]))
    plan, region, relaxed, coef = mixed_boxes(graph)
    own = closed_form(plan, region, graph.output, coef, relaxed).item()
    assert own == pytest.approx(-1, abs=1e-9)
    for s in torch.linspace(0, 1, 21).tolist():
        common = self_consistent(plan, region, lower_slope(s))
        crown = closed_form(plan, region, graph.output, coef, common).item()
        program = solve(plan, region, graph.output, coef, common, tangents=1).value.item()
        t = min(s, 1 - s)
        assert crown == pytest.approx(-(1 + (1 - t) / (2 - t)), abs=1e-9)
        assert program == pytest.approx(crown, abs=1e-7)
    found = Frown(ascent=Ascent(50, 50)).bound(plan, region, conditions(graph))
    best = found.literals[0, 0].item()
    assert best == pytest.approx(-1, abs=1e-6)


# -- Theorem 2 --------------------------------------------------------------------------


def looser(old: Relaxed, generator: torch.Generator) -> Relaxed:
    """Valid lines of random slopes, moved away from f by a random amount."""
    lines = of_slopes(old, random_slopes(old, generator, beyond=0.5)).lines
    away = torch.rand(2, *lines.lower.shape, generator=generator, dtype=torch.float64) ** 2
    return with_lines(old, lines.slopes, lines.lower - away[0] / 4, lines.upper + away[1] / 4)


def tighter(old: Relaxed, loose: Relaxed, generator: torch.Generator) -> Relaxed:
    """Lines over the old box, nowhere in it beyond those of `loose`: random tightest
    ones where these will do, otherwise of the same slope, moved to f."""
    draw = of_slopes(old, random_slopes(old, generator)).lines
    moved = of_slopes(old, loose.lines.slopes).lines
    box, laid = old.box, old.op.expand

    def wins(slope: Tensor, level: Tensor, other: Tensor, base: Tensor, sign: float) -> Tensor:
        """Whether sign (line - other line) >= 0 all over the box: at its worst corner."""
        gap = sign * (slope - other)
        worst = torch.minimum(gap * box.lower, gap * box.upper)
        if laid(level).dim() > level.dim():  # the maximum has a slope for every entry
            worst = worst.sum(-1)
        return worst + sign * (level - base) >= 0

    below = wins(draw.slopes.lower, draw.lower, loose.lines.slopes.lower, loose.lines.lower, 1.0)
    above = wins(draw.slopes.upper, draw.upper, loose.lines.slopes.upper, loose.lines.upper, -1.0)
    slopes = Slopes(
        torch.where(laid(below), draw.slopes.lower, moved.slopes.lower),
        torch.where(laid(above), draw.slopes.upper, moved.slopes.upper),
    )
    return with_lines(
        old,
        slopes,
        torch.where(below, draw.lower, moved.lower).maximum(
            torch.where(below, -inf, loose.lines.lower)
        ),
        torch.where(above, draw.upper, moved.upper).minimum(
            torch.where(above, inf, loose.lines.upper)
        ),
    )


def assert_nowhere_looser(
    plan: Plan, region: Region, tight: RelaxedNodes, loose: RelaxedNodes
) -> float:
    """Every neuron's box and every condition; returns how much was gained."""
    graph, coef = plan.graph, rows_of(plan.graph)
    better = closed_form(plan, region, graph.output, coef, tight)
    worse = closed_form(plan, region, graph.output, coef, loose)
    assume(bool((better.isfinite() & worse.isfinite()).all()))  # exp of exp overflows
    for source in set(plan.sources.values()):
        a, b = (closed_box(plan, region, source, f) for f in (tight, loose))
        slack = 1e-10 * size_of(b.lower, b.upper)
        assert (a.lower >= b.lower - slack).all()
        assert (a.upper <= b.upper + slack).all()
    assert (better >= worse - 1e-10 * size_of(worse)).all()
    truth = reached(graph, region, coef)
    assert (better <= truth + 1e-9 * size_of(better)).all()
    return float((better - worse).sum())


@every_function
@few
@given(seed=SEEDS)
def test_theorem_2_tighter_lines_never_loosen(name: str, seed: int) -> None:
    """Two self-consistent sets, the lines of one nowhere looser on its own boxes."""
    graph = small(name, seed)
    plan, region = Plan(graph), ball(graph, NORMS[seed % 3], seed)
    generator = torch.Generator().manual_seed(seed)
    loose = self_consistent(
        plan, region, lambda i, op, box: looser(crowns_rule(i, op, box), generator)
    )
    tight = self_consistent(
        plan, region, lambda i, op, box: tighter(crowns_rule(i, op, box), loose[i], generator)
    )
    assert assert_nowhere_looser(plan, region, tight, loose) > 0


@every_function
@few
@given(seed=SEEDS)
def test_theorem_2_needs_the_boxes_of_the_tighter_lines_only(name: str, seed: int) -> None:
    """A weaker condition: what the tighter lines allow stays inside the boxes over which they
    are tighter. The boxes may be wider than that, and the other lines consistent with none."""
    graph = small(name, seed)
    plan, region = Plan(graph), ball(graph, NORMS[seed % 3], seed)
    generator = torch.Generator().manual_seed(seed)
    loose: RelaxedNodes = {}

    def rule(i: int, op: Relaxation, box: Intervals) -> Relaxed:
        grow = torch.rand(2, *box.lower.shape, generator=generator, dtype=torch.float64) ** 3
        base = crowns_rule(i, op, Intervals(box.lower - grow[0], box.upper + grow[1]))
        tight = of_slopes(base, random_slopes(base, generator))
        # Below the tight line all over the box, by different amounts at its two ends.
        drop = torch.rand(4, *box.lower.shape, generator=generator, dtype=torch.float64) ** 2
        wide = base.box.upper - base.box.lower
        turn = [(drop[0] - drop[1]) / wide, (drop[2] - drop[3]) / wide]
        if op.expand(tight.lines.lower).dim() > tight.lines.lower.dim():
            fall = [
                (torch.maximum(t * base.box.lower, t * base.box.upper)).sum(-1) + d.mean(-1)
                for t, d in zip(turn, drop[:2], strict=True)
            ]
        else:
            fall = [drop[0] + turn[0] * base.box.lower, drop[2] + turn[1] * base.box.lower]
        slopes = tight.lines.slopes
        loose[i] = with_lines(
            tight,
            Slopes(slopes.lower + turn[0], slopes.upper - turn[1]),
            tight.lines.lower - fall[0],
            tight.lines.upper + fall[1],
        )
        return tight

    tight = self_consistent(plan, region, rule)
    assert assert_nowhere_looser(plan, region, tight, loose) > 0


def test_theorem_2_fails_without_its_condition() -> None:
    """F(x) = relu(a), a = relu(x), |x| <= 1. Slope 0 proves a >= 0; then the line relu(a) = a is
    tighter on [0, 1] than relu(a) >= 0. With a >= x for the output, which leaves that box, the
    tighter line has F >= -1 and the looser one F >= 0."""
    graph = chain(([[1.0]], [0.0]), ([[1.0]], [0.0]), ([[1.0]], [0.0]))
    plan, region = Plan(graph), unit_ball(graph)
    first, second = plan.nonlinear
    box = closed_box(
        plan, region, plan.sources[second], self_consistent(plan, region, lower_slope(0.0))
    )
    base = crowns_rule(second, plan.relaxation(second), box)
    tight = {first: self_consistent(plan, region, lower_slope(1.0))[first], second: base}
    flat = torch.zeros_like(base.lines.lower)
    loose = {**tight, second: with_lines(base, Slopes(flat, flat + 1), flat, flat)}
    z = torch.linspace(float(box.lower), float(box.upper), 99)
    line = base.lines.slopes.lower * z + base.lines.lower
    assert (line <= z.clamp(min=0) + 1e-9).all() and (line[..., 1:] > 0).all()
    coef = torch.ones(1, 1, dtype=torch.float64)
    bounds = [closed_form(plan, region, graph.output, coef, f).item() for f in (tight, loose)]
    assert bounds == pytest.approx([-1, 0], abs=1e-9)


def test_crowns_rule_may_loosen_when_a_region_shrinks() -> None:
    """relu(x) on [-1, 0.9] takes the line 0 and is >= 0; on [-0.8, 0.9] it takes the line x and
    is >= -0.8. Every line is a tightest one: it is the choice that changes."""
    graph = chain(([[1.0]], [0.0]), ([[1.0]], [0.0]))
    plan, coef = Plan(graph), torch.ones(1, 1, dtype=torch.float64)
    found = []
    for low in (-1.0, -0.8):
        ends = torch.tensor([low, 0.9], dtype=torch.float64)
        region = Region(ends.mean().view(1, 1, 1), ends.diff() / 2, inf)
        relaxed = self_consistent(plan, region)
        found.append(closed_form(plan, region, graph.output, coef, relaxed).item())
    assert found == pytest.approx([0, -0.8], abs=1e-9)


# -- Theorem 3 --------------------------------------------------------------------------


def with_random_slopes(
    plan: Plan, relaxed: RelaxedNodes, coef: Tensor, seed: int, lift: float = 0.0
) -> LinearForm:
    """Every row its own slopes at every node, lines loosened at random times `lift`."""
    generator = torch.Generator().manual_seed(seed)

    def choose(i: int, here: Tensor) -> Chosen:
        old, below = relaxed[i], here >= 0
        (source,) = plan.graph.nodes[i].inputs
        shape = (len(here), *plan.graph.nodes[source].shape)
        slope = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        line = old.op.line(slope, below, old.anchors).intercept
        away = lift * torch.rand(here.shape, generator=generator, dtype=torch.float64)
        return Chosen(slope, torch.where(below, line - away, line + away))

    return pull_back(plan, plan.graph.output, coef, choose)


@every_function
@few
@given(seed=SEEDS)
def test_theorem_3_tighter_intercepts_never_loosen(name: str, seed: int) -> None:
    """Slopes of any size, other ones for every row, boxes of any origin: no condition."""
    graph = small(name, seed)
    plan, region, coef = Plan(graph), ball(graph, NORMS[seed % 3], seed), rows_of(graph)
    relaxed = self_consistent(plan, region)
    forms = [with_random_slopes(plan, relaxed, coef, seed, lift) for lift in (0.0, 0.1, 1.0)]
    # Smaller boxes have tighter intercepts.
    outer = {
        i: replace(f, box=Intervals(f.box.lower - 0.2, f.box.upper + 0.3))
        for i, f in relaxed.items()
    }
    forms += [with_random_slopes(plan, f, coef, seed + 1) for f in (relaxed, outer)]
    bounds = [region.minimise(f.coef).value + f.const for f in forms]
    truth = reached(graph, region, coef)
    for k, tight in enumerate(bounds):
        assert (tight <= truth + 1e-9 * size_of(tight)).all()
        if k in (0, 1, 3):
            assert (tight >= bounds[k + 1] - 1e-10 * size_of(tight)).all()
            assert float((tight - bounds[k + 1]).sum()) > 0
