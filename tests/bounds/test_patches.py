"""Patches: a row in the cropped network is the row in the whole one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor

import zoo
from frown.bounds import patches as parts_module
from frown.bounds import rows as rows_module
from frown.bounds.method import Method
from frown.bounds.patches import Patch, Whole, parts, parts_of
from frown.bounds.plan import Plan
from frown.bounds.rows import fixed_pieces, pieces
from frown.bounds.walk import Layers
from frown.bounds.work import Work
from frown.graph import Builder, Conv, Flat, Graph, Value, sliced
from frown.graph.crop import Cropper, entries, whole
from frown.methods import Crown, Frown
from frown.methods import crown as crown_module
from frown.methods.frown.ascent import Ascent
from frown.problem.property import conjunction
from frown.problem.region import Region
from frown.relax import Max, PRelu, Relu, Sigmoid

Layer = Callable[[Builder, Value, zoo.Weights], Value]


def conv(
    out: int,
    kernel: int,
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
    gap: int = 1,
    groups: int = 1,
) -> Layer:
    def layer(b: Builder, x: Value, weights: zoo.Weights) -> Value:
        dims = x.rank - 2
        pads = (pad, pad) if isinstance(pad, int) else pad
        weight = weights(out, x.shape[1] // groups, *[kernel] * dims)
        return b.conv(x, weight, weights(out), [stride] * dims, [pads] * dims, [gap] * dims, groups)

    return layer


def relu(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    return b.add(Relu(), x)


def sigmoid(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    return b.add(Sigmoid(), x)


def prelu(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    return b.add(PRelu(weights(*x.shape[1:]).abs() / 4), x)


def skewed(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    """A factor and an offset of every entry's own."""
    return b.scale(x, 1 + weights(*x.shape[1:]) / 4, weights(*x.shape[2:]))


def pool(kernel: int, stride: int, pad: int) -> Layer:
    def layer(b: Builder, x: Value, weights: zoo.Weights) -> Value:
        return b.add(Max(), b.windows(x, zoo.squares(x, kernel, stride, pad)))

    return layer


def average(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    return b.average_pool(x, zoo.squares(x, 3, 2, 1), False)


def upsample(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    for axis in (2, 3):
        x = b.gather(x, axis, torch.arange(2 * x.shape[axis]) // 2)
    return x


def transposed(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    kernel = weights(x.shape[1], 2, 3, 3)
    return b.conv_transpose(x, kernel, weights(2), (2, 2), ((1, 0), (1, 1)), (0, 0), (1, 1), 1)


def residual(*inner: Layer) -> Layer:
    """x + what the layers make of it; a strided branch where the shape changes."""

    def layer(b: Builder, x: Value, weights: zoo.Weights) -> Value:
        y = chain(b, x, weights, *inner)
        if y.shape != x.shape:
            x = conv(y.shape[1], 1, x.shape[2] // y.shape[2])(b, x, weights)
        joined = b.combine(x, y, 1.0)
        assert isinstance(joined, Value)
        return joined

    return layer


def dense(*inner: Layer) -> Layer:
    """x and what the layers make of it, side by side."""

    def layer(b: Builder, x: Value, weights: zoo.Weights) -> Value:
        joined = b.concat([x, chain(b, x, weights, *inner)], 1)
        assert isinstance(joined, Value)
        return joined

    return layer


def global_pool(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    return b.mean(x, range(2, x.rank), True)


def padded(b: Builder, x: Value, weights: zoo.Weights) -> Value:
    """A rim of ones on one end, a cut on the other."""
    return b.pad(x, [(0, 0), (0, 0), (2, -1), (1, 0)], value=1.0)


def chain(b: Builder, x: Value, weights: zoo.Weights, *layers: Layer) -> Value:
    for layer in layers:
        x = layer(b, x, weights)
    return x


def network(*layers: Layer, shape: tuple[int, ...] = (1, 2, 7, 6), seed: int = 0) -> Graph:
    weights, b = zoo.Weights.seeded(seed), Builder()
    x = chain(b, b.input("x", shape), weights, *layers)
    return zoo.head(b, x, weights)


NETWORKS = {
    "plain": network(conv(2, 3, 1, 1), relu, conv(3, 3, 1, 1), relu),
    "stride 2, taps 4": network(conv(3, 4, 2, 1), relu, conv(3, 4, 2, 1), relu, shape=(1, 1, 9, 9)),
    "stride 3, wide padding": network(conv(2, 2, 3, 1), relu, conv(2, 3, 2, 2), relu),
    "uneven padding": network(conv(2, 3, 2, (2, 0)), relu, conv(3, 2, 1, (0, 1)), relu),
    "dilated": network(conv(2, 2, 1, 1, gap=2), relu, conv(2, 3, 2, 2, gap=2), relu),
    "grouped": network(conv(4, 3, 2, 1, groups=2), relu, conv(4, 3, 1, 1, groups=4), relu),
    "sigmoid at the rim": network(conv(2, 3, 1, 1), sigmoid, conv(2, 3, 1, 1), sigmoid),
    "affine in a row": network(conv(2, 3, 1, 1), conv(2, 3, 2, 1), relu, conv(2, 3), relu),
    "residual": network(
        conv(2, 3, 1, 1), relu, residual(conv(3, 3, 2, 1), relu, conv(3, 3, 1, 1)), relu,
        residual(conv(3, 3, 1, 1), relu, conv(3, 3, 1, 1)), relu, shape=(1, 2, 8, 8),
    ),
    "dense block": network(
        dense(conv(2, 3, 1, 1), relu), dense(conv(2, 3, 1, 1), relu), conv(2, 3), relu,
    ),
    "max pool": network(conv(2, 3, 1, 1), relu, pool(3, 2, 1), conv(2, 3, 1, 1), relu),
    "max pool first": network(conv(2, 3, 1, 1), pool(2, 1, 0), conv(2, 2), relu),
    "average pool": network(conv(2, 3, 1, 1), relu, average, conv(2, 3, 1, 1), relu),
    "upsampled": network(conv(2, 3, 2, 1), relu, upsample, conv(2, 3, 1, 1), relu),
    "transposed": network(conv(2, 3, 2, 1), relu, transposed, relu, conv(2, 3, 1, 1), relu),
    "own slopes": network(conv(2, 3, 1, 1), prelu, skewed, conv(2, 3, 1, 1), prelu),
    "padded with ones": network(conv(2, 3, 1, 1), relu, padded, conv(2, 3), relu),
    "global pool": network(conv(2, 3, 1, 1), relu, conv(2, 3, 1, 1), relu, global_pool),
    "one axis": network(conv(3, 4, 2, 1), relu, conv(2, 3, 1, 1), relu, shape=(1, 2, 12)),
    "three axes": network(conv(2, 2, 2, 0), relu, conv(2, 2, 1, 1), relu, shape=(1, 1, 5, 4, 4)),
}  # fmt: skip
every_network = pytest.mark.parametrize("name", NETWORKS)
BALLS = {
    "inf": (inf, False, False),
    "2": (2.0, False, False),
    "1, cut and scaled": (1.0, True, True),
}


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Patches always, or never."""

    def choose(always: bool) -> None:
        monkeypatch.setattr(parts_module, "CALL", 0)
        monkeypatch.setattr(parts_module, "GAIN", 1e9 if always else 0.0)
        # However few the rows are.
        monkeypatch.setattr(crown_module, "parts_of", lambda plan, i, rows, clock: parts(plan, i))

    return choose


def bounds(graph: Graph, ball: Region, method: Method) -> tuple[Layers, Tensor]:
    plan, count = Plan(graph), len(ball.radius)
    spec = conjunction(torch.eye(graph.output_size, dtype=graph.dtype).expand(count, -1, -1))
    found = method.bound(plan, ball, spec)
    return found.layers, found.literals


@every_network
def test_a_cropped_network_computes_the_same_numbers(name: str) -> None:
    graph = NETWORKS[name]
    x = torch.rand(3, *graph.input_shape, dtype=graph.dtype)
    values, cropper, patches = graph.values(x), Cropper.of(graph), 0
    for target, node in enumerate(graph.nodes):
        if not isinstance(node.op, Conv):
            continue
        lead = whole(node.shape[:2])
        for start in range(node.shape[2]):
            rest = [(0, min(2, n)) for n in node.shape[3:]]
            window = (*lead, (start, min(start + 2, node.shape[2])), *rest)
            needs = cropper.needs(target, window)
            assert needs is not None
            local, where = cropper.crop(needs)
            assert where[target] == local.output
            seen = sliced(x, ((0, 3), *needs.windows[0]))
            expected = sliced(values[target], ((0, 3), *window))
            assert torch.allclose(local.apply(seen), expected, atol=1e-12)
            flat = values[target].flatten(1)[:, entries(window, node.shape)]
            assert torch.equal(flat, expected.flatten(1))
            patches += needs.windows[0] != whole(graph.input_shape)
    assert patches


@every_network
@pytest.mark.parametrize("ball", BALLS)
def test_patches_change_no_bound_of_crown(
    name: str, ball: str, patched: Callable[[bool], None]
) -> None:
    graph = NETWORKS[name]
    p, clipped, scaled = BALLS[ball]
    region = zoo.region(graph, p, 0.1, clipped=clipped, scaled=scaled)
    found = []
    for always in (True, False):
        patched(always)
        found.append(bounds(graph, region, Crown()))
    _same(*found)


@every_network
def test_patches_change_no_bound_of_frown(name: str, patched: Callable[[bool], None]) -> None:
    graph = NETWORKS[name]
    region = zoo.region(graph, inf, 0.1)
    found = []
    for always in (True, False):
        patched(always)
        found.append(bounds(graph, region, Frown(ascent=Ascent(2, 2))))
    if name == "own slopes":
        # The line above a leaky ReLU touches it at both ends, and rounding decides which one
        # an ascent hears of: the output's rows, never patches, take other steps from there.
        # So layers agree, margins agree before the first step, and later ones hold.
        for _, margins in found:
            for x in zoo.samples(region, 30):
                assert (graph.apply(x) >= margins - 1e-9).all()
        found = [(layers, torch.zeros(())) for layers, _ in found]
        start = []
        for always in (True, False):
            patched(always)
            start.append(bounds(graph, region, Frown(ascent=Ascent(0, 0))))
        _same(*start)
    _same(*found)


@every_network
def test_groups_of_patches_hold_and_are_no_looser_than_crown(
    name: str, patched: Callable[[bool], None]
) -> None:
    patched(True)
    group = 5
    graph = NETWORKS[name]
    region = zoo.region(graph, inf, 0.1)
    crown = bounds(graph, region, Crown())
    layers, margins = bounds(graph, region, Frown(group=group, ascent=Ascent(2, 2)))
    assert (margins >= crown[1] - 1e-9).all()
    for i, box in layers.values.items():
        assert (box.lower >= crown[0].values[i].lower - 1e-9).all()
        assert (box.upper <= crown[0].values[i].upper + 1e-9).all()
    for x in zoo.samples(region, 30):
        values = graph.values(x)
        assert (values[-1] >= margins - 1e-9).all()
        for i, box in layers.values.items():
            assert (values[i] >= box.lower - 1e-9).all() and (values[i] <= box.upper + 1e-9).all()


def test_patches_are_taken_where_they_pay() -> None:
    wide = network(conv(16, 4, 2, 1), relu, conv(32, 4, 2, 1), relu, shape=(1, 1, 28, 28))
    plan = Plan(wide)
    last = max(i for i, n in enumerate(wide.nodes) if isinstance(n.op, Conv))
    split = parts(plan, last)
    assert all(isinstance(part, Patch) for part in split.parts)
    neurons = torch.cat([part.neurons.flatten() for part in split.parts])
    assert torch.equal(neurons.sort().values, torch.arange(wide.nodes[last].size))
    assert max(part.plan.slots(part.target)[1] for part in split.parts) == 16 * 4 * 4
    assert not isinstance(parts(plan, last, 0).parts[0], Patch)
    small = Plan(NETWORKS["residual"])
    assert all(not isinstance(parts(small, i).parts[0], Patch) for i in small.sources.values())


def test_few_rows_stay_in_the_whole_network() -> None:
    wide = network(conv(16, 4, 2, 1), relu, conv(32, 4, 2, 1), relu, shape=(1, 1, 28, 28))
    plan = Plan(wide)
    last = max(i for i, n in enumerate(wide.nodes) if isinstance(n.op, Conv))
    assert isinstance(parts_of(plan, last, 1).parts[0], Whole)
    assert isinstance(parts_of(plan, last, wide.nodes[last].size).parts[0], Patch)


@pytest.mark.parametrize("always", [True, False])
def test_groups_are_the_channels_of_one_position(
    always: bool, patched: Callable[[bool], None]
) -> None:
    patched(always)
    graph = network(conv(4, 4, 2, 1), relu, conv(8, 4, 2, 1), relu, shape=(1, 1, 28, 28))
    last = max(i for i, n in enumerate(graph.nodes) if isinstance(n.op, Conv))
    for group, positions in ((4, 1), (8, 1), (32, 4)):
        split = parts(Plan(graph), last, group)
        for part in split.parts:
            places, size = part.neurons.shape
            every = torch.arange(places * size)
            block, count = part.blocks(every // size, every % size, group)
            assert torch.bincount(block, minlength=count).max() <= group
            for k in range(count):
                place = part.neurons.flatten()[block == k] % 49
                assert len(place.unique()) <= positions


def test_a_convolution_as_a_matrix_is_the_same_operator() -> None:
    graph = NETWORKS["stride 3, wide padding"]
    for node in graph.nodes:
        if isinstance(node.op, Conv):
            source = graph.nodes[node.inputs[0]].shape
            flat = Flat.of(node.op, source)
            x = torch.rand(4, *source, dtype=graph.dtype) - 0.5
            coef = torch.rand(4, *node.shape, dtype=graph.dtype) - 0.5
            assert flat.shape(source) == node.shape
            assert torch.allclose(flat.apply(x), node.op.apply(x))
            assert torch.allclose(flat.spread(x.abs()), node.op.spread(x.abs()))
            assert torch.allclose(flat.pull_back(coef)[0], node.op.pull_back(coef)[0])
            shifts = flat.shift(coef), node.op.shift(coef)
            assert shifts[0] is not None and shifts[1] is not None
            assert torch.allclose(*shifts)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adjoints_of_convolutions(dims: int) -> None:
    generator = torch.Generator().manual_seed(dims)

    def pick(*values: int) -> int:
        return values[int(torch.randint(len(values), (), generator=generator))]

    for _ in range(60):
        groups, each = pick(1, 1, 2), pick(1, 2, 9)
        out = groups * pick(1, 3)
        kernel, stride, pad, gap = (
            tuple(pick(*values) for _ in range(dims))
            for values in ((1, 2, 3, 4), (1, 2, 3), (0, 0, 1, 2), (1, 1, 2))
        )
        if pick(0, 1):
            kernel, pad = (1,) * dims, (0,) * dims
        source = tuple(pick(7, 8, 9) for _ in range(dims))
        weight = torch.randn(out, each, *kernel, dtype=torch.float64, generator=generator)
        bias = torch.randn(out, dtype=torch.float64, generator=generator)
        op = Conv(weight, bias, source, stride, pad, gap, groups)
        x = torch.randn(2, 1, groups * each, *source, dtype=torch.float64, requires_grad=True)
        y = op.apply(x)
        coef = torch.randn(y.shape, dtype=torch.float64, generator=generator)
        (expected,) = torch.autograd.grad((coef * y).sum(), x)
        (found,) = op.pull_back(coef)
        assert torch.allclose(found, expected, atol=1e-12), (kernel, stride, pad, gap)
        shift = op.shift(coef)
        assert shift is not None
        total = (found * x).flatten(1).sum(1) + shift
        assert torch.allclose(total, (coef * y).flatten(1).sum(1))


def test_fixed_rows_go_in_chunks_and_each_goes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(conv(4, 4, 2, 1), relu, conv(8, 4, 2, 1), relu, shape=(1, 1, 28, 28))
    plan = Plan(graph)
    last = max(i for i, n in enumerate(graph.nodes) if isinstance(n.op, Conv))
    (part,) = parts(plan, last, 0).parts
    for step in (1, 7, 96, 150):
        monkeypatch.setattr(rows_module, "PASS", step * plan.node_size(last))
        for rows in (0, 1, 5, 95, 97, 100, 392):
            pieces = list(fixed_pieces(part, rows, Work()))
            assert [k for p in pieces for k in range(p.start, p.stop)] == list(range(rows))
            assert all(p.stop - p.start <= step for p in pieces)
    budget = Work(memory=3 * plan.row_bytes(last))
    assert max(p.stop - p.start for p in fixed_pieces(part, 50, budget)) == 3


def test_rows_that_pass_large_matrices_share_their_reading() -> None:
    b = Builder()
    x = b.input("x", (8,))
    for size, before in ((1024, 8), (1024, 1024), (1024, 1024), (3, 1024)):
        x = b.linear(b.add(Relu(), x), torch.ones(size, before), torch.zeros(size))
    plan = Plan(b.graph(x))
    (part,) = parts(plan, plan.graph.output, 0).parts
    small, size = Work(memory=3 * plan.row_bytes(part.target)), plan.node_size(part.target)
    for pieces_of in (
        lambda work: list(fixed_pieces(part, 1000, work)),
        lambda work: list(pieces(plan, part.target, 1000, work)),
    ):
        assert (pieces_of(Work())[0].stop) >= 256 > rows_module.PASS // size
        assert pieces_of(small)[0].stop == 3


def _same(one: tuple[Layers, Tensor], other: tuple[Layers, Tensor]) -> None:
    assert torch.allclose(one[1], other[1], atol=1e-9)
    for i, box in one[0].values.items():
        assert torch.allclose(box.lower, other[0].values[i].lower, atol=1e-9)
        assert torch.allclose(box.upper, other[0].values[i].upper, atol=1e-9)
