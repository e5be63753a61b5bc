"""Train a small residual network in PyTorch and certify it for two norms.

    python examples/certify_torch.py

A convolutional network with batch normalisation, a skip connection and max pooling, trained
for a few seconds on the 8x8 digits of scikit-learn. It is traced and bounded as it is.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import frown

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("this example trains on scikit-learn's digits: pip install scikit-learn")


class Residual(nn.Module):
    """x + conv(relu(norm(conv(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        Residual(4),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 20) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    model.eval()


torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
x = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
y = torch.tensor(digits.target)
module = network()
train(module, x[:1500], y[:1500])
with torch.no_grad():
    accuracy = (module(x[1500:]).argmax(1) == y[1500:]).double().mean().item()
print(f"accuracy on images not trained on: {accuracy:.1%}")

model = frown.load(module, x[:1])
images, labels = x[1500:1504].numpy(), y[1500:1504].numpy()
means = {}
for norm in ("2", "inf"):
    print(f"\nnorm {norm}: [proved, broken] of four images")
    for method in ("crown", "frown"):
        where = frown.Ball(images, norm=norm, within=(0, 1))
        result = frown.certify(model, where, labels, method=method)
        means[norm, method] = result.radius.mean()
        brackets = zip(result.radius, result.broken, strict=True)
        print(f"  {method}: " + " ".join(f"[{low:.3f}, {high:.3f}]" for low, high in brackets))
        print(f"         mean proved radius {result.radius.mean():.4f}")
        if (result.radius > result.broken).any():
            sys.exit("a counterexample lies within a proved radius")
    if means[norm, "frown"] < means[norm, "crown"] * 0.99:
        sys.exit("FROWN must not be looser than CROWN")
if accuracy < 0.85:
    sys.exit("the network did not learn")
