"""Proofs by contradiction in certificates: what is assumed at a case proves nothing beyond it.

Trees that branching has grown assume, case by case, that a literal of their clause fails. Files are
spoilt here field by field; whatever is done to one, no false claim is accepted.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frown_check
from certification.trees import Case, at_points, beside_false_clauses, grown_case, replayed
from frown_check.container import MOST_PAYLOAD, _parts
from frown_check.replay import Cases, Replay

KINDS = ("tanh", "relu")


@dataclass
class File:
    """A certificate, to be changed."""

    header: dict[str, Any]
    payload: bytearray

    @classmethod
    def of(cls, content: bytes) -> File:
        _, header, payload = _parts(content, MOST_PAYLOAD)
        return cls(header, bytearray(payload))

    def array(self, ref: dict[str, Any]) -> np.ndarray:
        count = int(np.prod(ref["shape"]))
        kind = np.dtype(f"<{ref['dtype']}")
        return np.frombuffer(bytes(self.payload), kind, count, ref["at"]).reshape(ref["shape"])

    def put(self, ref: dict[str, Any], values: np.ndarray) -> None:
        """Give a reference other numbers, of its type."""
        self.payload += b"\0" * (-len(self.payload) % 8)
        ref["at"], ref["shape"] = len(self.payload), list(values.shape)
        self.payload += values.astype(f"<{ref['dtype']}").tobytes()

    def bytes(self) -> bytes:
        text = json.dumps(self.header).encode()
        sizes = struct.pack("<I", len(text)), struct.pack("<Q", len(self.payload))
        return b"FROWNC02" + sizes[0] + text + sizes[1] + zlib.compress(bytes(self.payload))

    def copy(self) -> File:
        return File(deepcopy(self.header), bytearray(self.payload))

    @property
    def assumptions(self) -> Iterator[dict[str, Any]]:
        for tree in self.header["trees"]:
            yield from (steps[0] for steps in tree["passes"] if steps and "literal" in steps[0])

    @property
    def passes(self) -> Iterator[list[dict[str, Any]]]:
        for tree in self.header["trees"]:
            yield from tree["passes"]

    @property
    def factors(self) -> Iterator[dict[str, Any]]:
        for tree in self.header["trees"]:
            yield tree["factors"]
            yield from (s["factors"] for steps in tree["passes"] for s in steps if "factors" in s)


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, File]]:
    """Accepted certificates with trees; where there are such, with ends of boxes assumed."""
    found = []
    for name in KINDS:
        mine: list[tuple[Case, File]] = []
        for seed in range(8):
            case = grown_case(name, 70 + seed, tmp_path_factory.mktemp("net"))
            if case is None:
                continue
            done = replayed(case)
            if bool((done.margins > 0).all()):
                assert frown_check.check(done.file(), case.path).accepted
                mine.append((case, File.of(done.file())))
                if any("end" in step for steps in mine[-1][1].passes for step in steps):
                    break
        assert mine
        found += [mine[0], *mine[1:][-1:]]
    return found


def refused(case: Case, file: File) -> str:
    """Why a file is not accepted; empty: it is."""
    verdict = frown_check.check(file.bytes(), case.path)
    assert "cannot follow" not in verdict.reason
    return "" if verdict.accepted else verdict.reason


def false_radius(case: Case) -> float:
    """A radius within which some point has another class."""
    for factor in (1.5, 2.0, 4.0, 8.0, 16.0, 64.0):
        wider = replace(case, radius=case.radius * factor)
        if min(at_points(wider, 40)) < -1e-6:
            return wider.radius
    pytest.fail("no counterexample was met")


def test_margins_do_not_exceed_the_level(proofs: list[tuple[Case, File]]) -> None:
    for case, file in proofs:
        levels = [float.fromhex(tree["level"]) for tree in file.header["trees"]]
        verdict = frown_check.check(file.bytes(), case.path)
        assert verdict.margin is not None and 0 < verdict.margin <= min(levels)
        assert any(True for _ in file.assumptions) and any(True for _ in file.factors)
        # Claims about larger margins are not made by larger levels alone.
        other = file.copy()
        for tree in other.header["trees"]:
            tree["level"] = (1e6).hex()
        least = frown_check.check(other.bytes(), case.path).margin
        assert least is None or least <= min(at_points(case, 12))


def test_what_makes_no_sense_is_refused(proofs: list[tuple[Case, File]]) -> None:
    case, file = proofs[0]

    def spoilt(change: Any) -> str:
        other = file.copy()
        change(other)
        return refused(case, other)

    def level(text: Any) -> Any:
        return lambda f: f.header["trees"][0].update(level=text)

    def numbers(value: float) -> Any:
        def change(f: File) -> None:
            ref = max(f.factors, key=lambda r: r["shape"][0])
            f.put(ref, np.full(ref["shape"], value))

        return change

    assert "positive" in spoilt(level((0.0).hex())) and "positive" in spoilt(level((-1.0).hex()))
    assert spoilt(level("inf")) and spoilt(level("nan")) and spoilt(level(None))
    assert "factors" in spoilt(numbers(-1.0)) and spoilt(numbers(np.inf))
    assert "factors" in spoilt(numbers(np.nan))

    def levelless(f: File) -> None:
        for name in ("level", "factors"):
            del f.header["trees"][0][name]

    assert "level" in spoilt(levelless)

    def unassumed(f: File) -> None:
        for steps in f.header["trees"][0]["passes"]:
            if steps and "literal" in steps[0]:
                del steps[0]

    assert "factors of nothing" in spoilt(unassumed)

    def too_many(f: File) -> None:
        ref = next(r for r in f.factors if len(r["shape"]) == 2)
        f.put(ref, np.ones((ref["shape"][0], ref["shape"][1] + 1)))

    assert "each assumption" in spoilt(too_many)

    def at_the_root(f: File) -> None:
        f.header["steps"].insert(0, next(f.assumptions))

    assert spoilt(at_the_root)

    def out_of_range(f: File) -> None:
        next(f.assumptions)["literal"] = 99

    assert "literal" in spoilt(out_of_range)


def test_a_tree_is_about_one_clause(proofs: list[tuple[Case, File]]) -> None:
    """A failing clause says nothing of another; its own tree alone proves it."""
    tried = 0
    for case, file in proofs:
        if case.model.classes < 3:
            continue
        other = file.copy()
        first = next(other.assumptions)
        first["literal"] = (first["literal"] + 1) % (case.model.classes - 1)
        single = (
            len(list(other.assumptions)) == 1
            and not file.array(file.header["trees"][0]["literal"]).size
        )
        assert ("not proved" if single else "one clause") in refused(case, other)
        for k in range(len(file.header["trees"])):
            other = file.copy()
            del other.header["trees"][k]
            assert "not proved" in refused(case, other)
            tried += 1
    assert tried


@pytest.mark.parametrize("name", KINDS)
def test_a_contradiction_proves_no_other_clause(name: str, tmp_path: Path) -> None:
    """Contradictions in the tree of a clause tell nothing of other clauses."""
    closed = 0
    for seed in range(201, 209):
        case = grown_case(name, seed, tmp_path / str(seed))
        for clause, margins in [] if case is None else beside_false_clauses(case):
            closed += margins.pop(clause) > 0
            assert all(margin <= 0 for margin in margins)
    assert closed


def test_ends_of_boxes_that_are_assumed_make_sense(proofs: list[tuple[Case, File]]) -> None:
    """Rows below entries are about entries that are there, and other ones prove nothing false."""
    tried = 0
    for case, file in proofs:
        for name, value in (("site", 99), ("neuron", 10**6), ("end", 2), ("end", -1)):
            other = file.copy()
            ends = [s for steps in other.passes for s in steps if "end" in s]
            if not ends:
                continue
            ends[0][name] = value
            assert "assumption" in refused(case, other)
            tried += 1
        other = file.copy()
        other.header["region"]["radius"] = float(false_radius(case)).hex()
        for step in (s for steps in other.passes for s in steps if "end" in s):
            step["end"] = 1 - step["end"]
        assert refused(case, other)
    assert tried


def test_no_false_claim_is_accepted(proofs: list[tuple[Case, File]]) -> None:
    """At a radius with a counterexample, with numbers of what is assumed drawn anew."""
    rng = np.random.default_rng(5)
    for case, file in proofs:
        radius = false_radius(case)
        for trial in range(12):
            other = file.copy()
            other.header["region"]["radius"] = float(radius).hex()
            for tree in other.header["trees"]:
                if trial % 3 == 1:
                    tree["level"] = float(10.0 ** rng.uniform(-300, 300)).hex()
            for ref in list(other.factors):
                drawn = 10.0 ** rng.uniform(-6, 6, ref["shape"])
                if trial % 2:
                    drawn = other.array(ref) * 10.0 ** rng.uniform(-1, 1)
                other.put(ref, np.where(rng.random(ref["shape"]) < 0.1, 0.0, drawn))
            assert refused(case, other), trial


def test_a_checker_that_forgets_the_level_is_caught(
    proofs: list[tuple[Case, File]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planes without their constants: what the trials are for is noticed by them."""
    honest = Replay._assume

    def nearer(self: Replay, cases: Cases, *given: Any) -> None:
        honest(self, cases, *given)
        assert cases.plane is not None
        c, d = cases.plane
        cases.plane = c, d + 1e9
        for planes in cases.planes.values():
            planes[:] = [plane and (plane[0], plane[1] + 1e9) for plane in planes]

    monkeypatch.setattr(Replay, "_assume", nearer)
    lies = []
    for case, file in proofs:
        other = file.copy()
        other.header["region"]["radius"] = float(false_radius(case)).hex()
        for ref in list(other.factors):
            other.put(ref, np.ones(ref["shape"]))
        lies.append(refused(case, other))
    assert "" in lies
