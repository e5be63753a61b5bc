"""Proofs of `unsat`: the independent checker accepts them against the query itself, and nothing
else."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import frown
import frown_check
from check.writer import seal
from frown.cli import app
from frown.errors import InvalidInput, OutputError
from frown_check.cover import parts_of
from onnx_models import model, node, saved, weights

HEAD = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "X_2", "Y_0", "Y_1"))


def box(low: float, high: float) -> str:
    return "(and " + " ".join(f"(>= X_{i} {low}) (<= X_{i} {high})" for i in range(3)) + ")"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 -> 8 relu -> 2."""
    constants = {"w0": weights(3, 8, seed=1), "w1": weights(8, 2, seed=3)}
    nodes = [node("MatMul", "x w0", "h"), node("Relu", "h", "a"), node("MatMul", "a w1", "y")]
    return saved(model(nodes, ["N", 3], constants), tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def limit(net: Path) -> float:
    """A little above what output 0 reaches on [-1, 1]."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 33)] * 3), -1).reshape(-1, 3)
    return round(float(frown.load(net).run(grid)[:, 0].max()) + 0.05, 4)


@pytest.fixture(scope="module")
def text(limit: float) -> str:
    """Two boxes, one with two cases: constraints on inputs and outputs, and on several inputs."""
    first = f"(and {box(-1, 1)} (>= Y_0 {limit}))"
    both = f"(or (>= Y_0 (- {limit + 20} X_1)) (and (<= (+ X_0 X_1) 4.5) (>= Y_1 1e6)))"
    return f"{HEAD}(assert (or {first} (and {box(1.5, 2.5)} {both})))"


@pytest.fixture(scope="module")
def proof(net: Path, text: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("proof")
    (folder / "query.vnnlib").write_text(text)
    verdict = frown.verify(
        net,
        folder / "query.vnnlib",
        certificate=folder / "proof.frown",
        machine=frown.Machine(seconds=60),
    )
    assert (verdict.answer, verdict.level) == ("unsat", "rigorous")
    assert (folder / "proof.frown").read_bytes() == verdict.certificate
    return verdict.certificate


def checked(proof: bytes, net: Path, text: str) -> frown_check.QueryVerdict:
    return frown_check.check_query(proof, net, text.encode())


def joined(parts: list[bytes]) -> bytes:
    sized = (struct.pack("<Q", len(p)) + p for p in parts)
    return b"FROWNQ01" + struct.pack("<I", len(parts)) + b"".join(sized)


def opened(part: bytes) -> tuple[dict[str, Any], bytearray, int]:
    (length,) = struct.unpack_from("<I", part, 8)
    payload = zlib.decompress(part[12 + length + 8 :])
    return json.loads(part[12 : 12 + length]), bytearray(payload), int(part[7:8])


def changed(part: bytes, change: Any) -> bytes:
    """A part with its header and payload as `change` makes them."""
    header, payload, version = opened(part)
    change(header, payload)
    return seal(json.dumps(header).encode(), bytes(payload), version)


def numbers(payload: bytearray, ref: dict[str, Any]) -> np.ndarray:
    count = int(np.prod(ref["shape"]))
    return np.frombuffer(payload, "<f8", count, ref["at"]).reshape(ref["shape"])


def test_the_proof_is_accepted_against_its_query(proof: bytes, net: Path, text: str) -> None:
    found = checked(proof, net, text)
    assert found.accepted, found.reason
    assert found.parts == 2 and found.cases == 3 and found.margin is not None and found.margin > 0
    assert joined(parts_of(proof)) == proof
    assert checked(joined(parts_of(proof)[::-1]), net, text).accepted


def test_other_queries_are_not_proved_by_it(
    proof: bytes, net: Path, text: str, limit: float
) -> None:
    """A wider box, another limit, a further case, a side turned round, a conjunct less."""
    others = {
        "wider": text.replace("(<= X_0 1)", "(<= X_0 1.0000000001)", 1),
        "limit": text.replace(f"(>= Y_0 {limit})", f"(>= Y_0 {limit - 0.0001:.4f})"),
        "case": text.replace("(assert (or", f"(assert (or (and {box(-1, 1)} (>= Y_1 1e9))"),
        "side": text.replace(f"(>= Y_0 {limit})", f"(<= Y_0 {limit})"),
        "output": text.replace(f"(>= Y_0 {limit})", f"(>= Y_1 {limit})"),
        "less": text.replace(f"(>= Y_0 {limit})", ""),
        "input": text.replace("X_1)) (and", "X_0)) (and"),
        "alone": text.replace("(>= Y_1 1e6)", "(>= Y_0 1e6)"),
    }
    for name, other in others.items():
        assert other != text, name
        found = checked(proof, net, other)
        assert not found.accepted and "refuted by no part" in found.reason, name


def test_easier_queries_are_proved_by_it(proof: bytes, net: Path, text: str, limit: float) -> None:
    for easier in (
        text.replace("(<= X_0 1)", "(<= X_0 0.5)", 1),
        text.replace(f"(>= Y_0 {limit})", f"(> Y_0 {limit + 1})"),
        text.replace("(assert (or", f"(assert (or (and {box(2, 1)} (<= Y_0 0))"),
    ):
        assert easier != text
        found = checked(proof, net, easier)
        assert found.accepted, found.reason


def test_a_part_less_is_refused(proof: bytes, net: Path, text: str) -> None:
    parts = parts_of(proof)
    for k in range(len(parts)):
        found = checked(joined(parts[:k] + parts[k + 1 :]), net, text)
        assert not found.accepted and "refuted by no part" in found.reason
    assert not checked(joined([]), net, text).accepted
    assert not checked(joined([parts[0], parts[0]]), net, text).accepted


def test_parts_that_claim_something_else_are_refused(proof: bytes, net: Path, text: str) -> None:
    parts = parts_of(proof)

    def side(name: str, by: float) -> Any:
        def change(header: dict[str, Any], payload: bytearray) -> None:
            ends = numbers(payload, header["region"][name])
            ends.flags.writeable = True
            ends.ravel()[0] += by

        return change

    def flip(name: str) -> Any:
        def change(header: dict[str, Any], payload: bytearray) -> None:
            own = numbers(payload, header["claim"][name])
            own.flags.writeable = True
            own *= -1.0

        return change

    def raised(header: dict[str, Any], payload: bytearray) -> None:
        own = numbers(payload, header["claim"]["const"])
        own.flags.writeable = True
        own += 1e-9

    def scaled(header: dict[str, Any], payload: bytearray) -> None:
        """Numbers as they were, but of a network that is given (x - 0) / 1."""
        at = len(payload)
        payload += np.array([0.0, 1.0]).tobytes()
        refs = ({"dtype": "f8", "shape": [], "at": at + 8 * k} for k in range(2))
        header["normalisation"] = dict(zip(("mean", "std"), refs, strict=True))

    def without_inputs(header: dict[str, Any], payload: bytearray) -> None:
        del header["claim"]["inputs"]

    changes = [side("upper", -1e-9), side("lower", 1e-9), flip("coef"), raised, scaled]
    for k in range(len(parts)):
        extra = [flip("inputs"), without_inputs] if numbers_of_inputs(parts[k]).any() else []
        for change in (*changes, *extra):
            lying = [*parts[:k], changed(parts[k], change), *parts[k + 1 :]]
            found = checked(joined(lying), net, text)
            assert not found.accepted and found.reason, change


def numbers_of_inputs(part: bytes) -> np.ndarray:
    header, payload, _ = opened(part)
    return numbers(payload, header["claim"]["inputs"])


def test_damaged_files_are_refused(proof: bytes, net: Path, text: str) -> None:
    for bad, reason in (
        (proof[:-1], "cut off"),
        (proof + b"x", "follows"),
        (proof[:9], "cut off"),
        (b"FROWNQ02" + proof[8:], "not a proof"),
        (parts_of(proof)[0], "not a proof"),
        (b"", "not a proof"),
    ):
        found = checked(bad, net, text)
        assert not found.accepted and reason in found.reason
    alone = frown_check.check(proof, net)
    assert not alone.accepted and "--query" in alone.reason


def test_another_model_is_refused(proof: bytes, net: Path, text: str, tmp_path: Path) -> None:
    constants = {"w0": weights(3, 8, seed=1), "w1": weights(8, 2, seed=4)}
    nodes = [node("MatMul", "x w0", "h"), node("Relu", "h", "a"), node("MatMul", "a w1", "y")]
    other = saved(model(nodes, ["N", 3], constants), tmp_path)
    assert not checked(proof, other, text).accepted


def test_the_level_checked_is_the_checkers_word(
    net: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.problem.vnnlib import parse_vnnlib

    query, machine = parse_vnnlib(text), frown.Machine(seconds=60)
    verdict = frown.verify(net, query, level="checked", machine=machine)
    assert (verdict.answer, verdict.level) == ("unsat", "checked")
    refusal = frown_check.QueryVerdict(False, "no reason")
    monkeypatch.setattr(frown_check, "check_query", lambda *_: refusal)
    verdict = frown.verify(net, query, level="checked", machine=machine)
    assert verdict.answer == "unknown" and not verdict.certificate
    assert "the checker refused the proof of unsat: no reason" in verdict.remarks
    with pytest.raises(InvalidInput, match="level must be"):
        frown.verify(net, query, level="estimate")


def test_trees_of_cuts_are_in_the_proof(net: Path, limit: float, tmp_path: Path) -> None:
    """Close to the truth, where one pass does not do; the checker accepts every case."""
    query = tmp_path / "query.vnnlib"
    query.write_text(f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_0 {limit - 0.045:.4f}))")
    verdict = frown.verify(
        net, query, certificate=tmp_path / "proof", machine=frown.Machine(seconds=60)
    )
    assert verdict.answer == "unsat"
    found = frown_check.check_query(tmp_path / "proof", net, query)
    assert found.accepted and found.leaves > 1, found


def test_the_command_line_writes_and_checks_proofs(net: Path, text: str, tmp_path: Path) -> None:
    query, out = tmp_path / "query.vnnlib", tmp_path / "proof.frown"
    query.write_text(text)
    run = CliRunner().invoke
    options = ["--network", str(net), "--certificate", str(out), "--level", "checked"]
    shown = run(app, ["verify", str(query), *options])
    assert shown.stdout == "unsat\n", shown.stderr
    assert "checked" in shown.stderr
    check = ["check", str(out), "--model", str(net)]
    accepted = run(app, [*check, "--query", str(query)])
    assert accepted.exit_code == 0, accepted.output
    assert "accepted: no input satisfies the query" in accepted.stdout
    assert "3, all refuted by 2 parts" in accepted.stdout
    told = json.loads(run(app, [*check, "--query", str(query), "--json"]).stdout)
    assert told["accepted"] and told["cases"] == 3
    refused = run(app, check)
    assert refused.exit_code == 1 and "--query" in refused.stdout
    query.write_text(text.replace("1.5", "1.4", 1))
    refused = run(app, [*check, "--query", str(query)])
    assert refused.exit_code == 1 and "REFUSED: case" in refused.stdout
    query.write_text(text.replace("(>= Y_1 1e6)", "(<= Y_1 1e6)"))
    out.unlink()
    sat = run(app, ["verify", str(query), *options])
    assert sat.stdout.startswith("sat\n") and not out.exists()
    lost = ["verify", str(query), "--network", str(net), "--certificate", "/dev/null/none"]
    assert run(app, lost).exit_code == 6


def test_a_proof_that_cannot_be_written_is_said_before_any_work(net: Path, tmp_path: Path) -> None:
    from frown.problem.vnnlib import parse_vnnlib

    (tmp_path / "file").write_text("")
    query = parse_vnnlib(f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_0 1e9))")
    with pytest.raises(OutputError):
        frown.verify(net, query, certificate=tmp_path / "file" / "proof")
