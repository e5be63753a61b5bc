"""Random networks in onnxruntime and torch answer within what is proved of their execution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from charged import executions
from charged.executions import tried


def test_executed_answers_lie_within_what_is_proved(tmp_path: Path) -> None:
    found = [tried(np.random.default_rng((0, k)), tmp_path) for k in range(16)]
    assert [line for one in found for line in one.false] == []
    assert sum(one.useful for one in found) > 5_000


def test_answers_beside_what_is_proved_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no room for rounding, bounds around the smallest balls are wrong."""
    whole = executions.proved

    def narrow(*args: object) -> tuple[float, float]:
        least, most = whole(*args)  # type: ignore[arg-type]
        return (least + most) / 2, (least + most) / 2

    monkeypatch.setattr(executions, "proved", narrow)
    assert any(tried(np.random.default_rng((0, k)), tmp_path).false for k in range(4))
