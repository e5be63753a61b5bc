"""Imports point one way, and nothing inside imports the package root."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import frown

ROOT = Path(frown.__file__).parent

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


def imports() -> Iterator[tuple[str, str]]:
    """(module, what it imports) for every import of frown inside frown, late ones too."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(("frown", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module} imports relatively"
                source = node.module or ""
                if source == "frown":  # a submodule by name is as good as its full path
                    for alias in node.names:
                        inside = (ROOT / alias.name).exists() or (
                            ROOT / f"{alias.name}.py"
                        ).exists()
                        if alias.name != "__version__":
                            yield module, f"frown.{alias.name}" if inside else "frown"
                elif source.split(".")[0] == "frown":
                    yield module, source
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "frown":
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


def test_no_two_modules_import_each_other() -> None:
    edges: dict[str, set[str]] = {}
    for module, target in imports():
        edges.setdefault(module, set()).add(target)
    cycles = [f"{a} <-> {b}" for a in edges for b in edges[a] if a in edges.get(b, set()) and a < b]
    assert not cycles
