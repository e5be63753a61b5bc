"""Shares, means and radii as they are shown hold for the rows: rounded towards what is proved."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import pytest

from frown.certification.results import Certification, Sensitivity, percent
from frown.certification.statement import Statement
from frown.jobs.table import frames_tables, results_table, summary
from frown.report.charts import WIDE, accuracy_chart
from frown.report.comparison import Comparison
from frown.report.page import write_report
from report.test_report import row


@pytest.mark.parametrize("places", [0, 1])
@pytest.mark.parametrize("whole", [1, 3, 7, 100, 200, 999, 10_000, 1_000_000])
def test_100_per_cent_are_said_of_all_and_no_others(whole: int, places: int) -> None:
    for part in {0, 1, whole // 3, whole // 2, whole - 1, whole}:
        shown = percent(part / whole, places)
        assert float(shown) <= 100 * part / whole * (1 + 1e-12)
        assert float(shown) > 100 * part / whole - 10.0**-places
        assert (shown == "100") == (part == whole)


def test_a_share_of_whole_per_cents_is_that() -> None:
    assert [percent(n / 100) for n in range(101)] == [str(n) for n in range(101)]


def rows(count: int, **last: object) -> tuple:
    made = [row(i, "frown", 0.05, None, level="rigorous") for i in range(count - 1)]
    return (*made, row(count - 1, "frown", 0.0, None, **{"status": "unknown", **last}))


def test_one_input_of_many_that_is_not_proved_shows() -> None:
    (line,) = [s for s in summary(rows(300), 1.0, Statement(inf)) if s.startswith("certified")]
    assert "99% at" in line and "100%" not in line


def test_the_radius_asked_about_has_all_its_digits() -> None:
    """0.123457 is more than was proved."""
    said = Statement(inf, eps="0.1234567891")
    (line,) = [s for s in summary(rows(3), 1.0, said) if s.startswith("certified")]
    assert line.endswith("66% at 0.1234567891")


@pytest.mark.parametrize("status", ["unknown", "mismatch", "falsified", "misclassified"])
def test_at_radius_0_nothing_counts_that_is_not_proved(status: str) -> None:
    found = Certification(rows(4, status=status))
    assert found.certified_accuracy(0.0) == 0.75
    assert Comparison.of({"frown": found}).certified("frown", 0.0) == 0.75


def test_at_radius_0_what_was_proved_there_counts() -> None:
    assert Certification(rows(4, status="certified")).certified_accuracy(0.0) == 1.0


def test_a_row_that_was_withdrawn_is_right_where_the_model_is() -> None:
    wrong = Certification(rows(4, status="mismatch", prediction=1))
    assert Comparison.of({"frown": wrong}).accuracy == 0.75
    right = Certification(rows(4, status="mismatch"))
    assert Comparison.of({"frown": right}).accuracy == 1.0


def test_curves_say_no_more_than_is_proved_at_the_radius_they_name() -> None:
    """A share proved at 0.12351 is not shown as proved at 0.124."""
    radii = [0.001 * i + 0.0005 * (i % 3) for i in range(1, 200)]
    found = Certification(tuple(row(i, "frown", r, None) for i, r in enumerate(radii)))
    comparison = Comparison.of({"frown": found})
    tips = re.findall(r"radius (\S+)\nFROWN: (\S+) % proved", accuracy_chart(comparison, WIDE))
    assert len(tips) == 60
    for radius, share in tips:
        assert float(share) <= 100 * found.certified_accuracy(float(radius)) + 1e-9


def test_means_are_rounded_towards_what_is_proved(tmp_path: Path) -> None:
    """0.19999 proved is no 0.2, and 0.30001 broken no 0.3."""
    made = tuple(row(i, "frown", 0.19999, 0.30001) for i in range(3))
    assert "mean radius 0.1999, rigorous>" in repr(Certification(made))
    page = write_report({"frown": Certification(made)}, None, tmp_path / "page.html", "a")
    (means,) = re.findall(r"<h3>Mean radius proved by each.*?</dl>", page.read_text("utf-8"))
    assert re.findall(r' text">([0-9.]+)<', means) == ["0.199", "0.301"]


def test_means_of_frames_are_rounded_towards_what_is_proved(tmp_path: Path) -> None:
    made = tuple(
        row(i, "frown", 0.199999, 0.300001, frames=str(f)) for i in range(3) for f in range(2)
    )
    found = Sensitivity(made, (0, 1))
    assert "0.199, 0.199" in repr(found)
    (table,) = frames_tables(made, Statement(2.0), None)
    shown = [list(column.cells)[-2:] for column in table.columns][2:]
    assert shown == [["0.1999", "0.3001"]] * 2
    page = write_report({}, None, tmp_path / "page.html", "a", frames={"frown": found})
    (means,) = re.findall(r'<tr class="profile">.*?</tr>', page.read_text("utf-8"))
    assert re.findall(r"<(?:span|small)>([0-9.]+)<", means) == ["0.199", "0.301"] * 2


def test_a_search_that_ended_early_is_not_said_to_prove_what_it_estimates() -> None:
    made = (row(0, "frown", 0.1, None, complete=False, level="estimate"),)
    (line,) = [s for s in summary(made, 1.0, Statement(inf)) if s.startswith("*")]
    assert line == "* ended early: more may be provable"


@pytest.mark.parametrize(
    ("levels", "word"),
    [
        (("rigorous", "checked"), "proved"),
        (("estimate", "estimate"), "estimated"),
        (("estimate", "rigorous"), "proved or estimated"),
    ],
)
def test_tables_call_no_estimate_proved(levels: tuple[str, str], word: str) -> None:
    made = tuple(row(i, "frown", 0.1, None, level=level) for i, level in enumerate(levels))
    columns = {str(c.header): list(map(str, c.cells)) for c in results_table(made).columns}
    assert f"[{word}, broken]" in columns
    assert columns.get("level") == (None if len(set(levels)) == 1 else list(levels))
    lines = summary(made, 1.0, Statement(inf))
    (radii,) = [line for line in lines if " radius: mean" in line]
    (shares,) = [line for line in lines if line.startswith("certified accuracy")]
    assert radii.startswith(f"{word} radius") and (f"({word})" in shares) == (word != "proved")
    assert all(level in Certification(made)._repr_html_() for level in levels)
    assert all(level in repr(Certification(made)) for level in levels)
