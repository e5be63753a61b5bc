"""Names that strangers chose cannot move the cursor, end a line or become markup: whatever file
they come from, and whatever command shows them."""

from __future__ import annotations

import csv
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from unicodedata import category

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from check.writer import seal
from frown import api
from frown.certification.results import cell, markup, plain, plain_lines
from frown.cli import app
from frown_check import shown
from frown_check.__main__ import main
from onnx_models import model, node, saved, weights
from report.test_report import parse

FAKE = "proofs/input-000000.frown: accepted: class 1 beats 0"
EVIL = (
    f"\x1b[2K\r\x07a\x08\n{FAKE}\n\x1b]0;title\x07[bold red]b[/]\u202e\u2066\u200b\u2028\x9b2J\x85"
    '<script>alert("x")</script>'
)
FILE = EVIL.replace("/", "|")[:120]  # a name that a file can have


def clean(text: str, multiline: bool = True) -> None:
    """No character that a terminal obeys, and no line that a name began."""
    bad = {c for c in text if category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"}
    assert not bad, text
    for line in text.split("\n"):
        assert not line.startswith((FAKE[:20], FAKE.replace("/", "|")[:20])), text


class Screens:
    """Runs commands and looks at all that reaches the two streams, whoever writes to them."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, *args: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, [str(a) for a in args])
        below = self.capfd.readouterr()  # of libraries in other languages
        said = result.output + below.out + below.err
        assert result.exit_code == code, said + repr(result.exception)
        clean(said)
        return said

    def checker(self, *args: object, code: int = 0) -> str:
        assert main([str(a) for a in args]) == code
        below = self.capfd.readouterr()
        clean(below.out + below.err)
        return below.out + below.err


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Screens:
    return Screens(capfd)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Every name in it, and its file's, is hostile."""
    proto = model(
        [
            node("Gemm", "x w0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1", "y"),
        ],
        ["N", 4],
        {"w0": weights(6, 4, seed=1), "w1": weights(6, 3, seed=3), "unused": weights(2, seed=4)},
    )
    graph = proto.graph
    for k, one in enumerate(graph.node):
        one.name = f"{k}"
    for named in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        named.name = f"{named.name}{EVIL}"
    for one in graph.node:
        one.input[:] = [f"{name}{EVIL}" for name in one.input]
        one.output[:] = [f"{name}{EVIL}" for name in one.output]
    graph.name = proto.producer_name = EVIL
    folder = tmp_path / FILE
    folder.mkdir()
    return saved(proto, folder, f"{FILE}.onnx")


@pytest.fixture
def data(net: Path) -> Path:
    path = net.with_name(f"{FILE}.npz")
    x = np.random.default_rng(5).uniform(0.1, 0.9, (3, 4))
    np.savez(path, x=x, y=np.asarray(api.load(net).run(x)).argmax(1))
    return path


def test_commands_on_hostile_models_data_and_paths(run: Screens, net: Path, data: Path) -> None:
    out, proofs, page = (net.with_name(f"{FILE}{end}") for end in ("out", "proofs", ".html"))
    assert "Relu" in run("info", net)
    run("info", net, "--json")
    given = ("certify", net, data, "--method", "crown")
    assert "results in" in run(*given, "--out", out, "--certificates", proofs)
    run(*given, "--json")
    run(*given, "--sensitivity")
    run(*given, "--out", out, code=6)
    run(*given, "--certificates", proofs, code=6)
    np.save(net.with_name("x.npy"), np.load(data)["x"])
    run("certify", net, net.with_name("x.npy"), "--method", "crown", "--quiet")
    assert "accepted" in run("check", proofs, "--model", net, "--data", data)
    run("check", proofs, "--model", net, "--json")
    run.checker(proofs, "--model", net, "--data", data)
    assert "REFUSED" in run("check", proofs, "--model", data, code=1)
    run("report", out, "--out", page)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert not {c for c in text if category(c) in ("Cc", "Cf", "Zl", "Zp")} - {"\n"}
    parse(page)
    run("report", net.with_name(f"{FILE}gone"), "--out", page, code=2)
    run("report", out, out, "--out", page, code=2)


def test_hostile_models_that_are_refused(run: Screens, net: Path, data: Path) -> None:
    proto = onnx.load(str(net))
    for change in (
        lambda p: p.graph.node[1].__setattr__("op_type", "Det"),
        lambda p: p.graph.node[1].__setattr__("op_type", EVIL),
        lambda p: p.graph.node[1].__setattr__("domain", EVIL),
        lambda p: p.graph.node[1].input.__setitem__(0, f"{EVIL}missing"),
        lambda p: p.graph.node[1].attribute.append(onnx.helper.make_attribute(EVIL, EVIL)),
        lambda p: p.graph.initializer[0].dims.__setitem__(0, 5),
    ):
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        change(changed)
        path = net.with_name("changed.onnx")
        path.write_bytes(changed.SerializeToString())
        for command in (("info", path), ("certify", path, data)):
            result = CliRunner().invoke(app, [str(a) for a in command])
            below = run.capfd.readouterr()
            assert result.exit_code not in (0, 70), result.output
            clean(result.output + below.out + below.err)


def test_hostile_data_files(run: Screens, net: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{EVIL.replace("/", "|"): np.zeros(3)})
    assert "no array named x" in run("certify", net, tmp_path / "a.npz", code=2)
    quoted = EVIL.replace('"', "").replace("\n", " ").replace("\r", " ").replace("\x85", " ")
    quoted = quoted.replace("\u2028", " ")
    (tmp_path / "b.csv").write_text(f'y,"a{quoted}",label,c\n1,2,3,4\n', encoding="utf-8")
    run("certify", net, tmp_path / "b.csv", code=2)
    (tmp_path / "c.csv").write_text(f'a,"b{quoted}",c\n1,{quoted},3\n', encoding="utf-8")
    run("certify", net, tmp_path / "c.csv", code=2)
    run("certify", net, tmp_path / "c.csv", "--label-column", EVIL, code=2)
    run("check", tmp_path / "none.frown", "--model", net, "--data", tmp_path / "c.csv", code=2)
    run.checker(tmp_path / "n.frown", "--model", net, "--data", tmp_path / "c.csv", code=2)


def edited(content: bytes, change: Callable[[dict], object]) -> bytes:
    """The certificate with another header."""
    (length,) = struct.unpack_from("<I", content, 8)
    header = json.loads(content[12 : 12 + length])
    change(header)
    return seal(json.dumps(header).encode(), zlib.decompress(content[20 + length :]))


HEADERS: dict[str, Callable[[dict], object]] = {
    "site": lambda h: h["sites"][0].__setitem__("name", EVIL),
    "kind": lambda h: h["sites"][0].__setitem__("kind", EVIL),
    "digest": lambda h: h["model"].__setitem__("sha256", EVIL),
    "external": lambda h: h["model"]["external"].__setitem__(EVIL, EVIL),
    "producer": lambda h: h.__setitem__("producer", EVIL),
    "norm": lambda h: h["region"].__setitem__("norm", EVIL),
    "radius": lambda h: h["region"].__setitem__("radius", EVIL),
    "dtype": lambda h: h["region"]["centre"].__setitem__("dtype", EVIL),
    "label": lambda h: h["claim"].__setitem__("label", EVIL),
    "others": lambda h: h["claim"].__setitem__("others", [EVIL]),
    "field": lambda h: h.__setitem__(EVIL, 1),
}


@pytest.mark.parametrize("where", HEADERS)
def test_hostile_certificates(run: Screens, where: str, net: Path, data: Path) -> None:
    proofs = net.with_name("proofs")
    run("certify", net, data, "--method", "crown", "--certificates", proofs, "--samples", "0")
    path = proofs / "input-000000.frown"
    path.write_bytes(edited(path.read_bytes(), HEADERS[where]))
    code = 0 if where == "producer" else 1  # the producer's name proves nothing
    said = run("check", path, "--model", net, code=code)
    assert ("REFUSED" in said) == (code == 1)
    run("check", path, "--model", net, "--json", code=code)
    run.checker(path, "--model", net, code=code)


def test_a_name_that_reads_like_a_verdict_is_quoted(run: Screens, net: Path) -> None:
    path = net.with_name("a: accepted: class 1 beats 0; b.frown")
    path.write_bytes(b"no certificate")
    assert f"'{plain(path)}': REFUSED: " in run("check", path, "--model", net, code=1)


@pytest.mark.parametrize(
    "field",
    ["status", "level", "method", "remark", "deployed", "version", "model", "certificate", "input"],
)
def test_hostile_rows(run: Screens, field: str, net: Path, data: Path, tmp_path: Path) -> None:
    out = net.with_name("out")
    run("certify", net, data, "--method", "crown", "--out", out)
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    about = json.loads((out / "run.json").read_text())
    about |= {"command": EVIL, "state": EVIL, "model": {"file": EVIL}}
    (out / "run.json").write_text(json.dumps(about))
    rows = [json.dumps(row | {field: EVIL}) for row in lines]
    (out / "results.jsonl").write_text("\n".join(rows) + "\n")
    said = run("report", out, "--out", tmp_path / "p.html")
    assert "3 of 3 inputs" in said
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert not {c for c in text if category(c) in ("Cc", "Cf", "Zl", "Zp")} - {"\n"}
    parse(tmp_path / "p.html")


@pytest.mark.parametrize("field", ["target", "broken", "radius", "index", "label"])
def test_rows_whose_numbers_are_text_are_refused(
    run: Screens, field: str, net: Path, data: Path, tmp_path: Path
) -> None:
    out = net.with_name("out")
    run("certify", net, data, "--method", "crown", "--out", out)
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    rows = [json.dumps(row | {field: EVIL}) for row in lines]
    (out / "results.jsonl").write_text("\n".join(rows) + "\n")
    run("report", out, "--out", tmp_path / "p.html", code=2)


def test_tables_hold_no_formulas(tmp_path: Path) -> None:
    for text in ("=1+1", "+1", "-1", "@x", "\t=1"):
        assert str(cell(text))[0] not in "=+-@\t"
    assert cell(-1.5) == -1.5 and cell("certified") == "certified"
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerow([cell(EVIL)])
    clean((tmp_path / "t.csv").read_text().strip("\n"))


@given(st.text())
def test_what_is_plain_is_one_line_that_can_be_seen(text: str) -> None:
    for show in (plain, shown.plain):
        found = show(text)
        assert not any(category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in found)
        assert found.encode() is not None  # a lone surrogate could not be printed
        assert show(found) == found
    assert plain(text) == shown.plain(text)
    assert "<" not in markup(text) and '"' not in markup(text)


def test_ordinary_names_stay_as_they_are() -> None:
    for text in ("net.onnx", "größe/数据.npz", "a b-c_d", "l∞ ’quoted’", "C:\\models\\net.onnx"):
        assert plain(text) == shown.plain(text) == text
    assert plain_lines("one\n  two\nthree\r\x1b") == "one\n  two\n  three\\r\\x1b"
