"""A loaded model: our graph beside the runtime it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.errors import InvalidInput, InvalidModel, ModelMismatch
from frown.graph import (
    LEAST,
    Builder,
    Concat,
    Graph,
    Input,
    Node,
    Op,
    Reshape,
    Scale,
    Selection,
    Shape,
    Value,
    foldable,
)
from frown.relax import (
    Arctan,
    Elementwise,
    Exp,
    Log,
    PiecewiseLinear,
    Power,
    Sigmoid,
    Softplus,
    Tanh,
)

Array = NDArray[np.floating]
_NUMBERS = 2**24  # of one tensor for all trials together
UNIT = 2.0**-23  # between neighbouring numbers of single precision, relative
ROUNDINGS = 64  # times its own rounding in single precision is what a graph allows the original


@dataclass(frozen=True, slots=True)
class Taken:
    """Choices where an ONNX file leaves something open, or asks for half precision."""

    output: str = ""  # the one that is bounded, of several
    sizes: Shape = ()  # of the input, where the file leaves axes open
    precision: str = ""  # in which the file computes, where that became float32
    classes: tuple[str, ...] = ()  # what the file calls the outputs, where it answers with labels


@dataclass(frozen=True, repr=False)
class Model:
    """A network ready to be bounded, beside the runtime it came from.

    `run` evaluates the original model (onnxruntime or the torch module) on inputs (N, *input_shape)
    in the user's units and returns (N, classes). Made by `frown.load`.
    """

    graph: Graph
    input_shape: Shape  # of one input, as the user gives it: no batch axis
    run: Callable[[Array], Array]
    name: str
    digest: str  # SHA-256 of the model file, or of the module's exported graph and weights
    source: str  # "onnx" or "torch"
    path: Path | None = None  # of an ONNX file
    files: tuple[tuple[str, str], ...] = ()  # an ONNX model's: names and SHA-256, its own first
    normalisation: tuple[tuple[Array, Array], ...] = ()  # mean and std, of the input's shape
    scores: Graph | None = None  # `graph` before a last function that keeps the outputs' order
    taken: Taken = Taken()
    alone: Model | None = None  # the same without inputs behind the outputs (`with_inputs`)

    def __getstate__(self) -> dict[str, Any]:
        """All but what can be worked out again."""
        return {k: v for k, v in self.__dict__.items() if k != "memo"}

    def __repr__(self) -> str:
        return (
            f"<Model {self.name}: input {self.input_shape}, {self.classes} outputs, "
            f"{self.graph.parameters():,} parameters>"
        )

    @property
    def classes(self) -> int:
        return self.graph.output_size

    @property
    def element(self) -> type[np.floating]:
        """The type of the numbers that the original computes with."""
        port = getattr(self.run, "port", None)
        return np.float32 if port is None else port.dtype.type

    @property
    def elements(self) -> tuple[str, str]:
        """The types of the original's inputs and outputs, as ONNX calls them."""
        session = getattr(self.run, "session", None)
        if session is None:
            return np.dtype(self.element).name, np.dtype(self.element).name
        names = {"tensor(float)": "float32", "tensor(double)": "float64"}
        ends = session.get_inputs()[0].type, session.get_outputs()[0].type
        first, last = (
            names.get(end, end.removeprefix("tensor(").removesuffix(")")) for end in ends
        )
        return first, last

    @property
    def ranking(self) -> Graph:
        """The graph in which classes are compared: its outputs have the same order as the model's.

        It leaves out a last softmax or the like, over the real numbers.
        """
        return self.graph if self.scores is None else self.scores

    @cached_property
    def memo(self) -> dict[tuple[str, ...], Any]:
        """Values that follow from the graph alone and are costly to compute again."""
        return {}

    def normalised(self, mean: object, std: object) -> Self:
        """A copy of the model that applies (x - mean) / std first, so that radii are in x's units.

        `mean` and `std` are numbers, one number per channel, or arrays of the input's shape. Raises
        InvalidInput where they fit neither, or where std is not positive.
        """
        shift = _per_feature(mean, self.input_shape, "mean")
        width = _per_feature(std, self.input_shape, "std")
        if not (np.isfinite(shift).all() and np.isfinite(width).all() and (width > 0).all()):
            raise InvalidInput("mean must be finite, and std finite and greater than 0")
        if ((np.abs(shift / width) < LEAST) & (shift != 0)).any() or (1.0 / width < LEAST).any():
            raise InvalidInput("mean / std or 1 / std is too small for double precision")
        inside = self.graph.nodes[0].shape
        factor = torch.from_numpy(1.0 / width).reshape(inside)
        offset = torch.from_numpy(-shift / width).reshape(inside)
        first = Scale(factor, offset)
        scores = None if self.scores is None else _behind(first, self.scores)
        applied = ((shift, width), *self.normalisation)
        graph = _behind(first, self.graph)
        return replace(
            self,
            graph=graph,
            run=_Normalised(self.run, shift, width),
            normalisation=applied,
            scores=scores,
        )

    def with_inputs(self) -> Self:
        """A copy of the model whose outputs are followed by its inputs, as the user gives them: for
        properties that are about both."""
        nodes, size = self.graph.nodes, self.graph.nodes[0].size
        last = self.graph.output
        ends = []
        for name, i in (("outputs", last), ("inputs", 0)):
            flat = Reshape(nodes[i].shape, (nodes[i].size,))
            ends.append(Node(name, flat, (i,), (nodes[i].size,)))
        both = Concat(0, (self.classes, size))
        sides = Node("joined", both, (last + 1, last + 2), (self.classes + size,))
        graph = Graph((*nodes, *ends, sides), self.graph.dtype, self.graph.device)
        return replace(self, graph=graph, run=_Joined(self.run), scores=None, alone=self)

    def check(self, trials: int = 4, seed: int = 0) -> None:
        """Compare the graph with the original runtime on random inputs.

        Raises ModelMismatch where they differ by more than float32 rounding explains,
        InvalidModel where the original answers with NaN or infinity; a model with logarithms,
        powers or exponentials may on some inputs, where these leave their domain or overflow.
        """
        draws = normal_draws(seed)
        largest = max(node.size for node in self.graph.nodes)
        trials = max(1, min(trials, _NUMBERS // largest))
        compared = 0
        for scale in (0.1, 1.0, 3.0):
            x = scale * draws((trials, *self.input_shape))
            # Logarithms and roots may have no answer where one input of many is negative.
            compared += self._compare(x) or self._compare(np.abs(x))
        if not compared:
            raise InvalidModel(f"{self.name}: the model answers NaN or infinity on inputs")

    def _compare(self, x: Array) -> int:
        """The number of these inputs that the original answers; on those the graph must agree."""
        theirs = np.asarray(self.run(x), dtype=np.float64)
        ours = self.graph.apply(torch.from_numpy(x)).reshape(len(x), -1).numpy()
        if theirs.shape != ours.shape:
            raise ModelMismatch(
                f"{self.name}: the model answers with shape {theirs.shape}, "
                f"the imported graph with {ours.shape}"
            )
        answered = np.isfinite(theirs).all(1)
        total = not any(isinstance(n.op, Exp | Log | Power) for n in self.graph.nodes)
        if total and not answered.all():
            raise InvalidModel(f"{self.name}: the model answers NaN or infinity on inputs")
        if not answered.any():
            return 0
        if not answered.all():  # or copies would be made, which may be large
            x, theirs, ours = x[answered], theirs[answered], ours[answered]
        gap = np.abs(theirs - ours).max(1)
        beyond = np.flatnonzero(~(gap <= self.rounding(x, theirs, np.ptp(theirs, axis=0))))
        if beyond.size:
            raise ModelMismatch(
                f"{self.name}: the imported graph and the original model disagree by "
                f"{gap[beyond[0]]:.3g} on a random input (outputs up to "
                f"{np.abs(theirs[beyond[0]]).max():.3g}); nothing is bounded"
            )
        return len(theirs)

    def rounding(self, x: Array, theirs: Array, vary: Array) -> NDArray[np.float64]:
        """(N,) how much of the original's answers may be rounding.

        It is a little of how much answers vary, or as much as the graph's own answers change in
        single precision with functions as runtimes compute them.
        """
        with np.errstate(invalid="ignore"):
            off = np.abs(self.in_single_precision(x) - self.answer(x))
        return self.rounding_at_least(theirs, vary, float(np.nan_to_num(off, posinf=0.0).max()))

    def rounding_at_least(
        self, theirs: Array, vary: Array, off: float = 0.0
    ) -> NDArray[np.float64]:
        """(N,) what `rounding` allows the original, were the graph's own answers to change by `off`
        in single precision."""
        size = np.abs(theirs).max(1)
        allowed = 1e-3 * np.max(vary, axis=-1) + ROUNDINGS * (off + UNIT * size)
        return np.asarray(np.minimum(1e-3 * (1 + size), allowed), dtype=np.float64)

    def answer(self, x: Array) -> NDArray[np.float64]:
        """(N, outputs) of the imported graph, in double precision."""
        given = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
        answers: NDArray[np.float64] = self.graph.apply(given).reshape(len(x), -1).numpy()
        return answers

    def in_single_precision(self, x: Array, slack: float = 2.0**-22) -> NDArray[np.float64]:
        """(N, outputs) of the imported graph, as a runtime in single precision might compute them.

        Every stored number is off by half of `slack` at random, since sums in another order round
        differently, and smooth functions by `slack` of what they are computed from, which runtimes
        allow themselves. A normalisation comes first, in double precision.
        """
        key = ("single precision",)
        if key not in self.memo:
            self.memo[key] = self.graph.to(torch.float32)
        given = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
        first = given.reshape(len(x), *self.graph.input_shape)
        for node in self.graph.nodes[1 : 1 + len(self.normalisation)]:
            first = node.op.apply(first)
        rough = _rough(self.memo[key], first.float(), len(self.normalisation), slack)
        answers: NDArray[np.float64] = rough.reshape(len(x), -1).double().numpy()
        return answers


@dataclass(frozen=True, slots=True)
class _Normalised:
    """A runtime behind (x - mean) / std."""

    run: Callable[[Array], Array]
    mean: Array
    std: Array

    def __call__(self, x: Array) -> Array:
        return self.run((x - self.mean) / self.std)


@dataclass(frozen=True)
class _Joined:
    """A runtime whose answers are followed by its inputs."""

    run: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        y = np.asarray(self.run(x), np.float64)
        return np.concatenate([y, np.asarray(x, np.float64).reshape(len(y), -1)], 1)


def _behind(first: Scale, graph: Graph) -> Graph:
    """A graph that reads the input scaled."""
    given = graph.nodes[0]
    raw = Node(given.name, Input(given.shape), (), given.shape)
    scaled = Node("normalise", first, (0,), given.shape)
    rest = (replace(n, inputs=tuple(i + 1 for i in n.inputs)) for n in graph.nodes[1:])
    return Graph((raw, scaled, *rest))


def _rough(graph: Graph, x: Tensor, start: int, slack: float) -> Tensor:
    """A graph from the node `start` on, in single precision, whose smooth functions are off."""
    dice = torch.Generator().manual_seed(0)
    before = graph.nodes[1 : 1 + start]

    def compute(node: Node, inputs: Sequence[Tensor]) -> Tensor:
        if any(node is one for one in before):
            return inputs[0]
        y = node.op.apply(*inputs)
        if slack and isinstance(node.op, Elementwise) and not isinstance(node.op, PiecewiseLinear):
            size = y.abs().maximum(inputs[0].abs()).clamp(min=1.0)
            y = y + slack * size * _draw(y, dice)
        elif slack and not isinstance(node.op, Selection):
            y = y * (1 + slack / 2 * _draw(y, dice))
        return y

    return graph.apply(x * (1 + slack / 2 * _draw(x, dice)) if slack else x, compute)


def _draw(like: Tensor, dice: torch.Generator) -> Tensor:
    return 2 * torch.rand(like.shape, generator=dice) - 1


def same(found: Array, expected: Array) -> bool:
    """True if a batch is answered like its inputs one by one, up to rounding, whatever the size of
    the answers."""
    if found.shape != expected.shape:
        return False
    size = np.abs(np.nan_to_num(expected)).max()
    return bool(np.allclose(found, expected, rtol=1e-4, atol=1e-5 * size, equal_nan=True))


def normal_draws(seed: int) -> Callable[[Shape], NDArray[np.float64]]:
    """Normal numbers of any shape; numpy's own generators are a library to be loaded first."""
    generator = torch.Generator().manual_seed(seed)
    return lambda shape: torch.randn(shape, dtype=torch.float64, generator=generator).numpy()


def require_finite(graph: Graph, name: str) -> None:
    """Raise InvalidModel where a weight that counts is NaN or infinite, naming each node."""
    bad = [
        f"  {type(n.op).__name__}.{field} at {n.name}"
        for n in (graph.nodes[i] for i in graph.ancestors(graph.output))
        for field, t in n.op.tensors().items()
        if not bool(torch.isfinite(t).all())
    ]
    if bad:
        raise InvalidModel(f"{name}: weights that are NaN or infinite\n" + "\n".join(bad))


def _per_feature(value: object, shape: Shape, name: str) -> NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 1 and array.size > 1 and len(shape) > 1 and array.size == shape[0]:
        array = array.reshape(-1, *([1] * (len(shape) - 1)))  # one number per channel
    if foldable(array.shape, shape):
        array = array.reshape(shape)
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        raise InvalidInput(
            f"{name} has shape {array.shape}; the input has shape {shape}: give one number, "
            "one per channel, or one per feature"
        ) from None


INCREASING = (Arctan, Exp, Sigmoid, Softplus, Tanh)  # they keep the order of the outputs


def applied(build: Builder, op: Op, x: Value) -> Value:
    """Apply a function to every entry, as an operator of its own in the model.

    Functions inside of other operators are not looked for; the checker of certificates does not,
    either.
    """
    y = build.add(op, x)
    if isinstance(op, INCREASING):
        build.ordered[y.index] = x
    return y


def finished(build: Builder, output: Value) -> tuple[Graph, Graph | None]:
    """The graph of the outputs, and that of the scores where a last function keeps their order.

    Softmax and log-softmax over all outputs divide e^x by one number, and its logarithm shifts all
    alike; a strictly increasing function of each output does not change which is larger either. So
    output a exceeds output b, over the real numbers, exactly where score a exceeds score b, and
    scores are bounded more tightly.
    """
    at, before = output.index, None
    while at > 0:
        node = build.nodes[at]
        if at in build.ordered:
            at = before = build.ordered[at].index
        elif isinstance(node.op, Reshape):
            (at,) = node.inputs
        else:
            break
    scores = None
    if before is not None:
        kept = Builder(nodes=build.nodes[: before + 1], pool=build.pool)
        scores = kept.graph(Value(before, build.nodes[before].shape))
    return build.graph(output), scores
