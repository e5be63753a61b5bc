"""Graph and original are compared on points of the proved region; a row on which they disagree
says so and proves nothing. And what a counterexample is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import asking
import frown
from frown.certification.attack import NearestPoints
from frown.certification.findings import Proved
from frown.certification.results import Row
from frown.cli import app
from frown.errors import ModelMismatch
from frown.problem.property import violated
from frown.read.model import Model
from frown.read.torch.load import load_torch
from onnx_models import model, node, saved
from torch_modules import CASES

FAR = 20.0  # where the original's threshold is; the graph's lies out of all reach


class Threshold(nn.Module):
    """A steady answer that falls steeply once a feature passes a threshold, on either side."""

    def __init__(self, far: float, frames: int = 1, features: int = 3) -> None:
        super().__init__()
        self.far, self.shape = far, (frames, features)

    def forward(self, x: Tensor) -> Tensor:
        beyond = torch.relu(x.abs() - self.far).flatten(1).sum(1)
        rest = 0.01 * x.flatten(1).sum(1)
        return torch.stack([1 + rest - 10 * beyond, rest, -1 + 0.5 * rest], 1)


@cache
def misread(frames: int = 1, features: int = 3) -> Model:
    """The graph of one threshold beside the runtime of another: alike wherever load looks."""
    example = torch.zeros(1, frames, features)
    graph = load_torch(Threshold(1e4, frames, features), example).graph
    original = load_torch(Threshold(FAR, frames, features), example)
    wrong = replace(original, graph=graph)
    wrong.check()
    return wrong


def misread_file(folder: Path) -> tuple[Model, Path]:
    """The same of an ONNX file."""

    def written(far: float, name: str) -> Path:
        known = {
            "t": np.full((1, 3), far, np.float32),
            "w": np.array([[-10.0, 0, 0]] * 3, np.float32),
            "b": np.array([1.0, 0, -1], np.float32),
        }
        nodes = [
            node("Abs", "x", "a"),
            node("Sub", "a t", "s"),
            node("Relu", "s", "r"),
            node("Gemm", "r w b", "y"),
        ]
        return saved(model(nodes, ("N", 3), known), folder, name)

    path = written(FAR, "model.onnx")
    graph = frown.load(written(1e4, "other.onnx")).graph
    return replace(frown.load(path), graph=graph), path


CENTRE = np.array([[[18.0, -17.0, 18.5]]])

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "crown": {"method": "crown"},
    "estimate": {"level": "estimate"},
    "no attack": {"attack": False},
    "bounds": {"bounds": (-25.0, 25.0)},
    "narrow bounds": {"bounds": (-19.5, 21.0)},
    "scale": {"scale": np.array([[1.0, 0.5, 2.0]])},
    "one feature": {"scale": np.array([[0.0, 0.0, 3.0]])},
    "eps": {"eps": 9.0},
    "eps and bounds": {"eps": 9.0, "bounds": (-25.0, 25.0), "attack": False},
    "target": {"target": 2},
    "float64": {"dtype": "float64"},
    "time limit": {"time_limit": 60.0},
}


def withdrawn(row: Row) -> None:
    assert row.status == "mismatch", row
    assert (row.radius, row.level, row.margins, row.certificate) == (0.0, "estimate", {}, "")
    assert "disagree" in row.remark and "the original [" in row.remark


@pytest.mark.parametrize("norm", [1, 1.5, 2, 3, inf])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_misread_threshold_is_never_certified(norm: float, options: dict[str, Any]) -> None:
    result = asking.certify(misread(), CENTRE, [0], norm=norm, **options)
    withdrawn(result.rows[0])


@pytest.mark.parametrize("method", ["frown", "crown", "lp", "milp"])
@pytest.mark.parametrize("norm", [1, inf])
def test_no_method_certifies_a_misread_file(method: str, norm: float, tmp_path: Path) -> None:
    wrong, _ = misread_file(tmp_path)
    result = asking.certify(wrong, CENTRE[0], [0], norm=norm, method=method, bounds=(-40.0, 40.0))
    withdrawn(result.rows[0])


@pytest.mark.parametrize("norm", [1, 2, inf])
@pytest.mark.parametrize("frames", ["each", "0", "each of 1:3", [0, 2]])
def test_frames_with_balls_of_their_own_are_compared(norm: float, frames: object) -> None:
    x = np.tile(CENTRE[0], (1, 3, 1)).reshape(1, 3, 3)
    result = asking.certify(misread(3), x, [0], norm=norm, frames=frames)
    withdrawn(result.rows[0])


@pytest.mark.parametrize("norm", [2, inf])
def test_frames_that_move_alone_are_compared(norm: float) -> None:
    x = np.tile(CENTRE[0], (1, 3, 1)).reshape(1, 3, 3)
    for row in asking.sensitivity(misread(3), x, [0], norm=norm).rows:
        withdrawn(row)


@pytest.mark.parametrize("norm", [1, 2, inf])
def test_normalised_models_are_compared_in_the_users_units(norm: float) -> None:
    wrong = misread().normalised(5.0, 0.5)
    withdrawn(asking.certify(wrong, CENTRE * 0.5 + 5.0, [0], norm=norm).rows[0])


def test_the_region_is_compared_as_proved_and_not_beyond() -> None:
    """At a radius that ends before the threshold, graph and original are the same."""
    row = asking.certify(misread(), CENTRE, [0], eps=1.4).rows[0]
    assert (row.status, row.level, row.radius) == ("certified", "rigorous", 1.4)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_other_rows_go_on_whatever_their_neighbours(batch: int) -> None:
    x = np.concatenate([CENTRE * by for by in (0.1, 1.0, 0.2, 1.05, 0.3)])
    rows = asking.certify(misread(), x, [0] * 5, eps=1.9, batch=batch).rows
    wanted = ["certified", "mismatch", "certified", "mismatch", "certified"]
    assert [row.status for row in rows] == wanted


def test_a_disagreement_on_the_input_itself_is_of_that_row() -> None:
    x = np.concatenate([CENTRE * 2, CENTRE * 0.5])
    rows = asking.certify(misread(), x, [0, 0], eps=1.0).rows
    withdrawn(rows[0])
    assert "at the input itself" in rows[0].remark
    assert rows[1].status == "certified"


def test_what_single_precision_cannot_answer_is_said() -> None:
    """Infinity where single precision overflows is no misreading; NaN where it does not, is."""
    right = load_torch(Threshold(30.0), torch.zeros(1, 1, 3))
    run = right.run

    def breaks(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x).reshape(len(x), -1).max(1, keepdims=True) > 19, np.nan, run(x))

    row = asking.certify(replace(right, run=breaks), CENTRE, [0], eps=2.0).rows[0]
    assert (row.status, row.radius) == ("mismatch", 0.0)
    assert "nan" in row.remark and "disagree" in row.remark
    deep = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with np.errstate(over="ignore"):
        (row,) = asking.certify(load_torch(deep, torch.zeros(1, 2)), [[1e300, 1e300]], [0]).rows
    assert (row.status, row.radius) == ("mismatch", 0.0)
    assert "have no answers that could be compared" in row.remark


def test_a_withdrawn_row_leaves_no_certificate(tmp_path: Path) -> None:
    wrong, _ = misread_file(tmp_path)
    folder = tmp_path / "certificates"
    folder.mkdir()
    stale = folder / "input-000000.frown"
    stale.write_bytes(b"of an earlier run")
    x = np.concatenate([CENTRE[0], CENTRE[0] * 0.1])
    rows = asking.certify(wrong, x, [0, 0], eps=3.0, certificates=folder, level="checked").rows
    withdrawn(rows[0])
    assert rows[1].level == "checked"
    assert [p.name for p in folder.iterdir()] == ["input-000001.frown"]


def test_the_command_line_tells_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, path = misread_file(tmp_path)
    monkeypatch.setattr("frown.api.load", lambda source, **more: wrong)
    x = np.concatenate([CENTRE[0], CENTRE[0] * 0.1])
    np.savez(tmp_path / "data.npz", x=x, y=[0, 0])
    out, page = tmp_path / "out", tmp_path / "page.html"
    call = ["certify", str(path), str(tmp_path / "data.npz"), "--eps", "3", "--out", str(out)]
    shown = CliRunner().invoke(app, [*call, "--certificates", str(tmp_path / "certificates")])
    assert shown.exit_code == ModelMismatch.exit_code
    assert "error: model.onnx: nothing is proved of 1 of 2 inputs (0)" in shown.output
    assert "1 certified" in shown.output and "1 mismatch" in shown.output
    records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [r["status"] for r in records] == ["mismatch", "certified"]
    assert "disagree" in records[0]["remark"] and records[0]["radius"] == 0
    assert "mismatch" in (out / "results.csv").read_text()
    assert json.loads((out / "run.json").read_text())["mismatches"] == 1
    assert not (tmp_path / "certificates" / "input-000000.frown").exists()
    written = CliRunner().invoke(app, ["report", str(out), "--out", str(page)])
    assert written.exit_code == 0
    assert "The model was not read as it runs" in page.read_text()


# -- no false alarms ------------------------------------------------------------------


def assert_agrees(tested: Model, x: np.ndarray, norm: float) -> None:
    result = asking.certify(tested, x, norm=norm, method="crown", attack=False, tol=0.5)
    assert not [row.remark for row in result.rows if row.status == "mismatch"]


@pytest.mark.parametrize("name", CASES)
def test_modules_as_they_are_agree(name: str) -> None:
    make, shape = CASES[name]
    torch.manual_seed(1)
    tested = load_torch(make(), torch.zeros(1, *shape))
    x = np.random.default_rng(0).normal(size=(3, *shape))
    if tested.classes > 1:
        assert_agrees(tested, np.abs(x) + 0.1, inf)
        assert_agrees(tested, np.abs(x[:1]) + 0.1, 2)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("kind", [nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Softplus])
def test_large_weights_and_deep_networks_agree(
    size: float, depth: int, kind: type[nn.Module]
) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(6, 6)
        layer.weight.data *= size ** (1 / depth) * 2
        layers += [layer, kind()]
    tested = load_torch(nn.Sequential(*layers, nn.Linear(6, 4)), torch.zeros(1, 6))
    assert_agrees(tested, 5 * np.random.default_rng(0).normal(size=(6, 6)), inf)


# -- a proof and a counterexample -----------------------------------------------------


def steps(run: Callable[[np.ndarray], np.ndarray], by: float) -> Callable[..., np.ndarray]:
    """A runtime whose first answer is lower by a little: rounding, if it is little enough."""

    def lowered(x: np.ndarray) -> np.ndarray:
        answers = run(x).copy()
        answers[:, 0] -= by * (np.abs(x).reshape(len(x), -1).max(1) > 0.9)
        return answers

    return lowered


def close() -> Model:
    """Two classes 1e-6 apart at the corner that the proof ends at."""
    layer = nn.Linear(1, 2)
    layer.weight.data = torch.tensor([[-1.0], [0.0]])
    layer.bias.data = torch.tensor([1.000001, 0.0])
    return load_torch(layer, torch.zeros(1, 1))


def test_a_counterexample_by_rounding_leaves_the_proof_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = torch.full((1, 1), 0.9999995, dtype=torch.float64)
    monkeypatch.setattr(
        "frown.certification.attack.nearest", lambda *_: NearestPoints(at, at[:, 0])
    )
    right, x = close(), np.array([[0.0]])
    rounded = replace(right, run=steps(right.run, 2e-6))
    options = {"tol": 1e-9, "dtype": "float64"}
    row = asking.certify(rounded, x, [0], **options).rows[0]
    assert row.broken == 0.9999995 and row.radius == np.nextafter(row.broken, 0)
    assert (row.status, row.level) == ("certified", "rigorous")
    assert "by rounding in single precision" in row.remark
    one = asking.certify(rounded, x, [0], eps=1.0, **options).rows[0]
    assert (one.status, one.radius, one.broken) == ("falsified", row.radius, row.broken)
    assert one.remark == row.remark.replace(f"{1.000001:.6g}", "1")
    executed = asking.certify(rounded, x, [0], eps=1.0, deployed="float32", **options).rows[0]
    assert (executed.status, executed.radius) == ("mismatch", 0.0)
    assert "float32 execution was proved" in executed.remark


def test_a_counterexample_beyond_rounding_withdraws_the_row() -> None:
    right = close()
    wrong = replace(right, run=steps(right.run, 0.05))
    row = asking.certify(wrong, np.array([[0.0]]), [0], eps=0.99).rows[0]
    withdrawn(row)


def test_a_proof_that_a_counterexample_contradicts_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The graph itself errs within the radius: the proof must be wrong, and is not shown."""
    from frown.certification.prove import Prover

    prove = Prover.prove

    def too_far(self: Prover, *stages: Any) -> Proved:
        proved = prove(self, *stages)
        assert proved.radius is not None
        return replace(proved, radius=proved.radius * 1.5)

    monkeypatch.setattr(Prover, "prove", too_far)
    row = asking.certify(close(), np.array([[0.0]]), [0]).rows[0]
    assert (row.status, row.radius, row.level) == ("mismatch", 0.0, "estimate")
    assert "contradict" in row.remark and "report" in row.remark


# -- what a counterexample is ---------------------------------------------------------


def tied(first: int) -> Model:
    """Outputs (x, 1 - x, -9) or (1 - x, x, -9): classes 0 and 1 tie at 1/2, exactly."""
    layer = nn.Linear(1, 3)
    rows = [[1.0], [-1.0]] if first == 0 else [[-1.0], [1.0]]
    layer.weight.data = torch.tensor([*rows, [0.0]])
    layer.bias.data = torch.tensor([0.0, 1.0, -9.0] if first == 0 else [1.0, 0.0, -9.0])
    return load_torch(layer, torch.zeros(1, 1))


def test_a_margin_of_zero_violates_and_nan_does_not() -> None:
    margins = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, -1.0], [np.nan, 1.0]])
    assert violated(margins).tolist() == [False, True, True, False]
    assert violated(torch.from_numpy(margins)).tolist() == [False, True, True, False]


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("options", [{}, {"eps": 0.1}, {"method": "milp"}], ids=str)
def test_a_tie_at_the_input_is_misclassified_whichever_argmax_names(
    label: int, options: dict[str, Any]
) -> None:
    row = asking.certify(tied(0), np.array([[0.5]]), [label], **options).rows[0]
    assert row.prediction == 0  # the first of the largest
    assert (row.status, row.radius, row.broken) == ("misclassified", 0.0, 0.0)
    if label == 0:
        assert "tie" in row.remark


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("method", ["crown", "milp"])
def test_a_tie_is_a_counterexample(first: int, method: str) -> None:
    """The label's outputs win beyond 1/2 alone: the nearest point that is no win is the tie."""
    found = tied(first)
    result = asking.certify(found, np.array([[1.0]]), [first], method=method, bounds=(0.5, 2.0))
    row = result.rows[0]
    assert row.broken == 0.5 and 0.49 < row.radius < 0.5
    assert found.run(result.counterexamples[0][None])[0].argmax() == 0
    assert row.broken_as == (None if first == 0 else 0)  # argmax still names the label, or does not
    again = asking.certify(found, result.counterexamples[0][None], [first])
    assert again.status == ["misclassified"] and again.broken.tolist() == [0.0]


def test_against_a_target_another_winner_is_no_counterexample() -> None:
    """The third class wins at the input, and the property, label against target, holds there."""
    row = asking.certify(tied(0), np.array([[1.0]]), [0], target=2).rows[0]
    assert row.status == "certified"
    other = asking.certify(tied(0), np.array([[0.0]]), [0], target=2).rows[0]
    assert (other.status, other.prediction, other.broken) == ("misclassified", 1, None)
    lost = asking.certify(tied(0), np.array([[-20.0]]), [0], target=2).rows[0]
    assert (lost.status, lost.broken) == ("misclassified", 0.0)


@pytest.mark.parametrize("norm", [1, 1.5, 2, "inf"])
def test_regions_with_a_scale_of_their_own_are_compared_within_a_range(norm: object) -> None:
    """Sensitivity gives every pair of input and frame its own scale, beside a valid range."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    loaded = frown.load(net.eval(), torch.zeros(1, 4))
    x = np.random.default_rng(2).uniform(0.2, 0.8, (3, 4))
    found = asking.sensitivity(loaded, x, norm=norm, method="crown", bounds=(0, 1), attack=False)
    assert {row.status for row in found.rows} <= {"certified", "robust"}
    assert (found.radius > 0).all()
