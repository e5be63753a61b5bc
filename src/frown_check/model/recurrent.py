"""ONNX's RNN, LSTM and GRU, unrolled over their frames.

Each frame's gates are affine in the frame and in the state before it; activations are sites, and so
are products of two computed tensors, in the order in which they are written here. Supported are
the usual activations, both directions and states that start at 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from frown_check.balls import Ball
from frown_check.functions import SIMPLE
from frown_check.graph import View
from frown_check.model.activations import times
from frown_check.model.affine import combine
from frown_check.model.calls import Call, Constant, Value, moved, operator

WAYS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
COMMON = "activations direction hidden_size layout"

MOST_FRAMES = 4096  # each is a copy of the cell


class Cell(ABC):
    """One direction's weights; vectors are (1, size)."""

    def __init__(self, call: Call, gates: int, way: int) -> None:
        self.call = call
        self.weight, self.recurrence = call.floats(1)[way], call.floats(2)[way]
        self.size = self.recurrence.shape[1]
        rows = gates * self.size
        bias = call.floats(3)[way] if call.has(3) else np.zeros(2 * rows)
        told = gates * call.attribute("hidden_size", self.size)
        fits = len(self.weight) == len(self.recurrence) == told == rows
        call.refuse_if(not fits or bias.shape != (2 * rows,), "such weights")
        self.bias, self.state_bias = bias[:rows], bias[rows:]

    def linear(self, x: Value, weight: Constant, bias: Constant) -> Value:
        """x W^T + b; of the state 0 it is b."""
        if not isinstance(x, View):
            return bias[None]
        y = self.call.linear(moved(x, (1, *x.shape)), Ball(weight.T[None]), Ball(bias[None]))
        return moved(y, y.shape[1:])

    def part(self, x: Value, first: int, count: int = 1) -> Value:
        cut = slice(first * self.size, (first + count) * self.size)
        return View(x.node, x.index[:, cut]) if isinstance(x, View) else x[:, cut]

    def apply(self, op: str, x: Value) -> View:
        assert isinstance(x, View)
        return self.call.apply(x, SIMPLE[op]())

    @abstractmethod
    def step(self, x: View, state: Sequence[Value]) -> Sequence[Value]:
        """The state after a frame whose input part is x."""


class Plain(Cell):
    def step(self, x: View, state: Sequence[Value]) -> Sequence[Value]:
        hidden = self.linear(state[0], self.recurrence, self.state_bias)
        default = ["Tanh"] * len(WAYS[self.call.attribute("direction", "forward")])
        names = {
            n if isinstance(n, str) else n.decode()
            for n in self.call.attribute("activations", default)
        }
        if names not in ({"Tanh"}, {"Relu"}):
            raise self.call.refuse("such activations")
        return [self.apply(names.pop(), combine(self.call, hidden, x, 1.0))]


class Lstm(Cell):
    """c' = f c + i g, h' = o tanh(c'); gates stand in the order i, o, f, g."""

    def step(self, x: View, state: Sequence[Value]) -> Sequence[Value]:
        call, (h, c) = self.call, state
        gates = combine(call, self.linear(h, self.recurrence, self.state_bias), x, 1.0)
        i = self.apply("Sigmoid", self.part(gates, 0))
        g = self.apply("Tanh", self.part(gates, 3))
        f = self.apply("Sigmoid", self.part(gates, 2))
        cell = combine(call, times(call, f, c), times(call, i, g), 1.0)
        o = self.apply("Sigmoid", self.part(gates, 1))
        return [times(call, o, self.apply("Tanh", cell)), cell]


class Gru(Cell):
    """h' = n + z (h - n); gates stand in the order z, r, n."""

    def step(self, x: View, state: Sequence[Value]) -> Sequence[Value]:
        call, h, size = self.call, state[0], self.size
        early = bool(call.attribute("linear_before_reset", 0))
        rows = slice(None) if early else slice(0, 2 * size)
        hidden = self.linear(h, self.recurrence[rows], self.state_bias[rows])
        gates = combine(call, self.part(hidden, 0, 2), self.part(x, 0, 2), 1.0)
        z, r = (self.apply("Sigmoid", self.part(gates, k)) for k in (0, 1))
        if early:
            kept = times(call, self.part(hidden, 2), r)
        else:
            rest = slice(2 * size, None)
            kept = self.linear(times(call, h, r), self.recurrence[rest], self.state_bias[rest])
        n = self.apply("Tanh", combine(call, self.part(x, 2), kept, 1.0))
        return [combine(call, times(call, combine(call, h, n, -1.0), z), n, 1.0)]


CELLS: dict[str, tuple[type[Cell], int, int]] = {  # with the numbers of gates and states
    "RNN": (Plain, 1, 1),
    "LSTM": (Lstm, 4, 2),
    "GRU": (Gru, 3, 1),
}


@operator("RNN", "LSTM", attributes=COMMON)
@operator("GRU", attributes=COMMON + " linear_before_reset")
def unrolled(call: Call) -> Sequence[Value]:
    x, (cell, gates, states) = call.view(), CELLS[call.node.op]
    ways = WAYS.get(call.attribute("direction", "forward"))
    plain = not call.attribute("layout", 0) and not call.has(4) and not call.has(7)
    if ways is None or not plain or len(x.shape) != 3 or x.shape[1] != 1:
        raise call.refuse("such a form")
    call.refuse_if(x.shape[0] > MOST_FRAMES, f"a sequence of {x.shape[0]} frames")
    if cell is not Plain and call.attribute("activations", None) is not None:
        raise call.refuse("attribute activations")
    for k in range(states):
        call.refuse_if(call.has(5 + k) and call.constant(5 + k).any(), "a first state other than 0")
    for tensor in (call.floats(1), call.floats(2)):
        call.refuse_if(tensor.ndim != 3 or len(tensor) != len(ways), "such weights")
    outputs, last = [], []
    for way, backwards in enumerate(ways):
        one = cell(call, gates, way)
        parts = one.linear(moved(x, (x.shape[0], x.shape[2])), one.weight, one.bias)
        assert isinstance(parts, View)
        state: Sequence[Value] = [np.zeros((1, one.size))] * states
        found = []
        for t in range(x.shape[0])[:: -1 if backwards else 1]:
            state = one.step(View(parts.node, parts.index[t : t + 1]), state)
            found.append(state[0])
        outputs.append(_stacked(call, found[::-1] if backwards else found))  # (frames, 1, size)
        last.append(state)
    ends = [_stacked(call, [s[k] for s in last]) for k in range(states)]
    return [call.stack(outputs, 1), *ends]


def _stacked(call: Call, parts: Sequence[Value]) -> View:
    """Views side by side on a new first axis."""
    return call.stack([p for p in parts if isinstance(p, View)], 0)
