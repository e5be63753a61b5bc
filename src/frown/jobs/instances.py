"""A folder of queries, as `frown verify --instances` runs them: one process for each.

`instances.csv` has lines of a network, a query and a time limit, with paths relative to it. Results
are lines as the competition of verifiers writes them: category, network, query, seconds of
preparation, verdict, seconds. What the results hold already is not run again.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frown.certification.verdict import ANSWERS
from frown.errors import InvalidInput, OutputError

GRACE = 10.0  # seconds beyond its limit after which a process is ended
LONGEST = 600.0  # seconds where neither line nor option has a limit


@dataclass(frozen=True, slots=True)
class Instance:
    """A line of the file."""

    network: str  # as written
    query: str
    timeout: float

    @property
    def family(self) -> str:
        """The folder that a network lies in, above those that are called after formats."""
        parts = [p for p in Path(self.network).parent.parts if p not in ("onnx", "networks", ".")]
        return parts[-1] if parts else ""


def read_instances(path: Path, most: float | None) -> list[Instance]:
    """The instances of a file, `most` seconds each.

    Raises InvalidInput for a file that cannot be read and for lines that are none, by number.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [(k, row) for k, row in enumerate(csv.reader(file), 1) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    found = []
    for k, row in lines:
        if k == 1 and row[:2] == ["onnx", "vnnlib"]:
            continue
        try:
            network, query, limit = row[0].strip(), row[1].strip(), LONGEST
            if len(row) > 2 and row[2].strip():
                limit = float(row[2])
        except (IndexError, ValueError):
            raise InvalidInput(
                f"{path}, line {k}: a network, a query and seconds were expected"
            ) from None
        if not limit > 0:
            raise InvalidInput(f"{path}, line {k}: the time limit must be more than 0")
        found.append(Instance(network, query, limit if most is None else min(limit, most)))
    if not found:
        raise InvalidInput(f"{path} has no instances")
    return found


def run_instances(
    path: Path, results: Path, most: float | None, tell: Callable[[str], None]
) -> None:
    """Answer all instances of a file that `results` does not have yet; each is told of, and in the
    end how many got which verdict. Raises InvalidInput and OutputError."""
    instances = read_instances(path, most)
    done = dict(_done(results))
    for one in instances:
        key = one.network, one.query
        if key not in done:
            began = time.monotonic()
            verdict = _answered(path.parent, one)
            took = time.monotonic() - began
            row = [one.family, one.network, one.query, "0", verdict, f"{took:.3f}"]
            try:
                with results.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file, lineterminator="\n").writerow(row)
            except OSError as error:
                raise OutputError(f"{results} cannot be written: {error.strerror}") from None
            done[key] = verdict
            tell(f"{verdict:9} {took:8.2f} s  {one.network}  {one.query}")
    for line in summary([(one.family, done[one.network, one.query]) for one in instances]):
        tell(line)


def summary(verdicts: list[tuple[str, str]]) -> Iterator[str]:
    """A table of how many instances of each family got which verdict."""
    words = [*ANSWERS, "error"]
    families = list(dict.fromkeys(family for family, _ in verdicts))
    wide = max(len("family"), *(len(f) for f in families))
    yield " ".join([f"{'family':{wide}}", *(f"{w:>9}" for w in words)])
    for family in families:
        count = Counter(v for f, v in verdicts if f == family)
        yield " ".join([f"{family:{wide}}", *(f"{count[w]:9}" for w in words)])


def _done(results: Path) -> Iterator[tuple[tuple[str, str], str]]:
    if not results.exists():
        return
    try:
        with results.open(newline="", encoding="utf-8") as file:
            for k, row in enumerate(csv.reader(file), 1):
                if len(row) != 6 or row[4] not in (*ANSWERS, "error"):
                    raise InvalidInput(f"{results}, line {k}: not a line of results")
                yield (row[1], row[2]), row[4]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{results} cannot be read: {error}") from None


def _answered(folder: Path, one: Instance) -> str:
    """The verdict of a process of its own, which is ended should it not end by itself."""
    command = [sys.executable, "-m", "frown", "verify", str(folder / one.query)]
    command += ["--network", str(folder / one.network), "--timeout", f"{one.timeout:g}"]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=one.timeout + GRACE, check=False
        )
    except subprocess.TimeoutExpired:
        return "timed-out"
    first = ran.stdout.partition("\n")[0]
    return first if ran.returncode == 0 and first in ANSWERS else "error"
