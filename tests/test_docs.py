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
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
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
    standard = {name for name in onnx_call.HANDLERS if "::" not in name}
    assert named(page, 1) == standard
    aten = {name.partition(".")[0] for name in (*torch_ops.HANDLERS, *torch_shapes.PROBED)}
    assert named(page, 2) == aten
