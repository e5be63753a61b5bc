"""Small valid files from which the fuzzer starts."""

from __future__ import annotations

import gzip
import io
import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from check.networks import NETWORKS
from check.writer import draft
from onnx_models import integers, model, node, number, weights

CERTIFIED = ("relu", "tanh", "gated")  # the models of certificates


@cache
def certified(name: str) -> tuple[bytes, bytes]:
    """A model of tests/check and a certificate of it."""
    rng = np.random.default_rng(3)
    with TemporaryDirectory() as folder:
        net = NETWORKS[name](Path(folder), rng)
        x = rng.uniform(-1, 1, (1, *net.shape))
        y = net.outputs(x)[0]
        others = [o for o in range(len(y)) if o != y.argmax()]
        more = {"scale": 1.5, "bounds": (x[0] - 1, x[0] + 1)} if name == "tanh" else {}
        made = draft(net.path, net.sites, x[0], 1e-3, int(y.argmax()), others, rng=rng, **more)
        return net.path.read_bytes(), made.file()


def certificates() -> list[bytes]:
    """The first byte chooses the model."""
    return [bytes([k]) + certified(name)[1] for k, name in enumerate(CERTIFIED)]


def models() -> list[bytes]:
    """Networks of tests/check, and operators that they do not have."""
    rng = np.random.default_rng(0)
    found = []
    with TemporaryDirectory() as folder:
        for name in ("relu", "mixed", "gated", "convolutional", "silu", "hard swish"):
            found.append(NETWORKS[name](Path(folder), rng).path.read_bytes())
    for nodes, shape, known in _small():
        found.append(model(nodes, ("N", *shape), known, opset=17).SerializeToString())
    return found


def _small():
    w = weights
    yield (
        [
            node("Conv", "x w b", "c", strides=[2, 1], pads=[1, 0, 1, 0], group=2),
            node("BatchNormalization", "c s s s v", "n"),
            node("MaxPool", "n", "m", kernel_shape=[2, 2], ceil_mode=1),
            node("GlobalAveragePool", "m", "g"),
            node("Flatten", "g", "y"),
        ],
        (2, 5, 4),
        {"w": w(4, 1, 2, 2), "b": w(4), "s": w(4), "v": np.abs(w(4)) + 1},
    )
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        yield (
            [
                node("Transpose", "x", "t", perm=[1, 0, 2]),
                node(op, "t w r b", "h", hidden_size=2),
                node("Reshape", "h shape", "f"),
                node("MatMul", "f v", "y"),
            ],
            (2, 3),
            {
                "w": w(1, 2 * gates, 3),
                "r": w(1, 2 * gates, 2),
                "b": w(1, 4 * gates),
                "shape": integers(1, -1),
                "v": w(4, 3),
            },
        )
    yield (
        [
            node("Gemm", "x w b", "z", transB=1, alpha=0.5, beta=2.0),
            node("Clip", "z low high", "c"),
            node("LeakyRelu", "c", "l", alpha=0.125),
            node("Split", "l", "p q", axis=1),
            node("Concat", "q p", "j", axis=-1),
            node("Pad", "j pads", "d"),
            node("Slice", "d starts ends axes", "e"),
            node("Unsqueeze", "e axes", "u"),
            node("Expand", "u size", "f"),
            node("ReduceMean", "f", "r", axes=[1]),
            node("Squeeze", "r", "s"),
            node("Reshape", "s shape", "y"),
        ],
        (3,),
        {
            "w": w(4, 3),
            "b": w(4),
            "low": number(-1),
            "high": number(1),
            "pads": integers(0, 1, 0, 1),
            "starts": integers(0),
            "ends": integers(4),
            "axes": integers(1),
            "size": integers(1, 2, 4),
            "shape": integers(1, -1),
        },
    )
    yield (
        [
            node("MatMul", "x w", "z"),
            node("LayerNormalization", "z s b", "n", axis=-1),
            node("Softmax", "n", "p"),
            node("Mul", "p n", "m"),
            node("ReduceSum", "m axes", "r", keepdims=1),
            node("Shape", "z", "k"),
            node("ConstantOfShape", "k", "o"),
            node("Add", "o r", "y"),
        ],
        (3,),
        {"w": w(3, 4), "s": w(4), "b": w(4), "axes": integers(1)},
    )


def _saved(save, *arrays, **named) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def data() -> list[bytes]:
    """The first byte chooses the reader."""
    x, y = np.arange(12.0).reshape(3, 4), np.array([0, 1, 2])
    found = [
        (0, _saved(np.savez, x=x, y=y, target=y)),
        (0, _saved(np.savez_compressed, x=x.astype(np.float32), z=y)),
        (1, _saved(np.save, x.astype(np.int16))),
        (2, b"a,b,y\n1,2.5,0\n-3e4,4,1\n"),
        (2, b'"x1","x2",label,target\n1,2,0,1\n'),
        (3, b"1 2\n"),
        (3, b"y\n0\n1\n"),
        (4, struct.pack(">4I", 0x803, 1, 28, 28) + bytes(784)),
        (5, gzip.compress(struct.pack(">2I", 0x801, 2) + b"\1\2")),
        (6, bytes([3]) + bytes(3072)),
        (7, b" ".join([b"1.5"] * 48) + b" 11\n"),
        (8, _saved(np.savez, x=np.zeros((3, 48)), y=y)),
        (9, RESULTS),
    ]
    return [bytes([k]) + content for k, content in found]


RESULTS = (
    b'{"index": 0, "label": 1, "prediction": 1, "target": null, "norm": "inf", "method": "crown", '
    b'"status": "certified", "radius": 0.1, "failed": 0.2, "broken": null, "margins": {"0": 0.5}, '
    b'"seconds": 0.1, "level": "rigorous", "certificate": "", "complete": true, "remark": "", '
    b'"frames": "all", "settings": {"sensitivity": false}, "version": "0.1.0", "model": "ab"}\n'
)


def queries() -> list[bytes]:
    """VNN-LIB queries of both versions: a box and a conjunction, cases with boxes, terms of all
    kinds."""
    head = "".join(f"(declare-const {v} Real)\n" for v in ("X_0", "X_1", "Y_0", "Y_1"))
    box = "(assert (>= X_0 -0.1))(assert (<= X_0 1))(assert (and (<= 0 X_1) (<= X_1 1e-3)))"
    asked = (
        "(assert (<= Y_0 Y_1)) ; a remark",
        "(assert (or (and (<= X_0 0.5) (>= Y_0 3.25)) (and (>= X_0 0.5) (<= (* 2 Y_1) (- Y_0)))))",
        "(assert (= (+ Y_0 (/ X_1 3) 0.5) (- Y_1 (* 2 (+ Y_0 1)))))(check-sat)",
    )
    texts = [(head + box + one).encode() for one in asked]
    second = "(vnnlib-version <2.0>)(declare-network f (declare-input A real [1,2])"
    second += "(declare-output B real [2]))(assert (and (>= A[0,0] 0.0) (< A[0,0] 1.0)))"
    second += "(assert (<= -1.0 A[0, 1]))(assert (<= A[0,1] 0.5))"
    both = (
        "(assert (or (<= B[0] (* 2.0 A[0,0])) (!= B[1] 0.5)))",
        "(assert (>= (+ A[0,0] A[0,1]) 0.25))(assert (== B[1] (- B[0])))",
    )
    texts += [(second + one).encode() for one in both]
    return [*texts, gzip.compress(texts[0])]
