"""Train a small convolutional network with max pooling, and certify it in two norms.

    python examples/cnn.py

The network is trained in seconds on the digits that come with frown. A maximum over a window is
bounded by planes in all of its entries at once, whose slopes FROWN moves; docs/operators.md tells
how. Writes frown-examples/cnn.html.
"""

from __future__ import annotations

import time

import torch
from torch import nn

import frown
from digits import check, digits, line, page, some, trained

IMAGES = 5


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = digits(1, 8, 8)
    module = network()
    trained(module, x, y, epochs=40)

    model = frown.load(module, x[:1])
    images, labels = some(model, x, y, IMAGES)
    for norm in ("2", "inf"):
        print(f"\nnorm {norm}: [proved, broken] of {IMAGES} digits, pixels in [0, 1]")
        results = {}
        for method in ("crown", "frown"):
            start = time.process_time()
            where = frown.Ball(images, norm=norm, within=(0, 1))
            result = frown.certify(model, where, labels, method=method)
            results[method] = result
            print(f"{line(method, result)}, {time.process_time() - start:.1f} s")
        check(results)
    page("cnn", "How robust is a network with max pooling?", model, results, images)


if __name__ == "__main__":
    main()
