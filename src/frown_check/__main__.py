"""`python -m frown_check CERT... --model model.onnx`: exit code 0 if all are accepted, else 1."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

from frown_check.checker import Claim, Verdict, check

PATIENCE = 2.0  # seconds before progress is shown


def run(certificates: Sequence[Path], model: Path, as_json: bool = False) -> bool:
    """Print a verdict for each certificate, a folder's in order; whether all were accepted."""
    count = accepted = 0
    for path in _files(certificates):
        start, progress = time.monotonic(), _Progress(str(path))
        verdict = check(path, model, progress)
        progress.clear()
        seconds = time.monotonic() - start
        count, accepted = count + 1, accepted + verdict.accepted
        shown = _json(path, verdict, seconds) if as_json else _text(path, verdict, seconds)
        print(shown, flush=True)
    if count > 1 and not as_json:
        print(f"{count} certificates: {accepted} accepted, {count - accepted} refused")
    return accepted == count


def _files(given: Sequence[Path]) -> Iterator[Path]:
    """A folder's certificates in its place; where it has none it stays, and is refused."""
    for path in given:
        yield from sorted(path.glob("*.frown")) or [path]


class _Progress:
    """Per cent on a terminal, once a replay takes longer."""

    def __init__(self, name: str) -> None:
        self.name, self.next, self.width = name, time.monotonic() + PATIENCE, 0

    def __call__(self, done: float) -> None:
        if sys.stderr.isatty() and time.monotonic() > self.next:
            text = f"{self.name}: {done:4.0%}"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
            self.next, self.width = time.monotonic() + 0.2, len(text)

    def clear(self) -> None:
        """The line is the verdict's."""
        if self.width:
            print(f"\r{' ' * self.width}\r", end="", file=sys.stderr, flush=True)


def _text(path: Path, verdict: Verdict, seconds: float) -> str:
    claim = verdict.claim
    if not verdict.accepted or claim is None:
        return f"{path}: REFUSED: {verdict.reason}"
    where = f"||x - x0||_{claim.norm:g} <= {claim.radius!r}"
    extras = [
        text
        for text, present in (
            (f"within the valid range {_range(claim)}", claim.clipped),
            ("features scaled or in several balls", claim.scaled),
            ("inputs normalised first", claim.normalised),
        )
        if present
    ]
    others = ", ".join(str(o) for o in claim.others)
    tail = f" ({'; '.join(extras)})" if extras else ""
    return (
        f"{path}: accepted: class {claim.label} beats {others} for all {where}{tail}; "
        f"margins > {verdict.margin:.4g}; x0 {claim.input[:12]}, statement {claim.statement[:12]}; "
        f"{seconds:.2f} s"
    )


def _range(claim: Claim) -> str:
    """[0, 1], or that it differs from feature to feature."""
    if claim.lower is None or claim.upper is None:
        return ""
    if (claim.lower == claim.lower.flat[0]).all() and (claim.upper == claim.upper.flat[0]).all():
        return f"[{claim.lower.flat[0]:.17g}, {claim.upper.flat[0]:.17g}]"
    return "of every feature"


def _json(path: Path, verdict: Verdict, seconds: float) -> str:
    claim = verdict.claim
    about = None
    if claim is not None:
        norm = "inf" if claim.norm == float("inf") else claim.norm
        about = {"model": claim.digest, "norm": norm, "others": list(claim.others)}
        for name in ["label", "radius", "input", "statement", "clipped", "scaled", "normalised"]:
            about[name] = getattr(claim, name)
    found = {
        "certificate": str(path),
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "claim": about,
        "margin": verdict.margin if isfinite(verdict.margin or 0.0) else None,
        "seconds": round(seconds, 3),
    }
    return json.dumps(found, allow_nan=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="frown_check", description="Check certificates of robustness, independently of frown."
    )
    parser.add_argument("certificates", nargs="+", type=Path, metavar="CERT", help="or a folder")
    parser.add_argument("--model", required=True, type=Path, help="the ONNX file")
    parser.add_argument("--json", action="store_true", help="one JSON object per certificate")
    options = parser.parse_args(arguments)
    try:
        return 0 if run(options.certificates, options.model, options.json) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
