"""The benchmarks are programs that nothing else runs: their names must at least be there."""

from __future__ import annotations

import runpy
from pathlib import Path

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
