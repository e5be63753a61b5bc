"""Valid certificates of many kinds, with points at which larger claims are false.

A witness is a point at which another class wins by more than SURE, as onnxruntime computes the
file: a thousand times the rounding errors of these small networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import asking
import frown
import frown_check
from check.networks import NETWORKS, drawn
from onnx_models import model, node, saved
from tamper.statement import Statement, stated

SURE = 1e-3
CLASSES = 3


def convolutional(folder: Path, rng: np.random.Generator) -> Path:
    """Convolution, batch norm, max and average pooling, a branch around it all."""
    known = {
        "w": rng.normal(size=(2, 1, 3, 3)) / 2,
        "b": rng.normal(size=2) * 0.1,
        "scale": rng.uniform(0.5, 1.5, 2),
        "shift": rng.normal(size=2) * 0.1,
        "mean": rng.normal(size=2) * 0.1,
        "var": rng.uniform(0.5, 1.5, 2),
        "v": drawn(rng, 2, CLASSES) * 2,
        "u": drawn(rng, 16, CLASSES),
    }
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale shift mean var", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", "m", "p", kernel_shape=[2, 2]),
        node("Flatten", "p", "f"),
        node("MatMul", "f v", "g"),
        node("Flatten", "x", "h"),
        node("MatMul", "h u", "i"),
        node("Add", "g i", "y"),
    ]
    single = {k: v.astype(np.float32) for k, v in known.items()}
    return saved(model(nodes, ("N", 1, 4, 4), single, opset=15), folder)


def recurrent(op: str, gates: int, folder: Path, rng: np.random.Generator) -> Path:
    """Two frames of three features, three hidden units."""
    known = {
        "w": rng.normal(size=(1, 3 * gates, 3)) * 0.7,
        "r": rng.normal(size=(1, 3 * gates, 3)) * 0.7,
        "b": rng.normal(size=(1, 6 * gates)) * 0.3,
        "v": rng.normal(size=(6, CLASSES)),
    }
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node(op, "t w r b", "h", hidden_size=3),
        node("Reshape", "h shape", "flat"),
        node("MatMul", "flat v", "y"),
    ]
    single = {k: v.astype(np.float32) for k, v in known.items()} | {"shape": np.array([1, -1])}
    return saved(model(nodes, ("N", 2, 3), single, opset=14), folder)


def build(name: str, folder: Path, rng: np.random.Generator) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if name == "convolutional":
        return convolutional(folder, rng)
    if name in ("LSTM", "GRU"):
        return recurrent(name, {"LSTM": 4, "GRU": 3}[name], folder, rng)
    return NETWORKS[name](folder, rng).path


@dataclass(frozen=True, slots=True)
class Kind:
    """A network and a question about it."""

    network: str
    norm: float
    method: str = "frown"
    options: dict[str, Any] = field(default_factory=dict)
    bounded: bool = False  # in a valid range
    normalised: bool = False
    targeted: bool = False

    def __str__(self) -> str:
        extras = [*self.options, *(n for n in ("bounded", "normalised", "targeted") if self.has(n))]
        return " ".join([self.network, f"l{self.norm:g}", self.method, *extras])

    def has(self, name: str) -> bool:
        return bool(getattr(self, name))


KINDS = (
    Kind("relu", inf),
    Kind("relu", 2.0, "crown", targeted=True),
    Kind("relu", 1.0, bounded=True),
    Kind("tanh", 2.0, bounded=True, normalised=True),
    Kind("elu", 1.0, targeted=True),
    Kind("sigmoid", inf, "crown", {"scale": [1.0, 0.5, 0.0, 2.0, 1.0]}),
    Kind("tanh", 1.5),
    Kind("convolutional", inf, bounded=True),
    Kind("convolutional", 2.0, "crown", normalised=True),
    Kind("convolutional", 1.0, targeted=True),
    Kind("relu", 2.0, "frown", {"curved": "always"}),
    Kind("gated", 2.0),
    Kind("gated", inf, "crown", bounded=True),
    Kind("mixed", inf),
    Kind("silu", 3.0, normalised=True),
    Kind("LSTM", inf),
    Kind("LSTM", 2.0, "crown", {"frames": "each"}),
    Kind("GRU", 2.0, "crown", {"frames": "0"}),
    Kind("GRU", 1.0, "crown", targeted=True),
)


@dataclass(frozen=True, eq=False)
class Base:
    """A certificate that the checker accepts, and witnesses against larger claims."""

    kind: Kind
    path: Path  # of the model
    content: bytes
    loaded: frown.Model  # without a normalisation

    @cached_property
    def statement(self) -> Statement:
        return stated(self.content)

    @cached_property
    def model_bytes(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def session(self) -> Any:
        return session(self.model_bytes)

    def outputs(self, x: np.ndarray, mean: Any = None, std: Any = None) -> np.ndarray:
        """(N, classes); with the statement's own normalisation unless another is given."""
        mean = self.statement.mean if mean is None else mean
        std = self.statement.std if std is None else std
        return run(self.session, (x - mean) / std)

    @cached_property
    def witnesses(self) -> dict[int, np.ndarray]:
        """By class: points (K, *shape) at which it beats the label for sure, near ones first."""
        s, rng = self.statement, np.random.default_rng(5)
        shape = s.centre.shape
        found: dict[int, np.ndarray] = {}
        for o in range(CLASSES):
            if o == s.label:
                continue
            ways = [self._towards(o, rng), rng.normal(size=(60, *shape))]
            ways.append(np.sign(ways[1]) * rng.integers(0, 2, ways[1].shape))
            direction = np.concatenate(ways)
            steps = np.geomspace(1e-3, 16, 80)
            near = []
            for d in direction:
                if not d.any():
                    continue
                d = d / np.abs(d).max()
                free = s.centre + steps.reshape(-1, *([1] * len(shape))) * d
                inside = np.where(s.scale > 0, np.clip(free, s.lower, s.upper), s.centre)
                for points in (free, inside):
                    y = self.outputs(points)
                    good = np.flatnonzero(y[:, o] - y[:, s.label] > SURE)
                    if len(good):
                        near.append(points[good[0]])
            near.sort(key=lambda x: float(np.linalg.norm(x - s.centre)))
            if near:
                found[o] = np.stack(near[:60])
        return found

    def _towards(self, o: int, rng: np.random.Generator) -> np.ndarray:
        """Directions in which class o gains, from differences along the axes."""
        s = self.statement
        steps = np.eye(s.centre.size).reshape(-1, *s.centre.shape) * 1e-2
        y = self.outputs(np.concatenate([s.centre[None], s.centre + steps]))
        gain = (y[1:, o] - y[1:, s.label]) - (y[0, o] - y[0, s.label])
        gain = gain.reshape(s.centre.shape)
        noise = gain * rng.uniform(0.3, 1.0, (20, *gain.shape))
        best = np.where(np.abs(gain) == np.abs(gain).max(), gain, 0.0)
        return np.concatenate([np.stack([gain, np.sign(gain), best]), noise])

    @property
    def points(self) -> np.ndarray:
        """All witnesses."""
        return np.concatenate(list(self.witnesses.values()))

    def refuted(self, s: Statement, net: Any = None) -> bool:
        """Whether a witness or the centre contradicts a statement about this file, or about
        another one that `net` runs."""
        if s.centre.shape != self.statement.centre.shape:
            return False
        points = np.concatenate([s.centre[None], self.points])
        y = run(net or self.session, (points - s.mean) / s.std)
        margin = y[:, s.label] - y[:, list(s.others)].max(1)
        return any(m < -SURE and s.contains(x) for m, x in zip(margin, points))


def session(content: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(net: Any, x: np.ndarray) -> np.ndarray:
    given = net.get_inputs()[0]
    x = x.astype(np.float64 if given.type == "tensor(double)" else np.float32)
    if any(n.op_type in ("LSTM", "GRU") for n in _nodes(net)):
        return np.concatenate([net.run(None, {given.name: v[None]})[0] for v in x])
    return net.run(None, {given.name: x})[0].reshape(len(x), -1)


def _nodes(net: Any) -> list[onnx.NodeProto]:
    # The recurrent files flatten to a batch of one.
    return [onnx.helper.make_node("LSTM", [], [])] if len(net.get_inputs()[0].shape) == 3 else []


def bases(folder: Path, seed: int, kinds: tuple[Kind, ...] = KINDS) -> Iterator[Base]:
    """One valid certificate of each kind, for networks and inputs of this seed."""
    for k, kind in enumerate(kinds):
        tries = (_certified(kind, [seed, k, t], folder / f"{k}-{t}") for t in range(200))
        yield next(base for base in tries if base is not None)


def _certified(kind: Kind, seed: list[int], folder: Path) -> Base | None:
    """A network, an input at which it is sure enough and can be misled, and its certificate."""
    rng = np.random.default_rng(seed)
    path = build(kind.network, folder, rng)
    loaded = frown.load(path)
    used = loaded.normalised(0.25, 2.0) if kind.normalised else loaded
    x = rng.uniform(-1, 1, (1, *loaded.input_shape))
    y = used.run(x)
    label = int(y.argmax())
    if np.sort(y[0])[-2] > y[0, label] - 0.05:
        return None
    found = asking.certify(
        used,
        x,
        [label],
        norm=kind.norm,
        method=kind.method,
        target=int(y.argmin()) if kind.targeted else None,
        bounds=(x[0] - 0.5, x[0] + 0.75) if kind.bounded else None,
        attack=False,
        certificates=folder / "proofs",
        **kind.options,
    )
    if not found.rows[0].certificate:
        return None
    base = Base(kind, path, (folder / "proofs" / found.rows[0].certificate).read_bytes(), loaded)
    verdict = frown_check.check(base.content, path)
    if not verdict.accepted:
        raise AssertionError(f"{kind}: {verdict.reason}")
    if "curved" in kind.options and base.content[:8] != b"FROWNC03":
        return None  # nothing was gained by bending
    if not any(o in base.statement.others for o in base.witnesses):
        return None
    return base
