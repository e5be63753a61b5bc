"""Rows in patches prove what rows in the whole network prove, and nothing that is false."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch

import zoo
from bounds.test_patches import BALLS, NETWORKS
from charged.cases import CLASSES, Draw, Tally, regions, replay
from frown.bounds import patches as parts_module
from frown.bounds import replay as replay_module
from frown.bounds import rows as rows_module
from frown.bounds.arithmetic import charged, patches
from frown.bounds.patches import parts
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.rows import Rows
from frown.bounds.work import Work
from frown.graph.builder import Builder
from frown.graph.graph import Graph
from frown.problem.property import conjunction
from frown.relax import Relu
from frown.relax.relaxation import LeastArea


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Patches however little they spare; tells how many rows went through them."""
    monkeypatch.setattr(parts_module, "CALL", 0)
    monkeypatch.setattr(parts_module, "GAIN", 1e9)
    monkeypatch.setattr(replay_module, "parts_of", lambda plan, i, rows, clock: parts(plan, i))
    monkeypatch.setattr(rows_module, "few", lambda *_: False)
    rows: list[int] = []
    through = patches.patched_rows

    def counted(part, known, coef, *where):
        rows.append(len(coef))
        return through(part, known, coef, *where)

    monkeypatch.setattr(replay_module, "patched_rows", counted)
    return rows


def walked(graph: Graph, ball: str) -> tuple[Replay, torch.Tensor]:
    p, clipped, scaled = BALLS[ball]
    region = zoo.region(graph, p, 0.1, 3, clipped=clipped, scaled=scaled)
    walk = Replay(Plan(graph), region, ByRule(LeastArea()), Work())
    walk.layers()
    spec = torch.eye(graph.output_size, dtype=torch.float64).expand(3, -1, -1)
    return walk, walk.literals(conjunction(spec))


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("name", NETWORKS)
def test_patches_change_no_bound(
    name: str, ball: str, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = NETWORKS[name]
    cropped, least = walked(graph, ball)
    assert used or name == "affine in a row"  # which makes stable all neurons in two of the balls
    monkeypatch.setattr(parts_module, "GAIN", 0.0)
    count = len(used)
    whole, expected = walked(graph, ball)
    assert len(used) == count
    assert torch.allclose(least, expected, atol=1e-11)
    for i, box in whole.values.items():
        assert torch.allclose(cropped.values[i].lower, box.lower, atol=1e-11)
        assert torch.allclose(cropped.values[i].upper, box.upper, atol=1e-11)


def hostile(rng: np.random.Generator) -> Graph:
    """Convolutions along one axis, with weights of all sizes that nearly cancel, a skip, a batch
    normalisation, and padding that is not 0."""
    draw, b = Draw(rng, int(rng.choice([3, 30, 80]))), Builder()
    x = b.input("x", (2, int(rng.integers(4, 7))))
    x = b.reshape(x, (1, 2, x.shape[1]))
    for depth in range(int(rng.integers(2, 4))):
        before = x
        stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, 2))
        if draw.chance(0.3):
            x = b.pad(x, [(0, 0), (0, 0), (1, 0)], value=float(draw.numbers(1)))
        weight, bias = draw.layer(2, 4)
        if x.shape[2] + 2 * pad < 2:
            pad = 1
        x = b.conv(x, weight.reshape(2, 2, 2), bias, (stride,), ((pad, pad),), (1,), 1)
        if draw.chance(0.3):
            x = b.scale(x, draw.numbers(2, 1), draw.numbers(2, 1))
        if before.shape == x.shape and draw.chance(0.7):
            x = b.combine(x, before, float(rng.choice([1.0, -1.0, 0.3])))
        if depth and draw.chance(0.2):
            x = b.gather(x, 2, torch.from_numpy(rng.integers(0, x.shape[2], x.shape[2])))
        x = b.add(Relu(), x)
    flat = b.reshape(x, (2 * x.shape[2],))
    return b.graph(b.linear(flat, *draw.layer(CLASSES, flat.shape[0])))


def campaign(seed: int, count: int) -> Tally:
    tally = Tally()
    for k in range(count):
        rng = np.random.default_rng([seed, k])
        graph = hostile(rng)
        region = regions(rng, graph.input_shape, 4)
        with np.errstate(all="ignore"):
            replay(graph, region, rng, tally, False, f"seed {seed} network {k}")
    return tally


def test_no_bound_of_a_patch_is_false(used: list[int]) -> None:
    tally = campaign(0, 40)
    assert not tally.false, "\n".join([tally.line(), *tally.false[:5]])
    assert tally.silent < tally.statements / 50
    assert sum(used) > 200


def test_without_charges_bounds_of_patches_are_false(
    used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The networks are hostile enough to tell."""
    monkeypatch.setattr(charged, "gamma", lambda terms: 0.0)
    monkeypatch.setattr(charged, "UNIT", 0.0)
    assert campaign(0, 40).false


@pytest.mark.parametrize("lines_alone", [False, True])
def test_a_form_and_its_charge_are_those_of_the_whole_network(
    lines_alone: bool, used: list[int]
) -> None:
    """What is charged in a patch is what is charged without, but for sums of fewer terms; along
    lines it is the very same."""
    graph = NETWORKS["plain"]
    walk, _ = walked(graph, "inf")
    if lines_alone:
        for numbers in (
            *walk.arithmetic.weights.terms.values(),
            *walk.arithmetic.weights.value.values(),
        ):
            numbers.zero_()
    plan = walk.plan
    source = plan.sources[plan.nonlinear[-1]]
    (size,) = {graph.nodes[source].size}
    split = parts(plan, source)
    neuron = torch.arange(size)
    sample = torch.ones_like(neuron)
    seen: dict[str, torch.Tensor] = {}
    bounded = patches.bounded

    def keep(name: str):
        def kept(region, form, *which):
            seen[name] = form.charge
            return bounded(region, form, *which)

        return kept

    with pytest.MonkeyPatch.context() as patch:
        for name, module in (("patch", patches), ("whole", replay_module)):
            patch.setattr(module, "bounded", keep(name))
        one = torch.eye(size, dtype=torch.float64).view(size, *graph.nodes[source].shape)
        walk._rows(source, one, Rows(sample, neuron, torch.zeros_like(neuron)), walk.proof)
        charges = torch.empty(size, dtype=torch.float64)
        known = walk.arithmetic
        for _, part, rows in split.split(neuron):
            place, entry = split.place[rows], split.entry[rows]
            local = part.neurons.shape[1]
            coef = torch.eye(local, dtype=torch.float64)[entry].view(-1, *part.shape)
            patches.patched_rows(part, known, coef, sample[rows], place)
            charges[rows] = seen["patch"]
    whole = seen["whole"]
    assert (charges <= whole * (1 + 1e-9)).all()
    if lines_alone:
        assert torch.allclose(charges, whole, rtol=1e-9, atol=0)
    assert (charges >= whole / 20).all()  # gamma of as many terms as the layers have here, or fewer
    assert inf > float(whole.min()) > 0
