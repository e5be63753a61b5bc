"""Trees as values: what is no tree is refused, and ways to leaves are those of the preorder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from frown.bounds.tree import LEAF, Literals, Multipliers, Tree
from frown.errors import InvalidInput


def literals(nodes: list[int], slots: int = 4) -> Literals:
    count = len(nodes)
    every = torch.zeros(count, dtype=torch.long)
    return Literals(torch.tensor(nodes), every, torch.zeros(count, slots), Multipliers.none())


def tree(site: list[int]) -> Tree:
    count = len(site)
    where = torch.tensor(site)
    leaves = [k for k, s in enumerate(site) if s == LEAF]
    return Tree(where, torch.arange(count), torch.zeros(count).double(), literals(leaves))


def test_parents_and_sides_are_those_of_the_preorder():
    found = tree([0, 1, LEAF, LEAF, 2, LEAF, -1, LEAF, LEAF])
    assert found.parent.tolist() == [-1, 0, 1, 1, 0, 4, 4, 6, 6]
    assert found.side.tolist() == [0, 0, 0, 1, 1, 0, 1, 0, 1]
    assert found.depth.tolist() == [0, 1, 2, 2, 1, 2, 2, 3, 3]
    assert found.leaves.tolist() == [2, 3, 5, 7, 8]


def test_cuts_of_a_node_are_those_on_its_way():
    found = tree([0, 1, LEAF, LEAF, 2, LEAF, -1, LEAF, LEAF])
    place, cut, side = found.cuts(torch.tensor([3, 0, 7]))
    ways = {k: {(int(c), int(s)) for p, c, s in zip(place, cut, side) if p == k} for k in range(3)}
    assert ways == {0: {(1, 1), (0, 0)}, 1: set(), 2: {(6, 0), (4, 1), (0, 1)}}


@pytest.mark.parametrize("site", [[], [0], [0, LEAF], [LEAF, LEAF], [0, LEAF, LEAF, LEAF], [-3]])
def test_what_is_no_tree_is_refused(site):
    with pytest.raises(InvalidInput, match="not a tree"):
        tree(site)


def test_points_that_are_not_finite_and_stray_rows_are_refused():
    good = tree([0, LEAF, LEAF])
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(InvalidInput, match="not finite"):
            replace(good, point=torch.tensor([wrong, 0, 0]).double())
    with pytest.raises(InvalidInput, match="no node"):
        replace(good, literals=literals([3]))
    stray = Multipliers(torch.tensor([0]), torch.tensor([4]), torch.tensor([1.0]))
    with pytest.raises(InvalidInput, match="no slot"):
        replace(good, literals=replace(good.literals, multipliers=stray))
    with pytest.raises(InvalidInput, match="steps that are not there"):
        replace(good, passed=torch.tensor([0, -1, -1]))


def test_multipliers_survive_taking_rows():
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, -1.0]]).double()
    found = Multipliers.of(dense)
    assert torch.equal(found.dense(3, 2), dense)
    index = torch.tensor([2, 0])
    assert torch.equal(found.take(index, 3).dense(2, 2), dense[index])
