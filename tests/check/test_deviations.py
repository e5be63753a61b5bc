"""Rows that bend: what the checker proves of them holds, whatever is guessed and certified."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import frown
import frown_check
from check.networks import Net, built, drawn
from check.writer import Draft, draft
from frown.methods.frown.network import Frown
from frown_check import guesses
from frown_check.balls import Ball
from frown_check.container import read
from frown_check.deviations import (
    Deviation,
    Deviations,
    bent_below,
    largest_eigenvalue,
    secants,
)
from frown_check.errors import Refused
from frown_check.functions import SIMPLE, Function, clip, leaky
from frown_check.graph import Apply, Graph, Scale, View
from frown_check.model import load
from frown_check.region import Region
from frown_check.replay import Replay
from onnx_models import model, node, saved
from tamper.statement import array, opened

FUNCTIONS = {
    "relu": (leaky("Relu", 0.0), lambda z: max(z, Fraction(0))),
    "leaky": (leaky("LeakyRelu", 0.25), lambda z: z if z > 0 else z / 4),
    "abs": (leaky("Abs", -1.0), abs),
    "clip": (clip("Clip", -0.5, 1.0), lambda z: min(max(z, Fraction(-1, 2)), Fraction(1))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bent_bounds_hold_exactly(name: str) -> None:
    function, exact = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    ends = np.sort(rng.normal(size=(2, 200)) * 10.0 ** rng.normal(size=200) * 0.5, 0)
    a, g = rng.normal(size=(2, 1, 200)) * 10.0 ** rng.normal(size=(2, 1, 200))
    w = 10.0 ** rng.uniform(-6, 4, (1, 200))
    centre = rng.normal(size=200)
    bound = bent_below(function, (ends[0], ends[1]), a, g, w, centre)[0]
    near = 0
    for j in range(200):
        c, b, m, o = (Fraction(float(t)) for t in (a[0, j], g[0, j], w[0, j], centre[j]))
        low, high = (Fraction(float(e)) for e in ends[:, j])
        places = [low, high, Fraction(0), Fraction(1), Fraction(-1, 2)]
        for slope in (0, 1, -1, Fraction(1, 4)):
            places.append(o - (c * slope - b) / m)  # the vertices
        values = [
            c * exact(z) - b * z + m / 2 * (z - o) ** 2
            for z in (min(max(p, low), high) for p in places)
        ]
        assert Fraction(float(bound[j])) <= min(values)
        near += min(values) - Fraction(float(bound[j])) <= abs(min(values)) / 10**9 + Fraction(1e-9)
    assert near == 200  # the least value is at one of the places


@pytest.mark.parametrize("name", FUNCTIONS)
def test_secants_hold_exactly(name: str) -> None:
    function, exact = FUNCTIONS[name]
    rng = np.random.default_rng(1)
    low, first, last, high = np.sort(rng.normal(size=(4, 100)), 0)
    last = np.where(rng.random(100) < 0.5, np.nextafter(first, 9), last)
    least, most = secants(function, low, high, first, last)
    tight = 0
    for j in range(100):
        for z in (low[j], high[j], *rng.uniform(low[j], high[j], 6)):
            for at in (first[j], last[j]):
                run = Fraction(z) - Fraction(at)
                if run:
                    slope = (exact(Fraction(z)) - exact(Fraction(at))) / run
                    assert Fraction(least[j]) <= slope <= Fraction(most[j])
        tight += most[j] - least[j] < 1
    assert tight > 20 or name != "relu"


def test_eigenvalues_are_bounded_whatever_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against integers, whose products floats have exactly."""
    rng = np.random.default_rng(2)

    def strange(matrix: np.ndarray) -> list[float]:
        return [float(t) for t in rng.choice([0.0, 1.0, -1e9, 1e3, 1e7, 1e12, np.nan], 6)]

    roots = [guesses.root, lambda m: rng.normal(size=m.shape) * 1e3, lambda m: m * np.nan]
    for guess in (guesses.eigenvalues, strange):
        monkeypatch.setattr(guesses, "eigenvalues", guess)
        for root in roots:
            monkeypatch.setattr(guesses, "root", root)
            for n in (1, 3, 70):
                whole = rng.integers(-1000, 1000, (n, n + 5))
                gram = whole @ whole.T
                with np.errstate(all="ignore"):
                    bound = float(largest_eigenvalue(gram.astype(np.float64)))
                if not np.isfinite(bound):
                    continue
                vector = np.linalg.eigh(gram.astype(np.float64))[1][:, -1]
                x = [Fraction(v) for v in vector]
                image = [sum(int(g) * v for g, v in zip(row, x)) for row in gram]
                reached = sum(v * i for v, i in zip(x, image))
                assert reached <= Fraction(bound) * sum(v * v for v in x)
                if (guess, root) != (strange, guesses.root) and root is roots[0]:
                    assert bound <= 1.01 * float(np.linalg.norm(whole.astype(float), 2)) ** 2


def test_weighted_sums_of_deviations_are_bounded() -> None:
    rng = np.random.default_rng(3)
    for rows, columns in ((5, 30), (30, 5)):
        factor, slack = rng.normal(size=(rows, columns)), np.abs(rng.normal(size=rows)) * 0.1
        none = np.zeros(rows)
        known = Deviation(np.arange(rows), factor, slack, none, none, none)
        weights = np.concatenate([np.ones((1, rows)), rng.uniform(0, 5, (3, rows))])
        for w, most in zip(weights, known.most(weights), strict=True):
            v = np.linalg.svd(np.sqrt(w)[:, None] * factor)[2][0]
            reached = (w * (np.abs(factor @ v) + slack) ** 2).sum()
            assert reached <= most <= 1.6 * reached


def test_slopes_that_underflow_on_the_way_are_charged() -> None:
    """Bounds of f(f(x)) + 1.4 / 2^52 hold: where x < 0 the slopes' product is 1.4 / 2^1074, which
    floats have as 1 / 2^1074, and x moves by so much that it matters."""
    slopes, far = (1.4 * 2.0**-537, 2.0**-537), 2.0**1022
    graph, offset = Graph(1), 1.4 * 2.0**-52
    view = View(0, np.arange(1))
    for k, slope in enumerate(slopes):
        view = graph.add(Apply(f"f{k}", leaky("LeakyRelu", slope)), [view], (1,))
    view = graph.add(Scale(Ball(np.ones(1)), Ball(np.array([offset]))), [view], (1,))
    graph.add(Apply("relu", leaky("Relu", 0.0)), [view], (1,))

    def at(x: float) -> list[Fraction]:
        """The four vectors up to what ReLU reads."""
        first = Fraction(slopes[0]) * Fraction(x)
        second = Fraction(slopes[1]) * first
        return [Fraction(x), first, second, second + Fraction(offset)]

    def around(low: float, high: float) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        ends = enumerate(zip(at(low), at(high)))
        down, up = (
            (lambda z: np.nextafter(float(z), -np.inf)),
            (lambda z: np.nextafter(float(z), 9)),
        )
        found = {i: (np.array([[down(a)]]), np.array([[up(b)]])) for i, (a, b) in ends}
        return found | {4: (np.zeros((1, 1)), np.ones((1, 1)))}

    one, centre, radius = np.ones(1), -far, far * 0.9
    region = Region(2.0, radius, centre * one, one, np.zeros(1, dtype=np.int64), None, None)
    boxes, middle = around(centre - radius, centre + radius), around(centre, centre)
    known = Deviations(graph, [1, 2, 3, 4], region, boxes, middle, 2**10).at(4)
    assert known.index.tolist() == [0]
    reached = at(centre + radius)[3] - Fraction(float(known.centre[0]))
    assert reached**2 <= Fraction(float(known.most(np.ones((1, 1)))[0]))


def dense(folder: Path) -> Net:
    """Two hidden layers, wide enough for rows to gain by bending."""
    rng = np.random.default_rng(4)
    sizes = (30, 60, 60, 3)
    known, nodes, last = {}, [], "x"
    for k in range(3):
        known[f"w{k}"] = (drawn(rng, sizes[k], sizes[k + 1]) * 1.5).astype(np.float32)
        nodes.append(node("MatMul", f"{last} w{k}", f"z{k}" if k < 2 else "y"))
        if k < 2:
            nodes.append(node("Relu", f"z{k}", f"a{k}"))
            last = f"a{k}"
    return Net(saved(model(nodes, ("N", 30), known, opset=15), folder), (30,), [])


def convolutional(folder: Path) -> Net:
    """One hidden layer with padding."""
    rng = np.random.default_rng(5)
    known = {
        "w": rng.normal(size=(3, 1, 3, 3)) / 2,
        "b": rng.normal(size=3) * 0.1,
        "v": drawn(rng, 48, 3) * 3,
    }
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f"),
        node("MatMul", "f v", "y"),
    ]
    single = {k: v.astype(np.float32) for k, v in known.items()}
    path = saved(model(nodes, ("N", 1, 4, 4), single, opset=15), folder)
    return Net(path, (1, 4, 4), [])


def certified(net: Net, folder: Path) -> tuple[bytes, frown.Row]:
    """A certificate of rows that bend; one feature does not move, others move twice as far."""
    x = np.random.default_rng(1).normal(size=(1, *net.shape)).astype(np.float32)
    scale = np.ones(net.shape)
    scale.flat[0], scale.flat[1] = 0.0, 2.0
    loaded = frown.load(net.path)
    ball = frown.Ball(x, norm=2, scale=scale)
    how = {"method": Frown(curved="always"), "proof": frown.Rigorous(folder)}
    (row,) = frown.certify(loaded, ball, **how).rows
    (file,) = folder.rglob("*.frown")
    return file.read_bytes(), row


@pytest.mark.parametrize("build", [dense, convolutional])
def test_points_of_the_ball_deviate_no_further(
    build: Callable[[Path], Net], tmp_path: Path
) -> None:
    """Every node's values at points of the region, by onnx's own reference."""
    rng, net = np.random.default_rng(6), build(tmp_path)
    content, row = certified(net, tmp_path / "proofs")
    given = read(content)
    network = load(net.path, hashlib.sha256(net.path.read_bytes()).hexdigest(), {}, None)
    replay = Replay(network, given, lambda done: None)
    margins = replay.margins()
    assert content[:8] == b"FROWNC03" and (margins > 0).all() and row.radius > 0
    step = rng.normal(size=(300, given.region.centre.size))
    step /= np.linalg.norm(step, axis=1, keepdims=True)
    points = given.region.centre + step * given.region.scale * given.region.radius
    points = np.concatenate([given.region.centre[None], points]).reshape(-1, *net.shape)
    sites = [n for n in onnx.load(str(net.path)).graph.node if n.op_type == "Relu"]
    for site, i in zip(sites, replay.sites, strict=True):
        values = _inside(net.path, site.input[0], points.astype(np.float32))
        known = replay.deviations.at(i)
        away = (values.reshape(len(points), -1) - known.centre)[1:, known.index]
        assert len(known.index)
        weights = rng.uniform(0, 1, (3, len(known.index)))
        weights[0] = 1.0
        reached = (away**2 @ weights.T).max(0)
        assert (reached <= known.most(weights) * (1 + 1e-5)).all()
        slopes = np.abs(known.middle[known.index] - 0.5) + known.half[known.index]
        assert (slopes <= 0.5 + 1e-12).all()


def test_rows_bend_behind_a_layer_in_which_all_is_straight(tmp_path: Path) -> None:
    """The network of `dense`, behind max(x + 64, 0) - 64 = x."""
    proto = onnx.load(dense(tmp_path).path)
    known = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    known |= {"i": np.eye(30, dtype=np.float32)}
    known |= {"c": np.full(30, 64, np.float32), "d": np.full(30, -64, np.float32)}
    first = [node("Gemm", "x i c", "p"), node("Relu", "p", "q"), node("Gemm", "q i d", "s")]
    rest = list(proto.graph.node)
    rest[0].input[0] = "s"
    path = saved(model([*first, *rest], ("N", 30), known, opset=15), tmp_path)
    content, _ = certified(Net(path, (30,), []), tmp_path / "proofs")
    assert read(content).final.curvatures is not None
    assert frown_check.check(content, path).accepted


def _inside(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    """A value inside a network."""
    proto = onnx.load(str(path))
    kind = proto.graph.output[0].type.tensor_type.elem_type
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
    (found,) = ReferenceEvaluator(proto).run(None, {"x": x})
    return np.asarray(found, dtype=np.float64)


def changed(content: bytes, rng: np.random.Generator) -> Draft:
    """Other curvatures: absurd ones, others' and none."""
    draft = opened(content)
    for rows in (*draft.header["steps"], draft.header["final"]):
        if rows["curvatures"] is not None:
            values = array(draft, rows["curvatures"]).astype(np.float64)
            new = rng.choice([0.0, 1e-30, 1e-3, 1.0, 50.0, 1e30], values.shape)
            keep = rng.random(values.shape) < rng.choice([0.1, 0.9])
            rows["curvatures"] = draft.payload.put(np.where(keep, values, new), "f8")
    return draft


def test_any_curvatures_prove_nothing_false(tmp_path: Path) -> None:
    net = convolutional(tmp_path)
    content, _ = certified(net, tmp_path / "proofs")
    honest = frown_check.check(content, net.path)
    assert honest.accepted and honest.claim is not None and honest.margin is not None
    given = read(content)
    step = np.random.default_rng(8).normal(size=(4000, given.region.centre.size))
    step /= np.linalg.norm(step, axis=1, keepdims=True)
    points = given.region.centre + step * given.region.scale * given.region.radius
    y = net.outputs(points.reshape(-1, *net.shape).astype(np.float32))
    assert given.label is not None
    least = (y[:, [given.label]] - y[:, list(given.others)]).min()
    assert honest.margin <= least
    rng = np.random.default_rng(7)
    found = [frown_check.check(changed(content, rng).file(), net.path) for _ in range(12)]
    assert all(v.margin is not None and v.margin <= least for v in found)
    assert any(v.margin < honest.margin for v in found if v.margin is not None)


def test_a_larger_radius_needs_more_than_curvatures(tmp_path: Path) -> None:
    net = convolutional(tmp_path)
    content, row = certified(net, tmp_path / "proofs")
    for factor in (1.02, 2.0, 30.0):
        draft = opened(content)
        draft.header["region"]["radius"] = (row.radius * factor).hex()
        verdict = frown_check.check(draft.file(), net.path)
        assert not verdict.accepted and "is not proved" in verdict.reason


def test_curvatures_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    net = convolutional(tmp_path)
    content, _ = certified(net, tmp_path / "proofs")

    def reason(change: str) -> str:
        draft = opened(content)
        final, region = draft.header["final"], draft.header["region"]
        values = array(draft, final["curvatures"]).astype(np.float64)
        if change in ("nan", "below"):
            values[0, 0] = np.nan if change == "nan" else -1.0
            final["curvatures"] = draft.payload.put(values, "f8")
        elif change == "shape":
            final["curvatures"] = draft.payload.put(values[:, :-1], "f8")
        elif change == "slopes":
            final["slopes"], final["over"] = None, []
            none = np.full(len(values), 0xFFFFFFFF)
            final["table"] = draft.payload.put(none, "u4")
        elif change == "balls":
            numbers = np.arange(given.region.centre.size) % 2
            region["ball"] = draft.payload.put(numbers.reshape(net.shape), "i4")
        else:
            region["norm"] = change
        return frown_check.check(draft.file(), net.path).reason

    given = read(content)
    assert "a curvature is below 0" in reason("below")
    assert "a curvature is below 0" in reason("nan")
    assert "not one for each slope or site" in reason("shape")
    assert "there are curvatures, but no slopes" in reason("slopes")
    for change in ("balls", "1", "inf"):
        assert "rows bend over one l_2 ball only" in reason(change)


def test_curvatures_whose_half_is_no_double_prove_nothing_false(tmp_path: Path) -> None:
    """Half of 3 / 2^1074 would be taken for 2 / 2^1074, and half of 1 / 2^1074 for 0."""
    radius, least = 2.0**250, 2.0**-1074
    slope = least * radius / 0.272  # for which 3 / 2^1074 is the best curvature
    offset = 0.95 * 2 * slope * radius
    known = {"w": np.outer(np.full(4, -slope), [1.0, 0.0]), "b": np.array([offset, 0.0])}
    nodes = [node("Relu", "x", "a"), node("Gemm", "a w b", "y")]
    net = built(tmp_path, nodes, (4,), known, [("a", "Relu", 4)])
    assert net.outputs(np.full((1, 4), 0.99 * radius / 2))[0, 0] < 0  # so that the claim is false
    for count in range(1, 8):
        claim = draft(net.path, net.sites, np.zeros(4), radius, 0, [1], "2")
        for step in claim.header["steps"]:
            step["multipliers"] = step["curvatures"] = None
        put = claim.payload.put
        final = {"over": [0], "table": put([0], "u4"), "slopes": put(np.full((1, 1, 4), 0.5))}
        claim.header["final"] = {**final, "curvatures": put(np.full((1, 1), count * least))}
        claim.header |= {"format": 3, "trees": []}
        verdict = frown_check.check(claim.file(), net.path)
        assert not verdict.accepted and "is not proved" in verdict.reason


def test_functions_that_are_not_of_straight_pieces_do_not_bend(tmp_path: Path) -> None:
    net = dense(tmp_path)
    content, _ = certified(net, tmp_path / "proofs")
    given = read(content)
    network = load(net.path, hashlib.sha256(net.path.read_bytes()).hexdigest(), {}, None)
    replay = Replay(network, given, lambda done: None)
    op = network.graph.nodes[replay.sites[0]].op
    assert isinstance(op, Apply)
    op.function = Function("Relu", SIMPLE["Softplus"]().pieces)
    with pytest.raises(Refused, match="rows do not bend at a0"):
        replay.margins()


@pytest.mark.parametrize("op", ["Sign", "Floor", "Ceil", "Round"])
def test_rows_do_not_bend_beyond_jumps(op: str, tmp_path: Path) -> None:
    """Across a jump secants have any slope, so nothing is known of how far values deviate."""
    known = {"w": np.array([[1.0, 0.0]]), "b": np.array([-0.5, 0.0])}
    nodes = [node(op, "x", "s"), node("Mul", "s c", "z"), node("Relu", "z", "a")]
    nodes.append(node("Gemm", "a w b", "y"))
    sites = [("s", op, 1), ("a", "Relu", 1)]
    net = built(tmp_path, nodes, (1,), {**known, "c": np.array([2.0])}, sites)
    claim = draft(net.path, net.sites, [0.9], 1.5, 0, [1], "2")
    assert net.outputs(np.array([[-0.5]]))[0, 0] < 0  # so that it is false
    for step in claim.header["steps"]:
        step["multipliers"] = step["curvatures"] = None
    put = claim.payload.put
    final = {"over": [1], "table": put([0], "u4"), "slopes": put(np.zeros((1, 1, 1)))}
    claim.header["final"] = {**final, "curvatures": put(np.full((1, 1), 1e4))}
    claim.header |= {"format": 3, "trees": []}
    verdict = frown_check.check(claim.file(), net.path)
    assert not verdict.accepted and f"rows do not bend at s ({op})" in verdict.reason
