"""Rows that workers hand over, before they count as the driver's own.

Every row must be about the input that was asked about. Certificates are written here, once, and
checked here where that was asked for. With workers that are not trusted, a level of `checked` rests
on nothing that they say: what no certificate proves is withdrawn, and counterexamples are replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from frown.bounds.arithmetic.charged import farthest
from frown.bounds.work import Clock
from frown.certification.attack import overtaken
from frown.certification.certificates import LATE, OTHER, SUFFIX, Certificates, sha256_of
from frown.certification.procedure import Procedure
from frown.certification.results import Row
from frown.certification.run import broken_as, classes_of, rivals, status_of, unanswered
from frown.certification.statement import input_digest
from frown.problem.problem import Problem

if TYPE_CHECKING:
    from frown_check.checker import Verdict

UNPROVED = "nothing is proved: "


@dataclass(frozen=True)
class Vetting:
    """The driver's own view of what workers say."""

    procedure: Procedure
    problem: Problem
    certificates: Certificates | None
    clock: Clock
    trusted: bool  # whether workers are

    @property
    def wary(self) -> bool:
        """True if a row rests on nothing that a worker says."""
        return not self.trusted and self.certificates is not None and self.certificates.check

    def row(
        self, n: int, row: Row, certificate: bytes | None, point: NDArray[np.float64] | None
    ) -> Row:
        """The row of input n as it may be kept."""
        regions = self.problem.regions
        if (
            row.index != int(regions.index[n])
            or row.input != input_digest(regions.x[n])
            or row.frames != regions.moving(n)
            or row.norm != regions.p
            or row.holds != self.problem.property.digest(n)
            or row.method != self.procedure.method.name
        ):
            return self.nothing(n, "its worker answered another question")
        row = replace(row, id=regions.ids[n] if regions.ids else "")
        row = replace(row, certificate="", certificate_sha256="")  # until it is written here
        if not self.trusted and row.level == "checked":
            row = replace(row, level="rigorous")  # until it is checked here
        if self.wary:
            row = self._replayed(n, row, point)
            if row.status == "misclassified":  # as executed, which no certificate is about
                certificate = None
        if self.certificates is None:
            return row
        if certificate is None:
            if row.status == "mismatch":  # one of an earlier run says what no longer holds
                (self.certificates.folder / f"{regions.name(n)}{SUFFIX}").unlink(missing_ok=True)
            if self.wary and row.proved:
                return self._withdrawn(n, row, "its worker sent no certificate")
            return self._unproved(n, row) if self.wary else row
        return self._confirmed(n, row, certificate, self.certificates)

    def nothing(self, n: int, why: str) -> Row:
        """The row of an input without an answer."""
        x = self.problem.regions.x[n][None]
        prediction = int(self.problem.property.predicted(self.procedure.model.run(x))[0])
        row = unanswered(self.problem, n, self.procedure.method.name, prediction)
        return replace(row, complete=False, remark=UNPROVED + why)

    def _confirmed(self, n: int, row: Row, content: bytes, kept: Certificates) -> Row:
        """The row with its certificate written and, if asked to, checked."""
        file = kept.put(self.problem.regions.name(n), content)
        if not kept.check:
            return replace(row, certificate=file.name, certificate_sha256=sha256_of(content))
        found = kept.verdict(file, self.problem, n, row.radius, self.clock)
        if not isinstance(found, str):
            row = replace(row if self.trusted else self._proved(n, row, found), level="checked")
        elif self.wary or found == OTHER:
            row = self._withdrawn(n, row, found)
        else:
            row = replace(row, remark=_and(row.remark, found))
        if kept.passing or (isinstance(found, str) and (self.wary or found != LATE)):
            file.unlink(missing_ok=True)
            return row
        return replace(row, certificate=file.name, certificate_sha256=sha256_of(content))

    def _proved(self, n: int, row: Row, verdict: Verdict) -> Row:
        """The row with the numbers of the checker's verdict, whatever the worker made of it."""
        regions, exact = self.problem.regions.take(np.array([n])), self.procedure.exact
        assert exact is not None
        end = inf if row.broken is None else row.broken
        # Nothing is said to hold where the model as executed errs, whatever the real numbers do.
        radius = row.radius if row.radius < end else float(np.nextafter(end, 0.0))
        whole = row.radius < end and radius >= float(farthest(regions.on(exact.graph))[0])
        asked = None if regions.radius is None else float(regions.radius[0])
        names = rivals(self.problem.property, n) if verdict.margin is not None else []
        return replace(
            row,
            status=status_of(radius, whole, True, end, asked),
            radius=radius,
            margins=dict.fromkeys(names, verdict.margin or 0.0),
            leaves=verdict.leaves,
        )

    def _unproved(self, n: int, row: Row) -> Row:
        """The row, of which nothing is proved, without the fields that would claim a proof."""
        row = replace(row, margins={}, leaves=0)
        if row.level not in ("estimate", "rigorous"):
            row = replace(row, level="estimate")
        if row.status in ("misclassified", "mismatch"):
            return row
        return replace(row, status="falsified" if self._falsified(n, row) else "unknown")

    def _falsified(self, n: int, row: Row) -> bool:
        """True if the counterexample lies within the radius that was asked about."""
        radius = self.problem.regions.radius
        return radius is not None and row.broken is not None and row.broken <= float(radius[n])

    def _withdrawn(self, n: int, row: Row, why: str) -> Row:
        """The row without what it claims to have proved."""
        return replace(
            row,
            status="falsified" if self._falsified(n, row) else "unknown",
            radius=0.0,
            failed=None,
            margins={},
            level="estimate",
            remark=UNPROVED + why,
            deployed="",
            leaves=0,
            radius_before=None,
        )

    def _replayed(self, n: int, row: Row, point: NDArray[np.float64] | None) -> Row:
        """The row with the original model's own answers to the input and the counterexample."""
        regions, wanted, model = self.problem.regions, self.problem.property, self.procedure.model
        outputs = model.run(regions.x[n][None])
        violated = bool(self.problem.violated(outputs, n)[0])
        prediction = wanted.predicted(outputs)
        admitted = wanted.rows(slice(n, n + 1)).admits(torch.from_numpy(prediction))
        wrong = violated or not bool(admitted[0])
        label, answer, target = classes_of(wanted, n, int(prediction[0]))
        row = replace(row, label=label, target=target, prediction=answer, broken_as=None)
        # No certificate is about execution, or about what was known before branching.
        row = replace(row, deployed="", radius_before=None, broken_before=None)
        if row.remark:
            row = replace(row, remark=f"its worker says: {row.remark}")
        if row.status == "misclassified" and not wrong:
            row = self._withdrawn(n, row, "its worker called a right answer wrong")
        if wrong and row.status not in ("misclassified", "mismatch"):
            row = self._withdrawn(n, row, "its worker called a wrong answer right")
            row = replace(row, status="misclassified", broken=0.0 if violated else None)
        if row.broken is None:
            return row
        if row.broken == 0 and wrong:
            return replace(row, broken_as=broken_as(wanted, {}, n, int(prediction[0])))
        if point is not None and point.shape == regions.x[n].shape:
            within = np.array_equal(
                point, np.where(regions.still(n), regions.x[n], regions.clip(n, point))
            )
            there = model.run(point[None])
            errs = self.problem.violated(there, n)[0]
            if within and errs and regions.distance(n, point) <= row.broken:
                clause = {n: overtaken(self.problem, n, there)}
                return replace(row, broken_as=broken_as(wanted, clause, n, int(prediction[0])))
        status = "unknown" if row.status == "falsified" else row.status
        why = "its worker's counterexample is none"
        return replace(row, status=status, broken=None, remark=_and(row.remark, why))


def _and(remark: str, more: str) -> str:
    return f"{remark}; {more}" if remark else more
