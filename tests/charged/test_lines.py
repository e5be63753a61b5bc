"""Proven intercepts and images enclose their functions, judged by Arb; and so do the facts about
bends that they rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, isfinite
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, arb_series, ctx, fmpq
from torch import Tensor

from charged.exact import exact, function
from frown.graph.intervals import Intervals
from frown.relax import Elu, Erf, HardSwish, Log, Max, Power, Product
from frown.relax.elementwise import Elementwise
from frown.relax.hump import GeluTanh
from frown.relax.piecewise import PiecewiseLinear, PRelu
from frown.relax.proven import curves
from frown.relax.proven.curves import Curve, curve_of
from frown.relax.proven.lines import prove
from frown.relax.relaxation import Relaxation
from frown.relax.steps import Steps
from frown.relax.wave import Wave
from functions import ELEMENTWISE

FILE = GeluTanh(float(np.float32(0.7978845608)), float(np.float32(0.7978845608 * 0.044715)))
ELSEWHERE = (Erf, HardSwish, Log, Power, Wave)  # test_curves_more judges them
FUNCTIONS: dict[str, Elementwise] = {
    name: op for name, op in ELEMENTWISE.items() if not isinstance(op, ELSEWHERE)
}
FUNCTIONS |= {"gelu_tanh_of_a_file": FILE, "elu_downwards": Elu(-0.7), "elu_small": Elu(0.3, 1e-30)}
FUNCTIONS["prelu"] = PRelu(torch.tensor(0.25, dtype=torch.float64))
SMOOTH = {name: op for name, op in FUNCTIONS.items() if not isinstance(op, PiecewiseLinear | Steps)}
COUNT = 160
NUMBERS = (0.0, -0.0, 1.0, -1.0, 6.0, 3.0, 5e-324, -5e-324, 2.0**-1030, 1e-300, 1e-20, -1e-20)
NUMBERS += (2.0**-1022, 1e300, -1e300, 1e15, -1e15, 745.0, -745.0, 720.0, 39.99999, -40.0, 40.0)
NUMBERS += (40.03125, -40.03125, 640.0, 641.0, 2.3993572805, -2.3993572805, 1.41421356237)
NUMBERS += (1.4185040087, -1.4142135623, 0.03125, 0.031250000000000007, -0.03125, 1.7e308)


@pytest.fixture(autouse=True)
def _precise() -> Iterator[None]:
    before, ctx.prec = ctx.prec, 2400  # room for 1e300 beside 1e-300
    yield
    ctx.prec = before


def hostile(rng: np.random.Generator, shape: tuple[int, ...]) -> Intervals:
    """Points, one ulp, narrow, across 0, denormal, huge, saturated."""
    ordinary = rng.uniform(-8, 8, shape)
    a = np.where(rng.random(shape) < 0.5, ordinary, rng.choice(NUMBERS, shape))
    other = np.where(
        rng.random(shape) < 0.5, rng.uniform(-50, 50, shape), rng.choice(NUMBERS, shape)
    )
    kinds = [a, np.nextafter(a, inf), a + np.abs(a) * 1e-9, a + rng.uniform(0, 2, shape), other, -a]
    b = np.choose(rng.integers(len(kinds), size=shape), kinds)
    return Intervals(torch.from_numpy(np.minimum(a, b)), torch.from_numpy(np.maximum(a, b)))


def any_slopes(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    kinds = [
        rng.uniform(-1.5, 1.5, shape),
        rng.uniform(0, 1, shape),
        rng.choice([0.0, 1.0, 0.25, 0.5, -0.1, 1e-20, 1 - 2.0**-53, 1e-310, 1.1, -2.0], shape),
        rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-300, 300, shape),
    ]
    return torch.from_numpy(np.choose(rng.integers(4, size=shape), kinds))


def between(low: float, high: float, extra: list[float]) -> list[float]:
    """Numbers of a box: its ends and their neighbours, a grid, and what is extra."""
    mixed = [low + (high - low) * t for t in np.linspace(0, 1, 9)[1:-1]]
    near = [np.nextafter(low, inf), np.nextafter(high, -inf), 0.0, -1.2784645, -0.7517915, 1e-8]
    chosen = [low, high, *mixed, *near, *extra]
    return [float(min(max(z, low), high)) for z in chosen if z == z]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_proven_line_encloses_its_function(name: str) -> None:
    op, rng = FUNCTIONS[name], np.random.default_rng(list(name.encode()))
    box, slope = hostile(rng, (COUNT,)), any_slopes(rng, (COUNT,))
    proven = prove(op, box)
    assert proven is not None
    image, said = proven.image(), 0
    for below in (True, False):
        mask = torch.full((COUNT,), below)
        found = proven.intercept(slope, mask).tolist()
        flat = (image.lower if below else image.upper).tolist()
        guesses = [g.tolist() for g in op.critical(slope, mask, box)]
        for k, (low, high) in enumerate(zip(box.lower.tolist(), box.upper.tolist(), strict=True)):
            for z in between(low, high, [g[k] for g in guesses]):
                y = value_at(op, z)
                for s, t in ((slope[k].item(), found[k]), (0.0, flat[k])):
                    said += isfinite(t)
                    gap = y - number(s) * number(z) - number(t) if isfinite(t) else arb(0)
                    wrong = gap < 0 if below else gap > 0
                    assert not wrong, f"{name} on [{low!r}, {high!r}], slope {s!r} at {z!r}: {gap}"
    assert said > 0.7 * 2 * COUNT * 2 * len(between(0.0, 1.0, [0.0] * len(guesses)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_proven_lines_touch_their_function(name: str) -> None:
    """On ordinary boxes what is given away is rounding, and at inflection points a gap's width."""
    op, rng = FUNCTIONS[name], np.random.default_rng(7)
    ends = np.sort(rng.uniform(-6, 6, (2, COUNT)), 0)
    box = Intervals(*(torch.from_numpy(e) for e in ends))
    slope = torch.from_numpy(rng.uniform(-1.5, 1.5, COUNT))
    proven = prove(op, box)
    assert proven is not None
    for below in (True, False):
        mask = torch.full((COUNT,), below)
        mine = op.line(slope, mask, op.anchors(box)).intercept
        assert (proven.intercept(slope, mask) - mine).abs().max() < 1e-8


def number(x: float) -> arb:
    return arb(fmpq(*float(x).as_integer_ratio()))


def value_at(op: Elementwise, z: float) -> arb:
    """To 90 digits."""
    if isinstance(op, PRelu):
        return number(z) if z > 0 else number(z) / 4
    precision = ctx.prec
    try:
        ctx.prec = 300
        return function(op, number(z))
    finally:
        ctx.prec = precision


@pytest.mark.parametrize("op", [Max(), Product()], ids=["max", "product"])
def test_every_proven_plane_encloses_its_function(op: Relaxation) -> None:
    rng = np.random.default_rng(3)
    shape = (COUNT, 2 if isinstance(op, Product) else 4)
    box, slope = hostile(rng, shape), any_slopes(rng, shape)
    proven = prove(op, box)
    assert proven is not None
    image = proven.image()
    share = rng.choice([0.0, 1.0, 0.5], (24, *shape))
    low, high = box.lower.numpy(), box.upper.numpy()
    for below in (True, False):
        found = proven.intercept(slope, torch.full((COUNT,), below)).tolist()
        flat = (image.lower if below else image.upper).tolist()
        for k in range(COUNT):
            s = exact(slope[k])
            for part in share[:, k]:
                inner = low[k] / 2 + high[k] / 2  # the sum may overflow
                z = exact(np.where(part == 0, low[k], np.where(part == 1, high[k], inner)))
                z = np.minimum(np.maximum(z, exact(low[k])), exact(high[k]))
                y = z[0] * z[1] if isinstance(op, Product) else max(z)
                for plane, t in ((y - sum(s * z), found[k]), (y, flat[k])):
                    if isfinite(t):
                        gap = plane - fmpq(*t.as_integer_ratio())
                        assert gap >= 0 if below else gap <= 0, (low[k], high[k], s, z, float(t))


# -- the curves -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_slopes_are_enclosed(name: str) -> None:
    op, rng = SMOOTH[name], np.random.default_rng(11)
    curve = curve_of(op)
    assert curve is not None
    cells = (np.arange(-645, 645) + 0.5) / 16  # where one polynomial takes over from another
    z = np.concatenate([cells, np.nextafter(cells, -inf), rng.uniform(-45, 45, 300), NUMBERS])
    value, slope = (f(torch.from_numpy(z)) for f in (curve.value, curve.slope))
    ctx.prec = 300
    for k, x in enumerate(z.tolist()):
        wide = x == 0 or abs(x) > 1e6
        y = value_at(op, x)
        assert not y < number_or(value.lower[k]) and not y > number_or(value.upper[k]), x
        if wide or (isinstance(op, Elu) and x == 0):
            continue
        rate = derivatives(op, x, 2)[1]
        assert not rate < number_or(slope.lower[k]) and not rate > number_or(slope.upper[k]), x
    near = torch.from_numpy(z).abs() < 6
    assert (value.upper - value.lower)[near].max() < 1e-10
    assert (slope.upper - slope.lower)[near].max() < 1e-9


def number_or(t: Tensor) -> arb:
    return number(t.item()) if isfinite(t.item()) else arb(t.item())


def series_of(op: Elementwise) -> Callable[[arb_series], arb_series]:
    name = type(op).__name__.lower()
    if isinstance(op, GeluTanh):
        if op.standard:
            return curves._SERIES["gelu_tanh"]
        return lambda s: curves._gated(s, number(op.linear), number(op.cubic))
    if isinstance(op, Elu):
        k = number(op.scale) * number(op.alpha)
        return lambda s: k * (s.exp() - 1) if s[0] < 0 else number(op.scale) * s
    assert name in curves._SERIES, f"{name} has no series here: add one"
    return curves._SERIES[name]


def derivatives(op: Elementwise, x: float | arb, count: int) -> list[arb]:
    s = series_of(op)(arb_series([x if isinstance(x, arb) else number(x), 1], count + 1))
    return [s[i] for i in range(count + 1)]


# f'' is a positive factor times one of these, whose signs are plain or follow from one bracket.
# They take balls and power series alike.


def tanh(z: Any) -> Any:
    return 1 - 2 / ((2 * z).exp() + 1)


def silu_bend(z: Any) -> Any:
    """2 - z tanh(z / 2), even and falling on z > 0."""
    return 2 - z * tanh(z / 2)


def gelu_bend(z: Any) -> Any:
    return 2 - z * z


def tanh_form(linear: arb, cubic: arb) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """With u = 2 (a z + b z^3): 2 u' + z u'' - z u'^2 tanh(u / 2); and z u' tanh(u / 2)."""

    def parts(z: Any) -> tuple[Any, Any, Any]:
        inner = linear * z + cubic * z * z * z
        return 2 * linear + 6 * cubic * z * z, 12 * cubic * z, tanh(inner)

    def bend(z: Any) -> Any:
        rate, curve, gate = parts(z)
        return 2 * rate + z * curve - z * rate * rate * gate

    def growing(z: Any) -> Any:
        rate, _, gate = parts(z)
        return z * rate * gate

    return bend, growing


def signed(f: Callable[[arb], arb], low: float, high: float, sign: int, depth: int = 18) -> bool:
    """Whether f has this sign on all of [low, high], by halving."""
    middle = arb((low + high) / 2, (high - low) / 2 * (1 + 1e-12))
    y = f(middle)
    if (y > 0 and sign > 0) or (y < 0 and sign < 0):
        return True
    if depth == 0:
        return False
    half = (low + high) / 2
    return signed(f, low, half, sign, depth - 1) and signed(f, half, high, sign, depth - 1)


def sigmoid(z: arb) -> arb:
    return 1 / (1 + (-z).exp())


def test_the_formulas_for_bends_are_the_second_derivatives() -> None:
    """Each with its positive factor."""
    ctx.prec = 300
    root = (arb(2) / arb.pi()).sqrt()
    small = root * arb("0.044715")
    hill = lambda z: sigmoid(z) * sigmoid(-z)  # noqa: E731
    bends: dict[str, tuple[Callable[[arb], arb], Callable[[arb], arb]]] = {
        "sigmoid": (lambda z: -tanh(z / 2), hill),
        "tanh": (lambda z: -tanh(z), lambda z: 2 / z.cosh() ** 2),
        "arctan": (lambda z: -z, lambda z: 2 / (1 + z * z) ** 2),
        "softplus": (lambda z: arb(1), hill),
        "exp": (lambda z: arb(1), lambda z: z.exp()),
        "silu": (silu_bend, hill),
        "gelu": (gelu_bend, lambda z: (-z * z / 2).exp() / (2 * arb.pi()).sqrt()),
        "gelu_tanh": (
            tanh_form(root, small)[0],
            lambda z: hill(2 * (root * z + small * z**3)),
        ),
    }
    for name, (bend, factor) in bends.items():
        for x in (-3.0, -1.4, -0.1, 0.0, 0.7, 1.5, 2.5, 9.0):
            z = number(x)
            truth = 2 * derivatives(ELEMENTWISE[name], x, 2)[2]
            assert factor(z) > 0
            assert abs(bend(z) * factor(z) - truth) < arb(1e-12), (name, x)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "arctan", "softplus", "exp"])
def test_curves_with_plain_signs_have_the_pieces_these_say(name: str) -> None:
    curve = curve_of(ELEMENTWISE[name])
    assert curve is not None
    plain = [(p.start, p.end, p.bend) for p in curve.pieces]
    if name in ("softplus", "exp"):
        assert plain == [(-inf, inf, "up")]
    else:
        assert plain == [(-inf, 0.0, "up"), (0.0, inf, "down")]


@pytest.mark.parametrize(("alpha", "way"), [(0.3, "up"), (2.5, "up"), (-0.7, "down")])
def test_exponential_units_bend_as_their_factor_says(alpha: float, way: str) -> None:
    curve = curve_of(Elu(alpha))
    assert curve is not None
    plain = [(p.start, p.end, p.bend) for p in curve.pieces]
    assert plain == [(-inf, 0.0, way), (0.0, inf, "straight")]


def pieces_of(curve: Curve | None) -> tuple[float, float]:
    """The inflection point's bracket, of pieces that are symmetric and in the right order."""
    assert curve is not None
    *_, up, gap, down = curve.pieces
    assert [p.bend for p in curve.pieces] == ["down", "gap", "up", "gap", "down"]
    ends = [(-inf, -gap.end), (-gap.end, -gap.start), (-gap.start, gap.start)]
    assert [(p.start, p.end) for p in curve.pieces[:3]] == ends
    assert (up.end, down.start, down.end) == (gap.start, gap.end, inf)
    assert 0 < gap.end - gap.start < 2e-10
    return gap.start, gap.end


def test_silu_and_gelu_bend_where_they_are_said_to() -> None:
    """Both formulas fall on z > 0: one change of sign, inside the gap."""
    for name, bend in (("silu", silu_bend), ("gelu", gelu_bend)):
        low, high = pieces_of(curve_of(ELEMENTWISE[name]))
        assert bend(number(low)) > 0 and bend(number(high)) < 0


@pytest.mark.parametrize("op", [GeluTanh(), FILE], ids=["standard", "of a file"])
def test_the_tanh_form_bends_where_it_is_said_to(op: GeluTanh) -> None:
    """For all constants near the usual ones: up before SIGN_CHANGE, down after it, falling on it.

    Beyond 2, 2 u' + z u'' <= 4 u', so the bend's sign is that of at most 4 - z u' tanh(u / 2),
    which falls.
    """
    ctx.prec = 128
    root = (arb(2) / arb.pi()).sqrt()
    near = arb(1, curves._NEAR)
    bend, growing = tanh_form(root * near, root * arb("0.044715") * near)
    first, last = curves.SIGN_CHANGE
    assert signed(bend, 0.0, first, 1)
    assert signed(bend, last, 2.0, -1)
    assert growing(number(2.0)) > 4
    assert signed(lambda z: bend(arb_series([z, 1], 2))[1], first, last, -1)
    low, high = pieces_of(curve_of(op))
    linear, cubic = (root, root * arb("0.044715")) if op.standard else (op.linear, op.cubic)
    mine, _ = tanh_form(arb(linear), arb(cubic))
    assert first < low < high < last
    assert mine(number(low)) > 0 and mine(number(high)) < 0


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_second_derivatives_are_below_1_in_gaps(name: str) -> None:
    low, high = pieces_of(curve_of(ELEMENTWISE[name]))
    for sign in (1, -1):
        ball = arb(sign * (low + high) / 2, high - low)
        assert abs(2 * derivatives(ELEMENTWISE[name], ball, 2)[2]) < 1


def test_other_constants_of_the_tanh_form_are_refused() -> None:
    with pytest.raises(curves.NoProof, match=r"0\.8"):
        curve_of(GeluTanh(0.8, 0.0357))
