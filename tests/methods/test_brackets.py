"""A few of the networks that `branching_campaign.py` judges by the thousand."""

from __future__ import annotations

import pytest

from methods.brackets import run

pytest.importorskip("highspy")
pytest.importorskip("clarabel")


def test_no_radius_holds_a_counterexample() -> None:
    found = run(0, 6)
    assert not found.false
    assert found.closed >= 4 and found.judged > 100 and found.leaves > 20


def test_radii_beyond_the_truth_are_found_out() -> None:
    assert len(run(0, 4, stretch=1.01).false) >= 3
