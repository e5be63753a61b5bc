"""One certificate against one model: accepted, or the first step that fails."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path

import numpy as np

from frown_check.balls import Array, Index, require_ieee
from frown_check.container import MOST_PAYLOAD, Certificate, read
from frown_check.errors import Refused
from frown_check.files import content
from frown_check.graph import Network
from frown_check.model import load
from frown_check.replay import Progress, Replay

MOST_FILE = 2**30
BROKEN = "the checker cannot follow it"  # a fault of the checker's own, and no proof either


@dataclass(frozen=True, slots=True)
class Claim:
    """output[label] > output[o] for every o in `others`, or one literal coef . outputs + inputs . x
    + const > 0 of every clause, for every x with lower <= x <= upper and, unless the region is that
    box alone, for every ball b: ||((x - centre) / scale)_b||_norm <= radius; arrays in the input's
    shape."""

    digest: str
    external: tuple[tuple[str, str], ...]  # digests of files beside the model
    label: int | None  # None: see the literals
    others: tuple[int, ...]
    norm: float
    radius: float  # NaN: the region is the box from lower to upper alone
    centre: Array  # of a box its middle, rounded
    scale: Array  # 0: the feature is fixed
    ball: Index  # features of one number form one ball
    lower: Array | None  # the valid range
    upper: Array | None
    mean: Array | None  # the network is applied to (x - mean) / std
    std: Array | None
    coef: Array | None = None  # (literals, outputs)
    const: Array | None = None  # (literals,)
    clause: Index | None = None  # (literals,)
    inputs: Array | None = None  # (literals, features); None: all 0

    @staticmethod
    def of(certificate: Certificate) -> Claim:
        region, literals = certificate.region, certificate.literals
        mean, std = certificate.normalisation or (None, None)
        centre, scale = region.centre, region.scale
        if region.exact:
            low, high = region.box
            centre, scale = low / 2 + high / 2, (low < high).astype(np.float64)

        def shaped(field: Array | None) -> Array | None:
            return None if field is None else field.reshape(certificate.shape)

        claim = Claim(
            certificate.digest,
            tuple(sorted(certificate.external.items())),
            certificate.label,
            certificate.others,
            region.p,
            nan if region.exact else region.radius,
            centre.reshape(certificate.shape),
            scale.reshape(certificate.shape),
            region.ball.reshape(certificate.shape),
            *(shaped(region.lower), shaped(region.upper), shaped(mean), shaped(std)),
        )
        if literals is None:
            return claim
        claim = replace(claim, coef=literals.coef, const=literals.const, clause=literals.clause)
        return replace(claim, inputs=literals.inputs)

    @property
    def box(self) -> bool:
        """Whether the region is a box of given ends, and no ball."""
        return isnan(self.radius)

    @property
    def clipped(self) -> bool:
        """Whether x stays in a valid range."""
        return self.lower is not None

    @property
    def scaled(self) -> bool:
        """Whether features move by different amounts, or in several balls."""
        return self.box or bool((self.scale != 1).any() or (self.ball != 0).any())

    @property
    def clauses(self) -> int:
        """How many clauses are claimed."""
        return len(self.others) if self.clause is None else int(self.clause[-1]) + 1

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
        given = [*(field for field in arrays if field is not None)]
        there: tuple[object, ...] = (self.centre.shape, self.clipped, self.normalised)
        if self.coef is not None and self.const is not None and self.clause is not None:
            given += [self.coef, self.const, self.clause]
            there = (*there, self.coef.shape)
            if self.inputs is not None:
                given, there = [*given, self.inputs], (*there, "inputs")
        claim = (self.digest, self.external, self.label, self.others)
        numbers = (float(self.norm).hex(), self.radius.hex())
        digest = hashlib.sha256(repr((claim, numbers, there)).encode())
        for field in given:
            digest.update(field.astype("<f8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is empty if accepted; `margin` is the least of the margins proved, if it came to
    that; `claim` is None where the file could not be read; `leaves` are the cases of its trees."""

    accepted: bool
    reason: str
    claim: Claim | None = None
    margin: float | None = None
    leaves: int = 0


def check(
    certificate: bytes | str | Path,
    model: str | Path,
    progress: Progress = lambda done: None,
    most_payload: int = MOST_PAYLOAD,
) -> Verdict:
    """Replay a certificate, given as bytes or a path, for the model in a file.

    Never raises for what is in the files: whatever is wrong with them is the verdict's reason.
    """
    return checked(certificate, Loader(Path(model)), progress, most_payload)[0]


class Loader:
    """A model's network, which certificates of one query share."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.known: tuple[object, Network] | None = None

    def network(self, found: Certificate) -> Network:
        """The network that a certificate is about, of the digests that it says."""
        ordered = found.label is not None  # the claim compares outputs, and no more
        files = (found.digest, found.external)
        if found.normalisation is not None:
            return load(self.model, *files, found.normalisation, ordered)
        if self.known is None or self.known[0] != (files, ordered):
            self.known = (files, ordered), load(self.model, *files, None, ordered)
        return self.known[1]


def checked(
    certificate: bytes | str | Path, loader: Loader, progress: Progress, most_payload: int
) -> tuple[Verdict, Certificate | None]:
    """The verdict on a certificate, and what it was read as."""
    claim = found = None
    try:
        require_ieee()
        with np.errstate(all="ignore"):
            if not isinstance(certificate, bytes):
                certificate = content(Path(certificate), MOST_FILE)
            found = read(certificate, most_payload)
            claim = Claim.of(found)
            network = loader.network(found)
            if network.shape != found.shape:
                raise Refused(f"the input has shape {network.shape}, not {found.shape}")
            replay = Replay(network, found, progress)
            margins, leaves = replay.margins(), replay.leaves
    except Refused as reason:
        return Verdict(False, str(reason), claim), found
    except MemoryError:
        return Verdict(False, "there is not enough memory to replay it", claim), found
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return Verdict(False, f"{BROKEN}: {type(error).__name__}: {error}", claim), found
    proved = np.isfinite(margins) & (margins > 0)
    worst = float(np.min(margins))
    if proved.all():
        return Verdict(True, "", claim, worst, leaves), found
    first = int(np.argmin(proved))
    what = (
        f"clause {first} is"
        if claim.label is None
        else f"the margin over class {claim.others[first]} is"
    )
    bound = f"its lower bound is {margins[first]:.6g}"
    where = f" at every one of {leaves} leaves" if leaves else ""
    return Verdict(False, f"{what} not proved{where}: {bound}", claim, worst, leaves), found
