"""Results: what was appended comes back, whatever an interrupt left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.paper.results import SETTINGS, Key, Result, open_results, stored_results
from frown.errors import InvalidInput, OutputError
from frown.jobs.store import ROWS, Store

KEY = Key("abc", inf, (("group", 8), ("method", "frown"), ("tol", 0.01)), "0123", 3, 7)
RESULT = Result(
    KEY,
    "mnist_5x20_relu",
    "frown",
    17,
    0.1 + 0.2,
    "certified",
    True,
    0.25,
    0.2,
    None,
    20,
    1,
    1,
    "0.3",
)


def keep(folder: Path, *results: Result) -> None:
    with open_results(folder) as stored:
        stored.append(results)


def test_results_come_back_exactly(tmp_path: Path) -> None:
    other = replace(RESULT, key=replace(KEY, norm=1.0), radius=1e-17, complete=False, limit=60.0)
    keep(tmp_path, RESULT, other)
    again = stored_results(tmp_path)
    assert len(again) == 2
    assert again.get(KEY) == RESULT
    assert again.get(other.key) == other
    assert again.get(replace(KEY, target=6)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "abd"},
        {"norm": 2.0},
        {"options": (("group", 1), ("method", "frown"), ("tol", 0.01))},
        {"mark": "0124"},
        {"label": 2},
        {"target": 6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_key_matters(tmp_path: Path, change: dict[str, object]) -> None:
    keep(tmp_path, RESULT)
    assert stored_results(tmp_path).get(replace(KEY, **change)) is None


def test_lines_are_strict_json_with_readable_names(tmp_path: Path) -> None:
    keep(tmp_path, RESULT)
    (line,) = (tmp_path / ROWS).read_text().splitlines()
    record = json.loads(line)
    assert record["norm"] == "inf"
    assert record["options"] == {"group": 8, "method": "frown", "tol": 0.01}
    assert record["network"] == "mnist_5x20_relu" and record["sample"] == 17


def test_a_later_result_replaces_an_earlier_one(tmp_path: Path) -> None:
    with open_results(tmp_path) as results:
        results.append([RESULT])
        results.append([replace(RESULT, radius=0.5)])
    for each in (results, stored_results(tmp_path)):
        found = each.get(KEY)
        assert found is not None and found.radius == 0.5
        assert len(each) == 1


def test_a_line_cut_short_is_passed_over_and_not_glued_to_the_next(tmp_path: Path) -> None:
    keep(tmp_path, RESULT)
    path = tmp_path / ROWS
    text = path.read_text()
    path.write_text(text + text[: len(text) // 2])
    other = replace(RESULT, key=replace(KEY, label=9))
    with open_results(tmp_path) as results:
        assert len(results) == 1
        results.append([other])
    again = stored_results(tmp_path)
    assert again.get(KEY) == RESULT and again.get(other.key) == other


@pytest.mark.parametrize("line", ['{"network": "mnist"}', "[1, 2]", "{1}", "7"])
def test_a_line_that_is_no_result_is_named(tmp_path: Path, line: str) -> None:
    keep(tmp_path, RESULT)
    path = tmp_path / ROWS
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InvalidInput, match="line 2"):
        stored_results(tmp_path)


def test_a_row_that_is_no_result_is_named(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append({"0123": {"network": "mnist"}})
    with pytest.raises(InvalidInput, match="row 0123 is no result"):
        stored_results(tmp_path)
    with pytest.raises(InvalidInput, match="row 0123 is no result"), open_results(tmp_path):
        pass


def test_an_unbounded_radius_comes_back(tmp_path: Path) -> None:
    keep(tmp_path, replace(RESULT, radius=inf))
    found = stored_results(tmp_path).get(KEY)
    assert found is not None and found.radius == inf


def test_the_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, {"job": "certify"}).close()
    with pytest.raises(InvalidInput, match="job: "), open_results(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), open_results(tmp_path / "file" / "out"):
        pass


@pytest.mark.parametrize(
    ("complete", "limit", "wanted", "settled"),
    [
        (True, None, 10.0, True),
        (True, 5.0, None, True),
        (False, 5.0, 5.0, True),
        (False, 5.0, 3.0, True),
        (False, 5.0, 6.0, False),
        (False, 5.0, None, False),
    ],
)
def test_what_was_given_up_is_tried_again_with_more_patience(
    complete: bool, limit: float | None, wanted: float | None, settled: bool
) -> None:
    assert replace(RESULT, complete=complete, limit=limit).settles(wanted) is settled
