"""What the methods lp and milp refuse, and their command line."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asking
import frown
from frown.errors import InvalidInput
from frown.methods.lp import solvers
from methods.programs.tools import (
    FEATURES,
    TOL,
    command,
    rows_of,
)

# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "lp", "norm": 3}, "norms 1, 2 and inf, not 3"),
        ({"method": "milp", "norm": 2}, "norm 1 or inf, not 2"),
        ({"method": "lp", "boxes": "interval"}, "unknown inner .* 'interval'"),
        ({"method": "lp", "tangents": 0}, "tangents"),
        ({"method": "lp", "tangents": 1.5}, "tangents"),
        ({"method": "lp", "workers": 0}, "workers"),
        ({"method": "simplex"}, "lp, milp"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    relu: frown.Model, x: np.ndarray, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        asking.certify(relu, x, **options)
    with pytest.raises(InvalidInput):
        asking.bound(relu, x, 0.1, **options)


def test_branching_is_for_piecewise_linear_networks(sigmoid: frown.Model, x: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=r"piecewise linear.*Sigmoid.*use frown or lp"):
        asking.certify(sigmoid, x, method="milp")


def test_branching_gives_no_bounds(relu: frown.Model, x: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="use certify"):
        asking.bound(relu, x, 0.1, method="milp")


@pytest.mark.parametrize(
    ("method", "norm", "missing"),
    [
        ("lp", "inf", "highspy"),
        ("lp", "2", "clarabel"),
        ("lp", "inf", "scipy"),
        ("milp", "1", "highspy"),
    ],
)
def test_a_missing_solver_says_what_to_install(
    net: Path, data: Path, method: str, norm: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = importlib.import_module

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return genuine(name, *rest, **more)

    graph = frown.load(net)
    monkeypatch.setattr(solvers, "import_module", without)
    there = importlib.util.find_spec
    monkeypatch.setattr(solvers, "find_spec", lambda name: None if name == missing else there(name))
    with pytest.raises(InvalidInput, match=rf"{missing}.*pip install 'frown\[lp\]'"):
        asking.certify(graph, np.zeros((1, FEATURES)), method=method, norm=norm)
    result = command("certify", net, data, "--method", method, "--norm", norm, code=2)
    assert "pip install 'frown[lp]'" in result.stderr
    assert result.stdout == ""
    command("certify", net, data, "--norm", norm, "--quiet")  # others need none of them


# -- the command line ------------------------------------------------------------------


def test_options_of_programs_reach_them(net: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--tangents", 1, "--boxes", "crown", "--no-attack")
    command("certify", net, data, "--method", "lp", *options, "--out", out, "--quiet")
    for row in rows_of(out):
        assert row["method"] == "lp" and row["status"] == "certified"
        kept = {k: row["settings"][k] for k in ("tangents", "inner")}
        assert kept == {"tangents": 1, "inner": {"method": "crown", "rule": "area"}}
    crown = asking.certify(frown.load(net), *np.load(data).values(), method="crown")
    np.testing.assert_allclose([row["radius"] for row in rows_of(out)], crown.radius, rtol=TOL)


def test_branching_from_the_command_line(net: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = command("certify", net, data, "--method", "milp", "--bounds", 0, 1, "--out", out)
    assert "certified" in shown.stdout or "robust" in shown.stdout
    rows = rows_of(out)
    for row in rows:
        assert row["method"] == "milp" and row["remark"] == ""
        if row["broken"] is not None:
            assert row["radius"] <= row["broken"] <= row["radius"] * (1 + TOL)
    with np.load(out / "counterexamples.npz") as found:
        wrong = frown.load(net).run(found["x"]).argmax(1) != found["y"]
    assert wrong.sum() == sum(row["broken"] is not None for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "lp", "--norm", 3), "norms 1, 2 and inf"),
        (("--method", "milp", "--norm", 2), "norm 1 or inf"),
        (("--method", "lp", "--boxes", "fastlin"), "unknown inner (--boxes)"),
        (("--method", "lp", "--tangents", 0), "tangents must be at least 1"),
        (("--method", "lp", "--workers", 0), "workers must be at least 1"),
    ],
    ids=str,
)
def test_a_refusal_is_a_message(
    net: Path, data: Path, options: tuple[object, ...], message: str
) -> None:
    result = command("certify", net, data, *options, code=2)
    assert message in result.stderr
    assert result.stdout == ""


def test_worker_processes_from_the_command_line(net: Path, data: Path) -> None:
    """As a process of its own: workers import its main module again."""
    args = [net, data, "--method", "lp", "--workers", "2", "--samples", "0:1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "frown", "certify", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    alone = asking.certify(frown.load(net), *(a[:1] for a in np.load(data).values()), method="lp")
    assert row["radius"] == pytest.approx(alone.radius[0], rel=TOL)
