"""The network as executed in single precision: how far its outputs stray from the real ones.

Every operator is taken as the file has it, its sums added in any order, with or without fused
multiply-adds, and values that underflow may be flushed to 0. Library functions (sigmoid, tanh, exp
and their like) are assumed to be off by at most ULPS units in the last place of their value or, if
that is more, of what they are computed from: 1 for sigmoid, e^z for ELU, z for GELU. ReLU, clip,
abs and maximum are exact. Where a number may be too large for single precision nothing is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from frown.graph.graph import Input
from frown.graph.op import Affine, Selection
from frown.graph.selection import Concat
from frown.relax.convex import Elu, Softplus
from frown.relax.hump import Gelu, GeluTanh, Silu
from frown.relax.maximum import Max
from frown.relax.piecewise import Abs, Clip, LeakyRelu, Moderate, PRelu, Relu
from frown.relax.product import Product
from frown.relax.relaxation import Relaxation
from frown.relax.s_shaped import Arctan, Sigmoid, Tanh
from frown.rigor.curves import NoProof
from frown.rigor.replay import Walk
from frown.rigor.rounding import LOOSE

UNIT32 = 2.0**-24
TINY32 = 2.0**-126
LARGEST32 = 3.4e38
ULPS = 8
PRECISIONS = ("float32",)

# The largest |f'|: errors of the argument grow by no more than this.
_RATE: dict[type[Relaxation], float] = {
    Relu: 1.0,
    Clip: 1.0,
    Abs: 1.0,
    Moderate: 1.0,
    Sigmoid: 0.25,
    Tanh: 1.0,
    Arctan: 1.0,
    Softplus: 1.0,
    Silu: 1.1,
    Gelu: 1.13,
    GeluTanh: 1.13,
}
_EXACT = (Relu, Clip, Abs, Moderate)
_HUMPS = (Silu, Gelu, GeluTanh)  # z times a sigmoid, which may be 1 less something near 1


def straying(walk: Walk) -> Tensor:
    """(N, outputs) how far each output can be from its real value, executed in single precision
    on any input of the region that is itself in single precision."""
    plan = walk.plan
    error: dict[int, Tensor] = {}
    for i in plan.ancestors(plan.graph.output):
        node = plan.graph.nodes[i]
        if isinstance(node.op, Input):
            error[i] = torch.full_like(walk.weights.value[i], TINY32)
        elif isinstance(node.op, Affine):
            error[i] = _affine(walk, i, node.op, [error[j] for j in node.inputs])
        else:
            (source,) = node.inputs
            error[i] = _nonlinear(walk, i, plan.relaxation(i), error[source])
        error[i] = torch.where(walk.weights.value[i] + error[i] < LARGEST32, error[i], torch.inf)
    return error[plan.graph.output].flatten(1)


def _affine(walk: Walk, i: int, op: Affine, errors: list[Tensor]) -> Tensor:
    if isinstance(op, Selection | Concat):
        return op.apply(*errors)
    fan = sum(walk.plan.graph.nodes[j].size for j in walk.plan.graph.nodes[i].inputs)
    grown = op.spread(*errors)
    gamma = _gamma(fan + 8)
    terms = walk.weights.terms[i] + grown
    largest = max(float(walk.weights.value[j].max()) for j in walk.plan.graph.nodes[i].inputs)
    error = (grown + terms * gamma + fan * TINY32 * (1 + largest)) * LOOSE
    return torch.where(terms < LARGEST32, error, torch.inf)  # sums on the way are no larger


def _nonlinear(walk: Walk, i: int, op: Relaxation, error: Tensor) -> Tensor:
    value = walk.weights.value[i]
    if isinstance(op, Max):
        return error.amax(-1)
    if isinstance(op, Product):
        (source,) = walk.plan.graph.nodes[i].inputs
        x, y = (walk.weights.value[source] + error).unbind(-1)
        ex, ey = error.unbind(-1)
        return (x * ey + y * ex + x * y * UNIT32 + TINY32) * LOOSE
    if isinstance(op, Elu):
        rate = max(abs(op.scale), abs(op.scale * op.alpha))
    elif isinstance(op, PRelu):
        rate = max(1.0, float(op.slope.abs().max()))
    elif isinstance(op, LeakyRelu):
        rate = max(1.0, abs(op.slope))
    elif type(op) in _RATE:
        rate = _RATE[type(op)]
    else:
        name = walk.plan.graph.nodes[i].name
        raise NoProof(f"{type(op).__name__} at {name} as executed in single precision")
    grown = error * rate
    if isinstance(op, _EXACT):
        return grown * LOOSE
    (source,) = walk.plan.graph.nodes[i].inputs
    made_of = walk.weights.value[source] + error if isinstance(op, _HUMPS) else max(1.0, rate)
    return (grown + (value + grown + made_of) * (ULPS * UNIT32) + TINY32) * LOOSE


def _gamma(terms: int) -> float:
    """Relative error of a sum in single precision; useless, and infinite, beyond 2^23 terms."""
    loss = (terms + 2) * UNIT32
    return loss / (1 - loss) * (1 + 1e-9) if loss < 0.5 else torch.inf
