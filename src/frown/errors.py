"""Errors that a user can mend, each with the exit code that the command line ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class FrownError(Exception):
    """Something the user can mend; the message says what, where and how."""

    exit_code = 1


class InvalidInput(FrownError):
    """Data, labels, targets, radii or options that make no sense."""

    exit_code = 2


class InvalidModel(FrownError):
    """A model file that cannot be read, or holds numbers that are not finite."""

    exit_code = 3


class UnsupportedModel(InvalidModel):
    """A model with operators, attributes or shapes that have no bounds here."""

    exit_code = 4


class ModelMismatch(InvalidModel):
    """The imported graph and the original model disagree on some input."""

    exit_code = 5


class OutputError(FrownError):
    """Results cannot be written."""

    exit_code = 6


class LevelNotReached(FrownError):
    """A run ended, and some of its radii are not proved at the level asked for."""

    exit_code = 7


class AccuracyTooLow(FrownError):
    """A run ended, and fewer inputs are proved at the radius than were asked for."""

    exit_code = 8


class WorkersLost(FrownError):
    """Workers cannot be started, or inputs have no answer because theirs were lost."""

    exit_code = 9


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operator that has no bounds, and why not."""

    op: str
    place: str
    shape: tuple[int, ...] | None  # of its output, if known
    reason: str


def listing(model: str, refusals: Sequence[Refusal]) -> str:
    """The message of UnsupportedModel: every refusal in a line, and where to read on."""
    count = len(refusals)
    are = "1 operator has" if count == 1 else f"{count} operators have"
    cells = [
        (r.op, f"at {r.place}", "unknown shape" if r.shape is None else str(r.shape), r.reason)
        for r in refusals
    ]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ("  ".join(map(str.ljust, row, wide)).rstrip() for row in cells)
    lines = [f"cannot certify {model}: {are} no bounds yet", *(f"  {row}" for row in rows)]
    if all(r.reason for r in refusals):  # another operator would not help
        return "\n".join(lines)
    known = "which have: frown supports --onnx-operators; to add one, see docs/extending.md"
    return "\n".join([*lines, known])
