"""Clauses are about a model's outputs, whatever its last function is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import frown
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
