"""Every operator has a proven form, inside its domain only, and networks of them a proof."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor, nn

import asking
import frown
from frown.graph.intervals import Intervals
from frown.relax import Log, LogSumExp, Max, Moderate, Power, Product
from frown.relax.proven.lines import prove
from frown.relax.relaxation import Relaxation
from functions import ELEMENTWISE, SUPPORTED

WITHOUT_PROOF: set[str] = set()  # names of SUPPORTED; with one, results stay estimates


def instances() -> dict[str, list[Relaxation]]:
    found: dict[str, list[Relaxation]] = {name: [] for name in SUPPORTED}
    masked = LogSumExp(torch.tensor([True, False]))
    for op in (*ELEMENTWISE.values(), LogSumExp(), masked, Max(), Product()):
        found[type(op).__name__].append(op)
    return found


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_supported_operator_has_a_proven_form(name: str) -> None:
    box = Intervals(torch.tensor([[0.5, 1.0]]).double(), torch.tensor([[0.75, 4.0]]).double())
    ops = instances()[name]
    assert ops
    for op in ops:
        proven = prove(op, box)
        assert (proven is None) == (name in WITHOUT_PROOF)
        if proven is not None:
            image, value = proven.image(), op.apply(box.middle)
            assert (image.lower < value).all() and (value < image.upper + 1e-12).all()


DOMAINS: list[tuple[Relaxation, list[tuple[float, float]], list[tuple[float, float]]]] = [
    (Log(), [(5e-324, 1.0), (3.0, 3.0)], [(0.0, 1.0), (-1.0, 1.0), (-2.0, -1.0), (-0.0, 0.0)]),
    (Power(0.5), [(0.0, 1.0), (0.0, 0.0), (-0.0, 4.0)], [(-5e-324, 1.0), (-2.0, -1.0)]),
    (Power(1.7), [(0.0, 1.0), (2.0, 3.0)], [(-1e-300, 1.0), (-2.0, -1.0)]),
    (Power(-0.5), [(1e-300, 1.0)], [(0.0, 1.0), (-1.0, 1.0), (-2.0, -1.0)]),
    (Power(-0.3), [(1e-300, 1.0)], [(0.0, 1.0), (-1.0, 1.0), (-2.0, -1.0)]),
    (Power(-1.0), [(-2.0, -1.0), (1.0, 2.0)], [(0.0, 1.0), (-1.0, 0.0), (-1.0, 1.0)]),
    (Power(-2.0), [(-2.0, -1.0), (1.0, 2.0)], [(0.0, 1.0), (-1.0, 0.0), (-1.0, 1.0)]),
    (Power(3.0), [(-2.0, 1.0), (0.0, 0.0)], []),
    (Moderate(2.0), [(-2.0, 2.0), (0.0, 1.0)], [(-2.1, 0.0), (0.0, torch.inf), (3.0, 3.0)]),
]


@pytest.mark.parametrize(("op", "inside", "outside"), DOMAINS)
def test_outside_its_domain_a_function_has_no_line(
    op: Relaxation, inside: list[tuple[float, float]], outside: list[tuple[float, float]]
) -> None:
    for boxes, known in ((inside, True), (outside, False)):
        if not boxes:
            continue
        low, high = torch.tensor(boxes, dtype=torch.float64).unbind(1)
        proven = prove(op, Intervals(low, high))
        assert proven is not None
        for slope in (0.0, 1.0, -0.3):
            for below in (True, False):
                mask = torch.full_like(low, below, dtype=torch.bool)
                line = proven.intercept(torch.full_like(low, slope), mask)
                assert torch.isfinite(line).all() if known else torch.isnan(line).all()
        image = proven.image()
        nothing = torch.isnan(image.lower) & torch.isnan(image.upper)
        assert nothing.any().item() is not known and nothing.all().item() is not known


@pytest.mark.parametrize(
    "name", [n for n, op in ELEMENTWISE.items() if type(op).__name__ not in WITHOUT_PROOF]
)
def test_slopes_that_are_no_numbers_have_no_line(name: str) -> None:
    box = Intervals(torch.tensor([1.0, 1.0, 1.0]).double(), torch.tensor([2.0, 2.0, 2.0]).double())
    proven = prove(ELEMENTWISE[name], box)
    assert proven is not None
    slope = torch.tensor([torch.nan, torch.inf, -torch.inf]).double()
    for below in (True, False):
        line = proven.intercept(slope, torch.full((3,), below))
        assert not torch.isfinite(line).any()


# -- networks -------------------------------------------------------------------------------


class Attends(nn.Module):
    """Attention over three tokens, then layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(2, 2) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 3, 2)
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), -1)
        return self.head(self.norm(x + weights @ self.value(x)).flatten(1))


class Through(nn.Module):
    """One function between two layers."""

    def __init__(self, f: object) -> None:
        super().__init__()
        self.f = f
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.f(self.first(x)))  # type: ignore[operator]


NETWORKS = {
    "softmax": lambda: Through(lambda z: torch.softmax(z, -1)),
    "log_softmax": lambda: Through(lambda z: torch.log_softmax(z, -1)),
    "layer_norm": lambda: Through(lambda z: torch.nn.functional.layer_norm(z, (6,))),
    "log": lambda: Through(lambda z: torch.log(z * z + 0.5)),
    "sqrt": lambda: Through(lambda z: torch.sqrt(z * z + 0.1)),
    "reciprocal": lambda: Through(lambda z: 1 / (z * z + 0.3)),
    "sin": lambda: Through(lambda z: torch.sin(3 * z) + torch.cos(z)),
    "hard_swish": lambda: Through(nn.functional.hardswish),
    "erf": lambda: Through(torch.erf),
    "power": lambda: Through(lambda z: (torch.sigmoid(z) + 0.1) ** 1.7),
    "attention": Attends,
}


SEARCHED = [*((name, "crown") for name in NETWORKS), ("log", "frown"), ("softmax", "frown")]


@pytest.mark.parametrize(("name", "method"), SEARCHED)
def test_networks_of_them_are_proved(name: str, method: str) -> None:
    torch.manual_seed(2)
    module = NETWORKS[name]().eval()
    x = torch.randn(1, 6 if name == "attention" else 4)
    model = frown.load(module, x)
    norm = 2 if method == "crown" else inf
    radii = []
    how = frown.Crown() if method == "crown" else frown.Frown(steps=5)
    for level in ("estimate", "rigorous"):
        result = asking.certify(
            model, x.double().numpy(), norm=norm, method=how, level=level, attack=False
        )
        (row,) = result.rows
        assert row.level == level, row.remark
        radii.append(row.radius)
    assert 0 < radii[1] == pytest.approx(radii[0], rel=1e-3)
