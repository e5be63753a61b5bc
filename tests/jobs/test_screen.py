"""Progress in words: both means, throughput and time left, also where there is no terminal."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from math import inf

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from frown.certification.results import Row
from frown.certification.run import Progress
from frown.certification.statement import Statement
from frown.jobs import screen
from frown.jobs.screen import JsonScreen, LineWatch, Pace, Screen, TableScreen, bars
from frown.jobs.table import narrowed, results_table


def test_the_pace_tells_means_throughput_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(screen, "monotonic", lambda: clock[0])
    pace = Pace()
    assert pace.told(Progress(0, 200, 0.0, "starting")) == ""
    assert pace.told(Progress(0, 200, 0.0123456, "crown", underway=32)) == "mean radius 0.01234"
    clock[0] = 110.0
    told = pace.told(Progress(50, 200, 0.0123456, "crown", 0.0345671, 32, 40))
    assert told == "30 s left, 5 per s, mean radius 0.01234, broken 0.03457 (of 40 found)"
    clock[0] = 1100.0
    slow = pace.told(Progress(50, 200, 0.0, "crown"))
    assert "3 per min" in slow and "50 min 0 s left" in slow
    clock[0] = 100.0 + 86400 * 4
    assert "12.5 per day" in pace.told(Progress(50, 200, 0.0, "crown"))


def test_before_the_first_input_is_done_a_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(screen, "monotonic", lambda: clock[0])
    pace = Pace(320.0)
    clock[0] = 120.0
    begun = Progress(0, 32, 0.01, "branch", underway=32)
    assert pace.told(begun) == "some 5 min 0 s left, mean radius 0.01"
    clock[0] = 1000.0
    assert pace.told(begun) == "mean radius 0.01"  # on a busy machine: nobody knows
    assert "some" not in (told := pace.told(replace(begun, done=16))) and "left" in told


BRANCHED = Row(
    *(3, 1, 1, None, inf, "branch", "certified", 0.034123, None, 0.034151, {}, 0.0317),
    *("rigorous", "", "", True, "", "", "all", "", 2, 12345, 0.0335, 0.0345, "P-0003"),
)


@pytest.mark.parametrize("width", [60, 72, 80, 90, 100, 110, 140])
def test_a_narrow_terminal_has_whole_brackets_and_fewer_columns(width: int) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, color_system=None, width=width)
    table = results_table([BRANCHED] * 2)
    gone = narrowed(table, console)
    console.print(table)
    head, *lines = drawn.getvalue().splitlines()
    assert len(lines) == 2 and max(map(len, [head, *lines])) <= width
    for line in lines:
        assert "P-0003" in line and "certified" in line and "[0.03412, 0.03416]" in line
        assert ("12,345" in line) != ("leaves" in gone) and "…" not in line
    assert not gone or width < 110
    assert all(name not in head.split("  ") for name in gone)


def test_what_is_no_terminal_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    app = typer.Typer()

    @app.command()
    def show() -> None:
        TableScreen().results([replace(BRANCHED, id=200 * "x")], 1.0, Statement(inf), None)

    shown = CliRunner().invoke(app, []).stdout
    assert f"{200 * 'x'}  " in shown and "not shown" not in shown
    assert next(line for line in shown.splitlines() if "xxx" in line).endswith("0.0317")


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LINES", 0.02)
    said = io.StringIO()
    with LineWatch(Console(file=said), 7) as watch:
        watch.progress(Progress(3, 7, 0.5, "crown"))
        time.sleep(0.2)
    assert "3 of 7 done, crown, " in said.getvalue()
    assert screen.LINES < 1 and isinstance(TableScreen().working(7), LineWatch)
    assert isinstance(JsonScreen().working(7), LineWatch) and not isinstance(
        Screen().working(7), LineWatch
    )


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_counts_are_seen_in_terminals_of_any_width(width: int) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, color_system=None, width=width)
    bar = bars(console)
    bar.add_task("rigorous", total=10000, completed=1234, radius="mean radius " + 200 * "x")
    console.print(bar.get_renderable())
    (line,) = drawn.getvalue().splitlines()
    assert len(line) <= width
    assert line.startswith("rigorous") and " 1234/10000 " in line and "mean radius" in line
    assert ("0:00:0" in line) == (width >= 110)
