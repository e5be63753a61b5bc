"""Bounds at one radius, with everything an expert may want to see of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.forms import LinearForm, Partial, descend, form_along, form_of
from frown.bounds.method import Bounds, Method
from frown.bounds.patches import shared
from frown.bounds.plan import Plan
from frown.bounds.proof import Request
from frown.bounds.rows import Rows, unstable
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.problem.property import conjunction
from frown.problem.region import Region

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NeuronBounds:
    """lower <= value <= upper, one entry per neuron: (N, *shape)."""

    lower: Array
    upper: Array


@dataclass(frozen=True, slots=True)
class LinePair:
    """The fixed rule's lines at a layer: slope z + intercept below and above each neuron."""

    lower_slope: Array
    lower_intercept: Array
    upper_slope: Array
    upper_intercept: Array


@dataclass(frozen=True, slots=True)
class Form:
    """coef . x + const, one per input and function: a bound at every x of the region."""

    coef: Array  # (N, K, *input shape)
    const: Array  # (N, K)


@dataclass(frozen=True, slots=True)
class NeuronRows:
    """The rows that bounded the neurons of one layer.

    Row r bounds sign[r] * neuron[r] of input sample[r] below by bound[r], with slopes[name][r] at
    each earlier layer.
    """

    sample: NDArray[np.int64]
    neuron: NDArray[np.int64]
    sign: Array
    bound: Array
    slopes: dict[str, Array]


@dataclass(frozen=True)
class Bounded:
    """Bounds of linear functions of the outputs over a region, in plain floating point.

    `layers` holds the interval of every nonlinear node's input by the node's name, and
    `lines` the fixed rule's lines there. `lower_form(x) <= function <= upper_form(x)` for
    every x of the region (None for plain intervals). `slopes` are those
    of the rows that gave the lower bounds, per earlier layer (N, K, *shape).
    """

    lower: Array  # (N, K)
    upper: Array
    layers: dict[str, NeuronBounds]
    lines: dict[str, LinePair]
    lower_form: Form | None
    upper_form: Form | None
    slopes: dict[str, Array]
    remark: str  # what else a reader must know, as of a solver that gave up
    _inside: _Inside = field(repr=False)

    def __repr__(self) -> str:
        count, functions = self.lower.shape
        return (
            f"<Bounded: {functions} functions over {count} regions, "
            f"{float(self.lower.min()):.4g} to {float(self.upper.max()):.4g}, "
            f"{len(self.layers)} layers>"
        )

    def neuron_rows(self, layer: str) -> NeuronRows:
        """The rows behind a layer's interval, along the slopes that the method chose for them."""
        return self._inside.neuron_rows(layer)


def bounded(
    plan: Plan, region: Region, coef: Tensor, method: Method, shape: tuple[int, ...], work: Work
) -> Bounded:
    """Bound coef (K, outputs) . outputs over each ball of the region.

    `shape` is that of an input as the user sees it; arrays drop the model's own batch axis
    alike.
    """
    count, functions = len(region.radius), len(coef)
    both = torch.cat([coef, -coef])
    state = method.start(count)
    property = conjunction(both.expand(count, -1, -1))
    found = method.bound(plan, region, property, state, work=work)
    inside = _Inside(plan, region, found, shape)
    lower_form = upper_form = None
    slopes: dict[str, Array] = {}
    if found.proof.rule is not None:
        form, slopes = inside.output_form(both)
        lower_form = Form(_numpy(form.coef[:, :functions]), _numpy(form.const[:, :functions]))
        upper_form = Form(_numpy(-form.coef[:, functions:]), _numpy(-form.const[:, functions:]))
        slopes = {name: s[:, :functions] for name, s in slopes.items()}
    return Bounded(
        _numpy(found.literals[:, :functions]),
        _numpy(-found.literals[:, functions:]),
        inside.intervals(),
        inside.line_pairs(),
        lower_form,
        upper_form,
        slopes,
        "; ".join(dict.fromkeys(found.remarks.values())),
        inside,
    )


@dataclass(frozen=True)
class _Inside:
    """The bounds that a method returned, looked up by the names of layers."""

    plan: Plan
    region: Region
    found: Bounds
    shape: tuple[int, ...]  # of one input

    def tidy(self, t: Tensor) -> Array:
        """(rows, ...) without the model's own batch axis of 1."""
        inner = len(self.plan.graph.input_shape) - len(self.shape)
        return _numpy(t.squeeze(1) if inner and t.dim() > 2 and t.shape[1] == 1 else t)

    def name(self, node: int) -> str:
        """The node's own name, made unique by its number where nodes share one."""
        names = [self.plan.graph.nodes[i].name for i in self.plan.nonlinear]
        own = self.plan.graph.nodes[node].name
        return own if names.count(own) == 1 else f"{own}#{node}"

    def node(self, name: str) -> int:
        known = {self.name(i): i for i in self.plan.nonlinear}
        if name not in known:
            raise InvalidInput(f"no layer {name!r}; there are {', '.join(known)}")
        return known[name]

    def intervals(self) -> dict[str, NeuronBounds]:
        result = {}
        for i in self.plan.nonlinear:
            box = self.plan.carry(i, self.found.layers.values[self.plan.sources[i]])
            result[self.name(i)] = NeuronBounds(self.tidy(box.lower), self.tidy(box.upper))
        return result

    def line_pairs(self) -> dict[str, LinePair]:
        return {
            self.name(i): LinePair(
                self.tidy(relaxed.lines.slopes.lower),
                self.tidy(relaxed.lines.lower),
                self.tidy(relaxed.lines.slopes.upper),
                self.tidy(relaxed.lines.upper),
            )
            for i, relaxed in self.found.layers.relaxed.items()
        }

    def output_form(self, coef: Tensor) -> tuple[LinearForm, dict[str, Array]]:
        """The functions' forms (N, T, *input shape) and the slopes behind them."""
        target, count, functions = self.plan.graph.output, len(self.region.radius), len(coef)
        rows = coef.repeat(count, 1).view(-1, *self.plan.graph.nodes[target].shape)
        which = Rows.literals(count, functions, coef.device)
        form, slopes = self._along(target, rows, which)
        folded = LinearForm(
            form.coef.reshape(count, functions, *self.shape), form.const.view(count, functions)
        )
        return folded, {
            self.name(i): self.tidy(s).reshape(count, functions, *self.tidy(s).shape[1:])
            for i, s in slopes.items()
        }

    def neuron_rows(self, layer: str) -> NeuronRows:
        """Both sides of every neuron of a layer that has a row, along its own slopes."""
        source = self.plan.sources[self.node(layer)]
        box = self.found.layers.values[source]
        sample, neuron = unstable(self.plan, source, box)
        if not len(sample) or not self.plan.below(source) or self.found.proof.rule is None:
            raise InvalidInput(f"layer {layer!r} has no rows: its bounds are exact, or intervals")
        rows, target = Rows.both(sample, neuron), self.plan.graph.nodes[source]
        coef = rows.coef(target.size, target.shape, box.lower.dtype)
        form, slopes = self._along(source, coef, rows)
        bound = self.region.rows(rows.sample).minimise(form.coef).value + form.const
        return NeuronRows(
            rows.sample.cpu().numpy(),
            rows.neuron.cpu().numpy(),
            _numpy(rows.sign(coef.dtype)),
            _numpy(bound),
            {self.name(i): self.tidy(s) for i, s in slopes.items()},
        )

    def _along(self, target: int, coef: Tensor, rows: Rows) -> tuple[LinearForm, dict[int, Tensor]]:
        """Rows' forms at the input along the method's slopes, and these slopes."""
        relaxed = self.found.layers.relaxed
        request = Request(target, coef, rows, self.region, relaxed)
        choice = self.found.proof.choose(self.plan, request)
        own = {i: relaxed[i].rows(shared(rows.sample)) for i in self.plan.below(target)}
        if choice is None:
            return form_along(self.plan, target, coef, {i: f.lines for i, f in own.items()}), {}
        slopes: dict[int, Tensor] = {}

        def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
            relaxed, op, under = own[i], own[i].op, here >= 0
            usual = torch.where(
                op.expand(under), relaxed.lines.slopes.lower, relaxed.lines.slopes.upper
            )
            slope = choice.slope(i, here).to(here)
            slopes[i] = slope = torch.where(slope.isnan(), usual, slope)
            intercept = op.line(slope, under, relaxed.anchors).intercept
            gain, below = (here * intercept).flatten(1).sum(1), op.expand(here) * slope
            m = None if choice.multiplier is None else choice.multiplier(i)
            if m is None:
                return gain, below
            m, box = m.to(here), relaxed.box
            return gain - (m * box.lower).maximum(m * box.upper).flatten(1).sum(1), below + m

        start = Partial({target: coef}, coef.new_zeros(len(coef)), target)
        return form_of(self.plan, descend(self.plan, target, start, through)), slopes


def _numpy(t: Tensor) -> Array:
    return t.detach().cpu().double().numpy()
