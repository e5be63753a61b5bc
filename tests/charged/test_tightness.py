"""What the search proved is proved again by the first replay: its slopes are the proof."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.certification.prove import _Replays


@pytest.mark.parametrize(("norm", "seed"), [("2", 2), ("inf", 1)])
@pytest.mark.parametrize("group", [1, 4])
def test_rigorous_radii_of_max_pooling_are_those_of_the_search(
    norm: str, seed: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Linear(8, 4),
    )
    model = frown.load(module.eval(), torch.zeros(1, 1, 6, 6))
    x = np.random.default_rng(seed).uniform(0, 1, (4, 1, 6, 6))
    replays = []
    replayed = _Replays._replayed

    def counted(*args, **kwargs):
        replays.append(1)
        return replayed(*args, **kwargs)

    monkeypatch.setattr(_Replays, "_replayed", counted)
    radius = {
        level: asking.certify(
            model,
            x,
            norm=norm,
            bounds=(0, 1),
            group=group,
            level=level,
            dtype="float64",
            attack=False,
        ).radius
        for level in ("estimate", "rigorous")
    }
    assert (radius["rigorous"] >= 0.999 * radius["estimate"]).all()
    assert (radius["estimate"] > 0).all()
    assert len(replays) == 1
