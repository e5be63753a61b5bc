"""What is told of the work: lines with the time left, a bar on a terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from rich.console import Console

from benchmarks.paper.barrier import BarrierEvent
from benchmarks.paper.cells import LP, Cell
from benchmarks.paper.networks import parse
from benchmarks.paper.progress import Bar, CellWatch, duration
from benchmarks.paper.results import Key, Result
from benchmarks.paper.runner import Task
from benchmarks.paper.train import TrainEvent

SMALL, LARGE = (Task(Cell(parse(f"mnist_{m}x100_relu"), inf, LP), (0, 1, 2)) for m in (3, 7))
RESULT = Result(
    Key("abc", inf, LP.options, "0123", 3, 7), "mnist_3x100_relu", "lp", 17, 0.5, "certified",
    True, 2.0, 2.0, 5.0, 1, 1, 1, "0.1",
)  # fmt: skip


def told(terminal: bool) -> tuple[Bar, io.StringIO]:
    stream = io.StringIO()
    return Bar(Console(file=stream, force_terminal=terminal, width=120, highlight=False)), stream


def measure(watch: CellWatch, task: Task, results: Sequence[Result]) -> None:
    watch.start(task)
    for result in results:
        watch.kept(task, [result])
    watch.finish(task)


def test_a_line_per_cell_estimates_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar, stream = told(terminal=False)
    with bar:
        watch = CellWatch(bar)
        watch.begin([SMALL, LARGE])
        now[0] += 120.0
        measure(watch, SMALL, [RESULT, replace(RESULT, radius=0.7, seconds=4.0)])
        measure(watch, LARGE, [replace(RESULT, complete=False)])
    assert stream.getvalue().splitlines() == [
        # Three of six samples, the one given up among them, took two minutes.
        "[3/6] mnist_3x100_relu p=inf lp: 2 samples, mean radius 0.6, 3 s each; about 2 min left",
        "[6/6] mnist_7x100_relu p=inf lp: not measured, given up at the time limit",
    ]


def test_a_cell_that_fails_before_any_sample_counts_as_done() -> None:
    bar, stream = told(terminal=False)
    with bar:
        watch = CellWatch(bar)
        watch.begin([SMALL])
        measure(watch, SMALL, [])
    assert stream.getvalue() == "[3/3] mnist_3x100_relu p=inf lp: not measured\n"


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    bar, stream = told(terminal=True)
    with bar:
        watch = CellWatch(bar)
        watch.begin([SMALL])
        watch.start(SMALL)
        watch.kept(SMALL, [RESULT, RESULT])
        bar.refresh()
        shown = stream.getvalue()
        watch.finish(SMALL)
    assert "mnist_3x100_relu p=inf lp" in shown and "2/3" in shown
    assert "mean radius" not in stream.getvalue()


def test_the_bar_begins_anew_with_every_network() -> None:
    bar, stream = told(terminal=True)
    network = parse("drive_4x20_relu")
    with bar:
        for name in ("mlp_2_100_nor", "cnn_small_nor"):
            for n in (1, 2):
                bar.image(BarrierEvent(name, "frown", n, 10))
        bar.refresh()
        assert "cnn_small_nor, frown" in stream.getvalue() and "2/10" in stream.getvalue()
        bar.epoch(TrainEvent(network, 1, 3, 0.5, 0.914, 1.0))
        bar.refresh()
        assert "drive_4x20_relu, 91.4% right" in stream.getvalue()


def test_training_and_images_are_a_line_at_the_end_elsewhere() -> None:
    bar, stream = told(terminal=False)
    network = parse("drive_4x20_relu")
    with bar:
        for n in (1, 2):
            bar.image(BarrierEvent("mlp_2_100_nor", "frown", n, 2))
            bar.epoch(TrainEvent(network, n, 2, 0.5, 0.914, 3.0 * n))
    assert stream.getvalue().splitlines() == [
        "mlp_2_100_nor, frown: 2 images",
        "drive_4x20_relu: 2 epochs in 6 s, 91.40% of the test samples right",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (42.3, "42 s"), (600, "10 min"), (8100, "2 h 15 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
