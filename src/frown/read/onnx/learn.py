"""Handlers for operators of the domain ai.onnx.ml, as scikit-learn's pipelines have them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from frown.graph import Operand, Unsupported, Value
from frown.read.arithmetic import multiply, subtract
from frown.read.onnx.call import Call, handles


@handles("ai.onnx.ml::Scaler", attributes="offset scale")
def scaler(call: Call) -> Operand:
    """(x - offset) * scale, number by number or one for all."""
    x = call.value()
    offset, scale = (_per_feature(call, name, x) for name in ("offset", "scale"))
    # Two operators: their product would have to be rounded.
    return multiply(call.build, subtract(call.build, x, offset), scale)


def _per_feature(call: Call, name: str, x: Value) -> Tensor:
    found = np.asarray(call.attributes.get(name, ()), dtype=np.float32)
    if x.rank != 2 or found.size not in (1, x.shape[1]) or not np.isfinite(found).all():
        raise Unsupported(f"{name} of {found.size} numbers for an input of shape {x.shape}")
    return torch.from_numpy(found.reshape(1, -1))
