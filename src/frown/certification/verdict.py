"""Verdicts on queries."""

from __future__ import annotations

from dataclasses import dataclass, field

from frown.certification.witness import Witness

# What a verdict can be, and what it means.
ANSWERS = {
    "sat": "an input satisfies the query; the original model answers it so",
    "unsat": "no input satisfies the query: proved with all rounding errors accounted for",
    "unknown": "neither was found, and nothing is left to try",
    "timed-out": "neither was found within the time limit",
}


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer to a query.

    `unsat` is proved for the real-valued network, over boxes that contain those that were asked,
    and graph and original have agreed on points of every one of them. `sat` has a witness.
    """

    answer: str  # a key of ANSWERS
    witness: Witness | None = None  # of `sat`
    disjuncts: int = 0  # boxes with cases that the query consists of
    proved: int = 0  # of these, how many are refuted
    level: str = "rigorous"  # of `unsat`; "checked": the independent checker accepted its proof
    certificate: bytes = field(default=b"", repr=False)  # the proof of `unsat`, where one was asked
    remarks: tuple[str, ...] = ()  # what a reader must know
    seconds: float = 0.0
