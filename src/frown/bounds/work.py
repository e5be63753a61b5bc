"""Limits of a computation: memory, time, processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field

from frown.bounds.clock import NO_LIMIT, Clock


@dataclass(frozen=True, slots=True)
class Pool:
    """Processes over which independent problems are spread; none: this one solves them."""

    count: int = 1
    executor: Executor | None = None


@contextmanager
def pool_of(count: int) -> Iterator[Pool]:
    """Start this many processes, until the end of the block."""
    if count == 1:
        yield Pool()
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as executor:
        yield Pool(count, executor)


@dataclass(frozen=True, slots=True)
class Work:
    """Limits of one computation. Bounds do not depend on them beyond rounding."""

    memory: int = 4 << 30  # bytes for rows in flight
    clock: Clock = NO_LIMIT
    pool: Pool = field(default_factory=Pool)
