"""Trees, from a proof to a certificate: replayed with rounding charged, written, checked.

Random trees of every kind of network stand beside three independent truths: exact values at points,
the exact minimum of networks with one input, and the checker, which shares no code with the replay.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch

import frown
import frown_check
from certification.trees import (
    Case,
    at_points,
    drawn_case,
    grown_case,
    line_case,
    replayed,
)
from check.networks import NETWORKS
from check.trees import small_relu
from frown.bounds.cases import replay_tree
from frown.bounds.tree import Step
from frown.errors import InvalidInput
from frown.methods.branch.method import Branch

# onnxruntime does not run the others in double precision, in which these files are.
RUN = [name for name in NETWORKS if name not in ("atan", "convolutional")]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("seed", range(2))
def test_no_tree_proves_more_than_exact_values_allow(name: str, seed: int, tmp_path: Path) -> None:
    case = drawn_case(name, seed, tmp_path)
    found = replayed(case)
    truth = at_points(case, 12)
    for margin, least in zip(found.margins.tolist(), truth, strict=True):
        assert not margin > least


@pytest.mark.parametrize("seed", range(40))
def test_exact_minima_of_networks_with_one_input_are_not_exceeded(
    seed: int, tmp_path: Path
) -> None:
    """Also with huge and tiny weights, and sums that cancel to nothing."""
    case, truth = line_case(seed, tmp_path)
    margin = float(replayed(case).margins.min())
    assert not np.isfinite(margin) or Fraction(margin) <= truth


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "gated", "mixed", "silu"])
def test_the_checker_proves_what_the_replay_does(name: str, tmp_path: Path) -> None:
    """Margins by two programs that share nothing: they differ by little more than rounding."""
    compared = 0
    for seed in range(8):
        case = drawn_case(name, 100 + seed, tmp_path / str(seed), radius=0.05)
        found = replayed(case)
        verdict = frown_check.check(found.file(), case.path)
        if verdict.margin is None or not np.isfinite(verdict.margin):
            continue
        least = float(found.margins.min())
        assert abs(verdict.margin - least) <= 1e-4 * (1 + abs(least)), (seed, verdict.reason)
        assert verdict.leaves == len(case.tree.leaves)
        compared += 1
    assert compared > 3


def test_trees_prove_beyond_the_root(tmp_path: Path) -> None:
    """Branch and bound on small ReLU networks: brackets close, and the checker agrees."""
    grown = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        net, _ = small_relu(tmp_path, rng, 3, 8, 8, 3)
        model = frown.load(net.path)
        x = rng.normal(size=(2, 3)) * 0.5
        label = model.run(x).argmax(1)
        folder = tmp_path / f"proofs-{seed}"
        where = frown.Ball(x, norm=[inf, 2.0, 1.0][seed])
        proof = frown.Rigorous(certificates=folder)
        found = frown.certify(model, where, label, method=Branch(seconds=5), proof=proof)
        plain = frown.certify(model, where, label)
        for row, before in zip(found.rows, plain.rows, strict=True):
            assert row.level == "rigorous" and row.radius >= before.radius * (1 - 1e-6)
            assert row.broken is None or row.radius < row.broken
            assert row.certificate is not None
            verdict = frown_check.check(folder / row.certificate, net.path)
            assert verdict.accepted, verdict.reason
            assert verdict.claim is not None and verdict.claim.radius == row.radius
            grown += verdict.leaves > 1
            if row.broken is not None:
                assert row.radius > 0.97 * row.broken
    assert grown


@pytest.mark.parametrize("name", RUN)
def test_leaves_that_bound_the_network_anew_are_proved_and_checked(
    name: str, tmp_path: Path
) -> None:
    """Trees that branching has grown, on every kind of network."""
    for seed in range(8):
        case = grown_case(name, 50 + seed, tmp_path / str(seed))
        if case is None:
            continue
        found = replayed(case)
        for margin, least in zip(found.margins.tolist(), at_points(case, 12), strict=True):
            assert not margin > least
        if not bool((found.margins > 0).all()):
            continue
        verdict = frown_check.check(found.file(), case.path)
        assert verdict.accepted, verdict.reason
        assert verdict.leaves == found.leaves
        return
    pytest.fail("no tree has proved anything")


def test_leaves_that_fail_are_named(tmp_path: Path) -> None:
    """At a radius that is too large, some leaves fail; they and no others have points like that."""
    case = drawn_case("relu", 5, tmp_path, radius=2.0)
    done = replayed(case).tree
    assert len(done.failing) and set(done.failing.tolist()) <= set(case.tree.leaves.tolist())
    small = replayed(replace(case, radius=1e-9)).tree
    assert not len(small.failing)
    again = replayed(case, done.failing[:1])  # what fails first, and the others are left alone
    assert again.tree.failing.tolist() == done.failing[:1].tolist()
    assert bool((again.tree.margins == -inf).all())
    others = case.tree.leaves[~torch.isin(case.tree.leaves, done.failing)]
    assert torch.equal(replayed(case, others[:1]).margins, replayed(case).margins)


def test_steps_of_subtrees_are_refused(tmp_path: Path) -> None:
    case = drawn_case("relu", 5, tmp_path)
    none = torch.zeros(0, dtype=torch.long)
    step = Step(0, none, none, None, case.tree.literals.take(none).multipliers)
    own = torch.full((len(case.tree),), -1)
    own[-1] = 0
    with pytest.raises(InvalidInput, match="steps"):
        replayed(replace(case, tree=replace(case.tree, passes=((step,),), passed=own)))


def test_a_tree_of_another_network_is_refused(tmp_path: Path) -> None:
    case, other = drawn_case("relu", 1, tmp_path), drawn_case("gated", 1, tmp_path / "b")
    with pytest.raises(InvalidInput, match=r"tree|rows"):
        replayed(replace(case, tree=other.tree))


def test_codes_are_read_as_they_are_written(tmp_path: Path) -> None:
    """Slopes as codes prove the same as the numbers that they stand for."""
    case = drawn_case("relu", 3, tmp_path)
    first = replayed(case)
    rows = case.tree.literals
    order = first.tree.rows
    coded = replace(rows.take(order), slopes=first.tree.slopes, levels=first.tree.levels)
    again = replayed(replace(case, tree=replace(case.tree, literals=coded)))
    assert torch.equal(again.margins, first.margins)
    assert isinstance(case, Case) and callable(replay_tree)
