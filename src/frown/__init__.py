"""frown: how far an input can move before a neural network may change its answer, with proof."""

from frown.errors import FrownError

__version__ = "0.1.0"

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
    "Bounded": "frown.certification.inspect",
    "Model": "frown.read.model",
    "Certification": "frown.certification.results",
    "Row": "frown.certification.results",
    "Sensitivity": "frown.certification.results",
}


def __getattr__(name: str) -> object:
    """Public names load what they need when first used, so that importing stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'frown' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
