"""What is to be bounded below: linear functions of the outputs, several per sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
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


def other_classes(label: Tensor, outputs: int) -> Tensor:
    """(N, outputs - 1) every class but the label: the untargeted case."""
    every = torch.arange(outputs, device=label.device).expand(len(label), -1)
    return every[every != label[:, None]].view(len(label), outputs - 1)
