"""Leaves of one tree in several processes: parts of a step are the step."""

from __future__ import annotations

import itertools
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest
import torch

import frown
from frown import Ball, Branch, Machine
from frown.bounds.work import Pool
from frown.methods.branch import shared
from frown.methods.branch.ascent import Risen
from frown.methods.branch.shared import Asked, Context, SharedAscent
from onnx_models import model, node, weights


def network(*hidden: int) -> frown.Model:
    sizes, nodes, known = (6, *hidden, 3), [], {}
    for k, (n, m) in enumerate(itertools.pairwise(sizes)):
        known[f"w{k}"], known[f"b{k}"] = weights(n, m, seed=k), weights(m, seed=k + 9)
        last = k == len(sizes) - 2
        nodes.append(node("Gemm", f"{f'r{k}' if k else 'x'} w{k} b{k}", "y" if last else f"h{k}"))
        nodes += [] if last else [node("Relu", f"h{k}", f"r{k + 1}")]
    return frown.load(model(nodes, ["N", 6], known))


X = np.random.default_rng(4).normal(0, 1, (12, 6))[3:4]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> tuple[Context, Asked]:
    """The largest step of a search."""
    seen: list[tuple[Context, Asked]] = []
    risen = SharedAscent.risen

    def watched(self: SharedAscent, asked: Asked) -> Risen:
        seen.append((self.context, asked.take(slice(None))))
        return risen(self, asked)

    with monkeypatch.context() as patched:
        patched.setattr(SharedAscent, "risen", watched)
        frown.certify(network(12, 12), X, method=Branch(seconds=0.5), attack=None)
    monkeypatch.setattr(shared, "LEAST", 2)
    monkeypatch.setattr(shared, "_known", {})
    return max(seen, key=lambda pair: len(pair[1]))


def same(found: Risen, expected: Risen) -> None:
    for name in (f.name for f in fields(Risen)):
        mine, theirs = getattr(found, name), getattr(expected, name)
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), name
        elif name == "broken":
            assert [k for k, _ in mine] == [k for k, _ in theirs]
            assert all(torch.equal(a, b) for (_, a), (_, b) in zip(mine, theirs, strict=True))
        else:
            assert mine == theirs, name


def apart(context: Context, asked: Asked, count: int) -> Risen:
    ends = [len(asked) * k // count for k in range(count + 1)]
    parts = [asked.take(slice(a, b)).risen(context) for a, b in itertools.pairwise(ends)]
    return shared._joined(parts, ends)


@pytest.mark.parametrize("count", [2, 3])
def test_parts_are_bounded_as_if_alone(step: tuple[Context, Asked], count: int) -> None:
    context, asked = step
    assert len(asked) >= 8
    with ThreadPoolExecutor(1) as executor:
        spread = SharedAscent(context, Pool(count, executor))
        for _ in range(2):  # the second time the network is known there
            same(spread.risen(asked), apart(context, asked, count))
    assert len(shared._known) == 1
    whole, parts = asked.risen(context), apart(context, asked, count)
    assert torch.allclose(whole.bound, parts.bound, rtol=1e-2, atol=1e-3)


class Dead(Executor):
    """Others that are lost with all they are given."""

    def submit(self, fn: object, /, *args: object, **named: object) -> Future[object]:
        found: Future[object] = Future()
        found.set_exception(OSError("lost"))
        return found


def test_parts_that_are_lost_are_bounded_here(step: tuple[Context, Asked]) -> None:
    context, asked = step
    spread = SharedAscent(context, Pool(3, Dead()))
    same(spread.risen(asked), apart(context, asked, 3))
    assert spread.pool == Pool()  # and no more are sent


def test_one_input_is_shared_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bracket of one process; the last word has the replay in any case."""
    monkeypatch.setattr(shared, "LEAST", 2)
    net = network(12, 12)
    answers: list[Risen] = []
    joined = shared._joined

    def seen(parts: list[Risen], starts: list[int]) -> Risen:
        answers.extend(parts[1:])
        return joined(parts, starts)

    monkeypatch.setattr(shared, "_joined", seen)
    alone = frown.certify(net, Ball(X), method="branch", machine=Machine(workers=1))
    assert not answers
    found = frown.certify(net, Ball(X), method="branch", machine=Machine(workers=2))
    assert answers
    (row,), (other,) = found.rows, alone.rows
    assert row.level == "rigorous" and row.broken is not None
    assert row.broken / 1.01 < row.radius <= row.broken
    assert row.radius == pytest.approx(other.radius, rel=0.01)
    assert _unharmed(net, row.radius)


def _unharmed(net: frown.Model, radius: float) -> bool:
    """No input within the radius is answered otherwise."""
    rng = np.random.default_rng(0)
    points = X + radius * np.sign(rng.normal(0, 1, (4000, 6))) * rng.uniform(0.9, 1, (4000, 1))
    return bool((net.run(points).argmax(1) == net.run(X).argmax(1)).all())


def test_a_piece_that_no_program_decides_ends_no_search() -> None:
    """At some radius a piece is all but empty; what stays open of a bracket has a reason."""
    (row,) = frown.certify(network(24, 20), X, method=Branch(seconds=20)).rows
    assert row.broken is not None and row.broken <= 1.01 * row.radius
    assert row.broken <= 1.002 * row.radius or (not row.complete and row.remark)
