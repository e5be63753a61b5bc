"""A query's proof: boxes with clauses, each with its own certificate, that leave no case open.

Proved: if all parts are accepted and `uncovered` finds no case, no input satisfies the query, for
the real-valued network. For let an input satisfy it: then it lies in the box of some case and
satisfies all its constraints (`query`). Some part's box contains that of the case, so one literal
of each of its clauses is above 0 at the input. But of one clause every literal is at most s times
the left side of one of the case's constraints there, with an s > 0, and that is at most 0.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from pathlib import Path

from frown_check.balls import Array
from frown_check.checker import BROKEN, MOST_FILE, Loader, checked
from frown_check.container import MOST_PAYLOAD, Certificate, Literals
from frown_check.errors import Refused, refuse_if
from frown_check.files import content
from frown_check.query import Box, Case, Constraint, Query, read_query, short
from frown_check.replay import Progress

MAGIC = b"FROWNQ01"
MOST_PARTS = 2**20
MOST_TRIED = 2**24  # clauses, for all cases together


def parts_of(file: bytes) -> list[bytes]:
    """The certificates that a file of them consists of; Refused where it is none."""
    refuse_if(file[: len(MAGIC)] != MAGIC, "not a proof of a query that is read here")
    refuse_if(len(file) < 12, "the proof is cut off")
    (count,) = struct.unpack_from("<I", file, 8)
    refuse_if(count > MOST_PARTS, f"the proof has more than {MOST_PARTS} parts")
    found, at = [], 12
    for _ in range(count):
        refuse_if(at + 8 > len(file), "the proof is cut off")
        (size,) = struct.unpack_from("<Q", file, at)
        refuse_if(at + 8 + size > len(file), "the proof is cut off")
        found.append(file[at + 8 : at + 8 + size])
        at += 8 + size
    refuse_if(at != len(file), "something follows the proof")
    return found


@dataclass(frozen=True, slots=True)
class Literal:
    """outputs . y + inputs . x + const > 0, exactly, with the coefficients that are not 0."""

    coef: dict[int, Fraction]  # inputs first, as in a `Constraint`
    const: Fraction


class Part:
    """An accepted certificate: a box, and clauses that hold in it."""

    def __init__(self, certificate: Certificate, query: Query) -> None:
        given, region = certificate.literals, certificate.region
        refuse_if(given is None or not region.exact, "a part is not about a box and literals")
        refuse_if(certificate.normalisation is not None, "a part is about scaled inputs")
        assert given is not None and region.lower is not None and region.upper is not None
        _require_shapes(certificate.shape, query)
        refuse_if(
            len(region.lower) != query.inputs or given.coef.shape[1] != query.outputs,
            f"a part is about {len(region.lower)} inputs and {given.coef.shape[1]} outputs, the "
            f"query about {query.inputs} and {query.outputs}",
        )
        self.low, self.high = _exactly(region.lower), _exactly(region.upper)
        self.clauses: list[list[Literal]] = [[] for _ in range(int(given.clause[-1]) + 1)]
        for t, clause in enumerate(given.clause.tolist()):
            self.clauses[clause].append(_literal(given, t, query.inputs))
        # By what their literals say of outputs, for which there is no rounding.
        self.known: dict[frozenset[Key], list[int]] = defaultdict(list)
        for k, clause in enumerate(self.clauses):
            self.known[frozenset(_key(one.coef, query.inputs) for one in clause)].append(k)

    def contains(self, box: Box) -> bool:
        """True if all of a box lies in the part's own."""
        return all(a <= b for a, b in zip(self.low, box.lower, strict=True)) and all(
            a >= b for a, b in zip(self.high, box.upper, strict=True)
        )


Key = tuple[tuple[int, Fraction], ...]


def _exactly(values: Array) -> list[Fraction]:
    return [Fraction(v) for v in values.tolist()]


def _require_shapes(shape: Sequence[int], query: Query) -> None:
    """Refuse tensors whose entries might be meant in another order; axes of 1 move none."""
    if query.shapes is None:
        return
    first, last = ([n for n in one if n != 1] for one in query.shapes)
    refuse_if(first != [n for n in shape if n != 1], "the query declares inputs of another shape")
    refuse_if(len(last) > 1, "the query declares outputs of several axes, which are not compared")


def _literal(given: Literals, t: int, inputs: int) -> Literal:
    coef = {inputs + k: Fraction(c) for k, c in enumerate(given.coef[t].tolist()) if c}
    if given.inputs is not None:
        coef |= {k: Fraction(c) for k, c in enumerate(given.inputs[t].tolist()) if c}
    return Literal(coef, Fraction(float(given.const[t])))


def _key(coef: dict[int, Fraction], inputs: int) -> Key:
    """Coefficients of outputs, up to a positive factor."""
    own = sorted((k, c) for k, c in coef.items() if k >= inputs)
    return tuple((k, c / abs(own[0][1])) for k, c in own)


def uncovered(query: Query, parts: Sequence[Part]) -> tuple[int, Case | None]:
    """The number of cases looked at and the first that no part refutes; None: there is none."""
    count, tried = 0, 0
    around: dict[Box, list[Part]] = {}
    for count, case in enumerate(query.cases(), 1):
        box = case.box
        if box not in around:
            around[box] = [part for part in parts if part.contains(box)]
        key = frozenset(_key(dict(one.coef), query.inputs) for one in case.constraints)
        for part in around[box]:
            likely = part.known.get(key, [])
            tried += len(likely)
            refuse_if(tried > MOST_TRIED, "the proof has too many clauses that look alike")
            if any(_refutes(part.clauses[k], case, query.inputs) for k in likely):
                break
        else:
            return count, case
    return count, None


def _refutes(clause: list[Literal], case: Case, inputs: int) -> bool:
    """True if every literal of a clause is not above 0 where all constraints of a case hold."""
    return all(
        any(_implied(literal, one, case.box, inputs) for one in case.constraints)
        for literal in clause
    )


def _implied(literal: Literal, one: Constraint, box: Box, inputs: int) -> bool:
    """True if a literal is at most s (c . v + d) on a box, for the s > 0 by which the coefficients
    of the last variable differ, where c . v + d <= 0 is a constraint.

    Outputs must have the very same coefficients, times s; what those of inputs differ by counts
    with its least value over the box.
    """
    last, c = one.coef[-1]
    scale = literal.coef.get(last, Fraction(0)) / c
    if scale <= 0:
        return False
    wanted = {k: scale * own for k, own in one.coef}
    least = scale * one.const
    for k in wanted.keys() | literal.coef.keys():
        off = wanted.get(k, Fraction(0)) - literal.coef.get(k, Fraction(0))
        if off and k >= inputs:
            return False
        if off:
            least = short(least + min(off * box.lower[k], off * box.upper[k]))
    return literal.const <= least


@dataclass(frozen=True, slots=True)
class QueryVerdict:
    """Accepted: no input satisfies the query, for the real-valued network of the model's file.

    `reason` is empty if accepted; digests are of the files that were read.
    """

    accepted: bool
    reason: str
    parts: int = 0  # boxes with certificates
    cases: int = 0  # of the query, that some input of their box may satisfy
    margin: float | None = None  # the least proved
    leaves: int = 0
    query: str = ""  # SHA-256 of its file
    model: str = ""  # of the model's
    elements: tuple[str, ...] = ()  # types that the query declares


def check_query(
    proof: bytes | str | Path,
    model: str | Path,
    query: bytes | str | Path,
    progress: Progress = lambda done: None,
    most_payload: int = MOST_PAYLOAD,
) -> QueryVerdict:
    """Replay the proof that no input satisfies a query, given as bytes or a path, for the model in
    a file; the query is a VNN-LIB file or its bytes.

    Never raises for what is in the files: whatever is wrong with them is the verdict's reason.
    """
    verdict = QueryVerdict(False, "")
    try:
        given = query if isinstance(query, bytes) else content(Path(query), MOST_FILE)
        verdict = replace(verdict, query=hashlib.sha256(given).hexdigest())
        asked = read_query(given)
        verdict = replace(verdict, elements=asked.elements)
        held = proof if isinstance(proof, bytes) else content(Path(proof), MOST_FILE)
        parts, least, files, loader = [], inf, parts_of(held), Loader(Path(model))
        for k, part in enumerate(files):

            def told(done: float, before: int = k) -> None:
                progress((before + done) / len(files))

            found, certificate = checked(part, loader, told, most_payload)
            if not found.accepted or certificate is None or found.margin is None:
                raise Refused(f"part {k}: {found.reason}")
            parts.append(Part(certificate, asked))
            least = min(least, found.margin)
            verdict = replace(verdict, parts=k + 1, leaves=verdict.leaves + found.leaves)
            verdict = replace(verdict, model=certificate.digest, margin=least)
        count, case = uncovered(asked, parts)
        verdict = replace(verdict, cases=count)
        if case is not None:
            raise Refused(f"case {count - 1} of the query, counted from 0, is refuted by no part")
    except Refused as reason:
        return replace(verdict, reason=str(reason))
    except MemoryError:
        return replace(verdict, reason="there is not enough memory to check it")
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return replace(verdict, reason=f"{BROKEN}: {type(error).__name__}: {error}")
    return replace(verdict, accepted=True)
