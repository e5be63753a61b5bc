"""Bad input gets one clear message that names what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.errors import FrownError, InvalidInput
from frown.problem.inputs import inputs_of
from frown.read.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    """4 -> 3."""
    torch.manual_seed(0)
    return frown.load(nn.Linear(4, 3), torch.zeros(1, 4))


@pytest.fixture(scope="module")
def data(model: Model) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).uniform(-0.9, 0.9, (5, 4))
    return x, model.run(x).argmax(1)


BAD: dict[str, tuple[dict[str, object], str]] = {
    "norm below 1": ({"norm": 0.5}, "at least 1"),
    "unknown norm": ({"norm": "two"}, "norm"),
    "unknown method": ({"method": "magic"}, "crown"),
    "unknown rule": ({"rule": "x"}, "paper"),
    "unknown dtype": ({"dtype": "float16"}, "float32"),
    "unknown device": ({"device": "toaster"}, "device"),
    "wrong shape": ({"x": np.zeros((5, 3))}, "(4,)"),
    "one input without its axis": ({"x": np.zeros(4)}, "first axis"),
    "no inputs": ({"x": np.zeros((0, 4)), "y": []}, "empty"),
    "inputs that are words": ({"x": [["a"] * 4] * 5}, "numbers"),
    "NaN": ({"x": np.full((5, 4), np.nan)}, "NaN"),
    "infinity": ({"x": np.full((5, 4), np.inf)}, "infinity"),
    "label out of range": ({"y": [0, 1, 2, 3, 0]}, "0 to 2"),
    "negative label": ({"y": [0, -1, 2, 1, 0]}, "0 to 2"),
    "fractional label": ({"y": [0, 0.5, 2, 1, 0]}, "0 to 2"),
    "too few labels": ({"y": [0, 1]}, "5 inputs"),
    "labels that are words": ({"y": ["cat"] * 5}, "numbers"),
    "target out of range": ({"target": 7}, "0 to 2"),
    "target not a step": ({"target": "+x"}, "+K"),
    "target is the label": ({"target": "+3"}, "label"),
    "target is a word": ({"target": "cat"}, "numbers"),
    "negative eps": ({"eps": -0.1}, "eps"),
    "NaN eps": ({"eps": np.nan}, "eps"),
    "infinite eps": ({"eps": np.inf}, "eps"),
    "eps of a wrong shape": ({"eps": [0.1, 0.2]}, "5 inputs"),
    "eps a word": ({"eps": "far"}, "eps"),
    "bounds not a pair": ({"bounds": 3}, "pair"),
    "bounds reversed": ({"bounds": (1, -1)}, "exceeds"),
    "bounds without the inputs": ({"bounds": (-0.1, 0.1)}, "outside"),
    "bounds of a wrong shape": ({"bounds": (np.zeros(3), np.ones(3))}, "bounds"),
    "bounds of words": ({"bounds": ("a", "b")}, "bounds"),
    "NaN bounds": ({"bounds": (np.nan, 1)}, "bounds"),
    "negative scale": ({"scale": [-1, 1, 1, 1]}, "scale"),
    "zero scale": ({"scale": 0}, "scale"),
    "scale of a wrong shape": ({"scale": [1, 2]}, "scale"),
    "scale a word": ({"scale": "big"}, "scale"),
    "tol of 0": ({"tol": 0}, "tol"),
    "tol of 1": ({"tol": 1.0}, "tol"),
    "negative group": ({"method": "frown", "group": -1}, "group"),
    "negative memory": ({"memory": -5}, "memory"),
    "no time": ({"time_limit": 0}, "time-limit"),
    "negative batch": ({"batch": -1}, "batch"),
    "negative steps": ({"method": "frown", "steps": -1}, "steps"),
    "indices of a wrong shape": ({"indices": [1, 2]}, "5 inputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(model: Model, data: tuple[np.ndarray, np.ndarray], name: str) -> None:
    changed, hint = BAD[name]
    arguments: dict[str, object] = {"x": data[0], "y": data[1], "method": "crown", "attack": False}
    with pytest.raises(InvalidInput) as caught:
        asking.certify(model, **{**arguments, **changed})  # type: ignore[arg-type]
    assert hint in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_cannot_be_loaded() -> None:
    with pytest.raises(InvalidInput, match="example"):
        frown.load(nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match="a path, a ModelProto or a torch module"):
        frown.load(3)  # type: ignore[arg-type]
    with pytest.raises(FrownError):
        frown.load("no such file.onnx")


def linear(weights: list[float], bias: float) -> frown.Model:
    layer = torch.nn.Linear(len(weights), 2)
    layer.weight.data = torch.tensor([weights, [0.0] * len(weights)])
    layer.bias.data = torch.tensor([bias, 0.0])
    return frown.load(layer, torch.zeros(1, len(weights)))


def test_caps_that_use_up_the_budget_are_not_forgotten() -> None:
    """(0, 0, 0.5) is within 0.5 of the input and on the other side."""
    model = linear([1.0, 0.3, 1e-6], -0.21)
    arguments = {"norm": 2, "bounds": (0, 1), "eps": 0.5}
    found = asking.certify(model, [[0.3, 0.4, 0.5]], [0], attack=False, **arguments)
    assert found.status == ["unknown"]
    assert asking.certify(model, [[0.3, 0.4, 0.5]], [0], **arguments).status == ["falsified"]


@pytest.mark.parametrize("p", [1.0001, 1.001, 1.01])
def test_powers_near_1_do_not_vanish(p: float) -> None:
    found = asking.certify(linear([1.0, 0.3, 0.3], -0.2), [[0, 1, 1]], [0], norm=p, bounds=(0, 1))
    assert 1.2 < found.radius[0] < 1.34


def test_robust_means_the_whole_range() -> None:
    """The answer changes at 5000, inside the range but beyond the largest radius tried."""
    found = asking.certify(linear([1.0], 5000.0), [[0.0]], [0], bounds=(-1e6, 1e6))
    assert found.status == ["certified"]
    assert found.radius[0] <= 5000


def test_distances_of_counterexamples_do_not_underflow() -> None:
    found = asking.certify(linear([1.0, 1.0], -0.98), [[0.5, 0.5]], [0], norm=200)
    assert 0.0095 < found.radius[0] <= found.broken[0] < 0.0105


def test_axes_in_another_order_are_not_reshaped() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 2 * 3, 2))
    model = frown.load(net, torch.zeros(1, 3, 4, 5))
    with pytest.raises(InvalidInput, match="Transpose"):
        asking.certify(model, np.zeros((2, 4, 5, 3)), [0, 0])
    flat = asking.certify(model, np.ones((2, 60)), method="crown", attack=False)
    image = asking.certify(model, np.ones((2, 3, 4, 5)), method="crown", attack=False)
    assert flat.radius.tolist() == image.radius.tolist()
    assert "3, 4, 5" in repr(model)


def test_tensors_are_taken_whatever_tracks_them() -> None:
    x = torch.tensor([[0.3, 0.4]], requires_grad=True)
    model = linear([1.0, 1.0], 0.0)
    found = asking.certify(model, x, torch.tensor([0]), attack=False)
    assert (
        found.radius.tolist()
        == asking.certify(model, [[0.3, 0.4]], [0], attack=False).radius.tolist()
    )
    with pytest.raises(InvalidInput, match="real numbers"):
        asking.certify(model, np.array([[1j, 0]]), [0])


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((4, 4), r"reshape the data to \(N, 2, 8\)"),
        ((8, 2), "axes in another order"),
        ((17,), "a label among them"),
    ],
)
def test_inputs_of_another_shape_are_told_what_helps(shape: tuple[int, ...], remedy: str) -> None:
    with pytest.raises(InvalidInput, match=remedy):
        inputs_of(np.zeros((3, *shape)), (2, 8))


def test_arrays_of_features_with_their_axes_in_another_order_are_refused() -> None:
    """As many numbers are not enough: a region of other features would be certified."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 2))
    model = frown.load(module, torch.zeros(1, 2, 3))
    x, turned = np.full((1, 2, 3), 0.5), np.eye(3, 2)
    for given in ({"scale": turned}, {"bounds": (0 * turned, 0 * turned + 1)}):
        with pytest.raises(InvalidInput, match="does not fit"):
            asking.certify(model, x, attack=False, **given)
    with pytest.raises(InvalidInput, match="mean has shape"):
        model.normalised(turned, 1.0)
    flat = asking.certify(model, x, attack=False, method="crown", scale=turned.T.ravel())
    whole = asking.certify(model, x, attack=False, method="crown", scale=turned.T[None])
    assert flat.radius[0] == whole.radius[0] > 0
