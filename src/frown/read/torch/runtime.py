"""The module itself, as it is run beside the graph that was read from it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from frown.errors import InvalidInput, UnsupportedModel
from frown.graph import Shape
from frown.read.model import Array, same
from frown.read.torch.watched import NOTHING, Numbers, state, without


@dataclass(frozen=True)
class Runtime:
    """The original module, evaluated on (N, *shape) and answering (N, classes)."""

    module: nn.Module
    shape: Shape
    dtype: torch.dtype
    device: torch.device
    batches: bool = False

    @classmethod
    def of(cls, module: nn.Module, example: Tensor | Array, label: str) -> Self:
        first = torch.as_tensor(example).detach()
        if first.dim() == 0 or first.numel() == 0:
            raise InvalidInput(
                f"{label}: the example has shape {tuple(first.shape)}; give at least one input, "
                "with the batch as the first axis"
            )
        try:
            twin = copy.deepcopy(module).eval()
        except Exception as error:
            raise UnsupportedModel(
                f"{label}: the module cannot be copied: {first_line(error)}\n"
                "remove what computes weights on the fly, such as "
                "torch.nn.utils.remove_weight_norm does"
            ) from error
        dtype, device = _placement(twin, first, label)
        single = cls(twin, tuple(first.shape[1:]), dtype, device)
        single._remember_nothing(first[:1], label)
        single._try_batch(first, label)
        return replace(single, batches=single._mixes_no_samples())

    def __call__(self, x: Array) -> Array:
        inputs = torch.as_tensor(np.ascontiguousarray(x)).reshape(-1, *self.shape)
        if self.batches:
            answers = self._answers(inputs)
        else:
            answers = torch.cat([self._answers(inputs[i : i + 1]) for i in range(len(inputs))])
        return answers.cpu().double().numpy()

    def example(self) -> Tensor:
        return torch.zeros(1, *self.shape, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Any:
        return self.module(self._placed(inputs))

    def _placed(self, inputs: Tensor) -> Tensor:
        return inputs.to(device=self.device, dtype=self.dtype)

    def _answers(self, inputs: Tensor) -> Tensor:
        (leaf,) = pytree.tree_leaves(self.forward(inputs))
        answer: Tensor = leaf.reshape(len(inputs), -1)
        return answer

    def taken(self) -> str:
        """The way by which forward takes numbers out of what it computes; empty: it does not."""
        with Numbers(self._placed(self._random(1))) as numbers:
            try:
                self.forward(numbers.given)
            except Exception as error:  # what torch runs alone, and not where it is watched
                numbers.take(first_line(error))
        return numbers.taken

    def _random(self, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(count, *self.shape, generator=generator, dtype=torch.float64)

    def _remember_nothing(self, first: Tensor, label: str) -> None:
        """Refuse a forward whose calls change what it keeps and reads.

        What the first call sets from nothing, whatever its input is, may be a cache; the others
        have to leave all as it is.
        """
        fresh, start = copy.deepcopy(self.module), state(self.module)
        self._try(first, label)
        cached = state(self.module)
        self._try(self.example(), label)
        replace(self, module=fresh)._try(self._random(1), label)
        changed = {k for k, v in start.items() if v not in NOTHING and cached.get(k) != v}
        for other in (state(self.module), state(fresh)):
            changed |= {k for k, v in other.items() if cached.get(k) != v}
        if changed and self._reads(changed):
            raise UnsupportedModel(
                f"{label}: forward changes {', '.join(sorted(changed))}, so its answers may depend "
                "on earlier ones\nleave attributes as they are in evaluation mode"
            )

    def _reads(self, names: set[str]) -> bool:
        """True if forward needs one of these attributes before it sets it."""
        try:
            bare = copy.deepcopy(self.module)
            missed = without(bare, names)
            replace(self, module=bare).forward(self._random(1))
        except Exception:
            return True
        return bool(missed)

    def _try(self, first: Tensor, label: str) -> None:
        try:
            output = self.forward(first)
        except Exception as error:
            raise InvalidInput(
                f"{label}: the module fails on an input of shape {tuple(first.shape)} "
                f"({self.dtype}): {first_line(error)}\n"
                "give an example as the module takes it, with the batch as the first axis"
            ) from error
        leaves = pytree.tree_leaves(output)
        if len(leaves) != 1 or not isinstance(leaves[0], Tensor):
            listed = "\n".join(f"  {_described(leaf)}" for leaf in leaves)
            raise UnsupportedModel(
                f"{label}: forward must return one tensor of scores; it returns "
                f"{type(output).__name__} with\n{listed}\n"
                "wrap the module in one that returns only the scores"
            )
        if not leaves[0].is_floating_point():
            raise UnsupportedModel(
                f"{label}: forward returns {_described(leaves[0])}; return the scores themselves"
            )

    def _try_batch(self, example: Tensor, label: str) -> None:
        """Refuse an example whose first axis is frames: recurrent layers may want them first."""
        if not any(isinstance(m, nn.RNNBase) for m in self.module.modules()):
            return
        try:
            (whole,), (alone,) = (
                pytree.tree_leaves(self.forward(x)) for x in (example, example[:1])
            )
        except Exception:
            return  # it takes no batches; inputs one by one remain
        if whole.numel() != len(example) * alone.numel():
            raise InvalidInput(
                f"{label}: an example of shape {tuple(example.shape)} is answered with "
                f"{tuple(whole.shape)}, so its first axis is not the batch\n"
                "give an example with the batch as the first axis; where the module takes frames "
                "first, wrap it in one that swaps them: module(x.transpose(0, 1))"
            )

    def _mixes_no_samples(self) -> bool:
        """True if a batch is answered like its inputs one by one."""
        inputs = self._random(2)
        try:
            together = self._answers(inputs)
        except Exception:
            # Whatever keeps it from a batch, inputs one by one remain.
            return False
        apart = torch.cat([self._answers(inputs[:1]), self._answers(inputs[1:])])
        return same(together.cpu().double().numpy(), apart.cpu().double().numpy())


def _placement(module: nn.Module, example: Tensor, label: str) -> tuple[torch.dtype, torch.device]:
    state = [*module.named_parameters(), *module.named_buffers()]
    bad = [
        f"  {key}  {tensor.dtype}"
        for key, tensor in state
        if (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)
        and tensor.dtype not in (torch.float32, torch.float64)
    ]
    if bad:
        raise UnsupportedModel(
            f"{label}: only float32 and float64 weights are supported\n"
            + "\n".join(bad)
            + "\nconvert the module with module.float()"
        )
    for _, tensor in state:
        if tensor.is_floating_point():
            return tensor.dtype, tensor.device
    known = example.dtype in (torch.float32, torch.float64)
    return example.dtype if known else torch.float32, example.device


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return type(value).__name__


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
