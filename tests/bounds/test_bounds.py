"""Bounds of whole networks hold on samples and on minimisers, and are ordered as promised."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import zoo
from frown import methods
from frown.bounds.forms import Chosen, push_forward
from frown.bounds.method import Method
from frown.bounds.plan import Plan
from frown.bounds.rows import one_hot
from frown.bounds.walk import Layers
from frown.bounds.work import Work
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import LP, Crown, CrownIbp, FastLin, Frown, Interval
from frown.methods.crown import crown_layers
from frown.methods.frown.ascent import Ascent
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax import LeakyRelu, Log, Max, Relu
from frown.relax.relaxation import LeastArea, Relaxation
from functions import ELEMENTWISE
from theorem_tools import pull_back

METHODS = {
    "interval": Interval(),
    "fastlin": FastLin(),
    "crown": Crown(),
    "crown-ibp": CrownIbp(),
    "crown, the paper's rule": Crown(rule="paper"),
    "frown": Frown(ascent=Ascent(5, 5)),
    "frown wide": Frown(wide=True, ascent=Ascent(5, 5)),
    "frown in groups of 2": Frown(group=2, ascent=Ascent(5, 5)),
    "frown per layer": Frown(group=0, ascent=Ascent(5, 5)),
}
# Bounded against sampling, programs or exact distances in files of their own.
ELSEWHERE = {"lp": "test_lp.py", "branch": "test_brackets.py", "milp": "test_exact.py"}
NO_LIMITS = Work()
every_network = pytest.mark.parametrize("name", zoo.NETWORKS)


def test_no_method_goes_untested() -> None:
    """A new method belongs into the table above, whose bounds are held against sampled inputs."""
    assert {m.name for m in METHODS.values()} | set(ELSEWHERE) == set(methods.METHODS)
    folder = Path(__file__).parents[1] / "methods"
    assert all((folder / name).is_file() for name in ELSEWHERE.values())


def pairwise(graph: Graph, count: int) -> LinearProperty:
    """Margins of class 0 against the others, and a skew combination of all outputs."""
    k = graph.output_size
    rows = torch.cat([torch.eye(k)[:1] - torch.eye(k)[1:], torch.linspace(-1, 2, k)[None]])
    return conjunction(rows.to(graph.dtype).expand(count, -1, -1))


def solve(
    graph: Graph, ball: Region, spec: LinearProperty, method: Method, work: Work = NO_LIMITS
) -> tuple[Layers, Tensor]:
    with torch.no_grad():
        found = method.bound(Plan(graph), ball, spec, work=work)
    return found.layers, found.literals


def conditions(graph: Graph, x: Tensor, spec: LinearProperty) -> Tensor:
    return (spec.coef @ graph.apply(x).flatten(1)[:, :, None]).squeeze(-1)


def descend(graph: Graph, ball: Region, spec: LinearProperty, t: int) -> Tensor:
    """(N,) a small value of condition t inside the ball: gradient descent from a few starts."""
    best = conditions(graph, ball.centre, spec)[:, t]
    for start in zoo.samples(ball, 3, seed=t):
        x = start
        for step in range(15):
            x = x.detach().requires_grad_()
            value = conditions(graph, x, spec)[:, t]
            (slope,) = torch.autograd.grad(value.sum(), x)
            best = torch.minimum(best, value.detach())
            pace = ball.radius / (1 + step) / slope.flatten(1).norm(dim=1).clamp(min=1e-30)
            x = ball.project(x.detach() - pace.view(-1, *[1] * (x.dim() - 1)) * slope)
    return best


class Truth:
    """What is reached inside a region: node values on samples, conditions also by descent."""

    def __init__(self, graph: Graph, ball: Region, spec: LinearProperty) -> None:
        self.graph, points = graph, zoo.samples(ball, 60)
        count, size = points.shape[:2]
        values = graph.values(points.reshape(count * size, *graph.input_shape))
        self.values = [v.view(count, size, *v.shape[1:]) for v in values]
        reached = torch.stack([conditions(graph, x, spec) for x in points]).amin(0)
        lowest = [descend(graph, ball, spec, t) for t in range(spec.coef.shape[1])]
        self.conditions = torch.minimum(reached, torch.stack(lowest, 1))

    def check(self, layers: Layers, margins: Tensor) -> None:
        tolerance = 1e-9 if self.graph.dtype == torch.float64 else 1e-4
        assert (self.conditions >= margins - tolerance).all()
        for i, box in layers.values.items():
            name = self.graph.nodes[i].name
            assert (self.values[i] >= box.lower - tolerance).all(), name
            assert (self.values[i] <= box.upper + tolerance).all(), name


@every_network
def test_every_bound_holds_and_they_are_ordered(name: str) -> None:
    """interval <= crown <= frown <= wide, for every node that a nonlinearity reads and for
    every condition; all of them below what samples and descent find."""
    graph = zoo.NETWORKS[name]
    number = list(zoo.NETWORKS).index(name)
    p, clipped, scaled = zoo.NORMS[number % 4], number % 3 == 0, number % 5 < 2
    ball = zoo.region(graph, p, clipped=clipped, scaled=scaled, seed=number)
    spec = pairwise(graph, len(ball.radius))
    truth, found = Truth(graph, ball, spec), {}
    for label, method in METHODS.items():
        layers, margins = solve(graph, ball, spec, method)
        assert torch.isfinite(margins).all(), label
        truth.check(layers, margins)
        found[label] = (layers, margins)
    for loose, tight in (
        ("interval", "fastlin"),
        ("interval", "crown"),
        ("interval", "crown, the paper's rule"),
        ("crown", "frown"),
        ("frown", "frown wide"),
        ("crown", "frown in groups of 2"),
        ("crown", "frown per layer"),
    ):
        assert_tighter(Plan(graph), *found[loose], *found[tight], f"{tight} looser than {loose}")


def assert_tighter(
    plan: Plan, loose: Layers, least: Tensor, tight: Layers, most: Tensor, message: str
) -> None:
    for source in plan.sources.values():
        a, b = loose.values[source], tight.values[source]
        size = 1e-10 * (1 + a.lower.abs() + a.upper.abs())
        assert (b.lower >= a.lower - size).all(), f"{message} at {plan.graph.nodes[source].name}"
        assert (b.upper <= a.upper + size).all(), f"{message} at {plan.graph.nodes[source].name}"
    assert (most >= least - 1e-10 * (1 + least.abs())).all(), f"{message} in the margins"


@pytest.mark.parametrize("p", zoo.NORMS)
@pytest.mark.parametrize("clipped", [False, True], ids=["whole", "clipped"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", ["mlp relu", "mlp tanh", "conv_max", "branches"])
def test_every_region_is_bounded(name: str, p: float, clipped: bool, scaled: bool) -> None:
    graph = zoo.NETWORKS[name]
    ball = zoo.region(graph, p, clipped=clipped, scaled=scaled, seed=5)
    spec = pairwise(graph, len(ball.radius))
    truth = Truth(graph, ball, spec)
    for method in (METHODS["crown"], Frown(ascent=Ascent(3, 3))):
        truth.check(*solve(graph, ball, spec, method))


@every_network
def test_single_precision_holds_too(name: str) -> None:
    graph = zoo.NETWORKS[name].to(torch.float32)
    ball = zoo.region(graph, inf, radius=0.2)
    spec = pairwise(graph, len(ball.radius))
    short = Frown(ascent=Ascent(3, 3))
    Truth(graph, ball, spec).check(*solve(graph, ball, spec, short))


def test_crown_of_two_layers_is_its_closed_form() -> None:
    """l_inf, relu: c.(V relu(Wx + b) + d) >= sum of c V's parts times CROWN's lines."""
    graph = zoo.mlp(Relu(), (4, 7, 3), seed=3)
    (w, b), (v, d) = (
        (n.op.weight.numpy(), n.op.bias.numpy())
        for n in graph.nodes
        if type(n.op).__name__ == "Linear"
    )
    ball = zoo.region(graph, inf, count=3)
    spec = pairwise(graph, 3)
    _, margins = solve(graph, ball, spec, METHODS["crown"])
    for n in range(3):
        x, r = ball.centre[n, 0].numpy(), float(ball.radius[n])
        z, width = w @ x + b, r * np.abs(w).sum(1)
        low, high = z - width, z + width
        across = (low < 0) & (high > 0)
        chord = np.where(across, high / (high - low), low >= 0)
        for t in range(spec.coef.shape[1]):
            c = spec.coef[n, t].numpy()
            a = c @ v
            under = np.where(across, high > -low, low >= 0)  # the adaptive lower slope
            slope = np.where(a >= 0, under, chord)
            intercept = np.where((a < 0) & across, -chord * low, 0.0)
            form = (a * slope) @ w
            value = form @ x - r * np.abs(form).sum() + (a * slope) @ b + a @ intercept + c @ d
            assert float(margins[n, t]) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("op", [Relu(), LeakyRelu(0.2)], ids=["relu", "leaky"])
@pytest.mark.parametrize("p", [1.0, inf])
def test_frown_of_two_layers_reaches_the_linear_program(op: Relaxation, p: float) -> None:
    """The best lines of one hidden layer solve the triangle relaxation's LP (duality)."""
    graph = zoo.mlp(op, (4, 8, 3), seed=11)
    (w, b), (v, d) = (
        (n.op.weight.numpy(), n.op.bias.numpy())
        for n in graph.nodes
        if type(n.op).__name__ == "Linear"
    )
    leak = 0.0 if isinstance(op, Relu) else 0.2
    ball = zoo.region(graph, p, radius=0.5, count=3)
    spec = pairwise(graph, 3)
    long = Frown(ascent=Ascent(steps=200, more=200, decay=0.98))
    layers, margins = solve(graph, ball, spec, long)
    _, start = solve(graph, ball, spec, METHODS["crown"])
    (node,) = Plan(graph).nonlinear
    box = layers.relaxed[node].box
    gained = 0.0
    for n in range(3):
        x, r = ball.centre[n, 0].numpy(), float(ball.radius[n])
        low, high = box.lower[n, 0].numpy(), box.upper[n, 0].numpy()
        for t in range(spec.coef.shape[1]):
            c = spec.coef[n, t].numpy()
            best = _triangles(w, b, c @ v, x, r, p, low, high, leak) + float(c @ d)
            mine, gap = float(margins[n, t]), best - float(start[n, t])
            assert mine <= best + 1e-8
            assert mine >= best - 0.01 * max(abs(best), gap)
            gained = max(gained, gap)
    assert gained > 0.01  # the case is not one where CROWN is optimal already


def _triangles(
    w: np.ndarray,
    b: np.ndarray,
    a: np.ndarray,
    x: np.ndarray,
    r: float,
    p: float,
    low: np.ndarray,
    high: np.ndarray,
    leak: float,
) -> float:
    """min a . y over x in the ball, z = Wx + b in its box, y in the triangle over z.

    Variables: x, e >= |x - centre|, y.
    """
    hidden, inputs = w.shape
    eye_x, eye_y = np.eye(inputs), np.eye(hidden)
    none = np.zeros((hidden, inputs))
    f_low, f_high = (np.maximum(leak * z, z) for z in (low, high))
    chord = (f_high - f_low) / np.maximum(high - low, 1e-12)
    rows, ends = [], []
    rows += [np.hstack([eye_x, -eye_x, none.T]), np.hstack([-eye_x, -eye_x, none.T])]
    ends += [x, -x]
    rows += [np.hstack([w, none, -eye_y]), np.hstack([leak * w, none, -eye_y])]
    ends += [-b, -leak * b]
    rows += [np.hstack([-chord[:, None] * w, none, eye_y])]
    ends += [f_low + chord * (b - low)]
    if p == 1:
        rows += [np.hstack([np.zeros(inputs), np.ones(inputs), np.zeros(hidden)])[None]]
        ends += [np.array([r])]
    reach = [(0, r)] * inputs
    free = [(None, None)]
    cost = np.concatenate([np.zeros(2 * inputs), a])
    found = linprog(
        cost,
        A_ub=np.vstack(rows),
        b_ub=np.concatenate(ends),
        bounds=free * inputs + reach + free * hidden,
    )
    assert found.success
    return float(found.fun)


@every_network
def test_a_form_is_the_relaxed_networks_value(name: str) -> None:
    """pull_back and push_forward agree: form(x) = coef . (the network with lines for f)(x)."""
    graph = zoo.NETWORKS[name]
    plan = Plan(graph)
    ball = zoo.region(graph, inf)
    layers = crown_layers(plan, ball, LeastArea(), Work())
    generator = torch.Generator().manual_seed(0)
    source = plan.sources[plan.nonlinear[-1]]
    for target in {graph.output, source}:
        node = graph.nodes[target]
        coef = torch.randn(2, *node.shape, generator=generator, dtype=torch.float64)
        used: dict[int, Chosen] = {}

        def choose(i: int, here: Tensor, used: dict[int, Chosen] = used) -> Chosen:
            relaxed, below = layers.relaxed[i], here >= 0
            slopes = relaxed.lines.slopes
            laid = relaxed.op.expand(below)
            used[i] = Chosen(
                torch.where(laid, slopes.lower, slopes.upper),
                torch.where(below, relaxed.lines.lower, relaxed.lines.upper),
            )
            return used[i]

        form = pull_back(plan, target, coef, choose)
        x = zoo.samples(ball, 4)[3]
        seen: dict[int, Tensor] = {}
        push_forward(plan, target, x, used, seen.__setitem__)
        assert set(seen) >= set(used)
        # The rest of the way, by the operators themselves.
        values: dict[int, Tensor] = {}
        for i in plan.ancestors(target):
            op = graph.nodes[i].op
            if i in used:
                (j,) = graph.nodes[i].inputs
                assert torch.allclose(seen[i], values[j])
                slope, intercept = used[i].slope, used[i].intercept
                values[i] = plan.relaxation(i).along(slope, values[j], intercept)
            else:
                values[i] = x if i == 0 else op.apply(*(values[j] for j in graph.nodes[i].inputs))
        value = (coef * values[target]).flatten(1).sum(1)
        mine = (form.coef * x).flatten(1).sum(1) + form.const
        assert torch.allclose(mine, value, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp relu", "mlp gelu", "conv_max", "residual relu", "sliced"])
@pytest.mark.parametrize("group", [1, 2, 0])
def test_results_do_not_depend_on_order_chunks_or_company(name: str, group: int) -> None:
    graph = zoo.NETWORKS[name]
    method = Frown(group=group, ascent=Ascent(4, 4))
    ball = zoo.region(graph, 2.0, count=4)
    spec = pairwise(graph, 4)
    layers, margins = solve(graph, ball, spec, method)
    order = torch.tensor([2, 0, 3, 1])
    _, turned = solve(graph, ball.rows(order), spec, method)
    assert torch.allclose(turned, margins[order], atol=1e-8)
    again, chunked = solve(graph, ball, spec, method, Work(memory=1))
    assert torch.allclose(chunked, margins, atol=1e-8)
    for i, box in layers.values.items():
        assert torch.allclose(again.values[i].lower, box.lower, atol=1e-8)
    alone = [
        solve(graph, ball.rows(slice(n, n + 1)), spec.rows(slice(n, n + 1)), method)[1]
        for n in range(4)
    ]
    assert torch.allclose(torch.cat(alone), margins, atol=1e-8)


def test_one_hot_rows_pick_single_entries() -> None:
    rows = one_hot(torch.tensor([2, 0]), torch.tensor([1.0, -1.0]), 4, (2, 2))
    assert rows.tolist() == [[[0, 0], [1, 0]], [[-1, 0], [0, 0]]]


@pytest.mark.parametrize("method", [Interval(), FastLin(), Crown(), Frown()], ids=lambda m: m.name)
def test_overflow_proves_nothing(method: Method) -> None:
    """Values beyond float32 give NaN, infinity or a very low bound, never a proof."""
    graph = zoo.mlp(Relu(), (4, 6, 6, 3), seed=2)
    nodes = tuple(
        replace(n, op=replace(n.op, weight=n.op.weight * 1e20)) if hasattr(n.op, "weight") else n
        for n in graph.nodes
    )
    huge = Graph(nodes).to(torch.float32)
    ball = zoo.region(huge, inf, radius=0.5)
    _, margins = solve(huge, ball, pairwise(huge, 2), method)
    assert not (margins > 0).any()


def behind_a_logarithm(op: Relaxation) -> Graph:
    """x -> log(x + 1) -> op -> scores; op may be a maximum over pairs."""
    weights, b = zoo.Weights.seeded(4), Builder()
    x = b.add(Log(), b.scale(b.input("x", (1, 4)), 1.0, 1.0))
    pairs = isinstance(op, Max)
    x = b.add(op, b.reshape(x, (1, 2, 2)) if pairs else x)
    return b.graph(b.linear(x, weights(3, 2 if pairs else 4), 5 * weights(3)))


LINES = {**METHODS, "lp": LP(), "lp of the last layer": LP(inner=Crown())}


@pytest.mark.parametrize("label", LINES)
@pytest.mark.parametrize("name", ["relu", "abs", "relu6", "sigmoid", "elu", "gelu", "sin", "max"])
def test_beyond_a_domain_nothing_is_proved(label: str, name: str) -> None:
    """Two inputs, of which the second may leave the logarithm's domain in one feature: it has no
    finite bound, whatever follows the logarithm, and the first has its own."""
    method = LINES[label]
    graph = behind_a_logarithm(Max() if name == "max" else ELEMENTWISE[name])
    centre = torch.tensor([[0.3, 0.2, 0.4, -0.1], [0.3, -0.95, 0.4, -0.1]], dtype=torch.float64)
    ball = Region(centre[:, None], torch.full((2,), 0.1, dtype=torch.float64), inf)
    spec = pairwise(graph, 2)
    _, margins = solve(graph, ball, spec, method)
    _, alone = solve(graph, ball.rows(slice(0, 1)), spec.rows(slice(0, 1)), method)
    assert torch.allclose(margins[:1], alone, atol=1e-8)
    assert torch.isfinite(margins[0]).all()
    assert not torch.isfinite(margins[1]).any()
    first = ball.rows(slice(0, 1))
    truth = Truth(graph, first, spec.rows(slice(0, 1)))
    assert (truth.conditions >= margins[:1] - 1e-9).all()
