"""Training repeats itself, the files say what was trained, and runtimes agree on them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import asking
from benchmarks.paper import train
from benchmarks.paper.data import load_data
from benchmarks.paper.networks import Activation, Network, parse
from benchmarks.paper.train import TrainEvent, train_networks
from frown import api
from frown.errors import InvalidInput, OutputError

SMALL = Network("drive", 4, 12, "relu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven clouds of 48 features, well apart."""
    rng = np.random.default_rng(0)
    y = np.arange(440) % 11
    x = 3 * rng.normal(size=(11, 48))[y] + rng.normal(size=(440, 48))
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "drive.npz", x=x, y=y)
    return folder


def metadata(path: Path) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(path).metadata_props}


def weights(path: Path) -> bytes:
    return b"".join(t.raw_data for t in onnx.load(path).graph.initializer)


def scores(path: Path, x: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(
        None, {"input": x}
    )[0]


# -- the file ----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_a_trained_file_answers_held_out_samples(
    data: Path, tmp_path: Path, activation: Activation
) -> None:
    network = replace(SMALL, activation=activation)
    (done,) = train_networks([network], data, tmp_path, epochs=30)
    drive = load_data(data, "drive")
    right = scores(done.path, drive.test_x).argmax(1) == drive.test_y
    assert done.path == tmp_path / network.file
    assert done.accuracy == right.mean() == float(metadata(done.path)["frown.accuracy"])
    assert done.accuracy > 0.9  # by chance: 0.09
    assert not done.cached and done.seconds > 0


def test_the_file_is_a_chain_of_gemms(data: Path, tmp_path: Path) -> None:
    network = replace(SMALL, activation="sigmoid")
    (done,) = train_networks([network], data, tmp_path, epochs=1)
    model = onnx.load(done.path)
    assert [n.op_type for n in model.graph.node] == ["Gemm", "Sigmoid"] * 3 + ["Gemm"]
    assert [i.name for i in model.graph.input] == ["input"]
    assert [o.name for o in model.graph.output] == ["output"]
    shapes = [tuple(t.dims) for t in model.graph.initializer]
    assert shapes == [(12, 48), (12,), (12, 12), (12,), (12, 12), (12,), (11, 12), (11,)]
    assert model.opset_import[0].version >= 13
    recipe = json.loads(metadata(done.path)["frown.recipe"])
    assert recipe["network"] == network.name and recipe["epochs"] == 1 and recipe["seed"] == 0


def test_frown_loads_what_onnxruntime_runs(data: Path, tmp_path: Path) -> None:
    (done,) = train_networks([replace(SMALL, activation="tanh")], data, tmp_path, epochs=3)
    drive = load_data(data, "drive")
    result = asking.certify(api.load(done.path), drive.test_x[:6], drive.test_y[:6], method="crown")
    right = scores(done.path, drive.test_x[:6]).argmax(1) == drive.test_y[:6]
    assert right.any()
    assert np.array_equal(result.radius > 0, right)


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_folding_keeps_the_function(activation: Activation) -> None:
    """With batch norms far from the identity, against torch in evaluation mode."""
    torch.manual_seed(3)
    network = replace(SMALL, activation=activation)
    model = train.module(network)
    for part in model:
        if isinstance(part, nn.BatchNorm1d):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
            part.running_mean.normal_()
            part.running_var.uniform_(0.01, 4)
    model.eval().double()
    x = torch.randn(50, 48)
    content = train.onnx_model(network, train.fold(model), {}).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (folded,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(folded, model(x.double()).detach(), rtol=1e-4, atol=1e-4)


# -- the same again ----------------------------------------------------------------------


def test_a_seed_decides_the_weights(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    (one,) = train_networks([SMALL], data, tmp_path / "one", epochs=2)
    torch.manual_seed(2)
    (two,) = train_networks([SMALL], data, tmp_path / "two", epochs=2)
    (other,) = train_networks([SMALL], data, tmp_path / "other", epochs=2, seed=1)
    assert weights(one.path) == weights(two.path)
    assert weights(one.path) != weights(other.path)


def test_weights_do_not_depend_on_the_callers_threads(data: Path, tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        report = lambda event: seen.append(torch.get_num_threads())  # noqa: E731
        train_networks([SMALL], data, tmp_path, epochs=2, report=report)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


def test_training_leaves_the_callers_state(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    train_networks([SMALL], data, tmp_path, epochs=1, threads=threads + 1)
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads


def test_a_network_of_the_same_recipe_is_kept(data: Path, tmp_path: Path) -> None:
    def run(**options: object) -> tuple[bool, int]:
        events: list[TrainEvent] = []
        (done,) = train_networks([SMALL], data, tmp_path, report=events.append, **options)
        assert float(metadata(done.path)["frown.accuracy"]) == done.accuracy
        return done.cached, len(events)

    assert run(epochs=2) == (False, 2)
    before = (tmp_path / SMALL.file).read_bytes()
    assert run(epochs=2) == (True, 0)
    assert (tmp_path / SMALL.file).read_bytes() == before
    assert run(epochs=2, force=True) == (False, 2)
    assert run(epochs=3) == (False, 3)
    assert run(epochs=3, seed=1) == (False, 3)
    assert run(epochs=3, seed=1) == (True, 0)
    assert [p.name for p in tmp_path.iterdir()] == [SMALL.file]  # nothing half written


def test_other_data_are_another_recipe(data: Path, tmp_path: Path) -> None:
    train_networks([SMALL], data, tmp_path / "nets", epochs=1)
    with np.load(data / "drive.npz") as file:
        np.savez(tmp_path / "drive.npz", x=file["x"] ** 3, y=file["y"])
    (done,) = train_networks([SMALL], tmp_path, tmp_path / "nets", epochs=1)
    assert not done.cached


def test_events_tell_the_progress(data: Path, tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    networks = [SMALL, replace(SMALL, activation="tanh")]
    train_networks(networks, data, tmp_path, epochs=4, report=events.append)
    assert [(e.network, e.epoch) for e in events] == [(n, i) for n in networks for i in range(1, 5)]
    assert all(e.epochs == 4 and 0 <= e.accuracy <= 1 and e.seconds > 0 for e in events)
    assert events[3].loss < events[0].loss


def test_mirrored_images_are_mirrored() -> None:
    """Every image comes out as it was or with the columns of each channel reversed."""
    torch.manual_seed(0)
    recipe = replace(train.recipe_for(parse("cifar_4x2048_relu"), "", 20000), noise=0.0)
    images = torch.randn(40, 3, 32, 32)
    out = train._augmented(images.flatten(1), recipe).view_as(images)
    same = (out == images).flatten(1).all(1)
    mirrored = (out == images[..., torch.arange(31, -1, -1)]).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 5 < same.sum() < 35


# -- what may be wrong -------------------------------------------------------------------


def test_a_file_in_the_way_is_kept(data: Path, tmp_path: Path) -> None:
    path = tmp_path / SMALL.file
    for content in (b"not a network", train.onnx_model(SMALL, _zeros(), {}).SerializeToString()):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="not written by a training here"):
            train_networks([SMALL], data, tmp_path, epochs=1)
        assert path.read_bytes() == content
    (done,) = train_networks([SMALL], data, tmp_path, epochs=1, force=True)
    assert metadata(done.path)


def _zeros() -> train.Layers:
    widths = SMALL.widths
    return [(np.zeros((m, n)), np.zeros(m)) for n, m in pairwise(widths)]


@pytest.mark.parametrize(
    ("options", "says"),
    [({"epochs": 0}, "epochs 0"), ({"threads": 0}, "threads 0"), ({"seed": -1}, "seed -1")],
)
def test_options_are_checked(data: Path, tmp_path: Path, options: dict, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        train_networks([SMALL], data, tmp_path, **options)


def test_no_data_and_no_place(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="looked for"):
        train_networks([SMALL], tmp_path, tmp_path / "nets")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write networks"):
        train_networks([SMALL], data, tmp_path / "file")


def test_divergence_is_an_error(data: Path) -> None:
    drive = load_data(data, "drive")
    broken = replace(drive, train_x=np.full_like(drive.train_x, 1e38))
    recipe = train.recipe_for(SMALL, "", len(drive.train_y), epochs=1)
    with pytest.raises(InvalidInput, match="diverged"):
        train.fit(SMALL, broken, recipe)
