"""Means, gains and tables: arithmetic by hand, and what a reader sees."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.paper.experiments import Experiment, Line, experiments
from benchmarks.paper.figures import FIGURES
from benchmarks.paper.networks import parse
from benchmarks.paper.plots import (
    gain_picture,
    group_picture,
    require_matplotlib,
    seconds_picture,
    write_picture,
)
from benchmarks.paper.report import Output, command, show, write
from benchmarks.paper.results import Key, Result
from benchmarks.paper.summary import Measured, Summary, gain, notes
from benchmarks.paper.tables import WIDE, csv_text, grid, markdown, number, percent
from frown.errors import InvalidInput


def result(column: str, sample: int, radius: float, seconds: float) -> Result:
    key = Key("digest", inf, (), str(sample), 0, 1)
    return Result(
        key,
        "n",
        column,
        sample,
        radius,
        "certified",
        True,
        seconds,
        seconds / 2,
        None,
        20,
        1,
        1,
        "0.3",
    )


def measured(column: str, radii: Mapping[int, float], seconds: float = 1.0) -> Measured:
    return Measured(tuple(result(column, n, r, seconds) for n, r in radii.items()))


def given_up(column: str, limit: float, radii: Mapping[int, float] | None = None) -> Measured:
    done = measured(column, radii or {}).results
    last = replace(result(column, 99, 0.1, limit), complete=False, limit=limit)
    return Measured((*done, last))


def summary(name: str, norm: float = inf, group: int = 1, **columns: Measured) -> Summary:
    return Summary(Line(parse(name), norm, group), columns, FIGURES.get((name, norm)))


FULL = {
    "crown": measured("crown", {0: 0.1, 1: 0.2, 2: 0.6}, 0.01),
    "area": measured("area", {0: 0.1, 1: 0.2, 2: 0.66}, 0.01),
    "frown": measured("frown", {0: 0.12, 1: 0.24, 2: 0.54}, 0.5),
    "lp": measured("lp", {0: 0.13, 1: 0.26}, 20.0),
}


# -- arithmetic --------------------------------------------------------------------------


def test_a_gain_is_over_the_samples_that_both_have() -> None:
    line = summary("mnist_5x20_relu", **FULL)
    frown, lp, beside = line.gain("frown"), line.gain("lp"), line.frown_gain_beside_lp
    assert frown is not None and lp is not None and beside is not None
    assert (frown.value, frown.count) == (pytest.approx(0.9 / 0.9 - 1), 3)
    assert (lp.value, lp.count) == (pytest.approx(0.39 / 0.3 - 1), 2)
    assert (beside.value, beside.count) == (pytest.approx(0.36 / 0.3 - 1), 2)


def test_no_shared_sample_or_no_radius_gives_no_gain() -> None:
    assert gain(measured("lp", {1: 1.0}), measured("crown", {2: 1.0})) is None
    assert gain(measured("lp", {1: 1.0}), measured("crown", {1: 0.0})) is None
    assert gain(Measured(), measured("crown", {1: 1.0})) is None


def test_speed_up_is_lp_seconds_over_frown_seconds() -> None:
    found = summary("mnist_5x20_relu", **FULL).speed_up
    assert found is not None and found.value == 40.0 and not found.at_least


def test_times_are_cpu_seconds_where_one_thread_did_all_the_work() -> None:
    busy = Measured(tuple(replace(r, seconds=9 * r.seconds) for r in FULL["lp"].results))
    line = summary("mnist_5x20_relu", **(FULL | {"lp": busy}))
    assert line["lp"].time == 10.0 and line["lp"].seconds == 180.0
    assert line.speed_up is not None and line.speed_up.value == 40.0
    for change in ({"cpu": None}, {"threads": 2}):
        other = Measured(tuple(replace(r, **change) for r in busy.results))
        line = summary("mnist_5x20_relu", **(FULL | {"lp": other}))
        assert line["lp"].time == 180.0
        assert line.speed_up is not None and line.speed_up.value == 360.0


def test_lp_beyond_the_limit_counts_as_at_least_the_limit() -> None:
    line = summary("mnist_5x20_relu", **(FULL | {"lp": given_up("lp", 60.0, {0: 0.13})}))
    found, lp = line.speed_up, line.gain("lp")
    assert found is not None and found.value == 120.0 and found.at_least
    assert line["lp"].limit == 60.0
    assert lp is not None and lp.count == 1  # the unfinished sample does not enter a mean


# -- text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.2, 3, "0.200"),
        (0.0219, 4, "0.02190"),
        (195.07, 3, "195"),
        (4904.991, 3, "4905"),
        (1.0, 2, "1.0"),
        (None, 3, "-"),
    ],
)
def test_numbers(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.1294, "+12.9%"), (-0.2284, "-22.8%"), (1.133, "+113%"), (None, "-")]
)
def test_percentages(value: float | None, text: str) -> None:
    assert percent(value) == text


def table(name: str, lines: Sequence[Summary]) -> Experiment:
    return replace(experiments()[name], lines=tuple(s.line for s in lines))


def full_table(name: str) -> tuple[Experiment, list[Summary]]:
    """All lines of a table of the paper, with LP given up on the widest."""
    experiment = experiments()[name]
    lines = []
    for line in experiment.lines:
        columns = dict(FULL)
        if line.network.width == 100:
            columns["lp"] = given_up("lp", 3600.0)
        names = [c.method.name for c in line.cells(experiment.methods)]
        columns = {n: columns[n] for n in names}
        lines.append(Summary(line, columns, FIGURES.get((line.network.name, line.norm))))
    return experiment, lines


def test_our_line_stands_above_the_papers() -> None:
    lines = [summary("mnist_5x100_relu", 1.0, **(FULL | {"lp": given_up("lp", 60.0)}))]
    content = grid(table("table6", lines), lines)
    ours, paper = ([dict(zip(content.heads, row.cells))] for row in content.rows)
    assert ours[0]["network"] == "5x[100] relu" and ours[0]["p"] == "1"
    assert ours[0]["CROWN"] == "0.3000" and ours[0]["CROWN\narea"] == "0.3200"
    assert ours[0]["LP"] == "-" and ours[0]["s\nLP"] == ">60" and ours[0]["LP /\nFROWN"] == ">120x"
    assert ours[0]["n\nFR, LP"] == "3, 0"
    assert paper[0]["CROWN"] == "3.893" and paper[0]["gain\nFROWN"] == "+8.8%"
    assert paper[0]["s\nLP"] == ">6000" and paper[0]["LP /\nFROWN"] == ">458x"


def test_a_line_that_the_paper_does_not_have_stands_alone() -> None:
    lines = [summary("mnist_15x20_relu", **FULL)]
    assert [row.kind for row in grid(table("table5", lines), lines).rows] == ["ours"]


def test_methods_left_out_have_no_columns() -> None:
    lines = [summary("mnist_5x20_relu", **FULL)]
    content = grid(replace(table("table5", lines), methods=("crown", "frown")), lines)
    assert not any("LP" in head for head in content.heads)


@pytest.mark.parametrize("name", list(experiments()))
@pytest.mark.parametrize("width", [80, WIDE, 140])
def test_tables_fit_the_terminal_and_nothing_is_cut(name: str, width: int) -> None:
    stream = io.StringIO()
    experiment, lines = full_table(name)
    show(experiment, lines, Console(file=stream, width=width))
    text = stream.getvalue()
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    published = 5 if experiment.by_group else sum(s.figure is not None for s in lines)
    assert text.count("\n  paper") == published > 0


def test_a_table_of_two_data_sets_has_headings() -> None:
    lines = [summary("drive_4x20_relu", **FULL), summary("mnist_5x20_relu", **FULL)]
    content = grid(table("table3", lines), lines)
    headings = [row.cells[0] for row in content.rows if row.kind == "heading"]
    assert headings == ["Sensorless Drive", "MNIST"]


def test_groups_are_compared_with_group_one() -> None:
    name = "mnist_4x1024_relu"
    one = {"crown": FULL["crown"], "frown": measured("frown", {0: 0.2, 1: 0.2}, 40.0)}
    eight = {"crown": FULL["crown"], "frown": measured("frown", {0: 0.1, 1: 0.2}, 5.0)}
    lines = [summary(name, group=1, **one), summary(name, group=8, **eight)]
    content = grid(table("table8", lines), lines)
    rows = [dict(zip(content.heads, row.cells)) for row in content.rows]
    assert [row["group"].strip() for row in rows] == [
        "1",
        "paper, CPU",
        "paper, GPU",
        "8",
        "paper, GPU",
    ]
    assert rows[3]["of group 1's"] == "75.0%" and rows[3]["times as fast"] == "8.00x"
    assert rows[3]["gain on CROWN"] == "+0.0%"
    assert rows[4]["times as fast"] == "6.69x"  # 23.4 / 3.5


def test_notes_say_how_many_samples_and_how_times_were_taken() -> None:
    lines = [
        summary("mnist_5x20_relu", **FULL),
        summary("mnist_10x20_relu", **(FULL | {"lp": given_up("lp", 60.0)})),
    ]
    text = "\n".join(notes(lines))
    assert "FROWN 3, LP 2" in text and "not measured" not in text
    part = summary("mnist_5x20_relu", 2.0, **(FULL | {"lp": Measured()}))
    assert "1 of 8 cells were not measured" in "\n".join(notes([lines[0], part]))
    assert "batches of 20" in text and "LP one at a time" in text
    assert "given up" in text
    assert "busy" in text  # twice as many seconds as CPU seconds
    assert "processes" not in text and "--force" not in text
    other = replace(FULL["lp"].results[0], workers=2, version="0.2")
    text = "\n".join(notes([summary("mnist_5x20_relu", **(FULL | {"lp": Measured((other,))}))]))
    assert "2 processes" in text and "frown 0.2, 0.3" in text


# -- files -------------------------------------------------------------------------------


def test_csv_holds_both_in_full() -> None:
    lines = [summary("mnist_5x20_relu", **FULL), summary("mnist_15x20_relu", 2.0, **FULL)]
    first, second = csv.DictReader(io.StringIO(csv_text(lines)))
    assert float(first["lp_gain"]) == pytest.approx(0.3)
    assert first["lp_gain_samples"] == "2" and first["frown_samples"] == "3"
    assert float(first["frown_gain_on_lp_samples"]) == pytest.approx(0.2)
    assert float(first["paper_frown_radius"]) == 0.02780137
    assert float(first["lp_seconds"]) == 20.0 and float(first["lp_cpu_seconds"]) == 10.0
    assert first["norm"] == "inf" and second["norm"] == "2"
    assert second["paper_crown_radius"] == "" and second["lp_given_up_after"] == ""


def test_markdown_is_one_table_of_even_rows() -> None:
    lines = [summary("drive_4x20_relu", **FULL), summary("mnist_5x20_relu", **FULL)]
    text = markdown("Title", grid(table("table3", lines), lines), ["a note"])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert len(rows) == 2 + 2 + 4  # head and rule, headings, ours and the paper's
    assert text.startswith("## Title\n") and text.endswith("- a note\n")


def test_markdown_names_its_command_and_its_samples(tmp_path: Path) -> None:
    limited = replace(result("lp", 0, 0.13, 20.0), limit=600.0)
    lines = (summary("mnist_5x20_relu", **(FULL | {"lp": Measured((limited,))})),)
    experiment = table("table5", lines)
    options = ("--networks", "mnist_5*", "--samples", "3")
    output = Output(tmp_path, None, options=options, lp_options=("--lp-samples", "1"))
    write([(experiment, lines)], output)
    text = (tmp_path / "table5.md").read_text()
    rest = "--samples 3 --lp-samples 1 --time-limit 600"
    assert f"Made by `make paper ARGS=\"table5 --networks 'mnist_5*' {rest}\"`." in text
    assert "- samples per cell: CROWN 3, FROWN 3, LP 1\n" in text
    few = replace(experiment, methods=("crown", "frown"))
    assert command(few, lines, output).endswith('--samples 3 --methods crown,frown"')


def test_cold_tables_have_their_own_files_and_are_compared_with_hot_ones(tmp_path: Path) -> None:
    cold = measured("lp", {0: 0.13, 1: 0.26}, 50.0)
    line = replace(
        summary("mnist_5x20_relu", **(FULL | {"lp": cold})), cold=True, other_lp=FULL["lp"]
    )
    assert line.cold_over_hot is not None and line.cold_over_hot.value == 2.5
    hot = replace(summary("mnist_5x20_relu", **FULL), other_lp=cold)
    assert hot.cold_over_hot == line.cold_over_hot
    assert "LP takes 2.5 times as long cold as hot" in "\n".join(notes([hot]))
    assert "LP cold" not in "\n".join(notes([hot])) and "LP cold" in "\n".join(notes([line]))
    alone = replace(line, other_lp=measured("lp", {7: 0.1}))
    assert alone.cold_over_hot is None
    experiment = replace(table("table5", [line]), cold=True)
    assert [p.name for p in write([(experiment, (line,))], Output(tmp_path))] == [
        "table5-cold.csv", "table5-cold.md", "table5-cold-gain.png", "table5-cold-seconds.png",
    ]  # fmt: skip
    (record,) = csv.DictReader(io.StringIO(csv_text([line])))
    assert record["lp_start"] == "cold" and record["lp_cold_over_hot"] == "2.5"


def test_frown_is_shown_beside_lp_on_the_same_samples() -> None:
    lines = [summary("mnist_5x20_relu", **FULL)]
    content = grid(table("table5", lines), lines)
    ours = dict(zip(content.heads, content.rows[0].cells))
    assert ours["gain\nFROWN"] == "+0.0%" and ours["gain FR\non LP's"] == "+20.0%"
    assert ours["gain\nLP"] == "+30.0%"
    without = grid(replace(table("table5", lines), methods=("crown", "lp")), lines)
    assert "gain FR\non LP's" not in without.heads


def test_pictures_are_written_where_there_is_something_to_show(tmp_path: Path) -> None:
    tables = [(e, tuple(lines)) for e, lines in map(full_table, ("table4", "table6", "table8"))]
    written = [p.name for p in write(tables, Output(tmp_path))]
    assert written[-3:] == ["gain.png", "seconds.png", "groups.png"]
    for name in written[-3:]:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    (alone,) = (t for t in tables if t[0].name == "table8")
    names = [p.name for p in write([alone], Output(tmp_path, "svg"))]
    assert names == ["table8.csv", "table8.md", "table8-groups.svg"]
    assert "<svg" in (tmp_path / "table8-groups.svg").read_text()


def test_gain_curves_are_ours_and_the_papers() -> None:
    lines = [summary(f"drive_{m}x20_relu", **FULL) for m in (4, 8, 12)]
    picture = gain_picture(lines)
    assert picture is not None
    (axes,) = picture.axes
    paper, ours = axes.get_lines()
    assert list(paper.get_xdata()) == [4, 8, 12] == list(ours.get_xdata())
    assert list(paper.get_ydata()) == pytest.approx([11.27, 12.95, 25.05], abs=0.01)
    assert list(ours.get_ydata()) == pytest.approx([0, 0, 0], abs=1e-9)


def test_lines_for_once_ten_and_a_hundred_times_are_always_drawn() -> None:
    lp = measured("lp", {0: 0.13}, 1.0)  # as fast as twice FROWN
    picture = seconds_picture([replace(summary("mnist_15x20_relu", **(FULL | {"lp": lp})))])
    wide = seconds_picture([summary(f"drive_{m}x20_relu", **FULL) for m in (4, 8, 12)])
    assert picture is not None and wide is not None
    assert {"1×", "10×", "100×"} <= {t.get_text() for t in wide.axes[0].texts}
    assert "1×" in {t.get_text() for t in picture.axes[0].texts}


def test_the_group_picture_is_beside_the_smallest_group() -> None:
    name = "mnist_4x1024_relu"
    lines = [
        summary(name, group=g, crown=FULL["crown"], frown=measured("frown", {0: r, 1: r}, 1.0))
        for g, r in ((8, 0.18), (1, 0.2))
    ]
    picture = group_picture(lines)
    assert picture is not None
    ours, crown, paper = picture.axes[0].get_lines()
    assert list(ours.get_xdata()) == [1, 8]
    assert list(ours.get_ydata()) == pytest.approx([100, 90])
    assert crown.get_ydata()[0] == pytest.approx(75)
    assert list(paper.get_ydata()) == pytest.approx([100, 100, 98.67, 98.64], abs=0.01)


def test_without_results_there_are_no_pictures() -> None:
    empty = [summary("mnist_5x20_relu"), summary("mnist_4x1024_relu")]
    assert gain_picture(empty) is seconds_picture(empty) is group_picture(empty) is None


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    picture = gain_picture([summary("drive_4x20_relu", **FULL)])
    assert picture is not None
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="cannot write"):
        write_picture(picture, tmp_path / "file" / "gain.png")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match=r"frown\[plots\]"):
        require_matplotlib()
