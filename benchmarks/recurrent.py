"""Recurrent networks: mean certified radius and CPU time, beside POPQORN and auto_LiRPA.

    python benchmarks/recurrent.py --shared DIR
    python benchmarks/recurrent.py --shared DIR --networks rnn --methods crown --samples 3
    python benchmarks/recurrent.py --shared DIR --networks rnn lstm --each

Two questions, searched to 1 % in float32 on one thread, without a valid range: the l_inf ball
over the sequence, and for every frame an l_2 ball of its own, as POPQORN perturbs. Inputs are
the first correctly classified MNIST test images, four rows of pixels per frame; the target is
class label + 2. With --each, every image's radius stands beside POPQORN's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import frown
from common import circumstances, shared_folder, table, timed

Labels = NDArray[np.int64]

FRAMES, WIDTH = 7, 112

# Measured once on some other machine, the first ten images: an orientation, never a result of
# this run. POPQORN's code, every image, to 0.1 %; it has lines and planes for an LSTM, here lines.
POPQORN = {
    ("rnn", inf): (
        *(0.004955, 0.006212, 0.002918, 0.005400, 0.004283),
        *(0.003402, 0.005337, 0.004613, 0.004448, 0.006087),
    ),
    ("rnn", 2.0): (
        *(0.04205, 0.05262, 0.02447, 0.04510, 0.03616),
        *(0.02877, 0.04529, 0.03875, 0.03727, 0.05148),
    ),
    ("lstm", inf): (
        *(0.0002152, 0.0003818, 0.00007815, 0.0001728, 0.0001813),
        *(0.0001384, 0.0002288, 0.0001172, 0.0003297, 0.0003171),
    ),
    ("lstm", 2.0): (
        *(0.001801, 0.003191, 0.0006549, 0.001447, 0.001517),
        *(0.001160, 0.001914, 0.0009800, 0.002762, 0.002648),
    ),
}
# Mean radii of auto_LiRPA's CROWN.
AUTO_LIRPA = {("rnn", inf): 0.00613, ("lstm", inf): 0.00565, ("gru", inf): 0.00442}
TEN = 10  # images of these figures


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A network's kind, hidden size and file inside the shared folder."""

    cell: type[nn.RNNBase]
    hidden: int
    file: str


NETWORKS = {
    "rnn": Recurrent(nn.RNN, 64, "rnn_tanh_7_64.pt"),
    "lstm": Recurrent(nn.LSTM, 32, "lstm_7_32.pt"),
    "gru": Recurrent(nn.GRU, 32, "gru_7_32.pt"),
}


class Classifier(nn.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, network: Recurrent, weights: Path) -> None:
        super().__init__()
        self.rnn = network.cell(WIDTH, network.hidden, batch_first=True)
        self.out = nn.Linear(network.hidden, 10)
        self.load_state_dict(torch.load(weights, weights_only=True))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.rnn(x)[0][:, -1])
        return answer


def images(
    module: nn.Module, path: Path, count: int
) -> tuple[NDArray[np.intp], NDArray[np.float32], Labels]:
    """The first `count` test images that the network reads right: where, as sequences, labels."""
    with np.load(path) as data:
        x = (data["x_test"][:500].reshape(-1, FRAMES, WIDTH) / 255.0).astype(np.float32)
        y = data["y_test"][:500].astype(np.int64)
    right = np.flatnonzero(module(torch.from_numpy(x)).argmax(1).numpy() == y)[:count]
    return right, x[right], y[right]


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one network, one question and some methods."""

    network: str
    p: float
    images: NDArray[np.intp]  # places in the test set
    radii: dict[str, NDArray[np.float64]]  # method: one per image
    seconds: dict[str, float]  # method: per image

    @property
    def question(self) -> str:
        return "l_inf, whole" if self.p == inf else f"l_{self.p:g}, each frame"

    @property
    def others(self) -> dict[str, float]:
        """Mean radii of others, where all their images were used."""
        if len(self.images) != TEN:
            return {}
        popqorn, peer = (t.get((self.network, self.p)) for t in (POPQORN, AUTO_LIRPA))
        found = {} if popqorn is None else {"POPQORN": float(np.mean(popqorn))}
        return found if peer is None else found | {"auto_LiRPA CROWN": peer}

    def lines(self) -> list[tuple[str, ...]]:
        """A line per method."""
        return [
            (
                *(self.network, self.question, method),
                f"{radii.mean():.4g}",
                f"{self.seconds[method]:.2f}",
                ", ".join(
                    f"{who} {value:.4g} (x {radii.mean() / value:.2f})"
                    for who, value in self.others.items()
                ),
            )
            for method, radii in self.radii.items()
        ]

    def each(self) -> str:
        """A line per image; ratios are to POPQORN's radius."""
        popqorn = POPQORN.get((self.network, self.p), ())[: len(self.images)]
        head = ["image", *self.radii]
        if popqorn:
            head += ["POPQORN", *(f"{method} / POPQORN" for method in self.radii)]
        rows = []
        for k, image in enumerate(self.images):
            ours = [r[k] for r in self.radii.values()]
            row = [str(image), *(f"{r:.4g}" for r in ours)]
            if popqorn:
                row += [f"{popqorn[k]:.4g}", *(f"{r / popqorn[k]:.2f}" for r in ours)]
            rows.append(row)
        return table(head, rows)


def measure(name: str, p: float, given: argparse.Namespace, shared: Path) -> Found:
    """Every method on one network and one question."""
    module = Classifier(NETWORKS[name], shared / "models" / NETWORKS[name].file)
    where, x, y = images(module, shared / "data" / "mnist.npz", given.samples)
    model = frown.load(module, torch.from_numpy(x[:1]))
    ball = frown.Ball(x, norm=p, frames="all" if p == inf else "each")
    holds, machine = frown.label_wins(y, (y + 2) % 10), frown.Machine(batch=given.batch)
    found = Found(name, p, where, {}, {})
    for method in given.methods:
        seconds, result = timed(
            lambda method=method: frown.certify(  # type: ignore[misc]
                model, ball, holds, method=method, attack=None, machine=machine
            )
        )
        found.radii[method], found.seconds[method] = result.radius, seconds / len(x)
        print("  ".join(found.lines()[-1]), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=["crown", "frown"])
    parser.add_argument("--norms", nargs="+", type=float, choices=[inf, 2.0], default=[inf, 2.0])
    parser.add_argument("--samples", type=int, default=TEN, help=f"images (default {TEN})")
    parser.add_argument("--batch", type=int, help="images at a time (default: chosen)")
    parser.add_argument("--each", action="store_true", help="also every image's radius")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shared = shared_folder(given.shared)
    found = [measure(name, p, given, shared) for p in given.norms for name in given.networks]
    head = ("network", "region", "method", "mean radius", "CPU s per input", "other machine")
    print(circumstances())
    print(table(head, [line for one in found for line in one.lines()]))
    for one in found if given.each else ():
        print(f"\n{one.network}, {one.question}\n\n{one.each()}")


if __name__ == "__main__":
    main()
