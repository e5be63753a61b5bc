"""What the tests of programs share: a ReLU and a sigmoid network, inputs, a data file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import frown
from methods.programs.tools import COUNT, FEATURES, network


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("relu"), "Relu")


@pytest.fixture(scope="module")
def relu(net: Path) -> frown.Model:
    return frown.load(net)


@pytest.fixture(scope="module")
def sigmoid(tmp_path_factory: pytest.TempPathFactory) -> frown.Model:
    return frown.load(network(tmp_path_factory.mktemp("sigmoid"), "Sigmoid"))


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, FEATURES))


@pytest.fixture(scope="module")
def y(relu: frown.Model, x: np.ndarray) -> np.ndarray:
    return relu.run(x).argmax(1)


@pytest.fixture
def data(tmp_path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y)
    return path
