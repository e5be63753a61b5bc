"""The Python interface: answers that hold in the original runtime, and errors that help."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.bounds import work
from frown.bounds.method import Bounds, Method
from frown.certification import run
from frown.certification.results import Certification, Row
from frown.read.model import Model

NORMS = (1, 2, 3, "inf")
BALL = {1: 1.0, 2: 2.0, 3: 3.0, "inf": inf}


def network(seed: int = 0, act: nn.Module | None = None, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    act = act or nn.ReLU()
    net = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 8), act, nn.Linear(8, classes))
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(2)
    return net.eval()


def affine(weight: list[list[float]], bias: list[float]) -> Model:
    net = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        net.weight.copy_(torch.tensor(weight))
        net.bias.copy_(torch.tensor(bias))
    return frown.load(net, torch.zeros(1, len(weight[0])))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return network()


@pytest.fixture(scope="module")
def model(module: nn.Module) -> Model:
    return frown.load(module, torch.zeros(1, 4))


@pytest.fixture(scope="module")
def data(model: Model) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).uniform(-0.9, 0.9, (5, 4))
    return x, model.run(x).argmax(1)


def distance(step: np.ndarray, p: float) -> float:
    return float(np.linalg.norm(step.ravel(), ord=p))


def assert_no_sample_breaks(
    model: Model,
    x: np.ndarray,
    y: np.ndarray,
    rows: tuple[Row, ...],
    p: float,
    lo: float = -inf,
    hi: float = inf,
) -> None:
    """Random points of every proved ball keep the label in the original runtime."""
    rng = np.random.default_rng(1)
    for row, centre, label in zip(rows, x, y):
        step = rng.normal(size=(300, *centre.shape))
        if p == inf:
            step = np.sign(step)
        norms = np.array([distance(s, p) for s in step]).reshape(-1, *[1] * centre.ndim)
        points = np.clip(centre + 0.999 * row.radius * step / norms, lo, hi)
        assert (model.run(points).argmax(1) == label).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bounds", [None, (-1.0, 0.95)], ids=["open", "bounded"])
def test_every_row_is_a_bracket_that_holds(
    model: Model,
    data: tuple[np.ndarray, np.ndarray],
    norm: object,
    bounds: tuple[float, float] | None,
) -> None:
    x, y = data
    p = BALL[norm]  # type: ignore[index]
    result = asking.certify(model, x, y, norm=norm, bounds=bounds)
    lo, hi = bounds or (-inf, inf)
    assert_no_sample_breaks(model, x, y, result.rows, p, lo, hi)
    for row in result.rows:
        assert row.status in ("certified", "robust")
        assert row.radius > 0
        if row.failed is not None:
            assert row.radius < row.failed <= row.radius * 1.0101
        if row.broken is not None:
            assert row.radius <= row.broken
            point = result.counterexamples[row.index]
            assert distance(point - x[row.index], p) == pytest.approx(row.broken, rel=1e-9)
            assert point.min() >= lo
            assert point.max() <= hi
            output = model.run(point[None])[0]
            assert np.delete(output, row.label).max() >= output[row.label]
        assert min(row.margins.values()) > 0
    assert set(result.counterexamples) == {r.index for r in result.rows if r.broken is not None}


def test_counterexamples_are_replayed_in_the_original_runtime(
    model: Model, data: tuple[np.ndarray, np.ndarray]
) -> None:
    """A runtime that never errs away from the inputs: what the graph finds is not reported."""
    x, y = data

    def stubborn(points: np.ndarray) -> np.ndarray:
        output = model.run(points).copy()
        for k, point in enumerate(points):
            n = int(np.abs(x - point).sum(1).argmin())
            output[k, y[n]] += 100 * (np.abs(x[n] - point).max() > 1e-6)
        return output

    result = asking.certify(replace(model, run=stubborn), x[:2], y[:2], method="crown")
    assert not result.counterexamples
    assert np.isinf(result.broken).all()
    assert result.status == ["mismatch"] * 2 and not result.radius.any()


def test_methods_are_ordered(model: Model, data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    radius = {
        m: asking.certify(model, x, y, method=m, attack=False, tol=1e-3).radius
        for m in ("interval", "fastlin", "crown", "frown")
    }
    assert (radius["crown"] >= radius["interval"] * 0.998).all()
    assert (radius["frown"] >= radius["crown"] * 0.998).all()
    assert radius["frown"].mean() > radius["crown"].mean() > radius["interval"].mean()


@pytest.mark.parametrize("norm", NORMS)
def test_an_affine_models_radius_is_exact(norm: object) -> None:
    model = affine([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [0.3, 0.1, -1.0]], [1.0, 0.0, -3.0])
    p = BALL[norm]  # type: ignore[index]
    q = inf if p == 1 else (1.0 if p == inf else p / (p - 1))
    rows = np.array([[1.0, -2.0, 0.5], [0.7, -2.1, 1.5]])
    truth = min(m / distance(w, q) for m, w in zip((1.0, 4.0), rows))
    for method in ("interval", "crown", "frown"):
        result = asking.certify(model, np.zeros((1, 3)), [0], norm=norm, method=method, tol=0.001)
        if method != "interval":
            assert truth * 0.998 <= result.radius[0] <= truth * (1 + 1e-6)
        assert result.radius[0] <= truth * (1 + 1e-6)
        assert truth * (1 - 1e-6) <= result.broken[0] <= truth * 1.1


def test_every_target_counts(model: Model, data: tuple[np.ndarray, np.ndarray]) -> None:
    """Untargeted radius = the least over targets; +K means label + K modulo the classes."""
    x, y = data  # plain intervals: their margins fall steadily, so roots are unique
    whole = asking.certify(model, x, y, method="interval", tol=1e-3)
    each = [
        asking.certify(model, x, y, method="interval", target=f"+{k}", tol=1e-3) for k in (1, 2)
    ]
    least = np.minimum(each[0].radius, each[1].radius)
    assert whole.radius == pytest.approx(least, rel=3e-3)
    given = asking.certify(model, x, y, method="interval", target=(y + 2) % 3, tol=1e-3)
    assert np.array_equal(given.radius, each[1].radius)
    assert [r.target for r in each[0].rows] == ((y + 1) % 3).tolist()
    assert all(set(r.margins) == {r.target} for r in each[0].rows)
    assert all(set(r.margins) == {0, 1, 2} - {r.label} for r in whole.rows)


def test_misclassified_inputs_have_radius_0(
    model: Model, data: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = data
    wrong = y.copy()
    wrong[1] = (wrong[1] + 1) % 3
    result = asking.certify(model, x, wrong, method="crown")
    assert result.status[1] == "misclassified"
    assert result.radius[1] == 0
    right = asking.certify(model, x, y, method="crown")
    others = [0, 2, 3, 4]
    assert result.radius[others] == pytest.approx(right.radius[others], rel=1e-5)
    alone = asking.certify(model, x[1:2], wrong[1:2], method="frown")
    assert alone.status == ["misclassified"]


def test_a_small_range_is_proved_whole(model: Model, data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    for k in range(5):
        box = (x[k] - 1e-3, x[k] + 1e-3)
        result = asking.certify(model, x[k : k + 1], y[k : k + 1], bounds=box)
        assert result.status == ["robust"]
        assert result.radius[0] == pytest.approx(1e-3, rel=1e-2)
        assert result.rows[0].broken is None


@pytest.mark.parametrize("eps", [None, 1e3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", [1, 2, 3, "inf"])
def test_a_whole_range_of_many_features_is_proved_in_any_precision(
    norm: object, dtype: str, eps: float | None
) -> None:
    """What a replay takes for the farthest corner lies within the search's last radius."""
    model = affine([[0.01] * 200, [-0.01] * 200], [9.0, 0.0])
    x, bounds = np.linspace(0, 1, 200)[None], (0.0, 1.0)
    found = asking.certify(model, x, [0], norm=norm, eps=eps, dtype=dtype, bounds=bounds)
    assert found.status == ["robust"]


def test_robust_needs_a_range() -> None:
    """Without a range the search ends somewhere, which proves nothing about every radius."""
    model = affine([[0.0, 0.0], [0.0, 1.0]], [5000.0, 0.0])
    result = asking.certify(model, np.zeros((1, 2)), [0], method="crown")
    assert result.status == ["certified"]


@pytest.mark.parametrize("method", ["interval", "fastlin", "crown", "frown"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_radius_is_checked_at_that_radius(method: str, dtype: str) -> None:
    """x0 - x1 at (0.7, 0) changes sign at eps = 0.35; float32 rounds 0.3 up and 0.32 down."""
    model = affine([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    x = np.array([[0.7, 0.0]] * 4)
    eps = np.array([0.1, 0.3, 0.32, 0.36])
    result = asking.certify(model, x, [0] * 4, eps=eps, method=method, dtype=dtype)
    assert result.status == ["certified"] * 3 + ["falsified"]
    assert (result.radius[:3] == eps[:3]).all()
    assert result.broken[3] <= 0.36
    assert [result.certified_accuracy(e) for e in (0.1, 0.3, 0.32)] == [0.75, 0.5, 0.25]


@pytest.mark.parametrize("eps", [1500.0, 5000.0, 1e9])
def test_a_radius_beyond_the_searchs_limit_is_not_taken_as_proved(eps: float) -> None:
    """The answer changes at distance 2000; a search that ends at 1000 must not vouch for it."""
    model = affine([[0.0], [1.0]], [2000.0, 0.0])
    result = asking.certify(model, np.zeros((1, 1)), [0], eps=eps, attack=False)
    assert (result.status == ["certified"]) == (eps < 2000)
    if eps < 2000:
        assert result.radius[0] >= eps * (1 - 1e-6)


def test_eps_0_and_eps_of_the_whole_range(
    model: Model, data: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = data
    assert asking.certify(model, x, y, eps=0.0).status == ["certified"] * 5
    wide = asking.certify(model, x[:1], y[:1], eps=100.0, bounds=(x[0] - 1e-3, x[0] + 1e-3))
    assert wide.status == ["robust"]


def test_features_that_may_not_move(model: Model, data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    scale = np.array([0.0, 1.0, 2.0, 0.5])
    result = asking.certify(model, x, y, scale=scale, norm=2)
    free = asking.certify(model, x, y, scale=np.maximum(scale, 0.3), norm=2)
    assert (result.radius >= free.radius * 0.97).all()
    for k, point in result.counterexamples.items():
        assert point[0] == x[k, 0]
        step = (point - x[k])[1:] / scale[1:]
        assert distance(step, 2) == pytest.approx(result.rows[k].broken, rel=1e-9)
    assert result.counterexamples


@pytest.mark.parametrize("bounds", [(-0.7, 0.1), (0.1, 0.3)])
def test_counterexamples_respect_a_range_that_floats_cannot_hold(
    bounds: tuple[float, float],
) -> None:
    """0.1 and 0.7 are not float32 numbers: a cast moves them out of the range."""
    x = np.full((1, 2), sum(bounds) / 2)
    for sign, end in ((1.0, bounds[1]), (-1.0, bounds[0])):
        # Only the outermost corner of the range changes the answer.
        edge = 2 * sign * end - 1e-6
        model = affine([[sign, sign], [0.0, 0.0]], [0.0, edge])
        result = asking.certify(model, x, [1], bounds=bounds, method="crown")
        assert result.counterexamples
        for point in result.counterexamples.values():
            assert point.min() >= bounds[0]
            assert point.max() <= bounds[1]


def test_a_tie_is_not_a_counterexample_elsewhere() -> None:
    """Equal outputs prove nothing and break nothing but the tie itself."""
    model = affine([[1.0], [1.0]], [0.0, 0.0])
    result = asking.certify(model, np.ones((1, 1)), [0])
    assert result.status[0] in ("unknown", "misclassified")
    assert result.radius[0] == 0


def test_a_time_limit_returns_what_is_proved(
    model: Model, data: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = data
    best = asking.certify(model, x, y).radius
    for seconds in (1e-9, 0.02, 0.1):
        result = asking.certify(model, x, y, time_limit=seconds)
        assert len(result) == 5
        assert (result.radius <= best * 1.02).all()
        assert all(r.complete or r.radius >= 0 for r in result.rows)
    hurried = asking.certify(model, x, y, time_limit=1e-9)
    assert not any(r.complete for r in hurried.rows)
    assert set(hurried.status) <= {"unknown", "certified"}


@pytest.mark.parametrize("time_limit", [None, 60.0])
@pytest.mark.parametrize("when", ["crown", "frown"])
def test_an_interrupt_hands_over_the_rows_so_far(
    model: Model, data: tuple[np.ndarray, np.ndarray], time_limit: float | None, when: str
) -> None:
    x, y = data
    rows: list[Row] = []
    stages: list[str] = []

    def progress(p: object) -> None:
        stages.append(p.stage)  # type: ignore[attr-defined]
        if stages.count(when) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asking.certify(
            model,
            x,
            y,
            batch=2,
            progress=progress,
            time_limit=time_limit,
            on_rows=lambda r, _: rows.extend(r),
        )
    assert {r.index for r in rows} >= {0, 1}
    assert len(rows) == len({r.index for r in rows})


@pytest.mark.parametrize("end", ["__enter__", "__exit__"])
def test_an_interrupt_where_a_mode_of_torch_begins_or_ends_leaves_no_mode_behind(
    model: Model,
    data: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    left = getattr(torch.inference_mode, end)
    calls: list[bool] = []

    def strikes(self: torch.inference_mode, *error: object) -> None:
        calls.append(self.mode)
        if len(calls) > 6 and self.mode and calls.count(True) % 5 == 0:
            if end == "__enter__":
                left(self)
            raise KeyboardInterrupt
        left(self, *error)

    x, y = data
    rows: list[Row] = []
    monkeypatch.setattr(torch.inference_mode, end, strikes)
    with pytest.raises(KeyboardInterrupt):
        asking.certify(model, x, y, batch=len(x), on_rows=lambda r, _: rows.extend(r))
    assert {r.index for r in rows} == set(range(len(x)))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("time_limit", [None, 60.0])
@pytest.mark.parametrize("end", [False, True])
def test_an_interrupt_between_two_batches_loses_none(
    model: Model,
    data: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    time_limit: float | None,
    end: bool,
) -> None:
    whole, times = run._undisturbed, [0]

    @contextmanager
    def struck() -> Iterator[None]:
        times[0] += 1
        with whole():
            if times[0] == 2 and not end:
                raise KeyboardInterrupt
            yield
        if times[0] == 2 and end:
            raise KeyboardInterrupt

    x, y = data
    rows: list[Row] = []
    monkeypatch.setattr(run, "_undisturbed", struck)
    with pytest.raises(KeyboardInterrupt):
        asking.certify(
            model, x, y, batch=2, time_limit=time_limit, on_rows=lambda r, _: rows.extend(r)
        )
    done = len(x) if time_limit else 4 if end else 2
    assert [r.index for r in rows] == list(range(done))


def test_rows_keep_their_numbers_and_order(
    model: Model, data: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = data
    whole = asking.certify(model, x, y, tol=1e-3)
    numbers = np.array([40, 10, 30, 20, 50])
    seen: list[int] = []
    split = asking.certify(
        model,
        x,
        y,
        batch=2,
        indices=numbers,
        tol=1e-3,
        on_rows=lambda r, _: seen.extend(v.index for v in r),
    )
    assert [r.index for r in split.rows] == numbers.tolist() == seen
    assert split.radius == pytest.approx(whole.radius, rel=5e-3)
    assert set(split.counterexamples) <= set(numbers.tolist())
    order = np.array([3, 1, 4, 0, 2])
    turned = asking.certify(model, x[order], y[order], tol=1e-3, memory=1)
    assert turned.radius == pytest.approx(whole.radius[order], rel=5e-3)


def test_torch_and_onnx_imports_give_the_same_bounds(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray]
) -> None:
    from onnx_models import model as proto
    from onnx_models import node, saved

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    weights = {
        f"{kind}{i}": getattr(net[2 * i], full).detach().numpy()
        for i in (0, 1)
        for kind, full in (("w", "weight"), ("b", "bias"))
    }
    nodes = [
        node("Gemm", "x w0 b0", "h", transB=1),
        node("Tanh", "h", "a"),
        node("Gemm", "a w1 b1", "y", transB=1),
    ]
    path = saved(proto(nodes, ["N", 4], weights), tmp_path)
    ours = [frown.load(net, torch.zeros(1, 4)), frown.load(path)]
    x = data[0]
    for method in ("interval", "crown", "frown"):
        a, b = (asking.bound(m, x, eps=0.2, norm=2, method=method, dtype="float64") for m in ours)
        assert np.allclose(a.lower, b.lower, atol=1e-6)
        assert np.allclose(a.upper, b.upper, atol=1e-6)


@pytest.mark.parametrize("method", ["interval", "fastlin", "crown", "frown"])
@pytest.mark.parametrize("norm", NORMS)
def test_bounds_forms_and_layers_hold_on_samples(
    model: Model, data: tuple[np.ndarray, np.ndarray], norm: object, method: str
) -> None:
    x = data[0]
    p = BALL[norm]  # type: ignore[index]
    out = asking.bound(model, x, eps=0.3, norm=norm, method=method, dtype="float64")
    assert out.lower.shape == out.upper.shape == (5, 3)
    rng = np.random.default_rng(0)
    for _ in range(100):
        step = rng.normal(size=x.shape)
        step = np.sign(step) if p == inf else step
        step *= 0.3 / np.linalg.norm(step, ord=p, axis=1, keepdims=True)
        value = model.run(x + step)
        assert (value >= out.lower - 1e-5).all()
        assert (value <= out.upper + 1e-5).all()
        if out.lower_form is not None and out.upper_form is not None:
            flat = (x + step)[:, None, :]
            low = (out.lower_form.coef.reshape(5, 3, 4) * flat).sum(2) + out.lower_form.const
            high = (out.upper_form.coef.reshape(5, 3, 4) * flat).sum(2) + out.upper_form.const
            assert (value >= low - 1e-5).all()
            assert (value <= high + 1e-5).all()


def test_results_summarise_their_rows(model: Model, data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    result = asking.certify(model, x, y, method="crown", attack=False)
    assert isinstance(result, Certification)
    assert result.certified_accuracy(0.0) == 1.0
    assert result.certified_accuracy(float(np.median(result.radius))) == 0.6
    assert np.isinf(result.broken).all()
    assert result.version == frown.__version__


class Energies(torch.nn.Module):
    """Logarithms, roots, quotients and waves, whose domain some inputs nearby leave."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).cos() + 0.8
        return self.last(torch.log(h) + h.sqrt() + 1 / h - h**3)


def test_radii_end_where_a_domain_does() -> None:
    model = frown.load(Energies(), torch.zeros(1, 4))
    rng = np.random.default_rng(3)
    x = rng.uniform(-0.5, 0.5, (6, 4))
    result = asking.certify(model, x, norm=inf, method="crown")
    assert (result.radius > 0).all()
    assert (result.radius <= result.broken).all()
    for n in range(6):
        near = x[n] + result.radius[n] * rng.uniform(-1, 1, (2000, 4))
        assert (model.run(near).argmax(1) == model.run(x[n : n + 1]).argmax()).all()
    # So far away that values do not exist everywhere.
    for method in ("interval", "crown", "frown"):
        out = asking.bound(model, x, eps=4.0, method=method)
        assert not np.isfinite(out.lower).any() and not np.isfinite(out.upper).any()


def test_a_method_is_a_name_or_an_object(model: Model, data: tuple[np.ndarray, ...]) -> None:
    """Options beside a name, and the fields of an object, are the same."""
    x, y = data
    pairs = (
        ({"method": "crown", "rule": "paper"}, frown.Crown(rule="paper")),
        ({"method": "frown", "group": 2}, frown.Frown(group=2)),
        ({"method": "interval"}, frown.Interval()),
    )
    for named, method in pairs:
        one = asking.certify(model, x, y, attack=False, **named)
        other = asking.certify(model, x, y, attack=False, method=method)
        assert one.radius.tolist() == other.radius.tolist() and (one.radius > 0).all()
        assert other.rows[0].method == other.settings["method"] == method.name
    low = asking.bound(model, x, 0.01, method="crown", rule="paper").lower
    assert (asking.bound(model, x, 0.01, method=frown.Crown(rule="paper")).lower == low).all()


def test_a_method_of_ones_own_is_searched_with_from_crowns_brackets(
    model: Model, data: tuple[np.ndarray, ...]
) -> None:
    @dataclass(frozen=True)
    class Doubting(Method):
        """CROWN, less a tenth of every literal."""

        name: ClassVar[str] = "doubting"

        def bound(self, *args: Any, **options: Any) -> Bounds:
            found = frown.Crown().bound(*args, **options)
            return replace(found, literals=found.literals - 0.1 * found.literals.abs())

    x, y = data
    crown = asking.certify(model, x, y, attack=False, method="crown")
    own = asking.certify(model, x, y, attack=False, method=Doubting())
    assert {row.method for row in own.rows} == {"doubting"}
    # Positive where CROWN's are: radii differ as searches do, by lines that jump with the radius.
    assert own.radius == pytest.approx(crown.radius, rel=0.1)
    with pytest.raises(frown.FrownError, match="unknown rule 'old'; choose from area, paper"):
        frown.Crown(rule="old")
    with pytest.raises(frown.FrownError, match="group must be at least 0"):
        frown.Frown(group=-1)


def test_small_networks_take_one_thread_and_leave_the_callers(monkeypatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    model, x = frown.load(net, torch.zeros(1, 4)), np.full((1, 4), 0.3)
    seen: list[int] = []
    real = frown.Crown.bound

    def bound(self, *args, **more):
        seen.append(torch.get_num_threads())
        return real(self, *args, **more)

    monkeypatch.setattr(frown.Crown, "bound", bound)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        frown.certify(model, x, method="crown", attack=None, proof="estimate")
        frown.bound(model, frown.Ball(x).at(0.1), method="crown")
        assert torch.get_num_threads() == 2
        with pytest.raises(frown.FrownError):
            frown.certify(model, x, method="crown", attack=3)
        assert torch.get_num_threads() == 2
        assert seen and set(seen) == {1}
        with work.fitting_threads(work.FEW_WEIGHTS):
            assert torch.get_num_threads() == 2
        with work.fitting_threads(work.FEW_WEIGHTS, 1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries are left alone")
def test_memory_that_is_freed_is_used_again() -> None:
    code = """
import resource, torch
from frown.bounds.work import reuse_memory
torch.set_num_threads(1)
def faults(count=20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        blocks = [torch.ones(1 << 20) for _ in range(8)]  # 4 MiB each
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
asked = faults()
reuse_memory()
faults(1)
print(asked, faults())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    asked, kept = map(int, run.stdout.split())
    assert kept < asked / 10
