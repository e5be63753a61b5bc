"""Several methods' results on the same inputs, brought together input by input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan
from typing import NoReturn

from frown.certification.results import Certification, Row, Sensitivity, class_text, plain
from frown.certification.statement import Statement
from frown.errors import InvalidInput
from frown.methods import TITLES

Result = Certification | Sensitivity


@dataclass(frozen=True)
class Entry:
    """One input: its row of every method that has one, and the nearest counterexample."""

    index: int
    rows: Mapping[str, Row]
    main: Row  # of the main method, or of the tightest one that has this input
    broken: float | None  # over all methods: a counterexample is one whoever found it

    @property
    def correct(self) -> bool:
        """True if the label wins at the input itself, where that could be told."""
        row = self.main
        if row.status == "mismatch":  # whatever was proved, the model's own answer stands
            return row.prediction == row.label and row.broken != 0
        return row.status != "misclassified"

    def radius(self, method: str) -> float | None:
        """The radius `method` proved; None where it has no row or no number."""
        row = self.rows.get(method)
        return None if row is None or isnan(row.radius) else row.radius

    @property
    def proved(self) -> float:
        return 0.0 if isnan(self.main.radius) else self.main.radius

    @property
    def reach(self) -> float:
        """The radius up to which it is proved; infinite where the whole valid range is."""
        return inf if self.main.status == "robust" else self.proved

    @property
    def limit(self) -> float:
        """No larger radius can be proved: where the input is broken, 0 if it is wrong; not where
        another class than the target wins, for that breaks nothing."""
        if self.broken is not None:
            return self.broken
        return inf if self.correct or self.main.target is not None else 0.0


@dataclass(frozen=True)
class Comparison:
    """Methods from the loosest to the tightest, inputs by index."""

    results: Mapping[str, Certification]  # by method, in the order of `methods`; common rows
    entries: tuple[Entry, ...]
    statement: Statement  # what all rows say
    counts: Mapping[str, int]  # rows of each method before the common ones were taken

    @classmethod
    def of(cls, results: Mapping[str, Certification]) -> Comparison:
        """Join results by input index, over the inputs that all of them have.

        Raises InvalidInput where they differ in model, units, region or property, or in what
        lies at an index: their radii cannot be compared.
        """
        if not any(len(result) for result in results.values()):
            raise InvalidInput("no rows to report: the results are empty")
        require_comparable(results)
        methods = sorted(results, key=_rank)
        rows = {m: {row.index: row for row in results[m].rows} for m in methods}
        common = sorted(set.intersection(*(set(by_index) for by_index in rows.values())))
        if not common:
            held = {m: sorted(own) for m, own in rows.items()}
            _refuse(
                "inputs, and none in common",
                {m: f"{len(r):,} from {r[0]} to {r[-1]}" if r else "none" for m, r in held.items()},
            )
        entries = tuple(_entry(i, {m: rows[m][i] for m in methods}) for i in common)
        kept = {
            m: replace(results[m], rows=tuple(r for r in results[m].rows if r.index in set(common)))
            for m in methods
        }
        counts = {m: len(rows[m]) for m in methods}
        return cls(kept, entries, Statement.of(results[methods[-1]]), counts)

    def left_out(self) -> str:
        """A note that some results have inputs which others do not; empty where all agree."""
        if all(count == len(self.entries) for count in self.counts.values()):
            return ""
        held = ", ".join(f"{display_name(m)} {n:,}" for m, n in self.counts.items())
        return (
            f"the results have different inputs ({held}): means, curves and tables are about the "
            f"{len(self.entries):,} that all of them have"
        )

    def called(self, method: str) -> str:
        """A method's name for people, with how many of its radii are estimates, if any are."""
        return display_name(method) + estimates(self.results[method].rows)

    def named(self, number: int | None) -> str:
        """A class by its name, where the data name classes."""
        return class_text(number, self.results[self.main].class_names)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.results)

    @property
    def main(self) -> str:
        """The method the page is about: the tightest there is."""
        return self.methods[-1]

    @property
    def looser(self) -> str | None:
        """The method that is next to the main one, if there are two."""
        return self.methods[-2] if len(self.methods) > 1 else None

    @property
    def norm(self) -> float:
        return self.entries[0].main.norm

    @property
    def accuracy(self) -> float:
        return sum(e.correct for e in self.entries) / len(self.entries)

    @property
    def attacked(self) -> bool:
        """True if somebody looked for counterexamples: an attack, or a method that finds some.

        Inputs that violate the property themselves tell nothing of it.
        """
        asked = any(result.settings.get("attack") for result in self.results.values())
        return asked or any(e.correct and e.broken is not None for e in self.entries)

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

    def mean_broken(self) -> tuple[float | None, int, int]:
        """Mean distance of the counterexamples of the inputs that are classified right, how many of
        these have one, and how many there are."""
        found = [e.broken for e in self.entries if e.correct]
        held = [broken for broken in found if broken is not None]
        return _mean(held), len(held), len(found)

    def seconds(self, method: str) -> float:
        return sum(row.seconds for row in self.results[method].rows)

    def gain(self, better: str = "", than: str = "") -> float | None:
        """The relative gain of `better`'s mean radius over `than`'s, where both have one.

        By default that of the main method over the next looser one.
        """
        better, than = better or self.main, than or self.looser or ""
        if better not in self.results or than not in self.results:
            return None
        pairs = [(e.radius(better), e.radius(than)) for e in self.entries]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        both = [(a, b) for a, b in both if isfinite(a) and isfinite(b)]
        base = sum(b for _, b in both)
        return sum(a for a, _ in both) / base - 1 if base > 0 else None

    def certified(self, method: str, radius: float) -> float:
        """Share of the inputs that `method` proves to be classified right within `radius`."""
        rows = (e.rows.get(method) for e in self.entries)
        good = (row is not None and row.proves(radius) for row in rows)
        return sum(good) / len(self.entries)

    def reaches(self, method: str) -> list[float]:
        """Radii up to which `method` proves inputs; infinite for those that are everywhere."""
        rows = (e.rows.get(method) for e in self.entries)
        return [row.reach for row in rows if row is not None and row.proves(0.0)]

    def unbroken(self, radius: float) -> float:
        """Share of the inputs classified right with no counterexample within `radius`."""
        good = (e.correct and e.limit > radius for e in self.entries)
        return sum(good) / len(self.entries)


def display_name(method: str) -> str:
    """A method's name for people; brackets after it tell two runs of one method apart."""
    base, bracket, run = method.partition(" (")
    return TITLES.get(base, base) + bracket + run


def estimates(rows: Iterable[Row]) -> str:
    """Words to stand behind a name where radii are no proofs; empty where all are."""
    levels = [row.level == "estimate" for row in rows if row.proved]
    if not any(levels):
        return ""
    return ", estimates" if all(levels) else f", {sum(levels):,} of {len(levels):,} estimates"


def caution(results: Mapping[str, Result]) -> list[str]:
    """A notice for each of the results that has estimates among its radii."""
    return [
        f"{display_name(method)}{marked}: these radii are no proofs, rounding errors are not "
        "accounted for. Where this page says proved, of them it is an estimate"
        for method, found in results.items()
        if (marked := estimates(found.rows))
    ]


def _rank(method: str) -> tuple[int, bool, str]:
    """Sort key of methods. Unknown names come first, so that the best-known come last.

    So does a method among runs of it with other settings.
    """
    base, bracket, _ = method.partition(" (")
    place = list(TITLES).index(base) if base in TITLES else -1
    return (place, not bracket, method)


def _entry(index: int, rows: dict[str, Row]) -> Entry:
    found = [r.broken for r in rows.values() if r.broken is not None and isfinite(r.broken)]
    return Entry(index, rows, list(rows.values())[-1], min(found, default=None))


def _mean(numbers: Iterable[float]) -> float | None:
    values = list(numbers)
    return sum(values) / len(values) if values else None


def require_comparable(results: Mapping[str, Result], *, frames: bool = True) -> None:
    """Raise InvalidInput where results differ in model, units, region, property or names of
    classes, or in an input, label or target of one index; without `frames`, whatever moves."""
    if len(results) < 2:
        return
    _require_one("models", {m: r.digest or r.model for m, r in results.items()})
    said = {m: Statement.of(r).aspects() for m, r in results.items()}
    for what in next(iter(said.values())):
        if frames or what != "frames that move":
            _require_one(what, {m: aspects[what] for m, aspects in said.items()})
    named = {m: ", ".join(map(plain, r.class_names)) for m, r in results.items() if r.class_names}
    _require_one("names of classes", named)
    seen: dict[int, tuple[str, Row]] = {}
    for method, result in results.items():
        for row in result.rows:
            if not row.input:
                raise InvalidInput(
                    f"these results cannot be compared on one page: the rows of {method} do not "
                    "say which inputs they are about; write them again with frown certify"
                )
            first, other = seen.setdefault(row.index, (method, row))
            for what, mine, yours in (
                ("data", row.input, other.input),
                ("labels", row.label, other.label),
                ("targets", row.target, other.target),
                ("properties", row.holds[:12], other.holds[:12]),
            ):
                if mine != yours:
                    shown = {first: yours, method: mine}
                    _refuse(what, {m: f"input {row.index}: {v}" for m, v in shown.items()})


def _require_one(what: str, found: Mapping[str, str]) -> None:
    if len(set(found.values())) > 1:
        _refuse(what, found)


def _refuse(what: str, found: Mapping[str, str]) -> NoReturn:
    raise InvalidInput(
        f"these results cannot be compared on one page: they have different {what}\n"
        + "\n".join(f"  {m}: {text}" for m, text in found.items())
        + "\nwrite one report for each"
    )
