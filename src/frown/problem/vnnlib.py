"""Queries in VNN-LIB 1.0: is there an input of these boxes whose outputs satisfy these constraints?

All numbers are exact rationals. A query is brought into disjunctive form: a disjunct is a box of
inputs with cases, each a conjunction of linear constraints; it is satisfied where all constraints
of some case hold. So a disjunct is refuted by proving, on its box, the property that has a clause
for every case.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from math import inf, lcm, prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from frown.errors import InvalidInput
from frown.problem.property import LinearProperty

MOST_BYTES = 1 << 28  # of a query, unpacked
MOST_CASES = 100_000  # of the disjunctive form
MOST_CONSTRAINTS = 20_000_000  # in all cases together
MOST_DIGITS = 2_000  # of a number, and the largest exponent
MOST_BITS = 1 << 16  # of a coefficient, after sums and products

_TOKEN = re.compile(
    r"\s+|;[^\n\r]*|(?P<token>[()]|\"(?:[^\"]|\"\")*\"|\|[^|]*\||[^\s();\"|]+|[\"|])"
)
_NUMBER = re.compile(r"[+-]?(?P<digits>\d+\.?\d*|\.\d+)(?:[eE](?P<exponent>[+-]?\d+))?")
_VARIABLE = re.compile(r"(?P<kind>[XY])_(?P<index>0|[1-9]\d{0,8})")
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
_BEYOND = {
    "not": "negation",
    "=>": "implication",
    "xor": "exclusive or",
    "<": "strict comparisons",
    ">": "strict comparisons",
    "distinct": "disequality",
    "ite": "conditional terms",
    "let": "local names",
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """inputs . x + outputs . y + const <= 0, with the coefficients that are not 0."""

    inputs: tuple[tuple[int, Fraction], ...]
    outputs: tuple[tuple[int, Fraction], ...]
    const: Fraction

    @property
    def mixed(self) -> bool:
        """True if it is about inputs beyond the bounds of a single one."""
        return bool(self.inputs)

    def holds(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        """True if a point satisfies it, exactly."""
        return self.value(x, y) <= 0

    def value(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> Fraction:
        """The left side at a point."""
        total = self.const
        for coefficients, values in ((self.inputs, x), (self.outputs, y)):
            for i, c in coefficients:
                total += c * values[i]
        return total


@dataclass(frozen=True, slots=True)
class Disjunct:
    """A closed box of inputs, and the cases of which one must hold there."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    cases: tuple[tuple[Constraint, ...], ...]

    def contains(self, x: Sequence[Fraction]) -> bool:
        """True if a point lies in the box, exactly."""
        return all(a <= v <= b for a, v, b in zip(self.lower, x, self.upper, strict=True))

    def satisfied(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        """True if an input with these outputs satisfies the disjunct, exactly."""
        return self.contains(x) and any(all(c.holds(x, y) for c in case) for case in self.cases)

    def around(self, dtype: type[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """The smallest box of such numbers that contains this one, and the doubles that fixed
        inputs are written as: what has to be proved."""
        low = np.array([_rounded(v, dtype, -inf) for v in self.lower], dtype)
        high = np.array([_rounded(v, dtype, inf) for v in self.upper], dtype)
        for i in self._fixed():
            written = float(self.lower[i])
            low[i], high[i] = min(low[i], written), max(high[i], written)
        return low, high

    def within(self, dtype: type[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """The largest box of such numbers in this one, where witnesses lie; empty (a lower end
        above its upper one) where no such number lies between two bounds.

        An input that is fixed may be written as the shortest digits of a double that the type has,
        which stand for another number by a hair: then it is that double (`reading`).
        """
        low = np.array([_rounded(v, dtype, inf) for v in self.lower], dtype)
        high = np.array([_rounded(v, dtype, -inf) for v in self.upper], dtype)
        for i in self._fixed():
            written = float(self.lower[i])
            with np.errstate(over="ignore"):
                if float(dtype(written)) == written:
                    low[i] = high[i] = written
        return low, high

    def reading(self, x: Sequence[Fraction]) -> list[Fraction]:
        """An input as the query has it: fixed ones that are the doubles they are written as have
        the query's own numbers."""
        found = list(x)
        for i in self._fixed():
            if found[i] == Fraction(float(self.lower[i])):
                found[i] = self.lower[i]
        return found

    def _fixed(self) -> Iterator[int]:
        """The inputs with one value, written as the shortest digits of a double."""
        for i, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            if low == high and abs(low) < 1e300 and Fraction(repr(float(low))) == low:
                yield i

    def property(self, outputs: int) -> LinearProperty:
        """A property, in double precision, that where it holds refutes the disjunct.

        Literals are scaled to whole coefficients and their constants rounded down, so that
        what is proved of it is true of the query's own rationals.

        Raises InvalidInput where constraints mix inputs and outputs, or a coefficient has no
        exact counterpart.
        """
        coef, const, above, clause = [], [], [], []
        for k, case in enumerate(self.cases):
            for one in case or (Constraint((), (), Fraction(0)),):
                if one.mixed:
                    raise InvalidInput(
                        "constraints that mix inputs and outputs, or several inputs, have no "
                        "bounds yet: only the theory of input boxes and linear output constraints"
                    )
                scale = lcm(*(c.denominator for _, c in one.outputs))
                row = [0.0] * outputs
                for i, c in one.outputs:
                    whole = int(c * scale)
                    if abs(whole) > 1 << 53:
                        raise InvalidInput(
                            f"the coefficient {float(c):.6g} of Y_{i} has no exact counterpart in "
                            "double precision"
                        )
                    row[i] = float(whole)
                coef.append(row)
                const.append(_rounded(one.const * scale, np.float64, -inf))
                above.append(_rounded(one.const * scale, np.float64, inf))
                clause.append(k)
        return LinearProperty(
            torch.tensor(coef, dtype=torch.float64)[None],
            torch.tensor(const, dtype=torch.float64)[None],
            torch.tensor(clause),
            above=torch.tensor(above, dtype=torch.float64)[None],
        )


@dataclass(frozen=True, slots=True)
class VnnLib:
    """A query: satisfied by an input, with its outputs, that satisfies one of the disjuncts."""

    inputs: int
    outputs: int
    disjuncts: tuple[Disjunct, ...]

    def satisfied(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        """True if an input with these outputs satisfies the query, exactly."""
        return any(one.satisfied(x, y) for one in self.disjuncts)


def read_vnnlib(path: str | Path) -> VnnLib:
    """The query of a file in VNN-LIB 1.0, or of one packed by gzip.

    Raises InvalidInput for what is no query, with line and column; also for what is one of
    another theory (products of variables, negation, strict comparisons) or of VNN-LIB 2.
    """
    try:
        return parse_vnnlib(_text(Path(path)))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _text(path: Path) -> str:
    """The text of a file, unpacked."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as file:
                    content = file.read(MOST_BYTES + 1)
            else:
                content = raw.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"it cannot be read: {error}") from None
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"it has more than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("it is no text in UTF-8") from None


def read_outputs(path: str | Path) -> tuple[int, Disjunct]:
    """The outputs and cases (`parse_outputs`) of a file; raises what `read_vnnlib` does."""
    try:
        return parse_outputs(_text(Path(path)))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def parse_vnnlib(text: str) -> VnnLib:
    """The query that a text in VNN-LIB 1.0 asks; raises what `read_vnnlib` does."""
    declared, everything = _script(text)
    inputs, outputs = _count(declared, "X"), _count(declared, "Y")
    return VnnLib(inputs, outputs, tuple(_disjuncts(everything, inputs)))


def parse_outputs(text: str) -> tuple[int, Disjunct]:
    """The number of outputs, and the cases of them that a text in VNN-LIB 1.0 tells, without any
    inputs: their bounds, which must be the same in all cases, are left aside.

    Raises InvalidInput for what is no such text, also for constraints that mix inputs and outputs.
    """
    declared, everything = _script(text)
    outputs, cases, bounds = _count(declared, "Y"), [], set[_Case]()
    for case in everything:
        if any(c.outputs and c.inputs for c in case) or any(len(c.inputs) > 1 for c in case):
            raise InvalidInput("a property is about outputs, and this one mixes inputs into it")
        bounds.add(tuple(c for c in case if c.inputs))
        own = tuple(c for c in case if not c.inputs)
        if not any(not c.outputs and c.const > 0 for c in own):
            cases.append(tuple(c for c in own if c.outputs))
    if len(bounds) > 1:
        raise InvalidInput(
            "bounds of the inputs differ from case to case: a property is about outputs alone"
        )
    if not cases or not all(cases):
        raise InvalidInput("there is no condition on the outputs Y_0, Y_1, ... in it")
    return outputs, Disjunct((), (), tuple(dict.fromkeys(cases)))


def _script(text: str) -> tuple[dict[str, int], _Cases]:
    """The variables that a text declares, and the cases that it asserts."""
    reader = _Reader(text)
    declared: dict[str, int] = {}
    asserted: list[_Cases] = []
    asked = ""  # the command that asked, or ended the script
    for command in reader.commands():
        if isinstance(command, _Atom) or not command.items or isinstance(command.items[0], _List):
            raise reader.wrong(command, "a command was expected, such as (assert ...)")
        name, rest = command.items[0].text, command.items[1:]
        if name == "vnnlib-version" or name.startswith("declare-network"):
            raise reader.wrong(command, "a query of VNN-LIB 2; only VNN-LIB 1.0 is read")
        if asked and name in ("declare-const", "declare-fun", "assert"):
            raise reader.wrong(command, f"{name} after {asked}, which it is no part of")
        if name in ("declare-const", "declare-fun"):
            _declare(reader, command, rest, declared)
        elif name == "assert":
            if len(rest) != 1:
                raise reader.wrong(command, "assert takes one formula")
            asserted.append(_cases(reader, rest[0], declared))
        elif name not in _IGNORED:
            raise reader.wrong(command, f"unknown command {name[:40]!r}")
        elif name in ("check-sat", "exit"):
            asked = name
    return declared, _conjoined(reader, asserted, None)


def _count(declared: dict[str, int], kind: str) -> int:
    """The number of variables of a kind, which are declared from 0 on."""
    own = sorted(i for v, i in declared.items() if v[0] == kind)
    if own != list(range(len(own))) or not own:
        told = f"{kind}_{own[-1]} is declared, others before it are not" if own else "none is"
        raise InvalidInput(f"variables {kind}_0, {kind}_1, ... must be declared: {told}")
    return len(own)


# -- text -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Atom:
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _List:
    items: list[_Atom | _List]
    at: int


_Expression = _Atom | _List


class _Reader:
    """A text as nested lists, and where mistakes stand in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def wrong(self, where: _Expression | int | None, what: str) -> InvalidInput:
        if where is None:
            return InvalidInput(what)
        at = where if isinstance(where, int) else where.at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return InvalidInput(f"line {line}, column {column}: {what}")

    def commands(self) -> Iterator[_Expression]:
        """The outermost expressions, one after the other."""
        open_: list[_List] = []
        for match in _TOKEN.finditer(self.text):
            token = match["token"]
            if token is None:
                continue
            if token in ('"', "|"):
                raise self.wrong(match.start(), f"this {token} is never closed")
            if token == "(":
                open_.append(_List([], match.start()))
                continue
            if token == ")":
                if not open_:
                    raise self.wrong(match.start(), "a closing parenthesis without an opening one")
                done: _Expression = open_.pop()
            else:
                done = _Atom(token, match.start())
            if open_:
                open_[-1].items.append(done)
            else:
                yield done
        if open_:
            raise self.wrong(open_[-1], "this parenthesis is never closed")


def _declare(
    reader: _Reader, command: _List, rest: Sequence[_Expression], declared: dict[str, int]
) -> None:
    if not rest or isinstance(rest[0], _List):
        raise reader.wrong(command, "a name was expected")
    match = _VARIABLE.fullmatch(rest[0].text)
    kind = rest[-1]
    if match is None:
        raise reader.wrong(
            rest[0], f"variables are X_0, X_1, ..., Y_0, ..., not {rest[0].text[:40]!r}"
        )
    if len(rest) < 2 or isinstance(kind, _List) or kind.text not in ("Real", "real"):
        raise reader.wrong(command, "variables are declared as (declare-const X_0 Real)")
    if rest[0].text in declared:
        raise reader.wrong(rest[0], f"{rest[0].text} is declared twice")
    declared[rest[0].text] = int(match["index"])


# -- meaning --------------------------------------------------------------------------

_Case = tuple[Constraint, ...]
_Cases = list[_Case]


@dataclass(slots=True)
class _Term:
    """A linear term; its coefficients are taken over by the sum it enters."""

    coef: dict[str, Fraction]
    const: Fraction


_Value = _Term | list[_Case]


def _cases(reader: _Reader, formula: _Expression, declared: dict[str, int]) -> _Cases:
    """A formula in disjunctive form. However deep it is nested, no call is."""
    waiting: list[tuple[_List, list[_Value]]] = []
    current: _Expression = formula
    while True:
        if isinstance(current, _List) and (not waiting or waiting[-1][0] is not current):
            if not current.items or isinstance(current.items[0], _List):
                raise reader.wrong(current, "an operator was expected after the parenthesis")
            waiting.append((current, []))
        elif isinstance(current, _Atom):
            value: _Value = _atom(reader, current, declared)
            if not waiting:
                return _formula(reader, current, value)
            waiting[-1][1].append(value)
        above, values = waiting[-1]
        while len(values) == len(above.items) - 1:
            value = _applied(reader, above, values)
            waiting.pop()
            if not waiting:
                return _formula(reader, above, value)
            waiting[-1][1].append(value)
            above, values = waiting[-1]
        current = above.items[1 + len(values)]


def _atom(reader: _Reader, atom: _Atom, declared: dict[str, int]) -> _Value:
    if atom.text in ("true", "false"):
        return [()] if atom.text == "true" else []
    number = _NUMBER.fullmatch(atom.text)
    if number is not None:
        if len(number["digits"]) > MOST_DIGITS or abs(int(number["exponent"] or 0)) > MOST_DIGITS:
            raise reader.wrong(atom, f"a number of more than {MOST_DIGITS} digits")
        return _Term({}, Fraction(atom.text))
    if atom.text not in declared:
        raise reader.wrong(atom, f"{atom.text[:40]!r} is neither a number nor declared before")
    return _Term({atom.text: Fraction(1)}, Fraction(0))


def _formula(reader: _Reader, where: _Expression, value: _Value) -> _Cases:
    if isinstance(value, _Term):
        raise reader.wrong(where, "a formula was expected, and this is a number")
    return value


def _applied(reader: _Reader, list_: _List, values: list[_Value]) -> _Value:
    """The result of an operator on its operands."""
    name = list_.items[0]
    assert isinstance(name, _Atom)
    if name.text in _BEYOND:
        raise reader.wrong(
            name, f"{_BEYOND[name.text]} ({name.text}) are beyond the theory read here"
        )
    if name.text in ("and", "or"):
        found = [_formula(reader, e, v) for e, v in zip(list_.items[1:], values, strict=True)]
        if name.text == "and":
            return _conjoined(reader, found, list_)
        _check(reader, sum(map(len, found)), 0, list_)
        return list(chain.from_iterable(found))
    terms = []
    for expression, value in zip(list_.items[1:], values, strict=True):
        if not isinstance(value, _Term):
            raise reader.wrong(
                expression, "a number or variable was expected, and this is a formula"
            )
        terms.append(value)
    if name.text in ("<=", ">=", "="):
        if len(terms) < 2:
            raise reader.wrong(list_, f"{name.text} compares two terms")
        if len(terms) > 2:
            raise reader.wrong(list_, f"{name.text} compares two terms, not {len(terms)}")
        a, b = terms
        signs = {"<=": (1,), ">=": (-1,), "=": (1, -1)}[name.text]
        difference = _sum(reader, list_, [a, _scaled(reader, list_, b, Fraction(-1))])
        return [tuple(_constraint(difference, sign) for sign in signs)]
    if not terms:
        raise reader.wrong(list_, f"{name.text[:40]!r} has no operands")
    if name.text == "+":
        return _sum(reader, list_, terms)
    if name.text == "-":
        rest = [_scaled(reader, list_, t, Fraction(-1)) for t in terms[1:]]
        return (
            _sum(reader, list_, [terms[0], *rest])
            if rest
            else _scaled(reader, list_, terms[0], Fraction(-1))
        )
    if name.text == "*":
        variable = [t for t in terms if t.coef]
        if len(variable) > 1:
            raise reader.wrong(list_, "products of variables are beyond the theory of linear terms")
        factor = Fraction(1)
        for t in terms:
            if not t.coef:
                factor = _bounded(reader, list_, factor * t.const)
        return _scaled(reader, list_, variable[0], factor) if variable else _Term({}, factor)
    if name.text == "/":
        if len(terms) != 2 or terms[1].coef or terms[1].const == 0:
            raise reader.wrong(list_, "terms are divided by one number other than 0")
        return _scaled(reader, list_, terms[0], 1 / terms[1].const)
    raise reader.wrong(name, f"unknown operator {name.text[:40]!r}")


def _bounded(reader: _Reader, where: _List, number: Fraction) -> Fraction:
    if number.numerator.bit_length() + number.denominator.bit_length() > MOST_BITS:
        raise reader.wrong(where, f"a coefficient of more than {MOST_BITS} bits")
    return number


def _scaled(reader: _Reader, where: _List, term: _Term, factor: Fraction) -> _Term:
    coef = {v: _bounded(reader, where, c * factor) for v, c in term.coef.items() if factor}
    return _Term(coef, _bounded(reader, where, term.const * factor))


def _sum(reader: _Reader, where: _List, terms: list[_Term]) -> _Term:
    # Into the longest: a deep sum of many variables takes no longer than a flat one.
    most = max(range(len(terms)), key=lambda k: len(terms[k].coef))
    coef, const = terms[most].coef, terms[most].const
    for k, term in enumerate(terms):
        if k != most:
            const = _bounded(reader, where, const + term.const)
            for v, c in term.coef.items():
                total = _bounded(reader, where, coef.get(v, Fraction(0)) + c)
                if total:
                    coef[v] = total
                else:
                    coef.pop(v, None)
    return _Term(coef, const)


def _constraint(term: _Term, sign: int) -> Constraint:
    own: dict[str, list[tuple[int, Fraction]]] = {"X": [], "Y": []}
    for v, c in term.coef.items():
        own[v[0]].append((int(v[2:]), sign * c))
    return Constraint(tuple(sorted(own["X"])), tuple(sorted(own["Y"])), sign * term.const)


def _conjoined(reader: _Reader, parts: list[_Cases], where: _List | None) -> _Cases:
    """All parts at once: every choice of a case from each."""
    certain = tuple(chain.from_iterable(part[0] for part in parts if len(part) == 1))
    choices = [part for part in parts if len(part) != 1]
    count = prod(map(len, choices))
    longest = len(certain) + sum(max(map(len, part), default=0) for part in choices)
    _check(reader, count, count * longest, where)
    return [(*certain, *chain.from_iterable(choice)) for choice in product(*choices)]


def _check(reader: _Reader, cases: int, constraints: int, where: _List | None) -> None:
    if cases > MOST_CASES or constraints > MOST_CONSTRAINTS:
        raise reader.wrong(
            where,
            f"written out, the query has more than {MOST_CASES:,} cases or {MOST_CONSTRAINTS:,} "
            "constraints",
        )


def _disjuncts(cases: _Cases, inputs: int) -> Iterator[Disjunct]:
    """Cases of one box together; those that no input satisfies are left out."""
    boxes: dict[tuple[tuple[Fraction, ...], tuple[Fraction, ...]], list[_Case]] = {}
    for case in cases:
        lower: list[Fraction | None] = [None] * inputs
        upper: list[Fraction | None] = [None] * inputs
        rest, empty = [], False
        for one in case:
            if not one.inputs and not one.outputs:
                empty |= one.const > 0
            elif one.outputs or len(one.inputs) > 1:
                rest.append(one)
            else:
                ((i, c),) = one.inputs
                bound = -one.const / c  # c x + const <= 0
                low, high = lower[i], upper[i]
                if c > 0:
                    upper[i] = bound if high is None else min(high, bound)
                else:
                    lower[i] = bound if low is None else max(low, bound)
        if empty:
            continue
        low_known = tuple(v for v in lower if v is not None)
        high_known = tuple(v for v in upper if v is not None)
        if len(low_known) < inputs or len(high_known) < inputs:
            missing = next(i for i in range(inputs) if lower[i] is None or upper[i] is None)
            raise InvalidInput(f"the input X_{missing} has no lower or no upper bound in some case")
        if any(a > b for a, b in zip(low_known, high_known, strict=True)):
            continue
        boxes.setdefault((low_known, high_known), []).append(tuple(rest))
    for (first, last), own in boxes.items():
        yield Disjunct(first, last, tuple(own))


def _rounded(value: Fraction, dtype: type[np.floating], towards: float) -> float:
    """The nearest number of a type at or beyond a rational, on the side of `towards`."""
    try:
        near = float(value)
    except OverflowError:
        near = inf if value > 0 else -inf
    with np.errstate(over="ignore"):
        found = dtype(near)

    def beyond(number: np.floating) -> bool:
        if np.isinf(number):
            return bool((number > 0) == (towards > 0))
        exact = Fraction(float(number))
        return exact >= value if towards > 0 else exact <= value

    with np.errstate(over="ignore"):
        while not beyond(found):
            found = np.nextafter(found, dtype(towards))
        while beyond(nearer := np.nextafter(found, dtype(-towards))):
            found = nearer
    return float(found)
