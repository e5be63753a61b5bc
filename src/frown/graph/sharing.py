"""Tensors that hold the same numbers, stored once.

An unrolled recurrent network reads the same weights at every frame; whatever built or
rewrote its operators may have copied them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from frown.graph.op import Op

AnyOp = TypeVar("AnyOp", bound=Op)


@dataclass
class Pool:
    """The tensors seen so far; equal ones become the one seen first."""

    seen: dict[Hashable, list[Tensor]] = field(default_factory=dict)

    def one(self, tensor: Tensor) -> Tensor:
        key = (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.sum().item())
        alike = self.seen.setdefault(key, [])
        for other in alike:
            if other is tensor or torch.equal(other, tensor):
                return other
        alike.append(tensor)
        return tensor

    def shared(self, op: AnyOp) -> AnyOp:
        """A copy of the operator that reads tensors of the pool."""
        return op.mapped(self.one)
