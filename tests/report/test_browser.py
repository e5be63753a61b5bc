"""The page of ten thousand inputs, small, and sorted and filtered in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from math import inf

import numpy as np
import pytest

from frown.certification.results import Certification, Row

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
COUNT = 10_000


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rng = np.random.default_rng(0)
    radii = rng.uniform(0.01, 0.2, COUNT)
    rows = tuple(
        Row(
            *(i, i % 10, (i + (i % 50 == 0)) % 10, None, inf, "frown"),
            "misclassified" if i % 50 == 0 else "certified",
            *(0.0 if i % 50 == 0 else float(radii[i]), None),
            *(0.0 if i % 50 == 0 else 2 * float(radii[i]), {}, 0.01),
            level="rigorous",
            input=f"{i:064x}",
            broken_as=(i + 1) % 10,
        )
        for i in range(COUNT)
    )
    out = tmp_path_factory.mktemp("page") / "report.html"
    Certification(rows, {}, "net.onnx", "ab", {}, "0.1").report(out)
    return out, rows


def test_ten_thousand_inputs_fit_into_five_megabytes(page):
    out, _ = page
    text = out.read_text(encoding="utf-8")
    assert len(text.encode()) < 5_000_000
    assert text.count("<tr>") >= COUNT


def opened(out, asked):
    """The page as a browser has it after its address asked for something."""
    profile = out.parent / "profile"
    done = subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--no-first-run", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom"),
            f"{out.as_uri()}#{asked}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page was not opened")
@pytest.mark.parametrize(
    "asked", ["input=2", "input=Cid+B.", "label=very%20ill%20*", "answer=well"]
)
def test_a_browser_finds_inputs_by_number_and_name_and_classes_by_name(tmp_path, asked):
    rows = tuple(
        Row(i, 1, int(i < 2), None, inf, "frown", "certified", 0.1, None, None, {}, 0.1, id=name)
        for i, name in enumerate(("Ann", "Bob", "Cid  B."))
    )
    made = Certification(rows, class_names=("well", "very  ill *"))
    page = opened(made.report(tmp_path / "r.html"), asked)
    count = 3 if asked.startswith("label") else 1
    assert f"{count} of 3</output>" in page
    shown = re.findall(r'<tr><td data-value="(\d)">', page.split('class="sortable"')[1])
    assert shown == (["0", "1", "2"] if count == 3 else ["2"])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page was not opened")
def test_a_browser_sorts_and_filters_the_table(page):
    out, rows = page
    found = opened(out, "sort=FROWN&label=3&status=certified")
    table = found.split('<table class="sortable">')[1]
    shown = [int(i) for i in re.findall(r"<tr><td>(\d+)</td>", table)]
    wanted = [r for r in rows if r.label == 3 and r.status == "certified"]
    assert shown == [r.index for r in sorted(wanted, key=lambda r: float(f"{r.radius:.9g}"))]
    assert f"{len(wanted):,} of 10,000" in found
