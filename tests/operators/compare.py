"""What frown and the checker read in a model, beside what onnxruntime answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from frown.errors import FrownError
from frown.read.model import Model
from frown.read.onnx.load import load_onnx
from frown_check.balls import Array, between
from frown_check.errors import Refused
from frown_check.graph import Affine, Apply, Network
from frown_check.model import load
from operators.table import TABLE, Drawn, drawn

ROUNDING = 2e-4  # of the largest of the answers, and of 1
# Variances of nearly equal numbers cancel in single precision.
ROUGH = {"InstanceNormalization", "GroupNormalization", "LayerNormalization"}
SCALES = (0.1, 1.0, 3.0, 30.0, 300.0)  # of the inputs: thresholds may lie far out


@dataclass
class Found:
    """What was compared, and where readers differ from onnxruntime."""

    count: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)  # by operator and reader
    wrong: list[str] = field(default_factory=list)

    def differ(self, case: Drawn, kind: str, text: str) -> None:
        self.wrong.append(f"{kind}: {text}: {case}")


def points(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Inputs near and far, whole numbers, ties and positive ones: (points, *shape)."""
    found = [s * rng.normal(size=shape) for s in SCALES]
    found += [np.abs(found[1]) + 0.1, rng.integers(-3, 4, shape), np.zeros(shape)]
    found += [np.where(rng.random(shape) < 0.5, -50.0, 50.0)]
    return np.stack(found).astype(np.float32).astype(np.float64)


def evaluated(network: Network, x: Array) -> Array | None:
    """The middle of what the checker encloses at a point; None where it encloses nothing."""
    graph = network.graph
    boxes: dict[int, tuple[Array, Array]] = {0: (x.ravel(), x.ravel())}
    for i in sorted(graph.needed(network.output.node) - {0}):
        node = graph.nodes[i]
        if isinstance(node.op, Apply):
            (edge,) = node.edges
            ends = (edge.read(e[None]).reshape(-1, node.op.count) for e in boxes[edge.node])
            low, high = node.op.frame(*ends).image()
            boxes[i] = low.ravel(), high.ravel()
            continue
        assert isinstance(node.op, Affine)
        xs = [between(*(e.read(end[None]) for end in boxes[e.node])) for e in node.edges]
        low, high = node.op.forward(xs).ends()
        boxes[i] = low[0], high[0]
    low, high = (network.output.read(e[None])[0] for e in boxes[network.output.node])
    if not (np.isfinite(low) & np.isfinite(high)).all():
        return None
    return np.asarray((low + high) / 2)


def compare(case: Drawn, tail: bool, fold: bool, folder: Path, found: Found) -> None:
    """Evaluate one model by all three at the same points. Without `tail` a last function may be
    left out, so then the order of the outputs is compared."""
    rng, op = case.dice.rng, case.dice.op
    constant = points(case.shape, rng)[int(rng.integers(3))].astype(np.float32) if fold else None
    path = folder / "model.onnx"
    path.write_bytes(case.model(tail, constant).SerializeToString())
    found.count["models"] += 1
    ours = _frown(path, found, case)
    theirs = _checker(path, found, case)
    if ours is None:
        if theirs is not None:
            found.count["read by the checker alone"] += 1
        return
    inside = points(ours.input_shape, rng)
    try:
        answers = ours.run(inside)
    except FrownError:
        found.count["not run by onnxruntime"] += 1
        return
    found.read[f"{op} frown"] += 1
    graph = ours.graph if tail else ours.ranking
    mine = graph.apply(torch.from_numpy(inside)).reshape(len(inside), -1).numpy()
    _match(answers, mine, tail, "frown", case, found)
    if theirs is None:
        return
    found.read[f"{op} checker"] += 1
    if len(theirs.output.index) != answers.shape[1]:
        found.differ(case, "checker", f"{len(theirs.output.index)} outputs")
        return
    values = np.full_like(answers, np.nan)
    for k, x in enumerate(inside):
        try:
            with np.errstate(all="ignore"):
                value = evaluated(theirs, x)
        except Refused:
            continue
        if value is not None:
            values[k] = value
    _match(answers, values, tail, "checker", case, found)


def _frown(path: Path, found: Found, case: Drawn) -> Model | None:
    """The model as read, its comparison with onnxruntime switched off."""
    with patch.object(Model, "check", lambda self: None):
        try:
            return load_onnx(path)
        except FrownError as error:
            void = "onnxruntime" in str(error)
            found.count["not run by onnxruntime" if void else "refused by frown"] += 1
            return None


def _checker(path: Path, found: Found, case: Drawn) -> Network | None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        with np.errstate(all="ignore"):
            return load(path, digest, {}, None)
    except Refused:
        found.count["refused by the checker"] += 1
        return None


def _match(answers: Array, values: Array, exact: bool, who: str, case: Drawn, found: Found) -> None:
    if answers.shape != values.shape:
        found.differ(case, who, f"{values.shape[1]} outputs, not {answers.shape[1]}")
        return
    for y, z in zip(answers, values):
        known = np.isfinite(y) & np.isfinite(z)
        if not known.any():
            continue
        found.count[f"points of {who}"] += 1
        y, z = y[known], z[known]
        slack = ROUNDING * (1 + np.abs(y).max()) * (25 if case.dice.op in ROUGH else 1)
        if exact:
            gap = np.abs(y - z).max()
        else:  # by how much two outputs differ that come in another order
            y, z = y[:40], z[:40]
            turned = (y[:, None] > y + slack) & ~(z[:, None] > z)
            gap = np.where(turned, y[:, None] - y, 0.0).max()
        if gap > slack:
            found.differ(case, who, f"off by {gap:.3g} of {np.abs(y).max():.3g}")
            return


def campaign(seed: int, count: int, folder: Path, folds: bool = True) -> Iterator[Found]:
    """So many models, the operators in turn; what was found so far after every one."""
    found, ops = Found(), sorted(TABLE)
    for number in range(count):
        op = ops[number % len(ops)]
        case = drawn(op, (seed, number))
        fold = folds and case.dice.chance(0.2)
        compare(case, case.dice.chance(0.7), fold, folder, found)
        yield found
