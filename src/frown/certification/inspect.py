"""Bounds at one radius, with everything an expert may want to see of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.backward import Layers, fixed_form, fixed_layers, fixed_margins, walk
from frown.bounds.forms import LinearForm, one_hot
from frown.bounds.plan import Plan
from frown.bounds.settings import Settings
from frown.bounds.tiling import Parts, parts
from frown.errors import InvalidInput
from frown.graph.box import Box
from frown.methods.frown.ascent import replay
from frown.methods.frown.network import Warm, frown, gather_rows
from frown.methods.lp.bounds import Tally, Workers, lp
from frown.problem.region import Region
from frown.problem.spec import Spec
from frown.relax.relaxation import Frame

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
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
    """How the neurons of one layer were bounded: row r bounds sign[r] * neuron[r] of
    input sample[r] below by bound[r], with slopes[name][r] at each earlier layer."""

    sample: NDArray[np.int64]
    neuron: NDArray[np.int64]
    sign: Array
    bound: Array
    slopes: dict[str, Array]


@dataclass(frozen=True)
class Bounded:
    """Bounds of linear functions of the outputs over a region.

    `layers` holds the interval of every nonlinear node's input by the node's name, and
    `lines` the fixed rule's lines there. `lower_form(x) <= function <= upper_form(x)` for
    every x of the region (None for plain intervals and linear programs). `slopes` are those
    of the rows that gave the lower bounds, per earlier layer (N, K, *shape).
    """

    lower: Array  # (N, K)
    upper: Array
    layers: dict[str, Interval]
    lines: dict[str, LinePair]
    lower_form: Form | None
    upper_form: Form | None
    slopes: dict[str, Array]
    remark: str  # what else a reader must know, as of a solver that gave up
    _work: _Work = field(repr=False)

    def neuron_rows(self, layer: str) -> NeuronRows:
        """The optimised rows behind a layer's interval (method frown)."""
        return self._work.neuron_rows(layer)


def bounded(
    plan: Plan,
    region: Region,
    coef: Tensor,
    settings: Settings,
    shape: tuple[int, ...],
    crew: Workers,
) -> Bounded:
    """Bound coef (K, outputs) . outputs over each ball of the region.

    `shape` is that of an input as the user sees it; arrays drop the model's own batch axis
    alike.
    """
    count, functions = len(region.radius), len(coef)
    both = Spec(torch.cat([coef, -coef]).expand(count, -1, -1))
    warm, remark = Warm(count), ""
    if settings.method == "frown":
        every = torch.arange(count, device=coef.device)
        found = frown(plan, region, both, settings, warm, every)
        layers, least = found.layers, found.margins
    elif settings.method == "lp":
        layers, least, remark = _programmed(plan, region, both, settings, crew)
    elif settings.method == "milp":
        raise InvalidInput("method milp finds distances, not bounds at a radius; use certify")
    else:
        layers = fixed_layers(plan, region, settings)
        least = fixed_margins(plan, region, both, layers, settings)
    work = _Work(plan, region, settings, layers, warm, shape)
    lower_form = upper_form = None
    slopes: dict[str, Array] = {}
    if settings.method not in ("interval", "lp"):
        form, slopes = work.output_form(both)
        below = LinearForm(form.coef[:, :functions], form.const[:, :functions])
        lower_form = Form(_numpy(below.coef), _numpy(below.const))
        upper_form = Form(_numpy(-form.coef[:, functions:]), _numpy(-form.const[:, functions:]))
        slopes = {name: s[:, :functions] for name, s in slopes.items()}
    return Bounded(
        _numpy(least[:, :functions]),
        _numpy(-least[:, functions:]),
        work.intervals(),
        work.line_pairs(),
        lower_form,
        upper_form,
        slopes,
        remark,
        work,
    )


def _programmed(
    plan: Plan, region: Region, spec: Spec, settings: Settings, crew: Workers
) -> tuple[Layers, Tensor, str]:
    """Linear programs sample by sample, their layers put together, and what to say of them."""
    found = []
    for n in range(len(region.radius)):
        one = slice(n, n + 1)
        found.append(lp(plan, region.rows(one), spec.rows(one), settings, crew))

    def together(source: int, box: Box, frames: dict[int, Frame]) -> Box:
        boxes = [f.layers.values[source] for f in found]
        return Box(torch.cat([b.lower for b in boxes]), torch.cat([b.upper for b in boxes]))

    layers = walk(plan, region, together, settings)
    tally = sum((f.tally for f in found), Tally())
    remark = tally.remark() if tally.unsolved else ""
    return layers, torch.cat([f.margins for f in found]), remark


@dataclass(frozen=True)
class _Work:
    """What the engines left behind, to look things up in."""

    plan: Plan
    region: Region
    settings: Settings
    layers: Layers
    warm: Warm
    shape: tuple[int, ...]  # of one input

    def tidy(self, t: Tensor) -> Array:
        """(rows, ...) without the model's own batch axis of 1."""
        inner = len(self.plan.graph.input_shape) - len(self.shape)
        return _numpy(t.squeeze(1) if inner and t.dim() > 2 and t.shape[1] == 1 else t)

    def name(self, node: int) -> str:
        """The node's own name, made unique by its number where nodes share one."""
        names = [self.plan.graph.nodes[i].name for i in self.plan.relaxed]
        own = self.plan.graph.nodes[node].name
        return own if names.count(own) == 1 else f"{own}#{node}"

    def node(self, name: str) -> int:
        known = {self.name(i): i for i in self.plan.relaxed}
        if name not in known:
            raise InvalidInput(f"no layer {name!r}; there are {', '.join(known)}")
        return known[name]

    def intervals(self) -> dict[str, Interval]:
        result = {}
        for i in self.plan.relaxed:
            box = self.plan.carry(i, self.layers.values[self.plan.sources[i]])
            result[self.name(i)] = Interval(self.tidy(box.lower), self.tidy(box.upper))
        return result

    def line_pairs(self) -> dict[str, LinePair]:
        return {
            self.name(i): LinePair(
                self.tidy(frame.lines.slopes.lower),
                self.tidy(frame.lines.lower),
                self.tidy(frame.lines.slopes.upper),
                self.tidy(frame.lines.upper),
            )
            for i, frame in self.layers.frames.items()
        }

    def output_form(self, spec: Spec) -> tuple[LinearForm, dict[str, Array]]:
        """The conditions' forms (N, T, *input shape) and the slopes behind them."""
        plan, target = self.plan, self.plan.graph.output
        count, conditions = spec.shape
        coef = spec.coef.reshape(count * conditions, *plan.graph.nodes[target].shape)
        row = torch.arange(count * conditions, device=coef.device)
        wide = self.settings.wide
        (part,) = parts(plan, target, 0).parts
        sample, place, frames = row // conditions, torch.zeros_like(row), self.layers.frames
        if self.settings.method == "frown" and (target, 0) in self.warm.theta:
            rows, keys = gather_rows(
                part, self.region, coef, sample, place, row, frames, False, wide
            )
            form, lines = replay(plan, rows, self.warm.theta[target, 0][keys])
            slopes = {i: c.slope for i, c in lines.items()}
        else:
            form = fixed_form(plan, target, coef, part.lines(frames, sample, place))
            slopes = {}
        folded = LinearForm(
            form.coef.reshape(count, conditions, *self.shape), form.const.view(count, conditions)
        )
        return folded, {
            self.name(i): self.tidy(s).reshape(count, conditions, *self.tidy(s).shape[1:])
            for i, s in slopes.items()
        }

    def neuron_rows(self, layer: str) -> NeuronRows:
        node = self.node(layer)
        source = self.plan.sources[node]
        if not any(target == source for target, _ in self.warm.theta):
            raise InvalidInput(
                f"layer {layer!r} has no optimised rows: its bounds are exact, or the method is "
                f"{self.settings.method}"
            )
        split = parts(self.plan, source, self.settings.group)
        found = [
            self._part_rows(source, k, split)
            for k in range(len(split.parts))
            if (source, k) in self.warm.theta
        ]
        return NeuronRows(
            np.concatenate([f.sample for f in found]),
            np.concatenate([f.neuron for f in found]),
            np.concatenate([f.sign for f in found]),
            np.concatenate([f.bound for f in found]),
            {name: np.concatenate([f.slopes[name] for f in found]) for name in found[0].slopes},
        )

    def _part_rows(self, source: int, number: int, split: Parts) -> NeuronRows:
        """The rows of one part of a layer, replayed in the whole network."""
        part, blocks = split.parts[number], split.blocks[number]
        table = self.warm.theta[source, number]  # (N * 2 * blocks, lanes, slots)
        block = split.block[part.neurons.flatten()]
        tried = ~torch.isnan(table).flatten(1).any(1).view(-1, 2 * blocks)
        first, second = (tried[:, side * blocks + block].nonzero() for side in (0, 1))
        pairs = torch.cat([first, second])  # (rows, 2): sample, place and entry
        sample, which = pairs[:, 0], pairs[:, 1]
        side = torch.cat([torch.zeros_like(first[:, 0]), torch.ones_like(second[:, 0])])
        key = sample * (2 * blocks) + side * blocks + block[which]
        order = torch.argsort(key, stable=True)
        sample, which, side, key = (t[order] for t in (sample, which, side, key))
        sign = 1.0 - 2.0 * side.to(table.dtype)
        neuron = part.neurons.flatten()[which]
        target = self.plan.graph.nodes[source]
        coef = one_hot(neuron, sign, target.size, target.shape)
        (entire,) = parts(self.plan, source, 0).parts
        rows, keys = gather_rows(
            entire,
            self.region,
            coef,
            sample,
            torch.zeros_like(sample),
            key,
            self.layers.frames,
            grouped=self.settings.group != 1,
            wide=self.settings.wide,
        )
        place = keys % blocks // (blocks // len(part.neurons))
        theta = part.spread(table[keys], place, self.plan.slots(source)[1])
        form, lines = replay(self.plan, rows, theta)
        bound = rows.region.minimise(form.coef).value + form.const
        return NeuronRows(
            sample.cpu().numpy(),
            neuron.cpu().numpy(),
            _numpy(sign),
            _numpy(bound),
            {self.name(i): self.tidy(c.slope) for i, c in lines.items()},
        )


def _numpy(t: Tensor) -> Array:
    return t.detach().cpu().double().numpy()
