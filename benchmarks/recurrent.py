"""Recurrent networks: mean certified radius and CPU time, beside POPQORN and auto_LiRPA.

    python benchmarks/recurrent.py --shared DIR
    python benchmarks/recurrent.py --shared DIR --networks rnn --methods crown --samples 3
    python benchmarks/recurrent.py --shared DIR --networks lstm gru --gates joint --batch 1

Two questions, searched to 1 % in float32 on one thread, without a valid range: the l_inf ball
over the sequence, and for every frame an l_2 ball of its own, as POPQORN perturbs. Inputs are
the first correctly classified MNIST test images, four rows of pixels per frame; the target is
class label + 2.
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
from frown.relax.fuse import GATES

Labels = NDArray[np.int64]

FRAMES, WIDTH = 7, 112

# Measured once on some other machine, the first ten images: an orientation, never a result of
# this run. Mean radius by network and question, of POPQORN's code and of auto_LiRPA's CROWN.
OTHERS = {
    ("rnn", inf): {"POPQORN": 0.00477, "auto_LiRPA CROWN": 0.00613},
    ("lstm", inf): {"POPQORN (lines)": 0.00022, "auto_LiRPA CROWN": 0.00565},
    ("gru", inf): {"auto_LiRPA CROWN": 0.00442},
    ("rnn", 2.0): {"POPQORN": 0.0402},
    ("lstm", 2.0): {"POPQORN (lines)": 0.0018},
}


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


def images(module: nn.Module, path: Path, count: int) -> tuple[NDArray[np.float32], Labels]:
    """The first `count` test images that the network reads right, as sequences."""
    with np.load(path) as data:
        x = (data["x_test"][:500].reshape(-1, FRAMES, WIDTH) / 255.0).astype(np.float32)
        y = data["y_test"][:500].astype(np.int64)
    right = np.flatnonzero(module(torch.from_numpy(x)).argmax(1).numpy() == y)[:count]
    return x[right], y[right]


def measure(name: str, p: float, given: argparse.Namespace, shared: Path) -> list[tuple[str, ...]]:
    """A line per method; the others' figures stand beside the first where all ten are used."""
    module = Classifier(NETWORKS[name], shared / "models" / NETWORKS[name].file)
    x, y = images(module, shared / "data" / "mnist.npz", given.samples)
    model = frown.load(module, torch.from_numpy(x[:1]))
    question = "l_inf, whole" if p == inf else f"l_{p:g}, each frame"
    frames = "all" if p == inf else "each"
    options = {"frames": frames, "gates": given.gates, "batch": given.batch, "attack": False}
    lines = []
    for method in given.methods:
        seconds, result = timed(
            lambda method=method: frown.certify(  # type: ignore[misc]
                model, x, y, norm=p, target=(y + 2) % 10, method=method, **options
            )
        )
        mean = float(result.radius.mean())
        others = OTHERS.get((name, p), {}) if given.samples == 10 else {}
        beside = ", ".join(
            f"{who} {value:g} (x {mean / value:.2f})" for who, value in others.items()
        )
        line = (name, question, method, f"{mean:.4g}", f"{seconds / len(x):.2f}", beside)
        print("  ".join(line), file=sys.stderr, flush=True)
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=["crown", "frown"])
    parser.add_argument("--norms", nargs="+", type=float, choices=[inf, 2.0], default=[inf, 2.0])
    parser.add_argument("--samples", type=int, default=10, help="images (default 10)")
    parser.add_argument("--gates", choices=GATES, default="composed")
    parser.add_argument("--batch", type=int, help="images at a time (default: chosen)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shared = shared_folder(given.shared)
    lines = [
        line
        for p in given.norms
        for name in given.networks
        for line in measure(name, p, given, shared)
    ]
    head = ("network", "region", "method", "mean radius", "CPU s per input", "other machine")
    print(circumstances())
    print(table(head, lines))


if __name__ == "__main__":
    main()
