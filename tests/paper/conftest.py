"""A small world for the experiments: eleven clusters as drive data, two trained networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.networks import parse
from benchmarks.paper.train import train_networks


@dataclass(frozen=True)
class World:
    """Folders with data and networks."""

    data: Path
    nets: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """drive.npz, and drive_4x20_relu and drive_4x20_sigmoid trained on it."""
    data = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(11), 30)
    x = 1.5 * rng.standard_normal((11, 48))[y] + rng.standard_normal((len(y), 48))
    np.savez(data / "drive.npz", x=x, y=y)
    names = ("drive_4x20_relu", "drive_4x20_sigmoid")
    train_networks([parse(name) for name in names], data, data / "nets", epochs=20, threads=1)
    return World(data, data / "nets")
