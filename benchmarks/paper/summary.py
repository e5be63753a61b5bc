"""Means, gains and speed-ups of what was measured, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from benchmarks.paper.cells import COLD_LP, LP, Cell
from benchmarks.paper.experiments import Experiment, Line
from benchmarks.paper.figures import FIGURES, Figure
from benchmarks.paper.results import Result, Results
from benchmarks.paper.runner import Problems

_BUSY = 1.5  # seconds per CPU second from which on times are doubtful


@dataclass(frozen=True, slots=True)
class Measured:
    """A method on one line: the samples it finished, and the limit it went beyond."""

    results: tuple[Result, ...] = ()

    @property
    def radii(self) -> Mapping[int, float]:
        """By sample."""
        return {r.sample: r.radius for r in self.results if r.complete}

    @property
    def radius(self) -> float | None:
        """The mean."""
        return mean(self.radii.values()) if self.radii else None

    @property
    def seconds(self) -> float | None:
        """Per image, of those finished."""
        times = [r.seconds for r in self.results if r.complete]
        return mean(times) if times else None

    @property
    def cpu(self) -> float | None:
        """CPU seconds per image; None where other processes helped."""
        times = [r.cpu for r in self.results if r.complete]
        known = [t for t in times if t is not None]
        return mean(known) if known and len(known) == len(times) else None

    @property
    def time(self) -> float | None:
        """CPU seconds per image, which other work on the machine does not change; seconds where
        they are not known or several threads add up."""
        return self.seconds if self.clocked else self.cpu

    @property
    def clocked(self) -> bool:
        return self.cpu is None or any(r.threads != 1 for r in self.results)

    @property
    def limit(self) -> float | None:
        """The seconds after which a sample was given up; None: none was."""
        return max((r.limit for r in self.results if not r.complete and r.limit), default=None)


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much one mean radius exceeds another, over the `count` samples of both."""

    value: float
    count: int


def gain(new: Measured, old: Measured) -> Gain | None:
    """None where no sample has both, or the old radii vanish."""
    after, before = new.radii, old.radii
    shared = sorted(after.keys() & before.keys())
    if not shared:
        return None
    base = mean(before[n] for n in shared)
    if base == 0:
        return None
    return Gain(mean(after[n] for n in shared) / base - 1, len(shared))


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """The factor by which LP takes longer; `at_least` where it was given up."""

    value: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """A line of a table, ours and the paper's."""

    line: Line
    columns: Mapping[str, Measured] = field(default_factory=dict)
    figure: Figure | None = None
    cold: bool = False  # LP's programs start from nothing
    other_lp: Measured = field(default_factory=Measured)  # hot where this is cold, and vice versa

    def __getitem__(self, column: str) -> Measured:
        return self.columns.get(column, Measured())

    def gain(self, column: str) -> Gain | None:
        """Over CROWN by the paper's rule."""
        return gain(self[column], self["crown"])

    @property
    def frown_gain_beside_lp(self) -> Gain | None:
        """FROWN's gain over the samples that LP finished, to be compared with LP's."""
        there = self["lp"].radii
        return gain(
            Measured(tuple(r for r in self["frown"].results if r.sample in there)), self["crown"]
        )

    @property
    def speed_up(self) -> SpeedUp | None:
        frown, lp = self["frown"], self["lp"]
        clock = frown.clocked or lp.clocked or lp.limit is not None
        own = frown.seconds if clock else frown.cpu
        theirs = lp.limit or (lp.seconds if clock else lp.cpu)
        if not own or theirs is None:
            return None
        return SpeedUp(theirs / own, lp.limit is not None)

    @property
    def cold_over_hot(self) -> SpeedUp | None:
        """The factor by which LP takes longer cold, over the samples that were solved both ways."""
        mine, other = ({r.sample: r.seconds for r in m.results if r.complete} for m in self._lps)
        shared = mine.keys() & other.keys()
        if not shared:
            return None
        return SpeedUp(sum(mine[n] for n in shared) / sum(other[n] for n in shared))

    @property
    def _lps(self) -> tuple[Measured, Measured]:
        """Cold and hot."""
        own, other = self["lp"], self.other_lp
        return (own, other) if self.cold else (other, own)


def summaries(experiment: Experiment, problems: Problems, results: Results) -> tuple[Summary, ...]:
    """All lines of a table, from what is known of the samples asked for."""
    found = []
    for line in experiment.lines:
        cells = experiment.cells_of(line)
        other = Cell(line.network, line.norm, LP if experiment.cold else COLD_LP)
        found.append(
            Summary(
                line,
                {c.method.name: _measured(c, problems, results) for c in cells},
                FIGURES.get((line.network.name, line.norm)),
                experiment.cold,
                _measured(other, problems, results) if "lp" in experiment.methods else Measured(),
            )
        )
    return tuple(found)


def _measured(cell: Cell, problems: Problems, results: Results) -> Measured:
    keys = (problems.key(cell, n) for n in range(problems.setup.count(cell.method)))
    found = (results.get(key) for key in keys)
    return Measured(tuple(result for result in found if result is not None))


def notes(lines: Sequence[Summary]) -> list[str]:
    """Notes that one needs to read the figures."""
    text = []
    counts = {
        who: [n for s in lines if (n := len(s[who].radii))] for who in ("crown", "frown", "lp")
    }
    if any(counts.values()):
        parts = [f"{who.upper()} {_range(n)}" for who, n in counts.items() if n]
        text.append(f"samples per cell: {', '.join(parts)}")
    every = [m for s in lines for m in s.columns.values()]
    if missing := sum(not m.results for m in every):
        text.append(f"-: {missing} of {len(every)} cells were not measured")
    if any(s.gain(who) for s in lines for who in ("frown", "lp")):
        text.append("gain: over CROWN by the paper's rule, on the samples that both have")
    lp = counts["lp"]
    results = [r for s in lines for m in s.columns.values() for r in m.results]
    batches = [r.batch for r in results if r.column == "frown"]
    if batches:
        threads = _range({r.threads for r in results})
        alone = "; LP one at a time" if lp else ""
        kind = "seconds" if any(m.clocked for m in every if m.results) else "CPU seconds"
        text.append(
            f"s: {kind} per image; CROWN and FROWN in batches of {_range(batches)}, "
            f"threads: {threads}{alone}"
        )
    alone_on_it = [r for r in results if r.threads == 1 and r.cpu is not None]
    if sum(r.seconds for r in alone_on_it) > _BUSY * sum(r.cpu or 0.0 for r in alone_on_it):
        text.append("the machine was busy with other work; the clock's seconds are in the CSV file")
    workers = {r.workers for r in results if r.column == "lp"}
    if workers - {1}:
        text.append(f"LP solved by {_range(workers)} processes at a time")
    if any(s.cold for s in lines):
        text.append("LP cold: every program starts from nothing, the search from CROWN's radius")
    slower = [found.value for s in lines if (found := s.cold_over_hot)]
    if slower:
        least, most = f"{min(slower):.1f}", f"{max(slower):.1f}"
        span = least if least == most else f"{least} to {most}"
        text.append(f"LP takes {span} times as long cold as hot, on samples solved both ways")
    limits = {s["lp"].limit for s in lines} - {None}
    if limits:
        text.append(">: LP was given up at that many seconds for one sample")
    if any(s.figure is not None for s in lines):
        text.append(
            "paper: the authors' weights, samples and machine; compare gains, not radii or seconds"
        )
    versions = sorted({r.version for r in results})
    if len(versions) > 1:
        text.append(f"measured by frown {', '.join(versions)}; --force measures all again")
    return text


def _range(numbers: Iterable[int]) -> str:
    all_of_them = set(numbers)
    low, high = min(all_of_them), max(all_of_them)
    return str(low) if low == high else f"{low} to {high}"
