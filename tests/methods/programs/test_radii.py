"""Linear and mixed-integer programs from Python: radii, bounds, solvers that give up."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import asking
import frown
from benchmarks.paper.flat import ColdLP, LPAlone
from frown.bounds.work import Clock, OutOfTime
from frown.methods.exact import distance as branching
from frown.methods.exact.program import Answer
from frown.methods.frown import network
from frown.methods.lp import bounds as engine
from frown.methods.lp.solvers import Basis, Constraints, Duals
from methods.programs.tools import (
    CLASSES,
    COUNT,
    FEATURES,
    TOL,
    command,
    not_above,
    outputs_inside,
    rows_of,
)

# -- radii -----------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1, 2, np.inf])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_programs_prove_at_least_crowns_radius_and_no_more_than_is_true(
    activation: str, norm: float, x: np.ndarray, request: pytest.FixtureRequest
) -> None:
    """Untargeted, in a valid range, with features of different reach."""
    graph = request.getfixturevalue(activation)
    scale = np.array([1.0, 0.5, 2.0, 0.0])
    options: dict[str, Any] = {"norm": norm, "bounds": (0, 1), "scale": scale}
    crown = asking.certify(graph, x, method="crown", **options)
    programs = asking.certify(graph, x, method="lp", **options)
    not_above(crown, programs, 1e-5)  # rounding depends on the batch
    not_above(programs, programs.broken, 0.0)
    answers = outputs_inside(graph, x, programs.radius, norm, scale)
    assert (answers == graph.run(x).argmax(1)[:, None]).all()
    assert all(row.method == "lp" and row.remark == "" and row.complete for row in programs.rows)


def test_the_order_of_the_methods(relu: frown.Model, x: np.ndarray, y: np.ndarray) -> None:
    """CROWN <= LP-LAST <= LP-ALL <= exact <= attack, FROWN <= LP-ALL: on ReLU a theorem."""

    def radii(method: str, **options: Any) -> frown.Certification:
        return asking.certify(relu, x, y, method=method, tol=TOL, **options)

    crown, last = radii("crown"), radii("lp", boxes="crown")
    everywhere, exact = radii("lp"), radii("milp")
    for low, high in (
        (crown, last),
        (radii("lp", boxes="frown"), everywhere),
        (last, everywhere),
        (radii("frown"), everywhere),
        (everywhere, exact),
    ):
        not_above(low, high, TOL)
    not_above(exact, exact.broken, 0.0)
    assert (exact.broken <= exact.radius * (1 + TOL)).all(), "the ends of an exact bracket meet"
    assert (exact.radius > 1.02 * crown.radius).any(), "there is something to gain here"
    for row in exact.rows:
        assert row.failed is None or row.failed >= row.radius


def test_one_line_per_side_and_other_starts(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CROWN's own lines the program is CROWN (Theorem 1); cold or hot, optima agree."""
    crown = asking.certify(relu, x, y, method="crown")
    same = asking.certify(relu, x, y, method="lp", tangents=1)
    np.testing.assert_allclose(same.radius, crown.radius, rtol=TOL)
    hot, cold = (asking.certify(relu, x, y, method=lp) for lp in (frown.LP(), ColdLP()))
    np.testing.assert_allclose(hot.radius, cold.radius, rtol=TOL)
    called: list[object] = []
    real = network.frown

    def counted(*rest: Any) -> Any:
        called.append(rest)
        return real(*rest)

    monkeypatch.setattr(network, "frown", counted)
    alone = asking.certify(relu, x, y, method=LPAlone())
    assert not called  # programs need nothing of FROWN
    np.testing.assert_allclose(hot.radius, alone.radius, rtol=TOL)
    asking.certify(relu, x, y, method="lp")
    assert called


def test_targets_are_taken(relu: frown.Model, x: np.ndarray, y: np.ndarray) -> None:
    """The untargeted radius is that of the nearest class."""
    for method in ("lp", "milp"):
        every = asking.certify(relu, x[:2], y[:2], method=method)
        single = [asking.certify(relu, x[:2], y[:2], method=method, target=f"+{k}") for k in (1, 2)]
        least = np.minimum(single[0].radius, single[1].radius)
        np.testing.assert_allclose(every.radius, least, rtol=2 * TOL)
        assert [row.target for row in single[0].rows] == ((y[:2] + 1) % CLASSES).tolist()


def test_one_radius_is_checked(relu: frown.Model, x: np.ndarray, y: np.ndarray) -> None:
    """Below what programs prove, between that and the truth, and beyond it."""
    programs = asking.certify(relu, x, y, method="lp")
    exact = asking.certify(relu, x, y, method="milp")
    checked = asking.certify(relu, x, y, method="lp", eps=0.95 * programs.radius)
    assert checked.status == ["certified"] * COUNT
    inside = exact.radius > 1.02 * programs.radius
    assert inside.any()
    between = np.sqrt(programs.radius * exact.radius)
    lp, milp = (
        np.array(asking.certify(relu, x, y, method=m, eps=between, attack=False).status)
        for m in ("lp", "milp")
    )
    assert (lp[inside] == "unknown").all()
    assert (milp[inside] == "certified").all()
    beyond = asking.certify(relu, x, y, method="milp", eps=1.02 * exact.broken, attack=False)
    assert beyond.status == ["falsified"] * COUNT, "the solver's own point, replayed"


def test_branching_proves_a_whole_range() -> None:
    """Nothing within [0, 1]^3 is answered otherwise; lines cannot show it, branching can."""
    torch.manual_seed(18)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 2),
    )
    for parameter in module.parameters():
        parameter.data *= 2
    graph, centre = frown.load(module, torch.zeros(1, 3)), np.full((1, 3), 0.5)
    axis = np.linspace(0, 1, 25)
    grid = np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 3)
    assert (graph.run(grid).argmax(1) == graph.run(centre).argmax(1)).all()
    assert asking.certify(graph, centre, bounds=(0, 1)).status == ["certified"]
    exact = asking.certify(graph, centre, bounds=(0, 1), method="milp")
    assert exact.status == ["robust"]
    assert exact.rows[0].broken is None


def test_bounds_at_one_radius(relu: frown.Model, x: np.ndarray) -> None:
    options: dict[str, Any] = {"bounds": (0, 1), "scale": [1.0, 0.5, 1.0, 0.0]}
    crown = asking.bound(relu, x, 0.1, method="crown", **options)
    programs = asking.bound(relu, x, 0.1, method="lp", **options)
    slack = 1e-5 * (1 + np.abs(crown.lower).max())
    assert (programs.lower >= crown.lower - slack).all()
    assert (programs.upper <= crown.upper + slack).all()
    assert (programs.upper - programs.lower < crown.upper - crown.lower - slack).any()
    step = np.random.default_rng(1).uniform(-0.1, 0.1, (500, FEATURES)) * options["scale"]
    for n in range(COUNT):
        outputs = relu.run(np.clip(x[n] + step, 0, 1))
        assert (programs.lower[n] - slack <= outputs).all()
        assert (outputs <= programs.upper[n] + slack).all()
        points = np.clip(x[n] + step, 0, 1)
        for form, sign in ((programs.lower_form, 1), (programs.upper_form, -1)):
            assert form is not None
            values = points @ form.coef[n].T + form.const[n]
            assert (sign * (outputs - values) >= -slack).all()
    for name, box in programs.layers.items():
        assert (box.lower >= crown.layers[name].lower - slack).all()
        assert (box.upper <= crown.layers[name].upper + slack).all()


# -- solvers that give up --------------------------------------------------------------


def garbage(problem: Constraints, costs: np.ndarray, *rest: object) -> tuple[Duals, list[Basis]]:
    """Random duals from a solver that admits to have found nothing."""
    rows = np.random.default_rng(0).standard_normal((len(costs), len(problem.low)))
    none = np.zeros(len(costs), bool)
    return Duals(rows, np.full(len(costs), np.nan), none), [Basis()] * len(costs)


def out_of_time(*anything: object) -> tuple[Duals, list[Basis]]:
    raise OutOfTime


def test_a_solver_that_fails_is_remarked_and_crowns_radius_stays(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    crown = asking.certify(relu, x, y, method="crown")
    monkeypatch.setattr(engine, "minimise", garbage)
    result = asking.certify(relu, x, y, method="lp")
    not_above(crown, result, 1e-5)
    not_above(result, result.broken, 0.0)
    for row in result.rows:
        unsolved, of, programs, *words = row.remark.split()
        assert int(unsolved) == int(programs) > 0 and of == "of"
        assert " ".join(words).startswith("programs were not solved to optimality")


def test_a_remark_is_written_and_shown(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "minimise", garbage)
    out = tmp_path / "out"
    shown = command("certify", net, data, "--method", "lp", "--out", out).stdout
    remarks = [row["remark"] for row in rows_of(out)]
    assert all("programs were not solved to optimality" in remark for remark in remarks)
    with (out / "results.csv").open(newline="") as file:
        assert [row["remark"] for row in csv.DictReader(file)] == remarks
    for remark in remarks:
        assert remark in " ".join(shown.split())
    page = tmp_path / "report.html"
    command("report", out, "--out", page)
    assert page.stat().st_size > 0


def test_nothing_is_remarked_when_all_is_well(net: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = command("certify", net, data, "--method", "lp", "--boxes", "crown", "--out", out)
    assert [row["remark"] for row in rows_of(out)] == [""] * COUNT
    assert "optimality" not in shown.stdout


def test_out_of_time_programs_leave_crowns_radius(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    crown = asking.certify(relu, x, y, method="crown")
    monkeypatch.setattr(engine, "minimise", out_of_time)
    result = asking.certify(relu, x, y, method="lp", time_limit=600)
    np.testing.assert_allclose(result.radius, crown.radius, rtol=TOL)
    for row, cheap in zip(result.rows, crown.rows, strict=True):
        assert not row.complete
        assert row.status == "certified"
        assert row.margins.keys() == cheap.margins.keys() and min(row.margins.values()) > 0


def test_an_interrupt_hands_over_what_is_proved(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Margins too: those with which CROWN proved the radius, none that were only expected."""

    def interrupted(*anything: object) -> tuple[Duals, list[Basis]]:
        raise KeyboardInterrupt

    crown = asking.certify(relu, x, y, method="crown")
    kept: list[frown.Row] = []
    monkeypatch.setattr(engine, "minimise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asking.certify(relu, x, y, method="lp", batch=COUNT, on_rows=lambda r, _: kept.extend(r))
    assert len(kept) == COUNT
    for row, cheap in zip(kept, crown.rows, strict=True):
        assert not row.complete
        assert row.radius == pytest.approx(cheap.radius, rel=1e-5)
        assert row.margins == pytest.approx(cheap.margins, rel=1e-3, abs=1e-4)


def test_out_of_time_branching_leaves_frowns_radius(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = asking.certify(relu, x, y)
    hard = int(np.argmax(plain.broken / plain.radius))

    def late(*anything: object) -> Answer:
        monkeypatch.setattr(Clock, "expired", lambda self: True)
        return Answer(False)

    monkeypatch.setattr(branching, "minimise_mixed", late)
    one = slice(hard, hard + 1)
    result = asking.certify(relu, x[one], y[one], method="milp", time_limit=600)
    (row,) = result.rows
    assert row.remark == "the time limit came before the ends met"
    assert not row.complete
    assert row.radius >= 0.99 * plain.radius[hard]
    assert row.broken is not None and row.radius < row.broken
