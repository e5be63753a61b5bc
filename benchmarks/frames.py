"""How the time of one evaluation grows with the number of frames of a sequence.

    python benchmarks/frames.py
    python benchmarks/frames.py --networks lstm --lengths 16 32 64 128 --hidden 16

CROWN at one radius for one sequence, p = infinity, float32, one thread; recurrent classifiers
with torch's random weights that read the last output. Every length is evaluated `--repeat` times,
and the least CPU time counts; what a network's graph alone decides is worked out before. The
exponent is the slope of log time over log frames: to the length before, and, below the table, of
a straight line through the longer half of them. Beside the time stand the numbers that the
network's operators hold: frames share them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

import frown
from common import circumstances, short, table, timed

FEATURES, CLASSES = 8, 3
LENGTHS = (8, 16, 32, 64, 128)
RADIUS = 0.01
CELLS: dict[str, type[nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Classifier(nn.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, cell: type[nn.RNNBase], hidden: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = cell(FEATURES, hidden, batch_first=True)
        self.out = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.rnn(x)[0][:, -1])
        return answer


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    frames: int
    seconds: float
    width: float  # of the widest output's bounds
    held: int  # numbers in the graph's operators


def measure(name: str, frames: int, hidden: int, repeat: int) -> Point:
    model = frown.load(Classifier(CELLS[name], hidden).eval(), torch.zeros(1, frames, FEATURES))
    x = np.random.default_rng(0).standard_normal((1, frames, FEATURES))
    frown.bound(model, frown.Ball(x).at(RADIUS))  # what the graph alone decides
    spent = []
    for _ in range(repeat):
        seconds, out = timed(lambda: frown.bound(model, frown.Ball(x).at(RADIUS)))
        spent.append(seconds)
    width = float((out.upper - out.lower).max())
    return Point(frames, min(spent), width, model.graph.parameters())


def exponents(points: list[Point]) -> Iterator[float | None]:
    """The growth to every point from the one before."""
    yield None
    for a, b in pairwise(points):
        yield float(np.log(b.seconds / a.seconds) / np.log(b.frames / a.frames))


def fitted(points: list[Point]) -> float:
    """The exponent of a power law through the longer half, three points at least."""
    kept = points[-max(3, -(-len(points) // 2)) :]
    frames, seconds = (np.log([getattr(p, k) for p in kept]) for k in ("frames", "seconds"))
    return float(np.polyfit(frames, seconds, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--hidden", type=int, default=16, help="units (16)")
    parser.add_argument("--repeat", type=int, default=3, help="evaluations; the least counts (3)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{circumstances()}; {FEATURES} features, {given.hidden} units, radius {RADIUS}")
    for name in given.networks:
        points = [measure(name, t, given.hidden, given.repeat) for t in sorted(given.lengths)]
        rows = [
            (
                str(p.frames),
                f"{p.seconds:.3g}",
                "" if growth is None else f"{growth:.2f}",
                short(p.width),
                str(p.held),
            )
            for p, growth in zip(points, exponents(points), strict=True)
        ]
        head = ("frames", "CPU s", "exponent", "width of bounds", "numbers held")
        print(f"\n{name}\n\n{table(head, rows)}")
        if len(points) >= 3:
            print(f"\nexponent of the longer ones: {fitted(points):.2f}")


if __name__ == "__main__":
    main()
