"""Products of large matrices in single precision, on the CPU.

torch has two libraries for them. The default one may be MKL, which leaves half of some processors'
width unused. oneDNN does not. torch asks oneDNN where short numbers would do; on processors
without units for matrices of short numbers it computes in float32 all the same. Whether it does
here is tried once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ONEDNN: Any = torch.backends.mkldnn
LARGE = 1 << 25  # multiplications; with fewer, preparing a new shape costs more than is gained


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, with b a matrix."""
    if not _large(a, b, a.numel() * b.shape[1]):
        return a @ b
    with _by_onednn():
        return a @ b


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias."""
    if not _large(x, weight, x.numel() * weight.shape[0]):
        return F.linear(x, weight, bias)
    with _by_onednn():
        return F.linear(x, weight, bias)


def _large(a: Tensor, b: Tensor, size: int) -> bool:
    """True if oneDNN is to compute a product of so many multiplications."""
    if size < LARGE or a.dtype != torch.float32 or a.device.type != "cpu":
        return False
    return not (a.requires_grad or b.requires_grad) and _is_precise()


@contextmanager
def _by_onednn() -> Iterator[None]:
    setting = ONEDNN.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@cache
def _is_precise() -> bool:
    """True if oneDNN is there, and its products are as precise as float32 is."""
    if not (ONEDNN.is_available() and hasattr(ONEDNN, "matmul")):
        return False
    numbers = torch.Generator().manual_seed(0)
    for rows, size, columns in ((64, 1024, 64), (256, 192, 192), (512, 512, 512)):
        a = torch.rand(rows, size, generator=numbers)
        b = torch.rand(size, columns, generator=numbers)
        exact = a.double() @ b.double()
        with _by_onednn():
            found = a @ b, F.linear(a, b.T.contiguous())
        if not all(bool(((own - exact).abs() <= 1e-5 * exact).all()) for own in found):
            return False
    return True
