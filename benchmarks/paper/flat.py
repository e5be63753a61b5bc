"""One call per cell of a table: flat options, as cells have them, made into objects of frown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import frown
from frown.methods import kind_of, method_of
from frown.problem.options import options_of

# Options of `Machine`, by the names that cells and commands have.
MACHINE = {"batch": "batch", "memory": "memory", "time_limit": "seconds", "workers": "workers"}


@dataclass(frozen=True)
class LPAlone(frown.LP):
    """Linear programs whose search starts at CROWN's radius: what they cost without FROWN."""

    @property
    def foresight(self) -> frown.Method | None:
        return None


@dataclass(frozen=True)
class ColdLP(LPAlone):
    """Linear programs that start from nothing, each of them, as a plain implementation has it."""

    hot: ClassVar[bool] = False


def certify(model: frown.Model, x: Any, y: Any = None, **options: Any) -> frown.Certification:
    """`frown.certify` with the options of a cell, none of which may be left over."""
    where = frown.Ball(
        x,
        norm=options.pop("norm", "inf"),
        within=options.pop("bounds", None),
        names=options.pop("indices", None),
    )
    holds = frown.label_wins(y, options.pop("target", None))
    eps, largest = options.pop("eps", None), frown.Largest(options.pop("tol", 0.01))
    machine = {f: options.pop(name) for name, f in MACHINE.items() if name in options}
    attack, level = options.pop("attack", True), options.pop("level", "rigorous")
    watch = _Rows(options.pop("on_rows", None))
    method = _method(options)
    assert not options, options
    return frown.certify(
        model,
        where,
        holds,
        method=method,
        search=largest if eps is None else frown.At(eps),
        proof=level,
        attack=frown.PGD() if attack else None,
        machine=frown.Machine(**machine),
        watch=watch,
    )


def _method(options: dict[str, Any]) -> frown.Method:
    """The method of a cell. What measures linear programs by themselves is no option of frown's."""
    name, own = options.pop("method"), {}
    for field in options_of(kind_of(name)):
        if field.name in options:
            own[field.name] = options.pop(field.name)
    inner = options.pop("boxes", "lp")
    if inner != "lp":
        own["inner"] = method_of(inner)
    hot, start = options.pop("hot", True), options.pop("start", "frown")
    if name == "lp" and not hot:
        return ColdLP(**own)
    if name == "lp" and start != "frown":
        return LPAlone(**own)
    return method_of(name, **own)


class _Rows(frown.Watch):
    """Hands rows over as they are finished."""

    def __init__(self, take: Callable[[list[frown.Row]], None] | None) -> None:
        self._take = take

    def finished(self, outcome: frown.Outcome) -> None:
        if self._take is not None:
            self._take(list(outcome.rows))
