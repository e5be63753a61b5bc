"""Affine operators are what their adjoints say; graphs and builders do as documented."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor

from frown.graph.affine import (
    Combine,
    Concat,
    Conv,
    ConvTranspose,
    Expand,
    Gather,
    Linear,
    Pad,
    Permute,
    Reshape,
    Scale,
    Slice,
    Sum,
)
from frown.graph.builder import Builder, Value
from frown.graph.op import Affine, Selection, Shape, Unsupported
from frown.relax import Max, Relu

torch.manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def conv(
    shape: Shape,
    out: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> tuple[Affine, list[Shape]]:
    dims = len(kernel)
    weight = draw(out, shape[-dims - 1] // groups, *kernel)
    op = Conv(weight, draw(out), shape[-dims:], stride, padding, dilation, groups)
    return op, [shape]


def conv_transpose(
    shape: Shape,
    out: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    extra: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> tuple[Affine, list[Shape]]:
    weight = draw(shape[-len(kernel) - 1], out // groups, *kernel)
    return ConvTranspose(weight, draw(out), stride, padding, extra, dilation, groups), [shape]


AFFINE: dict[str, tuple[Affine, list[Shape]]] = {
    "linear": (Linear(draw(3, 5), draw(3)), [(1, 5)]),
    "linear of rank 1": (Linear(draw(3, 5), draw(3)), [(5,)]),
    "linear of rank 3": (Linear(draw(4, 3), draw(4)), [(1, 2, 3)]),
    "conv 1d": conv((1, 2, 7), 3, (3,), (2,), (1,), (1,)),
    "conv 1d with a remainder": conv((1, 2, 8), 3, (3,), (3,), (0,), (1,)),
    "conv 1d pointwise": conv((1, 3, 4), 2, (1,), (3,), (0,), (1,)),
    "conv 2d": conv((1, 2, 5, 6), 4, (3, 2), (2, 3), (1, 0), (1, 2)),
    "conv 2d grouped": conv((1, 4, 5, 5), 6, (2, 3), (1, 2), (2, 1), (3, 1), 2),
    "conv 2d depthwise": conv((1, 3, 4, 6), 3, (2, 2), (2, 2), (0, 0), (1, 1), 3),
    "conv 2d unbatched": conv((2, 5, 4), 3, (3, 3), (1, 1), (1, 1), (1, 1)),
    "conv 3d": conv((1, 2, 4, 3, 5), 2, (2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 1, 2)),
    "conv transpose 1d": conv_transpose((1, 2, 4), 3, (3,), (2,), (1,), (1,), (1,)),
    "conv transpose 2d": conv_transpose((1, 4, 3, 4), 6, (3, 2), (2, 3), (1, 0), (1, 2), (1, 2), 2),
    "conv transpose 3d": conv_transpose(
        (1, 2, 2, 3, 2), 2, (2, 1, 3), (2, 1, 1), (0, 0, 1), (0, 0, 0), (1, 1, 1)
    ),
    "conv transpose, more added than the stride": conv_transpose(
        (1, 1, 4), 1, (2,), (2,), (0,), (2,), (3,)
    ),
    "scale": (Scale(draw(1, 2, 3), draw(1, 2, 3)), [(1, 2, 3)]),
    "scale per channel": (Scale(draw(2, 1, 1), draw(2, 1, 1)), [(1, 2, 3, 4)]),
    "scale by a number": (Scale(draw(), draw(1)), [(1, 4)]),
    "scale of a number": (Scale(draw(), draw()), [()]),
    "add": (Combine((1.0, 1.0)), [(1, 3), (1, 3)]),
    "subtract": (Combine((1.0, -1.0)), [(1, 3, 2), (1, 3, 2)]),
    "combine three": (Combine((1.0, -2.5, 0.5)), [(2, 3)] * 3),
    "sum": (Sum((1, 2, 3), (1,)), [(1, 2, 3)]),
    "sum of all": (Sum((1, 2, 3), (0, 1, 2)), [(1, 2, 3)]),
    "sum of inner axes": (Sum((2, 3, 4, 2), (1, 3)), [(2, 3, 4, 2)]),
    "reshape": (Reshape((1, 6), (1, 2, 3)), [(1, 6)]),
    "reshape to a number": (Reshape((1, 1), ()), [(1, 1)]),
    "permute": (Permute((2, 0, 3, 1)), [(1, 2, 3, 4)]),
    "expand": (Expand((1, 3, 1), (2, 3, 4)), [(1, 3, 1)]),
    "expand by nothing": (Expand((1, 3), (1, 3)), [(1, 3)]),
    "slice": (Slice((1, 7, 2), 1, 1, 6, 2), [(1, 7, 2)]),
    "slice of the first axis": (Slice((3, 2), 0, 2, 3), [(3, 2)]),
    "gather": (Gather((1, 4, 2), 1, torch.tensor([3, 0, 0, 2, 3])), [(1, 4, 2)]),
    "concat": (Concat(1, (2, 1, 3)), [(1, 2, 2), (1, 1, 2), (1, 3, 2)]),
    "concat of the first axis": (Concat(0, (1, 2)), [(1, 3), (2, 3)]),
    "pad": (Pad((1, 2, 3), ((0, 0), (1, 2), (3, 0))), [(1, 2, 3)]),
    "pad with a value": (Pad((1, 2, 3), ((0, 1), (0, 2), (1, 1)), -1.5), [(1, 2, 3)]),
}


def jacobians(op: Affine, shapes: list[Shape]) -> list[Tensor]:
    """One dense matrix (outputs, inputs) per argument, by automatic differentiation."""

    def flat(*xs: Tensor) -> Tensor:
        return op.apply(*(x.reshape(1, *s) for x, s in zip(xs, shapes, strict=True))).flatten()

    points = tuple(draw(torch.Size(s).numel()) for s in shapes)
    dense = torch.func.jacrev(flat, tuple(range(len(shapes))))(*points)
    return list(dense)


@pytest.mark.parametrize("case", AFFINE)
def test_the_declared_shape_is_the_real_one(case: str) -> None:
    op, shapes = AFFINE[case]
    for rows in (1, 3):
        y = op.apply(*(draw(rows, *s) for s in shapes))
        assert tuple(y.shape) == (rows, *op.shape(*shapes))


@pytest.mark.parametrize("case", AFFINE)
def test_a_linear_form_is_pulled_back_exactly(case: str) -> None:
    op, shapes = AFFINE[case]
    xs = [draw(3, *s) for s in shapes]
    y = op.apply(*xs)
    coef = draw(*y.shape)
    backs = op.pull_back(coef)
    shift = op.shift(coef)
    assert [b.shape for b in backs] == [x.shape for x in xs]
    assert shift is None or shift.shape == (3,)
    left = (coef * y).reshape(3, -1).sum(1)
    right = sum((b * x).reshape(3, -1).sum(1) for b, x in zip(backs, xs, strict=True))
    torch.testing.assert_close(left, right + (0 if shift is None else shift))


@pytest.mark.parametrize("case", AFFINE)
def test_pull_back_and_spread_match_the_dense_jacobian(case: str) -> None:
    op, shapes = AFFINE[case]
    dense = jacobians(op, shapes)
    radii = [draw(2, *s).abs() for s in shapes]
    expected = sum(r.reshape(2, -1) @ j.abs().T for r, j in zip(radii, dense, strict=True))
    torch.testing.assert_close(op.spread(*radii).reshape(2, -1), expected)
    coef = draw(2, *op.shape(*shapes))
    for back, j in zip(op.pull_back(coef), dense, strict=True):
        torch.testing.assert_close(back.reshape(2, -1), coef.reshape(2, -1) @ j)


@pytest.mark.parametrize("case", [k for k, (op, _) in AFFINE.items() if isinstance(op, Selection)])
def test_a_selection_copies_entries(case: str) -> None:
    op, shapes = AFFINE[case]
    for j in jacobians(op, shapes):
        assert ((j == 0) | (j == 1)).all()
        assert (j.sum(1) == 1).all()


def test_a_graph_in_another_precision_is_the_same_network() -> None:
    shape = (1, 2, 5, 4)
    b = Builder()
    y = b.conv(b.input("x", shape), draw(3, 2, 3, 3), draw(3), (1, 1), ((1, 1),) * 2, (1, 1), 1)
    graph = b.graph(b.gather(b.add(Relu(), y), 1, torch.tensor([2, 0])))
    single = graph.to(torch.float32)
    assert single.dtype == torch.float32
    assert graph.to(torch.float64) is graph
    x = draw(3, *shape)
    y = single.apply(x.float())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), graph.apply(x), rtol=1e-4, atol=1e-4)
    tensors = [t for n in single.nodes for t in n.op.tensors().values()]
    assert {t.dtype for t in tensors} == {torch.float32, torch.int64}
    assert single.parameters() == graph.parameters()


def test_what_depends_on_what() -> None:
    b = Builder()
    y = b.linear(b.input("x", (1, 6)), draw(3, 6), draw(3))
    z = b.combine(b.add(Relu(), y), y, 1.0)
    assert isinstance(z, Value)
    graph = b.graph(z)
    names = [type(n.op).__name__ for n in graph.nodes]
    first, bent = names.index("Linear"), names.index("Relu")
    assert not {*graph.ancestors(first)} & {*graph.nonlinear}
    assert {*graph.ancestors(graph.output)} & {*graph.nonlinear}
    assert graph.nonlinear == (bent,)
    assert graph.ancestors(bent) == (0, first, bent)
    assert len(graph.consumers[first]) == 2
    assert graph.consumers[graph.output] == ()
    assert graph.summary()["Linear"] == 1


def test_a_lone_neuron_has_an_axis_of_its_own() -> None:
    b = Builder()
    x = b.input("x", (1, 6))
    y = b.add(Relu(), b.add(Max(), b.reshape(x, (6,))))
    assert y.shape == ()
    graph = b.graph(y)
    assert all(graph.nodes[i].shape == (1,) for i in graph.nonlinear)
    values = draw(3, 1, 6)
    torch.testing.assert_close(graph.apply(values), values.amax((1, 2)).relu()[:, None])


def test_what_the_builder_cannot_express_is_refused() -> None:
    b = Builder()
    x = b.input("x", (1, 6))
    for attempt in (
        lambda: b.slice(x, 1, 3, 3),
        lambda: b.gather(x, 1, torch.tensor([6])),
    ):
        with pytest.raises(Unsupported):
            attempt()


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 4, 3)])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_bias_adds_to_any_number_of_forms(shape: tuple[int, ...], rows: int) -> None:
    op = Linear(torch.ones(3, 2), torch.tensor([1.0, 2.0, 3.0]))
    coef = torch.ones(rows, *shape)
    shift = op.shift(coef)
    assert shift is not None and shift.tolist() == [6.0 * prod(shape) / 3] * rows
