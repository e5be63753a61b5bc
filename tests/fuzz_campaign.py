"""Files under a coverage-guided fuzzer (atheris), for as long as wanted.

    pip install atheris
    python tests/fuzz_campaign.py --seconds 300
    python tests/fuzz_campaign.py --targets onnx --seconds 60 --keep findings

Targets are in tests/fuzz/targets.py. A finding is an error that is not documented, an answer that
an oracle contradicts, more than SLOW CPU seconds or LARGE bytes for one file, or a crash of
the process. Findings are kept as files, each kind once; `--replay FILE` runs one again. The exit
code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for the readers of benchmarks.paper

NAMES = ("certificate", "checker-onnx", "onnx", "data", "query", "checker-query")
SLOW = 10.0  # CPU seconds for one file
LARGE = 1 << 30  # bytes of memory for one file
WHOLE = 6 << 30  # bytes of address space: what asks for more gets a MemoryError


class Watch:
    """Runs a target on one input after the other and keeps what goes wrong."""

    def __init__(self, target: Any, keep: Path) -> None:
        self.target, self.keep, self.seen = target, keep, set[str]()

    def __call__(self, data: bytes) -> None:
        before, began = _peak(), time.process_time()
        try:
            self.target.run(data)
        except self.target.allowed:
            pass
        except Exception as error:  # undocumented, whatever it is
            self.found(data, _place(error), traceback.format_exc())
        seconds, grown = time.process_time() - began, _peak() - before
        if seconds > SLOW:
            self.found(data, "slow", f"{seconds:.1f} CPU seconds")
        if grown > LARGE:
            self.found(data, "large", f"{grown / 2**20:.0f} MiB")

    def found(self, data: bytes, kind: str, text: str) -> None:
        """Keep an input with its story, the first of its kind."""
        if kind in self.seen:
            return
        self.seen.add(kind)
        self.keep.mkdir(parents=True, exist_ok=True)
        name = f"{self.target.name}-{hashlib.sha256(kind.encode()).hexdigest()[:10]}"
        if not (self.keep / name).exists():
            (self.keep / name).write_bytes(data)
            (self.keep / f"{name}.txt").write_text(text)
            print(f"FOUND {name}: {text}", flush=True)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place(error: Exception) -> str:
    """The error's kind and the innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{f.filename}:{f.lineno}" for f in frames if "frown" in f.filename]
    return f"{type(error).__name__} {ours[-1] if ours else ''}"


def work(name: str, seconds: int, keep: Path, corpus: Path) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["frown", "frown_check"]):
        import torch

        from fuzz.targets import TARGETS
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (WHOLE, WHOLE))
    target = TARGETS[name]
    for k, seed in enumerate(target.seeds()):
        (corpus / f"seed-{k}").write_bytes(seed)
    watch = Watch(target, keep)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        def bytewise(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, max(16, len(part) + 64)))

        made = target.mutate(bytes(data), random.Random(seed), bytewise)
        return made if len(made) <= most else bytes(data)

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.most_bytes}",
        f"-timeout={int(6 * SLOW)}",
        "-rss_limit_mb=5000",
        "-len_control=0",
        "-report_slow_units=1000",  # in seconds of a clock; ours are CPU seconds
        "-print_final_stats=1",
        "-verbosity=1",
        f"-artifact_prefix={keep}/{name}-",
    ]
    keep.mkdir(parents=True, exist_ok=True)
    atheris.Setup([sys.argv[0], *options, str(corpus)], watch, custom_mutator=mutate)
    gc.collect()
    atheris.Fuzz()


def replay(name: str, file: Path) -> None:
    """One input, with its error."""
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    with contextlib.suppress(*target.allowed):
        target.run(file.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seconds", type=int, default=300, help="for each target (300)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="folder")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one file; no fuzzing")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replay:
        replay(asked.targets[0], asked.replay)
        return 0
    if asked.corpus:
        work(asked.targets[0], asked.seconds, asked.keep.resolve(), asked.corpus)
        return 0
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("the fuzzer needs atheris: pip install atheris (Linux)")
        return 2
    old = set(asked.keep.glob("*"))
    deaths = sum(_fuzzed(name, asked.seconds, asked.keep) for name in asked.targets)
    new = sorted(p for p in set(asked.keep.glob("*")) - old if p.suffix != ".txt")
    for path in new:
        story = path.with_name(f"{path.name}.txt")
        last = story.read_text().strip().splitlines()[-1] if story.exists() else "the process died"
        print(f"{path}: {last}")
    what = f"{len(new)} findings, {deaths} processes that died"
    print(f"{what}, in {len(asked.targets)} targets of {asked.seconds} s each")
    return 1 if new or deaths else 0


def _fuzzed(name: str, seconds: int, keep: Path) -> int:
    """A target in processes of its own: one that dies is started again, with its corpus.

    Returns how many died."""
    ends, deaths = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as corpus:
        while (left := int(ends - time.monotonic())) > 0:
            command = [sys.executable, __file__, "--targets", name, "--seconds", str(left)]
            command += ["--keep", str(keep), "--corpus", corpus]
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            lines = [t for t in done.stdout.splitlines() if t.startswith("FOUND")]
            stats = [t for t in done.stderr.splitlines() if " cov: " in t or "number_of" in t]
            print("\n".join([*lines, f"{name}: {' | '.join(stats[-2:])}"]), flush=True)
            if done.returncode:
                deaths += 1
                print(f"{name}: ended with {done.returncode}", flush=True)
                print("\n".join(done.stderr.splitlines()[-25:]), flush=True)
    return deaths


if __name__ == "__main__":
    sys.exit(main())
