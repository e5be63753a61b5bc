"""The relaxed problem of the paper (its equation for the LP, appendix A.3) as matrices.

For one sample and one bounded node the columns are w, the way from the centre to the input,
and, for every earlier nonlinear node, its input z and its output a. Rows tie each z to the
columns before it and hold the lines, a - s z >= t and a - s z <= t. Neurons whose output is
one line of their input need no a; those that are constant need no z either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.plan import Plan, per_plan
from frown.bounds.rows import one_hot
from frown.graph.graph import Input
from frown.graph.op import Affine
from frown.methods.lp.solvers import Constraints
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]
Index = NDArray[np.int64]
_CHUNK = 1 << 24  # entries of dense rows at a time


@dataclass(frozen=True)
class Wiring:
    """A node as an affine function of the input and of nonlinear nodes before it:
    value = const + sum_j matrix[j] node_j."""

    matrix: dict[int, csr_array]  # (size, size of j)
    const: Array  # (size,)


@per_plan
def wiring(plan: Plan, target: int) -> Wiring:
    """The affine function that makes a node of the input and the nonlinear nodes before it."""
    from scipy.sparse import csr_array, vstack

    node, dtype = plan.graph.nodes[target], plan.graph.dtype
    step = max(1, _CHUNK // max(plan.graph.nodes[i].size for i in plan.ancestors(target)))
    parts: dict[int, list[csr_array]] = {}
    const = []
    for a in range(0, node.size, step):
        index = torch.arange(a, min(a + step, node.size), device=plan.graph.device)
        ones = torch.ones(len(index), dtype=dtype, device=plan.graph.device)
        base, shift = _base(plan, target, one_hot(index, ones, node.size, node.shape))
        const.append(shift.double().cpu().numpy())
        for j, rows in base.items():
            parts.setdefault(j, []).append(csr_array(rows.flatten(1).double().cpu().numpy()))
    return Wiring({j: vstack(p, format="csr") for j, p in parts.items()}, np.concatenate(const))


def _base(plan: Plan, target: int, coef: Tensor) -> tuple[dict[int, Tensor], Tensor]:
    """coef . target = const + sum_j base[j] . node_j over the input and nonlinear nodes."""
    const = coef.new_zeros(len(coef))
    pending = {target: coef}
    base: dict[int, Tensor] = {}
    for i in reversed(plan.ancestors(target)):
        if i not in pending:
            continue
        here, node = pending.pop(i), plan.graph.nodes[i]
        if isinstance(node.op, Input) or not isinstance(node.op, Affine):
            base[i] = here
            continue
        shift = node.op.shift(here)
        const = const if shift is None else const + shift
        for j, part in zip(node.inputs, node.op.pull_back(here), strict=True):
            pending[j] = part if j not in pending else pending[j] + part
    return base, const


@dataclass(frozen=True)
class AffineValue:
    """A node's value as shift + matrix . columns (those there are when it is added)."""

    matrix: csr_array  # (size, columns so far)
    shift: Array  # (size,)


@dataclass(frozen=True)
class Layer:
    """The columns and rows of one nonlinear node in the program."""

    z: Index  # entries of its input with a column ...
    z_columns: Index  # ... and which
    z_rows: Index  # the row that ties each of them to columns before
    a: Index  # entries of its output with a column
    a_columns: Index


@dataclass
class Program:
    """low <= matrix v <= high, least <= v <= most; for p = 2 also ||v[cone]||_2 <= radius for
    every cone."""

    plan: Plan
    region: Region  # of one sample
    least: list[Array] = field(default_factory=list)
    most: list[Array] = field(default_factory=list)
    low: list[Array] = field(default_factory=list)
    high: list[Array] = field(default_factory=list)
    rows: list[csr_array] = field(default_factory=list)
    values: dict[int, AffineValue] = field(default_factory=dict)
    layers: dict[int, Layer] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        return sum(map(len, self.least))

    @property
    def height(self) -> int:
        return sum(map(len, self.low))

    @property
    def cones(self) -> tuple[Index, ...]:
        """The columns of every ball for p = 2."""
        return self._balls() if self.region.p == 2 else ()

    @property
    def radius(self) -> float:
        return float(self.region.radius[0])

    def new_columns(self, least: Array, most: Array) -> Index:
        start = self.columns
        self.least.append(least)
        self.most.append(most)
        return np.arange(start, start + len(least))

    def new_rows(self, matrix: csr_array, low: Array, high: Array) -> Index:
        start = self.height
        self.rows.append(matrix)
        self.low.append(low)
        self.high.append(high)
        return np.arange(start, start + len(low))

    def matrix(self) -> csr_array:
        from scipy.sparse import csr_array, vstack

        width = self.columns
        if not self.rows:
            return csr_array((0, width))
        return vstack([widened(m, width) for m in self.rows], format="csr")

    def constraints(self) -> Constraints:
        return Constraints(
            self.matrix(),
            np.concatenate(self.low or [np.zeros(0)]),
            np.concatenate(self.high or [np.zeros(0)]),
            np.concatenate(self.least),
            np.concatenate(self.most),
            self.cones,
            self.radius,
            self.region.p == 1,
        )

    def objective(self, target: int, coef: Array) -> tuple[Array, Array]:
        """coef (R, size) . target as costs (R, columns) and constants (R,)."""
        value = self._substituted(wiring(self.plan, target))
        return np.asarray(coef @ value.matrix), coef @ value.shift

    # -- building -----------------------------------------------------------------

    def add_input(self) -> None:
        """w with x = centre + D w inside the region."""
        from scipy.sparse import csr_array, diags_array, hstack

        region = self.region
        assert region.p in (1, 2, inf)
        centre, box = flat(region.centre), region.box()
        down, up = flat(box.lower) - centre, flat(box.upper) - centre
        scale = np.ones_like(centre) if region.scale is None else flat(region.scale)
        if region.p == inf:
            self.new_columns(down, up)
            spread = diags_array(np.ones_like(centre), format="csr")
        elif region.p == 2:
            safe = np.where(scale > 0, scale, 1.0)
            reach = np.where(scale > 0, np.inf, 0.0)
            clip = region.clipped
            self.new_columns(down / safe if clip else -reach, up / safe if clip else reach)
            spread = diags_array(scale, format="csr")
        else:
            safe = np.where(scale > 0, scale, 1.0)
            room = np.concatenate([up / safe, -down / safe])
            self.new_columns(np.zeros_like(room), room)
            spread = hstack([diags_array(scale), diags_array(-scale)], format="csr")
            total = self.budgets()
            count = total.shape[0]
            self.new_rows(total, np.full(count, -inf), np.full(count, self.radius))
        self.values[0] = AffineValue(csr_array(spread), centre)

    def add(self, node: int, relaxed: Relaxed, tangents: int) -> None:
        """A nonlinear node over its box: z tied to what is before it, and its lines."""
        from scipy.sparse import csr_array, eye_array

        op = relaxed.op
        (source,) = self.plan.graph.nodes[node].inputs
        size, width = self.plan.graph.nodes[node].size, self.plan.graph.nodes[source].size
        stable = op.stable(relaxed.box)  # per entry of the input; all or none of an output's
        owner = op.expand(torch.arange(size).view(1, *self._shape(node)))
        # The output that every entry of the input belongs to.
        inside = owner.expand(1, *stable.shape[1:]).reshape(-1).numpy()
        open_out = np.zeros(size, bool)
        open_out[inside[flat(stable) == 0]] = True
        exact = flat(relaxed.lines.slopes.upper)
        z = np.flatnonzero(open_out[inside] | (exact != 0))
        a = np.flatnonzero(open_out)
        before = self._substituted(wiring(self.plan, source))
        box_low, box_high = flat(relaxed.box.lower), flat(relaxed.box.upper)
        z_columns = self.new_columns(box_low[z], box_high[z])
        a_columns = self.new_columns(np.full(len(a), -inf), np.full(len(a), inf))
        columns = self.columns
        place = np.full(width, -1)
        place[z] = z_columns
        tie = picked(np.arange(len(z)), z_columns, np.ones(len(z)), (len(z), columns))
        tie = tie - widened(before.matrix[z], columns)
        z_rows = self.new_rows(tie, before.shift[z], before.shift[z])
        self.layers[node] = Layer(z, z_columns, z_rows, a, a_columns)
        # The node's value: its column, or the one line that it is.
        still = np.flatnonzero(~open_out[inside] & (exact != 0))
        rows = np.concatenate([a, inside[still]])
        where = np.concatenate([a_columns, place[still]])
        entries = np.concatenate([np.ones(len(a)), exact[still]])
        shift = np.where(open_out, 0.0, flat(relaxed.lines.upper))
        self.values[node] = AffineValue(picked(rows, where, entries, (size, columns)), shift)
        # Lines of the open entries.
        mine = np.flatnonzero(open_out[inside])
        rank = np.cumsum(open_out) - 1
        unit = csr_array(eye_array(len(a), format="csr"))
        family = op.family(relaxed, tangents)
        for slopes, below in ((family.lower, True), (family.upper, False)):
            seen: list[tuple[Array, Array]] = []
            side = torch.full((1, *self._shape(node)), below, device=relaxed.box.lower.device)
            for slope in slopes:
                s = flat(slope)
                t = flat(op.line(slope, side, relaxed.anchors).intercept)[a]
                fresh = np.ones(len(a), bool)
                for other, level in seen:
                    differ = np.zeros(len(a), bool)
                    differ[rank[inside[mine]]] |= s[mine] != other[mine]
                    fresh &= differ | (t != level)
                seen.append((s, t))
                if not fresh.any():
                    continue
                lean = picked(rank[inside[mine]], place[mine], s[mine], (len(a), columns))
                line = picked(np.arange(len(a)), a_columns, np.ones(len(a)), lean.shape) - lean
                keep = csr_array(unit[np.flatnonzero(fresh)])
                open_end = np.full(int(fresh.sum()), inf)
                if below:
                    self.new_rows(keep @ line, t[fresh], open_end)
                else:
                    self.new_rows(keep @ line, -open_end, t[fresh])

    def budgets(self) -> csr_array:
        """Rows for p = 1, one per ball, that add up how far its features move."""
        from scipy.sparse import csr_array

        balls, features = self._balls(), self.region.centre[0].numel()
        total = np.zeros((len(balls), 2 * features))
        for row, ball in zip(total, balls, strict=True):
            row[ball] = row[features + ball] = 1.0
        return csr_array(total)

    def _balls(self) -> tuple[Index, ...]:
        """The features of every ball that may move; none of a frame that is fixed."""
        region = self.region
        number = torch.arange(region.centre[0].numel()).view(1, *region.centre.shape[1:])
        moving = np.ones(number.numel(), bool)
        if region.scale is not None:
            moving = flat(region.scale) > 0
        balls = (ball[moving[ball]] for ball in region.balls(number)[0].numpy())
        return tuple(ball for ball in balls if len(ball))

    def _shape(self, node: int) -> tuple[int, ...]:
        return self.plan.graph.nodes[node].shape

    def _substituted(self, wires: Wiring) -> AffineValue:
        """An affine function of nodes as one of columns."""
        from scipy.sparse import csr_array

        width = self.columns
        matrix = csr_array((len(wires.const), width))
        shift = wires.const.copy()
        for j, part in wires.matrix.items():
            value = self.values[j]
            matrix = matrix + part @ widened(value.matrix, width)
            shift += part @ value.shift
        return AffineValue(csr_array(matrix), shift)


def picked(rows: Index, columns: Index, entries: Array, shape: tuple[int, int]) -> csr_array:
    """A sparse matrix with these entries."""
    from scipy.sparse import csr_array

    return csr_array((entries, (rows, columns)), shape=shape)


def widened(matrix: csr_array, width: int) -> csr_array:
    """A matrix with empty columns added on the right."""
    from scipy.sparse import csr_array

    return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], width))


def flat(t: Tensor) -> Array:
    """One sample's tensor as a vector."""
    return t.detach().cpu().double().numpy().reshape(-1)
