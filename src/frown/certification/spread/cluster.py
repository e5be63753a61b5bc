"""Workers that are actors of a Ray cluster.

The procedure, with the model in it, travels through Ray once for each machine; so do inputs and
rows: no file system is shared. Every machine needs frown of the same version. An actor takes one
order at a time, so that nothing queues up behind a slow one. Rows of actors count as
`frown.certification.spread.vetting` says of workers that are not trusted.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any

import torch

from frown import __version__
from frown.bounds.work import Pool, half_of_free, now, reuse_memory
from frown.certification.procedure import Procedure
from frown.certification.run import Progress, Watch
from frown.certification.spread.messages import (
    Done,
    Failed,
    Handed,
    Lost,
    Message,
    Order,
    Ready,
    Told,
    Workers,
    sendable_error,
)
from frown.errors import InvalidInput, WorkersLost

GROWTH = 5.0  # seconds between two looks at the size of the cluster
_CALLS = 3  # of an actor at once: an order, a question about progress, an interrupt


class Cluster(Workers):
    """Workers that are actors of a Ray cluster, ended by `close`."""

    trusted = False

    def __init__(self, address: str, procedure: bytes, most: int | None, batches: int = 0) -> None:
        """Connect to a cluster, and ask for actors.

        Args:
            address: `host:port`, or `auto`: the cluster that this machine is part of.
            procedure: pickled.
            most: actors; None: one for every CPU that the cluster has, also later.
            batches: of a method whose inputs can be shared; where there are fewer of them than
                CPUs, there are as few actors, and each shares its inputs with tasks on the others.

        Raises InvalidInput where Ray is not installed, WorkersLost where there is no such cluster.
        """
        self._ray = _library()
        self._mine = not self._ray.is_initialized()
        if self._mine:
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # of many kinds
                said = " ".join(str(error).split())[:300]
                raise WorkersLost(f"cluster (--cluster) {address}: {said}") from None
        self._most, self._started, self._looked = most, 0, -GROWTH
        if batches:
            cpus = self._most or int(self._ray.cluster_resources().get("CPU", 1))
            self._most = min(batches, cpus) if batches < cpus else most
            self.spare = max(1, cpus // batches)
        self._actors: dict[int, Any] = {}
        self._nodes: dict[int, str] = {}  # of the actors that are ready
        self._orders: dict[int, int] = {}  # of the actors that have one
        self._calls: dict[Any, tuple[int, str]] = {}  # what is awaited, by reference
        try:
            self._procedure = self._ray.put(procedure)
            self._grow()
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """The number of actors that were asked for."""
        return len(self._actors)

    def send(self, worker: int, order: Order) -> None:
        self._orders[worker] = order.number
        self._await(worker, "answer", order)

    def receive(self, seconds: float) -> Sequence[tuple[int, Message]]:
        self._grow()
        asked = {worker for worker, what in self._calls.values() if what == "told"}
        for worker in self._orders.keys() - asked:
            self._await(worker, "told")
        if not self._calls:
            threading.Event().wait(seconds)
            return []
        count = len(self._calls)
        done, _ = self._ray.wait(list(self._calls), num_returns=count, timeout=0)
        if not done:
            done, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        found: list[tuple[int, Message]] = []
        for reference in done:
            worker, what = self._calls.pop(reference, (-1, ""))
            if worker in self._actors:
                found += [(worker, m) for m in self._heard(worker, what, reference)]
        return found

    def renew(self) -> None:
        number = self._started
        self._started += 1
        kind = self._ray.remote(Actor)
        options = {"num_cpus": 1, "max_concurrency": _CALLS, "scheduling_strategy": "SPREAD"}
        self._actors[number] = kind.options(**options).remote(self._procedure, __version__)
        self._await(number, "ready")

    def end(self, worker: int) -> None:
        if worker in self._actors:
            self._ray.kill(self._actors[worker])

    def interrupt(self) -> None:
        for worker in self._orders:
            self._await(worker, "interrupt")

    def close(self) -> None:
        for actor in self._actors.values():
            with suppress(Exception):  # the cluster may be gone
                self._ray.kill(actor)
        self._actors.clear()
        if self._mine:
            self._ray.shutdown()

    def _await(self, worker: int, what: str, *given: object) -> None:
        reference = getattr(self._actors[worker], what).remote(*given)
        self._calls[reference] = (worker, what)

    def _grow(self) -> None:
        """Ask for as many actors as there are CPUs, or for as many as were wanted."""
        if now() - self._looked < GROWTH:
            return
        self._looked = now()
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        wanted = self._most or max(1, cpus)
        while len(self._actors) < wanted:
            self.renew()

    def _heard(self, worker: int, what: str, reference: Any) -> list[Message]:
        """The messages that a call's end stands for."""
        errors = self._ray.exceptions
        try:
            value = self._ray.get(reference)
        except errors.RayTaskError as error:  # raised by our own code, inside
            return [Failed(sendable_error(error.cause, str(error)))]
        except errors.RayError as error:
            return [self._lost(worker, error)]
        match what:
            case "ready":
                self._nodes[worker] = value
                return [Ready()]
            case "told":
                number, progress = value
                return [] if progress is None else [Told(number, progress)]
            case "answer":
                self._orders.pop(worker)
                said: list[Message] = [
                    m for m in value if isinstance(m, Handed | Done | Failed | Lost)
                ]
                if any(isinstance(m, Lost) for m in said):
                    self.end(worker)
                    self._forget(worker)
                return said
        return []

    def _lost(self, worker: int, error: Exception) -> Lost:
        """An actor that is gone, with or without its machine."""
        said = " ".join(str(error).split())
        node = self._nodes.get(worker)
        alive = {one["NodeID"]: one["Alive"] for one in self._ray.nodes()}
        away = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        machine = away or "node has died" in said or not alive.get(node, True)
        self.end(worker)  # should it be cut off and not gone
        self._forget(worker)
        if machine:
            return Lost("its machine was lost", blameless=True)
        memory = "memory" in said.lower()
        return Lost(f"its worker was lost{', for want of memory' if memory else ''}: {said[:200]}")

    def _forget(self, worker: int) -> None:
        del self._actors[worker]
        self._orders.pop(worker, None)
        self._nodes.pop(worker, None)
        self._calls = {r: call for r, call in self._calls.items() if call[0] != worker}


class Actor(Watch):
    """A worker's side: orders come one at a time, questions and interrupts beside them."""

    def __init__(self, procedure: bytes, version: str) -> None:
        if version != __version__:
            raise WorkersLost(f"a machine of the cluster has frown {__version__}, not {version}")
        # Ray sets it from the CPUs that an actor is given.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        reuse_memory()
        self._procedure: Procedure = pickle.loads(procedure)
        if self._procedure.machine.memory is None:
            share = half_of_free() // (os.cpu_count() or 1)
            self._procedure = self._procedure.with_memory(max(1, share))
        self._number, self._asked = 0, False
        self._progress: Progress | None = None

    def ready(self) -> str:
        """The machine that this is."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def answer(self, order: Order) -> list[Message]:
        """Carry out an order; after an interrupt, as far as it has come."""
        self._number, self._progress, self._asked = order.number, None, False
        return list(order.answers(self._procedure, self, _tasks))

    def told(self) -> tuple[int, Progress | None]:
        """The progress of the order at hand."""
        return self._number, self._progress

    def interrupt(self) -> None:
        """End the order at the next step of its search."""
        self._asked = True

    def progress(self, progress: Progress) -> None:
        self._progress = progress
        if self._asked:
            self._asked = False  # what follows hands over what there is
            raise KeyboardInterrupt


@contextmanager
def _tasks(count: int) -> Iterator[Pool]:
    """Tasks on CPUs of the cluster that no actor has."""
    if count == 1:
        yield Pool()
        return
    with _Tasks() as executor:
        yield Pool(count, executor)


class _Tasks(Executor):
    """Calls that run anywhere in the cluster, one CPU each."""

    def __init__(self) -> None:
        import ray

        self._ray, self._known = ray, dict[Any, Any]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        if fn not in self._known:
            self._known[fn] = self._ray.remote(num_cpus=1, max_retries=1)(fn)
        found: Future[Any] = self._known[fn].remote(*args, **named).future()
        return found


def _library() -> Any:
    try:
        import ray
    except ImportError:
        raise InvalidInput(
            "cluster (--cluster) needs Ray: pip install 'frown[ray]', here and on the cluster"
        ) from None
    return ray
