"""Trees for certificates of format 2, made without frown and without the checker.

`plant` turns any tree into a part of a certificate. `enumerated` cuts every unstable neuron of a
small ReLU network at 0; then a leaf is a linear program, whose duals are the multipliers: the tree
proves what is true, up to rounding, and the least margin over its leaves is the exact one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from check.networks import Net, built, drawn
from check.writer import NO_TABLE, Draft
from onnx_models import node

INPUT, LEAF = -1, -2


@dataclass
class Row:
    """A literal's row: codes or slopes by slot (0 or NaN: none), and multipliers."""

    literal: int
    slopes: np.ndarray
    multipliers: dict[int, float] = field(default_factory=dict)


@dataclass
class Leaf:
    rows: list[Row] = field(default_factory=list)
    steps: list[dict[str, Any]] | None = None


@dataclass
class Cut:
    site: int
    neuron: int
    point: float
    below: Tree
    above: Tree
    rows: list[Row] = field(default_factory=list)
    steps: list[dict[str, Any]] | None = None


Tree = Leaf | Cut


def preorder(tree: Tree) -> list[Tree]:
    found, waiting = [], [tree]
    while waiting:
        here = waiting.pop()
        found.append(here)
        if isinstance(here, Cut):
            waiting += [here.above, here.below]
    return found


def multipliers(draft: Draft, rows: list[dict[int, float]], dtype: str = "f4") -> dict[str, Any]:
    put = draft.payload.put
    return {
        "count": put([len(row) for row in rows], "u2"),
        "slot": put([slot for row in rows for slot in row], "u4"),
        "value": put([value for row in rows for value in row.values()], dtype),
    }


def step(
    draft: Draft,
    sites: list[tuple[str, str, int]],
    site: int,
    slopes: np.ndarray | None = None,
    lifts: list[dict[int, float]] | None = None,
) -> dict[str, Any]:
    """Rows for both sides of every entry of a site."""
    put, size = draft.payload.put, sites[site][2]
    table = np.full(2 * size, NO_TABLE) if slopes is None else np.arange(2 * size)
    return {
        "site": site,
        "over": list(range(site)),
        "neuron": put(np.repeat(np.arange(size), 2), "u4"),
        "side": put(np.tile([0, 1], size), "u1"),
        "table": put(table, "u4"),
        "slopes": None if slopes is None else put(slopes[:, None], "f8"),
        "multipliers": None if lifts is None else multipliers(draft, lifts),
    }


def plant(draft: Draft, tree: Tree, levels: int = 0, dtype: str = "f4") -> Draft:
    """The draft, which becomes one of format 2, with one more tree."""
    put, header = draft.payload.put, draft.header
    nodes = preorder(tree)
    cuts = [n for n in nodes if isinstance(n, Cut)]
    rows = [row for n in nodes for row in n.rows]
    slots = sum(site["size"] for site in header["sites"])
    passes = [n.steps for n in nodes if n.steps is not None]
    own = iter(range(len(passes)))
    slopes = np.array([row.slopes for row in rows]).reshape(len(rows), slots)
    header["format"] = 2
    for s in header["steps"]:
        s.setdefault("multipliers", None)
    planted = {
        "site": put([n.site + 2 if isinstance(n, Cut) else 0 for n in nodes], "u2"),
        "neuron": put([n.neuron for n in cuts], "u2"),
        "point": put([n.point for n in cuts], "f8"),
        "passes": passes,
        "pass": put([NO_TABLE if n.steps is None else next(own) for n in nodes], "u4"),
        "rows": put([len(n.rows) for n in nodes], "u2"),
        "literal": put([row.literal for row in rows], "u2"),
        "over": list(range(len(header["sites"]))),
        "levels": levels,
        "slopes": put(slopes, "u1" if levels else dtype),
        "multipliers": multipliers(draft, [row.multipliers for row in rows], dtype),
    }
    header.setdefault("trees", []).append(planted)
    return draft


# -- random trees ---------------------------------------------------------------------------------


def random_tree(
    rng: np.random.Generator,
    sites: list[tuple[str, str, int]],
    features: int,
    literals: int,
    depth: int,
    row: Callable[[int], Row],
    points: Callable[[int, int], float],
    steps: Callable[[], list[dict[str, Any]] | None] = lambda: None,
) -> Tree:
    """Cuts anywhere; `row(literal)` at every leaf, `points(site, neuron)` to cut at."""
    if depth == 0 or rng.random() < 0.15:
        return Leaf([row(k) for k in range(literals)], steps())
    site = int(rng.integers(-1, len(sites)))
    neuron = int(rng.integers(features if site < 0 else sites[site][2]))
    again = (rng, sites, features, literals, depth - 1, row, points, steps)
    rows = [row(int(rng.integers(literals)))] if rng.random() < 0.2 else []
    two = random_tree(*again), random_tree(*again)
    return Cut(site, neuron, points(site, neuron), *two, rows, steps())


# -- all cases of a small ReLU network ------------------------------------------------------------

Layers = list[tuple[np.ndarray, np.ndarray]]


def small_relu(folder: Path, rng: np.random.Generator, *sizes: int) -> tuple[Net, Layers]:
    layers, nodes, sites, known = [], [], [], {}
    last = "x"
    for k, (n, m) in enumerate(pairwise(sizes)):
        w, b = drawn(rng, n, m) * 1.5, rng.normal(size=m) * 0.2
        layers.append((w, b))
        known[f"w{k}"], known[f"b{k}"] = w, b
        out = "y" if k == len(sizes) - 2 else f"z{k}"
        nodes.append(node("Gemm", f"{last} w{k} b{k}", out))
        if out != "y":
            nodes.append(node("Relu", out, f"a{k}"))
            sites.append((f"a{k}", "Relu", int(m)))
            last = f"a{k}"
    return built(folder, nodes, (sizes[0],), known, sites), layers


def intervals(layers: Layers, low: np.ndarray, high: np.ndarray) -> list[tuple[Any, Any]]:
    found = []
    for w, b in layers:
        mid, rad = (low + high) / 2, (high - low) / 2
        mid, rad = mid @ w + b, rad @ np.abs(w)
        found.append((mid - rad, mid + rad))
        low, high = (np.maximum(end, 0) for end in found[-1])
    return found


@dataclass
class Enumerated:
    tree: Tree
    least: float  # the exact least literal over the box
    point: np.ndarray  # where
    leaves: int


def enumerated(
    layers: Layers, low: np.ndarray, high: np.ndarray, coef: np.ndarray, only: int | None = None
) -> Enumerated:
    """All cases of the literals coef (T, outputs) over a box; `only` cuts that many neurons."""
    boxes = intervals(layers, low, high)
    cuts = [
        (k, j) for k, (a, b) in enumerate(boxes[:-1]) for j in range(len(a)) if a[j] < 0 < b[j]
    ][:only]
    starts = np.cumsum([0, *(len(b) for _, b in layers[:-1])])
    found = Enumerated(Leaf(), np.inf, low, 0)

    def leaf(signs: dict[tuple[int, int], int]) -> Leaf:
        found.leaves += 1
        # The network is linear: z_k = W x + b for all neurons.
        w, b, parts = np.eye(len(low)), np.zeros(len(low)), []
        for k, (m, c) in enumerate(layers):
            w, b = w @ m, b @ m + c
            parts.append((w, b))
            if k < len(layers) - 1:
                known = [signs.get((k, j), 0) for j in range(len(b))]
                on = np.array(
                    [s > 0 or (not s and boxes[k][0][j] >= 0) for j, s in enumerate(known)]
                )
                w, b = w * on, b * on
        lines = np.array([signs[at] * parts[at[0]][0][:, at[1]] for at in signs]).reshape(
            -1, len(low)
        )
        shifts = np.array([signs[at] * parts[at[0]][1][at[1]] for at in signs])
        rows = []
        for t, c in enumerate(coef):
            cost, const = parts[-1][0] @ c, parts[-1][1] @ c
            ends = list(zip(low, high))
            got = (
                linprog(cost, A_ub=-lines, b_ub=shifts, bounds=ends)
                if len(lines)
                else linprog(cost, bounds=ends)
            )
            if got.status == 0:
                duals = -got.ineqlin.marginals if len(lines) else []
                if got.fun + const < found.least:
                    found.least, found.point = float(got.fun + const), got.x
            else:  # how far the constraints are from holding, and which of them say so
                wide = np.hstack([-lines, -np.ones((len(lines), 1))])
                far = linprog(
                    [*np.zeros(len(low)), 1.0], A_ub=wide, b_ub=shifts, bounds=[*ends, (None, None)]
                )
                duals = -far.ineqlin.marginals * (1e4 / max(far.fun, 1e-9))
            lifts = {
                int(starts[k] + j): float(-sign * dual)
                for ((k, j), sign), dual in zip(signs.items(), duals)
                if dual
            }
            rows.append(Row(t, np.full(starts[-1], np.nan), lifts))
        return Leaf(rows)

    def grow(k: int, signs: dict[tuple[int, int], int]) -> Tree:
        if k == len(cuts):
            return leaf(signs)
        at = cuts[k]
        return Cut(*at, 0.0, grow(k + 1, {**signs, at: -1}), grow(k + 1, {**signs, at: 1}))

    found.tree = grow(0, {})
    return found
