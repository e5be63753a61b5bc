"""`python -m frown_check CERT... --model model.onnx [--query query.vnnlib]`: exit code 0 if all are
accepted, else 1."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import frown_check.shown as shown
from frown_check.bundle import is_bundle, opened
from frown_check.checker import check
from frown_check.cover import check_query
from frown_check.data import read_data
from frown_check.errors import Refused
from frown_check.shown import mismatch, plain

PATIENCE = 2.0  # seconds before progress is shown


def run(
    certificates: Sequence[Path],
    model: Path,
    as_json: bool = False,
    data: Path | None = None,
    divide: float = 1.0,
    called: Callable[[Path], Path] = Path,
) -> bool:
    """Print a verdict for each certificate, a folder's in order; whether all were accepted and,
    with `data`, are about rows of that file and their labels. `called` are the names to print.
    Refused where a file cannot be read."""
    inputs = None if data is None else read_data(data, divide)
    if inputs is not None and data is not None:
        inputs = replace(inputs, name=str(called(data)))
    count = accepted = others = 0
    for path in _files(certificates):
        start, progress = time.monotonic(), _Progress(str(called(path)))
        verdict = check(path, model, progress)
        progress.clear()
        seconds = time.monotonic() - start
        other = ""
        if inputs is not None and verdict.accepted and verdict.claim is not None:
            other = mismatch(path, verdict.claim, inputs)
        count, accepted = count + 1, accepted + verdict.accepted
        others += bool(other)
        show = shown.as_json if as_json else shown.text
        print(show(called(path), verdict, seconds, inputs, other), flush=True)
    if count > 1 and not as_json:
        apart = f", {others} about other inputs or labels" if others else ""
        print(f"{count} certificates: {accepted} accepted, {count - accepted} refused{apart}")
    return accepted == count and not others


def run_queries(proofs: Sequence[Path], model: Path, query: Path, as_json: bool = False) -> bool:
    """Print a verdict for each proof that no input satisfies a query; whether all were accepted."""
    accepted = True
    for path in proofs:
        start, progress = time.monotonic(), _Progress(str(path))
        verdict = check_query(path, model, query, progress)
        progress.clear()
        show = shown.query_json if as_json else shown.query_text
        print(show(path, query, verdict, time.monotonic() - start), flush=True)
        accepted &= verdict.accepted
    return accepted


def check_all(
    certificates: Sequence[Path],
    model: Path | None,
    as_json: bool = False,
    data: Path | None = None,
    divide: float = 1.0,
    query: Path | None = None,
) -> bool:
    """Run a bundle, or certificates with a model, or proofs of a query with both; Refused where it
    is neither."""
    if query is not None:
        if model is None or data is not None:
            raise Refused("proofs of a query are checked with --model, and without --data")
        return run_queries(certificates, model, query, as_json)
    bundles = [path for path in certificates if model is None and is_bundle(path)]
    if bundles and len(certificates) == 1 and data is None:
        return run_bundle(bundles[0], as_json)
    if bundles:
        raise Refused("a bundle is checked alone, with its own model and data")
    if model is None:
        raise Refused("certificates are checked with --model; only a bundle has its own")
    return run(certificates, model, as_json, data, divide)


def run_bundle(bundle: Path, as_json: bool = False) -> bool:
    """Verify a bundle's hashes, and check its certificates with its model and inputs; whether all
    were accepted and are about its rows. Refused where it is no whole bundle."""
    with opened(bundle) as held:
        if not as_json:
            print(f"{plain(bundle)}: every file has the hash that its manifest says", flush=True)
        return run(
            *(held.certificates, held.model, as_json, held.data),
            called=lambda path: bundle / path.relative_to(held.folder),  # a zip file is unpacked
        )


def _files(given: Sequence[Path]) -> Iterator[Path]:
    """A folder's certificates in its place; where it has none it stays, and is refused."""
    for path in given:
        yield from sorted(path.glob("*.frown")) or [path]


class _Progress:
    """Per cent on a terminal, once a replay takes longer."""

    def __init__(self, name: str) -> None:
        self.name, self.next, self.width = plain(name), time.monotonic() + PATIENCE, 0

    def __call__(self, done: float) -> None:
        if sys.stderr.isatty() and time.monotonic() > self.next:
            text = f"{self.name}: {done:4.0%}"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
            self.next, self.width = time.monotonic() + 0.2, len(text)

    def clear(self) -> None:
        """The line is the verdict's."""
        if self.width:
            print(f"\r{' ' * self.width}\r", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="frown_check", description="Check certificates of robustness, independently of frown."
    )
    parser.add_argument(
        "certificates", nargs="+", type=Path, metavar="CERT", help="or a folder, or one bundle"
    )
    parser.add_argument("--model", type=Path, help="the ONNX file; a bundle has its own")
    parser.add_argument("--query", type=Path, help="the VNN-LIB file whose proof they are")
    parser.add_argument("--data", type=Path, help="the inputs they are about: .npz, .npy or .csv")
    parser.add_argument("--divide", type=float, default=1.0, help="as for frown certify")
    parser.add_argument("--json", action="store_true", help="one JSON object per certificate")
    options = parser.parse_args(arguments)
    try:
        found = check_all(
            options.certificates,
            options.model,
            options.json,
            options.data,
            options.divide,
            options.query,
        )
        return 0 if found else 1
    except Refused as reason:
        print(f"error: {plain(reason)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
