"""Linear and mixed-integer programs from the user's side: Python and the command line."""

from __future__ import annotations

import csv
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import frown
from frown.cli import app
from frown.engines import lp as engine
from frown.engines import milp as branching
from frown.engines.clock import Clock, OutOfTime
from frown.engines.mixed import Answer
from frown.engines.solvers import Basis, Constraints, Duals
from frown.errors import InvalidInput
from onnx_models import model, node, saved, weights

FEATURES, CLASSES, COUNT = 4, 3, 3
TOL = 0.01


def network(folder: Path, activation: str) -> Path:
    """4 -> 8 -> 8 -> 3."""
    proto = model(
        [
            node("Gemm", "x w0 b0", "h0", transB=1),
            node(activation, "h0", "a0"),
            node("Gemm", "a0 w1 b1", "h1", transB=1),
            node(activation, "h1", "a1"),
            node("Gemm", "a1 w2 b2", "y", transB=1),
        ],
        ["N", FEATURES],
        {
            "w0": weights(8, FEATURES, seed=11),
            "b0": weights(8, seed=12),
            "w1": weights(8, 8, seed=13),
            "b1": weights(8, seed=14),
            "w2": weights(CLASSES, 8, seed=15),
            "b2": weights(CLASSES, seed=16),
        },
    )
    return saved(proto, folder)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("relu"), "Relu")


@pytest.fixture(scope="module")
def relu(net: Path) -> frown.Model:
    return frown.load(net)


@pytest.fixture(scope="module")
def sigmoid(tmp_path_factory: pytest.TempPathFactory) -> frown.Model:
    return frown.load(network(tmp_path_factory.mktemp("sigmoid"), "Sigmoid"))


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, FEATURES))


@pytest.fixture(scope="module")
def y(relu: frown.Model, x: np.ndarray) -> np.ndarray:
    return relu.run(x).argmax(1)


@pytest.fixture
def data(tmp_path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y)
    return path


def command(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def not_above(
    one: np.ndarray | frown.Certification, other: np.ndarray | frown.Certification, slack: float
) -> None:
    """Radii of one method do not exceed another's by more than the searches' tolerance."""
    low, high = (r.radius if isinstance(r, frown.Certification) else r for r in (one, other))
    assert (low <= high * (1 + slack)).all(), (low, high)


def outputs_inside(
    graph: frown.Model, x: np.ndarray, radius: np.ndarray, norm: float, scale: np.ndarray
) -> np.ndarray:
    """Answers at points of each ball, its surface above all: (N, points)."""
    rng = np.random.default_rng(0)
    answers = []
    for centre, r in zip(x, radius, strict=True):
        step = rng.standard_normal((4000, FEATURES))
        step /= np.linalg.norm(step, ord=norm, axis=1, keepdims=True)
        points = centre + 0.9999 * r * step * scale
        answers.append(graph.run(np.clip(points, 0, 1)).argmax(1))
    return np.stack(answers)


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
    crown = frown.certify(graph, x, method="crown", **options)
    programs = frown.certify(graph, x, method="lp", **options)
    not_above(crown, programs, 1e-5)  # rounding depends on the batch
    not_above(programs, programs.broken, 0.0)
    answers = outputs_inside(graph, x, programs.radius, norm, scale)
    assert (answers == graph.run(x).argmax(1)[:, None]).all()
    assert all(row.method == "lp" and row.remark == "" and row.complete for row in programs.rows)


def test_the_order_of_the_methods(relu: frown.Model, x: np.ndarray, y: np.ndarray) -> None:
    """CROWN <= LP-LAST <= LP-ALL <= exact <= attack, FROWN <= LP-ALL: on ReLU a theorem."""

    def radii(method: str, **options: Any) -> frown.Certification:
        return frown.certify(relu, x, y, method=method, tol=TOL, **options)

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


def test_one_line_per_side_and_a_cold_start(
    relu: frown.Model, x: np.ndarray, y: np.ndarray
) -> None:
    """With CROWN's own lines the program is CROWN (Theorem 1); cold or hot, optima agree."""
    crown = frown.certify(relu, x, y, method="crown")
    same = frown.certify(relu, x, y, method="lp", tangents=1)
    np.testing.assert_allclose(same.radius, crown.radius, rtol=TOL)
    hot, cold = (frown.certify(relu, x, y, method="lp", hot=hot) for hot in (True, False))
    np.testing.assert_allclose(hot.radius, cold.radius, rtol=TOL)
    assert (hot.settings["hot"], cold.settings["hot"]) == (True, False)


def test_targets_are_taken(relu: frown.Model, x: np.ndarray, y: np.ndarray) -> None:
    """The untargeted radius is that of the nearest class."""
    for method in ("lp", "milp"):
        every = frown.certify(relu, x[:2], y[:2], method=method)
        single = [frown.certify(relu, x[:2], y[:2], method=method, target=f"+{k}") for k in (1, 2)]
        least = np.minimum(single[0].radius, single[1].radius)
        np.testing.assert_allclose(every.radius, least, rtol=2 * TOL)
        assert [row.target for row in single[0].rows] == ((y[:2] + 1) % CLASSES).tolist()


def test_one_radius_is_checked(relu: frown.Model, x: np.ndarray, y: np.ndarray) -> None:
    """Below what programs prove, between that and the truth, and beyond it."""
    programs = frown.certify(relu, x, y, method="lp")
    exact = frown.certify(relu, x, y, method="milp")
    checked = frown.certify(relu, x, y, method="lp", eps=0.95 * programs.radius)
    assert checked.status == ["certified"] * COUNT
    inside = exact.radius > 1.02 * programs.radius
    assert inside.any()
    between = np.sqrt(programs.radius * exact.radius)
    lp, milp = (
        np.array(frown.certify(relu, x, y, method=m, eps=between, attack=False).status)
        for m in ("lp", "milp")
    )
    assert (lp[inside] == "unknown").all()
    assert (milp[inside] == "certified").all()
    beyond = frown.certify(relu, x, y, method="milp", eps=1.02 * exact.broken, attack=False)
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
    assert frown.certify(graph, centre, bounds=(0, 1)).status == ["certified"]
    exact = frown.certify(graph, centre, bounds=(0, 1), method="milp")
    assert exact.status == ["robust"]
    assert exact.rows[0].broken is None


def test_bounds_at_one_radius(relu: frown.Model, x: np.ndarray) -> None:
    options: dict[str, Any] = {"bounds": (0, 1), "scale": [1.0, 0.5, 1.0, 0.0]}
    crown = frown.bound(relu, x, 0.1, method="crown", **options)
    programs = frown.bound(relu, x, 0.1, method="lp", **options)
    slack = 1e-5 * (1 + np.abs(crown.lower).max())
    assert (programs.lower >= crown.lower - slack).all()
    assert (programs.upper <= crown.upper + slack).all()
    assert (programs.upper - programs.lower < crown.upper - crown.lower - slack).any()
    step = np.random.default_rng(1).uniform(-0.1, 0.1, (500, FEATURES)) * options["scale"]
    for n in range(COUNT):
        outputs = relu.run(np.clip(x[n] + step, 0, 1))
        assert (programs.lower[n] - slack <= outputs).all()
        assert (outputs <= programs.upper[n] + slack).all()
    assert programs.lower_form is None and programs.upper_form is None
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
    crown = frown.certify(relu, x, y, method="crown")
    monkeypatch.setattr(engine, "minimise", garbage)
    result = frown.certify(relu, x, y, method="lp")
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
    crown = frown.certify(relu, x, y, method="crown")
    monkeypatch.setattr(engine, "minimise", out_of_time)
    result = frown.certify(relu, x, y, method="lp", time_limit=600)
    np.testing.assert_allclose(result.radius, crown.radius, rtol=1e-6)
    for row, cheap in zip(result.rows, crown.rows, strict=True):
        assert not row.complete
        assert row.status == "certified"
        assert row.margins == pytest.approx(cheap.margins, rel=1e-3, abs=1e-4)


def test_an_interrupt_hands_over_what_is_proved(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Margins too: those with which CROWN proved the radius, none that were only expected."""

    def interrupted(*anything: object) -> tuple[Duals, list[Basis]]:
        raise KeyboardInterrupt

    crown = frown.certify(relu, x, y, method="crown")
    kept: list[frown.Row] = []
    monkeypatch.setattr(engine, "minimise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        frown.certify(relu, x, y, method="lp", batch=COUNT, on_rows=lambda r, _: kept.extend(r))
    assert len(kept) == COUNT
    for row, cheap in zip(kept, crown.rows, strict=True):
        assert not row.complete
        assert row.radius == pytest.approx(cheap.radius, rel=1e-5)
        assert row.margins == pytest.approx(cheap.margins, rel=1e-3, abs=1e-4)


def test_out_of_time_branching_leaves_frowns_radius(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = frown.certify(relu, x, y)
    hard = int(np.argmax(plain.broken / plain.radius))

    def late(*anything: object) -> Answer:
        monkeypatch.setattr(Clock, "expired", lambda self: True)
        return Answer(False)

    monkeypatch.setattr(branching, "minimise_mixed", late)
    one = slice(hard, hard + 1)
    result = frown.certify(relu, x[one], y[one], method="milp", time_limit=600)
    (row,) = result.rows
    assert row.remark == "the time limit came before the ends met"
    assert not row.complete
    assert row.radius >= 0.99 * plain.radius[hard]
    assert row.broken is not None and row.radius < row.broken


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "lp", "norm": 3}, "norms 1, 2 and inf, not 3"),
        ({"method": "milp", "norm": 2}, "norm 1 or inf, not 2"),
        ({"method": "lp", "boxes": "interval"}, "unknown boxes 'interval'"),
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
        frown.certify(relu, x, **options)
    with pytest.raises(InvalidInput):
        frown.bound(relu, x, 0.1, **options)


def test_branching_is_for_piecewise_linear_networks(sigmoid: frown.Model, x: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=r"piecewise linear.*Sigmoid.*use frown or lp"):
        frown.certify(sigmoid, x, method="milp")


def test_branching_gives_no_bounds(relu: frown.Model, x: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="use certify"):
        frown.bound(relu, x, 0.1, method="milp")


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

    def without(name: str, *rest: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return genuine(name, *rest)

    graph = frown.load(net)
    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InvalidInput, match=rf"{missing}.*pip install 'frown\[lp\]'"):
        frown.certify(graph, np.zeros((1, FEATURES)), method=method, norm=norm)
    result = command("certify", net, data, "--method", method, "--norm", norm, code=2)
    assert "pip install 'frown[lp]'" in result.stderr
    assert result.stdout == ""
    command("certify", net, data, "--norm", norm, "--quiet")  # others need none of them


# -- the command line ------------------------------------------------------------------


def test_options_of_programs_reach_them(net: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--tangents", 1, "--boxes", "crown", "--cold", "--no-attack")
    command("certify", net, data, "--method", "lp", *options, "--out", out, "--quiet")
    for row in rows_of(out):
        assert row["method"] == "lp" and row["status"] == "certified"
        kept = {k: row["settings"][k] for k in ("tangents", "boxes", "hot", "workers")}
        assert kept == {"tangents": 1, "boxes": "crown", "hot": False, "workers": 1}
    crown = frown.certify(frown.load(net), *np.load(data).values(), method="crown")
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
        (("--method", "lp", "--boxes", "fastlin"), "unknown boxes"),
        (("--method", "lp", "--tangents", 0), "--tangents"),
        (("--method", "lp", "--workers", 0), "--workers"),
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
    alone = frown.certify(frown.load(net), *(a[:1] for a in np.load(data).values()), method="lp")
    assert row["radius"] == pytest.approx(alone.radius[0], rel=TOL)
