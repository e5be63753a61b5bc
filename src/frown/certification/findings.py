"""Findings about a batch of inputs: the stages' values side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.proof import Proofs
from frown.bounds.tree import Branched
from frown.certification.radius import Bracket
from frown.graph.graph import Graph
from frown.problem.problem import Cast, Problem

Array = NDArray[np.float64]

Remarks = Mapping[int, str]  # by place: what a reader must know


@dataclass(frozen=True)
class Begun:
    """A batch of inputs before any search; `right` says of which there is something to prove."""

    problem: Problem  # of all inputs
    graph: Graph  # the network in the search's numbers
    prediction: NDArray[np.int64]  # (N,) the class of the largest output
    wrong: NDArray[np.bool_]  # (N,) whether the input itself violates the property
    mismatch: Mapping[int, str]  # by place: what was seen where graph and original disagree
    right: NDArray[np.int64]  # places of the inputs at which the property holds
    cast: Cast  # of those, in the search's numbers, at radius 0
    clean: Tensor  # (n, clauses) of those: margins at the inputs
    limit: Tensor  # (n,) of those: where no larger radius makes sense
    whole: Tensor  # (n,) of those: where the valid range ends; inf without one

    @cached_property
    def guess(self) -> Tensor:
        """(n,) where the margins would vanish if the network were linear at the input."""
        region, wanted = self.cast.region, self.cast.property
        with torch.enable_grad():
            x = region.centre.detach().requires_grad_()
            values = wanted.literals(self.graph.apply(x).flatten(1))
            worst = wanted.margins(values).amin(1)
            (slope,) = torch.autograd.grad(worst.sum(), x)
        gain = region.gain(slope)
        tiny = torch.finfo(gain.dtype).tiny
        return torch.minimum(worst.detach() / gain.clamp(min=tiny), self.limit)


@dataclass(frozen=True)
class Broken:
    """The nearest counterexamples of a batch's inputs; all by place in the batch."""

    radius: Array  # (N,) inf: there is none
    point: Mapping[int, Array] = field(default_factory=dict)
    tried: Mapping[int, Array] = field(default_factory=dict)  # where attacks ended, errors or not
    # The clause that a point violates most; None: a tie in which argmax names the label.
    clause: Mapping[int, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, begun: Begun) -> Broken:
        """Only the inputs that violate the property themselves."""
        return cls(np.where(begun.wrong, 0.0, np.inf))

    def ends(self, begun: Begun) -> tuple[Tensor, Tensor]:
        """Radii (n,) of the inputs answered rightly, and the points (n, *shape) as the search has
        numbers; the centre where there is none."""
        points = begun.cast.region.centre.clone()
        for k, n in enumerate(begun.right.tolist()):
            if n in self.point:
                found = torch.from_numpy(self.point[n])
                points[k] = found.reshape(points.shape[1:]).to(points)
        return torch.from_numpy(self.radius[begun.right]).to(points.device), points


@dataclass(frozen=True)
class Unbranched:
    """Brackets as they were before a method that closes brackets changed them."""

    proved: Tensor  # (n,) of the right answers, in plain floating point
    broken: Array  # (N,) by place; inf: there was no counterexample


@dataclass(frozen=True)
class Searched:
    """The results of a search so far, in plain floating point, for inputs answered rightly."""

    bracket: Bracket
    cheap: Bracket | None = None  # by lines over plain intervals, where time is limited
    base: Tensor | None = None  # what CROWN proved, before others went on
    proofs: Proofs | None = None  # of the largest radii, by the method that went on
    inner: Proofs | None = None  # the same before a closing method went on from there
    broken: Broken | None = None  # where the method has moved that end, too
    complete: bool = True  # False: the time limit ended the search
    remarks: Remarks = field(default_factory=dict)
    unbranched: Unbranched | None = None  # before a method that closes brackets went on
    early: frozenset[int] = frozenset()  # inputs whose own share of time ended the closing


@dataclass(frozen=True)
class Proved:
    """Radii proved with all rounding accounted for, for inputs answered rightly."""

    radius: Tensor | None  # (n,) double; None: there are no such proofs, remarks say why
    margins: Tensor  # (n, clauses) there
    tried: Tensor  # (n,) the radii that were to be proved
    covered: Tensor  # (n,) whether the valid range lies within the radius
    certificates: Mapping[int, bytes] = field(default_factory=dict)  # by place
    leaves: Mapping[int, int] = field(default_factory=dict)  # of right answers proved by cases
    execution: str = ""  # the precision of execution that the proofs cover
    complete: bool = True  # False: the time limit ended it
    pace: float = 0.0  # seconds that a proof by fixed lines took, for each input; 0: not known
    remarks: Remarks = field(default_factory=dict)

    @property
    def nothing(self) -> str:
        """The remark where rounding, or time, left nothing."""
        if self.complete:
            return "rounding errors left nothing of the proof"
        return "the time limit came before a proof with all rounding accounted for"


@dataclass(frozen=True)
class Findings:
    """A batch after its search and, where that was asked for, its proofs."""

    begun: Begun
    broken: Broken
    searched: Searched
    proved: Proved | None

    @property
    def _proofs(self) -> Proved | None:
        """The proofs with all rounding accounted for, if there are any."""
        return self.proved if self.proved is not None and self.proved.radius is not None else None

    @property
    def rigorous(self) -> bool:
        """True if radii are proved with all rounding accounted for."""
        return self._proofs is not None

    @property
    def radius(self) -> Tensor:
        """(n,) the radii proved of the right answers."""
        known = None if self.proved is None else self.proved.radius
        return self.searched.bracket.proved if known is None else known

    @property
    def margins(self) -> Tensor:
        """(n, clauses) the margins there."""
        return self._proofs.margins if self._proofs else self.searched.bracket.at_proved

    @property
    def level(self) -> str:
        """The level at which the radii are proved."""
        return "rigorous" if self.rigorous else "estimate"

    @property
    def execution(self) -> str:
        """The precision of execution that the proofs cover."""
        return self._proofs.execution if self._proofs else ""

    @property
    def certificates(self) -> Mapping[int, bytes]:
        """The certificates by place."""
        return {} if self.proved is None else self.proved.certificates

    @property
    def complete(self) -> bool:
        """True if time sufficed for all that was asked."""
        return self.searched.complete and (self.proved is None or self.proved.complete)

    def nothing(self, n: int) -> str:
        """The remark where nothing is left of the radius of the input at place n."""
        if self.proved is None:
            return "rounding errors left nothing of the proof"
        return self.proved.remarks.get(n) or self.proved.nothing

    @property
    def remarks(self) -> Remarks:
        """The remarks of the search and the proofs."""
        return joined(self.searched.remarks, {} if self.proved is None else self.proved.remarks)

    def leaves(self, k: int) -> int:
        """The number of cases in the k-th right input's proof; 0: it was not proved by cases."""
        if self._proofs:
            return self._proofs.leaves.get(k, 0)
        kept = None if self.searched.proofs is None else self.searched.proofs.kept.get(k)
        if kept is None or not isinstance(kept[0], Branched):
            return 0
        return sum(tree.cases for tree in kept[0].trees[kept[1]])

    def held(self, k: int) -> bool:
        """True if the k-th right input's margins at its radius, be it 0, are proved to be > 0."""
        return bool((self.margins[k] > 0).all())

    def everywhere(self, k: int) -> bool:
        """True if the k-th right input's proof is of the whole valid range."""
        if self._proofs:
            return bool(self._proofs.covered[k])
        return float(self.searched.bracket.proved[k]) >= float(self.begun.whole[k])


def joined(*remarks: Remarks) -> dict[int, str]:
    """All remarks on each input, in order, none twice."""
    places = dict.fromkeys(n for some in remarks for n in some)
    return {n: "; ".join(dict.fromkeys(some[n] for some in remarks if some.get(n))) for n in places}
