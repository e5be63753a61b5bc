"""Train a two-block attention classifier and certify it.

    python examples/attention.py

A small vision transformer: an image of 8x8 pixels is cut into patches, two blocks of layer norm,
two-headed attention and a feed-forward part follow, and the patches' mean is classified. It is
trained in seconds on the digits that come with frown. Scores are products of computed tensors,
softmax and layer norm divide by sums that depend on the input: all of it is bounded.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frown
from digits import digits, train

WIDTH, HEADS, PATCH = 12, 2, 4
IMAGES = 2


class Block(nn.Module):
    """Attention between patches, then a feed-forward part, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.forward_part = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.forward_part(self.between(x))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn((8 // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.scores = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x.view(-1, 1, 8, 8), PATCH, stride=PATCH).transpose(1, 2)
        return self.scores(self.blocks(self.embed(patches) + self.place).mean(1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = digits()
    module = Classifier()
    train(module, x[60:], y[60:])
    with torch.no_grad():
        right = module(x[:60]).argmax(1) == y[:60]
    accuracy = right.double().mean().item()
    print(f"accuracy on images not trained on: {accuracy:.0%}")

    model = frown.load(module, x[:1])
    chosen = right.nonzero()[:IMAGES, 0]
    images, labels = x[chosen].double().numpy(), y[chosen].numpy()
    print(f"\nl_inf radius of {IMAGES} images that are classified rightly: [proved, broken]")
    means = {}
    for method in ("interval", "crown", "frown"):
        start = time.process_time()
        where = frown.Ball(images, within=(0, 1))
        result = frown.certify(model, where, labels, method=method)
        seconds = time.process_time() - start
        brackets = zip(result.radius, result.broken, strict=True)
        print(f"  {method:<9}" + " ".join(f"[{a:.4f}, {b:.4f}]" for a, b in brackets), end="")
        means[method] = result.radius.mean()
        print(f"  mean {means[method]:.4f}  {seconds:.0f} s")
        if (result.radius > result.broken).any():
            sys.exit("a counterexample lies within a proved radius")
    if means["frown"] < means["crown"] * 0.99:
        sys.exit("FROWN must not be looser than CROWN")
    if accuracy < 0.8 or means["crown"] < 0.002:
        sys.exit("the network did not learn, or its radius is trivial")


if __name__ == "__main__":
    main()
