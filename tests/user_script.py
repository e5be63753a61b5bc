"""A user's script, as in the README: type checkers see what the names are (`make lint`)."""

from __future__ import annotations

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import frown


def main(path: str, data: str) -> None:
    """Certify, look at rows and bounds; run by nobody, read by mypy."""
    model = frown.load(path)
    arrays = np.load(data)
    where = frown.Ball(arrays["x"][:8], norm=2, within=(0, 1))
    result = frown.certify(model, where, frown.label_wins(arrays["y"][:8]))
    assert_type(result, frown.Certification)
    assert_type(result.radius, NDArray[np.float64])
    for row in result.rows:
        assert_type(row, frown.Row)
        assert_type(row.broken, float | None)
    other = frown.certify(
        model,
        arrays["x"],
        method=frown.Frown(group=8),
        search=frown.At(0.03),
        proof=frown.Rigorous(certificates="proofs", check=True),
        attack=None,
        machine=frown.Machine(seconds=60, memory="4G"),
    )
    print(other.certified_accuracy(0.03), frown.bound(model, where.at(0.1)).lower)
