"""Limits of a computation (memory, time, processes), and the settings it runs in."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
import torch

from frown.errors import InvalidInput
from frown.problem.options import Option, check_options


class OutOfTime(Exception):
    """The time limit has passed; what was proved before stands."""


def now() -> float:
    """Seconds on the clock that deadlines are told by."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline on the monotonic clock."""

    deadline: float = inf

    @classmethod
    def lasting(cls, seconds: float | None) -> Clock:
        return cls(inf if seconds is None else now() + seconds)

    def expired(self) -> bool:
        return self.deadline != inf and now() > self.deadline

    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - now())

    def share(self, count: int) -> Clock:
        """The next of `count` equal parts of the time left."""
        return self.part(1 / count)

    def part(self, share: float) -> Clock:
        """The next part of the time left, as a share of it."""
        return self if self.deadline == inf else Clock.lasting(self.left() * share)

    def sooner(self, seconds: float) -> Clock:
        """A deadline this many seconds before this one."""
        return self if self.deadline == inf else Clock(self.deadline - seconds)

    def check(self) -> None:
        if self.expired():
            raise OutOfTime


NO_LIMIT = Clock()


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


_TYPED = 1 << 16  # bytes; whoever types no more means other units


def bytes_of(memory: object) -> int:
    """Bytes: a whole number, or `4G`, `500M`, `1.5GiB`; units are powers of 1024."""
    size = least = 0
    if isinstance(memory, int | np.integer) and not isinstance(memory, bool):
        size = int(memory)
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:I?B)?\s*", memory.upper())
        size, least = int(float(match[1]) * _UNITS[match[2]]) if match else 0, _TYPED
    if size <= least:
        raise InvalidInput(
            f"memory (--memory) {memory}: give a number of bytes, or a size like 4G or 500M"
        )
    return size


def half_of_free(device: str = "cpu") -> int:
    """Half of the bytes that are free now, on the device that will hold the rows."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] // 2)
    return _free_bytes() // 2


def _free_bytes() -> int:
    """Available memory: the kernel's word, within a container's limit where there is one."""
    free = 4 << 30  # systems that tell nothing
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 256 << 20)


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

    spawn = get_context("spawn")
    with ProcessPoolExecutor(count, spawn, _end_with_parent, (os.getpid(),)) as executor:
        yield Pool(count, executor)


def _end_with_parent(parent: int) -> None:
    """Watch the process that this one works for: where that is killed, nobody ends this one."""
    import threading
    import time

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def cores() -> int:
    """The number of cores that this process may use: its affinity, within a container's quota."""
    known = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        most, _, period = quota.read_text().strip().partition(" ")
        if most.isdigit() and period.isdigit() and int(period) > 0:
            count = min(count, ceil(int(most) / int(period)))
    return max(1, count)


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
        each: a time limit for every input, of which those of a batch share the sum.
        batch: inputs at a time; None: as many as memory allows, 64 at the most.
        workers: processes that share the inputs (or, of one input, the programs of `LP`), with one
            thread each; None: from Python this process alone, on a cluster one per CPU, on the
            command line as many as the process may use cores where that pays.
        cluster: the address of a Ray cluster whose machines share the inputs, or "auto".

    Nothing but `seconds` and `each` changes a radius beyond rounding. Raises InvalidInput for
    values that make no sense.
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
    each: Annotated[
        float | None,
        Option(
            "seconds for every input, shared in batches", above=0, flag="time-each", panel=PANEL
        ),
    ] = None
    batch: Annotated[int | None, Option("inputs at a time", least=1, panel=PANEL)] = None
    workers: Annotated[
        int | None,
        Option(
            "processes that share the inputs (default: one per core where that pays)",
            least=1,
            most=MOST,
            panel=PANEL,
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Option("machines that share the inputs, by Ray", metavar="ADDRESS|auto", panel=PANEL),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.memory is not None:
            bytes_of(self.memory)

    def clock(self, began: float) -> Clock:
        """The deadline of a call that began then."""
        return NO_LIMIT if self.seconds is None else Clock(began + self.seconds)

    def work(self, clock: Clock = NO_LIMIT) -> Work:
        """The limits of a computation that ends then."""
        memory = half_of_free(self.device) if self.memory is None else bytes_of(self.memory)
        return Work(memory, clock)


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Step = TypeVar("_Step")


FEW_WEIGHTS = 300_000  # of a network; with fewer, one thread is fastest


@contextmanager
def fitting_threads(weights: int, wanted: int | None = None) -> Iterator[None]:
    """torch with as many threads as a network of so many weights is worth; afterwards as before.

    `wanted` are taken as they are. Without, a small network gets one, since more would only wait
    for each other, and whatever else runs on the machine makes them wait longer.
    """
    before = torch.get_num_threads()
    count = wanted or (1 if weights < FEW_WEIGHTS else before)
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


KEPT, LARGE = 256 << 20, 32 << 20  # bytes


def reuse_memory() -> None:
    """Have the C library keep some of the memory that is freed, for the rest of the process.

    glibc gives nearly all of it back to the system at once, and a search asks for as much again at
    its next step: every page is then filled with zeros anew, which takes up to a third of all time.
    Blocks beyond `LARGE` are given back as before. Other libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        change = ctypes.CDLL(None).mallopt
        for parameter, size in ((-1, KEPT), (-3, LARGE)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            change(parameter, size)


@contextmanager
def plain_surroundings() -> Iterator[None]:
    """torch and numpy as they are when they have just been loaded; afterwards as they were.

    Default precision and device, autocasting, inference mode, the precision of products and what
    numpy does on overflow are set by whoever calls; bounds must not depend on them.
    """
    dtype, products = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    try:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                stack.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":  # a device slows every call down
                stack.enter_context(torch.device("cpu"))
            stack.enter_context(np.errstate(all="warn", under="ignore"))
            stack.enter_context(torch.inference_mode(False))
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(products)


def in_plain_surroundings(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """A function that works in plain surroundings, whatever its caller's are."""

    @wraps(call)
    def within(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        with plain_surroundings():
            return call(*args, **kwargs)

    return within


def stepwise(
    steps: Iterator[_Step], within: Callable[[], AbstractContextManager[Any]]
) -> Iterator[_Step]:
    """Take steps, each inside a context that ends before it is handed over.

    The caller's work between two steps is not inside.
    """
    while True:
        try:
            with within():
                step = next(steps)
        except StopIteration:
            return
        yield step
