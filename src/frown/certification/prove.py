"""The last pass: what the search found is proved with all rounding accounted for.

The search runs in fast floats. At the radius it returns, the slopes that proved it are replayed
rigorously; where that fails, the radius shrinks by a hair or, if it was given, FROWN goes on once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import farthest
from frown.bounds.arithmetic.executed import Execution
from frown.bounds.arithmetic.float32 import PRECISIONS
from frown.bounds.cases import Replayed, replay_together, replay_tree
from frown.bounds.plan import Plan
from frown.bounds.proof import ByRule, Proof, Proofs
from frown.bounds.replay import Replay
from frown.bounds.spill import NoRoom
from frown.bounds.tree import Branched, Tree
from frown.bounds.work import OutOfTime, Work, now
from frown.certification.certificate import Recorder
from frown.certification.findings import Begun, Proved, Searched
from frown.certification.results import LEVELS
from frown.certification.search import Searcher
from frown.errors import InvalidInput
from frown.problem.options import Option, check_options
from frown.problem.problem import Cast, Problem
from frown.problem.property import Property
from frown.read.model import Model
from frown.relax.proven.curves import NoProof
from frown.relax.proven.rounding import LONGEST, arithmetic_fault

LARGE = 950_000  # bytes of a certificate that is worth another replay
# How such replays are made: thrift, and the part of the radius that is kept.
_THRIFTY = (
    *((thrift, 1.0) for thrift in (8e-6, 1.6e-5, 3.2e-5)),
    *((thrift, 1 - 2.0**-9) for thrift in (1.6e-5, 3.2e-5, 6.4e-5)),
)


@dataclass(frozen=True)
class Estimate:
    """No proof beyond the search's own, in plain floating point.

    For a quick look, or for comparison with tools that do the same. Not where a radius must hold:
    rounding errors are not accounted for.
    """

    level = "estimate"


@dataclass(frozen=True)
class Rigorous:
    """A proof of every radius at that very radius, with all rounding errors accounted for.

    Args:
        certificates: a folder for one file per input, which `frown check` verifies.
        check: verify them at once, also if no folder keeps them (level "checked").
        execution: "float32": the proof covers the network as executed in single precision, in any
            order of summation, as well (docs/soundness.md says what is assumed).

    Raises InvalidInput for other values. Certificates are about ONNX files; a torch module has
    none.
    """

    certificates: Annotated[
        Path | str | None,
        Option("one certificate per input, for frown check", metavar="DIR", panel="Output"),
    ] = None
    check: bool = False
    execution: Annotated[
        str | None,
        Option(
            "prove it for the network as executed in that precision, too",
            tuple(PRECISIONS),
            flag="deployed",
            panel="Search",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.certificates, str | Path | None):
            raise InvalidInput(f"certificates must be a folder's path, not {self.certificates!r}")

    @property
    def level(self) -> str:
        """The level that rows are to reach."""
        return "checked" if self.check else "rigorous"

    @property
    def certified(self) -> bool:
        """True if certificates are written, to be kept or to be checked."""
        return self.certificates is not None or self.check


def proof_of(proof: object) -> Estimate | Rigorous:
    """A kind of proof as users give it: itself, or the name of a level."""
    if isinstance(proof, Estimate | Rigorous):
        return proof
    if proof == "estimate":
        return Estimate()
    if proof in LEVELS:
        return Rigorous(check=proof == "checked")
    raise InvalidInput(f"unknown level {proof!r}; choose from {', '.join(LEVELS)}")


@dataclass(frozen=True, slots=True)
class _Try:
    """A share of the radius to prove; None: where the last two margins say that it vanishes."""

    share: float | None
    again: bool = False  # FROWN goes on there first


def _tries(*small: int) -> tuple[_Try, ...]:
    return tuple(_Try(1 - 2.0**-k) for k in small)


_FIRST = _Try(1.0)
_TRIES = (_FIRST, _Try(1.0, again=True), *_tries(18, 12, 10, 9, 8, 7, 6, 4))
_DEPLOYED = (_FIRST, *_tries(9), _Try(None), _Try(None), *_tries(5, 3, 1))
_ONE_RADIUS = (_FIRST, _Try(1.0, again=True))


@dataclass(frozen=True, slots=True)
class _Replayed:
    margins: Tensor  # (samples, clauses)
    problem: Problem
    replay: Replay
    recorder: Recorder | None
    trees: dict[int, list[Replayed]]  # of samples that were proved case by case

    def file(self, model: Model, n: int, radius: float) -> bytes:
        assert self.recorder is not None
        trees = self.trees.get(n, ())
        return self.recorder.file(model, self.problem, self.replay, n, radius, trees)


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

    searcher: Searcher
    plan: Plan
    certificates: bool = False
    execution: str = ""  # a precision of execution to cover

    def prove(
        self,
        begun: Begun,
        searched: Searched,
        work: Work,
        before: Proved | None = None,
        share: float = 1.0,
        inside: bool = True,
    ) -> Proved:
        """Move every radius of a batch to one that is proved over the real numbers.

        Exact distances have no such proof; where an operator has none, rows stay estimates and
        say why. When the clock runs out, what was proved `before` stands. `share` is of the
        radii that were found. Unless `inside`, only what plain intervals proved is.
        """
        replays = _Replays(self, begun, searched, work, before, share, inside)
        if not len(begun.right) or not self._replayable:
            return before or replays.nothing({})
        reason = self._unproven()
        if reason is None:
            try:
                with torch.inference_mode():
                    found = replays.run()
                if isinstance(found, Proved):
                    return found
                return replays.nothing(dict.fromkeys(begun.right.tolist(), found))
            except NoProof as missing:
                reason = f"no rigorous lines for {missing}"
        remarks = dict.fromkeys(begun.right.tolist(), reason)
        if before is not None and before.radius is not None:
            return replace(before, remarks=remarks)
        return replays.nothing(remarks)

    @property
    def _replayable(self) -> bool:
        return self.searcher.method.replayable(self.searcher.plan)

    def _unproven(self) -> str | None:
        if max(node.size for node in self.plan.graph.nodes) > LONGEST:
            return f"sums of more than {LONGEST} terms, whose rounding is not accounted for"
        return arithmetic_fault()


class _Replays:
    """The replays of one batch at smaller and smaller radii."""

    def __init__(
        self,
        prover: Prover,
        begun: Begun,
        searched: Searched,
        work: Work,
        before: Proved | None,
        share: float,
        inside: bool,
    ) -> None:
        self.prover, self.begun, self.searched = prover, begun, searched
        self.work, self.before, self.share, self.inside = work, before, share, inside
        bracket = searched.bracket
        self.margins = torch.full_like(bracket.at_proved.double().cpu(), -torch.inf)
        self.proved = torch.zeros(len(begun.right), dtype=torch.float64)
        self.tried = torch.zeros_like(self.proved)
        self.files: dict[int, bytes] = {}
        self.leaves: dict[int, int] = {}
        self.remarks: dict[int, str] = {}
        if before is not None and before.radius is not None:
            self.proved, self.margins = before.radius.clone(), before.margins.clone()
            self.tried = before.tried
            self.files = dict(before.certificates)
            self.leaves = dict(before.leaves)
        self.proofs: Proofs | None = searched.proofs
        self._failing: dict[int, Tensor] = {}  # by a tree's identity, leaves that failed last

    @cached_property
    def problem(self) -> Problem:
        """The right answers' problem."""
        return self.begun.problem.take(self.begun.right)

    @cached_property
    def cast(self) -> Cast:
        """The problem in the numbers of the proof."""
        return self.problem.on(self.prover.plan.graph)

    def nothing(self, remarks: dict[int, str]) -> Proved:
        """No proof at all."""
        nowhere = torch.zeros_like(self.proved, dtype=torch.bool)
        return Proved(None, self.margins, self.tried, nowhere, remarks=remarks)

    def run(self) -> Proved | str:
        """Proofs for the batch, or why there are none after all."""
        began, cheap = now(), self.searched.cheap
        source = self.searched.bracket if self.inside or not cheap else cheap
        radius = source.proved.double().cpu() * self.share
        asked = self.problem.regions.radius
        if asked is not None:
            radius = radius.minimum(torch.from_numpy(asked))
        found, radius = radius, self._provable(radius)
        complete = self.before is None or self.before.complete
        try:
            self._attempts(radius)
        except OutOfTime:
            complete = False
        fault = arithmetic_fault()  # whatever ran in between may have set another mode
        if fault is not None:
            return fault
        fresh = int((radius > self.tried).sum())
        pace = 0.0 if self.before is None else self.before.pace
        if self.inside and self.searched.base is None and fresh:
            pace = (now() - began) / fresh
        return Proved(
            self.proved,
            self.margins,
            self.tried.maximum(radius),
            self.proved >= farthest(self.cast.region),
            self.files,
            self.leaves,
            self.prover.execution,
            complete,
            pace,
            self._less(found) | self.remarks,
        )

    def _provable(self, radius: Tensor) -> Tensor:
        """The part of these radii of which a proof is known; a closing method may have none."""
        if self.searched.inner is None or self.searched.base is None or self.proofs is None:
            return radius
        known = torch.maximum(self.proofs.radius, self.searched.base)
        return radius.minimum(known.double().cpu())

    def _less(self, found: Tensor) -> dict[int, str]:
        """Remarks on inputs of which less is proved than a closing method found."""
        inner, prover = self.searched.inner, self.prover.searcher
        if inner is None:
            return {}
        own = found > self._provable(found)
        name = "nothing" if prover.method.before is None else prover.method.before.name
        remarks = {}
        for k in own.nonzero().flatten().tolist():
            n = int(self.begun.right[k])
            what = f"{prover.method.name} reached {float(found[k]):.4g}, an estimate that"
            remarks[n] = f"{what} cannot be replayed; proved is what {name} finds"
        return remarks

    def _attempts(self, radius: Tensor) -> None:
        """Prove radii that are larger than those tried before, and keep them in `proved` with their
        `margins`."""
        single = self.problem.regions.radius is not None
        waiting = ((radius > self.tried) & (radius > self.proved)).nonzero().flatten()
        for alike in [waiting] if self.proofs is None else self.proofs.alike(waiting):
            self._try(alike, radius, single)
        self._fall_back(radius)
        if single:
            self._points()
        if self.prover.certificates:
            self._economise(single)

    def _try(self, waiting: Tensor, radius: Tensor, single: bool) -> None:
        """Replay these samples at shares of their radii, the largest first, and keep the radii that
        hold in `proved`."""
        failed = _Failed.none(radius)
        for attempt in _ONE_RADIUS if single else _DEPLOYED if self.prover.execution else _TRIES:
            if not len(waiting):
                break
            if attempt.again and not self._again(waiting, radius[waiting]):
                continue
            guess = failed.crossing() if attempt.share is None else radius * attempt.share
            trial = guess[waiting]
            found = self._replayed(waiting, trial, spare=attempt is _FIRST)
            good = (found.margins > 0).all(1) & (trial > self.proved[waiting])
            self._keep(waiting, found, good, trial)
            failed = failed.then(waiting, trial, found.margins)
            waiting = waiting[~good & (self.proved[waiting] < trial)]

    def _fall_back(self, radius: Tensor) -> None:
        """Fall back to the proof before a closing method, and to CROWN's own lines at CROWN's
        radius, where less is left than these had proved."""
        if self.searched.base is None:
            return
        if self.searched.inner is not None:
            self._fall_back_to(self.searched.inner, radius)
        base = self.searched.base.double().cpu().minimum(radius)
        worse = (self.proved < base).nonzero().flatten()
        if len(worse):
            found = self._replayed(worse, base[worse], self._by_rule)
            self._keep(worse, found, (found.margins > 0).all(1), base[worse])

    def _fall_back_to(self, inner: Proofs, radius: Tensor) -> None:
        """Replay these proofs where more was proved by them than is proved now."""
        known = inner.radius.double().cpu().minimum(radius)
        waiting = (self.proved < known).nonzero().flatten()
        single = self.problem.regions.radius is not None
        for attempt in (_FIRST,) if single else _TRIES:
            if attempt.again or attempt.share is None:
                continue
            trial = known[waiting] * attempt.share
            waiting, trial = (t[self.proved[waiting] < trial] for t in (waiting, trial))
            if not len(waiting):
                return
            found = self._replayed(waiting, trial, self._taken(inner, waiting))
            good = (found.margins > 0).all(1)
            self._keep(waiting, found, good, trial)
            waiting = waiting[~good]

    def _points(self) -> None:
        """Prove the claim about the input alone where the one radius is 0.

        No search was needed for it, but a proof is.
        """
        still = self.problem.regions.radius == 0
        which = torch.from_numpy(np.flatnonzero(still & ~(self.margins > 0).all(1).numpy()))
        if len(which):
            radius = torch.zeros(len(which), dtype=self.margins.dtype)
            found = self._replayed(which, radius, self._by_rule)
            self._keep(which, found, (found.margins > 0).all(1), radius)

    def _economise(self, single: bool) -> None:
        """Replay large certificates with fewer and shorter slopes, if need be at a radius smaller
        by 2^-9 (unless a `single` radius was asked about). Those that stay large are kept as they
        are."""
        files = [self.files.get(int(n), b"") for n in self.begun.right]
        # A tree's size is that of its leaves, which no thrift lessens.
        large = (k for k, file in enumerate(files) if len(file) > LARGE and file[7:8] == b"1")
        waiting = torch.tensor(list(large))
        whole = self.proved.clone()
        for thrift, part in _THRIFTY:
            if not len(waiting) or (single and part < 1):
                return
            trial = whole[waiting] * part
            found = self._replayed(waiting, trial, thrift=thrift)
            good = (found.margins > 0).all(1)
            for k in good.nonzero().flatten().tolist():
                n, radius = int(waiting[k]), float(trial[k])
                file = found.file(self.prover.searcher.model, k, radius)
                if len(file) <= LARGE:
                    self.files[int(self.begun.right[n])] = file
                    self.proved[n], self.margins[n] = radius, found.margins[k]
                else:
                    good[k] = False
            waiting = waiting[~good]

    def _keep(self, which: Tensor, found: _Replayed, good: Tensor, radius: Tensor) -> None:
        """Keep the radii that were proved, with their certificates."""
        self.proved[which[good]], self.margins[which[good]] = radius[good], found.margins[good]
        for k in good.nonzero().flatten().tolist():
            cases = sum(done.leaves for done in found.trees.get(k, ()))
            self.leaves[int(which[k])] = cases
        if self.prover.certificates:
            for k in good.nonzero().flatten().tolist():
                file = found.file(self.prover.searcher.model, k, float(radius[k]))
                self.files[int(self.begun.right[which[k]])] = file

    def _replayed(
        self,
        which: Tensor,
        radius: Tensor,
        proof: Proof | None = None,
        thrift: float = 0.0,
        spare: bool = False,
    ) -> _Replayed:
        """Proven margins of these samples at these radii, and how; `spare` the fixed rule's rows
        where FROWN has its own."""
        plan, own = self.prover.plan, self.cast.rows(which).at(radius)
        recorder = Recorder(plan) if self.prover.certificates else None
        execution = Execution(plan, own.region, self.work) if self.prover.execution else None
        replay = Replay(
            plan,
            own.region,
            proof or self._proof(which),
            self.work,
            record=recorder,
            thrift=thrift,
            spare=spare,
            execution=execution,
        )
        replay.layers()
        margins = own.property.margins(replay.literals(own.property))
        trees = dict[int, list[Replayed]]()
        if isinstance(replay.proof, Branched) and execution is None:
            trees = self._by_cases(replay, replay.proof.trees, which, own.property, margins)
        return _Replayed(margins, self.problem.take(which.numpy()), replay, recorder, trees)

    def _by_cases(
        self,
        replay: Replay,
        trees: Sequence[Sequence[Tree]],
        which: Tensor,
        wanted: Property,
        margins: Tensor,
    ) -> dict[int, list[Replayed]]:
        """Put what trees prove beyond these `margins` (samples, clauses) into them; return every
        sample's trees that were needed."""
        record, done = self.prover.certificates, dict[int, list[Replayed]]()
        joint = list[tuple[int, Tree, Tensor, Tensor | None]]()

        def take(n: int, found: Replayed, tree: Tree) -> None:
            self._failing[id(tree)] = found.failing
            margins[n] = margins[n].maximum(found.margins)
            done.setdefault(n, []).append(found)

        for n, mine in enumerate(trees):
            for tree in mine:
                left = ~(margins[n] > 0)
                if not bool(left.any() if tree.clause is None else left[tree.clause]):
                    continue
                doubts = self._failing.get(id(tree))
                if tree.by_nodes and tree.clause is not None:
                    joint.append((n, tree, left, doubts))
                    continue
                try:
                    take(n, replay_tree(replay, n, tree, wanted, left, doubts, record), tree)
                except NoRoom as full:
                    place = int(self.begun.right[which[n]])
                    self.remarks[place] = f"its tree is not replayed: {full}"
                    break
        together = replay_together(replay, joint, wanted, record)
        for (n, tree, _, _), found in zip(joint, together, strict=True):
            take(n, found, tree)
        return done

    @property
    def _by_rule(self) -> ByRule:
        """Every row along the fixed lines that the search started from."""
        base = self.prover.searcher.base
        return ByRule(base.lines, self.inside and base.inside)

    def _proof(self, which: Tensor) -> Proof:
        """The slopes that the search chose for these samples."""
        if self.searched.base is None or self.proofs is None:  # nothing but fixed lines so far
            return self._by_rule
        return self._taken(self.proofs, which) or self._by_rule

    def _taken(self, proofs: Proofs, which: Tensor) -> Proof | None:
        """The search's choices for these samples, on the device of `which`."""
        found = proofs.of(which.to(proofs.radius.device))
        return None if found is None else found.to(which.device)

    def _again(self, which: Tensor, radius: Tensor) -> bool:
        """Let the method go on at these radii, for margins that rounding leaves something of.
        False where it has nothing to go on from."""
        searcher, like = self.prover.searcher, self.begun.clean
        which = which.to(like.device)
        proof = None if self.proofs is None else self.proofs.of(which)
        state = None if proof is None else proof.state()
        if self.proofs is None or state is None:
            return False
        own = self.begun.cast.rows(which).at(radius.to(like))
        found = searcher.method.bound(
            searcher.plan, own.region, own.property, state, None, self.work
        )
        kept = Proofs(self.proofs.radius, dict(self.proofs.kept))
        kept.replace(which, found.proof)
        self.proofs = kept
        return True
