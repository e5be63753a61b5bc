"""Choices that floats may make freely: nothing here has to be right.

A line of any slope, a tangent at any place of its piece and any split of a form give a valid bound;
`lines` and `region` compute it from what is chosen, whatever that is. A bad choice proves less, and
one that is infinite or NaN nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from frown_check.balls import Array, horner

HALVINGS = 60  # in the search for a multiplier
BLOCK, DEPTH = 4, 14  # of the space in which an eigenvalue is looked for

# -- slopes where a certificate brings none: below and above ------------------------------------


def chords(kind: str, low: Array, high: Array, at_low: Array, at_high: Array) -> list[Array]:
    """Chords; below a ReLU 0 or 1, whichever is nearer at the middle."""
    with np.errstate(all="ignore"):
        chord = (at_high - at_low) / (high - low)
    chord = np.where(np.isfinite(chord), chord, 0.0)
    return [(low / 2 + high / 2 > 0).astype(np.float64) if kind == "Relu" else chord, chord]


def maximum_slopes(low: Array, high: Array) -> list[Array]:
    """Below the entry with the highest middle, above a constant (or that entry if no other can be
    larger)."""
    best = (low / 2 + high / 2).argmax(-1)[..., None]
    pick = np.zeros_like(low)
    np.put_along_axis(pick, best, 1.0, -1)
    rival = np.where(pick > 0, -np.inf, high).max(-1)
    settled = (pick * low).sum(-1) >= rival
    return [pick, np.where(settled[..., None], pick, 0.0)]


def product_slopes(low: Array, high: Array) -> list[Array]:
    """Two of McCormick's planes."""
    x, y, top = low[..., 0], low[..., 1], high[..., 1]
    return [np.stack([y, x], -1), np.stack([top, x], -1)]


# -- places where f' is about a slope, on pieces that are convex (bend 1) or concave (-1) --------


def touch_table(
    slope_coef: Array, step: float, slope: Array, low: Array, high: Array, bend: int
) -> Array:
    """Look f' up among the nodes k step, interpolate, and take two steps of Newton's method.

    slope_coef (degree, nodes): the polynomials of f' at the nodes, 0 in their middle.
    """
    nodes = slope_coef.shape[1] // 2
    first = int(np.clip(np.ceil(low.min() / step), -nodes, nodes - 1)) + nodes
    last = int(np.clip(np.floor(high.max() / step), first - nodes + 1, nodes)) + nodes
    slopes = np.maximum.accumulate(bend * slope_coef[0, first : last + 1])
    place = np.clip(np.searchsorted(slopes, bend * slope), 1, len(slopes) - 1) - 1
    rise = slopes[place + 1] - slopes[place]
    with np.errstate(all="ignore"):
        t = step * np.clip((bend * slope - slopes[place]) / rise, 0.0, 1.0)
        t = np.where(np.isnan(t), 0.0, t)
        place = place + first
        derivative = slope_coef[:, place]
        second = np.arange(1, len(slope_coef))[:, None] * derivative[1:]
        for _ in range(2):
            newton = (horner(derivative, t) - slope) / horner(second, t)
            t = np.clip(np.where(np.isfinite(newton), t - newton, t), 0.0, step)
    touched: Array = (place - nodes) * step + t
    return touched


def touch_halving(
    derivative: Callable[[Array], Array], slope: Array, low: Array, high: Array, bend: int
) -> Array:
    """Halve [low, high], on which bend f' grows, until f' is about the slope."""
    for _ in range(50):
        middle = low / 2 + high / 2
        left = bend * derivative(middle) < bend * slope
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return low


def touch_power(n: int, slope: Array, low: Array, high: Array, bend: int) -> Array:
    """n z^(n - 1) = slope."""
    side = np.where(high <= 0, -1.0, 1.0)
    with np.errstate(all="ignore"):
        middle = n * (low / 2 + high / 2) ** (n - 1)
        ratio = slope / n * (side if n % 2 == 0 else 1.0)  # |z|^(n - 1), if it is anywhere
        inside = side * ratio ** (1.0 / (n - 1))
        nowhere = np.where((middle > slope) == (bend > 0), low, high)
    return np.where(ratio > 0, inside, nowhere)


# -- splits of a form -----------------------------------------------------------------------------


def held(w: Array, scale: Array, towards: Array, radius: float, p: float) -> Array:
    """The part of rows w (R, n) that is held by a ball rather than by the range of the features.

    With x = c - sign(w) s r d, gains g = |w| s and room k = towards / (s r) for d, the best d is
    min(k, (g / m)^(q-1)) with the multiplier m at which it has length 1. What holds a
    feature that is out of room is m d^(p-1) of its gain g.
    """
    gain = np.abs(w) * scale
    with np.errstate(all="ignore"):
        room = np.maximum(towards / scale / radius, 0.0)
        small, large = np.zeros((len(w), 1)), gain.max(1, keepdims=True) * 2.0
        if p > 1:
            large = large * w.shape[1]
        for _ in range(HALVINGS):
            m = np.sqrt(small * large) if (small > 0).all() else (small + large) / 2
            if p == 1:
                length = np.where(gain > m, room, 0.0).sum(1, keepdims=True)
            else:
                d = np.minimum(room, (gain / m) ** (1 / (p - 1)))
                length = (d**p).sum(1, keepdims=True) ** (1 / p)
            longer = length > 1
            small, large = np.where(longer, m, small), np.where(longer, large, m)
        kept = np.minimum(gain, large if p == 1 else large * room ** (p - 1))
        found = np.where(kept >= gain * (1 - 1e-15), w, np.sign(w) * kept / scale)
    return np.where(np.isfinite(found), found, 0.0)


# -- ellipsoids -----------------------------------------------------------------------------------


def gains(terms: Sequence[Array]) -> list[float]:
    """Factors g of terms F_j, with sum g^-2 <= 1: 1 / g^2 in proportion to their norms."""
    if len(terms) == 1:
        return [1.0]
    sizes = [_norm(t) for t in terms]
    least = 1e-9 * sum(sizes) + 1e-300
    sizes = [s if s > least else least for s in sizes]
    whole = sum(sizes) * (1 + 1e-9)
    return [float(np.sqrt(whole / s)) for s in sizes]


def _norm(factor: Array) -> float:
    """The norm of a matrix, give or take some percent."""
    if not min(factor.shape) or not np.isfinite(factor).all():
        return 0.0
    x = np.random.default_rng(0).normal(size=(len(factor), BLOCK))
    for _ in range(2):
        x = factor @ (factor.T @ (x / max(float(np.abs(x).max()), 1e-300)))
    return float(np.linalg.norm(factor.T @ np.linalg.qr(x)[0], 2))


def eigenvalues(matrix: Array) -> Iterator[float]:
    """Numbers above the largest eigenvalue of a symmetric matrix, the nearest ones first."""
    n = len(matrix)
    if n == 0:
        yield 0.0
        return
    if not np.isfinite(matrix).all():
        return
    if n <= BLOCK * DEPTH:
        top = float(np.linalg.eigvalsh(matrix)[-1])
    else:
        x: Array = np.random.default_rng(0).normal(size=(n, BLOCK))
        basis = []
        for _ in range(DEPTH):
            x = np.asarray(np.linalg.qr(matrix @ x)[0], dtype=np.float64)
            basis.append(x)
        space = np.linalg.qr(np.concatenate(basis, 1))[0]
        top = float(np.linalg.eigvalsh(space.T @ (matrix @ space))[-1])
    top = max(top, 0.0) + 1e-14 * float(np.abs(matrix.diagonal()).sum()) + 1e-300
    yield top * 1.001
    for k in range(40):
        yield top * 1.004 * 1.01**k


def root(matrix: Array) -> Array | None:
    """A matrix C with C C^T near a symmetric one; None where that has negative eigenvalues."""
    try:
        found: Array = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    return found
