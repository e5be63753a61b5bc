"""The checker keeps the shape in which it is audited (docs/checker.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import frown_check
from frown_check import functions, guesses
from frown_check.errors import Refused
from frown_check.lines import Elementwise
from frown_check.region import Region

ROOT = Path(frown_check.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "checker.md"
# A module may import those before it; what decides a verdict is the proof.
PROOF = ["errors", "files", "balls", "guesses", "curves", "functions", "lines", "graph", "region"]
VERDICT = ["deviations", "tree", "replay", "checker"]
QUERIES = ["query", "cover"]
SHOWN = ["data", "shown", "bundle", "__init__", "__main__"]
ORDER = [*PROOF, "container", "model", *VERDICT, *QUERIES, *SHOWN]
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (\d+) \|", re.M)


def files() -> dict[str, Path]:
    return {str(p.relative_to(ROOT)): p for p in sorted(ROOT.rglob("*.py"))}


def lines(path: Path) -> int:
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def imports(path: Path) -> Iterator[str]:
    for part in ast.walk(ast.parse(path.read_text())):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            assert part.level == 0, f"{path} imports relatively"
            assert part.module is not None
            yield part.module


def own_imports(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports(path)]
    return {p[1] for p in parts if p[0] == "frown_check"}


@pytest.mark.parametrize("name", files())
def test_a_module_imports_only_what_stands_before_it(name: str) -> None:
    path = files()[name]
    here = name.split("/")[0].removesuffix(".py")
    before = set(ORDER[: ORDER.index(here) + (here == "model")])
    if here in ("tree", "replay", *QUERIES):
        before.discard("model")  # the verdict alone calls the reader
    if here == "__main__":
        before = {"bundle", "checker", "cover", "data", "errors", "shown"}
    assert own_imports(path) <= before
    if here == "model":
        assert not own_imports(path) & {"container", "lines", "guesses"}


def test_imports_go_in_no_circle() -> None:
    """Not through a package either: what is imported from `frown_check` itself runs all of it."""
    modules = {
        ".".join(["frown_check", *path.relative_to(ROOT).with_suffix("").parts]): path
        for path in files().values()
    }
    named = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    reads = {name: named.keys() & set(imports(path)) for name, path in named.items()}
    while free := {name for name, others in reads.items() if not others & reads.keys()}:
        reads = {name: others for name, others in reads.items() if name not in free}
    assert not reads


@pytest.mark.parametrize("name", files())
def test_nothing_is_shared_with_frown(name: str) -> None:
    tops = {module.split(".")[0] for module in imports(files()[name])}
    assert not tops & {"frown", "torch", "scipy", "onnxruntime"}
    if not name.startswith("model/"):
        assert not tops & {"onnx", "google"}


def test_the_reader_is_called_in_one_place() -> None:
    callers = [n for n, p in files().items() if "model" in own_imports(p) and "/" not in n]
    assert callers == ["checker.py"]


def test_the_page_counts_the_lines_as_they_are() -> None:
    said = {name: int(count) for name, count in ROW.findall(PAGE.read_text())}
    assert said.keys() == files().keys()
    for name, path in files().items():
        assert abs(said[name] - lines(path)) <= max(3, lines(path) // 10), (name, lines(path))


def test_what_decides_can_be_read_in_an_afternoon() -> None:
    free = {"guesses.py", "curves.py", "functions.py"}  # choices, and tables of enclosures
    core = {f"{name}.py" for name in [*PROOF, *VERDICT]} - free
    assert sum(lines(files()[name]) for name in core) <= 1800
    queries = {f"{name}.py" for name in QUERIES}
    assert sum(lines(files()[name]) for name in queries) <= 600
    printed = {"data.py", "shown.py", "bundle.py", "__main__.py"}  # before and after the verdict
    rest = files().keys() - printed - queries
    assert sum(lines(files()[name]) for name in rest) <= 4250


def test_the_page_names_tests_that_exist() -> None:
    tests = Path(__file__).resolve().parents[1]
    for name in re.findall(r"`((?:\w+/)?test_\w+\.py)`", PAGE.read_text()):
        assert (tests / name).is_file(), name


# -- choices cannot make a bound false ------------------------------------------------------------


def hostile(rng: np.random.Generator, shape: tuple[int, ...], *more: float) -> np.ndarray:
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)
    strange = rng.choice([np.inf, -np.inf, 0.0, 1e308, *more], shape)
    return np.where(rng.random(shape) < 0.2, strange, values)


@pytest.mark.parametrize("name", ["Sigmoid", "Tanh", "Exp", "Log", "square"])
def test_tangents_anywhere_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    for guess in ("touch_table", "touch_power"):
        monkeypatch.setattr(guesses, guess, lambda *a: hostile(rng, a[-2].shape))
    monkeypatch.setattr(
        functions.Pointwise, "touch", lambda self, slope, *a: hostile(rng, slope.shape)
    )
    function = functions.power(2.0) if name == "square" else functions.SIMPLE[name]()
    exact = {
        "Sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "Tanh": np.tanh,
        "Exp": np.exp,
        "Log": np.log,
        "square": np.square,
    }[name]
    low = rng.uniform(0.1, 3, (40, 1)) - (0 if name == "Log" else 2)
    high = low + rng.uniform(0, 4, (40, 1))
    slope = rng.normal(size=(2, 40, 1))
    below = np.array([[True] * 40, [False] * 40])
    with np.errstate(all="ignore"):
        found = Elementwise(function, low, high).intercepts(slope, below)
    z = low + (high - low) * np.linspace(0, 1, 101)
    gap = exact(z) - slope * z - found[..., None]  # (2, 40, 101)
    gap[1] *= -1
    known = np.isfinite(found)
    assert known.mean() > 0.5
    assert (gap[known] >= -1e-12 * (1 + np.abs(found[known])[:, None])).all()


@pytest.mark.parametrize("name", ["Sigmoid", "square"])
def test_a_tangent_nowhere_proves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for guess in ("touch_table", "touch_power"):
        monkeypatch.setattr(guesses, guess, lambda *a: np.full_like(a[-2], np.nan))
    function = functions.power(2.0) if name == "square" else functions.SIMPLE[name]()
    frame = Elementwise(function, np.full((1, 1), -2.0), np.full((1, 1), -1.0))
    with suppress(Refused):
        assert np.isnan(frame.intercepts(np.full((1, 1), 0.1), np.array([True]))).all()


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_splits_of_any_kind_are_valid(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    monkeypatch.setattr(guesses, "held", lambda w, *a: hostile(rng, w.shape, np.nan))
    n = 5
    region = Region(
        p, 0.4, np.full(n, 0.5), np.ones(n), np.zeros(n, np.int64), np.zeros(n), np.ones(n)
    )
    w = rng.normal(size=(300, n))
    with np.errstate(all="ignore"):
        found = region.minimum(w).ends()[0]
    proved = 0
    for row, bound in zip(w.tolist(), found.tolist()):
        if not np.isfinite(bound):
            continue
        proved += 1
        # The vertices of the ball of p = 1 lie in all of them.
        for i in range(n):
            for step in (Fraction(2, 5), Fraction(-2, 5)):
                x = [Fraction(1, 2) + (step if i == j else 0) for j in range(n)]
                x = [min(max(v, Fraction(0)), Fraction(1)) for v in x]
                assert sum(Fraction(a) * b for a, b in zip(row, x)) >= Fraction(bound)
    assert proved > 50
