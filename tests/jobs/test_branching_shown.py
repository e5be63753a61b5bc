"""Branching in rows and tables: cases, brackets before and after, the class of counterexamples."""

from __future__ import annotations

import io
from importlib.resources import files
from math import inf

import numpy as np
import pytest
from rich.console import Console

import frown
from frown.certification.statement import Statement
from frown.jobs.files import Origin, dumps, record
from frown.jobs.table import results_table, summary
from frown.report.read import row_of

ASSETS = files("frown.jobs").joinpath("assets")


@pytest.fixture(scope="module")
def branched():
    path = str(ASSETS.joinpath("digits.onnx"))
    with np.load(io.BytesIO(ASSETS.joinpath("digits.npz").read_bytes())) as data:
        x, y = data["x"][[0, 1, 11]], data["y"][[0, 1, 11]]
    where = frown.Ball(x, within=(0, 1))
    model = frown.load(path)
    return model, frown.certify(model, where, y, method=frown.Branch(seconds=0.5))


def test_rows_tell_the_bracket_before_and_after_with_its_leaves(branched):
    _, found = branched
    for row in found.rows[:2]:
        assert row.level == "rigorous" and row.leaves > 1
        assert 0 < row.radius_before < row.radius < row.broken <= row.broken_before
    wrong = found.rows[2]
    assert wrong.status == "misclassified" and wrong.leaves == 0 and wrong.radius_before is None


def test_a_counterexample_is_taken_for_the_class_that_the_row_names(branched):
    model, found = branched
    for row in found.rows:
        if row.index in found.counterexamples:
            scores = model.run(found.counterexamples[row.index][None])[0]
            scores[row.label] = -inf
            assert row.broken_as == int(scores.argmax())
        else:
            assert row.broken_as == row.prediction != row.label


def test_rows_come_back_from_json(branched):
    for row in branched[1].rows:
        import json

        assert row_of(json.loads(dumps(record(row, Origin({}, "", ""))))).leaves == row.leaves


def test_the_table_shows_both_brackets(branched):
    console = Console(file=io.StringIO(), width=120)
    console.print(results_table(branched[1].rows))
    text = console.file.getvalue()
    assert "before branching" in text and "leaves" in text
    assert any(
        line.startswith("branching: ") for line in summary(branched[1].rows, 1, Statement(inf))
    )
