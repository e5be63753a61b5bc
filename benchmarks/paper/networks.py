"""The networks of the paper's tables, by data set, depth, width and activation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise, product
from typing import Literal, cast, get_args

from frown.errors import InvalidInput

DataName = Literal["drive", "mnist", "cifar"]
Activation = Literal["relu", "sigmoid", "tanh"]

FEATURES: dict[DataName, int] = {"drive": 48, "mnist": 784, "cifar": 3072}
CLASSES: dict[DataName, int] = {"drive": 11, "mnist": 10, "cifar": 10}

DATA: dict[str, str] = {"drive": "Sensorless Drive", "mnist": "MNIST", "cifar": "CIFAR-10"}
_NAME = re.compile(
    r"(?P<data>[a-z]+)_(?P<layers>\d{1,4})x(?P<width>\d{1,6})_(?P<activation>[a-z]+)"
)


@dataclass(frozen=True, slots=True)
class Network:
    """`layers` x [`width`]: that many affine layers, with the activation between them.

    Counted as the paper does, the output's layer included: 10x[20] has nine hidden layers.
    """

    data: DataName
    layers: int
    width: int
    activation: Activation

    def __post_init__(self) -> None:
        if self.data not in FEATURES:
            raise InvalidInput(f"no data set {self.data!r}: there are {', '.join(FEATURES)}")
        if self.activation not in get_args(Activation):
            known = ", ".join(get_args(Activation))
            raise InvalidInput(f"no activation {self.activation!r} here: there are {known}")
        if self.layers < 2 or self.width < 1:
            raise InvalidInput(
                f"{self.size}: a network has at least 2 layers, of at least 1 neuron each"
            )

    @property
    def name(self) -> str:
        return f"{self.data}_{self.layers}x{self.width}_{self.activation}"

    @property
    def file(self) -> str:
        return f"{self.name}.onnx"

    @property
    def size(self) -> str:
        """As in the paper's tables: 10x[20]."""
        return f"{self.layers}x[{self.width}]"

    @property
    def title(self) -> str:
        activation = "ReLU" if self.activation == "relu" else self.activation
        return f"{DATA[self.data]} {self.size} {activation}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Neurons of the input, of every hidden layer and of the output."""
        hidden = (self.width,) * (self.layers - 1)
        return (FEATURES[self.data], *hidden, CLASSES[self.data])

    @property
    def parameters(self) -> int:
        """Weights and biases, batch norm folded."""
        return sum((n + 1) * m for n, m in pairwise(self.widths))

    def __str__(self) -> str:
        return self.name


def parse(name: str) -> Network:
    """The network of a name such as mnist_10x20_relu, in the paper's tables or not."""
    match = _NAME.fullmatch(name.removesuffix(".onnx"))
    if match is None:
        near = get_close_matches(name, [n.name for n in NETWORKS], n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InvalidInput(
            f"no network {name!r}: names are DATA_LAYERSxWIDTH_ACTIVATION, such as "
            f"mnist_10x20_relu{hint}"
        )
    return Network(
        cast(DataName, match["data"]),
        int(match["layers"]),
        int(match["width"]),
        cast(Activation, match["activation"]),
    )


def _all(
    data: DataName, sizes: Sequence[tuple[int, int]], activations: Sequence[Activation]
) -> tuple[Network, ...]:
    return tuple(Network(data, m, n, f) for (m, n), f in product(sizes, activations))


_THREE: tuple[Activation, ...] = ("relu", "sigmoid", "tanh")

NETWORKS: tuple[Network, ...] = (
    *_all("drive", [(4, 20), (8, 20), (12, 20)], _THREE),
    *_all("mnist", [(5, 20), (10, 20), (15, 20), (20, 20)], _THREE),
    *_all("mnist", [(3, 100), (5, 100), (7, 100)], _THREE),
    *_all("mnist", [(4, 1024)], ("relu",)),
    *_all("cifar", [(4, 2048), (6, 2048), (8, 2048)], ("relu", "sigmoid")),
)
"""All networks of the paper's tables, cheapest first."""
