"""One tampered certificate, and whether what the checker makes of it is a failure.

Three kinds of trials:

- "lie": the statement is false, which a point of its region shows; the proof may be changed too.
  Accepting it is a failure.
- "model": the certificate is as it was, the model is another file. Accepting it is a failure.
- "noise": anything may have changed, of a valid certificate or of a lie. What is accepted must be
  what the file says by a parser of our own, not refuted by any witness, and
    "same"     the statement that was proved (the changes were of its proof), or
    "weaker"   implied by it (`Statement.implied_by`), or
    "another"  proved by frown's own rigorous engine, which shares no code with the checker.
  Anything else that is accepted is a failure.

In all of them the checker must not raise, and two statements never have one digest.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import asking
import frown
import frown_check
from tamper.bases import SURE, Base, run, session
from tamper.lies import LIES, Told, edited
from tamper.proofs import CHANGES, OF_THE_PROOF, noise
from tamper.statement import Statement, claimed, opened, stated

KINDS = ("lie", "lie", "lie", "lie", "lie", "lie", "model", "noise", "noise", "noise")
REFUSED, SAME, WEAKER, ANOTHER = "refused", "same", "weaker", "another"


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str  # of the trial
    what: str  # was changed
    verdict: str  # REFUSED, SAME, WEAKER, ANOTHER, or what went wrong
    failed: bool
    reason: str = ""  # of the refusal
    content: bytes = b""


def attempt(bases: list[Base], folder: Path, seed: list[int]) -> Outcome:
    """The trial of a seed; `folder` is for changed models."""
    rng = np.random.default_rng(seed)
    base = bases[int(rng.integers(len(bases)))]
    kind = str(rng.choice(KINDS))
    if kind == "model":
        return _other_model(base, bases, folder, rng)
    if kind == "lie":
        what, content, model = _lie(base, rng)
        return _judged(base, kind, what, content, model, folder)
    what, content, model = ["truth"], base.content, base.model_bytes
    if rng.integers(2):
        what, content, model = _lie(base, rng, doubts=True)
    while True:
        changed, how = content, []
        if rng.integers(4):
            how, changed = _changed(changed, rng, list(CHANGES), int(rng.integers(1, 4)))
        if not how or not rng.integers(4):
            name, changed = noise(changed, rng)
            how.append(name)
        if changed != base.content:
            return _judged(base, kind, what + how, changed, model, folder)


def _lie(base: Base, rng: Any, doubts: bool = False) -> tuple[list[str], bytes, bytes]:
    """A false certificate and its model; with `doubts`, perhaps one that is not quite false."""
    while True:
        name = str(rng.choice(list(LIES)))
        told: Told | None = LIES[name](base, opened(base.content), rng)
        if told is None:
            continue
        content = told.draft.file()
        net = base.session if told.model == base.model_bytes else session(told.model)
        if not doubts and not base.refuted(stated(content), net):
            continue
        how, content = _changed(content, rng, OF_THE_PROOF, int(rng.integers(0, 4)))
        return [name, *how], content, told.model


def _changed(content: bytes, rng: Any, names: list[str], count: int) -> tuple[list[str], bytes]:
    """`count` changes of the proof, or fewer where one leaves nothing for the next to read."""
    draft, how = opened(content), []
    for name in rng.choice(names, count):
        try:
            CHANGES[str(name)](draft, rng)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            continue  # an earlier change took away what this one reads
        how.append(str(name))
    return how, draft.file()


def _other_model(base: Base, bases: list[Base], folder: Path, rng: Any) -> Outcome:
    if rng.integers(2):
        model = bases[int(rng.integers(len(bases)))].model_bytes
    else:
        data = bytearray(edited(base, rng) if rng.integers(2) else base.model_bytes)
        for _ in range(int(rng.integers(3))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        model = bytes(data)
    if model == base.model_bytes:
        model += b"\0"
    path = folder / "changed.onnx"
    path.write_bytes(model)
    verdict = frown_check.check(base.content, path)
    said = REFUSED if not verdict.accepted else "accepted for another model"
    return Outcome("model", str(base.kind), said, verdict.accepted, verdict.reason, base.content)


def _judged(
    base: Base, kind: str, what: list[str], content: bytes, model: bytes, folder: Path
) -> Outcome:
    path, mine = base.path, model == base.model_bytes
    if not mine:
        path = folder / "changed.onnx"
        path.write_bytes(model)
    text = f"{base.kind}: {', '.join(what)}"
    try:
        verdict = frown_check.check(content, path)
    except Exception:  # of any kind: the checker promises none
        return Outcome(kind, text, traceback.format_exc(), True, "", content)
    if not verdict.accepted:
        return Outcome(kind, text, REFUSED, False, verdict.reason, content)
    said = _accepted(base, kind, verdict.claim, content, path)
    return Outcome(kind, text, said, said not in (SAME, WEAKER, ANOTHER), "", content)


def _accepted(base: Base, kind: str, claim: Any, content: bytes, path: Path) -> str:
    if kind == "lie":
        return "accepted, though it is false"
    found, old = claimed(claim), base.statement
    try:
        if found != stated(content):
            return "accepted as something else than the file says"
    except ValueError as error:
        return f"accepted, though the file can be read in several ways: {error}"
    loaded = base.loaded if path == base.path else frown.load(path)
    net = base.session if path == base.path else session(path.read_bytes())
    if base.refuted(found, net):
        return "accepted, though a witness refutes it"
    if found == old:
        return SAME
    original = frown_check.check(base.content, base.path).claim
    assert original is not None
    if claim.statement == original.statement:
        return "accepted with the digest of another statement"
    if found.implied_by(old):
        return WEAKER
    return ANOTHER if proved(base, found, loaded, net) else "accepted, and not proved by frown"


def proved(base: Base, s: Statement, loaded: frown.Model, net: Any) -> bool:
    """Whether frown's rigorous engine proves a statement about a file as well."""
    if loaded.digest != s.digest:
        return False
    y = run(net, (s.centre[None] - s.mean) / s.std)[0]
    if min(y[s.label] - y[o] for o in s.others) < -SURE:
        return False
    moving = s.scale > 0
    if s.radius == 0 or not moving.any():
        return all(y[s.label] - y[o] > SURE for o in s.others)
    norm, options = s.p, dict[str, Any]()
    if len(np.unique(s.ball[moving])) > 1 and s.p != inf:
        if (s.ball == base.statement.ball).all() and base.kind.options.get("frames") == "each":
            options = {"frames": "each"}
        else:
            norm = inf  # the box around it
    ranged = np.isfinite(s.lower).all()
    model = loaded.normalised(s.mean, s.std)
    asked = {"norm": norm, "scale": s.scale, **options}
    if "curved" in base.kind.options:
        asked["curved"] = base.kind.options["curved"]
    if ranged:
        asked["bounds"] = (s.lower, s.upper)

    def reached(other: int, **how: Any) -> bool:
        how["attack"] = False
        row = asking.certify(model, s.centre[None], [s.label], target=other, **asked, **how).rows[0]
        return row.level == "rigorous" and row.radius >= s.radius

    if y.argmax() != s.label:  # a third class wins: the answer is wrong, the statement need not be
        coef = np.zeros((len(s.others), len(y)))
        coef[:, s.label] = 1
        coef[np.arange(len(s.others)), list(s.others)] = -1
        found = asking.bound(
            model, s.centre[None], eps=s.radius, coef=coef, method="frown", **asked
        )
        return bool((found.lower > SURE).all())

    ways: list[dict[str, Any]] = [
        {"method": "crown", "eps": s.radius},
        {"method": "frown", "eps": s.radius},
        {"method": "frown", "eps": s.radius, "steps": 200},
        {"method": "frown", "tol": 1e-4, "steps": 300},  # warm starts get farther
    ]
    return all(any(reached(o, **how) for how in ways) for o in s.others)
