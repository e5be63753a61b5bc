"""Proofs: the choices of a method, and all that the replay and a certificate know of it.

Any slope gives a valid line, so the slopes that a method used are its proof: bounding the same
rows along them gives the same bounds, in whatever arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Self

import torch
from torch import Tensor

from frown.bounds.plan import Plan
from frown.bounds.rows import Rows
from frown.problem.region import Region
from frown.relax.relaxation import Relaxed, Rule


@dataclass(frozen=True, slots=True)
class Request:
    """Rows that want slopes."""

    target: int
    coef: Tensor  # (rows, *target shape)
    rows: Rows
    region: Region  # of the samples
    relaxed: Mapping[int, Relaxed]  # of the samples


@dataclass(frozen=True, slots=True)
class Choice:
    """Slopes (rows, *input shape of the node) for rows with these coefficients of a node's output;
    NaN: the rule's.

    Multipliers m of a node's input z in [l, u], of the same shape (None: all 0), add
    m z - max(m l, m u), which is never above 0: a cut of z enters rows so.

    Curvatures (rows, entries of the node's input), at least 0 (None: all 0), let rows bend around
    what the centre of an l_2 ball gives.
    """

    slope: Callable[[int, Tensor], Tensor]
    whole: bool = False  # there is no NaN
    multiplier: Callable[[int], Tensor | None] | None = None
    curvature: Callable[[int], Tensor | None] | None = None
    factors: Tensor | None = None  # (rows, planes) of the target's planes, at least 0


class State:
    """Memory of a method between one radius, or one box, and the next; the method owns it."""

    def at(self, sample: Tensor) -> State:
        """The part of these samples, sharing what is found."""
        return self


class RowChoices(ABC):
    """The slopes and multipliers of rows, as a replay asks for them."""

    @property
    @abstractmethod
    def rule(self) -> Rule | None:
        """The source of slopes for rows without their own; None: there are no rows at all."""

    @property
    def inside(self) -> bool:
        """True if rows tighten the inner layers; else plain intervals bound them."""
        return self.rule is not None

    @property
    def wide(self) -> bool:
        """True if slopes may leave the tightest range."""
        return False

    @property
    def alone(self) -> bool:
        """True if every row has slopes of its own: none along the rule's comes before it."""
        return False

    def choose(self, plan: Plan, request: Request) -> Choice | None:
        """Slopes for rows of `plan`; None: the rule's.

        `plan` is a network with the nonlinearities, in the same order, of the one that was bounded.
        """
        return None

    def ready(self, plan: Plan, source: int) -> Tensor | None:
        """(N, size) mask of a node's entries whose own slopes are no worse than the rule's.

        That is, for rows of both sides. None: nobody knows.
        """
        return None


class Proof(RowChoices):
    """The slopes of every row that a method bounded, for some samples: what a search keeps."""

    includes: ClassVar[bool] = False  # whether proofs of other kinds may be turned into this one

    @property
    def bends(self) -> bool:
        """True if rows bend. Proofs that do are not joined with others."""
        return False

    @abstractmethod
    def take(self, index: Tensor) -> Self:
        """The proofs of these samples, which no later call changes."""

    @classmethod
    @abstractmethod
    def cat(cls, proofs: Sequence[Self]) -> Self:
        """The proofs of all samples of several, in order."""

    @abstractmethod
    def blank(self, samples: int) -> Self:
        """A proof that chooses nothing, for so many samples."""

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """A copy of the proof on another device."""

    def include(self, other: Proof, samples: int) -> Proof:
        """A proof of this kind that chooses what another one does, which is of so many samples."""
        raise TypeError(f"{type(other).__name__} is no {type(self).__name__}")

    def state(self) -> State | None:
        """A state from which the method may tighten this proof; None: there is nothing to go on."""
        return None


@dataclass(frozen=True)
class ByRule(Proof):
    """Every row along a fixed rule's lines (or, without a rule, plain intervals)."""

    lines: Rule | None
    rows_inside: bool = True

    @property
    def rule(self) -> Rule | None:
        return self.lines

    @property
    def inside(self) -> bool:
        return self.lines is not None and self.rows_inside

    def take(self, index: Tensor) -> ByRule:
        return self

    @classmethod
    def cat(cls, proofs: Sequence[ByRule]) -> ByRule:
        return proofs[0]

    def blank(self, samples: int) -> ByRule:
        return self

    def to(self, device: torch.device) -> ByRule:
        return self


@dataclass
class Proofs:
    """The proof of the largest radius of each of some samples, as a search goes on."""

    radius: Tensor  # (samples,) 0 where nothing is proved
    kept: dict[int, tuple[Proof, int]] = field(default_factory=dict)  # which, and its place there

    def keep(self, sample: Tensor, radius: Tensor, proof: Proof, place: Tensor) -> None:
        """Take in proofs of these samples at these radii: those at `place` in `proof`."""
        further = (radius > self.radius[sample]).nonzero().flatten()
        if not len(further):
            return
        own = proof.take(place[further])
        self.radius = self.radius.index_put((sample[further],), radius[further])
        for k, n in enumerate(sample[further].tolist()):
            self.kept[n] = own, k

    def replace(self, sample: Tensor, proof: Proof) -> None:
        """Replace the proofs of these samples, whatever their radii."""
        every = torch.arange(len(sample), device=sample.device)
        own = proof.take(every)
        for k, n in enumerate(sample.tolist()):
            self.kept[n] = own, k

    def alike(self, sample: Tensor) -> list[Tensor]:
        """These samples, those whose proofs bend apart from the others."""
        kept = [self.kept.get(n) for n in sample.tolist()]
        bent = torch.tensor([one is not None and one[0].bends for one in kept], dtype=torch.bool)
        bent = bent.to(sample.device)
        return [part for part in (sample[~bent], sample[bent]) if len(part)]

    def of(self, sample: Tensor) -> Proof | None:
        """The proofs of these samples in order, blank where there is none; None: there are none."""
        found = [self.kept.get(n) for n in sample.tolist()]
        kinds = [one[0] for one in found if one is not None]
        if not kinds:
            return None
        known = max(kinds, key=lambda proof: proof.includes)
        pieces: list[Proof] = []
        for _, run in groupby(found, key=lambda one: 0 if one is None else id(one[0])):
            members = list(run)
            own = [one for one in members if one is not None]
            if own:
                places = torch.tensor([place for _, place in own]).to(sample.device)
                piece = own[0][0].take(places)
                same = type(piece) is type(known)
                pieces.append(piece if same else known.include(piece, len(own)))
            else:
                pieces.append(known.blank(len(members)))
        return type(known).cat(pieces)
