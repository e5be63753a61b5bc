"""The end of a file, where it keeps the order of the outputs.

A claim compares outputs: output[label] > output[o]. Let every one of the last operators give entry
i of its result, in C order, as h(entry i of what it reads), with one strictly increasing h for all
i: the identity (entries stay in their places), an increasing function or, over all entries at
once, softmax (e^z / S) and log-softmax (z - log S), whose S > 0 depends on the input and is the
same for all i. Then output a exceeds output b exactly where entry a exceeds entry b of what the
first of these operators reads. None of them is a site: the claim is proved of what they read.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from frown_check.model.calls import Call, OnnxNode, Value, operator

IN_PLACE = ("Identity", "Dropout", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
INCREASING = ("Atan", "Exp", "Sigmoid", "Softplus", "Tanh")
SHARES = ("Softmax", "LogSoftmax")


def ending(nodes: list[OnnxNode], output: str) -> list[OnnxNode]:
    """The nodes, with those marked that compute the output and keep its order."""
    makers = {name: node for node in nodes for name in node.outputs[:1]}
    last: set[str] = set()
    while output in makers and makers[output].op in IN_PLACE + INCREASING + SHARES:
        last.add(output)
        output = makers[output].inputs[0]
    return [replace(node, last=node.outputs[0] in last) for node in nodes]


@operator(*SHARES, attributes="axis")
def shares(call: Call) -> Value:
    """The scores themselves, at the end of a file."""
    call.refuse_if(not call.node.last, "a place where more than the order of its results counts")
    x, old = call.view(), call.opset < 13  # which takes all axes from `axis` on for one
    axis = call.axis(call.attribute("axis", 1 if old else -1), len(x.shape))
    count = prod(x.shape[axis:]) if old else x.shape[axis]
    call.refuse_if(count != x.index.size, f"shares of {count} outputs among {x.index.size}")
    return x
