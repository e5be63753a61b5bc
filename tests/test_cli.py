"""The command `frown`, from the outside: what it prints, writes and ends with."""

from __future__ import annotations

import csv
import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from frown import __version__, api
from frown.certification.run import _Run
from frown.cli import app, importing
from frown.jobs import files as result_files
from frown.jobs.files import COLUMNS
from onnx_models import model, node, saved, weights

FEATURES, CLASSES, COUNT = 4, 3, 5


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 -> 6 relu -> 3."""
    proto = model(
        [
            node("Gemm", "x w0 b0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1 b1", "y", transB=1),
        ],
        ["N", FEATURES],
        {
            "w0": weights(6, FEATURES, seed=1),
            "b0": weights(6, seed=2),
            "w1": weights(CLASSES, 6, seed=3),
            "b1": weights(CLASSES, seed=4),
        },
    )
    return saved(proto, tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, FEATURES))


@pytest.fixture(scope="module")
def y(net: Path, x: np.ndarray) -> np.ndarray:
    return np.asarray(api.load(net).run(x)).argmax(1)


@pytest.fixture
def data(tmp_path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y)
    return path


def frown(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def refusal(*args: object, code: int = 2) -> str:
    """The one-line message on stderr with which a command is refused."""
    result = frown(*args, code=code)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def rows_of(directory: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = (directory / "results.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.mark.parametrize("option", ["--threads", "--workers"])
def test_more_threads_than_any_machine_has_are_refused(net: Path, data: Path, option: str):
    """A system that refuses to start them would end the process inside of a library."""
    assert "1024" in frown("certify", net, data, option, 100_000, code=2).stderr


# -- certify ---------------------------------------------------------------------------


def test_certify_prints_a_table_and_writes_every_file(net: Path, data: Path, tmp_path: Path):
    out = tmp_path / "out"
    result = frown("certify", net, data, "--out", out, "--norm", 2)
    for word in ("prediction", "[proved, broken]", "certified accuracy", "mean", "median"):
        assert word in result.stdout
    assert sorted(p.name for p in out.iterdir()) == sorted(result_files.FILES)
    rows = rows_of(out)
    assert [row["index"] for row in rows] == list(range(COUNT))
    for row in rows:
        assert tuple(row) == ("key", *COLUMNS)
        assert row["norm"] == 2
        assert row["method"] == "frown"
        assert row["status"] == "certified"
        assert 0 < row["radius"] <= row["broken"]
        assert len(row["model"]) == 64
        assert row["settings"]["tol"] == 0.01
    with (out / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    for line, row in zip(table, rows, strict=True):
        assert tuple(line) == COLUMNS
        assert float(line["radius"]) == row["radius"]
        assert json.loads(line["margins"]) == row["margins"]
    about = json.loads((out / "run.json").read_text())
    assert about["state"] == "finished"
    assert about["rows"] == COUNT
    assert about["model"]["sha256"] == rows[0]["model"]


def test_counterexamples_break_the_model_at_the_radius_shown(
    net: Path, data: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray
):
    out = tmp_path / "out"
    frown("certify", net, data, "--out", out, "--norm", 2)
    broken = {row["index"]: row["broken"] for row in rows_of(out)}
    with np.load(out / "counterexamples.npz") as held:
        assert held["index"].tolist() == sorted(i for i, r in broken.items() if r is not None)
        assert held["y"].tolist() == y[held["index"]].tolist()
        answers = np.asarray(api.load(net).run(held["x"]))
        for i, example, answer in zip(held["index"], held["x"], answers, strict=True):
            assert answer.argmax() != y[i] or np.sort(answer)[-1] == np.sort(answer)[-2]
            assert math.isclose(np.linalg.norm(example - x[i]), broken[i], rel_tol=1e-4)


def test_json_is_all_there_is_on_stdout(net: Path, data: Path):
    result = frown("certify", net, data, "--json", "--samples", "1,3")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["index"] for row in rows] == [1, 3]
    assert all(row["norm"] == "inf" for row in rows)


def test_quiet_prints_nothing(net: Path, data: Path, tmp_path: Path):
    result = frown("certify", net, data, "--quiet", "--out", tmp_path / "out")
    assert result.output == ""
    assert len(rows_of(tmp_path / "out")) == COUNT


def test_every_method_and_option_is_accepted(net: Path, data: Path):
    proved = {}
    for method in ("interval", "fastlin", "crown", "frown"):
        proved[method] = [r["radius"] for r in json_rows(net, data, "--method", method)]
    ordered = [np.array(proved[m]) for m in ("interval", "crown", "frown")]
    assert (ordered[0] <= ordered[1] * 1.02).all()
    assert (ordered[1] <= ordered[2] * 1.02).all()
    json_rows(
        net, data, "--norm", "1.5", "--group", "layer", "--wide", "--rule", "paper",
        "--threads", 1, "--dtype", "float64", "--device", "cpu",
        "--time-limit", 60, "--memory", "500M", "--batch", 2, "--no-attack", "--tol", 0.05,
    )  # fmt: skip


def json_rows(net: Path, data: Path, *options: object) -> list[dict[str, Any]]:
    lines = frown("certify", net, data, "--json", *options).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_targets_by_class_offset_file_and_npz(
    net: Path, data: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray
):
    wanted = (y + 1) % CLASSES
    (tmp_path / "t.txt").write_text("\n".join(map(str, wanted)))
    np.savez(tmp_path / "targeted.npz", x=x, y=y, target=wanted)
    for file, option in (
        (data, ["--target", "+1"]),
        (data, ["--target", str(tmp_path / "t.txt")]),
        (tmp_path / "targeted.npz", []),
    ):
        found = [row["target"] for row in json_rows(net, file, *option)]
        assert found == wanted.tolist()
    untargeted = json_rows(net, tmp_path / "targeted.npz", "--target", "all")
    assert {row["target"] for row in untargeted} == {None}


def test_eps_checks_one_radius(net: Path, data: Path):
    assert {r["status"] for r in json_rows(net, data, "--eps", "1e-6")} == {"certified"}
    far = {r["status"] for r in json_rows(net, data, "--eps", "50")}
    assert far == {"falsified"}
    assert "100% at 1e-06" in frown("certify", net, data, "--eps", "1e-6").stdout


def test_radii_are_in_units_before_normalisation(
    net: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray, data: Path
):
    np.savez(tmp_path / "raw.npz", x=x * 4 + 0.5, y=y)
    raw = json_rows(net, tmp_path / "raw.npz", "--mean", "0.5", "--std", "4,4,4,4")
    plain = json_rows(net, data)
    for big, small in zip(raw, plain, strict=True):
        assert math.isclose(big["radius"], 4 * small["radius"], rel_tol=0.03)


def test_bytes_are_divided_on_request(net: Path, tmp_path: Path):
    np.save(tmp_path / "bytes.npy", np.full((1, FEATURES), 51, np.uint8))
    np.save(tmp_path / "floats.npy", np.full((1, FEATURES), 0.2))
    [one] = json_rows(net, tmp_path / "bytes.npy", "--divide", 255)
    [other] = json_rows(net, tmp_path / "floats.npy")
    assert one["radius"] == pytest.approx(other["radius"], rel=1e-3)


def test_without_labels_the_prediction_stands_in(net: Path, tmp_path: Path, x: np.ndarray, y):
    np.save(tmp_path / "x.npy", x)
    result = frown("certify", net, tmp_path / "x.npy", "--json")
    assert "predictions" in result.stderr
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == y.tolist()
    np.save(tmp_path / "y.npy", (y + 1) % CLASSES)
    rows = json_rows(net, tmp_path / "x.npy", "--labels", tmp_path / "y.npy")
    assert {(row["status"], row["radius"]) for row in rows} == {("misclassified", 0.0)}
    shown = frown("certify", net, tmp_path / "x.npy", "--labels", tmp_path / "y.npy").stdout
    assert "no input is classified correctly" in shown and "--divide" in shown


def test_csv_data(net: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray, data: Path):
    lines = [",".join(map(repr, [*row.tolist(), int(k)])) for row, k in zip(x, y, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    rows = json_rows(net, tmp_path / "d.csv", "--label-column", "last")
    assert [r["radius"] for r in rows] == [r["radius"] for r in json_rows(net, data)]


def test_long_results_are_cut_on_screen_only_where_files_keep_them(
    net: Path, tmp_path: Path, x: np.ndarray
):
    np.save(tmp_path / "x.npy", np.repeat(x, 9, axis=0))
    command = ("certify", net, tmp_path / "x.npy", "--method", "interval", "--no-attack")
    shown = frown(*command, "--out", tmp_path / "out").stdout
    assert "5 more in" in shown.replace("\n", " ")
    assert len(rows_of(tmp_path / "out")) == 45
    assert "more in" not in frown(*command).stdout


# -- bad input -------------------------------------------------------------------------


def test_options_that_make_no_sense(net: Path, data: Path):
    for options, expected in (
        (("--eps", "-1"), "eps"),
        (("--eps", "nan"), "eps"),
        (("--norm", "0.5"), "0.5"),
        (("--norm", "two"), "two"),
        (("--norm", "nan"), "norm"),
        (("--method", "magic"), "magic"),
        (("--rule", "thumb"), "thumb"),
        (("--group", "-1"), "group"),
        (("--group", "few"), "few"),
        (("--memory", "lots"), "lots"),
        (("--dtype", "int8"), "int8"),
        (("--tol", "0"), "tol"),
        (("--tol", "-1"), "tol"),
        (("--time-limit", "-1"), "time"),
        (("--samples", "3:100"), "5 inputs"),
        (("--samples", "7"), "5 inputs"),
        (("--samples", "x"), "0:100"),
        (("--target", "3"), "3"),
        (("--target", "nobody"), "nobody"),
        (("--target", "none.txt"), "none.txt"),
        (("--target", "+3"), "label"),
        (("--bounds", "1", "0"), "bounds"),
        (("--bounds", "0.5", "0.6"), "bounds"),
        (("--bounds", "0", "one"), "one"),
        (("--bounds", "0,0", "1,1"), "(2,)"),
        (("--mean", "0", "--std", "0"), "std"),
        (("--mean", "1,2"), "(2,)"),
        (("--divide", "0"), "divide"),
        (("--labels", "none.npy"), "none.npy"),
        (("--label-column", "last"), "label-column"),
    ):
        assert expected in refusal("certify", net, data, *options), options


def test_device_that_does_not_exist(net: Path, data: Path):
    assert "toaster" in refusal("certify", net, data, "--device", "toaster")


def test_target_equal_to_the_label(net: Path, data: Path, y: np.ndarray):
    assert str(y[0]) in refusal("certify", net, data, "--target", y[0])


def test_data_that_makes_no_sense(net: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray):
    def written(**arrays: Any) -> Path:
        np.savez(tmp_path / "bad.npz", **arrays)
        return tmp_path / "bad.npz"

    nan, inf = x.copy(), x.copy()
    nan[3, 1], inf[2, 0] = np.nan, np.inf
    assert "3" in refusal("certify", net, written(x=nan, y=y))
    assert "2" in refusal("certify", net, written(x=inf, y=y))
    shapes = refusal("certify", net, written(x=x[:, :3], y=y))
    assert "3" in shapes
    assert "(4,)" in shapes
    assert "(4,)" in refusal("certify", net, written(x=x[:, :3]))
    assert "found 7" in refusal("certify", net, written(x=x, y=np.full(COUNT, 7)))
    assert "-1" in refusal("certify", net, written(x=x, y=np.full(COUNT, -1)))
    assert "no input" in refusal("certify", net, written(x=x[:0], y=y[:0]))
    assert "4 labels for 5" in refusal("certify", net, written(x=x, y=y[:4]))
    assert "no such file" in refusal("certify", net, tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(written(x=x).read_bytes()[:50])
    assert "damaged" in refusal("certify", net, tmp_path / "cut.npz")


def test_models_that_cannot_be_read(net: Path, data: Path, tmp_path: Path):
    for command in (("certify", "{}", data), ("info", "{}")):

        def run(path: Path, code: int, command=command) -> str:
            args = [str(path) if c == "{}" else c for c in command]
            return frown(*args, code=code).stderr

        assert "no such file" in run(tmp_path / "none.onnx", 3)
        (tmp_path / "cut.onnx").write_bytes(net.read_bytes()[:99])
        assert "damaged" in run(tmp_path / "cut.onnx", 3)
        bad = saved(model([node("Det", "x")], ["N", 2, 2]), tmp_path, "det.onnx")
        message = run(bad, 4)
        assert message.startswith("error: ")
        assert "Det" in message


# -- output ----------------------------------------------------------------------------


def test_earlier_results_are_kept(net: Path, data: Path, tmp_path: Path):
    out = tmp_path / "out"
    frown("certify", net, data, "--out", out, "--samples", "0:2")
    before = (out / "results.jsonl").read_text()
    assert "--force" in refusal("certify", net, data, "--out", out, code=6)
    refusal("certify", net, data, "--out", out, "--force", "--eps", "-1")
    assert (out / "results.jsonl").read_text() == before
    frown("certify", net, data, "--out", out, "--force")
    assert len(rows_of(out)) == COUNT


def test_output_that_cannot_be_written_is_found_before_the_work(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(_Run, "all", lambda *a, **k: pytest.fail("the work began"))
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot write" in refusal("certify", net, data, "--out", out, code=6)


def test_a_full_disk_ends_with_a_message(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(result_files, "dumps", full)
    message = frown("certify", net, data, "--out", tmp_path / "out", code=6).stderr
    assert "No space left" in message


# -- other commands --------------------------------------------------------------------


def test_info_shows_each_operator_and_how_it_is_bounded(net: Path):
    shown = frown("info", net).stdout
    for word in ("Linear", "Relu", "exact", "piecewise lines", "(4,)", "sha256"):
        assert word in shown
    about = json.loads(frown("info", net, "--json").stdout)
    treatments = {"input", "affine: exact", "bounded: piecewise lines"}
    assert {node["treatment"] for node in about["nodes"]} == treatments
    assert about["classes"] == CLASSES
    assert about["neurons"] == 6
    assert about["parameters"] == 6 * FEATURES + 6 + CLASSES * 6 + CLASSES


def test_help_names_every_command():
    shown = frown("--help").stdout
    for command in ("certify", "info", "demo", "report"):
        assert command in shown
        frown(command, "--help")


def test_unexpected_errors_take_one_line(net: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(api.Question, "of", broken)
    message = refusal("certify", net, data, code=70)
    assert "ZeroDivisionError: one two" in message
    assert "FROWN_DEBUG=1" in message
    monkeypatch.setenv("FROWN_DEBUG", "1")
    result = CliRunner().invoke(app, ["certify", str(net), str(data)])
    assert isinstance(result.exception, ZeroDivisionError)


# -- as a process ----------------------------------------------------------------------


def process(*args: object, **options: Any) -> subprocess.Popen[str]:
    source = Path(api.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "frown", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes, **options)


def test_the_command_starts_without_torch(net: Path):
    source = Path(api.__file__).parents[1]
    code = "import sys, frown.cli; sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(source)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0
    shown, _ = process("--version").communicate(timeout=60)
    assert shown == f"{__version__}\n"
    assert process("--name").communicate(timeout=60)[0] == "frown\n"


def test_interrupt_keeps_the_rows_already_finished(net: Path, tmp_path: Path, x: np.ndarray):
    np.save(tmp_path / "x.npy", np.repeat(x, 2000, axis=0))
    out = tmp_path / "out"
    running = process("certify", net, tmp_path / "x.npy", "--out", out, "--batch", 1, "-q")
    deadline = time.monotonic() + 120
    lines = out / "results.jsonl"
    while time.monotonic() < deadline and not (lines.exists() and lines.stat().st_size):
        time.sleep(0.05)
        assert running.poll() is None, running.stderr.read()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert str(out) in errors
    rows = rows_of(out)
    whole = sum(row["complete"] for row in rows)
    assert whole >= 1
    assert f"{whole} of {2000 * COUNT}" in errors
    about = json.loads((out / "run.json").read_text())
    assert about["state"] == "interrupted"
    assert about["rows"] == len(rows)
    assert (out / "counterexamples.npz").exists()


def test_what_imports_make_is_no_garbage_to_look_through() -> None:
    """Objects of an import are frozen, and the collector is on again."""
    before = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
    try:
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
