"""Products and quotients that both front ends read, against torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from frown.graph import Builder, Shape, Unsupported, Value
from frown.read.arithmetic import divide, multiply
from frown.read.matrices import matmul


def draw(*shape: int) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64
    )


@pytest.mark.parametrize("constant", [(3,), (3, 3), (1, 3, 3), (1, 1, 3, 3), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 3), (2, 3, 3)], ids=str)
def test_matmul_broadcasts_as_numpy_does(shape: Shape, constant: Shape) -> None:
    matrix, x = draw(*constant), draw(2, *shape)
    sides: list[Callable[[Builder, Value], object]] = [lambda b, v: matmul(b, v, matrix)]
    truths: list[Callable[[Tensor], Tensor]] = [lambda v: v @ matrix]
    if shape[-2:] != (1, 3):
        sides.append(lambda b, v: matmul(b, matrix, v))
        truths.append(lambda v: matrix @ v)
    for side, truth in zip(sides, truths, strict=True):
        b = Builder()
        y = side(b, b.input("x", shape))
        assert isinstance(y, Value)
        assert y.shape == tuple(truth(x[0]).shape)
        expected = torch.stack([truth(v).flatten() for v in x])
        torch.testing.assert_close(b.graph(y).apply(x), expected)


def test_constants_alone_are_not_computed_here() -> None:
    """They would be rounded unseen: readers make one of them a node."""
    b, one = Builder(), torch.ones(1)
    x = b.input("x", (1, 6))
    for attempt in (
        lambda: multiply(b, one, one),
        lambda: divide(b, one, one),
        lambda: divide(b, x, torch.zeros(1)),
        lambda: matmul(b, one, one),
    ):
        with pytest.raises(Unsupported):
            attempt()
