"""Handlers for operators of the domain ai.onnx.ml, as scikit-learn's pipelines have them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.graph import Operand, Unsupported, Value
from frown.read.arithmetic import absolute_sum, divide, euclidean_norm, multiply, subtract
from frown.read.attention import softmax
from frown.read.model import applied
from frown.read.onnx.call import Call, handles
from frown.relax import Sigmoid

DOMAIN = "ai.onnx.ml::"
_OTHERS = {"TreeEnsemble": "a tree ensemble", "SVM": "a support vector machine"}


def require_network(operator: str) -> None:
    """Raise Unsupported for operators that are models of another kind."""
    for name, kind in _OTHERS.items():
        if operator.startswith(DOMAIN + name):
            raise Unsupported(f"{kind}, which is not a neural network")


@handles("ai.onnx.ml::Scaler", attributes="offset scale")
def scaler(call: Call) -> Operand:
    """(x - offset) * scale, number by number or one for all."""
    x = call.value()
    offset, scale = (_per_feature(call, name, x) for name in ("offset", "scale"))
    # Two operators: their product would have to be rounded.
    return multiply(call.build, subtract(call.build, x, offset), scale)


@handles("ai.onnx.ml::Normalizer", attributes="norm")
def normalizer(call: Call) -> Operand:
    """x over its norm. Where boxes hold the zero vector, nothing is bounded."""
    x, norm = call.value(), call.text("norm", "MAX")
    norms = {"L1": absolute_sum, "L2": euclidean_norm}
    if norm not in norms or x.rank != 2:
        raise Unsupported(f"norm={norm} of an input of shape {x.shape}")
    y = divide(call.build, x, norms[norm](call.build, x, (1,), True))
    call.build.ordered[y.index] = x  # one positive number divides all
    return y


@handles(
    "ai.onnx.ml::LinearClassifier",
    attributes="classlabels_ints classlabels_strings coefficients intercepts multi_class "
    "post_transform",
)
def linear_classifier(call: Call) -> tuple[None, Operand]:
    """The scores of classes; the label, its first output, is what they stand for."""
    count = len(call.attributes.get("intercepts", ()))
    if count < 2:
        raise Unsupported(f"{count} intercepts; scores of two classes or more are read")
    x = _linear(call, count)
    match call.text("post_transform", "NONE"):
        case "NONE":
            return None, x
        case "LOGISTIC":
            return None, applied(call.build, Sigmoid(), x)
        case "SOFTMAX":
            return None, softmax(call.build, x, 1)
    raise call.refuse_attribute("post_transform")


@handles("ai.onnx.ml::LinearRegressor", attributes="coefficients intercepts post_transform targets")
def linear_regressor(call: Call) -> Operand:
    """Linear functions of the input."""
    if call.text("post_transform", "NONE") != "NONE":
        raise call.refuse_attribute("post_transform")
    return _linear(call, call.integer("targets", 1))


def _linear(call: Call, count: int) -> Value:
    """`count` linear functions, with the coefficients and intercepts of the attributes."""
    x = call.value()
    numbers = _numbers(call, "coefficients")
    if x.rank != 2 or numbers.size != count * x.shape[1]:
        raise Unsupported(f"{numbers.size} coefficients for an input of shape {x.shape}")
    intercepts = _numbers(call, "intercepts")
    if intercepts.size not in (0, count):
        raise Unsupported(f"{intercepts.size} intercepts for {count} functions")
    bias = torch.from_numpy(intercepts) if intercepts.size else None
    return call.build.linear(x, torch.from_numpy(numbers.reshape(count, -1)), bias)


def _numbers(call: Call, name: str) -> NDArray[np.float32]:
    found = np.asarray(call.attributes.get(name, ()), dtype=np.float32)
    if not np.isfinite(found).all():
        raise Unsupported(f"{name} that are not finite")
    return found


def _per_feature(call: Call, name: str, x: Value) -> Tensor:
    found = _numbers(call, name)
    if x.rank != 2 or found.size not in (1, x.shape[1]):
        raise Unsupported(f"{name} of {found.size} numbers for an input of shape {x.shape}")
    return torch.from_numpy(found.reshape(1, -1))
