"""RNN, LSTM and GRU, unrolled: values beside onnxruntime's, and the order of their sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from check.test_operators import replayed
from check.writer import draft
from frown_check import check
from onnx_models import model, node, saved, weights

FRAMES, FEATURES, SIZE = 3, 4, 5
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
STEP = {
    "RNN": [("Tanh", 1)],
    "LSTM": [
        ("Sigmoid", 1),
        ("Tanh", 1),
        ("Sigmoid", 1),
        ("Product", 2),
        ("Product", 2),
        ("Sigmoid", 1),
        ("Tanh", 1),
        ("Product", 2),
    ],
    "GRU": [("Sigmoid", 1), ("Sigmoid", 1), ("Product", 2), ("Tanh", 1), ("Product", 2)],
}


def network(folder: Path, op: str, **attributes: Any) -> Path:
    """(1, frames, features) to the flattened outputs of every frame, times a matrix."""
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op] * SIZE
    known = {
        "w": weights(ways, rows, FEATURES, seed=1) * 0.5,
        "r": weights(ways, rows, SIZE, seed=2) * 0.5,
        "b": weights(ways, 2 * rows, seed=3) * 0.5,
        "shape": np.array([1, -1]),
        "v": weights(FRAMES * ways * SIZE, 3, seed=4),
    }
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node(op, "t w r b", "h", hidden_size=SIZE, **attributes),
        node("Reshape", "h shape", "flat"),
        node("MatMul", "flat v", "y"),
    ]
    return saved(model(nodes, ("N", FRAMES, FEATURES), known, opset=14), folder)


def sites(op: str, ways: int) -> list[tuple[str, str, int]]:
    """In the first frame products with the state 0 are none, but for GRU's last."""
    first = [s for k, s in enumerate(STEP[op]) if not _of_state(op, k)]
    frames = [first, *[STEP[op]] * (FRAMES - 1)] * ways
    return [("h", kind, count * SIZE) for frame in frames for kind, count in frame]


def _of_state(op: str, place: int) -> bool:
    return (op, place) in {("LSTM", 3), ("GRU", 2)}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "reset"), [("RNN", 0), ("LSTM", 0), ("GRU", 0), ("GRU", 1)])
def test_values_are_those_of_onnxruntime(
    op: str, reset: int, direction: str, tmp_path: Path
) -> None:
    more = {"linear_before_reset": reset} if op == "GRU" else {}
    path = network(tmp_path, op, direction=direction, **more)
    x = weights(FRAMES, FEATURES)
    replay = replayed(path, sites(op, 1 + (direction == "bidirectional")), x)
    low, high = (end[0, replay.output.index] for end in replay.root.boxes[replay.output.node])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x[None]})
    assert np.allclose(y.ravel(), low, atol=1e-5) and (high - low < 1e-9).all()


@pytest.mark.parametrize("op", GATES)
def test_proved_margins_hold(op: str, tmp_path: Path) -> None:
    path = network(tmp_path, op)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(FRAMES, FEATURES))
    (y,) = session.run(None, {"x": x[None].astype(np.float32)})
    label = int(y.argmax())
    others = [o for o in range(3) if o != label]
    for choice in (None, rng):
        cert = draft(path, sites(op, 1), x, 0.02, label, others, rng=choice)
        verdict = check(cert.file(), path)
        moved = (x + rng.uniform(-0.02, 0.02, (60, FRAMES, FEATURES))).astype(np.float32)
        y = np.concatenate([session.run(None, {"x": v[None]})[0] for v in moved])
        assert verdict.margin is not None
        assert verdict.margin <= (y[:, [label]] - y[:, others]).min() + 1e-5


@pytest.mark.parametrize(
    "attributes",
    [{"clip": 3.0}, {"activations": ["Softsign"]}, {"direction": "sideways"}],
)
def test_other_forms_are_refused(attributes: dict[str, Any], tmp_path: Path) -> None:
    path = network(tmp_path, "RNN", **attributes)
    verdict = check(draft(path, [], np.zeros((FRAMES, FEATURES)), 0.0, 0, [1]).file(), path)
    assert "RNN at h" in verdict.reason and "not supported by the checker" in verdict.reason
