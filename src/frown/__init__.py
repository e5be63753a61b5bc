"""frown: how far an input can move before a neural network may change its answer, with proof."""

from typing import TYPE_CHECKING

from frown.errors import FrownError

if TYPE_CHECKING:  # what `__getattr__` gives, for editors and type checkers
    from frown.api import bound, certify, load, sensitivity, verify
    from frown.bounds.method import Method
    from frown.bounds.work import Machine
    from frown.certification.attack import PGD
    from frown.certification.inspect import Bounded
    from frown.certification.prove import Estimate, Rigorous
    from frown.certification.results import Certification, Row, Sensitivity
    from frown.certification.run import Outcome, Progress, Watch
    from frown.certification.search import At, Largest
    from frown.certification.witness import Verdict, Witness
    from frown.methods.branch.method import Branch
    from frown.methods.crown import Crown, CrownIbp, FastLin, Interval
    from frown.methods.exact.distance import Exact
    from frown.methods.frown.network import Frown
    from frown.methods.lp.bounds import LP
    from frown.problem.problem import Ball, Box, Frames
    from frown.problem.property import Clauses, Condition, label_wins
    from frown.problem.questions import above, below, multilabel, threshold, top, vnnlib, within
    from frown.read.model import Model
    from frown.report.read import open

__version__ = "0.1.0"

__all__ = [
    "LP",
    "PGD",
    "At",
    "Ball",
    "Bounded",
    "Box",
    "Branch",
    "Certification",
    "Clauses",
    "Condition",
    "Crown",
    "CrownIbp",
    "Estimate",
    "Exact",
    "FastLin",
    "Frames",
    "Frown",
    "FrownError",
    "Interval",
    "Largest",
    "Machine",
    "Method",
    "Model",
    "Outcome",
    "Progress",
    "Rigorous",
    "Row",
    "Sensitivity",
    "Verdict",
    "Watch",
    "Witness",
    "__version__",
    "above",
    "below",
    "bound",
    "certify",
    "label_wins",
    "load",
    "open",
    "sensitivity",
    "verify",
]

_HOMES = {
    "frown.api": "bound certify load sensitivity verify",
    "frown.bounds.method": "Method",
    "frown.bounds.work": "Machine",
    "frown.certification.attack": "PGD",
    "frown.certification.inspect": "Bounded",
    "frown.certification.prove": "Estimate Rigorous",
    "frown.certification.results": "Certification Row Sensitivity",
    "frown.certification.run": "Outcome Progress Watch",
    "frown.certification.search": "At Largest",
    "frown.certification.witness": "Verdict Witness",
    "frown.methods.branch.method": "Branch",
    "frown.methods.crown": "Crown CrownIbp FastLin Interval",
    "frown.methods.exact.distance": "Exact",
    "frown.methods.frown.network": "Frown",
    "frown.methods.lp.bounds": "LP",
    "frown.problem.problem": "Ball Box Frames",
    "frown.problem.property": "Clauses Condition label_wins",
    "frown.problem.questions": "above below multilabel threshold top vnnlib within",
    "frown.read.model": "Model",
    "frown.report.read": "open",
}


def __getattr__(name: str) -> object:
    """Public names load what they need when first used, so that importing stays quick."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'frown' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
