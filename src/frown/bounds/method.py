"""The one question that every method answers: does a property hold on these regions?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frown.bounds.plan import Plan
from frown.bounds.proof import Proof, State
from frown.bounds.walk import Given, Layers
from frown.bounds.work import Work
from frown.errors import InvalidInput
from frown.problem.property import Property
from frown.problem.region import Region


@dataclass(frozen=True)
class Bounds:
    """The findings of a method for every sample of a region."""

    layers: Layers
    literals: Tensor  # (N, T) lower bounds of the property's literals
    proof: Proof
    remarks: dict[int, str]  # by sample: what a reader must know, as of a solver that gave up

    @property
    def empty(self) -> Tensor:
        """(N,) whether the given boxes leave nothing of a region: everything holds there."""
        return self.layers.empty


@dataclass(frozen=True, slots=True)
class Known:
    """A method's bounds at some radii, and the state that it left."""

    bounds: Bounds
    state: State


@dataclass(frozen=True, slots=True)
class Bytes:
    """Memory of a state: at the most, and for certain (patches of convolutions may take less)."""

    likely: int
    certain: int


class Method(ABC):
    """A way to bound a network. Methods are values: their fields are their options.

    A new one derives from this class (or from `Fixed`, if a rule gives its slopes), has a `name`
    and implements `bound`. `certify(method=...)` takes it as it is; a line in `frown.methods` gives
    it a name on the command line. Methods that move both ends of a bracket derive from `Closing`.
    """

    name: ClassVar[str]
    estimates: ClassVar[bool] = False  # nothing it finds can be replayed
    singly: ClassVar[bool] = False  # samples are bounded one after the other

    @abstractmethod
    def bound(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        state: State | None = None,
        given: Given | None = None,
        work: Work = Work(),  # noqa: B008  (a frozen value)
    ) -> Bounds:
        """Bound the property's literals below over every sample's region.

        Args:
            plan: the network, and the order in which its nonlinearities are bounded.
            region: N samples' regions.
            property: of the same N samples.
            state: of these samples, from earlier calls at other radii; takes what this one finds.
            given: boxes that hold already, from a larger region or from the cuts of a branch.
            work: limits of memory, time and processes.

        Returns bounds that hold at every point of each region. They may be NaN or infinite, which
        proves nothing. Raises OutOfTime when the work's clock has run out; what the state holds
        stays valid.
        """

    def start(self, samples: int) -> State:
        """The state before anything was bounded."""
        return State()

    def refuse(self, plan: Plan, p: float) -> None:  # noqa: B027  (most refuse nothing)
        """Raise InvalidInput where the method cannot be used.

        That is, where it cannot bound this network over l_p balls, or lacks a library.
        """

    def replayable(self, plan: Plan) -> bool:
        """True if the proofs that it returns for this network can be replayed."""
        return not self.estimates

    @property
    def before(self) -> Method | None:
        """A cheaper method whose radii a search starts from."""
        return None

    @property
    def glance(self) -> Method | None:
        """A cheaper variant that tells where a search's next radius should be."""
        return None

    @property
    def once(self) -> Method:
        """The variant for a single region, with no other to go on from."""
        return self

    @property
    def foresight(self) -> Method | None:
        """A cheaper method whose radii tell where this one should look first."""
        return None

    def kept_bytes(self, plan: Plan) -> Bytes:
        """Estimate the memory of one sample's state."""
        return Bytes(0, 0)


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of the brackets of a batch, from which a closing method goes on."""

    proved: Tensor  # (N,) radii already proved
    limit: Tensor  # (N,) the largest radii that are asked about
    broken: Tensor  # (N,) the radii of the nearest counterexamples; inf where there is none
    point: Tensor  # (N, *input shape) these counterexamples; the centre where there is none
    single: bool  # whether only `limit` is asked about: no smaller radius is of use
    replayed: bool = False  # whether proofs are replayed afterwards, in the same time
    known: Known | None = None  # what the method before found at `limit`, if that is known


@dataclass(frozen=True, slots=True)
class Update:
    """News of one sample: a larger radius, a nearer counterexample, or that its bracket stays.

    Both ends are the method's word: the caller replays the proof and confirms the point.
    """

    sample: int
    proved: float  # no counterexample up to here; nothing new where a larger radius is known
    proof: Proof | None = None  # of `proved`; None: there is nothing to replay
    point: Tensor | None = None  # (*input shape) a nearer counterexample
    complete: bool = True  # whether time sufficed; False where more of it might close the bracket
    remark: str = ""  # what a reader must know, as why the bracket stays open


class Closing(Method):
    """A method that moves both ends of brackets which `before` has left."""

    @abstractmethod
    def close(
        self, plan: Plan, region: Region, property: Property, ends: Ends, work: Work
    ) -> Iterator[Update]:
        """Close the brackets of all samples of a batch, and yield what is found as it is found.

        `region` has the samples' balls at any radius. A sample may be reported any number of
        times, the last remark and `complete` count. The caller may stop at any update, when what
        was yielded stands; nothing may rest on code after the last one. When the work's clock has
        run out, the method ends by itself, without raising OutOfTime.
        """

    def bound(
        self,
        plan: Plan,
        region: Region,
        property: Property,
        state: State | None = None,
        given: Given | None = None,
        work: Work = Work(),  # noqa: B008
    ) -> Bounds:
        raise InvalidInput(
            f"the method {self.name} finds distances, not bounds at a radius; use certify"
        )


def every(region: Region) -> Tensor:
    """(N,) the numbers of a region's samples."""
    return torch.arange(len(region.radius), device=region.radius.device)
