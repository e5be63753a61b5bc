"""Properties of the outputs: clauses of linear inequalities, per sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
class Linear(Property):
    """A property of any clauses, with all coefficients written out."""

    coef: Tensor  # (N, T, outputs)
    const: Tensor  # (N, T)
    clause: Tensor  # (T,)

    @property
    def shape(self) -> tuple[int, int]:
        return self.coef.shape[0], self.coef.shape[1]

    def rows(self, index: Tensor | slice) -> Linear:
        return Linear(self.coef[index], self.const[index], self.clause)

    def pick(self, index: Tensor | slice) -> Tensor:
        return self.coef.flatten(0, 1)[index]

    def sums(self, values: Tensor) -> Tensor:
        return (self.coef @ values[:, :, None]).squeeze(-1)

    def spread(self, radius: Tensor) -> Tensor:
        return (self.coef.abs() @ radius[:, :, None]).squeeze(-1)

    def least(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        terms = torch.where(self.coef > 0, self.coef * lower[:, None], self.coef * upper[:, None])
        return terms.sum(-1), terms.abs().sum(-1)


@dataclass(frozen=True, slots=True)
class LabelWins(Property):
    """output[label] - output[target] > 0 for every target.

    Coefficients are written out row by row: whole, they would be samples times classes squared
    numbers.
    """

    label: Tensor  # (N,)
    targets: Tensor  # (N, T), no label among them
    outputs: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.targets.shape[0], self.targets.shape[1]

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
        return LabelWins(self.label[index], self.targets[index], self.outputs, self.dtype)

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

    def _both(self, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The label's entries (N, 1) of one tensor, the targets' (N, T) of another."""
        return own.gather(1, self.label[:, None]), others.gather(1, self.targets)


def positive(margins: Tensor) -> Tensor:
    """(N,) whether all margins (N, clauses) are positive; NaN and infinity prove nothing."""
    return (torch.isfinite(margins) & (margins > 0)).all(1)


def conjunction(coef: Tensor, const: Tensor | None = None) -> Linear:
    """All of coef (N, T, outputs) . outputs + const (N, T) positive."""
    if const is None:
        const = coef.new_zeros(coef.shape[:2])
    return Linear(coef, const, torch.arange(coef.shape[1], device=coef.device))


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
