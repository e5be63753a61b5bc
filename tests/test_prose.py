"""Docstrings start with a verb or with the noun that is returned."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "src"
MODULES = sorted(SOURCES.rglob("*.py"))
# Words that begin a sentence without a subject: "Of so many rows.", "Where slopes stand."
HEADLESS = re.compile(
    r"(As|At|By|Beside|Enough|For|From|How|If|In|Of|On|So|Such|That|The same|To|What|When|Where"
    r"|Whether|Which|With|Without)\b"
)
# "(rows, *shape) of ...": the shape of what is returned may come first.
SHAPE = re.compile(r"\([^()]*\):? +")
UNFINISHED = ("frown_check",)


def name(module: Path) -> str:
    return module.relative_to(SOURCES).as_posix()


def docstrings(module: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text


def headless(module: Path) -> list[str]:
    found = ((place, text.split("\n")[0]) for place, text in docstrings(module))
    return [f"{place}: {first}" for place, first in found if HEADLESS.match(SHAPE.sub("", first))]


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_docstrings_begin_with_a_verb_or_a_noun(module: Path) -> None:
    if not name(module).startswith(UNFINISHED):
        assert headless(module) == []


def test_headless_docstrings_are_noticed() -> None:
    for bad in ("Of so many rows.", "(N,) Where it is.", "The same for samples.", "What it does."):
        assert HEADLESS.match(SHAPE.sub("", bad)), bad
    for good in ("Forms at the input.", "(N,) the radius.", "The samefold thing.", "Infinite."):
        assert not HEADLESS.match(SHAPE.sub("", good)), good


def test_every_helper_of_the_tests_is_told_of() -> None:
    folder = Path(__file__).parent
    told = (folder / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+)[`.:]", told)) | {"conftest"}
    modules = {path.stem for path in folder.glob("*.py")}
    assert {m for m in modules if not re.match("test_|.*_campaign$", m)} <= named
