"""Several methods' results on the same inputs, brought together input by input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan

from frown.errors import InvalidInput
from frown.results import Certification, Row

# From the loosest method to the tightest, with the names people know them by.
NAMES = {
    "interval": "Interval",
    "fastlin": "Fast-Lin",
    "crown": "CROWN",
    "lp": "LP",
    "frown": "FROWN",
    "milp": "MILP",
}


@dataclass(frozen=True)
class Entry:
    """One input: its row of every method that has one, and the nearest counterexample."""

    index: int
    rows: Mapping[str, Row]
    main: Row  # of the main method, or of the tightest one that has this input
    broken: float | None  # over all methods: a counterexample is one whoever found it

    @property
    def correct(self) -> bool:
        return self.main.status != "misclassified"

    def radius(self, method: str) -> float | None:
        """The radius `method` proved; None where it has no row or no number."""
        row = self.rows.get(method)
        return None if row is None or isnan(row.radius) else row.radius

    @property
    def proved(self) -> float:
        return 0.0 if isnan(self.main.radius) else self.main.radius

    @property
    def limit(self) -> float:
        """No larger radius can be proved: where the input is broken, 0 if it is wrong."""
        if not self.correct:
            return 0.0
        return inf if self.broken is None else self.broken


@dataclass(frozen=True)
class Comparison:
    """Methods from the loosest to the tightest, inputs by index."""

    results: Mapping[str, Certification]  # by method, in the order of `methods`
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, results: Mapping[str, Certification]) -> Comparison:
        """Join results by input index.

        Raises InvalidInput where they belong to different models, norms or targets: their
        radii cannot be compared.
        """
        if not any(len(result) for result in results.values()):
            raise InvalidInput("no rows to report: the results are empty")
        _require_one(results, "models", lambda c: [c.digest or c.model])
        _require_one(results, "norms", lambda c: [f"{r.norm:g}" for r in c.rows])
        _require_one(results, "frames that move", lambda c: [r.frames for r in c.rows])
        _require_one(results, "kinds of target", lambda c: [_target_kind(r) for r in c.rows])
        methods = sorted(results, key=_rank)
        rows = {m: {row.index: row for row in results[m].rows} for m in methods}
        indices = sorted({i for by_index in rows.values() for i in by_index})
        entries = tuple(
            _entry(i, {m: by_index[i] for m, by_index in rows.items() if i in by_index})
            for i in indices
        )
        return cls({m: results[m] for m in methods}, entries)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.results)

    @property
    def main(self) -> str:
        """The method the page is about: FROWN, or else the tightest there is."""
        return self.methods[-1]

    @property
    def norm(self) -> float:
        return self.entries[0].main.norm

    @property
    def frames(self) -> str:
        """What moves, as rows say it."""
        return self.entries[0].main.frames

    @property
    def accuracy(self) -> float:
        return sum(e.correct for e in self.entries) / len(self.entries)

    @property
    def attacked(self) -> bool:
        return any(e.broken is not None for e in self.entries)

    @property
    def span(self) -> float:
        """A radius that every finite number in the results fits below; 1 if all are 0."""
        numbers = [e.radius(m) or 0.0 for e in self.entries for m in self.methods]
        numbers += [e.broken or 0.0 for e in self.entries]
        return max((n for n in numbers if isfinite(n)), default=0.0) or 1.0

    def mean(self, method: str) -> float | None:
        """Mean of `method`'s finite radii over the inputs classified right; None: no such."""
        radii = [e.radius(method) for e in self.entries if e.correct]
        return _mean(r for r in radii if r is not None and isfinite(r))

    def mean_broken(self) -> float | None:
        """Mean distance of the counterexamples of the inputs that are classified right."""
        return _mean(e.broken for e in self.entries if e.correct and e.broken is not None)

    def seconds(self, method: str) -> float:
        return sum(row.seconds for row in self.results[method].rows)

    def gain(self, better: str, than: str) -> float | None:
        """How much larger `better`'s mean radius is, over inputs where both have one."""
        if better not in self.results or than not in self.results:
            return None
        pairs = [(e.radius(better), e.radius(than)) for e in self.entries]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        both = [(a, b) for a, b in both if isfinite(a) and isfinite(b)]
        base = sum(b for _, b in both)
        return sum(a for a, _ in both) / base - 1 if base > 0 else None

    def certified(self, method: str, radius: float) -> float:
        """Share of the inputs that `method` proves to be classified right within `radius`."""
        good = (e.correct and (e.radius(method) or 0.0) >= radius for e in self.entries)
        return sum(good) / len(self.entries)

    def unbroken(self, radius: float) -> float:
        """Share of the inputs classified right with no counterexample within `radius`."""
        good = (e.correct and e.limit > radius for e in self.entries)
        return sum(good) / len(self.entries)


def display_name(method: str) -> str:
    return NAMES.get(method, method)


def _rank(method: str) -> tuple[int, str]:
    """Unknown names come first, so that what people came for stays the last."""
    order = list(NAMES)
    return (order.index(method) if method in NAMES else -1, method)


def _entry(index: int, rows: dict[str, Row]) -> Entry:
    found = [r.broken for r in rows.values() if r.broken is not None and isfinite(r.broken)]
    return Entry(index, rows, list(rows.values())[-1], min(found, default=None))


def _mean(numbers: Iterable[float]) -> float | None:
    values = list(numbers)
    return sum(values) / len(values) if values else None


def _target_kind(row: Row) -> str:
    return "every other class" if row.target is None else "one class"


def _require_one(
    results: Mapping[str, Certification],
    what: str,
    kinds: Callable[[Certification], Iterable[str]],
) -> None:
    found = {m: sorted(set(kinds(c))) for m, c in results.items()}
    if len({k for kind in found.values() for k in kind}) > 1:
        raise InvalidInput(
            f"these results cannot be compared on one page: they have different {what}\n"
            + "\n".join(f"  {m}: {', '.join(kind)}" for m, kind in found.items())
            + "\nwrite one report for each"
        )
