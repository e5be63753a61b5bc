"""What is fuzzed: each target takes any bytes, and may end in nothing but its documented errors.

`run` returns normally, or raises what `allowed` names; anything else is a finding, and so is an
answer that is wrong where an oracle is at hand.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

import asking
import frown
import frown_check
from benchmarks.paper import formats
from check.writer import draft
from frown.errors import FrownError, InvalidInput, InvalidModel
from frown.problem.data import Columns, read_classes, read_data
from frown.problem.vnnlib import read_vnnlib
from frown.report.read import read_any
from frown_check.checker import BROKEN, Claim
from frown_check.errors import Refused
from frown_check.graph import Apply, Network
from frown_check.model import load
from frown_check.model.ending import IN_PLACE, INCREASING, SHARES
from frown_check.query import read_query as checkers_query
from fuzz import mutators, seeds

MOST_CLASSES = 100
MOST_FEATURES = 1 << 14  # larger networks may take as long and as much as they need


class Wrong(AssertionError):
    """An answer that an oracle contradicts."""


@dataclass(frozen=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    mutate: mutators.Mutator
    allowed: tuple[type[Exception], ...]
    most_bytes: int = 1 << 16


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="frown-fuzz-"))


def _file(name: str, content: bytes) -> Path:
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# -- the checker ----------------------------------------------------------------------------


def check_certificate(data: bytes) -> None:
    """Whatever the bytes, a verdict; what is accepted holds at the centre."""
    name = seeds.CERTIFIED[data[0] % len(seeds.CERTIFIED)] if data else "relu"
    model = folder() / f"{name}.onnx"
    if not model.exists():
        model.write_bytes(seeds.certified(name)[0])
    verdict = frown_check.check(data[1:], model, most_payload=1 << 24)
    if verdict.accepted != (verdict.reason == ""):
        raise Wrong(f"accepted {verdict.accepted}, because of {verdict.reason!r}")
    if verdict.reason.startswith(BROKEN):
        raise Wrong(verdict.reason)
    if verdict.accepted:
        assert verdict.claim is not None
        _holds(verdict.claim, model)


def _holds(claim: Claim, model: Path) -> None:
    x = claim.centre if claim.mean is None else (claim.centre - claim.mean) / claim.std
    y = _answer(model.read_bytes(), x)
    rest = max(y[o] for o in claim.others)
    if y[claim.label] < rest - 1e-6 * (1 + np.abs(y).max()):
        raise Wrong(f"class {claim.label} does not win at the centre: {y}")


def read_network(data: bytes) -> None:
    """The checker's reader and replay; its values are onnxruntime's."""
    if _declared(data) in range(MOST_FEATURES, 1 << 24):
        return
    path = _file("fuzzed.onnx", data)
    network = load(path, hashlib.sha256(data).hexdigest(), {}, None)
    ops = [network.graph.nodes[i].op for i in sorted(network.graph.needed(network.output.node))]
    sites = [(op.name, op.kind, _width(network, op)) for op in ops if isinstance(op, Apply)]
    count = len(network.output.index)
    if max(prod(network.shape), count) > MOST_FEATURES:
        return
    x = np.random.default_rng(0).uniform(-1, 1, network.shape)
    for radius in (0.0, 0.1):
        made = draft(
            path, sites, x, radius, 0, list(range(1, min(count, 4))) or [1], rows=count < 9
        )
        verdict = frown_check.check(made.file(), path)
        if verdict.reason.startswith(BROKEN):
            raise Wrong(verdict.reason)
        if verdict.margin is not None and count > 1:
            _not_above(verdict.margin, data, x, min(count, 4))


def _declared(data: bytes) -> int:
    """How many numbers the model reads; 0 where that is not said."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        return 0
    inputs = proto.graph.input
    return prod(max(1, d.dim_value) for d in inputs[0].type.tensor_type.shape.dim) if inputs else 0


def _width(network: Network, op: Apply) -> int:
    node = next(n for n in network.graph.nodes if n.op is op)
    return len(node.edges[0].index)


def _not_above(margin: float, data: bytes, x: np.ndarray, count: int) -> None:
    """A margin over the region is not above the margin at its centre."""
    try:
        y = _answer(data, x)
    except Exception:  # onnxruntime does not run it: there is nothing to compare with
        return
    if len(y) < count or not np.isfinite(y).all() or np.abs(y).max() > 1e6:
        return
    true = float(min(y[0] - y[o] for o in range(1, count)))
    if _order_alone(data):  # then margins are of what the last functions read
        margin = 0.0 if margin > 0 else -np.inf
    if margin > true + 1e-2 * (1 + np.abs(y).max()):
        raise Wrong(f"margin {margin} proved, {true} at the centre by onnxruntime")


def _order_alone(data: bytes) -> bool:
    """Whether a file ends in functions that keep the order of the outputs, which are left out."""
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    makers = {name: node for node in proto.graph.node for name in node.output}
    name = proto.graph.output[0].name
    while name in makers and makers[name].input:
        if makers[name].op_type in (*INCREASING, *SHARES):
            return True
        if makers[name].op_type not in IN_PLACE:
            return False
        name = makers[name].input[0]
    return False


def _answer(content: bytes, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    net = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    given = net.get_inputs()[0]
    kind = np.float64 if given.type == "tensor(double)" else np.float32
    x = x if len(given.shape) == x.ndim else x[None]
    return np.asarray(net.run(None, {given.name: x.astype(kind)})[0], dtype=np.float64).ravel()


# -- frown ----------------------------------------------------------------------------------


def load_model(data: bytes) -> None:
    """frown's reader, and CROWN once."""
    model = frown.load(_file("fuzzed.onnx", data))
    if model.classes > MOST_CLASSES or prod(model.input_shape) > MOST_FEATURES:
        return
    x = np.zeros((1, *model.input_shape))
    asking.certify(model, x, method="crown", eps=0.01, attack=False, time_limit=5)


def read_query(data: bytes) -> None:
    """A VNN-LIB query; where it is one, its boxes in floating point hold the exact ones."""
    for one in read_vnnlib(_file("query.vnnlib", data)).disjuncts[:100]:
        with np.errstate(over="ignore"):
            low, high = one.around(np.float32)
        for a, b, c, d in zip(low.tolist(), one.lower, one.upper, high.tolist(), strict=True):
            if not a <= b <= c <= d:
                raise Wrong(f"{a} <= {b} <= {c} <= {d}")


def read_query_twice(data: bytes) -> None:
    """A VNN-LIB query by the checker's reader; where frown reads it, too, no point satisfies what
    frown reads and no case of the checker's."""
    query = checkers_query(data)
    cases = list(islice(query.cases(), 200))
    try:
        ours = read_vnnlib(_file("query.vnnlib", data))
    except InvalidInput:
        return
    if (query.inputs, query.outputs) != (ours.inputs, ours.outputs):
        raise Wrong(f"{query.inputs}, {query.outputs} and {ours.inputs}, {ours.outputs}")
    if len(cases) == 200 or query.inputs + query.outputs > 50:
        return
    dice = random.Random(0)
    for _ in range(30):
        x = [Fraction(dice.randint(-12, 12), 8) for _ in range(query.inputs)]
        y = [Fraction(dice.randint(-12, 12), 8) for _ in range(query.outputs)]
        every = [*x, *y]
        found = any(
            all(a <= v <= b for a, v, b in zip(case.box.lower, x, case.box.upper, strict=True))
            and all(
                sum(c * every[k] for k, c in one.coef) + one.const <= 0 for one in case.constraints
            )
            for case in cases
        )
        if ours.satisfied(x, y) and not found:
            raise Wrong(f"{x}, {y} satisfies the query, and no case of the checker's")


def read_tables(data: bytes) -> None:
    """Inputs, labels, the paper's data sets and results, by the first byte."""
    kind, rest = (data[0], data[1:]) if data else (0, b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match kind % 10:
            case 0:
                read_data(_file("data.npz", rest))
            case 1:
                read_data(_file("data.npy", rest))
            case 2:
                path = _file("data.csv", rest)
                read_data(path)
                read_data(path, Columns(label_column="last"))
            case 3:
                read_classes(_file("labels.txt", rest), "y")
            case 4:
                labels = _file("labels-idx1", b"\0\0\x08\x01\0\0\0\x01\x05")
                formats.read_idx(_file("images-idx3", rest), labels)
            case 5:
                images = _file(
                    "images-idx3", bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28])
                )
                formats.read_idx(images, _file("labels-idx1.gz", rest))
            case 6:
                _file("test_batch.bin", rest)
                formats.read_cifar_folder(folder(), ["test_batch.bin"])
            case 7:
                formats.read_drive_text(_file("drive.txt", rest))
            case 8:
                formats.read_npz(_file("drive.npz", rest), ("x", "y"))
            case _:
                _file("run/results.jsonl", rest)
                read_any(folder() / "run")


TARGETS = {
    target.name: target
    for target in (
        Target(
            "certificate",
            check_certificate,
            seeds.certificates,
            mutators.certificate,
            (),
        ),
        Target("checker-onnx", read_network, seeds.models, mutators.network, (Refused,)),
        Target("onnx", load_model, seeds.models, mutators.network, (InvalidModel, FrownError)),
        Target("data", read_tables, seeds.data, mutators.table, (InvalidInput,)),
        Target("query", read_query, seeds.queries, mutators.query, (InvalidInput,)),
        Target("checker-query", read_query_twice, seeds.queries, mutators.query, (Refused,)),
    )
}
