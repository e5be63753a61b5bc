"""How much do proofs lose? CROWN, FROWN, linear programs, the exact distance, and the attack.

    python examples/exact.py

A small ReLU network is trained on the digits that ship with frown. For a few images the
exact distance of the nearest wrong answer is found by branch and bound (method milp), so that
what each method proves, and what the attack finds, can be held against the truth.
Needs the extra `lp`: pip install '.[lp]' in a checkout (`make demo` has done it for .venv).
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from time import perf_counter

import numpy as np
import torch
from torch import nn

import frown

TOL = 0.01  # how exact every search is, relative
METHODS = {"CROWN": "crown", "FROWN": "frown", "LP": "lp", "exact": "milp"}

torch.manual_seed(0)
torch.set_num_threads(1)
with as_file(files("frown.jobs") / "assets") as assets, np.load(assets / "digits.npz") as data:
    x, y = data["x"], data["y"].astype(np.int64)

train, held_out = slice(0, 240), slice(240, None)
layers: list[nn.Module] = []
for wide in (64, 20, 20):
    layers += [nn.Linear(wide, 20), nn.ReLU()]
module = nn.Sequential(*layers, nn.Linear(20, 10))
optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
for _ in range(200):
    optimiser.zero_grad()
    outputs = module(torch.tensor(x[train], dtype=torch.float32))
    nn.functional.cross_entropy(outputs, torch.tensor(y[train])).backward()
    optimiser.step()

model = frown.load(module, torch.zeros(1, 64))
right = np.flatnonzero(model.run(x[held_out]).argmax(1) == y[held_out])
print(f"{len(right)} of {len(x[held_out])} images not trained on are answered right")
chosen = 240 + right[:4]

radii, seconds = {}, {}
for name, method in METHODS.items():
    began = perf_counter()
    where, search = frown.Ball(x[chosen], within=(0, 1)), frown.Largest(tol=TOL)
    result = frown.certify(model, where, y[chosen], method=method, search=search)
    radii[name], seconds[name] = result.radius, perf_counter() - began
    if method == "crown":
        radii["attack"] = result.broken
    for row in result.rows:
        if row.remark:
            print(f"image {row.index}, {name}: {row.remark}")

columns = ("CROWN", "FROWN", "LP", "exact", "attack")
print("\nby how much all pixels may change, up or down, within [0, 1]:\n")
print("image  digit" + "".join(f"{name:>9}" for name in columns))
for k, n in enumerate(chosen):
    print(f"{n:5d}  {y[n]:5d}" + "".join(f"{radii[name][k]:9.4f}" for name in columns))
shares = {name: (radii[name] / radii["exact"]).mean() for name in columns}
print(f"{'of the exact':12}" + "".join(f"{shares[name]:9.1%}" for name in columns))
times = "".join(f"{seconds[name] / len(chosen):9.2f}" for name in columns[:-1])
print(f"{'s per image':12}{times}")

# On ReLU networks the order is a theorem; searches add their tolerance.
order = [("CROWN", "FROWN"), ("FROWN", "LP"), ("LP", "exact"), ("exact", "attack")]
for low, high in order:
    if (radii[low] > radii[high] * (1 + TOL)).any():
        sys.exit(f"{low} must not exceed {high}")
