"""A query put to a model: its boxes and cases as arrays, verdicts, and witnesses.

A witness is an input in the network's own element type. It counts when it lies in the box that was
asked, exactly, and the outputs of the original model there satisfy the constraints, exactly.

An input that is fixed at the digits of a double is that double. Where the element type has no
number between an input's bounds, the witness has one of the bounds: the original model is given the
nearest number of its type, the imported graph, in double precision, the bound, and the answers of
both must satisfy the constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from frown.errors import InvalidInput
from frown.problem.property import Answers, Condition, LinearProperty
from frown.problem.vnnlib import Declared, VnnLib, double
from frown.read.model import Model

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Witness:
    """An input that satisfies a query, and the original model's outputs there."""

    x: NDArray[np.floating]  # (*input shape), in the network's element type
    y: NDArray[np.floating]  # (outputs,)
    disjunct: int  # the first of the query's that it satisfies
    stated: tuple[Fraction, ...]  # x with numbers of the box where the element type has none

    @property
    def instead(self) -> int:
        """The number of inputs that x has others for."""
        given = self.x.ravel().tolist()
        return sum(
            s not in (Fraction(v), Fraction(repr(v)))
            for s, v in zip(self.stated, given, strict=True)
        )

    def digits(self) -> list[str]:
        """The numbers stated, in decimal digits."""
        return [written for v in self.stated if (written := digits_of(v)) is not None]


# What a verdict can be, and what it means.
ANSWERS = {
    "sat": "an input satisfies the query; the original model answers it so",
    "unsat": "no input satisfies the query: proved with all rounding errors accounted for",
    "unknown": "neither was found, and nothing is left to try",
    "timed-out": "neither was found within the time limit",
}


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer to a query.

    `unsat` is proved for the real-valued network, over boxes that contain those that were asked,
    and graph and original have agreed on points of every one of them. `sat` has a witness.
    """

    answer: str  # a key of ANSWERS
    witness: Witness | None = None  # of `sat`
    disjuncts: int = 0  # boxes with cases that the query consists of
    proved: int = 0  # of these, how many are refuted
    level: str = "rigorous"  # of `unsat`; "checked": the independent checker accepted its proof
    certificate: bytes = field(default=b"", repr=False)  # the proof of `unsat`, where one was asked
    remarks: tuple[str, ...] = ()  # what a reader must know
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Unsatisfied(Condition):
    """The condition that outputs satisfy no case of any disjunct."""

    refuting: LinearProperty  # a property of every disjunct

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        return self.refuting

    @property
    def words(self) -> str:
        return "no input of the box satisfies the query"


@dataclass(frozen=True, eq=False)
class Group:
    """Disjuncts whose cases have the same numbers of constraints, so that one property serves."""

    index: NDArray[np.int64]  # (D,) their places in the query
    lower: Array  # (D, *input shape): the boxes to prove, which contain those that are asked
    upper: Array
    inner: tuple[NDArray[np.floating], NDArray[np.floating]]  # where witnesses lie; may be empty
    refuting: LinearProperty  # the property of each that, where it holds, refutes it

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class PosedQuery:
    """A query that fits a model."""

    model: Model
    query: VnnLib
    element: type[np.floating]

    @classmethod
    def of(cls, model: Model, query: VnnLib, real: bool = False) -> PosedQuery:
        """Put a query to a model; `real`: of whatever type a query of VNN-LIB 2 declares its
        tensors, it is asked of real numbers.

        Raises InvalidInput where sizes, shapes or types differ, and where floating point types are
        declared and not `real`: proofs are about the real-valued network.
        """
        inputs, outputs = prod(model.input_shape), model.classes
        if (query.inputs, query.outputs) != (inputs, outputs):
            raise InvalidInput(
                f"the query has {query.inputs} inputs and {query.outputs} outputs, the network "
                f"{model.name} {inputs} and {outputs}"
            )
        if query.declared is not None:
            _require_fit(model, query.declared, real)
        return cls(model, query, model.element)

    @property
    def bounded(self) -> Model:
        """The model whose outputs the groups' properties are about: with its inputs behind them
        where the query's constraints are about both."""
        return self.model.with_inputs() if self.query.mixed else self.model

    def groups(self) -> Iterator[Group]:
        """The disjuncts, like ones together."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for k, one in enumerate(self.query.disjuncts):
            alike.setdefault(tuple(max(1, len(case)) for case in one.cases), []).append(k)
        for index in alike.values():
            yield self._group(index)

    def _group(self, index: list[int]) -> Group:
        shape = (len(index), *self.model.input_shape)
        own = [self.query.disjuncts[k] for k in index]
        boxes = [one.around(np.float64) for one in own]
        inner = [one.within(self.element) for one in own]
        parts = [one.property(self.query.outputs, self.query.mixed) for one in own]
        return Group(
            np.array(index),
            np.stack([low for low, _ in boxes]).reshape(shape),
            np.stack([high for _, high in boxes]).reshape(shape),
            (
                np.stack([low for low, _ in inner]).reshape(shape),
                np.stack([high for _, high in inner]).reshape(shape),
            ),
            LinearProperty(
                torch.cat([part.coef for part in parts]),
                torch.cat([part.const for part in parts]),
                parts[0].clause,
            ),
        )

    def replayed(self, points: Iterable[NDArray[np.floating]]) -> Witness | None:
        """The first of some inputs (*input shape) that is a witness."""
        for point in points:
            x = np.asarray(point, self.element).reshape(self.model.input_shape)
            if not np.isfinite(x).all():
                continue
            y = np.asarray(self.model.run(x[None]))[0]  # alone, as whoever checks it runs it
            if not np.isfinite(y).all():
                continue
            given, answered = _exact(x), _exact(y)
            for k in self._around(x):
                one = self.query.disjuncts[k]
                read = one.reading(given, self.element)
                if not one.satisfied(read, answered):
                    continue
                if None in map(digits_of, read):
                    continue
                stated = np.array([float(v) for v in read]).reshape(x.shape)
                if (stated == x).all() or one.satisfied(read, self._computed(stated)):
                    return Witness(x, y.astype(self.element), k, tuple(read))
        return None

    def _computed(self, x: Array) -> list[Fraction]:
        """The graph's answer in double precision, where the original is given other numbers."""
        graph = self.model.graph.to(torch.float64)
        return _exact(graph.apply(torch.from_numpy(x)[None])[0].numpy())

    @cached_property
    def _boxes(self) -> tuple[Array, Array]:
        """(disjuncts, inputs) the boxes, rounded to doubles."""
        low = [[double(v) for v in one.lower] for one in self.query.disjuncts]
        high = [[double(v) for v in one.upper] for one in self.query.disjuncts]
        return np.array(low), np.array(high)

    def _around(self, x: NDArray[np.floating]) -> list[int]:
        """The disjuncts whose boxes a point is in, or as near to as rounding takes it."""
        low, high = self._boxes
        point = x.astype(np.float64).ravel()
        room = np.finfo(self.element).eps * np.abs(point) + np.finfo(self.element).tiny
        near = (low - room <= point) & (point <= high + room)
        return np.flatnonzero(near.all(1)).tolist()


def _require_fit(model: Model, declared: Declared, real: bool) -> None:
    """Raise InvalidInput unless a network is as a query of VNN-LIB 2 declares it."""
    both = (declared.input, model.input_shape), (declared.output, model.graph.nodes[-1].shape)
    for tensor, shape in both:
        # Axes of 1, a batch among them, move no entry.
        if [n for n in tensor.shape if n != 1] != [n for n in shape if n != 1]:
            raise InvalidInput(
                f"{tensor.name} is declared as {list(tensor.shape)}, and {model.name} has "
                f"{list(shape)} there"
            )
    if declared.input.real != declared.output.real:
        raise InvalidInput("real stands for all tensors of a query, or for none")
    for tensor, element in zip((declared.input, declared.output), model.elements, strict=True):
        if tensor.real:
            continue
        if tensor.element != element:
            raise InvalidInput(
                f"{tensor.name} is declared as {tensor.element}, and {model.name} has {element} "
                "there; real stands for either"
            )
        if not real:
            raise InvalidInput(
                f"{tensor.name} is declared as {element} (theory {element.upper()}), and what is "
                "proved is true of the real-valued network (theory REAL): write real in its place, "
                "or give --real to read it so"
            )


def digits_of(value: Fraction) -> str | None:
    """A number in decimal digits: the shortest of its double, where they or the double are that
    number, and otherwise all of its own. None: it has no end."""
    text = repr(float(value))
    if value in (Fraction(text), Fraction(float(text))):
        return text
    rest, places = value.denominator, 0
    while rest != 1:
        factor = next((f for f in (10, 5, 2) if rest % f == 0), None)
        if factor is None:
            return None
        rest, places = rest // factor, places + 1
    whole = f"{abs(int(value * 10**places)):0{places + 1}d}"
    return f"{'-' * (value < 0)}{whole[:-places] if places else whole}.{whole[-places:]}"


def _exact(values: NDArray[np.floating]) -> list[Fraction]:
    return [Fraction(v) for v in values.ravel().tolist()]
