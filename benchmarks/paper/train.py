"""Training the paper's networks: seeded, batch norm folded, stored as ONNX with their recipe."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from benchmarks.paper import machine
from benchmarks.paper.data import Dataset, Floats, load_data
from benchmarks.paper.networks import Activation, Network
from frown import __version__
from frown.certification.folder import write_whole
from frown.errors import InvalidInput, OutputError

OPSET = 13
RECIPE, ACCURACY = "frown.recipe", "frown.accuracy"  # keys of the file's metadata
_MODULES: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
_OPERATORS: dict[Activation, str] = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}

Layers = list[tuple[NDArray[np.float64], NDArray[np.float64]]]  # weight (out, in), bias (out,)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a network's weights; the same recipe is not trained twice.

    Adam with decoupled weight decay and one cycle of the learning rate, cross entropy;
    `noise` is the deviation of Gaussian noise on the inputs, `flips` mirrors half the images.
    """

    network: str
    data: str  # the samples' fingerprint
    seed: int
    epochs: int
    batch: int
    rate: float
    decay: float
    noise: float
    flips: bool
    version: int = 1  # of this procedure: raised when it changes

    def dumps(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class TrainEvent:
    """An epoch of a network is over; `accuracy` is that on the test samples."""

    network: Network
    epoch: int  # from 1
    epochs: int
    loss: float
    accuracy: float
    seconds: float  # since the network's training began


@dataclass(frozen=True, slots=True)
class Trained:
    """A network on disk; `accuracy` is that of the file in onnxruntime on the test samples."""

    network: Network
    path: Path
    accuracy: float
    seconds: float  # of training; 0 if it was there before
    cached: bool


Report = Callable[[TrainEvent], None]


def train_networks(
    names: Sequence[Network],
    data: Path,
    out: Path,
    *,
    seed: int = 0,
    epochs: int | None = None,
    threads: int = 1,
    force: bool = False,
    report: Report | None = None,
) -> list[Trained]:
    """Train these networks one after another on the data of a folder, into the folder `out`.

    A network that is there with the same recipe (data, seed, epochs, settings) is kept, unless
    `force`. `epochs` replaces every network's own number. Sums depend on how many `threads` share
    them, and after many steps so do weights: the default gives the same ones however many cores a
    machine has.
    Raises InvalidInput for data that cannot be read and for files in the way that were not
    trained here, OutputError where `out` cannot be written.
    """
    if epochs is not None and epochs < 1:
        raise InvalidInput(f"epochs {epochs}: give at least 1")
    if threads < 1:
        raise InvalidInput(f"threads {threads}: give at least 1")
    if seed < 0:
        raise InvalidInput(f"seed {seed}: give a whole number from 0")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write networks to {out}: {error.strerror}") from error
    done: list[Trained] = []
    dataset: Dataset | None = None
    with machine.threads(threads):
        for network in names:
            if dataset is None or dataset.name != network.data:
                dataset = None  # two of them need not fit into memory
                dataset = load_data(data, network.data)
                fingerprint = dataset.fingerprint
            recipe = recipe_for(network, fingerprint, len(dataset.train_y), seed, epochs)
            path = out / network.file
            stored = None if force else stored_accuracy(path, recipe)
            if stored is not None:
                done.append(Trained(network, path, stored, 0.0, cached=True))
                continue
            start = time.monotonic()
            layers = fold(fit(network, dataset, recipe, report))
            accuracy = save(path, network, layers, recipe, dataset)
            done.append(Trained(network, path, accuracy, time.monotonic() - start, cached=False))
    return done


def recipe_for(
    network: Network, fingerprint: str, samples: int, seed: int = 0, epochs: int | None = None
) -> Recipe:
    """The settings for a network: fewer epochs the more weights, more the fewer samples."""
    recipe = Recipe(
        network.name, fingerprint, seed, 10, 512, rate=0.01, decay=1e-2, noise=0.0, flips=False
    )
    match network.data:
        case "drive":  # some 1,500 steps, or 12 epochs of the whole file
            wanted = max(12, round(192_000 / samples))
            recipe = replace(recipe, epochs=wanted, batch=128, noise=0.05)
        case "mnist" if network.width > 200:
            recipe = replace(recipe, epochs=6, batch=256, rate=0.002)
        case "mnist" if network.layers >= 15:
            recipe = replace(recipe, epochs=16)
        case "cifar":
            slow = network.activation != "relu"
            wanted = max(3, round((8 if slow else 5) * 20_000 / samples))
            recipe = replace(
                recipe,
                epochs=wanted,
                batch=256,
                rate=0.001 if slow else 0.002,
                decay=0.05,
                flips=True,
            )
    return recipe if epochs is None else replace(recipe, epochs=epochs)


def module(network: Network) -> nn.Sequential:
    """Linear, batch norm, activation for every hidden layer; Linear at the end."""
    widths = network.widths
    parts: list[nn.Module] = []
    for n, m in pairwise(widths[:-1]):
        parts += [nn.Linear(n, m, bias=False), nn.BatchNorm1d(m), _MODULES[network.activation]()]
    parts.append(nn.Linear(widths[-2], widths[-1]))
    return nn.Sequential(*parts)


def fit(
    network: Network, dataset: Dataset, recipe: Recipe, report: Report | None = None
) -> nn.Sequential:
    """A trained module, in evaluation mode. The global random state is left as it was."""
    x, y = torch.from_numpy(dataset.train_x), torch.from_numpy(dataset.train_y)
    test_x, test_y = torch.from_numpy(dataset.test_x), torch.from_numpy(dataset.test_y)
    start = time.monotonic()
    batches = len(x) // recipe.batch or 1  # what is left over comes round in another epoch
    with torch.random.fork_rng(devices=[]):
        # One seed gives every network its own initial weights and order of samples.
        torch.manual_seed(zlib.crc32(f"{recipe.seed} {network.name}".encode()))
        model = module(network)
        optimiser = torch.optim.AdamW(
            _decayed(model, recipe.decay), lr=recipe.rate, betas=(0.9, 0.99), fused=True
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, recipe.rate, total_steps=recipe.epochs * batches, cycle_momentum=False
        )
        for epoch in range(1, recipe.epochs + 1):
            model.train()
            order = torch.randperm(len(x))
            total = 0.0
            for step in range(batches):
                rows = order[step * recipe.batch : (step + 1) * recipe.batch]
                loss = F.cross_entropy(model(_augmented(x[rows], recipe)), y[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                total += float(loss.detach())
            if report is not None:
                model.eval()
                event = TrainEvent(
                    network,
                    epoch,
                    recipe.epochs,
                    total / batches,
                    _accuracy(model, test_x, test_y),
                    time.monotonic() - start,
                )
                report(event)
    if not math.isfinite(total):
        raise InvalidInput(f"{network.name}: training diverged; try another seed")
    return model.eval()


def fold(model: nn.Sequential) -> Layers:
    """The affine layers with every batch norm multiplied into the one before it, in float64."""
    layers: Layers = []
    for part in model:
        if isinstance(part, nn.Linear):
            weight = _double(part.weight)
            bias = np.zeros(len(weight)) if part.bias is None else _double(part.bias)
            layers.append((weight, bias))
        elif isinstance(part, nn.BatchNorm1d):
            assert part.running_mean is not None and part.running_var is not None
            weight, bias = layers.pop()
            # g (W x + b - mean) / sqrt(var + eps) + beta
            scale = _double(part.weight) / np.sqrt(_double(part.running_var) + part.eps)
            shift = (bias - _double(part.running_mean)) * scale + _double(part.bias)
            layers.append((weight * scale[:, None], shift))
    return layers


def onnx_model(network: Network, layers: Layers, metadata: dict[str, str]) -> onnx.ModelProto:
    """Gemm and activation by turns, from `input` (N, features) to `output` (N, classes)."""
    nodes, constants = [], []
    name = "input"
    for i, (weight, bias) in enumerate(layers):
        last = i == len(layers) - 1
        constants += [
            numpy_helper.from_array(weight.astype(np.float32), f"w{i}"),
            numpy_helper.from_array(bias.astype(np.float32), f"b{i}"),
        ]
        z = "output" if last else f"z{i}"
        nodes.append(helper.make_node("Gemm", [name, f"w{i}", f"b{i}"], [z], f"gemm{i}", transB=1))
        if not last:
            name = f"a{i}"
            operator = _OPERATORS[network.activation]
            nodes.append(helper.make_node(operator, [z], [name], f"{network.activation}{i}"))
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, ["N", width])
        for end, width in (("input", network.widths[0]), ("output", network.widths[-1]))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, network.name, ends[:1], ends[1:], constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="frown",
        producer_version=__version__,
        ir_version=8,
    )
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    return model


def save(path: Path, network: Network, layers: Layers, recipe: Recipe, dataset: Dataset) -> float:
    """Write the network, all or nothing, and return its test accuracy in onnxruntime."""
    content = onnx_model(network, layers, {}).SerializeToString()
    accuracy = runtime_accuracy(content, dataset.test_x, dataset.test_y)
    metadata = {RECIPE: recipe.dumps(), ACCURACY: repr(accuracy)}
    content = onnx_model(network, layers, metadata).SerializeToString()
    try:
        write_whole(path, content)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    return accuracy


def stored_accuracy(path: Path, recipe: Recipe) -> float | None:
    """The accuracy stored in a network of this recipe; None if there is none.

    Raises InvalidInput for a file that no training here has written.
    """
    if not path.exists():
        return None
    try:
        metadata = {p.key: p.value for p in onnx.load(path).metadata_props}
        accuracy = float(metadata[ACCURACY])
        return accuracy if metadata[RECIPE] == recipe.dumps() else None
    except Exception as error:  # protobuf's own errors share no base class
        raise InvalidInput(
            f"{path} is in the way: it was not written by a training here. Give another folder, "
            "or force it to be replaced"
        ) from error


def runtime_accuracy(content: bytes, x: Floats, y: NDArray[np.int64]) -> float:
    """The share of samples that the ONNX model answers correctly."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"input": x})
    return float((scores.argmax(axis=1) == y).mean())


def _decayed(model: nn.Module, decay: float) -> list[dict[str, object]]:
    """Weights decay; biases and batch norm do not."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def _augmented(x: Tensor, recipe: Recipe) -> Tensor:
    if recipe.flips:  # images of 3 x 32 x 32
        images = x.view(-1, 3, 32, 32)
        mirrored = torch.rand(len(x), 1, 1, 1) < 0.5
        x = torch.where(mirrored, images.flip(-1), images).flatten(1)
    if recipe.noise:
        x = x + recipe.noise * torch.randn_like(x)
    return x


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def _double(x: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = x.detach().double().numpy()
    return array
