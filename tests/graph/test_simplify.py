"""A simplified graph is the same function with fewer nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import zoo
from frown.graph import Builder, Graph, Shape, Value, simplify, without_batch_axis
from frown.relax import Relu

torch.manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def scale(b: Builder, x: Value, *shape: int, offset: bool = True) -> Value:
    """A random scale whose numbers have the given shape."""
    return b.scale(x, draw(*shape), draw(*shape) if offset else 0.0)


def linear(b: Builder, x: Value, out: int) -> Value:
    return b.linear(x, draw(out, x.shape[-1]), draw(out))


def conv2d(b: Builder, x: Value, pad: int = 0, groups: int = 1) -> Value:
    weight = draw(4, x.shape[1] // groups, 3, 3)
    return b.conv(x, weight, draw(4), (2, 1), ((pad, pad), (0, 0)), (1, 1), groups)


def deconv2d(b: Builder, x: Value, groups: int = 1) -> Value:
    weight = draw(x.shape[1], 6 // groups, 3, 2)
    pads = ((1, 1), (0, 0))
    return b.conv_transpose(x, weight, draw(6), (2, 1), pads, (1, 0), (1, 1), groups)


def relu(b: Builder, x: Value) -> Value:
    return b.add(Relu(), x)


def dead(b: Builder, x: Value) -> Value:
    linear(b, x, 50)
    return linear(b, x, 2)


def shared(b: Builder, x: Value) -> Value:
    y = linear(b, x, 3)
    z = b.combine(scale(b, y, 3), relu(b, y), 1.0)
    assert isinstance(z, Value)
    return z


def behind_identity(b: Builder, x: Value) -> Value:
    """An identity with two readers must not make its input look unshared."""
    y = b.scale(linear(b, x, 3), 1.0)
    z = b.combine(scale(b, y, 3), relu(b, y), 1.0)
    assert isinstance(z, Value)
    return z


FLAT, IMAGE = (1, 6), (1, 4, 7, 5)

# name: input shape, what is built, and the operators that are left besides the input
# and the reshape of the output to one axis
FOLDS: dict[str, tuple[Shape, Callable[[Builder, Value], Value], list[str]]] = {
    "nothing": (FLAT, lambda b, x: linear(b, relu(b, x), 2), ["Relu", "Linear"]),
    "dead nodes": (FLAT, dead, ["Linear"]),
    "identities": (FLAT, lambda b, x: relu(b, b.scale(x, torch.ones(6), torch.zeros(1))), ["Relu"]),
    "reshapes there and back": (
        IMAGE,
        lambda b, x: relu(b, b.reshape(b.reshape(b.reshape(x, (4, 35)), (140,)), IMAGE)),
        ["Relu"],
    ),
    "permutes": (
        IMAGE,
        lambda b, x: relu(b, b.permute(b.permute(x, (0, 2, 3, 1)), (3, 1, 0, 2))),
        ["Permute", "Relu"],
    ),
    "permutes there and back": (
        IMAGE,
        lambda b, x: relu(b, b.permute(b.permute(x, (0, 2, 3, 1)), (0, 3, 1, 2))),
        ["Relu"],
    ),
    "scales": (IMAGE, lambda b, x: scale(b, scale(b, x, 4, 1, 1), 5), ["Scale"]),
    "scale after linear": (FLAT, lambda b, x: scale(b, linear(b, x, 3), 1, 3), ["Linear"]),
    "number after linear": (FLAT, lambda b, x: scale(b, linear(b, x, 3)), ["Linear"]),
    "scale after linear on rows": (IMAGE, lambda b, x: scale(b, linear(b, x, 3), 3), ["Linear"]),
    "uneven scale after linear": (
        IMAGE,
        lambda b, x: scale(b, linear(b, x, 3), 7, 3),
        ["Linear", "Scale"],
    ),
    "batch norm after conv": (IMAGE, lambda b, x: scale(b, conv2d(b, x, 1, 2), 4, 1, 1), ["Conv"]),
    "uneven scale after conv": (
        IMAGE,
        lambda b, x: scale(b, conv2d(b, x), 3),
        ["Conv", "Scale"],
    ),
    "full but constant scale after conv": (
        IMAGE,
        lambda b, x: b.scale(conv2d(b, x), draw(4, 1, 1).expand(1, 4, 3, 3)),
        ["Conv"],
    ),
    "scale after deconv": (
        IMAGE,
        lambda b, x: scale(b, deconv2d(b, x), 6, 1, 1),
        ["ConvTranspose"],
    ),
    "scale after grouped deconv": (
        IMAGE,
        lambda b, x: scale(b, deconv2d(b, x, 2), 6, 1, 1),
        ["ConvTranspose"],
    ),
    "scale before linear": (FLAT, lambda b, x: linear(b, scale(b, x, 6), 3), ["Linear"]),
    "scale before conv": (IMAGE, lambda b, x: conv2d(b, scale(b, x, 4, 1, 1)), ["Conv"]),
    "scale before grouped conv": (
        IMAGE,
        lambda b, x: conv2d(b, scale(b, x, 4, 1, 1), groups=2),
        ["Conv"],
    ),
    "factor before padded conv": (
        IMAGE,
        lambda b, x: conv2d(b, scale(b, x, 4, 1, 1, offset=False), 1),
        ["Conv"],
    ),
    "offset before padded conv": (
        IMAGE,
        lambda b, x: conv2d(b, scale(b, x, 4, 1, 1), 1),
        ["Scale", "Conv"],
    ),
    "wide then narrow": (FLAT, lambda b, x: linear(b, linear(b, x, 20), 3), ["Linear"]),
    "through a bottleneck": (
        FLAT,
        lambda b, x: linear(b, linear(b, x, 1), 6),
        ["Linear", "Linear"],
    ),
    "a whole chain": (
        FLAT,
        lambda b, x: scale(b, linear(b, scale(b, scale(b, linear(b, x, 9), 9), 1), 4), 4),
        ["Linear"],
    ),
    "shared": (FLAT, shared, ["Linear", "Scale", "Relu", "Combine"]),
    "behind an identity": (FLAT, behind_identity, ["Linear", "Scale", "Relu", "Combine"]),
    "average pool": (
        IMAGE,
        lambda b, x: b.average_pool(x, zoo.squares(x, 2, 2), True),
        ["Conv"],
    ),
}


def built(shape: Shape, body: Callable[[Builder, Value], Value]) -> Graph:
    b = Builder()
    return b.graph(body(b, b.input("x", shape)))


@pytest.mark.parametrize("case", FOLDS)
def test_simplify_keeps_the_function_and_leaves_what_it_must(case: str) -> None:
    shape, body, left = FOLDS[case]
    graph = built(shape, body)
    size = len(graph.nodes)
    short = simplify(graph)
    assert len(graph.nodes) == size
    assert [type(n.op).__name__ for n in short.nodes] == ["Input", *left, "Reshape"]
    assert short.nodes[-1].shape == (short.output_size,)
    assert short.nodes[-1].name == graph.nodes[-1].name
    x = draw(5, *shape)
    y, truth = short.apply(x), graph.apply(x)
    assert (y - truth).abs().max() <= 1e-12 * (1 + truth.abs().max())
    again = simplify(short)
    assert len(again.nodes) == len(short.nodes)
    values = short.values(x)
    assert [tuple(v.shape[1:]) for v in values] == [n.shape for n in short.nodes]


def test_a_merged_node_keeps_the_outer_name() -> None:
    b = Builder()
    x = b.input("x", FLAT)
    b.scope = "inner"
    y = linear(b, x, 3)
    b.scope = "outer"
    names = [n.name for n in simplify(b.graph(scale(b, y, 3))).nodes]
    assert names == ["x", "outer", "output"]


def test_an_identity_network_is_its_input() -> None:
    graph = built((4,), lambda b, x: b.scale(x, 1.0))
    assert len(simplify(graph).nodes) == 1
    x = draw(2, 4)
    torch.testing.assert_close(simplify(graph).apply(x), x)


BATCHED = ("mlp relu", "mlp sigmoid", "residual relu", "residual tanh")
KEPT = ("conv_max", "branches", "sliced", "lstm", "layer_norm", "softmax")  # axes by number


@pytest.mark.parametrize("name", [*BATCHED, *KEPT])
def test_a_batch_axis_that_nobody_reads_goes(name: str) -> None:
    graph = simplify(zoo.NETWORKS[name])
    plain = without_batch_axis(graph)
    assert (plain is graph) == (name in KEPT)
    x = draw(5, *graph.input_shape)
    found = plain.apply(x.reshape(5, *plain.input_shape))
    torch.testing.assert_close(found, graph.apply(x))
    shapes = [tuple(v.shape[1:]) for v in plain.values(x.reshape(5, *plain.input_shape))]
    assert shapes == [n.shape for n in plain.nodes]
    if name not in KEPT:
        assert plain.input_shape == graph.input_shape[1:]


def test_a_leading_axis_that_is_read_stays() -> None:
    """Two rows that are added, and one that comes out of a reshape."""
    for body in (
        lambda b, x: b.sum(linear(b, x, 3), (0,), keepdim=False),
        lambda b, x: relu(b, b.reshape(linear(b, x, 3), (3, 2))),
    ):
        graph = simplify(built((2, 4), body))
        assert without_batch_axis(graph) is graph
