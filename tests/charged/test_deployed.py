"""Networks as executed in single precision stay within what is proved for them."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import frown
from charged.cases import CLASSES, RULES, network, points
from charged.runtime import Runtime
from frown.bounds.arithmetic.executed import Execution
from frown.bounds.arithmetic.float32 import TINY32, UNIT32, unknown
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.graph.affine import Combine, Scale
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.graph.intervals import Intervals
from frown.graph.op import Op
from frown.graph.simplify import tidy
from frown.problem.property import LabelWins
from frown.problem.region import Region
from frown.relax import Elu
from frown.relax.elementwise import Elementwise
from frown.relax.piecewise import LeakyRelu, PRelu, Relu
from functions import ELEMENTWISE


def walked(graph: Graph, region: Region, method: str = "crown") -> Replay:
    plan, rule = Plan(graph), RULES[method]
    execution = Execution(plan, region, Work())
    walk = Replay(plan, region, ByRule(rule), Work(), execution=execution)
    walk.layers()
    return walk


def inside(walk: Replay, runtime: Runtime, samples: Tensor) -> tuple[int, int]:
    """How many executed numbers are within their bounds; all of them have to be."""
    assert walk.execution is not None
    counted = useful = 0
    for i, value in runtime.values.items():
        z = torch.from_numpy(value).double()
        box = walk.values[i].rows(samples)
        assert ((z >= box.lower) & (z <= box.upper) | ~_known(box.lower, box.upper)).all(), i
        off = (z - runtime.ideal[i]).abs()
        allowed = walk.execution.error[i][samples]
        # The reference is in double precision: a billionth of what single precision may lose.
        assert ((off <= allowed * (1 + 1e-6)) | ~torch.isfinite(allowed)).all(), i
        counted += z.numel()
        useful += int(torch.isfinite(allowed).sum())
    return counted, useful


def _known(low: Tensor, high: Tensor) -> Tensor:
    return torch.isfinite(low) & torch.isfinite(high)


@pytest.mark.parametrize("smooth", [False, True])
def test_hostile_networks_stay_within_their_boxes(smooth: bool) -> None:
    rng = np.random.default_rng(5 + smooth)
    evaluations = useful = 0
    for _ in range(25 if smooth else 50):
        graph = _in_single(network(rng, smooth))
        if unknown(graph):
            continue
        p = float(rng.choice([1, 2, inf]))
        centre = torch.from_numpy(rng.standard_normal((3, *graph.input_shape)))
        radius = torch.from_numpy(2.0 ** rng.uniform(-40, 0, 3))
        region = Region(centre, radius, p)
        walk = walked(graph, region, str(rng.choice(["crown", "fastlin", "interval"])))
        spec = LabelWins(
            torch.zeros(3, dtype=torch.long), torch.ones(3, 1).long(), CLASSES, centre.dtype
        )
        proved = walk.literals(spec)[:, 0]
        x, sample = _points(rng, region)
        for flush in (False, True):
            runtime = Runtime(graph, rng, flush)
            y = runtime.run(x).reshape(len(x), -1).astype(float)
            useful += inside(walk, runtime, sample)[1]
            gap = torch.from_numpy(y[:, 0] - y[:, 1])
            assert ((gap >= proved[sample]) | ~torch.isfinite(proved[sample])).all()
            evaluations += len(x)
    assert evaluations > 1000 and useful > 10_000


def _in_single(graph: Graph) -> Graph:
    """The same network with numbers of single precision (half of the time)."""
    rounded = graph.to(torch.float32).to(torch.float64)
    return rounded if len(graph.nodes) % 2 else graph


def _points(rng: np.random.Generator, region: Region) -> tuple[Tensor, Tensor]:
    found, sample = [], []
    for n in range(len(region.radius)):
        slopes = torch.from_numpy(rng.standard_normal((6, *region.centre.shape[1:])))
        for x in points(rng, region, n, slopes):
            floats = np.array([int(v.p) / int(v.q) for v in x.ravel()]).reshape(x.shape)
            found.append(torch.from_numpy(floats))
            sample.append(n)
    return torch.stack(found), torch.tensor(sample)


# -- bounds that are reached ----------------------------------------------------------------

FAN = 1000
SMALL = UNIT32 * (1 - 2.0**-20)  # 1 + SMALL rounds to 1


def accumulating(layers: int) -> Graph:
    """Each layer adds FAN small numbers to the first entry, one by one: all of them are lost."""
    b = Builder()
    x = b.input("x", (FAN + 1,))
    weight = torch.eye(FAN + 1, dtype=torch.float64)
    weight[0] = 1
    for _ in range(layers):
        x = b.add(Relu(), b.linear(x, weight))
    return b.graph(b.slice(x, 0, 0, 1))


class InOrder(np.random.Generator):
    """No random choices: terms one after the other as they are."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def choice(self, *args: object, **named: object) -> str:  # type: ignore[override]
        return "sequential"

    def permutation(self, n: int) -> np.ndarray:  # type: ignore[override]
        return np.arange(n)

    def integers(self, *args: object, **named: object) -> int:  # type: ignore[override]
        return 0


def accumulated(layers: int) -> tuple[Replay, Runtime]:
    graph = accumulating(layers)
    x = torch.full((1, FAN + 1), SMALL, dtype=torch.float64)
    x[:, 0] = 1
    runtime = Runtime(graph, InOrder())
    runtime.run(x)
    return walked(graph, Region(x, torch.tensor([2.0**-60]).double(), inf)), runtime


@pytest.mark.parametrize("layers", [1, 3])
def test_errors_that_accumulate_come_close_to_their_bound(layers: int) -> None:
    walk, runtime = accumulated(layers)
    inside(walk, runtime, torch.tensor([0]))
    last = len(walk.plan.graph.nodes) - 1
    real = 1 + layers * FAN * SMALL
    lost = real - float(runtime.values[last].flat[0])
    assert lost == pytest.approx(layers * FAN * UNIT32, rel=1e-3)
    assert lost > 0.95 * (real - float(walk.values[last].lower))


@pytest.mark.parametrize("layers", [1, 3])
def test_half_of_the_bound_is_too_little(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Execution.affine

    def half(self: Execution, i: int, *rest: object) -> Tensor:
        self.error[i] = whole(self, i, *rest) / 2  # type: ignore[arg-type]
        return self.error[i]

    monkeypatch.setattr(Execution, "affine", half)
    with pytest.raises(AssertionError):
        inside(*accumulated(layers), torch.tensor([0]))


@pytest.mark.parametrize("dropped", [1, 3, 5])
def test_no_layer_can_be_left_out(dropped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Execution.affine

    def rest_of(self: Execution, i: int, *rest: object) -> Tensor:
        self.error[i] = whole(self, i, *rest) * (i != dropped)  # type: ignore[arg-type]
        return self.error[i]

    monkeypatch.setattr(Execution, "affine", rest_of)
    walk, runtime = accumulated(3)
    last = len(walk.plan.graph.nodes) - 1
    assert float(runtime.values[last].flat[0]) < float(walk.values[last].lower)


def test_what_the_radius_adds_is_charged() -> None:
    """At the centre the first entry is 0, and sums are small; the ball's corner makes it 1."""
    graph = accumulating(1)
    centre = torch.full((1, FAN + 1), SMALL, dtype=torch.float64)
    centre[:, 0] = 0
    corner = centre.clone()
    corner[:, 0] = 1
    runtime = Runtime(graph, InOrder())
    runtime.run(corner)
    walk = walked(graph, Region(centre, torch.ones(1).double(), 1.0))
    inside(walk, runtime, torch.tensor([0]))
    assert walk.execution is not None
    assert float(walk.execution.error[1][0, 0]) < 1.05 * FAN * UNIT32


def test_rows_are_charged_with_the_errors_of_all_they_pass() -> None:
    """Where no neuron changes its sign, a form falls by |its coefficient| times what a node is
    off; an affine node within a run has no error of its own."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", (4,))
    for _ in range(2):
        x = b.linear(x, torch.from_numpy(rng.standard_normal((4, 4))))
        x = b.add(LeakyRelu(0.5), b.scale(x, 2.0, 0.25))
    graph = b.graph(b.linear(x, torch.from_numpy(rng.standard_normal((3, 4)))))
    centre = torch.from_numpy(rng.standard_normal((1, 4)))
    walk = walked(graph, Region(centre, torch.tensor([1e-12]).double(), 2.0))
    assert walk.execution is not None
    spec = LabelWins(torch.zeros(1).long(), torch.ones(1, 1).long(), 3, torch.float64)
    nowhere = torch.full((1, 3), inf).double()
    walk.values[len(graph.nodes) - 1] = Intervals(-nowhere, nowhere)  # rows alone say something
    before = float(walk.literals(spec))
    for i in range(len(graph.nodes)):
        error = walk.execution.error[i]
        walk.execution.error[i] = error + 1e-3
        fall = before - float(walk.literals(spec))
        walk.execution.error[i] = error
        within = i in (1, 4)
        slope = _slope(graph, centre, spec.coef[0, 0], i)
        assert fall == pytest.approx(0 if within else 1e-3 * slope, rel=1e-4, abs=1e-9), i


def _slope(graph: Graph, x: Tensor, coef: Tensor, node: int) -> float:
    """The sum of |d (coef . output) / d value| over a node's entries."""
    values = {0: x}
    with torch.enable_grad():
        for i, here in enumerate(graph.nodes):
            value = x if i == 0 else here.op.apply(*(values[j] for j in here.inputs))
            values[i] = value.detach().requires_grad_() if i == node else value
        total = (values[len(graph.nodes) - 1] * coef).sum()
        (slope,) = torch.autograd.grad(total, values[node])
    return float(slope.abs().sum())


def test_merged_operators_are_covered() -> None:
    """A runtime folds a batch normalisation, or one matrix into the next, in single precision."""
    rng = np.random.default_rng(3)
    for trial in range(40):
        first, second = (torch.from_numpy(rng.standard_normal((30, 30))).float() for _ in "ab")
        factor, offset = (torch.from_numpy(rng.standard_normal(30)).float() for _ in "ab")
        matrix = bool(trial % 2)
        b = Builder()
        x = b.input("x", (30,))
        y = b.linear(x, first.double(), offset.double())
        y = b.linear(y, second.double()) if matrix else b.scale(y, factor.double(), 0.5)
        graph = b.graph(y)
        centre = torch.from_numpy(rng.standard_normal((8, 30)))
        walk = walked(graph, Region(centre, torch.zeros(8).double() + 1e-30, 2.0))
        runtime = Runtime(graph, rng)
        single = centre.numpy().astype(np.float32)
        weight = second @ first if matrix else factor[:, None] * first
        bias = second @ offset if matrix else factor * offset + 0.5
        executed = torch.from_numpy(runtime.dense(single, weight, bias)).double()
        exact = graph.apply(torch.from_numpy(single).double())
        assert walk.execution is not None
        assert ((executed - exact).abs() <= walk.execution.error[2]).all()


def test_a_ball_is_bounded_from_its_centre() -> None:
    """A box around a ball of l_1 is far larger than the ball, and so would sums in it be."""
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.standard_normal((5, 400)))
    b = Builder()
    graph = b.graph(b.add(Relu(), b.linear(b.input("x", (400,)), weight)))
    centre = torch.from_numpy(rng.uniform(-1, 1, (1, 400)))
    errors = []
    for radius in (1e-6, 10.0):
        walk = walked(graph, Region(centre, torch.tensor([radius]).double(), 1.0))
        assert walk.execution is not None
        errors.append(walk.execution.error[1])
        for k in range(5):  # the ball's own corner: all of the radius on the largest weight
            x = centre.clone()
            x[0, int(weight[k].abs().argmax())] += radius
            runtime = Runtime(graph, rng)
            runtime.run(x)
            inside(walk, runtime, torch.tensor([0]))
    assert (errors[1] < 1.6 * errors[0]).all()


# -- as torch executes them ----------------------------------------------------------------


class Residual(nn.Module):
    """Convolutions, batch normalisation, pooling and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.last = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Tanh(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        answer: Tensor = self.last(torch.relu(y + self.branch(y)))
        return answer


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.rnn(x)[0][:, -1])
        return answer


@pytest.mark.parametrize(
    ("module", "shape"), [(Residual(), (1, 1, 8, 8)), (Recurrent(), (1, 3, 5))], ids=["cnn", "lstm"]
)
def test_modules_that_torch_executes(module: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.1, 2.0)  # type: ignore[arg-type]
    module.eval()
    graph = tidy(frown.load(module, torch.zeros(shape)).graph)
    centre = torch.rand(4, *graph.input_shape).double()
    walk = walked(graph, Region(centre, torch.full((4,), 1e-7).double(), inf))
    box = walk.values[len(graph.nodes) - 1].rows(torch.arange(4).repeat(50))
    x = centre.repeat(50, *[1] * (centre.dim() - 1))
    x = x + 1e-7 * torch.empty_like(x).uniform_(-1, 1)
    with torch.no_grad():
        y = module(x.float().view(-1, *shape[1:])).double().view_as(box.lower)
    assert ((box.lower <= y) & (y <= box.upper)).all()
    assert (box.upper - box.lower).max() < 0.01


@pytest.mark.parametrize("after", [None, "sigmoid", "hard_tanh"])
def test_numbers_beyond_single_precision_prove_nothing(after: str | None) -> None:
    """Executed, this is infinite, and could as well be inf - inf."""
    b = Builder()
    x = b.input("x", (1,))
    huge = b.add(Scale(torch.tensor([2.0**120]).double(), torch.zeros(1).double()), x)
    huge = b.add(Scale(torch.tensor([2.0**20]).double(), torch.zeros(1).double()), huge)
    weight = torch.tensor([[2.0**-140], [0.0]]).double()
    if after is not None:
        huge, weight = b.add(ELEMENTWISE[after], huge), weight.sign()
    graph = b.graph(b.linear(huge, weight))
    region = Region(torch.ones(1, 1).double(), torch.tensor([0.1]).double(), inf)
    spec = LabelWins(torch.zeros(1).long(), torch.ones(1, 1).long(), 2, torch.float64)
    walk = walked(graph, region)
    assert not bool((walk.literals(spec) > 0).any())
    assert walk.execution is not None
    last = walk.execution.error[len(graph.nodes) - 1]
    assert bool(torch.isinf(last[..., 0]).all())


def test_small_numbers_that_are_flushed_are_charged() -> None:
    b = Builder()
    x = b.input("x", (1,))
    small = b.linear(x, torch.tensor([[2.0**-130]]).double())
    graph = b.graph(b.linear(b.add(Relu(), small), torch.tensor([[2.0**125], [0.0]]).double()))
    region = Region(torch.ones(1, 1).double(), torch.tensor([0.1]).double(), inf)
    walk = walked(graph, region)
    runtime = Runtime(graph, np.random.default_rng(0), flush=True)
    assert float(runtime.run(torch.ones(1, 1).double())[0, 0]) == 0
    inside(walk, runtime, torch.tensor([0]))
    assert walk.execution is not None and float(walk.execution.error[1]) >= TINY32


@pytest.mark.parametrize(
    "op",
    [LeakyRelu(2.0**-130), PRelu(torch.tensor([2.0**-130]).double()), Elu(1.0, 2.0**-130)],
    ids=["leaky_relu", "prelu", "elu"],
)
def test_slopes_that_are_flushed_are_charged(op: Elementwise) -> None:
    """A runtime that takes a slope below 2^-126 for 0 loses all of what it multiplies."""
    b = Builder()
    sign = 1.0 if isinstance(op, Elu) else -1.0
    large = b.linear(b.input("x", (1,)), torch.tensor([[sign * 2.0**100]]).double())
    graph = b.graph(b.linear(b.add(op, large), torch.tensor([[1.0], [0.0]]).double()))
    region = Region(torch.ones(1, 1).double(), torch.tensor([0.1]).double(), inf)
    walk = walked(graph, region)
    assert walk.execution is not None
    site = next(i for i, node in enumerate(graph.nodes) if isinstance(node.op, type(op)))
    assert float(walk.execution.error[site]) >= 2.0**-30
    box = walk.values[len(graph.nodes) - 1]
    assert box.lower[0, 0] <= 0 <= box.upper[0, 0]


@pytest.mark.parametrize("op", [LeakyRelu(1e39), Elu(1e39), Elu(1.0, -1e39), Combine((1.0, 1e39))])
def test_plain_numbers_beyond_single_precision_are_refused(op: Op) -> None:
    b = Builder()
    x = b.input("x", (1,))
    y = b.add(op, x, x) if isinstance(op, Combine) else b.add(op, x)
    assert [what for what, _ in unknown(b.graph(y))] == [
        f"{type(op).__name__} with numbers beyond 2^126"
    ]
