"""Certificates of clauses and boxes: written, accepted, and about what was asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import frown
import frown_check
from onnx_models import model, node, saved, weights

LOW = np.array([[-0.2, -0.2, 0.1]])
REGIONS = {
    "ball": frown.Ball(LOW + 0.1, norm=2, within=(-1, 1)),
    "box": frown.Box(LOW, LOW + np.array([[0.02, 0.03, 0.0]])),
}


def net(folder: Path, last: str) -> Path:
    """Three layers with four outputs, the last function an activation or none."""
    layers = [
        *(node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("Gemm", "r c d", "s")),
        *(node("Tanh", "s", "t"), node("Gemm", "t e f", "u"), node(last, "u")),
    ]
    constants = {"a": weights(3, 6), "b": weights(6, seed=1), "c": weights(6, 5, seed=2)}
    constants |= {"d": weights(5, seed=3), "e": weights(5, 4, seed=4), "f": weights(4, seed=5)}
    return saved(model(layers, ["N", 3], constants), folder)


def clauses(path: Path) -> frown.Clauses:
    """Two clauses, of two literals and of one, that hold near the regions' corner."""
    y = frown.load(path).run(LOW)[0]
    coef = np.array([[1, -0.5, 0, 0.25], [0, 0, -1, 0], [0.125, 1, -2, 0]])
    return frown.Clauses(coef, np.array([0.25, -0.5, 0.25]) - coef @ y, [0, 0, 1])


@pytest.mark.parametrize("last", ["Identity", "Sigmoid", "Softmax"])
@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("method", ["crown", "frown"])
def test_clauses_are_certified_of_balls_and_boxes(
    method: str, name: str, last: str, tmp_path: Path
) -> None:
    path, where = net(tmp_path, last), REGIONS[name]
    asked = clauses(path)
    proof = frown.Rigorous(certificates=tmp_path / "proofs", check=last != "Softmax")
    (row,) = frown.certify(path, where, asked, method=method, proof=proof, attack=None).rows
    assert row.radius > 0 and row.certificate
    verdict = frown_check.check(tmp_path / "proofs" / row.certificate, path)
    if last == "Softmax":  # a softmax whose values matter is none that the checker knows
        assert "Softmax" in verdict.reason
        return
    assert row.level == "checked" and verdict.accepted and verdict.claim is not None
    claim = verdict.claim
    assert claim.box == (name == "box")
    assert np.array_equal(np.asarray(claim.coef), asked.coef)
    assert np.array_equal(np.asarray(claim.clause), np.asarray(asked.clause))
    assert np.array_equal(np.asarray(claim.const), asked.const)
    if isinstance(where, frown.Box):
        assert np.array_equal(np.asarray(claim.lower), np.asarray(where.lower)[0])
        assert np.array_equal(np.asarray(claim.upper), np.asarray(where.upper)[0])
    else:
        assert claim.radius >= row.radius


def test_labels_are_certified_of_boxes(tmp_path: Path) -> None:
    path = net(tmp_path, "Softmax")
    (row,) = frown.certify(path, REGIONS["box"], proof="checked").rows
    assert (row.status, row.level) == ("certified", "checked")
