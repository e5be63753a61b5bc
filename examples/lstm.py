"""Train an LSTM on sequences, certify it, and find the frames on which its answers may depend.

    python examples/lstm.py

An LSTM reads a digit row by row of pixels, eight frames of eight features, and names it after the
last. First all frames may move together, sharing one budget of change; then each of them alone.
A large radius proves that the answer does not depend much on a frame. A small one may also be a
loose proof, of early frames above all, which pass through all later gates; the counterexamples
tell the two apart. Writes frown-examples/lstm.html with a picture of the frames.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import Tensor, nn

import frown
from digits import digits, line, page, some, trained

FRAMES, HIDDEN, SEQUENCES = 8, 12, 3


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64 // FRAMES, HIDDEN, batch_first=True)
        self.scores = nn.Linear(HIDDEN, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.lstm(x)[0][:, -1])


def table(found: frown.Sensitivity) -> None:
    """A line per digit and end of the bracket: the radius of every frame alone."""
    print(f"\n{'digit':>5} {'frame':>9}" + "".join(f"{f:8d}" for f in found.frames))
    for index, proved, broken in zip(found.index, found.radius, found.broken, strict=True):
        label = found.row(index, found.frames[0]).label
        print(f"{label:5d} {'proved':>9}" + "".join(f"{r:8.3f}" for r in proved))
        shown = (f"{r:8.3f}" if np.isfinite(r) else f"{'none':>8}" for r in broken)
        print(f"{'':5} {'broken':>9}" + "".join(shown))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = digits(FRAMES, 64 // FRAMES)
    module = Reader()
    trained(module, x, y, epochs=80, rate=2e-2)

    model = frown.load(module, x[:1])
    sequences, labels = some(model, x, y, SEQUENCES)
    start = time.process_time()
    where = frown.Ball(sequences, norm=2, within=(0, 1))
    whole = frown.certify(model, where, labels, method="crown")
    print(f"\nnorm 2, all frames together: [proved, broken] of {SEQUENCES} digits")
    print(f"{line('crown', whole)}, {time.process_time() - start:.1f} s")

    start = time.process_time()
    alone = frown.sensitivity(model, where, labels, method="crown")
    print(f"\nnorm 2, one frame at a time, {time.process_time() - start:.1f} s:")
    table(alone)
    if (alone.radius > alone.broken).any() or (whole.radius > whole.broken).any():
        sys.exit("a counterexample lies within a proved radius")
    if (alone.radius < 0.97 * whole.radius[:, None]).any():
        sys.exit("what is proved of all frames together holds of each alone")
    title = "Which rows of pixels does an LSTM depend on?"
    page("lstm", title, model, {"crown": whole}, sequences, {"crown": alone})


if __name__ == "__main__":
    main()
