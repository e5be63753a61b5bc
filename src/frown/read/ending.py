"""A network's scores: its outputs before a last function that keeps their order.

Softmax and log-softmax over all outputs divide e^x by one number, and its logarithm shifts all
alike; a strictly increasing function of each output does not change which is larger either. So
output a exceeds output b, over the real numbers, exactly where score a exceeds score b, and
scores are bounded more tightly.
"""

from __future__ import annotations

from frown.graph import Builder, Graph, Op, Reshape, Value
from frown.relax import Arctan, Exp, Sigmoid, Softplus, Tanh

INCREASING = (Arctan, Exp, Sigmoid, Softplus, Tanh)


def applied(build: Builder, op: Op, x: Value) -> Value:
    """Apply a function to every entry, as an operator of its own in the model.

    Functions inside of other operators are not looked for; the checker of certificates does not,
    either.
    """
    y = build.add(op, x)
    if isinstance(op, INCREASING):
        build.ordered[y.index] = x
    return y


def finished(build: Builder, output: Value) -> tuple[Graph, Graph | None]:
    """The graph of the outputs, and that of the scores where a last function keeps their order."""
    at, before = output.index, None
    while at > 0:
        node = build.nodes[at]
        if at in build.ordered:
            at = before = build.ordered[at].index
        elif isinstance(node.op, Reshape):
            (at,) = node.inputs
        else:
            break
    scores = None
    if before is not None:
        kept = Builder(nodes=build.nodes[: before + 1], pool=build.pool)
        scores = kept.graph(Value(before, build.nodes[before].shape))
    return build.graph(output), scores
