"""Rows as files and tables."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frown.certification.results import Row
from frown.certification.statement import Statement
from frown.jobs.files import Origin, ResultFiles, dumps, record
from frown.jobs.table import bracket, results_table, round_radii, summary

ROW = Row(0, 1, 1, None, math.inf, "crown", "certified", 0.5, None, math.inf, {0: math.nan}, 0.1)


def test_rows_are_strict_json():
    entry = json.loads(dumps(record(ROW, Origin({"memory": math.inf}, "1", "ab"))))
    assert entry["norm"] == "inf"
    assert entry["broken"] is None
    assert entry["failed"] is None
    assert entry["margins"] == {"0": None}
    assert entry["settings"] == {"memory": None}


def test_every_batch_is_on_disk_when_append_returns(tmp_path: Path):
    files = ResultFiles.prepare(tmp_path, {}, Origin({}, "1", "ab"))
    for count in (1, 2, 3):
        files.append([ROW], {})
        assert len((tmp_path / "results.jsonl").read_text().splitlines()) == count
        assert len((tmp_path / "results.csv").read_text().splitlines()) == count + 1
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "running"


def test_counterexamples_are_not_kept_in_memory(tmp_path: Path):
    files = ResultFiles.prepare(tmp_path / "out", {"settings": {}}, Origin({}, "1", "m"))
    tracemalloc.start()
    try:
        for n in range(40):
            files.append(
                [replace(ROW, index=n)], {n: np.full((1, 50_000), float(n))}
            )  # 16 MB in all
        files.close({})
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
        files.release()
    with np.load(tmp_path / "out" / "counterexamples.npz") as held:
        assert held["x"].shape == (40, 1, 50_000) and held["index"].tolist() == list(range(40))
        assert (held["x"][:, 0, 0] == np.arange(40)).all() and held["y"].shape == (40,)


def test_summary_counts_and_averages():
    wrong = Row(1, 1, 0, None, 2.0, "crown", "misclassified", 0.0, 0.0, 0.0, {}, 0.1)
    first, radius, meaning, level, accuracy = summary([ROW, wrong], 3.0, Statement(math.inf))
    assert meaning == "radius r: no single number of the input changes by more than r"
    assert level.startswith("level: estimate (bounds in plain floating point")
    assert first == "2 inputs in 3 s: 1 certified, 1 misclassified"
    assert "mean 0.5, median 0.5" in radius
    assert "without 1" in radius
    assert accuracy.endswith("50% at 0.5")
    assert results_table([ROW] * 50).row_count == 40
    assert results_table([ROW] * 50, None).row_count == 50


@pytest.mark.parametrize("largest", [1e-9, 0.0371, 0.1, 0.33, 0.999, 1, 12345.6])
def test_round_radii_lie_below_the_largest(largest: float):
    radii = round_radii(largest)
    assert 2 <= len(radii) <= 5
    assert max(radii) <= largest * (1 + 1e-6)
    assert min(np.diff(radii)) > 0
    assert all(len(f"{r:g}") <= 8 for r in radii)
    assert round_radii(0.0) == []
    assert round_radii(math.inf) == []


@pytest.mark.parametrize("seed", range(3))
def test_brackets_hold_as_they_are_printed(seed: int):
    """Proved radii are rounded down, those of counterexamples up, and neither by much."""
    rng = np.random.default_rng(seed)
    for radius in [*10 ** rng.uniform(-12, 6, 200), 0.1, 0.021346, 1000.0, 99995.0, 5e-324]:
        row = Row(0, 0, 0, 1, 2.0, "", "certified", float(radius), None, float(radius), {}, 0.0)
        low, high = map(float, bracket(row)[1:-1].split(", "))
        assert low <= radius <= high
        assert math.isclose(low, high, rel_tol=1.01e-3)
        assert low == high or len(repr(float(radius))) > 5


def test_bracket_says_what_is_not_known():
    assert bracket(Row(0, 0, 0, 1, 2.0, "", "unknown", 0.0, 1.0, None, {}, 0.0)) == "[0, ?]"
    assert bracket(Row(0, 0, 0, 1, 2.0, "", "robust", 1.0, None, None, {}, 0.0)) == "[1, none]"
