"""The methods, one file or folder each, and the only place that knows them by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from frown.bounds.method import Method
from frown.errors import InvalidInput
from frown.methods.branch.method import Branch
from frown.methods.crown import Crown, CrownIbp, FastLin, Interval
from frown.methods.exact.distance import Exact
from frown.methods.frown.network import Frown
from frown.methods.lp.bounds import LP
from frown.problem.options import options_of

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Interval, FastLin, CrownIbp, Crown, Frown, Branch, LP, Exact)
}
# From the loosest to the tightest, as people know them.
TITLES = {
    "interval": "Interval",
    "fastlin": "Fast-Lin",
    "crown-ibp": "CROWN-IBP",
    "crown": "CROWN",
    "lp": "LP",
    "frown": "FROWN",
    "branch": "Branching",
    "milp": "MILP",
}


def kind_of(name: str) -> type[Method]:
    """The class of a method's name; InvalidInput where there is none."""
    if name not in METHODS:
        raise InvalidInput(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]


def described(method: Method) -> dict[str, Any]:
    """A method's name and options, as settings are kept."""
    own = {known.name: getattr(method, known.name) for known in options_of(type(method))}
    inner = {k: described(v) if isinstance(v, Method) else v for k, v in own.items()}
    return {"method": method.name, **inner}


def method_of(method: str | Method, **options: Any) -> Method:
    """A method from its name, with these options; a method itself passes through.

    Raises InvalidInput for a name or an option that does not exist, or a value it refuses.
    """
    if isinstance(method, Method):
        if options:
            given = ", ".join(sorted(options))
            raise InvalidInput(f"give options to the method itself, not beside it: {given}")
        return method
    kind = kind_of(method)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(options) - known)
    if unknown:
        own = ", ".join(sorted(known)) or "none"
        raise InvalidInput(f"{method} has no option {', '.join(unknown)}; it has {own}")
    inner = options.get("inner")
    if isinstance(inner, str):
        options["inner"] = method_of(inner)
    return kind(**options)
