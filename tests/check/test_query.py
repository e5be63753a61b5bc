"""The checker's reader of queries, against frown's and against the trees that texts are written
from; and that what it calls covered is covered."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from formulas import BOX, BOX_2, HEAD, HEAD_2, NAMES_2, Tree, formula, in_version_2, value, written
from frown.errors import InvalidInput
from frown.problem.vnnlib import parse_vnnlib, read_vnnlib
from frown_check.container import Literals
from frown_check.cover import Part, uncovered
from frown_check.errors import Refused
from frown_check.query import Query, narrowed, read_query

LOOSE = {"<": "<=", ">": ">="}


def loosened(tree: Tree) -> Tree:
    """A formula without strict comparisons: they are <= and >=."""
    if isinstance(tree, str):
        return tree
    if tree[0] == "!=":
        return ["or", ["<=", *tree[1:]], [">=", *tree[1:]]]
    return [LOOSE.get(tree[0], tree[0]), *(loosened(t) for t in tree[1:])]


def drawn(seed: int) -> tuple[str, list[Tree], random.Random]:
    """A query of version 1 or 2, with the trees of its assertions."""
    dice = random.Random(seed)
    if seed % 2:
        parts: list[Tree] = [formula(dice, 3) for _ in range(2)]
        return HEAD + BOX + "".join(f"(assert {written(p)})" for p in parts), parts, dice
    every = (in_version_2(formula(dice, 3)) for _ in range(60))
    parts = [p for p in every if p is not None][:2]
    asserted = "".join(f"(assert {written(p)}) ; a remark\n" for p in parts)
    for name, tensor in NAMES_2.items():
        asserted = asserted.replace(name, tensor)
    return HEAD_2 + BOX_2 + asserted, parts, dice


def point(dice: random.Random) -> tuple[list[Fraction], list[Fraction]]:
    x = [Fraction(dice.randint(-9, 9), 4) for _ in range(2)]
    return x, [Fraction(dice.randint(-9, 9), 4) for _ in range(3)]


def in_some_case(query: Query, x: list[Fraction], y: list[Fraction]) -> bool:
    every = [*x, *y]

    def holds(constraint: Any) -> bool:
        return sum(c * every[k] for k, c in constraint.coef) + constraint.const <= 0

    return any(
        all(a <= v <= b for a, v, b in zip(case.box.lower, x, case.box.upper, strict=True))
        and all(map(holds, case.constraints))
        for case in query.cases()
    )


@pytest.mark.parametrize("seed", range(300))
def test_cases_are_what_the_text_says_and_what_frown_reads(seed: int) -> None:
    text, parts, dice = drawn(seed)
    query, ours = read_query(text.encode()), parse_vnnlib(text)
    assert (query.inputs, query.outputs) == (ours.inputs, ours.outputs)
    loose = [loosened(p) for p in parts]
    for _ in range(40):
        x, y = point(dice)
        named = {f"X_{i}": v for i, v in enumerate(x)} | {f"Y_{i}": v for i, v in enumerate(y)}
        inside = -1 <= x[0] <= Fraction(3, 2) and -2 <= x[1] <= 1
        exact, found = inside and all(value(p, named) for p in parts), in_some_case(query, x, y)
        assert ours.satisfied(x, y) == exact
        assert exact <= found <= (inside and all(value(p, named) for p in loose))


@pytest.mark.parametrize("seed", range(100))
def test_what_one_reader_takes_the_other_does_not_read_otherwise(seed: int) -> None:
    """Texts with a character changed, left out or put in: where both read one, they agree."""
    text, _, dice = drawn(seed)
    for _ in range(30):
        at = dice.randrange(len(text))
        new = dice.choice(["", "(", ")", ";", '"', "|", "\\", "[", "]", ",", "-", "0", "\n", "X"])
        changed = text[:at] + new + text[at + dice.randint(0, 1) :]
        try:
            ours, query = parse_vnnlib(changed), read_query(changed.encode())
            cases = list(query.cases())
        except (InvalidInput, Refused):
            continue
        assert (query.inputs, query.outputs) == (ours.inputs, ours.outputs)
        for _ in range(5):
            x = [Fraction(dice.randint(-9, 9), 4) for _ in range(ours.inputs)]
            y = [Fraction(dice.randint(-9, 9), 4) for _ in range(ours.outputs)]
            assert not ours.satisfied(x, y) or in_some_case(query, x, y), changed
        assert cases or not any(one.cases for one in ours.disjuncts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + BOX + '(set-info :a "b\\") (assert (<= Y_0 1)) (set-info :c "d")', "pair"),
        (HEAD + BOX + "(assert (<= Y_0 1)", "never closed"),
        (HEAD + BOX + "(assert (<= Y_0 1)))", "never opened"),
        (HEAD + BOX + "(assert (=> (<= Y_0 1) (<= Y_1 1)))", "operator"),
        (HEAD + BOX + "(assert (<= (* Y_0 Y_1) 1))", "products"),
        (HEAD + BOX + "(assert (<= Y_0 Y_7))", "unknown name 'Y_7'"),
        (HEAD + BOX + "(assert (<= Y_0 1e9999999))", "unknown name"),
        (HEAD + BOX + f"(assert (<= (* {'1e2000 ' * 60} Y_0) 1))", "bits"),
        (HEAD + "(assert (<= Y_0 1))", "no lower or no upper bound"),
        (HEAD + BOX + "(exit)(assert (<= Y_0 1))", "asserts nothing so"),
        (HEAD + BOX + "(launch)", "unknown command"),
        (HEAD + BOX + "(declare-const Y_0 Real)", "declares no variable so"),
        (HEAD + BOX + "(declare-const Y_4 Real)", "one by one"),
        ("(assert (<= Y_0 1))" + HEAD + BOX, "unknown name"),
        (HEAD + BOX + "(assert " + "(and " * 300 + ")" * 300 + ")", "deeper"),
        (HEAD + BOX + "(assert (or (<= Y_0 1) (<= Y_1 1)))" * 40, "cases"),
        (HEAD_2.replace("<2.0>", "<3.0>") + BOX_2, "no version"),
        (HEAD_2 + HEAD_2[23:] + BOX_2, "something else than an assertion"),
        (HEAD_2.replace("[1,2]", "[1,2] initialized") + BOX_2, "declare-input"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[3] 0.5))", "beyond its tensor"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[0,0] 0.5))", "no entry"),
        (HEAD_2 + BOX_2 + "(assert (<= Y[0 1] 0.5))", "not one of a pair"),
        (HEAD_2.replace("[1,2]", "[1,2 0]") + BOX_2, "not one of a pair"),
        (HEAD_2 + BOX_2 + "(assert (<= 1.0 0.5))", "numbers alone"),
        (HEAD_2 + BOX_2 + "(assert (= Y[0] 0.5))", "operator"),
    ],
)
def test_what_is_not_understood_is_refused(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frown_check.query.MOST_CASES", 3000)
    with pytest.raises(Refused, match=reason):
        list(read_query(text.encode()).cases())


def test_many_alternatives_of_nothing_end() -> None:
    """An alternative that is empty makes no cases, and no endless search for some."""
    many = "(assert (or (<= Y_0 1) (<= Y_1 1)))" * 60
    query = read_query((HEAD + BOX + many + "(assert (or))").encode())
    assert list(query.cases()) == []


def test_numbers_that_grow_with_every_term_are_refused() -> None:
    """Fractions of many denominators have a sum that nobody can wait for."""
    every = range(60)
    text = "".join(f"(declare-const X_{i} Real)" for i in every) + "(declare-const Y_0 Real)"
    for i in every:
        unit = f"(/ 1 {10**1900 + 2 * i + 1})"
        text += f"(assert (>= X_{i} (- {unit}))) (assert (<= X_{i} {unit}))"
    text += f"(assert (<= (+ {' '.join(f'X_{i}' for i in every)}) 0)) (assert (<= Y_0 0))"
    with pytest.raises(Refused, match="numbers of more than 65536 bits"):
        list(read_query(text.encode()).cases())
    with pytest.raises(InvalidInput, match="numbers of more than 65536 bits"):
        parse_vnnlib(text)


def test_boxes_are_narrowed_as_far_as_frown_narrows_them() -> None:
    """Boxes that frown proves contain the checker's: its rounds go at least as far."""
    dice = random.Random(3)
    for _ in range(60):
        terms = [
            " ".join(f"(* {dice.uniform(-1, 1):.3f} X_{i})" for i in range(2)) for _ in range(2)
        ]
        text = HEAD + BOX + "".join(f"(assert (<= (+ {t}) -{dice.random():.2f}))" for t in terms)
        ours, theirs = parse_vnnlib(text).disjuncts, list(read_query(text.encode()).cases())
        assert len(theirs) <= len(ours)
        for one, case in zip(ours, theirs):
            assert all(a <= b for a, b in zip(one.lower, case.box.lower, strict=True))
            assert all(a >= b for a, b in zip(one.upper, case.box.upper, strict=True))
    assert narrowed([Fraction(1)], [Fraction(0)], []) is None


# -- what is covered ------------------------------------------------------------------


@dataclass(eq=False)
class Proved:
    """Boxes and clauses as a certificate has them, which nobody has proved."""

    lower: np.ndarray
    upper: np.ndarray
    literals: Literals

    def part(self, query: Query) -> Part:
        region = SimpleNamespace(exact=True, lower=self.lower, upper=self.upper)
        fields = {"region": region, "literals": self.literals, "normalisation": None, "shape": (2,)}
        return Part(SimpleNamespace(**fields), query)  # type: ignore[arg-type]


def proved_of(text: str) -> list[Proved]:
    """The boxes and clauses that frown would prove of a query."""
    query, found = parse_vnnlib(text), []
    for one in query.disjuncts:
        own = one.property(3, joined=True)
        coef = own.coef[0].numpy()
        literals = Literals(coef[:, :3], own.const[0].numpy(), own.clause.numpy(), coef[:, 3:])
        found.append(Proved(*one.around(np.float64), literals))
    return found


def lie(proved: list[Proved], dice: random.Random) -> list[Proved]:
    """A copy with something changed."""
    found = [
        Proved(p.lower.copy(), p.upper.copy(), Literals(*(a.copy() for a in literals_of(p))))
        for p in proved
    ]
    one = dice.choice(found)
    t = dice.randrange(len(one.literals.const))
    match dice.choice(["drop", "low", "high", "flip", "const", "coef", "input"]):
        case "drop":
            found.remove(one)
        case "low":
            one.lower[dice.randrange(2)] += 2.0**-20
        case "high":
            one.upper[dice.randrange(2)] -= 2.0**-20
        case "flip":
            one.literals.coef[t] *= -1
        case "const":
            one.literals.const[t] += 2.0**-20
        case "coef":
            one.literals.coef[t, dice.randrange(3)] += 2.0**-20
        case "input":
            assert one.literals.inputs is not None
            one.literals.inputs[t, dice.randrange(2)] += 2.0**-20
    return found


def literals_of(one: Proved) -> tuple[np.ndarray, ...]:
    own = one.literals
    assert own.inputs is not None
    return own.coef, own.const, own.clause, own.inputs


def refuted(proved: list[Proved], x: list[Fraction], y: list[Fraction]) -> bool:
    """True if some part says of an input with these outputs that it cannot be."""
    for one in proved:
        inside = all(Fraction(a) <= v for a, v in zip(one.lower.tolist(), x, strict=True))
        inside &= all(Fraction(b) >= v for b, v in zip(one.upper.tolist(), x, strict=True))
        coef, const, clause, inputs = (a.tolist() for a in literals_of(one))
        above = [
            sum(Fraction(c) * v for c, v in zip([*a, *b], [*y, *x], strict=True)) + Fraction(d) > 0
            for a, b, d in zip(coef, inputs, const, strict=True)
        ]
        fails = [
            not any(h for h, c in zip(above, clause, strict=True) if c == k) for k in set(clause)
        ]
        if inside and any(fails):
            return True
    return False


@pytest.mark.parametrize("seed", range(150))
def test_what_is_covered_refutes_every_point_that_satisfies_the_query(seed: int) -> None:
    text, _, dice = drawn(seed)
    query, ours = read_query(text.encode()), parse_vnnlib(text)
    proved = proved_of(text)
    points = [p for p in (point(dice) for _ in range(150)) if ours.satisfied(*p)]
    parts = [p.part(query) for p in proved]
    if all(case for one in ours.disjuncts for case in one.cases):
        assert uncovered(query, parts)[1] is None  # what frown proves is enough
        assert all(refuted(proved, *p) for p in points)
    if not proved:
        return
    for _ in range(12):
        changed = lie(proved, dice)
        if uncovered(query, [p.part(query) for p in changed])[1] is None:
            assert all(refuted(changed, *p) for p in points)


def test_a_change_of_any_kind_is_seen() -> None:
    """A part less, a smaller box or a stronger literal covers less if nothing is redundant."""
    text = HEAD + BOX + "(assert (or (and (<= X_0 0) (<= Y_0 (+ X_1 1))) (>= Y_1 (+ X_0 2))))"
    query, proved = read_query(text.encode()), proved_of(text)
    parts = [p.part(query) for p in proved]
    assert uncovered(query, parts)[1] is None
    for k in range(len(proved)):
        assert uncovered(query, parts[:k] + parts[k + 1 :])[1] is not None
        for side, by in (("lower", 2.0**-40), ("upper", -(2.0**-40))):
            for feature in range(2):
                shrunk = lie_at(proved, k, side, feature, by)
                assert uncovered(query, [p.part(query) for p in shrunk])[1] is not None
        for name in ("coef", "const", "inputs"):
            raised = [*proved]
            values = dict(zip(("coef", "const", "clause", "inputs"), literals_of(proved[k])))
            sign = -1 if name == "coef" else 1
            values[name] = sign * values[name] + (0 if name == "coef" else 2.0**-40)
            own = Literals(values["coef"], values["const"], values["clause"], values["inputs"])
            raised[k] = Proved(proved[k].lower, proved[k].upper, own)
            assert uncovered(query, [p.part(query) for p in raised])[1] is not None, name


def lie_at(proved: list[Proved], k: int, side: str, feature: int, by: float) -> list[Proved]:
    ends = {"lower": proved[k].lower.copy(), "upper": proved[k].upper.copy()}
    ends[side][feature] += by
    changed = Proved(ends["lower"], ends["upper"], proved[k].literals)
    return [*proved[:k], changed, *proved[k + 1 :]]


def test_packed_queries_are_read(tmp_path: Path) -> None:
    import gzip

    text = (HEAD + BOX + "(assert (<= Y_0 1))").encode()
    assert list(read_query(gzip.compress(text)).cases()) == list(read_query(text).cases())
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    assert read_vnnlib(tmp_path / "a.gz").inputs == 2
    with pytest.raises(Refused, match="unpacked"):
        read_query(gzip.compress(text)[:-5])
    with pytest.raises(Refused, match="UTF-8"):
        read_query(b"\xff")
