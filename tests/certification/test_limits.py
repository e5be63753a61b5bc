"""Limits of time and memory hold. Time is counted in work, so that no machine is too slow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import asking
import frown
from frown.api import plan_for
from frown.bounds import replay, rows
from frown.bounds import work as clocks
from frown.bounds.arithmetic import float as plain
from frown.bounds.arithmetic import patches
from frown.bounds.method import Update
from frown.bounds.work import Work as Budget
from frown.certification.run import batch_size
from frown.errors import InvalidInput
from frown.methods import Branch, Frown, crown
from frown.methods.frown import ascent as optimise
from frown.problem.property import LabelWins, conjunction, other_classes

BEYOND = 25  # units: what one look at the clock may miss, beside the tenth that is allowed


class Work:
    """A clock that moves on by one with every chunk of rows."""

    def __init__(self, patch: pytest.MonkeyPatch, proofs: int = 1) -> None:
        """With `proofs`, what a chunk of a proof's rows takes."""
        self.done = 0
        patch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: float(self.done)))
        for module, name in (
            (crown, "form_along"),
            (plain, "form_along"),
            (plain, "spread_box"),
            (replay, "charged_form"),
            (patches, "charged_form"),
            (optimise._Search, "evaluate"),
        ):
            cost = proofs if name == "pull_back" else 1
            patch.setattr(module, name, self.counted(getattr(module, name), cost))

    def counted(self, call: Any, cost: int) -> Any:
        def one(*args: Any, **named: Any) -> Any:
            self.done += cost
            return call(*args, **named)

        return one


@pytest.fixture(scope="module")
def model() -> frown.Model:
    torch.manual_seed(0)
    sizes = (6, 40, 40, 40, 4)
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return frown.load(torch.nn.Sequential(*layers[:-1]).eval(), torch.zeros(1, 6))


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(1).random((4, 6))


@pytest.mark.parametrize("method", ["crown", "frown"])
@pytest.mark.parametrize("attack", [True, False])
def test_no_work_is_begun_after_the_limit(
    method: str, attack: bool, model: frown.Model, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small chunks, two batches: whatever the limit, it holds, and something is proved rigorously
    of every input as soon as the cheap bounds of all fit."""
    monkeypatch.setattr(rows, "PASS", 40)
    monkeypatch.setattr(rows, "CHUNK", 1 << 14)
    options: dict[str, Any] = {"method": method, "attack": attack, "batch": 2}
    work = Work(monkeypatch)
    whole = asking.certify(model, x, **options)
    total, before = work.done, 0.0
    assert total > 500
    for limit in (50, 400, total // 2, 8 * total):
        work.done = 0
        found = asking.certify(model, x, time_limit=limit, **options)
        assert work.done <= 1.1 * limit + BEYOND
        assert (found.radius <= whole.radius * 1.02).all()
        assert {row.level for row in found.rows} == {"rigorous"}
        if limit >= 400:
            assert (found.radius > 0).all()
            before = float(found.radius.mean())
    assert before >= 0.98 * whole.radius.mean()
    assert all(row.complete for row in found.rows)


def deep() -> frown.Model:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for a, b in pairwise((6, *[40] * 6, 4)):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return frown.load(torch.nn.Sequential(*layers[:-1]).eval(), torch.zeros(1, 6))


@pytest.mark.parametrize("proofs", [1, 3])
def test_in_little_time_more_is_proved_than_intervals_tell(
    proofs: int, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether proofs are quick or slow, searches end early enough for them, and go on in what they
    leave."""
    monkeypatch.setattr(rows, "PASS", 40)
    monkeypatch.setattr(rows, "CHUNK", 1 << 14)
    model, options = deep(), dict[str, Any](method="crown", attack=False)
    work = Work(monkeypatch, proofs)
    rough = asking.certify(model, x[:1], method="crown-ibp", attack=False).radius
    work.done = 0
    asking.certify(model, x[:1], **options)
    total = work.done
    for share, least in ((0.45, 5.0), (1.0, 15.0), (2.0, 45.0)):
        work.done = 0
        found = asking.certify(model, x[:1], time_limit=share * total, **options)
        assert work.done <= 1.1 * share * total + BEYOND * proofs
        assert (found.radius > least * rough).all()


def test_a_limit_passed_during_the_search_leaves_a_proof(
    model: frown.Model, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All time is gone at FROWN's first step: CROWN's radius is there, and proved."""
    now = [0.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    evaluate = optimise._Search.evaluate

    def slow(*args: Any, **named: Any) -> Any:
        now[0] += 1000
        return evaluate(*args, **named)

    crown = asking.certify(model, x, method="crown", attack=False)
    monkeypatch.setattr(optimise._Search, "evaluate", slow)
    found = asking.certify(model, x, method="frown", attack=False, time_limit=100)
    assert {row.level for row in found.rows} == {"rigorous"}
    assert not any(row.complete for row in found.rows)
    np.testing.assert_allclose(found.radius, crown.radius, rtol=0.05)


def test_margins_row_by_row_are_those_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    label = torch.tensor([0, 3, 2])
    lazy = LabelWins(label, other_classes(label, 5), 5, torch.float64)
    dense = conjunction(lazy.coef)
    eye = torch.eye(5, dtype=torch.float64)
    assert torch.equal(lazy.coef, eye[label][:, None] - eye[other_classes(label, 5)])
    values = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    upper = values + torch.rand(3, 5, generator=generator, dtype=torch.float64)
    index = torch.tensor([11, 0, 5])
    torch.testing.assert_close(lazy.literals(values), dense.literals(values))
    torch.testing.assert_close(lazy.spread(upper.abs()), dense.spread(upper.abs()))
    for own, other in zip(lazy.least(values, upper), dense.least(values, upper), strict=True):
        torch.testing.assert_close(own, other)
    assert torch.equal(lazy.pick(index), dense.pick(index))
    assert torch.equal(lazy.pick(slice(2, 7)), dense.pick(slice(2, 7)))
    assert torch.equal(lazy.rows(index[:1] * 0 + 2).coef, dense.rows(slice(2, 3)).coef)


def test_no_tensor_has_classes_times_classes() -> None:
    """The largest tensor of a run over many classes, none of which the budget has room for
    twice."""
    from torch.utils._python_dispatch import TorchDispatchMode

    classes, largest = 3000, [0]

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest[0] = max(largest[0], out.untyped_storage().nbytes())
            return out

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, classes))
    model = frown.load(net.eval(), torch.zeros(1, 3))
    budget = 4 << 20
    with Sizes():
        asking.certify(model, np.full((1, 3), 0.5), eps=1e-6, method="crown", memory=budget)
    assert 0 < largest[0] <= budget


def test_memory_that_is_too_little_is_said_before_any_work(
    model: frown.Model, x: np.ndarray
) -> None:
    layers = (torch.nn.Linear(3, 1200), torch.nn.ReLU(), torch.nn.Linear(1200, 1200))
    many = frown.load(torch.nn.Sequential(*layers, torch.nn.ReLU()).eval(), torch.zeros(1, 3))
    with pytest.raises(InvalidInput, match=r"slopes and margins take \d+ MiB"):
        asking.certify(many, np.ones((1, 3)), memory=1 << 20)
    with pytest.raises(InvalidInput, match="coef"):
        asking.bound(many, np.ones((1, 3)), 0.1, memory=1 << 20)
    for wrong in ("a", 1.5, 0):
        with pytest.raises(InvalidInput, match="memory"):
            asking.certify(model, x, memory=wrong)  # type: ignore[arg-type]
    for wrong in ("a", float("nan"), True):
        with pytest.raises(InvalidInput, match="time-limit"):
            asking.certify(model, x, time_limit=wrong)  # type: ignore[arg-type]


def test_patches_of_a_convolution_are_not_taken_for_whole_layers() -> None:
    """Slopes of all neurons before every neuron would take 1 GiB; patches take next to
    nothing of that."""
    layers = (
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1),
    )
    net = torch.nn.Sequential(
        *layers, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8192, 2)
    )
    model = frown.load(net.eval(), torch.zeros(1, 1, 32, 32))
    plan = plan_for(model, frown.Machine(), model.graph)
    assert batch_size(plan, Frown(), Budget(memory=64 << 20), 4) == 1


class Greedy(Branch):
    """Branching that takes all the time there is, and finds nothing."""

    clock: ClassVar[Work]

    def close(self, *_: Any) -> Iterator[Update]:
        self.clock.done += 10**9
        yield from ()


def test_what_branching_goes_on_from_is_proved_before_it(
    model: frown.Model, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes, no radius is below that of the method inside."""
    Greedy.clock = Work(monkeypatch)
    options: dict[str, Any] = {"attack": False, "time_limit": 1e6}
    inner = asking.certify(model, x, method="frown", **options)
    crown_only = asking.certify(model, x, method="crown", **options)
    found = asking.certify(model, x, method=Greedy(), **options)
    assert (inner.radius > crown_only.radius).all()
    assert (found.radius >= inner.radius).all()
    assert all(row.level == "rigorous" for row in found.rows)
