"""Workers that are processes of this machine.

Each has one thread, and talks through its standard input and output: pickled messages, each after
its length. It is no copy of the caller (`forks`) and does not import its script, so a script needs
no guard around its main part. A process that loses its driver, however that ended, ends at once.
"""

from __future__ import annotations

import _thread
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

import torch

from frown.bounds.work import reuse_memory
from frown.certification.procedure import Procedure
from frown.certification.run import Progress, Watch
from frown.certification.spread.forks import started
from frown.certification.spread.messages import (
    SHORT_OF_MEMORY,
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
from frown.errors import WorkersLost

_INTERRUPT = "interrupt"
_MEMORY = 75  # the exit code of a worker whose memory was not enough
_PATIENCE = 5.0  # seconds for processes to be gone


class Processes(Workers):
    """Workers that are processes of this machine; started at once, ended by `close`."""

    trusted = True

    def __init__(self, procedure: bytes, count: int) -> None:
        """Start `count` processes for a pickled procedure."""
        self._procedure = procedure
        self._inbox: queue.Queue[tuple[int, Message]] = queue.Queue()
        self._workers: dict[int, _Process] = {}
        self._started = 0
        try:
            for _ in range(count):
                self.renew()
        except BaseException:
            self.close()
            raise

    def send(self, worker: int, order: Order) -> None:
        self._workers[worker].write(order)

    def receive(self, seconds: float) -> Sequence[tuple[int, Message]]:
        found: list[tuple[int, Message]] = []
        with suppress(queue.Empty):
            found.append(self._inbox.get(timeout=max(0.0, seconds)))
            while True:
                found.append(self._inbox.get_nowait())
        for worker, message in found:
            if isinstance(message, Lost):
                self._workers.pop(worker, None)
        return found

    def renew(self) -> None:
        number = self._started
        self._started += 1
        self._workers[number] = _Process(number, self._procedure, self._inbox)

    def end(self, worker: int) -> None:
        if worker in self._workers:
            self._workers[worker].process.kill()

    def interrupt(self) -> None:
        for worker in self._workers.values():
            worker.write(_INTERRUPT)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(_PATIENCE)
        self._workers.clear()


class _Process:
    """A process, and the threads that listen to it and feed it."""

    def __init__(
        self, number: int, procedure: bytes, inbox: queue.Queue[tuple[int, Message]]
    ) -> None:
        self._number, self._inbox = number, inbox
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._said: deque[str] = deque(maxlen=5)  # its last words
        try:
            self.process = started()
        except OSError as error:
            raise WorkersLost(f"a worker cannot be started: {error}") from None
        self._outbox.put(procedure)
        for task in (self._feed, self._listen):
            threading.Thread(target=task, daemon=True).start()

    def write(self, message: object) -> None:
        """Send without waiting; `_listen` reports a process that is gone."""
        self._outbox.put(pickle.dumps(message))

    def _feed(self) -> None:
        assert self.process.stdin is not None
        while (content := self._outbox.get()) is not None:
            with suppress(OSError):
                _write(self.process.stdin, content)

    def _listen(self) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        complaints = threading.Thread(target=self._hear, daemon=True)
        complaints.start()
        try:
            while (content := _read(self.process.stdout)) is not None:
                self._inbox.put((self._number, pickle.loads(content)))
        except Exception as error:  # a message cut short or of another version
            self.process.kill()
            self._said.append(f"{type(error).__name__}: {error}")
        code = self.process.wait()
        complaints.join(1.0)
        self._outbox.put(None)
        self._inbox.put((self._number, Lost(self._reason(code))))

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line.decode(errors="replace").strip())

    def _reason(self, code: int) -> str:
        if code == _MEMORY:
            return SHORT_OF_MEMORY
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            perhaps = ", perhaps for want of memory" if name == "SIGKILL" else ""
            return f"its worker was ended by {name}{perhaps}"
        last = next((line for line in reversed(self._said) if line), "")
        return f"its worker ended with code {code}{': ' if last else ''}{last}"


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "little") + content)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message; None: there are no more."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    content = stream.read(size)
    return content if len(content) == size else None


# -- in the worker ---------------------------------------------------------------------


def serve() -> None:
    """Run a worker until the driver has gone."""
    heard, words = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not be taken for a message
    torch.set_num_threads(1)
    reuse_memory()
    _Server(heard, words).run()


class _Server(Watch):
    """The worker's side."""

    def __init__(self, read: IO[bytes], words: IO[bytes]) -> None:
        self._in, self._out = read, words
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._number, self._asked, self._busy, self._sending = -1, False, False, False

    def run(self) -> None:
        """Carry out orders one by one."""
        signal.signal(signal.SIGINT, self._ask)
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            procedure: Procedure = pickle.loads(self._orders.get())
            ready: Message = Ready()
        except Exception as error:
            ready = Failed(sendable_error(error, traceback.format_exc()))
        self._send(ready)
        while True:
            order: Order = pickle.loads(self._orders.get())
            self._number, self._asked = order.number, False
            try:
                self._busy = True
                for message in order.answers(procedure, self):
                    self._busy = isinstance(message, Handed)
                    if isinstance(message, Lost):
                        os._exit(_MEMORY)
                    self._send(message)
            except KeyboardInterrupt:  # it struck between two answers
                self._busy = False
                self._send(Done(order.number))

    def progress(self, progress: Progress) -> None:
        # Python forgets an interrupt that reaches it inside a finaliser.
        if self._asked and not isinstance(sys.exception(), KeyboardInterrupt):
            raise KeyboardInterrupt
        self._send(Told(self._number, progress))

    def _send(self, message: Message) -> None:
        self._sending = True
        _write(self._out, pickle.dumps(message))
        self._sending = False

    def _ask(self, number: int, frame: object) -> None:
        if self._busy and not self._asked:
            self._asked = True
            if not self._sending:  # a message must not be cut short
                raise KeyboardInterrupt

    def _listen(self) -> None:
        while (content := _read(self._in)) is not None:
            if len(content) < 64 and pickle.loads(content) == _INTERRUPT:
                _thread.interrupt_main()
            else:
                self._orders.put(content)
        os._exit(0)
