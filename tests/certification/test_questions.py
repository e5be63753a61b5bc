"""Questions other than "the label wins": proved radii hold on samples, broken ones are broken."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import frown
from frown.problem.property import Answers

RANDOM = 4000  # points of a proved region


def network(last: nn.Module, outputs: int = 1, seed: int = 0) -> frown.Model:
    """Two layers and a last function."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, outputs), last)
    return frown.load(layers, torch.zeros(1, 2))


def points(x: NDArray[np.float64], radius: float, seed: int = 1) -> NDArray[np.float64]:
    """Random points of the cube around an input, its corners first."""
    draws = np.random.default_rng(seed).uniform(-1, 1, (RANDOM, x.size))
    draws[: 2**x.size] = np.array(np.meshgrid(*[[-1, 1]] * x.size)).reshape(x.size, -1).T
    return x + radius * draws


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Tanh(), nn.Softplus()], ids=str)
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_limit_is_one_of_outputs_and_not_of_scores(last: nn.Module, side: float) -> None:
    model, x = network(last), np.array([[0.3, -0.2]])
    answer = float(model.run(x)[0, 0])
    limit = answer - side * 0.02
    found = frown.certify(model, x, frown.Clauses([[side]], -side * limit)).rows[0]
    assert found.radius > 0 and found.level == "rigorous"
    outputs = model.run(points(x[0], found.radius))
    assert (side * (outputs - limit) > 0).all()
    assert found.broken is not None and found.broken < 3 * found.radius


CONDITIONS = {
    "threshold": (frown.threshold("0.5"), 1, lambda y, o: (y > 0.5) == (o > 0.5)),
    "within": (frown.within(0.05), 2, lambda y, o: abs(y - o) < 0.05),
    "share": (frown.within("5%"), 2, lambda y, o: abs(y - o) < 0.05 * abs(o)),
    "multilabel": (frown.multilabel("0.45"), 3, lambda y, o: (y > 0.45) == (o > 0.45)),
    "top": (
        frown.top(2),
        4,
        lambda y, o: (y > y[:, o[0].argmax()][:, None]).sum(1, keepdims=True) < 2,
    ),
    "both": (
        frown.below(0, 0.9) & frown.within("0.2"),
        2,
        lambda y, o: (y[:, :1] < 0.9) & (abs(y - o) < 0.2),
    ),
    "either": (
        frown.above(0, 0.99) | frown.within("0.2"),
        2,
        lambda y, o: (y[:, :1] > 0.99) | (abs(y - o) < 0.2).all(1, keepdims=True),
    ),
}


def test_labels_beside_one_another_are_those_given() -> None:
    """An input of which one label is wrong is misclassified; the others are as without labels."""
    model, x = network(nn.Sigmoid(), 3), np.array([[0.3, -0.2], [0.3, -0.2]])
    labels = (model.run(x) > 0.45).astype(int)
    labels[1, 2] = 1 - labels[1, 2]
    told = frown.certify(model, x, frown.multilabel("0.45", labels))
    own = frown.certify(model, x[:1], frown.multilabel("0.45"))
    assert told.rows[0].radius == pytest.approx(own.rows[0].radius, rel=0.02) and own.radius > 0
    assert told.rows[1].status == "misclassified" and told.rows[1].radius == 0
    with pytest.raises(frown.FrownError, match="0 or 1 and of shape"):
        frown.certify(model, x, frown.multilabel("0.45", labels[:, :2]))


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_hold_in_the_radius_and_are_broken_beyond(name: str) -> None:
    condition, outputs, truth = CONDITIONS[name]
    model, x = network(nn.Sigmoid(), outputs), np.array([[0.3, -0.2]])
    answer = model.run(x)
    found = frown.certify(model, x, condition)
    (row,) = found.rows
    assert row.radius > 0 and row.level == "rigorous"
    assert truth(model.run(points(x[0], row.radius)), answer).all()
    if row.broken is not None:
        assert not truth(model.run(found.counterexamples[0][None]), answer).all()
        assert row.broken >= row.radius
    assert frown.certify(model, x, condition, search=row.radius).status == ["certified"]


def test_labels_of_one_sigmoid_are_sides_of_a_half() -> None:
    model, x = network(nn.Sigmoid()), np.array([[0.3, -0.2], [0.3, -0.2]])
    side = int(model.run(x)[0, 0] > 0.5)
    found = frown.certify(model, x, [side, 1 - side])
    assert found.status == ["certified", "misclassified"]
    assert [(r.label, r.prediction) for r in found.rows] == [(side, side), (1 - side, side)]
    assert "side of 0.5" in found.settings["statement"]["condition"]


def test_numbers_that_are_no_doubles_are_rounded_inwards() -> None:
    model, x = network(nn.Identity()), np.array([[0.3, -0.2]])
    tenth = Fraction(1, 10)
    for condition, sign in ((frown.below(0, "0.1"), 1), (frown.above(0, "0.1"), -1)):
        answers = Answers(1, 1, lambda: model.run(x))
        const = float(condition.on(answers, np.zeros(1, np.int64)).const)
        assert Fraction(const) <= sign * tenth < Fraction(np.nextafter(const, np.inf))


@pytest.mark.parametrize(
    ("condition", "outputs", "said"),
    [
        (frown.threshold(0.5), 2, "multilabel"),
        (frown.within("0%"), 1, "above 0"),
        (frown.within("five"), 1, "finite number"),
        (frown.below(3, 1.0), 2, "outputs 0 to 1"),
        (frown.top(4), 4, "from 1 to 3"),
        (frown.above(0, float("nan")), 1, "finite number"),
        (frown.label_wins(0), 1, "--threshold"),
    ],
)
def test_conditions_that_do_not_fit_say_what_would(
    condition: frown.Condition, outputs: int, said: str
) -> None:
    with pytest.raises(frown.FrownError, match=said):
        frown.certify(network(nn.Identity(), outputs), np.zeros((1, 2)), condition)


def identity(outputs: int) -> frown.Model:
    """A network that answers its input."""
    layer = nn.Linear(outputs, outputs, bias=False)
    layer.weight.data = torch.eye(outputs)
    return frown.load(layer, torch.zeros(1, outputs))


def test_rows_name_the_label_that_was_asked_about() -> None:
    """Not what the model answers: that is another class."""
    model, x = identity(4), np.array([[5.0, 4.0, 3.0, 0.0]])
    for condition in (frown.top(2, [1]), frown.top(2, [1]) & frown.above(0, -9)):
        (row,) = frown.certify(model, x, condition).rows
        assert (row.label, row.prediction) == (1, 0)
        assert 0.49 < row.radius < 0.5  # class 0 is among the largest two up to 1
    (row,) = frown.certify(model, x, frown.top(2, [3])).rows
    assert (row.status, row.label) == ("misclassified", 3)


@pytest.mark.parametrize("condition", [frown.within(0.5), frown.multilabel(2), frown.above(0, 1)])
def test_questions_about_no_class_have_neither_label_nor_prediction(
    condition: frown.Condition,
) -> None:
    found = frown.certify(identity(3), np.array([[5.0, 4.0, 3.0]]), condition)
    assert (found.rows[0].label, found.rows[0].prediction) == (None, None)
    assert found.rows[0].radius > 0 and "None" not in found._repr_html_()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (None, "the label has the largest output"),
        (2, "the label's output exceeds that of class 2"),
        ("+1", "the label's output exceeds that of the class label + 1"),
        (np.array([2]), "the label's output exceeds that of its target class"),
    ],
)
def test_joined_conditions_say_which_classes_the_label_beats(target: object, said: str) -> None:
    model, x = identity(3), np.array([[5.0, 9.0, 3.0]])
    condition = frown.label_wins([0], target) & frown.above(0, -9)
    found = frown.certify(model, x, condition)
    assert condition.words == f"{said}, and output 0 is above -9"
    beaten = {None: False, "+1": False}.get(target if isinstance(target, str | None) else "", True)
    assert (found.rows[0].radius > 0) == beaten  # class 1 is larger
    assert found.rows[0].label == 0


TINY = Fraction(1, 10**30)


@pytest.mark.parametrize(
    ("condition", "broken"),
    [
        (frown.threshold(Fraction(1, 2) + TINY, [0]), False),  # 1/2 is below that
        (frown.threshold(Fraction(1, 2) - TINY, [1]), False),
        (frown.threshold(Fraction(1, 2) - TINY, [0]), True),
        (frown.threshold(Fraction(1, 2), [0]), True),  # a tie
        (frown.below(0, Fraction(1, 2) + TINY), False),
        (frown.within(Fraction(1, 4) + TINY, of=[[0.25]]), False),
        (frown.within(Fraction(1, 4), of=[[0.25]]), True),
        (frown.within(Fraction(1, 4) + TINY, of=[[0.25]]) & frown.above(0, 0), False),
    ],
)
def test_only_what_violates_a_condition_exactly_is_a_counterexample(
    condition: frown.Condition, broken: bool
) -> None:
    """Constants are rounded for proofs, and not when points are judged."""
    (row,) = frown.certify(identity(1), np.array([[0.5]]), condition).rows
    assert row.status == ("misclassified" if broken else "unknown")
    assert row.broken == 0 if broken else row.broken != 0


def test_sums_of_outputs_are_judged_exactly() -> None:
    """10 ones and a small number: floats lose it, and with it the sign."""
    small = 2.0**-60
    for sign, broken in ((1.0, False), (-1.0, True)):
        wanted = frown.Clauses([[1.0, -1.0, 1.0]]).on(Answers(1, 3, lambda: np.zeros((1, 3))), [0])
        assert wanted.fails(np.array([[1.0, 1.0, sign * small]])).tolist() == [broken]
        either = frown.Clauses([[1.0, -1.0, 1.0], [0, 0, -1.0]], clause=[0, 0])
        both = either.on(Answers(1, 3, lambda: np.zeros((1, 3))), [0])
        assert not both.fails(np.array([[1.0, 1.0, sign * small]])).any()
    assert not wanted.fails(np.array([[np.nan, 1.0, 0.0]])).any()


def test_numbers_beyond_double_precision_are_refused() -> None:
    for condition in (frown.threshold("1e400"), frown.within("-1e400"), frown.below(0, "1e999")):
        with pytest.raises(frown.FrownError, match="at most 1e300 in size"):
            frown.certify(identity(1), np.zeros((1, 1)), condition)


def test_a_box_without_width_is_a_question_about_its_point() -> None:
    x = np.array([[5.0, 4.0, 3.0]])
    found = frown.certify(identity(3), frown.Box(x, x))
    assert found.rows[0].status == "certified" and found.rows[0].level == "rigorous"
