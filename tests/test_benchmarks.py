"""The benchmarks are programs that nothing else runs: their names must at least be there."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_can_be_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    loaded = runpy.run_path(str(FOLDER / name), run_name="loaded")
    assert name in ("common.py", "decided.py") or callable(loaded["main"])


def test_there_are_benchmarks() -> None:
    assert {"peers.py", "conv.py", "recurrent.py"} <= set(PROGRAMS)


def test_tables_count_as_verified_what_is_rigorous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    decided, tables, barrier = (
        runpy.run_path(str(FOLDER / name), run_name="loaded")
        for name in ("decided.py", "tables.py", "barrier.py")
    )
    seen = ["certified rigorous", "robust estimate", "unknown rigorous", "mismatch rigorous"]
    seen += ["falsified estimate", "misclassified estimate", "robust rigorous", "robust rigorous"]
    rows = []
    for status, level in (words.split() for words in seen):
        row = SimpleNamespace(status=status, level=level, leaves=3)
        rows.append(decided["kept"](row, 2.0))
    counts = ["8", "3", "2", "3"]  # images, verified, broken, open
    assert tables["TABLES"][0].line(rows)[2:] == [*counts, "3", "2.0"]
    line = barrier["AdversarialError"](barrier["ERRORS"][0]).line(rows)
    assert line[2:7] == ["8", "12.50", "25.00", "62.50", "37.50"]
