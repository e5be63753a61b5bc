"""Linear programs' duals as lines: radii of the method lp hold with all rounding accounted for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
import frown_check
import zoo
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.certification import certificate
from frown.methods.crown import crown_layers
from frown.methods.lp.bounds import DualSlopes, LpProof, OneProof
from frown.problem.property import conjunction
from frown.problem.region import Region
from frown.relax import Relu
from frown.relax.relaxation import LeastArea

ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


def network(name: str) -> nn.Module:
    torch.manual_seed(3)
    act = ACTIVATIONS[name]
    layers = [nn.Linear(5, 9), act(), nn.Linear(9, 9), act(), nn.Linear(9, 8), act()]
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


@pytest.mark.parametrize("boxes", ["lp", "crown", "frown"])
@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nothing_of_the_radius_is_lost(name: str, norm: str, boxes: str) -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (3, 5))
    graph = frown.load(network(name), torch.zeros(1, 5).double())
    options = {"norm": norm, "method": "lp", "boxes": boxes, "attack": None, "dtype": "float64"}
    plain = asking.certify(graph, x, level="estimate", **options)
    proved = asking.certify(graph, x, **options)
    assert {row.level for row in proved.rows} == {"rigorous"}
    assert (proved.radius <= plain.radius).all()
    assert proved.radius == pytest.approx(plain.radius, rel=1e-3)
    crown = asking.certify(graph, x, norm=norm, method="crown", attack=None, dtype="float64")
    assert (proved.radius >= crown.radius * 0.999).all()
    if boxes == "lp" and name == "relu":
        assert proved.radius.mean() > crown.radius.mean() * 1.02


def deep(seed: int) -> frown.Model:
    """Eight layers of ten ReLUs."""
    torch.manual_seed(seed)
    sizes = [5, *[10] * 8, 3]
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(2)
    net = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))[:-1]
    return frown.load(net, torch.zeros(1, 5))


@pytest.mark.parametrize("seed", [0, 5])
def test_what_crown_settled_before_the_programs_is_settled_again(seed: int) -> None:
    """On the programs' tighter boxes the fixed rule takes other slopes, and some of its bounds are
    looser than they were; a replay with those lost up to 6 % here."""
    x = np.random.default_rng(1).uniform(-1, 1, (4, 5))
    options = {"method": "lp", "attack": None}
    plain = asking.certify(deep(seed), x, level="estimate", **options)
    proved = asking.certify(deep(seed), x, **options)
    assert {row.level for row in proved.rows} == {"rigorous"}
    assert proved.radius == pytest.approx(plain.radius, rel=1e-4)


def test_certificates_hold_the_very_slopes_that_were_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep single precision, so a replay uses no other slopes, be the search in double."""
    kept: list[np.ndarray] = []
    real = certificate._stored

    def stored(slopes: np.ndarray) -> tuple[np.ndarray, str]:
        kept.append(slopes[np.isfinite(slopes)])
        return real(slopes)

    monkeypatch.setattr(certificate, "_stored", stored)
    path = tmp_path / "net.onnx"
    torch.manual_seed(1)
    sizes = [(5, 8, nn.ReLU()), (8, 8, nn.Sigmoid()), (8, 8, nn.ReLU())]
    layers = [m for a, b, act in sizes for m in (nn.Linear(a, b), act)]
    net = nn.Sequential(*layers, nn.Linear(8, 3))
    torch.onnx.export(net, (torch.zeros(1, 5),), path, dynamo=False)
    x = np.random.default_rng(1).uniform(-1, 1, (2, 5))
    for boxes in ("lp", "crown", "frown"):
        options = {"method": "lp", "boxes": boxes, "dtype": "float64", "attack": None, "norm": 2}
        asking.certify(frown.load(path), x, certificates=tmp_path / boxes, **options)
    assert kept and all((s == s.astype(np.float32)).all() for s in kept)


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_programs_are_not_below_frown_on_relu(seed: int) -> None:
    """Not even where the two are nearer to each other than what searches leave open."""
    x = np.random.default_rng(1).uniform(-1, 1, (4, 5))
    options = {"attack": None, "level": "estimate"}
    lines, programs = (
        asking.certify(deep(seed), x, method=m, **options).radius for m in ("frown", "lp")
    )
    assert (programs >= lines * (1 - 1e-5)).all()


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_certificates_of_programs_are_accepted(norm: str, tmp_path: Path) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.Sigmoid(), nn.Linear(12, 3)
    )
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (torch.zeros(1, 6),), path, dynamo=False)
    x = np.random.default_rng(0).uniform(-1, 1, (3, 6))
    found = asking.certify(
        frown.load(path), x, norm=norm, method="lp", attack=None, level="checked",
        certificates=tmp_path / "proofs",
    )  # fmt: skip
    assert [row.level for row in found.rows] == ["checked"] * 3
    for row in found.rows:
        outcome = frown_check.check(tmp_path / "proofs" / Path(row.certificate).name, path)
        assert outcome.accepted and outcome.claim.radius == row.radius


def test_any_numbers_give_bounds_that_hold() -> None:
    """Slopes without sense, and none at all, for some neurons."""
    graph = zoo.mlp(Relu(), (5, 9, 9, 8, 3), 3)
    plan, region = Plan(graph), zoo.region(graph, 2.0, 0.3, 2)
    generator = torch.Generator().manual_seed(0)
    slopes = {}
    for target in [*{plan.sources[i] for i in plan.nonlinear}, graph.output]:
        below = plan.below(target)
        rows = 2 * graph.nodes[target].size
        number = torch.arange(0, rows, 3)
        slope = {}
        for i in below:
            (source,) = graph.nodes[i].inputs
            s = torch.randn(len(number), graph.nodes[source].size, generator=generator) * 3
            slope[i] = torch.where(torch.rand(s.shape, generator=generator) < 0.3, torch.nan, s)
        if below:
            slopes[target] = DualSlopes(number, slope)
    start = crown_layers(plan, region.rows(slice(0, 1)), LeastArea(), Work())
    rule = {i: relaxed.lines.slopes for i, relaxed in start.relaxed.items()}
    odd = OneProof(slopes, rule, ByRule(LeastArea()))
    spec = conjunction(torch.eye(3, dtype=torch.float64).expand(2, -1, -1))
    found = {}
    proofs = {"odd": LpProof(plan, "area", [odd, None]), "rule": ByRule(LeastArea())}
    for name, proof in proofs.items():
        walk = Replay(plan, region, proof, Work())
        walk.layers()
        found[name] = walk.literals(spec)
        assert_holds(graph, region, walk, found[name])
    assert torch.allclose(found["odd"][1], found["rule"][1], rtol=1e-12)  # the fixed rule
    assert not torch.allclose(found["odd"][0], found["rule"][0])


def assert_holds(graph, region: Region, walk: Replay, margins: torch.Tensor) -> None:
    for x in zoo.samples(region, 100):
        values = graph.values(x)
        for i, box in walk.values.items():
            assert (values[i] >= box.lower).all() and (values[i] <= box.upper).all()
        assert (values[graph.output].flatten(1) >= margins).all()
