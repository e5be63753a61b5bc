"""Tasks in, rows out: one after the other, each row kept as soon as it is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from frown.errors import FrownError, OutputError

T = TypeVar("T")  # a task: whatever `work` understands
R = TypeVar("R")  # a row


@dataclass(frozen=True, slots=True)
class Failure(Generic[T]):
    """A task that ended with an error; rows that it gave before are kept."""

    task: T
    error: str


class JobWatch(Generic[T, R]):
    """A listener to a job; subclass it."""

    def begin(self, tasks: Sequence[T]) -> None:
        """Be told which tasks are to be done."""

    def start(self, task: T) -> None:
        """Be told which task is next."""

    def kept(self, task: T, rows: Sequence[R]) -> None:
        """Be told of rows of the task that are on disk now."""

    def finish(self, task: T) -> None:
        """Be told that the task has ended, perhaps before it gave all of its rows."""


def run(
    tasks: Sequence[T],
    work: Callable[[T, Callable[[Sequence[R]], None]], None],
    keep: Callable[[Sequence[R]], None],
    watch: JobWatch[T, R],
) -> list[Failure[T]]:
    """Do the tasks in order, and return those that failed; the others go on.

    Args:
        tasks: what is still to be done: leave out what the store has (`key in store`).
        work: does one task, handing over its rows as they become known, any number at a time.
        keep: puts rows on disk; `Store.append`, or what makes rows of a store out of them.
        watch: told of everything, rows after they are kept.

    A `FrownError` ends its task, but an `OutputError`, a full disk say, ends the job: answers that
    cannot be kept need no work. So does anything else, an interrupt too. Whatever was handed over
    is kept then, and a call with the tasks that are left goes on.
    """
    failures: list[Failure[T]] = []
    watch.begin(tasks)
    for task in tasks:
        watch.start(task)

        def hand_over(rows: Sequence[R], task: T = task) -> None:
            keep(rows)
            watch.kept(task, rows)

        try:
            work(task, hand_over)
        except OutputError:
            raise
        except FrownError as error:
            failures.append(Failure(task, str(error)))
        watch.finish(task)
    return failures
