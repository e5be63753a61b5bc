"""Operators: values that map tensors to tensors.

Every tensor carries one leading axis of our own, the *rows* (samples when a network is evaluated,
linear forms when one is bounded). The remaining axes are the operator's, exactly as the model file
has them, its own batch axis of 1 included; so `Transpose`, `Reshape` or `Concat` mean what the file
says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Self, TypeVar

import torch
from torch import Tensor

Shape = tuple[int, ...]
Window = tuple[tuple[int, int], ...]  # (start, stop) along every axis


class Unsupported(Exception):
    """Something about an operator has no bounds here; raised by the handlers that read models."""


MOST_ENTRIES = 2**24  # of one tensor of a network
MOST_IN_ALL = 2**27  # of all its tensors together
MOST_PRODUCTS = 2**36  # of a number and a weight, in all


def require_entries(shape: Sequence[int], what: str = "a tensor") -> int:
    """The number of entries of a tensor that is about to be made.

    Raises Unsupported where there are none, and beyond MOST_ENTRIES: a small file can ask for more
    than any memory holds.
    """
    count = prod(shape)
    if min(shape, default=1) <= 0:
        raise Unsupported(f"{what} of shape {tuple(shape)}, which is empty")
    if count > MOST_ENTRIES:
        raise Unsupported(f"{what} of {count:,} entries; at most {MOST_ENTRIES:,}")
    return count


LEAST = 2.0**-1000  # no number from here on has lost digits to underflow


def lossless(weight: Tensor, *factors: Tensor) -> Tensor:
    """Return `weight`, a product or quotient of constants, if it has not underflowed.

    Proofs take it to be right to a few units in the last place, which it is not where it
    underflows: Unsupported is raised there.
    """
    lost = weight.abs() < LEAST
    for factor in factors:
        lost = lost & (factor != 0)
    if bool(lost.any()):
        raise Unsupported("constants whose product or quotient is too small for double precision")
    return weight


class Op(ABC):
    """An operator of the graph; concrete ones are frozen dataclasses."""

    __slots__ = ()

    @abstractmethod
    def shape(self, *inputs: Shape) -> Shape:
        """The output's shape (rows axis left out) for inputs of these shapes."""

    @abstractmethod
    def apply(self, *xs: Tensor) -> Tensor:
        """Value of the operator; each x is (rows, *input shape)."""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy of the operator with each of its constants replaced by `change` of it."""
        changed = {name: change(value) for name, value in self.tensors().items()}
        return replace(self, **changed) if changed else self  # type: ignore[type-var]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        """A copy of the operator with its floating-point tensors cast and moved."""
        return self.mapped(lambda t: cast(t, dtype, device))

    def tensors(self) -> dict[str, Tensor]:
        """The operator's constants by field name."""
        named = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return {name: value for name, value in named if isinstance(value, Tensor)}


class Affine(Op):
    """y = sum_i J_i x_i + b. Linear forms are pulled back through it exactly."""

    __slots__ = ()

    @abstractmethod
    def pull_back(self, coef: Tensor) -> tuple[Tensor, ...]:
        """The adjoint: coef . y = sum_i pull_back(coef)[i] . x_i + shift(coef)."""

    @abstractmethod
    def spread(self, *radii: Tensor) -> Tensor:
        """sum_i |J_i| r_i: the half-width of y when each |x_i - c_i| <= r_i."""

    def shift(self, coef: Tensor) -> Tensor | None:
        """coef . b for every row, or None where b = 0."""
        return None

    def add_back(self, coef: Tensor, onto: Tensor) -> bool:
        """Add the adjoint of the one input to `onto` in place; False where that saves nothing.

        Worth having where `pull_back` is mostly zeros: a network that takes its input apart
        frame by frame would otherwise make the whole input anew for each of them.
        """
        return False


class Selection(Affine):
    """An affine operator each of whose outputs is one entry of its input.

    Bounds pass through it unchanged, so nothing behind it needs rows of its own.
    """

    __slots__ = ()

    def spread(self, *radii: Tensor) -> Tensor:
        return self.apply(*radii)


class Nonlinear(Op):
    """An operator that is bounded, not pulled back; see `frown.relax`."""

    __slots__ = ()

    def crop(self, window: Window, source: Shape) -> tuple[Window, Self] | None:
        """The window of the input that a window of the output reads, and the operator over it.

        `source` is the input's shape. None means that all of the input is read.
        """
        return None


def cast(tensor: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A constant in another precision, unless it holds whole numbers, on another device."""
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that numpy's rules give tensors of these shapes together.

    Raises ValueError where they do not fit, and Unsupported beyond MOST_ENTRIES.
    """
    # Not by torch's function of the name, which imports sympy.
    most = max(map(len, shapes), default=0)
    axes = zip(*((1,) * (most - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    shape: Shape = ()
    for sizes in axes:
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise ValueError(f"shapes that do not fit: {', '.join(map(str, map(tuple, shapes)))}")
        shape += (wide.pop() if wide else 1,)
    require_entries(shape)
    return shape


def foldable(given: Shape, wanted: Shape) -> bool:
    """True if an array of one shape can be reshaped to another without guessing the order of its
    axes.

    Apart from axes of length 1 the two must be equal, or one of them flat.
    """
    axes, others = (tuple(n for n in shape if n != 1) for shape in (given, wanted))
    return prod(axes) == prod(others) and (axes == others or min(len(axes), len(others)) <= 1)


def inner(coef: Tensor, value: Tensor) -> Tensor:
    """Row-wise inner product of coef (rows, *shape) with a value of shape `shape`."""
    return (coef * value)[..., None].flatten(1).sum(1)


def sliced(t: Tensor, window: Window) -> Tensor:
    """A window of a tensor that broadcasts to the window's axes: axes of 1 stay."""
    last = window[len(window) - t.dim() :]
    return t[
        tuple(slice(None) if n == 1 else slice(*w) for n, w in zip(t.shape, last, strict=True))
    ]


AnyOp = TypeVar("AnyOp", bound=Op)


@dataclass
class SharedTensors:
    """The tensors seen so far; equal ones become the one seen first.

    An unrolled recurrent network reads the same weights at every frame; whatever built or
    rewrote its operators may have copied them.
    """

    seen: dict[Hashable, list[Tensor]] = field(default_factory=dict)

    def one(self, tensor: Tensor) -> Tensor:
        key = (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.sum().item())
        alike = self.seen.setdefault(key, [])
        for other in alike:
            if other is tensor or torch.equal(other, tensor):
                return other
        alike.append(tensor)
        return tensor

    def shared(self, op: AnyOp) -> AnyOp:
        """A copy of the operator that reads these tensors."""
        return op.mapped(self.one)
