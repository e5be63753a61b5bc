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
    assert name == "common.py" or callable(loaded["main"])


def test_there_are_benchmarks() -> None:
    assert {"peers.py", "conv.py", "recurrent.py"} <= set(PROGRAMS)


def test_tables_count_as_verified_what_is_rigorous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    loaded = runpy.run_path(str(FOLDER / "tables.py"), run_name="loaded")

    def status(status: str, level: str) -> str:
        row = SimpleNamespace(status=status, level=level, leaves=3)
        found: str = loaded["kept"](row, 1.0)["status"]
        return found

    assert status("certified", "rigorous") == "verified"
    assert status("certified", "estimate") == status("unknown", "rigorous") == "open"
    assert status("mismatch", "rigorous") == "open"
    assert status("falsified", "estimate") == status("misclassified", "estimate") == "broken"
    one = SimpleNamespace(status="unknown", level="rigorous", leaves=2)
    rows = [loaded["kept"](one, 2.0)] * 2
    line = loaded["line"](loaded["TABLES"][0], rows)
    assert line[2:] == ["2", "0", "0", "2", "2", "2.0"]
