"""How the time per sample grows with depth, width and the size of a batch.

    python benchmarks/scaling.py --out scaling.png
    python benchmarks/scaling.py --quick

Networks are trained on the fly on ten noisy patterns in 784 dimensions, always the same ones.
One thread, float32, p = infinity, one target per sample. Next to the seconds stand units that
do not depend on the machine: time relative to the first network of a series, and the
layers passed and multiplications that backward rows need there, counted.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import frown
from common import alternating, circumstances, short, table

FEATURES, CLASSES = 784, 10
DEPTHS, WIDTHS, BATCHES = (5, 10, 20), (20, 100, 500), (1, 2, 4, 8, 16, 32, 64)
GROUP = 20
EVERY_NEURON = 100  # the widest layers whose neurons are optimised one by one

Pair = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Shape:
    """`depth` linear layers, all but the last of `width` neurons followed by a ReLU."""

    depth: int
    width: int

    @property
    def sizes(self) -> list[int]:
        return [FEATURES, *[self.width] * (self.depth - 1), CLASSES]

    def visits(self) -> int:
        """Layers passed on the way back from every layer: what narrow networks pay for,
        where an operator costs its call. Intervals are exact in the first layer."""
        return sum(range(2, self.depth + 1))

    def work(self) -> int:
        """Multiplications in the backward rows of one sample: two per neuron, one margin;
        what wide networks pay for."""
        weights = [a * b for a, b in pairwise(self.sizes)]
        down = np.cumsum(weights).tolist()
        hidden = sum(2 * self.width * cost for cost in down[1:-1])
        return int(hidden + down[-1])


@dataclass(frozen=True, slots=True)
class Method:
    """A curve of the plot."""

    name: str
    method: frown.Method
    colour: str
    widest: int = 10**9

    def certify(self, model: Any, data: Pair) -> NDArray[np.float64]:
        found = frown.certify(
            model,
            data[0],
            frown.label_wins(data[1], "+2"),
            method=self.method,
            attack=None,
            machine=frown.Machine(batch=len(data[1])),
        )
        return found.radius


METHODS = (
    Method("CROWN", frown.Crown(), "#0072b2"),
    Method(f"FROWN, groups of {GROUP}", frown.Frown(group=GROUP), "#e69f00"),
    Method("FROWN", frown.Frown(), "#d55e00", EVERY_NEURON),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    at: int  # depth, width or samples
    method: str
    seconds: float  # per sample; of the whole batch in the batch series
    radius: float
    visits: float
    work: float


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    print(circumstances())
    count, repeat = (2, 1) if args.quick else (args.samples, args.repeat)
    depths, widths = (DEPTHS[:2], WIDTHS[:2]) if args.quick else (DEPTHS, WIDTHS)
    batches = BATCHES[:4] if args.quick else BATCHES

    deep = [p for d in depths for p in sizes(Shape(d, 20), d, count, repeat)]
    print(f"\ndepth: layers of 20, {count} samples in a batch\n{series('layers', deep)}")
    wide = [p for w in widths for p in sizes(Shape(5, w), w, count, repeat)]
    print(f"\nwidth: 5 layers, {count} samples in a batch\n{series('width', wide)}")
    many = growth(Shape(10, 20), batches, repeat)
    print(f"\nbatch: 10 layers of 20\n{doubling(many)}")
    if args.out:
        draw(Path(args.out), deep, wide, many)


def sizes(shape: Shape, at: int, count: int, repeat: int) -> list[Point]:
    """Every method on one network."""
    network, data = trained(shape, count)
    model = frown.load(network, torch.zeros(1, FEATURES))
    methods = [m for m in METHODS if shape.width <= m.widest]
    found = alternating({m.name: lambda m=m: m.certify(model, data) for m in methods}, repeat)
    return [
        Point(at, name, seconds / count, float(radii.mean()), shape.visits(), shape.work())
        for name, (seconds, radii) in found.items()
    ]


def growth(shape: Shape, batches: tuple[int, ...], repeat: int) -> list[Point]:
    """CROWN and FROWN on ever larger parts of the same samples."""
    network, (x, y) = trained(shape, batches[-1])
    model = frown.load(network, torch.zeros(1, FEATURES))
    points = []
    for n in batches:
        work = {
            m.name: lambda m=m, n=n: m.certify(model, (x[:n], y[:n]))
            for m in METHODS
            if m.method != frown.Frown(group=GROUP)
        }
        for name, (seconds, radii) in alternating(work, repeat).items():
            points.append(Point(n, name, seconds, float(radii.mean()), 1, n))
    return points


def trained(shape: Shape, count: int) -> tuple[nn.Sequential, Pair]:
    """A network that tells ten noisy patterns apart, and `count` fresh inputs it gets right."""
    chance = torch.Generator().manual_seed(7)
    patterns = torch.randn(CLASSES, FEATURES, generator=chance) * 0.15

    def draw_inputs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        label = torch.arange(n) % CLASSES
        return patterns[label] + 0.3 * torch.randn(n, FEATURES, generator=chance), label

    torch.manual_seed(7)
    layers: list[nn.Module] = []
    for a, b in pairwise(shape.sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
        nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")
    network = nn.Sequential(*layers[:-1])
    ascent = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(400):
        x, y = draw_inputs(100)
        loss = nn.functional.cross_entropy(network(x), y)
        ascent.zero_grad()
        loss.backward()
        ascent.step()
    x, y = draw_inputs(20 * count)
    with torch.no_grad():
        right = (network(x).argmax(1) == y).nonzero().flatten()[:count]
    if len(right) < count:
        raise SystemExit(f"a network of {shape} did not learn: {len(right)} inputs right")
    return network.eval(), (x[right].double().numpy(), y[right].numpy())


def series(axis: str, points: list[Point]) -> str:
    """Seconds, and growth since the first network of each method."""
    rows = []
    for method in dict.fromkeys(p.method for p in points):
        mine = [p for p in points if p.method == method]
        for p in mine:
            rows.append(
                (
                    method,
                    str(p.at),
                    short(p.radius),
                    f"{p.seconds:.3g}",
                    f"{p.seconds / mine[0].seconds:.1f}",
                    f"{p.visits / mine[0].visits:.1f}",
                    f"{p.work / mine[0].work:.1f}",
                )
            )
    growth = ("relative time", "layers passed", "multiplications")
    return table(("method", axis, "mean radius", "CPU s per sample", *growth), rows)


def doubling(points: list[Point]) -> str:
    """Seconds of a batch, per sample, and against half the batch: at most 2 is wanted."""
    rows = []
    for method in dict.fromkeys(p.method for p in points):
        mine = [p for p in points if p.method == method]
        for before, p in zip([None, *mine], mine, strict=False):
            ratio = "" if before is None else f"{p.seconds / before.seconds:.2f}"
            rows.append((method, str(p.at), f"{p.seconds:.3g}", f"{p.seconds / p.at:.3g}", ratio))
    return table(("method", "samples", "CPU s", "CPU s per sample", "times half the batch"), rows)


def draw(path: Path, deep: list[Point], wide: list[Point], many: list[Point]) -> None:
    """Three panels, both axes logarithmic; dashed: growth in proportion to the layers
    passed (depth), the multiplications (width), the samples (batch)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    texts = (
        ("Depth (layers of 20)", "layers", "CPU seconds per sample", deep, "visits"),
        ("Width (5 layers)", "neurons per layer", "CPU seconds per sample", wide, "work"),
        ("Batch (10 layers of 20)", "samples", "CPU seconds for the batch", many, "work"),
    )
    for panel, (title, x, y, points, unit) in zip(panels, texts, strict=True):
        for method in METHODS:
            mine = [p for p in points if p.method == method.name]
            if not mine:
                continue
            at = [p.at for p in mine]
            first = mine[0]
            panel.plot(at, [p.seconds for p in mine], "o-", color=method.colour, linewidth=2)
            panel.plot(
                at,
                [first.seconds * getattr(p, unit) / getattr(first, unit) for p in mine],
                "--",
                color=method.colour,
                linewidth=1,
                alpha=0.6,
            )
        panel.set(xscale="log", yscale="log", title=title, xlabel=x, ylabel=y)
        ticks = sorted({p.at for p in points})
        panel.set_xticks(ticks, [str(t) for t in ticks])
        panel.minorticks_off()
        panel.grid(axis="y", color="0.9")
    keys = [Line2D([], [], color=m.colour, marker="o", linewidth=2, label=m.name) for m in METHODS]
    keys.append(Line2D([], [], color="0.4", linestyle="--", label="in proportion to the work"))
    figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)
    print(f"\nplot written to {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small networks, one run each")
    parser.add_argument("--samples", type=int, default=4, help="inputs per network (4)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; medians are shown (3)")
    parser.add_argument("--out", help="write the plot here (.png or .svg)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
