"""Limits of a computation: memory, time, processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from frown.bounds.clock import NO_LIMIT, Clock
from frown.bounds.memory import bytes_of, half_of_free
from frown.problem.options import Option, check_options

PANEL = "Machine"
MOST = 1024  # threads or processes: where systems refuse more, libraries end the process


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


@dataclass(frozen=True)
class Machine:
    """Limits and devices of a call.

    Args:
        device: "cpu", "cuda", "cuda:1", ...
        dtype: the precision of the search, "float32" or "float64".
        memory: bytes, or text such as "4G"; None: half of what is free.
        seconds: a time limit, after which every input keeps what is proved; None: none.
        batch: inputs at a time; None: as many as memory allows, 64 at the most.
        workers: processes that share the programs of `LP`.

    Nothing but `seconds` changes a radius beyond rounding. Raises InvalidInput for values that make
    no sense.
    """

    device: Annotated[str, Option("where to compute: cpu, cuda, cuda:1, ...", panel=PANEL)] = "cpu"
    dtype: Annotated[
        str, Option("the precision of the search", ("float32", "float64"), panel=PANEL)
    ] = "float32"
    memory: Annotated[
        int | str | None, Option("bytes, or like 4G (default: half of what is free)", panel=PANEL)
    ] = None
    seconds: Annotated[
        float | None,
        Option("seconds; what is proved by then counts", above=0, flag="time-limit", panel=PANEL),
    ] = None
    batch: Annotated[int | None, Option("inputs at a time", least=1, panel=PANEL)] = None
    workers: Annotated[
        int, Option("processes that share the programs of lp", least=1, most=MOST, panel=PANEL)
    ] = 1

    def __post_init__(self) -> None:
        check_options(self)
        if self.memory is not None:
            bytes_of(self.memory)

    def clock(self, began: float) -> Clock:
        """The deadline of a call that began then."""
        return NO_LIMIT if self.seconds is None else Clock(began + self.seconds)

    def work(self, clock: Clock = NO_LIMIT, pool: Pool = Pool()) -> Work:  # noqa: B008
        """The limits of a computation that ends then."""
        memory = half_of_free(self.device) if self.memory is None else bytes_of(self.memory)
        return Work(memory, clock, pool)
