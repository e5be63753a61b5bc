"""Linear forms and their way through a graph.

Backward: a form on a node's value becomes a form on the input, nonlinear nodes being
replaced by lines (appendix A.2). Forward: the point that minimises it goes through the
same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from frown.bounds.plan import Plan, RouteNode
from frown.graph.affine import Flat, Gather, Linear, Slice
from frown.relax.relaxation import Lines


@dataclass(frozen=True, slots=True)
class LinearForm:
    """coef . x + const at the network's input, or at another node where points start."""

    coef: Tensor  # (rows, *shape of the node)
    const: Tensor  # (rows,)


class Sided(Protocol):
    """The lines one pass uses at a nonlinear node, side chosen by the coefficient's sign."""

    @property
    def slope(self) -> Tensor: ...  # (rows, *input shape of the node)

    @property
    def intercept(self) -> Tensor: ...  # (rows, *output shape of the node)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Sided lines, and nothing else."""

    slope: Tensor
    intercept: Tensor


@dataclass(frozen=True, slots=True)
class Partial:
    """A form on its way: coefficients at nodes still to be passed, all before `stop`."""

    pending: dict[int, Tensor]
    const: Tensor  # (rows,)
    stop: int

    def at(self, values: dict[int, Tensor]) -> Tensor:
        """(rows,) the form's value where the nodes have these values."""
        total = self.const
        for i, coef in self.pending.items():
            terms = coef * values[i]
            total = total + (terms if terms.dim() == 2 else terms.flatten(1)).sum(1)
        return total


Through = Callable[[int, Tensor], tuple[Tensor | None, Tensor]]


class Account(Protocol):
    """An arithmetic's record of forms on their way down: it is told of all that rounds."""

    def affine(self, step: RouteNode, here: Tensor) -> None:
        """A form with these coefficients is pulled back through an affine operator."""

    def nonlinear(self, step: RouteNode, here: Tensor, below: Tensor) -> None:
        """A form passes a nonlinear operator; its coefficients there are `below`."""

    def added(self, node: int, both: Tensor) -> None:
        """Forms were added at a node; these are the sum's coefficients."""

    def constant(self, const: Tensor) -> None:
        """Something was added to the constants, which are these now."""


def begin(plan: Plan, target: int, coef: Tensor) -> Partial:
    """Pull coef . target back to the last nonlinearity; the part no choice of lines changes."""
    return descend(plan, target, Partial({target: coef}, coef.new_zeros(len(coef)), target), None)


def of_entries(plan: Plan, target: int, entry: Tensor, sign: Tensor) -> Partial:
    """Forms that are single entries of a target, times a sign: at a dense layer rows of its matrix,
    for which nothing has to be multiplied."""
    node = plan.graph.nodes[target]
    if isinstance(node.op, Linear | Flat):
        (source,) = node.inputs
        shape = plan.graph.nodes[source].shape
        if isinstance(node.op, Flat) or node.size == node.shape[-1]:
            rows = node.op.weight.index_select(0, entry).mul_(sign[:, None])
            const = node.op.bias.index_select(0, entry).mul_(sign)
            return Partial({source: rows.view(-1, *shape)}, const, source)
    coef = sign.new_zeros(len(entry), node.size)
    coef.scatter_(1, entry[:, None], sign[:, None])
    return Partial({target: coef.view(-1, *node.shape)}, sign.new_zeros(len(entry)), target)


def form_of(plan: Plan, end: Partial, first: int = 0) -> LinearForm:
    """The form at the node `first` that a descent has come to."""
    if first in end.pending:
        return LinearForm(end.pending[first], end.const)
    shape = plan.graph.nodes[first].shape
    return LinearForm(end.const.new_zeros(len(end.const), *shape), end.const)


def descend(
    plan: Plan,
    target: int,
    start: Partial,
    through: Through | None,
    constants: bool = True,
    first: int = 0,
    account: Account | None = None,
) -> Partial:
    """Pass nodes in reverse order, down to the input or, without `through`, to a nonlinearity.

    `through(node, coefficients of its output)` gives what the passage adds to the constant
    (rows,; None: nothing yet) and the coefficients of the node's input. Without `constants` none is
    kept. Forms end at the node `first`. An `account` is told of every operation that rounds.
    """
    if through is not None and not constants and plan.chain(target):
        return _straight_down(plan, target, start, through, first)
    const, pending = start.const, dict(start.pending)
    own: set[int] = set()  # nodes whose coefficients were made here, and nothing else holds
    # Operators whose `pull_back` makes a tensor of its own. Where entries are gathered twice,
    # several numbers are added up at once, which an account could not tell apart.
    laid_out = (Slice,) if account is not None else (Slice, Gather)
    for step in plan.route(target):
        if step.node > start.stop or step.node not in pending:
            continue
        if step.node <= first:
            break
        if through is None and step.affine is None:
            return Partial(pending, const, step.node)
        here = pending.pop(step.node)
        if step.affine is not None:
            source = step.inputs[0]
            if source in own and type(step.affine) in laid_out:
                step.affine.add_back(here, pending[source])
                if account is not None:
                    account.added(step.node, step.affine.apply(pending[source]))
                continue
            if account is not None:
                account.affine(step, here)
            shift = step.affine.shift(here) if constants else None
            if shift is not None:
                const = const + shift
                if account is not None:
                    account.constant(const)
            back = step.affine.pull_back(here)
            if type(step.affine) in laid_out and source not in pending:
                own.add(source)
        else:
            assert through is not None
            gain, below = through(step.node, here)
            if gain is not None:
                const = const + gain
                if account is not None:
                    account.constant(const)
            if account is not None:
                account.nonlinear(step, here, below)
            back = (below,)
        for j, part in zip(step.inputs, back, strict=True):
            if j in pending:
                pending[j] = pending[j] + part
                own.add(j)
                if account is not None:
                    account.added(j, pending[j])
            else:
                pending[j] = part
    return Partial(pending, const, 0)


def _straight_down(
    plan: Plan, target: int, start: Partial, through: Through, first: int
) -> Partial:
    """`descend` without constants where nodes are a chain: the hottest loop, in few words."""
    ((node, here),) = start.pending.items()
    for step in plan.route(target):
        if step.node > node:
            continue
        if step.node <= first:
            break
        if step.affine is None:
            here = through(step.node, here)[1]
        else:
            (here,) = step.affine.pull_back(here)
    return Partial({first: here}, start.const, first)


def form_along(
    plan: Plan, target: int, coef: Tensor | Partial, lines: dict[int, Lines], first: int = 0
) -> LinearForm:
    """The form at the node `first` that bounds coef . target below along these lines; in place of
    coef there may be forms on their way down."""

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        own, op = lines[i], plan.relaxation(i)
        slopes = own.slopes
        if own.lower.shape[0] == 1 < here.shape[0]:
            # c line = c upper + max(c, 0) (lower - upper), in fewer passes for shared lines
            positive = here.clamp(min=0)
            gain = here.flatten(1) @ own.upper.flatten()
            gain += positive.flatten(1) @ (own.lower - own.upper).flatten()
            back = op.expand(here) * slopes.upper
            return gain, back.addcmul_(op.expand(positive), slopes.lower - slopes.upper)
        # Halves of a form in place of masks: torch selects far more slowly than it multiplies.
        positive = here.relu()
        negative = here - positive
        gain = torch.addcmul(positive * own.lower, negative, own.upper)
        gain = (gain if gain.dim() == 2 else gain.flatten(1)).sum(1)
        back = op.expand(positive) * slopes.lower
        return gain, back.addcmul_(op.expand(negative), slopes.upper)

    start = coef
    if not isinstance(start, Partial):
        start = Partial({target: start}, start.new_zeros(len(start)), target)
    return form_of(plan, descend(plan, target, start, through, first=first), first)


def push_forward(
    plan: Plan,
    target: int,
    point: Tensor,
    lines: Mapping[int, Sided],
    see: Callable[[int, Tensor], None],
    first: int = 0,
) -> dict[int, Tensor]:
    """Send one point per row, the value of the node `first`, through the relaxed network up to
    the last of the lines.

    `see(node, z)` receives the value arriving at every nonlinear node. Returns the values of
    all nodes passed.
    """
    last = max(lines, default=0)
    values = {first: point}
    for step in reversed(plan.route(target)):
        i, op = step.node, step.relaxation
        if i <= first:
            continue
        if i > last:
            break
        if op is None:
            assert step.affine is not None
            values[i] = step.affine.apply(*[values[j] for j in step.inputs])
        elif i in lines:
            z, chosen = values[step.inputs[0]], lines[i]
            see(i, z)
            values[i] = op.along(chosen.slope, z, chosen.intercept)
        else:
            # No row reads this node: its value reaches the target with coefficient 0.
            values[i] = op.apply(values[step.inputs[0]])
    return values
