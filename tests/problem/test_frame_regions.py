"""Products of balls, one per frame: minima against scipy and sampling, programs against minima."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import linprog
from torch import Tensor

import zoo
from frown.bounds.plan import Plan
from frown.certification.attack import PGD, nearest
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.methods import Crown
from frown.methods.lp.program import Program
from frown.methods.lp.solvers import Basis, minimise
from frown.problem.property import LabelWins, conjunction
from frown.problem.region import Region
from frown.relax import Tanh
from problem.test_region import every_norm, every_scale, every_shape, seeds, truth

FRAMES, WIDTH = 3, 4
every_axis = pytest.mark.parametrize("split", [2, 3], ids=["rows", "columns"])


def draw(
    seed: int, p: float, clipped: bool, scaled: bool, split: int, count: int = 3
) -> tuple[Region, Tensor]:
    """Products of balls over (1, FRAMES, WIDTH), and a form for each; one frame is fixed."""
    rng = np.random.default_rng(seed)
    shape = (count, 1, FRAMES, WIDTH)
    centre = rng.uniform(-1, 1, shape)
    coef = rng.normal(size=shape) * rng.choice([1e-3, 1, 30], shape)
    lower = upper = scale = None
    if clipped:
        lower = centre.min(0, keepdims=True) - rng.choice([0, 0.1, 1], (1, *shape[1:]))
        upper = centre.max(0, keepdims=True) + rng.choice([0, 0.1, 1], (1, *shape[1:]))
    if scaled:
        scale = rng.choice([0, 0.5, 1, 2.0], (1, *shape[1:]))
        scale[0, 0, 1, 1] = 0.7
        np.moveaxis(scale, split, 0)[0] = 0.0
    radius = rng.choice([0.01, 0.3, 2.0], count)
    tensors = [None if v is None else torch.from_numpy(v) for v in (scale, lower, upper)]
    ball = Region(torch.from_numpy(centre), torch.from_numpy(radius), p, *tensors, split)
    return ball, torch.from_numpy(coef)


def one_ball(ball: Region, frame: int) -> Region:
    """A frame as a flat region of its own."""

    def pick(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.select(ball.split, frame).flatten(1)

    ends = [pick(t) for t in (ball.scale, ball.lower, ball.upper)]
    return Region(pick(ball.centre), ball.radius, ball.p, *ends)


def least(ball: Region, n: int, coef: Tensor) -> float:
    """The sum of the frames' least values, each by scipy."""
    count = ball.centre.shape[ball.split]
    forms = (coef.select(ball.split - 1, f).flatten().numpy() for f in range(count))
    return sum(truth(one_ball(ball, f), n, form) for f, form in enumerate(forms))


def samples(ball: Region, n: int, count: int, seed: int) -> Tensor:
    """Points of sample n's region, made and checked by numpy alone."""
    rng = np.random.default_rng(seed)
    step = rng.normal(size=(count, *ball.centre.shape[1:]))
    frames = np.moveaxis(step, ball.split, 1)
    size = np.abs(frames.reshape(*frames.shape[:2], -1))
    norm = size.max(-1) if ball.p == inf else (size**ball.p).sum(-1) ** (1 / ball.p)
    step = np.moveaxis(frames / norm.reshape(*norm.shape, *[1] * (frames.ndim - 2)), 1, ball.split)
    step *= float(ball.radius[n]) * rng.choice([1.0, 0.5], (count, 1, 1, 1))
    if ball.scale is not None:
        step *= ball.scale.numpy()
    points = ball.centre[n].numpy() + step
    if ball.lower is not None and ball.upper is not None:
        points = points.clip(ball.lower.numpy(), ball.upper.numpy())
    return torch.from_numpy(points)


@every_norm
@every_shape
@every_scale
@every_axis
@given(seed=seeds)
def test_the_least_value_is_the_sum_of_the_frames(
    seed: int, p: float, clipped: bool, scaled: bool, split: int
) -> None:
    ball, coef = draw(seed, p, clipped, scaled, split)
    found = ball.minimise(coef)
    assert (ball.distance(found.point) <= ball.radius * (1 + 1e-9)).all()
    both = ball.extremes(coef)
    for n in range(len(coef)):
        expected = least(ball, n, coef[n])
        size = 1 + abs(expected) + float(coef[n].abs().sum()) * (1 + float(ball.radius[n]))
        assert float(found.value[n]) == pytest.approx(expected, abs=1e-9 * size)
        assert float((coef[n] * found.point[n]).sum()) == pytest.approx(expected, abs=1e-9 * size)
        assert float(both.lower[n, n]) == pytest.approx(expected, abs=1e-9 * size)
        assert float(both.upper[n, n]) == pytest.approx(-least(ball, n, -coef[n]), abs=1e-9 * size)
        inside = samples(ball, n, 200, seed % 1000)
        assert ((inside * coef[n]).flatten(1).sum(1) >= expected - 1e-9 * size).all()


@every_scale
@every_axis
@given(seed=seeds)
def test_a_budget_per_frame_as_one_linear_program(seed: int, scaled: bool, split: int) -> None:
    """p = 1, cut by a range: all frames in one program, with nothing of ours in it."""
    ball, coef = draw(seed, 1.0, True, scaled, split, count=1)
    assert ball.lower is not None and ball.upper is not None
    centre, c = ball.centre[0].numpy(), coef[0].numpy().ravel()
    scale = np.ones_like(centre) if ball.scale is None else ball.scale[0].numpy()
    up, down = ball.upper[0].numpy() - centre, centre - ball.lower[0].numpy()
    frame = np.indices(centre.shape)[split - 1].ravel()
    still = scale.ravel() == 0
    unit = np.where(still, 1.0, scale.ravel())
    rows = np.stack([np.tile((frame == f) / unit, 2) for f in range(centre.shape[split - 1])])
    bounds = [(0, 0 if s else r) for r, s in zip(np.append(up, down), np.tile(still, 2))]
    best = linprog(
        np.append(c, -c), A_ub=rows, b_ub=[float(ball.radius)] * len(rows), bounds=bounds
    )
    expected = float(c @ centre.ravel()) + best.fun
    assert float(ball.minimise(coef).value) == pytest.approx(
        expected, abs=1e-7 * (1 + abs(c).sum())
    )


@every_norm
@every_shape
@every_axis
def test_box_limit_and_radius_0(p: float, clipped: bool, split: int) -> None:
    ball, coef = draw(5, p, clipped, True, split)
    box, whole = ball.box(), Region(*(getattr(ball, f) for f in Region.__slots__[:6]))
    assert torch.equal(box.lower, whole.box().lower)
    still = ball.with_radius(torch.zeros_like(ball.radius)).minimise(coef)
    assert torch.allclose(still.value, (coef * ball.centre).flatten(1).sum(1))
    if clipped:
        once, more = (ball.with_radius(ball.limit() * f).minimise(coef).value for f in (1, 2))
        assert torch.allclose(once, more, atol=1e-9)
        less = ball.with_radius(ball.limit() * 0.9)
        assert (
            less.distance(less.project(ball.upper.expand_as(ball.centre)))
            <= less.radius * (1 + 1e-9)
        ).all()
    else:
        assert torch.isinf(ball.limit()).all()


@every_norm
@every_shape
@every_scale
@every_axis
@given(seed=seeds)
def test_projection_and_distance_go_frame_by_frame(
    seed: int, p: float, clipped: bool, scaled: bool, split: int
) -> None:
    ball, _ = draw(seed, p, clipped, scaled, split)
    rng = np.random.default_rng(seed)
    far = ball.centre + torch.from_numpy(rng.normal(size=tuple(ball.centre.shape)) * 3)
    landed = ball.project(far)
    for f in range(ball.centre.shape[split]):
        own = one_ball(ball, f)
        expected = own.project(far.select(split, f).flatten(1))
        assert torch.allclose(landed.select(split, f).flatten(1), expected)
    frames = [one_ball(ball, f).distance(landed.select(split, f).flatten(1)) for f in range(FRAMES)]
    if split == 2:
        assert torch.allclose(ball.distance(landed), torch.stack(frames).amax(0))
    assert (ball.distance(landed) <= ball.radius * (1 + 1e-9)).all()


def test_rows_keep_their_balls_apart() -> None:
    ball, coef = draw(3, 2.0, False, True, 2)
    order = torch.tensor([2, 0, 2])
    assert torch.equal(
        ball.rows(order).minimise(coef[order]).value, ball.minimise(coef).value[order]
    )
    assert ball.rows(order).split == 2


def plane(weight: Tensor, bias: float) -> Graph:
    """Two outputs whose difference is w . x + b, over (1, FRAMES, WIDTH)."""
    b = Builder()
    x = b.reshape(b.input("x", (1, FRAMES, WIDTH)), (1, FRAMES * WIDTH))
    rows = torch.stack([weight.flatten(), torch.zeros(weight.numel(), dtype=weight.dtype)])
    return b.graph(b.linear(x, rows, torch.tensor([bias, 0.0], dtype=weight.dtype)))


@every_norm
@every_axis
def test_the_attack_finds_the_distance_to_a_plane(p: float, split: int) -> None:
    """b / sum_f ||w_f||_q, to a few per cent, and never less."""
    weight = torch.randn(FRAMES, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    zero = torch.zeros(1, 1, FRAMES, WIDTH).double()
    ball = Region(zero, torch.tensor([5.0]).double(), p, split=split)
    q = {1.0: inf, inf: 1.0}.get(p) or p / (p - 1)
    exact = 1.0 / float(torch.linalg.vector_norm(weight, ord=q, dim=3 - split).sum())
    spec = LabelWins(torch.tensor([0]), torch.tensor([[1]]), 2, torch.float64)
    found = nearest(plane(weight, 1.0), ball, spec, torch.tensor([0.1]).double(), PGD())
    assert exact * (1 - 1e-9) <= float(found.distance) <= exact * 1.05
    assert float(ball.gain(weight[None, None])) == pytest.approx(1 / exact)


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@every_shape
@every_scale
@every_axis
def test_programs_know_the_region(p: float, clipped: bool, scaled: bool, split: int) -> None:
    """The least value of a form over a program's input columns is the region's own."""
    ball, coef = draw(7, p, clipped, scaled, split)
    plan = Plan(plane(torch.ones(FRAMES, WIDTH).double(), 1.0))
    for n in range(len(coef)):
        program = Program(plan, ball.rows(slice(n, n + 1)))
        program.add_input()
        value = program.values[0]
        cost = coef[n].numpy().reshape(1, -1)
        costs = np.asarray(cost @ value.matrix)
        duals, _ = minimise(program.constraints(), costs, [Basis()])
        expected = float(ball.minimise(coef).value[n])
        size = 1 + float(coef[n].abs().sum()) * (1 + float(ball.radius[n]))
        assert duals.solved.all()
        assert duals.optimum[0] + float((cost @ value.shift)[0]) == pytest.approx(
            expected, abs=2e-6 * size
        )


def test_a_network_over_frames_is_bounded_soundly() -> None:
    """CROWN's bounds hold at sampled sequences, and one ball per frame is the larger region."""
    graph = zoo.mlp(Tanh(), seed=3)
    features = graph.input_shape[-1]
    eye = torch.eye(graph.output_size, dtype=graph.dtype)
    spec = conjunction(torch.cat([eye, -eye])[None])
    whole = Region(
        torch.zeros(1, *graph.input_shape, dtype=graph.dtype),
        torch.tensor([0.7], dtype=graph.dtype),
        2.0,
    )
    each = Region(whole.centre, whole.radius, 2.0, split=2)
    bounds = []
    for ball in (whole, each):
        bounds.append(Crown().bound(Plan(graph), ball, spec).literals[0])
    assert (bounds[1] < bounds[0]).all()
    rng = np.random.default_rng(0)
    corners = torch.from_numpy(rng.choice([-0.7, 0.7], (500, 1, features))).to(graph.dtype)
    reached = graph.apply(corners) @ torch.cat([eye, -eye]).T
    assert (reached >= bounds[1] - 1e-9).all()
    assert (reached.amin(0) < bounds[0]).any()  # beyond the one ball's bounds: another region
