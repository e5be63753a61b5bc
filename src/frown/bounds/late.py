"""Puts off, when imported before torch, modules that torch loads and that certifying never uses.

They take a fifth of torch's own import. Each is there under its name, and is executed when one of
its names is first asked for. Where torch is there already, nothing changes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Kernels of tensors without numbers, distributions, and the export of programs.
LATER = ("torch._meta_registrations", "torch.distributions", "torch.export")


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
    """Import torch without executing what certifying never uses."""
    finder = _Late()
    sys.meta_path.insert(0, finder)
    try:
        import torch

        # What draws random numbers is set up by one of the modules that would follow.
        with suppress(ImportError):
            import torch._prims.rng_prims
        torch.Generator()
    finally:
        sys.meta_path.remove(finder)


if "torch" not in sys.modules:
    _import_torch()
