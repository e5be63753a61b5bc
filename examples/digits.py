"""Shared by the examples: the digits that come with frown, a training loop, and a page."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import frown
from frown.report.page import write_report

HELD_OUT = 60  # digits that are not trained on
PAGES = Path("frown-examples")
Array = NDArray[Any]


def digits(*shape: int) -> tuple[Tensor, Tensor]:
    """300 handwritten digits, 8x8 pixels in [0, 1] laid out in the shape given, and labels."""
    with as_file(files("frown.jobs") / "assets" / "digits.npz") as path, np.load(path) as data:
        x, y = torch.tensor(data["x"]).float(), torch.tensor(data["y"]).long()
    return x.view(-1, *shape or (64,)), y


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 80, rate: float = 5e-3) -> None:
    """Adam on images with noise, which keeps answers from hanging on single pixels."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(40):
            noisy = (x[rows] + 0.2 * torch.randn_like(x[rows])).clamp(0, 1)
            optimiser.zero_grad()
            F.cross_entropy(model(noisy), y[rows]).backward()
            optimiser.step()
        plan.step()
    model.eval()


def trained(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 80, rate: float = 5e-3) -> None:
    """Train on all but the first digits, and tell how many of those are read right."""
    train(model, x[HELD_OUT:], y[HELD_OUT:], epochs, rate)
    with torch.no_grad():
        right = (model(x[:HELD_OUT]).argmax(1) == y[:HELD_OUT]).double().mean().item()
    print(f"{right:.0%} of {HELD_OUT} digits not trained on are read right")
    if right < 0.8:
        sys.exit("the network did not learn")


def some(model: frown.Model, x: Tensor, y: Tensor, count: int) -> tuple[Array, Array]:
    """The first digits not trained on that are read right, and labels."""
    right = np.flatnonzero(model.run(x[:HELD_OUT].numpy()).argmax(1) == y[:HELD_OUT].numpy())
    chosen = right[:count]
    return x[chosen].double().numpy(), y[chosen].numpy()


def line(method: str, result: frown.Certification) -> str:
    brackets = zip(result.radius, result.broken, strict=True)
    shown = " ".join(f"[{low:.3f}, {high:.3f}]" for low, high in brackets)
    return f"  {method:<20} {shown}  mean proved {result.radius.mean():.4f}"


def check(results: Mapping[str, frown.Certification]) -> None:
    """What must hold of any results: nothing broken is proved, FROWN is not below CROWN."""
    for method, result in results.items():
        if (result.radius > result.broken).any():
            sys.exit(f"{method}: a counterexample lies within a proved radius")
    if (results["frown"].radius < 0.98 * results["crown"].radius).any():
        sys.exit("FROWN must not be looser than CROWN")


def page(
    name: str,
    title: str,
    model: frown.Model,
    results: Mapping[str, frown.Certification],
    x: Array,  # (N, *input shape), what was certified
    frames: Mapping[str, frown.Sensitivity] | None = None,
) -> None:
    """Write a page on the results, with the pictures, and tell where it is."""
    found = next(reversed(results.values())).counterexamples
    answers = {index: int(model.run(point[None])[0].argmax()) for index, point in found.items()}
    out = write_report(
        results,
        x.reshape(-1, 8, 8),
        PAGES / f"{name}.html",
        title,
        answers=answers,
        command=f"python examples/{name}.py",
        frames=frames,
        sequences=None if frames is None else x,
    )
    print(f"\nOpen {out} in a browser to see every digit, its radius and what fools the network.")
