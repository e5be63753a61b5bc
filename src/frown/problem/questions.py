"""Conditions by name: sides of a limit, answers that change little, limits, the largest few.

Numbers are exact: a float is the double that it is, a text such as "0.1" the rational that it
says. Where a constant is no double it is rounded so that what is proved implies what was asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import combinations
from math import comb, inf, nextafter
from numbers import Rational, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from frown.errors import InvalidInput
from frown.problem.inputs import labels_of, numbers_of
from frown.problem.property import MOST_LITERALS, Answers, Condition, LinearProperty, OneSide
from frown.problem.vnnlib import read_outputs

Number = float | str | Fraction | Decimal
LARGEST = Fraction(10) ** 300  # constants beyond it leave too little of double precision


@dataclass(frozen=True, eq=False)
class Sides(Condition):
    """Every output stays on its side of a limit; see `threshold` and `multilabel`."""

    limit: Number
    y: ArrayLike | None
    several: bool

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        count, outputs = answers.count, answers.classes
        limit = exact(self.limit, "the threshold")
        if not self.several and outputs != 1:
            raise InvalidInput(
                f"a threshold is for models with one output, and this one has {outputs}: where "
                "each is a label of its own, give frown.multilabel() (--multilabel)"
            )
        if self.y is None:
            side: NDArray[Any] = answers.outputs > _down(limit)  # doubles: above the limit
        elif self.several:
            side = numbers_of(self.y, "labels")
            if side.shape != (count, outputs) or not np.isin(side, (0, 1)).all():
                raise InvalidInput(f"labels must be 0 or 1 and of shape {(count, outputs)}")
        else:
            side = labels_of(self.y, count, 2, numbers=names)[:, None]
        over = torch.from_numpy(side > 0)
        low, high = _around([-limit, limit])
        const, above = torch.where(over, low[0], low[1]), torch.where(over, high[0], high[1])
        coef, every = torch.diag_embed(over.double() * 2 - 1), torch.arange(outputs)
        if self.several:
            return LinearProperty(coef, const, every, above=above)
        label = over[:, 0].long()
        return OneSide(coef, const, every, above=above, label=label, limit=_down(limit))

    @property
    def words(self) -> str:
        which = "every output" if self.several else "the output"
        return f"{which} stays on its side of {self.limit}"


@dataclass(frozen=True, eq=False)
class Within(Condition):
    """Outputs differ by less than a distance from what they were; see `within`."""

    distance: Number
    of: ArrayLike | None

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        count, outputs = answers.count, answers.classes
        held = answers.outputs if self.of is None else numbers_of(self.of, "of")
        if held.shape == (count,) and outputs == 1:
            held = held[:, None]
        if held.shape != (count, outputs) or not np.isfinite(held).all():
            raise InvalidInput(
                f"the values to stay near must be finite and of shape {(count, outputs)}, not "
                f"{held.shape}"
            )
        far, share = self._size
        exactly: list[Fraction] = []  # for every output, of value - distance < y < value + distance
        for value in map(Fraction, held.ravel().tolist()):
            room = far * abs(value) if share else far
            exactly += [room - value, room + value]
        const, above = (ends.reshape(count, -1) for ends in _around(exactly))
        one = torch.eye(outputs, dtype=torch.float64)
        coef = torch.stack([one, 0 - one], 1).view(2 * outputs, outputs)
        every = torch.arange(2 * outputs)
        return LinearProperty(coef.expand(count, -1, -1), const, every, above=above)

    @property
    def _size(self) -> tuple[Fraction, bool]:
        """The distance, and whether it is a share of the value."""
        text = str(self.distance).strip()
        share = text.endswith("%")
        given = text[:-1].strip() if share else self.distance
        size = exact(given, "within") / (100 if share else 1)
        if size <= 0:
            raise InvalidInput(f"within must be a distance above 0 or a share (5%), not {text}")
        return size, share

    @property
    def words(self) -> str:
        what = "what the model answers at the input" if self.of is None else "the value given"
        own = " of that value" if self._size[1] else ""
        return f"every output differs by less than {self.distance}{own} from {what}"


@dataclass(frozen=True, eq=False)
class Limit(Condition):
    """One output is below, or above, a number; see `below` and `above`."""

    output: int
    limit: Number
    sign: int  # 1: above, -1: below

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        if not isinstance(self.output, int) or not 0 <= self.output < answers.classes:
            raise InvalidInput(
                f"the model has outputs 0 to {answers.classes - 1}, and no {self.output!r}"
            )
        coef = torch.zeros(answers.count, 1, answers.classes, dtype=torch.float64)
        coef[:, :, self.output] = float(self.sign)
        constant = -self.sign * exact(self.limit, "the limit")
        const, above = (end.expand(answers.count, 1) for end in _around([constant]))
        return LinearProperty(coef, const, torch.arange(1), above=above)

    @property
    def words(self) -> str:
        return f"output {self.output} is {'above' if self.sign > 0 else 'below'} {self.limit}"


@dataclass(frozen=True, eq=False)
class Top(Condition):
    """The label is among the largest outputs; see `top`."""

    count: int
    y: ArrayLike | None

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        classes, k = answers.classes, self.count
        if not isinstance(k, int) or not 1 <= k < classes:
            raise InvalidInput(
                f"top must be a whole number from 1 to {max(1, classes - 1)}, fewer than the "
                f"model's {classes} outputs, not {k!r}"
            )
        if k * comb(classes - 1, k) > MOST_LITERALS:
            raise InvalidInput(
                f"top {k} of {classes} classes has over {MOST_LITERALS:,} literals: every choice "
                f"of {k} others is a clause"
            )
        y = answers.outputs.argmax(1) if self.y is None else self.y
        label = torch.from_numpy(labels_of(y, answers.count, classes, numbers=names))
        # Of any k other classes, the label beats one: no k of them are as large.
        chosen = torch.tensor(list(combinations(range(classes - 1), k))).flatten()
        other = chosen.expand(answers.count, -1)
        other = other + (other >= label[:, None])
        coef = torch.zeros(*other.shape, classes, dtype=torch.float64)
        coef.scatter_(2, label[:, None, None].expand(-1, len(chosen), 1), 1.0)
        coef.scatter_(2, other[:, :, None], -1.0)
        clause = torch.arange(len(chosen)) // k
        return LinearProperty(coef, coef.new_zeros(other.shape), clause, label=label)

    @property
    def words(self) -> str:
        return f"the label is among the {self.count} largest outputs"


@dataclass(frozen=True, eq=False)
class NeverSatisfied(Condition):
    """The outputs never satisfy what a file in VNN-LIB asserts of them; see `vnnlib`."""

    path: str | Path

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        outputs, cases = read_outputs(self.path)
        if outputs != answers.classes:
            raise InvalidInput(
                f"{self.path} is about {outputs} outputs, and the model has {answers.classes}"
            )
        own = cases.property(outputs)
        return own.rows(torch.zeros(answers.count, dtype=torch.long))

    @property
    def words(self) -> str:
        try:
            digest = sha256(Path(self.path).read_bytes()).hexdigest()[:12]
        except OSError:
            digest = "?"
        return f"what {Path(self.path).name} (sha256 {digest}) asserts of the outputs never holds"


def vnnlib(path: str | Path) -> Condition:
    """The condition that no outputs satisfy a file's assertions about Y_0, Y_1, ... (VNN-LIB 1.0).

    Bounds of the inputs in the file are left aside: where inputs move is said beside it. Raises
    InvalidInput, when it is used, for files that mix inputs and outputs.
    """
    return NeverSatisfied(path)


def threshold(limit: Number = "0.5", y: ArrayLike | None = None) -> Condition:
    """The condition that a model's one output stays on its side of a limit.

    Args:
        limit: of the output itself: of a model that ends in a sigmoid, a probability.
        y: (N,) 1 for inputs whose output is to be above the limit, 0 for below; None: the model's
            own side at each input.

    Raises InvalidInput, when it is used, for models with several outputs.
    """
    return Sides(limit, y, several=False)


def multilabel(limit: Number = "0.5", y: ArrayLike | None = None) -> Condition:
    """The condition that every output stays on its side of a limit: labels beside one another.

    Args:
        limit: of the outputs.
        y: (N, outputs) 1 where a label applies, 0 where not; None: the model's own answers.
    """
    return Sides(limit, y, several=True)


def within(distance: Number, of: ArrayLike | None = None) -> Condition:
    """The condition that every output stays closer than a distance to what it was.

    Args:
        distance: a number, or a share of each output as text, such as "5%".
        of: (N, outputs) values to stay near; None: the model's answers at the inputs.
    """
    return Within(distance, of)


def below(output: int, limit: Number) -> Condition:
    """The condition that an output is below a limit; outputs are counted from 0."""
    return Limit(output, limit, -1)


def above(output: int, limit: Number) -> Condition:
    """The condition that an output is above a limit; outputs are counted from 0."""
    return Limit(output, limit, 1)


def top(k: int, y: ArrayLike | None = None) -> Condition:
    """The condition that fewer than k other classes are as large as the label.

    Args:
        k: how many outputs count as the largest.
        y: (N,) labels; None: the model's own answers.

    Raises InvalidInput, when it is used, where all choices of k classes are too many.
    """
    return Top(k, y)


def exact(number: object, what: str) -> Fraction:
    """The rational that a number is, or that a text says; InvalidInput where it is none."""
    try:
        if isinstance(number, str):
            if len(number) > 100 or re.search(r"[eE][+-]?\d{4}", number):
                raise ValueError
            found = Fraction(number.strip())
        elif isinstance(number, Rational | Decimal):
            found = Fraction(number)
        elif isinstance(number, Real):
            found = Fraction(float(number))
        else:
            raise ValueError
        if abs(found) <= LARGEST:
            return found
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    raise InvalidInput(f"{what} must be a finite number of at most 1e300 in size, not {number!r}")


def _around(values: list[Fraction]) -> tuple[Tensor, Tensor]:
    """The nearest doubles that are not above rationals, and those that are not below them."""
    both = torch.tensor([(_down(v), _up(v)) for v in values], dtype=torch.float64)
    return both[:, 0], both[:, 1]


def _down(value: Fraction) -> float:
    """The largest double not above a rational."""
    near = float(value)
    return near if Fraction(near) <= value else nextafter(near, -inf)


def _up(value: Fraction) -> float:
    """The least double not below a rational."""
    return -_down(-value)
