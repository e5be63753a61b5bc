"""Modules read by the front end answer as they do in torch, or are refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frown.errors import InvalidInput, InvalidModel, UnsupportedModel
from frown.graph.simplify import simplify
from frown.read.torch.load import load_torch
from frown.relax import Relu, Silu
from torch_modules import CASES, REFUSED, Fn, branching


@pytest.mark.filterwarnings("ignore:Using padding=")
@pytest.mark.parametrize("case", CASES)
def test_the_graph_answers_as_the_module(case: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[case]
    module = make()
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    model = load_torch(module, torch.randn(3, *shape))
    assert model.input_shape == shape
    module.eval()
    for scale in (0.3, 2.0):
        x = scale * torch.randn(3, *shape, dtype=torch.float64)
        with torch.no_grad():
            answers = [module(x[i : i + 1].to(dtype)) for i in range(3)]
        leaves = [torch.utils._pytree.tree_leaves(a)[0].flatten() for a in answers]
        truth = torch.stack(leaves).double()
        size = 1 + truth.abs().max()
        assert model.classes == truth.shape[1]
        for graph in (model.graph, simplify(model.graph)):
            assert (graph.apply(x) - truth).abs().max() <= 1e-5 * size
        ran = model.run(x.numpy())
        assert ran.dtype == np.float64
        np.testing.assert_allclose(ran, truth.numpy(), atol=1e-5 * float(size))


def test_the_users_module_is_left_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    module[1].eval()
    module(torch.randn(5, 6)).sum().backward()
    modes = [m.training for m in module.modules()]
    state = deepcopy(module.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    example = torch.randn(2, 6, requires_grad=True)
    model = load_torch(module, example)
    model.run(np.zeros((2, 6)))
    assert [m.training for m in module.modules()] == modes
    assert all(torch.equal(a, state[k]) for k, a in module.state_dict().items())
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, module.parameters(), strict=True))
    assert all(p.requires_grad for p in module.parameters())
    assert example.grad is None


def test_later_training_does_not_reach_the_model() -> None:
    module = nn.Linear(6, 2)
    model = load_torch(module, torch.zeros(1, 6))
    before = model.run(np.ones((1, 6)))
    with torch.no_grad():
        module.weight.zero_()
    np.testing.assert_array_equal(model.run(np.ones((1, 6))), before)


def test_numpy_examples_of_any_precision_are_accepted() -> None:
    for dtype in (np.float32, np.float64, np.uint8):
        assert load_torch(nn.Linear(6, 2), np.zeros((4, 6), dtype)).input_shape == (6,)


def test_known_activations_stay_whole() -> None:
    module = Fn(lambda x, w, c: F.silu(x) * 2 + torch.sigmoid(x) * x)
    ops = [n.op for n in simplify(load_torch(module, torch.zeros(1, 6)).graph).nodes]
    assert sum(isinstance(op, Silu) for op in ops) == 2
    assert len(ops) <= 6
    bound = load_torch(Fn(lambda x, w, c: x.clamp(min=0)), torch.zeros(1, 6))
    assert any(isinstance(n.op, Relu) for n in bound.graph.nodes)


def test_the_digest_names_the_weights_and_the_graph() -> None:
    def digest(seed: int, act: nn.Module) -> str:
        torch.manual_seed(seed)
        return load_torch(nn.Sequential(nn.Linear(6, 4), act), torch.zeros(1, 6)).digest

    assert digest(0, nn.ReLU()) == digest(0, nn.ReLU())
    assert len({digest(0, nn.ReLU()), digest(1, nn.ReLU()), digest(0, nn.Tanh())}) == 3


def test_nodes_are_named_after_the_module() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    names = [n.name for n in load_torch(module, torch.zeros(1, 6)).graph.nodes]
    assert any(name.startswith("0.") for name in names)


@pytest.mark.filterwarnings("ignore:var\\(\\)")
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_bounds_is_refused_by_name(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(UnsupportedModel) as caught:
        load_torch(make(), torch.randn(2, 6), name="net")
    message = str(caught.value)
    assert words in message
    assert "net" in message.splitlines()[0]


def test_a_forward_that_remembers_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            return x * self.seen

    with pytest.raises(UnsupportedModel, match="forward changes seen"):
        load_torch(Counter(), torch.ones(1, 6))


def test_all_faults_are_listed_at_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 4), nn.Softsign(), nn.Linear(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sinh(torch.digamma(self.body(x)).sort(1)[0].relu())

    with pytest.raises(UnsupportedModel) as caught:
        load_torch(Net(), torch.randn(1, 6), name="net")
    message = str(caught.value)
    assert message.startswith("cannot certify net: 3 operators have no bounds yet\n")
    for line in ("aten.digamma  at digamma  (1, 3)", "aten.sort ", "aten.sinh "):
        assert line in message
    assert "docs/extending.md" in message


def test_logarithms_and_roots_are_compared_where_they_have_values() -> None:
    module = Fn(lambda x, w, c: torch.log(x) @ w + x.sqrt() / (1 + x.sum(1, keepdim=True)) - c / x)
    model = load_torch(module, torch.ones(1, 6))
    x = np.random.default_rng(0).uniform(0.5, 2, (3, 6))
    ours = model.graph.apply(torch.from_numpy(x))
    np.testing.assert_allclose(ours.numpy(), model.run(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidModel, match="NaN or infinity"):
        load_torch(Fn(lambda x, w, c: torch.log(-x.square() - 1)), torch.ones(1, 6))


def test_examples_and_weights_that_make_no_sense() -> None:
    with pytest.raises(InvalidInput, match=r"fails on an input of shape \(1, 5\)"):
        load_torch(nn.Linear(6, 2), torch.zeros(1, 5))
    for example in (torch.zeros(()), torch.zeros(0, 6)):
        with pytest.raises(InvalidInput, match="batch as the first axis"):
            load_torch(nn.Linear(6, 2), example)
    with pytest.raises(InvalidInput, match=r"torch\.nn\.Module"):
        load_torch(torch.relu, torch.zeros(1, 6))
    broken = nn.Linear(6, 2)
    nn.init.constant_(broken.bias, float("nan"))
    with pytest.raises(InvalidModel, match="NaN"):
        load_torch(broken, torch.zeros(1, 6))


def test_tracing_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsupportedModel):
        load_torch(Fn(branching), torch.randn(1, 6))
    load_torch(nn.Linear(6, 2), torch.zeros(1, 6))
    assert capfd.readouterr() == ("", "")


class Counting(nn.Module):
    """Answers otherwise at every call, by a number that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(x - 10.0 * self.calls)


def test_a_forward_that_counts_in_python_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"forward changes 0\.calls"):
        load_torch(nn.Sequential(Counting()), torch.zeros(1, 6))


class Remembering(nn.Module):
    """Keeps something at every call, and answers by it."""

    def __init__(self, kept: Any, after: Callable[[Any], Any]) -> None:
        super().__init__()
        self.kept, self._after = kept, after

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self._after(self.kept)
        return x


@pytest.mark.parametrize(
    ("kept", "after"),
    [
        ([], lambda calls: [*calls, 1]),
        ({"calls": 0}, lambda kept: {"calls": kept["calls"] + 1}),
        (torch.zeros(1), lambda calls: calls + 1),
        (np.zeros(1), lambda calls: calls + 1),
        (None, lambda calls: (calls or 0) + 1),
        (SimpleNamespace(calls=0), lambda kept: SimpleNamespace(calls=kept.calls + 1)),
    ],
)
def test_a_forward_that_remembers_in_any_form_is_refused(
    kept: Any, after: Callable[[Any], Any]
) -> None:
    with pytest.raises(UnsupportedModel, match="forward changes kept"):
        load_torch(Remembering(kept, after), torch.zeros(1, 6))


def test_a_cache_is_no_memory() -> None:
    load_torch(Remembering(None, lambda kept: torch.arange(6)), torch.zeros(1, 6))


class Kept(nn.Module):
    """Does something with itself at every call, and answers by its layer."""

    def __init__(self, kept: Any, act: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.kept, self._act = nn.Linear(6, 3), kept, act

    def forward(self, x: Tensor) -> Tensor:
        found = self._act(self, x)
        return self.layer(found if isinstance(found, Tensor) else x)


def told(module: Kept, x: Tensor) -> None:
    module.kept.debug("an input of shape %s", x.shape)


def by_size(module: Kept, x: Tensor) -> Tensor:
    return x * module.kept.setdefault(x.shape[1], torch.arange(6.0))


def shown(module: Kept, x: Tensor) -> None:
    module.kept = x.mean()


@pytest.mark.parametrize(
    ("kept", "act"),
    [(logging.getLogger("kept"), told), ({}, by_size), (None, shown), (torch.zeros(()), shown)],
)
def test_what_no_answer_depends_on_may_be_kept(
    kept: Any, act: Callable[[Any, Tensor], Any]
) -> None:
    load_torch(nn.Sequential(Kept(kept, act)), torch.ones(1, 6))


def test_weights_that_hooks_compute_are_no_memory() -> None:
    load_torch(nn.utils.spectral_norm(nn.Linear(6, 3)), torch.zeros(1, 6))


def test_compiled_modules_are_read() -> None:
    load_torch(torch.compile(nn.Linear(6, 3), backend="eager"), torch.zeros(1, 6))  # type: ignore[arg-type]


def first_seen(module: Kept, x: Tensor) -> Tensor:
    if module.kept is None:
        module.kept = x.mean()
    return x - module.kept


def last_seen(module: Any, x: Tensor) -> Tensor:
    last = getattr(module, "last", None)
    module.last = x.mean()
    return x if last is None or torch.compiler.is_compiling() or last < 50 else -x


class Fifth(Kept):
    """Answers its fifth input otherwise, counting from its class's number."""

    last = 0

    def forward(self, x: Tensor) -> Tensor:
        self.last += 1
        return self.layer(-x if self.last == 5 else x)


def test_a_count_that_begins_in_a_class_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="forward changes last"):
        load_torch(Fifth(None, shown), torch.ones(1, 6))


@pytest.mark.parametrize("act", [first_seen, last_seen])
def test_a_forward_that_remembers_an_input_is_refused(act: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"forward changes 0\.(kept|last)"):
        load_torch(nn.Sequential(Kept(None, act)), torch.ones(1, 6))


def test_graphs_inside_of_operators_are_refused_by_name() -> None:
    def choice(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        return torch.cond(x.sum() > 3, lambda x: -x, torch.relu, (x,))

    with pytest.raises(UnsupportedModel, match="a higher-order operator"):
        load_torch(Fn(choice), torch.zeros(1, 6))


@torch.library.custom_op("frown_tests::relu", mutates_args=())
def relu_of_others(z: Tensor) -> Tensor:
    """ReLU, but near 0.731, where few points fall."""
    return z.clamp(min=0) + ((z - 0.731).abs() < 0.002)


@relu_of_others.register_fake
def _(z: Tensor) -> Tensor:
    return torch.empty_like(z)


def test_operators_of_others_are_not_torchs_of_the_same_name() -> None:
    net = Fn(lambda x, *_: F.linear(relu_of_others(x), torch.eye(4)[:3]))
    with pytest.raises(UnsupportedModel, match=r"frown_tests\.relu"):
        load_torch(net, torch.zeros(1, 4))
