"""Formulas of VNN-LIB, drawn at random, and what they mean: by recursion over the tree that a text
was written from."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

SIZES = {"X": 2, "Y": 3}
HEAD = "".join(f"(declare-const {k}_{i} Real)\n" for k, n in SIZES.items() for i in range(n))
BOX = "(assert (and (>= X_0 -1) (<= X_0 1.5) (<= -2 X_1) (>= 1e0 X_1)))\n"
Tree = list[Any] | str


def term(dice: random.Random, depth: int) -> Tree:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(["X_0", "X_1", "Y_0", "Y_1", "Y_2", "0.1", "-3", "2.5e-1", "7"])
    match dice.choice("+-*/n"):
        case "+":
            return ["+", *(term(dice, depth - 1) for _ in range(dice.randint(1, 3)))]
        case "-":
            return ["-", term(dice, depth - 1), term(dice, depth - 1)]
        case "n":
            return ["-", term(dice, depth - 1)]
        case "*":
            pair = ["-0.5", term(dice, depth - 1)]
            dice.shuffle(pair)
            return ["*", *pair]
        case _:
            return ["/", term(dice, depth - 1), "3"]


def formula(dice: random.Random, depth: int) -> Tree:
    if depth == 0 or dice.random() < 0.2:
        rare = ["<", ">", "="] if dice.random() < 0.3 else ["<=", ">="]
        return [dice.choice(rare)] + [term(dice, 2) for _ in range(2)]
    some = [formula(dice, depth - 1) for _ in range(dice.randint(0, 3))]
    return [dice.choice(["and", "or"]), *some]


def written(tree: Tree) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(written, tree))})"


def value(tree: Tree, point: dict[str, Fraction]) -> Any:
    """The truth of a formula at a point, by recursion over the tree it was written from."""
    if isinstance(tree, str):
        return point[tree] if tree in point else Fraction(tree)
    own = [value(t, point) for t in tree[1:]]
    match tree[0]:
        case "and":
            return all(own)
        case "or":
            return any(own)
        case "<=":
            return own[0] <= own[1]
        case ">=":
            return own[0] >= own[1]
        case "<":
            return own[0] < own[1]
        case ">":
            return own[0] > own[1]
        case "=" | "==":
            return own[0] == own[1]
        case "!=":
            return own[0] != own[1]
        case "+":
            return sum(own)
        case "-":
            return own[0] - own[1] if len(own) > 1 else -own[0]
        case "*":
            return own[0] * own[1]
    return own[0] / own[1]


HEAD_2 = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input X real [1,2]) ; two inputs
  (declare-output Y real [3])
)
"""
BOX_2 = "(assert (and (>= X[0,0] -1.0) (<= X[0,0] 1.5) (<= -2.0 X[0,1]) (>= 1.0 X[0,1])))\n"
NAMES_2 = {"X_0": "X[0,0]", "X_1": "X [ 0, 1]", "Y_0": "Y[0]", "Y_1": "Y[1]", "Y_2": "Y[2]"}


def in_version_2(tree: Tree) -> Tree | None:
    """A formula of version 1 in version 2; None: it has no counterpart there."""
    if isinstance(tree, str):
        return str(float(Fraction(tree))) if tree not in NAMES_2 else tree
    if len(tree) == 1 or tree[0] == "/":
        return None
    own = [in_version_2(t) for t in tree[1:]]
    if any(t is None for t in own):
        return None
    name = {"=": "=="}.get(tree[0], tree[0])
    if name in ("==", "<=", ">=", "<", ">") and not any(v in written(tree) for v in NAMES_2):
        return None
    return [name, *own]
