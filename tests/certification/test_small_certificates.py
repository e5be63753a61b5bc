"""Certificates that came out large are written again with fewer and shorter slopes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import asking
import frown
import frown_check
from frown.bounds.replay import halved
from frown.certification import prove as prover
from onnx_models import model, node, saved
from tamper.bases import recurrent


def perceptron(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    sizes = [6, 24, 24, 24, 4]
    known, nodes, last = {}, [], "x"
    for k in range(4):
        known[f"w{k}"] = (rng.normal(size=(sizes[k], sizes[k + 1])) / sizes[k] ** 0.5).astype("f4")
        known[f"b{k}"] = (rng.normal(size=sizes[k + 1]) * 0.1).astype("f4")
        nodes.append(node("Gemm", f"{last} w{k} b{k}", "y" if k == 3 else f"z{k}"))
        if k < 3:
            nodes.append(node("Tanh", f"z{k}", f"a{k}"))
            last = f"a{k}"
    return saved(model(nodes, ("N", 6), known), folder)


def networks(folder: Path) -> dict[str, Path]:
    (folder / "lstm").mkdir()
    return {
        "dense": perceptron(folder),
        "lstm": recurrent("LSTM", 4, folder / "lstm", np.random.default_rng(4)),
    }


def _at_most(size: int, patch: pytest.MonkeyPatch) -> None:
    """Thrift for certificates of more bytes, as much as makes these small ones smaller."""
    patch.setattr(prover, "LARGE", size)
    patch.setattr(prover, "_THRIFTY", ((1e-3, 1.0), (1e-3, 1 - 2.0**-9), (1e-2, 1 - 2.0**-9)))


def certified(path: Path, out: Path, **options: object) -> tuple[list[frown.Row], list[bytes]]:
    loaded = frown.load(path)
    x = np.random.default_rng(1).uniform(-1, 1, (2, *loaded.input_shape))
    rows = asking.certify(loaded, x, attack=False, certificates=out, **options).rows
    return list(rows), [(out / row.certificate).read_bytes() for row in rows]


@pytest.mark.parametrize(("name", "norm"), [("dense", 2), ("dense", "inf"), ("lstm", 2)])
def test_a_thrifty_certificate_is_smaller_and_proves_its_radius(
    name: str, norm: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = networks(tmp_path)[name]
    full, files = certified(path, tmp_path / "full", norm=norm)
    most = int(0.93 * min(map(len, files)))
    _at_most(most, monkeypatch)
    rows, smaller = certified(path, tmp_path / "small", norm=norm)
    for old, new, file, small in zip(full, rows, files, smaller, strict=True):
        assert len(small) <= most < len(file)
        assert (1 - 2.0**-8) * old.radius <= new.radius <= old.radius
        verdict = frown_check.check(small, path)
        assert verdict.accepted and verdict.claim is not None, verdict.reason
        assert verdict.claim.radius == new.radius
        assert verdict.margin == pytest.approx(min(new.margins.values()), rel=1e-3, abs=1e-4)


def test_a_radius_that_was_asked_for_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = perceptron(tmp_path)
    found, full = certified(path, tmp_path / "search")
    eps = [0.98 * row.radius for row in found]
    _at_most(int(0.93 * min(map(len, full))), monkeypatch)
    rows, files = certified(path, tmp_path / "asked", eps=eps)
    for row, asked, file in zip(rows, eps, files, strict=True):
        assert row.status == "certified" and row.radius == asked
        assert frown_check.check(file, path).accepted


def test_slopes_beyond_half_precision_stay_as_they_are() -> None:
    slope = torch.tensor([1e6, -1e6, 0.5, 1 / 3], dtype=torch.float64)
    assert halved(slope)[:3].tolist() == [1e6, -1e6, 0.5]
    assert halved(slope)[3] != slope[3] and abs(halved(slope)[3] - slope[3]) < 1e-3
