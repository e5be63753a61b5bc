"""The network at one radius as a mixed-integer linear program, and HiGHS's answer to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frown.bounds.plan import Plan
from frown.methods.lp.program import Array, Index, Program, flat, picked, widened
from frown.methods.lp.solvers import Constraints, highs_problem, needed, quiet_highs
from frown.problem.region import Region
from frown.relax.maximum import Max
from frown.relax.piecewise import PiecewiseLinear
from frown.relax.relaxation import Relaxed

TOLERANCE = 1e-9  # of the solver, in scaled units
SMALL = 1e-8  # entries that the solver does not see, in scaled units


@dataclass
class Mixed:
    """A program with binaries, all columns bounded."""

    program: Program
    binary: list[Index] = field(default_factory=list)
    bounds: list[tuple[Index, Array, Array]] = field(default_factory=list)  # of outputs

    @classmethod
    def build(cls, plan: Plan, region: Region, relaxed: dict[int, Relaxed]) -> Mixed:
        mixed = cls(Program(plan, region))
        mixed.program.add_input()
        for i in plan.nonlinear:
            mixed.add(i, relaxed[i])
        return mixed

    def add(self, node: int, relaxed: Relaxed) -> None:
        program, op = self.program, relaxed.op
        program.add(node, relaxed, 2)
        layer = program.layers[node]
        if not len(layer.a):
            return
        image = op.image(relaxed.box)
        self.bounds.append(
            (layer.a_columns, flat(image.lower)[layer.a], flat(image.upper)[layer.a])
        )
        if isinstance(op, Max):
            self._choice(node, relaxed)
        else:
            assert isinstance(op, PiecewiseLinear)
            self._pieces(node, relaxed, op)

    def constraints(self) -> Constraints:
        plain = self.program.constraints()
        least, most = plain.least.copy(), plain.most.copy()
        for columns, low, high in self.bounds:
            least[columns], most[columns] = low, high
        return replace(plain, least=least, most=most)

    @property
    def binaries(self) -> Index:
        return np.concatenate([np.zeros(0, np.int64), *self.binary])

    def _pieces(self, node: int, relaxed: Relaxed, op: PiecewiseLinear) -> None:
        """z = l + sum_k y_k and f(z) = f(l) + sum_k s_k y_k with y_k in [0, w_k] along the
        k-th piece; a binary between two pieces is 1 once the first is full, and the second
        is empty before: the tightest formulation there is of one neuron."""
        program = self.program
        layer = program.layers[node]
        z_columns = layer.z_columns[np.searchsorted(layer.z, layer.a)]
        box = relaxed.box
        points = [box.lower, *_kinks(op, box.lower), box.upper]
        points = [box.clip(point) for point in points]
        ends = [flat(point)[layer.a] for point in points]
        heights = [flat(op.apply(point))[layer.a] for point in points]
        count = len(layer.a)
        total: list[tuple[Index, Array | float]] = [(z_columns, 1.0)]
        value: list[tuple[Index, Array | float]] = [(layer.a_columns, 1.0)]
        before: tuple[Index, Array] | None = None
        for k in range(len(ends) - 1):
            width = ends[k + 1] - ends[k]
            rise = heights[k + 1] - heights[k]
            slope = np.divide(rise, width, out=np.zeros(count), where=width > 0)
            y = program.new_columns(np.zeros(count), width)
            total.append((y, -1.0))
            value.append((y, -slope))
            if before is not None:
                earlier, full = before
                d = program.new_columns(np.zeros(count), np.ones(count))
                self.binary.append(d)
                self._rows([(earlier, 1.0), (d, -full)], np.zeros(count), np.full(count, inf))
                self._rows([(y, 1.0), (d, -width)], np.full(count, -inf), np.zeros(count))
            before = y, width
        self._rows(total, ends[0], ends[0])
        self._rows(value, heights[0], heights[0])

    def _choice(self, node: int, relaxed: Relaxed) -> None:
        """One binary per entry that can be the largest of its window, one of them 1:
        a <= z_j + (1 - d_j) (greatest other u - l_j)."""
        program = self.program
        layer, box = program.layers[node], relaxed.box
        width = box.lower.shape[-1]
        low, high = (flat(side).reshape(-1, width)[layer.a] for side in (box.lower, box.upper))
        window, entry = np.nonzero(high > low.max(1, keepdims=True))
        place = layer.a[window] * width + entry
        z_columns = layer.z_columns[np.searchsorted(layer.z, place)]
        count = len(window)
        others = high[window].copy()
        others[np.arange(count), entry] = -inf
        reach = np.maximum(others.max(1) - low[window, entry], 0.0)
        d = program.new_columns(np.zeros(count), np.ones(count))
        self.binary.append(d)
        a_columns = layer.a_columns[window]
        self._rows([(a_columns, 1.0), (z_columns, -1.0), (d, reach)], np.full(count, -inf), reach)
        ones = np.ones(len(layer.a))
        program.new_rows(
            picked(window, d, np.ones(count), (len(ones), program.columns)), ones, ones
        )

    def _rows(self, terms: list[tuple[Index, Array | float]], low: Array, high: Array) -> None:
        """low <= sum of the terms' columns times their factors <= high, neuron by neuron."""
        count = len(low)
        rows = np.tile(np.arange(count), len(terms))
        columns = np.concatenate([c for c, _ in terms])
        entries = np.concatenate([np.broadcast_to(np.asarray(f), count) for _, f in terms])
        self.program.new_rows(
            picked(rows, columns, entries, (count, self.program.columns)), low, high
        )


@dataclass(frozen=True)
class Answer:
    """A program's answer: proved beyond the level, or the columns of a point at or below it."""

    proved: bool
    columns: Array | None = None


def minimise_mixed(
    problem: Constraints, binaries: Index, cost: Array, const: float, level: float, seconds: float
) -> Answer:
    """Decide if cost . v + const exceeds the level wherever the constraints hold."""
    highspy = needed("highspy")
    scaled, units = _scaled(problem, binaries)
    model = _tight_highs()
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 0.0)
    model.setOptionValue("mip_heuristic_effort", 0.0)
    # Nothing above the level is looked for, and the first point below it will do.
    model.setOptionValue("objective_bound", level - const)
    model.setOptionValue("objective_target", level - const)
    if seconds < inf:
        model.setOptionValue("time_limit", seconds)
    lp = highs_problem(scaled)
    lp.col_cost_ = cost * units
    kinds = [highspy.HighsVarType.kContinuous] * len(cost)
    for column in binaries.tolist():
        kinds[column] = highspy.HighsVarType.kInteger
    lp.integrality_ = kinds
    if model.passModel(lp) == highspy.HighsStatus.kError:
        return Answer(False)
    model.HandleKeyboardInterrupt = True
    model.solve()
    status, states = model.getModelStatus(), highspy.HighsModelStatus
    # Every column is bounded, so no program is unbounded.
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Answer(True)
    info = model.getInfo()
    if not len(binaries):  # a plain linear program: there is no bound from branching
        if status == states.kOptimal and info.objective_function_value + const > level:
            return Answer(True)
    elif info.mip_dual_bound + const > level and status in (states.kOptimal, states.kTimeLimit):
        return Answer(True)
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        return Answer(False, np.asarray(model.getSolution().col_value) * units)
    return Answer(False)


def nearest_on_piece(mixed: Mixed, columns: Array, cost: Array, const: float) -> Array | None:
    """The nearest point with cost . v + const <= 0 on the linear piece of a point."""
    from scipy.sparse import csr_array, diags_array, hstack, vstack

    plain, binaries = mixed.constraints(), mixed.binaries
    least, most = plain.least.copy(), plain.most.copy()
    least[binaries] = most[binaries] = np.round(columns[binaries])
    program, width = mixed.program, len(least)
    matrix = vstack([plain.matrix, csr_array(cost[None])], format="csr")
    low, high = np.append(plain.low, -inf), np.append(plain.high, -const)
    region, features = program.region, program.region.centre[0].numel()
    # ||w|| <= scale e in every ball, with e the distance in units of the radius.
    if region.p == 1:
        ways = widened(program.budgets(), width)
        reach = np.full((ways.shape[0], 1), -program.radius)
    else:
        scale = np.ones(features) if region.scale is None else flat(region.scale)
        eye = diags_array(np.ones(features), shape=(features, width), format="csr")
        ways = vstack([eye, -eye], format="csr")
        reach = -np.concatenate([scale, scale])[:, None] * program.radius
    matrix = vstack(
        [hstack([matrix, csr_array((len(low), 1))]), hstack([ways, csr_array(reach)])], format="csr"
    )
    low = np.append(low, np.full(len(reach), -inf))
    high = np.append(high, np.zeros(len(reach)))
    aim = np.append(np.zeros(width), 1.0)
    least, most = np.append(least, 0.0), np.append(most, 1.0)
    scaled, units = _scaled(Constraints(csr_array(matrix), low, high, least, most), binaries)
    lp = highs_problem(scaled)
    lp.col_cost_ = aim * units
    model = _tight_highs()
    model.passModel(lp)
    model.run()
    if model.getModelStatus() != needed("highspy").HighsModelStatus.kOptimal:
        return None
    return (np.asarray(model.getSolution().col_value) * units)[:width]


def _tight_highs() -> Any:
    model = quiet_highs()
    for name in ("primal_feasibility", "dual_feasibility", "mip_feasibility"):
        model.setOptionValue(f"{name}_tolerance", TOLERANCE)
    return model


def _scaled(problem: Constraints, binaries: Index) -> tuple[Constraints, Array]:
    """Columns in units of their reach and rows of greatest entry 1; and those units.

    Entries too small for the solver, which would leave them out, widen their row instead.
    """
    from scipy.sparse import csr_array, diags_array

    reach = np.maximum(np.abs(problem.least), np.abs(problem.most))
    units = np.where((reach > 0) & np.isfinite(reach), reach, 1.0)
    units[binaries] = 1.0
    matrix = csr_array(problem.matrix @ diags_array(units))
    largest = np.zeros(matrix.shape[0]) if not matrix.nnz else abs(matrix).max(axis=1).toarray()
    size = np.where(largest.reshape(-1) > 0, largest.reshape(-1), 1.0)
    rows = csr_array(diags_array(1 / size) @ matrix)
    small = abs(rows.data) < SMALL
    room = np.zeros(len(size))
    np.add.at(room, np.repeat(np.arange(len(size)), np.diff(rows.indptr))[small], SMALL)
    rows.data[small] = 0.0
    rows.eliminate_zeros()
    low, high = problem.low / size - room, problem.high / size + room
    return Constraints(rows, low, high, problem.least / units, problem.most / units), units


def _kinks(op: PiecewiseLinear, like: Tensor) -> list[Tensor]:
    """The finite kinks in rising order, one tensor each."""
    kinks = [k for k in op.kinks() if isinstance(k, Tensor) or isfinite(k)]
    return [torch.as_tensor(k, dtype=like.dtype).expand_as(like) for k in kinks]
