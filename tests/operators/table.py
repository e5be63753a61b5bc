"""Models of one operator, drawn at random: shapes, ranks, attributes, opsets, and edges of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

OPSETS = range(8, 25)
Shape = tuple[int, ...]


@dataclass
class Dice:
    """Random choices of one model, whose operator and opset are given."""

    rng: np.random.Generator
    op: str
    opset: int

    @property
    def schema(self) -> Any:
        return onnx.defs.get_schema(self.op, self.opset, "")

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def whole(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def wholes(self, low: int, high: int, count: int) -> list[int]:
        return [self.whole(low, high) for _ in range(count)]

    def number(self) -> float:
        """A float32 number, often a plain one."""
        drawn = self.rng.normal() * self.pick(0.1, 1, 10)
        return float(np.float32(self.pick(0.0, 1.0, -1.0, 0.5, drawn, drawn, drawn)))

    def shape(self, least: int = 1, most: int = 4) -> Shape:
        """Of an input: its first axis is a batch of 1, unless it has no other."""
        rank = self.whole(least, most)
        if rank == 1:
            return (self.whole(2, 7),)
        return (1, *self.wholes(1, 4, rank - 2), self.whole(2, 5))

    def image(self) -> Shape:
        dims = self.pick(1, 2, 2, 2, 3)
        return (1, self.pick(1, 2, 4), *self.wholes(2, 7 if dims < 3 else 4, dims))

    def weights(self, *shape: int) -> np.ndarray:
        drawn = self.rng.normal(size=shape).astype(np.float32)
        return np.round(drawn, 1) if self.chance(0.3) else drawn

    def like(self, shape: Shape) -> np.ndarray:
        """A constant that can be combined with a tensor of this shape, or widens it."""
        sizes = [n if self.chance(0.6) else 1 for n in shape]
        sizes = [self.whole(2, 3) if n == 1 and self.chance(0.1) else n for n in sizes]
        return self.weights(*sizes[self.whole(0, len(sizes)) :])

    def axis(self, rank: int) -> int:
        return self.whole(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        chosen = self.rng.permutation(rank)[: self.whole(1, rank)].tolist()
        return [a - rank if self.chance(0.3) else a for a in chosen]


@dataclass
class Drawn:
    """y = op(inputs): "x" is the network's input, None left out, anything else a constant."""

    dice: Dice
    shape: Shape
    inputs: list[Any] = field(default_factory=lambda: ["x"])
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    turned: tuple[int, ...] | None = None  # the order of axes in which the operator reads x

    def put(self, name: str, place: int, values: Any, kind: type = np.int64) -> None:
        """What newer opsets moved from attribute `name` to input `place`."""
        if name in self.dice.schema.attributes:
            self.attributes[name] = values
            return
        self.inputs += [None] * (place + 1 - len(self.inputs))
        self.inputs[place] = np.array(values, kind)

    def maybe(self, name: str, value: Any, p: float = 0.5) -> None:
        """An attribute, where the opset has it."""
        if name in self.dice.schema.attributes and self.dice.chance(p):
            self.attributes[name] = value

    def model(self, tail: bool, folded: np.ndarray | None) -> onnx.ModelProto:
        """x to z: the operator's outputs one after the other, negated with `tail`. With `folded`,
        the operator reads that constant, and z has x beside it."""
        dice = self.dice
        names, constants = [], {}
        for i, given in enumerate(self.inputs):
            names.append("" if given is None else "x" if isinstance(given, str) else f"c{i}")
            if given is not None and not isinstance(given, str):
                constants[f"c{i}"] = np.asarray(given)
        if folded is not None:
            names = ["c" if n == "x" else n for n in names]
            constants["c"] = folded
        nodes = []
        if self.turned is not None:
            nodes.append(helper.make_node("Transpose", ["x"], ["t"], perm=self.turned))
            names = ["t" if n == "x" else n for n in names]
        parts = [f"y{k}" for k in range(self.outputs)]
        nodes.append(helper.make_node(dice.op, names, parts, name="op", **self.attributes))
        ends = list(parts)
        if folded is not None or self.outputs > 1:
            ends = [*(["x"] if folded is not None else []), *parts]
            for k, name in enumerate(ends):
                nodes.append(helper.make_node("Flatten", [name], [f"f{k}"], axis=0))
            nodes.append(
                helper.make_node("Concat", [f"f{k}" for k in range(len(ends))], ["f"], axis=1)
            )
            ends = ["f"]
        nodes.append(helper.make_node("Neg" if tail else "Identity", ends, ["z"]))
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()],
        )
        opsets = [helper.make_opsetid("", dice.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def __str__(self) -> str:
        given = [
            i if i is None or isinstance(i, str) else np.array2string(np.asarray(i), threshold=12)
            for i in self.inputs
        ]
        text = f"{self.dice.op} of opset {self.dice.opset} at {self.shape}: {given}"
        return f"{text} {self.attributes}"


Draw = Callable[[Dice], Drawn]
TABLE: dict[str, Draw] = {}


def draws(*ops: str) -> Callable[[Draw], Draw]:
    def register(draw: Draw) -> Draw:
        for op in ops:
            TABLE[op] = draw
        return draw

    return register


def drawn(op: str, seed: Sequence[int]) -> Drawn:
    """A model of an operator, in one of the opsets that have it."""
    rng = np.random.default_rng(seed)
    return TABLE[op](Dice(rng, op, int(rng.choice(opsets_of(op)))))


@cache
def opsets_of(op: str) -> list[int]:
    since = [s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, "")]
    gone = {s.since_version: s.deprecated for s in since}
    known = [n for n in OPSETS if n >= min(gone)]
    return [n for n in known if not gone[max(v for v in gone if v <= n)]]


# -- functions --------------------------------------------------------------------------------


@draws("Abs", "Atan", "Cos", "Erf", "Exp", "HardSwish", "Identity", "Log", "Neg", "Reciprocal")
@draws("Ceil", "Floor", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh")
def plain(r: Dice) -> Drawn:
    return Drawn(r, r.shape())


@draws("Celu", "Elu", "HardSigmoid", "LeakyRelu", "Selu", "Swish")
def with_numbers(r: Dice) -> Drawn:
    found = Drawn(r, r.shape())
    for name in r.schema.attributes:
        found.maybe(name, r.number())
    return found


@draws("Gelu")
def gelu(r: Dice) -> Drawn:
    found = Drawn(r, r.shape())
    found.maybe("approximate", r.pick("none", "tanh"))
    return found


@draws("PRelu")
def prelu(r: Dice) -> Drawn:
    shape = r.shape()
    return Drawn(r, shape, ["x", r.like(shape)])


@draws("Clip")
def clip(r: Dice) -> Drawn:
    found = Drawn(r, r.shape())
    low, high = sorted([r.number(), r.number()])
    low, high = r.pick((low, high), (low, high), (low, high), (high, low), (-3.4e38, high))
    if r.chance(0.7):
        found.put("min", 1, low, np.float32)
    if r.chance(0.7):
        found.put("max", 2, high, np.float32)
    return found


@draws("Softmax", "LogSoftmax")
def shares(r: Dice) -> Drawn:
    found = Drawn(r, r.shape(1, 4))
    found.maybe("axis", r.axis(len(found.shape)), 0.7)
    return found


# -- arithmetic -----------------------------------------------------------------------------


@draws("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
def arithmetic(r: Dice) -> Drawn:
    shape = r.shape()
    inputs: list[Any] = ["x", r.like(shape)]
    if r.chance(0.1):
        inputs[1] = "x"
    if r.op in ("Max", "Min", "Sum"):
        inputs += [r.like(shape) for _ in range(r.whole(0, 2))]
        inputs += ["x"] if r.chance(0.2) else []
    order = r.rng.permutation(len(inputs))
    return Drawn(r, shape, [inputs[i] for i in order])


@draws("Pow")
def power(r: Dice) -> Drawn:
    shape = r.shape()
    if r.chance(0.2):
        return Drawn(r, shape, [np.abs(r.like(shape)) + np.float32(0.1), "x"])
    exponent = r.pick(0, 1, 2, 3, 4, -1, -2, 0.5, 1.5, -0.5)
    kind = np.int64 if exponent == int(exponent) and r.opset >= 12 and r.chance() else np.float32
    return Drawn(r, shape, ["x", np.full(r.pick((), (1,), (1, 1)), exponent, kind)])


@draws("Where")
def where(r: Dice) -> Drawn:
    shape = r.shape()
    mask = r.like(shape) > 0
    inputs: list[Any] = [mask, "x", r.like(shape)]
    if r.chance():
        inputs[1], inputs[2] = inputs[2], inputs[1]
    if r.chance(0.1):
        inputs = [mask, "x", "x"]
    return Drawn(r, shape, inputs)


@draws("CumSum")
def running(r: Dice) -> Drawn:
    shape = r.shape()
    kind = r.pick(np.int32, np.int64)
    found = Drawn(r, shape, ["x", np.full(r.pick((), (1,)), r.axis(len(shape)), kind)])
    found.maybe("exclusive", r.whole(0, 1))
    found.maybe("reverse", r.whole(0, 1))
    return found


@draws("MatMul")
def matmul(r: Dice) -> Drawn:
    shape = r.shape(1, 4)
    if r.chance(0.1):
        return Drawn(r, shape, ["x", "x"])
    left = r.chance(0.3)
    inner = shape[-2] if left and len(shape) > 1 else shape[-1]
    size = [inner] if r.chance(0.15) else [inner, r.whole(1, 4)]
    lead = [n if r.chance() else 1 for n in shape[:-2]]
    lead = (lead or [1]) if len(size) > 1 and r.chance(0.3) else []
    if left:
        return Drawn(r, shape, [r.weights(*lead, *size[::-1]), "x"])
    return Drawn(r, shape, ["x", r.weights(*lead, *size)])


@draws("Gemm")
def gemm(r: Dice) -> Drawn:
    shape = (1, r.whole(2, 5)) if r.chance(0.8) else (1, 1)
    turned, flipped = r.chance(0.3), r.chance()
    rows, inner = shape[::-1] if turned else shape
    out = r.whole(1, 4)
    weight = r.weights(out, inner) if flipped else r.weights(inner, out)
    inputs: list[Any] = ["x", weight]
    if r.chance(0.15):  # the network's input second
        inner, out = shape[::-1] if flipped else shape
        turned = r.chance()
        first = r.weights(inner, rows) if turned else r.weights(rows, inner)
        inputs = [first, "x"]
    if r.chance(0.7) or r.opset < 11:
        sizes = ((), (1,), (out,), (1, out), (rows, 1), (rows, out))
        inputs.append(r.weights(*sizes[r.whole(0, 5)]))
    found = Drawn(r, shape, inputs, {"transA": int(turned), "transB": int(flipped)})
    found.maybe("alpha", r.number())
    found.maybe("beta", r.number())
    return found


EQUATIONS = ("bij,kj->bki", "bij,jk->bik", "bij,ij->bj", "bij,j", "...ij,kj->...ik", "bij,bij->b")


@draws("Einsum")
def einsum(r: Dice) -> Drawn:
    n, m, k = r.wholes(1, 4, 3)
    sizes = {"b": 1, "i": n, "j": m, "k": k, ".": 0}
    equation = r.pick(*EQUATIONS, "bij->bji", "bij->b", "bii->bi" if n == m else "bij->ij")
    terms = equation.split("->")[0].split(",")
    inputs: list[Any] = ["x"]
    if len(terms) > 1:
        inputs.append(r.weights(*(sizes[c] for c in terms[1])))
    return Drawn(r, (1, n, m), inputs, {"equation": equation})


# -- over axes ---------------------------------------------------------------------------------


@draws("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin")
@draws("ReduceSum", "ReduceSumSquare")
def reduction(r: Dice) -> Drawn:
    found = Drawn(r, r.shape(2, 4))
    if r.chance(0.8):
        found.put("axes", 1, r.axes(len(found.shape)))
    elif "axes" not in r.schema.attributes and r.chance(0.3):
        found.put("axes", 1, [])
    found.maybe("keepdims", r.whole(0, 1))
    found.maybe("noop_with_empty_axes", r.whole(0, 1), 0.3)
    return found


@draws("GlobalAveragePool", "GlobalMaxPool")
def whole_image(r: Dice) -> Drawn:
    return Drawn(r, r.image())


@draws("BatchNormalization")
def batch_norm(r: Dice) -> Drawn:
    shape = r.image() if r.chance() else r.shape(2, 2)
    n = shape[1]
    found = Drawn(r, shape, ["x", r.weights(n), r.weights(n), r.weights(n), r.weights(n) ** 2])
    found.maybe("epsilon", r.pick(1e-5, 1e-3, 0.5))
    found.maybe("momentum", 0.7, 0.2)
    return found


@draws("InstanceNormalization")
def instance_norm(r: Dice) -> Drawn:
    shape = r.image()
    found = Drawn(r, shape, ["x", r.weights(shape[1]), r.weights(shape[1])])
    found.maybe("epsilon", r.pick(1e-5, 1e-3, 0.5))
    return found


@draws("GroupNormalization")
def group_norm(r: Dice) -> Drawn:
    shape = r.image()
    groups = r.pick(*(g for g in (1, 2, 4) if shape[1] % g == 0))
    size = groups if r.opset < 21 else shape[1]
    found = Drawn(r, shape, ["x", r.weights(size), r.weights(size)], {"num_groups": groups})
    found.maybe("epsilon", r.pick(1e-5, 1e-3, 0.5))
    return found


@draws("LayerNormalization")
def layer_norm(r: Dice) -> Drawn:
    shape = r.shape(2, 4)
    axis = r.axis(len(shape))
    sizes = shape[axis:] if axis else shape
    found = Drawn(r, shape, ["x", r.weights(*sizes)])
    found.inputs += [r.weights(*sizes)] if r.chance() else []
    found.attributes["axis"] = axis
    found.maybe("epsilon", r.pick(1e-5, 1e-3, 0.5))
    return found


# -- windows ---------------------------------------------------------------------------------


def windows(found: Drawn, kernel: Sequence[int]) -> None:
    r, dims = found.dice, len(kernel)
    found.maybe("strides", r.wholes(1, 3, dims), 0.6)
    found.maybe("dilations", r.wholes(1, 2, dims), 0.3)
    mode = r.pick("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if mode != "NOTSET":
        found.attributes["auto_pad"] = mode
    elif r.chance(0.6):
        found.attributes["pads"] = [r.whole(0, kernel[i % dims] - 1) for i in range(2 * dims)]


@draws("Conv")
def conv(r: Dice) -> Drawn:
    shape = r.image()
    kernel = [r.whole(1, min(3, n)) for n in shape[2:]]
    groups = r.pick(*(g for g in (1, 1, 2, 4) if shape[1] % g == 0))
    outputs = groups * r.whole(1, 2)
    found = Drawn(r, shape, ["x", r.weights(outputs, shape[1] // groups, *kernel)])
    found.inputs += [r.weights(outputs)] if r.chance() else []
    windows(found, kernel)
    found.maybe("group", groups, 1.0)
    found.maybe("kernel_shape", kernel)
    return found


@draws("ConvTranspose")
def conv_transpose(r: Dice) -> Drawn:
    shape = r.image()
    kernel = r.wholes(1, 3, len(shape) - 2)
    groups = r.pick(*(g for g in (1, 1, 2, 4) if shape[1] % g == 0))
    outputs = r.whole(1, 2)
    found = Drawn(r, shape, ["x", r.weights(shape[1], outputs, *kernel)], {"group": groups})
    found.inputs += [r.weights(outputs * groups)] if r.chance() else []
    windows(found, kernel)
    if r.chance(0.3):
        found.attributes["strides"] = r.wholes(2, 3, len(kernel))
        found.attributes["output_padding"] = r.wholes(0, 1, len(kernel))
    elif r.chance(0.2):
        strides = found.attributes.get("strides", [1] * len(kernel))
        found.attributes["output_shape"] = [
            n * s + r.whole(0, 1) for n, s in zip(shape[2:], strides)
        ]
    found.maybe("kernel_shape", kernel)
    return found


@draws("MaxPool", "AveragePool")
def pool(r: Dice) -> Drawn:
    shape = r.image()
    kernel = [r.whole(1, min(3, n)) for n in shape[2:]]
    found = Drawn(r, shape, attributes={"kernel_shape": kernel})
    windows(found, kernel)
    found.maybe("ceil_mode", r.whole(0, 1))
    found.maybe("count_include_pad", r.whole(0, 1))
    found.maybe("storage_order", r.whole(0, 1), 0.2)
    return found


# -- places ----------------------------------------------------------------------------------


@draws("Flatten")
def flatten(r: Dice) -> Drawn:
    found = Drawn(r, r.shape())
    rank = len(found.shape)
    found.maybe("axis", r.whole(-rank if r.opset >= 11 else 0, rank), 0.8)
    return found


@draws("Reshape")
def reshape(r: Dice) -> Drawn:
    shape = r.shape(2, 4)
    size = prod(shape)
    first = r.pick(*(n for n in range(1, size + 1) if size % n == 0))
    targets = [(-1,), (first, -1), (1, -1), (first, size // first), (0, -1), (-1, shape[-1])]
    found = Drawn(r, shape, ["x", np.array(r.pick(*targets, (0,) * len(shape)), np.int64)])
    found.maybe("allowzero", r.whole(0, 1), 0.3)
    return found


@draws("Transpose")
def transpose(r: Dice) -> Drawn:
    found = Drawn(r, r.shape())
    found.maybe("perm", r.rng.permutation(len(found.shape)).tolist(), 0.8)
    return found


@draws("Squeeze")
def squeeze(r: Dice) -> Drawn:
    found = Drawn(r, (1, *r.rng.permutation([1, 1, r.whole(2, 4)]).tolist()))
    ones = [a for a, n in enumerate(found.shape) if n == 1]
    chosen = [a - 4 if r.chance(0.3) else a for a in ones if r.chance(0.6)]
    if chosen:
        found.put("axes", 1, chosen)
    return found


@draws("Unsqueeze")
def unsqueeze(r: Dice) -> Drawn:
    shape = r.shape(1, 3)
    wide = len(shape) + r.whole(1, 2)
    chosen = r.rng.permutation(wide)[: wide - len(shape)].tolist()
    found = Drawn(r, shape)
    found.put("axes", 1, [a - wide if r.chance(0.3) and r.opset >= 11 else a for a in chosen])
    return found


@draws("Concat")
def concat(r: Dice) -> Drawn:
    shape = r.shape()
    axis = r.axis(len(shape))
    inputs: list[Any] = ["x"]
    for _ in range(r.whole(0, 2)):
        size = list(shape)
        size[axis] = r.whole(1, 3)
        inputs.append(r.pick("x", r.weights(*size)))
    order = r.rng.permutation(len(inputs))
    return Drawn(r, shape, [inputs[i] for i in order], {"axis": axis})


@draws("Split")
def split(r: Dice) -> Drawn:
    shape = r.shape(1, 4)
    axis = r.pick(*(a for a, n in enumerate(shape) if n > 1), 0)
    size, parts = shape[axis], r.whole(1, min(3, shape[axis]))
    found = Drawn(r, shape, attributes={"axis": axis - len(shape) if r.chance(0.3) else axis})
    found.outputs = parts
    if r.chance():
        cuts = np.sort(r.rng.permutation(np.arange(1, size))[: parts - 1])
        found.put("split", 1, np.diff([0, *cuts, size]).tolist())
    else:
        found.maybe("num_outputs", parts, 1.0)
    return found


@draws("Slice")
def slices(r: Dice) -> Drawn:
    shape = r.shape()
    axes = r.axes(len(shape))
    ends = [-(2**31), -6, -2, -1, 0, 1, 2, 4, 9, 2**31 - 1]
    found = Drawn(r, shape)
    found.put("starts", 1, [r.pick(*ends[1:-1]) for _ in axes])
    found.put("ends", 2, [r.pick(*ends) for _ in axes])
    if r.chance(0.8):
        found.put("axes", 3, axes)
    if r.opset >= 10 and r.chance(0.6):
        found.inputs += [None] * (4 - len(found.inputs))
        found.inputs.append(np.array([r.pick(1, 1, 2, 3, -1, -2) for _ in axes], np.int64))
    return found


@draws("Gather")
def gather(r: Dice) -> Drawn:
    shape = r.shape()
    axis = r.axis(len(shape))
    n = shape[axis]
    places = r.rng.integers(-n if r.opset >= 11 else 0, n, r.pick((), (1,), (3,), (2, 2)))
    found = Drawn(r, shape, ["x", np.asarray(places, r.pick(np.int32, np.int64))])
    found.attributes["axis"] = axis
    return found


@draws("Expand")
def expand(r: Dice) -> Drawn:
    shape = r.shape(1, 3)
    target = [r.pick(n, 1, n) if n > 1 else r.whole(1, 3) for n in shape]
    lead = r.wholes(1, 2, r.whole(0, 1))
    return Drawn(r, shape, ["x", np.array([*lead, *target], np.int64)])


@draws("Pad")
def pad(r: Dice) -> Drawn:
    shape = r.shape(2, 4)
    found = Drawn(r, shape)
    axes = r.axes(len(shape)) if r.opset >= 18 and r.chance(0.4) else None
    count = len(axes or shape)
    found.put("pads", 1, [r.pick(0, 0, 1, 1, 2, -1) for _ in range(2 * count)])
    mode = r.pick("constant", "constant", "edge", "reflect", "wrap" if r.opset >= 19 else "edge")
    found.maybe("mode", mode, 0.7)
    if r.chance():
        found.put("value", 2, r.number(), np.float32)
    if axes is not None:
        found.inputs += [None] * (3 - len(found.inputs))
        found.inputs.append(np.array(axes, np.int64))
    return found


@draws("Upsample", "Resize")
def resize(r: Dice) -> Drawn:
    shape = (1, r.whole(1, 2), *r.wholes(2, 4, 2))
    scales = [1.0, 1.0, *(float(r.pick(1, 2, 3, 2, 0.5, 1.5)) for _ in range(2))]
    found = Drawn(r, shape)
    if r.op == "Upsample":
        found.put("scales", 1, scales, np.float32)
        found.maybe("mode", r.pick("nearest", "linear"), 0.5)
        return found
    if r.opset < 11:
        found.inputs.append(np.array(scales, np.float32))
    elif r.chance(0.7):
        blank = None if r.opset >= 13 else np.zeros(0, np.float32)
        found.inputs += [blank, np.array(scales, np.float32)]
    else:
        blank = None if r.opset >= 13 else np.zeros(0, np.float32)
        sizes = [int(n * s) for n, s in zip(shape, scales)]
        found.inputs += [blank, blank, np.array(sizes, np.int64)]
    found.maybe("mode", r.pick("nearest", "nearest", "linear", "cubic"), 0.5)
    rules = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    found.maybe("coordinate_transformation_mode", r.pick(*rules), 0.6)
    rounding = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    found.maybe("nearest_mode", r.pick(*rounding), 0.6)
    return found


@draws("Cast")
def cast(r: Dice) -> Drawn:
    return Drawn(r, r.shape(), attributes={"to": 1})


@draws("Dropout")
def dropout(r: Dice) -> Drawn:
    found = Drawn(r, r.shape())
    if r.opset >= 12:
        found.inputs += [np.float32(0.5), np.array(False)][: r.whole(0, 2)]
        found.maybe("seed", 3, 0.2)
    else:
        found.maybe("ratio", 0.3)
    return found


# -- sequences -------------------------------------------------------------------------------


def recurrent(gates: int, r: Dice) -> Drawn:
    frames, features, size = r.whole(1, 3), r.whole(1, 3), r.whole(1, 2)
    way = r.pick("forward", "forward", "reverse", "bidirectional")
    ways = 2 if way == "bidirectional" else 1
    found = Drawn(r, (1, frames, features), turned=(1, 0, 2))
    found.inputs += [r.weights(ways, gates * size, features), r.weights(ways, gates * size, size)]
    if r.chance(0.7):
        found.inputs.append(r.weights(ways, 2 * gates * size))
    found.attributes = {"hidden_size": size}
    found.maybe("direction", way, 1.0)
    found.maybe("linear_before_reset", r.whole(0, 1))
    if r.op == "RNN":
        found.maybe("activations", [r.pick("Tanh", "Relu", "Sigmoid")] * ways, 0.4)
    if r.chance(0.15):
        found.inputs += [None] * (5 - len(found.inputs))
        found.inputs.append(r.weights(ways, 1, size))
    return found


TABLE["RNN"] = partial(recurrent, 1)
TABLE["GRU"] = partial(recurrent, 3)
TABLE["LSTM"] = partial(recurrent, 4)
