"""Balls contain the exact results, in rational arithmetic, for hostile numbers."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from frown_check.balls import (
    Array,
    Ball,
    above,
    add,
    between,
    down,
    matmul,
    multiply,
    require_ieee,
    total,
)
from frown_check.errors import Refused
from frown_check.graph import Edge, Linear, Scale

SCALES = (1.0, 1e-3, 1e20, 1e-20, 1e-150, 1e150, 1e-308, 5e-324, 0.0)


def hostile(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers of every size, some that cancel."""
    values = rng.normal(size=shape) * rng.choice(SCALES, shape)
    flat = values.reshape(-1)
    if flat.size > 3:
        flat[1] = -flat[0]
        flat[2] = flat[0] * (1 + 2**-52)
    return values


def ball(rng: np.random.Generator, *shape: int) -> Ball:
    mid = hostile(rng, *shape)
    kind = rng.integers(3)
    if kind == 0:
        return Ball(mid)
    return Ball(mid, np.abs(hostile(rng, *shape)) * (1e-9 if kind == 1 else 1.0))


def ends(x: Ball, rng: np.random.Generator) -> list[Fraction]:
    """Exact numbers, each at an end of its ball."""
    signs = rng.choice([-1, 0, 1], x.mid.shape).ravel()
    mids, rads = x.mid.ravel().tolist(), x.radius.ravel().tolist()
    return [Fraction(m) + int(s) * Fraction(r) for m, r, s in zip(mids, rads, signs)]


def assert_inside(found: Ball, exact: list[Fraction]) -> None:
    for m, r, x in zip(found.mid.ravel().tolist(), found.radius.ravel().tolist(), exact):
        if np.isfinite(m) and np.isfinite(r):
            assert abs(Fraction(m) - x) <= Fraction(r)


seeds = st.integers(0, 2**32 - 1)


@given(seeds)
@examples(80)
def test_sums_and_products_contain_the_exact_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        x, y = ball(rng, 6), ball(rng, 6)
        a, b = ends(x, rng), ends(y, rng)
        assert_inside(add(x, y), [p + q for p, q in zip(a, b)])
        assert_inside(multiply(x, y), [p * q for p, q in zip(a, b)])
        rows = x.map(lambda v: v.reshape(2, 3))
        assert_inside(total(rows, 3), [sum(a[:3], Fraction()), sum(a[3:], Fraction())])


@given(seeds)
@examples(60)
def test_matrix_products_contain_the_exact_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k, m = rng.integers(1, 9, 3)
    with np.errstate(all="ignore"):
        x, w = ball(rng, n, k), ball(rng, k, m)
        a, b = np.array(ends(x, rng)).reshape(n, k), np.array(ends(w, rng)).reshape(k, m)
        assert_inside(matmul(x, w), list((a @ b).ravel()))


@given(seeds)
@examples(40)
def test_intervals_lie_in_their_balls_and_balls_in_their_intervals(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = np.sort(hostile(rng, 2, 5), 0)
    found = between(low, high)
    assert_inside(found, [Fraction(v) for v in low.tolist()])
    assert_inside(found, [Fraction(v) for v in high.tolist()])
    outer = found.ends()
    for exact, low, high in zip(ends(found, rng), *(e.tolist() for e in outer)):
        assert Fraction(low) <= exact <= Fraction(high)


@given(seeds)
@examples(60)
def test_a_form_pulled_back_is_the_same_form(seed: int) -> None:
    """c . (J x + b) = (J^T c) . x + c . b, exactly, for exact points of the balls."""
    rng = np.random.default_rng(seed)
    groups, places, inner, outer = (int(n) for n in rng.integers(1, 4, 4))
    weight = Ball(hostile(rng, groups, inner, outer))
    bias = hostile(rng, groups, outer)
    op = Linear(weight, Ball(bias), places)
    size = groups * places * outer
    coef = Ball(hostile(rng, 1, size))
    with np.errstate(all="ignore"):
        (back,), constant = op.backward(coef)
    c = np.array([Fraction(v) for v in coef.mid.ravel()]).reshape(groups, places, outer)
    w = np.array([Fraction(v) for v in weight.mid.ravel()]).reshape(weight.mid.shape)
    exact = [
        sum(c[g, p] * w[g, i]) for g in range(groups) for p in range(places) for i in range(inner)
    ]
    assert_inside(back, exact)
    assert constant is not None
    b = np.array([Fraction(v) for v in bias.ravel()]).reshape(groups, outer)
    assert_inside(constant, [sum((c * b[:, None]).ravel())])
    scale = Scale(Ball(hostile(rng, size)), Ball(hostile(rng, size)))
    with np.errstate(all="ignore"):
        (back,), _ = scale.backward(coef)
    factors = scale.factor.mid.tolist()
    assert_inside(back, [f * Fraction(a) for f, a in zip(c.ravel(), factors)])


@given(seeds)
@examples(60)
def test_reading_entries_and_sending_coefficients_back_are_adjoint(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width, count = (int(n) for n in rng.integers(1, 9, 2))
    edge = Edge(0, rng.integers(-1, width, count), width)
    coef = ball(rng, 2, count)
    c = np.array(ends(coef, rng)).reshape(2, count)
    exact = np.full((2, width), Fraction())
    for j, place in enumerate(edge.index):
        if place >= 0:
            exact[:, place] += c[:, j]
    with np.errstate(all="ignore"):
        assert_inside(edge.send_back(coef), list(exact.ravel()))
    x = hostile(rng, 1, width)
    wanted = [0.0 if place < 0 else x[0, place] for place in edge.index]
    assert edge.read(x)[0].tolist() == wanted
    assert prod(edge.read(x).shape) == count


def test_a_process_that_flushes_subnormal_numbers_is_refused() -> None:
    require_ieee()
    import torch

    if not torch.set_flush_denormal(True):  # nor can anything else on this processor
        require_ieee()
        return
    try:
        with pytest.raises(Refused, match="IEEE"):
            require_ieee()
    finally:
        torch.set_flush_denormal(False)


def test_infinite_results_have_no_finite_ends() -> None:
    inf = np.array([np.inf])
    assert np.isnan(down(inf)).all() and np.isnan(above(-inf)).all()
    assert (down(-inf) == -inf).all() and (above(inf) == inf).all()
    one = np.array([1.0])
    assert (down(one) < one).all() and (above(one) > one).all()
