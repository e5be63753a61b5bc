"""Margins that are proved hold: beside sampled inputs, and beside exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.networks import NETWORKS, built
from check.writer import draft
from examples import examples
from frown_check import check
from onnx_models import node

NORMS = {"inf": np.inf, "1": 1.0, "2": 2.0, (3.0).hex(): 3.0}


def sampled(x: np.ndarray, radius: float, p: float, rng: np.random.Generator) -> np.ndarray:
    """Inputs all over the ball, corners and vertices among them."""
    n = x.size
    steps = rng.normal(size=(200, n))
    steps[:80] = rng.choice([-1.0, 1.0], (80, n))
    steps[80:100] = np.eye(n)[rng.integers(0, n, 20)] * rng.choice([-1.0, 1.0], (20, 1))
    steps /= np.linalg.norm(steps, p, axis=1, keepdims=True)
    steps[150:] *= rng.uniform(0, 1, (50, 1))
    return x + (1 - 1e-12) * radius * steps.reshape(-1, *x.shape)


@pytest.mark.parametrize("name", NETWORKS)
@given(seed=st.integers(0, 2**32 - 1))
@examples(2)
def test_proved_margins_hold_whatever_the_slopes(
    name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    net = NETWORKS[name](tmp_path_factory.mktemp("net"), rng)
    x = rng.normal(size=net.shape) * 0.5
    y = net.outputs(x[None])[0]
    label = int(y.argmax())
    others = [o for o in range(len(y)) if o != label]
    norm = str(rng.choice(list(NORMS)))
    accepted = []
    for radius in (1e-9, 0.01, 0.1, 0.5):
        choice = rng if rng.random() < 0.7 else None
        lanes = int(rng.integers(1, 3))
        cert = draft(net.path, net.sites, x, radius, label, others, norm, rng=choice, lanes=lanes)
        verdict = check(cert.file(), net.path)
        accepted.append(verdict.accepted)
        if verdict.margin is None:
            assert "not defined" in verdict.reason or "not finite" in verdict.reason
            continue
        found = net.outputs(sampled(x, radius, NORMS[norm], rng))
        margins = (found[:, [label]] - found[:, others]).min()
        assert verdict.margin <= margins + (1e-7 if name == "hard swish" else 1e-12)
        assert verdict.accepted == (verdict.margin > 0)
    gap = np.sort(y)[-1] - np.sort(y)[-2]
    if gap > 1e-5:
        assert accepted[0], verdict.reason  # next to no radius: next to nothing to prove


@pytest.mark.parametrize("name", ["relu", "sigmoid", "gated", "convolutional", "mixed"])
def test_rows_and_fixed_rules_prove_useful_radii(name: str, tmp_path: Path) -> None:
    """At a radius of 0.01 hardly anything is lost: rows are used, and lines are tight."""
    rng = np.random.default_rng(5)
    net = NETWORKS[name](tmp_path, rng)
    x = rng.normal(size=net.shape) * 0.5
    y = net.outputs(x[None])[0]
    label = int(y.argmax())
    others = [o for o in range(len(y)) if o != label]
    verdicts = {}
    for rows in (True, False):
        cert = draft(net.path, net.sites, x, 0.01, label, others, rows=rows)
        verdicts[rows] = check(cert.file(), net.path)
    found = net.outputs(sampled(x, 0.01, np.inf, rng))
    worst = (found[:, [label]] - found[:, others]).min()
    drop = y[label] - max(y[o] for o in others) - worst  # that samples find
    proved = verdicts[True].margin
    assert proved is not None and proved >= worst - drop
    without = verdicts[False].margin
    assert without is None or without <= proved + 1e-9


# -- exact rational arithmetic ---------------------------------------------------------------------


def exact_minimum(
    layers: list[tuple[np.ndarray, np.ndarray]], low: Fraction, high: Fraction, label: int
) -> Fraction:
    """The least margin of a ReLU network with one input, at its kinks and ends."""

    def values(t: Fraction) -> list[list[Fraction]]:
        found, a = [], [t]
        for k, (w, b) in enumerate(layers):
            z = [
                Fraction(float(b[j])) + sum(Fraction(float(w[i, j])) * a[i] for i in range(len(a)))
                for j in range(len(b))
            ]
            found.append(z)
            a = z if k == len(layers) - 1 else [max(v, Fraction(0)) for v in z]
        return found

    # Between two neighbours of `places` all neurons of the layers before are linear.
    places = [low, high]
    for k in range(len(layers) - 1):
        more = []
        at = [values(t)[k] for t in places]
        for (s, zs), (t, zt) in zip(zip(places, at), zip(places[1:], at[1:])):
            for a, b in zip(zs, zt):
                if a * b < 0:
                    more.append(s + (t - s) * a / (a - b))
        places = sorted({*places, *more})
    outputs = [values(t)[-1] for t in places]
    return min(y[label] - o for y in outputs for i, o in enumerate(y) if i != label)


@given(seed=st.integers(0, 2**32 - 1))
@examples(40)
def test_exact_margins_of_relu_networks_are_never_exceeded(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also with huge and tiny weights, and sums that cancel to nothing."""
    rng = np.random.default_rng(seed)
    sizes = [1, *rng.integers(1, 4, 2), 2]
    layers, nodes, sites, known = [], [], [], {}
    last = "x"
    for k, (n, m) in enumerate(pairwise(sizes)):
        w = rng.normal(size=(n, m)) * rng.choice([1.0, 1e-8, 1e12, 1e-160, 1e100], (n, m))
        if n > 1:
            w[1] = -w[0] * (1 + rng.choice([0.0, 2**-52, 1e-9]))
        b = rng.normal(size=m) * rng.choice([0.0, 1.0, 1e-12, 1e30])
        layers.append((w, b))
        known[f"w{k}"], known[f"b{k}"] = w, b
        out = "y" if k == 2 else f"z{k}"
        nodes.append(node("Gemm", f"{last} w{k} b{k}", out))
        if k < 2:
            nodes.append(node("Relu", out, f"a{k}"))
            sites.append((f"a{k}", "Relu", int(m)))
            last = f"a{k}"
    net = built(tmp_path_factory.mktemp("net"), nodes, (1,), known, sites)
    x, radius = float(rng.normal()), float(rng.choice([1e-300, 1e-12, 1e-3, 1.0]))
    for label in (0, 1):
        cert = draft(net.path, sites, [x], radius, label, [1 - label], rng=rng)
        verdict = check(cert.file(), net.path)
        low, high = Fraction(x) - Fraction(radius), Fraction(x) + Fraction(radius)
        truth = exact_minimum(layers, low, high, label)
        if verdict.margin is not None and np.isfinite(verdict.margin):
            assert Fraction(verdict.margin) <= truth
        assert not verdict.accepted or truth > 0


def test_a_radius_beyond_a_counterexample_is_refused(tmp_path: Path) -> None:
    """relu(x) - relu(-x) = x: class 0 wins just for x > 0."""
    known = {
        "w": np.array([[1.0, -1.0]]),
        "v": np.array([[1.0, -1.0], [-1.0, 1.0]]),
    }
    nodes = [node("MatMul", "x w", "z"), node("Relu", "z", "a"), node("MatMul", "a v", "y")]
    net = built(tmp_path, nodes, (1,), known, [("a", "Relu", 2)])
    for radius, wanted in ((0.25, True), (1 - 2**-40, True), (1.0, False), (1 + 2**-40, False)):
        cert = draft(net.path, net.sites, [1.0], radius, 0, [1])
        assert check(cert.file(), net.path).accepted is wanted


def test_normalisation_and_a_valid_range_are_part_of_the_claim(tmp_path: Path) -> None:
    """y = (z, 0) with z = (x - 3) / 2: class 0 wins just for x > 3."""
    known = {"w": np.array([[1.0, 0.0]])}
    net = built(tmp_path, [node("MatMul", "x w", "y")], (1,), known, [])
    norm = (np.array([3.0]), np.array([2.0]))
    near = draft(net.path, [], [4.0], 0.999, 0, [1], normalisation=norm)
    assert check(near.file(), net.path).accepted
    far = draft(net.path, [], [4.0], 1.001, 0, [1], normalisation=norm)
    assert not check(far.file(), net.path).accepted
    for top, wanted in ((3.5, True), (2.5, False)):
        for p in NORMS:
            bounds = ([top], [9.0])
            cert = draft(net.path, [], [4.0], 100.0, 0, [1], p, normalisation=norm, bounds=bounds)
            assert check(cert.file(), net.path).accepted is wanted


@pytest.mark.parametrize("sites", [0, 1, 2])
@given(seed=st.integers(0, 2**32 - 1))
@examples(15)
def test_what_rounding_does_to_coefficients_is_paid_for(
    sites: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Products of matrices that cancel, with ReLUs that are all active: lines lose nothing, so
    that nothing hides a coefficient's error, which is of the size of the margin."""
    rng = np.random.default_rng(seed)
    n = 3
    first, second = (rng.uniform(0.5, 1.5, shape) * 1e8 for shape in ((n, n), (n, n + 1)))
    ratio = rng.uniform(0.5, 1.5)
    second[:, -1] = second[:, 0] / ratio  # the form a_0 - ratio a_n all but vanishes
    third = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [-ratio, 0.0]]) * rng.uniform(0.5, 1.5)
    known = {"w0": first, "w1": second, "w2": third}
    nodes, found, last = [], [], "x"
    for k in (0, 1):
        nodes.append(node("MatMul", f"{last} w{k}", f"z{k}"))
        last = f"z{k}"
        if k < sites:
            nodes.append(node("Relu", last, f"a{k}"))
            found.append((f"a{k}", "Relu", n + k))
            last = f"a{k}"
    nodes.append(node("MatMul", f"{last} w2", "y"))
    net = built(tmp_path_factory.mktemp("net"), nodes, (n,), known, found)
    x = rng.uniform(0.5, 1.5, n)
    value = [Fraction(float(v)) for v in x]
    for w in (first, second, third):
        value = [
            sum(Fraction(float(w[i, j])) * v for i, v in enumerate(value))
            for j in range(w.shape[1])
        ]
    for label in (0, 1):
        cert = draft(net.path, found, x, 0.0, label, [1 - label])
        verdict = check(cert.file(), net.path)
        assert verdict.margin is not None
        assert Fraction(verdict.margin) <= value[label] - value[1 - label]
        assert verdict.margin > float(value[label] - value[1 - label]) - 1e5  # of 1e16
