"""Queries in VNN-LIB 1.0 and 2: is there an input of these boxes whose outputs satisfy these
constraints?

All numbers are exact rationals. A query is brought into disjunctive form: a disjunct is a box of
inputs with cases, each a conjunction of linear constraints; it is satisfied where all constraints
of some case hold. So a disjunct is refuted by proving, on its box, the property that has a clause
for every case. Constraints may be about inputs as well: then the property is about the outputs and,
behind them, the inputs. Those about several inputs alone make boxes smaller, too.

Of VNN-LIB 2, queries about one network with one input and one output, without hidden nodes, are
read (the theories SNET, SIO and NH of the standard), with any linear constraints (MNC, LIN).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice, product
from math import inf, isfinite, lcm, nan, prod
from pathlib import Path
from typing import TypeGuard, TypeVar

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
MOST_ENTRIES = 1 << 24  # of a tensor

ROUNDS = 4  # in which constraints on several inputs narrow a box

_TOKEN = re.compile(
    r"\s+|;[^\n\r]*|(?P<token>[()]|\"(?:[^\"]|\"\")*\"|\|[^|]*\||[^\s();\"|]+|[\"|])"
)
_PLACES = r"\[\s*(?:\d+\s*(?:,\s*\d+\s*)*)?\]"
_TOKEN_2 = re.compile(
    r"\s+|;[^\n\r]*|(?P<token>[()]|\"(?:[^\"\\]|\\[\"\\nt])*\"|"
    rf"{_PLACES}|[^\s();\"\[\]]+|[\"\[\]])"
)
# Comparisons of two atoms, which make up most of a query, are a token of their own.
_COMPARED = re.compile(
    r"(?P<compared>\([<>]=?\s+[^\s();\"|]+\s+[^\s();\"|]+\s*\))\s*|" + _TOKEN.pattern
)
_ATOM_2 = r"\s+[^\s();\"\[\]]+(?:\[[\d,]+\])?"
_COMPARED_2 = re.compile(r"(?P<compared>\([<>]=?" + 2 * _ATOM_2 + r"\s*\))\s*|" + _TOKEN_2.pattern)
_NUMBER = re.compile(r"[+-]?(?P<digits>\d+\.?\d*|\.\d+)(?:[eE](?P<exponent>[+-]?\d+))?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_VARIABLE = re.compile(r"(?P<kind>[XY])_(?P<index>0|[1-9]\d{0,8})", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ELEMENT = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)(?:\[(?P<places>[\d,]+)\])?", re.ASCII)
_SHAPE = re.compile(r"\[(?:[1-9]\d{0,8}(?:,[1-9]\d{0,8})*)?\]", re.ASCII)
_VERSION = re.compile(r"<(?P<major>\d{1,9})\.(?P<minor>\d{1,9})>", re.ASCII)
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
_BEYOND = {
    "not": "negation",
    "=>": "implication",
    "xor": "exclusive or",
    "distinct": "disequality",
    "ite": "conditional terms",
    "let": "local names",
}
# The cases that a comparison stands for: of each, the signs of (left - right) <= 0, and whether
# they are strict.
_SIDES = ((1, False), (-1, False))
_COMPARE = {
    "<=": (_SIDES[:1],),
    ">=": (_SIDES[1:],),
    "<": (((1, True),),),
    ">": (((-1, True),),),
}
_SIGNS = {1: Fraction(1), -1: Fraction(-1)}
_COMPARE_1 = {**_COMPARE, "=": (_SIDES,)}
_COMPARE_2 = {**_COMPARE, "==": (_SIDES,), "!=": (((1, True),), ((-1, True),))}

_Variable = tuple[str, int]  # X or Y, and which
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Constraint:
    """inputs . x + outputs . y + const <= 0 (or < 0), with the coefficients that are not 0."""

    inputs: tuple[tuple[int, Fraction], ...]
    outputs: tuple[tuple[int, Fraction], ...]
    const: Fraction
    strict: bool = False

    def holds(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        """True if a point satisfies it, exactly."""
        value = self.value(x, y)
        return value < 0 or (value == 0 and not self.strict)

    def value(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> Fraction:
        """The left side at a point."""
        total = self.const
        for coefficients, values in ((self.inputs, x), (self.outputs, y)):
            for i, c in coefficients:
                total += c * values[i]
        return total


@dataclass(frozen=True, slots=True)
class Disjunct:
    """A box of inputs, and the cases of which one must hold there."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    cases: tuple[tuple[Constraint, ...], ...]
    above: frozenset[int] = frozenset()  # the inputs that are not their lower bound,
    below: frozenset[int] = frozenset()  # and not their upper one: sides without that end

    @property
    def mixed(self) -> bool:
        """True if constraints are about inputs beyond the bounds of single ones."""
        return any(one.inputs for case in self.cases for one in case)

    def contains(self, x: Sequence[Fraction]) -> bool:
        """True if a point lies in the box, exactly."""
        return (
            all(a <= v <= b for a, v, b in zip(self.lower, x, self.upper, strict=True))
            and all(x[i] != self.lower[i] for i in self.above)
            and all(x[i] != self.upper[i] for i in self.below)
        )

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
        """The largest box of such numbers in this one, where witnesses lie.

        Where the type has no number between two bounds, its nearest stands for what lies there
        (`reading`): a network cannot be given anything nearer. So do inputs that are fixed at the
        shortest digits of a double that the type has. Sides without an end may be empty (a lower
        end above its upper one).
        """
        low = np.array([_rounded(v, dtype, inf) for v in self.lower], dtype)
        high = np.array([_rounded(v, dtype, -inf) for v in self.upper], dtype)
        for ends, bounds, open_, towards in (
            (low, self.lower, self.above, inf),
            (high, self.upper, self.below, -inf),
        ):
            for i in open_:
                if np.isfinite(ends[i]) and Fraction(float(ends[i])) == bounds[i]:
                    ends[i] = np.nextafter(ends[i], dtype(towards))
        for i in self._fixed():
            written = float(self.lower[i])
            with np.errstate(over="ignore"):
                if float(dtype(written)) == written:
                    low[i] = high[i] = written
        for i in np.flatnonzero(low > high).tolist():
            if i not in self.above and i not in self.below:
                near = self._instead(i, dtype)
                low[i], high[i] = (near, near) if isfinite(near) else (low[i], high[i])
        return low, high

    def reading(self, x: Sequence[Fraction], dtype: type[np.floating]) -> list[Fraction]:
        """An input of a type as the query has it: a number that stands in for a value of the box
        (`within`) is replaced by that value."""
        found = list(x)
        for i in self._fixed():
            if found[i] == Fraction(float(self.lower[i])):
                found[i] = self.lower[i]
        for i, (low, v, high) in enumerate(zip(self.lower, found, self.upper, strict=True)):
            if low <= v <= high or i in self.above or i in self.below:
                continue
            if v == self._instead(i, dtype):
                found[i] = _nearest(v, low, high)
        return found

    def _instead(self, i: int, dtype: type[np.floating]) -> float:
        """The number of a type that is nearest to the middle of a side, if it has none between the
        bounds; otherwise NaN."""
        middle = (self.lower[i] + self.upper[i]) / 2
        if _rounded(self.lower[i], dtype, inf) <= self.upper[i]:
            return nan
        with np.errstate(over="ignore"):
            near = float(dtype(double(middle)))
        return near if isfinite(near) else nan

    def _fixed(self) -> Iterator[int]:
        """The inputs with one value, written as the shortest digits of a double."""
        for i, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            if (low is high or low == high) and _is_written(low):
                yield i

    def property(self, outputs: int, joined: bool = False) -> LinearProperty:
        """A property, in double precision, that where it holds refutes the disjunct.

        Literals are scaled to whole coefficients and their constants rounded down, so that
        what is proved of it is true of the query's own rationals. With `joined` they are about the
        outputs and, behind them, the inputs of the box.

        Raises InvalidInput where a coefficient of an output has no exact counterpart.
        """
        coef, const, above, clause = [], [], [], []
        for k, case in enumerate(self.cases):
            for one in case or (Constraint((), (), Fraction(0)),):
                row = [0.0] * (outputs + joined * len(self.lower))
                scale, given = _scale(one), one.inputs
                for i, c in one.outputs:
                    row[i] = float(c * scale)
                # What inputs lose, or gain, with coefficients that are rounded.
                least = most = Fraction(0)
                if given:
                    assert joined
                    ends = self.around(np.float64)
                for i, c in given:
                    row[outputs + i] = float(c * scale)
                    off = c * scale - Fraction(row[outputs + i])
                    if off:
                        moved = [off * Fraction(float(end[i])) for end in ends]
                        least, most = least + min(moved), most + max(moved)
                coef.append(row)
                const.append(_rounded(one.const * scale + least, np.float64, -inf))
                above.append(_rounded(one.const * scale + most, np.float64, inf))
                clause.append(k)
        return LinearProperty(
            torch.tensor(coef, dtype=torch.float64)[None],
            torch.tensor(const, dtype=torch.float64)[None],
            torch.tensor(clause),
            above=torch.tensor(above, dtype=torch.float64)[None],
        )


def _scale(one: Constraint) -> int:
    """A factor that makes all coefficients whole numbers in double precision, or those of the
    outputs at least; InvalidInput where there is none."""
    every = lcm(*(c.denominator for _, c in (*one.outputs, *one.inputs)))
    if all(abs(c * every) <= 1 << 53 for _, c in (*one.outputs, *one.inputs)):
        return every
    scale = lcm(*(c.denominator for _, c in one.outputs))
    for i, c in one.outputs:
        if abs(c * scale) > 1 << 53:
            raise InvalidInput(
                f"the coefficient {float(c):.6g} of output {i} has no exact counterpart in double "
                "precision"
            )
    for i, c in one.inputs:
        if abs(c * scale) > 1 << 900:
            raise InvalidInput(f"the coefficient of input {i} is too large for double precision")
    return scale


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor that a query of VNN-LIB 2 declares."""

    name: str
    element: str  # its type, as written
    shape: tuple[int, ...]

    @property
    def real(self) -> bool:
        """True if it stands for real numbers."""
        return self.element in ("real", "Real")


@dataclass(frozen=True, slots=True)
class Declared:
    """The network that a query of VNN-LIB 2 is about."""

    version: str
    network: str
    input: DeclaredTensor
    output: DeclaredTensor


@dataclass(frozen=True, slots=True)
class VnnLib:
    """A query: satisfied by an input, with its outputs, that satisfies one of the disjuncts."""

    inputs: int
    outputs: int
    disjuncts: tuple[Disjunct, ...]
    declared: Declared | None = None  # None: a query of VNN-LIB 1.0
    text: str = field(default="", compare=False, repr=False)  # that it was read from

    @property
    def mixed(self) -> bool:
        """True if constraints are about inputs beyond the bounds of single ones."""
        return any(one.mixed for one in self.disjuncts)

    def satisfied(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        """True if an input with these outputs satisfies the query, exactly."""
        return any(one.satisfied(x, y) for one in self.disjuncts)


def read_vnnlib(path: str | Path) -> VnnLib:
    """The query of a file in VNN-LIB 1.0 or 2, or of one packed by gzip.

    Raises InvalidInput for what is no query, with line and column; also for what is one of
    another theory (products of variables, several networks, hidden nodes), which is named.
    """
    return _read(path, parse_vnnlib)


def _read(path: str | Path, parse: Callable[[str], _Read]) -> _Read:
    """A file's text, parsed; errors name the file."""
    try:
        return parse(_text(Path(path)))
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
    except FileNotFoundError:
        raise InvalidInput("there is no such file") from None
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
    return _read(path, parse_outputs)


def parse_vnnlib(text: str) -> VnnLib:
    """The query that a text in VNN-LIB 1.0 or 2 asks; raises what `read_vnnlib` does."""
    script = _script(text)
    disjuncts = tuple(_disjuncts(script.cases, script.inputs, script.name))
    return VnnLib(script.inputs, script.outputs, disjuncts, script.declared, text)


def parse_outputs(text: str) -> tuple[int, Disjunct]:
    """The number of outputs, and the cases of them that a text in VNN-LIB tells, without any
    inputs: their bounds, which must be the same in all cases, are left aside.

    Raises InvalidInput for what is no such text, also for constraints that mix inputs and outputs
    and for strict ones.
    """
    script = _script(text, outputs_alone=True)
    cases, bounds = [], set[_Case]()
    for case in script.cases:
        if any(c.outputs and c.strict for c in case):
            raise InvalidInput("a property has no strict comparisons (<, >): take <= or >=")
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
    return script.outputs, Disjunct((), (), tuple(dict.fromkeys(cases)))


@dataclass(frozen=True, slots=True)
class _Script:
    """The cases that a text asserts, of so many variables."""

    inputs: int
    outputs: int
    cases: _Cases
    declared: Declared | None

    def name(self, i: int) -> str:
        """The text's name of an input."""
        if self.declared is None:
            return f"X_{i}"
        one = self.declared.input
        places = ",".join(str(int(k)) for k in np.unravel_index(i, one.shape)) if one.shape else ""
        return f"{one.name}[{places}]" if places else one.name


def _script(text: str, outputs_alone: bool = False) -> _Script:
    """Read a text of either version: the first command tells which. With `outputs_alone` one of
    VNN-LIB 1.0 may have no inputs."""
    reader = _Reader(text)
    commands = reader.commands()
    first = next(commands, None)
    if isinstance(first, _List) and first.items and _named(first.items[0], "vnnlib-version"):
        return _script_2(_Reader(text, second=True))
    every = commands if first is None else chain([first], commands)
    return _script_1(reader, every, outputs_alone)


def _named(item: _Expression, name: str) -> bool:
    return isinstance(item, _Atom) and item.text == name


def _command(reader: _Reader, command: _Expression) -> tuple[_List, str, Sequence[_Expression]]:
    """A command, its name and what follows it."""
    if isinstance(command, _Atom) or not command.items or isinstance(command.items[0], _List):
        raise reader.wrong(command, "a command was expected, such as (assert ...)")
    return command, command.items[0].text, command.items[1:]


def _asserted(reader: _Reader, command: _List, rest: Sequence[_Expression], find: _Find) -> _Cases:
    if len(rest) != 1:
        raise reader.wrong(command, "assert takes one formula")
    return _cases(reader, rest[0], find)


def _script_1(reader: _Reader, commands: Iterator[_Expression], outputs_alone: bool) -> _Script:
    """The variables that a text in VNN-LIB 1.0 declares, and the cases that it asserts."""
    declared: dict[str, _Variable] = {}
    asserted: list[_Cases] = []
    asked = ""  # the command that asked, or ended the script

    def find(atom: _Atom) -> _Variable | None:
        return declared.get(atom.text)

    for each in commands:
        command, name, rest = _command(reader, each)
        if name == "vnnlib-version" or name.startswith("declare-network"):
            raise reader.wrong(
                command, f"{name} is of VNN-LIB 2, whose queries begin with (vnnlib-version <2.0>)"
            )
        if asked and name in ("declare-const", "declare-fun", "assert"):
            raise reader.wrong(command, f"{name} after {asked}, which it is no part of")
        if name in ("declare-const", "declare-fun"):
            _declare(reader, command, rest, declared)
        elif name == "assert":
            asserted.append(_asserted(reader, command, rest, find))
        elif name not in _IGNORED:
            raise reader.wrong(command, f"unknown command {name[:40]!r}")
        elif name in ("check-sat", "exit"):
            asked = name
    inputs = sum(kind == "X" for kind, _ in declared.values())
    if inputs or not outputs_alone:
        inputs = _count(declared, "X")
    return _Script(inputs, _count(declared, "Y"), _conjoined(reader, asserted, None), None)


def _script_2(reader: _Reader) -> _Script:
    """The network that a text in VNN-LIB 2 declares, and the cases that it asserts."""
    commands = reader.commands()
    command, _, rest = _command(reader, next(commands))
    given = rest[0].text if len(rest) == 1 and _is_atom(rest[0]) else ""
    number = _VERSION.fullmatch(given)
    if number is None:
        raise reader.wrong(command, "the version is written as (vnnlib-version <2.0>)")
    if number["major"] != "2":
        raise reader.wrong(command, f"VNN-LIB {given[1:-1]}: versions 1.0 and 2 are read")
    declared: Declared | None = None
    asserted: list[_Cases] = []
    for each in commands:
        command, name, rest = _command(reader, each)
        if name == "declare-network":
            if asserted:
                raise reader.wrong(command, "networks are declared before anything is asserted")
            if declared is not None:
                raise reader.wrong(
                    command, "several networks (theory MNET) are beyond the one of SNET"
                )
            declared = _network(reader, command, rest, given[1:-1])
        elif name == "assert":
            if declared is None:
                raise reader.wrong(command, "a network must be declared first (declare-network)")
            asserted.append(_asserted(reader, command, rest, _finder(reader, declared)))
        else:
            raise reader.wrong(command, f"unknown command {name[:40]!r}")
    if declared is None:
        raise InvalidInput("there is no network in it (declare-network)")
    sizes = prod(declared.input.shape), prod(declared.output.shape)
    return _Script(*sizes, _conjoined(reader, asserted, None), declared)


def _is_atom(item: _Expression) -> TypeGuard[_Atom]:
    return isinstance(item, _Atom)


def _network(
    reader: _Reader, command: _List, rest: Sequence[_Expression], version: str
) -> Declared:
    """The declaration of a network of one input and one output."""
    if not rest or not _is_atom(rest[0]) or _NAME.fullmatch(rest[0].text) is None:
        raise reader.wrong(command, "declare-network is followed by a name")
    tensors: dict[str, DeclaredTensor] = {}
    names = {rest[0].text}
    for each in rest[1:]:
        part, what, given = _command(reader, each)
        if what == "declare-hidden":
            raise reader.wrong(part, "hidden nodes (theory H) are beyond NH, which has none")
        if what in ("equal-to", "isomorphic-to"):
            raise reader.wrong(
                part, f"several networks ({what}, theory MNET) are beyond the one of SNET"
            )
        if what not in ("declare-input", "declare-output"):
            raise reader.wrong(part, f"{what[:40]!r} is no part of a network's declaration")
        if what in tensors:
            raise reader.wrong(
                part, "several inputs or outputs (theory MIO) are beyond SIO, one of each"
            )
        if what == "declare-input" and tensors:
            raise reader.wrong(part, "inputs are declared before outputs")
        one = tensors[what] = _tensor(reader, part, given)
        if one.name in names:
            raise reader.wrong(part, f"{one.name} is declared twice")
        names.add(one.name)
    if len(tensors) < 2:
        raise reader.wrong(command, "a network has an input and an output (declare-input, ...)")
    both = tensors["declare-input"], tensors["declare-output"]
    return Declared(version, rest[0].text, *both)


def _tensor(reader: _Reader, part: _List, given: Sequence[_Expression]) -> DeclaredTensor:
    if len(given) == 4 and _named(given[3], "initialized"):
        raise reader.wrong(given[3], "inputs that a model initialises are beyond what is read")
    if len(given) != 3:
        raise reader.wrong(part, "a tensor has a name, an element type and a shape: X real [1,2]")
    name, element, shape = given
    if not _is_atom(name) or _NAME.fullmatch(name.text) is None:
        raise reader.wrong(name, "a name was expected")
    if not _is_atom(element) or _NAME.fullmatch(element.text) is None:
        raise reader.wrong(element, "an element type was expected, such as real or float32")
    if not _is_atom(shape) or _SHAPE.fullmatch(shape.text) is None:
        raise reader.wrong(shape, "a shape was expected, such as [1,2] or []")
    sizes = tuple(int(n) for n in shape.text[1:-1].split(",") if n)
    if prod(sizes) > MOST_ENTRIES:
        raise reader.wrong(shape, f"a tensor of more than {MOST_ENTRIES:,} entries")
    return DeclaredTensor(name.text, element.text, sizes)


def _finder(reader: _Reader, declared: Declared) -> _Find:
    """A function that finds the variable which a name, with places in its tensor, stands for."""
    known = {declared.input.name: ("X", declared.input.shape)}
    known[declared.output.name] = "Y", declared.output.shape

    def find(atom: _Atom) -> _Variable | None:
        match = _ELEMENT.fullmatch(atom.text)
        if match is None or match["name"] not in known:
            return None
        kind, shape = known[match["name"]]
        places = [] if match["places"] is None else match["places"].split(",")
        if "" in places or len(places) != len(shape):
            raise reader.wrong(
                atom, f"{match['name']} has {len(shape)} axes, and so many places are to be given"
            )
        index = 0
        for place, size in zip(places, shape, strict=True):
            if len(place) > 9 or int(place) >= size:
                raise reader.wrong(atom, f"place {place[:20]} is beyond an axis of {size}")
            index = index * size + int(place)
        return kind, index

    return find


def _count(declared: dict[str, _Variable], kind: str) -> int:
    """The number of variables of a kind, which are declared from 0 on."""
    own = sorted(i for k, i in declared.values() if k == kind)
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
    """A text as nested lists, and where mistakes stand in it.

    In VNN-LIB 2 shapes, and the places behind a tensor's name, are in square brackets: in an
    assertion they are one with the name before them.
    """

    def __init__(self, text: str, second: bool = False) -> None:
        self.text, self.second = text, second
        # Boxes of many disjuncts repeat most of their comparisons, word by word: their parts, by
        # their text, the identities of these, and what comparisons of such parts say.
        self.parts: dict[str, list[_Expression]] = {}
        self.shared: set[int] = set()
        self.said: dict[int, list[_Case]] = {}

        self.numbers: dict[str, tuple[Fraction, Fraction] | None] = {}

    def number(self, text: str) -> tuple[Fraction, Fraction] | None:
        """A short decimal number and its negative; None: another text."""
        try:
            return self.numbers[text]
        except KeyError:
            decimal = _DECIMAL.fullmatch(text)
            value = None if decimal is None else Fraction(text)
            found = self.numbers[text] = None if value is None else (value, -value)
            return found

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
        for match in self._matches(open_):
            token = match["token"]
            if token is None:
                continue
            if self.second and token[0] in "[]":
                if len(token) == 1:
                    raise self.wrong(match.start(), f"this {token} is not one of a pair")
                token = "".join(token.split())
                items = open_[-1].items if open_ else []
                if items and open_[0].items and _named(open_[0].items[0], "assert"):
                    last = items[-1]
                    if not _is_atom(last) or _NAME.fullmatch(last.text) is None:
                        raise self.wrong(match.start(), "places stand behind a tensor's name")
                    items[-1] = _Atom(last.text + token, last.at)
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

    def _matches(self, open_: Sequence[_List]) -> Iterator[re.Match[str]]:
        """Matches of tokens and blanks. Comparisons of two atoms in an assertion are put into the
        innermost list that is open."""
        single = _TOKEN_2 if self.second else _TOKEN
        for match in (_COMPARED_2 if self.second else _COMPARED).finditer(self.text):
            if match.lastgroup != "compared":
                yield match
                continue
            text, at = match["compared"], match.start()
            if not open_ or not open_[0].items or not _named(open_[0].items[0], "assert"):
                yield from single.finditer(self.text, at, at + len(text))
                continue
            parts = self.parts.get(text)
            if parts is None:
                words = re.finditer(r"[^\s()]+", text)
                parts = self.parts[text] = [_Atom(word[0], at + word.start()) for word in words]
                self.shared.add(id(parts))
            open_[-1].items.append(_List(parts, at))


def _declare(
    reader: _Reader, command: _List, rest: Sequence[_Expression], declared: dict[str, _Variable]
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
    declared[rest[0].text] = match["kind"], int(match["index"])


# -- meaning --------------------------------------------------------------------------

_Case = tuple[Constraint, ...]
_Cases = list[_Case]
_Find = Callable[[_Atom], _Variable | None]


@dataclass(slots=True)
class _Term:
    """A linear term; its coefficients are taken over by the sum it enters."""

    coef: dict[_Variable, Fraction]
    const: Fraction
    named: bool = True  # a variable was named in it, be its coefficient 0


_Value = _Term | list[_Case]


def _cases(reader: _Reader, formula: _Expression, find: _Find) -> _Cases:
    """A formula in disjunctive form, without recursion: formulas may be nested deeply."""
    waiting: list[tuple[_List, list[_Value]]] = []
    said = reader.said
    current: _Expression = formula
    while True:
        if isinstance(current, _List) and (not waiting or waiting[-1][0] is not current):
            if not current.items or isinstance(current.items[0], _List):
                raise reader.wrong(current, "an operator was expected after the parenthesis")
            waiting.append((current, []))
        elif isinstance(current, _Atom):
            value: _Value = _atom(reader, current, find)
            if not waiting:
                return _formula(reader, current, value)
            waiting[-1][1].append(value)
        above, values = waiting[-1]
        for item in islice(above.items, 1 + len(values), None):
            if type(item) is not _List or id(item.items) not in reader.shared:
                break
            known = said.get(id(item.items)) or _bound(reader, item.items, find)
            if known is None:
                break
            values.append(known)
        while len(values) == len(above.items) - 1:
            value = _applied(reader, above, values)
            if isinstance(value, list) and id(above.items) in reader.shared:
                said[id(above.items)] = value
            waiting.pop()
            if not waiting:
                return _formula(reader, above, value)
            waiting[-1][1].append(value)
            above, values = waiting[-1]
        current = above.items[1 + len(values)]


def _bound(reader: _Reader, parts: list[_Expression], find: _Find) -> _Cases | None:
    """The one case that a comparison of a variable with a number behind it states, kept for the
    next comparison of the same parts; None: it compares something else."""
    name, left, right = parts
    assert isinstance(name, _Atom) and isinstance(left, _Atom) and isinstance(right, _Atom)
    bound = reader.number(right.text)
    variable = None if bound is None else find(left)
    if bound is None or variable is None:
        return None
    (((sign, strict),),) = _COMPARE[name.text]
    kind, i = variable
    # s (v - b) <= 0
    own, const = ((i, _SIGNS[sign]),), bound[sign > 0]
    one = Constraint(own, (), const, strict) if kind == "X" else Constraint((), own, const, strict)
    found = reader.said[id(parts)] = [(one,)]
    return found


def _atom(reader: _Reader, atom: _Atom, find: _Find) -> _Value:
    if atom.text in ("true", "false") and not reader.second:
        return [()] if atom.text == "true" else []
    number = _NUMBER.fullmatch(atom.text)
    if number is not None:
        if len(number["digits"]) > MOST_DIGITS or abs(int(number["exponent"] or 0)) > MOST_DIGITS:
            raise reader.wrong(atom, f"a number of more than {MOST_DIGITS} digits")
        return _Term({}, Fraction(atom.text), named=False)
    variable = find(atom)
    if variable is None:
        raise reader.wrong(atom, f"{atom.text[:40]!r} is neither a number nor declared before")
    return _Term({variable: Fraction(1)}, Fraction(0))


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
    compared = (_COMPARE_2 if reader.second else _COMPARE_1).get(name.text)
    if compared is not None:
        if len(terms) < 2:
            raise reader.wrong(list_, f"{name.text} compares two terms")
        if len(terms) > 2:
            raise reader.wrong(list_, f"{name.text} compares two terms, not {len(terms)}")
        a, b = terms
        if reader.second and not (a.named or b.named):
            raise reader.wrong(list_, "a comparison without variables has no type")
        difference = _sum(reader, list_, [a, _scaled(reader, list_, b, Fraction(-1))])
        return [tuple(_constraint(difference, *side) for side in case) for case in compared]
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
            raise reader.wrong(
                list_, "products of variables (theory POLY) are beyond linear terms (LIN)"
            )
        factor = Fraction(1)
        for t in terms:
            if not t.coef:
                factor = _bounded(reader, list_, factor * t.const)
        product = _scaled(reader, list_, variable[0], factor) if variable else _Term({}, factor)
        return replace(product, named=any(t.named for t in terms))
    if name.text == "/" and not reader.second:
        if len(terms) != 2 or terms[1].coef or terms[1].const == 0:
            raise reader.wrong(list_, "terms are divided by one number other than 0")
        return _scaled(reader, list_, terms[0], 1 / terms[1].const)
    raise reader.wrong(name, f"unknown operator {name.text[:40]!r}")


def _bits(number: Fraction) -> int:
    return number.numerator.bit_length() + number.denominator.bit_length()


def _bounded(reader: _Reader, where: _List, number: Fraction) -> Fraction:
    if _bits(number) > MOST_BITS:
        raise reader.wrong(where, f"a coefficient of more than {MOST_BITS} bits")
    return number


def _scaled(reader: _Reader, where: _List, term: _Term, factor: Fraction) -> _Term:
    coef = {v: _bounded(reader, where, c * factor) for v, c in term.coef.items() if factor}
    return _Term(coef, _bounded(reader, where, term.const * factor), term.named)


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
    return _Term(coef, const, any(term.named for term in terms))


def _constraint(term: _Term, sign: int, strict: bool) -> Constraint:
    own: dict[str, list[tuple[int, Fraction]]] = {"X": [], "Y": []}
    for (kind, i), c in term.coef.items():
        own[kind].append((i, sign * c))
    return Constraint(tuple(sorted(own["X"])), tuple(sorted(own["Y"])), sign * term.const, strict)


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


@dataclass(slots=True)
class _Side:
    """The least, or greatest, value of an input that constraints leave so far."""

    bound: Fraction | None = None
    open: bool = False  # it is not reached itself

    def meet(self, bound: Fraction, strict: bool, sign: int) -> None:
        """Take in a further bound, from above with the sign 1 and from below with -1."""
        if self.bound is None or sign * (bound - self.bound) < 0:
            self.bound, self.open = bound, strict
        elif bound == self.bound:
            self.open |= strict


@dataclass(frozen=True, slots=True)
class _Box:
    """A box, as a disjunct has it."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    above: frozenset[int]
    below: frozenset[int]


def _disjuncts(cases: _Cases, inputs: int, name: Callable[[int], str]) -> Iterator[Disjunct]:
    """Cases of one box together; those that no input satisfies are left out."""
    # Cases share most of their constraints, as objects: their box is worked out once.
    places: dict[tuple[int, ...], int | None] = {}  # by bounds; None: there is no such input
    boxes: dict[_Box, int] = {}
    limits = _Limits()
    own: list[list[_Case]] = []
    for case in cases:
        bounds = [c for c in case if not c.outputs]
        rest = tuple(c for c in case if c.outputs or len(c.inputs) > 1)
        key = tuple(map(id, bounds))
        if key not in places:
            box = _box(bounds, inputs, name, limits)
            places[key] = None if box is None else boxes.setdefault(box, len(boxes))
        place = places[key]
        if place is not None:
            if place == len(own):
                own.append([])
            own[place].append(rest)
    for box, mine in zip(boxes, own, strict=True):
        yield Disjunct(box.lower, box.upper, tuple(mine), box.above, box.below)


class _Limits(dict[int, Fraction]):
    """The bounds that constraints on one input set it, by the constraints' identity; equal ones are
    one object."""

    def __init__(self) -> None:
        super().__init__()
        self.same: dict[Fraction, Fraction] = {}

    def of(self, one: Constraint) -> Fraction:
        """The bound -const / c of c x + const <= 0."""
        if id(one) not in self:
            ((_, c),) = one.inputs
            bound = one.const if c is _SIGNS[-1] else -one.const / c
            self[id(one)] = self.same.setdefault(bound, bound)
        return self[id(one)]


def _box(
    bounds: Sequence[Constraint], inputs: int, name: Callable[[int], str], limits: _Limits
) -> _Box | None:
    """The box that constraints on inputs alone leave; None: nothing is left of it."""
    sides = [_Side() for _ in range(2 * inputs)]  # below, and above
    for one in bounds:
        if not one.inputs:
            if not one.holds((), ()):
                return None
        elif len(one.inputs) == 1:
            ((i, c),) = one.inputs
            above = c > 0  # c x + const <= 0
            sides[i + inputs * above].meet(limits.of(one), one.strict, 1 if above else -1)
    known = [side.bound for side in sides if side.bound is not None]
    if len(known) < len(sides):
        missing = next(i for i, side in enumerate(sides) if side.bound is None) % inputs
        raise InvalidInput(f"the input {name(missing)} has no lower or no upper bound in some case")
    open_ = [frozenset(i for i in range(inputs) if sides[i + k].open) for k in (0, inputs)]
    low, high = known[:inputs], known[inputs:]
    if any(a is not b and a > b for a, b in zip(low, high, strict=True)):
        return None
    if any(low[i] == high[i] for i in open_[0] | open_[1]):
        return None
    narrow = _narrowed(low, high, [one for one in bounds if len(one.inputs) > 1])
    if narrow is None:
        return None
    ends = zip(narrow, (low, high), open_, strict=True)
    kept = (frozenset(i for i in o if new[i] == old[i]) for new, old, o in ends)
    return _Box(tuple(narrow[0]), tuple(narrow[1]), *kept)


_Bounds = tuple[list[Fraction], list[Fraction]]


def _narrowed(
    lower: list[Fraction], upper: list[Fraction], constraints: Sequence[Constraint]
) -> _Bounds | None:
    """A box in which all points of another lie that satisfy constraints on several inputs; None:
    there is none. Its ends are doubles where they moved.

    Of c . x + d <= 0 with the least values m_j of c_j x_j over the box, c_i x_i is at most
    m_i - (d + sum m_j).
    """
    if not constraints:
        return lower, upper
    for _ in range(ROUNDS):
        before = lower, upper
        lower, upper = list(lower), list(upper)
        for one in constraints:
            least = [c * before[0 if c > 0 else 1][i] for i, c in one.inputs]
            total = one.const
            for own in least:
                total += own
                if _bits(total) > MOST_BITS:
                    raise InvalidInput(f"it has numbers of more than {MOST_BITS} bits")
            if total > 0 or (total == 0 and one.strict):
                return None
            for (i, c), own in zip(one.inputs, least, strict=True):
                end = _rounded((own - total) / c, np.float64, inf if c > 0 else -inf)
                if np.isfinite(end):
                    if c > 0:
                        upper[i] = min(upper[i], Fraction(end))
                    else:
                        lower[i] = max(lower[i], Fraction(end))
        if any(a > b for a, b in zip(lower, upper, strict=True)):
            return None
        if (lower, upper) == before:
            break
    return lower, upper


def double(value: Fraction) -> float:
    """The nearest double to a rational, infinite beyond them."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _nearest(value: Fraction, low: Fraction, high: Fraction) -> Fraction:
    """The number of a side next to one outside of it: a double, or an end where there is none."""
    end = min(max(value, low), high)
    inwards = inf if end == low else -inf
    near = float(end)
    for double in (near, float(np.nextafter(near, inwards))):
        if low <= Fraction(double) <= high:
            return Fraction(double)
    return end


@lru_cache(1 << 16)
def _is_written(value: Fraction) -> bool:
    """True if a rational is what the shortest digits of a double say."""
    return abs(value) < 1e300 and Fraction(repr(float(value))) == value


def _rounded(value: Fraction, dtype: type[np.floating], towards: float) -> float:
    """The nearest number of a type at or beyond a rational, on the side of `towards`."""
    return _rounded_as(value, np.dtype(dtype).char, towards)


@lru_cache(1 << 16)
def _rounded_as(value: Fraction, kind: str, towards: float) -> float:
    """`_rounded`, of the type with this character."""
    dtype: type[np.floating] = np.dtype(kind).type
    with np.errstate(over="ignore"):
        found = dtype(double(value))

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
