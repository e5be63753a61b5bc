"""One certificate against one model: accepted, or the first step that fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frown_check.balls import require_ieee
from frown_check.container import MOST_PAYLOAD, Certificate, read
from frown_check.errors import Refused
from frown_check.model import load
from frown_check.replay import Progress, Replay

MOST_FILE = 2**30


@dataclass(frozen=True, slots=True)
class Claim:
    """output[label] > output[o] for every o in `others` and every x of the region."""

    digest: str
    label: int
    others: tuple[int, ...]
    norm: float
    radius: float
    centre: np.ndarray[tuple[int, ...], np.dtype[np.float64]]  # in the input's shape
    clipped: bool  # to a valid range
    scaled: bool  # features move by different amounts, or in several balls
    normalised: bool

    @staticmethod
    def of(certificate: Certificate) -> Claim:
        region = certificate.region
        return Claim(
            certificate.digest,
            certificate.label,
            certificate.others,
            region.p,
            region.radius,
            region.centre.reshape(certificate.shape),
            region.lower is not None,
            bool((region.scale != 1).any() or (region.ball != 0).any()),
            certificate.normalisation is not None,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is empty if accepted; `margin` is the least of the margins proved, if it came to
    that; `claim` is None where the file could not be read."""

    accepted: bool
    reason: str
    claim: Claim | None = None
    margin: float | None = None


def check(
    certificate: bytes | str | Path,
    model: str | Path,
    progress: Progress = lambda done: None,
    most_payload: int = MOST_PAYLOAD,
) -> Verdict:
    """Replay a certificate, given as bytes or a path, for the model in a file.

    Never raises for what is in the files: whatever is wrong with them is the verdict's reason.
    """
    claim = None
    try:
        require_ieee()
        with np.errstate(all="ignore"):
            content = certificate if isinstance(certificate, bytes) else _bytes(Path(certificate))
            found = read(content, most_payload)
            claim = Claim.of(found)
            network = load(Path(model), found.digest, found.external, found.normalisation)
            if network.shape != found.shape:
                raise Refused(f"the input has shape {network.shape}, not {found.shape}")
            margins = Replay(network, found, progress).margins()
    except Refused as reason:
        return Verdict(False, str(reason), claim)
    except MemoryError:
        return Verdict(False, "there is not enough memory to replay it", claim)
    proved = margins > 0  # False for NaN
    worst = float(np.min(margins))
    if proved.all():
        return Verdict(True, "", claim, worst)
    other = claim.others[int(np.argmin(proved))]
    bound = f"its lower bound is {margins[~proved][0]:.6g}"
    return Verdict(False, f"the margin over class {other} is not proved: {bound}", claim, worst)


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > MOST_FILE:
            raise Refused(f"{path} is no file, or too large")
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
