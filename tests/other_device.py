"""A device that is not the CPU, for tests: its tensors hold numbers, and say they are elsewhere.

Like a GPU it refuses to compute with tensors of the CPU, unless these are single numbers, and
counts what is moved: tensors between devices, and numbers that the program waits for. It goes by
the name of torch's device "meta", which needs no driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

DEVICE = torch.device("meta")
ATEN = torch.ops.aten


class MixedDevices(RuntimeError):
    """An operator was given tensors of both devices."""


@dataclass
class Moves:
    """A count of what crossed between the devices."""

    there: int = 0  # tensors moved to the other device
    back: int = 0  # and from it
    waits: Counter[str] = field(default_factory=Counter)  # numbers read, shapes that depend on them


class Elsewhere(Tensor):
    """A tensor of the other device; `own` has its numbers."""

    own: Tensor
    __slots__ = ("own",)
    moves: ClassVar[Moves] = Moves()

    @staticmethod
    def __new__(cls, own: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls,
            own.shape,
            strides=own.stride(),
            storage_offset=own.storage_offset(),
            dtype=own.dtype,
            device=DEVICE,
        )
        made.own = own
        return made

    def tolist(self) -> Any:
        Elsewhere.moves.waits["tolist"] += 1
        return self.own.tolist()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Elsewhere({self.own!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    moves = Elsewhere.moves
    flat, form = tree_flatten((args, kwargs))
    tensors = [t for t in flat if isinstance(t, Tensor)]
    far = [t for t in tensors if isinstance(t, Elsewhere)]
    if any(t.device == DEVICE and not isinstance(t, Elsewhere) for t in tensors):
        raise MixedDevices(f"{func}: a tensor made of numbers of the host; make it on the device")
    wanted = kwargs.get("device")
    if func is ATEN._to_copy.default and wanted is not None:
        (given,) = tensors
        own = given.own if isinstance(given, Elsewhere) else given
        rest = {**kwargs, "device": torch.device("cpu")}
        made = func(own, **rest)
        if torch.device(wanted) != DEVICE:
            moves.back += isinstance(given, Elsewhere)
            return made
        moves.there += not isinstance(given, Elsewhere)
        return Elsewhere(made)
    if func in (ATEN._local_scalar_dense.default, ATEN.equal.default, ATEN.is_nonzero.default):
        moves.waits[func.__name__] += bool(far)
    if func in (ATEN.nonzero.default, ATEN._unique2.default, ATEN.unique_consecutive.default):
        moves.waits[func.__name__] += bool(far)
    indexes = func in (ATEN.index.Tensor,)
    near = [t for t in tensors if not isinstance(t, Elsewhere) and t.dim() > 0]
    if func is ATEN.copy_.default and far and near:
        moves.there += isinstance(args[0], Elsewhere)
        moves.back += not isinstance(args[0], Elsewhere)
    elif far and near and not (indexes and isinstance(args[0], Elsewhere)):
        shapes = [tuple(t.shape) for t in near]
        raise MixedDevices(f"{func}: tensors of the CPU {shapes} beside those of another device")
    elif far and near:
        moves.there += len(near)  # an index of the CPU is moved by torch, silently
        raise MixedDevices(f"{func}: an index of the CPU into another device")
    inside = [t.own if isinstance(t, Elsewhere) else t for t in flat]
    own_args, own_kwargs = tree_unflatten(inside, form)
    makes = wanted is not None and torch.device(wanted) == DEVICE
    if makes:
        own_kwargs = {**own_kwargs, "device": torch.device("cpu")}
    found = func(*own_args, **own_kwargs)
    if not (far or makes):
        return found
    wrapped = tree_map(lambda t: Elsewhere(t) if isinstance(t, Tensor) else t, found)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


class _Mode(TorchDispatchMode):
    """Makes tensors of the other device where one asks for them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def other_device() -> Iterator[Moves]:
    """The other device exists inside, and counts what is moved."""
    Elsewhere.moves = Moves()
    with _Mode():
        yield Elsewhere.moves


def numbers(t: Tensor) -> Tensor:
    """The numbers of a tensor of either device, without a move."""
    return t.own if isinstance(t, Elsewhere) else t
