"""Queries in VNN-LIB 1.0 and 2: what is read means what the text says, exactly."""

from __future__ import annotations

import gzip
import random
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from formulas import (
    BOX,
    BOX_2,
    HEAD,
    HEAD_2,
    NAMES_2,
    formula,
    in_version_2,
    value,
    written,
)
from frown.errors import InvalidInput
from frown.problem.vnnlib import MOST_CASES, parse_vnnlib, read_vnnlib


@pytest.mark.parametrize("seed", range(300))
def test_a_query_means_what_its_text_says(seed: int) -> None:
    dice = random.Random(seed)
    parts = [formula(dice, 3) for _ in range(dice.randint(1, 2))]
    query = parse_vnnlib(HEAD + BOX + "".join(f"(assert {written(p)}) ; a remark\n" for p in parts))
    assert (query.inputs, query.outputs) == (2, 3)
    for _ in range(40):
        # Few values, so that ends of boxes and equal sides are among them.
        x = [Fraction(dice.randint(-9, 9), 4) for _ in range(2)]
        y = [Fraction(dice.randint(-9, 9), 4) for _ in range(3)]
        point = {f"X_{i}": v for i, v in enumerate(x)} | {f"Y_{i}": v for i, v in enumerate(y)}
        inside = -1 <= x[0] <= Fraction(3, 2) and -2 <= x[1] <= 1
        assert query.satisfied(x, y) == (inside and all(value(p, point) for p in parts))


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_comparisons_read_at_once_mean_what_their_parts_say(seed: int, second: bool) -> None:
    """A comment within a comparison has it read part by part."""
    dice = random.Random(seed)
    drawn = [formula(dice, 3) for _ in range(50)]
    kept = [in_version_2(p) for p in drawn] if second else drawn
    parts = [p for p in kept if p is not None][:3]
    own = "".join(f"(assert {written(p)})\n" for p in parts + parts[:2])
    if second:
        for name, tensor in NAMES_2.items():
            own = own.replace(name, tensor)
    text = (HEAD_2 + BOX_2 if second else HEAD + BOX) + own
    apart = re.sub(r"\(([<>]=?)", r"(\1 ; a remark\n", text)
    assert parse_vnnlib(text) == parse_vnnlib(apart)


def test_a_repeated_comparison_is_reported_where_it_stands() -> None:
    text = HEAD + BOX + "(assert (<= Y_0 1))\n(assert (<= Y_1 (+ 1 (<= Y_0 1))))"
    line = text.count("\n") + 1
    with pytest.raises(InvalidInput, match=f"^line {line}, column 22: a number or variable"):
        parse_vnnlib(text)


def test_a_property_is_violated_just_where_a_disjunct_is_satisfied() -> None:
    """But for constants, which are rounded to the safe side."""
    text = HEAD + BOX + "(assert (or (and (<= Y_0 Y_1) (>= Y_2 0.1)) (<= (* 0.5 Y_0) (- 2 Y_2))))"
    (disjunct,) = parse_vnnlib(text).disjuncts
    own = disjunct.property(3)
    assert own.clauses == 2
    outputs = (
        torch.randint(-8, 8, (500, 3), generator=torch.Generator().manual_seed(0)).double() / 4
    )
    violated = ~own.rows(torch.zeros(500, dtype=torch.long)).holds(
        own.rows(torch.zeros(500, dtype=torch.long)).literals(outputs)
    )
    x = [Fraction(0)] * 2
    exact = [disjunct.satisfied(x, [Fraction(v) for v in row]) for row in outputs.tolist()]
    assert violated.tolist() == exact and 0 < sum(exact) < 500


def test_a_constant_is_rounded_to_the_side_that_is_harder_to_prove() -> None:
    for sign in ("<=", ">="):
        (one,) = parse_vnnlib(f"{HEAD}{BOX}(assert ({sign} Y_0 0.1))").disjuncts
        ((exact,),) = one.cases
        found = Fraction(float(one.property(3).const[0, 0]))
        assert 0 <= exact.const - found < Fraction(1, 10**16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "number", ["0.1", "-0.1", "1e-60", "-1e-400", "0.5", "1e39", "123456789.123456789"]
)
def test_boxes_are_rounded_out_and_witnesses_in_by_less_than_a_step(
    dtype: Any, number: str
) -> None:
    exact = Fraction(number)
    text = HEAD + f"(assert (and (= X_0 {number}) (<= 0 X_1) (<= X_1 {number.lstrip('-')})))"
    (one,) = parse_vnnlib(text + "(assert (<= Y_0 0))").disjuncts
    low, high = one.around(dtype)
    assert low.dtype == dtype and Fraction(float(low[0])) <= exact
    assert np.isinf(high[0]) or Fraction(float(high[0])) >= exact
    assert np.nextafter(low[0], dtype(np.inf)) >= high[0]
    first, last = one.within(dtype)
    double = float(number)
    with np.errstate(over="ignore"):
        such = float(dtype(double)) == double
    if such and Fraction(repr(double)) == exact:
        # Fixed at the shortest digits of such a number.
        assert first[0] == last[0] == double and low[0] <= double <= high[0]
        assert one.contains(one.reading([Fraction(double), Fraction(0)], dtype))
    elif np.isinf(first[0]):  # beyond all numbers of the type
        assert first[0] > last[0]
    else:
        # The nearest number stands for it where it is none of the type.
        near = Fraction(float(first[0]))
        assert first[0] == last[0] == dtype(double)
        assert one.contains(one.reading([near, Fraction(0)], dtype))
        other = Fraction(float(np.nextafter(first[0], dtype(np.inf))))
        assert not one.contains(one.reading([other, Fraction(0)], dtype))
    assert one.contains([exact, Fraction(float(last[1]))])


def test_packed_files_are_read(tmp_path: Path) -> None:
    text = HEAD + BOX + "(assert (<= Y_0 0))\n"
    (tmp_path / "a.vnnlib").write_text(text)
    (tmp_path / "a.vnnlib.gz").write_bytes(gzip.compress(text.encode()))
    assert read_vnnlib(tmp_path / "a.vnnlib") == read_vnnlib(tmp_path / "a.vnnlib.gz")
    (tmp_path / "b.gz").write_bytes(gzip.compress(text.encode())[:-9])
    for bad in ("b.gz", "none"):
        with pytest.raises(InvalidInput, match=r"cannot be read|no such file"):
            read_vnnlib(tmp_path / bad)


def test_no_depth_is_too_deep() -> None:
    deep = 100_000
    nested = "(and " * deep + "(<= Y_0 0)" + ")" * deep
    sums = "(+ 0 " * deep + "Y_0" + ")" * deep
    (one,) = parse_vnnlib(f"{HEAD}{BOX}(assert {nested})(assert (<= {sums} 0))").disjuncts
    assert len(one.cases[0]) == 2
    with pytest.raises(InvalidInput, match=r"line 7, column \d+: this parenthesis is never closed"):
        parse_vnnlib(f"{HEAD}{BOX}(assert {'(or ' * deep}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(assert (<= Y_0 (* Y_0 Y_1)))", r"line 7, column 17: products of variables"),
        ("(assert (not (<= Y_0 1)))", "negation"),
        ("(assert\n (=> Y_0 1))", r"line 8, column 3: implication"),
        ("(assert (<= Y_9 1))", "line 7, column 13: 'Y_9' is neither"),
        ("(assert (<= Y_0 1)", "never closed"),
        (")", "closing parenthesis"),
        ("(assert (<= Y_0 (and)))", "this is a formula"),
        ("(assert Y_0)", "this is a number"),
        ("(assert (<= Y_0 1e999999))", "more than 2000 digits"),
        ("(assert (<= Y_0 (/ 1 0)))", "other than 0"),
        ("(assert (<= Y_0 1 2))", "two terms"),
        ("(assert ())", "operator"),
        ("(assert)", "one formula"),
        ("(declare-const Y_1 Real)", "declared twice"),
        ("(declare-const Y_4 Real)", "Y_4 is declared, others"),
        ("(declare-const Z Real)", "not 'Z'"),
        ("(vnnlib-version <2.0>)", "VNN-LIB 2"),
        ("(launch)", "unknown command"),
        ("(check-sat)(assert (<= Y_0 1))", "assert after check-sat"),
        ("(exit)(assert false)", "assert after exit"),
        ('(set-info :notes "a) (assert (<= Y_0 1))', "is never closed"),
        ("(set-info :notes |a) (assert (<= Y_0 1))", "is never closed"),
        ("(assert (<= Y_0 1))(assert (>= X_1 Y_0)) (assert (or (<= X_0 0) (<= Y_0 0)))", ""),
        (
            "(assert (or (<= Y_0 1) (<= Y_1 1) (<= Y_2 1) (<= Y_0 2)))" * 9,
            f"more than {MOST_CASES:,} cases",
        ),
    ],
)
def test_mistakes_are_named_with_line_and_column(text: str, message: str) -> None:
    if not message:
        parse_vnnlib(HEAD + BOX + text)
        return
    with pytest.raises(InvalidInput, match=message):
        parse_vnnlib(HEAD + BOX + text)


def test_inputs_need_bounds() -> None:
    with pytest.raises(InvalidInput, match="X_1 has no lower or no upper bound"):
        parse_vnnlib(HEAD + "(assert (and (<= X_0 1) (>= X_0 0) (<= X_1 1)))")


def test_a_literal_about_inputs_is_never_above_its_constraint() -> None:
    """Coefficients that are no doubles are rounded; the constant makes up for it on the box."""
    one_third = "0.3333333333333333333333"
    text = f"(assert (<= (+ (* {one_third} X_0) (* -0.1234567890123456789 X_1) (* 2.5 Y_1)) 0.7))"
    (one,) = parse_vnnlib(HEAD + BOX + text).disjuncts
    ((exact,),) = one.cases
    own = one.property(3, joined=True)
    row = [Fraction(v) for v in own.coef[0, 0].tolist()]
    const = Fraction(float(own.const[0, 0]))
    assert row[:3] == [0, Fraction(5), 0]  # scaled by 2: outputs are exact
    for x in ([-1, -2], [Fraction(3, 2), 1], [-1, 1], [Fraction(3, 2), -2], [0, 0]):
        at = [Fraction(v) for v in x]
        literal = sum(c * v for c, v in zip(row[3:], at, strict=True)) + const
        off = 2 * exact.value(at, [Fraction(0)] * 3) - literal
        assert 0 <= off < Fraction(1, 10**14)


def test_constraints_on_several_inputs_narrow_the_box_and_lose_no_point() -> None:
    text = HEAD + BOX + "(assert (<= (+ X_0 (* 3 X_1)) -5.5))(assert (>= (- X_0 X_1) 0.1))"
    (one,) = parse_vnnlib(text).disjuncts
    assert one.lower == (-1, -2) and one.upper[0] == Fraction(1, 2) and one.upper[1] == -1.5
    dice = random.Random(0)
    for _ in range(2000):
        x = [Fraction(dice.randint(-800, 800), 400) for _ in range(2)]
        asked = -1 <= x[0] <= 1.5 and -2 <= x[1] <= 1
        asked &= x[0] + 3 * x[1] <= Fraction(-11, 2) and x[0] - x[1] >= Fraction(1, 10)
        assert one.satisfied(x, [Fraction(0)] * 3) == asked
    assert not parse_vnnlib(HEAD + BOX + "(assert (>= (+ X_0 X_1) 2.6))").disjuncts


def test_a_strict_bound_is_no_witness_itself() -> None:
    text = "(assert (and (> X_0 0.5) (< X_0 1) (>= X_1 0) (<= X_1 1) (<= Y_0 0)))"
    (one,) = parse_vnnlib(HEAD + text).disjuncts
    low, high = one.within(np.float32)
    assert low[0] == np.nextafter(np.float32(0.5), np.float32(1)) and high[0] < 1 and high[1] == 1
    assert one.around(np.float64)[0][0] == 0.5  # what is proved has it
    zero = [Fraction(0)] * 3
    assert not one.satisfied([Fraction(1, 2), Fraction(0)], zero)
    assert one.satisfied([Fraction(3, 4), Fraction(0)], zero)
    assert not parse_vnnlib(HEAD + text.replace("(< X_0 1)", "(<= X_0 0.5)")).disjuncts


# -- VNN-LIB 2 ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_a_query_of_version_2_means_what_its_text_says(seed: int) -> None:
    """Against the tree it was written from and, for what the text is, the reader of the standard's
    authors."""
    vnnlib = pytest.importorskip("vnnlib")
    dice = random.Random(seed)
    drawn = (in_version_2(formula(dice, 3)) for _ in range(50))
    parts = [p for p in drawn if p is not None][:2]
    unlike = [["!=", "Y_1", "0.5"]] * (seed % 5 == 0)
    asserted = "".join(f"(assert {written(p)})\n" for p in (*parts, *unlike))
    for name, tensor in NAMES_2.items():
        asserted = asserted.replace(name, tensor)
    text = HEAD_2 + BOX_2 + asserted
    query = parse_vnnlib(text)
    theirs = vnnlib.parse_query_string(text)
    assert (query.inputs, query.outputs) == (2, 3)
    asserts = [one.expr for one in theirs.assertions]
    for _ in range(40):
        x = [Fraction(dice.randint(-9, 9), 4) for _ in range(2)]
        y = [Fraction(dice.randint(-9, 9), 4) for _ in range(3)]
        point = {f"X_{i}": v for i, v in enumerate(x)} | {f"Y_{i}": v for i, v in enumerate(y)}
        inside = -1 <= x[0] <= Fraction(3, 2) and -2 <= x[1] <= 1
        asked = inside and all(value(p, point) for p in (*parts, *unlike))
        assert query.satisfied(x, y) == asked == all(theirs_holds(e, x, y) for e in asserts)


def theirs_holds(tree: Any, x: list[Fraction], y: list[Fraction]) -> Any:
    """The truth of what the standard's own parser made of a text, by recursion."""
    kind = type(tree).__name__
    match kind:
        case "And" | "Or":
            own = [theirs_holds(t, x, y) for t in tree.args]
            return all(own) if kind == "And" else any(own)
        case "Var":
            return x[tree.indices[1]] if tree.name == "X" else y[tree.indices[0]]
        case "Negate":
            return -theirs_holds(tree.expr, x, y)
        case "Plus":
            return sum(theirs_holds(t, x, y) for t in tree.args)
        case "Minus":
            return theirs_holds(tree.head, x, y) - sum(theirs_holds(t, x, y) for t in tree.rest)
        case "Multiply":
            product = Fraction(1)
            for t in tree.args:
                product *= theirs_holds(t, x, y)
            return product
    if hasattr(tree, "lexeme"):
        return Fraction(tree.lexeme)
    a, b = theirs_holds(tree.lhs, x, y), theirs_holds(tree.rhs, x, y)
    return {
        "LessEqual": a <= b,
        "GreaterEqual": a >= b,
        "LessThan": a < b,
        "GreaterThan": a > b,
        "Equal": a == b,
        "NotEqual": a != b,
    }[kind]


ONE = "(assert (<= Y[0] 0.5))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD_2 + BOX_2 + "(assert (<= (* Y[0] X[0,0]) 1.0))", r"line 7, column 13: .*POLY"),
        (HEAD_2 + HEAD_2[23:].replace("f", "g", 1), r"line 6, column 1: several networks .*MNET"),
        (HEAD_2.replace("network f", "network f (equal-to g)"), r"line 2, column 20: .*MNET"),
        (
            HEAD_2.replace("(declare-output", '(declare-hidden H real [1] "h") (declare-output'),
            r"line 4, column 3: hidden nodes \(theory H\)",
        ),
        (
            HEAD_2.replace("(declare-output", "(declare-output Z real [1])(declare-output"),
            r"line 4, column 30: .*MIO",
        ),
        (HEAD_2.replace("[1,2]", "[1,2] initialized"), "initialises"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[3] 0.5))", r"line 7, column 13: place 3 is beyond"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[0,0] 0.5))", "Y has 1 axes"),
        (HEAD_2 + BOX_2 + "(assert (<= Y 0.5))", "Y has 1 axes"),
        (HEAD_2 + BOX_2 + "(assert (<= Z[0] 0.5))", "'Z.0.' is neither"),
        (HEAD_2 + BOX_2 + "(assert (<= 0.0 1.0))", "no type"),
        (HEAD_2 + BOX_2 + "(assert (= Y[0] 1.0))", "unknown operator '='"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[0 1.0))", "not one of a pair"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[0 1] 1.0))", "not one of a pair"),
        (HEAD_2.replace("[1,2]", "[1,2 0]") + BOX_2, "not one of a pair"),
        (HEAD_2 + BOX_2 + "(assert (<= [0] 1.0))", "an operator was|places stand|behind"),
        (HEAD_2 + ONE, r"X\[0,0\] has no lower or no upper bound"),
        (HEAD_2.replace("<2.0>", "<3.0>"), "line 1, column 1: VNN-LIB 3.0"),
        (HEAD_2.replace("<2.0>", "2.0"), "written as"),
        (HEAD_2.replace("[1,2]", "[1,0]"), "a shape was expected"),
        (HEAD_2.replace("[1,2]", "[999999999,999]"), "entries"),
        (HEAD_2.replace("Y real", "X real"), "X is declared twice"),
        ("(vnnlib-version <2.0>)" + ONE, "declared first"),
        ("(vnnlib-version <2.0>)", "no network"),
        (HEAD_2 + BOX_2 + HEAD_2[23:], "before anything is asserted"),
        (HEAD_2 + BOX_2 + "(check-sat)", "unknown command"),
    ],
)
def test_mistakes_in_version_2_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_vnnlib(text)


def test_tensors_without_axes_have_no_places() -> None:
    text = HEAD_2.replace("[3]", "[]") + BOX_2 + "(assert (<= Y -0.5))"
    query = parse_vnnlib(text)
    assert query.outputs == 1 and query.declared is not None
    assert (query.declared.version, query.declared.network) == ("2.0", "f")
    assert query.satisfied([Fraction(0)] * 2, [Fraction(-1, 2)])


def test_cases_that_no_input_satisfies_are_left_out() -> None:
    text = HEAD + BOX + "(assert (or (>= X_0 2) (<= 1 0) (and (<= X_0 0) (<= Y_0 0))))"
    (one,) = parse_vnnlib(text).disjuncts
    assert one.upper == (0, 1)


@pytest.mark.parametrize("quote", ['"', "|"])
def test_text_in_quotes_is_no_part_of_a_query(quote: str) -> None:
    hidden = f"(set-info :notes {quote}; a) (assert (<= Y_0 -5)) (set-info :b c{quote})"
    (one,) = parse_vnnlib(HEAD + BOX + hidden + "(assert (<= Y_0 3))").disjuncts
    ((only,),) = one.cases
    assert only.const == -3


def test_a_comment_ends_with_its_line_however_lines_end() -> None:
    for end in ("\n", "\r\n", "\r"):
        (one,) = parse_vnnlib(HEAD + BOX + f"; a comment{end}(assert (<= Y_0 3)){end}").disjuncts
        assert [len(case) for case in one.cases] == [1]
