"""Trees prove what is true and nothing else: beside linear programs, and beside sampled inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from check.networks import NETWORKS, Net
from check.test_claims import NORMS, sampled
from check.trees import Row, enumerated, plant, random_tree, small_relu, step
from check.writer import Draft, draft
from frown_check import check


def differences(label: int, outputs: int) -> tuple[list[int], np.ndarray]:
    others = [o for o in range(outputs) if o != label]
    return others, np.eye(outputs)[label] - np.eye(outputs)[others]


@pytest.mark.parametrize("seed", range(4))
def test_all_cases_of_a_network_prove_its_exact_radius(seed: int, tmp_path: Path) -> None:
    """By linear programs: the tree is accepted a hair below the radius, never above it."""
    rng = np.random.default_rng(seed)
    net, layers = small_relu(tmp_path, rng, 3, 4, 4, 3)
    x = rng.normal(size=3) * 0.5
    label = int(net.outputs(x[None])[0].argmax())
    others, coef = differences(label, 3)
    small, large = 0.0, 4.0
    for _ in range(14):
        radius = (small + large) / 2
        least = enumerated(layers, x - radius, x + radius, coef).least
        small, large = (radius, large) if least > 0 else (small, radius)
    for share in (0.99, 1.01):
        radius = small * share
        found = enumerated(layers, x - radius, x + radius, coef)
        cert = draft(net.path, net.sites, x, radius, label, others)
        verdict = check(plant(cert, found.tree).file(), net.path)
        assert verdict.accepted == (share < 1), verdict.reason
        assert verdict.leaves == found.leaves
        assert verdict.margin is not None and verdict.margin <= found.least + 1e-9


@pytest.mark.parametrize("name", NETWORKS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=4, deadline=None)
def test_margins_hold_whatever_the_tree(
    name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cuts anywhere, at entries and features, slopes as codes or numbers, multipliers of any sign,
    steps of subtrees: nothing proves more than sampled inputs show."""
    rng = np.random.default_rng(seed)
    net = NETWORKS[name](tmp_path_factory.mktemp("net"), rng)
    x = rng.normal(size=net.shape) * 0.5
    y = net.outputs(x[None])[0]
    label = int(y.argmax())
    others, _ = differences(label, len(y))
    norm = str(rng.choice(list(NORMS)))
    accepted = []
    for radius in (1e-9, 0.01, 0.1, 0.5):
        ranged = rng.random() < 0.3
        cert = grown(net, x, radius, label, others, norm, ranged, rng)
        verdict = check(cert.file(), net.path)
        accepted.append(verdict.accepted)
        if verdict.margin is None:
            assert any(why in verdict.reason for why in ("not defined", "not finite", "padding"))
            continue
        points, claim = sampled(x, radius, NORMS[norm], rng), verdict.claim
        assert claim is not None
        if claim.lower is not None:
            points = np.clip(points, claim.lower, claim.upper)
        found = net.outputs(points)
        margins = (found[:, [label]] - found[:, others]).min()
        assert verdict.margin <= margins + (1e-7 if name == "hard swish" else 1e-12)
        assert verdict.accepted == (verdict.margin > 0)
    if np.sort(y)[-1] - np.sort(y)[-2] > 1e-3:
        assert accepted[0] or "padding" in verdict.reason


def grown(
    net: Net,
    x: np.ndarray,
    radius: float,
    label: int,
    others: list[int],
    norm: str,
    ranged: bool,
    rng: np.random.Generator,
) -> Draft:
    """A certificate with a random tree; the root's own rows prove nothing."""
    slots = sum(size for _, _, size in net.sites)
    levels = int(rng.choice([0, 1, 15, 255]))
    bounds = (x - 0.6 * radius, x + 0.7 * radius) if ranged else None
    cert = draft(net.path, net.sites, x, radius, label, others, norm, bounds=bounds)
    useless = np.full((len(others), 1, slots), 1e6)
    cert.header["final"]["table"] = cert.payload.put(np.arange(len(others)), "u4")
    cert.header["final"]["slopes"] = cert.payload.put(useless)

    def lifts() -> dict[int, float]:
        count = int(rng.integers(0, 4)) if rng.random() < 0.5 else 0
        return {int(k): float(rng.normal() * radius) for k in rng.integers(0, slots, count)}

    def row(literal: int) -> Row:
        if levels:
            slopes = rng.integers(0, levels + 1, slots)
        else:
            slopes = rng.uniform(0, 1, slots)
            slopes[rng.random(slots) < 0.5] = np.nan
        return Row(literal, slopes, lifts())

    def point(site: int, neuron: int) -> float:
        middle = x.ravel()[neuron] if site < 0 else 0.0
        return float(middle + rng.normal() * radius * rng.choice([0.1, 1.0]))

    def steps() -> list[dict[str, Any]] | None:
        if rng.random() < 0.7:
            return None
        return [step(cert, net.sites, k) for k in range(len(net.sites)) if rng.random() < 0.7]

    depth = int(rng.integers(0, 5))
    ends = (rng, net.sites, x.size, len(others), depth, row, point, steps)
    return plant(cert, random_tree(*ends), levels)
