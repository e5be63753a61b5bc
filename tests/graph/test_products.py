"""Products of large matrices: as precise as float32, whichever library computes them."""

from __future__ import annotations

import pytest
import torch

from frown.graph import affine

SHAPES = [(3, 5, 7), (64, 1024, 512), (700, 300, 200), (100, 200, 200), (40, 1024, 1100)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("times", [1, 20])
def test_products_are_as_precise_as_their_numbers(shape, dtype, times):
    rows, inner, columns = shape
    torch.manual_seed(1)
    a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
    bias = torch.randn(columns, dtype=dtype)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    room = 4 * inner**0.5 * torch.finfo(dtype).eps * size
    with affine.repeated(times):
        assert ((affine.product(a, b) - exact).abs() <= room).all()
        assert ((affine.affine(a, b.T.contiguous()) - exact).abs() <= room).all()
        shifted = affine.affine(a, b.T.contiguous(), bias)
        (back,) = affine.Linear(b, bias).pull_back(a)
    assert ((shifted - exact - bias).abs() <= room + 1e-6).all()
    assert ((back - exact).abs() <= room).all()


def test_a_library_that_rounds_to_short_numbers_is_not_used(monkeypatch):
    exact = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: exact(a.bfloat16().to(a), b.bfloat16().to(b))
    )
    assert not affine._is_precise.__wrapped__()


def test_what_torch_is_told_is_as_before():
    setting = getattr(torch.backends.mkldnn, "matmul", None)
    if setting is None:
        pytest.skip("this torch has no setting for products on the CPU")
    before = setting.fp32_precision, torch.get_float32_matmul_precision()
    affine.product(torch.ones(400, 400), torch.ones(400, 400))
    assert (setting.fp32_precision, torch.get_float32_matmul_precision()) == before


def test_a_product_that_is_asked_for_often_is_worth_preparing():
    if not affine._is_precise():
        pytest.skip("there is one library for products here")
    a, b = torch.ones(100, 200), torch.ones(200, 200)
    assert not affine._large(a, b, 4_000_000)
    with affine.repeated(20):
        assert affine._large(a, b, 4_000_000)
        assert not affine._large(a, b, 1_000_000)
    assert not affine._large(a, b, 4_000_000)
