"""Models in other processes: what is pickled answers as before."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import frown

ASSETS = Path(frown.__file__).parent / "jobs" / "assets"


def certified(model: frown.Model, x: np.ndarray) -> list[float]:
    return [float(r) for r in frown.certify(model, x, method="crown").radius]


def models() -> dict[str, frown.Model]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    digits = frown.load(ASSETS / "digits.onnx")
    return {
        "onnx": digits,
        "normalised": digits.normalised(0.1, 0.7),
        "torch": frown.load(module, torch.zeros(1, 64)),
    }


def test_a_spawned_process_certifies_what_it_is_sent() -> None:
    x = np.load(ASSETS / "digits.npz")["x"][:2]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for name, model in models().items():
            assert pool.submit(certified, model, x).result() == certified(model, x), name


@pytest.mark.parametrize("name", ["onnx", "normalised", "torch"])
def test_a_model_survives_pickling(name: str) -> None:
    model = models()[name]
    x = np.load(ASSETS / "digits.npz")["x"][:3]
    frown.bound(model, frown.Ball(x).at(0.01))  # what it has worked out stays behind
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.run(x), model.run(x))
    assert again.digest == model.digest and "memo" not in again.__dict__
