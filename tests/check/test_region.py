"""The least value of a form over a region is bounded below, and closely."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from frown.problem.region import Region as Engine
from frown_check.region import Region

P = [np.inf, 1.0, 2.0, 1.5, 3.0, 10.0, 400.0]


def region(rng: np.random.Generator, p: float, clipped: bool, balls: int = 1) -> Region:
    n = int(rng.integers(1, 9))
    centre = rng.uniform(0, 1, n)
    scale = rng.choice([0.0, 0.5, 1.0, 3.0], n)
    ball = rng.integers(-1 if balls > 1 else 0, balls, n)
    return Region(
        p,
        float(rng.choice([0.0, 1e-3, 0.3, 2.0])),
        centre,
        np.where(ball < 0, 0.0, scale),
        ball,
        np.zeros(n) if clipped else None,
        np.ones(n) if clipped else None,
    )


def points(rng: np.random.Generator, r: Region, count: int) -> list[list[Fraction]]:
    """Exact points of the region: rational directions of rational length in every norm."""
    radius = Fraction(r.radius)
    found = []
    for _ in range(count):
        x = [Fraction(c) for c in r.centre.tolist()]
        for ball in r.balls:
            if r.p == np.inf:
                steps = {i: Fraction(int(rng.integers(-4, 5)), 4) for i in ball}
            elif r.p == 2 and len(ball) > 1:
                i, j = rng.choice(ball, 2, replace=False)
                steps = {i: Fraction(3, 5), j: Fraction(-4, 5)}
            else:  # a vertex lies in every ball
                steps = {rng.choice(ball): Fraction(int(rng.choice([-1, 1])))}
            for i, d in steps.items():
                x[i] += d * radius * Fraction(float(r.scale[i]))
        if r.lower is not None:
            x = [min(max(v, Fraction(0)), Fraction(1)) for v in x]  # towards the centre
        found.append(x)
    return found


@pytest.mark.parametrize("balls", [1, 3])
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("p", P)
@given(seed=st.integers(0, 2**32 - 1))
@examples(6)
def test_no_point_of_the_region_lies_below(p: float, clipped: bool, balls: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    r = region(rng, p, clipped, balls)
    w = rng.normal(size=(3, len(r.centre))) * rng.choice([0.0, 1e-8, 1.0, 1e8], (3, len(r.centre)))
    bound = r.minimum(w)
    low, high = r.box
    for x in points(rng, r, 20):
        assert all(
            Fraction(a) <= v <= Fraction(b) for a, v, b in zip(low.tolist(), x, high.tolist())
        )
        for row, mid, rad in zip(w.tolist(), bound.mid.tolist(), bound.radius.tolist()):
            value = sum(Fraction(c) * v for c, v in zip(row, x))
            assert Fraction(mid) - Fraction(rad) <= value


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("p", P)
def test_little_is_lost(p: float, clipped: bool) -> None:
    """Beside frown's own minimum, which is exact up to rounding."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        r = region(rng, p, clipped)
        w = rng.normal(size=(5, len(r.centre)))

        def many(x: np.ndarray) -> torch.Tensor:
            return torch.tensor(x)[None].expand(5, -1)

        engine = Engine(
            many(r.centre),
            torch.full((5,), r.radius, dtype=torch.float64),
            p,
            many(r.scale),
            None if r.lower is None else many(r.lower),
            None if r.upper is None else many(r.upper),
        )
        best = engine.minimise(torch.tensor(w)).value.numpy()
        found = r.minimum(w)
        size = np.abs(w).sum(1) * (1 + r.radius)
        assert (found.mid - found.radius >= best - 1e-7 * size).all()
        assert (found.mid - found.radius <= best + 1e-12 * size).all()


def test_a_ball_per_frame_is_a_product_of_balls() -> None:
    """Two features in balls of their own move further together than in one."""
    one = Region(2.0, 1.0, np.zeros(2), np.ones(2), np.zeros(2, np.int64), None, None)
    two = Region(2.0, 1.0, np.zeros(2), np.ones(2), np.arange(2), None, None)
    w = np.array([[3.0, 4.0]])
    assert one.minimum(w).ends()[0][0] == pytest.approx(-5.0)
    assert two.minimum(w).ends()[0][0] == pytest.approx(-7.0)
