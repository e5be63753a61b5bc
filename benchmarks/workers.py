"""Speed-up by workers, by accounting of CPU seconds (Linux).

    python -m benchmarks.workers MODEL DATA --workers 2 --repeat 3 --bounds 0 1

runs `frown certify MODEL DATA --bounds 0 1` with one worker and with several, in turn, and reads
from /proc the CPU seconds of every process; options that it does not know are certify's. On a
machine of its own with a core for each worker, the command would last as long as its driver and the
longest of the workers one after the other, or as long as all of it together, spread evenly,
whichever is longer. The speed-up is the CPU time with one worker divided by that, loading of
libraries and all. Other work on the machine does not count. Modules are compiled before, as they
are for everybody who runs the command a second time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import circumstances, table

LOOK = 0.02  # seconds between two looks at the processes


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of a command: of its driver, of the process that splits off workers, and of
    workers."""

    driver: float
    server: float
    workers: tuple[float, ...]

    @property
    def path(self) -> float:
        """The least time on a machine of its own with a core for every worker."""
        whole = self.driver + self.server + sum(self.workers)
        longest = max(self.workers, default=0.0)
        return max(self.driver + longest, whole / max(1, len(self.workers)))


def spent(command: Sequence[str]) -> Spent:
    """Run a command, and count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_surroundings())
    seen: dict[int, tuple[int, float]] = {}  # parent and seconds, by process
    while process.poll() is None:
        seen |= _family(process.pid)
        time.sleep(LOOK)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    servers = [pid for pid, (parent, _) in seen.items() if parent == process.pid]
    workers = tuple(cpu for parent, cpu in seen.values() if parent in servers)
    server = sum(seen[pid][1] for pid in servers)
    # What nobody was seen to spend, at the very end of processes, counts as the driver's.
    return Spent(total - server - sum(workers), server, workers)


def _surroundings() -> dict[str, str]:
    """The environment, in which Python keeps the modules that it has compiled."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def _family(root: int) -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds of a process and its descendants."""
    tick, found = os.sysconf("SC_CLK_TCK"), dict[int, tuple[int, float]]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        found[int(folder.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / tick
    chosen = {root} & found.keys()
    while more := {pid for pid, (parent, _) in found.items() if parent in chosen} - chosen:
        chosen |= more
    return {pid: found[pid] for pid in chosen}


def main() -> None:
    """Print a line for every repetition, and the median speed-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    asked, options = parser.parse_known_args()
    if not sys.platform.startswith("linux"):
        raise SystemExit("this reads /proc, which Linux has")
    command = [sys.executable, "-m", "frown", "certify", asked.model, asked.data, "--quiet"]
    lines, gains = [], []
    spent([*command, *options, "--samples", "0:2", "--workers", "2"])  # which compiles modules
    for _ in range(asked.repeat):
        alone = spent([*command, *options, "--workers", "1"])
        shared = spent([*command, *options, "--workers", str(asked.workers)])
        one = alone.driver + alone.server + sum(alone.workers)
        gains.append(one / shared.path)
        longest, every = max(shared.workers, default=0.0), sum(shared.workers)
        parts = (one, shared.driver, shared.server, longest, every, shared.path)
        lines.append([*(f"{value:.2f}" for value in parts), f"{gains[-1]:.2f}"])
    head = ["one process", "driver", "server", "longest worker", "all workers", "path", "speed-up"]
    print(table(head, lines))
    print(f"{Path(asked.model).name}, {asked.workers} workers: {median(gains):.2f} times")
    print(circumstances())


if __name__ == "__main__":
    main()
