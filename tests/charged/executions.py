"""Random networks, executed in single precision by onnxruntime and torch at points of a region,
against what is proved of their execution there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

import frown
from charged.kernels import session
from frown.bounds.arithmetic.executed import Execution
from frown.bounds.arithmetic.float32 import check_execution
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.errors import InvalidModel, ModelMismatch
from frown.graph.simplify import tidy
from frown.problem.property import LabelWins
from frown.problem.region import Region
from frown.read.model import Model
from frown.relax.relaxation import LeastArea
from onnx_models import model, node, saved

Run = Callable[[np.ndarray], np.ndarray]  # float32 (N, FEATURES) to (N, 2)
FEATURES = 6
RADII = (1e-9, 1e-6, 1e-3, 0.1)

_FUNCTIONS: list[tuple[str, dict[str, float]]] = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("Erf", {}),
    ("Atan", {}),
    ("Softplus", {}),
    ("Elu", {"alpha": 1.5}),
    ("Selu", {}),
    ("Celu", {"alpha": 0.7}),
    ("Gelu", {}),
    ("HardSwish", {}),
    ("HardSigmoid", {"alpha": 0.3}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("Abs", {}),
]
# Names, and how many numbers alpha and beta each takes.
_AT_GATES = {
    "Tanh": (0, 0),
    "Sigmoid": (0, 0),
    "Relu": (0, 0),
    "Softplus": (0, 0),
    "LeakyRelu": (1, 0),
    "Elu": (1, 0),
    "Affine": (1, 1),
    "ScaledTanh": (1, 1),
    "HardSigmoid": (1, 1),
}


@dataclass
class _Writer:
    """A model file as it grows."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    known: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, op: str, inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.known)}"
        self.known[name] = value
        return name

    def weight(self, *shape: int, size: float | None = None) -> str:
        size = 2.0 ** self.rng.uniform(-3, 3) if size is None else size
        return self.constant((size * self.rng.normal(size=shape)).astype(np.float32))

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self.add("Gemm", f"{x} {self.weight(inputs, outputs)} {self.weight(outputs)}")

    def function(self, x: str) -> str:
        name, more = _FUNCTIONS[int(self.rng.integers(len(_FUNCTIONS)))]
        return self.add(name, x, **more)

    def normalised(self, x: str, channels: int) -> str:
        """A batch normalisation, now and then with a mean that cancels."""
        far = 10.0 ** self.rng.integers(-1, 4)
        variance = self.constant((2.0 ** self.rng.uniform(-9, 9, channels)).astype(np.float32))
        parts = [self.weight(channels), self.weight(channels), self.weight(channels, size=far)]
        return self.add("BatchNormalization", f"{x} {' '.join(parts)} {variance}")

    def blocks(self) -> str:
        """Dense layers with branches, normalisations and gates."""
        x, width = "x", FEATURES
        for _ in range(self.rng.integers(1, 4)):
            inner = int(self.rng.choice([1, 5, 8, 17]))
            y = self.dense(x, width, inner)
            if self.rng.random() < 0.4:
                y = self.normalised(y, inner)
            z = self.function(y)
            kind = self.rng.random()
            if kind < 0.25:
                z = self.add("Mul", f"{z} {self.add('Sigmoid', self.dense(x, width, inner))}")
            elif kind < 0.4:
                z = self.add("Mul", f"{y} {self.add('Sigmoid', y)}")
            elif kind < 0.6:
                z = self.add("Add", f"{z} {y}")
            x, width = z, inner
        return self.dense(x, width, 2)

    def images(self) -> str:
        x = self.add("Reshape", f"x {self.constant(np.array([-1, 1, 2, 3]))}")
        channels = int(self.rng.choice([2, 16]))
        x = self.add("Conv", f"{x} {self.weight(channels, 1, 2, 2)} {self.weight(channels)}")
        if self.rng.random() < 0.7:
            x = self.normalised(x, channels)
        x = self.function(x)
        pool = str(self.rng.choice(["AveragePool", "MaxPool", "GlobalAveragePool"]))
        x = self.add(pool, x, **({} if pool[0] == "G" else {"kernel_shape": [1, 2]}))
        return self.dense(self.add("Flatten", x), channels, 2)

    def recurrent(self) -> str:
        x = self.add("Reshape", f"x {self.constant(np.array([-1, 3, 2]))}")
        x = self.add("Transpose", x, perm=[1, 0, 2])
        kind, gates, functions = (("RNN", 1, 1), ("GRU", 3, 2), ("LSTM", 4, 3))[
            int(self.rng.integers(3))
        ]
        more: dict[str, Any] = {}
        if self.rng.random() < 0.6:
            names = [str(n) for n in self.rng.choice(list(_AT_GATES), functions)]
            counts = [_AT_GATES[n] for n in names]
            more["activations"] = names
            for k, which in enumerate(("activation_alpha", "activation_beta")):
                numbers = self.rng.uniform(0.2, 1.2, sum(c[k] for c in counts))
                more |= {which: numbers.tolist()} if len(numbers) else {}
        if kind == "GRU":
            more["linear_before_reset"] = int(self.rng.integers(2))
        size = int(self.rng.choice([1, 4, 9]))
        scale = 2.0 ** self.rng.uniform(-1, 2)
        weight = self.weight(1, gates * size, 2, size=scale)
        again = self.weight(1, gates * size, size, size=0.7)
        bias = self.weight(1, 2 * gates * size)
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            node(kind, f"{x} {weight} {again} {bias}", f"u {name}", hidden_size=size, **more)
        )
        return self.dense(self.add("Squeeze", f"{name} {self.constant(np.array([0]))}"), size, 2)


def onnx_network(rng: np.random.Generator) -> onnx.ModelProto:
    writer = _Writer(rng)
    kind = rng.random()
    last = writer.blocks() if kind < 0.5 else writer.images() if kind < 0.7 else writer.recurrent()
    return model(writer.nodes, ["N", FEATURES], writer.known, opset=20, outputs=(last,))


class _Last(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(2, 9, batch_first=True)
        self.out = nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.out(self.cell(x.reshape(-1, 3, 2))[0][:, -1])
        return answer


def torch_network(rng: np.random.Generator) -> nn.Module:
    torch.manual_seed(int(rng.integers(2**31)))
    if rng.random() < 0.4:
        module: nn.Module = _Last(str(rng.choice(["RNN", "GRU", "LSTM"])))
    else:
        functions = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.ELU, nn.SELU, nn.SiLU, nn.GELU)
        more = (nn.Hardswish, nn.Hardsigmoid, nn.CELU, nn.LogSigmoid, nn.LeakyReLU)
        layers: list[nn.Module] = []
        width = FEATURES
        for _ in range(rng.integers(1, 4)):
            inner = int(rng.choice([3, 8, 17]))
            layers += [nn.Linear(width, inner), rng.choice([*functions, *more])()]
            width = inner
        module = nn.Sequential(*layers, nn.Linear(width, 2))
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2.0 ** rng.uniform(0, 3))
    return module.eval()


def proved(loaded: Model, centre: np.ndarray, radius: float, p: float) -> tuple[float, float]:
    """What bounds y_0 - y_1 as executed over a ball, from below and above."""
    graph = tidy(loaded.graph)
    check_execution(graph)
    x = torch.from_numpy(centre).reshape(1, *graph.input_shape)
    region = Region(x, torch.tensor([radius], dtype=torch.float64), p)
    plan = Plan(graph)
    execution = Execution(plan, region, Work())
    walk = Replay(plan, region, ByRule(LeastArea()), Work(), execution=execution)
    walk.layers()
    one, other = torch.zeros(1).long(), torch.ones(1, 1).long()
    least = walk.literals(LabelWins(one, other, 2, torch.float64))
    most = -walk.literals(LabelWins(other[0], one[None], 2, torch.float64))
    return float(least), float(most)


def _points(rng: np.random.Generator, centre: np.ndarray, radius: float, p: float) -> np.ndarray:
    """The centre, corners and other points of a ball."""
    step = rng.normal(size=(120, FEATURES))
    if p == np.inf:
        step[:60] = np.sign(step[:60])
        step[60:] = rng.uniform(-1, 1, step[60:].shape)
    elif p == 2:
        step /= np.linalg.norm(step, axis=1, keepdims=True)
    else:
        axis = np.abs(step).argmax(1)
        step = np.sign(step) * np.eye(FEATURES)[axis]
    return np.concatenate([centre[None], centre + step * (radius * (1 - 1e-12))])


@dataclass(frozen=True, slots=True)
class Tried:
    statements: int
    false: list[str]
    useful: int  # statements that say something
    closest: float  # the least share of the proven width that was left
    refused: bool = False  # as it was read


def tried(rng: np.random.Generator, folder: Path) -> Tried:
    """One network, in four balls."""
    runs: list[Run]
    if rng.random() < 0.7:
        proto = onnx_network(rng)
        try:
            loaded = frown.load(saved(proto, folder))
        except ModelMismatch:
            # Gates without bounds let a recurrent state explode, and its rounding errors with it.
            return Tried(0, [], 0, np.inf, refused=True)
        except InvalidModel as refused:
            if "NaN or infinity" not in str(refused):
                raise
            return Tried(0, [], 0, np.inf, refused=True)  # it overflows everywhere
        calls = [session(proto, optimised) for optimised in (True, False)]
        runs = [lambda x, call=call: call({"x": x})[0] for call in calls]  # type: ignore[misc]
        name = " ".join(n.op_type for n in proto.graph.node)
    else:
        module = torch_network(rng)
        loaded, name = frown.load(module, torch.zeros(1, FEATURES)), str(module)

        def run(x: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return np.asarray(module(torch.from_numpy(x)).numpy())

        runs = [run]
    statements, useful, false, closest = 0, 0, [], np.inf
    for radius in RADII:
        p = float(rng.choice([1, 2, np.inf]))
        centre = rng.normal(size=FEATURES)
        least, most = proved(loaded, centre, radius, p)
        x = _points(rng, centre, radius, p).astype(np.float32)
        for call in runs:
            y = call(x).astype(np.float64).reshape(len(x), 2)
            gap = y[:, 0] - y[:, 1]
            statements += len(x)
            if not (np.isfinite(least) and np.isfinite(most)):
                continue
            useful += len(x)
            if not ((least <= gap) & (gap <= most)).all():
                false.append(f"{name}: {gap.min()} to {gap.max()}, not {least} to {most}")
            if most > least:
                closest = min(closest, (gap.min() - least) / (most - least))
    return Tried(statements, false, useful, float(closest))
