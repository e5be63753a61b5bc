"""The runner: rows are kept before anything else is told, failures stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.paper.tasks import Failure, run
from frown.errors import InvalidInput, OutputError
from frown.jobs.store import Store, read

Keep = Callable[[Sequence[int]], None]


class Told:
    """Writes down what it is told, and what the store held then."""

    def __init__(self, store: Store) -> None:
        self.store, self.events = store, list[tuple[object, ...]]()

    def begin(self, tasks: Sequence[str]) -> None:
        self.events.append(("begin", *tasks))

    def start(self, task: str) -> None:
        self.events.append(("start", task))

    def kept(self, task: str, rows: Sequence[int]) -> None:
        self.events.append(("kept", task, *rows, len(self.store)))

    def finish(self, task: str) -> None:
        self.events.append(("finish", task))


def keeping(store: Store) -> Keep:
    return lambda rows: store.append({str(n): {"n": n} for n in rows})


def test_rows_are_kept_as_they_come_and_then_told_of(tmp_path: Path) -> None:
    def work(task: str, keep: Keep) -> None:
        for letter in task:
            keep([ord(letter)])

    with Store(tmp_path, {}) as store:
        watch = Told(store)
        assert run(["ab", "", "c"], work, keeping(store), watch) == []
    assert watch.events == [
        ("begin", "ab", "", "c"),
        ("start", "ab"), ("kept", "ab", 97, 1), ("kept", "ab", 98, 2), ("finish", "ab"),
        ("start", ""), ("finish", ""),
        ("start", "c"), ("kept", "c", 99, 3), ("finish", "c"),
    ]  # fmt: skip


def test_a_task_that_fails_keeps_its_rows_and_stops_no_other(tmp_path: Path) -> None:
    def work(task: str, keep: Keep) -> None:
        keep([ord(task)])
        if task == "b":
            raise InvalidInput("no solver")

    with Store(tmp_path, {}) as store:
        watch = Told(store)
        failures = run(["a", "b", "c"], work, keeping(store), watch)
        assert failures == [Failure("b", "no solver")]
        assert set(store) == {"97", "98", "99"}
    assert ("finish", "b") in watch.events


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OutputError])
def test_an_interrupt_and_a_full_disk_end_the_job(
    tmp_path: Path, error: type[BaseException]
) -> None:
    done = []

    def work(task: str, keep: Keep) -> None:
        done.append(task)
        keep([ord(task)])
        if task == "b":
            raise error("now")

    with Store(tmp_path, {}) as store, pytest.raises(error):
        run(["a", "b", "c"], work, keeping(store), Told(store))
    found = read(tmp_path)
    assert done == ["a", "b"] and found is not None and set(found.rows) == {"97", "98"}
