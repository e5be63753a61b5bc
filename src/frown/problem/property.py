"""Properties of the outputs: clauses of linear inequalities, per sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from itertools import combinations, pairwise
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from frown.errors import InvalidInput
from frown.problem.inputs import labels_of, numbers_below, numbers_of, targets_of

_UNIT = 2.0**-53
SUMMED = 6  # literals of a clause of which sums are made, at the most
WEIGHTS = (2.0**-6, 2.0**-3, 1.0, 2.0**3, 2.0**6)  # of the second of two literals in a sum


class Property(ABC):
    """Every clause has a literal coef . outputs + const > 0 (conjunctive normal form).

    N samples have T literals each. A point violates the property where all literals of some
    clause are <= 0. Not for conditions on the inputs: those are a region's.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The number of samples, and of literals of each."""

    @property
    @abstractmethod
    def const(self) -> Tensor:
        """(N, T) the literals' constants."""

    @property
    @abstractmethod
    def clause(self) -> Tensor:
        """(T,) the clause of each literal, from 0 in rising order."""

    @abstractmethod
    def rows(self, index: Tensor | slice) -> Self:
        """The properties of these samples."""

    @abstractmethod
    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """A copy in another precision, on another device."""

    @abstractmethod
    def pick(self, index: Tensor | slice) -> Tensor:
        """(rows, outputs) coefficients of some literals, counted through all samples."""

    @abstractmethod
    def sums(self, values: Tensor) -> Tensor:
        """(N, T) coef . values (N, outputs)."""

    @abstractmethod
    def spread(self, radius: Tensor) -> Tensor:
        """(N, T) how far literals move where each output moves by its radius (N, outputs)."""

    @abstractmethod
    def least(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T) the least coef . outputs over intervals, and their terms' sizes added up."""

    def predicted(self, outputs: NDArray[Any]) -> NDArray[np.int64]:
        """(N,) the class that a model names with these outputs: that of the largest."""
        return np.asarray(outputs.argmax(1), np.int64)

    def admits(self, answer: Tensor) -> Tensor:
        """(N,) whether the property may hold where a model's largest output is `answer` (N,)."""
        return torch.ones_like(answer, dtype=torch.bool)

    def labels(self) -> Tensor | None:
        """(N,) the class that each sample's property is about; None: it is about none."""
        return None

    def digest(self, n: int) -> str:
        """A digest of all that the property asks of sample n; empty where label and target say
        it."""
        return ""

    def fails(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """(N,) whether the samples' outputs (N, outputs), taken as exact, violate the property."""
        values = torch.from_numpy(np.asarray(outputs, np.float64))
        return violated(self.margins(self.literals(values)).numpy())

    @property
    def clauses(self) -> int:
        """The number of clauses."""
        return int(self.clause[-1]) + 1 if len(self.clause) else 0

    @property
    def single(self) -> bool:
        """True if every clause is one literal, so that margins are the literals."""
        return self.clauses == len(self.clause)

    def literals(self, outputs: Tensor) -> Tensor:
        """(N, T) the literals' values at outputs (N, outputs)."""
        return self.sums(outputs) + self.const

    def margins(self, literals: Tensor) -> Tensor:
        """(N, clauses) the greatest literal of each clause, from values or lower bounds (N, T)."""
        if self.single:
            return literals
        least = literals.new_full((len(literals), self.clauses), -torch.inf)
        return least.scatter_reduce(1, self.clause.expand_as(literals), literals, "amax")

    def holds(self, literals: Tensor) -> Tensor:
        """(N,) whether lower bounds (N, T) of the literals prove the property."""
        return positive(self.margins(literals))


@dataclass(frozen=True, slots=True)
class LinearProperty(Property):
    """A property of any clauses, with all coefficients written out.

    Constants that are no doubles are rounded down, so that what is proved implies what was asked;
    `above` has them rounded up, by which points are judged.
    """

    coef: Tensor  # (N, T, outputs)
    const: Tensor  # (N, T)
    clause: Tensor  # (T,)
    above: Tensor | None = field(default=None, kw_only=True)  # (N, T) None: const is exact
    label: Tensor | None = field(default=None, kw_only=True)  # (N,) None: it is about no class

    @property
    def shape(self) -> tuple[int, int]:
        return self.coef.shape[0], self.coef.shape[1]

    def rows(self, index: Tensor | slice) -> Self:
        above = None if self.above is None else self.above[index]
        label = None if self.label is None else self.label[index]
        return replace(
            self, coef=self.coef[index], const=self.const[index], above=above, label=label
        )

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        return replace(
            self,
            coef=self.coef.to(device, dtype),
            const=self.const.to(device, dtype),
            clause=self.clause.to(device),
            above=None if self.above is None else self.above.to(device, dtype),
            label=None if self.label is None else self.label.to(device),
        )

    def labels(self) -> Tensor | None:
        return self.label

    def digest(self, n: int) -> str:
        return literals_digest(self.coef[n], self.const[n], self.clause)

    def with_sums(self) -> tuple[Self, Tensor]:
        """A property that says the same with more literals, and (T,) which of them are new.

        A sum of two literals of a clause, with positive weights, is above 0 only where one of them
        is; bounds can prove it where they prove neither. Weights are powers of 2. Sums whose
        coefficients would round are left out, and their constants are rounded down.
        """
        coef, const, clause = [self.coef], [self.const], [self.clause]
        for i, j in self._pairs():
            for weight in WEIGHTS:
                a, b = self.coef[:, i], self.coef[:, j] * weight
                c, d = self.const[:, i], self.const[:, j] * weight
                total, level = a + b, c + d
                exact = torch.cat(
                    [(two_sum_error(a, b, total) == 0), b / weight == self.coef[:, j]]
                )
                whole = (d / weight == self.const[:, j]) & level.isfinite() & total.any(-1)
                if not bool(exact.all() and whole.all()):
                    continue
                low = torch.nextafter(level, torch.full_like(level, -torch.inf))
                coef.append(total[:, None])
                const.append(torch.where(two_sum_error(c, d, level) == 0, level, low)[:, None])
                clause.append(self.clause[i : i + 1])
        every = torch.cat(clause)
        order = every.argsort(stable=True)
        wide = replace(
            self,
            coef=torch.cat(coef, 1)[:, order],
            const=torch.cat(const, 1)[:, order],
            clause=every[order],
        )
        return wide, order >= len(self.clause)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs of literals of a clause that has a few; none where their doubles are not exact."""
        if self.above is None and not self.single:
            starts = torch.bincount(self.clause).cumsum(0).tolist()
            for first, end in pairwise([0, *starts]):
                if end - first <= SUMMED:
                    yield from combinations(range(first, end), 2)

    def only(self, literal: Tensor) -> Self:
        """A property of these literals alone (T,), some of every clause."""
        above = None if self.above is None else self.above[:, literal]
        coef, const, clause = self.coef[:, literal], self.const[:, literal], self.clause[literal]
        return replace(self, coef=coef, const=const, clause=clause, above=above)

    def fails(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        values = np.asarray(outputs, np.float64)
        coef, top = self.coef.numpy(), (self.const if self.above is None else self.above).numpy()
        terms = coef * values[:, None]
        with np.errstate(invalid="ignore", over="ignore"):
            found = terms.sum(-1) + top
            off = (np.abs(terms).sum(-1) + np.abs(top)) * (2 * (terms.shape[-1] + 4) * _UNIT)
            at_most = found <= 0
            doubtful = np.isfinite(found) & np.isfinite(off) & ~(np.abs(found) > off)
        for n, t in np.argwhere(doubtful).tolist():
            products = zip(coef[n, t].tolist(), values[n].tolist(), strict=True)
            exact = sum((Fraction(c) * Fraction(v) for c, v in products), Fraction(top[n, t]))
            at_most[n, t] = exact <= 0
        above = np.zeros((len(values), self.clauses), dtype=np.int64)  # literals that may hold
        np.add.at(above.T, self.clause.numpy(), ~at_most.T)
        fails: NDArray[np.bool_] = (above == 0).any(axis=1)
        return fails

    def pick(self, index: Tensor | slice) -> Tensor:
        return self.coef.flatten(0, 1)[index]

    def sums(self, values: Tensor) -> Tensor:
        return (self.coef @ values[:, :, None]).squeeze(-1)

    def spread(self, radius: Tensor) -> Tensor:
        return (self.coef.abs() @ radius[:, :, None]).squeeze(-1)

    def least(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        terms = torch.where(self.coef > 0, self.coef * lower[:, None], self.coef * upper[:, None])
        return terms.sum(-1), terms.abs().sum(-1)


def two_sum_error(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """The rounding error of a sum of two tensors, exactly (Knuth); NaN where it overflows."""
    part = total - a
    return (a - (total - part)) + (b - part)


@dataclass(frozen=True, slots=True)
class OneSide(LinearProperty):
    """One output stays on a side of a limit: above it where the label is 1, below where it is 0."""

    limit: float = field(kw_only=True)

    def predicted(self, outputs: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(outputs[:, 0] > self.limit, np.int64)


@dataclass(frozen=True)
class LabelWins(Property):
    """output[label] - output[target] > 0 for every target.

    Coefficients are written out row by row: whole, they would be samples times classes squared
    numbers.
    """

    label: Tensor  # (N,)
    only: Tensor | None  # (N, T) the targets, no label among them; None: every other class
    outputs: int
    dtype: torch.dtype

    @cached_property
    def targets(self) -> Tensor:
        """(N, T) the classes that each label is compared with."""
        return other_classes(self.label, self.outputs) if self.only is None else self.only

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.label), self.outputs - 1 if self.only is None else self.only.shape[1]

    @property
    def const(self) -> Tensor:
        zero = torch.zeros((), dtype=self.dtype, device=self.label.device)
        return zero.expand(self.shape)

    @property
    def clause(self) -> Tensor:
        return torch.arange(self.shape[1], device=self.label.device)

    @property
    def single(self) -> bool:
        return True

    @property
    def coef(self) -> Tensor:
        """(N, T, outputs) all coefficients."""
        return self.pick(slice(None)).view(*self.shape, self.outputs)

    def rows(self, index: Tensor | slice) -> LabelWins:
        only = None if self.only is None else self.only[index]
        return LabelWins(self.label[index], only, self.outputs, self.dtype)

    def to(self, dtype: torch.dtype, device: torch.device) -> LabelWins:
        only = None if self.only is None else self.only.to(device)
        return LabelWins(self.label.to(device), only, self.outputs, dtype)

    def pick(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(self.targets.numel()), device=self.label.device)
        target, label = self.targets.flatten()[index], self.label[index // self.shape[1]]
        coef = torch.zeros(len(target), self.outputs, dtype=self.dtype, device=target.device)
        coef.scatter_(1, label[:, None], 1.0)
        return coef.scatter_(1, target[:, None], -1.0)

    def sums(self, values: Tensor) -> Tensor:
        own, others = self._both(values, values)
        return own - others

    def literals(self, outputs: Tensor) -> Tensor:
        return self.sums(outputs)

    def spread(self, radius: Tensor) -> Tensor:
        own, others = self._both(radius, radius)
        return own + others

    def least(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        own, others = self._both(lower, upper)
        return own - others, own.abs() + others.abs()

    def admits(self, answer: Tensor) -> Tensor:
        return answer == self.label

    def labels(self) -> Tensor:
        return self.label

    def _both(self, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The label's entries (N, 1) of one tensor, the targets' (N, T) of another."""
        return own.gather(1, self.label[:, None]), others.gather(1, self.targets)


def literals_digest(*parts: ArrayLike) -> str:
    """SHA-256 of coefficients, constants and clauses as little-endian doubles."""
    content = b"".join(np.ascontiguousarray(part, "<f8").tobytes() for part in parts)
    return sha256(content).hexdigest()


def positive(margins: Tensor) -> Tensor:
    """(N,) whether all margins (N, clauses) are positive; NaN and infinity prove nothing."""
    return (torch.isfinite(margins) & (margins > 0)).all(1)


def conjunction(coef: Tensor, const: Tensor | None = None) -> LinearProperty:
    """All of coef (N, T, outputs) . outputs + const (N, T) positive."""
    if const is None:
        const = coef.new_zeros(coef.shape[:2])
    return LinearProperty(coef, const, torch.arange(coef.shape[1], device=coef.device))


@overload
def violated(margins: Tensor) -> Tensor: ...
@overload
def violated(margins: NDArray[np.floating[Any]]) -> NDArray[np.bool_]: ...
def violated(margins: Any) -> Any:
    """(...,) whether the property fails at a point, from its margins (..., clauses): some is <= 0.

    That makes a point of the region a counterexample, and an input misclassified: the label does
    not win strictly. A tie is one, whichever of the tied classes argmax names; NaN is not: it is
    no answer at all.
    """
    return (margins <= 0).any(-1)


def other_classes(label: Tensor, outputs: int) -> Tensor:
    """(N, outputs - 1) every class but the label: the untargeted case."""
    every = torch.arange(outputs - 1, device=label.device).expand(len(label), -1)
    return every + (every >= label[:, None])


# -- as users say it -----------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """The outputs of a model at some inputs, computed on demand."""

    count: int
    classes: int
    compute: Callable[[], NDArray[Any]]

    @cached_property
    def outputs(self) -> NDArray[np.float64]:
        """(N, classes)"""
        return np.asarray(self.compute(), np.float64)


class Condition(ABC):
    """A property as users say it, before models and inputs are known."""

    @abstractmethod
    def on(self, answers: Answers, names: NDArray[np.int64]) -> Property:
        """The property of inputs that a model answers so, in double precision.

        `names` (N,) are what messages call the inputs. Raises InvalidInput where it makes no sense.
        """

    @property
    @abstractmethod
    def words(self) -> str:
        """The condition, to stand behind "property: "; empty where labels are to win."""

    @property
    def target(self) -> str:
        """The classes that must not overtake a label: all others, or which."""
        return "all"

    def __and__(self, other: Condition) -> Condition:
        """Both hold."""
        return _Joined(self, other, "and") if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: Condition) -> Condition:
        """One of the two holds, at some inputs of a region the one and at some the other."""
        return _Joined(self, other, "or") if isinstance(other, Condition) else NotImplemented


MOST_LITERALS = 20_000  # of a property that is written out
MOST_WRITTEN = 12  # literals in words


@dataclass(frozen=True, eq=False)
class _Joined(Condition):
    """Two conditions, of which both hold or one."""

    first: Condition
    second: Condition
    how: str  # and, or

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        parts = [written_out(c.on(answers, names)) for c in (self.first, self.second)]
        a, b = (_places(part.clause) for part in parts)
        if self.how == "and":
            chosen: list[tuple[list[int], list[int]]]
            chosen = [([*places], []) for places in a] + [([], [*places]) for places in b]
        else:
            if sum(len(i) + len(j) for i in a for j in b) > MOST_LITERALS:
                raise InvalidInput(
                    f"written out, this alternative has over {MOST_LITERALS:,} literals: join "
                    "conditions of fewer clauses by |"
                )
            chosen = [([*i], [*j]) for i in a for j in b]
        shift = parts[0].shape[1]
        literal = torch.tensor([t for i, j in chosen for t in (*i, *(shift + k for k in j))])
        clause = torch.tensor([c for c, (i, j) in enumerate(chosen) for _ in (*i, *j)])
        coef = torch.cat([part.coef for part in parts], 1)[:, literal]
        tops = [part.const if part.above is None else part.above for part in parts]
        return LinearProperty(
            coef,
            torch.cat([part.const for part in parts], 1)[:, literal],
            clause,
            above=torch.cat(tops, 1)[:, literal],
            label=_one_label(*(None if isinstance(p, OneSide) else p.label for p in parts)),
        )

    @property
    def words(self) -> str:
        said = []
        for part in (self.first, self.second):
            words = part.words or _wins(part.target)
            inner = isinstance(part, _Joined) and part.how != self.how
            said.append(f"({words})" if inner else words)
        return f", {self.how} ".join(said)


def _wins(target: str) -> str:
    """The words for a label that wins over all other classes, or over a target."""
    if target == "all":
        return "the label has the largest output"
    if target.startswith("+"):
        return f"the label's output exceeds that of the class label {target.replace('+', '+ ')}"
    if target == GIVEN:
        return "the label's output exceeds that of its target class"
    return f"the label's output exceeds that of class {target}"


def _one_label(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The labels that both of two properties are about, or the one that has some."""
    if first is None or second is None:
        return second if first is None else first
    return first if torch.equal(first, second) else None


def _places(clause: Tensor) -> list[list[int]]:
    """The literals of every clause."""
    found: list[list[int]] = [[] for _ in range(int(clause[-1]) + 1)]
    for t, c in enumerate(clause.tolist()):
        found[c].append(t)
    return found


def written_out(property: Property) -> LinearProperty:
    """A property with all of its coefficients."""
    if isinstance(property, LinearProperty):
        return property
    coef = property.pick(slice(None)).view(*property.shape, -1)
    return LinearProperty(coef, property.const, property.clause, label=property.labels())


@dataclass(frozen=True, eq=False)
class Labels(Condition):
    """The label has the largest output; see `label_wins`."""

    y: ArrayLike | None = None
    against: object = None

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LabelWins:
        count, classes = answers.count, answers.classes
        y = answers.outputs.argmax(1) if self.y is None else self.y
        label = labels_of(y, count, classes, numbers=names)
        if classes < 2:
            raise InvalidInput(
                "the model has one output, and a label needs another to win against; say what must "
                "hold of it: frown.threshold(0.5) or frown.within(0.1), on the command line "
                "--threshold 0.5 or --within 0.1"
            )
        target = targets_of(self.against, label, classes, names)
        only = None if target is None else torch.from_numpy(target)[:, None]
        return LabelWins(torch.from_numpy(label), only, classes, torch.float64)

    @property
    def words(self) -> str:
        return ""

    @property
    def target(self) -> str:
        if self.against is None:
            return "all"
        one = isinstance(self.against, str) or np.ndim(self.against) == 0  # type: ignore[arg-type]
        return str(self.against).strip() if one else GIVEN


GIVEN = "given"  # a target for each input


@dataclass(frozen=True, eq=False)
class Clauses(Condition):
    """Any property of linear functions of the outputs, the same for all inputs.

    Args:
        coef: (T, outputs) coefficients of T literals.
        const: (T,) or one number; literal t is coef[t] . outputs + const[t] > 0. One that is no
            double (a text, a fraction) is rounded down.
        clause: (T,) the clause of each literal, numbered from 0 in rising order. Every clause must
            have a literal that holds; None: all literals must hold.
        said: the property in words, for reports; empty: its literals, written out.

    Raises InvalidInput, when it is used, for what does not fit the model. Where labels are to win,
    `label_wins` is faster and shows classes.
    """

    coef: ArrayLike
    const: ArrayLike = 0.0
    clause: ArrayLike | None = None
    said: str = ""

    def on(self, answers: Answers, names: NDArray[np.int64]) -> LinearProperty:
        count, classes = answers.count, answers.classes
        coef, const, clause = self._literals()
        if coef.shape[1] != classes:
            raise InvalidInput(f"coef must be finite and (K, {classes}), not {coef.shape}")
        return LinearProperty(
            torch.from_numpy(coef).expand(count, -1, -1),
            torch.from_numpy(const.copy()).expand(count, -1),
            torch.from_numpy(clause),
        )

    def _literals(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Coefficients, constants and clauses of the literals, for the proof and for its words."""
        coef = np.atleast_2d(numbers_of(self.coef, "coef"))
        if coef.ndim != 2 or not coef.size or not np.isfinite(coef).all():
            raise InvalidInput(f"coef must be finite and (K, outputs), not {coef.shape}")
        const = np.broadcast_to(numbers_below(self.const, "const"), len(coef))
        given = np.arange(len(coef)) if self.clause is None else self.clause
        clause = numbers_of(given, "clause")
        steps = np.diff(clause, prepend=clause[:1])
        if clause.shape != (len(coef),) or clause[0] != 0 or not np.isin(steps, (0, 1)).all():
            raise InvalidInput("clause has every literal's clause: 0, 0, 1, ... in rising order")
        return coef, const, clause.astype(np.int64)

    @property
    def words(self) -> str:
        coef, const, clause = self._literals()
        digest = f"(sha256 {literals_digest(coef, const, clause)[:12]})"
        if self.said:
            return f"{self.said} {digest}"
        if len(coef) > MOST_WRITTEN:
            return f"{len(coef)} literals in {int(clause[-1]) + 1} clauses {digest}"
        clauses: dict[int, list[str]] = {}
        for row, constant, one in zip(coef, const, clause.tolist(), strict=True):
            terms = [f"{c:.17g} y[{k}]" for k, c in enumerate(row) if c]
            terms += [f"{constant:.17g}"] if constant or not terms else []
            clauses.setdefault(one, []).append(f"{' + '.join(terms)} > 0")
        return f"{'; '.join(' or '.join(c) for c in clauses.values())} {digest}"


def label_wins(y: ArrayLike | None = None, target: object = None) -> Labels:
    """The condition that the label's output exceeds all others, or a target's alone.

    Args:
        y: (N,) labels, or one for all; None: the model's own answers.
        target: None (every other class), a class, an array of classes, or "+K" (label + K, modulo
            the classes).

    Raises InvalidInput, when it is used, for labels that are no classes of the model, and for a
    model with one output that is no sigmoid: give `threshold` or `within` there.
    """
    return Labels(y, target)


def condition_of(holds: object) -> Condition:
    """A condition as users give it; labels, or nothing, mean that these win."""
    return holds if isinstance(holds, Condition) else Labels(holds)  # type: ignore[arg-type]
