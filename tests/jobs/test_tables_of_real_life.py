"""Tables with names: of inputs, features and classes, from the file to the page."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import frown
from frown.errors import InvalidInput
from frown.report.page import report_from_files
from methods.programs.tools import command
from onnx_models import model, node, saved, weights

PATIENTS = """id,age,mass,dose,kind
Ann,0.6,1.5,0.25,benign
Bob,0.7,2.5,0.5,malign
Cid,0.5,3.5,0.75,benign
"""
GIVEN = ("--id-column", "id", "--label-column", "kind", "--method", "crown")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patients")
    (folder / "data.csv").write_text(PATIENTS)
    constants = {"a": weights(3, 6), "b": weights(6, seed=1), "c": weights(6, 2, seed=2)}
    nodes = [node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("MatMul", "r c")]
    saved(model(nodes, ("N", 3), constants), folder)
    return folder


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_names_go_from_the_file_to_the_rows(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = command("certify", folder / "model.onnx", folder / "data.csv", *GIVEN, "--out", out)
    assert [row["id"] for row in rows(out)] == ["Ann", "Bob", "Cid"]
    assert [row["label"] for row in rows(out)] == [0, 1, 0]
    assert "classes: 0 = benign, 1 = malign" in shown.stderr
    assert "Bob" in shown.stdout
    about = json.loads((out / "run.json").read_text())["data"]
    assert about["features"] == ["age", "mass", "dose"]
    page = report_from_files([out], tmp_path / "page.html").read_text()
    assert "1 Bob" in page and page.count('<td class="name">malign</td>') > 1
    assert "<option>benign</option>" in page
    assert frown.open(out).class_names == ("benign", "malign")


def test_words_that_do_not_name_every_output_are_refused(folder: Path, tmp_path: Path) -> None:
    """A file with some of the classes would number them, and say so, as they are not."""
    (tmp_path / "some.csv").write_text("age,mass,dose,kind\n0.6,1.5,0.25,malign\n")
    given = ("certify", folder / "model.onnx", tmp_path / "some.csv", "--label-column", "kind")
    shown = " ".join(command(*given, code=2).output.split())
    assert "names 1 classes, and the model has 2" in shown and "--class-names" in shown
    named = command(*given, "--class-names", "benign,malign", "--out", tmp_path / "out")
    assert "classes: 0 = benign, 1 = malign" in named.stderr
    assert rows(tmp_path / "out")[0]["label"] == 1


CALLED = {"ints": (3, 5, 9), "strings": ("cow", "ant", "bee")}


def pipeline(kind: str, way: str, folder: Path) -> tuple[Path, list]:
    """A classifier whose labels are not 0, 1, 2, and those that onnxruntime gives six inputs."""
    called = CALLED[kind]
    text = kind == "strings"
    if way == "LinearClassifier":
        fields = {
            f"classlabels_{kind}": called,
            "coefficients": weights(9).tolist(),
            "intercepts": weights(3, seed=1).tolist(),
        }
        nodes = [node(way, "x", "label s", domain="ai.onnx.ml", **fields)]
        constants = {}
    else:
        nodes = [
            node("Gemm", "x w b", "s"),
            node("ArgMax", "s", "k", axis=1),
            node(way, "names k", "label", domain="ai.onnx.ml"),
        ]
        names = np.array([called], object if text else np.int64)
        constants = {"w": weights(3, 3), "b": weights(3, seed=1), "names": names}
    made = model(nodes, ("N", 3), constants, outputs=("label", "s"))
    made.graph.output[0].type.tensor_type.elem_type = 8 if text else 7  # STRING, INT64
    made.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 1))
    path = saved(made, folder, f"{kind}.onnx")
    session = onnxruntime.InferenceSession(path)
    answers = (session.run(["label"], {"x": one[None]})[0].ravel()[0] for one in weights(6, 3))
    return path, list(answers)


@pytest.mark.parametrize("way", ["LinearClassifier", "ArrayFeatureExtractor"])
@pytest.mark.parametrize("kind", CALLED)
def test_labels_are_what_the_model_calls_its_outputs(kind: str, way: str, tmp_path: Path) -> None:
    """And neither numbers of outputs nor places in the alphabet."""
    path, answers = pipeline(kind, way, tmp_path)
    assert frown.load(path).taken.classes == tuple(map(str, CALLED[kind]))
    assert len(set(answers)) > 1
    lines = [",".join(map(str, [*x, y])) for x, y in zip(weights(6, 3), answers, strict=True)]
    (tmp_path / "data.csv").write_text("a,b,c,label\n" + "\n".join(lines))
    given = ("certify", path, tmp_path / "data.csv", "--method", "crown")
    shown = command(*given, "--out", tmp_path / "out")
    found = frown.open(tmp_path / "out")
    assert set(found.status) == {"certified"}
    assert [found.class_names[row.label] for row in found.rows] == list(map(str, answers))
    first, second, third = CALLED[kind]
    assert f"classes: 0 = {first}, 1 = {second}, 2 = {third}" in shown.stderr
    shown = command(*given, "--class-names", f"{second},{first},{third}", code=2)
    assert "the model calls its outputs" in shown.output
    if kind == "ints":
        (tmp_path / "y.txt").write_text("\n".join(map(str, answers)))
        command(*given, "--labels", tmp_path / "y.txt", "--out", tmp_path / "again")
        assert frown.open(tmp_path / "again").status == found.status
        others = [n for n in CALLED[kind] if n != answers[0]]
        aimed = command(*given, "--samples", "0", "--target", others[0], "--json")
        assert json.loads(aimed.stdout)["target"] == CALLED[kind].index(others[0])
        assert "there is no class 0" in command(*given, "--target", 0, code=2).output


def test_numbers_are_numbers_of_outputs_whatever_names_say(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((2, 3)), y=[1, 1])
    given = ("certify", folder / "model.onnx", tmp_path / "data.npz", "--class-names")
    assert "numbers of outputs, from 0" in command(*given, "1,2", code=2).output
    for names in ("0,1", "good,bad"):
        command(*given, names, "--method", "crown")


def test_features_are_fixed_by_name_and_scaled_by_their_deviation(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    more = ("--fix", "age", "--scale", "std", "--samples", "0:2", "--out", out)
    shown = command("certify", folder / "model.onnx", folder / "data.csv", *GIVEN, *more)
    assert "; age may not change at all" in shown.stdout
    table = np.array([[0.6, 1.5, 0.25], [0.7, 2.5, 0.5], [0.5, 3.5, 0.75]])
    scale = table.std(0) * [0, 1, 1]  # of all rows, although two are asked about
    where = frown.Ball(table[:2], scale=scale)
    mine = frown.certify(folder / "model.onnx", where, [0, 1], method="crown")
    assert [row["radius"] for row in rows(out)] == pytest.approx(mine.radius.tolist(), rel=1e-12)
    named = frown.Ball(table[:2], fix=["age"], features=["age", "mass", "dose"])
    placed = frown.Ball(table[:2], fix=0)
    by_name, by_place = (
        frown.certify(folder / "model.onnx", w, [0, 1], method="crown") for w in (named, placed)
    )
    assert by_name.radius.tolist() == by_place.radius.tolist()
    for strange in (2.5, object(), [-1], {"age": 1}):
        with pytest.raises(InvalidInput, match="there is no feature"):
            frown.certify(folder / "model.onnx", frown.Ball(table, fix=strange), [0, 1, 0])
    same = frown.Ball(table[:2], fix=np.int64(0))
    again = frown.certify(folder / "model.onnx", same, [0, 1], method="crown")
    assert again.radius.tolist() == by_place.radius.tolist()
    with pytest.raises(InvalidInput, match="no feature weight"):
        frown.certify(folder / "model.onnx", frown.Ball(table, fix="weight"), [0, 1, 0])


def test_single_features_are_called_by_their_names(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("certify", folder / "model.onnx", folder / "data.csv", *GIVEN, "--sensitivity")
    shown = command(*given, "--out", out)
    assert "3 features each on its own" in shown.stdout
    assert "dose" in shown.stdout and "frame" not in shown.stdout
    page = report_from_files([out], tmp_path / "page.html").read_text()
    assert "Which features does model.onnx depend on?" in page
    assert '<th scope="col">dose</th>' in page and "Frames" not in page
    digest = hashlib.sha256((folder / "data.csv").read_bytes()).hexdigest()
    assert digest in page and "<dt>date</dt>" in page and "{&#x27;" not in page
    assert "<b>#0 Ann</b>" in page


def test_a_missing_column_is_found_by_the_names_of_the_others(folder: Path) -> None:
    shown = command(
        "certify", folder / "model.onnx", folder / "data.csv", *GIVEN, "--drop", "age", code=2
    )
    assert "the model takes (3,); the columns taken are mass, dose" in shown.output


def test_a_data_frame_has_names_of_its_own(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [0.6, 0.7], "mass": [1.5, 2.5], "dose": [0.25, 0.5]})
    where = frown.Ball(frame, fix="mass", ids=["Ann", "Bob"])
    found = frown.certify(folder / "model.onnx", where, [0, 1], method="crown")
    assert [row.id for row in found.rows] == ["Ann", "Bob"]
    plain = frown.Ball(frame.to_numpy(), scale=[1, 0, 1])
    assert (
        found.radius.tolist()
        == frown.certify(folder / "model.onnx", plain, [0, 1], method="crown").radius.tolist()
    )
    frame.loc[1, "dose"] = float("nan")
    with pytest.raises(frown.FrownError, match="number 1, first in column dose"):
        frown.certify(folder / "model.onnx", frame)


def test_means_and_deviations_come_from_files(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", [0.1, 0.2, 0.3])
    (tmp_path / "std.csv").write_text("1,2,4\n")
    given = ("certify", folder / "model.onnx", folder / "data.csv", *GIVEN)
    mean, std = tmp_path / "mean.npy", tmp_path / "std.csv"
    command(*given, "--mean", mean, "--std", std, "--out", tmp_path / "a")
    command(*given, "--mean", "0.1,0.2,0.3", "--std", "1,2,4", "--out", tmp_path / "b")
    assert [r["radius"] for r in rows(tmp_path / "a")] == [
        r["radius"] for r in rows(tmp_path / "b")
    ]
