"""Both ends of an adversarial error: rows are kept, gone on with, and counted."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import barrier
from benchmarks.decided import kept
from benchmarks.paper.barrier import ERRORS
from onnx_models import model, node, saved

pytest.importorskip("highspy")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with a small network in place of the published one, and twelve images."""
    rng = np.random.default_rng(0)
    known = {
        "w": rng.normal(size=(784, 6)).astype(np.float32) * 0.1,
        "b": rng.normal(size=6).astype(np.float32),
        "v": rng.normal(size=(6, 10)).astype(np.float32),
        "c": np.zeros(10, np.float32),
    }
    nodes = [
        node("Flatten", "x", "f"),
        node("Gemm", "f w b", "z"),
        node("Relu", "z", "a"),
        node("Gemm", "a v c", "y"),
    ]
    folder = tmp_path / "shared"
    (folder / "models").mkdir(parents=True)
    (folder / "data").mkdir()
    saved(model(nodes, ("N", 1, 28, 28), known), folder / "models", ERRORS[0].file)
    images = rng.integers(0, 256, (12, 28, 28)).astype(np.uint8)
    flat = images.reshape(12, -1) / 255.0
    labels = (np.maximum(flat @ known["w"] + known["b"], 0) @ known["v"]).argmax(1)
    labels[0] = (labels[0] + 1) % 10  # one that is misclassified
    np.savez(folder / "data" / "mnist.npz", x_test=images, y_test=labels)
    return folder


def run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    old, sys.argv = sys.argv, ["barrier", *options]
    try:
        barrier.main()
    finally:
        sys.argv = old
    return capsys.readouterr().out


def test_a_run_goes_on_and_counts_both_ends(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, out = barrier.AdversarialError(ERRORS[0]), str(tmp_path / "rows")
    name = problem.name
    own = ("--only", name, "--out", out)
    first = run(capsys, *own, "--shared", str(shared), "--images", "5", "--seconds", "5")
    assert f"{name}: 5 of 5," in first
    whole = run(capsys, *own, "--shared", str(shared), "--images", "12", "--seconds", "5")
    assert f"{name}: 12 of 12," in whole and "5 of 12" not in whole
    rows = problem.known(Path(out))
    assert len(rows) == 12
    statuses = [row["status"] for row in rows]
    assert statuses.count("misclassified") == 1 and "unknown" not in statuses
    last = run(capsys, *own, "--table")
    cells = [cell.strip() for cell in last.splitlines()[2].split("|")[1:-1]]
    low = 100 * (1 + statuses.count("falsified")) / 12
    high = 100 * (12 - statuses.count("certified")) / 12
    assert cells[2:7] == ["12", "8.33", f"{low:.2f}", f"{high:.2f}", "0.00"]


def test_estimates_are_not_proofs() -> None:
    rows = [{"status": s, "leaves": 1, "cpu": 1.0} for s in ("certified", "unknown", "falsified")]
    line = barrier.AdversarialError(ERRORS[0]).line
    cells = line([*rows, {"status": "robust", "leaves": 7, "cpu": 1.0}])
    assert cells[2:7] == ["4", "0.00", "25.00", "50.00", "25.00"] and cells[-2:] == ["7", "4"]
    for level, status in (("rigorous", "certified"), ("estimate", "unknown")):
        row: Any = SimpleNamespace(status="certified", level=level, leaves=3)
        assert kept(row, 1.0)["status"] == status


def test_without_the_networks_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FROWN_SHARED", raising=False)
    with pytest.raises(SystemExit, match="FROWN_SHARED"):
        run(capsys, "--images", "5")
