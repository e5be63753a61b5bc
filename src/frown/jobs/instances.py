"""A folder of queries, as `frown verify --instances` runs them: one process for each.

`instances.csv` has lines of a network, a query and a time limit, with paths relative to it. Results
are lines as the competition of verifiers writes them: category, network, query, seconds of
preparation, verdict, seconds. A page tells of them. Answers are kept in a `Store`, by the contents
of the files: what is there is not run again, unless it came to nothing and there is more time now.
"""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from frown import __version__
from frown.certification.folder import reported, write_whole
from frown.certification.results import plain
from frown.certification.witness import ANSWERS
from frown.errors import InvalidInput
from frown.jobs.store import Row, Store, key_of
from frown.read.onnx.load import files_digest
from frown.report.queries import ERROR, Answered, queries_page

GRACE = 10.0  # seconds beyond its limit after which a process is ended
STORE = ".frown"  # behind the results' name: the folder of their store
PAGE = "index.html"  # in that folder
MOST_REMARK = 500  # characters
WORDS = {"timed-out": "timeout"}  # of the competition, where it has others than the standard
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
    path: Path, results: Path, most: float | None, tell: Callable[[str], None], real: bool = False
) -> None:
    """Answer all instances of a file that have no answer yet. `tell` gets a line for each, and the
    counts of verdicts in the end; `real` as for a single query.

    Answers are in a store beside `results`, which is written anew from it after each. Raises
    InvalidInput, and OutputError where a file cannot be written or another run is writing it.
    """
    instances = read_instances(path, most)
    folder = results.with_name(results.name + STORE)
    if os.path.lexists(results) and not os.path.lexists(folder):
        raise InvalidInput(
            f"{results} is there already, and not of a run to go on with; choose another --results"
        )
    with Store(folder, {"command": "verify", "version": __version__, "real": real}) as store:
        _Answering(path.parent, instances, results, store, tell, real).run()


class _Answering:
    """A run over instances."""

    def __init__(
        self,
        folder: Path,
        instances: Sequence[Instance],
        results: Path,
        store: Store,
        tell: Callable[[str], None],
        real: bool,
    ) -> None:
        self.real = real
        digests: dict[str, str] = {}
        self.folder, self.results, self.store, self.tell = folder, results, store, tell
        self.instances = instances
        self.keys = [_key(folder, one, digests) for one in instances]

    def run(self) -> None:
        self._write()
        for key, one in zip(self.keys, self.instances, strict=True):
            if not _settled(self.store.get(key), one):
                began = time.monotonic()
                answer = _answered(self.folder, one, self.real)
                took = round(time.monotonic() - began, 3)
                self.store.append({key: {**answer, "seconds": took, "timeout": one.timeout}})
                self._write()
                self.tell(f"{answer['verdict']:9} {took:8.2f} s  {one.network}  {one.query}")
        pairs = zip(self.keys, self.instances, strict=True)
        for line in summary([(one.family, self.store[key]["verdict"]) for key, one in pairs]):
            self.tell(line)
        self._show()

    def _show(self) -> None:
        """Write the page about all answers."""
        answers = []
        for key, one in zip(self.keys, self.instances, strict=True):
            row = self.store[key]
            answers.append(Answered(one.family, one.network, one.query, **row))
        name = self.results.name.removesuffix(self.results.suffix)
        page = self.results.with_name(self.results.name + STORE) / PAGE
        with reported("write", page):
            write_whole(page, queries_page(answers, name, __version__).encode())
        self.tell(f"page: {plain(page)}")

    def _write(self) -> None:
        """Write the answers as the competition has them."""
        text = StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        for key, one in zip(self.keys, self.instances, strict=True):
            if key in self.store:
                row = self.store[key]
                known = (one.family, one.network, one.query, "0")
                verdict = WORDS.get(row["verdict"], row["verdict"])
                lines.writerow([*known, verdict, f"{row['seconds']:.3f}"])
        with reported("write", self.results):
            write_whole(self.results, text.getvalue().encode())


def _key(folder: Path, one: Instance, digests: dict[str, str]) -> str:
    """The key of an instance: its names, and the contents of its files, with weights beside the
    network's."""
    if one.network not in digests:
        digests[one.network] = files_digest(folder / one.network)
    if one.query not in digests:
        file = folder / one.query
        digests[one.query] = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    named = {"network": one.network, "query": one.query}
    return key_of({**named, "files": [digests[one.network], digests[one.query]]})


def _settled(row: Row | None, one: Instance) -> bool:
    """True if an answer stands: one that more time would not change, or that had as much."""
    if row is None:
        return False
    return row["verdict"] in ("sat", "unsat") or row["timeout"] >= one.timeout


def summary(verdicts: list[tuple[str, str]]) -> Iterator[str]:
    """A table of how many instances of each family got which verdict."""
    words = [*ANSWERS, ERROR]
    families = list(dict.fromkeys(family for family, _ in verdicts))
    wide = max(len("family"), *(len(f) for f in families))
    yield " ".join([f"{'family':{wide}}", *(f"{w:>9}" for w in words)])
    for family in families:
        count = Counter(v for f, v in verdicts if f == family)
        yield " ".join([f"{family:{wide}}", *(f"{count[w]:9}" for w in words)])


def _answered(folder: Path, one: Instance, real: bool) -> dict[str, str]:
    """The verdict of a process of its own, which is killed if it does not end in time, with the
    lines of its witness or of its error."""
    command = [sys.executable, "-m", "frown", "verify", str(folder / one.query)]
    command += ["--network", str(folder / one.network), "--timeout", f"{one.timeout:g}"]
    command += ["--real"] * real
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=one.timeout + GRACE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"verdict": "timed-out"}
    first, _, witness = ran.stdout.partition("\n")
    if ran.returncode == 0 and first in ANSWERS:
        return {"verdict": first, "witness": witness}
    said = (ran.stderr.splitlines() or [f"exit code {ran.returncode}"])[-1]
    return {"verdict": ERROR, "remark": said[:MOST_REMARK]}
