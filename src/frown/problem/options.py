"""Options of objects: each is a field with its default, its check and its help in one place.

    @dataclass(frozen=True)
    class Crown(Method):
        rule: Annotated[str, Option("CROWN's lines", choices=("area", "paper"))] = "area"

The command line is generated from the same fields.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, get_args, get_type_hints

from frown.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Option:
    """Help for a field, and the values that it accepts."""

    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None  # numbers below it are refused
    above: float | None = None  # numbers must exceed it
    below: float | None = None  # numbers must be less
    most: float | None = None  # numbers above it are refused
    metavar: str | None = None
    panel: str = ""  # the group of the option in the help text
    words: tuple[tuple[str, int], ...] = ()  # that stand for numbers on the command line
    flag: str = ""  # its name on the command line, where that is not the field's


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field that is an option."""

    name: str
    type: Any
    default: Any
    option: Option


@cache
def options_of(kind: type) -> tuple[OptionField, ...]:
    """The fields of a dataclass that carry an `Option`."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        parts = get_args(hints[field.name])
        option = next((part for part in parts[1:] if isinstance(part, Option)), None)
        if option is not None:
            found.append(OptionField(field.name, parts[0], field.default, option))
    return tuple(found)


def check_options(value: object) -> None:
    """Raise InvalidInput unless every option of a dataclass has a value that it accepts."""
    kind: Any = type(value)
    for known in options_of(kind):
        _check(known, getattr(value, known.name))


def _check(known: OptionField, value: Any) -> None:
    option = known.option
    name = f"{known.name} (--{option.flag})" if option.flag else known.name
    if value is None and type(None) in get_args(known.type):
        return
    if option.choices:
        called = getattr(value, "name", value)  # a method goes by its name
        if called not in option.choices:
            choices = ", ".join(option.choices)
            raise InvalidInput(f"unknown {name} {called!r}; choose from {choices}")
        return
    types = {known.type, *get_args(known.type)}
    wanted = {int, float} & types
    if not wanted or str in types:
        return
    whole = wanted == {int}
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not number or value != value:
        kind = "a whole number" if whole else "a number"
        raise InvalidInput(f"{name} must be {kind}, not {value!r}")
    if option.least is not None and value < option.least:
        raise InvalidInput(f"{name} must be at least {option.least:g}, not {value!r}")
    if option.most is not None and value > option.most:
        raise InvalidInput(f"{name} must be at most {option.most:g}, not {value!r}")
    if option.above is not None and not value > option.above:
        raise InvalidInput(f"{name} must be greater than {option.above:g}, not {value!r}")
    if option.below is not None and not value < option.below:
        raise InvalidInput(f"{name} must be less than {option.below:g}, not {value!r}")
