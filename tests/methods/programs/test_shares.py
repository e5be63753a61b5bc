"""With a time limit, programs give every input an equal share of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

import asking
import frown
from frown.bounds import work as clocks
from frown.bounds.work import Clock, OutOfTime, Work
from frown.methods.exact import distance as milp
from frown.methods.lp import bounds as programs
from methods.programs.tools import COUNT

LIMIT = 1000.0


@dataclass
class Watch:
    """Time that passes only where a program runs, which takes all that it is given."""

    now: float = 0.0
    spent: list[float] = field(default_factory=list)

    def run(self, *given: Any, **_: Any) -> None:
        (clock,) = (_clock(g) for g in given if isinstance(g, Clock | Work))
        self.spent.append(clock.left())
        self.now += clock.left() + 1e-6

    def endless_lp(self, *given: Any) -> NoReturn:
        self.run(*given)
        raise OutOfTime

    def endless_milp(self, *given: Any, broken: bool) -> milp.Distance:
        self.run(*given)
        return milp.Distance(0.0, None, inf, False, (), "the time limit came")


def _clock(given: Clock | Work) -> Clock:
    return given.clock if isinstance(given, Work) else given


@pytest.mark.parametrize("method", ["lp", "milp"])
def test_no_input_takes_the_time_of_the_next(
    method: str,
    relu: frown.Model,
    x: np.ndarray,
    y: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs that never end: each input is given the same part of the limit, and all of
    them are reached; what CROWN proved before stands."""
    watch = Watch()
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: watch.now))
    monkeypatch.setattr(programs, "lp", watch.endless_lp)
    monkeypatch.setattr(milp, "exact", watch.endless_milp)
    result = asking.certify(relu, x, y, method=method, time_limit=LIMIT, attack=False)
    np.testing.assert_allclose(watch.spent, [LIMIT / COUNT] * COUNT, rtol=1e-3)
    assert not any(row.complete for row in result.rows)
    crown = asking.certify(relu, x, y, method="crown", attack=False)
    assert (result.radius >= crown.radius * (1 - 1e-5)).all()


def test_time_that_an_input_leaves_goes_to_those_behind_it(
    relu: frown.Model, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()

    def quick_first(*given: Any, **named: Any) -> milp.Distance:
        if not watch.spent:
            watch.spent.append(0.0)
            return milp.Distance(0.0, None, inf, True, (), "")
        return watch.endless_milp(*given, **named)

    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: watch.now))
    monkeypatch.setattr(milp, "exact", quick_first)
    asking.certify(relu, x, y, method="milp", time_limit=LIMIT, attack=False)
    np.testing.assert_allclose(
        watch.spent, [0.0] + [LIMIT / (COUNT - 1)] * (COUNT - 1), rtol=1e-3, atol=1e-9
    )
