"""Puts off, when imported before torch, modules that torch loads and that certifying never uses.

They take a third of torch's own import. Each is there under its name, and is executed when one of
its names is first asked for. Where torch is there already, nothing changes. In what order torch's
modules can be executed differs from one version to the next, so only those versions with which it
was tried are loaded so; others are imported whole.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

TRIED = ("2.13.",)  # beginnings of versions of torch
LATER = (
    "torch._meta_registrations",  # kernels of tensors without numbers
    "torch._native",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nested",
    "torch.optim",
    "torch.profiler",
    "torch.sparse",
    "torch.testing",
    "torch.utils.data",
)


class _Late(MetaPathFinder, Loader):
    """A finder of some modules, which it does not execute yet."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = PathFinder.find_spec(name, path) if name in LATER else None
        if real is None or real.loader is None:
            return None
        own = ModuleSpec(name, self, origin=real.origin, loader_state=real)
        own.submodule_search_locations = real.submodule_search_locations
        return own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        real: Any = spec.loader_state

        def first_asked(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            del module.__dict__["__getattr__"]
            real.loader.exec_module(module)
            return getattr(module, name)

        module.__dict__["__getattr__"] = first_asked


def _import_torch() -> None:
    """Import torch without executing the modules that certifying never uses."""
    finder = _Late()
    sys.meta_path.insert(0, finder)
    try:
        import torch
        from torch._opaque_base import OpaqueBaseMeta

        # One of the modules that are put off prepares generators of random numbers so.
        torch._C._set_generator_metaclass(OpaqueBaseMeta)
    finally:
        sys.meta_path.remove(finder)


def _tried() -> bool:
    """True if the torch that is there is one of those whose modules can be put off."""
    found = PathFinder.find_spec("torch")
    if found is None or found.origin is None:
        return False
    with suppress(OSError):
        text = (Path(found.origin).parent / "version.py").read_text()
        return any(f"'{version}" in text for version in TRIED)
    return False


if "torch" not in sys.modules and _tried():
    _import_torch()
