"""The commands that are printed: make and the shell hand on the very words."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.paper.invocation import invocation

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_printed_command_gives_its_words_to_the_experiments(tmp_path: Path) -> None:
    words = ["table4", "--networks", "mnist_*_relu,drive_?", "--out", "a b's", '"$HOME`\\', "#$(x)"]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    python.chmod(0o755)
    (tmp_path / ".dev").touch()  # as if all were installed
    command = invocation(*words).replace("make", f"make -s VENV={tmp_path}", 1)
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["-m", "benchmarks.paper", *words], done.stderr


def test_plain_words_are_shown_plainly() -> None:
    assert invocation("table4", "--samples", "5") == 'make paper ARGS="table4 --samples 5"'


def test_the_commands_run_from_the_checkout() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.paper", "table4", "--norms", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "give some of inf, 1 and 2" in done.stderr
