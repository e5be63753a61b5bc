"""Close the brackets of the demo's digits by branching, and show both ends before and after."""

from importlib.resources import as_file, files

import numpy as np

import frown

with as_file(files("frown.jobs").joinpath("assets")) as assets:
    model = frown.load(assets / "digits.onnx")
    with np.load(assets / "digits.npz") as data:
        x, y = data["x"][:4], data["y"][:4]

result = frown.certify(model, frown.Ball(x, within=(0, 1)), y, method=frown.Branch(seconds=1))
for row in result:
    before = f"[{row.radius_before:.4f}, {row.broken_before:.4f}]"
    print(
        f"digit {row.index}: {before} -> [{row.radius:.6f}, {row.broken:.6f}], {row.leaves} leaves"
    )
    assert row.radius_before <= row.radius <= row.broken <= row.broken_before
assert sum(row.broken <= 1.011 * row.radius for row in result) >= 2  # closed to one per cent
