"""The folder of a run's certificates: each is written as soon as it is there, and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frown.bounds.work import Clock, OutOfTime
from frown.certification.agreement import Compared
from frown.certification.certificate import check_certifiable
from frown.certification.findings import Findings
from frown.certification.folder import (
    CERTIFICATES_LOCK,
    Lock,
    reported,
    require_writable,
    write_whole,
)
from frown.certification.prove import Rigorous
from frown.errors import InvalidInput
from frown.problem.problem import Problem
from frown.problem.property import LabelWins, Property
from frown.read.model import Model

if TYPE_CHECKING:
    from frown_check.checker import Claim, Verdict

SUFFIX = ".frown"
LATE = "the time limit came before its certificate was checked"
OTHER = "the checker accepted another statement"


@dataclass(frozen=True)
class Kept:
    """The certificates of a batch, by place."""

    files: Mapping[int, str] = field(default_factory=dict)  # their names
    checked: frozenset[int] = frozenset()  # those that the independent checker accepted
    remarks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificates:
    """A folder that is taken until the end of the run."""

    model: Model
    folder: Path
    check: bool
    passing: bool  # whether nobody asked for the files: they are gone after the check

    @classmethod
    def open(
        cls, model: Model, problem: Problem, proof: Rigorous, taken: ExitStack
    ) -> Certificates:
        """Make sure that certificates can be written, before any work, and by no other run; `taken`
        lets go of the folder."""
        check_certifiable(model)
        compared = isinstance(problem.property, LabelWins)
        if proof.execution is not None and compared and model.ranking is not model.graph:
            raise InvalidInput(
                f"{model.name} ends in a function that keeps the order of the outputs: deployed "
                "counts its rounding, certificates leave it out; ask for one of the two"
            )
        regions = problem.regions
        pairs = np.stack([regions.index, regions.frame], 1)
        names, times = np.unique(pairs, axis=0, return_counts=True)
        if len(names) < len(pairs):
            twice = names[times.argmax()][0]
            raise InvalidInput(f"certificates are named by indices: several inputs have {twice}")
        if proof.certificates is None:
            folder = Path(taken.enter_context(TemporaryDirectory()))
            return cls(model, folder, check=True, passing=True)
        folder = Path(proof.certificates)
        remedy = "choose another folder (--certificates)"
        with reported("write certificates to", folder, remedy):
            require_writable(folder)
            taken.enter_context(Lock.join(folder, CERTIFICATES_LOCK, "certificates"))
        return cls(model, folder, proof.check, passing=False)

    def keep(self, findings: Findings, compared: Compared, clock: Clock) -> Iterator[Kept]:
        """Write a batch's certificates and, if asked to, check each while time is left. Yields the
        state after every file."""
        regions, kept = findings.begun.problem.regions, Kept()
        places = {n: k for k, n in enumerate(findings.begun.right.tolist())}
        for n in compared.mismatch:  # one of an earlier run says what no longer holds
            (self.folder / f"{regions.name(n)}{SUFFIX}").unlink(missing_ok=True)
        for n, content in findings.certificates.items():
            if n in compared.mismatch:
                continue
            file = self.put(regions.name(n), content)
            written = replace(kept, files={**kept.files, n: file.name})
            if not self.check:
                kept = written
            else:
                yield kept if self.passing else written
                radius = float(findings.radius[places[n]])
                refused = self.verdict(file, findings.begun.problem, n, radius, clock)
                if not isinstance(refused, str):
                    kept = replace(written, checked=kept.checked | {n})
                else:
                    kept = written if refused == LATE else kept
                    kept = replace(kept, remarks={**kept.remarks, n: refused})
                if n not in kept.files or self.passing:
                    # Leave no file that was checked and is not what its row says.
                    file.unlink(missing_ok=True)
                if self.passing:
                    kept = replace(kept, files={})
            yield kept

    def put(self, name: str, content: bytes) -> Path:
        """Write the certificate of the input with this name; OutputError where that fails."""
        file = self.folder / f"{name}{SUFFIX}"
        with reported("write", file):
            write_whole(file, content)
        return file

    def verdict(
        self, file: Path, problem: Problem, n: int, radius: float, clock: Clock
    ) -> Verdict | str:
        """The checker's verdict, if it confirms that input n has a radius; else why it does not."""
        import frown_check

        assert self.model.path is not None
        try:
            clock.check()
            verdict = frown_check.check(file, self.model.path, lambda _: clock.check())
        except OutOfTime:
            return LATE
        if not verdict.accepted:
            return f"the checker refused: {verdict.reason}"
        claim = verdict.claim
        if claim is None or not (_meant(claim, problem, n, radius) and _before(claim, self.model)):
            return OTHER
        return verdict


def sha256_of(content: bytes | None) -> str:
    """The digest of a certificate's file; empty where there is none."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _meant(claim: Claim, problem: Problem, n: int, radius: float) -> bool:
    """True if a claim agrees with the row of input n."""
    regions = problem.regions

    def same(claimed: NDArray[np.float64] | None, own: NDArray[np.float64] | None) -> bool:
        if claimed is None or own is None:
            return claimed is own
        own = own[n if len(own) > 1 else 0]
        return np.array_equal(
            claimed, np.broadcast_to(own, regions.x.shape[1:]).reshape(claimed.shape)
        )

    lower, upper = regions.range.stated if regions.range else (None, None)
    ends = same(claim.lower, lower) and same(claim.upper, upper)
    if not ends or claim.box != regions.box or not _states(claim, problem.property, n):
        return False
    scale = np.ones((1, 1)) if regions.scale is None else regions.scale
    if regions.box:  # which is all of the region, and is no larger
        return regions.radius is not None and radius <= float(regions.radius[n])
    return (
        same(claim.scale, scale)
        and np.array_equal(claim.ball.ravel(), regions.balls().ravel())
        and claim.radius >= radius
        and claim.norm == regions.p
        and np.array_equal(claim.centre.ravel(), regions.x[n].ravel())
    )


def _before(claim: Claim, model: Model) -> bool:
    """True if a claim is about the network with the model's own normalisation in front of it, or
    with none where the model has none."""
    claimed = [] if claim.mean is None or claim.std is None else [claim.mean, claim.std]
    own = [part for pair in model.normalisation for part in pair]
    return len(claimed) == len(own) and all(
        np.array_equal(a.ravel(), b.ravel()) for a, b in zip(claimed, own)
    )


def _states(claim: Claim, property: Property, n: int) -> bool:
    """True if a claim says the same about the outputs as the property of input n."""
    if isinstance(property, LabelWins):
        rivals = sorted(property.targets[n].tolist())
        return claim.label == int(property.label[n]) and sorted(claim.others) == rivals
    if claim.coef is None or claim.const is None or claim.clause is None:
        return False
    own = property.rows(slice(n, n + 1))
    coef = claim.coef if claim.inputs is None else np.concatenate([claim.coef, claim.inputs], 1)
    return (
        np.array_equal(coef, own.pick(slice(None)).numpy())
        and np.array_equal(claim.const, own.const[0].numpy())
        and np.array_equal(claim.clause, own.clause.numpy())
    )
