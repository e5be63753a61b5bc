"""False claims with what proves nearly the same: trees by contradiction, and rows that bend.

A base is a certificate that the checker accepts, of a network that branching or rows that bend have
gone far with, claimed a little farther: up to a point of another class, which the network itself
shows. Whatever is changed of levels, factors, planes, tables and curvatures, it stays false.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import frown
import frown_check
from check.networks import NETWORKS, Net, built, drawn
from frown.methods.frown.network import Frown
from onnx_models import node
from tamper.statement import array, opened
from tamper.trees import Base, Draft, Rng, numbers

KINDS = ("tanh", "gated")  # whose trees are by contradiction
NORMS = (2.0, 1.0, np.inf)
SECONDS = 0.5  # of branching
Change = Callable[[Draft, Rng], None]


def assuming_base(folder: Path, rng: Rng) -> Base:
    """A tree by contradiction, of some smooth network."""
    while True:
        net = NETWORKS[str(rng.choice(KINDS))](folder, rng)
        p, method = float(rng.choice(NORMS)), frown.Branch(seconds=SECONDS)
        found = _beyond(net, rng, p, method, folder, BY_CONTRADICTION)
        if found is not None and any("level" in tree for tree in _trees(found.make(rng))):
            return found


def bent_base(folder: Path, rng: Rng) -> Base:
    """Rows that bend, of a dense ReLU network."""
    while True:
        sizes, known, nodes = (12, 24, 24, 3), dict[str, np.ndarray](), []
        for k, (n, m) in enumerate(pairwise(sizes)):
            known[f"w{k}"] = drawn(rng, n, m) * 1.5
            nodes.append(node("MatMul", f"{'x' if k == 0 else f'a{k - 1}'} w{k}", f"z{k}"))
            nodes.append(node("Relu", f"z{k}", f"a{k}"))
        nodes = [*nodes[:-2], node("MatMul", "a1 w2", "y")]
        net = built(folder, nodes, sizes[:1], known, [])
        found = _beyond(net, rng, 2.0, Frown(curved="always"), folder, BENT)
        if found is not None and found.make(rng).header["format"] == 3:
            return found


def _beyond(
    net: Net, rng: Rng, p: float, method: Any, folder: Path, changes: dict[str, Change]
) -> Base | None:
    """An accepted certificate with the radius of a counterexample; None where there is none."""
    x = rng.normal(size=(1, *net.shape)) * 0.5
    place = folder / f"proofs-{rng.integers(2**30)}"
    ball, proof = frown.Ball(x, norm=p), frown.Rigorous(place)
    result = frown.certify(frown.load(net.path), ball, method=method, proof=proof)
    (row,), files = result.rows, list(place.rglob("*.frown"))
    if not files or row.broken is None:
        return None
    content = files[0].read_bytes()
    assert frown_check.check(content, net.path).accepted
    (point,) = result.counterexamples.values()
    y = net.outputs(point.reshape(1, *net.shape))[0]
    label = opened(content).header["claim"]["label"]
    far = float(np.linalg.norm((point - x[0]).ravel(), p))
    if not y[label] < np.delete(y, label).max() - 1e-9:  # or it might be rounding
        return None

    def make(rng: Rng) -> Draft:
        cert = opened(content)
        cert.header["region"]["radius"] = (far * float(rng.choice([1 + 1e-9, 1.001, 1.1]))).hex()
        return cert

    return Base(net, None, make, changes=changes)


# -- changes of what is assumed -----------------------------------------------------------------


def _trees(cert: Draft) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cert.header.get("trees", [])  # format 1 has none
    return found


def _passes(cert: Draft) -> list[list[dict[str, Any]]]:
    return [steps for tree in _trees(cert) for steps in tree["passes"]]


def _changed(cert: Draft, where: dict[str, Any], name: str, change: Any) -> None:
    """Give a field other numbers; none stay none."""
    if where.get(name) is not None:
        values = change(array(cert, where[name]).astype(np.float64))
        with np.errstate(over="ignore", invalid="ignore"):
            where[name] = cert.payload.put(values, where[name]["dtype"])


def _some(values: np.ndarray, rng: Rng, new: Any) -> np.ndarray:
    return np.where(rng.random(values.shape) < rng.choice([0.1, 1.0]), new, values)


def factors(cert: Draft, rng: Rng) -> None:
    """Factors of halfspaces and planes: of the wrong sign, far too large, of others, none."""
    how = int(rng.integers(5))

    def change(f: np.ndarray) -> np.ndarray:
        others = rng.permutation(f.ravel()).reshape(f.shape)
        size = 10.0 ** rng.uniform(-6, 6, f.shape)
        return _some(f, rng, (-f, f * size, others, size, np.full_like(f, np.nan))[how])

    for where in (*_trees(cert), *(s for steps in _passes(cert) for s in steps)):
        _changed(cert, where, "factors", change)


def moved_levels(cert: Draft, rng: Rng) -> None:
    """Levels that literals are assumed not to exceed: higher, lower, none, below 0."""
    for tree in _trees(cert):
        level = float.fromhex(tree["level"])
        other = [level * 10.0 ** rng.uniform(-3, 12), 1e300, 5e-324, -level, 0.0]
        tree["level"] = float(other[rng.integers(len(other))]).hex()


def other_passes(cert: Draft, rng: Rng) -> None:
    """Assumptions and steps of one node at another, or at none."""
    for tree in _trees(cert):
        own = array(cert, tree["pass"]).copy()
        own = rng.permutation(own) if rng.integers(2) else _some(own, rng, 0xFFFFFFFF)
        tree["pass"] = cert.payload.put(own, "u4")


def other_planes(cert: Draft, rng: Rng) -> None:
    """The rows of planes exchanged between nodes, twice, turned over, of others or left out."""
    passes = [steps for steps in _passes(cert) if steps]
    for steps in passes:
        other = passes[int(rng.integers(len(passes)))]
        ends = [k for k, s in enumerate(steps) if "end" in s]
        how = int(rng.integers(6))
        if how == 0:
            steps[0] = dict(other[0])
        elif how == 1 and "literal" in steps[0]:
            steps[0] = {**steps[0], "literal": int(rng.integers(3))}
        elif how == 2 and "literal" in steps[0]:
            steps.insert(1, dict(steps[0]))
        elif how == 3 and ends:
            k = int(rng.choice(ends))
            steps[k] = {**steps[k], "end": 1 - steps[k]["end"]}
        elif how == 4 and ends:
            k = int(rng.choice(ends))
            steps[k] = {**steps[k], "neuron": int(rng.integers(6)), "site": int(rng.integers(3))}
        elif how == 5:
            del steps[0]


def other_tables(cert: Draft, rng: Rng) -> None:
    """Slopes and multipliers of one step at another."""
    steps = [s for steps in _passes(cert) for s in steps]
    name = str(rng.choice(["slopes", "multipliers", "table"]))
    for step in steps:
        if rng.random() < 0.5:
            step[name] = steps[int(rng.integers(len(steps)))][name]


def other_literals(cert: Draft, rng: Rng) -> None:
    """The final rows of a tree said to be of other literals, or to hang elsewhere."""
    for tree in _trees(cert):
        name = str(rng.choice(["literal", "rows"]))
        values = array(cert, tree[name])
        new = rng.integers(0, 3, values.shape) if name == "literal" else rng.permutation(values)
        tree[name] = cert.payload.put(new, tree[name]["dtype"])


def lone_trees(cert: Draft, rng: Rng) -> None:
    """The tree of one clause alone, or one of them twice."""
    trees = _trees(cert)
    one = trees[int(rng.integers(len(trees)))]
    trees[:] = [one] if rng.integers(2) else [one, one]


# -- changes of rows that bend --------------------------------------------------------------------


def curvatures(cert: Draft, rng: Rng) -> None:
    """Curvatures below 0, absurd ones, others' and none."""
    new = [-1.0, -1e-9, np.nan, np.inf, 0.0, 1e-30, 50.0, 1e30]

    def change(w: np.ndarray) -> np.ndarray:
        if rng.integers(2):
            return w * -1.0 if rng.integers(2) else rng.permutation(w, axis=int(rng.integers(2)))
        return _some(w, rng, float(rng.choice(new)))

    for where in (*cert.header["steps"], cert.header["final"]):
        _changed(cert, where, "curvatures", change)


def other_curves(cert: Draft, rng: Rng) -> None:
    """Tables of slopes or curvatures exchanged between sites, and between rows."""
    rows = [*cert.header["steps"], cert.header["final"]]
    name = str(rng.choice(["table", "slopes", "curvatures"]))
    a, b = (rows[int(k)] for k in rng.integers(len(rows), size=2))
    if name == "table":
        _changed(cert, a, name, rng.permutation)
    else:
        a[name], b[name] = b[name], a[name]


def steep(cert: Draft, rng: Rng) -> None:
    """Slopes far from those that curvatures were chosen for."""
    for where in (*cert.header["steps"], cert.header["final"]):
        _changed(cert, where, "slopes", lambda s: _some(s, rng, rng.normal(size=s.shape) * 3))


BY_CONTRADICTION: dict[str, Change] = {
    f.__name__: f
    for f in (
        factors,
        moved_levels,
        other_passes,
        other_planes,
        other_tables,
        other_literals,
        lone_trees,
        numbers,
    )
}
BENT: dict[str, Change] = {f.__name__: f for f in (curvatures, other_curves, steep)}


def near_bases(folder: Path, seed: int, count: int) -> list[Base]:
    """Mostly trees by contradiction; some rows that bend."""
    found: list[Base] = []
    for k in range(count):
        rng, place = np.random.default_rng([seed, k, 1]), folder / f"near-{k}"
        place.mkdir(parents=True, exist_ok=True)
        found.append((bent_base if k % 4 == 3 else assuming_base)(place, rng))
    return found
