"""How inputs are taken together."""

from __future__ import annotations

import numpy as np
import pytest

import asking
import frown
from frown.certification.procedure import Procedure


def test_inputs_share_the_seconds_of_branching(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3))
    model = frown.load(net, torch.zeros(1, 4))
    seen: list[int] = []
    real = Procedure.outcomes

    def noted(self, problem, parts, *rest):
        seen.extend(map(len, parts))
        return real(self, problem, parts, *rest)

    monkeypatch.setattr(Procedure, "outcomes", noted)
    x = np.random.default_rng(0).uniform(0, 1, (5, 4))
    # 100 seconds each: however much that is, one process takes all inputs together.
    frown.certify(model, x, method=frown.Branch(seconds=100.0, gap=0.9), attack=None)
    assert seen == [5]
    seen.clear()
    asking.certify(model, x, None, method="crown", attack=False, level="estimate")
    assert seen == [5]
