"""frown: how far an input can move before a neural network may change its answer, with proof."""

from typing import TYPE_CHECKING

from frown.errors import FrownError

if TYPE_CHECKING:  # what `__getattr__` gives, for editors and type checkers
    from frown.api import bound, certify, load, sensitivity
    from frown.certification.inspect import Bounded
    from frown.certification.results import Certification, Row, Sensitivity
    from frown.methods.crown import Crown, CrownIbp, FastLin, Interval
    from frown.methods.exact.distance import Exact
    from frown.methods.frown.network import Frown
    from frown.methods.lp.bounds import LP
    from frown.read.model import Model

__version__ = "0.1.0"

__all__ = [
    "LP",
    "Bounded",
    "Certification",
    "Crown",
    "CrownIbp",
    "Exact",
    "FastLin",
    "Frown",
    "FrownError",
    "Interval",
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
    "Interval": "frown.methods",
    "FastLin": "frown.methods",
    "Crown": "frown.methods",
    "CrownIbp": "frown.methods",
    "Frown": "frown.methods",
    "LP": "frown.methods",
    "Exact": "frown.methods",
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
