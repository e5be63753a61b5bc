"""How close bounds come to the machine: the share of a plain matrix product's throughput.

    python benchmarks/throughput.py --shared DIR
    python benchmarks/throughput.py --shared DIR --networks 9x200 --first 4 --images 2

Multiplications in products and convolutions are counted as torch runs them, in a pass of its own;
everything else a method does (lines, steps, calls) counts as nothing. A square product is timed in
turn with the methods: the share is what the counted multiplications would take at its pace,
divided by the time taken. One thread, float32, one image after the other, at one radius.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import frown
from common import alternating, circumstances, shared_folder, table
from large import NETWORKS, Images, bounds_of

SIDE, TIMES = 512, 20  # of the square product
WIDE, RADIUS = "4x2048", 0.5 / 255
HEAD = ("network", "method", "CPU s per image", "multiplications", "G/s", "share of a product")
SHOWN = ("CROWN", "FROWN", "FROWN, all steps")


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    print(f"{circumstances()}; images {args.first} to {args.first + args.images - 1}")
    rows = []
    for name in args.networks:
        works = methods(args.shared, name, args.first, args.images)
        left = torch.randn(SIDE, SIDE)
        right = torch.randn(SIDE, SIDE)

        def product(left: torch.Tensor = left, right: torch.Tensor = right) -> float:
            return float(sum((left @ right)[0, 0] for _ in range(TIMES)))

        counted = {method: multiplications(work) for method, work in works.items()}
        found = alternating({**works, "product": product}, args.repeat)
        pace = TIMES * SIDE**3 / found["product"][0]
        rows.append((name, f"product of {SIDE}^3", "", "", f"{pace / 1e9:.1f}", "1"))
        for method, count in counted.items():
            seconds = found[method][0]
            own = count / seconds
            each = f"{seconds / args.images:.3g}", f"{count / args.images:.3g}"
            rows.append((name, method, *each, f"{own / 1e9:.1f}", f"{own / pace:.2f}"))
    print(table(HEAD, rows))


def methods(
    shared: str | None, name: str, first: int, count: int
) -> dict[str, Callable[[], float]]:
    """For every method a function that bounds all images at one radius."""
    if name == WIDE:
        model, x, y = wide(count)
        works = bounds_of(model, x, y, RADIUS)
        return {method: works[method] for method in SHOWN[:2]}
    network, folder = NETWORKS[name], shared_folder(shared)
    model = frown.load(folder / network.file)
    x, y = network.images(folder, first, count)
    assert network.eps is not None
    works = bounds_of(model, x.reshape(len(x), *model.input_shape), y, network.eps)
    return {method: works[method] for method in SHOWN}


def wide(count: int) -> tuple[frown.Model, Images, np.ndarray]:
    """A network of four layers of 2048 ReLUs, random weights, random images of CIFAR's size."""
    torch.manual_seed(0)
    sizes = [3072, *[2048] * 4, 10]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    module = nn.Sequential(*layers[:-1]).eval()
    x = torch.rand(count, 3072)
    with torch.no_grad():
        y = module(x).argmax(1).numpy()
    return frown.load(module, x[:1]), x.double().numpy(), y


def multiplications(work: Callable[[], float]) -> float:
    """The number of multiplications in the products and convolutions of some work."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    known = [*(name for name, network in NETWORKS.items() if network.eps is not None), WIDE]
    parser.add_argument("--networks", nargs="+", choices=known, default=known)
    parser.add_argument("--first", type=int, default=0, help="the first image's number (0)")
    parser.add_argument("--images", type=int, default=2, help="images per network (2)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; medians are shown (3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
