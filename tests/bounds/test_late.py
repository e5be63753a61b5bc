"""Modules of torch that are put off are executed when they are asked for, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frown.bounds import late
from frown.bounds.late import LATER

PUT_OFF = """
import sys
import frown.bounds.late
import frown.jobs.job  # all that `frown certify` loads
put_off = [name for name in {names} if "__getattr__" in vars(sys.modules[name])]
assert put_off == list({names}), put_off
import torch
assert callable(torch.export.export) and callable(torch.distributions.Normal)
assert "__getattr__" not in vars(torch.distributions)
"""


def test_certifying_loads_none_of_them() -> None:
    code = PUT_OFF.format(names=repr(LATER))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_versions_of_torch_that_were_tried_are_imported_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (torch / "version.py").write_text(f"__version__ = '{late.TRIED[-1]}0+cpu'\n")
    assert late._tried()
    (torch / "version.py").write_text("__version__ = '2.6.0'\n")
    assert not late._tried()
    (torch / "version.py").unlink()
    assert not late._tried()
