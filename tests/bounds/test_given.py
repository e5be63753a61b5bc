"""Boxes that are given: every layer honours them; as cuts they may leave nothing of a region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds.method import Bounds, Method
from frown.bounds.plan import Plan
from frown.bounds.rows import unstable
from frown.bounds.walk import Given
from frown.graph.intervals import Intervals
from frown.methods import LP, Crown, CrownIbp, FastLin, Frown, Interval
from frown.methods.frown.ascent import Ascent
from frown.problem.property import LinearProperty, conjunction
from frown.problem.region import Region
from frown.relax import Relu, Tanh

GRAPHS = {
    "relu": zoo.mlp(Relu(), (4, 7, 6, 5, 3)),
    "tanh": zoo.mlp(Tanh(), (4, 6, 5, 3)),
    "cnn": zoo.conv_max(),
}
SHORT = Ascent(2, 2)
METHODS: dict[str, Method] = {
    "interval": Interval(),
    "fastlin": FastLin(),
    "crown-ibp": CrownIbp(),
    "crown": Crown(),
    "frown": Frown(ascent=SHORT),
    "frown in groups": Frown(group=3, ascent=SHORT),
    "frown wide": Frown(wide=True, ascent=SHORT),
    "lp": LP(),
    "lp of the last layer": LP(inner=Crown()),
}
COUNT = 3
every_graph = pytest.mark.parametrize("name", GRAPHS)
every_method = pytest.mark.parametrize("method", METHODS)


@dataclass(frozen=True)
class Case:
    """Regions of a network, values at points of them, and both sides of every output."""

    plan: Plan
    region: Region
    wanted: LinearProperty
    points: list[Tensor]  # of every node: (samples drawn, regions, *shape)

    @classmethod
    def of(cls, name: str, p: float = inf, seed: int = 0, reach: float = 1.0) -> Case:
        """Points reach as far as this share of the radius."""
        graph = GRAPHS[name]
        region = zoo.region(graph, p, 0.3, COUNT, seed=seed)
        eye = torch.eye(graph.output_size, dtype=graph.dtype)
        wanted = conjunction(torch.cat([eye, -eye]).expand(COUNT, -1, -1))
        drawn = zoo.samples(region.with_radius(reach * region.radius), 200, seed=seed)
        values = graph.values(drawn.reshape(-1, *graph.input_shape))
        points = [v.view(len(drawn), COUNT, *v.shape[1:]) for v in values]
        return cls(Plan(graph), region, wanted, points)

    @property
    def sources(self) -> list[int]:
        return sorted(set(self.plan.sources.values()))

    def bound(self, method: str, given: Given | None = None) -> Bounds:
        return METHODS[method].bound(self.plan, self.region, self.wanted, given=given)

    def everything(self) -> dict[int, Intervals]:
        """Boxes that say nothing."""
        found = {}
        for i in self.sources:
            whole = torch.full_like(self.points[i][0], inf)
            found[i] = Intervals(-whole, whole)
        return found

    def check(self, found: Bounds, kept: Tensor) -> None:
        """All bounds hold at the points kept: (samples drawn, regions)."""
        drawn, n = kept.nonzero(as_tuple=True)
        values = self.wanted.rows(n).literals(self.points[-1][drawn, n].flatten(1))
        assert (values >= found.literals[n] - 1e-9).all()
        for i, box in found.layers.values.items():
            own = self.points[i][drawn, n]
            assert (own >= box.lower[n] - 1e-9).all(), self.plan.graph.nodes[i].name
            assert (own <= box.upper[n] + 1e-9).all(), self.plan.graph.nodes[i].name


@every_graph
@every_method
def test_every_layer_honours_what_is_given(name: str, method: str) -> None:
    """Boxes around the points drawn are narrower than any bound of the regions; all methods keep
    to them, in each layer alone and in all of them."""
    case = Case.of(name, reach=0.5)
    hulls = {i: Intervals(case.points[i].amin(0), case.points[i].amax(0)) for i in case.sources}
    plain = case.bound(method)
    narrower = 0
    for chosen in ([i] for i in case.sources):
        narrower += _honoured(case, method, {i: hulls[i] for i in chosen}, plain)
    assert narrower == len(case.sources)
    _honoured(case, method, hulls, plain)


def _honoured(case: Case, method: str, boxes: dict[int, Intervals], plain: Bounds) -> int:
    """How many of the boxes are narrower than what the method finds without."""
    found = case.bound(method, Given(boxes))
    narrower = 0
    for i, box in boxes.items():
        own, before = found.layers.values[i], plain.layers.values[i]
        assert (own.lower >= box.lower).all() and (own.upper <= box.upper).all()
        narrower += bool((own.lower > before.lower + 1e-6).any())
    for i, relaxed in found.layers.relaxed.items():  # what lines are made from
        if case.plan.sources[i] in boxes:
            box = case.plan.carry(i, boxes[case.plan.sources[i]])
            assert (relaxed.box.lower >= box.lower).all() and (relaxed.box.upper <= box.upper).all()
    every = torch.ones(case.points[0].shape[:2], dtype=torch.bool)
    case.check(found, every)  # the points are in the boxes, so bounds hold there
    return narrower


def impossible(case: Case, sample: int) -> Iterator[tuple[int, dict[int, Intervals]]]:
    """At every source in turn, one entry of one sample beyond all that intervals allow."""
    plain = case.bound("interval")
    for i in case.sources:
        for above in (True, False):
            boxes = case.everything()
            known = plain.layers.values[i]
            entry = known.lower[0].numel() // 2
            if above:
                boxes[i].lower.view(COUNT, -1)[sample, entry] = (
                    known.upper.view(COUNT, -1)[sample, entry] + 1
                )
            else:
                boxes[i].upper.view(COUNT, -1)[sample, entry] = (
                    known.lower.view(COUNT, -1)[sample, entry] - 1
                )
            yield i, boxes


@every_graph
@every_method
def test_an_impossible_cut_leaves_nothing_of_its_sample(name: str, method: str) -> None:
    case, only = Case.of(name), torch.arange(COUNT) == 1
    plain = case.bound(method)
    for _, boxes in impossible(case, 1):
        found = case.bound(method, Given(boxes, cuts=True))
        assert torch.equal(found.empty, only)
        # Nothing else changes for the others, but what rounding and the ascents' company do.
        assert torch.allclose(found.literals[~only], plain.literals[~only], atol=1e-8)


@every_graph
@every_method
def test_without_cuts_nothing_is_ever_empty(name: str, method: str) -> None:
    case = Case.of(name)
    assert not case.bound(method).empty.any()
    for _, boxes in impossible(case, 1):
        found = case.bound(method, Given(boxes))
        assert not found.empty.any()
        assert found.empty.shape == (COUNT,)


@every_graph
@pytest.mark.parametrize("method", ["crown", "frown", "frown in groups", "frown wide", "lp"])
def test_rows_find_cuts_that_intervals_allow(name: str, method: str) -> None:
    """Between CROWN's bound of a neuron and that of intervals there is nothing. Neurons that a cut
    makes stable get no rows, except in the first layer."""
    case, only = Case.of(name, 2.0), torch.arange(COUNT) == 2
    crown, interval = case.bound("crown"), case.bound("interval")
    tried = 0
    for i in case.sources:
        tight, loose = crown.layers.values[i].upper, interval.layers.values[i].upper
        middle = (loose + tight) / 2
        gap = (loose - tight).flatten(1)[2]
        if case.plan.below(i):
            sample, neuron = unstable(case.plan, i, Intervals(middle, loose))
            gap = torch.zeros_like(gap).index_copy(0, own := neuron[sample == 2], gap[own])
        entry = int(gap.argmax())
        if gap[entry] <= 1e-3 or not case.plan.needs_rows(i):
            continue
        boxes = case.everything()
        boxes[i].lower.view(COUNT, -1)[2, entry] = middle.flatten(1)[2, entry]
        assert torch.equal(case.bound(method, Given(boxes, cuts=True)).empty, only)
        assert not case.bound(method, Given(boxes)).empty.any()
        tried += 1
    assert tried


@every_graph
@every_method
@pytest.mark.parametrize("p", [inf, 2.0])
def test_points_on_their_side_of_a_cut_stay_within_all_bounds(
    name: str, method: str, p: float
) -> None:
    """A neuron of every sample is cut at its value at a point, on either side."""
    generator = torch.Generator().manual_seed(len(name) + len(method))
    for seed in range(3):
        case = Case.of(name, p, seed)
        draw = len(case.points[0])
        for above in (True, False):
            place = int(torch.randint(len(case.sources), (1,), generator=generator))
            source = case.sources[place]
            values = case.points[source].flatten(2)
            entry = torch.randint(values.shape[2], (COUNT,), generator=generator)
            at = torch.randint(draw, (COUNT,), generator=generator)
            every = torch.arange(COUNT)
            cut = values[at, every, entry]
            boxes = case.everything()
            side = boxes[source].lower if above else boxes[source].upper
            side.view(COUNT, -1)[every, entry] = cut
            found = case.bound(method, Given(boxes, cuts=True))
            own = values[:, every, entry]
            kept = own >= cut if above else own <= cut
            assert kept.any(0).all()
            assert not found.empty.any()
            case.check(found, kept)


@pytest.mark.parametrize("method", ["crown", "frown", "lp"])
def test_a_cut_of_the_first_layer_tightens_what_follows(method: str) -> None:
    """Both halves of a ReLU that is cut at 0 are linear there: the worse one of their bounds is no
    looser than the bound of the whole, for some output it is tighter."""
    case = Case.of("relu")
    first = case.sources[0]
    whole = case.bound(method)
    box = whole.layers.values[first]
    open_ = ((box.lower < 0) & (box.upper > 0)).flatten(1)
    entry = torch.where(open_, torch.minimum(-box.lower, box.upper).flatten(1), -1.0).argmax(1)
    every = torch.arange(COUNT)
    halves = []
    for above in (True, False):
        boxes = case.everything()
        side = boxes[first].lower if above else boxes[first].upper
        side.view(COUNT, -1)[every, entry] = 0.0
        halves.append(case.bound(method, Given(boxes, cuts=True)).literals)
    worse = torch.minimum(*halves)
    assert (worse > whole.literals + 1e-6).any()
