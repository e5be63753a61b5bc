"""The list of networks is the paper's, and names lead back to networks."""

from __future__ import annotations

import pytest

from benchmarks.paper.networks import NETWORKS, Network, parse
from frown.errors import InvalidInput

THREE = ("relu", "sigmoid", "tanh")


def test_the_networks_are_those_of_the_tables() -> None:
    wanted = {f"drive_{m}x20_{f}" for m in (4, 8, 12) for f in THREE}
    wanted |= {f"mnist_{m}x20_{f}" for m in (5, 10, 15, 20) for f in THREE}
    wanted |= {f"mnist_{m}x100_{f}" for m in (3, 5, 7) for f in THREE}
    wanted |= {f"cifar_{m}x2048_{f}" for m in (4, 6, 8) for f in ("relu", "sigmoid")}
    wanted.add("mnist_4x1024_relu")
    names = [n.name for n in NETWORKS]
    assert set(names) == wanted
    assert len(names) == len(wanted)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_a_name_is_parsed_to_its_network(network: Network) -> None:
    assert parse(network.name) == network
    assert parse(network.file) == network


def test_layers_count_the_output() -> None:
    network = Network("mnist", 10, 20, "relu")
    assert network.widths == (784, *[20] * 9, 10)
    assert network.parameters == 785 * 20 + 8 * 21 * 20 + 21 * 10
    assert network.size == "10x[20]"
    assert network.title == "MNIST 10x[20] ReLU"
    assert network.file == "mnist_10x20_relu.onnx"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mnist_10x20", "mnist_10x20_relu"),
        ("drive-8x20-relu", "did you mean drive_8x20_relu"),
        ("svhn_4x20_relu", "no data set 'svhn'"),
        ("mnist_4x20_gelu", "no activation 'gelu'"),
        ("mnist_1x20_relu", "at least 2 layers"),
        ("mnist_4x0_relu", "at least 1 neuron"),
    ],
)
def test_other_names_are_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says.replace("[", r"\[")):
        parse(name)
