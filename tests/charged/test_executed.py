"""Radii that hold for networks as executed in single precision, from models to rows."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import asking
import frown
from frown.bounds.arithmetic.float32 import UNIT32
from frown.jobs.table import levels
from onnx_models import model, node, number, saved

SMALL = UNIT32 * (1 - 2.0**-20)  # 1 + SMALL rounds to 1


def absorbing(folder: Path, ahead: float = SMALL * 32) -> Path:
    """y_0 = x and 64 small numbers, added one by one; y_1 = x and half as much, added at once."""
    nodes = [node("Add", f"{'x' if k == 0 else f's{k - 1}'} t", f"s{k}") for k in range(64)]
    nodes += [node("Add", "x h", "o"), node("Concat", "s63 o", axis=1)]
    half = 64 * SMALL - ahead
    return saved(model(nodes, ["N", 1], {"t": number(SMALL), "h": number(half)}), folder)


def test_a_network_that_only_real_numbers_make_robust(tmp_path: Path) -> None:
    path = absorbing(tmp_path)
    network = frown.load(path)
    x, y = np.array([[0.5]]), np.array([0])

    def status(deployed: str | None) -> str:
        found = asking.certify(network, x, y, eps=0.6, deployed=deployed, attack=False)
        return found.rows[0].status

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    executed = session.run(None, {"x": np.float32([[0.5], [1.0]])})[0]
    assert executed[0, 0] > executed[0, 1] and executed[1, 0] < executed[1, 1]
    assert status(None) == "certified"
    assert status("float32") == "unknown"


def test_enough_of_a_margin_is_proved_for_execution(tmp_path: Path) -> None:
    network = frown.load(absorbing(tmp_path, ahead=1e-3))
    found = asking.certify(
        network, np.array([[0.5]]), np.array([0]), eps=0.6, deployed="float32", attack=False
    )
    assert found.rows[0].status == "certified"


@pytest.mark.parametrize("norm", [1, 2, inf])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid])
def test_deep_networks_keep_their_radii(norm: float, activation: type[nn.Module]) -> None:
    torch.manual_seed(1)
    width = [24, *[12] * 7]
    gain = 1.6 if activation is nn.ReLU else 6.0
    layers: list[nn.Module] = []
    for a, b in pairwise(width):
        layers += [nn.Linear(a, b), activation()]
        nn.init.normal_(layers[-2].weight, std=gain / a**0.5)  # type: ignore[arg-type]
    network = frown.load(nn.Sequential(*layers, nn.Linear(12, 4)), torch.zeros(1, 24))
    x = np.random.default_rng(0).standard_normal((3, 24))
    real, executed = (
        asking.certify(network, x, norm=norm, method="crown", deployed=d, attack=False).radius
        for d in (None, "float32")
    )
    assert (real > 0).all() and (executed <= real).all()
    assert (executed / real > 0.97).all() and (executed / real).mean() > 0.99


def test_certificates_of_executed_networks_are_checked(tmp_path: Path) -> None:
    asset = Path(frown.__file__).parent / "jobs" / "assets"
    data = np.load(asset / "digits.npz")
    network = frown.load(asset / "digits.onnx")
    found = asking.certify(
        network,
        data["x"][:2],
        data["y"][:2],
        level="checked",
        certificates=tmp_path,
        deployed="float32",
        attack=False,
    )
    assert [row.level for row in found.rows] == ["checked", "checked"]
    assert [row.deployed for row in found.rows] == ["float32", "float32"]
    assert "checked" in levels(found.rows)[0] and "float32" in levels(found.rows)[0]
    plain = asking.certify(network, data["x"][:1], data["y"][:1], method="crown", attack=False)
    assert plain.rows[0].deployed == "" and "float32" not in levels(plain.rows)[0]


def test_normalisation_is_part_of_what_is_executed() -> None:
    """(x - mean) / std cancels: a large mean costs what single precision loses there."""
    torch.manual_seed(0)
    network = frown.load(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(1, 4)
    )
    x = np.random.default_rng(0).standard_normal((3, 4))
    far = network.normalised(1000.0, 1.0)
    near = network.normalised(0.0, 1.0)
    lost = []
    for shifted, by in ((near, 0.0), (far, 1000.0)):
        real, executed = (
            asking.certify(shifted, x + by, method="crown", deployed=d, attack=False).radius
            for d in (None, "float32")
        )
        lost.append((real - executed).mean())
    assert lost[1] > 10 * lost[0]
