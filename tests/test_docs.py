"""The documentation's code runs, and its links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    p for folder in (".", "docs", "examples", "benchmarks") for p in (ROOT / folder).glob("*.md")
)
CODE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_pages_are_found() -> None:
    assert {"README.md", "docs/python.md", "docs/extending.md"} <= set(map(name, PAGES))


@pytest.mark.parametrize("page", [p for p in PAGES if CODE.search(p.read_text())], ids=name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """In a process of its own (some of it adds operators), beside the files `make demo` leaves."""
    with as_file(files("frown.jobs").joinpath("assets")) as assets:
        shutil.copytree(assets, tmp_path / "frown-demo")
    text = page.read_text()
    # Blank lines keep the line numbers of the page in tracebacks.
    lines = [""] * (text.count("\n") + 1)
    for block in CODE.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[first : first + len(code)] = code
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import torch; torch.set_num_threads(1); exec(compile("
            f"open({str(script)!r}).read(), {page.name!r}, 'exec'), {{'__name__': 'page'}})",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def anchors(page: Path) -> set[str]:
    """What GitHub calls a page's headings."""
    headings = re.findall(r"^#+ +(.*?)\s*$", FENCED.sub("", page.read_text()), re.M)
    plain = (re.sub(r"[^\w\- ]", "", h.lower()) for h in headings)
    return {h.replace(" ", "-") for h in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_exists(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{name(page)}: {link} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}"


TABLE = re.compile(r"^\|(.*)\|(.*)\|(.*)\|$", re.M)


def named(page: Path, column: int) -> set[str]:
    """What stands in backticks in a column of a page's tables."""
    cells = (row[column] for row in TABLE.findall(page.read_text()))
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_page_of_operators_names_all_that_are_read_and_no_other() -> None:
    import frown.read.onnx.load
    import frown.read.torch.load  # noqa: F401  (both fill the registries)
    from frown.read.onnx import call as onnx_call
    from frown.read.torch import ops as torch_ops
    from frown.read.torch import shapes as torch_shapes

    page = ROOT / "docs" / "operators.md"
    standard = {name for name in onnx_call.HANDLERS if not name.startswith("frown::")}
    assert named(page, 1) == standard
    aten = {name.partition(".")[0] for name in (*torch_ops.HANDLERS, *torch_shapes.PROBED)}
    assert named(page, 2) == aten


CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def sessions() -> list[tuple[str, str]]:
    """Every ```console block that needs no file but those of `make demo`, with its page."""
    blocks = ((p, b) for p in PAGES for b in CONSOLE.findall(p.read_text()))
    return [(name(p), b) for p, b in blocks if b.startswith("$ frown ") and "frown-demo/" in b]


def same_words(shown: str, printed: str) -> bool:
    """Compare two lines: the same words, the same numbers to 1 %, times and digests aside."""

    def parts(line: str) -> tuple[list[str], list[float]]:
        line = re.sub(r"\b[0-9a-f]{12,}\b", "digest", re.sub(r"[\d.]+ s\b", "seconds", line))
        return NUMBER.sub("#", line).split(), [float(n) for n in NUMBER.findall(line)]

    (words, numbers), (others, found) = parts(shown), parts(printed)
    if "[" in shown:  # a row of the table, seconds last
        numbers, found = numbers[:-1], found[:-1]
    if words != others or len(numbers) != len(found):
        return False
    return all(abs(a - b) <= 0.01 * max(a, b) for a, b in zip(numbers, found))


@pytest.mark.parametrize(("page", "session"), sessions(), ids=lambda text: text.split("\n")[0][:60])
def test_a_console_session_prints_what_the_page_shows(
    page: str, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from frown.cli import app

    with as_file(files("frown.jobs").joinpath("assets")) as assets:
        shutil.copytree(assets, tmp_path / "frown-demo")
    monkeypatch.chdir(tmp_path)
    for command in re.split(r"^\$ frown ", session, flags=re.M)[1:]:
        arguments, *shown = command.splitlines()
        done = CliRunner(env={"COLUMNS": "400"}).invoke(app, arguments.split())
        assert done.exit_code == 0, done.output
        printed = done.output.splitlines()
        for line in shown:
            if line.strip() not in ("", "..."):
                assert any(same_words(line, other) for other in printed), (page, line, done.output)


def test_the_page_of_the_command_line_names_every_option_and_no_other() -> None:
    import typer.main

    from frown.cli import _certify, app

    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    commands["certify"] = typer.main.get_command(_certify(every=True))
    options = {
        option
        for command in commands.values()
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    text = (ROOT / "docs" / "command-line.md").read_text()
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
    defaults = {"--attack", "--help"}  # what holds without any option
    assert {o for o in options if o.startswith("--")} - defaults <= written
    assert written - {"--version", "--name", "--help", "--install-completion"} <= options


def test_the_citation_names_this_version_and_the_paper() -> None:
    import frown

    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {frown.__version__}\n" in text
    assert "Fastened CROWN" in text


# Pages that tell where things are in the tree.
GUIDES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/extending.md", "docs/performance.md")


@pytest.mark.parametrize("page", GUIDES)
def test_the_files_that_a_guide_names_are_there(page: str) -> None:
    text = FENCED.sub("", (ROOT / page).read_text())
    named = re.findall(r"`((?:[\w.]+/)*(?:\w+\.py|\w+/))`", text)
    assert named
    for path in named:
        folders = (ROOT, ROOT / "src", ROOT / "src" / "frown")
        somewhere = any((folder / path).exists() for folder in folders)
        assert somewhere or any((ROOT / "src").rglob(path)) or any((ROOT / "tests").rglob(path)), (
            f"{page} names {path}"
        )


def test_the_picture_of_a_method_is_its_signature() -> None:
    import inspect
    from dataclasses import fields

    from frown.bounds.method import Bounds, Method

    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.search(r"^method\.bound\((.*)\) -> Bounds\((.*)\)$", page, re.M)
    assert shown is not None
    parameters = list(inspect.signature(Method.bound).parameters)
    assert shown.group(1).split(", ") == parameters[1:]
    assert shown.group(2).split(", ") == [f.name for f in fields(Bounds)]
