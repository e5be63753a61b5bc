"""The example notebook runs, and shows what it would show today."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def run(notebook: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "notebook.py"), str(notebook), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_notebook_shows_what_its_cells_give() -> None:
    done = run(NOTEBOOK, "--check")
    assert done.returncode == 0, done.stderr
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    shown = [out for cell in cells if cell["cell_type"] == "code" for out in cell["outputs"]]
    assert any("image/png" in out.get("data", {}) for out in shown)
    assert any("text/html" in out.get("data", {}) for out in shown)


def test_a_notebook_that_shows_something_else_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other.ipynb"
    cell = {"cell_type": "code", "source": ["print(1 + 1)"], "outputs": [], "metadata": {}}
    other.write_text(json.dumps({"cells": [cell]}))
    assert run(other, "--check").returncode == 1
    assert run(other).returncode == 0
    assert run(other, "--check").returncode == 0
