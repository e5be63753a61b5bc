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

    def rows(self, index: Tensor | slice) -> Spec:
        return Spec(self.coef[index])


def margins(label: Tensor, targets: Tensor, outputs: int, dtype: torch.dtype) -> Spec:
    """output[label] - output[target], as one difference per target.

    label is (N,), targets (N, T); a sample certifies when all its margins are positive.
    """
    eye = torch.eye(outputs, dtype=dtype, device=label.device)
    return Spec(eye[label][:, None, :] - eye[targets])


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
    every = torch.arange(outputs, device=label.device).expand(len(label), -1)
    return every[every != label[:, None]].view(len(label), outputs - 1)
