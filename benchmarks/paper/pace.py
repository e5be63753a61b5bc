"""How long the measuring may still take, learnt from the cells that are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.cells import Cell, Method
from benchmarks.paper.networks import FEATURES, parse
from benchmarks.paper.runner import Task
from benchmarks.paper.store import Result

# What is believed before anything was measured: a sample of the middle network's work takes
# so many seconds, and others in proportion to a power of theirs; wide layers are swifter.
_MIDDLE = {"crown": 1e8, "frown": 1e8, "lp": 1e6}
_SECONDS = {"crown": 0.12, "frown": 1.0, "lp": 10.0}
_POWER = {"crown": 0.85, "frown": 0.85, "lp": 1.0}
_SHARING = 0.5  # g neurons that share lines are g to this power times as fast
_COLD = log(3)  # linear programs from nothing take three times as long
# By how much, in logarithms, each of these may be wrong, and what else makes a difference.
_MACHINE_OFF, _POWER_OFF, _SHARING_OFF, _COLD_OFF = 1.0, 0.15, 0.3, 0.7
_NORM_OFF = {False: 0.3, True: 1.0}  # by whether linear programs are solved
_ACTIVATION_OFF, _NEAR_OFF, _NOISE = 0.5, 0.5, 0.2
_KIN = 0.8  # how much of that CROWN and FROWN have in common

_CALL = 3e5  # layers come in pairs, and each pair costs as much as this many weights


def work(cell: Cell) -> float:
    """How the seconds for one sample grow with the network, in arbitrary units.

    A row per neuron goes back through the weights before it: neurons times parameters, and
    for narrow layers the calls alone count. Two linear programs are solved for every
    neuron, each with the variables of all neurons before it.
    """
    network = cell.network
    neurons = network.layers * network.width
    if _programs(cell):
        return neurons**2 * sqrt(neurons + FEATURES[network.data])
    return _CALL * network.layers**2 + neurons * network.parameters


def _family(cell: Cell) -> str:
    """Columns of one method share what is known: CROWN by two rules."""
    return str(dict(cell.method.options)["method"])


def _programs(cell: Cell) -> bool:
    return _family(cell) == "lp"


class Pace:
    """Seconds left: of a cell under way at its own pace, of others as foretold."""

    def __init__(
        self,
        tasks: Sequence[Task],
        limit: float | None = None,
        known: Mapping[Cell, float] | None = None,
    ) -> None:
        """`known` has seconds per sample of cells that were measured before."""
        self._left = {task.cell: len(task.todo) for task in tasks}
        self._limit = limit
        self._spent = {cell: (seconds, 1) for cell, seconds in (known or {}).items()}
        self._measured: set[Cell] = set()

    def measured(self, cell: Cell, count: int, seconds: float) -> None:
        """`count` samples of a cell took `seconds` in all."""
        # What an earlier run took, perhaps elsewhere, no longer counts.
        spent, done = self._spent.get(cell, (0.0, 0)) if cell in self._measured else (0.0, 0)
        self._measured.add(cell)
        self._spent[cell] = (spent + seconds, done + count)
        self._left[cell] = max(0, self._left.get(cell, 0) - count)

    def finish(self, cell: Cell) -> None:
        """Nothing more of this cell."""
        self._left[cell] = 0

    def seconds_left(self) -> float:
        todo = [cell for cell, count in self._left.items() if count]
        known = {cell: s / n for cell, (s, n) in self._spent.items() if n and s > 0}
        each = foretell([c for c in todo if c not in known], known) | known
        return sum(self._seconds(cell, each[cell]) for cell in todo)

    def _seconds(self, cell: Cell, each: float) -> float:
        if _programs(cell) and self._limit is not None and each > self._limit:
            return self._limit  # the cell is given up after its first sample
        return self._left[cell] * each


def foretell(cells: Sequence[Cell], known: Mapping[Cell, float]) -> dict[Cell, float]:
    """Seconds per sample, from those of the cells that are known.

    Kriging: the logarithm of the seconds is a linear function of that of the work, plus
    what the norm, the activation and networks of like size have in common.
    """
    found: dict[Cell, float] = {}
    for programs in (False, True):
        new = [cell for cell in cells if _programs(cell) == programs]
        old = [cell for cell in known if _programs(cell) == programs]
        guess = np.array([_guess(cell) for cell in new])
        if new and old:
            surprise = np.array([log(known[cell]) - _guess(cell) for cell in old])
            among = _covariance(old, old) + _NOISE**2 * np.eye(len(old))
            guess = guess + _covariance(new, old) @ np.linalg.solve(among, surprise)
        found |= {cell: exp(value) for cell, value in zip(new, guess)}
    return found


def _size(cell: Cell) -> float:
    """The logarithm of the work over the middle network's."""
    return log(work(cell) / _MIDDLE[_family(cell)])


def _sharing(cell: Cell) -> float:
    """The logarithm of how many neurons share lines."""
    group = int(dict(cell.method.options).get("group", 1))
    return log(group or cell.network.width)


def _cold(cell: Cell) -> float:
    return float(not dict(cell.method.options).get("hot", True))


def _guess(cell: Cell) -> float:
    """The logarithm of the seconds that are believed before anything is known."""
    family = _family(cell)
    base = log(_SECONDS[family]) + _POWER[family] * _size(cell)
    return base - _SHARING * _sharing(cell) + _COLD * _cold(cell)


def _covariance(some: Sequence[Cell], others: Sequence[Cell]) -> NDArray[np.float64]:
    """Of what is not known of the logarithms of seconds, linear programs or not."""

    def both(of: Callable[[Cell], float | str]) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.array([of(c) for c in some]), np.array([of(c) for c in others])

    size, sharing, cold = both(_size), both(_sharing), both(_cold)
    same_method = np.equal.outer(*both(_family))
    same_norm = np.equal.outer(*both(lambda c: c.norm))
    same_activation = np.equal.outer(*both(lambda c: c.network.activation))
    near = np.exp(-0.5 * np.subtract.outer(*size) ** 2)
    total = (
        _MACHINE_OFF**2
        + _POWER_OFF**2 * np.outer(*size)
        + _SHARING_OFF**2 * np.outer(*sharing)
        + _COLD_OFF**2 * np.outer(*cold)
        + _NORM_OFF[_programs(some[0])] ** 2 * same_norm
        + same_activation * (_ACTIVATION_OFF**2 + _NEAR_OFF**2 * near)
    )
    return np.asarray(np.where(same_method, 1.0, _KIN) * total, np.float64)


def known_seconds(results: Iterable[Result]) -> dict[Cell, float]:
    """Seconds per sample of every cell that a store has results of."""
    times: dict[Cell, list[float]] = {}
    for r in results:
        cell = Cell(parse(r.network), r.key.norm, Method(r.column, r.key.options))
        times.setdefault(cell, []).append(r.seconds)
    return {cell: sum(each) / len(each) for cell, each in times.items()}


def duration(seconds: float) -> str:
    """Roughly: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"
