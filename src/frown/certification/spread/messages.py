"""Messages between the driver of a run and its workers, which pipes or Ray carry.

A worker has one `Procedure` for all its life. It sends `Ready`, gets one `Order` at a time, sends
its progress and its outcomes, and then `Done`. Whatever carries the messages adds `Lost` when a
worker is gone.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from frown.bounds.work import Clock, Pool, pool_of
from frown.certification.procedure import Procedure
from frown.certification.run import Outcome, Progress, Watch
from frown.problem.problem import Problem

Pools = Callable[[int], AbstractContextManager[Pool]]
SHORT_OF_MEMORY = "memory was not enough for its worker"


@dataclass(frozen=True)
class Order:
    """Batches for a worker: a problem of their inputs alone."""

    number: int
    problem: Problem
    parts: tuple[NDArray[np.int64], ...]  # places in this problem
    seconds: float | None  # until the deadline, from when the order arrives
    pool: int = 1  # processes, this one among them, that may share one input

    def answers(
        self, procedure: Procedure, watch: Watch, pool: Pools = pool_of
    ) -> Iterator[Handed | Done | Failed | Lost]:
        """Carry out the order. Yields rows as they are finished, with their certificates, then the
        end of the order (also after an interrupt) or its error. `pool` starts processes."""
        clock, shared = Clock.lasting(self.seconds), pool(self.pool)
        try:
            work = procedure.machine.work(clock)
            run = procedure.outcomes(self.problem, self.parts, watch, work, pool=shared)
            for outcome in run:
                yield Handed(self.number, outcome)
            yield Done(self.number)
        except KeyboardInterrupt:
            yield Done(self.number)
        except Exception as error:
            short = out_of_memory(error)
            yield (
                Lost(SHORT_OF_MEMORY)
                if short
                else Failed(sendable_error(error, traceback.format_exc()))
            )


@dataclass(frozen=True)
class Ready:
    """A worker has the procedure."""


@dataclass(frozen=True)
class Told:
    """Progress within an order."""

    number: int
    progress: Progress


@dataclass(frozen=True)
class Handed:
    """Rows of an order."""

    number: int
    outcome: Outcome


@dataclass(frozen=True)
class Done:
    """An order has come to its end, perhaps by an interrupt."""

    number: int


@dataclass(frozen=True)
class Failed:
    """An order, or the procedure itself, raised an error, as it would have in the driver."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """A worker is gone."""

    reason: str
    blameless: bool = False  # whether its machine went, and not the worker alone


Message = Ready | Told | Handed | Done | Failed | Lost


class Workers(ABC):
    """Workers by number, and the transport of messages to and from them."""

    trusted: ClassVar[bool]  # whether rows are as good as the driver's own
    spare: int = 1  # processes, itself among them, that each worker may share an input with

    @abstractmethod
    def send(self, worker: int, order: Order) -> None:
        """Give an order to a worker that is ready and has none."""

    @abstractmethod
    def receive(self, seconds: float) -> Sequence[tuple[int, Message]]:
        """The messages that have come, with the workers' numbers; waits this long for one."""

    @abstractmethod
    def renew(self) -> None:
        """Start another worker in place of one that was lost."""

    @abstractmethod
    def end(self, worker: int) -> None:
        """End a worker by force; its loss is then reported like any other."""

    @abstractmethod
    def interrupt(self) -> None:
        """Ask all workers to hand over their rows and to end their orders."""

    @abstractmethod
    def close(self) -> None:
        """End all workers at once."""


def out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory was not enough: another try may go well."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "allocate memory" in text)
    )


def sendable_error(error: BaseException, trace: str) -> Exception:
    """An error as it travels: one of frown's as it is, another as text with its traceback."""
    from frown.errors import FrownError

    if isinstance(error, FrownError):
        return type(error)(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}\nin a worker:\n{trace}")
