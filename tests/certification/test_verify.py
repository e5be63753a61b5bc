"""Queries: verdicts against the truth, and witnesses that anyone can replay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
import pytest

import frown
from frown.api import _Beside, _Verification
from frown.certification.run import Progress
from frown.errors import InvalidInput
from frown.jobs.verify import written
from frown.methods.frown.ascent import Ascent
from frown.methods.frown.network import Frown
from frown.problem.vnnlib import parse_vnnlib
from onnx_models import model, node, saved, weights

INPUTS, OUTPUTS = 3, 2
HEAD = "".join(
    f"(declare-const {k}_{i} Real)\n" for k, n in (("X", INPUTS), ("Y", OUTPUTS)) for i in range(n)
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 -> 8 relu -> 2."""
    proto = model(
        [
            node("Gemm", "x w0 b0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1 b1", "y", transB=1),
        ],
        ["N", INPUTS],
        {
            "w0": weights(8, INPUTS, seed=1),
            "b0": weights(8, seed=2),
            "w1": weights(OUTPUTS, 8, seed=3),
            "b1": weights(OUTPUTS, seed=4),
        },
    )
    return saved(proto, tmp_path_factory.mktemp("net"))


def box(low: float, high: float, last: float | None = None) -> str:
    """A box; its last side has no width where `last` says so."""
    sides = [(low, high)] * (INPUTS - 1) + [(low, high) if last is None else (last, last)]
    parts = (f"(>= X_{i} {a}) (<= X_{i} {b})" for i, (a, b) in enumerate(sides))
    return f"(and {' '.join(parts)})"


def truth(net: Path, low: float, high: float) -> np.ndarray:
    """Outputs on a fine grid of a box."""
    grid = np.array(list(product(np.linspace(low, high, 15), repeat=INPUTS)), np.float32)
    session = onnxruntime.InferenceSession(str(net))
    return np.asarray(session.run(None, {session.get_inputs()[0].name: grid})[0], np.float64)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (90.0, 93.0)])
@pytest.mark.parametrize("share", [-0.3, 0.2, 0.9, 1.3])
def test_a_limit_is_exceeded_where_a_grid_says_so(
    net: Path, low: float, high: float, share: float
) -> None:
    """Two cases: an output beyond a limit, which is a share of the range that a grid shows."""
    seen = truth(net, low, high)
    limit = seen.min(0) + share * np.ptp(seen, axis=0)
    limit[1] = seen[:, 1].max() + 1e3  # never
    text = f"{HEAD}(assert {box(low, high)})(assert (or (>= Y_0 {limit[0]}) (>= Y_1 {limit[1]})))"
    verdict = frown.verify(net, parse_vnnlib(text), machine=frown.Machine(seconds=20))
    reached = (seen[:, 0] >= limit[0]).any()
    assert reached or share > 1
    assert verdict.answer == ("sat" if reached else "unsat")
    if verdict.witness is not None:
        assert_witness(net, text, verdict.witness)


def assert_witness(net: Path, text: str, witness: frown.Witness) -> None:
    """A witness has the network's type, and satisfies the query by a session of its own."""
    assert witness.x.dtype == np.float32
    session = onnxruntime.InferenceSession(str(net))
    name = session.get_inputs()[0].name
    y = session.run(None, {name: witness.x[None]})[0][0]
    exact = [[Fraction(float(v)) for v in values] for values in (witness.x, y)]
    assert parse_vnnlib(text).satisfied(*exact)
    assert np.array_equal(y, witness.y)


def test_boxes_of_their_own_are_answered_together(net: Path) -> None:
    """Three boxes, of which the last is violated; one has a side without width."""
    seen = truth(net, 2.0, 3.0)
    limit = seen[:, 0].min() + 0.5 * np.ptp(seen[:, 0])
    never = "(>= Y_1 1e6)"
    parts = [
        f"(and {box(-1, 1)} {never})",
        f"(and {box(-1, 1, last=0.1)} {never} (<= Y_0 0))",
        f"(and {box(2, 3)} (>= Y_0 {limit}))",
    ]
    text = f"{HEAD}(assert (or {' '.join(parts)}))"
    verdict = frown.verify(net, parse_vnnlib(text), machine=frown.Machine(seconds=20))
    assert (verdict.answer, verdict.disjuncts) == ("sat", 3)
    assert verdict.witness is not None and verdict.witness.disjunct == 2
    assert_witness(net, text, verdict.witness)
    calm = f"{HEAD}(assert (or {' '.join(parts[:2])}))"
    verdict = frown.verify(net, parse_vnnlib(calm), machine=frown.Machine(seconds=20))
    assert (verdict.answer, verdict.proved) == ("unsat", 2)


def test_where_floats_have_no_number_between_bounds_a_witness_has_one(net: Path) -> None:
    """No number of single precision lies strictly between 1 and the next one: the network is given
    the nearest, and what is said to satisfy the query lies in the box."""
    inside = f"{HEAD}(assert (and (>= X_0 1.00000001) (<= X_0 1.00000002)))"
    rest = "(assert (and (>= X_1 0) (<= X_1 0) (>= X_2 0) (<= X_2 0)))"
    machine = frown.Machine(seconds=5)
    verdict = frown.verify(
        net, parse_vnnlib(f"{inside}{rest}(assert (>= Y_0 -1e6))"), machine=machine
    )
    assert verdict.answer == "sat" and verdict.witness is not None
    assert verdict.witness.x[0] == 1 and 1.00000001 <= verdict.witness.stated[0] <= 1.00000002
    assert "1 inputs have no number of type float32" in verdict.remarks[0]
    never = frown.verify(net, parse_vnnlib(f"{inside}{rest}(assert (>= Y_0 1e6))"), machine=machine)
    assert never.answer == "unsat"


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        ("0.12345678901234567890", "0.12345678901234567891", "0.12345678901234567891"),
        ("0.12345678901234567890", "0.12345678901234567890", "0.1234567890123456789"),
        ("-0.333333333333333333334", "-0.333333333333333333333", "-0.333333333333333333334"),
        ("1e-400", "2e-400", f"0.{'0' * 399}1"),
        ("0.1", "0.1", "0.1"),
        ("0.1000000001", "0.1000000002", "0.1000000002"),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_what_is_told_of_a_witness_lies_in_the_box(
    net: Path, low: str, high: str, told: str, second: bool
) -> None:
    """To its last digit, also where no double lies between the bounds, and in both versions."""
    ends = [(low, high), ("0", "0"), ("0", "0")]
    if second:
        head = "(vnnlib-version <2.0>)(declare-network N (declare-input X real [1,3])"
        head += "(declare-output Y real [1,2]))"
        names, last = [f"X[0,{i}]" for i in range(3)], "Y[0,0]"
    else:
        head, names, last = HEAD, ["X_0", "X_1", "X_2"], "Y_0"
    sides = " ".join(f"(>= {x} {a}) (<= {x} {b})" for x, (a, b) in zip(names, ends, strict=True))
    query = parse_vnnlib(f"{head}(assert (and {sides}))(assert (>= {last} -1e6))")
    verdict = frown.verify(net, query, machine=frown.Machine(seconds=3))
    assert verdict.answer == "sat" and verdict.witness is not None
    numbers = re.findall(
        r"(?:^|\(X_\d )(-?[\d.]+)\)?$", "\n".join(written(query, verdict.witness)), re.M
    )
    assert numbers[0] == told and Fraction(low) <= Fraction(told) <= Fraction(high)


def test_numbers_that_no_witness_can_tell(net: Path) -> None:
    """Neither a third nor what is beyond doubles; and digits are those of the standard."""
    rest = "(>= X_1 0) (<= X_1 0) (>= X_2 0) (<= X_2 0)))(assert (>= Y_0 -1e6))"
    machine = frown.Machine(seconds=1)
    third = parse_vnnlib(f"{HEAD}(assert (and (>= X_0 (/ 1 3)) (<= X_0 (/ 1 3)) {rest}")
    assert frown.verify(net, third, machine=machine).answer != "sat"
    far = parse_vnnlib(f"{HEAD}(assert (and (>= X_0 1e309) (<= X_0 1e310) {rest}")
    with pytest.raises(InvalidInput, match="infinity"):
        frown.verify(net, far, machine=machine)
    with pytest.raises(InvalidInput, match="neither a number"):
        parse_vnnlib(f"{HEAD}(assert (and (>= X_0 \uff12) (<= X_0 3) {rest}")


def test_what_is_given_in_place_of_an_input_does_not_decide_alone(tmp_path: Path) -> None:
    """1e9 (x - b) with b just below 0.1 is 5.96 at 0.1, and 7.45 at the number of single precision
    next to it."""
    near = np.nextafter(np.float32(0.1), np.float32(0))
    nodes = [node("Sub", "x b", "d"), node("MatMul", "d w", "y")]
    constants = {"b": np.array([near]), "w": np.array([[1e9]], np.float32)}
    steep = saved(model(nodes, [1, 1], constants), tmp_path)
    session = onnxruntime.InferenceSession(steep)
    assert session.run(None, {"x": np.full((1, 1), 0.1, np.float32)})[0][0, 0] > 7
    head = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    fixed = "(assert (and (>= X_0 0.1) (<= X_0 0.1)))"
    for least in (5, 7):
        query = parse_vnnlib(f"{head}{fixed}(assert (>= Y_0 {least}))")
        assert (frown.verify(steep, query).answer == "sat") == (least == 5)


@pytest.mark.parametrize("digits", ["0.7098039388656616", "0.1"])
def test_inputs_fixed_at_the_digits_of_a_double_are_that_double(net: Path, digits: str) -> None:
    """The first is what a number of single precision is written as, but not exactly that number;
    the double that 0.1 is written for is none of single precision."""
    number = np.float32(float(digits))
    assert Fraction(float(number)) != Fraction(digits)
    sides = f"(>= X_0 {digits}) (<= X_0 {digits}) (>= X_1 0) (<= X_1 1) (>= X_2 0) (<= X_2 1)"
    query = parse_vnnlib(f"{HEAD}(assert (and {sides}))(assert (>= Y_0 -1e6))")
    verdict = frown.verify(net, query, machine=frown.Machine(seconds=5))
    assert verdict.answer == "sat"
    (one,) = query.disjuncts
    low, high = one.around(np.float64)
    assert Fraction(low[0]) <= Fraction(digits) <= Fraction(high[0])
    assert low[0] <= float(digits) <= high[0]
    assert verdict.witness is not None
    assert verdict.witness.x[0] == number and verdict.witness.stated[0] == Fraction(digits)
    exact = [Fraction(float(v)) for v in verdict.witness.x]
    read = one.reading(exact, np.float32)
    assert not one.contains(exact) and one.contains(read) and read[1:] == exact[1:]


def test_a_query_of_no_inputs_is_unsatisfiable_and_of_others_refused(net: Path) -> None:
    never = parse_vnnlib(f"{HEAD}(assert {box(1, 0)})(assert (<= Y_0 0))")
    assert frown.verify(net, never).answer == "unsat"
    other = parse_vnnlib(
        "(declare-const X_0 Real)(declare-const Y_0 Real)"
        "(assert (and (>= X_0 0) (<= X_0 1) (<= Y_0 0)))"
    )
    with pytest.raises(InvalidInput, match="1 inputs and 1 outputs, the network"):
        frown.verify(net, other)


def test_double_precision_is_the_element_type_of_its_witnesses(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "y")],
        ["N", INPUTS],
        {"w": weights(INPUTS, OUTPUTS).astype(np.float64)},
        dtype=onnx.TensorProto.DOUBLE,
    )
    text = f"{HEAD}(assert {box(0.1, 0.3)})(assert (or (>= Y_0 0) (<= Y_0 0)))"
    verdict = frown.verify(saved(proto, tmp_path), parse_vnnlib(text))
    assert verdict.witness is not None and verdict.witness.x.dtype == np.float64


def least_violation(net: Path, rows: np.ndarray, const: np.ndarray) -> float:
    """The least over the box [-1, 1] of the greatest of rows . (outputs, inputs) + const, by a
    mixed integer program: a query of these constraints (<= 0) is satisfied where it is not above
    0."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(net).graph.initializer}
    w0, b0, w1, b1 = (held[n].astype(np.float64) for n in ("w0", "b0", "w1", "b1"))
    n, h = INPUTS, len(b0)
    reach = np.abs(w0).sum(1) + np.abs(b0)
    # x, z (what relus give), d (whether they are active), t
    total = n + 2 * h + 1
    eye, none = np.eye(h), np.zeros((h, 1))
    lines = [
        (np.hstack([-w0, eye, 0 * eye, none]), b0, np.inf),  # z >= w x + b
        (np.hstack([-w0, eye, np.diag(reach), none]), -np.inf, b0 + reach),  # z <= w x + b + M(1-d)
        (np.hstack([0 * w0, eye, -np.diag(reach), none]), -np.inf, 0),  # z <= M d
    ]
    onto = rows[:, :OUTPUTS] @ w1
    ends = np.hstack([rows[:, OUTPUTS:], onto, np.zeros((len(rows), h)), -np.ones((len(rows), 1))])
    lines.append((ends, -np.inf, -(const + rows[:, :OUTPUTS] @ b1)))
    cost = np.zeros(total)
    cost[-1] = 1
    low = np.concatenate([-np.ones(n), np.zeros(2 * h), [-1e4]])
    high = np.concatenate([np.ones(n), reach, np.ones(h), [1e4]])
    kinds = np.concatenate([np.zeros(n + h), np.ones(h), [0]])
    parts = [LinearConstraint(*line) for line in lines]
    return float(milp(cost, integrality=kinds, bounds=Bounds(low, high), constraints=parts).fun)


def test_attacks_end_where_bounds_have_proved_all(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left then is a replay."""
    told: list[tuple[Progress, bool]] = []  # and whether an attack followed
    attack, progress = _Verification._attack, _Beside.progress

    def attacked(*args: Any) -> None:
        if told:
            told[-1] = told[-1][0], True
        attack(*args)

    def asked(self: _Beside, news: Progress) -> None:
        told.append((news, False))
        progress(self, news)

    monkeypatch.setattr(_Verification, "_attack", attacked)
    monkeypatch.setattr(_Beside, "progress", asked)
    monkeypatch.setattr("frown.api.ATTACKS", 1e9)  # as if proofs had taken long
    text = f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_0 1e6))"
    machine = frown.Machine(seconds=20)
    assert frown.verify(net, parse_vnnlib(text), machine=machine).answer == "unsat"
    assert any(followed for _, followed in told)
    proved = [followed for news, followed in told if news.underway and news.proved_mean >= 1]
    assert proved and not any(proved)
    assert not any(followed for news, followed in told if news.stage == "rigorous")


def test_branching_goes_on_from_what_the_method_before_found(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of cuts hang at bounds that are not computed again."""
    asked: list[bool] = []
    branching = False
    bound, close = Frown.bound, frown.Branch.close

    def counted(*args: Any, **more: Any) -> Any:
        asked.append(branching)
        return bound(*args, **more)

    def closed(*args: Any) -> Iterator[Any]:
        nonlocal branching
        branching = True
        yield from close(*args)

    monkeypatch.setattr(Frown, "bound", counted)
    monkeypatch.setattr(frown.Branch, "close", closed)
    limit = float(truth(net, -1, 1)[:, 0].max()) * 1.02
    text = f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_0 {limit}))"
    machine = frown.Machine(seconds=20)
    for inputs in (True, False):
        asked.clear()
        branching = False
        monkeypatch.setattr("frown.methods.branch.method.fits", lambda _, own=inputs: own)
        how = frown.Branch(inner=Frown(ascent=Ascent(1, 1)))
        verdict = frown.verify(net, parse_vnnlib(text), method=how, machine=machine)
        assert verdict.answer == "unsat" and branching
        assert asked and not any(asked)


@pytest.mark.parametrize("again", [0, 2])
def test_no_tree_starts_from_bounds_that_rest_on_earlier_ones(
    net: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Where ascents went on in boxes that they had found before, the replay has no such boxes."""
    known = []

    def close(
        self: frown.Branch, plan: object, region: Any, wanted: Any, ends: Any, work: object
    ) -> Iterator[Any]:
        known.append(ends.known is not None)
        return iter(())

    monkeypatch.setattr(frown.Branch, "close", close)
    monkeypatch.setattr("frown.certification.search.INSIST", again)
    monkeypatch.setattr("frown.certification.search.HOPE", 1e9)
    limit = float(truth(net, -1, 1)[:, 0].max()) * 1.02
    text = f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_0 {limit}))"
    how = frown.Branch(inner=Frown(ascent=Ascent(1, 1)))
    frown.verify(net, parse_vnnlib(text), method=how, machine=frown.Machine(seconds=20))
    assert known == [again == 0]


@pytest.mark.parametrize("seed", range(24))
def test_constraints_on_inputs_and_outputs_are_decided_as_a_program_decides_them(
    net: Path, seed: int
) -> None:
    """Two constraints that mix both, and one of several inputs, in version 2; the last constant
    moves what is asked to either side of the truth, or near it."""
    dice = np.random.default_rng(seed)
    rows = np.round(dice.uniform(-1, 1, (3, OUTPUTS + INPUTS)), 3)
    rows[2, :OUTPUTS] = 0
    const = np.round(dice.uniform(-1, 1, 3), 3)
    shift = least_violation(net, rows, const) + dice.choice([-0.3, -0.01, 0.01, 0.3])
    const = np.round(const - shift, 6)
    names = [*(f"Y[{i}]" for i in range(OUTPUTS)), *(f"X[{i}]" for i in range(INPUTS))]
    text = "(vnnlib-version <2.0>)(declare-network f (declare-input X real [3])"
    text += "(declare-output Y real [2]))" + box(-1, 1).join(["(assert ", ")"])
    text = text.replace("X_0", "X[0]").replace("X_1", "X[1]").replace("X_2", "X[2]")
    for row, constant in zip(rows, const, strict=True):
        terms = " ".join(f"(* {c:.3f} {v})" for c, v in zip(row, names, strict=True))
        text += f"(assert ({'<' if seed % 2 else '<='} (+ {terms}) {-constant:.6f}))"
    found = least_violation(net, rows, const)
    verdict = frown.verify(net, parse_vnnlib(text), machine=frown.Machine(seconds=20))
    assert verdict.answer == ("sat" if found < 0 else "unsat"), found
    if verdict.witness is not None:
        assert_witness(net, text, verdict.witness)


def test_graph_and_original_are_compared_without_the_inputs_behind_them(net: Path) -> None:
    """Inputs agree with themselves, however large they are: outputs that differ are seen."""
    from dataclasses import replace

    own = frown.load(net)
    text = f"{HEAD}(assert {box(1e4, 1.0001e4)})(assert (<= (+ X_0 1e9) Y_0))"
    query = parse_vnnlib(text)
    assert query.mixed
    assert frown.verify(own, query, machine=frown.Machine(seconds=10)).answer == "unsat"
    lying = replace(own, run=lambda x: own.run(x) * 1.01)
    assert frown.verify(lying, query, machine=frown.Machine(seconds=10)).answer != "unsat"


def test_a_leading_axis_that_the_query_counts_is_no_batch(tmp_path: Path) -> None:
    """Three rows of two features, which the network joins: a query of six inputs has them all."""
    nodes = [node("Reshape", "x shape", "flat"), node("Gemm", "flat w b", "y")]
    weight = weights(6, 2, seed=5)
    constants = {"shape": np.array([1, 6]), "w": weight, "b": np.zeros(2, np.float32)}
    joined = saved(model(nodes, [3, 2], constants), tmp_path)
    head = "".join(f"(declare-const X_{i} Real)" for i in range(6))
    sides = "".join(f"(assert (<= -1 X_{i}))(assert (<= X_{i} 1))" for i in range(6))
    most = float(np.abs(weight[:, 0].astype(np.float64)).sum())
    for share, answer in ((0.99, "sat"), (1.01, "unsat")):
        text = f"{head}(declare-const Y_0 Real)(declare-const Y_1 Real){sides}"
        query = parse_vnnlib(f"{text}(assert (>= Y_0 {most * share}))")
        verdict = frown.verify(joined, query, machine=frown.Machine(seconds=20))
        assert verdict.answer == answer
        if verdict.witness is not None:
            session = onnxruntime.InferenceSession(joined)
            (found,) = session.run(None, {"x": verdict.witness.x.reshape(3, 2)})
            assert found[0, 0] >= most * share - 1e-6
    with pytest.raises(InvalidInput, match="leading axis of 3"):
        frown.verify(joined, query, certificate=tmp_path / "proof")


def test_a_fixed_batch_that_the_query_does_not_count_is_one(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], [3, 2], {"w": weights(2, 1, seed=6)})
    text = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
    sides = "".join(f"(assert (<= 0 X_{i}))(assert (<= X_{i} 1))" for i in range(2))
    query = parse_vnnlib(f"{text}{sides}(assert (>= Y_0 100))")
    assert frown.verify(saved(proto, tmp_path), query).answer == "unsat"


def test_a_limit_that_has_passed_is_no_error(net: Path) -> None:
    query = parse_vnnlib(f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_0 1e9))")
    verdict = frown.verify(net, query, machine=frown.Machine(seconds=1e-9))
    assert verdict.answer == "timed-out"


class Hungry(frown.Crown):
    """A method that needs more memory than there is."""

    def bound(self, *args: object, **options: object) -> NoReturn:
        raise MemoryError


def test_memory_that_runs_out_leaves_a_query_unknown(net: Path) -> None:
    never = f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_1 1e6))"
    verdict = frown.verify(net, parse_vnnlib(never), method=Hungry())
    assert verdict.answer == "unknown"
    assert any("memory ran out" in remark for remark in verdict.remarks)


def test_what_lines_prove_is_not_branched(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of two boxes that they leave open is, and no other."""
    seen = []

    def close(
        self: frown.Branch, plan: object, region: Any, wanted: Any, ends: Any, work: object
    ) -> Iterator[Any]:
        seen.extend(region.with_radius(ends.limit).box().upper[:, 0].tolist())
        return iter(())

    monkeypatch.setattr(frown.Branch, "close", close)
    machine = frown.Machine(seconds=60)
    never = f"{HEAD}(assert {box(-1, 1)})(assert (>= Y_1 1e6))"
    assert frown.verify(net, parse_vnnlib(never), machine=machine).answer == "unsat"
    assert not seen
    most = truth(net, -1, 1)[:, 1].max() * 1.001
    both = f"{HEAD}(assert (or {box(0, 0.001)} {box(-1, 1)}))(assert (>= Y_1 {most}))"
    crown = frown.Branch(inner=frown.Crown())
    verdict = frown.verify(net, parse_vnnlib(both), method=crown, machine=machine)
    assert (verdict.answer, verdict.proved, seen) == ("unknown", 1, [1])


def test_outputs_that_move_together_contradict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """y_0 <= 0 and y_1 >= 0, where y_1 = y_0 - 0.01: a sum of both constraints refutes it at once,
    and without sums no cuts of 20 inputs do."""
    row = weights(1, 30, seed=3)
    layers = [
        node("Gemm", "x w0 b0", "h", transB=1),
        node("Relu", "h", "a"),
        node("Gemm", "a w1 b1", "y", transB=1),
    ]
    proto = model(
        layers,
        ["N", 20],
        {
            "w0": weights(30, 20, seed=1),
            "b0": weights(30, seed=2),
            "w1": np.concatenate([row, row]),
            "b1": np.array([0, -0.01], np.float32),
        },
    )
    text = "".join(
        f"(declare-const X_{i} Real)(assert (>= X_{i} -1))(assert (<= X_{i} 1))" for i in range(20)
    )
    text += "(declare-const Y_0 Real)(declare-const Y_1 Real)(assert (<= Y_0 0))(assert (>= Y_1 0))"
    own, query = saved(proto, tmp_path), parse_vnnlib(text)
    machine = frown.Machine(seconds=3)
    assert frown.verify(own, query, machine=machine).answer == "unsat"
    monkeypatch.setattr("frown.api.with_helpful_sums", lambda plan, region, asked, *_: asked)
    assert frown.verify(own, query, machine=machine).answer == "timed-out"


def test_cuts_reach_every_input(tmp_path: Path) -> None:
    """A formula of all clauses of 4 variables, which no vertex satisfies. Its second output is the
    distance from a vertex, which calls for cuts next to a vertex for ever."""
    count = 4
    signs = np.array(list(product([1.0, -1.0], repeat=count)), np.float32)
    # A clause lacks max(0, 1 - sum of its literals), and a variable is min(x, 1 - x) off.
    first = np.concatenate([-signs, np.eye(count), 2 * np.eye(count)]).astype(np.float32)
    clauses = len(signs)
    bias = np.concatenate([1 - (signs < 0).sum(1), np.zeros(count), -np.ones(count)])
    last = np.zeros((2, len(first)), np.float32)
    last[0, :clauses] = -1
    last[1, clauses:] = np.repeat([1.0, -1.0], count)
    layers = [
        node("Gemm", "x w0 b0", "h", transB=1),
        node("Relu", "h", "a"),
        node("Gemm", "a w1 b1", "y", transB=1),
    ]
    tensors = {"w0": first, "b0": bias.astype(np.float32), "w1": last}
    proto = model(layers, ["N", count], {**tensors, "b1": np.array([1, 0], np.float32)})
    text = "".join(
        f"(declare-const X_{i} Real)(assert (>= X_{i} 0))(assert (<= X_{i} 1))"
        for i in range(count)
    )
    text += "(declare-const Y_0 Real)(declare-const Y_1 Real)(assert (>= Y_0 1))(assert (<= Y_1 0))"
    verdict = frown.verify(
        saved(proto, tmp_path), parse_vnnlib(text), machine=frown.Machine(seconds=20)
    )
    assert verdict.answer == "unsat"
    assert verdict.seconds < 10


def test_a_tie_in_the_middle_of_a_box_is_told_in_the_words_of_the_query(tmp_path: Path) -> None:
    """y_0 = x_0 everywhere, so y_0 > x_0 nowhere; the query has no input that could be wrong."""
    eye = np.eye(INPUTS, OUTPUTS, dtype=np.float32)
    own = saved(model([node("MatMul", "x w", "y")], ["N", INPUTS], {"w": eye}), tmp_path)
    query = parse_vnnlib(f"{HEAD}(assert {box(0, 1)})(assert (> Y_0 X_0))")
    verdict = frown.verify(own, query, machine=frown.Machine(seconds=1))
    assert verdict.answer != "sat"
    assert [r for r in verdict.remarks if r.startswith("the middle of a box satisfies")]
    assert not [r for r in verdict.remarks if "the input itself" in r]
