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
    from frown.certification.verdict import Verdict
    from frown.certification.witness import Witness
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
    "bound": "frown.api",
    "certify": "frown.api",
    "load": "frown.api",
    "open": "frown.report.read",
    "sensitivity": "frown.api",
    "verify": "frown.api",
    "Verdict": "frown.certification.verdict",
    "Witness": "frown.certification.witness",
    "Method": "frown.bounds.method",
    "Machine": "frown.bounds.work",
    "PGD": "frown.certification.attack",
    "Bounded": "frown.certification.inspect",
    "Estimate": "frown.certification.prove",
    "Rigorous": "frown.certification.prove",
    "Certification": "frown.certification.results",
    "Row": "frown.certification.results",
    "Sensitivity": "frown.certification.results",
    "Outcome": "frown.certification.run",
    "Progress": "frown.certification.run",
    "Watch": "frown.certification.run",
    "At": "frown.certification.search",
    "Largest": "frown.certification.search",
    "Branch": "frown.methods.branch.method",
    "Crown": "frown.methods.crown",
    "CrownIbp": "frown.methods.crown",
    "FastLin": "frown.methods.crown",
    "Interval": "frown.methods.crown",
    "Exact": "frown.methods.exact.distance",
    "Frown": "frown.methods.frown.network",
    "LP": "frown.methods.lp.bounds",
    "Frames": "frown.problem.problem",
    "Ball": "frown.problem.problem",
    "Box": "frown.problem.problem",
    "Clauses": "frown.problem.property",
    "Condition": "frown.problem.property",
    "label_wins": "frown.problem.property",
    **dict.fromkeys(
        ("above", "below", "multilabel", "threshold", "top", "vnnlib", "within"),
        "frown.problem.questions",
    ),
    "Model": "frown.read.model",
}


def __getattr__(name: str) -> object:
    """Public names load what they need when first used, so that importing stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'frown' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
