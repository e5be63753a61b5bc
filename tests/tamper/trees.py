"""False claims with trees as good as can be, and every way to spoil such a tree.

A base is a small ReLU network with a box in which a literal is just below 0, which its exact
minimum shows (`check.trees.enumerated`, and the network itself at the minimiser), or a network of
any kind beside a point that is misread. Its tree proves all but the leaves that have the point.
Whatever is changed of the proof, the claim stays false: accepting it is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import frown_check
from check.networks import NETWORKS, Net
from check.test_claims import sampled
from check.test_trees import differences, grown
from check.trees import Cut, Leaf, Row, Tree, enumerated, plant, preorder, small_relu, step
from check.writer import Draft, draft
from frown_check.checker import BROKEN
from tamper.statement import array
from tamper.trial import REFUSED, Outcome

Rng = np.random.Generator


@dataclass(frozen=True)
class Base:
    """A false claim; `make` drafts it around a tree (None: around a random one)."""

    net: Net
    tree: Tree | None
    make: Callable[[Rng], Draft]
    changes: dict[str, Callable[[Draft, Rng], None]] | None = None  # None: those of any file


def relu_base(folder: Path, rng: Rng) -> Base:
    """A claim just beyond the exact radius of a ReLU network."""
    while True:
        net, layers = small_relu(folder, rng, 3, *rng.integers(2, 4, 2), 3)
        x = rng.normal(size=3) * 0.5
        label = int(net.outputs(x[None])[0].argmax())
        others, coef = differences(label, 3)
        small, large = 0.0, 8.0
        for _ in range(14):
            radius = (small + large) / 2
            least = enumerated(layers, x - radius, x + radius, coef).least
            small, large = (radius, large) if least > 0 else (small, radius)
        radius = large * float(rng.choice([1.0, 1.001, 1.01, 1.1]))
        found = enumerated(layers, x - radius, x + radius, coef)
        y = net.outputs(np.clip(found.point, x - radius, x + radius)[None])[0]
        if (coef @ y).min() < -1e-6 and found.leaves > 3:
            break
    other = int(rng.integers(3))

    def make(rng: Rng) -> Draft:
        cert = draft(net.path, net.sites, x, radius, label, others)
        if other:  # the same as clauses of literals; over the same box by its ends
            put = cert.payload.put
            zero = put(np.zeros(len(coef)))
            clause = put(np.arange(len(coef)), "u4")
            cert.header["claim"] = {"coef": put(coef), "const": zero, "clause": clause}
            if other == 2:
                ends = {"lower": put(x - radius), "upper": put(x + radius)}
                cert.header["region"] = ends
        return cert

    return Base(net, found.tree, make)


def any_base(folder: Path, rng: Rng) -> Base:
    """A claim of any network about a ball with a point in it that is misread."""
    while True:
        net = NETWORKS[str(rng.choice(list(NETWORKS)))](folder, rng)
        x = rng.normal(size=net.shape) * 0.5
        label = int(net.outputs(x[None])[0].argmax())
        for radius in (0.02, 0.05, 0.1, 0.3, 1.0):
            y = net.outputs(sampled(x, radius, np.inf, rng))
            others = [o for o in range(y.shape[1]) if o != label]
            if (y[:, [label]] - y[:, others]).min() < -1e-3:
                known = (net, x, radius, label, others, "inf", False)
                return Base(net, None, partial(grown, *known))


# -- changes of a tree as a value -----------------------------------------------------------------


def _replaced(tree: Tree, old: Tree, new: Tree) -> Tree:
    if tree is old:
        return new
    if isinstance(tree, Leaf):
        return tree
    return replace(
        tree, below=_replaced(tree.below, old, new), above=_replaced(tree.above, old, new)
    )


def _cut(tree: Tree, rng: Rng) -> Cut | None:
    cuts = [n for n in preorder(tree) if isinstance(n, Cut)]
    return cuts[int(rng.integers(len(cuts)))] if cuts else None


def _rows(tree: Tree, rng: Rng) -> list[Row]:
    every = [n.rows for n in preorder(tree) if n.rows]
    return every[int(rng.integers(len(every)))] if every else []


def dropped(tree: Tree, rng: Rng) -> Tree:
    """One side of a cut in place of both."""
    cut = _cut(tree, rng)
    return tree if cut is None else _replaced(tree, cut, (cut.below, cut.above)[rng.integers(2)])


def emptied(tree: Tree, rng: Rng) -> Tree:
    """A leaf without rows, as if it had no points."""
    for n in preorder(tree):
        if isinstance(n, Leaf) and rng.random() < 0.3:
            n.rows = []
    return tree


def moved(tree: Tree, rng: Rng) -> Tree:
    """Cuts at other points."""
    far = [1e-3, -1e-3, 0.1, -0.1, 10.0, -10.0, 1e308, -1e308, np.nan, np.inf, -np.inf]
    for n in preorder(tree):
        if isinstance(n, Cut) and rng.random() < 0.3:
            n.point += float(rng.choice(far))
    return tree


def swapped(tree: Tree, rng: Rng) -> Tree:
    """The two sides of cuts exchanged."""
    for n in preorder(tree):
        if isinstance(n, Cut) and rng.random() < 0.3:
            n.below, n.above = n.above, n.below
    return tree


def elsewhere(tree: Tree, rng: Rng) -> Tree:
    """Cuts of other neurons, sites and features."""
    for n in preorder(tree):
        if isinstance(n, Cut) and rng.random() < 0.3:
            n.site, n.neuron = int(rng.integers(-1, 2)), int(rng.integers(5))
    return tree


def turned(tree: Tree, rng: Rng) -> Tree:
    """Multipliers of the wrong sign."""
    for n in preorder(tree):
        for row in n.rows if rng.random() < 0.4 else []:
            row.multipliers = {k: -m for k, m in row.multipliers.items()}
    return tree


def scaled(tree: Tree, rng: Rng) -> Tree:
    """Multipliers that are far too large, or not finite."""
    factor = float(rng.choice([1.5, 1e3, 1e9, 1e30, -1e30, 1e300, np.inf, np.nan]))
    for n in preorder(tree):
        for row in n.rows if rng.random() < 0.4 else []:
            row.multipliers = {k: m * factor for k, m in row.multipliers.items()}
    return tree


def added(tree: Tree, rng: Rng) -> Tree:
    """Multipliers where nothing was cut."""
    for n in preorder(tree):
        for row in n.rows if rng.random() < 0.4 else []:
            slots = len(row.slopes)
            row.multipliers[int(rng.integers(slots + 1))] = float(
                rng.normal() * 10.0 ** rng.integers(-3, 20)
            )
    return tree


def borrowed(tree: Tree, rng: Rng) -> Tree:
    """Rows of other leaves."""
    for n in preorder(tree):
        if n.rows and rng.random() < 0.3:
            n.rows = deepcopy(_rows(tree, rng))
    return tree


def renamed(tree: Tree, rng: Rng) -> Tree:
    """Rows said to bound other literals."""
    for n in preorder(tree):
        for row in n.rows:
            row.literal = int(rng.integers(3)) if rng.random() < 0.3 else row.literal
    return tree


def lifted(tree: Tree, rng: Rng) -> Tree:
    """A leaf's rows hung at a node above it."""
    cut = _cut(tree, rng)
    if cut is not None:
        cut.rows = cut.rows + deepcopy(_rows(cut, rng))
    return tree


def twice(tree: Tree, rng: Rng) -> Tree:
    """A subtree in place of another."""
    a, b = _cut(tree, rng), _cut(tree, rng)
    return tree if a is None or b is None else _replaced(tree, a, deepcopy(b))


def deeper(tree: Tree, rng: Rng) -> Tree:
    """A leaf cut again, at a point that leaves one side empty, or none."""
    leaves = [n for n in preorder(tree) if isinstance(n, Leaf)]
    leaf = leaves[int(rng.integers(len(leaves)))]
    point = float(rng.choice([-1e30, -1.0, 0.0, 1.0, 1e30]))
    two = (deepcopy(leaf), Leaf()) if rng.integers(2) else (Leaf(), deepcopy(leaf))
    return _replaced(tree, leaf, Cut(int(rng.integers(-1, 2)), int(rng.integers(2)), point, *two))


OF_TREES: dict[str, Callable[[Tree, Rng], Tree]] = {
    f.__name__: f
    for f in (
        dropped,
        emptied,
        moved,
        swapped,
        elsewhere,
        turned,
        scaled,
        added,
        borrowed,
        renamed,
        lifted,
        twice,
        deeper,
    )
}


# -- changes of the file --------------------------------------------------------------------------


def numbers(cert: Draft, rng: Rng) -> None:
    """Numbers of one of the tree's arrays changed, or some of them left out or repeated."""
    tree = cert.header["trees"][0]
    where = tree if rng.integers(3) else (tree["multipliers"] or tree)
    name = str(rng.choice([k for k, v in where.items() if type(v) is dict and "dtype" in v]))
    ref = where[name]
    values = array(cert, ref).copy()
    flat = values.reshape(-1)
    how = int(rng.integers(4))
    if how == 0 and len(flat):
        flat[rng.integers(len(flat))] = rng.integers(0, 4)
    elif how == 1 and len(flat) > 1:
        i, j = rng.integers(len(flat), size=2)
        flat[[i, j]] = flat[[j, i]]
    elif how == 2:
        values = values[: max(0, len(values) - int(rng.integers(1, 4)))]
    else:
        values = np.concatenate([values, values[: int(rng.integers(1, 4))]])
    where[name] = cert.payload.put(values, ref["dtype"])


def kept_passes(cert: Draft, rng: Rng) -> None:
    """Steps hung at other nodes, in other orders, or of one subtree said to be another's."""
    tree = cert.header["trees"][0]
    nodes = tree["site"]["shape"][0]
    sites = [(s["name"], s["kind"], s["size"]) for s in cert.header["sites"]]
    if not tree["passes"]:
        tree["passes"] = [[step(cert, sites, k) for k in range(len(sites))]]
    if rng.integers(4) == 0:
        rng.shuffle(tree["passes"][0])
    own = rng.integers(-1, len(tree["passes"]), nodes)
    tree["pass"] = cert.payload.put(np.where(own < 0, 0xFFFFFFFF, own), "u4")


def fields(cert: Draft, rng: Rng) -> None:
    """A field of the tree gone, or another type of value."""
    tree = cert.header["trees"][0]
    name = str(rng.choice(list(tree)))
    if rng.integers(2):
        del tree[name]
    else:
        tree[name] = [None, 0, [], "x", {}, -1, 256, 1.5][int(rng.integers(8))]


def levels(cert: Draft, rng: Rng) -> None:
    """Codes read as of another number of levels, or numbers as codes."""
    tree = cert.header["trees"][0]
    tree["levels"] = int(rng.integers(0, 256))
    if tree["levels"] and tree["slopes"]["dtype"] != "u1":
        shape = tree["slopes"]["shape"]
        codes = rng.integers(0, tree["levels"] + 1, shape)
        tree["slopes"] = cert.payload.put(codes, "u1")


OF_FILES: dict[str, Callable[[Draft, Rng], None]] = {
    f.__name__: f for f in (numbers, kept_passes, fields, levels)
}


def spoilt(base: Base, rng: Rng) -> Outcome:
    """A false claim with a changed proof, before the checker."""
    how: list[str] = []
    cert = base.make(rng)
    if base.tree is not None:
        tree = deepcopy(base.tree)
        for name in rng.choice(list(OF_TREES), int(rng.integers(0, 4))):
            tree = OF_TREES[str(name)](tree, rng)
            how.append(str(name))
        with np.errstate(over="ignore", invalid="ignore"):
            cert = plant(cert, tree, dtype="f8")
    changes = base.changes or OF_FILES
    for name in rng.choice(list(changes), int(rng.integers(not how, 3))):
        try:
            changes[str(name)](cert, rng)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            continue  # an earlier change took away what this one reads
        how.append(str(name))
    content = cert.file()
    verdict = frown_check.check(content, base.net.path)
    broken = verdict.accepted or BROKEN in verdict.reason
    said = (
        "accepted, though it is false"
        if verdict.accepted
        else verdict.reason
        if broken
        else REFUSED
    )
    return Outcome("tree", ", ".join(how), said, broken, verdict.reason, content)


def tree_bases(folder: Path, seed: int, count: int) -> list[Base]:
    """Mostly ReLU networks, whose trees are exact; some of any kind."""
    found: list[Base] = []
    for k in range(count):
        rng, place = np.random.default_rng([seed, k]), folder / f"tree-{k}"
        place.mkdir(parents=True, exist_ok=True)
        found.append((any_base if k % 4 == 3 else relu_base)(place, rng))
    return found


def summary(reasons: Any) -> dict[str, int]:
    """How many refusals came how far."""
    found: dict[str, int] = {}
    for reason in reasons:
        stage = "margins" if "not proved" in reason else "before"
        found[stage] = found.get(stage, 0) + 1
    return found
