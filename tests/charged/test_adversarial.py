"""Networks made to fool verifiers that compute in floating point.

After Zombori et al. (2021), who hide a backdoor behind weights that absorb small terms; Szász et
al. (2025), whose networks answer by the order in which terms are added; and Jia and Rinard (2021),
who stand where a verifier's rounding decides. Each claim is refuted by a point in rational
arithmetic: plain floating point proves it all the same, rigorous bounds and the checker do not.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

import asking
import frown
import frown_check
from check.writer import draft
from frown.read.model import Model
from frown.relax import Elu
from onnx_models import model, node, saved

BIG = 2.0**60
DTYPES = ("float32", "float64")


def float32(*values: object) -> np.ndarray:
    return np.array(values, np.float32)


def gemm(k: int, inputs: str, output: str) -> object:
    return node("Gemm", f"{inputs} w{k} b{k}", output, transB=1)


Layer = tuple[np.ndarray, np.ndarray, bool]  # weights, biases, whether a ReLU follows


def margin(layers: list[Layer], x: list[Fraction]) -> Fraction:
    """output[0] - output[1], without rounding."""
    for weight, bias, relu in layers:
        y = []
        for row, b in zip(weight.tolist(), bias.tolist(), strict=True):
            z = sum(Fraction(w) * v for w, v in zip(row, x, strict=True)) + Fraction(b)
            y.append(max(z, Fraction(0)) if relu else z)
        x = y
    return x[0] - x[1]


def network(layers: list[Layer], folder: Path) -> Path:
    nodes, last, constants = [], "x", {}
    for k, (weight, bias, relu) in enumerate(layers):
        constants |= {f"w{k}": weight, f"b{k}": bias}
        after = "y" if k == len(layers) - 1 else f"z{k}"
        nodes.append(gemm(k, last, after))
        if relu:
            nodes.append(node("Relu", after, f"a{k}"))
        last = f"a{k}" if relu else after
    return saved(model(nodes, ["N", layers[0][0].shape[1]], constants), folder)


def backdoor(order: tuple[int, ...]) -> list[Layer]:
    """Three neurons, BIG x + 2 BIG, x + 2 and -BIG x + 2 BIG, whose sum less 4 BIG is x + 2; added
    in floats it is 0 in most orders. The answer is 0 where 0.5 - x > 0.3."""
    weight, bias = float32([BIG], [1], [-BIG]), float32(2 * BIG, 2, 2 * BIG)
    return [
        (weight[list(order)], bias[list(order)], False),
        (float32([1, 1, 1]), float32(-4 * BIG), False),
        (float32([-1]), float32(2.5), True),
        (float32([1], [0]), float32(0, 0.3), False),
    ]


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading compares a graph with onnxruntime on a few random inputs, and may notice: none of
    them hits here."""
    monkeypatch.setattr(Model, "check", lambda _: None)


CENTRE, RADIUS = 0.0, 0.9
REFUTATION = [Fraction(RADIUS)]
ORDERS = list(permutations(range(3)))


def test_the_backdoor_is_there() -> None:
    for order in ORDERS:
        layers = backdoor(order)
        assert margin(layers, [Fraction(CENTRE)]) > 0
        assert margin(layers, REFUTATION) < 0


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_floating_point_does_not_see_the_backdoor(dtype: str, tmp_path: Path) -> None:
    """In some orders of the neurons; which ones is up to the library that adds."""
    fooled = []
    for order in ORDERS:
        loaded = frown.load(network(backdoor(order), tmp_path))
        for method in ("crown", "frown"):
            found = asking.certify(
                loaded,
                [[CENTRE]],
                [0],
                eps=RADIUS,
                method=method,
                dtype=dtype,
                level="estimate",
                attack=False,
            )
            fooled.append(found.status[0] == "certified")
    assert any(fooled)


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_rigorous_bounds_and_the_checker_do(order: tuple[int, ...], tmp_path: Path) -> None:
    path = network(backdoor(order), tmp_path)
    loaded = frown.load(path)
    for method in ("interval", "crown", "frown"):
        asked = asking.certify(loaded, [[CENTRE]], [0], eps=RADIUS, method=method, attack=False)
        assert asked.status[0] != "certified"
    found = asking.certify(loaded, [[CENTRE]], [0], method="crown", dtype="float64", attack=False)
    assert found.rows[0].level == "rigorous" and found.radius[0] <= 0.2  # 0.5 - 0.2 = 0.3
    sites = [("a2", "Relu", 1)]
    for rng in (None, np.random.default_rng(0)):
        claim = draft(path, sites, [CENTRE], RADIUS, 0, [1], rng=rng)
        verdict = frown_check.check(claim.file(), path)
        assert not verdict.accepted and "margin" in verdict.reason


# -- where rounding decides -------------------------------------------------------------------


def least_margin(w: np.ndarray, b: np.float32, c: np.ndarray, eps: float) -> Fraction:
    at = sum(Fraction(a) * Fraction(x) for a, x in zip(w.tolist(), c.tolist(), strict=True))
    return at + Fraction(float(b)) - Fraction(eps) * sum(abs(Fraction(a)) for a in w.tolist())


def boundary(seed: int) -> tuple[list[Layer], np.ndarray, float]:
    """A linear answer whose least margin over the ball is below 0, by less than floats resolve."""
    rng, eps = np.random.default_rng(seed), 0.1
    w, c = rng.standard_normal(24).astype(np.float32), rng.uniform(0, 1, 24)
    w[0] = 2.0**-12  # through this one the margin is set finely
    b = np.float32(-float(least_margin(w, np.float32(0), c, eps)))
    for _ in range(3):
        c[0] -= float((least_margin(w, b, c, eps) + Fraction(1, 2**62)) / Fraction(float(w[0])))
    assert -1e-15 < least_margin(w, b, c, eps) < 0
    return [(np.stack([w, 0 * w]), float32(b, 0), False)], c, eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_at_the_boundary_fools_estimates_only(dtype: str, tmp_path: Path) -> None:
    fooled = 0
    for seed in range(12):
        layers, centre, eps = boundary(seed)
        path = network(layers, tmp_path)
        loaded = frown.load(path)
        options = {"eps": eps, "method": "crown", "dtype": dtype, "attack": False}
        estimate = asking.certify(loaded, [centre], [0], level="estimate", **options)
        fooled += estimate.status[0] == "certified"
        rigorous = asking.certify(loaded, [centre], [0], **options)
        assert rigorous.status[0] != "certified", seed
        verdict = frown_check.check(draft(path, [], centre, eps, 0, [1]).file(), path)
        assert not verdict.accepted, seed
    assert fooled


def test_just_inside_the_boundary_everything_is_proved(tmp_path: Path) -> None:
    """So the refusals above are about rounding and nothing else."""
    layers, centre, eps = boundary(1)
    path = network(layers, tmp_path)
    near = eps * (1 - 1e-12)
    found = asking.certify(
        frown.load(path),
        [centre],
        [0],
        eps=near,
        method="crown",
        dtype="float64",
        level="checked",
        certificates=tmp_path / "certificates",
    )
    assert found.status[0] == "certified" and found.rows[0].level == "checked"


# -- saturation -------------------------------------------------------------------------------


def test_saturated_activations_are_not_taken_for_constants(tmp_path: Path) -> None:
    """tanh(20) is 1 in double precision, and 2^80 (1 - tanh(20)) is over 10^7 all the same."""
    constants = {
        "w0": float32([1], [0]),
        "b0": float32(0, 100),
        "w1": float32([0, 0], [-(2.0**80), 2.0**80]),
        "b1": float32(1, 0),
    }
    nodes = [gemm(0, "x", "z"), node("Tanh", "z", "a"), gemm(1, "a", "y")]
    path = saved(model(nodes, ["N", 1], constants), tmp_path)
    for method in ("interval", "crown", "frown"):
        asked = asking.certify(frown.load(path), [[40.0]], [0], eps=20.0, method=method)
        assert asked.status[0] != "certified"
    claim = draft(path, [("a", "Tanh", 2)], [40.0], 20.0, 0, [1])
    assert not frown_check.check(claim.file(), path).accepted


LIES = [
    {"radius": 1e-9},
    {"label": 1},
    {"others": (1,)},
    {"norm": 2.0},
    {"centre": np.array([1.0, 0.0, 1e-9])},
    {"scale": np.array([1.0, 0.5, 1.0])},
    {"ball": np.array([0, 0, 1])},
    {"lower": np.full(3, -0.5)},
    {"upper": None},
]


@pytest.mark.parametrize("lie", [{}, *LIES])
def test_only_the_rows_own_statement_is_checked(
    lie: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the checker accepts is compared with what the row says."""
    known = {"w": np.eye(3, dtype=np.float32)}
    found = frown.load(saved(model([node("Gemm", "x w", "y")], ["N", 3], known), tmp_path))
    check = frown_check.check

    def other(*given: object) -> frown_check.Verdict:
        verdict = check(*given)
        assert verdict.accepted and verdict.claim is not None
        return replace(verdict, claim=replace(verdict.claim, **lie))

    monkeypatch.setattr(frown_check, "check", other)
    x = [[1.0, 0.0, 0.0]]
    proofs = tmp_path / "proofs"
    (row,) = asking.certify(found, x, bounds=(-1, 1), level="checked", certificates=proofs).rows
    assert row.level == ("rigorous" if lie else "checked")
    assert row.remark == ("the checker accepted another statement" if lie else "")


def test_sums_that_are_too_long_stay_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charges are themselves sums, with room for the rounding of so many terms."""
    known = {"w": np.eye(3, dtype=np.float32)}
    found = frown.load(saved(model([node("Gemm", "x w", "y")], ["N", 3], known), tmp_path))
    for longest, level in ((3, "rigorous"), (2, "estimate")):
        monkeypatch.setattr("frown.certification.prove.LONGEST", longest)
        (row,) = asking.certify(found, [[1.0, 0.0, 0.0]]).rows
        assert row.level == level and ("sums of more" in row.remark) == (level == "estimate")


UNDERFLOW = {
    "batch normalisation": (
        [
            node("Reshape", "x s", "q"),
            node("BatchNormalization", "q w z z v", "n"),
            node("Flatten", "n", "h"),
        ],
        {
            "s": np.array([0, 1, 1]),
            "w": np.array([1e-300]),
            "z": np.zeros(1),
            "v": np.array([1e60]),
        },
    ),
    "quotient": ([node("Div", "x d", "h")], {"d": np.array([1.7e308])}),
}


@pytest.mark.parametrize("name", UNDERFLOW)
def test_weights_that_underflow_are_refused(name: str, tmp_path: Path) -> None:
    """a w = 1e-330 is 0 in double precision; 1e306 a w x is 1000 at x = 1e27."""
    nodes, known = UNDERFLOW[name]
    known = {**known, "k": np.array([[0.0, 1e306]]), "b": np.array([5.0, 0.0])}
    nodes = [*nodes, node("Relu", "h", "r"), node("Gemm", "r k b", "y")]
    path = saved(model(nodes, ["N", 1], known, dtype=11), tmp_path)
    with pytest.raises(frown.errors.UnsupportedModel, match="too small for double precision"):
        frown.load(path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_factor_of_a_product_is_not_lost_by_underflow(dtype: str, tmp_path: Path) -> None:
    """alpha w = 1e-330 is 0 in double precision, so they stay apart; class 1 wins from 5e24 on."""
    nodes = [node("Gemm", "x w", "h", alpha=1e-30), node("Relu", "h", "r")]
    known = {"w": np.array([[1e-300]]), "k": np.array([[0.0, 1e306]]), "b": np.array([5.0, 0.0])}
    proto = model([*nodes, node("Gemm", "r k b", "y")], ["N", 1], known, dtype=11)
    found = frown.load(saved(proto, tmp_path))
    assert found.run(np.array([[1e27]]))[0, 1] > 999
    (row,) = asking.certify(found, [[0.0]], [0], dtype=dtype).rows
    assert row.radius <= 5e24


def test_a_normalisation_that_underflows_is_refused(tmp_path: Path) -> None:
    known = {"w": np.eye(2)}
    found = frown.load(
        saved(model([node("Gemm", "x w", "y")], ["N", 2], known, dtype=11), tmp_path)
    )
    assert found.normalised(0.0, 1e300) and found.normalised(1e-200, 1e80)
    for mean, std in ((1e-300, 1e10), (1.0, 1.7e308)):
        with pytest.raises(frown.errors.InvalidInput, match="too small"):
            found.normalised(mean, std)


@pytest.mark.parametrize("alpha", [1.0, 49.0, 0.3])
def test_celu_has_its_own_constants(alpha: float) -> None:
    """49 * (1 / 49) is not 1: ELU's parameter, which no charge covers, must not be made of it."""
    module = torch.nn.Sequential(torch.nn.CELU(alpha), torch.nn.Linear(3, 2))
    found = frown.load(module, torch.zeros(1, 3))
    assert [n.op.alpha for n in found.graph.nodes if isinstance(n.op, Elu)] == [1.0]


# -- a radius of 0 -----------------------------------------------------------------------------


def absorbed() -> list[Layer]:
    """1/2 - x_1, whose x_1 stands beside BIG x_0 and is lost in floats."""
    return [
        (float32([BIG, 1], [BIG, 0]), float32(0, 0), True),
        (float32([-1, 1], [0, 0]), float32(0.5, 0), False),
    ]


@pytest.mark.parametrize("deployed", [None, "float32"])
@pytest.mark.parametrize("eps", [[0.0], [0.0, 0.1]])
def test_the_input_itself_needs_a_proof(
    eps: list[float], deployed: str | None, tmp_path: Path, unseen: None
) -> None:
    """At a radius of 0 there is nothing to search for; the claim may be false all the same."""
    layers = absorbed()
    assert margin(layers, [Fraction(1), Fraction(1)]) == -Fraction(1, 2)
    loaded, x = frown.load(network(layers, tmp_path)), np.ones((len(eps), 2))
    asked = {"eps": eps, "method": "crown", "attack": False}
    assert asking.certify(loaded, x, level="estimate", **asked).rows[0].status == "certified"
    row = asking.certify(loaded, x, deployed=deployed, **asked).rows[0]
    assert (row.status, row.level) == ("unknown", "rigorous")
    assert "rounding" in row.remark


@pytest.mark.parametrize("norm", [1, 1.5, 2, "inf"])
def test_a_true_claim_about_the_input_is_proved_and_checked(norm: object, tmp_path: Path) -> None:
    layers = [(float32([1, 2], [3, -1]), float32(0, 0.1), True), (np.eye(2), float32(0, 0), False)]
    loaded = frown.load(network([(w.astype(np.float32), b, r) for w, b, r in layers], tmp_path))
    x = np.array([[0.0, 1.0], [0.5, 0.25]])
    found = asking.certify(
        loaded,
        x,
        eps=[0.0, 0.0],
        norm=norm,
        bounds=(0, 1),
        attack=False,
        level="checked",
        certificates=tmp_path / "certificates",
    )
    assert [(r.status, r.level, r.radius) for r in found.rows] == [
        ("certified", "checked", 0.0)
    ] * 2


def test_what_no_limit_of_a_clip_lets_pass_is_bounded_by_its_type(tmp_path: Path) -> None:
    """Near x = 0.37 a Clip without an upper limit reads 1e39 and gives 3.4e38, by the standard and
    in onnxruntime; without that the first class would win everywhere."""
    nodes = [
        node("Sub", "x place", "d"),
        node("Abs", "d", "e"),
        node("Mul", "e steep", "g"),
        node("Sub", "one g", "h"),
        node("Relu", "h", "b"),
        node("Mul", "b much", "s"),
        node("Relu", "s", "t"),
        node("Mul", "t more", "u"),
        node("Clip", "u low", "c"),
        node("Mul", "c little", "m"),
        node("Mul", "b part", "n"),
        node("Sub", "m n", "q"),
        node("Gemm", "q w v", "y"),
    ]
    known = {
        "place": 0.37,
        "steep": 50.0,
        "one": 1.0,
        "much": 1e20,
        "more": 1e19,
        "low": 0.0,
        "little": 1e-37,
        "part": 90.0,
        "w": [[10.0, 0.0]],
        "v": [5.0, 0.0],
    }
    constants = {name: np.array(value, np.float32) for name, value in known.items()}
    path = saved(model(nodes, ["N", 1], constants), tmp_path)
    net = frown.load(path)
    assert net.run(np.array([[0.37]]))[0].argmax() == 1
    for radius, level in ((1.0, "estimate"), (0.3, "checked")):
        (row,) = frown.certify(
            *(net, frown.Ball(np.zeros((1, 1))), [0]),
            method="crown",
            search=frown.At(radius),
            attack=None,
            proof="checked",
            machine=frown.Machine(dtype="float64"),
        ).rows
        assert row.level == level, row
