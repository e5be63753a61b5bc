"""frown and its peers side by side: CPU time per sample and mean certified radius.

    python benchmarks/peers.py --shared DIR --norms inf 2 --repeat 3
    python benchmarks/peers.py --shared DIR --single 5

One thread, float32, searches to 1 %. Every figure of a table comes from one run; only the
columns marked "other machine" are constants.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import lirpa
import numpy as np
import torch
from common import (
    NETWORKS,
    Problem,
    alternating,
    circumstances,
    shared_folder,
    short,
    table,
)
from numpy.typing import NDArray

import frown
from frown.version import __version__

Radii = NDArray[np.float64]
TOL = 0.01

# The authors' released code, neuron by neuron: mean radius, CPU seconds per sample. Measured
# once on some other machine: an orientation, never a result of this run.
PUBLISHED = {
    ("drive-relu", 2.0): (0.7108, 3.4),
    ("drive-relu", inf): (0.2094, 4.0),
    ("drive-sigmoid", inf): (0.1440, 10.7),
    ("mnist-relu", 1.0): (2.538, 6.7),
    ("mnist-relu", 2.0): (0.4208, 6.3),
    ("mnist-relu", inf): (0.0215, 9.2),
    ("mnist-sigmoid", inf): (0.0175, 20.8),
}
PUBLISHED_SINGLE = {("drive-relu", inf): 56.0, ("mnist-relu", inf): 121.0}

HEAD = ("network", "p", "method", "mean radius", "CPU s per sample", "times ours")


@dataclass(frozen=True, slots=True)
class Entry:
    """One method on one network; `ours` is the time of frown's method of the same kind."""

    network: str
    p: float
    method: str
    radius: float
    seconds: float  # per sample
    ours: float | None

    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ours is None else f"{self.seconds / self.ours:.1f}"
        return (
            self.network,
            f"{self.p:g}",
            self.method,
            "" if np.isnan(self.radius) else short(self.radius),
            f"{self.seconds:.2g}" if self.seconds < 10 else f"{self.seconds:.0f}",
            ratio,
        )


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    shared = shared_folder(args.shared)
    peer = f"auto_LiRPA {lirpa.version()}" if lirpa.installed() else "auto_LiRPA not installed"
    print(f"frown {__version__}, {peer}; {circumstances()}")
    if args.single:
        print(f"one sample at a time, the first {args.single}; median of {args.repeat}")
    else:
        print(f"all samples in one batch; median of {args.repeat}")
    entries: list[Entry] = []
    for name in args.networks:
        problem = NETWORKS[name].read(shared).first(args.samples)
        for p in args.norms:
            found = measure(name, problem, p, args.search, args.single, args.repeat)
            entries += found
            print(file=sys.stderr)
            print(table(HEAD, [e.cells() for e in found]), file=sys.stderr, flush=True)
    text = table(HEAD, [e.cells() for e in entries])
    print(text)
    if args.out:
        _write(Path(args.out), entries, text)


def measure(
    name: str, problem: Problem, p: float, searches: list[str], single: int, repeat: int
) -> list[Entry]:
    """Every method on one network, in turns."""
    parts = [problem]
    if single:
        parts = [
            Problem(problem.path, *(t[k : k + 1] for t in (problem.x, problem.y, problem.target)))
            for k in range(min(single, len(problem)))
        ]
    work = contestants(problem.path, parts, p, searches)
    found = alternating(work, repeat)
    count = sum(len(part) for part in parts)
    entries = []
    for method, (seconds, radii) in found.items():
        rival = None
        if not method.startswith("frown"):
            rival = "frown FROWN" if "alpha" in method else "frown CROWN"
        ours = None if rival is None else found[rival][0] / count
        entries.append(Entry(name, p, method, float(radii.mean()), seconds / count, ours))
    entries += _published(name, p, single, found["frown FROWN"][0] / count)
    return entries


def contestants(
    path: Path, parts: list[Problem], p: float, searches: list[str]
) -> dict[str, Callable[[], Radii]]:
    """Name and work of every method; loading and wrapping the network is not part of it."""
    model = frown.load(path)

    def ours(method: str) -> Callable[[], Radii]:
        def work() -> Radii:
            found = [
                frown.certify(
                    model,
                    part.x,
                    part.y,
                    target=part.target,
                    norm=p,
                    method=method,
                    tol=TOL,
                    attack=False,
                )
                for part in parts
            ]
            return np.concatenate([f.radius for f in found])

        return work

    work = {"frown CROWN": ours("crown"), "frown FROWN": ours("frown")}
    if not lirpa.installed():
        return work
    peers = [lirpa.Peer.of(part, p) for part in parts]

    def theirs(how: str, alpha: bool) -> Callable[[], Radii]:
        def work() -> Radii:
            run = (peer.alpha_crown if alpha else peer.crown for peer in peers)
            return np.concatenate([radii(TOL, how) for radii in run])

        return work

    for how in searches:
        work[f"auto_LiRPA CROWN, {how}"] = theirs(how, alpha=False)
        work[f"auto_LiRPA alpha-CROWN, {how}"] = theirs(how, alpha=True)
    return work


def _published(name: str, p: float, single: int, ours: float) -> list[Entry]:
    label = "published FROWN code, other machine"
    if single:
        seconds = PUBLISHED_SINGLE.get((name, p))
        return [] if seconds is None else [Entry(name, p, label, np.nan, seconds, ours)]
    if (name, p) not in PUBLISHED:
        return []
    return [Entry(name, p, label, *PUBLISHED[name, p], ours)]


def _write(path: Path, entries: list[Entry], text: str) -> None:
    """Markdown, or CSV if the name ends so."""
    if path.suffix != ".csv":
        path.write_text(f"{circumstances()}\n\n{text}\n")
        return
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("network", "p", "method", "mean_radius", "cpu_seconds", "times_ours"))
        for e in entries:
            ratio = "" if e.ours is None else e.seconds / e.ours
            out.writerow((e.network, e.p, e.method, e.radius, e.seconds, ratio))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, help="default: all four")
    parser.add_argument("--norms", nargs="+", type=float, default=[inf], help="default: inf")
    parser.add_argument("--samples", type=int, help="only the first so many")
    parser.add_argument(
        "--single",
        type=int,
        nargs="?",
        const=5,
        default=0,
        metavar="N",
        help="the first N samples one at a time, on the relu networks (5)",
    )
    parser.add_argument(
        "--search",
        nargs="+",
        choices=("bisection", "shared"),
        default=["bisection"],
        help="the peer's search for the radius: what users write, or frown's own",
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs; medians are shown (3)")
    parser.add_argument("--out", help="also write the table here: .csv or Markdown")
    args = parser.parse_args()
    if args.networks is None:
        args.networks = [n for n in NETWORKS if not args.single or n.endswith("relu")]
    return args


if __name__ == "__main__":
    main()
