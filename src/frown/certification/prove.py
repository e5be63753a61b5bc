"""The last pass: what the search found is proved with all rounding accounted for.

The search runs in fast floats. At the radius it returns, the slopes that proved it are replayed
rigorously; where that fails, the radius shrinks by a hair or, if it was given, FROWN goes on once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.bounds.arithmetic.executed import Execution
from frown.bounds.arithmetic.minima import farthest
from frown.bounds.clock import OutOfTime, now
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Proof
from frown.bounds.replay import Replay
from frown.bounds.work import Work
from frown.certification.batch import Batch
from frown.certification.certificate import Recorder
from frown.certification.search import Certifier
from frown.problem.query import Query
from frown.read.model import Model
from frown.relax.proven.curves import NoProof
from frown.relax.proven.rounding import LONGEST, arithmetic_fault

LEVELS = ("estimate", "rigorous", "checked")
LARGE = 950_000  # bytes of a certificate that is worth another replay
# How such replays are made: thrift, and the part of the radius that is kept.
_THRIFTY = (
    *((thrift, 1.0) for thrift in (8e-6, 1.6e-5, 3.2e-5)),
    *((thrift, 1 - 2.0**-9) for thrift in (1.6e-5, 3.2e-5, 6.4e-5)),
)


@dataclass(frozen=True, slots=True)
class _Try:
    """A share of the radius to prove; None: where the last two margins say that it vanishes."""

    share: float | None
    again: bool = False  # FROWN goes on there first


def _tries(*small: int) -> tuple[_Try, ...]:
    return tuple(_Try(1 - 2.0**-k) for k in small)


_FIRST = _Try(1.0)
_TRIES = (_FIRST, _Try(1.0, again=True), *_tries(18, 12, 8, 6, 4))
_DEPLOYED = (_FIRST, *_tries(9), _Try(None), _Try(None), *_tries(5, 3, 1))
_ONE_RADIUS = (_FIRST, _Try(1.0, again=True))


@dataclass(frozen=True, slots=True)
class _Replayed:
    margins: Tensor  # (samples, conditions)
    query: Query
    replay: Replay
    recorder: Recorder | None

    def file(self, model: Model, n: int, radius: float) -> bytes:
        assert self.recorder is not None
        return self.recorder.file(model, self.query, self.replay, n, radius)


@dataclass(frozen=True, slots=True)
class _Failed:
    """The last two radii tried, the later one first, and the least margin at each."""

    radius: tuple[Tensor, Tensor]  # (samples,) each
    margin: tuple[Tensor, Tensor]

    @classmethod
    def none(cls, radius: Tensor) -> _Failed:
        unknown = torch.full_like(radius, torch.nan)
        return cls((radius, radius), (unknown, unknown))

    def then(self, which: Tensor, radius: Tensor, margins: Tensor) -> _Failed:
        last, least = self.radius[0].clone(), self.margin[0].clone()
        last[which], least[which] = radius, margins.amin(1)
        return _Failed((last, self.radius[0]), (least, self.margin[0]))

    def crossing(self) -> Tensor:
        """Radii at which margins, going on as they did, are a little above 0."""
        (last, before), (margin, margin_before) = self.radius, self.margin
        rate = (margin - margin_before) / (before - last)  # > 0: what a smaller radius gains
        ahead = last - 1.25 * -margin / rate
        ahead = torch.where(torch.isfinite(ahead) & (rate > 0), ahead, last * (1 - 2.0**-6))
        return ahead.minimum(last * (1 - 2.0**-12)).maximum(last * (1 - 2.0**-3))


@dataclass(frozen=True)
class Prover:
    """A network as its file has it, in float64 and with nothing merged."""

    certifier: Certifier
    plan: Plan
    certificates: bool = False
    deployed: str = ""  # a precision of execution to cover
    work: Work = Work()  # noqa: RUF009  (a frozen value)
    inside: bool = True  # or by plain intervals alone, what they proved
    share: float = 1.0  # of the radii that were found

    def prove(self, batch: Batch, eps: NDArray[np.float64] | None) -> None:
        """Move every radius of the batch to one that is proved over the real numbers.

        Exact distances have no such proof; where an operator has none, rows stay estimates and
        say why. When the clock runs out, what was proved before stands.
        """
        if not len(batch.right):
            return
        if self.certifier.method.estimates:
            return
        reason = self._unproven()
        if reason is None:
            try:
                with torch.inference_mode():
                    reason = self._prove(batch, eps)
                if reason is None:
                    return
            except NoProof as missing:
                reason = f"no rigorous lines for {missing}"
        for n in batch.right.tolist():
            batch.say(n, reason)

    def _unproven(self) -> str | None:
        if max(node.size for node in self.plan.graph.nodes) > LONGEST:
            return f"sums of more than {LONGEST} terms, whose rounding is not accounted for"
        return arithmetic_fault()

    def _prove(self, batch: Batch, eps: NDArray[np.float64] | None) -> str | None:
        """Proofs for the batch, or why there are none after all."""
        began, source = now(), batch.bracket if self.inside or not batch.cheap else batch.cheap
        radius = source.proved.double().cpu() * self.share
        if eps is not None:
            radius = radius.minimum(torch.from_numpy(eps[batch.right]))
        margins = torch.full_like(batch.bracket.at_proved.double().cpu(), -torch.inf)
        proved, tried = torch.zeros_like(radius), torch.zeros_like(radius)
        if batch.rigorous is not None and batch.replayed is not None:
            (proved, margins), tried = batch.rigorous, batch.replayed
        try:
            self._attempts(batch, eps, radius, tried, proved, margins)
        except OutOfTime:
            batch.complete = False
            batch.nothing = "the time limit came before a proof with all rounding accounted for"
        fault = arithmetic_fault()  # whatever ran in between may have set another mode
        if fault is not None:
            batch.certificate.clear()
            batch.rigorous = batch.replayed = batch.covered = None
            return fault
        asked = int((radius > tried).sum())
        if self.inside and batch.base is None and asked:
            batch.replay = (now() - began) / asked
        batch.rigorous, batch.deployed = (proved, margins), self.deployed
        batch.replayed = tried.maximum(radius)
        region = batch.query.take(batch.right).region(self.plan.graph)
        batch.covered = proved >= farthest(region)
        return None

    def _attempts(
        self,
        batch: Batch,
        eps: NDArray[np.float64] | None,
        radius: Tensor,
        tried: Tensor,
        proved: Tensor,
        margins: Tensor,
    ) -> None:
        """Put what holds of radii beyond those tried before into `proved`, with its `margins`."""
        waiting = ((radius > tried) & (radius > proved)).nonzero().flatten()
        failed = _Failed.none(radius)
        for attempt in _ONE_RADIUS if eps is not None else _DEPLOYED if self.deployed else _TRIES:
            if not len(waiting):
                break
            if attempt.again and not self._again(batch, waiting, radius[waiting]):
                continue
            guess = failed.crossing() if attempt.share is None else radius * attempt.share
            trial = guess[waiting]
            found = self._replayed(batch, waiting, trial, spare=attempt is _FIRST)
            good = (found.margins > 0).all(1) & (trial > proved[waiting])
            proved[waiting[good]], margins[waiting[good]] = trial[good], found.margins[good]
            self._keep(batch, waiting, found, good, trial)
            failed = failed.then(waiting, trial, found.margins)
            waiting = waiting[~good & (proved[waiting] < trial)]
        self._fall_back(batch, radius, proved, margins)
        if eps is not None:
            self._points(batch, eps[batch.right] == 0, margins)
        if self.certificates:
            self._economise(batch, proved, margins, eps is not None)

    def _fall_back(self, batch: Batch, radius: Tensor, proved: Tensor, margins: Tensor) -> None:
        """Where less is left than CROWN had proved, CROWN's own lines at CROWN's radius."""
        if batch.base is None:
            return
        base = batch.base.double().cpu().minimum(radius)
        worse = (proved < base).nonzero().flatten()
        if not len(worse):
            return
        found = self._replayed(batch, worse, base[worse], self._by_rule)
        good = (found.margins > 0).all(1)
        proved[worse[good]], margins[worse[good]] = base[worse[good]], found.margins[good]
        self._keep(batch, worse, found, good, base[worse])

    def _points(self, batch: Batch, still: NDArray[np.bool_], margins: Tensor) -> None:
        """Where the one radius is 0, the claim about the input alone: no search was needed for it,
        but a proof is."""
        which = torch.from_numpy(np.flatnonzero(still & ~(margins > 0).all(1).numpy()))
        if not len(which):
            return
        radius = torch.zeros(len(which), dtype=margins.dtype)
        found = self._replayed(batch, which, radius, self._by_rule)
        good = (found.margins > 0).all(1)
        margins[which[good]] = found.margins[good]
        self._keep(batch, which, found, good, radius)

    def _economise(self, batch: Batch, proved: Tensor, margins: Tensor, fixed: bool) -> None:
        """Large certificates again with fewer and shorter slopes, at a radius smaller by 2^-9
        where that is what it takes (unless it is `fixed`). Where nothing does, they stay."""
        files = [batch.certificate.get(int(n), b"") for n in batch.right]
        waiting = torch.tensor([k for k, file in enumerate(files) if len(file) > LARGE])
        whole = proved.clone()
        for thrift, part in _THRIFTY:
            if not len(waiting) or (fixed and part < 1):
                return
            trial = whole[waiting] * part
            found = self._replayed(batch, waiting, trial, thrift=thrift)
            good = (found.margins > 0).all(1)
            for k in good.nonzero().flatten().tolist():
                n, radius = int(waiting[k]), float(trial[k])
                file = found.file(self.certifier.model, k, radius)
                if len(file) <= LARGE:
                    batch.certificate[int(batch.right[n])] = file
                    proved[n], margins[n] = radius, found.margins[k]
                else:
                    good[k] = False
            waiting = waiting[~good]

    def _keep(
        self, batch: Batch, which: Tensor, found: _Replayed, good: Tensor, radius: Tensor
    ) -> None:
        """The certificates of what was proved."""
        if self.certificates:
            for k in good.nonzero().flatten().tolist():
                file = found.file(self.certifier.model, k, float(radius[k]))
                batch.certificate[int(batch.right[which[k]])] = file

    def _replayed(
        self,
        batch: Batch,
        which: Tensor,
        radius: Tensor,
        proof: Proof | None = None,
        thrift: float = 0.0,
        spare: bool = False,
    ) -> _Replayed:
        """Proven margins of these samples at these radii, and how; `spare` the fixed rule's rows
        where FROWN has its own."""
        query = batch.query.take(batch.right[which.numpy()])
        graph = self.plan.graph
        region = query.region(graph).with_radius(radius)
        recorder = Recorder(self.plan) if self.certificates else None
        proof = proof or self._proof(batch, which)
        execution = Execution(self.plan, region, self.work) if self.deployed else None
        replay = Replay(
            self.plan,
            region,
            proof,
            self.work,
            record=recorder,
            thrift=thrift,
            spare=spare,
            execution=execution,
        )
        replay.layers()
        wanted = query.property(graph)
        margins = wanted.margins(replay.literals(wanted))
        return _Replayed(margins, query, replay, recorder)

    @property
    def _by_rule(self) -> ByRule:
        """Every row along the fixed lines that the search started from."""
        base = self.certifier.base
        return ByRule(base.lines, self.inside and base.inside)

    def _proof(self, batch: Batch, which: Tensor) -> Proof:
        """What the search chose for these samples."""
        if batch.base is None or batch.proofs is None:  # nothing but fixed lines so far
            return self._by_rule
        return batch.proofs.of(which) or self._by_rule

    def _again(self, batch: Batch, which: Tensor, radius: Tensor) -> bool:
        """Let the method go on at these radii, for margins that rounding leaves something of.
        False where it has nothing to go on from."""
        proof = None if batch.proofs is None else batch.proofs.of(which)
        state = None if proof is None else proof.state()
        if batch.proofs is None or state is None:
            return False
        certifier, graph = self.certifier, self.certifier.plan.graph
        query = batch.query.take(batch.right[which.numpy()])
        ball = query.region(graph).with_radius(radius.to(graph.dtype).to(graph.device))
        found = certifier.method.bound(
            certifier.plan, ball, query.property(graph), state, None, self.work
        )
        batch.proofs.replace(which, found.proof)
        return True
