"""Nothing is called proved where floats do not round to nearest or small ones are flushed."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.certification.prove import _Replays
from frown.read.model import Model
from frown.relax.proven.rounding import arithmetic_fault
from frown_check.balls import require_ieee
from frown_check.errors import Refused

# Values of <fenv.h>.
MODES = {
    "x86_64": {"downward": 0x400, "upward": 0x800, "towards 0": 0xC00},
    "aarch64": {"upward": 0x400000, "downward": 0x800000, "towards 0": 0xC00000},
}.get(platform.machine(), {})

pytestmark = pytest.mark.skipif(not MODES, reason="no values of <fenv.h> for this processor")


@contextmanager
def rounding(mode: int) -> Iterator[None]:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    assert library.fesetround(mode) == 0
    try:
        yield
    finally:
        library.fesetround(0)


def small() -> tuple[Model, np.ndarray]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return frown.load(module, torch.zeros(1, 4)), np.random.default_rng(0).normal(size=(3, 4))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("deployed", [None, "float32"])
def test_rows_stay_estimates_where_floats_round_otherwise(mode: str, deployed: str | None) -> None:
    model, x = small()
    assert {row.level for row in asking.certify(model, x, attack=False).rows} == {"rigorous"}
    with rounding(MODES[mode]):
        rows = asking.certify(model, x, attack=False, deployed=deployed).rows
    assert [row.level for row in rows] == ["estimate"] * 3
    assert all("not rounded to nearest" in row.remark and row.deployed == "" for row in rows)
    assert arithmetic_fault() is None


@pytest.mark.parametrize("mode", MODES)
def test_the_checker_refuses_to_work_where_floats_round_otherwise(mode: str) -> None:
    require_ieee()
    with rounding(MODES[mode]), pytest.raises(Refused, match="IEEE"):
        require_ieee()


def test_a_mode_that_changes_during_the_proof_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    whole = _Replays._fall_back

    def disturbed(self: _Replays, radius: torch.Tensor) -> None:
        whole(self, radius)
        library.fesetround(MODES["upward"])

    monkeypatch.setattr(_Replays, "_fall_back", disturbed)
    asset = Path(frown.__file__).parent / "jobs" / "assets"
    model, data = frown.load(asset / "digits.onnx"), np.load(asset / "digits.npz")
    try:
        found = asking.certify(
            model, data["x"][:1], method="crown", certificates=tmp_path, attack=False
        )
    finally:
        library.fesetround(0)
    assert [row.level for row in found.rows] == ["estimate"]
    assert not list(tmp_path.glob("**/*.frown"))


WORKERS = """
import ctypes, ctypes.util, sys
library = ctypes.CDLL(ctypes.util.find_library("m"))
import torch
torch.set_num_threads(2)
library.fesetround(int(sys.argv[1]))  # threads are born with it
torch.ones(2**20).double().exp_().sum()
library.fesetround(0)
from frown.relax.proven.rounding import arithmetic_fault
print(arithmetic_fault())
"""


def test_threads_of_torch_that_round_otherwise_are_noticed() -> None:
    for mode, said in ((0, "None"), (MODES["upward"], "not rounded to nearest")):
        found = subprocess.run(
            [sys.executable, "-c", WORKERS, str(mode)], capture_output=True, text=True, check=True
        )
        assert said in found.stdout
