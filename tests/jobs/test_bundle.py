"""Bundles: an auditor's folder is checked with nothing else, and no file of it can be changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from frown_check.bundle import opened
from frown_check.errors import Refused
from methods.programs.tools import command
from onnx_models import model, node, saved, weights

PATIENTS = """id,age,mass,dose,kind
Ann,0.6,1.5,0.25,benign
Bob,0.7,2.5,0.5,malign
Cid,0.5,3.5,0.75,benign
Dan,0.4,1.0,0.5,malign
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    (folder / "data.csv").write_text(PATIENTS)
    constants = {"a": weights(3, 6), "b": weights(6, seed=1), "c": weights(6, 2, seed=2)}
    nodes = [node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("MatMul", "r c")]
    saved(model(nodes, ("N", 3), constants), folder)
    given = ("certify", folder / "model.onnx", folder / "data.csv", "--id-column", "id")
    given += ("--label-column", "kind", "--method", "crown", "--fix", "age", "--divide", "2")
    command(*given, "--out", folder / "results", "--certificates", folder / "proofs")
    return folder


def bundled(run: Path, out: Path) -> Path:
    files = ("--model", run / "model.onnx", "--data", run / "data.csv")
    command("bundle", run / "results", *files, "--out", out)
    return out


@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_a_bundle_is_checked_with_nothing_else(run: Path, tmp_path: Path, name: str) -> None:
    out = bundled(run, tmp_path / name)
    moved = tmp_path / "elsewhere" / name
    moved.parent.mkdir()
    shutil.move(out, moved)
    rows = [json.loads(t) for t in (run / "results" / "results.jsonl").read_text().splitlines()]
    proved = [row for row in rows if row["radius"] > 0]
    assert proved
    shown = command("check", moved)
    assert "every file has the hash" in shown.stdout
    assert shown.stdout.count(": accepted: ") == len(proved)
    file = "data.npz" if "data.npz" in shown.stdout else "data.csv"
    assert f"x0 is row 0 of {moved / file}" in shown.stdout
    assert str(moved / "certificates" / "input-000000.frown") in shown.stdout
    alone = subprocess.run(
        [sys.executable, "-m", "frown_check", str(moved), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    claims = [json.loads(line) for line in alone.stdout.splitlines()]
    assert [c["claim"]["radius"] for c in claims] == [row["radius"] for row in proved]


def test_the_page_says_what_is_proved(run: Path, tmp_path: Path) -> None:
    out = bundled(run, tmp_path / "bundle")
    page = (out / "summary.html").read_text()
    assert "no single number of the input changes by more than r; age may not change at all" in page
    assert "<td>age</td><td>not at all</td>" in page
    assert "<td>mass</td><td>1 times the radius</td>" in page
    assert "the data&#x27;s units divided by 2" in page or "the data's units divided by 2" in page
    held = np.load(out / "data.npz")
    manifest = json.loads((out / "manifest.json").read_text())
    assert held["id"].tolist() == [row["id"] for row in manifest["rows"]]
    assert all(name in page for name in held["id"].tolist())
    assert "<td>0 (benign)</td>" in page  # the number that certificates have, and its name
    rows = [json.loads(t) for t in (run / "results" / "results.jsonl").read_text().splitlines()]
    wrong = sum(row["status"] == "misclassified" for row in rows)
    left = len(rows) - len(held["id"])
    assert wrong and f"{left} of the run&#x27;s {len(rows)} inputs" in page
    assert f"{wrong} of them since the model is wrong about the input itself" in page


@pytest.mark.parametrize(
    ("options", "head", "cell"),
    [
        (("--target", "+1"), '<button type="button">target</button>', "<td>{target}</td>"),
        (
            ("--sensitivity",),
            '<button type="button">the feature that changes</button>',
            "<td>{frames}</td>",
        ),
    ],
)
def test_every_line_of_the_page_says_what_it_is_about(
    tmp_path: Path, options: tuple[str, ...], head: str, cell: str
) -> None:
    """Against which class, or for which feature alone, a radius is proved."""
    constants = {"a": weights(3, 6), "b": weights(6, seed=1), "c": weights(6, 3, seed=2)}
    nodes = [node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("MatMul", "r c")]
    onnx, data = saved(model(nodes, ("N", 3), constants), tmp_path), tmp_path / "data.npz"
    np.savez(data, x=np.array([[0.3, 0.7, 0.2]]))
    given = ("--method", "crown", "--no-attack", "--certificates", tmp_path / "proofs", *options)
    command("certify", onnx, data, *given, "--out", tmp_path / "out")
    pack = ("--model", onnx, "--data", data, "--out", tmp_path / "bundle")
    command("bundle", tmp_path / "out", *pack)
    page = (tmp_path / "bundle" / "summary.html").read_text()
    assert head in page
    for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert cell.format(**row) in page.partition(f"{row['certificate']}</td>")[0]


def spoilt(folder: Path, how: str) -> None:
    first = sorted((folder / "certificates").glob("*.frown"))[0]
    manifest = json.loads((folder / "manifest.json").read_text())
    match how:
        case "a certificate changed":
            first.write_bytes(first.read_bytes()[:-1] + b"\0")
        case "a file gone":
            first.unlink()
        case "a file more":
            (folder / "certificates" / "more.frown").write_bytes(first.read_bytes())
        case "another format":
            manifest["format"] = "frown bundle 2"
        case "another place":
            manifest["files"]["../x"] = "00"
        case "no certificates":
            manifest["certificates"] = []
        case "no manifest":
            manifest = {"files": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "how",
    [
        *("a certificate changed", "a file gone", "a file more", "another format"),
        *("another place", "no certificates", "no manifest"),
    ],
)
def test_a_spoilt_bundle_is_refused(run: Path, tmp_path: Path, how: str) -> None:
    out = bundled(run, tmp_path / "bundle")
    spoilt(out, how)
    assert "accepted" not in command("check", out, code=2).output


def test_hashes_that_follow_a_change_do_not_help(run: Path, tmp_path: Path) -> None:
    """Whoever changes an input can change its hash as well: the certificate is about another."""
    out = bundled(run, tmp_path / "bundle")
    held = dict(np.load(out / "data.npz"))
    held["x"] = held["x"] + 0.5
    np.savez(out / "data.npz", **held)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"]["data.npz"] = hashlib.sha256((out / "data.npz").read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    shown = command("check", out, code=1)
    assert "ANOTHER INPUT" in shown.stdout and ": accepted: " not in shown.stdout


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_file_that_cannot_be_unpacked_is_refused(tmp_path: Path, kind: int) -> None:
    packed = tmp_path / "bundle.zip"
    with zipfile.ZipFile(packed, "w", kind) as file:
        file.writestr("manifest.json", "{}" * 500)
    whole = packed.read_bytes()
    first, listed = (whole.index(b"manifest.json", k) for k in (0, whole.index(b"PK\x01\x02")))
    damaged = bytearray(whole)
    damaged[first + 13 : first + 27] = b"\xff" * 14
    unnamed = bytearray(whole)
    unnamed[whole.index(b"PK\x01\x02") + 9] |= 8  # names are UTF-8, which this one is not
    unnamed[listed] = 0xFF
    for content in (damaged, unnamed):
        packed.write_bytes(content)
        with pytest.raises(Refused, match="cannot be unpacked"), opened(packed):
            pass


def test_what_does_not_belong_together_is_not_packed(run: Path, tmp_path: Path) -> None:
    nodes = [node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("MatMul", "r c")]
    constants = {"a": weights(3, 6), "b": weights(6, seed=5), "c": weights(6, 2, seed=2)}
    other = saved(model(nodes, ("N", 3), constants), tmp_path, "model.onnx")
    moved = tmp_path / "moved.csv"
    moved.write_text(PATIENTS.replace("1.5", "1.25"))
    given = ("bundle", run / "results", "--out", tmp_path / "b.zip")
    right = ("--model", run / "model.onnx", "--data", run / "data.csv")
    assert "not the file" in command(*given, "--model", other, *right[2:], code=2).output
    assert "is not about input 0" in command(*given, *right[:3], moved, code=2).output
    moved.write_text(PATIENTS.replace("malign", "kind").replace("benign", "malign"))
    relabelled = " ".join(command(*given, *right[:3], moved, code=2).output.split())
    assert "is another file than the run was about: its labels may be others" in relabelled
    changed = shutil.copytree(run / "results", tmp_path / "changed")
    rows = changed / "results.jsonl"
    first, *rest = map(json.loads, rows.read_text().splitlines())
    first["label"] = 1 - first["label"]
    rows.write_text("".join(json.dumps(row) + "\n" for row in (first, *rest)))
    shown = command("bundle", changed, *right, *given[2:], code=2).output
    assert "the row was changed" in " ".join(shown.split())
    nowhere = ("--certificates", tmp_path / "none")
    assert "--certificates says where" in command(*given, *right, *nowhere, code=2).output
    (tmp_path / "b.zip").write_bytes(b"")
    assert "there already" in command(*given, *right, code=6).output
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as packed:
        packed.writestr("../evil.txt", "x")
    assert "is called" in command("check", tmp_path / "evil.zip", code=2).output
    assert not (tmp_path.parent / "evil.txt").exists()


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ((), ("--target", "+1")),
        (("--within", "1"), ("--within", "2")),
        ((), ("--scale", "1,1,0.5")),
        (("--tol", "0.001"), ("--tol", "0.2")),
    ],
)
def test_certificates_of_a_later_run_are_not_packed(
    tmp_path: Path, first: tuple[str, ...], later: tuple[str, ...]
) -> None:
    """They are about the same inputs, in the same folder, and the page would say something else."""
    constants = {"a": weights(3, 6), "b": weights(6, seed=1), "c": weights(6, 3, seed=2)}
    nodes = [node("Gemm", "x a b", "h"), node("Relu", "h", "r"), node("MatMul", "r c")]
    onnx = saved(model(nodes, ("N", 3), constants), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([[0.3, 0.7, 0.2], [0.9, 0.1, 0.4]]))
    given = ("certify", onnx, tmp_path / "data.npz", "--method", "crown", "--no-attack", "--force")
    given += ("--certificates", tmp_path / "proofs")
    pack = ("bundle", tmp_path / "first", "--model", onnx, "--data", tmp_path / "data.npz")
    command(*given, *first, "--out", tmp_path / "first")
    command(*pack, "--out", tmp_path / "good.zip")
    command("check", tmp_path / "good.zip")
    command(*given, *later, "--out", tmp_path / "later")
    shown = " ".join(command(*pack, "--out", tmp_path / "bad.zip", code=2).output.split())
    assert (
        "is not the certificate that input 0 had" in shown and not (tmp_path / "bad.zip").exists()
    )


def test_what_the_checker_refuses_is_not_packed(run: Path, tmp_path: Path) -> None:
    """A radius that nobody proved, in a certificate that fits its row otherwise."""
    proofs = tmp_path / "proofs"
    shutil.copytree(run / "proofs", proofs)
    file = sorted(proofs.glob("*.frown"))[0]
    content = file.read_bytes()
    size = int.from_bytes(content[8:12], "little")
    header = json.loads(content[12 : 12 + size])
    header["region"]["radius"] = (100.0).hex()
    text = json.dumps(header).encode()
    file.write_bytes(content[:8] + len(text).to_bytes(4, "little") + text + content[12 + size :])
    files = ("--model", run / "model.onnx", "--data", run / "data.csv", "--certificates", proofs)
    results = shutil.copytree(run / "results", tmp_path / "results")
    shown = command("bundle", results, *files, "--out", tmp_path / "b", code=2)
    assert "its SHA-256 is another" in " ".join(shown.output.split())
    rows, digests = (
        results / "results.jsonl",
        (hashlib.sha256(content), hashlib.sha256(file.read_bytes())),
    )
    rows.write_text(rows.read_text().replace(*(digest.hexdigest() for digest in digests)))
    shown = command("bundle", results, *files, "--out", tmp_path / "b", code=2)
    assert "refused by the checker" in " ".join(shown.output.split())
