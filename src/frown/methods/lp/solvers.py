"""Linear programs by HiGHS, second-order cone programs by Clarabel: only duals come back.

Nothing here is trusted. Duals that are wrong, or missing, make a bound looser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from frown.bounds.work import NO_LIMIT, Clock, OutOfTime
from frown.errors import InvalidInput

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Constraints:
    """low <= matrix v <= high, least <= v <= most, and ||v[cone]||_2 <= radius for every cone."""

    matrix: csr_array
    low: Array
    high: Array
    least: Array
    most: Array
    cones: tuple[NDArray[np.int64], ...] = ()
    radius: float = 0.0
    budget: bool = False  # whether a row limits the sum of the input's columns


@dataclass(frozen=True)
class Duals:
    """The rows' duals for each objective, the optimum, and whether the solver claims it is one."""

    rows: Array  # (R, rows); 0 where the solver gave nothing
    optimum: Array  # (R,) NaN where it gave nothing
    solved: NDArray[np.bool_]  # (R,)

    @classmethod
    def blank(cls, count: int, height: int) -> Duals:
        return cls(np.zeros((count, height)), np.full(count, np.nan), np.zeros(count, bool))


@dataclass(frozen=True)
class Basis:
    """A simplex basis, from which the same objective over a like program can start."""

    columns: bytes = b""
    rows: bytes = b""

    def fits(self, problem: Constraints) -> bool:
        return (len(self.rows), len(self.columns)) == (len(problem.low), len(problem.least))


def minimise(
    problem: Constraints,
    costs: Array,
    starts: Sequence[Basis],
    clock: Clock = NO_LIMIT,
    pool: Executor | None = None,
    workers: int = 1,
    hot: bool = True,
) -> tuple[Duals, list[Basis]]:
    """The duals of min cost . v for every row of costs (R, columns), and where each ended.

    `starts` are the objectives' own, where they fit the program; one that does not, if it
    is the first, is extended to it, and later ones go on from the objective before (unless
    not `hot`: then all start from nothing). With a pool, rows are spread over its workers,
    each with its own copy of the program.
    """
    solve = _cone_program if problem.cones else _linear_program
    if pool is None or workers == 1 or len(costs) < 2 * workers:
        return solve(problem, costs, starts, clock, hot)
    shares = [s for s in np.array_split(np.arange(len(costs)), workers) if len(s)]
    parts = []
    for share in shares:
        mine = [starts[i] for i in share]
        parts.append(pool.submit(solve, problem, costs[share], mine, clock, hot))
    try:
        found = [part.result() for part in parts]
    except BrokenExecutor:
        raise InvalidInput(
            "worker processes could not work; a script that asks for workers must keep its own "
            'code under `if __name__ == "__main__":`, because each worker imports it'
        ) from None
    joined = Duals(
        np.concatenate([d.rows for d, _ in found]),
        np.concatenate([d.optimum for d, _ in found]),
        np.concatenate([d.solved for d, _ in found]),
    )
    return joined, [end for _, ends in found for end in ends]


def _linear_program(
    problem: Constraints, costs: Array, starts: Sequence[Basis], clock: Clock, hot: bool
) -> tuple[Duals, list[Basis]]:
    """One model; an objective starts where it ended before or where the last one did."""
    highspy = needed("highspy")
    optimal = highspy.HighsModelStatus.kOptimal
    model = quiet_highs()
    model.setOptionValue("presolve", "off")
    # Columns with two bounds flip when costs change and leave a vertex dual feasible; with a
    # budget over all of them (p = 1) it stays primal feasible only.
    model.setOptionValue("simplex_strategy", 4 if problem.budget else 1)
    # Lines that all but coincide look infeasible to HiGHS once it has scaled them.
    model.setOptionValue("simplex_scale_strategy", 0)
    model.passModel(highs_problem(problem))
    count, width = costs.shape
    found, ends = Duals.blank(count, len(problem.low)), []
    every = np.arange(width, dtype=np.int32)
    for r, (cost, start) in enumerate(zip(costs, starts, strict=True)):
        if clock.expired():
            raise OutOfTime
        if clock.deadline != inf:
            model.setOptionValue("time_limit", model.getRunTime() + clock.left())
        if not hot:
            model.clearSolver()
        elif start.columns and (r == 0 or start.fits(problem)):
            model.setBasis(_extended(start, problem))
        model.changeColsCost(width, every, cost)
        model.run()
        if model.getModelStatus() != optimal:
            # Not from this vertex, then from none.
            model.clearSolver()
            model.run()
        solution = model.getSolution()
        if solution.dual_valid:
            found.rows[r] = solution.row_dual
            found.optimum[r] = model.getObjectiveValue()
        found.solved[r] = model.getModelStatus() == optimal
        end = model.getBasis()
        valid = found.solved[r] and end.valid
        ends.append(Basis(_codes(end.col_status), _codes(end.row_status)) if valid else Basis())
    return found, ends


def _codes(statuses: Iterable[Any]) -> bytes:
    return bytes(map(int, statuses))


def highs_problem(problem: Constraints) -> Any:
    highspy = needed("highspy")
    matrix = problem.matrix.tocsr()
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_ = np.zeros(matrix.shape[1])
    lp.col_lower_, lp.col_upper_ = problem.least, problem.most
    lp.row_lower_, lp.row_upper_ = problem.low, problem.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = matrix.data
    return lp


def quiet_clarabel(seconds: float) -> Any:
    """Settings of Clarabel: one thread, a time limit, nothing printed."""
    settings = needed("clarabel").DefaultSettings()
    settings.verbose, settings.presolve_enable, settings.max_threads = False, False, 1
    settings.time_limit = seconds
    return settings


def quiet_highs() -> Any:
    model = needed("highspy").Highs()
    model.silent()
    model.setOptionValue("threads", 1)
    return model


def _extended(basis: Basis, problem: Constraints) -> Any:
    """The basis for a program that may have more columns and rows.

    New columns rest at a bound, new rows are slack; those that tie a new column to old ones
    take it into the basis.
    """
    highspy = needed("highspy")
    status = highspy.HighsBasisStatus
    at_bound, basic = int(status.kLower), int(status.kBasic)
    height, width = problem.matrix.shape
    columns = bytearray(basis.columns) + bytes([at_bound]) * (width - len(basis.columns))
    rows = bytearray(basis.rows) + bytes([basic]) * (height - len(basis.rows))
    matrix = problem.matrix
    for r in range(len(basis.rows), height):
        if problem.low[r] == problem.high[r]:
            own = matrix.indices[matrix.indptr[r] : matrix.indptr[r + 1]].max()
            if own >= len(basis.columns):
                rows[r], columns[own] = at_bound, basic
    names = [status(code) for code in range(1 + max(*columns, *rows))]
    start = highspy.HighsBasis()
    start.col_status = [names[code] for code in columns]
    start.row_status = [names[code] for code in rows]
    start.valid = True
    return start


def _cone_program(
    problem: Constraints, costs: Array, starts: Sequence[Basis], clock: Clock, hot: bool
) -> tuple[Duals, list[Basis]]:
    """Interior points: one factorised model, whose objective is exchanged."""
    clarabel = needed("clarabel")
    from scipy.sparse import csc_array, csr_array, eye_array, vstack

    problem, costs = narrowed(problem, costs)
    count, width = costs.shape
    eye = csr_array(eye_array(width, format="csr"))
    # Clarabel's form: matrix v + slack = right, slack in a product of cones.
    equal = np.flatnonzero(problem.low == problem.high)
    most = np.flatnonzero((problem.low != problem.high) & np.isfinite(problem.high))
    least = np.flatnonzero((problem.low != problem.high) & np.isfinite(problem.low))
    up, down = np.flatnonzero(np.isfinite(problem.most)), np.flatnonzero(np.isfinite(problem.least))
    blocks = [
        (problem.matrix[equal], problem.low[equal]),
        (problem.matrix[most], problem.high[most]),
        (-problem.matrix[least], -problem.low[least]),
        (eye[up], problem.most[up]),
        (-eye[down], -problem.least[down]),
    ]
    for ball in problem.cones:
        blocks.append((csr_array((1, width)), np.array([problem.radius])))
        blocks.append((-eye[ball], np.zeros(len(ball))))
    left = csc_array(vstack([m for m, _ in blocks], format="csc"))
    right = np.concatenate([b for _, b in blocks])
    inequalities = len(most) + len(least) + len(up) + len(down)
    cones = [
        clarabel.ZeroConeT(len(equal)),
        clarabel.NonnegativeConeT(inequalities),
        *(clarabel.SecondOrderConeT(len(ball) + 1) for ball in problem.cones),
    ]
    settings = quiet_clarabel(clock.left())
    quadratic = csc_array((width, width))
    found = Duals.blank(count, len(problem.low))
    solver = None
    for r, cost in enumerate(costs):
        if clock.expired():
            raise OutOfTime
        if solver is None or not hot:
            solver = clarabel.DefaultSolver(quadratic, cost, left, right, cones, settings)
        else:
            solver.update(q=cost)
        solution = solver.solve()
        z = np.asarray(solution.z)
        if z.shape != right.shape or not np.isfinite(z).all():
            continue
        # Clarabel: cost + left^T z = 0; ours is the change of the optimum with the row's value.
        found.rows[r, equal] = -z[: len(equal)]
        end = len(equal) + len(most)
        found.rows[r, most] = -z[len(equal) : end]
        found.rows[r, least] += z[end : end + len(least)]
        found.optimum[r] = solution.obj_val
        found.solved[r] = str(solution.status) == "Solved"
    return found, list(starts)


def narrowed(problem: Constraints, costs: Array) -> tuple[Constraints, Array]:
    """Equivalent rows over fewer columns, where a ball has more columns than rows read it.

    With B the part of rows and costs that reads a ball's columns w, and B' = Q R, the values of B w
    over ||w|| <= r are those of R' u over ||u|| <= r: a ball of 784 pixels that a layer of 20
    neurons looks at is one of 20 columns.
    """
    from scipy.sparse import csr_array, hstack

    free = np.isinf(problem.least) & np.isinf(problem.most)
    height, width = problem.matrix.shape
    gone = np.zeros(width, bool)
    matrix, added, prices = problem.matrix.tocsc(), [], []
    cones, end = [], 0
    for ball in problem.cones:
        reads = np.vstack([matrix[:, ball].toarray(), costs[:, ball]])
        read = np.flatnonzero(reads.any(axis=1))
        if not free[ball].all() or len(read) >= len(ball):
            cones.append(ball)
            continue
        fewer = np.zeros((len(reads), len(read)))
        fewer[read] = np.linalg.qr(reads[read].T)[1].T
        added.append(csr_array(fewer[:height]))
        prices.append(fewer[height:])
        gone[ball] = True
        cones.append(width + end + np.arange(len(read)))
        end += len(read)
    if not added:
        return problem, costs
    stay = np.flatnonzero(~gone)
    place = np.concatenate([np.cumsum(~gone) - 1, len(stay) + np.arange(end)])
    open_end = np.full(end, inf)
    return replace(
        problem,
        matrix=hstack([matrix[:, stay], *added], format="csr"),
        least=np.concatenate([problem.least[stay], -open_end]),
        most=np.concatenate([problem.most[stay], open_end]),
        cones=tuple(place[ball] for ball in cones),
    ), np.hstack([costs[:, stay], *prices])


def needed(name: str) -> Any:
    """Import a solver's module, or raise InvalidInput that says what to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise _missing(name) from None


def require(name: str) -> None:
    """Raise InvalidInput where a solver's module is missing; nothing is imported."""
    if find_spec(name) is None:
        raise _missing(name)


def _missing(name: str) -> InvalidInput:
    return InvalidInput(
        f"this method needs {name}, which is not installed: pip install 'frown[lp]'"
    )
