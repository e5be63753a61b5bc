"""Tampered certificates are refused; a larger number is tried by tests/tampering_campaign.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

import frown_check
from check.writer import Draft
from tamper.bases import KINDS, Base, Kind, bases
from tamper.lies import LIES
from tamper.statement import Statement, claimed, opened, stated
from tamper.trial import attempt, proved

SOME: tuple[Kind, ...] = tuple(
    k
    for k in KINDS
    if (k.network, k.norm) in {("relu", 2.0), ("tanh", 2.0), ("convolutional", 1.0)}
)
TRIALS = 120


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return list(bases(tmp_path_factory.mktemp("valid"), 0, SOME))


def test_no_tampered_certificate_is_accepted(valid: list[Base], tmp_path: Path) -> None:
    found = [attempt(valid, tmp_path, [7, trial]) for trial in range(TRIALS)]
    assert not [(o.what, o.verdict) for o in found if o.failed]
    kinds = Counter(o.kind for o in found)
    assert kinds["lie"] > TRIALS / 3 and kinds["model"] > 3 and kinds["noise"] > TRIALS / 10
    # Not all are stopped at the door: many false claims get as far as their margins.
    assert sum("is not proved" in o.reason for o in found) > TRIALS / 5


@pytest.mark.parametrize("name", LIES)
def test_every_lie_is_refuted_by_a_point_of_its_region(name: str, valid: list[Base]) -> None:
    told = 0
    for base in valid:
        for seed in range(6):
            lie = LIES[name](base, opened(base.content), np.random.default_rng(seed))
            if lie is None:
                continue
            content = lie.draft.file()
            assert stated(content) != base.statement
            told += 1
    assert told, f"no certificate can tell the lie {name}"


def test_truth_is_not_refuted_and_frown_proves_it_too(valid: list[Base]) -> None:
    for base in valid:
        s = base.statement
        assert not base.refuted(s)
        assert proved(base, s, base.loaded, base.session)
        assert base.refuted(replace(s, radius=s.radius * 1e3, lower=s.lower * inf))


def test_a_checker_that_believes_everything_is_caught(
    valid: list[Base], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = frown_check.check

    def gullible(content: bytes, model: Path) -> frown_check.Verdict:
        verdict = honest(content, model)
        return replace(verdict, accepted=verdict.claim is not None)

    monkeypatch.setattr(frown_check, "check", gullible)
    found = [attempt(valid, tmp_path, [7, t]) for t in range(40)]
    certain = [o for o in found if o.kind == "model" or "is not proved" in o.reason]
    assert len(certain) > 3 and all(o.failed for o in certain)
    assert sum(o.failed for o in found if o.kind == "lie") > 10


# -- statements -------------------------------------------------------------------------------


def test_claims_are_what_the_file_says(valid: list[Base]) -> None:
    for base in valid:
        claim = frown_check.check(base.content, base.path).claim
        assert claim is not None
        assert claimed(claim) == base.statement


def test_implied_statements() -> None:
    one = np.ones(3)
    s = Statement("a", 0, (1, 2), 2.0, 0.5, one, one, 0 * one, -inf * one, inf * one, 0 * one, one)
    assert s.implied_by(s)
    for weaker in (
        replace(s, radius=0.4),
        replace(s, others=(2,)),
        replace(s, p=1.0),
        replace(s, scale=one * [1, 0.5, 0]),
        replace(s, lower=0 * one),
    ):
        assert weaker.implied_by(s) and not s.implied_by(weaker)
    for other in (
        replace(s, digest="b"),
        replace(s, label=1, others=(0,)),
        replace(s, p=inf),
        replace(s, ball=np.arange(3.0)),
        replace(s, centre=2 * one),
        replace(s, std=2 * one),
    ):
        assert not other.implied_by(s)


def test_a_statement_contains_its_boundary_and_no_more() -> None:
    zero, one = np.zeros(2), np.ones(2)
    s = Statement("a", 0, (1,), 2.0, 5.0, zero, one, zero, -inf * one, inf * one, zero, one)
    assert s.contains(np.array([3.0, 4.0])) and not s.contains(np.array([3.0, 4.0000000001]))
    assert not replace(s, scale=np.array([1.0, 0.0])).contains(np.array([3.0, 4.0]))
    assert not replace(s, upper=one).contains(np.array([3.0, 4.0]))
    assert replace(s, ball=np.array([0, 1])).contains(np.array([5.0, 5.0]))


def _changed(base: Base, change: str) -> Draft:
    found = opened(base.content)
    region, centre = found.header["region"], base.statement.centre
    match change:
        case "centre":
            region["centre"] = found.payload.put(centre + 1e-9)
        case "scale":
            region["scale"] = found.payload.put(np.full(centre.shape, 0.5))
        case "ball":
            numbers = np.arange(centre.size).reshape(centre.shape)
            region["ball"] = found.payload.put(numbers, "i4")
        case "range":
            region["lower"] = found.payload.put(centre - 1e-9)
            region["upper"] = found.payload.put(centre + 1e-9)
        case "normalisation":
            ones = np.ones(centre.shape)
            mean = {"mean": found.payload.put(0 * ones), "std": found.payload.put(ones * 1.5)}
            found.header["normalisation"] = mean
        case "radius":
            region["radius"] = (1e-9).hex()
        case "others":
            found.header["claim"]["others"] = [3 - base.statement.label - base.statement.others[0]]
    return found


@pytest.mark.parametrize(
    "change", ["centre", "scale", "ball", "range", "normalisation", "radius", "others"]
)
def test_other_statements_have_other_digests(change: str, valid: list[Base]) -> None:
    """A certificate of something easier shows: its digest is not the one expected."""
    base = next(b for b in valid if b.kind.targeted and b.kind.network == "relu")
    old = frown_check.check(base.content, base.path).claim
    new = frown_check.check(_changed(base, change).file(), base.path).claim
    assert old is not None and new is not None
    assert new.statement != old.statement
    assert (new.input != old.input) == (change == "centre")
