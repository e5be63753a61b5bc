"""Sums along rows do not depend on how rows say which sample they have."""

from __future__ import annotations

import pytest
import torch

from frown.rigor.rows import Even, dot, inner, spread, which


@pytest.mark.parametrize(
    ("sample", "even"),
    [
        ([0, 0, 1, 1, 2, 2], True),
        ([1, 1, 1], True),
        ([2, 3], True),
        ([0, 0, 1], False),
        ([0, 1, 0, 1], False),
        ([0, 0, 2, 2], False),
        ([1, 1, 0, 0], False),
        ([0, 0, 1, 2, 2, 2], False),
        ([], False),
    ],
)
def test_rows_of_samples(sample: list[int], even: bool) -> None:
    torch.manual_seed(len(sample))
    index = torch.tensor(sample, dtype=torch.long)
    found = which(index)
    assert isinstance(found, Even) is even
    numbers = torch.randn(4, 3, 2, dtype=torch.float64)
    coef = torch.randn(len(index), 3, 2, dtype=torch.float64)
    assert torch.equal(spread(numbers, found), numbers[index])
    assert torch.allclose(dot(coef, numbers, found), (coef * numbers[index]).sum((1, 2)))
    size = numbers.abs()
    assert torch.allclose(inner(coef, size, found), (coef.abs() * size[index]).sum((1, 2)))
    lone = torch.randn(len(index), dtype=torch.float64)
    assert torch.allclose(dot(lone, numbers[:, 0, 0], found), lone * numbers[index, 0, 0])
