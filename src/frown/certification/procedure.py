"""Procedures: a model and how its inputs are answered, fixed before any input is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from frown.bounds.arithmetic.float32 import check_execution
from frown.bounds.method import Closing, Method
from frown.bounds.plan import Plan, per_plan
from frown.bounds.work import Machine, Pool, Work, pool_of
from frown.certification.attack import PGD
from frown.certification.certificates import Certificates
from frown.certification.prove import Estimate, Prover, Rigorous
from frown.certification.run import Outcome, Stages, Watch, outcomes
from frown.certification.search import Searcher
from frown.errors import InvalidInput
from frown.graph.affine import Conv, Scale
from frown.graph.graph import Graph, Input
from frown.graph.op import Affine, Selection
from frown.graph.simplify import simplify, tidy, without_batch_axis
from frown.methods.crown import Fixed
from frown.problem.problem import Problem
from frown.read.model import Model

CHECK = 4.0  # times as long as a proof is what a check of it is taken to last
# Estimates of time, in seconds: of a product of a row with a weight and of a nonlinear node, by
# fixed lines and by others; of an input where a method takes one at a time, at the most and for
# every neuron.
PRODUCT, NODE = (1.7e-10, 1.2e-9), (2e-3, 1e-2)
SINGLY, NEURON = 2.0, 0.01
WITHIN = 16  # positions of a convolution that a row of another one reaches
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Procedure:
    """A model and all choices but the inputs and limits of time. It can be pickled."""

    model: Model
    method: Method
    proof: Rigorous | Estimate
    attack: PGD | None
    machine: Machine
    tol: float
    single: bool  # whether one radius is asked about
    ordered: bool  # whether classes are compared before a last function that keeps their order

    @property
    def graph(self) -> Graph:
        """The graph that is bounded, as the file has it."""
        return self.model.ranking if self.ordered else self.model.graph

    @property
    def plan(self) -> Plan:
        """The graph as the search takes it."""
        return plan_for(self.model, self.machine, self.graph)

    @cached_property
    def exact(self) -> Plan | None:
        """The graph as proofs take it; None: estimates are enough."""
        if isinstance(self.proof, Estimate):
            return None
        key = ("proof", "outputs" if self.graph is self.model.graph else "scores")
        if key not in self.model.memo:
            self.model.memo[key] = Plan(tidy(self.graph))
        plan: Plan = self.model.memo[key]
        if self.proof.execution is not None:
            check_execution(plan.graph)
        return plan

    def __getstate__(self) -> dict[str, object]:
        """All fields but those that can be computed again."""
        return {k: v for k, v in self.__dict__.items() if k != "exact"}

    @property
    def certified(self) -> bool:
        """True if proofs are to be written into certificates."""
        return isinstance(self.proof, Rigorous) and self.proof.certified

    def outcomes(
        self,
        problem: Problem,
        parts: Sequence[NDArray[np.int64]],
        watch: Watch,
        work: Work,
        certificates: Callable[[ExitStack], Certificates | None] | None = None,
        pool: AbstractContextManager[Pool] | None = None,
    ) -> Iterator[Outcome]:
        """Answer the inputs of these batches, one batch after the other.

        Args:
            work: memory and deadline.
            certificates: opens the folder that keeps them; None: they are handed over.
            pool: processes that share one input: its programs, or the leaves of its tree.
        """
        exact, method, proof = self.exact, self.method, self.proof

        def stages(taken: ExitStack) -> Stages:
            folder = None if certificates is None else certificates(taken)
            within = replace(work, pool=taken.enter_context(pool or pool_of(1)))
            execution = proof.execution or "" if isinstance(proof, Rigorous) else ""
            after = 0.0 if exact is None else 1 + CHECK * (proof.level == "checked")
            straight = bool(execution)
            searcher = Searcher(
                self.model, self.plan, method, self.tol, self.single, within, after, straight
            )
            prover = None
            if exact is not None:
                prover = Prover(searcher, exact, self.certified, execution)
            return Stages(
                searcher,
                self.attack,
                prover,
                folder,
                tuple(parts),
                hand_over=certificates is None and self.certified,
                each=self.machine.each,
            )

        return outcomes(stages, problem, watch)

    def seconds(self) -> float:
        """A rough estimate of the time that one input takes, on one core."""
        method = self.method
        if method.singly or isinstance(method, Closing):
            neurons = sum(self.plan.graph.nodes[i].size for i in self.plan.nonlinear)
            return float(min(SINGLY, getattr(method, "seconds", inf), NEURON * neurons))
        kind = 0 if isinstance(method, Fixed) else 1
        return NODE[kind] * len(self.plan.nonlinear) + PRODUCT[kind] * _all_products(self.plan)

    def with_memory(self, share: int | str | None) -> Procedure:
        """A procedure with a memory budget of its own, for one of several workers."""
        machine = replace(self.machine, memory=share, workers=1, cluster=None)
        return replace(self, machine=machine)


@per_plan
def _all_products(plan: Plan) -> float:
    """Roughly the number of products when all rows of all layers pass the network once."""
    products = 0.0
    targets = {plan.sources[i] for i in plan.nonlinear}
    for target in (*(t for t in targets if plan.needs_rows(t)), plan.graph.output):
        behind = plan.ancestors(target)
        ops = [plan.graph.nodes[i].op for i in behind]
        local = any(isinstance(op, Conv) for op in ops) and not any(map(_mixing, ops))
        one = sum(_products(plan.graph, i, WITHIN if local else None) for i in behind)
        products += 2 * plan.graph.nodes[target].size * one
    return products


def _mixing(op: object) -> bool:
    """True if an output of the operator may depend on every input."""
    local = isinstance(op, Conv | Scale | Selection | Input)
    return isinstance(op, Affine) and not local and bool(op.tensors())


def _products(graph: Graph, node: int, positions: int | None) -> int:
    """Roughly the number of products when a row passes a node, of a convolution at most at these
    positions."""
    op, size = graph.nodes[node].op, graph.nodes[node].size
    if not isinstance(op, Conv) and not _mixing(op):
        return size if positions is None else 0
    assert isinstance(op, Affine)
    weights = [t for t in op.tensors().values() if t.ndim > 1]
    most = inf if positions is None else positions
    return int(sum(t.numel() * min(most, max(1, size // len(t))) for t in weights))


def plan_for(model: Model, machine: Machine, given: Graph) -> Plan:
    """A graph of the model as the methods take it: simplified, in the wanted precision."""
    try:
        device = torch.device(machine.device)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        # A RuntimeError where it is misspelt or missing, or has no numbers as "meta" has none; an
        # AssertionError where it is not built in.
        reason = str(error).splitlines()[0][:120]
        raise InvalidInput(f"device {machine.device!r} is not available: {reason}") from None
    key = ("plan", machine.dtype, str(device), "outputs" if given is model.graph else "scores")
    if key not in model.memo:
        graph = simplify(given)
        if len(model.input_shape) < len(graph.input_shape):  # the model has a batch axis of its own
            graph = without_batch_axis(graph)
        model.memo[key] = Plan(graph.to(_DTYPES[machine.dtype], device))
    plan: Plan = model.memo[key]
    return plan
