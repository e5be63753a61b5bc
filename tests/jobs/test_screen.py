"""Progress in words: both means, throughput and time left, also where there is no terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from frown.certification.run import Progress
from frown.jobs import screen
from frown.jobs.screen import JsonScreen, LineWatch, Pace, Screen, TableScreen


def test_the_pace_tells_means_throughput_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(screen, "monotonic", lambda: clock[0])
    pace = Pace()
    assert pace.told(Progress(0, 200, 0.0, "starting")) == ""
    assert pace.told(Progress(0, 200, 0.0123456, "crown", underway=32)) == "mean radius 0.01234"
    clock[0] = 110.0
    told = pace.told(Progress(50, 200, 0.0123456, "crown", 0.0345671, 32, 40))
    assert told == "mean radius 0.01234, broken 0.03457, 5 per s, 30 s left"
    clock[0] = 1100.0
    slow = pace.told(Progress(50, 200, 0.0, "crown"))
    assert "3 per min" in slow and "50 min 0 s left" in slow
    clock[0] = 100.0 + 86400 * 4
    assert "12.5 per day" in pace.told(Progress(50, 200, 0.0, "crown"))


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LINES", 0.02)
    said = io.StringIO()
    with LineWatch(Console(file=said), 7) as watch:
        watch.progress(Progress(3, 7, 0.5, "crown"))
        time.sleep(0.2)
    assert "3 of 7 done, mean radius 0.5" in said.getvalue()
    assert screen.LINES < 1 and isinstance(TableScreen().working(7), LineWatch)
    assert isinstance(JsonScreen().working(7), LineWatch) and not isinstance(
        Screen().working(7), LineWatch
    )
