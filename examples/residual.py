"""Train a residual network with batch norm, and certify it with FROWN in groups.

    python examples/residual.py

Two residual blocks, trained in seconds on the digits that come with frown. Batch norm is folded
into the convolutions; the two ways that meet behind a block are bounded together, so what they
have in common cancels. In groups, neurons share their slopes: the channels of one position,
which read the same patch of the image. On so small a network that saves no time, and costs
little; docs/faq.md tells where it pays. Writes frown-examples/residual.html.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import frown
from digits import check, digits, line, page, some, trained

CHANNELS, IMAGES = 8, 4


class Residual(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.inside(x)).relu()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        Residual(),
        Residual(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * CHANNELS, 10),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = digits(1, 8, 8)
    module = network()
    trained(module, x, y, epochs=40)

    model = frown.load(module, x[:1])
    images, labels = some(model, x, y, IMAGES)
    print(f"\nnorm inf: [proved, broken] of {IMAGES} digits, pixels in [0, 1]")
    results = {}
    methods = {
        "crown": frown.Crown(),
        f"frown (groups of {CHANNELS})": frown.Frown(group=CHANNELS),
        "frown": frown.Frown(),
    }
    for name, method in methods.items():
        start = time.process_time()
        result = frown.certify(model, frown.Ball(images, within=(0, 1)), labels, method=method)
        results[name] = result
        print(f"{line(name, result)}, {time.process_time() - start:.1f} s")
    check(results)
    page("residual", "How robust is a residual network?", model, results, images)


if __name__ == "__main__":
    main()
