"""Small networks of every kind for the checker, with the sites a certificate names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onnx_models import integers, model, node, number, saved

FEATURES, WIDTH, CLASSES = 5, 6, 3
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Net:
    path: Path
    shape: tuple[int, ...]
    sites: list[tuple[str, str, int]]

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """(count, classes), in double precision: the files hold doubles."""
        (y,) = ReferenceEvaluator(str(self.path)).run(None, {"x": x})
        return y.reshape(len(x), -1)


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape) / np.sqrt(shape[0])


def built(
    folder: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: Weights,
    sites: list[tuple[str, str, int]],
) -> Net:
    wide = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in constants.items()}
    proto = model(nodes, ("N", *shape), wide, opset=18, dtype=onnx.TensorProto.DOUBLE)
    return Net(saved(proto, folder), shape, sites)


def perceptron(op: str, kind: str, **attributes: float) -> Callable[..., Net]:
    """Two hidden layers of one activation."""

    def build(folder: Path, rng: np.random.Generator) -> Net:
        sizes = [FEATURES, WIDTH, WIDTH, CLASSES]
        nodes, known, sites = [], {}, []
        last = "x"
        for k, (n, m) in enumerate(pairwise(sizes)):
            known[f"w{k}"], known[f"b{k}"] = drawn(rng, n, m), rng.normal(size=m) * 0.1
            out = "y" if k == 2 else f"z{k}"
            nodes.append(node("Gemm", f"{last} w{k} b{k}", out))
            if k < 2:
                nodes.append(node(op, out, f"a{k}", **attributes))
                sites.append((f"a{k}", kind, m))
                last = f"a{k}"
        return built(folder, nodes, (FEATURES,), known, sites)

    return build


def convolutional(folder: Path, rng: np.random.Generator) -> Net:
    """Convolution, batch norm, max and average pooling, a branch around it all."""
    known = {
        "w": rng.normal(size=(3, 1, 3, 3)) / 3,
        "b": rng.normal(size=3) * 0.1,
        "scale": rng.uniform(0.5, 1.5, 3),
        "shift": rng.normal(size=3) * 0.1,
        "mean": rng.normal(size=3) * 0.1,
        "var": rng.uniform(0.5, 1.5, 3),
        "v": drawn(rng, 12, CLASSES),
        "u": drawn(rng, 36, CLASSES),
    }
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale shift mean var", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "m", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("AveragePool", "m", "p", kernel_shape=[2, 2]),
        node("Tanh", "p", "t"),
        node("Flatten", "t", "f"),
        node("MatMul", "f v", "g"),
        node("Flatten", "x", "h"),
        node("MatMul", "h u", "i"),
        node("Add", "g i", "y"),
    ]
    sites = [("r", "Relu", 108), ("m", "Max", 3 * 9 * 9), ("t", "Tanh", 12)]
    return built(folder, nodes, (1, 6, 6), known, sites)


def gated(folder: Path, rng: np.random.Generator) -> Net:
    """sigmoid(a) tanh(b) + sigmoid(c) d: the step of a recurrent network."""
    known = {f"w{k}": drawn(rng, FEATURES, WIDTH) for k in range(4)} | {
        "v": drawn(rng, WIDTH, CLASSES)
    }
    nodes = [node("MatMul", f"x w{k}", f"z{k}") for k in range(4)]
    nodes += [
        node("Sigmoid", "z0", "i"),
        node("Tanh", "z1", "g"),
        node("Sigmoid", "z2", "f"),
        node("Mul", "i g", "new"),
        node("Mul", "f z3", "kept"),
        node("Add", "new kept", "c"),
        node("Tanh", "c", "h"),
        node("MatMul", "h v", "y"),
    ]
    sites = [
        ("i", "Sigmoid", WIDTH),
        ("g", "Tanh", WIDTH),
        ("f", "Sigmoid", WIDTH),
        ("new", "Product", 2 * WIDTH),
        ("kept", "Product", 2 * WIDTH),
        ("h", "Tanh", WIDTH),
    ]
    return built(folder, nodes, (FEATURES,), known, sites)


def mixed(folder: Path, rng: np.random.Generator) -> Net:
    """Slices, concatenation, a maximum, powers, exp, log and a quotient."""
    known = {
        "w": drawn(rng, FEATURES, 8),
        "v": drawn(rng, 8, CLASSES),
        "zero": integers(0),
        "four": integers(4),
        "eight": integers(8),
        "one": integers(1),
        "two": number(2.0),
        "half": number(0.5),
    }
    nodes = [
        node("MatMul", "x w", "z"),
        node("Slice", "z zero four one", "p"),
        node("Slice", "z four eight one", "q"),
        node("Max", "p q", "m"),
        node("Pow", "p two", "s"),
        node("Add", "s half", "t"),
        node("Sqrt", "t", "root"),
        node("Exp", "m", "e"),
        node("Add", "e half", "u"),
        node("Log", "u", "l"),
        node("Div", "half t", "d"),
        node("Sub", "root d", "k"),
        node("Concat", "l k", "c", axis=1),
        node("MatMul", "c v", "y"),
    ]
    sites = [
        ("m", "Max", 8),
        ("s", "Power", 4),
        ("root", "Power", 4),
        ("e", "Exp", 4),
        ("l", "Log", 4),
        ("d", "Power", 4),
    ]
    return built(folder, nodes, (FEATURES,), known, sites)


def written_out(folder: Path, rng: np.random.Generator) -> Net:
    """SiLU as a product, whose nodes are one site."""
    known = {"w": drawn(rng, FEATURES, WIDTH), "v": drawn(rng, WIDTH, CLASSES)}
    nodes = [
        node("MatMul", "x w", "z"),
        node("Sigmoid", "z", "s"),
        node("Mul", "z s", "a"),
        node("MatMul", "a v", "y"),
    ]
    return built(folder, nodes, (FEATURES,), known, [("a", "Silu", WIDTH)])


NETWORKS: dict[str, Callable[..., Net]] = {
    "relu": perceptron("Relu", "Relu"),
    "leaky": perceptron("LeakyRelu", "LeakyRelu", alpha=0.125),
    "sigmoid": perceptron("Sigmoid", "Sigmoid"),
    "tanh": perceptron("Tanh", "Tanh"),
    "softplus": perceptron("Softplus", "Softplus"),
    "elu": perceptron("Elu", "Elu", alpha=1.5),
    "sin": perceptron("Sin", "Sin"),
    "abs": perceptron("Abs", "Abs"),
    "hard swish": perceptron("HardSwish", "HardSwish"),
    "hard sigmoid": perceptron("HardSigmoid", "Clip", alpha=0.25, beta=0.5),
    "atan": perceptron("Atan", "Arctan"),
    "convolutional": convolutional,
    "gated": gated,
    "mixed": mixed,
    "silu": written_out,
}
