"""Linear pieces of ReLU networks: where all neurons keep their sides, the network is affine, and
programs decide: linear ones for p = 1 and inf, of second order for p = 2.

On a leaf with nothing left to cut, the least value of a row is a linear program in the input. Its
duals are the multipliers that prove the leaf, or its vertex is a counterexample. On the piece of a
counterexample, another program finds the nearest one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.plan import Plan
from frown.methods.lp.solvers import Constraints, highs_problem, needed, quiet_clarabel, quiet_highs
from frown.problem.region import Region

Array = NDArray[np.float64]
CLOSE = 8  # sides that a program begins with, and those it gets at a time
MATRICES = 5  # of all slots and features that a program's making holds at once
NUDGE = 1e-6  # of a row's value at the centre: how far below 0 counterexamples are sought


@dataclass(frozen=True)
class Piece:
    """A network where its neurons keep their sides: z = slope x + shift, and the row."""

    slope: Array  # (slots, features)
    shift: Array  # (slots,)
    row: Array  # (features,)
    const: float
    side: Array  # (slots,) 1 or -1
    held: NDArray[np.bool_]  # (slots,) whether the side is demanded; elsewhere it follows


@dataclass(frozen=True)
class Decided:
    """A piece's least value, where it is, and the multipliers (slots,) >= 0 that prove it."""

    value: float
    point: Array  # (features,)
    price: Array


class Pieces:
    """The linear pieces of a ReLU network, in double precision."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan.double()
        self.shape = plan.graph.input_shape
        self.parts, self.slots = self.plan.slots(plan.graph.output)

    def fit(self, memory: int) -> bool:
        """True if the matrices of one program fit into this many bytes."""
        features = prod(self.shape)
        return MATRICES * 8 * features * (self.slots + 2 * features) <= memory

    def at(self, side: Array, held: NDArray[np.bool_], coef: Array, const: float) -> Piece:
        """The piece with these sides, and a row coef . outputs + const on it."""
        features = prod(self.shape)
        # An affine function is known by its values at the origin and at unit vectors.
        unit = torch.cat([torch.zeros(1, features), torch.eye(features)]).double()
        on = torch.from_numpy(side > 0)
        found = [self.run(x, on) for x in unit.split(256)]  # type: ignore[no-untyped-call]
        z, y = (torch.cat(t).numpy() for t in zip(*found, strict=True))
        row, base = coef @ (y[1:] - y[0]).T, float(coef @ y[0])
        return Piece((z[1:] - z[0]).T, z[0], row, base + const, side, held)

    def sides(self, x: Array) -> Array:
        """The sides (slots,) of all neurons at an input."""
        z, _ = self.run(torch.from_numpy(x)[None], None)
        found: Array = np.where(z[0].numpy() > 0, 1.0, -1.0)
        return found

    def outputs(self, x: Array) -> Array:
        """The network's answer."""
        found: Array = self.run(torch.from_numpy(x)[None], None)[1][0].numpy()
        return found

    def run(self, x: Tensor, on: Tensor | None) -> tuple[Tensor, Tensor]:
        """(points, slots) what arrives at neurons, and the outputs; with `on` (slots,) neurons
        pass or stop whatever arrives."""
        values = {0: x.view(-1, *self.shape)}
        arrived = x.new_empty(len(x), self.slots)
        for step in reversed(self.plan.route(self.plan.graph.output)):
            if step.affine is not None:
                values[step.node] = step.affine.apply(*[values[j] for j in step.inputs])
                continue
            z, part = values[step.inputs[0]], self.parts[step.node]
            arrived[:, part] = z.flatten(1)
            own = z.clamp(min=0) if on is None else z * on[part].view(z.shape[1:])
            values[step.node] = own
        return arrived, values[self.plan.graph.output].flatten(1)


@dataclass(frozen=True)
class PieceBall:
    """One input's region in double precision, for p = 1, 2 or inf."""

    centre: Array
    scale: Array
    down: Array  # how far features may fall and rise within the valid range
    up: Array
    p: float

    @classmethod
    def of(cls, region: Region) -> PieceBall:
        """The ball of a region of one sample."""

        def flat(t: Tensor) -> Array:
            return t.double().expand(1, *region.centre.shape[1:]).reshape(-1).numpy()

        centre = flat(region.centre)
        scale = np.ones_like(centre) if region.scale is None else flat(region.scale)
        down = np.full_like(centre, inf)
        up = down.copy()
        if region.lower is not None and region.upper is not None:
            down, up = centre - flat(region.lower), flat(region.upper) - centre
        return cls(centre, scale, down, up, region.p)

    def reach(self, radius: float) -> tuple[Array, Array]:
        """The distances by which features may fall and rise at a radius."""
        return np.minimum(self.down, radius * self.scale), np.minimum(self.up, radius * self.scale)


def decide(piece: Piece, ball: PieceBall, radius: float, seconds: float) -> Decided | None:
    """The least value of a piece's row at a radius; None where the solver gives no answer, or the
    piece is empty."""
    if ball.p == 2:
        solved = _cone(piece, ball, radius, seconds)
        return solved if isinstance(solved, Decided) else None
    down, up = ball.reach(radius)
    low, high = _rows(piece, ball.centre)
    found = _solve(piece, ball, low, high, piece.row, down, up, radius, seconds)
    if found is None:
        return None
    step, duals, value = found
    price = np.where(piece.held, np.maximum(duals * piece.side, 0), 0.0)
    return Decided(value + float(piece.row @ ball.centre) + piece.const, ball.centre + step, price)


def empty(piece: Piece, ball: PieceBall, radius: float, seconds: float) -> Array | None:
    """Multipliers that lift a row above 0 on a piece without points; None where there are none.

    They tell by how little some side must give way: min t with side z >= -t. Times any number they
    show that no point is there, and a large one outweighs the row.
    """
    if ball.p == 2:
        solved = _cone(piece, ball, radius, seconds)
        return None if isinstance(solved, Decided) else solved
    down, up = ball.reach(radius)
    rows = piece.side[:, None] * piece.slope
    low = -piece.side * (piece.shift + piece.slope @ ball.centre)
    low = np.where(piece.held, low, -inf)
    size = np.maximum(np.abs(piece.slope) @ np.maximum(down, up), 1e-12)
    high = np.full(len(low), inf)
    least, most = -down, up
    if ball.p == 1:
        rows, least, most = np.hstack([rows, -rows]), np.zeros(2 * len(up)), np.append(up, down)
    matrix = np.hstack([rows, size[:, None]])
    cost = np.append(np.zeros(rows.shape[1]), 1.0)
    if ball.p == 1:
        safe = np.where(ball.scale > 0, ball.scale, 1.0)
        matrix = np.vstack([matrix, np.append(np.tile(1 / safe, 2), 0.0)])
        low, high = np.append(low, -inf), np.append(high, radius)
    ends = np.append(least, 0.0), np.append(most, inf)
    model = _solved(matrix, (low, high), ends, cost, seconds)
    if model is None:
        return None
    gives = float(model.getObjectiveValue())
    if gives <= 1e-9:
        return None
    duals = np.asarray(model.getSolution().row_dual)[: len(piece.side)]
    reach = float(np.abs(piece.row) @ np.maximum(down, up))  # no less than what other balls reach
    below = float(abs(piece.const + piece.row @ ball.centre)) + reach
    price: Array = np.where(piece.held, np.maximum(duals, 0), 0.0) * (4 * below / gives)
    return price


def nearest(
    piece: Piece, ball: PieceBall, most: float, unit: float, seconds: float
) -> Array | None:
    """The nearest point (features,) of a piece where its row is at most 0, within radius `most`.

    Few of the sides matter: the program has those that are close, and then those it violates.
    """
    at = piece.side * (piece.shift + piece.slope @ ball.centre)
    sides, room = -(piece.side[:, None] * piece.slope)[piece.held], at[piece.held]
    reach = np.maximum(np.abs(sides) @ (most * ball.scale), 1e-30)  # sides d <= room
    last = -NUDGE * unit - piece.const - float(piece.row @ ball.centre)
    used = np.argsort(room / reach)[:CLOSE]
    while True:
        rows = np.vstack([piece.row, sides[used]])
        step = _nearest(rows, np.append(last, room[used]), ball, most, seconds)
        if step is None:
            return None
        beyond = (sides @ step - room) / reach
        beyond[used] = 0
        if beyond.max(initial=0) <= 1e-9:
            return ball.centre + step
        worst = np.argsort(-beyond)[:CLOSE]
        used = np.append(used, worst[beyond[worst] > 1e-9])


def _nearest(
    rows: Array, high: Array, ball: PieceBall, most: float, seconds: float
) -> Array | None:
    """The shortest step d (features,) with rows d <= high, no longer than `most`."""
    if ball.p == 2:
        return _nearest_cone(rows, high, ball, most, seconds)
    features = len(ball.centre)
    down, up = ball.reach(most)
    if ball.p == inf:
        # d = e - t scale with 0 <= e <= 2 t scale, t the distance.
        scale, eye = ball.scale[:, None], np.eye(features)
        cut = np.minimum(down, up) < most * ball.scale  # by the valid range
        matrix = np.vstack(
            [
                np.hstack([rows, -rows @ scale]),
                np.hstack([eye, -2 * scale]),
                np.hstack([eye, -scale])[cut],
            ]
        )
        low = np.append(np.full(len(rows) + features, -inf), -down[cut])
        high = np.concatenate([high, np.zeros(features), up[cut]])
        cost = np.append(np.zeros(features), 1.0)
        ends = np.append(2 * most * ball.scale, most)
    else:
        safe = np.where(ball.scale > 0, ball.scale, 1.0)
        low, cost = np.full(len(rows), -inf), np.tile(1 / safe, 2)
        matrix, ends = np.hstack([rows, -rows]), np.append(up, down)
    model = _solved(matrix, (low, high), (np.zeros(len(ends)), ends), cost, seconds)
    if model is None:
        return None
    v = np.asarray(model.getSolution().col_value)
    step: Array = v[:features] - (v[features] * ball.scale if ball.p == inf else v[features:])
    return np.clip(step, -down, up)


def _cone(piece: Piece, ball: PieceBall, radius: float, seconds: float) -> Decided | Array | None:
    """Find the least value of a piece's row for p = 2, or prices that show it to be empty; None
    where the solver gives no answer."""
    at = piece.side * (piece.shift + piece.slope @ ball.centre)
    sides, room = -(piece.side[:, None] * piece.slope)[piece.held], at[piece.held]
    down, up = ball.reach(radius)
    # In units of the scale: ||w|| <= radius.
    status, w, z, right = _conic(
        piece.row * ball.scale, sides * ball.scale, room, _range(ball, down, up), radius, seconds
    )
    price = np.zeros(len(piece.side))
    if status == "Solved":
        price[piece.held] = np.maximum(z[: len(room)], 0)
        value = float(piece.row @ (ball.scale * w + ball.centre)) + piece.const
        return Decided(value, ball.centre + np.clip(ball.scale * w, -down, up), price)
    gives = -float(right @ z)
    if status == "PrimalInfeasible" and gives > 0:
        # A certificate z: left' z = 0 and right . z < 0.
        reach = float(np.abs(piece.row) @ np.maximum(down, up))
        below = float(abs(piece.const + piece.row @ ball.centre)) + reach
        price[piece.held] = np.maximum(z[: len(room)], 0) * (4 * below / gives)
        return price
    return None


def _nearest_cone(
    rows: Array, high: Array, ball: PieceBall, most: float, seconds: float
) -> Array | None:
    """`_nearest` for p = 2."""
    down, up = ball.reach(most)
    status, w, _, _ = _conic(None, rows * ball.scale, high, _range(ball, down, up), most, seconds)
    if status != "Solved":
        return None
    found: Array = np.clip(ball.scale * w, -down, up)
    return found


def _range(ball: PieceBall, down: Array, up: Array) -> tuple[Array, Array]:
    """The ends of w = d / scale that the valid range imposes; infinite where there is none."""
    moving = ball.scale > 0
    safe = np.where(moving, ball.scale, 1.0)
    low = np.where(np.isfinite(ball.down) & moving, -down / safe, -inf)
    return low, np.where(np.isfinite(ball.up) & moving, up / safe, inf)


def _conic(
    cost: Array | None,
    rows: Array,
    high: Array,
    ends: tuple[Array, Array],
    radius: float,
    seconds: float,
) -> tuple[str, Array, Array, Array]:
    """Minimise cost . w, or without one the length of w, with rows w <= high, low <= w <= up and
    ||w|| <= radius: the solver's status, w, duals, and the right hand side that they belong to."""
    clarabel = needed("clarabel")
    from scipy.sparse import csc_array, eye_array, hstack, vstack

    features = rows.shape[1]
    eye = csc_array(eye_array(features, format="csc"))
    least, most = np.flatnonzero(np.isfinite(ends[0])), np.flatnonzero(np.isfinite(ends[1]))
    sides = [csc_array(rows), eye[most], -eye[least]]
    right = np.concatenate([high, ends[1][most], -ends[0][least]])
    # The last column is the length t; clarabel: left v + slack = right, slack in cones.
    flat = vstack(sides, format="csc")
    length = csc_array(np.append(np.zeros(features), 1.0)[None])
    left = vstack(
        [
            hstack([flat, csc_array((len(right), 1))]),
            length,
            -length,
            hstack([-eye, csc_array((features, 1))]),
        ],
        format="csc",
    )
    right = np.concatenate([right, [radius], np.zeros(features + 1)])
    aim = np.append(np.zeros(features), 1.0) if cost is None else np.append(cost, 0.0)
    cones = [
        clarabel.NonnegativeConeT(len(right) - features - 1),
        clarabel.SecondOrderConeT(features + 1),
    ]
    settings = quiet_clarabel(max(seconds, 0.01))
    nothing = csc_array((features + 1, features + 1))
    solution = clarabel.DefaultSolver(nothing, aim, left, right, cones, settings).solve()
    status, w, z = str(solution.status), np.asarray(solution.x)[:-1], np.asarray(solution.z)
    if not (np.isfinite(w).all() and np.isfinite(z).all()):
        status = "NumericalError"
    return status, w, z, right


def _rows(piece: Piece, centre: Array) -> tuple[Array, Array]:
    """Bounds of slope d that keep the sides, d = x - centre."""
    at = piece.shift + piece.slope @ centre
    low = np.where(piece.held & (piece.side > 0), -at, -inf)
    return low, np.where(piece.held & (piece.side < 0), -at, inf)


def _solve(
    piece: Piece,
    ball: PieceBall,
    low: Array,
    high: Array,
    cost: Array,
    down: Array,
    up: Array,
    radius: float,
    seconds: float,
) -> tuple[Array, Array, float] | None:
    features = len(cost)
    matrix, least, most = piece.slope, -down, up
    if ball.p != inf:
        safe = np.where(ball.scale > 0, ball.scale, 1.0)
        matrix = np.vstack([np.hstack([piece.slope, -piece.slope]), np.tile(1 / safe, 2)[None]])
        low, high = np.append(low, -inf), np.append(high, radius)
        least, most = np.zeros(2 * features), np.append(up, down)
        cost = np.append(cost, -cost)
    model = _solved(matrix, (low, high), (least, most), cost, seconds)
    if model is None:
        return None
    solution = model.getSolution()
    v = np.asarray(solution.col_value)
    step = v if ball.p == inf else v[:features] - v[features:]
    duals = np.asarray(solution.row_dual)[: len(piece.side)]
    return step, duals, float(model.getObjectiveValue())


def _solved(
    matrix: Array, rows: tuple[Array, Array], ends: tuple[Array, Array], cost: Array, seconds: float
) -> Any:
    """HiGHS after minimising cost . v with matrix v and v between these bounds; None: it failed."""
    from scipy.sparse import csr_array

    model = quiet_highs()
    lp = highs_problem(Constraints(csr_array(matrix), *rows, *ends))
    lp.col_cost_ = cost
    if seconds < inf:
        model.setOptionValue("time_limit", max(seconds, 0.01))
    for name in ("primal_feasibility", "dual_feasibility"):
        model.setOptionValue(f"{name}_tolerance", 1e-9)
    model.passModel(lp)
    model.run()
    return model if model.getModelStatus() == needed("highspy").HighsModelStatus.kOptimal else None


def tensor(point: Array, like: Tensor) -> Tensor:
    """An input as one of the network's tensors."""
    return torch.from_numpy(point).to(like).view(like.shape)
