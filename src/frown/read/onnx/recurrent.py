"""ONNX's recurrent operators, unrolled over their frames.

RNN, LSTM and GRU become affine operators, their activations and products, frame after
frame; all frames read the same weights. A product's factors and the way a GRU mixes its
states stand as torch.export writes them, so that both front ends give the same bounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph import Builder, Op, Operand, Unsupported, Value, lossless
from frown.read.activations import PLAIN, scaled
from frown.read.arithmetic import clipped, multiply
from frown.read.onnx.call import Call, handles
from frown.relax import Clip, Elu, LeakyRelu, Tanh

Activation = Callable[[Builder, Value], Value]
State = tuple[Operand, ...]

MOST_FRAMES = 4096  # each is a copy of the cell
_COMMON = "activation_alpha activation_beta activations clip direction hidden_size layout"


@handles("RNN", attributes=_COMMON)
def rnn(call: Call) -> list[Operand]:
    return _unrolled(call, gates=1, states=1, activations=("Tanh",), cell=Plain)


@handles("LSTM", attributes=f"{_COMMON} input_forget")
def lstm(call: Call) -> list[Operand]:
    return _unrolled(call, 4, 2, ("Sigmoid", "Tanh", "Tanh"), Lstm)


@handles("GRU", attributes=f"{_COMMON} linear_before_reset")
def gru(call: Call) -> list[Operand]:
    return _unrolled(call, 3, 1, ("Sigmoid", "Tanh"), Gru)


# -- cells ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(ABC):
    """One direction's weights, and how they lead from one frame's state to the next."""

    build: Builder
    size: int
    weight: Tensor  # (gates size, features)
    recurrence: Tensor  # (gates size, size)
    bias: tuple[Tensor, Tensor]  # of the input and of the state, each (gates size,)
    peephole: Tensor | None  # (3 size,)
    activations: tuple[Activation, ...]
    clip: float | None
    flag: bool  # input_forget or linear_before_reset

    @abstractmethod
    def step(self, x: Value, state: State) -> State:
        """The state after a frame whose input part is x (batch, gates size)."""

    def from_input(self, frames: Value) -> Value:
        """The input part of every frame, (frames, batch, gates size)."""
        return self.build.linear(frames, self.weight, self.bias[0])

    def from_state(self, h: Operand, rows: slice = slice(None)) -> Operand:
        """R h + b. A constant state other than 0 is a node, so that rounding is charged."""
        weight, bias = self.recurrence[rows], self.bias[1][rows]
        if isinstance(h, Tensor):
            if not bool(h.any()):
                return bias.double().expand(len(h), -1)
            h = self.build.constant(h)
        return self.build.linear(h, weight, bias)

    def part(self, x: Operand, place: int, count: int = 1) -> Operand:
        """The entries of one gate, or of several that stand together."""
        start, stop = place * self.size, (place + count) * self.size
        if isinstance(x, Value):
            return self.build.slice(x, x.rank - 1, start, stop)
        return x[..., start:stop]

    def activated(self, place: int, x: Operand) -> Value:
        assert isinstance(x, Value)  # every gate reads the frame
        if self.clip is not None:
            x = clipped(self.build, x, -self.clip, self.clip)
        return self.activations[place](self.build, x)

    def plus(self, x: Operand, y: Operand) -> Value:
        return self.build.combine(x, y, 1.0)

    def minus(self, x: Operand, y: Operand) -> Value:
        return self.build.combine(x, y, -1.0)

    def times(self, x: Operand, y: Operand) -> Value:
        return multiply(self.build, x, y)


class Plain(Cell):
    """h' = f(W x + R h + b)."""

    def step(self, x: Value, state: State) -> State:
        return (self.activated(0, self.plus(self.from_state(state[0]), x)),)


class Lstm(Cell):
    """c' = f c + i g, h' = o h(c'); gates stand in the order i, o, f, g."""

    def step(self, x: Value, state: State) -> State:
        h, c = state
        gates = self.plus(self.from_state(h), x)
        i = self.activated(0, self._seen(self.part(gates, 0), 0, c))
        g = self.activated(1, self.part(gates, 3))
        if self.flag:
            # The forget gate is 1 - i: (1 - i) c + i g = c + (g - c) i, one product.
            cell = self.plus(self.times(self.minus(g, c), i), c)
        else:
            f = self.activated(0, self._seen(self.part(gates, 2), 2, c))
            cell = self.plus(self.times(f, c), self.times(i, g))
        o = self.activated(0, self._seen(self.part(gates, 1), 1, cell))
        return self.times(o, self.activations[2](self.build, cell)), cell

    def _seen(self, gate: Operand, place: int, c: Operand) -> Operand:
        """A gate that also sees the cell's state through its peephole."""
        if self.peephole is None:
            return gate
        weight = self.part(self.peephole, place)
        if isinstance(c, Tensor) and isinstance(weight, Tensor):
            return self.plus(gate, lossless(c * weight.double(), c, weight))
        return self.plus(gate, self.times(c, weight))


class Gru(Cell):
    """h' = n + z (h - n); gates stand in the order z, r, n."""

    def step(self, x: Value, state: State) -> State:
        (h,) = state
        early = self.flag  # the state's linear map comes before the reset
        two = slice(0, 2 * self.size)
        hidden = self.from_state(h) if early else self.from_state(h, two)
        gates = self.plus(self.part(hidden, 0, 2), self.part(x, 0, 2))
        z, r = (self.activated(0, self.part(gates, k)) for k in (0, 1))
        kept: Operand = self.times(self.part(hidden, 2) if early else h, r)
        if not early:
            kept = self.from_state(kept, slice(2 * self.size, None))
        n = self.activated(1, self.plus(self.part(x, 2), kept))
        return (self.plus(self.times(self.minus(h, n), z), n),)


# -- the operators ------------------------------------------------------------------------


def _unrolled(
    call: Call, gates: int, states: int, activations: Sequence[str], cell: type[Cell]
) -> list[Operand]:
    """Y, Y_h and, where there is one, Y_c."""
    build, flat = call.build, call.flag("layout")
    x = call.value()
    if x.rank != 3:
        raise Unsupported(f"an input of shape {x.shape}, not (frames, batch, features)")
    if x.shape[0] > MOST_FRAMES:
        raise Unsupported(f"{x.shape[0]} frames, which are more than {MOST_FRAMES}")
    if flat:
        x = build.permute(x, (1, 0, 2))
    ways = _directions(call)
    last: list[State] = []
    columns: list[Operand] = []
    for d, one in enumerate(_cells(call, gates, activations, cell, ways, x.shape[2])):
        length = _length(call, x.shape[0])
        state = tuple(_initial(call, 5 + k, d, one.size, len(ways), x, flat) for k in range(states))
        parts = one.from_input(x)
        outputs: dict[int, Operand] = {}
        for t in reversed(range(length)) if ways[d] else range(length):
            state = one.step(build.select(parts, 0, t), state)
            outputs[t] = state[0]
        blank = torch.zeros(x.shape[1], one.size, dtype=torch.float64)
        frames = [outputs.get(t, blank) for t in range(x.shape[0])]
        columns.append(_stacked(build, frames, 0))
        last.append(state)
    joined = _stacked(build, columns, 1)  # (frames, directions, batch, size)
    assert isinstance(joined, Value)
    ends = [_stacked(build, [s[k] for s in last], 0) for k in range(states)]
    if not flat:
        return [joined, *ends]
    turned = [build.permute(e, (1, 0, 2)) for e in ends if isinstance(e, Value)]
    return [build.permute(joined, (2, 0, 1, 3)), *turned]


def _stacked(build: Builder, parts: Sequence[Operand], axis: int) -> Operand:
    """Tensors of one shape side by side on a new axis."""
    grown: list[Operand] = []
    for part in parts:
        shape = (*part.shape[:axis], 1, *part.shape[axis:])
        grown.append(build.reshape(part, shape) if isinstance(part, Value) else part.reshape(shape))
    return build.concat(grown, axis)


def _directions(call: Call) -> tuple[bool, ...]:
    """True, for each direction, if it runs backwards."""
    known = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    ways = known.get(call.text("direction", "forward"))
    if ways is None:
        raise call.refuse_attribute("direction")
    return ways


def _cells(
    call: Call,
    gates: int,
    activations: Sequence[str],
    cell: type[Cell],
    ways: Sequence[bool],
    features: int,
) -> Iterator[Cell]:
    """One cell per direction; sizes that contradict each other are refused."""
    size = call.integer("hidden_size", -1)
    weight, recurrence = call.constant(1, "weights"), call.constant(2, "recurrence weights")
    size = int(recurrence.shape[-1]) if size == -1 else size
    count = len(ways)
    bias = call.constant(3, "a bias") if call.has(3) else torch.zeros(count, 2 * gates * size)
    expected = [
        ("weights", weight, (count, gates * size, features)),
        ("recurrence weights", recurrence, (count, gates * size, size)),
        ("biases", bias, (count, 2 * gates * size)),
    ]
    peephole = call.constant(7, "peepholes") if cell is Lstm and call.has(7) else None
    if peephole is not None:
        expected.append(("peepholes", peephole, (count, 3 * size)))
    for what, found, shape in expected:
        if tuple(found.shape) != shape:
            raise Unsupported(
                f"{what} of shape {tuple(found.shape)}, not {shape} as hidden_size={size}, "
                f"{count} direction(s) and {features} features ask for"
            )
    clip = call.attributes.get("clip")
    functions = _activations(call, activations, count)
    option = {Lstm: "input_forget", Gru: "linear_before_reset"}.get(cell, "")
    for d in range(count):
        yield cell(
            call.build,
            size,
            weight[d],
            recurrence[d],
            (bias[d, : gates * size], bias[d, gates * size :]),
            None if peephole is None else peephole[d],
            functions[d * len(activations) : (d + 1) * len(activations)],
            None if clip is None else call.number("clip", 0.0),
            call.flag(option),
        )


def _length(call: Call, frames: int) -> int:
    """The number of frames that are read: sequence_lens, which must be constant and one number."""
    if not call.has(4):
        return frames
    lengths = set(call.integers(4, "sequence lengths"))
    if len(lengths) != 1:
        raise Unsupported(f"sequences of different lengths {sorted(lengths)}")
    (length,) = lengths
    if not 0 < length <= frames:
        raise Unsupported(f"a sequence length of {length} for an input of {frames} frames")
    return length


def _initial(
    call: Call, index: int, direction: int, size: int, count: int, x: Value, flat: bool
) -> Operand:
    """A direction's first state (batch, size): zeros, constant or computed."""
    batch = x.shape[1]
    if not call.has(index):
        return torch.zeros(batch, size, dtype=torch.float64)
    given = call.operand(index)
    found = tuple(given.shape)
    if flat and len(found) == 3:
        found = (found[1], found[0], found[2])
    if len(found) != 3 or (found[0], found[2]) != (count, size):
        raise Unsupported(
            f"an initial state of shape {tuple(given.shape)} for {count} direction(s) of {size}"
        )
    if isinstance(given, Value):
        if found[1] != batch:
            raise Unsupported(f"an initial state for a batch of {found[1]}, not {batch}")
        return call.build.select(given, 1 if flat else 0, direction)
    state = (given[:, direction] if flat else given[direction]).double()
    if found[1] != batch:
        # A file that fixes its batch repeats the state for each of its inputs.
        if not bool((state == state[:1]).all()):
            raise Unsupported("an initial state that differs along the batch")
        state = state[:1].expand(batch, -1)
    return state


# -- activations --------------------------------------------------------------------------


def _activations(call: Call, default: Sequence[str], count: int) -> tuple[Activation, ...]:
    """The activations of all directions; each takes what alpha and beta it needs, in order."""
    given = call.attributes.get("activations")
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in given or [*default] * count]
    if len(names) != len(default) * count:
        raise Unsupported(f"{len(names)} activations for {count} direction(s) of {len(default)}")
    alphas, betas = (
        iter([float(v) for v in call.attributes.get(f"activation_{which}", ())])
        for which in ("alpha", "beta")
    )
    return tuple(_activation(name, alphas, betas) for name in names)


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    def alpha(default: float | None) -> float:
        return _parameter(name, "alpha", alphas, default)

    def beta(default: float | None) -> float:
        return _parameter(name, "beta", betas, default)

    match name.lower():
        case "tanh" | "sigmoid" | "relu" | "softplus":
            return _scaled(PLAIN[name.capitalize()])
        case "leakyrelu":
            return _scaled(LeakyRelu(alpha(0.01)))
        case "elu":
            return _scaled(Elu(alpha(1.0)))
        case "affine":
            return _scaled(None, alpha(None), 1.0, beta(None))
        case "scaledtanh":
            return _scaled(Tanh(), alpha(None), beta(None))
        case "hardsigmoid":
            return _scaled(Clip(0.0, 1.0), 1.0, alpha(0.2), 0.0, beta(0.5))
    raise Unsupported(f"activation {name}")


def _parameter(name: str, which: str, given: Iterator[float], default: float | None) -> float:
    found = next(given, default)
    if found is None:
        raise Unsupported(f"activation {name} without its activation_{which}")
    return found


def _scaled(op: Op | None, *scale: float) -> Activation:
    return lambda build, x: scaled(build, op, x, *scale)
