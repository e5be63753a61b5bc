"""Errors that a user can mend, each with the exit code that the command line ends with."""

from __future__ import annotations


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
