"""Queries in VNN-LIB 1.0 and 2, as cases: boxes of inputs with linear constraints, exactly.

Proved: an input with its outputs satisfies the query only if it lies in the box of some case and
satisfies all of that case's constraints. All numbers are rationals. A formula is read by recursive
descent into sums of terms and lists of alternatives; what is not known here, down to a single word,
is refused. Boxes have both their ends, also where a strict comparison leaves one out, and may be
narrowed by constraints on several inputs: what is left out of a case is what cannot satisfy it.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite, nextafter, prod
from typing import Any

from frown_check.errors import Refused, refuse_if

MOST_TEXT = 2**28
MOST_DEPTH = 200
MOST_CASES = 2**20
MOST_ENTRIES = 2**24  # of a tensor
MOST_DIGITS = 2000
MOST_BITS = 2**16  # of a number that is computed
ROUNDS = 4  # in which constraints on several inputs narrow a box

Term = tuple[dict[int, Fraction], Fraction]  # coefficients, and a constant
Formula = Any  # ("atom", Constraint), or ("and" or "or", [Formula])
Item = Any  # a word, or a list of items

# No backslash stands in quotes: what it means there differs from version to version.
PLACES = r"\[\s*(?:\d+\s*(?:,\s*\d+\s*)*)?\]"
WORDS = re.compile(rf';[^\n\r]*|\s+|("[^"\\]*"|\|[^|]*\||{PLACES}|[()]|[^\s();"|\[\]]+|.)')
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
SKIPPED = {"set-logic", "set-info", "set-option", "check-sat", "get-model", "exit"}


@dataclass(frozen=True, slots=True)
class Constraint:
    """The sum of coef[k] times variable k, plus const, is at most 0, or below. Inputs come first
    among the variables, then outputs."""

    coef: tuple[tuple[int, Fraction], ...]  # by rising variable, none is 0
    const: Fraction
    strict: bool

    def excludes(self, least: Fraction) -> bool:
        """True if it fails wherever its left side is at least so much."""
        return least > 0 or (self.strict and least == 0)


@dataclass(frozen=True, slots=True)
class Box:
    """lower <= x <= upper."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of a box, and the constraints that they satisfy with their outputs."""

    box: Box
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A formula about so many inputs and outputs; in VNN-LIB 2 they have shapes."""

    inputs: int
    outputs: int
    formula: Formula
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    elements: tuple[str, ...]  # types that it declares

    def cases(self) -> Iterator[Case]:
        """All cases in which some input may satisfy it."""
        for known, atoms in _Cases().of([self.formula], {}, []):
            case = self._case(known, atoms)
            if case is not None:
                yield case

    def _case(self, known: Sides, atoms: list[Constraint]) -> Case | None:
        """The case of bounds and constraints; None: nothing satisfies it."""
        if any(not one.coef and one.excludes(one.const) for one in atoms):
            return None
        atoms = [one for one in atoms if one.coef]
        several = [one for one in atoms if one.coef[-1][0] < self.inputs]
        low, high = [], []
        for k in range(self.inputs):
            below, above = known.get((k, -1)), known.get((k, 1))
            if below is None or above is None:
                raise Refused(f"input {k} has no lower or no upper bound in some case")
            if below[0] == above[0] and (below[1] or above[1]):
                return None
            low.append(below[0])
            high.append(above[0])
        box = narrowed(low, high, several)
        return None if box is None else Case(box, tuple(atoms))


# Bounds of single inputs, from below (-1) and from above (1), and whether they are strict.
Sides = dict[tuple[int, int], tuple[Fraction, bool]]


class _Cases:
    """The ways to choose from all alternatives of formulas that hold together."""

    def __init__(self) -> None:
        self.count = 0

    def of(
        self, formulas: list[Formula], known: Sides, atoms: list[Constraint], depth: int = 0
    ) -> Iterator[tuple[Sides, list[Constraint]]]:
        """Each of them: bounds of single inputs, and constraints."""
        self.count += 1
        refuse_if(self.count > MOST_CASES, f"the query has more than {MOST_CASES} cases")
        refuse_if(depth > MOST_DEPTH, f"the query has more than {MOST_DEPTH} alternatives in a row")
        known, atoms, waiting, choices = dict(known), list(atoms), list(formulas), []
        while waiting:
            kind, own = waiting.pop()
            if kind == "and":
                waiting += own
            elif kind == "or":
                choices.append(own)
            elif kind == "bound":
                at, (bound, strict) = own
                earlier, open_ = known.get(at, (bound, False))
                tighter = bound != earlier and (bound < earlier) == (at[1] > 0)
                if bound == earlier:
                    known[at] = bound, strict or open_
                elif tighter:
                    known[at] = bound, strict
            else:
                atoms.append(own)
        if not choices:
            yield known, atoms
            return
        choices.sort(key=len)
        rest = [("or", own) for own in choices[1:]]
        for one in choices[0]:
            yield from self.of([*rest, one], known, atoms, depth + 1)


def narrowed(low: list[Fraction], high: list[Fraction], several: list[Constraint]) -> Box | None:
    """A box around all points of another that satisfy constraints on inputs; None: there are none.

    Of c . x + d <= 0, with the least value m_j of every c_j x_j, c_i x_i <= m_i - (d + sum m_j).
    Ends are moved no further than to the next double outside.
    """
    for _ in range(ROUNDS if several else 0):
        for one in several:
            if any(a > b for a, b in zip(low, high)):
                return None
            least = {k: c * (low if c > 0 else high)[k] for k, c in one.coef}
            total = one.const
            for value in least.values():
                total = short(total + value)
            if one.excludes(total):
                return None
            for k, c in one.coef:
                end = (least[k] - total) / c
                near = outward(end, 1 if c > 0 else -1)
                if near is not None and c > 0:
                    high[k] = min(high[k], near)
                elif near is not None:
                    low[k] = max(low[k], near)
    if any(a > b for a, b in zip(low, high)):
        return None
    return Box(tuple(low), tuple(high))


def outward(value: Fraction, sign: int) -> Fraction | None:
    """A double at or beyond a rational, on the side of the sign; None: there is none."""
    try:
        near = float(value)
    except OverflowError:
        return None
    while isfinite(near) and sign * (Fraction(near) - value) < 0:
        near = nextafter(near, sign * inf)
    return Fraction(near) if isfinite(near) else None


def read_query(content: bytes) -> Query:
    """The query in a file's bytes, which gzip may have packed; Refused where they are none."""
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(MOST_TEXT + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise Refused(f"the query cannot be unpacked: {error}") from None
    refuse_if(len(content) > MOST_TEXT, "the query is too long")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("the query is no text in UTF-8") from None
    commands = list(_items(text))
    if commands and _head(commands[0]) == "vnnlib-version":
        return _second(commands)
    return _first(commands)


def _items(text: str) -> Iterator[Item]:
    """The outermost lists of a text, with all that is in them."""
    open_: list[list[Item]] = []
    for match in WORDS.finditer(text):
        word = match[1]
        if word is None:
            continue
        refuse_if(word in ('"', "|", "[", "]"), f"a {word} of the query is not one of a pair")
        if word == "(":
            open_.append([])
            refuse_if(len(open_) > MOST_DEPTH, f"the query is nested deeper than {MOST_DEPTH}")
            continue
        if word == ")":
            refuse_if(not open_, "a parenthesis of the query is closed that was never opened")
            done: Item = open_.pop()
        else:
            refuse_if(not open_, f"the query has a word outside of all lists: {word[:40]!r}")
            done = word
        if open_:
            open_[-1].append(done)
        else:
            yield done
    refuse_if(open_, "a parenthesis of the query is never closed")


def _head(item: Item) -> str:
    """The first word of a list; empty where it has none."""
    return item[0] if isinstance(item, list) and item and isinstance(item[0], str) else ""


def _first(commands: list[Item]) -> Query:
    """A query of VNN-LIB 1.0."""
    declared: dict[str, None] = {}
    asserted = []
    ended = False
    for command in commands:
        name = _head(command)
        if name in ("declare-const", "declare-fun"):
            fit = len(command) == 3 or (len(command) == 4 and command[2] == [])
            variable = command[1] if len(command) > 1 and isinstance(command[1], str) else ""
            fit &= command[-1] in ("Real", "real")
            fit &= re.fullmatch(r"[XY]_(0|[1-9]\d{0,8})", variable) is not None
            refuse_if(not fit or variable in declared or ended, "the query declares no variable so")
            declared[variable] = None
        elif name == "assert":
            refuse_if(len(command) != 2 or ended, "the query asserts nothing so")
            asserted.append((command[1], len(declared)))
        else:
            refuse_if(name not in SKIPPED, f"the query has an unknown command {name[:40]!r}")
            ended |= name in ("check-sat", "exit")
    sizes = [sum(v.startswith(kind) for v in declared) for kind in "XY"]
    for kind, size in zip("XY", sizes):
        every = size and all(f"{kind}_{k}" in declared for k in range(size))
        refuse_if(not every, f"the query does not declare {kind}_0, {kind}_1, ... one by one")
    order = {name: k for k, name in enumerate(declared)}
    place = {f"X_{k}": k for k in range(sizes[0])}
    place |= {f"Y_{k}": sizes[0] + k for k in range(sizes[1])}

    def lookup(then: int) -> Callable[[str], int | None]:
        # A name stands for nothing before it is declared.
        return lambda name: place[name] if order.get(name, then) < then else None

    formulas = [_Formulas(sizes[0], lookup(then), False).read(item) for item, then in asserted]
    return Query(sizes[0], sizes[1], ("and", formulas), None, ())


def _second(commands: list[Item]) -> Query:
    """A query of VNN-LIB 2, about one network of one input and one output."""
    version = commands[0][1] if len(commands[0]) == 2 else ""
    fit = isinstance(version, str) and bool(re.fullmatch(r"<2\.\d{1,9}>", version, re.ASCII))
    refuse_if(not fit, "the query is of no version that is known")
    network = commands[1] if len(commands) > 1 else []
    fit = _head(network) == "declare-network" and len(network) == 4 and _is_name(network[1])
    refuse_if(not fit, "the query does not declare one network with one input and one output")
    names, shapes, elements = [network[1]], [], []
    for part, kind in zip(network[2:], ("declare-input", "declare-output")):
        fit = _head(part) == kind and len(part) == 4 and _is_name(part[1]) and _is_name(part[2])
        refuse_if(not fit, f"the query's network does not have one {kind} in its place")
        shape = part[3] if isinstance(part[3], str) else ""
        sizes = "".join(shape.split())
        fit = bool(re.fullmatch(r"\[([1-9]\d{0,8}(,[1-9]\d{0,8})*)?\]", sizes, re.ASCII))
        refuse_if(not fit, f"{part[1][:40]} has no shape")
        names.append(part[1])
        elements.append(part[2])
        shapes.append(tuple(int(n) for n in sizes[1:-1].split(",") if n))
    refuse_if(len(set(names)) < 3, "the query has two names that are the same")
    counts = [prod(shape) for shape in shapes]
    refuse_if(max(counts) > MOST_ENTRIES, "the query has too large a tensor")

    def lookup(word: str) -> int | None:
        match = re.fullmatch(r"([A-Za-z]\w*)(?:\[([\d,]*)\])?", word, re.ASCII)
        if match is None or match[1] not in names[1:]:
            return None
        which = names[1:].index(match[1])
        places = [] if match[2] is None else match[2].split(",")
        fit = len(places) == len(shapes[which]) and all(p and len(p) < 10 for p in places)
        refuse_if(not fit, f"{word[:40]} is no entry of a tensor")
        index = 0
        for p, size in zip(places, shapes[which]):
            refuse_if(int(p) >= size, f"{word[:40]} is beyond its tensor")
            index = index * size + int(p)
        return index + which * counts[0]

    read = _Formulas(counts[0], lookup, True).read
    formulas = []
    for command in commands[2:]:
        fit = _head(command) == "assert" and len(_joined(command)) == 2
        refuse_if(not fit, "the query has something else than an assertion after its network")
        formulas.append(read(_joined(command)[1]))
    both = shapes[0], shapes[1]
    return Query(counts[0], counts[1], ("and", formulas), both, tuple(elements))


def _is_name(item: Item) -> bool:
    return isinstance(item, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", item) is not None


def _joined(items: list[Item]) -> list[Item]:
    """A list whose places in square brackets are one with the names before them."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, str) and item[0] == "[":
            refuse_if(not found or not _is_name(found[-1]), "the query has places of nothing")
            found[-1] += "".join(item.split())
        else:
            found.append(item)
    return found


@dataclass(frozen=True, slots=True)
class _Formulas:
    """Formulas of either version."""

    inputs: int
    lookup: Callable[[str], int | None]
    second: bool

    def read(self, item: Item) -> Formula:
        if not self.second and item in ("true", "false"):
            return ("and" if item == "true" else "or"), []
        refuse_if(not _head(item), "the query has no formula where one was expected")
        name, *own = _joined(item) if self.second else item
        if name in ("and", "or"):
            refuse_if(self.second and not own, f"the query has an {name} of nothing")
            return name, [self.read(part) for part in own]
        equal = "==" if self.second else "="
        refuse_if(
            name not in ("<=", ">=", "<", ">", equal) and (name != "!=" or not self.second),
            f"the query has an operator that is not known: {name[:40]!r}",
        )
        refuse_if(len(own) != 2, f"the query has a {name} of other than two terms")
        if self.second:
            named = any(self._names(part) for part in own)
            refuse_if(not named, "the query compares numbers alone")
        left, right = (self.term(part) for part in own)
        strict = name in ("<", ">", "!=")
        below = self._atom(_sum([left, _times(right, Fraction(-1))]), strict)
        above = self._atom(_sum([right, _times(left, Fraction(-1))]), strict)
        if name in (equal, "!="):
            return ("and" if name == equal else "or"), [below, above]
        return below if name in ("<=", "<") else above

    def _names(self, item: Item) -> bool:
        """True if a term names a variable."""
        if isinstance(item, str):
            return self.lookup(item) is not None
        parts = _joined(item)[1:]
        return any(self._names(part) for part in parts)

    def _atom(self, term: Term, strict: bool) -> Formula:
        """term <= 0, or below, as a bound of a single input where it is one."""
        coef, const = term
        kept = tuple(sorted((k, c) for k, c in coef.items() if c))
        if len(kept) == 1 and kept[0][0] < self.inputs:
            ((k, c),) = kept
            return "bound", ((k, 1 if c > 0 else -1), (-const / c, strict))
        return "atom", Constraint(kept, const, strict)

    def term(self, item: Item) -> Term:
        if isinstance(item, str):
            match = NUMBER.fullmatch(item)
            if match is not None:
                refuse_if(len(item) > MOST_DIGITS, "the query has too long a number")
                return {}, Fraction(item)
            variable = self.lookup(item)
            if variable is None:
                raise Refused(f"the query has an unknown name {item[:40]!r}")
            return {variable: Fraction(1)}, Fraction(0)
        refuse_if(not _head(item), "the query has no term where one was expected")
        name, *parts = _joined(item) if self.second else item
        refuse_if(not parts, f"the query has a {name[:40]!r} of nothing")
        own = [self.term(part) for part in parts]
        if name == "+":
            return _sum(own)
        if name == "-":
            rest = [_times(t, Fraction(-1)) for t in (own if len(own) == 1 else own[1:])]
            return _sum(rest if len(own) == 1 else [own[0], *rest])
        if name == "*":
            product: Term = {}, Fraction(1)
            for t in own:
                refuse_if(product[0] and t[0], "the query has products of variables")
                product = _times(t, product[1]) if not product[0] else _times(product, t[1])
            return product
        if name == "/" and not self.second:
            fit = len(own) == 2 and not own[1][0] and own[1][1] != 0
            refuse_if(not fit, "the query divides by something else than a number")
            return _times(own[0], 1 / own[1][1])
        raise Refused(f"the query has an operator that is not known: {name[:40]!r}")


def _sum(terms: list[Term]) -> Term:
    coef: dict[int, Fraction] = {}
    for own, _ in terms:
        for k, c in own.items():
            coef[k] = short(coef.get(k, Fraction(0)) + c)
    const = Fraction(0)
    for _, d in terms:
        const = short(const + d)
    return {k: c for k, c in coef.items() if c}, const


def _times(term: Term, factor: Fraction) -> Term:
    if not factor:
        return {}, Fraction(0)
    return {k: short(c * factor) for k, c in term[0].items()}, short(term[1] * factor)


def short(number: Fraction) -> Fraction:
    """The number; Refused where it is too long to count with."""
    bits = number.numerator.bit_length() + number.denominator.bit_length()
    refuse_if(bits > MOST_BITS, f"the query has numbers of more than {MOST_BITS} bits")
    return number
