"""Tables of slopes: rows are stored for the keys that were asked for, and no others."""

from __future__ import annotations

from math import inf

import torch

import zoo
from frown.bounds.plan import Plan
from frown.bounds.rows import unstable
from frown.methods import Frown
from frown.methods.frown.network import SlopeTable, Tables, joined
from frown.problem.property import conjunction
from frown.relax import Relu


def table(*keys: int, groups: int = 4, samples: int = 2) -> Tables:
    """Tables in which key k holds the numbers 10 k, 10 k + 1, 10 k + 2."""
    tables = Tables(samples)
    own = tables.table((1, 0), groups, 1, 3, torch.zeros(()))
    at = own.at(torch.tensor(keys))
    own.rows[at] = 10.0 * torch.tensor(keys)[:, None, None] + torch.arange(3.0)
    return tables


def numbers(own: SlopeTable) -> list[float]:
    """The first number of every key, NaN as -1."""
    return own[torch.arange(len(own))][:, 0, 0].nan_to_num(nan=-1.0).tolist()


def test_keys_that_were_never_asked_for_have_no_row() -> None:
    own = table(5, 2, 5).alpha[1, 0]
    assert numbers(own) == [-1, -1, 20, -1, -1, 50, -1, -1] and len(own.rows) == 2
    assert own.known.tolist() == [k in (2, 5) for k in range(8)]
    own.at(torch.tensor([7]))  # room alone is no slope
    assert own.known.tolist() == [k in (2, 5) for k in range(8)]
    assert numbers(own) == [-1, -1, 20, -1, -1, 50, -1, -1] and len(own.rows) == 3


def test_tables_of_samples_are_copies_in_order() -> None:
    tables = table(5, 2)
    taken = tables.take(torch.tensor([1, 0, 1]))
    own = taken.alpha[1, 0]
    assert numbers(own) == [-1, 50, -1, -1, -1, -1, 20, -1, -1, 50, -1, -1]
    own.rows.zero_()
    assert numbers(tables.alpha[1, 0]) == [-1, -1, 20, -1, -1, 50, -1, -1]


def test_joined_tables_have_the_keys_of_each_and_lanes_of_all() -> None:
    more = table(3, samples=1)
    more.alpha[1, 0] = more.alpha[1, 0].padded(2)
    both = joined([table(5, 2), Tables(1), more])
    own = both.alpha[1, 0]
    assert both.samples == 4 and own.lanes == 2
    assert numbers(own) == [-1, -1, 20, -1, -1, 50, *[-1] * 6, -1, -1, -1, 30]
    assert own[torch.tensor([5])][0, 1].tolist() == [0, 0, 0]


def test_stable_neurons_take_no_memory() -> None:
    graph = zoo.mlp(Relu(), (4, 16, 16, 12, 3))
    plan, ball = Plan(graph), zoo.region(graph, inf, 0.02)
    spec = conjunction(torch.eye(3, dtype=graph.dtype).expand(len(ball.radius), -1, -1))
    state = Frown().start(len(ball.radius))
    found = Frown().bound(plan, ball, spec, state)
    some = 0
    for (source, _), own in state.tables.alpha.items():
        if source == graph.output:
            continue
        left = len(unstable(plan, source, found.layers.values[source])[0])
        some += left
        assert 2 * left <= len(own.rows) < len(own)
        assert int(own.known.sum()) <= len(own.rows)
    assert some
