"""A small network, and how the tests of programs look at results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

import frown
from frown.cli import app
from onnx_models import model, node, saved, weights

FEATURES, CLASSES, COUNT = 4, 3, 3
TOL = 0.01


def network(folder: Path, activation: str) -> Path:
    """4 -> 8 -> 8 -> 3."""
    proto = model(
        [
            node("Gemm", "x w0 b0", "h0", transB=1),
            node(activation, "h0", "a0"),
            node("Gemm", "a0 w1 b1", "h1", transB=1),
            node(activation, "h1", "a1"),
            node("Gemm", "a1 w2 b2", "y", transB=1),
        ],
        ["N", FEATURES],
        {
            "w0": weights(8, FEATURES, seed=11),
            "b0": weights(8, seed=12),
            "w1": weights(8, 8, seed=13),
            "b1": weights(8, seed=14),
            "w2": weights(CLASSES, 8, seed=15),
            "b2": weights(CLASSES, seed=16),
        },
    )
    return saved(proto, folder)


def command(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def not_above(
    one: np.ndarray | frown.Certification, other: np.ndarray | frown.Certification, slack: float
) -> None:
    """Radii of one method do not exceed another's by more than the searches' tolerance."""
    low, high = (r.radius if isinstance(r, frown.Certification) else r for r in (one, other))
    assert (low <= high * (1 + slack)).all(), (low, high)


def outputs_inside(
    graph: frown.Model, x: np.ndarray, radius: np.ndarray, norm: float, scale: np.ndarray
) -> np.ndarray:
    """Answers at points of each ball, its surface above all: (N, points)."""
    rng = np.random.default_rng(0)
    answers = []
    for centre, r in zip(x, radius, strict=True):
        step = rng.standard_normal((4000, FEATURES))
        step /= np.linalg.norm(step, ord=norm, axis=1, keepdims=True)
        points = centre + 0.9999 * r * step * scale
        answers.append(graph.run(np.clip(points, 0, 1)).argmax(1))
    return np.stack(answers)
