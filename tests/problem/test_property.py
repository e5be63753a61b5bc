"""Properties: both ways to write them agree, clauses are alternatives, NaN proves nothing."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import inf, nan

import pytest
import torch
from torch import Tensor

from frown.problem.property import (
    WEIGHTS,
    LabelWins,
    LinearProperty,
    Property,
    conjunction,
    other_classes,
    positive,
    violated,
)

OUTPUTS = 5
SEEDS = range(20)


def numbers(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def label_wins(seed: int, samples: int = 4, targets: int | None = None) -> LabelWins:
    """Labels of all kinds against all other classes, or some of them."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(OUTPUTS, (samples,), generator=generator)
    others = other_classes(label, OUTPUTS)
    return LabelWins(label, others[:, :targets], OUTPUTS, torch.float64)


def written_out(own: LabelWins) -> LinearProperty:
    """The same property, each coefficient of it."""
    coef = torch.zeros(*own.shape, OUTPUTS, dtype=own.dtype)
    for n in range(own.shape[0]):
        for t in range(own.shape[1]):
            coef[n, t, own.label[n]] += 1
            coef[n, t, own.targets[n, t]] -= 1
    return conjunction(coef)


def in_clauses(seed: int, clause: list[int], samples: int = 3) -> LinearProperty:
    """Random literals, some of which are alternatives."""
    coef = numbers(seed, samples, len(clause), OUTPUTS)
    return LinearProperty(coef, numbers(seed + 1, samples, len(clause)), torch.tensor(clause))


@pytest.mark.parametrize("targets", [None, 1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_label_that_wins_is_the_same_property_written_out(seed: int, targets: int | None) -> None:
    lazy = label_wins(seed, targets=targets)
    dense = written_out(lazy)
    literals = lazy.shape[0] * lazy.shape[1]
    assert lazy.shape == dense.shape
    assert torch.equal(lazy.const, dense.const) and torch.equal(lazy.clause, dense.clause)
    assert torch.equal(lazy.coef, dense.coef)
    assert lazy.single and dense.single and lazy.clauses == dense.clauses == lazy.shape[1]
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(literals, (6,), generator=generator)
    for chosen in (index, slice(None), slice(1, 3), slice(0, 0)):
        assert torch.equal(lazy.pick(chosen), dense.pick(chosen))
    values = numbers(seed, lazy.shape[0], OUTPUTS)
    upper = values + numbers(seed + 1, lazy.shape[0], OUTPUTS).abs()
    torch.testing.assert_close(lazy.sums(values), dense.sums(values))
    torch.testing.assert_close(lazy.literals(values), dense.literals(values))
    torch.testing.assert_close(lazy.spread(upper - values), dense.spread(upper - values))
    for own, other in zip(lazy.least(values, upper), dense.least(values, upper), strict=True):
        torch.testing.assert_close(own, other)
    found = lazy.literals(values)
    assert torch.equal(lazy.margins(found), dense.margins(found))
    assert torch.equal(lazy.holds(found), dense.holds(found))
    for some in (torch.tensor([2, 0, 0]), slice(1, 3)):
        one, other = lazy.rows(some), dense.rows(some)
        assert one.shape == other.shape and torch.equal(one.coef, other.coef)
        torch.testing.assert_close(one.literals(values[some]), other.literals(values[some]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_label_wins_where_its_output_is_the_largest(seed: int) -> None:
    wins = label_wins(seed, samples=50)
    outputs = numbers(seed, 50, OUTPUTS)
    assert torch.equal(wins.holds(wins.literals(outputs)), outputs.argmax(1) == wins.label)


@pytest.mark.parametrize("clause", [[0, 1, 2], [0, 0, 0], [0, 0, 1, 2, 2], [0, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_clause_needs_one_of_its_literals(seed: int, clause: list[int]) -> None:
    wanted = in_clauses(seed, clause, samples=40)
    outputs = numbers(seed + 2, 40, OUTPUTS)
    values = wanted.literals(outputs)
    margins, holds = wanted.margins(values), wanted.holds(values)
    assert wanted.clauses == max(clause) + 1 and margins.shape == (40, wanted.clauses)
    assert wanted.single == (len(clause) == wanted.clauses)
    for n in range(40):
        written = wanted.coef[n] @ outputs[n] + wanted.const[n]
        torch.testing.assert_close(values[n], written)
        greatest = [
            max(float(values[n, t]) for t in range(len(clause)) if clause[t] == c)
            for c in range(wanted.clauses)
        ]
        assert margins[n].tolist() == greatest
        assert bool(holds[n]) == all(g > 0 for g in greatest)
    assert torch.equal(violated(margins), ~holds)
    if max(clause) < 2:
        assert 0 < int(holds.sum()) < 40  # of both kinds


@pytest.mark.parametrize("clause", [[0, 1, 2], [0, 0, 0], [0, 0, 1, 2, 2]], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_lower_bounds_prove_what_holds_at_every_point(seed: int, clause: list[int]) -> None:
    """The least values over intervals are below those of all points; where they prove the property
    it holds at each of these, and where they do not it may hold all the same."""
    wanted = in_clauses(seed, clause, samples=30)
    lower = numbers(seed + 2, 30, OUTPUTS)
    width = 0.4 * numbers(seed + 3, 30, OUTPUTS).abs()
    least, size = wanted.least(lower, lower + width)
    bounds = least + wanted.const
    middle, radius = lower + width / 2, width / 2
    torch.testing.assert_close(wanted.literals(middle) - wanted.spread(radius), bounds)
    assert (size >= least.abs() - 1e-12).all()
    proved = wanted.holds(bounds)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(50):
        share = torch.rand(width.shape, generator=generator, dtype=torch.float64)
        values = wanted.literals(lower + share * width)
        assert (values >= bounds - 1e-12).all()
        assert (wanted.margins(values) >= wanted.margins(bounds) - 1e-12).all()
        assert wanted.holds(values)[proved].all()
    # An end of the intervals attains the least value of each literal.
    for t in range(len(clause)):
        ends = torch.where(wanted.coef[:, t] > 0, lower, lower + width)
        torch.testing.assert_close(wanted.literals(ends)[:, t], bounds[:, t])


def test_some_bounds_prove_and_some_do_not() -> None:
    """The sampling above sees proofs by one literal of several, and failures."""
    wanted = in_clauses(0, [0, 0, 1, 1, 1], samples=200)
    values = wanted.literals(numbers(5, 200, OUTPUTS))
    holds = wanted.holds(values)
    assert 20 < int(holds.sum()) < 180
    assert bool((holds & (values <= 0).any(1)).any())


PROPERTIES: dict[str, Property] = {
    "label": label_wins(0, samples=1, targets=3),
    "linear": in_clauses(0, [0, 1, 2], samples=1),
    "clauses": in_clauses(0, [0, 0, 1], samples=1),
    "alternatives": in_clauses(0, [0, 0, 0], samples=1),
}


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [nan, inf])
def test_what_is_no_number_proves_nothing(name: str, place: int, bad: float) -> None:
    wanted = PROPERTIES[name]
    bounds = torch.ones(1, 3, dtype=torch.float64)
    assert wanted.holds(bounds).all()
    bounds[0, place] = bad
    assert not wanted.holds(bounds).any()
    assert not violated(wanted.margins(bounds)).any()  # nor is it a counterexample


def test_a_literal_without_a_bound_leaves_the_others_of_its_clause() -> None:
    bounds = torch.tensor([[-inf, 1.0, 1.0]], dtype=torch.float64)
    for name, expected in {"linear": False, "clauses": True, "alternatives": True}.items():
        assert bool(PROPERTIES[name].holds(bounds)) is expected


def test_a_margin_of_zero_is_no_proof() -> None:
    assert positive(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, nan]])).tolist() == [
        False,
        True,
        False,
    ]
    assert violated(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, nan]])).tolist() == [
        True,
        False,
        False,
    ]


def test_sums_of_literals_are_above_zero_only_where_one_of_them_is() -> None:
    """In exact numbers, whatever the sums' constants were rounded to; sums that round are none."""
    dice = torch.Generator().manual_seed(0)
    clause = torch.tensor([0, 0, 1, 2, 2, 2])
    coef = torch.randint(-4, 5, (3, 6, 4), generator=dice).double()
    const = torch.randn(3, 6, generator=dice, dtype=torch.float64)
    asked = LinearProperty(coef, const, clause)
    wide, new = asked.with_sums()
    assert torch.equal(wide.only(~new).coef, coef) and torch.equal(wide.only(~new).const, const)
    assert (wide.clause.diff() >= 0).all() and 0 < int(new.sum()) <= 5 * (1 + 3)
    inexact = 0
    for n in range(3):
        for t in new.nonzero().flatten().tolist():
            c = int(wide.clause[t])
            own = [k for k in range(6) if int(clause[k]) == c]
            pairs = [
                (a, b, w)
                for a, b in combinations(own, 2)
                for w in WEIGHTS
                if torch.equal(coef[n, a] + w * coef[n, b], wide.coef[n, t])
            ]
            levels = [
                Fraction(float(const[n, a])) + Fraction(w) * Fraction(float(const[n, b]))
                for a, b, w in pairs
            ]
            lacks = min((level - Fraction(float(wide.const[n, t])) for level in levels), key=abs)
            assert 0 <= lacks < Fraction(1, 2**40)
            inexact += lacks > 0
    assert inexact  # some constants were rounded
    rounding = coef.clone()
    rounding[:, 0, 0] = 1 / 3
    rounding[:, 1, 0] = 1e-9 / 7
    wide, new = LinearProperty(rounding, const, clause).with_sums()
    assert not (new & (wide.clause == 0)).any() and (new & (wide.clause == 2)).any()
