"""Linear forms and their way through a graph.

Backward: a form on a node's value becomes a form on the input, nonlinear nodes being
replaced by lines (appendix A.2). Forward: the point that minimises it goes through the
same lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.engines.plan import Plan
from frown.graph.graph import Input
from frown.graph.op import Affine
from frown.graph.selection import Gather, Slice


@dataclass(frozen=True, slots=True)
class LinearForm:
    """coef . x + const at the network's input, one per row."""

    coef: Tensor  # (rows, *input shape)
    const: Tensor  # (rows,)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The lines one pass used at a nonlinear node, side chosen by the coefficient's sign."""

    slope: Tensor  # (rows, *input shape of the node)
    intercept: Tensor  # (rows, *output shape of the node)


Choose = Callable[[int, Tensor], Chosen]


@dataclass(frozen=True, slots=True)
class Partial:
    """A form on its way: coefficients at nodes still to be passed, all before `stop`."""

    pending: dict[int, Tensor]
    const: Tensor  # (rows,)
    stop: int


_LAID_OUT = (Slice, Gather)  # whose `pull_back` makes a tensor of its own

Through = Callable[[int, Tensor], tuple[Tensor, Tensor]]


def begin(plan: Plan, target: int, coef: Tensor) -> Partial:
    """Pull coef . target back to the last nonlinearity; the part no choice of lines changes."""
    return descend(plan, target, Partial({target: coef}, coef.new_zeros(len(coef)), target), None)


def finish(plan: Plan, target: int, start: Partial, choose: Choose) -> LinearForm:
    """Pull a form back to the input.

    `choose(node, coefficients of its output)` gives the lines there; coefficients >= 0
    take a line below, others one above.
    """

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        lines = choose(i, here)
        gain = (here * lines.intercept).flatten(1).sum(1)
        return gain, plan.relaxation(i).expand(here) * lines.slope

    return form_of(plan, descend(plan, target, start, through))


def pull_back(plan: Plan, target: int, coef: Tensor, choose: Choose) -> LinearForm:
    """Bound coef . target below by a form at the input, with the lines that `choose` gives."""
    return finish(plan, target, begin(plan, target, coef), choose)


def form_of(plan: Plan, end: Partial) -> LinearForm:
    """A form that has come all the way down."""
    if 0 in end.pending:
        return LinearForm(end.pending[0], end.const)
    return LinearForm(end.const.new_zeros(len(end.const), *plan.graph.input_shape), end.const)


def descend(plan: Plan, target: int, start: Partial, through: Through | None) -> Partial:
    """Pass nodes in reverse order, down to the input or, without `through`, to a nonlinearity.

    `through(node, coefficients of its output)` gives what the passage adds to the constant
    (rows,) and the coefficients of the node's input.
    """
    const, pending = start.const, dict(start.pending)
    own: set[int] = set()  # nodes whose coefficients were made here, and nothing else holds
    for step in plan.route(target):
        if step.node > start.stop or step.node not in pending:
            continue
        if step.affine is not None:
            here = pending.pop(step.node)
            shift = step.affine.shift(here)
            if shift is not None:
                const = const + shift
            first = step.inputs[0]
            if first in own and step.affine.add_back(here, pending[first]):
                continue
            back = step.affine.pull_back(here)
            if type(step.affine) in _LAID_OUT and first not in pending:
                own.add(first)
        elif through is None:
            return Partial(pending, const, step.node)
        else:
            gain, below = through(step.node, pending.pop(step.node))
            const = const + gain
            back = (below,)
        for j, part in zip(step.inputs, back, strict=True):
            if j in pending:
                pending[j] = pending[j] + part
                own.add(j)
            else:
                pending[j] = part
    return Partial(pending, const, 0)


def push_forward(
    plan: Plan,
    target: int,
    point: Tensor,
    lines: dict[int, Chosen],
    see: Callable[[int, Tensor], None],
) -> None:
    """Send one input point per row through the relaxed network up to `target`.

    `see(node, z)` receives the value arriving at every nonlinear node.
    """
    graph = plan.graph
    last = max(lines, default=0)
    values: dict[int, Tensor] = {}
    for i in plan.ancestors(target):
        if i > last:
            return
        node = graph.nodes[i]
        if isinstance(node.op, Input):
            values[i] = point
        elif isinstance(node.op, Affine):
            values[i] = node.op.apply(*(values[j] for j in node.inputs))
        elif i in lines:
            z = values[node.inputs[0]]
            see(i, z)
            chosen = lines[i]
            values[i] = plan.relaxation(i).along(chosen.slope, z, chosen.intercept)
        else:
            # No row reads this node: its value reaches the target with coefficient 0.
            values[i] = node.op.apply(*(values[j] for j in node.inputs))


def one_hot(index: Tensor, sign: Tensor, size: int, shape: tuple[int, ...]) -> Tensor:
    """Rows that pick single entries of a node: sign at index, 0 elsewhere."""
    coef = torch.zeros(len(index), size, dtype=sign.dtype, device=sign.device)
    coef.scatter_(1, index[:, None], sign[:, None])
    return coef.view(-1, *shape)
