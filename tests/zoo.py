"""Small networks of every kind for the property tests, balls in their input spaces, and points
of these."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
import torch
from torch import Tensor

from frown.graph import Builder, Graph, Value, Windows
from frown.problem.region import Region
from frown.read import arithmetic, attention
from frown.relax import Exp, Log, Max, Power, Product, Relu, Sigmoid, Tanh
from frown.relax.relaxation import Relaxation
from functions import ELEMENTWISE


@dataclass(frozen=True)
class Weights:
    """Random weights of a size that keeps signals alive."""

    generator: torch.Generator

    @classmethod
    def seeded(cls, seed: int) -> Weights:
        return cls(torch.Generator().manual_seed(seed))

    def __call__(self, *shape: int) -> Tensor:
        draw = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 4
        return draw * (1.4 / fan**0.5)


def _tempered(op: Relaxation) -> tuple[float, float]:
    """Factor of the weights, and offset of the biases, that keep an operator in its domain and
    powers of powers small."""
    if isinstance(op, Exp):
        return 0.5, 0.0
    if isinstance(op, Log | Power):
        everywhere = isinstance(op, Power) and op.exponent in (2, 3, 4)
        return (0.4, 0.0) if everywhere else (0.05, 1.5)
    return 1.0, 0.0


def mlp(op: Relaxation, widths: tuple[int, ...] = (4, 6, 6, 5, 3), seed: int = 0) -> Graph:
    weights, b = Weights.seeded(seed), Builder()
    factor, offset = _tempered(op)
    x = b.input("x", (1, widths[0]))
    for i, (n, m) in enumerate(pairwise(widths)):
        x = b.linear(x, factor * weights(m, n), factor * weights(m) + offset)
        if i < len(widths) - 2:
            x = b.add(op, x)
    return b.graph(x)


def head(b: Builder, x: Value, weights: Weights, classes: int = 3) -> Graph:
    flat = b.reshape(x, (1, int(np.prod(x.shape))))
    return b.graph(b.linear(flat, weights(classes, flat.shape[1]), weights(classes)))


def squares(x: Value, size: int, stride: int, pad: int = 0) -> Windows:
    """Square pooling windows over the last two axes."""
    return Windows(x.shape[-2:], (size,) * 2, (stride,) * 2, ((pad, pad),) * 2, (1, 1))


def _conv(b: Builder, x: Value, weights: Weights, out: int, stride: int = 1) -> Value:
    kernel = weights(out, x.shape[-3], 3, 3)
    return b.conv(x, kernel, weights(out), (stride, stride), ((1, 1), (1, 1)), (1, 1), 1)


def conv_max(seed: int = 1) -> Graph:
    """Convolution, relu, overlapping padded max pooling, convolution, tanh."""
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, 1, 4, 4))
    x = b.add(Relu(), _conv(b, x, weights, 2))
    x = b.add(Max(), b.windows(x, squares(x, 3, 2, 1)))
    x = b.add(Tanh(), _conv(b, x, weights, 2))
    return head(b, x, weights)


def max_first(seed: int = 2) -> Graph:
    """Max pooling straight on the convolution, overlapping, then relu on the maximum."""
    weights, b = Weights.seeded(seed), Builder()
    x = _conv(b, b.input("x", (1, 1, 4, 4)), weights, 2)
    x = b.add(Max(), b.windows(x, squares(x, 2, 1)))
    x = b.add(Relu(), _conv(b, x, weights, 2, stride=2))
    return head(b, x, weights)


def max_on_input(seed: int = 3) -> Graph:
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, 1, 4, 4))
    x = b.add(Max(), b.windows(x, squares(x, 2, 2)))
    return head(b, b.add(Relu(), _conv(b, x, weights, 2)), weights)


def average_pool(seed: int = 4) -> Graph:
    weights, b = Weights.seeded(seed), Builder()
    x = b.add(Relu(), _conv(b, b.input("x", (1, 1, 4, 4)), weights, 2))
    x = b.average_pool(x, squares(x, 3, 2, 1), False)
    return head(b, b.add(Relu(), _conv(b, x, weights, 2)), weights)


def residual(op: Relaxation, seed: int = 5) -> Graph:
    weights, b = Weights.seeded(seed), Builder()
    x = b.add(op, b.linear(b.input("x", (1, 4)), weights(5, 4), weights(5)))
    for _ in range(2):
        inner = b.linear(b.add(op, b.linear(x, weights(5, 5), weights(5))), weights(5, 5))
        x = b.add(op, _value(b.combine(x, inner, 1.0)))
    return head(b, x, weights)


def branches(seed: int = 6) -> Graph:
    """Two branches of different depth: subtracted, concatenated with the input, read twice."""
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, 4))
    left = b.add(Relu(), b.linear(x, weights(4, 4), weights(4)))
    right = b.add(Tanh(), b.linear(left, weights(4, 4), weights(4)))
    gap = _value(b.combine(left, right, -1.0))
    joined = _value(b.concat([b.add(Relu(), gap), b.add(Tanh(), gap), x], 1))
    hidden = b.add(Relu(), b.linear(joined, weights(5, 12), weights(5)))
    return head(b, hidden, weights)


def sliced(seed: int = 7) -> Graph:
    """Selections between a layer and its nonlinearities: slices, a gather that repeats."""
    weights, b = Weights.seeded(seed), Builder()
    h = b.linear(b.input("x", (1, 4)), weights(6, 4), weights(6))
    first = b.add(Relu(), b.slice(h, 1, 0, 4))
    second = b.add(Tanh(), b.gather(h, 1, torch.tensor([5, 3, 3, 4])))
    mixed = b.linear(_value(b.combine(first, second, 1.0)), weights(5, 4), weights(5))
    return head(b, b.add(Relu(), b.add(Relu(), mixed)), weights)


def product(seed: int = 9) -> Graph:
    """Products of affine, of nonlinear and of like factors, and one of products."""
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, 4))
    left, right = (b.linear(x, weights(4, 4), weights(4)) for _ in range(2))
    plain = b.add(Product(), b.pair(left, right))
    mixed = b.add(Product(), b.pair(b.add(Relu(), left), plain))
    again = b.add(Product(), b.pair(mixed, b.add(Tanh(), right)))
    return head(b, b.add(Tanh(), b.linear(again, weights(5, 4), weights(5))), weights)


def lstm(seed: int = 10, frames: int = 3, features: int = 2, hidden: int = 3) -> Graph:
    """A recurrent network with gates, frame after frame."""
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, frames, features))
    into, back, bias = weights(4 * hidden, features), weights(4 * hidden, hidden), weights(12)
    h = c = None
    for t in range(frames):
        z = b.linear(b.select(x, 1, t), into, bias)
        if h is not None:
            z = _value(b.combine(z, b.linear(h, back), 1.0))
        i, f, g, o = (b.slice(z, 1, k * hidden, (k + 1) * hidden) for k in range(4))
        new = b.add(Product(), b.pair(b.add(Sigmoid(), i), b.add(Tanh(), g)))
        if c is not None:
            kept = b.add(Product(), b.pair(b.add(Sigmoid(), f), c))
            new = _value(b.combine(kept, new, 1.0))
        c = new
        h = b.add(Product(), b.pair(b.add(Sigmoid(), o), b.add(Tanh(), c)))
    assert h is not None
    return head(b, h, weights)


def quotient(seed: int = 11) -> Graph:
    """A computed tensor over another, and over a sum of squares."""
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, 4))
    left, right = (b.linear(x, weights(4, 4), weights(4)) for _ in range(2))
    above = b.scale(b.add(Exp(), right), 1.0, 0.5)
    share = _value(arithmetic.divide(b, left, above))
    total = b.scale(b.sum(b.add(Power(2.0), left), (1,), keepdim=True), 1.0, 1.0)
    again = _value(arithmetic.divide(b, share, total))
    return head(b, b.add(Tanh(), again), weights)


def softmax(seed: int = 12, count: int = 4) -> Graph:
    """Shares of affine functions, and their logarithms."""
    weights, b = Weights.seeded(seed), Builder()
    h = b.linear(b.input("x", (1, 4)), 2 * weights(count, 4), weights(count))
    shares = attention.softmax(b, h)
    logs = attention.log_softmax(b, b.linear(_value(shares), 3 * weights(3, count)))
    return head(b, _value(logs), weights)


def layer_norm(seed: int = 13) -> Graph:
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, 2, 3))
    for _ in range(2):
        x = b.linear(x, weights(3, 3), weights(3))
        x = _value(attention.layer_norm(b, x, 2, 1 + weights(3) / 3, weights(3), 0.1))
    return head(b, x, weights)


def attend(seed: int = 14, causal: bool = False, tokens: int = 3, width: int = 2) -> Graph:
    """Attention between tokens, added to what it reads, and a relu."""
    weights, b = Weights.seeded(seed), Builder()
    x = b.input("x", (1, tokens, width))
    query, key, value = (b.linear(x, weights(width, width), weights(width)) for _ in range(3))
    mixed = attention.attention(b, query, key, value, causal=causal)
    x = _value(b.combine(x, mixed, 1.0))
    return head(b, b.add(Relu(), b.linear(x, weights(3, width), weights(3))), weights)


def _value(x: object) -> Value:
    assert isinstance(x, Value)
    return x


NETWORKS: dict[str, Graph] = {
    **{f"mlp {name}": mlp(op, seed=i) for i, (name, op) in enumerate(ELEMENTWISE.items())},
    "conv_max": conv_max(),
    "max_first": max_first(),
    "max_on_input": max_on_input(),
    "average_pool": average_pool(),
    "residual relu": residual(Relu()),
    "residual tanh": residual(Tanh(), 8),
    "branches": branches(),
    "sliced": sliced(),
    "product": product(),
    "lstm": lstm(),
    "quotient": quotient(),
    "softmax": softmax(),
    "layer_norm": layer_norm(),
    "attention": attend(),
    "causal attention": attend(15, causal=True),
}

NORMS = (1.0, 2.0, 3.0, inf)


def region(
    graph: Graph,
    p: float,
    radius: float = 0.3,
    count: int = 2,
    clipped: bool = False,
    scaled: bool = False,
    seed: int = 0,
) -> Region:
    """Balls in the network's input space; some features near the range's ends, some fixed."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, *graph.input_shape)
    centre = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    features = centre[0].numel()
    reach = radius * (1.0 if p == inf else features ** (1 / p) * 0.7)
    scale = lower = upper = None
    if scaled:
        scale = torch.rand((1, *graph.input_shape), generator=generator, dtype=torch.float64) + 0.5
        scale.view(-1)[0] = 0
    if clipped:
        lower = torch.full((1, *graph.input_shape), -0.9, dtype=torch.float64)
        upper = torch.full((1, *graph.input_shape), 0.8, dtype=torch.float64)
        centre = centre.clamp(-0.9, 0.8)
    radii = torch.linspace(0.5, 1, count, dtype=torch.float64) * reach
    cast = [t if t is None else t.to(graph.dtype) for t in (centre, radii, scale, lower, upper)]
    assert cast[0] is not None and cast[1] is not None
    return Region(cast[0], cast[1], p, cast[2], cast[3], cast[4])


def samples(ball: Region, count: int = 200, seed: int = 0) -> Tensor:
    """(count, N, *shape) points of each ball, many on its surface and at its corners."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, *ball.centre.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    peaks = noise.sign() * torch.rand(shape, generator=generator, dtype=torch.float64).round()
    single = noise * (
        noise.abs() == noise.abs().flatten(2).amax(2).view(*shape[:2], *[1] * (len(shape) - 2))
    )
    mixed = torch.cat(
        [
            noise[: count // 3],
            99 * peaks[count // 3 : 2 * count // 3],
            99 * single[2 * count // 3 :],
        ]
    )
    return torch.stack([ball.project(ball.centre + step.to(ball.centre) * 9) for step in mixed])
