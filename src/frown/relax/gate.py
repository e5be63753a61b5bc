"""Gates of recurrent networks, sigmoid(x) tanh(y) and sigmoid(x) y, each as one function of
two variables.

The conjugate idea again: for any slopes (p, q) the tightest intercepts are the extremes of
f(x, y) - p x - q y over the box. They lie on its edges, where one variable is left and the
extreme is known in closed form, or for tanh at one point inside, the root of a concave
equation. docs/mathematics.md derives it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph.box import Box
from frown.relax.relaxation import (
    Anchors,
    Family,
    Frame,
    Joint,
    Line,
    SlopeRange,
    Slopes,
)
from frown.relax.s_shaped import Sigmoid, SShaped, Tanh

_SIGMOID, _TANH = Sigmoid(), Tanh()
_NEWTON = 6  # steps towards the point inside; what is left to the root is made up for

Point = tuple[Tensor, Tensor, Tensor]  # x, y and f(x, y)


class Gate(Joint):
    """sigmoid(x) g(y) over the last axis, which holds x and y and disappears.

    g is odd and rises. Planes above f are planes below it over the box mirrored in y.
    """

    __slots__ = ()

    @abstractmethod
    def carried(self, y: Tensor) -> Tensor:
        """g(y)."""

    @abstractmethod
    def bends(self, ys: Box) -> SlopeRange:
        """Slopes of the tightest lines of g."""

    @abstractmethod
    def leaning(self, ys: Box) -> Slopes:
        """Slopes of the fixed rule's lines of g."""

    @abstractmethod
    def across(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Iterator[Point]:
        """Where f - p x - q y can be extreme on the edges of fixed x, corners apart."""

    @abstractmethod
    def inside(self, slope: Tensor, below: Tensor, anchors: Anchors, line: Line) -> Line:
        """The line, corrected where f - p x - q y is extreme inside the box."""

    # -- what follows -------------------------------------------------------------

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.sigmoid(xs[0][..., 0]) * self.carried(xs[0][..., 1])

    def anchors(self, box: Box) -> Anchors:
        """Both ends of x and of y, with sigmoid and g there."""
        x, y = _parts(box)
        gates = tuple((end, torch.sigmoid(end)) for end in (x.lower, x.upper))
        states = tuple((end, self.carried(end)) for end in (y.lower, y.upper))
        return Anchors.of(box, (*gates, *states))

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        p, q = slope.unbind(-1)
        best = x0 = y0 = None
        for x, y, f in (*self._along(p, below, anchors), *self.across(slope, below, anchors)):
            value = torch.addcmul(torch.addcmul(f, p, x, value=-1), q, y, value=-1)
            if best is None or x0 is None or y0 is None:
                best, x0, y0 = value, x, y
                continue
            better = (value < best) == below
            best = torch.where(better, value, best)
            x0, y0 = torch.where(better, x, x0), torch.where(better, y, y0)
        assert best is not None and x0 is not None and y0 is not None
        line = self.inside(slope, below, anchors, Line(best, torch.stack([x0, y0], -1)))
        info = torch.finfo(slope.dtype)
        reach_x, reach_y = anchors.reach.unbind(-1)
        size = self.carried(reach_y) + p.abs() * reach_x + q.abs() * reach_y
        # What underflows is less than tiny; it may be a slope or be multiplied by y.
        slack = 10 * info.eps * size + (1 + reach_x) * (1 + reach_y) * info.tiny
        return Line(torch.where(below, line.intercept - slack, line.intercept + slack), line.touch)

    def _along(self, p: Tensor, below: Tensor, anchors: Anchors) -> Iterator[Point]:
        """Extremes of f - p x on the edges of fixed y.

        g(y) sigmoid(x) is convex on one side of 0: an extreme lies there, where its derivative
        is p, or at the far end of the other side.
        """
        (x_low, s_low), (x_high, s_high), *states = anchors.points
        for y, g in states:
            away = _touching(_SIGMOID, p, g)
            left = g.signbit() != below
            x = torch.where(left, -away, away).maximum(x_low).minimum(x_high)
            yield x, y, g * torch.sigmoid(x)
            yield torch.where(left, x_high, x_low), y, g * torch.where(left, s_high, s_low)

    def tightest(self, box: Box) -> SlopeRange:
        """Slopes of tightest lines of both factors, put into McCormick's planes."""
        x, y = _parts(box)
        gate, state = _SIGMOID.tightest(x), self.bends(y)
        s_low, s_high = torch.sigmoid(x.lower), torch.sigmoid(x.upper)
        sides = []
        for q, same, other in (
            (state.lower, gate.lower, gate.upper),
            (state.upper, gate.upper, gate.lower),
        ):
            ends = []
            for g in (self.carried(y.lower), self.carried(y.upper)):
                low = torch.where(g >= 0, same.lower, other.lower)
                high = torch.where(g >= 0, same.upper, other.upper)
                ends += [g * low, g * high]
            p = torch.stack(ends)
            sides.append(
                Box(
                    torch.stack([p.amin(0), s_low * q.lower], -1),
                    torch.stack([p.amax(0), s_high * q.upper], -1),
                )
            )
        return SlopeRange(*sides)

    def crown(self, box: Box) -> Slopes:
        """CROWN's lines of both factors in one of McCormick's planes.

        Those lie equally far from the product in the middle of the box. At one end they lean
        least on the state; further on, while g may be 0, they lean as much less on the gate.
        Half-way there is the choice.
        """
        _, y = _parts(box)
        low, high = self.carried(y.lower), self.carried(y.upper)
        width = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        return self._composed(box, *((end / width).clamp(0, 1) / 2 for end in (-low, high)))

    def parallel(self, box: Box) -> Slopes:
        """The chords of both factors in the middle plane."""
        x, y = _parts(box)
        gate = _SIGMOID.chord(x) * (self.carried(y.lower) + self.carried(y.upper)) / 2
        rise = (self.bends(y).lower.lower + self.bends(y).lower.upper) / 2
        state = rise * (torch.sigmoid(x.lower) + torch.sigmoid(x.upper)) / 2
        slope = torch.stack([gate, state], -1)
        return Slopes(slope, slope)

    def family(self, frame: Frame, count: int) -> Family:
        """The fixed rule's planes and those at both ends of McCormick's segments."""
        rule = frame.lines.slopes
        if count == 1:
            return Family((rule.lower,), (rule.upper,))
        zero = torch.zeros_like(frame.box.lower[..., 0])
        ends = [self._composed(frame.box, m, m) for m in (zero, zero + 1)]
        if count > 2:
            ends.append(rule)
        return Family(tuple(s.lower for s in ends), tuple(s.upper for s in ends))

    def _composed(self, box: Box, lower: Tensor, upper: Tensor) -> Slopes:
        """Lines of both factors in McCormick's planes at these places of their segments."""
        x, y = _parts(box)
        gate, state = _SIGMOID.crown(x), self.leaning(y)
        low, high = self.carried(y.lower), self.carried(y.upper)
        s_low, s_high = torch.sigmoid(x.lower), torch.sigmoid(x.upper)
        g = torch.lerp(low, high, lower)
        below = torch.stack(
            [
                g * torch.where(g >= 0, gate.lower, gate.upper),
                torch.lerp(s_low, s_high, lower) * state.lower,
            ],
            -1,
        )
        g = torch.lerp(high, low, upper)
        above = torch.stack(
            [
                g * torch.where(g >= 0, gate.upper, gate.lower),
                torch.lerp(s_low, s_high, upper) * state.upper,
            ],
            -1,
        )
        return Slopes(below, above)

    def settled(self, box: Box) -> Tensor:
        point = (box.lower == box.upper).all(-1, keepdim=True)
        return point.expand_as(box.lower)


@dataclass(frozen=True, slots=True)
class GatedState(Gate):
    """sigmoid(x) y: linear in y, so all extremes lie on the edges of fixed y."""

    def carried(self, y: Tensor) -> Tensor:
        return y

    def bends(self, ys: Box) -> SlopeRange:
        one = torch.ones_like(ys.lower)
        return SlopeRange(Box(one, one), Box(one, one))

    def leaning(self, ys: Box) -> Slopes:
        one = torch.ones_like(ys.lower)
        return Slopes(one, one)

    def across(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Iterator[Point]:
        yield from ()

    def inside(self, slope: Tensor, below: Tensor, anchors: Anchors, line: Line) -> Line:
        return line


@dataclass(frozen=True, slots=True)
class GatedTanh(Gate):
    """sigmoid(x) tanh(y)."""

    def carried(self, y: Tensor) -> Tensor:
        return torch.tanh(y)

    def bends(self, ys: Box) -> SlopeRange:
        return _TANH.tightest(ys)

    def leaning(self, ys: Box) -> Slopes:
        return _TANH.crown(ys)

    def across(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Iterator[Point]:
        """Where sigmoid(x) tanh'(y) = q, left of 0 below and right of it above."""
        low, high = anchors.box.lower[..., 1], anchors.box.upper[..., 1]
        for x, s in anchors.points[:2]:
            y = _crest(slope[..., 1], s, below, low, high)
            yield x, y, s * torch.tanh(y)

    def inside(self, slope: Tensor, below: Tensor, anchors: Anchors, line: Line) -> Line:
        """Below: with a = 1 - c = sigmoid(x), b = tanh(y), the gradient is 0 where a c b = p
        and a (1 - b^2) = q, that is b < 0 and

            h(c) = c sqrt((1 - q - c) (1 - c)) = -p.

        h is concave, and f has a minimum there only where h rises, so there is one such c at
        most. Newton's steps from the left never pass it. Along the y that are best for each x,
        f - p x - q y changes by at most -p - h(c) per step in x from there to the minimum.
        """
        p, q = slope.unbind(-1)
        (x_low, _), (x_high, _), (y_low, _), (y_high, _) = anchors.points
        level = torch.where(below, -p, p)
        may = (level > 0) & _bowl(level, q, below, anchors)
        at = may.nonzero(as_tuple=True)
        if not len(at[0]):
            return line
        p, q, level, under, x_low, x_high, y_low, y_high = (
            t.expand_as(may)[at] for t in (p, q, level, below, x_low, x_high, y_low, y_high)
        )
        info = torch.finfo(p.dtype)
        rest = 1 - q
        # h is greatest at the lesser zero of 4 c^2 - (6 - 3 q) c + 2 (1 - q).
        top = 4 * rest / (6 - 3 * q + (4 - 4 * q + 9 * q.square()).sqrt())
        c = (level / rest.sqrt()).minimum(top)
        for _ in range(_NEWTON):
            left = (rest - c).clamp(min=info.tiny)
            root = (left * (1 - c)).sqrt()
            rise = root - c * (left + 1 - c) / (2 * root)
            gap = (level - c * root).clamp(min=0)
            c = torch.where(rise > 0, c + gap / rise, c).minimum(top)
        short = level - c * ((rest - c).clamp(min=0) * (1 - c)).sqrt()
        peak = top * ((rest - top).clamp(min=0) * (1 - top)).sqrt()
        c = c.clamp(min=info.tiny)
        x = torch.log((1 - c) / c)
        there = (level <= peak * (1 + 16 * info.eps)) & (x >= x_low)
        x = x.maximum(x_low).minimum(x_high)
        s = torch.sigmoid(x)
        y = _crest(q, s, under, y_low, y_high)
        value = s * torch.tanh(y) - p * x - q * y
        missed = short.clamp(min=0) * (x - x_low.clamp(min=0)).clamp(min=0)
        value = torch.where(under, value - missed, value + missed)
        old = line.intercept[at]
        better = there & ((value < old) == under)
        intercept, touch = line.intercept.clone(), line.touch.clone()
        intercept[at] = torch.where(better, value, old)
        touch[at] = torch.where(better[:, None], torch.stack([x, y], -1), touch[at])
        return Line(intercept, touch)


def _bowl(level: Tensor, q: Tensor, below: Tensor, anchors: Anchors) -> Tensor:
    """Mask of the slopes that f can have inside the box where it is convex (below) or concave.

    Below, f is convex where a >= 1/2, b <= 0 and 2 b^2 (2 a - 1) >= (1 - a) (1 - b^2), or
    b^2 >= (1 - a) / (3 a - 1). There -p = a (1 - a) |b| and q = a (1 - b^2).
    """
    (_, s_low), (_, s_high), (_, g_low), (_, g_high) = anchors.points
    first = s_low.clamp(min=0.5)
    last = torch.maximum(first, s_high)
    ease = 1 + 1e-3  # for rounding
    least = (1 - last) / (3 * last - 1)  # of b^2
    masks = []
    for depth in (-g_low, g_high):
        square = depth.clamp(min=0).square()
        masks.append(
            (s_high >= 0.5)
            & (least <= ease * square)
            & (level <= ease * first * (1 - first) * square.sqrt())
            & (ease * level >= last * (1 - last) * least.sqrt())
            & (ease * q >= first * (1 - square))
            & (q <= ease * last * (1 - least))
            & (q < 1)
        )
    return torch.where(below, masks[0], masks[1])


def _crest(q: Tensor, s: Tensor, below: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Where s tanh(y) - q y is least or greatest, far ends of the box apart."""
    away = _touching(_TANH, q, s)
    return torch.where(below, -away, away).maximum(low).minimum(high)


def _touching(f: SShaped, slope: Tensor, factor: Tensor) -> Tensor:
    """The z >= 0 with factor f'(z) = slope; infinite where f is too flat for that."""
    tiny = torch.finfo(slope.dtype).tiny
    ratio = slope / factor.abs().clamp(min=tiny).copysign(factor)
    return torch.where(ratio <= tiny, torch.inf, f.touching(ratio))


def _parts(box: Box) -> tuple[Box, Box]:
    """The boxes of x and of y."""
    return Box(box.lower[..., 0], box.upper[..., 0]), Box(box.lower[..., 1], box.upper[..., 1])
