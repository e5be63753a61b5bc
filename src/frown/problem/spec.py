"""What is to be bounded below: linear functions of the outputs, several per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Spec:
    """coef[n, t] . outputs for every sample n and condition t."""

    coef: Tensor  # (N, T, outputs)

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and conditions of each."""
        return self.coef.shape[0], self.coef.shape[1]

    def rows(self, index: Tensor | slice) -> Spec:
        return Spec(self.coef[index])

    def pick(self, index: Tensor | slice) -> Tensor:
        """(rows, outputs) coefficients of some conditions, counted through all samples."""
        return self.coef.flatten(0, 1)[index]

    def at(self, outputs: Tensor) -> Tensor:
        """(N, T) the conditions' values at outputs (N, outputs)."""
        return (self.coef @ outputs[:, :, None]).squeeze(-1)

    def spread(self, radius: Tensor) -> Tensor:
        """(N, T) how far the conditions move where each output moves by its radius."""
        return (self.coef.abs() @ radius[:, :, None]).squeeze(-1)

    def least(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T) the conditions' least values over intervals, and their terms' sizes added up."""
        terms = torch.where(self.coef > 0, self.coef * lower[:, None], self.coef * upper[:, None])
        return terms.sum(-1), terms.abs().sum(-1)


@dataclass(frozen=True, slots=True)
class Margins:
    """output[label] - output[target], a `Spec` that is written out row by row: whole, it has
    samples times classes squared numbers."""

    label: Tensor  # (N,)
    targets: Tensor  # (N, T), no label among them
    outputs: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.targets.shape[0], self.targets.shape[1]

    @property
    def coef(self) -> Tensor:
        """(N, T, outputs) all coefficients."""
        return self.pick(slice(None)).view(*self.shape, self.outputs)

    def rows(self, index: Tensor | slice) -> Margins:
        return Margins(self.label[index], self.targets[index], self.outputs, self.dtype)

    def pick(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(self.targets.numel()), device=self.label.device)
        target, label = self.targets.flatten()[index], self.label[index // self.shape[1]]
        coef = torch.zeros(len(target), self.outputs, dtype=self.dtype, device=target.device)
        coef.scatter_(1, label[:, None], 1.0)
        return coef.scatter_(1, target[:, None], -1.0)

    def at(self, outputs: Tensor) -> Tensor:
        own, others = self._both(outputs, outputs)
        return own - others

    def spread(self, radius: Tensor) -> Tensor:
        own, others = self._both(radius, radius)
        return own + others

    def least(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        own, others = self._both(lower, upper)
        return own - others, own.abs() + others.abs()

    def _both(self, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The label's entries (N, 1) of one tensor, the targets' (N, T) of another."""
        return own.gather(1, self.label[:, None]), others.gather(1, self.targets)


Conditions = Spec | Margins


def margins(label: Tensor, targets: Tensor, outputs: int, dtype: torch.dtype) -> Margins:
    """output[label] - output[target], as one difference per target.

    label is (N,), targets (N, T); a sample certifies when all its margins are positive.
    """
    return Margins(label, targets, outputs, dtype)


@overload
def violated(conditions: Tensor) -> Tensor: ...
@overload
def violated(conditions: NDArray[np.floating[Any]]) -> NDArray[np.bool_]: ...
def violated(conditions: Any) -> Any:
    """(...,) whether the property fails, of conditions (..., T) at a point: some margin is <= 0.

    That makes a point of the region a counterexample, and an input misclassified: the label does
    not win strictly. A tie is one, whichever of the tied classes argmax names; NaN is not: it is
    no answer at all.
    """
    return (conditions <= 0).any(-1)


def other_classes(label: Tensor, outputs: int) -> Tensor:
    """(N, outputs - 1) every class but the label: the untargeted case."""
    every = torch.arange(outputs - 1, device=label.device).expand(len(label), -1)
    return every + (every >= label[:, None])
