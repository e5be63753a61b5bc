"""How bounds are computed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

from frown.errors import InvalidInput

METHODS = ("interval", "fastlin", "crown", "frown", "lp", "milp")
BOXES = ("lp", "crown", "frown")
STARTS = ("frown", "crown")


@dataclass(frozen=True, slots=True)
class Ascent:
    """How the slopes are optimised; defaults suit every network tried.

    `steps` are taken at one radius alone, from CROWN's lines; where there are few layers of slopes,
    as few as that and `shallow` more. Each radius of a search starts
    where the last one ended, and radii get closer: there are fewer and smaller steps, but at
    least `more`. Margins, which decide, get all of them. A search's first radius is a guess, and
    gets no more than a `glance`.
    """

    steps: int = 10
    more: int = 2
    shallow: int = 4
    rate: float = 0.25  # first step, in units of the slope range
    decay: float = 0.92  # of the rate, per step
    fade: float = 0.65  # of steps and rate, per radius
    least: float = 0.25  # of the rate, after however many radii: long searches go on moving
    momentum: float = 0.5
    memory: float = 0.85  # of the squared gradient

    @property
    def glance(self) -> Ascent:
        """Fewer steps, larger ones: enough to see where the next radius should be. Where every
        radius is to get as many (`more`), all of them."""
        if self.more >= self.steps:
            return self
        return replace(self, steps=ceil(0.6 * self.steps), rate=1.2 * self.rate)

    def of_neurons(self, radii: int, layers: int | None = None) -> tuple[int, float]:
        """Steps, and the first one's rate, after so many radii, along so many layers (None: what
        groups share is harder to find)."""
        faded = self.fade**radii
        steps = min(self.steps, max(self.more, ceil(self.steps * faded)))
        if layers is not None and self.more < self.steps:
            steps = min(steps, layers + self.shallow)
        return steps, self.rate * max(self.least, faded)

    def of_margins(self, radii: int) -> tuple[int, float]:
        return self.steps, self.rate * max(self.least, self.fade ** (radii / 2))


@dataclass(frozen=True, slots=True)
class Settings:
    """Method and its options.

    `group` neurons share one set of slopes (1: each its own, as in the paper; 0: a whole
    layer). `wide` searches all slopes, not only those of the tightest lines (appendix
    A.8). `rule` is CROWN's choice of line: "area" (least area) or "paper" (appendix A.4).

    Of the method lp: `tangents` lines per curved side (1: CROWN's one line per side);
    `boxes` says what bounds the inner layers (lp: linear programs throughout, LP-ALL; crown,
    frown: programs for the last layer alone, LP-LAST); `workers` processes share the programs.
    A search starts at FROWN's radius; with `start` "crown", at CROWN's, and is then by programs
    alone. Unless `hot`, every program starts from nothing, too, as a plain implementation would;
    the bounds are the same.
    """

    method: str = "frown"
    group: int = 1
    wide: bool = False
    rule: str = "area"
    ascent: Ascent = field(default_factory=Ascent)
    memory: int = 4 << 30  # bytes for rows in flight
    tangents: int = 3
    boxes: str = "lp"
    workers: int = 1
    hot: bool = True
    start: str = "frown"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInput(f"unknown method {self.method!r}; choose from {', '.join(METHODS)}")
        if self.rule not in ("area", "paper"):
            raise InvalidInput(f"unknown rule {self.rule!r}; choose area or paper")
        if self.group < 0:
            raise InvalidInput(f"group must be 0 (a whole layer) or positive, not {self.group}")
        if self.memory <= 0:
            raise InvalidInput("memory must be positive")
        if self.tangents < 1:
            raise InvalidInput(f"tangents must be at least 1, not {self.tangents}")
        if self.boxes not in BOXES:
            raise InvalidInput(f"unknown boxes {self.boxes!r}; choose from {', '.join(BOXES)}")
        if self.start not in STARTS:
            raise InvalidInput(f"unknown start {self.start!r}; choose from {', '.join(STARTS)}")
        if self.workers < 1:
            raise InvalidInput(f"workers must be at least 1, not {self.workers}")
