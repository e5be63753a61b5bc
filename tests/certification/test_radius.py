"""The search for radii, on margins whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from math import exp, inf, nan

import pytest
import torch
from torch import Tensor

from frown.certification import radius
from frown.certification.radius import Bracket, Goal, search
from frown.certification.search import still_open

Margin = Callable[[float], float]
TOL = 0.01
GOAL = Goal.fixed(TOL)


def last(steps: Iterable[Bracket]) -> Bracket:
    """The brackets at the end of a search."""
    *_, found = steps
    return found


def power(root: float, exponent: float, clean: float = 1.0) -> Margin:
    return lambda r: clean * (1 - (r / root) ** exponent)


def jump(root: float, above: float) -> Margin:
    return lambda r: 1.0 if r <= root else above


# name: margin of the radius, the largest radius that holds
MARGINS: dict[str, tuple[Margin, float]] = {
    "linear": (power(0.37, 1), 0.37),
    "square": (power(0.37, 2), 0.37),
    "steep": (power(0.37, 9), 0.37),
    "flat": (power(0.37, 0.2), 0.37),
    "tiny": (power(3e-7, 1.5), 3e-7),
    "very tiny": (power(1e-12, 1.2), 1e-12),
    "huge": (power(700.0, 1.5), 700.0),
    "large margin": (power(0.2, 1.5, 1e6), 0.2),
    "small margin": (power(0.2, 1.5, 1e-6), 0.2),
    "jump": (jump(0.11, -1.0), 0.11),
    "jump to minus infinity": (jump(0.11, -inf), 0.11),
    "jump to NaN": (jump(0.11, nan), 0.11),
    "jump far down": (jump(1e-5, -1e30), 1e-5),
    "always positive": (lambda r: 1.0, 1000.0),
    "never positive": (lambda r: -1.0 if r > 0 else 1.0, 0.0),
    "always NaN": (lambda r: nan if r > 0 else 1.0, 0.0),
}


class Counted:
    """Margins of several samples; remembers every radius asked for, and what held."""

    def __init__(self, margins: list[Margin], dtype: torch.dtype) -> None:
        self.margins, self.dtype = margins, dtype
        self.asked: list[list[float]] = [[] for _ in margins]
        self.held: list[set[float]] = [set() for _ in margins]

    def __call__(self, index: Tensor, radius: Tensor) -> Tensor:
        assert len(index) == len(radius)
        found = []
        for k, r in zip(index.tolist(), radius.tolist()):
            value = self.margins[k](r)
            self.asked[k].append(r)
            if value > 0:
                self.held[k].add(r)
            found.append([value, value + 1])
        return torch.tensor(found, dtype=self.dtype)


def run(
    margins: list[Margin], first: float, dtype: torch.dtype, limit: float = 1000.0
) -> tuple[Bracket, Counted]:
    count = len(margins)
    evaluate = Counted(margins, dtype)
    clean = torch.tensor([[m(0.0), m(0.0) + 1] for m in margins], dtype=dtype)
    limits = torch.full((count,), limit, dtype=dtype)
    start = torch.full((count,), first, dtype=dtype)
    return last(search(Bracket.start(clean, limits), evaluate, start, GOAL, 60)), evaluate


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("first", [1e-6, 0.01, 0.3, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_radius_is_proved_and_nearly_the_largest(
    name: str, first: float, dtype: torch.dtype
) -> None:
    margin, root = MARGINS[name]
    bracket, evaluate = run([margin], first, dtype)
    proved, failed = float(bracket.proved[0]), float(bracket.failed[0])
    assert proved == 0 or proved in evaluate.held[0]  # that very radius was evaluated
    assert proved <= root * (1 + 1e-6)
    assert proved < failed
    if root == 0:
        assert proved == 0
        return
    assert min(failed, 1000.0) <= proved * (1 + TOL) * (1 + 1e-6)
    far = abs(torch.tensor(first / root).log10())
    odd = {"flat": 30, "steep": 14}.get(name, 14 if "jump" in name else 0)
    most = 12 + 4 * float(far) + odd
    assert len(evaluate.asked[0]) <= most, evaluate.asked[0]


def test_samples_do_not_disturb_each_other() -> None:
    every = [m for m, _ in MARGINS.values()]
    together, evaluate = run(every, 0.05, torch.float64)
    for k, margin in enumerate(every):
        alone, single = run([margin], 0.05, torch.float64)
        assert float(alone.proved[0]) == float(together.proved[k])
        assert single.asked[0] == evaluate.asked[k]


def test_the_limit_is_tried_and_never_passed() -> None:
    bracket, evaluate = run([lambda r: 1.0], 0.3, torch.float64, limit=0.75)
    assert float(bracket.proved[0]) == 0.75
    assert max(evaluate.asked[0]) == 0.75


@pytest.mark.parametrize("name", MARGINS)
def test_a_search_needs_no_limit(name: str) -> None:
    margin, root = MARGINS[name]
    bracket, evaluate = run([margin], 0.3, torch.float64, limit=inf)
    assert evaluate.asked[0]
    proved = float(bracket.proved[0])
    if name == "always positive":
        assert proved > 1e20
    elif root == 0:
        assert proved == 0 and len(evaluate.asked[0]) < 40
    else:
        assert root / (1 + TOL) * (1 - 1e-6) <= proved <= root * (1 + 1e-6)


@pytest.mark.parametrize("exponent", [1, 1.5, 2, 3])
@pytest.mark.parametrize("first", [0.1, 0.3, 0.5, 0.9])
def test_a_power_law_takes_few_evaluations(exponent: float, first: float) -> None:
    """Two or three radii tell the law, one more proves what it says, the last is beyond."""
    _, evaluate = run([power(0.37, exponent)], first, torch.float64)
    assert len(evaluate.asked[0]) <= 5 + (first > 0.5), evaluate.asked[0]


BENT: list[Margin] = [
    lambda r: 1 - r - 2 * r**2,
    lambda r: 1 - r - 6 * r**3,
    lambda r: 1 - r - 30 * r**3,
    lambda r: 1 - r - 100 * r**6,
    lambda r: 1 - 0.3 * r - 20 * r**4,
    lambda r: 1 - 3 * r**0.8 - 5 * r**2,
]


def test_a_bend_of_the_law_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of two powers: two radii mislead, and the third corrects them."""

    def evaluations() -> int:
        starts = (0.02, 0.1, 0.3, 0.6)
        found = [run([margin], first, torch.float64)[1] for margin in BENT for first in starts]
        return sum(len(evaluate.asked[0]) for evaluate in found)

    followed = evaluations()
    monkeypatch.setattr(radius, "BEND", 0.0)
    assert followed <= 5.5 * len(BENT) * 4 and followed < evaluations() - 4


def test_stopping_keeps_what_was_proved() -> None:
    margin, root = MARGINS["square"]
    for rounds in range(6):
        evaluate = Counted([margin], torch.float64)
        clean = torch.ones(1, 2, dtype=torch.float64)
        start = Bracket.start(clean, torch.tensor([10.0], dtype=torch.float64))
        first = torch.tensor([0.1], dtype=torch.float64)
        bracket = last(islice(search(start, evaluate, first, GOAL), rounds + 1))
        assert len(evaluate.asked[0]) == rounds or rounds > 3
        proved = float(bracket.proved[0])
        assert proved == max(evaluate.held[0], default=0.0) <= root


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_nan_and_infinity_prove_nothing(value: float) -> None:
    clean = torch.ones(1, 2)
    bracket = Bracket.start(clean, torch.tensor([10.0]))
    bracket = bracket.record(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([[value, 1.0]]))
    assert float(bracket.proved[0]) == 0
    assert float(bracket.failed[0]) == 1


@pytest.mark.parametrize("glance", [True, False])
def test_what_a_glance_does_not_prove_has_not_failed(glance: bool) -> None:
    """The first look misses a margin of 0.5 that the later ones find."""
    asked: list[float] = []

    def evaluate(index: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
        found = 1 - radius - (0.5 if not asked else 0.0)
        asked.extend(radius.tolist())
        return found[:, None]

    clean = torch.ones(1, 1, dtype=torch.float64)
    bracket = Bracket.start(clean, torch.tensor([10.0], dtype=torch.float64))
    bracket = replace(bracket, proved=bracket.proved + 0.3)
    first = torch.tensor([0.6], dtype=torch.float64)
    bracket = last(search(bracket, evaluate, first, GOAL, glance=glance))
    end = 1.0 if glance else first.item()
    assert end / (1 + TOL) <= float(bracket.proved[0]) < float(bracket.failed[0])
    assert float(bracket.failed[0]) <= end * (1 + 2 * TOL) and len(asked) <= 9


def test_a_glance_where_nothing_is_proved_yet_counts() -> None:
    clean = torch.ones(3, 1, dtype=torch.float64)
    limit = torch.full((3,), torch.inf, dtype=torch.float64)
    bracket = Bracket.start(clean, limit)
    bracket = replace(bracket, proved=torch.tensor([0.0, 0.1, 0.1], dtype=torch.float64))

    def evaluate(index: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
        blind = (index == 2) & (radius > 0.5)
        return torch.where(blind, torch.nan, 1 - 4 * radius)[:, None]

    first = torch.ones(3, dtype=torch.float64)
    bracket = last(search(bracket, evaluate, first, GOAL, glance=True))
    assert (bracket.proved <= 0.25).all() and (bracket.proved >= 0.25 / (1 + TOL)).all()


@pytest.mark.parametrize("name", MARGINS)
def test_a_search_left_early_goes_on_as_if_it_had_not_been(name: str) -> None:
    margin, _ = MARGINS[name]
    whole, through = run([margin], 0.05, torch.float64)
    clean = torch.tensor([[margin(0.0), margin(0.0) + 1]], dtype=torch.float64)
    first, limit = (torch.tensor([r], dtype=torch.float64) for r in (0.05, 1000.0))
    evaluate = Counted([margin], torch.float64)
    start, enough = Bracket.start(clean, limit), Goal(0.2, 0.05)
    bracket = last(search(start, evaluate, first, GOAL, 60, enough=enough))
    assert len(evaluate.asked[0]) <= len(through.asked[0])
    rest = bracket.rows(torch.tensor([0]))
    if len(rest.open(GOAL)):
        rest = last(search(rest, evaluate, rest.propose(torch.tensor([0]), GOAL), GOAL, 60))
    assert evaluate.asked == through.asked
    assert rest.proved == whole.proved and rest.failed == whole.failed


def test_what_another_search_proved_is_taken_over() -> None:
    clean = torch.ones(3, 1, dtype=torch.float64)
    limit = torch.full((3,), 10.0, dtype=torch.float64)
    one, other = Bracket.start(clean, limit), Bracket.start(clean[:2], limit[:2])
    every, some = torch.arange(3), torch.tensor([2, 0])
    margins = torch.full((3, 1), 0.1, dtype=torch.float64)
    one = one.record(every, torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64), margins)
    one = one.record(every, torch.tensor([1.2, 1.2, 2.0], dtype=torch.float64), -margins)
    # Sample 2 is proved further, below what failed; sample 0 beyond what failed.
    both = torch.arange(2)
    other = other.record(both, torch.tensor([1.5, 1.3], dtype=torch.float64), 2 * margins[:2])
    other = other.record(both, torch.tensor([1.6, 1.4], dtype=torch.float64), -2 * margins[:2])
    one = one.take_over(some, other)
    assert one.proved.tolist() == [1.3, 1.0, 1.5] and one.failed.tolist() == [1.4, 1.2, 2.0]
    assert one.at_proved.flatten().tolist() == [0.2, 0.1, 0.2]
    one = one.take_over(every, Bracket.start(clean, limit))  # nothing proved: nothing changes
    assert one.proved.tolist() == [1.3, 1.0, 1.5]


@pytest.mark.parametrize("rest", [0.05, 0.01, 0.001])
def test_margins_that_last_are_followed_to_the_limit(rest: float) -> None:
    """They fade but never end: every estimate of where they do is a little short."""
    margin = lambda r: rest + (1 - rest) * exp(-8 * r)  # noqa: E731
    bracket, evaluate = run([margin], 0.3, torch.float64, limit=0.8)
    assert float(bracket.proved[0]) == 0.8 and len(evaluate.asked[0]) <= 8, evaluate.asked[0]


def test_what_failed_nearby_needs_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open is a bracket whose margins should last longer, too; only a wide one is worth a word."""
    clean = torch.ones(3, 1)
    bracket = Bracket.start(clean, torch.full((3,), 9.0))
    ends = {"proved": [1.0, 1.0, 1.0], "failed": [1.005, 1.5, torch.inf]}
    bracket = replace(bracket, **{k: torch.tensor(v) for k, v in ends.items()})
    monkeypatch.setattr(Bracket, "open", lambda self, goal: torch.arange(3))
    said = dict(still_open(bracket, Goal.optimised(0.01), torch.full((3,), torch.inf)))
    assert sorted(said) == [1, 2]
    assert "1.5" in said[1] and "no radius told" in said[2]


def test_a_leap_ends_short_of_where_margins_vanish() -> None:
    """With nothing failed yet a search goes threefold; if it may leap, half the way at most."""
    clean, limit = torch.ones(3, 1), torch.full((3,), 100.0)
    bracket, every = Bracket.start(clean, limit, power=1.0), torch.arange(3)
    bracket = bracket.record(every, torch.full((3,), 1.0), torch.tensor([[0.99], [0.9], [0.5]]))
    for leap, most in ((3.0, (3.0, 3.0, 2.0)), (10.0, (10.0, 5.0, 2.0))):
        found = bracket.propose(every, Goal(0.01, 0.006, leap))
        torch.testing.assert_close(found, torch.tensor(most), rtol=0.02, atol=0)
