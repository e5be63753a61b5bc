"""frown and its peers side by side: CPU time per sample and mean certified radius.

    python benchmarks/peers.py --shared DIR --norms inf 2 --repeat 3
    python benchmarks/peers.py --shared DIR --single 5

One thread, float32, searches to 1 %. Every figure of a table comes from one run; only the
columns marked "other machine" are constants.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import frown
from common import (
    NETWORKS,
    Problem,
    alternating,
    circumstances,
    sequential,
    shared_folder,
    short,
    table,
)
from frown import __version__
from frown.certification.radius import Bracket, Goal, search

Radii = NDArray[np.float64]
Margins = Callable[[Tensor, Tensor], Tensor]  # (samples (n,), radii (n,)) -> margins (n, 1)
TOL = 0.01
ITERATIONS = 20  # of alpha-CROWN, per radius

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
    peer = f"auto_LiRPA {lirpa().__version__}" if installed() else "auto_LiRPA not installed"
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
    if single or len(problem) == len(NETWORKS[name].samples):
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
                    frown.Ball(part.x, norm=p),
                    frown.label_wins(part.y, part.target),
                    method=method,
                    search=frown.Largest(TOL),
                    attack=None,
                )
                for part in parts
            ]
            return np.concatenate([f.radius for f in found])

        return work

    work = {"frown CROWN": ours("crown"), "frown FROWN": ours("frown")}
    if not installed():
        return work
    peers = [Peer.of(part, p) for part in parts]

    def theirs(how: str, alpha: bool) -> Callable[[], Radii]:
        def work() -> Radii:
            run = (peer.alpha_crown if alpha else peer.crown for peer in peers)
            return np.concatenate([radii(how) for radii in run])

        return work

    for how in searches:
        work[f"auto_LiRPA CROWN, {how}"] = theirs(how, alpha=False)
        work[f"auto_LiRPA alpha-CROWN, {how}"] = theirs(how, alpha=True)
    return work


@dataclass(frozen=True)
class Peer:
    """auto_LiRPA as a careful user drives it: margins as C, all inputs in one batch.

    Radii come from one of two searches. `bisection` is what users write: from the radius
    that CROWN proves, grow until it fails, then halve the bracket. `shared` is frown's own
    search, so that only the bounds themselves are compared.
    """

    module: Any  # BoundedModule
    x: Tensor  # (N, features)
    margin: Tensor  # (N, 1, classes)
    p: float

    @classmethod
    def of(cls, problem: Problem, p: float) -> Peer:
        network = sequential(problem.path)
        x = torch.tensor(problem.x, dtype=torch.float32)
        every = torch.arange(len(x))
        margin = torch.zeros(len(x), 1, network(x).shape[1])
        margin[every, 0, torch.from_numpy(problem.y)] = 1
        margin[every, 0, torch.from_numpy(problem.target)] = -1
        # With the default fix_interm_bounds=True only the last layer would be optimised and
        # the radii would fall short; learning rate and schedule are the library's own.
        options = {"iteration": ITERATIONS, "fix_interm_bounds": False}
        with quiet():
            module = lirpa().BoundedModule(
                network,
                torch.zeros_like(x),
                bound_opts={"optimize_bound_args": options},
                device="cpu",
            )
        return cls(module, x, margin, p)

    def crown(self, how: str) -> Radii:
        """(N,) radii by CROWN."""
        if how == "bisection":
            return bisect(self._bounds("CROWN"), 0.3 * self._guess(), TOL).numpy()
        return self._shared_crown(TOL).proved.numpy()

    def alpha_crown(self, how: str) -> Radii:
        """(N,) radii by alpha-CROWN, upwards from CROWN's to 3 %."""
        bounds = self._bounds("CROWN-Optimized")
        if how == "bisection":
            start = bisect(self._bounds("CROWN"), 0.3 * self._guess(), 0.03)
            return bisect(bounds, 1.2 * start, TOL, start).numpy()
        bracket = self._shared_crown(0.03).onwards()
        *_, found = search(bracket, bounds, 1.2 * bracket.proved, Goal.optimised(TOL))
        return found.proved.numpy()

    def _bounds(self, method: str) -> Margins:
        library = lirpa()

        def evaluate(sample: Tensor, radius: Tensor) -> Tensor:
            ball = library.perturbations.PerturbationLpNorm(norm=self.p, eps=radius[:, None])
            x = library.BoundedTensor(self.x[sample], ball)
            with torch.set_grad_enabled(method != "CROWN"), quiet():
                lower, _ = self.module.compute_bounds(
                    x=(x,), C=self.margin[sample], method=method, bound_upper=False
                )
            return lower.detach()

        return evaluate

    def _shared_crown(self, tol: float) -> Bracket:
        guess = self._guess()
        with torch.no_grad():
            clean = (self.margin @ self.module(self.x)[:, :, None]).squeeze(-1)
        bracket = Bracket.start(clean, 1e6 * guess)
        *_, found = search(bracket, self._bounds("CROWN"), 0.3 * guess, Goal.fixed(tol))
        return found

    def _guess(self) -> Tensor:
        """Where the margin would vanish if the network were linear at the input."""
        x = self.x.clone().requires_grad_()
        margin = (self.margin @ self.module(x)[:, :, None]).flatten()
        (slope,) = torch.autograd.grad(margin.sum(), x)
        dual = 1.0 if self.p == inf else inf if self.p == 1 else self.p / (self.p - 1)
        return margin.detach() / torch.linalg.vector_norm(slope, ord=dual, dim=1)


def bisect(margins: Margins, first: Tensor, tol: float, proved: Tensor | None = None) -> Tensor:
    """The largest radius, within `tol`, with a positive margin; every sample its own bracket.

    Doubling or halving until there is a bracket (by a fifth from a proved radius), then its
    geometric middle. Decided samples leave the batch.
    """
    low = torch.zeros_like(first) if proved is None else proved.clone()
    high = torch.full_like(first, torch.inf)
    grow = 2.0 if proved is None else 1.2
    here = first
    for _ in range(60):
        index = (high > low * (1 + tol)).nonzero().flatten()
        if not len(index):
            break
        radius = here[index]
        holds = (margins(index, radius) > 0).all(1)
        low[index[holds]] = radius[holds]
        high[index[~holds]] = radius[~holds]
        both = (low > 0) & torch.isfinite(high)
        here = torch.where(both, torch.sqrt(low * high), torch.where(low > 0, low * grow, high / 2))
    return low


def _published(name: str, p: float, single: int, ours: float) -> list[Entry]:
    label = "published FROWN code, other machine"
    if single:
        seconds = PUBLISHED_SINGLE.get((name, p))
        return [] if seconds is None else [Entry(name, p, label, np.nan, seconds, ours)]
    if (name, p) not in PUBLISHED:
        return []
    return [Entry(name, p, label, *PUBLISHED[name, p], ours)]


def installed() -> bool:
    return find_spec("auto_LiRPA") is not None


def lirpa() -> Any:
    with quiet():
        import auto_LiRPA
        import auto_LiRPA.perturbations
    return auto_LiRPA


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


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
