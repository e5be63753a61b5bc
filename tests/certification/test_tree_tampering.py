"""False claims are refused however good their tree is, and however it is spoilt; a larger number
is tried by tests/tampering_campaign.py."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frown_check
import frown_check.replay as replaying
from check.test_trees import differences
from check.trees import enumerated, plant, preorder, small_relu
from check.writer import draft
from frown_check.deviations import Deviation
from frown_check.tree import Shape
from tamper.contradictions import BENT, BY_CONTRADICTION, Change, near_bases
from tamper.trees import OF_TREES, Base, spoilt, summary, tree_bases

TRIALS = 240


@pytest.fixture(scope="module")
def false(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return tree_bases(tmp_path_factory.mktemp("false"), 0, 8)


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return near_bases(tmp_path_factory.mktemp("near"), 0, 4)


def tried(bases: list[Base], trials: int) -> list[tuple[str, str, bool]]:
    found = []
    for trial in range(trials):
        rng = np.random.default_rng([11, trial])
        outcome = spoilt(bases[trial % len(bases)], rng)
        found.append((outcome.what, outcome.reason, not outcome.reason))
    return found


def test_no_false_claim_is_accepted_whatever_its_tree(false: list[Base]) -> None:
    found = tried(false, TRIALS)
    assert not [what for what, _, accepted in found if accepted]
    assert not [reason for _, reason, _ in found if "cannot follow" in reason]
    # Not all are stopped at the door.
    assert summary(reason for _, reason, _ in found)["margins"] > TRIALS / 3


def test_no_false_claim_is_accepted_whatever_it_assumes_or_bends(near: list[Base]) -> None:
    found = tried(near, TRIALS)
    assert not [what for what, _, accepted in found if accepted]
    assert not [reason for _, reason, _ in found if "cannot follow" in reason]
    assert summary(reason for _, reason, _ in found)["margins"] > TRIALS / 3


def test_checkers_that_assume_too_much_or_bend_for_nothing_are_caught(
    near: list[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halfspaces beyond what was proved of them, or deviations of 0."""
    honest = replaying.Replay._assume

    def nearer(self: replaying.Replay, cases: replaying.Cases, *given: Any) -> None:
        honest(self, cases, *given)
        assert cases.plane is not None
        cases.plane = cases.plane[0], cases.plane[1] + 1e9
        for planes in cases.planes.values():
            planes[:] = [plane and (plane[0], plane[1] + 1e9) for plane in planes]

    with monkeypatch.context() as patch:
        patch.setattr(replaying.Replay, "_assume", nearer)
        assert any(accepted for _, _, accepted in tried(near[:3], 60))
    monkeypatch.setattr(Deviation, "most", lambda self, weight: np.zeros(len(weight)))
    assert any(accepted for _, _, accepted in tried(near[3:], 40))


@pytest.mark.parametrize("changes", [BY_CONTRADICTION, BENT], ids=["assumed", "bent"])
def test_every_change_changes_some_file(changes: dict[str, Change], near: list[Base]) -> None:
    bases = [base for base in near if base.changes is changes]
    for change in changes.values():
        rng, different = np.random.default_rng(2), 0
        for base in bases * 8:
            cert = base.make(np.random.default_rng(1))
            before = cert.file()
            with suppress(ValueError, IndexError):
                change(cert, rng)
            different += cert.file() != before
        assert different, change.__name__


@pytest.mark.parametrize("name", OF_TREES)
def test_every_change_changes_some_tree(name: str, false: list[Base]) -> None:
    changed = 0
    for base in false:
        if base.tree is not None:
            before = deepcopy(base.tree)
            after = OF_TREES[name](deepcopy(base.tree), np.random.default_rng(1))
            changed += repr(after) != repr(before)
    assert changed


def test_a_checker_that_forgets_leaves_is_caught(
    false: list[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves without rows left out: what the trials are for is noticed by them."""

    def forgetful(self: Shape, margins: np.ndarray, empty: np.ndarray) -> np.ndarray:
        known = np.where(empty[:, None] | np.isneginf(margins), np.inf, margins)
        least: np.ndarray = known[self.leaves].min(0)
        return least

    small = [base for base in false if base.tree is not None and len(preorder(base.tree)) < 20]
    told = []
    for base in small:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            spoiled = OF_TREES["emptied"](deepcopy(base.tree), rng)  # type: ignore[arg-type]
            told.append((plant(base.make(rng), spoiled, dtype="f8").file(), base.net.path))
    assert not any(frown_check.check(*lie).accepted for lie in told)
    monkeypatch.setattr(Shape, "least", forgetful)
    assert any(frown_check.check(*lie).accepted for lie in told)


def test_a_checker_with_free_multipliers_is_caught(
    false: list[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices left out."""
    honest = replaying._dense

    def free(rows: object, chunk: object, slots: object) -> np.ndarray | None:
        m = honest(rows, chunk, slots)  # type: ignore[arg-type]
        return m if m is None else m.view(Free)

    class Free(np.ndarray):
        """m, whose products cost nothing."""

        def __mul__(self, other: object) -> np.ndarray:
            return np.zeros(np.broadcast_shapes(self.shape, np.shape(other)))

    monkeypatch.setattr(replaying, "_dense", free)
    assert any(accepted for _, _, accepted in tried(false, 120))


def test_the_same_trees_prove_what_is_true(tmp_path: Path) -> None:
    """A little inside the exact radius, the tree of the programs there is accepted."""
    rng = np.random.default_rng(3)
    accepted = 0
    for k in range(6):
        net, layers = small_relu(tmp_path, rng, 3, 3, 3, 3)
        x = rng.normal(size=3) * 0.5
        label = int(net.outputs(x[None])[0].argmax())
        others, coef = differences(label, 3)
        for radius in (0.1, 0.2, 0.4, 0.8):
            found = enumerated(layers, x - radius, x + radius, coef)
            cert = plant(
                draft(net.path, net.sites, x, radius, label, others), found.tree, dtype="f8"
            )
            verdict = frown_check.check(cert.file(), net.path)
            assert verdict.accepted == (found.least > 0), (k, verdict.reason)
            accepted += verdict.accepted and verdict.leaves > 1
            assert verdict.leaves == found.leaves
    assert accepted > 3
