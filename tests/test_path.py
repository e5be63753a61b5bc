"""The path of one query through the package, which a newcomer has to follow."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import CodeType, FrameType

from typer.testing import CliRunner

import frown
from frown.cli import app

ROOT = Path(frown.__file__).parent
ASSETS = ROOT / "jobs" / "assets"
MOST_FILES = 60


class Tracer:
    """The files of frown whose functions are called, imports aside."""

    def __init__(self) -> None:
        self._called: set[CodeType] = set()
        self._imports = 0

    @property
    def files(self) -> set[str]:
        """Paths within the package."""
        paths = (Path(code.co_filename) for code in self._called)
        return {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT)}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._imports and code.co_flags & inspect.CO_NEWLOCALS:
            self._called.add(code)


def test_a_plain_query_calls_into_few_files(tmp_path: Path) -> None:
    """`frown certify MODEL DATA --method frown`: every file on its way is one to be read."""
    tracer, before = Tracer(), sys.getprofile()
    files = [str(ASSETS / "digits.onnx"), str(ASSETS / "digits.npz")]
    options = ["--method", "frown", "--samples", "0:2", "--out", str(tmp_path / "out")]
    importlib.import_module("frown.api")  # not worth a trace
    importlib.import_module("frown.read.onnx.load")
    sys.setprofile(tracer)
    try:
        result = CliRunner().invoke(app, ["certify", *files, *options])
    finally:
        sys.setprofile(before)
    assert result.exit_code == 0, result.output
    assert {"cli.py", "methods/frown/ascent.py", "bounds/replay.py"} <= tracer.files
    assert len(tracer.files) <= MOST_FILES, sorted(tracer.files)
