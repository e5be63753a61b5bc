"""Only some features may move: which part of an image is the classifier sensitive to?

    python examples/sensitive_features.py

`scale` gives every feature its own share of the radius, 0 for features that may not move.
Here all of the digit may move, and then each quarter alone; "any" means that no change of it
within [0, 1] alters the answer.
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files

import numpy as np

import frown

with as_file(files("frown.jobs") / "assets") as assets:
    model = frown.load(assets / "digits.onnx")
    with np.load(assets / "digits.npz") as data:
        x, y = data["x"][:8], data["y"][:8]

QUARTERS = {
    "top left": (slice(0, 4), slice(0, 4)),
    "top right": (slice(0, 4), slice(4, 8)),
    "bottom left": (slice(4, 8), slice(0, 4)),
    "bottom right": (slice(4, 8), slice(4, 8)),
}


def radii(scale: np.ndarray) -> frown.Certification:
    where = frown.Ball(x, norm="inf", within=(0, 1), scale=scale.ravel())
    return frown.certify(model, where, y, search=frown.Largest(tol=0.02))


whole = radii(np.ones((8, 8)))
print("proved radius (0 to 1) of eight digits when only a part of the pixels may move\n")
print(f"{'digit':14}" + "".join(f"{digit:8d}" for digit in y))
print(f"{'all pixels':14}" + "".join(f"{radius:8.3f}" for radius in whole.radius))
for name, place in QUARTERS.items():
    scale = np.zeros((8, 8))
    scale[place] = 1
    part = radii(scale)
    shown = (
        f"{'any' if row.status == 'robust' else format(row.radius, '.3f'):>8}" for row in part.rows
    )
    print(f"{name:14}" + "".join(shown))
    if (part.radius < 0.97 * whole.radius).any():
        sys.exit(f"{name}: with fewer pixels free the radius must not shrink")
    still = scale.ravel() == 0
    for index, point in part.counterexamples.items():
        if not np.array_equal(point[still], x[index][still].astype(float)):
            sys.exit(f"{name}: a pixel that may not move has moved")
