"""A batch of inputs on its way through the stages: what is broken, proved and written of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.proof import Proofs
from frown.certification.radius import Bracket, Evaluate, Goal
from frown.problem.query import Query


@dataclass
class Batch:
    """The state of a batch between stages; all arrays are per input."""

    query: Query
    index: NDArray[np.int64]  # the inputs' numbers, as the user counts them
    prediction: NDArray[np.int64]
    right: NDArray[np.int64]  # places of the inputs classified right
    bracket: Bracket  # of those
    limit: Tensor  # of those: where no larger radius makes sense
    whole: Tensor  # of those: where the valid range ends; inf without one
    broken: NDArray[np.float64]  # inf: no counterexample
    counterexample: dict[int, NDArray[np.float64]]  # by place
    tried: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # the attack's points
    # By place: what was seen where graph and original disagree. Nothing is proved of these.
    mismatch: dict[int, str] = field(default_factory=dict)
    compared: bool = False  # whether that was looked for in the regions that were proved
    seconds: float = 0.0
    complete: bool = True
    remark: dict[int, str] = field(default_factory=dict)  # by place: what a reader must know
    certificate: dict[int, bytes] = field(default_factory=dict)  # by place
    certificate_file: dict[int, str] = field(default_factory=dict)  # by place: its name
    checked: set[int] = field(default_factory=set)  # places the independent checker accepted
    fixed: Evaluate | None = None  # margins by fixed lines, as the search for `base` asks for them
    cheap: Bracket | None = None  # by CROWN's lines over plain intervals, where time is limited
    evaluations: list[float] = field(default_factory=list)  # seconds that radii took to try
    replay: float = 0.0  # seconds that a proof by fixed lines took, for each input
    base: Tensor | None = None  # what CROWN proved, before others went on
    proofs: Proofs | None = None  # of the largest radii, by the method that went on
    deployed: str = ""  # the precision of execution that the proofs cover
    rigorous: tuple[Tensor, Tensor] | None = None  # radii and margins proved with all rounding
    replayed: Tensor | None = None  # with them: radii that were to be proved
    nothing: str = "rounding errors left nothing of the proof"  # said where that is so
    covered: Tensor | None = None  # with them: whether the valid range lies within the radius

    @property
    def level(self) -> str:
        """How the radii are proved."""
        return "estimate" if self.rigorous is None else "rigorous"

    def say(self, n: int, text: str) -> None:
        """One more remark about the n-th input."""
        self.remark[n] = "; ".join(part for part in (self.remark.get(n, ""), text) if part)

    def say_what_is_open(self, goal: Goal) -> None:
        """Of searches that ended with no radius that failed, or none nearby."""
        if not self.complete:
            return
        own = self.bracket
        for k in own.open(goal).tolist():
            failed = float(own.failed[k])
            if failed <= float(own.proved[k]) * (1 + goal.within):
                continue  # near enough, as another method's search has it
            most = f"up to {failed:.4g}" if isfinite(failed) else "how much, no radius told"
            self.say(int(self.right[k]), f"the search ended early; more may hold, {most}")
        last = (own.proved >= own.limit) & (own.limit < self.whole)
        for k in last.nonzero().flatten().tolist():
            self.say(int(self.right[k]), "the search ends at this radius; more may hold")

    def proof(self, k: int, targets: list[int]) -> tuple[float, dict[int, float]]:
        """The radius proved of the k-th right input, and the margins there."""
        if self.rigorous is None:
            radius, margins = self.bracket.proved[k], self.bracket.at_proved[k]
        else:
            radius, margins = self.rigorous[0][k], self.rigorous[1][k]
        known = dict(zip(targets, margins.tolist(), strict=True))
        return float(radius), known if radius > 0 else {}

    def held(self, k: int) -> bool:
        """Whether the k-th right input's margins at its radius, be it 0, are proved to be > 0."""
        margins = self.bracket.at_proved[k] if self.rigorous is None else self.rigorous[1][k]
        return bool((margins > 0).all())

    def everywhere(self, k: int) -> bool:
        """Whether the k-th right input's proof is of the whole valid range."""
        if self.covered is not None:
            return bool(self.covered[k])
        return float(self.bracket.proved[k]) >= float(self.whole[k])
