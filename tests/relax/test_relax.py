"""Lines enclose their functions, for every slope, side and hostile box."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import functions
from frown.graph.intervals import Intervals
from frown.relax.elementwise import Elementwise
from frown.relax.hump import Hump
from frown.relax.relaxation import LeastArea, Slopes, relax
from frown.relax.s_shaped import SShaped
from frown.relax.steps import Steps
from functions import ELEMENTWISE

every_function = pytest.mark.parametrize("name", ELEMENTWISE)
# Lines of steps touch them in the limit alone: `test_lines_of_steps_are_the_tightest`.
CONTINUOUS = [name for name, op in ELEMENTWISE.items() if not isinstance(op, Steps)]
every_continuous_function = pytest.mark.parametrize("name", CONTINUOUS)
every_dtype = pytest.mark.parametrize("dtype", functions.DTYPES)


def eps_of(t: Tensor) -> float:
    return torch.finfo(t.dtype).eps


def misplaced(name: str, box: Intervals) -> functions.Array:
    """What places rounded to numbers cost beside the rounding of lines.

    f' z is about 0.1 where SiLU and GELU are tiny: so much of one ulp moves f itself. Sine and
    cosine lose the square of what places are off, however small their own values are.
    """
    eps, reach = eps_of(box.lower), box.lower.abs().maximum(box.upper.abs()).double().numpy()
    if name in ("silu", "gelu", "gelu_tanh"):
        return 0 * reach + 16 * eps
    if name in ("sin", "cos"):
        return np.square(4 * eps * (reach + 7))
    return 0 * reach + 16 * eps * ELEMENTWISE[name].floor(box.lower.dtype)


def column(t: Tensor) -> functions.Array:
    return t.double().numpy()[:, None]


def side_mask(box: Intervals, below: bool) -> Tensor:
    return torch.full(box.lower.shape, below)


def size_of(slope: Tensor, intercept: Tensor, box: Intervals) -> functions.Array:
    """|t| + |s| max|z|: what one rounding error of a line is measured in."""
    reach = box.lower.double().abs().maximum(box.upper.double().abs())
    return (intercept.double().abs() + slope.double().abs() * reach).numpy()


def assert_encloses(
    name: str, slope: Tensor, intercept: Tensor, box: Intervals, below: bool
) -> None:
    """f - line has the right sign everywhere, but for float64's own rounding and underflow."""
    z = functions.grid(box)
    gap = functions.REFERENCE[name](z) - (column(slope) * z + column(intercept))
    gap = gap if below else -gap
    allowed = 4 * np.finfo(np.float64).eps * size_of(slope, intercept, box)
    allowed += 4 * torch.finfo(slope.dtype).tiny
    worst = gap.min(1) + allowed
    k = int(worst.argmin())
    assert worst[k] >= 0, (
        f"{name}: line {float(slope[k])!r} z + {float(intercept[k])!r} crosses f by "
        f"{-gap.min(1)[k]:.3g} at z = {z[k, gap[k].argmin()]!r} "
        f"on [{float(box.lower[k])!r}, {float(box.upper[k])!r}], below={below}"
    )


def assert_none(
    bad: Tensor | functions.Array, name: str, box: Intervals, *shown: Tensor | functions.Array
) -> None:
    """No entry is bad; the message shows the first that is, with its box."""
    where = np.flatnonzero(np.asarray(bad))
    if len(where):
        k = int(where[0])
        values = ", ".join(repr(float(t[k])) for t in shown)
        ends = f"[{float(box.lower[k])!r}, {float(box.upper[k])!r}]"
        pytest.fail(f"{name} on {ends}: {values} ({len(where)} bad)")


@every_function
@every_dtype
@given(data=st.data())
def test_every_line_encloses_its_function(name: str, dtype: str, data: st.DataObject) -> None:
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, functions.DTYPES[dtype]))
    slope = data.draw(functions.slopes(functions.DTYPES[dtype]))
    for below in (True, False):
        line = op.line(slope, side_mask(box, below), op.anchors(box))
        assert_encloses(name, slope, line.intercept, box, below)


@every_function
@every_dtype
@given(data=st.data())
def test_pairs_of_lines_enclose_their_function(name: str, dtype: str, data: st.DataObject) -> None:
    """Of the rules' slopes, and of any others; an operator may have its own way to them."""
    op, number = ELEMENTWISE[name], functions.DTYPES[dtype]
    box = data.draw(functions.boxes(name, number))
    any_slope = data.draw(functions.slopes(number))
    for slopes in (op.crown(box), op.parallel(box), Slopes(any_slope, any_slope)):
        lines = op.lines(slopes, box)
        assert_encloses(name, lines.slopes.lower, lines.lower, box, True)
        assert_encloses(name, lines.slopes.upper, lines.upper, box, False)


@every_continuous_function
@every_dtype
@given(data=st.data())
def test_every_intercept_is_attained_where_the_line_touches(
    name: str, dtype: str, data: st.DataObject
) -> None:
    """With enclosure this is Theorem 3: no smaller intercept is valid at this slope."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, functions.DTYPES[dtype]))
    slope = data.draw(functions.slopes(functions.DTYPES[dtype]))
    for below in (True, False):
        line = op.line(slope, side_mask(box, below), op.anchors(box))
        assert (line.touch >= box.lower).all()
        assert (line.touch <= box.upper).all()
        z = line.touch.double().numpy()
        miss = (
            functions.REFERENCE[name](z)
            - slope.double().numpy() * z
            - line.intercept.double().numpy()
        )
        miss = miss if below else -miss
        allowed = 128 * eps_of(slope) * size_of(slope, line.intercept, box)
        allowed += 8 * torch.finfo(slope.dtype).tiny + misplaced(name, box)
        assert_none(miss > allowed, name, box, slope, line.touch, miss)


@every_continuous_function
@given(data=st.data())
def test_a_larger_intercept_below_or_smaller_above_is_never_valid(
    name: str, data: st.DataObject
) -> None:
    """Theorem 3 by brute force: the intercept equals the extreme of f(z) - s z on a grid."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    slope = data.draw(functions.slopes(torch.float64))
    z = functions.grid(box, 2001)
    gap = functions.REFERENCE[name](z) - column(slope) * z
    width = (box.upper - box.lower).numpy()
    resolution = (1 + np.abs(slope.numpy())) * (width / 2000) ** 2 + 1e-12 * (
        1 + np.abs(gap).max(1)
    )
    for below, truth in ((True, gap.min(1)), (False, gap.max(1))):
        found = op.line(slope, side_mask(box, below), op.anchors(box)).intercept.numpy()
        assert_none(np.abs(found - truth) > resolution, name, box, slope, found - truth)


@every_function
@given(data=st.data())
def test_touching_point_is_minus_the_derivative_of_the_intercept(
    name: str, data: st.DataObject
) -> None:
    """The intercept is concave in s below (convex above) and -touch a supergradient."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    slope = data.draw(functions.slopes(torch.float64))
    other = data.draw(functions.slopes(torch.float64))
    for below, sign in ((True, 1), (False, -1)):
        mask, anchors = side_mask(box, below), op.anchors(box)
        here, there = op.line(slope, mask, anchors), op.line(other, mask, anchors)
        tangent = here.intercept - here.touch * (other - slope)
        size = 1e-12 * (1 + (slope.abs() + other.abs()) * box.lower.abs().maximum(box.upper.abs()))
        assert (sign * (tangent - there.intercept) >= -size).all(), name


def steepest(
    f: Callable[[functions.Array], functions.Array], end: functions.Array, other: functions.Array
) -> functions.Array:
    """The greatest slope of a chord from `end` to a point of the box, by refined search."""
    start, run = f(end), other - end
    t = np.linspace(0, 1, 400)[1:-1]
    kinks = (np.array([0.0, 1.0, -1.0, 6.0, -0.5, 3.0, -3.0])[None, :] - end) / run
    share = np.concatenate([t, t**4, 1 - t**4, [1.0]])[None, :] + 0 * end
    turns = (np.round(end / (np.pi / 2)) + np.arange(-5, 6)) * (np.pi / 2)  # of waves
    share = np.concatenate([share, kinks, (turns - end) / run], 1).clip(1e-7, 1)
    for turn in range(6):
        slope = (f(end + share * run) - start) / (share * run)
        best = np.take_along_axis(share, slope.argmax(1)[:, None], 1)
        spread = np.linspace(-1, 1, 41)[None, :] * 0.02 * 0.5**turn
        share = np.concatenate([best, (best * (1 + spread)), best + spread * (1 - best)], 1)
        share = share.clip(1e-7, 1)
    return slope.max(1)


@every_continuous_function
@given(data=st.data())
def test_ends_of_the_tightest_range_are_extreme_chords(name: str, data: st.DataObject) -> None:
    """Below: inf over p of the chord from l to p, sup over p of the chord from p to u."""
    op, f = ELEMENTWISE[name], functions.REFERENCE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    box = box.rows((box.upper - box.lower) > 0.05)
    low, high = column(box.lower), column(box.upper)
    found = op.tightest(box)
    for mine, truth in (
        (found.lower.lower, -steepest(lambda z: -f(z), low, high)),
        (found.lower.upper, steepest(f, high, low)),
        (found.upper.lower, -steepest(lambda z: -f(z), high, low)),
        (found.upper.upper, steepest(f, low, high)),
    ):
        miss = np.abs(mine.numpy() - truth)
        # The search keeps 1e-7 of the box away from the end itself.
        near = 2e-6 * (1 + np.abs(truth)) + 1e-7 * (high - low)[:, 0]
        if isinstance(op, Hump):  # where tangents from an end go to infinity, tables are coarse
            near += 2e-5 * (np.minimum(abs(low), abs(high))[:, 0] < 2e-3)
        assert_none(miss > near, name, box, mine, truth)


@every_continuous_function
@given(data=st.data())
def test_lines_inside_the_tightest_range_are_not_dominated(name: str, data: st.DataObject) -> None:
    """Another valid line that is nowhere looser must be the same line."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    place = data.draw(functions.slopes(torch.float64)).abs() % 1
    other = data.draw(functions.slopes(torch.float64))
    found = op.tightest(box)
    width = box.upper - box.lower
    for below, sign, side in ((True, 1, found.lower), (False, -1, found.upper)):
        slope = side.lower + place * (side.upper - side.lower)
        mask, anchors = side_mask(box, below), op.anchors(box)
        rival = slope + (other - slope) * 0.1
        mine = op.line(slope, mask, anchors).intercept
        theirs = op.line(rival, mask, anchors).intercept
        ends = [sign * ((rival - slope) * z + theirs - mine) for z in (box.lower, box.upper)]
        size = 1e-10 + 1e-5 * width * (rival - slope).abs()
        # Nowhere looser at both ends and tighter somewhere by more than the ends' accuracy.
        # A rival that is d steeper loses d^2 / 2f'' at an end: too little to see where d is tiny.
        seen = (rival - slope).abs() > 1e-6
        dominated = seen & (ends[0] >= 0) & (ends[1] >= 0) & (torch.maximum(*ends) > size)
        assert_none(dominated, name, box, slope, rival)


@every_continuous_function
@given(data=st.data())
def test_crowns_rule_encloses_the_least_area(name: str, data: st.DataObject) -> None:
    """Area under a line is its height at the middle: no sampled slope is better."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    rule, found = op.crown(box), op.tightest(box)
    for below, sign, slope, side in (
        (True, 1, rule.lower, found.lower),
        (False, -1, rule.upper, found.upper),
    ):
        mask, anchors = side_mask(box, below), op.anchors(box)
        best = sign * (slope * box.middle + op.line(slope, mask, anchors).intercept)
        for t in np.linspace(0, 1, 41):
            rival = side.lower + float(t) * (side.upper - side.lower)
            height = sign * (rival * box.middle + op.line(rival, mask, anchors).intercept)
            size = 1e-6 * (box.upper - box.lower) + 1e-9
            assert_none(best < height - size, name, box, slope, rival, height - best)


@every_function
@every_dtype
@given(data=st.data())
def test_rules_and_ranges_are_finite_and_give_valid_lines(
    name: str, dtype: str, data: st.DataObject
) -> None:
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, functions.DTYPES[dtype]))
    found = op.tightest(box)
    ends = (found.lower.lower, found.lower.upper, found.upper.lower, found.upper.upper)
    for end in ends:
        assert_none(~torch.isfinite(end), name, box, end)
    assert (found.lower.lower <= found.lower.upper).all()
    assert (found.upper.lower <= found.upper.upper).all()
    for rule in (op.crown(box), op.paper(box), op.parallel(box), Slopes(ends[0], ends[3])):
        for below, slope in ((True, rule.lower), (False, rule.upper)):
            assert_none(~torch.isfinite(slope), name, box, slope)
            line = op.line(slope, side_mask(box, below), op.anchors(box))
            assert_encloses(name, slope, line.intercept, box, below)


@pytest.mark.parametrize("name", [n for n, op in ELEMENTWISE.items() if isinstance(op, SShaped)])
@given(data=st.data())
def test_the_papers_rule_for_s_shaped_functions(name: str, data: st.DataObject) -> None:
    """Appendix A.4: tangent at the middle off 0; across 0 the tangent through the far end,
    or the chord where that tangent would touch beyond the box."""
    op, f = ELEMENTWISE[name], functions.REFERENCE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    box = box.rows((box.upper - box.lower) > 0.05)
    low, high = column(box.lower), column(box.upper)
    middle, h = (low + high) / 2, 1e-5
    tangent = ((f(middle + h) - f(middle - h)) / (2 * h))[:, 0]
    rule = op.paper(box)
    upper = np.where(low[:, 0] >= 0, tangent, steepest(f, low, high))
    lower = np.where(high[:, 0] <= 0, tangent, steepest(f, high, low))
    assert_none(np.abs(rule.upper.numpy() - upper) > 2e-6, name, box, rule.upper, upper)
    assert_none(np.abs(rule.lower.numpy() - lower) > 2e-6, name, box, rule.lower, lower)


@every_function
@every_dtype
@given(data=st.data())
def test_images_are_exact(name: str, dtype: str, data: st.DataObject) -> None:
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, functions.DTYPES[dtype]))
    f = functions.REFERENCE[name](functions.grid(box))
    image = op.image(box)
    eps, tiny = eps_of(box.lower), 8 * torch.finfo(box.lower.dtype).tiny
    low, high = image.lower.double().numpy(), image.upper.double().numpy()
    rounding = 4e-16 * np.abs(f).max(1) + tiny
    assert_none(low > f.min(1) + rounding, name, box, low, f.min(1))
    assert_none(high < f.max(1) - rounding, name, box, high, f.max(1))
    allowed = (
        64 * eps * np.abs(f).max(1) + tiny + misplaced(name, box) + 1e-6 * (np.abs(f).max(1) < 1)
    )  # the grid's
    assert_none(low < f.min(1) - allowed, name, box, low, f.min(1))
    assert_none(high > f.max(1) + allowed, name, box, high, f.max(1))


@every_function
@given(data=st.data())
def test_tightening_a_settled_box_tightens_no_line(name: str, data: st.DataObject) -> None:
    """On stable boxes the rule's lines agree with f, so smaller boxes give nothing."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, torch.float64, extreme=False))
    stable = op.stable(box)
    box = box.rows(stable)
    z = functions.grid(box)
    for below in (True, False):
        rule = op.crown(box)
        slope = rule.lower if below else rule.upper
        line = op.line(slope, side_mask(box, below), op.anchors(box))
        gap = np.abs(functions.REFERENCE[name](z) - column(slope) * z - column(line.intercept))
        assert (gap <= 1e-12 * (1 + np.abs(z))).all(), name


_ACROSS = Intervals(torch.tensor(-1.0), torch.tensor(1.0))
PARTIAL = [
    n for n, op in ELEMENTWISE.items() if (d := op.defined(_ACROSS)) is not None and not d.all()
]


def test_functions_with_gaps_are_known() -> None:
    inner = {"log", "reciprocal", "inverse_square", "inverse_cube"}
    assert set(PARTIAL) == inner | {"square_root", "three_halves", "inverse_root"}


@pytest.mark.parametrize("name", PARTIAL)
@every_dtype
@given(data=st.data())
def test_a_box_beyond_the_domain_has_no_line(name: str, dtype: str, data: st.DataObject) -> None:
    """No finite intercept, image or rule wherever some point of the box has no value."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes("relu", functions.DTYPES[dtype]))
    slope = data.draw(functions.slopes(functions.DTYPES[dtype]))
    with np.errstate(all="ignore"):
        values = functions.REFERENCE[name](functions.grid(box))
        low, high = (functions.REFERENCE[name](column(end)) for end in (box.lower, box.upper))
    bad = ~np.isfinite(values).all(1) | ~np.isfinite(low[:, 0]) | ~np.isfinite(high[:, 0])
    bad |= ((box.lower < 0) & (box.upper > 0)).numpy()
    assert 20 < bad.sum() < len(bad)
    image = op.image(box)
    for below in (True, False):
        mask, anchors, rule = side_mask(box, below), op.anchors(box), op.crown(box)
        for s in (slope, rule.lower, rule.upper, torch.zeros_like(slope)):
            found = op.line(s, mask, anchors).intercept
            assert_none(torch.isfinite(found).numpy() & bad, name, box, s, found)
    for end in (image.lower, image.upper):
        assert_none(torch.isfinite(end).numpy() & bad, name, box, end)
    # And on the others there is one.
    width = (box.upper - box.lower).numpy()
    fine = ~bad & (np.abs(values).max(1) < 1e30) & (width < 1e30)
    assert_none(~torch.isfinite(image.lower + image.upper).numpy() & fine, name, box, image.lower)


@pytest.mark.parametrize("name", ["sin", "cos"])
@every_dtype
@given(data=st.data())
def test_waves_far_from_0_are_enclosed(name: str, dtype: str, data: st.DataObject) -> None:
    """Where places between numbers are far apart, lines may be loose but hold."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes("relu", functions.DTYPES[dtype]))
    slope = data.draw(functions.slopes(functions.DTYPES[dtype]))
    image = op.image(box)
    assert (image.lower >= -1).all() and (image.upper <= 1).all()
    for below in (True, False):
        for s in (slope, torch.zeros_like(slope), op.crown(box).lower, op.crown(box).upper):
            line = op.line(s, side_mask(box, below), op.anchors(box))
            assert_encloses(name, s, line.intercept, box, below)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "arctan", "erf"])
@every_dtype
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_lines_of_s_shaped_functions_inside_the_range(
    name: str, dtype: str, data: st.DataObject, seed: int
) -> None:
    """The search's short way to lines gives those of `line`, and values the image's."""
    op = ELEMENTWISE[name]
    box = data.draw(functions.boxes(name, functions.DTYPES[dtype]))
    here = relax(op, box, LeastArea())
    place = torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, box.lower.shape))
    for below in (True, False):
        mask = side_mask(box, below)
        found = op.within(place.to(box.lower), mask, here)
        assert_encloses(name, found.slope, found.intercept, box, below)
        assert torch.equal(found.intercept, op.line(found.slope, mask, here.anchors).intercept)
    image, values = op.image(box), functions.REFERENCE[name](functions.grid(box))
    tiny = torch.finfo(box.lower.dtype).tiny
    assert (values >= column(image.lower) - tiny).all()
    assert (values <= column(image.upper) + tiny).all()


def test_the_table_and_its_references_agree() -> None:
    assert set(functions.REFERENCE) == set(ELEMENTWISE)
    every = torch.linspace(-12, 12, 999, dtype=torch.float64)
    for name, op in ELEMENTWISE.items():
        zone = functions.ZONES.get(name, functions.EVERYWHERE)[1]
        z = zone.within(Intervals(every, every), every < 0).lower
        assert isinstance(op, Elementwise)
        assert np.allclose(op.apply(z).numpy(), functions.REFERENCE[name](z.numpy()), atol=1e-14)
        h = 1e-6
        smooth = torch.ones_like(z, dtype=torch.bool)
        for kink in op.kinks():
            smooth &= (z - kink).abs() > 0.01
        if isinstance(op, Steps):
            smooth &= (2 * z - (2 * z).round()).abs() > 0.01
        slope = (
            functions.REFERENCE[name](z.numpy() + h) - functions.REFERENCE[name](z.numpy() - h)
        ) / (2 * h)
        assert np.allclose(op.derivative(z).numpy()[smooth], slope[smooth], atol=1e-8), name


def test_lines_over_boxes_without_numbers_have_none() -> None:
    """A ReLU of something undefined is not known to be at least 0."""
    box = Intervals(torch.tensor([[torch.nan, -1.0]]), torch.tensor([[torch.nan, 2.0]]))
    op = ELEMENTWISE["relu"]
    here = relax(op, box, LeastArea())
    assert torch.isnan(here.lines.lower).tolist() == [[True, False]]
    place, below = torch.full((1, 2), 0.5), torch.ones(1, 2, dtype=torch.bool)
    assert torch.isnan(op.within(place, below, here).intercept).tolist() == [[True, False]]


_ENDS = st.integers(-20, 20).map(lambda k: k / 4) | st.floats(-5, 5)
_SLOPES = st.floats(-4, 4)


@pytest.mark.parametrize("name", [n for n, op in ELEMENTWISE.items() if isinstance(op, Steps)])
@given(ends=st.tuples(*[_ENDS] * 2), slope=st.sampled_from([0.0, 0.5, 1.0, -1.0, 3.0]) | _SLOPES)
@example(ends=(-1.0, 0.0), slope=0.5)  # a jump at the upper end
def test_lines_of_steps_are_the_tightest(
    name: str, ends: tuple[float, float], slope: float
) -> None:
    """Every intercept is the least or greatest f(z) - s z of ends and limits at jumps."""
    low, high = sorted(ends)
    op, f = ELEMENTWISE[name], functions.REFERENCE[name]
    box = Intervals(*(torch.tensor([z], dtype=torch.float64) for z in (low, high)))
    halves = [k / 2 for k in range(-11, 12) if low <= k / 2 <= high]
    near = [(z, float(f(np.array(z)))) for z in (low, high, *halves)]
    # The function is constant up to a jump, wherever near it one looks.
    near += [(z, float(f(np.array(z - 0.01)))) for z in halves if low < z]
    near += [(z, float(f(np.array(z + 0.01)))) for z in halves if z < high]
    gaps = [y - slope * z for z, y in near]
    for below, wanted in ((True, min(gaps)), (False, max(gaps))):
        given_ = torch.tensor([slope], dtype=torch.float64)
        line = op.line(given_, side_mask(box, below), op.anchors(box))
        assert float(line.intercept[0]) == pytest.approx(wanted, abs=1e-12)
        assert (float(line.intercept[0]) <= wanted) == below or line.intercept[0] == wanted
    assert bool(op.stable(box)[0]) == (len({y for _, y in near}) == 1)


def test_the_gradient_of_signs_points_downhill() -> None:
    """Descents go on behind signs, whose derivative is 0."""
    z = torch.tensor([-2.0, 0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(ELEMENTWISE["sign"].apply(z).sum(), z)
    assert (slope > 0).all()
