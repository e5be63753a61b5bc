"""Activations as onnxruntime and torch execute them in single precision, one kernel each.

A kernel maps numbers to what the runtime makes of them, in a context: the operator by itself,
written out in several, fused into a convolution, within a recurrent operator (where one gate is
driven and the others are held at numbers that let it through), on strided or short tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import pi, sqrt
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frown.bounds.arithmetic.float32 import LARGE32, LIBRARY, own_error
from frown.graph.intervals import Intervals
from frown.relax import Elu, GeluTanh, LeakyRelu, Softplus, selu
from frown.relax.elementwise import Elementwise
from functions import ELEMENTWISE as FUNCTIONS
from onnx_models import model, node, number

Single = NDArray[np.float32]
Run = Callable[[Single], Single]

WIDE = 16  # entries of a state: more than a vector register holds


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function as one runtime executes it somewhere."""

    name: str
    op: Elementwise
    make: Callable[[], Run]

    def __str__(self) -> str:
        return self.name


def floats(every: int, start: int = 0) -> Iterator[Single]:
    """Every so many of all finite numbers, in pieces."""
    last, step = 0x7F7FFFFF, every * 2**20
    for first in range(start, last + 1, step):
        bits = np.arange(first, min(first + step, last + 1), every, dtype=np.uint32)
        positive = bits.view(np.float32)
        yield np.concatenate([positive, -positive])


# -- onnxruntime ------------------------------------------------------------------------


def session(
    proto: onnx.ModelProto, optimised: bool = True
) -> Callable[[dict[str, Any]], list[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feed: list(found.run(None, feed))


def _graph(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], opset: int, optimised: bool
) -> Run:
    call = session(model(nodes, ["N"], constants, opset=opset), optimised)
    return lambda z: np.asarray(call({"x": z})[0])


def _onnx(
    name: str,
    op: Elementwise,
    nodes: list[onnx.NodeProto],
    opset: int = 20,
    optimised: bool = True,
    **constants: float,
) -> Kernel:
    given = {k: number(v) for k, v in constants.items()}
    return Kernel(f"onnxruntime {name}", op, lambda: _graph(nodes, given, opset, optimised))


_PLAIN = {
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Erf": "erf",
    "Atan": "arctan",
    "Softplus": "softplus",
    "Elu": "elu",
    "Gelu": "gelu",
    "HardSwish": "hard_swish",
}


def _written() -> Iterator[Kernel]:
    """Functions that files write out, as they stand and as onnxruntime fuses them."""
    for optimised in (True, False):
        how = "fused" if optimised else "unfused"
        gelu = [
            node("Div", "x root", "a"),
            node("Erf", "a", "b"),
            node("Add", "b one", "c"),
            node("Mul", "x c", "d"),
            node("Mul", "d half"),
        ]
        constants = {"root": sqrt(2), "one": 1.0, "half": 0.5}
        yield _onnx(f"gelu {how}", FUNCTIONS["gelu"], gelu, 13, optimised, **constants)
        tanh = [
            node("Pow", "x three", "a"),
            node("Mul", "a small", "b"),
            node("Add", "x b", "c"),
            node("Mul", "c root", "d"),
            node("Tanh", "d", "e"),
            node("Add", "e one", "f"),
            node("Mul", "x half", "g"),
            node("Mul", "g f"),
        ]
        constants = {"three": 3.0, "small": 0.044715, "root": sqrt(2 / pi), "one": 1.0, "half": 0.5}
        yield _onnx(f"gelu_tanh {how}", FUNCTIONS["gelu_tanh"], tanh, 13, optimised, **constants)
        silu = [node("Sigmoid", "x", "s"), node("Mul", "x s")]
        yield _onnx(f"silu {how}", FUNCTIONS["silu"], silu, 13, optimised)


def _fused_convolution(function: str) -> Run:
    """A convolution with weight 1, which onnxruntime may fuse with what follows it."""
    nodes = [node("Conv", "x w", "c"), node(function, "c")]
    eye = np.eye(WIDE, dtype=np.float32).reshape(WIDE, WIDE, 1, 1)
    call = session(model(nodes, [1, WIDE, 1, "N"], {"w": eye}, opset=13))

    def run(z: Single) -> Single:
        padded = _padded(z).reshape(1, WIDE, 1, -1)
        return np.asarray(call({"x": padded})[0]).reshape(-1)[: len(z)]

    return run


def _padded(z: Single) -> Single:
    return np.concatenate([z, np.zeros(-len(z) % WIDE, np.float32)])


_AT_GATES: dict[str, tuple[Elementwise, dict[str, Any]]] = {
    "Sigmoid": (FUNCTIONS["sigmoid"], {}),
    "Tanh": (FUNCTIONS["tanh"], {}),
    "Relu": (FUNCTIONS["relu"], {}),
    "Softplus": (Softplus(), {}),
    "LeakyRelu": (LeakyRelu(0.125), {"activation_alpha": [0.125]}),
    "Elu": (Elu(0.75), {"activation_alpha": [0.75]}),
}


def _recurrent(
    kind: str,
    gate: int,
    functions: list[str],
    more: dict[str, Any],
    held: dict[int, float],
    states: list[float],
    output: int,
) -> Run:
    """What a gate of a recurrent operator gives, with the others held at numbers."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    weight = np.zeros((1, gates * WIDE, WIDE), np.float32)
    weight[0, gate * WIDE : (gate + 1) * WIDE] = np.eye(WIDE)
    bias = np.zeros((1, 2 * gates * WIDE), np.float32)
    for place, value in held.items():
        bias[0, place * WIDE : (place + 1) * WIDE] = value
    constants = {"w": weight, "r": np.zeros((1, gates * WIDE, WIDE), np.float32), "b": bias}
    names = ["h", "c"][: len(states)]
    extra = {} if not functions else {"activations": functions}
    ends = "s y" if kind != "LSTM" else "s y t"
    nodes = [node(kind, f"x w r b - {' '.join(names)}", ends, hidden_size=WIDE, **extra, **more)]
    graph = model(nodes, [1, "N", WIDE], constants, 13, ("y", "t")[: 2 if kind == "LSTM" else 1])
    for name in names:
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, "N", WIDE])
        graph.graph.input.append(value)
    call = session(graph)

    def run(z: Single) -> Single:
        x = _padded(z).reshape(1, -1, WIDE)
        feed = {"x": x} | {n: np.full_like(x, v) for n, v in zip(names, states, strict=True)}
        return np.asarray(call(feed)[output]).reshape(-1)[: len(z)]

    return run


def _at_gates() -> Iterator[Kernel]:
    pass_on = {"activation_alpha": [1.0]}  # of a LeakyRelu
    for function, (op, more) in _AT_GATES.items():
        gates: dict[str, tuple[Any, ...]] = {
            "RNN": ("RNN", 0, [function], more, {}, [0.0], 0),
            # h' = (1 - z) n + z h: z with n = tanh 0 = 0 and h = 1, n with z = 0 of a Relu.
            "GRU z": ("GRU", 0, [function, "Tanh"], more, {}, [1.0], 0),
            "GRU n": ("GRU", 2, ["Relu", function], more, {}, [0.0], 0),
            # c' = f c + i g and h' = o h(c'), gates in the order i, o, f, g.
            "LSTM i": ("LSTM", 0, [function, "Relu", "Relu"], more, {3: 1.0}, [0.0, 0.0], 1),
            "LSTM f": ("LSTM", 2, [function, "Relu", "Relu"], more, {}, [0.0, 1.0], 1),
            "LSTM g": ("LSTM", 3, ["Relu", function, "Relu"], more, {0: 1.0}, [0.0, 0.0], 1),
        }
        if not more:
            names = ["Relu", "LeakyRelu", function]
            gates["LSTM h"] = ("LSTM", 3, names, pass_on, {0: 1.0, 1: 1.0}, [0.0, 0.0], 0)
        for where, given in gates.items():
            yield Kernel(f"onnxruntime {where} {function}", op, partial(_recurrent, *given))
    # The cell is i g = 2 (1/2) = 1, i = sigmoid 0.
    held = ["Sigmoid", "Relu", "Relu"], {}, {3: 2.0}, [0.0, 0.0], 0
    out = partial(_recurrent, "LSTM", 1, *held)
    yield Kernel("onnxruntime LSTM o Sigmoid", FUNCTIONS["sigmoid"], out)
    yield Kernel("onnxruntime GRU r Sigmoid", FUNCTIONS["sigmoid"], _reset)


def _reset() -> Run:
    """n = r (R h + 1) with z = sigmoid 0 = 1/2: h' = n / 2."""
    more: dict[str, Any] = {"activation_alpha": [1.0], "linear_before_reset": 1}
    run = _recurrent("GRU", 1, ["Sigmoid", "LeakyRelu"], more, {5: 1.0}, [0.0], 0)
    return lambda z: run(z) * np.float32(2)


# -- torch ----------------------------------------------------------------------------


def _torch(name: str, op: Elementwise, function: Callable[[Tensor], Tensor]) -> Iterator[Kernel]:
    def whole(z: Single) -> Single:
        with torch.inference_mode():
            return function(torch.from_numpy(z)).numpy()

    def strided(z: Single) -> Single:
        with torch.inference_mode():
            apart = torch.from_numpy(np.repeat(z, 2))[::2]
            return function(apart).contiguous().numpy()

    def short(z: Single) -> Single:
        """Seven at a time, so that no vector register is full, of a thousand places."""
        with torch.inference_mode():
            y = function(torch.from_numpy(z))
            for k in range(0, len(z) - 7, max(7, len(z) // 1000)):
                y[k : k + 7] = function(torch.from_numpy(z[k : k + 7]))
            return y.numpy()

    yield Kernel(f"torch {name}", op, lambda: whole)
    yield Kernel(f"torch {name} strided", op, lambda: strided)
    yield Kernel(f"torch {name} short", op, lambda: short)


def _functions() -> Iterator[Kernel]:
    f = nn.functional
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "erf": torch.erf,
        "arctan": torch.atan,
        "softplus": f.softplus,
        "elu": f.elu,
        "silu": f.silu,
        "gelu": f.gelu,
        "gelu_tanh": lambda z: f.gelu(z, approximate="tanh"),
        "hard_swish": f.hardswish,
        "leaky_relu": lambda z: f.leaky_relu(z, 0.1),
    }
    for name, function in known.items():
        yield from _torch(name, FUNCTIONS[name], function)
    yield from _torch("selu", selu(), f.selu)
    yield from _torch("softplus far", Softplus(), lambda z: f.softplus(z, 1.0, 100.0))
    yield from _torch("gelu_tanh written", GeluTanh(), _gelu_tanh)
    yield from _torch("gelu written", FUNCTIONS["gelu"], _gelu)


def _gelu(z: Tensor) -> Tensor:
    return z * 0.5 * (1 + torch.erf(z / sqrt(2)))


def _gelu_tanh(z: Tensor) -> Tensor:
    return z * 0.5 * (1 + torch.tanh(sqrt(2 / pi) * (z + 0.044715 * z**3)))


def _module(kind: str, gate: int, held: dict[int, float], states: list[float], cell: bool) -> Run:
    """As `_recurrent`, for a torch module, whose gates stand in another order."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    module: Any = getattr(nn, kind)(WIDE, WIDE, batch_first=True)
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
        module.weight_ih_l0[gate * WIDE : (gate + 1) * WIDE] = torch.eye(WIDE)
        for place, value in held.items():
            name, row = ("bias_ih_l0", place) if place < gates else ("bias_hh_l0", place - gates)
            getattr(module, name)[row * WIDE : (row + 1) * WIDE] = value

    def run(z: Single) -> Single:
        x = torch.from_numpy(_padded(z)).reshape(-1, 1, WIDE)
        first = [torch.full((1, len(x), WIDE), v) for v in states]
        with torch.inference_mode():
            _, last = module(x, tuple(first) if kind == "LSTM" else first[0])
        found = last[int(cell)] if kind == "LSTM" else last
        return np.asarray(found.reshape(-1).numpy()[: len(z)])

    return run


def _modules() -> Iterator[Kernel]:
    # i, f, g, o in an LSTM; r, z, n in a GRU. sigmoid 40 = tanh 40 = 1.
    sites: dict[str, tuple[str, tuple[Any, ...]]] = {
        "RNN tanh": ("tanh", ("RNN", 0, {}, [0.0], False)),
        "GRU z sigmoid": ("sigmoid", ("GRU", 1, {}, [1.0], False)),
        "LSTM i sigmoid": ("sigmoid", ("LSTM", 0, {2: 40.0}, [0.0, 0.0], True)),
        "LSTM f sigmoid": ("sigmoid", ("LSTM", 1, {}, [0.0, 1.0], True)),
        "LSTM g tanh": ("tanh", ("LSTM", 2, {0: 40.0}, [0.0, 0.0], True)),
        "LSTM o sigmoid": ("sigmoid", ("LSTM", 3, {1: 40.0}, [0.0, 40.0], False)),
    }
    for where, (function, given) in sites.items():
        yield Kernel(f"torch {where}", FUNCTIONS[function], partial(_module, *given))


@lru_cache(maxsize=1)
def kernels() -> tuple[Kernel, ...]:
    plain = [_onnx(name, FUNCTIONS[op], [node(name, "x")]) for name, op in _PLAIN.items()]
    plain.append(_onnx("Selu", Elu(1.6732631921768188, 1.0507010221481323), [node("Selu", "x")]))
    plain.append(_onnx("Celu", Elu(1.0), [node("Celu", "x")]))
    plain.append(
        _onnx("Gelu tanh", FUNCTIONS["gelu_tanh"], [node("Gelu", "x", approximate="tanh")])
    )
    plain.append(_onnx("LeakyRelu", LeakyRelu(0.125), [node("LeakyRelu", "x", alpha=0.125)]))
    fused = [
        Kernel(f"onnxruntime Conv {n}", FUNCTIONS[n.lower()], partial(_fused_convolution, n))
        for n in ("Sigmoid", "Tanh", "Relu", "Softplus", "Elu")
    ]
    return (*plain, *_written(), *fused, *_at_gates(), *_functions(), *_modules())


@dataclass(frozen=True, slots=True)
class Found:
    """How a kernel does on some numbers."""

    beyond: int  # how many results are further off than is assumed
    share: float  # the largest error as a share of what is assumed
    worst: float  # where that is
    units: float  # the largest error in units of 2^-24, as `own_error` counts for the function
    unsafe: int  # numbers of which nothing is assumed


def measured(kernel: Kernel, pieces: Iterable[Single]) -> Found:
    run, beyond, unsafe = kernel.make(), 0, 0
    share = worst = 0.0
    for z in pieces:
        argument = torch.from_numpy(z).double()
        value = kernel.op.apply(argument)
        error = own_error(kernel.op, Intervals(argument, argument), value.abs())
        # As for all nodes: where numbers may reach 2^126, nothing is assumed.
        known = torch.isfinite(error) & (argument.abs() + value.abs() < LARGE32)
        off = (torch.from_numpy(run(z)).double() - value).abs()
        ratio = torch.where(known, off / error, 0.0)
        ratio = torch.where(ratio.isnan(), torch.inf, ratio)  # no number is as bad as an infinity
        beyond += int((ratio > 1).sum())
        unsafe += int((~known).sum())
        k = int(ratio.argmax())
        if float(ratio[k]) > share:
            share, worst = float(ratio[k]), float(z[k])
    return Found(beyond, share, worst, share * LIBRARY, unsafe)
