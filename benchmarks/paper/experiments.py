"""The paper's tables: which networks, norms, groups and methods each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf

from benchmarks.paper.cells import AREA, COLD_LP, CROWN, LP, Cell, Method, frown_method
from benchmarks.paper.figures import EXPERIMENT_I, GROUP_FIGURES, GROUP_NETWORK, GROUPS
from benchmarks.paper.networks import NETWORKS, Network
from frown.errors import InvalidInput

METHODS = ("crown", "frown", "lp")
NORMS = (1.0, 2.0, inf)
ALIASES = {"table1": "table3", "table2": "table7"}  # the main text's two experiments


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: FROWN lets `group` neurons share lines there."""

    network: Network
    norm: float
    group: int = 1

    def methods(self, names: Iterable[str], cold: bool = False) -> tuple[Method, ...]:
        """The columns of these methods; CROWN has two, the paper's rule and least area."""
        lp = COLD_LP if cold else LP
        columns = {"crown": (CROWN, AREA), "frown": (frown_method(self.group),), "lp": (lp,)}
        return tuple(method for name in names for method in columns[name])

    def cells(self, names: Iterable[str], cold: bool = False) -> tuple[Cell, ...]:
        return tuple(Cell(self.network, self.norm, m) for m in self.methods(names, cold))


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table of the paper."""

    name: str  # "table4"
    title: str
    lines: tuple[Line, ...]
    methods: tuple[str, ...]
    by_group: bool = False  # the lines differ in their groups, and are compared with each other
    cold: bool = False  # LP solves every program from nothing

    @property
    def file(self) -> str:
        """The name of its tables and pictures, without the ending."""
        return f"{self.name}-cold" if self.cold else self.name

    def cells_of(self, line: Line) -> tuple[Cell, ...]:
        return line.cells(self.methods, self.cold)

    def cells(self) -> tuple[Cell, ...]:
        """Cells that must be measured, each once."""
        return tuple(dict.fromkeys(c for line in self.lines for c in self.cells_of(line)))

    def only(
        self,
        networks: Sequence[Network] | None = None,
        norms: Sequence[float] | None = None,
        methods: Sequence[str] | None = None,
        group: int | None = None,
    ) -> Experiment:
        """The lines of some networks and norms, by some methods, or with other groups."""
        lines = [
            line
            for line in self.lines
            if (networks is None or line.network in networks)
            and (norms is None or line.norm in norms)
        ]
        if group is not None:
            lines = list(dict.fromkeys(replace(line, group=group) for line in lines))
        chosen = self.methods if methods is None else tuple(m for m in METHODS if m in methods)
        return replace(self, lines=tuple(lines), methods=chosen)


def _lines(networks: Iterable[Network], norms: Sequence[float]) -> tuple[Line, ...]:
    return tuple(Line(n, p, GROUPS.get(n.name, 1)) for n in networks for p in norms)


def _of(data: str, width: int) -> list[Network]:
    """Networks of a data set and width, an activation at a time, by depth."""
    activations = list(dict.fromkeys(n.activation for n in NETWORKS))
    return sorted(
        (n for n in NETWORKS if n.data == data and n.width == width),
        key=lambda n: (activations.index(n.activation), n.layers),
    )


def experiments() -> Mapping[str, Experiment]:
    """By name, as the paper numbers them; Table 3 is a selection from Tables 4 to 6."""
    named = {n.name: n for n in NETWORKS}
    groups = tuple(dict.fromkeys(f.group for f in GROUP_FIGURES))
    all_of_them = (
        Experiment(
            "table3",
            "Experiment I (Table 3): Sensorless Drive and MNIST",
            tuple(Line(named[name], p) for name, p in EXPERIMENT_I),
            METHODS,
        ),
        Experiment("table4", "Table 4: Sensorless Drive", _lines(_of("drive", 20), NORMS), METHODS),
        Experiment(
            "table5",
            "Table 5: MNIST, 20 neurons per layer",
            _lines(_of("mnist", 20), NORMS),
            METHODS,
        ),
        Experiment(
            "table6",
            "Table 6: MNIST, 100 neurons per layer",
            _lines(_of("mnist", 100), NORMS),
            METHODS,
        ),
        Experiment(
            "table7",
            "Experiment II (Table 7): CIFAR-10, 2048 neurons per layer",
            _lines(_of("cifar", 2048), NORMS),
            ("crown", "frown"),
        ),
        Experiment(
            "table8",
            "Table 8: groups of neurons, MNIST 4x[1024] ReLU, p = inf",
            tuple(Line(named[GROUP_NETWORK], inf, group) for group in groups),
            ("crown", "frown"),
            by_group=True,
        ),
    )
    return {e.name: e for e in all_of_them}


def matching(patterns: Sequence[str]) -> list[Network]:
    """The networks whose names match any of the patterns (`mnist_*_relu`)."""
    for pattern in patterns:
        if not any(fnmatchcase(n.name, pattern) for n in NETWORKS):
            names = ", ".join(n.name for n in NETWORKS)
            raise InvalidInput(f"--networks {pattern}: no network is named so; there are {names}")
    return [n for n in NETWORKS if any(fnmatchcase(n.name, p) for p in patterns)]
