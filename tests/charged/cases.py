"""Hostile networks, regions and points for tests of rigorous bounds.

Sizes of weights range over hundreds of binary orders and half of the layers cancel, so plain
floating point is wrong about nearly all of these networks. Points lie in their region exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isqrt

import numpy as np
import torch
from flint import arb, ctx, fmpq
from torch import Tensor

from charged.exact import Exact, Network, balls, exact, rational
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Choice, Proof, Request
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.graph.builder import Builder, Value
from frown.graph.graph import Graph
from frown.problem.property import LabelWins
from frown.problem.region import Region
from frown.relax import Abs, Clip, LeakyRelu, Max, PRelu, Product, Relu
from frown.relax.relaxation import LeastArea, Parallel, Relaxation, Rule
from functions import ELEMENTWISE

SMOOTH = ("sigmoid", "tanh", "arctan", "softplus", "elu", "selu", "silu", "gelu", "gelu_tanh")
PRECISION = 600
CLASSES = 3
RULES = {"crown": LeastArea(), "fastlin": Parallel(), "interval": None}


@dataclass
class Draw:
    """Random choices. `reach`: weights are of sizes 2^-reach to 2^reach."""

    rng: np.random.Generator
    reach: int

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def among(self, *choices: object) -> object:
        return choices[int(self.rng.integers(len(choices)))]

    def numbers(self, *shape: int) -> Tensor:
        """Numbers of one size, or each of its own; some are 0."""
        rng = self.rng
        each = self.chance(0.5)
        power = rng.integers(-self.reach, self.reach + 1, shape if each else ())
        values = rng.standard_normal(shape) * 2.0**power
        return torch.from_numpy(np.where(rng.random(shape) < 0.1, 0.0, values))

    def layer(self, out: int, fan: int) -> tuple[Tensor, Tensor]:
        """Weights and biases. Often rows come in pairs that are nearly equal, and columns in
        pairs that nearly cancel, so that after two such layers little but rounding is left."""
        weight, bias = self.numbers(out, fan), self.numbers(out)
        half = out // 2
        if self.chance(0.7):
            weight[half : 2 * half] = weight[:half] * self._nearly(half, fan)
            bias[half : 2 * half] = bias[:half] * self._nearly(half)
        half = fan // 2
        if self.chance(0.7):
            weight[:, half : 2 * half] = -weight[:, :half] * self._nearly(out, half)
        return weight, bias

    def _nearly(self, *shape: int) -> Tensor:
        """1, to a few ulps."""
        return torch.from_numpy(1 + 2.0**-52 * self.rng.integers(-1, 2, shape))


def network(rng: np.random.Generator, smooth: bool = False) -> Graph:
    """A small network of random operators."""
    reach = 6 if smooth else int(rng.choice([3, 30, 80]))
    draw, b = Draw(rng, reach), Builder()
    x = b.input("x", (2, int(rng.integers(1, 4))))
    x = b.reshape(x, (x.shape[0] * x.shape[1],))
    if not smooth and draw.chance(0.15):  # all numbers tiny or huge from here on
        x = b.scale(x, 2.0 ** float(rng.choice([-540, -1020, 300])))
    seen = [x]
    for _ in range(int(rng.integers(2, 7))):
        x = _step(draw, b, x, seen, smooth)
        seen.append(x)
    return b.graph(b.linear(x, *draw.layer(CLASSES, x.shape[0])))


def _step(draw: Draw, b: Builder, x: Value, seen: list[Value], smooth: bool) -> Value:
    size, rng = x.shape[0], draw.rng
    kind = int(rng.integers(13))
    if kind <= 3:
        out = int(rng.integers(1, 6))
        y = b.linear(x, *draw.layer(out, size))
        return y if draw.chance(0.3) else b.add(_activation(draw, smooth, out), y)
    if kind == 4:
        return b.scale(b.scale(x, 1.0, draw.numbers(size)), draw.numbers(size), draw.numbers(size))
    if kind == 5:
        partner = next(v for v in seen if v.shape == x.shape)
        weight = float(draw.among(1.0, -1.0, 0.3, -(2.0**20) / 3))  # type: ignore[arg-type]
        found = b.combine(x, partner, weight)
    elif kind == 6:
        found = b.concat([x, seen[-1]], 0) if size < 5 else x
    elif kind == 7:
        value = float(draw.numbers(1))
        found = b.pad(x, [(1, 1)], value=value) if size < 6 else x
    elif kind == 8:
        found = b.gather(x, 0, torch.from_numpy(rng.integers(0, size, min(6, size + 1))))
    elif kind == 9:
        total = b.expand(b.sum(x, None, True), (size,))
        found = b.combine(x, total, -1.0 / 3)
    elif kind == 10 and size > 1:
        kernel, bias = draw.layer(4, 2)[0].reshape(2, 2, 2), draw.numbers(2)
        wide = b.reshape(b.expand(b.reshape(x, (1, size)), (2, size)), (1, 2, size))
        y = b.conv(wide, kernel, bias, (1,), ((1, 0),), (1,), 1)
        found = b.slice(b.reshape(y, (2 * size,)), 0, 0, 6)
    elif kind == 11 and size > 1:
        pairs = torch.from_numpy(rng.integers(0, size, (3, 3)))
        found = b.add(Max(), b.gather(x, 0, pairs))
    elif kind == 12 and not smooth and draw.reach < 80:
        other = b.gather(x, 0, torch.from_numpy(rng.integers(0, size, size)))
        found = b.add(Product(), b.pair(x, other))
    else:
        found = b.add(_activation(draw, smooth, size), x)
    assert isinstance(found, Value)
    return found


def _activation(draw: Draw, smooth: bool, size: int) -> Relaxation:
    if smooth:
        return ELEMENTWISE[str(draw.among(*SMOOTH))]
    edges = sorted(draw.numbers(2).tolist())
    clip = Clip(*edges) if edges[0] < edges[1] else Clip(0.0, inf)
    slope = float(draw.among(0.1, -0.3, 1.7, 2.0**-60))  # type: ignore[arg-type]
    return draw.among(  # type: ignore[return-value]
        Relu(), Relu(), LeakyRelu(slope), PRelu(draw.numbers(size)), clip, Abs()
    )


def regions(rng: np.random.Generator, shape: tuple[int, ...], count: int) -> Region:
    """Balls of one norm around several centres, with scales, ranges and frames or without."""
    draw = Draw(rng, int(rng.choice([0, 2, 20])))
    centre = draw.numbers(count, *shape)
    power = rng.choice([-1040, -560, -60, -30, -8, 0, 3], count)
    radius = torch.from_numpy(rng.uniform(0.5, 1, count) * 2.0**power)
    p = float(rng.choice([1, 2, 3, 1.5, inf]))
    scale = lower = upper = split = None
    if draw.chance(0.4):
        scale = draw.numbers(int(rng.choice([1, count])), *shape).abs()
    if draw.chance(0.4):
        gap = radius.view(-1, 1, 1) * torch.from_numpy(rng.uniform(0, 2, (count, *shape)))
        lower = centre - gap * torch.from_numpy(rng.integers(0, 2, (count, *shape)))
        upper = centre + gap * torch.from_numpy(rng.integers(0, 3, (count, *shape)))
    if draw.chance(0.3) and p < inf:
        split = 1
    return Region(centre, radius, p, scale, lower, upper, split)


def points(rng: np.random.Generator, region: Region, n: int, slopes: Tensor) -> Iterator[Exact]:
    """Points of the n-th ball in rational numbers: its centre, and far ends along the rows of
    `slopes` (K, *shape) and at random."""
    one = region.rows(slice(n, n + 1))
    centre = exact(one.centre[0])
    yield centre
    scale = exact(torch.ones_like(one.centre[0]) if one.scale is None else one.scale[0])
    randoms = torch.from_numpy(rng.standard_normal((1, *region.centre.shape[1:])))
    for g in torch.cat([-slopes, randoms]):
        steps = np.empty(g.shape, dtype=object)
        frames = [()] if one.split is None else [(k,) for k in range(len(g))]
        for k in frames:
            steps[k] = _step_of_length_one(g[k].numpy() * _floats(scale[k]), one.p)
        x = centre + rational(float(one.radius[0])) * scale * steps
        if one.lower is not None and one.upper is not None:
            # The range holds the centre: cutting makes every step shorter.
            x = np.minimum(np.maximum(x, exact(one.lower[0])), exact(one.upper[0]))
        yield x


def _floats(x: Exact) -> np.ndarray:
    return np.array([_near(v) for v in x.ravel()]).reshape(x.shape)


def _step_of_length_one(g: np.ndarray, p: float) -> Exact:
    """d with ||d||_p <= 1, exactly, and d . g close to the largest."""
    zero = exact(np.zeros(g.shape))
    top = np.abs(g).max()
    if not (isfinite(top) and top > 0):
        return zero
    share = g / top
    if p == inf:
        return exact(np.sign(share))
    if p == 1:
        best = np.abs(share) == np.abs(share).max()
        best &= np.cumsum(best.ravel()).reshape(best.shape) == 1
        return exact(np.sign(share) * best)
    d = exact(np.sign(share) * np.abs(share) ** (1 / (p - 1)))
    if p == 2:
        square = sum(v * v for v in d.ravel())
        return d / _root_above(square)
    if p == 3:
        cube = sum(abs(v) ** 3 for v in d.ravel())
        length = rational(_near(cube) ** (1 / 3) * (1 + 1e-12))
        return d / length if cube <= length**3 else zero
    return d / sum(abs(v) for v in d.ravel())  # ||d||_p <= ||d||_1


def _root_above(x: fmpq) -> fmpq:
    """A rational number just above the square root."""
    shift = 2**200
    return fmpq(isqrt(int(x.p) * shift * shift // int(x.q)) + 1, shift)


@dataclass(frozen=True)
class Chosen(Proof):
    """Slopes by a function of a request; where it gives None, the rule's."""

    lines: Rule | None
    slopes: Callable[[Request], Choice | None]
    entries: Callable[[int], Tensor] | None = None  # of a node that are ready

    @property
    def rule(self) -> Rule | None:
        return self.lines

    def take(self, index: Tensor) -> Chosen:
        raise NotImplementedError("the samples of a test stay together")

    @classmethod
    def cat(cls, proofs: Sequence[Chosen]) -> Chosen:
        raise NotImplementedError("the samples of a test stay together")

    def blank(self, samples: int) -> Chosen:
        raise NotImplementedError("the samples of a test stay together")

    def to(self, device: torch.device) -> Chosen:
        raise NotImplementedError("tests replay where they choose")

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        return self.slopes(request)

    def ready(self, plan: Plan, source: int) -> Tensor | None:
        return None if self.entries is None else self.entries(source)


def random_slopes(plan: Plan, rng: np.random.Generator, rule: Rule | None) -> Chosen:
    """Slopes near the fixed rule's, far from them, and absurd ones."""

    def choose(request: Request) -> Choice | None:
        if rng.random() < 0.3:
            return None
        chosen = {}
        for i in plan.below(request.target):
            rule = request.relaxed[i].lines.slopes.upper[request.rows.sample]
            shape = (len(request.coef), *rule.shape[1:])
            noise = torch.from_numpy(rng.choice([0.0, 0.0, 0.1, 2.0, 2.0**70], shape))
            moved = rule + noise * torch.from_numpy(rng.standard_normal(shape))
            chosen[i] = moved.expand(shape).contiguous()
        multiplier = None
        if rng.random() < 0.5:
            tables = {
                i: torch.from_numpy(rng.choice([0.0, 1.0, -0.3, 2.0**-60, -(2.0**40)], s.shape))
                for i, s in chosen.items()
                if rng.random() < 0.7
            }
            multiplier = tables.get
        # One node after the other, or all at the end.
        whole = bool(rng.random() < 0.7)
        return Choice(lambda i, here: chosen[i], whole, multiplier)

    return Chosen(rule, choose)


@dataclass
class Tally:
    """What a run of cases came to."""

    networks: int = 0
    cases: int = 0  # regions of a network
    statements: int = 0  # bounds compared with exact values
    silent: int = 0  # bounds that are infinite or NaN: nothing is said
    tight: int = 0  # cases with a margin known to 1 part in 10^6
    false: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.networks} networks, {self.cases} regions, {self.statements} statements "
            f"({self.silent} more say nothing), {self.tight} regions with tight margins, "
            f"{len(self.false)} false"
        )


def replay(
    graph: Graph, region: Region, rng: np.random.Generator, tally: Tally, smooth: bool, name: str
) -> None:
    """Bound a network over regions and compare all bounds with exact values at points."""
    ctx.prec = PRECISION
    network = Network(graph)
    plan = Plan(graph)
    rule = RULES[str(rng.choice(["crown", "crown", "fastlin", "interval"]))]
    proof = ByRule(rule) if rng.random() < 0.5 else random_slopes(plan, rng, rule)
    walk = Replay(plan, region, proof, Work())
    walk.layers()
    count = len(region.radius)
    label = torch.from_numpy(rng.integers(0, CLASSES, count))
    target = torch.stack([(label + 1) % CLASSES, (label + 2) % CLASSES], 1)
    spec = LabelWins(label, target, CLASSES, torch.float64)
    proved = walk.literals(spec)
    slopes = _gradients(graph, region, spec.coef)
    tally.networks += 1
    boxes = {i: (box.lower.numpy(), box.upper.numpy()) for i, box in walk.values.items()}
    for n in range(count):
        tally.cases += 1
        least: list[float] = []
        for x in points(rng, region, n, slopes[n]):
            values = network.values(balls(x) if smooth else x)
            for i, (low, high) in boxes.items():
                for z, a, b in zip(values[i].flat, low[n].flat, high[n].flat, strict=True):
                    _compare(tally, f"{name} sample {n} node {i}", z, a)
                    _compare(tally, f"{name} sample {n} node {i}", -z, -b)
            out = values[-1]
            for t in range(2):
                gap = out[int(label[n])] - out[int(target[n, t])]
                _compare(tally, f"{name} sample {n} margin {t}", gap, float(proved[n, t]))
                if t == 0:
                    least.append(_near(gap))
        known = float(proved[n, 0])
        tally.tight += isfinite(known) and abs(min(least) - known) <= 1e-6 * abs(known)


def _compare(tally: Tally, where: str, value: fmpq | arb, bound: float) -> None:
    if not isfinite(bound):
        tally.silent += 1
        return
    tally.statements += 1
    near = _near(value)
    if near - abs(near) * 2.0**-50 > bound:
        return
    gap = value - (rational(bound) if isinstance(value, fmpq) else arb(rational(bound)))
    if gap < 0:
        tally.false.append(f"{where}: {near!r} is below its bound {bound!r}")


def _near(value: fmpq | arb) -> float:
    if isinstance(value, arb):
        return float(value.mid())
    try:
        return int(value.p) / int(value.q)
    except OverflowError:
        return inf if value > 0 else -inf


def _gradients(graph: Graph, region: Region, coef: Tensor) -> Tensor:
    """(N, 2, *shape) the conditions' slopes at the centres, in plain floats."""
    found = []
    for t in range(2):
        with torch.enable_grad():
            x = region.centre.clone().requires_grad_()
            y = (graph.apply(x).flatten(1) * coef[:, t]).nan_to_num(0, 0, 0)
            (slope,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
        found.append(torch.zeros_like(x) if slope is None else slope.nan_to_num(0, 0, 0))
    return torch.stack(found, 1).detach()


def run(seed: int, count: int, samples: int = 6, smooth: bool = False) -> Tally:
    """`count` networks from a seed."""
    tally = Tally()
    for k in range(count):
        rng = np.random.default_rng([seed, k, int(smooth)])
        graph = network(rng, smooth)
        region = regions(rng, graph.input_shape, samples)
        with np.errstate(all="ignore"):
            replay(graph, region, rng, tally, smooth, f"seed {seed} network {k}")
    return tally
