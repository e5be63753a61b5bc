"""Recurrent networks in the forms people have them: both front ends, bounds, sharing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asking
import frown
from frown.bounds import forms, rows
from frown.bounds.forms import descend
from frown.bounds.plan import Plan
from frown.bounds.work import Work
from frown.errors import InvalidInput, UnsupportedModel
from frown.graph.affine import Gather, Linear, Slice
from frown.graph.builder import Builder, Value
from frown.graph.simplify import simplify
from frown.methods.crown import crown_layers
from frown.problem.region import Region
from frown.read.model import Model
from frown.relax import Product
from frown.relax.relaxation import LeastArea
from sequences import reached

FRAMES, FEATURES = 3, 2


class Layer(nn.Module):
    """A torch layer and scores read from its outputs."""

    def __init__(self, layer: nn.Module, size: int, read: str = "last") -> None:
        super().__init__()
        self.layer, self.read = layer, read
        self.out = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch_first = self.layer.batch_first
        y, state = self.layer(x if batch_first else x.transpose(0, 1))
        y = y if batch_first else y.transpose(0, 1)
        if self.read == "state":
            h = torch.cat(state, -1) if isinstance(state, tuple) else state
            return self.out(h.transpose(0, 1).flatten(1))
        return self.out(y[:, -1] if self.read == "last" else y.flatten(1))


class Started(nn.Module):
    """A layer whose first state is learnt."""

    def __init__(self, layer: nn.Module, size: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(size, 3)
        self.h, self.c = (nn.Parameter(torch.randn(1, 1, size)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h, c = (s.expand(-1, x.shape[0], -1).contiguous() for s in (self.h, self.c))
        y, _ = self.layer(x, (h, c) if isinstance(self.layer, nn.LSTM) else h)
        return self.out(y.mean(1))


class Loop(nn.Module):
    """A cell, frame after frame by hand."""

    def __init__(self, cell: nn.Module, size: int) -> None:
        super().__init__()
        self.cell, self.out = cell, nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for frame in x.unbind(1):
            state = self.cell(frame, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


F = FEATURES
MODULES: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: Layer(nn.RNN(F, 3, batch_first=True), 3),
    "rnn relu, all outputs": lambda: Layer(
        nn.RNN(F, 3, nonlinearity="relu", batch_first=True), 3 * FRAMES, "all"
    ),
    "rnn, two layers both ways": lambda: Layer(
        nn.RNN(F, 2, num_layers=2, bidirectional=True, batch_first=True), 4
    ),
    "rnn from a state": lambda: Started(nn.RNN(F, 3, batch_first=True), 3),
    "rnn cell": lambda: Loop(nn.RNNCell(F, 3, nonlinearity="relu"), 3),
    "lstm": lambda: Layer(nn.LSTM(F, 3, batch_first=True), 3),
    "lstm, two layers with dropout": lambda: Layer(
        nn.LSTM(F, 2, num_layers=2, dropout=0.5, batch_first=True), 2
    ),
    "lstm, both ways, last states": lambda: Layer(
        nn.LSTM(F, 2, bidirectional=True, batch_first=True), 8, "state"
    ),
    "lstm without bias": lambda: Layer(nn.LSTM(F, 3, bias=False, batch_first=True), 3),
    "lstm, frames first": lambda: Layer(nn.LSTM(F, 3), 3),
    "lstm from a state": lambda: Started(nn.LSTM(F, 3, batch_first=True), 3),
    "lstm cell": lambda: Loop(nn.LSTMCell(F, 3), 3),
    "gru": lambda: Layer(nn.GRU(F, 3, batch_first=True), 3),
    "gru, both ways, all outputs": lambda: Layer(
        nn.GRU(F, 2, bidirectional=True, batch_first=True), 4 * FRAMES, "all"
    ),
    "gru without bias, frames first": lambda: Layer(nn.GRU(F, 3, bias=False), 3),
    "gru from a state": lambda: Started(nn.GRU(F, 3, batch_first=True), 3),
    "gru cell": lambda: Loop(nn.GRUCell(F, 3), 3),
    "lstm with projection": lambda: Layer(nn.LSTM(F, 3, proj_size=2, batch_first=True), 2),
}
NOT_EXPORTED = {"lstm with projection"}  # by torch.onnx


@cache
def made(name: str) -> tuple[nn.Module, Model]:
    torch.manual_seed(len(name))
    module = MODULES[name]().eval()
    return module, frown.load(module, torch.zeros(1, FRAMES, FEATURES))


@cache
def sequences() -> Tensor:
    return torch.randn(2, FRAMES, FEATURES, generator=torch.Generator().manual_seed(5))


def exported(module: nn.Module, path: Path) -> Model:
    """The module by way of an ONNX file with an open batch."""
    example = torch.zeros(1, FRAMES, FEATURES)
    axes = {"x": {0: "N"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (example,), str(path), input_names=["x"], dynamic_axes=axes, dynamo=False
        )
    return frown.load(path)


@pytest.mark.parametrize("name", [n for n in MODULES if n not in NOT_EXPORTED])
def test_both_front_ends_agree(name: str, tmp_path: Path) -> None:
    """The same module from torch and from ONNX: the same values and the same bounds."""
    module, ours = made(name)
    other = exported(module, tmp_path / "model.onnx")
    x = sequences().numpy()
    np.testing.assert_allclose(ours.run(x), other.run(x), atol=1e-5)
    first, second = (
        asking.bound(m, x, 0.1, method="crown", dtype="float64") for m in (ours, other)
    )
    np.testing.assert_allclose(first.lower, second.lower, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.upper, second.upper, rtol=1e-5, atol=1e-6)
    assert (first.upper - first.lower).max() > 1e-3


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_both_front_ends_certify_the_same_radius(name: str, tmp_path: Path) -> None:
    module, ours = made(name)
    other = exported(module, tmp_path / "model.onnx")
    radii = [
        asking.certify(m, sequences(), method="crown", attack=False).radius for m in (ours, other)
    ]
    assert (radii[0] > 0).all()
    np.testing.assert_allclose(radii[0], radii[1], rtol=1e-3)


REGIONS = {"l_1": (1, 0.5, "all"), "l_2": (2, 0.3, "all"), "l_inf": (inf, 0.15, "all")}
REGIONS["l_2, each frame"] = (2, 0.2, "each")


@pytest.mark.parametrize("region", list(REGIONS))
@pytest.mark.parametrize(
    "name",
    ["rnn", "rnn relu, all outputs", "rnn, two layers both ways", "lstm", "gru", "lstm cell"],
)
def test_bounds_hold_on_sampled_and_attacked_sequences(name: str, region: str) -> None:
    _, model = made(name)
    x, (p, eps, frames) = sequences(), REGIONS[region]
    crown, best = (
        asking.bound(model, x, eps, norm=p, method=method, steps=3, frames=frames)
        for method in ("crown", "frown")
    )
    assert (best.lower >= crown.lower).all() and (best.upper <= crown.upper).all()
    low, high = reached(model.run, x.numpy(), eps, p, frames == "each")
    assert (high <= best.upper + 1e-5).all() and (low >= best.lower - 1e-5).all()
    # The attack goes a good part of the way, so the bounds above were at stake.
    middle = model.run(x.numpy())
    assert ((high - middle) / (crown.upper - middle)).max() > 0.5


def test_a_projected_lstm_is_bounded() -> None:
    _, model = made("lstm with projection")
    x = sequences()
    out = asking.bound(model, x, 0.1, method="crown")
    low, high = reached(model.run, x.numpy(), 0.1, inf)
    assert (low >= out.lower - 1e-5).all() and (high <= out.upper + 1e-5).all()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(F, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((x.shape[0],), 2)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.out(self.layer(packed)[1][0][-1])


class FramesFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(F, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][-1])


def test_packed_sequences_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"packs sequences.*plain tensor"):
        frown.load(Packed(), torch.zeros(1, FRAMES, FEATURES))


def test_frames_as_the_first_axis_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"first axis is not the batch\n.*transpose"):
        frown.load(FramesFirst(), torch.zeros(FRAMES, 1, FEATURES))


# -- sharing and cost -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn cell", "lstm cell"])
def test_weights_are_stored_once(name: str) -> None:
    """At import, after merging and after a change of precision; counted once, too."""
    module, model = made(name)
    own = [p for p in module.parameters() if p.dim() == 2]
    short = simplify(model.graph)
    for graph in (model.graph, short, short.to(torch.float32)):
        held = [n.op.weight for n in graph.nodes if isinstance(n.op, Linear)]
        assert len(held) > len(own)  # frames repeat them
        assert len({id(w) for w in held}) == len(own)
    # Beyond the module's own: the first state, which is constant, and what it adds to frame 1.
    extra = short.parameters() - sum(p.numel() for p in module.parameters())
    assert extra <= 2 * 4 * 3 + 2 * 3 + 4


def test_frames_that_nobody_reads_are_dropped() -> None:
    """The last output of a layer that runs both ways needs one backward frame."""
    torch.manual_seed(0)
    module = Layer(nn.RNN(F, 2, bidirectional=True, batch_first=True), 4).eval()
    model = frown.load(module, torch.zeros(1, FRAMES, FEATURES))
    assert len(model.graph.nonlinear) == 2 * FRAMES
    short = simplify(model.graph)
    assert len(Plan(short).nonlinear) == FRAMES + 1
    x = sequences().double()
    torch.testing.assert_close(short.apply(x), model.graph.apply(x))


def passes(plan: Plan, memory: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Tensor]:
    """Passes per node that gets rows, of one CROWN evaluation; and the output's upper bounds."""
    shape = (1, *plan.graph.input_shape)
    region = Region(torch.zeros(shape, dtype=torch.float64), torch.full((1,), 0.1).double(), 2)
    seen = []

    def counted(plan: Plan, target: int, *rest: Any, **named: Any) -> Any:
        seen.append(target)
        return descend(plan, target, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(forms, "descend", counted)
        layers = crown_layers(plan, region, LeastArea(), Work(memory))
    return len(seen) / len(set(seen)), layers.values[plan.graph.output].upper


@pytest.mark.parametrize("frames", [4, 8])
def test_passes_per_frame_do_not_grow_with_frames(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of long sequences are long, and still go together; the memory budget has its say."""
    monkeypatch.setattr(rows, "CHUNK", 1 << 10)  # so that few frames are many
    torch.manual_seed(0)
    module = Layer(nn.LSTM(F, 3, batch_first=True), 3).eval()
    plan = Plan(simplify(frown.load(module, torch.zeros(1, frames, F)).graph))
    count, bounds = passes(plan, 1 << 30, monkeypatch)
    assert count == 1
    more, same = passes(plan, 3 * plan.row_bytes(plan.graph.output), monkeypatch)
    assert more > 2
    torch.testing.assert_close(bounds, same)


def test_slices_look_through_what_moves_entries() -> None:
    """Permutations, reshapes, joints along the same and along another axis, other slices."""
    build = Builder()
    x = build.input("x", (2, 6, 3))
    left, right = (build.scale(x, a) for a in (2.0, 3.0))
    long, wide = (build.concat([left, right], axis) for axis in (1, 2))
    assert isinstance(long, Value) and isinstance(wide, Value)
    turned = build.permute(long, (2, 0, 1))  # (3, 2, 12)
    grown = build.reshape(turned, (3, 1, 2, 12))
    cuts = [
        build.slice(grown, 3, 1, 5, 2),  # inside the left part
        build.slice(grown, 3, 7, 11),  # inside the right one
        build.slice(grown, 3, 4, 8),  # across both
        build.slice(build.slice(grown, 3, 1, 9, 2), 3, 1, 4, 2),
        build.slice(build.reshape(grown, (6, 12)), 0, 2, 5),  # axes that were merged
        build.slice(wide, 1, 0, 6, 5),
    ]
    flat = build.concat([build.reshape(c, (np.prod(c.shape).item(),)) for c in cuts], 0)
    assert isinstance(flat, Value)
    graph = build.graph(flat)
    point = torch.randn(4, 2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(simplify(graph).apply(point), graph.apply(point))


@pytest.mark.parametrize(
    "op", [Slice((2, 5), 1, 1, 5, 2), Gather((2, 5), 1, torch.tensor([3, 0, 3]))]
)
def test_adding_in_place_is_the_adjoint(op: Slice | Gather) -> None:
    coef = torch.randn(4, *op.shape((2, 5)))
    onto = torch.randn(4, 2, 5)
    expected = onto + op.pull_back(coef)[0]
    assert op.add_back(coef, onto)
    torch.testing.assert_close(onto, expected)


def test_a_cell_that_two_nonlinearities_read_gets_its_rows_once() -> None:
    """Tanh bounds an LSTM's cell; the product of the next frame need not do it again."""
    _, model = made("lstm")
    plan = Plan(simplify(model.graph))
    pairs = [i for i in plan.nonlinear if isinstance(plan.relaxation(i), Product)]
    assert len(pairs) == 3 * FRAMES - 1  # the first cell is constant
    assert not any(plan.needs_rows(plan.sources[i]) for i in pairs)


class Late(nn.Module):
    """A cell that is multiplied before a tanh reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(F, 3)

    def forward(self, x: Tensor) -> Tensor:
        cell = self.first(torch.tanh(self.first(x[:, 0])) @ torch.ones(3, F))
        return cell * torch.sigmoid(self.first(x[:, 1])) + torch.tanh(cell)


def test_rows_that_come_too_late_do_not_count() -> None:
    torch.manual_seed(0)
    plan = Plan(simplify(frown.load(Late(), torch.zeros(1, FRAMES, FEATURES)).graph))
    (pair,) = (i for i in plan.nonlinear if isinstance(plan.relaxation(i), Product))
    assert plan.needs_rows(plan.sources[pair])
