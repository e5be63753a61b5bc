"""Whatever a caller has set of torch and numpy, answers are the same, and what is no model is
said to be none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import asking
import frown
from frown.errors import InvalidInput
from onnx_models import model, node, saved, weights


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


SURROUNDINGS = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "errstate": lambda: np.errstate(all="raise"),
    "warnings": warnings_as_errors,
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return torch.nn.Sequential(*layers).eval()


@pytest.mark.parametrize("name", SURROUNDINGS)
@pytest.mark.parametrize("method", ["crown", "frown"])
def test_answers_do_not_depend_on_the_surroundings(name: str, method: str) -> None:
    module, example = network(), torch.zeros(1, 4)
    x = np.random.default_rng(0).random((2, 4))

    def answers() -> tuple[np.ndarray, ...]:
        loaded = frown.load(module, example)
        one = asking.sensitivity(loaded, x, frame_axis=0, method=method)
        there = asking.bound(loaded, x, 0.1, method=method)
        radius = asking.certify(loaded, x, method=method).radius
        return radius, np.array([row.radius for row in one.rows]), there.lower, there.upper

    expected = answers()
    with SURROUNDINGS[name]():
        found = answers()
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)


def test_the_surroundings_are_as_they_were() -> None:
    with default_dtype(torch.float64), torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(InvalidInput):
            frown.load(network())
        assert torch.get_default_dtype() == torch.float64
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    "call", [frown.certify, frown.sensitivity, lambda m, x: asking.bound(m, x, 1)]
)
@pytest.mark.parametrize("wrong", [network(), None, 3])
def test_what_is_no_model_is_said_to_be_none(call: object, wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"frown\.load"):
        call(wrong, np.zeros((1, 4)))  # type: ignore[operator]


def test_a_path_is_loaded() -> None:
    path = f"{frown.__path__[0]}/jobs/assets/digits.onnx"
    loaded = frown.load(path)
    x = np.full((1, *loaded.input_shape), 0.5)
    found, expected = (asking.bound(m, x, 0.01) for m in (path, loaded))
    np.testing.assert_array_equal(found.lower, expected.lower)


def test_a_network_without_a_batch_axis_is_bounded(tmp_path: Path) -> None:
    """Vectors throughout, down to one number: an offset is folded into the matrix before it."""
    constants = {"a": weights(2, 1), "b": weights(2), "c": weights(1, 2, seed=1), "d": weights(1)}
    nodes = [
        node("MatMul", "a x", "h"),
        node("Add", "h b", "s"),
        node("Relu", "s", "r"),
        node("MatMul", "c r", "t"),
        node("Add", "t d", "y"),
    ]
    loaded = frown.load(saved(model(nodes, [1], constants), tmp_path))
    for method in ("interval", "crown", "frown"):
        found = asking.bound(loaded, np.zeros((1, 1)), 0.1, method=method)
        assert found.lower.shape == (1, 1)
        for x in np.linspace(-0.1, 0.1, 5):
            value = loaded.run(np.full((1, 1), x)).ravel()[0]
            assert found.lower[0, 0] - 1e-6 <= value <= found.upper[0, 0] + 1e-6


@pytest.mark.parametrize(
    "wrong",
    [
        np.ma.masked_array(np.ones((1, 4)), mask=[[0, 1, 0, 0]]),
        torch.nested.nested_tensor([torch.zeros(4)]),
        torch.zeros(1, 4, device="meta"),
        [[10**400, 1, 1, 1]],
        np.zeros((1, 4), "V8"),
    ],
    ids=["masked", "nested", "meta", "huge", "void"],
)
def test_what_is_no_array_of_numbers_is_refused(wrong: object) -> None:
    loaded = frown.load(network(), torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match="not an array of real numbers"):
        asking.certify(loaded, wrong)  # type: ignore[arg-type]


def test_arrays_of_any_layout_are_read() -> None:
    loaded = frown.load(network(), torch.zeros(1, 4))
    x = np.array([[0.5, 0.25, 0.125, 1.0], [0.0, 0.5, 0.75, -1.0]])
    still = x.copy()
    still.flags.writeable = False
    tensor = torch.tensor(x, requires_grad=True)
    expected = asking.certify(loaded, x, method="crown", attack=False).radius
    for other in (
        np.asfortranarray(x),
        x.astype(">f8"),
        x.astype(object),
        np.repeat(x, 2, 1)[:, ::2],
        np.ma.masked_array(x, mask=False),
        still,
        tensor,
        tensor.bfloat16(),
        tensor.detach().to_sparse(),
        torch._neg_view(-tensor.detach()),
    ):
        found = asking.certify(loaded, other, method="crown", attack=False).radius
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "option",
    [
        {"dtype": []},
        {"device": None},
        {"device": "meta"},
        {"attack": "a"},
        {"certificates": 3},
        {"watch": 3},
        {"time_limit": "5"},
        {"group": 1.5},
    ],
    ids=str,
)
def test_options_of_another_kind_are_refused(option: dict[str, object]) -> None:
    loaded = frown.load(network(), torch.zeros(1, 4))
    (name,) = option
    with pytest.raises(InvalidInput, match=name.replace("_", ".")):
        asking.certify(loaded, np.ones((1, 4)), **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("coef", ["a", {}, object(), [[1, 2, 3], [1]], [[1j, 0, 0]]])
def test_functions_that_are_none_are_refused(coef: object) -> None:
    loaded = frown.load(network(), torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match="coef"):
        asking.bound(loaded, np.ones((1, 4)), 0.1, coef=coef)  # type: ignore[arg-type]
