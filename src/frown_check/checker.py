"""One certificate against one model: accepted, or the first step that fails."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frown_check.balls import Array, Index, require_ieee
from frown_check.container import MOST_PAYLOAD, Certificate, read
from frown_check.errors import Refused
from frown_check.files import content
from frown_check.model import load
from frown_check.replay import Progress, Replay

MOST_FILE = 2**30
BROKEN = "the checker cannot follow it"  # a fault of the checker's own, and no proof either


@dataclass(frozen=True, slots=True)
class Claim:
    """output[label] > output[o] for every o in `others` and every x with lower <= x <= upper and,
    for every ball b, ||((x - centre) / scale)_b||_norm <= radius; arrays in the input's shape."""

    digest: str
    external: tuple[tuple[str, str], ...]  # digests of files beside the model
    label: int
    others: tuple[int, ...]
    norm: float
    radius: float
    centre: Array
    scale: Array  # 0: the feature is fixed
    ball: Index  # features of one number form one ball
    lower: Array | None  # the valid range
    upper: Array | None
    mean: Array | None  # the network is applied to (x - mean) / std
    std: Array | None

    @staticmethod
    def of(certificate: Certificate) -> Claim:
        region = certificate.region
        mean, std = certificate.normalisation or (None, None)

        def shaped(field: Array | None) -> Array | None:
            return None if field is None else field.reshape(certificate.shape)

        return Claim(
            certificate.digest,
            tuple(sorted(certificate.external.items())),
            certificate.label,
            certificate.others,
            region.p,
            region.radius,
            region.centre.reshape(certificate.shape),
            region.scale.reshape(certificate.shape),
            region.ball.reshape(certificate.shape),
            *map(shaped, (region.lower, region.upper, mean, std)),
        )

    @property
    def clipped(self) -> bool:
        """Whether x stays in a valid range."""
        return self.lower is not None

    @property
    def scaled(self) -> bool:
        """Whether features move by different amounts, or in several balls."""
        return bool((self.scale != 1).any() or (self.ball != 0).any())

    @property
    def normalised(self) -> bool:
        return self.mean is not None

    @property
    def input(self) -> str:
        """SHA-256 of the centre as little-endian doubles: compare it with your own input's."""
        return hashlib.sha256(self.centre.astype("<f8").tobytes()).hexdigest()

    @property
    def statement(self) -> str:
        """SHA-256 of everything that is claimed: another statement has another one."""
        arrays = (self.centre, self.scale, self.ball, self.lower, self.upper, self.mean, self.std)
        given = [field for field in arrays if field is not None]
        there = (self.centre.shape, self.clipped, self.normalised)
        claim = (self.digest, self.external, self.label, self.others)
        numbers = (float(self.norm).hex(), self.radius.hex())
        digest = hashlib.sha256(repr((claim, numbers, there)).encode())
        for field in given:
            digest.update(field.astype("<f8").tobytes())
        return digest.hexdigest()


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
            if not isinstance(certificate, bytes):
                certificate = content(Path(certificate), MOST_FILE)
            found = read(certificate, most_payload)
            claim = Claim.of(found)
            network = load(Path(model), found.digest, found.external, found.normalisation)
            if network.shape != found.shape:
                raise Refused(f"the input has shape {network.shape}, not {found.shape}")
            margins = Replay(network, found, progress).margins()
    except Refused as reason:
        return Verdict(False, str(reason), claim)
    except MemoryError:
        return Verdict(False, "there is not enough memory to replay it", claim)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return Verdict(False, f"{BROKEN}: {type(error).__name__}: {error}", claim)
    proved = np.isfinite(margins) & (margins > 0)
    worst = float(np.min(margins))
    if proved.all():
        return Verdict(True, "", claim, worst)
    other = claim.others[int(np.argmin(proved))]
    bound = f"its lower bound is {margins[~proved][0]:.6g}"
    return Verdict(False, f"the margin over class {other} is not proved: {bound}", claim, worst)
