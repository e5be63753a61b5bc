"""How bounds are computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from frown.errors import InvalidInput

METHODS = ("interval", "fastlin", "crown", "frown")


@dataclass(frozen=True, slots=True)
class Ascent:
    """How the slopes are optimised; defaults suit every network tried.

    `steps` are taken at the first radius, from CROWN's lines; `more` at each later one,
    from where the last one ended.
    """

    steps: int = 10
    more: int = 10
    rate: float = 0.25  # first step, in units of the slope range
    decay: float = 0.92  # of the rate, per step
    momentum: float = 0.5
    memory: float = 0.85  # of the squared gradient


@dataclass(frozen=True, slots=True)
class Settings:
    """Method and its options.

    `group` neurons share one set of slopes (1: each its own, as in the paper; 0: a whole
    layer). `wide` searches all slopes, not only those of the tightest lines (appendix
    A.8). `rule` is CROWN's choice of line: "area" (least area) or "paper" (appendix A.4).
    """

    method: str = "frown"
    group: int = 1
    wide: bool = False
    rule: str = "area"
    ascent: Ascent = field(default_factory=Ascent)
    memory: int = 4 << 30  # bytes for rows in flight

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInput(f"unknown method {self.method!r}; choose from {', '.join(METHODS)}")
        if self.rule not in ("area", "paper"):
            raise InvalidInput(f"unknown rule {self.rule!r}; choose area or paper")
        if self.group < 0:
            raise InvalidInput(f"group must be 0 (a whole layer) or positive, not {self.group}")
        if self.memory <= 0:
            raise InvalidInput("memory must be positive")
