"""Gates of recurrent networks, sigmoid(x) tanh(y) and sigmoid(x) y, as one function of two
variables.

The conjugate idea again: for any slopes (p, q) the tightest intercepts are the extremes of
f(x, y) - p x - q y over the box, and the places where they can be are few: corners, a point
on each edge, and for tanh one point inside, the root of a concave equation. f is odd in y, so
a plane above f is one below it over the mirrored box.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.graph.box import Box
from frown.graph.op import Shape
from frown.relax.relaxation import (
    Anchors,
    Family,
    Frame,
    Line,
    Relaxation,
    SlopeRange,
    Slopes,
    Within,
)
from frown.relax.s_shaped import Sigmoid, Tanh

_SIGMOID, _TANH = Sigmoid(), Tanh()
_NEWTON = 8

Place = tuple[Tensor, Tensor, Tensor | None]  # x, y, and how much less f - p x - q y may be nearby


class Gate(Relaxation):
    """sigmoid(x) g(y) over the last axis, which holds x and y and disappears; g is odd."""

    __slots__ = ()

    @abstractmethod
    def carried(self, y: Tensor) -> Tensor:
        """g(y)."""

    @abstractmethod
    def inner(self, p: Tensor, q: Tensor, xs: Box, ys: Box) -> Iterator[Place]:
        """Where f - p x - q y can be least, edges of fixed y apart."""

    @abstractmethod
    def carried_lines(self, ys: Box) -> tuple[Slopes, SlopeRange]:
        """Slopes of lines below and above g: the fixed rule's and the tightest ones."""

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0][:-1]

    def apply(self, *xs: Tensor) -> Tensor:
        return torch.sigmoid(xs[0][..., 0]) * self.carried(xs[0][..., 1])

    def anchors(self, box: Box) -> Anchors:
        return Anchors.of(box)

    def line(self, slope: Tensor, below: Tensor, anchors: Anchors) -> Line:
        # Above: max f(x, y) - p x - q y = -min f(x, -y) + p x - q (-y).
        turn = torch.where(below, 1.0, -1.0).to(slope)
        xs, straight = _parts(anchors.box)
        ys = Box(
            torch.where(below, straight.lower, -straight.upper),
            torch.where(below, straight.upper, -straight.lower),
        )
        p, q = slope[..., 0] * turn, slope[..., 1]
        best = x0 = y0 = None
        for x, y, slack in self._places(p, q, xs, ys):
            value = torch.sigmoid(x) * self.carried(y) - p * x - q * y
            value = value if slack is None else value - slack
            if best is None or x0 is None or y0 is None:
                best, x0, y0 = value, x, y
                continue
            better = value < best
            best = torch.where(better, value, best)
            x0, y0 = torch.where(better, x, x0), torch.where(better, y, y0)
        assert best is not None and x0 is not None and y0 is not None
        info = torch.finfo(slope.dtype)
        reach_x, reach_y = anchors.reach.unbind(-1)
        size = self.carried(reach_y) + p.abs() * reach_x + q.abs() * reach_y
        least = best - (10 * info.eps * size + (1 + reach_y) * info.tiny)
        return Line(least * turn, torch.stack([x0, y0 * turn], -1))

    def _places(self, p: Tensor, q: Tensor, xs: Box, ys: Box) -> Iterator[Place]:
        """All points where f - p x - q y can be least."""
        tiny = torch.finfo(p.dtype).tiny
        for y in (ys.lower, ys.upper):
            yield xs.lower, y, None
            yield xs.upper, y, None
            # g(y) sigmoid(x) - p x is convex left of 0 or, if g(y) < 0, right of it.
            g = self.carried(y)
            away = _SIGMOID.touching(p / torch.where(g == 0, tiny, g))
            yield xs.clip(torch.where(g > 0, -away, away)), y, None
        yield from self.inner(p, q, xs, ys)

    def image(self, box: Box) -> Box:
        """Planes of slope 0 touch f at its least and greatest value."""
        zero, anchors = torch.zeros_like(box.lower), self.anchors(box)
        below = torch.ones(zero.shape[:-1], dtype=torch.bool, device=zero.device)
        return Box(
            self.line(zero, below, anchors).intercept,
            self.line(zero, ~below, anchors).intercept,
        )

    def settled(self, box: Box) -> Tensor:
        point = (box.lower == box.upper).all(-1, keepdim=True)
        return point.expand_as(box.lower)

    def expand(self, coef: Tensor) -> Tensor:
        return coef.unsqueeze(-1)

    def along(self, slope: Tensor, z: Tensor, intercept: Tensor) -> Tensor:
        return (slope * z).sum(-1) + intercept

    def composed(self, box: Box, m: float, kind: str) -> Slopes:
        """Slopes of lines of sigmoid and g put into one of McCormick's planes of the product."""
        xs, ys = _parts(box)
        a, b = Box(torch.sigmoid(xs.lower), torch.sigmoid(xs.upper)), Box(self.carried(ys.lower), self.carried(ys.upper))
        crown, rng = _SIGMOID.crown(xs), _SIGMOID.tightest(xs)
        sig = {'c': crown, 'l': Slopes(rng.lower.lower, rng.upper.lower), 'h': Slopes(rng.lower.upper, rng.upper.upper)}[kind[0]]
        crown, rng = self.carried_lines(ys)
        tan = {'c': crown, 'l': Slopes(rng.lower.lower, rng.upper.lower), 'h': Slopes(rng.lower.upper, rng.upper.upper)}[kind[1]]
        alpha, beta = torch.lerp(b.lower, b.upper, m), torch.lerp(a.lower, a.upper, m)
        low = torch.stack([alpha * torch.where(alpha >= 0, sig.lower, sig.upper), beta * tan.lower], -1)
        alpha = torch.lerp(b.upper, b.lower, m)
        up = torch.stack([alpha * torch.where(alpha >= 0, sig.upper, sig.lower), beta * tan.upper], -1)
        return Slopes(low, up)

    def tightest(self, box: Box) -> SlopeRange:
        import os
        if os.environ.get('NOR'): return SlopeRange(box, box)
        every = [self.composed(box, m, k) for m in (0.0, 1.0) for k in ('ll', 'lh', 'hl', 'hh')]
        low, up = torch.stack([s.lower for s in every]), torch.stack([s.upper for s in every])
        return SlopeRange(Box(low.amin(0), low.amax(0)), Box(up.amin(0), up.amax(0)))

    def crown(self, box: Box) -> Slopes:
        import os
        rule = os.environ.get('RULE', '00')
        if rule[0] == 'k':
            xs, ys = _parts(box)
            lo, hi = self.carried(ys.lower), self.carried(ys.upper)
            k = float(rule[1:])
            w = (hi - lo).clamp(min=1e-30)
            return Slopes(self.composed(box, k * (-lo / w).clamp(0, 1), 'cc').lower, self.composed(box, k * (hi / w).clamp(0, 1), 'cc').upper)
        if rule == 'best':
            anchors = self.anchors(box)
            mid = box.middle
            below = torch.ones(mid.shape[:-1], dtype=torch.bool)
            out = []
            for side, mask in (('lower', below), ('upper', ~below)):
                best = None
                for m in map(float, os.environ.get('MS', '0,1').split(',')):
                    sl = getattr(self.composed(box, m, 'cc'), side)
                    v = self.along(sl, mid, self.line(sl, mask, anchors).intercept)
                    v = v if side == 'lower' else -v
                    if best is None: best, bs = v, sl
                    else:
                        bs = torch.where((v > best + float(os.environ.get('TIE', '0')) * v.abs())[..., None], sl, bs); best = torch.maximum(best, v)
                out.append(bs)
            return Slopes(*out)
        return Slopes(self.composed(box, float(rule[0]), 'cc').lower, self.composed(box, float(rule[1]), 'cc').upper)

    def parallel(self, box: Box) -> Slopes:
        return self.composed(box, .5, 'cc')

    def family(self, frame: Frame, count: int) -> Family:
        raise NotImplementedError

RULE = 0.0

@dataclass(frozen=True, slots=True)
class GatedState(Gate):
    """sigmoid(x) y."""

    def carried(self, y: Tensor) -> Tensor:
        return y

    def inner(self, p: Tensor, q: Tensor, xs: Box, ys: Box) -> Iterator[Place]:
        """Nowhere: f is linear in y."""
        yield from ()

    def carried_lines(self, ys: Box) -> tuple[Slopes, SlopeRange]:
        one = torch.ones_like(ys.lower)
        return Slopes(one, one), SlopeRange(Box(one, one), Box(one, one))


@dataclass(frozen=True, slots=True)
class GatedTanh(Gate):
    """sigmoid(x) tanh(y)."""

    def carried(self, y: Tensor) -> Tensor:
        return torch.tanh(y)

    def carried_lines(self, ys: Box) -> tuple[Slopes, SlopeRange]:
        return _TANH.crown(ys), _TANH.tightest(ys)

    def inner(self, p: Tensor, q: Tensor, xs: Box, ys: Box) -> Iterator[Place]:
        """The edges of fixed x, where a tanh(y) - q y is convex below 0, and one point inside.

        With a = 1 - c = sigmoid(x) and b = tanh(y) the gradient vanishes where
        a c b = p and a (1 - b^2) = q, so c sqrt((1 - q - c)(1 - c)) = -p. The left side is
        concave in c, and f has a minimum there only where it rises.
        """
        for x in (xs.lower, xs.upper):
            yield x, self._lowest(q, torch.sigmoid(x), ys), None
        tiny, eps = torch.finfo(p.dtype).tiny, torch.finfo(p.dtype).eps
        rest = (1 - q).clamp(0, 1)
        # The top of the left side is a zero of 4 c^2 - (6 - 3 q) c + 2 (1 - q), the lesser.
        high = 6 - 3 * q
        top = (4 * rest / (high + (high.square() - 32 * rest).clamp(min=0).sqrt())).clamp(0, 0.5)
        level = -p
        peak = top * ((rest - top).clamp(min=0) * (1 - top)).sqrt()
        here = (level > 0) & (rest > 0) & (rest < 1) & (level <= peak * (1 + 16 * eps))
        c = (level / rest.clamp(min=tiny).sqrt()).minimum(top)
        for _ in range(_NEWTON):
            left = (rest - c).clamp(min=0)
            root = (left * (1 - c)).sqrt().clamp(min=tiny)
            rise = root - c * (left + 1 - c) / (2 * root)
            gap = (level - c * root).clamp(min=0)
            c = torch.where(rise > 0, c + gap / rise.clamp(min=tiny), c).minimum(top)
        short = (level - c * ((rest - c).clamp(min=0) * (1 - c)).sqrt()).abs()
        c = c.clamp(min=tiny)
        x = torch.where(here, xs.clip(torch.log((1 - c) / c)), xs.lower)
        width = xs.upper - xs.lower
        slack = torch.where(here, short * width, 0.0)
        yield x, self._lowest(q, torch.sigmoid(x), ys), slack

    def _lowest(self, q: Tensor, a: Tensor, ys: Box) -> Tensor:
        """Where a tanh(y) - q y is least beside the ends."""
        tiny = torch.finfo(q.dtype).tiny
        return ys.clip(-_TANH.touching(q / a.clamp(min=tiny)))


def _parts(box: Box) -> tuple[Box, Box]:
    """The boxes of x and of y."""
    return Box(box.lower[..., 0], box.upper[..., 0]), Box(box.lower[..., 1], box.upper[..., 1])
