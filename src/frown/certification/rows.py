"""The row of every input of a batch, in the end or on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from frown.certification.agreement import Compared
from frown.certification.certificates import Kept, sha256_of
from frown.certification.findings import Findings, joined
from frown.certification.results import Row
from frown.certification.statement import input_digest
from frown.methods.branch.method import Branch
from frown.problem.property import LabelWins, Property


def rows_of(
    findings: Findings, compared: Compared, kept: Kept, method: str, seconds: float
) -> list[Row]:
    """A row for every input of a batch as it stands."""
    begun, bracket, broken = findings.begun, findings.searched.bracket, findings.broken
    regions, wanted = begun.problem.regions, begun.problem.property
    place = {int(n): k for k, n in enumerate(begun.right)}
    radii, margins = findings.radius, findings.margins
    admitted = wanted.admits(torch.from_numpy(begun.prediction))
    remarks = joined(findings.remarks, compared.remarks, kept.remarks)
    rows = []
    for n in range(len(regions)):
        end = float(broken.radius[n])
        radius, failed = 0.0, None
        known: dict[int, float] = {}
        status, remark = "misclassified", remarks.get(n, "")
        level = "checked" if n in kept.checked else findings.level
        if n in compared.mismatch:
            status, level, remark = "mismatch", "estimate", compared.mismatch[n]
        elif n in place:
            k = place[n]
            radius = float(radii[k])
            if radius > 0:
                known = dict(zip(rivals(wanted, n), margins[k].tolist(), strict=True))
            asked = None if regions.radius is None else float(regions.radius[n])
            if asked is not None:
                radius = min(radius, asked)
            top = float(bracket.failed[k])
            failed = None if np.isinf(top) else top
            whole = radius > 0 and findings.everywhere(k)
            point = asked == 0  # the claim is about the input alone
            held = not point or findings.held(k)
            if (radius == 0 and float(bracket.proved[k]) > 0) or not held:
                remark = findings.nothing(n)
            if end <= radius and not findings.rigorous:
                # Rounding has fooled the estimate: nothing is left of it.
                radius, known, whole, held = 0.0, {}, False, False
            elif end <= radius:
                # The proof is of the real-valued network, the counterexample of its execution. Any
                # smaller radius is proved as well, and below `end` nothing speaks against it.
                radius, whole = float(np.nextafter(end, 0.0)), False
                held = held and radius > 0
            status = status_of(radius, whole, held, end, asked)
        elif bool(admitted[n]):
            if end > 0:
                status = "unknown"  # too close to a tie for this precision
            elif isinstance(wanted, LabelWins):
                remark = "a tie: another class scores as high as the label"
            else:
                remark = "the property does not hold at the input itself"
        before = findings.searched.unbranched if method == Branch.name else None
        label, prediction, target = classes_of(wanted, n, int(begun.prediction[n]))
        rows.append(
            Row(
                index=int(regions.index[n]),
                label=label,
                prediction=prediction,
                target=target,
                norm=regions.p,
                method=method,
                status=status,
                radius=radius,
                failed=failed,
                broken=None if np.isinf(end) else end,
                margins=known,
                seconds=seconds / max(1, len(regions)),
                complete=findings.complete and place.get(n) not in findings.searched.early,
                level=level,
                remark=remark,
                certificate=kept.files.get(n, ""),
                certificate_sha256=sha256_of(findings.certificates.get(n))
                if n in kept.files
                else "",
                deployed=findings.execution,
                frames=regions.moving(n),
                input=input_digest(regions.x[n]),
                id=regions.ids[n] if regions.ids else "",
                broken_as=None
                if np.isinf(end)
                else broken_as(wanted, broken.clause, n, int(begun.prediction[n])),
                leaves=findings.leaves(place[n]) if radius > 0 and n in place else 0,
                # What lies within a proved radius is proved, whoever found it first.
                radius_before=None
                if before is None or n not in place
                else min(radius, float(before.proved[place[n]])),
                broken_before=None
                if before is None or np.isinf(before.broken[n])
                else float(before.broken[n]),
            )
        )
    return rows


def classes_of(
    wanted: Property, n: int, prediction: int
) -> tuple[int | None, int | None, int | None]:
    """Label, prediction and target of input n; None where the property is about no class, or the
    label is to win over all others."""
    labels = wanted.labels()
    if labels is None:
        return None, None, None
    one = wanted.only if isinstance(wanted, LabelWins) else None
    return int(labels[n]), prediction, None if one is None else int(one[n, 0])


def broken_as(
    wanted: Property, clause: Mapping[int, int | None], n: int, prediction: int
) -> int | None:
    """The class that overtakes the label at a counterexample of input n: that of the clause which
    it violates most, by input, or at the input itself. None: it is a tie in which argmax names the
    label, or the property is not about labels."""
    if not isinstance(wanted, LabelWins):
        return None
    if n in clause:
        most = clause[n]
        return None if most is None else rivals(wanted, n)[most]
    if wanted.only is not None:  # the input itself, which only the target must not take
        return int(wanted.only[n, 0])
    return prediction if prediction != int(wanted.label[n]) else None


def rivals(wanted: Property, n: int) -> list[int]:
    """The names of input n's margins: other classes, or the clauses' numbers."""
    if isinstance(wanted, LabelWins):
        return [int(c) for c in wanted.targets[n]]
    return list(range(wanted.clauses))


def status_of(radius: float, whole: bool, held: bool, broken: float, eps: float | None) -> str:
    """The status of a row with a proved radius: `whole` if it is all of the valid range, `held`
    if the property is proved there, `eps` the one that was asked about."""
    if eps is not None:
        if held and (radius >= eps or (whole and radius > 0)):
            return "certified"
        return "falsified" if broken <= eps else "unknown"
    if whole:
        return "robust"
    return "certified" if radius > 0 else "unknown"
