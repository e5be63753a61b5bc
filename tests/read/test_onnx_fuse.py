"""Activations that exporters write out in several operators are recognised."""

from __future__ import annotations

from math import pi, sqrt

import pytest

from frown.read.onnx.load import load_onnx
from onnx_models import model, node, number, saved
from read.test_onnx import assert_same

HALF, ONE, ROOT = number(0.5), number(1.0), number(sqrt(2))
TANH = number(sqrt(2 / pi))
ERF = [node("Div", "x root", "d"), node("Erf", "d", "e"), node("Add", "e one", "f")]
CUBE = {
    "pow": [node("Pow", "x three", "p"), node("Mul", "p small", "q")],
    "products": [node("Mul", "small x", "p1"), node("Mul", "p1 x", "p"), node("Mul", "p x", "q")],
}
INNER = [node("Add", "x q", "s"), node("Mul", "s t", "u"), node("Tanh", "u", "e")]
KNOWN = {
    "half": HALF,
    "one": ONE,
    "two": number(2.0),
    "root": ROOT,
    "inverse": number(1 / sqrt(2)),
    "small": number(0.044715),
    "three": number(3.0),
    "t": TANH,
    "quick": number(1.702),
}
FUSED = {
    "silu": ("Silu", [node("Sigmoid", "x", "s"), node("Mul", "x s")]),
    "silu turned": ("Silu", [node("Sigmoid", "x", "s"), node("Mul", "s x")]),
    "quick gelu": (
        "Silu",
        [node("Mul", "x quick", "a"), node("Sigmoid", "a", "s"), node("Mul", "x s")],
    ),
    "x (1 + erf) half": ("Gelu", [*ERF, node("Mul", "x f", "g"), node("Mul", "g half")]),
    "half (x (1 + erf))": ("Gelu", [*ERF, node("Mul", "x f", "g"), node("Mul", "half g")]),
    "(x half) (1 + erf)": ("Gelu", [node("Mul", "x half", "h"), *ERF, node("Mul", "h f")]),
    "(x / two) (1 + erf)": ("Gelu", [node("Div", "x two", "h"), *ERF, node("Mul", "f h")]),
    "x (half (1 + erf))": ("Gelu", [*ERF, node("Mul", "half f", "g"), node("Mul", "x g")]),
    "x (half + half erf)": (
        "Gelu",
        [
            node("Mul", "inverse x", "d"),
            node("Erf", "d", "e"),
            node("Mul", "e half", "f"),
            node("Add", "half f", "g"),
            node("Mul", "g x"),
        ],
    ),
    "x (1 + erf)": ("Gelu", [*ERF, node("Mul", "x f")]),
} | {
    f"tanh gelu by {how}": (
        "GeluTanh",
        [*cube, *INNER, node("Add", "one e", "f"), node("Mul", "half x", "h"), node("Mul", "h f")],
    )
    for how, cube in CUBE.items()
}


@pytest.mark.parametrize("name", FUSED)
def test_written_out_activations_are_fused(name, tmp_path):
    op, nodes = FUSED[name]
    loaded = load_onnx(saved(model(nodes, ["N", 6], KNOWN), tmp_path))
    ops = loaded.graph.summary()
    assert ops[op] == 1 and not ops.keys() & {"Sigmoid", "Tanh"}
    # Around GELU: its constant 1 / sqrt(2) is rounded in the file, and taken as it is there.
    scales = {"quick gelu": 2, "x (1 + erf)": 3}.get(name, 2 if op == "Gelu" else 0)
    assert ops.get("Scale", 0) == scales
    assert_same(loaded)


@pytest.mark.parametrize("wrong", ["small", "t"])
def test_other_constants_are_not_taken_for_gelu(wrong, tmp_path):
    known = {**KNOWN, wrong: KNOWN[wrong] * number(1.01)}
    loaded = load_onnx(saved(model(FUSED["tanh gelu by pow"][1], ["N", 6], known), tmp_path))
    assert "GeluTanh" not in loaded.graph.summary()
    assert_same(loaded)


@pytest.mark.parametrize("wrong", ["root", "one"])
def test_what_only_looks_like_gelu_keeps_its_erf(wrong, tmp_path):
    known = {**KNOWN, wrong: KNOWN[wrong] * number(1.01)}
    loaded = load_onnx(saved(model(FUSED["x (1 + erf) half"][1], ["N", 6], known), tmp_path))
    assert loaded.graph.summary()["Erf"] == 1
    assert_same(loaded)
