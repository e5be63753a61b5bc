"""frown: how far an input can move before a neural network may change its answer, with proof."""

from frown.errors import FrownError
from frown.version import __version__

__all__ = [
    "Bounded",
    "Certification",
    "FrownError",
    "Model",
    "Row",
    "Sensitivity",
    "__version__",
    "bound",
    "certify",
    "load",
    "sensitivity",
]

_HOMES = {
    "load": "frown.api",
    "certify": "frown.api",
    "sensitivity": "frown.api",
    "bound": "frown.api",
    "Bounded": "frown.bounding",
    "Model": "frown.frontends.model",
    "Certification": "frown.results",
    "Row": "frown.results",
    "Sensitivity": "frown.results",
}


def __getattr__(name: str) -> object:
    """Public names load what they need when first used, so that importing stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'frown' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
