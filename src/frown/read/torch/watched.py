"""The watch on a module's forward: for numbers that it takes out, and for what it keeps."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NOTHING: tuple[Any, ...] = ("None", ())  # states of an attribute that is None, or empty
_OWN = vars(nn.Module()).keys()  # weights, buffers (export sees their changes), parts, hooks
# Methods by which numbers leave a tensor without an operator.
_WAYS_OUT = {"numpy", "tolist", "data_ptr", "untyped_storage", "__array__", "__dlpack__"}
_AT_PLACES = {torch.ops.aten.index, torch.ops.aten.masked_select}  # shaped by what follows first
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Numbers(ExitStack):
    """Notes whether Python gets to see a number, or a shape, that depends on the input's values.

    An export sees no branch that a module takes only where it is run as it is: one behind
    `torch.compiler.is_compiling()`, or in a numpy call.
    """

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given.detach().clone()
        self.taken = ""
        self._computed = {_storage(self.given)}

    def __enter__(self) -> Self:
        super().__enter__()
        self.enter_context(_Calls(self))
        self.enter_context(_Operators(self))
        return self

    def depends(self, tree: Any) -> bool:
        """True if a tensor in the tree was computed from the input."""
        return any(_storage(t) in self._computed for t in _tensors(tree))

    def computed(self, tree: Any) -> None:
        """Note that all tensors in the tree were computed from the input."""
        self._computed.update(_storage(t) for t in _tensors(tree))

    def take(self, name: str) -> None:
        """Note that an operator or method of this name took numbers out."""
        self.taken = self.taken or name


class _Calls(TorchFunctionMode):
    def __init__(self, numbers: Numbers) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _WAYS_OUT and self._numbers.depends(args):
            self._numbers.take(name)
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, numbers: Numbers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbers = self._numbers
        depends = numbers.depends((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if depends and isinstance(func, torch._ops.OpOverload):
            places = args[1:] if func.overloadpacket in _AT_PLACES else (args, kwargs)
            if _BY_VALUE.intersection(func.tags) and numbers.depends(places):
                numbers.take(func._opname.replace("_local_scalar_dense", "item"))
            given = zip(args, func._schema.arguments, strict=False)
            numbers.computed((result, [value for value, told in given if told.is_write]))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> StorageWeakRef:
    with torch._C.DisableTorchFunction():
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


# -- what is kept -----------------------------------------------------------------


def state(module: nn.Module) -> dict[str, Any]:
    """The attributes that a module and its parts keep, in a form to be compared.

    Weights and buffers are left out, and what torch keeps of modules that it compiles.
    """
    return {
        f"{name}.{key}".lstrip("."): _kept(value, set())
        for name, part in module.named_modules()
        if not type(part).__module__.startswith("torch._dynamo")
        for key, value in vars(part).items()
        if key not in _OWN
    }


def _kept(value: Any, within: set[int]) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if id(value) in within:
        return "..."
    within = within | {id(value)}
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return str(value.dtype), value.shape, digest
    if isinstance(value, Mapping):
        return tuple((repr(k), _kept(v, within)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(repr, value)))
    if isinstance(value, list | tuple):
        return tuple(_kept(v, within) for v in value)
    own = isinstance(value, type | nn.Module | logging.Logger)
    if own or not hasattr(value, "__dict__"):
        return type(value).__name__
    return type(value).__name__, _kept(vars(value), within)


def without(module: nn.Module, names: set[str]) -> list[str]:
    """Take attributes, named as in `state`, from a module; the list of those that are missed, which
    fills as it runs, also where `hasattr` or a default hides it."""
    missed, gone = list[str](), dict[str, set[str]]()
    for name in names:
        path, _, key = name.rpartition(".")
        gone.setdefault(path, set()).add(key)
    for path, keys in gone.items():
        part = module.get_submodule(path)
        missed += [key for key in keys if hasattr(type(part), key)]  # its class steps in
        for key in keys & vars(part).keys():
            delattr(part, key)
        part.__class__ = _missing(type(part), keys, missed)
    return missed


def _missing(kind: type[nn.Module], keys: set[str], missed: list[str]) -> type[nn.Module]:
    def read(self: nn.Module, name: str) -> Any:
        if name in keys:
            missed.append(name)
        return kind.__getattr__(self, name)

    return type(kind.__name__, (kind,), {"__getattr__": read})
