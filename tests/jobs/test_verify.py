"""`frown verify`, from the outside: verdict first, then a witness, all else on stderr."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner, Result

from frown.cli import app
from frown.jobs.instances import Instance, _key
from frown.jobs.supports import CAPABILITIES
from onnx_models import model, node, saved, weights

HEAD = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)\n"
BOX = "(assert (and (>= X_0 -1) (<= X_0 1) (>= X_1 0.25) (<= X_1 0.5)))\n"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """2 -> 4 relu -> 1, whose output is not negative."""
    constants = {"w0": weights(2, 4), "w1": np.abs(weights(4, 1, seed=1))}
    nodes = [node("MatMul", "x w0", "h"), node("Relu", "h", "a"), node("MatMul", "a w1", "y")]
    return saved(model(nodes, ["N", 2], constants), tmp_path)


def asked(net: Path, query: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["verify", str(query), "--network", str(net), *options])


def written(folder: Path, text: str, name: str = "query.vnnlib") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["query.vnnlib", "query.vnnlib.gz"])
def test_a_witness_follows_the_verdict(name: str, net: Path, tmp_path: Path) -> None:
    query = written(tmp_path, HEAD + BOX + "(assert (>= Y_0 0))", name)
    shown = asked(net, query, "--timeout", "20")
    assert shown.exit_code == 0
    first, *rest = shown.stdout.splitlines()
    assert first == "sat"
    number = r"(-?[\d.e-]+)"
    names = r"\s".join(rf"\({v} {number}\)" for v in ("X_0", "X_1", "Y_0"))
    found = re.fullmatch(rf"\({names}\)", "\n".join(rest))
    assert found is not None, rest
    x0, x1, y0 = map(float, found.groups())
    assert -1 <= x0 <= 1 and 0.25 <= x1 <= 0.5 and y0 >= 0
    assert float(np.float32(x0)) == x0  # every digit of it


def test_no_witness_follows_unsat(net: Path, tmp_path: Path) -> None:
    shown = asked(net, written(tmp_path, HEAD + BOX + "(assert (<= Y_0 -0.001))"))
    assert (shown.exit_code, shown.stdout) == (0, "unsat\n")
    assert "1 of 1 boxes refuted" in shown.stderr


def test_assignments_are_tensors_in_files(net: Path, tmp_path: Path) -> None:
    query = written(tmp_path, HEAD + BOX + "(assert (>= Y_0 0))")
    shown = asked(net, query, "--serialise-assignments", str(tmp_path / "found"))
    assert shown.stdout == "sat\n"
    for name, shape in (("X", (1, 2)), ("Y", (1, 1))):
        proto = onnx.TensorProto.FromString((tmp_path / "found" / f"{name}.pb").read_bytes())
        assert numpy_helper.to_array(proto).shape == shape
        assert proto.data_type == onnx.TensorProto.FLOAT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD + "(assert (<= X_0 1)", "line 2, column 1: this parenthesis is never closed"),
        (HEAD + "(assert (<= X_9 1))", "line 2, column 13: 'X_9' is neither a number"),
        (HEAD + BOX + "(assert (<= (* Y_0 X_0) 1))", "line 3, column 13: products of variables"),
    ],
)
def test_a_bad_query_is_an_error_with_its_place(
    text: str, told: str, net: Path, tmp_path: Path
) -> None:
    shown = asked(net, written(tmp_path, text))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert told in shown.stderr


def test_networks_are_given_once(net: Path, tmp_path: Path) -> None:
    query = written(tmp_path, HEAD + BOX + "(assert (<= Y_0 -1))")
    assert asked(net, query).stdout == "unsat\n"
    named = CliRunner().invoke(app, ["verify", str(query), "--network", f"f={net}"])
    assert named.stdout == "unsat\n"
    for given in ([], ["--network", str(net), "--network", str(net)]):
        refused = CliRunner().invoke(app, ["verify", str(query), *given])
        assert refused.exit_code == 2 and "needs one --network" in refused.stderr


def test_a_network_in_a_query_s_place_is_told_the_command(net: Path, tmp_path: Path) -> None:
    query = written(tmp_path, HEAD + BOX + "(assert (<= Y_0 -1))")
    for given in ([net, query], [query, net]):
        refused = CliRunner().invoke(app, ["verify", *map(str, given)])
        assert refused.exit_code == 2
        assert f"frown verify {query} --network {net}" in refused.stderr


def test_a_folder_of_queries_is_answered_and_taken_up_again(net: Path, tmp_path: Path) -> None:
    """The second run asks about what is new alone; a query that is none is an error."""
    texts = {"a": "(assert (<= Y_0 -1))", "b": "(assert (>= Y_0 0))", "c": "(assert"}
    for name, text in texts.items():
        written(tmp_path, HEAD + BOX + text, f"{name}.vnnlib")
    listed, results = tmp_path / "instances.csv", tmp_path / "out.csv"
    lines = [f"{net.name},{name}.vnnlib,60\n" for name in texts]
    options = ["verify", "--instances", str(listed), "--results", str(results)]
    for some in (lines[:1], lines):
        listed.write_text("".join(some))
        shown = CliRunner().invoke(app, options)
        assert shown.exit_code == 0, shown.output
    assert [line.split(",")[4] for line in results.read_text().splitlines()] == [
        "unsat",
        "sat",
        "error",
    ]
    assert shown.stdout.count(" s  ") == 2  # what the first run answered is not told again
    *_, counted, page = shown.stdout.splitlines()
    assert counted.split() == ["1", "1", "0", "0", "1"]
    told = Path(page.removeprefix("page: ")).read_text()
    assert "((X_0 " in told and "never closed" in told
    before = results.read_text()
    rows = tmp_path / "out.csv.frown" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-9])  # as a kill in the middle of a write leaves it
    written(tmp_path, HEAD + BOX + texts["b"], "a.vnnlib")
    listed.write_text("".join(lines).replace("60", "61"))
    again = CliRunner().invoke(app, options)
    assert again.exit_code == 0, again.output
    told = [line.split() for line in again.stdout.splitlines() if " s  " in line]
    assert [(line[0], line[-1]) for line in told] == [("sat", "a.vnnlib"), ("error", "c.vnnlib")]
    assert results.read_text() != before and results.read_text().startswith(",model.onnx,a.vnnlib,")
    rows.parent.rename(tmp_path / "elsewhere")
    foreign = CliRunner().invoke(app, options)
    assert foreign.exit_code == 2 and "choose another --results" in foreign.stderr
    (tmp_path / "elsewhere").rename(rows.parent)
    listed.write_text(f"{net.name},a.vnnlib,soon\n")
    refused = CliRunner().invoke(app, options)
    assert refused.exit_code == 2 and "line 1" in refused.stderr


def test_other_weights_beside_a_network_are_another_network(net: Path, tmp_path: Path) -> None:
    """No verdict of an earlier run stands for it."""
    query = written(tmp_path, HEAD + BOX + "(assert (<= Y_0 -1))")
    proto, name = onnx.load(net), "weights"
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location=name, size_threshold=0
    )
    one = Instance("m.onnx", query.name, 5.0)
    keys = [_key(tmp_path, one, {})]
    content = bytearray((tmp_path / name).read_bytes())
    content[3] ^= 0x80  # the sign of a weight
    (tmp_path / name).write_bytes(content)
    keys.append(_key(tmp_path, one, {}))
    assert keys[0] != keys[1] == _key(tmp_path, one, {})


def test_capabilities_are_told_one_on_a_line() -> None:
    def told(*names: str) -> list[str]:
        shown = CliRunner().invoke(app, ["supports", *(f"--{name}" for name in names)])
        assert shown.exit_code == 0, shown.output
        return shown.stdout.splitlines()

    for name in CAPABILITIES:
        assert told(name)
    assert told("onnx-opset-versions") == ["8", "20"]
    assert told("onnx-element-types") == ["real"]
    assert told("vnnlib-versions") == ["1.0", "2.1"]
    assert told("multiple-node-comparison-theories", "arithmetic-complexity-theories") == [
        *("SNC", "MNC"),
        *("BND", "OUTC", "LIN"),
    ]
    assert {"Conv", "Gemm", "Relu", "Sigmoid"} <= set(told("onnx-operators"))
    assert CliRunner().invoke(app, ["supports"]).exit_code == 2


def test_the_scripts_of_the_competition_run(net: Path, tmp_path: Path) -> None:
    query = written(tmp_path, HEAD + BOX + "(assert (>= Y_0 0))")
    folder = Path(__file__).resolve().parents[2] / "scripts" / "vnncomp"

    def called(script: str, *arguments: str) -> int:
        command = [str(folder / script), *arguments]
        return subprocess.run(command, env=environment, check=False).returncode

    environment = {**os.environ, "FROWN_PYTHON": sys.executable}
    common = ("v1", "toy", str(net), str(query))
    assert called("prepare_instance.sh", *common) == 0
    assert called("prepare_instance.sh", "v2", *common[1:]) == 1
    assert called("prepare_instance.sh", *common[:3], str(tmp_path / "none")) == 1
    results = tmp_path / "results.txt"
    assert called("run_instance.sh", *common, str(results), "60") == 0
    assert results.read_text().startswith("sat\n((X_0 ")
    query.write_text("(assert")
    assert called("run_instance.sh", *common, str(results), "60") == 0
    assert results.read_text() == "error\n"


HEAD_2 = """(vnnlib-version <2.0>)
(declare-network relu
  (declare-input In real [1,2])
  (declare-output Out real [1,1]))
(assert (and (>= In[0,0] -1.0) (<= In[0,0] 1.0) (>= In[0,1] 0.25) (< In[0,1] 0.5)))
"""


def test_a_witness_of_version_2_has_its_form(net: Path, tmp_path: Path) -> None:
    query = written(tmp_path, HEAD_2 + "(assert (<= In[0,0] Out[0,0]))")
    shown = asked(net, query)
    lines = shown.stdout.splitlines()
    assert (lines[0], lines[1], lines[4], len(lines)) == (
        "sat",
        "In real [1,2]",
        "Out real [1,1]",
        6,
    )
    x0, x1, y0 = (float(lines[k]) for k in (2, 3, 5))
    assert -1 <= x0 <= 1 and 0.25 <= x1 < 0.5 and x0 <= y0
    kept = asked(net, query, "--serialise-assignments", str(tmp_path / "found"))
    assert kept.stdout == "sat\n"
    for name, shape in (("In", (1, 2)), ("Out", (1, 1))):
        proto = onnx.TensorProto.FromString((tmp_path / "found" / f"{name}.pb").read_bytes())
        assert numpy_helper.to_array(proto).shape == shape


def test_version_2_names_its_network_and_its_types(net: Path, tmp_path: Path) -> None:
    text = HEAD_2 + "(assert (<= Out[0,0] -0.5))"
    query = written(tmp_path, text)

    def called(network: str, *options: str) -> Result:
        return CliRunner().invoke(app, ["verify", str(query), "--network", network, *options])

    assert called(f"relu={net}").stdout == "unsat\n"
    other = called(f"other={net}")
    assert other.exit_code == 2 and "network is called relu" in other.stderr
    for element, told in (
        ("float32", "theory FLOAT32"),
        ("float64", "has float32 there"),
        ("int8", "has float32 there"),
    ):
        query.write_text(text.replace("real", element))
        refused = called(str(net))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert told in refused.stderr
    query.write_text(text.replace("real", "float32"))
    assert called(str(net), "--real").stdout == "unsat\n"
    query.write_text(text.replace("real", "float32", 1))
    assert "for all tensors" in called(str(net), "--real").stderr
    query.write_text(text.replace("[1,2]", "[2,2]"))
    assert called(str(net)).exit_code == 2
    query.write_text(text.replace("[1,2]", "[2]").replace("[0,", "["))
    refused = called(str(net))
    assert refused.exit_code == 2 and "Out has 2 axes" in refused.stderr


def test_what_verifying_never_uses_is_not_executed(net: Path, tmp_path: Path) -> None:
    """Modules that take long to import are there by name, and load when they are asked for."""
    query = written(tmp_path, HEAD + BOX + "(assert (<= Y_0 -0.001))")
    code = f"""
import sys
from typer.testing import CliRunner
from frown.cli import app
shown = CliRunner().invoke(app, ["verify", {str(query)!r}, "--network", {str(net)!r}])
assert shown.stdout == "unsat\\n", shown.output
heavy = {{"sympy", "scipy", "torch._decomp", "torch._dynamo"}} & sys.modules.keys()
assert not heavy, heavy
import torch
assert "Normal" not in vars(torch.distributions)
assert float(torch.distributions.Normal(0.0, 1.0).log_prob(torch.zeros(()))) < 0
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_quick_end_of_the_process_is_complete(net: Path, tmp_path: Path) -> None:
    """Exit codes, all output and what is registered for the exit are as they always are."""
    fine = written(tmp_path, HEAD + BOX + "(assert (>= Y_0 0))", "fine.vnnlib")
    bad = written(tmp_path, HEAD + BOX + "(assert (>= Y_0", "bad.vnnlib")
    code = """
import atexit
atexit.register(lambda: print("registered"))
from frown.cli import main
main()
"""
    runs = []
    for query in (fine, bad):
        command = [sys.executable, "-c", code, "verify", str(query), "--network", str(net)]
        runs.append(subprocess.run(command, capture_output=True, text=True, check=False))
    assert [run.returncode for run in runs] == [0, 2]
    first, *_, last = runs[0].stdout.splitlines()
    assert first == "sat" and last == "registered"
    assert runs[1].stdout == "registered\n" and "line" in runs[1].stderr


def test_results_have_the_words_of_the_competition(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed-out, the standard's word, is timeout there; the table and the page say as frown."""
    written(tmp_path, HEAD + BOX + "(assert (<= Y_0 -1))", "a.vnnlib")
    (tmp_path / "instances.csv").write_text(f"{net.name},a.vnnlib,60\n")
    answer = {"verdict": "timed-out"}
    monkeypatch.setattr("frown.jobs.instances._answered", lambda *_: answer)
    options = ["--instances", str(tmp_path / "instances.csv"), "--results", str(tmp_path / "r.csv")]
    shown = CliRunner().invoke(app, ["verify", *options])
    assert shown.exit_code == 0 and shown.stdout.startswith("timed-out")
    assert (tmp_path / "r.csv").read_text().split(",")[4] == "timeout"
    assert ">timed-out<" in (tmp_path / "r.csv.frown" / "index.html").read_text()
