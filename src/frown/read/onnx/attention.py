"""ONNX softmax, normalisation by computed statistics, norms and Einstein's sums."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from frown.graph import Operand, Unsupported, Value
from frown.read import attention, matrices
from frown.read.onnx.call import Call, axis_of, handles


@handles("Softmax", "LogSoftmax", attributes="axis")
def softmax(call: Call) -> Operand:
    x, build = call.value(), call.build
    function = attention.softmax if call.op == "Softmax" else attention.log_softmax
    if call.opset >= 13:
        return function(build, x, axis_of(call.integer("axis", -1), x.rank))
    # All axes from the given one on were one.
    axis = axis_of(call.integer("axis", 1), x.rank)
    y = function(build, build.reshape(x, (*x.shape[:axis], prod(x.shape[axis:]))), axis)
    return build.reshape(y, x.shape) if isinstance(y, Value) else y.reshape(x.shape)


@handles("LayerNormalization", attributes="axis epsilon stash_type")
def layer_normalization(call: Call) -> Operand:
    x = call.value()
    axis = axis_of(call.integer("axis", -1), x.rank)
    bias = call.operand(2) if call.has(2) else None
    eps = call.number("epsilon", 1e-5)
    return attention.layer_norm(call.build, x, axis, call.operand(1), bias, eps)


@handles("InstanceNormalization", attributes="epsilon")
def instance_normalization(call: Call) -> Value:
    x = call.value()
    weight, bias = call.constant(1, "scale"), call.constant(2, "a bias")
    eps = call.number("epsilon", 1e-5)
    return attention.group_norm(call.build, x, x.shape[1], weight, bias, eps)


@handles("GroupNormalization", attributes="epsilon num_groups stash_type")
def group_normalization(call: Call) -> Value:
    x, groups = call.value(), call.integer("num_groups", 1)
    if x.rank < 2 or groups < 1 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups for an input of shape {x.shape}")

    def per_channel(index: int, what: str) -> Tensor:
        # Up to opset 20 one number per group.
        given = call.constant(index, what)
        return given.repeat_interleave(x.shape[1] // groups) if call.opset < 21 else given

    weight, bias = per_channel(1, "scale"), per_channel(2, "a bias")
    eps = call.number("epsilon", 1e-5)
    return attention.group_norm(call.build, x, groups, weight, bias, eps)


@handles("Einsum", attributes="equation")
def einsum(call: Call) -> Operand:
    operands = tuple(
        x if isinstance(x, Value) else x.to(torch.float64)
        for x in (call.operand(i) for i in range(len(call.inputs)))
    )
    return matrices.einsum(call.build, call.text("equation", ""), operands)
