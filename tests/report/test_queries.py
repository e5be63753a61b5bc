"""The page of a folder of queries: what it says is what was answered."""

from __future__ import annotations

import re
from math import log10

from frown.report.charts import WIDE, Plane
from frown.report.queries import Answered, cactus, queries_page

ANSWERS = [
    Answered("a", "a/n1.onnx", "a/q1.vnnlib", "unsat", 2.0, 60.0),
    Answered("a", "a/n1.onnx", "a/q2.vnnlib", "sat", 4.0, 60.0, "((X_0 0.5)\n(Y_0 1.25))\n"),
    Answered("b", "b/n2.onnx", "b/q3.vnnlib", "timed-out", 60.0, 60.0),
    Answered("b", "b/n2.onnx", "b/q4.vnnlib", "unsat", 20.0, 60.0),
    Answered("<i>", "x&y.onnx", "<b>.vnnlib", "error", 1.0, 60.0, remark="line 1 <s>"),
]


def cells(page: str, section: str) -> list[list[str]]:
    """The rows of a section's table."""
    own = page[page.index(f"<h2>{section}</h2>") :]
    body = own[own.index("<tbody>") : own.index("</tbody>")]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]


def test_verdicts_are_counted_by_family() -> None:
    page = queries_page(ANSWERS, "instances", "0")
    assert cells(page, "By family") == [
        ["a", "2", "1", "1", "–", "–", "3.00"],
        ["b", "2", "–", "1", "1", "–", "20.00"],
        ["&lt;i&gt;", "1", "–", "–", "–", "1", "–"],
    ]
    assert "<strong>3</strong><small>2 unsat, 1 sat</small>" in page
    rows = cells(page, "All queries")
    assert [row[3] for row in rows] == [one.verdict for one in ANSWERS]
    assert rows[-1][4] == "line 1 &lt;s&gt;"


def test_witnesses_are_shown_and_names_are_no_markup() -> None:
    page = queries_page(ANSWERS, "instances", "0")
    assert "((X_0 0.5)\n(Y_0 1.25))" in page
    assert "<b>.vnnlib" not in page and "&lt;b&gt;.vnnlib" in page
    long = Answered("a", "n", "q", "sat", 1.0, 1.0, "\n".join(map(str, range(1000))))
    assert "… and 976 lines more" in queries_page([long], "x", "0")


def test_lines_of_the_cactus_plot_rise_with_the_times() -> None:
    """The line of all decided ends at their number, and passes every time in order."""
    drawn = cactus(ANSWERS, WIDE)
    path = re.search(r'<path class="line attack" d="M[\d. ]+((?:V[\d.]+H[\d.]+)+)"', drawn)
    assert path is not None
    steps = [tuple(map(float, pair)) for pair in re.findall(r"V([\d.]+)H([\d.]+)", path[1])]
    plane = Plane(*WIDE, right=3.0, top=2.0)  # from 1 to 100 s
    wanted = [(plane.y(log10(t)), plane.x(k)) for k, t in enumerate((2.0, 4.0, 20.0), 1)]
    assert [(round(y, 1), round(x, 1)) for y, x in wanted] == steps


def test_a_run_without_a_verdict_has_a_page() -> None:
    page = queries_page([ANSWERS[2], ANSWERS[4]], "x", "0")
    assert "Time to decide" not in page and "Witnesses" not in page
    assert "<strong>0</strong>" in page
