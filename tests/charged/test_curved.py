"""Rows that bend: their inequalities, ellipsoids and bounds hold in rational arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import frown
import zoo
from charged import cases
from charged.cases import Chosen, Tally
from frown.bounds.arithmetic.curved import Deviation, bent_below, greatest, proven_secants
from frown.bounds.plan import Plan
from frown.bounds.proof import Choice, Request
from frown.bounds.replay import Guided, Replay
from frown.bounds.work import Work
from frown.graph.builder import Builder
from frown.graph.intervals import Intervals
from frown.methods.frown.curved import DENSE, MANY, further, gains, pays
from frown.methods.frown.network import Frown
from frown.problem.property import LabelWins
from frown.problem.region import Region
from frown.relax import Abs, Clip, LeakyRelu, Relu, Sigmoid
from frown.relax.curvature import least, pieces
from frown.relax.elementwise import Elementwise
from frown.relax.relaxation import LeastArea, Rule
from frown_check import check
from onnx_models import model, node, saved

OPEN = (Clip(-inf, 1.0, 2.0**100), Clip(-0.5, inf, 2.0**100))
OPS = (Relu(), LeakyRelu(0.1), LeakyRelu(-0.5), Clip(-0.5, 1.0), *OPEN, Abs())


def value(op: Elementwise, z: Fraction) -> Fraction:
    """f(z), exactly; constants are the floats that the operator has."""
    if isinstance(op, Clip):
        z = z if op.lo == -inf else max(z, Fraction(op.lo))
        return z if op.hi == inf else min(z, Fraction(op.hi))
    if isinstance(op, LeakyRelu):
        return z if z > 0 else z * Fraction(op.slope)
    return abs(z) if isinstance(op, Abs) else max(z, Fraction(0))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_bent_bounds_hold_exactly(op: Elementwise) -> None:
    """c f(z) - g z + lambda/2 (z - z^)^2 is never below the bound, at points near the least."""
    rng = torch.Generator().manual_seed(0)

    def draw(spread: float) -> Tensor:
        size = 10 ** (spread * torch.randn(1, 300, generator=rng, dtype=torch.float64))
        return size * torch.randn(1, 300, generator=rng, dtype=torch.float64)

    ends = torch.stack([draw(0.5), draw(0.5)])
    box = Intervals(ends.amin(0), ends.amax(0))
    coef, back, centre = draw(1.0), draw(1.0), draw(0.5)
    curvature = draw(1.5).abs() + 1e-9
    bound = bent_below(op, box, coef, back, curvature, centre)
    near = least(pieces(op, box), coef, back, curvature, centre).touch
    places = [box.lower, box.upper, box.clip(near), box.clip(torch.zeros_like(near))]
    places += [torch.lerp(box.lower, box.upper, k / 7) for k in range(1, 7)]
    tight = 0
    for j in range(300):
        c, g, m, a = (Fraction(float(t[0, j])) for t in (coef, back, curvature, centre))
        found = []
        for place in places:
            z = Fraction(float(box.clip(place)[0, j]))
            found.append(c * value(op, z) - g * z + m / 2 * (z - a) ** 2)
        claimed = Fraction(float(bound[0, j]))
        assert claimed <= min(found)
        tight += min(found) - claimed <= abs(min(found)) / 10**6 + Fraction(1, 10**6)
    assert tight > 200  # where no point of the list is the least, the bound is below all of them


@pytest.mark.parametrize("op", OPS, ids=str)
def test_secants_hold_exactly(op: Elementwise) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        low, middle, high = np.sort(rng.normal(size=3))
        box = Intervals(torch.tensor([[low]]), torch.tensor([[high]]))
        point = Intervals(torch.tensor([[middle]]), torch.tensor([[middle]]))
        found = proven_secants(op, box, point)
        a = Fraction(middle)
        for z in rng.uniform(low, high, 8):
            run = Fraction(z) - a
            if run:
                slope = (value(op, Fraction(z)) - value(op, a)) / run
                assert Fraction(float(found.lower)) <= slope <= Fraction(float(found.upper))


def test_eigenvalues_are_bounded_whatever_is_guessed() -> None:
    """Against integers, whose products floats have exactly: x^T F F^T x <= bound x^T x."""
    rng = np.random.default_rng(2)
    for rows, columns in ((1, 1), (3, 40), (40, 3), (60, 60), (30, 200), (150, 160)):
        whole = rng.integers(-1000, 1000, (rows, columns))
        gram = torch.from_numpy((whole @ whole.T).astype(np.float64))
        trace = float(gram.trace())
        bound = greatest(gram, trace, 0.0)
        vectors = np.linalg.svd(whole.astype(np.float64))[0].T[:3]
        for vector in vectors:
            x = [Fraction(v) for v in vector]
            columns_of = [sum(Fraction(int(w)) * v for w, v in zip(c, x)) for c in whole.T]
            assert sum(v * v for v in columns_of) <= Fraction(bound) * sum(v * v for v in x)
        assert bound <= 1.01 * float(np.linalg.norm(whole, 2)) ** 2
        assert greatest(gram, trace, 7.0) >= bound + 6.9
    endless = torch.full((2, 2), torch.inf, dtype=torch.float64)
    assert greatest(endless, torch.inf, 0.0) == torch.inf
    assert greatest(endless * 0, 1.0, 0.0) == torch.inf  # NaN proves nothing


@pytest.mark.parametrize(("rows", "columns"), [(5, 40), (40, 5)])
def test_weighted_sums_of_deviations_are_bounded_whatever_the_weights(
    rows: int, columns: int
) -> None:
    """F v + r with ||v|| <= 1 and |r| <= slack, at the v where F v alone is longest."""
    rng = np.random.default_rng(4)
    factor, slack = rng.normal(size=(rows, columns)), np.abs(rng.normal(size=rows)) * 0.1
    nothing = torch.zeros(rows, dtype=torch.float64)
    known = Deviation(
        torch.arange(rows), *map(torch.from_numpy, (factor, slack)), nothing, nothing, nothing
    )
    weights = np.stack([np.ones(rows), *rng.uniform(0, 5, (3, rows)), np.eye(rows)[0] * 3])
    for weight, most in zip(weights, known.most(torch.from_numpy(weights)), strict=True):
        v = np.linalg.svd(np.sqrt(weight)[:, None] * factor)[2][0]
        reached = []
        for way in (v, -v):
            d = factor @ way
            reached.append((weight * (np.abs(d) + slack) ** 2).sum())
        assert max(reached) <= float(most)
        assert float(most) <= 1.6 * max(reached) or weight[1] == 0


def bending(plan: Plan, rng: np.random.Generator, rule: Rule | None) -> Chosen:
    """The slopes of hostile tests, with curvatures: like ones, odd ones, absurd ones."""
    inner = random_slopes(plan, rng, rule)

    def choose(request: Request) -> Choice | None:
        chosen = inner.slopes(request)
        if chosen is None:
            return None
        tables = {}
        for i in plan.below(request.target):
            (source,) = plan.graph.nodes[i].inputs
            size = plan.graph.nodes[source].size
            shape = (len(request.coef), size if rng.random() < 0.5 else 1)
            table = rng.choice([0.0, 0.1, 1.0, 7.0, 2.0**-60, 2.0**50], shape)
            tables[i] = torch.from_numpy(table).expand(-1, size)
        return replace(chosen, whole=False, curvature=tables.get)

    return Chosen(rule, choose)


random_slopes = cases.random_slopes


def test_no_bound_of_hostile_networks_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the curvatures are, against rational arithmetic; and some of them gain."""
    gained, real = [0], Guided._bent

    def counted(self: Guided, *args: object) -> object:
        found = real(self, *args)  # type: ignore[arg-type]
        gained[0] += 0 if found is None else int((found[0] > 0).sum())
        return found

    monkeypatch.setattr(Guided, "_bent", counted)
    monkeypatch.setattr(cases, "random_slopes", bending)
    tally, seed = Tally(), 0
    while tally.networks < 40:
        seed += 1
        rng = np.random.default_rng([seed, 77])
        graph = cases.network(rng)
        region = replace(cases.regions(rng, graph.input_shape, 3), p=2.0, split=None)
        if not (region.euclidean and Plan(graph).bends):
            continue
        with np.errstate(all="ignore"):
            cases.replay(graph, region, rng, tally, False, f"seed {seed}")
    assert not tally.false, "\n".join([tally.line(), *tally.false[:5]])
    assert gained[0] > 4


@pytest.mark.parametrize("power", [-40, -300, -530, -560, -600])
def test_curvatures_prove_nothing_false_where_squares_underflow(power: int) -> None:
    """Bounds of -sum a relu(W x), which is as large as the ball, with curvatures that fit it."""
    rng, radius = np.random.default_rng(0), 2.0**power
    weight, outer = rng.normal(size=(3, 4)), np.array([[-1.0, -1.25, -1.5], [0, 0, 0]])
    b = Builder()
    x = b.linear(b.input("x", (4,)), torch.from_numpy(weight), torch.zeros(3).double())
    graph = b.graph(b.linear(b.add(Relu(), x), torch.from_numpy(outer), torch.zeros(2).double()))
    plan = Plan(graph)
    bend = torch.tensor([[1.0, 1.5, 2.0]], dtype=torch.float64) / radius

    def choose(request: Request) -> Choice:
        (i,) = plan.nonlinear
        slope = request.relaxed[i].lines.slopes.upper[request.rows.sample]
        return Choice(lambda *_: slope, False, None, curvature=lambda _: bend.expand_as(slope))

    zero = torch.zeros(1, 4, dtype=torch.float64)
    region = Region(zero, torch.full((1,), radius, dtype=torch.float64), 2.0)
    walk = Replay(plan, region, Chosen(LeastArea(), choose), Work())
    walk.layers()
    label = LabelWins(torch.tensor([0]), torch.tensor([[1]]), 2, torch.float64)
    proved = float(walk.literals(label)[0, 0])
    steps = rng.normal(size=(2000, 4))
    steps *= 0.999 / np.linalg.norm(steps, axis=1, keepdims=True)
    reached = (np.maximum(steps @ weight.T, 0) @ outer[0]).min() * radius
    assert 2 * reached < proved < reached


@pytest.mark.parametrize("op", [Relu(), LeakyRelu(0.1), Abs()], ids=str)
def test_curvatures_whose_half_is_no_double_lose_nothing(op: Elementwise) -> None:
    """Half of 3 / 2^1074 would be taken for 2 / 2^1074, and points are as far as 2^250 away."""
    slope, far = Fraction(-1, 2**825), Fraction(2**250)
    box = torch.full((1, 1), float(far), dtype=torch.float64)
    for count in range(1, 8):
        bend = Fraction(count, 2**1074)
        coef, back, curvature = (torch.full_like(box, float(t)) for t in (slope, slope / 2, bend))
        bound = bent_below(op, Intervals(-box, box), coef, back, curvature, box[0] * 0)
        vertex = slope / 2 / bend
        for z in (-far, vertex, -vertex, far):
            exact = slope * value(op, z) - slope / 2 * z + bend / 2 * z * z
            assert Fraction(float(bound)) <= exact


def test_weights_of_small_deviations_lose_nothing() -> None:
    """Squares of 1e-170 are 0 in floats, and 1e300 times as much is not."""
    for shape in ((5, 40), (40, 5)):
        drawn = np.random.default_rng(6).normal(size=shape)
        nothing = torch.zeros(shape[0], dtype=torch.float64)
        every, small = torch.arange(shape[0]), torch.from_numpy(drawn * 1e-170)
        for slack in (nothing, nothing + 1e-170):
            known = Deviation(every, small, slack, nothing, nothing, nothing)
            for weight in (np.ones(shape[0]), np.arange(1.0, shape[0] + 1)):
                v = np.linalg.svd(np.sqrt(weight)[:, None] * drawn)[2][0]
                away = np.abs(drawn @ v) + float(slack[0]) / 1e-170
                most = float(known.most(torch.from_numpy(weight[None] * 1e300))[0])
                assert (weight * away**2).sum() * 1e-40 <= most


def test_clips_with_an_open_end_bend(tmp_path: Path) -> None:
    """As min(x, c) and max(x, c): no end of theirs is a kink. The certificates are accepted."""
    rng = np.random.default_rng(0)
    for k, ends in enumerate(("- end", "end")):
        known = {"w": rng.normal(size=(4, 30)), "v": rng.normal(size=(30, 3)), "end": 0.5 - k}
        nodes = [node("MatMul", "x w", "a"), node("Clip", f"a {ends}", "b"), node("MatMul", "b v")]
        constants = {name: np.float32(a) for name, a in known.items()}
        path = saved(model(nodes, (1, 4), constants), tmp_path, f"{k}.onnx")
        ball = frown.Ball(rng.normal(size=(1, 4)).astype(np.float32), norm=2)
        proof = frown.Rigorous(tmp_path / str(k), check=True)
        row = frown.certify(path, ball, method=Frown(curved="always"), proof=proof).rows[0]
        assert row.level == "checked" and row.radius > 0


def test_ordinary_networks_deviate_no_further_than_their_ellipsoids() -> None:
    """Points of a ball, sent through: all sums of weighted squares stay below what is proved."""
    rng = torch.Generator().manual_seed(3)
    for graph in (zoo.mlp(Relu(), (4, 20, 20, 3)), zoo.residual(Abs()), zoo.average_pool()):
        plan, region = Plan(graph), zoo.region(graph, 2.0, 0.3, 2, clipped=True, scaled=True)
        walk = Replay(plan, region, random_slopes(plan, np.random.default_rng(0), None), Work())
        walk.layers()
        assert walk.deviations is not None
        for n in range(2):
            ball = Region(*(getattr(region.rows(slice(n, n + 1)), f) for f in FIELDS))
            values = graph.values(zoo.samples(ball, 400))
            for i in plan.nonlinear:
                known = walk.deviations.at(i, n)
                (source,) = graph.nodes[i].inputs
                away = (values[source].flatten(1) - known.centre)[:, known.index]
                weight = torch.rand(3, len(known.index), generator=rng, dtype=torch.float64)
                weight[0] = 1.0
                most = known.most(weight)
                reached = (away.square() @ weight.T).amax(0)
                assert bool((reached <= most * (1 + 1e-9)).all())


FIELDS = ("centre", "radius", "p", "scale", "lower", "upper")


def network(path: Path) -> Path:
    """A convolutional network with labels of its own making."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8, 4)),
    )
    example = torch.zeros(1, 1, 10, 10)
    torch.onnx.export(
        module, (example,), str(path), input_names=["x"], output_names=["y"], dynamo=False
    )
    return path


def test_bent_rows_prove_larger_radii(tmp_path: Path) -> None:
    """Unasked, in a convolutional network; their certificates are accepted, and never below."""
    path = network(tmp_path / "net.onnx")
    model = frown.load(path)
    x = np.random.default_rng(0).uniform(size=(2, 1, 10, 10)).astype(np.float32)
    y = np.concatenate([model.run(one[None]).argmax(1) for one in x])
    ball = frown.Ball(x, norm=2)
    straight = frown.certify(model, ball, y, method=Frown(curved="never")).rows
    bent = frown.certify(model, ball, y, proof=frown.Rigorous(tmp_path / "proofs")).rows
    assert {row.level for row in bent} == {"rigorous"}
    ratio = [b.radius / s.radius for b, s in zip(bent, straight, strict=True)]
    assert min(ratio) >= 1 and np.mean(ratio) > 1.1
    for n, row in enumerate(bent):  # no point of the ball is answered otherwise
        step = np.random.default_rng(n).normal(size=(500, *x.shape[1:])).astype(np.float32)
        step /= np.sqrt((step**2).sum((1, 2, 3), keepdims=True))
        assert (model.run(x[n] + step * row.radius * 0.999).argmax(1) == y[n]).all()
    files = sorted((tmp_path / "proofs").rglob("*.frown"))
    assert [file.read_bytes()[:8] for file in files] == [b"FROWNC03"] * 2
    for file, row in zip(files, bent, strict=True):
        verdict = check(file, path)
        assert verdict.accepted, verdict.reason
        assert verdict.claim is not None and verdict.claim.radius == row.radius


def test_rows_bend_unasked_where_it_pays(tmp_path: Path) -> None:
    """In convolutional networks; not with a time limit or for execution."""
    model = frown.load(network(tmp_path / "net.onnx"))
    assert pays(Frown(), Plan(model.graph)) and not pays(Frown(group=0), Plan(model.graph))
    x = np.random.default_rng(0).uniform(size=(1, 1, 10, 10)).astype(np.float32)
    ball = frown.Ball(x, norm=2)
    straight = frown.certify(model, ball, method=Frown(curved="never")).rows[0].radius
    executed = frown.Rigorous(execution="float32")
    for options in ({"machine": frown.Machine(seconds=30)}, {"proof": executed}):
        row = frown.certify(model, ball, **options).rows[0]
        assert row.radius == pytest.approx(straight, rel=1e-2)
        assert "bent" not in row.remark
    asked = frown.certify(model, ball, method=Frown(curved="always"), proof=executed).rows[0]
    assert "rows were not bent: proofs of execution know none" in asked.remark


def test_rows_of_dense_networks_bend_for_inputs_with_many_unstable_neurons() -> None:
    """One batch has an input near its neurons' kinks, for which rows bend, and one far from them,
    whose radius stays what it was. Networks with too many neurons wait to be asked."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
    net.append(nn.Linear(48, 2))
    x = np.random.default_rng(3).normal(size=(2, 20)).astype(np.float32)
    x[1] *= 0.001
    with torch.no_grad():  # the second input's answer is all but a tie
        net[4].bias.sub_(net(torch.tensor(x[1:]))[0] - torch.tensor([1e-3, 0.0]))
    model = frown.load(net.eval(), torch.zeros(1, 20))
    ball, exact = frown.Ball(x, norm=2), {"proof": "estimate", "attack": None}
    never, asked, found = (
        frown.certify(model, ball, method=Frown(curved=how), **exact).radius
        for how in ("never", "always", "auto")
    )
    assert found[0] == asked[0] > 1.1 * never[0] and found[1] == never[1]
    plan, box = Plan(model.graph), Intervals(-torch.ones(2, 48), torch.ones(2, 48))
    source = plan.sources[plan.nonlinear[0]]
    box.lower[1, MANY - 1 :] = 0.5  # one too few
    assert gains(plan, {source: box}, 2).tolist() == [True, False]
    assert gains(plan, {}, 2).tolist() == [False, False]
    large = Plan(zoo.mlp(Relu(), (4, DENSE // 2, DENSE // 2 + 1, 3)))
    assert further(Frown(), large) is None and further(Frown(curved="always"), large) is not None


def test_smooth_networks_and_other_norms_stay_straight() -> None:
    for op, p, bends in ((Relu(), 2.0, True), (Sigmoid(), 2.0, False), (Relu(), 1.0, False)):
        graph = zoo.mlp(op)
        assert (zoo.region(graph, p).euclidean and Plan(graph).bends) == bends
