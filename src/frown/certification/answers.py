"""What is said of every input of a batch, in the end or on the way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frown.certification.batch import Batch
from frown.certification.results import Row


def answers(batch: Batch, method: str, outputs: int, eps: NDArray[np.float64] | None) -> list[Row]:
    """A row for every input of a batch as it stands; `outputs` is how many the network has."""
    query, bracket = batch.query, batch.bracket
    targets = query.targets(outputs)
    place = {int(n): k for k, n in enumerate(batch.right)}
    share = batch.seconds / max(1, len(query))
    rows = []
    for n in range(len(query)):
        broken = float(batch.broken[n])
        radius, failed = 0.0, None
        margins: dict[int, float] = {}
        status, remark = "misclassified", batch.remark.get(n, "")
        level = "checked" if n in batch.checked else batch.level
        if n in batch.mismatch:
            status, level, remark = "mismatch", "estimate", batch.mismatch[n]
        elif n in place:
            k = place[n]
            radius, margins = batch.proof(k, targets[n].tolist())
            if eps is not None:
                radius = min(radius, float(eps[n]))
            top = float(bracket.failed[k])
            failed = None if np.isinf(top) else top
            whole = radius > 0 and batch.everywhere(k)
            point = eps is not None and eps[n] == 0  # the claim is about the input alone
            held = not point or batch.held(k)
            if (radius == 0 and float(bracket.proved[k]) > 0) or not held:
                remark = batch.nothing
            if broken <= radius and batch.rigorous is None:
                # Rounding has fooled the estimate: nothing is left of it.
                radius, margins, whole, held = 0.0, {}, False, False
            elif broken <= radius:
                # The proof is of the real-valued network, the counterexample of its execution. Any
                # smaller radius is proved as well, and below `broken` nothing speaks against it.
                radius, whole = float(np.nextafter(broken, 0.0)), False
                held = held and radius > 0
            one = None if eps is None else float(eps[n])
            status = _status(radius, whole, held, broken, one)
        elif batch.prediction[n] == query.label[n]:
            if broken > 0:
                status = "unknown"  # too close to a tie for this precision
            else:
                remark = "a tie: another class scores as high as the label"
        rows.append(
            Row(
                index=int(batch.index[n]),
                label=int(query.label[n]),
                prediction=int(batch.prediction[n]),
                target=None if query.target is None else int(query.target[n]),
                norm=query.p,
                method=method,
                status=status,
                radius=radius,
                failed=failed,
                broken=None if np.isinf(broken) else broken,
                margins=margins,
                seconds=share,
                complete=batch.complete,
                level=level,
                remark=remark,
                certificate=batch.certificate_file.get(n, ""),
                deployed=batch.deployed,
                frames="all" if query.frames is None else query.frames.name,
            )
        )
    return rows


def _status(radius: float, whole: bool, held: bool, broken: float, eps: float | None) -> str:
    if eps is not None:
        if held and (radius >= eps or (whole and radius > 0)):
            return "certified"
        return "falsified" if broken <= eps else "unknown"
    if whole:
        return "robust"
    return "certified" if radius > 0 else "unknown"
