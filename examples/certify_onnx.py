"""Certify an ONNX classifier: how far may each image move before the answer can change?

    python examples/certify_onnx.py

Uses the digit classifier that ships with frown. For your own model, change the paths.
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files

import numpy as np

import frown

with as_file(files("frown.jobs") / "assets") as assets:
    model = frown.load(assets / "digits.onnx")
    with np.load(assets / "digits.npz") as data:
        x, y = data["x"][:10], data["y"][:10]

where = frown.Ball(x, norm="inf", within=(0, 1))
result = frown.certify(model, where, frown.label_wins(y))

print("Every pixel lies in [0, 1] and may move by the radius, up or down.\n")
for row in result.rows:
    broken = "nothing found" if row.broken is None else f"broken at {row.broken:.4f}"
    proved = f"proved up to {row.radius:.4f}"
    print(f"image {row.index} (digit {row.label}): {row.status}, {proved}, {broken}")
print(f"\nmean proved radius {result.radius.mean():.4f}")
print(f"certified accuracy at 0.03: {result.certified_accuracy(0.03):.0%}")

# Whatever is proved must hold: the model itself answers wrongly at every counterexample, and
# none of them lies inside a proved radius.
for index, point in result.counterexamples.items():
    distance = np.abs(point - x[index]).max()
    answer = int(model.run(point[None])[0].argmax())
    if answer == y[index] or distance < result.radius[index]:
        sys.exit(f"image {index}: the counterexample at {distance} contradicts the result")
