"""A last function that keeps the order of the outputs is left out of the proof, by frown and by the
checker alike; what only looks like one is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import asking
import frown
import frown_check
from check.writer import draft
from frown.certification import certificates
from frown.cli import app
from frown.errors import FrownError, InvalidInput
from onnx_models import integers, model, node, number, saved, weights

KNOWN = {
    "w": weights(4, 8),
    "v": weights(8, 3, seed=1),
    "s": integers(3, 1),
    "r": integers(1, 3, 1, 1),
    "two": number(2.0),
    "minus": number(-2.0),
    "row": np.array([0.5, 0.0, -0.5], np.float32),
}
BODY = [node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "z")]
SHARES = node("Softmax", "z", "p")
KEPT: dict[str, tuple[int, list[onnx.NodeProto]]] = {
    "softmax": (13, [node("Softmax", "z")]),
    "softmax from an axis on": (11, [node("Softmax", "z")]),
    "softmax from the first axis on": (11, [node("Softmax", "z", axis=0)]),
    "softmax of channels": (13, [node("Reshape", "z r", "q"), node("Softmax", "q", axis=1)]),
    "softmax of channels and all after": (11, [node("Reshape", "z r", "q"), node("Softmax", "q")]),
    "log-softmax": (13, [node("LogSoftmax", "z", axis=-1)]),
    "sigmoid": (13, [node("Sigmoid", "z")]),
    "tanh": (13, [node("Tanh", "z")]),
    "softplus": (13, [node("Softplus", "z")]),
    "exponential": (13, [node("Exp", "z")]),
    "arctan": (13, [node("Atan", "z")]),
    "several": (13, [node("Sigmoid", "z", "p"), node("Softmax", "p", "q"), node("Exp", "q")]),
    "reshaped": (13, [SHARES, node("Reshape", "p s", "q"), node("Identity", "q")]),
    "cast": (13, [SHARES, node("Cast", "p", "q", to=1), node("Dropout", "q")]),
    "flattened": (13, [SHARES, node("Flatten", "p", "q"), node("Flatten", "q", axis=0)]),
}
OTHER: dict[str, tuple[int, list[onnx.NodeProto]]] = {
    "another temperature": (13, [SHARES, node("Mul", "p two")]),
    "turned round": (13, [SHARES, node("Mul", "p minus")]),
    "shifted": (13, [node("Sigmoid", "z", "p"), node("Add", "p row")]),
    "read twice": (13, [SHARES, node("Add", "p z")]),
    "in another order": (13, [node("Sigmoid", "z", "p"), node("Gather", "p i", axis=1)]),
    "of part of the outputs": (13, [node("Concat", "z z", "q", axis=0), node("Softmax", "q")]),
    "not increasing": (13, [node("Abs", "z")]),
    "not strictly": (13, [node("Relu", "z")]),
    "bounded": (13, [node("Clip", "z - two")]),
    "inside of a power": (13, [node("Pow", "two z")]),
}


def built(name: str, folder: Path) -> Path:
    opset, end = {**KEPT, **OTHER}[name]
    known = {**KNOWN, "i": integers(2, 0, 1)}
    return saved(model([*BODY, *end], [1, 4], known, opset), folder)


def inputs(count: int = 6) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.2, 1.5, size=(count, 4))


@pytest.mark.parametrize("name", KEPT)
def test_what_keeps_the_order_is_left_out_by_both(name: str, tmp_path: Path) -> None:
    plain = frown.load(saved(model([*BODY, node("Identity", "z")], [1, 4], KNOWN), tmp_path))
    wanted = asking.certify(plain, inputs(), attack=False)
    path = built(name, tmp_path)
    found = frown.load(path)
    assert found.scores is not None
    rows = asking.certify(
        found, inputs(), attack=False, level="checked", certificates=tmp_path / "proofs"
    ).rows
    assert [r.level for r in rows] == ["checked"] * 6
    assert [r.radius for r in rows] == [r.radius for r in wanted.rows]
    # Margins are those of the scores.
    assert [r.margins for r in rows] == [r.margins for r in wanted.rows]
    moved = asking.certify(found.normalised(0.1, 2.0), inputs(), attack=False)
    assert moved.radius == pytest.approx(
        asking.certify(plain.normalised(0.1, 2.0), inputs(), attack=False).radius
    )
    # Bounds of outputs are of the outputs themselves.
    box = asking.bound(found, inputs(1), 0.01)
    there = found.run(inputs(1))
    assert (box.lower - 1e-5 <= there.ravel()).all()
    assert (there.ravel() <= box.upper + 1e-5).all()


@pytest.mark.parametrize("name", OTHER)
def test_what_does_not_is_not(name: str, tmp_path: Path) -> None:
    path = built(name, tmp_path)
    found = frown.load(path)
    if name == "of part of the outputs":
        assert found.scores is None and "LogSumExp" in found.graph.summary()
        file = draft(path, [("b", "Relu", 8)], inputs()[0], 0.0, 0, [1]).file()
        assert "shares of 3 outputs among 6" in frown_check.check(file, path).reason
        return
    assert found.scores is None
    rows = asking.certify(
        found, inputs(), attack=False, level="checked", certificates=tmp_path / "proofs"
    ).rows
    # A claim about the scores would be about another order; sites tell which it is.
    sites = [("b", "Relu", 8)]
    for row in rows:
        order = [row.label, *(o for o in range(3) if o != row.label)]
        file = draft(path, sites, inputs()[row.index], 0.0, order[0], order[1:]).file()
        verdict = frown_check.check(file, path)
        assert not verdict.accepted
        assert (
            "sites" in verdict.reason
            or "Softmax at p" in verdict.reason
            or name in ("in another order",)
        )


def test_a_claim_is_about_the_outputs_order(tmp_path: Path) -> None:
    """Certificates without slopes, of points: accepted if and only if onnxruntime says so."""
    for name in KEPT:
        path = built(name, tmp_path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        for x in inputs():
            (y,) = session.run(None, {"x": x[None].astype(np.float32)})
            for label in range(3):
                others = [o for o in range(3) if o != label]
                file = draft(path, [("b", "Relu", 8)], x, 0.0, label, others).file()
                best = int(y.ravel().argmax()) == label
                assert frown_check.check(file, path).accepted == best


@pytest.mark.parametrize(
    "end", [torch.nn.Softmax(1), torch.nn.LogSoftmax(1), torch.nn.Sigmoid(), torch.nn.Tanh()]
)
def test_modules_are_read_alike(end: torch.nn.Module) -> None:
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    plain = frown.load(body, torch.zeros(1, 4))
    found = frown.load(torch.nn.Sequential(body, end), torch.zeros(1, 4))
    assert plain.scores is None and found.scores is not None
    one, two = (asking.certify(m, inputs()) for m in (plain, found))
    assert one.radius.tolist() == two.radius.tolist()
    scaled = torch.nn.Sequential(body, end, torch.nn.Flatten(), torch.nn.Linear(3, 3))
    assert frown.load(scaled, torch.zeros(1, 4)).scores is None


def test_counterexamples_are_the_original_models(tmp_path: Path) -> None:
    path = built("softmax", tmp_path)
    found = frown.load(path)
    result = asking.certify(found, inputs())
    assert result.counterexamples
    for index, point in result.counterexamples.items():
        y = found.run(point[None])[0]
        assert y.sum() == pytest.approx(1, abs=1e-5)  # they are shares
        label = result.rows[index].label
        assert np.delete(y, label).max() >= y[label]


def test_execution_is_proved_with_the_last_function(tmp_path: Path) -> None:
    """In single precision, sigmoid(20) and sigmoid(30) are both 1."""
    known = {"w": np.array([[20, 30], [0, 0]], np.float32)}
    nodes = [node("MatMul", "x w", "z"), node("Sigmoid", "z")]
    path = saved(model(nodes, [1, 2], known), tmp_path)
    found = frown.load(path)
    assert found.run(np.array([[1.0, 0.0]]))[0].tolist() == [1, 1]
    one = np.array([[0.5, 0.0]])  # a tie is near, not there
    options = {"eps": 0.49, "attack": False, "bounds": ([0.01, 0.0], [1.0, 0.0])}
    (row,) = asking.certify(found, one, [0], **options).rows
    assert row.status != "certified"  # the real-valued network prefers the other one
    known["w"] = known["w"][:, ::-1].copy()
    found = frown.load(saved(model(nodes, [1, 2], known), tmp_path))
    (row,) = asking.certify(found, one, [0], **options).rows
    assert row.status == "certified"
    (row,) = asking.certify(found, one, [0], deployed="float32", **options).rows
    assert row.status == "unknown"
    with pytest.raises(InvalidInput, match="ask for one of the two"):
        asking.certify(found, one, [0], deployed="float32", certificates=tmp_path / "p", **options)


# -- a level that is not reached -------------------------------------------------------------------


def certify(path: Path, tmp_path: Path, *more: str) -> tuple[int, str, str]:
    np.save(tmp_path / "x.npy", inputs())
    given = ["certify", str(path), str(tmp_path / "x.npy"), "--quiet", *more]
    done = CliRunner().invoke(app, given)
    return done.exit_code, done.stdout, done.stderr


def test_the_exit_code_tells_of_certificates_that_are_refused(tmp_path: Path) -> None:
    proofs, out = tmp_path / "proofs", tmp_path / "out"
    path = built("another temperature", tmp_path)
    given = ["--level", "checked", "--certificates", str(proofs), "--out", str(out)]
    code, _, message = certify(path, tmp_path, *given)
    assert code == 7
    assert "6 of 6 inputs" in message and "level checked" in message
    assert "Softmax at p: a place where more than the order of its results counts" in message
    assert list(proofs.iterdir()) == []
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {row["level"] for row in rows} == {"rigorous"}
    assert {row["certificate"] for row in rows} == {""}
    assert json.loads((out / "run.json").read_text())["state"] == "finished"
    # Unchecked, they are written, and nothing is promised.
    code, _, _ = certify(path, tmp_path, "--certificates", str(proofs))
    assert code == 0 and len(list(proofs.iterdir())) == 6
    # A checked run removes what it wrote over, too.
    code, _, _ = certify(path, tmp_path, *given, "--force")
    assert code == 7 and list(proofs.iterdir()) == []
    fine = built("softmax", tmp_path)
    code, _, message = certify(fine, tmp_path, *given, "--force")
    assert code == 0 and message == ""
    assert len(list(proofs.iterdir())) == 6


def test_a_certificate_of_another_statement_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_meant", lambda *given: False)
    rows = asking.certify(
        frown.load(built("softmax", tmp_path)),
        inputs(2),
        level="checked",
        certificates=tmp_path / "proofs",
    ).rows
    assert {(r.level, r.certificate, r.remark) for r in rows} == {
        ("rigorous", "", "the checker accepted another statement")
    }
    assert list((tmp_path / "proofs").iterdir()) == []


def test_estimates_that_were_not_asked_for_have_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.certification.prove import Prover

    monkeypatch.setattr(Prover, "_unproven", lambda self: "no proof today")
    path = built("softmax", tmp_path)
    code, _, message = certify(path, tmp_path)
    assert code == 7 and "input 0 is estimate: no proof today" in message
    code, _, _ = certify(path, tmp_path, "--level", "estimate")
    assert code == 0


# -- weights in files beside the model -------------------------------------------------------------


def outside(folder: Path, location: str = "model.onnx.data") -> Path:
    proto = model([*BODY, node("Softmax", "z")], [1, 4], {k: KNOWN[k] for k in "wv"})
    path = folder / "model.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def test_models_in_several_files_have_certificates(tmp_path: Path) -> None:
    path, proofs = outside(tmp_path), tmp_path / "proofs"
    rows = asking.certify(frown.load(path), inputs(), level="checked", certificates=proofs).rows
    assert [r.level for r in rows] == ["checked"] * 6
    data = tmp_path / "model.onnx.data"
    whole = data.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        data.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for file in proofs.iterdir():
            verdict = frown_check.check(file, path)
            assert not verdict.accepted
            assert verdict.reason.startswith("model.onnx.data is another model")
    data.write_bytes(whole)
    verdict = frown_check.check(next(proofs.iterdir()), path)
    assert verdict.accepted and verdict.claim is not None
    assert [name for name, _ in verdict.claim.external] == ["model.onnx.data"]


def test_what_the_exporter_of_torch_writes_is_certified(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (torch.zeros(1, 4),), path, dynamo=True, external_data=True)
    assert (tmp_path / "net.onnx.data").exists()
    found = frown.load(path)
    rows = asking.certify(found, inputs(), level="checked", certificates=tmp_path / "p").rows
    assert [r.level for r in rows] == ["checked"] * 6


def test_weights_in_another_folder_have_none(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    path = outside(tmp_path, "parts/w.bin")
    try:
        found = frown.load(path)
    except FrownError:
        return  # as onnxruntime has it
    with pytest.raises(InvalidInput, match="do not lie beside it"):
        asking.certify(found, inputs(), certificates=tmp_path / "proofs")
