"""Final rows of many cases of a dense ReLU network, with every rounding error charged.

Cases of one sample differ in the sides that some neurons are held to, in slopes and in multipliers;
boxes, weights and what rounding is charged with they share. So a pass of all of them is a few
products of matrices, (neurons, rows) each. The charges are those of `arithmetic.charged`: whatever
is rounded away of a coefficient is a linear form on values whose size is known.

On ReLU the lines need no search: max(z, 0) >= s z for any s in [0, 1], above there is the chord,
and on a side of the kink the function is a line. A multiplier m <= 0 on the side z >= 0, or m >= 0
on the other, adds m z <= 0, and less is lost where the box leaves out 0.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import (
    Charges,
    ball_gain,
    bounded,
    charged_form,
    enclosing,
    no_lines,
)
from frown.bounds.plan import Plan
from frown.bounds.replay import Replay
from frown.bounds.rows import Blocks
from frown.graph.affine import Linear, Reshape, Scale
from frown.relax.piecewise import Relu
from frown.relax.proven.rounding import LOOSE, TINY, UNIT, above, below, gamma

CHUNK = 1 << 10  # rows that go together: what they pass stays near the processor


@dataclass(frozen=True, slots=True)
class Run:
    """Affine operators from one nonlinearity to the next: (node, operator), in order."""

    steps: tuple[tuple[int, Linear | Scale], ...]

    @property
    def plain(self) -> bool:
        """True for one matrix alone."""
        return len(self.steps) == 1 and isinstance(self.steps[0][1], Linear)


def dense_runs(plan: Plan) -> list[Run] | None:
    """The runs of a chain of dense layers with ReLU in between, the input's first; None for other
    networks."""
    runs: list[list[tuple[int, Linear | Scale]]] = [[]]
    for step in reversed(plan.route(plan.graph.output)):
        op, shape = step.affine, plan.graph.nodes[step.node].shape
        if isinstance(op, Reshape):
            continue
        if isinstance(step.relaxation, Relu):
            runs.append([])
        elif isinstance(op, Scale) or (isinstance(op, Linear) and prod(shape) == shape[-1]):
            runs[-1].append((step.node, op))
        else:
            return None
    if len(runs) < 2 or not plan.chain(plan.graph.output) or not all(runs):
        return None
    return [Run(tuple(run)) for run in runs]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of cases: (slots, rows) float64 each."""

    cut: Tensor  # 1: z >= 0 is given, -1: z <= 0, 0: nothing is
    slope: Tensor  # in [0, 1], of lines below neurons that are not cut
    lift: Tensor  # multipliers, with -cut's sign or 0

    def rows(self, piece: slice) -> Held:
        return Held(self.cut[:, piece], self.slope[:, piece], self.lift[:, piece])


@dataclass(frozen=True, slots=True)
class CaseLines:
    """Lines of every neuron in every row of cases: (slots, rows) each."""

    held: Held
    free: Tensor  # 1 where a neuron is not cut
    open: Tensor  # 1 where it is not stable, either
    low: Tensor  # slopes below
    high: Tensor  # and above
    used: Tensor  # a mask, which passes fill: where lines below have used their slopes


class DenseRows:
    """One sample's boxes, from which rows of its cases are bounded."""

    def __init__(self, root: Replay, sample: int, runs: list[Run]) -> None:
        self.root, self.sample, self.runs = root, sample, runs
        plan, weights = root.plan, root.arithmetic.weights
        places, count = plan.slots(plan.graph.output)
        self.slots = torch.arange(count)  # of the plan, that neurons here stand for
        self.parts = [places[i] for i in plan.nonlinear]
        boxes = [plan.carry(i, root.values[plan.sources[i]]) for i in plan.nonlinear]
        low = torch.cat([box.lower[sample].flatten() for box in boxes])
        high = torch.cat([box.upper[sample].flatten() for box in boxes])
        self._settle(low, high)
        reads = [plan.graph.nodes[i].inputs[0] for i in plan.nonlinear]
        self.size = torch.cat([weights.value[j][sample].flatten() for j in reads])[:, None]

    def _settle(self, low: Tensor, high: Tensor) -> None:
        """Take boxes (slots,), and the lines over them."""
        self.lower, self.upper = low, high
        crossing = (low < 0) & (high > 0)
        self.open = crossing.double()[:, None]
        # NaN proves nothing: it goes into lines, and from there into bounds.
        unknown = low.isnan() | high.isnan()
        self.still = torch.where(unknown, torch.nan, (low >= 0).double())[:, None]
        width = torch.where(crossing, high - low, 1.0)
        self.high = torch.where(crossing, (high / width).clamp(0, 1), self.still[:, 0])[:, None]
        # max over [l, u] of max(z, 0) - s z is attained at an end, for s in [0, 1].
        s = self.high[:, 0]
        most = torch.maximum(-s * low, high - s * high)
        most = above(most, 4 * UNIT * (low.abs() + high.abs()))
        self.rise = torch.where(crossing, most.clamp(min=0), 0.0)[:, None]
        self.away = low.clamp(min=0).maximum((-high).clamp(min=0))[:, None]  # from 0, at least

    @cached_property
    def lost(self) -> float:
        """A count of how often underflow may take TINY on the way to the first nonlinearity."""
        plan, weights, n = self.root.plan, self.root.arithmetic.weights, self.sample
        count = 0.0
        for run in self.runs[1:]:
            for node, _ in run.steps:
                (j,) = plan.graph.nodes[node].inputs
                count += plan.graph.nodes[node].size * (1 + float(weights.total[j][n]))
        for i in plan.nonlinear:
            (j,) = plan.graph.nodes[i].inputs
            count += 8 * plan.graph.nodes[i].size + 4 * float(weights.total[j][n])
        return count * LOOSE

    def crossed(self, cut: Tensor) -> Tensor:
        """(rows,) whether a side of (slots, rows), or of the first slots, contradicts the boxes: no
        point is there."""
        low, high = (end[: len(cut), None] for end in (self.lower, self.upper))
        return ((cut > 0) & (high < 0) | (cut < 0) & (low > 0)).any(0)

    def bound(self, coef: Tensor, const: Tensor, held: Held) -> tuple[Tensor, Tensor]:
        """(rows,) proven lower bounds of coef (rows, outputs) . outputs + const (rows,), and
        (slots, rows) where lines below have used their slopes."""
        found, used = [], []
        for k in range(0, len(coef), CHUNK):
            self.root.work.clock.check()
            piece = slice(k, k + CHUNK)
            own, taken = self._bound(coef[piece], const[piece], held.rows(piece))
            found.append(own)
            used.append(taken)
        return torch.cat(found), torch.cat(used, 1)

    def entries(self, site: int, neuron: Tensor, side: Tensor, held: Held) -> Tensor:
        """(rows,) proven lower bounds of entries of what a site reads, or of their negatives where
        the side is 1; `held` has the slots before that site alone."""
        part, found = self.parts[site], []
        for k in range(0, len(neuron), CHUNK):
            self.root.work.clock.check()
            piece = slice(k, k + CHUNK)
            at, sign = neuron[piece], 1.0 - 2.0 * side[piece].double()
            here = sign.new_zeros(part.stop - part.start, len(at))
            here[at, torch.arange(len(at))] = sign
            own = held.rows(piece)
            account = RowAccount(torch.zeros_like(sign))
            found.append(self._back(here, account, self._lines(own), site))
        return torch.cat(found)

    def over(self, boxes: tuple[Tensor, Tensor]) -> DenseRows:
        """Rows over other boxes (slots,) of the neurons, which hold as well."""
        found = copy(self)
        found._settle(*boxes)
        return found

    def narrow(self, slot: Tensor, side: Tensor, end: Tensor) -> None:
        """Take in ends of boxes that are proved: below where the side is 0, else above. What
        passes the other end proves no more than that; what is NaN, and so unknown, stays it."""
        lower, upper = side == 0, side == 1
        low, high = self.lower.clone(), self.upper.clone()
        low[slot[lower]] = low[slot[lower]].fmax(end[lower]).minimum(high[slot[lower]])
        high[slot[upper]] = high[slot[upper]].fmin(end[upper]).maximum(low[slot[upper]])
        self._settle(low, high)

    def _bound(self, coef: Tensor, const: Tensor, held: Held) -> tuple[Tensor, Tensor]:
        lines = self._lines(held)
        here, account = coef.T.contiguous(), RowAccount(const)
        return self._back(here, account, lines, len(self.parts)), lines.used

    def _back(self, here: Tensor, account: RowAccount, lines: CaseLines, depth: int) -> Tensor:
        """(rows,) proven lower bounds of rows `here` (neurons, rows), which begin after so many
        nonlinearities."""
        for run, part in zip(self.runs[depth:0:-1], reversed(self.parts[:depth]), strict=True):
            here = self._through(self._affine(run, here, account), part, lines, account)
        account.charge += TINY * self.lost
        return self._lowest(here, account)

    def _lines(self, held: Held) -> CaseLines:
        """The lines of all neurons, as they are held."""
        free = torch.addcmul(torch.ones((), dtype=held.cut.dtype), held.cut, held.cut, value=-1)
        still, high, open_ = (t[: len(free)] for t in (self.still, self.high, self.open))
        on, open_ = held.cut.relu(), open_ * free
        low = torch.addcmul(torch.addcmul(on, still, free), open_, held.slope)
        used = torch.zeros_like(held.cut, dtype=torch.bool)
        return CaseLines(held, free, open_, low, torch.addcmul(on, high, free), used)

    def _through(self, here: Tensor, part: slice, lines: CaseLines, account: RowAccount) -> Tensor:
        """Coefficients of what some neurons read, from those of their outputs."""
        above_ = here.clamp(max=0)  # along the line above: their coefficients are negative
        gain = self.rise[part].T @ (above_ * lines.free[part])  # <= 0
        account.add(gain[0], -gain[0] * gamma(len(here) + 8))
        torch.logical_and(here >= 0, lines.open[part] > 0, out=lines.used[part])
        found = (here.relu() * lines.low[part]).addcmul_(above_, lines.high[part])
        found += lines.held.lift[part]
        lift = lines.held.lift[part].abs()
        gain = self.away[part].T @ lift  # -max(m l, m u), where the box leaves out 0
        account.add(gain[0], gain[0] * gamma(len(here) + 8))
        # What a product, its rounding and that of the sum may lose.
        account.charge += (self.size[part].T @ found.abs().add_(lift))[0] * (8 * UNIT)
        return found

    def _affine(self, run: Run, here: Tensor, account: RowAccount) -> Tensor:
        """Coefficients before a run of affine operators, from those after it."""
        weights, n = self.root.arithmetic.weights, self.sample
        for node, op in reversed(run.steps):
            terms = weights.terms[node][n].flatten()
            charge = (terms @ here.abs()) * gamma(len(here) + 8)
            if isinstance(op, Linear):
                account.add(op.bias @ here, charge)
                here = op.weight.T @ here
            else:
                shape = self.root.plan.graph.nodes[node].shape
                offset, factor = (t.expand(shape).flatten() for t in (op.offset, op.factor))
                account.add(offset @ here, charge)
                here = here * factor[:, None]
        return here

    def _lowest(self, here: Tensor, account: RowAccount) -> Tensor:
        """The least values of forms (neurons, rows) on what the first nonlinearity reads."""
        plan, region = self.root.plan, self.root.region
        if self._front is not None:
            weight, norms, centre, error, radius = self._front
            account.add(centre @ here, (error + centre.abs() * gamma(len(here) + 8)) @ here.abs())
            move = (here.T @ weight).abs_()
            most = ball_gain(move[:, None], region.p)[:, 0]
            count = weight.numel()
            most = most + (norms @ here.abs()) * (gamma(len(here) + 8) * LOOSE) + 4 * count * TINY
            return account.settle(-above(most * radius))
        weights = self.root.arithmetic.weights
        source = self.runs[0].steps[-1][0]
        rows = here.T.reshape(-1, *plan.graph.nodes[source].shape).contiguous()
        sample = Blocks(slice(self.sample, self.sample + 1), len(rows))
        form = charged_form(Charges(plan, weights, sample), source, rows, no_lines)
        return account.settle(bounded(region, form, sample))

    @cached_property
    def _front(self) -> tuple[Tensor, Tensor, Tensor, Tensor, float] | None:
        """A first layer seen from the centre of the ball: its matrix, the sizes (dual norms) of
        its rows, its values at the centre, their errors, and the radius. None: other regions, or
        other operators before the first nonlinearity."""
        region, n = self.root.region, self.sample
        box = region.p == inf and region.split is None
        ball = region.split is None and not region.clipped and region.scale is None
        if not self.runs[0].plain or not (box or (ball and region.p in (1, 2))):
            return None
        op = self.runs[0].steps[0][1]
        assert isinstance(op, Linear)
        own = region.rows(slice(n, n + 1))
        centre, weight, radius = own.centre.flatten(), op.weight, float(own.radius)
        if not ball:
            around = enclosing(own)
            low, high = around.lower.flatten(), around.upper.flatten()
            centre = (low + high) / 2
            reach = above(torch.maximum(high - centre, centre - low))
            weight, radius = weight * reach, 1.0  # rounded once more: gamma has room for it
        norms = ball_gain(weight.abs()[:, None], region.p)[:, 0] * LOOSE + TINY
        count = len(centre)
        value = op.weight @ centre + op.bias
        size = op.weight.abs() @ centre.abs() + op.bias.abs()
        error = size * (gamma(count + 8) * LOOSE) + 4 * count * TINY
        return weight, norms, value, error, radius


class RowAccount:
    """Constants of rows, and what rounding may take from them."""

    def __init__(self, const: Tensor) -> None:
        self.parts = [const]
        self.charge = torch.zeros_like(const)

    def add(self, part: Tensor, charge: Tensor) -> None:
        self.parts.append(part)
        self.charge = self.charge + charge

    def settle(self, least: Tensor) -> Tensor:
        """Bounds of all parts and the form's least value together."""
        parts = torch.stack([*self.parts, least])
        slack = parts.abs().sum(0) * gamma(len(parts) + 8) + self.charge
        return below(parts.sum(0), slack * LOOSE)
