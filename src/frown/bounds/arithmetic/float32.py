"""Single precision: what it is trusted with, operator by operator.

Basic operations round to nearest, each off by at most UNIT32 of its result; a number below TINY32
may be flushed to 0 wherever it is read or written. Sums add their terms in any order, with or
without fused multiply-adds, in single precision or better. Library functions are off by at most
LIBRARY * UNIT32 (s-shaped ones), or LIBRARY * UNIT32 * (1 + |z|) (those that grow with z), about
twice what was measured of torch and onnxruntime: tests hold each of their kernels against that.
Where a kernel may overflow on its way to a finite value, nothing is assumed.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from frown.errors import UnsupportedModel
from frown.graph.affine import Combine, Concat, Conv, ConvTranspose, Flat, Linear, Pad, Scale, Sum
from frown.graph.graph import Graph, Input
from frown.graph.intervals import Intervals
from frown.graph.op import Affine, Op, Selection
from frown.relax.convex import Elu, HardSwish, Softplus
from frown.relax.hump import Gelu, GeluTanh, Silu
from frown.relax.maximum import Max
from frown.relax.piecewise import Abs, Clip, LeakyRelu, PRelu, Relu
from frown.relax.product import Product
from frown.relax.relaxation import Relaxation
from frown.relax.s_shaped import Arctan, Erf, Sigmoid, Tanh

PRECISIONS = ("float32",)
UNIT32 = 2.0**-24  # half the distance from 1 to the next number
TINY32 = 2.0**-126
LARGE32 = 2.0**126  # sums of smaller sizes stay finite
LIBRARY = 24
EXPONENT = 80.0  # e^z is finite with room to spare; some kernels compute log(1 + e^z) by it
MODERATE = 2.0**60  # what files multiply an activation's argument by on their way stays finite

_EXACT = (Relu, Abs, Max)
_BOUNDED = (Sigmoid, Tanh, Erf, Arctan)
_GROWING = (Softplus, Silu, Gelu, GeluTanh, HardSwish)
_SCALED = (Clip, LeakyRelu, PRelu)  # their constants, and one product
_NONLINEAR = (*_EXACT, *_BOUNDED, *_GROWING, *_SCALED, Elu, Product)
_AFFINE = (Linear, Conv, ConvTranspose, Flat, Scale, Combine, Sum, Selection, Concat, Pad)

# Matrices that a runtime makes anew, from rounded coordinates.
_RESAMPLED = "upsample_"


def check_execution(graph: Graph) -> None:
    """Refuse a network with operators whose execution nothing is assumed about."""
    found = unknown(graph)
    if found:
        width = max(len(what) for what, _ in found)
        lines = "\n".join(f"  {what:{width}}  at {name}" for what, name in found)
        raise UnsupportedModel(
            "cannot bound what single precision does to these operators:\n"
            f"{lines}\n"
            "leave out deployed (--deployed) to certify the network over the real numbers"
        )


def unknown(graph: Graph) -> list[tuple[str, str]]:
    """(operator, name) of all nodes whose execution nothing is assumed about."""
    found = []
    for i in graph.ancestors(len(graph.nodes) - 1):
        node = graph.nodes[i]
        if node.name.split(".")[-1].startswith(_RESAMPLED) and isinstance(node.op, Linear):
            found.append(("resampling", node.name))
        elif not isinstance(node.op, (*_AFFINE, *_NONLINEAR, Input)):
            found.append((type(node.op).__name__, node.name))
        elif any(not abs(c) < LARGE32 for c in _constants(node.op)):
            found.append((f"{type(node.op).__name__} with numbers beyond 2^126", node.name))
    return found


def _constants(op: Op) -> list[float]:
    """The largest entry of every tensor, and factors that are plain numbers."""
    tensors = (t for t in op.tensors().values() if t.is_floating_point() and t.numel())
    found = [float(t.abs().max()) for t in tensors]
    match op:
        case LeakyRelu():
            return [*found, op.slope]
        case Elu():
            return [*found, op.alpha, op.scale, op.alpha * op.scale]
        case Combine():
            return [*found, *op.weights]
    return found


def fan(op: Affine) -> int:
    """The number of products that an entry of the output adds up."""
    match op:
        case Linear() | Flat():
            return op.weight.shape[1]
        case Conv():
            return prod(op.weight.shape[1:])
        case ConvTranspose():
            return op.weight.shape[0] // op.groups * prod(op.weight.shape[2:])
        case Combine():
            return len(op.weights)
        case Sum():
            return prod(op.source[a] for a in op.axes)
        case Selection() | Concat():
            return 0
    return 1


def mixes(op: Affine) -> bool:
    """True if several entries of one input are added up."""
    return isinstance(op, Linear | Conv | ConvTranspose | Flat | Sum)


def factors(op: Affine) -> int:
    """The number of times that a term is rounded apart from additions: its product, a weight in
    double precision, an attribute that scales it. Those of a batch
    normalisation are computed by the runtime."""
    return 8 if isinstance(op, Scale) else 4


def sizes(op: Affine) -> Affine:
    """The operator with |J| for its matrix J."""
    if isinstance(op, Combine):
        return Combine(tuple(abs(w) for w in op.weights))
    if isinstance(op, Selection | Concat | Pad | Sum):
        return op
    return op.mapped(torch.abs)


def gamma32(terms: int) -> float:
    """Relative error of numbers rounded so often; infinite beyond 2^23 times."""
    loss = terms * UNIT32
    return loss / (1 - loss) * (1 + 1e-9) if loss < 0.5 else torch.inf


def _steepest(op: Relaxation, z: Tensor) -> Tensor | float:
    """A bound on |f'|."""
    match op:
        case Product():
            return z.sum(-1)
        case LeakyRelu():
            return max(1.0, abs(op.slope))
        case PRelu():
            return max(1.0, float(op.slope.abs().max()))
        case Elu():
            return max(abs(op.scale), abs(op.scale * op.alpha))
    return 2.0


def own_error(op: Relaxation, argument: Intervals, y: Tensor) -> Tensor:
    """The distance of a nonlinearity as executed from its value at the argument given, in this
    box and with |value| <= y; infinite where execution may overflow.

    A number may be flushed to 0 as it is read, and as it is written; so may a slope or a factor,
    which then takes TINY32 of the argument with it.
    """
    z = argument.lower.abs().maximum(argument.upper.abs())
    flushed = (1 + _steepest(op, z)) * (4 * TINY32)
    if isinstance(op, LeakyRelu | PRelu | Elu):
        flushed = flushed + z * (4 * TINY32)
    if isinstance(op, _EXACT):
        return torch.zeros_like(y) + flushed
    if isinstance(op, _BOUNDED):
        return torch.full_like(y, LIBRARY * UNIT32) + flushed
    if isinstance(op, _GROWING):
        found = (1 + z) * (LIBRARY * UNIT32) + flushed
        safe = argument.upper <= EXPONENT if isinstance(op, Softplus) else z <= MODERATE
        return torch.where(safe, found, torch.inf)
    if isinstance(op, Elu):
        size = max(abs(op.scale), abs(op.scale * op.alpha))
        return (1 + z) * (size * LIBRARY * UNIT32) + flushed
    return y * gamma32(4) + flushed  # a product, or a constant rounded to single precision
