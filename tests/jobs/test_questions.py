"""Questions on the command line: options, notes, sentences, certificates and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from frown.cli import app
from onnx_models import model, node, saved, weights

UNSAFE = """
(declare-const X_0 Real) (declare-const X_1 Real)
(declare-const Y_0 Real) (declare-const Y_1 Real) (declare-const Y_2 Real)
(assert (or (>= Y_0 {0}) (and (<= Y_1 {1}) (>= Y_2 Y_0))))
"""


def call(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result


def net(folder: Path, outputs: int, last: str) -> Path:
    constants = {"a": weights(2, 6), "b": weights(6, seed=1), "c": weights(6, outputs, seed=2)}
    constants |= {"d": weights(outputs, seed=3)}
    layers = [node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("Gemm", "r c d", "s")]
    return saved(model([*layers, node(last, "s")], ["N", 2], constants), folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=np.array([[0.3, -0.2], [0.5, 0.1]]))
    return tmp_path / "data.npz"


@pytest.mark.parametrize(
    ("options", "outputs", "last", "said"),
    [
        ([], 1, "Sigmoid", "the output stays on its side of 0.5"),
        (["--threshold", "0.1"], 1, "Identity", "the output stays on its side of 0.1"),
        (["--within", "5%"], 2, "Identity", "less than 5% of that value from what the model"),
        (["--within", "0.25"], 2, "Sigmoid", "every output differs by less than 0.25"),
        (["--multilabel"], 3, "Sigmoid", "every output stays on its side of 0.5"),
        (["--top", "2"], 4, "Softmax", "the label is among the 2 largest outputs"),
    ],
)
def test_every_question_has_radii_sentences_and_checked_certificates(
    options: list[str], outputs: int, last: str, said: str, data: Path, tmp_path: Path
) -> None:
    path = net(tmp_path, outputs, last)
    level = "rigorous" if last == "Softmax" else "checked"
    out = tmp_path / "out"
    told = call("certify", path, data, *options, "--level", level, "--out", out).output
    assert said in " ".join(told.split())
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert all(row["radius"] > 0 and row["level"] == level for row in rows)
    assert all(row["broken"] is None or row["broken"] >= row["radius"] for row in rows)
    assert said in json.loads((out / "run.json").read_text())["settings"]["statement"]["condition"]


def test_a_condition_in_vnn_lib_gets_a_radius(data: Path, tmp_path: Path) -> None:
    path, query = net(tmp_path, 3, "Identity"), tmp_path / "unsafe.vnnlib"
    query.write_text(UNSAFE.format(40, -30))
    out = tmp_path / "out"
    call("certify", path, data, "--property", query, "--level", "checked", "--out", out)
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert all(row["radius"] > 0 and row["level"] == "checked" for row in rows)
    # Runs of different properties are not compared.
    other = tmp_path / "other"
    query.write_text(UNSAFE.format(41, -30))
    call("certify", path, data, "--property", query, "--out", other)
    page = tmp_path / "page.html"
    assert "properties" in call("report", out, other, "--out", page, code=2).output


@pytest.mark.parametrize(
    ("options", "outputs", "said"),
    [
        (["--top", "2", "--within", "1"], 3, "ask one at a time"),
        (["--threshold", "0.5"], 3, "--multilabel"),
        (["--top", "3"], 3, "from 1 to 2"),
        (["--within", "x"], 1, "finite number"),
        (["--within", "1", "--target", "0"], 2, "--target is about labels"),
        ([], 1, "--within 0.1"),
        (["--property", "none.vnnlib"], 2, "there is no such file"),
    ],
)
def test_questions_that_do_not_fit_say_what_would(
    options: list[str], outputs: int, said: str, data: Path, tmp_path: Path
) -> None:
    result = call("certify", net(tmp_path, outputs, "Identity"), data, *options, code=2)
    assert said in " ".join(result.output.split())


def test_labels_of_regressions_are_left_aside(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([[0.3, -0.2]]), y=np.array([0.123]))
    path = net(tmp_path, 1, "Identity")
    shown = call("certify", path, tmp_path / "data.npz", "--within", "10%").output
    assert "the answers given there (y) are left aside" in " ".join(shown.split())


def test_models_that_look_like_multi_label_ones_are_told(data: Path, tmp_path: Path) -> None:
    path = net(tmp_path, 3, "Sigmoid")
    assert "add --multilabel" in " ".join(call("certify", path, data).output.split())
    assert "--multilabel" in call("info", path).output
    assert "--multilabel" not in call("info", net(tmp_path, 2, "Softmax")).output


@pytest.mark.parametrize("options", [["--within", "0.25"], ["--multilabel"]])
def test_what_is_about_no_class_names_none(options: list[str], data: Path, tmp_path: Path) -> None:
    """No label 0, no answer 0 of what is a number: in tables, files and pages."""
    out, onnx = tmp_path / "out", net(tmp_path, 3, "Sigmoid")
    shown = call("certify", onnx, data, *options, "--out", out).output
    assert "label" not in shown and "prediction" not in shown
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(row["label"], row["prediction"]) for row in rows} == {(None, None)}
    with np.load(out / "counterexamples.npz") as kept:
        assert "y" not in kept and len(kept["x"])
    call("report", out, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert ">answer<" not in page and "label None" not in page and "Inputs proved" in page
    call("certify", onnx, data, *options, "--out", out, "--resume")


def test_few_right_answers_are_told_while_the_run_lasts(tmp_path: Path) -> None:
    """With many inputs the end is hours away."""
    onnx, x = net(tmp_path, 3, "Identity"), np.linspace(-1, 1, 72).reshape(36, 2)
    np.savez(tmp_path / "right.npz", x=x)
    rows = call("certify", onnx, tmp_path / "right.npz", "--eps", 0, "--json").stdout
    answers = np.array([json.loads(line)["prediction"] for line in rows.splitlines()])
    np.savez(tmp_path / "wrong.npz", x=x, y=(answers + 1) % 3)
    told = call("certify", onnx, tmp_path / "wrong.npz", "--eps", 0, "--batch", 12).output
    assert told.count("12 of 36 done, accuracy 0%: if the model is better than that") == 1
    assert "24 of 36 done" not in told
    whole = call("certify", onnx, tmp_path / "right.npz", "--eps", 0, "--batch", 12).output
    assert "of 36 done" not in whole


def test_shares_of_other_questions_are_not_called_accuracy(data: Path, tmp_path: Path) -> None:
    onnx = net(tmp_path, 3, "Identity")
    options = ["--eps", "0.5", "--fail-under", "1"]
    assert (
        "inputs proved 0% at"
        in call("certify", onnx, data, "--within", "1e-3", *options, code=8).output
    )
    shown = call("certify", onnx, data, "--target", "+1", *options, code=8).output
    assert "certified accuracy, against the class label + 1 alone" in shown
