"""What lies behind a bound: intervals, lines, linear forms, and functions of the outputs.

    python examples/look_inside.py

Every bound printed here is checked on sampled inputs.
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files

import numpy as np

import frown

EPS = 0.04

with as_file(files("frown.jobs") / "assets") as assets:
    model = frown.load(assets / "digits.onnx")
    with np.load(assets / "digits.npz") as data:
        x, label = data["x"][:1], int(data["y"][0])

where = frown.Ball(x, within=(0, 1)).at(EPS)
out = frown.bound(model, where, method="frown")

print(f"Image 0 shows the digit {label}. While pixels move by up to {EPS}, the outputs stay in")
for digit in range(model.classes):
    print(f"  {digit}: [{out.lower[0, digit]:8.3f}, {out.upper[0, digit]:8.3f}]")

print("\nThe input of each activation, and how many neurons may change sign:")
for name, box in out.layers.items():
    crossing = ((box.lower < 0) & (box.upper > 0)).sum()
    width = (box.upper - box.lower).mean()
    print(f"  {name}: mean width {width:.3f}, {crossing} of {box.lower[0].size} cross 0")

last = list(out.layers)[-1]
box, lines = out.layers[last], out.lines[last]
neuron = int(np.argmax((box.lower < 0) & (box.upper > 0)))
print(
    f"\nThe fixed rule's lines of neuron {neuron} of {last} on "
    f"[{box.lower[0, neuron]:.3f}, {box.upper[0, neuron]:.3f}]:\n"
    f"  {lines.lower_slope[0, neuron]:.3f} z {lines.lower_intercept[0, neuron]:+.3f} below,\n"
    f"  {lines.upper_slope[0, neuron]:.3f} z {lines.upper_intercept[0, neuron]:+.3f} above"
)

# A difference of outputs bounded as one function beats the difference of two bounds.
rival = int(np.argsort(model.run(x)[0])[-2])
difference = np.zeros((1, model.classes))
difference[0, label], difference[0, rival] = 1, -1
margin = frown.bound(model, where, difference, method="frown")
apart = out.lower[0, label] - out.upper[0, rival]
print(f"\noutput[{label}] - output[{rival}] is at least {margin.lower[0, 0]:.3f};")
print(f"subtracting two bounds would give {apart:.3f} only")

rows = out.neuron_rows(last)
print(f"\n{len(rows.bound)} rows bound {last}, each with slopes of its own at", *rows.slopes)

# The proof in one line: a linear form at the input, below the outputs on the whole region.
rng = np.random.default_rng(0)
points = np.clip(x + EPS * rng.uniform(-1, 1, (2000, x.shape[1])), 0, 1)
outputs = model.run(points)
slack = 1e-4 * (1 + np.abs(outputs).max())
below = points @ out.lower_form.coef[0].T + out.lower_form.const[0]
above = points @ out.upper_form.coef[0].T + out.upper_form.const[0]
checks = {
    "lower <= outputs <= upper": (out.lower <= outputs + slack) & (outputs <= out.upper + slack),
    "lower_form <= outputs <= upper_form": (below <= outputs + slack) & (outputs <= above + slack),
    "margin": outputs[:, label] - outputs[:, rival] >= margin.lower[0, 0] - slack,
    "one function beats two bounds": margin.lower[0, 0] >= apart - slack,
}
print()
for what, holds in checks.items():
    print(f"checked on {len(points)} inputs: {what}: {'holds' if holds.all() else 'FAILS'}")
if not all(holds.all() for holds in checks.values()):
    sys.exit(1)
