"""Clauses are about a model's outputs, whatever its last function is."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import frown
from frown.errors import InvalidInput
from frown.problem.property import Answers
from onnx_models import model, node, number, saved


@pytest.mark.parametrize("radius", [0.5, 1.5])
def test_a_limit_is_on_the_outputs_and_not_on_the_scores_before_them(
    radius: float, tmp_path: Path
) -> None:
    """sigmoid(3 - r) > 0.9 up to r = 0.80; the score alone exceeds 0.9 up to r = 2.1."""
    proto = model([node("Mul", "x one", "h"), node("Sigmoid", "h")], ["N", 1], {"one": number(1)})
    net = frown.load(saved(proto, tmp_path))
    box = frown.Box(np.array([[3.0 - radius]]), np.array([[3.0 + radius]]))
    (row,) = frown.certify(net, box, frown.Clauses([[1.0]], -0.9)).rows
    assert row.status == ("certified" if radius < 0.8 else "falsified")


def test_clauses_are_numbered_by_whole_numbers_since_words_and_proof_must_agree() -> None:
    """0.9 was read as clause 0 by the proof, which made one of two, and as another by the page."""
    either = frown.Clauses([[1.0], [-1.0]], [0.1, 5.0], [0, 0.9])
    with pytest.raises(InvalidInput, match="clause has every literal's clause"):
        either.on(Answers(1, 1, lambda: np.zeros((1, 1))), np.arange(1))
    with pytest.raises(InvalidInput, match="clause has every literal's clause"):
        _ = either.words


@pytest.mark.parametrize("const", ["0.1", Fraction(1, 10), 2**53 + 3, "-0.1", 0.1])
def test_a_constant_that_is_no_double_is_rounded_down(const: object) -> None:
    """The proof has to imply y + const > 0 for the very number that was given."""
    held = frown.Clauses([[1.0]], const)._literals()[1][0]
    asked = Fraction(const)  # type: ignore[arg-type]
    assert Fraction(float(held)) <= asked < Fraction(float(np.nextafter(held, np.inf)))
