"""Rows that workers hand over, before they count as the driver's own.

Every row must be about the input that was asked about. Certificates are written here, once, and
checked here where that was asked for. With workers that are not trusted, a level of `checked` rests
on nothing that they say: what no certificate proves is withdrawn, and counterexamples are replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from frown.bounds.arithmetic.charged import farthest
from frown.bounds.work import Clock
from frown.certification.certificates import LATE, OTHER, SUFFIX, Certificates
from frown.certification.procedure import Procedure
from frown.certification.results import Row
from frown.certification.rows import classes_of, status_of
from frown.certification.statement import input_digest
from frown.problem.problem import Problem

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
            or row.method != self.procedure.method.name
        ):
            return self.nothing(n, "its worker answered another question")
        if not self.trusted and row.level == "checked":
            row = replace(row, level="rigorous")  # until it is checked here
        if self.wary:
            row = self._replayed(n, row, point)
        if self.certificates is None:
            return row
        if certificate is None:
            if row.status == "mismatch":  # one of an earlier run says what no longer holds
                (self.certificates.folder / f"{regions.name(n)}{SUFFIX}").unlink(missing_ok=True)
            if self.wary and _proves(row):
                return self._withdrawn(n, row, "its worker sent no certificate")
            return row
        return self._confirmed(n, row, certificate, self.certificates)

    def nothing(self, n: int, why: str) -> Row:
        """The row of an input without an answer."""
        regions, wanted = self.problem.regions, self.problem.property
        prediction = int(wanted.predicted(self.procedure.model.run(regions.x[n][None]))[0])
        label, answer, target = classes_of(wanted, n, prediction)
        return Row(
            index=int(regions.index[n]),
            label=label,
            prediction=answer,
            target=target,
            norm=regions.p,
            method=self.procedure.method.name,
            status="unknown",
            radius=0.0,
            failed=None,
            broken=None,
            margins={},
            seconds=0.0,
            complete=False,
            remark=UNPROVED + why,
            frames=regions.moving(n),
            input=input_digest(regions.x[n]),
        )

    def _confirmed(self, n: int, row: Row, content: bytes, kept: Certificates) -> Row:
        """The row with its certificate written and, if asked to, checked."""
        file = kept.put(self.problem.regions.name(n), content)
        if not kept.check:
            return replace(row, certificate=file.name)
        refused = kept.refused(file, self.problem, n, row.radius, self.clock)
        if refused is None:
            status = row.status if self.trusted else self._proved_status(n, row)
            row = replace(row, status=status, level="checked", certificate=file.name)
        elif self.wary or refused == OTHER:
            row = self._withdrawn(n, row, refused)
        else:
            named = file.name if refused == LATE else ""
            row = replace(row, certificate=named, remark=_and(row.remark, refused))
        if not row.certificate or kept.passing:
            file.unlink(missing_ok=True)
        return replace(row, certificate="") if kept.passing else row

    def _proved_status(self, n: int, row: Row) -> str:
        """The status that follows from a radius, whatever a worker made of it."""
        regions, exact = self.problem.regions.take(np.array([n])), self.procedure.exact
        assert exact is not None
        whole = row.radius >= float(farthest(regions.on(exact.graph))[0])
        end = inf if row.broken is None else row.broken
        asked = None if regions.radius is None else float(regions.radius[0])
        return status_of(row.radius, whole, True, end, asked)

    def _withdrawn(self, n: int, row: Row, why: str) -> Row:
        """The row without what it claims to have proved."""
        radius = self.problem.regions.radius
        found = radius is not None and row.broken is not None and row.broken <= float(radius[n])
        return replace(
            row,
            status="falsified" if found else "unknown",
            radius=0.0,
            failed=None,
            margins={},
            level="estimate",
            certificate="",
            remark=UNPROVED + why,
            deployed="",
            leaves=0,
            radius_before=None,
        )

    def _replayed(self, n: int, row: Row, point: NDArray[np.float64] | None) -> Row:
        """The row with what the original model itself says of the input and the counterexample."""
        regions, wanted, model = self.problem.regions, self.problem.property, self.procedure.model
        outputs = model.run(regions.x[n][None])
        wrong = bool(self.problem.violated(outputs, n)[0])
        prediction = wanted.predicted(outputs)
        wrong |= not bool(wanted.rows(slice(n, n + 1)).admits(torch.from_numpy(prediction))[0])
        label, answer, target = classes_of(wanted, n, int(prediction[0]))
        row = replace(row, label=label, target=target, prediction=answer)
        if row.status == "misclassified" and not wrong:
            row = self._withdrawn(n, row, "its worker called a right answer wrong")
        if row.broken is None or (row.broken == 0 and wrong):
            return row
        if point is not None and point.shape == regions.x[n].shape:
            within = np.array_equal(
                point, np.where(regions.still(n), regions.x[n], regions.clip(n, point))
            )
            errs = self.problem.violated(model.run(point[None]), n)[0]
            if within and errs and regions.distance(n, point) <= row.broken:
                return row
        status = "unknown" if row.status == "falsified" else row.status
        why = "its worker's counterexample is none"
        return replace(
            row, status=status, broken=None, broken_as=None, remark=_and(row.remark, why)
        )


def _proves(row: Row) -> bool:
    return row.radius > 0 or row.status in ("certified", "robust")


def _and(remark: str, more: str) -> str:
    return f"{remark}; {more}" if remark else more
