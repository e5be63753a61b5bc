"""Every line is on its side of its function; pieces bend the way they claim."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from math import inf
from typing import Any

import numpy as np
import pytest
from flint import arb, arb_series, ctx, fmpq
from hypothesis import example, given
from hypothesis import strategies as st

from examples import examples
from frown_check import functions as f
from frown_check.curves import EXPRESSIONS, Tabulated
from frown_check.lines import Elementwise, Maximum, Product


def tanh_form(b: Any, c: Any) -> Callable[[arb], arb]:
    return lambda x: x * (1 + (b * x + c * x**3).tanh()) / 2


def constants() -> tuple[arb, arb]:
    root = (2 / arb.pi()).sqrt()
    return root, root * arb(fmpq(44715, 1000000))


# kind: the checker's function, and the same by another expression where there is one.
FUNCTIONS: dict[str, tuple[Callable[[], f.Function], Callable[[arb], arb]]] = {
    "relu": (lambda: f.leaky("Relu", 0.0), lambda x: x.max(arb(0))),
    "leaky": (lambda: f.leaky("LeakyRelu", 0.1), lambda x: x.max(x * arb(0.1))),
    "falling": (lambda: f.leaky("LeakyRelu", -0.3), lambda x: x.max(x * arb(-0.3))),
    "abs": (lambda: f.leaky("Abs", -1.0), abs),
    "clip": (lambda: f.clip("Clip", -0.5, 2.0), lambda x: x.max(arb(-0.5)).min(arb(2))),
    "floor": (lambda: f.clip("Clip", 0.3, inf), lambda x: x.max(arb(0.3))),
    "sigmoid": (f.SIMPLE["Sigmoid"], lambda x: (1 + (x / 2).tanh()) / 2),
    "tanh": (f.SIMPLE["Tanh"], lambda x: x.tanh()),
    "arctan": (f.SIMPLE["Atan"], lambda x: x.atan()),
    "softplus": (f.SIMPLE["Softplus"], lambda x: x.exp().log1p()),
    "exp": (f.SIMPLE["Exp"], lambda x: x.exp()),
    "log": (f.logarithm, lambda x: x.log()),
    "elu": (lambda: f.elu(1.0, 1.0), lambda x: x if x > 0 else x.expm1()),
    "elu steep": (lambda: f.elu(2.5, 0.5), lambda x: (x if x > 0 else 2.5 * x.expm1()) / 2),
    "elu falling": (lambda: f.elu(-1.5, 1.0), lambda x: x if x > 0 else -1.5 * x.expm1()),
    "hard swish": (f.hard_swish, lambda x: x * (x + 3).max(arb(0)).min(arb(6)) / 6),
    "silu": (f.silu, lambda x: x / (1 + (-x).exp())),
    "gelu": (f.gelu, lambda x: x * (1 + (x / arb(2).sqrt()).erf()) / 2),
    "gelu of a file": (
        lambda: f.gelu(fmpq(707107, 1000000)),
        lambda x: x * (1 + (x * fmpq(707107, 1000000)).erf()) / 2,
    ),
    "gelu tanh": (f.gelu_tanh, lambda x: tanh_form(*constants())(x)),
    "square": (lambda: f.power(2.0), lambda x: x**2),
    "cube": (lambda: f.power(3.0), lambda x: x**3),
    "reciprocal": (lambda: f.power(-1.0), lambda x: 1 / x),
    "inverse square": (lambda: f.power(-2.0), lambda x: 1 / x**2),
    "root": (lambda: f.power(0.5), lambda x: x.sqrt()),
    "three halves": (lambda: f.power(1.5), lambda x: x * x.sqrt()),
    "inverse root": (lambda: f.power(-0.5), lambda x: x.rsqrt()),
    "sin": (f.SIMPLE["Sin"], lambda x: x.sin()),
    "cos": (f.SIMPLE["Cos"], lambda x: x.cos()),
    "whole below": (f.SIMPLE["Floor"], lambda x: x.floor()),
    "whole above": (f.SIMPLE["Ceil"], lambda x: x.ceil()),
    "nearest whole": (f.SIMPLE["Round"], lambda x: arb(round(x.fmpq()))),
    "sign": (f.SIMPLE["Sign"], lambda x: x.sgn()),
}
POSITIVE = {"log", "root", "three halves", "inverse root"}
OFF_ZERO = {"reciprocal", "inverse square"}
JUMPING = {"whole below", "whole above", "nearest whole", "sign"}


def boxes(rng: np.random.Generator, name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Wide, narrow and single points, across kinks and far out."""
    centre = rng.normal(size=count) * rng.choice([0.1, 1.0, 3.0, 20.0], count)
    width = rng.choice([0.0, 1e-15, 1e-6, 0.1, 1.0, 5.0, 40.0], count)
    low, high = centre - width, centre + width
    low, high = np.where(rng.random(count) < 0.1, 0.0, low), np.where(high < low, low, high)
    high = np.maximum(low, high)
    if name in POSITIVE or name in OFF_ZERO:
        low, high = np.abs(low), np.abs(low) + (high - low)
        if name not in ("root", "three halves"):
            low, high = low + 1e-3, high + 1e-3
        if name in OFF_ZERO:
            turn = rng.random(count) < 0.5
            low, high = np.where(turn, -high, low), np.where(turn, -low, high)
    return low, high


@pytest.mark.parametrize("name", FUNCTIONS)
@given(seed=st.integers(0, 2**32 - 1))
@examples(6)
@example(seed=134638984)  # a trough of the sine beyond the table
@example(seed=827)  # a narrow box around a jump
def test_lines_bound_their_function_and_touch_it(name: str, seed: int) -> None:
    make, exact = FUNCTIONS[name]
    rng = np.random.default_rng(seed)
    low, high = boxes(rng, name, 8)
    slope = rng.normal(size=(2, 8)) * rng.choice([0.0, 0.2, 1.0, 10.0], (2, 8))
    below = np.array([[True] * 8, [False] * 8])
    with np.errstate(all="ignore"):
        frame = Elementwise(make(), low[:, None], high[:, None])
        found = frame.intercepts(slope[..., None], below)
        image = frame.image()
    assert np.isfinite(found).all()
    ctx.prec = 300
    for j in range(8):
        grid = np.concatenate(
            [np.linspace(low[j], high[j], 41), [low[j], high[j]], rng.uniform(low[j], high[j], 20)]
        )
        corners = [0.0, 3.0, -3.0]
        if name in JUMPING:  # lines touch these in the limit: next to a jump
            halves = np.arange(np.ceil(2 * low[j]), np.floor(2 * high[j]) + 1) / 2
            corners = [*np.nextafter(halves, np.inf), *np.nextafter(halves, -np.inf), *halves]
        inside = [z for z in corners if low[j] < z < high[j]]
        grid = np.clip(np.append(grid, inside), low[j], high[j])
        values = [exact(arb(z)) for z in grid.tolist()]
        size = 1 + max(abs(float(v)) for v in values) + abs(slope[:, j]).max() * abs(grid).max()
        for row, side in enumerate((1, -1)):
            gaps = [
                side * (v - arb(slope[row, j]) * arb(z) - arb(found[row, j]))
                for v, z in zip(values, grid.tolist())
            ]
            assert not any(gap < 0 for gap in gaps)
            # Touching, up to what a grid of 41 points can miss of a curve.
            curve = (high[j] - low[j]) ** 2 / 40
            assert float(min(float(g) for g in gaps)) <= 1e-11 * size + curve * 2 * size
        assert not any(v < arb(image[0][j]) or v > arb(image[1][j]) for v in values)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "arctan", "softplus", "silu", "gelu"])
def test_lines_lose_next_to_nothing(name: str) -> None:
    """The tangent at the float nearest to the touching point is almost the best there is."""
    make, exact = FUNCTIONS[name]
    rng = np.random.default_rng(1)
    touch = rng.uniform(-6, 6, 200)
    frame = Elementwise(make(), touch[:, None] - 2, touch[:, None] + 2)
    ctx.prec = 200
    slopes, values = [], []
    for z in touch.tolist():
        series = EXPRESSION[name](arb_series([arb(z), 1], 2))
        slopes.append(float(series[1]))
        values.append(float(exact(arb(z)) - arb(slopes[-1]) * arb(z)))
    slope = np.array(slopes)[:, None]
    under = frame.intercepts(slope, np.ones(200, bool))
    over = frame.intercepts(slope, np.zeros(200, bool))
    # f is convex or concave around most of these places: one of the two lines touches there.
    loss = np.minimum(np.array(values) - under, over - np.array(values))
    assert np.quantile(loss, 0.5) < 1e-13


EXPRESSION: dict[str, Callable[[Any], Any]] = {
    "sigmoid": EXPRESSIONS["sigmoid"](),
    "tanh": EXPRESSIONS["tanh"](),
    "arctan": EXPRESSIONS["atan"](),
    "softplus": EXPRESSIONS["softplus"](),
    "silu": EXPRESSIONS["gated"](arb(1) / 2, arb(0)),
    "gelu": EXPRESSIONS["gelu"](1 / arb(2).sqrt()),
}


@pytest.mark.parametrize(
    "name", sorted(set(FUNCTIONS) - {"log", "root", "three halves", "inverse root", "softplus"})
)
def test_pieces_bend_as_they_say(name: str) -> None:
    """The sign of f'' on every piece between -12 and 12, by Arb on small intervals."""
    ctx.prec = 100
    for piece in FUNCTIONS[name][0]().pieces:
        if not piece.bend or not isinstance(piece.curve, Tabulated):
            continue
        expression = piece.curve.beyond.expression
        low, high = max(float(piece.low), -12.0), min(float(piece.high), 12.0)
        cuts = np.linspace(low, high, 65).tolist()
        stack = list(pairwise(cuts)) if low < high else []
        while stack:
            a, b = stack.pop()
            series = expression(arb_series([arb(a).union(arb(b)), 1], 3))
            if series[2] * piece.bend >= 0:
                continue
            near_inflection = (a == low or b == high) and b - a < 1e-7
            if not near_inflection:
                assert b - a > 1e-9, f"f'' changes sign near {a}"
                stack += [(a, (a + b) / 2), ((a + b) / 2, b)]


@pytest.mark.parametrize("name", ["silu", "gelu", "sin", "cos"])
def test_gaps_are_no_steeper_than_they_say(name: str) -> None:
    ctx.prec = 100
    gaps = [piece for piece in FUNCTIONS[name][0]().pieces if piece.bend is None]
    assert gaps
    for piece in gaps:
        assert isinstance(piece.curve, Tabulated)
        whole = arb(piece.low).union(arb(piece.high))
        slope = abs(piece.curve.beyond.expression(arb_series([whole, 1], 2))[1])
        assert slope <= piece.steep or abs(slope - piece.steep) < 1e-14


@given(seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_planes_of_maxima_bound_and_touch_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, count = 4, int(rng.integers(2, 6))
    low = rng.normal(size=(n, count))
    high = low + rng.choice([0.0, 1e-9, 0.5, 3.0], (n, count))
    slope = rng.normal(size=(2, n, count)) * rng.choice([0.3, 1.0, 3.0])
    slope[rng.random(slope.shape) < 0.3] = 0.0
    below = np.array([[True] * n, [False] * n])
    found = Maximum(low, high).intercepts(slope, below)
    # Corners decide above; below also points at which several entries are level.
    for j in range(n):
        corners = np.array(list(product((0, 1), repeat=count)))
        levels = np.maximum(np.append(high[j], low[j].max()), low[j].max())[:, None]
        level = np.where(slope[0, j] > 0, np.minimum(high[j], levels), low[j])
        points = np.concatenate([np.where(corners > 0, high[j], low[j]), level])
        for row, side in ((0, 1), (1, -1)):
            gaps = [
                side
                * (
                    max(map(Fraction, x))
                    - sum(Fraction(s) * Fraction(v) for s, v in zip(slope[row, j].tolist(), x))
                    - Fraction(float(found[row, j]))
                )
                for x in points.tolist()
            ]
            assert min(gaps) >= 0
            assert min(gaps) <= 1e-12


@given(seed=st.integers(0, 2**32 - 1))
@examples(60)
def test_planes_of_products_bound_and_touch_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.normal(size=(5, 2)) * rng.choice([1e-160, 1.0, 1e5], (5, 1))
    high = low + np.abs(rng.normal(size=(5, 2))) * rng.choice([0.0, 1.0], (5, 2))
    slope = rng.normal(size=(2, 5, 2))
    below = np.array([[True] * 5, [False] * 5])
    found = Product(low, high).intercepts(slope, below)
    for j in range(5):
        for row, side in ((0, 1), (1, -1)):
            p, q = (Fraction(s) for s in slope[row, j].tolist())
            corners = [
                (Fraction(x), Fraction(y))
                for x in (float(low[j, 0]), float(high[j, 0]))
                for y in (float(low[j, 1]), float(high[j, 1]))
            ]
            gaps = [
                side * (x * y - p * x - q * y - Fraction(float(found[row, j]))) for x, y in corners
            ]
            size = float(max(abs(x * y) + abs(p * x) + abs(q * y) for x, y in corners))
            assert 0 <= min(gaps) <= 1e-14 * size + 1e-250


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("log", 0.0, 1.0), ("reciprocal", -1.0, 1.0), ("root", -1e-300, 1.0), ("sin", 0.0, 1e9)],
)
def test_beyond_the_domain_nothing_is_defined(name: str, low: float, high: float) -> None:
    function = FUNCTIONS[name][0]()
    assert function.holes(np.array([low]), np.array([high])).all()
    assert not function.holes(np.array([0.5]), np.array([1.0])).any()
