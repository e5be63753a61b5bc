"""Hostile sequences: what a network gives on the surface of a region, drawn at random and climbed.

Nothing but the network's own runtime is asked, so bounds are held against an independent truth.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Run = Callable[[Array], Array]  # (N, frames, features) -> (N, outputs)

DRAWN, STEPS = 300, 4
APART = 0.01  # between the points of a difference quotient: runtimes compute in single precision


def reached(run: Run, x: Array, eps: float, p: float, each: bool = False) -> tuple[Array, Array]:
    """(N, outputs) the lowest and the highest values found within `eps` of every sequence,
    in one ball or, with `each`, in a ball for every frame."""
    step = np.random.default_rng(1).normal(size=(DRAWN, *x.shape))
    flat = (x + eps * _unit(step, p, each)).reshape(-1, *x.shape[1:])
    drawn = run(flat).reshape(DRAWN, len(x), -1)
    climbed = [_climbed(run, x, eps, p, each, sign) for sign in (-1, 1)]
    return np.minimum(drawn.min(0), climbed[0]), np.maximum(drawn.max(0), climbed[1])


def _climbed(run: Run, x: Array, eps: float, p: float, each: bool, sign: int) -> Array:
    """(N, outputs) the best value of sign * output after a few steps to where the gradient says."""
    outputs = run(x).shape[1]
    centre = np.repeat(x, outputs, 0)  # a path for every sequence and output
    point, best = centre, np.full(len(centre), -inf)
    own = np.arange(len(centre)), np.tile(np.arange(outputs), len(x))
    for _ in range(STEPS):
        point = centre + eps * _extreme(sign * _gradient(run, point, own[1]), p, each)
        best = np.maximum(best, sign * run(point)[own])
    return sign * best.reshape(len(x), outputs)


def _gradient(run: Run, x: Array, output: NDArray[np.int64]) -> Array:
    """The gradient of one output of every sequence, by differences."""
    size = x[0].size
    moves = APART / 2 * np.eye(size).reshape(size, *x.shape[1:])
    both = np.stack([x[:, None] - moves, x[:, None] + moves])  # (2, N, size, frames, features)
    values = run(both.reshape(-1, *x.shape[1:])).reshape(2, len(x), size, -1)
    quotient = (values[1] - values[0]) / APART
    return quotient[np.arange(len(x)), :, output].reshape(x.shape)


def _extreme(gradient: Array, p: float, each: bool) -> Array:
    """Where a linear form is largest over the unit ball, or over the product of them."""
    if p == inf:
        return np.sign(gradient)
    if p == 1:
        flat = gradient if each else gradient.reshape(len(gradient), 1, -1)
        corner = np.eye(flat.shape[2])[np.abs(flat).argmax(2)]
        return (corner * np.sign(flat)).reshape(gradient.shape)
    dual = np.sign(gradient) * np.abs(gradient) ** (1 / (p - 1))
    return _unit(dual, p, each)


def _unit(step: Array, p: float, each: bool) -> Array:
    """Steps of norm 1, over the last two axes or, with `each`, over the last."""
    flat = step if each else step.reshape(*step.shape[:-2], 1, -1)
    size = np.linalg.norm(flat, ord=p, axis=-1, keepdims=True)
    return (flat / np.where(size > 0, size, 1.0)).reshape(step.shape)
