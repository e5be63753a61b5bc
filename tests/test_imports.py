"""Imports point one way, without cycles; the top level and signatures stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import frown
import frown_check
from frown.methods import METHODS, TITLES

ROOT = Path(frown.__file__).parent
CHECKER = Path(frown_check.__file__).parent
MOST_AT_THE_TOP = 12  # folders and modules
MOST_PARAMETERS = 12

# A module may import from its own layer and from those further down.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("jobs", "report"),
    ("api",),
    ("certification",),
    ("methods",),
    ("bounds",),
    ("read",),
    ("relax", "problem"),
    ("graph",),
    ("errors",),
)
# Bounds know nothing of where a network came from, relaxations and problems nothing of each other.
FORBIDDEN = (
    ("bounds", "read"),
    ("methods", "read"),
    ("relax", "problem"),
    ("problem", "relax"),
)


def part(module: str) -> str:
    return module.split(".")[1]


def height(name: str) -> int:
    (level,) = (i for i, layer in enumerate(LAYERS) if name in layer)
    return level


def imports(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """(module, what it imports) for every import of a package within itself, late ones too."""
    package = root.name
    for path in sorted(root.rglob("*.py")):
        module = ".".join((package, *path.relative_to(root).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module} imports relatively"
                source = node.module or ""
                if source.split(".")[0] != package:
                    continue
                folder = root.parent / Path(*source.split("."))
                for alias in node.names:  # a submodule by name is as good as its full path
                    inside = (folder / alias.name).is_dir() or (
                        folder / f"{alias.name}.py"
                    ).exists()
                    if alias.name != "__version__":
                        yield module, f"{source}.{alias.name}" if inside else source
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == package:
                        yield module, alias.name


def test_imports_point_one_way() -> None:
    wrong = []
    for module, target in imports():
        if module == "frown.__init__":
            continue
        if target == "frown":
            wrong.append(f"{module} imports the package root")
            continue
        here, there = part(module), part(target)
        if height(there) < height(here) or (here, there) in FORBIDDEN:
            wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_the_package_knows_nothing_of_its_benchmarks() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "benchmarks" not in {name.split(".")[0] for name in names}, path


def test_every_module_has_a_layer() -> None:
    names = {p.stem if p.is_file() else p.name for p in ROOT.iterdir()}
    names -= {"__init__", "__pycache__", "py"}
    known = {name for layer in LAYERS for name in layer}
    assert {n for n in names if not n.startswith(".")} - {"py.typed"} <= known


@pytest.mark.parametrize("root", [ROOT, CHECKER], ids=lambda root: root.name)
def test_no_imports_go_round_in_a_circle(root: Path) -> None:
    edges: dict[str, set[str]] = {}
    for module, target in imports(root):
        edges.setdefault(module.removesuffix(".__init__"), set()).add(target)
    assert edges
    TopologicalSorter(edges).prepare()  # raises CycleError, with the circle


def test_the_top_level_fits_on_a_page() -> None:
    names = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert len(names - {"__init__", "__main__"}) <= MOST_AT_THE_TOP


def test_no_function_takes_more_than_a_dozen_parameters() -> None:
    long = set()
    for path in (*ROOT.rglob("*.py"), *CHECKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                given = node.args
                named = (*given.posonlyargs, *given.args, *given.kwonlyargs)
                if len(named) + bool(given.vararg) + bool(given.kwarg) > MOST_PARAMETERS:
                    long.add(f"{path.relative_to(ROOT.parent)}: {getattr(node, 'name', 'lambda')}")
    assert not long


def parts_of(side: ast.expr) -> list[ast.expr]:
    """A side of a comparison, or the entries of one that is written out."""
    return side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]


def test_every_method_has_a_title() -> None:
    assert set(TITLES) == set(METHODS)


def test_methods_are_known_by_name_in_their_registry_alone() -> None:
    """No `if method == "frown"`: what differs between methods is theirs to say."""
    found, known = [], {*METHODS, *(f"{method.__name__}.name" for method in METHODS.values())}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [n for side in (node.left, *node.comparators) for n in parts_of(side)]
                names = {n.value for n in sides if isinstance(n, ast.Constant)}
                names |= {ast.unparse(n) for n in sides if isinstance(n, ast.Attribute)}
                if names & known and path != ROOT / "methods" / "__init__.py":
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_one_class_name_has_one_meaning() -> None:
    """A public class of frown shares its name with no other; names with _ are a module's own."""
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice
