"""Linear forms over balls cut by ranges, against scipy; projections, distances, limits."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from torch import Tensor

from frown.problem.region import Region

NORMS = (1.0, 1.5, 2.0, 3.0, inf)
every_norm = pytest.mark.parametrize("p", NORMS)
every_shape = pytest.mark.parametrize("clipped", [False, True], ids=["whole", "clipped"])
every_scale = pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
seeds = st.integers(0, 2**32)


def draw(
    seed: int, p: float, clipped: bool, scaled: bool, features: int = 5
) -> tuple[Region, Tensor]:
    """Three balls and three forms; ranges that touch the centre, fixed and ignored features."""
    rng = np.random.default_rng(seed)
    shape = (3, features)
    centre = rng.uniform(-1, 1, shape)
    coef = rng.normal(size=shape) * rng.choice([1e-3, 1, 30], shape)
    coef[:, 1] *= rng.integers(0, 2)
    lower = upper = scale = None
    if clipped:
        lower = centre.min(0, keepdims=True) - rng.choice([0, 0.1, 1], (1, features))
        upper = centre.max(0, keepdims=True) + rng.choice([0, 0.1, 1], (1, features))
    if scaled:
        scale = rng.choice([0, 0.5, 1, 2.0], (1, features))
        scale[0, 0] = 0.7
    radius = rng.choice([0.01, 0.3, 2.0], 3)
    tensors = [None if v is None else torch.from_numpy(v) for v in (scale, lower, upper)]
    return Region(
        torch.from_numpy(centre), torch.from_numpy(radius), p, *tensors
    ), torch.from_numpy(coef)


def caps(ball: Region, n: int, sign: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per feature: the scale and how far it may move towards `sign`, in units of it."""
    centre = ball.centre[n].numpy()
    scale = np.ones_like(centre) if ball.scale is None else ball.scale[0].numpy()
    if ball.lower is None or ball.upper is None:
        room = np.full_like(centre, 1e6)
    else:
        room = np.where(sign > 0, ball.upper[0].numpy() - centre, centre - ball.lower[0].numpy())
    return scale, np.where(scale > 0, room / np.where(scale > 0, scale, 1), 0)


def truth(ball: Region, n: int, coef: np.ndarray) -> float:
    """min coef . x over ball n: an LP for p = 1 and inf, else the multiplier by root finding."""
    centre, radius, p = ball.centre[n].numpy(), float(ball.radius[n]), ball.p
    scale, cap = caps(ball, n, -np.sign(coef))
    gain = np.abs(coef) * scale
    start = float(coef @ centre)
    if p == inf:
        return start - float(gain @ np.minimum(cap, radius))
    if p == 1:
        best = linprog(
            -gain, A_ub=np.ones((1, len(gain))), b_ub=[radius], bounds=[(0, c) for c in cap]
        )
        return start + float(best.fun)

    largest = max(gain.max(), 1e-300)
    shape = (gain / largest) ** (1 / (p - 1))
    cap = np.minimum(cap, 2 * radius)

    def amount(c: float) -> np.ndarray:
        return np.minimum(cap, c * shape)

    def surplus(c: float) -> float:
        return float(((amount(c) / radius) ** p).sum()) - 1

    if not (shape > 0).any():
        return start
    # All at their caps, or a root between 'too little' (each below r n^(-1/p)) and that.
    low, top = (
        np.log(0.9 * radius * len(gain) ** (-1 / p)),
        np.log(4 * radius / shape[shape > 0].min()),
    )
    if surplus(np.exp(top)) <= 0:
        return start - float(gain @ amount(np.exp(top)))
    root = brentq(lambda t: surplus(np.exp(t)), low, top, xtol=1e-14, rtol=1e-14, maxiter=500)
    return start - float(gain @ amount(np.exp(root)))


@every_norm
@every_shape
@every_scale
@given(seed=seeds)
def test_the_least_value_of_a_form(seed: int, p: float, clipped: bool, scaled: bool) -> None:
    ball, coef = draw(seed, p, clipped, scaled)
    found = ball.minimise(coef)
    for n in range(3):
        expected = truth(ball, n, coef[n].numpy())
        size = 1 + abs(expected) + float(coef[n].abs().sum()) * (1 + float(ball.radius[n]))
        assert float(found.value[n]) == pytest.approx(expected, abs=1e-9 * size)
        # Attained by the point, which lies in the region.
        assert float(coef[n] @ found.point[n]) == pytest.approx(expected, abs=1e-9 * size)
    inside(ball, found.point)


@every_norm
@every_shape
@every_scale
@given(seed=seeds)
def test_single_precision_never_overstates_the_least_value(
    seed: int, p: float, clipped: bool, scaled: bool
) -> None:
    """Also where a cap all but fills the ball: the worst case for cancellation."""
    ball, coef = draw(seed, p, clipped, scaled)
    if clipped:
        rng = np.random.default_rng(seed)
        gap = torch.from_numpy(rng.choice([1e-8, 3e-8, 1e-7, 3e-6], 3))
        radius = (ball.upper[0, 2] - ball.centre[:, 2]).abs().clamp(min=1e-3) * (1 + gap)
        ball = ball.with_radius(radius)
        coef[:, 2] = -coef.abs().amax(1)
    cast = [t if t is None else t.float() for t in (ball.scale, ball.lower, ball.upper)]
    rough = Region(ball.centre.float(), ball.radius.float(), p, *cast)
    if clipped:
        assert rough.lower is not None
        middle = rough.centre.maximum(rough.lower).minimum(rough.upper)
        rough = Region(middle, rough.radius, p, *cast)
    form = coef.float()
    exact = [t if t is None else t.double() for t in (rough.scale, rough.lower, rough.upper)]
    fine = Region(rough.centre.double(), rough.radius.double(), p, *exact)
    found = rough.minimise(form).value.double()
    for n in range(3):
        expected = truth(fine, n, form[n].double().numpy())
        terms = float((form[n].double().abs() * (1 + fine.radius[n])).sum()) * 3
        assert float(found[n]) <= expected + 16 * 6e-8 * terms
        assert float(found[n]) >= expected - 2e-3 * terms


@pytest.mark.parametrize("p", [1.02, 1.1, 8.0, 40.0])
@every_shape
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_powers_beyond_the_range_of_floats_lose_nothing(
    p: float, clipped: bool, size: float
) -> None:
    """Large p, and large duals for p near 1: |c|^q leaves the range of float32."""
    rng = np.random.default_rng(3)
    coef = torch.from_numpy(rng.normal(size=(3, 6)) * size).float()
    centre = torch.from_numpy(rng.uniform(-1, 1, (3, 6))).float()
    radius = torch.tensor([1e-4, 1e-2, 3.0])
    ends = (torch.full((1, 6), -1.5), torch.full((1, 6), 1.5)) if clipped else (None, None)
    rough = Region(centre, radius, p, None, *ends)
    ends64 = [t if t is None else t.double() for t in ends]
    fine = Region(centre.double(), radius.double(), p, None, *ends64)
    value = rough.minimise(coef).value.double()
    for n in range(3):
        start = float(coef[n].double() @ centre[n].double())
        gain = start - truth(fine, n, coef[n].double().numpy())
        rounding = 1e-6 * float(coef[n].abs().sum())
        assert start - float(value[n]) == pytest.approx(gain, rel=1e-3, abs=rounding)
        assert float(value[n]) <= start - gain + rounding


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_a_cap_that_all_but_fills_the_ball_loses_nothing(p: float) -> None:
    """radius^p - cap^p cancels in float32; the value must stay on the safe side."""
    gap = torch.logspace(-8, -3, 60).float()
    radius = torch.full((60,), 0.7)
    centre = torch.zeros(60, 3)
    upper = torch.stack([radius * (1 - gap), torch.ones(60), torch.ones(60)], 1)
    ball = Region(centre, radius, p, None, -torch.ones(60, 3), upper)
    coef = -torch.tensor([[1.0, 0.9, 0.5]]).expand(60, 3)
    found = ball.minimise(coef).value.double()
    for n in range(60):
        cap, r = upper[n].double().numpy(), float(radius[n])
        one = Region(
            centre[n : n + 1].double(),
            radius[n : n + 1].double(),
            p,
            None,
            -torch.ones(1, 3).double(),
            torch.from_numpy(cap)[None],
        )
        expected = truth(one, 0, coef[n].double().numpy())
        assert float(found[n]) <= expected + 4e-7 * r, (float(gap[n]), float(found[n]) - expected)


@pytest.mark.parametrize("p", [20.0, 100.0])
def test_distances_and_limits_for_large_p(p: float) -> None:
    centre = torch.zeros(1, 4)
    ball = Region(centre, torch.ones(1), p, None, centre - 0.1, centre + 0.1)
    assert float(ball.limit()) == pytest.approx(0.1 * 4 ** (1 / p), rel=1e-5)
    assert float(ball.distance(centre + 0.05)) == pytest.approx(0.05 * 4 ** (1 / p), rel=1e-5)


@every_norm
def test_an_open_range_is_no_range(p: float) -> None:
    ball, coef = draw(1, p, False, False)
    open_ends = torch.full((1, 5), inf, dtype=torch.float64)
    cut = Region(ball.centre, ball.radius, p, None, -open_ends, open_ends)
    assert torch.allclose(cut.minimise(coef).value, ball.minimise(coef).value)
    half = Region(ball.centre, ball.radius, p, None, -open_ends, ball.centre.amax(0, keepdim=True))
    assert torch.isfinite(half.minimise(coef).value).all()
    assert (half.minimise(coef).value >= ball.minimise(coef).value - 1e-9).all()


@every_norm
@every_shape
def test_a_ball_of_radius_0_is_its_centre(p: float, clipped: bool) -> None:
    ball, coef = draw(2, p, clipped, False)
    found = ball.with_radius(torch.zeros(3, dtype=torch.float64)).minimise(coef)
    assert torch.allclose(found.value, (coef * ball.centre).sum(1))
    assert torch.allclose(found.point, ball.centre)


@every_norm
@every_shape
@every_scale
@given(seed=seeds)
def test_projection_lands_inside_and_keeps_what_is_inside(
    seed: int, p: float, clipped: bool, scaled: bool
) -> None:
    ball, _ = draw(seed, p, clipped, scaled)
    far = ball.centre + torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 5)) * 5)
    landed = ball.project(far)
    inside(ball, landed)
    assert torch.allclose(ball.project(landed), landed, atol=1e-9)


@every_shape
@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@given(seed=seeds)
def test_projection_on_the_ball_is_the_nearest_point(seed: int, p: float, clipped: bool) -> None:
    """<x - P x, y - P x> <= 0 for every y of the ball."""
    ball, _ = draw(seed, p, False, False)
    rng = np.random.default_rng(seed)
    far = ball.centre + torch.from_numpy(rng.normal(size=(3, 5)) * 3)
    landed = ball.project(far)
    for _ in range(20):
        y = ball.project(ball.centre + torch.from_numpy(rng.normal(size=(3, 5)) * 3))
        assert (((far - landed) * (y - landed)).sum(1) <= 1e-9).all()


@every_norm
@every_shape
@given(seed=seeds)
def test_extremes_box_and_limit(seed: int, p: float, clipped: bool) -> None:
    ball, coef = draw(seed, p, clipped, True)
    found = ball.extremes(coef)
    for n in range(3):
        for k in range(3):
            low = truth(ball, n, coef[k].numpy())
            high = -truth(ball, n, -coef[k].numpy())
            size = 1 + abs(low) + abs(high)
            assert float(found.lower[n, k]) == pytest.approx(low, abs=1e-9 * size)
            assert float(found.upper[n, k]) == pytest.approx(high, abs=1e-9 * size)
        eye = np.eye(5)
        box = ball.box()
        for i in range(5):
            assert float(box.lower[n, i]) == pytest.approx(truth(ball, n, eye[i]), abs=1e-9)
            assert float(box.upper[n, i]) == pytest.approx(-truth(ball, n, -eye[i]), abs=1e-9)
    if clipped:
        whole, more = (ball.with_radius(ball.limit() * f).minimise(coef).value for f in (1, 2))
        assert torch.allclose(whole, more, atol=1e-9)
    else:
        assert torch.isinf(ball.limit()).all()


def test_distance_counts_scale_and_forbids_fixed_features() -> None:
    scale = torch.tensor([[0.0, 2.0, 1.0]])
    ball = Region(torch.zeros(2, 3), torch.ones(2), 2.0, scale)
    x = torch.tensor([[0.0, 2.0, 1.0], [0.1, 0.0, 0.0]])
    assert ball.distance(x).tolist() == [pytest.approx(2**0.5), inf]


def inside(ball: Region, x: Tensor) -> None:
    assert (ball.distance(x) <= ball.radius * (1 + 1e-9)).all()
    if ball.lower is not None and ball.upper is not None:
        assert (x >= ball.lower - 1e-12).all()
        assert (x <= ball.upper + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p", [1.001, 1.01, 1.1, 1.5, 2.0, 3.0, 8.0, 40.0])
def test_a_cut_ball_hides_no_point(p: float, dtype: torch.dtype) -> None:
    """No point of the region is below the minimum, however caps and budget meet.

    Pixels of sixteenths and round radii make the caps use up the budget exactly, gains of
    very different size make powers underflow.
    """
    generator = torch.Generator().manual_seed(int(1000 * p))
    rows, features = 400, 6
    centre = torch.randint(0, 17, (rows, features), generator=generator).to(dtype) / 16
    size = 10.0 ** torch.randint(-8, 2, (rows, features), generator=generator).to(dtype)
    coef = torch.randn(rows, features, generator=generator, dtype=dtype) * size
    radius = torch.randint(1, 9, (rows,), generator=generator).to(dtype) / 8
    zero, one = torch.zeros(1, features, dtype=dtype), torch.ones(1, features, dtype=dtype)
    region = Region(centre, radius, p, None, zero, one)
    value = region.minimise(coef).value.double()
    c, x0, r = coef.double(), centre.double(), radius.double()[:, None]
    # Candidates: corners of the cut box pulled into the ball, and single features moved.
    step = torch.where(c > 0, -x0, 1 - x0)
    for part in (1.0, 0.5, 0.1):
        for kept in range(features):
            order = (c * step).argsort(1)  # steepest gain first
            mask = torch.zeros_like(step).scatter(1, order[:, : kept + 1], 1.0)
            move = step * mask * part
            norm = torch.linalg.vector_norm(move, ord=p, dim=1, keepdim=True)
            move = move * (r / norm.clamp(min=1e-300)).clamp(max=1)
            reached = (c * (x0 + move)).sum(1)
            allowed = 1e-6 * (c.abs().sum(1)) if dtype == torch.float32 else 1e-12 * c.abs().sum(1)
            assert (value <= reached + allowed).all()
