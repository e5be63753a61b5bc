"""Questions in one line, for tables of cases: flat keywords instead of the interface's objects.

Options of a method that is not asked for are left aside, so that a table may share them.
"""

from __future__ import annotations

from typing import Any

import frown
from frown.bounds.method import Method
from frown.methods import METHODS, kind_of, method_of
from frown.problem.options import options_of

Given = dict[str, Any]


def certify(model: Any, x: Any, y: Any = None, **given: Any) -> frown.Certification:
    """`frown.certify` of a ball around x; keywords are fields of the objects that it takes."""
    region, condition, how = _question(x, y, given)
    return frown.certify(model, region, condition, **how)


def sensitivity(model: Any, x: Any, y: Any = None, **given: Any) -> frown.Sensitivity:
    """`frown.sensitivity`, likewise."""
    region, condition, how = _question(x, y, given)
    return frown.sensitivity(model, region, condition, **how)


def bound(model: Any, x: Any, eps: Any, *, coef: Any = None, **given: Any) -> frown.Bounded:
    """`frown.bound` of balls of radius eps around x, likewise."""
    given.setdefault("method", "crown")
    region, _, how = _question(x, None, given)
    kept = {k: v for k, v in how.items() if k in ("method", "machine")}
    return frown.bound(model, region.at(eps), coef, **kept)


class Told(frown.Watch):
    """Functions that are called with progress, and with rows and counterexamples."""

    def __init__(self, progress: Any = None, on_rows: Any = None) -> None:
        self._progress, self._on_rows = progress, on_rows

    def progress(self, progress: frown.Progress) -> None:
        if self._progress is not None:
            self._progress(progress)

    def finished(self, outcome: frown.Outcome) -> None:
        if self._on_rows is not None:
            self._on_rows(list(outcome.rows), outcome.counterexamples)


def ball(x: Any, given: Given) -> frown.Ball:
    """The ball that keywords describe, which are taken out."""
    names = {"norm": "norm", "bounds": "within", "scale": "scale", "indices": "names"}
    own = {field: given.pop(name) for name, field in names.items() if name in given}
    if "frames" in given or "frame_axis" in given:
        axis = given.pop("frame_axis", 0)
        own["frames"] = frown.Frames(given.pop("frames", "all"), axis)
    return frown.Ball(x, **own)


def _question(x: Any, y: Any, given: Given) -> tuple[frown.Ball, frown.Condition, Given]:
    region = ball(x, given)
    condition = frown.label_wins(y, given.pop("target", None))
    how: Given = {"method": _method(given)}
    eps = given.pop("eps", None)
    if "tol" in given:
        how["search"] = frown.Largest(given.pop("tol"))
    if eps is not None:
        how["search"] = frown.At(eps)
    if "level" in given or "certificates" in given or "deployed" in given:
        how["proof"] = _proof(given)
    if "attack" in given:
        wanted = given.pop("attack")
        how["attack"] = frown.PGD() if wanted is True else wanted or None
    names = {"time_limit": "seconds"} | {
        name: name for name in ("dtype", "device", "memory", "batch", "workers")
    }
    own = {field: given.pop(name) for name, field in names.items() if name in given}
    if own:
        how["machine"] = frown.Machine(**own)
    if "watch" in given:
        how["watch"] = given.pop("watch")
    if "progress" in given or "on_rows" in given:
        how["watch"] = Told(given.pop("progress", None), given.pop("on_rows", None))
    assert not given, f"no such keyword: {', '.join(given)}"
    return region, condition, how


def _method(given: Given) -> Any:
    method = given.pop("method", "frown")
    if isinstance(method, Method) or not isinstance(method, str):
        return method
    try:
        kind = kind_of(method)
    except frown.FrownError:
        return method
    alias = {"boxes": "inner"} if issubclass(kind, frown.LP) else {}
    names = alias | {field.name: field.name for field in options_of(kind)}
    own = {field: given.pop(name) for name, field in names.items() if name in given}
    if own.get("inner") == "lp":
        del own["inner"]
    for other in METHODS.values():
        for field in options_of(other):
            given.pop(field.name, None)
    return method_of(method, **own) if own else method


def _proof(given: Given) -> Any:
    level = given.pop("level", "rigorous")
    own = {
        "certificates": given.pop("certificates", None),
        "execution": given.pop("deployed", None),
    }
    if level == "estimate" or level not in ("rigorous", "checked"):
        assert not any(own.values()), own
        return level
    return frown.Rigorous(check=level == "checked", **own)
